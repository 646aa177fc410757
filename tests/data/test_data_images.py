"""CIFAR-10 from Parquet, and data sets that go through the Hugging Face package."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.base.errors import InputError
from coterie.data import hub, load
from coterie.data.sets import cifar10 as module

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")

SPLIT = {"kind": "iid", "clients": 3}


def encode(array):
    out = io.BytesIO()
    Image.fromarray(array).save(out, format="png")
    return out.getvalue()


def write(path, labels, *, image="img", column="label", size=32, raw=None):
    """Images whose red is their number, green their label and blue 7."""
    rows = []
    for i, label in enumerate(labels):
        pixels = np.empty((size, size, 3), dtype=np.uint8)
        pixels[:] = (i % 256, max(label, 0), 7)
        rows.append(
            {"bytes": encode(pixels) if raw is None else raw, "path": f"{i}.png"}
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(
        pyarrow.table({image: rows, column: pyarrow.array(labels, pyarrow.int64())}),
        path,
    )


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    write(tmp_path / "train.parquet", [i % 10 for i in range(120)])
    write(tmp_path / "test.parquet", [i % 10 for i in range(40)])
    return tmp_path


def test_images_are_decoded_where_the_user_says(tiny, monkeypatch):
    clients = load("cifar10", folder=str(tiny), split=SPLIT, server=20)
    images, labels = clients.train.inputs, clients.train.labels
    assert images.shape == (120, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == list(range(120))
    assert torch.equal(images[:, 1, 5, 9].long(), labels)
    assert images[:, 2].eq(7).all()
    assert clients.classes[6] == "frog"
    assert clients.train.inputs is clients.test.inputs
    assert torch.bincount(clients.server.labels).tolist() == [2] * 10
    assert clients.server.inputs.shape == (20, 3, 32, 32)
    monkeypatch.setenv("COTERIE_DATA", str(tiny))
    assert (
        load("cifar10", split=SPLIT, server=20).fingerprint() == clients.fingerprint()
    )
    assert load("cifar10", split=SPLIT).server is None


def test_subfolders_several_files_and_another_column_name(tmp_path, monkeypatch):
    for i in range(2):
        write(
            tmp_path / "cifar10" / "plain_text" / f"train-{i:05d}-of-00002.parquet",
            [i] * 30,
            image="image",
        )
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    clients = load("cifar10", split=SPLIT)
    assert torch.equal(clients.train.labels, torch.tensor([0] * 30 + [1] * 30))
    with pytest.raises(InputError, match=r"has no test\.parquet; copy it there too"):
        load("cifar10", split=SPLIT, server=1)


def test_a_hundred_classes_have_their_fine_labels(tmp_path, monkeypatch):
    for part, rows in (("train", 300), ("test", 100)):
        write(
            tmp_path / "cifar100" / f"{part}-00000-of-00001.parquet",
            [i % 100 for i in range(rows)],
            column="fine_label",
        )
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    clients = load("cifar100", split=SPLIT, server=100)
    assert clients.name == "cifar100"
    assert torch.equal(clients.train.inputs[:, 1, 5, 9].long(), clients.train.labels)
    assert [clients.classes[i] for i in (0, 54, 99)] == ["apple", "orchid", "worm"]
    assert torch.bincount(clients.server.labels).tolist() == [1] * 100
    write(
        tmp_path / "cifar100" / "train-00000-of-00001.parquet",
        [100],
        column="fine_label",
    )
    with pytest.raises(InputError, match="labels must lie between 0 and 99"):
        load("cifar100", split=SPLIT)
    write(tmp_path / "cifar100" / "train-00000-of-00001.parquet", [0])
    with pytest.raises(
        InputError,
        match=r"needs the columns img \(or image\) and fine_label, but has img, label",
    ):
        load("cifar100", split=SPLIT)


def test_only_what_is_used_is_decoded(tiny, monkeypatch):
    decoded = []
    decode = module._decode
    monkeypatch.setattr(
        module,
        "_decode",
        lambda e, index, n: decoded.append(len(index)) or decode(e, index, n),
    )
    few = load("cifar10", folder=tiny, split=SPLIT, rows=50)
    assert torch.bincount(few.train.labels).tolist() == [5] * 10
    sized = load(
        "cifar10", folder=tiny, split={"kind": "shards", "clients": 2, "shard_size": 12}
    )
    assert decoded == [50, 48]
    for clients in (few, sized):
        assert torch.equal(
            clients.train.inputs[:, 1, 0, 0].long(), clients.train.labels
        )


def test_what_is_missing_or_wrong_is_said(tiny, monkeypatch):
    for options, sentence in [
        (
            {"folder": str(tiny / "none")},
            r"not found in the folder .*none; give a folder with train\.parquet and test",
        ),
        ({"rows": 0}, "rows = 0 must lie between 1 and 120"),
        ({"rows": 121}, "rows = 121 must lie between"),
        ({"server": 41}, "server = 41 must lie between 0 and 40"),
        ({"server": -1}, "server = -1 must be a whole number"),
    ]:
        with pytest.raises(InputError, match=sentence):
            load("cifar10", **{"folder": str(tiny), "split": SPLIT, **options})
    monkeypatch.setattr(hub, "has_datasets", lambda: False)
    with pytest.raises(
        InputError,
        match=r"not found in COTERIE_DATA \(not set\); .*pip install .coterie\[hub\]",
    ):
        load("cifar10")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda p: write(p, [0, 10]), "labels must lie between 0 and 9"),
        (
            lambda p: write(p, [0, 1, 2] * 3, size=16),
            r"the image of row 0 is \(16, 16\), not 32 x 32",
        ),
        (
            lambda p: write(p, [0, 1, 2] * 3, raw=b"no image"),
            "the image of row 0 cannot be decoded; copy the file again",
        ),
        (
            lambda p: write(p, [0, 1], image="pixels"),
            r"needs the columns img \(or image\) and label, but has pixels, label",
        ),
        (
            lambda p: p.write_bytes(b"PAR1 something else"),
            r"train\.parquet cannot be read \(.*\); copy it again",
        ),
        (
            lambda p: parquet.write_table(
                pyarrow.table({"img": [1.0], "label": [1]}), p
            ),
            "column 'img' is double, not encoded images",
        ),
        (
            lambda p: parquet.write_table(
                pyarrow.table({"img": [{"bytes": b""}], "label": ["cat"]}), p
            ),
            "column 'label' must hold whole numbers without gaps, not string",
        ),
    ],
)
def test_wrong_files_are_refused(tmp_path, make, sentence):
    make(tmp_path / "train.parquet")
    with pytest.raises(InputError, match=sentence):
        load("cifar10", folder=tmp_path, split=SPLIT)


COPY = next(
    (
        place
        for base in (
            os.environ.get("COTERIE_DATA", ""),
            Path(__file__).parents[3] / "shared" / "data",
        )
        for place in (Path(base), Path(base) / "cifar10")
        if base and (place / "train.parquet").is_file()
    ),
    None,
)


@pytest.mark.skipif(COPY is None, reason="no copy of CIFAR-10 in COTERIE_DATA")
def test_the_real_thing():
    clients = load("cifar10", folder=COPY, rows=1000, server=500)
    assert torch.bincount(clients.train.labels).tolist() == [100] * 10
    assert torch.bincount(clients.server.labels).tolist() == [50] * 10
    mean = clients.train.inputs.float().mean((0, 2, 3)) / 255
    assert (mean - torch.tensor([0.4914, 0.4822, 0.4465])).abs().max() < 0.02


# ---- the hub


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


def test_a_local_folder_in_the_layout_of_the_hub(tiny, quiet):
    with tempfile.TemporaryDirectory(
        prefix="hub"
    ) as home:  # `datasets` reads parts from paths: no "test" in this one
        data = Path(home) / "data"
        data.mkdir()
        for part in ("train", "test"):
            (tiny / f"{part}.parquet").rename(data / f"{part}.parquet")
        table = parquet.read_table(data / "train.parquet")
        features = quiet.Features(
            img=quiet.Image(),
            label=quiet.ClassLabel(names=[f"class {c}" for c in range(10)]),
        )
        schema = pyarrow.schema(table.schema, metadata=features.arrow_schema.metadata)
        for part in ("train", "test"):
            parquet.write_table(
                parquet.read_table(data / f"{part}.parquet").cast(schema),
                data / f"{part}.parquet",
            )
        clients = load(f"hf:{home}", split=SPLIT, rows=60)
        assert clients.classes[3] == "class 3"
        assert clients.train.inputs.shape == (60, 3, 32, 32)
        assert torch.equal(
            clients.train.inputs[:, 1, 0, 0].long(), clients.train.labels
        )
        assert torch.bincount(clients.train.labels).tolist() == [6] * 10
        assert len(load(f"hf:{home}", split=SPLIT, part="test").train.labels) == 40
        # The same images through the package and through our own reader.
        cifar = load("cifar10", folder=data, split=SPLIT)
        assert torch.equal(
            load(f"hf:{home}", split=SPLIT).train.inputs, cifar.train.inputs
        )
        for options, sentence in [
            ({"part": "trian"}, r"has no part 'trian'; did you mean 'train'\?"),
            ({"label": "lable"}, r"has no column 'lable'; did you mean 'label'\?"),
            ({"rows": 0}, "rows = 0 must lie between 1 and 120"),
            ({"server": 3}, "has no option 'server'"),
            ({"folder": "x"}, "is a name of the hub; drop folder = 'x'"),
        ]:
            with pytest.raises(InputError, match=sentence):
                load(f"hf:{home}", split=SPLIT, **options)


def test_a_name_that_cannot_be_had_is_one_sentence(monkeypatch, quiet):
    def unreachable(name, subset_name):
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub.\nmore")

    monkeypatch.setattr(quiet, "load_dataset", unreachable)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    for name in ("nobody/nothing", "hf:nobody/nothing"):
        with pytest.raises(
            InputError,
            match=r"the data set 'nobody/nothing' \(Couldn't reach .* the Hub\); check the name",
        ):
            load(name)
    with pytest.raises(
        InputError,
        match=r"CIFAR-10 was not found in COTERIE_DATA \(not set\); give a folder .*hub was tried",
    ):
        load("cifar10")
    monkeypatch.setattr(hub, "has_datasets", lambda: False)
    with pytest.raises(
        InputError,
        match=r"no folder 'nobody/nothing' here, and the Hugging Face hub needs: pip install",
    ):
        load("nobody/nothing")


def test_cifar10_comes_from_the_hub_where_there_is_no_copy(monkeypatch, quiet):
    monkeypatch.delenv("COTERIE_DATA", raising=False)

    def part(n):
        images = [
            Image.fromarray(np.full((32, 32, 3), i % 10, dtype=np.uint8))
            for i in range(n)
        ]
        features = quiet.Features(
            img=quiet.Image(), label=quiet.ClassLabel(num_classes=10)
        )
        return quiet.Dataset.from_dict(
            {"img": images, "label": [i % 10 for i in range(n)]}, features=features
        )

    monkeypatch.setattr(
        quiet,
        "load_dataset",
        lambda name, subset_name: {"train": part(60), "test": part(20)},
    )
    clients = load("cifar10", split=SPLIT, rows=30, server=10)
    assert clients.name == "cifar10"
    assert torch.equal(clients.train.inputs[:, 0, 0, 0].long(), clients.train.labels)
    assert len(clients.server) == 10


def test_labels_that_are_no_classes_cannot_be_dealt(quiet):
    numbers = quiet.Dataset.from_dict({"x": [[1.0, 2.0]] * 6, "label": [0.5] * 6})
    with pytest.raises(InputError, match="column 'label' must hold one class per row"):
        hub.columns(numbers, None, None)


# ---- the standard test set


def test_test_rows_from_the_standard_set_have_the_clients_shares_of_classes(tiny):
    own = load("cifar10", folder=str(tiny), split={**SPLIT, "kind": "shards"})
    mixed = load(
        "cifar10",
        folder=str(tiny),
        split={**SPLIT, "kind": "shards", "test": "label-mix"},
        server=10,
    )
    assert (
        mixed.train.sizes.sum() + mixed.validation.sizes.sum() == 120
    )  # nobody gives rows of its own to be tested on
    held = {tuple(image[:2, 0, 0].tolist()) for image in mixed.server.inputs}
    for i, name in enumerate(mixed.names):
        classes = torch.cat(
            [own[name].train.labels, own[name].validation.labels, own[name].test.labels]
        )
        counts = torch.bincount(classes, minlength=10).double()
        tested = mixed.test.part(i)
        found = torch.bincount(tested.labels, minlength=10).double()
        assert torch.equal(
            tested.inputs[:, 1, 0, 0].long(), tested.labels
        )  # images of that test set, and theirs the labels
        assert (tested.inputs[:, 0, 0, 0] < 40).all()
        assert not held & {tuple(image[:2, 0, 0].tolist()) for image in tested.inputs}
        assert (
            found.max() == 3
        )  # one of four images of a class is at the server: the commonest class takes all that are left
        expected = (counts * (3 / counts.max())).clamp(min=1) * (counts > 0)
        assert (found - expected).abs().max() <= 0.5


def test_the_whole_standard_set_tests_every_client_except_what_the_server_holds(tiny):
    clients = load(
        "cifar10",
        folder=str(tiny),
        split={**SPLIT, "test": "standard", "unseen": 1},
        server=10,
    )
    assert clients.test.sizes.tolist() == [30, 30, 30]
    assert clients.unseen.test.sizes.tolist() == [30]
    first = clients.test.part(0)
    assert torch.bincount(first.labels).tolist() == [3] * 10
    assert torch.equal(first.inputs, clients.unseen.test.part(0).inputs)


@pytest.mark.parametrize(
    ("data", "split", "sentence"),
    [
        (
            "digits",
            {"test": "standard"},
            r"needs a data set with a test set of its own, fashion-mnist or cifar10",
        ),
        (
            "digits",
            {"test": "standrad"},
            r"split[.]test must be own [|] label-mix [|] standard; got 'standrad'",
        ),
        (
            "digits",
            {"test": "standard", "flip": 0.5},
            r"flip does not apply to test = 'standard'",
        ),
        (
            "heart-disease",
            {"test": "standard"},
            r"test does not apply to heart-disease",
        ),
    ],
)
def test_a_standard_test_set_that_cannot_be_is_refused(data, split, sentence):
    with pytest.raises(InputError, match=sentence):
        load(data, split=split)


def test_a_standard_test_set_without_a_class_of_a_client_is_refused(tiny):
    write(tiny / "test.parquet", [i % 9 for i in range(36)])
    with pytest.raises(
        InputError, match=r"rows of class \[9\], which the standard test set lacks"
    ):
        load("cifar10", folder=str(tiny), split={**SPLIT, "test": "label-mix"})
