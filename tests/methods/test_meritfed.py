"""What MeritFed must do, against its recursion written with plain numbers, against itself in other settings, and with Adam
at the server against torch, autograd and finite differences."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import LOCAL, assert_resumes, gradient, rows, run, sgd, trained

from coterie import FedAvg, MeritFed
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.rows import Part
from coterie.cli.main import main
from coterie.compute import server_step
from coterie.compute.anchored import _turns
from coterie.config.local import LocalSGD, Schedule, Steps
from coterie.contract import federation
from coterie.contract.federation import QuorumError
from coterie.contract.task import Task
from coterie.data import load
from coterie.run.experiment import Experiment
from federations import (
    SIZES,
    Problem,
    Vector,
    assert_close,
    assert_same_bits,
    batch_norm,
    cohort_of,
    federation_of,
    fit,
    logistic,
    loss_of,
    model_at,
    quadratic,
    seeded,
    start,
    vector_of,
)

MUTANTS = {
    "meritfed": [
        (
            "compute/server_step.py",
            "self.lr * torch.mv(align(d), align(g))",
            "-self.lr * torch.mv(align(d), align(g))",
        ),
        (
            "compute/server_step.py",
            "self.lr * torch.mv(align(d), align(g))",
            "torch.mv(align(d), align(g))",
        ),
        (
            "algorithms/meritfed.py",
            "weights[:, positions] = new_weights * mass",
            "weights[:, positions] = old_weights * mass",
        ),
        (
            "compute/target_tasks.py",
            'rows in ("validation", "server") and cohort.has(i, "validation")',
            "False",
        ),
        ("algorithms/meritfed.py", '"damping": m.damping', '"damping": False'),
        (
            "compute/target_tasks.py",
            "gradient_each(cohort, x, _parts(cohort, rows), batch_size=batch, purpose=purpose)",
            'gradient_each(cohort, x, _parts(cohort, rows), batch_size=batch, purpose="oracle")',
        ),
        ("compute/server_step.py", "align(b * g)", "align(g)"),
        ("compute/anchored.py", "anchor = x.mean(0)", "anchor = x[0]"),
        (
            "compute/anchored.py",
            "(updates - replies.delta[clients])[:, :dim]",
            "torch.zeros_like(models[targets, :dim])",
        ),
        (
            "compute/anchored.py",
            "need = weights.clamp(min=least_weight(weights.shape[1])) * distance_moved",
            "need = distance_moved",
        ),
        (
            "compute/anchored.py",
            "need = weights.clamp(min=least_weight(weights.shape[1])) * distance_moved",
            "need = weights.clamp(min=least_weight(weights.shape[1]))",
        ),
        (
            "compute/anchored.py",
            "visited[places] = models[targets, :dim]",
            "pass",
        ),
        ("compute/anchored.py", "deltas[..., :dim] += values", "pass"),
        ("compute/anchored.py", "deltas[t, :, :dim] += values[t, positions]", "pass"),
        ("algorithms/meritfed.py", "factor = m.oracle_every", "factor = 1"),
        (
            "algorithms/meritfed.py",
            "factor *= m.md_steps",
            "factor *= 1",
        ),
        (
            "algorithms/meritfed.py",
            "(federation.round - 1) % self.oracle_every == 0",
            "True",
        ),
        (
            "compute/target_tasks.py",
            "outputs_of(x), outputs_of(torch.zeros_like(x))",
            "outputs_of(x), outputs_of(x)",
        ),
        (
            "compute/target_tasks.py",
            "x[i], lr * deltas[i], part)",
            "x[i], deltas[i], part)",
        ),
        (
            "compute/target_tasks.py",
            "outputs + torch.tensordot(w, scores, 1)",
            "torch.tensordot(w, scores, 1)",
        ),
        (
            "algorithms/meritfed.py",
            "return any(map(federation.is_evaluated, until_next))",
            "return True",
        ),
        ("solvers/mirror.py", "(n / q * (slopes @ unit))", "(1 / q * (slopes @ unit))"),
    ],
}

MINI = LocalSGD(lr=0.2, steps=Steps(2), batch_size=4)
FULL = LocalSGD(lr=0.2, steps=Steps(2), batch_size=None)


# ---- the recursion itself


CENTRES = {"a": [1.0, -2.0], "b": [0.8, -1.5], "c": [-3.0, 1.0]}


LR, STEP, STEPS, LOCAL_LR = 0.7, 0.9, 3, 0.1


def by_hand(target, rounds, *, damping=False, reset=False, rate=lambda number: LR):
    """Algorithm 1 on f_k(x) = mean over 2 entries of (x - centre_k)^2, with python's own numbers."""
    names = list(CENTRES)
    x, w = [0.0, 0.0], [1 / 3] * 3
    for number in range(1, rounds + 1):
        lr = rate(number)
        if reset:
            w = [1 / 3] * 3
        deltas = []
        for name in names:
            y = list(x)
            for _ in range(2):
                y = [
                    v - LOCAL_LR * (v - c)
                    for v, c in zip(y, CENTRES[name], strict=True)
                ]
            deltas.append([a - b for a, b in zip(y, x, strict=True)])

        def at(weights, x=x, deltas=deltas, lr=lr):
            return [
                x[j]
                + lr * sum(wi * d[j] for wi, d in zip(weights, deltas, strict=True))
                for j in range(2)
            ]

        for t in range(STEPS):
            gradient = [v - c for v, c in zip(at(w), CENTRES[target], strict=True)]
            slope = [
                lr * sum(g * d for g, d in zip(gradient, delta, strict=True))
                for delta in deltas
            ]
            moved = [wi * math.exp(-STEP * s) for wi, s in zip(w, slope, strict=True)]
            moved = [m / sum(moved) for m in moved]
            share = 1 / (t + 1) if damping else 1.0
            w = [(1 - share) * a + share * b for a, b in zip(w, moved, strict=True)]
        x = at(w)
    return x, w


@pytest.mark.in_turn(but=("gradient-True", "delegated-False"))
@pytest.mark.parametrize("damping", [False, True])
@pytest.mark.parametrize("oracle", ["gradient", "delegated"])
def test_a_run_follows_the_papers_recursion(damping, oracle):
    local = LocalSGD(lr=LOCAL_LR, steps=Steps(2), batch_size=None)
    method = MeritFed(
        "all", local, LR, STEPS, STEP, oracle, validation="train", damping=damping
    )
    for rounds in (1, 2, 4):
        found = run(method, quadratic(CENTRES), rounds)
        for target in CENTRES:
            x, w = by_hand(target, rounds, damping=damping)
            assert found.models[target].tolist() == pytest.approx(x, rel=1e-11)
            assert list(found.weights[target].values()) == pytest.approx(w, rel=1e-11)


def test_the_rate_of_the_server_may_be_a_schedule():
    local, schedule = (
        LocalSGD(lr=LOCAL_LR, steps=Steps(2), batch_size=None),
        Schedule(0.9, (2, 4), 0.5),
    )
    found = run(
        MeritFed("a", local, schedule, STEPS, STEP, validation="train"),
        quadratic(CENTRES),
        5,
    )
    x, w = by_hand(
        "a", 5, rate=lambda number: {1: 0.9, 2: 0.45, 3: 0.45}.get(number, 0.225)
    )
    assert found.models["a"].tolist() == pytest.approx(x, rel=1e-11)
    assert list(found.weights["a"].values()) == pytest.approx(w, rel=1e-11)


def test_the_step_of_mirror_descent_may_be_a_schedule():
    def weights(step, rounds):
        return run(
            MeritFed(
                "a", LocalSGD(lr=LOCAL_LR), md_steps=1, md_step=step, validation="train"
            ),
            quadratic(CENTRES),
            rounds,
        )

    stopped = Schedule(STEP, (2,), 1e-12)
    assert weights(stopped, 1).weights == weights(STEP, 1).weights
    assert weights(stopped, 3).weights["a"] == pytest.approx(
        weights(STEP, 1).weights["a"], abs=1e-9
    )
    assert weights(STEP, 3).weights["a"] != pytest.approx(
        weights(STEP, 1).weights["a"], abs=1e-3
    )


def test_a_schedule_in_a_toml_file_is_a_table_and_survives_being_written():
    tables = {
        "data": {"name": "digits"},
        "methods": [
            {"name": "meritfed", "lr": {"start": 0.5, "at": [3], "factor": 0.2}}
        ],
    }
    for _ in range(2):
        experiment = Experiment.from_tables(tables, "x.toml")
        assert experiment.build_method(experiment.methods[0]).lr == Schedule(
            0.5, (3,), 0.2
        )
        tables = experiment.tables()
    tables["methods"][0]["lr"] = {"begin": 0.5}
    with pytest.raises(
        InputError,
        match=r"x\.toml, method 'meritfed': lr: unknown key 'begin'; .*allowed: at, cosine, end, factor, start, warmup",
    ):
        Experiment.from_tables(tables, "x.toml")


def test_no_step_of_the_server_is_computed_twice(monkeypatch):
    """Three candidates of the descent and the model after it; phi is asked at the first and the last of them."""
    honest, moved = server_step.ServerStep._step, []
    monkeypatch.setattr(
        server_step.ServerStep, "_step", lambda *some: moved.append(0) or honest(*some)
    )
    run(
        MeritFed("a", FULL, md_steps=3, validation="train"),
        quadratic(CENTRES),
        rounds=2,
    )
    assert len(moved) == 2 * 4


def test_weights_persist_over_rounds():
    problem = quadratic(CENTRES)
    local = LocalSGD(lr=LOCAL_LR, steps=Steps(2), batch_size=None)
    found = run(MeritFed("a", local, LR, STEPS, STEP, validation="train"), problem, 3)
    warm, cold = by_hand("a", 3)[1], by_hand("a", 3, reset=True)[1]
    weights = list(found.weights["a"].values())
    assert weights == pytest.approx(warm, rel=1e-11)
    assert max(abs(a - b) for a, b in zip(weights, cold, strict=True)) > 0.05


def test_phi_is_the_targets_loss_at_the_weights_before_and_after():
    problem = quadratic(CENTRES)
    local = LocalSGD(lr=LOCAL_LR, steps=Steps(2), batch_size=None)
    found = run(MeritFed("a", local, LR, STEPS, STEP, validation="train"), problem, 1)
    x = found.models["a"]
    centre = torch.tensor(CENTRES["a"], dtype=torch.float64)
    assert found.history.select("phi_after", "a") == [
        (1, pytest.approx(float((x - centre).square().mean()), rel=1e-12))
    ]
    uniform = run(
        MeritFed("a", local, LR, 0, STEP, validation="train"), problem, 1
    ).models["a"]
    before = float((uniform - centre).square().mean())
    assert found.history.select("phi_before", "a") == [
        (1, pytest.approx(before, rel=1e-12))
    ]
    collaborators = 1 / sum(w * w for w in found.weights["a"].values())
    assert found.history.select("effective_collaborators", "a") == [
        (1, pytest.approx(collaborators, rel=1e-12))
    ]


# ---- reductions


@pytest.mark.in_turn(but="gradient")
@pytest.mark.parametrize("oracle", ["gradient", "loss", "delegated"])
def test_without_descent_it_is_uniform_averaging(oracle):
    full = logistic()
    same_size = Clients(
        [
            Client(c.name, c.train.select(slice(0, 8)), c.validation, c.test)
            for c in full.clients
        ]
    )
    problem = full.with_clients(same_size)
    merit = run(MeritFed("all", MINI, lr=0.6, md_steps=0, oracle=oracle), problem)
    avg = run(FedAvg(MINI, 0.6), problem)
    for x in merit.models.values():
        assert_close(x, avg.x)
    assert merit.weights["a"] == pytest.approx(dict.fromkeys(SIZES, 0.2), abs=1e-15)


@pytest.mark.parametrize(
    "options", [{"md_step": 0.0}, {"md_step": 0.0, "damping": True}]
)
def test_a_step_of_zero_is_no_descent(options):
    problem = logistic()
    zero, none = (
        run(MeritFed("all", MINI, **options), problem),
        run(MeritFed("all", MINI, md_steps=0), problem),
    )
    for name, x in none.models.items():
        assert_close(zero.models[name], x)


# ---- the same numbers by another way


def drawn(log=None):
    """Clients of which fresh rows can be drawn; each draw is noted."""
    problem = logistic()

    def draw(name, count, rng):
        if log is not None:
            log.append((name, count, rng.key))
        x = torch.randn(count, 3, generator=rng.generator(), dtype=torch.float64)
        return Part(x, (x[:, 0] + x[:, "abcde".index(name) % 3] > 0).long())

    return problem.with_clients(problem.clients.with_draw(draw))


DELEGATED = {
    "one target": (logistic, {"targets": "c"}),
    "all targets": (logistic, {}),
    "minibatch": (logistic, {"oracle_batch_size": 3}),
    "damping": (logistic, {"damping": True, "targets": ("a", "d")}),
    "server rows": (logistic, {"validation": "server"}),
    "training rows": (logistic, {"validation": "train", "oracle_batch_size": 5}),
    "batch norm": (batch_norm, {"lr": 0.5}),
    "adam": (batch_norm, {"server_optimiser": "adam", "lr": 0.05}),
    "adam of one": (
        logistic,
        {"server_optimiser": "adam", "lr": Schedule(0.1, (2,)), "targets": "d"},
    ),
    "anchored": (batch_norm, {"uploads": "anchored"}),
    "fresh": (drawn, {"validation": "fresh", "oracle_batch_size": 6}),
}


@pytest.mark.in_turn(but=("one target-1", "all targets-1", "adam-1"))
@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 1) for name in DELEGATED), ("all targets", 2)]
)
def test_the_delegated_descent_is_the_gradient_descent_bit_by_bit(name, workers):
    make, options = DELEGATED[name]
    problem = make()
    held = problem.clients["b"].test
    common = {"rounds": 2, "server": held, "workers": workers, "clients_per_round": 4}
    asked, delegated = (
        trained(
            MeritFed(local=MINI, md_step=2.0, oracle=o, **options), problem, **common
        )
        for o in ("gradient", "delegated")
    )
    assert_same_bits(asked, delegated)
    assert len(delegated.asks) < len(asked.asks)


@pytest.mark.in_turn(but=("batch_norm-{}", "logistic-{'oracle': 'delegated'}"))
@pytest.mark.parametrize(("make", "options"), [
    (logistic, {}), (batch_norm, {}), (logistic, {"oracle_batch_size": 3, "damping": True}),
    (logistic, {"oracle": "delegated"}), (logistic, {"md_step": "line-search", "md_steps": 3}),
    (logistic, {"oracle": "loss", "directions": 3}), (logistic, {"server_optimiser": "adam", "lr": 0.05}),
    (batch_norm, {"server_optimiser": "adam", "lr": 0.05, "oracle": "loss", "directions": 3}),
], ids=lambda value: getattr(value, "__name__", str(value)))  # fmt: skip
def test_all_targets_at_once_are_each_target_alone_bit_by_bit(make, options):
    problem = make()
    method = MeritFed(local=MINI, **{"lr": 0.8, "md_step": 2.0, **options})
    together = trained(method, problem, 2)
    for target in "ae":
        alone = trained(replace(method, targets=target), problem, 2)
        assert torch.equal(together.models[target], alone.models[target])
        assert together.weights[target] == alone.weights[target]
        for key in ("phi_after", "gap_bound"):
            assert (
                together.history.select(key, target)
                == alone.history.select(key, target)
                != []
            )
    some = trained(replace(method, targets=("e", "b", "e")), problem, 2)
    assert list(some.models) == ["b", "e"]
    assert torch.equal(some.models["e"], together.models["e"])


@pytest.mark.in_turn(but="batch_norm-options1")
@pytest.mark.parametrize(("make", "options"), [
    (logistic, {}), (batch_norm, {"server_optimiser": "adam", "lr": 0.05}), (logistic, {"oracle": "delegated"}),
    (batch_norm, {"oracle": "loss", "directions": 2}),
])  # fmt: skip
def test_a_few_targets_at_a_time_are_all_targets_at_once_bit_by_bit(
    make, options, monkeypatch
):
    problem, method = make(), MeritFed(local=MINI, md_step=2.0, **options)
    whole = trained(method, problem, 3, clients_per_round=4)
    monkeypatch.setattr(federation, "GROUP_BYTES", 1)
    alone, in_pairs = (
        trained(method, problem, 3, clients_per_round=4, workers=workers)
        for workers in (1, 2)
    )
    assert_same_bits(whole, alone)
    assert_same_bits(whole, in_pairs)
    assert len(whole.asks) < len(in_pairs.asks) < len(alone.asks)


def test_who_is_refused_for_one_of_the_targets_is_missing_for_all(monkeypatch):
    problem, method, honest = (
        logistic(),
        MeritFed(local=MINI, md_step=2.0),
        Task.__call__,
    )
    model_of_c = trained(method, problem, 1).models["c"]

    def call(self, cohort, /, **payload):
        if (
            self.name.endswith(":local_updates")
            and "d" in cohort.names
            and (payload["x"] == model_of_c).all(1).any()
        ):
            raise OSError("its training diverges from the model of c")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)
    whole = trained(method, problem, 2)
    assert list(whole.failures) == ["d"]
    monkeypatch.setattr(federation, "GROUP_BYTES", 1)
    again = trained(method, problem, 2)  # with the work of the asks that were given up
    assert torch.equal(again.state.x, whole.state.x)
    assert again.weights == whole.weights
    assert again.failures == whole.failures


@pytest.mark.in_turn
def test_targets_with_and_without_validation_rows_do_not_disturb_each_other():
    full = logistic()
    clients = [
        Client(c.name, c.train, None if c.name in "bd" else c.validation, c.test)
        for c in full.clients
    ]
    problem = full.with_clients(Clients(clients))
    method = MeritFed(local=MINI, md_step=2.0)
    together = run(method, problem)
    assert_same_bits(together, run(method, problem, workers=2))
    for target in "ab":
        assert torch.equal(
            together.models[target],
            run(replace(method, targets=target), problem).models[target],
        )
    on_training_rows = run(replace(method, validation="train"), problem)
    assert torch.equal(together.models["b"], on_training_rows.models["b"])
    assert not torch.equal(together.models["a"], on_training_rows.models["a"])


# ---- it listens to those who help


def label_skew(seed=0):
    """The target t, a client with more rows of the same kind, one with flipped labels, one of noise."""
    g = torch.Generator().manual_seed(seed)

    def rows(count, sign):
        x = torch.randn(count, 2, generator=g, dtype=torch.float64)
        y = (
            (x[:, 0] - x[:, 1] > 0).long()
            if sign
            else torch.randint(0, 2, (count,), generator=g)
        )
        return Part(x, 1 - y if sign < 0 else y)

    clients = {
        "t": (rows(20, 1), rows(40, 1)),
        "twin": (rows(60, 1),),
        "flipped": (rows(60, -1),),
        "noise": (rows(60, 0),),
    }
    return logistic()._replace(
        clients=Clients([Client(n, *parts) for n, parts in clients.items()]),
        model=seeded(lambda: torch.nn.Linear(2, 1), torch.float64),
    )


@pytest.mark.in_turn(but=("{}", "{'oracle': 'loss'*"))
@pytest.mark.parametrize("options", [
    {}, {"damping": True}, {"oracle": "delegated"}, {"oracle": "loss", "directions": 8}, {"md_step": "line-search"},
    {"oracle_batch_size": 10}, {"server_optimiser": "adam", "lr": 0.2, "eps": 1e-2},
], ids=str)  # fmt: skip
def test_flipped_labels_lose_weight_and_a_twin_gains(options):
    method = MeritFed(
        "t", replace(FULL, lr=0.5, steps=Steps(5)), **{"md_step": 2.0, **options}
    )
    weights = run(method, label_skew(), 6).weights["t"]
    assert weights["flipped"] < 0.05
    assert weights["twin"] > 0.3
    assert weights["flipped"] <= weights["noise"] < weights["twin"]


def test_a_duplicate_of_the_target_gains_as_the_target_does():
    problem = quadratic(
        {
            "t": [1.0, 1.0],
            "t-again": [1.0, 1.0],
            "far": [-1.0, 2.0],
            "further": [-5.0, 0.0],
        }
    )
    weights = run(
        MeritFed("t", FULL, validation="train", md_step=2.0), problem, 4
    ).weights["t"]
    assert weights["t"] == weights["t-again"]
    assert weights["t"] > 0.3 > 0.25 > weights["far"] > weights["further"]


@pytest.mark.parametrize("step", [0.05, "line-search"])
def test_descending_on_all_validation_rows_lowers_their_loss(step):
    problem = logistic()
    found = run(MeritFed("all", MINI, md_step=step), problem, 3)
    for target in SIZES:
        before, after = (
            found.history.select(k, target) for k in ("phi_before", "phi_after")
        )
        assert len(after) == 3
        assert before[0][1] > after[0][1]
        assert all(
            b[1] >= a[1] for b, a in zip(before, after, strict=True)
        )  # a search stops at the minimum


def descent(problem, method):
    """Log-ratio of the weights that one round of descent gives to the uniform ones it starts from, centred."""
    with federation_of(problem) as federation:
        state = method.init(federation.engine.x.clone(), federation)
        state, _ = method.round(state, federation, Rng.named(0, "server", 1))
    ratio = (state.weights[0] * len(problem.clients)).log()
    return ratio - ratio.mean()


def test_the_loss_oracle_points_along_the_gradient_oracle():
    problem = logistic()
    method = MeritFed("b", FULL, md_steps=1, md_step=0.1)
    slope = descent(problem, method)
    estimate = descent(problem, replace(method, oracle="loss", directions=400))
    cosine = float(estimate @ slope / estimate.norm() / slope.norm())
    assert cosine > 0.97
    assert float(estimate.norm() / slope.norm()) == pytest.approx(1, abs=0.15)
    one = descent(problem, replace(method, oracle="loss"))
    assert not torch.allclose(one, slope, rtol=0.1)


@pytest.mark.in_turn
def test_accelerated_descent_by_losses_goes_below_the_plain_one():
    problem = logistic()
    plain = MeritFed("b", FULL, md_steps=12, md_step=0.3, oracle="loss", directions=100)
    first, second = (
        run(method, problem, 1).history.select("phi_after", "b")[0][1]
        for method in (plain, replace(plain, accelerate=True))
    )
    assert second < first


@pytest.mark.parametrize("field", [{"oracle": "gradient"}, {"damping": True}])
def test_accelerated_descent_needs_losses_and_no_damping(field):
    with pytest.raises(InputError, match=r"accelerate needs oracle = \"loss\""):
        MeritFed("b", accelerate=True, **{"oracle": "loss", **field})


# ---- Adam at the server


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_without_memory_and_with_a_large_eps_adam_is_sgd(make):
    problem, eps = make(), 1e9
    method = MeritFed(local=MINI, lr=0.6, md_step=2.0)
    plain = run(method, problem)
    adam = run(
        replace(
            method, server_optimiser="adam", betas=(0.0, 0.0), eps=eps, lr=0.6 * eps
        ),
        problem,
    )
    for name, x in plain.models.items():
        assert_close(adam.models[name], x, 1e-7)
        assert adam.weights[name] == pytest.approx(plain.weights[name], rel=1e-6)
    assert max(plain.weights["a"].values()) > 0.25


def test_the_first_step_of_adam_has_one_length_whatever_the_weights():
    problem = logistic()
    adam, plain = (
        run(MeritFed("a", MINI, 0.1, server_optimiser=o), problem, 1)
        for o in ("adam", "sgd")
    )
    moved = adam.models["a"] - start(problem)
    assert_close(moved, 0.1 * (plain.models["a"] - start(problem)).sign(), 1e-6)
    assert adam.weights["a"] == pytest.approx(dict.fromkeys(SIZES, 0.2), abs=1e-6)
    second = run(MeritFed("a", MINI, 0.1, server_optimiser="adam"), problem, 2)
    assert max(abs(w - 0.2) for w in second.weights["a"].values()) > 1e-4


def test_statistics_in_buffers_take_no_step_of_adam():
    problem = batch_norm()
    dim = sum(p.numel() for p in problem.model.parameters())
    adam, plain = (
        run(MeritFed("a", MINI, 0.01, 0, server_optimiser=o), problem, 1)
        for o in ("adam", "sgd")
    )
    assert_close(adam.models["a"][dim:], plain.models["a"][dim:])
    assert (adam.models["a"][dim:] - start(problem)[dim:]).abs().min() > 1e-4


# ---- fresh rows


def test_fresh_rows_are_drawn_by_name_anew_for_each_round_target_and_step():
    log = []
    problem = drawn(log)
    method = MeritFed(
        ("a", "c"), MINI, md_steps=3, validation="fresh", oracle_batch_size=7
    )
    found = run(method, problem, 2)
    assert {(name, count) for name, count, _ in log} == {("a", 7), ("c", 7)}
    assert (
        len({key for *_, key in log}) == 2 * 2 * 4
    )  # rounds, targets, steps and one more draw for phi
    assert_same_bits(found, run(method, drawn(), 2, workers=2))
    assert method.keeps_validation(problem.clients.names) == ()
    other = run(replace(method, validation="train"), problem, 2)
    assert other.weights["a"] != found.weights["a"]


@pytest.mark.in_turn
def test_mean_estimation_draws_fresh_samples_of_a_clients_distribution():
    clients = load("mean-estimation", groups=(2, 3, 3), samples=20, test=20, mu=0.1)
    for name, mean in (("d1-001", 0.0), ("d3-002", 1.0)):
        part = clients.draw(name, 4000, Rng.named(0, "x"))
        assert part.inputs.shape == (4000, 10)
        assert float(part.inputs.mean(0).norm()) == pytest.approx(mean, abs=0.08)
        assert torch.equal(
            part.inputs, clients.draw(name, 4000, Rng.named(0, "x")).inputs
        )
        assert not torch.equal(part.inputs[:20], clients[name].train.inputs)
    method = MeritFed(
        "d1-000",
        replace(MINI, steps=Steps(1)),
        1.0,
        5,
        100.0,
        validation="fresh",
        oracle_batch_size=50,
    )
    weights = fit(method, clients, Vector(10), 30).weights["d1-000"]
    assert sum(w for n, w in weights.items() if n.startswith("d3")) < 0.1


def test_fresh_rows_of_other_data_are_refused_before_any_training():
    done = []
    with pytest.raises(
        InputError,
        match=r"validation = \"fresh\" draws new rows of 'a', .*take \"validation\" or \"train\"",
    ):
        fit(
            MeritFed("a", validation="fresh", oracle_batch_size=5),
            logistic().clients,
            logistic().model,
            2,
            callbacks=(done.append,),
        )
    assert done == []
    with pytest.raises(
        InputError, match='validation = "fresh" needs oracle_batch_size'
    ):
        MeritFed(validation="fresh")


# ---- the bound on what the descent has left


def test_the_gap_bound_is_above_the_gap_and_tight_where_phi_is_a_line():
    problem = quadratic(
        {"a": [1.0, -2.0], "b": [2.8, -1.5], "c": [-3.0, 1.0], "d": [0.0, -4.0]}
    )
    ratios = {}
    for lr in (1e-4, 0.7):
        found = run(
            MeritFed("a", FULL, lr, 2, 0.2 / lr, validation="train"), problem, 3
        )
        best = run(
            MeritFed("a", FULL, lr, 300, 20.0 / lr, "delegated", validation="train"),
            problem,
            1,
        )
        left = (
            found.history.select("phi_after", "a")[0][1]
            - best.history.select("phi_after", "a")[0][1]
        )
        bound = found.history.select("gap_bound", "a")[0][1]
        assert bound >= left > 1e-7
        ratios[lr] = bound / left
    assert ratios[1e-4] == pytest.approx(1, abs=1e-3)
    assert ratios[0.7] < 3
    assert all(
        row.metric != "gap_bound"
        for row in run(MeritFed("a", FULL, md_steps=0), problem, 1).history
    )


# ---- partial participation, the server's rows, failures


def test_absent_clients_keep_their_weights_and_the_mass_stays_one():
    problem = logistic()
    method = MeritFed(("a", "e"), FULL, md_step=3.0)
    with federation_of(problem) as federation:
        state = method.init(federation.engine.x.clone(), federation)
        for number, names in enumerate(("abc", "bcd", "de"), start=1):
            here = ["abcde".index(n) for n in names]
            away = [i for i in range(5) if i not in here]
            new, log = method.round(
                state,
                federation.view(tuple(names), number, 0),
                Rng.named(0, "server", number),
            )
            assert torch.equal(new.weights[:, away], state.weights[:, away])
            assert_close(new.weights.sum(1), torch.ones(2, dtype=torch.float64))
            assert_close(new.weights[:, here].sum(1), state.weights[:, here].sum(1))
            assert (new.weights[:, here] - state.weights[:, here]).abs().max() > 1e-3
            logged = torch.tensor(
                [list(log["weights"][t].values()) for t in "ae"], dtype=torch.float64
            )
            assert_close(
                logged, new.weights[:, here] / new.weights[:, here].sum(1, keepdim=True)
            )
            state = new


def test_rows_of_the_server_give_one_model_for_everybody():
    problem = logistic()
    held = problem.clients["c"].validation
    found = run(MeritFed(local=MINI, validation="server"), problem, server=held)
    assert list(found.models) == list(found.weights) == ["*"]
    # The rows are client c's, so it is what c would get as a target.
    alone = run(MeritFed("c", MINI), problem)
    assert torch.equal(found.x, alone.models["c"])
    with pytest.raises(InputError, match="give it rows"):
        run(MeritFed(local=MINI, validation="server"), problem)


def fail(monkeypatch, name, tasks, rounds=(1, 2, 3)):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if (
            self.name.split(":")[1] in tasks
            and name in cohort.names
            and cohort.round in rounds
        ):
            raise OSError("target is away")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)


@pytest.mark.in_turn(but=("gradient-tasks0*", "loss-tasks7*"))
@pytest.mark.parametrize(("oracle", "tasks", "workers", "options"), [
    ("gradient", ["target_gradient"], 1, {}), ("gradient", ["target_gradient"], 2, {}),
    ("gradient", ["target_gradient"], 1, {"server_optimiser": "adam", "lr": 0.1}), ("gradient", ["target_losses"], 1, {}),
    ("delegated", ["target_descent"], 1, {}), ("delegated", ["target_descent"], 1, {"server_optimiser": "adam", "lr": 0.1}),
    ("loss", ["target_losses"], 1, {}), ("loss", ["target_losses"], 2, {}),
])  # fmt: skip
def test_a_target_that_fails_keeps_its_model_and_the_others_go_on(
    monkeypatch, oracle, tasks, workers, options
):
    problem = logistic()
    method = MeritFed("all", MINI, oracle=oracle, **options)
    undisturbed = trained(method, problem)
    fail(monkeypatch, "b", tasks, rounds=(1, 2))
    early, found = (
        trained(method, problem, rounds, workers=workers) for rounds in (2, 3)
    )
    assert torch.equal(early.models["b"], start(problem))
    assert early.weights["b"] == pytest.approx(dict.fromkeys(SIZES, 0.2), abs=1e-15)
    assert list(found.failures) == ["b"]
    assert not torch.equal(found.models["b"], start(problem))
    assert found.state.taken.tolist() == [3, 1, 3, 3, 3]
    assert not early.state.moments[1].any()
    assert [r for r, _ in found.history.select("phi_after", "b")] == [3]
    assert [r for r, _ in found.history.select("gap_bound", "c")] == [1, 2, 3]
    for name in "acde":
        assert torch.equal(found.models[name], undisturbed.models[name])
        assert found.weights[name] == undisturbed.weights[name]


def test_a_single_target_that_fails_ends_the_run(monkeypatch):
    fail(monkeypatch, "b", ["target_gradient"])
    with pytest.raises(QuorumError, match="target_gradient': 0 of 1 clients replied"):
        run(MeritFed("b", MINI), logistic())


# ---- what is trained on


def test_targets_keep_their_validation_rows_and_others_train_on_theirs():
    problem = logistic()
    method = MeritFed(("a", "c"), MINI)
    found = fit(method, problem.clients, problem.model, 1)
    sizes = {r["client"]: r["n_train"] for r in found.summary}
    assert sizes == {"a": SIZES["a"], "c": SIZES["c"]}
    assert method.keeps_validation(problem.clients.names) == ("a", "c")
    assert (
        replace(method, validation="train").keeps_validation(problem.clients.names)
        == ()
    )


def test_a_target_that_does_not_exist_is_named_before_any_training():
    problem = logistic()
    done = []
    with pytest.raises(
        InputError,
        match=r"MeritFed\.targets names 'f', which is not a client; .*allowed: a, b, c, d, e",
    ):
        fit(
            MeritFed(("a", "f")),
            problem.clients,
            problem.model,
            2,
            callbacks=(done.append,),
        )
    assert done == []


@pytest.mark.parametrize(("field", "value"), [
    ("targets", ()), ("targets", 3), ("lr", 0), ("md_steps", -1), ("md_steps", 1.5), ("md_step", -0.1), ("md_step", "linesearch"),
    ("oracle", "hessian"), ("oracle_batch_size", 0), ("validation", "test"), ("damping", 1), ("directions", 0), ("radius", 0.0),
    ("server_optimiser", "adamw"), ("betas", (0.9, 1.0)), ("betas", (0.9,)), ("betas", 0.9), ("eps", 0),
    ("uploads", "shared"), ("oracle_steps", "none"), ("oracle_every", 0),
])  # fmt: skip
def test_every_field_refuses_bad_values(field, value):
    with pytest.raises(InputError, match=rf"MeritFed\.{field} must be .*got"):
        MeritFed(**{field: value})


def test_line_search_needs_exact_gradients():
    for options in (
        {"oracle": "delegated"},
        {"oracle": "loss"},
        {"oracle_batch_size": 4},
    ):
        with pytest.raises(InputError, match='"line-search" needs oracle = "gradient"'):
            MeritFed(md_step="line-search", **options)


def test_problem_of_labels_is_learnable():
    problem = label_skew()
    assert isinstance(problem, Problem)
    alone = run(
        FedAvg(replace(FULL, steps=Steps(50))),
        problem.with_clients(Clients([problem.clients["t"]])),
        2,
        metrics=("accuracy",),
    )
    assert alone.summary[0]["accuracy"] > 0.9


FOUR = {"a": [1.0, -2.0], "b": [0.8, -1.5], "c": [-3.0, 1.0], "d": [0.9, 4.0]}
PLAIN = LocalSGD(lr=0.1, steps=Steps(2), batch_size=None)
ADAM_LR, ADAM_STEP, ADAM_STEPS = 0.3, 2.0, 4


def adam_step(g, m, v, t, *, lr, betas, eps):
    """Algorithm 1 of Kingma and Ba."""
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
    return (
        -lr * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)) ** 0.5 + eps),
        m,
        v,
    )


def adam_by_hand(target, rounds, betas, eps):
    """MeritFedA on f_k(x) = mean((x - centre_k)^2): autograd through the formula, torch.optim.Adam for the step itself."""
    centres = torch.tensor(list(FOUR.values()), dtype=torch.float64)
    goal = torch.tensor(FOUR[target], dtype=torch.float64)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=ADAM_LR, betas=betas, eps=eps)
    m = v = torch.zeros(2, dtype=torch.float64)
    w = torch.full((4,), 0.25, dtype=torch.float64)
    for t in range(1, rounds + 1):
        y = x.detach().expand(4, 2)
        for _ in range(2):
            y = y - 0.1 * (y - centres)
        deltas = y - x.detach()
        for _ in range(ADAM_STEPS):
            free = w.clone().requires_grad_(True)
            change, *_ = adam_step(
                -(free @ deltas), m, v, t, lr=ADAM_LR, betas=betas, eps=eps
            )
            slope = torch.autograd.grad(
                (x.detach() + change - goal).square().mean(), free
            )[0]
            w = w * torch.exp(-ADAM_STEP * slope)
            w = w / w.sum()
        g = -(w @ deltas)
        _, m, v = adam_step(g, m, v, t, lr=ADAM_LR, betas=betas, eps=eps)
        x.grad = g
        optimiser.step()
    return x.detach(), w


@pytest.mark.in_turn(but="gradient-{}")
@pytest.mark.parametrize("settings", [{}, {"betas": (0.5, 0.8), "eps": 0.3}], ids=str)
@pytest.mark.parametrize("oracle", ["gradient", "delegated"])
def test_a_run_with_adam_follows_torch(settings, oracle):
    method = MeritFed(
        "all",
        PLAIN,
        ADAM_LR,
        ADAM_STEPS,
        ADAM_STEP,
        oracle,
        validation="train",
        server_optimiser="adam",
        **settings,
    )
    problem = quadratic(FOUR)
    for rounds in (1, 3, 6):
        found = fit(
            method, problem.clients, problem.model, rounds, merge_validation=False
        )
        for target in ("a", "d"):
            x, w = adam_by_hand(target, rounds, method.betas, method.eps)
            np.testing.assert_allclose(found.models[target], x, rtol=1e-10)
            np.testing.assert_allclose(
                list(found.weights[target].values()), w, rtol=1e-9
            )
    assert max(found.weights["d"].values()) > 0.4  # the descent had something to follow


def test_the_descent_follows_finite_differences_through_the_step():
    """One small step of descent in the third round, on a logistic loss, where the moments are those of earlier rounds."""
    problem, target, tiny = logistic(), "b", 1e-4
    method = MeritFed(
        target,
        PLAIN,
        0.2,
        1,
        tiny,
        validation="train",
        server_optimiser="adam",
        eps=1e-3,
    )
    rows = problem.clients[target].train
    with federation_of(problem) as federation:
        everyone = federation.everyone
        state = method.init(start(problem), federation)
        x = start(problem).requires_grad_(True)
        optimiser = torch.optim.Adam([x], lr=0.2, eps=1e-3)
        for number in (1, 2, 3):
            before = state.weights[0]
            deltas = torch.stack(
                [by_torch(problem, n, state.x[0]) - state.x[0] for n in everyone]
            )
            state, _ = method.round(
                state,
                federation.view(everyone, number, 0),
                Rng.named(0, "server", number),
            )
            if number < 3:
                x.grad = -(state.weights[0] @ deltas)
                optimiser.step()
                np.testing.assert_allclose(state.x[0], x.detach(), rtol=1e-10)

    def phi(weights):
        moved = x.detach().clone().requires_grad_(True)
        other = torch.optim.Adam([moved], lr=0.2, eps=1e-3)
        other.load_state_dict(copy.deepcopy(optimiser.state_dict()))
        moved.grad = -(weights @ deltas)
        other.step()
        model = model_at(problem, moved.detach())
        return float(loss_of(model(rows.inputs), rows.labels).detach())

    h = 1e-4
    slope = np.array(
        [
            (phi(before + h * e) - phi(before - h * e)) / (2 * h)
            for e in torch.eye(5, dtype=torch.float64)
        ]
    )
    found = -np.log((state.weights[0] / before).numpy()) / tiny
    np.testing.assert_allclose(
        found - found.mean(), slope - slope.mean(), rtol=1e-4, atol=1e-7
    )
    assert np.abs(slope - slope.mean()).max() > 1e-3


def by_torch(problem, name, x):
    """Two full-batch steps of plain SGD with torch."""
    model, part = model_at(problem, x), problem.clients[name].train
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        loss_of(model(part.inputs), part.labels).backward()
        optimiser.step()
    return vector_of(model)


# ---- anchored uploads, and one gradient


CHEAP = {"uploads": "anchored", "oracle_steps": "one", "oracle_every": 2}


@pytest.mark.in_turn
def test_anchored_uploads_have_the_fixed_points_of_the_papers_form():
    """Once models move little, offsets make updates at the anchor those at each target's own model."""
    problem = logistic()
    local = LocalSGD(lr=0.5, steps=Steps(3), batch_size=None)
    found = trained(
        MeritFed(
            ("a", "d"), local, md_step=0.05, validation="train", uploads="anchored"
        ),
        problem,
        120,
    )
    x = found.state.x
    at_anchor = cohort_of(problem).updates(x.mean(0), local)
    for target, offsets in zip(x, found.state.offsets, strict=True):
        exact = cohort_of(problem).updates(target, local)
        assert float((at_anchor + offsets - exact).norm()) < 0.1 * float(
            (at_anchor - exact).norm()
        )


def test_one_gradient_goes_all_steps_at_once():
    """On quadratics, against the closed form: every second round, over twice the steps."""
    centres, lr, step = {"a": [1.0, -2.0], "b": [0.8, -1.5], "c": [-3.0, 1.0]}, 0.7, 0.3
    local = LocalSGD(lr=0.1, steps=Steps(1), batch_size=None)
    method = MeritFed(
        "a", local, lr, 4, step, validation="train", oracle_steps="one", oracle_every=2
    )
    found = run(method, quadratic(centres), 4)
    x, w = np.zeros(2), np.full(3, 1 / 3)
    for number in range(1, 5):
        deltas = np.stack([0.1 * (np.array(c) - x) for c in centres.values()])
        if number % 2:
            slope = lr * deltas @ (x + lr * w @ deltas - np.array(centres["a"]))
            w = w * np.exp(-4 * 2 * step * slope)
            w = w / w.sum()
        x = x + lr * w @ deltas
    np.testing.assert_allclose(found.models["a"].numpy(), x, rtol=1e-11)
    assert list(found.weights["a"].values()) == pytest.approx(w.tolist(), rel=1e-11)
    assert {r.round for r in found.history if r.metric == "phi_after"} == {1, 3}


SCORES = {"oracle": "delegated", "oracle_steps": "scores"}


@pytest.mark.parametrize(
    "options", [{}, {"validation": "train", "targets": ("a", "d"), "damping": True}]
)
def test_scores_are_the_delegated_descent_of_a_linear_model(options):
    settings = {"local": FULL, "md_step": 0.5, "lr": 0.7, **options}
    exact = run(MeritFed(**settings, **SCORES), logistic(), 4)
    by_gradients = run(MeritFed(**settings, oracle="delegated"), logistic(), 4)
    torch.testing.assert_close(
        exact.state.weights, by_gradients.state.weights, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        exact.state.x, by_gradients.state.x, rtol=1e-4, atol=1e-6
    )
    a_round = trained(FedAvg(FULL), logistic(), 1).history.select("row_gradients")[-1][
        1
    ]
    assert exact.history.select("row_gradients")[-1][1] == a_round * (
        1 + 3 * len(exact.state.targets)
    )
    longer = trained(MeritFed(**settings, **SCORES, oracle_every=2), logistic(), 1)
    twice = trained(
        MeritFed(**{**settings, "md_step": 1.0}, oracle="delegated"), logistic(), 1
    )
    torch.testing.assert_close(
        longer.state.weights, twice.state.weights, rtol=1e-4, atol=1e-6
    )


def test_scores_need_outputs_that_are_linear_in_what_is_trained():
    problem = logistic()
    bent = Problem(problem.clients, torch.nn.Sequential(problem.model, torch.nn.Tanh()))
    with pytest.raises(InputError, match="linear in what is trained"):
        run(MeritFed(local=MINI, **SCORES), bent, 1)
    with pytest.raises(InputError, match="needs one trained layer, and this model has"):
        run(MeritFed(local=MINI, **SCORES), batch_norm(), 1)


@pytest.mark.in_turn(but="options0")
@pytest.mark.parametrize(
    "options", [{"uploads": "anchored"}, {"oracle_steps": "one"}, SCORES, {}]
)
def test_where_rounds_are_cheap_phi_is_measured_before_evaluations_alone(options):
    found = run(MeritFed(local=MINI, **options), logistic(), 6, evaluate=3)
    assert {r.round for r in found.history if r.metric == "phi_after"} == (
        {3, 6} if options else {1, 2, 3, 4, 5, 6}
    )
    found = run(
        MeritFed(
            local=MINI,
            **{
                **options,
                "oracle_every": 2,
                "oracle": "gradient",
                "oracle_steps": "one",
            },
        ),
        logistic(),
        6,
        evaluate=4,
    )
    assert {r.round for r in found.history if r.metric == "phi_after"} == {3, 5}


@pytest.mark.in_turn
def test_many_targets_take_the_cheap_form_and_the_report_says_so():
    problem, settings = logistic(), {"local": MINI, "validation": "train"}
    above = MeritFed(**settings, cheap_above=4)
    assert_same_bits(
        *[
            trained(method, problem, 3)
            for method in (above, MeritFed(**settings, **CHEAP))
        ]
    )
    assert_same_bits(
        *[trained(MeritFed(**settings, cheap_above=n), problem, 2) for n in (5, None)]
    )
    names = tuple(sorted(SIZES))
    (note,) = above.notes(names)
    assert note.startswith("with 5 targets the cheap form ran")
    assert above.memory_estimate(5, 5) == MeritFed(uploads="anchored").memory_estimate(
        5, 5
    )
    for few in (
        {"cheap_above": 5},
        {"cheap_above": 4, "targets": "a"},
        {"cheap_above": 4, "oracle": "loss"},
        {"cheap_above": 4, "server_optimiser": "adam"},
        {"cheap_above": 4, "md_step": "line-search"},
    ):
        assert MeritFed(**few).notes(names) == ()
        trained(MeritFed(local=MINI, **few), problem, 2)
    asked = {declared.task.name for declared in above.tasks}
    assert {
        ask.task
        for ask in trained(above, problem, 2).asks
        if ".metrics:" not in ask.task
    } <= asked


def test_among_many_clients_a_visit_goes_to_one_that_counts():
    weights, visited = torch.full((1, 100), 1e-4), torch.ones(1, 100, 1)
    weights[0, 99], visited[0, 99] = (
        0.01,
        0.3,
    )  # the heaviest by far, and nearer to the model, 0, since it was visited lately
    assert _turns(torch.zeros(1, 1), weights, visited) == [[(0, 99)]]
    assert _turns(torch.zeros(1, 1), weights[:, 89:], visited[:, 89:]) == [
        [(0, 0)]
    ]  # of eleven


def test_the_memory_estimate_counts_what_anchored_uploads_hold():
    updates, offsets_and_visits, at_the_anchor, models = 100, 4 * 100, 10, 2 * 10
    held = updates + offsets_and_visits + at_the_anchor + models
    assert MeritFed(uploads="anchored").memory_estimate(10, 10) == held


def test_without_a_second_step_one_gradient_is_the_papers_form():
    problem = logistic()
    runs = [
        run(MeritFed(local=MINI, md_steps=1, oracle_steps=s), problem)
        for s in ("all", "one")
    ]
    assert_same_bits(*runs)


def test_anchored_rounds_written_in_numpy():
    problem, names, lr, md_step = logistic(), sorted(SIZES), 0.8, 2.0
    method = MeritFed(("a", "d"), LOCAL, lr, 3, md_step, validation="train", **CHEAP)
    found = run(method, problem, 6)
    x0 = start(problem).numpy()
    x, w = dict.fromkeys("ad", x0), {t: np.full(5, 0.2) for t in "ad"}
    offsets = {t: np.zeros((5, len(x0))) for t in "ad"}
    visited = {t: np.tile(x0, (5, 1)) for t in "ad"}
    visits = []
    for number in range(1, 7):
        anchor = (x["a"] + x["d"]) / 2
        deltas = np.stack(
            [sgd(anchor, problem, n, number, steps=3) - anchor for n in names]
        )
        for t in "ad" if number > 1 else "":
            k = int(
                np.argmax(
                    np.maximum(w[t], 0.01) * np.linalg.norm(x[t] - visited[t], axis=1)
                )
            )
            offsets[t][k] = (
                sgd(x[t], problem, names[k], number, steps=3) - x[t] - deltas[k]
            )
            visited[t][k] = x[t]
            visits.append((t, k))
        for t in "ad":
            own = deltas + offsets[t]
            if number % 2:
                slope = lr * own @ gradient(x[t] + lr * w[t] @ own, *rows(problem, t))
                grown = w[t] * np.exp(-3 * 2 * md_step * slope)
                w[t] = grown / grown.sum()
            x[t] = x[t] + lr * w[t] @ own
    assert len(set(visits)) > 4
    for t in "ad":
        np.testing.assert_allclose(found.models[t].numpy(), x[t], rtol=1e-9)
        assert list(found.weights[t].values()) == pytest.approx(w[t].tolist(), rel=1e-9)


def test_offsets_of_those_that_take_part_are_added_to_their_updates():
    problem, names = logistic(), sorted(SIZES)
    method = MeritFed(("a", "d"), MINI, md_step=20.0, uploads="anchored")
    before = trained(method, problem, 3, clients_per_round=3).state
    found = trained(method, problem, 4, clients_per_round=3)
    present = [names.index(n) for n in sorted(found.weights["a"])]
    offsets = found.state.offsets[:, present]
    assert len(present) == 3
    assert before.offsets[:, present].any()

    anchor = before.x.mean(0)
    deltas = cohort_of(problem, round=4).train(anchor, MINI)[present] - anchor
    for t, target in enumerate(found.state.targets):
        own_weights = found.weights[target]
        weights = torch.tensor([own_weights[n] for n in sorted(own_weights)])
        moved = weights.double() @ (deltas + offsets[t]).double()
        torch.testing.assert_close(found.state.x[t], before.x[t] + moved)


def test_anchored_uploads_cost_two_trainings_whatever_the_number_of_targets():
    problem = logistic()
    equal = problem.with_clients(
        type(problem.clients)([problem.clients[n] for n in "abcde"])
    )
    once = sum(min(MINI.batch_size, n) for n in SIZES.values()) * MINI.steps.count
    for targets in ("all", ("a", "c")):
        found = run(MeritFed(targets, MINI, md_steps=0, uploads="anchored"), equal, 3)
        visits = (5 if targets == "all" else 2) * MINI.batch_size * MINI.steps.count
        counted = [count for _, count in found.history.select("row_gradients")]
        assert counted == [0, once, 2 * once + visits, 3 * once + 2 * visits]


def test_statistics_in_buffers_start_from_the_anchor():
    problem = batch_norm()
    found = run(
        MeritFed(("a", "c", "e"), MINI, md_step=20.0, uploads="anchored"), problem, 2
    )
    dim = cohort_of(problem).layout.dim
    anchor = run(
        MeritFed(("a", "c", "e"), MINI, md_step=20.0, uploads="anchored"), problem, 1
    ).state.x.mean(0)
    after = cohort_of(problem, round=2).train(anchor, MINI)[:, dim:]
    for target, x in found.models.items():
        weights = torch.tensor(
            [found.weights[target].get(n, 0.0) for n in sorted(SIZES)],
            dtype=torch.float64,
        )
        torch.testing.assert_close(x[dim:], weights @ after)


def test_a_client_that_fails_at_a_visit_keeps_its_offset(monkeypatch):
    from coterie.compute.tasks import own_update
    from coterie.contract.task import Task

    honest, problem = Task.__call__, logistic()

    def call(self, cohort, /, **payload):
        if self is own_update and payload["x"].ndim == 2 and cohort.round == 3:
            raise OSError("unplugged")
        return honest(self, cohort, **payload)

    two = trained(MeritFed(local=MINI, uploads="anchored"), problem, 2)
    monkeypatch.setattr(Task, "__call__", call)
    found = trained(MeritFed(local=MINI, uploads="anchored"), problem, 3)
    assert torch.equal(found.state.offsets, two.state.offsets)
    assert found.failures


@pytest.mark.in_turn
def test_an_anchored_run_resumes(tmp_path):
    assert_resumes(MeritFed(local=MINI, **CHEAP), tmp_path)


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"targets": "a", "uploads": "anchored"}, 'saves trainings of several targets; with one take uploads = "each"'),
    ({"validation": "server", "uploads": "anchored"}, "with one take"),
    ({"uploads": "anchored", "server_optimiser": "adam"}, 'needs server_optimiser = "sgd"; take it, or uploads = "each"'),
    ({"oracle_steps": "one", "oracle": "loss"}, 'need oracle = "gradient" and a number as md_step'),
    ({"oracle_steps": "scores"}, 'needs oracle = "delegated", server_optimiser = "sgd" and oracle_batch_size = None'),
    ({"oracle_steps": "scores", "oracle": "delegated", "oracle_batch_size": 4}, "oracle_batch_size = None"),
    ({"oracle_every": 2, "md_step": "line-search"}, 'need oracle = "gradient" and a number as md_step'),
])  # fmt: skip
def test_what_does_not_fit_is_refused(settings, sentence):
    problem = logistic()
    with pytest.raises(InputError, match=sentence):
        run(
            MeritFed(local=MINI, **settings),
            problem,
            1,
            server=problem.clients["a"].validation,
        )


@pytest.mark.parametrize(("settings", "sentence"), [
    (("meritfed.targets=cleveland", "meritfed.uploads=anchored"), 'with one take uploads = "each"'),
    (("meritfed.uploads=anchored", "meritfed.server_optimiser=adam"), 'needs server_optimiser = "sgd"'),
    (("model.name=mlp", "meritfed.oracle=delegated", "meritfed.oracle_steps=scores"), "needs one trained layer, and this model has 3"),
])  # fmt: skip
def test_cheap_forms_that_do_not_fit_end_the_command_with_status_2(
    settings, sentence, capsys, tmp_path
):
    command = [
        "compare",
        "heart-disease",
        "--methods",
        "meritfed",
        "--out",
        str(tmp_path / "run"),
    ]
    assert (
        main([*command, *(word for setting in settings for word in ("--set", setting))])
        == 2
    )
    assert sentence in " ".join(capsys.readouterr().err.split())
