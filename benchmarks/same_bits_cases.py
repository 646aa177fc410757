"""What `same_bits` runs in a tree, and how it reads what came out."""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import coterie as ct
from coterie.config.registry import ATTACKS, METHODS, SAMPLERS

# ---- what is recorded


class Key(NamedTuple):
    """Where a value stands; empty what does not apply, `*` for everybody. Of a weight `column` is the target."""

    case: str
    place: str
    method: str = ""
    seed: str = ""
    client: str = ""
    split: str = ""
    round: str = ""
    column: str = ""


class Recording:
    """Values and digests of tensors by key, all as text."""

    def __init__(self, found: Mapping[Key, str] | None = None) -> None:
        self.found: dict[Key, str] = dict(found or {})

    def add(self, value: Any, *key: Any) -> None:
        """Record a value; a key that repeats is counted."""
        plain = Key(*map(str, key))
        last, number = plain, 1
        while last in self.found:
            number += 1
            last = plain._replace(column=f"{plain.column} #{number}")
        self.found[last] = text_of(value)

    def matching(self, pattern: str) -> Recording:
        """The part of some cases."""
        return Recording(
            {k: v for k, v in self.found.items() if fnmatchcase(k.case, pattern)}
        )

    def write(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write as JSON, whole or not at all."""
        text = json.dumps(
            {"about": about, "found": [[*k, v] for k, v in self.found.items()]}
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> tuple[Recording, dict[str, Any]]:
        """Undo `write`."""
        saved = json.loads(path.read_text())
        return cls({Key(*row[:-1]): row[-1] for row in saved["found"]}), saved["about"]


def text_of(value: Any) -> str:
    """A value as text that differs where any bit does.

    >>> text_of(0.1), text_of(3), text_of(None)
    ('0x1.999999999999ap-4', '3', 'None')
    """
    return value.hex() if isinstance(value, float) else str(value)


def digest_of(tensor: Any) -> str:
    """Type, shape and a digest of the numbers of a tensor."""
    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(plain.numpy().tobytes(), digest_size=16).hexdigest()
    return f"{plain.dtype} {list(plain.shape)} {digest}"


def add_run(recording: Recording, case: str, name: str, run: Any) -> None:
    """What a `Run` has learned and seen."""
    for row in run.history:
        recording.add(
            float(row.value),
            case,
            "history",
            name,
            run.seed,
            row.client,
            row.split,
            row.round,
            row.metric,
        )
    for row in run.summary:
        _add_summary_row(recording, case, {"method": name, **row})
    for number, target, client, weight in run.weight_rows:
        recording.add(
            float(weight), case, "weights", name, run.seed, client, "", number, target
        )
    for target, weights in run.weights.items():
        for client, weight in weights.items():
            recording.add(
                float(weight),
                case,
                "last weights",
                name,
                run.seed,
                client,
                "",
                "",
                target,
            )
    for client in run.failures:
        recording.add(True, case, "failures", name, run.seed, client)
    for client in run.models:
        for tensor, value in run.state_dict(client).items():
            recording.add(
                digest_of(value), case, "model", name, run.seed, client, "", "", tensor
            )


def add_folder(recording: Recording, case: str, folder: Path) -> None:
    """What a run directory holds."""
    from safetensors import safe_open

    for row in json.loads((folder / "summary.json").read_text()):
        _add_summary_row(recording, case, row)
    for place, value, further in (
        ("history", "value", ("split", "round", "metric")),
        ("weights", "weight", ("", "round", "target")),
    ):
        with open(folder / f"{place}.csv", newline="") as file:
            for row in csv.DictReader(file):
                key = (row.get(k, "") for k in ("method", "seed", "client", *further))
                recording.add(float(row[value]), case, place, *key)
    if (folder / "failures.json").exists():
        for row in json.loads((folder / "failures.json").read_text()):
            recording.add(
                True, case, "failures", row["method"], row["seed"], row["client"]
            )
    for path in sorted((folder / "models").glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["coterie"])
            client = (
                path.stem.removeprefix(
                    f"{about['method']}-{about['seed']}"
                ).removeprefix("-")
                or "*"
            )
            for tensor in file.keys():  # noqa: SIM118 - a file of tensors is not a dict
                key = (about["method"], about["seed"], client, "", "", tensor)
                recording.add(digest_of(file.get_tensor(tensor)), case, "model", *key)


def _add_summary_row(recording: Recording, case: str, row: Mapping[str, Any]) -> None:
    where = ("method", "seed", "client", "split")
    for column in (c for c in row if c not in where):
        recording.add(
            row[column], case, "summary", *(row[k] for k in where), "", column
        )


# ---- the cases

ROUNDS, SEED = 5, 3
NAMES = ("a", "b", "c", "d", "e", "f")
ARGUMENTS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "fedadp": ({}, {"reference": "b", "by_size": False, "running_mean": False}),
    "fedprox": ({"mu": 0.5},),
    **{
        name: ({"personal": ("*bias",)},)
        for name in ("fedper", "fedrep", "fedbabu", "fedbn")
    },  # one problem has one layer
    "isfedavg": ({}, {"sample_ratio": 0.5}),
    "isfl": (
        {},
        {"exact": True, "sample_ratio": 0.5},
        {"where": "client", "floor": 0.5},
    ),
    "maxfl": (
        {},
        {"requirements": "validation", "warmup_steps": 3, "tuning_steps": 2},
        {"warmup_steps": 3, "surrogate": "log"},
        {"warmup_steps": 1, "flexible": True},
    ),
    "meritfed": (
        {},
        {"targets": ("a", "c", "e")},
        {
            "targets": "b",
            "oracle": "delegated",
            "oracle_batch_size": 4,
            "damping": True,
        },
        {"targets": ("a", "c"), "oracle": "loss", "directions": 2},
        {"targets": ("a", "c"), "md_step": "line-search"},
        {"validation": "server"},
        {"targets": ("a", "c"), "server_optimiser": "adam", "lr": 0.1},
    ),
    "mwfed": ({"rate": 2.0, "warmup_steps": 1},),
    "multi-krum": ({}, {"byzantine": 0}),
    "perfedavg": ({"alpha": 0.1}, {"alpha": 0.1, "variant": "hf"}),
    "pj-is": ({}, {"sample_ratio": 0.5}),
    "qffl": ({}, {"q": 0.0}),
    "selective": ({"internal": ("a", "b")}, {"internal": "d"}),
    "sgd-full": ({}, {"server_optimiser": "adam", "lr": 0.1}),
    "sgd-ideal": (
        {"members": NAMES[:5]},
        {"members": "*", "server_optimiser": "adam", "lr": 0.1},
    ),
    "power-of-choice": ({}, {"loss_batch_size": 4}),
    "target-only": ({"target": "c"},),
    "tawt": ({}, {"targets": ("a", "c"), "step": 0.3}, {"targets": "b"}),
    "trimmed-mean": ({}, {"trim": 0.4}),
    "uniform-is": ({}, {"sample_ratio": 0.5}),
    "varsel": (
        {"internal": ("a", "b"), "preselect": "smallest"},
        {"internal": ("a", "c", "d"), "internal_splits": 2, "unbiased_variance": True},
        {
            "internal": "c",
            "internal_splits": 2,
            "debias": True,
            "preselect": "smallest",
        },
    ),
}
"""Arguments of a method; the first are used on every problem, the others, several targets among them, on the third only."""
ATTACK_FIELDS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "ipm": ({}, {"statistics": "all"}),
    "alie": ({}, {"z": 1.5, "statistics": "all"}),
    "noise": ({}, {"mode": "add", "sigma": 1.0}),
}
COMPARED = {
    "heart-disease": "local,centralised,fedavg,fedprox,meritfed,varsel,maxfl --rounds 6",
    "digits": "local,fedavg,scaffold,meritfed,trimmed-mean --rounds 4 --clients-per-round 6",
}
"""Methods and options of `coterie compare`."""
METHODS_RUN: tuple[dict[str, Any], ...] = (
    {"name": "fedavg"},
    {"name": "scaffold"},
    {"name": "meritfed", "label": "merit", "local": {"lr": 0.05, "momentum": 0.9}},
)
EXPERIMENT: Mapping[str, Any] = {
    "data": {"name": "heart-disease"},
    "model": {"name": "mlp"},
    "local": {"lr": 0.1, "epochs": 1, "batch_size": 16},
    "methods": list(METHODS_RUN),
    "run": {"rounds": 4, "seeds": [1, 5], "evaluate": 3, "clients_per_round": 3},
}
"""What `coterie run` is given, with further tables by case."""
RUNS: Mapping[str, Mapping[str, Any]] = {
    "attack by name": {"attack": {"name": "ipm", "on": ["hungary"]}},
    "attack by share": {"attack": {"name": "label-flip", "on": 0.5}},
    "personalise": {
        "methods": [
            {**method, "label": label, **tuning}
            for method in METHODS_RUN
            for label, tuning in (
                (method.get("label", method["name"]), {}),
                (
                    f"{method.get('label', method['name'])}+last",
                    {"personalise": {"part": "last", "steps": [0, 3], "lr": [0.1]}},
                ),
            )
        ],
        "run": {"merge_validation": False},
    },
}
Case = Callable[[Recording, str], None]


class Problem(NamedTuple):
    """Clients and what they train, with options of `fit`."""

    clients: Any
    model: Any
    options: Mapping[str, Any]


def _drawn(
    name: str, count: int, classes: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a client whose classes lie and are spread in its own way."""
    g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = torch.randn(count, 5, generator=g, dtype=dtype)
    tilt = torch.randn(5, classes, generator=g, dtype=dtype)
    y = (x @ (torch.eye(5, classes, dtype=dtype) + 0.5 * tilt)).argmax(1)
    y[: 4 * classes] = torch.arange(4 * classes) % classes  # every class in every part
    return x, y


def _clients(
    classes: int,
    dtype: torch.dtype,
    names: tuple[str, ...] = NAMES,
    unseen: tuple[str, ...] = (),
) -> ct.Clients:
    def made(group: tuple[str, ...]) -> dict[str, Any]:
        return {
            n: _drawn(n, 24 + 4 * (i % 6), classes, dtype) for i, n in enumerate(group)
        }

    server = _drawn("server", 24, classes, dtype)
    return ct.data.from_tensors(
        made(names), seed=SEED, server=server, unseen=made(unseen) or None
    )


@functools.cache
def _participation() -> Problem:
    """Two classes and one logit in double precision; four of six clients take part in a round."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        model = nn.Linear(5, 1).double()
    return Problem(_clients(2, torch.float64), model, {"clients_per_round": 4})


@functools.cache
def _batch_norm() -> Problem:
    """Three classes, float and integer buffers; everybody takes part."""
    return Problem(_clients(3, torch.float32), _net, {})


@functools.cache
def _targets() -> Problem:
    """Three classes, a model whose training draws random numbers, and clients that never train."""
    model = ct.models.MLP(hidden=(8,), dropout=0.3)
    return Problem(
        _clients(3, torch.float32, unseen=("u", "v")), model, {"clients_per_round": 5}
    )


@functools.cache
def _linear() -> Problem:
    """Three classes, a linear model, for methods that solve for it; everybody takes part."""
    return Problem(_clients(3, torch.float32), ct.models.Logistic(), {})


@functools.cache
def _hazards() -> Problem:
    """Times to an event of rows that are seen from the beginning, for methods of hazard ratios."""
    draw = torch.Generator().manual_seed(0)
    rows = {}
    for name in "abc":
        inputs = torch.randn(40, 2, generator=draw)
        times = torch.rand(40, generator=draw) * torch.exp(-inputs[:, 0])
        events = (torch.rand(40, generator=draw) < 0.7).float()
        rows[name] = inputs, torch.stack([torch.zeros(40), times, events], 1)
    form = ct.LabelForm("hazards", cuts=(1.0,), rates=(1.0,))
    clients = ct.data.from_tensors(rows, form=form)
    return Problem(clients, ct.models.Logistic(), {})


@functools.cache
def _many() -> Problem:
    """More clients than are trained at once."""
    names = tuple(f"client-{i:02d}" for i in range(37))
    return Problem(
        _clients(3, torch.float32, names),
        ct.models.Logistic(),
        {"clients_per_round": 35},
    )


def _net(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, outputs)
    )


PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    "participation": _participation,
    "batch-norm": _batch_norm,
    "targets": _targets,
}


def _runs() -> Iterator[tuple[str, Case]]:
    """Cases of one `fit` in this process or with workers."""
    for name in METHODS:
        settings = ARGUMENTS.get(name, ({},))
        problems = PROBLEMS
        if METHODS[name].linear_only:
            problems = {"linear": _linear}
        if name == "cox":
            problems = {"hazards": _hazards}
        for problem, make in problems.items():
            yield f"methods/{problem}/{name}", _method_case(name, settings[0], make)
        on_workers = "batch-norm" if "batch-norm" in problems else next(iter(problems))
        yield (
            f"workers/{on_workers}/{name}",
            _method_case(name, settings[0], problems[on_workers], workers=2),
        )
        for arguments in settings[1:]:
            yield (
                f"methods/targets/{name} {_spelled(arguments)}",
                _method_case(name, arguments, _targets),
            )
    for name in SAMPLERS:
        yield (
            f"samplers/{name}",
            _method_case(
                "fedavg", {}, _participation, _local(sampler=SAMPLERS[name]())
            ),
        )
    yield (
        "schedule",
        _method_case(
            "fedavg",
            {},
            _targets,
            local=_local(lr=ct.Schedule(0.2, at=(2, 4), factor=0.5)),
        ),
    )
    yield "personalise", _personalise
    for name in ("fedavg", "scaffold", "meritfed"):
        for workers in (1, 2):
            yield (
                f"many/{name}/{workers} workers",
                _method_case(name, {}, _many, workers=workers),
            )
    for name in ATTACKS:
        for fields in ATTACK_FIELDS.get(name, ({},)):
            for workers in (1, 2):
                yield (
                    f"attacks/{name} {_spelled(fields)}/{workers} workers",
                    _method_case("fedavg", {}, _batch_norm, workers=workers, clients_per_round=5,
                                 attack=ATTACKS[name](**fields, on=("b", "e"))),
                )  # fmt: skip
    yield (
        "attacks/of a gap",
        _method_case("maxfl", {}, _targets, attack=ATTACKS["loss-inflation"](on=0.4)),
    )


def _commands() -> Iterator[tuple[str, Case]]:
    """Cases that mostly wait for processes which they start."""
    for data, options in COMPARED.items():
        for workers in (1, 2):
            yield (
                f"compare/{data}/{workers} workers",
                _compare_case(data, options.split(), workers),
            )
    for name, further in RUNS.items():
        yield f"run/{name}", _run_case(further)
    if importlib.util.find_spec("ray") is not None:
        yield (
            "ray/fit",
            _method_case("meritfed", {}, _batch_norm, engine=ct.Ray(actors=2)),
        )
        yield "ray/run", _run_case({"engine": {"name": "ray", "actors": 2}})


GROUPS: Mapping[str, Callable[[], Iterator[tuple[str, Case]]]] = {
    "runs": _runs,
    "commands": _commands,
}
"""All cases by name, in the order in which they run: groups for as many processes."""


def _spelled(arguments: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in arguments.items()) or "plain"


def _local(**settings: Any) -> ct.LocalSGD:
    return ct.LocalSGD(**{"lr": 0.1, "steps": ct.Steps(3), "batch_size": 6, **settings})


def _method(name: str, arguments: Mapping[str, Any], local: Any = None) -> Any:
    trains = (
        {"local": local or _local()}
        if "local" in inspect.signature(METHODS[name]).parameters
        else {}
    )
    return METHODS[name](**trains, **arguments)


def _method_case(
    name: str,
    arguments: Mapping[str, Any],
    make: Callable[[], Problem],
    local: Any = None,
    *,
    workers: int = 1,
    engine: Any = None,
    attack: Any = None,
    **options: Any,
) -> Case:
    def case(recording: Recording, label: str) -> None:
        problem = make()
        settings = ct.RunSettings(evaluate=2, **{**problem.options, **options})
        run = ct.fit(
            _method(name, arguments, local), problem.clients, problem.model, ROUNDS, SEED, attack=attack,
            engine=engine or ct.InProcess(workers=workers), settings=settings,
        )  # fmt: skip
        add_run(recording, label, name, run)

    return case


def _personalise(recording: Recording, label: str) -> None:
    problem = _targets()
    settings = ct.RunSettings(merge_validation=False)
    run = ct.fit(
        _method("fedavg", {}),
        problem.clients,
        problem.model,
        ROUNDS,
        SEED,
        settings=settings,
    )
    for part in ("all", "last", "bias"):
        tuned = ct.personalise(
            run, problem.clients, part=part, steps=(0, 2, 5), lr=(0.1, 1.0)
        )
        add_run(recording, label, f"fedavg+{part}", tuned)


def _compare_case(data: str, options: list[str], workers: int) -> Case:
    def case(recording: Recording, label: str) -> None:
        spread = [] if workers == 1 else ["--set", f"engine.workers={workers}"]
        _command(
            recording,
            label,
            "compare",
            data,
            "--methods",
            *options,
            "--seeds",
            "2",
            *spread,
        )

    return case


def _run_case(further: Mapping[str, Any]) -> Case:
    def case(recording: Recording, label: str) -> None:
        import tomli_w

        tables = {
            **EXPERIMENT,
            **further,
            "run": {**EXPERIMENT["run"], **further.get("run", {})},
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "experiment.toml"
            path.write_text(tomli_w.dumps(tables))
            _command(recording, label, "run", str(path))

    return case


def _command(recording: Recording, label: str, *arguments: str) -> None:
    """Run a command and add its run directory."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "coterie",
            *arguments,
            "--out",
            str(out),
            "--no-report",
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise ValueError(
                f"coterie {arguments[0]} ended with {ended.returncode}: {ended.stderr.strip()}"
            )
        add_folder(recording, label, out)


def record(
    groups: Iterable[str] = tuple(GROUPS), pattern: str = "*"
) -> tuple[Recording, list[str]]:
    """Run the cases of these groups that fit a pattern; what was recorded, and the traceback of each that broke.

    How a case ended is recorded too: a run that cannot go on is a result.
    """
    recording = Recording()
    broken = []
    for label, case in (c for group in groups for c in GROUPS[group]()):
        if not fnmatchcase(label, pattern):
            continue
        ended = "done"
        try:
            case(recording, label)
        except ct.RunError:
            ended = "RunError"
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            broken.append(f"{label}: {traceback.format_exc()}")
        recording.add(ended, label, "ended")
    return recording, broken
