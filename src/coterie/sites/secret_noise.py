"""Noise under a site's key: who lacks the key can neither compute it nor, by asking for the same again, average it away.

The noise of what a site says about one model is a function of the key, of the request about that model (method, seed, round, task,
payload, model and recipe) and of the plain reply. So a repeated request has the same bytes, also for copies of a model in one request
or beside other models, and a reply that differs in one bit, or a request, has noise of its own. Neither the name of a run nor the
number of an ask, which the server chooses, enters it. The key lies beside the log that counts what was told under it.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.files import write_atomically
from coterie.base.metric_names import BOUNDS
from coterie.compute.discrete_gaussian import DrawWords
from coterie.compute.outcomes import RowError, student
from coterie.compute.row_noise import FINENESS, to_grid
from coterie.contract.filters import Filter, Passage
from coterie.contract.task import find_task
from coterie.filters.clip import Clip
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.sites.allowed import RefusedError
from coterie.sites.comparisons import Paired
from coterie.sites.minima import fewest_of

KEY_BYTES = 32
LARGEST_LOSS = 5.0
"""Of a row, where losses leave behind noise: a probability of .7% for what was right."""
OF_PREDICTED = ("ppv", "npv", "c_index")
"""Metrics of the rows that a model calls one class, and of pairs: whoever chooses the model chooses how few those are."""


def key_file(log: Path) -> Path:
    """Return where a site's key lies: beside its log, since only together they say which noise was told before."""
    return log.with_name(f"{log.name}.key")


def site_key(log: Path) -> bytes:
    """The key of a site's fingerprints and noise, made when it is first needed; who lacks it cannot guess rows from their hash.

    Args:
        log: the log that counts what is told under this key.

    Raises `InputError` for a file that is no such key: with an empty one everybody could guess.
    """
    path = key_file(log)
    if not path.exists():
        _write_key(path, os.urandom(KEY_BYTES))
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        cure = "restore it, or remove it for a new one: runs so far cannot be resumed then, and what is asked again costs again"
        raise InputError(
            f"{path} has {len(key)} bytes, and a site's key has {KEY_BYTES}; {cure}"
        )
    return key


def move_key(kit: Path, log: Path) -> bool:
    """Move the key of a kit that was made before keys lay beside their log; returns whether there was one to move.

    A key beside the log stays: what the log has told is told under that one.
    """
    old, new = kit / "coterie" / "key", key_file(log)
    if not old.is_file() or new.exists():
        return False
    _write_key(new, old.read_bytes())
    old.unlink()
    return True


def _write_key(path: Path, key: bytes) -> None:
    """Write a key for its owner alone; one that another process has written meanwhile stays."""

    def write(temporary: Path) -> None:
        temporary.touch(0o600)
        temporary.write_bytes(key)

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write, durable=True, once=True)


def is_told_behind_noise(metric: str) -> bool:
    """Return True for the loss and the metrics that noise can hide: those that one row can move only so far."""
    if metric == "loss":
        return True
    low, high = BOUNDS.get(metric, (-inf, inf))
    return metric not in OF_PREDICTED and isfinite(high - low)


def under_key(
    filters: Iterable[Filter], key: bytes, requests: tuple[str, ...]
) -> tuple[Filter, ...]:
    """Return the same filters, whose secret noise is that of this key and, for each model that is asked about, of its own request.

    What secret noise is to hide is made finite before, since noise hides no NaN.
    """
    every = tuple(filters)
    hides = any(isinstance(step, GaussianNoise) and step.secret for step in every)

    def at_site(step: Filter) -> Filter:
        if isinstance(step, GaussianNoise) and step.secret:
            return _SecretNoise(step.sigma, key=key, requests=requests)
        return _FiniteClip(step.bound) if hides and isinstance(step, Clip) else step

    return tuple(map(at_site, every))


@dataclass(frozen=True)
class _FiniteClip(Clip):
    def apply(self, rows: Tensor, passage: Passage) -> Tensor:
        """Rows as `Clip` makes them, 0 for one with NaN or Inf: that would tell that there is a row with which a sum overflows."""
        return super().apply(
            torch.where(rows.isfinite().all(-1, keepdim=True), rows, 0.0), passage
        )


@dataclass(frozen=True)
class _SecretNoise(GaussianNoise):
    key: bytes = b""
    requests: tuple[str, ...] = ()

    def apply(self, rows: Tensor, passage: Passage) -> Tensor:
        """Rows [1, ..., d] of the site with noise of its own; [1, T, d] for T models: each with the noise of its model."""
        if len(self.requests) == 1:
            return self._noisy(rows, self.requests[0], passage)
        if rows.ndim == 2 and "choice" in find_task(passage.task).kinds.values():
            # About one model, whichever others come with it: were those in the noise, they would give it many draws.
            return self._noisy(rows, "", passage)
        if rows.ndim < 3 or rows.shape[1] != len(self.requests):
            raise RefusedError(
                f"a reply about {len(self.requests)} models must say something of each, or noise cannot hide it"
            )
        noisy = [
            self._noisy(rows[:, t], request, passage)
            for t, request in enumerate(self.requests)
        ]
        return torch.stack(noisy, dim=1)

    def _noisy(self, rows: Tensor, request: str, passage: Passage) -> Tensor:
        plain = rows.detach().cpu().contiguous()
        name = repr(
            (
                request,
                passage.context.round,
                passage.task,
                passage.field,
                passage.position,
            )
        ).encode()
        stream = hmac.new(
            self.key, b"noise" + name + plain.numpy().tobytes(), hashlib.sha256
        ).digest()
        noise = torch.from_numpy(_normal(stream, plain.numel())).reshape(plain.shape)
        return (plain.double() + self.sigma * noise).to(rows)


class KeyedVeil:
    """Losses and metrics behind noise as large as what one row can move them; metrics without bounds are not told.

    A server that chooses the models reads rows off exact losses as off updates: the loss of a steep model is a sum over few rows. The
    noise is a function of the key, of the model and of what it hides, so that the same model has the same noise in every request.

    Args:
        key: of the site.
        multiplier: deviation of the noise, in units of what one row can move a number.
    """

    def __init__(self, key: bytes, multiplier: float = 1.0) -> None:
        self._key, self._multiplier = key, multiplier

    def bound_losses(self, losses: Tensor) -> Tensor:
        """Return losses of at most `LARGEST_LOSS` each, on either side of 0; one that is not a number becomes that."""
        return losses.nan_to_num(nan=LARGEST_LOSS).clamp(-LARGEST_LOSS, LARGEST_LOSS)

    def loss(self, mean: float, rows: int, x: Tensor) -> float:
        """Return the mean loss of model x [d + b] over so many rows with noise, not below 0."""
        return self.metric("loss", mean, self.reach("loss", rows, rows), x)

    def evaluation(
        self, values: Mapping[str, float], labels: Tensor, x: Tensor
    ) -> dict[str, float]:
        """Return `loss` and metrics of model x [d + b] on rows with these labels with noise; NaN for those of which nothing is told."""
        fewest = fewest_of(labels)
        return {
            name: self.metric(name, value, self.reach(name, len(labels), fewest), x)
            for name, value in values.items()
        }

    def reach(self, name: str, rows: int, fewest: int) -> float:
        """Return how far one row can move the loss or a metric of so many rows, of which the rarest class has `fewest`; may be inf."""
        if name == "loss":
            return LARGEST_LOSS / max(1, rows)
        if not is_told_behind_noise(name):
            return inf
        low, high = BOUNDS[name]
        # A row that a model calls positive counts twice in f1, and at the head of all rows in the precision at each row of its class.
        times = {"f1": 2.0, "auprc": 1 + math.log1p(fewest)}.get(name, 1.0)
        return times * (high - low) / max(1, fewest)

    def metric(self, name: str, value: float, reach: float, model: Tensor) -> float:
        """Return the loss or a metric, which one row can move by `reach`, with noise that follows from `model`; NaN if that is not
        finite.
        """
        low, high = BOUNDS.get(name, (-inf, inf))
        if name == "loss":
            low, high = 0.0, inf
        sigma = self._multiplier * reach
        noisy = value + sigma * self._noise(name, value, model)
        if not isfinite(noisy):
            return nan
        # Noise may lead out of the metric's range. To cut there is post-processing, which tells nothing more of a row.
        return min(high, max(low, noisy))

    def comparison(
        self,
        exact: Paired,
        freedom: float,
        name: str,
        reach: float,
        method: Tensor,
        reference: Tensor,
    ) -> Paired:
        """Return a comparison with noise: both metrics are hidden as in an evaluation, and the error covers that.

        Args:
            exact: as the rows say.
            freedom: degrees of freedom of the error.
            name: of the metric.
            reach: how far one row can move it.
            method: what the noise of one metric follows from: the outcomes of rows, of any form.
            reference: the same of the other.
        """
        value = self.metric(name, exact.value, reach, method)
        gap = value - self.metric(name, exact.value - exact.gap, reach, reference)
        # One row moves the square of the error as far, too. What is told is never less than the error of `gap`.
        widened = 1 + abs(
            self._noise(f"{name} error", exact.error, torch.cat([method, reference]))
        )
        sigma = self._multiplier * reach
        error = math.hypot(exact.error, sigma * math.sqrt(2 * widened))
        return Paired(error, student(gap, RowError(error, freedom))[1], gap, value)

    def _noise(self, name: str, value: float, model: Tensor) -> float:
        content = (
            repr((name, value)).encode()
            + model.detach().cpu().contiguous().numpy().tobytes()
        )
        return float(
            _normal(hmac.new(self._key, b"told" + content, hashlib.sha256).digest(), 1)[
                0
            ]
        )


class SparingVeil(KeyedVeil):
    """Tells of an evaluation what `[privacy] tell` names: where rows are hidden in training, all else that a model says of them stays.

    Args:
        key: of the site.
        multiplier: deviation of the noise, in units of what one row can move a number.
        tell: the loss and metrics that are told.
    """

    def __init__(
        self, key: bytes, multiplier: float = 1.0, tell: tuple[str, ...] = ()
    ) -> None:
        super().__init__(key, multiplier)
        self._tell = tell

    def loss(self, mean: float, rows: int, x: Tensor) -> float:
        """Return NaN: what a method asks of losses is not told, only evaluations are."""
        return nan

    def metric(self, name: str, value: float, reach: float, model: Tensor) -> float:
        """Return the loss or a metric with noise; NaN for one that is not told.

        The noisy number lies on a grid, as `compute.row_noise.to_grid` says. A loss is never 0, which stands for one that is not told.
        """
        sigma = self._multiplier * reach
        if name not in self._tell or not isfinite(value) or not isfinite(sigma):
            return nan
        noisy = value + sigma * self._noise(name, value, model)
        on_grid = float(to_grid(torch.tensor([noisy], dtype=torch.float64), sigma))
        if name == "loss":
            return max(sigma * 2.0**-FINENESS, on_grid)
        low, high = BOUNDS[name]
        return min(high, max(low, on_grid))


def keyed_normal(key: bytes, content: bytes, count: int) -> NDArray[np.float64]:
    """N(0, 1) [count] that follows from a site's key and some content: the same is told again with the same noise."""
    stream = hmac.new(key, b"row noise" + content, hashlib.sha256).digest()
    return _normal(stream, count)


def keyed_words(key: bytes, content: bytes) -> DrawWords:
    """Return a source of random words of 64 bits that follows from a site's key and some content; each word comes once."""
    stream = hmac.new(key, b"noise of a sum" + content, hashlib.sha256).digest()
    blocks = itertools.count()

    def draw(count: int) -> NDArray[np.uint64]:
        block = stream + next(blocks).to_bytes(8, "little")
        digest = hashlib.shake_256(block).digest(8 * count)
        return np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    return draw


def _normal(stream: bytes, count: int) -> NDArray[np.float64]:
    """N(0, 1) [count] from the bytes that SHAKE-256 makes of `stream`, by the method of Box and Muller.

    Generators of torch and numpy will not do: the former has 32 bits of state that matter, and both tell the next number from the last.
    """
    pairs = (count + 1) // 2
    digest = hashlib.shake_256(stream).digest(2 * 8 * pairs)
    bits = np.frombuffer(digest, dtype="<u8")
    # A double has 53 bits: the upper ones of 64, as a number in [0, 1).
    uniform = (bits >> np.uint64(11)) * 2.0**-53
    radius = np.sqrt(-2 * np.log1p(-uniform[:pairs]))
    angle = 2 * np.pi * uniform[pairs:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return normal[:count]
