"""Plans and the commands about them: what is wrong is one sentence that names the place and the cure."""

from __future__ import annotations

import csv

import pytest

from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.config.run import Contribution
from coterie.data import load
from coterie.data.sets.heart_disease import FOLDER, export
from coterie.sites.plan import Deployment, read_plan

PLAN = """
[data]
folder = "hospitals"
label = "num"
above = 0

[[methods]]
name = "fedavg"

[deploy]
sites = ["a", "b"]
"""


def write(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_a_plan_names_the_contributions_that_it_measures(tmp_path):
    plan = read_plan(write(tmp_path, PLAN + "\n[run.contribution]\nevery = 2\n"))
    assert plan.experiment.run.contribution == Contribution(every=2)


def test_a_plan_is_an_experiment_and_where_it_runs(tmp_path):
    plan = read_plan(write(tmp_path, PLAN))
    assert plan.deployment == Deployment(("a", "b"))
    assert [m.name for m in plan.experiment.methods] == ["fedavg"]
    assert plan.deployment.admin == "operator@coterie.org"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[deploy]\n", "[deplo]\n", "there is no [deploy] table"),
        ('sites = ["a", "b"]', "port = 1", "[deploy]: sites is missing"),
        (
            'sites = ["a", "b"]',
            'site = ["a"]',
            "unknown key 'site'; did you mean 'sites'?",
        ),
        ('sites = ["a", "b"]', "sites = []", "sites must be a list of names"),
        ('sites = ["a", "b"]', 'sites = ["a", "a"]', "sites names 'a' twice"),
        (
            'sites = ["a", "b"]',
            'sites = ["a/b"]',
            "sites must be a list of names of letters, digits, - and _",
        ),
        (
            'sites = ["a", "b"]',
            'sites = ["server"]',
            "sites names 'server', which is the server's own name",
        ),
        ('"b"]', '"b"]\nport = 0', "port must be a port from 1 to 65535; got 0"),
        ('"b"]', '"b"]\nserver = "a b"', "server must be a host name"),
        (
            '"b"]',
            '"b"]\norganisation = "a-b"',
            "organisation must be a name of letters, digits and _",
        ),
        ('"b"]', '"b"]\ntimeout = 0', "timeout must be a number of seconds > 0; got 0"),
        ('"b"]', '"b"]\nkits = 3', "kits must be a folder; got 3"),
        ('"b"]', '"b"]\ncolumns = "age"', "columns must be a list of names of columns"),
        ('folder = "hospitals"', 'name = "digits"', "'digits' has no files at sites"),
        ('label = "num"', "", "[data] must name the label"),
        (
            'name = "fedavg"',
            'name = "mine.py:Mine"',
            "mine.py is code of your own, and no code travels to sites",
        ),
        (
            "[deploy]\n",
            '[attack]\nname = "ipm"\non = ["a"]\n[deploy]\n',
            "[attack] is for one machine",
        ),
        (
            "[deploy]\n",
            '[engine]\nname = "ray"\n[deploy]\n',
            "[engine] does not go with [deploy]",
        ),
        (
            "[deploy]\n",
            "[run]\nsave_every = 2\n[deploy]\n",
            "save_every is for one machine",
        ),
        (
            "[deploy]\n",
            '[engine]\nprecision = "bf16"\n[deploy]\n',
            "precision is for one machine",
        ),
        (
            'name = "fedavg"',
            'name = "fedavg"\nseeds = 1',
            "seeds of method 'fedavg' is for one machine",
        ),
    ],
)
def test_what_is_wrong_with_a_plan_is_one_sentence(tmp_path, capsys, old, new, said):
    path = write(tmp_path, PLAN.replace(old, new))
    with pytest.raises(InputError) as error:
        read_plan(path)
    assert said in str(error.value)
    for command in (
        ["deploy", str(path)],
        ["submit", str(path)],
        ["site", "check", str(path)],
    ):
        assert main(command) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert len(told.err.strip().splitlines()) == 1


def test_hospitals_are_exported_as_they_are(tmp_path, capsys):
    assert main(["data", "heart-disease", "--export", str(tmp_path / "files")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    for path in FOLDER.glob("*.csv"):
        assert (
            tmp_path / "files" / path.name
        ).read_text().split() == path.read_text().split()
    assert main(["data", "heart-disease", "--export", str(tmp_path / "files")]) == 2
    assert "exists already" in capsys.readouterr().err
    for named in (["digits"], []):
        assert main(["data", *named, "--export", str(tmp_path / "others")]) == 2
        assert "only heart-disease can be exported" in capsys.readouterr().err
        assert not (tmp_path / "others").exists()


def test_rows_for_a_server_are_taken_out_of_the_hospitals_files(tmp_path):
    files = export(tmp_path / "files", server_rows=90)
    rows = {
        path.stem: list(csv.reader(path.read_text().splitlines()))[1:] for path in files
    }
    assert {name: len(r) for name, r in rows.items()}["server"] == 90
    everything = [
        r
        for path in FOLDER.glob("*.csv")
        for r in list(csv.reader(path.read_text().splitlines()))[1:]
    ]
    assert sorted(r for some in rows.values() for r in some) == sorted(everything)
    options = {"label": "num", "above": 0, "server_file": str(tmp_path / "server.csv")}
    clients = load(tmp_path / "files", **options)
    assert len(clients.server) == 90
    assert clients.server.inputs.shape[1:] == clients.train.inputs.shape[1:]
    with pytest.raises(InputError, match="server_rows must be from 0 to 230; got 231"):
        export(tmp_path / "more", server_rows=231)


@pytest.fixture
def odd_site(tmp_path):
    """A plan that names columns, and a site's file with three things to look at."""
    plan = PLAN.replace('label = "num"', 'label = "num"\ndrop = ["b_only"]').replace(
        'sites = ["a", "b"]', 'sites = ["a", "b"]\ncolumns = ["MEAN_RADIUS", "age"]'
    )
    rows = [f"{i % 7 + 1},{50 + i},{i % 2},{'x' if i == 3 else i}" for i in range(30)]
    return read_plan(write(tmp_path, plan)), tmp_path / "a.csv", rows


def test_a_site_is_told_which_of_its_columns_the_plan_spells_otherwise(odd_site):
    from coterie.sites.check import _file_problems

    plan, file, rows = odd_site
    file.write_text("\n".join(["mean radius,age,num,dose", *rows]))
    with pytest.raises(
        InputError, match="has a column 'mean radius' where the plan has 'MEAN_RADIUS'"
    ):
        _file_problems(file, "a", plan)


def test_a_site_is_shown_what_coterie_check_says_of_its_own_file(odd_site):
    from coterie.sites.check import _file_problems

    plan, file, rows = odd_site
    file.write_text("\n".join(["MEAN_RADIUS,age,num,dose", *rows]))
    found = _file_problems(file, "a", plan)
    assert len(found) == 1
    assert "dose" in found[0]
    assert "b_only" not in found[0]
