# docker build -t draftproof . && docker run -p 127.0.0.1:8000:8000 -v draftproof:/var/lib/draftproof draftproof
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip wheel --no-cache-dir --wheel-dir /wheels /src

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -rf /wheels \
    && useradd --system --create-home --home-dir /var/lib/draftproof draftproof
USER draftproof
# Models lie in the volume: smollm2-135m is fetched on first use, others are put there.
ENV DRAFTPROOF_CACHE=/var/lib/draftproof \
    DRAFTPROOF_HOST=0.0.0.0 \
    DRAFTPROOF_LOG_JSON=1
# Names by which other containers reach this one: DRAFTPROOF_ALLOWED_HOST=draftproof,...
# Threads follow the container's CPU limit (--cpus); keys: DRAFTPROOF_API_KEY.
VOLUME /var/lib/draftproof
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=120s --interval=15s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["draftproof", "serve"]
