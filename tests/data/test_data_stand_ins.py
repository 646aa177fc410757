"""GoEmotions, MedMNIST, Shakespeare, EMNIST and Sent140 from tiny files of their formats."""

import gzip
import json
import math

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.base.loss import IGNORED
from coterie.data import load
from coterie.data.sets import hash_words
from coterie.data.sets.shakespeare import CHARACTERS
from coterie.models import CNN

NAMES = ["admiration", "anger", "joy", "neutral", "sadness"]
GROUPS = {
    "anger": ["anger"],
    "joy": ["admiration", "joy"],
    "sadness": ["sadness"],
    "neutral": ["neutral"],
}
FEW = {"rows_per_client": 4, "held_out": 3, "features": 64}


@pytest.fixture
def comments(tmp_path):
    """60 single-label comments for training and 10 for tests, and others with two labels."""
    (tmp_path / "labels.txt").write_text("\n".join(NAMES) + "\n")
    (tmp_path / "ekman_mapping.json").write_text(
        json.dumps({k: v for k, v in GROUPS.items() if k != "neutral"})
    )
    counts = {0: 30, 1: 20, 2: 30, 3: 60, 4: 6}
    lines = [
        f"so {NAMES[label]} {i}\t{label}\tid{i}"
        for label, count in counts.items()
        for i in range(count)
    ]
    train = gzip.compress(
        "\n".join([*lines, "both\t0,1\tx", "a\u2028b\t3\ty"]).encode()
    )
    (tmp_path / "train.tsv.gz").write_bytes(train)
    (tmp_path / "test.tsv").write_text(
        "\n".join(f"test {i}\t{i % 5}\tt{i}" for i in range(10)) + "\n"
    )
    return tmp_path


def test_comments_are_dealt_to_a_target_clients_near_it_and_far_from_it(comments):
    clients = load("goemotions", folder=str(comments), alpha=0.5, seed=1, **FEW)
    assert clients.names == (
        *(f"far-{i}" for i in range(9)),
        *(f"near-{i}" for i in range(10)),
        "target",
    )
    assert {len(c.train) for c in clients} == {4}
    target, near = clients[-1], clients[9]
    assert set(target.train.labels.tolist()) <= {0, 2}
    assert len(target.validation) == 3
    assert target.test.labels.tolist() == [
        0,
        2,
        0,
        2,
    ]  # all joy of the official test set
    assert sum(label in (0, 2) for label in near.train.labels.tolist()) == 2
    assert sum(label == 3 for label in near.train.labels.tolist()) == 2
    assert {c.test is None or len(c.test) == 0 for c in clients[:-1]} == {True}
    # Other classes take turns; of the 6 sad comments each of four clients has one, and the rest is neutral.
    far = [clients[i].train.labels.tolist() for i in range(9)]
    assert [own.count(1) for own in far] == [4, 0, 4, 0, 4, 0, 4, 0, 4]
    assert [own.count(4) for own in far] == [0, 1, 0, 1, 0, 2, 0, 2, 0]
    assert clients.classes == tuple(NAMES)


def test_the_deal_is_a_function_of_the_seed_and_gives_no_comment_twice(comments):
    def deal(seed):
        return load("goemotions", folder=str(comments), alpha=1.0, seed=seed, **FEW)

    assert deal(2).fingerprint() == deal(2).fingerprint() != deal(3).fingerprint()
    rows = torch.cat(
        [
            c.train.inputs
            for c in load(
                "goemotions", folder=str(comments), seed=0, **{**FEW, "features": 4096}
            )
        ]
    )
    assert len(rows.unique(dim=0)) == len(rows)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": "jo"}, "target = 'jo' is no class; did you mean 'joy'"),
        ({"alpha": 0}, "alpha = 0 must be a share"),
        ({"rows_per_client": 0}, "rows_per_client = 0 must be a whole number"),
        (
            {"rows_per_client": 40},
            r"\d+ more comments of joy are needed and \d+ are left; lower rows_per_client",
        ),
    ],
)
def test_what_cannot_be_dealt_is_named(comments, options, sentence):
    with pytest.raises(InputError, match=sentence):
        load("goemotions", folder=str(comments), **{**FEW, **options})


def test_missing_and_broken_files_are_named(comments, monkeypatch):
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with pytest.raises(
        InputError, match=r"goemotions was not found in COTERIE_DATA \(not set\)"
    ):
        load("goemotions")
    monkeypatch.setenv("COTERIE_DATA", str(comments))
    (comments / "test.tsv").write_text("one column\n")
    with pytest.raises(
        InputError,
        match=r"test\.tsv, line 1: expected text, label numbers below 5 and id",
    ):
        load("goemotions", **FEW)
    (comments / "train.tsv.gz").write_bytes(b"\x1f\x8bnothing")
    with pytest.raises(InputError, match=r"train\.tsv\.gz cannot be read"):
        load("goemotions", **FEW)
    (comments / "ekman_mapping.json").write_text('{"joy": ["jjoy"]}')
    with pytest.raises(
        InputError, match=r"ekman_mapping\.json does not fit labels\.txt"
    ):
        load("goemotions", **FEW)


def test_hashed_words_count_words_and_have_length_one():
    same = hash_words(["Don't stop!", "don't STOP !", "stop", ""], 512)
    assert torch.equal(same[0], same[1])
    assert (same[0] > 0).sum() == 3
    assert same.square().sum(1).tolist() == pytest.approx([1, 1, 1, 0])
    assert float(same[0] @ same[2]) == pytest.approx(3**-0.5)


def archive(path, shape=(28, 28), labels=lambda n: np.arange(n)[:, None] % 3):
    rng = np.random.default_rng(len(path.name))
    parts = {"train": 30, "val": 4, "test": 6}
    images = {
        f"{k}_images": rng.integers(0, 255, (n, *shape), dtype=np.uint8)
        for k, n in parts.items()
    }
    np.savez(path, **images, **{f"{k}_labels": labels(n) for k, n in parts.items()})


def test_one_set_is_dealt_and_several_are_a_client_each(tmp_path):
    archive(tmp_path / "amnist.npz")
    archive(tmp_path / "bmnist.npz")
    dealt = load(
        "medmnist",
        folder=str(tmp_path),
        sets=["amnist"],
        split={"kind": "iid", "clients": 3, "parts": {"train": 1}, "test": "standard"},
    )
    assert [len(c.train) for c in dealt] == [10, 10, 10]
    assert {len(c.test) for c in dealt} == {6}
    each = load("medmnist", folder=str(tmp_path), sets=["amnist", "bmnist"])
    assert [(c.name, len(c.train), len(c.validation), len(c.test)) for c in each] == [
        ("amnist", 30, 4, 6), ("bmnist", 30, 4, 6)
    ]  # fmt: skip
    assert each[0].train.inputs.dtype == torch.uint8
    assert each[0].train.labels.tolist() == [i % 3 for i in range(30)]


def test_colour_images_have_their_channels_first_and_must_not_meet_grey_ones(tmp_path):
    archive(tmp_path / "grey.npz")
    archive(tmp_path / "colour.npz", (28, 28, 3))
    (client,) = load(
        "medmnist",
        folder=str(tmp_path),
        sets=["colour"],
        split={"kind": "iid", "clients": 1},
    )
    assert client.train.inputs.shape[1:] == (3, 28, 28)
    with pytest.raises(InputError, match="differ in shape"):
        load("medmnist", folder=str(tmp_path), sets=["grey", "colour"])


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (
            lambda n: np.zeros((n, 14), dtype=np.int64),
            r"labels have the shape \[30, 14\]; only sets with one class",
        ),
        (lambda n: np.zeros(n - 1, dtype=np.int64), r"labels have the shape \[29\]"),
    ],
)
def test_sets_of_another_kind_are_refused(tmp_path, labels, sentence):
    archive(tmp_path / "amnist.npz", labels=labels)
    with pytest.raises(InputError, match=sentence):
        load("medmnist", folder=str(tmp_path), sets=["amnist"])


def test_broken_and_missing_archives_are_named(tmp_path):
    with pytest.raises(InputError, match="medmnist was not found in the folder"):
        load("medmnist", folder=str(tmp_path), sets=["amnist"])
    (tmp_path / "amnist.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"amnist\.npz cannot be read"):
        load("medmnist", folder=str(tmp_path), sets=["amnist"])
    np.savez(
        tmp_path / "amnist.npz", train_images=np.zeros((2, 28, 28), dtype=np.uint8)
    )
    with pytest.raises(InputError, match="has no train_images or no train_labels"):
        load("medmnist", folder=str(tmp_path), sets=["amnist"])


def test_a_cnn_has_two_convolutions():
    with pytest.raises(
        InputError, match=r"CNN\.channels must be a list of two ints > 0"
    ):
        CNN(channels=(8,))


@pytest.fixture
def plays(tmp_path):
    """Two plays; the roles KING and FOOL are long, the others short."""
    (tmp_path / "roles").mkdir()
    for play in ("lear", "pericles"):
        texts = {"KING": "so be it\n" * 12, "FOOL": f"{play} é, " * 20, "PAGE": "aye"}
        lines = [
            json.dumps({"play": play, "role": role, "text": text})
            for role, text in texts.items()
        ]
        (tmp_path / "roles" / f"{play}.jsonl").write_text(
            "\n".join(lines) + "\n", encoding="utf-8"
        )
    return tmp_path


SHORT = {"minimum_characters": 50, "segments": 2, "length": 25}


def test_a_role_is_a_client_and_labels_are_the_characters_that_follow(plays):
    clients = load("shakespeare", folder=str(plays), **SHORT)
    assert clients.names == ("lear-FOOL", "lear-KING", "pericles-FOOL", "pericles-KING")
    king = clients[1]
    assert king.train.inputs.shape == king.train.labels.shape == (2, 25)
    assert king.test.inputs.shape == (
        3,
        25,
    )  # 108 characters have 107 that follow: 5 segments, the last filled up
    assert torch.equal(
        king.train.inputs.flatten()[1:], king.train.labels.flatten()[:-1]
    )
    assert "".join(CHARACTERS[n] for n in king.train.inputs[0, :8]) == "so be it"
    assert king.train.inputs[0, 8] == 1
    assert (king.test.labels[-1] == IGNORED).sum() == 5 * 25 - 107
    fool = clients[0].train.inputs[0].tolist()
    assert CHARACTERS[fool[5]] == "?"
    assert len(clients.classes) == 97


def test_without_a_number_of_segments_all_but_the_last_forty_train(plays):
    longer, texts = (
        plays / "roles" / "hamlet.jsonl",
        {"KING": "so be it\n" * 130, "FOOL": "so be it\n" * 110},
    )
    longer.write_text(
        "\n".join(
            json.dumps({"role": role, "text": text}) for role, text in texts.items()
        )
    )
    clients = load("shakespeare", folder=str(plays), **{**SHORT, "segments": 0})
    assert clients.names == (
        "hamlet-KING",
    )  # 1,169 characters follow in 47 segments; of 989 in 40 none would train
    assert (len(clients[0].train), len(clients[0].test)) == (7, 40)
    assert (clients[0].test.labels[-1] == IGNORED).sum() == 47 * 25 - 1169


def test_the_largest_roles_of_the_plays_that_are_named(plays):
    one = load(
        "shakespeare", folder=str(plays), plays=["lear"], roles_per_play=1, **SHORT
    )
    assert one.names == ("lear-FOOL",)
    for options, sentence in [
        ({"plays": ["leer"]}, "there is no play 'leer' in .*did you mean 'lear'"),
        ({"length": 0}, "length = 0 must be an int > 0"),
        ({"segments": -1}, "segments = -1 must be an int >= 0"),
        (
            {"segments": 0},
            "no role of .* lower minimum_characters or segments",
        ),  # none has 41 segments
        ({"minimum_characters": 999}, "no role of .* has 999 characters"),
    ]:
        with pytest.raises(InputError, match=sentence):
            load("shakespeare", folder=str(plays), **{**SHORT, **options})
    (plays / "roles" / "lear.jsonl").write_text('{"role": "KING"}\n')
    with pytest.raises(InputError, match=r"lear\.jsonl cannot be read"):
        load("shakespeare", folder=str(plays), **SHORT)


@pytest.mark.in_turn
def test_an_lstm_learns_positions_and_internal_roles_are_named_by_a_pattern(plays):
    clients = load("shakespeare", folder=str(plays), **SHORT)
    local = ct.LocalSGD(lr=2.0, steps=ct.Steps(2), batch_size=2)
    run = ct.fit(
        ct.VaRSeL(internal="lear-*", local=local, budget=1),
        clients,
        "char-lstm",
        rounds=25,
        settings=ct.RunSettings(evaluate=25, metrics=("accuracy",)),
    )
    assert run.state.internal == ("lear-FOOL", "lear-KING")
    losses, hits = (
        dict(run.history.select(metric, "lear-KING", "train"))
        for metric in ("loss", "accuracy")
    )
    assert losses[0] == pytest.approx(math.log(97), rel=0.05)
    assert losses[25] < 3
    assert hits[25] > 0.15 > hits[0]


def idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(
        int(n).to_bytes(4, "big") for n in array.shape
    )
    path.write_bytes(head + array.tobytes())


def letters(folder, highest=46):
    images = np.arange(94 * 784, dtype=np.uint32).astype(np.uint8).reshape(94, 28, 28)
    labels = (np.arange(94) % (highest + 1)).astype(np.uint8)
    for part in ("train", "test"):
        idx(folder / f"emnist-balanced-{part}-images-idx3-ubyte", images)
        idx(folder / f"emnist-balanced-{part}-labels-idx1-ubyte", labels)
    return images


def test_letters_are_turned_upright_and_dealt(tmp_path):
    images = letters(tmp_path)
    split = {"kind": "iid", "clients": 1, "parts": {"train": 1}, "test": "standard"}
    (client,) = load("emnist", folder=str(tmp_path), split=split, server=4)
    assert torch.equal(client.train.inputs[3], torch.from_numpy(images[3].T.copy()))
    assert client.train.labels.tolist() == [i % 47 for i in range(94)]
    assert len(client.test) == 90
    letters(tmp_path, highest=47)
    with pytest.raises(
        InputError, match="emnist-balanced-train labels must lie between 0 and 46"
    ):
        load("emnist", folder=str(tmp_path), split=split)


def test_a_user_of_tweets_is_a_client(tmp_path):
    rows = [
        f'{user},"so {word}, {i}",{label}'
        for user in ("ann", "bob")
        for i in range(6)
        for word, label in (("good", 4), ("bad", 0))
    ]
    file = tmp_path / "sent140.csv"
    file.write_text("user,text,sentiment\n" + "\n".join([*rows, "cid,alone,1"]) + "\n")
    clients = load("sent140", folder=str(tmp_path), minimum=5, features=64)
    assert clients.names == ("ann", "bob")
    assert sum(len(part) for _, part in clients[0].parts()) == 12
    assert clients[0].train.labels.unique().tolist() == [0, 1]
    assert list(clients.notes) == ["1 users with fewer than 5 tweets are left out"]
    with pytest.raises(InputError, match=r"no user of .* has 50 tweets"):
        load("sent140", folder=str(tmp_path))
    file.write_text("user,text,sentiment\nann,so,2\n")
    with pytest.raises(
        InputError, match="line 2: expected user, text and sentiment 0, 1 or 4"
    ):
        load("sent140", folder=str(tmp_path))
