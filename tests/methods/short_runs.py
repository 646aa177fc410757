"""Short runs for the laws of methods, sums over their histories, and local training written with numpy alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.algorithms.local import train_alone
from coterie.base.clients import Client, Clients
from coterie.base.rng import Rng, batches
from coterie.base.rows import Part
from coterie.cli.main import main
from coterie.config.local import LocalSGD, Schedule, Steps
from coterie.contract.task import Task
from federations import (
    SIZES,
    assert_same_bits,
    cohort_of,
    fit,
    logistic,
    quadratic,
    start,
)

MINI = LocalSGD(lr=0.2, steps=Steps(3), batch_size=4)
FULL = LocalSGD(lr=0.2, steps=Steps(3), batch_size=None)
ONE = LocalSGD(lr=0.2, steps=Steps(1), batch_size=None)
CENTRES = {"a": [1.0, -2.0], "b": [0.0, 4.0], "c": [-3.0, 1.0]}
"""Where the losses of three clients of a `quadratic` problem are least."""


def run(method, problem, rounds=3, **options):
    """A run whose losses are taken in every round. It encodes nothing, which the contract's runs of the method do."""
    options = {
        "merge_validation": False,
        "evaluate": 1,
        "metrics": (),
        "strict_wire": False,
        **options,
    }
    return fit(method, problem.clients, problem.model, rounds, **options)


def trained(method, problem, rounds=3, **options):
    """A run whose losses are taken after its last round."""
    return run(method, problem, rounds, **{"evaluate": rounds, **options})


def run_with_server(method, problem, rounds=3, **options):
    """A run whose server has a copy of all rows."""
    return run(
        method,
        problem,
        rounds,
        **{"server": problem.clients.pool_training_rows(), **options},
    )


def uniform(problem, local, rounds=3, lr=1.0):
    """Uniform averaging of plain local training, from the cohort's own training."""
    x = start(problem)
    dim = cohort_of(problem).layout.dim
    for number in range(1, rounds + 1):
        mean = cohort_of(problem, round=number).train(x, local).mean(0) - x
        x = x + torch.cat([lr * mean[:dim], mean[dim:]])
    return x


def opposed(problem):
    """Clients without held-out rows, where two of five have the labels of the other class."""
    parts = {c.name: c.train for c in problem.clients}
    parts |= {n: Part(parts[n].inputs, 1 - parts[n].labels) for n in "de"}
    return problem.with_clients(Clients([Client(n, part) for n, part in parts.items()]))


# ---- what histories say


def logged(found, metric):
    """Values of a metric by (round, client)."""
    return {(r.round, r.client): r.value for r in found.history if r.metric == metric}


def logged_at(found, round_, metric):
    """Values of a metric in one round, by client."""
    return {
        r.client: r.value
        for r in found.history
        if (r.round, r.metric) == (round_, metric)
    }


def participants(found, round_):
    """Names of the clients that had a weight in a round, sorted."""
    return sorted({c for number, _, c, _ in found.weight_rows if number == round_})


def chosen_by_round(found):
    """Names of the clients that had a weight, by round, once for each model that they gave to."""
    by_round = {}
    for number, _, client, _ in found.weight_rows:
        by_round.setdefault(number, []).append(client)
    return by_round


# ---- what goes wrong


def unplug(monkeypatch, victim):
    """Let one client fail whenever it is asked to train."""
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if (
            "update" in self.kinds.values() or self is train_alone
        ) and victim in cohort.names:
            raise OSError("unplugged")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)


def forget(monkeypatch, victim, round_):
    """Let one client lose its memory before its update in one round."""
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if (
            "update" in self.kinds.values()
            and cohort.round == round_
            and victim in cohort.names
        ):
            cohort.memory._memory.forget([victim])
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)


# ---- logistic regression in numpy

LR, BATCH = 0.3, 4
LOCAL = LocalSGD(lr=LR, steps=Steps(3), batch_size=BATCH)
"""The training of `sgd`."""


def rows(problem, name, part="train"):
    found = problem.clients[name].part(part)
    return found.inputs.numpy(), found.labels.numpy()


def loss(w, x, y):
    z = x @ w[:-1] + w[-1]
    return float(np.mean(np.logaddexp(0, z) - y * z))


def gradient(w, x, y):
    error = 1 / (1 + np.exp(-(x @ w[:-1] + w[-1]))) - y
    return np.append(x.T @ error, error.sum()) / len(y)


def drawn(name, round_, purpose="train", **many):
    """The batches of LOCAL, as row numbers."""
    return list(
        batches(Rng.named(0, round_, name, purpose), SIZES[name], BATCH, **many)
    )


def sgd(w, problem, name, round_, purpose="train", **many):
    x, y = rows(problem, name)
    for chosen in drawn(name, round_, purpose, **many):
        w = w - LR * gradient(w, x[chosen], y[chosen])
    return w


def descent(problem, name, x, local):
    """The update of a client that goes down the loss of all its rows."""
    y = x
    for _ in range(local.steps.count):
        y = y - local.lr * gradient(y, *rows(problem, name))
    return y - x


def between(a, b):
    """The angle between two vectors, in radians."""
    return math.acos(float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)))


# ---- what several methods must do


def assert_follows_the_recursion(method_of, mu, server_lr):
    """Averaging by rows on quadratics, local steps being drawn back to the model of the round by mu."""
    row_counts = {"a": 2, "b": 5, "c": 3}
    problem = quadratic(CENTRES, row_counts)
    method = method_of(
        LocalSGD(lr=Schedule(0.3, (3,), 0.5), steps=Steps(4), batch_size=None)
    )
    x = [0.0, 0.0]
    for round_ in range(1, 5):
        lr = 0.3 if round_ < 3 else 0.15
        new = []
        for j in range(2):
            step = 0.0
            for name, centre in CENTRES.items():
                y = x[j]
                for _ in range(4):
                    y -= lr * (
                        y - centre[j] + mu * (y - x[j])
                    )  # the loss is the mean over 2 entries of (y - centre)^2
                step += row_counts[name] / 10 * (y - x[j])
            new.append(x[j] + server_lr * step)
        x = new
        assert trained(method, problem, round_).x.tolist() == pytest.approx(
            x, rel=1e-12
        )


def assert_resumes(method, folder):
    """A run that is cut and resumed on two workers has the bits of a whole one, and so has a second whole one."""
    problem = logistic()
    options = {"clients_per_round": 2, "evaluate": 4}
    run(method, problem, 2, checkpoint=folder, **options)
    resumed = run(
        method, problem, 4, checkpoint=folder, resume=True, workers=2, **options
    )
    whole = run(method, problem, 4, **options)
    assert all((resumed.models[k] == x).all() for k, x in whole.models.items())
    assert_same_bits(whole, run(method, problem, 4, **options))


def assert_refused_by_the_command(name, setting, sentence, capsys, tmp_path):
    command = [
        "compare",
        "heart-disease",
        "--methods",
        name,
        "--set",
        setting,
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(command) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
