"""A plan with [privacy] at a site: what its updates hide, what is not told at all, what it costs, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from attacks.hospital import FEDAVG, Hospital, local
from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of, noise_multiplier
from coterie.compute.metrics import evaluate
from coterie.compute.row_gradients import clipped_sums
from coterie.compute.tasks import local_update
from coterie.config.local import Steps
from coterie.config.row_noise import RowNoise
from coterie.data.tables.recipe import moments
from coterie.sites.allowed import RefusedError
from coterie.sites.approval import fits
from coterie.sites.comparisons import note_outcomes, paired_errors
from coterie.sites.home_verdict import verdict_lines
from coterie.sites.ledger import Account
from coterie.sites.plan_words import check_what_is_left, in_words, model_of

ROUNDS, DELTA = 5, 1e-4
BOUNDS = {
    "age": [20, 90],
    "sex": [0, 1],
    "trestbps": [80, 220],
    "chol": [80, 600],
    "fbs": [0, 1],
    "thalach": [60, 220],
    "exang": [0, 1],
    "oldpeak": [-3, 7],
}
PRIVATE = {
    "methods": [{"name": "fedavg", "local": {"steps": 1}}],
    "privacy": {"epsilon": 1.0, "delta": DELTA},
    "data": {"bounds": BOUNDS},
    "rounds": ROUNDS,
    "deploy": {"runs": 1},
}
GIVES = {"epsilon": 1.0, "delta": DELTA}
NOISE = RowNoise(noise_multiplier(1.0, DELTA, ROUNDS), clip=1.0)
LOCAL = {"steps": Steps(1), "batch_size": None, "private": NOISE}

SIMULATED = {"batch_size": "all", "private": {"noise_multiplier": 5.0}}


def hospital_of(tmp_path, settings=None, **changed):
    (tmp_path / "hospital").mkdir(exist_ok=True)
    gives = GIVES if settings is None else settings
    return Hospital(tmp_path / "hospital", gives, **{**PRIVATE, **changed})


def ask(hospital, round, shift=0.0):
    return hospital.ask(
        local_update, x=hospital.x + shift, local=local(**LOCAL), round=round
    )["delta"]


@pytest.mark.promise("noise by row")
def test_an_update_has_the_stated_noise_under_the_key_of_the_site(tmp_path):
    hospital = hospital_of(tmp_path).begin()
    told = ask(hospital, 1)[0]
    rows = hospital.rows.shard.clients.sizes("train")["hungary"]
    workspace = hospital.rows.shard.workspace
    part = hospital.rows.shard.clients.train.part(0)
    workspace.load(hospital.x)
    inputs = workspace.prepare(part.read())
    exact = -0.1 * clipped_sums(workspace, inputs, part.labels, 1.0)() / rows
    # The same again is the same bytes, for nothing; another model, or key, has other noise.
    spent = Account(Path(hospital.settings.log)).mu
    assert torch.equal(ask(hospital, 1)[0], told)
    assert Account(Path(hospital.settings.log)).mu == spent
    assert spent == pytest.approx(1 / NOISE.noise_multiplier)
    (tmp_path / "other").mkdir()
    other = hospital_of(tmp_path / "other").begin()
    assert not torch.equal(ask(other, 1)[0], told)
    of_rounds = [told, *(ask(hospital, r)[0] for r in range(2, ROUNDS + 1))]
    noise = (torch.stack(of_rounds) - exact) / (0.1 * NOISE.noise_multiplier / rows)
    # Keys are random: the mean square of so many numbers leaves these bounds once in a million runs.
    assert noise.numel() >= 45
    assert 0.5 < float(noise.square().mean().sqrt()) < 1.6


@pytest.mark.promise("noise by row")
def test_exactly_the_rounds_that_the_noise_was_made_for_are_answered(tmp_path):
    """Although the plan may be run three times: the site gives epsilon 1 once, whatever is approved, purged or started again."""
    hospital = hospital_of(tmp_path, deploy={"runs": 3}).begin()
    answered, refused = 0, []
    for number in range(ROUNDS + 4):
        if number == 3:
            hospital.restart()
        try:
            ask(hospital, 1 + number % ROUNDS, shift=1.0 + number)
            answered += 1
        except RefusedError as refusal:
            refused.append(str(refusal))
    assert answered == ROUNDS
    assert all("raise [site] epsilon" in why for why in refused)
    mu = Account(Path(hospital.settings.log)).mu
    assert epsilon_of(mu, DELTA) == pytest.approx(1.0)
    with pytest.raises(RefusedError, match="no tasks:local_update in round 0"):
        ask(hospital, 0)


@pytest.mark.promise("noise by row")
def test_losses_metrics_differences_and_sums_are_not_told(tmp_path):
    hospital = hospital_of(tmp_path).begin()
    values = hospital.ask(
        evaluate,
        x=hospital.x,
        part="train",
        metrics=("accuracy", "auc"),
        round=ROUNDS,
    )
    assert float(values["loss"]) == 0
    assert not bool(values["defined"].any())
    with pytest.raises(RefusedError, match="coterie site verdict"):
        hospital.ask(paired_errors, method="fedavg", other="local")
    with pytest.raises(RefusedError, match="of no others"):
        hospital.ask(moments, schema='["age"]')
    assert Account(Path(hospital.settings.log)).mu == 0


def test_an_approval_says_what_rounds_runs_and_trainings_cost(tmp_path):
    hospital = hospital_of(tmp_path)
    module = model_of(hospital.approved, hospital.settings, "hungary")
    price = hospital.approved.price(module)
    assert epsilon_of(price.mu, DELTA) == pytest.approx(1.0)
    fits(hospital.approved, hospital.settings, module)
    check_what_is_left(hospital.approved, hospital.settings, "hungary")
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    assert "it suffices" in words
    assert "noise of deviation 7.12, drawn under a key that stays here" in words
    assert "sums of each column" not in words
    assert "each time the loss" not in words
    dear = hospital_of(tmp_path, deploy={"runs": 3})
    words = "\n".join(in_words(dear.approved, dear.settings, "hungary"))
    assert "mu is up to 1.73 times as large" in words
    assert dear.approved.price(module).mu == pytest.approx(price.mu * math.sqrt(3))
    with pytest.raises(RefusedError, match="this site can raise"):
        check_what_is_left(dear.approved, dear.settings, "hungary")
    folds = hospital_of(tmp_path, split={"folds": 4})
    # A row is in the trainings without each of the three other folds, and in that on all rows.
    assert folds.approved.price(module).mu >= price.mu * 2


def test_a_site_without_an_epsilon_refuses_such_a_plan_with_a_cure(tmp_path):
    hospital = hospital_of(tmp_path, settings={})
    module = model_of(hospital.approved, hospital.settings, "hungary")
    with pytest.raises(RefusedError, match=r"epsilon = 2"):
        fits(hospital.approved, hospital.settings, module)
    with pytest.raises(RefusedError, match=r"epsilon = 2"):
        hospital.begin()


@pytest.mark.parametrize(
    ("changed", "cure"),
    [
        ({"data": {}}, "say bounds = "),
        ({"privacy": {"noise_multiplier": 0.0}}, "give epsilon"),
        ({"filters": [{"name": "clip", "bound": 1.0}]}, "leave out filters"),
        ({"methods": [*PRIVATE["methods"], {"name": "centralised"}]}, "leave it out"),
        ({"privacy": {}, "local": SIMULATED}, "write \\[privacy\\]"),
        ({"methods": [{**FEDAVG, "name": "scaffold"}]}, "take fedavg"),
        (
            {"methods": [*PRIVATE["methods"], {"name": "local", "local": SIMULATED}]},
            "models stay at home; leave it out",
        ),
    ],
)
def test_a_plan_that_tells_more_than_its_noise_is_refused(tmp_path, changed, cure):
    with pytest.raises(InputError, match=cure):
        hospital_of(tmp_path, **changed)


def test_a_person_at_the_site_reads_the_verdict_and_nothing_is_counted(tmp_path):
    hospital = hospital_of(tmp_path, methods=[{"name": "local"}, *PRIVATE["methods"]])
    folder = hospital.folder / "kept"
    with pytest.raises(InputError, match="coterie submit"):
        list(verdict_lines(hospital.approved, hospital.settings, folder))
    for pair, model in (("local-0", 0.0), ("fedavg-0", 0.1)):
        hospital.begin(pair=pair)
        hospital.ask(note_outcomes, x=hospital.x + model, round=ROUNDS)
    lines = list(verdict_lines(hospital.approved, hospital.settings, folder))
    assert any("fedavg against local" in line and "log-loss" in line for line in lines)
    assert Account(Path(hospital.settings.log)).mu == 0
