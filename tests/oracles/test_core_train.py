"""Local training against a loop with torch's own optimisers and autograd, fed with the same rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng, batches
from coterie.base.rows import Part
from coterie.base.vector import Layout
from coterie.compute import cohort_rows
from coterie.compute.step_hooks import Quadratic
from coterie.config.local import Epochs, LocalSGD, Schedule, Steps
from coterie.config.schema import build, spell, wire_type
from coterie.contract.method import Sampler
from federations import (
    PROBLEMS,
    SIZES,
    Problem,
    assert_close,
    batch_norm,
    cohort_of,
    dropout,
    frozen,
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

SEED, ROUND = 3, 5


TORCH_NAMES = {
    "adadelta": "Adadelta", "adagrad": "Adagrad", "adam": "Adam", "adamax": "Adamax", "adamw": "AdamW", "asgd": "ASGD",
    "nadam": "NAdam", "radam": "RAdam", "rmsprop": "RMSprop",
}  # fmt: skip


def plain_loop(
    problem, name, x, local, *, extra_loss=None, extra_gradient=None, rows=None
):
    """What training of one client should do, as anybody would write it with torch."""
    model = model_at(problem, x).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    options = {"momentum": local.momentum} if local.momentum else {}
    rate = local.rate(ROUND)
    optimiser = getattr(torch.optim, TORCH_NAMES.get(local.optimiser, "SGD"))(
        parameters, rate, weight_decay=local.weight_decay, **options
    )
    part = problem.clients[name].train
    if rows is None:
        smallest = (
            2 if any("BatchNorm" in type(m).__name__ for m in model.modules()) else 1
        )
        many = (
            {"steps": local.steps.count}
            if isinstance(local.steps, Steps)
            else {"epochs": local.steps.count}
        )
        rows = batches(
            Rng.named(SEED, ROUND, name, "train"),
            len(part),
            local.batch_size,
            smallest=smallest,
            **many,
        )
    seen = 0
    for index in rows:
        batch = rows_of(part, torch.as_tensor(index))
        optimiser.zero_grad()
        loss = loss_of(model(batch.inputs), batch.labels)
        if extra_loss is not None:
            loss = loss + extra_loss(parameters)
        loss.backward()
        if extra_gradient is not None:
            low = 0
            for p in parameters:
                p.grad += extra_gradient[low : low + p.numel()].view_as(p)
                low += p.numel()
        if local.clip is not None:
            norm = torch.sqrt(sum(p.grad.square().sum() for p in parameters))
            for p in parameters:
                p.grad *= min(1.0, local.clip / float(norm))
        optimiser.step()
        seen += len(batch)
    return vector_of(model), seen


def both(problem, local, names="abcde", x=None, **hooks):
    cohort = cohort_of(problem, names, seed=SEED, round=ROUND)
    x = start(problem) if x is None else x
    return cohort.train(x, local, **hooks), cohort.spent["row_gradients"]


BASE = LocalSGD(lr=0.2, steps=Steps(7), batch_size=5)
SETTINGS = {
    "plain": BASE,
    "epochs": replace(BASE, steps=Epochs(3)),
    "all rows": replace(BASE, batch_size=None),
    "batch larger than the data": replace(BASE, batch_size=100),
    "momentum": replace(BASE, momentum=0.8),
    "weight decay": replace(BASE, weight_decay=0.3),
    "momentum and weight decay": replace(BASE, momentum=0.5, weight_decay=0.3),
    "clip": replace(BASE, clip=0.05),
    "clip and weight decay": replace(BASE, clip=0.05, weight_decay=0.3),
    "clip, momentum and weight decay": replace(
        BASE, clip=0.05, momentum=0.5, weight_decay=0.3
    ),
    "clip that is never reached": replace(BASE, clip=1e6),
    "adam": replace(BASE, optimiser="adam", lr=0.01),
    "adam with weight decay": replace(
        BASE, optimiser="adam", lr=0.01, weight_decay=0.3
    ),
    "adamw": replace(BASE, optimiser="adamw", lr=0.01, weight_decay=0.3),
    "adadelta": replace(BASE, optimiser=torch.optim.Adadelta),
    "adagrad": replace(BASE, optimiser=torch.optim.Adagrad, weight_decay=0.3),
    "adamax": replace(BASE, optimiser="torch.optim.Adamax", lr=0.01),
    "asgd": replace(BASE, optimiser="asgd"),
    "nadam": replace(BASE, optimiser="nadam", lr=0.01, clip=0.05),
    "radam": replace(BASE, optimiser="radam", lr=0.01),
    "rmsprop": replace(BASE, optimiser=torch.optim.RMSprop, lr=0.01, momentum=0.5),
    "schedule": replace(BASE, lr=Schedule(0.5, (2, 5, 6), 0.3)),
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_training_equals_a_plain_loop(name):
    problem, local = logistic(), SETTINGS[name]
    got, spent = both(problem, local)
    expected = [
        plain_loop(problem, client, start(problem), local) for client in "abcde"
    ]
    assert_close(got, torch.stack([x for x, _ in expected]))
    assert spent == sum(seen for _, seen in expected)
    if name not in ("plain", "clip that is never reached"):
        assert (got - both(problem, BASE)[0]).abs().max() > 1e-6


def test_an_optimiser_of_a_class_is_its_name_in_files():
    assert (
        LocalSGD(optimiser=torch.optim.NAdam)
        == LocalSGD(optimiser="nadam")
        == LocalSGD(optimiser="torch.optim.NAdam")
    )
    assert spell(LocalSGD(optimiser=torch.optim.NAdam))["optimiser"] == "nadam"
    assert (
        build(LocalSGD, {"optimiser": "torch.optim.Adam"}, "[local]").optimiser
        == "adam"
    )


def test_nothing_of_an_optimiser_is_kept_between_rounds():
    problem, local = logistic(), SETTINGS["adam"]
    x = start(problem)
    alone = coterie.RunSettings(merge_validation=False)
    method = coterie.Local(local, exact=False)
    run = coterie.fit(method, problem.clients, problem.model, 2, SEED, settings=alone)
    for number in (1, 2):
        x = cohort_of(problem, "a", seed=SEED, round=number).train(x, local)[0]
    assert_close(run.models["a"], x)


@pytest.mark.parametrize("name", [n for n in PROBLEMS if n != "dropout"])
@pytest.mark.parametrize("settings", ["plain", "momentum and weight decay"])
def test_any_problem_equals_a_plain_loop(name, settings):
    problem, local = PROBLEMS[name](), SETTINGS[settings]
    got, _ = both(problem, local, "ce")
    assert_close(
        got,
        torch.stack([plain_loop(problem, c, start(problem), local)[0] for c in "ce"]),
        1e-11,
    )
    assert (got - start(problem)).abs().max() > 1e-3


def test_every_client_starts_from_its_own_row_of_x():
    problem = batch_norm()
    x = start(problem) + torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    got, _ = both(problem, BASE, x=x)
    for i, client in enumerate("abcde"):
        assert_close(got[i], plain_loop(problem, client, x[i], BASE)[0], 1e-11)


def test_training_leaves_x_and_the_given_model_alone():
    problem = batch_norm()
    x = start(problem)
    before, state = (
        x.clone(),
        {k: v.clone() for k, v in problem.model.state_dict().items()},
    )
    both(problem, BASE, x=x)
    assert torch.equal(x, before)
    assert all(torch.equal(v, state[k]) for k, v in problem.model.state_dict().items())


def test_a_batch_of_one_row_is_dropped_under_batch_norm_only():
    problem = batch_norm()
    local = replace(
        BASE, steps=Epochs(2), batch_size=5
    )  # c has 16 rows: batches of 5, 5, 5, 1
    got, spent = both(problem, local, "c")
    assert_close(got[0], plain_loop(problem, "c", start(problem), local)[0], 1e-11)
    assert spent == 30
    assert both(frozen(), local, "c")[1] == 32


def test_batch_norm_refuses_a_client_that_it_cannot_train():
    with pytest.raises(
        InputError,
        match=r"client 'a' has 12 training rows in batches of 1; .*batch norm needs at least 2",
    ):
        both(batch_norm(), replace(BASE, batch_size=1))


class Counting(nn.Module):
    """Batch norm whose statistics are means over all batches seen, by an integer counter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 1)

    def forward(self, x):
        return self.out(self.norm(x))


def test_counters_start_anew_with_every_training():
    problem = logistic()._replace(model=seeded(Counting, torch.float64))
    cohort = cohort_of(problem, "abc", seed=SEED, round=ROUND)
    x = start(problem)
    first = cohort.train(x, BASE)
    for i, client in enumerate("abc"):
        assert_close(first[i], plain_loop(problem, client, x, BASE)[0], 1e-11)
    cohort.gradient(x, mode="train")
    assert torch.equal(cohort.train(x, BASE), first)
    assert cohort.workspace.model.norm.num_batches_tracked == 0


def test_float_statistics_travel_and_integer_counters_do_not():
    problem = batch_norm()
    got, _ = both(problem, BASE, "a")
    model = model_at(problem, got[0])
    assert len(got[0]) == sum(p.numel() for p in model.parameters()) + 2 * 5
    assert (model[1].running_mean != 0).all()
    assert (model[1].running_var != 1).all()
    assert got.dtype == torch.float64


# ---- hooks


def test_the_proximal_penalty_is_that_of_autograd():
    problem, x, mu = logistic(), start(logistic()), 0.7
    anchor = x[:4].clone()
    for local in (BASE, replace(BASE, momentum=0.5), replace(BASE, clip=0.1)):
        got, _ = both(problem, local, penalty=Quadratic(mu))

        def penalty(parameters):
            return (
                mu
                / 2
                * (torch.cat([p.reshape(-1) for p in parameters]) - anchor)
                .square()
                .sum()
            )

        for i, client in enumerate("abcde"):
            assert_close(
                got[i], plain_loop(problem, client, x, local, extra_loss=penalty)[0]
            )
        assert (got - both(problem, local)[0]).abs().max() > 1e-3


def test_the_anchor_of_a_penalty_can_be_any_model_or_one_per_client():
    problem, x = logistic(), start(logistic())
    anchors = torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4)
    shared, _ = both(problem, BASE, penalty=Quadratic(0.7, anchors[1]))
    own, _ = both(problem, BASE, penalty=Quadratic(0.7, anchors))
    for i, client in enumerate("abcde"):
        for got, anchor in ((shared, anchors[1]), (own, anchors[i])):

            def penalty(parameters, anchor=anchor):
                return (
                    0.35
                    * (torch.cat([p.reshape(-1) for p in parameters]) - anchor)
                    .square()
                    .sum()
                )

            assert_close(
                got[i], plain_loop(problem, client, x, BASE, extra_loss=penalty)[0]
            )


def test_the_default_anchor_is_each_clients_own_start_and_buffers_are_not_held():
    problem = batch_norm()
    x = start(problem) + torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    got, _ = both(problem, BASE, x=x, penalty=Quadratic(0.9))
    dim = sum(p.numel() for p in problem.model.parameters())
    for i, client in enumerate("abcde"):

        def penalty(parameters, anchor=x[i, :dim]):
            return (
                0.45
                * (torch.cat([p.reshape(-1) for p in parameters]) - anchor)
                .square()
                .sum()
            )

        assert_close(
            got[i],
            plain_loop(problem, client, x[i], BASE, extra_loss=penalty)[0],
            1e-11,
        )


def test_a_penalty_of_ones_own_sees_the_step():
    problem, x = logistic(), start(logistic())
    seen = []

    def outputs_near_zero(step):
        seen.append(
            (step.client, len(step.labels), step.inputs.shape, step.model.training)
        )
        return 0.3 * step.outputs.square().mean()

    got, _ = both(problem, BASE, "ad", penalty=outputs_near_zero)
    assert {s[0] for s in seen} == {0, 1}
    assert all(rows == shape[0] and training for _, rows, shape, training in seen)
    for i, client in enumerate("ad"):
        part = problem.clients[client].train
        model = model_at(problem, x)
        for index in batches(
            Rng.named(SEED, ROUND, client, "train"), len(part), 5, steps=7
        ):
            rows = rows_of(part, torch.as_tensor(index))
            outputs = model(rows.inputs)
            loss = loss_of(outputs, rows.labels) + 0.3 * outputs.square().mean()
            for p, g in zip(
                model.parameters(),
                torch.autograd.grad(loss, list(model.parameters())),
                strict=True,
            ):
                p.data -= 0.2 * g
        assert_close(got[i], vector_of(model))


def test_a_correction_is_added_to_every_gradient():
    problem, x = batch_norm(), start(batch_norm())
    whole = torch.linspace(-1, 1, 5 * len(x), dtype=torch.float64).view(5, -1)
    correction = whole[:, : Layout.of(problem.model).dim]
    for local in (
        BASE,
        replace(BASE, momentum=0.5, weight_decay=0.1),
        replace(BASE, clip=0.2),
    ):
        got, _ = both(problem, local, correction=correction)
        one, _ = both(problem, local, correction=correction[1])
        for i, client in enumerate("abcde"):
            for found, added in ((got, whole[i]), (one, whole[1])):
                assert_close(
                    found[i],
                    plain_loop(problem, client, x, local, extra_gradient=added)[0],
                    1e-11,
                )


def test_a_correction_has_a_number_for_each_parameter_and_none_for_buffers():
    problem, x = batch_norm(), start(batch_norm())
    for shape in ((len(x),), (5, len(x)), (4, len(x) - 10), (1,)):
        with pytest.raises(
            InputError,
            match=r"a correction has shape \[53\] or \[5, 53\], parameters without buffers",
        ):
            cohort_of(problem).train(
                x, BASE, correction=torch.zeros(shape, dtype=torch.float64)
            )


@pytest.mark.parametrize("name", ["plain", "weight decay", "adam with weight decay"])
def test_what_does_not_move_keeps_its_bits_whatever_decays_it(name):
    problem, x = batch_norm(), start(batch_norm())
    moving = torch.arange(len(x)) % 2 == 0
    trained, _ = both(problem, SETTINGS[name], moving=moving)
    changed = trained != x
    assert not changed[:, ~moving].any()
    assert changed[:, moving].any(dim=0).sum() > moving.sum() / 2


def test_a_gradient_rule_replaces_the_step():
    problem = regression()

    def hessian_free(gradient, y):
        """The first-order step of Per-FedAvg, on a further batch."""
        return gradient(y - 0.05 * gradient(y, 0), 1)

    got, spent = both(
        problem, replace(BASE, steps=Steps(3)), "be", gradient_rule=hessian_free
    )
    for i, client in enumerate("be"):
        part = problem.clients[client].train
        model = model_at(problem, start(problem))
        parameters = list(model.parameters())
        for step, index in enumerate(
            batches(Rng.named(SEED, ROUND, client, "train"), len(part), 5, steps=3)
        ):
            further = Rng.named(SEED, ROUND, client, f"train/{step}", 1).permutation(
                len(part), 5
            )
            kept = [p.detach().clone() for p in parameters]
            for rows, rate in ((index, 0.05), (further, 0.2)):
                batch = rows_of(part, torch.as_tensor(rows))
                grads = torch.autograd.grad(
                    loss_of(model(batch.inputs), batch.labels), parameters
                )
                for p, g, old in zip(parameters, grads, kept, strict=True):
                    p.data.copy_((p if rate == 0.05 else old) - rate * g)
        assert_close(got[i], vector_of(model))
    assert (
        spent == (5 + 3 + 5) + (5 + 5 + 4) + 2 * 3 * 5
    )  # b has 8 rows, e has 14; a further batch is a whole one
    plain, _ = both(
        problem,
        replace(BASE, steps=Steps(3)),
        "be",
        gradient_rule=lambda gradient, y: gradient(y, 0),
    )
    assert_close(plain, both(problem, replace(BASE, steps=Steps(3)), "be")[0])


def test_a_rule_that_returns_a_tensor_of_its_own_keeps_it():
    problem, direction = logistic(), torch.ones(4, dtype=torch.float64)
    local = replace(BASE, clip=0.5, weight_decay=0.1, steps=Steps(2))
    got, _ = both(problem, local, "a", gradient_rule=lambda gradient, y: direction)
    assert direction.tolist() == [1, 1, 1, 1]
    x = start(problem)
    for _ in range(2):
        x = x - 0.2 * (direction * 0.25 + 0.1 * x)
    assert_close(got[0], x)


@wire_type
@dataclass(frozen=True)
class LeadingRows(Sampler):
    """Takes the first rows in every step."""

    shift: int = 0

    def rows(self, cohort, client, rng, steps, batch_size):
        count = len(cohort.labels(client))
        return (
            np.arange(steps * batch_size).reshape(steps, batch_size) + self.shift
        ) % count


@pytest.mark.parametrize("steps", [Steps(4), Epochs(2)])
def test_a_sampler_chooses_the_rows(steps):
    problem, x = logistic(), start(logistic())
    for local, hooks in (
        (replace(BASE, steps=steps, sampler=LeadingRows()), {}),
        (replace(BASE, steps=steps), {"sampler": LeadingRows()}),
        (
            replace(BASE, steps=steps, sampler=LeadingRows(3)),
            {"sampler": LeadingRows()},
        ),
    ):
        got, _ = both(problem, local, **hooks)
        for i, (client, count) in enumerate(SIZES.items()):
            number = 4 if isinstance(steps, Steps) else 2 * -(-count // 5)
            rows = np.arange(number * 5).reshape(number, 5) % count
            assert_close(got[i], plain_loop(problem, client, x, local, rows=rows)[0])


class OfAnotherClass:
    """Chooses rows as a sampler does, and is derived from none."""

    rows = LeadingRows.rows


@pytest.mark.parametrize(
    ("sampler", "cure"),
    [
        (LeadingRows, r"write LeadingRows\(\)"),
        (OfAnotherClass(), "derived from ct.Sampler"),
    ],
)
def test_what_is_no_sampler_is_refused_with_the_cure(sampler, cure):
    with pytest.raises(InputError, match=cure):
        both(logistic(), BASE, sampler=sampler)


# ---- randomness and numbers


def test_dropout_depends_on_names_and_not_on_the_company():
    problem = dropout()
    together, _ = both(problem, BASE)
    alone, _ = both(problem, BASE, "d")
    assert torch.equal(together[3], alone[0])
    torch.default_generator.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(both(problem, BASE)[0], together)
    assert torch.equal(torch.get_rng_state(), state)
    without = cohort_of(problem, "abcde", seed=SEED, round=ROUND)
    without.workspace.model[2].p = 0.0
    assert not torch.equal(without.train(start(problem), BASE), together)
    assert not torch.equal(
        cohort_of(problem, seed=SEED, round=ROUND + 1).train(start(problem), BASE),
        together,
    )


def test_gradients_in_train_mode_depend_on_names_only():
    problem = dropout()
    x = start(problem)
    first = cohort_of(problem).gradient(x, mode="train")
    torch.default_generator.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(cohort_of(problem).gradient(x, mode="train"), first)
    assert torch.equal(cohort_of(problem, "c").gradient(x, mode="train")[0], first[2])
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(cohort_of(problem).gradient(x), first)
    assert not torch.equal(
        cohort_of(problem).gradient(x, mode="train", purpose="other"), first
    )


def test_the_purpose_names_the_batches():
    problem = logistic()
    first = both(problem, BASE)[0]
    assert torch.equal(both(problem, BASE, purpose="train")[0], first)
    assert not torch.equal(both(problem, BASE, purpose="again")[0], first)


def test_rows_gathered_in_groups_change_no_bit(monkeypatch):
    problem = batch_norm()
    first = both(problem, BASE)[0]
    monkeypatch.setattr(cohort_rows, "BLOCK", 30)
    assert torch.equal(both(problem, BASE)[0], first)


def test_divergence_is_an_error_that_names_the_client():
    problem = quadratic({"a": [1.0], "b": [2.0]})
    with pytest.raises(
        FloatingPointError,
        match=r"training of client 'a' diverged .* lower local lr = 1e\+200",
    ):
        cohort_of(problem).train(
            start(problem), LocalSGD(lr=1e200, steps=Steps(5), batch_size=None)
        )


def test_a_model_may_have_parameters_that_a_step_does_not_use():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(3, 1), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.used(x)

    problem = regression()._replace(model=seeded(Spare, torch.float64))
    got, _ = both(problem, replace(BASE, weight_decay=0.1), "a")
    reference = model_at(problem, start(problem))
    assert got.shape == (1, 6)
    assert reference.spare.tolist() == [1, 1]
    # torch names own parameters first; they get no gradient but decay, as they would with a penalty on all parameters.
    assert_close(
        got[0, :2], torch.full((2,), (1 - 0.2 * 0.1) ** 7, dtype=torch.float64)
    )
    plain, _ = both(problem, BASE, "a")
    assert plain[0, :2].tolist() == [1, 1]


def test_images_of_bytes_are_scaled_and_float_inputs_take_the_models_dtype():
    problem = logistic()
    client = problem.clients["a"]
    from coterie.base.clients import Client, Clients
    from coterie.base.rows import Part

    pixels = (client.train.inputs * 40 + 128).clamp(0, 255).to(torch.uint8)
    given = problem._replace(
        clients=Clients([Client("a", Part(pixels, client.train.labels))])
    )
    scaled = problem._replace(
        clients=Clients([Client("a", Part(pixels.double() / 255, client.train.labels))])
    )
    assert torch.equal(both(given, BASE, "a")[0], both(scaled, BASE, "a")[0])
    single = problem._replace(
        clients=Clients(
            [Client("a", Part(client.train.inputs.float(), client.train.labels))]
        )
    )
    assert both(single, BASE, "a")[0].dtype == torch.float64


def test_settings_refuse_bad_values():
    for field, value in {
        "lr": 0, "steps": 3, "batch_size": 0, "momentum": 1, "weight_decay": -1, "clip": 0, "optimiser": "sgdd",
    }.items():  # fmt: skip
        with pytest.raises(
            InputError, match=f"LocalSGD.{field} must be .*; got {value!r}"
        ):
            LocalSGD(**{field: value})
    with pytest.raises(InputError, match=r"LocalSGD.optimiser must be sgd \| adam"):
        LocalSGD(optimiser=3)
    with pytest.raises(
        InputError, match="momentum belongs to sgd and rmsprop; leave it out with adam"
    ):
        LocalSGD(optimiser="adam", momentum=0.5)
    for kind in (Steps, Epochs):
        with pytest.raises(InputError, match="must be at least 1; got 0"):
            kind(0)


class Views(nn.Module):
    """Flattens with `view`, which takes no images whose channels lie together."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.out = nn.Conv2d(3, 4, 3), nn.Linear(36, 3)

    def forward(self, inputs):
        return self.out(self.convolution(inputs).view(len(inputs), -1))


@pytest.mark.parametrize("name", ["flatten", "view"])
def test_images_reach_convolutions_with_their_channels_together(name):
    draw = torch.Generator().manual_seed(0)
    flat = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    problem = Problem(
        Clients(
            [
                Client(
                    "a",
                    Part(
                        torch.randn(9, 3, 5, 5, generator=draw).double(),
                        torch.arange(9) % 3,
                    ),
                )
            ]
        ),
        seeded(lambda: flat if name == "flatten" else Views(), torch.float64),
    )
    cohort = cohort_of(problem, seed=SEED, round=ROUND)
    assert cohort.workspace.channels_last == (name == "flatten")
    local = LocalSGD(lr=0.1, steps=Steps(4), batch_size=4)
    x = start(problem)
    assert_close(cohort.train(x, local)[0], plain_loop(problem, "a", x, local)[0])


@pytest.mark.parametrize("warmup", [0, 3])
def test_a_cosine_is_that_of_torch(warmup):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, T_max=8, eta_min=0.01
    )
    schedule = Schedule(0.3, cosine=8, end=0.01, warmup=warmup)
    for number in range(1, 9):
        assert schedule.rate(number + warmup) == pytest.approx(
            cosine.get_last_lr()[0], rel=1e-12
        )
        optimiser.step()
        cosine.step()
    assert schedule.rate(9 + warmup) == schedule.rate(50) == pytest.approx(0.01)
    assert [schedule.rate(r) for r in range(1, warmup + 1)] == pytest.approx(
        [0.1, 0.2, 0.3][:warmup]
    )


def test_a_schedule_falls_in_steps_or_along_a_cosine():
    with pytest.raises(
        InputError, match=r"Schedule.at and Schedule.cosine exclude each other"
    ):
        Schedule(0.1, at=(3,), cosine=5)
