"""CIFAR-100 from Parquet with encoded images (Hugging Face layout): 50,000 over clients, 10,000 more for the server.

The files are as for CIFAR-10, also in a subfolder `cifar100`; whole numbers in `fine_label` are the labels. Source: A. Krizhevsky,
"Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.base.clients import Clients
from coterie.config.data import DEFAULT_PARTS, Split
from coterie.data.sets import Dataset
from coterie.data.sets.cifar10 import DEFAULT_SPLIT, ImageSet, load_images

__all__ = ["CLASSES", "DATASET", "DEFAULT_SPLIT", "cifar100"]

CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
CIFAR100 = ImageSet("cifar100", "CIFAR-100", CLASSES, "fine_label", "cifar100")


def cifar100(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    rows: int | None = None,
    server: int = 0,
) -> Clients:
    """A hundred classes, images uint8 [rows, 3, 32, 32]; by default 10 clients with Dirichlet(.5) shares of classes.

    Args:
        seed: seed of the split and of `rows`.
        split: the [split] table, on top of `DEFAULT_SPLIT`.
        folder: with the Parquet files, itself or in `cifar100`; None looks into COTERIE_DATA, then asks the hub.
        rows: only so many images, every class in its share.
        server: so many of the 10,000 test images for the server, every class in its share.
    """
    return load_images(
        CIFAR100, seed=seed, split=split, folder=folder, rows=rows, server=server
    )


DATASET = Dataset(
    "CIFAR-100: 60,000 colour images of 32 x 32, from Parquet or the hub",
    "10, Dirichlet(.5) shares of the classes",
    "100 classes",
    "none stated; free to use with citation",
    cifar100,
    {
        "folder": None,
        "rows": None,
        "server": 0,
        "split": {**DEFAULT_SPLIT, "parts": dict(DEFAULT_PARTS)},
    },
)
