"""Provenance: a tree of hashes of all that the numbers of a run depend on, written before round 0 and compared when it is resumed.

In it: code of the user's own (of a file its statements, of objects of a program their bytecode with constants, defaults, closures and
the globals that they name), the method, the initial model, the rows of every client and of the server, settings, and the arithmetic of
this machine. Not in it, so free to change: workers, jobs, threads, folders, times of files, line ends and comments.
"""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.base.clients import Clients
from coterie.base.errors import InputError, plain
from coterie.base.identity import identity
from coterie.config.registry import METRICS
from coterie.config.run import EVERYBODY, RunSettings
from coterie.run.callbacks import Callback
from coterie.run.code_hashes import Description, hash_tensors, installed_version
from coterie.run.hashes import (
    PROVENANCE,
    Tree,
    hash_of_tree,
    hash_texts,
    record_or_none,
    write_record,
)

ACCEPTABLE = ("code", "data", "machine")
"""Parts of which a change may be accepted; with another method, model or setting a run is another one."""
PARTS = ("settings", "method", "code", "machine", "data", "model")
"""Parts in the order in which changes are named: causes first, since code, machine and data change the initial model too."""
MOST_NAMED = 3
"""Changes that a refusal names."""
COUNTED = (
    "clients_per_round",
    "merge_validation",
    "max_norm",
    "appeal",
    "contribution",
)
"""Settings of a run on which its numbers depend."""
SHORT = 60
"""Characters of a value that stands in the record as it is; of a longer one its hash does."""


# ---- what a run depends on


def describe_run(
    method: Any,
    clients: Clients,
    module: nn.Module | None,
    rounds: int,
    seed: int,
    settings: RunSettings,
    *,
    engine: Any = None,
    attack: Any = None,
    attackers: Sequence[str] = (),
    filters: Sequence[Any] = (),
    packages: Sequence[str] = (),
) -> Tree:
    """Describe what the numbers of a run depend on.

    Args:
        method: The method with its settings.
        clients: Rows of all clients and of the server, before validation rows are merged.
        module: The initial model; None for what trains no module.
        rounds: Number of rounds, which alone may grow.
        seed: Seed of the run.
        settings: Settings of the run; callbacks that decide nothing are free.
        engine: Settings of the engine, of which those count on which numbers depend.
        attack: What attackers do.
        attackers: Names of the clients that attack.
        filters: What replies pass through.
        packages: Packages beside torch and NumPy that compute numbers of the run, as `Method.packages`.
    """
    deciding = [
        callback
        for callback in settings.callbacks
        if isinstance(callback, Callback) and callback.decides
    ]
    values: dict[str, Any] = {name: getattr(settings, name) for name in COUNTED}
    values |= {
        "seed": seed,
        "evaluate": settings.every(rounds),
        "loss": settings.loss,
        "metrics": [[name, METRICS.find(name)] for name in settings.metrics],
        "filters": list(filters),
        "engine": {} if engine is None else engine.results(),
        "callbacks": deciding,
        "attack": attack,
        "attackers": list(attackers),
        "transform": clients.transform,
    }
    if settings.secure is not None:  # means are rounded to its steps
        values["secure"] = settings.secure
    if settings.down != RunSettings.down:  # clients train from rounded models
        values["down"] = settings.down
    if settings.clients_per_round is not None:  # a share is the number that it means
        values["clients_per_round"] = settings.per_round(len(clients))
    # `evaluation` may be a number alone, or a table: one that says no more is the same.
    evaluated = replace(settings.evaluation, every=None)
    if evaluated != EVERYBODY:
        values["evaluated"] = list(vars(evaluated).values())[1:]
    description = Description()
    for runs in (method, settings.row_loss(clients)):
        description.value(runs)
    fields = description.fields(method, "method")
    if not isinstance(fields, dict):
        fields = {"value": fields}
    described_method = {"class": type(method).__qualname__}
    for name, value in sorted(fields.items()):
        described_method[name] = _leaf(value)
    described_settings: dict[str, str] = {}
    model = {}
    if module is not None:
        model = _describe_model(module, description)
    for name, value in sorted(values.items()):
        described_settings[name] = _leaf(description.value(value, name))
    return {
        "method": described_method,
        "model": model,
        "settings": described_settings,
        "data": _describe_rows(clients),
        "code": description.code,  # of all that was described before
        "machine": _describe_machine(packages),
    }


def _leaf(value: Any) -> str:
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, sort_keys=True)
    return text if len(text) <= SHORT else hash_texts(text)


def _describe_model(module: nn.Module, description: Description) -> dict[str, str]:
    state = module.state_dict()
    initial = {name: v for name, v in state.items() if isinstance(v, Tensor)}
    return {
        "initial numbers": hash_tensors(initial),
        "layers": description.layers(module),
    }


def _describe_rows(clients: Clients) -> dict[str, Any]:
    meaning = [clients.classes, identity(clients.label_scale), clients.recipe]
    tree: dict[str, Any] = {
        "clients": dict(clients.fingerprints()),
        "labels and recipe": hash_texts(
            json.dumps(meaning, sort_keys=True, default=repr)
        ),
    }
    if clients.starts:
        tree["starts"] = {name: str(start) for name, start in clients.starts.items()}
    if clients.server is not None:
        tree["server"] = Clients.of_server(clients.server).fingerprints()["server"]
    return tree


def _describe_machine(packages: Sequence[str]) -> dict[str, str]:
    """Describe what decides how numbers are rounded: versions, the instruction set that torch uses, and its switches.

    Packages that read rows are not in it: the rows themselves are compared, whoever read them.
    """
    from coterie import __version__

    versions = {name: installed_version(name) for name in ("numpy", *packages)}
    return {
        **versions,
        "coterie": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "default dtype": str(torch.get_default_dtype()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "cudnn benchmark": str(torch.backends.cudnn.benchmark),
    }


# ---- trees


def explain(tree: Tree, indent: int = 0) -> Iterator[str]:
    """Lines that show a tree: each branch with its hash, each leaf with its value."""
    for name, branch in tree.items():
        value = hash_of_tree(branch) if isinstance(branch, Mapping) else branch
        yield f"{'  ' * indent}{name}  {value}"
        if isinstance(branch, Mapping):
            yield from explain(branch, indent + 1)


class Change(NamedTuple):
    """A leaf that differs: where it stands, and its values; None where one of the trees lacks it."""

    path: tuple[str, ...]
    before: str | None
    now: str | None

    @property
    def subject(self) -> str:
        """Name what has changed: a file, the data of clients, the initial model, or a setting by its name."""
        part, name, *leaf = self.path
        if part in ("code", "machine"):
            return name
        if part == "model":
            return "the initial model"
        if part == "method":
            return f"the method's {name}"
        if part == "settings":
            return f"the setting {name}"
        if name == "server":
            return "the data of the server"
        if not leaf:
            return f"the {name}"
        if self.can_be_accepted:
            return "the data of clients"
        return "the set of clients"

    @property
    def detail(self) -> str:
        """Name the part of it: the class or function, the client, or the two values if they are short."""
        if self.path[0] in ("code", "model", "data"):
            return "".join(self.path[2:3])
        shown = f"{self.before}, now {self.now}"
        return shown if len(shown) <= SHORT else ""

    @property
    def can_be_accepted(self) -> bool:
        """Return True if a run may go on with the change; states and weights belong to the clients with which it began."""
        is_client = self.path[:2] == ("data", "clients")
        if is_client and None in (self.before, self.now):
            return False
        return self.path[0] in ACCEPTABLE

    def matches(self, words: Collection[str]) -> bool:
        """Return True if one of the words names the file, the part or the leaf that changed."""
        return self.can_be_accepted and not {*self.path}.isdisjoint(words)


def changes(earlier: Tree, now: Tree, path: tuple[str, ...] = ()) -> Iterator[Change]:
    """The leaves in which two trees differ."""
    for name in sorted({*earlier, *now}):
        old_value, new_value = earlier.get(name), now.get(name)
        if isinstance(old_value, Mapping) or isinstance(new_value, Mapping):
            # A branch that one of the trees lacks differs in each of its leaves.
            yield from changes(_branch(old_value), _branch(new_value), (*path, name))
        elif old_value != new_value:
            yield Change((*path, name), old_value, new_value)


def _branch(value: Tree | str | None) -> Tree:
    return value if isinstance(value, Mapping) else {}


def name_changes(differing: Sequence[Change], since: str) -> str:
    """A clause that says what has changed: `own.py has changed since round 3 (class Mine)`."""
    details: dict[str, list[str]] = {}
    for change in differing:
        names = details.setdefault(change.subject, [])
        if change.detail:
            names.append(plain(change.detail, 40))
    clauses: list[str] = []
    for subject, names in details.items():
        clause = f"{subject} has changed since {since}"
        if names:
            clause += f" ({', '.join(_shorten(names))})"
        clauses.append(clause)
    return "; ".join(_shorten(clauses))


def _shorten(texts: list[str]) -> list[str]:
    if len(texts) <= MOST_NAMED:
        return texts
    return [*texts[:MOST_NAMED], f"{len(texts) - MOST_NAMED} more"]


# ---- the record of a run


class Provenance:
    """The record of one run, in the folder of its checkpoint.

    Args:
        folder: Folder of the run.
        world: What its numbers depend on now.
        accept: Changes that the user accepts: a file, `data`, or a name of this machine such as `torch`.
    """

    def __init__(self, folder: Path, world: Tree, accept: Collection[str] = ()) -> None:
        self.path, self._world, self._accept = folder / PROVENANCE, world, accept

    def write(self) -> str:
        """Write the record of a run that begins; returns its hash."""
        run = self.path.parent.name
        write_record(self.path, {"run": run, "record": self._world, "accepted": []})
        return hash_of_tree(self._world)

    def compare(self, since: str, completed: int | None = None) -> str:
        """Compare the record with the world, and write down what has changed; returns the hash of the record.

        Args:
            since: When the record was true, in words.
            completed: The last complete round; a client that joins after it needs no acceptance. None: nobody joins.

        Raises:
            InputError: Something has changed that was not accepted.
        """
        record = record_or_none(self.path)
        if record is None:
            raise InputError(
                f"{self.path} is missing or damaged; restore it from a copy, or delete {self.path.parent} and resume: this method and "
                "seed start again"
            )
        newest = [record, *record["accepted"]][-1]
        differing = list(changes(newest["record"], self._world))
        refused = [
            change
            for change in differing
            if not change.matches(self._accept)
            and not self._joins_later(change, completed)
        ]
        if refused:
            refused.sort(key=lambda change: PARTS.index(change.path[0]))
            raise InputError(
                f"{self.path.parent}: {name_changes(refused, since)}; {_ways_on(refused)}"
            )
        if differing:
            changed = name_changes(differing, since)
            record["accepted"].append({"changes": changed, "record": self._world})
            write_record(self.path, record)
        return hash_of_tree(record["record"])

    def _joins_later(self, change: Change, completed: int | None) -> bool:
        """Return True if a client is new that takes part from a round on that is not complete yet (`Clients.add`)."""
        is_about_clients = change.path[:2] in (("data", "clients"), ("data", "starts"))
        is_new = is_about_clients and change.before is None
        if completed is None or not is_new:
            return False
        data: Any = self._world["data"]
        start = data.get("starts", {}).get(change.path[2], "0")
        return int(start) > completed


def _ways_on(refused: Sequence[Change]) -> str:
    if not all(change.can_be_accepted for change in refused):
        return "resume with the same, or choose another folder"
    words: dict[str, None] = {}  # each once, in this order
    for change in refused:
        part, name = change.path[:2]
        if part == "data":  # of all clients together
            name = "data"
        words[name] = None
    flags = " ".join(f"--accept-change {shlex.quote(word)}" for word in words)
    return f"go back, or continue with {flags}, in Python RunSettings(accept_change={tuple(words)!r})"


def describe_acceptances(folder: Path) -> list[str]:
    """Sentences about changes that the user of a run accepted, from its folder."""
    record = record_or_none(folder / PROVENANCE)
    if record is None:
        return []
    changed = [accepted["changes"] for accepted in record["accepted"]]
    return [f"{record['run']}: {text}; its user accepted that" for text in changed]
