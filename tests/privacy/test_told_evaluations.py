"""`[privacy] tell`: losses and metrics of evaluations that are told behind noise, counted, and no use to who averages them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from attacks.hospital import Hospital
from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of, mu_of
from coterie.compute.metrics import evaluate
from coterie.config.privacy import Privacy
from coterie.sites import price
from coterie.sites.allowed import RefusedError
from coterie.sites.comparisons import paired_errors
from coterie.sites.ledger import Account, Place, Told, _Books
from coterie.sites.plan_words import in_words, model_of
from coterie.sites.secret_noise import SparingVeil
from privacy.presence import PLANNED, balanced_accuracy_bound, guesses
from privacy.test_private_plans import BOUNDS, DELTA, GIVES

TELL = ["loss", "accuracy", "auc"]
ROUNDS = 4
TOLD = {
    "methods": [{"name": "local"}, {"name": "fedavg", "local": {"steps": 1}}],
    "privacy": {"epsilon": 1.0, "delta": DELTA, "tell": TELL},
    "data": {"bounds": BOUNDS},
    "rounds": ROUNDS,
    "run": {"evaluate": ROUNDS},
    "deploy": {"runs": 1},
}
ASKED = ("accuracy", "auc")


def hospital_of(tmp_path, **changed):
    (tmp_path / "hospital").mkdir(exist_ok=True)
    return Hospital(tmp_path / "hospital", GIVES, **{**TOLD, **changed})


def multiplier_of(hospital):
    return hospital.approved.pairs["fedavg-0"].method.local.private.noise_multiplier


@pytest.mark.promise("noise by row")
def test_steps_and_told_numbers_together_cost_the_epsilon_of_the_plan(tmp_path):
    hospital = hospital_of(tmp_path)
    told = 2 * len(TELL)  # before the first round, and after the last
    events = ROUNDS + told
    assert multiplier_of(hospital) == pytest.approx(
        math.sqrt(events) / mu_of(1.0, DELTA)
    )
    cost = hospital.approved.price(
        model_of(hospital.approved, hospital.settings, "hungary")
    )
    assert cost.numbers == told
    assert epsilon_of(cost.mu, DELTA) == pytest.approx(1.0)
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    assert "loss and accuracy and auc of an evaluation" in words
    assert "it suffices" in words


@pytest.mark.promise("noise by row")
def test_what_tell_names_is_told_behind_noise_and_charged_once(tmp_path):
    hospital = hospital_of(tmp_path, privacy={**TOLD["privacy"], "tell": ["loss"]})
    hospital.begin()

    def ask(part, round=ROUNDS):
        return hospital.ask(
            evaluate, x=hospital.x, part=part, metrics=ASKED, round=round
        )

    first = ask("test")
    account = Account(Path(hospital.settings.log))
    assert account.mu == pytest.approx(1 / multiplier_of(hospital))
    assert float(first["loss"]) > 0
    assert not first["defined"].any()
    assert torch.equal(ask("test")["loss"], first["loss"])
    # A row lies in one part of a split, so the loss of another part costs it nothing more.
    ask("train")
    assert Account(Path(hospital.settings.log)).mu == account.mu


def test_noise_is_as_large_as_the_reach_of_a_row_says_and_lies_on_a_grid():
    multiplier, rows = 7.0, 200
    told = [
        SparingVeil(bytes([n % 256, n // 256]), multiplier, ("loss",)).metric(
            "loss", 0.7, 5 / rows, torch.zeros(2)
        )
        for n in range(4000)
    ]
    sigma = multiplier * 5 / rows
    draws = torch.tensor(told, dtype=torch.float64)
    # Noisy losses below 0 are told as the grid's first step, so the upper half alone says the deviation.
    above = draws[draws > 0.7] - 0.7
    assert float(above.square().mean().sqrt()) == pytest.approx(sigma, rel=0.05)
    step = 2.0 ** (math.floor(math.log2(sigma)) - 10)
    on_grid = draws[draws > sigma / 512] / step
    assert torch.equal(on_grid, on_grid.round())
    assert float(draws.min()) > 0


@pytest.mark.promise("noise by row")
def test_of_training_alone_and_of_differences_nothing_is_told(tmp_path):
    hospital = hospital_of(tmp_path).begin(pair="local-0")
    reply = hospital.ask(
        evaluate, x=hospital.x, part="test", metrics=ASKED, round=ROUNDS
    )
    assert float(reply["loss"]) == 0
    assert not reply["defined"].any()
    with pytest.raises(RefusedError, match="coterie site verdict"):
        hospital.ask(paired_errors, method="fedavg", other="local")
    assert Account(Path(hospital.settings.log)).mu == 0


@pytest.mark.parametrize(
    ("tell", "cure"),
    [
        (["auc"], r"take tell = \['loss', 'auc'\]"),
        (["loss", "loss"], "name each once"),
        (["loss", "f1"], "loss, accuracy, auc"),
    ],
)
def test_what_cannot_be_told_is_refused(tell, cure):
    with pytest.raises(InputError, match=cure):
        Privacy(epsilon=1.0, tell=tuple(tell))


# ---- averaging evaluations (presence of a patient, by who knows all others)

PATIENTS, EPSILON, STRICT = 200, 2.0, 1 / 2000


@pytest.mark.in_turn
@pytest.mark.promise("an epsilon")
def test_averaging_evaluations_finds_no_patient_beyond_the_claim(tmp_path):
    """Any number of models is asked about, each another in its last bits; the account answers as many as its epsilon allows."""
    claim = 0.63  # Phi(mu / 2)
    right, answered = guesses(tmp_path, PATIENTS, EPSILON, STRICT)
    assert set(answered) == {PLANNED}
    assert balanced_accuracy_bound(right) <= claim


# ---- faults that the tests above would find


def test_a_loss_that_is_told_for_free_finds_the_patients(tmp_path, monkeypatch):
    monkeypatch.setattr(price, "squared_mu_of_number", lambda allowed: 0.0)
    right, _ = guesses(tmp_path, 60, EPSILON, STRICT)
    assert balanced_accuracy_bound(right) > 0.63


def answers_over_folds(log):
    """How many answers an account for one event gives to the trainings of three folds."""
    account, answered = Account(log), 0
    account.most_mu = mu_of(1.0, DELTA)
    for fold in range(3):
        place = Place("plan", f"fedavg-0-k{fold}", "m:t", 1)
        try:
            account.settle(place, {str(fold): "r"}, Told(1, account.most_mu**2))
            answered += 1
        except RefusedError:
            continue
    return answered


@pytest.mark.promise("an epsilon")
def test_a_fold_that_is_not_counted_would_tell_too_much(tmp_path, monkeypatch):
    assert answers_over_folds(tmp_path / "one.jsonl") == 1

    def largest(self, mu_squared):
        return max((sum(by.values()) for by in mu_squared.values()), default=0.0)

    monkeypatch.setattr(_Books, "_total", largest)
    assert answers_over_folds(tmp_path / "two.jsonl") == 3
