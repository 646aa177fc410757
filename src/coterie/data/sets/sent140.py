"""Sent140: is a tweet happy? One client for each user, a natural partition, as hashed bags of words.

Source: A. Go, R. Bhayani, L. Huang, "Twitter Sentiment Classification using Distant Supervision", 2009, by user as in
LEAF (S. Caldas et al., 2018). The tweets have no clear licence; the data are read from your disk and never ship:
`sent140.csv`, with the columns `user`, `text` and `sentiment` (0 unhappy, 1 or 4 happy).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.config.data import DEFAULT_PARTS, Split
from coterie.config.rules import SIZE
from coterie.data.sets import Dataset, find_folder, hash_words
from coterie.data.tensors import from_tensors

_SENTIMENTS = {"0": 0, "1": 1, "4": 1}


def sent140(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    minimum: int = 50,
    features: int = 2048,
) -> Clients:
    """Two classes, inputs float32 [rows, features]; users with fewer than `minimum` tweets are left out.

    Args:
        seed: seed of the parts.
        split: `seed` and `parts` of the [split] table.
        folder: with sent140.csv; None looks below COTERIE_DATA.
        minimum: smallest number of tweets of a user.
        features: length of the hashed bag of words.

    Raises:
        InputError: a missing or broken file, or no user with enough tweets.
    """
    Split.parse(split, natural="sent140")
    for name, value in (("minimum", minimum), ("features", features)):
        if not SIZE.test(value):
            raise InputError(f"sent140: {name} = {value!r} must be an int > 0")
    path = find_folder("sent140", ("sent140.csv",), folder) / "sent140.csv"
    tweets: dict[str, list[tuple[str, int]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                label = _SENTIMENTS.get(row.get("sentiment") or "")
                complete = (
                    label is not None
                    and bool(row.get("user"))
                    and row.get("text") is not None
                )
                if not complete:
                    raise InputError(
                        f"{path}, line {number}: expected user, text and sentiment 0, 1 or 4; copy the file again"
                    )
                tweets.setdefault(row["user"], []).append((row["text"], label or 0))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}); copy it again"
        ) from error
    clients = {}
    for user, of_user in tweets.items():
        if len(of_user) >= minimum:
            words = hash_words([text for text, _ in of_user], features)
            clients[user] = words, torch.tensor([label for _, label in of_user])
    if not clients:
        raise InputError(f"no user of {path} has {minimum} tweets; lower minimum")
    small_users = len(tweets) - len(clients)
    notes = []
    if small_users:
        notes.append(
            f"{small_users} users with fewer than {minimum} tweets are left out"
        )
    return from_tensors(
        clients,
        seed=seed,
        split=split,
        name="sent140",
        classes=("unhappy", "happy"),
        notes=notes,
    )


DATASET = Dataset(
    "Sent140: is a tweet happy? By user, from your disk",
    "one for each user with 50 tweets or more",
    "2 classes: unhappy, happy",
    "none stated",
    sent140,
    {
        "folder": None,
        "minimum": 50,
        "features": 2048,
        "split": {"parts": dict(DEFAULT_PARTS)},
    },
)
