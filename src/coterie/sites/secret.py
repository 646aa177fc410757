"""Noise under a site's key: who lacks the key can neither compute it nor, by asking for the same again, average it away.

The noise of what a site says about one model is a function of the key, of the request about that model (method, seed, round, task,
payload, model and recipe) and of the plain reply. So a repeated request has the same bytes, also for copies of a model in one request
or beside other models, and a reply that differs in one bit, or a request, has noise of its own. Neither the name of a run nor the
number of an ask, which the server chooses, enters it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.metric_names import BOUNDS
from coterie.contract.filters import Filter, Passage
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.sites.allowed import RefusedError

LARGEST_LOSS = 5.0
"""Of a row, where losses leave behind noise: a probability of .7% for what was right."""


def under_key(filters: Iterable[Filter], key: bytes, requests: tuple[str, ...]) -> tuple[Filter, ...]:
    """Return the same filters, whose secret noise is that of this key and, for each model that is asked about, of its own request."""
    return tuple(
        _SecretNoise(step.sigma, key=key, requests=requests)
        if isinstance(step, GaussianNoise) and step.secret
        else step
        for step in filters
    )


@dataclass(frozen=True)
class _SecretNoise(GaussianNoise):
    key: bytes = b""
    requests: tuple[str, ...] = ()

    def apply(self, rows: Tensor, passage: Passage) -> Tensor:
        """Rows [1, ..., d] of the site with noise of its own; [1, T, d] for T models: each with the noise of its model."""
        if len(self.requests) == 1:
            return self._noisy(rows, self.requests[0], passage)
        if rows.ndim < 3 or rows.shape[1] != len(self.requests):
            raise RefusedError(
                f"a reply about {len(self.requests)} models must say something of each, or noise cannot hide it"
            )
        each = [self._noisy(rows[:, t], request, passage) for t, request in enumerate(self.requests)]
        return torch.stack(each, dim=1)

    def _noisy(self, rows: Tensor, request: str, passage: Passage) -> Tensor:
        plain = rows.detach().cpu().contiguous()
        about = repr((request, passage.context.round, passage.task, passage.field, passage.position)).encode()
        stream = hmac.new(self.key, b"noise" + about + plain.numpy().tobytes(), hashlib.sha256).digest()
        noise = torch.from_numpy(_normal(stream, plain.numel())).reshape(plain.shape)
        return (plain.double() + self.sigma * noise).to(rows)


def blur_evaluation(
    values: dict[str, Any], metrics: Iterable[str], fewest: int, key: bytes, request: str
) -> dict[str, Any]:
    """Return loss and metrics of one site behind noise as large as what one row can move them; metrics without bounds are undefined.

    A server that chooses the models reads rows off exact losses as off updates: the loss of a steep model is a sum over few rows.

    Args:
        values: an `Evaluation` of one part, whose rows count with a loss of at most `LARGEST_LOSS`.
        metrics: their names.
        fewest: rows of the smallest class of the part; of all of it, where there are no classes.
        key: of the site.
        request: whose noise this is.
    """
    bounds = torch.tensor([BOUNDS.get(name, (-inf, inf)) for name in metrics], dtype=torch.float64).reshape(-1, 2)
    low, high = bounds.T
    plain = torch.cat([values["loss"], values["values"][0]])
    stream = hmac.new(key, b"evaluation" + request.encode() + plain.numpy().tobytes(), hashlib.sha256).digest()
    noise = torch.from_numpy(_normal(stream, len(plain)))
    loss = (values["loss"] + LARGEST_LOSS / values["rows"].clamp(min=1) * noise[0]).clamp(min=0)
    defined = values["defined"] & (high - low).isfinite()
    moved = values["values"] + (high - low) / max(1, fewest) * noise[1:]
    blurred = torch.where(defined, moved.clamp(low, high), 0.0)
    return {**values, "loss": loss.where(values["rows"] > 0, 0.0), "values": blurred, "defined": defined}


def _normal(stream: bytes, count: int) -> NDArray[np.float64]:
    """N(0, 1) [count] from the bytes that SHAKE-256 makes of `stream`, by the method of Box and Muller.

    Generators of torch and numpy will not do: the former has 32 bits of state that matter, and both tell the next number from the last.
    """
    half = -(-count // 2)
    bits = np.frombuffer(hashlib.shake_256(stream).digest(16 * half), dtype="<u8")
    uniform = (bits >> np.uint64(11)) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
