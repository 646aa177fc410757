"""What the models of a run said of each test row (`outcomes/`, docs/run-directory.md), and the errors over rows that follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from coterie.base.files import json_rows, open_tensors
from coterie.compute.outcomes import CONSTANT, Influence, RowError, Rows, join_folds, pair_influences, row_error
from coterie.run.files import PAIRED

__all__ = ["Outcomes", "own_error"]


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a run directory, read when they are asked for; `seeds` as in `Results`."""

    folder: Path
    seeds: tuple[int, ...]

    @cached_property
    def _files(self) -> dict[tuple[str, int], list[tuple[str, Path, list[str]]]]:
        files: dict[tuple[str, int], list[tuple[str, Path, list[str]]]] = {}
        for path in sorted((self.folder / "outcomes").glob("*.safetensors")):
            with open_tensors(path, "numpy") as (_, about):
                run = files.setdefault((about["method"], about["seed"]), [])
                run.append((str(about["fold"]), path, list(about["clients"])))
        return files

    @cached_property
    def site_errors(self) -> dict[tuple[str, frozenset[str], str], tuple[float, float]]:
        """What sites have told of differences between two methods at a client: standard error and p value, by metric."""
        path = self.folder / PAIRED
        keys = {"client": str, "method": str, "other": str, "metric": str, "error": float, "p": float}
        return {
            (row["client"], frozenset((row["method"], row["other"])), row["metric"]): (row["error"], row["p"])
            for row in (json_rows(path, keys) if path.is_file() else [])
        }

    @cached_property
    def _read(self) -> dict[tuple[str, int], dict[str, Rows]]:
        return {}

    def of(self, method: str, seed: int) -> dict[str, Rows]:
        """The rows of each client; empty where nothing was saved (rows at institutions stay there, see `site_errors`)."""
        if (method, seed) not in self._read:
            folds: dict[str, list[Rows]] = {}
            for fold, path, clients in self._files.get((method, seed), ()):
                for client, rows in self._load(path, clients).items():
                    folds.setdefault(client, []).append(rows._replace(folds=np.full(len(rows.loss), int(fold or 0))))
            self._read[method, seed] = {client: join_folds(rows) for client, rows in folds.items()}
        return self._read[method, seed]

    def _load(self, path: Path, clients: Sequence[str]) -> dict[str, Rows]:
        with open_tensors(path, "numpy") as (file, _):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
            spans = zip(tensors["offsets"][:-1], tensors["offsets"][1:], strict=True)
            by_client = {}
            chosen = tensors.get("thresholds", np.full(len(clients), math.nan))
            for client, (low, high), threshold in zip(clients, spans, chosen, strict=True):
                numbers, loss, constant = (tensors[key][low:high] for key in ("numbers", "loss", "constant_loss"))
                labels, outputs, patients = (
                    tensors[k][low:high] if k in tensors else None for k in ("labels", "outputs", "patients")
                )
                by_client[client] = Rows(numbers, loss, constant, labels, outputs, float(threshold), patients=patients)
            return by_client

    def rows(self, method: str, client: str) -> dict[int, Rows]:
        """The rows of one client by seed."""
        by_seed = {seed: self.of(method, seed).get(client) for seed in self.seeds}
        return {seed: rows for seed, rows in by_seed.items() if rows is not None}

    def same_rows(self, method: str, client: str) -> bool:
        """Whether all seeds have the same test rows of this client."""
        numbers = [np.sort(rows.numbers) for rows in self.rows(method, client).values()]
        return len(numbers) > 1 and all(np.array_equal(numbers[0], later) for later in numbers[1:])

    def tested(self, method: str, client: str) -> int | None:
        """Test rows (patients, where one has several) in the seed that has fewest; None where it is not known."""
        rows = self.rows(method, client)
        return min(len(np.unique(tested.units)) for tested in rows.values()) if rows else None

    def rarest(self, method: str, client: str) -> int | None:
        """Test rows of the rarest class in the seed that has fewest; None where it is not known."""
        rows = self.rows(method, client)
        return min(tested.rarest for tested in rows.values()) if rows else None

    def positive(self, method: str, client: str) -> float | None:
        """The share of a client's test rows that are of class 1 of two, mean over seeds; None where it is not known."""
        rows = self.rows(method, client).values()
        shares = [
            float((tested.labels == 1).mean())
            for tested in rows
            if tested.labels is not None and tested.risks is not None
        ]
        return sum(shares) / len(shares) if shares else None

    def gain(self, method: str, rival: str, client: str, metric: str) -> tuple[float, RowError | None, int] | None:
        """The mean over seeds of `method` minus `other`, its error over rows and how many rows there are; None if not known."""
        pairs = pair_influences(self.rows(method, client), self.rows(rival, client), metric)
        if not pairs:
            return None
        numbers = np.unique(np.concatenate([influence.numbers for influence, _ in pairs]))
        mean = float(np.mean([influence.metric - two.metric for influence, two in pairs]))
        return mean, row_error([influence for influence, _ in pairs], [two for _, two in pairs]), len(numbers)

    def error(self, method: str, rival: str, client: str, metric: str) -> RowError | None:
        """The standard error over rows of the mean over seeds of `method` minus `other` (which may be `CONSTANT`)."""
        tested = self.rows(method, client)
        two = tested if rival == CONSTANT else self.rows(rival, client)
        pairs = pair_influences(tested, two, metric, constant=rival == CONSTANT)
        return row_error([a for a, _ in pairs], [b for _, b in pairs])


def own_error(influences: Sequence[Influence | None]) -> RowError | None:
    """The standard error over rows of the mean over seeds of a metric itself; None if a seed's is not known."""
    finite = [influence for influence in influences if influence is not None]
    nothing = [influence._replace(values=np.zeros_like(influence.values)) for influence in finite]
    return row_error(finite, nothing) if len(finite) == len(influences) else None
