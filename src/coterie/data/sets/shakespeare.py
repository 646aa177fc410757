"""Shakespeare by role: next characters, one client for each role of a play, a natural partition.

Source: the plays are in the public domain; `roles/PLAY.jsonl` has one line per role with `play`, `role` and `text`,
made from github.com/martin-gorner/tensorflow-rnn-shakespeare (Apache-2.0). As in S. Caldas et al., "LEAF: A Benchmark
for Federated Settings", 2018, a client is a role. It is read from your disk and never ships.

A row is a segment of a role's text, and its labels are the characters that follow each of its own: inputs and labels
[rows, length]. Characters are numbered alike everywhere (newline 1, printable ASCII from 2, others as a question
mark), and 0 fills up a text that ends early; there labels are ignored by loss and accuracy. The first segments train,
the next ones test, so that no test character was seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, nearest
from coterie.base.loss import IGNORED
from coterie.config.data import Split
from coterie.config.rules import COUNT, SIZE
from coterie.data.sets import Dataset, find_folder
from coterie.data.tensors import from_tensors

CHARACTERS = ("padding", "newline", *map(chr, range(32, 127)))
MOST_TESTED = 40


def shakespeare(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    plays: Sequence[str] = (),
    minimum_characters: int = 3000,
    roles_per_play: int = 4,
    segments: int = 20,
    length: int = 80,
) -> Clients:
    """One client `PLAY-ROLE` for each of the largest roles, with inputs and labels int64 [rows, length].

    Args:
        seed: nothing depends on it.
        split: roles have their own parts, so there is nothing to set.
        folder: with `roles/PLAY.jsonl`; None looks below COTERIE_DATA.
        plays: names of files; empty: all of them.
        minimum_characters: roles with fewer are left out.
        roles_per_play: so many of the largest roles of each play.
        segments: training segments of each role, and up to 40 later ones are its test rows; 0: all but its last 40 train.
        length: characters of a segment.

    Raises:
        InputError: missing or broken files, an unknown play, or a setting that no role meets.
    """
    Split.parse(split, natural="shakespeare")
    for name, rule, value in (
        ("minimum_characters", SIZE, minimum_characters),
        ("roles_per_play", SIZE, roles_per_play),
        ("segments", COUNT, segments),
        ("length", SIZE, length),
    ):
        if not rule.test(value):
            raise InputError(f"shakespeare: {name} = {value!r} must be {rule.allowed}")
    where = find_folder("shakespeare", ("roles/*.jsonl",), folder) / "roles"
    available = sorted(path.stem for path in where.glob("*.jsonl"))
    for play in plays:
        if play not in available:
            raise InputError(
                f"shakespeare: there is no play {play!r} in {where}; {nearest(play, available)}"
            )
    clients: dict[str, Any] = {}
    for play in plays or available:
        texts = _roles(where / f"{play}.jsonl")
        largest = sorted(texts, key=lambda role: (-len(texts[role]), role))[
            :roles_per_play
        ]
        enough = max(minimum_characters, ((segments or MOST_TESTED) + 1) * length + 1)
        for role in (role for role in largest if len(texts[role]) >= enough):
            inputs, labels = _segments(texts[role], length)
            trained = segments or len(inputs) - MOST_TESTED
            parts = {
                "train": slice(0, trained),
                "test": slice(trained, trained + MOST_TESTED),
            }
            clients[f"{play}-{role}"] = {
                part: (inputs[rows], labels[rows]) for part, rows in parts.items()
            }
    if not clients:
        raise InputError(
            f"no role of {where} has {minimum_characters} characters; lower minimum_characters or segments"
        )
    return from_tensors(clients, name="shakespeare", classes=CHARACTERS)


def _segments(text: str, length: int) -> tuple[Tensor, Tensor]:
    """Segments of a text and the characters that follow, [rows, length] each."""
    numbers = torch.tensor([_number(character) for character in text])
    rows = -(-(len(numbers) - 1) // length)
    padded = torch.zeros(rows * length + 1, dtype=torch.int64)
    padded[: len(numbers)] = numbers
    inputs, labels = (
        padded[:-1].view(rows, length),
        padded[1:].view(rows, length).clone(),
    )
    return inputs, labels.masked_fill(labels == 0, IGNORED)


def _number(character: str) -> int:
    if character == "\n":
        return 1
    code = ord(character)
    return code - 30 if 32 <= code < 127 else ord("?") - 30


def _roles(path: Path) -> dict[str, str]:
    """The text of each role of a play."""
    texts = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            texts[str(entry["role"])] = str(entry["text"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {error}); copy it again"
        ) from error
    return texts


DATASET = Dataset(
    "Shakespeare by role: next characters, from your disk",
    "one for each of the largest roles of each play",
    "the next of 97 characters, at each of 80 positions",
    "public domain",
    shakespeare,
    {
        "folder": None,
        "plays": [],
        "minimum_characters": 3000,
        "roles_per_play": 4,
        "segments": 20,
        "length": 80,
    },
)
