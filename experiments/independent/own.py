"""Own loading and own splits, for one figure of each paper: nothing of coterie is used here.

Images come from the IDX files of Fashion-MNIST through numpy, and are dealt as the papers say. Shards have 500 images, sorted by
label (VaRSeL, Table 2), and for ISFL (Fig. 6) a share of each shard is drawn from all images. MaxFL's clients (Figs. 3 and 4) are
in clusters of two labels each, and labels are turned round at some. The samples of MeritFed's mean estimation are drawn in
plateaus.py, and the means of MaxFL's three clients (Fig. 6) in landscape.py.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PREFIX = "own-"
"""An experiment's name begins like this where its rows are loaded and split here."""
FOLDERS = (
    Path(os.environ.get("COTERIE_DATA", ".")) / "fashion-mnist",
    Path("/usr/share/datasets/fashion-mnist"),
)
Numbers = NDArray[np.int64]
Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Images [n, 28, 28] and labels [n]."""


@dataclass(frozen=True)
class Part:
    """Images [n, 28, 28] of bytes and labels [n]."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Client:
    """A client's rows for training, and those that test it."""

    train: Part
    test: Part


@dataclass(frozen=True)
class Dealt:
    """Clients by name or number, the server's rows, and clients that never train."""

    members: Mapping[str, Client]
    server: Part
    unseen: Dealt | None = None

    @property
    def names(self) -> list[str]:
        """In order."""
        return list(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.members.values())

    def __getitem__(self, which: int | str) -> Client:
        return self.members[self.names[which] if isinstance(which, int) else which]


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes: three bytes, the number of dimensions, each as four bytes, then the values."""
    data = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()


def cut_shards(
    labels: NDArray[Any], size: int, nr: float, random: np.random.Generator
) -> Numbers:
    """Return row numbers [shards, size]: rows sorted by label, but of each shard a share 1 - nr drawn from all of them."""
    anywhere, count = round((1 - nr) * size), len(labels) // size
    order = random.permutation(len(labels))
    drawn, left = order[: count * anywhere], order[count * anywhere : count * size]
    left = left[np.argsort(labels[left], kind="stable")]
    return np.hstack(
        [drawn.reshape(count, anywhere), left.reshape(count, size - anywhere)]
    )


def draw_mix(
    mine: NDArray[Any], pool: NDArray[Any], random: np.random.Generator
) -> Numbers:
    """Return as many row numbers of a pool of labels as can have the shares of classes of a client's labels."""
    classes, counts = np.unique(mine, return_counts=True)
    scale = min(
        (pool == label).sum() / count
        for label, count in zip(classes, counts, strict=True)
    )
    return np.concatenate([
        random.permutation(np.flatnonzero(pool == label))[: round(scale * count)]
        for label, count in zip(classes, counts, strict=True)
    ])  # fmt: skip


def cut_clusters(
    labels: NDArray[Any], split: Mapping[str, Any], random: np.random.Generator
) -> list[Numbers]:
    """Return the row numbers of each client, in random order; a cluster's labels are its own, and all its clients get as many."""
    number, clusters, each = (
        split["clients"] + split["unseen"],
        split["clusters"],
        split["labels_per_cluster"],
    )
    order, classes = (
        random.permutation(len(labels)),
        random.permutation(np.unique(labels)),
    )
    of_cluster = (
        order[np.isin(labels[order], classes[c * each : (c + 1) * each])]
        for c in range(clusters)
    )
    hands = [
        hand for rows in of_cluster for hand in np.array_split(rows, number // clusters)
    ]
    return [hands[i] for i in random.permutation(number)]


def cut_by_class(
    labels: NDArray[Any], rows: Numbers, share: float
) -> tuple[Numbers, Numbers]:
    """Return rows in two parts: a share of those of each class, and the others."""
    of_class = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    first = np.concatenate([mine[: round(share * len(mine))] for mine in of_class])
    return first, np.setdiff1d(rows, first)


def take(pair: Pair, rows: Numbers | slice) -> Part:
    """Return these rows."""
    images, labels = pair
    return Part(
        torch.from_numpy(images[rows]), torch.from_numpy(labels[rows].astype(np.int64))
    )


def deal(tables: Mapping[str, Any], seed: int) -> Dealt:
    """Return the clients of an experiment on Fashion-MNIST."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[-1])
    train, test = (
        (
            read_idx(folder / f"{which}-images-idx3-ubyte.gz"),
            read_idx(folder / f"{which}-labels-idx1-ubyte.gz"),
        )
        for which in ("train", "t10k")
    )
    dealing = deal_clusters if tables["split"]["kind"] == "clusters" else deal_shards
    return dealing(train, test, tables, np.random.default_rng([seed, 2026]))


def deal_shards(
    train: Pair, test: Pair, tables: Mapping[str, Any], random: np.random.Generator
) -> Dealt:
    """Return clients with shards, who are tested on the file of test images."""
    data, split = tables["data"], tables["split"]
    labels, truth, server = train[1][: data.get("rows")], test[1], data.get("server", 0)
    shards = cut_shards(labels, split["shard_size"], split.get("nr", 1.0), random)
    number, each = split["clients"], split.get("shards_per_client", 2)
    hands = random.permutation(len(shards))[: number * each].reshape(number, each)

    def client(rows: Numbers) -> Client:
        mixed = split["test"] == "label-mix"
        tested = (
            server + draw_mix(labels[rows], truth[server:], random)
            if mixed
            else slice(server, None)
        )
        return Client(take(train, rows), take(test, tested))

    members = {
        f"client-{i:02d}": client(shards[hand].ravel()) for i, hand in enumerate(hands)
    }
    return Dealt(members, take(test, slice(server)))


def deal_clusters(
    train: Pair, test: Pair, tables: Mapping[str, Any], random: np.random.Generator
) -> Dealt:
    """Return clients in clusters, seen and unseen, tested on a part of their own; labels y of some are the last class less y."""
    split, (images, labels) = tables["split"], train
    hands, turned = cut_clusters(labels, split, random), (images, labels.max() - labels)

    def members(name: str, hands: list[Numbers]) -> dict[str, Client]:
        flipped = round(
            split["flip"] * len(hands)
        )  # the first, since they stand in random order
        return {
            f"{name}-{i:02d}": Client(
                *(take(turned if i < flipped else train, rows) for rows in parts)
            )
            for i, parts in enumerate(
                cut_by_class(labels, hand, split["parts"]["train"]) for hand in hands
            )
        }

    none, seen = take(test, slice(0)), split["clients"]
    return Dealt(
        members("client", hands[:seen]),
        none,
        Dealt(members("unseen", hands[seen:]), none),
    )
