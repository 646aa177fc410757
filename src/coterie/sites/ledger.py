"""The account of a site: about which models it was asked under each plan, and how many numbers it has released under all.

The log says both. A sealed index beside the log holds what its lines up to some place say, so that a restart reads the lines after that
place and no others: a log of months has millions of lines.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.files import write_atomically
from coterie.contract.wire import Answer, Packed
from coterie.sites.allowed import RefusedError
from coterie.sites.log import entry_of
from coterie.sites.settings import short

_NEAR = 4096
"""Bytes of the log before a place by which the index recognises it."""


class Place(NamedTuple):
    """The place where models are counted: plan (its hash), method and seed ("" where none runs), task and round."""

    plan: str
    pair: str
    task: str
    round: int


class Ledger:
    """The account that a log holds.

    Args:
        log: the file.
        sealed: whether to begin with the index beside it; without, every line is read.

    Attributes:
        numbers: numbers released so far, those of earlier files of the log included.
    """

    def __init__(self, log: Path, *, sealed: bool = True) -> None:
        self._log, self._index = log, log.with_name(f"{log.name}.index")
        self.numbers = self._before = self._end = 0
        self._asked: defaultdict[Place, set[str]] = defaultdict(set)
        self._unanswered: set[str] = set()
        if sealed:
            self._load()
        self._read()

    def spend(
        self, place: Place, requests: Iterable[str], budget: int | None
    ) -> list[str]:
        """Count a request about models; the same models again are free.

        Args:
            place: where they are counted.
            requests: the hash of the request about each model.
            budget: how many models there may be in all; None: any number.

        Returns:
            Those that were not answered before. Raises `RefusedError` if the budget does not suffice.
        """
        spent, models = self._asked[place], {*requests}
        new_models = models - spent
        if budget is not None and len(spent) + len(new_models) > budget:
            raise RefusedError(
                f"the budget of {budget} models that {short(place.task)} may be asked about in a round of the approved plan is spent; "
                "approve it again"
            )
        spent |= new_models
        self._unanswered |= new_models
        return sorted(models & self._unanswered)

    def settle(self, requests: Iterable[str]) -> None:
        """Note that these requests were answered."""
        self._unanswered.difference_update(requests)

    def _read(self) -> None:
        if not self._log.exists():
            return
        with open(self._log, "rb") as lines:
            lines.seek(self._end)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                self._end += len(line)
                self._take(entry_of(line))

    def seal(self) -> None:
        """Write the index; only of an account that has spent nothing since it was read."""
        rows = [
            [*place, sorted(models)]
            for place, models in sorted(self._asked.items())
            if models
        ]
        content = {
            "end": self._end,
            "numbers": self.numbers,
            "before": self._before,
            "near": self._near(),
        }
        text = json.dumps(
            {**content, "asked": rows, "unanswered": sorted(self._unanswered)}
        )
        sealed = f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}"
        write_atomically(self._index, lambda p: p.write_text(sealed, encoding="utf-8"))

    def _take(self, entry: Mapping[str, Any]) -> None:
        if (
            entry.get("what") == "approved" and "caller" not in entry
        ):  # whoever calls may call a message so
            for place in [
                place for place in self._asked if place.plan == entry.get("plan")
            ]:
                del self._asked[place]
        elif "models" in entry:
            pair, models = entry.get("pair", ""), entry["models"]
            self._asked[
                Place(
                    entry["plan"],
                    pair,
                    entry["what"],
                    (entry["round"] or 0) if pair else 0,
                )
            ].update(models)
            if "numbers" in entry:
                self.numbers += entry["numbers"]
                self._unanswered.difference_update(models)
            else:
                self._unanswered.update(models)

    def _load(self) -> None:
        """Begin where the index ends; an index of an earlier file of the log keeps the numbers alone, one that is damaged nothing."""
        try:
            seal, _, text = self._index.read_text(encoding="utf-8").partition("\n")
            if hashlib.sha256(text.encode()).hexdigest() != seal:
                return
            content = json.loads(text)
        except (OSError, ValueError):
            return
        self._end = content["end"]
        if self._near() == content["near"]:
            self.numbers, self._before = content["numbers"], content["before"]
            self._unanswered.update(content["unanswered"])
            self._asked.update(
                {Place(*place): set(models) for *place, models in content["asked"]}
            )
        else:
            self._end, self.numbers = 0, content["numbers"]
            self._before = self.numbers

    def _near(self) -> str:
        """The hash of the log's bytes before the place up to which it was read."""
        if not self._log.exists() or self._log.stat().st_size < self._end:
            return "" if self._end else hashlib.sha256().hexdigest()
        with open(self._log, "rb") as file:
            begin = max(0, self._end - _NEAR)
            file.seek(begin)
            return hashlib.sha256(file.read(self._end - begin)).hexdigest()

    def agrees_with(self, other: Ledger) -> bool:
        """Return True if both accounts say the same of the present file of the log."""
        own_counts, other_counts = (
            {p: m for p, m in account._asked.items() if m} for account in (self, other)
        )
        return (
            own_counts == other_counts
            and self.numbers - self._before == other.numbers - other._before
        )


def check_index(log: Path) -> None:
    """Raise `InputError` if the index of a log says something else than its lines."""
    if not Ledger(log).agrees_with(Ledger(log, sealed=False)):
        raise InputError(
            f"{log}.index does not fit the log; remove it, and the site counts its lines again"
        )


def count_numbers(reply: Any) -> int:
    """Count the numbers in a reply, those of its texts included; any other text counts as one.

    >>> count_numbers({"facts": '{"sizes": [1, 2, 3]}', "rows": 7, "notes": ()})
    4
    """
    if isinstance(reply, Answer):
        return sum(count_numbers(block.values) for block in reply.blocks)
    if isinstance(reply, Tensor):
        return reply.numel()
    if isinstance(reply, Packed):
        return count_numbers(reply.parts)
    if isinstance(reply, Mapping):
        return sum(map(count_numbers, reply.values()))
    if isinstance(reply, tuple | list):
        return sum(map(count_numbers, reply))
    if isinstance(reply, str) and reply[:1] in "{[":
        try:
            return count_numbers(json.loads(reply))
        except ValueError:
            return 1
    return 1
