"""MeritFed with Adam at the server, against torch.optim.Adam, autograd and finite differences."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from coterie.algorithms import MeritFed
from coterie.core.rng import Rng
from coterie.core.training import LocalSGD, Steps
from federations import federation_of, fit, logistic, loss_of, model_at, quadratic, start, vector_of

CENTRES = {"a": [1.0, -2.0], "b": [0.8, -1.5], "c": [-3.0, 1.0], "d": [0.9, 4.0]}
LOCAL = LocalSGD(lr=0.1, steps=Steps(2), batch_size=None)
LR, STEP, STEPS = 0.3, 2.0, 4


def adam_step(g, m, v, t, *, lr, betas, eps):
    """Algorithm 1 of Kingma and Ba."""
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
    return -lr * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)) ** 0.5 + eps), m, v


def by_hand(target, rounds, betas, eps):
    """MeritFedA on f_k(x) = mean((x - centre_k)^2): autograd through the formula, torch.optim.Adam for the step itself."""
    centres = torch.tensor(list(CENTRES.values()), dtype=torch.float64)
    goal = torch.tensor(CENTRES[target], dtype=torch.float64)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=LR, betas=betas, eps=eps)
    m = v = torch.zeros(2, dtype=torch.float64)
    w = torch.full((4,), 0.25, dtype=torch.float64)
    for t in range(1, rounds + 1):
        y = x.detach().expand(4, 2)
        for _ in range(2):
            y = y - 0.1 * (y - centres)
        deltas = y - x.detach()
        for _ in range(STEPS):
            free = w.clone().requires_grad_(True)
            change, *_ = adam_step(-(free @ deltas), m, v, t, lr=LR, betas=betas, eps=eps)
            slope = torch.autograd.grad((x.detach() + change - goal).square().mean(), free)[0]
            w = w * torch.exp(-STEP * slope)
            w = w / w.sum()
        g = -(w @ deltas)
        _, m, v = adam_step(g, m, v, t, lr=LR, betas=betas, eps=eps)
        x.grad = g
        optimiser.step()
    return x.detach(), w


@pytest.mark.parametrize("settings", [{}, {"betas": (0.5, 0.8), "eps": 0.3}], ids=str)
@pytest.mark.parametrize("oracle", ["gradient", "delegated"])
def test_a_run_with_adam_follows_torch(settings, oracle):
    method = MeritFed("all", LOCAL, LR, STEPS, STEP, oracle, validation="train", server_optimiser="adam", **settings)
    problem = quadratic(CENTRES)
    for rounds in (1, 3, 6):
        found = fit(method, problem.clients, problem.model, rounds, merge_validation=False)
        for target in ("a", "d"):
            x, w = by_hand(target, rounds, method.betas, method.eps)
            np.testing.assert_allclose(found.models[target], x, rtol=1e-10)
            np.testing.assert_allclose(list(found.weights[target].values()), w, rtol=1e-9)
    assert max(found.weights["d"].values()) > 0.4  # the descent had something to follow


def test_the_descent_follows_finite_differences_through_the_step():
    """One small step of descent in the third round, on a logistic loss, where the moments are those of earlier rounds."""
    problem, target, tiny = logistic(), "b", 1e-4
    method = MeritFed(target, LOCAL, 0.2, 1, tiny, validation="train", server_optimiser="adam", eps=1e-3)
    rows = problem.clients[target].train
    with federation_of(problem) as federation:
        everyone = federation.everyone
        state = method.init(start(problem), federation)
        x = start(problem).requires_grad_(True)
        optimiser = torch.optim.Adam([x], lr=0.2, eps=1e-3)
        for number in (1, 2, 3):
            before = state.weights[0]
            deltas = torch.stack([trained(problem, n, state.x[0]) - state.x[0] for n in everyone])
            state, _ = method.round(state, federation.view(everyone, number, 0), Rng.named(0, "server", number))
            if number < 3:
                x.grad = -(state.weights[0] @ deltas)
                optimiser.step()
                np.testing.assert_allclose(state.x[0], x.detach(), rtol=1e-10)

    def phi(weights):
        moved = x.detach().clone().requires_grad_(True)
        other = torch.optim.Adam([moved], lr=0.2, eps=1e-3)
        other.load_state_dict(copy.deepcopy(optimiser.state_dict()))
        moved.grad = -(weights @ deltas)
        other.step()
        model = model_at(problem, moved.detach())
        return float(loss_of(model(rows.inputs), rows.labels).detach())

    h = 1e-4
    slope = np.array([(phi(before + h * e) - phi(before - h * e)) / (2 * h) for e in torch.eye(5, dtype=torch.float64)])
    found = -np.log((state.weights[0] / before).numpy()) / tiny
    np.testing.assert_allclose(found - found.mean(), slope - slope.mean(), rtol=1e-4, atol=1e-7)
    assert np.abs(slope - slope.mean()).max() > 1e-3


def trained(problem, name, x):
    """Two full-batch steps of plain SGD with torch."""
    model, part = model_at(problem, x), problem.clients[name].train
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        loss_of(model(part.inputs), part.labels).backward()
        optimiser.step()
    return vector_of(model)
