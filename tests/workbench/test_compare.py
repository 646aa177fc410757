"""`ct.compare`: the command's comparison, from Python, of values that files can spell and of objects that they cannot."""

from __future__ import annotations

import dataclasses
import gc
import json
import tomllib
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie as ct
from cli.commands import contents
from coterie.base.files import read_toml
from coterie.cli.main import main
from coterie.compute.tasks import local_update
from coterie.run.tables import read_experiment
from coterie.study.search import choose_settings
from coterie.study.sweep import run_experiment

TOML = """
[data]
name = "heart-disease"

[model]
name = "mlp"
hidden = [8]

[local]
steps = 4
lr = 0.05

[[methods]]
name = "local"

[[methods]]
name = "meritfed"
targets = "all"
md_steps = 3

[[methods]]
name = "fedavg"
personalise = {part = "bias"}
label = "tuned"

[[filters]]
name = "top-k"
share = 0.5

[attack]
name = "noise"
on = ["hungary"]

[run]
rounds = 2
seeds = [3]
evaluate = 1
clients_per_round = 3
metrics = ["auc", "f1"]
"""


def own_clients(seed):
    draw = torch.Generator().manual_seed(seed)
    parts = [
        (torch.randn(30, 3, generator=draw), torch.randint(0, 2, (30,), generator=draw))
        for _ in range(3)
    ]
    return ct.data.from_tensors(parts, seed=seed)


TWO_STEPS = ct.LocalSGD(steps=ct.Steps(2))


class Kept(NamedTuple):
    x: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Halfway(ct.Method):
    speed: float = 0.5
    local: ct.LocalSGD = TWO_STEPS

    def init(self, x, federation):
        return Kept(x)

    def round(self, state, federation, rng):
        got = federation.ask(
            federation.clients, local_update, x=state.x, local=self.local
        )
        return Kept(state.x + self.speed * got.delta.mean(dim=0)), {}

    def models(self, state):
        return state.x


def gentle(outputs, labels):
    return nn.functional.binary_cross_entropy_with_logits(
        outputs.reshape(-1), labels.float(), reduction="none"
    )


gentle.kind = "binary"


def test_python_and_toml_write_the_same_files(tmp_path):
    (tmp_path / "plan.toml").write_text(TOML)
    run_experiment(read_experiment(tmp_path / "plan.toml"), tmp_path / "toml")
    methods = {
        "local": "local",
        "meritfed": ct.MeritFed(targets="all", md_steps=3),
        "tuned": "fedavg+bias",
    }
    settings = ct.StudySettings(
        evaluate=1,
        clients_per_round=3,
        metrics=("auc", "f1"),
        local=ct.LocalSGD(lr=0.05, steps=ct.Steps(4)),
    )
    ct.compare(
        methods,
        "heart-disease",
        ct.models.MLP(hidden=(8,)),
        rounds=2,
        seeds=[3],
        folder=tmp_path / "python",
        filters=[ct.TopK(0.5)],
        attack=ct.attacks.Noise(on=("hungary",)),
        settings=settings,
    )
    written, expected = contents(tmp_path / "python"), contents(tmp_path / "toml")
    assert set(written) == set(expected)
    assert [name for name in expected if written[name] != expected[name]] == []
    assert {"experiment.toml", "history.csv", "weights.csv", "summary.json"} < set(
        written
    )


PLAN = """
[data]
name = "heart-disease"
[[methods]]
name = "fedavg"
[run]
rounds = 1
seeds = 1
[tune]
"local.lr" = [0.001, 0.1]
"""


@pytest.mark.in_turn
def test_tuning_is_that_of_the_command(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    given = choose_settings(
        read_experiment(tmp_path / "plan.toml"), tmp_path / "toml", grid=True
    )
    run_experiment(given[0], tmp_path / "toml")
    arguments = {"rounds": 1, "seeds": 1, "folder": tmp_path / "python"}
    settings = ct.StudySettings(tune={"local.lr": [0.001, 0.1]})
    comparison = ct.compare(["fedavg"], "heart-disease", **arguments, settings=settings)
    assert contents(tmp_path / "python") == contents(tmp_path / "toml")
    assert len((tmp_path / "python" / "tuning.csv").read_text().splitlines()) == 3
    again = ct.compare(
        ["fedavg"],
        "heart-disease",
        **arguments,
        settings=dataclasses.replace(settings, resume=True),
    )
    assert again.table() == comparison.table()
    with pytest.raises(ct.InputError, match=r"\[tune\]: 'fedprox.mu' names no method"):
        ct.compare(
            ["fedavg"],
            "heart-disease",
            **arguments,
            settings=ct.StudySettings(tune={"fedprox.mu": [1]}),
        )


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The arguments of a comparison of objects, and a folder with its run."""
    module = nn.Linear(3, 1)
    arguments = {
        "methods": {"local": "local", "half": Halfway()},
        "clients": own_clients,
        "model": module,
        "rounds": 3,
        "seeds": 2,
        "settings": ct.StudySettings(loss=gentle),
        "engine": ct.InProcess(),
    }
    folder = tmp_path_factory.mktemp("own") / "run"
    ct.compare(**arguments, folder=folder)
    return arguments, folder


def test_objects_are_named_with_a_hash(own):
    _, folder = own
    text = (folder / "experiment.toml").read_text()
    for name in (
        "python:Halfway:",
        "python:Linear:",
        "python:own_clients:",
        "python:gentle:",
    ):
        assert text.count(name) == 1
    comparison = ct.Comparison(folder)
    assert comparison.results.title == "own_clients"
    assert "half" in str(comparison)
    assert ct.report.save_html(folder).is_file()


def with_settings(arguments, **differing):
    return {
        **arguments,
        "settings": dataclasses.replace(arguments["settings"], **differing),
    }


def test_objects_are_resumed_from_python_alone(own, tmp_path, capsys):
    arguments, folder = own
    stops = iter([False] * 9 + [True])

    def stop(event):
        if next(stops, False):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ct.compare(**with_settings(arguments, progress=stop), folder=tmp_path / "run")
    other = {**arguments, "methods": {"local": "local", "half": Halfway(speed=0.25)}}
    with pytest.raises(
        ct.InputError,
        match=r"was made with python:Halfway:\w+, an object of a Python program; resume",
    ):
        ct.compare(**with_settings(other, resume=True), folder=tmp_path / "run")
    settings = [str(tmp_path / "run" / "experiment.toml"), "--resume"]
    assert main(["run", *settings]) == 2
    assert (
        "an object of a Python program; go on there, with the same object: ct.compare"
        in capsys.readouterr().err
    )
    ct.compare(**with_settings(arguments, resume=True, jobs=2), folder=tmp_path / "run")
    assert contents(tmp_path / "run") == {
        k: v for k, v in contents(folder).items() if k != "report.html"
    }


def test_an_initial_state_is_known_by_its_content(tmp_path):
    def compared(shift, seeds, **options):
        init = {"weight": torch.full((1, 3), shift), "bias": torch.zeros(1)}
        arguments = {
            "clients": own_clients,
            "model": ct.models.Logistic(),
            "rounds": 1,
            "folder": tmp_path / "run",
        }
        return ct.compare(
            ["local"],
            **arguments,
            seeds=seeds,
            settings=ct.StudySettings(init=init, **options),
        )

    first = compared(0.5, 1)
    assert tomllib.loads((first.folder / "experiment.toml").read_text())["model"][
        "init"
    ].startswith("python:state-dict:")
    assert compared(0.5, 2, resume=True).seeds == (0, 1)
    with pytest.raises(
        ct.InputError,
        match=r"was made with python:state-dict:\w+, an object of a Python program",
    ):
        compared(0.25, 3, resume=True)


STUDY = ct.StudySettings(jobs=2)


def test_a_comparison_answers(own, tmp_path):
    comparison = ct.compare(
        ["local", ct.MeritFed(targets="all")],
        "heart-disease",
        rounds=2,
        seeds=3,
        settings=STUDY,
    )
    assert repr(comparison) == "<comparison of local, meritfed on 4 clients, 3 seeds>"
    assert (comparison.methods, comparison.seeds) == (("local", "meritfed"), (0, 1, 2))
    assert (
        comparison.verdict("hungary").kind in comparison._repr_html_()
        or comparison.verdict("hungary").reason
    )
    assert "log-loss" in comparison.table("loss")
    assert comparison.weights["meritfed"].values.shape == (2, 4, 4)
    assert (
        repr(comparison.weights["meritfed"])
        == "<weights of 4 clients for 4 targets, 2 rounds>"
    )
    page = comparison.report(tmp_path / "x.html")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    frame = comparison.to_pandas()
    assert len(frame) == len(
        json.loads((comparison.folder / "summary.json").read_text())
    )
    assert {"method", "seed", "client", "split", "auc", "loss"} <= set(frame)
    history = comparison.to_pandas("history")
    assert set(history["round"]) == {0, 1, 2}
    figure = comparison.plot("loss", clients=("hungary", "cleveland"))
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["Hungary", "Cleveland"]
    rows = history.query(
        "method == 'local' and client == 'hungary' and split == 'test' and metric == 'loss'"
    )
    drawn = figure.axes[0].lines[0].get_ydata()
    assert drawn == pytest.approx(rows.groupby("round")["value"].mean().to_list())
    for wrong, words in (
        (lambda: comparison.verdict("hungry"), "did you mean 'hungary'"),
        (lambda: comparison.plot(clients=["hungry"]), "did you mean 'hungary'"),
        (lambda: comparison.plot("f2"), "no f2 to draw"),
        (lambda: comparison.to_pandas("histroy"), "did you mean 'history'"),
    ):
        with pytest.raises(ct.InputError, match=words):
            wrong()


def test_a_comparison_in_memory_leaves_nothing_behind():
    comparison = ct.compare(["local"], own_clients, rounds=1, seeds=1)
    folder = comparison.folder
    assert folder.is_dir()
    del comparison
    gc.collect()
    assert not folder.exists()


WRONG = {
    "a word": ({"methods": "fedavg"}, "methods must be a list; got 'fedavg'"),
    "no methods": ({"methods": []}, "name at least one method"),
    "twice": ({"methods": ["fedavg", "fedavg"]}, "two methods are called 'fedavg'"),
    "no data": ({"clients": "haert-disease"}, "did you mean 'heart-disease'"),
    "rows": ({"clients": [1]}, "client 'client-0'"),
    "one row": (
        {"clients": 1},
        "clients must be Clients, as ct.data.from_tensors makes them",
    ),
    "rounds": (
        {"rounds": -1},
        "run.rounds must be an int >= 0, at most 1,000,000; got -1",
    ),
    "seeds": ({"seeds": 0}, "run.seeds must be an int >= 1"),
    "nothing to resume": (
        {"settings": ct.StudySettings(resume=True)},
        "resume needs the folder of the run that goes on",
    ),
    "an engine": ({"engine": "rya"}, "there is no engine 'rya'; did you mean 'ray'"),
    "a class of engines": ({"engine": ct.InProcess}, "InProcess"),
    "an attack": (
        {"attack": {"name": "imp", "on": 0.5}},
        "there is no attack 'imp'; did you mean 'ipm'",
    ),
    "a filter": (
        {"filters": ["topk"]},
        "there is no filter 'topk'; did you mean 'top-k'",
    ),
    "filters": (
        {"filters": ct.TopK(0.1)},
        "filters must be a list of filters such as [TopK(0.01)]; got TopK",
    ),
    "a class of models": (
        {"model": ct.models.MLP},
        "the model is the class MLP; call it, say MLP()",
    ),
    "settings": (
        {"settings": {"evaluate": 3}},
        "settings must be StudySettings(...) or RunSettings(...); got {'evaluate': 3}",
    ),
    "folder": ({"folder": 3}, "folder must be None or a folder; got 3"),
    "split": (
        {"clients": {"name": "digits", "split": "iid"}},
        "[split] must be a table",
    ),
    "data": ({"clients": {"label": "x"}}, "[data] needs a name or a folder"),
    "a grid": (
        {"settings": ct.StudySettings(tune={"local.lr": 0.1})},
        "'local.lr' must be a list of values; got 0.1",
    ),
    "a key": (
        {"clients": {"name": "heart-disease", "lable": "x"}},
        "has no option 'lable'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_it_cannot_take_is_one_sentence(what):
    given, sentence = WRONG[what]
    with pytest.raises(ct.InputError) as caught:
        ct.compare(
            **{
                "methods": ["local"],
                "clients": "heart-disease",
                "rounds": 1,
                "seeds": 1,
                **given,
            }
        )
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"jobs": 0}, "StudySettings.jobs must be an int > 0; got 0"),
        (
            {"local": {"lr": 0.1}},
            "StudySettings.local must be None or LocalSGD(...); got {'lr': 0.1}",
        ),
        (
            {"init": 3},
            "StudySettings.init must be None, a state dict or a safetensors file; got 3",
        ),
        (
            {"tune": "lr"},
            "StudySettings.tune must be true, false or a grid such as {'local.lr': [0.03, 0.1]}; got 'lr'",
        ),
        (
            {"progress": 3},
            'StudySettings.progress must be None, true, false, "bar", "log" or a function of an Event; got 3',
        ),
    ],
)
def test_settings_of_a_study_that_cannot_be_are_one_sentence(settings, sentence):
    with pytest.raises(ct.InputError) as caught:
        ct.StudySettings(**settings)
    assert str(caught.value) == sentence


def test_clients_in_hand_are_named_as_they_are_called(tmp_path):
    clients = ct.data.load("heart-disease")
    ct.compare(["local"], clients, rounds=1, seeds=1, folder=tmp_path / "run")
    name = read_toml(tmp_path / "run" / "experiment.toml")["data"]["name"]
    assert name.startswith(f"python:{clients.name}:")
    assert clients.name != type(clients).__name__


def test_rows_in_hand_are_split_anew_by_each_seed_and_named_by_what_they_are(tmp_path):
    draw = torch.Generator().manual_seed(0)
    rows = {
        name: (torch.randn(30, 3, generator=draw), torch.arange(30) % 2)
        for name in "ab"
    }
    ct.compare(["fedavg"], rows, rounds=1, seeds=2, folder=tmp_path / "run")
    for seed in (0, 1):
        run = ct.fit(
            "fedavg",
            ct.data.from_tensors(rows, seed=seed),
            "logistic",
            rounds=1,
            seed=seed,
        )
        saved = load_file(tmp_path / "run" / "models" / f"fedavg-{seed}.safetensors")
        assert all(
            torch.equal(saved[name], value) for name, value in run.state_dict().items()
        )
    others = {name: (inputs + 1, labels) for name, (inputs, labels) in rows.items()}
    ct.compare(["fedavg"], others, rounds=1, seeds=1, folder=tmp_path / "others")
    named = [
        read_toml(tmp_path / run / "experiment.toml")["data"]["name"]
        for run in ("run", "others")
    ]
    assert named[0].startswith("python:clients:")
    assert named[0] != named[1]
