"""Fixed effects behind row noise: what they equal without noise, how far one row moves what is told, its noise, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of, noise_multiplier
from coterie.base.rows import Part
from coterie.cli.main import main
from coterie.run.experiment import Experiment
from coterie.run.private_methods import noise_by_row, spent_by
from coterie.solvers import bound, glm, pooling

PLAIN = ct.RowNoise(0.0, clip=None)
OUTPUTS = {"binary": 1, "classes": 3, "regression": 1}


def rows_of(kind, rows, seed, columns=3):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, columns, generator=draw, dtype=torch.float64)
    noise = torch.randn(rows, generator=draw, dtype=torch.float64)
    score = inputs[:, 0] - inputs[:, 1] / 2 + noise + seed / 10
    if kind == "regression":
        return inputs, score
    classes = (score > 0).long()
    if kind == "classes":
        classes = classes + (score > 1).long()
    return inputs, classes


def clients_of(kind, rows=60):
    return Clients(
        [
            Client(name, Part(*rows_of(kind, rows, seed)))
            for seed, name in enumerate("abc")
        ]
    )


def fit(kind, method, rounds, seed=0):
    model = torch.nn.Linear(3, OUTPUTS[kind]).double()
    return ct.fit(method, clients_of(kind), model=model, rounds=rounds, seed=seed)


@pytest.mark.in_turn(but="classes")
@pytest.mark.parametrize("kind", sorted(OUTPUTS))
def test_without_noise_and_limits_it_comes_to_the_solution_of_fixed_effects(kind):
    exact = fit(kind, ct.FixedEffects(), 20)
    found = fit(kind, ct.FixedEffects(private=PLAIN), 500)
    for name, model in exact.models.items():
        torch.testing.assert_close(found.models[name], model, rtol=0, atol=1e-6)


def test_without_noise_each_step_is_that_of_the_plain_bound():
    found = fit("binary", ct.FixedEffects(private=PLAIN), 5)
    tables = [rows_of("binary", 60, seed) for seed in range(3)]
    bend = sum(x.T @ x for x, _ in tables) / 4
    matrix = 2 * bend + torch.eye(3).double()
    b, own = torch.zeros(3).double(), torch.zeros(3).double()
    for number in range(5):
        residuals = [
            y - torch.sigmoid(x @ b + a) for (x, y), a in zip(tables, own, strict=True)
        ]
        uphill = sum(
            x.T @ residual for (x, _), residual in zip(tables, residuals, strict=True)
        )
        own_uphill = torch.stack([r.sum() for r in residuals]) - own / 20
        b = b + torch.linalg.solve(matrix, uphill - b)
        own = own + own_uphill / (2 * 60 / 4 + 1 / 20)
        torch.testing.assert_close(found.state.points[number], b)
    torch.testing.assert_close(found.state.intercepts[:, 0], own)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(OUTPUTS)),
    st.floats(0.01, 10),
    st.floats(0.1, 1000),
    st.integers(0, 1000),
)
def test_a_row_moves_what_is_told_by_no_more_than_its_limit(kind, clip, size, seed):
    inputs, labels = rows_of(kind, 12, seed)
    inputs[0] *= size
    theta = size * torch.ones(4 * OUTPUTS[kind], dtype=torch.float64)

    def told(rows):
        short = bound.shorten_rows(inputs[rows], clip)
        products = bound.unfold(short.T @ short)
        family = glm.FAMILIES[kind]
        gradient = bound.clipped_gradient(
            theta, short, labels[rows], family, OUTPUTS[kind], clip
        )
        return products, gradient

    products, gradient = told(slice(0, None))
    fewer_products, fewer_gradient = told(slice(1, None))
    assert (products - fewer_products).norm() <= clip**2 * (1 + 1e-9)
    assert (gradient - fewer_gradient).norm() <= clip * (1 + 1e-9)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_row_that_is_not_finite_moves_it_no_further(bad):
    inputs, labels = rows_of("binary", 5, 0)
    inputs[0, 1] = bad
    short = bound.shorten_rows(inputs, 2.0)
    gradient = bound.clipped_gradient(
        torch.ones(4).double(), short, labels, glm.FAMILIES["binary"], 1, 0.5
    )
    assert bool(gradient.isfinite().all())
    assert bool(short.isfinite().all())


def test_numbers_of_a_matrix_are_as_long_as_it_is():
    matrix = torch.randn(4, 4, dtype=torch.float64)
    matrix = matrix + matrix.T
    numbers = bound.unfold(matrix)
    assert float(numbers.norm()) == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(bound.fold(numbers, 4), matrix)


def test_the_raised_matrix_is_hardly_ever_below_the_products():
    draw = torch.Generator().manual_seed(0)
    size, sigma, above = 12, 3.0, 0
    for _ in range(100):
        rows = torch.randn(20, size, generator=draw, dtype=torch.float64)
        products = rows.T @ rows
        numbers = bound.unfold(products)
        noise = torch.randn(len(numbers), generator=draw, dtype=torch.float64)
        noisy = bound.fold(numbers + sigma * noise, size)
        found = bound.raised(noisy, sigma, math.inf)
        assert float(torch.linalg.eigvalsh(found).min()) > 0
        above += float(torch.linalg.eigvalsh(found - products).min()) > 0
    assert above >= 90
    # Where noise says less than the length of rows does, that is taken.
    known = bound.raised(noisy, 1e6, 80.0)
    torch.testing.assert_close(known, 80.0 * torch.eye(size).double())


@pytest.mark.in_turn
def test_the_noise_of_the_slopes_has_the_stated_variance():
    noise = ct.RowNoise(0.02, clip=50.0)
    quiet = fit("regression", ct.FixedEffects(private=ct.RowNoise(0.0, clip=50.0)), 20)
    errors, stated = [], []
    for seed in range(8):
        noisy = fit("regression", ct.FixedEffects(private=noise), 20, seed)
        errors.append(noisy.x[:3] - quiet.x[:3])
        stated.append(noisy.state.variance)
    measured = torch.stack(errors).square().mean()
    assert float(measured / torch.stack(stated).mean()) == pytest.approx(1, abs=0.4)


def test_noise_is_new_in_each_round_and_the_same_again_with_the_same_seed():
    noise = ct.FixedEffects(private=ct.RowNoise(3.0))
    runs = [fit("binary", noise, 4, seed) for seed in (0, 0, 1)]
    assert torch.equal(runs[0].x, runs[1].x)
    assert not torch.equal(runs[0].x, runs[2].x)


def test_a_run_that_is_resumed_has_the_same_bits(tmp_path):
    noisy = ct.FixedEffects(private=ct.RowNoise(3.0))
    model = torch.nn.Linear(3, 1).double()
    clients = clients_of("binary")

    def run(rounds, resume):
        settings_of_run = ct.RunSettings(resume=resume)
        return ct.fit(
            noisy,
            clients,
            model=model,
            rounds=rounds,
            checkpoint=tmp_path / "saved",
            settings=settings_of_run,
        )

    whole = ct.fit(noisy, clients, model=model, rounds=6)
    run(3, False)
    resumed = run(6, True)
    assert torch.equal(whole.x, resumed.x)


def experiment(**tables):
    plain = {
        "data": {"name": "heart-disease"},
        "methods": [{"name": "local"}, {"name": "fixed-effects"}],
        "run": {"rounds": 10, "seeds": 1},
    }
    return Experiment.from_tables({**plain, **tables}, "plan.toml")


def test_an_epsilon_is_that_of_the_products_and_of_each_round():
    made = experiment(privacy={"epsilon": 2.0, "delta": 1e-4, "clip": 0.5})
    method = made.build_method(made.methods[1])
    assert noise_by_row(method) == ct.RowNoise(noise_multiplier(2.0, 1e-4, 11), 0.5)
    mu = math.sqrt(11) / method.private.noise_multiplier
    assert epsilon_of(mu, 1e-4) == pytest.approx(2.0)
    assert spent_by(method, 1e-4, 10) == pytest.approx(2.0)
    assert "epsilon 2 for fixed-effects" in " ".join(made.notes)
    again = Experiment.from_tables(made.tables(), "again.toml")
    assert again.build_method(again.methods[1]) == method
    tables = made.tables()
    tables["run"]["rounds"] = 20
    with pytest.raises(InputError, match="leave out one of them"):
        Experiment.from_tables(tables, "again.toml")


def test_known_noise_widens_what_slopes_are_drawn_to():
    inputs, labels = rows_of("regression", 40, 1)
    given, family = torch.full((3,), 5.0).double(), glm.FAMILIES["regression"]
    near, _ = pooling.draw_to(given, inputs, labels, family, 1)
    none = pooling.draw_to(
        given, inputs, labels, family, 1, known=torch.zeros(3).double()
    )[0]
    known = torch.full((3,), 1e6).double()
    free, _ = pooling.draw_to(given, inputs, labels, family, 1, known=known)
    alone = glm.mode(inputs, labels, family, torch.zeros(4).double()).theta
    assert torch.equal(near, none)
    torch.testing.assert_close(free, alone, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (
            ("heart-disease", "--methods", "local,fixed-effects+bias"),
            "leave out personalise",
        ),
        (("nhefs-survival", "--methods", "local,fixed-effects"), "take fedavg"),
    ],
)
def test_what_it_does_not_cover_is_refused_with_a_cure(
    capsys, tmp_path, monkeypatch, words, cure
):
    monkeypatch.chdir(tmp_path)
    status = main(
        ("compare", *words, "--privacy", "4", "--rounds", "2", "--seeds", "1")
    )
    printed = capsys.readouterr()
    assert status == 2, printed
    assert cure in printed.err


def test_weights_of_rows_are_refused_with_a_cure():
    inputs, labels = rows_of("binary", 30, 0)
    clients = ct.data.from_tensors(
        [(inputs, labels), (inputs, labels)], weights=[torch.ones(30), torch.ones(30)]
    )
    model = torch.nn.Linear(3, 1).double()
    with pytest.raises(InputError, match="leave out"):
        ct.fit(ct.FixedEffects(private=PLAIN), clients, model=model, rounds=1)
