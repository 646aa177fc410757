"""What the laws of Uniform-IS, p_j-IS and ISFedAvg share: clients with unlike classes, and what each of them must do."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from short_runs import MINI, gradient, rows, run_with_server

from coterie import FedAvg, Local, MeritFed
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.rows import Part
from coterie.config.local import Epochs, LocalSGD
from coterie.config.registry import SAMPLERS
from coterie.run.experiment import Experiment
from federations import (
    SIZES,
    Problem,
    assert_same_bits,
    logistic,
    regression,
    seeded,
    start,
)


def skewed(classes: int = 4, rows: int = 24) -> Problem:
    """Clients a to c with unlike class shares; a lacks class 0."""
    g = torch.Generator().manual_seed(3)
    shares = {"a": [0, 12, 9, 3], "b": [6, 6, 6, 6], "c": [20, 1, 2, 1]}
    clients = []
    for name, counts in shares.items():
        y = torch.repeat_interleave(torch.arange(classes), torch.tensor(counts))
        x = torch.randn(rows, 3, generator=g, dtype=torch.float64)
        x[:, :2] += torch.stack([y == 1, y == 2], 1)
        clients.append(Client(name, Part(x, y)))
    return Problem(
        Clients(clients), seeded(lambda: torch.nn.Linear(3, classes), torch.float64)
    )


def unbalanced() -> Problem:
    """The logistic problem with more rows of class 1, not equally many everywhere; e has no other."""
    problem = logistic()
    clients = []
    for client, ones in zip(problem.clients, (3, 5, 2, 1, 14), strict=True):
        labels = client.train.labels.clone()
        labels[:ones] = 1
        clients.append(Client(client.name, Part(client.train.inputs, labels)))
    return problem.with_clients(Clients(clients))


def assert_is_fedavg_with_its_sampler(method, sampler, make):
    local = replace(MINI, steps=Epochs(2))
    one = run_with_server(method(local, 0.7, 0.5), make())
    other = run_with_server(FedAvg(replace(local, sampler=sampler(0.5)), 0.7), make())
    assert torch.equal(one.x, other.x)
    assert one.history == other.history
    assert not torch.equal(one.x, run_with_server(FedAvg(local, 0.7), make()).x)


def assert_two_rounds_by_hand(method, chances):
    """Rounds recomputed with numpy alone; `chances(problem, name, model)` are the probabilities of a client's rows."""
    problem = unbalanced()
    x = start(problem).numpy()
    for number in (1, 2):
        move = np.zeros(4)
        for name, size in SIZES.items():
            edges = list(accumulate(chances(problem, name, x)))
            inputs, labels = rows(problem, name)
            y = x
            for u in Rng.named(0, number, name, "train").uniform(12).reshape(3, 4):
                picked = [bisect_right(edges, v * edges[-1]) for v in u]
                y = y - 0.2 * gradient(y, inputs[picked], labels[picked])
            move += size / sum(SIZES.values()) * (y - x)
        x = x + 0.7 * move
    np.testing.assert_allclose(
        run_with_server(method(MINI, 0.7), problem, 2).x.numpy(), x, atol=1e-12
    )


def assert_frequencies(sampler, cohort, chance):
    """Rows [count] of the first client of `cohort` come with the probabilities `chance` [count], which are not all alike."""
    times = 20000
    drawn = sampler.rows(cohort, 0, Rng.named(1, "frequencies"), times // 8, 8)
    assert drawn.shape == (times // 8, 8)
    found = (
        torch.bincount(torch.from_numpy(drawn.reshape(-1)), minlength=len(chance))
        / times
    )
    deviation = (chance * (1 - chance) / times).sqrt()
    assert float(((found - chance).abs() / deviation).max()) < 4.5
    assert float((chance - 1 / len(chance)).abs().max()) > 5 * float(
        deviation.max()
    )  # not any row


def class_counts(problem):
    """Rows [n, 4] of each class at each client of `skewed`."""
    return torch.stack(
        [torch.bincount(c.train.labels, minlength=4) for c in problem.clients]
    ).double()


def assert_works_under_other_methods(sampler):
    """On any number of workers, with a difference."""
    local = replace(MINI, sampler=sampler)
    for method in (MeritFed("a", local=local), Local(local, exact=False)):
        one, two = (
            run_with_server(method, skewed()),
            run_with_server(method, skewed(), workers=2),
        )
        assert_same_bits(one, two)
        plain = run_with_server(replace(method, local=MINI), skewed())
        assert not torch.equal(one.models["a"], plain.models["a"])


def assert_goes_through_toml(name):
    """There and back."""
    entry = {
        "name": "fedavg",
        "label": name,
        "local": {"sampler": {"name": name, "sample_ratio": 0.5}},
    }
    tables = {
        "data": {"name": "digits"},
        "model": {"name": "logistic"},
        "methods": [entry],
    }
    read = Experiment.from_tables(tables, "x.toml")
    again = Experiment.from_tables(read.tables(), "y.toml")
    for experiment in (read, again):
        assert experiment.build_method(experiment.methods[0]).local.sampler == SAMPLERS[
            name
        ](sample_ratio=0.5)


def assert_refuses_bad_settings(method, sampler):
    for ratio in (0, 1.5, "all", True):
        for owner in (method, sampler):
            with pytest.raises(
                InputError,
                match=rf"{owner.__name__}\.sample_ratio must be a number in \(0, 1\]; got",
            ):
                owner(sample_ratio=ratio)
    with pytest.raises(
        InputError, match=rf"{method.__name__}\.lr must be a number > 0; got 0"
    ):
        method(lr=0)
    with pytest.raises(
        InputError, match=f"{method.__name__} brings its own; set it under FedAvg"
    ):
        method(LocalSGD(sampler=sampler()))


def assert_needs_classes(method):
    with pytest.raises(
        InputError, match="samples by class; it needs rows with one class each"
    ):
        run_with_server(method(MINI), regression())
