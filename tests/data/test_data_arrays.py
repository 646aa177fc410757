"""`from_arrays`: arrays that all clients share, memory-mapped ones among them, which are never copied as a whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import coterie as ct


def anonymous_bytes():
    """Memory of this process and of its workers that no file stands behind; a page that they share since the fork counts once."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    files = [Path(f"/proc/{process}/smaps_rollup") for process in ("self", *children)]
    return 1024 * sum(
        int(re.search(r"Pss_Anon:\s+(\d+) kB", file.read_text())[1]) for file in files
    )


def make_map(path, rows, columns):
    """A map of a new file, and labels that its first column tells."""
    file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, columns))
    file[:, 0] = np.arange(rows) % 2 - 0.5
    file.flush()
    del file
    return np.load(path, mmap_mode="r"), (np.arange(rows) % 2).astype(np.int8)


def test_rows_of_a_map_are_those_of_tensors(tmp_path):
    inputs, labels = make_map(tmp_path / "x.npy", 120, 4)
    lists = {"a": range(70), "b": range(70, 120)}
    shared = ct.data.from_arrays(inputs, labels, lists, seed=2)
    copied = ct.data.from_dataset(
        TensorDataset(torch.from_numpy(np.array(inputs)), torch.from_numpy(labels)),
        lists,
        seed=2,
    )
    assert torch.equal(shared["a"].train.read(), copied["a"].train.inputs)
    assert torch.equal(
        ct.fit("fedavg", shared, rounds=2).x, ct.fit("fedavg", copied, rounds=2).x
    )
    named = ct.data.from_arrays({"left": inputs, "right": inputs[:, :2]}, labels, lists)
    assert {k: tuple(v.shape) for k, v in named[0].train.read().items()} == {
        "left": (38, 4),
        "right": (38, 2),
    }


class Items(Dataset):
    """Items (x, y) of a map."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i], i % 2


def lazily(inputs, labels, lists):
    return ct.data.from_dataset(Items(inputs), lists, lazy=True, labels=labels)


MAKE = {"map": ct.data.from_arrays, "items": lazily}


def most_memory(kind, folder, rows, columns, workers=1):
    """The most anonymous memory at the end of a round of a run, in bytes, and what there was before."""
    before, seen = anonymous_bytes(), []
    inputs, labels = make_map(folder / "x.npy", rows, columns)
    of_each = rows // 20
    read = (
        of_each if kind == "map" else min(2000, of_each * 4 // 5)
    )  # Python reads items one by one
    lists = [
        {"train": at[:read][:-200], "test": at[-200:]}
        for at in np.array_split(np.arange(rows), 20)
    ]
    clients = MAKE[kind](inputs, labels, lists)
    settings = ct.RunSettings(
        evaluate=2, callbacks=(lambda number: seen.append(anonymous_bytes()),)
    )
    run = ct.fit(
        "fedavg",
        clients,
        rounds=2,
        engine=ct.InProcess(workers=workers),
        settings=settings,
        checkpoint=folder / "run",
    )
    assert all(row["accuracy"] == 1.0 for row in run.summary)
    return max(seen), before


@pytest.mark.in_turn(but="map")
@pytest.mark.parametrize("kind", MAKE)
def test_training_on_a_map_takes_no_memory_of_its_size(kind, tmp_path):
    rows, columns = 12_500, 2048
    most, before = most_memory(kind, tmp_path, rows, columns)
    assert most - before < rows * columns * 4 / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
def test_three_million_rows_take_less_than_600_megabytes(kind, tmp_path):
    alone = subprocess.run(
        [sys.executable, __file__, kind, tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(alone.stdout) < 600e6


def test_arrays_that_do_not_fit_are_named():
    with pytest.raises(ct.InputError, match="there are 3 rows of inputs but 2 labels"):
        ct.data.from_arrays(np.zeros((3, 2)), [0, 1], [[0]])
    with pytest.raises(
        ct.InputError, match="client 'a' has row 7 of a data set with 3 rows"
    ):
        ct.data.from_arrays(np.zeros((3, 2)), [0, 1, 0], {"a": [0, 7]})
    with pytest.raises(ct.InputError, match="there are no index lists"):
        ct.data.from_arrays(np.zeros((3, 2)), [0, 1, 0], {})


if __name__ == "__main__":
    sys.stdout.write(
        str(most_memory(sys.argv[1], Path(sys.argv[2]), 3_000_000, 64, workers=2)[0])
    )
