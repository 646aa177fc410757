"""Rows that are read whenever they are asked for: the bits of the same rows in memory, whatever they are read from."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

import coterie as ct
from coterie.base import rows as core_rows
from federations import assert_same_bits

ROWS = 72


class Items(Dataset):
    """Items (x, y) of a file that is mapped, and the rows that were read."""

    def __init__(self, path, change=lambda x, i: x):
        self.inputs, self.change, self.read = np.load(path, mmap_mode="r"), change, []

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        self.read.append(i)
        return self.change(torch.from_numpy(self.inputs[i].copy()), i), int(
            self.inputs[i, 0] > 0
        )


@pytest.fixture
def path(tmp_path):
    np.save(
        tmp_path / "x.npy",
        np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32),
    )
    return tmp_path / "x.npy"


LISTS = {"a": range(30), "b": range(30, 50), "c": range(40, ROWS)}


def kinds(path):
    """The same clients in memory, of a map, and read item by item from a file that each process opens."""
    inputs = np.load(path)
    labels = (inputs[:, 0] > 0).astype(np.int64)
    about = {"name": "rows", "seed": 1}
    return {
        "memory": ct.data.from_arrays(inputs, labels, LISTS, **about),
        "map": ct.data.from_arrays(
            np.load(path, mmap_mode="r"), labels, LISTS, **about
        ),
        "items": ct.data.from_dataset(
            lambda: Items(path), LISTS, lazy=True, files=[path], **about
        ),
    }


LOCAL = ct.LocalSGD(steps=ct.Steps(3), batch_size=5)
METHODS = {
    "kernel": (ct.FedAvg(LOCAL), {}),
    "loop": (ct.MeritFed(targets="all"), {"engine": ct.InProcess(kernel="loop")}),
    "pooled": (ct.Centralised(LOCAL), {}),
    "alone": (ct.Local(), {}),
    "workers": (ct.FedAvg(LOCAL), {"engine": ct.InProcess(workers=2)}),
}


@pytest.mark.parametrize("how", METHODS)
def test_a_run_has_the_bits_of_rows_in_memory(path, how, monkeypatch):
    monkeypatch.setattr(core_rows, "CHUNK", 8)
    method, options = METHODS[how]
    runs = {
        kind: ct.fit(method, data, "logistic", 2, **options)
        for kind, data in kinds(path).items()
    }
    assert_same_bits(runs["memory"], runs["map"])
    assert_same_bits(runs["memory"], runs["items"])


@pytest.mark.parametrize("kind", ["map", "items"])
def test_it_resumes_unless_the_file_was_written_again(path, kind, tmp_path):
    whole = ct.fit("fedavg", kinds(path)[kind], rounds=3)
    ct.fit("fedavg", kinds(path)[kind], rounds=2, checkpoint=tmp_path / "run")
    again = {"checkpoint": tmp_path / "run", "settings": ct.RunSettings(resume=True)}
    assert_same_bits(whole, ct.fit("fedavg", kinds(path)[kind], rounds=3, **again))
    os.utime(path, ns=(0, 0))
    with pytest.raises(
        ct.InputError,
        match=r"the data of clients has changed since round 3 \(a, b, c\)",
    ):
        ct.fit("fedavg", kinds(path)[kind], rounds=4, **again)


def test_a_fingerprint_reads_few_rows_and_all_labels(path, monkeypatch):
    monkeypatch.setattr(core_rows, "LOOKED_AT", 6)
    labels = (np.load(path)[:, 0] > 0).astype(np.int64)

    def clients(items, labels=labels, lists=LISTS):
        return ct.data.from_dataset(items, lists, lazy=True, labels=labels)

    items = Items(path)
    data = clients(items)
    items.read.clear()
    mark = data.fingerprint()
    assert len(items.read) == 3 * 6
    assert mark == clients(Items(path)).fingerprint()
    seen = items.read[0]
    for other in [
        clients(Items(path), labels=1 - labels),
        clients(Items(path), lists={**LISTS, "a": range(1, 31)}),
        clients(Items(path, lambda x, i: x + (i == seen))),
    ]:
        assert other.fingerprint() != mark


def test_training_evaluation_and_outcomes_read_in_blocks(path, monkeypatch, tmp_path):
    monkeypatch.setattr(core_rows, "CHUNK", 8)
    monkeypatch.setattr(core_rows, "LOOKED_AT", 6)
    monkeypatch.setattr("coterie.compute.cohort_rows.BLOCK", 4 * 10)
    monkeypatch.setattr("coterie.compute.heights.HEIGHTS", {16: 1 << 24})
    monkeypatch.setattr("coterie.compute.heights._STEADY_HEIGHTS", {})
    counts = []
    data = kinds(path)["items"]
    source = data.train.inputs.source
    read = source.read
    monkeypatch.setattr(
        source, "read", lambda numbers: counts.append(len(numbers)) or read(numbers)
    )
    loop = ct.InProcess(kernel="loop")
    settings = ct.StudySettings(local=LOCAL)
    # A linear model that is solved takes all rows of one client at once.
    ct.compare(
        [ct.Local(exact=False), "fedavg"],
        data,
        rounds=1,
        seeds=1,
        settings=settings,
        engine=loop,
        folder=tmp_path / "run",
    )
    assert max(counts) <= 16


def test_each_process_opens_the_data_set_itself(path, tmp_path):
    def opened():
        with (tmp_path / "opened").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return Items(path)

    data = ct.data.from_dataset(opened, LISTS, lazy=True)
    ct.fit("fedavg", data, rounds=1, engine=ct.InProcess(workers=2))
    assert len(set((tmp_path / "opened").read_text().split())) == 3


def test_a_map_is_sent_as_the_name_of_its_file(path):
    unread = kinds(path)["map"].subset(["b"]).train.inputs
    sent = pickle.dumps(unread)
    assert len(sent) < 3000
    assert torch.equal(pickle.loads(sent).read(slice(0, 9)), unread.read(slice(0, 9)))


def test_groups_of_a_subset_are_clients(path):
    some = Subset(Items(path), range(10, 40))
    groups = np.array(["b", "a", "b"])[np.arange(30) % 3]
    data = ct.data.from_dataset(some, ct.data.by_group(groups), lazy=True)
    assert data.names == ("a", "b")
    assert torch.equal(
        data["a"].train.read()[0],
        torch.from_numpy(
            np.load(path)[10 + data["a"].train.inputs.source_numbers()[0]]
        ),
    )
    with pytest.raises(ct.InputError, match="scale each row where it is read"):
        ct.data.standardise(data)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda x, i: x + torch.rand(4),
            "row 0 of the data set is another one whenever it is read; take random transforms",
        ),
        (
            lambda x, i: x / (i != 17),
            "row 17 of the data set: inputs contain NaN or Inf",
        ),
        (lambda x, i: x[: 4 - (i == 17)], r"row 17: inputs have shape \[3\]"),
        (lambda x, i: x.double() if i else x, "every row must have the shape of row 0"),
    ],
)
def test_rows_that_cannot_be_used_are_named(path, change, sentence):
    with pytest.raises(ct.CoterieError, match=sentence):
        ct.fit(
            "fedavg",
            ct.data.from_dataset(
                Items(path, change), {"a": range(36), "b": range(36)}, lazy=True
            ),
            rounds=2,
        )


def test_large_rows_are_evaluated_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(core_rows, "ELEMENTS", 10)
    part = ct.Part(torch.arange(8.0).reshape(4, 2), torch.zeros(4))
    assert [
        len(some) for some in ct.Part(part.inputs.repeat(1, 2), part.labels).chunks()
    ] == [2, 2]
    assert [len(some) for some in part.chunks()] == [4]


# ---- images


def save_images(folder, names, size=6):
    image = pytest.importorskip("PIL.Image")
    for k, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(
            0, 255, (size, size, 3), dtype=np.uint8
        )
        image.fromarray(pixels).save(folder / name)


def test_a_folder_of_images_for_each_client(tmp_path):
    save_images(
        tmp_path,
        [
            f"{c}/{y}/{k}.png"
            for c in ("north", "south")
            for y in ("cat", "dog")
            for k in range(6)
        ],
    )
    clients = ct.data.from_images(tmp_path)
    assert (clients.names, clients.classes) == (("north", "south"), ("cat", "dog"))
    assert tuple(clients["north"].train.read().shape[1:]) == (3, 6, 6)
    assert clients["north"].train.labels.bincount().tolist() == [3, 3]
    parts = {
        c.name: {k: (part.read(), part.labels) for k, part in c.parts()}
        for c in clients
    }
    copies = ct.data.from_tensors(parts, name=clients.name, classes=clients.classes)
    options = {"rounds": 1, "engine": ct.InProcess(workers=2)}
    assert_same_bits(
        ct.fit("fedavg", clients, ct.models.CNN(), **options),
        ct.fit("fedavg", copies, ct.models.CNN(), **options),
    )


def test_images_by_class_are_dealt_out(tmp_path):
    save_images(tmp_path, [f"{y}/{k}.jpg" for y in ("cat", "dog") for k in range(12)])
    clients = ct.data.from_images(
        tmp_path, grey=True, size=4, split={"kind": "iid", "clients": 3}
    )
    assert len(clients) == 3
    assert tuple(clients[0].train.read().shape[1:]) == (4, 4)


def test_images_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(
        ct.InputError,
        match="must hold images either as CLIENT/CLASS/image or as CLASS/image",
    ):
        ct.data.from_images(tmp_path)
    save_images(tmp_path, [f"a/{y}/{k}.png" for y in ("cat", "dog") for k in range(6)])
    (tmp_path / "a" / "dog" / "3.png").write_text("no image")
    with pytest.raises(ct.CoterieError, match=r"3\.png cannot be read as an image"):
        ct.fit("fedavg", ct.data.from_images(tmp_path), ct.models.CNN(), 1)
    save_images(tmp_path, ["a/dog/3.png"], size=7)
    with pytest.raises(
        ct.CoterieError, match=r"7 x 7 pixels.*give size=|shape of row 0"
    ):
        ct.fit("fedavg", ct.data.from_images(tmp_path), ct.models.CNN(), 1)


# ---- the hub


def test_columns_are_read_lazily(path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    inputs = np.load(path)
    table = datasets.Dataset.from_dict(
        {"x": inputs, "label": (inputs[:, 0] > 0).astype(np.int64)}
    )
    lazy = ct.data.from_dataset(table, LISTS, lazy=True, name="rows", seed=1)
    assert_same_bits(
        ct.fit("fedavg", lazy, rounds=1),
        ct.fit("fedavg", kinds(path)["memory"], rounds=1),
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, subset: {"train": table})
    split = {"kind": "iid", "clients": 3}
    unread, read = (
        ct.data.load("hf:own/rows", split=split, lazy=lazy) for lazy in (True, False)
    )
    assert_same_bits(
        ct.fit("fedavg", unread, rounds=1), ct.fit("fedavg", read, rounds=1)
    )


def test_a_class_of_data_sets_is_opened_by_each_process():
    class Rows:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return torch.full((2,), float(i)), i % 2

    clients = ct.data.from_dataset(Rows, {"a": range(3), "b": range(3, 6)}, lazy=True)
    assert torch.equal(
        clients["b"].train.read()[:, 0],
        torch.from_numpy(clients.train.numbers(1)).float(),
    )
