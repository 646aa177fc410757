"""`--yardstick trees`: gradient-boosted trees of each client alone, and of all rows pooled, as reference rows of a comparison.

They see the same splits and are measured by the same metrics as methods, but they are none: nobody trains them together, and no
verdict is about them. scikit-learn's `HistGradientBoosting` with its defaults stands for what a table allows without federation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, explain_imports, require
from coterie.base.label_form import LabelForm
from coterie.base.loss import Loss
from coterie.base.rows import Part, sample
from coterie.compute.metrics import find_metrics, value_of
from coterie.compute.segments import Segments
from coterie.config.run import MethodEntry
from coterie.run.experiment import Experiment
from coterie.run.files import YARDSTICKS

SURE = 1e-7
"""Probabilities nearer to 0 or 1 count as this one, so that no log-loss is infinite."""


def entries_of(experiment: Experiment) -> tuple[MethodEntry, ...]:
    """The stand-in for the yardstick among the methods of a run directory."""
    if not experiment.run.yardstick:
        return ()
    return tuple(MethodEntry(name, name) for name in YARDSTICKS)


def check_yardstick(experiment: Experiment, clients: Clients) -> None:
    """Raise `InputError` if trees are asked for and cannot read these clients, before any training."""
    if experiment.run.yardstick is None:
        return
    clashes = set(experiment.labels) & set(YARDSTICKS)
    if clashes:
        raise InputError(
            f"the label {min(clashes)} is that of a yardstick; give the method another one"
        )
    inputs, labels = sample(clients.train.inputs), clients.plain_labels
    require(
        isinstance(inputs, Tensor) and inputs.ndim == 2 and labels.ndim == 1,
        "--yardstick trees reads tables: inputs [rows, columns] and one label per row; leave it out",
    )
    with explain_imports("--yardstick trees needs scikit-learn", "data"):
        import sklearn.ensemble  # noqa: F401


def measure_trees(
    experiment: Experiment, entry: MethodEntry, clients: Clients, seed: int
) -> list[dict[str, Any]]:
    """Rows as in `summary.json` of the trees of each client, or of those of all rows."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(
        1
    ):  # of several threads that are forked none may wait for another
        if experiment.run.merge_validation:
            clients = clients.merge_validation(())
        return list(_rows(experiment, entry, clients, seed))


def _rows(
    experiment: Experiment, entry: MethodEntry, clients: Clients, seed: int
) -> Iterator[dict[str, Any]]:
    labels = clients.plain_labels
    count = 0  # of classes: a regression has none
    if not labels.is_floating_point():
        count = int(labels.max()) + 1
    pooled = None
    if entry.name == YARDSTICKS[1]:
        pooled = _Trees(clients.pool_training_rows(), count, seed, clients.form)
    names = tuple(m.rpartition(":")[2] for m in experiment.run.metrics)
    for client in clients:
        trees = pooled or _Trees(client.train, count, seed, clients.form)
        for split, part in client.parts():
            yield {
                "method": entry.label,
                "algorithm": entry.name,
                "seed": seed,
                "client": client.name,
                "split": split,
                "n": len(part),
                "n_train": _training_rows(entry, client, clients),
                **trees.metrics(part, names, clients),
                **dict.fromkeys(("majority", "majority_loss", "row_gradients")),
                "own_model": pooled is None,
                "rounds": 0,
            }


def _training_rows(entry: MethodEntry, client: Client, clients: Clients) -> int:
    if entry.name == YARDSTICKS[0]:
        return len(client.train)
    return int(clients.train.sizes.sum())


class _Trees:
    """Trees that were fitted on some rows. Where all of these have one label, that label is predicted.

    Args:
        part: rows to fit on.
        count: of classes; 0 for regression.
        seed: seed of the run.
        form: of the labels.
    """

    def __init__(self, part: Part, count: int, seed: int, form: LabelForm) -> None:
        from sklearn.ensemble import (
            HistGradientBoostingClassifier,
            HistGradientBoostingRegressor,
        )

        inputs, labels = _table(part), form.unweighted(part.labels).numpy()
        self._count, self._form = count, form
        self._only, self._model = None, None
        if len(np.unique(labels)) == 1:
            # Nothing can be learned of one label: it is predicted for every row.
            self._only = labels[0]
            return
        if count:
            kind = HistGradientBoostingClassifier
        else:
            kind = HistGradientBoostingRegressor
        weights = form.weights(part.labels)
        shares = None
        if weights is not None:
            # In which unit rows weigh means nothing.
            shares = (weights / weights.mean()).numpy()
        self._model = kind(early_stopping=False, random_state=seed).fit(
            inputs, labels, sample_weight=shares
        )

    def metrics(
        self, part: Part, names: tuple[str, ...], clients: Clients
    ) -> dict[str, float | None]:
        """Loss and metrics on some rows; undefined ones are None."""
        outputs, labels = self._outputs(part), self._form.unweighted(part.labels)
        segments = Segments.of([len(part)])
        segments = replace(segments, weights=self._form.weights(part.labels))
        if not self._count:
            loss = Loss("regression")
        elif self._count == 2:
            loss = Loss("binary")
        else:
            loss = Loss("classes")
        values: dict[str, float | None]
        values = {"loss": float(segments.mean(loss.rows(outputs, labels)))}
        if not self._count:
            # Losses are of the standardised label, metrics in its unit.
            outputs = clients.label_scale.undo(outputs)
            labels = clients.label_scale.undo(labels)
        for name, metric in find_metrics(names).items():
            values[name] = value_of(metric, outputs, labels, loss.kind, segments)
        return values

    def _outputs(self, part: Part) -> Tensor:
        """Return predictions as a model would make them: one number or logit [rows, 1], or a logit for each class [rows, C]."""
        if not self._count:
            if self._model is None:
                predicted = np.full(len(part), self._only)
            else:
                predicted = self._model.predict(_table(part))
            return torch.from_numpy(predicted.astype(np.float64))[:, None]
        shares = np.zeros((len(part), self._count))
        if self._model is None:
            shares[:, self._only] = 1.0
        else:
            shares[:, self._model.classes_] = self._model.predict_proba(_table(part))
        logs = torch.from_numpy(shares).clamp(SURE, 1 - SURE).log()
        if self._count == 2:
            return logs[:, 1:] - logs[:, :1]
        return logs


def _table(part: Part) -> NDArray[Any]:
    # `check_yardstick` has found that the rows are numbers.
    table: NDArray[Any] = cast("Tensor", part.read()).numpy()
    return table
