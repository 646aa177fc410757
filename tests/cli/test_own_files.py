"""FILE.py:NAME names what a user's file holds, for every kind of plug-in: on the command line, in TOML and from Python."""

from __future__ import annotations

import json
import sys

import pytest

import coterie as ct
from coterie.base.modules import load_object
from coterie.cli.main import main
from coterie.config.registry import KINDS, METRICS
from coterie.config.schema import wire_types

OWN = '''"""One of each kind."""

import torch

import coterie as ct


class Half(ct.FedAvg):
    """FedAvg with a name of its own."""


@ct.wire_type
@ct.options
class TopRows(ct.Sampler):
    """Take the first rows of each client again and again."""

    def rows(self, cohort, client, rng, steps, batch_size):
        return torch.arange(steps * batch_size).remainder(5).reshape(steps, batch_size).numpy()


@ct.wire_type
@ct.options
class Halved(ct.Filter):
    """Send half of each update."""

    def apply(self, rows, passage):
        return rows / 2


@ct.wire_type
@ct.options
class Doubled(ct.Attack):
    """Send twice the update."""

    def corrupt(self, kind, rows, rngs):
        return 2 * rows


@ct.options
class Narrow:
    """A linear model without a constant."""

    def build(self, shape, outputs):
        return torch.nn.Linear(*shape, outputs, bias=False)


def towns(*, seed=0):
    stream = torch.Generator().manual_seed(seed)
    rows = {name: torch.randn(40, 2, generator=stream) for name in ("north", "south")}
    return ct.data.from_tensors({n: (x, (x[:, 0] > 0).long()) for n, x in rows.items()}, seed=seed, classes=["no", "yes"])


def spread(outputs, labels, kind):
    """Spread of the outputs."""
    return float(outputs.double().std())


def cubed(outputs, labels):
    return (outputs[:, 0] - labels).abs() ** 3


cubed.kind = "own"


@ct.options
class Here(ct.EngineSpec):
    """The engine of one process."""

    def open(self, clients, model, loss):
        return ct.InProcess().open(clients, model, loss)


@ct.options
class Quiet(ct.Callback):
    """Look at each round."""

    def on_round(self, round):
        pass
'''

USED = {
    "methods": ["--methods", "OWN:Half"],
    "samplers": ["--set", "local.sampler=OWN:TopRows"],
    "filters": ["--set", "filters=OWN:Halved"],
    "attacks": ["--attack", "OWN:Doubled", "--set", "attack.on=['north']"],
    "models": ["--model", "OWN:Narrow"],
    "datasets": [],  # in every line
    "metrics": ["--metrics", "OWN:spread"],
    "engines": ["--engine", "OWN:Here"],
    "trackers": ["--set", "callbacks=OWN:Quiet"],
    "loss": ["--loss", "OWN:cubed"],
}
"""What names each kind on the command line."""

PYTHON = {
    "methods": lambda own: {"method": f"{own}:Half"},
    "samplers": lambda own: {"local": ct.LocalSGD(sampler=f"{own}:TopRows")},
    "filters": lambda own: {"filters": [f"{own}:Halved"]},
    "attacks": lambda own: {"attack": {"name": f"{own}:Doubled", "on": ["north"]}},
    "models": lambda own: {"model": f"{own}:Narrow"},
    "datasets": lambda own: {},
    "metrics": lambda own: {"settings": ct.RunSettings(metrics=(f"{own}:spread",))},
    "engines": lambda own: {"engine": f"{own}:Here"},
    "trackers": lambda own: {"settings": ct.RunSettings(callbacks=(f"{own}:Quiet",))},
    "loss": lambda own: {"settings": ct.RunSettings(loss=f"{own}:cubed")},
}
each_kind = pytest.mark.parametrize("kind", USED)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file with one of each kind; what it registers is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    yield path
    for name in [*METRICS.added]:
        del METRICS[name]
    for name in ("TopRows", "Halved", "Doubled"):
        wire_types().pop(name, None)


def test_every_kind_of_plug_in_is_tried():
    assert KINDS.keys() <= USED.keys()
    assert USED.keys() == PYTHON.keys()


@pytest.mark.in_turn(but=("methods", "samplers", "engines", "metrics"))
@each_kind
def test_the_command_and_the_file_that_it_writes_take_it(kind, own, capsys):
    words = [word.replace("OWN", own.name) for word in USED[kind]]
    methods = [] if kind == "methods" else ["--methods", "fedavg"]
    usual = ["--rounds", "1", "--seeds", "1", "--set", "local.steps=2"]
    assert (
        main(
            ["compare", f"{own.name}:towns", *methods, *words, *usual, "--out", "first"]
        )
        == 0
    )
    name = next(
        (word.rpartition("=")[2] for word in words if own.name in word),
        f"{own.name}:towns",
    )
    assert name in (own.parent / "first" / "experiment.toml").read_text(
        encoding="utf-8"
    )
    assert main(["run", "first/experiment.toml", "--out", "second"]) == 0
    results = [
        json.loads((own.parent / run / "summary.json").read_text("utf-8"))
        for run in ("first", "second")
    ]
    assert results[0] == results[1]


@each_kind
def test_python_takes_it(kind, own):
    arguments = {
        "method": "fedavg",
        "clients": f"{own}:towns",
        "rounds": 1,
        **PYTHON[kind](own),
    }
    assert ct.fit(**arguments).models["*"].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_show_explains_it(kind, own, capsys):
    name = next((w.rpartition(":")[2] for w in USED[kind] if "OWN:" in w), "towns")
    assert main(["show", f"{own.name}:{name}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["text"].strip()
    assert shown["kind"] == (
        KINDS[kind].kind
        if KINDS[kind].base
        else "type"
        if kind == "models"
        else "function"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--folds", "5"],
            "own.py:towns has no parameter split for split.folds; write def towns(*, seed, split):, which gives",
        ),
        (
            ["--set", "data.size=3"],
            "own.py:towns has no parameter size for data.size; write def towns(*, seed, size):",
        ),
    ],
)
def test_a_function_of_clients_without_a_parameter_is_named(
    words, sentence, own, capsys
):
    assert (
        main(
            [
                "compare",
                "own.py:towns",
                "--methods",
                "fedavg",
                "--rounds",
                "1",
                *words,
                "--out",
                "run",
            ]
        )
        == 2
    )
    assert sentence in capsys.readouterr().err


def test_folds_of_a_function_of_clients_that_takes_a_split(own):
    text = own.read_text(encoding="utf-8").replace(
        "(*, seed=0)", "(*, seed=0, split=None)"
    )
    own.write_text(
        text.replace("seed=seed,", "seed=seed, split=split,"), encoding="utf-8"
    )
    usual = [
        "--methods",
        "fedavg",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--set",
        "local.steps=2",
    ]
    assert (
        main(["compare", "own.py:towns", *usual, "--folds", "2", "--out", "run"]) == 0
    )


# ---- what lies beside a file


@pytest.fixture
def two_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, weight in (("one", 1.5), ("two", 2.5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights_beside.py").write_text(f"WEIGHT = {weight}\n")
        (tmp_path / name / "own.py").write_text(
            "import weights_beside\n\n\ndef weight():\n    return weights_beside.WEIGHT\n"
        )
    yield tmp_path
    for name in [
        name
        for name in sys.modules
        if name == "weights_beside" or name.startswith("coterie_user_own")
    ]:
        del sys.modules[name]


def test_a_file_may_import_what_lies_beside_it(two_folders):
    """The command's script has its own folder first on the path, and not the current one."""
    assert load_object(f"{two_folders}/one/own.py:weight")() == 1.5


def test_another_file_of_the_same_name_is_not_taken_for_it(two_folders):
    load_object(f"{two_folders}/one/own.py:weight")
    with pytest.raises(
        ct.InputError,
        match=r"one.weights_beside\.py as weights_beside, and not .*two.weights_beside\.py; rename",
    ):
        load_object(f"{two_folders}/two/own.py:weight")
