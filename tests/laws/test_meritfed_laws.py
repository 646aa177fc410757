"""What MeritFed must do, against its recursion written with plain numbers and against itself in other settings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coterie.algorithms import FedAvg, MeritFed
from coterie.core.clients import Client, Clients, Part
from coterie.core.errors import InputError
from coterie.core.federation import QuorumError
from coterie.core.rng import Rng
from coterie.core.task import Task
from coterie.core.training import LocalSGD, Steps
from coterie.runner import fit
from federations import (
    SIZES,
    Problem,
    assert_close,
    assert_same_bits,
    batch_norm,
    federation_of,
    logistic,
    quadratic,
    seeded,
    start,
)

MINI = LocalSGD(lr=0.2, steps=Steps(2), batch_size=4)
FULL = LocalSGD(lr=0.2, steps=Steps(2), batch_size=None)


def run(method, problem, rounds=3, **options):
    return fit(method, problem.clients, problem.model, rounds, **{"fold_validation": False, "evaluate": 1, **options})


# ---- the recursion itself

CENTRES = {"a": [1.0, -2.0], "b": [0.8, -1.5], "c": [-3.0, 1.0]}
LR, STEP, STEPS, LOCAL_LR = 0.7, 0.9, 3, 0.1


def by_hand(target, rounds, *, damping=False, reset=False):
    """Algorithm 1 on f_k(x) = mean over 2 entries of (x - centre_k)^2, with python's own numbers."""
    names = list(CENTRES)
    x, w = [0.0, 0.0], [1 / 3] * 3
    for _ in range(rounds):
        if reset:
            w = [1 / 3] * 3
        deltas = []
        for name in names:
            y = list(x)
            for _ in range(2):
                y = [v - LOCAL_LR * (v - c) for v, c in zip(y, CENTRES[name], strict=True)]
            deltas.append([a - b for a, b in zip(y, x, strict=True)])

        def at(weights, x=x, deltas=deltas):
            return [x[j] + LR * sum(wi * d[j] for wi, d in zip(weights, deltas, strict=True)) for j in range(2)]

        for t in range(STEPS):
            gradient = [v - c for v, c in zip(at(w), CENTRES[target], strict=True)]
            slope = [LR * sum(g * d for g, d in zip(gradient, delta, strict=True)) for delta in deltas]
            moved = [wi * math.exp(-STEP * s) for wi, s in zip(w, slope, strict=True)]
            moved = [m / sum(moved) for m in moved]
            share = 1 / (t + 1) if damping else 1.0
            w = [(1 - share) * a + share * b for a, b in zip(w, moved, strict=True)]
        x = at(w)
    return x, w


@pytest.mark.parametrize("damping", [False, True])
@pytest.mark.parametrize("oracle", ["gradient", "delegated"])
def test_a_run_follows_the_papers_recursion(damping, oracle):
    local = LocalSGD(lr=LOCAL_LR, steps=Steps(2), batch_size=None)
    method = MeritFed("all", local, LR, STEPS, STEP, oracle, validation="train", damping=damping)
    for rounds in (1, 2, 4):
        found = run(method, quadratic(CENTRES), rounds)
        for target in CENTRES:
            x, w = by_hand(target, rounds, damping=damping)
            assert found.models[target].tolist() == pytest.approx(x, rel=1e-11)
            assert list(found.weights[target].values()) == pytest.approx(w, rel=1e-11)


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
    uniform = run(MeritFed("a", local, LR, 0, STEP, validation="train"), problem, 1).models["a"]
    before = float((uniform - centre).square().mean())
    assert found.history.select("phi_before", "a") == [(1, pytest.approx(before, rel=1e-12))]
    collaborators = 1 / sum(w * w for w in found.weights["a"].values())
    assert found.history.select("effective_collaborators", "a") == [(1, pytest.approx(collaborators, rel=1e-12))]


# ---- reductions


@pytest.mark.parametrize("oracle", ["gradient", "loss", "delegated"])
def test_without_descent_it_is_uniform_averaging(oracle):
    full = logistic()
    same_size = Clients([Client(c.name, c.train.select(slice(0, 8)), c.validation, c.test) for c in full.clients])
    problem = full.with_clients(same_size)
    merit = run(MeritFed("all", MINI, lr=0.6, md_steps=0, oracle=oracle), problem)
    avg = run(FedAvg(MINI, 0.6), problem)
    for x in merit.models.values():
        assert_close(x, avg.x)
    assert merit.weights["a"] == pytest.approx(dict.fromkeys(SIZES, 0.2), abs=1e-15)


@pytest.mark.parametrize("options", [{"md_step": 0.0}, {"md_step": 0.0, "damping": True}])
def test_a_step_of_zero_is_no_descent(options):
    problem = logistic()
    zero, none = run(MeritFed("all", MINI, **options), problem), run(MeritFed("all", MINI, md_steps=0), problem)
    for name, x in none.models.items():
        assert_close(zero.models[name], x)


# ---- the same numbers by another way

DELEGATED = {
    "one target": (logistic, {"targets": "c"}),
    "all targets": (logistic, {}),
    "minibatch": (logistic, {"oracle_batch_size": 3}),
    "damping": (logistic, {"damping": True, "targets": ("a", "d")}),
    "server rows": (logistic, {"validation": "server"}),
    "training rows": (logistic, {"validation": "train", "oracle_batch_size": 5}),
    "batch norm": (batch_norm, {"lr": 0.5}),
}


@pytest.mark.parametrize("name", list(DELEGATED))
@pytest.mark.parametrize("workers", [1, 2])
def test_the_delegated_descent_is_the_gradient_descent_bit_by_bit(name, workers):
    make, options = DELEGATED[name]
    problem = make()
    held = problem.clients["b"].test
    common = {"server_data": (held.inputs, held.labels), "workers": workers, "clients_per_round": 4}
    asked, delegated = (
        run(MeritFed(local=MINI, md_step=2.0, oracle=o, **options), problem, **common)
        for o in ("gradient", "delegated")
    )
    assert_same_bits(asked, delegated)
    assert len(delegated.asks) < len(asked.asks)


@pytest.mark.parametrize("options", [
    {}, {"oracle_batch_size": 3, "damping": True}, {"oracle": "delegated"}, {"md_step": "line-search", "md_steps": 3},
    {"oracle": "loss", "directions": 3},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_all_targets_at_once_are_each_target_alone_bit_by_bit(options, make):
    problem = make()
    method = MeritFed(local=MINI, lr=0.8, **{"md_step": 2.0, **options})
    together = run(method, problem)
    for target in "ae":
        alone = run(replace(method, targets=target), problem)
        assert torch.equal(together.models[target], alone.models[target])
        assert together.weights[target] == alone.weights[target]
        assert together.history.select("phi_after", target) == alone.history.select("phi_after", target)
    some = run(replace(method, targets=("e", "b", "e")), problem)
    assert list(some.models) == ["b", "e"]
    assert torch.equal(some.models["e"], together.models["e"])


def test_targets_with_and_without_validation_rows_do_not_disturb_each_other():
    full = logistic()
    clients = [Client(c.name, c.train, None if c.name in "bd" else c.validation, c.test) for c in full.clients]
    problem = full.with_clients(Clients(clients))
    method = MeritFed(local=MINI, md_step=2.0)
    together = run(method, problem)
    assert_same_bits(together, run(method, problem, workers=2))
    for target in "ab":
        assert torch.equal(together.models[target], run(replace(method, targets=target), problem).models[target])
    on_training_rows = run(replace(method, validation="train"), problem)
    assert torch.equal(together.models["b"], on_training_rows.models["b"])
    assert not torch.equal(together.models["a"], on_training_rows.models["a"])


# ---- it listens to those who help


def label_skew(seed=0):
    """The target t, a client with more rows of the same kind, one with flipped labels, one of noise."""
    g = torch.Generator().manual_seed(seed)

    def rows(count, sign):
        x = torch.randn(count, 2, generator=g, dtype=torch.float64)
        y = (x[:, 0] - x[:, 1] > 0).long() if sign else torch.randint(0, 2, (count,), generator=g)
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


@pytest.mark.parametrize("options", [
    {}, {"damping": True}, {"oracle": "delegated"}, {"oracle": "loss", "directions": 8}, {"md_step": "line-search"},
    {"oracle_batch_size": 10},
], ids=str)  # fmt: skip
def test_flipped_labels_lose_weight_and_a_twin_gains(options):
    method = MeritFed("t", replace(FULL, lr=0.5, steps=Steps(5)), **{"md_step": 2.0, **options})
    weights = run(method, label_skew(), 6).weights["t"]
    assert weights["flipped"] < 0.05
    assert weights["twin"] > 0.3
    assert weights["flipped"] <= weights["noise"] < weights["twin"]


def test_a_duplicate_of_the_target_gains_as_the_target_does():
    problem = quadratic({"t": [1.0, 1.0], "t-again": [1.0, 1.0], "far": [-1.0, 2.0], "further": [-5.0, 0.0]})
    weights = run(MeritFed("t", FULL, validation="train", md_step=2.0), problem, 4).weights["t"]
    assert weights["t"] == weights["t-again"]
    assert weights["t"] > 0.3 > 0.25 > weights["far"] > weights["further"]


@pytest.mark.parametrize("step", [0.05, "line-search"])
def test_descending_on_all_validation_rows_lowers_their_loss(step):
    problem = logistic()
    found = run(MeritFed("all", MINI, md_step=step), problem, 3)
    for target in SIZES:
        before, after = (found.history.select(k, target) for k in ("phi_before", "phi_after"))
        assert len(after) == 3
        assert before[0][1] > after[0][1]
        assert all(b[1] >= a[1] for b, a in zip(before, after, strict=True))  # a search stops at the minimum


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


# ---- partial participation, the server's rows, failures


def test_absent_clients_keep_their_weights_and_the_mass_stays_one():
    problem = logistic()
    method = MeritFed(("a", "e"), FULL, md_step=3.0)
    with federation_of(problem) as federation:
        state = method.init(federation.engine.x.clone(), federation)
        for number, names in enumerate(("abc", "bcd", "de"), start=1):
            here = ["abcde".index(n) for n in names]
            away = [i for i in range(5) if i not in here]
            new, log = method.round(state, federation.view(tuple(names), number, 0), Rng.named(0, "server", number))
            assert torch.equal(new.weights[:, away], state.weights[:, away])
            assert_close(new.weights.sum(1), torch.ones(2, dtype=torch.float64))
            assert_close(new.weights[:, here].sum(1), state.weights[:, here].sum(1))
            assert (new.weights[:, here] - state.weights[:, here]).abs().max() > 1e-3
            logged = torch.tensor([list(log["weights"][t].values()) for t in "ae"], dtype=torch.float64)
            assert_close(logged, new.weights[:, here] / new.weights[:, here].sum(1, keepdim=True))
            state = new


def test_rows_of_the_server_give_one_model_for_everybody():
    problem = logistic()
    held = problem.clients["c"].validation
    found = run(MeritFed(local=MINI, validation="server"), problem, server_data=(held.inputs, held.labels))
    assert list(found.models) == list(found.weights) == ["*"]
    # The rows are client c's, so it is what c would get as a target.
    alone = run(MeritFed("c", MINI), problem)
    assert torch.equal(found.x, alone.models["c"])
    with pytest.raises(InputError, match="give server rows"):
        run(MeritFed(local=MINI, validation="server"), problem)


def fail(monkeypatch, name, tasks, rounds=(1, 2, 3)):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if self.name.split(":")[1] in tasks and name in cohort.names and cohort.round in rounds:
            raise OSError("target is away")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)


@pytest.mark.parametrize(("oracle", "tasks"), [
    ("gradient", ["target_gradient"]), ("gradient", ["target_losses"]), ("delegated", ["target_descent"]),
    ("loss", ["target_losses"]),
])  # fmt: skip
@pytest.mark.parametrize("workers", [1, 2])
def test_a_target_that_fails_keeps_its_model_and_the_others_go_on(monkeypatch, oracle, tasks, workers):
    problem = logistic()
    method = MeritFed("all", MINI, oracle=oracle)
    undisturbed = run(method, problem)
    fail(monkeypatch, "b", tasks, rounds=(1, 2))
    early, found = run(method, problem, 2, workers=workers), run(method, problem, workers=workers)
    assert torch.equal(early.models["b"], start(problem))
    assert early.weights["b"] == pytest.approx(dict.fromkeys(SIZES, 0.2), abs=1e-15)
    assert list(found.failures) == ["b"]
    assert not torch.equal(found.models["b"], start(problem))
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
    assert replace(method, validation="train").keeps_validation(problem.clients.names) == ()


def test_a_target_that_does_not_exist_is_named_before_any_training():
    problem = logistic()
    done = []
    with pytest.raises(InputError, match=r"MeritFed\.targets names 'f', which is no client; .*allowed: a, b, c, d, e"):
        fit(MeritFed(("a", "f")), problem.clients, problem.model, 2, progress=done.append)
    assert done == []


@pytest.mark.parametrize(("field", "value"), [
    ("targets", ()), ("targets", 3), ("lr", 0), ("md_steps", -1), ("md_steps", 1.5), ("md_step", -0.1), ("md_step", "linesearch"),
    ("oracle", "hessian"), ("oracle_batch_size", 0), ("validation", "test"), ("damping", 1), ("directions", 0), ("radius", 0.0),
])  # fmt: skip
def test_every_field_refuses_bad_values(field, value):
    with pytest.raises(InputError, match=rf"MeritFed\.{field} must be .*got"):
        MeritFed(**{field: value})


def test_line_search_needs_exact_gradients():
    for options in ({"oracle": "delegated"}, {"oracle": "loss"}, {"oracle_batch_size": 4}):
        with pytest.raises(InputError, match='"line-search" needs oracle = "gradient"'):
            MeritFed(md_step="line-search", **options)


def test_problem_of_labels_is_learnable():
    problem = label_skew()
    assert isinstance(problem, Problem)
    alone = run(FedAvg(replace(FULL, steps=Steps(50))), problem.with_clients(Clients([problem.clients["t"]])), 2)
    assert alone.summary[0]["accuracy"] > 0.9
