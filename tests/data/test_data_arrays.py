"""`from_arrays`: arrays that all clients share, memory-mapped ones among them, which are never copied as a whole."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import coterie as ct


def anonymous_bytes():
    """Memory of this process that no file stands behind."""
    return 1024 * int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


@pytest.fixture
def mapped(tmp_path):
    """A function (rows, columns) -> a map of a file, and labels that its first column tells."""

    def made(rows, columns):
        file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (rows, columns))
        file[:, 0] = np.arange(rows) % 2 - 0.5
        file.flush()
        del file
        return np.load(tmp_path / "x.npy", mmap_mode="r"), (np.arange(rows) % 2).astype(np.int8)

    return made


def test_rows_of_a_map_are_those_of_tensors(mapped):
    inputs, labels = mapped(120, 4)
    lists = {"a": range(70), "b": range(70, 120)}
    shared = ct.data.from_arrays(inputs, labels, lists, seed=2)
    copied = ct.data.from_dataset(
        TensorDataset(torch.from_numpy(np.array(inputs)), torch.from_numpy(labels)), lists, seed=2
    )
    assert shared.fingerprint() == copied.fingerprint()
    assert np.shares_memory(shared.train.inputs.numpy(), inputs)
    assert torch.equal(ct.fit("fedavg", shared, rounds=2).x, ct.fit("fedavg", copied, rounds=2).x)
    named = ct.data.from_arrays({"left": inputs, "right": inputs[:, :2]}, labels, lists)
    assert {k: tuple(v.shape) for k, v in named[0].train.inputs.items()} == {"left": (38, 4), "right": (38, 2)}


def grown(mapped, tmp_path, rows, columns, workers=1):
    """The most anonymous memory that a run takes more than before, in bytes, and the bytes of the data."""
    inputs, labels = mapped(rows, columns)
    before, seen = anonymous_bytes(), []
    lists = np.array_split(np.arange(rows), 20)
    clients = ct.data.from_arrays(inputs, labels, lists)
    settings = ct.RunSettings(evaluate=2, callbacks=(lambda number: seen.append(anonymous_bytes() - before),))
    engine = ct.InProcess(workers=workers)
    run = ct.fit("fedavg", clients, rounds=2, engine=engine, settings=settings, checkpoint=tmp_path / "run")
    assert all(row["accuracy"] == 1.0 for row in run.summary)
    return max(seen), inputs.nbytes


def test_training_on_a_map_takes_no_memory_of_its_size(mapped, tmp_path):
    taken, size = grown(mapped, tmp_path, 200_000, 128)
    assert size > 100e6
    assert taken < size / 2


@pytest.mark.slow
def test_three_million_rows_take_less_than_600_megabytes(mapped, tmp_path):
    taken, size = grown(mapped, tmp_path, 3_000_000, 64, workers=2)
    assert size > 700e6
    assert taken < 300e6
    assert anonymous_bytes() < 600e6


def test_arrays_that_do_not_fit_are_named():
    with pytest.raises(ct.InputError, match="there are 3 rows of inputs but 2 labels"):
        ct.data.from_arrays(np.zeros((3, 2)), [0, 1], [[0]])
    with pytest.raises(ct.InputError, match="client 'a' has row 7 of a data set with 3 rows"):
        ct.data.from_arrays(np.zeros((3, 2)), [0, 1, 0], {"a": [0, 7]})
    with pytest.raises(ct.InputError, match="there are no index lists"):
        ct.data.from_arrays(np.zeros((3, 2)), [0, 1, 0], {})
