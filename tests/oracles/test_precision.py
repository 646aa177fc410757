"""Steps whose products are of 16 bits: near those of float32, the same bits in any company, and nothing else is rounded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.errors import InputError
from federations import assert_same_bits, logistic, seeded

LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(3), batch_size=8)
NETS = {
    "perceptron": lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 2),
    ),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2)),
        nn.TransformerEncoderLayer(2, 1, 8, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(6, 2),
    ),
}


def clients() -> ct.Clients:
    draw = torch.Generator().manual_seed(0)
    rows = {}
    for name in "abc":
        inputs = torch.randn(40, 6, generator=draw)
        rows[name] = (inputs, (inputs[:, 0] > 0).long())
    return ct.data.from_tensors(rows)


def run(net, precision: str, workers: int = 1) -> ct.Run:
    engine = ct.InProcess(precision=precision, kernel="loop", workers=workers)
    return ct.fit(ct.Local(LOCAL, exact=False), clients(), net, 4, engine=engine)


@pytest.mark.in_turn(but="perceptron")
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_models_are_near_those_of_float32_and_the_same_with_any_workers(make):
    net = seeded(make, torch.float32)
    exact, rounded, again = (
        run(net, "float32"),
        run(net, "bf16"),
        run(net, "bf16", workers=2),
    )
    assert_same_bits(rounded, again)
    start = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    for name, model in exact.models.items():
        moved = (model - start).norm()
        assert rounded.models[name].dtype == torch.float32
        assert 0 < (rounded.models[name] - model).norm() < 0.1 * moved


def test_no_kernel_trains_in_its_place():
    given = logistic()
    net = nn.Linear(given.clients[0].train.inputs.shape[1], 1)
    fits = [
        ct.fit(
            ct.FedAvg(LOCAL),
            given.clients,
            net,
            2,
            engine=ct.InProcess(precision="bf16", kernel=kernel),
        )
        for kernel in ("auto", "loop")
    ]
    assert_same_bits(*fits)


def test_a_model_of_another_type_is_refused():
    given = logistic()
    net = nn.Linear(given.clients[0].train.inputs.shape[1], 1).double()
    with pytest.raises(InputError, match=r"models of float32, and this one has"):
        ct.fit(
            ct.FedAvg(LOCAL),
            given.clients,
            net,
            1,
            engine=ct.InProcess(precision="bf16"),
        )
