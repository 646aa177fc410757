"""Fixed effects in a plan with [privacy]: what a site tells behind noise under its key, what that costs, and what stays."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from test_private_plans import BOUNDS, DELTA, GIVES, ROUNDS, hospital_of

import coterie as ct
from coterie.algorithms.fixed_effects import model_with_intercept
from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of, noise_multiplier
from coterie.base.rng import Rng
from coterie.compute.bounded_slopes import tell_products, tell_row_gradients
from coterie.compute.metrics import evaluate
from coterie.contract.federation import Federation
from coterie.contract.wire import PerClient
from coterie.sites.allowed import RefusedError
from coterie.sites.approval import fits
from coterie.sites.attack_requests import example_payload, probes
from coterie.sites.backend import Sites
from coterie.sites.home_verdict import verdict_lines
from coterie.sites.ledger import Account
from coterie.sites.plan_words import check_what_is_left, in_words, model_of
from coterie.sites.server import Remote
from coterie.solvers import bound, glm
from coterie.study.predict import MODEL
from coterie.study.sweep import run_experiment

sys.path.insert(0, str(Path(__file__).parents[1] / "attacks"))
from three_sites import ThreeSites

EVENTS = 1 + ROUNDS
NOISE = ct.RowNoise(noise_multiplier(1.0, DELTA, EVENTS), clip=1.0)
FIXED = {"methods": [{"name": "fixed-effects"}]}
PAIR = "fixed-effects-0"
OTHER, POOL = {"noise_multiplier": 9.0}, {"part": "pool"}


def fixed(tmp_path, settings=None, **changed):
    return hospital_of(tmp_path, settings, **{**FIXED, **changed})


def mu_of(hospital):
    return Account(Path(hospital.settings.log)).mu


def ask_products(hospital, noise=NOISE, round=1):
    return hospital.ask(tell_products, noise=noise, round=round)["products"][0]


def ask_gradient(hospital, shift=0.0, noise=NOISE, round=1):
    x = PerClient(torch.full((1, len(hospital.x)), shift, dtype=torch.float64))
    told = hospital.ask(tell_row_gradients, x=x, noise=noise, round=round)
    return told["gradient"][0]


def exact_sums(hospital, shift):
    """Products and gradients of the rows before noise, and the longest row."""
    part = hospital.rows.shard.clients.train.part(0)
    rows = hospital.rows.shard.workspace.prepare(part.read()).double()
    reach = math.sqrt(rows.shape[1])
    rows = bound.shorten_rows(rows, reach)
    theta = torch.full((rows.shape[1] + 1,), shift, dtype=torch.float64)
    labels = part.labels.reshape(len(rows))
    gradient = bound.clipped_gradient(
        theta, rows, labels, glm.FAMILIES["binary"], 1, NOISE.clip
    )
    return bound.unfold(rows.T @ rows), gradient, reach


@pytest.mark.promise("noise by row")
def test_sums_have_the_stated_noise_under_the_key_of_the_site_on_its_grid(tmp_path):
    hospital = fixed(tmp_path).begin(pair=PAIR)
    products, _, reach = exact_sums(hospital, 0.0)
    points = [0.5 * number for number in range(ROUNDS)]
    gradients = torch.cat([exact_sums(hospital, point)[1] for point in points])
    exact, scales = (products, gradients), (reach**2, NOISE.clip)

    def told(site):
        of_points = [
            ask_gradient(site, point, round=1 + number)
            for number, point in enumerate(points)
        ]
        return ask_products(site), torch.cat(of_points)

    noisy_sums = told(hospital)
    (tmp_path / "other").mkdir()
    under_another_key = told(fixed(tmp_path / "other").begin(pair=PAIR))
    for noisy, plain, scale, strange in zip(
        noisy_sums, exact, scales, under_another_key, strict=True
    ):
        sigma = NOISE.noise_multiplier * scale
        assert noisy.dtype == torch.float64
        # Some 70 and 91 numbers; half or twice the noise is beyond.
        assert float((noisy - plain).std() / sigma) == pytest.approx(1, abs=0.35)
        correlation = torch.corrcoef(torch.stack([noisy - plain, strange - plain]))
        assert abs(float(correlation[0, 1])) < 0.5
        step = 2.0 ** (math.floor(math.log2(sigma)) - 10)
        assert torch.equal((noisy / step).round(), noisy / step)


@pytest.mark.promise("noise by row")
def test_the_same_again_is_the_same_bytes_for_nothing(tmp_path):
    hospital = fixed(tmp_path).begin(pair=PAIR)
    products, gradient = ask_products(hospital), ask_gradient(hospital)
    spent = mu_of(hospital)
    assert spent == pytest.approx(math.sqrt(2) / NOISE.noise_multiplier)
    hospital.restart(pair=PAIR)
    assert torch.equal(ask_products(hospital), products)
    assert torch.equal(ask_gradient(hospital), gradient)
    assert mu_of(hospital) == spent
    # Another point has other noise. In another round the same sum is counted again, and tells no more than it did.
    assert not torch.equal(ask_gradient(hospital, 1e-12, round=2), gradient)
    assert torch.equal(ask_products(hospital, round=2), products)
    assert mu_of(hospital) == pytest.approx(math.sqrt(4) / NOISE.noise_multiplier)


@pytest.mark.promise("noise by row")
def test_a_changed_row_changes_all_of_the_noise_and_is_counted(tmp_path):
    """Else the difference of two answers would show the row without noise."""
    hospital = fixed(tmp_path, deploy={"runs": 2}).begin(pair=PAIR)
    before = ask_products(hospital), ask_gradient(hospital)
    exact_before = exact_sums(hospital, 0.0)
    hospital.rows.shard.clients.train.inputs[0] += 0.1
    # A site reads a table that was changed anew.
    hospital.rows.shard.workspace.kept_linear = None, {}
    after = ask_products(hospital), ask_gradient(hospital)
    exact_after = exact_sums(hospital, 0.0)
    for number, scale in enumerate((exact_after[2] ** 2, NOISE.clip)):
        moved = exact_after[number] - exact_before[number]
        noise = after[number] - before[number] - moved
        assert float(moved.norm()) < scale
        assert float(noise.norm()) > NOISE.noise_multiplier * scale
    assert mu_of(hospital) == pytest.approx(math.sqrt(4) / NOISE.noise_multiplier)


@pytest.mark.promise("noise by row")
def test_exactly_the_sums_that_the_noise_was_made_for_are_answered(tmp_path):
    """Although the plan may be run three times; over a restart, too."""
    hospital = fixed(tmp_path, deploy={"runs": 3}).begin(pair=PAIR)
    ask_products(hospital)
    answered, refused = 1, []
    for number in range(ROUNDS + 4):
        if number == 3:
            hospital.restart(pair=PAIR)
        try:
            ask_gradient(hospital, float(number), round=1 + number % ROUNDS)
            answered += 1
        except RefusedError as refusal:
            refused.append(str(refusal))
    assert answered == EVENTS
    assert all("raise [site] epsilon" in why for why in refused)
    assert mu_of(hospital) == pytest.approx(math.sqrt(EVENTS) / NOISE.noise_multiplier)
    assert epsilon_of(mu_of(hospital), DELTA) == pytest.approx(1.0)
    with pytest.raises(RefusedError, match="in round 0"):
        ask_gradient(hospital, round=0)


@pytest.mark.promise("noise by row")
def test_what_differs_from_the_plan_in_one_field_is_refused(tmp_path):
    hospital = fixed(tmp_path).begin(pair=PAIR)
    for noise in (ct.RowNoise(0.0, clip=None), ct.RowNoise(NOISE.noise_multiplier, 9)):
        with pytest.raises(RefusedError, match="another value"):
            ask_products(hospital, noise)
        with pytest.raises(RefusedError, match="another value"):
            ask_gradient(hospital, noise=noise)
    limits = hospital.rows._limits(hospital.rows.shard)
    tried = 0
    for declaration, owner in hospital.approved.pairs[PAIR].of_method.values():
        payload = example_payload(declaration, owner, limits)
        for probe in probes(declaration, owner, limits, payload):
            with pytest.raises(RefusedError):
                hospital.ask(declaration.task, **probe.payload)
            tried += 1
    assert tried > 20
    assert mu_of(hospital) == 0


@pytest.mark.promise("noise by row")
def test_the_own_model_of_a_site_stays_there_and_no_loss_of_it_is_told(tmp_path):
    hospital = fixed(tmp_path).begin(pair=PAIR)
    told = hospital.ask(model_with_intercept, x=hospital.x, ridge=1.0, round=ROUNDS)
    assert told == {}
    own = hospital.folder / "kept" / "models"
    assert [*own.rglob(MODEL)]
    values = hospital.ask(
        evaluate, x=None, part="train", metrics=("accuracy", "auc"), round=ROUNDS
    )
    assert float(values["loss"]) == 0
    assert not bool(values["defined"].any())
    assert mu_of(hospital) == 0


def test_an_approval_says_what_is_told_and_what_it_costs(tmp_path):
    hospital = fixed(tmp_path)
    module = model_of(hospital.approved, hospital.settings, "hungary")
    price = hospital.approved.price(module)
    assert price.updates == EVENTS
    assert price.mu == pytest.approx(math.sqrt(EVENTS) / NOISE.noise_multiplier)
    assert hospital.approved.pairs[PAIR].exposure == ""
    fits(hospital.approved, hospital.settings, module)
    check_what_is_left(hospital.approved, hospital.settings, "hungary")
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    columns = next(module.parameters()).shape[1]
    assert f"{columns * (columns + 1) // 2} numbers with noise of deviation" in words
    assert "under a key that stays here" in words
    assert "no noise hides curvature" not in words
    assert "it suffices" in words
    dear = fixed(tmp_path, deploy={"runs": 2})
    with pytest.raises(RefusedError, match="this site can raise"):
        check_what_is_left(dear.approved, dear.settings, "hungary")


def test_noise_and_no_count_of_numbers_limits_how_many_rounds_there_are(tmp_path):
    assert fixed(tmp_path, rounds=60).begin(pair=PAIR).rows.shard is not None


@pytest.mark.parametrize(
    ("changed", "cure"),
    [
        ({"privacy": {"epsilon": 1.0, "tell": ["loss"]}}, "leave out tell"),
        ({"secure": {}}, "take fedavg, or leave out"),
        ({"methods": [{"name": "fixed-effects", "private": OTHER}]}, "leave out one"),
        ({"methods": [{"name": "fixed-effects", "personalise": POOL}]}, "drop it"),
    ],
)
def test_what_a_plan_does_not_cover_is_refused_with_a_cure(tmp_path, changed, cure):
    with pytest.raises(InputError, match=cure):
        fixed(tmp_path, **changed)


def test_noise_of_a_method_without_an_account_is_refused_with_a_cure(tmp_path):
    simulated = {"name": "fixed-effects", "private": OTHER}
    with pytest.raises(InputError, match=r"write \[privacy\]"):
        fixed(tmp_path, methods=[simulated], privacy={})


def town_of(tmp_path, names, rounds, privacy, methods, gives):
    town = ThreeSites(
        tmp_path / "town",
        methods,
        names,
        rounds=rounds,
        privacy=privacy,
        data={"bounds": BOUNDS},
        deploy={"runs": 1},
    )
    for site in town.sites.values():
        site.settings = dataclasses.replace(site.settings, **gives)
    return town


def test_with_hardly_any_noise_sites_find_what_one_process_finds(tmp_path):
    hardly_any = {"noise_multiplier": 1e-9, "clip": 1.0}
    gives = {"epsilon": 1e30, "delta": DELTA, "largest_mu": 1e15}
    names, rounds = ("cleveland", "hungary", "long-beach"), 8
    methods = [{"name": "fixed-effects"}]
    town = town_of(tmp_path, names, rounds, hardly_any, methods, gives)
    engine = town.open()
    method = town.experiment.build_method(town.experiment.methods[0])
    module = torch.nn.Linear(town.clients[0].train.inputs.shape[1], 1)
    engine.prepare(module, town.clients, pair=PAIR)
    state = method.init(engine.x.clone(), Federation(engine, engine.clients, 0))
    for number in range(1, rounds + 1):
        view = Federation(engine, engine.clients, 0).view(engine.clients, number, 1)
        state, _ = method.round(state, view, Rng.named(0, "server", number))
    here = [site.shard.clients[0] for site in town.sites.values()]
    classes = town.sites["hungary"].shard.clients.classes
    clients = Clients(here, classes=classes)
    without = ct.FixedEffects(private=ct.RowNoise(0.0, clip=1.0))
    found = ct.fit(without, clients, model=module, rounds=rounds)
    torch.testing.assert_close(state.x, found.x, rtol=0, atol=1e-5)
    assert float(found.x.abs().max()) > 0.1


@pytest.mark.promise("noise by row")
def test_a_run_ends_without_a_loss_at_the_server_and_with_a_verdict_at_each_site(
    tmp_path,
):
    methods = [{"name": "local"}, {"name": "fixed-effects"}]
    privacy = {"epsilon": 1.0, "delta": DELTA}
    town = town_of(tmp_path, ("cleveland", "hungary"), 3, privacy, methods, GIVES)
    there = tmp_path / "there"
    run_experiment(
        town.experiment, there, backend=Sites(Remote(town, "run", plan=town.plan))
    )
    summary = json.loads((there / "summary.json").read_text())
    assert {row["method"] for row in summary} == {"local", "fixed-effects"}
    assert all(row["loss"] is None for row in summary)
    multiplier = noise_multiplier(1.0, DELTA, 4)
    for site in town.sites.values():
        account = Account(Path(site.settings.log))
        assert account.mu == pytest.approx(math.sqrt(4) / multiplier)
        lines = list(verdict_lines(site.approved, site.settings, site.folder))
        assert any("fixed-effects against local" in line for line in lines)
