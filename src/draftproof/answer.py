"""A request's state into what the caller gets: deltas while it runs, a completion at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from draftproof.engine import LogitsTrail
from draftproof.outputs import (
    Audit,
    Completion,
    Delta,
    EngineInfo,
    Progress,
    Timings,
    TokenEvent,
    Usage,
)

if TYPE_CHECKING:
    from draftproof.models import LoadedModel
    from draftproof.request import Request


def deltas_of(
    request: Request, arrived: Sequence[TokenEvent | Progress], loaded: LoadedModel
) -> Iterator[Delta]:
    """What one step gave: its progress, then all its tokens in one piece."""
    events = []
    for item in arrived:
        if isinstance(item, Progress):
            yield Delta("", (), progress=item, index=request.choice_index)
        else:
            events.append(item)
    if events:
        yield Delta(
            "".join(event.text for event in events),
            tuple(event.token_id for event in events if event.token_id >= 0),
            completion=completion_of(request, loaded) if events[-1].finish_reason else None,
            logprobs=tuple(event.logprob for event in events if event.logprob is not None),
            events=tuple(events),
            index=request.choice_index,
        )


def joined(last: Sequence[Delta]) -> Completion:
    """The first choice's completion with all others, from the last delta of each, in any order."""
    found = {delta.index: delta.completion for delta in last if delta.completion is not None}
    first, *others = (found[index] for index in sorted(found))
    return replace(first, siblings=tuple(others)) if others else first


def completion_of(request: Request, loaded: LoadedModel) -> Completion:
    """The result of a finished request."""
    if request.finish_reason is None:
        raise RuntimeError("the request isn't finished")
    audit = None
    if request.logits_hash is not None:
        trail = request.logits_hash
        rows = trail.rows if isinstance(trail, LogitsTrail) else ()
        audit = Audit(trail.hexdigest(), request.kv_digest, request.kv_length, rows)
    engine = EngineInfo(
        isa=loaded.player.isa,
        threads=loaded.player.threads,
        weights_bytes=loaded.weights_bytes,
        peak_rss_bytes=peak_rss_bytes(),
        system_fingerprint=loaded.fingerprint,
        seed=request.seed,
    )
    return Completion(
        text=request.text,
        token_ids=tuple(request.output_ids),
        finish_reason=request.finish_reason,
        usage=Usage(
            request.num_prompt,
            request.num_output,
            request.num_cached,
            0 if request.vision is None else request.vision.tokens,
        ),
        timings=_timings(request, loaded.load_ms),
        speculation=request.stats.to_dict(),
        spec_line=request.stats.line(),
        engine=engine,
        audit=audit,
        stop_reason=request.stop_reason,
        logprobs=None if request.sampling.logprobs is None else tuple(request.logprobs),
    )


def _timings(request: Request, load_ms: float) -> Timings:
    prompt = request.time_first - request.time_start
    predicted = request.time_last - request.time_first
    return Timings(
        load_ms=load_ms,
        prompt_ms=1000 * prompt,
        prompt_per_second=request.num_prompt / prompt if prompt > 0 else 0.0,
        predicted_ms=1000 * predicted,
        predicted_per_second=(request.num_output - 1) / predicted if predicted > 0 else 0.0,
    )


def peak_rss_bytes() -> int:
    """The largest resident memory of this process so far; 0 where the system doesn't say.

    VmHWM of /proc, because getrusage also counts what ran before exec.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
