"""Faults of a client's code, over all methods: errors, replies of any kind, and processes that end."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import coterie as ct
from coterie.compute.metrics import DEFAULT_METRICS
from coterie.config.registry import METHODS
from coterie.contract.task import Task
from federations import fit, logistic, seeded
from torture.apart import Tries, attempt_all

Fault = Callable[[Any, str], Any]
"""What becomes of a reply whose field of this name is the update."""


def _raise(error: BaseException) -> Fault:
    def fault(reply: Any, field: str) -> Any:
        raise error

    return fault


def _change(change: Callable[[Any], Any]) -> Fault:
    def fault(reply: Any, field: str) -> Any:
        return reply._replace(**{field: change(getattr(reply, field))})

    return fault


FAULTS: dict[str, Fault] = {
    "error": _raise(ValueError("no")),
    "exit": lambda reply, field: sys.exit(3),
    "interrupt": _raise(KeyboardInterrupt()),
    "generator": _raise(GeneratorExit()),
    "input": _raise(ct.InputError("the file is gone")),
    "memory": _raise(MemoryError()),
    "recursion": _raise(RecursionError()),
    "nothing": lambda reply, field: None,
    "list": lambda reply, field: list(reply),
    "sparse": _change(lambda v: v.to_sparse()),
    "meta": _change(lambda v: v.to("meta")),
    "nested": _change(lambda v: torch.nested.nested_tensor(list(v))),
    "complex": _change(lambda v: v.to(torch.complex64)),
    "float8": _change(lambda v: v.to(torch.float8_e5m2)),
    "text": _change(lambda v: "x"),
    "object": _change(lambda v: object()),
    "nan": _change(lambda v: v * math.nan),
    "short": _change(lambda v: v[..., :-1]),
    "deep": _change(lambda v: F.pad(v[..., None], (0, 1))),
}
REFUSED = ("text", "nan", "short", "deep")
"""Faults of replies that the server refuses, once the task is done."""
STATEFUL: set[str] = set()
"""Methods whose clients were seen to keep a state."""
ENDS: dict[str, Fault] = {
    "killed": lambda reply, field: os.kill(os.getpid(), signal.SIGKILL),
    "left": lambda reply, field: os._exit(7),
}
OF_EACH = 10
"""Faults of a method, one after the other, since they share the run in which the client raised an error."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "fedbn": {"personal": ("*.bias",)},
    "fedprox": {"mu": 0.5},
    "mwfed": {"rate": 2.0, "warmup_steps": 1},
    "multi-krum": {"byzantine": 0},
    "perfedavg": {"alpha": 0.1},
    "selective": {"internal": ("a", "b")},
    "sgd-ideal": {"members": "*"},
    "target-only": {"target": "c"},
    "varsel": {"internal": ("a", "b"), "preselect": "smallest"},
}
"""Of methods that cannot do with their defaults here."""


def _run(method: str, fault: Fault, workers: int) -> Any:
    """A run in which client c has this fault in round 2, at the end of each task that sends an update."""
    honest = Task.__call__

    def call(self: Any, cohort: Any, /, **payload: Any) -> Any:
        reply = honest(self, cohort, **payload)
        if cohort.memory.rounds():
            STATEFUL.add(method)
        field = next(
            (name for name, kind in self.kinds.items() if kind == "update"), ""
        )
        if not field or cohort.round != 2 or "c" not in cohort.names:
            return reply
        if fault is FAULTS["nan"]:  # the others' rows are as they were
            getattr(reply, field)[cohort.names.index("c")] = math.nan
            return reply
        return fault(reply, field)

    Task.__call__ = call  # type: ignore[method-assign]
    try:
        return _fit(method, workers)
    finally:
        Task.__call__ = honest  # type: ignore[method-assign]


def _fit(method: str, workers: int) -> Any:
    problem, known = logistic(), METHODS[method](**ARGUMENTS.get(method, {}))
    model = seeded(
        lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)),
        torch.float64,
    )
    options: dict[str, Any] = {
        "evaluate": 1,
        "metrics": DEFAULT_METRICS,
        "server": problem.clients["a"].train,
    }
    return fit(known, problem.clients, model, 3, workers=workers, **options)


def _expected(method: str, fault: str, workers: int) -> Any:
    """The run in which c raises a plain error, or the sentence that ends it.

    What c has kept under a reply that the server refuses counts no longer. Where clients keep a state, it is the run in which c's reply
    has the wrong shape.
    """
    plain = _run_with(method, "error", workers)
    refused = fault in REFUSED and not isinstance(plain, str) and _keeps_state(method)
    return _run_with(method, "short", workers) if refused else plain


@cache
def _run_with(method: str, fault: str, workers: int) -> Any:
    try:
        return _run(method, FAULTS[fault], workers)
    except ct.CoterieError as error:
        return str(error)


@cache
def _keeps_state(method: str) -> bool:
    """Whether clients of a method keep a state, as a run in this process shows: of workers nothing is seen here."""
    with suppress(ct.CoterieError):
        _run(method, FAULTS["error"], 1)
    return method in STATEFUL


def attempt(place: tuple[str, str, int]) -> str:
    """The run has the bits that are expected, and names nobody but c; or it is refused with the name of c."""
    method, fault, workers = place
    plain = _expected(method, fault, workers)
    try:
        faulty = _run(method, (FAULTS | ENDS)[fault], workers)
    except ct.CoterieError as error:
        named = "c (" in str(error) or "client c:" in str(error)
        return "" if named and isinstance(plain, str) else f"{error}"
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {error}"
    if isinstance(plain, str):
        return f"goes on where an error ends it: {plain}"
    if set(faulty.failures) - {"c"} or bool(faulty.failures) != bool(plain.failures):
        return f"blames {sorted(faulty.failures)} and not {sorted(plain.failures)}"
    # What a client has computed before its reply is refused counts as work.
    histories = [
        [row for row in run.history if row.metric != "row_gradients"]
        for run in (plain, faulty)
    ]
    models = faulty.models.keys() == plain.models.keys() and all(
        torch.equal(x, plain.models[n]) for n, x in faulty.models.items()
    )
    rest = histories[0] == histories[1] and faulty.weight_rows == plain.weight_rows
    return "" if models and rest else "silently different"


def faults(rng: random.Random, folder: Path, methods: list[str], until: float) -> Tries:
    """A client's task has a fault, with one worker and with two."""
    kinds = [
        (fault, workers)
        for workers in (1, 2)
        for fault in (*FAULTS, *(ENDS if workers == 2 else ()))
    ]
    places = [
        (method, *kind) for method in methods for kind in rng.sample(kinds, OF_EACH)
    ]
    for place, wrong in attempt_all(places, attempt, until):
        yield place, wrong, (place[0], f"fault: {place[1]}")
