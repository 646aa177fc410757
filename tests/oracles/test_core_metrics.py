"""Metrics against scikit-learn, and the baselines of a constant prediction against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from coterie import metrics
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.metric_names import BOUNDS
from coterie.base.rows import Part
from coterie.config.registry import METRICS
from coterie.run.files import higher_is_better
from federations import (
    cohort_of,
    federation_of,
    logistic,
    quadratic,
    regression,
    segmentation,
    start,
)

quick = settings(derandomize=True, deadline=None)


@quick
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=25)
)
def test_two_classes_with_ties_equal_scikit_learn(rows):
    scores = torch.tensor([float(s) for s, _ in rows])
    labels = torch.tensor([y for _, y in rows])
    for outputs in (scores[:, None], scores):
        predicted = (scores > 0).long()
        assert metrics.accuracy(outputs, labels, "binary") == pytest.approx(
            sk.accuracy_score(labels, predicted)
        )
        recalls = [
            (predicted[labels == c] == c).double().mean() for c in labels.unique()
        ]
        assert metrics.balanced_accuracy(outputs, labels, "binary") == pytest.approx(
            float(sum(recalls) / len(recalls))
        )
        if len(labels.unique()) == 2:
            assert metrics.balanced_accuracy(
                outputs, labels, "binary"
            ) == pytest.approx(sk.balanced_accuracy_score(labels, predicted))
            assert metrics.auc(outputs, labels, "binary") == pytest.approx(
                sk.roc_auc_score(labels, scores), abs=1e-12
            )
        else:
            assert metrics.auc(outputs, labels, "binary") is None


@quick
@given(st.integers(0, 10**6), st.integers(3, 5), st.integers(6, 40))
def test_many_classes_equal_scikit_learn(seed, classes, rows):
    g = torch.Generator().manual_seed(seed)
    outputs = torch.randint(-2, 3, (rows, classes), generator=g).double()  # with ties
    labels = torch.cat([torch.arange(classes), torch.randint(0, classes, (rows - classes,), generator=g)]) if rows > classes \
        else torch.arange(rows)  # fmt: skip
    predicted = outputs.numpy().argmax(1)
    assert metrics.accuracy(outputs, labels, "classes") == pytest.approx(
        sk.accuracy_score(labels, predicted)
    )
    assert metrics.balanced_accuracy(outputs, labels, "classes") == pytest.approx(
        sk.balanced_accuracy_score(labels, predicted)
    )
    if len(labels.unique()) == classes:
        shares = torch.softmax(outputs, 1).numpy()
        expected = np.mean(
            [sk.roc_auc_score(labels == c, shares[:, c]) for c in range(classes)]
        )
        assert metrics.auc(outputs, labels, "classes") == pytest.approx(
            expected, abs=1e-12
        )
        assert expected == pytest.approx(
            sk.roc_auc_score(labels, shares, multi_class="ovr", average="macro"),
            abs=1e-12,
        )


def test_auc_counts_a_class_that_is_absent_neither_way():
    outputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.tensor([0, 2] * 6)
    shares = torch.softmax(outputs, 1).numpy()
    expected = np.mean([sk.roc_auc_score(labels == c, shares[:, c]) for c in (0, 2)])
    assert metrics.auc(outputs, labels, "classes") == pytest.approx(expected, abs=1e-12)


def test_auc_sees_a_difference_where_a_sigmoid_saturates():
    outputs, labels = torch.tensor([[40.0], [60.0]]), torch.tensor([0, 1])
    assert torch.equal(torch.sigmoid(outputs[0]), torch.sigmoid(outputs[1]))
    assert metrics.auc(outputs, labels, "binary") == 1.0
    assert metrics.auc(-outputs, labels, "binary") == 0.0


def test_pixels_are_rows_of_accuracy_and_have_no_auc():
    problem = segmentation()
    rows = problem.clients["a"].test
    outputs = problem.model(rows.inputs)
    predicted = outputs.argmax(1)
    labels = rows.labels
    assert metrics.accuracy(outputs, labels, "classes") == pytest.approx(
        sk.accuracy_score(labels.flatten(), predicted.flatten())
    )
    assert metrics.balanced_accuracy(outputs, labels, "classes") == pytest.approx(
        sk.balanced_accuracy_score(labels.flatten(), predicted.flatten())
    )
    assert metrics.auc(outputs, labels, "classes") is None


REGRESSION = ("mae", "rmse", "r2", "poisson_deviance")


@pytest.mark.parametrize("name", list(metrics.METRICS))
@pytest.mark.parametrize("kind", ["regression", "own", "binary"])
def test_metrics_are_defined_for_their_task_only(name, kind):
    value = metrics.METRICS[name](
        torch.zeros(4, 1), torch.tensor([0.0, 1.0, 2.0, 3.0]), kind
    )
    if kind != "binary":
        assert (value is not None) == (name in REGRESSION and kind == "regression")
    else:
        assert name not in REGRESSION or value is None


def test_errors_of_a_regression_are_those_of_scikit_learn():
    sk = pytest.importorskip("sklearn.metrics")
    outputs, labels = torch.randn(
        2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    wanted = (
        sk.mean_absolute_error(labels, outputs),
        sk.root_mean_squared_error(labels, outputs),
    )
    for shaped in (outputs, outputs[:, None]):
        got = (
            metrics.mae(shaped, labels, "regression"),
            metrics.rmse(shaped, labels, "regression"),
        )
        assert got == pytest.approx(wanted, rel=1e-12)


def test_the_task_sends_what_is_undefined_as_a_flag_and_never_nan():
    full = logistic()
    clients = [full.clients[n] for n in "abc"]
    clients[0] = Client("a", clients[0].train)  # no test rows
    one_class = clients[1].test.labels * 0 + 1
    clients[1] = Client(
        "b", clients[1].train, test=Part(clients[1].test.inputs, one_class)
    )
    problem = full.with_clients(Clients(clients))
    with federation_of(problem) as federation:
        names = ("accuracy", "auc")
        got = federation.ask(
            "abc", metrics.evaluate, x=start(problem), part="test", metrics=names
        )
        none = federation.ask(
            "abc", metrics.evaluate, x=start(problem), part="test", metrics=()
        )
    assert got.failed == {}
    assert got.rows.tolist() == [0, 6, 6]
    assert got.defined.tolist() == [[False, False], [True, False], [True, True]]
    assert torch.isfinite(got.values).all()
    assert float(got.loss[0]) == 0
    assert none.values.shape == (3, 0)
    assert torch.equal(none.loss, got.loss)


def test_baselines_are_those_of_a_constant_prediction():
    full = logistic()
    with federation_of(full) as federation:
        got = federation.ask("abcde", metrics.baselines, part="test")
    assert got.defined.all()
    for i, name in enumerate("abcde"):
        train, test = full.clients[name].train.labels, full.clients[name].test.labels
        share = (int(train.sum()) + 1) / (len(train) + 2)
        expected = [-math.log(share if y else 1 - share) for y in test.tolist()]
        assert float(got.majority_loss[i]) == pytest.approx(
            np.mean(expected), rel=1e-12
        )
        assert float(got.majority[i]) == max(
            int(test.sum()), len(test) - int(test.sum())
        ) / len(test)


def test_regression_has_no_majority():
    with federation_of(regression()) as federation:
        got = federation.ask("ab", metrics.baselines, part="test")
    assert got.defined.tolist() == [False, False]


@pytest.fixture
def own():
    yield
    for name in [*METRICS.added]:
        del METRICS[name]


def evaluated(*names):
    cohort, x = (
        cohort_of(quadratic({"a": [1.0, 4.0]})),
        torch.tensor([2.0, 3.0]).double(),
    )
    return cohort.evaluate(x, metrics.find_metrics(names), part="train")


@pytest.mark.usefixtures("own")
def test_metrics_of_ones_own_are_registered_by_name():
    METRICS.add("highest", lambda outputs, labels, kind: float(outputs.max()))
    assert evaluated("highest")["highest"].tolist() == [3.0]
    with pytest.raises(
        InputError, match="no metric 'accurracy'; did you mean 'accuracy'"
    ):
        metrics.find_metrics(["auc", "accurracy"])
    with pytest.raises(InputError, match="no metric 'hihgest'; did you mean 'highest'"):
        metrics.find_metrics(["hihgest"])
    assert list(metrics.find_metrics(["auc", "accuracy"])) == ["auc", "accuracy"]


@pytest.mark.parametrize(
    ("name", "metric", "sentence"),
    [
        ("a-b", len, "a metric's name must be an identifier; got 'a-b'"),
        (
            "accuracy",
            len,
            "there is a metric 'accuracy' already; give yours another name",
        ),
        ("f1", len, "there is a metric 'f1' already"),
        ("three", 3, r"a metric must be a function \(outputs, labels, kind\); got 3"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_cannot_be_registered_is_one_sentence(name, metric, sentence):
    with pytest.raises(InputError, match=sentence):
        METRICS.add(name, metric)
    assert METRICS.added == {}


@pytest.mark.usefixtures("own")
def test_an_own_metric_that_writes_into_what_it_is_shown_spoils_no_other():
    def greedy(outputs, labels, kind):
        labels.numpy()[:] = 7.0
        return outputs.zero_().sum()

    METRICS.add("greedy", greedy)
    spoilt = evaluated("greedy", "mae", "rmse")
    assert spoilt.pop("greedy").tolist() == [0]
    alone = evaluated("mae", "rmse")
    assert alone["mae"] > 0
    assert {k: v.tolist() for k, v in spoilt.items()} == {
        k: v.tolist() for k, v in alone.items()
    }


@pytest.mark.parametrize("value", ["high", torch.zeros(2), [1.0]])
@pytest.mark.usefixtures("own")
def test_an_own_metric_that_gives_no_number_is_named(value):
    METRICS.add("odd", lambda outputs, labels, kind: value)
    with pytest.raises(
        InputError,
        match=f"the metric 'odd' gave a {type(value).__name__}; it must give a number or None",
    ):
        evaluated("odd")


def good_and_bad(kind):
    """Predictions that fit labels well, others that do not, and the labels."""
    stream = torch.Generator().manual_seed(0)
    if kind == "binary":
        labels = torch.arange(60) % 2
        good = (4.0 * labels - 2)[:, None]
        return good, -good, labels
    if kind == "classes":
        labels = torch.arange(60) % 10
        good = 5.0 * torch.eye(10)[labels]
        return good, -good, labels
    if kind == "regression":
        labels = (torch.arange(60) % 7).double()
        good = labels[:, None] + 0.1 * torch.rand(60, 1, generator=stream)
        return good, 8 - good, labels
    times = 0.1 + 1.9 * torch.rand(60, generator=stream, dtype=torch.float64)
    labels = torch.stack(
        [torch.zeros_like(times), times, torch.ones_like(times)], dim=1
    )
    hazard = 1 / times
    # Until the horizon, until the last cut at twice of it, and until fifteen times before the horizon.
    spans = torch.tensor([1.0, 2.0, *(k / 16 for k in range(1, 16))]).double()
    good = hazard[:, None] * spans
    return good, 9 * (hazard.max() - hazard)[:, None] * spans, labels


@pytest.mark.parametrize("name", [*METRICS])
def test_which_side_of_a_metric_is_better_is_declared_and_so(name):
    """The calibration error at the horizon stood as "higher is better": its name does not end in a word for an error."""
    metric = METRICS.find(name)
    judged = 0
    for kind in ("binary", "classes", "regression", "hazards"):
        good, bad, labels = good_and_bad(kind)
        values = metric(good, labels, kind), metric(bad, labels, kind)
        if None in values or values[0] == values[1]:
            continue
        assert (values[0] > values[1]) is higher_is_better(name), (kind, values)
        judged += 1
    assert judged
    assert name in BOUNDS
