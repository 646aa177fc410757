"""When two names or values are the same thing spelled differently."""

from __future__ import annotations

import difflib
import html
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

_ALIKE = 0.85
"""Similarity (difflib) from which on two names of columns are probably one."""

_NUMBERS = frozenset(
    {"id", "idx", "index", "key", "uuid", "guid", "mrn", "nr", "no", "num", "number"}
)
_SUBJECTS = frozenset(
    {
        "patient",
        "case",
        "record",
        "subject",
        "participant",
        "person",
        "sample",
        "specimen",
        "encounter",
        "admission",
    }
    | {"accession", "study", "row", "unnamed"}
)
"""Words for whom or what a row is about, and for its number among others."""

_ENDPOINT, _UNIT_OF_TIME = (
    "(overall|os|pfs|dfs|rfs|efs)",
    "(time|days|weeks|months|years)",
)
_EVENTS = re.compile(
    f"({_ENDPOINT}[ .])?(event|status)|(vital|survival) status|death( event)?|died|dead|deceased|relapse|recurrence"
    "|censored|fustat"
)
_TIMES = re.compile(
    f"time|{_ENDPOINT}[ .]({_UNIT_OF_TIME}|survival)|(survival|follow ?up|fu) ?{_UNIT_OF_TIME}?|duration"
    f"|{_UNIT_OF_TIME} to (event|death)"
)
"""Folded names of a label that says whether something happened, and of the column beside it that says when."""


def spell(value: float) -> str:
    """A number as a category's name.

    >>> spell(3.0), spell(.5)
    ('3', '0.5')
    """
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


def count(amount: int, noun: str) -> str:
    """`amount` with the right form of its noun.

    >>> count(1, "client"), count(4, "client")
    ('1 client', '4 clients')
    """
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def rows_left_out(amount: int, column: str) -> str:
    """Return the note on rows that do not say something.

    >>> rows_left_out(1, "ward"), rows_left_out(40, "ward")
    ('1 row without ward was left out', '40 rows without ward were left out')
    """
    return f"{count(amount, 'row')} without {column} {'was' if amount == 1 else 'were'} left out"


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(7.2), duration(95), duration(8000)
    ('7 s', '1 min 35 s', '2 h 13 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def html_table(title: str, lines: Iterable[Sequence[str]]) -> str:
    """A table for a notebook under its title; every text is escaped."""
    rows = ""
    for line in lines:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in line)
        rows += f"<tr>{cells}</tr>"
    return f"<p>{html.escape(title)}</p><table>{rows}</table>"


def legible(text: str) -> str:
    r"""`text` without what nobody sees: outer blanks, marks of zero width, other blanks than " ", two ways to write an accent.

    >>> legible(" left\u00a0arm\u200b")
    'left arm'
    """
    if not text.isascii():
        seen = []
        for c in unicodedata.normalize("NFC", text):
            kind = unicodedata.category(c)
            if kind == "Zs":  # a blank
                seen.append(" ")
            elif kind != "Cf":  # a mark that nobody sees
                seen.append(c)
        text = "".join(seen)
    return text.strip()


@lru_cache(maxsize=1 << 14)  # all clients write about the same names and categories
def fold(text: str) -> str:
    """`text` without what is only a matter of style: capitals, blanks, hyphens between words, dots at the end.

    >>> fold(" Left-  Arm. "), fold("NON_smoker"), fold("A-")
    ('left- arm', 'non smoker', 'a-')
    """
    lower = unicodedata.normalize("NFKC", text).casefold()
    words = re.sub(r"(?<=\w)[-_](?=\w)", " ", lower).split()
    return " ".join(words).rstrip(".") or text


def variants(values: Iterable[str]) -> list[list[str]]:
    """Groups of two and more `values` that `fold` makes one, sorted.

    >>> variants(["no", "Yes", "yes"])
    [['Yes', 'yes']]
    """
    groups: dict[str, list[str]] = {}
    for value in sorted(set(values)):
        groups.setdefault(fold(value), []).append(value)
    return [group for _, group in sorted(groups.items()) if len(group) > 1]


def alike(name_a: str, name_b: str) -> bool:
    """Return True if two names of columns are probably one: the same letters and digits but for a unit in brackets, or a slip.

    >>> alike("MEAN_RADIUS", "mean radius (mm)"), alike("colour", "coulour"), alike("x1", "x2")
    (True, True, False)
    """
    plain, compared = (
        re.sub(r"(?<=.)[(\[].*[)\]]|[\W_]", "", name.casefold())
        for name in (name_a, name_b)
    )
    if plain == compared:
        return True
    if re.findall(r"\d+", name_a) != re.findall(r"\d+", name_b):
        return False
    match = difflib.SequenceMatcher(None, plain, compared)
    # The quick ones are upper bounds of the third.
    bounds = (match.real_quick_ratio, match.quick_ratio, match.ratio)
    return all(bound() >= _ALIKE for bound in bounds)


@lru_cache(maxsize=1 << 14)
def names_rows(column: str) -> bool:
    """Return True if a column of this name says which row, patient or case it is.

    >>> [names_rows(name) for name in ("PatientID", "case", "record number", "id_patient", "id_ratio", "caseload")]
    [True, True, True, True, False, False]
    """
    words = [
        word.lower()
        for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+", column)
    ]
    if not words:
        return False
    joined = words[-1].endswith("id") and words[-1][:-2] in _SUBJECTS
    subjects = words[1:] if words[0] in _NUMBERS else words
    return words[-1] in _NUMBERS or joined or _SUBJECTS.issuperset(subjects)


def names_event(label: str) -> bool:
    """Return True if a label of this name says whether something happened (survival analysis).

    >>> names_event("OS_event"), names_event("events")
    (True, False)
    """
    return _EVENTS.fullmatch(fold(label)) is not None


def names_time_to_event(column: str) -> bool:
    """Return True if a column of this name says when it happened.

    >>> names_time_to_event("os_months"), names_time_to_event("months")
    (True, False)
    """
    return _TIMES.fullmatch(fold(column)) is not None


def quote_toml(name: str) -> str:
    """A name as a key or value of TOML."""
    return json.dumps(name, ensure_ascii=False)


def toml_key(name: str) -> str:
    """A name as a key of TOML, in quotes only where it needs them.

    >>> toml_key("chol"), toml_key("heart rate")
    ('chol', '"heart rate"')
    """
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    return quote_toml(name)


def listing(names: Sequence[str]) -> str:
    """The first three of `names`."""
    shown = ", ".join(names[:3])
    return f"{shown} and others" if len(names) > 3 else shown
