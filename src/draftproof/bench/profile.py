"""When speculation pays on this machine with this model: V(m), bandwidth, and what follows.

V is measured as the engine measures its prior (drafting.verify_cost), several times over, in turns
with the read bandwidth. The rest is the cost model of break_even.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.bench.bandwidth import ReadBandwidth
from draftproof.bench.break_even import BreakEvenTable, break_even_table
from draftproof.bench.metrics import gb_per_second, median, ratio
from draftproof.bench.noise import MAX_DRIFT, drift_reasons
from draftproof.drafting.verify_cost import Measurement, VerifyCost

ROUNDS = 3


@dataclass(frozen=True)
class Profile:
    """context: positions before the timed steps. measurement: medians over all rounds.
    weights_bytes_per_token: packed weights that a plain step reads. reasons: why the figures
    deserve doubt, empty = none."""

    model: str
    isa: str
    threads: int
    context: int
    measurement: Measurement
    bandwidth: ReadBandwidth
    weights_bytes_per_token: int
    table: BreakEvenTable
    reasons: tuple[str, ...]

    @property
    def plain_gb_per_second(self) -> float:
        """Weights read by a plain step ÷ its time; attention, head and sampler are in that time."""
        return gb_per_second(self.weights_bytes_per_token, self.measurement.plain_seconds)

    @property
    def bandwidth_share(self) -> float:
        return ratio(self.plain_gb_per_second, self.bandwidth.gb_per_second)

    def to_dict(self) -> dict[str, Any]:
        """What --json prints."""
        return {
            "model": self.model,
            "isa": self.isa,
            "threads": self.threads,
            "context": self.context,
            "plain_step_ms": 1000 * self.measurement.plain_seconds,
            "read_bandwidth_gb_s": self.bandwidth.gb_per_second,
            "weights_bytes_per_token": self.weights_bytes_per_token,
            "plain_gb_s": self.plain_gb_per_second,
            "bandwidth_share": self.bandwidth_share,
            "verify_cost": {str(m): cost for m, cost in self.measurement.costs.items()},
            "spread": self.measurement.spread,
            **self.table.to_dict(),
            "noisy": bool(self.reasons),
            "noise_reasons": list(self.reasons),
        }


def measure_profile(
    *,
    model: str,
    isa: str,
    threads: int,
    context: int,
    weights_bytes_per_token: int,
    measure_costs: Callable[[], Measurement],
    measure_bandwidth: Callable[[], ReadBandwidth],
    load_reasons: Callable[[], Sequence[str]],
    rounds: int = ROUNDS,
) -> Profile:
    """measure_costs: one seed grid; measure_bandwidth: one probe; each is called `rounds` times, in
    turns. load_reasons: asked at the end."""
    measurements: list[Measurement] = []
    bandwidths: list[ReadBandwidth] = []
    for _ in range(rounds):
        measurements.append(measure_costs())
        bandwidths.append(measure_bandwidth())
    measurement = combine(measurements)
    rates = [b.gb_per_second for b in bandwidths]
    bandwidth = min(bandwidths, key=lambda b: abs(b.gb_per_second - median(rates)))
    reasons = [*load_reasons(), *drift_reasons([m.plain_seconds for m in measurements])]
    if min(rates) > 0 and max(rates) / min(rates) > MAX_DRIFT:
        reasons.append(f"the read bandwidth was between {min(rates):.1f} and {max(rates):.1f} GB/s")
    return Profile(
        model=model,
        isa=isa,
        threads=threads,
        context=context,
        measurement=measurement,
        bandwidth=bandwidth,
        weights_bytes_per_token=weights_bytes_per_token,
        table=break_even_table(
            VerifyCost(measurement).cost, max_k=max(max(measurement.costs) - 1, 1)
        ),
        reasons=tuple(reasons),
    )


def combine(measurements: Sequence[Measurement]) -> Measurement:
    """Medians, point by point, over the points that all of them have. Medians of rising tables
    rise."""
    shared = [m for m in measurements[0].costs if all(m in other.costs for other in measurements)]
    return Measurement(
        plain_seconds=median([m.plain_seconds for m in measurements]),
        costs={m: median([other.costs[m] for other in measurements]) for m in shared},
        spread=max(m.spread for m in measurements),
    )
