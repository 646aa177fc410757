"""Bad input of any kind: exit status 2, one sentence with the cure, nothing trained, nothing lost."""

from __future__ import annotations

import builtins
import json
import shutil
import sys

import pytest
import torch
from commands import subprocess_run
from safetensors.torch import save_file

from coterie.contract.federation import Federation


def table(rows, header="age,kind,outcome"):
    return "\n".join([header, *rows]) + "\n"


GOOD = table([f"{20 + i},{'xy'[i % 2]},{(i // 2) % 2}" for i in range(16)])
FOLDER = {"good/a.csv": GOOD, "good/b.csv": GOOD}
OWN = ("compare", "good", "--label", "outcome")
HEART = ("compare", "heart-disease")
TOML = '[data]\nname = "heart-disease"\n[[methods]]\nname = "fedavg"\n'


@pytest.fixture
def nothing_is_asked(monkeypatch):
    def ask(*_, **__):
        raise AssertionError("a client was asked before all input was checked")

    monkeypatch.setattr(Federation, "ask", ask)


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def assert_one_sentence(ended, *words, status=2):
    assert ended.status == status, ended
    assert ended.out == ""
    assert ended.err.startswith("coterie: "), ended.err
    assert ended.err.count("\n") == 1, ended.err
    for word in words:
        assert word in ended.err, ended.err


# ---- the command line

FLAGS = {
    "no data": (("compare",), "required: data"),
    "unknown command": (("comapre", "heart-disease"), "no command 'comapre'; did you mean 'compare'?"),
    "another spelling": (("finalize", "runs/heart"), "no command 'finalize'; did you mean 'finalise'?"),
    "unknown flag": ((*HEART, "--sedes", "3"), "there is no option --sedes; did you mean '--seeds'?"),
    "a flag cut short": ((*HEART, "--seed=3"), "there is no option --seed; did you mean '--seeds'?"),
    "two data sets": ((*HEART, "digits"), "'digits' is one argument too many: name one folder, and separate methods by commas"),
    "unknown data": (("compare", "haert-disease"), "did you mean 'heart-disease'?"),
    "a file as folder": (("compare", "good/a.csv"), "good/a.csv is a file; give the folder"),
    "unknown method": ((*HEART, "--methods", "local,fedagv"), "there is no method 'fedagv'; did you mean 'fedavg'?"),
    "no method": ((*HEART, "--methods", ","), "--methods names no method"),
    "a method twice": ((*HEART, "--methods", "local,local"), "two methods are called 'local'"),
    "unknown model": ((*HEART, "--model", "logisitc"), "did you mean 'logistic'?"),
    "unknown metric": ((*HEART, "--metrics", "accuracy,acu"), "there is no metric 'acu'; did you mean 'auc'?"),
    "seeds in words": ((*HEART, "--seeds", "five"), "--seeds must be an int >= 1 or a list of ints >= 0, at most 10,000 seeds"),
    "no seeds": ((*HEART, "--seeds", "0"), "run.seeds must be an int >= 1 or a list of ints >= 0, at most 10,000 seeds"),
    "negative seeds": ((*HEART, "--seeds", "-1"), "run.seeds", "-1"),
    "a negative seed": ((*HEART, "--seeds=-1,2"), "run.seeds must be an int >= 1 or a list of ints >= 0"),
    "a deep value": ((*HEART, "--set", f"data.x={'[' * 3000}"), "is not a TOML value", "more than 32 tables and lists"),
    "seeds twice": ((*HEART, "--seeds", "3,3"), "run.seeds repeat"),
    "rounds in words": ((*HEART, "--rounds", "many"), "--rounds", "'many'"),
    "negative rounds": ((*HEART, "--rounds", "-1"), "run.rounds must be an int >= 0, at most 1,000,000; got -1"),
    "no workers": ((*HEART, "--workers", "0"), "engine.workers must be an int > 0; got 0"),
    "nobody per round": ((*HEART, "--clients-per-round", "0"), 'clients_per_round must be "default" (all clients) or a number'),
    "too many per round": ((*HEART, "--clients-per-round", "9"), "run.clients_per_round is 9, but there are 4 clients"),
    "all sets of ten": (
        ("compare", "digits", "--split", "iid", "--methods", "fedavg", "--set", 'run.contribution={estimator="exact"}'),
        "asks the losses of 2^10 sets of clients",
    ),
    "lr 0": ((*HEART, "--lr", "0"), "LocalSGD.lr must be a number > 0; got 0.0"),
    "lr nan": ((*HEART, "--lr", "nan"), "LocalSGD.lr must be a number > 0; got nan"),
    "steps 0": ((*HEART, "--steps", "0"), "steps must be an int > 0; got 0"),
    "batch size 0": ((*HEART, "--batch-size", "0"), "LocalSGD.batch_size must be"),
    "set without value": ((*HEART, "--set", "meritfed.md_step"), "must look like meritfed.md_step=.3"),
    "set without field": ((*HEART, "--set", "rounds=3"), "must look like"),
    "set of an unknown method": ((*HEART, "--set", "meritfde.lr=1"), "did you mean 'meritfed'?"),
    "set of an unknown field": ((*HEART, "--set", "meritfed.md_stp=1"), "unknown key 'md_stp'; did you mean 'md_step"),
    "set of an unknown key of run": ((*HEART, "--set", "run.round=1"), "unknown key 'round'; did you mean 'rounds'?"),
    "set out of range": ((*HEART, "--set", "meritfed.md_step=-1"), "MeritFed.md_step must be a number >= 0 or"),
    "set inf": ((*HEART, "--set", "meritfed.md_step=inf"), "MeritFed.md_step must be a number >= 0 or"),
    "unknown oracle": ((*HEART, "--set", "meritfed.oracle=gradeint"), "MeritFed.oracle must be gradient | loss"),
    "targets that are none": ((*HEART, "--set", "meritfed.targets=[]"), "MeritFed.targets must be"),
    "targets of a kind": ((*HEART, "--set", "meritfed.targets=3"), "method 'meritfed'"),
    "unknown target": ((*HEART, "--set", "meritfed.targets=swizterland"), "did you mean 'switzerland'?"),
    "unknown target of two": ((*HEART, "--set", 'meritfed.targets=["hungary", "zuerich"]'), "'zuerich'"),
    "server without rows": ((*HEART, "--set", "meritfed.validation=server"), "server"),
    "evaluate 0": ((*HEART, "--set", "run.evaluate=0"), 'run.evaluate must be "default" (about twenty evaluations) or an int'),
    "metrics in a number": ((*HEART, "--set", "run.metrics=3"), "run.metrics must be a list of names"),
    "unknown device": ((*HEART, "--set", "engine.device=gpu"), "device 'gpu' cannot be used here", "take cpu"),
    "unknown kernel": ((*HEART, "--set", "engine.kernel=fast"), "engine.kernel must be auto | vmap | loop; got 'fast'"),
    "unknown engine": ((*HEART, "--engine", "rai"), "[engine]: there is no engine 'rai'; did you mean 'ray'?"),
    "merge_validation in words": ((*HEART, "--set", "run.merge_validation=yes"), "run.merge_validation must be true or false"),
    "unknown option of data": ((*HEART, "--set", "data.hospitals=2"), "heart-disease has no option 'hospitals'"),
    "unknown key of split": ((*HEART, "--set", "split.sede=2"), "[split]: unknown key 'sede'; did you mean 'seed'?"),
    "a split of hospitals": ((*HEART, "--split", "iid"), "[split] kind does not apply to heart-disease"),
    "clients of hospitals": ((*HEART, "--clients", "3"), "[split] clients does not apply to heart-disease"),
    "a label of hospitals": ((*HEART, "--label", "age"), "heart-disease has its own label"),
    "unknown split": (("compare", "digits", "--split", "dirichlt"), "did you mean 'dirichlet'?"),
    "alpha 0": (("compare", "digits", "--alpha", "0"), "split.alpha must be a number > 0; got 0.0"),
    "alpha of another split": (("compare", "digits", "--split", "iid", "--alpha", "1"), "alpha belongs to"),
    "no clients": (("compare", "digits", "--clients", "0"), "split.clients must be an int > 0; got 0"),
    "too many clients": (("compare", "digits", "--clients", "5000"), "5000"),
    "a list that is no TOML": ((*HEART, "--set", "split.parts={train=.9}"), "'{train=.9}' is not a TOML value", "write 0.5"),
    "parts beyond 1": ((*HEART, "--set", "split.parts={train=0.9,test=0.9}"), "add up to 1.8"),
    "init without file": ((*HEART, "--init", "none.safetensors"), "it is not a safetensors file"),
    "init of another kind": ((*HEART, "--init", "good/a.csv"), "it is not a safetensors file"),
    "init of another shape": ((*HEART, "--init", "wide.safetensors"), "shape (1, 99), expected (1, 15)"),
    "init of another model": ((*HEART, "--init", "wide.safetensors", "--model", "mlp"), "the initial model lacks '0."),
    "freeze nothing": ((*HEART, "--freeze", "layer9.*"), "'layer9.*' fits no parameter; there are weight, bias"),
    "freeze all": ((*HEART, "--freeze", "*"), "freeze"),
    "out is a file": ((*HEART, "--out", "good/a.csv"), "good/a.csv is a file; choose another --out"),
    "out below a file": ((*HEART, "--out", "good/a.csv/x"), "choose another --out"),
    "out holds data": ((*HEART, "--out", "good"), "is not a run directory; choose another --out"),
    "a folder that is no run": (("report", "good"), "good lacks summary.json"),
    "a report of nothing": (("report", "nowhere"), "there is no run directory 'nowhere'"),
    "show of nothing": (("show", "meritfde"), "did you mean 'meritfed'?"),
    "predict without run or client": (("predict", "nowhere", "good/a.csv"), "there is no run directory 'nowhere'"),
    "predict without run": (("predict", "nowhere", "good/a.csv", "--client", "a"), "there is no run directory 'nowhere'"),
    "tune of an unknown method": ((*HEART, "--tune", "--set", "tune.meritfde.lr=[1]"), "did you mean 'meritfed'?"),
    "tune of a single value": ((*HEART, "--tune", "--set", "tune.local.lr=1"), "must be a list of values"),
    "tune of an unknown field": ((*HEART, "--tune", "--set", "tune.meritfed.x=[1]"), "unknown key 'x'"),
    "tune out of range": ((*HEART, "--tune", "--set", "tune.local.lr=[0]"), "LocalSGD.lr must be a number > 0"),
    "tune without validation": (
        (*HEART, "--tune", "--set", "split.parts={train=0.5,test=0.5}"),
        "--tune needs validation rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAGS)
def test_bad_flags(coterie, tmp_path, nothing_is_asked, case):
    argv, *words = FLAGS[case]
    write(tmp_path, FOLDER)
    save_file(
        {"weight": torch.zeros(1, 99), "bias": torch.zeros(1)},
        tmp_path / "wide.safetensors",
    )
    before = sorted(tmp_path.rglob("*"))
    assert_one_sentence(coterie(*argv), *words)
    assert sorted(tmp_path.rglob("*")) == before


# ---- an experiment's file

FILES = {
    "no file": (None, "x.toml cannot be read: No such file"),
    "broken": ("[data\n", "x.toml is not valid TOML"),
    "no text": (b"\xff\xfe\x00", "x.toml is not a text in UTF-8"),
    "a number of 5,000 digits": (TOML + f"x = {'1' * 5000}\n", "x.toml is not valid TOML"),
    "5,000 lists within each other": (TOML + f"x = {'[' * 5000}{']' * 5000}\n", "x.toml: more than 32 tables and lists"),
    "5,000 tables within each other": (f"x{'.x' * 5000} = 1\n", "x.toml: more than 32 tables and lists"),
    "three thousand million seeds": (TOML + "[run]\nseeds = 3000000000\n", "at most 10,000 seeds; got 3000000000"),
    "a value of 5,000 letters": (TOML + f"[run]\nrounds = '{'z' * 5000}'\n", "run.rounds must be an int", "; got 'zzz", "..."),
    "empty": ("", "x.toml: [data] needs a name or a folder"),
    "no methods": ('[data]\nname = "heart-disease"\n', "x.toml: there is no [[methods]] entry"),
    "one table of methods": ('methods = {name = "fedavg"}\n[data]\nname = "heart-disease"\n', "[[methods]]"),
    "a method without name": (TOML + "[[methods]]\nlr = 1\n", "each [[methods]] entry needs a name"),
    "a method in a word": ('methods = ["fedavg"]\n[data]\nname = "heart-disease"\n', "each [[methods]] entry"),
    "unknown table": (TOML + "[rum]\nrounds = 3\n", "x.toml: unknown table [rum]; did you mean 'run'?"),
    "a word as table": ("run = 3\n" + TOML, "x.toml: [run] must be a table"),
    "unknown key of data": (TOML.replace("\n[[", "\nnaem = 1\n[["), "x.toml: heart-disease has no option 'naem'"),
    "unknown key of split": (TOML + "[split]\nkidn = 'iid'\n", "x.toml: [split]: unknown key 'kidn'; did you mean 'kind'"),
    "unknown key of model": (TOML + "[model]\nname = 'mlp'\nhiden = [3]\n", "[model]: unknown key 'hiden'", "'hidden'"),
    "a key of no model": (TOML + "[model]\nhidden = [3]\n", "unknown key 'hidden'; it has none"),
    "unknown key of local": (TOML + "[local]\nlrr = 1\n", "[local]: unknown key 'lrr'", "did you mean 'lr'?"),
    "unknown key of a method": (TOML + "lrr = 1\n", "method 'fedavg': unknown key 'lrr'; did you mean 'lr'?"),
    "unknown key of its local": (TOML + "local = {stepz = 1}\n", "method 'fedavg'", "did you mean 'steps'?"),
    "unknown key of run": (TOML + "[run]\nseed = 1\n", "[run]: unknown key 'seed'; did you mean 'seeds'?"),
    "steps and epochs": (TOML + "[local]\nsteps = 1\nepochs = 1\n", "steps and epochs exclude each other"),
    "epochs of a half": (TOML + "[local]\nepochs = 0.5\n", "epochs must be an int"),
    "momentum 1": (TOML + "[local]\nmomentum = 1\n", "LocalSGD.momentum must be in [0, 1)"),
    "negative decay": (TOML + "[local]\nweight_decay = -1\n", "LocalSGD.weight_decay must be a number >= 0"),
    "clip 0": (TOML + "[local]\nclip = 0\n", "LocalSGD.clip must be"),
    "unknown optimiser": (TOML + "[local]\noptimiser = 'adma'\n", "rmsprop", "got 'adma'"),
    "a sampler in a word": (TOML + "[local]\nsampler = 'x'\n", "x.toml, [local]: sampler: there is no sampler 'x'; allowed:"),
    "lr in a word": (TOML + "[local]\nlr = 'fast'\n", "LocalSGD.lr must be a number > 0; got 'fast'"),
    "a schedule without start": (TOML + "[local]\nlr = {factor = 0.1}\n", "start"),
    "a schedule of words": (TOML + "[local]\nlr = {start = 0.1, at = 'soon'}\n", "Schedule.at"),
    "a schedule's factor": (TOML + "[local]\nlr = {start = 0.1, factor = -1}\n", "Schedule.factor"),
    "hidden as a number": (TOML + "[model]\nname = 'mlp'\nhidden = 3\n", "MLP.hidden must be a list of ints > 0; got 3"),
    "dropout 1": (TOML + "[model]\nname = 'mlp'\ndropout = 1\n", "MLP.dropout must be in [0, 1)"),
    "a model's name": (TOML + "[model]\nname = 3\n", "model.name must be a text; got 3"),
    "an init that is none": (TOML + "[model]\ninit = 3\n", "model.init must be a text; got 3"),
    "a freeze that is none": (TOML + "[model]\nfreeze = 3\n", "model.freeze must be a list of patterns; got 3"),
    "a data name": ("[data]\nname = 3\n[[methods]]\nname = 'local'\n", "data.name must be a text; got 3"),
    "seeds in words": (TOML + "[run]\nseeds = 'five'\n", "run.seeds must be an int >= 1 or a list"),
    "seeds of words": (TOML + "[run]\nseeds = ['a']\n", "run.seeds must be"),
    "no seeds": (TOML + "[run]\nseeds = []\n", "run.seeds must be"),
    "half a round": (TOML + "[run]\nrounds = 0.5\n", "run.rounds must be an int >= 0, at most 1,000,000; got 0.5"),
    "true rounds": (TOML + "[run]\nrounds = true\n", "run.rounds must be an int >= 0, at most 1,000,000; got True"),
    "out as a number": (TOML + "[run]\nout = 3\n", "run.out must be a folder; got 3"),
    "device as a number": (TOML + "[engine]\ndevice = 3\n", "engine.device must be a text; got 3"),
    "an engine's key": (TOML + "[engine]\nworker = 3\n", "[engine]: unknown key 'worker'; did you mean 'workers'?"),
    "workers of a run": (TOML + "[run]\nworkers = 2\n", "[run]: workers belongs to the engine; write workers = ... under [engine]"),
    "an engine of a run": (TOML + "[run]\nengine = 'ray'\n", '[run]: the engine is a table of its own: [engine] name = "ray"'),
    "a label with a slash": (TOML + "label = 'a/b'\n", "no slash and no comma"),
    "one label twice": (TOML + "[[methods]]\nname = 'local'\nlabel = 'fedavg'\n", "two methods are called 'fedavg'"),
    "local of no table": (TOML + "local = 3\n", "local of method 'fedavg' must be a table"),
    "an unknown folder": ("[data]\nfolder = 'nowhere'\n[[methods]]\nname = 'local'\n", "x.toml: there is no", "nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_bad_files(coterie, tmp_path, nothing_is_asked, case):
    text, *words = FILES[case]
    if text is not None:
        write(tmp_path, {"x.toml": text})
    assert_one_sentence(coterie("run", "x.toml"), *words)
    assert not (tmp_path / "runs").exists()


# ---- the user's own data

DATA = {
    "an empty folder": ({"good/readme.txt": "hello"}, (), "holds no file to read"),
    "an empty file": ({**FOLDER, "good/c.csv": ""}, (), "good/c.csv is empty"),
    "a header only": ({**FOLDER, "good/c.csv": "age,kind,outcome\n"}, (), "good/c.csv has no rows, only a header"),
    "too few rows": ({**FOLDER, "good/c.csv": table(["1,x,0", "2,y,1"])}, (), "good/c.csv has 2 rows, too few"),
    "a client without label": (
        {**FOLDER, "good/c.csv": table(["1,x,0"] * 4, "age,kind,result")},
        (),
        "good/c.csv has no label column 'outcome' although 'a' has it",
    ),
    "no label at all": (FOLDER, ("--label", "outcom"), "did you mean 'outcome'?"),
    "a row without label": (
        {**FOLDER, "good/c.csv": table(["1,x,0", "2,y,", "3,x,1", "4,y,0"])},
        (),
        "good/c.csv: label 'outcome' is missing in data row 2",
    ),
    "inf": ({**FOLDER, "good/c.csv": GOOD.replace("25", "inf")}, (), "good/c.csv: column 'age' is inf in data row 6"),
    "a text among numbers": (
        {**FOLDER, "good/c.csv": GOOD.replace("25", "old")},
        (),
        "'age'",
        "good/c.csv",
    ),
    "one class": (
        {name: GOOD.replace(",1\n", ",0\n") for name in FOLDER},
        (),
        "nothing to learn",
    ),
    "a ragged file": ({**FOLDER, "good/c.csv": GOOD + "1,2\n"}, (), "good/c.csv: line 18 has 2 cells"),
    "a column twice": (
        {**FOLDER, "good/c.csv": GOOD.replace("age,kind", "age,age")},
        (),
        "good/c.csv: column 'age' occurs twice",
    ),
    "no column in common": (
        {"good/a.csv": GOOD, "good/b.csv": GOOD.replace("age,kind", "years,sort")},
        (),
        "no column",
    ),
    "no text": ({**FOLDER, "good/c.csv": b"age,kind,outcome\n\xff\xfe,x,0\n"}, (), "good/c.csv is not UTF-8 text"),
    "an Excel file": ({**FOLDER, "good/c.xlsx": "x"}, (), "good/c.xlsx cannot be read as Excel"),
    "a client called server": ({**FOLDER, "good/server.csv": GOOD}, (), "a client is called 'server'"),
    "a broken archive": ({"good/a.npz": b"PK\x03\x04 no archive"}, (), "good/a.npz cannot be read as npz"),
    "a broken Parquet file": ({"good/a.parquet": b"PAR1 no table"}, (), "good/a.parquet cannot be read as Parquet"),
    "an unknown task": (FOLDER, ("--set", "data.task=clasification"), "did you mean 'classification'?"),
    "an unknown drop": (FOLDER, ("--set", "data.drop=age"), "must be a list of names"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_bad_data(coterie, tmp_path, nothing_is_asked, case):
    files, flags, *words = DATA[case]
    write(tmp_path, files)
    assert_one_sentence(coterie(*OWN, *flags), *words)
    assert not (tmp_path / "runs").exists()


# ---- files of the user's own

METHOD = """
import coterie as ct
class Nothing(ct.Method):
    def round(self, state, federation, rng): return state, {}
class Whole(Nothing):
    def __init__(self, strength=1): self.strength = strength
    def init(self, x, federation): return (x,)
    def models(self, state): return state[0]
ready = Whole()
text = "a metric?"
def client(outputs, labels, kind): return 1.0
def unseen(outputs, labels, kind): return 1.0
def lists(seed): return [1, 2]
def fails(seed): raise KeyError("column")
def model(shape, outputs): return "no module"
def broken(shape, outputs): raise ValueError("no such layer")
"""

MINE = {
    "no file": ((*HEART, "--methods", "none.py:Mine"), "there is no file 'none.py'"),
    "fails to import": ((*HEART, "--methods", "raises.py:Mine"), "raises.py cannot be imported: ValueError: sorry"),
    "no Python": ((*HEART, "--methods", "words.py:Mine"), "words.py cannot be imported: SyntaxError"),
    "ends the process": ((*HEART, "--methods", "exits.py:Mine"), "exits.py cannot be imported: SystemExit"),
    "no such name": ((*HEART, "--methods", "mine.py:Whoel"), "mine.py has no 'Whoel'; did you mean 'Whole'?"),
    "a method that lacks a part": ((*HEART, "--methods", "mine.py:Nothing"), "mine.py:Nothing: Nothing has no init and no models"),
    "a field that it lacks": (
        (*HEART, "--methods", "mine.py:Whole", "--set", "whole.strenght=1"),
        "unknown key 'strenght'; did you mean 'strength'?",
    ),
    "a field of what is ready": (
        (*HEART, "--methods", "mine.py:ready", "--set", "ready.strength=1"),
        "unknown key 'strength'; it has none",
    ),
    "a metric that is none": ((*HEART, "--metrics", "mine.py:text"), "mine.py:text must be a function (outputs, labels, kind); got"),
    "a metric called like a column": ((*HEART, "--metrics", "mine.py:client"), "is a column of summary.json"),
    "a metric called like a rare column": ((*HEART, "--metrics", "mine.py:unseen"), "is a column of summary.json"),
    "data that is none": (("compare", "mine.py:lists"), "mine.py:lists gives a list; it must give Clients"),
    "data that fails": (("compare", "mine.py:fails"), "mine.py:fails failed: KeyError: 'column'"),
    "a model that is none": ((*HEART, "--model", "mine.py:model"), "returned a str, not an nn.Module"),
    "a model that fails": ((*HEART, "--model", "mine.py:broken"), "ValueError: no such layer"),
    "a model that does not fit": ((*HEART, "--model", "mine2.py:Narrow"), "the model cannot take inputs of shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", MINE)
def test_bad_files_of_ones_own(coterie, tmp_path, nothing_is_asked, case):
    argv, *words = MINE[case]
    narrow = "import torch\nclass Narrow(torch.nn.Linear):\n    def __init__(self, shape, outputs): super().__init__(3, 1)\n"
    files = {
        "mine.py": METHOD,
        "mine2.py": narrow,
        "raises.py": "raise ValueError('sorry')",
        "words.py": "so long,",
    }
    write(tmp_path, {**files, "exits.py": "raise SystemExit(3)"})
    assert_one_sentence(coterie(*argv), *words)
    assert not (tmp_path / "runs").exists()


# ---- a finished run


@pytest.fixture(scope="module")
def finished(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    write(folder, FOLDER)
    methods = ("--methods", "local,fedavg,meritfed", "--set", "meritfed.targets=a")
    ended = driver(
        folder,
        *OWN,
        *methods,
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--out",
        "run",
        "--no-report",
    )
    assert ended.status == 0, ended.err
    return folder


PREDICT = {
    "unknown client": (("--client", "ab"), "the run has no client 'ab'", "allowed: a, b"),
    "unknown method": (("--client", "a", "--method", "fedagv"), "the run has no method 'fedagv'; did you mean 'fedavg'?"),
    "unknown seed": (("--client", "a", "--seed", "9"), "the run has no seed 9; it has 0"),
    "no model for this client": (("--client", "b", "--method", "meritfed"), "no model of 'meritfed' for 'b'"),
}  # fmt: skip


@pytest.mark.parametrize("case", PREDICT)
def test_bad_predictions(coterie, finished, case):
    flags, *words = PREDICT[case]
    assert_one_sentence(
        coterie(
            "predict", str(finished / "run"), str(finished / "good" / "a.csv"), *flags
        ),
        *words,
    )


ROWS = {
    "no file": (None, "there is no file new.csv"),
    "empty": ("", "new.csv is empty"),
    "a missing column": ("age,outcome\n3,0\n", "new.csv has no column 'kind', which the model needs"),
    "a text among numbers": ("age,kind\nold,x\n", "column 'age' needs numbers but has 'old' in data row 1"),
    "absurd": ("age,kind\n1e60,x\n", "new.csv"),
    "inf": ("age,kind\ninf,x\n", "new.csv: column 'age' is inf in data row 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", ROWS)
def test_bad_rows_to_predict(coterie, tmp_path, finished, case):
    text, *words = ROWS[case]
    if text is not None:
        write(tmp_path, {"new.csv": text})
    assert_one_sentence(
        coterie("predict", str(finished / "run"), "new.csv", "--client", "a"), *words
    )


DAMAGE = {
    "no summary": ("report", "summary.json", None, "lacks summary.json", "--resume"),
    "half a summary": ("report", "summary.json", '[{"method": "lo', "summary.json"),
    "no results": ("report", "summary.json", "[]", "holds no results yet"),
    "half an experiment": ("report", "experiment.toml", "[data", "experiment.toml"),
    "half a history": ("report", "history.csv", "method,seed\nlocal", "history.csv"),
    "no experiment": ("predict", "experiment.toml", None, "lacks experiment.toml"),
    "no recipe": ("predict", "preprocess.json", None, "preprocess.json is missing"),
    "half a recipe": ("predict", "preprocess.json", '{"0": ', "preprocess.json"),
    "no model": ("predict", "models/local-0-a.safetensors", None, "has no model of 'local' for 'a'"),
    "half a model": ("predict", "models/local-0-a.safetensors", "xyz", "local-0-a.safetensors is damaged"),
    "another format": ("report", "format.json", '{"format": 9, "coterie": "3.0"}', "written by coterie 3.0 in format 9"),
    "an older format": ("predict", "format.json", None, "written by coterie of an older version in format 1"),
    "a format to resume": ("resume", "format.json", "{}", "repeat the run in another folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_runs(coterie, tmp_path, finished, case):
    """Of a run that was stopped, and so has no hashes of its tables; tests/cli/test_damage.py has finished ones."""
    command, file, content, *words = DAMAGE[case]
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "run" / "checkpoint" / "tables.json").unlink()
    (tmp_path / "run" / file).unlink()
    if content is not None:
        write(tmp_path, {f"run/{file}": content})
    argv = {
        "report": ("report", "run"),
        "predict": (
            "predict",
            "run",
            "good/a.csv",
            "--client",
            "a",
            "--method",
            "local",
        ),
        "resume": ("run", "run/experiment.toml", "--resume"),
    }[command]
    assert_one_sentence(coterie(*argv), *words)


def test_a_checkpoint_of_nobody(coterie, tmp_path, finished):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    pair = tmp_path / "run" / "checkpoint" / "fedavg-0"
    (pair / "done.json").unlink()
    (pair / "checkpoint.safetensors").write_bytes(b"xyz")
    refused = coterie("run", "run/experiment.toml", "--resume")
    assert refused.status == 2
    assert "delete it and start again" in refused.err.splitlines()[-1]


# ---- extras that are not installed


@pytest.fixture
def without(monkeypatch):
    """Lets packages look as if they were not installed."""

    def hide(*packages):
        real = builtins.__import__

        def blocked(name, *args, **kwargs):
            if name.partition(".")[0] in packages:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return real(name, *args, **kwargs)

        for name in [n for n in sys.modules if n.partition(".")[0] in packages]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(builtins, "__import__", blocked)

    return hide


def test_data_sets_without_scikit_learn(coterie, without):
    without("sklearn")
    assert_one_sentence(
        coterie("compare", "digits"), "scikit-learn", 'pip install "coterie[data]"'
    )


def test_parquet_without_pyarrow(coterie, tmp_path, without):
    without("pyarrow", "pandas")
    write(tmp_path, {"good/a.parquet": b"PAR1"})
    assert_one_sentence(coterie(*OWN), "pyarrow", 'pip install "coterie[data]"')


def test_csv_and_the_table_need_no_extra(coterie, tmp_path, without, finished):
    without("pandas", "pyarrow", "sklearn", "jinja2", "datasets")
    write(tmp_path, FOLDER)
    ended = coterie(
        *OWN, "--methods", "local", "--rounds", "1", "--seeds", "1", "--out", "run"
    )
    assert ended.status == 0, ended.err
    assert "No verdict" in ended.out
    assert ended.out.splitlines()[-1].startswith("no HTML report: ")
    assert 'pip install "coterie[report]"' in ended.out.splitlines()[-1]
    assert not (tmp_path / "run" / "report.html").exists()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())


# ---- as a process


def test_as_a_process(tmp_path):
    write(tmp_path, FOLDER)
    ended = subprocess_run(tmp_path, *OWN, "--sedes", "3")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("coterie: ")
    assert ended.stderr.count("\n") == 1
    assert "did you mean '--seeds'?" in ended.stderr


def test_a_closed_pipe_is_no_error(tmp_path):
    import subprocess

    from commands import environment

    shell = f"{sys.executable} -m coterie methods | head -1"
    ended = subprocess.run(
        shell,
        shell=True,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("local")


LONG = "y" * 300  # no file system takes such a name
ASKED_FOR_A_LONG_NAME = {
    "a folder of tables": ("compare", LONG, "--label", "outcome"),
    "a table": ("compare", f"{LONG}.csv", "--label", "outcome"),
    "a folder to check": ("check", LONG),
    "an experiment": ("run", f"{LONG}.toml"),
    "a folder in an experiment": ("run", "long.toml"),
    "the folder of a data set": ("run", "folder-of-a-set.toml"),
    "a code file": (*HEART, "--methods", f"{LONG}.py:Own"),
    "a run directory": (*HEART, "--out", LONG),
    "a run to report": ("report", LONG),
    "a run to predict": ("predict", LONG, "rows.csv"),
    "a run to finalise": ("finalise", LONG, "--client", "a"),
    "a run to verify": ("verify", LONG),
    "a plan": ("site", "approve", LONG),
}


@pytest.mark.parametrize("case", ASKED_FOR_A_LONG_NAME)
def test_a_name_that_no_file_can_have_is_bad_input(
    coterie, tmp_path, nothing_is_asked, case
):
    end = '[[methods]]\nname = "fedavg"\n'
    write(
        tmp_path, {"long.toml": f'[data]\nfolder = "{LONG}"\nlabel = "outcome"\n{end}'}
    )
    write(
        tmp_path,
        {
            "folder-of-a-set.toml": f'[data]\nname = "shakespeare"\nfolder = "{LONG}"\n{end}'
        },
    )
    assert_one_sentence(coterie(*ASKED_FOR_A_LONG_NAME[case]), "File name too long")


def test_a_full_disk_is_one_sentence(coterie, monkeypatch):
    import os

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    ended = coterie(
        *HEART, "--methods", "local", "--rounds", "1", "--seeds", "1", "--out", "run"
    )
    assert_one_sentence(ended, "run: No space left on device", status=1)
