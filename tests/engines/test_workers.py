"""Worker processes: killed ones are named and replaced, and none is left behind."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from coterie import SCAFFOLD, FedAvg, Median, MeritFed, task
from coterie.base.errors import InputError, RunError
from coterie.base.vector import Layout
from coterie.base.vector import average as mean_of
from coterie.compute.tasks import own_update
from coterie.config.local import Epochs, LocalSGD, Steps
from coterie.contract import exchange
from coterie.contract.federation import QuorumError
from coterie.contract.method import Method
from coterie.contract.task import Task, Update
from coterie.contract.wire import PerClient
from coterie.engines import workers as worker_processes
from coterie.engines.inprocess import InProcess, InProcessEngine
from coterie.engines.workers import Arena
from coterie.run.memory_forecast import MemoryForecast
from federations import SIZES, assert_same_bits, federation_of, fit, logistic, quadratic

LOCAL = LocalSGD(lr=0.3, steps=Steps(2), batch_size=4)
CENTRES = {n: [float(i), -1.0] for i, n in enumerate("abcde")}
# Clients without memory are dealt out in turn, so with two workers c shares its process with a and e when all are asked.
WITH_C = ("a", "c", "e")


class Home(NamedTuple):
    process: Tensor


@task
def home(cohort, *, victim: str = "") -> Home:
    if victim in cohort.names:
        os.kill(os.getpid(), signal.SIGKILL)
    return Home(torch.full((len(cohort.names),), os.getpid()))


WORKER_ENDED = "its worker process ended with exit code -9 when it was asked alone"


def children() -> set[int]:
    """Processes below this one, dead ones that nobody waited for included."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            name_and_rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")
        except OSError:
            continue
        if int(name_and_rest[2].split()[1]) == os.getpid():
            found.add(int(process))
    return found


@pytest.fixture(autouse=True)
def no_process_is_left():
    before = children()
    yield
    assert children() <= before
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [2, 3, 9])
def test_clients_live_in_workers_of_their_own(workers):
    with federation_of(quadratic(CENTRES), workers) as federation:
        first = federation.ask("abcde", home).process.tolist()
        assert len(set(first)) == min(workers, 5)
        assert os.getpid() not in first
        assert federation.ask("edcba", home).process.tolist() == first


def test_a_killed_worker_is_named_and_replaced_and_the_others_reply():
    with federation_of(quadratic(CENTRES), 2) as federation:
        before = federation.ask("abcde", home)
        got = federation.ask("abcde", home, need=0.4, victim="c")
        assert got.clients == ("a", "b", "d", "e")
        assert got.failed == {"c": WORKER_ENDED}
        after = federation.ask("abcde", home)
        assert after.failed == {}
        moved = {
            n: int(a) != int(b)
            for n, a, b in zip("abcde", before.process, after.process, strict=True)
        }
        assert moved == {n: n in WITH_C for n in "abcde"}


def test_a_worker_that_died_between_two_asks_is_replaced():
    with federation_of(quadratic(CENTRES), 2) as federation:
        process = federation.ask("a", home).process.item()
        os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
        assert federation.ask("abcde", home).failed == {}


def test_below_quorum_the_clients_of_a_killed_worker_are_asked_once_more():
    with federation_of(quadratic(CENTRES), 2) as federation:
        with pytest.raises(
            QuorumError,
            match=r"4 of 5 clients.*c \(its worker process ended with exit code -9",
        ):
            federation.ask("abcde", kill_only, need="all")
        assert [(r.clients, r.failed) for r in federation.session.asks] == [
            (5, 1),
            (1, 1),
        ]


@task
def kill_only(cohort) -> Home:
    if "c" in cohort.names:
        os.kill(os.getpid(), signal.SIGKILL)
    return Home(torch.zeros(len(cohort.names)))


def kill_in_round(monkeypatch: pytest.MonkeyPatch, victims: str, round: int) -> None:
    """Let the process of any of these clients die in the middle of its update in one round."""
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if (
            "update" in self.kinds.values()
            and cohort.round == round
            and set(victims) & set(cohort.names)
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    monkeypatch.setattr(Task, "__call__", call)


@pytest.mark.parametrize(
    "method",
    [FedAvg(LOCAL), MeritFed(local=LOCAL, targets=("b", "d"))],
    ids=["fedavg", "meritfed"],
)
def test_a_run_goes_on_without_the_clients_of_a_killed_worker(monkeypatch, method):
    problem = logistic()
    kill_in_round(monkeypatch, "b", 2)
    found = fit(method, problem.clients, problem.model, 4, workers=2, evaluate=1)
    assert found.failures.keys() == {"b"}
    assert all(
        "round 2" in why and "exit code -9" in why for why in found.failures.values()
    )
    took_part = {
        r: {c for number, _, c, _ in found.weight_rows if number == r}
        for r in (1, 2, 3, 4)
    }
    assert took_part == {
        1: set(SIZES),
        2: set(SIZES) - {"b"},
        3: set(SIZES),
        4: set(SIZES),
    }
    monkeypatch.undo()
    undisturbed = fit(method, problem.clients, problem.model, 4, workers=2, evaluate=1)
    assert [r for r in found.history if r.round < 2] == [
        r for r in undisturbed.history if r.round < 2
    ]
    assert found.history != undisturbed.history


@pytest.mark.in_turn
def test_a_run_whose_workers_keep_dying_ends_and_can_be_resumed(monkeypatch, tmp_path):
    problem = logistic()
    options = {"workers": 2, "evaluate": 1, "checkpoint": tmp_path}
    kill_in_round(monkeypatch, "ace", 3)
    with pytest.raises(
        QuorumError,
        match=r"round 3, .* 2 of 5 clients replied, at least 50% are needed",
    ):
        fit(FedAvg(LOCAL), problem.clients, problem.model, 5, **options)
    monkeypatch.undo()
    resumed = fit(
        FedAvg(LOCAL), problem.clients, problem.model, 5, resume=True, **options
    )
    assert_same_bits(
        resumed, fit(FedAvg(LOCAL), problem.clients, problem.model, 5, evaluate=1)
    )


# ---- what travels through shared memory


class Echo(NamedTuple):
    large: Tensor
    own: Tensor
    numbers: Tensor


@task
def echo(cohort, *, large: Tensor, own: Tensor, few: Tensor, word: str) -> Echo:
    count = len(cohort.names)
    assert word == "sent"
    return Echo(
        large.expand(count, -1) + few, own * 2, torch.arange(3).expand(count, 3)
    )


@pytest.mark.parametrize(
    "room", [1 << 24, 5 << 14, 0], ids=["all fits", "some fits", "none fits"]
)
def test_large_tensors_travel_through_shared_memory_as_through_the_pipe(
    monkeypatch, room
):
    monkeypatch.setattr(worker_processes, "Arena", partial(Arena, room))
    large, own = torch.randn(9000), torch.randn(5, 6000)
    with federation_of(quadratic(CENTRES), 2, strict_wire=False) as federation:
        payload = {
            "large": large,
            "own": PerClient(own),
            "few": torch.tensor(1.5),
            "word": "sent",
        }
        first = federation.ask("abcde", echo, **payload)
        for _ in range(
            3
        ):  # replies belong to the caller, whatever is written to that memory later
            federation.ask(
                "abcde", echo, **{**payload, "large": large + 1, "own": PerClient(-own)}
            )
    assert torch.equal(first.large, (large + 1.5).expand(5, -1))
    assert torch.equal(first.own, own * 2)
    assert first.numbers.tolist() == [[0, 1, 2]] * 5


@pytest.mark.parametrize("averaged", [False, True])
def test_vectors_that_are_only_averaged_are_not_copied_out_of_the_memory_of_workers(
    averaged, monkeypatch
):
    size, copies, honest = (
        1 << 13,
        [],
        Arena.unpack,
    )  # 32 KB a vector: the least that travels through that memory is 16

    def unpack(self, message, *, keep=False):
        copies.append(keep)
        return honest(self, message, keep=keep)

    problem = quadratic(
        {name: torch.full((size,), float(i)) for i, name in enumerate("abcd")}, rows=2
    )
    monkeypatch.setattr(exchange, "HELD_BYTES", 1)
    monkeypatch.setattr(Arena, "unpack", unpack)
    with federation_of(problem, 2) as federation:
        ask = {"x": federation.engine.x, "local": LOCAL}
        whole = mean_of(
            torch.ones(4), federation.ask(federation.clients, own_update, **ask).delta
        )
        if averaged:
            copies.clear()
            assert torch.equal(
                federation.average(
                    federation.clients, own_update, weights=torch.ones(4), **ask
                ).delta,
                whole,
            )
    assert copies == (
        [False] * 4 if averaged else [True] * 2
    )  # two clients at a time, one in each worker; or all at once


def test_an_arena_copies_a_tensor_once_and_never_takes_one_for_another():
    arena = Arena(1 << 20)
    x = torch.randn(8192, dtype=torch.float64)
    before = [arena.unpack(arena.pack({"x": x, "n": i})) for i in range(3)]
    assert len({m["x"].data_ptr() for m in before}) == 1
    others = [
        arena.unpack(arena.pack({"x": torch.full((6000,), float(i))}))["x"]
        for i in range(4)
    ]
    assert [float(o[0]) for o in others] == [0, 1, 2, 3]
    assert torch.equal(before[0]["x"], x)


class Met(NamedTuple):
    process: Tensor
    times: Tensor


@task
def meet(cohort) -> Met:
    times = cohort.memory.get("met", torch.zeros(())) + 1
    cohort.memory.put("met", times)
    return Met(torch.full((len(cohort.names),), os.getpid()), times)


def test_whoever_remembers_nothing_is_dealt_out_evenly_and_the_others_go_home():
    with federation_of(quadratic(CENTRES), 2) as federation:
        for names in ("ac", "ce", "bd"):
            assert len(set(federation.ask(names, home).process.tolist())) == 2
        first = dict(
            zip("ac", federation.ask("ac", meet).process.tolist(), strict=True)
        )
        assert len(set(first.values())) == 2
        again = federation.ask("abcde", meet)
        assert again.times.tolist() == [2, 1, 2, 1, 1]
        assert {n: first[n] for n in "ac"} == {
            n: again.process[i].item() for i, n in ((0, "a"), (2, "c"))
        }
        assert sorted(again.process.tolist().count(p) for p in first.values()) == [2, 3]
        saved = federation.engine.save_memory()
        federation.engine.load_memory(saved)
        assert federation.ask("abcde", meet).times.tolist() == [3, 2, 3, 2, 2]


@task
def trained_at(cohort, *, local: LocalSGD) -> Home:
    return home(cohort)


def test_workers_get_the_same_work_rather_than_as_many_clients():
    sizes = {"a": 50, "b": 10, "c": 20, "d": 10, "e": 10}
    with federation_of(quadratic(CENTRES, rows=sizes), 2) as federation:
        for local, alone in (
            (LocalSGD(steps=Epochs(2)), "a"),
            (LocalSGD(steps=Steps(2), batch_size=30), "ad"),
        ):
            process = dict(
                zip(
                    "abcde",
                    federation.ask("abcde", trained_at, local=local).process.tolist(),
                    strict=True,
                )
            )
            assert {name for name in "abcde" if process[name] == process["a"]} == set(
                alone
            )
        evaluated = dict(
            zip("abcde", federation.ask("abcde", home).process.tolist(), strict=True)
        )
        assert [name for name in "abcde" if evaluated[name] == evaluated["a"]] == ["a"]


class Broken(NamedTuple):
    delta: Update


class Breaks(Method):
    """Its second round has a bug."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def init(self, x, federation):
        return Broken(x)

    def round(self, state, federation, rng):
        federation.ask(federation.clients, home)
        if federation.round == 2:
            raise self.error
        return state, {}

    def models(self, state):
        return state.delta


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("bug"), KeyboardInterrupt(), InputError("no")], ids=repr
)
def test_no_worker_is_left_after_an_error(error):
    problem = logistic()
    with pytest.raises(type(error)):
        fit(Breaks(error), problem.clients, problem.model, 3, workers=2)
    assert multiprocessing.active_children() == []


def test_closing_can_be_repeated():
    problem = logistic()
    engine = InProcessEngine(problem.clients, problem.model, workers=4)
    engine.close()
    engine.close()
    assert multiprocessing.active_children() == []


SCRIPT = """
import os, torch
from federations import quadratic
from coterie.engines.inprocess import InProcessEngine
problem = quadratic({n: [0.0] for n in "abc"})
engine = InProcessEngine(problem.clients, problem.model, workers=3)
engine._workers._all[0].restart()
print(*(w._process.pid for w in engine._workers._all), flush=True)
input()
"""


def test_workers_end_when_their_parent_is_killed():
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'tests'}"},
    )  # fmt: skip
    try:
        pids = [int(p) for p in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(Path(f"/proc/{p}").exists() for p in pids)
    finally:
        parent.kill()
        parent.wait()
        parent.stdin.close()
        parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(alive(p) for p in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [p for p in pids if alive(p)]


def alive(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False


def test_arguments_are_checked_before_any_process_starts():
    with pytest.raises(
        InputError, match=r"InProcess.workers must be an int > 0; got 0"
    ):
        InProcess(workers=0)
    with pytest.raises(InputError, match="use workers=1 on a GPU"):
        InProcess(workers=2, device="cuda")


@pytest.mark.parametrize("workers", [1, 2])
def test_names_of_clients_may_hold_any_character(workers):
    names = ["a/b", "c\nd", "ü, 北", "e=f", " "]
    problem = quadratic({n: [float(len(n)), 0.0] for n in names})
    found = fit(FedAvg(LOCAL), problem.clients, problem.model, 2, workers=workers)
    assert set(found.weights["*"]) == set(names)


def forecast(method, *, size=10**6, clients=10, workers=1, width=4) -> MemoryForecast:
    layout = Layout((("weight", torch.Size([size])),), (), torch.float32)
    return MemoryForecast(method, layout, clients, clients, workers, width)


def test_the_forecast_of_memory_counts_vectors_by_method_kernel_and_workers():
    sums, kept, every = FedAvg(LOCAL), SCAFFOLD(LOCAL), Median(LOCAL)
    # Three models at the server, those of the replies, and for each process its model and what it trains with.
    assert forecast(sums, width=0).vectors == 3 + 1 + 2
    assert forecast(sums).vectors == 3 + 1 + (1 + 2 + 1)
    assert forecast(sums, width=0, workers=2).vectors == 3 + 2 + 2 * (2 + 2)
    assert forecast(kept).vectors == 3 + 3 + 2 * 10 + 4
    assert forecast(kept, workers=2, width=0).vectors == 3 + 3 * 2 + 4 * 10 + 2 * (
        2 + 2
    )
    assert forecast(every).vectors == 3 + 10 + (1 + 2 + 4)
    assert forecast(every, workers=0).vectors == 3 + 10  # clients are elsewhere
    assert forecast(MeritFed(local=LOCAL)).vectors == 3 + (10 + 2 * 10) + (1 + 2 + 4)
    for clients in (100, 10_000):
        assert forecast(sums, clients=clients).vectors == forecast(sums).vectors
        assert forecast(every, clients=clients).vectors > clients


def test_a_round_that_does_not_fit_into_memory_is_refused_with_the_cure():
    assert forecast(FedAvg(LOCAL), size=1000).check(available=10**9) is None
    held = forecast(Median(LOCAL), clients=1000)
    assert held.check(available=10**10).endswith(
        "1010 model vectors of 1000000 numbers"
    )
    for method, options, available, sentence in (
        (
            Median(LOCAL),
            {"clients": 1000},
            2 * 10**9,
            "4.07 GB: .*, but only 2.00 GB are free; with .run. clients_per_round = 250 it",
        ),
        (
            FedAvg(LOCAL),
            {"workers": 8},
            2 * 10**8,
            "only 0.20 GB are free; with .engine. workers = 1 it takes 0.07 GB",
        ),
        (
            FedAvg(LOCAL),
            {"size": 10**8},
            3 * 10**9,
            'free; with .engine. kernel = "loop" it takes 2.43 GB',
        ),
        (FedAvg(LOCAL), {"size": 10**9}, 3 * 10**9, "free; take a smaller model"),
    ):
        with pytest.raises(RunError, match=sentence):
            forecast(method, **options).check(available)


def test_memory_is_named_from_a_tenth_of_a_gigabyte_on():
    """Beside what stays with a process; six vectors of four bytes a number are held here."""
    for size, is_named in ((4 * 10**6, False), (45 * 10**5, True)):
        said = forecast(FedAvg(LOCAL), size=size, width=0).check(available=None)
        assert (said is not None) == is_named


def test_a_small_run_is_not_refused_whatever_memory_is_free(monkeypatch):
    monkeypatch.setattr("coterie.run.memory_forecast.free_bytes", lambda device: 0)
    problem = logistic()
    assert fit(FedAvg(LOCAL), problem.clients, problem.model, 1).rounds == 1


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("method", [FedAvg(LOCAL), Median(LOCAL)])
def test_each_cure_that_is_named_is_one_with_which_a_round_fits(method, workers):
    """And none that changes less would do: memory is asked for down to what no setting saves."""
    size, clients = 10**7, 64
    usual = {"size": size, "clients": clients, "workers": workers}
    tried = set()
    for share in range(1, 40):
        available = forecast(method, **usual).bytes * (40 - share) // 40
        with pytest.raises(RunError) as error:
            forecast(method, **usual).check(available)
        _, _, cure = str(error.value).partition("free; with ")
        changed = dict(usual)
        if "workers = 1" in cure:
            changed["workers"] = 1
        if 'kernel = "loop"' in cure:
            changed["width"] = 0
        per_round = re.search(r"clients_per_round = (\d+)", cure)
        fits = forecast(method, **changed)
        if per_round:
            fits = dataclasses.replace(fits, per_round=int(per_round[1]))
        if cure:
            assert fits.bytes <= available
            assert cure.endswith(f"it takes {fits.bytes / 1e9:.2f} GB")
        tried.add(cure.partition(" it takes")[0])
    assert len(tried) > 1


def test_an_engine_says_what_the_forecast_needs():
    problem = logistic()
    for workers, kernel in ((1, "auto"), (2, "loop")):
        engine = InProcess(workers=workers, kernel=kernel).open(
            problem.clients, problem.model, "auto"
        )
        found = MemoryForecast.of(FedAvg(LOCAL), engine, 3)
        assert (found.workers, found.per_round, found.clients) == (
            workers,
            3,
            len(problem.clients),
        )
        assert (found.width > 0) == (kernel == "auto")
        engine.close()


def test_a_small_model_of_which_many_vectors_are_held_is_forecast(caplog):
    problem = quadratic(
        {f"c{i:02}": [float(i)] * 60_000 for i in range(12)},
        rows=2,
        dtype=torch.float32,
    )
    anchored = MeritFed(
        ("all",), LOCAL, uploads="anchored", oracle_steps="one", validation="train"
    )
    with caplog.at_level("INFO", logger="coterie"):
        fit(anchored, problem.clients, problem.model, 0)
    assert "model vectors of 60000 numbers" in caplog.text


def test_a_message_of_any_size_fits_a_pipe_that_nobody_reads():
    arena = Arena(1 << 22)
    values = {
        "names": tuple(f"client-{i}" for i in range(10_000)),
        "x": torch.arange(9000.0),
    }
    message = arena.pack(values)
    assert len(message) < 1 << 12
    unpacked = arena.unpack(message)
    assert unpacked["names"] == values["names"]
    assert torch.equal(unpacked["x"], values["x"])
