"""Engine ray: actors that are killed or too slow are named and come back, nothing is left behind, and wrong settings end at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from coterie import FedAvg, MaxFL, MeritFed, VaRSeL, task
from coterie.base.errors import InputError, RunError
from coterie.cli import main as cli
from coterie.config.local import LocalSGD, Steps
from coterie.contract.federation import Federation
from coterie.contract.memory import owners
from coterie.contract.wire import PerClient
from coterie.engines.ray_settings import Ray
from federations import (
    SIZES,
    Opening,
    Problem,
    assert_same_bits,
    fit,
    logistic,
    quadratic,
)

ROOT = Path(__file__).parents[2]
LOCAL = LocalSGD(lr=0.3, steps=Steps(2), batch_size=4)
CENTRES = {n: [float(i), -1.0] for i, n in enumerate("abcde")}
# Clients are dealt out in turn, so with two actors c shares its process with a and e.
WITH_C, OTHERS = ("a", "c", "e"), ("b", "d")
ENDED = "its actor ended; it was restarted, and what its clients remembered is lost"

needs_ray = pytest.mark.engines


class Home(NamedTuple):
    process: Tensor
    threads: Tensor


@task
def home(cohort, *, victim: str = "") -> Home:
    if victim in cohort.names:
        os.kill(os.getpid(), signal.SIGKILL)
    n = len(cohort.names)
    return Home(
        torch.full((n,), os.getpid()), torch.full((n,), torch.get_num_threads())
    )


class Count(NamedTuple):
    before: Tensor


@task
def count(cohort, *, sleep: float = 0.0, sleeper: str = "") -> Count:
    """How often a client was asked; one of them may take its time."""
    before = cohort.memory.get("count", torch.tensor(0))
    cohort.memory.put("count", before + 1)
    if sleeper in cohort.names:
        time.sleep(sleep)
    return Count(before)


@pytest.fixture
def federation(ray_cluster) -> Iterator[Federation]:
    """Five clients in two actors."""
    from coterie.engines.ray import RayEngine

    problem = quadratic(CENTRES)
    engine = RayEngine(problem.clients, problem.model, actors=2)
    yield Federation(engine, engine.clients, round=1, strict_wire=True)
    engine.close()


# ---- where clients live


@needs_ray
def test_each_actor_has_one_thread_and_the_rows_of_its_own_clients(federation):
    import ray

    got = federation.ask("abcde", home)
    processes = got.by_client(got.process)
    assert federation.engine.processes() == processes
    assert {processes[n] for n in WITH_C} != {processes[n] for n in OTHERS}
    assert len(set(processes.values())) == 2
    assert os.getpid() not in processes.values()
    assert got.threads.tolist() == [1] * 5
    for host, names in zip(federation.engine._hosts, (WITH_C, OTHERS), strict=True):
        held = ray.get(
            host.handle.__ray_call__.remote(
                lambda actor: (
                    actor._shard.clients.names,
                    len(actor._shard.clients.train.labels),
                )
            )
        )
        assert held == (names, 4 * len(names))


@needs_ray
def test_costs_are_those_of_each_client(federation):
    federation.ask("abcde", count, sleep=0.0)
    costs = federation.session.asks[-1].costs
    assert {c.client for c in costs} == set("abcde")
    assert all(
        c.bytes_down > 0 and c.bytes_up > 0 and c.seconds > 0 and c.failed == ""
        for c in costs
    )


def test_a_subset_has_the_same_rows_and_nobody_elses():
    clients = logistic().clients.merge_validation()
    some = clients.subset(("b", "d"))
    assert some.names == ("b", "d")
    assert (
        len(some.train.labels)
        == clients.sizes("train")["b"] + clients.sizes("train")["d"]
    )
    assert {n: clients.fingerprints()[n] for n in "bd"} == some.fingerprints()
    assert (some.server, some.unseen) == (None, None)
    with pytest.raises(InputError, match="no client 'z'"):
        clients.subset(("z",))


@needs_ray
def test_an_own_optimiser_and_its_kept_state_have_the_bits_of_one_process():
    def make(parameters):
        return torch.optim.Adagrad(parameters, lr=0.1)

    local = LocalSGD(steps=Steps(2), batch_size=4, optimiser=make, keep_state=True)
    problem = logistic()
    here, there = (
        fit(FedAvg(local), problem.clients, problem.model, rounds=2, engine=engine)
        for engine in (None, Ray(actors=2))
    )
    assert_same_bits(here, there)


# ---- killed


@needs_ray
def test_a_killed_actor_is_named_and_replaced_and_the_others_reply(federation):
    before = federation.ask("abcde", home)
    got = federation.ask("abcde", home, need=0.4, victim="c")
    assert got.clients == OTHERS
    assert got.failed == dict.fromkeys(WITH_C, ENDED)
    after = federation.ask("abcde", home, need="all")
    moved = {
        n: int(a) != int(b)
        for n, a, b in zip("abcde", before.process, after.process, strict=True)
    }
    assert moved == {n: n in WITH_C for n in "abcde"}


@needs_ray
def test_clients_of_an_actor_that_died_while_saving_start_anew(federation):
    federation.ask("abcde", count)
    os.kill(federation.engine.processes()["c"], signal.SIGKILL)
    time.sleep(0.2)
    assert owners(federation.engine.save_memory()) == set(OTHERS)
    got = federation.ask("abcde", count, need=0.4)
    assert got.failed == dict.fromkeys(WITH_C, ENDED)
    assert got.before.tolist() == [1, 1]
    assert federation.ask("abcde", count).before.tolist() == [0, 2, 0, 2, 0]


@needs_ray
def test_below_quorum_the_clients_of_a_killed_actor_are_asked_once_more(federation):
    os.kill(federation.engine.processes()["c"], signal.SIGKILL)
    time.sleep(0.2)
    got = federation.ask("abcde", home, need="all")
    assert got.failed == {}
    assert [(r.clients, r.failed) for r in federation.session.asks] == [(5, 3), (3, 0)]


def killing(
    clients: Any, model: Any, *, loss: Any, kill: Callable[[int, int], str]
) -> Any:
    """Engine ray whose actors are killed, by the number of their process, just before certain asks."""
    from coterie.engines.ray import RayEngine

    class Killing(RayEngine):
        counted = (0, 0)

        def ask(self, ask: Any) -> Any:
            number = ask.context.round
            self.counted = (
                number,
                self.counted[1] + 1 if self.counted[0] == number else 0,
            )
            processes = self.processes()
            for process in {processes[v] for v in kill(*self.counted)}:
                with contextlib.suppress(
                    ProcessLookupError
                ):  # killed before, and not asked since
                    os.kill(process, signal.SIGKILL)
            return super().ask(ask)

    return Killing(clients, model, loss=loss)


METHODS = {
    "meritfed": MeritFed(local=LOCAL, oracle="delegated"),
    "varsel": VaRSeL(local=LOCAL, internal=("a", "b")),
    "maxfl": MaxFL(local=LOCAL),
}


def run(method: Any, problem: Problem, **options: Any) -> Any:
    return fit(method, problem.clients, problem.model, 4, evaluate=1, **options)


@needs_ray
@pytest.mark.parametrize(
    ("name", "moment"),
    [("meritfed", 0), ("meritfed", 1), ("varsel", 1), ("varsel", 2), ("maxfl", 1)],
)
def test_a_run_whose_actors_are_all_killed_resumes_to_the_same_bits(
    ray_cluster, tmp_path, name, moment
):
    problem = logistic()

    def dying(clients, model, *, loss):
        return killing(
            clients,
            model,
            loss=loss,
            kill=lambda number, ask: "ab" if number == 3 and ask >= moment else "",
        )

    undisturbed = run(METHODS[name], problem)
    assert sum(r.round == 3 for r in undisturbed.asks) > moment
    with pytest.raises(RunError, match=f"round 3, .*{ENDED}"):
        run(METHODS[name], problem, engine=Opening(dying), checkpoint=tmp_path)
    assert_same_bits(
        run(METHODS[name], problem, engine=Ray(), checkpoint=tmp_path, resume=True),
        undisturbed,
    )


@needs_ray
@pytest.mark.parametrize(
    "method",
    [FedAvg(LOCAL), MeritFed(local=LOCAL, targets=("b", "d"))],
    ids=["fedavg", "meritfed"],
)
def test_a_run_goes_on_without_the_clients_of_a_killed_actor_and_they_come_back(
    ray_cluster, method
):
    problem = logistic()

    def dying(clients, model, *, loss):
        return killing(
            clients,
            model,
            loss=loss,
            kill=lambda number, ask: "b" if (number, ask) == (2, 0) else "",
        )

    found = run(method, problem, engine=Opening(dying))
    assert found.failures.keys() == set(OTHERS)
    assert all("round 2" in why and ENDED in why for why in found.failures.values())
    took_part = {
        r: {c for number, _, c, _ in found.weight_rows if number == r}
        for r in (1, 2, 3, 4)
    }
    assert took_part == {1: set(SIZES), 2: set(WITH_C), 3: set(SIZES), 4: set(SIZES)}


# ---- slow


@needs_ray
def test_a_client_that_takes_too_long_has_failed_and_its_late_work_is_undone(
    federation,
):
    assert federation.ask("abcde", count).before.tolist() == [0] * 5
    saved = federation.engine.save_memory()
    federation.engine.timeout = 1.0
    got = federation.ask("abcde", count, need=0.4, sleep=3.0, sleeper="b")
    assert got.clients == WITH_C
    assert got.failed == dict.fromkeys(
        OTHERS, "it did not answer within 1 s, and is skipped until it is free"
    )
    got = federation.ask("abcde", count, need=0.4)
    assert got.failed == dict.fromkeys(
        OTHERS,
        "it is still busy with an ask that timed out, and is skipped until it is free",
    )
    assert got.before.tolist() == [2] * 3
    assert {
        k: v for k, v in federation.engine.save_memory().items() if k[-1] in OTHERS
    } == {k: v for k, v in saved.items() if k[-1] in OTHERS}
    time.sleep(3.0)
    assert federation.ask("abcde", count, need="all").before.tolist() == [3, 1, 3, 1, 3]


# ---- settings


def test_without_ray_the_sentence_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    problem = logistic()
    with pytest.raises(
        InputError,
        match=r"engine 'ray' needs the package ray: pip install \"coterie\[ray\]\"",
    ):
        fit(FedAvg(LOCAL), problem.clients, problem.model, 2, engine=Ray())
    monkeypatch.chdir(tmp_path)
    assert (
        cli.main(
            [
                "compare",
                "heart-disease",
                "--engine",
                "ray",
                "--seeds",
                "1",
                "--rounds",
                "1",
                "--out",
                "run",
            ]
        )
        == 2
    )
    assert 'pip install "coterie[ray]"' in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"actors": 0}, "Ray.actors must be an int > 0; got 0"),
        ({"timeout": 0}, "Ray.timeout must be a number of seconds > 0; got 0"),
        (
            {"address": 5},
            r"Ray.address must be None \(start one here\) or host:port or auto; got 5",
        ),
        ({"kernel": "fast"}, "Ray.kernel must be auto . loop; got 'fast'"),
    ],
)
def test_wrong_settings_end_at_once(options, sentence):
    with pytest.raises(InputError, match=sentence):
        Ray(**options)


def test_an_engine_is_a_value():
    problem = logistic()
    with pytest.raises(
        InputError, match=r"3 is not an engine; give one such as InProcess\(workers=2\)"
    ):
        fit(FedAvg(LOCAL), problem.clients, problem.model, 2, engine=3)


@needs_ray
def test_a_cluster_that_is_too_small_is_refused(ray_cluster):
    problem = logistic()
    with pytest.raises(
        InputError,
        match="the Ray cluster has 3 CPUs, too few for 5 actors; set actors = 3",
    ):
        fit(FedAvg(LOCAL), problem.clients, problem.model, 2, engine=Ray(actors=5))


COMPARE = (
    "compare",
    "heart-disease",
    "--methods",
    "local,meritfed",
    "--rounds",
    "2",
    "--no-report",
)


def test_settings_on_which_no_number_depends_may_change_on_resume(tmp_path, capsys):
    out = ("--out", str(tmp_path / "run"))
    assert cli.main([*COMPARE, *out, "--seeds", "1"]) == 0
    before = (tmp_path / "run" / "summary.json").read_bytes()
    others = ("--workers", "2")
    assert cli.main([*COMPARE, *out, "--seeds", "1", "--resume", *others]) == 0
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    for wrong, sentence in (
        ("rya", "there is no engine 'rya'; did you mean 'ray'?"),
        ("ray --actors 0", "engine.actors must be an int > 0; got 0"),
        (
            "ray --set engine.timeout=0",
            "engine.timeout must be a number of seconds > 0; got 0",
        ),
        (
            "ray --set engine.address=5",
            "engine.address must be host:port or auto; got 5",
        ),
        (
            "ray --workers 2",
            "[engine]: unknown key 'workers'; allowed: actors, address",
        ),
    ):
        assert cli.main([*COMPARE, "--engine", *wrong.split()]) == 2
        assert sentence in capsys.readouterr().err


@needs_ray
def test_a_command_goes_on_with_another_engine(ray_cluster, tmp_path):
    assert cli.main([*COMPARE, "--out", str(tmp_path / "whole"), "--seeds", "2"]) == 0
    out = ("--out", str(tmp_path / "run"))
    assert cli.main([*COMPARE, *out, "--seeds", "1"]) == 0
    assert (
        cli.main([*COMPARE, *out, "--seeds", "2", "--resume", "--engine", "ray"]) == 0
    )
    for name in ("summary.json", "history.csv", "weights.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()


class Locked:
    """A loss that no pickle can hold."""

    kind = "binary"

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs[:, 0] - labels).square()


@needs_ray
def test_what_cannot_be_sent_is_refused(ray_cluster):
    problem = logistic()
    with pytest.raises(
        InputError,
        match="the model, the loss or the rows cannot be sent to an actor: cannot pickle",
    ):
        fit(
            FedAvg(LOCAL),
            problem.clients,
            problem.model,
            2,
            engine=Ray(),
            loss=Locked(),
        )


@needs_ray
def test_every_kind_of_tensor_travels():
    from coterie.engines.ray_actor import pack, unpack

    values = {
        "bf16": torch.randn(3, 2).to(torch.bfloat16), "half": torch.randn(2).half(), "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3), "flags": torch.tensor([True, False]), "bytes": torch.arange(4, dtype=torch.uint8),
        "nan": torch.tensor([float("nan")]), "turned": torch.arange(6).reshape(2, 3).T, "each": PerClient(torch.ones(2, 2)),
        "n": 3, "word": "ü\n", "none": None, "local": LOCAL, "names": ("a", "b"),
    }  # fmt: skip
    got = unpack(pack(values))
    assert list(got) == list(values)
    for name, value in values.items():
        if isinstance(value, Tensor):
            assert got[name].dtype == value.dtype
            torch.testing.assert_close(got[name], value, rtol=0, atol=0, equal_nan=True)
        elif name != "each":
            assert got[name] == value
    assert torch.equal(got["each"].tensor, values["each"].tensor)
    got["turned"].zero_()
    assert values["turned"].tolist() != got["turned"].tolist()  # nothing live


# ---- clusters of their own


SCRIPT = """
import json, subprocess, sys
from typing import NamedTuple
import torch
from torch import Tensor, nn
import coterie as ct
from federations import logistic

class Reply(NamedTuple):
    delta: ct.Update


@ct.task
def trained(cohort, *, x: Tensor, local: ct.LocalSGD) -> Reply:
    return Reply(helper(cohort.train(x, local), x))

def helper(after, before):
    return after - before

class State(NamedTuple):
    x: Tensor

class Mine(ct.Method):
    local = ct.LocalSGD(lr=0.3, steps=ct.Steps(2), batch_size=4)
    def init(self, x, federation): return State(x)
    def round(self, state, federation, rng):
        got = federation.ask(federation.clients, trained, x=state.x, local=self.local)
        if federation.round == 1 and federation.engine.__class__.__name__ == "RayEngine":
            listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout
            sys.stderr.write(listening)
        return State(state.x + got.delta.mean(0)), {}
    def models(self, state): return state.x

class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        nn.init.constant_(self.weight, 0.5); nn.init.zeros_(self.bias)

clients = logistic(torch.float32).clients
one = ct.fit(Mine(), clients, Net(), 3)
other = ct.fit(Mine(), clients, Net(), 3, engine=ct.Ray(**json.loads(sys.argv[1])))
print(torch.equal(one.x, other.x), other.failures)
import ray
print(ray.is_initialized())
"""


def start_script(
    tmp_path: Path, options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    path = f"{ROOT / 'src'}:{ROOT / 'tests'}"
    return subprocess.run(
        [sys.executable, "-W", "error", "script.py", options], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


def session_processes() -> set[int]:
    """Processes of Ray on this machine."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if b"raylet" in words or b"gcs_server" in words or words.startswith(b"ray::"):
            found.add(int(process))
    return found


@needs_ray
def test_a_script_starts_a_cluster_on_loopback_and_leaves_nothing(tmp_path):
    before = session_processes()
    done = start_script(tmp_path, "{}")
    assert done.stdout == "True {}\nFalse\n", done.stderr
    listening = [
        line.split()[3]
        for line in done.stderr.splitlines()
        if "ray" in line or "gcs_server" in line or "python" in line
    ]
    assert listening
    assert [a for a in listening if "127.0.0.1" not in a] == []
    deadline = time.monotonic() + 10
    while session_processes() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert session_processes() - before == set()


NODE = """
from ray._private import services
services.get_node_ip_address = lambda address=None: "127.0.0.1"
from ray.scripts.scripts import main
main()
"""
"""`ray start`, bound to 127.0.0.1: by itself it would replace that address by one that others can reach."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def two_nodes(tmp_path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a cluster of two nodes with one CPU each, and the environment that lets a process in."""
    pytest.importorskip(
        "ray",
        reason="engine ray is not installed: pip install 'coterie[ray]', or make test-engines",
    )
    address = f"127.0.0.1:{free_port()}"
    token = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.urandom(16).hex(),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    path = f"{ROOT / 'src'}:{ROOT / 'tests'}"
    environment = (
        {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        | token
        | {"PYTHONPATH": path}
    )
    common = [
        sys.executable,
        "-c",
        NODE,
        "start",
        "--node-ip-address=127.0.0.1",
        "--num-cpus=1",
        "--block",
    ]
    head = [
        "--head",
        f"--port={address.rpartition(':')[2]}",
        "--include-dashboard=false",
    ]
    nodes = []
    try:
        for number, words in enumerate((head, [f"--address={address}"])):
            said = tmp_path / f"node-{number}.log"
            with open(said, "w") as log:
                nodes.append(
                    subprocess.Popen(
                        [*common, *words], env=environment, stdout=log, stderr=log
                    )
                )
            deadline = time.monotonic() + 60
            while (
                "--block" not in said.read_text()
                and nodes[-1].poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.2)
            assert "--block" in said.read_text(), said.read_text()
        yield address, {**token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait(60)


@needs_ray
def test_two_nodes_with_a_token_give_the_same_bits_and_a_wrong_token_is_refused(
    tmp_path, two_nodes
):
    address, token = two_nodes
    done = start_script(tmp_path, f'{{"actors": 2, "address": "{address}"}}', **token)
    assert done.stdout == "True {}\nFalse\n", done.stderr
    alone = start_script(tmp_path, f'{{"actors": 3, "address": "{address}"}}', **token)
    assert "the Ray cluster has 2 CPUs, too few for 3 actors" in alone.stderr
    stranger = start_script(
        tmp_path,
        f'{{"address": "{address}"}}',
        **{**token, "RAY_AUTH_TOKEN": os.urandom(16).hex()},
    )
    assert stranger.returncode != 0
    assert (
        f"there is no Ray cluster at '{address}' that lets this process in"
        in stranger.stderr
    )
