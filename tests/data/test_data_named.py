"""Data sets by name: heart-disease, nhefs, digits, fashion-mnist, mean-estimation, and `load` itself."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from coterie.base.errors import InputError
from coterie.config.registry import DATASETS
from coterie.data import load
from coterie.data.sets.fashion_mnist import DEBIAN, read_idx
from coterie.data.sets.mean_estimation import means, printed_means
from coterie.run.tables import read_experiment

needs_fashion = pytest.mark.skipif(
    not DEBIAN.is_dir(), reason="apt install dataset-fashion-mnist"
)


def idx(array, gz=True):
    raw = (
        bytes([0, 0, 8, array.ndim])
        + np.array(array.shape, dtype=">u4").tobytes()
        + array.astype(np.uint8).tobytes()
    )
    return gzip.compress(raw) if gz else raw


@pytest.fixture
def tiny(tmp_path):
    """Four IDX files: 300 training images, 40 test images."""
    rng = np.random.default_rng(0)
    for which, n in (("train", 300), ("t10k", 40)):
        images = rng.integers(0, 256, size=(n, 28, 28))
        (tmp_path / f"{which}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (tmp_path / f"{which}-labels-idx1-ubyte").write_bytes(
            idx(np.arange(n) % 10, gz=False)
        )
    return tmp_path


def test_every_entry_says_what_it_is():
    assert list(DATASETS) == [
        "heart-disease",
        "nhefs",
        "nhefs-survival",
        "digits",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "emnist",
        "goemotions",
        "medmnist",
        "shakespeare",
        "sent140",
        "mean-estimation",
    ]
    for name, entry in DATASETS.items():
        assert "\n" not in entry.summary + entry.clients + entry.task + entry.licence
        assert len(f"{name} {entry.summary}") < 80
        assert len(entry.details) > 50


@pytest.mark.parametrize(
    "name", ["heart-disease", "nhefs", "nhefs-survival", "digits", "mean-estimation"]
)
def test_defaults_spelled_out_are_the_defaults(name):
    defaults = dict(DATASETS[name].defaults)
    split = defaults.pop("split", None)
    assert (
        load(name, seed=1, split=split, **defaults).fingerprint()
        == load(name, seed=1).fingerprint()
    )
    assert load(name, seed=2).fingerprint() != load(name, seed=1).fingerprint()


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "hart-disease",
            {},
            r"no data set or folder 'hart-disease'; did you mean 'heart-disease'\?.*a folder path works too",
        ),
        ("digits", {"label": "y"}, "digits has its own label; drop label = 'y'"),
        ("digits", {"alpha": 1}, "digits has no option 'alpha'; it has none"),
        ("digits", {"folder": "x"}, "digits has no option 'folder'"),
        (
            "mean-estimation",
            {"muu": 1},
            r"mean-estimation has no option 'muu'; did you mean 'mu'\?",
        ),
        ("digits", {"seed": -1}, "seed must be an int >= 0; got -1"),
        ("digits", {"seed": True}, "seed must be an int >= 0; got True"),
        (
            "heart-disease",
            {"split": {"alpha": 1}},
            "alpha does not apply to heart-disease, which has",
        ),
        (
            "mean-estimation",
            {"split": {"parts": {"train": 1}}},
            "parts does not apply to mean-estimation",
        ),
        ("mean-estimation", {"mu": -1}, "mu = -1 must be a number of at least 0"),
        (
            "mean-estimation",
            {"groups": [0, 1, 1]},
            "groups = .* must be three whole numbers of clients",
        ),
        ("mean-estimation", {"groups": 5}, "groups = 5 must be three whole numbers"),
        (
            "mean-estimation",
            {"samples": 0},
            "samples = 0 must be a whole number of at least 1",
        ),
        (
            "mean-estimation",
            {"centres": [1]},
            r"centres = \[1\] must be a list of at least two numbers",
        ),
        ("mean-estimation", {"dim": 1}, "dim = 1 must be a whole number of at least 2"),
    ],
)
def test_wrong_names_and_options_are_refused(name, options, sentence):
    with pytest.raises(InputError, match=sentence):
        load(name, **options)


def test_nhefs_holds_every_person_once_and_no_place_or_number_of_a_person():
    from coterie.data.sets.nhefs import FOLDER

    clients = load("nhefs")
    labels = [part.labels for client in clients for _, part in client.parts()]
    deaths = sum(int(label.sum()) for label in labels)
    assert (sum(map(len, labels)), deaths) == (1629, 318)
    assert len(clients) == 8
    assert clients.train.inputs.shape[1] == 11
    headers = {f.read_text().partition("\n")[0] for f in FOLDER.glob("*.csv")}
    assert len(headers) == 1
    assert not {"birthplace", "seqn", "race"} & set(headers.pop().split(","))
    terms = (FOLDER / "LICENSE.md").read_text(encoding="utf-8")
    assert "statistical reporting and analysis only" in " ".join(terms.split())


def test_nhefs_with_times_is_nhefs_with_the_month_of_death():
    timed, alone = load("nhefs-survival"), load("nhefs")
    assert timed.form.kind == "hazards"
    assert (timed.form.horizon, timed.form.unit) == (120.0, "months")
    assert timed.recipe["features"] == alone.recipe["features"]
    for with_times, without in zip(timed, alone, strict=True):
        for (_, part), (_, other) in zip(
            with_times.parts(), without.parts(), strict=True
        ):
            assert (part.labels[:, 2] == other.labels).all()
            followed = part.labels[:, 1] * 120
            assert ((followed >= 1 - 1e-4) & (followed <= 120 + 1e-4)).all()
            assert (followed[part.labels[:, 2] == 0] > 119.9).all()


def test_digits():
    pytest.importorskip("sklearn")
    clients = load("digits", split={"clients": 4, "kind": "iid"})
    assert clients.names == ("client-0", "client-1", "client-2", "client-3")
    assert clients.train.inputs.shape == (1797, 64)
    assert (float(clients.train.inputs.min()), float(clients.train.inputs.max())) == (
        0.0,
        1.0,
    )
    assert clients.train.inputs.data_ptr() == clients.test.inputs.data_ptr()
    used = np.concatenate(
        [r.index for r in (clients.train, clients.validation, clients.test)]
    )
    assert np.array_equal(np.sort(used), np.arange(1797))
    assert len(load("digits")) == 10
    sized = load("digits", split={"kind": "shards", "clients": 5, "shard_size": 100})
    assert sum(len(p) for _, p in sized["client-0"].parts()) == 200


@pytest.mark.in_turn
@needs_fashion
def test_the_task_of_varsel_60_clients_with_two_shards_of_500():
    clients = load(
        "fashion-mnist", split={"kind": "shards", "clients": 60, "shard_size": 500}
    )
    assert len(clients) == 60
    sizes = sum(r.sizes for r in (clients.train, clients.validation, clients.test))
    assert set(sizes.tolist()) == {1000}
    assert all(len(torch.unique(c.train.labels)) <= 2 for c in clients)


@needs_fashion
def test_fashion_mnist_from_debian():
    clients = load("fashion-mnist", server=500)
    assert len(clients) == 100
    assert clients.train.inputs.dtype == torch.uint8
    assert clients.train.inputs.shape == (60000, 28, 28)
    assert clients.train.inputs.data_ptr() == clients.validation.inputs.data_ptr()
    assert (
        int(
            sum(
                r.sizes.sum() for r in (clients.train, clients.validation, clients.test)
            )
        )
        == 60000
    )
    assert len(clients.server) == 500
    assert (
        abs(float(clients.train.inputs[:1000].float().mean()) / 255 - 0.286) < 0.01
    )  # the known mean
    assert np.array_equal(np.bincount(clients.train.labels), [6000] * 10)


def test_fashion_mnist_is_found_where_the_user_says(tiny, tmp_path, monkeypatch):
    split = {"clients": 3, "kind": "iid"}
    clients = load("fashion-mnist", folder=str(tiny), split=split, server=7)
    assert clients.train.inputs.shape == (300, 28, 28)
    assert len(clients.server) == 7
    assert clients.classes[9] == "ankle boot"
    monkeypatch.setenv("COTERIE_DATA", str(tiny))
    assert (
        load("fashion-mnist", split=split, server=7).fingerprint()
        == clients.fingerprint()
    )
    home = tmp_path / "home"
    home.mkdir()
    for file in [*tiny.glob("*ubyte*")]:
        (home / "fashion-mnist").mkdir(exist_ok=True)
        file.rename(home / "fashion-mnist" / file.name)
    monkeypatch.setenv("COTERIE_DATA", str(home))
    assert (
        load("fashion-mnist", split=split, server=7).fingerprint()
        == clients.fingerprint()
    )
    assert load("fashion-mnist", split=split, rows=100).train.inputs.shape == (
        100,
        28,
        28,
    )


def test_fashion_mnist_missing_or_wrong(tiny, tmp_path, monkeypatch):
    place = r"give a folder with .*, set the environment variable COTERIE_DATA to it, or fill .*apt install dataset-fashion-mnist"
    with pytest.raises(InputError, match=rf"not found in the folder .*none; {place}"):
        load("fashion-mnist", folder=str(tmp_path / "none"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    monkeypatch.setattr("coterie.data.sets.fashion_mnist.DEBIAN", tmp_path / "debian")
    with pytest.raises(
        InputError, match=rf"not found in COTERIE_DATA \(not set\); {place}"
    ):
        load("fashion-mnist")
    for options, sentence in [
        ({"rows": 0}, "rows = 0 must lie between 1 and 300"),
        ({"rows": 301}, "rows = 301 must lie between 1 and 300"),
        ({"server": 41}, "server = 41 must lie between 0 and 40"),
    ]:
        with pytest.raises(InputError, match=sentence):
            load("fashion-mnist", folder=str(tiny), split={"clients": 3}, **options)
    labels = tiny / "train-labels-idx1-ubyte"
    for array, sentence in [
        (np.full(300, 10), "labels must lie between 0 and 9"),
        (np.zeros(299), "300 train images but"),
    ]:
        labels.write_bytes(idx(array, gz=False))
        with pytest.raises(InputError, match=sentence):
            load("fashion-mnist", folder=str(tiny))
    labels.unlink()
    with pytest.raises(
        InputError,
        match=r"has no train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz; copy all four",
    ):
        load("fashion-mnist", folder=str(tiny))
    (tiny / "train-images-idx3-ubyte.gz").write_bytes(idx(np.zeros((300, 8, 8))))
    labels.write_bytes(idx(np.zeros(300), gz=False))
    with pytest.raises(InputError, match=r"train images are \[8, 8\], not 28 x 28"):
        load("fashion-mnist", folder=str(tiny))


def test_idx_files_are_checked(tmp_path):
    path, array = tmp_path / "some-idx", np.arange(24).reshape(2, 3, 4)
    for gz in (True, False):
        path.write_bytes(idx(array, gz))
        assert np.array_equal(read_idx(path), array)
    whole = idx(array, gz=False)
    for raw, sentence in [
        (b"", "not an IDX file of bytes: it starts with nothing"),
        (b"\x89PNG....", "it starts with 89 50 4e 47, not with 00 00 08"),
        (b"\x00\x00\x0d\x01" + b"\x00" * 8, "starts with 00 00 0d 01"),  # floats
        (
            whole[:-1],
            r"holds 23 bytes of data but its header says 24 \[2, 3, 4\]; copy it again",
        ),
        (whole + b"x", "holds 25 bytes of data but its header says 24"),
        (whole[:9], "bytes of data but its header says"),
        (gzip.compress(whole)[:-9], "cannot be read .*; copy it again"),
        (b"\x1f\x8b" + b"x" * 40, "cannot be read"),
    ]:
        path.write_bytes(raw)
        with pytest.raises(InputError, match=sentence):
            read_idx(path)


def test_mean_estimation_is_the_task_of_the_paper():
    clients = load("mean-estimation", mu=0.1, seed=5)
    assert len(clients) == 150
    assert [
        sum(n.startswith(g) for n in clients.names) for g in ("d1-", "d2-", "d3-")
    ] == [5, 95, 50]
    assert clients.names[0] == "d1-000"
    assert clients.train.sizes.tolist() == [1000] * 150
    assert clients.validation.sizes.tolist() == [1000] + [0] * 149
    assert clients["d2-007"].validation is None
    assert clients.train.inputs is clients.train.labels
    group = {
        g: torch.cat([c.train.inputs for c in clients if c.name.startswith(g)]).mean(0)
        for g in ("d1", "d2", "d3")
    }
    want = means(0.1)
    for row, (name, size) in enumerate((("d1", 5), ("d2", 95), ("d3", 50))):
        assert np.abs(group[name].numpy() - want[row]).max() < 5 / np.sqrt(size * 1000)
    assert np.allclose(np.linalg.norm(want, axis=1), [0, 0.1, 1])
    assert np.allclose(want[2] * np.sqrt(5), [0, 1] * 5)
    assert abs(float(clients.train.inputs.std(0).mean()) - 1) < 0.05
    assert not torch.equal(
        clients["d1-000"].train.inputs, clients["d1-000"].validation.inputs
    )


def test_printed_means_are_those_of_the_text_and_leave_the_target_its_samples():
    near, far = printed_means(0.1, 10, 3)[1:]
    assert np.allclose(near, 0.1)
    assert np.linalg.norm(far) == pytest.approx(1)
    assert not np.allclose(far, printed_means(0.1, 10, 4)[2])
    code, text = (
        load("mean-estimation", seed=3, mu=0.1, samples=5, printed=p)
        for p in (False, True)
    )
    assert torch.equal(code["d1-000"].train.inputs, text["d1-000"].train.inputs)
    moved = text["d2-000"].train.inputs - code["d2-000"].train.inputs
    assert np.allclose(moved, near - means(0.1)[1], atol=1e-6)
    with pytest.raises(InputError, match="printed = 1 must be true or false"):
        load("mean-estimation", printed=1)


def test_a_client_of_mean_estimation_depends_on_nobody_else():
    few = load("mean-estimation", groups=[2, 1, 0], samples=5, test=3)
    more = load("mean-estimation", groups=[4, 3, 2], samples=5, test=0)
    assert torch.equal(few["d1-001"].train.inputs, more["d1-001"].train.inputs)
    assert torch.equal(few["d2-000"].train.inputs, more["d2-000"].train.inputs)
    assert more.test is None
    assert (
        load("mean-estimation", groups=[1, 1, 1], samples=2, validation=0).validation
        is None
    )
    assert (
        len(
            load(
                "mean-estimation", groups=[1, 1001, 0], samples=1, test=0, validation=0
            )
        )
        == 1002
    )


def test_scalar_clients_of_the_maxfl_toy():
    clients = load("mean-estimation", centres=[0.0, 4.0, 4.5], seed=3)
    assert clients.names == ("client-0", "client-1", "client-2")
    assert clients.train.sizes.tolist() == [1, 1, 1]
    assert clients.validation is None
    assert clients.test.inputs.tolist() == [[0.0], [4.0], [4.5]]
    assert torch.equal(
        clients.train.inputs[:2],
        load("mean-estimation", centres=[0.0, 4.0], seed=3).train.inputs,
    )
    noise = [
        load("mean-estimation", centres=[0.0, 4.0], seed=s).train.inputs[:, 0]
        for s in range(400)
    ]
    noise = torch.stack(noise) - torch.tensor([0.0, 4.0])
    assert noise.mean(0).abs().max() < 0.25
    assert (noise.std(0) - 1).abs().max() < 0.2


@pytest.mark.parametrize("key", ["source", "name_or_folder", "options"])
def test_a_function_that_gives_clients_names_its_arguments_as_it_likes(key, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch, coterie as ct\n\n\n"
        "def clients(*, seed, **mine):\n"
        "    (told,) = mine.values()\n"
        "    part = (torch.eye(4), torch.arange(4) % 2)\n"
        "    return ct.data.from_tensors({told: {'train': part, 'test': part}})\n"
    )
    assert load(f"{tmp_path}/mine.py:clients", **{key: "told"}).names == ("told",)
    (tmp_path / "mine.toml").write_text(f"""
methods = [{{ name = "fedavg" }}]
data = {{ name = "{tmp_path}/mine.py:clients", {key} = "told" }}
model = {{ name = "logistic" }}
""")
    assert read_experiment(tmp_path / "mine.toml").load_data(0).names == ("told",)
    with pytest.raises(InputError, match=key):
        load("heart-disease", **{key: "told"})
