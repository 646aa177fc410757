"""GoEmotions: Reddit comments with one of 28 emotions, dealt to a target, clients near it and clients far from it.

Source: D. Demszky et al., "GoEmotions: A Dataset of Fine-Grained Emotions", ACL 2020, the filtered version with the
official split; github.com/google-research/google-research/tree/master/goemotions. Licence: CC BY 4.0. It is read from
your disk and never ships.

The folder holds `train.tsv` and `test.tsv` (plain or .gz; text, label numbers, id), `labels.txt` and
`ekman_mapping.json`. Only comments with a single label are used (36,308 of 43,410). There are no natural clients, so
rows are dealt as in the MeritFed papers by Ekman's classes: the target has comments of one class; ten near clients a
share alpha of these and the rest neutral; nine far ones one other class each in turn, filled up with neutral. All
have as many rows; further rows of the target's class validate. The target alone is tested, on all comments of its
class in the official test set.

Features are a hashed bag of words, so that clients share no vocabulary. Comments are unfiltered Reddit language.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.clients import Clients
from coterie.base.errors import InputError, nearest
from coterie.base.rng import generator
from coterie.config.data import Split
from coterie.config.rules import COUNT, SIZE
from coterie.data.sets import Dataset, find_folder, hash_words
from coterie.data.splits import number_names
from coterie.data.tensors import from_tensors

NEAR, FAR = 10, 9


class _Comments(NamedTuple):
    """Texts and label [rows] of comments with a single label."""

    texts: list[str]
    labels: NDArray[np.int64]

    def select(self, rows: NDArray[np.int64]) -> _Comments:
        return _Comments([self.texts[i] for i in rows], self.labels[rows])


def goemotions(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    target: str = "joy",
    alpha: float = 0.9,
    rows_per_client: int = 300,
    held_out: int = 150,
    features: int = 2048,
) -> Clients:
    """20 clients: `target`, `near-0` to `near-9` and `far-0` to `far-8`; inputs float32 [rows, features], 28 classes.

    Args:
        seed: seed of the deal.
        split: the [split] table; only its seed counts.
        folder: with the files; None looks below COTERIE_DATA.
        target: the Ekman class of the target.
        alpha: share of the target's class at near clients, in (0, 1].
        rows_per_client: training rows of each client.
        held_out: validation rows of the target.
        features: length of the hashed bag of words.

    Raises:
        InputError: missing or broken files, an unknown class, or too few rows.
    """
    rule = Split.parse(split, natural="goemotions")
    for name, value, rule_of_value in (
        ("rows_per_client", rows_per_client, SIZE),
        ("held_out", held_out, COUNT),
        ("features", features, SIZE),
    ):
        if not rule_of_value.test(value):
            raise InputError(f"goemotions: {name} = {value!r} must be a whole number")
    if not 0 < alpha <= 1:
        raise InputError(f"goemotions: alpha = {alpha!r} must be a share in (0, 1]")
    where = find_folder("goemotions", ("train.tsv*",), folder)
    names, groups = _labels(where)
    far_groups = [group for group in groups if group not in (target, "neutral")]
    if target not in groups or target == "neutral":
        raise InputError(
            f"goemotions: target = {target!r} is no class; {nearest(target, groups)}"
        )
    train, test = _read(where, "train", len(names)), _read(where, "test", len(names))
    stock = _Stock(train, groups, rule.seed_for(seed))
    shared = round(alpha * rows_per_client)
    dealt = {"target": stock.take(target, rows_per_client)}
    validation = stock.take(target, held_out)
    for name in number_names(NEAR, "near"):
        rows = [
            stock.take(target, shared),
            stock.take("neutral", rows_per_client - shared),
        ]
        dealt[name] = np.concatenate(rows)
    for i, name in enumerate(number_names(FAR, "far")):
        group, turns = far_groups[i % len(far_groups)], -(-(FAR - i) // len(far_groups))
        of_group = stock.take(group, min(rows_per_client, stock.left(group) // turns))
        dealt[name] = np.concatenate(
            [of_group, stock.take("neutral", rows_per_client - len(of_group))]
        )

    def part(comments: _Comments) -> tuple[torch.Tensor, torch.Tensor]:
        return hash_words(comments.texts, features), torch.from_numpy(comments.labels)

    clients: dict[str, Any] = {
        name: {"train": part(train.select(np.sort(rows)))}
        for name, rows in dealt.items()
    }
    if held_out:
        clients["target"]["validation"] = part(train.select(np.sort(validation)))
    tested = np.flatnonzero(np.isin(test.labels, groups[target]))
    if not len(tested):
        raise InputError(f"{where}: no comment of the test set has only {target}")
    clients["target"]["test"] = part(test.select(tested))
    return from_tensors(clients, name="goemotions", classes=names)


class _Stock:
    """Rows of each Ekman class in a drawn order, given out once."""

    def __init__(
        self, comments: _Comments, groups: Mapping[str, list[int]], seed: int
    ) -> None:
        rows = {
            group: np.flatnonzero(np.isin(comments.labels, labels))
            for group, labels in groups.items()
        }
        self._left = {
            group: generator(seed, "goemotions", group).permutation(numbers)
            for group, numbers in rows.items()
        }

    def take(self, group: str, count: int) -> NDArray[np.int64]:
        """So many rows of a class. Raises `InputError` if there are fewer."""
        stock = self._left[group]
        if count > len(stock):
            raise InputError(
                f"goemotions: {count} more comments of {group} are needed and {len(stock)} are left; lower rows_per_client or held_out"
            )
        self._left[group] = stock[count:]
        return stock[:count]

    def left(self, group: str) -> int:
        """Return how many rows of a class are left."""
        return len(self._left[group])


def _labels(folder: Path) -> tuple[list[str], dict[str, list[int]]]:
    """Names of the labels, and the numbers of those of each Ekman class."""
    names = _text(folder, "labels.txt").split()
    try:
        mapping = json.loads(_text(folder, "ekman_mapping.json"))
        groups = {}
        for group, labels in mapping.items():
            groups[str(group)] = [names.index(label) for label in labels]
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"{folder / 'ekman_mapping.json'} does not fit labels.txt ({error}); copy both again"
        ) from error
    if "neutral" not in groups and "neutral" in names:
        groups["neutral"] = [names.index("neutral")]
    return names, groups


def _read(folder: Path, part: str, labels: int) -> _Comments:
    """The comments of `train` or `test` that have a single label."""
    files = sorted(folder.glob(f"{part}.tsv*"))
    if not files:
        raise InputError(f"{folder} has no {part}.tsv; copy it there too")
    texts, numbers = [], []
    for number, line in enumerate(
        _text(folder, files[0].name).rstrip("\n").split("\n"), 1
    ):
        cells = line.split("\t")
        well_formed = len(cells) == 3 and all(
            n.isdecimal() and int(n) < labels for n in cells[1].split(",")
        )
        if not well_formed:
            raise InputError(
                f"{files[0]}, line {number}: expected text, label numbers below {labels} and id; copy the file again"
            )
        if "," not in cells[1]:
            texts.append(cells[0])
            numbers.append(int(cells[1]))
    return _Comments(texts, np.array(numbers, dtype=np.int64))


def _text(folder: Path, name: str) -> str:
    path = folder / name
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        return raw.decode("utf-8")
    except (OSError, EOFError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}); copy it again"
        ) from error


DATASET = Dataset(
    "GoEmotions: 36,308 Reddit comments as hashed words, from your disk",
    "20: a target, 10 near it, 9 far from it, by Ekman's classes",
    "28 emotions",
    "CC BY 4.0",
    goemotions,
    {
        "folder": None,
        "target": "joy",
        "alpha": 0.9,
        "rows_per_client": 300,
        "held_out": 150,
        "features": 2048,
    },
)
