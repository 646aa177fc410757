"""Attacks and personalisation on the command line, in TOML files, in run directories and in what is printed."""

from __future__ import annotations

import json
import shutil
import tomllib

import pytest
from commands import ROOT, contents

from coterie.base.errors import InputError
from coterie.config.registry import ATTACKS
from coterie.report.results import Results
from coterie.run.experiment import Experiment
from coterie.run.tables import preset
from coterie.study.sweep import run_experiment

FAST = ("--rounds", "3", "--seeds", "1", "--no-report", "--set", "run.evaluate=3")
FORMS = ("local", "fedavg", "fedavg+bias", "meritfed", "meritfed+bias")
TUNE = [
    word
    for label in FORMS
    if "+" in label
    for key, value in (("steps", "[0, 20]"), ("lr", "[1.0]"))
    for word in ("--set", f"{label}.personalise.{key}={value}")
]
HEART = ("compare", "heart-disease")


def done(ended):
    assert ended.status == 0, ended.err
    return ended


def tables(run):
    return tomllib.loads((run / "experiment.toml").read_text())


def rows(run):
    return json.loads((run / "summary.json").read_text())


@pytest.fixture(scope="module")
def tuned(driver, tmp_path_factory):
    """A run with personalisation, and what it printed."""
    folder = tmp_path_factory.mktemp("tuned")
    ended = done(
        driver(
            folder,
            *HEART,
            "--methods",
            ",".join(FORMS),
            *FAST,
            *TUNE,
            "--tables",
            "--out",
            "run",
        )
    )
    return folder / "run", ended.out


# ---- personalisation


def test_a_tuned_method_stands_beside_the_untuned_everywhere(tuned):
    run, printed = tuned
    assert list(Results.load(run).methods) == list(FORMS)
    assert all(f"\n{label} " in printed for label in FORMS)
    found = {(r["method"], r["client"], r["seed"], r["split"]): r for r in rows(run)}
    for (method, client, seed, split), row in found.items():
        if "+" in method and split == "test":
            untuned = found[method.removesuffix("+bias"), client, seed, split]
            assert row["algorithm"] == untuned["algorithm"]
            assert row["n"] == untuned["n"]
            assert (
                row["n_train"] < untuned["n_train"]
            )  # it keeps its validation rows, and only it does
            assert row["own_model"]
    assert any(
        r["loss"] < found["fedavg", "switzerland", r["seed"], "test"]["loss"] - 0.05
        for k, r in found.items()
        if k[0] == "fedavg+bias"
    )
    assert (run / "models" / "fedavg+bias-0-switzerland.safetensors").is_file()
    text = (run / "history.csv").read_text()
    assert "fedavg+bias,0,,3,switzerland,,tuning_steps,20.0" in text
    assert {
        line.split(",")[3]
        for line in text.splitlines()
        if line.startswith("fedavg+bias,")
    } == {"3"}
    weights = (run / "weights.csv").read_text().splitlines()
    assert len([w for w in weights if w.startswith("meritfed+bias,")]) == len(
        [w for w in weights if w.startswith("meritfed,")]
    )


def test_only_the_tuned_entry_is_trained_without_validation_rows(
    driver, tmp_path, tuned
):
    done(
        driver(
            tmp_path,
            *HEART,
            "--methods",
            "local,fedavg,meritfed",
            *FAST,
            "--out",
            "plain",
        )
    )
    plain = {
        (r["method"], r["client"], r["seed"], r["split"]): r
        for r in rows(tmp_path / "plain")
    }
    beside = {
        (r["method"], r["client"], r["seed"], r["split"]): r
        for r in rows(tuned[0])
        if "+" not in r["method"]
    }
    assert beside == plain
    kept = ("--set", "run.merge_validation=false")
    done(
        driver(
            tmp_path,
            *HEART,
            "--methods",
            "fedavg,fedavg+bias",
            *FAST,
            *TUNE[:4],
            *kept,
            "--out",
            "kept",
        )
    )
    found = {
        (r["method"], r["client"], r["seed"], r["split"]): r
        for r in rows(tmp_path / "kept")
    }
    for key, row in found.items():
        if (
            key[0] == "fedavg+bias"
        ):  # the same training; the bias leaves the ranking of rows as it is
            assert row["auc"] == pytest.approx(
                found["fedavg", *key[1:]]["auc"], abs=0.02
            )
            assert row["row_gradients"] > found["fedavg", *key[1:]]["row_gradients"]


def test_settings_are_spelled_out_and_the_report_knows(tuned):
    run, _ = tuned
    for method in tables(run)["methods"]:
        tuning = (
            {"part": "bias", "steps": [0, 20], "lr": [1.0]}
            if "+" in method["label"]
            else None
        )
        assert method.get("personalise") == tuning
    notes = json.loads((run / "notes.json").read_text())
    assert (
        len(
            [
                n
                for n in notes
                if "validation rows choose how each client tunes its model" in n
            ]
        )
        == 2
    )
    found = Results.load(run)
    assert found.baseline == "local"
    assert found.federated == ("fedavg", "fedavg+bias", "meritfed", "meritfed+bias")


def test_predict_takes_a_tuned_model(coterie, tuned):
    run, _ = tuned
    own = (
        ROOT
        / "src"
        / "coterie"
        / "data"
        / "sets"
        / "files"
        / "heart_disease"
        / "switzerland.csv"
    )
    flags = ("--client", "switzerland", "--seed", "0")
    plain = done(
        coterie("predict", str(run), str(own), "--method", "fedavg", *flags)
    ).out
    other = done(
        coterie("predict", str(run), str(own), "--method", "fedavg+bias", *flags)
    ).out
    assert plain != other
    assert (
        coterie("predict", str(run), str(own), "--method", "fedavg+last", *flags).status
        == 2
    )


@pytest.mark.in_turn
def test_a_killed_run_goes_on_to_the_same_bytes(driver, tmp_path, tuned):
    arm = {
        "target": "coterie.contract.federation.Federation.ask",
        "when": "after",
        "match": "personalisation:tune",
        "at": 2,
        "signal_name": "SIGKILL",
    }
    arguments = (*HEART, "--methods", ",".join(FORMS), *FAST, *TUNE, "--out", "run")
    assert driver(tmp_path, *arguments, arm=arm).status == -9
    done(driver(tmp_path, *arguments, "--resume"))
    assert contents(tmp_path / "run") == contents(tuned[0])


def test_other_settings_are_not_resumed(coterie, tuned, tmp_path):
    shutil.copytree(tuned[0], tmp_path / "run")
    ended = coterie(
        "run",
        "run/experiment.toml",
        "--resume",
        "--set",
        "fedavg+bias.personalise.steps=[0, 5]",
    )
    assert ended.status == 2
    assert "was made with other settings of 'fedavg+bias' (personalise)" in ended.err


# ---- attacks

IPM = ("--attack", "ipm", "--attack-on", "hungary", "--set", "attack.eps=.5")


def test_an_attack_is_spelled_out_repeats_itself_and_changes_results(driver, tmp_path):
    arguments = (*HEART, "--methods", "fedavg", *FAST)
    done(driver(tmp_path, *arguments, "--out", "honest"))
    done(driver(tmp_path, *arguments, *IPM, "--out", "one"))
    assert tables(tmp_path / "one")["attack"] == {
        "name": "ipm",
        "on": ["hungary"],
        "eps": 0.5,
        "statistics": "honest",
    }
    assert rows(tmp_path / "one") != rows(tmp_path / "honest")
    done(
        driver(
            tmp_path,
            "run",
            "one/experiment.toml",
            "--workers",
            "2",
            "--no-report",
            "--out",
            "two",
        )
    )
    assert rows(tmp_path / "one") == rows(tmp_path / "two")
    notes = json.loads((tmp_path / "one" / "notes.json").read_text())
    assert (
        "under attack: ipm (eps = 0.5, statistics = honest) by hungary; evaluation is honest"
        in notes
    )
    other = driver(
        tmp_path, *arguments, *IPM, "--set", "attack.eps=.7", "--out", "one", "--resume"
    )
    assert other.status == 2
    assert "attack.eps = 0.5, not 0.7" in other.err
    none = driver(tmp_path, *arguments, "--out", "one", "--resume")
    assert none.status == 2
    assert "attack.eps" in none.err


def test_a_share_is_drawn_for_each_seed(driver, tmp_path):
    attack = ("--attack", "nan", "--attack-on", ".25")
    done(
        driver(
            tmp_path,
            *HEART,
            "--methods",
            "fedavg",
            *FAST,
            "--seeds",
            "2",
            *attack,
            "--out",
            "run",
        )
    )
    assert tables(tmp_path / "run")["attack"] == {"name": "nan", "on": 0.25}
    failed = [
        json.loads(
            (tmp_path / "run" / "checkpoint" / f"fedavg-{s}" / "done.json").read_text()
        )["failures"]
        for s in (0, 1)
    ]
    assert [len(f) for f in failed] == [1, 1]
    assert all("NaN or Inf" in reason for f in failed for reason in f.values())


def test_an_attack_from_a_file(driver, tmp_path):
    (tmp_path / "own.py").write_text(
        "from coterie.attacks import Attack\nclass Zero(Attack):\n"
        "    def rewrite(self, kind, rows, attackers, rngs):\n        return 0 * rows[attackers]\n"
    )
    attack = ("--attack", "own.py:Zero", "--attack-on", "hungary,switzerland")
    done(
        driver(tmp_path, *HEART, "--methods", "fedavg", *FAST, *attack, "--out", "run")
    )
    assert tables(tmp_path / "run")["attack"] == {
        "name": "own.py:Zero",
        "on": ["hungary", "switzerland"],
    }


@pytest.mark.parametrize("name", ATTACKS)
def test_show_explains_each_attack(coterie, name):
    told = json.loads(done(coterie("show", name, "--json")).out)
    assert told["kind"] == "attack"
    assert len(told["text"]) > 50
    assert all(field["explanation"] for field in told["fields"])


ERRORS = {
    "unknown attack": (
        ("--attack", "imp", "--attack-on", ".5"),
        "there is no attack 'imp'; did you mean 'ipm'?",
    ),
    "nobody": (("--attack", "ipm"), "say who attacks"),
    "attackers alone": (("--attack-on", "hungary"), "[attack] needs a name"),
    "unknown client": (
        ("--attack", "ipm", "--attack-on", "budapest"),
        "there is no client 'budapest' to attack",
    ),
    "share of nobody": (
        ("--attack", "ipm", "--attack-on", "0.01"),
        "is less than one client",
    ),
    "share": (("--attack", "ipm", "--attack-on", "2"), "share in (0, 1]"),
    "unknown field": (
        ("--attack", "ipm", "--attack-on", ".5", "--set", "attack.epz=1"),
        "unknown key 'epz'; did you mean 'eps'?",
    ),
    "bad field": (
        ("--attack", "noise", "--attack-on", ".5", "--set", "attack.sigma=-1"),
        "Noise.sigma must be a number > 0",
    ),
    "no such part": (
        ("--methods", "fedavg+biass"),
        "Tuning.part must be all | last | bias | pool; got 'biass'; did you mean 'bias'?",
    ),
    "no zero": (
        ("--methods", "fedavg+bias", "--set", "fedavg+bias.personalise.steps=[5]"),
        "with 0 among them",
    ),
    "unknown key": (
        ("--set", "fedavg.personalise.step=[0]"),
        "personalise: unknown key 'step'; did you mean 'steps'?",
    ),
    "of all methods": (
        ("--set", "personalise.part=bias"),
        "--set 'personalise.part=bias' names no method of this run",
    ),
    "nobody tuned": (
        ("--methods", "fedagv+bias"),
        "there is no method 'fedagv'; did you mean 'fedavg'?",
    ),
}


TUNED = {"methods": [{"name": "fedavg", "personalise": {"part": "bias"}}], "tune": {}}


@pytest.mark.parametrize("table", [{"attack": {"name": "nan", "on": 0.5}}, TUNED])
def test_sites_elsewhere_neither_attack_nor_personalise(table, tmp_path):
    class Elsewhere:
        """Its rows are stand-ins, on which nothing may be tuned."""

        def load(self, experiment, seed):
            raise AssertionError("the rows were asked for")

    made = Experiment.from_tables({**preset("heart-disease"), **table}, "a plan")
    with pytest.raises(
        InputError,
        match=r"\[attack\].* and personalise work where all rows are on this machine",
    ):
        run_experiment(made, tmp_path / "run", backend=Elsewhere())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ERRORS)
def test_errors_are_one_sentence(coterie, what):
    arguments, sentence = ERRORS[what]
    ended = coterie(*HEART, "--methods", "fedavg", *arguments, "--out", "run")
    assert ended.status == 2
    assert ended.err.count("\n") == 1
    assert sentence in ended.err
