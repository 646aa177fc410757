"""The account of a site: what it was asked under each plan, and what it has told under all, in numbers and in mu.

There is one account for a log, whichever processes, jobs and plans use it: whatever is spent is a line of the log, written under the
log's lock and on the disk before anything is computed, so that a crash leaves it spent. An index beside the log repeats these lines.
With it a restart reads the end of a log of months and nothing else. Each file of the log has a line with all that was told before it,
so that a new file gives no budget back, with or without the index.

What is told of a row behind Gaussian noise is an event of mu = sensitivity / sigma. Such events compose exactly, also where one is
chosen after another: mu of all is the root of the sum of squares (Dong, Roth and Su, "Gaussian Differential Privacy", JRSS B 2022,
Corollary 2). What is told without noise has mu infinity. Of the parts into which a split deals rows, a row lies in one: the largest
counts.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.files import write_atomically
from coterie.contract.wire import Answer, Packed
from coterie.sites.allowed import RefusedError
from coterie.sites.log import Log, cannot_write, entry_of
from coterie.sites.settings import short

_NEAR = 4096
"""Bytes of the log before a place by which the index recognises it."""
_NOTHING = hashlib.sha256().hexdigest()
_ROUNDING = 1e-9
_OPENING = "account"
"""What the line of a file is called that says what was told before it."""
_MASKED, _REVEALED = "masked", "revealed"
"""What the lines of a sum are called: integers leave behind masks, and shares that open the sum."""
_OF_A_SUM = ("peers", "words", "survivors")
INFINITY = "infinity"
"""Infinity in the log, since JSON has no number for it."""


class Place(NamedTuple):
    """The place where requests are counted.

    Attributes:
        plan: its hash.
        pair: method and seed; "" where none runs.
        task: what is asked.
        round: of the run.
        part: part of the rows, where each part has a budget of its own.
    """

    plan: str
    pair: str
    task: str
    round: int
    part: str = ""


class Told(NamedTuple):
    """What an answer tells: how many numbers, and the square of their mu."""

    numbers: int
    mu_squared: float


@dataclass
class _Books:
    """What the lines of a log say.

    Attributes:
        replies: by place, the hash of the last reply to each request; "" if it was not answered.
        spent: by place, requests since the plan was approved.
        numbers: told under all plans.
        mu_squared: of what was told, by plan with pair, and part.
        sums: by request, the sum behind masks in which it was answered: `peers`, the hash of `words`, and `survivors` once shares
            were revealed.
        lines: lines of the account.
    """

    replies: defaultdict[Place, dict[str, str]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    spent: defaultdict[Place, int] = field(default_factory=lambda: defaultdict(int))
    numbers: int = 0
    mu_squared: defaultdict[str, dict[str, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    sums: defaultdict[str, dict[str, Any]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    lines: int = 0

    def take(self, entry: Mapping[str, Any]) -> None:
        """Count an entry of the log, if it is one of the account."""
        if _is_opening(entry):
            told = _Books.read(entry["books"])
            self.replies, self.spent = told.replies, told.spent
            self.numbers, self.mu_squared = told.numbers, told.mu_squared
            self.sums = told.sums
            self.lines = told.lines + 1
            return
        if (
            entry.get("what") == "approved" and "caller" not in entry
        ):  # whoever calls may call a message so
            self.lines += 1
            for place in self.spent:
                if place.plan == entry.get("plan"):
                    self.spent[place] = 0
            return
        if entry.get("what") in (_MASKED, _REVEALED) and "caller" not in entry:
            self.lines += 1
            kept = {key: entry[key] for key in _OF_A_SUM if key in entry}
            self.sums[entry["request"]].update(kept)
            return
        if "models" not in entry and "replies" not in entry:
            return
        self.lines += 1
        place = _place_of(entry)
        known = self.replies[place]
        for request in entry.get("models", ()):
            self.spent[place] += 1
            known.setdefault(request, "")
        known.update(entry.get("replies", {}))
        self.numbers += entry.get("numbers", 0)
        if "mu" in entry:
            by_part = self.mu_squared[f"{place.plan} {place.pair}"]
            by_part[place.part] = by_part.get(place.part, 0.0) + float(entry["mu"]) ** 2

    @property
    def mu(self) -> float:
        """Mu of all that was told about one row."""
        return math.sqrt(self._total(self.mu_squared))

    def mu_with(self, place: Place, mu: float) -> float:
        """Return mu of all that was told about one row, and of one more event."""
        training = f"{place.plan} {place.pair}"
        by_part = dict(self.mu_squared.get(training, {}))
        by_part[place.part] = by_part.get(place.part, 0.0) + mu**2
        return math.sqrt(self._total({**self.mu_squared, training: by_part}))

    def _total(self, mu_squared: Mapping[str, Mapping[str, float]]) -> float:
        total = 0.0
        for by_part in mu_squared.values():
            parts = [squared for part, squared in by_part.items() if part]
            total += by_part.get("", 0.0) + max(parts, default=0.0)
        return total

    def spell(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {
            "replies": [
                [*place, replies] for place, replies in sorted(self.replies.items())
            ],
            "spent": [[*place, count] for place, count in sorted(self.spent.items())],
            "numbers": self.numbers,
            "mu_squared": {
                pair: {part: mu_in_words(s) for part, s in by.items()}
                for pair, by in self.mu_squared.items()
            },
            "sums": {request: dict(kept) for request, kept in self.sums.items()},
            "lines": self.lines,
        }

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> _Books:
        """Undo `spell`."""
        books = cls(numbers=content["numbers"], lines=content["lines"])
        books.replies.update(
            {Place(*place): dict(replies) for *place, replies in content["replies"]}
        )
        books.spent.update({Place(*place): count for *place, count in content["spent"]})
        for pair, by_part in content["mu_squared"].items():
            books.mu_squared[pair] = {
                part: float(squared) for part, squared in by_part.items()
            }
        # An index of an earlier version knows no sums, of which there were none.
        books.sums.update(content.get("sums", {}))
        return books


def _is_opening(entry: Mapping[str, Any]) -> bool:
    """Return True for the line that says what was told before; whoever calls may call a message so."""
    return entry.get("what") == _OPENING and "caller" not in entry


def mu_in_words(mu: float) -> float | str:
    """Return a mu, or the square of one, as the log has it."""
    return INFINITY if math.isinf(mu) else mu


def _place_of(entry: Mapping[str, Any]) -> Place:
    pair = entry.get("pair", "")
    number = (entry.get("round") or 0) if pair else 0
    return Place(entry["plan"], pair, entry["what"], number, entry.get("part", ""))


def _about(place: Place) -> dict[str, Any]:
    """Return a place as fields of an entry, from which `_place_of` reads it."""
    fields = {"what": place.task, **place._asdict()}
    del fields["task"]
    return fields


def _about_sum(place: Place, request: str) -> dict[str, Any]:
    """Return where a sum stands as fields of an entry."""
    return {
        "plan": place.plan,
        "pair": place.pair,
        "round": place.round,
        "task": place.task,
        "request": request,
    }


class Account:
    """The account that a log holds. Objects of several processes may spend at once.

    Args:
        log: the file.
        indexed: whether to begin with the index beside it; without, every line is read.

    Attributes:
        most_mu: of all that is told, under all plans; an answer with which it would be more does not leave.
    """

    def __init__(self, log: Path, *, indexed: bool = True) -> None:
        self.most_mu = math.inf
        self._log, self._index = Log(log), log.with_name(f"{log.name}.index")
        self._books, self._earlier = _Books(), _Books()
        self._end, self._near = 0, _NOTHING
        self._index_fits = self._is_open = self._is_lost = False
        if indexed:
            self._load()
        self._read()
        self._check_what_was_before()

    def _check_what_was_before(self) -> None:
        """Raise `InputError` if something was told that neither the index nor the log says."""
        if self._is_lost and not self._is_open:
            name = self._log.path.name
            raise InputError(
                f"{self._index} is missing or damaged, and {name} does not say what was told before it; put back the index, or "
                f"the file of the log that was moved away. A person who gives this site a new account moves {name}.index and "
                f"{name}.key away, too"
            )

    @property
    def numbers(self) -> int:
        """Numbers told so far, under all plans and in all files of the log."""
        return self._books.numbers

    @property
    def mu(self) -> float:
        """Mu of all that was told so far about one row."""
        return self._books.mu

    def approve(self, plan: str) -> None:
        """Give a plan its budget anew, as a person has decided; what was told before stays counted."""
        with self._locked() as file:
            self._write(file, {"what": "approved", "plan": plan})

    def reserve(self, place: Place, requests: Iterable[str], budget: int) -> None:
        """Spend on requests before they are answered; those that were spent on before are free.

        Args:
            place: where they are counted.
            requests: the hash of each request about a model.
            budget: requests since the plan was approved that there may be in all.

        Raises `RefusedError` if the budget does not suffice, or the log cannot be written.
        """
        with self._locked() as file:
            known = self._books.replies[place]
            self._spend(file, place, sorted({*requests} - {*known}), budget)

    def settle(
        self,
        place: Place,
        replies: Mapping[str, str],
        told: Told,
        budget: int | None = None,
    ) -> None:
        """Count what an answer tells, before it leaves; what says the same as before is free.

        Args:
            place: where its requests were reserved.
            replies: the hash of the reply to each request. Another one than before is told anew: it has noise of its own.
            told: what the answer tells about all of them.
            budget: as in `reserve`; None: requests are not limited, and so not reserved.

        Raises `RefusedError` if another reply than before exceeds the budget, or `most_mu`: it must not leave.
        """
        with self._locked() as file:
            known = self._books.replies[place]
            new = {
                request: reply
                for request, reply in replies.items()
                if known.get(request) != reply
            }
            if not new:
                return
            if budget is not None:
                self._spend(
                    file,
                    place,
                    sorted(request for request in new if known.get(request) != ""),
                    budget,
                )
            share = len(new) / len(replies)
            mu = math.sqrt(told.mu_squared * share)
            self._check_mu(place, mu)
            numbers = round(told.numbers * share)
            about = {**_about(place), "outcome": "told", "replies": new}
            # The worker's line about the answer, which is synced before that leaves, takes this one along to the disk.
            self._write(
                file,
                {**about, "numbers": numbers, "mu": mu_in_words(mu)},
                durable=False,
            )

    def note_masked(
        self, place: Place, request: str, peers: Collection[str], words: str
    ) -> None:
        """Note, on the disk, that the answer to a request leaves behind masks; what was noted before stays so.

        Args:
            place: where the request was reserved.
            request: its hash.
            peers: who takes part in the sum.
            words: the hash of the integers.

        Raises:
            RefusedError: They left among other peers, or were others: two sums that differ by one site tell that one's vector.
        """
        with self._locked() as file:
            told = {"peers": sorted(peers), "words": words}
            known = self._books.sums.get(request, {})
            self._check_peers(known, peers)
            if known and known["words"] != words:
                raise RefusedError(
                    "its site would answer this ask otherwise than before, since its rows or its machine have changed, and masks no "
                    "second answer; begin with another seed"
                )
            self._write(file, {"what": _MASKED, **_about_sum(place, request), **told})

    def survivors_of(self, request: str, peers: Collection[str]) -> list[str]:
        """Return over whom the sum of a request was opened before; empty if it was not.

        Raises:
            RefusedError: It was answered behind masks among other peers.
        """
        with self._locked():
            known = self._books.sums.get(request, {})
            self._check_peers(known, peers)
            return list(known.get("survivors", ()))

    def _check_peers(self, known: Mapping[str, Any], peers: Collection[str]) -> None:
        if known and known["peers"] != sorted(peers):
            raise RefusedError(
                f"this ask was masked before among {', '.join(known['peers'])}, and its site masks it among the same alone; name "
                "these, or begin with another seed"
            )

    def note_revealed(
        self, place: Place, request: str, survivors: Collection[str]
    ) -> None:
        """Note, on the disk, that shares leave that open the sum of a request over these survivors.

        Raises:
            RefusedError: Shares were revealed before for others.
        """
        with self._locked() as file:
            known = self._books.sums.get(request, {})
            if known.get("survivors", sorted(survivors)) != sorted(survivors):
                raise RefusedError(
                    f"the sum of this ask was opened before over {', '.join(known['survivors'])}, and its site opens it over the same "
                    "alone; begin with another seed"
                )
            told = {"survivors": sorted(survivors)}
            self._write(file, {"what": _REVEALED, **_about_sum(place, request), **told})

    def _check_mu(self, place: Place, mu: float) -> None:
        """Raise `RefusedError` if one more event of this mu is more than the site gives."""
        total = self._books.mu_with(place, mu)
        # A plan whose noise was made for just this many events must not lose the last of them to rounding.
        if total > self.most_mu * (1 + _ROUNDING):
            raise RefusedError(
                f"its site gives mu {self.most_mu:.4g} for the life of its log and has told {self._books.mu:.4g}, so this answer, with "
                f"which that would be {total:.4g}, stays there; a person there may raise [site] epsilon"
            )

    def _spend(
        self, file: FileIO, place: Place, requests: Collection[str], budget: int
    ) -> None:
        if not requests:
            return
        if self._books.spent[place] + len(requests) > budget:
            raise RefusedError(
                f"the budget of {budget} models that {short(place.task)} may be asked about in a round of the approved plan is spent; "
                "approve it again"
            )
        self._write(file, {**_about(place), "outcome": "reserved", "models": requests})

    def _write(
        self, file: FileIO, entry: Mapping[str, Any], durable: bool = True
    ) -> None:
        self._log.append(file, urgent=True, durable=durable, **entry)
        self._read()
        # Neither synced nor needed: where a power cut or a full disk takes this line, the log has it.
        step = {
            "line": self._books.lines,
            "end": self._end,
            "near": self._near,
            "entry": entry,
        }
        with suppress(OSError), open(self._index, "ab", buffering=0) as index:
            index.write(b"\n" + _sealed(step))

    def seal(self) -> None:
        """Write the index anew, with the sums of its lines."""
        with self._locked():
            self._write_index()

    @contextmanager
    def _locked(self) -> Iterator[FileIO]:
        """The log, while no other process spends, after what others have added was read. Raises `RefusedError` where that fails."""
        try:
            with self._log.locked() as file:
                self._follow(file)
                yield file
        except OSError as error:
            raise RefusedError(cannot_write(error)) from error

    def _write_index(self) -> None:
        content = {
            "end": self._end,
            "near": self._near,
            "open": self._is_open,
            **self._books.spell(),
            "earlier": self._earlier.spell(),
        }
        write_atomically(self._index, lambda p: p.write_bytes(_sealed(content)))
        self._index_fits = True

    def _follow(self, file: FileIO) -> None:
        """Read what other processes have added; only under the lock."""
        # Where nothing was read yet, every file looks as it did, and an earlier one may have been moved away.
        is_as_it_was = (
            self._index_fits and self._end and self._near_of(self._end) == self._near
        )
        if not is_as_it_was:
            self._load()
        self._read()
        try:
            self._check_what_was_before()
        except InputError as error:  # whose sentence names files of the site
            cure = "a person there reads why with: coterie site log KIT --check"
            raise RefusedError(f"its account is not whole; {cure}") from error
        if not self._is_open:
            self._write(file, {"what": _OPENING, "books": self._books.spell()})
        if not self._index_fits:
            self._write_index()

    def _read(self) -> None:
        """Count the lines after the place that was read last."""
        if not self._log.path.exists():
            return
        with open(self._log.path, "rb") as lines:
            lines.seek(self._end)
            for line in lines:
                if not line.endswith(b"\n"):  # it is being written, or torn
                    break
                self._end += len(line)
                self._take(entry_of(line))
        self._near = self._near_of(self._end)

    def _take(self, entry: Mapping[str, Any]) -> None:
        self._is_open = self._is_open or _is_opening(entry)
        self._books.take(entry)

    def _load(self) -> None:
        """Begin where the index ends; if the file of the log is another one than that of which the index speaks, at its beginning."""
        self._index_fits = False
        try:
            first, *steps = self._index.read_bytes().split(b"\n")
        except OSError:
            first, steps = b"", []
        content = _opened(first)
        # The key is made after the first line of an account: without one, nothing was told.
        key = self._log.path.with_name(f"{self._log.path.name}.key")
        self._is_lost = content is None and (self._index.exists() or key.exists())
        if content is not None:
            self._is_open = content.get("open", False)
            self._books, self._earlier = (
                _Books.read(content),
                _Books.read(content["earlier"]),
            )
            self._end, self._near = content["end"], content["near"]
            self._take_steps(steps)
            self._index_fits = self._near_of(self._end) == self._near
        if not self._index_fits:
            self._earlier = copy.deepcopy(self._books)
            self._end, self._near, self._is_open = 0, _NOTHING, False

    def _take_steps(self, steps: Iterable[bytes]) -> None:
        """Count the lines that the index repeats, as far as none is missing; the log has the others."""
        for step in map(_opened, filter(None, steps)):
            if step is None or step["line"] != self._books.lines + 1:
                return
            self._take(step["entry"])
            self._end, self._near = step["end"], step["near"]

    def _near_of(self, end: int) -> str:
        """The hash of the log's bytes before a place; "" where the log ends before it."""
        if not end:
            return _NOTHING
        if not self._log.path.exists() or self._log.path.stat().st_size < end:
            return ""
        with open(self._log.path, "rb") as file:
            begin = max(0, end - _NEAR)
            file.seek(begin)
            return hashlib.sha256(file.read(end - begin)).hexdigest()

    def agrees_with_lines(self) -> bool:
        """Return True if the lines of the present file, after what earlier files have said, give the same account."""
        recount = Account(self._log.path, indexed=False)
        recount._books, recount._end = copy.deepcopy(self._earlier), 0
        recount._read()
        return recount._books.spell() == self._books.spell()


def check_index(log: Path) -> None:
    """Raise `InputError` if the index of a log says something else than its lines."""
    if not Account(log).agrees_with_lines():
        raise InputError(
            f"{log}.index does not fit the log; remove it, and the site counts its lines again"
        )


def _sealed(content: Mapping[str, Any]) -> bytes:
    """A line of the index: a hash, and what it is of."""
    text = json.dumps(content).encode()
    return hashlib.sha256(text).hexdigest().encode() + b" " + text


def _opened(line: bytes) -> dict[str, Any] | None:
    """Undo `_sealed`; None for a line that is damaged."""
    seal, _, text = line.partition(b" ")
    if hashlib.sha256(text).hexdigest().encode() != seal:
        return None
    content: dict[str, Any] = json.loads(text)
    return content


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
