"""The data sets by name, and `load`, which takes a name or the user's own folder."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from coterie.base.clients import Clients
from coterie.base.errors import InputError, cut, nearest, require
from coterie.base.files import found
from coterie.base.modules import load_object
from coterie.data import hub
from coterie.data.sets import (
    cifar10,
    cifar100,
    digits,
    emnist,
    fashion_mnist,
    goemotions,
    heart_disease,
    mean_estimation,
    medmnist,
    sent140,
    shakespeare,
)
from coterie.data.splits import DEFAULT_PARTS, check_seed
from coterie.data.tables.folder import from_folder

__all__ = ["DATASETS", "Dataset", "clients_of", "load"]


@dataclass(frozen=True)
class Dataset:
    """One entry of `coterie data`.

    Attributes:
        name: what a user types.
        summary: one line.
        clients: how many, and who they are.
        task: what is predicted.
        licence: of the data.
        build: makes the clients; its keyword arguments are the options.
        defaults: of the options and of the split, for `coterie show NAME`.
    """

    name: str
    summary: str
    clients: str
    task: str
    licence: str
    build: Callable[..., Clients] = field(repr=False)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def details(self) -> str:
        """The text for `coterie show NAME`: where the data is from and how its traps are treated."""
        return sys.modules[self.build.__module__].__doc__ or ""


_PARTS = dict(DEFAULT_PARTS)

_ALL = (
    Dataset(
        "heart-disease",
        "UCI Heart Disease: 920 patients, 15 features, embedded",
        "4 hospitals: cleveland, hungary, long-beach, switzerland",
        "2 classes: no disease, disease",
        "CC BY 4.0",
        heart_disease.heart_disease,
        {"split": {"parts": _PARTS}},
    ),
    Dataset(
        "digits",
        "scikit-learn's handwritten digits: 1,797 images, each 64 numbers (8 x 8)",
        "10, Dirichlet(.5) shares of the classes",
        "10 classes",
        "CC BY 4.0",
        digits.digits,
        {"split": {**digits.DEFAULT_SPLIT, "parts": _PARTS}},
    ),
    Dataset(
        "fashion-mnist",
        "Fashion-MNIST: 60,000 grey images of 28 x 28, read from your disk",
        "100, Dirichlet(.5) shares of the classes",
        "10 classes",
        "MIT",
        fashion_mnist.fashion_mnist,
        {"folder": None, "rows": None, "server": 0, "split": {**fashion_mnist.DEFAULT_SPLIT, "parts": _PARTS}},
    ),
    Dataset(
        "cifar10",
        "CIFAR-10: 60,000 colour images of 32 x 32, from Parquet or the hub",
        "10, Dirichlet(.5) shares of the classes",
        "10 classes",
        "none stated; free to use with citation",
        cifar10.cifar10,
        {"folder": None, "rows": None, "server": 0, "split": {**cifar10.DEFAULT_SPLIT, "parts": _PARTS}},
    ),
    Dataset(
        "cifar100",
        "CIFAR-100: 60,000 colour images of 32 x 32, from Parquet or the hub",
        "10, Dirichlet(.5) shares of the classes",
        "100 classes",
        "none stated; free to use with citation",
        cifar100.cifar100,
        {"folder": None, "rows": None, "server": 0, "split": {**cifar100.DEFAULT_SPLIT, "parts": _PARTS}},
    ),
    Dataset(
        "emnist",
        "EMNIST-Balanced: 112,800 letters and digits, from your disk",
        "25 with 24 shards of 180 rows",
        "47 classes",
        "public domain",
        emnist.emnist,
        {"folder": None, "rows": None, "server": 0, "split": {**emnist.DEFAULT_SPLIT, "parts": _PARTS}},
    ),
    Dataset(
        "goemotions",
        "GoEmotions: 36,308 Reddit comments as hashed words, from your disk",
        "20: a target, 10 near it, 9 far from it, by Ekman's classes",
        "28 emotions",
        "CC BY 4.0",
        goemotions.goemotions,
        {
            "folder": None,
            "target": "joy",
            "alpha": 0.9,
            "rows_per_client": 300,
            "held_out": 150,
            "features": 2048,
        },
    ),
    Dataset(
        "medmnist",
        "MedMNIST: medical images of 28 x 28, read from your disk",
        "one for each of several sets, or 10 with Dirichlet(.5) shares of the classes of one",
        "the classes of the sets",
        "CC BY 4.0 (DermaMNIST: CC BY-NC 4.0)",
        medmnist.medmnist,
        {"folder": None, "sets": ["pneumoniamnist"], "split": {**medmnist.DEFAULT_SPLIT, "parts": _PARTS}},
    ),
    Dataset(
        "shakespeare",
        "Shakespeare by role: next characters, from your disk",
        "one for each of the largest roles of each play",
        "the next of 97 characters, at each of 80 positions",
        "public domain",
        shakespeare.shakespeare,
        {
            "folder": None,
            "plays": [],
            "minimum_characters": 3000,
            "roles_per_play": 4,
            "segments": 20,
            "length": 80,
        },
    ),
    Dataset(
        "sent140",
        "Sent140: is a tweet happy? By user, from your disk",
        "one for each user with 50 tweets or more",
        "2 classes: unhappy, happy",
        "none stated",
        sent140.sent140,
        {"folder": None, "minimum": 50, "features": 2048, "split": {"parts": _PARTS}},
    ),
    Dataset(
        "mean-estimation",
        "MeritFed's synthetic task: whose samples have my mean?",
        "150 in groups of 5, 95 and 50; the target is d1-000",
        "the mean of 10-dimensional normal samples",
        "none needed (drawn from the seed)",
        mean_estimation.mean_estimation,
        {
            "mu": 0.01,
            "groups": [5, 95, 50],
            "samples": 1000,
            "validation": 1000,
            "test": 1000,
            "dim": 10,
            "centres": None,
        },
    ),
)

DATASETS: Mapping[str, Dataset] = MappingProxyType({d.name: d for d in _ALL})
"""All data sets by name."""

_ON_THE_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_HUB_OPTIONS = ("label", "input", "subset_name", "part", "rows", "lazy")
_TABLE_OPTIONS = (
    "label", "task", "above", "classes", "categorical", "drop", "missing", "rename", "rare", "meaning", "unit",
    "unlabelled", "split_column", "server_file", "arrays",
)  # fmt: skip


def load(
    name_or_folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    split: Mapping[str, Any] | None = None,
    label: str | None = None,
    folder: str | None = None,
    **options: Any,
) -> Clients:
    """The clients of a data set by name, of the user's folder with one file per client, or of the Hugging Face hub.

    Args:
        name_or_folder: a name in `DATASETS`, or a folder (write ./NAME for one that is called like a data set); FILE.py:NAME, which
            is `Clients` or a function of `seed` that gives them; or hf:NAME, or OWNER/NAME where there is no such folder, for the
            hub (extra `hub`).
        seed: of every split that `split` gives no seed of its own.
        split: the [split] table: the fields of `Split`.
        label: column to predict, for a folder and the hub.
        folder: where the files of a named data set lie (fashion-mnist, cifar10).
        options: of the data set (`DATASETS[name].defaults`), of `from_folder`, of `from_hub`, or arguments of the function.

    Raises:
        InputError: one sentence with the cure, for a wrong name, option, key or file.

    >>> load("heart-disease").names
    ('cleveland', 'hungary', 'long-beach', 'switzerland')
    """
    check_seed(seed)
    require(
        isinstance(name_or_folder, str | os.PathLike),
        f"data is named by a text, a data set or a folder; got {cut(name_or_folder)}",
    )
    require(label is None or isinstance(label, str), f"label = {cut(label)} must be the name of a column")
    key = os.fspath(name_or_folder)
    if ".py:" in key:
        texts = {k: v for k, v in {"label": label, "folder": folder}.items() if v is not None}
        return clients_of(load_object(key), key, seed=seed, split=split, **texts, **options)
    data_set = DATASETS.get(key)
    if data_set is None:
        if key.startswith("hf:") or (_ON_THE_HUB.fullmatch(key) and not found(key)):
            require(folder is None, f"{key} is a name of the hub; drop folder = {folder!r}")
            _check(options, _HUB_OPTIONS, key)
            return hub.from_hub(key.removeprefix("hf:"), label=label, seed=seed, split=split, **options)
        if not found(key):
            raise InputError(
                f"there is no data set or folder {key!r}; {nearest(key, DATASETS)}; a folder path works too"
            )
        require(folder is None, f"{key} is a folder already; drop folder = {folder!r}")
        _check(options, _TABLE_OPTIONS, "a folder of tables")
        return from_folder(key, label=label, seed=seed, split=split, **options)
    require(label is None, f"{key} has its own label; drop label = {label!r}")
    allowed = [option for option in data_set.defaults if option != "split"]
    given = options if folder is None else {**options, "folder": folder}
    _check(given, allowed, key)
    return data_set.build(seed=seed, split=split, **given)


def _check(options: Mapping[str, Any], allowed: Any, name: str) -> None:
    for option in options:
        hint = nearest(option, allowed) if allowed else "it has none"
        require(option in allowed, f"{name} has no option {option!r}; {hint}")


def clients_of(given: Any, name: str, *, seed: int, split: Mapping[str, Any] | None = None, **options: Any) -> Clients:
    """Clients that are ready, or those that a function makes of `seed=...`, of `split=...` if there is one, and of `options`.

    Raises `InputError`, which calls it `name`, for a function that fails, for what is not `Clients`, and for settings of ready clients.
    """
    if isinstance(given, Clients):
        unused = [f"data.{key}" for key in options] + [f"split.{key}" for key in split or {}]
        require(not unused, f"{name} holds clients that are ready, so {', '.join(unused)} cannot be set")
        return given
    if callable(given):
        try:
            given = given(seed=seed, **options, **({"split": dict(split)} if split else {}))
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(given, Clients):
        raise InputError(
            f"{name} gives a {type(given).__name__}; it must give Clients, as coterie.data.from_tensors does"
        )
    return given
