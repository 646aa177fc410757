"""What each command does and shows, and what it leaves behind."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain

import pytest
import torch
from commands import HERE, ROOT, contents, environment
from safetensors.torch import load_file

import coterie as ct
from coterie.config.registry import DATASETS, METHODS
from coterie.run.model_files import load_model_file

HEART = ROOT / "src" / "coterie" / "data" / "sets" / "files" / "heart_disease"
FIVE = ("local", "centralised", "fedavg", "fedprox", "meritfed")
FEW = ("--rounds", "4", "--seeds", "2", "--set", "run.evaluate=2")
QUICK = ("--rounds", "3", "--seeds", "1", "--no-report")


def done(ended):
    assert ended.status == 0, ended.err
    return ended


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def summary(run):
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def experiment(run):
    return tomllib.loads((run / "experiment.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def heart(driver, tmp_path_factory):
    """Several methods on the four hospitals, two seeds."""
    folder = tmp_path_factory.mktemp("heart")
    ended = done(
        driver(
            folder,
            "compare",
            "heart-disease",
            "--methods",
            ",".join(FIVE),
            *FEW,
            "--set",
            "local.exact=false",
            "--out",
            "run",
        )
    )
    return folder / "run", ended


def test_a_name_of_the_hub_goes_to_the_hub(coterie, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def unreachable(name, subset_name):
        asked.append(name)
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    ended = coterie("compare", "hf:nobody/nothing", *QUICK)
    assert (ended.status, asked) == (2, ["nobody/nothing"])
    assert "neither a folder nor the hub has the data set 'nobody/nothing'" in ended.err


# ---- listings


def test_the_package_is_the_command():
    ended = subprocess.run(
        [sys.executable, "-m", "coterie", "--version"],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert ended.returncode == 0
    assert ended.stdout.startswith("coterie ")


@pytest.mark.parametrize(
    ("typed", "printed"),
    [(["compare", "--help"], "--methods"), (["methods"], "meritfed")],
    ids=["help", "methods"],
)
def test_help_and_lists_import_no_torch(typed, printed, tmp_path):
    code = """
import sys
from coterie.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert ended.code == 0
sys.stderr.write(f"{sorted(m for m in sys.modules if m in ('torch', 'numpy', 'rich'))}")
"""
    command = [sys.executable, "-c", code, *typed]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == "[]"
    assert printed in ended.stdout


def test_no_command_prints_the_help(coterie):
    ended = done(coterie())
    for command in ("compare", "run", "methods", "data", "show", "report", "predict"):
        assert f"\n    {command} " in ended.out
    assert done(coterie("--version")).out.startswith("coterie ")


def test_listings_name_everything(coterie):
    methods, data = coterie("methods"), coterie("data")
    assert all(re.search(f"^{name} ", methods.out, re.M) for name in METHODS)
    assert all(re.search(f"^{name} ", data.out, re.M) for name in DATASETS)
    listed = json.loads(coterie("methods", "--json").out)
    assert [row["name"] for row in listed] == list(METHODS)
    assert all(row["summary"] for row in listed)
    assert {row["name"] for row in listed if row["paper"]} >= {
        "fedavg",
        "fedprox",
        "meritfed",
    }
    assert [row["name"] for row in json.loads(coterie("data", "--json").out)] == list(
        DATASETS
    )


class Mine(ct.FedAvg):
    """Do as FedAvg does."""


def test_a_method_that_a_program_registers_is_listed(coterie, request):
    ct.register("methods", "mine")(Mine)
    request.addfinalizer(lambda: METHODS.__delitem__("mine"))
    listed = json.loads(done(coterie("methods", "--json")).out)
    assert [row["name"] for row in listed] == [*METHODS]
    (mine,) = [row for row in listed if row["name"] == "mine"]
    assert mine["summary"].lower().startswith("do as fedavg does")


@ct.options
class Unsaid(ct.FedAvg):
    often: int = 1


def test_a_method_without_a_docstring_is_listed_by_that_of_its_file(coterie, request):
    """Its signature stood there, as Python writes it in place of a docstring."""
    ct.register("methods", "unsaid")(Unsaid)
    request.addfinalizer(lambda: METHODS.__delitem__("unsaid"))
    text = done(coterie("methods")).out
    assert "often: int" not in text
    assert not re.search(r"(optimises|sends|memory|needs):\s*$", text, re.M)


def test_show_explains_a_class_without_a_docstring_by_its_file(coterie, tmp_path):
    source = (ROOT / "examples" / "own_method.py").read_text()
    (tmp_path / "mine.py").write_text(source)
    text = done(coterie("show", "mine.py:Median")).out
    assert text.startswith(source.removeprefix('"""').partition("\n")[0])


@pytest.mark.parametrize(
    "name",
    [
        *METHODS,
        *DATASETS,
        "logistic",
        "mlp",
        "mean",
        "LocalSGD",
        "early-stopping",
        "mlflow",
        "tensorboard",
    ],
)
def test_show_explains(coterie, name):
    text = done(coterie("show", name)).out
    assert len(text) > 50
    told = json.loads(coterie("show", name, "--json").out)
    assert told["name"] == name
    assert told["text"].strip() in text
    assert all(
        re.search(f"^{re.escape(field['name'])}[: ]", text, re.M)
        for field in told["fields"]
    )
    assert told["kind"] == "data" or all(
        field["explanation"] for field in told["fields"]
    )


def test_show_has_every_field_with_its_default(coterie):
    text = done(coterie("show", "meritfed")).out
    assert re.search(r"^md_steps: int = 5\n    steps of mirror descent", text, re.M)
    assert "Eq. 8" in text
    assert "Tupitsa" in text


@pytest.mark.parametrize("name", ["clip", "top-k", "int8", "meritfed", "maxfl"])
def test_show_names_the_paper_of_what_has_one(coterie, name):
    """Files of filters name it, not their classes: it was left out."""
    text = done(coterie("show", name)).out
    assert len(re.findall("^Papers?: [A-Z]", text, re.M)) == 1


@pytest.mark.parametrize("name", ["meritfed", "maxfl", "fedavg", "median"])
def test_show_prints_no_latex(coterie, name):
    text = done(coterie("show", name)).out
    assert not re.search(r"\\\w|Formula:", text)
    assert all(
        f"\n{word}: " in text for word in ("Optimises", "Sends", "Use", "Symbols")
    )


# ---- compare


def documented():
    text = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    files, rows = text.split("A row of `summary.json`")
    # Of `models/prior/` the page has a table of its own, of tensors.
    files = files.partition("| tensor |")[0]
    names = [
        re.findall(r"`([^`]+)`", line.split("|")[1])
        for line in files.splitlines()
        if line.startswith("| `")
    ]
    keys = [
        re.findall(r"`([^`]+)`", line.split("|")[1])
        for line in rows.splitlines()
        if line.startswith("| `")
    ]
    headers = re.findall(r"^\| `(\w+\.csv)` \| `([a-z,]+)`", files, re.M)
    return list(chain(*names)), list(chain(*keys)), dict(headers)


def test_the_run_directory_is_as_documented(heart):
    run, _ = heart
    names, keys, headers = documented()
    names.remove("files.json")  # of experiments that name a file of the user's own
    names.remove(
        "coterie-crash.txt"
    )  # of a run that ended with an error that nobody expected
    names.remove("contribution.csv")  # of a run that measures what each client adds
    names.remove("history.safetensors")  # of a run with more numbers than people read
    names.remove("models/prior/")  # of methods that learn what clients share
    assert [
        name
        for name in names
        if not (run / name.replace("<method>-<seed>", "fedavg-0")).exists()
    ] == []
    assert {p.name for p in run.iterdir()} == {name.partition("/")[0] for name in names}
    del headers["contribution.csv"]
    assert set(headers) == {"history.csv", "weights.csv", "timing.csv"}
    for name, header in headers.items():
        assert (run / name).read_text().splitlines()[0] == header
    rows = summary(run)
    assert (
        len(rows) == len(FIVE) * 2 * 4 * 2
    )  # methods, seeds, hospitals, and train and test
    keys = [
        key for key in keys if key not in ("auprc", "class_error", "poisson_deviance")
    ]  # of other labels
    keys.remove("unseen")  # of clients that never train, which these are not
    assert all(list(row) == keys for row in rows)
    assert {row["algorithm"] for row in rows} == set(FIVE)
    for row in rows:
        own = ("local", "centralised", "meritfed")  # centralised: an intercept each
        assert row["own_model"] == (row["method"] in own)
        assert 0 <= row["accuracy"] <= 1
        assert 0.5 <= row["majority"] <= 1
        assert row["rounds"] == 4
    assert (
        json.loads((run / "notes.json").read_text())[0]
        == "left out: ca, slope, thal (as asked)"
    )
    assert set(json.loads((run / "preprocess.json").read_text())) == {"0", "1"}


def test_history_and_weights_are_those_of_the_rounds(heart):
    run, _ = heart
    history = rows_of(run / "history.csv")
    measured = [
        r for r in history if r["metric"] == "accuracy" and r["client"] == "switzerland"
    ]
    assert {int(r["round"]) for r in measured} == {0, 2, 4}
    last = {
        (r["method"], r["seed"], r["split"]): float(r["value"])
        for r in measured
        if r["round"] == "4"
    }
    for row in summary(run):
        if row["client"] == "switzerland":
            assert (
                last[row["method"], str(row["seed"]), row["split"]] == row["accuracy"]
            )
    weights = rows_of(run / "weights.csv")
    assert {int(r["round"]) for r in weights} == {2, 4}
    totals = {}
    for r in weights:
        key = (r["method"], r["seed"], r["round"], r["target"])
        totals[key] = totals.get(key, 0) + float(r["weight"])
    assert all(abs(total - 1) < 1e-9 for total in totals.values())
    assert {r["target"] for r in weights if r["method"] == "fedavg"} == {"*"}
    assert {r["target"] for r in weights if r["method"] == "meritfed"} == {
        "cleveland",
        "hungary",
        "long-beach",
        "switzerland",
    }
    timed = rows_of(run / "timing.csv")
    assert {(r["method"], r["seed"], r["round"]) for r in timed} == {
        (m, s, r) for m in FIVE for s in "01" for r in "1234"
    }


def test_models_are_files_for_torch(heart):
    run, _ = heart
    names = {p.name for p in (run / "models").glob("*-0*.safetensors")}
    hospitals = ("cleveland", "hungary", "long-beach", "switzerland")
    shared = {f"{m}-0.safetensors" for m in ("fedavg", "fedprox", "centralised")}
    own = ("local", "centralised", "meritfed")
    assert names == shared | {f"{m}-0-{h}.safetensors" for m in own for h in hospitals}
    layer = torch.nn.Linear(15, 1)
    layer.load_state_dict(
        load_file(run / "models" / "meritfed-0-switzerland.safetensors")
    )
    assert all(
        p.stat().st_mode & 0o077 == 0o044 for p in (run / "models").iterdir()
    )  # colleagues may read them


def test_the_answer_is_plain_and_fits_where_there_is_no_terminal(heart):
    _, ended = heart
    assert "\x1b" not in ended.out + ended.err
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 34
    assert lines[:2] == [
        "heart-disease: 4 clients, 5 methods, 2 seeds, 4 rounds, 306 test rows",
        "Predicts num > 0 (narrowed coronary artery), 1 = disease",
    ]
    for client in ("Cleveland", "Hungary", "Long Beach", "Switzerland"):
        assert sum(line.startswith(f"{client} ") for line in lines) == 1
    assert (
        "2 seeds cannot show a difference; repeat with --folds 5, or with --seeds 5."
        in lines
    )
    assert lines[-1] == "report         run/report.html"
    progress = ended.err.splitlines()
    assert [line.partition("  (")[2] for line in progress] == [
        f"seed {seed}, {method})" for seed in "01" for method in FIVE
    ]
    # Once each method has been seen: one may take sixty times as long as another.
    assert [" left " in line for line in progress] == [False] * 4 + [True] * 5 + [False]


def test_json_is_all_there_is(driver, tmp_path):
    flags = ("--methods", "local,fedavg", *QUICK)
    ended = done(
        driver(tmp_path, "compare", "heart-disease", *flags, "--out", "run", "--json")
    )
    assert ended.err == ""
    got = json.loads(ended.out)
    assert got["folder"] == "run"
    assert got["rows"] == summary(tmp_path / "run")
    assert set(got["verdicts"]) == {"cleveland", "hungary", "long-beach", "switzerland"}
    assert all(v["kind"] and v["reason"] for v in got["verdicts"].values())
    assert got["predicts"] == "num > 0 (narrowed coronary artery), 1 = disease"
    assert got["notes"][0] == "left out: ca, slope, thal (as asked)"
    told = {
        (d["client"], d["metric"]): d
        for d in got["differences"]
        if d["method"] == "fedavg"
    }
    assert len(told) == 4 * 2 - 1 + 2  # no AUC at Switzerland; and the means
    assert {d["strength"] for d in told.values()} == {"no verdict"}
    losses = {
        (r["method"], r["client"], r["seed"]): r["loss"]
        for r in got["rows"]
        if r["split"] == "test"
    }
    gap = losses["fedavg", "hungary", 0] - losses["local", "hungary", 0]
    assert told["hungary", "loss"]["mean"] == pytest.approx(gap)


def test_a_second_run_writes_the_same_bytes(driver, tmp_path, heart):
    done(
        driver(
            tmp_path,
            "run",
            str(heart[0] / "experiment.toml"),
            "--out",
            "again",
            "--no-report",
        )
    )
    assert contents(tmp_path / "again") == contents(heart[0])


def test_two_workers_write_the_same_bytes(driver, tmp_path, heart):
    flags = (
        "--methods",
        "fedavg,meritfed",
        *FEW,
        "--seeds",
        "1",
        "--workers",
        "2",
        "--no-report",
    )
    done(driver(tmp_path, "compare", "heart-disease", *flags, "--out", "run"))
    written, expected = contents(tmp_path / "run"), contents(heart[0])
    assert experiment(tmp_path / "run")["engine"]["workers"] == 2
    of_pairs = [name for name in written if "/" in name]
    assert (
        len(of_pairs) > 1 + 4
    )  # models of fedavg and of meritfed's targets, and outcomes
    assert [name for name in of_pairs if written[name] != expected[name]] == []
    assert summary(tmp_path / "run") == [
        row
        for row in summary(heart[0])
        if row["method"] in ("fedavg", "meritfed") and row["seed"] == 0
    ]


def test_all_defaults_are_spelled_out(heart):
    spelled = experiment(heart[0])
    assert spelled["data"] == {"name": "heart-disease"}
    assert spelled["run"]["rounds"] == 4
    assert spelled["run"]["seeds"] == [0, 1]
    assert "out" not in spelled["run"]  # it is where the file lies
    by_label = {m["label"]: m for m in spelled["methods"]}
    assert list(by_label) == list(FIVE)
    assert by_label["meritfed"]["oracle"] == "gradient"
    assert by_label["fedavg"]["local"]["momentum"] == 0.0


@pytest.mark.in_turn
def test_all_methods_are_those_that_fit(driver, tmp_path):
    ended = done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            "--methods",
            "all",
            *QUICK,
            "--rounds",
            "1",
            "--out",
            "run",
        )
    )
    left_out = re.findall(r"^left out (\S+): .+$", ended.err, re.M)
    ran = list(dict.fromkeys(row["method"] for row in summary(tmp_path / "run")))
    assert sorted(ran + left_out) == sorted(METHODS)
    assert set(FIVE) <= set(ran)
    assert [m["label"] for m in experiment(tmp_path / "run")["methods"]] == ran


def test_out_is_chosen_where_none_is_named(driver, tmp_path):
    for name in ("heart-disease", "heart-disease-2"):
        ended = done(
            driver(tmp_path, "compare", "heart-disease", "--methods", "local", *QUICK)
        )
        assert ended.out.splitlines()[-1] == f"run directory  runs/{name}"
    again = done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            "--methods",
            "local",
            *QUICK,
            "--resume",
        )
    )
    assert again.out.splitlines()[-1] == "run directory  runs/heart-disease-2"
    repeated = done(
        driver(tmp_path, "run", "runs/heart-disease/experiment.toml", "--no-report")
    )
    assert repeated.out.splitlines()[-1] == "run directory  runs/heart-disease-3"


def test_flags_reach_the_experiment(driver, tmp_path):
    flags = (
        "--methods",
        "fedavg,meritfed,fedprox",
        "--seeds",
        "3,7",
        "--lr",
        ".05",
        "--steps",
        "2",
        "--batch-size",
        "8",
    )
    more = (
        "--clients-per-round",
        "2",
        "--metrics",
        "accuracy",
        "--set",
        "meritfed.targets=switzerland",
    )
    most = (
        "--set",
        "fedprox.mu=.5",
        "--set",
        "fedprox.local.lr=.01",
        "--set",
        "run.evaluate=3",
        "--set",
        "split.seed=5",
    )
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            *QUICK,
            *flags,
            *more,
            *most,
            "--out",
            "run",
        )
    )
    spelled = experiment(tmp_path / "run")
    assert spelled["run"]["seeds"] == [3, 7]
    assert spelled["run"]["clients_per_round"] == 2
    assert spelled["split"] == {"seed": 5}
    local = {m["label"]: m["local"] for m in spelled["methods"]}
    assert [
        (local[m]["lr"], local[m]["steps"], local[m]["batch_size"])
        for m in ("fedavg", "fedprox")
    ] == [
        (0.05, 2, 8),
        (0.01, 2, 8),
    ]
    rows = summary(tmp_path / "run")
    assert {r["client"] for r in rows if r["method"] == "meritfed"} == {"switzerland"}
    assert "auc" not in rows[0]
    weights = rows_of(tmp_path / "run" / "weights.csv")
    assert (
        len([r for r in weights if r["method"] == "fedavg" and r["seed"] == "3"]) == 2
    )  # participants of round 3
    preset = {m["label"]: m for m in experiment(tmp_path / "run")["methods"]}[
        "meritfed"
    ]
    assert (
        preset["validation"] == "train"
    )  # what the preset of this data says of a method stays


def test_epochs_replace_steps(driver, tmp_path):
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            "--methods",
            "fedavg",
            *QUICK,
            "--set",
            "local.epochs=2",
            "--out",
            "r",
        )
    )
    assert experiment(tmp_path / "r")["methods"][0]["local"]["epochs"] == 2
    assert "steps" not in experiment(tmp_path / "r")["methods"][0]["local"]
    done(
        driver(
            tmp_path,
            "run",
            "r/experiment.toml",
            "--steps",
            "1",
            "--batch-size",
            "4",
            "--no-report",
            "--out",
            "s",
        )
    )
    assert experiment(tmp_path / "s")["methods"][0]["local"]["steps"] == 1
    assert summary(tmp_path / "s")[0]["row_gradients"] == 3 * 4 * 4


def test_a_schedule_of_the_learning_rate_survives(driver, tmp_path):
    schedule = "local.lr={start=0.1, at=[2], factor=0.5}"
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            "--methods",
            "fedavg",
            *QUICK,
            "--set",
            schedule,
            "--out",
            "r",
        )
    )
    done(driver(tmp_path, "run", "r/experiment.toml", "--no-report", "--out", "s"))
    assert contents(tmp_path / "r") == contents(tmp_path / "s")
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            "--methods",
            "fedavg",
            *QUICK,
            "--out",
            "t",
        )
    )
    assert (
        contents(tmp_path / "r")["summary.json"]
        != contents(tmp_path / "t")["summary.json"]
    )


# ---- run, report


def test_a_small_experiment_of_ones_own(driver, tmp_path):
    text = """
[data]
name = "heart-disease"
[model]
name = "mlp"
hidden = [4]
[local]
epochs = 1
batch_size = "all"
momentum = 0.5
lr = 0.01
[[methods]]
name = "fedavg"
label = "slow"
lr = 0.1
[[methods]]
name = "fedavg"
label = "fast"
local = {lr = 0.1}
[run]
rounds = 2
seeds = [4]
evaluate = 1
"""
    (tmp_path / "mine.toml").write_text(text)
    ended = done(driver(tmp_path, "run", "mine.toml", "--out", "here", "--no-report"))
    assert "slow" in ended.out
    assert {
        (r["method"], r["algorithm"], r["seed"]) for r in summary(tmp_path / "here")
    } == {
        ("slow", "fedavg", 4),
        ("fast", "fedavg", 4),
    }
    again = done(
        driver(tmp_path, "run", "mine.toml", "--out", "here", "--no-report", "--resume")
    )
    assert again.out == ended.out


def test_report_is_rebuilt(driver, tmp_path, heart):
    shutil.copytree(heart[0], tmp_path / "moved")
    (tmp_path / "moved" / "report.html").unlink()
    shown = done(driver(tmp_path, "report", "moved"))
    assert shown.out == heart[1].out.replace("run/report", "moved/report").replace(
        "directory  run", "directory  moved"
    )
    assert (tmp_path / "moved" / "report.html").stat().st_size > 100_000
    (tmp_path / "moved" / "report.html").unlink()
    rows = json.loads(
        done(driver(tmp_path, "report", "moved", "--no-html", "--json")).out
    )["rows"]
    assert rows == summary(heart[0])
    assert not (tmp_path / "moved" / "report.html").exists()


# ---- predict


def hospital(name, rows=slice(None), without=()):
    """Lines of a hospital's file."""
    with open(HEART / f"{name}.csv", newline="") as file:
        table = list(csv.reader(file))
    keep = [i for i, column in enumerate(table[0]) if column not in without]
    return (
        "\n".join(
            ",".join(row[i] for i in keep) for row in [table[0], *table[1:][rows]]
        )
        + "\n"
    )


@pytest.fixture(scope="module")
def split_by_column(driver, tmp_path_factory):
    """A run on files that say themselves which rows are for testing; those rows lie in NAME-test.csv, raw and without that column."""
    folder = tmp_path_factory.mktemp("split")
    (folder / "hospitals").mkdir()
    for name in ("cleveland", "switzerland"):
        lines = hospital(name).splitlines()
        parts = [
            "part",
            *(["train", "test", "train"][i % 3] for i in range(len(lines) - 1)),
        ]
        text = "".join(
            f"{line},{part}\n" for line, part in zip(lines, parts, strict=True)
        )
        (folder / "hospitals" / f"{name}.csv").write_text(text)
        test = [
            line for line, part in zip(lines, parts, strict=True) if part != "train"
        ]
        (folder / f"{name}-test.csv").write_text("\n".join(test) + "\n")
    options = (
        "--label",
        "num",
        "--set",
        "data.above=0",
        "--set",
        "data.split_column=part",
        "--set",
        'data.drop=["ca"]',
    )
    flags = (
        "--methods",
        "local,fedavg,meritfed",
        "--rounds",
        "5",
        "--seeds",
        "2",
        "--no-report",
    )
    done(driver(folder, "compare", "hospitals", *options, *flags, "--out", "run"))
    return folder


@pytest.mark.in_turn(but=("cleveland-fedavg", "switzerland-local"))
@pytest.mark.parametrize("method", ["local", "fedavg", "meritfed"])
@pytest.mark.parametrize("client", ["cleveland", "switzerland"])
def test_predictions_on_raw_rows_are_as_good_as_the_evaluation_says(
    coterie, split_by_column, method, client
):
    folder = split_by_column
    for seed in (0, 1):
        flags = (
            "--client",
            client,
            "--method",
            method,
            "--seed",
            str(seed),
            "--out",
            "predicted.csv",
        )
        done(
            coterie(
                "predict",
                str(folder / "run"),
                str(folder / f"{client}-test.csv"),
                *flags,
            )
        )
        predicted = rows_of("predicted.csv")
        truth = [int(r["num"]) > 0 for r in rows_of(folder / f"{client}-test.csv")]
        expected = next(
            r
            for r in summary(folder / "run")
            if (r["method"], r["client"], r["seed"], r["split"])
            == (method, client, seed, "test")
        )
        assert expected["n"] == len(truth) == len(predicted)
        assert list(predicted[0])[-4:] == ["num", "prediction", "num <= 0", "num > 0"]
        assert [row["num"] for row in predicted] == [
            row["num"] for row in rows_of(folder / f"{client}-test.csv")
        ]
        right = [
            (p["prediction"] == "num > 0") == t
            for p, t in zip(predicted, truth, strict=True)
        ]
        assert sum(right) / len(right) == pytest.approx(expected["accuracy"], abs=1e-12)
        chance = torch.tensor(
            [
                float(p["num > 0" if t else "num <= 0"])
                for p, t in zip(predicted, truth, strict=True)
            ]
        )
        assert float(-chance.log().mean()) == pytest.approx(expected["loss"], abs=2e-3)


def test_predict_takes_rows_without_label_and_columns_in_any_order(
    coterie, tmp_path, heart
):
    run = str(heart[0])
    (tmp_path / "whole.csv").write_text(hospital("switzerland", slice(0, 20)))
    whole = done(
        coterie(
            "predict",
            run,
            "whole.csv",
            "--client",
            "switzerland",
            "--method",
            "meritfed",
        )
    )
    assert "model: meritfed for switzerland, disease from 0.5 on\n" in whole.err
    assert re.search(r"the file has labels: accuracy [01]\.\d+ on 20 rows", whole.err)
    turned = [
        line.split(",")
        for line in hospital(
            "switzerland", slice(0, 20), ("num", "ca", "thal")
        ).splitlines()
    ]
    (tmp_path / "turned.csv").write_text(
        "\n".join(";".join([*reversed(row), "x"]) for row in turned).replace(
            ";x", ";note", 1
        )
    )
    other = done(
        coterie(
            "predict",
            run,
            "turned.csv",
            "--client",
            "switzerland",
            "--method",
            "meritfed",
        )
    )
    assert [line.split(",")[-3:] for line in other.out.splitlines()] == [
        line.split(",")[-3:] for line in whole.out.splitlines()
    ]
    assert "labels" not in other.err
    assert done(
        coterie("predict", run, "whole.csv", "--client", "switzerland")
    ).err.startswith("model: ")


def test_predict_says_what_it_does_not_know(coterie, tmp_path, heart):
    lines = hospital("hungary", slice(0, 3), ("num",)).splitlines()
    header = lines[0].split(",")
    first = lines[1].split(",")
    first[header.index("cp")] = "9"
    (tmp_path / "new.csv").write_text(
        "\n".join([lines[0], ",".join(first), *lines[2:]]) + "\n"
    )
    ended = done(
        coterie(
            "predict",
            str(heart[0]),
            "new.csv",
            "--client",
            "hungary",
            "--method",
            "fedavg",
        )
    )
    assert "note: new.csv: cp has '9', which no training row has" in ended.err
    assert len(ended.out.splitlines()) == 4


# ---- tables of the user's own


def write_folder(folder, label):
    """Three clients: texts, missing values, a column of one client alone, and names that are no ASCII."""
    draw = torch.Generator().manual_seed(3)
    for name, count in (("Bern", 60), ("Genève", 45), ("south east", 36)):
        lines = [
            "age,ward,blood sugar,smoker,target" + (",room" if name == "Bern" else "")
        ]
        for _ in range(count):
            age, sugar, noise = torch.randn(3, generator=draw).tolist()
            ward = "abc"[int(torch.randint(0, 3, (1,), generator=draw))]
            gone = float(torch.rand(1, generator=draw)) < 0.2
            smoker = "" if gone else ("yes" if noise > 0 else "no")
            cells = [
                f"{50 + 10 * age:.0f}",
                ward,
                "" if gone else f"{sugar:.3f}",
                smoker,
                label(age + sugar + 0.5 * noise),
            ]
            lines.append(",".join([*cells, "7"] if name == "Bern" else cells))
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_folder_of_tables_end_to_end(driver, tmp_path):
    (tmp_path / "my clients").mkdir()
    write_folder(tmp_path / "my clients", lambda score: "ill" if score > 0 else "well")
    command = (
        "compare",
        "my clients",
        "--label",
        "target",
        "--rounds",
        "8",
        "--seeds",
        "1",
        "--out",
        "run",
    )
    ended = done(driver(tmp_path, *command))
    shown = re.findall(r"([a-z-]+)\)$", ended.err, re.M)
    assert set(shown) == {
        "local",
        "fedavg",
        "fixed-effects",
        "partial",
        "meritfed",
    }
    assert "Genève" in ended.out
    run = tmp_path / "run"
    assert any(
        "room" in note and "Bern" in note
        for note in json.loads((run / "notes.json").read_text())
    )
    trained = [
        r["accuracy"]
        for r in summary(run)
        if r["method"] == "fedavg" and r["split"] == "test"
    ]
    assert sum(trained) / len(trained) > 0.75
    new = tmp_path / "new.csv"
    new.write_text(
        "ward,age,blood sugar,smoker\nb,71,1.2,yes\nzz,31,,\n", encoding="utf-8"
    )
    got = done(
        driver(
            tmp_path,
            "predict",
            "run",
            "new.csv",
            "--client",
            "Genève",
            "--method",
            "local",
        )
    )
    assert [line.split(",")[4] for line in got.out.splitlines()] == [
        "prediction",
        "ill",
        "well",
    ]
    assert "ward has 'zz'" in got.err
    assert (run / "models" / "local-0-Genève.safetensors").exists()
    assert (run / "report.html").exists()


def test_three_classes(driver, tmp_path):
    (tmp_path / "mine").mkdir()
    write_folder(
        tmp_path / "mine",
        lambda score: "low" if score < -0.6 else "high" if score > 0.6 else "middle",
    )
    done(
        driver(
            tmp_path,
            "compare",
            "mine",
            "--methods",
            "local,meritfed",
            *QUICK,
            "--out",
            "run",
        )
    )
    row = summary(tmp_path / "run")[0]
    assert row["auc"] is not None
    assert (
        load_file(tmp_path / "run" / "models" / "meritfed-0-Bern.safetensors")[
            "weight"
        ].shape[0]
        == 3
    )
    got = done(
        driver(
            tmp_path,
            "predict",
            "run",
            "mine/Bern.csv",
            "--client",
            "Bern",
            "--method",
            "meritfed",
        )
    )
    assert (
        got.out.splitlines()[0]
        == "age,ward,blood sugar,smoker,target,room,prediction,high,low,middle"
    )
    assert sum(map(float, got.out.splitlines()[1].split(",")[-3:])) == pytest.approx(
        1, abs=2e-4
    )


def test_regression(driver, tmp_path):
    (tmp_path / "mine").mkdir()
    write_folder(tmp_path / "mine", lambda score: f"{10 + score:.4f}")
    flags = ("--methods", "local,fedavg", "--rounds", "40", "--seeds", "1")
    ended = done(
        driver(tmp_path, "compare", "mine", *flags, "--tables", "--out", "run")
    )
    assert "loss on test rows" in ended.out
    assert "accuracy" not in ended.out
    for row in summary(tmp_path / "run"):
        assert row["accuracy"] is row["auc"] is row["majority"] is None
        assert row["loss"] < 20
    got = done(
        driver(
            tmp_path,
            "predict",
            "run",
            "mine/Bern.csv",
            "--client",
            "Bern",
            "--method",
            "fedavg",
        )
    )
    assert got.out.splitlines()[0].endswith(",target,room,prediction")
    assert 5 < float(got.out.splitlines()[1].split(",")[-1]) < 15


def test_a_folder_called_like_a_data_set(driver, tmp_path):
    (tmp_path / "digits").mkdir()
    write_folder(tmp_path / "digits", lambda score: "ill" if score > 0 else "well")
    ended = done(
        driver(
            tmp_path,
            "compare",
            "./digits",
            "--methods",
            "local",
            *QUICK,
            "--out",
            "run",
        )
    )
    assert "Bern" in ended.out


def test_one_data_set_split_over_clients(driver, tmp_path):
    flags = (
        "--split",
        "dirichlet",
        "--clients",
        "4",
        "--alpha",
        "1",
        "--methods",
        "fedavg",
        "--model",
        "mlp",
        *QUICK,
    )
    done(
        driver(
            tmp_path,
            "compare",
            "digits",
            *flags,
            "--set",
            "model.hidden=[8]",
            "--out",
            "run",
        )
    )
    assert len({r["client"] for r in summary(tmp_path / "run")}) == 4
    assert load_file(tmp_path / "run" / "models" / "fedavg-0.safetensors")[
        "0.weight"
    ].shape == (8, 64)


# ---- where a model starts


def test_a_model_starts_from_a_file_and_frozen_layers_stay(driver, tmp_path):
    flags = (
        "--model",
        "mlp",
        "--set",
        "model.hidden=[5]",
        "--methods",
        "fedavg,local,meritfed",
        *QUICK,
    )
    done(driver(tmp_path, "compare", "heart-disease", *flags, "--out", "first"))
    file = tmp_path / "first" / "models" / "fedavg-0.safetensors"
    start = load_file(file)
    init = (*flags, "--init", str(file))
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            *init,
            "--rounds",
            "0",
            "--out",
            "none",
        )
    )
    for path in (tmp_path / "none" / "models").glob("*.safetensors"):
        assert all(torch.equal(start[k], v) for k, v in load_file(path).items()), path
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            *init,
            "--freeze",
            "0.*",
            "--out",
            "frozen",
        )
    )
    paths = list((tmp_path / "frozen" / "models").glob("*.safetensors"))
    assert len(paths) == 1 + 4 + 4
    for path in paths:
        got = load_model_file(path)
        assert {k for k in start if torch.equal(start[k], got[k])} == {
            "0.weight",
            "0.bias",
        }, path
    rows = {
        r["round"]: r
        for r in rows_of(tmp_path / "frozen" / "history.csv")
        if (r["client"], r["split"], r["metric"]) == ("hungary", "test", "loss")
        and r["method"] == "fedavg"
    }
    ended = next(
        r
        for r in summary(tmp_path / "first")
        if (r["method"], r["client"], r["split"]) == ("fedavg", "hungary", "test")
    )
    assert float(rows["0"]["value"]) == ended["loss"]  # it begins where the other ended


# ---- tune


def test_tune_chooses_on_validation_rows(driver, tmp_path):
    grid = (
        "--set",
        "tune.local.lr=[0.0001, 0.1]",
        "--set",
        "tune.meritfed.md_step=[0.0, 1.0]",
    )
    flags = (
        "--methods",
        "fedavg,meritfed",
        "--rounds",
        "3",
        "--seeds",
        "1",
        "--no-report",
        "--tune",
    )
    ended = done(
        driver(tmp_path, "compare", "heart-disease", *flags, *grid, "--out", "run")
    )
    trials = rows_of(tmp_path / "run" / "tuning.csv")
    assert [t["method"] for t in trials] == ["fedavg"] * 2 + ["meritfed"] * 4
    best = {
        m: min(
            (t for t in trials if t["method"] == m),
            key=lambda t: float(t["validation_loss"]),
        )
        for m in ("fedavg", "meritfed")
    }
    assert [t["chosen"] for t in trials] == [
        str(int(t in best.values())) for t in trials
    ]
    chosen = {m["label"]: m for m in experiment(tmp_path / "run")["methods"]}
    assert (
        chosen["fedavg"]["local"]["lr"]
        == json.loads(best["fedavg"]["setting"])["local.lr"]
        == 0.1
    )
    assert (
        chosen["meritfed"]["md_step"]
        == json.loads(best["meritfed"]["setting"])["md_step"]
    )
    assert "tuned fedavg: local.lr = 0.1\n" in ended.err
    again = done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            *flags,
            *grid,
            "--out",
            "run",
            "--resume",
        )
    )
    assert "tun" not in again.err
    assert again.out == ended.out
    # What was chosen is all that matters: the same settings, given by hand, end with the same numbers.
    done(driver(tmp_path, "run", "run/experiment.toml", "--out", "hand", "--no-report"))
    assert (
        contents(tmp_path / "hand")["summary.json"]
        == contents(tmp_path / "run")["summary.json"]
    )


def test_tune_survives_a_setting_that_diverges(driver, tmp_path):
    grid = ("--set", "tune.fedavg.lr=[1.0, 1e30]")
    flags = (
        "--methods",
        "fedavg",
        "--rounds",
        "3",
        "--seeds",
        "1",
        "--no-report",
        "--tune",
    )
    done(driver(tmp_path, "compare", "heart-disease", *flags, *grid, "--out", "run"))
    assert [t["validation_loss"] for t in rows_of(tmp_path / "run" / "tuning.csv")][
        1
    ] == "inf"
    assert experiment(tmp_path / "run")["methods"][0]["lr"] == 1.0


# ---- what is the user's own


def test_a_method_from_a_file(driver, tmp_path):
    method = f"{HERE / 'remembers.py'}:Momentum"
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            "--methods",
            method,
            *QUICK,
            "--set",
            "momentum.local.lr=.05",
            "--out",
            "r",
        )
    )
    assert {r["method"] for r in summary(tmp_path / "r")} == {"momentum"}
    assert experiment(tmp_path / "r")["methods"][0]["name"] == method
    assert experiment(tmp_path / "r")["methods"][0]["local"]["lr"] == 0.05
    done(
        driver(
            tmp_path,
            "run",
            "r/experiment.toml",
            "--workers",
            "2",
            "--out",
            "s",
            "--no-report",
        )
    )
    assert (
        contents(tmp_path / "r")["summary.json"]
        == contents(tmp_path / "s")["summary.json"]
    )


def test_two_files_of_one_name_are_two_methods(driver, tmp_path):
    text = (HERE / "remembers.py").read_text()
    for name, factor in (("a", "0.5"), ("b", "0.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(
            text.replace("0.5 *", f"{factor} *").replace(
                "class Momentum", f"class {name.upper()}"
            )
        )
    flags = ("--methods", "a/mine.py:A,b/mine.py:B", *QUICK)
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            *flags,
            "--workers",
            "2",
            "--out",
            "both",
        )
    )
    done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            "--methods",
            "a/mine.py:A",
            *QUICK,
            "--out",
            "one",
        )
    )
    assert [r for r in summary(tmp_path / "both") if r["method"] == "a"] == summary(
        tmp_path / "one"
    )
    assert (
        len(
            {
                r["loss"]
                for r in summary(tmp_path / "both")
                if r["client"] == "hungary" and r["split"] == "test"
            }
        )
        == 2
    )


MODELS = """
import torch
class Net(torch.nn.Module):
    def __init__(self, shape, outputs, width=3):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(*shape, width), torch.nn.Linear(width, outputs)
    def forward(self, x): return self.out(self.hidden(x).tanh())
ready = Net((15,), 1)
"""


def test_a_model_from_a_file_is_drawn_by_the_seed(driver, tmp_path):
    (tmp_path / "net.py").write_text(MODELS)
    flags = (
        "compare",
        "heart-disease",
        "--methods",
        "fedavg",
        "--rounds",
        "0",
        "--seeds",
        "2",
        "--no-report",
    )
    done(driver(tmp_path, *flags, "--model", "net.py:Net", "--out", "a"))
    done(driver(tmp_path, *flags, "--model", "net.py:Net", "--out", "b"))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    first, second = (
        load_file(tmp_path / "a" / "models" / f"fedavg-{s}.safetensors")[
            "hidden.weight"
        ]
        for s in (0, 1)
    )
    assert not torch.equal(first, second)
    done(
        driver(
            tmp_path,
            *flags,
            "--model",
            "net.py:Net",
            "--set",
            "model.width=7",
            "--out",
            "wide",
        )
    )
    assert load_file(tmp_path / "wide" / "models" / "fedavg-0.safetensors")[
        "hidden.weight"
    ].shape == (7, 15)
    for out in ("c", "d"):
        done(driver(tmp_path, *flags, "--model", "net.py:ready", "--out", out))
    assert contents(tmp_path / "c") == contents(tmp_path / "d")
    got = done(
        driver(
            tmp_path,
            "predict",
            "wide",
            str(HEART / "hungary.csv"),
            "--client",
            "hungary",
            "--trust",
            "net.py",
        )
    )
    assert len(got.out.splitlines()) == 295


METRICS = """
def infinite(outputs, labels, kind): return float("inf")
def never(outputs, labels, kind): return None
def rows(outputs, labels, kind): return len(labels)
"""


def test_a_metric_that_is_undefined_is_null(driver, tmp_path):
    (tmp_path / "mine.py").write_text(METRICS)
    metrics = "mine.py:infinite,mine.py:never,mine.py:rows,auc"
    ended = done(
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            "--methods",
            "local",
            *QUICK,
            "--metrics",
            metrics,
            "--tables",
            "--out",
            "r",
        )
    )
    for row in summary(tmp_path / "r"):
        assert row["infinite"] is row["never"] is None
        assert row["rows"] == row["n"]
    assert {r["metric"] for r in rows_of(tmp_path / "r" / "history.csv")} == {
        "loss",
        "rows",
        "auc",
        "row_gradients",
    }
    assert "rows on test rows" in ended.out
    done(driver(tmp_path, "report", "r"))  # JSON for a browser has no Inf


# ---- a terminal


def in_a_terminal(cwd, *argv, columns=80):
    """What the command writes to a terminal, and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        env = {**environment(), "TERM": "xterm-256color", "COLUMNS": str(columns)}
        env.pop("NO_COLOR", None)
        os.execve(sys.executable, [sys.executable, "-m", "coterie", *argv], env)
    seen = b""
    while True:
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
    os.close(terminal)
    return seen.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.in_turn
def test_a_terminal_shows_progress_and_colours(tmp_path):
    flags = (
        "--methods",
        "local,fedavg",
        "--rounds",
        "20",
        "--seeds",
        "2",
        "--folds",
        "0",
        "--no-report",
        "--tables",
    )
    seen, status = in_a_terminal(tmp_path, "compare", "heart-disease", *flags)
    assert status == 0
    assert re.search(r"seed 0  \w+  round \d+/20 .*/4 done", seen)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    table = plain[plain.index("accuracy on test rows") :].replace("\r", "").splitlines()
    assert max(map(len, table)) <= 80
    assert "bold: best" in plain
    assert "\x1b[1m" in seen  # the best in bold
    assert "Traceback" not in seen
