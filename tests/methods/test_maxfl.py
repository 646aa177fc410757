"""What MaxFL must do: reductions, invariances, requirements, the flexible pool, unseen clients, errors that name a field, and
rounds recomputed with numpy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import LOCAL, logged_at, loss, rows, run, sgd, trained

from coterie import FedAvg, Local, MaxFL, SGDIdeal
from coterie.attacks import LossInflation
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, RunError
from coterie.compute import appeal
from coterie.config.local import LocalSGD, Schedule, Steps
from coterie.config.run import Appeal
from coterie.contract.task import Task
from coterie.run.experiment import Experiment
from coterie.run.result import Run
from federations import (
    SIZES,
    Problem,
    assert_close,
    assert_same_bits,
    batch_norm,
    dropout,
    logistic,
    quadratic,
    regression,
    start,
    subset,
)

MUTANTS = {
    "maxfl": [
        (
            "compute/appeal.py",
            "appeals = test < solo[:, 2]",
            "appeals = test <= solo[:, 2]",
        ),
        (
            "compute/appeal.py",
            "(train < solo_values[:, 1])",
            "(train <= solo_values[:, 1])",
        ),
        ("compute/appeal.py", "if gap < 0)", "if gap <= 0)"),
        (
            "compute/appeal.py",
            "torch.where(appeals, right, solo[:, 3])",
            "torch.maximum(right, solo[:, 3])",
        ),
        (
            "solvers/appeal.py",
            "torch.sigmoid(gap) * torch.sigmoid(-gap)",
            "torch.sigmoid(gap)",
        ),
        ("solvers/appeal.py", "(gap >= 0).to(gap.dtype)", "(gap > 0).to(gap.dtype)"),
        ("algorithms/maxfl.py", "q / (q.sum() + self.eps)", "q / q.sum()"),
        (
            "algorithms/maxfl.py",
            "if tuning_steps:",
            "if False:",
        ),
        (
            "algorithms/maxfl.py",
            "federation.round <= self.mandatory_rounds",
            "federation.round < self.mandatory_rounds",
        ),
        (
            "compute/appeal.py",
            "part.only(with_rows).loss(models[with_rows], part=rows)",
            "part.only(with_rows).loss(models[with_rows])",
        ),
        (
            "compute/appeal.py",
            "replace(cohort.only(positions), round=0)",
            "cohort.only(positions)",
        ),
        ("compute/appeal.py", "(need - train).clamp(min=0)", "(need - train)"),
    ],
}

MINI = LocalSGD(lr=0.2, steps=Steps(2), batch_size=4)
FULL = LocalSGD(lr=0.1, steps=Steps(2), batch_size=None)
ONE = LocalSGD(lr=0.1, steps=Steps(1), batch_size=None)
CENTRES = {"a": [1.0], "b": [-1.0], "c": [3.0]}


def shifted(problem: Problem, gaps: Mapping[str, float]) -> dict[str, float]:
    """Requirements that give these gaps at the initial model of a `quadratic` problem, which is 0."""
    return {n: sum(c * c for c in CENTRES[n]) - gap for n, gap in gaps.items()}


def q_of(found: Run, round_: int = 1) -> dict[str, float]:
    return {
        r.client: r.value for r in found.history if (r.round, r.metric) == (round_, "q")
    }


def drawn(found: Run, round_: int) -> set[str]:
    return {c for number, _, c, _ in found.weight_rows if number == round_}


# ---- weights


@pytest.mark.in_turn(but=("sigmoid", "relu", "log"))
@pytest.mark.parametrize("surrogate", ["sigmoid", "relu", "exp", "log", "linear"])
def test_equal_gaps_are_uniform_averaging(surrogate):
    problem = quadratic(CENTRES, 4)
    averaged = trained(FedAvg(FULL), problem, 1)
    for gap in (0.0, 0.7, 3.0):
        method = MaxFL(
            FULL,
            requirements=shifted(problem, dict.fromkeys(CENTRES, gap)),
            surrogate=surrogate,
        )
        found = trained(method, problem, 1)
        assert found.weights["*"] == pytest.approx(
            dict.fromkeys(CENTRES, 1 / 3), abs=1e-12
        )
        assert_close(found.x, averaged.x, 1e-7)  # eps stays in the denominator


def test_weights_are_symmetric_around_a_gap_of_zero_and_largest_there():
    problem = quadratic(CENTRES)
    q = q_of(
        run(
            MaxFL(ONE, requirements=shifted(problem, {"a": -1.3, "b": 1.3, "c": 0.0})),
            problem,
            1,
        )
    )
    assert q["a"] == pytest.approx(q["b"], rel=1e-12)
    s = 1 / (1 + math.exp(-1.3))
    assert q == pytest.approx(
        {"a": s * (1 - s), "b": s * (1 - s), "c": 0.25}, rel=1e-12
    )


@pytest.mark.parametrize("far", [-60.0, 60.0])
def test_a_client_far_from_its_requirement_is_ignored(far):
    problem = quadratic(CENTRES)
    found = run(
        MaxFL(FULL, requirements=shifted(problem, {"a": 0.2, "b": 0.4, "c": far})),
        problem,
        1,
    )
    two = problem.with_clients(subset(problem.clients, "ab"))
    without = run(
        MaxFL(FULL, requirements=shifted(problem, {"a": 0.2, "b": 0.4})), two, 1
    )
    assert_close(found.x, without.x)
    assert found.weights["*"]["c"] < 1e-20


def test_a_scaled_server_rate_scales_the_step():
    problem = logistic()
    x = start(problem)
    whole, half = (run(MaxFL(MINI, lr=lr), problem, 1) for lr in (1.0, 0.5))
    assert_close(half.x - x, 0.5 * (whole.x - x))
    assert half.weights == whole.weights
    rates = [found.history.select("effective_lr")[0][1] for found in (whole, half)]
    assert rates[0] == pytest.approx(2 * rates[1])
    assert rates[0] == pytest.approx(1 / (whole.history.select("sum_q")[0][1] + 1e-8))


@pytest.mark.in_turn
def test_a_large_eps_freezes_the_model_but_not_the_statistics():
    problem = batch_norm()
    x = start(problem)
    dim = sum(p.numel() for p in problem.model.parameters())
    still, moving = (
        trained(MaxFL(MINI, eps=e, warmup_steps=5), problem) for e in (1e15, 1e-8)
    )
    assert (still.x[:dim] - x[:dim]).abs().max() < 1e-12
    assert (moving.x[:dim] - x[:dim]).abs().max() > 0.01
    assert (still.x[dim:] - x[dim:]).abs().min() > 1e-4
    steps = [
        (trained(MaxFL(MINI, eps=e, warmup_steps=5), problem, 1).x - x)[:dim].norm()
        for e in (1e-8, 0.1, 1.0, 10.0)
    ]
    assert steps == sorted(steps, reverse=True)


def test_eps_shrinks_a_step_by_its_share():
    problem = quadratic(CENTRES)
    needs = shifted(problem, dict.fromkeys(CENTRES, 0.0))
    plain, damped = (
        run(MaxFL(ONE, eps=e, requirements=needs), problem, 1).x for e in (1e-12, 0.75)
    )
    assert_close(damped, plain / 2, 1e-9)  # sum q = 3/4


@pytest.mark.in_turn
def test_convex_surrogates_find_the_plain_average_and_the_sigmoid_does_not():
    """Lemma A.2: two clients, gaps (x -+ 3/2)^2, from a start off the middle."""
    problem = quadratic({"a": [1.2], "b": [-1.8]})
    method = MaxFL(ONE, requirements={"a": 0.0, "b": 0.0}, warmup_steps=1)
    for surrogate in ("relu", "exp", "log", "linear"):
        convex = trained(replace(method, surrogate=surrogate), problem, 80)
        assert float(convex.x) == pytest.approx(-0.3, abs=1e-6), surrogate
    assert abs(float(trained(method, problem, 80).x) + 0.3) > 0.5


def test_nobody_near_its_requirement_moves_nothing():
    problem = quadratic(CENTRES)
    found = run(MaxFL(FULL, requirements=dict.fromkeys(CENTRES, -1e4)), problem)
    assert torch.equal(found.x, start(problem))
    assert found.history.select("sum_q")[-1] == (3, 0.0)


def test_order_of_clients_does_not_matter():
    problem = logistic()
    names = dict(zip("abcde", "dbeac", strict=True))
    other = Clients(
        [Client(names[c.name], c.train, c.validation, c.test) for c in problem.clients]
    )
    needs = {"a": 0.5, "c": 0.7}
    one = run(MaxFL(FULL, requirements=needs), problem)
    two = run(
        MaxFL(FULL, requirements={names[k]: v for k, v in needs.items()}),
        problem.with_clients(other),
    )
    assert_close(one.x, two.x)
    for name, weight in one.weights["*"].items():
        assert two.weights["*"][names[name]] == pytest.approx(weight, abs=1e-12)


# ---- requirements


def test_requirements_of_the_users_own_count_for_those_who_are_named():
    problem = quadratic(CENTRES)
    method = MaxFL(ONE, requirements={"a": 0.25}, warmup_steps=1)
    gaps = {
        r.client: r.value for r in run(method, problem, 1).history if r.metric == "gap"
    }
    own = {
        n: (0.8 * c[0]) ** 2 for n, c in CENTRES.items()
    }  # one step from 0 goes a fifth of the way
    assert gaps == pytest.approx(
        {"a": 1 - 0.25, "b": 1 - own["b"], "c": 9 - own["c"]}, rel=1e-12
    )


def test_requirements_are_a_value():
    table = MaxFL(requirements={"a": 0.25, "b": 1})
    assert table == MaxFL(requirements=(("a", 0.25), ("b", 1)))
    assert hash(table) != hash(MaxFL())


def test_requirements_in_a_toml_file_are_a_table_and_survive_being_written():
    tables = {
        "data": {"name": "digits"},
        "methods": [{"name": "maxfl", "requirements": {"a": 0.25, "b": 1}}],
    }
    for _ in range(2):
        experiment = Experiment.from_tables(tables, "x.toml")
        assert experiment.build_method(experiment.methods[0]).requirements == (
            ("a", 0.25),
            ("b", 1),
        )
        tables = experiment.tables()


@pytest.mark.in_turn(but="dropout")
@pytest.mark.parametrize("make", [logistic, dropout, regression])
def test_a_requirement_does_not_depend_on_when_its_client_is_first_asked(make):
    problem = make()
    local = replace(MINI, lr=Schedule(0.2, (2,), 0.5))

    def gaps(found: Run) -> dict[str, float]:
        return {
            f"{r.round} {r.client}": r.value for r in found.history if r.metric == "gap"
        }

    early = run(MaxFL(local, lr=1e-9), problem, 6, clients_per_round=2)
    late = _run_without_measuring(
        MaxFL(local, lr=1e-9), problem, 6, clients_per_round=2
    )
    assert gaps(early) == gaps(late)
    assert len({k.split()[1] for k in gaps(early)}) > 2


def _run_without_measuring(method, problem, rounds, **options) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(MaxFL, "measure")
        return run(method, problem, rounds, **options)


def test_the_initial_model_travels_only_while_somebody_lacks_a_requirement():
    problem = logistic()
    found = _run_without_measuring(MaxFL(MINI), problem, 8, clients_per_round=2)
    size = start(problem).numel() * 8
    down = {
        r.round: r.bytes_down for r in found.asks if r.task.endswith(":local_update")
    }
    seen: set[str] = set()
    for number in range(1, 9):
        news = not drawn(found, number) <= seen
        assert down[number] - min(down.values()) == pytest.approx(
            size if news else 0, abs=8
        )
        seen |= drawn(found, number)
    assert seen == set(SIZES)
    assert len(set(down.values())) == 2


def test_a_client_that_lost_its_requirement_gets_it_back(monkeypatch):
    problem = logistic()
    honest = Task.__call__
    lost = []

    def call(self, cohort, /, **payload):
        if (
            self.name.endswith(":local_update")
            and cohort.round == 2
            and payload["start"] is None
        ):
            lost.extend(n for n in cohort.names if n == "c")
            cohort.memory._memory.forget(["c"])
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)
    found = _run_without_measuring(MaxFL(MINI), problem, 3)
    assert lost
    assert "the requirement is lost" in found.failures["c"]
    assert {n: drawn(found, n) for n in (1, 2, 3)} == {
        1: set(SIZES),
        2: set(SIZES) - {"c"},
        3: set(SIZES),
    }


def test_validation_rows_are_kept_where_requirements_are_losses_on_them():
    problem = logistic()
    kept, folded = (
        run(MaxFL(MINI, requirements=r), problem, merge_validation=True)
        for r in ("validation", "train")
    )
    assert {r["n_train"] - SIZES[r["client"]] for r in kept.summary} == {0}
    assert {r["n_train"] - SIZES[r["client"]] for r in folded.summary} == {6}
    assert q_of(kept) != q_of(run(MaxFL(MINI), problem))


def test_tuning_changes_the_gap_and_not_the_update():
    problem = quadratic(CENTRES)
    needs = dict.fromkeys(CENTRES, 0.5)
    plain, tuned = (
        run(MaxFL(ONE, requirements=needs, tuning_steps=t), problem, 1) for t in (0, 3)
    )
    gaps = [
        {r.client: r.value for r in f.history if r.metric == "gap"}
        for f in (plain, tuned)
    ]
    for name, centre in CENTRES.items():
        assert gaps[0][name] == pytest.approx(centre[0] ** 2 - 0.5)
        assert gaps[1][name] == pytest.approx((0.8**3 * centre[0]) ** 2 - 0.5)
    q = q_of(tuned)
    expected = sum(q[n] * 0.2 * c[0] for n, c in CENTRES.items()) / sum(q.values())
    assert float(tuned.x) == pytest.approx(expected, rel=1e-7)


# ---- flexible participation


def test_clients_opt_out_when_the_model_leaves_them_and_in_when_it_comes_to_them():
    centres = {"a": [2.0], "b": [2.2], "c": [0.0]}
    needs = {"a": 3.5, "b": 1.0, "c": 0.05}
    method = MaxFL(
        FULL, warmup_steps=1, requirements=needs, flexible=True, mandatory_rounds=1
    )
    found = run(method, quadratic(centres), 8)
    assert drawn(found, 1) == {"a", "b", "c"}
    assert found.history.select("pool")[0] == (1, 3.0)
    for number in range(2, 9):
        x = float(trained(method, quadratic(centres), number - 1).x)
        expected = {n for n, c in centres.items() if (x - c[0]) ** 2 < needs[n]}
        assert drawn(found, number) == expected
    pools = [drawn(found, n) for n in range(2, 9)]
    assert pools[0] == {"a"}
    assert pools[-1] == {"a", "b"}


def test_an_empty_pool_skips_the_round_and_says_so():
    needs = dict.fromkeys(CENTRES, 1e-6)
    found = run(
        MaxFL(ONE, requirements=needs, flexible=True, mandatory_rounds=2),
        quadratic(CENTRES),
        5,
    )
    assert found.history.select("skipped") == [
        (1, 0.0),
        (2, 0.0),
        (3, 1.0),
        (4, 1.0),
        (5, 1.0),
    ]
    assert torch.equal(
        found.x,
        run(
            MaxFL(ONE, requirements=needs, flexible=True, mandatory_rounds=2),
            quadratic(CENTRES),
            2,
        ).x,
    )
    assert {n for n, *_ in found.weight_rows if n > 2} == set()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (
            MaxFL(
                ONE,
                requirements=dict.fromkeys(CENTRES, 1e-6),
                flexible=True,
                mandatory_rounds=1,
            ),
            {},
        ),
        (
            FedAvg(ONE, lr=40.0),
            {"appeal": Appeal(warmup_steps=50, leave=True, mandatory_rounds=1)},
        ),
    ],
)
def test_that_nobody_is_left_is_said_once(caplog, method, settings):
    run(method, quadratic(CENTRES), 4, **settings)
    said = [r.getMessage() for r in caplog.records if "appeals to no client" in r.msg]
    assert len(said) == 1
    assert said[0].startswith(f"{type(method).__name__}: in round 2 ")
    caplog.clear()
    run(MaxFL(ONE), quadratic(CENTRES), 2)
    assert "appeals to no client" not in caplog.text


def test_m_are_drawn_from_the_pool_and_all_of_it_where_it_is_smaller():
    problem = logistic()
    found = run(
        MaxFL(MINI, flexible=True, mandatory_rounds=4, warmup_steps=1),
        problem,
        10,
        clients_per_round=2,
    )
    pool = dict(found.history.select("pool"))
    for number in range(1, 11):
        assert len(drawn(found, number)) == min(2, int(pool[number]))
    assert {pool[n] for n in range(1, 5)} == {5.0}
    # While the pool is everybody, the draws are those of any other method.
    fixed = run(MaxFL(MINI, warmup_steps=1), problem, 4, clients_per_round=2)
    assert [drawn(found, n) for n in range(1, 5)] == [
        drawn(fixed, n) for n in range(1, 5)
    ]


@pytest.mark.in_turn
def test_flexible_rounds_are_the_same_on_any_number_of_workers_and_after_a_resume(
    tmp_path,
):
    problem = batch_norm()
    method, few = (
        MaxFL(MINI, flexible=True, mandatory_rounds=1, warmup_steps=5),
        {"clients_per_round": 3},
    )
    whole = run(method, problem, 4, **few)
    assert_same_bits(whole, run(method, problem, 4, workers=2, strict_wire=True, **few))
    run(method, problem, 2, checkpoint=tmp_path, **few)
    assert_same_bits(
        whole, run(method, problem, 4, checkpoint=tmp_path, resume=True, **few)
    )


@pytest.mark.in_turn(but="1")
@pytest.mark.parametrize("steps", [5, 1])
def test_any_method_whose_clients_may_leave_has_the_pool_of_a_flexible_maxfl(steps):
    problem, leaving = (
        logistic(),
        Appeal(warmup_steps=steps, leave=True, mandatory_rounds=2),
    )
    own = run(
        MaxFL(MINI, warmup_steps=steps, flexible=True, mandatory_rounds=2),
        problem,
        6,
        clients_per_round=2,
    )
    ruled = run(
        MaxFL(MINI, warmup_steps=steps), problem, 6, clients_per_round=2, appeal=leaving
    )
    assert torch.equal(own.x, ruled.x)
    for metric in ("pool", "skipped", "gm_appeal"):
        assert own.history.select(metric) == ruled.history.select(metric)
    averaged = run(FedAvg(MINI), problem, 6, clients_per_round=2, appeal=leaving)
    assert averaged.history.select("pool")[:2] == [(1, 5.0), (2, 5.0)]
    drawn_after = [len(drawn(averaged, number)) for number in range(3, 7)]
    assert drawn_after == [
        min(2, int(pool)) for _, pool in averaged.history.select("pool")[2:]
    ]


def test_where_nobody_stays_rounds_are_skipped_whatever_the_method():
    leaving = Appeal(warmup_steps=50, leave=True, mandatory_rounds=1)
    found = run(FedAvg(ONE, lr=40.0), quadratic(CENTRES), 4, appeal=leaving)
    assert found.history.select("skipped") == [(1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert [number for number, _ in found.history.select("slack")] == [0, 1, 2, 3, 4]
    assert torch.equal(found.x, run(FedAvg(ONE, lr=40.0), quadratic(CENTRES), 1).x)


@pytest.mark.in_turn
def test_a_run_whose_clients_leave_is_the_same_on_two_workers_and_after_a_resume(
    tmp_path,
):
    problem, options = (
        batch_norm(),
        {
            "clients_per_round": 3,
            "appeal": Appeal(leave=True, warmup_steps=5, mandatory_rounds=1),
        },
    )
    whole = run(FedAvg(MINI), problem, 4, **options)
    assert_same_bits(
        whole, run(FedAvg(MINI), problem, 4, workers=2, strict_wire=True, **options)
    )
    run(FedAvg(MINI), problem, 2, checkpoint=tmp_path, **options)
    assert_same_bits(
        whole,
        run(FedAvg(MINI), problem, 4, checkpoint=tmp_path, resume=True, **options),
    )


def test_appeal_needs_one_model_and_clients_that_the_run_draws():
    with pytest.raises(
        InputError,
        match=r"run\.appeal needs one model for all clients, and Local has several",
    ):
        run(Local(MINI), logistic(), 1, appeal=Appeal())
    with pytest.raises(
        InputError,
        match="SGDIdeal chooses its clients itself; leave out one of the two",
    ):
        run(
            SGDIdeal(MINI, members=("a", "b")), logistic(), 1, appeal=Appeal(leave=True)
        )


def test_a_liar_may_say_that_it_stays():
    away = dict.fromkeys(CENTRES, 1e-6)
    method = MaxFL(ONE, requirements=away, flexible=True, mandatory_rounds=0)
    for stay, pool in ((False, 0.0), (True, 1.0)):
        attack = LossInflation(gap=100.0, sigma=0.0, stay=stay, on=("a",))
        found = run(method, quadratic(CENTRES), 2, attack=attack)
        assert found.history.select("pool") == [(1, pool), (2, pool)]
        assert logged_at(found, 1, "gap") == ({"a": 100.0} if stay else {})


@pytest.mark.in_turn
def test_a_linear_surrogate_is_fedavg_among_clients_of_equal_size():
    full = logistic()
    same = Clients(
        [
            Client(c.name, c.train.select(slice(0, 8)), c.validation, c.test)
            for c in full.clients
        ]
    )
    for problem in (full.with_clients(same), batch_norm()):
        equal = len(set(problem.clients.train.sizes.tolist())) == 1
        found = run(
            MaxFL(MINI, 0.7, 1e-30, 2, surrogate="linear"), problem, clients_per_round=4
        )
        plain = run(FedAvg(MINI, 0.7), problem, clients_per_round=4)
        assert torch.allclose(found.x, plain.x, rtol=1e-12, atol=1e-13) == equal
        assert set(found.weights["*"].values()) == {0.25}


@pytest.mark.in_turn
def test_clients_of_plain_averaging_opt_out_too():
    """The model follows the mean of those who stay, which is far from c; MaxFL itself starts by ignoring c."""
    centres, needs = {"a": [1.0], "b": [1.4], "c": [9.0]}, dict.fromkeys("abc", 3.6)
    method = MaxFL(FULL, 1.0, 1e-8, 1, needs, True, 3, surrogate="linear")
    found = run(method, quadratic(centres), 40, evaluate=4)
    x = float(trained(method, quadratic(centres), 3).x)
    mean = sum(c for (c,) in centres.values()) / 3
    assert x == pytest.approx(
        mean * (1 - 0.8**6), rel=1e-7
    )  # everybody alike, for two steps a round
    pool = {n for n, (c,) in centres.items() if (x - c) ** 2 < needs[n]}
    assert drawn(found, 4) == pool == {"a", "b"}
    assert float(found.x) == pytest.approx(1.2, abs=1e-3)


# ---- appeal, to seen and unseen clients


def with_unseen(problem: Problem, seen: str = "abc") -> Problem:
    others = Clients([c for c in problem.clients if c.name not in seen])
    return Problem(
        Clients([problem.clients[n] for n in seen], unseen=others), problem.model
    )


def test_unseen_clients_are_measured_and_never_trained_on():
    problem = logistic()
    found = run(MaxFL(MINI), with_unseen(problem))
    alone = run(MaxFL(MINI), problem.with_clients(subset(problem.clients, "abc")))
    assert torch.equal(found.x, alone.x)
    keys = {r.metric for r in found.history}
    for key in ("gm_appeal", "preferred_accuracy", "best_of_two"):
        assert {key, f"{key}_unseen", f"{key}_tuned", f"{key}_tuned_unseen"} <= keys
        assert found.history.select(key) == alone.history.select(key)
    for key in (
        "appeal_train",
        "slack",
        "train_loss",
        "test_loss",
        "test_accuracy",
        "objective_everyone",
    ):
        assert {key, f"{key}_unseen"} <= keys
    assert not any(k.endswith("_unseen") for k in {r.metric for r in alone.history})


def test_a_model_that_is_as_good_as_the_clients_own_appeals_to_nobody():
    """With steps of no length each client's own model is the initial one: all losses and requirements are equal."""
    local = replace(MINI, lr=1e-300)
    found = run(
        MaxFL(local, flexible=True, mandatory_rounds=0, warmup_steps=1), logistic(), 1
    )
    for key in ("gm_appeal", "gm_appeal_tuned", "appeal_train", "slack"):
        assert [value for _, value in found.history.select(key)] == [0.0, 0.0], key
    assert found.history.select("pool") == [(1, 0.0)]


def test_the_preferred_model_has_the_lower_loss_not_the_higher_accuracy():
    losses, right = torch.tensor([0.5, 0.5]), torch.tensor([0.6, 0.9])
    own = torch.tensor(
        [[0.0, 0.0, 0.7, 0.8], [0.0, 0.0, 0.2, 0.7]]
    )  # test loss and accuracy are the last two
    appeals, preferred, best = appeal._preferences(losses, right, own)
    assert appeals.tolist() == [1, 0]
    assert_close(preferred, torch.tensor([0.6, 0.7]))
    assert_close(best, torch.tensor([0.8, 0.9]))


def test_measuring_costs_the_method_nothing_but_warm_ups():
    problem = logistic()
    measured = run(MaxFL(MINI), problem, 3, evaluate=1)
    seldom = run(MaxFL(MINI), problem, 3, evaluate=3)
    assert (
        measured.history.select("row_gradients")[-1]
        == seldom.history.select("row_gradients")[-1]
    )
    assert torch.equal(measured.x, seldom.x)


def test_without_test_rows_only_training_numbers_are_measured():
    found = run(MaxFL(ONE), quadratic(CENTRES), 1)
    keys = {r.metric for r in found.history}
    assert {"appeal_train", "train_loss", "slack", "objective_everyone"} <= keys
    assert not keys & {
        "gm_appeal",
        "test_loss",
        "preferred_accuracy",
        "best_of_two_tuned",
    }


def test_regression_has_appeal_and_no_accuracy():
    keys = {r.metric for r in run(MaxFL(MINI), regression(), 1).history}
    assert {"gm_appeal", "gm_appeal_tuned", "test_loss"} <= keys
    assert not any("accuracy" in k or "best" in k for k in keys)


# ---- errors name the field


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("lr", 0, "a number > 0"),
        ("eps", 0.0, "a number > 0"),
        ("warmup_steps", 0, "an int > 0"),
        (
            "requirements",
            "test",
            '"train", "validation", or a table of a loss by client',
        ),
        ("requirements", (), '"train", "validation", or a table of a loss by client'),
        (
            "requirements",
            {"a": math.inf},
            '"train", "validation", or a table of a loss by client',
        ),
        (
            "requirements",
            (("a", 1.0), ("a", 2.0)),
            '"train", "validation", or a table of a loss by client',
        ),
        ("flexible", 1, "true or false"),
        ("mandatory_rounds", 0.05, "an int >= 0"),
        ("tuning_steps", -1, "an int >= 0"),
        ("surrogate", "hinge", r"sigmoid \| relu \| exp \| log \| linear"),
    ],
)
def test_a_bad_field_is_named(field, value, allowed):
    with pytest.raises(InputError, match=rf"MaxFL.{field} must be {allowed}; got"):
        MaxFL(**{field: value})


def test_what_does_not_fit_together_is_named():
    with pytest.raises(
        InputError,
        match=r"MaxFL.requirements names 'bb', which is not a client; did you mean 'b'\?",
    ):
        run(MaxFL(requirements={"bb": 1.0}), quadratic(CENTRES))
    method = MaxFL(ONE, requirements=dict.fromkeys(CENTRES, -1e4), surrogate="exp")
    with pytest.raises(
        RunError,
        match=r'MaxFL.surrogate = "exp" cannot weigh these gaps .*; "sigmoid" can',
    ):
        run(method, quadratic(CENTRES))


def test_a_part_without_rows_is_no_obstacle():
    problem = logistic()
    bare = [
        replace(c, validation=None) if c.name == "a" else c for c in problem.clients
    ]
    found = run(
        MaxFL(MINI, requirements="validation"), problem.with_clients(Clients(bare)), 2
    )
    plain = run(MaxFL(MINI), problem, 2)
    assert q_of(found)["a"] == q_of(plain)["a"]
    assert q_of(found)["b"] != q_of(plain)["b"]


LR, STEPS, BATCH = 0.3, 3, 4


@pytest.mark.in_turn(but=("0.6-train", "1.0-validation"))
@pytest.mark.parametrize("requirements", ["train", "validation"])
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_rounds_written_in_numpy(requirements, server_lr):
    problem = logistic()
    eps, warmup = 0.05, 7
    found = run(MaxFL(LOCAL, server_lr, eps, warmup, requirements), problem, 3)
    x0 = start(problem).numpy()
    solo = {
        n: sgd(x0, problem, n, 0, "warmup", steps=warmup) for n in problem.clients.names
    }
    rho = {n: loss(w, *rows(problem, n, requirements)) for n, w in solo.items()}
    x = x0
    for number in (1, 2, 3):
        gap, delta = {}, {}
        for name in problem.clients.names:
            gap[name] = loss(x, *rows(problem, name)) - rho[name]
            delta[name] = sgd(x, problem, name, number, steps=3) - x
        s = {n: 1 / (1 + math.exp(-g)) for n, g in gap.items()}
        q = {n: v * (1 - v) for n, v in s.items()}
        x = x + server_lr * sum(q[n] * delta[n] for n in q) / (sum(q.values()) + eps)
        assert logged_at(found, number, "gap") == pytest.approx(gap, abs=1e-12)
        assert logged_at(found, number, "q") == pytest.approx(q, abs=1e-12)
        assert logged_at(found, number, "objective") == pytest.approx(
            {"*": sum(s.values()) / len(s)}, abs=1e-12
        )
        assert logged_at(found, number, "effective_lr") == pytest.approx(
            {"*": server_lr / (sum(q.values()) + eps)}
        )
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-11)

    # Appeal and preferred models, from the same numbers.
    names = problem.clients.names
    better = [
        loss(x, *rows(problem, n, "test")) < loss(solo[n], *rows(problem, n, "test"))
        for n in names
    ]
    right = np.array(
        [[_accuracy(w, *rows(problem, n, "test")) for w in (x, solo[n])] for n in names]
    )
    expected = {
        "gm_appeal": np.mean(better),
        "appeal_train": np.mean([loss(x, *rows(problem, n)) < loss(solo[n], *rows(problem, n)) for n in names]),
        "test_accuracy": right[:, 0].mean(),
        "preferred_accuracy": np.where(better, right[:, 0], right[:, 1]).mean(),
        "best_of_two": right.max(axis=1).mean(),
        "slack": np.mean([max(rho[n] - loss(x, *rows(problem, n)), 0) for n in names]),
        "train_loss": np.mean([loss(x, *rows(problem, n)) for n in names]),
        "test_loss": np.mean([loss(x, *rows(problem, n, "test")) for n in names]),
        "objective_everyone": np.mean(
            [1 / (1 + math.exp(rho[n] - loss(x, *rows(problem, n)))) for n in names]
        ),
    }  # fmt: skip
    for key, value in expected.items():
        assert logged_at(found, 3, key)["*"] == pytest.approx(
            float(value), abs=1e-12
        ), key
    tuned = {n: sgd(x, problem, n, 3, "tuned", steps=5) for n in names}
    better = [
        loss(tuned[n], *rows(problem, n, "test"))
        < loss(solo[n], *rows(problem, n, "test"))
        for n in names
    ]
    assert logged_at(found, 3, "gm_appeal_tuned")["*"] == pytest.approx(np.mean(better))


def _accuracy(w, x, y):
    return float(np.mean((x @ w[:-1] + w[-1] > 0) == y))


# ---- the two-client toy: gaps (x -+ g)^2


def toy(squared, offset):
    g = math.sqrt(squared)
    problem = quadratic({"a": [g + offset], "b": [-g + offset]})
    local = LocalSGD(lr=0.05, steps=Steps(1), batch_size=None)
    return problem, MaxFL(local, requirements={"a": 0.0, "b": 0.0}, warmup_steps=1)


@pytest.mark.in_turn(but=("1.04", "1.05"))
@pytest.mark.parametrize("squared", [0.3, 1.0, 1.04, 1.05, 1.2, 4.0])
def test_the_midpoint_attracts_iff_the_clients_are_alike(squared):
    """A minimum iff g^2 tanh(g^2 / 2) < 1/2, that is g^2 < 1.044."""
    assert (squared * math.tanh(squared / 2) < 0.5) == (squared < 1.044)
    problem, method = toy(
        squared, 1e-3
    )  # the model starts at 0, so 1e-3 beside the midpoint
    away = abs(float(trained(method, problem, 40).x) - 1e-3)
    assert (away < 1e-3) == (squared < 1.044)


@pytest.mark.in_turn
def test_far_clients_end_near_one_of_them():
    problem, method = toy(9.0, 0.2)
    x = float(trained(method, problem, 200).x)
    assert x == pytest.approx(-3 + 0.2, abs=1e-3)


@pytest.mark.parametrize("surrogate", ["sigmoid", "log", "exp"])
def test_a_step_follows_the_slope_of_the_objective(surrogate):
    """With eps in charge of the denominator, one full-batch step is -lr * lr_local / eps * n * the slope of Eq. 3."""
    from coterie.solvers.appeal import objective

    centres, needs = (
        {"a": [1.2, -0.4], "b": [-0.7, 0.3], "c": [0.1, 0.9]},
        {"a": 0.5, "b": 0.9, "c": 0.2},
    )
    problem = quadratic(centres)
    local, eps = LocalSGD(lr=0.1, steps=Steps(1), batch_size=None), 1e7
    moved = (
        run(
            MaxFL(local, 1.0, eps, requirements=needs, surrogate=surrogate), problem, 1
        ).x.numpy()
        * eps
    )

    def value(x):
        return float(
            objective(
                torch.tensor(
                    [
                        np.mean((x - np.array(c)) ** 2) - needs[n]
                        for n, c in centres.items()
                    ]
                ),
                surrogate=surrogate,
            )
        )

    h = 1e-5
    slope = [(value(h * e) - value(-h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(moved, -0.1 * 3 * np.array(slope), rtol=1e-5)
