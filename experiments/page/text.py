"""Numbers and tables of the page as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def number(value: float, like: float | None = None) -> str:
    """Three decimals, or two digits of what is small; `like` chooses between the two for a value that stands beside it.

    >>> number(0.5), number(0.00123), number(1234.5)
    ('0.500', '0.0012', '1,234')
    """
    size = abs(value if like is None else like)
    if not math.isfinite(value):
        return "-"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2g}" if 0 < size < 0.02 else f"{value:.3f}"


def signed(value: float) -> str:
    """Three digits and the sign.

    >>> signed(0.04221), signed(-0.5)
    ('+0.0422', '-0.5')
    """
    return f"{value:+.3g}"


def times(value: float) -> str:
    """A factor with two digits.

    >>> times(0.0971), times(213.4)
    ('0.097', '210')
    """
    digits = f"{value:.2g}"
    return f"{float(digits):,.0f}" if "e" in digits and value >= 1 else digits


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def anchor(heading: str) -> str:
    """The anchor that the documentation gives a heading.

    >>> anchor("MaxFL: two clients (Fig. 5a)")
    'maxfl-two-clients-fig-5a'
    """
    kept = "".join(c if c.isalnum() or c in "-_ " else "" for c in heading.lower())
    return "-".join(kept.split())
