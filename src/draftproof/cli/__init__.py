"""The command `draftproof`. This file owns the entry point only; `app` has the commands.

Nothing heavy (numpy, rich, the engine) is imported before a command needs it.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and leaves with SystemExit; None = the process's own arguments."""
    from draftproof.cli.terminal import guarded

    with guarded():
        # Not app(): that also swaps in an exception hook of typer's.
        from typer.main import get_command

        from draftproof.cli.app import app

        get_command(app)(arguments, prog_name="draftproof")
