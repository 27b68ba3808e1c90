"""Statistics of speculation in other projects' names: the one table for responses and /metrics.

The source is Completion.speculation (drafting/stats.py has its definitions)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.outputs import TokenEvent

Stats = Mapping[str, Any]

COUNTS = {  # name in a response (vLLM's, where it has one): name in Completion.speculation
    "num_spec_steps": "tries",
    "num_draft_tokens": "drafted",
    "num_accepted_draft_tokens": "accepted",
    "num_rolled_back": "rolled_back",
}
COUNTERS = {  # Prometheus counters, without _total: the same counts
    "vllm:spec_decode_num_drafts": "tries",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
    "llamacpp:spec_decode_num_drafts": "tries",
    "llamacpp:spec_decode_num_draft_tokens": "drafted",
    "llamacpp:spec_decode_num_accepted_tokens": "accepted",
    "draftproof:spec_decode_num_rolled_back_tokens": "rolled_back",
}
PER_POSITION = (  # counters with the label `position`
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos",
)


def merged(stats: Iterable[Stats]) -> dict[str, Any]:
    """The counts of several runs together. `speculative_decoding` makes rates."""
    total: dict[str, Any] = {}
    for one in stats:
        for key in (*COUNTS.values(), "time_saved_ms", "plain_steps", "by_source"):
            total[key] = _sum(total.get(key), one[key])
        key = "accepted_per_position"
        total[key] = _sum_lists(total.get(key, []), one[key])
    return total


def _sum(a: Any, b: Any) -> Any:
    if isinstance(b, Mapping):
        a = a or {}
        return {key: _sum(a.get(key), b.get(key, 0)) for key in {**a, **b}}
    return (a or 0) + b


def _sum_lists(a: Sequence[int], b: Sequence[int]) -> list[int]:
    length = max(len(a), len(b))
    return [sum(list(x)[i] for x in (a, b) if i < len(x)) for i in range(length)]


def speculative_decoding(stats: Stats) -> dict[str, Any]:
    """The object `metrics.speculative_decoding` of a response. acceptance_histogram[i]: verify
    steps that accepted exactly i draft tokens."""
    tries, drafted, accepted = stats["tries"], stats["drafted"], stats["accepted"]
    at_least = [tries, *stats["accepted_per_position"], 0]
    histogram = [at_least[i] - at_least[i + 1] for i in range(len(at_least) - 1)]
    return {
        **{name: stats[key] for name, key in COUNTS.items()},
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "mean_acceptance_length": 1.0 + accepted / tries if tries else 0.0,
        "acceptance_histogram": histogram if tries else [],
        "time_saved_ms": stats["time_saved_ms"],
        "plain_steps": dict(stats["plain_steps"]),
        "by_source": {source: dict(counts) for source, counts in stats["by_source"].items()},
    }


def trace(events: Sequence[TokenEvent], text_of: Callable[[int], str]) -> dict[str, Any]:
    """The object `draftproof` of a streamed chunk: one step, token by token. texts: what became
    certain with each token. sources: see outputs.Origin. rejected: texts of the draft tokens that
    each token put an end to."""
    committed = [event for event in events if event.token_id >= 0]
    return {
        "step": committed[0].origin.step if committed else 0,
        "tokens": [event.token_id for event in committed],
        "texts": [event.text for event in committed],
        "sources": [event.origin.source for event in committed],
        "rejected": [[text_of(id) for id in event.origin.rejected] for event in committed],
    }
