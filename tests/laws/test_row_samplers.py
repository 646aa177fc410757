"""Uniform-IS, p_j-IS and ISFedAvg: laws, rounds recomputed with numpy alone, frequencies, and what is refused."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch

from coterie.algorithms import ISFL, FedAvg, Local, MeritFed
from coterie.core.errors import InputError
from coterie.core.rng import Rng
from coterie.core.rows import Client, Clients, Part
from coterie.core.task import Task
from coterie.core.tasks import local_update
from coterie.core.training import Epochs, LocalSGD, Steps
from coterie.core.wire import PerClient
from coterie.run.experiment import Experiment
from coterie.samplers import SAMPLERS, isfl, pj_is, weighted
from coterie.samplers.isfedavg import GradientNormSampler, ISFedAvg
from coterie.samplers.isfl import LipschitzSampler
from coterie.samplers.pj_is import ClassShareSampler, PjIS
from coterie.samplers.uniform_is import UniformClassSampler, UniformIS
from coterie.solvers.waterfill import closed_form
from federations import (
    SIZES,
    Problem,
    assert_same_bits,
    cohort_of,
    dropout,
    federation_of,
    fit,
    logistic,
    regression,
    seeded,
    start,
)

MINI = LocalSGD(lr=0.2, steps=Steps(3), batch_size=4)
PAIRS = [(UniformIS, UniformClassSampler), (PjIS, ClassShareSampler), (ISFedAvg, GradientNormSampler)]
each_pair = pytest.mark.parametrize(("method", "sampler"), PAIRS, ids=lambda c: c.__name__)


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
    return Problem(Clients(clients), seeded(lambda: torch.nn.Linear(3, classes), torch.float64))


def run(method, problem, rounds=3, **options):
    held = problem.clients.pooled()
    options = {"server": held, "evaluate": 1, "merge_validation": False, **options}
    return fit(method, problem.clients, problem.model, rounds, **options)


# ---- laws


@each_pair
@pytest.mark.parametrize("make", [skewed, logistic, dropout])
def test_each_is_fedavg_with_its_sampler_bit_by_bit(method, sampler, make):
    local = replace(MINI, steps=Epochs(2))
    one = run(method(local, 0.7, 0.5), make())
    other = run(FedAvg(replace(local, sampler=sampler(0.5)), 0.7), make())
    assert torch.equal(one.x, other.x)
    assert one.history == other.history
    assert not torch.equal(one.x, run(FedAvg(local, 0.7), make()).x)


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_pj_is_is_isfl_with_equal_constants_bit_by_bit(ratio, monkeypatch):
    honest, check = Task.__call__, LipschitzSampler.check

    def equal(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        return (
            reply._replace(lipschitz=torch.ones_like(reply.lipschitz)) if self.name.endswith("isfl:compare") else reply
        )

    def from_the_start(self, federation):
        """ISFL draws any row before its first q; here it knows p, as p_j-IS does."""
        check(self, federation)
        counts = federation.ask(federation.everyone, weighted.class_counts).counts
        p = counts.sum(0) / counts.sum(dtype=torch.float64)
        federation.ask(federation.everyone, isfl.keep, q=PerClient(p.expand(len(counts), -1)))

    monkeypatch.setattr(Task, "__call__", equal)
    monkeypatch.setattr(LipschitzSampler, "check", from_the_start)
    local = replace(MINI, steps=Epochs(2))
    one, other = run(PjIS(local, 0.7, ratio), skewed(), 4), run(ISFL(local, 0.7, sample_ratio=ratio), skewed(), 4)
    assert torch.equal(one.x, other.x)
    assert one.weights == other.weights
    assert {r.value for r in other.history if r.metric == "gamma"} == {0.0}
    monkeypatch.setattr(Task, "__call__", honest)
    assert not torch.equal(run(ISFL(local, 0.7, sample_ratio=ratio), skewed(), 4).x, one.x)


def test_the_rows_of_pj_is_are_those_of_isfl_with_equal_constants():
    problem = skewed()
    counts = torch.stack([torch.bincount(c.train.labels, minlength=4) for c in problem.clients]).double()
    p = counts.sum(0) / counts.sum()
    ours, theirs = cohort_of(problem), cohort_of(problem)
    ours.memory.put(pj_is.SHARES, p.expand(3, -1))
    theirs.memory.put(isfl.SHARES, torch.stack([closed_form(p, c / c.sum(), [2.0] * 4, 0.05)[0] for c in counts]))
    ours.memory.commit()
    theirs.memory.commit()
    for i in range(3):
        rows = [
            sampler.rows(cohort, i, Rng.named(0, "x", i), 50, 8)
            for sampler, cohort in ((ClassShareSampler(), ours), (LipschitzSampler(), theirs))
        ]
        assert np.array_equal(*rows)


def test_uniform_is_and_pj_is_with_equal_class_counts_everywhere_are_one():
    part = skewed().clients["b"].train
    problem = Problem(Clients([Client(n, part) for n in "ab"]), skewed().model)
    assert torch.equal(run(UniformIS(MINI), problem).x, run(PjIS(MINI), problem).x)
    assert not torch.equal(run(UniformIS(MINI), skewed()).x, run(PjIS(MINI), skewed()).x)


def test_rows_with_equal_gradients_are_drawn_as_if_by_classes_with_equal_counts():
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(8, 1)
    part = Part(x, torch.tensor([0, 1]).repeat(8))
    model = seeded(lambda: torch.nn.Linear(1, 1, bias=False), torch.float64)
    problem = Problem(Clients([Client("a", part)]), model)
    one, other = run(ISFedAvg(MINI), problem, 1), run(UniformIS(MINI), problem, 1)
    assert torch.equal(one.x, other.x)


def test_a_client_without_any_gradient_draws_any_row():
    zeros = Part(torch.zeros(8, 1, dtype=torch.float64), torch.zeros(8, dtype=torch.float64))
    problem = Problem(Clients([Client("a", zeros)]), seeded(lambda: torch.nn.Linear(1, 1, bias=False), torch.float64))
    assert torch.equal(run(ISFedAvg(MINI), problem).x, start(problem))


# ---- one round by hand


def unbalanced() -> Problem:
    """The logistic problem with more rows of class 1, not equally many everywhere; e has no other."""
    problem = logistic()
    clients = []
    for client, ones in zip(problem.clients, (3, 5, 2, 1, 14), strict=True):
        labels = client.train.labels.clone()
        labels[:ones] = 1
        clients.append(Client(client.name, Part(client.train.inputs, labels)))
    return problem.with_clients(Clients(clients))


def chances(kind, problem, name, model):
    """The probability of each row of a client, with loops; `model` [4] are weights and bias of the logistic loss."""
    part = problem.clients[name].train
    labels = part.labels.tolist()
    everybody = [y for c in problem.clients for y in c.train.labels.tolist()]
    if kind is UniformIS:
        return [1 / len(set(labels)) / labels.count(y) for y in labels]
    if kind is PjIS:
        return [everybody.count(y) / len(everybody) / labels.count(y) for y in labels]
    rows = [np.append(r, 1.0) for r in part.inputs.numpy()]
    norms = [np.linalg.norm((1 / (1 + np.exp(-r @ model)) - y) * r) for r, y in zip(rows, labels, strict=True)]
    return [v / sum(norms) for v in norms]


@pytest.mark.parametrize("kind", [UniformIS, PjIS, ISFedAvg])
def test_two_rounds_by_hand(kind):
    problem = unbalanced()
    x = start(problem).numpy()
    for number in (1, 2):
        move = np.zeros(4)
        for name, size in SIZES.items():
            edges = list(accumulate(chances(kind, problem, name, x)))
            part, y = problem.clients[name].train, x.copy()
            for u in Rng.named(0, number, name, "train").uniform(12).reshape(3, 4):
                picked = [bisect_right(edges, v * edges[-1]) for v in u]
                rows = np.hstack([part.inputs.numpy()[picked], np.ones((4, 1))])
                y = y - 0.2 * rows.T @ (1 / (1 + np.exp(-rows @ y)) - part.labels.numpy()[picked]) / 4
            move += size / sum(SIZES.values()) * (y - x)
        x = x + 0.7 * move
    np.testing.assert_allclose(run(kind(MINI, 0.7), problem, 2).x.numpy(), x, atol=1e-12)


# ---- frequencies


@pytest.mark.parametrize("name", ["a", "c"])
def test_rows_come_as_often_as_they_should(name):
    problem = skewed()
    labels = problem.clients[name].train.labels
    counts = torch.stack([torch.bincount(c.train.labels, minlength=4) for c in problem.clients]).double()
    own = counts[problem.clients.number(name)]
    p = counts.sum(0) / counts.sum()
    cohort = cohort_of(problem, name)
    cohort.memory.put(pj_is.SHARES, p[None])
    cohort.memory.commit()
    x = start(problem)
    models = torch.nn.Linear(3, 4).double()
    models.weight.data, models.bias.data = x[:12].view(4, 3), x[12:]
    part, norms = problem.clients[name].train, []
    for row, label in zip(part.inputs, part.labels, strict=True):
        grads = torch.autograd.grad(torch.nn.functional.cross_entropy(models(row), label), models.parameters())
        norms.append(float(torch.cat([g.reshape(-1) for g in grads]).norm()))
    present = (own > 0).double()
    by_class = {UniformClassSampler(): present / present.sum(), ClassShareSampler(): p * present / (p * present).sum()}
    expected = {s: (q / own.clamp(min=1))[labels] for s, q in by_class.items()}
    expected[GradientNormSampler()] = torch.tensor(norms, dtype=torch.float64) / sum(norms)
    times = 20000
    for sampler, chance in expected.items():
        known = sampler.at(cohort, x) if hasattr(sampler, "at") else sampler
        drawn = known.rows(cohort, 0, Rng.named(1, "frequencies"), times // 8, 8)
        assert drawn.shape == (times // 8, 8)
        found = torch.bincount(torch.from_numpy(drawn.reshape(-1)), minlength=len(labels)) / times
        deviation = (chance * (1 - chance) / times).sqrt()
        assert float(((found - chance).abs() / deviation).max()) < 4.5
        assert float((chance - 1 / len(labels)).abs().max()) > 5 * float(deviation.max())  # not any row


def test_gradient_norms_are_taken_at_each_clients_own_model_and_leave_training_as_it_was():
    problem = dropout()
    problem.model[2].p = 0.0
    cohort = cohort_of(problem)
    x = start(problem)
    xs = torch.stack([x + 0.1 * i for i in range(5)])
    local = replace(MINI, sampler=GradientNormSampler())
    together = cohort.train(xs, local)
    for i in range(5):
        alone = cohort_of(problem, "abcde"[i]).train(xs[i], local)
        assert torch.equal(together[i], alone[0])
    assert cohort.spent["row_gradients"] == sum(SIZES.values()) + 5 * 12


# ---- under other methods, and what is refused


@pytest.mark.parametrize("sampler", [UniformClassSampler(), ClassShareSampler(), GradientNormSampler()])
def test_samplers_work_under_other_methods_on_any_number_of_workers(sampler):
    local = replace(MINI, sampler=sampler)
    for method in (MeritFed("a", local=local), Local(local)):
        one, two = run(method, skewed()), run(method, skewed(), workers=2)
        assert_same_bits(one, two)
        plain = run(replace(method, local=MINI), skewed())
        assert not torch.equal(one.models["a"], plain.models["a"])


def test_shares_are_asked_and_told_once_and_survive_a_resume(tmp_path):
    problem = skewed()
    whole = run(PjIS(MINI), problem, 4, evaluate=4)
    assert [r.round for r in whole.asks if "class_counts" in r.task or "keep_shares" in r.task] == [0, 0]
    run(PjIS(MINI), problem, 2, checkpoint=tmp_path, evaluate=4)
    resumed = run(PjIS(MINI), problem, 4, checkpoint=tmp_path, resume=True, workers=2, evaluate=4)
    assert torch.equal(resumed.x, whole.x)


def test_a_client_that_has_lost_the_shares_draws_any_row():
    problem = skewed()
    with federation_of(problem) as federation:
        local = replace(MINI, sampler=ClassShareSampler())
        got = federation.ask("abc", local_update, x=start(problem), local=local)
    x = start(problem)
    assert torch.equal(got.delta, cohort_of(problem).train(x, replace(MINI, sampler=Evenly())) - x)


class Evenly:
    """Rows drawn evenly."""

    def rows(self, cohort, client, rng, steps, batch_size):
        count = len(cohort.labels(client))
        edges = np.arange(1, count + 1) / count
        return np.searchsorted(edges, rng.uniform(steps * batch_size), side="right").reshape(steps, batch_size)


def test_samplers_in_toml_there_and_back():
    tables = {"data": {"name": "digits"}, "model": {"name": "logistic"}, "methods": []}
    for name, cls in SAMPLERS.items():
        entry = {"name": "fedavg", "label": name, "local": {"sampler": {"name": name, "sample_ratio": 0.5}}}
        tables["methods"].append(entry)
        read = Experiment.from_tables({**tables, "methods": [entry]}, "x.toml")
        assert read.build_method(read.methods[0]).local.sampler == cls(sample_ratio=0.5)
        again = Experiment.from_tables(read.tables(), "y.toml")
        assert again.build_method(again.methods[0]).local.sampler == cls(sample_ratio=0.5)


@each_pair
@pytest.mark.parametrize("ratio", [0, 1.5, "all", True])
def test_bad_sample_ratios_are_named(method, sampler, ratio):
    for owner in (method, sampler):
        with pytest.raises(InputError, match=rf"{owner.__name__}\.sample_ratio must be a number in \(0, 1\]; got"):
            owner(sample_ratio=ratio)


@each_pair
def test_other_bad_settings_are_named(method, sampler):
    with pytest.raises(InputError, match=rf"{method.__name__}\.lr must be a number > 0; got 0"):
        method(lr=0)
    with pytest.raises(InputError, match=f"{method.__name__} brings its own; set it under FedAvg"):
        method(LocalSGD(sampler=sampler()))


@pytest.mark.parametrize(("method", "sampler"), PAIRS[:2], ids=lambda c: c.__name__)
def test_labels_that_are_no_classes_are_named(method, sampler):
    with pytest.raises(InputError, match="samples by class; it needs rows with one class each"):
        run(method(MINI), regression())
