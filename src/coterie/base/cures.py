"""Settings that a sentence offers: each is printed as a user can type it, and kept as an object that can be applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.base.spelling import quote_toml, spell, toml_key

BY_COLUMN = ("missing", "not_missing", "lists")
"""Keys with a setting for each column."""


@dataclass(frozen=True)
class Cure:
    """A key of [data] with the value that answers a question, or cures a refusal.

    Attributes:
        key: such as "drop", "missing" or "task".
        value: one text or truth, a list of texts, or lists of values by column or by class. What an earlier answer lists under the
            same key stays: `merge` adds to it.

    >>> str(Cure("drop", ["age"])), str(Cure("missing", {"heart rate": [-9, "n.d."]})), str(Cure("rename", {"AGE": "age"}))
    ('drop = ["age"]', 'missing."heart rate" = [-9, "n.d."]', 'rename = {"AGE" = "age"}')
    """

    key: str
    value: str | bool | Sequence[str] | Mapping[str, Any]

    def __str__(self) -> str:
        """Return the line of TOML; of several columns with settings of their own, one after another."""
        if self.key in BY_COLUMN and isinstance(self.value, Mapping):
            lines = [
                f"{self.key}.{toml_key(column)} = {_to_toml(setting)}"
                for column, setting in self.value.items()
            ]
            return ", ".join(lines)
        return f"{self.key} = {_to_toml(self.value)}"

    def merge(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table [data] with this answer beside those that it has already.

        >>> Cure("drop", ["b"]).merge({"label": "y", "drop": ["a"]})
        {'label': 'y', 'drop': ['a', 'b']}
        """
        earlier = table.get(self.key)
        merged: Any
        if isinstance(self.value, Mapping) and isinstance(earlier, Mapping):
            # Settings by column or by class: those of other columns stay.
            merged = dict(earlier)
            for name, setting in self.value.items():
                merged[name] = _join(earlier.get(name), setting)
        else:
            merged = _join(earlier, self.value)
        return {**table, self.key: merged}


def either(cures: Sequence[Cure]) -> str:
    """Return settings of which one will do, as a sentence lists them.

    >>> either([Cure("categorical", ["age"]), Cure("drop", ["age"])])
    'categorical = ["age"] or drop = ["age"]'
    """
    *others, last = map(str, cures)
    if not others:
        return last
    return f"{', '.join(others)} or {last}"


def _join(earlier: Any, value: Any) -> Any:
    """An earlier list and a new one as one; anything else that is new takes the place of what was there."""
    if not isinstance(value, list | tuple):
        return value
    if not isinstance(earlier, list | tuple):
        return list(value)
    return [*dict.fromkeys([*earlier, *value])]  # each once


def _to_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        items = [f"{quote_toml(key)} = {_to_toml(v)}" for key, v in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_to_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return quote_toml(value) if isinstance(value, str) else spell(value)


class Advice(str):
    """A sentence with the settings that it offers.

    Attributes:
        cures: in the order of the sentence.

    >>> Advice("x tells the label; then drop it", [Cure("drop", ["x"])]).cures
    (Cure(key='drop', value=['x']),)
    """

    cures: tuple[Cure, ...]

    def __new__(cls, sentence: str, cures: Sequence[Cure] = ()) -> Advice:
        """Make the sentence; a text takes its value when it is made."""
        advice = super().__new__(cls, sentence)
        advice.cures = tuple(cures)
        return advice


SHOWN = 3
"""Columns that a sentence's settings name; all others are in the sentence."""


def drop_or_keep(columns: Sequence[str], about: str) -> Advice:
    """Return a question about columns that are to be dropped if it is answered by yes, and kept if not.

    >>> drop_or_keep(["wt"], "wt: weights of rows?")
    'wt: weights of rows? Then drop = ["wt"], else keep = ["wt"]'
    """
    named = list(columns[:SHOWN])
    drop, keep = Cure("drop", named), Cure("keep", named)
    return Advice(f"{about} Then {drop}, else {keep}", (drop, keep))
