"""Batched kernels: equal to the plain loop, and the same bits whoever shares a chunk."""

from __future__ import annotations

import logging
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from coterie import FedAvg
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.base.vector import Layout
from coterie.compute import (
    kernel_choice,
    kernels,
    oracle,
    row_source,
    side_by_side,
)
from coterie.compute.cohort import Cohort
from coterie.compute.columns import COLUMNS, Columns
from coterie.compute.kernels import Batched, Layer, recognise
from coterie.compute.step_hooks import Quadratic
from coterie.compute.workspace import Workspace
from coterie.config.local import Epochs, LocalSGD, Steps
from coterie.contract.exchange import HELD_BYTES
from coterie.contract.memory import Memory, MemoryView
from coterie.engines.inprocess import InProcess
from coterie.models import CNN, MLP, Logistic, Mean
from federations import Problem, assert_close, fit, seeded

SIZES = [12, 37, 12, 5, 64, 33, 1, 40, 12, 37, 21, 12, 12]
"""More clients than a chunk takes; ragged last batches; one with a single row."""

MODELS = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "no-bias": (lambda: nn.Linear(6, 1, bias=False), (6,)),
    "one-logit": (lambda: Logistic().build((6,), 1), (6,)),
    "one-input": (lambda: MLP((4,)).build((1,), 3), (1,)),
    "mlp": (lambda: MLP((7, 5)).build((2, 3), 3), (2, 3)),
    "mlp-one-logit": (lambda: MLP((17,)).build((13,), 1), (13,)),
    "narrow": (lambda: MLP((1, 4)).build((6,), 3), (6,)),
    "no-activation": (
        lambda: nn.Sequential(
            nn.Linear(6, 5), nn.Identity(), nn.Sequential(nn.Linear(5, 3))
        ),
        (6,),
    ),
    "dropout-off": (
        lambda: nn.Sequential(
            nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.0), nn.Linear(5, 3)
        ),
        (6,),
    ),
    "mean": (lambda: Mean().build((6,), 3), (6,)),
    "mean-of-one": (lambda: Mean().build((6,), 1), (6,)),
}


def problem(model: str, dtype: torch.dtype = torch.float64, kind: str = "") -> Problem:
    """Clients of unequal sizes for a model; labels as its outputs ask for, or of this kind."""
    make, shape = MODELS[model]
    net = seeded(make, dtype)
    outputs = net(torch.zeros(2, *shape, dtype=dtype)).shape[1]
    kind = kind or ("binary" if outputs == 1 else "classes")
    draw = torch.Generator().manual_seed(5)
    clients = []
    for number, size in enumerate(SIZES):
        inputs = torch.randn(size, *shape, generator=draw, dtype=dtype)
        labels = torch.randint(0, max(2, outputs), (size,), generator=draw)
        if kind == "regression":
            labels = torch.randn(
                size, *([outputs] if outputs > 1 else []), generator=draw, dtype=dtype
            )
        clients.append(Client(f"c{number:02d}", Part(inputs, labels)))
    return Problem(Clients(clients), net)


KINDS = [
    (m, k) for m in MODELS for k in ("regression", "") if k or not m.startswith("mean")
]


def cohort(
    given: Problem,
    kernel: str = "auto",
    names: tuple[str, ...] | None = None,
    **options,
) -> Cohort:
    names = names or given.clients.names
    workspace = Workspace(given.model, "auto", given.clients[0], kernel=kernel)
    index = tuple(given.clients.number(n) for n in names)
    spent = {"row_gradients": 0, "row_losses": 0}
    return Cohort(
        names,
        workspace,
        given.clients,
        index,
        MemoryView(Memory(), names),
        0,
        1,
        spent,
        **options,
    )


def randoms(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 9) -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype
    )


LOCALS = [
    LocalSGD(lr=0.1, steps=Steps(5), batch_size=8),
    LocalSGD(lr=0.1, steps=Steps(1), batch_size=8, weight_decay=0.1),
    LocalSGD(lr=0.1, steps=Steps(1), batch_size=8),
    LocalSGD(lr=0.1, steps=Epochs(2), batch_size=16, weight_decay=0.1),
    LocalSGD(lr=0.05, steps=Steps(4), batch_size=None),
]


@pytest.mark.in_turn(
    but=("linear-regression", "one-input-", "mlp-", "mean-of-one-regression")
)
@pytest.mark.parametrize(("model", "kind"), KINDS)
def test_the_kernel_equals_the_loop(model, kind):
    given = problem(model, torch.float64, kind)
    fast, loop = cohort(given), cohort(given, "loop")
    assert fast.workspace.batched is not None
    assert loop.workspace.batched is None
    x = fast.workspace.x.clone()
    count, dim = len(fast.names), len(x)
    xs, correction = x + 0.1 * randoms(count, dim), randoms(count, dim, seed=1)
    everything = {"penalty": Quadratic(0.3, xs), "correction": correction}
    hooks = [
        (x, {}),
        (xs, {"penalty": Quadratic(0.3)}),
        (xs, {"correction": correction[0], "steps": [1 + i % 4 for i in range(count)]}),
    ]
    locals_ = (
        LOCALS if kind == "regression" else LOCALS[-1:]
    )  # batches are planned alike for any labels
    for local, start, hook in [
        *((LOCALS[0], *hook) for hook in hooks),
        *((local, x, everything) for local in locals_),
    ]:
        trained = loop.train(start, local, **hook)
        assert_close(fast.train(start, local, **hook), trained)
    updates = loop.updates(start, local, **hook)
    assert_close(updates, trained - start)
    assert_close(fast.updates(start, local, **hook), updates)
    assert_close(fast.gradient(xs), loop.gradient(xs))
    assert fast.spent == loop.spent


@pytest.mark.in_turn(
    but=(
        "linear-regression-torch.float32",
        "mlp--torch.float32",
        "one-logit-regression-torch.float64",
    )
)
@pytest.mark.parametrize(
    ("model", "kind", "dtype"),
    [
        *((model, kind, torch.float32) for model, kind in KINDS),
        *(
            (model, kind, torch.float64)
            for model, kind in KINDS
            if kind == "regression"
        ),
    ],
    ids=str,
)
def test_a_client_s_bits_do_not_depend_on_who_shares_its_chunk(model, kind, dtype):
    given = problem(model, dtype, kind)
    everybody = cohort(given)
    count, x = len(everybody.names), everybody.workspace.x
    xs = x + 0.1 * randoms(count, len(x), dtype=dtype)
    groups = [[0], [5], [1, 4, 9], [3, 4, 5, 6, 7], [0, 1, 2, 11, 12]]
    cohorts = [
        cohort(given, names=tuple(everybody.names[i] for i in group))
        for group in groups
    ]
    updates = everybody.updates(xs, LOCALS[0])
    for group, few in zip(groups, cohorts, strict=True):
        assert torch.equal(few.updates(xs[group], LOCALS[0]), updates[group]), group
    for local in (LOCALS[0], LOCALS[3]):
        whole = everybody.train(xs, local, penalty=Quadratic(0.2))
        for group, few in zip(groups, cohorts, strict=True):
            assert torch.equal(
                few.train(xs[group], local, penalty=Quadratic(0.2)), whole[group]
            ), group


def test_a_single_step_is_the_same_beside_clients_with_several():
    given = problem("mlp", torch.float32)
    everybody = cohort(given)
    count, x = len(everybody.names), everybody.workspace.x.clone()
    steps, local = (
        [1 + i % 3 for i in range(count)],
        LocalSGD(lr=0.1, batch_size=8, weight_decay=0.1),
    )
    whole = everybody.train(x, local, steps=steps, penalty=Quadratic(0.2))
    for i, name in enumerate(everybody.names):
        alone = cohort(given, names=(name,)).train(
            x, local, steps=[steps[i]], penalty=Quadratic(0.2)
        )
        assert torch.equal(alone[0], whole[i]), name


@pytest.mark.parametrize(
    ("sizes", "batch", "dtype"),
    [((3, 11, 11, 3), 9, torch.float32), ((19, 15, 15, 3), 7, torch.float64)],
)
def test_slices_of_odd_sizes_begin_where_they_would_alone(sizes, batch, dtype):
    """Products round by where their operands begin, rarely seen: one of fifteen clients here if slopes lay behind each other."""
    inputs, *hidden, outputs = sizes
    net = seeded(lambda: MLP(tuple(hidden)).build((inputs,), outputs), dtype)
    rows = [
        (randoms(40, inputs, dtype=dtype, seed=i), torch.arange(40) % outputs)
        for i in range(45)
    ]
    given = Problem(
        Clients([Client(f"{i:02d}", Part(*part)) for i, part in enumerate(rows)]), net
    )
    local, everybody = LocalSGD(lr=0.3, steps=Steps(4), batch_size=batch), cohort(given)
    x = everybody.workspace.x.clone()
    whole = everybody.train(x, local)
    for i, name in enumerate(everybody.names):
        assert torch.equal(cohort(given, names=(name,)).train(x, local)[0], whole[i]), (
            name
        )


def test_labels_of_many_numbers_do_not_come_for_all_steps_at_once(monkeypatch):
    given = problem("mean", torch.float64, "regression")
    everybody, most = cohort(given), 0
    monkeypatch.setattr(kernels, "_BLOCK", 1 << 8)
    labels = kernels.Batched._labels

    def measured(self, values: Tensor) -> Tensor:
        nonlocal most
        most = max(most, values.numel())
        return labels(self, values)

    monkeypatch.setattr(kernels.Batched, "_labels", measured)
    monkeypatch.setattr(kernels.Batched, "width", lambda self, batch: 2)
    everybody.train(
        everybody.workspace.x.clone(), LocalSGD(lr=0.1, steps=Steps(40), batch_size=4)
    )
    assert 0 < most <= 1 << 8


def test_gradients_take_models_of_any_dtype_as_the_loop_does():
    given = problem("mlp", torch.float32)
    x = cohort(given).workspace.x.double()
    assert torch.equal(cohort(given).gradient(x), cohort(given).gradient(x.float()))
    assert_close(cohort(given, "loop").gradient(x), cohort(given).gradient(x), 1e-5)


def test_widths_and_blocks_do_not_change_a_bit(monkeypatch):
    """Twenty-three clients of one size, of a shape as in practice, in chunks of every width and blocks of every length."""
    net = seeded(lambda: MLP((30, 10)).build((40,), 10), torch.float32)
    rows = [
        (randoms(70, 40, dtype=torch.float32, seed=i), torch.arange(70) % 10)
        for i in range(23)
    ]
    given = Problem(
        Clients([Client(f"{i:02d}", Part(*part)) for i, part in enumerate(rows)]), net
    )
    local = LocalSGD(lr=0.1, steps=Steps(6), batch_size=32)
    everybody = cohort(given)
    x = everybody.workspace.x.clone()
    expected = everybody.train(x, local)
    for width, block in [
        (1, 1),
        (2, 1 << 18),
        (3, 4000),
        (7, 1 << 18),
        (10, 3000),
        (23, 1),
    ]:
        monkeypatch.setattr(kernels.Batched, "width", lambda self, batch, w=width: w)
        monkeypatch.setattr(kernels, "_BLOCK", block)
        assert torch.equal(cohort(given).train(x, local), expected), (width, block)


def test_on_a_gpu_every_chunk_has_the_same_width(monkeypatch):
    """What a GPU would do, done here: dummies fill a chunk up and change nothing."""
    given = problem("mlp")
    plain, padded = cohort(given), cohort(given)
    monkeypatch.setattr(padded.workspace.batched, "_least", 10)
    x = plain.workspace.x.clone()
    for local in LOCALS:
        expected = plain.train(x, local, correction=randoms(len(plain.names), len(x)))
        assert_close(
            padded.train(x, local, correction=randoms(len(plain.names), len(x))),
            expected,
        )
        assert padded.spent == plain.spent


def test_uint8_images_are_scaled_where_they_are_used():
    images = torch.randint(
        0,
        256,
        (40, 4, 4),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.uint8,
    )
    net = seeded(lambda: MLP((5,)).build((4, 4), 3), torch.float64)
    clients = [
        Client(n, Part(images[i * 20 : i * 20 + 20], torch.arange(20) % 3))
        for i, n in enumerate("ab")
    ]
    fast, loop = (
        cohort(Problem(Clients(clients), net)),
        cohort(Problem(Clients(clients), net), "loop"),
    )
    assert fast.clients.train.inputs.dtype == torch.uint8
    x, local = fast.workspace.x.clone(), LocalSGD(lr=0.5, steps=Steps(5), batch_size=7)
    assert_close(fast.train(x, local), loop.train(x, local))


def test_batches_of_many_starts_are_gathered_once_where_they_are_small(monkeypatch):
    given, local = problem("mlp"), LocalSGD(lr=0.1, steps=Steps(5), batch_size=8)
    starts = randoms(3, len(cohort(given).workspace.x))
    each = torch.stack([cohort(given).updates(start, local) for start in starts], dim=1)
    fed, feed = [], kernels.Batched.feed

    def counted(self, chunk, source):
        fed.append(chunk.members)
        return feed(self, chunk, source)

    monkeypatch.setattr(kernels.Batched, "feed", counted)
    assert torch.equal(cohort(given).updates_from(starts, local), each)
    chunks = len(fed)
    monkeypatch.setattr(side_by_side, "HELD_BYTES", 0)
    assert torch.equal(cohort(given).updates_from(starts, local), each)
    assert len(fed) == chunks + 3 * chunks


LINEAR = [("one-logit", ""), ("linear", ""), ("linear", "regression"), ("no-bias", "")]


@pytest.mark.in_turn(
    but=(
        "one-logit--local0",
        "linear--local2",
        "linear-regression-local3",
        "no-bias--local4",
    )
)
@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize(("model", "kind"), LINEAR)
def test_columns_train_as_each_model_alone(monkeypatch, model, kind, local):
    monkeypatch.setattr(Columns, "of", classmethod(lambda cls, narrow: cls(narrow)))
    given = problem(model, kind=kind)
    plain = cohort(given, "loop")
    starts = randoms(COLUMNS + 3, len(plain.workspace.x))
    each = torch.stack([plain.updates(start, local) for start in starts], dim=1)
    wide = cohort(given)
    assert_close(wide.updates_from(starts, local), each)
    assert wide.spent == plain.spent


@pytest.mark.in_turn(
    but=(
        "one-logit--local1",
        "linear--local0",
        "linear-regression-local4",
        "no-bias--local3",
    )
)
@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize(("model", "kind"), LINEAR)
def test_no_bit_of_a_column_depends_on_how_many_there_are(model, kind, local):
    """Nor on its place; where that does not hold on a machine, models train one after the other."""
    given = problem(model, torch.float32, kind=kind)
    wide = cohort(given)
    starts = randoms(COLUMNS + 3, len(wide.workspace.x), dtype=torch.float32)
    every = wide.updates_from(starts, local)
    for some in ([0], [7], [COLUMNS + 2, 3], [4, 9, 2, 11, 0]):
        assert torch.equal(wide.updates_from(starts[some], local), every[:, some])


def test_results_belong_to_the_caller():
    fast = cohort(problem("mlp"))
    x, local = fast.workspace.x.clone(), LOCALS[0]
    first = fast.train(x, local)
    kept, start = first.clone(), x.clone()
    fast.train(x + 1, local)
    assert torch.equal(first, kept)
    assert torch.equal(x, start)


def test_one_client_that_diverges_is_named_and_harms_nobody():
    given = problem("mlp", torch.float32)
    wild = Part(given.clients[3].train.inputs * 1e30, given.clients[3].train.labels)
    clients = Clients(
        [
            Client(c.name, wild if i == 3 else c.train)
            for i, c in enumerate(given.clients)
        ]
    )
    fast = cohort(given.with_clients(clients))
    with pytest.raises(
        FloatingPointError, match=r"client 'c03' diverged .*local lr = 0.1"
    ):
        fast.train(fast.workspace.x.clone(), LOCALS[0])


# ---- what is recognised


class Own(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * 2


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 3))
    net[0].register_forward_hook(lambda *_: None)
    return net


def shared() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


def partly_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    net[0].bias.requires_grad_(False)
    return net


UNKNOWN = {
    "convolution": (lambda: CNN().build((8, 8), 10), (8, 8)),
    "dropout": (lambda: MLP((4,), dropout=0.5).build((6,), 3), (6,)),
    "batch norm": (
        lambda: nn.Sequential(
            nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)
        ),
        (6,),
    ),
    "tanh": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), (6,)),
    "own forward": (lambda: nn.Sequential(Own(6, 3)), (6,)),
    "hook": (hooked, (6,)),
    "shared": (shared, (6,)),
    "frozen": (partly_frozen, (6,)),
    "relu at the end": (lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()), (6,)),
    "relu first": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 3)), (6,)),
    "last dimension only": (lambda: nn.Linear(6, 3), (2, 6)),
    "half precision": (lambda: nn.Linear(6, 3).to(torch.bfloat16), (6,)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_models_stay_with_the_loop(name):
    make, shape = UNKNOWN[name]
    net = make()
    assert recognise(net, Layout.of(net), torch.zeros(1, *shape)) is None


def test_layers_are_read_from_the_model():
    net = nn.Sequential(
        nn.Flatten(),
        nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU()),
        nn.Linear(4, 3),
    )
    assert recognise(net, Layout.of(net), torch.zeros(1, 2, 3)) == (
        Layer(4, 6, False, True),
        Layer(3, 4, True, False),
    )
    assert recognise(net, Layout.of(net), torch.zeros(1, 2, 4)) is None


@pytest.mark.parametrize(
    "change",
    [{"momentum": 0.9}, {"clip": 0.5}, {"optimiser": "adam"}],
    ids=lambda change: next(iter(change)),
)
def test_other_optimisers_stay_with_the_loop(change, monkeypatch):
    given = problem("mlp")
    fast, loop = cohort(given), cohort(given, "loop")

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(kernels.Batched, "train", never)
    x, local = (
        fast.workspace.x.clone(),
        LocalSGD(lr=0.1, steps=Steps(3), batch_size=8, **change),
    )
    assert_close(fast.train(x, local), loop.train(x, local))
    for hook in (
        {"penalty": lambda step: step.outputs.square().mean()},
        {"gradient_rule": lambda g, y: 2 * g(y, 0)},
    ):
        assert_close(
            fast.train(x, LOCALS[0], **hook), loop.train(x, LOCALS[0], **hook), 1e-11
        )


def test_the_kernel_is_announced_once_and_can_be_switched_off(caplog):
    given, method = problem("mlp", torch.float32), FedAvg(LocalSGD(steps=Steps(1)))
    with caplog.at_level(logging.INFO, "coterie"):
        fit(method, given.clients, deepcopy(given.model), 2, evaluate=2, metrics=())
        said = [r.getMessage() for r in caplog.records if "kernel" in r.getMessage()]
        assert len(said) == 1
        assert "batched kernel" in said[0]
        caplog.clear()
        fit(
            method,
            given.clients,
            deepcopy(given.model),
            2,
            evaluate=2,
            metrics=(),
            engine=InProcess(kernel="loop"),
        )
        assert not [r for r in caplog.records if "kernel" in r.getMessage()]
    with pytest.raises(InputError, match=r"kernel must be auto \| vmap \| loop"):
        InProcess(kernel="fast")


def test_where_a_product_depends_on_its_company_the_loop_trains(monkeypatch, caplog):
    monkeypatch.setattr(kernel_choice, "_STEADY", {})
    monkeypatch.setattr(kernels.Batched, "steady", lambda self: False)
    with caplog.at_level(logging.INFO, "coterie"):
        assert cohort(problem("mlp")).workspace.batched is None
    assert "the loop trains" in caplog.text


def test_each_layer_is_tried_alone_once_in_its_true_width(monkeypatch):
    tried, honest = [], kernels.Batched.steady

    def steady(self):
        tried.append((self.layers, self.kind))
        return honest(self)

    monkeypatch.setattr(kernel_choice, "_STEADY", {})
    monkeypatch.setattr(kernels.Batched, "steady", steady)
    batched = cohort(problem("mlp")).workspace.batched
    cohort(problem("mlp"))
    assert [layers[-1] for layers, _ in tried] == [
        layer._replace(relu=False) for layer in batched.layers
    ]
    assert [len(layers) for layers, _ in tried] == [1] + [2] * (len(batched.layers) - 1)
    assert tried[-1][1] == batched.kind


def test_a_layer_beyond_the_budget_is_not_tried_and_the_loop_trains(monkeypatch):
    monkeypatch.setattr(kernel_choice, "_STEADY", {})
    monkeypatch.setattr(kernels, "_PROBED", 8)
    monkeypatch.setattr(kernels.Batched, "train", None)
    assert cohort(problem("mlp")).workspace.batched is None


def test_company_that_changes_a_bit_is_seen(monkeypatch):
    honest = kernels.Batched._slope
    assert cohort(problem("mlp")).workspace.batched.steady()

    def crowded(self, outputs: Tensor, labels: Tensor, scale: Tensor) -> None:
        honest(self, outputs, labels, scale)
        outputs.mul_(1 + 1e-7 * len(outputs))

    monkeypatch.setattr(kernels.Batched, "_slope", crowded)
    assert (
        cohort(problem("mlp")).workspace.batched is not None
    )  # what was found before is kept
    monkeypatch.setattr(kernel_choice, "_STEADY", {})
    assert cohort(problem("mlp")).workspace.batched is None


@pytest.mark.parametrize(
    ("device", "width", "clients"),
    [
        ("cpu", 30, 75),
        ("cpu", 400, 6),
        ("cpu", 1900, 1),
        ("cuda", 30, 16),
        ("cuda", 400, 6),
        ("cuda", 1900, 1),
    ],
)
def test_the_weights_of_a_chunk_fit_into_a_few_megabytes(device, width, clients):
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    layout = Layout.of(model)
    layers = recognise(model, layout, torch.zeros(1, width))
    kernel = kernels.Batched(layers, "classes", layout, torch.device(device))
    assert kernel.width(32) == clients
    assert clients == 1 or clients * layout.dim * 4 <= HELD_BYTES


@pytest.mark.parametrize("own_start", [False, True])
def test_updates_of_neighbours_are_written_with_one_call_for_each_layer(
    own_start, monkeypatch
):
    given = problem("mlp", torch.float32)
    of_twelve_rows = tuple(
        client.name for client in given.clients if len(client.train) == 12
    )
    everybody, local = (
        cohort(given, names=of_twelve_rows),
        LocalSGD(lr=0.1, steps=Steps(3), batch_size=8),
    )
    x = everybody.workspace.x.clone()
    x = (
        x + 0.1 * randoms(len(everybody.names), len(x), dtype=torch.float32)
        if own_start
        else x
    )
    expected = everybody.train(x, local) - x
    calls, subtract = [], torch.sub
    monkeypatch.setattr(
        torch,
        "sub",
        lambda *terms, out: calls.append(len(out)) or subtract(*terms, out=out),
    )
    assert torch.equal(everybody.updates(x, local), expected)
    assert calls == [len(of_twelve_rows)] * len(list(given.model.parameters()))


@pytest.mark.in_turn(but=("linear-", "mlp-regression", "mean-regression"))
@pytest.mark.parametrize(("model", "kind"), KINDS)
def test_clients_are_asked_at_their_own_models_in_few_calls(model, kind, monkeypatch):
    given = problem(model, torch.float32, kind)
    everybody = cohort(given)
    count, x = len(everybody.names), everybody.workspace.x.clone()
    xs = x + 0.1 * randoms(count, 3, len(x), dtype=torch.float32)
    calls = []
    step = Batched._step
    monkeypatch.setattr(
        Batched, "_step", lambda self, *given: calls.append(1) or step(self, *given)
    )
    asked = {"batch_size": 40, "purpose": "oracle/1"}
    gradients = oracle.gradient_each(everybody, xs[:, 0], ["train"] * count, **asked)
    losses = oracle.losses_each(everybody, xs, ["train"] * count, **asked)
    if not model.startswith("mean"):
        assert len(calls) == 3, "one for clients of 16, of 32 and of 48 rows at most"
    for i in (0, 3, 6, 7):
        alone = cohort(given, names=(everybody.names[i],))
        assert torch.equal(
            oracle.gradient_each(alone, xs[i : i + 1, 0], ["train"], **asked)[0],
            gradients[i],
        )
        assert torch.equal(
            oracle.losses_each(alone, xs[i : i + 1], ["train"], **asked)[0], losses[i]
        )


def test_all_rows_of_the_same_clients_are_read_once_for_all_steps(monkeypatch):
    given = problem("mlp", torch.float32)
    everybody = cohort(given)
    count, x = len(everybody.names), everybody.workspace.x.clone()
    x = x + 0.1 * randoms(count, len(x), dtype=torch.float32)
    parts = ["train"] * count
    reads, take = [], row_source.take
    monkeypatch.setattr(
        row_source, "take", lambda *asked: reads.append(1) or take(*asked)
    )
    first = oracle.gradient_each(everybody, x, parts)
    read_once = len(reads)
    assert read_once > 0
    assert torch.equal(oracle.gradient_each(everybody, x, parts), first)
    oracle.losses_each(everybody, x[:, None], parts)
    assert len(reads) == read_once

    # Other clients, and others in between, are asked about their own rows.
    order = [5, 2, 9]
    some = everybody.only(order)
    of_some = oracle.gradient_each(some, x[order], parts[:3])
    assert len(reads) > read_once
    assert torch.equal(of_some, first[order])
    assert torch.equal(oracle.gradient_each(everybody, x, parts), first)

    # A minibatch is drawn again in each step.
    before = len(reads)
    for step in range(2):
        asked = {"batch_size": 8, "purpose": f"oracle/{step}"}
        oracle.gradient_each(everybody, x, parts, **asked)
    assert len(reads) > before + 1


def test_in_double_precision_the_calls_are_those_of_the_loop():
    given = problem("mlp")
    fast, loop = cohort(given), cohort(given, "loop")
    xs = fast.workspace.x + 0.1 * randoms(len(fast.names), 2, len(fast.workspace.x))
    parts = ["train"] * len(xs)
    assert_close(
        oracle.gradient_each(fast, xs[:, 0], parts),
        oracle.gradient_each(loop, xs[:, 0], parts),
    )
    assert_close(
        oracle.losses_each(fast, xs, parts), oracle.losses_each(loop, xs, parts)
    )
    assert fast.spent == loop.spent
