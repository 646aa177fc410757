"""What a run counts over its asks: work, bytes, failures, and which state of clients stands behind accepted replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.contract.envelopes import Answer, ClientCost
from coterie.contract.memory import NEVER

__all__ = ["AskRecord", "Session"]


class AskRecord(NamedTuple):
    """One ask, for the history: bytes are those of the values, per client down and up; `costs` where each client is elsewhere."""

    round: int
    ask: int
    task: str
    clients: int
    failed: int
    bytes_down: int
    bytes_up: int
    seconds: float
    costs: tuple[ClientCost, ...] = ()


@dataclass
class Session:
    """What a run counts over its asks.

    Attributes:
        asks: a record of each.
        spent: rows of work, by kind.
        failures: last reason of each client that ever failed.
        largest_update: whose update of the last ask was the longest, and its norm.
        known: all names that can be asked.
        counted: by key of client memory and client, the round of the value behind the last reply that was accepted.
        counted_before: the same as the present round began.
        asked: round, its attempt, and how often each task was asked in it.
        rows: training rows of each client, once they were needed.
    """

    asks: list[AskRecord] = field(default_factory=list)
    spent: dict[str, int] = field(default_factory=lambda: {"row_gradients": 0, "row_losses": 0})
    failures: dict[str, str] = field(default_factory=dict)
    largest_update: tuple[str, float] | None = None
    known: frozenset[str] = frozenset()
    counted: dict[str, dict[str, int]] = field(default_factory=dict)
    counted_before: dict[str, dict[str, int]] = field(default_factory=dict)
    asked: tuple[int, int, Counter[str]] = field(default_factory=lambda: (-1, 0, Counter()))
    rows: Mapping[str, int] = field(default_factory=dict)

    def standing(self, round: int, attempt: int) -> Counter[str]:
        """How often each task was asked in this round so far. A round that is repeated counts nothing of its first try."""
        if self.asked[:2] != (round, attempt):
            if self.asked[0] == round:
                self.counted = self.counted_before
            self.counted_before = {key: dict(by_client) for key, by_client in self.counted.items()}
            self.asked = round, attempt, Counter()
        return self.asked[2]

    def discard(self, key: str, clients: Iterable[str] | None = None) -> None:
        """Let what these clients (None: all) keep under `key` count no longer."""
        by_client = self.counted.setdefault(key, {})
        for name in tuple(by_client if clients is None else clients):
            by_client.pop(name, None)

    def counted_by(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """By key of client memory, the round of the value of each of these clients that counts, or `NEVER`."""
        return {key: tuple(by.get(n, NEVER) for n in names) for key, by in self.counted.items()}

    def report(self, client: str, round: int, why: str) -> None:
        """Note why a client failed in this round."""
        self.failures[client] = f"round {round}, {why}"

    def count_state(self, answer: Answer, accepted: Collection[str], round: int) -> tuple[str, ...]:
        """Note which state of clients is behind the replies that were accepted; returns who does not have what was counted before."""
        for key, names in answer.forgot.items():
            self.discard(key, names)
        for key, rounds in answer.remembered.items():
            self.counted.setdefault(key, {}).update({n: number for n, number in rounds if n in accepted})
        forgot = {n: key for key, names in answer.forgot.items() for n in names}
        for name, key in forgot.items():
            if not self.failures.get(name, "").startswith(f"round {round},"):
                self.report(name, round, f"what it kept ({key}) was lost, or of a refused reply")
        return tuple(sorted(forgot))
