"""Weights of rows: a row of weight 2 is two rows, weights of 1 change nothing, and neither does their scale at a client."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.base.metric_names import BOUNDS
from coterie.cli.main import main
from coterie.compute.boosted import losses_of_classes, losses_of_numbers
from coterie.compute.metrics import find_metrics, value_of
from coterie.compute.outcomes import auc_influence, mean_influence
from coterie.compute.row_gradients import clipped_sums
from coterie.compute.segments import Segments
from coterie.compute.survival import brier_at, concordance, kaplan_meier
from coterie.solvers import glm
from coterie.solvers.cox import partial_likelihood
from coterie.solvers.pooling import draw_to
from coterie.solvers.profile import fit_shared_slopes
from coterie.solvers.ridge import Problem, fit_ridge, ridge_by_fold, ridge_of_all
from coterie.study.row_outcomes import write_outcomes

SEEDS = st.integers(0, 10_000)
KINDS = st.sampled_from(["binary", "classes", "regression", "hazards", "count"])
FEW = settings(max_examples=15, deadline=None)
EXACT = ("local", "partial", "fixed-effects", "centralised")


def rows_of(kind, seed, n=30):
    """Inputs, labels as `glm` reads them, and outputs."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(n, 2)))
    if kind == "regression":
        return x, x[:, 0] + torch.from_numpy(rng.normal(size=n)), 1
    if kind in ("binary", "classes"):
        count = 2 if kind == "binary" else 3
        return (
            x,
            torch.from_numpy(rng.integers(0, count, n)),
            count - (kind == "binary"),
        )
    outputs = 3 if kind == "hazards" else 1
    usual = torch.from_numpy(rng.uniform(0.1, 1, (n, outputs)))
    seen = torch.from_numpy(rng.poisson(0.5, (n, outputs))).double()
    return x, torch.cat([usual, seen], 1), outputs


def counts_of(seed, n=30):
    """How often each row is repeated: whole numbers from 0 with mean 1."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.multinomial(n, rng.dirichlet(np.full(n, 2.0)))).double()


def repeat(values, counts):
    return values.repeat_interleave(counts.long(), dim=0)


# Solvers


@FEW
@given(KINDS, SEEDS)
def test_solvers_take_a_weight_for_repeated_rows(kind, seed):
    x, y, outputs = rows_of(kind, seed)
    counts = counts_of(seed)
    family = glm.FAMILIES[kind]
    columns = 2 if glm.shares_slopes(family) else 2 * outputs
    precision = torch.full((columns + outputs,), 0.7)
    weighted = glm.mode(x, y, family, precision, outputs, weights=counts).theta
    repeated = glm.mode(
        repeat(x, counts), repeat(y, counts), family, precision, outputs
    ).theta
    torch.testing.assert_close(weighted, repeated, atol=1e-8, rtol=0)

    parts = [(x[:15], y[:15]), (x[15:], y[15:])]
    of_parts = [counts[:15], counts[15:]]
    shared = fit_shared_slopes(parts, family, outputs, 1.0, 0.05, of_parts)
    again = fit_shared_slopes(
        [
            (repeat(inputs, own), repeat(labels, own))
            for (inputs, labels), own in zip(parts, of_parts, strict=True)
        ],
        family,
        outputs,
        1.0,
        0.05,
    )
    for ours, theirs in zip(shared, again, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=0)


@pytest.mark.in_turn
@FEW
@given(KINDS, SEEDS)
def test_a_ridge_is_chosen_as_by_repeated_rows(kind, seed):
    x, y, outputs = rows_of(kind, seed)
    counts, folds = counts_of(seed), torch.arange(30) % 4
    weighted = Problem(x, y, kind, outputs, counts)
    repeated = Problem(repeat(x, counts), repeat(y, counts), kind, outputs)
    for solve in (ridge_by_fold, ridge_of_all):
        ours = solve(weighted, folds)
        theirs = solve(repeated, repeat(folds, counts))
        if not torch.equal(ours.penalties, theirs.penalties):
            continue  # one class is left by weights of 0
        torch.testing.assert_close(ours.models, theirs.models, atol=1e-8, rtol=0)
    ones = Problem(x, y, kind, outputs, torch.ones(30).double())
    plain = Problem(x, y, kind, outputs)
    penalties = torch.tensor([1.0, 10.0])
    sets = torch.ones(1, 30)
    assert torch.equal(
        fit_ridge(ones, sets, penalties), fit_ridge(plain, sets, penalties)
    )


def written_out(slopes, x, followup, weights):
    """Efron's log partial likelihood with weights, term by term."""
    entry, time, event = followup.unbind(1)
    score = x @ slopes
    hazard = weights * score.exp()
    total = (weights * score)[event > 0].sum()
    for at in time[event > 0].unique():
        tied = (time == at) & (event > 0)
        at_risk = hazard[(entry < at) & (time >= at)].sum()
        share = weights[tied].mean()
        count = int(tied.sum())
        for j in range(count):
            left = at_risk - j / count * hazard[tied].sum()
            total = total - share * left.log()
    return total


@FEW
@given(SEEDS)
def test_a_partial_likelihood_with_weights_is_that_of_efron(seed):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(40, 2)))
    time = torch.from_numpy(rng.integers(2, 15, 40)).double()
    event = torch.from_numpy(rng.random(40) < 0.6).double()
    late = torch.from_numpy(rng.random(40) < 0.4).double()
    followup = torch.stack([late * (time - 1), time, event], 1)
    weights = torch.from_numpy(rng.uniform(0.2, 3, 40))
    slopes = torch.tensor([0.4, -0.3], dtype=torch.float64)
    found = partial_likelihood(slopes, x, followup, weights)

    at = slopes.clone().requires_grad_()
    value = written_out(at, x, followup, weights)
    (gradient,) = torch.autograd.grad(value, at, create_graph=True)
    rows = [torch.autograd.grad(part, at, retain_graph=True)[0] for part in gradient]
    gradient, curvature = gradient.detach(), -torch.stack(rows)
    torch.testing.assert_close(found.gradient, gradient, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(found.curvature, curvature, atol=1e-9, rtol=1e-9)
    # A censored row of weight 2 is two rows.
    counts = torch.where(
        event > 0, 1.0, torch.from_numpy(rng.integers(0, 4, 40)).double()
    )
    ours = partial_likelihood(slopes, x, followup, counts)
    theirs = partial_likelihood(slopes, repeat(x, counts), repeat(followup, counts))
    torch.testing.assert_close(ours.gradient, theirs.gradient, atol=1e-8, rtol=0)
    torch.testing.assert_close(ours.curvature, theirs.curvature, atol=1e-8, rtol=0)


# Metrics and their errors


@FEW
@given(SEEDS)
def test_metrics_take_a_weight_for_repeated_rows(seed):
    rng = np.random.default_rng(seed)
    counts = counts_of(seed, 40)
    marks = torch.from_numpy(rng.integers(0, 2, (40, 2)))
    time = torch.from_numpy(rng.integers(1, 20, 40) / 10)
    followup = torch.stack([0 * time, time, marks[:, 0].double()], 1)
    tables = {
        "binary": (
            torch.from_numpy(rng.normal(size=(40, 1))).round(decimals=1),
            marks[:, 0],
        ),
        "classes": (
            torch.from_numpy(rng.normal(size=(40, 7))),
            torch.from_numpy(rng.integers(0, 7, 40)),
        ),
        "multilabel": (torch.from_numpy(rng.normal(size=(40, 2))), marks),
        "regression": (
            torch.from_numpy(rng.normal(size=(40, 1))),
            torch.from_numpy(rng.normal(size=40)),
        ),
        "hazards": (
            # Until the horizon, the last cut, and the times before the horizon.
            torch.from_numpy(rng.uniform(0, 2, (40, 17))).round(decimals=1),
            followup,
        ),
        "count": (
            torch.from_numpy(rng.uniform(0.1, 2, (40, 1))),
            torch.from_numpy(rng.integers(1, 5, (40, 2))).float(),
        ),
    }
    names = (
        "auc",
        "brier",
        "ece",
        "accuracy",
        "balanced_accuracy",
        "sensitivity",
        "ppv",
        "f1",
        "auprc",
        "class_error",
        "top5",
    )
    names += (
        "mae",
        "rmse",
        "r2",
        "poisson_deviance",
        "c_index",
        "horizon_brier",
        "horizon_calibration",
        "integrated_brier",
    )
    weighted = Segments(torch.zeros(40, dtype=torch.int64), 1, counts)
    size = int(counts.sum())
    for kind, (outputs, labels) in tables.items():
        for name, metric in find_metrics(names).items():
            ours = value_of(metric, outputs, labels, kind, weighted)
            theirs = metric(repeat(outputs, counts), repeat(labels, counts), kind)
            assert (ours is None) == (theirs is None), (kind, name)
            if ours is not None:
                assert ours == pytest.approx(theirs, abs=1e-9), (kind, name, size)


@FEW
@given(SEEDS)
@example(10)  # the last time is that of a row without weight
def test_statistics_of_rows_take_weights(seed):
    rng = np.random.default_rng(seed)
    n = 40
    counts = counts_of(seed, n).numpy()
    index = np.repeat(np.arange(n), counts.astype(int))
    scores, labels = rng.normal(size=n).round(1), rng.integers(0, 2, n)
    folds = np.arange(n) % 2
    numbers = np.arange(n)
    area = auc_influence(numbers, scores, labels, folds, counts)
    repeated = auc_influence(np.arange(n), scores[index], labels[index], folds[index])
    if area is not None and repeated is not None:
        np.testing.assert_allclose(area.metric, repeated.metric, atol=1e-9)
    # Equal weights, of any size, are none.
    for influence in (mean_influence, auc_influence):
        values = (scores,) if influence is mean_influence else (scores, labels, folds)
        same = influence(numbers, *values, weights=np.full(n, 0.1))
        plain = influence(numbers, *values)
        if plain is not None:
            np.testing.assert_allclose(same.values, plain.values, atol=1e-12)
            assert same.fewest == plain.fewest
    rows = np.column_stack([0 * scores, rng.integers(1, 20, n), labels]).astype(float)
    found = concordance(rows, scores, folds, counts)
    again = concordance(rows[index], scores[index], folds[index])
    assert (found is None) == (again is None)
    if found is not None:
        assert found.value == pytest.approx(again.value)
    curve, of_repeated = kaplan_meier(rows, weights=counts), kaplan_meier(rows[index])
    for at in (3.0, 8.0, 15.0):
        np.testing.assert_allclose(curve.at(at), of_repeated.at(at), atol=1e-9)
        ours = brier_at(rows, rng.random(n) * 0 + 0.5, at, counts)
        theirs = brier_at(rows[index], np.full(n, 0.5), at)
        assert ours == pytest.approx(theirs) if theirs is not None else ours is None


@FEW
@given(SEEDS)
@example(0)  # no case weighs anything
def test_a_row_that_weighs_nothing_is_as_if_it_were_not_there(seed):
    rng = np.random.default_rng(seed)
    n = 12
    numbers, folds, scores = np.arange(n), np.arange(n) % 2, rng.normal(size=n)
    labels = (rng.random(n) < 0.3).astype(int)
    weights = rng.uniform(0.5, 2, n) * (rng.random(n) < 0.6)
    if seed == 0:
        weights = weights * (labels == 0)
    weighs = weights > 0
    for influence, values in (
        (mean_influence, (scores,)),
        (auc_influence, (scores, labels, folds)),
    ):
        found = influence(numbers, *values, weights=weights)
        columns = [column[weighs] for column in values]
        among = influence(numbers[weighs], *columns, weights=weights[weighs])
        assert (found is None) == (among is None)
        if found is None:
            continue
        np.testing.assert_allclose(found.metric, among.metric)
        np.testing.assert_allclose(found.values[weighs], among.values)
        assert not found.values[~weighs].any()


@FEW
@given(SEEDS)
def test_metrics_of_weighted_rows_stay_within_their_bounds(seed):
    """What is exactly right is 1 and no more, in whatever order weights are summed."""
    rng = np.random.default_rng(seed)
    truth = torch.from_numpy(rng.permutation(np.arange(50) % 2))
    scores = (truth + 0.4 * torch.from_numpy(rng.random(50)))[:, None] - 0.9
    weights = torch.from_numpy(rng.uniform(0.01, 5, 50))
    segments = Segments(torch.zeros(50, dtype=torch.int64), 1, weights)
    time = torch.from_numpy(rng.permutation(50) + 1.0)
    followup = torch.stack([0 * time, time, torch.ones(50).double()], 1)
    tables = {
        "binary": (scores, truth),
        "hazards": ((1 / time)[:, None].expand(-1, 17), followup),
    }
    for kind, (outputs, labels) in tables.items():
        for name, (low, high) in BOUNDS.items():
            metric = find_metrics([name])[name]
            value = value_of(metric, outputs, labels, kind, segments)
            assert value is None or low <= value <= high, (kind, name, value)


def test_the_error_of_a_weighted_mean_is_the_formula():
    rng = np.random.default_rng(3)
    values, weights = rng.normal(size=50), rng.uniform(0.5, 3, 50)
    influence = mean_influence(np.arange(50), values, weights)
    mean = np.average(values, weights=weights)
    shares = weights / weights.sum()
    error = np.sqrt(50 / 49 * (shares**2 * (values - mean) ** 2).sum())
    assert np.sqrt((influence.values**2).sum()) == pytest.approx(error)
    assert influence.metric == pytest.approx(mean)
    assert influence.fewest == int(weights.sum() ** 2 / (weights**2).sum())


# Runs


def federation(seed, weights=None, kind="classes", counts=None, parts=None):
    """Two clients in float64, all of whose rows train; `counts` repeats rows, `weights` is a function of the client's number."""
    clients, by_client = {}, {}
    for i, name in enumerate("ab"):
        rng = np.random.default_rng([seed, i])
        x = torch.from_numpy(rng.normal(size=(40, 2)))
        y = x[:, 0] - x[:, 1] + torch.from_numpy(rng.normal(size=40))
        if kind == "classes":
            y = (y > 0).long()
        if counts is not None:
            x, y = repeat(x, counts[i]), repeat(y, counts[i])
        clients[name] = (x, y)
        by_client[name] = None if weights is None else weights(i)
    return ct.data.from_tensors(
        clients,
        task="classification" if kind == "classes" else "regression",
        weights=None if weights is None else by_client,
        split={"parts": parts or {"train": 1.0}},
    )


def models_of(method, clients, rounds=6):
    model = torch.nn.Linear(2, 1).double()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    run = ct.fit(method, clients, model, rounds=rounds)
    assert run.meaning is not None
    return dict(sorted(run.models.items()))


def assert_same(ours, theirs, atol):
    assert ours.keys() == theirs.keys()
    for name, vector in ours.items():
        torch.testing.assert_close(vector, theirs[name], atol=atol, rtol=0)


@FEW
@given(
    SEEDS,
    st.sampled_from(["partial", "fixed-effects", "centralised"]),
    st.sampled_from(["classes", "numbers"]),
)
def test_exact_models_take_a_weight_for_repeated_rows(seed, method, kind):
    counts = [counts_of(seed + i, 40) for i in range(2)]
    weighted = federation(seed, lambda i: counts[i], kind)
    repeated = federation(seed, kind=kind, counts=counts)
    assert_same(models_of(method, weighted), models_of(method, repeated), 1e-8)


@pytest.mark.in_turn
@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_steps_on_all_rows_take_a_weight_for_repeated_rows(seed):
    counts = [counts_of(seed + i, 40) for i in range(2)]
    local = ct.LocalSGD(lr=0.3, batch_size=None, steps=ct.Steps(3))
    for method in (ct.FedAvg(local=local), ct.SCAFFOLD(local=local)):
        weighted = federation(seed, lambda i: counts[i])
        repeated = federation(seed, counts=counts)
        assert_same(models_of(method, weighted), models_of(method, repeated), 1e-9)


@pytest.mark.in_turn(
    but=("partial-classes", "fedavg-numbers", "meritfed-classes", "ditto-numbers")
)
@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("method", [*EXACT, "fedavg", "meritfed", "ditto", "fedamp"])
def test_weights_of_one_change_nothing_and_neither_does_their_scale(method, kind):
    parts = {"train": 0.6, "validation": 0.2, "test": 0.2}
    plain = models_of(method, federation(1, kind=kind, parts=parts))
    ones = federation(1, lambda i: torch.ones(40), kind, parts=parts)
    assert_same(models_of(method, ones), plain, 0.0 if method in EXACT else 1e-9)

    def weights(i, scale=(1.0, 1.0)):
        rng = np.random.default_rng(i)
        return torch.from_numpy(scale[i] * rng.uniform(0.2, 3, 40))

    ours = models_of(method, federation(1, weights, kind, parts=parts))
    scaled = federation(1, lambda i: weights(i, (1000.0, 0.37)), kind, parts=parts)
    assert_same(models_of(method, scaled), ours, 1e-7)
    gaps = [float((ours[name] - plain[name]).abs().max()) for name in plain]
    assert max(gaps) > 1e-3


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_slopes_are_those_of_statsmodels(kind):
    sm = pytest.importorskip("statsmodels.api")

    def weights(i):
        return torch.from_numpy(np.random.default_rng(i).uniform(0.2, 3, 40))

    clients = federation(4, weights, kind)
    ours = models_of(ct.FixedEffects(ridge=0.0), clients, 20)
    design, labels, all_weights = [], [], []
    for i, client in enumerate(clients):
        own = np.tile(np.eye(2)[i], (40, 1))
        design.append(np.column_stack([client.train.inputs.numpy(), own]))
        labels.append(client.train.labels[:, 0].numpy())
        # A client weighs as many rows as it has.
        all_weights.append(weights(i).numpy() / weights(i).mean().item())
    y, x, w = map(np.concatenate, (labels, design, all_weights))
    family = sm.families.Binomial() if kind == "classes" else sm.families.Gaussian()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = sm.GLM(y, x, family=family, freq_weights=w).fit(tol=1e-12).params
    np.testing.assert_allclose(ours["a"].numpy(), theirs[[0, 1, 2]], atol=1e-5)
    np.testing.assert_allclose(ours["b"].numpy(), theirs[[0, 1, 3]], atol=1e-5)


def test_the_loss_of_a_part_is_the_mean_by_weights():
    parts = {"train": 0.5, "test": 0.5}
    weights = [counts_of(i, 40) + 0.5 for i in range(2)]
    clients = federation(2, lambda i: weights[i], parts=parts)
    run = ct.fit("fedavg", clients, torch.nn.Linear(2, 1).double(), rounds=2)
    for row in run.summary:
        if row["split"] != "test":
            continue
        part = clients[row["client"]].test
        outputs = run.module.double()(part.inputs).detach()
        labels, own = part.labels.unbind(1)
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            outputs[:, 0], labels, reduction="none"
        )
        expected = float((own * each).sum() / own.sum())
        assert row["loss"] == pytest.approx(expected, rel=1e-6)
        assert row["n"] == 20


# Tables

OPTIONS = ct.data.Tables(label="died", weights="w")


def frame(seed, n=90):
    rng = np.random.default_rng(seed)
    age, w = rng.normal(60, 9, n), rng.uniform(0.3, 3, n)
    died = (rng.random(n) < 1 / (1 + np.exp(-(age - 60) / 6))).astype(int)
    return pd.DataFrame({"age": age, "size": rng.normal(size=n), "w": w, "died": died})


def frames():
    return {name: frame(i) for i, name in enumerate(("east", "north", "west"))}


def test_weights_of_a_table_are_no_input_and_follow_their_rows():
    tables = frames()
    clients = ct.data.from_frames(tables, tables=OPTIONS)
    assert clients.recipe["features"] == ["age", "size"]
    assert clients.form.weighted
    found = torch.cat([part.labels for _, part in clients["east"].parts()])
    expected = tables["east"][["died", "w"]].to_numpy(float)
    assert sorted(found.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (-1, "'w' is -1 in data row 4"),
        (float("nan"), "'w' (weights) is missing in data row 4"),
    ],
)
def test_a_cell_that_is_no_weight_is_refused_by_row(value, says):
    tables = frames()
    tables["east"].loc[3, "w"] = value
    with pytest.raises(ct.InputError) as refused:
        ct.data.from_frames(tables, tables=OPTIONS)
    assert says in str(refused.value)


def test_what_no_weights_fit_is_refused_in_a_sentence():
    tables = frames()
    tables["east"]["w"] = 0.0
    with pytest.raises(ct.InputError, match="0 in every row"):
        ct.data.from_frames(tables, tables=OPTIONS)
    with pytest.raises(ct.InputError, match="both 'w'"):
        ct.data.Tables(label="w", weights="w")
    clients = ct.data.from_frames(frames(), tables=OPTIONS)
    own = ct.RunSettings(metrics={"mine": lambda outputs, labels: 0.0})
    with pytest.raises(ct.InputError, match="mine"):
        ct.fit("fedavg", clients, rounds=1, settings=own)
    pair = (torch.zeros(20, 1), torch.arange(20) % 2)
    with pytest.raises(ct.InputError, match="'b'"):
        ct.data.from_tensors({"a": pair, "b": pair}, weights={"a": torch.ones(20)})
    with pytest.raises(ct.InputError, match="-2"):
        ct.data.from_tensors({"a": pair}, weights={"a": torch.full((20,), -2.0)})


def test_a_weight_of_the_usual_name_is_asked_and_the_cure_works():
    tables = {
        name: table.rename(columns={"w": "ipw"}) for name, table in frames().items()
    }
    asked = ct.data.from_frames(tables, label="died").questions
    (question,) = [text for text in asked if "ipw" in text]
    assert 'weights = "ipw"' in question
    answered = ct.data.Tables(label="died", weights="ipw")
    assert not ct.data.from_frames(tables, tables=answered).questions


def write(folder):
    folder.mkdir()
    for name, table in frames().items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.mark.in_turn(but="split1")
@pytest.mark.parametrize("split", [{"folds": 3}, {}])
def test_a_comparison_counts_rows_by_their_weights(tmp_path, split):
    data = {
        "folder": str(write(tmp_path / "t")),
        "label": "died",
        "weights": "w",
        "split": split,
    }
    methods = ["local", "partial", "fedavg"]
    out = tmp_path / "out"
    comparison = ct.compare(methods, data, rounds=4, seeds=2, folder=out)
    outcomes = comparison.results.comparisons.outcomes
    rows = outcomes.rows("local", "east")[0]
    every = frames()["east"]
    assert rows.weights is not None
    np.testing.assert_allclose(
        np.sort(rows.weights),
        np.sort(every["w"].to_numpy()[rows.numbers] / every["w"].mean()),
    )
    influence = rows.influence("loss")
    assert influence.metric == pytest.approx(
        np.average(rows.loss, weights=rows.weights)
    )
    report = comparison.report()
    assert "rows weighed by w" in report.read_text(encoding="utf-8")


@pytest.mark.in_turn(but="numbers")
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_boosted_trees_do_not_depend_on_the_unit_of_weights(kind):
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    inputs, weights = rng.normal(size=(300, 3)), rng.uniform(0.2, 3, 300)
    labels = inputs[:, 0] + rng.normal(size=300)
    losses_of = losses_of_numbers
    if kind == "classes":
        labels, losses_of = (labels > 0).astype(np.int64), losses_of_classes
    tested = (inputs[:90], labels[:90])
    ours = losses_of(inputs, labels, *tested, weights)
    assert not np.allclose(ours, losses_of(inputs, labels, *tested))
    for unit in (1e-3, 1e3):
        theirs = losses_of(inputs, labels, *tested, unit * weights)
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_writing_outcomes_leaves_the_weights_of_rows_as_they_are(tmp_path):
    weights = [torch.arange(1.0, 41) for _ in range(2)]
    parts = {"train": 0.5, "test": 0.5}
    clients = federation(2, lambda i: weights[i], parts=parts)
    before = clients.test.labels.clone()
    run = ct.fit("fedavg", clients, "logistic", rounds=1)
    loss = ct.RunSettings().row_loss(clients)
    write_outcomes(tmp_path / "o.safetensors", "fedavg", run, clients, loss, "")
    torch.testing.assert_close(clients.test.labels, before, atol=0, rtol=0)


@pytest.mark.in_turn
def test_weights_that_are_too_uneven_get_no_word(tmp_path):
    folder = write(tmp_path / "t")
    east = frames()["east"]
    east.loc[::30, "w"] = 500.0
    east.to_csv(folder / "east.csv", index=False)
    data = {
        "folder": str(folder),
        "label": "died",
        "weights": "w",
        "split": {"folds": 3},
    }
    comparison = ct.compare(["local", "partial"], data, rounds=2, seeds=1)
    verdict = comparison.verdict("east")
    assert verdict.kind == "too few rows to tell"
    assert "too uneven" in verdict.reason
    assert "too uneven" not in comparison.verdict("west").reason


def test_a_client_whose_cases_weigh_nothing_has_a_report(tmp_path):
    folder = write(tmp_path / "t")
    east = frames()["east"]
    east.loc[east["died"] == east["died"].max(), "w"] = 0.0
    east.to_csv(folder / "east.csv", index=False)
    data = {"folder": str(folder), "label": "died", "weights": "w"}
    data["split"] = {"folds": 2}
    comparison = ct.compare(
        ["local", "partial"], data, rounds=2, seeds=1, folder=tmp_path / "out"
    )
    rows = comparison.results.comparisons.outcomes.rows("local", "east")[0]
    assert (rows.weights > 0).all()
    assert np.unique(rows.labels).size == 1
    verdict = comparison.verdict("east")
    assert verdict.reason in comparison.report().read_text(encoding="utf-8")


@pytest.mark.in_turn
def test_a_run_is_predicted_finalised_checked_and_resumed(tmp_path, capsys):
    folder, run, model = write(tmp_path / "t"), tmp_path / "run", tmp_path / "model"
    table = [str(folder), "--label", "died", "--weights", "w"]
    options = [
        "--methods",
        "local,partial,fedavg",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--out",
        str(run),
    ]
    assert main(["check", *table]) == 0
    assert main(["compare", *table, *options]) == 0
    first = (run / "summary.json").read_bytes()
    assert main(["compare", *table, *options, "--resume"]) == 0
    assert (run / "summary.json").read_bytes() == first
    # A new file needs no weights: they say nothing of a patient.
    new = tmp_path / "new.csv"
    frame(9).drop(columns="w").to_csv(new, index=False)
    assert (
        main(["predict", str(run), str(new), "--method", "partial", "--client", "east"])
        == 0
    )
    words = [
        "finalise",
        str(run),
        "--method",
        "partial",
        "--client",
        "east",
        "--out",
        str(model),
    ]
    assert main(words) == 0
    assert "rows weighed by w" in (model / "card.md").read_text(encoding="utf-8")
    assert main(["predict", str(model), str(new)]) == 0
    capsys.readouterr()


@pytest.mark.in_turn
@pytest.mark.parametrize("key", ["time", "count"])
def test_time_to_event_and_counts_take_weights(tmp_path, key):
    tables = {}
    for i, name in enumerate(("east", "north")):
        table = frame(i, 150)
        rng = np.random.default_rng(i)
        table["months"] = rng.exponential(20, 150).round(1) + 0.1
        table["falls"] = rng.poisson(1.0, 150)
        table["days"] = rng.integers(10, 60, 150)
        tables[name] = (
            table[["age", "size", "w", "died", "months"]]
            if key == "time"
            else table[["age", "w", "falls", "days"]]
        )
    label = (
        {"time": "months", "event": "died"}
        if key == "time"
        else {"label": "falls", "exposure": "days"}
    )
    clients = ct.data.from_frames(tables, tables=ct.data.Tables(weights="w", **label))
    assert clients.form.weighted
    for method in (*EXACT, "fedavg", *(["cox"] if key == "time" else [])):
        run = ct.fit(method, clients, rounds=2)
        assert all(np.isfinite(row["loss"]) for row in run.summary)
    data = {
        "folder": str(tmp_path / "d"),
        "weights": "w",
        **label,
        "split": {"folds": 3},
    }
    (tmp_path / "d").mkdir()
    for name, table in tables.items():
        table.to_csv(tmp_path / "d" / f"{name}.csv", index=False)
    comparison = ct.compare(["local", "partial"], data, rounds=2, seeds=1)
    assert comparison.verdict("east").kind
    comparison.report()


@pytest.mark.in_turn(but=("fedavg", "scaffold"))
@pytest.mark.parametrize(
    "method", ["fedavg", "meritfed", "ditto", "scaffold", "fedproto", "isfedavg"]
)
def test_engines_and_kernels_agree_on_weighted_rows(method):
    clients = ct.data.from_frames(frames(), tables=OPTIONS)
    settings = ct.RunSettings(metrics=("auc", "brier", "auprc"))
    runs = {}
    for name, engine in {
        "kernel": ct.InProcess(),
        "loop": ct.InProcess(kernel="loop"),
        "two": ct.InProcess(workers=2),
    }.items():
        runs[name] = ct.fit(method, clients, rounds=3, engine=engine, settings=settings)
    # Workers change no bit; a kernel sums in another order than autograd.
    for name, vector in runs["kernel"].models.items():
        assert torch.equal(runs["two"].models[name], vector)
        torch.testing.assert_close(runs["loop"].models[name], vector, atol=1e-4, rtol=0)
    assert runs["two"].summary == runs["kernel"].summary


def test_an_attack_on_labels_leaves_weights_as_they_are():
    clients = ct.data.from_frames(frames(), tables=OPTIONS)
    turned = ct.attacks.LabelFlip(on=("east",)).on_rows(clients, ["east"])
    before, after = clients["east"].train.labels, turned["east"].train.labels
    assert torch.equal(after[:, 1], before[:, 1])
    assert torch.equal(after[:, 0], 1 - before[:, 0])
    assert torch.equal(turned["west"].train.labels, clients["west"].train.labels)


def test_private_steps_count_a_row_by_its_weight():
    """Gradients of rows are scaled by weights before they are clipped, by the kernel as row by row."""
    clients = ct.data.from_frames(frames(), tables=OPTIONS).with_mean_weights()
    part, model = clients["east"].train, torch.nn.Linear(2, 1)
    for bound in (None, 0.3):
        sums = []
        for kernel in ("auto", "loop"):
            engine = ct.InProcess(kernel=kernel).open(
                clients, copy.deepcopy(model), ct.RunSettings().row_loss(clients)
            )
            space = engine._shard.workspace
            sums.append(clipped_sums(space, part.inputs, part.labels, bound)())
            engine.close()
        torch.testing.assert_close(sums[0], sums[1], atol=1e-4, rtol=1e-5)


def test_a_model_is_pooled_at_home_as_by_repeated_rows():
    x, y, _ = rows_of("binary", 5)
    counts, family = counts_of(5), glm.FAMILIES["binary"]
    slopes = torch.tensor([0.5, -0.2], dtype=torch.float64)
    ours, spread = draw_to(slopes, x, y, family, 1, counts)
    theirs, other = draw_to(slopes, repeat(x, counts), repeat(y, counts), family, 1)
    torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=0)
    assert spread == other


def test_weights_follow_their_rows_whatever_form_they_come_in():
    x, w = torch.randn(60, 2), torch.rand(60).double() + 0.2
    y = (x[:, 0] > 0).long()
    given = {
        "one pair": ct.data.from_tensors(
            (x, y), weights=w, split={"kind": "iid", "clients": 2}
        ),
        "parts": ct.data.from_tensors(
            {"a": {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}},
            weights={"a": {"train": w[:40], "test": w[40:]}},
        ),
        "a list": ct.data.from_tensors([(x, y)], weights=[w]),
        "a column": ct.data.from_tensors(
            {"a": (x, torch.stack([y.double(), w], 1))},
            form=ct.LabelForm("classes", weighted=True),
        ),
    }
    of_input = {
        tuple(row.tolist()): own for row, own in zip(x, w.tolist(), strict=True)
    }
    for way, clients in given.items():
        assert clients.form.weighted, way
        parts = [part for client in clients for _, part in client.parts()]
        assert sum(map(len, parts)) == 60
        for part in parts:
            for row, label in zip(part.inputs, part.labels, strict=True):
                assert float(label[1]) == of_input[tuple(row.tolist())], way
