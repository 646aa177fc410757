"""ISFL against gradients of single rows from plain autograd, and one round recomputed apart from the library."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

from coterie.algorithms import ISFL
from coterie.core.cohort import Cohort
from coterie.core.memory import Memory, MemoryView
from coterie.core.rng import Rng
from coterie.core.rows import Client, Clients, Part
from coterie.core.training import LocalSGD, Steps
from coterie.core.workspace import Workspace
from coterie.samplers.isfl import SHARES, compare
from coterie.solvers.waterfill import bound, closed_form, exact
from federations import (
    PROBLEMS,
    SIZES,
    Problem,
    assert_close,
    batch_norm,
    cohort_of,
    dict_inputs,
    fit,
    logistic,
    loss_of,
    model_at,
    seeded,
    start,
)

KINDS = ["logistic", "batch-norm", "dropout", "frozen", "tokens", "dict-inputs"]


def held_rows(problem: Problem) -> Part:
    """Rows of all clients, so that each class is among them."""
    return problem.clients.pooled()


def server_of(problem: Problem) -> Cohort:
    clients = Clients.of_server(held_rows(problem))
    workspace = Workspace(problem.model, "auto", clients[0])
    spent = {"row_gradients": 0, "row_losses": 0}
    return Cohort(("server",), workspace, clients, (0,), MemoryView(Memory(), ("server",)), 0, 1, spent)


def row_gradient(problem: Problem, x: torch.Tensor, inputs: object, label: torch.Tensor) -> torch.Tensor:
    model = model_at(problem, x).eval()
    trained = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss_of(model(inputs), label), trained)
    return torch.cat([g.reshape(-1) for g in grads])


def one_row(part: Part, i: int) -> tuple[object, torch.Tensor]:
    single = part.select(slice(i, i + 1))
    return single.inputs, single.labels


def plain_lipschitz(problem, x, models, classes):
    """Eq. 8 with loops."""
    part, dim = held_rows(problem), sum(p.numel() for p in problem.model.parameters() if p.requires_grad)
    found = torch.zeros(len(models), classes, dtype=torch.float64)
    for i in range(len(part)):
        average = row_gradient(problem, x, *one_row(part, i))
        for k, own in enumerate(models):
            change = (row_gradient(problem, own, *one_row(part, i)) - average).norm()
            c = int(part.labels[i])
            found[k, c] = max(float(found[k, c]), float(change / (own - x)[:dim].norm()))
    return found


def nearby(problem, count=3, seed=0):
    x = start(problem)
    g = torch.Generator().manual_seed(seed)
    return x, x + 0.3 * torch.rand(count, len(x), generator=g, dtype=x.dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_lipschitz_constants_agree_with_plain_autograd_row_by_row(kind):
    problem = PROBLEMS[kind]()
    x, models = nearby(problem)
    server = server_of(problem)
    got = compare(server, x=x, models=models, clients=5)
    expected = plain_lipschitz(problem, x, models, got.held.shape[1])
    assert_close(got.lipschitz[0], expected, 1e-10)
    assert float(expected.std()) > 1e-3
    dim = server.layout.dim
    assert_close(got.distance[0], (models - x)[:, :dim].norm(dim=1))
    assert got.held[0].tolist() == torch.bincount(held_rows(problem).labels).tolist()
    assert server.spent["row_gradients"] == 4 * len(held_rows(problem))
    assert server.workspace.vectorised


@pytest.mark.parametrize("kind", KINDS)
def test_vectorised_gradients_are_those_of_the_loop(kind):
    problem = PROBLEMS[kind]()
    fast, slow = server_of(problem), server_of(problem)
    slow.workspace.vectorised = False
    xs = torch.stack([start(problem), start(problem) + 0.1])
    for a, b in zip(fast.sample_gradients(xs), slow.sample_gradients(xs), strict=True):
        assert a[:2] == b[:2]
        assert torch.equal(a[2], b[2])
        assert_close(a[3], b[3])
        assert a[3].shape == (len(a[2]), fast.layout.dim)


def test_chunks_of_rows_do_not_matter(monkeypatch):
    problem = batch_norm()
    x, models = nearby(problem)
    whole = compare(server_of(problem), x=x, models=models, clients=5)
    monkeypatch.setattr("coterie.core.own_rows.BLOCK", 7 * 2 * server_of(problem).layout.dim)
    pieces = compare(server_of(problem), x=x, models=models, clients=5)
    assert_close(whole.lipschitz, pieces.lipschitz)


class Branches(nn.Module):
    """Looks at a value, which cannot be vectorised."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x):
        return self.out(x) * (2.0 if float(x.detach().sum()) > 0 else 1.0) if len(x) == 1 else self.out(x)


def test_a_model_that_cannot_be_vectorised_goes_row_by_row_and_says_so_once(caplog):
    problem = Problem(logistic().clients, seeded(Branches, torch.float64))
    x, models = nearby(problem)
    server = server_of(problem)
    with caplog.at_level(logging.INFO, logger="coterie"):
        got = compare(server, x=x, models=models, clients=5)
    assert_close(got.lipschitz[0], plain_lipschitz(problem, x, models, 2), 1e-10)
    said = [r.getMessage() for r in caplog.records if "one by one" in r.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("make", [logistic, dict_inputs])
def test_two_rounds_recomputed(make, best):
    problem = make()
    held = held_rows(problem)
    clients = Clients([Client(c.name, c.train) for c in problem.clients])
    alone = Problem(clients, problem.model)
    local = LocalSGD(lr=0.2, steps=Steps(3), batch_size=5)
    run = fit(ISFL(local, exact=best, floor=0.1), clients, problem.model, 2, seed=4, server=held)

    classes = 2 if make is logistic else 3
    counts = {c.name: torch.bincount(c.train.labels, minlength=classes).double() for c in clients}
    p = sum(counts.values()) / sum(SIZES.values())
    x, q = start(alone), {}
    for number in (1, 2):
        models = []
        for c in clients:
            rng, labels = Rng.named(4, number, c.name, "train"), c.train.labels
            share = np.full(len(labels), 1 / len(labels))
            if c.name in q:
                own = torch.where(counts[c.name] > 0, q[c.name], 0.0)
                share = (own / own.sum() / counts[c.name].clamp(min=1))[labels].numpy()
            drawn = np.array([np.flatnonzero(u < np.cumsum(share))[0] for u in rng.uniform(15)]).reshape(3, 5)
            model = model_at(alone, x)
            for batch in drawn:
                part = c.train.select(torch.from_numpy(batch))
                grads = torch.autograd.grad(loss_of(model(part.inputs), part.labels), list(model.parameters()))
                for w, g in zip(model.parameters(), grads, strict=True):
                    w.data -= 0.2 * g
            models.append(torch.cat([w.detach().reshape(-1) for w in model.parameters()]))
        x = sum(SIZES[c.name] * own for c, own in zip(clients, models, strict=True)) / sum(SIZES.values())
        constants = plain_lipschitz(problem, x, models, classes)
        for k, c in enumerate(clients):
            arguments = p, counts[c.name] / counts[c.name].sum(), constants[k], 0.1
            pair = closed_form(*arguments)[0], exact(*arguments)
            q[c.name] = pair[best]
            logged = {key: dict(run.history.select(key, c.name))[number] for key in ("rho", "rho_optimum", "gamma")}
            assert logged["gamma"] == pytest.approx(closed_form(*arguments)[1], abs=1e-9)
            assert logged["rho"] == pytest.approx(float(bound(pair[0], p, constants[k])), rel=1e-9)
            assert logged["rho_optimum"] == pytest.approx(float(bound(pair[1], p, constants[k])), rel=1e-9)
            assert logged["rho_optimum"] <= logged["rho"] * (1 + 1e-12)
            for i in range(classes):
                assert dict(run.history.select(f"q[{i}]", c.name))[number] == pytest.approx(
                    float(q[c.name][i]), abs=1e-9
                )
    assert_close(run.x, x, 1e-9)


def test_the_rows_of_a_client_follow_its_q():
    problem = dict_inputs()
    cohort = cohort_of(problem, "abcde")
    cohort.memory.put(SHARES, torch.tensor([[0.7, 0.2, 0.1]] * 5, dtype=torch.float64))
    cohort.memory.commit()
    labels = problem.clients["c"].train.labels
    drawn = ISFL().sampler.rows(cohort, 2, cohort.rng(2, "train"), 400, 100)
    assert drawn.shape == (400, 100)
    frequencies = torch.bincount(labels[torch.from_numpy(drawn).flatten()], minlength=3) / 40000
    assert_close(frequencies.double(), torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), 0.01)
    inside = np.bincount(drawn.ravel(), minlength=len(labels))[(labels == 0).numpy()] / 40000
    assert np.allclose(inside, 0.7 / (labels == 0).sum(), atol=0.01)
