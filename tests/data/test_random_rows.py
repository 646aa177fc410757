"""A data set that changes its rows at random is refused: its draws would be frozen, and test rows would get them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

import coterie as ct

OWN = np.random.default_rng(0)

RANDOM = {
    "torch": lambda x, i: x + torch.rand(3),
    "numpy": lambda x, i: x * np.random.uniform(0.5, 1.5),  # noqa: NPY002
    "python": lambda x, i: x + random.random(),
    "its own generator": lambda x, i: x + float(OWN.random()),
    "a coin that shows one side": lambda x, i: -x if random.random() > 1 else x,
    "another shape": lambda x, i: x[: int(torch.randint(1, 3, ()))],
}


def seeded(x, i):
    torch.manual_seed(i)
    random.seed(i)
    return x + torch.rand(3) + random.random()


STEADY = {
    "as it is": lambda x, i: x,
    "drawn from a seed of the row": seeded,
}


class Items(Dataset):
    """Rows [3] with labels 0 and 1, each changed when it is read."""

    def __init__(self, change):
        self.change = change

    def __len__(self):
        return 24

    def __getitem__(self, i):
        inputs = torch.arange(3.0) + i
        return self.change(inputs, i), i % 2


class RandomLabels(Items):
    def __getitem__(self, i):
        return torch.arange(3.0) + i, random.randrange(10**9)


LISTS = {"a": range(12), "b": range(12, 24)}
IID = {"kind": "iid", "clients": 2}
WAYS = {
    "rows by client": lambda data: ct.data.from_dataset(data, LISTS),
    "parts by client": lambda data: ct.data.from_dataset(
        data, {"a": {"train": range(12), "test": range(12, 24)}}
    ),
    "dealt": lambda data: ct.data.from_dataset(data, split=IID),
    "lazy": lambda data: ct.data.from_dataset(data, LISTS, lazy=True),
    "a dict": lambda data: ct.data.from_tensors({"a": data, "b": data}),
    "a list": lambda data: ct.data.from_tensors([Items(lambda x, i: x), data]),
    "parts": lambda data: ct.data.from_tensors({"a": {"train": data, "test": data}}),
    "test rows": lambda data: ct.data.from_tensors(
        {"a": {"train": Items(lambda x, i: x), "test": data}}
    ),
    "three parts": lambda data: ct.data.from_tensors({"a": (data, None, data)}),
    "subsets": lambda data: ct.data.from_tensors(
        {"a": Subset(data, range(5, 12)), "b": ConcatDataset([data, data])}
    ),
    "unseen": lambda data: ct.data.from_tensors(
        {"a": Items(lambda x, i: x)}, unseen={"b": data}
    ),
    "the server": lambda data: ct.data.from_tensors(
        {"a": Items(lambda x, i: x)}, server=data
    ),
    "fit": lambda data: ct.fit("fedavg", {"a": data, "b": data}, rounds=0),
    "compare": lambda data: ct.compare(["fedavg"], {"a": data, "b": data}, rounds=0),
}


# Unread rows of another shape have a sentence of their own.
CASES = [
    pytest.param(WAYS[way], RANDOM[change], id=f"{way}-{change}")
    for way, change in itertools.product(WAYS, RANDOM)
    if (way, change) != ("lazy", "another shape")
]


@pytest.mark.parametrize(("way", "change"), CASES)
def test_random_rows_are_refused_and_the_place_for_them_is_named(way, change):
    states = torch.get_rng_state(), random.getstate()
    with pytest.raises(ct.InputError, match=r"row \d+ .*with_transform") as told:
        way(Items(change))
    assert len(str(told.value)) <= 300
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


@pytest.mark.parametrize("change", STEADY.values(), ids=STEADY)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_rows_that_are_the_same_each_time_are_taken(way, change):
    assert way(Items(change)) is not None


def test_random_labels_are_refused():
    for way in ("rows by client", "a dict"):
        with pytest.raises(ct.InputError, match=r"row \d+ .*whenever it is read"):
            WAYS[way](RandomLabels(None))


def test_a_missing_number_is_no_draw():
    data = Items(lambda x, i: x.masked_fill(x == 1, torch.nan))
    for way in ("rows by client", "a dict"):
        with pytest.raises(ct.CoterieError, match="NaN or Inf"):
            ct.fit("fedavg", WAYS[way](data), rounds=1)


def test_a_transform_of_columns_is_refused_since_it_would_not_be_called():
    datasets = pytest.importorskip("datasets")
    columns = {"x": [[0.0, 1.0]] * 8, "label": [0, 1] * 4}
    table = datasets.Dataset.from_dict(columns)
    split = {"kind": "iid", "clients": 2}
    ct.data.from_dataset(table, split=split)
    table.set_transform(
        lambda rows: {**rows, "x": [[random.random(), 1.0] for _ in rows["x"]]}
    )
    with pytest.raises(ct.InputError, match="with_transform"):
        ct.data.from_dataset(table, split=split)
    table.reset_format()
    ct.data.from_dataset(table.with_format("torch"), split=split)
