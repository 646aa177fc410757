"""Losses of torch are taken as they are, per row; and a model that gives probabilities is refused where logits are meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import coterie as ct
from coterie.base.loss import IGNORED, are_probabilities, choose_loss

LOGITS = torch.tensor([[0.3], [-1.2], [2.0], [0.1]])
BINARY = torch.tensor([1, 0, 1, 0])
SCORES = torch.tensor([[0.1, 1.0, -0.5], [2.0, 0.3, 0.3], [-1.0, 0.0, 1.0]])
CLASSES = torch.tensor([1, 0, 2])


@pytest.mark.parametrize(
    ("loss", "outputs", "labels", "kind"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.2), SCORES, CLASSES, "classes"),
        (nn.NLLLoss(), SCORES.log_softmax(1), CLASSES, "classes"),
        (
            nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])),
            LOGITS,
            BINARY,
            "binary",
        ),
        (nn.MSELoss(), LOGITS, BINARY * 0.5, "regression"),
        (nn.HuberLoss(delta=0.5), LOGITS, BINARY * 0.5, "regression"),
        (nn.SmoothL1Loss(reduction="sum"), LOGITS, BINARY * 0.5, "regression"),
    ],
)
def test_a_loss_module_gives_the_loss_of_each_row(loss, outputs, labels, kind):
    chosen = choose_loss(loss, outputs, labels)
    rows = chosen.rows(outputs, labels)
    assert chosen.kind == kind
    for i, value in enumerate(rows):
        of_one = loss(
            outputs[i : i + 1].squeeze(1)
            if outputs.shape[1] == 1
            else outputs[i : i + 1],
            labels[i : i + 1].to(outputs.dtype if kind != "classes" else torch.int64),
        )
        assert value.item() == pytest.approx(of_one.item())
    assert loss.reduction != "none"


@pytest.mark.parametrize(
    ("function", "outputs", "labels", "named"),
    [
        (F.cross_entropy, SCORES, CLASSES, "classes"),
        (F.binary_cross_entropy_with_logits, LOGITS, BINARY, "binary"),
        (F.mse_loss, LOGITS, BINARY * 0.5, "squared"),
    ],
)
def test_a_loss_function_of_torch_is_the_named_loss(function, outputs, labels, named):
    ours, theirs = (
        choose_loss(function, outputs, labels),
        choose_loss(named, outputs, labels),
    )
    assert torch.equal(ours.rows(outputs, labels), theirs.rows(outputs, labels))
    assert ours.kind == theirs.kind


def test_pixels_that_the_module_ignores_do_not_count():
    scores, labels = (
        torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[0, 1, 2, 7]] * 2),
    )
    ignoring = choose_loss(nn.CrossEntropyLoss(ignore_index=7), scores, labels)
    usual = choose_loss(
        "classes", scores, labels.where(labels != 7, torch.tensor(IGNORED))
    )
    assert torch.allclose(
        ignoring.rows(scores, labels),
        usual.rows(scores, labels.where(labels != 7, torch.tensor(IGNORED))),
    )


def test_several_labels_of_a_row_are_read_as_such():
    labels = torch.tensor([[1, 0, 1], [0, 1, 1], [0, 0, 1]])
    assert choose_loss(nn.BCEWithLogitsLoss(), SCORES, labels).kind == "multilabel"


@pytest.mark.parametrize("loss", [nn.BCELoss(), F.binary_cross_entropy])
def test_a_loss_of_probabilities_is_refused(loss):
    with pytest.raises(ct.InputError, match="BCEWithLogitsLoss"):
        choose_loss(loss, LOGITS, BINARY)


def test_logits_that_happen_to_lie_between_0_and_1_are_no_probabilities():
    rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    layer = nn.Linear(4, 1)
    nn.init.constant_(layer.bias, 0.5)
    nn.init.constant_(layer.weight, 1e-3)
    scaled = [layer(rows * scale).detach() for scale in (1.0, 1e3, -1e3)]
    assert bool(((scaled[0] > 0) & (scaled[0] < 1)).all())
    assert not are_probabilities("binary", scaled)
    assert are_probabilities("binary", [torch.sigmoid(values) for values in scaled])
    assert not are_probabilities(
        "binary", [torch.sigmoid(scaled[0])]
    )  # one scale of whole numbers says nothing


def test_shares_of_classes_are_seen_at_one_scale():
    assert are_probabilities("classes", [SCORES.softmax(1)])
    assert not are_probabilities("classes", [SCORES])
    assert not are_probabilities("classes", [torch.zeros(3, 3)])


def test_a_loss_that_is_named_takes_the_model_as_it_is():
    clients = ct.data.load("heart-disease")
    model = nn.Sequential(nn.LazyLinear(1), nn.Sigmoid())
    with pytest.raises(ct.InputError, match="takes logits"):
        ct.fit("fedavg", clients, model, 1)
    assert (
        ct.fit("fedavg", clients, model, 1, settings=ct.RunSettings(loss="binary"))
        .x.isfinite()
        .all()
    )
