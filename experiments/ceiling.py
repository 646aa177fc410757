"""What perfect help would reach: `[data] name = "experiments/ceiling.py:internal_classes"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.data.dealing import label_mix

INTERNAL = ("client-00", "client-01")


def internal_classes(
    *, seed: int, split: Mapping[str, Any], source: str = "fashion-mnist"
) -> Clients:
    """The two internal clients, each with the rows that all clients have of their classes, in their shares, and its own test rows."""
    clients = ct.data.load(source, seed=seed, split=split)
    pooled = clients.pool_training_rows()
    internal = [clients[clients.names.index(name)] for name in INTERNAL]
    own = torch.cat([client.train.labels for client in internal]).numpy()
    known = np.flatnonzero(np.isin(pooled.labels.numpy(), np.unique(own)))
    chosen = known[
        label_mix(own, pooled.labels.numpy()[known], seed=seed, name="ceiling")
    ]
    rows = pooled.select(torch.from_numpy(chosen))
    made = [Client(client.name, rows, None, client.test) for client in internal]
    return Clients(made, name=source, classes=clients.classes)
