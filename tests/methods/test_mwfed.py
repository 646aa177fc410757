"""What must hold of MW-Fed, and rounds recomputed with numpy alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import (
    CENTRES,
    FULL,
    LOCAL,
    MINI,
    assert_refused_by_the_command,
    logged,
    logged_at,
    loss,
    participants,
    rows,
    run,
    sgd,
    uniform,
)

from coterie import MWFed
from coterie.attacks import LossInflation
from coterie.base.errors import InputError
from coterie.config.local import Epochs, Steps
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    quadratic,
    start,
)

MUTANTS = {
    "mwfed": [
        ("algorithms/mwfed.py", "(replies.gap > 0)", "(replies.gap < 0)"),
        (
            "algorithms/mwfed.py",
            "self.local.steps.count * len(positions) * weights",
            "self.local.steps.count * len(positions) * weights.mean()",
        ),
        (
            "algorithms/mwfed.py",
            "weights=weights, x=state.x",
            "weights=weights * 0 + 1, x=state.x",
        ),
        (
            "algorithms/mwfed.py",
            "rate_of(self.lr, federation.round), federation.dim)",
            "1.0, federation.dim)",
        ),
    ],
}


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_mwfed_without_a_rate_is_uniform_averaging_with_equal_steps(make):
    problem = make()
    found = run(MWFed(MINI, rate=0.0, lr=0.6, warmup_steps=2), problem)
    assert_close(found.x, uniform(problem, MINI, lr=0.6))
    assert set(logged(found, "steps").values()) == {3.0}
    assert found.weights["*"] == pytest.approx(dict.fromkeys(SIZES, 0.2), abs=1e-15)
    assert (
        run(MWFed(MINI, rate=1.0, lr=0.6, warmup_steps=2), problem).x - found.x
    ).abs().max() > 1e-4


@pytest.mark.in_turn
def test_a_client_that_is_never_content_gets_all_the_weight_and_the_steps():
    problem = quadratic(CENTRES)
    found = run(
        MWFed(FULL, rate=1.0, requirements={"a": 1e6, "b": 1e6, "c": -1.0}), problem, 40
    )
    assert found.weights["*"]["c"] == pytest.approx(1, abs=1e-12)
    assert {k: v for k, v in logged(found, "steps").items() if k[0] == 40} == {
        (40, "a"): 1,
        (40, "b"): 1,
        (40, "c"): 9,
    }
    assert_close(found.x, torch.tensor(CENTRES["c"], dtype=torch.float64), 1e-6)


def test_equal_gaps_leave_mwfed_uniform():
    problem = quadratic(CENTRES)
    found = run(
        MWFed(FULL, rate=1.0, requirements=dict.fromkeys(CENTRES, -1.0)), problem
    )
    assert_close(found.x, uniform(problem, FULL))


def test_weights_of_absent_clients_and_far_powers_never_run_out():
    need = {"a": 1e6, "b": 1e6, "c": -1.0}
    found = run(
        MWFed(FULL, rate=900.0, requirements=need),
        quadratic(CENTRES),
        12,
        clients_per_round=2,
    )
    assert torch.isfinite(found.x).all()
    pairs = {
        r: {c: v for n, _, c, v in found.weight_rows if n == r} for r in range(1, 13)
    }
    assert all(sum(w.values()) == pytest.approx(1) for w in pairs.values())
    assert any(
        set(w) == {"a", "b"} and w["a"] == pytest.approx(0.5) for w in pairs.values()
    )


@pytest.mark.parametrize(("gap", "steps"), [(100.0, 5.0), (-1.0, 3.0)])
def test_an_attacker_who_stays_is_weighed_by_the_gap_that_it_reports(gap, steps):
    """Both others are content; asked whether it stays the attacker would say -1."""
    problem, need = quadratic(CENTRES), dict.fromkeys(CENTRES, 1e6)
    attack = LossInflation(gap=gap, sigma=0.0, stay=True, on=("a",))
    found = run(
        MWFed(replace(FULL, steps=Steps(3)), rate=1.0, requirements=need),
        problem,
        1,
        attack=attack,
    )
    assert logged_at(found, 1, "gap")["a"] == gap
    assert logged_at(found, 1, "steps")["a"] == steps


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"rate": -0.1}, r"MWFed.rate must be a number >= 0; got -0.1"),
    ({"lr": 0}, r"MWFed.lr must be a number > 0; got 0"),
    ({"warmup_steps": 0}, r"MWFed.warmup_steps must be an int > 0; got 0"),
    ({"requirements": "test"}, r'MWFed.requirements must be "train", "validation", or a table'),
    ({"local": replace(MINI, steps=Epochs(2))}, r"MWFed shares out local steps .* with Epochs\(count=2\); give local steps"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        MWFed(**fields)


def test_a_client_that_does_not_exist_is_refused():
    with pytest.raises(
        InputError, match=r"MWFed.requirements names 'x', which is not a client"
    ):
        run(MWFed(requirements={"x": 1.0}), logistic())


def test_a_wrong_pair_ends_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "mwfed", "local.epochs=2", "MWFed shares out local steps", capsys, tmp_path
    )


@pytest.mark.parametrize("requirements", ["train", "validation"])
def test_mwfed_with_absent_clients_written_in_numpy(requirements):
    problem, rate, server_lr = logistic(), 0.9, 0.6
    found = run(
        MWFed(LOCAL, rate, server_lr, 4, requirements), problem, 5, clients_per_round=4
    )
    x0 = start(problem).numpy()
    solo = {n: sgd(x0, problem, n, 0, "warmup", steps=4) for n in SIZES}
    rho = {n: loss(w, *rows(problem, n, requirements)) for n, w in solo.items()}
    x, w, seen = x0, dict.fromkeys(SIZES, 0.2), set()
    for number in range(1, 6):
        chosen = participants(found, number)
        gap = {n: loss(x, *rows(problem, n)) - rho[n] for n in chosen}
        for name in chosen:
            w[name] *= math.exp(rate * (gap[name] > 0))
        total = sum(w.values())
        w = {n: v / total for n, v in w.items()}
        share = {n: w[n] / sum(w[m] for m in chosen) for n in chosen}
        steps = {n: max(1, round(3 * 4 * share[n])) for n in chosen}
        x = x + server_lr * sum(
            share[n] * (sgd(x, problem, n, number, steps=steps[n]) - x) for n in chosen
        )
        assert logged_at(found, number, "gap") == pytest.approx(gap, abs=1e-12)
        assert logged_at(found, number, "steps") == steps
        seen |= set(steps.values())
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-11)
    assert len(seen) > 2
