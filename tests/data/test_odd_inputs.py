"""Objects that Python users really pass: each is taken as it is meant, or refused with its name and the cure."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch
from csv_files import folder, rows
from torch import nn

import coterie as ct
from coterie import data
from coterie.base.errors import InputError
from coterie.data.tables.check import check_folder

X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
MASKED = np.ma.masked_array(X, mask=X > 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: data.from_tensors({1: (X, Y), "1": (X, 1 - Y)}),
        lambda: data.from_tensors({"a": (X, Y)}, unseen={1: (X, Y), "1": (X, Y)}),
        lambda: data.from_tensors({"a": ({1: X, "1": X}, Y)}),
        lambda: data.from_arrays(X, Y, {1: range(10), "1": range(10, 20)}),
        lambda: data.from_frames({1: None, "1": None}, label="y"),
        lambda: data.by_group(np.array([1, "1", 1], dtype=object)),
    ],
)
def test_two_names_that_are_one_text_are_refused(make):
    with pytest.raises(
        InputError, match=r"1 and '1' .*are both called '1'; rename one"
    ):
        make()


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_row_without_a_group_is_refused(value):
    with pytest.raises(
        InputError, match="groups: row 1 has no value; say whose row it is"
    ):
        data.by_group(np.array(["a", value], dtype=object))


@pytest.mark.parametrize(
    "make",
    [
        lambda: data.from_tensors({"a": (MASKED, Y)}),
        lambda: data.from_tensors({"a": (X, np.ma.masked_array(Y, mask=Y > 0))}),
        lambda: data.from_tensors({"a": (list(MASKED), Y)}),
        lambda: data.from_arrays(MASKED, Y, {"a": range(30)}),
        lambda: data.from_dataset(
            [(MASKED[i], Y[i]) for i in range(30)], {"a": range(30)}
        ),
        lambda: data.by_group(np.ma.masked_array(["a", "b"], mask=[True, False])),
        lambda: (
            pytest.importorskip("coterie.sklearn")
            .FederatedClassifier(rounds=1)
            .fit(MASKED, Y)
        ),
        lambda: data.dirichlet(np.ma.masked_array(Y, mask=Y > 0), 2, 0.5),
        lambda: data.from_dataset(
            [(X[i], Y[i]) for i in range(30)],
            {"a": np.ma.masked_array([1, 2], [True, False])},
        ),
    ],
)
def test_masked_values_are_not_trained_on(make):
    with pytest.raises(InputError, match=r"masked .*\.filled\(\.\.\.\)"):
        make()


def test_a_masked_array_without_masked_values_is_an_array():
    want = data.from_tensors({"a": (X, Y)}).fingerprint()
    assert data.from_tensors({"a": (np.ma.masked_array(X), Y)}).fingerprint() == want


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v[::-1].copy()[::-1],
        lambda v: v.astype(v.dtype.newbyteorder(">")),
        np.asfortranarray,
        lambda v: np.lib.stride_tricks.as_strided(
            v, v.shape, v.strides, writeable=False
        ),
        np.ndarray.tolist,
    ],
)
def test_arrays_of_any_layout_are_taken(change):
    want = data.from_tensors({"a": (X, Y)}).fingerprint()
    assert data.from_tensors({"a": (change(X), change(Y))}).fingerprint() == want


def test_numbers_that_torch_does_not_have_are_refused_with_the_reason():
    wide = X.astype(np.longdouble)
    with pytest.raises(
        InputError,
        match=rf"client 'a', inputs are {wide.dtype}, which torch does not have; .*astype\('float64'\)",
    ):
        data.from_tensors({"a": (wide, Y)})


def test_numbers_of_numpy_are_numbers():
    assert ct.LocalSGD(lr=np.float32(0.5), batch_size=np.int64(8)) == ct.LocalSGD(
        lr=0.5, batch_size=8
    )
    assert type(ct.FedProx(mu=np.float64(0.25)).mu) is float
    parts = {"train": np.float32(0.5), "test": np.float32(0.5)}
    clients = data.from_tensors(
        {"a": (X, Y), "b": (X, Y)}, split={"parts": parts}, seed=np.int64(1)
    )
    run = ct.fit("fedavg", clients, "logistic", rounds=np.int64(1), seed=np.int64(1))
    want = ct.fit("fedavg", clients, "logistic", rounds=1, seed=1)
    assert run.seed == 1
    assert torch.equal(run.models["*"], want.models["*"])


@pytest.mark.parametrize(
    "make",
    [
        lambda v: ct.LocalSGD(lr=v),
        lambda v: ct.FedProx(mu=v),
        lambda v: data.Tables(above=v),
    ],
)
def test_an_integer_beyond_all_floats_is_no_number(make):
    with pytest.raises(InputError, match="must be"):
        make(10**400)


class Hooked(nn.Linear):
    def __init__(self, register):
        super().__init__(4, 2)
        getattr(self.weight, register)(lambda tensor: None)


@pytest.mark.parametrize(
    "register", ["register_hook", "register_post_accumulate_grad_hook"]
)
def test_hooks_on_parameters_are_refused(register):
    """They would not be called: gradients are taken by clients at once."""
    clients = data.from_tensors({"a": (X, Y), "b": (X, Y)})
    with pytest.raises(
        InputError, match=r"model has a hook on the parameter 'weight'.*take it off"
    ):
        ct.fit("fedavg", clients, Hooked(register), rounds=1)


@pytest.mark.skipif(
    sys.platform != "linux", reason="names of files are bytes on Linux alone"
)
@pytest.mark.parametrize(
    "read",
    [lambda p: data.from_folder(p, label="y"), lambda p: check_folder(p, label="y")],
)
def test_a_file_name_that_is_no_text_is_refused(tmp_path, read):
    text = rows(x=range(12), y=[0, 1] * 6)
    (place := tmp_path / "in").mkdir()
    folder(place, a=text)
    with open(os.path.join(os.fsencode(place), b"M\xfcnchen.csv"), "w") as file:
        file.write(text)
    with pytest.raises(
        InputError,
        match=r"in: the name of b'M.xfcnchen.csv' is not UTF-8 text; rename it",
    ) as caught:
        read(place)
    str(caught.value).encode()
    outside = tmp_path / os.fsdecode(b"\xff")
    with pytest.raises(InputError, match=r"is not UTF-8 text; rename it"):
        read(outside)


def test_a_cell_that_is_too_long_is_named(tmp_path):
    text = rows(x=range(12), y=[0, 1] * 6) + f'"{"a" * 140_000}",1\n'
    with pytest.raises(
        InputError,
        match=r"a.csv: line 14 has a cell of more than 131,072 characters; .*quote",
    ):
        data.from_folder(folder(tmp_path, a=text), label="y")


def test_numbers_that_are_too_large_name_their_client(tmp_path):
    good, bad = (
        rows(x=range(12), y=[0, 1] * 6),
        rows(x=[*range(11), "1e200"], y=[0, 1] * 6),
    )
    place = folder(tmp_path, a=good, b=good)
    (place / "c.csv").write_text(
        bad.replace("1e200", "0") + "1e200,1\n1e200,0\n1e200,1\n1e200,0\n1e200,1\n" * 3
    )
    with pytest.raises(
        InputError,
        match=r"column 'x' holds numbers too large to square at c; rescale it or say drop",
    ):
        data.from_folder(place, label="y")


def board(to):
    pytest.importorskip("torch.utils.tensorboard")
    ct.TensorBoard(to).open("fedavg", 0, 1)


PART = ct.Part(torch.from_numpy(X), torch.from_numpy(Y))
OTHER_TYPES = {
    "no part": (lambda: ct.Client("a", None), "client 'a': train must be a Part"),
    "a pair of other things": (
        lambda: ct.Client("a", (1, 2)),
        "client 'a': train must be a Part",
    ),
    "an array to test": (
        lambda: ct.Client("a", PART, test=X),
        r"client 'a': test must be .* got a ndarray",
    ),
    "a name that is a number": (
        lambda: ct.Client(1, PART),
        "name of a client must be a text .* got 1",
    ),
    "no clients": (
        lambda: data.standardise(None),
        r"clients must be Clients, .* got None",
    ),
    "pairs": (
        lambda: data.standardise({"a": (X, Y)}),
        "clients must be Clients, as ct.data.from_tensors makes them",
    ),
    "a number of classes": (
        lambda: data.from_tensors({"a": (X, Y)}, classes=2),
        "classes must be a list of texts",
    ),
    "numbers of classes": (
        lambda: data.from_tensors({"a": (X, Y)}, classes=[0, 1]),
        "classes must be a list of texts",
    ),
    "a text of notes": (
        lambda: data.from_tensors({"a": (X, Y)}, notes="a"),
        "notes must be a list of texts; got 'a'",
    ),
    "no notes": (
        lambda: data.from_tensors({"a": (X, Y)}, notes=None),
        "notes must be a list of texts; got None",
    ),
    "an array for a task": (
        lambda: data.from_tensors({"a": (X, Y)}, task=X),
        "task must be .* got a ndarray",
    ),
    "a key that is a number": (
        lambda: ct.fit("fedavg", {"a": (X, Y)}, engine={1: "a"}),
        "unknown key 1; ",
    ),
    "half a character": (
        lambda: board("runs\udcff"),
        r"TensorBoard cannot write to 'runs.udcff' \(.*name another",
    ),
    "a zero in a name": (
        lambda: board("runs\0"),
        r"TensorBoard cannot write to .*name another folder",
    ),
    "a long name": (
        lambda: board("r" * 1000),
        r"TensorBoard cannot write to .*name another folder",
    ),
    "a tau without a square": (
        lambda: ct.FedAdam(tau=1e308),
        r"FedAdam.tau must be a number > 0 and <= 1e15; got 1e\+308",
    ),
}


@pytest.mark.parametrize("case", OTHER_TYPES)
def test_a_value_of_another_type_is_refused_in_a_sentence_that_says_what_to_give(case):
    call, words = OTHER_TYPES[case]
    with pytest.raises(InputError, match=words):
        call()


def test_a_sentence_is_one_line_that_keeps_place_and_cure_however_long_a_name_is():
    with pytest.raises(InputError) as refused:
        ct.fit("f" * 10_000, {"a": (X, Y)})
    assert str(refused.value).startswith("there is no method 'fff")
    assert "varsel" in str(refused.value)
    assert len(str(refused.value)) <= 600
    assert str(InputError("a folder\nof two lines")) == "a folder of two lines"
