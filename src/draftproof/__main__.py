"""`python -m draftproof` is the command `draftproof`."""

from __future__ import annotations

from draftproof.cli import main

if __name__ == "__main__":
    main()
