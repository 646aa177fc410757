"""Evaluation of many clients at once: the same bits for each alone, in few forward passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.loss import Kind
from coterie.base.rows import Part, Rows
from coterie.compute.heights import HEIGHTS
from coterie.compute.metrics import find_metrics
from coterie.compute.segments import Segments, pad_and_apply
from coterie.config.registry import METRICS
from federations import Problem, cohort_of

SIZES = (5, 1, 40, 16, 3, 64, 17, 2, 300, 9)
LABELS = {
    "binary": (1, 2),
    "classes": (7, 7),
    "multilabel": (3, 2),
    "regression": (1, 0),
}


def drawn_labels(kind: Kind, count: int, draw: torch.Generator) -> torch.Tensor:
    outputs, classes = LABELS[kind]
    if kind == "regression":
        return torch.randint(0, 4, (count,), generator=draw).float()
    shape = (count, outputs) if kind == "multilabel" else (count,)
    return torch.randint(0, classes, shape, generator=draw)


def problem_of(
    kind: Kind, model: nn.Module, shape: tuple[int, ...], *, indexed: bool = False
) -> Problem:
    draw = torch.Generator().manual_seed(0)
    parts = [
        Part(torch.randn(n, *shape, generator=draw), drawn_labels(kind, n, draw))
        for n in SIZES
    ]
    names = [f"c{i}" for i in range(len(SIZES))]
    if not indexed:
        pairs = zip(names, parts, strict=True)
        return Problem(
            Clients(
                [
                    Client(name, part, test=part if len(part) > 1 else None)
                    for name, part in pairs
                ]
            ),
            model,
        )
    together = Rows.concatenate(parts)
    assert together is not None
    order = torch.randperm(sum(SIZES), generator=draw)
    rows = Rows.from_indices(together.inputs, together.labels, order.split(SIZES))
    return Problem(Clients.from_indices(names, rows, test=rows), model)


def linear(kind: Kind) -> nn.Module:
    return nn.Linear(13, LABELS[kind][0])


def network(kind: Kind) -> nn.Module:
    return nn.Sequential(nn.Linear(13, 30), nn.ReLU(), nn.Linear(30, LABELS[kind][0]))


def convolutions(kind: Kind) -> nn.Module:
    layers = (
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, LABELS[kind][0]),
    )
    return nn.Sequential(*layers)


@pytest.mark.in_turn(
    but=(
        "linear-*-binary-True",
        "network-*-classes-False",
        "convolutions-*-multilabel-False",
        "network-*-regression-True",
    )
)
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize(
    ("model", "shape"), [(linear, (13,)), (network, (13,)), (convolutions, (1, 8, 8))]
)
def test_company_changes_no_bit_of_what_a_client_measures(kind, model, shape, indexed):
    torch.manual_seed(1)
    problem = problem_of(kind, model(kind), shape, indexed=indexed)
    metrics = find_metrics(METRICS)
    cohort = cohort_of(problem)
    x = cohort.workspace.x.clone()
    assert cohort.workspace.heights
    for models in (x, x + 0.1 * torch.randn(len(SIZES), len(x))):
        together = cohort.evaluate(models, metrics, part="test")
        for i, name in enumerate(cohort.names):
            model_of_one = models if models.ndim == 1 else models[i : i + 1]
            alone = cohort_of(problem, [name]).evaluate(
                model_of_one, metrics, part="test"
            )
            for key, column in together.items():
                assert torch.equal(
                    column[i : i + 1].view(torch.int64), alone[key].view(torch.int64)
                ), (key, name)


@pytest.mark.parametrize("kind", LABELS)
def test_metrics_of_many_clients_are_those_of_each(kind):
    draw = torch.Generator().manual_seed(3)
    labels = drawn_labels(kind, sum(SIZES), draw)
    outputs = (
        torch.randn(sum(SIZES), LABELS[kind][0], generator=draw).mul(4).round().div(4)
    )  # with ties
    defined = 0
    for name, metric in find_metrics(METRICS).items():
        if not hasattr(metric, "each"):
            continue  # of time to event: computed client by client
        values = metric.each(outputs, labels, kind, Segments.of(SIZES))
        pairs = zip(outputs.split(SIZES), labels.split(SIZES), strict=True)
        each = [metric(*pair, kind) for pair in pairs]
        assert values is not None or each == [None] * len(SIZES), name
        expected = torch.tensor(
            [torch.nan if value is None else value for value in each],
            dtype=torch.float64,
        )
        if values is not None:
            assert torch.equal(values.nan_to_num(-1.0), expected.nan_to_num(-1.0)), name
            defined += int(values.isfinite().any())
    assert defined >= 2


def test_a_hundred_clients_share_forward_passes():
    part = Part(torch.randn(5, 13), torch.tensor([0, 1, 0, 1, 1]))
    problem = Problem(
        Clients([Client(f"c{i:03d}", part) for i in range(100)]), linear("binary")
    )
    cohort, heights = cohort_of(problem), []
    assert cohort.workspace.heights
    cohort.workspace.model.register_forward_hook(
        lambda module, inputs, outputs: heights.append(len(outputs))
    )
    cohort.evaluate(cohort.workspace.x.clone(), find_metrics(METRICS), part="train")
    assert heights == [1024, 256, 256, 64]
    assert set(heights) <= set(HEIGHTS)
    assert cohort.spent == {"row_gradients": 0, "row_losses": 500}


class Centred(nn.Linear):
    """Rows that see each other, also in evaluation."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs - inputs.mean(0))


@pytest.mark.parametrize(
    "norm",
    [
        lambda: Centred(13, 1),
        lambda: nn.Sequential(
            nn.BatchNorm1d(13, track_running_stats=False), nn.Linear(13, 1)
        ),
    ],
)
def test_rows_that_see_each_other_are_evaluated_client_by_client(norm):
    problem = problem_of("binary", norm(), (13,))
    cohort = cohort_of(problem, [f"c{i}" for i, size in enumerate(SIZES) if size > 1])
    assert not cohort.workspace.heights
    x = cohort.workspace.x.clone()
    losses = cohort.evaluate(x, {}, part="test")["loss"]
    model = cohort.workspace.model
    for loss, name in zip(losses, cohort.names, strict=True):
        test = problem.clients[name].part("test")
        expected = nn.functional.binary_cross_entropy_with_logits(
            model(test.inputs)[:, 0], test.labels.float()
        )
        assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_large_rows_are_read_one_client_at_a_time():
    part = Part(torch.zeros(2, 1 << 21), torch.tensor([0, 1]))
    problem = Problem(
        Clients([Client("a", part), Client("b", part)]), nn.Linear(1 << 21, 1)
    )
    cohort = cohort_of(problem)
    assert not cohort.workspace.heights
    assert cohort.evaluate(cohort.workspace.x.clone(), {}, part="train")[
        "n"
    ].tolist() == [2.0, 2.0]


def test_evaluation_too_rests_on_enough_rows():
    problem = problem_of("binary", linear("binary"), (13,))
    cohort = cohort_of(problem)
    cohort.workspace.fewest_rows = 3
    with pytest.raises(
        InputError, match="client 'c1' computes nothing of fewer than 3 different rows"
    ):
        cohort.evaluate(cohort.workspace.x.clone(), {}, part="train")


def test_numbers_left_over_behind_a_vector_unit_are_rounded_like_the_others():
    values = torch.linspace(-5, 5, 1000, dtype=torch.float64)
    whole = pad_and_apply(torch.sigmoid, values)
    for count in (1, 7, 63, 130, 999):
        assert torch.equal(pad_and_apply(torch.sigmoid, values[:count]), whole[:count])
