"""Verdicts of a run whose rows are elsewhere: those of one machine, from nothing but standard errors and p values."""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hospital import FEDAVG, Hospital
from safetensors.torch import load_file
from test_a_site_obeys_its_plan import refused
from three_sites import ThreeSites

import coterie as ct
from coterie.algorithms.local import model_alone, train_alone
from coterie.cli.main import main
from coterie.compute.metrics import baselines, evaluate
from coterie.compute.outcomes import BOOSTED
from coterie.contract.encoding import decode
from coterie.data.parts import with_fold
from coterie.data.sets.heart_disease import FOLDER, OPTIONS
from coterie.filters.clip import Clip
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.report.card import card
from coterie.report.results import Results
from coterie.report.verdicts import verdict
from coterie.report.words import badge, headline
from coterie.run.files import PAIRED
from coterie.samplers.weighted import class_counts
from coterie.sites.backend import Sites
from coterie.sites.comparisons import comparisons, note_outcomes, paired_errors
from coterie.sites.home_verdict import verdict_lines
from coterie.sites.log import entries
from coterie.sites.plan_words import in_words
from coterie.sites.rows import SiteRows
from coterie.sites.secret_noise import key_file
from coterie.sites.server import Remote
from coterie.study.compare import Comparison
from coterie.study.sweep import run_experiment

METHODS = (
    {"name": "local", "local": {"lr": 0.01}, "exact": False},
    {"name": "fedavg"},
    {"name": "fedavg", "label": "slow", "local": {"lr": 0.012}},
)
TWO = ("cleveland", "hungary")
SAME = 0.1  # 1,000 resamples: an error is known to 2.2 % (one standard deviation)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same experiment on one machine and at two sites that share one key, so that the test is the same every time."""
    return here_and_there(tmp_path_factory.mktemp("verdicts"), seeds=3)


@pytest.fixture(scope="module")
def in_folds(tmp_path_factory):
    """The same with every row tested, in folds."""
    return here_and_there(tmp_path_factory.mktemp("folds"), seeds=2, split={"folds": 3})


def here_and_there(folder, **plan):
    town = ThreeSites(folder / "town", METHODS, TWO, rounds=1, **plan)
    for site in town.sites.values():
        key_file(Path(site.settings.log)).write_bytes(b"0" * 32)
    here, there = folder / "here", folder / "there"
    (folder / "files").mkdir()
    for name in TWO:
        (folder / "files" / f"{name}.csv").write_bytes(
            (FOLDER / f"{name}.csv").read_bytes()
        )
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in OPTIONS.items()}
    data = {"folder": str(folder / "files"), **options}
    run = town.experiment.run
    if "split" not in plan:
        # Without folds sites compare with the linear model alone.
        run = replace(run, rivals=("linear",))
    run_experiment(replace(town.experiment, data=data, run=run), here)
    run_experiment(
        town.experiment, there, backend=Sites(Remote(town, "run", plan=town.plan))
    )
    return Results.load(here), Results.load(there)


def test_a_verdict_at_sites_is_that_of_one_machine(runs):
    here, there = runs
    strengths = {
        d.strength for c in here.clients for d in here.comparisons.family(c).values()
    }
    assert {"shown", "open"} <= strengths
    for client in here.clients:
        mine, theirs = here.comparisons.family(client), there.comparisons.family(client)
        assert mine.keys() == theirs.keys()
        for key, difference in mine.items():
            assert theirs[key].mean == difference.mean
            assert theirs[key].strength == difference.strength, (client, key)
            assert theirs[key].half_width == pytest.approx(
                difference.half_width, rel=SAME
            )
        one, two = verdict(there, client), verdict(here, client)
        assert (one.kind, one.method) == (two.kind, two.method)
        assert one.probability == pytest.approx(two.probability, abs=0.02)
    assert (
        there.comparisons.family(None)["fedavg", "loss"].strength
        == here.comparisons.family(None)["fedavg", "loss"].strength
    )
    assert not there.outcomes_missing


@pytest.mark.in_turn
def test_a_verdict_in_folds_is_that_of_one_machine(in_folds):
    here, there = in_folds
    for client in here.clients:
        assert there.comparisons.rarest(client) == here.comparisons.rarest(client)
        assert there.size(client) == here.size(client)
        for metric in ("auc", "loss"):
            for method in here.federated:
                mine, theirs = (
                    r.comparisons.gain(method, client, metric) for r in (here, there)
                )
                assert theirs.estimate == pytest.approx(mine.estimate, abs=1e-6)
                assert theirs.error == pytest.approx(mine.error, rel=SAME)
                assert theirs.rows == mine.rows
        for method in ("local", "fedavg"):
            assert there.mean(method, client, "loss") == pytest.approx(
                here.mean(method, client, "loss"), abs=1e-6
            )
        one, two = verdict(there, client), verdict(here, client)
        assert (one.kind, one.method) == (two.kind, two.method)
        assert one.probability == pytest.approx(two.probability, abs=0.02)
        assert one.gain == pytest.approx(two.gain, abs=1e-3)
        assert one.skill == two.skill
    assert there.comparisons.folds
    assert not there.outcomes_missing


@pytest.mark.promise("verdicts without rows")
def test_of_a_fold_alone_nothing_is_told(in_folds):
    _, there = in_folds
    rows = json.loads((there.folder / "summary.json").read_text())
    assert {row["fold"] for row in rows} == {"0", "1", "2", "all"}
    assert "test" not in {row["split"] for row in rows}
    assert not {
        line.split(",")[5]
        for line in (there.folder / "history.csv").read_text().splitlines()
    } & {"test"}
    assert not (there.folder / "outcomes").exists()
    told = json.loads((there.folder / PAIRED).read_text())
    assert len(
        {(row["client"], row["method"], row["other"], row["metric"]) for row in told}
    ) == len(told)


@pytest.mark.promise("verdicts without rows")
def test_sites_tell_an_error_and_a_p_value_of_differences_and_nothing_per_row(runs):
    here, there = runs
    told = json.loads((there.folder / PAIRED).read_text())
    names = (
        "client",
        "method",
        "other",
        "tested",
        "rarest",
        "metric",
        "error",
        "p",
        "gap",
        "value",
    )
    assert {tuple(row) for row in told} == {names}
    compared = {(row["method"], row["other"]) for row in told}
    assert compared == {
        (m, o)
        for m in ("local", "fedavg", "slow")
        for o in ("local", "constant")
        if m != o
    }
    assert not (there.folder / "outcomes").exists()
    assert not (here.folder / PAIRED).exists()
    exact = here.comparisons.outcomes.error("fedavg", "local", "cleveland", "loss")
    row = next(
        r
        for r in told
        if (r["client"], r["other"], r["metric"]) == ("cleveland", "local", "loss")
    )
    assert row["error"] == pytest.approx(exact.error, rel=SAME)
    assert row["error"] != exact.error


# ---- the server asks for more


@pytest.fixture
def hospital(tmp_path):
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG])
    for label in ("local", "fedavg"):
        made.begin(pair=f"{label}-0")
        made.ask(note_outcomes, x=made.x + (label == "fedavg"), round=5)
    return made


def asked(hospital, method="fedavg", other="local"):
    return hospital.ask(paired_errors, method=method, other=other)


@pytest.mark.promise("verdicts without rows")
def test_the_same_question_has_the_same_answer_under_the_sites_key(hospital, tmp_path):
    first = asked(hospital)
    assert set(first) == {"error", "p", "gap", "value", "known", "tested", "rarest"}
    assert first["known"].tolist() == [
        [True, True, False, False, True, False]
    ]  # a classification has no squared error
    assert torch.equal(first["error"], asked(hospital)["error"])
    hospital.key_file.write_bytes(b"1" * 32)
    assert not torch.equal(first["error"], asked(hospital)["error"])


@pytest.mark.promise("verdicts without rows")
def test_a_run_has_one_model_of_each_method_and_seed_to_compare(hospital):
    hospital.ask(note_outcomes, x=hospital.x + 1, round=5)  # as after a resumed run
    refused(
        "another model of fedavg-0 was noted before",
        hospital.ask,
        note_outcomes,
        x=hospital.x + 2,
        round=5,
    )


@pytest.mark.promise("verdicts without rows")
def test_differences_beside_the_plans_are_refused(hospital):
    refused("does not compare these methods", asked, hospital, "local", "fedavg")
    refused("does not compare these methods", asked, hospital, "fedavg", "fedavg")
    refused(
        "does not compare these methods",
        hospital.ask,
        paired_errors,
        method="fedavg",
        other="local",
        seeds=1,
    )


def test_a_difference_that_rests_on_few_rows_of_a_class_is_not_told(tmp_path):
    made = Hospital(tmp_path, {"minimum_cell": 10}, methods=[{"name": "local"}, FEDAVG])
    for label in ("local", "fedavg"):
        made.begin(pair=f"{label}-0")
        made.rows.shard.clients.test.labels[:] = 0
        made.rows.shard.clients.test.labels[:5] = 1
        made.ask(note_outcomes, x=made.x, round=5)
    assert asked(made)["known"].tolist() == [[False, True, False, False, True, False]]
    assert asked(made)["rarest"].tolist() == [0]
    assert asked(made)["tested"].tolist() == [len(made.rows.shard.clients.test.labels)]
    assert not asked(made, other="constant")["known"].any()


def test_a_regression_has_a_difference_in_rmse_and_none_in_auc(tmp_path):
    data = {"name": None, "folder": "x", "label": "age", "task": "regression"}
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG], data=data)
    for label in ("local", "fedavg"):
        made.begin(pair=f"{label}-0")
        made.ask(note_outcomes, x=made.x + (label == "fedavg"), round=5)
    assert asked(made)["known"].tolist() == [[False, True, True, True, False, False]]
    assert asked(made)["error"][0, 2] > asked(made)["error"][0, 1] / 10  # in years


FOLDS = {"split": {"folds": 3}}


def test_a_plan_with_folds_has_a_training_for_each_fold_and_one_on_all_rows(tmp_path):
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG], seeds=2, **FOLDS)
    turns = [f"{seed}-k{fold}" for seed in (0, 1) for fold in (0, 1, 2)] + ["0-kall"]
    assert [*made.approved.pairs] == [
        f"{label}-{turn}" for label in ("local", "fedavg") for turn in turns
    ]
    words = "\n".join(in_words(made.approved, made.settings, "hungary"))
    assert "dealt into 3 folds, 2 times: 7 trainings of each method" in words
    (alone := tmp_path / "single").mkdir()
    single = Hospital(alone, methods=[{"name": "local"}, FEDAVG], seeds=1)
    budget, budget_of_one = (
        int(
            re.search(
                r"budget +(\d+) models",
                "\n".join(in_words(h.approved, h.settings, "hungary")),
            )[1]
        )
        for h in (made, single)
    )
    assert (
        5 * budget_of_one < budget < 7 * budget_of_one
    )  # no model of all rows is noted, and no test rows are asked of


@pytest.mark.promise("verdicts without rows")
def test_the_rows_of_a_fold_are_asked_of_by_nobody(tmp_path):
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG], **FOLDS)
    made.begin(pair="fedavg-0-k1")
    metrics = ("accuracy", "auc")
    made.ask(evaluate, x=made.x, part="train", metrics=metrics)
    refused(
        "does not allow this 'part'",
        made.ask,
        evaluate,
        x=made.x,
        part="test",
        metrics=metrics,
    )
    refused("does not allow this 'part'", made.ask, baselines, part="test", round=5)
    assert made.rows.shard.clients.sizes("test") == {"hungary": 98}
    made.begin(pair="fedavg-0-kall")
    refused("does not ask", made.ask, note_outcomes, x=made.x, round=5)
    refused("no such method and seed", made.begin, pair="fedavg-0")
    refused("no such method and seed", made.begin, pair="fedavg-0-k3")


@pytest.mark.parametrize("fold", ["1", "all"])
def test_a_site_solves_its_own_model_as_one_machine_does(tmp_path, fold):
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG], **FOLDS)
    made.begin(pair=f"local-0-k{fold}")
    planned = made.rows.approved.plan.experiment
    method = planned.build_method(planned.methods[0])
    told = made.ask(train_alone, x=made.x, local=method.local, exact=True)
    assert {**told} == {"solved": torch.tensor([True])}
    assert not made.ask(model_alone, x=made.x)  # it stays
    kept = made.rows.shard.memory.save()
    whole = made.rows.clients
    view = with_fold(whole, 3, None if fold == "all" else int(fold), 0)
    here = ct.fit(method, view, made.rows.shard.workspace.model, rounds=1)
    (values,) = (v for k, v in kept.items() if v.numel() == len(made.x))
    assert torch.equal(values.flatten(), here.models["hungary"])


def test_the_classes_of_a_folds_rows_are_not_told_by_subtraction(tmp_path):
    def told(minimum, fold):
        (folder := tmp_path / f"{minimum}-{fold}").mkdir()
        made = Hospital(folder, {"minimum_cell": minimum}, methods=[FEDAVG], **FOLDS)
        made.begin(pair=f"fedavg-0-k{fold}")
        return made.ask(baselines, part="train")["majority_loss"].tolist()

    # 106 of 294 patients are cases, and so about 35 of those of a fold.
    assert told(20, 1) == told(1, 1) != [0.0]
    assert told(60, 1) == [0.0]
    assert told(60, "all") == told(1, "all") != [0.0]


def test_classes_are_not_counted_where_a_fold_tests_few_of_one(tmp_path):
    method = {"name": "pj-is", "local": FEDAVG["local"]}
    made = Hospital(tmp_path, {"minimum_cell": 60}, methods=[method], **FOLDS)
    made.begin(pair="pj-is-0-k1")
    refused("give the plan fewer folds", made.ask, class_counts)
    made.begin(pair="pj-is-0-kall")
    assert made.ask(class_counts)["counts"].tolist() == [[188, 106]]


def test_a_fold_of_too_few_rows_is_refused(tmp_path):
    made = Hospital(
        tmp_path, {"minimum_batch": 8}, methods=[FEDAVG], split={"folds": 50}
    )
    refused("a fold tests fewer than the 8 rows", made.begin, pair="fedavg-0-k0")
    made = Hospital(
        tmp_path, {"minimum_rows": 200}, methods=[FEDAVG], split={"folds": 2}
    )
    refused(
        "a fold leaves fewer than the 200 training rows", made.begin, pair="fedavg-0-k0"
    )


def test_a_difference_is_told_of_all_folds_or_not_at_all(tmp_path):
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG], **FOLDS)
    for fold in (0, 1, 2):
        assert not asked(made.begin(pair=f"fedavg-0-k{fold}"), other="constant")[
            "known"
        ].any()
        made.ask(note_outcomes, x=made.x, round=5)
    told = asked(made, other="constant")
    assert told["known"].tolist() == [[False, True, False, False, False, False]]
    assert told["tested"].tolist() == [294]


def test_a_difference_is_told_of_all_seeds_or_not_at_all(tmp_path):
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG], seeds=2)
    made.begin(pair="fedavg-0")
    made.ask(note_outcomes, x=made.x, round=5)
    assert not asked(made, other="constant")["known"].any()


# ---- behind secret noise

HIDDEN = {
    "filters": [
        {"name": "clip", "bound": 1.0},
        {"name": "gaussian-noise", "sigma": 0.01, "secret": True},
    ]
}
PAIR = [{"name": "local"}, FEDAVG]


def told_of(folder, steepness, **plan):
    """What a site tells of two models that are steep in the first feature."""
    folder.mkdir()
    made = Hospital(folder, methods=PAIR, **plan)
    for label, first in (("local", -steepness), ("fedavg", steepness)):
        made.begin(pair=f"{label}-0")
        made.x[0] = first
        made.ask(note_outcomes, x=made.x, round=5)
    return made, asked(made)


@pytest.mark.promise("verdicts without rows")
def test_differences_are_behind_noise_that_their_error_covers(tmp_path):
    """As it was: gap and value left exact beside noisy updates, and the error left out the noise of evaluations."""
    _, exact = told_of(tmp_path / "exact", 0.5)
    site, noisy = told_of(tmp_path / "noisy", 0.5, **HIDDEN)
    tested = site.rows.shard.clients.test
    reach = {
        0: 1 / int(tested.labels.unique(return_counts=True)[1].min()),
        1: 5 / len(tested.labels),
    }  # an AUC, a loss
    assert noisy["known"].tolist() == [[True, True, False, False, True, False]]
    for metric, step in reach.items():
        for field in ("gap", "value"):
            assert (
                0
                < abs(float(noisy[field][0, metric] - exact[field][0, metric]))
                < 6 * step
            )
        assert (
            float(noisy["error"][0, metric])
            >= (float(exact["error"][0, metric]) ** 2 * 0.8 + 2 * step**2) ** 0.5
        )
    assert all(
        torch.equal(noisy[field], asked(site)[field]) for field in noisy
    )  # the same question, the same noise
    site.key_file.write_bytes(b"1" * 32)
    assert not torch.equal(noisy["value"], asked(site)["value"])


@pytest.mark.promise("verdicts without rows")
def test_one_row_moves_a_told_loss_by_no_more_than_its_noise(tmp_path):
    """A model that is steep has one row's value in the last digits of its mean loss, which left without bound and exact."""
    _, exact = told_of(tmp_path / "exact", 1e4)
    site, noisy = told_of(tmp_path / "noisy", 1e4, **HIDDEN)
    assert float(exact["value"][0, 1]) > 1000
    assert float(noisy["value"][0, 1]) < 5 + 5 * 5 / len(
        site.rows.shard.clients.test.labels
    )


@pytest.mark.promise("verdicts without rows")
def test_a_comparison_of_other_models_is_counted_in_whichever_run(tmp_path):
    """As it was: another run's models, which another name of a run holds, were asked of for nothing."""
    made = Hospital(tmp_path, methods=PAIR)
    for made.run in ("one", "two"):
        for label in ("local", "fedavg"):
            made.begin(pair=f"{label}-0")
            made.ask(note_outcomes, x=made.x + (made.run == "two"), round=5)
        assert asked(made, other="constant")["known"].any()
        spent = [
            entry
            for entry in entries(Path(made.settings.log))
            if entry.get("outcome") == "reserved"
        ]
        assert spent[-1]["what"] == paired_errors.name
    assert sum(entry["what"] == paired_errors.name for entry in spent) == 2
    made.run, before = "one", len(spent)
    asked(made, other="constant")
    assert (
        sum(
            entry.get("outcome") == "reserved"
            for entry in entries(Path(made.settings.log))
        )
        == before
    )


def test_the_words_say_whether_differences_are_behind_noise(tmp_path):
    for name, plan, said in (
        ("exact", {}, "as they are"),
        ("noisy", HIDDEN, "behind noise as large as what one row"),
    ):
        (tmp_path / name).mkdir()
        made = Hospital(tmp_path / name, methods=PAIR, **plan)
        lines = list(in_words(made.approved, made.settings, "hungary"))
        assert all(
            said in next(line for line in lines if line.startswith(start))
            for start in ("each time", "at the end of")
        )


def spoken(text):
    """Words alone: no markup, no breaks of lines, and of hard blanks ordinary ones."""
    return " ".join(
        html.unescape(re.sub(r"<[^>]+>", " ", text))
        .replace("\N{NO-BREAK SPACE}", " ")
        .split()
    )


@pytest.mark.in_turn
def test_terminal_report_json_python_card_and_sites_say_the_same_words(
    in_folds, capsys
):
    """In all six places a client reads one sentence; at sites its numbers may differ by the error of the resampling."""
    for results in in_folds:
        answers = {c: verdict(results, c) for c in results.clients}
        assert main(["report", str(results.folder)]) == 0
        terminal = spoken(capsys.readouterr().out)
        assert main(["report", str(results.folder), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["verdicts"]
        page = spoken((results.folder / "report.html").read_text(encoding="utf-8"))
        comparison = Comparison(results.folder)
        for client, answer in answers.items():
            assert spoken(headline(results, answer)) in terminal
            assert (told[client]["kind"], told[client]["reason"]) == (
                answer.kind,
                answer.reason,
            )
            assert f"{spoken(badge(results, answer))} " in page
            assert spoken(answer.reason) in page
            assert comparison.verdict(client) == answer
            method = answer.method or "local"
            made = card(
                results, client, method, dict.fromkeys(results.clients, 80), rounds=1
            )
            assert spoken(headline(results, answer)) in spoken(made)
    here, there = ({c: verdict(r, c) for c in r.clients} for r in in_folds)
    for client, answer in here.items():
        assert re.sub(r"[\d.,]+", "#", there[client].reason) == re.sub(
            r"[\d.,]+", "#", answer.reason
        )


def test_boosted_trees_of_a_site_are_those_of_one_machine(in_folds):
    """The gain over them is told as between methods; losses of rows stay at the site, and no tree does."""
    here, there = in_folds
    for client in here.clients:
        for method in ("local", *here.federated):
            mine, theirs = (
                r.comparisons.gain(method, client, "loss", BOOSTED)
                for r in (here, there)
            )
            assert theirs.estimate == pytest.approx(mine.estimate, abs=1e-6)
            assert theirs.error == pytest.approx(mine.error, rel=SAME)
        mine, theirs = (
            r.comparisons.outcomes.boosted_loss(client) for r in (here, there)
        )
        assert theirs == pytest.approx(mine, abs=1e-9)
    assert there.comparisons.outcomes.has_boosted
    (ours,) = (here.folder / "outcomes").glob("local-0-k0.safetensors")
    expected = load_file(ours)
    name = hashlib.blake2b(b"local-0-k0", digest_size=12).hexdigest()
    kept = list(there.folder.parent.rglob(f"{name}-outcomes.safetensors"))
    assert len(kept) == len(here.clients)
    ends = expected["offsets"].tolist()
    losses = [expected["boosted_loss"][a:b] for a, b in pairwise(ends)]
    for path in kept:
        found = decode(path.read_bytes())
        assert {*found} <= {*expected}
        assert any(torch.equal(found["boosted_loss"], own) for own in losses)


def outcomes_with_trees(hospital, seeds):
    """Let the hospital note its models of both folds of these seeds."""
    for seed, fold, method in itertools.product(seeds, (0, 1), ("local", "fedavg")):
        hospital.begin(pair=f"{method}-{seed}-k{fold}")
        x = hospital.x + (method == "fedavg") / 10
        hospital.ask(note_outcomes, x=x, seed=seed, round=1)


def test_trees_are_compared_once_all_their_repeats_are_noted(tmp_path):
    """Also by a site that was started anew since, and by its own person: a difference of fewer would be told a second time."""
    pytest.importorskip("sklearn")
    hospital = Hospital(
        tmp_path,
        methods=[{"name": "local"}, {"name": "fedavg"}],
        split={"folds": 2},
        seeds=2,
        rounds=1,
    )
    folder = hospital.folder / "kept"

    def told():
        """Against trees: what a new process of the site would tell, and its line for a person there."""
        rows = SiteRows("hungary", hospital.settings, folder, hospital.approved)
        kept = rows._run_notes({"run": hospital.run})
        lines = verdict_lines(hospital.approved, hospital.settings, folder)
        (line,) = (one for one in lines if "fedavg against boosted trees" in one)
        return kept.compare("fedavg", BOOSTED, "loss"), line

    outcomes_with_trees(hospital, (0,))
    paired, line = told()
    assert paired is None
    assert line.endswith("no model yet")
    outcomes_with_trees(hospital, (1,))
    paired, line = told()
    assert f"log-loss {paired.value:.3f} ({paired.gap:+.3f}" in line


def test_behind_secret_noise_no_trees_are_fitted(tmp_path):
    """It hides what one row adds to a sum, and one row moves the losses of all others under the trees."""
    town = ThreeSites(tmp_path, METHODS, TWO, rounds=1, split={"folds": 3})
    assert ("fedavg", BOOSTED) in comparisons(town.experiment)
    noise = GaussianNoise(sigma=1.0, secret=True)
    hidden = replace(town.experiment, filters=(Clip(), noise))
    assert not [pair for pair in comparisons(hidden) if BOOSTED in pair]
    linear = replace(town.experiment.run, rivals=("linear",))
    alone = replace(town.experiment, run=linear)
    assert not [pair for pair in comparisons(alone) if BOOSTED in pair]
