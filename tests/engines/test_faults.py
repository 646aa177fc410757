"""Whatever a client's task does is that client's: it is named, its reply is refused, and the others' replies count."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
import torch

from coterie import SCAFFOLD, FedAvg, task
from coterie.base.errors import InputError
from coterie.base.interrupts import delay_interrupts, end, raise_interrupts
from coterie.config.local import LocalSGD, Steps
from coterie.contract.method import Method
from coterie.contract.task import Task, Update
from coterie.engines import workers
from coterie.engines.inprocess import InProcess
from federations import assert_same_bits, federation_of, fit, logistic, quadratic

CENTRES = {n: [float(i), -1.0] for i, n in enumerate("abcde")}
LOCAL = LocalSGD(lr=0.3, steps=Steps(2), batch_size=4)
OTHERS = ("a", "b", "d", "e")


class Fault(BaseException):
    """An error that is not an `Exception`."""


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Reply(NamedTuple):
    delta: Update
    word: str


def raises(error):
    def fault(delta):
        raise error

    return fault


def leaves(delta):
    sys.exit(3)


def kills(delta):
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(delta):
    time.sleep(1000)


def quantised(delta):
    return torch.quantize_per_tensor(delta.float(), 0.1, 0, torch.qint8)


DENSE = "give a dense one [rows, ...] of real numbers, e.g. float32"
TRAVELS = (
    "a object cannot travel; a payload holds tensors, numbers, strings, None, PerClient(tensor) and dataclasses "
    "registered with @wire_type"
)
FAULTS = {
    "exit": (leaves, "SystemExit: 3"),
    "interrupt": (raises(KeyboardInterrupt("mine")), "KeyboardInterrupt: mine"),
    "base": (raises(Fault("odd")), "Fault: odd"),
    "input": (raises(InputError("the file is gone")), "InputError: the file is gone"),
    "mute": (raises(MuteError()), "MuteError"),
    "long": (raises(ValueError("x" * 10**6)), f"ValueError: {'x' * 197}..."),
    "sparse": (
        lambda delta: delta.to_sparse(),
        f"InputError: field 'delta' is a tensor that is sparse; {DENSE}",
    ),
    "meta": (
        lambda delta: delta.to("meta"),
        f"InputError: field 'delta' is a tensor that is without values (device meta); {DENSE}",
    ),
    "nested": (
        lambda delta: torch.nested.nested_tensor(list(delta)),
        f"InputError: field 'delta' is a tensor that is nested; {DENSE}",
    ),
    "quantised": (
        quantised,
        f"InputError: field 'delta' is a tensor that is quantised; {DENSE}",
    ),
    "float8": (
        lambda delta: delta.to(torch.float8_e5m2),
        f"InputError: field 'delta' is a tensor that is torch.float8_e5m2; {DENSE}",
    ),
    "complex": (
        lambda delta: delta.to(torch.complex64),
        f"InputError: field 'delta' is a tensor that is complex; {DENSE}",
    ),
    "object": (
        lambda delta: object(),
        f"InputError: {TRAVELS}",
    ),
    "rows": (
        lambda delta: delta[:0],
        "field 'delta' has shape [0, 2] and torch.float64; expected [1, 2] and torch.float64",
    ),
    "number": (
        lambda delta: 1.0,
        "field 'delta' is a float, not a tensor with a row per client",
    ),
}


@task
def faulty(cohort, *, kind: str = "") -> Reply:
    """The update 1 and a word; client c has a fault."""
    delta = torch.ones(len(cohort.names), 2, dtype=torch.float64)
    if kind and "c" in cohort.names:
        with contextlib.ExitStack():
            delta = FAULTS[kind][0](delta)
    return Reply(delta, tuple(cohort.names))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.filterwarnings("ignore:.*prototype:UserWarning")
def test_a_fault_is_that_of_its_client_and_is_told_alike_on_any_number_of_workers(
    count,
):
    with (
        raise_interrupts(),
        federation_of(quadratic(CENTRES), count, strict_wire=False) as federation,
    ):
        for kind, (_, sentence) in FAULTS.items():
            replies = federation.ask("abcde", faulty, kind=kind)
            assert (kind, replies.clients, replies.failed) == (
                kind,
                OTHERS,
                {"c": sentence},
            )
            assert replies.delta.tolist() == [[1.0, 1.0]] * 4


class Word(NamedTuple):
    word: str


@task
def speak(cohort) -> Word:
    return Word(tuple(object() if n == "c" else n for n in cohort.names))


@pytest.mark.parametrize("count", [1, 2])
def test_a_text_that_cannot_travel_is_refused_on_any_number_of_workers(count):
    with federation_of(quadratic(CENTRES), count, strict_wire=False) as federation:
        replies = federation.ask("abcde", speak)
        assert replies.clients == OTHERS
        assert replies.failed["c"].startswith("InputError: a object cannot travel")


@pytest.mark.parametrize("count", [1, 2])
def test_an_input_error_of_all_clients_ends_the_run_and_names_them(count):
    with (
        federation_of(quadratic(CENTRES), count) as federation,
        pytest.raises(
            InputError, match=r"^clients a, b, c and 2 more: the file is gone$"
        ),
    ):
        federation.ask("abcde", refuses)


@task
def refuses(cohort) -> Word:
    raise InputError("the file is gone")


@task
def interrupts(cohort, *, number: int) -> Word:
    os.kill(os.getpid(), number)
    time.sleep(10)
    return Word(tuple(cohort.names))


class Interrupted(Method):
    """Its round is interrupted by a signal while clients work."""

    def __init__(self, number):
        self.number = number

    def init(self, x, federation):
        return Reply(x, "")

    def round(self, state, federation, rng):
        federation.ask(federation.clients, interrupts, number=int(self.number))
        return state, {}

    def models(self, state):
        return state.delta


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
)
def test_a_signal_while_a_task_runs_ends_the_run(number, error):
    problem, before = logistic(), signal.getsignal(signal.SIGINT)
    usual = signal.signal(signal.SIGTERM, end)  # as in a job
    try:
        with pytest.raises(error):
            fit(Interrupted(number), problem.clients, problem.model, 1)
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert signal.getsignal(signal.SIGINT) is before


OPENS = """
import os, signal, sys
from coterie.base.interrupts import end
def opens():
    file = open(sys.argv[1], "wb")
    os.kill(os.getpid(), signal.SIGTERM)
    file.close()
signal.signal(signal.SIGTERM, end)
opens()
"""


def test_a_job_that_is_ended_while_it_opens_a_file_says_nothing(tmp_path):
    command = [sys.executable, "-W", "error", "-c", OPENS, str(tmp_path / "file")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_waits_until_a_process_is_forked(number):
    usual = {name: signal.signal(name, end) for name in (signal.SIGINT, signal.SIGTERM)}
    reached = []

    def fork():
        with delay_interrupts():
            signal.raise_signal(number)
            reached.append(number)

    try:
        with pytest.raises(SystemExit):
            fork()
        assert reached == [number]
        assert signal.getsignal(number) is end
    finally:
        for name, handler in usual.items():
            signal.signal(name, handler)


# ---- a worker that dies, or does not answer


def in_update(monkeypatch: pytest.MonkeyPatch, name: str, round: int, fault) -> None:
    """Let `fault` happen in the middle of this client's update in one round, whoever shares its process."""
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if (
            "update" in self.kinds.values()
            and cohort.round == round
            and name in cohort.names
        ):
            fault(reply)
        return reply

    monkeypatch.setattr(Task, "__call__", call)


@pytest.mark.parametrize(
    "method", [FedAvg(LOCAL), SCAFFOLD(local=LOCAL)], ids=["fedavg", "scaffold"]
)
def test_a_client_that_kills_its_worker_counts_as_one_that_refuses(monkeypatch, method):
    problem = logistic()
    runs = {}
    for kind, fault in {"killed": kills, "refused": raises(ValueError("no"))}.items():
        with monkeypatch.context() as patch:
            in_update(patch, "c", 2, fault)
            runs[kind] = fit(
                method, problem.clients, problem.model, 4, workers=2, evaluate=1
            )
    assert "exit code -9" in runs["killed"].failures["c"]
    for run in runs.values():
        assert list(run.failures) == ["c"]
        run.failures.clear()
    assert_same_bits(runs["killed"], runs["refused"])


def test_a_worker_that_something_else_killed_harms_nobody(monkeypatch):
    problem, method, honest = logistic(), SCAFFOLD(local=LOCAL), SCAFFOLD.round
    undisturbed = fit(method, problem.clients, problem.model, 4, workers=2, evaluate=1)

    def and_kills(self, state, federation, rng):
        if federation.round == 3:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        return honest(self, state, federation, rng)

    monkeypatch.setattr(SCAFFOLD, "round", and_kills)
    assert_same_bits(
        fit(method, problem.clients, problem.model, 4, workers=2, evaluate=1),
        undisturbed,
    )


def test_a_worker_that_does_not_answer_in_time_is_named_and_given_up(
    monkeypatch, caplog
):
    problem = logistic()
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    runs = {}
    for kind, fault in {"hung": hangs, "refused": raises(ValueError("no"))}.items():
        with monkeypatch.context() as patch:
            in_update(patch, "c", 2, fault)
            engine = InProcess(workers=2, timeout=2.0 if kind == "hung" else None)
            runs[kind] = fit(
                FedAvg(LOCAL), problem.clients, problem.model, 2, engine=engine
            )
    named = [record.getMessage() for record in caplog.records]
    assert any(
        "(local_update of a, c, e) has not answered for 0.2 s; it goes on waiting"
        in line
        for line in named
    )
    assert (
        "a worker process did not answer within 2 s while it served a, c, e; each is asked again, alone"
        in named
    )
    why = runs["hung"].failures.pop("c")
    assert why.endswith(
        "its worker process did not answer within 2 s when it was asked alone"
    )
    runs["refused"].failures.clear()
    assert_same_bits(runs["hung"], runs["refused"])


def test_a_timeout_needs_workers():
    with pytest.raises(
        InputError, match=r"a timeout ends worker processes.*use workers=2"
    ):
        InProcess(timeout=5)
