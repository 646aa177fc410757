"""Labels that are stored as the floats 0.0 and 1.0: a named loss says what they mean, else a run asks, whatever their shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import coterie as ct

SHAPES = {
    "[n]": (),
    "[n, 1]": (1,),
    "[n, h, w]": (2, 3),
    "[n, 1, h, w]": (1, 2, 3),
}
FLOATS = [torch.float16, torch.float32, torch.float64]


class Reshaped(nn.Module):
    """A linear model whose outputs have the shape of the labels; one output for labels [n]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape or (1,)
        self.linear = nn.Linear(3, torch.Size(self.shape).numel())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).reshape(len(x), *self.shape)


def model_of(shape: tuple[int, ...]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Reshaped(shape)


def parts_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
    """Rows of two clients by name; a label [n, *shape] is 1 where a random number of its row and place is large."""
    draw = torch.Generator().manual_seed(0)
    parts = {}
    for name in "ab":
        inputs = torch.randn(40, 3, generator=draw)
        noise = torch.randn(40, *shape, generator=draw)
        score = inputs[:, 0].reshape(-1, *[1] * len(shape)) + noise
        parts[name] = (inputs, (score > 0).to(dtype))
    return parts


def fitted(parts, shape, loss="auto", **task):
    clients = ct.data.from_tensors(parts, split={"seed": 1}, **task)
    settings = ct.RunSettings(loss=loss)
    return ct.fit("fedavg", clients, model_of(shape), 2, settings=settings)


def split_ready(parts):
    """The rows as (train, None, test), so that no split depends on the type of labels."""
    return {
        name: ((x[:30], y[:30]), None, (x[30:], y[30:]))
        for name, (x, y) in parts.items()
    }


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_without_a_loss_that_is_named_the_meaning_is_asked(shape, dtype):
    with pytest.raises(
        ct.InputError, match=r"classification.*regression.*loss"
    ) as told:
        fitted(parts_of(shape, dtype), shape)
    assert len(str(told.value)) <= 300
    with pytest.raises(ct.InputError, match=r"classification.*regression"):
        fitted(parts_of(shape, dtype), shape, lambda p, y: (p - y).flatten(1).sum(1))


@pytest.mark.in_turn(
    but=("*n]-dtype0-name", "*n, 1]-dtype1-function", "*n, h, w]-dtype0-module")
)
@pytest.mark.parametrize(
    "loss",
    ["binary", nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits],
    ids=["name", "module", "function"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_loss_of_classes_says_that_they_are_classes(shape, dtype, loss):
    floats = split_ready(parts_of(shape, dtype))
    classes = split_ready(parts_of(shape, torch.int64))
    run, expected = fitted(floats, shape, loss), fitted(classes, shape, loss)
    assert torch.equal(run.x, expected.x)
    assert run.summary == expected.summary
    assert run.meaning.kind == "binary"


@pytest.mark.in_turn(but=("*n]-mse", "*n, 1]-huber", "*n, h, w]-name"))
@pytest.mark.parametrize(
    "loss",
    ["squared", nn.MSELoss(), nn.HuberLoss(), F.l1_loss],
    ids=["name", "mse", "huber", "function"],
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_loss_of_quantities_says_that_they_are_quantities(shape, loss):
    parts = split_ready(parts_of(shape))
    run = fitted(parts, shape, loss)
    expected = fitted(parts, shape, loss, task="regression")
    assert torch.equal(run.x, expected.x)
    assert run.meaning.kind == "regression"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_task_that_is_said_needs_no_loss(shape):
    parts = split_ready(parts_of(shape))
    assert fitted(parts, shape, task="classification").meaning.kind == "binary"
    assert fitted(parts, shape, task="regression").meaning.kind == "regression"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_one_label_between_0_and_1_makes_them_all_quantities(shape):
    parts = split_ready(parts_of(shape))
    parts["b"][2][1][3] = 0.5
    assert fitted(parts, shape).meaning.kind == "regression"


def test_a_comparison_follows_the_same_rule():
    clients = ct.data.from_tensors(split_ready(parts_of((1,))))
    model = model_of((1,))
    with pytest.raises(ct.InputError, match=r"classification.*regression"):
        ct.compare(["fedavg"], clients, model, 1, 1)
    settings = ct.StudySettings(loss=nn.BCEWithLogitsLoss())
    compared = ct.compare(["fedavg"], clients, model, 1, 1, settings=settings)
    assert "accuracy" in compared.to_pandas().columns


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_way_to_make_clients_follows_it(shape):
    inputs, labels = parts_of(shape)["a"]
    rows = torch.utils.data.TensorDataset(inputs, labels)
    lists = {"a": range(20), "b": range(20, 40)}
    makers = {
        "arrays": lambda **task: ct.data.from_arrays(inputs, labels, lists, **task),
        "dataset": lambda **task: ct.data.from_dataset(rows, lists, **task),
        "lazy": lambda **task: ct.data.from_dataset(rows, lists, lazy=True, **task),
    }
    for make in makers.values():
        with pytest.raises(ct.InputError, match=r"classification.*regression"):
            ct.fit("fedavg", make(), model_of(shape), 0)
        named = ct.RunSettings(loss="binary")
        run = ct.fit("fedavg", make(), model_of(shape), 0, settings=named)
        said = ct.fit("fedavg", make(task="classification"), model_of(shape), 0)
        assert run.meaning == said.meaning


def test_quantities_that_nobody_named_are_not_standardised():
    clients = ct.data.from_tensors(parts_of(()))
    with pytest.raises(ct.InputError, match=r"classification.*regression"):
        ct.data.standardise(clients)


SEVERAL = (3,)


@pytest.mark.in_turn(but=("dtype0-auto", "dtype2-BCE*"))
@pytest.mark.parametrize("loss", ["auto", nn.BCEWithLogitsLoss()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bool])
def test_several_labels_of_a_row_are_compared_whatever_their_type(dtype, loss):
    settings = ct.StudySettings(loss=loss, metrics=("accuracy", "auc"))
    tables = []
    for kind in (dtype, torch.int64):
        clients = ct.data.from_tensors(split_ready(parts_of(SEVERAL, kind)))
        compared = ct.compare(
            ["local", "fedavg"], clients, model_of(SEVERAL), 1, 1, settings=settings
        )
        tables.append(compared.to_pandas())
    assert tables[0].equals(tables[1])
    assert tables[0]["accuracy"].notna().all()
