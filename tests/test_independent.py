"""The second computations obey laws that are easy to state by hand, and a finished run is not repeated."""

import gzip
import math
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.data.sets.fashion_mnist import read_pair
from coterie.models.specs import CharLSTM

with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "path", [str(Path(__file__).resolve().parent.parent), *sys.path])
    from benchmarks import byzantine, mean_estimation
    from experiments import judging, maxfl_landscape, maxfl_toy
    from experiments.documents import read
    from experiments.independent import __main__ as command
    from experiments.independent import (
        common,
        isfl,
        landscape,
        maxfl,
        meritfed,
        networks,
        own,
        plateaus,
        varsel,
    )
    from experiments.membranes import UNet, dice

pytestmark = pytest.mark.programs  # experiments stand beside the library

LOCAL = {"lr": 0.01, "steps": 2, "batch_size": 4, "epochs": 2, "optimiser": "adam"}


def tiny(
    clients=("client-0", "client-1"),
    rows=24,
    classes=3,
    methods=(),
    hidden=(5,),
    rounds=1,
    seed=0,
    shifted=(),
    **local,
):
    """A problem with easy images, whose clients all have every class and the same test rows.

    Training labels of the clients in `shifted` are one too high, and so are those of the test rows if it has "test".
    """
    random = torch.Generator().manual_seed(1 + seed)
    labels = torch.arange(rows) % classes

    def images(whose=""):
        inputs = torch.randn(rows, 6, generator=random) + 4 * torch.eye(6)[labels]
        return inputs, (labels + (whose in shifted)) % classes

    test = images("test")
    parts = {
        name: {"train": images(name), "validation": images(), "test": test}
        for name in clients
    }
    data = ct.data.from_tensors(parts, server=images())
    appeal = {"leave": True, "mandatory_rounds": rounds // 2}
    run = {
        "rounds": rounds,
        "clients_per_round": len(clients),
        "evaluate": 1,
        "appeal": appeal,
    }
    tables = {
        "local": LOCAL | local,
        "run": run,
        "model": {"hidden": list(hidden)},
        "methods": list(methods),
    }
    return common.problem_of(tables, 0, data)


@pytest.mark.parametrize(
    ("written_anew", "library", "inputs"),
    [
        (
            networks.Characters,
            CharLSTM().build((80,), 97),
            torch.arange(160).view(2, 80) % 97,
        ),
        (
            networks.Membranes,
            UNet().build((1, 64, 64), 2),
            torch.linspace(0, 1, 2 * 4096).view(2, 1, 64, 64).sqrt(),
        ),
    ],
)
def test_a_network_of_layers_is_the_librarys_own(written_anew, library, inputs):
    model = networks.Layered(written_anew())
    x = model.start(torch.Generator().manual_seed(2))
    nn.utils.vector_to_parameters(x, library.parameters())
    torch.testing.assert_close(
        model.scores(x, inputs.flatten(1).float()), library(inputs)
    )
    assert torch.equal(x, model.start(torch.Generator().manual_seed(2)))
    assert not torch.equal(x, model.start(torch.Generator().manual_seed(3)))


def test_dice_is_twice_the_overlap_by_both_areas():
    random = torch.Generator().manual_seed(4)
    rows = networks.Rows(
        torch.rand(3, 64, generator=random),
        torch.randint(0, 2, (3, 8, 8), generator=random),
    )
    problem = common.Problem({}, 0, [], networks.Layered(networks.Membranes()))
    x = problem.start()
    assert varsel._dice(problem, x, rows) == pytest.approx(
        dice(problem.model.scores(x, rows.inputs), rows.labels, "classes")
    )


def test_the_longest_updates_arrive_surely_and_the_others_by_their_lengths():
    likely = varsel.chances(torch.tensor([1.0, 9.0, 2.0, 1.0, 4.0]), 3)
    torch.testing.assert_close(likely, torch.tensor([0.25, 1.0, 0.5, 0.25, 1.0]))
    torch.testing.assert_close(varsel.chances(torch.ones(4), 2), torch.full((4,), 0.5))


@pytest.mark.parametrize(
    "experiment", sorted(command.METHODS.keys() - command.DRAWN.keys())
)
def test_what_is_computed_a_second_time_is_a_method_of_its_experiment(experiment):
    methods = command.tables_of(experiment)["methods"]
    assert command.METHODS[experiment].keys() <= {
        method.get("label", method["name"]) for method in methods
    }


def test_the_perceptron_is_torchs_own():
    model = networks.Perceptron([6, 5, 3])
    x = model.start(torch.Generator().manual_seed(2))
    layers = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    nn.utils.vector_to_parameters(x, layers.parameters())
    inputs = torch.randn(4, 6)
    torch.testing.assert_close(model.scores(x, inputs), layers(inputs))
    assert x[:35].abs().max() <= 6**-0.5 < x[35:].abs().max() <= 5**-0.5


def test_the_convolutions_are_torchs_own():
    model = networks.Convolutional((3, 8, 8), (2, 4), 5, 3)
    x = model.start(torch.Generator().manual_seed(2))
    library = ct.models.CNN((2, 4), 5).build((3, 8, 8), 3)
    nn.utils.vector_to_parameters(x, library.parameters())
    inputs = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(model.scores(x, inputs.flatten(1)), library(inputs))
    torch.testing.assert_close(
        model.representation(x, inputs.flatten(1)), library[:-1](inputs)
    )
    assert model.classes == 3


def test_dropout_changes_no_score_on_average_and_none_in_use():
    model = networks.Perceptron([6, 5, 3], dropout=0.5)
    x, random = (
        model.start(torch.Generator().manual_seed(2)),
        torch.Generator().manual_seed(3),
    )
    inputs = torch.randn(1, 6)
    trained = model.scores(x, inputs.expand(20_000, 6), random)
    torch.testing.assert_close(
        trained.mean(0), model.scores(x, inputs)[0], atol=0.02, rtol=0
    )
    assert trained.std(0).min() > 0.01


def test_an_epoch_has_every_row_once():
    drawn = common.batches(10, 4, torch.Generator().manual_seed(3))
    epochs = [torch.cat([next(drawn) for _ in range(3)]) for _ in range(2)]
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()


def test_q_of_isfl_sums_to_one_and_is_lower_where_gradients_move_more():
    p, p_k = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.9, 0.1, 0.0])
    q = isfl.closed_form(p, p_k, torch.tensor([1.0, 3.0, 2.0]), 0.05)
    assert float(q.sum()) == pytest.approx(1)
    assert bool((q >= 0.05 * p_k - 1e-7).all())
    assert float(q[1]) == pytest.approx(0.05 * 0.1)  # the only one that may fall
    assert q[0] > p[0]


def test_no_other_q_has_a_lower_bound_than_the_minimiser():
    p, p_k, lipschitz = (
        torch.tensor([0.3, 0.3, 0.4]),
        torch.tensor([0.5, 0.5, 0.0]),
        torch.tensor([3.0, 2.0, 8.0]),
    )
    steps = torch.linspace(0, 1, 101)
    grid = torch.cartesian_prod(steps, steps)
    grid = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], 1)
    grid = grid[(grid >= 0.1 * p_k - 1e-6).all(1)]
    q = isfl.minimiser(p, p_k, lipschitz, 0.1)
    assert float(q.sum()) == pytest.approx(1)
    assert bool((q >= 0.1 * p_k - 1e-6).all())
    least = min(isfl.bound(other, p, lipschitz) for other in grid)
    assert isfl.bound(q, p, lipschitz) == pytest.approx(least, rel=1e-3)
    assert isfl.bound(q, p, lipschitz) < isfl.bound(
        isfl.closed_form(p, p_k, lipschitz, 0.1), p, lipschitz
    )


def test_a_linear_gradient_has_its_slope_as_lipschitz_number(monkeypatch):
    problem = tiny()
    slopes = torch.tensor([1.0, 2.0, 3.0])
    monkeypatch.setattr(
        isfl,
        "row_gradients",
        lambda problem, x, rows: (
            slopes[rows.labels, None] * x.expand(len(rows.labels), -1)
        ),
    )
    table = isfl.gradient_lipschitz(
        problem,
        torch.zeros(7),
        [torch.ones(7), torch.randn(7)],
        common.rows_of(problem.clients.server),
    )
    torch.testing.assert_close(table, slopes.expand(2, 3))


def test_without_a_largest_lipschitz_number_classes_are_drawn_as_among_all_clients():
    p = torch.tensor([0.2, 0.8])
    for lipschitz in (torch.tensor([2.0, 2.0]), torch.tensor([0.0, 0.0])):
        assert torch.equal(
            isfl.closed_form(p, torch.tensor([0.5, 0.5]), lipschitz, 0.05), p
        )


def test_classes_are_drawn_by_q_renormalised_over_those_present():
    chance = isfl.by_class(torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0, 0, 2]))
    torch.testing.assert_close(chance, torch.tensor([0.2, 0.2, 0.6]))


@pytest.mark.parametrize(
    "method", ["fedavg", "uniform_is", "pj_is", "isfedavg", "isfl"]
)
def test_one_client_learns_its_rows_however_they_are_drawn(method):
    methods = [
        {"name": "isfl", "floor": 0.05},
        {"name": "uniform-is"},
        {"name": "pj-is"},
    ]
    values = getattr(isfl, method)(
        tiny(["client-0"], hidden=(), methods=methods, rounds=5)
    )
    assert values["accuracy on D_G"] > 0.9
    assert len(values["accuracy on D_S"]) == 5


def test_samplers_draw_with_replacement_and_without_one_each_row_comes_once():
    random = torch.Generator().manual_seed(3)
    assert isfl.draw(20, None, 1.0, random).tolist() == list(range(20))
    half = isfl.draw(20, None, 0.5, random).tolist()
    assert len(set(half)) == 10
    assert half != sorted(half)
    assert (
        isfl.draw(20, torch.tensor([0.0] * 19 + [1.0]), 0.25, random).tolist()
        == [19] * 5
    )
    assert len(set(isfl.draw(200, torch.ones(200), 1.0, random).tolist())) < 150


@pytest.mark.parametrize(("method", "strong"), [("fedprox", 100.0), ("moon", 100.0)])
def test_a_rival_without_its_term_is_fedavg_and_with_it_moves_otherwise(method, strong):
    def learned(mu):
        entry = {"name": method, "mu": mu, "temperature": 0.5}
        # all rows a step: no chance in it
        return getattr(isfl, method)(tiny(methods=[entry], batch_size=24, rounds=2))

    free = isfl.fedavg(tiny(batch_size=24, rounds=2))
    assert learned(0.0) == free
    assert learned(strong)["training loss"] != pytest.approx(
        free["training loss"], rel=1e-4
    )


def test_the_bound_and_the_entropy_are_kept_for_every_round():
    entry = {"name": "isfl", "floor": 0.05}
    values = isfl.isfl(tiny(methods=[entry], batch_size=24, rounds=3))
    closed, least, entropy = (
        values[name] for name in ("rho, closed form", "rho, optimum", "entropy of q")
    )
    assert len(closed) == len(least) == len(entropy) == 3
    assert values["rho, closed form, first round"] == closed[0] != closed[-1]
    assert all(
        low <= high * (1 + 1e-6) for low, high in zip(least, closed, strict=True)
    )
    assert all(0 < value <= math.log(3) + 1e-6 for value in entropy)


def test_a_share_that_rounding_takes_below_0_has_no_entropy(monkeypatch):
    monkeypatch.setattr(
        isfl,
        "closed_form",
        lambda p, p_k, lipschitz, floor: torch.tensor([0.5, 0.5, -1e-9]),
    )
    monkeypatch.setattr(isfl, "by_class", lambda q, labels: torch.ones(len(labels)))
    values = isfl.isfl(tiny(methods=[{"name": "isfl", "floor": 0.05}], batch_size=24))
    assert values["entropy of q"] == pytest.approx([math.log(2)])


def test_the_loss_as_drawn_is_that_of_the_last_epochs_batches_before_their_steps():
    """Whole clients are batches here, so that the loss of each epoch is that of the model before its only step."""
    problem = tiny(batch_size=24, epochs=1, rounds=2)
    start = fmean(
        float(problem.model.loss(problem.start(), rows)) for rows in problem.train
    )
    after_one = isfl.fedavg(
        replace(
            problem,
            tables={**problem.tables, "run": {**problem.tables["run"], "rounds": 1}},
        )
    )
    assert isfl.fedavg(problem)["training loss, as drawn"] == pytest.approx(
        [start, after_one["training loss"]]
    )
    alone = tiny(["client-0"], batch_size=24, epochs=1)
    twice = isfl.fedavg(tiny(["client-0"], batch_size=24, epochs=2))
    assert twice["training loss, as drawn"] == pytest.approx(
        [isfl.fedavg(alone)["training loss"]]
    )


def test_the_loss_as_drawn_counts_clients_by_rows_and_leaves_a_rivals_term_out():
    problem = tiny(methods=[{"name": "fedprox", "mu": 1e4}], batch_size=24, epochs=2)
    losses = [
        float(problem.model.loss(problem.start(), rows)) for rows in problem.train
    ]
    assert isfl.fedprox(problem)["training loss, as drawn"] == pytest.approx(
        [fmean(losses)], abs=0.2
    )
    halved = replace(problem, clients=problem.clients)
    halved.__dict__["train"] = [problem.train[0], problem.train[1].at(torch.arange(6))]
    first, second = (
        float(problem.model.loss(problem.start(), rows)) for rows in halved.train
    )
    tables = {**problem.tables, "local": {**problem.tables["local"], "epochs": 1}}
    one_epoch = replace(halved, tables=tables)
    one_epoch.__dict__["train"] = halved.train
    assert isfl.fedavg(one_epoch)["training loss, as drawn"] == pytest.approx(
        [(24 * first + 6 * second) / 30]
    )


def test_the_loss_as_drawn_is_of_the_rows_that_were_drawn():
    problem = tiny(batch_size=4, epochs=2)
    rows, random = problem.train[0], torch.Generator().manual_seed(4)
    x, drawn = problem.start(), iter([torch.tensor([0, 3]), torch.tensor([7, 7, 7])])
    still = replace(
        problem,
        tables={**problem.tables, "local": {**problem.tables["local"], "lr": 0.0}},
    )
    model, logged = isfl._trained(
        still, x, x, rows, lambda: next(drawn), random, isfl._no_term
    )
    assert torch.equal(model, x)
    assert logged == pytest.approx(
        float(problem.model.loss(x, rows.at(torch.tensor([7]))))
    )


def test_classes_that_are_drawn_more_or_less_than_their_share_are_counted(monkeypatch):
    """Client 0 has shares .8, .2 and 0; client 1 has .02, .49 and .49. Even is a third."""
    problem = tiny(batch_size=100, epochs=1)
    labels = [
        torch.arange(100) // 80,
        (torch.arange(100) >= 2).long() + (torch.arange(100) >= 51).long(),
    ]
    inputs = problem.train[0].inputs[:1].expand(100, -1)
    problem.__dict__["train"] = [networks.Rows(inputs, each) for each in labels]
    entry = {"name": "isfl", "floor": 0.05}
    fixed = replace(problem, tables={**problem.tables, "methods": [entry]})
    fixed.__dict__["train"] = problem.train
    monkeypatch.setattr(
        isfl, "closed_form", lambda *given: torch.tensor([0.5, 0.4, 0.1])
    )
    values = isfl.isfl(fixed)
    less, more = (
        next(v for name, v in values.items() if part in name)
        for part in ("yet more than evenly", "five times")
    )
    assert less == [1.0]  # .556 for .8, and .4 for .49
    assert more == [0.5]  # .5 for .02
    one, other = (
        -5 / 9 * math.log(5 / 9) - 4 / 9 * math.log(4 / 9),
        -sum(q * math.log(q) for q in (0.5, 0.4, 0.1)),
    )
    assert values["entropy of draws by class"] == pytest.approx([(one + other) / 2])


def test_classes_whose_gradients_stay_the_largest_have_rank_correlation_one(
    monkeypatch,
):
    monkeypatch.setattr(
        isfl, "row_gradients", lambda problem, x, rows: (1.0 + rows.labels)[:, None]
    )
    values = isfl.isfedavg(tiny(batch_size=24, rounds=2))
    assert values[
        "rank correlation of class gradients with the round before"
    ] == pytest.approx(1)
    expected = -sum(q * math.log(q) for q in (1 / 6, 2 / 6, 3 / 6))
    assert values["entropy of draws by class"] == pytest.approx([expected, expected])
    assert values[
        "rank correlation of class gradients and extra draws"
    ] == pytest.approx([1, 1])


def test_a_local_model_moves_as_the_optimiser_of_its_table_says():
    whole = {"batch_size": 24, "epochs": 1, "lr": 0.5, "rounds": 1}
    problem = tiny(["client-0"], optimiser="sgd", **whole)
    start = problem.start().requires_grad_()
    (gradient,) = torch.autograd.grad(
        problem.model.loss(start, problem.train[0]), start
    )
    moved = (start - 0.5 * gradient).detach()
    assert isfl.fedavg(problem)["training loss"] == pytest.approx(
        float(problem.model.loss(moved, problem.train[0]))
    )
    assert (
        isfl.fedavg(tiny(["client-0"], **whole))["training loss"]
        != isfl.fedavg(problem)["training loss"]
    )


def test_classes_with_smaller_constants_are_drawn_more(monkeypatch):
    constants = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    monkeypatch.setattr(
        isfl, "gradient_lipschitz", lambda problem, x, local, held: constants
    )
    isfl_of = partial(
        isfl.isfl,
        tiny(methods=[{"name": "isfl", "floor": 0.05}], batch_size=24, rounds=2),
    )
    assert isfl_of()["rank correlation of class constants and draws"] == pytest.approx(
        [-1, -1]
    )
    monkeypatch.setattr(isfl, "closed_form", lambda p, p_k, lipschitz, floor: lipschitz)
    assert isfl_of()["rank correlation of class constants and draws"] == pytest.approx(
        [1, 1]
    )


def test_the_server_computes_a_gradient_per_row_and_model(monkeypatch):
    counted = 0

    def count(problem, x, rows):
        nonlocal counted
        counted += len(rows.labels)
        return plain(problem, x, rows)

    plain = isfl.row_gradients
    monkeypatch.setattr(isfl, "row_gradients", count)
    values = isfl.isfl(
        tiny(methods=[{"name": "isfl", "floor": 0.05}], batch_size=24, rounds=1)
    )
    assert counted == values["gradients on the server's rows"] > 0


def test_q_of_the_first_and_the_last_client_is_kept_for_every_round():
    values = isfl.isfl(
        tiny(methods=[{"name": "isfl", "floor": 0.05}], batch_size=24, rounds=3)
    )
    for name in ("client-0", "client-1"):
        by_class = [values[f"q of {name}, class {i}"] for i in range(3)]
        assert [
            sum(of_round) for of_round in zip(*by_class, strict=True)
        ] == pytest.approx([1, 1, 1])


def test_the_largest_fall_is_between_two_rounds_at_which_coterie_evaluates(monkeypatch):
    accuracies = iter([0.9, 0.5, 0.1, 0.4, 0.2, 0.45, 0.3])  # the last is that of D_G
    monkeypatch.setattr(
        common.Problem, "accuracy", lambda self, x, parts: next(accuracies)
    )
    problem = tiny(batch_size=24, rounds=6)
    problem.tables["run"]["evaluate"] = 2
    values = isfl.fedavg(problem)
    assert values["largest fall of accuracy on D_S"] == pytest.approx(
        0.1
    )  # of 0.5, 0.4, 0.45
    assert values["best accuracy on D_S over rounds"] == 0.5


def test_fedprox_holds_a_local_model_at_the_global_one():
    problem = tiny(methods=[{"name": "fedprox", "mu": 1e4}], batch_size=24, rounds=2)
    never = problem.model.loss(problem.start(), problem.train[0])
    assert isfl.fedprox(problem)["training loss"] == pytest.approx(
        float(never), abs=0.2
    )


def phi(weights, variance, m, away):
    """Eq. 4 as printed."""
    return (variance + ((weights @ away) ** 2).sum()) / (m + weights.sum()) ** 2


@pytest.mark.parametrize(
    ("variance", "weight"), [(1.0, 0.125), (100.0, 1.0), (0.0, 0.0)]
)
def test_one_external_client_has_the_weight_that_a_derivative_gives(variance, weight):
    # (V + w^2 d) / (M + w)^2 is least at w = V / (M d), here with M = 2 and d = 4
    assert varsel.surrogate_weights(variance, 2, np.array([4.0]), 10) == pytest.approx(
        weight, abs=1e-4
    )
    assert varsel.exact_weights(
        variance, 2, np.array([[2.0, 0.0]]), 10
    ) == pytest.approx(weight, abs=1e-4)


@pytest.mark.parametrize("budget", [0, 1, 2])
def test_no_other_weights_within_the_budget_are_better(budget):
    random = np.random.default_rng(4)
    away, variance = random.normal(size=(3, 5)), 30.0
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 21)] * 3), -1).reshape(-1, 3)
    grid = grid[grid.sum(1) <= budget]
    exact = varsel.exact_weights(variance, 2, away, budget)
    assert exact.sum() <= budget + 1e-6
    assert (
        phi(exact, variance, 2, away)
        <= min(phi(w, variance, 2, away) for w in grid) + 1e-6
    )
    distances = (away**2).sum(1)
    bound = [(variance + w.sum() * (w @ distances)) / (2 + w.sum()) ** 2
             for w in [varsel.surrogate_weights(variance, 2, distances, budget), *grid]]  # fmt: skip
    assert bound[0] <= min(bound[1:]) + 1e-6


def test_varsel_without_a_budget_learns_from_the_internal_clients_alone(monkeypatch):
    monkeypatch.setattr(varsel, "_measured", lambda problem, x: {"model": x})
    entry = {"name": "varsel", "internal": ["client-[01]"], "budget": 0}
    methods = [entry, {**entry, "label": "internal-only"}, {"name": "fedavg"}]
    problem = tiny(
        ["client-0", "client-1", "client-2"],
        methods=methods,
        rounds=2,
        batch_size=24,
        steps=1,
    )  # all rows a step: no chance in it
    alone, with_others = varsel.internal_only(problem), varsel.varsel(problem)
    torch.testing.assert_close(with_others["model"], alone["model"])
    assert with_others["sum of weights, last fifth"] == 0
    assert not torch.allclose(varsel.fedavg(problem)["model"], alone["model"])
    methods[1]["local"] = {"lr": LOCAL["lr"] / 2}
    assert not torch.allclose(
        varsel.internal_only(problem.of("internal-only"))["model"], alone["model"]
    )


def test_a_method_is_computed_again_with_its_own_local_settings(monkeypatch):
    problem = tiny(
        methods=[{"name": "fedavg", "local": {"lr": 7.0}}, {"name": "varsel"}]
    )
    monkeypatch.setattr(common, "read_problem", lambda experiment, seed: problem)
    again = common.on(
        "any",
        dict.fromkeys(
            ("fedavg", "varsel"), lambda given: {"lr": given.tables["local"]["lr"]}
        ),
    )
    assert [again[label](0)["lr"] for label in ("fedavg", "varsel")] == [
        7.0,
        LOCAL["lr"],
    ]


def test_selective_learning_keeps_the_external_client_with_the_lowest_loss(monkeypatch):
    monkeypatch.setattr(varsel, "_measured", lambda problem, x: {"model": x})
    entry = {"name": "selective", "internal": ["client-0"], "budget": 1}
    methods = [{**entry, "name": "varsel"}, entry]
    problem = tiny(
        [f"client-{k}" for k in range(4)], methods=methods, batch_size=24, steps=1
    )
    x = problem.start()
    losses = {k: float(problem.model.loss(x, problem.train[k])) for k in (1, 2, 3)}
    chosen = min(losses, key=losses.get)
    expected = varsel._average(
        problem, x, [0, chosen], torch.Generator()
    )  # all rows a step: no chance in it
    torch.testing.assert_close(varsel.selective(problem)["model"], expected)


def test_per_fl_steps_from_one_step_ahead_and_each_internal_client_takes_one_more(
    monkeypatch,
):
    monkeypatch.setattr(
        varsel, "_measured", lambda problem, *models: {"models": models}
    )
    methods = [
        {"name": "varsel", "internal": ["client-0", "client-1"]},
        {"name": "perfedavg"},
    ]
    problem = tiny(
        methods=methods, batch_size=24, steps=1, lr=0.5
    )  # all rows a step: no chance in it
    x, gradient = problem.start(), problem.model.gradient
    learned = torch.stack(
        [
            x - 0.5 * gradient(x - 0.5 * gradient(x, rows), rows)
            for rows in problem.train
        ]
    ).mean(0)
    used = [learned - 0.5 * gradient(learned, rows) for rows in problem.train]
    torch.testing.assert_close(
        torch.stack(varsel.perfedavg(problem)["models"]), torch.stack(used)
    )


def test_each_internal_client_is_tested_with_its_own_model():
    problem = tiny(methods=[{"name": "varsel", "internal": ["client-0", "client-1"]}])
    good = common.sgd(
        problem, problem.start(), problem.train[0], torch.Generator(), steps=200
    )
    one, bad = varsel._measured(problem, good), varsel._measured(problem, -good)
    (mixed,) = varsel._measured(problem, good, -good).values()
    assert 2 * mixed == pytest.approx(sum(one.values()) + sum(bad.values()))
    assert one != bad


def test_fedprox_is_pulled_back_to_the_model_of_its_round(monkeypatch):
    monkeypatch.setattr(varsel, "_measured", lambda problem, x: {"model": x})
    methods = [
        {"name": "varsel", "internal": ["client-0"]},
        {"name": "fedavg"},
        {"name": "fedprox", "mu": 0.0},
    ]
    problem = tiny(["client-0", "client-1"], methods=methods, batch_size=24, steps=3)
    free, start = varsel.fedavg(problem)["model"], problem.start()
    torch.testing.assert_close(varsel.fedprox(problem)["model"], free)
    methods[2]["mu"] = 10.0
    assert (varsel.fedprox(problem)["model"] - start).norm() < 0.95 * (
        free - start
    ).norm()


def test_one_step_of_meritfed_multiplies_weights_by_the_exponential_of_the_slope():
    entry = {"name": "meritfed", "md_steps": 1, "md_step": 5.0}
    problem = tiny(
        ["target", "near-1", "far-1"], methods=[entry], batch_size=24, steps=1, lr=0.5
    )
    x, held = problem.start(), common.rows_of(problem.clients["target"].validation)
    updates = torch.stack(
        [common.sgd(problem, x, rows, torch.Generator()) - x for rows in problem.train]
    )
    weights = torch.full((3,), 1 / 3, requires_grad=True)
    problem.model.loss(x + weights @ updates, held).backward()
    expected = (-5 * weights.grad).softmax(0)
    values = meritfed.meritfed(problem)
    assert expected.std() > 0.001
    assert values["weight of near"] == pytest.approx(float(expected[1]), abs=1e-6)
    assert values["effective collaborators, first round"] == pytest.approx(
        float(1 / (expected**2).sum()), rel=1e-5
    )


def test_a_planted_fault_is_seen_to_disagree():
    """MeritFed gains on SGD Full where most have wrong labels; then its weights go the wrong way, or test labels are shifted."""
    others = ["far-1", "far-2"]

    def gain(seed, training, md_step=5.0, shifted=others):
        methods = [
            {"name": "meritfed", "md_steps": 5, "md_step": md_step},
            {"name": "sgd-full"},
        ]
        split = tiny(
            ["target", *others],
            methods=methods,
            hidden=(),
            rounds=10,
            lr=0.2,
            seed=seed,
            shifted=shifted,
        )
        problem = replace(
            split, seed=training
        )  # the same rows with other random numbers
        one, two = (
            method(problem)["accuracy of the target"]
            for method in (meritfed.meritfed, meritfed.sgd_full)
        )
        return one - two

    first = [gain(seed, seed) for seed in range(6)]
    bound = np.mean(first) / 2
    assert (
        judging.compare(first, [gain(seed, 100 + seed) for seed in range(6)], bound)
        == "agrees"
    )
    assert (
        judging.compare(
            first, [gain(seed, 100 + seed, md_step=-5.0) for seed in range(6)], bound
        )
        == "differs"
    )
    tested = [gain(seed, 100 + seed, shifted=[*others, "test"]) for seed in range(6)]
    assert judging.compare(first, tested, bound) == "differs"


@pytest.mark.parametrize(("every", "moved"), [(1, True), (2, False)])
def test_tawt_multiplies_weights_by_the_exponential_of_the_cosine_in_its_rounds(
    every, moved
):
    entry = {"name": "tawt", "every": every}
    problem = tiny(
        ["target", "near-1", "far-1"], methods=[entry], batch_size=24, steps=1, lr=0.5
    )
    x, names = problem.start(), list(problem.clients.names)
    updates = torch.stack(
        [common.sgd(problem, x, rows, torch.Generator()) - x for rows in problem.train]
    )
    cosines = torch.cosine_similarity(
        updates, updates[names.index("target")][None], dim=1
    )
    expected = (cosines if moved else torch.zeros(3)).softmax(0)
    values = meritfed.tawt(problem)
    assert [
        values[f"weight of {name.split('-')[0]}"] for name in names
    ] == pytest.approx(expected.tolist(), abs=1e-6)
    assert cosines.std() > 0.001


def test_fixed_weights_are_sgd_full_and_one_client_is_sgd_ideal():
    methods = [
        {"name": "meritfed", "md_steps": 10, "md_step": 0.0},
        {"name": "sgd-full"},
        {"name": "fedprox", "mu": 9.0},  # nothing pulls the first of its steps
    ]
    only, group = (
        {"name": "target-only", "label": "sgd-ideal"},
        {"name": "sgd-ideal", "members": ["target", "near-*"]},
    )
    alone, several, grouped = (
        tiny(names, methods=[*methods, ideal], batch_size=24, steps=1, lr=0.5)
        for names, ideal in (
            (["target"], only),
            (["target", "near-1"], only),
            (["target", "near-1"], group),
        )
    )
    for problem, method in (
        (alone, meritfed.sgd_ideal),
        (grouped, meritfed.sgd_ideal),
        (several, meritfed.sgd_full),
        (several, meritfed.fedprox),
    ):
        assert meritfed.meritfed(problem) == pytest.approx(method(problem), rel=1e-5)
    assert meritfed.sgd_ideal(several)["effective collaborators, first round"] == 1


def test_adam_is_torchs_own_and_its_steps_can_be_derived():
    adam, x = meritfed.Adam(0.1, 3), torch.zeros(3)
    y = nn.Parameter(x.clone())
    library = torch.optim.Adam([y], lr=0.1)
    for update in (torch.tensor([1.0, 0.0, -2.0]), torch.tensor([-0.5, 0.0, 3.0])):
        x, y.grad = x + adam.take(update), -update
        library.step()
    torch.testing.assert_close(x, y.detach())
    w = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    updates = torch.tensor([[1.0, 0.0, 2.0], [-0.5, 0.0, 1.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda w: adam.step(w @ updates), w)


def test_meritfed_with_adam_is_adam_alone_and_leaves_other_labels():
    adam = {"lr": 0.01, "server_optimiser": "adam"}
    mirror = {"label": "meritfed-a", "md_steps": 5, "md_step": 5.0, **adam}
    ideal, related = (
        {"label": "adam-ideal", **adam},
        {"label": "adam-related", "members": ["target", "related-*"], **adam},
    )
    methods = [
        {"name": "meritfed", **mirror},
        {"name": "target-only", **ideal},
        {"name": "sgd-ideal", **related},
    ]
    alone = tiny(["target"], methods=methods, batch_size=24, steps=1, lr=1.0, rounds=20)
    values = meritfed.meritfed_a(alone)
    for rival in ("adam-ideal", "adam-related"):
        assert meritfed.sgd_ideal(alone, rival) == pytest.approx(values, rel=1e-4)
    assert values["balanced accuracy of the target"] == pytest.approx(
        values["accuracy of the target"]
    )  # equal classes
    assert values["accuracy of the target"] > 0.5
    names = ["target", "related-1", "other-1"]
    problem = tiny(
        names,
        methods=methods,
        batch_size=24,
        steps=1,
        lr=1.0,
        rounds=20,
        shifted=["other-1"],
    )
    weights = meritfed.meritfed_a(problem)
    assert weights["weight of other"] < 0.1 < weights["weight of related"]
    assert meritfed.sgd_ideal(problem, "adam-related")[
        "weight of related"
    ] == pytest.approx(0.5)


def test_the_best_accuracy_and_the_effective_collaborators_are_those_of_all_rounds(
    monkeypatch,
):
    methods = [{"name": "sgd-full"}, {"name": "fedprox", "mu": 9.0}]
    problem = tiny(
        ["target", "near-1"], methods=methods, batch_size=24, steps=2, lr=0.5, rounds=3
    )
    assert (
        meritfed.fedprox(problem)["loss of the target"]
        > meritfed.sgd_full(problem)["loss of the target"]
    )
    first, second = problem.clients.names
    accuracies, shares = (
        iter([0.2, 0.7, 0.4, 0.5]),
        iter([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]),
    )
    monkeypatch.setattr(
        common.Problem, "accuracy", lambda problem, x, parts: next(accuracies)
    )
    values = meritfed._learned(
        problem, "sgd-full", lambda x, updates, weights: torch.tensor(next(shares))
    )
    assert (values["best accuracy over rounds"], values["accuracy of the target"]) == (
        0.7,
        0.5,
    )
    assert values["effective collaborators, first steps"] == pytest.approx(5 / 3)
    assert [
        values[f"weight of {name.partition('-')[0]}"] for name in (first, second)
    ] == pytest.approx([0.75, 0.25])


def test_weights_of_maxfl_are_the_slope_of_the_sigmoid():
    gaps = torch.tensor([0.0, 1.0, -1.0, 60.0], requires_grad=True)
    gaps.sigmoid().sum().backward()
    torch.testing.assert_close(
        maxfl.appeal_weights(gaps.detach()), gaps.grad / gaps.grad.sum()
    )


def test_maxfl_with_one_client_is_fedavg_and_clients_leave_worse_models():
    problem = tiny(
        ["client-0"], rounds=4, batch_size=24, steps=1, lr=0.5
    )  # the last two rounds are not mandatory
    assert maxfl.maxfl(problem) == maxfl.fedavg(problem)
    values = maxfl.maxfl(problem)
    assert (values["GM-appeal, seen"], values["clients in the pool, last round"]) == (
        0,
        0,
    )  # 2 steps against 100 alone
    model, rows = problem.model, problem.train[0]
    x = common.sgd(problem, problem.start(), rows, torch.Generator(), steps=2)
    test = common.rows_of(problem.clients[0].test)
    assert values["accuracy, seen"] == problem.accuracy(x, [test])
    losses = float(model.loss(x, rows)), float(model.loss(x, test))
    assert (values["training loss"], values["test loss"]) == losses
    assert values["largest factor between training and test loss"] >= max(losses) / min(
        losses
    )
    assert model.loss(x, rows) < model.loss(problem.start(), rows)


def test_a_method_has_the_steps_and_the_servers_rate_of_its_table():
    whole = {"rounds": 1, "batch_size": 24, "lr": 0.5}
    half = [
        {"name": "fedavg", "lr": 0.5, "local": {"steps": 1}},
        {"name": "mwfed"},
        {"name": "fedprox", "mu": 0.1},
    ]
    problem = tiny(["client-0"], methods=half, steps=8, **whole)
    rates = {
        method: maxfl._rates(problem, method)
        for method in ("fedavg", "mwfed", "fedprox")
    }
    assert rates == {
        "fedavg": (1, 0.5, 0.0),
        "mwfed": (8, 1.0, 0.0),
        "fedprox": (8, 1.0, 0.1),
    }
    problem.tables["run"]["appeal"] = {"leave": False, "warmup_steps": 0}
    slower = tiny(
        ["client-0"], methods=[], steps=1, **{**whole, "lr": 0.25}
    )  # one step of all rows at half the rate
    slower.tables["run"]["appeal"] = {"leave": False, "warmup_steps": 0}
    assert (
        maxfl.fedavg(problem)["accuracy, seen"]
        == maxfl.fedavg(slower)["accuracy, seen"]
    )


def test_controls_are_the_gradients_of_the_last_steps_and_take_the_drift_out():
    controls = maxfl.Controls(2, 1)
    slopes = torch.tensor([[1.0], [-3.0]])
    for _ in range(
        2
    ):  # each client has a slope of its own; corrected by its control, all follow the mean slope
        corrected = slopes + torch.stack([controls.shift(k) for k in torch.arange(2)])
        controls.move(torch.arange(2), -0.5 * corrected, 0.5)
    torch.testing.assert_close(corrected, torch.full((2, 1), -1.0))
    torch.testing.assert_close(controls.own, slopes)
    torch.testing.assert_close(controls.mean, slopes.mean(0))


def test_scaffold_of_one_client_is_fedavg():
    problem = tiny(
        ["client-0"], rounds=2, batch_size=24, steps=4, lr=0.5
    )  # its control and the mean are one
    assert maxfl.scaffold(problem) == pytest.approx(maxfl.fedavg(problem))


def test_a_meta_step_follows_the_gradient_one_step_ahead():
    problem = tiny(["client-0"], batch_size=24, steps=1, lr=0.5)
    rows, x = problem.train[0], problem.start()
    ahead = x - 0.5 * problem.model.gradient(x, rows)
    learned = common.meta_sgd(problem, x, rows, torch.Generator())
    torch.testing.assert_close(learned, x - 0.5 * problem.model.gradient(ahead, rows))
    problem.tables["run"]["appeal"] = {"leave": False}
    assert maxfl.perfedavg(problem)["training loss"] == pytest.approx(
        float(problem.model.loss(learned, rows))
    )


def test_qffl_counts_by_losses_and_without_q_all_alike():
    losses, updates = (
        torch.tensor([1.0, 4.0, 4.0]),
        torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]),
    )
    torch.testing.assert_close(
        maxfl.fair_weights(losses, updates, 0.0, 10.0), torch.full((3,), 1 / 3)
    )
    h = 100 * torch.tensor([1.0, 4.0, 0.0]) + 10 * losses
    torch.testing.assert_close(
        maxfl.fair_weights(losses, updates, 1.0, 10.0), 10 * losses / h.sum()
    )
    weights = maxfl.fair_weights(losses, updates, 2.0, 10.0)
    assert weights / weights[0] == pytest.approx(torch.tensor([1.0, 16.0, 16.0]))
    equal = tiny(
        rounds=2, batch_size=24, steps=2, lr=0.5, methods=[{"name": "qffl", "q": 0.0}]
    )
    equal.tables["run"]["appeal"] = {"leave": False}
    assert maxfl.qffl(equal)["training loss"] == pytest.approx(
        maxfl.fedavg(equal)["training loss"], rel=1e-4
    )


def test_appeal_and_accuracy_that_rise_go_together_and_a_constant_goes_with_nothing():
    assert maxfl.together([0.1, 0.2, 0.4], [0.5, 0.6, 0.9]) == {
        "rank correlation of appeal and preferred accuracy": pytest.approx(1)
    }
    assert maxfl.together([0.1, 0.1], [0.5, 0.6]) == {}


def test_nobody_leaves_where_clients_stay_and_a_short_warm_up_is_easily_beaten():
    problem = tiny(["client-0"], rounds=12, batch_size=24, steps=1, lr=0.5)
    problem.tables["run"]["appeal"] = {"leave": False, "warmup_steps": 1}
    assert maxfl.fedavg(problem)["GM-appeal, seen"] == 1
    problem.tables["run"]["appeal"] = {
        "leave": True,
        "mandatory_rounds": 1,
        "warmup_steps": 8,
    }
    assert maxfl.fedavg(problem)["GM-appeal, seen"] == 0


def test_mwfed_shares_out_the_steps_by_weights_that_grow_with_every_gap(monkeypatch):
    sizes, who = torch.ones(2), torch.tensor([0, 1])
    weights = maxfl.multiplicative(2)
    assert torch.equal(
        weights(torch.tensor([-1.0, -2.0]), sizes, who), torch.tensor([0.5, 0.5])
    )
    torch.testing.assert_close(
        weights(torch.tensor([1.0, -2.0]), sizes, who),
        torch.tensor([0.1, 0.0]).softmax(0),
    )
    torch.testing.assert_close(
        weights(torch.tensor([3.0, 0.0]), sizes, who),
        torch.tensor([0.2, 0.0]).softmax(0),
    )
    monkeypatch.setattr(
        maxfl,
        "multiplicative",
        lambda n: lambda gaps, sizes, who: torch.tensor([0.3, 0.7]),
    )
    taken = []
    monkeypatch.setattr(
        maxfl,
        "sgd",
        lambda problem, x, rows, random, steps, shift=0, pull=0: (
            taken.append(steps) or x + 1 - steps
        ),
    )
    problem = tiny(rounds=1, batch_size=24, steps=5)
    problem.tables["run"]["appeal"] = {"leave": False, "warmup_steps": 0}
    maxfl.mwfed(problem)
    assert [steps for steps in taken if steps not in (0, 5)] == [
        3,
        7,
    ]  # beside warm-ups and looks after 5 steps


def test_attackers_are_as_many_as_the_file_says_and_ruin_a_model_that_they_weigh_in():
    names = [f"client-{i}" for i in range(4)]
    honest, attacked = (
        tiny(names, rounds=4, batch_size=24, steps=8, lr=0.5) for _ in range(2)
    )
    attacked.tables["attack"] = {"on": 0.5, "gap": 0.0, "sigma": 10.0}
    assert [int(maxfl.attackers(problem).sum()) for problem in (honest, attacked)] == [
        0,
        2,
    ]
    ignored = tiny(names, rounds=4, batch_size=24, steps=8, lr=0.5)
    ignored.tables["attack"] = {"on": 0.5, "gap": 100.0, "sigma": 10.0}
    for problem in (honest, attacked, ignored):
        problem.tables["run"]["appeal"] = {"leave": False}
    accuracy = [
        maxfl.maxfl(problem)["accuracy, seen"]
        for problem in (honest, attacked, ignored)
    ]
    assert accuracy[0] > 0.9
    assert accuracy[1] < accuracy[0]
    assert accuracy[2] > 0.9  # a gap of 100 has no weight


def test_each_client_prefers_what_is_better_for_it():
    seen, unseen = tiny(), tiny()
    (easy, labels), (test, _) = (
        common.rows_of(unseen.clients[0].train),
        common.rows_of(unseen.clients[0].test),
    )
    turned = {
        "other": {"train": (easy, (labels + 1) % 3), "test": (test, (labels + 1) % 3)}
    }
    problem = common.problem_of(seen.tables, 0, seen.clients)
    model = common.sgd(
        problem, problem.start(), problem.train[0], torch.Generator(), steps=200
    )
    problem.tables["run"]["appeal"] = {"leave": False, "warmup_steps": 0}
    for clients, likes in ((seen.clients, True), (ct.data.from_tensors(turned), False)):
        judges = maxfl._Judges(problem, clients, "alone")
        assert torch.equal(judges.alone[0], problem.start())
        own = problem.accuracy(problem.start(), [common.rows_of(clients[0].test)])
        assert judges.appeal(model) == likes
        assert judges.preferred(model) == pytest.approx(
            judges.accuracy(model) if likes else own
        )
        assert (
            judges.preferred(problem.start(), 200) > 0.8 > own
        )  # each learns its own rows from there
        assert own != pytest.approx(judges.accuracy(model))


def test_unseen_clients_are_asked_too():
    problem = tiny(rounds=2, batch_size=24, steps=8, lr=0.5)
    problem.tables["run"]["appeal"] = {"leave": False}
    assert not any("unseen" in name for name in maxfl.maxfl(problem))
    inputs, labels = common.rows_of(problem.clients[0].train)
    turned = inputs, (labels + 1) % 3
    problem.clients.unseen = ct.data.from_tensors(
        {"other": {"train": turned, "test": turned}}
    )
    values = maxfl.maxfl(problem)
    assert values["GM-appeal, unseen"] == 0
    assert values["accuracy, seen"] > values["accuracy, unseen"]


ALL = ct.LocalSGD(lr=1.0, steps=ct.Steps(1), batch_size=100)


def without_chance(label, mu, attack=None, groups=(2, 2, 1), rounds=60):
    """The plateau of both computations where a batch is all of a client's 100 samples."""
    groups = list(groups)
    clients = ct.data.load(
        "mean-estimation", seed=1, mu=mu, groups=groups, samples=100, test=0
    )
    library = mean_estimation.method_of(label, mu)
    known = None if attack is None else byzantine.ATTACKS[attack]
    lies = (
        None if known is None else replace(known, on=clients.names[plateaus.HONEST :])
    )
    step = byzantine.MD_STEP if attack else mean_estimation.MD_STEP[mu]
    if label == "MeritFed":
        library = replace(library, md_step=step)
    settled = mean_estimation.settle(
        replace(library, local=ALL), clients, rounds, 1, lies
    ).plateau
    means = torch.stack(
        [client.train.inputs.double().mean(0) for client in clients]
    ).expand(rounds, -1, -1)
    held = clients["d1-000"].validation.inputs.double()
    weigh = plateaus.weighing(label, step, held, torch.Generator())
    return settled, plateaus.plateau(
        means,
        weigh,
        attack and partial(plateaus.ATTACKS[attack], random=torch.Generator()),
    )


@pytest.mark.parametrize("label", ["MeritFed", "SGD Full", "FedAdp", "TAWT"])
@pytest.mark.parametrize("mu", [0.001, 0.1])
def test_where_nothing_is_drawn_the_second_plateau_is_the_librarys(label, mu):
    settled, second = without_chance(label, mu)
    assert second == pytest.approx(settled, rel=1e-4)


@pytest.mark.parametrize("attack", ["IPM", "ALIE", "bit flipping"])
@pytest.mark.parametrize("label", ["MeritFed", "SGD Full", "FedAdp", "TAWT"])
def test_attacks_without_chance_are_the_librarys(monkeypatch, label, attack):
    monkeypatch.setattr(plateaus, "MALICIOUS", 3)
    settled, second = without_chance(
        label, 0.001, attack, groups=(plateaus.HONEST + 3, 0, 0)
    )
    assert second == pytest.approx(settled, rel=1e-4)


def test_losses_alone_give_the_slope_on_average():
    random = torch.Generator().manual_seed(1)
    x, mean = torch.ones(plateaus.DIM).double(), torch.zeros(plateaus.DIM).double()
    updates, weights = (
        torch.randn(3, plateaus.DIM, generator=random).double(),
        torch.full((3,), 1 / 3).double(),
    )
    moved = x + plateaus.SERVER_RATE * weights @ updates
    slopes = plateaus.SERVER_RATE * updates @ plateaus.gradient(moved, mean)
    blind = [
        plateaus.two_losses(mean, random)(x, updates, weights) for _ in range(20_000)
    ]
    torch.testing.assert_close(
        torch.stack(blind).mean(0), slopes, atol=0.03 * float(slopes.norm()), rtol=0
    )


def test_noise_is_added_or_stands_alone():
    updates = torch.full(
        (plateaus.HONEST + plateaus.MALICIOUS, plateaus.DIM), 7.0
    ).double()
    alone, added = (
        plateaus.ATTACKS[name](updates, torch.Generator().manual_seed(1))
        for name in ("random noise", "added noise")
    )
    torch.testing.assert_close(alone / 10, added - 7)
    assert float(alone.std()) == pytest.approx(10, rel=0.1)


def test_the_second_plateaus_are_those_of_the_files_contestants():
    assert set(plateaus.LABELS[plateaus.MEAN]) == set(mean_estimation.CONTESTANTS)
    assert set(plateaus.LABELS[plateaus.ATTACKED]) == {
        *byzantine.METHODS,
        byzantine.IDEAL,
    }
    assert set(byzantine.ATTACKS) == set(plateaus.ATTACKS) - {"ALIE, other direction"}


@pytest.mark.parametrize("case", landscape.TRUE_MEANS)
def test_the_lowest_root_of_the_slope_is_where_the_fixed_points_end(case):
    truth = torch.tensor(maxfl_landscape.CASES[case], dtype=torch.float64)[:, None]
    means = truth + torch.randn(
        3, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    second = torch.tensor(
        [landscape.optimum(drawn.numpy()) for drawn in means.T], dtype=torch.float64
    )
    found, known = (
        maxfl_landscape.objective(w, means)
        for w in (second, maxfl_landscape.optimum(means))
    )
    torch.testing.assert_close(found, known, atol=1e-6, rtol=0)


def test_three_clients_far_apart_end_near_one_of_them(monkeypatch):
    monkeypatch.setattr(landscape, "RUNS", 50)
    values, even = landscape.computed("maxfl", 0), landscape.computed("average", 0)
    assert (
        values["at least one as good, far (0, 5, 10)"]
        > 0.5
        > values["at least one satisfied, far (0, 5, 10)"]
    )
    assert even["at the average, near"] == 1


def test_the_first_minimum_for_two_clients_is_where_the_algorithm_stays():
    distances = torch.tensor(
        [0.3, 1.0, 1.9, 2.05, 2.2, 3.0, 5.0, 8.0], dtype=torch.float64
    )
    stays = maxfl_toy.minimum(distances, "sigmoid", steps=20_000)
    assert landscape.first_minimum(distances.numpy()) == pytest.approx(
        stays.numpy(), rel=1e-6
    )
    known = maxfl_toy.MONTE_CARLO["maxfl"][5]
    assert landscape.of_two("maxfl", 0)["appeal, gamma² = 5"] == pytest.approx(
        known, abs=0.015
    )


def test_two_clients_have_the_librarys_minima_rates_and_weight():
    values, known = landscape.without_draws(0), {}
    for squared in landscape.HALVES:
        known |= maxfl_landscape.two_clients(squared)
    assert values == pytest.approx({"gap of the largest weight": 0.0} | known, abs=0.01)


def test_two_clients_end_at_their_average_with_relu():
    distances = np.array([0.0, 0.3, 2.0, 8.0])
    assert landscape.relu_minimum(distances) == pytest.approx(distances / 2)
    assert landscape.relu_minimum(distances) == pytest.approx(
        maxfl_toy.minimum(torch.tensor(distances), "relu").numpy()
    )


def test_numbers_by_round_are_kept_and_the_last_counts(monkeypatch):
    monkeypatch.setattr(
        command,
        "METHODS",
        {plateaus.MEAN: {"TAWT": lambda seed: {"one": 0.5, "many": [0.1, 0.25]}}},
    )
    kept = command.perform(
        command.Job(command.EXPERIMENTS / f"{plateaus.MEAN}.toml", "TAWT", 0)
    )
    assert (kept.values, kept.curves) == (
        {"one": 0.5, "many": 0.25},
        {"many": [[1, 2], [0.1, 0.25]]},
    )


def test_every_row_has_the_settings_of_its_file():
    for path in command.FOLDER.glob("*.json"):
        tables = command.tables_of(path.stem)
        for row in read(path.stem, command.FOLDER).rows:
            assert row.settings == command.settings_of(tables, row.method), (
                f"{path.stem}: {row.method} has old rows"
            )


def test_a_finished_run_is_not_repeated(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(
        command,
        "METHODS",
        {"isfl-table-3-98": dict.fromkeys(("fedavg", "isfl"), runs.append)},
    )
    monkeypatch.setattr(command, "perform", lambda job: row(job, runs))
    said = list(command.run_missing(["isfl-table-3-98"], 1, folder=tmp_path))
    assert said == [
        "isfl-table-3-98: fedavg, seed 0: done",
        "isfl-table-3-98: isfl, seed 0: done",
    ]
    assert len(list(command.run_missing(["isfl-table-3-98"], 2, folder=tmp_path))) == 2
    assert runs == [("fedavg", 0), ("isfl", 0), ("fedavg", 1), ("isfl", 1)]
    assert (
        list(command.run_missing(["isfl-table-3-98"], 3, minutes=-1, folder=tmp_path))
        == []
    )
    assert [row.seed for row in read("isfl-table-3-98", tmp_path).rows] == [0, 1, 0, 1]


def write_idx(folder, classes):
    """Write Fashion-MNIST's four files, of few images whose pixels are their label, but the last their number."""
    for which, rows in (("train", 240), ("t10k", 60)):
        labels = np.arange(rows) % classes
        images = labels[:, None, None] * np.ones((1, 28, 28))
        images[:, -1, -1] = np.arange(rows)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = (
                bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            )
            path = folder / f"{which}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes()))


def test_own_loading_deals_shards_of_one_class_and_tests_on_the_clients_mix(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(own, "FOLDERS", (tmp_path,))
    write_idx(tmp_path, classes=3)
    split = {
        "kind": "shards",
        "clients": 5,
        "shards_per_client": 2,
        "shard_size": 20,
        "test": "label-mix",
    }
    sorted_ = own.deal({"data": {}, "split": split}, 0)
    assert sorted_.names == [f"client-0{i}" for i in range(5)]
    for client in sorted_:
        assert torch.equal(client.train.inputs[:, 0, 0].long(), client.train.labels)
        trained, tested = (
            part.labels.bincount(minlength=3) / len(part)
            for part in (client.train, client.test)
        )
        assert len(client.train) == 40
        assert set(trained.tolist()) <= {0, 0.5, 1}
        torch.testing.assert_close(trained, tested)
    mixed = {
        "kind": "mixed",
        "nr": 0.5,
        "clients": 5,
        "shard_size": 20,
        "test": "standard",
    }
    half = own.deal({"data": {"server": 6, "rows": 220}, "split": mixed}, 0)
    assert (len(half.server), len(half[0].test)) == (6, 54)
    assert half[0] is half["client-00"]
    assert all(client.train.labels.bincount(minlength=3).min() > 0 for client in half)
    assert not torch.equal(
        half[0].train.labels,
        own.deal({"data": {"server": 6}, "split": mixed}, 1)[0].train.labels,
    )
    library = read_pair(tmp_path, "train", 10)[0]
    assert np.array_equal(
        own.read_idx(tmp_path / "train-images-idx3-ubyte.gz"), library
    )


def test_own_loading_deals_clusters_with_labels_of_their_own_and_turns_some_round(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(own, "FOLDERS", (tmp_path,))
    write_idx(tmp_path, classes=6)
    split = {
        "kind": "clusters",
        "clusters": 3,
        "labels_per_cluster": 2,
        "clients": 8,
        "unseen": 4,
        "flip": 0.25,
    }
    split["parts"] = {"train": 0.6, "test": 0.4}
    seen, other = (own.deal({"data": {}, "split": split}, seed) for seed in (0, 1))
    assert (seen.names[-1], seen.unseen.names[-1], len(seen.server)) == (
        "client-07",
        "unseen-03",
        0,
    )
    numbers, of_pair = [], Counter()
    for group, turned in ((seen, 2), (seen.unseen, 1)):
        right = []
        for client in group:
            true = [part.inputs[:, 0, 0].long() for part in (client.train, client.test)]
            right.append(torch.equal(client.train.labels, true[0]))
            for part, pixels in zip((client.train, client.test), true, strict=True):
                assert torch.equal(part.labels, pixels if right[-1] else 5 - pixels)
                numbers += part.inputs[:, -1, -1].tolist()
            trained, tested = (pixels.bincount(minlength=6) for pixels in true)
            assert (trained - 0.6 * (trained + tested)).abs().max() < 0.5
            of_pair[tuple(tested.nonzero().flatten().tolist())] += 1
        assert right.count(False) == turned
    assert sorted(numbers) == list(range(240))
    assert (sorted(of_pair.values()), sorted(sum(of_pair, ()))) == (
        [4, 4, 4],
        list(range(6)),
    )
    assert not torch.equal(seen[0].train.inputs, other[0].train.inputs)


def test_own_samples_of_mean_estimation_have_the_three_means(monkeypatch):
    monkeypatch.setitem(plateaus.ROUNDS, plateaus.OWN, 3)
    plateaus.own_batches.cache_clear()
    means, validation = plateaus.own_batches(0)
    plateaus.own_batches.cache_clear()
    assert means.shape == (3, 150, plateaus.DIM)
    distances = [
        float(means[:, group].mean((0, 1)).norm())
        for group in (slice(5, 100), slice(100, 150))
    ]
    assert distances == pytest.approx([plateaus.OWN_MU, 1], abs=0.05)
    assert float(validation.mean(0).norm()) < 0.2
    assert float(means.std(0).mean()) == pytest.approx(
        0.1, rel=0.2
    )  # of batches of 100


def row(job, runs):
    runs.append((job.method, job.seed))
    settings = command.settings_of(command.read_toml(job.file), job.method)
    return command.Row(
        job.method, job.seed, settings, "c", 1, 1, {"accuracy on D_S": 0.5}
    )
