"""The memory of clients, kept where they live.

A value written in round r counts once the server has accepted the reply behind it; until then the one that counted before is kept
beside it, and is what tasks see: an answer that came too late, or was refused, changes nothing. If round r begins again (the first
attempt was lost), what it had written is dropped, so a resumed run sees exactly what an undisturbed one would.

Notes are for the present round alone: what a client has computed and would compute again, with what it was computed from. They are no
part of a checkpoint, they may be gone at any time (a restart), and a task that reads them computes what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.vector import lasting_copy

MEMORY_LOST = "it was restarted, and what its clients remembered is lost"
"""The reason that a method is given for clients whose process died and had their memory alone."""
NEVER = -1
"""The round of a value that was never written."""


Note = tuple[Tensor, tuple[Any, ...]]
"""A value, and what it was computed from."""


class ClientState(NamedTuple):
    """The memory of the clients of a cohort under one key.

    Attributes:
        values: [n, ...]; a default for those that remember nothing.
        rounds: int64 [n], the round in which each was written; -1 for a default.
        counted: bool [n], whether it is the one behind the last reply of this client that the server accepted.
    """

    values: Tensor
    rounds: Tensor
    counted: Tensor

    def or_else(self, default: Tensor) -> Tensor:
        """Return the values that the server counted, and `default`, which has no client dimension, in the place of the others."""
        counted = self.counted.to(self.values.device).view(
            -1, *[1] * (self.values.ndim - 1)
        )
        return torch.where(counted, self.values, default)


class Memory:
    """Values by key and client, allocated when first written.

    Attributes:
        unasked: Clients that were not asked in the present round yet, and may have values of an attempt that was given up.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[str, dict[int, Tensor]]] = {}
        self._notes: dict[str, dict[str, Note]] = {}
        # The latest round in which each client wrote, and the clients by that round: who has nothing late is not looked at.
        self._latest: dict[str, int] = {}
        self._writers: dict[int, set[str]] = {}
        self._round = (0, 0)
        self._complete = NEVER
        self.unasked: set[str] = set()

    @property
    def round(self) -> int:
        """The present round."""
        return self._round[0]

    def begin(self, round: int, attempt: int) -> None:
        """Name the round that the next asks belong to; `attempt` tells a repetition of the same round from its first try."""
        if (round, attempt) == self._round:
            return
        if self.unasked:
            self.drop_late(self.unasked, {})
        self._notes = {}
        self._round = (round, attempt)
        self.unasked = set()
        for number, writers in self._writers.items():
            if number >= round:
                self.unasked |= writers

    def drop_late(
        self, names: Iterable[str], counted: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Drop what clients had of the present round before they are asked in it: an attempt that was given up wrote that.

        Args:
            names: The clients.
            counted: By key and client the round of the value that the server counts. Such a value belongs to a complete round, also
                where that is the present one: a resumed run looks at its last round again.
        """
        clients = self.unasked.intersection(names)
        self.unasked = self.unasked - clients
        for key, by_client in self._values.items():
            for client in clients & by_client.keys():
                rounds = by_client[client]
                # The first round whose value does not count.
                first_late = max(self.round, self._complete + 1)
                if counted.get(key, {}).get(client) == self.round:
                    first_late = max(first_late, self.round + 1)
                for late_round in [r for r in rounds if r >= first_late]:
                    del rounds[late_round]

    def read(
        self, key: str, client: str, counted: int = NEVER
    ) -> tuple[int, Tensor | None]:
        """The value of this client that the server counts, else its newest, and the round when it was written; else `NEVER`, None."""
        rounds = self._values.get(key, {}).get(client, {})
        number = counted
        if number not in rounds:
            number = max(rounds, default=NEVER)
        return number, rounds.get(number)

    def present(self) -> list[str]:
        """Return the keys under which clients remember something."""
        return list(self._values)

    def has(self, client: str) -> bool:
        """Return True if this client remembers anything."""
        return any(client in by_client for by_client in self._values.values())

    def note(self, key: str, client: str, note: Note) -> None:
        """Keep `note` until the next round begins."""
        self._notes.setdefault(key, {})[client] = note

    def recall(self, key: str, client: str) -> Note | None:
        """Return what was noted for this client in the present round, or None."""
        return self._notes.get(key, {}).get(client)

    def has_notes(self, client: str) -> bool:
        """Return True if anything is noted for this client."""
        return any(client in by_client for by_client in self._notes.values())

    def write(self, key: str, client: str, value: Tensor, counted: int = NEVER) -> None:
        """Keep `value` as of the present round, beside the one before and the one of round `counted`."""
        rounds = self._values.setdefault(key, {}).setdefault(client, {})
        rounds[self._round[0]] = value
        self._note_writer(client, self._round[0])
        for old_round in [r for r in sorted(rounds)[:-2] if r != counted]:
            del rounds[old_round]

    def _note_writer(self, client: str, number: int) -> None:
        latest = self._latest.get(client, NEVER)
        if number <= latest:
            return
        self._writers.get(latest, set()).discard(client)
        if not self._writers.get(latest, True):
            del self._writers[latest]
        self._latest[client] = number
        self._writers.setdefault(number, set()).add(client)

    def save(self) -> dict[str, Tensor]:
        """Everything as one flat dict; `owners` and `select_clients` tell whose its values are."""
        if self.unasked:
            self.drop_late(self.unasked, {})
        saved: dict[str, Tensor] = {}
        for key, by_client in self._values.items():
            for client, rounds in by_client.items():
                for number, value in rounds.items():
                    saved[_join_names(number, key, client)] = value
        return saved

    def load(
        self,
        saved: Mapping[str, Tensor],
        clients: Iterable[str],
        *,
        complete: bool = True,
    ) -> None:
        """Replace everything by what `save` gave, for those of `clients` that live here.

        Args:
            saved: What `save` gave.
            clients: Names of clients.
            complete: True if it was saved after a complete round, so that also a value which answered too late belongs to it.
        """
        local_clients = set(clients)
        self._values, self._notes, self.unasked, self._complete = {}, {}, set(), NEVER
        self._latest, self._writers = {}, {}
        for name, value in saved.items():
            number, key, client = _split(name)
            if complete:
                self._complete = max(self._complete, number)
            if client in local_clients:
                self._values.setdefault(key, {}).setdefault(client, {})[number] = value
                self._note_writer(client, number)

    def round_values(self, clients: Iterable[str]) -> dict[str, dict[str, Tensor]]:
        """Return what each of `clients` has remembered in the present round so far, by key, for `undo`."""
        values: dict[str, dict[str, Tensor]] = {client: {} for client in clients}
        for key, by_client in self._values.items():
            for client in values:
                if self.round in by_client.get(client, ()):
                    values[client][key] = by_client[client][self.round]
        return values

    def undo(self, client: str, values: Mapping[str, Tensor]) -> None:
        """Let `client` have remembered in the present round what `values` gave, and nothing else."""
        for by_client in self._values.values():
            by_client.get(client, {}).pop(self.round, None)
            if not by_client.get(client, True):
                del by_client[client]
        for key, value in values.items():
            self._values.setdefault(key, {}).setdefault(client, {})[self.round] = value
            self._note_writer(client, self.round)

    def forget(self, clients: Iterable[str]) -> None:
        """Drop all values of `clients` (their process died)."""
        for client in clients:
            for by_client in self._values.values():
                by_client.pop(client, None)
            for noted in self._notes.values():
                noted.pop(client, None)


def owners(saved: Iterable[str]) -> set[str]:
    """Names of the clients to which saved values belong."""
    return {_split(name)[2] for name in saved}


def select_clients(
    saved: Mapping[str, Tensor], clients: Iterable[str]
) -> dict[str, Tensor]:
    """The saved values of some clients."""
    name_set = set(clients)
    return {name: value for name, value in saved.items() if _split(name)[2] in name_set}


def _join_names(number: int, key: str, client: str) -> str:
    return f"{number}/{key}/{client}"


def _split(name: str) -> tuple[int, str, str]:
    number, key, client = name.split("/", 2)  # a key has no '/', a client's name may
    return int(number), key, client


class MemoryView:
    """The memory of one cohort during one task; writes count only if the task ends well.

    Args:
        memory: memory of the process.
        names: names of the n clients.
        counted: by key and client, the round of the value that the server counted.

    Attributes:
        forgot: by key, the clients that do not have the value which the server counted.
    """

    def __init__(
        self,
        memory: Memory,
        names: tuple[str, ...],
        counted: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self._memory = memory
        self._names = names
        self._counted = counted or {}
        self.forgot: dict[str, set[str]] = {}
        self._committed: dict[str, set[str]] = {}
        self._written: dict[str, list[Tensor]] = {}
        self._noted: dict[str, tuple[Tensor, tuple[Any, ...]]] = {}
        self._parts: list[MemoryView] = []
        self._numbers: dict[str, int] = {}

    def only(self, names: tuple[str, ...]) -> MemoryView:
        """The committed memory of some of the clients."""
        view = MemoryView(self._memory, names, self._counted)
        view.forgot, view._committed = self.forgot, self._committed
        return view

    def part(self, names: tuple[str, ...]) -> MemoryView:
        """The same; what is written there counts with what is written here."""
        self._parts.append(self.only(names))
        return self._parts[-1]

    def has_value(self, key: str) -> Tensor:
        """Return which clients have a value, bool [n]."""
        if key in self._written:
            return torch.ones(len(self._names), dtype=torch.bool)
        return torch.tensor([value is not None for value in self.each(key)])

    def state(self, key: str, default: Tensor) -> ClientState:
        """Return what the clients remember under `key` and since when; `default` (without client dimension) where there is nothing."""
        counted = self._counted.get(key, {})
        forgot = self.forgot.setdefault(key, set())
        rounds, is_counted = [], []
        for name in self._names:
            present_round = self._memory.round
            if key not in self._written:
                present_round, _ = self._read(key, name)
            due_round = counted.get(name, NEVER)
            if due_round not in (NEVER, present_round):
                forgot.add(name)
            rounds.append(present_round)
            is_counted.append(present_round == due_round != NEVER)
        values = self.get(key, default)
        return ClientState(values, torch.tensor(rounds), torch.tensor(is_counted))

    def rounds(self) -> dict[str, dict[str, int]]:
        """By key and client, the round of what this task has committed."""
        return {
            key: dict.fromkeys(sorted(names), self._memory.round)
            for key, names in self._committed.items()
        }

    def get(self, key: str, default: Tensor) -> Tensor:
        """The values of all clients of the cohort [n, ...]; `default` (without client dimension) where there is none."""
        if key in self._written:
            return torch.stack(self._written[key])
        values = []
        for value in self.each(key):
            if value is None:
                value = default
            values.append(value)
        return torch.stack(values)

    def number_of(self, what: str) -> str:
        """Return `what` with a number, which counts how often this task has asked for it, and a space."""
        self._numbers[what] = self._numbers.get(what, 0) + 1
        return f"{what} {self._numbers[what]} "

    def keys_of(self, prefix: str) -> list[str]:
        """Return the keys that begin so under which any client of this process remembers something."""
        return [key for key in self._memory.present() if key.startswith(prefix)]

    def each(self, key: str) -> list[Tensor | None]:
        """Return what each client remembers under `key`; None for nothing."""
        return [self._read(key, name)[1] for name in self._names]

    def put(self, key: str, values: Tensor) -> None:
        """Keep `values` [n, ...] for the clients of the cohort; a key has no `/`, which separates the names in a checkpoint."""
        if "/" in key or len(values) != len(self._names):
            raise InputError(
                f"memory {key!r} needs a key without '/' and one row per client"
            )
        self._written[key] = [lasting_copy(value) for value in values.detach()]
        self._committed.setdefault(key, set()).update(self._names)

    def note(self, key: str, values: Tensor, of: tuple[Any, ...]) -> None:
        """Keep `values` [n, ...], computed from `of`, until the next round begins; they are not copied, and must not change."""
        source = []
        for value in of:
            # A payload may lie in memory that the next message is written to.
            if isinstance(value, Tensor):
                value = value.clone()
            source.append(value)
        self._noted[key] = values.detach(), tuple(source)

    def recall(self, key: str, of: tuple[Any, ...]) -> list[Tensor | None]:
        """Return what was computed from `of` and noted for each client in this round; None where there is no such note (any more)."""
        # Clients that were noted together share one source: it is compared once.
        is_same_source: dict[int, bool] = {}
        recalled: list[Tensor | None] = []
        for name in self._names:
            note = self._memory.recall(key, name)
            if note is None:
                recalled.append(None)
                continue
            value, source = note
            if id(source) not in is_same_source:
                is_same_source[id(source)] = _equal(source, of)
            if is_same_source[id(source)]:
                recalled.append(value)
            else:
                recalled.append(None)
        return recalled

    def commit(self) -> None:
        """Make the task's writes count."""
        for part in self._parts:
            part.commit()
        self._parts.clear()
        for key, (noted, source) in self._noted.items():
            for name, value in zip(self._names, noted, strict=True):
                self._memory.note(key, name, (value, source))
        self._noted.clear()
        for key, values in self._written.items():
            counted = self._counted.get(key, {})
            for name, value in zip(self._names, values, strict=True):
                self._memory.write(key, name, value, counted.get(name, NEVER))
        self._written.clear()

    def _read(self, key: str, name: str) -> tuple[int, Tensor | None]:
        return self._memory.read(key, name, self._counted.get(key, {}).get(name, NEVER))


def _equal(first_values: tuple[Any, ...], second_values: tuple[Any, ...]) -> bool:
    if len(first_values) != len(second_values):
        return False
    for first, second in zip(first_values, second_values, strict=True):
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            is_equal = torch.equal(first, second)
        else:
            is_equal = type(first) is type(second) and bool(first == second)
        if not is_equal:
            return False
    return True
