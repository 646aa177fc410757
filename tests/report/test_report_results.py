"""Run directories: whole, partial, broken."""

from __future__ import annotations

import json
import math
from pathlib import Path

import fake_run
import numpy as np
import pytest

from coterie.base.errors import InputError
from coterie.compute.outcomes import pair_influences
from coterie.report import figures, outcomes
from coterie.report.card import card
from coterie.report.outcomes import Outcomes
from coterie.report.results import Results
from coterie.report.scores import FILES
from coterie.report.words import tell


def test_what_a_run_holds(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    assert results.methods == ("local", "fedavg", "meritfed")
    assert (results.baseline, results.references, results.federated) == (
        "local",
        (),
        ("fedavg", "meritfed"),
    )
    assert results.seeds == (0, 1, 2, 3, 4)
    assert list(results.names.values()) == [
        "Cleveland",
        "Hungary",
        "Switzerland",
        "Long Beach",
    ]
    assert results.metrics == fake_run.METRICS
    assert results.title == "heart-disease"
    rows = json.loads((tmp_path / "summary.json").read_text())
    expected = [
        r["auc"]
        for r in rows
        if (r["method"], r["client"], r["split"]) == ("fedavg", "hungary", "test")
    ]
    np.testing.assert_array_equal(results.values("fedavg", "hungary", "auc"), expected)
    per_client = [results.values("fedavg", c, "loss") for c in results.clients]
    np.testing.assert_allclose(
        results.values("fedavg", None, "loss"), np.mean(per_client, axis=0)
    )
    assert results.cost("meritfed") / results.cost("fedavg") == pytest.approx(2.31)
    assert results.cost_unit == "fedavg"
    np.testing.assert_allclose(results.seconds["local"], [1.2] * 5)
    np.testing.assert_allclose(results.own_seconds["local"], [0.3] * 5)


def test_order_of_methods_is_that_of_the_experiment(tmp_path: Path) -> None:
    fake_run.heart(tmp_path)
    rows = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps(rows[::-1]))
    assert Results.load(tmp_path).methods == ("local", "fedavg", "meritfed")


def test_partial_runs_are_paired_on_common_seeds(tmp_path: Path) -> None:
    results = Results.load(
        fake_run.heart(tmp_path, skip=[("fedavg", 1), ("local", 3), ("fedavg", 4)])
    )
    assert results.seed_count("fedavg") == 3
    assert np.isnan(results.values("fedavg", "hungary", "loss")).tolist() == [
        False,
        True,
        False,
        False,
        True,
    ]
    got = results.difference("fedavg", "local", "hungary", "loss")
    gaps = (
        results.values("fedavg", "hungary", "loss")
        - results.values("local", "hungary", "loss")
    )[[0, 2]]
    assert got is not None
    assert got.mean == pytest.approx(gaps.mean())
    assert results.common("fedavg", "local", "hungary", "loss")[0] == pytest.approx(
        results.values("fedavg", "hungary", "loss")[[0, 2]].mean()
    )


def test_the_mean_needs_every_client(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    rows = json.loads((folder / "summary.json").read_text())
    kept = [
        r for r in rows if r["method"] != "meritfed" or r["client"] == "switzerland"
    ]
    (folder / "summary.json").write_text(json.dumps(kept))
    results = Results.load(folder)
    assert np.isnan(results.values("meritfed", None, "loss")).all()
    assert np.isfinite(results.values("local", None, "loss")).all()


def test_weights_and_curves(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    weights = results.weights["meritfed"]
    assert weights.targets == weights.clients == results.clients
    assert results.weights["fedavg"].targets == ("*",)
    assert weights.rounds.tolist() == list(range(5, 61, 5))
    np.testing.assert_allclose(weights.values.sum(axis=2), 1, atol=1e-5)
    wanted = np.array([fake_run.WEIGHTS[c] for c in results.clients])
    np.testing.assert_allclose(weights.late(), wanted, atol=0.03)
    curve = results.curve("fedavg", "switzerland", "loss")
    assert curve is not None
    assert curve.values.shape == (5, 13)
    assert results.curve("fedavg", "switzerland", "nonsense") is None


def test_the_mean_curve_says_over_how_many_clients_it_is(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    assert (
        figures.data(Results.load(folder))["curves"]["loss"][0]["client"]
        == "mean of all"
    )
    lines = (folder / "history.csv").read_text().splitlines(keepends=True)
    (folder / "history.csv").write_text(
        "".join(x for x in lines if "hungary" in x or x == lines[0])
    )
    assert (
        figures.data(Results.load(folder))["curves"]["loss"][0]["client"] == "mean of 1"
    )


def test_absent_clients_of_a_round_have_weight_0(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    lines = [
        "method,seed,fold,round,target,client,weight",
        "fedavg,0,,5,*,hungary,1",
        "fedavg,1,,5,*,cleveland,1",
    ]
    (folder / "weights.csv").write_text("\n".join(lines))
    assert Results.load(folder).weights["fedavg"].values[0, 0].tolist() == [
        0.5,
        0.5,
        0,
        0,
    ]


def read_all(folder: Path) -> tuple[object, ...]:
    results = Results.load(folder)
    return results.history, results.weights, results.seconds


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_broken_file_is_named(tmp_path: Path, name: str) -> None:
    folder = fake_run.heart(tmp_path)
    (folder / name).write_text(
        "method,seed,fold,round\nfedavg,x,,1\n" if name.endswith("csv") else "{"
    )
    with pytest.raises(InputError, match=f"{name}.*(repeat the run|not valid TOML)"):
        read_all(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"lacks {name}.*--resume"):
        Results.load(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "no results yet"),
        ("{}", "not a list"),
        ('[{"method": "a", "seed": "0"}]', "row 0: seed, fold, client, split"),
    ],
)
def test_a_summary_that_makes_no_sense(
    tmp_path: Path, content: str, words: str
) -> None:
    folder = fake_run.heart(tmp_path)
    (folder / "summary.json").write_text(content)
    with pytest.raises(InputError, match=words):
        Results.load(folder)


def test_unknown_names_get_the_nearest_spelling(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    with pytest.raises(InputError, match="did you mean 'fedavg'"):
        results.values("fedagv", "hungary", "loss")
    with pytest.raises(InputError, match="did you mean 'hungary'"):
        results.values("fedavg", "hungry", "loss")
    with pytest.raises(InputError, match="no run directory"):
        Results.load(tmp_path / "nowhere")


def test_nan_in_the_summary_is_undefined(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    text = (folder / "summary.json").read_text()
    rows = json.loads(text)
    for row in rows:
        row["auc"] = math.nan
    (folder / "summary.json").write_text(json.dumps(rows))
    assert "auc" not in Results.load(folder).metrics


def test_methods_that_coincide_in_every_digit_are_shown_once_and_said(
    tmp_path: Path,
) -> None:
    folder = fake_run.heart(tmp_path)
    rows = json.loads((folder / "summary.json").read_text())
    twins = [
        {**row, "method": "fedprox", "algorithm": "fedprox"}
        for row in rows
        if row["method"] == "fedavg"
    ]
    (folder / "summary.json").write_text(json.dumps([*rows, *twins]))
    results = Results.load(folder)
    assert results.methods == ("local", "fedavg", "meritfed")
    assert results.coincide == {"fedavg": ("fedprox",)}
    assert (
        "fedprox gives the same numbers as fedavg in every digit; shown once."
        in tell(results).caveats
    )
    twins[0]["loss"] += 1e-9
    (folder / "summary.json").write_text(json.dumps([*rows, *twins]))
    assert "fedprox" in Results.load(folder).methods


def test_what_is_predicted_comes_from_the_recipe(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    assert Results.load(folder).predicts == ""
    label = {
        "column": "num",
        "above": 0,
        "classes": ["healthy", "ill"],
        "meaning": "narrowed artery",
    }
    (folder / "preprocess.json").write_text(json.dumps({"0": {"label": label}}))
    assert Results.load(folder).predicts == "num > 0 (narrowed artery), 1 = ill"
    (folder / "preprocess.json").write_text(
        json.dumps({"0": {"label": {"column": "price", "classes": []}}})
    )
    assert Results.load(folder).predicts == "price, a number"


@pytest.mark.parametrize("said", [0, 1, "half", True, -0.2])
def test_a_threshold_is_a_risk_or_validation(tmp_path: Path, said: object) -> None:
    folder = fake_run.heart(tmp_path)
    assert Results.load(folder).threshold == 0.5
    assert Results.load(folder, "validation").threshold == "validation"
    assert Results.load(folder, "0.25").threshold == 0.25
    with pytest.raises(
        InputError,
        match=r"threshold is .*; give a risk between 0 and 1, say 0\.3, or prevalence, or validation",
    ):
        Results.load(folder, said)  # type: ignore[arg-type]


def test_no_interval_leaves_what_a_metric_can_be(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path, noise=0.2))
    for metric, bounds in {
        "accuracy": (0, 1),
        "auc": (0, 1),
        "loss": (0, np.inf),
    }.items():
        score = results.comparisons.score("local", "switzerland", metric)
        free = results.comparisons.score_of(
            "switzerland", "own", results.values("local", "switzerland", metric), []
        )
        assert score is not None
        assert free is not None
        assert (score.low, score.high) == tuple(np.clip((free.low, free.high), *bounds))
        assert (score.low, score.high) != (free.low, free.high)


def test_a_card_says_of_whom_too_few_rows_tell_whether_the_model_beats_a_constant(
    tmp_path: Path,
) -> None:
    few = {**fake_run.N_TEST, "switzerland": 12}
    results = Results.load(fake_run.heart(tmp_path, n_test=few, majority=0.5))
    text = card(
        results, "hungary", "fedavg", dict.fromkeys(fake_run.HEART, 100), rounds=60
    )
    assert (
        "Shown to be better than a constant prediction at every client with at least 30 test rows."
        in text
    )
    assert (
        "Too few rows to tell whether it is better than a constant prediction at Switzerland: "
        in text
    )
    all_of_them = Results.load(fake_run.heart(tmp_path / "all", majority=0.5))
    text = card(
        all_of_them, "hungary", "fedavg", dict.fromkeys(fake_run.HEART, 100), rounds=60
    )
    assert "Shown to be better than a constant prediction at every client." in text
    assert "Too few rows" not in text


def test_the_card_of_a_client_with_a_model_of_its_own_says_nothing_of_other_sites(
    tmp_path: Path,
) -> None:
    results = Results.load(
        fake_run.heart(
            tmp_path, n_test={**fake_run.N_TEST, "switzerland": 12}, majority=0.5
        )
    )
    text = card(
        results, "hungary", "local", dict.fromkeys(fake_run.HEART, 100), rounds=60
    )
    assert "Shown to be better than a constant prediction at Hungary." in text
    assert "Switzerland" not in text
    assert "Long Beach" not in text


def test_the_card_of_a_tuned_model_says_which_rows_it_was_not_trained_on(
    tmp_path: Path,
) -> None:
    truth = dict.fromkeys(("local", "fedavg", "ours"), fake_run.STORY["fedavg"])
    results = Results.load(fake_run.write(tmp_path, truth, tuned={"ours": "fedavg"}))
    cards = [
        card(results, "hungary", m, dict.fromkeys(fake_run.HEART, 100), rounds=60)
        for m in ("fedavg", "ours")
    ]
    kept = "on all rows of all clients but those that choose how the model is tuned:"
    assert [kept in text for text in cards] == [False, True]
    assert all("trained on all rows," not in text for text in cards)


def test_the_rows_of_a_client_are_compared_once_for_a_whole_report(
    tmp_path: Path, monkeypatch
) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    asked: list[tuple[str, ...]] = []
    read = Outcomes.rows

    def rows(self, method, client, seeds=()):
        return {
            seed: found._replace(threshold=hash((method, client)))
            for seed, found in read(self, method, client, seeds).items()
        }

    def pairs(mine, theirs, metric, *, instead=""):
        of = [
            str(next(iter(side.values())).threshold) for side in (mine, theirs) if side
        ]
        asked.append((*of, metric, instead))
        return pair_influences(mine, theirs, metric, instead=instead)

    monkeypatch.setattr(Outcomes, "rows", rows)
    monkeypatch.setattr(outcomes, "pair_influences", pairs)
    tell(results)
    figures.data(results)
    assert len({len(places) for places in asked}) == 1
    assert len(asked) == len({*asked}) > 10
