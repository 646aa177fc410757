"""Write docs/results.md: `python -m experiments --page`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from coterie.core.state import write_atomically


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="experiments", description=__doc__)
    parser.add_argument("--page", action="store_true", help="write docs/results.md from the JSON files")
    parser.parse_args(arguments)
    from experiments.page import pages

    for path, text in pages().items():
        write_atomically(path, lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
