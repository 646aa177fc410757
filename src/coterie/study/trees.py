"""`--yardstick trees`: gradient-boosted trees of each client alone, and of all rows pooled, as reference rows of a comparison.

They see the same splits and are measured by the same metrics as methods, but they are none: nobody trains them together, and no
verdict is about them. scikit-learn's `HistGradientBoosting` with its defaults stands for what a table allows without federation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, explain_imports, require
from coterie.base.loss import Loss
from coterie.base.rows import Part, sample
from coterie.compute.metrics import find_metrics
from coterie.config.run import MethodEntry
from coterie.run.experiment import Experiment
from coterie.run.files import YARDSTICKS

SURE = 1e-7
"""Probabilities nearer to 0 or 1 count as this one, so that no log-loss is infinite."""


def entries_of(experiment: Experiment) -> tuple[MethodEntry, ...]:
    """The stand-in for the yardstick among the methods of a run directory."""
    return (
        tuple(MethodEntry(name, name) for name in YARDSTICKS)
        if experiment.run.yardstick
        else ()
    )


def check_yardstick(experiment: Experiment, clients: Clients) -> None:
    """Raise `InputError` if trees are asked for and cannot read these clients, before any training."""
    if experiment.run.yardstick is None:
        return
    clashes = set(experiment.labels) & set(YARDSTICKS)
    if clashes:
        raise InputError(
            f"the label {min(clashes)} is that of a yardstick; give the method another one"
        )
    inputs, labels = sample(clients.train.inputs), clients.train.labels
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
        return list(
            _rows(
                experiment,
                entry,
                clients.merge_validation(())
                if experiment.run.merge_validation
                else clients,
                seed,
            )
        )


def _rows(
    experiment: Experiment, entry: MethodEntry, clients: Clients, seed: int
) -> Iterator[dict[str, Any]]:
    count = (
        int(clients.train.labels.max()) + 1
        if not clients.train.labels.is_floating_point()
        else 0
    )
    pooled = (
        _Trees(clients.pool_training_rows(), count, seed)
        if entry.name == YARDSTICKS[1]
        else None
    )
    names = tuple(m.rpartition(":")[2] for m in experiment.run.metrics)
    for client in clients:
        trees = pooled or _Trees(client.train, count, seed)
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
    return (
        len(client.train)
        if entry.name == YARDSTICKS[0]
        else int(clients.train.sizes.sum())
    )


class _Trees:
    """Trees that were fitted on some rows. Where all of these have one label, that label is predicted.

    Args:
        part: rows to fit on.
        count: of classes; 0 for regression.
        seed: seed of the run.
    """

    def __init__(self, part: Part, count: int, seed: int) -> None:
        from sklearn.ensemble import (
            HistGradientBoostingClassifier,
            HistGradientBoostingRegressor,
        )

        inputs, labels = _table(part), part.labels.numpy()
        self._count, self._only = (
            count,
            labels[0] if len(np.unique(labels)) == 1 else None,
        )
        kind = (
            HistGradientBoostingClassifier if count else HistGradientBoostingRegressor
        )
        self._model = (
            None
            if self._only is not None
            else kind(early_stopping=False, random_state=seed).fit(inputs, labels)
        )

    def metrics(
        self, part: Part, names: tuple[str, ...], clients: Clients
    ) -> dict[str, float | None]:
        """Loss and metrics on some rows; undefined ones are None."""
        outputs, labels = self._outputs(part), part.labels
        loss = Loss(
            "regression"
            if not self._count
            else "binary"
            if self._count == 2
            else "classes"
        )
        value = float(loss.rows(outputs, labels).double().mean())
        if not self._count:
            outputs, labels = (
                clients.label_scale.undo(outputs),
                clients.label_scale.undo(labels),
            )
        return {
            "loss": value,
            **{
                n: m(outputs, labels, loss.kind) for n, m in find_metrics(names).items()
            },
        }

    def _outputs(self, part: Part) -> Tensor:
        """Return predictions as a model would make them: one number or logit [rows, 1], or a logit for each class [rows, C]."""
        if not self._count:
            predicted = (
                np.full(len(part), self._only)
                if self._model is None
                else self._model.predict(_table(part))
            )
            return torch.from_numpy(predicted.astype(np.float64))[:, None]
        shares = np.zeros((len(part), self._count))
        if self._model is None:
            shares[:, self._only] = 1.0
        else:
            shares[:, self._model.classes_] = self._model.predict_proba(_table(part))
        logs = torch.from_numpy(shares).clamp(SURE, 1 - SURE).log()
        return logs[:, 1:] - logs[:, :1] if self._count == 2 else logs


def _table(part: Part) -> NDArray[Any]:
    table: NDArray[Any] = cast(
        "Tensor", part.read()
    ).numpy()  # as `check_yardstick` has found
    return table
