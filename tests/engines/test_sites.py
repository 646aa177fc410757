"""Clients that are sites elsewhere, each with a process of its own: same numbers, own rules, failures with names. Nothing carries the
messages here but function calls; `test_flare.py` has NVIDIA FLARE do it."""

from __future__ import annotations

import csv
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import coterie.algorithms
import coterie.core.metrics  # noqa: F401 - the settings of a site may name their tasks
from coterie.core.errors import InputError, RunError
from coterie.core.federation import Federation, QuorumError
from coterie.core.training import LocalSGD, Steps
from coterie.core.wire import PerClient, decode, encode
from coterie.data.sets.heart_disease import FOLDER, export
from coterie.report.html import write
from coterie.report.results import Results
from coterie.report.table import describe_lines
from coterie.run.experiment import Experiment, preset
from coterie.run.fit import start_from
from coterie.run.loop import LoopSettings, run_method
from coterie.run.sweep import initial, metric_names, run_experiment
from coterie.sites.server import Remote
from coterie.sites.site import Site, SiteSettings, read_settings
from deployment import HOSPITALS, SAME, differences

LOCAL = LocalSGD(lr=0.1, steps=Steps(2), batch_size=16)


class Direct:
    """A link that is a function call; tests change what goes through it."""

    def __init__(self, sites):
        self.sites, self.names = sites, sorted(sites)
        self.reply = {}
        self.delay = {}
        self.sent = []

    def call(self, name, message, timeout):
        self.sent.append((name, message))
        if name in self.delay:
            done = []
            thread = threading.Thread(
                target=lambda: (time.sleep(self.delay[name]), done.append(self.sites[name].handle(message)))
            )
            thread.start()
            thread.join(timeout)
            if not done:
                raise TimeoutError
            return done[0]
        got = self.sites[name].handle(message)
        return self.reply[name](got) if name in self.reply else got

    def ping(self, name, timeout):
        return name not in self.delay and not self.sites[name].busy


class Back:
    """The backend of `coterie.sites.flare.server`, which needs FLARE to be imported."""

    def __init__(self, engine):
        self.engine = engine

    def load(self, experiment, seed):
        return self.engine.open(experiment.data, experiment.split, seed)

    def fit(self, experiment, entry, clients, module, seed, *, checkpoint, resume, progress):
        method, run, start = experiment.build_method(entry), experiment.run, initial(experiment)
        if start is not None:
            start_from(module, start)
        keep = method.keeps_validation(clients.names) if hasattr(method, "keeps_validation") else ()
        pair = f"{entry.label}-{seed}"
        self.engine.prepare(module, experiment.build_model(), clients, pair=pair, resume=resume, keep=keep)
        settings = LoopSettings(run.rounds, seed, run.clients_per_round, run.evaluate, metric_names(experiment))
        return run_method(self.engine, method, settings, checkpoint=checkpoint, resume=resume, progress=progress)


def experiment(methods, rounds=3, seeds=1, **data):
    tables = preset("heart-disease")
    tables["run"] = {"rounds": rounds, "seeds": seeds}
    tables["methods"] = methods
    tables["data"].update(data)
    tables.pop("tune", None)
    return Experiment.from_tables(tables, "a test")


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Four sites with the embedded files, whose processes all tests share: starting one takes longer than a test."""
    folder = tmp_path_factory.mktemp("sites")
    made = {
        n: Site(n, SiteSettings(str(FOLDER / f"{n}.csv"), log=str(folder / f"{n}.log")), folder / n) for n in HOSPITALS
    }
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
        values = {"data": str(FOLDER / f"{name}.csv"), "log": str(tmp_path / f"{name}.log"), **settings}
        made[name] = Site(name, SiteSettings(**values), tmp_path / name)
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
    engine = Remote(link, "run", timeout=60)
    begin(engine)
    return link, engine, view(engine)


def begin(engine, name="fedavg"):
    from coterie.models import build_model

    plan = experiment([{"name": name}])
    clients = engine.open(plan.data, plan.split, 0)
    engine.prepare(build_model(plan.build_model(), clients, 0), plan.build_model(), clients, pair="x")


def view(engine, round=1):
    return Federation(engine, engine.clients, 0, round=round, attempt=1)


def update(federation, **options):
    from coterie.algorithms.fedavg import local_update

    return federation.ask(federation.clients, local_update, x=federation.engine.x, local=LOCAL, **options)


METHODS = [
    {"name": "fedavg"},
    {"name": "meritfed", "targets": "all"},
    {"name": "varsel", "internal": ["cleveland", "hungary"]},
    {"name": "scaffold"},
]


def test_sites_give_the_same_numbers_as_one_process_to_the_last_bit(hospitals, tmp_path):
    sites, _ = hospitals
    plan = experiment(METHODS, seeds=2)
    run_experiment(plan, tmp_path / "here")
    run_experiment(plan, tmp_path / "there", backend=Back(Remote(Direct(sites), "run")))
    assert not differences(tmp_path / "here", tmp_path / "there")
    assert (tmp_path / "there" / SAME[0]).stat().st_size > 1000
    with open(tmp_path / "there" / "asks.csv", newline="") as file:
        asks = list(csv.DictReader(file))
    assert {a["client"] for a in asks} == set(HOSPITALS)
    assert {a["seed"] for a in asks} == {"0", "1"}
    assert all(int(a["bytes_up"]) > 0 and float(a["seconds"]) > 0 and a["failed"] == "" for a in asks)
    assert not (tmp_path / "here" / "asks.csv").exists()
    page = write(tmp_path / "there").read_text()
    assert "<th>MB up</th>" in page
    assert "MB up" not in write(tmp_path / "here").read_text()


def test_a_checkpoint_of_sites_resumes_with_what_they_remember_and_here_with_the_same_fingerprint(hospitals, tmp_path):
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
        run_experiment(plan, tmp_path / "there", backend=Back(Remote(Direct(sites), "run")), notify=stop)
    fresh = {n: Site(n, s._settings, s._folder) for n, s in sites.items()}  # workers of another job
    try:
        run_experiment(plan, tmp_path / "there", backend=Back(Remote(Direct(fresh), "run")), resume=True)
    finally:
        for site in fresh.values():
            site.close()
    assert not differences(tmp_path / "whole", tmp_path / "there")
    run_experiment(plan, tmp_path / "there", resume=True)


def test_rows_at_the_server_are_asked_there(tmp_path):
    export(tmp_path / "files", server_rows=90)
    sites = {
        n: Site(n, SiteSettings(str(tmp_path / "files" / f"{n}.csv"), log=str(tmp_path / "log")), tmp_path / n)
        for n in HOSPITALS
    }
    tables = experiment([{"name": "isfl"}]).tables()
    from coterie.data.sets.heart_disease import OPTIONS

    options = {k: list(v) if isinstance(v, tuple) else v for k, v in OPTIONS.items()}
    tables["data"] = {"folder": str(tmp_path / "files"), "server_file": str(tmp_path / "server.csv"), **options}
    plan = Experiment.from_tables(tables, "a test")
    try:
        run_experiment(plan, tmp_path / "here")
        run_experiment(plan, tmp_path / "there", backend=Back(Remote(Direct(sites), "run")))
    finally:
        for site in sites.values():
            site.close()
    assert not differences(tmp_path / "here", tmp_path / "there")


# ---- a site's own rules


def test_a_forbidden_task_is_refused_with_the_name_of_the_site_and_the_task(hospitals):
    _, make = hospitals
    sites = make("hungary", refuse=("fedavg:local_update",))
    engine = Remote(Direct(sites), "run")
    begin(engine)
    got = update(view(engine))
    assert got.failed == {"hungary": "its site refuses the task 'fedavg:local_update'"}
    with pytest.raises(QuorumError, match="hungary \\(its site refuses the task"):
        update(view(engine), need="all")


def test_a_site_that_fails_is_named_in_the_report(hospitals, tmp_path):
    _, make = hospitals
    engine = Remote(Direct(make("hungary", refuse=("fedavg:local_update",))), "run")
    run_experiment(experiment([{"name": "fedavg"}], rounds=2), tmp_path / "run", backend=Back(engine))
    said = (
        "hungary failed under fedavg, seed 0; last in round 2, coterie.algorithms.fedavg:local_update: its site refuses"
    )
    results = Results.load(tmp_path / "run")
    assert said in " ".join(" ".join(describe_lines(results)).split())
    assert said in write(tmp_path / "run").read_text()


def test_a_site_with_too_few_rows_answers_nothing(hospitals):
    _, make = hospitals
    engine = Remote(Direct(make("switzerland", minimum_rows=500)), "run")
    with pytest.raises(QuorumError, match="switzerland \\(it has fewer than the 500 training rows"):
        begin(engine)


def test_a_site_that_offers_another_label_ends_the_run_by_name(hospitals):
    _, make = hospitals
    engine = Remote(Direct(make("switzerland", label="chol")), "run")
    with pytest.raises(RunError, match="switzerland \\(the plan predicts 'num', but this site offers only 'chol'"):
        begin(engine)


def test_a_file_that_lacks_a_column_of_the_plan_is_refused_and_its_place_not_told(hospitals, tmp_path):
    _, make = hospitals
    lines = (FOLDER / "hungary.csv").read_text().splitlines()
    (tmp_path / "secret-place.csv").write_text("\n".join(line.partition(",")[2] for line in lines))
    engine = Remote(Direct(make("hungary", data=str(tmp_path / "secret-place.csv"))), "run", columns=("age", "sex"))
    with pytest.raises(
        RunError, match="hungary \\(its file has no column age, which the plan needs; add it\\)"
    ) as error:
        begin(engine)
    assert str(tmp_path) not in str(error.value)


def test_every_ask_is_written_down_at_the_site(ready):
    link, _, federation = ready
    before = len(link.sent)
    update(federation)
    with open(link.sites["cleveland"]._settings.log, newline="") as file:
        rows = list(csv.DictReader(file))
    last = rows[-1]
    assert (last["task"], last["round"], last["outcome"]) == ("coterie.algorithms.fedavg:local_update", "1", "answered")
    sent = next(m for n, m in link.sent[before:] if n == "cleveland")
    assert int(last["bytes_down"]) == len(sent)
    assert int(last["bytes_up"]) > 100
    assert {"open", "encode", "prepare", "coterie.data.tables.recipe:describe"} <= {r["task"] for r in rows}


def test_no_cell_of_a_table_leaves_a_site(hospitals, tmp_path):
    _, make = hospitals
    lines = (FOLDER / "hungary.csv").read_text().splitlines()
    noted = [lines[0] + ",remark", *(f"{line},seen by Dr. Kovács {i % 3}" for i, line in enumerate(lines[1:]))]
    (tmp_path / "hungary.csv").write_text("\n".join(noted))
    sites = make("hungary", data=str(tmp_path / "hungary.csv"))
    told = []
    link = Direct(sites)
    link.reply["hungary"] = lambda got: told.append(got) or got
    begin(Remote(link, "run"))
    described = next(m for m in told if b'"remark' in m or b"remark" in m)
    about = decode(described)["answer"].blocks[0].values["text"][0]
    assert '"example": [1, "a text"]' in about


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must name the data file"),
        ("[site]\ndata = 3", "data must be the path of a file; got 3"),
        ('[site]\ndata = "a.csv"\nminimum_rows = 0', "minimum_rows must be an int >= 1; got 0"),
        ('[site]\ndata = "a.csv"\nrefuse = ["fedavg:local_updat"]', "did you mean 'fedavg:local_update'"),
        ('[site]\ndata = "a.csv"\nlog = ""', "log must be the path of a file"),
        ('[site]\ndata = "a.csv"\nlabel = 3', "label must be the name of a column; got 3"),
        ('[site]\ndata = "a.csv"\nlabl = "x"', "unknown key 'labl'; did you mean 'label'"),
        ("[sit]\n", "unknown table \\[sit\\]; did you mean 'site'"),
        ("[site", "is no valid TOML"),
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
    sites["hungary"] = Site("hungary", "there is no settings file", tmp_path)
    with pytest.raises(RunError, match="hungary \\(there is no settings file\\)"):
        begin(Remote(Direct(sites), "run"))


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
    return altered(lambda answer: object.__setattr__(answer.blocks[0] if block else answer, field, value))


GARBAGE = {
    "a NaN": (delta(lambda d: d * float("nan")), "field 'delta' has NaN or Inf"),
    "an infinity": (delta(lambda d: d / 0.0), "field 'delta' has NaN or Inf"),
    "1e30": (delta(lambda d: d * 0 + 1e30), "over 1e\\+06 times the median"),
    "a shape": (delta(lambda d: d[:, :-1]), "field 'delta' has shape"),
    "a dtype": (delta(lambda d: d.double()), "torch.float64; expected"),
    "a row too many": (delta(lambda d: torch.cat([d, d])), "field 'delta' has shape"),
    "a string": (delta("hello"), "field 'delta' is a str"),
    "no field": (put("values", {}, block=True), "field 'delta' is a NoneType"),
    "another's name": (put("names", ("cleveland",), block=True), "it answered for cleveland"),
    "a name that is no text": (put("names", (3,), block=True), "cannot be read"),
    "no block": (put("blocks", ()), "it answered for nobody"),
    "blocks that are a number": (put("blocks", 3), "cannot be read"),
    "work that is no number": (put("spent", {"row_gradients": "all"}), "cannot be read"),
    "no answer": (lambda got: encode({"serial": decode(got)["serial"]}), "an answer is missing"),
    "a reply to another ask": (lambda got: encode({**decode(got), "serial": 3}), "it replied to another ask"),
    "no message": (lambda got: b"hello", "cannot be read"),
    "half a message": (lambda got: got[: len(got) // 2], "cannot be read"),
    "no bytes": (lambda got: {"delta": 1}, "its reply is a dict, not a message"),
}


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


def test_a_task_that_fails_is_that_clients_failure_with_its_message(ready):
    from coterie.algorithms.fedavg import local_update

    _, _, federation = ready
    short = torch.zeros(3)
    with pytest.raises(QuorumError, match=r"cleveland \(RuntimeError: .* size"):
        federation.ask(federation.clients, local_update, x=short, local=LOCAL)
    assert not update(federation).failed


def test_a_slow_site_is_left_out_until_it_answers_a_ping_and_its_late_ask_does_no_harm(hospitals):
    sites, _ = hospitals
    link = Direct(sites)
    engine = Remote(link, "run", timeout=60)
    begin(engine)
    clean = update(view(engine))
    engine._timeout = 0.5
    link.delay["switzerland"] = 2.0
    seen = []
    engine._watch = seen.append
    got = update(view(engine))
    assert got.failed == {"switzerland": "no reply within 0.5 s"}
    got = update(view(engine))
    assert got.failed == {"switzerland": "it let 0.5 s pass before, and does not answer now"}
    assert seen[-1].gone == ("switzerland",)
    del link.delay["switzerland"]
    engine._timeout = 60
    again = update(view(engine))
    assert torch.equal(again.delta, clean.delta)
    time.sleep(2.0)
    assert torch.equal(update(view(engine)).delta, clean.delta)


def test_what_a_late_task_remembered_is_taken_back(hospitals):
    from coterie.algorithms.scaffold import controlled_update

    sites, _ = hospitals
    link = Direct(sites)
    engine = Remote(link, "run", timeout=60)
    begin(engine, "scaffold")

    def ask():
        """A client whose control of this round is there has not lost it."""
        control, counted = torch.zeros(engine.layout.dim), torch.ones(len(HOSPITALS), dtype=torch.int64)
        federation = view(engine)
        return federation.ask(
            HOSPITALS, controlled_update, x=engine.x, local=LOCAL, control=control, counted=PerClient(counted)
        )

    link.delay["hungary"], engine._timeout = 1.5, 0.3
    assert list(ask().failed) == ["hungary"]
    del link.delay["hungary"]
    engine._timeout = 60
    time.sleep(2.0)
    again = ask()
    assert again.named(again.lost) == {"cleveland": 0, "hungary": 1, "long-beach": 0, "switzerland": 0}
    assert not ask().lost.any()


def test_an_ask_that_comes_after_a_later_one_is_refused(hospitals):
    sites, _ = hospitals
    link = Direct(sites)
    engine = Remote(link, "run")
    begin(engine)
    late = next(m for n, m in link.sent if n == "hungary")
    assert decode(sites["hungary"].handle(late))["failed"] == "a later ask came first"


def test_costs_are_known_for_each_site_and_ask(ready):
    _, _, federation = ready
    update(federation)
    record = federation.session.asks[-1]
    assert [c.client for c in record.costs] == list(HOSPITALS)
    assert all(c.bytes_down > record.bytes_down and c.bytes_up > record.bytes_up for c in record.costs)
    assert all(0 < c.seconds <= record.seconds and not c.failed for c in record.costs)


def test_a_label_or_data_set_that_sites_cannot_have_is_refused(hospitals):
    engine = Remote(Direct(hospitals[0]), "run")
    with pytest.raises(InputError, match="'digits' has no files at sites"):
        engine.open({"name": "digits"}, {}, 0)
    with pytest.raises(InputError, match="must name the label"):
        engine.open({"folder": "x"}, {}, 0)
    with pytest.raises(InputError, match="no option 'lable'"):
        engine.open({"folder": "x", "lable": "num"}, {}, 0)
    with pytest.raises(InputError, match="there is no site to ask"):
        Remote(Direct({}), "run")
    assert Path(FOLDER).is_dir()
