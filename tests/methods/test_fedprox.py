"""What must hold of FedProx."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from short_runs import MINI, assert_follows_the_recursion, trained

import coterie
from coterie import FedAvg, FedProx
from coterie.compute.kernels import Batched
from coterie.config.local import Steps
from federations import (
    batch_norm,
    dropout,
    logistic,
    start,
)

MUTANTS = {
    "fedprox": [
        ("algorithms/fedprox.py", "Quadratic(mu) if mu else None", "None"),
        (
            "algorithms/fedprox.py",
            "x=state.x,",
            "weights=state.x.new_ones(len(federation.clients)), x=state.x,",
        ),
        (
            "algorithms/fedprox.py",
            "rate_of(self.lr, federation.round), federation.dim)",
            "1.0, federation.dim)",
        ),
    ],
}


@pytest.mark.in_turn(but="0.5-batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_fedprox_without_a_penalty_is_fedavg_bit_by_bit(make, lr):
    local = replace(MINI, momentum=0.5, weight_decay=0.01)
    prox, avg = (
        trained(FedProx(local, mu=0.0, lr=lr), make()),
        trained(FedAvg(local, lr), make()),
    )
    assert torch.equal(prox.x, avg.x)
    assert (prox.history, prox.weights, prox.summary) == (
        avg.history,
        avg.weights,
        avg.summary,
    )
    assert not torch.equal(trained(FedProx(local, mu=0.1, lr=lr), make()).x, avg.x)


def test_a_larger_penalty_keeps_updates_shorter():
    problem = logistic()
    local = replace(MINI, steps=Steps(30), lr=0.1)
    far = [
        float((trained(FedProx(local, mu), problem, 1).x - start(problem)).norm())
        for mu in (0.0, 0.3, 3.0)
    ]
    assert far[0] > 1.2 * far[1] > 1.2**2 * far[2] > 0


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_averaging_follows_its_recursion_on_quadratics(server_lr):
    assert_follows_the_recursion(
        lambda local: FedProx(local, 0.8, server_lr), 0.8, server_lr
    )


# ---- how far one reads to follow it


def statements(frame) -> int:
    """How many statements the function of a frame has, its docstring aside; none for an expression such as a comprehension."""
    tree = ast.parse(Path(frame.f_code.co_filename).read_text())
    functions = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef) and n.name == frame.f_code.co_name
    ]
    body = next(
        (f.body for f in functions if f.lineno <= frame.f_lineno <= f.end_lineno), []
    )
    return len(
        [
            s
            for s in body
            if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        ]
    )


def test_five_files_are_opened_to_follow_a_round_to_its_local_steps(monkeypatch):
    """A file of which all functions on the way have two statements at most hands the call on, and needs not be opened."""
    opened, package, train = set(), Path(coterie.__file__).parent, Batched.train

    def note(self, *arguments, **options):
        stack = inspect.stack()
        rounds = [at for at, frame in enumerate(stack) if frame.function == "_round"]
        for frame in stack[1 : rounds[0] + 1] if rounds else ():
            path = Path(frame.filename)
            if path.is_relative_to(package) and statements(frame.frame) > 2:
                opened.add(str(path.relative_to(package).with_suffix("")))
        return train(self, *arguments, **options)

    monkeypatch.setattr(Batched, "train", note)
    trained(FedProx(MINI), logistic(), 1)
    assert opened == {
        "run/loop", "algorithms/fedprox", "contract/exchange", "compute/cohort", "compute/local_training",
    }  # fmt: skip
