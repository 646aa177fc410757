"""Federated learning with scikit-learn's manners: `fit(X, y, groups=site)`, where the rows of each site are a client's.

    from coterie.sklearn import FederatedClassifier

    FederatedClassifier(method="meritfed").fit(X, y, groups=site).predict(X_new, groups=site_new)

It needs scikit-learn (extra `data`) and is imported by name, since `import coterie` needs torch and numpy only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import nn

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, nearest
from coterie.base.rows import Part
from coterie.config.registry import MODELS
from coterie.config.run import RunSettings
from coterie.data.values import names_as_texts, plain_array, refuse_masks
from coterie.engines.inprocess import InProcess
from coterie.models import build_shape
from coterie.run.fit import fit
from coterie.run.result import Run

if TYPE_CHECKING:
    from coterie.config.local import LocalSGD
    from coterie.contract.engine import EngineSpec

Array = NDArray[Any]
ALONE = "all"
"""The name of the only client where no groups are given."""


class _Federated(BaseEstimator):  # type: ignore[misc]
    """The base of both estimators: groups are clients, inputs are standardised by pooled moments, and models are in float64."""

    run_: Run
    n_features_in_: int

    def __init__(
        self,
        method: Any = "fedavg",
        model: Any = "logistic",
        rounds: int = 20,
        local: LocalSGD | None = None,
        engine: EngineSpec | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.local = local
        self.engine = engine
        self.random_state = random_state

    def _fit(self, inputs: Array, labels: Array, groups: Any) -> None:
        self.mean_ = inputs.mean(axis=0)
        scale = inputs.std(axis=0)
        self.scale_ = np.where(scale > 1e-9 * np.abs(self.mean_), scale, 1.0)
        rows, targets = self._scale(inputs), torch.from_numpy(labels)
        names = self._names(groups, len(inputs))
        masks = {
            str(name): torch.from_numpy(names == name) for name in np.unique(names)
        }
        clients = Clients(
            [
                Client(name, Part(rows[mask], targets[mask]))
                for name, mask in masks.items()
            ]
        )
        self.groups_ = clients.names
        seed = self.random_state
        if seed is None:
            seed = 0
        if not isinstance(seed, int | np.integer):
            raise InputError(
                f"random_state must be None or an int >= 0; got {self.random_state!r}"
            )
        self.run_ = fit(
            self.method,
            clients,
            self._build,
            self.rounds,
            int(seed),
            engine=self.engine or InProcess(),
            local=self.local,
            settings=RunSettings(evaluate=max(1, self.rounds), metrics=()),
        )
        self.n_iter_ = self.run_.rounds

    def _build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        model = self.model
        if isinstance(model, nn.Module):
            return copy.deepcopy(model).double()
        spec = model
        if isinstance(model, str):
            spec = MODELS.build({"name": model}, f"model {model!r}")
        return build_shape(spec, shape, outputs).double()

    def _scale(self, inputs: Array) -> torch.Tensor:
        return torch.from_numpy(
            np.ascontiguousarray((inputs - self.mean_) / self.scale_)
        )

    def _names(self, groups: Any, rows: int) -> NDArray[np.str_]:
        if groups is None:
            return np.full(rows, ALONE)
        values = plain_array(groups, "groups")
        names_as_texts(dict.fromkeys(values.ravel().tolist()), "groups")
        names = values.astype(str)
        if names.ndim != 1:
            raise InputError(
                f"groups must name the client of each row [rows]; got the shape {names.shape}"
            )
        check_consistent_length(names, np.empty(rows))
        return names

    def _predict(self, data: Any, groups: Any) -> Array:
        """Return the prediction of the model of each row's group: class probabilities [rows, C], or numbers [rows, 1]."""
        check_is_fitted(self)
        refuse_masks(data, "X")
        inputs = self._scale(validate_data(self, data, dtype=np.float64, reset=False))
        if len(self.groups_) == 1:
            names = np.full(len(inputs), self.groups_[0])
        else:
            names = self._names(groups, len(inputs))
        values: dict[str, Array] = {}
        for name in np.unique(names).tolist():
            values[name] = self.run_.predict(
                inputs[torch.from_numpy(names == name)], self._whose(name, groups)
            ).values.numpy()
        out = np.empty((len(inputs), next(iter(values.values())).shape[1]))
        for name, client_values in values.items():
            out[names == name] = client_values
        return out

    def _whose(self, name: str, groups: Any) -> str:
        models: Mapping[str, Any] = self.run_.models
        if name in models or "*" in models:
            return name if name in models else "*"
        if groups is None:
            problem = f"this method has a model for each group ({', '.join(models)}); give groups=..."
        else:
            problem = f"there is no group {name!r}, and this method has no model for everybody; {nearest(name, models)}"
        raise InputError(problem)


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier that clients train together.

    Args:
        method: name of a method of coterie, or a method.
        model: name of a model, its settings, a module, or a function (shape, outputs) -> module.
        rounds: number of rounds.
        local: local training, in place of the method's own.
        engine: where the clients are; None: this process.
        random_state: seed of the run; None: 0.

    Attributes:
        classes_: labels of the classes.
        groups_: names of the clients.
        run_: the `Run`, with its history and weights.

    >>> X, y = np.array([[0.0], [1.0], [0.1], [0.9]]), np.array(["no", "yes", "no", "yes"])
    >>> FederatedClassifier().fit(X, y, groups=["here", "here", "there", "there"]).predict(X).tolist()
    ['no', 'yes', 'no', 'yes']
    """

    classes_: Array

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedClassifier:
        """Train on rows X [rows, features] with labels y [rows]; `groups` [rows] names each row's client, None: one has all.

        Raises `InputError` (a `ValueError`) for rows that cannot be used.
        """
        refuse_masks(X, "X")
        refuse_masks(y, "y")
        inputs, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"a classifier needs two classes; all labels are of one class ({self.classes_[0]})"
            )
        self._fit(inputs, numbers.astype(np.int64), groups)
        return self

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """Probability of each class [rows, C] by the model of each row's group; without `groups` by that for all.

        Raises `InputError` where there is none: an unknown group under a method with a model for each.
        """
        return self._predict(X, groups)

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The most probable class of each row [rows]; arguments and errors of `predict_proba`."""
        numbers = self.predict_proba(X, groups).argmax(axis=1)
        chosen: Array = self.classes_[numbers]
        return chosen

    def score(
        self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None
    ) -> float:
        """Accuracy."""
        return float(
            accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight)
        )


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor that clients train together; labels are standardised by pooled moments. Arguments as of `FederatedClassifier`."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedRegressor:
        """Train on rows X [rows, features] with numbers y [rows]; `groups` [rows] names each row's client, None: one has all.

        Raises `InputError` (a `ValueError`) for rows that cannot be used.
        """
        refuse_masks(X, "X")
        refuse_masks(y, "y")
        inputs, labels = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        numbers = np.asarray(labels, dtype=np.float64)
        self.label_mean_, spread = float(numbers.mean()), float(numbers.std())
        self.label_scale_ = spread if spread > 0 else 1.0
        self._fit(inputs, (numbers - self.label_mean_) / self.label_scale_, groups)
        return self

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The number of each row [rows], by the model of its group; without `groups` by that for all.

        Raises `InputError` where there is none: an unknown group under a method with a model for each.
        """
        predicted: Array = (
            self._predict(X, groups)[:, 0] * self.label_scale_ + self.label_mean_
        )
        return predicted

    def score(
        self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None
    ) -> float:
        """Coefficient of determination."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))
