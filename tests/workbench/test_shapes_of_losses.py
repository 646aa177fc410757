"""Outputs and labels that torch would broadcast, and labels that are no class of the model, end in one sentence before training."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import coterie as ct
from coterie.base.loss import choose_loss

SHAPES = [(2,), (2, 1), (2, 2), (2, 1, 1), (2, 2, 2), (2, 1, 2), (2, 1, 2, 2)]
OF_QUANTITIES = ["auto", "squared", nn.MSELoss(), nn.HuberLoss(), nn.L1Loss()]
OF_QUANTITIES += [nn.SmoothL1Loss(), F.mse_loss]
OF_CLASSES = ["binary", nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits]
CROSS_ENTROPIES = [nn.CrossEntropyLoss(), nn.NLLLoss(), F.cross_entropy]


def called(value):
    """The name of a loss in the name of a test: of a function without its address, which differs in each process."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("loss", [*OF_QUANTITIES, *OF_CLASSES], ids=called)
def test_outputs_and_labels_agree_or_are_refused(loss):
    """Only a dimension of one output behind the rows is left out; all else is refused, whatever torch would make of it."""
    for of_outputs, of_labels in itertools.product(SHAPES, SHAPES):
        outputs, labels = torch.zeros(of_outputs), torch.full(of_labels, 0.5)
        agree = of_outputs == of_labels
        agree |= of_outputs == (of_labels[0], 1, *of_labels[1:])
        if agree:
            assert choose_loss(loss, outputs, labels).rows(outputs, labels).shape == (
                2,
            )
            continue
        with pytest.raises(ct.InputError) as told:
            choose_loss(loss, outputs, labels)
        sentence = str(told.value)
        assert str(of_outputs) in sentence
        assert str(of_labels) in sentence
        assert len(sentence) <= 300


@pytest.mark.parametrize("loss", CROSS_ENTROPIES, ids=called)
def test_cross_entropy_takes_a_class_for_each_place(loss):
    for of_outputs, of_labels in itertools.product(SHAPES, SHAPES):
        outputs = torch.zeros(of_outputs)
        labels = torch.zeros(of_labels, dtype=torch.int64)
        if of_outputs[:1] + of_outputs[2:] == of_labels and len(of_outputs) > 1:
            assert choose_loss(loss, outputs, labels).rows(outputs, labels).shape == (
                2,
            )
            continue
        with pytest.raises(ct.InputError, match="dimension 1") as told:
            choose_loss(loss, outputs, labels)
        assert len(str(told.value)) <= 300


def test_a_flat_output_does_not_meet_labels_in_a_column():
    """It gave an rmse of 1.75 where 0 is right: each output was compared with the labels of all rows."""
    inputs = torch.arange(40.0)[:, None] / 40
    clients = ct.data.from_tensors([(inputs, inputs), (inputs, inputs)])
    flat = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
    settings = ct.RunSettings(loss=nn.MSELoss())
    with pytest.raises(ct.InputError, match="must agree"):
        ct.fit("fedavg", clients, flat, 1, settings=settings)
    ct.fit("fedavg", clients, nn.Linear(1, 1), 1, settings=settings)


class Positions(nn.Module):
    """Two logits for each of two positions of a row [rows, 2, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows).reshape(-1, 2, 2)


def own_loss(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none")


# Only the user knows which labels a function takes, so it is asked by the two rows of the probe alone.
PLACES = [
    *itertools.product(["classes", *CROSS_ENTROPIES], [0, 5]),
    (own_loss, 0),
]


@pytest.mark.parametrize(("loss", "place"), PLACES, ids=called)
@pytest.mark.parametrize("positions", [False, True], ids=["rows", "positions"])
def test_a_label_that_is_no_class_of_the_model_is_named(loss, place, positions):
    labels = torch.arange(8) % 2
    labels[place] = 7
    if positions:
        labels = torch.stack([labels, labels % 2], 1)
    rows = (torch.zeros(8, 3), labels)
    clients = ct.data.from_tensors({"a": (rows, None, rows)})
    model = Positions() if positions else nn.Linear(3, 2)
    settings = ct.RunSettings(loss=loss)
    with pytest.raises(
        ct.InputError, match=r"client 'a' has the label 7.*0 and 1;"
    ) as e:
        ct.fit("fedavg", clients, model, 1, settings=settings)
    assert len(str(e.value)) <= 300


@pytest.mark.parametrize("loss", ["binary", nn.BCEWithLogitsLoss()], ids=called)
def test_whole_numbers_beyond_1_are_no_logits_classes(loss):
    rows = (torch.zeros(8, 3), torch.tensor([3, 7] * 4))
    clients = ct.data.from_tensors({"a": (rows, None, rows)})
    settings = ct.RunSettings(loss=loss)
    with pytest.raises(ct.InputError, match="client 'a' has the label 3"):
        ct.fit("fedavg", clients, nn.Linear(3, 1), 1, settings=settings)


def test_labels_that_a_module_ignores_are_no_classes():
    labels = torch.tensor([[0, 1], [1, 255]] * 4)
    rows = (torch.zeros(8, 3), labels)
    clients = ct.data.from_tensors({"a": (rows, None, rows)})
    settings = ct.RunSettings(loss=nn.CrossEntropyLoss(ignore_index=255))
    run = ct.fit("fedavg", clients, Positions(), 1, settings=settings)
    assert run.x.isfinite().all()


@pytest.mark.parametrize("loss", ["classes", *CROSS_ENTROPIES], ids=called)
def test_classes_stored_as_floats_are_classes_for_cross_entropy(loss):
    labels = torch.arange(8) % 3
    model = nn.Linear(8, 3)
    settings = ct.RunSettings(loss=loss)
    runs = []
    for stored in (labels, labels.double()):
        rows = (torch.eye(8), stored)
        clients = ct.data.from_tensors({"a": (rows, None, rows)})
        runs.append(ct.fit("fedavg", clients, model, 1, settings=settings))
    assert torch.equal(runs[0].x, runs[1].x)
    assert runs[0].summary == runs[1].summary
    assert runs[0].meaning == runs[1].meaning


def test_shares_of_classes_are_refused():
    rows = (torch.zeros(8, 3), torch.full((8, 2), 0.5))
    clients = ct.data.from_tensors({"a": (rows, None, rows)})
    settings = ct.RunSettings(loss=nn.CrossEntropyLoss())
    with pytest.raises(ct.InputError, match="CrossEntropyLoss takes classes as whole"):
        ct.fit("fedavg", clients, nn.Linear(3, 2), 1, settings=settings)


def test_risks_are_labels_of_binary_cross_entropy():
    rows = (torch.zeros(8, 3), torch.full((8, 1), 0.25))
    clients = ct.data.from_tensors({"a": (rows, None, rows)})
    settings = ct.RunSettings(loss=nn.BCEWithLogitsLoss())
    assert (
        ct.fit("fedavg", clients, nn.Linear(3, 1), 1, settings=settings)
        .x.isfinite()
        .all()
    )
