"""What `fit` takes `compare` takes, with the same numbers: every argument, every setting of a run and of local training."""

from __future__ import annotations

import dataclasses
import inspect
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coterie as ct
from coterie.compute.tasks import local_update
from coterie.config.registry import KINDS
from coterie.config.run import Appeal


def clients(seed=0):
    draw = torch.Generator().manual_seed(seed)
    parts = {
        name: (
            torch.randn(40, 3, generator=draw),
            torch.randint(0, 2, (40,), generator=draw),
        )
        for name in "abc"
    }
    return ct.data.from_tensors(parts, seed=seed)


@ct.wire_type
@ct.options
class RowsInOrder(ct.Sampler):
    """A sampler of a notebook, in no file that could be named."""

    shift: int = 0

    def rows(self, cohort, client, rng, steps, batch_size):
        return np.tile(np.arange(batch_size) + self.shift, (steps, 1))


class Kept(NamedTuple):
    x: torch.Tensor


@ct.options
class Halfway(ct.Method):
    """A method of a notebook."""

    local: ct.LocalSGD = ct.LocalSGD()

    def init(self, x, federation):
        return Kept(x)

    def round(self, state, federation, rng):
        got = federation.ask(
            federation.clients, local_update, x=state.x, local=self.local
        )
        return Kept(state.x + got.delta.mean(dim=0) / 2), {}

    def models(self, state):
        return state.x


@ct.wire_type
@ct.options
class HalfSent(ct.Filter):
    """A filter of a notebook."""

    stage = "noise"

    def apply(self, rows, passage):
        return rows / 2


@ct.options
class Echo(ct.Attack):
    """An attack of a notebook."""

    def rewrite(self, kind, rows, attackers, rngs):
        return -rows[attackers]


@ct.options
class Here(ct.EngineSpec):
    """An engine of a notebook."""

    def open(self, clients, model, loss):
        return ct.InProcess().open(clients, model, loss)


class Stop(ct.Callback):
    """A callback of a notebook."""

    def on_evaluation(self, round, metrics):
        return round >= 2


def make_model(shape, outputs):
    return nn.Linear(*shape, outputs)


def make_optimiser(parameters):
    return torch.optim.RMSprop(parameters, lr=0.01)


def gentle(outputs, labels):
    return 0.5 * nn.functional.binary_cross_entropy_with_logits(
        outputs.reshape(-1), labels.float(), reduction="none"
    )


gentle.kind = "binary"


def sure(outputs, labels, kind):
    """A metric of a notebook."""
    return float(outputs.abs().mean())


ZEROS = {"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}
LOCAL = {
    "lr": [0.3, ct.Schedule(0.3, at=(2,))],
    "steps": [ct.Steps(3), ct.Epochs(1)],
    "batch_size": [8, None],
    "momentum": [0.5],
    "weight_decay": [0.1],
    "clip": [0.01],
    "accumulate": [2],
    "optimiser": ["adam", torch.optim.AdamW, make_optimiser],
    "keep_state": [True],
    "sampler": [RowsInOrder(), ct.UniformClassSampler(), "uniform-classes"],
    "minimum_batch": [5],
    "private": [ct.RowNoise(noise_multiplier=1.0)],
}
SETTINGS = {
    "clients_per_round": [2, 0.5],
    "evaluate": [1, ct.Evaluation(every=1), {"every": 1, "clients": ("a",)}],
    "metrics": [("auc",), (sure,), {"sure_too": sure}],
    "loss": ["binary", gentle, nn.BCEWithLogitsLoss()],
    "merge_validation": [False],
    "max_norm": [5.0],
    "down": ["bf16"],
    "appeal": [Appeal(leave=True)],
    "contribution": [ct.Contribution(every=1)],
    "save_every": [2],
    "strict_wire": [True],
    "freeze": [("bias",)],
    "callbacks": [(Stop(),), (ct.EarlyStopping(patience=1),), (print,)],
    "label": ["mine"],
    "central": [(torch.randn(8, 3), torch.arange(8) % 2)],
    "central_personal": [True],
    "secure": [ct.SecureSums(clip=5.0)],
    "resume": [True],
    "accept_change": [("torch",)],
}
ARGUMENTS = {
    "method": ["fedavg", ct.FedProx(mu=0.5), ct.FedAvg(lr=lambda number: 1 / number), Halfway(),
               ct.FedAvg(ct.LocalSGD(sampler=RowsInOrder()))],
    "clients": [clients, clients(), {"a": (torch.randn(20, 3), torch.arange(20) % 2)}],
    "model": ["logistic", ct.models.MLP(), make_model, nn.Linear(3, 1)],
    "rounds": [1],
    "seed": [3],
    "engine": [Here(), "inprocess", ct.InProcess(kernel="loop")],
    "attack": [Echo(on=("a",)), ct.attacks.IPM(on=0.4)],
    "filters": [[HalfSent()], ["top-k"], [ct.Clip(bound=0.1), HalfSent()]],
    "init": [ZEROS, "init.safetensors"],
    "checkpoint": ["checkpoint"],
    "progress": [True, "bar", "log"],
    "settings": [ct.RunSettings(evaluate=2)],
    "local": [ct.LocalSGD(lr=0.3)],
}  # fmt: skip


def calls():
    """Each value of each field, as keywords of `fit`; what files can spell waits for its turn."""
    cases = []
    for key, values in ARGUMENTS.items():
        cases += [(key, value, {key: value}) for value in values]
    for key, values in SETTINGS.items():
        for value in values:
            settings = ct.RunSettings(**{key: value})
            keywords = {"settings": settings, "checkpoint": "checkpoint"}
            cases.append((f"settings.{key}", value, keywords))
    for key, values in LOCAL.items():
        for value in values:
            private = {"batch_size": None} if key == "private" else {}
            keywords = {"local": ct.LocalSGD(**private, **{key: value})}
            cases.append((f"local.{key}", value, keywords))
    return [
        pytest.param(
            keywords,
            id=f"{key}-{number}",
            marks=() if is_own(value) else pytest.mark.in_turn,
        )
        for number, (key, value, keywords) in enumerate(cases)
    ]


def is_own(value):
    """Whether a value, or one in it, is of a class or a function of this file."""
    if isinstance(value, tuple | list):
        return any(map(is_own, value))
    local = getattr(value, "local", None)
    parts = (value, type(value), type(getattr(local, "sampler", None)))
    return any(getattr(part, "__module__", "") == __name__ for part in parts)


def in_compare(keywords):
    """The same call of `compare`."""
    method = keywords.get("method", "fedavg")
    settings = vars(keywords.get("settings", ct.RunSettings()))
    study = ct.StudySettings(
        **settings, local=keywords.get("local"), init=keywords.get("init")
    )
    same = ("model", "rounds", "engine", "attack", "filters", "progress")
    return {
        "methods": [method],
        "clients": keywords["clients"],
        "seeds": [keywords.get("seed", 0)],
        "folder": keywords.get("checkpoint"),
        "settings": study,
        **{key: keywords[key] for key in same if key in keywords},
    }


def test_no_field_is_missing():
    assert {*ARGUMENTS} == {*inspect.signature(ct.fit).parameters}
    assert {*SETTINGS} == {f.name for f in dataclasses.fields(ct.RunSettings)}
    assert {*LOCAL} == {f.name for f in dataclasses.fields(ct.LocalSGD)}


def test_every_kind_of_object_is_given_as_a_users_own():
    """Whatever a registry can find by name can also be an object that has none."""
    given = [*SETTINGS["callbacks"], *SETTINGS["loss"], *LOCAL["sampler"]]
    given += [v for values in ARGUMENTS.values() for v in values]
    own = {type(v) for v in given if type(v).__module__ == __name__}
    bases = {registry.base for registry in KINDS.values() if registry.base}
    lacking = {base for base in bases if not any(issubclass(cls, base) for cls in own)}
    assert lacking <= {ct.Callback, ct.Filter}  # these are given in lists
    assert any(isinstance(value[0], Stop) for value in SETTINGS["callbacks"])
    assert any(isinstance(value[0], HalfSent) for value in ARGUMENTS["filters"])


@pytest.mark.parametrize("keywords", calls())
def test_compare_gives_the_numbers_of_fit(keywords, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_file(ZEROS, "init.safetensors")
    keywords = {"rounds": 2, "clients": clients(), "model": nn.Linear(3, 1), **keywords}
    method = keywords.pop("method", "fedavg")
    run = ct.fit(method, **{"seed": 0, **keywords})
    if "checkpoint" in keywords:
        keywords["checkpoint"] = "study"
    comparison = ct.compare(**in_compare({"method": method, **keywords}))
    cells = {
        (row["client"], row["split"]): row["loss"]
        for cell in comparison.results.cells.values()
        for row in cell.values()
    }
    expected = {(row["client"], row["split"]): row["loss"] for row in run.summary}
    assert cells == expected
    assert len(expected) >= 2


@pytest.mark.in_turn(but="method")
@pytest.mark.parametrize("place", ["method", "settings"])
def test_an_own_sampler_is_named_and_resumed_from_python(place, tmp_path):
    def compare(shift, seeds, *, resume=False):
        local = ct.LocalSGD(sampler=RowsInOrder(shift))
        own = place == "method"
        return ct.compare(
            [ct.FedAvg(local) if own else "fedavg"],
            clients(),
            rounds=1,
            seeds=seeds,
            folder=tmp_path,
            settings=ct.StudySettings(local=None if own else local, resume=resume),
        )

    compare(0, 1)
    text = (tmp_path / "experiment.toml").read_text()
    assert 'name = "python:RowsInOrder:' in text
    assert 'name = "fedavg"' in text
    assert compare(0, 2, resume=True).seeds == (0, 1)
    with pytest.raises(ct.InputError, match="RowsInOrder"):
        compare(1, 2, resume=True)
