"""Scikit-learn's digits: 1,797 images of 8 x 8, each a row of 64 numbers, embedded in that package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from coterie.base.clients import Clients
from coterie.base.errors import explain_imports
from coterie.config.data import DEFAULT_PARTS, Split
from coterie.data.sets import Dataset
from coterie.data.tensors import split_over

DEFAULT_SPLIT: Mapping[str, Any] = {"kind": "dirichlet", "alpha": 0.5, "clients": 10}


def digits(*, seed: int = 0, split: Split | Mapping[str, Any] | None = None) -> Clients:
    """Ten classes, inputs float32 [rows, 64] from 0 to 1; by default 10 clients with Dirichlet(.5) shares of classes."""
    with explain_imports("the digits need scikit-learn", "data"):
        from sklearn.datasets import load_digits
    rule = Split.parse(split, **DEFAULT_SPLIT)
    images, labels = load_digits(return_X_y=True)
    return split_over(
        torch.from_numpy((images / 16).astype(np.float32)),
        labels.astype(np.int64),
        rule,
        seed=seed,
        name="digits",
        classes=[str(d) for d in range(10)],
    )


DATASET = Dataset(
    "scikit-learn's handwritten digits: 1,797 images, each 64 numbers (8 x 8)",
    "10, Dirichlet(.5) shares of the classes",
    "10 classes",
    "CC BY 4.0",
    digits,
    {"split": {**DEFAULT_SPLIT, "parts": dict(DEFAULT_PARTS)}},
)
