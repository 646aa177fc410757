"""What the models of a run said of each test row (`outcomes/`, docs/run-directory.md), and the errors over rows that follow."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import InputError
from coterie.report.statistics import (
    Influence,
    RowError,
    auc_influence,
    mean_influence,
    rmse_influence,
    row_error,
)

__all__ = ["CONSTANT", "Outcomes", "Rows"]

CONSTANT = "constant"
"""In place of a method: the loss of always predicting a client's own training rows."""


class Rows(NamedTuple):
    """The test rows of one client under one method and seed.

    Attributes:
        numbers: [R] which rows of the client they are.
        loss, constant: [R] loss of the model and of the constant prediction.
        labels, outputs: [R] and [R, C]; None where a row has more than one label.
        threshold: the risk of class 1 that suits the client's validation rows best; NaN where none was chosen.
    """

    numbers: NDArray[np.int64]
    loss: NDArray[np.float64]
    constant: NDArray[np.float64]
    labels: NDArray[Any] | None
    outputs: NDArray[np.float64] | None
    threshold: float = math.nan

    @property
    def risks(self) -> NDArray[np.float64] | None:
        """The predicted probability of class 1 [R]; None unless there are two classes and one logit."""
        if not self.classes or self.outputs is None or self.outputs.shape[1] != 1:
            return None
        return np.asarray(1 / (1 + np.exp(-np.clip(self.outputs[:, 0].astype(float), -700, 700))))

    @property
    def classes(self) -> bool:
        """Whether labels are classes and outputs are logits."""
        return self.labels is not None and np.issubdtype(self.labels.dtype, np.integer)

    @property
    def rarest(self) -> int:
        """Rows of the rarest class; 0 if there is only one, or labels are no classes."""
        if self.labels is None or not self.classes:
            return 0
        counts = np.unique(self.labels, return_counts=True)[1]
        return int(counts.min()) if len(counts) > 1 else 0

    @property
    def scores(self) -> NDArray[np.float64]:
        """What ranks the rows: the logit [R, 1], or the probability of each class [R, C]."""
        if self.outputs is None or self.outputs.shape[1] == 1:
            return np.zeros((len(self.loss), 1)) if self.outputs is None else self.outputs
        powers = np.exp(self.outputs - self.outputs.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    @property
    def _called(self) -> NDArray[np.int64]:
        """The class of the highest probability."""
        scores = self.scores
        return np.asarray(scores[:, 0] >= 0 if scores.shape[1] == 1 else scores.argmax(axis=1), dtype=np.int64)

    @property
    def squares(self) -> NDArray[np.float64] | None:
        """Squared errors of a regression in the unit of the label."""
        if self.labels is None or self.outputs is None or self.classes:
            return None
        return np.asarray((self.outputs[:, 0].astype(float) - self.labels) ** 2)

    def influence(self, metric: str, constant: bool = False) -> Influence | None:
        """What each row adds to the error of a deciding metric; None if it has none here."""
        loss = self.constant if constant else self.loss
        if metric == "accuracy" and self.classes and self.outputs is not None and not constant:
            return mean_influence(self.numbers, self._called == self.labels)
        if metric == "loss":
            return mean_influence(self.numbers, loss)
        if metric == "rmse" and self.squares is not None:
            return rmse_influence(self.numbers, self.squares)
        if metric == "auc" and self.classes and self.labels is not None and self.outputs is not None and not constant:
            return auc_influence(self.numbers, self.scores, self.labels)
        return None


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a run directory, read when they are asked for; `seeds` as in `Results`."""

    folder: Path
    seeds: tuple[int, ...]

    @cached_property
    def _files(self) -> dict[tuple[str, int], tuple[Path, list[str]]]:
        from safetensors import SafetensorError, safe_open

        found = {}
        for path in sorted((self.folder / "outcomes").glob("*.safetensors")):
            try:
                with safe_open(path, framework="numpy") as file:
                    about = json.loads(file.metadata()["coterie"])
                found[about["method"], about["seed"]] = (path, list(about["clients"]))
            except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} cannot be read ({error}); restore it or repeat the run") from error
        return found

    @cached_property
    def _read(self) -> dict[tuple[str, int], dict[str, Rows]]:
        return {}

    def of(self, method: str, seed: int) -> dict[str, Rows]:
        """The rows of each client; empty where nothing was saved (rows at institutions stay there)."""
        if (method, seed) not in self._read:
            self._read[method, seed] = self._load(*self._files[method, seed]) if (method, seed) in self._files else {}
        return self._read[method, seed]

    def _load(self, path: Path, clients: Sequence[str]) -> dict[str, Rows]:
        from safetensors.numpy import load_file

        tensors = load_file(path)
        try:
            spans = zip(tensors["offsets"][:-1], tensors["offsets"][1:], strict=True)
            found = {}
            chosen = tensors.get("thresholds", np.full(len(clients), math.nan))
            for client, (low, high), threshold in zip(clients, spans, chosen, strict=True):
                numbers, loss, constant = (tensors[key][low:high] for key in ("numbers", "loss", "constant_loss"))
                labels, outputs = (tensors[k][low:high] if k in tensors else None for k in ("labels", "outputs"))
                found[client] = Rows(numbers, loss, constant, labels, outputs, float(threshold))
            return found
        except (KeyError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}); restore it or repeat the run") from error

    def rows(self, method: str, client: str) -> dict[int, Rows]:
        """The rows of one client by seed."""
        found = {seed: self.of(method, seed).get(client) for seed in self.seeds}
        return {seed: rows for seed, rows in found.items() if rows is not None}

    def fixed(self, method: str, client: str) -> bool:
        """Whether all seeds have the same test rows of this client."""
        numbers = [np.sort(rows.numbers) for rows in self.rows(method, client).values()]
        return len(numbers) > 1 and all(np.array_equal(numbers[0], other) for other in numbers[1:])

    def rarest(self, method: str, client: str) -> int | None:
        """Test rows of the rarest class in the seed that has fewest; None where it is not known."""
        rows = self.rows(method, client)
        return min(one.rarest for one in rows.values()) if rows else None

    def own_error(self, method: str, client: str, metric: str) -> RowError | None:
        """The standard error over rows of the mean over seeds of the metric itself."""
        found = [rows.influence(metric) for rows in self.rows(method, client).values()]
        known = [one for one in found if one is not None]
        nothing = [one._replace(values=np.zeros_like(one.values)) for one in known]
        return row_error(known, nothing) if len(known) == len(found) else None

    def error(self, method: str, other: str, client: str, metric: str) -> RowError | None:
        """The standard error over rows of the mean over seeds of `method` minus `other` (which may be `CONSTANT`)."""
        one = self.rows(method, client)
        two = one if other == CONSTANT else self.rows(other, client)
        pairs = []
        for seed in one:
            if seed in two:
                a, b = one[seed].influence(metric), two[seed].influence(metric, other == CONSTANT)
                if a is not None and b is not None:
                    pairs.append((a, b))
        return row_error([a for a, _ in pairs], [b for _, b in pairs])
