"""A perceptron with batch norm, for methods that keep layers which normalise at clients: `experiments/batch_norm.py:perceptron`."""

from __future__ import annotations

from torch import nn

WIDTH = 32


def perceptron(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """One hidden layer of 32 units, normalised before ReLU, for rows of numbers."""
    return nn.Sequential(
        nn.Linear(shape[0], WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, outputs),
    )
