"""Local steps by `vmap`: those of the loop, the same bits whoever shares them, and as many calls for one client as for ten."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from coterie import FedAvg, FedProx
from coterie.compute.mapped import Mapped
from coterie.config.local import Epochs, LocalSGD, Schedule, Steps
from coterie.data import from_tensors
from coterie.engines.inprocess import InProcess
from federations import Problem, assert_close, assert_same_bits, fit, seeded
from oracles.test_local_steps import Attentive, Launches

SIZES = {"a": 12, "b": 5, "c": 23, "d": 12, "e": 1}
VMAP = InProcess(kernel="vmap")


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3),
    )  # fmt: skip


def problem(make=cnn, dtype=torch.float64, sizes=SIZES, classes=3) -> Problem:
    draw = torch.Generator().manual_seed(3)
    rows = {}
    for name, count in sizes.items():
        inputs = torch.randn(count, 1, 8, 8, generator=draw, dtype=dtype)
        rows[name] = inputs, torch.arange(count) % classes
    split = {"parts": {"train": 1.0}}
    return Problem(from_tensors(rows, split=split), seeded(make, dtype))


def trained(method, given, rounds, engine):
    return fit(method, given.clients, given.model, rounds, engine=engine)


LOCALS = {
    "steps": LocalSGD(lr=0.1, steps=Steps(4), batch_size=5),
    "epochs": LocalSGD(lr=0.1, steps=Epochs(2), batch_size=5),
    "decay": LocalSGD(lr=0.1, steps=Steps(3), batch_size=5, weight_decay=0.1),
    "schedule": LocalSGD(lr=Schedule(0.2, at=(1,)), steps=Steps(3), batch_size=5),
}


@pytest.mark.in_turn(but=("FedAvg-epochs", "FedProx-decay"))
@pytest.mark.parametrize("name", LOCALS)
@pytest.mark.parametrize("method", [FedAvg, FedProx])
def test_they_are_the_steps_of_the_loop(name, method):
    given, local = problem(), LOCALS[name]
    loop = trained(method(local), given, 3, engine=InProcess(kernel="loop"))
    found = trained(method(local), given, 3, engine=VMAP)
    assert_close(found.models["*"], loop.models["*"])


def test_a_client_has_the_same_bits_whoever_shares_its_steps():
    given = problem(dtype=torch.float32)
    engine = VMAP.open(given.clients, given.model, "auto")
    assert isinstance(engine._shard.workspace.mapped, Mapped)
    engine.close()
    runs = [
        trained(
            FedAvg(LOCALS["epochs"]),
            given,
            2,
            engine=InProcess(workers=n, kernel="vmap"),
        )
        for n in (1, 2, 5)
    ]
    assert_same_bits(runs[0], runs[1])
    assert_same_bits(runs[0], runs[2])


def launches_of_a_step(given: Problem, names) -> int:
    from coterie.compute.tasks import local_update
    from coterie.contract.federation import Federation

    counts = []
    for steps in (3, 4):
        engine = VMAP.open(given.clients, given.model, "auto")
        local = LocalSGD(lr=0.1, steps=Steps(steps), batch_size=4)
        ask = {"x": engine.x, "local": local}
        with Launches() as launches:
            Federation(engine, engine.clients).ask(names, local_update, **ask)
        counts.append(launches.count)
        engine.close()
    return counts[1] - counts[0]


@pytest.mark.in_turn
def test_a_step_launches_as_much_for_one_client_as_for_ten():
    names = tuple(f"c{i}" for i in range(10))
    given = problem(dtype=torch.float32, sizes=dict.fromkeys(names, 8))
    found = {count: launches_of_a_step(given, names[:count]) for count in (1, 3, 10)}
    assert len(set(found.values())) == 1
    assert found[10] <= 60


class Branches(nn.Module):
    """A model whose path depends on the values of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.head(x.flatten(1))
        return self.head(x.flatten(1)) * 1.0


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Dropout(0.5))


# Of attention on a CPU torch has no rule, and warns that it repeats it client by client.
@pytest.mark.parametrize("make", [Branches, with_norm, with_dropout, Attentive])
def test_what_vmap_cannot_do_the_loop_does(make):
    given = problem(make, sizes={"a": 12, "b": 9}, classes=2)
    local = LOCALS["steps"]
    engine = VMAP.open(given.clients, given.model, "auto")
    assert engine._shard.workspace.mapped is None
    engine.close()
    loop = trained(FedAvg(local), given, 2, engine=InProcess(kernel="loop"))
    assert_same_bits(trained(FedAvg(local), given, 2, engine=VMAP), loop)


def test_the_reason_is_logged(caplog):
    given = problem(Branches, sizes={"a": 12})
    with caplog.at_level(logging.INFO, "coterie"):
        VMAP.open(given.clients, given.model, "auto").close()
    assert "the loop trains, as vmap does not" in caplog.text
