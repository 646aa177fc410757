"""How much memory a run takes at its peak, said before it begins."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch

from coterie.base.errors import RunError
from coterie.base.vector import Layout
from coterie.contract.engine import Engine
from coterie.contract.exchange import clients_at_once
from coterie.contract.method import Method

logger = logging.getLogger("coterie")

LOG_MEMORY_ABOVE = 1e8
"""Bytes from which the memory of a run is logged."""
RETAINED = 1 << 25
"""Bytes that stay with this process after they were freed: the largest piece that glibc takes from its own heap."""


@dataclass(frozen=True)
class MemoryForecast:
    """The memory of a run on this machine at its peak.

    Attributes:
        method: What is run.
        layout: Of its model vectors.
        clients: All clients.
        per_round: Participants of a round.
        workers: Processes that train on this machine; 0: clients are elsewhere.
        width: Clients that a kernel trains side by side at most; 0: the plain loop.
    """

    method: Method[Any]
    layout: Layout
    clients: int
    per_round: int
    workers: int
    width: int

    @classmethod
    def of(cls, method: Method[Any], engine: Engine, per_round: int) -> MemoryForecast:
        """The forecast for a method on an engine."""
        workers = 0
        if engine.simulated:
            workers = engine.serves
        return cls(
            method=method,
            layout=engine.layout,
            clients=len(engine.clients),
            per_round=per_round,
            workers=workers,
            width=engine.width(),
        )

    @property
    def vectors(self) -> int:
        """Model vectors that are held at once."""
        at_once, workers = self.per_round, max(1, self.workers)
        if self.method.needs == "sum":
            at_once = min(at_once, clients_at_once(self.layout, self.workers))
        per_worker = -(-at_once // workers)
        # Of each process its model, and a gradient or a kernel's copies.
        of_process = 2
        if self.width:
            of_process = 3 + min(per_worker, self.width)
        # What clients keep, of two rounds.
        copies = 2
        if workers > 1:
            of_process += 2 * per_worker  # its replies, once more where all read them
            copies = 4  # a worker's also here in case that it ends
        # The initial model, that before the round, and a sum that becomes the one after it.
        vectors = 3 + self.method.memory_estimate(at_once, self.clients)
        if self.workers:
            vectors += copies * self.method.keeps * self.clients
            vectors += self.workers * of_process
        return vectors

    @property
    def bytes(self) -> int:
        """Bytes of these vectors and of what a process retains."""
        return self.vectors * self.layout.size * self.layout.dtype.itemsize + RETAINED

    def check(self, available: int | None) -> str | None:
        """Return the sentence that names the memory; None below `LOG_MEMORY_ABOVE`.

        Raises `RunError` if it is more than what is `available`, in bytes; None: unknown.
        """
        sentence = f"a round takes about {_gigabytes(self.bytes)}: {self.vectors} model vectors of {self.layout.size} numbers"
        if available is not None and self.bytes > available:
            raise RunError(
                f"{sentence}, but only {_gigabytes(available)} are free; {self._cure(available)}"
            )
        return sentence if self.bytes > LOG_MEMORY_ABOVE + RETAINED else None

    def _cure(self, available: int) -> str:
        """Return the settings that change least with which a round fits."""
        smallest = replace(self, workers=min(1, self.workers), width=0)
        tries = {"[engine] workers = 1": replace(self, workers=min(1, self.workers))}
        tries['[engine] kernel = "loop"'] = replace(self, width=0)
        tries['[engine] workers = 1 and kernel = "loop"'] = smallest
        fewer = self.per_round // 2
        while fewer:
            change = f"[run] clients_per_round = {fewer}"
            tries[change] = replace(self, per_round=fewer)
            change += ', [engine] workers = 1 and kernel = "loop"'
            tries[change] = replace(smallest, per_round=fewer)
            fewer //= 2
        for change, forecast in tries.items():
            if forecast.bytes <= available:
                return f"with {change} it takes {_gigabytes(forecast.bytes)}"
        return (
            "take a smaller model, or a method that needs sums alone (coterie methods)"
        )


def foresee_memory(method: Method[Any], engine: Engine, per_round: int) -> None:
    """Log the memory of a run if it is much. Raises `RunError` if it is more than what is free."""
    layout, clients = engine.layout, len(engine.clients)
    # Beside its replies a run holds at most 32 vectors for each client.
    most = method.memory_estimate(per_round, clients) + 32 * clients
    if most * layout.size * layout.dtype.itemsize < LOG_MEMORY_ABOVE:
        return
    forecast = MemoryForecast.of(method, engine, per_round)
    sentence = forecast.check(free_bytes(engine.x.device))
    if sentence:
        logger.info("%s", sentence)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a GPU, or of this machine; None where it is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
