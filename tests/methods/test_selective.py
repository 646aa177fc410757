"""What must hold of selective learning, and rounds recomputed with numpy alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from short_runs import MINI, chosen_by_round, descent, loss, rows, run

from coterie import FedAvg, SelectiveLearning
from coterie.base.errors import InputError
from coterie.config.local import LocalSGD, Steps
from federations import (
    SIZES,
    batch_norm,
    logistic,
    quadratic,
    start,
    subset,
)

MUTANTS = {
    "selective": [
        (
            "algorithms/selective.py",
            "replies.loss.argsort(stable=True)",
            "replies.loss.argsort(descending=True, stable=True)",
        ),
        (
            "algorithms/selective.py",
            'need="all", x=state.x,',
            'need="all", weights=state.x.new_ones(len(chosen)), x=state.x,',
        ),
        (
            "algorithms/selective.py",
            "max(0, federation.per_round - len(state.internal))",
            "federation.per_round",
        ),
    ],
}

FULL = LocalSGD(lr=0.4, steps=Steps(2), batch_size=None)


def test_selective_by_hand():
    problem = logistic()
    x = start(problem).numpy()
    found = run(SelectiveLearning(("a", "c"), 1, FULL, 0.7), problem)
    kept = []
    for _ in range(3):
        known = {n: loss(x, *rows(problem, n)) for n in SIZES}
        kept.append(min("bde", key=lambda n: known[n]))
        inside = ["a", "c", kept[-1]]
        x = x + 0.7 * sum(
            SIZES[n] * descent(problem, n, x, FULL) for n in inside
        ) / sum(SIZES[n] for n in inside)
    chosen = [sorted(set(names)) for names in chosen_by_round(found).values()]
    assert chosen == [sorted(["a", "c", k]) for k in kept]
    np.testing.assert_allclose(found.models["a"].numpy(), x, atol=1e-12)
    assert list(found.models) == ["a", "c"]
    worst = max("bde", key=lambda n: loss(start(problem).numpy(), *rows(problem, n)))
    assert worst != kept[0]


def test_selective_with_all_or_none_is_fedavg():
    problem = batch_norm()
    everybody = run(FedAvg(MINI), problem)
    for method in (SelectiveLearning("a", 4, MINI), SelectiveLearning("a", None, MINI)):
        assert torch.equal(run(method, problem).models["a"], everybody.x)
    inside = problem.with_clients(subset(problem.clients, "bd"))
    alone = run(FedAvg(MINI), inside)
    assert torch.equal(
        run(SelectiveLearning(("b", "d"), 0, MINI), problem).models["d"], alone.x
    )
    # Two clients a round leave nobody beside the two internal ones; three leave one.
    assert torch.equal(
        run(
            SelectiveLearning(("b", "d"), None, MINI), problem, clients_per_round=2
        ).models["d"],
        alone.x,
    )
    one = run(SelectiveLearning(("b", "d"), None, MINI), problem, clients_per_round=3)
    assert torch.equal(
        one.models["b"],
        run(SelectiveLearning(("b", "d"), 1, MINI), problem).models["b"],
    )
    assert not torch.equal(one.models["b"], alone.x)


def test_selective_never_keeps_a_client_with_a_high_loss():
    problem = quadratic({"a": [0.0], "b": [0.3], "c": [-0.3], "far": [50.0]})
    found = run(
        SelectiveLearning("a", 2, LocalSGD(lr=0.1, batch_size=None)), problem, 10
    )
    assert {c for _, _, c, _ in found.weight_rows} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: SelectiveLearning(),
            "SelectiveLearning.internal must be a client's name, or several names",
        ),
        (
            lambda: SelectiveLearning("a", -1),
            "SelectiveLearning.budget must be None or an int >= 0; got -1",
        ),
        (
            lambda: SelectiveLearning("a", lr=0),
            "SelectiveLearning.lr must be a number > 0; got 0",
        ),
        (
            lambda: run(SelectiveLearning("z"), logistic()),
            "SelectiveLearning.internal names 'z', which is not a client",
        ),
        (
            lambda: run(SelectiveLearning("a", 5), logistic()),
            "budget = 5 is more than the 4 external clients",
        ),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
