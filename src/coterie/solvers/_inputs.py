"""Arguments of solvers: taken to float64, checked, and back to the caller's dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Values: TypeAlias = Tensor | npt.NDArray[Any] | Sequence[Any]

# Shares that went through float32 miss 1 by about 1e-6; shares typed by hand with three digits miss it by 1e-3.
SUM_TOLERANCE = 1e-5


class NotFiniteError(ValueError):
    """NaN or Inf in an argument, or a result that overflows.

    >>> import torch
    >>> from coterie.solvers import simplex
    >>> simplex.project(torch.tensor([0.2, torch.nan]))
    Traceback (most recent call last):
    coterie.solvers._inputs.NotFiniteError: v must be finite; got 1 NaN or Inf among 2 values
    """


def as_double(values: Values, name: str, *, ndim: int) -> Tensor:
    """A float64 tensor of `ndim` dimensions without NaN or Inf (`NotFiniteError`), detached, or a `ValueError` that names `name`."""
    kind = {1: "a vector [n]", 2: "a matrix [rows, columns]"}[ndim]
    try:
        if isinstance(values, Tensor):
            tensor = values.detach().to(torch.float64)
        elif (
            isinstance(values, (list, tuple))
            and values
            and all(isinstance(row, Tensor) for row in values)
        ):
            tensor = torch.stack([row.detach().to(torch.float64) for row in values])
        else:
            # A copy, because torch warns about arrays that it may not write to.
            tensor = torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} must be {kind} of numbers; got {type(values).__name__} ({error})"
        ) from error
    if tensor.ndim != ndim:
        raise ValueError(f"{name} must be {kind}; got shape {list(tensor.shape)}")
    # The largest size is NaN or Inf if any entry is; unlike isfinite this allocates nothing.
    largest = 0.0
    if tensor.numel() > 0:
        largest = float(torch.linalg.vector_norm(tensor, math.inf))
    if not math.isfinite(largest):
        count = int((~torch.isfinite(tensor)).sum())
        raise NotFiniteError(
            f"{name} must be finite; got {count} NaN or Inf among {tensor.numel()} values"
        )
    return tensor


def as_not_negative(values: Values, name: str) -> Tensor:
    """A float64 vector of n >= 1 entries >= 0."""
    tensor = as_double(values, name, ndim=1)
    if tensor.numel() == 0:
        raise ValueError(f"{name} must have at least one entry; got none")
    if float(tensor.min()) < 0:
        raise ValueError(
            f"{name} must be >= 0 everywhere; got {float(tensor.min()):.6g}"
        )
    return tensor


def as_distribution(values: Values, name: str) -> Tensor:
    """A float64 vector of n >= 1 entries >= 0 with sum 1."""
    tensor = as_not_negative(values, name)
    total = float(tensor.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise ValueError(f"{name} must sum to 1; got a sum of {total:.6g}")
    return tensor


def as_distributions(values: Values, name: str) -> tuple[Tensor, bool]:
    """One distribution [n] or several [T, n] as a float64 matrix, and whether it was one."""
    is_single = not (isinstance(values, (Tensor, np.ndarray)) and values.ndim == 2)
    if is_single:
        return as_distribution(values, name)[None], True
    rows = as_double(values, name, ndim=2)
    if rows.shape[0] == 0:
        raise ValueError(f"{name} must have at least one row; got none")
    return torch.stack([as_distribution(row, name) for row in rows]), False


def as_number(
    value: Any,
    name: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> float:
    """A finite float with `least <= value <= most` and `value > above`."""
    limits = ((">=", least), (">", above), ("<=", most))
    conditions = [f"{sign} {x:g}" for sign, x in limits if math.isfinite(x)]
    allowed = f"a finite number {' and '.join(conditions)}".rstrip()
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be {allowed}; got {value!r}")
    number = float(value)
    if not (math.isfinite(number) and least <= number <= most and number > above):
        raise ValueError(f"{name} must be {allowed}; got {number!r}")
    return number


def as_count(value: Any, name: str, *, least: int) -> int:
    """An int with `value >= least`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or value < least
    ):
        raise ValueError(f"{name} must be an integer >= {least}; got {value!r}")
    return int(value)


def dtype_of(values: object) -> torch.dtype:
    """The dtype of the answer to `values`: its own if it is a floating-point tensor, otherwise float64."""
    if isinstance(values, Tensor) and values.is_floating_point():
        return values.dtype
    return torch.float64
