"""Six plays by role: `experiments/shakespeare.py:play`, where the seed chooses the play whose roles are the internal clients.

With six seeds every play is the internal one once, as in VaRSeL's Table 3, so that a comparison over seeds is paired by play.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.rows import Part
from coterie.data.sets import find_folder

PLAYS = (
    "1kinghenryiv",
    "allswellthatendswell",
    "kinglear",
    "muchadoaboutnothing",
    "periclesprinceoftyre",
    "tamingoftheshrew",
)


def play(*, seed: int, folder: str | None = None, segments: int = 20) -> Clients:
    """The four largest roles of each play; those of play number `seed` (modulo 6) are called `internal-ROLE`.

    Args:
        seed: number of the play in `PLAYS`.
        folder: with `roles/PLAY.jsonl`; None looks below COTERIE_DATA.
        segments: training segments of each role; 0: all but its last 40, which are its test rows.
    """
    return _roles(PLAYS, PLAYS[seed % len(PLAYS)], folder, segments)


def unjudged(*, seed: int, folder: str | None = None, segments: int = 20) -> Clients:
    """The same of six other plays, on which rates are chosen: number `seed` (modulo 31) by alphabet, which is internal, and the next.

    Args:
        seed: number of the internal play among the others.
        folder: with `all_plays_roles.jsonl.gz`; None looks below COTERIE_DATA.
        segments: as of `play`.
    """
    archive = (
        find_folder("shakespeare", ("all_plays_roles.jsonl.gz",), folder)
        / "all_plays_roles.jsonl.gz"
    )
    lines: dict[str, list[str]] = {}
    with gzip.open(archive, "rt", encoding="utf-8") as file:
        for line in file:
            lines.setdefault(json.loads(line)["play"], []).append(line)
    others = sorted(lines.keys() - set(PLAYS))
    chosen = [others[(seed + i) % len(others)] for i in range(len(PLAYS))]
    with tempfile.TemporaryDirectory() as unpacked:
        roles = Path(unpacked) / "roles"
        roles.mkdir()
        for name in chosen:
            (roles / f"{name}.jsonl").write_text("".join(lines[name]), encoding="utf-8")
        return _roles(chosen, chosen[0], unpacked, segments)


def ceiling(*, seed: int, folder: str | None = None, segments: int = 20) -> Clients:
    """The internal roles alone, each with the training rows of all roles."""
    clients = play(seed=seed, folder=folder, segments=segments)
    pairs = [_pair(client.train) for client in clients]
    everything = tuple(torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    named = {
        c.name: {**_parts(c), "train": everything}
        for c in clients
        if c.name.startswith("internal-")
    }
    return ct.data.from_tensors(named, name="shakespeare", classes=clients.classes)


def _roles(
    plays: Sequence[str], internal: str, folder: str | None, segments: int
) -> Clients:
    roles = ct.data.load(
        "shakespeare", plays=list(plays), folder=folder, segments=segments
    )
    named = {
        client.name.replace(f"{internal}-", "internal-"): _parts(client)
        for client in roles
    }
    return ct.data.from_tensors(named, name="shakespeare", classes=roles.classes)


def _parts(client: Client) -> dict[str, Any]:
    return {name: _pair(part) for name, part in client.parts()}


def _pair(part: Part) -> tuple[Any, Any]:
    return part.inputs, part.labels
