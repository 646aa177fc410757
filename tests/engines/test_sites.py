"""Clients that are sites elsewhere, each with a process of its own: same numbers, own rules, failures with names. Nothing carries the
messages here but function calls; `test_flare.py` has NVIDIA FLARE do it."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
import torch
from site_forks import Forked, serve

import coterie.algorithms
import coterie.compute.metrics  # noqa: F401 - the settings of a site may name their tasks
from coterie.base.errors import InputError, RunError
from coterie.cli import main as cli
from coterie.config.local import LocalSGD, Steps
from coterie.contract.encoding import decode, encode
from coterie.contract.federation import Federation, QuorumError
from coterie.data.sets.heart_disease import FOLDER, export
from coterie.report.answer import answer_lines
from coterie.report.html import write
from coterie.report.results import Results
from coterie.run.experiment import Experiment
from coterie.run.tables import preset
from coterie.sites import site as site_module
from coterie.sites.approval import approve
from coterie.sites.backend import Sites
from coterie.sites.flare import submit
from coterie.sites.log import Log, verify_log
from coterie.sites.plan import read_plan
from coterie.sites.server import Remote
from coterie.sites.settings import read_settings
from coterie.sites.site import SERVER, Site
from coterie.study.sweep import run_experiment
from deployment import HOSPITALS, SAME, differences

LOCAL = LocalSGD(lr=0.1, steps=Steps(2), batch_size=16)


METHODS = [
    {"name": "fedavg"},
    {"name": "meritfed", "targets": "all"},
    {"name": "varsel", "internal": ["cleveland", "hungary"]},
    {"name": "scaffold"},
]

PLAN = {
    "local": {"lr": 0.1, "steps": 2, "batch_size": 16},
    "methods": [
        {"name": "fedavg", "label": "x"},
        {"name": "scaffold", "label": "y"},
        *({**m, "local": {"steps": 10, "weight_decay": 1e-3}} for m in METHODS),
    ],
    "run": {"rounds": 50, "seeds": 2, "evaluate": 1},
}
"""What the sites of these tests have approved: METHODS as the preset trains them, and two methods with LOCAL."""


def plan_in(folder, changes):
    """Write PLAN into a folder, some of its tables changed."""
    tables = {
        "data": {"name": "heart-disease"},
        "model": {"name": "logistic"},
        **PLAN,
        **changes,
    }
    tables["deploy"] = {"sites": list(HOSPITALS), **tables.get("deploy", {})}
    (folder / "plan.toml").write_text(tomli_w.dumps(tables))
    return folder / "plan.toml"


def a_site(name, folder, plan=None, **settings):
    """A site with settings of its own that has approved a plan. Its minima are 1: these tests compare with one process, whose
    metrics and batches are of any size."""
    folder.mkdir(parents=True, exist_ok=True)
    minima = dict.fromkeys(
        ("minimum_rows", "minimum_cell", "minimum_batch", "largest_layer"), 1
    )
    own = {"data": str(FOLDER / f"{name}.csv"), **minima, **settings}
    (folder / "coterie.toml").write_text(tomli_w.dumps({"site": own}))
    approve(plan_in(folder, plan or {}), folder / "coterie.toml", unsigned=True)
    return Site(name, folder / "coterie.toml", folder)


def remote(sites, **options):
    """The server's half, which runs the plan that the sites have approved."""
    link = sites if isinstance(sites, Direct) else Direct(sites)
    plan = next(iter(link.sites.values()))._hash if link.sites else ""
    return Remote(link, "run", plan=plan, **options)


class Direct:
    """A link that is a function call; tests change what goes through it."""

    def __init__(self, sites):
        self.sites, self.names = sites, sorted(sites)
        self.reply = {}
        self.held = set()
        self.release, self.late = threading.Event(), []
        self.sent = []

    def call(self, name, message, timeout):
        self.sent.append((name, message))
        if name in self.held:

            def answer_late():
                self.release.wait()
                self.sites[name].handle(message, SERVER)

            thread = threading.Thread(target=answer_late, daemon=True)
            thread.start()
            self.late.append(thread)
            thread.join(timeout)
            raise TimeoutError
        got = self.sites[name].handle(message, SERVER)
        return self.reply[name](got) if name in self.reply else got

    def ping(self, name, timeout):
        return name not in self.held and self.sites[name].is_free(SERVER)


def experiment(methods, rounds=3, seeds=1, filters=(), run=None, **data):
    tables = preset("heart-disease")
    tables["filters"] = list(filters)
    tables["run"] = {"rounds": rounds, "seeds": seeds, **(run or {})}
    tables["methods"] = methods
    tables["data"].update(data)
    for key in ("tune", "split"):
        tables.pop(key, None)
    return Experiment.from_tables(tables, "a test")


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Four sites with the embedded files, whose processes all tests share. The first is started from scratch, as at a real site."""
    folder = tmp_path_factory.mktemp("sites")
    made = {n: a_site(n, folder / n) for n in HOSPITALS}
    from_scratch = iter([subprocess.Popen])
    with pytest.MonkeyPatch.context() as patch:
        starts = SimpleNamespace(
            Popen=lambda *a, **options: next(from_scratch, Forked)(*a, **options)
        )
        patch.setattr(site_module, "subprocess", starts)
        yield made
    for site in made.values():
        site.close()


@pytest.fixture
def hospitals(started, tmp_path):
    """The sites as at the beginning of a job; `make(name, **settings)` changes the settings of one for this test."""
    made, other = dict(started), []
    for site in made.values():
        site._newest = -1

    def make(name, **settings):
        made[name] = a_site(name, tmp_path / name, **settings)
        other.append(made[name])
        return made

    yield made, make
    for site in other:
        site.close()


@pytest.fixture
def ready(hospitals):
    """Sites with rows and a model, the engine and a view of the first round."""
    sites, _ = hospitals
    link = Direct(sites)
    engine = remote(link, timeout=60)
    begin(engine)
    return link, engine, view(engine)


def begin(engine, name="fedavg", label="x"):
    from coterie.models import build_model

    plan = experiment([{"name": name}])
    clients = engine.open(plan.data, 0)
    engine.prepare(
        build_model(plan.build_model(), clients, 0), clients, pair=f"{label}-0"
    )


def view(engine, round=1):
    return Federation(engine, engine.clients, 0, round=round, attempt=1)


def update(federation, **options):
    from coterie.compute.tasks import local_update

    return federation.ask(
        federation.clients, local_update, x=federation.engine.x, local=LOCAL, **options
    )


@pytest.mark.promise("one request, one answer")
def test_sites_give_the_same_numbers_as_one_process_to_the_last_bit(
    hospitals, tmp_path
):
    sites, _ = hospitals
    plan = experiment(METHODS, rounds=2, seeds=2)
    run_experiment(plan, tmp_path / "here")
    run_experiment(plan, tmp_path / "there", backend=Sites(remote(sites)))
    assert not differences(tmp_path / "here", tmp_path / "there")
    assert (tmp_path / "there" / SAME[0]).stat().st_size > 1000
    with open(tmp_path / "there" / "asks.csv", newline="") as file:
        asks = list(csv.DictReader(file))
    assert {a["client"] for a in asks} == set(HOSPITALS)
    assert {a["seed"] for a in asks} == {"0", "1"}
    assert all(
        int(a["bytes_up"]) > 0 and float(a["seconds"]) > 0 and a["failed"] == ""
        for a in asks
    )
    assert not (tmp_path / "here" / "asks.csv").exists()
    page = write(tmp_path / "there").read_text()
    assert "<th>MB up</th>" in page
    assert "MB up" not in write(tmp_path / "here").read_text()


def test_replies_leave_a_site_through_the_filters_of_its_plan(hospitals, tmp_path):
    _, make = hospitals
    filters = [{"name": "top-k", "share": 0.2}]
    methods = [{"name": "fedavg"}, {"name": "local"}]
    as_preset = [{**m, "local": {"steps": 10, "weight_decay": 1e-3}} for m in methods]
    for name in HOSPITALS:
        sites = make(
            name,
            plan={
                "filters": filters,
                "methods": as_preset,
                "run": {"rounds": 3, "seeds": 1},
            },
        )
    plain, plan = experiment(methods), experiment(methods, filters=filters)
    run_experiment(plan, tmp_path / "here")
    run_experiment(plan, tmp_path / "there", backend=Sites(remote(sites)))
    kept = [site.folder for site in sites.values()]
    assert set(differences(tmp_path / "here", tmp_path / "there", *kept)) <= {
        "preprocess.json"
    }
    run_experiment(plain, tmp_path / "plain")
    assert "models" in str(differences(tmp_path / "here", tmp_path / "plain"))
    for site in sites.values():
        site._newest = -1  # a job of its own
    with pytest.raises(RunError, match="is packed, although no filter packs it"):
        run_experiment(plain, tmp_path / "other", backend=Sites(remote(sites)))


@pytest.mark.in_turn
def test_models_come_down_as_the_plan_says_and_no_otherwise(hospitals, tmp_path):
    _, make = hospitals
    methods = [{"name": "fedavg"}, {"name": "ditto"}, {"name": "local"}]
    as_preset = [{**m, "local": {"steps": 10, "weight_decay": 1e-3}} for m in methods]
    half = {"down": "bf16"}
    for name in HOSPITALS:
        settings = {"rounds": 3, "seeds": 1, **half}
        sites = make(name, plan={"methods": as_preset, "run": settings})
    whole, plan = experiment(methods), experiment(methods, run=half)
    run_experiment(plan, tmp_path / "here")
    run_experiment(plan, tmp_path / "there", backend=Sites(remote(sites)))
    kept = [site.folder for site in sites.values()]
    assert set(differences(tmp_path / "here", tmp_path / "there", *kept)) <= {
        "preprocess.json"
    }
    # What sites note for verdicts is what one process says of the rounded model.
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    auc = {
        (r["method"], r["client"]): r["auc"] for r in summary if r["split"] == "test"
    }
    told = json.loads((tmp_path / "there" / "paired.json").read_text())
    told = [row for row in told if row["metric"] == "auc"]
    assert {"fedavg", "ditto"} <= {row["method"] for row in told}
    for row in told:
        assert row["value"] == pytest.approx(auc[row["method"], row["client"]])
    run_experiment(whole, tmp_path / "whole")
    changed = [
        f for f in differences(tmp_path / "here", tmp_path / "whole") if "models" in f
    ]
    assert changed
    assert not any("local" in file for file in changed)
    for site in sites.values():
        site._newest = -1  # a job of its own
    with pytest.raises(RunError, match=r"sends models of FedAvg as bf16 \(run.down\)"):
        run_experiment(whole, tmp_path / "other", backend=Sites(remote(sites)))


@pytest.mark.in_turn
def test_contributions_at_sites_are_those_of_one_process(hospitals, tmp_path):
    _, make = hospitals
    methods = [{"name": "fedavg"}, {"name": "meritfed", "targets": "all"}]
    as_preset = [{**m, "local": {"steps": 10, "weight_decay": 1e-3}} for m in methods]
    measured = {"contribution": {"every": 2}}
    for name in HOSPITALS:
        sites = make(
            name,
            plan={"methods": as_preset, "run": {"rounds": 3, "seeds": 1, **measured}},
        )
    plan = experiment(methods, run=measured)
    run_experiment(plan, tmp_path / "here")
    run_experiment(plan, tmp_path / "there", backend=Sites(remote(sites)))
    assert set(differences(tmp_path / "here", tmp_path / "there")) <= {
        "preprocess.json"
    }
    here, there = (
        (tmp_path / place / "contribution.csv").read_text()
        for place in ("here", "there")
    )
    assert here == there
    assert [
        here.count(f"\n{name},0,,{r},")
        for name in ("fedavg", "meritfed")
        for r in (1, 3)
    ] == [16, 16, 12, 12]


def test_a_checkpoint_of_sites_resumes_with_what_they_remember(hospitals, tmp_path):
    sites, _ = hospitals
    methods = [{"name": "scaffold"}, {"name": "fedavg"}]
    run_experiment(experiment(methods, rounds=4), tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop(event):
        if (event.label, event.round) == ("scaffold", 2):
            raise StopError

    plan = experiment(methods, rounds=4)
    with pytest.raises(StopError):
        run_experiment(
            plan, tmp_path / "there", backend=Sites(remote(sites)), notify=stop
        )
    fresh = {
        n: Site(n, s.folder / "coterie.toml", s.folder) for n, s in sites.items()
    }  # workers of another job
    try:
        run_experiment(
            plan, tmp_path / "there", backend=Sites(remote(fresh)), resume=True
        )
    finally:
        for site in fresh.values():
            site.close()
    assert not differences(tmp_path / "whole", tmp_path / "there")


def test_other_rows_of_a_site_are_refused_by_its_name_or_accepted(hospitals, tmp_path):
    _, make = hospitals
    table = tmp_path / "hungary.csv"
    table.write_bytes((FOLDER / "hungary.csv").read_bytes())
    sites, plan = (
        make("hungary", data=str(table)),
        experiment([{"name": "fedavg"}], rounds=2),
    )
    run_experiment(plan, tmp_path / "run", backend=Sites(remote(sites)))
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *reversed(rows)]) + "\n")
    changed = Site(
        "hungary", sites["hungary"].folder / "coterie.toml", sites["hungary"].folder
    )
    now = {**sites, "hungary": changed}

    def resume(**options):
        for site in now.values():
            site._newest = -1  # a job of its own
        run_experiment(
            plan, tmp_path / "run", backend=Sites(remote(now)), resume=True, **options
        )

    try:
        with pytest.raises(
            InputError,
            match=r"data of clients has changed .*\(hungary\).*--accept-change data",
        ):
            resume()
        resume(accept_change=["data"])
    finally:
        changed.close()
    assert "its user accepted that" in (tmp_path / "run" / "notes.json").read_text()


def test_what_an_operator_accepts_travels_to_the_server(monkeypatch, tmp_path):
    sent = []
    for name in ("need_flare", "_session", "_await_sites", "_follow", "_bring_back"):
        monkeypatch.setattr(
            f"coterie.sites.flare.submit.{name}",
            lambda *arguments: SimpleNamespace(close=lambda: None),
        )
    monkeypatch.setattr(
        "coterie.sites.flare.submit._start",
        lambda session, message, sites: sent.append(message) or "job",
    )
    monkeypatch.setattr("coterie.cli.present.present", lambda *arguments, **options: 0)
    (tmp_path / "kits" / "operator@coterie.org").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / ".submission.json").write_text('{"run": "r", "job": "j"}')
    plan = plan_in(tmp_path, {"deploy": {"kits": "kits"}})
    command = [
        "submit",
        str(plan),
        "--out",
        str(tmp_path / "there"),
        "--resume",
        "--accept-change",
        "data",
    ]
    assert cli.main(command) == 0
    assert sent[0]["accept_change"] == ["data"]


@pytest.mark.parametrize("busy", [0, 2, 9])
def test_a_login_that_a_busy_server_saw_too_late_begins_anew(
    monkeypatch, tmp_path, capfd, busy
):
    logins = []

    def new_secure_session(*arguments, **options):
        logins.append(arguments)
        if len(logins) > busy:
            return "session"
        sys.stderr.write("Traceback (most recent call last):\n")
        raise RuntimeError("error:client_registration no registration session")

    flare = SimpleNamespace(new_secure_session=new_secure_session)
    for name in (
        "nvflare",
        "nvflare.fuel",
        "nvflare.fuel.flare_api",
        "nvflare.fuel.flare_api.flare_api",
    ):
        monkeypatch.setitem(sys.modules, name, flare)
    plan = plan_in(tmp_path, {"deploy": {"kits": "kits"}})
    (tmp_path / "kits" / "operator@coterie.org").mkdir(parents=True)
    monkeypatch.setattr("coterie.sites.flare.submit.need_flare", lambda: None)
    deployment = read_plan(plan).deployment
    if busy < 5:
        assert submit.open_session(plan, deployment, None) == "session"
    else:
        with pytest.raises(
            InputError,
            match=r"does not let the operator in .*no registration session.*is it running",
        ):
            submit.open_session(plan, deployment, None)
    assert len(logins) == min(busy + 1, 5)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.in_turn
def test_rows_at_the_server_are_asked_there(tmp_path):
    export(tmp_path / "files", server_rows=90)
    tables = experiment([{"name": "isfl"}]).tables()
    from coterie.data.sets.heart_disease import OPTIONS

    options = {k: list(v) if isinstance(v, tuple) else v for k, v in OPTIONS.items()}
    tables["data"] = {
        "folder": str(tmp_path / "files"),
        "server_file": str(tmp_path / "server.csv"),
        **options,
    }
    plan = Experiment.from_tables(tables, "a test")
    files = {n: str(tmp_path / "files" / f"{n}.csv") for n in HOSPITALS}
    approved = {k: tables[k] for k in ("data", "model", "local", "methods", "run")}
    sites = {
        n: a_site(n, tmp_path / n, approved, data=file) for n, file in files.items()
    }
    try:
        run_experiment(plan, tmp_path / "here")
        run_experiment(plan, tmp_path / "there", backend=Sites(remote(sites)))
    finally:
        for site in sites.values():
            site.close()
    assert not differences(tmp_path / "here", tmp_path / "there")


# ---- a site's own rules


def test_a_forbidden_task_is_refused_with_the_name_of_the_site_and_the_task(hospitals):
    _, make = hospitals
    sites = make("hungary", refuse=("tasks:local_update",))
    engine = remote(sites)
    begin(engine)
    got = update(view(engine))
    assert got.failed == {"hungary": "its site refuses the task 'tasks:local_update'"}
    with pytest.raises(QuorumError, match="hungary \\(its site refuses the task"):
        update(view(engine), need="all")


def test_a_site_that_fails_is_named_in_the_report(hospitals, tmp_path):
    _, make = hospitals
    engine = remote(make("hungary", refuse=("tasks:local_update",)))
    run_experiment(
        experiment([{"name": "fedavg"}], rounds=2),
        tmp_path / "run",
        backend=Sites(engine),
    )
    said = "hungary failed under fedavg, seed 0; last in round 2, coterie.compute.tasks:local_update: its site refuses"
    results = Results.load(tmp_path / "run")
    assert said in " ".join(" ".join(answer_lines(results)).split())
    assert said in write(tmp_path / "run").read_text()


def test_a_site_with_too_few_rows_refuses_the_run(hospitals):
    _, make = hospitals
    engine = remote(make("switzerland", minimum_rows=500))
    with pytest.raises(
        RunError, match="switzerland \\(it has fewer than the 500 training rows"
    ):
        begin(engine)


def test_a_site_that_offers_another_label_ends_the_run_by_name(hospitals):
    _, make = hospitals
    engine = remote(make("switzerland", label="chol"))
    with pytest.raises(
        RunError,
        match="switzerland \\(the plan predicts 'num', but this site offers only 'chol'",
    ):
        begin(engine)


def test_a_file_that_lacks_a_column_of_the_plan_is_refused_and_its_place_not_told(
    hospitals, tmp_path
):
    _, make = hospitals
    lines = (FOLDER / "hungary.csv").read_text().splitlines()
    (tmp_path / "secret-place.csv").write_text(
        "\n".join(line.partition(",")[2] for line in lines)
    )
    needs = {"deploy": {"columns": ["age", "sex"]}}
    sites = make("hungary", data=str(tmp_path / "secret-place.csv"), plan=needs)
    engine = remote(sites)
    engine._plan = sites["hungary"]._hash
    with pytest.raises(
        RunError,
        match="hungary \\(its file has no column age, which the plan needs; add it\\)",
    ) as error:
        begin(engine)
    assert str(tmp_path) not in str(error.value)


def test_every_ask_is_written_down_at_the_site(ready):
    link, _, federation = ready
    before = len(link.sent)
    update(federation)
    path = link.sites["cleveland"]._log.path
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    last = entries[-1]
    said = {
        key: last[key] for key in ("caller", "what", "round", "pair", "outcome", "plan")
    }
    plan = link.sites["cleveland"]._hash
    task = "coterie.compute.tasks:local_update"
    assert said == {
        "caller": "server",
        "what": task,
        "round": 1,
        "pair": "x-0",
        "outcome": "answered",
        "plan": plan,
    }
    sent = next(m for n, m in link.sent[before:] if n == "cleveland")
    assert last["bytes_down"] == len(sent)
    assert last["bytes_up"] > 100
    assert last["rows"] == 2 * 16
    assert last["settings"]["local"]["fields"]["batch_size"] == 16
    assert {"open", "encode", "prepare", "coterie.data.tables.recipe:describe"} <= {
        e["what"] for e in entries
    }
    assert verify_log(path) == (len(entries), last["chain"], ())


def test_no_cell_of_a_table_leaves_a_site(hospitals, tmp_path):
    _, make = hospitals
    lines = (FOLDER / "hungary.csv").read_text().splitlines()
    noted = [
        lines[0] + ",remark",
        *(f"{line},seen by Dr. Kovács {i % 3}" for i, line in enumerate(lines[1:])),
    ]
    (tmp_path / "hungary.csv").write_text("\n".join(noted))
    sites = make("hungary", data=str(tmp_path / "hungary.csv"))
    told = []
    link = Direct(sites)
    link.reply["hungary"] = lambda got: told.append(got) or got
    begin(remote(link))
    described = next(m for m in told if b'"remark' in m or b"remark" in m)
    about = decode(described)["answer"].blocks[0].values["text"][0]
    assert '"example": [1, "a text"]' in about


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "data is missing; give the path of a file"),
        ("[site]\ndata = 3", "data must be the path of a file; got 3"),
        (
            '[site]\ndata = "a.csv"\nminimum_rows = 0',
            "minimum_rows must be an int > 0; got 0",
        ),
        (
            '[site]\ndata = "a.csv"\nrefuse = ["tasks:local_updat"]',
            "did you mean 'tasks:local_update'",
        ),
        ('[site]\ndata = "a.csv"\nlog = ""', "log must be the path of a file"),
        (
            '[site]\ndata = "a.csv"\nlabel = 3',
            "label must be the name of a column; got 3",
        ),
        (
            '[site]\ndata = "a.csv"\nlabl = "x"',
            "unknown key 'labl'; did you mean 'label'",
        ),
        ("[sit]\n", "unknown table \\[sit\\]; did you mean 'site'"),
        ("[site", "is not valid TOML"),
    ],
)
def test_settings_of_a_site_are_checked_with_one_sentence(tmp_path, text, said):
    path = tmp_path / "coterie.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        read_settings(path)
    assert str(path) in str(error.value)


def test_a_site_without_settings_says_so_to_every_ask(hospitals, tmp_path):
    sites, _ = hospitals
    sites["hungary"] = Site("hungary", tmp_path / "coterie.toml", tmp_path)
    with pytest.raises(RunError, match=r"hungary .*coterie\.toml is missing"):
        begin(remote(sites))


# ---- failures


def altered(change):
    """A reply whose answer `change` has altered in place, as nobody could who uses its constructor."""

    def garble(got):
        message = decode(got)
        change(message["answer"])
        return encode(message)

    return garble


def delta(value):
    """A reply with another delta, or one computed from the true one."""

    def change(answer):
        fields = answer.blocks[0].values
        fields["delta"] = value(fields["delta"]) if callable(value) else value

    return altered(change)


def put(field, value, block=False):
    """A reply whose answer, or its first block, has this value as a field."""
    return altered(
        lambda answer: object.__setattr__(
            answer.blocks[0] if block else answer, field, value
        )
    )


GARBAGE = {
    "a NaN": (delta(lambda d: d * float("nan")), "field 'delta' has NaN or Inf"),
    "an infinity": (delta(lambda d: d / 0.0), "field 'delta' has NaN or Inf"),
    "1e30": (delta(lambda d: d * 0 + 1e30), "over 100 times the median"),
    "a shape": (delta(lambda d: d[:, :-1]), "field 'delta' has shape"),
    "a dtype": (delta(lambda d: d.double()), "torch.float64; expected"),
    "a row too many": (delta(lambda d: torch.cat([d, d])), "field 'delta' has shape"),
    "a string": (delta("hello"), "field 'delta' is a str"),
    "no field": (put("values", {}, block=True), "field 'delta' is a NoneType"),
    "another's name": (
        put("names", ("cleveland",), block=True),
        "it answered for cleveland",
    ),
    "a name that is no text": (put("names", (3,), block=True), "cannot be read"),
    "no block": (put("blocks", ()), "it answered for nobody"),
    "blocks that are a number": (put("blocks", 3), "cannot be read"),
    "work that is not a number": (
        put("spent", {"row_gradients": "all"}),
        "cannot be read",
    ),
    "no answer": (
        lambda got: encode({"serial": decode(got)["serial"]}),
        "an answer is missing",
    ),
    "a reply to another ask": (
        lambda got: encode({**decode(got), "serial": 3}),
        "it replied to another ask",
    ),
    "no message": (lambda got: b"hello", "cannot be read"),
    "half a message": (lambda got: got[: len(got) // 2], "cannot be read"),
    "no bytes": (lambda got: {"delta": 1}, "its reply is a dict, not a message"),
}


@pytest.mark.promise("replies as declared")
def test_garbage_is_refused_with_the_name_of_the_site_and_the_others_count(ready):
    link, _, federation = ready
    clean = update(federation)
    for kind, (change, said) in GARBAGE.items():
        link.reply["hungary"] = change
        got = update(federation)
        assert list(got.failed) == ["hungary"], kind
        assert re.search(said, got.failed["hungary"]), (kind, got.failed)
        kept = [i for i, n in enumerate(clean.clients) if n != "hungary"]
        assert torch.equal(got.delta, clean.delta[kept]), kind
    link.reply.clear()
    assert torch.equal(update(federation).delta, clean.delta)


def test_a_killed_cohort_process_is_that_clients_failure_and_comes_back(ready):
    _, engine, federation = ready
    clean = update(federation)
    site = engine._link.sites["long-beach"]
    first = site._child._process.pid
    os.kill(first, signal.SIGKILL)
    got = update(federation)
    assert got.failed == {
        "long-beach": "its cohort process ended with exit code -9; it was restarted, and what its clients remembered is lost"
    }
    assert torch.equal(update(federation).delta, clean.delta)
    assert site._child._process.pid != first


def serve_trouble(pipe, settings):
    """A site's process whose local training fails while there is a file `trouble` in the site's folder."""
    from coterie.compute.cohort import Cohort

    train, trouble = Cohort.updates, Path(json.loads(settings)["folder"]) / "trouble"

    def updates(self, *args, **options):
        if trouble.exists():
            raise RuntimeError("row 7 holds 63.0")
        return train(self, *args, **options)

    Cohort.updates = updates
    serve(pipe, settings)


def test_a_task_that_fails_is_that_clients_failure_and_its_message_stays_in_the_log(
    ready, monkeypatch
):
    link, _, federation = ready
    site = link.sites["hungary"]
    monkeypatch.setattr("site_forks.serve", serve_trouble)
    os.kill(site._child._process.pid, signal.SIGKILL)
    assert set(update(federation).failed) == {"hungary"}
    trouble = Path(site.folder) / "trouble"
    trouble.touch()
    assert update(federation).failed == {
        "hungary": "its task failed (RuntimeError); the site's own log says more"
    }
    assert "RuntimeError: row 7 holds 63.0" in site._log.path.read_text()
    trouble.unlink()
    assert not update(federation).failed


def test_a_slow_site_is_left_out_and_its_late_ask_does_no_harm(hospitals):
    sites, _ = hospitals
    link = Direct(sites)
    engine = remote(link, timeout=60)
    begin(engine)
    clean = update(view(engine))
    engine._timeout = 0.5
    link.held.add("switzerland")
    seen = []
    engine._watch = seen.append
    got = update(view(engine))
    assert got.failed == {"switzerland": "no reply within 0.5 s"}
    got = update(view(engine))
    assert got.failed == {
        "switzerland": "it let 0.5 s pass before, and does not answer now"
    }
    assert seen[-1].gone == ("switzerland",)
    link.held.remove("switzerland")
    engine._timeout = 60
    again = update(view(engine))
    assert torch.equal(again.delta, clean.delta)
    link.release.set()
    for thread in link.late:
        thread.join()
    assert torch.equal(update(view(engine)).delta, clean.delta)


@pytest.mark.parametrize("fault", ["late", "full disk"])
def test_what_a_task_remembered_that_came_late_or_could_not_be_logged_is_taken_back(
    hospitals, monkeypatch, fault
):
    from coterie.algorithms.scaffold import scaffold_update

    sites, _ = hospitals
    link = Direct(sites)
    engine = remote(link, timeout=60)

    def ask(run, number):
        view, zero = run.view(engine.clients, number, 1), torch.zeros(engine.layout.dim)
        return view.ask(
            HOSPITALS, scaffold_update, x=engine.x, local=LOCAL, control=zero
        )

    def lost(reply):
        raise TimeoutError

    def begun():
        begin(engine, "scaffold", "y")
        run = Federation(engine, engine.clients, 0)
        ask(run, 1)
        return run

    clean = ask(begun(), 2)
    run = begun()
    with monkeypatch.context() as patch:
        if fault == "late":
            patch.setitem(link.reply, "hungary", lost)
        else:
            patch.setattr(sites["hungary"], "_log", Log(Path("/dev/full")))
        assert list(ask(run, 2).failed) == ["hungary"]
    again = ask(run, 2)
    assert not again.forgot
    number = HOSPITALS.index("hungary")
    assert torch.equal(again.change[number], clean.change[number])


@pytest.mark.promise("one request, one answer")
def test_an_ask_that_comes_after_a_later_one_is_refused(hospitals):
    sites, _ = hospitals
    link = Direct(sites)
    engine = remote(link)
    begin(engine)
    late = next(m for n, m in link.sent if n == "hungary")
    assert (
        decode(sites["hungary"].handle(late, SERVER))["failed"]
        == "a later ask came first"
    )


def test_costs_are_known_for_each_site_and_ask(ready):
    _, _, federation = ready
    update(federation)
    record = federation.session.asks[-1]
    assert [c.client for c in record.costs] == list(HOSPITALS)
    assert all(
        c.bytes_down > record.bytes_down and c.bytes_up > record.bytes_up
        for c in record.costs
    )
    assert all(0 < c.seconds <= record.seconds and not c.failed for c in record.costs)


def test_a_label_or_data_set_that_sites_cannot_have_is_refused(hospitals):
    engine = remote(hospitals[0])
    with pytest.raises(InputError, match="'digits' has no files at sites"):
        engine.open({"name": "digits"}, 0)
    with pytest.raises(InputError, match="must name the label"):
        engine.open({"folder": "x"}, 0)
    with pytest.raises(InputError, match="no option 'lable'"):
        engine.open({"folder": "x", "lable": "num"}, 0)
    with pytest.raises(InputError, match="there is no site to ask"):
        remote({})
    assert Path(FOLDER).is_dir()
