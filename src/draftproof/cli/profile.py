"""`draftproof profile`: V(m), the plain step, and when speculation pays here, as table or plot."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftproof import discovery
from draftproof.cli.terminal import model_progress, note, print_json
from draftproof.config import EngineConfig, check_int, default_threads

if TYPE_CHECKING:
    from draftproof.bench.profile import Profile
    from draftproof.models import LoadedModel

_SHOWN_ACCEPTANCES = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class ProfileOptions:
    """The command line of `profile`."""

    model: str | None = None
    threads: int | None = None
    context: int = 512
    as_json: bool = False
    plot: Path | None = None


def run_profile(options: ProfileOptions) -> int:
    """The exit code of `draftproof profile`."""
    from draftproof.bench import plot

    if options.threads is not None:
        check_int("--threads", options.threads, 1, 1024)
    check_int("--context", options.context, 0, 1 << 24)
    if options.plot is not None:
        plot.check_plot(options.plot)
    profile = measure(options.model, options.threads, options.context)
    if options.plot is not None:
        plot.draw(profile, options.plot)
        note(f"plot written to {options.plot}")
    if options.as_json:
        print_json(profile.to_dict())
    else:
        print_profile(profile)
    return 0


def measure(model: str | None, threads: int | None, context: int) -> Profile:
    """Loads the model and measures; takes a few seconds, and as long as a prompt of `context`
    tokens. A model with less room is measured at what it has."""
    from typing import cast

    from draftproof._native import Player
    from draftproof.bench.at_context import PlayerAtContext
    from draftproof.bench.bandwidth import read_bandwidth
    from draftproof.bench.noise import Watch
    from draftproof.bench.profile import measure_profile
    from draftproof.drafting import verify_cost
    from draftproof.models import load_model

    config = EngineConfig(threads=default_threads() if threads is None else threads)
    with model_progress() as progress:
        path = discovery.resolve(model, progress)
        loaded = load_model(path, config, progress)
    context = max(0, min(context, loaded.context - verify_cost.MAX_ROWS))
    player = PlayerAtContext(loaded.player, loaded.kv, context, verify_cost.MAX_ROWS)
    watch = Watch()
    return measure_profile(
        model=path.stem,
        isa=loaded.player.isa,
        threads=loaded.player.threads,
        context=context,
        weights_bytes_per_token=weights_per_token(loaded, path),
        measure_costs=lambda: verify_cost.measure(
            cast("Player", player),
            loaded.kv,
            vocab_size=loaded.tokenizer.vocab_size,
            pages=player.pages.tolist(),
        ),
        measure_bandwidth=lambda: read_bandwidth(loaded.player.threads),
        load_reasons=watch.reasons,
    )


def weights_per_token(loaded: LoadedModel, path: Path) -> int:
    """Packed bytes that a plain step reads: all but the experts that a row doesn't use, and an
    embedding that isn't the LM head too, of which a step reads one row."""
    from draftproof._native import Weights
    from draftproof.models import open_model

    c, read = loaded.config, loaded.weights_bytes
    if c.tied and not c.num_experts:
        return read
    with closing(open_model(path)) as source:
        for name, tensor in source.tensors.items():
            if len(tensor.shape) == 3:
                one = Weights.packed_size(tensor.ggml_type, *tensor.shape[1:])
                read -= one * (c.num_experts - c.experts_used)
            elif name == "token_embd.weight" and not c.tied:
                read -= Weights.packed_size(tensor.ggml_type, *tensor.shape)
    return read


def print_profile(profile: Profile) -> None:
    """Three tables on stdout, doubts on stderr."""
    print("\n".join(_lines(profile)))
    sys.stdout.flush()
    for reason in profile.reasons:
        note(f"noisy: {reason}")


def _lines(profile: Profile) -> list[str]:
    from draftproof.bench.break_even import REFERENCE_ACCEPTANCE
    from draftproof.bench.tables import markdown

    costs, table = profile.measurement.costs, profile.table
    shown = [i for i, a in enumerate(table.acceptances) if a in _SHOWN_ACCEPTANCES]
    rates = [f"{table.acceptances[i]:g}" for i in shown]

    def speedups(values: tuple[float, ...]) -> list[str]:
        return [f"{values[i]:.2f}" for i in shown]

    return [
        f"{profile.model}: {profile.isa} kernels, {profile.threads} threads,"
        f" context {profile.context}",
        "",
        f"plain step           {1000 * profile.measurement.plain_seconds:.2f} ms"
        f" ({1 / profile.measurement.plain_seconds:.1f} tokens/s)",
        f"weights per token    {profile.weights_bytes_per_token / 1e6:.0f} MB,"
        f" read at {profile.plain_gb_per_second:.1f} GB/s",
        f"read bandwidth       {profile.bandwidth.gb_per_second:.1f} GB/s"
        f" ({profile.bandwidth.reduction} over {profile.bandwidth.buffer_bytes >> 20} MiB);"
        f" the plain step uses {100 * profile.bandwidth_share:.0f} % of it",
        "",
        "V(m), the time of a step with m rows in plain steps:",
        "",
        markdown(
            ["m", *(str(m) for m in costs)], [["V(m)", *(f"{v:.2f}" for v in costs.values())]]
        ),
        "Exact verification: expected speedup by acceptance, and the acceptance from which a draft",
        "of k tokens pays:",
        "",
        markdown(
            ["k", "V(k+1)", "break-even", *rates],
            [
                [
                    str(row.k),
                    f"{row.cost:.2f}",
                    "never" if row.break_even is None else f"{row.break_even:.2f}",
                    *speedups(row.exact),
                ]
                for row in table.rows
            ]
            + [["best k", "", "", *(str(table.best_k[i]) for i in shown)]],
        ),
        f"Recommended k, if fixed: {table.recommended_k} (best at acceptance"
        f" {REFERENCE_ACCEPTANCE:g})" + ("" if table.recommended_k else ": don't speculate here"),
        "",
        "Replay (the accepted tokens are decoded again, one by one) is never faster than plain",
        "decoding: its probe comes on top. Expected speedup:",
        "",
        markdown(
            ["k", "V(k+1)", "break-even", *rates],
            [[str(row.k), f"{row.cost:.2f}", "never", *speedups(row.replay)] for row in table.rows],
        ).rstrip("\n"),
    ]
