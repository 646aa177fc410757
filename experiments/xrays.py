"""Chest X-rays at a target, seen differently at two related clients, among four with clothes: `experiments/xrays.py:xrays`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import coterie as ct
from coterie.base.clients import Clients
from coterie.data.sets import find_folder
from coterie.data.sets.fashion_mnist import fashion_mnist
from coterie.data.sets.medmnist import read_npz
from coterie.data.splits import generator

OWN, HELD, OTHERS = 150, 60, 1500


def xrays(*, seed: int) -> Clients:
    """Inputs float32 [rows, 28, 28] in [0, 1], two classes; only the target validates and is tested, on the official test set."""
    own, turned, pale, target = _images(seed)
    related = {
        "related-turned": (turned[0].rot90(1, (1, 2)).contiguous(), turned[1]),
        "related-pale": (0.6 * pale[0] + 0.3, pale[1]),
    }
    clients = {name: {"train": rows} for name, rows in related.items()}
    return _named({"target": {"train": own, **target}, **clients, **_clothes(seed)})


def ceiling(*, seed: int) -> Clients:
    """The target, and the related clients, who see their images as it does."""
    own, first, second, target = _images(seed)
    return _named(
        {
            "target": {"train": own, **target},
            "related-0": {"train": first},
            "related-1": {"train": second},
        }
    )


def _named(clients: dict[str, Any]) -> Clients:
    return ct.data.from_tensors(clients, name="xrays", classes=("normal", "pneumonia"))


Rows = tuple[Tensor, Tensor]
"""Images and classes."""


def _images(seed: int) -> tuple[Rows, Rows, Rows, dict[str, Rows]]:
    """Training rows of the target and of both related clients, all as the target sees them; its other parts by name."""
    sets = read_npz(
        find_folder("pneumoniamnist", ("pneumoniamnist.npz",), None)
        / "pneumoniamnist.npz"
    )
    images, labels = (torch.from_numpy(array) for array in sets["train"])
    order = torch.from_numpy(generator(seed, "xrays").permutation(len(labels)))
    parts = order.split(
        [OWN, HELD, OTHERS, OTHERS, len(order) - OWN - HELD - 2 * OTHERS]
    )[:4]
    own, held, turned, pale = (
        (images[rows].float() / 255, labels[rows]) for rows in parts
    )
    test_images, test_labels = (torch.from_numpy(array) for array in sets["test"])
    return (
        own,
        turned,
        pale,
        {"validation": held, "test": (test_images.float() / 255, test_labels)},
    )


def _clothes(seed: int) -> dict[str, Any]:
    """Four clients with 1,500 images of two classes of Fashion-MNIST each, called 0 and 1."""
    rows = fashion_mnist(
        split={"kind": "iid", "clients": 1, "parts": {"train": 1}, "seed": 0}
    )[0].train
    clients = {}
    for i in range(4):
        known = torch.nonzero(
            (rows.labels == 2 * i) | (rows.labels == 2 * i + 1)
        ).flatten()
        drawn = known[
            torch.from_numpy(
                generator(seed, "clothes", str(i)).permutation(len(known))[:OTHERS]
            )
        ]
        chosen = rows.select(drawn)
        clients[f"other-{i}"] = {
            "train": (chosen.inputs.float() / 255, chosen.labels - 2 * i)
        }
    return clients
