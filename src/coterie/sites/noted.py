"""Losses and outputs of a run's models on the test rows of a site: kept there, and told as errors of differences alone."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import numpy as np
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.files import write_atomically
from coterie.compute.outcomes import CONSTANT, Rows, error_by_resampling, pair_influences, student
from coterie.compute.workspace import Workspace
from coterie.contract.wire import decode, encode
from coterie.sites.allowed import RefusedError
from coterie.study.row_outcomes import of_rows

__all__ = ["Noted"]


class Noted:
    """Losses and outputs of the models of one run on the test rows of this site, as the cohort of the tasks of `sites.paired`.

    Args:
        folder: of the run; a file for each method and seed.
        seeds: of the plan; a difference is told if all of them are there.
        least: test rows, and rows of each class, under which nothing is told.
        key: of the site.
        now: method and seed that run now, the client and its model; None where nothing can be noted.
    """

    def __init__(
        self,
        folder: Path,
        seeds: tuple[int, ...],
        least: int,
        key: bytes,
        now: tuple[str, Clients, Workspace] | None = None,
    ) -> None:
        self._folder, self._seeds, self._least, self._key, self._now = folder, seeds, least, key, now

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
        content = encode(of_rows(workspace, client, client.train.labels, scale))
        path = self._file(pair)
        if path.exists() and path.read_bytes() != content:
            raise RefusedError(f"another model of {pair[:40]} was noted before in this run")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda p: p.write_bytes(content))
        return True

    def error(self, method: str, other: str, metric: str) -> tuple[float, float] | None:
        """Standard error and p value of `method` minus `other`, mean over seeds; None if nothing may be said."""
        constant = other == CONSTANT
        rows_of_method = self._rows(method)
        rows_of_reference = rows_of_method if constant else self._rows(other)
        by_class = metric == "auc" or constant
        if any(
            _fewest(rows, by_class) < self._least for rows in (*rows_of_method.values(), *rows_of_reference.values())
        ):
            return None
        pairs = pair_influences(rows_of_method, rows_of_reference, metric, constant=constant)
        if len(pairs) < len(self._seeds):
            return None
        a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        differences = np.concatenate([mine.values - reference.values for mine, reference in pairs])
        digest = hmac.new(self._key, differences.tobytes(), hashlib.sha256).digest()
        resampled = error_by_resampling(a, b, np.random.default_rng(int.from_bytes(digest, "little")))
        if resampled is None:
            return None
        mean = float(np.mean([mine.metric - reference.metric for mine, reference in pairs]))
        return resampled.error, student(mean if abs(mean) > 1e-12 else 0.0, resampled)[1]

    def _file(self, pair: str) -> Path:
        return self._folder / f"{hashlib.blake2b(pair.encode(), digest_size=12).hexdigest()}-outcomes.safetensors"

    def _rows(self, method: str) -> dict[int, Rows]:
        files = {seed: self._file(f"{method}-{seed}") for seed in self._seeds}
        return {seed: _read(path) for seed, path in files.items() if path.exists()}


def _read(path: Path) -> Rows:
    arrays = {key: value.numpy() for key, value in decode(path.read_bytes()).items()}
    return Rows(
        arrays["numbers"],
        arrays["loss"],
        arrays["constant_loss"],
        arrays.get("labels"),
        arrays.get("outputs"),
        patients=arrays.get("patients"),
    )


def _fewest(rows: Rows, by_class: bool) -> int:
    """Test rows, or those of the class that has fewest."""
    if rows.labels is None or not (by_class and rows.classes):
        return len(rows.loss)
    return int(np.unique(rows.labels, return_counts=True)[1].min())
