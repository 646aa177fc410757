"""One site of a federation: its rows, its rules, and a process of their own for both.

The site's worker (`Site`) takes one message at a time, refuses what its settings forbid, writes down every ask and passes the rest to
a child process, where the rows, the model and the client's memory are. A crash of the child is this client's failure and nothing more.
Nothing here knows what carries the messages.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import torch

from coterie.core.envelopes import Answer, Ask, Block
from coterie.core.errors import InputError, check_field, nearest, require
from coterie.core.rows import Clients
from coterie.core.shard import Shard
from coterie.core.state import write_atomically
from coterie.core.task import known_tasks
from coterie.core.wire import decode, encode, header
from coterie.core.workspace import Workspace
from coterie.data.tables.columns import Table
from coterie.data.tables.folder import encoded_client
from coterie.data.tables.recipe import Description, TableCohort, describe
from coterie.engines.inprocess import MEMORY_LOST
from coterie.models import MODELS, build_shape
from coterie.sites.tables import TABLE_TASKS, facts_of, read_site

__all__ = ["Site", "SiteSettings", "matches", "read_settings"]

SETTINGS_FILE = "coterie.toml"
LOG_HEADER = ("time", "run", "round", "ask", "task", "bytes_down", "bytes_up", "outcome")


@dataclass(frozen=True)
class SiteSettings:
    """The [site] table of a site's own `coterie.toml`. It never leaves the site.

    Attributes:
        data: the site's data file (CSV, TSV, Parquet).
        label: the column that may be predicted; left out: whichever the plan names.
        minimum_rows: with fewer training rows the site answers nothing.
        refuse: names of tasks that the site does not run, such as `meritfed:target_descent`.
        log: file to which every ask is written, with task, round and bytes.
    """

    data: str
    label: str | None = None
    minimum_rows: int = 1
    refuse: tuple[str, ...] = ()
    log: str = "asks.csv"

    def __post_init__(self) -> None:
        check_field(self, "data", self.data, isinstance(self.data, str) and bool(self.data), "the path of a file")
        good = self.label is None or isinstance(self.label, str)
        check_field(self, "label", self.label, good, "the name of a column")
        good = type(self.minimum_rows) is int and self.minimum_rows >= 1
        check_field(self, "minimum_rows", self.minimum_rows, good, "an int >= 1")
        good = isinstance(self.refuse, tuple) and all(isinstance(t, str) for t in self.refuse)
        check_field(self, "refuse", self.refuse, good, "a list of names of tasks")
        check_field(self, "log", self.log, isinstance(self.log, str) and bool(self.log), "the path of a file")


def read_settings(path: Path) -> SiteSettings:
    """The settings of a site; relative paths count from the file's folder. Raises `InputError` that names file, key and cure."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); write [site] and data = FILE into it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no valid TOML: {error}") from error
    for key in tables:
        require(key == "site", f"{path}: unknown table [{key}]; {nearest(key, ['site'])}")
    table = tables.get("site", {})
    known = [f.name for f in fields(SiteSettings)]
    require(isinstance(table, dict) and "data" in table, f"{path}: [site] must name the data file: data = FILE")
    for key in table:
        require(key in known, f"{path}: unknown key {key!r}; {nearest(key, known)}")
    try:
        made = _settings(table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    for task in made.refuse:
        require(
            any(matches(name, task) for name in known_tasks()),
            f"{path}: refuse names the unknown task {task!r}; {nearest(task, [short(n) for n in known_tasks()])}",
        )
    values = {**asdict(made), "data": str(path.parent / made.data), "log": str(path.parent / made.log)}
    return SiteSettings(**values)


def _settings(table: Mapping[str, Any]) -> SiteSettings:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return SiteSettings(**values)


def short(task: str) -> str:
    """A task's name without its packages.

    >>> short("coterie.algorithms.meritfed:target_descent")
    'meritfed:target_descent'
    """
    return task.rpartition(".")[2]


def matches(task: str, rule: str) -> bool:
    """Whether `rule`, a task's name with or without its module, means `task`."""
    return rule in (task, short(task), task.rpartition(":")[2])


class Site:
    """The worker half of a site: takes messages, one at a time, and keeps the child process that answers them.

    Args:
        name: of the client.
        settings: the site's own, or the sentence that says why there are none, which is then the answer to everything.
        folder: where client memory is kept for a run that is resumed.
    """

    def __init__(self, name: str, settings: SiteSettings | str, folder: Path) -> None:
        self._name, self._settings, self._folder = name, settings, folder
        self._lock = threading.Lock()
        self._newest = -1
        self._rows: int | None = None
        self._journal: dict[str, bytes] = {}
        self._child: _Child | None = None

    @property
    def busy(self) -> bool:
        """Whether a message is being answered."""
        return self._lock.locked()

    def handle(self, message: bytes) -> bytes:
        """The answer to a message; what goes wrong is a sentence under `failed`."""
        with self._lock:  # calls come in threads, and one that timed out may still run
            about = header(message)
            # An ask that its sender gave up may get here after a later one: it must not touch what the later one has seen.
            if about["serial"] <= self._newest:
                return encode({"serial": about["serial"], "failed": "a later ask came first"})
            self._newest = about["serial"]
            answer, outcome = self._answer(about, message)
            self._write_log(about, len(message), len(answer), outcome)
            return answer

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.close()

    def _answer(self, about: Mapping[str, Any], message: bytes) -> tuple[bytes, str]:
        refusal = self._refusal(about)
        if refusal:
            return encode({"serial": about["serial"], "failed": refusal}), f"refused: {refusal}"
        if self._child is None:
            self._child = _Child(self._name, self._settings, self._folder)
        answer = self._child.ask(message)
        if answer is None:
            why = f"its cohort process ended with exit code {self._child.code}; {MEMORY_LOST}"
            self._child = self._again()
            return encode({"serial": about["serial"], "failed": why}), f"failed: {why}"
        told = header(answer)
        if "failed" in told:
            return answer, f"failed: {told['failed']}"
        if about["do"] in ("open", "encode", "prepare"):
            self._journal[about["do"]] = message
            self._rows = told.get("rows", self._rows)
        return answer, "answered"

    def _refusal(self, about: Mapping[str, Any]) -> str | None:
        if isinstance(self._settings, str):
            return self._settings
        if about["do"] == "task":
            task = about["ask"].task
            if any(matches(task, rule) for rule in self._settings.refuse):
                return f"its site refuses the task {short(task)!r}"
        least = self._settings.minimum_rows
        if about["do"] == "task" and self._rows is not None and self._rows < least:
            return f"it has fewer than the {least} training rows under which its site does not answer"
        return None

    def _again(self) -> _Child | None:
        """A new child that knows what the old one was told; but for its memory, which is lost."""
        child = _Child(self._name, self._settings, self._folder)
        for kind in ("open", "encode", "prepare"):
            if kind in self._journal:
                message = self._journal[kind]
                if kind == "prepare":
                    message = encode({**decode(message), "resume": False})
                if child.ask(message) is None:
                    return None  # the next message tries once more
        return child

    def _write_log(self, about: Mapping[str, Any], down: int, up: int, outcome: str) -> None:
        if isinstance(self._settings, str):
            return
        path = Path(self._settings.log)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not path.exists()
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if fresh:
                writer.writerow(LOG_HEADER)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            ask: Ask | None = about.get("ask")
            what = (ask.context.round, ask.context.ask, ask.task) if ask else ("", "", about["do"])
            writer.writerow((now, about.get("run", ""), *what, down, up, outcome))


class _Child:
    """The child process of a site. It is started from scratch: the worker has threads, which a fork would not survive."""

    def __init__(self, name: str, settings: SiteSettings | str, folder: Path) -> None:
        self._pipe, theirs = Pipe()
        start = {"name": name, "settings": asdict(settings), "folder": str(folder)}  # type: ignore[arg-type]
        command = [sys.executable, "-m", "coterie.sites.site", str(theirs.fileno()), json.dumps(start)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self.code: int | None = None

    def ask(self, message: bytes) -> bytes | None:
        """The child's answer; None if it has died, and then `code` is its exit code."""
        try:
            self._pipe.send_bytes(message)
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.close()
            return None

    def close(self) -> None:
        """End the process; what it must keep is on disk."""
        self._pipe.close()
        self._process.kill()
        self.code = self._process.wait()


class _Rows:
    """The child half of a site: what it does with each kind of message."""

    def __init__(self, name: str, settings: SiteSettings, folder: Path) -> None:
        self.name, self.settings, self.folder = name, settings, folder
        self.table: Table | None = None
        self.clients: Clients | None = None
        self.shard: Shard | None = None
        self._memory_file: Path | None = None
        self._saved: dict[str, torch.Tensor] = {}
        self._before: tuple[int, dict[str, torch.Tensor]] = (-1, {})

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to one message."""
        does = {
            "open": self._open,
            "encode": self._encode,
            "prepare": self._prepare,
            "memory": self._load_memory,
            "task": self._task,
        }
        return does[message["do"]](message)

    def _open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        options = json.loads(message["options"])
        own = self.settings.label
        require(
            own in (None, options["label"]),
            f"the plan predicts {options['label']!r}, but this site offers only {own!r}; agree on one label",
        )
        seed, split = message["seed"], json.loads(message["split"]) or None
        self.table, notes = read_site(self.settings.data, self.name, options, seed=seed, split=split)
        self.clients = self.shard = None
        missing = sorted(set(message["columns"]) - set(self.table.columns))
        require(not missing, f"its file has no column {', '.join(missing)}, which the plan needs; add it")
        return {"rows": len(self.table.parts["train"]), "notes": tuple(notes)}

    def _encode(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self.table is None:
            raise InputError("the rows were not read yet")
        recipe = json.loads(message["recipe"])
        client, notes = encoded_client(self.table, recipe)
        self.clients = Clients([client], recipe=recipe)
        return {"notes": tuple(notes), "facts": json.dumps(asdict(facts_of(self.clients, self.name)))}

    def _prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self.clients is None:
            raise InputError("the rows were not encoded yet")
        clients = self.clients.folded((self.name,) if message["keep"] else ()) if message["fold"] else self.clients
        spec = json.loads(message["model"])
        inputs = clients.train.inputs
        shape = tuple(inputs.shape[1:])  # type: ignore[union-attr]
        table = {k: tuple(v) if isinstance(v, list) else v for k, v in spec["fields"].items()}
        with torch.random.fork_rng(devices=[]):
            module = build_shape(MODELS[spec["name"]](**table), shape, message["outputs"])
        module.to(getattr(torch, message["dtype"]))
        module.load_state_dict({k.removeprefix("state/"): v for k, v in message.items() if k.startswith("state/")})
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in message["frozen"])
        self.shard = Shard(clients, Workspace(module, "auto", clients[0], kernel=message["kernel"]))
        mark = hashlib.blake2b(f"{message['run']}/{message['pair']}".encode(), digest_size=12).hexdigest()
        self._memory_file = self.folder / f"{mark}.safetensors"
        self._saved = {}
        if not message["resume"]:
            self._memory_file.unlink(missing_ok=True)
        elif self._memory_file.exists():
            self.shard.memory.load(decode(self._memory_file.read_bytes()), (self.name,))
        return {"facts": json.dumps(asdict(facts_of(clients, self.name)))}

    def _load_memory(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self.shard is None:
            raise InputError("the model was not sent yet")
        self.shard.memory.load(message["saved"].values, (self.name,))
        return {}

    def _task(self, message: Mapping[str, Any]) -> dict[str, Any]:
        ask: Ask = message["ask"]
        require(ask.names == (self.name,), f"the ask is for {ask.names}, and this is {self.name!r}")
        if ask.function in TABLE_TASKS:
            return {"answer": self._look_at_table(ask)}
        if self.shard is None:
            raise InputError("the model was not sent yet")
        if message["undo"] == self._before[0]:
            self.shard.memory.load(self._before[1], (self.name,))
        self._before = (message["serial"], self.shard.memory.save())
        answer = self.shard.answer(ask)
        self._save_memory(self.shard)
        return {"answer": answer}

    def _look_at_table(self, ask: Ask) -> Answer:
        if self.table is None:
            raise InputError("the rows were not read yet")
        reply = ask.function(TableCohort({self.name: self.table}), **ask.arguments())
        if ask.function is describe:
            reply = Description((_without_cells(reply.text[0]),))
        return Answer((Block((self.name,), reply._asdict()),))

    def _save_memory(self, shard: Shard) -> None:
        """Keep what the task has remembered, before its answer counts."""
        now = shard.memory.save()
        if {k: id(v) for k, v in now.items()} == {k: id(v) for k, v in self._saved.items()}:
            return
        self._saved = now
        path = self._memory_file
        if path is not None:
            message = encode(now)
            write_atomically(path, lambda p: p.write_bytes(message))


def _without_cells(text: str) -> str:
    """A description without the cells that it quotes as examples for errors: they are for a user who has all files."""
    about = json.loads(text)
    for column in about["columns"].values():
        if "example" in column:
            column["example"] = [column["example"][0], "a text"]
    return json.dumps(about)


def _serve(pipe: Connection, rows: _Rows) -> None:
    while True:
        try:
            message = decode(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            reply = rows.answer(message)
        except Exception as error:  # whatever a file or a task does is this client's failure
            said = " ".join(str(error).split()).replace(rows.settings.data, Path(rows.settings.data).name)
            reply = {"failed": said if isinstance(error, InputError) else f"{type(error).__name__}: {said}"}
        pipe.send_bytes(encode({**reply, "serial": message["serial"]}))


def _main() -> None:
    import coterie.algorithms
    import coterie.core.metrics  # noqa: F401 - both register their tasks

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker
    torch.set_num_threads(1)
    start = json.loads(sys.argv[2])
    rows = _Rows(start["name"], _settings(start["settings"]), Path(start["folder"]))
    _serve(Connection(int(sys.argv[1])), rows)


if __name__ == "__main__":
    _main()
