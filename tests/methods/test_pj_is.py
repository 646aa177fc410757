"""What must hold of p_j-IS, and rounds recomputed with numpy alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from row_samplers import (
    assert_frequencies,
    assert_goes_through_toml,
    assert_is_fedavg_with_its_sampler,
    assert_needs_classes,
    assert_refuses_bad_settings,
    assert_two_rounds_by_hand,
    assert_works_under_other_methods,
    class_counts,
    skewed,
)
from short_runs import MINI, forget, logged, run_with_server

import coterie as ct
from coterie import ISFL
from coterie.base.rng import Rng
from coterie.compute.tasks import local_update
from coterie.config.local import Epochs
from coterie.contract.task import Task
from coterie.contract.wire import PerClient
from coterie.samplers import isfl, pj_is, weighted
from coterie.samplers.isfl import LipschitzSampler
from coterie.samplers.pj_is import ClassShareSampler, PjIS
from coterie.solvers.waterfill import closed_form
from federations import (
    cohort_of,
    dropout,
    federation_of,
    logistic,
    start,
)

MUTANTS = {
    "pj-is": [
        (
            "samplers/pj_is.py",
            "p=class_shares(replies.counts.sum(0))",
            "p=class_shares(torch.ones_like(replies.counts).sum(0))",
        ),
        (
            "samplers/pj_is.py",
            "return shares_in_memory(cohort, client, SHARES)",
            "return shares_in_memory(cohort, client, SHARES)[:0]",
        ),
        (
            "samplers/pj_is.py",
            "        if lost:\n            self.check(federation)\n",
            "",
        ),
    ],
}


@pytest.mark.in_turn(but="skewed")
@pytest.mark.parametrize("make", [skewed, logistic, dropout])
def test_it_is_fedavg_with_its_sampler_bit_by_bit(make):
    assert_is_fedavg_with_its_sampler(PjIS, ClassShareSampler, make)


@pytest.mark.in_turn(but="0.5")
@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_pj_is_is_isfl_with_equal_constants_bit_by_bit(ratio, monkeypatch):
    honest, check = Task.__call__, LipschitzSampler.check

    def equal(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        return (
            reply._replace(lipschitz=torch.ones_like(reply.lipschitz))
            if self.name.endswith("isfl:compare")
            else reply
        )

    def from_the_start(self, federation):
        """ISFL draws any row before its first q; here it knows p, as p_j-IS does."""
        check(self, federation)
        counts = federation.ask(federation.everyone, weighted.class_counts).counts
        p = counts.sum(0) / counts.sum(dtype=torch.float64)
        federation.ask(
            federation.everyone, isfl.keep, q=PerClient(p.expand(len(counts), -1))
        )

    monkeypatch.setattr(Task, "__call__", equal)
    monkeypatch.setattr(LipschitzSampler, "check", from_the_start)
    local = replace(MINI, steps=Epochs(2))
    one, other = (
        run_with_server(PjIS(local, 0.7, ratio), skewed(), 4),
        run_with_server(ISFL(local, 0.7, sample_ratio=ratio), skewed(), 4),
    )
    assert torch.equal(one.x, other.x)
    assert one.weights == other.weights
    assert {r.value for r in other.history if r.metric == "gamma"} == {0.0}
    monkeypatch.setattr(Task, "__call__", honest)
    unlike = run_with_server(ISFL(local, 0.7, sample_ratio=ratio), skewed(), 4)
    assert not torch.equal(unlike.x, one.x)


def test_the_rows_of_pj_is_are_those_of_isfl_with_equal_constants():
    problem = skewed()
    counts = torch.stack(
        [torch.bincount(c.train.labels, minlength=4) for c in problem.clients]
    ).double()
    p = counts.sum(0) / counts.sum()
    ours, theirs = cohort_of(problem), cohort_of(problem)
    ours.memory.put(pj_is.SHARES, p.expand(3, -1))
    theirs.memory.put(
        isfl.SHARES,
        torch.stack([closed_form(p, c / c.sum(), [2.0] * 4, 0.05)[0] for c in counts]),
    )
    ours.memory.commit()
    theirs.memory.commit()
    for i in range(3):
        rows = [
            sampler.rows(cohort, i, Rng.named(0, "x", i), 50, 8)
            for sampler, cohort in (
                (ClassShareSampler(), ours),
                (LipschitzSampler(), theirs),
            )
        ]
        assert np.array_equal(*rows)


def chances(problem, name, model):
    """The probability of each row of a client."""
    labels = problem.clients[name].train.labels.tolist()
    everybody = [y for c in problem.clients for y in c.train.labels.tolist()]
    return [everybody.count(y) / len(everybody) / labels.count(y) for y in labels]


def test_two_rounds_by_hand():
    assert_two_rounds_by_hand(PjIS, chances)


@pytest.mark.parametrize("name", ["a", "c"])
def test_rows_come_as_often_as_they_should(name):
    problem = skewed()
    counts = class_counts(problem)
    own, p = counts[problem.clients.number(name)], counts.sum(0) / counts.sum()
    cohort = cohort_of(problem, name)
    cohort.memory.put(pj_is.SHARES, p[None])
    cohort.memory.commit()
    shares = p * (own > 0) / (p * (own > 0)).sum()
    assert_frequencies(
        ClassShareSampler(),
        cohort,
        (shares / own.clamp(min=1))[problem.clients[name].train.labels],
    )


def test_shares_are_asked_and_told_once_and_survive_a_resume(tmp_path):
    problem = skewed()
    whole = run_with_server(PjIS(MINI), problem, 4, evaluate=4)
    assert [
        r.round
        for r in whole.asks
        if "class_counts" in r.task or "keep_shares" in r.task
    ] == [0, 0]
    run_with_server(PjIS(MINI), problem, 2, checkpoint=tmp_path, evaluate=4)
    resumed = run_with_server(
        PjIS(MINI), problem, 4, checkpoint=tmp_path, resume=True, workers=2, evaluate=4
    )
    assert torch.equal(resumed.x, whole.x)


def test_a_client_that_lost_the_shares_is_told_them_again(monkeypatch):
    forget(monkeypatch, "b", 2)
    found = run_with_server(PjIS(MINI), skewed(), 4)
    assert logged(found, "shares_lost") == {(2, "b"): 1.0}
    assert [r.round for r in found.asks if "keep_shares" in r.task] == [0, 2]


def test_a_client_that_has_lost_the_shares_draws_any_row():
    problem = skewed()
    with federation_of(problem) as federation:
        local = replace(MINI, sampler=ClassShareSampler())
        got = federation.ask("abc", local_update, x=start(problem), local=local)
    x = start(problem)
    assert torch.equal(
        got.delta, cohort_of(problem).train(x, replace(MINI, sampler=Evenly())) - x
    )


class Evenly(ct.Sampler):
    """Rows drawn evenly."""

    def rows(self, cohort, client, rng, steps, batch_size):
        count = len(cohort.labels(client))
        edges = np.arange(1, count + 1) / count
        return np.searchsorted(
            edges, rng.uniform(steps * batch_size), side="right"
        ).reshape(steps, batch_size)


@pytest.mark.in_turn
def test_it_works_under_other_methods_on_any_number_of_workers():
    assert_works_under_other_methods(ClassShareSampler())


def test_it_goes_through_toml_there_and_back():
    assert_goes_through_toml("class-shares")


def test_bad_settings_are_named():
    assert_refuses_bad_settings(PjIS, ClassShareSampler)


def test_labels_that_are_no_classes_are_named():
    assert_needs_classes(PjIS)
