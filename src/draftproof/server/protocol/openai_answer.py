"""What the two OpenAI completion endpoints have in common in their answers: envelope, usage,
statistics, events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from draftproof.outputs import Completion, Progress
from draftproof.server.errors import ApiError
from draftproof.server.jobs import Answer, Job
from draftproof.server.protocol.common import StreamOptions, encode, sse, timings
from draftproof.server.served import Served
from draftproof.server.speculation import merged, speculative_decoding


class OpenAIAnswer:
    """The envelope of one answer. first: the choices that come first of their prompt, which
    is what prompt tokens are counted by."""

    stream_type = "text/event-stream; charset=utf-8"

    def __init__(
        self,
        prefix: str,
        kind: str,
        chunk_kind: str,
        served: Served,
        jobs: Sequence[Job],
        options: StreamOptions | None,
    ) -> None:
        self._id = f"{prefix}-{secrets.token_hex(12)}"
        self._kind = kind
        self._chunk_kind = chunk_kind
        self._served = served
        self._include_usage = bool(options and options.include_usage)
        self._created = int(time.time())
        self._prompts = [job.first_choice for job in jobs]
        self._begun = time.perf_counter()

    def envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._served.config.name,
        }

    def chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        """One event with one choice."""
        return sse({**self.envelope(self._chunk_kind), "choices": [choice], **more})

    def opening(self) -> bytes:
        return b""

    def ping(self) -> bytes:
        return b": ping\n\n"

    def progress(self, progress: Progress) -> bytes:
        state = {
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": round(1000 * (time.perf_counter() - self._begun), 3),
        }
        return sse({**self.envelope(self._chunk_kind), "choices": [], "prompt_progress": state})

    def failure(self, error: ApiError) -> bytes:
        return sse(error.to_openai())

    def closing(self, answers: Sequence[Answer]) -> bytes:
        usage = b""
        if self._include_usage:
            envelope = self.envelope(self._chunk_kind)
            usage = sse({**envelope, "choices": [], "usage": self.usage(answers)})
        return usage + b"data: [DONE]\n\n"

    def body(self, choices: list[dict[str, Any]], answers: Sequence[Answer]) -> bytes:
        results = [answer.result for answer in answers]
        return encode(
            {
                **self.envelope(self._kind),
                "choices": choices,
                "usage": self.usage(answers),
                **statistics(results),
            }
        )

    def token_text(self, id: int) -> str:
        return self._served.llm.token_bytes(id).decode("utf-8", "replace")

    def usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        prompts = [answers[i].result.usage for i in self._prompts]
        prompt = sum(usage.prompt_tokens for usage in prompts)
        completion = sum(answer.result.usage.completion_tokens for answer in answers)
        cached = sum(usage.cached_tokens for usage in prompts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def statistics(results: Sequence[Completion]) -> dict[str, Any]:
    """Members of a response about how it came about. Several choices: timings of the first, counts
    of all."""
    stats = merged(result.speculation for result in results)
    first = results[0]
    return {
        "system_fingerprint": first.engine.system_fingerprint,
        "seed": first.engine.seed,
        "timings": timings(first),
        "metrics": {"speculative_decoding": speculative_decoding(stats)},
    }
