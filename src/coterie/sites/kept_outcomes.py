"""Losses and outputs of a run's models on the test rows of a site: kept there, and told as errors of differences alone."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.files import write_atomically
from coterie.compute.outcomes import (
    BOOSTED,
    CONSTANT,
    Rows,
    error_by_resampling,
    join_folds,
    pair_influences,
    student,
)
from coterie.compute.workspace import Workspace
from coterie.contract.encoding import decode, encode
from coterie.run.experiment import Experiment
from coterie.run.files import ALL, seed_suffix
from coterie.sites.allowed import RefusedError
from coterie.sites.comparisons import Paired, baseline_of
from coterie.sites.effective import count_rows
from coterie.sites.secret_noise import KeyedVeil
from coterie.study.layout import trainings
from coterie.study.rivals import seeds_of_boosted
from coterie.study.row_outcomes import losses_of_boosted, of_rows


class KeptOutcomes:
    """Losses and outputs of the models of one run on the test rows of this site, as the cohort of the tasks of `sites.comparisons`.

    Args:
        folder: folder of the run; a file for each method, seed and fold.
        experiment: of the plan, which says what is compared: a difference is told if all its seeds and folds are there, one to
            boosted trees if all repeats are in which these are fitted. Their losses are kept beside those of the baseline.
        least: test rows, and rows of each class, under which nothing is told.
        key: key of the site.
        veil: hides what one row adds to what is told; None where the plan has no secret noise.
        now: method, seed and fold that run now, the client and its model; None where nothing can be noted.
        fits_trees: whether boosted trees are fitted to what is noted; they are not where they are no rival.
        mean_weight: of all rows of the site, by which the weights of test rows are divided; 1 where they have none.
    """

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        least: int,
        key: bytes,
        veil: KeyedVeil | None = None,
        now: tuple[str, Clients, Workspace] | None = None,
        *,
        fits_trees: bool = False,
        mean_weight: float = 1.0,
    ) -> None:
        self._folder, self._least, self._now = folder, least, now
        self._key, self._veil = key, veil
        self._turns: dict[int, list[str]] = {}
        for seed, fold in trainings(experiment):
            if fold != ALL:
                self._turns.setdefault(seed, []).append(fold)
        self._baseline = baseline_of(experiment)
        self._boosted = seeds_of_boosted(experiment)
        self._fits_trees = fits_trees
        self._mean_weight = mean_weight

    def note(self, x: Tensor) -> bool:
        """Write what model x [d + b] says of each test row; False where there are none.

        Raises `RefusedError` if another model of this method and seed was noted: one is all that a run has.
        """
        if self._now is None:
            raise RefusedError("the model was not sent yet")
        pair, clients, workspace = self._now
        client = clients[0]
        if client.test is None:
            return False
        workspace.load(x)
        workspace.train(False)
        scale = clients.label_scale
        outcomes = of_rows(workspace, client, client.train.labels, scale)
        if "weights" in outcomes:
            outcomes["weights"] = outcomes["weights"] / self._mean_weight
        with_trees = self._trainings_of(self._baseline, self._boosted)
        if self._fits_trees and pair in with_trees:
            outcomes |= losses_of_boosted(workspace, [client.train], client.test)
        if self._veil is not None:
            outcomes |= {
                key: self._veil.bound_losses(outcomes[key])
                for key in ("loss", "constant_loss")
            }
            if "outputs" in outcomes:
                outcomes["outputs"] = outcomes["outputs"].nan_to_num()
        content = encode(outcomes)
        path = self._file(pair)
        if path.exists() and path.read_bytes() != content:
            raise RefusedError(
                f"another model of {pair[:40]} was noted before in this run"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda p: p.write_bytes(content))
        return True

    def compare(self, method: str, other: str, metric: str) -> Paired | None:
        """Compare `method` with `other`, mean over seeds; None if nothing may be said."""
        constant = other == CONSTANT
        rows_of_method = self._rows(method)
        # The loss of the constant prediction is kept with the rows of each method.
        rows_of_reference = rows_of_method
        if not constant:
            rows_of_reference = self._rows(self._kept_with(other))
        by_class = metric in ("auc", "c_index") or constant
        if any(
            _fewest(rows, by_class) < self._least or rows.is_uneven
            for rows in (*rows_of_method.values(), *rows_of_reference.values())
        ):
            return None
        instead = ""
        if other in (CONSTANT, BOOSTED):
            instead = other
        pairs = pair_influences(
            rows_of_method, rows_of_reference, metric, instead=instead
        )
        repeats: Collection[int] = self._turns
        if other == BOOSTED:
            repeats = self._boosted
        if len(pairs) < max(len(repeats), 1):
            return None
        a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        differences = np.concatenate(
            [of_method.values - reference.values for of_method, reference in pairs]
        )
        digest = hmac.new(self._key, differences.tobytes(), hashlib.sha256).digest()
        resampled = error_by_resampling(
            a, b, np.random.default_rng(int.from_bytes(digest, "little"))
        )
        if resampled is None:
            return None
        gap = float(
            np.mean(
                [of_method.metric - reference.metric for of_method, reference in pairs]
            )
        )
        value = float(np.mean([of_method.metric for of_method, _ in pairs]))
        if abs(gap) <= 1e-12:
            gap = 0.0
        paired = Paired(resampled.error, student(gap, resampled)[1], gap, value)
        if self._veil is not None:
            every = (*rows_of_method.values(), *rows_of_reference.values())
            tested, fewest = (
                min(_fewest(rows, by_class) for rows in every)
                for by_class in (False, True)
            )
            reach = self._veil.reach(metric, tested, fewest)
            outcomes = (
                _outcomes_of(rows_of_method, False),
                _outcomes_of(rows_of_reference, constant),
            )
            paired = self._veil.comparison(
                paired, resampled.freedom, metric, reach, *outcomes
            )
        if not (math.isfinite(paired.gap) and math.isfinite(paired.value)):
            return None
        return paired

    def counts(self, method: str) -> tuple[int, int]:
        """Test rows (patients, where one has several), in all and of the rarest class; 0 for what too few stand behind. With weights
        effective ones.
        """
        by_seed = self._rows(method)
        if not by_seed or any(
            _fewest(rows, by_class=False) < self._least for rows in by_seed.values()
        ):
            return 0, 0
        patients = min(rows.effective() for rows in by_seed.values())
        too_few = any(
            _fewest(rows, by_class=True) < self._least for rows in by_seed.values()
        )
        if too_few:
            return patients, 0
        return patients, min(rows.rarest for rows in by_seed.values())

    def is_uneven(self, method: str) -> bool:
        """Return True if the weights of test rows leave less than a quarter of them, so that nothing is said."""
        return any(rows.is_uneven for rows in self._rows(method).values())

    def digest(self, methods: Iterable[str]) -> str:
        """The hash of all that was noted of some methods in this run."""
        hashes = hashlib.sha256()
        for method in methods:
            for pair in self._trainings_of(self._kept_with(method), self._turns):
                path = self._file(pair)
                content = b"none"
                if path.exists():
                    content = path.read_bytes()
                hashes.update(content)
        return hashes.hexdigest()

    def _kept_with(self, method: str) -> str:
        """The method beside whose losses those of `method` are kept."""
        if method == BOOSTED:
            return self._baseline
        return method

    def _trainings_of(self, method: str, seeds: Iterable[int]) -> list[str]:
        """The names of all trainings of a method with these seeds that are tested."""
        return [
            f"{method}-{seed_suffix(seed, fold)}"
            for seed in seeds
            for fold in self._turns[seed]
        ]

    def _file(self, pair: str) -> Path:
        digest = hashlib.blake2b(pair.encode(), digest_size=12).hexdigest()
        return self._folder / f"{digest}-outcomes.safetensors"

    def _rows(self, method: str) -> dict[int, Rows]:
        """The rows of each seed of which every fold was noted."""
        by_seed = {}
        for seed, folds in self._turns.items():
            files = [
                self._file(f"{method}-{seed_suffix(seed, fold)}") for fold in folds
            ]
            if all(path.exists() for path in files):
                by_seed[seed] = join_folds([_read(path) for path in files])
        return by_seed


def _read(path: Path) -> Rows:
    arrays = {key: value.numpy() for key, value in decode(path.read_bytes()).items()}
    return Rows(
        arrays["numbers"],
        arrays["loss"],
        arrays["constant_loss"],
        arrays.get("labels"),
        arrays.get("outputs"),
        patients=arrays.get("patients"),
        boosted=arrays.get("boosted_loss"),
        marks=arrays.get("marks"),
        followup=arrays.get("followup"),
        hazards=arrays.get("hazards"),
        counts=arrays.get("counts"),
        weights=arrays.get("weights"),
    )


def _outcomes_of(rows: Mapping[int, Rows], constant: bool) -> Tensor:
    """Losses and outputs of a method, or of the constant prediction, on the rows of all seeds, one behind the other."""
    columns = []
    for of_seed in rows.values():
        kept = [of_seed.loss, of_seed.outputs]
        if constant:
            kept = [of_seed.constant]
        columns += [np.ravel(values) for values in kept if values is not None]
    return torch.from_numpy(np.concatenate(columns).astype(np.float64))


def _fewest(rows: Rows, by_class: bool) -> int:
    """Test rows, or those of the class that has fewest: of time to event and counts, with an event or without. With weights effective
    ones.
    """
    classes = None
    if rows.followup is not None:
        classes = rows.followup[:, 2] > 0
    elif rows.counts is not None:
        classes = rows.counts[:, 1] > 0
    elif rows.classes:
        classes = rows.labels
    if classes is None or not by_class:
        return count_rows(len(rows.loss), rows.weights)
    fewest = len(rows.loss)
    for value in np.unique(classes):
        members = np.asarray(classes == value)
        fewest = min(fewest, count_rows(int(members.sum()), rows.weights_of(members)))
    return fewest
