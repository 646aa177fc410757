"""Six plays by role: `experiments/shakespeare.py:play`, where the seed chooses the play whose roles are the internal clients.

With six seeds every play is the internal one once, as in VaRSeL's Table 3, so that a comparison over seeds is paired by play.
"""

from __future__ import annotations

from typing import Any

import torch

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.rows import Part

PLAYS = (
    "1kinghenryiv",
    "allswellthatendswell",
    "kinglear",
    "muchadoaboutnothing",
    "periclesprinceoftyre",
    "tamingoftheshrew",
)


def play(*, seed: int, folder: str | None = None) -> Clients:
    """The four largest roles of each play; those of play number `seed` (modulo 6) are called `internal-ROLE`.

    Args:
        seed: number of the play in `PLAYS`.
        folder: with `roles/PLAY.jsonl`; None looks below COTERIE_DATA.
    """
    roles = ct.data.load("shakespeare", plays=list(PLAYS), folder=folder)
    own = f"{PLAYS[seed % len(PLAYS)]}-"
    named = {client.name.replace(own, "internal-"): _parts(client) for client in roles}
    return ct.data.from_tensors(named, name="shakespeare", classes=roles.classes)


def ceiling(*, seed: int, folder: str | None = None) -> Clients:
    """The internal roles alone, each with the training rows of all roles."""
    clients = play(seed=seed, folder=folder)
    pairs = [_pair(client.train) for client in clients]
    everything = tuple(torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    named = {c.name: {**_parts(c), "train": everything} for c in clients if c.name.startswith("internal-")}
    return ct.data.from_tensors(named, name="shakespeare", classes=clients.classes)


def _parts(client: Client) -> dict[str, Any]:
    return {name: _pair(part) for name, part in client.parts()}


def _pair(part: Part) -> tuple[Any, Any]:
    return part.inputs, part.labels
