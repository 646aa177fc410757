"""A run goes on only in the world in which it was begun: code, rows, arithmetic; what has changed is named, and may be accepted."""

from __future__ import annotations

import collections
import functools
import json
import random
import shutil
import types
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.compute.tasks import own_update
from coterie.config.run import RunSettings
from coterie.contract.method import Method
from coterie.run.evaluation import name_metrics
from coterie.run.provenance import changes, describe_run
from federations import logistic

OWN = """
import helper
import torch
from dataclasses import dataclass
from typing import NamedTuple
import coterie as ct
from coterie.compute.tasks import own_update
from coterie.contract.method import Method

SPEED = 0.5

class State(NamedTuple):
    x: torch.Tensor

@dataclass(frozen=True)
class Mine(Method):
    local: ct.LocalSGD = ct.LocalSGD()
    def init(self, x, federation):
        return State(x)
    def round(self, state, federation, rng):
        replies = federation.ask(federation.clients, own_update, x=state.x, local=self.local)
        return State(state.x + helper.scaled(SPEED) * replies.delta.mean(dim=0)), {}
    def models(self, state):
        return state.x

class Net(torch.nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.layer = torch.nn.Linear(shape[0], outputs)
    def forward(self, rows):
        return self.layer(rows) * 1.0

def loss(outputs, labels):
    return torch.nn.functional.softplus(outputs[:, 0] * (1 - 2.0 * labels))
loss.kind = "binary"

def margin(outputs, labels, kind):
    return float(outputs.mean())
"""
COMMAND = (
    "compare", "heart-disease", "--methods", "own.py:Mine,local", "--rounds", "4", "--seeds", "1", "--no-report", "--out", "run",
    "--model", "own.py:Net", "--loss", "own.py:loss", "--metrics", "accuracy,own.py:margin",
)  # fmt: skip
KILL = {
    "target": "coterie.contract.federation.Federation.ask",
    "when": "after",
    "match": "round 3 ",
    "at": 1,
}
CHANGES = {
    "the method": (
        "own.py",
        "replies.delta.mean(dim=0)",
        "replies.delta.sum(dim=0)",
        "class Mine",
    ),
    "a constant": ("own.py", "SPEED = 0.5", "SPEED = 0.6", "SPEED"),
    "the model's forward": ("own.py", "* 1.0", "* 2.0", "class Net"),
    "the loss": ("own.py", "2.0 * labels", "3.0 * labels", "function loss"),
    "a metric": ("own.py", "outputs.mean()", "outputs.sum()", "function margin"),
    "what the file imports": (
        "helper.py",
        "return speed",
        "return speed / 2",
        "function scaled",
    ),
}


@pytest.fixture(scope="module")
def killed_once(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(OWN)
    (folder / "helper.py").write_text("def scaled(speed):\n    return speed\n")
    assert driver(folder, *COMMAND, arm=KILL).status == -9
    return folder


@pytest.fixture
def killed(killed_once, tmp_path):
    """A folder with a run that was killed in its first pair, and the files that it imports."""
    return shutil.copytree(killed_once, tmp_path / "killed")


@pytest.mark.in_turn(but=("the method", "what the file imports"))
@pytest.mark.parametrize("what", CHANGES)
def test_changed_code_is_refused_by_name_or_accepted(driver, killed, what):
    file, old, new, part = CHANGES[what]
    text = (killed / file).read_text()
    (killed / file).write_text(text.replace(old, new))
    refused = driver(killed, *COMMAND, "--resume")
    assert refused.status == 2
    assert refused.err == (
        f"coterie: run/checkpoint/mine-0: {file} has changed since round 2 ({part}); go back, or continue with --accept-change {file}, "
        f"in Python RunSettings(accept_change=('{file}',))\n"
    )
    accepted = driver(killed, *COMMAND, "--resume", "--accept-change", file)
    assert accepted.status == 0, accepted.err
    note = f"mine-0: {file} has changed since round 2 ({part}); its user accepted that"
    assert note in json.loads((killed / "run" / "notes.json").read_text())
    assert (
        note.split(": ")[1].split(";")[0]
        in driver(killed, "verify", "run", "--explain").out
    )
    assert (
        driver(killed, *COMMAND, "--resume").status == 0
    )  # the record knows what was accepted
    (killed / file).write_text(text)
    back = driver(killed, *COMMAND, "--resume")
    assert back.status == 2
    assert f"{file} has changed since it was complete ({part})" in back.err


def test_comments_line_ends_and_the_folder_may_change(driver, killed):
    text = (killed / "own.py").read_text()
    (killed / "own.py").write_bytes(
        ("# a comment\n" + text).replace("\n", "\r\n").encode()
    )
    moved = killed.rename(killed.parent / "moved")
    resumed = driver(moved, *COMMAND, "--resume")
    assert resumed.status == 0, resumed.err
    shown = driver(moved, "verify", "run", "--explain")
    assert shown.status == 0
    assert "class Mine" in shown.out
    assert "instructions" in shown.out


def test_finalise_compares_its_world_with_that_of_the_run(driver, killed, tmp_path):
    assert driver(killed, *COMMAND, "--resume").status == 0
    (killed / "helper.py").write_text("def scaled(speed):\n    return speed / 2\n")
    command = (
        "finalise",
        "run",
        "--client",
        "hungary",
        "--method",
        "mine",
        "--out",
        "final",
    )
    refused = driver(killed, *command)
    assert refused.status == 2
    assert "helper.py has changed since the run (function scaled)" in refused.err
    assert not (killed / "final").exists()
    assert driver(killed, *command, "--accept-change", "helper.py").status == 0


def test_a_pair_that_is_a_copy_of_another_is_refused_by_its_name(driver, killed):
    assert driver(killed, *COMMAND, "--resume").status == 0
    checkpoint = killed / "run" / "checkpoint"
    shutil.copytree(checkpoint / "mine-0", checkpoint / "mine-1")
    refused = driver(killed, *COMMAND, "--resume", "--seeds", "2")
    assert refused.status == 2
    assert "run/checkpoint/mine-1 is a copy of mine-0; delete it" in refused.err
    assert "belongs to another run" in driver(killed, "verify", "run").out


def test_other_arithmetic_is_refused_by_name_or_accepted(tmp_path):
    def fitted(**settings):
        return ct.fit(
            "fedavg",
            logistic(torch.float32).clients,
            ct.models.Logistic(),
            2,
            checkpoint=tmp_path,
            settings=RunSettings(**settings),
        )

    fitted()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(
            ct.InputError,
            match=r"float32 matmul precision has changed since round 2 \(highest, now high\)",
        ):
            fitted(resume=True)
        fitted(resume=True, accept_change=("float32 matmul precision",))
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("method", "package"),
    [
        (ct.FedAvg(), "numpy"),
        (ct.VaRSeL(internal=("a", "b"), preselect="smallest"), "clarabel"),
        (ct.VaRSeL(internal=("a", "b"), preselect="smallest"), "scipy"),
    ],
)
def test_another_version_of_a_package_that_computes_is_named(
    tmp_path, monkeypatch, method, package
):
    from coterie.run import provenance

    def fitted(**settings):
        clients = logistic(torch.float32).clients
        return ct.fit(
            method,
            clients,
            ct.models.Logistic(),
            2,
            checkpoint=tmp_path,
            settings=RunSettings(**settings),
        )

    fitted()
    installed = provenance.installed_version
    monkeypatch.setattr(
        provenance,
        "installed_version",
        lambda name: "0.1" if name == package else installed(name),
    )
    with pytest.raises(
        ct.InputError, match=rf"{package} has changed since round 2 \(.*, now 0\.1\)"
    ):
        fitted(resume=True)
    fitted(resume=True, accept_change=(package,))


# ---- from Python


LOCAL = ct.LocalSGD()


class State(NamedTuple):
    x: torch.Tensor


def method_of(factor, helper=lambda value: value):
    """A method that is no file's, whose code and closure may differ."""

    @dataclass(frozen=True)
    class Mine(Method):
        local: ct.LocalSGD = LOCAL

        def init(self, x, federation):
            return State(x)

        def round(self, state, federation, rng):
            replies = federation.ask(
                federation.clients, own_update, x=state.x, local=self.local
            )
            return State(state.x + helper(factor) * replies.delta.mean(dim=0)), {}

        def models(self, state):
            return state.x

    return Mine()


def net(factor):
    class Net(nn.Module):
        def __init__(self, shape, outputs):
            super().__init__()
            self.layer = nn.Linear(shape[0], outputs)

        def forward(self, rows):
            return self.layer(rows) * factor

    return Net


def loss(factor):
    def of_rows(outputs, labels):
        return nn.functional.softplus(outputs[:, 0] * (1 - factor * labels))

    of_rows.kind = "binary"
    return of_rows


PARTS = {
    "method": lambda: {"method": method_of(0.7)},
    "what the method calls": lambda: {
        "method": method_of(0.5, lambda value: value + 1)
    },
    "model": lambda: {"model": net(2.0)},
    "loss": lambda: {"loss": loss(3.0)},
}


def fit(
    folder,
    *,
    method=None,
    model=None,
    loss_of_rows=None,
    resume=False,
    rounds=2,
    clients=None,
):
    return ct.fit(
        method or method_of(0.5), clients or logistic(torch.float32).clients, model or net(1.0), rounds, checkpoint=folder,
        settings=RunSettings(loss=loss_of_rows or loss(2.0), resume=resume),
    )  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_changed_objects_of_a_program_are_refused(tmp_path, part):
    fit(tmp_path)
    fit(tmp_path, resume=True, rounds=3)
    other = PARTS[part]()
    other["loss_of_rows"] = other.pop("loss", None)
    with pytest.raises(
        ct.InputError,
        match=r"test_provenance\.py has changed since round 3 \((class|function) .*; go back, or",
    ):
        fit(tmp_path, resume=True, rounds=4, **other)


def test_other_rows_of_a_client_or_of_the_server_are_refused(tmp_path):
    def clients(first=0.0, server=0.0):
        rows = {name: (torch.randn(30, 3, generator=torch.Generator().manual_seed(i)), torch.arange(30) % 2)
                for i, name in enumerate(("north", "south"))}  # fmt: skip
        rows["north"][0][0, 0] += first
        return ct.data.from_tensors(
            rows, seed=0, server=(torch.ones(8, 3) + server, torch.arange(8) % 2)
        )

    method = ct.MeritFed(validation="server")
    fit(tmp_path, method=method, clients=clients())
    with pytest.raises(
        ct.InputError, match="the data of the server has changed since round 2; go back"
    ):
        fit(tmp_path, method=method, clients=clients(server=1.0), resume=True, rounds=4)
    with pytest.raises(
        ct.InputError,
        match=r"the data of clients has changed since round 2 \(north\); go back, .* --accept-change data",
    ):
        fit(tmp_path, method=method, clients=clients(first=1.0), resume=True, rounds=4)
    fit(tmp_path, method=method, clients=clients(), resume=True, rounds=4)


def test_another_set_of_clients_cannot_be_accepted(tmp_path):
    """A state has a model for each client, so that a run with another client would fail in the middle."""
    rows = {
        name: (torch.randn(30, 3), torch.arange(30) % 2)
        for name in ("north", "south", "west")
    }

    def fit_local(names, **settings):
        clients = ct.data.from_tensors({name: rows[name] for name in names}, seed=0)
        return ct.fit(
            "local",
            clients,
            ct.models.Logistic(),
            2,
            checkpoint=tmp_path,
            settings=RunSettings(**settings),
        )

    fit_local(("north", "south"))
    with pytest.raises(
        ct.InputError,
        match=r"the set of clients has changed since round 2 \(west\).*resume with the same",
    ):
        fit_local(rows, resume=True, accept_change=("data", "clients"))


def test_a_switch_of_torch_is_named_before_the_model(tmp_path):
    def fit_logistic(**settings):
        clients = ct.data.from_tensors(
            {"a": (torch.ones(30, 3), torch.arange(30) % 2)}, seed=0
        )
        return ct.fit(
            "fedavg",
            clients,
            ct.models.Logistic(),
            1,
            checkpoint=tmp_path,
            settings=RunSettings(**settings),
        )

    fit_logistic()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(
            ct.InputError, match="default dtype has changed since round 1"
        ):
            fit_logistic(resume=True)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_cannot_be_read_is_named_in_the_record():
    problem = logistic()
    lock = types.SimpleNamespace(numbers=(number for number in [1.0]))
    tree = describe_run(
        method_of(0.5, lambda value: next(lock.numbers)),
        problem.clients,
        None,
        1,
        0,
        RunSettings(),
    )
    (name,) = tree["code"]["not covered"]
    assert name.endswith("<lambda>.lock.numbers")
    assert tree["code"]["not covered"][name] == "generator"


# ---- whatever an object holds


def plain_loss(outputs, labels):
    return nn.functional.softplus(outputs[:, 0] * (1 - 2.0 * labels))


class Weighted:
    def __init__(self, weight):
        self.weight = torch.tensor(weight)

    def __call__(self, outputs, labels):
        return float(self.weight) * plain_loss(outputs, labels)

    def of_rows(self, outputs, labels):
        return self(outputs, labels)


class Slotted:
    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, inputs, rng):
        return inputs * self.weight


def cached(weight):
    @functools.lru_cache
    def factor():
        return weight

    return lambda outputs, labels: factor() * plain_loss(outputs, labels)


def with_attribute(weight):
    def of_rows(outputs, labels):
        return of_rows.weight * plain_loss(outputs, labels)

    of_rows.weight = weight
    return of_rows


def with_class(weight):
    class Meta(type):
        def __call__(cls):
            return weight

    class Factor(metaclass=Meta):
        pass

    return lambda outputs, labels: Factor() * plain_loss(outputs, labels)


def with_lazy_property(weight):
    class Factor:
        @functools.cached_property
        def value(self):
            return weight

        twice = functools.partialmethod(lambda self, factor: factor, 2 * weight)

    return lambda outputs, labels: Factor().value * plain_loss(outputs, labels)


def dispatched(weight):
    @functools.singledispatch
    def factor(outputs):
        return weight

    return lambda outputs, labels: factor(outputs) * plain_loss(outputs, labels)


def with_box(box):
    return lambda outputs, labels: box.pop() * plain_loss(outputs, labels)


def layer(change):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(3, 1)
    change(module)
    return module


def shared(value):
    for _ in range(60):
        value = [value, value]
    return value


def deep(value):
    for _ in range(5000):
        value = [value]
    return value


def cyclic(value):
    box = [value]
    box.append(box)
    return box


LOSSES = {
    "an object": Weighted,
    "a method of an object": lambda weight: Weighted(weight).of_rows,
    "a cache": cached,
    "an attribute": with_attribute,
    "a metaclass": with_class,
    "a lazy property": with_lazy_property,
    "dispatch by type": dispatched,
    "a namespace": lambda weight: with_box(types.SimpleNamespace(weight=weight)),
    "a queue": lambda weight: with_box(collections.deque([weight])),
    "a default": lambda weight: with_box(collections.defaultdict(lambda: weight)),
    "a generator of numbers": lambda weight: with_box(random.Random(weight)),
    "a number of torch": lambda weight: with_box(
        [torch.Generator().manual_seed(int(weight))]
    ),
    "one list many times": lambda weight: with_box(shared(weight)),
    "a list that holds itself": lambda weight: with_box(cyclic(weight)),
}
MODULES = {
    "a tensor": lambda weight: layer(
        lambda module: setattr(module, "weights", torch.tensor(weight))
    ),
    "a buffer that is not saved": lambda weight: layer(
        lambda module: module.register_buffer(
            "weights", torch.tensor(weight), persistent=False
        )
    ),
    "a table": lambda weight: layer(
        lambda module: setattr(module, "weights", {"a": [weight]})
    ),
    "an array": lambda weight: layer(
        lambda module: setattr(module, "weights", np.full(9, weight))
    ),
    "an object": lambda weight: layer(
        lambda module: setattr(module, "weights", types.SimpleNamespace(a=weight))
    ),
    "a hook": lambda weight: layer(
        lambda module: module.register_forward_hook(
            lambda module, inputs, outputs: weight * outputs
        )
    ),
}


def world(*, loss="auto", module=None, clients=None, metrics=("accuracy",)):
    clients = clients or logistic(torch.float32).clients
    settings = RunSettings(loss=loss, metrics=name_metrics(metrics))
    return describe_run(
        ct.FedAvg(), clients, module or layer(lambda module: None), 1, 0, settings
    )


def assert_differs(of):
    assert of(1.0) == of(1.0)
    assert list(changes(of(1.0), of(2.0)))
    assert "not covered" not in of(1.0)["code"]


@pytest.mark.parametrize("what", LOSSES)
def test_whatever_a_loss_holds_is_in_the_record(what):
    assert_differs(lambda weight: world(loss=LOSSES[what](weight)))


@pytest.mark.parametrize("what", MODULES)
def test_whatever_a_model_holds_is_in_the_record(what):
    assert_differs(lambda weight: world(module=MODULES[what](weight)))


def test_what_changes_rows_and_what_measures_models_is_in_the_record():
    assert_differs(
        lambda weight: world(
            clients=logistic(torch.float32).clients.with_transform(Slotted(weight))
        )
    )
    assert_differs(
        lambda weight: world(metrics={"weighed": lambda outputs, labels, kind: weight})
    )
    assert_differs(lambda weight: world(metrics={"weighed": Weighted(weight)}))


def test_what_is_too_deep_to_be_read_is_named():
    assert world(loss=with_box(deep(1.0)))["code"]["not covered"]
