"""Print the oldest version that pyproject.toml allows of each package, as constraints for pip: `python tests/oldest.py`."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("data", "plot", "report", "varsel")
"""Extras whose oldest versions are tried; the others stand on programs or services of their own."""


def oldest(requirements: Iterable[str]) -> list[str]:
    """Return constraints: of `numpy>=1.26`, `numpy==1.26.*`, the last correction of that version.

    Raises:
        ValueError: A requirement has no lower bound.
    """
    found = []
    for requirement in requirements:
        match = re.fullmatch(
            r"([A-Za-z0-9_-]+)>=([\d.]+)(?:,.*)?", requirement.replace(" ", "")
        )
        if match is None:
            raise ValueError(
                f"{requirement!r} in pyproject.toml has no lower bound; write NAME>=VERSION"
            )
        found.append(
            f"{match[1]}=={match[2]}" + ("" if match[2].count(".") > 1 else ".*")
        )
    return found


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = [
        one for extra in EXTRAS for one in project["optional-dependencies"][extra]
    ]
    sys.stdout.write("\n".join(oldest([*project["dependencies"], *extras])) + "\n")
