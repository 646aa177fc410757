"""What must hold of FedProto, and rounds recomputed with numpy alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import (
    BATCH,
    FULL,
    LOCAL,
    LR,
    MINI,
    assert_resumes,
    forget,
    participants,
    run,
)
from torch import nn

from coterie import FedProto, Local
from coterie.algorithms.fedproto import prototype_update
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng, batches
from coterie.base.rows import Part
from coterie.contract.task import Task
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    cohort_of,
    dropout,
    logistic,
    regression,
    start,
)

MUTANTS = {
    "fedproto": [
        (
            "algorithms/fedproto.py",
            "return lam * (squared",
            "return (squared",
        ),
        ("algorithms/fedproto.py", "prototypes[labels]", "prototypes[0 * labels]"),
        ("algorithms/fedproto.py", "squared * known[labels]", "squared"),
        ("algorithms/fedproto.py", "rows[:, None] * prototypes", "prototypes"),
        ("algorithms/fedproto.py", "cohort.features(models)", "cohort.features(start)"),
        (
            "algorithms/fedproto.py",
            "state.known | has_rows.to(state.known.device)",
            "has_rows",
        ),
        ("algorithms/fedproto.py", ".clamp(min=1)", ""),
        ("algorithms/fedproto.py", "/ divisors[:, None]", "* divisors[:, None]"),
    ],
}


def smooth():
    """Three classes, an MLP [4, 8, 3] with tanh, and no random layer; its features are 8 numbers."""
    problem = dropout()
    problem.model[2].p = 0.0
    return problem


def having(problem, classes):
    """The same problem, where some clients have rows of these classes alone; without held-out rows."""
    clients = []
    for client in problem.clients:
        part = client.train
        kept = torch.isin(
            part.labels, torch.tensor(classes.get(client.name, (0, 1, 2)))
        )
        clients.append(Client(client.name, Part(part.inputs[kept], part.labels[kept])))
    return problem.with_clients(Clients(clients))


def layers(x):
    """Weights and biases of the MLP."""
    w1, b1, w2, b2 = np.split(x, [32, 40, 64])
    return w1.reshape(8, 4), b1, w2.reshape(3, 8), b2


def features(x, inputs):
    w1, b1, _, _ = layers(x)
    return np.tanh(inputs @ w1.T + b1)


def gradient(x, inputs, labels, prototypes, known, lam):
    """Of cross-entropy plus lam times the mean squared distance to prototypes, by hand."""
    _, _, w2, b2 = layers(x)
    z = features(x, inputs)
    logits = z @ w2.T + b2
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = (p / p.sum(1, keepdims=True) - np.eye(3)[labels]) / len(labels)
    pull = 2 * lam * (z - prototypes[labels]) * known[labels, None] / len(labels)
    back = (error @ w2 + pull) * (1 - z**2)
    parts = (back.T @ inputs, back.sum(0), error.T @ z, error.sum(0))
    return np.concatenate([part.ravel() for part in parts])


def by_hand(problem, found, rounds, lam):
    """The own models, the prototypes and which are known, after training in batches of `LOCAL`."""
    own = {}
    x = start(problem).numpy()
    prototypes, known = np.zeros((3, 8)), np.zeros(3, dtype=bool)
    for number in range(1, rounds + 1):
        sums, counts = np.zeros((3, 8)), np.zeros(3)
        for name in participants(found, number):
            part = problem.clients[name].train
            inputs, labels = part.inputs.numpy(), part.labels.numpy()
            y = own.get(name, x)
            stream = Rng.named(0, number, name, "train")
            for at in batches(stream, len(labels), BATCH, steps=3):
                y = y - LR * gradient(y, inputs[at], labels[at], prototypes, known, lam)
            own[name] = y
            for label, z in zip(labels, features(y, inputs), strict=True):
                sums[label] += z
                counts[label] += 1
        has_rows = counts > 0
        prototypes = prototypes.copy()
        prototypes[has_rows] = sums[has_rows] / counts[has_rows, None]
        known = known | has_rows
    return own, prototypes, known


@pytest.mark.in_turn(but=("classes0", "classes4"))
@pytest.mark.parametrize("classes", [
    {},
    {"a": (0, 1), "b": (2,), "e": (1,)},  # clients that lack classes, and two of one class
    dict.fromkeys("abcde", (0, 1)),  # a class that nobody has
    dict.fromkeys("bcde", (0, 1)),  # one that only a has, in rounds 1 and 4
    dict.fromkeys("acde", (0, 1)),  # one that only b has, in round 3
])  # fmt: skip
def test_rounds_written_in_numpy(classes):
    problem = having(smooth(), classes)
    found = run(FedProto(LOCAL, lam=0.7), problem, 4, clients_per_round=2)
    assert [participants(found, n) for n in range(1, 5)] == [
        ["a", "c"],
        ["d", "e"],
        ["b", "e"],
        ["a", "c"],
    ]
    own, prototypes, known = by_hand(problem, found, 4, 0.7)
    np.testing.assert_allclose(
        found.state.prototypes.numpy(), prototypes, rtol=1e-10, atol=1e-12
    )
    assert found.state.known.tolist() == known.tolist()
    assert set(found.models) == set(SIZES)
    for name, x in found.models.items():
        expected = own.get(name, start(problem).numpy())
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-10, atol=1e-12)
    plain = run(FedProto(LOCAL, lam=0.0), problem, 4, clients_per_round=2)
    assert (found.models["a"] - plain.models["a"]).norm() > 1e-3


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_without_lam_it_is_training_alone_bit_by_bit(make):
    local = replace(MINI, momentum=0.5, weight_decay=0.01)
    found = run(FedProto(local, lam=0.0), make())
    alone = run(Local(local, exact=False), make())
    assert all(torch.equal(x, alone.models[name]) for name, x in found.models.items())


def test_a_linear_model_learns_nothing_from_others():
    found, alone = (
        run(FedProto(MINI, lam=3.0), logistic()),
        run(Local(MINI, exact=False), logistic()),
    )
    for name, x in found.models.items():
        assert_close(x, alone.models[name])


@pytest.mark.parametrize("classes", [{}, {"a": (0,), "c": (0, 2)}])
def test_prototypes_are_means_over_all_rows_of_a_class(classes):
    """Of inputs, which are the features of a linear model: whoever has the rows."""
    problem = having(smooth(), classes)
    problem = problem._replace(model=nn.Linear(4, 3, dtype=torch.float64))
    found = run(FedProto(FULL), problem, 2)
    parts = [problem.clients[name].train for name in SIZES]
    inputs = torch.cat([part.inputs for part in parts])
    labels = torch.cat([part.labels for part in parts])
    for c in range(3):
        assert_close(found.state.prototypes[c], inputs[labels == c].mean(0))


def test_a_class_without_a_participant_keeps_its_prototype():
    """Only b has class 2, and it does not take part in every round."""
    rare = having(smooth(), dict.fromkeys("acde", (0, 1)))
    states = [run(FedProto(MINI), rare, n, clients_per_round=2) for n in range(1, 7)]
    kept = 0
    for number, (before, after) in enumerate(itertools.pairwise(states), 2):
        if "b" in participants(after, number) or not before.state.known[2]:
            continue
        kept += 1
        stayed = before.state.prototypes == after.state.prototypes
        assert stayed.all(dim=1).tolist() == [False, False, True]
    assert kept


def test_a_client_of_one_class_tells_one_mean():
    problem = having(smooth(), {"a": (1,)})
    x = start(problem)
    known = torch.zeros(3, dtype=torch.bool)
    none = x.new_zeros(3, 8)
    reply = prototype_update(
        cohort_of(problem), x=x, prototypes=none, known=known, local=MINI, lam=1.0
    )
    steps = reply.delta[0].view(3, 8)
    rows = len(problem.clients["a"].train)
    assert reply.counts[0].tolist() == [0, rows, 0]
    assert (steps != 0).any(dim=1).tolist() == [False, True, False]


def test_a_lost_own_model_begins_anew_and_is_named(monkeypatch):
    undisturbed = run(FedProto(MINI), smooth(), 3)
    assert not undisturbed.failures
    forget(monkeypatch, "c", 3)
    found = run(FedProto(MINI), smooth(), 3)
    assert "its own model was lost" in found.failures["c"]
    assert not torch.equal(found.models["c"], undisturbed.models["c"])
    assert torch.equal(found.models["a"], undisturbed.models["a"])


def test_a_client_that_says_it_has_no_rows_spoils_no_prototype(monkeypatch):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if self is prototype_update and "c" in cohort.names:
            reply.counts[cohort.names.index("c")] = 0
        return reply

    monkeypatch.setattr(Task, "__call__", call)
    found = run(FedProto(MINI), smooth(), 2)
    assert found.state.known.all()
    assert torch.isfinite(found.state.prototypes).all()


@pytest.mark.in_turn
def test_resumed_and_repeated_runs_agree(tmp_path):
    assert_resumes(FedProto(MINI), tmp_path)


def called_on_a_sequence():
    """A model whose last linear layer takes two vectors of each row."""
    problem = smooth()
    model = nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.Linear(2, 3), nn.Flatten(), nn.AvgPool1d(2)
    )
    return problem._replace(model=model.double())


def ending_with_a_norm():
    problem = smooth()
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    return problem._replace(model=model.double())


@pytest.mark.parametrize(("make", "sentence"), [
    (regression, "fedproto takes rows with one class each as their labels"),
    (ending_with_a_norm, r"must be torch.nn.Linear and be trained; end it with one"),
    (called_on_a_sequence, "has 2 inputs and was called with 4 numbers of a row"),
])  # fmt: skip
def test_what_has_no_prototypes_is_refused_with_the_reason(make, sentence):
    with pytest.raises(InputError, match=sentence):
        run(FedProto(MINI), make())


def test_bad_settings_are_refused_with_the_reason():
    with pytest.raises(InputError, match=r"FedProto.lam must be a number >= 0; got -1"):
        FedProto(lam=-1)
