"""What must hold of methods whose layers stay with clients, and rounds by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from short_runs import MINI, forget, trained

import coterie as ct
from coterie import FedAvg, FedBABU, FedBN, FedPer, FedRep
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.layers import (
    last_layers,
    personal_entries,
    shared_entries,
    shared_layout,
)
from coterie.base.rows import Part
from coterie.base.vector import Layout
from coterie.config.local import LocalSGD, Steps
from coterie.config.registry import METHODS
from coterie.run.personalisation import tunable
from federations import batch_norm, seeded

WHOLE = LocalSGD(lr=0.25, steps=Steps(1), batch_size=None)

MUTANTS = {
    "fedper": [
        ("compute/personal.py", "kept.or_else(x[self.own])", "x[self.own]"),
        ("algorithms/personal_layers.py", "models = cohort.train(start, local)", "models = start"),
    ],
    "fedrep": [
        ("algorithms/personal_layers.py", "models = cohort.train(tuned, local, moving=is_shared)", "models = tuned"),
        ("algorithms/personal_layers.py", "cohort.train(tuned, local, moving=is_shared)", "cohort.train(tuned, local)"),
        ("algorithms/personal_layers.py", "train(start, first, moving=~is_shared)", "train(start, first, moving=is_shared)"),
    ],
    "fedbabu": [
        ("algorithms/personal_layers.py", "cohort.updates(start, local, moving=is_shared)", "cohort.updates(start, local)"),
        ("algorithms/personal_layers.py", "if not tune_steps:", "if tune_steps:"),
    ],
    "fedbn": [
        ("base/layers.py", "for name, is_batch_norm in layout.norms if", "for name, is_batch_norm in () if"),
        ("base/layers.py", "if is_batch_norm or norms", "if not is_batch_norm or norms"),
        ("base/vector.py", "order.pop(layer, None)", "pass"),
        ("base/vector.py", "return (*(layer for layer in registered if layer not in order), *order)", "return tuple(registered)"),
    ],
}  # fmt: skip


def lines(offsets=(1.0, -1.0), counts=(30, 10)):
    """Clients a and b with y = w u + b: weights 1 and 2, inputs +1 and -1 equally often."""
    rows = {}
    for name, slope, offset, count in zip(
        "ab", (1.0, 2.0), offsets, counts, strict=True
    ):
        inputs = torch.tensor([[1.0], [-1.0]]).repeat(count // 2, 1)
        rows[name] = {
            "train": (inputs, slope * inputs[:, 0] + offset),
            "test": (inputs, slope * inputs[:, 0] + offset),
        }
    return ct.data.from_tensors(rows, task="regression")


def line(weight=0.0, bias=0.0):
    module = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(module.weight, weight)
    torch.nn.init.constant_(module.bias, bias)
    return module


def test_a_personal_bias_is_each_clients_own_and_the_weight_is_shared():
    run = ct.fit(
        FedPer(LocalSGD(lr=0.1, steps=Steps(1), batch_size=None), personal=("bias",)),
        lines(),
        line(),
        60,
    )
    assert run.models["a"].tolist() == pytest.approx(
        [1.25, 1.0], abs=1e-4
    )  # (30 * 1 + 10 * 2) / 40, and its own
    assert run.models["b"].tolist() == pytest.approx([1.25, -1.0], abs=1e-4)


class Product(torch.nn.Module):
    """Predicts head * body of each row."""

    def __init__(self):
        super().__init__()
        self.body, self.head = (
            torch.nn.Linear(1, 1, bias=False),
            torch.nn.Linear(1, 1, bias=False),
        )
        for layer in (self.body, self.head):
            torch.nn.init.constant_(layer.weight, 1.0)

    def forward(self, inputs):
        return self.head(self.body(inputs))


@pytest.mark.parametrize(
    ("method", "head", "body"),
    [
        (FedPer(WHOLE), 1.5, 1.5),
        (FedRep(WHOLE, head_steps=1), 1.5, 1.375),
        (FedRep(WHOLE, head_steps=0), 1.0, 1.5),
    ],
)
def test_a_round_by_hand(method, head, body):
    # The loss is (head * body - 2)^2, here one half of it a row, so a rate of 1/4 on its gradient 2 (head * body - 2).
    clients = ct.data.from_tensors(
        {"a": (torch.ones(10, 1), torch.full((10,), 2.0))}, task="regression"
    )
    run = ct.fit(method, clients, Product(), 1)
    assert run.models["a"].tolist() == pytest.approx([body, head])
    assert run.models["*"].tolist() == pytest.approx(
        [body, 1.0]
    )  # the server never sees a head


RATE, NUMBERS = 0.3, {"a": 24, "b": 12}
HEAD = np.arange(11) // 2 == 2
HEAD[6] = (
    True  # weights [2] and bias of the linear layer behind scale, shift [2 each] and, last, statistics [2 each] of the norm
)
NORM = ~HEAD


def normalised(inputs):
    return (inputs - inputs.mean(0)) / np.sqrt(inputs.var(0) + 1e-5)


def loss_at(v, inputs, labels):
    logits = (normalised(inputs) * v[:2] + v[2:4]) @ v[4:6] + v[6]
    return np.mean(np.logaddexp(0, logits) - labels * logits)


def steps_of(v, count, moving, inputs, labels):
    """Steps on all rows by central differences; what does not move stays, statistics too."""
    for _ in range(count):
        new, ends = v.copy(), 1e-6 * np.eye(11)[:7]
        new[:7] -= (
            RATE
            * np.array(
                [
                    loss_at(v + e, inputs, labels) - loss_at(v - e, inputs, labels)
                    for e in ends
                ]
            )
            / 2e-6
        )
        new[7:9] = 0.9 * v[7:9] + 0.1 * inputs.mean(0)
        new[9:] = 0.9 * v[9:] + 0.1 * inputs.var(0, ddof=1)
        v = np.where(moving, new, v)
    return v


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu", "fedbn"])
def test_rounds_with_a_norm_written_in_numpy(name):
    draw = torch.Generator().manual_seed(0)
    rows = {
        n: torch.randn(count, 2, generator=draw, dtype=torch.float64) + ord(n) - 97
        for n, count in NUMBERS.items()
    }
    labels = {n: (x[:, 0] > x[:, 1]).long() for n, x in rows.items()}
    model = seeded(
        lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)),
        torch.float64,
    )
    local = LocalSGD(lr=RATE, steps=Steps(2), batch_size=None)
    options = {"fedrep": {"head_steps": 3}, "fedbabu": {"tune_steps": 4}}.get(name, {})
    clients = Clients([Client(n, Part(rows[n], labels[n])) for n in NUMBERS])
    found = ct.fit(METHODS[name](local=local, **options), clients, model, 3)
    x = np.concatenate(
        [
            [1, 1, 0, 0],
            model[1].weight.detach()[0],
            model[1].bias.detach(),
            [0, 0, 1, 1],
        ]
    )
    personal, own, everything = (
        NORM if name == "fedbn" else HEAD,
        {},
        np.ones(11, dtype=bool),
    )
    data = {n: (rows[n].numpy(), labels[n].numpy()) for n in NUMBERS}
    for _ in range(3):
        total = np.zeros(11)
        for n, count in NUMBERS.items():
            start = np.where(personal, own.get(n, x), x)
            if name == "fedrep":
                trained_head = steps_of(start, 3, personal, *data[n])
                v = steps_of(trained_head, 2, ~personal, *data[n])
            else:
                v = steps_of(
                    start, 2, ~personal if name == "fedbabu" else everything, *data[n]
                )
            own[n] = x if name == "fedbabu" else v
            total += count / sum(NUMBERS.values()) * (v - start)
        x = np.where(personal, x, x + total)
    for n in NUMBERS:
        expected = np.where(personal, own[n], x)
        if name == "fedbabu":
            expected = steps_of(x, 4, everything, *data[n])
        np.testing.assert_allclose(
            found.models[n].numpy(), expected, rtol=1e-7, atol=1e-9
        )


def test_without_steps_on_the_head_it_stays():
    run = ct.fit(
        FedRep(MINI, head_steps=0, personal=("bias",)), lines(), line(bias=0.5), 3
    )
    assert {float(x[1]) for x in run.models.values()} == {0.5}
    assert run.x[0] != 0.0


def test_the_body_below_a_fixed_head_is_fedavg_of_a_model_with_that_head():
    found = ct.fit(
        FedBABU(MINI, personal=("bias",), tune_steps=0), lines(), line(bias=0.3), 4
    )
    frozen = line(bias=0.3)
    frozen.bias.requires_grad_(False)
    average = ct.fit(FedAvg(MINI), lines(), frozen, 4)
    assert float(found.x[0]) == pytest.approx(float(average.x[0]), abs=1e-7)
    assert float(found.x[1]) == pytest.approx(0.3)


def test_each_client_tunes_the_whole_model_before_it_uses_it():
    run = ct.fit(
        FedBABU(LocalSGD(lr=0.1, steps=Steps(2)), personal=("bias",), tune_steps=60),
        lines(),
        line(),
        10,
    )
    assert run.models["a"].tolist() == pytest.approx([1.0, 1.0], abs=1e-3)
    assert run.models["b"].tolist() == pytest.approx([2.0, -1.0], abs=1e-3)


def test_statistics_stay_with_each_client():
    model = torch.nn.Sequential(
        torch.nn.BatchNorm1d(1, momentum=0.1), torch.nn.Linear(1, 2)
    )
    means = {"a": 5.0, "b": -3.0}
    clients = ct.data.from_tensors(
        {k: (torch.full((20, 1), m), torch.arange(20) % 2) for k, m in means.items()}
    )
    run = ct.fit(FedBN(WHOLE), clients, model, 1)
    for name, mean in means.items():
        assert run.state_dict(name)["0.running_mean"].item() == pytest.approx(
            0.1 * mean
        )
    assert run.state_dict()["0.running_mean"].item() == 0.0
    assert torch.equal(run.state_dict("a")["1.weight"], run.state_dict("b")["1.weight"])


def test_only_the_shared_entries_travel():
    problem = batch_norm()
    found = trained(FedBN(MINI), problem, 2)
    layout = Layout.of(problem.model)
    shared = shared_layout(layout, "norm", "batch")
    (up,) = {a.bytes_up for a in found.asks if "shared_update" in a.task}
    assert up == shared.size * layout.dtype.itemsize + 8  # and the number of rows
    assert shared.size < layout.size


class HeadFirst(torch.nn.Module):
    """Registers its head before its body, and one layer that it never uses; counts its calls."""

    def __init__(self):
        super().__init__()
        self.head, self.body, self.spare = (
            torch.nn.Linear(2, 1),
            torch.nn.Linear(2, 2),
            torch.nn.Linear(2, 2),
        )
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs):
        self.calls = self.calls + 1
        self.seen += 1
        return self.head(self.body(self.body(inputs).relu()))


class ByRows(HeadFirst):
    """Its way depends on the rows, so that nobody can trace it."""

    def forward(self, inputs):
        return self.head(inputs) if inputs.sum() > 0 else self.head(self.body(inputs))


class Twice(HeadFirst):
    """Uses its body first, and last."""

    def forward(self, inputs):
        return self.body(self.head(self.body(inputs)).expand(-1, 2))


class Tied(HeadFirst):
    """Takes the parameters of its head itself, and uses its body last."""

    def forward(self, inputs):
        return self.body(
            torch.nn.functional.linear(inputs, self.head.weight, self.head.bias).expand(
                -1, 2
            )
        )


@pytest.mark.parametrize(
    ("make", "order"),
    [
        (HeadFirst, ("spare", "body", "head")),
        (ByRows, ("head", "body", "spare")),
        (Tied, ("spare", "head", "body")),
        (Twice, ("spare", "head", "body")),
        (
            lambda: torch.nn.Sequential(
                torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 1))
            ),
            ("0", "1.0"),
        ),
    ],
)
def test_layers_have_the_order_of_the_forward_pass(make, order):
    model = make()
    layout = Layout.of(model)
    assert layout.layers == order
    own = set(personal_entries(layout, "head", "batch").tolist())
    assert (
        own
        == set(last_layers(layout, 1).tolist())
        == set(tunable(layout, "last").nonzero().flatten().tolist())
    )
    assert getattr(model, "calls", 0) == 0
    assert float(getattr(model, "seen", torch.zeros(1))) == 0


def test_a_head_that_is_registered_first_stays_at_its_client():
    run = ct.fit(
        FedPer(MINI), "heart-disease", lambda shape, outputs: Wide(shape[0], outputs), 1
    )
    models = [run.state_dict(name) for name in ("cleveland", "hungary")]
    assert torch.equal(models[0]["body.weight"], models[1]["body.weight"])
    assert not torch.equal(models[0]["head.weight"], models[1]["head.weight"])


class Wide(torch.nn.Module):
    """A head, registered first, on two features of all columns."""

    def __init__(self, columns, outputs):
        super().__init__()
        self.head, self.body = torch.nn.Linear(2, outputs), torch.nn.Linear(columns, 2)

    def forward(self, inputs):
        return self.head(self.body(inputs).relu())


def test_buffers_go_with_their_layer_and_norms_are_found_by_type():
    model = torch.nn.Sequential()
    model.add_module("downsample", torch.nn.BatchNorm1d(3))
    model.add_module("plain", torch.nn.Linear(3, 3))
    model.add_module("scaled", torch.nn.LayerNorm(3))
    model.add_module("top", torch.nn.Linear(3, 2))
    layout = Layout.of(model)

    def names(*about):
        part = shared_layout(layout, *about)
        return [name for name, _ in (*part.parameters, *part.buffers)]

    assert names("norm", "batch") == [
        "plain.weight",
        "plain.bias",
        "scaled.weight",
        "scaled.bias",
        "top.weight",
        "top.bias",
    ]
    assert names("norm", "all") == [
        "plain.weight",
        "plain.bias",
        "top.weight",
        "top.bias",
    ]
    assert names("head", "batch")[-1] == "downsample.running_var"
    assert "top.weight" not in names("head", "batch")
    assert len(shared_entries(layout, ("downsample", "top.*"), "batch")) == 12 + 6


def test_a_client_that_lost_its_layers_begins_anew_and_is_named(monkeypatch):
    problem, method = batch_norm(), FedBN(MINI)
    whole = trained(method, problem, 3)
    forget(monkeypatch, "b", 3)
    lost = trained(method, problem, 3)
    assert not torch.equal(whole.x, lost.x)
    assert "its personal layers were lost, so it begins anew" in lost.failures["b"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "fedper"], "each client would train alone, as in local"),
        (["--methods", "fedbn"], "all of it would be shared, as in fedavg"),
        (
            ["--methods", "fedper", "--set", 'fedper.personal=["nothing"]'],
            "all of it would be shared, as in fedavg",
        ),
        (["--methods", "fedper", "--set", "fedper.personal=body"], "personal"),
    ],
)
def test_what_is_all_personal_or_all_shared_is_refused(arguments, sentence, capsys):
    from coterie.cli.main import main

    assert (
        main(
            [
                "compare",
                "heart-disease",
                "--rounds",
                "1",
                "--seeds",
                "1",
                "--folds",
                "0",
                *arguments,
            ]
        )
        == 2
    )
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_bad_number_of_steps_is_refused():
    with pytest.raises(InputError, match="head_steps"):
        FedRep(head_steps=-1)
