"""Clients from tensors and from data sets with index lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from coterie.base.clients import Client
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.config.data import DEFAULT_PARTS
from coterie.data import from_dataset, from_tensors
from coterie.data.parts import stratified


def pair(n, seed=0, classes=2):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=g), torch.randint(0, classes, (n,), generator=g)


def test_unsplit_pairs_get_the_default_split_by_name():
    clients = from_tensors([pair(30, i) for i in range(12)])
    assert clients.names[:2] == ("client-00", "client-01")
    assert [len(p) for _, p in clients["client-03"].parts()] == [16, 4, 10]
    inputs, labels = pair(30, 3)
    want = stratified(labels.numpy(), DEFAULT_PARTS, seed=0, name="client-03")
    assert torch.equal(
        clients["client-03"].test.inputs, inputs[torch.from_numpy(want["test"])]
    )
    named = from_tensors(
        {"x": pair(30, 3), "client-03": pair(30, 3)},
        classes=["no", "yes"],
        notes=["hello"],
    )
    assert torch.equal(named["client-03"].test.inputs, clients["client-03"].test.inputs)
    assert (named.classes, named.notes) == (("no", "yes"), ("hello",))


def test_parts_are_taken_as_they_are():
    three = (pair(5, 1), pair(2, 2), pair(3, 3))
    for value in (
        three,
        list(three),
        dict(zip(("train", "validation", "test"), three, strict=True)),
    ):
        client = from_tensors({"a": value})["a"]
        assert [len(p) for _, p in client.parts()] == [5, 2, 3]
        assert torch.equal(client.test.inputs, three[2][0])
    assert from_tensors([(pair(5), None, pair(3))])["client-0"].validation is None
    assert from_tensors([{"train": pair(5), "test": None}])["client-0"].test is None
    ready = Client("a", Part(*pair(4)))
    assert len(from_tensors([ready])["a"].train) == 4


def test_arrays_dicts_and_types():
    clients = from_tensors(
        [(np.zeros((9, 2)), np.array([0, 1, 1] * 3, dtype=np.int32))]
    )
    assert (clients.train.inputs.dtype, clients.train.labels.dtype) == (
        torch.float32,
        torch.int64,
    )
    doubles = from_tensors(
        [(torch.zeros(9, 2, dtype=torch.float64), torch.arange(9, dtype=torch.float64))]
    )
    assert (doubles.train.inputs.dtype, doubles.train.labels.dtype) == (
        torch.float64,
        torch.float64,
    )
    tokens = {
        "input_ids": torch.zeros(9, 4, dtype=torch.int64),
        "mask": torch.ones(9, 4, dtype=torch.int64),
    }
    several = from_tensors([(tokens, [0, 1, 0] * 3)], server=(tokens, [0, 1, 0] * 3))
    assert set(several.train.inputs) == {"input_ids", "mask"}
    assert len(several.server) == 9
    masks = from_tensors(
        [(torch.zeros(6, 1, 4, 4), -torch.ones(6, 4, 4, dtype=torch.int64))]
    )
    assert masks.train.labels.shape[1:] == (4, 4)
    unseen = from_tensors([pair(9)], unseen={"later": pair(9)})
    assert unseen.unseen.names == ("later",)
    assert unseen.names == ("client-0",)


@pytest.mark.parametrize("n", range(1, 8))
def test_tiny_clients_always_have_a_training_row(n):
    clients = from_tensors([(torch.zeros(n, 2), torch.arange(n) % 3)])
    assert len(clients["client-0"].train) >= 1
    assert sum(len(p) for _, p in clients["client-0"].parts()) == n


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "there are no clients; give at least one"),
        ([torch.zeros(3)], r"client 'client-0' is Tensor; give \(inputs, labels\)"),
        (
            {"a": (torch.zeros(3, 1), torch.zeros(2, dtype=torch.int64))},
            "client 'a' has 3 rows of inputs but 2 labels",
        ),
        ({"a": pair(0)}, "client 'a' has no rows; remove it"),
        (
            {"a": {"train": pair(3), "tset": pair(3)}},
            r"client 'a' has a part 'tset'; did you mean 'test'\?",
        ),
        ({"a": {"test": pair(3)}}, "client 'a' has no part 'train'"),
        (
            {"a": (None, pair(3), pair(3))},
            "client 'a' has no training rows; the first of the three parts is train",
        ),
        (
            {"a": (torch.zeros(2, 1), [-1, 1])},
            "client 'a' has the label -1; number the classes 0, 1, 2",
        ),
        (
            {"a": (["x", "y"], [0, 1])},
            "client 'a', inputs cannot become a tensor; give numbers",
        ),
        ({"a": ([[1], [1, 2]], [0, 1])}, "client 'a', inputs cannot become a tensor"),
        ({"a": ({}, [0, 1])}, "client 'a' has an empty dict of inputs"),
        (
            {"a": ({"x": [1], "y": [1, 2]}, [0, 1])},
            "client 'a' has inputs of different length",
        ),
        ({"a": (torch.tensor(3.0), [0, 1])}, "client 'a', inputs has no rows"),
        (
            {"a": (torch.tensor([[np.nan], [1.0]]), [0, 1])},
            "client 'a', .* contain NaN or Inf",
        ),
    ],
)
def test_wrong_tensors_are_refused(given, sentence):
    with pytest.raises(InputError, match=sentence):
        from_tensors(given)


def test_a_split_that_makes_clients_does_not_apply():
    with pytest.raises(InputError, match="clients does not apply to a list of clients"):
        from_tensors([pair(9)], split={"clients": 3})


# Data sets with index lists.


class Items(Dataset):
    """Items (x, y) whose reads are counted."""

    classes = ("cat", "dog")

    def __init__(self, n=20, make=lambda i: (np.full(2, i, dtype=np.float64), i % 2)):
        self.n, self.make, self.reads = n, make, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.reads.append(i)
        return self.make(i)


def test_a_torch_data_set_is_read_once_and_shared():
    data = Items()
    clients = from_dataset(data, [[0, 2, 4, 1, 3], [19, 18, 17, 0]])
    assert sorted(data.reads) == [
        0,
        0,
        0,
        1,
        2,
        3,
        4,
        17,
        18,
        19,
    ]  # the first as a test
    assert clients.train.inputs.shape == (8, 2)
    assert clients.train.inputs.dtype == torch.float32
    assert clients.train.inputs.data_ptr() == clients.test.inputs.data_ptr()
    assert clients.classes == ("cat", "dog")
    seen = {
        c.name: sorted(float(x[0]) for _, p in c.parts() for x in p.inputs)
        for c in clients
    }
    assert seen == {"client-0": [0, 1, 2, 3, 4], "client-1": [0, 17, 18, 19]}
    for client in clients:
        for _, part in client.parts():
            assert torch.equal(part.labels, part.inputs[:, 0].long() % 2)


def test_index_lists_with_parts_and_names_and_a_tensor_data_set():
    data = TensorDataset(torch.arange(20.0)[:, None], torch.arange(20) % 2)
    clients = from_dataset(
        data, {"b": {"train": [5, 6], "test": [7]}, "a": {"train": np.array([1])}}
    )
    assert clients.names == ("a", "b")
    assert clients["b"].train.inputs.flatten().tolist() == [5, 6]
    assert clients["b"].test.inputs.flatten().tolist() == [7]
    assert clients["a"].test is None
    assert clients.validation is None


def test_images_and_dicts_in_items():
    image = pytest.importorskip("PIL.Image")
    grey = from_dataset(
        Items(6, lambda i: (image.new("L", (4, 3), i), i % 2)), [range(6)]
    )
    assert (grey.train.inputs.dtype, grey.train.inputs.shape[1:]) == (
        torch.uint8,
        (3, 4),
    )
    colour = from_dataset(
        Items(6, lambda i: (image.new("RGB", (4, 3), (i, 0, 9)), i % 2)), [range(6)]
    )
    assert colour.train.inputs.shape[1:] == (3, 3, 4)
    assert colour.train.inputs[2, :, 0, 0].tolist() == [2, 0, 9]
    tokens = from_dataset(
        Items(6, lambda i: ({"input_ids": [i, 0]}, i % 2)), [range(6)]
    )
    assert tokens.train.inputs["input_ids"].dtype == torch.int64


def hugging(**columns):
    datasets = pytest.importorskip("datasets")
    return datasets, datasets.Dataset.from_dict(columns)


def test_hugging_face_columns_are_guessed():
    datasets, data = hugging(
        input_ids=[[1, 2], [3, 4], [5, 6]] * 2,
        attention_mask=[[1, 1]] * 6,
        text=["a"] * 6,
        label=[0, 1] * 3,
    )
    data = data.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    clients = from_dataset(data, [[0, 1, 2, 3, 4], {"rows": [5]}])
    assert set(clients.train.inputs) == {"input_ids", "attention_mask"}
    assert clients.train.inputs["input_ids"].dtype == torch.int64
    assert clients.classes == ("no", "yes")
    assert clients["client-1"].train.inputs["input_ids"].tolist() == [[5, 6]]
    _, plain = hugging(x=[[0.5, 1.0]] * 6, text=["a"] * 6, y=[0, 1] * 3)
    assert from_dataset(plain, [range(6)]).train.inputs.dtype == torch.float32
    chosen = from_dataset(
        plain.add_column("z", [1] * 6), [range(6)], input=["x", "z"], label="y"
    )
    assert set(chosen.train.inputs) == {"x", "z"}


def test_hugging_face_images():
    image = pytest.importorskip("PIL.Image")
    datasets, data = hugging(
        image=[image.new("L", (3, 2), i) for i in range(6)],
        id=list(range(6)),
        label=[0, 1] * 3,
    )
    assert isinstance(data.features["image"], datasets.Image)
    clients = from_dataset(data, [range(6)])
    assert (clients.train.inputs.dtype, clients.train.inputs.shape[1:]) == (
        torch.uint8,
        (2, 3),
    )


def test_hugging_face_refusals():
    datasets, data = hugging(a=[1, 2], b=[1, 2], text=["u", "v"], target=[0, 1])
    for options, sentence in [
        ({}, "which column is the input.*a, b, text, target"),
        ({"input": "txt"}, r"the data set has no column 'txt'; did you mean 'text'\?"),
        (
            {"input": "text"},
            "row 0: column 'text' are str, which cannot become a tensor; tokenise it first",
        ),
        ({"label": "text", "input": "a"}, "row 0: column 'text' are str"),
    ]:
        with pytest.raises(InputError, match=sentence):
            from_dataset(data, [[0, 1]], **options)
    with pytest.raises(InputError, match=r"which column is the label.*a, b, text"):
        from_dataset(data.remove_columns("target"), [[0, 1]])
    with pytest.raises(
        InputError,
        match=r"row 1: column 'input_ids' have shape \[1\] but row 0 has \[2\]; pad or crop",
    ):
        from_dataset(hugging(input_ids=[[1, 2], [3]], label=[0, 1])[1], [[0, 1]])
    with pytest.raises(
        InputError,
        match="DatasetDict is not a data set with numbered rows; choose one of its splits",
    ):
        from_dataset(datasets.DatasetDict(train=data), [[0]])
    with pytest.raises(
        InputError, match="IterableDataset is not a data set with numbered rows"
    ):
        from_dataset(data.to_iterable_dataset(), [[0]])


@pytest.mark.parametrize(
    ("lists", "sentence"),
    [
        ([], "there are no index lists"),
        ([[]], "no index list names a row"),
        ([[0, 1], []], "client 'client-1' has no rows"),
        ([[0, 20]], "client 'client-0' has row 20 of a data set with 20 rows"),
        ([[-1]], "client 'client-0' has row -1 of a data set"),
        (
            [[0.5]],
            "client 'client-0': give row numbers as a list of whole numbers, not float64",
        ),
        (
            [{"trian": [1]}],
            r"client 'client-0' has a part 'trian'; did you mean 'train'\?",
        ),
        (
            [{"train": [1]}, [2]],
            "client 'client-1' has a list of rows and others have parts",
        ),
        ([{"train": [1]}, {"test": [2]}], "clients without training rows: client-1"),
        ([{"test": [2]}], "clients without training rows: client-0"),
    ],
)
def test_wrong_index_lists_are_refused(lists, sentence):
    with pytest.raises(InputError, match=sentence):
        from_dataset(Items(), lists)


def test_items_that_are_no_pairs_are_refused():
    with pytest.raises(InputError, match="row 0 of the data set is int; items must be"):
        from_dataset(Items(make=lambda i: i), [[0]])
    with pytest.raises(
        InputError, match=r"row 1: inputs have shape \[1\] but row 0 has \[0\]"
    ):
        from_dataset(Items(make=lambda i: (np.zeros(i), 0)), [[0, 1]])
    with pytest.raises(
        InputError,
        match="input and label name columns, which this data set does not have",
    ):
        from_dataset(Items(), [[0]], label="y")


def test_pairs_of_tensors_are_joined_once_and_give_each_client_the_same_rows(
    monkeypatch,
):
    pairs = {f"c{i}": pair(5 + 7 * i, i) for i in range(6)}
    slow = from_tensors(
        {
            name: value if name != "c0" else tuple(v.numpy() for v in value)
            for name, value in pairs.items()
        }
    )
    monkeypatch.setattr(
        "coterie.data.tensors._client", None
    )  # nothing is made client by client
    fast = from_tensors(pairs)
    assert fast.names == slow.names
    assert fast.train.inputs is fast.test.inputs
    assert fast.fingerprints() == slow.fingerprints()
    assert (
        fast.merge_validation().fingerprints() == slow.merge_validation().fingerprints()
    )
    assert (
        fast.merge_validation(["c1", "c4"]).fingerprints()
        == slow.merge_validation(["c1", "c4"]).fingerprints()
    )
    for clients in (fast, slow):
        merged = clients.merge_validation(["c1", "c4"])
        assert merged.sizes("validation")["c1"] == clients.sizes("validation")["c1"]
        assert merged.sizes("validation")["c2"] == 0


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            (torch.full((9, 3), torch.nan), torch.zeros(9, dtype=torch.int64)),
            "client 'b'.* NaN or Inf",
        ),
        (
            (torch.zeros(9, 3), -torch.ones(9, dtype=torch.int64)),
            "client 'b' has the label -1",
        ),
        (
            (torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)),
            "client 'b' has inputs of shape",
        ),
        (
            (torch.zeros(8, 3), torch.zeros(9, dtype=torch.int64)),
            "client 'b' has 8 rows of inputs but 9 labels",
        ),
        (
            (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)),
            "client 'b' has no rows",
        ),
        ((torch.tensor(1.0), torch.tensor(1)), "client 'b', inputs has no rows"),
        ((torch.zeros(9, 3), torch.zeros(9)), "client 'b' has labels of shape"),
    ],
)
def test_one_wrong_pair_among_many_is_still_named(value, sentence):
    with pytest.raises(InputError, match=sentence):
        from_tensors({"a": pair(9), "b": value, "c": pair(9, 2)})
