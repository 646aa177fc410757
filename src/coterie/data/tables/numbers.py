"""Numbers as people write them in cells, with signs, commas and units: what is read, and what is refused with a cure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

__all__ = ["UNKNOWN", "Comma", "Written", "complaint", "number", "problem", "thousands_dots", "with_signs", "written"]

Comma = Literal["decimal", "unseen", "thousands", ""]
"""What a comma in a number means in a file; "unseen": it would be decimal, but no number has one. The empty text: nobody can tell."""

UNKNOWN = frozenset({"-", "--", ".", "unknown", "missing", "n.a."})
"""Cells that mean "missing" in a column of numbers, in lower case; among texts they are a value like others."""

_ENOUGH_NUMBERS = 10  # distinct numbers from which on a few texts among them are slips and no categories
_FEW_UNITS = 3
_CURRENCIES = {c: c for c in ("EUR", "USD", "GBP", "CHF", "JPY")}
_CURRENCIES |= {"US$": "USD", "€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY"}
_CURRENCY = "|".join(map(re.escape, _CURRENCIES))
_MONEY = re.compile(rf"(?P<minus>[+-]?)\s*(?P<before>{_CURRENCY})?\s*(?P<number>.*?)\s*(?P<after>{_CURRENCY})?", re.S)
_BOUND = re.compile(r"(<|>|≤|≥|<=|>=)\s*[+-]?\d[\d.,]*")
_WORD = r"[^\W\d_][\w%/²³^.]"
_UNIT = re.compile(
    rf"[+-]?\d[\d.,]*(?P<unit>\s+{_WORD}*|(?!st$|nd$|rd$|th$){_WORD}+|\s*[°‰]\w*|\s*/\s*{_WORD}*)(\s[^\W\d_]+)?"
)
_COMMAS = re.compile(r"[+-]?\d[\d.]*,[\d.,]*\d|[+-]?[1-9]\d{0,2}([ '’.]\d{3})+([.,]\d+)?")
_DOTS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_MINUS = re.compile(r"\(\d[\d.,]*\)|\d[\d.,]*-")
_MARK = re.compile(r"[+-]?\d[\d.,]*\s*[*†#!^]+|(~|≈|ca\.?|approx\.?)\s*\d[\d.,]*")
_PAIR = re.compile(r"\d{2,3}\s*/\s*\d{2,3}|\d[\d.,]*\s*±\s*\d[\d.,]*")

_KINDS = {"bound": _BOUND, "comma": _COMMAS, "minus": _MINUS, "mark": _MARK, "pair": _PAIR, "unit": _UNIT}

_COMPLAINTS: Mapping[str, str] = {
    "infinite": "is {cell} in data row {row}; give a finite number or leave the cell empty",
    "bound": "has {cell!r} in data row {row} among numbers; write a number (such as half the limit), list it under missing{choice}",
    "unit": "has {cell!r} in data row {row}; write the number alone, without its unit{choice}",
    "mark": "has {cell!r} in data row {row}; write the number alone, without a mark{choice}",
    "minus": "has {cell!r} in data row {row}; write a negative number with a minus in front{choice}",
    "pair": "has {cell!r} in data row {row}; write two numbers in two columns{choice}",
    "comma": "has {cell!r} in data row {row}; write decimals with a point and thousands without a sign{choice}",
    "sign": "has {cell!r} in data row {row}, while other cells have another sign or none; write all the same way{choice}",
    "text": "has {cell!r} in data row {row} among numbers; correct that cell, list it under missing{choice}",
}


class Written(NamedTuple):
    """A number and the signs that stood with it: "%", "," for thousands, or a currency."""

    value: float
    signs: tuple[str, ...] = ()


def with_signs(signs: Sequence[str]) -> str:
    """How numbers are written, in words.

    >>> with_signs(["%", ","]), with_signs([])
    ('with percent signs and thousands commas', 'without signs')
    """
    words = {"%": "percent signs", ",": "thousands commas"}
    return f"with {' and '.join(words.get(sign, sign) for sign in signs)}" if signs else "without signs"


def complaint(kind: str, row: int, cell: str, choice: str = ", or name the column in categorical or drop") -> str:
    """What is wrong with a column of numbers and how to cure it, to be put behind its name. `choice`: what else may be done.

    >>> complaint("infinite", 3, "inf")
    'is inf in data row 3; give a finite number or leave the cell empty'
    """
    return _COMPLAINTS[kind].format(cell=cell[:40], row=row, choice=choice)


def number(cell: str | float, comma: Comma = "") -> float | None:
    """The number that `cell` writes without any sign, or None. Python's `1_000` is not a number: it is somebody's code."""
    text = str(cell)
    if comma == "decimal" and re.fullmatch(r"[+-]?\d+,\d+", text):
        text = text.replace(",", ".")
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def written(text: str, comma: Comma) -> Written | None:
    """The number that `text` writes, signs allowed, or None.

    A comma stands for thousands only in a file whose cells are separated by commas, and only before exactly three digits.

    >>> written("1,234.5", "thousands"), written("12.5 %", ""), written("EUR -3", "")
    (Written(value=1234.5, signs=(',',)), Written(value=12.5, signs=('%',)), Written(value=-3.0, signs=('EUR',)))
    """
    text = text.replace("−", "-")
    if text.endswith("%"):
        return _signed(text[:-1].rstrip(), comma, "%")
    match = _MONEY.fullmatch(text)
    sign = (match["before"] or match["after"]) if match else None
    if match is None or sign is None:
        return _signed(text, comma)
    one_sign = not (match["before"] and match["after"])
    return _signed(match["minus"] + match["number"], comma, _CURRENCIES[sign]) if one_sign else None


def _signed(text: str, comma: Comma, *signs: str) -> Written | None:
    if comma == "thousands" and re.fullmatch(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", text):
        return Written(float(text.replace(",", "")), (",", *signs))
    value = number(text, comma)
    return None if value is None else Written(value, signs)


def problem(texts: Sequence[str | None], read: Mapping[str, Written | None]) -> tuple[str, int, str] | None:
    """Why a column of texts is probably one of numbers that cannot be read: (kind, data row, cell); None if it is none.

    `read`: what `written` says of each distinct text.
    """
    numbers = {text for text, value in read.items() if value is not None}
    odd = read.keys() - numbers
    kinds = {text: _kind(text) for text in odd}
    units = {m["unit"].strip() for text in odd if (m := _UNIT.fullmatch(text))}
    if not odd:
        # All are numbers, but some with a sign and some with another.
        usual = _usual(texts, read)
        return _first("sign", texts, {t for t, value in read.items() if _without_commas(value) != usual})
    bounds_alone = not numbers and set(kinds.values()) == {"bound"}  # such as the two categories <5 and >=5
    if "text" not in kinds.values() and not bounds_alone and len(units) <= _FEW_UNITS:
        first = _first("text", texts, odd)
        return None if first is None else (kinds[first[2]], *first[1:])
    slips = sum(text in odd for text in texts)
    few = 4 * slips <= sum(text is not None for text in texts) or 4 * len(odd) <= len(read)
    if len(numbers) >= _ENOUGH_NUMBERS and few:
        return _first("text", texts, odd)
    return None


def _kind(text: str) -> str:
    alone = _alone(text)
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(alone)), "text")


def _alone(text: str) -> str:
    """`text` without a percent sign or a currency."""
    match = _MONEY.fullmatch(text.removesuffix("%"))
    return match["minus"] + match["number"] if match else text


def thousands_dots(texts: Collection[str], comma: Comma) -> bool:
    """Whether dots in the numbers `texts` stand for thousands, as where a comma is the decimal sign: all before three digits.

    >>> [thousands_dots(cells, "unseen") for cells in ({"950", "1.500"}, {"2.125", "1.500"})]
    [True, False]
    >>> thousands_dots({"250.000", "1.500"}, "decimal")
    True
    """
    dotted = [_alone(text) for text in texts if "." in text]
    may_be = bool(dotted) and (comma == "decimal" or (comma == "unseen" and len(dotted) < len(texts)))
    return may_be and all(map(_DOTS.fullmatch, dotted))


def _usual(texts: Sequence[str | None], read: Mapping[str, Written | None]) -> tuple[str, ...]:
    """The signs of most cells."""
    seen = [_without_commas(read[text]) for text in texts if text is not None and text in read]
    return max(sorted(set(seen)), key=seen.count)


def _without_commas(value: Written | None) -> tuple[str, ...]:
    return () if value is None else tuple(sign for sign in value.signs if sign != ",")


def _first(kind: str, texts: Sequence[str | None], wanted: Collection[Any]) -> tuple[str, int, str] | None:
    return next(((kind, row, text) for row, text in enumerate(texts, 1) if text is not None and text in wanted), None)
