"""A run directory may come from somebody else: what it names is not run, and its links lead nowhere."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.base.files import read_toml
from coterie.cli.main import main
from coterie.config.registry import FILTERS
from coterie.contract.filters import Filter
from coterie.run.files import write_csv
from coterie.run.hashes import TABLES, hashes, read_record, write_record
from coterie.sites.plan import read_plan

OWN = '''"""Files of whoever made the run; each leaves a trace where it is imported."""

with open({trace!r}, "a") as trace:
    trace.write(__file__ + "\\n")

import torch
from dataclasses import dataclass
from coterie.algorithms.fedavg import FedAvg
from coterie.attacks import SignFlip
from coterie.config.schema import wire_type


def small(inputs, outputs):
    return torch.nn.Linear(*inputs, outputs)


class Mine(FedAvg):
    pass


@dataclass(frozen=True)
class Flip(SignFlip):
    pass


if "attack" in __file__:  # the wire knows one class of a name
    wire_type(Flip)


def always(outputs, labels, kind):
    return 1.0
'''


class Made:
    """A run directory whose experiment names files of its author, and the trace that these leave."""

    def __init__(self, folder):
        self.trace, self.run = folder / "trace", folder / "run"
        self.files = {
            name: folder / f"{name}_of_others.py"
            for name in ("model", "method", "attack", "metric")
        }
        for path in self.files.values():
            path.write_text(OWN.format(trace=str(self.trace)))
        (folder / "data").mkdir()
        for client in "abc":
            rows = [f"{i % 7},{(i + ord(client)) % 5},{i % 2}" for i in range(24)]
            (folder / "data" / f"{client}.csv").write_text(
                "\n".join(["x,z,y", *rows]) + "\n"
            )
        (folder / "plan.toml").write_text(
            f"""
[data]
folder = "{folder / "data"}"
label = "y"
[model]
name = "{self.files["model"]}:small"
[[methods]]
name = "{self.files["method"]}:Mine"
[attack]
name = "{self.files["attack"]}:Flip"
on = ["c"]
[run]
rounds = 1
seeds = 1
metrics = ["accuracy", "{self.files["metric"]}:always"]
"""
        )
        self.plan = folder / "plan.toml"

    def traces(self):
        return (
            sorted(Path(line).name for line in self.trace.read_text().splitlines())
            if self.trace.exists()
            else []
        )

    def rewrite(self, old, new):
        """Change the experiment as whoever has made the run can: with its hash."""
        text, seals = self.run / "experiment.toml", self.run / TABLES
        text.write_text(text.read_text().replace(str(old), str(new)))
        record = read_record(seals)
        write_record(
            seals,
            {
                **record,
                "files": hashes(
                    self.run, [self.run / name for name in record["files"]]
                ),
            },
        )

    def forget(self):
        """As if this process had not imported them."""
        for name in [name for name in sys.modules if name.startswith("coterie_user_")]:
            del sys.modules[name]
        self.trace.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A run of others, and a copy of its folder."""
    folder = tmp_path_factory.mktemp("others") / "here"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found = Made(folder)
        assert (
            main(["run", str(found.plan), "--out", str(found.run), "--no-report"]) == 0
        )
    assert len(found.traces()) == 4
    found.forget()
    shutil.copytree(folder, folder.with_name("copy"))
    return found


@pytest.fixture
def made(pristine, monkeypatch):
    folder = pristine.run.parent
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)
    monkeypatch.chdir(folder)
    yield pristine
    pristine.forget()
    from coterie.config.registry import METRICS

    METRICS.pop("always", None)


@pytest.mark.promise("files of others run nothing")
def test_a_report_imports_nothing_that_the_run_names(made):
    assert main(["report", str(made.run)]) == 0
    assert made.traces() == []


def predicted(made, *flags):
    return main(
        [
            "predict",
            str(made.run),
            "data/a.csv",
            "--client",
            "a",
            "--method",
            "mine",
            *flags,
        ]
    )


@pytest.mark.promise("files of others run nothing")
def test_predict_builds_no_method_metric_or_attack_and_no_model_of_others(made, capsys):
    assert predicted(made) == 2
    assert made.traces() == []
    said = capsys.readouterr().err
    assert "model_of_others.py" in said
    assert "--trust" in said


def test_predict_imports_the_models_file_that_is_trusted_and_no_other(made, capsys):
    assert predicted(made, "--trust", str(made.files["model"])) == 0
    assert made.traces() == ["model_of_others.py"]
    assert len(capsys.readouterr().out.splitlines()) == 25


def test_a_trusted_file_must_be_the_one_that_the_run_has_recorded(made, capsys):
    other = made.files["model"]
    other.write_text(other.read_text() + "\n# changed\n")
    assert predicted(made, "--trust", str(other)) == 2
    assert made.traces() == []
    assert "is not the file with which" in capsys.readouterr().err


def test_predict_runs_a_model_of_coterie_whatever_else_the_run_names(made, capsys):
    made.rewrite(f"{made.files['model']}:small", "logistic")
    assert predicted(made) == 0
    assert made.traces() == []


def test_a_resumed_run_says_which_files_it_imports(made, capsys):
    assert (
        main(["run", str(made.run / "experiment.toml"), "--resume", "--no-report"]) == 0
    )
    said = capsys.readouterr().err
    for path in made.files.values():
        assert f"imports {path}" in said


def test_files_inside_a_run_directory_are_refused_unless_they_are_trusted(made, capsys):
    inside = made.run / "mine.py"
    inside.write_text(made.files["method"].read_text())
    made.rewrite(made.files["method"], inside)
    again = ["run", str(made.run / "experiment.toml"), "--resume", "--no-report"]
    assert main(again) == 2
    assert made.traces() == []
    said = capsys.readouterr().err
    assert f"{inside} lies in the run directory" in said
    assert "--trust" in said
    main([*again, "--trust", str(inside)])
    assert "mine.py" in made.traces()


def test_resuming_does_not_import_what_a_run_directory_names(made, capsys):
    inside = made.run / "mine.py"
    inside.write_text(made.files["method"].read_text())
    made.rewrite(made.files["method"], inside)
    flags = [
        "--methods",
        "fedavg",
        "--label",
        "y",
        "--out",
        str(made.run),
        "--resume",
        "--no-report",
    ]
    assert main(["compare", "data", *flags]) == 2
    assert made.traces() == []
    assert "which is not named now" in capsys.readouterr().err


@pytest.mark.promise("files of others run nothing")
@pytest.mark.parametrize("name", ["checkpoint/lock", "checkpoint/fedavg-0"])
def test_links_in_a_run_directory_are_not_followed_for_writing(tmp_path, name):
    target = tmp_path / "dear"
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    if name == "checkpoint/fedavg-0":
        target.mkdir()
    else:
        target.write_text("dear to me")
    (run / name).symlink_to(target)
    flags = [
        "--methods",
        "fedavg",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--out",
        str(run),
        "--no-report",
    ]
    assert main(["compare", "heart-disease", *flags]) == 2
    assert (
        not list(target.iterdir())
        if target.is_dir()
        else target.read_text() == "dear to me"
    )


def test_a_report_is_not_written_through_a_link(made, tmp_path):
    (made.run / "outcomes").rename(made.run / "gone")
    (made.run / "outcomes").symlink_to(tmp_path)
    assert main(["report", str(made.run)]) == 2


def test_no_client_is_called_as_the_model_of_all_is():
    rows = (torch.randn(8, 2), torch.tensor([0, 1] * 4))
    with pytest.raises(InputError, match=r"a client is called '\*'"):
        ct.data.from_tensors({"*": rows, "b": rows})


def test_text_from_outside_is_no_formula_in_a_file_of_coterie(tmp_path):
    odd = [
        "=HYPERLINK(1)",
        "+1-800",
        "-2+3",
        "@SUM(1)",
        "\t=1",
        "-1.5",
        "+3e2",
        "-",
        "plain",
        "a=b",
        3,
        None,
        -2.5,
    ]
    write_csv(tmp_path / "x.csv", ("client", "n"), [[value, 1] for value in odd])
    with open(tmp_path / "x.csv", newline="") as file:
        cells = [row["client"] for row in csv.DictReader(file)]
    assert cells == [
        "'=HYPERLINK(1)",
        "'+1-800",
        "'-2+3",
        "'@SUM(1)",
        "'\t=1",
        "-1.5",
        "+3e2",
        "-",
        "plain",
        "a=b",
        "3",
        "",
        "-2.5",
    ]


def test_a_report_reads_names_back_as_they_are(tmp_path):
    from coterie.report.results import Results
    from coterie.run.experiment import Experiment
    from coterie.study.sweep import run_experiment

    (tmp_path / "data").mkdir()
    for client in ("=a", "+b"):
        lines = ["x,y", *(f"{i % 7},{i % 2}" for i in range(24))]
        (tmp_path / "data" / f"{client}.csv").write_text("\n".join(lines) + "\n")
    tables = {
        "data": {"folder": str(tmp_path / "data"), "label": "y"},
        "methods": [{"name": "fedavg"}],
    }
    tables["run"] = {"rounds": 1, "seeds": 1}
    run_experiment(Experiment.from_tables(tables, "a test"), tmp_path / "run")
    results = Results.load(tmp_path / "run")
    assert sorted(results.clients) == ["+b", "=a"]
    assert {
        row["client"]
        for row in json.loads((tmp_path / "run" / "summary.json").read_text())
    } == {"=a", "+b"}
    assert "'=a" in (tmp_path / "run" / "history.csv").read_text()
    assert read_toml(tmp_path / "run" / "experiment.toml")["run"]["rounds"] == 1


OWN_IN_PLANS = {
    "method": {"methods": [{"name": "FILE:Mine"}]},
    "model": {"model": {"name": "FILE:small"}},
    "metric": {"run": {"metrics": ["FILE:always"]}},
    "loss": {"run": {"loss": "FILE:always"}},
    "attack": {"attack": {"name": "FILE:Flip", "on": ["b"]}},
    "filter": {"filters": [{"name": "FILE:Flip"}]},
    "sampler": {"local": {"sampler": {"name": "FILE:Mine"}}},
    "engine": {"engine": {"name": "FILE:Mine"}},
    "data": {"data": {"name": "FILE:small", "label": "y"}},
}


@pytest.mark.promise("files of others run nothing")
@pytest.mark.parametrize("part", OWN_IN_PLANS)
def test_reading_a_plan_imports_nothing(tmp_path, part):
    trace, file = tmp_path / "trace", tmp_path / f"{part}_in_a_plan.py"
    file.write_text(OWN.format(trace=str(trace)))
    tables = {
        "data": {"name": "heart-disease"},
        "methods": [{"name": "fedavg"}],
        "deploy": {"sites": ["a", "b"]},
    }
    text = json.dumps({**tables, **OWN_IN_PLANS[part]}).replace("FILE:", f"{file}:")
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(json.loads(text)))
    with pytest.raises(InputError, match="no code travels to sites"):
        read_plan(tmp_path / "plan.toml")
    assert not trace.exists()


def test_a_plan_has_no_filters_that_lie(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Lie(Filter):
        stage = "attack"

        def apply(self, rows, passage):
            return -rows

    monkeypatch.setitem(FILTERS, "lie", Lie)
    tables = {
        "data": {"name": "heart-disease"},
        "methods": [{"name": "fedavg"}],
        "deploy": {"sites": ["a", "b"]},
    }
    (tmp_path / "plan.toml").write_text(
        tomli_w.dumps({**tables, "filters": [{"name": "lie"}]})
    )
    monkeypatch.setattr(
        "coterie.run.experiment.filters_of", lambda method, filters: filters
    )
    with pytest.raises(
        InputError, match=r"filters: lie is an attack, which is for one machine"
    ):
        read_plan(tmp_path / "plan.toml")
