"""Federated estimators with scikit-learn's manners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

import coterie as ct
from coterie.sklearn import FederatedClassifier, FederatedRegressor

QUICK = {"rounds": 2, "local": ct.LocalSGD(lr=0.5, steps=ct.Steps(40))}


@pytest.mark.slow
@parametrize_with_checks([FederatedClassifier(**QUICK), FederatedRegressor(**QUICK)])
def test_the_checks_of_scikit_learn(estimator, check):
    """None of them is expected to fail."""
    check(estimator)


@pytest.fixture(scope="module")
def sites():
    """Three sites: the third has its labels the other way round."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(240, 4))
    site = np.repeat(["east", "north", "west"], 80)
    positive = X[:, 0] + X[:, 1] > 0
    y = np.where(positive ^ (site == "west"), "ill", "healthy")
    return X, y, site


def test_groups_are_clients(sites):
    X, y, site = sites
    fitted = FederatedClassifier("local", **QUICK).fit(X, y, groups=site)
    assert fitted.groups_ == ("east", "north", "west")
    assert fitted.score(X, y, groups=site) > 0.95
    assert (
        fitted.predict(X, groups=np.full(240, "west"))
        != fitted.predict(X, groups=np.full(240, "east"))
    ).mean() > 0.9
    one = FederatedClassifier("local", **QUICK).fit(X, y)
    assert one.groups_ == ("all",)
    assert one.score(X, y, groups=site) == one.score(X, y)


def test_an_unknown_group_gets_the_model_for_everybody_or_a_sentence(sites):
    X, y, site = sites
    averaged = FederatedClassifier("fedavg", **QUICK).fit(X, y, groups=site)
    assert np.array_equal(
        averaged.predict_proba(X, groups=np.full(240, "south")),
        averaged.predict_proba(X),
    )
    own = FederatedClassifier("local", **QUICK).fit(X, y, groups=site)
    with pytest.raises(
        ct.InputError,
        match=r"there is no group 'wets', and this method .* did you mean 'west'",
    ):
        own.predict(X[:1], groups=["wets"])
    with pytest.raises(
        ct.InputError,
        match=r"has a model for each group \(east, north, west\); give groups=",
    ):
        own.predict(X)
    with pytest.raises(
        ct.InputError,
        match=r"groups must name the client of each row \[rows\]; got the shape \(240, 2\)",
    ):
        FederatedClassifier().fit(X, y, groups=np.ones((240, 2)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedClassifier().fit(X, y, groups=site[:-1])


def test_it_runs_what_fit_runs(sites):
    X, y, site = sites
    fitted = FederatedClassifier("meritfed", rounds=2, random_state=3).fit(
        X, y, groups=site
    )
    scaled = torch.from_numpy((X - X.mean(axis=0)) / X.std(axis=0))
    labels = torch.from_numpy((y == "ill").astype(np.int64))
    clients = ct.data.from_tensors(
        {
            name: {"train": (scaled[site == name], labels[site == name])}
            for name in ("east", "north", "west")
        }
    )
    run = ct.fit(
        "meritfed",
        clients,
        lambda shape, outputs: torch.nn.Linear(4, 1).double(),
        rounds=2,
        seed=3,
        init={"weight": torch.zeros(1, 4).double(), "bias": torch.zeros(1).double()},
    )
    for name in clients.names:
        expected = run.predict(scaled[site == name], name).values.numpy()
        assert np.array_equal(
            fitted.predict_proba(X[site == name], groups=site[site == name]), expected
        )


def test_one_client_without_batches_learns_what_logistic_regression_learns(sites):
    X, y, site = sites
    noisy = np.where(np.random.default_rng(1).random(240) < 0.1, "ill", y)
    chosen = site != "west"
    full = ct.LocalSGD(lr=1.0, steps=ct.Steps(200), batch_size=None)
    alone = ct.Local(full, exact=False)
    fitted = FederatedClassifier(alone, rounds=2).fit(X[chosen], noisy[chosen])
    expected = LogisticRegression(C=np.inf).fit(X[chosen], noisy[chosen])
    assert fitted.predict_proba(X[chosen]) == pytest.approx(
        expected.predict_proba(X[chosen]), abs=0.02
    )


def test_a_regressor_predicts_in_the_unit_of_the_label(sites):
    X, _, site = sites
    y = 1e4 + 300 * X[:, 0]
    fitted = FederatedRegressor("fedavg", **QUICK).fit(X, y, groups=site)
    assert fitted.score(X, y, groups=site) > 0.99
    assert abs(fitted.predict(X) - y).max() < 60


def test_pipelines_and_cross_validation_take_it(sites):
    X, y, site = sites
    piped = make_pipeline(PolynomialFeatures(2), FederatedClassifier(**QUICK))
    piped.fit(
        X[site != "west"],
        y[site != "west"],
        federatedclassifier__groups=site[site != "west"],
    )
    assert piped[-1].groups_ == ("east", "north")
    scores = cross_val_score(
        FederatedClassifier(**QUICK), X, y, groups=site, cv=GroupKFold(3)
    )
    assert scores.shape == (3,)
