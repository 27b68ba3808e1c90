"""The command `serve`: its options, each with a twin in the environment."""

# typer reads the annotations below at run time: every name in them must stay a global of this file.
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.options import (
    ImageMaxTokens,
    ImageMinTokens,
    KvMemory,
    KvStore,
    KvType,
    Mmproj,
    Quantization,
)
from draftproof.cli.terminal import guarded


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            envvar="DRAFTPROOF_MODEL",
            help="A .gguf file or a name from `draftproof models`. Default: smollm2-135m.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(envvar="DRAFTPROOF_HOST", help="Address to listen at; 0.0.0.0: all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="DRAFTPROOF_PORT", help="0: any free one.")] = 8000,
    alias: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPROOF_ALIAS",
            help="What clients call the model, names with commas between; *: any name.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPROOF_API_KEY",
            help="Keys with commas between; each sees its own cache only. Default: none needed.",
        ),
    ] = None,
    allowed_host: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPROOF_ALLOWED_HOST",
            help="Host names we are reached by, with commas between; *: any.",
        ),
    ] = None,
    cors_origins: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPROOF_CORS_ORIGINS",
            help="Origins of web pages that may ask, with commas between. Default: none.",
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            envvar="DRAFTPROOF_CHAT_TEMPLATE", help="A Jinja file instead of the model's."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", envvar="DRAFTPROOF_THREADS", help="As for `run`."),
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option("--ctx", "-c", envvar="DRAFTPROOF_CTX", help="Context of a request, tokens."),
    ] = None,
    kv_type: KvStore = KvType.F16,
    quantize: Annotated[
        Quantization | None, typer.Option(envvar="DRAFTPROOF_QUANTIZE", help="As for `run`.")
    ] = None,
    kv_memory: KvMemory = None,
    mmproj: Mmproj = None,
    image_max_tokens: ImageMaxTokens = 512,
    image_min_tokens: ImageMinTokens = 64,
    media_path: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            envvar="DRAFTPROOF_MEDIA_PATH",
            help="Images by file: URLs are read below this folder. Default: none are.",
        ),
    ] = None,
    allow_remote_media: Annotated[
        bool,
        typer.Option(
            "--allow-remote-media",
            envvar="DRAFTPROOF_ALLOW_REMOTE_MEDIA",
            help="Fetch images by http(s) URLs, from public addresses only.",
        ),
    ] = False,
    prefill_chunk: Annotated[
        int, typer.Option(envvar="DRAFTPROOF_PREFILL_CHUNK", help="Prompt tokens per step.")
    ] = 256,
    max_running: Annotated[
        int,
        typer.Option(envvar="DRAFTPROOF_MAX_RUNNING", help="Requests that are played together."),
    ] = 64,
    max_queue: Annotated[
        int, typer.Option(envvar="DRAFTPROOF_MAX_QUEUE", help="Requests that may wait.")
    ] = 256,
    prefix_cache: Annotated[
        bool,
        typer.Option(
            envvar="DRAFTPROOF_PREFIX_CACHE", help="Whether requests that begin alike share work."
        ),
    ] = True,
    max_body_mb: Annotated[
        int, typer.Option(envvar="DRAFTPROOF_MAX_BODY_MB", help="Largest request body, MiB.")
    ] = 32,
    request_timeout: Annotated[
        float, typer.Option(envvar="DRAFTPROOF_REQUEST_TIMEOUT", help="Seconds for an answer.")
    ] = 3600.0,
    shutdown_grace: Annotated[
        float,
        typer.Option(
            envvar="DRAFTPROOF_SHUTDOWN_GRACE", help="Seconds that open answers have at the end."
        ),
    ] = 10.0,
    sse_ping_interval: Annotated[
        float,
        typer.Option(envvar="DRAFTPROOF_SSE_PING_INTERVAL", help="Seconds; 0: no pings."),
    ] = 15.0,
    log_json: Annotated[
        bool, typer.Option("--log-json", envvar="DRAFTPROOF_LOG_JSON", help="Log lines as JSON.")
    ] = False,
    lora: Annotated[str | None, typer.Option(envvar="DRAFTPROOF_LORA", hidden=True)] = None,
) -> None:
    """Serve a model over HTTP, in the protocols of OpenAI, Anthropic and Ollama.

    Ends with 0 after Ctrl-C or SIGTERM, once open answers are done or their time is up.
    """
    with guarded():
        from draftproof.cli.server import ServeOptions, run_server

        run_server(
            ServeOptions(
                model=model,
                host=host,
                port=port,
                alias=alias,
                api_key=api_key,
                allowed_host=allowed_host,
                cors_origins=cors_origins,
                chat_template=chat_template,
                threads=threads,
                ctx=ctx,
                kv_type=kv_type.value,
                quantize=None if quantize is None else quantize.value,
                kv_memory=kv_memory,
                mmproj=mmproj,
                image_max_tokens=image_max_tokens,
                image_min_tokens=image_min_tokens,
                media_path=media_path,
                allow_remote_media=allow_remote_media,
                prefill_chunk=prefill_chunk,
                max_running=max_running,
                max_queue=max_queue,
                prefix_cache=prefix_cache,
                max_body_mb=max_body_mb,
                request_timeout=request_timeout,
                shutdown_grace=shutdown_grace,
                sse_ping_interval=sse_ping_interval,
                log_json=log_json,
                lora=lora,
            )
        )
