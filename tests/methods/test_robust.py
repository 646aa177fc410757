"""What must hold of robust averages, and rounds recomputed with numpy and scipy alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from short_runs import MINI, descent, run, unplug

from coterie import GeometricMedian, Local, Median, MultiKrum, SGDFull, TrimmedMean
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, RunError
from coterie.config.local import LocalSGD, Steps
from coterie.contract.task import Task
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    cohort_of,
    logistic,
    quadratic,
    start,
)

MUTANTS = {
    "median": [
        (
            "algorithms/robust.py",
            "robust.median(replies.delta)",
            "replies.delta.mean(0)",
        ),
        (
            "algorithms/robust.py",
            "robust.median(replies.delta), rate_of(self.lr, federation.round)",
            "robust.median(replies.delta), 1.0",
        ),
    ],
    "trimmed-mean": [
        (
            "algorithms/robust.py",
            "robust.trimmed_mean(replies.delta, trim)",
            "robust.trimmed_mean(replies.delta, 0)",
        ),
        (
            "algorithms/robust.py",
            "math.floor(limit * clients + 1e-9)",
            "math.ceil(limit * clients)",
        ),
    ],
    "geometric-median": [
        (
            "algorithms/robust.py",
            "State(move(state.x, weights, replies.delta",
            "State(move(state.x, torch.full_like(weights, 1 / len(weights)), replies.delta",
        ),
        (
            "algorithms/robust.py",
            "replies.delta[:, : federation.dim].double()\n",
            "replies.delta.double()\n",
        ),
        (
            "algorithms/robust.py",
            "smoothing=self.smoothing, tolerance=self.tolerance",
            "smoothing=1.0, tolerance=self.tolerance",
        ),
    ],
    "multi-krum": [
        (
            "algorithms/robust.py",
            "multi_krum(replies.delta[:, : federation.dim], f, self.keep)",
            "multi_krum(replies.delta[:, : federation.dim], 0, self.keep)",
        ),
        (
            "algorithms/robust.py",
            "multi_krum(replies.delta[:, : federation.dim], f, self.keep)",
            "multi_krum(replies.delta[:, : federation.dim], f, None)",
        ),
        (
            "algorithms/robust.py",
            "multi_krum(replies.delta[:, : federation.dim], f, self.keep)",
            "multi_krum(replies.delta, f, self.keep)",
        ),
    ],
}

FULL = LocalSGD(lr=0.4, steps=Steps(2), batch_size=None)


def least_distances(rows):
    options = {"xatol": 1e-11, "fatol": 1e-14, "maxiter": 20000, "maxfev": 20000}
    value = lambda p: np.linalg.norm(rows - p, axis=1).sum()  # noqa: E731
    return minimize(value, np.median(rows, 0), method="Nelder-Mead", options=options).x


def krum(rows, f, keep):
    apart = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    scores = [
        sum(sorted(np.delete(apart[i], i))[: len(rows) - f - 2])
        for i in range(len(rows))
    ]
    return rows[np.argsort(scores)[:keep]].mean(0)


ROBUST = {
    "median": (Median(FULL, 0.7), lambda d: np.median(d, 0)),
    "trimmed": (TrimmedMean(FULL, 0.7, 2), lambda d: np.sort(d, 0)[2:-2].mean(0)),
    "trimmed-share": (
        TrimmedMean(FULL, 0.7, 0.2),
        lambda d: np.sort(d, 0)[1:-1].mean(0),
    ),
    "geometric": (GeometricMedian(FULL, 0.7, tolerance=1e-10), least_distances),
    "multi-krum": (MultiKrum(FULL, 0.7, 1), lambda d: krum(d, 1, 4)),
    "krum": (MultiKrum(FULL, 0.7, 0.2, 1), lambda d: krum(d, 1, 1)),
}


@pytest.mark.parametrize("name", ROBUST)
def test_two_rounds_by_hand(name):
    method, rule = ROBUST[name]
    problem = logistic()
    x = start(problem).numpy()
    for _ in range(2):
        delta = np.stack([descent(problem, n, x, FULL) for n in SIZES])
        assert np.abs(rule(delta) - delta.mean(0)).max() > 3e-3
        x = x + 0.7 * rule(delta)
    np.testing.assert_allclose(
        run(method, problem, 2).x.numpy(),
        x,
        atol=1e-6 if name == "geometric" else 1e-12,
    )


@pytest.mark.in_turn(but=("median", "krum"))
@pytest.mark.parametrize("name", ROBUST)
def test_one_liar_of_five_moves_the_model_no_further_than_the_others_spread(
    name, monkeypatch
):
    problem = quadratic(
        {
            "a": [1.0, 0.0],
            "b": [1.2, 0.1],
            "c": [0.9, -0.1],
            "d": [1.1, 0.2],
            "e": [1.0, 0.1],
        }
    )
    method = replace(
        ROBUST[name][0], local=LocalSGD(lr=0.3, steps=Steps(1), batch_size=None), lr=1.0
    )
    honest = Task.__call__

    def lying(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if "update" in self.kinds.values():
            delta = reply.delta.clone()
            delta[[i for i, n in enumerate(cohort.names) if n == "c"]] *= -1000
            reply = reply._replace(delta=delta)
        return reply

    monkeypatch.setattr(Task, "__call__", lying)
    x = run(method, problem, 20, max_norm=1e9, evaluate=20).x
    assert 0.9 <= float(x[0]) <= 1.2
    assert -0.1 <= float(x[1]) <= 0.2
    assert (
        float(run(SGDFull(method.local), problem, 5, max_norm=1e9).x.abs().max()) > 1e6
    )


def test_rules_that_suspect_nobody_are_the_mean():
    problem = batch_norm()
    mean = run(SGDFull(MINI), problem)
    assert_close(run(TrimmedMean(MINI, trim=0), problem).x, mean.x)
    assert_close(run(MultiKrum(MINI, byzantine=0), problem).x, mean.x)
    assert_close(
        run(TrimmedMean(MINI, trim=0.19), problem).x, mean.x
    )  # less than one client of five


@pytest.mark.parametrize("method", [Median, TrimmedMean, GeometricMedian, MultiKrum])
def test_equal_updates_come_through_whole(method):
    part = batch_norm().clients["b"].train
    problem = batch_norm().with_clients(Clients([Client(n, part) for n in "abcde"]))
    local = replace(FULL, lr=0.1)
    assert_close(
        run(method(local), problem).x, run(Local(local), problem).models["a"], 1e-10
    )


@pytest.mark.parametrize(
    "method", [Median(MINI), TrimmedMean(MINI), GeometricMedian(MINI), MultiKrum(MINI)]
)
def test_buffers(method):
    """Variances stay positive; by coordinate for the first two, with the weights of the parameters for the others."""
    problem = batch_norm()
    cohort = cohort_of(problem)
    x, dim = start(problem), cohort.layout.dim
    tails = cohort.train(x, MINI)[:, dim:]
    found = run(replace(method, lr=0.5), problem, 1)
    if isinstance(method, Median | TrimmedMean):
        rows = tails.sort(0).values
        expected = rows[2] if isinstance(method, Median) else rows[1:4].mean(0)
    else:
        expected = (
            torch.tensor(list(found.weights["*"].values()), dtype=torch.float64) @ tails
        )
    assert_close(found.x[dim:], expected)
    assert (expected - tails.mean(0)).abs().max() > 1e-4


@pytest.mark.parametrize("method", [GeometricMedian(MINI), MultiKrum(MINI)])
def test_statistics_have_no_part_in_the_choice(method, monkeypatch):
    problem = batch_norm()
    dim, honest = cohort_of(problem).layout.dim, Task.__call__
    plain = run(method, problem, 1)
    chosen = max(plain.weights["*"], key=plain.weights["*"].get)

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if "update" in self.kinds.values():
            reply.delta[cohort.names.index(chosen), dim:] += 30
        return reply

    monkeypatch.setattr(Task, "__call__", call)
    other = run(method, problem, 1)
    assert other.weights == plain.weights
    assert torch.equal(other.x[:dim], plain.x[:dim])
    assert not torch.equal(other.x[dim:], plain.x[dim:])


def test_too_few_replies_end_the_run_with_a_sentence(monkeypatch):
    unplug(monkeypatch, "c")
    for method, sentence in (
        (
            TrimmedMean(MINI, trim=2),
            "round 1: TrimmedMean.trim = 2 needs at least 5 clients in a round, and there are 4",
        ),
        (
            MultiKrum(MINI, byzantine=1),
            "round 1: MultiKrum.byzantine = 1 needs at least 5 clients in a round, and there are 4",
        ),
        (
            MultiKrum(MINI, byzantine=0, keep=5),
            "round 1: MultiKrum.keep = 5 is more than the 4 of 4 clients",
        ),
    ):
        with pytest.raises(RunError, match=sentence):
            run(method, logistic())
    assert run(MultiKrum(MINI), logistic()).history.select("byzantine")[-1] == (
        3,
        0,
    )  # a fifth of four is nobody


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Median(lr=-1), "Median.lr must be a number > 0; got -1"),
        (lambda: TrimmedMean(lr=-1), "TrimmedMean.lr must be a number > 0; got -1"),
        (
            lambda: TrimmedMean(trim=0.5),
            r"TrimmedMean.trim must be an int >= 0 \(clients\) or a share in \[0, 0.5\); got 0.5",
        ),
        (lambda: TrimmedMean(trim=-1), "TrimmedMean.trim must be an int >= 0"),
        (
            lambda: run(TrimmedMean(trim=2), logistic(), clients_per_round=4),
            "TrimmedMean.trim = 2 needs at least 5 clients in a round, and there are 4; lower it, or take more clients",
        ),
        (
            lambda: GeometricMedian(smoothing=0),
            "GeometricMedian.smoothing must be a number > 0; got 0",
        ),
        (
            lambda: GeometricMedian(tolerance=0),
            "GeometricMedian.tolerance must be a number > 0; got 0",
        ),
        (
            lambda: GeometricMedian(lr=0),
            "GeometricMedian.lr must be a number > 0; got 0",
        ),
        (lambda: MultiKrum(lr=0), "MultiKrum.lr must be a number > 0; got 0"),
        (lambda: MultiKrum(byzantine=0.7), "MultiKrum.byzantine must be an int >= 0"),
        (
            lambda: MultiKrum(keep=0),
            r"MultiKrum.keep must be None \(n - f\) or an int > 0; got 0",
        ),
        (
            lambda: run(MultiKrum(byzantine=2), logistic()),
            "MultiKrum.byzantine = 2 needs at least 7 clients in a round, and there are 5; lower it, or take more clients",
        ),
        (
            lambda: run(MultiKrum(byzantine=1, keep=5), logistic()),
            "keep = 5 is more than the 4 of 5 clients",
        ),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
