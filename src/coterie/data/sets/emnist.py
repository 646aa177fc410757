"""EMNIST-Balanced from IDX files: 112,800 grey images of 28 x 28 of 47 letters and digits over clients, 18,800 more for
tests.

Source: G. Cohen et al., "EMNIST: an extension of MNIST to handwritten letters", 2017. Licence: public domain (NIST).
It is read from your disk and never ships: `emnist-balanced-train-images-idx3-ubyte` and its three siblings, plain or
.gz. Images lie on their side in the files and are turned upright.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.base.clients import Clients
from coterie.config.data import DEFAULT_PARTS, Split
from coterie.data.sets import Dataset, find_folder
from coterie.data.sets.fashion_mnist import Images, over_idx, read_pair

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
DEFAULT_SPLIT: Mapping[str, Any] = {
    "kind": "shards",
    "clients": 25,
    "shards_per_client": 24,
    "shard_size": 180,
}
_STEM = "emnist-balanced"


def emnist(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    rows: int | None = None,
    server: int = 0,
) -> Clients:
    """47 classes, images uint8 [rows, 28, 28]; by default 25 clients with 24 shards of 180 rows, as in the VaRSeL paper.

    Args:
        seed: seed of the split.
        split: the [split] table, on top of `DEFAULT_SPLIT`.
        folder: with the four IDX files; None looks below COTERIE_DATA.
        rows: only the first so many images.
        server: so many of the test images for the server.
    """
    rule = Split.parse(split, **DEFAULT_SPLIT)
    where = find_folder("emnist", (f"{_STEM}-train-images-idx3-ubyte*",), folder)

    def upright(part: str) -> Images:
        images, labels = read_pair(where, f"{_STEM}-{part}", len(CLASSES))
        return np.ascontiguousarray(images.transpose(0, 2, 1)), labels

    pairs = {"train": lambda: upright("train"), "test": lambda: upright("test")}
    return over_idx(
        pairs, rule, seed=seed, rows=rows, server=server, name="emnist", classes=CLASSES
    )


DATASET = Dataset(
    "EMNIST-Balanced: 112,800 letters and digits, from your disk",
    "25 with 24 shards of 180 rows",
    "47 classes",
    "public domain",
    emnist,
    {
        "folder": None,
        "rows": None,
        "server": 0,
        "split": {**DEFAULT_SPLIT, "parts": dict(DEFAULT_PARTS)},
    },
)
