"""/metrics in the names of vLLM and llama.cpp. Owns the latencies; all counts of the engine are
read from it when somebody asks, so they can't disagree with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from draftproof.server.speculation import COUNTERS, PER_POSITION

if TYPE_CHECKING:
    from draftproof.outputs import EngineMetrics
    from draftproof.server.jobs import Answer
    from draftproof.server.log import RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each one, which nobody asks for
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)


class Metrics:
    """The metrics of one server, labelled with the model's name."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self._engine: Callable[[], EngineMetrics] | None = None

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(
                name, text, ["model_name"], registry=self._registry, buckets=tuple(buckets)
            )
            return made.labels(model)

        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "Request to first token.", _SECONDS
        )
        self._total = histogram(
            "vllm:e2e_request_latency_seconds", "Request to last token.", _SECONDS
        )
        self._per_token = histogram(
            "vllm:inter_token_latency_seconds", "Mean time between the tokens of one.", _SECONDS
        )
        self._prompt = histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._generated = histogram(
            "vllm:request_generation_tokens", "Tokens of an answer.", _TOKENS
        )
        self._success = Counter(
            "vllm:request_success",
            "Finished choices.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._responses = Counter(
            "draftproof:http_responses",
            "Responses by status; cancelled: the client went away.",
            ["status"],
            registry=self._registry,
        )
        self._registry.register(_EngineCollector(self))

    def watch(self, engine: Callable[[], EngineMetrics]) -> None:
        self._engine = engine

    def count_answers(self, answers: Sequence[Answer], record: RequestRecord) -> None:
        """A request that was answered in full."""
        now = time.perf_counter()
        self._total.observe(now - record.started)
        if record.first_token:
            self._first_token.observe(record.first_token - record.started)
            if record.completion_tokens > 1:
                between = now - record.first_token
                self._per_token.observe(between / (record.completion_tokens - 1))
        self._prompt.observe(record.prompt_tokens)
        for answer in answers:
            self._generated.observe(answer.result.usage.completion_tokens)
            self._success.labels(self._model, answer.finish_reason or "").inc()

    def count_response(self, record: RequestRecord) -> None:
        status = "cancelled" if record.outcome == "cancelled" else str(record.status)
        self._responses.labels(status).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def engine_families(self) -> Iterator[Metric]:
        if self._engine is None:
            return
        now = self._engine()
        yield from _gauges(now, self._model)
        yield from _counters(now, self._model)


class _EngineCollector:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.engine_families()

    def describe(self) -> Iterator[Metric]:
        return iter(())  # the names are known only with a model


def _gauges(now: EngineMetrics, model: str) -> Iterator[Metric]:
    used = now.kv_pages_used / now.kv_pages_total if now.kv_pages_total else 0.0
    for name, text, value in (
        ("vllm:num_requests_running", "Requests in steps.", now.running),
        ("vllm:num_requests_waiting", "Requests that wait.", now.waiting),
        ("vllm:kv_cache_usage_perc", "Used part of the KV pages, 0 to 1.", used),
        ("llamacpp:requests_processing", "Requests in steps.", now.running),
        ("llamacpp:requests_deferred", "Requests that wait.", now.waiting),
    ):
        gauge = GaugeMetricFamily(name, text, labels=["model_name"])
        gauge.add_metric([model], value)
        yield gauge


def _counters(now: EngineMetrics, model: str) -> Iterator[Metric]:
    counts = now.speculation
    speculation = {**counts, "rolled_back": counts["rejected"] + counts["discarded"]}
    for name, value in (
        ("vllm:prompt_tokens", now.prompt_tokens),
        ("vllm:generation_tokens", now.generated_tokens),
        ("llamacpp:prompt_tokens", now.prompt_tokens),
        ("llamacpp:tokens_predicted", now.generated_tokens),
        ("llamacpp:n_decode", now.steps),
        ("draftproof:requests_cancelled", now.requests_cancelled),
        ("draftproof:step_seconds", now.step_seconds),
        ("vllm:prefix_cache_queries", now.prefix_queries),
        ("vllm:prefix_cache_hits", now.prefix_hits),
        ("draftproof:prefix_cache_hit_tokens", now.prefix_hit_tokens),
        ("vllm:num_preemptions", now.preemptions),
        *((name, speculation[key]) for name, key in COUNTERS.items()),
    ):
        counter = CounterMetricFamily(name, name.partition(":")[2], labels=["model_name"])
        counter.add_metric([model], value)
        yield counter
    for name in PER_POSITION:
        counter = CounterMetricFamily(
            name, name.partition(":")[2], labels=["model_name", "position"]
        )
        for position, value in enumerate(now.accepted_per_position):
            counter.add_metric([model, str(position)], value)
        yield counter
