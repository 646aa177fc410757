"""What must hold of OCS, and its estimate over all subsets."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from short_runs import MINI, chosen_by_round, descent, run

from coterie import OCS, FedAvg
from coterie.algorithms.ocs import local_update, norms
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.config.local import LocalSGD, Steps
from coterie.contract.task import Task
from coterie.solvers.sampling import inclusion_probabilities
from federations import (
    SIZES,
    assert_close,
    assert_same_bits,
    batch_norm,
    federation_of,
    logistic,
    start,
)

MUTANTS = {
    "ocs": [
        ("algorithms/ocs.py", "n: w / q for", "n: w for"),
        (
            "algorithms/ocs.py",
            "inclusion_probabilities(shares * replies.norms,",
            "inclusion_probabilities(replies.norms,",
        ),
        (
            "algorithms/ocs.py",
            "inclusion_probabilities(shares * replies.norms,",
            "inclusion_probabilities(shares,",
        ),
        ("algorithms/ocs.py", "strict=True) if u < q\n", "strict=True)\n"),
    ],
}

FULL = LocalSGD(lr=0.4, steps=Steps(2), batch_size=None)


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_ocs_with_everybody_is_fedavg_bit_by_bit(make):
    problem = make()
    for m in (None, 5):
        ocs, avg = (
            run(OCS(MINI, 0.7), problem, clients_per_round=m),
            run(FedAvg(MINI, 0.7), problem),
        )
        assert torch.equal(ocs.x, avg.x)
        assert ocs.weights == avg.weights
    assert not torch.equal(run(OCS(MINI, 0.7), problem, clients_per_round=4).x, avg.x)


class Drawn:
    """Numbers that let exactly these clients be drawn (and those with p = 1)."""

    def __init__(self, names):
        self.names = names

    def child(self, purpose, name):
        assert purpose == "draw"
        return Drawn(name in self.names)

    def uniform(self, count):
        assert count == 1
        return [0.0 if self.names else 1 - 2.0**-53]


@pytest.mark.in_turn(but="2")
@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_estimate_of_ocs_is_unbiased_over_all_subsets(m):
    problem = logistic()
    x = start(problem)
    delta = {n: descent(problem, n, x.numpy(), FULL) for n in SIZES}
    share = {n: SIZES[n] / sum(SIZES.values()) for n in SIZES}
    p = inclusion_probabilities(
        [share[n] * np.linalg.norm(delta[n]) for n in SIZES], m
    ).tolist()
    mean, total, seen = torch.zeros(4, dtype=torch.float64), 0.0, set()
    with federation_of(problem, clients_per_round=m) as federation:
        method = OCS(FULL)
        state = method.init(x, federation)
        for wanted in itertools.product([False, True], repeat=5):
            names = {n for n, w in zip(SIZES, wanted, strict=True) if w}
            chance = math.prod(
                q if w else 1 - q for q, w in zip(p, wanted, strict=True)
            )
            new, log = method.round(state, federation, Drawn(names))
            assert log["inclusion_probability"] == pytest.approx(
                dict(zip(SIZES, p, strict=True)), abs=1e-12
            )
            mean += chance * (new.x - x)
            total += chance
            if chance > 0:
                seen.add(log["selected"])
                expected = sum(
                    (
                        share[n] / q * delta[n]
                        for n, q in zip(SIZES, p, strict=True)
                        if n in names
                    ),
                    np.zeros(4),
                )
                np.testing.assert_allclose(new.x - x, expected, atol=1e-12)
    assert total == pytest.approx(1, abs=1e-14)
    assert_close(mean, torch.from_numpy(sum(share[n] * delta[n] for n in SIZES)), 1e-12)
    assert len(seen) > 1
    assert max(p) - min(p) > 0.05  # otherwise a plain draw would do


def test_ocs_trains_everybody_and_asks_the_drawn_for_the_same_update():
    problem = logistic()
    found = run(OCS(MINI), problem, 8, clients_per_round=2)
    drawn = {r: set(names) for r, names in chosen_by_round(found).items()}
    each = {
        n: 10 if n == "d" else 12 for n in SIZES
    }  # three batches of four, or of four, four and two
    assert found.history.select("row_gradients")[-1] == (
        8,
        8 * sum(each.values()),
    )  # the drawn do not train again
    selected = dict(found.history.select("selected"))
    assert selected == {r: len(drawn.get(r, ())) for r in range(1, 9)}
    # The norm that was told is that of the update that came.
    first = min(drawn)
    x = run(OCS(MINI), problem, first - 1, clients_per_round=2).x
    with federation_of(problem, round=first, clients_per_round=2) as federation:
        told = federation.ask(SIZES, norms, x=x, local=MINI)
        sent = federation.ask(SIZES, local_update, x=x, local=MINI)
    assert_close(told.norms, sent.delta.norm(dim=1))


def test_ocs_nobody_drawn_leaves_the_model_and_a_failure_scales_the_others(monkeypatch):
    problem = logistic()
    x = start(problem)
    method = OCS(FULL)
    with federation_of(problem, clients_per_round=1) as federation:
        state = method.init(x, federation)
        same, log = method.round(state, federation, Drawn(set()))
        assert torch.equal(same.x, x)
        assert (log["selected"], "weights" in log) == (0, False)
        whole, full_log = method.round(state, federation, Drawn({"a", "d"}))
        honest = Task.__call__

        def call(self, cohort, /, **payload):
            if self.name.endswith(":local_update") and "d" in cohort.names:
                raise OSError("unplugged")
            return honest(self, cohort, **payload)

        monkeypatch.setattr(Task, "__call__", call)
        part, part_log = method.round(state, federation, Drawn({"a", "d"}))
    assert part_log["sum_weights"] == pytest.approx(sum(full_log["weights"].values()))
    assert set(part_log["weights"]) == {"a"}
    assert (part.x - whole.x).abs().max() > 1e-4


@pytest.mark.in_turn
def test_ocs_does_not_depend_on_workers_and_a_duplicated_client_counts_twice():
    problem = logistic()
    assert_same_bits(
        *(run(OCS(MINI), problem, 6, clients_per_round=2, workers=w) for w in (1, 2))
    )
    twice = problem.with_clients(
        Clients([*problem.clients, Client("a-again", problem.clients["a"].train)])
    )
    assert torch.equal(run(OCS(FULL), twice).x, run(FedAvg(FULL), twice).x)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: OCS(lr=-1), "OCS.lr must be a number > 0; got -1"),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
