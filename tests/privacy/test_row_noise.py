"""Steps whose sum of clipped row gradients has noise: the sum in three ways, its limits, its noise, and what is refused."""

from __future__ import annotations

import math
import statistics
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import coterie as ct
from coterie.compute.cohort import Shard
from coterie.compute.row_gradients import clipped_sums
from coterie.compute.row_noise import to_grid
from coterie.compute.tasks import own_update
from coterie.compute.workspace import Workspace
from coterie.contract.wire import Ask, Context

WHERE = Context(0, 1, 1, 1)

MODELS = {
    "linear": lambda: nn.Linear(5, 1),
    "classes": lambda: nn.Linear(5, 3),
    "deep": lambda: nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4, bias=False), nn.Linear(4, 1)
    ),
}


def client_of(rows, outputs, seed):
    draw = torch.Generator().manual_seed(seed)
    inputs = 3 * torch.randn(rows, 5, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, max(2, outputs), (rows,), generator=draw)
    return inputs, labels


def workspace_of(model, inputs, labels, kernel):
    clients = ct.data.from_tensors([(inputs, labels)])
    return Workspace(model, "auto", clients[0], kernel=kernel)


def by_loop(workspace, inputs, labels, bound):
    """One row at a time, by autograd."""
    total = torch.zeros_like(workspace.head)
    for row in range(len(labels)):
        one = workspace.gradients(inputs[row : row + 1], labels[row : row + 1])
        gradient = torch.cat([part.flatten() for part in one])
        share = 1.0 if bound is None else min(1.0, bound / float(gradient.norm()))
        total += share * gradient
    return total


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.integers(1, 12),
    st.sampled_from([None, 1e-3, 0.5, 2.0, 100.0]),
    st.integers(0, 1000),
)
def test_kernel_vmap_and_loop_give_one_sum(name, rows, bound, seed):
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    inputs, labels = client_of(max(2, rows), {"classes": 3}.get(name, 1), seed)
    kernel = workspace_of(model, inputs, labels, "auto")
    vmap = workspace_of(model, inputs, labels, "loop")
    assert kernel.batched is not None
    assert vmap.batched is None
    expected = by_loop(vmap, inputs, labels, bound)
    for workspace in (kernel, vmap):
        total = clipped_sums(workspace, inputs, labels, bound)()
        assert torch.allclose(total, expected, rtol=1e-12, atol=1e-12)
        if bound is not None:
            assert total.norm() <= rows * bound * (1 + 1e-9) or rows == 1


def test_the_kernel_sums_where_it_does_not_train(monkeypatch):
    """On a machine where a batched product depends on company: there is none in a sum over one client's rows."""
    monkeypatch.setattr("coterie.compute.workspace.is_steady", lambda batched: False)
    inputs, labels = client_of(9, 1, 0)
    workspace = workspace_of(MODELS["deep"]().double(), inputs, labels, "auto")
    assert workspace.batched is None
    monkeypatch.setattr("coterie.compute.row_gradients.row_gradients", None)
    expected = by_loop(workspace, inputs, labels, 0.5)
    assert torch.allclose(clipped_sums(workspace, inputs, labels, 0.5)(), expected)


def test_rows_in_pieces_give_the_same_sum(monkeypatch):
    inputs, labels = client_of(11, 1, 0)
    workspace = workspace_of(MODELS["deep"]().double(), inputs, labels, "loop")
    whole = clipped_sums(workspace, inputs, labels, 0.5)()
    monkeypatch.setattr("coterie.compute.row_gradients.ROW_GRADIENTS", 1)
    assert torch.allclose(clipped_sums(workspace, inputs, labels, 0.5)(), whole)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("bound", [None, 0.5])
def test_sums_at_one_model_after_another_are_those_of_each_alone(name, bound):
    torch.manual_seed(0)
    inputs, labels = client_of(9, {"classes": 3}.get(name, 1), 0)
    workspace = workspace_of(MODELS[name]().double(), inputs, labels, "auto")
    sums = clipped_sums(workspace, inputs, labels, bound)
    start = workspace.x.clone()
    for factor in (1.0, 3.0, -2.0, 1.0):
        workspace.load(factor * start)
        expected = by_loop(workspace, inputs, labels, bound)
        assert torch.allclose(sums(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_at_which_rows_overflow_does_not_hide_the_model_after_it(name):
    torch.manual_seed(0)
    inputs, labels = client_of(9, {"classes": 3}.get(name, 1), 0)
    workspace = workspace_of(MODELS[name]().double(), inputs, labels, "auto")
    sums, start = clipped_sums(workspace, inputs, labels, 0.5), workspace.x.clone()
    workspace.load(1e200 * start)
    assert bool(sums().isfinite().all())
    workspace.load(start)
    expected = by_loop(workspace, inputs, labels, 0.5)
    assert torch.allclose(sums(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", ["auto", "loop"])
def test_a_row_without_finite_gradient_counts_nothing(kernel):
    inputs, labels = client_of(6, 1, 0)
    model = MODELS["deep"]().double()
    others = workspace_of(model, inputs[1:], labels[1:], kernel)
    expected = clipped_sums(others, inputs[1:], labels[1:], 1.0)()
    workspace = workspace_of(model, inputs, labels, kernel)
    inputs[0] = math.inf
    assert torch.allclose(clipped_sums(workspace, inputs, labels, 1.0)(), expected)


def fit(local, clients=None, **settings):
    clients = clients or ct.data.from_tensors(
        [client_of(20, 1, seed) for seed in range(2)]
    )
    return ct.fit(ct.FedAvg(local=local), clients, **settings)


def steps(**changed):
    return ct.LocalSGD(lr=0.1, steps=ct.Steps(3), batch_size=None, **changed)


def deep():
    torch.manual_seed(0)
    return MODELS["deep"]().double()


@pytest.mark.parametrize("more", [{}, {"momentum": 0.5}, {"optimiser": "adam"}])
def test_without_noise_and_bound_it_is_plain_training_on_all_rows(more):
    plain = fit(steps(**more), model=deep(), rounds=2)
    private = fit(
        steps(private=ct.RowNoise(0.0, clip=None), **more), model=deep(), rounds=2
    )
    assert torch.allclose(private.x, plain.x, rtol=1e-9, atol=1e-12)


class BesideAThread(nn.Linear):
    """As if another thread drew numbers while the model reads rows: once, or each time."""

    def __init__(self, times):
        super().__init__(5, 1)
        self.times = times

    def forward(self, inputs):
        if self.times:
            self.times -= 1
            torch.rand(())
        return super().forward(inputs)


@pytest.mark.parametrize(("times", "random"), [(0, False), (2, False), (99, True)])
def test_what_another_thread_draws_is_not_drawn_by_the_model(times, random):
    inputs, labels = client_of(4, 1, 0)
    rows = inputs.float(), labels
    workspace = workspace_of(BesideAThread(times), *rows, "loop")
    assert workspace.random == random


@pytest.mark.parametrize("inputs", [torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize("clip", [None, 100.0])
def test_a_constant_model_has_inputs_of_any_type(inputs, clip):
    labels = torch.arange(30.0).reshape(10, 3)
    rows = torch.zeros(10, 1, dtype=inputs), labels
    clients = ct.data.from_tensors([rows, rows], task="regression")
    plain = fit(steps(), clients, model="mean", rounds=2)
    private = fit(
        steps(private=ct.RowNoise(0.0, clip)), clients, model="mean", rounds=2
    )
    assert plain.x.abs().min() > 0
    assert torch.allclose(private.x, plain.x, rtol=1e-5)


def test_the_noise_of_a_step_has_the_stated_deviation_and_is_never_drawn_twice():
    model, noise = nn.Linear(400, 1).double(), 3.0
    clients = ct.data.from_tensors(
        [
            (torch.randn(20, 400, dtype=torch.float64), torch.arange(20) % 2)
            for _ in range(3)
        ]
    )

    def update(z, count):
        local = ct.LocalSGD(
            lr=1.0,
            steps=ct.Steps(count),
            batch_size=None,
            private=ct.RowNoise(z, clip=0.5),
        )
        return ct.fit(ct.FedAvg(local=local), clients, model=model, rounds=1).x

    rows = clients.sizes("train")["client-0"] + clients.sizes("validation")["client-0"]
    drawn = (update(noise, 1) - update(0.0, 1)) * rows
    # The mean of three clients' noise, each of deviation z C.
    assert drawn.std().item() == pytest.approx(noise * 0.5 / math.sqrt(3), rel=0.15)
    twice = (update(noise, 2) - update(0.0, 2)) * rows
    assert twice.std().item() == pytest.approx(drawn.std().item() * 2**0.5, rel=0.2)


def test_noisy_sums_lie_on_a_grid_that_floats_hold():
    sigma = 0.3
    values = torch.from_numpy(np.random.default_rng(0).normal(0, 50, 1000))
    rounded = to_grid(values, sigma)
    assert (rounded - values).abs().max() <= sigma / 2**11
    step = 2.0 ** math.floor(math.log2(sigma)) / 2**10
    assert torch.equal((rounded / step).round(), rounded / step)
    assert torch.equal(rounded.float().double(), rounded)


def test_what_is_no_sum_over_single_rows_is_refused():
    noise = ct.RowNoise(1.0)
    with pytest.raises(ct.InputError, match="set batch_size = None"):
        ct.LocalSGD(private=noise)
    with pytest.raises(ct.InputError, match="no sampler"):
        steps(private=noise, sampler=ct.UniformClassSampler())
    with pytest.raises(ct.InputError, match="give clip"):
        ct.RowNoise(1.0, clip=None)
    normed = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    dropped = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5), nn.Linear(3, 1)).double()
    for model, cure in ((normed, "use group norm"), (dropped, "leave out dropout")):
        run = fit(steps(private=noise), model=model, rounds=0)
        assert run.rounds == 0
        with pytest.raises((ct.InputError, ct.RunError), match=cure):
            fit(steps(private=noise), model=model, rounds=1)
    with pytest.raises((ct.InputError, ct.RunError), match="no transform, sampler"):
        ct.fit(
            ct.PerFedAvg(local=steps(private=noise)),
            ct.data.from_tensors([client_of(20, 1, 0)] * 2),
            model=deep(),
            rounds=1,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "features", "hidden"), [(50, 15, 0), (500, 15, 0), (500, 60, 64)]
)
def test_a_private_step_in_the_kernel_costs_at_most_two_plain_ones(
    rows, features, hidden
):
    inputs = torch.randn(rows, features)
    labels = (inputs[:, 0] > 0).long()
    clients = ct.data.from_tensors({"a": {"train": (inputs, labels)}})
    model = nn.Linear(features, 1)
    if hidden:
        model = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
    shard = Shard(clients, Workspace(model, "auto", clients[0]))
    x = torch.zeros(shard.workspace.layout.size)
    times = {None: [], ct.RowNoise(4.0): []}
    for _ in range(30):
        for noise, taken in times.items():
            local = ct.LocalSGD(steps=ct.Steps(40), batch_size=None, private=noise)
            ask = Ask(("a",), own_update.name, {"x": x, "local": local}, WHERE)
            began = time.process_time()
            assert not shard.answer(ask).failed
            taken.append(time.process_time() - began)
    plain, private = map(statistics.median, times.values())
    assert private <= 2 * plain
