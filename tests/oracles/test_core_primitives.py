"""Gradients, losses and evaluation at given models, against autograd, finite differences and loops over clients."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.rows import CHUNK, Part
from coterie.base.vector import (
    Layout,
    Sum,
    average,
    dot,
    export,
    flatten,
    move,
    unflatten,
)
from coterie.compute.cohort import Cohort
from coterie.compute.local_training import TrainOptions
from federations import (
    HELD,
    PROBLEMS,
    SIZES,
    Problem,
    assert_close,
    batch_norm,
    cohort_of,
    logistic,
    loss_of,
    model_at,
    quadratic,
    regression,
    rows_of,
    seeded,
    start,
    vector_of,
)


def by_autograd(problem, part, x):
    """Gradient [d] and mean loss of the rows of `part` at x, by plain torch in eval mode."""
    model = model_at(problem, x).eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = loss_of(model(part.inputs), part.labels)
    return torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]
    ), loss.detach()


def models_near(problem, count):
    x = start(problem)
    stream = torch.Generator().manual_seed(4)
    noise = torch.randn(count, len(x), generator=stream, dtype=x.dtype) * 0.3
    return x + noise * (
        x != 0
    )  # zeros are statistics that stay valid, ones are variances


@pytest.mark.parametrize("name", list(PROBLEMS))
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_gradient_and_loss_are_those_of_autograd(name, part):
    problem = PROBLEMS[name]()
    xs = models_near(problem, 5)
    xs = xs.abs() if name == "batch-norm" else xs
    cohort = cohort_of(problem)
    shared, own, losses = (
        cohort.gradient(xs[0], part=part),
        cohort.gradient(xs, part=part),
        cohort.loss(xs, part=part),
    )
    dim = cohort.layout.dim
    for i, client in enumerate("abcde"):
        rows = problem.clients[client].part(part)
        assert_close(shared[i, :dim], by_autograd(problem, rows, xs[0])[0])
        gradient, loss = by_autograd(problem, rows, xs[i])
        assert_close(own[i, :dim], gradient)
        assert_close(losses[i], loss)
    assert (shared[:, dim:] == 0).all()
    assert not cohort.workspace.model.training
    count = sum(SIZES.values()) if part == "train" else 5 * HELD
    assert cohort.spent == {"row_gradients": 2 * count, "row_losses": count}


@pytest.mark.parametrize("name", ["logistic", "batch-norm", "segmentation"])
def test_gradient_is_the_slope_of_loss(name):
    problem = PROBLEMS[name]()
    x, h = models_near(problem, 1)[0].abs(), 1e-5
    cohort = cohort_of(problem, "c")
    gradient = cohort.gradient(x, part="test")[0]
    for k in range(cohort.layout.dim):
        step = torch.zeros_like(x)
        step[k] = h
        slope = (
            cohort.loss(x + step, part="test") - cohort.loss(x - step, part="test")
        ) / (2 * h)
        assert float(gradient[k]) == pytest.approx(float(slope), abs=1e-8)


def test_a_minibatch_is_named_by_purpose_and_part():
    problem = logistic()
    x = start(problem)
    cohort = cohort_of(problem, seed=3, round=5)
    got = cohort.gradient(x, batch_size=4, purpose="oracle/2")
    losses = cohort.loss(x, batch_size=4, purpose="oracle/2")
    for i, client in enumerate("abcde"):
        index = Rng.named(3, 5, client, "oracle/2", "train").permutation(
            SIZES[client], 4
        )
        rows = rows_of(problem.clients[client].train, torch.from_numpy(index))
        gradient, loss = by_autograd(problem, rows, x)
        assert_close(got[i], gradient)
        assert_close(losses[i], loss)
    assert torch.equal(cohort.gradient(x, batch_size=4, purpose="oracle/2"), got)
    assert not torch.equal(cohort.gradient(x, batch_size=4, purpose="oracle/3"), got)
    assert cohort.spent["row_gradients"] == 3 * 5 * 4
    assert torch.equal(cohort.gradient(x, batch_size=100), cohort.gradient(x))


def test_more_rows_than_a_pass_takes_are_weighted_by_their_number():
    g = torch.Generator().manual_seed(0)
    count = CHUNK * 2 + 37
    x, y = (
        torch.randn(count, 3, generator=g, dtype=torch.float64),
        torch.randint(0, 2, (count,), generator=g),
    )
    part = Part(x, y)
    problem = Problem(
        Clients([Client("a", part, test=part), Client("b", part.select(slice(0, 5)))]),
        logistic().model,
    )
    at = start(problem)
    cohort = cohort_of(problem, "a")
    gradient, loss = by_autograd(problem, part, at)
    assert_close(cohort.gradient(at)[0], gradient)
    assert_close(cohort.loss(at)[0], loss)
    assert_close(cohort.evaluate(at, {})["loss"][0], loss)
    assert cohort.spent == {"row_gradients": count, "row_losses": 2 * count}


def test_losses_are_summed_in_float64():
    count = 4096
    labels = torch.zeros(count, 1)
    labels[0] = 3e3  # its square is 9e6, so that float32 would lose the others' .01
    labels[1:] = 0.1
    clients = Clients([Client("a", Part(torch.zeros(count, 1), labels))])
    problem = quadratic({"a": [0.0]}, dtype=torch.float32).with_clients(clients)
    got = cohort_of(problem).loss(torch.zeros(1))
    assert got.dtype == torch.float64
    exact = labels.double().square().mean()
    assert float(got[0]) == pytest.approx(float(exact), rel=1e-7)
    assert float(labels.square().sum() / count) != pytest.approx(float(exact), rel=1e-8)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_losses_of_many_models_are_many_losses(batch_size):
    problem = batch_norm()
    xs = models_near(problem, 15).abs()
    cohort = cohort_of(problem)
    options = {"part": "train", "batch_size": batch_size, "purpose": "oracle"}
    shared = cohort.losses(xs[:3], **options)
    assert shared.shape == (5, 3)
    for q in range(3):
        assert torch.equal(shared[:, q], cohort.loss(xs[q], **options))
    own = xs.view(5, 3, -1)
    each = cohort.losses(own, **options)
    for q in range(3):
        assert torch.equal(each[:, q], cohort.loss(own[:, q], **options))
    assert cohort.losses(xs[:0], **options).shape == (5, 0)


def test_primitives_leave_their_arguments_alone():
    problem = batch_norm()
    cohort, xs = cohort_of(problem), models_near(problem, 5).abs()
    before = xs.clone()
    for mode in ("eval", "train"):
        cohort.gradient(xs, mode=mode)
    cohort.losses(xs)
    cohort.evaluate(xs, {})
    assert torch.equal(xs, before)
    first = cohort.loss(xs[0])
    cohort.gradient(
        xs[0], mode="train"
    )  # its statistics are those of the batch, and none of them stays
    assert torch.equal(cohort.loss(xs[0]), first)


def test_gradient_in_train_mode_uses_the_statistics_of_the_batch():
    problem = batch_norm()
    x = models_near(problem, 1)[0].abs()
    got = cohort_of(problem, "b").gradient(x, mode="train")
    model = model_at(problem, x).train()
    rows = problem.clients["b"].train
    grads = torch.autograd.grad(
        loss_of(model(rows.inputs), rows.labels), list(model.parameters())
    )
    expected = torch.cat([g.reshape(-1) for g in grads])
    assert_close(got[0, : len(expected)], expected)
    assert not torch.allclose(cohort_of(problem, "b").gradient(x), got)


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda c, x: c.gradient(x, part="tset"), "part must be train, validation, test, contribution; got 'tset'"),
    (lambda c, x: c.loss(x, part="test"), "client 'a' has no test rows"),
    (lambda c, x: c.gradient(x, mode="training"), "mode must be eval or train; got 'training'"),
])  # fmt: skip
def test_wrong_arguments_are_named(call, sentence):
    problem = quadratic({"a": [1.0], "b": [2.0]})
    with pytest.raises(InputError, match=sentence):
        call(cohort_of(problem), start(problem))


# ---- evaluation


def rank_by_hand(outputs, labels, kind):
    """A metric of our own: mean output minus number of labels; undefined for fewer than 6 rows."""
    return None if len(labels) < 6 else float(outputs.double().mean()) - len(labels)


@pytest.mark.parametrize("name", list(PROBLEMS))
@pytest.mark.parametrize("own", [False, True])
def test_evaluation_equals_a_loop_over_clients(name, own):
    problem = PROBLEMS[name]()
    xs = models_near(problem, 5).abs()
    got = cohort_of(problem).evaluate(xs if own else xs[0], {"mine": rank_by_hand})
    for i, client in enumerate("abcde"):
        x = xs[i] if own else xs[0]
        rows = problem.clients[client].test
        assert_close(got["loss"][i], by_autograd(problem, rows, x)[1].double())
        outputs = model_at(problem, x).eval()(rows.inputs).detach()
        assert float(got["mine"][i]) == pytest.approx(
            float(outputs.mean()) - HELD, rel=1e-12
        )
    assert got["n"].tolist() == [HELD] * 5


def test_clients_without_rows_are_evaluated_as_undefined():
    full = logistic()
    clients = [full.clients[n] for n in "abcde"]
    clients[1] = Client("b", clients[1].train)
    clients[3] = Client("d", clients[3].train, test=clients[3].test.select(slice(0, 2)))
    problem = full.with_clients(Clients(clients))
    xs = models_near(problem, 5)
    got = cohort_of(problem).evaluate(xs, {"mine": rank_by_hand})
    assert got["n"].tolist() == [HELD, 0, HELD, 2, HELD]
    assert got["loss"].isnan().tolist() == [False, True, False, False, False]
    assert got["mine"].isnan().tolist() == [False, True, False, True, False]
    assert float(got["loss"][4]) == pytest.approx(
        float(by_autograd(problem, clients[4].test, xs[4])[1]), rel=1e-12
    )
    nobody = cohort_of(problem, "b").evaluate(xs[:1], {"mine": rank_by_hand})
    assert nobody["n"].tolist() == [0]
    assert nobody["loss"].isnan().all()


def test_a_clients_answer_does_not_depend_on_its_cohort():
    for name, make in PROBLEMS.items():
        problem = make()
        xs = models_near(problem, 5).abs()
        together, alone = cohort_of(problem), cohort_of(problem, "c")
        for call in (
            lambda c, x: c.gradient(x),
            lambda c, x: c.loss(x),
            lambda c, x: c.evaluate(x, {"mine": rank_by_hand})["loss"],
            lambda c, x: c.evaluate(x, {"mine": rank_by_hand})["mine"],
            outputs_by_client,
        ):
            assert torch.equal(call(together, xs)[2], call(alone, xs[2:3])[0]), name


def outputs_by_client(cohort, xs):
    seen = []
    cohort.evaluate(xs, {"seen": lambda outputs, labels, kind: seen.append(outputs)})
    return torch.stack(seen)


# ---- losses by kind


def test_own_losses_are_functions_of_outputs_and_labels():
    problem = regression()
    x = models_near(problem, 1)[0]
    cohort = cohort_of(
        problem, loss=lambda outputs, labels: (outputs[:, 0] - labels).abs().pow(3)
    )
    rows = problem.clients["a"].train
    model = model_at(problem, x)
    loss = (model(rows.inputs)[:, 0] - rows.labels).abs().pow(3).mean()
    assert_close(cohort.loss(x)[0], loss.detach())
    grads = torch.autograd.grad(loss, list(model.parameters()))
    assert_close(cohort.gradient(x)[0], torch.cat([g.reshape(-1) for g in grads]))


def test_a_loss_that_is_no_number_per_row_is_refused():
    with pytest.raises(
        InputError,
        match=r"the loss returned shape \(\); it must return one number per row: \(2,\)",
    ):
        cohort_of(
            regression(),
            loss=lambda outputs, labels: (outputs[:, 0] - labels).square().mean(),
        )
    with pytest.raises(InputError, match="loss must be a name or a callable"):
        cohort_of(regression(), loss="mse")


@pytest.mark.parametrize(("outputs", "labels", "kind"), [
    ((5, 1), torch.tensor([0, 1, 1, 0, 1]), "binary"),
    ((5,), torch.tensor([0, 1, 1, 0, 1]), "binary"),
    ((5, 3), torch.tensor([0, 1, 2, 0, 1]), "classes"),
    ((5, 3, 2, 2), torch.zeros(5, 2, 2, dtype=torch.int64), "classes"),
    ((5, 1, 2, 2), torch.ones(5, 2, 2, dtype=torch.int64), "binary"),
    ((5, 1), torch.zeros(5), "regression"),
    ((5, 4), torch.zeros(5, 4), "regression"),
])  # fmt: skip
def test_auto_reads_the_kind_from_outputs_and_labels(outputs, labels, kind):
    from coterie.base.loss import choose_loss

    values = torch.randn(outputs, generator=torch.Generator().manual_seed(0))
    loss = choose_loss("auto", values, labels)
    assert loss.kind == kind
    flat = (
        values.squeeze(1)
        if outputs[1:2] == (1,) and values.ndim == labels.ndim + 1
        else values
    )
    expected = {
        "binary": lambda: F.binary_cross_entropy_with_logits(
            flat, labels.float(), reduction="none"
        ),
        "classes": lambda: F.cross_entropy(values, labels, reduction="none"),
        "regression": lambda: (flat - labels).square(),
    }[kind]()
    per_row = expected if expected.ndim == 1 else expected.flatten(1).mean(1)
    torch.testing.assert_close(loss.rows(values, labels), per_row)
    torch.testing.assert_close(loss.mean(values, labels), per_row.mean())


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [((5, 3), torch.zeros(5)), ((5, 3, 2), torch.zeros(5, 4, dtype=torch.int64))],
)
def test_outputs_that_do_not_fit_the_labels_are_refused(outputs, labels):
    from coterie.base.loss import choose_loss

    with pytest.raises(
        InputError, match=r"the model gives outputs of shape .* for labels of shape"
    ):
        choose_loss("auto", torch.zeros(outputs), labels)


# ---- vectors


def test_a_vector_is_parameters_then_float_buffers():
    problem = batch_norm()
    model = problem.model
    layout = Layout.of(model)
    x = flatten(model, layout)
    assert torch.equal(x, vector_of(model))
    assert (layout.dim, layout.size) == (
        sum(p.numel() for p in model.parameters()),
        len(x),
    )
    named = unflatten(x, layout)
    state = model.state_dict()
    assert set(state) - set(named) == {"1.num_batches_tracked"}
    assert all(torch.equal(v, state[k]) for k, v in named.items())
    assert torch.equal(
        export(x + 1, model, layout)["1.running_mean"], state["1.running_mean"] + 1
    )
    assert export(x, model, layout).keys() == state.keys()
    with pytest.raises(
        InputError, match=r"a model vector has shape \(\d+,\), got \(3,\)"
    ):
        unflatten(torch.zeros(3), layout)


def test_shared_parameters_are_one_entry():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)
            self.again = self.first

        def forward(self, x):
            return self.second(self.again(torch.tanh(self.first(x))))

    problem = regression()._replace(model=seeded(Tied, torch.float64))
    x = start(problem)
    assert len(x) == 12 + 4
    gradient, _ = by_autograd(problem, problem.clients["a"].train, x)
    assert_close(cohort_of(problem, "a").gradient(x)[0], gradient)


def test_models_that_have_no_vector_are_refused():
    model = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(
        InputError, match="the model has no trainable parameter; unfreeze at least one"
    ):
        Layout.of(model)
    mixed = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1).double())
    with pytest.raises(
        InputError, match=r"the model mixes torch\.float32, torch\.float64; give all"
    ):
        Layout.of(mixed)


def test_a_model_that_cannot_take_the_rows_is_refused_by_client_and_shape():
    problem = logistic()._replace(model=nn.Linear(7, 1))
    with pytest.raises(
        InputError,
        match=r"the model cannot take inputs of shape \(2, 3\) of client 'a'",
    ):
        cohort_of(problem)


def test_weights_go_where_the_updates_are():
    elsewhere = torch.zeros(
        2, 3, device="meta"
    )  # stands for a GPU: mixing it with tensors of the CPU is an error
    assert (
        move(
            elsewhere[0], torch.ones(2, dtype=torch.float64), elsewhere, 0.5, 2
        ).device.type
        == "meta"
    )


def test_move_equals_a_plain_loop():
    g = torch.Generator().manual_seed(2)
    for n, d, b in ((1, 3, 0), (4, 3, 2), (6, 1, 4)):
        x, updates = (
            torch.randn(*shape, d + b, generator=g, dtype=torch.float64)
            for shape in ((), (n,))
        )
        weights = torch.rand(n, generator=g, dtype=torch.float64) * 3
        for lr in (0.5, 1.0, 2.0):
            expected = x.clone()
            for k in range(n):
                for j in range(d):
                    expected[j] += lr * weights[k] * updates[k, j]
                for j in range(d, d + b):
                    expected[j] += weights[k] / weights.sum() * updates[k, j]
            assert_close(move(x, weights, updates, lr, d), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (7,), (64,), (1001,), (3, 65)])
def test_a_sum_has_the_same_bits_however_many_vectors_come_at_a_time(shape, dtype):
    g = torch.Generator().manual_seed(len(shape) * shape[-1])
    vectors = torch.randn(40, *shape, generator=g).to(dtype)
    weights = torch.randint(1, 1000, (40,), generator=g, dtype=torch.float64)
    whole = average(weights, vectors)
    assert (whole.shape, whole.dtype) == (shape, dtype)
    exact = torch.einsum("k,k...->...", weights / weights.sum(), vectors.double())
    assert torch.allclose(
        whole.double(), exact, rtol=0, atol=4 * torch.finfo(dtype).eps
    )
    for size in (1, 3, 39):
        total = Sum()
        for low in range(0, 40, size):
            total.add(weights[low : low + size], vectors[low : low + size].clone())
        assert torch.equal(total.divide(float(weights.sum())), whole)


def test_a_sum_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no vector to add"):
        Sum().divide(1.0)


def test_buffers_stay_where_no_weight_is_left():
    updates = torch.ones(2, 3)
    assert move(torch.zeros(3), torch.zeros(2), updates, 1.0, 2).tolist() == [0, 0, 0]
    assert move(
        torch.zeros(3),
        torch.tensor([1.0, -1.0]),
        updates * torch.tensor([[1.0], [2.0]]),
        1.0,
        2,
    ).tolist() == [
        -1,
        -1,
        0,
    ]


def test_inner_products_leave_buffers_out():
    a, b = torch.arange(6.0).view(2, 3), torch.tensor([1.0, -1.0, 5.0])
    assert dot(a, b).tolist() == [9.0, 24.0]
    assert dot(a, b, 2).tolist() == [-1.0, -1.0]


def test_train_documents_its_options():
    documented = set(
        re.findall(r"^ {4}(\w+):", inspect.getdoc(Cohort.train), re.MULTILINE)
    )
    assert documented == {"x", "local", *TrainOptions.__annotations__}
