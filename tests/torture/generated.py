"""Generated experiments: any methods, own files, attacks, filters, tuned models, server rows, jobs, workers, seeds, targets.

An experiment is a folder: `town.toml`, tables of four clients, rows of the server, and `own.py`, which imports two other files.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from coterie.config.registry import ATTACKS, FILTERS, METHODS
from coterie.config.schema import options_of

OWN = """
from dataclasses import dataclass
from typing import NamedTuple

import helper
import torch
from parts.scale import scaled

import coterie as ct
from coterie.compute.tasks import own_update
from coterie.config.schema import wire_type
from coterie.contract.filters import Filter
from coterie.contract.method import Method

STEP = 0.5


class State(NamedTuple):
    x: torch.Tensor


@dataclass(frozen=True)
class Mine(Method):
    local: ct.LocalSGD = ct.LocalSGD()

    def init(self, x, federation):
        return State(x)

    def round(self, state, federation, rng):
        replies = federation.ask(federation.clients, own_update, x=state.x, local=self.local)
        return State(state.x + scaled(STEP) * replies.delta.mean(dim=0)), {"step": STEP}

    def models(self, state):
        return state.x


class Net(torch.nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.layer = torch.nn.Linear(shape[0], outputs)

    def forward(self, rows):
        return self.layer(rows) * 1.5


def loss(outputs, labels):
    return helper.weight() * torch.nn.functional.softplus(outputs[:, 0] * (1 - 2.0 * labels))


loss.kind = "binary"


def margin(outputs, labels, kind):
    return float(outputs.mean())


@wire_type
@dataclass(frozen=True)
class Half(Filter):
    share: float = 0.5

    def apply(self, rows, passage):
        return rows * self.share


class Stop(ct.Callback):
    def on_evaluation(self, round, metrics):
        return len(metrics.history) > 900
"""
FILES: Mapping[str, str] = {
    "own.py": OWN,
    "helper.py": "import torch\n\nWEIGHT = torch.tensor(1.25)\n\n\ndef weight():\n    return float(WEIGHT)\n",
    "parts/__init__.py": "",
    "parts/scale.py": "from parts import deeper\n\n\ndef scaled(value):\n    return value * deeper.FACTOR\n",
    "parts/deeper.py": "FACTOR = 1.125\n",
}
"""Files of the user's own, each reached from `own.py`."""

ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "fedbn": {"personal": ["*bias"]},
    "fedprox": {"mu": 0.5},
    "maxfl": {"warmup_steps": 2},
    "mwfed": {"rate": 2.0, "warmup_steps": 1},
    "multi-krum": {"byzantine": 0},
    "perfedavg": {"alpha": 0.1},
    "selective": {"internal": ["a", "b"]},
    "sgd-ideal": {"members": "*"},
    "target-only": {"target": "c"},
    "varsel": {"internal": ["a", "b"], "preselect": "smallest"},
}
"""Settings of methods that cannot do with their defaults on four small clients."""
CLIENTS = "abcd"
LAYERED = frozenset(
    name
    for name in METHODS
    if "personal" in {option.name for option in options_of(METHODS[name])}
)
"""Methods of which some layers stay with each client, so that a model needs several."""


class Generated(NamedTuple):
    """An experiment: its tables, and what of all that can be it has, as words for the count."""

    tables: dict[str, Any]
    covers: frozenset[str]

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(method["name"] for method in self.tables["methods"])

    def write(self, folder: Path) -> None:
        """Write the experiment and all that it names."""
        (folder / "rows").mkdir(parents=True)
        (folder / "parts").mkdir()
        for name in CLIENTS:
            (folder / "rows" / f"{name}.csv").write_text(table(name))
        (folder / "server.csv").write_text(table("s"))
        for name, text in FILES.items():
            (folder / name).write_text(text)
        (folder / "town.toml").write_text(tomli_w.dumps(self.tables))


def _local(rng: random.Random) -> dict[str, Any]:
    """Settings of local training that are no defaults."""
    values = {"momentum": 0.5, "weight_decay": 0.02, "clip": 1.5}
    return {key: value for key, value in values.items() if rng.random() < 0.3}


def table(name: str, rows: int = 24) -> str:
    """The rows of a client, the same for a name in every folder."""
    draw = random.Random(name)
    lines = ["age,bmi,smokes,ill"]
    for number in range(rows):
        age, bmi = draw.uniform(20, 80), draw.uniform(18, 35)
        ill = (
            "yes" if (age / 80 + draw.gauss(0, 0.3) > 0.6) ^ (number % 7 == 0) else "no"
        )
        lines.append(f"{age:.2f},{bmi:.2f},{draw.choice('xyz')},{ill}")
    return "\n".join(lines) + "\n"


def generate(rng: random.Random, method: str = "", *, seeds: int = 0) -> Generated:
    """Draw an experiment, with this method among its methods; `seeds`: at least so many."""
    covers = set[str]()

    def maybe(what: str, share: float) -> bool:
        drawn = rng.random() < share
        covers.update([what] if drawn else [])
        return drawn

    names = [
        method or rng.choice([*METHODS]),
        rng.choice(["fedavg", "local", "meritfed", "scaffold"]),
    ]
    entries = [
        {"name": name, **ARGUMENTS.get(name, {})} for name in dict.fromkeys(names)
    ]
    for entry in entries:
        if entry["name"] == "meritfed":
            entry["targets"] = rng.choice(["all", "b", ["a", "c"]])
            covers.update(["several targets"] if entry["targets"] == ["a", "c"] else [])
            entry["validation"] = "server" if maybe("server rows", 0.5) else "train"
    if maybe("own method", 0.5):
        entries.append({"name": "own.py:Mine"})
    if maybe("tuned models", 0.2):
        entries.append(
            {
                "name": "fedavg",
                "label": "tuned",
                "personalise": {"part": "bias", "steps": [0, 2], "lr": [0.1]},
            }
        )
    count = max(seeds, rng.choice([1, 1, 2]))
    covers.update(["several seeds"] if count > 1 else [])
    run: dict[str, Any] = {
        "rounds": 4,
        "seeds": [*range(count)],
        "evaluate": rng.choice([1, 2]),
    }
    if maybe("own loss", 0.3):
        run["loss"] = "own.py:loss"
    if maybe("own metric", 0.3):
        run["metrics"] = ["accuracy", "own.py:margin"]
    if maybe("partial participation", 0.3):
        run["clients_per_round"] = 3
    if maybe("jobs", 0.35):
        run["jobs"] = 2
    tables: dict[str, Any] = {
        "data": {"folder": "rows", "label": "ill", "server_file": "server.csv"},
        "split": {"folds": 0},
        "model": {"name": "mlp"}
        if method in LAYERED
        else {"name": "own.py:Net"}
        if maybe("own model", 0.5)
        else {"name": rng.choice(["logistic", "mlp"])},
        "local": {"lr": 0.1, "steps": 3, "batch_size": 4, **_local(rng)},
        "methods": entries,
        "run": run,
    }
    if maybe("folds", 0.08):
        tables["split"] = {"folds": 2}
    if maybe("workers", 0.3):
        tables["engine"] = {"name": "inprocess", "workers": 2}
    if maybe("attack", 0.3):
        tables["attack"] = {
            "name": rng.choice([name for name in ATTACKS if name != "nan"]),
            "on": ["d"],
        }
    if maybe("filters", 0.3):
        own = rng.random() < 0.5
        covers.update(["own filter"] if own else [])
        tables["filters"] = [{"name": "own.py:Half" if own else rng.choice([*FILTERS])}]
    if maybe("callbacks", 0.3):
        own = rng.random() < 0.5
        covers.update(["own callback"] if own else [])
        tables["callbacks"] = [
            {"name": "own.py:Stop"}
            if own
            else {"name": "early-stopping", "patience": 30}
        ]
    if not maybe("rare saves", 0.2):
        run["save_every"] = 1  # the default skips saves of short rounds
    return Generated(tables, frozenset(covers))
