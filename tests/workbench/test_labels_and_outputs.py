"""How labels and outputs of every usual form are read: by the loss, by metrics, and in refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.loss import choose_loss
from coterie.config.registry import METRICS
from coterie.config.run import RunSettings

LOCAL = ct.LocalSGD(lr=0.5, steps=ct.Steps(20))


def inputs_of(count=40, width=3, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def fitted(labels_of, model=None, rounds=3, **settings):
    """A run on two clients whose labels are `labels_of(inputs)`."""
    parts = [(x, labels_of(x)) for x in (inputs_of(seed=i) for i in range(2))]
    return ct.fit(
        ct.FedAvg(LOCAL),
        ct.data.from_tensors(parts),
        model or ct.models.Logistic(),
        rounds,
        settings=RunSettings(**settings),
    )


def scores_of(run, metric):
    return [row[metric] for row in run.summary if row["split"] == "test"]


def test_labels_in_a_column_count_row_by_row():
    flat = fitted(lambda x: (x[:, 0] > 0).long())
    column = fitted(lambda x: (x[:, :1] > 0).long())
    assert min(scores_of(column, "accuracy")) > 0.9
    assert min(scores_of(column, "auc")) > 0.9
    outputs, labels = torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 0, 0])
    for name in ("accuracy", "balanced_accuracy", "auc", "f1"):
        metric = METRICS[name]
        assert (
            metric(outputs, labels[:, None], "binary")
            == metric(outputs, labels, "binary")
            is not None
        )
    assert len(scores_of(flat, "accuracy")) == 2


def test_masks_with_a_channel_are_compared_pixel_by_pixel():
    outputs = torch.tensor([[[[2.0, -1.0]]], [[[1.0, 1.0]]]])
    masks = torch.tensor([[[[1, 0]]], [[[0, 1]]]])
    assert METRICS["accuracy"](outputs, masks, "binary") == 0.75


def several(x):
    return (x[:, :2] > 0).long()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_several_labels_of_a_row_are_classified(dtype):
    model = nn.Linear(3, 2)
    run = fitted(
        lambda x: several(x).to(dtype),
        model,
        metrics=("accuracy", "auc", "f1"),
        rounds=5,
    )
    same = fitted(several, model, metrics=("accuracy", "auc", "f1"), rounds=5)
    assert torch.equal(
        run.x, same.x
    )  # binary cross-entropy, whatever the type of the labels
    for metric in ("accuracy", "auc", "f1"):
        assert min(scores_of(run, metric)) > 0.8
        assert scores_of(run, metric) == scores_of(same, metric)
    assert scores_of(run, "majority") == [None, None]


def test_accuracy_of_several_labels_asks_for_all_of_them():
    outputs, labels = (
        torch.tensor([[1.0, 1.0], [1.0, -1.0]]),
        torch.tensor([[1, 0], [1, 0]]),
    )
    assert METRICS["accuracy"](outputs, labels, "multilabel") == 0.5
    assert (
        METRICS["auc"](
            torch.tensor([[0.1, 9], [0.4, 9], [0.35, 9]]),
            torch.tensor([[0, 1], [1, 1], [1, 1]]),
            "multilabel",
        )
        == 1
    )
    assert (
        METRICS["f1"](torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 0]), "binary")
        == 0
    )


def test_quantities_in_columns_stay_a_regression():
    run = fitted(lambda x: x[:, :2] * 2, nn.Linear(3, 2))
    assert scores_of(run, "rmse")[0] < 1
    assert scores_of(run, "accuracy") == [None, None]


class Tagger(nn.Module):
    """One of `classes` for each position of a row [T]; logits [rows, T, C], or [rows, C, T]."""

    def __init__(self, classes, last):
        super().__init__()
        self.embed, self.last = nn.Embedding(5, classes), last

    def forward(self, tokens):
        logits = self.embed(tokens)
        return logits if self.last else logits.movedim(-1, 1)


def tokens_of(length, count=30, seed=0):
    return torch.randint(
        0, 5, (count, length), generator=torch.Generator().manual_seed(seed)
    )


def tagged(length, last, ignore=False, **settings):
    def part(seed):
        tokens = tokens_of(length, seed=seed)
        labels = tokens.remainder(4)
        return tokens, labels.masked_fill(tokens == 3, -100) if ignore else labels

    torch.manual_seed(0)
    clients = ct.data.from_tensors([part(seed) for seed in range(2)])
    return ct.fit(
        ct.FedAvg(LOCAL), clients, Tagger(4, last), 4, settings=RunSettings(**settings)
    )


def test_classes_may_lie_in_the_last_dimension():
    first, last = tagged(6, False), tagged(6, True)
    torch.testing.assert_close(first.x, last.x)
    assert scores_of(last, "accuracy") == scores_of(first, "accuracy") == [1.0, 1.0]


@pytest.mark.parametrize(("loss", "last"), [("classes", False), ("classes-last", True)])
def test_as_many_positions_as_classes_must_be_told_apart(loss, last):
    with pytest.raises(
        ct.InputError,
        match=r'dimension 1 or the last may hold the classes; say loss="classes" or "classes-last"',
    ):
        tagged(4, last)
    assert scores_of(tagged(4, last, loss=loss), "accuracy") == [1.0, 1.0]


def test_ignored_positions_count_nowhere():
    run = tagged(6, True, ignore=True)
    assert scores_of(run, "accuracy") == [1.0, 1.0]
    assert all(0 < m < 1 for m in scores_of(run, "majority"))
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 2.0], [5.0, 1.0]]])
    loss = choose_loss("auto", outputs, torch.tensor([[0, 0, -100]]))
    want = nn.functional.cross_entropy(
        outputs[:, :2].movedim(-1, 1), torch.tensor([[0, 0]])
    )
    for value in (
        loss.rows(outputs, torch.tensor([[0, 0, -100]]))[0],
        loss.mean(outputs, torch.tensor([[0, 0, -100]])),
    ):
        torch.testing.assert_close(value, want)
    assert loss.rows(outputs, torch.full((1, 3), -100)).tolist() == [0]
    assert loss.mean(outputs, torch.full((1, 3), -100)) == 0


def two_classes(x):
    return (x[:, 0] > 0).long()


def three_classes(x):
    return (x[:, 0] * 3).long().clamp(0, 2)


def cross_entropy(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def logistic(outputs, labels):
    return nn.functional.binary_cross_entropy_with_logits(
        outputs[:, 0], labels.float(), reduction="none"
    )


def test_a_loss_of_ones_own_has_metrics():
    own, auto = (
        fitted(three_classes, nn.Linear(3, 3), loss=loss)
        for loss in (cross_entropy, "auto")
    )
    assert (
        [v is not None for v in scores_of(own, "accuracy")]
        == [v is not None for v in scores_of(auto, "accuracy")]
        == [True] * 2
    )
    squared = fitted(
        lambda x: x[:, 0], loss=lambda outputs, labels: (outputs[:, 0] - labels).abs()
    )
    assert None not in scores_of(squared, "mae")
    with pytest.raises(
        ct.InputError, match="the loss does not say how metrics read the outputs"
    ):
        fitted(two_classes, loss=logistic)  # a logit or a probability?
    try:
        logistic.kind = "own"
        assert scores_of(fitted(two_classes, loss=logistic), "accuracy") == [None, None]
        logistic.kind = "binary"
        assert min(scores_of(fitted(two_classes, loss=logistic), "accuracy")) > 0.8
        logistic.kind = "binnary"
        with pytest.raises(
            ct.InputError,
            match=r"the loss has a kind 'binnary'; did you mean 'binary'\?",
        ):
            fitted(two_classes, loss=logistic)
    finally:
        del logistic.kind


def test_losses_have_names():
    assert torch.equal(fitted(two_classes, loss="binary").x, fitted(two_classes).x)
    squared = fitted(lambda x: several(x).float(), nn.Linear(3, 2), loss="squared")
    assert None not in scores_of(squared, "rmse")
    with pytest.raises(
        ct.InputError, match=r"loss must be auto .*did you mean 'squared'\?"
    ):
        fitted(two_classes, loss="squard")


# ---- refused, each in a sentence that names the client


def refusal(parts, model=None, **options):
    with pytest.raises(ct.InputError) as caught:
        ct.fit(
            ct.FedAvg(LOCAL),
            ct.data.from_tensors(parts),
            model or nn.Linear(3, 3),
            1,
            **options,
        )
    sentence = str(caught.value)
    assert len(sentence) <= 300
    return sentence


def test_a_label_that_is_no_class_of_the_model_names_its_client():
    x = inputs_of(9)
    good, bad = (x, torch.arange(9) % 3), (x, torch.tensor([0, 1, 2, 0, 7, 0, 1, 2, 0]))
    assert refusal({"a": good, "b": bad}).startswith(
        "client 'b' has the label 7, and the model knows the classes 0 to 2"
    )
    held = ct.Part(x, torch.tensor([0, 1, 2, -100, 1, 0, 1, 2, 0]))
    clients = ct.Clients([ct.Client("a", ct.Part(*good)), ct.Client("b", held)])
    with pytest.raises(
        ct.InputError,
        match="client 'b' has the label -100, and the model knows the classes 0 to 2",
    ):
        ct.fit(ct.FedAvg(), clients, nn.Linear(3, 3), 1)
    both = (x, torch.arange(9) % 2)
    sentence = refusal({"a": both, "b": (x, torch.arange(9) % 3)}, nn.Linear(3, 1))
    assert sentence.startswith(
        "client 'b' has the label 2, and the model knows the classes 0 and 1"
    )


def test_one_huge_label_makes_no_huge_model():
    x = inputs_of(9)
    bad = (x, torch.tensor([0, 1, 2, 0, 10**6, 0, 1, 2, 0]))
    sentence = refusal({"a": (x, torch.arange(9) % 3), "b": bad}, ct.models.Logistic())
    assert sentence.startswith(
        "client 'b' has the label 1000000, but there are only 4 different ones"
    )


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (
            torch.zeros(9, 1, dtype=torch.int64),
            r"client 'b' has labels of shape [rows, 1] (classes) in its train rows, client 'a'",
        ),
        (
            torch.zeros(9),
            "client 'b' has labels of shape [rows] (numbers) in its train rows, client 'a' of [rows] (classes)",
        ),
        (
            torch.zeros(9, dtype=torch.complex64),
            "client 'b', labels is a tensor that is complex; give a dense one",
        ),
    ],
)
def test_labels_of_another_form_at_one_client_name_it(labels, sentence):
    x = inputs_of(9)
    assert refusal({"a": (x, torch.arange(9) % 3), "b": (x, labels)}).startswith(
        sentence
    )


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: torch.eye(9, 3).to_sparse(), "sparse"),
        (lambda: torch.zeros(9, 3, device="meta"), "without values (device meta)"),
        (lambda: torch.zeros(9, 3).to(torch.float8_e5m2), "torch.float8_e5m2"),
        (lambda: torch.zeros(9, 3, dtype=torch.complex64), "complex"),
        (
            lambda: torch.nested.nested_tensor(
                [torch.zeros(2), torch.zeros(3)], layout=torch.jagged
            ),
            "nested",
        ),
    ],
)
def test_tensors_that_no_model_takes_are_refused(make, kind):
    inputs = make()  # here, since the first nested tensor imports torch's compiler
    labels = torch.arange(9) % 3
    sentence = refusal({"a": (inputs_of(9), labels), "b": (inputs, labels)})
    assert sentence.startswith(
        f"client 'b', inputs is a tensor that is {kind}; give a dense one"
    )
    with pytest.raises(
        ct.InputError, match="client 'b', train rows: inputs is a tensor that is"
    ):
        ct.Client("b", ct.Part(inputs, labels))


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
)
def test_labels_of_any_whole_type_fit_as_many_outputs_as_the_type_has_numbers(dtype):
    outputs = min(torch.iinfo(dtype).max + 1, 256)
    model = nn.Linear(4, outputs)

    def fit(kind):
        def part(rows):
            labels = torch.arange(rows) % 4
            return ct.Part(torch.eye(4)[labels], labels.to(kind))

        clients = [ct.Client(name, part(40), None, part(20)) for name in "ab"]
        return ct.fit("fedavg", ct.Clients(clients), model, 1).x

    assert torch.equal(fit(dtype), fit(torch.int64))
