"""Boosted trees of one client alone: the second rival of every table, beside the client's own linear model.

A method that beats a linear model may still be worse than trees that the client fits at home. So trees with fixed settings
are fitted to the training rows of each fold, and the loss of each tested row is all that is kept. The settings are not
tuned: a choice inside the training rows between a linear model and trees did worse than the better one of them on 9 of 9
tables. Early stopping is off, since it would take rows away and draw them at random.

Needs NumPy alone to be imported; fitting needs scikit-learn.
"""

from __future__ import annotations

import functools
import importlib.util
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

SETTINGS = {
    "max_iter": 60,
    "max_leaf_nodes": 8,
    "learning_rate": 0.08,
    "min_samples_leaf": 10,
    "l2_regularization": 1.0,
    "early_stopping": False,
}


def can_fit() -> bool:
    """Return True if scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


def load_trees() -> None:
    """Import scikit-learn, which takes two seconds, so that processes that are forked from this one need not."""
    import sklearn.ensemble  # noqa: F401
    import threadpoolctl  # noqa: F401


def fit_it_yourself(*, classification: bool) -> str:
    """Return the line of Python that makes the trees; no run keeps them."""
    kind = "Regressor"
    if classification:
        kind = "Classifier"
    settings = ", ".join(f"{key}={value}" for key, value in SETTINGS.items())
    return f"sklearn.ensemble.HistGradientBoosting{kind}({settings})"


def losses_of_classes(
    inputs: NDArray[Any],
    labels: NDArray[np.int64],
    tested: NDArray[Any],
    tested_labels: NDArray[np.int64],
    weights: Vector | None = None,
) -> Vector:
    """Log-loss [tested rows] of boosted trees.

    A class without training rows is predicted as if it had one row more than none, as the constant prediction does: else a
    single tested row of it would cost an infinite loss.

    Args:
        inputs: Training inputs [rows, columns].
        labels: Their classes [rows], from 0.
        tested: Tested inputs [tested rows, columns].
        tested_labels: Their classes [tested rows].
        weights: Of the training rows [rows]; None: 1 each.
    """
    classes = 1 + max(int(labels.max()), int(tested_labels.max()), 1)
    shares = np.zeros((len(tested), classes))
    present = np.unique(labels)
    if len(present) > 1:
        with _one_thread():
            model = _fit("Classifier", inputs, labels, weights)
            shares[:, model.classes_] = model.predict_proba(tested)
    else:
        shares[:, present[0]] = 1.0
    absent = np.setdiff1d(np.arange(classes), present)
    shares[:, absent] = 1 / (len(labels) + classes)
    shares /= shares.sum(axis=1, keepdims=True)
    of_label = shares[np.arange(len(tested)), tested_labels]
    return -np.log(np.maximum(of_label, np.finfo(float).tiny))


def losses_of_numbers(
    inputs: NDArray[Any],
    labels: Vector,
    tested: NDArray[Any],
    tested_labels: Vector,
    weights: Vector | None = None,
) -> Vector:
    """Squared error [tested rows] of boosted trees; arguments as of `losses_of_classes`, with numbers as labels."""
    with _one_thread():
        predicted = _fit("Regressor", inputs, labels, weights).predict(tested)
    return np.asarray((predicted - tested_labels) ** 2, dtype=float)


def _fit(
    kind: str, inputs: NDArray[Any], labels: NDArray[Any], weights: Vector | None
) -> Any:
    from sklearn import ensemble

    if weights is not None:
        # Trees ask a leaf for a weight of its own: in which unit rows weigh must mean nothing.
        weights = weights / weights.mean()
    model = getattr(ensemble, f"HistGradientBoosting{kind}")
    unfitted = model(**SETTINGS, random_state=0)
    return unfitted.fit(inputs, labels, sample_weight=weights)


def _one_thread() -> AbstractContextManager[Any]:
    """Fit and predict in one thread.

    Of several threads that are forked none may wait for another. And on a busy machine threads that wait for each other
    predict a hundred rows in .4 s instead of .001.
    """
    limited: AbstractContextManager[Any] = _threads().limit(limits=1)
    return limited


@functools.cache
def _threads() -> Any:
    """The pools of threads of this process, which are looked for once: that takes a tenth of a fit."""
    # Else scikit-learn's own pool, which comes with it, would not be among them.
    load_trees()
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
