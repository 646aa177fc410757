"""Chest X-rays at a target, seen differently at two related clients, among four with clothes: `experiments/xrays.py:xrays`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import coterie as ct
from coterie.core.clients import Clients
from coterie.data.sets.fashion_mnist import fashion_mnist
from coterie.data.sets.medmnist import read_npz
from coterie.data.sets.where import find_folder
from coterie.data.splits import generator

OWN, HELD, OTHERS = 150, 60, 1500


def xrays(*, seed: int) -> Clients:
    """Inputs float32 [rows, 28, 28] in [0, 1], two classes; only the target validates and is tested, on the official test set."""
    sets = read_npz(find_folder("pneumoniamnist", ("pneumoniamnist.npz",), None) / "pneumoniamnist.npz")
    images, labels = (torch.from_numpy(array) for array in sets["train"])
    order = torch.from_numpy(generator(seed, "xrays").permutation(len(labels)))
    own, held, turned, pale = order.split([OWN, HELD, OTHERS, OTHERS, len(order) - OWN - HELD - 2 * OTHERS])[:4]
    test_images, test_labels = (torch.from_numpy(array) for array in sets["test"])

    def part(rows: Tensor) -> tuple[Tensor, Tensor]:
        return images[rows].float() / 255, labels[rows]

    def changed(rows: Tensor, change: Any) -> dict[str, Any]:
        inputs, classes = part(rows)
        return {"train": (change(inputs), classes)}

    target = {"train": part(own), "validation": part(held), "test": (test_images.float() / 255, test_labels)}
    related = {
        "related-turned": changed(turned, lambda x: x.rot90(1, (1, 2)).contiguous()),
        "related-pale": changed(pale, lambda x: 0.6 * x + 0.3),
    }
    return ct.data.from_tensors(
        {"target": target, **related, **_clothes(seed)}, name="xrays", classes=("normal", "pneumonia")
    )


def _clothes(seed: int) -> dict[str, Any]:
    """Four clients with 1,500 images of two classes of Fashion-MNIST each, called 0 and 1."""
    rows = fashion_mnist(split={"kind": "iid", "clients": 1, "parts": {"train": 1}, "seed": 0})[0].train
    clients = {}
    for i in range(4):
        known = torch.nonzero((rows.labels == 2 * i) | (rows.labels == 2 * i + 1)).flatten()
        drawn = known[torch.from_numpy(generator(seed, "clothes", str(i)).permutation(len(known))[:OTHERS])]
        chosen = rows.select(drawn)
        clients[f"other-{i}"] = {"train": (chosen.inputs.float() / 255, chosen.labels - 2 * i)}
    return clients
