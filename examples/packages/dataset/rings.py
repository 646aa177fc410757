"""Rings of points in the plane: the inner and the outer one are two classes, and each client sees its own arc.

Made by a random generator from the seed. Clients differ in their inputs, not in the rule: one model fits all of them, and a linear one
fits each client but not their union.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

import coterie as ct


def rings(
    *,
    seed: int = 0,
    split: Mapping[str, Any] | None = None,
    clients: int = 4,
    rows: int = 60,
) -> ct.Clients:
    """Return clients with `rows` points each, on arcs that follow each other; inputs [rows, 2], labels inner (0) and outer (1)."""
    arcs = {}
    for number in range(clients):
        stream = torch.Generator().manual_seed(1000 * seed + number)
        angle = 2 * math.pi / clients * (number + torch.rand(rows, generator=stream))
        labels = torch.arange(rows) % 2
        radius = 1 + labels + 0.15 * torch.randn(rows, generator=stream)
        arcs[f"arc-{number + 1}"] = (
            torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1),
            labels,
        )
    return ct.data.from_tensors(
        arcs, seed=seed, split=split, name="rings", classes=["inner", "outer"]
    )


RINGS = ct.data.Dataset(
    "two rings of points in the plane, made by a random generator",
    "4, each with an arc of both rings",
    "2 classes",
    "none needed",
    rings,
    {"clients": 4, "rows": 60},
)
