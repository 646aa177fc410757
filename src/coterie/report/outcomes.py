"""Predictions of the models of a run for each test row (`outcomes/`, docs/run-directory.md), and the errors over rows that follow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.base.files import json_rows, open_tensors
from coterie.compute.outcomes import (
    BOOSTED,
    CONSTANT,
    Influence,
    Pairs,
    RowError,
    Rows,
    count_distinct,
    join_folds,
    pair_influences,
    row_error,
)
from coterie.report.memo import cache_answers
from coterie.run.files import PAIRED, SUMMARY


class Told(NamedTuple):
    """Difference of two methods as told by a site: standard error, p value and mean over seeds, the metric of the method itself,
    and the test rows, in all and of the rarest class (0: too few to speak of).
    """

    error: float
    p: float
    gap: float
    value: float
    tested: int
    rarest: int


def paired_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `paired.json`; none where rows are here, and `outcomes/` says more."""
    path = folder / PAIRED
    if not path.is_file():
        return []
    texts = dict.fromkeys(("client", "method", "other", "metric"), str)
    numbers = dict.fromkeys(("error", "p", "gap", "value"), float)
    counts = dict.fromkeys(("tested", "rarest"), int)
    return json_rows(path, {**texts, **numbers, **counts})


class _File(NamedTuple):
    """A file of outcomes, the tested fold ("" without folds), and whose rows it holds."""

    fold: str
    path: Path
    clients: list[str]


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a run directory, read when they are asked for; `tables` as in `Results`."""

    folder: Path
    tables: tuple[tuple[int, ...], ...]

    @staticmethod
    def paths(folder: Path) -> list[Path]:
        """The files of a run directory that hold outcomes."""
        return sorted((folder / "outcomes").glob("*.safetensors"))

    @cached_property
    def _files(self) -> dict[tuple[str, int], list[_File]]:
        """The files by method and seed."""
        files: dict[tuple[str, int], list[_File]] = {}
        for path in self.paths(self.folder):
            with open_tensors(path, "numpy") as (_, about):
                file = _File(str(about["fold"]), path, list(about["clients"]))
            files.setdefault((about["method"], about["seed"]), []).append(file)
        return files

    @cached_property
    def from_sites(self) -> dict[tuple[str, str, str, str], Told]:
        """Return what sites have told of differences between two methods, by client, method, other and metric."""
        by_comparison = {}
        for row in paired_rows(self.folder):
            key = (row["client"], row["method"], row["other"], row["metric"])
            by_comparison[key] = Told(*(row[name] for name in Told._fields))
        return by_comparison

    def of_site(self, client: str, method: str, rival: str, metric: str) -> Told | None:
        """Return what the client's site has told of `method` minus `rival`, in whichever order it compares them."""
        as_compared = self.from_sites.get((client, method, rival, metric))
        if as_compared is not None:
            return as_compared
        turned = self.from_sites.get((client, rival, method, metric))
        if turned is None:
            return None
        # A site tells the metric of the first of the two alone.
        return turned._replace(gap=-turned.gap, value=math.nan)

    @cached_property
    def _counts(self) -> dict[str, Told]:
        return {client: numbers for (client, *_), numbers in self.from_sites.items()}

    @cache_answers
    def of(self, method: str, seed: int) -> dict[str, Rows]:
        """The rows of each client; empty where nothing was saved (rows at institutions stay there, see `site_errors`)."""
        by_client: dict[str, list[Rows]] = {}
        for fold, path, clients in self._files.get((method, seed), ()):
            for client, rows in self._load(path, clients).items():
                folds = np.full(len(rows.loss), int(fold or 0))
                by_client.setdefault(client, []).append(rows._replace(folds=folds))
        return {client: join_folds(parts) for client, parts in by_client.items()}

    def _load(self, path: Path, clients: Sequence[str]) -> dict[str, Rows]:
        with open_tensors(path, "numpy") as (file, _):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
        offsets = tensors.pop("offsets")
        thresholds = tensors.pop("thresholds", np.full(len(clients), math.nan))
        by_client = {}
        places = zip(clients, offsets[:-1], offsets[1:], thresholds, strict=True)
        for client, low, high, threshold in places:
            own = {name: tensor[low:high] for name, tensor in tensors.items()}
            if "weights" in own:
                # A row that weighs nothing is in no statistic, and alone of its class it would have none.
                weighs = own["weights"] > 0
                own = {name: tensor[weighs] for name, tensor in own.items()}
            by_client[client] = Rows(
                own["numbers"],
                own["loss"],
                own["constant_loss"],
                own.get("labels"),
                own.get("outputs"),
                float(threshold),
                patients=own.get("patients"),
                boosted=own.get("boosted_loss"),
                marks=own.get("marks"),
                followup=own.get("followup"),
                hazards=own.get("hazards"),
                counts=own.get("counts"),
                weights=own.get("weights"),
            )
        return by_client

    def rows(
        self, method: str, client: str, seeds: Sequence[int] = ()
    ) -> dict[int, Rows]:
        """The rows of one client by seed; of all seeds, or of `seeds`."""
        found = {}
        for seed in seeds or itertools.chain(*self.tables):
            rows = self.of(method, seed).get(client)
            if rows is not None:
                found[seed] = rows
        return found

    def same_rows(self, method: str, client: str, seeds: Sequence[int] = ()) -> bool:
        """Return True if all seeds, or all of `seeds`, have the same test rows of this client."""
        by_seed = self.rows(method, client, seeds).values()
        numbers = [np.sort(rows.numbers) for rows in by_seed]
        # One seed alone does not tell whether another would draw the same rows.
        if len(numbers) < 2:
            return False
        return all(np.array_equal(numbers[0], other) for other in numbers[1:])

    def test_rows(self, method: str, client: str) -> int | None:
        """Test rows (patients, where one has several) in the seed that has fewest; None where it is not known."""
        return self._fewest(
            method,
            client,
            lambda rows: rows.effective(),
            lambda told: told.tested,
        )

    def rarest(self, method: str, client: str) -> int | None:
        """Test rows of the rarest class in the seed that has fewest; None where it is not known."""
        return self._fewest(
            method, client, lambda rows: rows.rarest, lambda told: told.rarest
        )

    def uneven(self, method: str, client: str) -> tuple[int, int] | None:
        """Effective test rows and all of them, where weights leave less than a quarter (`LEAST_EFFECTIVE`); else None."""
        for rows in self.rows(method, client).values():
            if rows.is_uneven:
                return rows.effective(), count_distinct(rows.units)
        return None

    def _fewest(
        self,
        method: str,
        client: str,
        amount: Callable[[Rows], int],
        of_site: Callable[[Told], int],
    ) -> int | None:
        """An amount of rows in the seed that has fewest of its table, all tables together; None where it is not known."""
        tables = [self.rows(method, client, seeds) for seeds in self.tables]
        fewest = [min(map(amount, rows.values())) for rows in tables if rows]
        if not fewest and client in self._counts:
            return of_site(self._counts[client])
        return sum(fewest) if fewest else None

    def positive(self, method: str, client: str) -> float | None:
        """The share of a client's test rows that are of class 1 of two, mean over seeds; None where it is not known."""
        shares = []
        for rows in self.rows(method, client).values():
            if rows.labels is not None and rows.risks is not None:
                shares.append(rows.mean(rows.labels == 1))
        return sum(shares) / len(shares) if shares else None

    @cache_answers
    def gain(
        self,
        method: str,
        rival: str,
        client: str,
        metric: str,
        seeds: Sequence[int] = (),
    ) -> tuple[float, RowError | None, int] | None:
        """The mean over seeds of `method` minus `other`, its error over rows and how many rows there are; None if not known."""
        pairs = self._pairs(method, rival, client, metric, seeds)
        if not pairs:
            return None
        own = [influence for influence, _ in pairs]
        of_rival = [influence for _, influence in pairs]
        gaps = [one.metric - two.metric for one, two in pairs]
        rows = count_distinct(np.concatenate([influence.numbers for influence in own]))
        return float(np.mean(gaps)), row_error(own, of_rival), rows

    def error(
        self,
        method: str,
        rival: str,
        client: str,
        metric: str,
        seeds: Sequence[int] = (),
    ) -> RowError | None:
        """The standard error over rows of the mean over seeds of `method` minus `rival` (which may be `CONSTANT` or `BOOSTED`)."""
        gain = self.gain(method, rival, client, metric, seeds)
        return None if gain is None else gain[1]

    def gaps(
        self,
        method: str,
        rival: str,
        client: str,
        metric: str,
        seeds: Sequence[int] = (),
    ) -> NDArray[np.float64]:
        """The mean over rows of `method` minus `rival`, of each seed that has both."""
        pairs = self._pairs(method, rival, client, metric, seeds)
        return np.array([one.metric - two.metric for one, two in pairs])

    def _pairs(
        self, method: str, rival: str, client: str, metric: str, seeds: Sequence[int]
    ) -> Pairs:
        of_method = self.rows(method, client, seeds)
        if rival == CONSTANT:
            return pair_influences(of_method, of_method, metric, instead=CONSTANT)
        if rival == BOOSTED:
            if not self.boosted_with:
                return []
            alone = self.rows(self.boosted_with, client, seeds)
            return pair_influences(of_method, alone, metric, instead=BOOSTED)
        return pair_influences(of_method, self.rows(rival, client, seeds), metric)

    @cached_property
    def boosted_with(self) -> str:
        """The method beside whose outcomes those of boosted trees stand; empty where none were fitted."""
        for (method, _), files in self._files.items():
            with open_tensors(files[0].path, "numpy") as (file, _):
                if "boosted_loss" in file.keys():  # noqa: SIM118 - it is not a dict
                    return method
        return ""

    @cached_property
    def has_boosted(self) -> bool:
        """Whether boosted trees were fitted, here or at some site."""
        at_sites = any(other == BOOSTED for _, _, other, _ in self.from_sites)
        return bool(self.boosted_with) or at_sites

    def boosted_loss(self, client: str) -> float:
        """Mean loss of a client's own boosted trees over rows and seeds; NaN where none were fitted."""
        for (name, _, other, metric), told in self.from_sites.items():
            if (name, other, metric) == (client, BOOSTED, "loss"):
                return told.value - told.gap
        losses = []
        for rows in self.rows(self.boosted_with, client).values():
            if rows.boosted is not None:
                losses.append(rows.mean(rows.boosted))
        return sum(losses) / len(losses) if losses else math.nan

    def class_counts(self, method: str, client: str, classes: int) -> list[float]:
        """Test rows of each class at a client, mean over seeds; empty unless labels are classes."""
        counts = []
        for rows in self.rows(method, client).values():
            if rows.classes and rows.labels is not None and len(rows.labels):
                is_known = np.asarray(rows.labels >= 0)
                weights = rows.weights_of(is_known)
                known = rows.labels[is_known]
                counts.append(np.bincount(known, weights, classes))
        if not counts:
            return []
        mean_counts = np.mean(counts, axis=0)
        return [float(count) for count in mean_counts]

    def event_counts(self, method: str, client: str) -> tuple[float, float] | None:
        """Test rows without and with an event, mean over seeds; None unless the label is a time to event."""
        counts, sizes = [], []
        for rows in self.rows(method, client).values():
            if rows.followup is not None:
                happened = rows.followup[:, 2] > 0
                counts.append(_as_rows(happened, rows.weights))
                sizes.append(len(happened))
        if not sizes:
            return None
        count = float(np.mean(counts))
        return float(np.mean(sizes)) - count, count

    def half_deviance(self, method: str, client: str) -> float | None:
        """Half the deviance of a constant rate, mean over seeds; None unless the label is a count with exposure."""
        by_seed = self.rows(method, client).values()
        halves = [rows.half_deviance for rows in by_seed]
        known = [half for half in halves if half is not None]
        return sum(known) / len(known) if known else None

    def label_counts(self, method: str, client: str) -> list[tuple[float, float]]:
        """Test rows without and with each of several labels, mean over seeds; empty unless rows have several."""
        by_seed = self.rows(method, client).values()
        tables = [rows.marks for rows in by_seed if rows.marks is not None]
        if not tables:
            return []
        sums = [
            _as_rows(rows.marks, rows.weights)
            for rows in by_seed
            if rows.marks is not None
        ]
        present = np.mean(sums, axis=0)
        total = float(np.mean([len(table) for table in tables]))
        return [(total - float(count), float(count)) for count in present]


def _as_rows(marks: NDArray[Any], weights: NDArray[np.float64] | None) -> Any:
    """Return the sum over rows of marks [R, ...] of 0 and 1; with weights their share times the number of rows."""
    if weights is None:
        return marks.sum(axis=0)
    return np.average(marks, axis=0, weights=weights) * len(marks)


def site_test_rows(
    rows: Sequence[dict[str, Any]], paired: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows of a summary about the test rows of sites whose models were tested in folds, of which a site tells means over all.

    Args:
        rows: rows of a summary, one for each method, seed, client and split.
        paired: rows of `paired.json`.
    """
    if any(row["split"] == "test" for row in rows):
        return []
    by_model: dict[tuple[str, str], dict[str, Any]] = {}

    def add(row: dict[str, Any], method: str, metric: str, value: float) -> None:
        first = {"split": "test", "n": row["tested"]}
        metrics = by_model.setdefault((row["client"], method), first)
        # The squared error is there for the gain in RMSE; summaries have no such column.
        if metric != "mse":
            metrics.setdefault(metric, value)

    for row in paired:
        add(row, row["method"], row["metric"], row["value"])
        rival_value = row["value"] - row["gap"]
        if row["other"] == CONSTANT:
            add(row, row["method"], "majority_loss", rival_value)
        else:
            add(row, row["other"], row["metric"], rival_value)

    kept = [key for key in SUMMARY if key != "majority"]
    test_rows = []
    for row in rows:
        metrics = by_model.get((row["client"], row["method"]))
        if row["split"] == "train" and metrics is not None:
            test_rows.append({k: v for k, v in row.items() if k in kept} | metrics)
    return test_rows


def own_error(influences: Sequence[Influence | None]) -> RowError | None:
    """The standard error over rows of the mean over seeds of a metric itself; None if a seed's is not known."""
    finite = [influence for influence in influences if influence is not None]
    if len(finite) < len(influences):
        return None
    zeros = [one._replace(values=np.zeros_like(one.values)) for one in finite]
    return row_error(finite, zeros)
