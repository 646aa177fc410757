"""What VaRSeL must do, whatever the data; a round recomputed with numpy and scipy alone; and which rows the parts of a batch
have."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from short_runs import MINI, ONE

from coterie import FedAvg, VaRSeL
from coterie.algorithms.varsel import distances, local_updates
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.rows import Part
from coterie.config.local import Epochs, LocalSGD, Schedule, Steps
from coterie.contract.federation import QuorumError
from coterie.contract.task import Task
from coterie.samplers.isfl import LipschitzSampler
from federations import (
    PROBLEMS,
    Problem,
    Vector,
    assert_close,
    assert_same_bits,
    batch_norm,
    build,
    cohort_of,
    federation_of,
    fit,
    logistic,
    quadratic,
    start,
    subset,
)

MUTANTS = {
    "varsel": [
        (
            "algorithms/varsel.py",
            "torch.cat([weights.new_ones(len(inner)), weights])",
            "torch.cat([weights.new_ones(len(inner)), torch.ones_like(weights)])",
        ),
        (
            "algorithms/varsel.py",
            "_square_norm(row - center, cohort.layout.dim)",
            "_square_norm(row, cohort.layout.dim)",
        ),
        (
            "algorithms/varsel.py",
            'if rng.child("draw", name).uniform(1)[0] < p:',
            "if True:",
        ),
        (
            "algorithms/varsel.py",
            "variance *= m / (m - 1)",
            "variance *= 1.0",
        ),
        (
            "algorithms/varsel.py",
            '"variance": variance, "debias": self.debias}',
            '"variance": variance, "debias": False}',
        ),
        (
            "algorithms/varsel.py",
            "squared.argsort(stable=True)",
            "squared.argsort(descending=True, stable=True)",
        ),
        (
            "algorithms/varsel.py",
            "exact_weights(*heads, budget, **form)",
            "exact_weights(*heads, float(len(outer)), **form)",
        ),
        ("algorithms/varsel.py", "[self.number :: self.parts]\n", "[:: self.parts]\n"),
    ],
}

ALL = {"preselect": "smallest"}
CENTRES = {"a": [1.0, 2.0], "b": [-1.0, 2.0]}


def run(method, problem, rounds=1, **options):
    return fit(
        method,
        problem.clients,
        problem.model,
        rounds,
        **{"merge_validation": False, "evaluate": 1, **options},
    )


def last(found, key):
    return found.history.select(key)[-1][1]


def raw_weights(found, target="a"):
    """Weights as coefficients, an internal client having 1."""
    weights = found.weights[target]
    return {k: v / weights[target] for k, v in weights.items()}


# ---- the weights


@pytest.mark.parametrize(
    "local",
    [ONE, replace(ONE, steps=Steps(4)), replace(MINI, steps=Steps(1), batch_size=None)],
)
def test_without_external_clients_it_is_descent_on_the_internal_ones(local):
    problem = quadratic({**CENTRES, "far": [9.0, -9.0]})
    inside = problem.with_clients(subset(problem.clients, "ab"))
    expected = run(FedAvg(local), inside, 5).x
    assert_close(run(VaRSeL(("a", "b"), local=local), inside, 5).models["a"], expected)
    without = run(VaRSeL(("a", "b"), budget=0, local=local), problem, 5)
    assert_close(without.models["b"], expected)
    assert (
        last(without, "selected"),
        last(without, "sum_weights"),
        last(without, "phi_ratio"),
    ) == (0, 0, 1)
    assert [
        r.task.split(":")[1] for r in without.asks if r.task.startswith("coterie.alg")
    ] == ["local_updates"] * 5


def test_buffers_are_averaged_with_the_weights():
    problem = batch_norm()
    names = {"a": 8, "b": 8}
    problem = problem.with_clients(build(lambda n: lambda c, g: drawn(c, g), names))
    expected, found = (
        run(FedAvg(ONE), problem, 3).x,
        run(VaRSeL(("a", "b"), local=ONE), problem, 3).models["a"],
    )
    assert_close(found, expected)
    assert not torch.equal(found[-10:], start(problem)[-10:])


def drawn(count, g):
    x = torch.randn(count, 4, generator=g, dtype=torch.float64)
    return x, x[:, :3].argmax(1)


@pytest.mark.parametrize(
    "options",
    [{}, {"preselect": "smallest"}, {"debias": True}, {"unbiased_variance": True}],
)
def test_copies_of_the_internal_mean_reach_the_cap(options):
    problem = quadratic({**CENTRES, **{n: [0.0, 2.0] for n in "cde"}})
    found = run(VaRSeL(("a", "b"), local=ONE, **options), problem)
    assert raw_weights(found) == pytest.approx(dict.fromkeys("abcde", 1.0), abs=1e-6)
    if not options.get("debias"):
        assert last(found, "phi_ratio") == pytest.approx(
            4 / 25, rel=1e-6
        )  # (V / 25) / (V / 4)
    limited = run(VaRSeL(("a", "b"), 2, ONE, **options), problem)
    assert (last(limited, "selected"), last(limited, "sum_weights")) == (
        2,
        pytest.approx(2, abs=1e-6),
    )


def test_weights_never_sum_to_more_than_the_budget_however_many_are_drawn():
    problem = quadratic({**CENTRES, **{name: [0.0, 2.0] for name in "cdef"}})
    found = run(VaRSeL(("a", "b"), 1.5, ONE), problem, 20)
    assert max(value for _, value in found.history.select("selected")) == 2
    assert max(
        value for _, value in found.history.select("sum_weights")
    ) == pytest.approx(1.5, abs=1e-5)


def test_a_client_at_a_great_distance_gets_nothing():
    problem = quadratic({**CENTRES, "c": [0.0, 2.0], "d": [1e5, 1e5]})
    forced = run(VaRSeL(("a", "b"), local=ONE, **ALL), problem)
    assert raw_weights(forced) == pytest.approx(
        {"a": 1, "b": 1, "c": 1, "d": 0}, abs=1e-6
    )
    assert last(forced, "selected") == 2
    assert set(run(VaRSeL(("a", "b"), local=ONE), problem).weights["a"]) == {
        "a",
        "b",
        "c",
    }


def test_nothing_is_weighed_where_the_internal_clients_agree():
    problem = quadratic({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0]})
    found = run(VaRSeL(("a", "b"), local=ONE), problem)
    assert (
        last(found, "variance"),
        last(found, "selected"),
        last(found, "phi_ratio"),
    ) == (0, 0, 1)
    assert_close(found.models["a"], run(FedAvg(ONE), problem).x)


def test_smallest_takes_the_nearest_and_bernoulli_as_many_as_eq_8_says():
    centres = {"c": [0.0, 9.0], "d": [0.0, 2.1], "e": [0.0, 2.5], "f": [0.0, 3.0]}
    problem = quadratic({**CENTRES, **centres})
    for budget, chosen in ((1, "d"), (2, "de"), (3.7, "def"), (None, "cdef")):
        found = run(VaRSeL(("a", "b"), budget, ONE, **ALL), problem)
        assert set(found.weights["b"]) == set("ab" + chosen)
        assert last(found, "sum_weights") <= (budget or 4) + 1e-9
    counts = [
        v
        for _, v in run(VaRSeL(("a", "b"), local=ONE), problem, 30).history.select(
            "selected"
        )
    ]
    assert 0 < max(counts) < 4


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({}, "0.33"),
        ({"budget": 10}, "0.33"),
        ({"unbiased_variance": True}, "0.67"),
        ({"internal_splits": 2}, "0.60"),
        ({"budget": 0.3}, None),
        ({"budget": 0}, None),
        ({"preselect": "smallest", "budget": 10}, None),
    ],
)
def test_a_budget_that_eq_8_hardly_reaches_is_noted(options, drawn):
    names = tuple(f"client-{i:02d}" for i in range(30))
    notes = VaRSeL(internal=names[:2], **options).notes(names)
    assert len(notes) == (drawn is not None)
    for note in notes:
        assert f"draws about {drawn} external clients" in note
        assert len(note) <= 300


def test_debias_trusts_external_clients_more_and_the_unbiased_variance_too():
    problem = logistic()
    plain, unbiased, debiased = (
        last(run(VaRSeL(("a", "b"), local=ONE, **ALL, **o), problem), "sum_weights")
        for o in ({}, {"unbiased_variance": True}, {"debias": True})
    )
    assert plain < unbiased < debiased


def test_weights_never_raise_the_estimated_error_and_ignore_a_common_shift():
    found = run(VaRSeL(("a", "b"), local=replace(ONE, lr=1.0)), logistic(), 15)
    assert all(0 < r <= 1 for _, r in found.history.select("phi_ratio"))
    # All gradients of quadratics move alike with the model, so the differences, which alone matter, stay.
    problem = quadratic({**CENTRES, "c": [0.5, 2.5], "d": [-0.5, 3.0]})
    sums = [
        w
        for _, w in run(
            VaRSeL(("a", "b"), local=ONE, **ALL), problem, 5
        ).history.select("sum_weights")
    ]
    assert sums == pytest.approx([sums[0]] * 5, abs=1e-6)
    assert 0.1 < sums[0] < 1.9


# ---- estimates of the variance


def gaussian(shape, seed=3):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize(("options", "m", "parts", "expected"), [
    ({}, 3, 1, 2.0),  # (M - 1) s^2
    ({"unbiased_variance": True}, 3, 1, 3.0),  # M s^2
    ({"debias": True}, 3, 1, 3.0),
    ({"internal_splits": 3}, 2, 3, 5.0),  # virtual clients count
    ({"unbiased_variance": True, "internal_splits": 3}, 2, 3, 6.0),
    ({"debias": True, "internal_splits": 3}, 1, 3, 3.0),
    ({"debias": True, "internal_splits": 2}, 1, 2, 0.5),  # halves have s^2 = 1, so their mean has 1/2
    ({"debias": True, "internal_splits": 2}, 4, 2, 2.0),
])  # fmt: skip
def test_variance_is_what_it_estimates(options, m, parts, expected):
    method = VaRSeL("a", **options)
    total, draws, dim = 0.0, 400, 50
    for noise in gaussian((draws, m, parts, dim + 2)):
        rows, variance = method._internal(noise + 7.0, dim)
        total += variance / dim / draws
        assert_close(rows.mean(0), noise.mean((0, 1)) + 7.0)
    assert total == pytest.approx(expected, rel=0.02)


@pytest.mark.in_turn
def test_half_batches_estimate_the_variance_of_a_batch_gradient():
    problem = logistic()
    problem = problem.with_clients(
        build(lambda n: lambda c, g: binary(c, g), {"a": 400}, held=0)
    )
    local, method = (
        LocalSGD(steps=Steps(1), batch_size=8),
        VaRSeL("a", debias=True, internal_splits=2),
    )
    x, estimates, batches = start(problem), [], []
    for number in range(300):
        halves = local_updates(
            cohort_of(problem, round=number), x=x, local=local, parts=2
        ).delta
        rows, variance = method._internal(halves, 4)
        estimates.append(variance)
        batches.append(rows[0])
    spread = float(torch.stack(batches).var(0).sum())
    assert sum(estimates) / 300 == pytest.approx(
        spread / (1 - 8 / 400), rel=0.1
    )  # rows are drawn without replacement


def binary(count, g):
    x = torch.randn(count, 3, generator=g, dtype=torch.float64)
    return x, (
        x[:, 0] + torch.randn(count, generator=g, dtype=torch.float64) > 0
    ).long()


# ---- the exchanges


@pytest.mark.in_turn(but=("1-3-dropout", "2-1-batch-norm"))
@pytest.mark.parametrize("problem", ["logistic", "dropout", "batch-norm"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_gradient_that_is_sent_is_the_one_whose_distance_was(
    problem, steps, workers
):
    made, local = PROBLEMS[problem](), replace(MINI, steps=Steps(steps))
    with federation_of(made, workers, round=4) as federation:
        x, dim = start(made), federation.dim
        center = gaussian((len(x),))
        sent = federation.ask("abcde", distances, x=x, center=center, local=local)
        trained = dict(federation.session.spent)
        noted = federation.ask("bd", local_updates, x=x, local=local, parts=1)
        assert federation.session.spent == trained
        other = federation.view("abcde", 5, 0).ask(
            "abcde", distances, x=x, center=center, local=local
        )
        later = federation.ask("bd", local_updates, x=x, local=local, parts=1)
        assert federation.session.spent["row_gradients"] > 2 * trained["row_gradients"]
    assert torch.equal(
        noted.delta, later.delta
    )  # noted, or computed again where the notes are gone
    for name, delta in zip(later.clients, later.delta[:, 0], strict=True):
        apart = (delta - center)[:dim].contiguous()
        distance = torch.dot(apart, apart)
        assert torch.equal(distance, sent.squared["abcde".index(name)])
        assert not torch.equal(distance, other.squared["abcde".index(name)])


def test_a_round_is_three_exchanges_and_an_external_client_sends_one_number():
    found = run(VaRSeL(("a", "b"), local=ONE, **ALL), logistic())
    asks = [
        (r.task.split(":")[1], r.clients, r.bytes_up)
        for r in found.asks
        if r.task.startswith("coterie.alg")
    ]
    assert asks == [
        ("local_updates", 2, 32),
        ("distances", 3, 8),
        ("local_updates", 3, 32),
    ]


def test_the_model_serves_internal_clients_only():
    found = run(VaRSeL(("d", "a"), local=ONE), logistic())
    assert list(found.models) == list(found.weights) == ["a", "d"]
    assert torch.equal(found.models["a"], found.models["d"])
    assert {row["client"] for row in found.summary} == {"a", "d"}


def test_without_a_rate_of_its_own_the_step_has_the_rate_of_local_training():
    problem = logistic()
    local = replace(MINI, lr=Schedule(0.4, at=(2,)))
    found = run(VaRSeL(("a", "b"), local=local), problem, 2)
    fixed = run(VaRSeL(("a", "b"), local=local, lr=0.4), problem, 2)
    one = run(VaRSeL(("a", "b"), local=local, lr=0.4), problem, 1).models["a"]
    assert_close(one, run(VaRSeL(("a", "b"), local=local), problem, 1).models["a"])
    assert_close((found.models["a"] - one) * 10, fixed.models["a"] - one, 1e-10)


def fail(monkeypatch, name, task):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if self.name.endswith(f":{task}") and name in cohort.names:
            raise OSError("away")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)


def test_an_external_client_without_a_distance_is_not_drawn(monkeypatch):
    problem = logistic()
    method = VaRSeL(("a", "b"), local=ONE, **ALL)
    undisturbed = run(method, problem.with_clients(subset(problem.clients, "abce")), 2)
    fail(monkeypatch, "d", "distances")
    found = run(method, problem, 2)
    assert list(found.failures) == ["d"]
    assert set(found.weights["a"]) == set("abce")
    assert_close(found.models["a"], undisturbed.models["a"])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("a", "1 of 2 clients replied, all"), ("d", "2 of 3 clients replied, all")],
)
def test_internal_and_chosen_clients_must_answer(monkeypatch, name, sentence):
    fail(monkeypatch, name, "local_updates")
    with pytest.raises(
        QuorumError,
        match=rf"local_updates': {sentence} of them are needed\. Failed: {name} ",
    ):
        run(VaRSeL(("a", "b"), local=ONE, **ALL), logistic())


@pytest.mark.in_turn
def test_splits_serve_a_single_internal_client():
    problem = logistic()
    for options in (
        {},
        {"debias": True},
        {"internal_splits": 3},
        {"unbiased_variance": True},
    ):
        method = VaRSeL("a", local=MINI, **ALL, **{"internal_splits": 2, **options})
        found = run(method, problem, 2)
        assert_same_bits(found, run(method, problem, 2, workers=2))
        assert last(found, "sum_weights") > 0
        counts = 1 if options.get("debias") else method.internal_splits
        share = counts / (counts + last(found, "sum_weights"))
        assert found.weights["a"]["a"] == pytest.approx(share, rel=1e-9)


# ---- errors


@pytest.mark.parametrize(("field", "value"), [
    ("internal", ()), ("internal", ""), ("internal", 3), ("internal", ("a", 1)), ("budget", -1), ("budget", "all"), ("lr", 0),
    ("internal_splits", 0), ("internal_splits", 1.5), ("debias", 1), ("unbiased_variance", "yes"), ("preselect", "largest"),
])  # fmt: skip
def test_every_field_refuses_bad_values(field, value):
    with pytest.raises(InputError, match=rf"VaRSeL\.{field} must be .*got"):
        VaRSeL(**{"internal": "a", field: value})


@pytest.mark.parametrize(("options", "sentence"), [
    ({"internal": ("a", "f")}, r"VaRSeL\.internal names 'f', which is not a client; .*allowed: a, b, c, d, e"),
    ({"internal": "a"}, r"VaRSeL\.internal names 'a' alone, .* set internal_splits = 2 to split its batches, or name a second"),
    ({"internal": ("a", "b"), "budget": 4}, r"VaRSeL\.budget = 4 is more than the 3 external clients; lower it"),
])  # fmt: skip
def test_fields_that_do_not_fit_the_clients_are_refused_before_any_training(
    options, sentence
):
    done = []
    with pytest.raises(InputError, match=sentence):
        run(VaRSeL(**options), logistic(), callbacks=(done.append,))
    assert done == []


def test_splits_need_rows_and_their_own_batches():
    with pytest.raises(
        InputError,
        match=r"internal_splits = 5 splits each batch; take local\.batch_size = 4 larger",
    ):
        VaRSeL("a", local=MINI, internal_splits=5)
    with pytest.raises(
        InputError,
        match=r"internal_splits = 2 splits each batch; take no local\.sampler",
    ):
        VaRSeL("a", local=replace(MINI, sampler=LipschitzSampler()), internal_splits=2)
    with pytest.raises(
        InputError,
        match=r"client 'a' has 12 rows in a batch, and 13 parts of it need 13; lower internal_splits",
    ):
        run(VaRSeL("a", local=ONE, internal_splits=13), logistic())


def test_without_clarabel_the_cure_is_named_before_any_training(monkeypatch):
    monkeypatch.setattr("coterie.algorithms.varsel.find_spec", lambda name: None)
    assert importlib.util.find_spec("clarabel")
    with pytest.raises(
        InputError, match=r'clarabel, which is missing: pip install "coterie\[varsel\]"'
    ):
        run(VaRSeL(("a", "b")), logistic())


LR = 0.4


def gradient(part, x, steps):
    """Accumulated gradient of full-batch descent on the logistic loss; with one step the gradient itself."""
    inputs = np.hstack([part.inputs.numpy(), np.ones((len(part.labels), 1))])
    y = x.copy()
    for _ in range(steps):
        y = y - LR * inputs.T @ (
            1 / (1 + np.exp(-inputs @ y)) - part.labels.numpy()
        ) / len(part.labels)
    return (x - y) / LR


def least(value, n, budget):
    """A minimiser over [0, 1]^n with sum <= budget by SLSQP from many starts."""
    rng = np.random.default_rng(0)
    starts = [
        np.zeros(n),
        np.full(n, min(1, budget / n)),
        *rng.uniform(0, min(1, budget / n), (6, n)),
    ]
    limit = {"type": "ineq", "fun": lambda w: budget - w.sum()}
    options = {"ftol": 1e-15, "maxiter": 500}
    found = [
        minimize(value, w, bounds=[(0, 1)] * n, constraints=[limit], options=options)
        for w in starts
    ]
    return min(found, key=lambda f: f.fun).x


def by_hand(problem, method, steps):
    """Algorithm 1, round 1: the model, weights by client, and Phi(w*) / Phi(0)."""
    x = start(problem).numpy()
    g = {c.name: gradient(c.train, x, steps) for c in problem.clients}
    inner = np.stack([g[n] for n in method.internal])
    outside = [n for n in g if n not in method.internal]
    m, center = len(inner), inner.mean(0)
    v = ((inner - center) ** 2).sum() * (
        m / (m - 1) if method.unbiased_variance or method.debias else 1
    )
    d = np.array([((g[n] - center) ** 2).sum() for n in outside])
    budget = len(outside) if method.budget is None else method.budget
    if method.preselect == "smallest":
        chosen = sorted(outside[i] for i in np.argsort(d)[: int(budget)])
    else:
        w = least(
            lambda w: (v + w.sum() * (w @ d)) / (m + w.sum()) ** 2, len(d), budget
        )
        rng = Rng.named(0, "server", 1)
        chosen = [
            n
            for n, p in zip(outside, w, strict=True)
            if rng.child("draw", n).uniform(1)[0] < p
        ]
    far = np.stack([g[n] for n in chosen]) - center

    def phi(w):
        shared = (w.sum() / m) ** 2 * v if method.debias else 0
        return (v + ((w @ far) ** 2).sum() - shared) / (m + w.sum()) ** 2

    w = least(phi, len(chosen), budget)
    step = (inner.sum(0) + w @ (far + center)) / (m + w.sum())
    return (
        x - (method.lr or LR) * step,
        dict(zip(chosen, w, strict=True)),
        phi(w) / phi(0 * w),
    )


@pytest.mark.in_turn(but=("options0-1", "options2-3", "options5-3"))
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("options", [
    {"preselect": "smallest"},
    {"preselect": "smallest", "debias": True},
    {"preselect": "smallest", "budget": 2, "lr": 0.9},
    {"preselect": "smallest", "unbiased_variance": True, "budget": 3},
    {"budget": 2.5, "unbiased_variance": True},
    {"debias": True},
])  # fmt: skip
def test_a_round_is_that_of_algorithm_1(options, steps):
    problem = logistic()
    local = LocalSGD(lr=LR, steps=Steps(steps), batch_size=None)
    method = VaRSeL(internal=("a", "c"), local=local, **options)
    found = fit(method, problem.clients, problem.model, 1, merge_validation=False)
    x, weights, ratio = by_hand(problem, method, steps)
    assert weights, "the case must choose somebody"
    assert set(found.models) == {"a", "c"}
    np.testing.assert_allclose(found.models["a"].numpy(), x, atol=2e-6)
    mass = 2 + sum(weights.values())
    assert set(found.weights["a"]) == {"a", "c", *weights}
    for name in ("a", "c"):
        assert found.weights["c"][name] == pytest.approx(1 / mass, abs=1e-5)
    for name, weight in weights.items():
        assert found.weights["c"][name] == pytest.approx(weight / mass, abs=1e-5)
    assert found.history.select("phi_ratio") == [(1, pytest.approx(ratio, rel=1e-6))]
    assert found.history.select("sum_weights") == [
        (1, pytest.approx(mass - 2, abs=1e-4))
    ]
    assert found.history.select("selected") == [(1, len(weights))]


def test_the_cases_have_weights_of_all_kinds():
    problem = logistic()
    local = LocalSGD(lr=LR, steps=Steps(1), batch_size=None)
    method = VaRSeL(
        internal=("a", "c"),
        local=local,
        preselect="smallest",
        unbiased_variance=True,
        budget=3,
    )
    weights = by_hand(problem, method, 1)[1].values()
    assert max(weights) > 0.5
    assert any(0.01 < w < 0.99 for w in weights)


# ---- which rows a part of a batch has: the labels are powers of two, so that a sum of labels names its rows


ROWS = 13


def two_classes():
    labels = 2.0 ** torch.arange(ROWS, dtype=torch.float64)[:, None]
    clients = Clients(
        [
            Client(n, Part(torch.zeros(ROWS, 1, dtype=torch.float64), labels))
            for n in "ab"
        ]
    )
    return Problem(clients, Vector(1).double())


def rows_of_gradient(gradient, count):
    """The rows whose mean of (0 - label)^2 has this gradient, -2 * mean(label)."""
    total = round(-float(gradient) / 2 * count)
    return {k for k in range(ROWS) if total >> k & 1}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("parts", "size", "sizes"), [
    (1, 5, [5]), (2, 8, [4, 4]), (3, 8, [3, 3, 2]), (2, None, [7, 6]), (5, 5, [1, 1, 1, 1, 1]), (1, None, [13]),
])  # fmt: skip
def test_parts_are_disjoint_and_together_the_batch_of_gradient(
    parts, size, sizes, mode
):
    problem = two_classes()
    cohort, x = cohort_of(problem), start(problem)
    found = cohort.gradients(x, parts=parts, batch_size=size, mode=mode)
    assert cohort.spent["row_gradients"] == 2 * sum(sizes)
    whole = cohort.gradient(x, batch_size=size, mode=mode)
    for i in range(2):
        rows = [
            rows_of_gradient(g, n) for g, n in zip(found[i, :, 0], sizes, strict=True)
        ]
        assert [len(r) for r in rows] == sizes
        assert set().union(*rows) == rows_of_gradient(whole[i, 0], sum(sizes))


@pytest.mark.parametrize("local", [
    LocalSGD(lr=0.25, steps=Steps(1), batch_size=8),
    LocalSGD(lr=0.25, steps=Steps(1), batch_size=8, momentum=0.5),
    LocalSGD(lr=0.25, steps=Epochs(1), batch_size=None),
])  # fmt: skip
@pytest.mark.parametrize("parts", [2, 3])
def test_internal_splits_are_disjoint_shares_of_a_batch_in_every_way_of_training(
    local, parts
):
    problem = two_classes()
    found = local_updates(
        cohort_of(problem, "a"), x=start(problem), local=local, parts=parts
    ).delta[0, :, 0]
    batch = local.batch_size or ROWS
    sizes = [len(range(k, batch, parts)) for k in range(parts)]
    rows = [rows_of_gradient(-d, n) for d, n in zip(found, sizes, strict=True)]
    assert [len(r) for r in rows] == sizes
    assert len(set().union(*rows)) == batch


def test_local_steps_of_a_split_never_leave_its_rows():
    problem, x = two_classes(), torch.zeros(1, dtype=torch.float64)
    # lr = 1/2 makes the model the mean label of the last batch: of batches of 2 + 2 rows, from parts of 7 and 6 rows.
    local = LocalSGD(lr=0.5, steps=Steps(5), batch_size=4)
    seen = [set(), set()]
    for steps in range(1, 6):
        taken = LocalSGD(lr=0.5, steps=Steps(steps), batch_size=4, weight_decay=1e-300)
        ends = (
            local_updates(cohort_of(problem, "a"), x=x, local=taken, parts=2).delta[
                0, :, 0
            ]
            * local.lr
        )
        for part, end in enumerate(ends):
            rows = rows_of_gradient(-2 * end, 2)
            assert len(rows) in (
                1,
                2,
            )  # a batch may begin and end with the same row, which then counts twice
            seen[part] |= rows
    assert not seen[0] & seen[1]
    assert min(map(len, seen)) >= 5


def test_one_part_is_the_gradient_itself():
    problem = logistic()
    cohort, x = cohort_of(problem), start(problem)
    assert_close(
        cohort.gradients(x, parts=1, batch_size=4)[:, 0],
        cohort.gradient(x, batch_size=4),
        0,
    )
