"""How numbers and names are written for people, the same in the terminal and in the HTML report."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.base.spelling import count

MISSING = "-"
_INTERVAL = re.compile(r"\(\S+ to \S+\)")
_WORDS = re.compile(r"[a-z]+(?:[-_ ][a-z]+)*")


def number(value: float | None, size: float | None = None) -> str:
    """Three decimals without the leading zero; `-` for what is undefined.

    `size` is that of the numbers beside it, for those in a unit: if they are small, three digits of it are kept instead; if they are
    large, four.

    >>> number(0.00012, 0.00345), number(-0.02, 0.04), number(546.7, 11234), number(1244.3)
    ('.00012', '-.0200', '550', '1,244')
    >>> [number(v) for v in (0.9271, 1.2344, 0.9999, -0.0312, 12.345, 98765.4, None, float("nan"))]
    ['.927', '1.234', '1.000', '-.031', '12.35', '98,800', '-', '-']
    """
    if value is None or not math.isfinite(value):
        return MISSING
    size_of_value = abs(value)
    if size is not None and size >= 1000:
        unit = 10 ** (math.floor(math.log10(size)) - 3)
        return f"{round(value / unit) * unit:,}"
    if size_of_value >= 1e12:
        return f"{value:.2e}"
    if size_of_value >= 9999.5:
        return f"{float(f'{value:.3g}'):,.0f}"
    # Bounds lie where rounding would add a digit: 9.9995 would print as 10.000.
    digits = _digits(size_of_value, {9.9995: 3, 99.995: 2, 999.95: 1})
    if size is not None and 0 < size < 0.1 and size_of_value < 1:
        digits = 2 - math.floor(math.log10(size))
    text = f"{value:,.{digits}f}"
    if is_zero(text):
        return ".000"
    return without_zero(text)


def _digits(size: float, by_bound: Mapping[float, int]) -> int:
    """The decimals of the first bound that is above `size`; 0 beyond the last."""
    for bound, digits in by_bound.items():
        if size < bound:
            return digits
    return 0


def is_zero(text: str) -> bool:
    """Return True if a number prints as 0: `-.000` needs no sign."""
    return not any(digit in text for digit in "123456789")


def without_zero(text: str) -> str:
    """`-.02` for `-0.02`."""
    if text.lstrip("-").startswith("0."):
        return text.replace("0.", ".", 1)
    return text


def with_sign(value: float | None, size: float | None = None) -> str:
    """A difference with its sign; `size` as of `number`.

    >>> with_sign(0.0312), with_sign(-0.149), with_sign(-0.00004)
    ('+.031', '−.149', '.000')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    text = number(abs(value), size)
    if is_zero(text):
        return text
    sign = "+" if value > 0 else "−"
    return sign + text


def short_number(value: float) -> str:
    """An effect with two decimals, three below .01; large ones with fewer.

    >>> [short_number(v) for v in (0.034, 0.118, 0.0042, 0.0, 1.234, 27.61)]
    ['.03', '.12', '.004', '.00', '1.2', '28']
    """
    if abs(value) < 0.0005:
        digits = 2
    else:
        digits = _digits(abs(value), {0.0095: 3, 0.9995: 2, 9.95: 1})
    return without_zero(f"{value:.{digits}f}")


def describe_gain(low: float, high: float, bound: float) -> str:
    """Say what a 95 % interval of a gain shows; `bound` is the smallest effect of interest.

    "A gain" and "a loss" need an interval without 0, "not shown" one with 0 inside, and "too small to matter" one within the bound.

    >>> describe_gain(0.002, 0.03, 0.01), describe_gain(0.002, 0.008, 0.01)
    ('a gain', 'a gain, too small to matter')
    >>> describe_gain(-0.004, 0.008, 0.01), describe_gain(-0.004, 0.03, 0.01)
    ('no effect is shown, and any is too small to matter', 'a gain is not shown')
    """
    is_small = -bound < low and high < bound
    if low > 0:
        shown = "a gain"
    elif high < 0:
        shown = "a loss"
    elif is_small:
        return "no effect is shown, and any is too small to matter"
    else:
        return "a gain is not shown"
    if is_small:
        return f"{shown}, too small to matter"
    return shown


def chance(probability: float | None) -> str:
    """A probability as people say it: `9 in 10`, and from .95 on in percent.

    >>> [chance(p) for p in (0.5, 0.83, 0.94, 0.96, 0.9996)]
    ['5 in 10', '8 in 10', '9 in 10', '96 %', 'over 99 %']
    """
    if probability is None:
        return MISSING
    if probability < 0.95:
        return f"{min(9, math.floor(10 * probability + 1e-9))} in 10"
    if probability > 0.995:  # would be rounded to certainty
        return "over 99 %"
    return f"{100 * probability:.0f} %"


def percent(share: float) -> str:
    """A share in percent, with a decimal only where it tells something.

    >>> [percent(s) for s in (0.06, 0.935, 0.5, 0.004, 0.0, 0.9996)]
    ['6 %', '93.5 %', '50 %', '.4 %', '0 %', '99.96 %']
    """
    value = share * 100
    is_whole = abs(value - round(value)) < 0.05
    # Nearly none and nearly all keep a decimal: they are neither 0 nor 100 %.
    is_extreme = value not in (0, 100) and not 0.5 <= value <= 99.5
    digits = 0 if is_whole and not is_extreme else 1
    text = f"{value:.{digits}f}"
    if value not in (0, 100) and float(text) in (0, 100):
        text = f"{value:.2f}"
    return without_zero(text) + " %"


def whole_percent(share: float) -> str:
    """A weight in percent.

    >>> whole_percent(0.376), whole_percent(0.004)
    ('38 %', 'less than 1 %')
    """
    if share < 0.01:
        return "less than 1 %"
    return f"{share * 100:.0f} %"


def listing(words: Sequence[str]) -> str:
    """Words as in a sentence.

    >>> listing(["a"]), listing(["a", "b"]), listing(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def first_few(words: Sequence[str], most: int) -> list[str]:
    """At most `most` words, then how many more there are.

    >>> first_few(["a", "b", "c", "d"], 2), first_few(["a", "b"], 2)
    (['a', 'b', '2 others'], ['a', 'b'])
    """
    hidden = len(words) - most
    if hidden <= 0:
        return list(words)
    return [*words[:most], count(hidden, "other")]


def wrap(text: str, width: int, indent: str = "", lead: str = "") -> list[str]:
    """Lines of at most `width` columns; what `unbroken` keeps together is never broken."""
    lines = textwrap.wrap(
        unbroken(text),
        width,
        initial_indent=lead,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def unbroken(text: str) -> str:
    """`29 %`, `.1 ± .02` and `(−.02 to .04)` with spaces at which no line is broken.

    >>> unbroken("AUC +.1 ± .02, 29 % (−.02 to .04)").count("\u00a0")
    5
    """
    joined = text.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")
    return _INTERVAL.sub(lambda interval: interval[0].replace(" ", "\u00a0"), joined)


def printable(name: str) -> str:
    """`name` without characters that could steer a terminal."""
    return "".join(c if c.isprintable() else "�" for c in name)


def display_names(names: Iterable[str]) -> dict[str, str]:
    """Names as people write them: plain lower-case names get capitals, all others stay as their owner wrote them.

    >>> display_names(["long-beach", "Ward_3", "icu7"])
    {'long-beach': 'Long Beach', 'Ward_3': 'Ward_3', 'icu7': 'icu7'}
    """
    shown = {}
    for name in names:
        shown[name] = printable(name)
        if _WORDS.fullmatch(name) and len(name) > 2:
            shown[name] = _capitals(name)
    counts = Counter(shown.values())
    for name, nice in shown.items():
        if counts[nice] > 1:
            # Two names look the same with capitals: both stay as written.
            shown[name] = printable(name)
    return shown


def _capitals(name: str) -> str:
    return " ".join(word.capitalize() for word in re.split("[-_ ]", name))


def label_in_words(label: dict[str, Any]) -> str:
    """Return what is predicted, and by what rows are weighed.

    >>> label_in_words({"column": "died", "classes": [0, 1], "weights": "ipw"})
    'died = 1, rows weighed by ipw'
    """
    words = _label_alone(label)
    if label.get("weights"):
        words += f", rows weighed by {label['weights']}"
    return words


def _label_alone(label: dict[str, Any]) -> str:
    """Return the words for the label of a recipe.

    >>> label_in_words({"column": "num", "above": 0, "meaning": "narrowed artery", "classes": ["healthy", "ill"]})
    'num > 0 (narrowed artery), 1 = ill'
    >>> label_in_words({"column": "num", "above": 0, "classes": ["num <= 0", "num > 0"]})
    'num > 0'
    >>> label_in_words({"column": "died", "classes": [0, 1]})
    'died = 1'
    """
    column = str(label["column"])
    if label.get("above") is not None:
        column += f" > {label['above']:g}"
    what = column
    if label.get("meaning"):
        what += f" ({label['meaning']})"
    if label.get("task") == "time to event":
        horizon = f"{label['horizon']:.3g}"
        if label.get("unit"):
            horizon += f" {label['unit']}"
        return (
            f"the time ({label['time']}) until {what}; survival is judged at {horizon}"
        )
    if label.get("task") == "counts":
        return f"the count {what} per {label['exposure']}"
    classes = [str(c) for c in label.get("classes") or []]
    if len(classes) == 2:
        positive = classes[1]
        if is_number(positive):  # "1 = 1" says nothing, and "1 = 2" what is not so
            return f"{what} = {positive}"
        if positive == column:  # the class has the name of the cut
            return what
        return f"{what}, 1 = {positive}"
    if classes:
        return f"{what}, {len(classes)} classes: {', '.join(first_few(classes, 5))}"
    if label.get("unit"):
        return f"{what}, in {label['unit']}"
    return f"{what}, a number"


def is_number(text: str) -> bool:
    """Return True if a name is only a number, as `1` of the classes 0 and 1."""
    try:
        float(text)
    except ValueError:
        return False
    return True
