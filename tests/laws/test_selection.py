"""Skew, SL and OCS: what must hold, rounds recomputed with numpy alone, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from coterie.algorithms import OCS, FedAvg, SelectiveLearning, SGDFull, Skew
from coterie.algorithms.ocs import local_update, norms
from coterie.core.errors import InputError
from coterie.core.rng import Rng
from coterie.core.rows import Client, Clients
from coterie.core.task import Task
from coterie.core.training import LocalSGD, Steps
from coterie.solvers.sampling import inclusion_probabilities
from federations import (
    SIZES,
    assert_close,
    assert_same_bits,
    batch_norm,
    federation_of,
    fit,
    logistic,
    quadratic,
    start,
    subset,
)

LR, STEPS = 0.4, 2
FULL = LocalSGD(lr=LR, steps=Steps(STEPS), batch_size=None)
MINI = LocalSGD(lr=0.2, steps=Steps(3), batch_size=4)


def run(method, problem, rounds=3, **options):
    options = {"merge_validation": False, "evaluate": 1, **options}
    return fit(method, problem.clients, problem.model, rounds, **options)


def by_hand(client, x):
    """Mean logistic loss at x, and the update of full-batch descent, written with numpy alone."""
    rows, y = (
        np.hstack([client.train.inputs.numpy(), np.ones((len(client.train.labels), 1))]),
        client.train.labels.numpy(),
    )
    loss = float(np.logaddexp(0, -(rows @ x) * (2 * y - 1)).mean())
    z = x.copy()
    for _ in range(STEPS):
        z = z - LR * rows.T @ (1 / (1 + np.exp(-rows @ z)) - y) / len(y)
    return loss, z - x


def chosen_by_round(found):
    by_round = {}
    for number, _, client, _ in found.weight_rows:
        by_round.setdefault(number, []).append(client)
    return by_round


# ---- Skew


def test_skew_by_hand():
    """Candidates are drawn one after the other by size, with the named numbers; the two with the highest loss train."""
    problem = logistic()
    x, total = start(problem).numpy(), 3
    found = run(Skew(FULL, 0.7, candidates=3), problem, total, clients_per_round=2)
    chosen = chosen_by_round(found)
    for number in range(1, total + 1):
        rng = Rng.named(0, "server", number)
        arrival = {n: -math.log(1 - rng.child("candidate", n).uniform(1)[0]) / SIZES[n] for n in SIZES}
        candidates = sorted(SIZES, key=arrival.get)[:3]
        known = {n: by_hand(problem.clients[n], x) for n in candidates}
        best = sorted(sorted(candidates, key=lambda n: -known[n][0])[:2])
        assert chosen[number] == best
        logged = {r.client: r.value for r in found.history if (r.round, r.metric) == (number, "candidate_loss")}
        assert logged == pytest.approx({n: known[n][0] for n in candidates})
        x = x + 0.7 * (known[best[0]][1] + known[best[1]][1]) / 2
    np.testing.assert_allclose(found.x.numpy(), x, atol=1e-12)
    assert len({tuple(v) for v in chosen.values()}) > 1


def test_skew_with_everybody_is_the_uniform_average():
    problem = batch_norm()
    skew, full = run(Skew(MINI), problem), run(SGDFull(MINI), problem)
    assert torch.equal(skew.x, full.x)
    assert not any(r.task.endswith((":losses", ":row_counts")) for r in skew.asks)
    assert not torch.equal(run(Skew(MINI), problem, clients_per_round=2).x, full.x)


def test_skew_with_all_candidates_takes_the_highest_losses_and_with_m_candidates_none_are_left_to_choose():
    problem = quadratic({"a": [0.1], "b": [5.0], "c": [1.0], "d": [4.0]})
    local = LocalSGD(lr=0.01, steps=Steps(1), batch_size=None)
    found = run(Skew(local, candidates=4), problem, 2, clients_per_round=2)
    assert chosen_by_round(found) == {1: ["b", "d"], 2: ["b", "d"]}
    free = run(Skew(local, candidates=2), problem, 20, clients_per_round=2)
    assert set(itertools.chain(*chosen_by_round(free).values())) == set("abcd")


def test_skew_estimates_losses_on_a_batch():
    problem = logistic()
    found = run(Skew(FULL, candidates=5, loss_batch_size=3), problem, 1, clients_per_round=2)
    whole = run(Skew(FULL, candidates=5), problem, 1, clients_per_round=2)
    one, other = ({r.client: r.value for r in f.history if r.metric == "candidate_loss"} for f in (found, whole))
    assert all(one[n] != other[n] for n in SIZES)
    assert found.history.select("row_gradients") == [
        (r, sum(STEPS * SIZES[n] for n in names) if r else 0) for r, names in [(0, []), (1, chosen_by_round(found)[1])]
    ]


# ---- SL


def test_selective_by_hand():
    problem = logistic()
    x = start(problem).numpy()
    found = run(SelectiveLearning(("a", "c"), 1, FULL, 0.7), problem)
    kept = []
    for _ in range(3):
        known = {n: by_hand(problem.clients[n], x) for n in SIZES}
        kept.append(min("bde", key=lambda n: known[n][0]))
        inside = ["a", "c", kept[-1]]
        x = x + 0.7 * sum(SIZES[n] * known[n][1] for n in inside) / sum(SIZES[n] for n in inside)
    chosen = [sorted(set(names)) for names in chosen_by_round(found).values()]
    assert chosen == [sorted(["a", "c", k]) for k in kept]
    np.testing.assert_allclose(found.models["a"].numpy(), x, atol=1e-12)
    assert list(found.models) == ["a", "c"]
    worst = max("bde", key=lambda n: by_hand(problem.clients[n], start(problem).numpy())[0])
    assert worst != kept[0]


def test_selective_with_all_or_none_is_fedavg():
    problem = batch_norm()
    everybody = run(FedAvg(MINI), problem)
    for method in (SelectiveLearning("a", 4, MINI), SelectiveLearning("a", None, MINI)):
        assert torch.equal(run(method, problem).models["a"], everybody.x)
    inside = problem.with_clients(subset(problem.clients, "bd"))
    alone = run(FedAvg(MINI), inside)
    assert torch.equal(run(SelectiveLearning(("b", "d"), 0, MINI), problem).models["d"], alone.x)
    # Two clients a round leave nobody beside the two internal ones; three leave one.
    assert torch.equal(
        run(SelectiveLearning(("b", "d"), None, MINI), problem, clients_per_round=2).models["d"], alone.x
    )
    one = run(SelectiveLearning(("b", "d"), None, MINI), problem, clients_per_round=3)
    assert torch.equal(one.models["b"], run(SelectiveLearning(("b", "d"), 1, MINI), problem).models["b"])
    assert not torch.equal(one.models["b"], alone.x)


def test_selective_never_keeps_a_client_with_a_high_loss():
    problem = quadratic({"a": [0.0], "b": [0.3], "c": [-0.3], "far": [50.0]})
    found = run(SelectiveLearning("a", 2, LocalSGD(lr=0.1, batch_size=None)), problem, 10)
    assert {c for _, _, c, _ in found.weight_rows} == {"a", "b", "c"}


# ---- OCS


@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_ocs_with_everybody_is_fedavg_bit_by_bit(make):
    problem = make()
    for m in (None, 5):
        ocs, avg = run(OCS(MINI, 0.7), problem, clients_per_round=m), run(FedAvg(MINI, 0.7), problem)
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


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_estimate_of_ocs_is_unbiased_over_all_subsets(m):
    problem = logistic()
    x = start(problem)
    delta = {n: by_hand(problem.clients[n], x.numpy())[1] for n in SIZES}
    share = {n: SIZES[n] / sum(SIZES.values()) for n in SIZES}
    p = inclusion_probabilities([share[n] * np.linalg.norm(delta[n]) for n in SIZES], m).tolist()
    mean, total, seen = torch.zeros(4, dtype=torch.float64), 0.0, set()
    with federation_of(problem, clients_per_round=m) as federation:
        method = OCS(FULL)
        state = method.init(x, federation)
        for wanted in itertools.product([False, True], repeat=5):
            names = {n for n, w in zip(SIZES, wanted, strict=True) if w}
            chance = math.prod(q if w else 1 - q for q, w in zip(p, wanted, strict=True))
            new, log = method.round(state, federation, Drawn(names))
            assert log["inclusion_probability"] == pytest.approx(dict(zip(SIZES, p, strict=True)), abs=1e-12)
            mean += chance * (new.x - x)
            total += chance
            if chance > 0:
                seen.add(log["selected"])
                expected = sum(
                    (share[n] / q * delta[n] for n, q in zip(SIZES, p, strict=True) if n in names), np.zeros(4)
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
    each = {n: 10 if n == "d" else 12 for n in SIZES}  # three batches of four, or of four, four and two
    assert found.history.select("row_gradients")[-1] == (8, 8 * sum(each.values()))  # the drawn do not train again
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


def test_ocs_does_not_depend_on_workers_and_a_duplicated_client_counts_twice():
    problem = logistic()
    assert_same_bits(*(run(OCS(MINI), problem, 6, clients_per_round=2, workers=w) for w in (1, 2)))
    twice = problem.with_clients(Clients([*problem.clients, Client("a-again", problem.clients["a"].train)]))
    assert torch.equal(run(OCS(FULL), twice).x, run(FedAvg(FULL), twice).x)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Skew(lr=0), "Skew.lr must be a number > 0; got 0"),
        (
            lambda: Skew(candidates=0),
            r"Skew.candidates must be None \(twice the clients of a round\) or an int > 0; got 0",
        ),
        (lambda: Skew(loss_batch_size=0), r"Skew.loss_batch_size must be None \(all rows\) or an int > 0; got 0"),
        (
            lambda: run(Skew(candidates=2), logistic(), clients_per_round=3),
            r"Skew.candidates must be between 3 \(clients_per_round\) and 5 \(clients\); got 2",
        ),
        (lambda: run(Skew(candidates=6), logistic(), clients_per_round=3), "and 5 .clients.; got 6"),
        (lambda: SelectiveLearning(), "SelectiveLearning.internal must be a client's name, or several names"),
        (lambda: SelectiveLearning("a", -1), "SelectiveLearning.budget must be None or an int >= 0; got -1"),
        (lambda: SelectiveLearning("a", lr=0), "SelectiveLearning.lr must be a number > 0; got 0"),
        (
            lambda: run(SelectiveLearning("z"), logistic()),
            "SelectiveLearning.internal names 'z', which is not a client",
        ),
        (lambda: run(SelectiveLearning("a", 5), logistic()), "budget = 5 is more than the 4 external clients"),
        (lambda: OCS(lr=-1), "OCS.lr must be a number > 0; got -1"),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
