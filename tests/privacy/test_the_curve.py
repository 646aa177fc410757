"""`coterie compare DATA --privacy inf,4,1` and the [privacy] table: which noise is trained with, what is said, and what is refused."""

from __future__ import annotations

import json
import math

import pytest

from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of, noise_multiplier
from coterie.cli.main import main
from coterie.config.registry import METHODS
from coterie.report.privacy import TOO_FEW, Curve, Point
from coterie.run.experiment import Experiment
from coterie.run.private_methods import noise_by_row
from coterie.study.privacy_curve import epsilons_of

FAST = ("--folds", "0", "--seeds", "3", "--no-report", "--json")


@pytest.fixture
def coterie(monkeypatch, capsys, tmp_path):
    """The command in an empty folder; it returns the exit status and what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        status = main(words)
        printed = capsys.readouterr()
        return status, printed.out or printed.err

    return run


def test_each_method_is_trained_once_for_each_epsilon_and_alone_without_noise(coterie):
    status, printed = coterie(
        "compare",
        "heart-disease",
        *("--privacy", "2,inf", "--rounds", "6"),
        *("--set", "privacy.delta=1e-4", "--set", "run.rivals=linear"),
        *("--methods", "local,fedavg", *FAST, "--out", "run"),
    )
    assert status == 0, printed
    answer = json.loads(printed)
    assert {row["method"] for row in answer["rows"]} == {
        "local",
        "fedavg-epsinf",
        "fedavg-eps2",
    }
    points = [row for row in answer["privacy"] if row["client"] == "hungary"]
    assert [point["epsilon"] for point in points] == ["inf", 2.0]
    assert all(point["low"] < point["gain"] < point["high"] for point in points)
    # What was trained with stands in the run directory, so that the curve can be repeated.
    from coterie.run.tables import read_experiment

    methods = read_experiment("run/experiment.toml").methods
    private = [entry.local.get("private") for entry in methods]
    expected = noise_multiplier(2.0, 1e-4, 6)
    assert private[0] is None
    assert private[1] == {"noise_multiplier": 0.0, "clip": 1.0}
    assert private[2]["noise_multiplier"] == pytest.approx(expected)


@pytest.mark.in_turn
@pytest.mark.parametrize(("model", "pools"), [("logistic", True), ("mlp", False)])
def test_a_linear_model_is_pooled_at_home_too(coterie, model, pools):
    status, printed = coterie(
        "compare",
        "heart-disease",
        *("--privacy", "2", "--rounds", "2", "--model", model),
        *(*FAST, "--out", "run"),
    )
    assert status == 0, printed
    methods = {row["method"] for row in json.loads(printed)["privacy"]}
    for name in ("fedavg+pool", "fixed-effects", "fixed-effects+pool"):
        assert (name in methods) is pools
    assert "fedavg+bias" in methods


PLAIN = {
    "data": {"name": "heart-disease"},
    "methods": [{"name": "local"}, {"name": "fedavg"}],
    "run": {"rounds": 10, "seeds": 1},
    "local": {"steps": 3},
}


def experiment(**tables):
    return Experiment.from_tables({**PLAIN, **tables}, "plan.toml")


def test_the_table_hides_rows_of_every_method_but_references():
    made = experiment(privacy={"epsilon": 4.0, "delta": 1e-4, "clip": 0.5})
    alone, fedavg = map(made.build_method, made.methods)
    assert alone.local.private is None
    noise = fedavg.local.private
    assert noise.clip == 0.5
    assert epsilon_of(30**0.5 / noise.noise_multiplier, 1e-4) == pytest.approx(4.0)
    assert "epsilon 4 for fedavg, at delta 0.0001" in " ".join(made.notes)
    again = Experiment.from_tables(made.tables(), "again.toml")
    assert again.build_method(again.methods[1]).local == fedavg.local
    tables = made.tables()
    tables["privacy"]["epsilon"] = 8.0
    with pytest.raises(InputError, match="leave out one of them"):
        Experiment.from_tables(tables, "again.toml")


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("--privacy", "8,none"), "such as inf,8,4,2,1"),
        (("--privacy", "4", "--methods", "local,meritfed"), "take fedavg"),
        (("--privacy", "4", "--methods", "ocs"), "take fedavg"),
        (("--set", "privacy.delta=1e-6"), "such as epsilon = 2"),
        (("--set", "privacy.epsilon=1", "--set", "privacy.delta=.1"), "take less than"),
        (("--set", "privacy.epsilon=-1"), "a number > 0"),
        (("--privacy", "4", "--set", "privacy.delta=.1"), "take less than"),
    ],
)
def test_what_is_not_hidden_is_refused_with_a_cure(coterie, words, cure):
    methods = () if "--methods" in words else ("--methods", "local,fedavg")
    status, printed = coterie("compare", "heart-disease", *words, *methods, *FAST)
    assert status == 2
    assert cure in printed


@pytest.mark.parametrize("name", sorted({*METHODS} - {"local"}))
def test_a_method_hides_rows_or_is_refused_by_name(name):
    methods = [{"name": "local"}, {"name": name}]
    made, cure = None, "take fedavg"
    try:
        experiment(methods=methods)
    except InputError as error:
        # It needs settings, whether rows are hidden or not.
        cure = str(error)
    refusal = ""
    try:
        made = experiment(methods=methods, privacy={"epsilon": 4.0, "delta": 1e-4})
    except InputError as error:
        refusal = str(error)
    if made is None:
        assert repr(name) in refusal
        assert cure in refusal
    else:
        method = made.build_method(made.methods[1])
        assert method.is_reference or noise_by_row(method).noise_multiplier > 0


def curve(*words, epsilons=(math.inf, 8.0, 4.0, 1.0)):
    points = [
        Point(epsilon, word, 0.1, 0.0, 0.2)
        for epsilon, word in zip(epsilons, words, strict=True)
    ]
    return Curve("a", "fedavg", tuple(points))


def test_the_answer_is_the_last_epsilon_before_the_first_that_does_not_pay():
    yes, no = "probably join", "undecided"
    assert curve(yes, yes, "join", yes).answer == "pays down to epsilon 1"
    assert curve(yes, yes, no, yes).answer == "pays down to epsilon 8"
    assert curve(yes, no, no, no).answer == "pays, but at no tried epsilon"
    assert curve(no, no, yes, no).answer == "joining is not shown to pay"
    assert curve(*[TOO_FEW] * 4).answer == TOO_FEW
    finite = curve(no, yes, epsilons=(8.0, 1.0))
    assert finite.answer == "joining is not shown to pay at epsilon 8"


def test_epsilons_are_read_from_the_largest():
    assert epsilons_of("1, inf,8") == (math.inf, 8.0, 1.0)
