"""Names of clients, made once per run."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from coterie.base.errors import InputError, nearest

__all__ = ["Names", "match_clients"]


class Names(tuple[str, ...]):
    """Names of clients in their order: a tuple that finds a name without a walk through all of them.

    A check `name in names` of 1,000 clients took most of a small round when it compared name by name.

    >>> names = Names(["a", "b"])
    >>> names == ("a", "b"), "b" in names, "c" in names, names.place("b")
    (True, True, False, 1)
    """

    _places: dict[str, int]

    def __new__(cls, names: Iterable[str]) -> Names:
        """Keep names that differ from each other, in this order."""
        self = super().__new__(cls, names)
        self._places = {name: place for place, name in enumerate(self)}
        return self

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def place(self, name: str) -> int:
        """Position of a name. Raises `KeyError` for one that is not there."""
        return self._places[name]


def match_clients(
    owner: object, field: str, everyone: tuple[str, ...], *, everybody: str = ""
) -> tuple[str, ...]:
    """The clients that a field (`schema.NAMES`, `schema.TARGETS`) names, or that fit a pattern such as "near-*", sorted.

    All of them for the word `everybody`.

    Raises `InputError` for one that does not exist.

    >>> from types import SimpleNamespace
    >>> match_clients(SimpleNamespace(targets=("b", "a")), "targets", ("a", "b", "c"))
    ('a', 'b')
    >>> match_clients(SimpleNamespace(internal="king-*"), "internal", ("fool-x", "king-a", "king-b"))
    ('king-a', 'king-b')
    """
    setting = getattr(owner, field)
    chosen = (setting,) if isinstance(setting, str) else tuple(setting)
    if chosen == (everybody,):
        return everyone
    matches: set[str] = set()
    for name in sorted(set(chosen)):
        # A name that has a star in it is not a pattern.
        fit = [name]
        if name not in everyone:
            fit = fnmatch.filter(everyone, name)
        if not fit:
            raise InputError(
                f"{type(owner).__name__}.{field} names {name!r}, which is not a client; {nearest(name, everyone)}"
            )
        matches.update(fit)
    return tuple(sorted(matches))
