"""Time to event: losses, curves and metrics against scikit-survival and statsmodels, and laws that need neither."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.base import hazards
from coterie.compute import metrics, survival
from coterie.solvers import glm


def rows_at_risk(seed, n=150, *, slope=0.9, late=False, decimals=9):
    """Inputs [n, 3], and entry, time and event [n, 3] whose hazard rises with the first input."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    event_time = rng.exponential(np.exp(-slope * x[:, 0]))
    end = rng.uniform(0.05, 2.5, n)
    entry = rng.uniform(0, 0.04, n) if late else np.zeros(n)
    time = np.maximum(np.minimum(event_time, end), entry + 0.01)
    time = np.ceil(time * 10**decimals) / 10**decimals
    return x, np.column_stack([entry, time, (event_time <= end).astype(float)])


def form_of(rows, **settings):
    """The form whose intervals and rates follow from these rows, whose times are in horizons."""
    labels = torch.from_numpy(rows)
    happened = labels[labels[:, 2] > 0, 1]
    cells = torch.bincount(hazards.cell_of(happened), minlength=hazards.CELLS)
    cuts, _ = hazards.choose_cuts(cells)
    exposure = hazards.time_within(labels[:, 0], labels[:, 1], cuts).sum(0)
    events = hazards.events_within(labels[:, 1], labels[:, 2], cuts).sum(0)
    rates = (events / exposure).tolist()
    return ct.LabelForm("hazards", cuts=cuts, rates=rates, **settings)


# Against other software


@pytest.mark.in_turn(but="9")
@pytest.mark.parametrize("decimals", [9, 1])
def test_kaplan_meier_is_that_of_statsmodels(decimals):
    sm = pytest.importorskip("statsmodels.api")
    _, rows = rows_at_risk(0, late=True, decimals=decimals)
    curve = survival.kaplan_meier(rows)
    theirs = sm.SurvfuncRight(rows[:, 1], rows[:, 2], entry=rows[:, 0])
    places = np.searchsorted(curve.times, theirs.surv_times, side="right") - 1
    np.testing.assert_allclose(curve.survival[places], theirs.surv_prob, atol=1e-9)
    errors = theirs.surv_prob_se / theirs.surv_prob
    np.testing.assert_allclose(np.sqrt(curve.variance[places]), errors, rtol=1e-5)


def test_a_curve_is_one_before_its_first_time_and_steps_down_at_each():
    _, rows = rows_at_risk(1, n=40)
    curve = survival.kaplan_meier(rows)
    first, second = curve.times[:2]
    assert curve.at(first / 2) == 1.0
    assert curve.at(first) == curve.survival[0]
    assert curve.at((first + second) / 2) == curve.survival[0]
    assert curve.at(second) == curve.survival[1]
    assert curve.at(curve.last) == curve.survival[-1]
    assert math.isnan(curve.at(curve.last + 1e-9))


def test_rows_that_weigh_nothing_bend_no_curve_and_nothing_is_known_behind_the_others():
    _, rows = rows_at_risk(2, n=40)
    end = rows[:, 1].max()
    longer = np.vstack([rows, [0.0, 2 * end, 1.0]])
    weights = np.append(np.ones(len(rows)), 0.0)
    known = survival.kaplan_meier(rows)
    curve = survival.kaplan_meier(longer, weights=weights)
    for time in (known.times[0], known.times[5], end):
        assert curve.at(time) == pytest.approx(known.at(time))
    assert math.isnan(curve.at(2 * end))


@pytest.mark.parametrize("decimals", [9, 1])
def test_harrells_c_is_that_of_scikit_survival(decimals):
    sksurv = pytest.importorskip("sksurv.metrics")
    x, rows = rows_at_risk(1, decimals=decimals)
    risk = x[:, 0].round(1)
    theirs = sksurv.concordance_index_censored(rows[:, 2] > 0, rows[:, 1], risk)[0]
    assert survival.concordance(rows, risk).value == pytest.approx(theirs, abs=1e-12)


def test_the_brier_score_is_that_of_scikit_survival():
    sksurv = pytest.importorskip("sksurv.metrics")
    x, rows = rows_at_risk(2)
    seen = seen_by_scikit_survival(rows)
    predicted = 1 / (1 + np.exp(x[:, 0]))
    _, theirs = sksurv.brier_score(seen, seen, predicted, 0.7)
    ours = survival.brier_at(rows, predicted, 0.7)
    assert ours == pytest.approx(float(theirs[0]), abs=1e-9)


def seen_by_scikit_survival(rows):
    pairs = list(zip(rows[:, 2] > 0, rows[:, 1], strict=True))
    return np.array(pairs, dtype=[("event", bool), ("time", float)])


def test_the_integrated_brier_score_is_that_of_scikit_survival():
    sksurv = pytest.importorskip("sksurv.metrics")
    x, rows = rows_at_risk(2)
    seen = seen_by_scikit_survival(rows)
    times = np.array([0.1, 0.25, 0.3, 0.7, 0.95])
    predicted = np.exp(-times * np.exp(-x[:, :1]))
    theirs = sksurv.integrated_brier_score(seen, seen, predicted, times)
    ours = survival.integrated_brier(rows, predicted, times)
    assert ours == pytest.approx(theirs, abs=1e-9)


def test_the_metric_is_the_integrated_brier_score_of_scikit_survival_to_the_horizon():
    sksurv = pytest.importorskip("sksurv.metrics")
    x, rows = rows_at_risk(4)
    rows = rows.astype(np.float32).astype(float)
    form = form_of(rows)
    outputs = torch.from_numpy(-0.5 * x[:, :1]) + torch.zeros(len(form.cuts))
    value = metrics.integrated_brier(
        form.read(outputs), torch.from_numpy(rows), "hazards"
    )
    times = np.arange(1, 17) / 16
    hazard = hazards.hazard_curves(outputs, times.tolist(), form.cuts, form.rates)
    seen, predicted = seen_by_scikit_survival(rows), torch.exp(-hazard).numpy()
    theirs = sksurv.integrated_brier_score(seen, seen, predicted, times)
    _, first = sksurv.brier_score(seen, seen, predicted[:, :1], times[:1])
    # From 0 on: there nobody had an event, as predicted.
    expected = theirs * 15 / 16 + float(first[0]) / 2 / 16
    assert value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("times", [[0.5], [0.7, 0.5]])
def test_times_that_bound_no_span_have_no_integrated_brier_score(times):
    _, rows = rows_at_risk(2)
    with pytest.raises(ct.InputError, match="two times or more that ascend"):
        survival.integrated_brier(rows, np.full((150, len(times)), 0.5), times)


def test_nobody_at_risk_at_a_time_leaves_the_integrated_brier_score_unknown():
    _, rows = rows_at_risk(2)
    late = [0.5, float(rows[:, 1].max()) + 1]
    assert survival.integrated_brier(rows, np.full((150, 2), 0.5), late) is None


def test_the_brier_score_is_the_same_where_follow_up_is_cut_at_the_horizon():
    x, rows = rows_at_risk(2)
    predicted = 1 / (1 + np.exp(x[:, 0]))
    cut = rows.copy()
    cut[rows[:, 1] > 0.7, 1:] = 0.7, 0.0
    whole = survival.brier_at(rows, predicted, 0.7)
    assert survival.brier_at(cut, predicted, 0.7) == pytest.approx(whole, abs=1e-12)


def test_slopes_are_those_of_a_poisson_regression_of_intervals():
    sm = pytest.importorskip("statsmodels.api")
    x, rows = rows_at_risk(3, slope=0.4, late=True)
    x, rows = (values.astype(np.float32).astype(float) for values in (x, rows))
    form = form_of(rows)
    labels = torch.from_numpy(rows)
    clients = ct.data.from_tensors(
        {"a": {"train": (torch.from_numpy(x).float(), labels.float())}}, form=form
    )
    fixed = ct.fit(ct.FixedEffects(ridge=0.0), clients, rounds=20)
    ours = fixed.models["a"].double().numpy()
    scores = x @ ours[:3]
    assert scores.max() + ours[3:].max() < hazards.KNEE  # beyond it the models differ

    exposure = hazards.time_within(labels[:, 0], labels[:, 1], form.cuts).numpy()
    events = hazards.events_within(labels[:, 1], labels[:, 2], form.cuts).numpy()
    person, interval = np.nonzero(exposure)
    design = np.column_stack([x[person], np.eye(len(form.cuts))[interval]])
    usual = exposure[person, interval] * np.array(form.rates)[interval]
    model = sm.GLM(
        events[person, interval],
        design,
        family=sm.families.Poisson(),
        offset=np.log(usual),
    )
    np.testing.assert_allclose(ours, model.fit(tol=1e-12).params, atol=1e-5)


# Laws


@given(st.integers(0, 10**6), st.floats(0.02, 0.98))
@settings(deadline=None)
def test_a_row_that_is_cut_in_two_has_the_same_loss(seed, share):
    """Follow-up until c without an event, and from c on, is the follow-up of one row: late entry is exact."""
    _, rows = rows_at_risk(seed, n=20, late=True)
    form = form_of(rows_at_risk(0)[1])
    generator = torch.Generator().manual_seed(seed)
    z = 4 * torch.randn(20, form.outputs, dtype=torch.float64, generator=generator)
    whole = torch.from_numpy(rows)
    middle = whole[:, 0] + share * (whole[:, 1] - whole[:, 0])
    first = torch.stack([whole[:, 0], middle, torch.zeros(20)], 1)
    second = torch.stack([middle, whole[:, 1], whole[:, 2]], 1)
    torch.testing.assert_close(form(z, first) + form(z, second), form(z, whole))


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_family_of_the_solvers_has_the_derivatives_of_the_loss(seed):
    _, rows = rows_at_risk(seed, n=12, late=True)
    form = form_of(rows_at_risk(0)[1])
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(12, form.outputs, dtype=torch.float64, generator=generator)
    z.requires_grad_()
    labels = torch.from_numpy(rows)
    losses = form(z, labels)
    exposure = hazards.time_within(labels[:, 0], labels[:, 1], form.cuts)
    events = hazards.events_within(labels[:, 1], labels[:, 2], form.cuts)
    usual = torch.tensor(form.rates, dtype=torch.float64) * exposure
    told = glm.FAMILIES["hazards"](z, torch.cat([usual, events], 1))

    (gradient,) = torch.autograd.grad(losses.sum(), z, create_graph=True)
    (bend,) = torch.autograd.grad(gradient.sum(), z)
    torch.testing.assert_close(told.loglik, -losses)
    torch.testing.assert_close(told.gradient, -gradient)
    torch.testing.assert_close(told.curvature.diagonal(dim1=-2, dim2=-1), bend)
    assert bool((bend >= 0).all())


@given(
    st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=300),
    st.none() | st.floats(1e-3, 1e5),
)
@settings(deadline=None)
def test_intervals_ascend_and_end_where_events_do_or_at_the_horizon(times, horizon):
    cells = hazards.cell_of(torch.tensor(times, dtype=torch.float64))
    counts = torch.bincount(cells, minlength=hazards.CELLS)
    cuts, judged_at = hazards.choose_cuts(counts, horizon)
    assert list(cuts) == sorted(set(cuts))
    assert 1 <= len(cuts) <= hazards.MOST_INTERVALS + 1
    assert judged_at <= cuts[-1]
    if horizon is None:
        assert cuts[-1] >= max(times) > 2**-0.26 * cuts[-1]
    else:
        assert cuts[-1] == judged_at == horizon


def test_a_model_that_predicts_the_usual_rates_has_the_survival_of_all_rows():
    _, rows = rows_at_risk(4, n=4000)
    form = form_of(rows)
    hazard = form.read(torch.zeros(1, form.outputs))
    seen = survival.kaplan_meier(rows).at(1.0)
    assert math.exp(-float(hazard[0, 0])) == pytest.approx(seen, abs=0.02)


def test_the_error_of_c_is_that_of_leaving_rows_out():
    x, rows = rows_at_risk(5, n=200)
    risk = x[:, 0] + x[:, 1]
    found = survival.concordance(rows, risk)
    assert found.influence.sum() == pytest.approx(0, abs=1e-12)
    without = [
        survival.concordance(np.delete(rows, i, 0), np.delete(risk, i)).value
        for i in range(len(rows))
    ]
    jackknife = math.sqrt(len(rows) - 1) * np.std(without)
    error = math.sqrt((found.influence**2).sum())
    assert error == pytest.approx(jackknife, rel=0.05)


def test_rows_of_other_folds_make_no_pair():
    x, rows = rows_at_risk(6, n=60)
    folds = np.arange(60) % 2
    shifted = x[:, 0] + 100 * folds  # another model, whose scores are not comparable
    joined = survival.concordance(rows, shifted, folds)
    halves = [survival.concordance(rows[folds == k], x[folds == k, 0]) for k in (0, 1)]
    pairs = [len(half.influence) for half in halves]
    assert min(h.value for h in halves) <= joined.value <= max(h.value for h in halves)
    assert joined.events == sum(half.events for half in halves)
    assert sum(pairs) == 60


@pytest.mark.parametrize("seed", range(4))
def test_unos_c_is_that_of_scikit_survival(seed):
    metrics = pytest.importorskip("sksurv.metrics")
    rng = np.random.default_rng(seed)
    until, end = rng.exponential(1, 120), rng.exponential(1.5, 120)
    time, event = np.minimum(until, end), until <= end
    risk = rng.normal(size=120).round(1) - until
    followed = np.array(
        [*zip(event, time, strict=True)], dtype=[("e", bool), ("t", float)]
    )
    # Theirs takes the last follow-up as the end; a row at the very end has no weight.
    last = float(time[event].max()) + 1e-9
    theirs = metrics.concordance_index_ipcw(followed, followed, risk, tau=last)[0]
    rows = np.column_stack([np.zeros(120), time, event])
    assert survival.uno(rows, risk) == pytest.approx(theirs, abs=1e-9)


def test_a_run_can_name_the_integrated_brier_score_and_its_other_bits_are_the_same():
    x, rows = rows_at_risk(7, n=300)
    form = form_of(rows)
    inputs, labels = torch.from_numpy(x).float(), torch.from_numpy(rows).float()
    parts = {
        "train": (inputs[:200], labels[:200]),
        "test": (inputs[200:], labels[200:]),
    }
    clients = ct.data.from_tensors({"a": parts}, form=form)
    tables = []
    for more in ((), ("integrated_brier",)):
        chosen = ct.RunSettings(metrics=("c_index", "horizon_brier", *more))
        run = ct.fit("fedavg", clients, rounds=3, settings=chosen)
        tables.append(next(row for row in run.summary if row["split"] == "test"))
    plain, named = tables
    assert 0 < named["integrated_brier"] < named["horizon_brier"]
    assert plain == {key: value for key, value in named.items() if key in plain}
