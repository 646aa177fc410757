"""What a plan tells behind noise has a price in mu, counted over all that it may ask; a site refuses what is beyond its largest_mu."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from hospital import FEDAVG, Hospital, local
from test_a_site_obeys_its_plan import refused

from coterie.compute.metrics import evaluate
from coterie.compute.tasks import local_update
from coterie.sites.allowed import RefusedError
from coterie.sites.approval import fits
from coterie.sites.flare import kits
from coterie.sites.ledger import Account
from coterie.sites.log import entries
from coterie.sites.plan_words import in_words, model_of
from coterie.sites.price import meaning
from coterie.sites.secret_noise import KeyedVeil
from coterie.sites.settings import SiteSettings

ROOT = Path(__file__).parents[2]

CLIP, NOISE = (
    {"name": "clip", "bound": 1.0},
    {"name": "gaussian-noise", "sigma": 1.0, "secret": True},
)
METRICS = ("accuracy", "auc")
HIDDEN = {"filters": [CLIP, NOISE]}


def field_default(name):
    """The default of a site's setting."""
    return next(f.default for f in dataclasses.fields(SiteSettings) if f.name == name)


def price(hospital):
    return hospital.approved.price(
        model_of(hospital.approved, hospital.settings, "hungary")
    )


def words(hospital):
    return "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))


@pytest.mark.parametrize(
    ("mu", "guesses"),
    [(1, "69"), (3, "93"), (5, "99"), (20, "more than 99"), (math.inf, "more than 99")],
)
def test_mu_means_how_often_a_guess_about_one_patient_is_right(mu, guesses):
    assert f"right in {guesses} of 100 guesses" in meaning(mu)


def test_an_update_is_one_event_of_twice_the_bound_and_each_loss_one_of_mu_1(tmp_path):
    (tmp_path / "faint").mkdir()
    once = {"rounds": 1, "deploy": {"runs": 1}}
    made = Hospital(
        tmp_path, filters=[{**CLIP, "bound": 0.5}, {**NOISE, "sigma": 0.1}], **once
    )
    told = price(made)
    rounds = 2  # the one of the plan, and what may be asked before the first
    assert told.updates == rounds
    assert told.updates_squared == pytest.approx(rounds * 10.0**2)
    metrics_of_a_comparison = (
        3 * 3
    )  # loss, AUC, accuracy, each of the method, of the other, and its error
    assert told.numbers == rounds * (1 + len(METRICS)) + metrics_of_a_comparison
    assert told.mu == pytest.approx(math.sqrt(told.updates_squared + told.numbers))


def test_methods_seeds_folds_rounds_and_runs_add_up_and_parts_do_not(tmp_path):
    """1,395 evaluations of three numbers are mu 65: presence and illness of 9 of 9 patients."""
    folders = [tmp_path / str(number) for number in range(5)]
    for folder in folders:
        folder.mkdir()
    one = {"rounds": 4, "run": {"evaluate": 1}, "deploy": {"runs": 1}, **HIDDEN}
    again = {**FEDAVG, "label": "again"}
    plain = price(Hospital(folders[0], **one))
    assert (
        price(Hospital(folders[1], **{**one, "methods": [FEDAVG, again]})).numbers
        == 2 * plain.numbers
    )
    assert (
        price(Hospital(folders[2], **{**one, "deploy": {"runs": 3}})).numbers
        == 3 * plain.numbers
    )
    comparisons = 9
    assert (
        price(Hospital(folders[3], **{**one, "seeds": 5})).numbers
        == 5 * (plain.numbers - comparisons) + comparisons
    )
    in_folds = price(Hospital(folders[4], **{**one, "split": {"folds": 3}}))
    assert (
        in_folds.numbers == 4 * (plain.numbers - comparisons) + comparisons
    )  # three folds, and all rows
    assert in_folds.updates == 4 * plain.updates


def test_metrics_that_noise_does_not_let_out_cost_nothing(tmp_path):
    (tmp_path / "more").mkdir()
    few = price(Hospital(tmp_path, **HIDDEN))
    more = price(
        Hospital(
            tmp_path / "more",
            run={"metrics": ["accuracy", "auc", "ppv", "npv", "rmse"]},
            **HIDDEN,
        )
    )
    assert few.numbers == more.numbers


@pytest.mark.promise("secret noise")
def test_a_site_refuses_what_is_beyond_its_largest_mu_and_the_cure_works(tmp_path):
    """Often evaluated beside much noise; the cure is in the sentence, and the plan with it is taken."""
    strict = {"largest_mu": 20}
    plan = {
        "rounds": 200,
        "run": {"evaluate": 1},
        "filters": [CLIP, {**NOISE, "sigma": 10.0}],
    }
    hospital = Hospital(tmp_path, settings=strict, **plan)
    module = model_of(hospital.approved, hospital.settings, "hungary")
    with pytest.raises(
        RefusedError, match=r"mu 43.* this site takes largest_mu = 20. .*evaluate = 200"
    ) as refusal:
        fits(hospital.approved, hospital.settings, module)
    assert len(str(refusal.value)) <= 300
    refused(
        "largest_mu = 20", hospital.begin
    )  # nor does it answer, whoever has put the approval there
    (tmp_path / "cured").mkdir()
    cured = Hospital(
        tmp_path / "cured", settings=strict, **{**plan, "run": {"evaluate": 200}}
    )
    fits(cured.approved, cured.settings, module)
    assert (
        cured.begin()
        .ask(local_update, x=cured.x, local=local())["delta"]
        .isfinite()
        .all()
    )


@pytest.mark.promise("secret noise")
def test_the_plan_of_the_page_with_secret_noise_fits_the_default_of_a_site(tmp_path):
    """Evaluated rarely and run once, beside training alone; each number of it has the noise that the plan says."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    plan = page[page.index('    name = "clip"') : page.index("A site counts the price")]
    noise = {**NOISE, "sigma": 10.0, "metric_noise": 4.0}
    for key, value in (("bound", 1.0), ("sigma", 10.0), ("metric_noise", 4.0)):
        assert re.search(rf"^    {key} = {value}\b", plan, re.MULTILINE)
    default = field_default("largest_mu")
    for text in (page, inspect.getsource(kits)):
        assert re.search(rf"^ *largest_mu = {default:g} ", text, re.MULTILINE)
    settings = {"largest_mu": default}
    told = {"rounds": 20, "run": {"evaluate": 20}, "deploy": {"runs": 1}}
    methods = [{"name": "local"}, FEDAVG]
    (tmp_path / "plan").mkdir()
    (tmp_path / "faint").mkdir()
    made = Hospital(
        tmp_path / "plan", settings, methods=methods, filters=[CLIP, noise], **told
    )
    module = model_of(made.approved, made.settings, "hungary")
    fits(made.approved, made.settings, module)
    cost = price(made)
    assert cost.numbers_squared == pytest.approx(cost.numbers / 4.0**2)
    made.begin()
    made.ask(local_update, x=made.x, local=local())
    made.ask(evaluate, x=made.x, part="test", metrics=METRICS, round=20)
    account = Account(Path(made.settings.log))
    assert account.mu == pytest.approx(math.hypot(2 / 10, math.sqrt(3) / 4))
    faint = Hospital(
        tmp_path / "faint",
        settings,
        methods=methods,
        filters=[CLIP, {**noise, "metric_noise": 1.0}],
        **told,
    )
    with pytest.raises(RefusedError, match="a larger metric_noise"):
        fits(faint.approved, faint.settings, module)


def test_metrics_have_as_much_noise_as_the_plan_says():
    x, quiet, loud = torch.zeros(3), KeyedVeil(b"key"), KeyedVeil(b"key", 4.0)
    one, other = (veil.metric("auc", 0.5, 1e-3, x) - 0.5 for veil in (quiet, loud))
    assert other == pytest.approx(4 * one)
    assert one != 0


def test_little_noise_is_refused_with_the_cure_for_updates(tmp_path):
    hospital = Hospital(
        tmp_path, settings={"largest_mu": 20}, filters=[CLIP, {**NOISE, "sigma": 0.01}]
    )
    with pytest.raises(RefusedError, match="a larger sigma, fewer rounds") as refusal:
        fits(
            hospital.approved,
            hospital.settings,
            model_of(hospital.approved, hospital.settings, "hungary"),
        )
    assert len(str(refusal.value)) <= 300


def test_a_plan_without_noise_is_of_infinite_mu_and_stays_under_largest_layer(tmp_path):
    hospital = Hospital(tmp_path, settings={"largest_mu": 1})
    assert price(hospital).mu == math.inf
    assert "price     mu is infinite" in words(hospital)
    hospital.begin().ask(local_update, x=hospital.x, local=local())
    assert Account(Path(hospital.settings.log)).mu == math.inf


def test_a_field_that_leaves_beside_the_noise_makes_mu_infinite(tmp_path):
    hospital = Hospital(
        tmp_path, methods=[{"name": "ocs", "local": FEDAVG["local"]}], **HIDDEN
    )
    assert price(hospital).mu == math.inf
    assert (
        "and mu is infinite, since norms of ocs-0 tells something without noise"
        in words(hospital)
    )


@pytest.mark.promise("what was read is approved")
def test_the_words_say_how_many_noisy_numbers_their_mu_and_what_it_means(tmp_path):
    hospital = Hospital(tmp_path, **HIDDEN)
    told = price(hospital)
    said = words(hospital)
    assert f"price     {told.updates} updates (mu " in said
    assert f" and {told.numbers} losses, metrics and differences (mu " in said
    assert f"together mu {told.mu:.3g}" in said
    assert meaning(told.mu) in said
    assert "told so far, under all plans: mu 0;" in said


def test_the_log_has_mu_in_every_line_that_tells_and_a_run_never_exceeds_the_price(
    tmp_path,
):
    hospital = Hospital(tmp_path, rounds=2, deploy={"runs": 1}, **HIDDEN).begin()
    for number in (1, 2):
        hospital.ask(local_update, x=hospital.x + number, local=local(), round=number)
    for number in (0, 1, 2):
        for part in ("train", "test"):
            hospital.ask(
                evaluate, x=hospital.x, part=part, metrics=METRICS, round=number
            )
    lines = [
        entry
        for entry in entries(Path(hospital.settings.log))
        if entry.get("outcome") == "told"
    ]
    assert all("mu" in entry and "numbers" in entry for entry in lines)
    account = Account(Path(hospital.settings.log))
    assert account.mu == pytest.approx(math.sqrt(2 * 2.0**2 + 3 * 3))
    assert account.mu <= price(hospital).mu


@pytest.mark.promise("one budget")
def test_the_allow_list_follows_the_rounds_and_parts_that_are_evaluated(tmp_path):
    run = {"evaluate": {"every": 2, "parts": ["test"]}}
    hospital = Hospital(tmp_path, rounds=5, run=run).begin()
    for number, part in (
        (0, "test"),
        (2, "test"),
        (4, "test"),
        (5, "test"),
        (5, "train"),
    ):
        hospital.ask(evaluate, x=hospital.x, part=part, metrics=METRICS, round=number)
    asked = {"x": hospital.x, "metrics": METRICS}
    for number in (1, 3):
        refused(
            "has no metrics:evaluate in round",
            hospital.ask,
            evaluate,
            part="test",
            round=number,
            **asked,
        )
    refused(
        "evaluates train rows after the last round alone",
        hospital.ask,
        evaluate,
        part="train",
        round=2,
        **asked,
    )


@pytest.mark.parametrize(
    "name", ["fedavg", "meritfed", "qffl", "ifca", "dpfl", "fedfomo", "ditto", "local"]
)
def test_every_method_has_a_price_and_it_is_finite_exactly_where_nothing_is_exposed(
    tmp_path, name
):
    method = {"name": name, "local": FEDAVG["local"]}
    sites = {"deploy": {"sites": ["hungary", "a", "b", "c"]}}
    hospital = Hospital(tmp_path, methods=[method], **HIDDEN, **sites)
    assert math.isfinite(price(hospital).mu) is not bool(
        hospital.approved.pairs[f"{name}-0"].exposure
    )
