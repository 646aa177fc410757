"""The world changes between kill and resume: code, tables, settings, environment, switches of torch, and records of other runs.

Right is the old world's result, the new world's, or a refusal that names the change; what is free to change must give the old result.
"""

from __future__ import annotations

import gc
import io
import json
import os
import random
import re
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
import torch
from commands import TIMED

from coterie.base.files import read_toml
from coterie.cli.main import main
from coterie.run.hashes import read_record, write_record
from torture.apart import PLAIN, Ended, Setup, Tries, command, real_command
from torture.generated import CLIENTS, Generated, generate, table

COMPARE = ("run", "town.toml", "--out", "run", "--no-report")
RESUME = (*COMPARE, "--resume")
FREE = TIMED | {"experiment.toml", "files.json", "notes.json", "format.json"}
"""Files that may say how a run was called: what numbers follow from is in the others."""


class World(NamedTuple):
    """A killed or finished run in its folder, and what it must end as."""

    folder: Path
    fixture: Generated
    expected: Mapping[str, bytes]


class Change(NamedTuple):
    """What is changed: `named` is a pattern that a refusal must have; empty where the change is free and must not be refused."""

    kind: str
    what: str
    named: str
    make: Callable[[Path], None]
    setup: Setup = PLAIN


def numbers(run: Path) -> dict[str, bytes]:
    """All files of a run that hold its numbers."""
    files = (
        path
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in FREE
    )
    return {
        str(p.relative_to(run)): p.read_bytes()
        for p in files
        if "checkpoint" not in p.relative_to(run).parts
    }


def complaint(ended: Ended) -> str:
    """What must never be: a traceback, a hang, an orphan, an unexpected error."""
    if ended.wrong:
        return ended.wrong
    if "Traceback" in ended.err or ended.status == 70:
        return f"traceback: {ended.err[-300:]}"
    if ended.status == 2 and not re.search(
        r"^coterie: \S.{10,}$", ended.err, re.MULTILINE
    ):
        return f"other: no sentence: {ended.err[-300:]}"
    return ""


def warm_up(folder: Path) -> None:
    """Import in this process what runs need, so that the processes which are forked from it need not."""
    for number, method in enumerate(
        ("isfl", "varsel", "moon", "meritfed", "perfedavg", "maxfl")
    ):
        fixture = generate(random.Random(number), method)
        tables = json.loads(json.dumps(fixture.tables).replace("own.py:", "own."))
        tables["model"], tables["run"] = {"name": "mlp"}, {"rounds": 1, "seeds": [0]}
        tables["methods"] = [
            entry for entry in tables["methods"] if not entry["name"].startswith("own.")
        ]
        for key in ("filters", "callbacks"):
            tables.pop(key, None)
        Generated(tables, frozenset()).write(folder / str(number))
        with (
            chdir(folder / str(number)),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            assert main(["run", "town.toml", "--out", "run"]) == 0, method
            assert main(["report", "run", "--no-html", "--json"]) == 0, method
            assert (
                main(
                    [
                        "predict",
                        "run",
                        "rows/a.csv",
                        "--client",
                        "a",
                        "--method",
                        method,
                    ]
                )
                == 0
            ), method
    shutil.rmtree(folder)
    gc.freeze()  # a child whose collector visits all that was imported copies half of its memory


# ---- changes


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return a change of one place of a file."""

    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert text.count(old) >= 1, (name, old)
        path.write_text(text.replace(old, new, 1))
        after = path.stat().st_mtime + 2
        os.utime(
            path, (after, after)
        )  # Python compares size and seconds before it compiles a file again

    return change


def edit_tables(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a change of the settings."""

    def write(folder: Path) -> None:
        tables = read_toml(folder / "town.toml")
        change(tables)
        (folder / "town.toml").write_text(tomli_w.dumps(tables))

    return write


OWN_EDITS: Mapping[str, tuple[str, str, str]] = {
    "own method": ("delta.mean(dim=0)", "delta.sum(dim=0)", "class Mine"),
    "own model": ("rows) * 1.5", "rows) * 1.6", "class Net"),
    "own loss": ("2.0 * labels", "2.5 * labels", "function loss"),
    "own metric": ("outputs.mean()", "outputs.sum()", "function margin"),
    "own filter": ("share: float = 0.5", "share: float = 0.4", "class Half|filters"),
    "own callback": ("> 900", "> 40", "class Stop"),
}
"""Of each object of the user's own: what is replaced, by what, and what names it."""


def code_changes(fixture: Generated, rng: random.Random) -> Iterator[Change]:
    """Changes of files of the user's own, where the experiment has some."""
    uses = sorted(fixture.covers & set(OWN_EDITS))
    for use in uses:
        old, new, name = OWN_EDITS[use]
        named = (
            "filters|own.py"
            if use == "own filter"
            else f"own\\.py has changed .*\\(.*({name})"
        )
        yield Change("file", use, named, edit("own.py", old, new))
    if uses:
        yield Change(
            "file",
            "a constant",
            r"own\.py has changed .*STEP",
            edit("own.py", "STEP = 0.5", "STEP = 0.6"),
        )
        yield Change(
            "file",
            "an import",
            r"own\.py has changed .*imports",
            edit("own.py", "import torch", "import torch, math"),
        )
        yield Change(
            "helper",
            "a function",
            r"helper\.py has changed",
            edit("helper.py", "float(WEIGHT)", "2 * float(WEIGHT)"),
        )
        yield Change(
            "helper",
            "a tensor",
            r"helper\.py has changed",
            edit("helper.py", "1.25", "1.5"),
        )
        yield Change(
            "helper",
            "a package",
            r"parts/scale\.py has changed",
            edit("parts/scale.py", "return value", "return 2 * value"),
        )
        yield Change(
            "helper",
            "what a package imports",
            r"parts/deeper\.py has changed",
            edit("parts/deeper.py", "1.125", "1.5"),
        )
        yield Change(
            "free",
            "a comment",
            "",
            edit("own.py", "STEP = 0.5", "# half\nSTEP = 0.5  # a half"),
        )
        yield Change(
            "free", "line ends", "", lambda folder: _to_crlf(folder / "own.py")
        )
        yield Change(
            "free",
            "a docstring's file",
            "",
            edit("helper.py", "import torch", '"""Weights."""\n\nimport torch'),
        )


def _to_crlf(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def _edit_row(name: str, rng: random.Random, column: int) -> Callable[[Path], None]:
    row = rng.randint(1, 20)

    def change(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        cells = lines[row].split(",")
        cells[column] = (
            {"yes": "no", "no": "yes"}[cells[column]]
            if column == 3
            else f"{float(cells[column]) + 3.25:.2f}"
        )
        lines[row] = ",".join(cells)
        (folder / name).write_text("\n".join(lines) + "\n")

    return change


def row_changes(fixture: Generated, rng: random.Random) -> Iterator[Change]:
    """Changes of tables."""
    client, data = rng.choice(CLIENTS), "data|labels and recipe|clients"
    for what, column in (("a number", rng.choice([0, 1])), ("a label", 3)):
        yield Change("rows", what, data, _edit_row(f"rows/{client}.csv", rng, column))
    yield Change(
        "rows",
        "a row more",
        data,
        edit(f"rows/{client}.csv", "ill\n", "ill\n33.0,22.0,x,yes\n"),
    )
    yield Change(
        "rows",
        "a client more",
        data,
        lambda folder: (folder / "rows" / "e.csv").write_text(table("e")) and None,
    )
    yield Change(
        "rows",
        "another order",
        data,
        lambda folder: _reverse(folder / "rows" / f"{client}.csv"),
    )
    yield Change(
        "free",
        "line ends of a table",
        "",
        lambda folder: _to_crlf(folder / "rows" / f"{client}.csv"),
    )
    yield Change(
        "free",
        "times of files",
        "",
        lambda folder: os.utime(folder / "rows" / f"{client}.csv", (1e9, 1e9)),
    )
    yield Change(
        "server rows",
        "a number",
        "data of the server",
        _edit_row("server.csv", rng, rng.choice([0, 1])),
    )
    yield Change(
        "server rows", "a label", "data of the server", _edit_row("server.csv", rng, 3)
    )
    yield Change(
        "server rows",
        "a row more",
        "data of the server",
        edit("server.csv", "ill\n", "ill\n33.0,22.0,x,yes\n"),
    )


def _reverse(path: Path) -> None:
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *reversed(rows)]) + "\n")


def setting_changes(fixture: Generated, rng: random.Random) -> Iterator[Change]:
    """Changes of settings; those of how a run is computed are free."""
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "lr": lambda t: t["local"].update(lr=0.07),
        "batch_size": lambda t: t["local"].update(batch_size=5),
        "weight_decay": lambda t: t["local"].update(weight_decay=0.01),
        "merge_validation": lambda t: t["run"].update(merge_validation=False),
        "max_norm": lambda t: t["run"].update(max_norm=7.5),
        "down": lambda t: t["run"].update(down="bf16"),
        "clients_per_round": lambda t: t["run"].update(clients_per_round=2),
        "model": lambda t: t.update(model={"name": "mlp", "hidden": [3]}),
        "split": lambda t: t["split"].update(
            parts={"train": 0.6, "validation": 0.2, "test": 0.2}
        ),
        "filters": lambda t: t.update(filters=[{"name": "clip", "bound": 0.01}]),
        "attack": lambda t: t.update(attack={"name": "sign-flip", "on": ["b"]}),
        "callbacks": lambda t: t.update(
            callbacks=[{"name": "early-stopping", "patience": 1}]
        ),
        "kernel": lambda t: t.setdefault("engine", {"name": "inprocess"}).update(
            kernel="loop"
        ),
    }
    names = {
        "batch_size": "local|batch",
        "lr": "local|lr",
        "weight_decay": "local|weight",
        "split": "split|folds",
    }
    for key, change in changes.items():
        yield Change(
            "settings",
            key,
            f"{names.get(key, key)}|own\\.py|cannot|needs|exact",
            edit_tables(change),
        )
    workers = 3 - int(fixture.tables.get("engine", {}).get("workers", 1))
    free = {"name": "inprocess", **fixture.tables.get("engine", {}), "workers": workers}
    yield Change("free", "workers", "", edit_tables(lambda t: t.update(engine=free)))
    yield Change(
        "free",
        "jobs",
        "",
        edit_tables(lambda t: t["run"].update(jobs=3 - t["run"].get("jobs", 1))),
    )


def _deterministic() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)


SWITCHES: Mapping[str, tuple[Callable[[], object], str]] = {
    "float32 matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        "float32 matmul precision",
    ),
    "default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        "default dtype|float64",
    ),
    "deterministic algorithms": (_deterministic, "deterministic algorithms"),
    "cudnn benchmark": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        "cudnn benchmark",
    ),
    "denormal numbers": (lambda: torch.set_flush_denormal(True), "denormal"),
    "mkldnn": (lambda: torch.backends.mkldnn.set_flags(False), "mkldnn"),
    "threads": (lambda: torch.set_num_threads(2), ""),
    "the global generator": (lambda: torch.manual_seed(11), ""),
    "gradients": (lambda: torch.set_grad_enabled(False), ""),
}
"""Switches of torch: how each is turned, and what names it in a refusal; empty where it must not count."""
ENVIRONMENT: Mapping[str, tuple[dict[str, str], str]] = {
    "hash seed": ({"PYTHONHASHSEED": "7"}, ""),
    "threads": ({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}, ""),
    "language": ({"LANG": "tr_TR.UTF-8", "LC_ALL": "C"}, ""),
    "instruction set": ({"ATEN_CPU_CAPABILITY": "default"}, "instructions"),
}
"""Variables of the environment of the real command, and what names them in a refusal."""


def machine_changes(fixture: Generated, rng: random.Random) -> Iterator[Change]:
    """Switches of torch and the environment."""
    for name, (turn, named) in SWITCHES.items():
        yield Change(
            "torch flags", name, named, lambda folder: None, Setup(before=turn)
        )
    for name, (variables, named) in ENVIRONMENT.items():
        yield Change(
            "environment",
            name,
            named,
            lambda folder: None,
            Setup(environment=tuple(variables.items())),
        )
    yield Change("environment", "another folder", "", lambda folder: None)


def _rewrite_record(version: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in (folder / "run" / "checkpoint").glob("*/provenance.json"):
            record = read_record(path)
            record["record"]["machine"]["coterie"] = version
            write_record(path, record)

    return change


def _swap(rng: random.Random, kind: str) -> Callable[[Path], None]:
    """Put the folder of another seed or of another method in the place of one."""

    def change(folder: Path) -> None:
        pairs = sorted(
            path for path in (folder / "run" / "checkpoint").iterdir() if path.is_dir()
        )
        stems = {path: path.name.rpartition("-")[0] for path in pairs}
        choices = [
            (a, b)
            for a in pairs
            for b in pairs
            if a != b and (stems[a] == stems[b]) == (kind == "seed")
        ]
        if not choices:
            raise LookupError(kind)
        target, source = rng.choice(choices)
        shutil.rmtree(target)
        shutil.copytree(source, target)

    return change


def _format(folder: Path) -> None:
    path = folder / "run" / "format.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "format": 2, "coterie": "0.0.2"})
    )


def _drop_records(folder: Path) -> None:
    for path in [*(folder / "run" / "checkpoint").glob("*/provenance.json")]:
        path.unlink()


def record_changes(fixture: Generated, rng: random.Random) -> Iterator[Change]:
    """Records of other runs."""
    yield Change(
        "another seed's folder",
        "a seed",
        "copy of|belongs to|has changed",
        _swap(rng, "seed"),
    )
    yield Change(
        "another method's folder",
        "a method",
        "copy of|belongs to|has changed",
        _swap(rng, "method"),
    )
    yield Change(
        "another version's record",
        "version",
        r"coterie has changed|belongs to another",
        _rewrite_record("0.0.9"),
    )
    yield Change("another version's record", "format", "format 2", _format)
    yield Change(
        "another version's record", "no record", "missing or damaged", _drop_records
    )


SOURCES = (code_changes, row_changes, setting_changes, machine_changes, record_changes)


def changes_of(fixture: Generated, rng: random.Random) -> list[Change]:
    """All changes that can be made to an experiment, mixed; each kind comes once before any comes again."""
    changes = [change for source in SOURCES for change in source(fixture, rng)]
    rng.shuffle(changes)
    met = Counter[str]()
    turns = []
    for change in changes:
        met[change.kind] += 1
        turns.append((met[change.kind], change))
    return [change for _, change in sorted(turns, key=itemgetter(0))]


# ---- tries


def run_whole(folder: Path, setup: Setup = PLAIN) -> Ended:
    """Run an experiment from its beginning, in its present world."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    return command(folder, *COMPARE, setup=setup)


def first_run(
    rng: random.Random, folder: Path, method: str, seeds: int = 0
) -> tuple[Generated, Ended, float]:
    """Run a generated experiment with this method, one that is not refused: the experiment, how it ended and after how many seconds."""
    for _ in range(6):
        shutil.rmtree(folder, ignore_errors=True)
        fixture = generate(rng, method, seeds=seeds)
        fixture.write(folder)
        started = time.monotonic()
        ended = run_whole(folder)
        seconds = time.monotonic() - started
        if ended.status != 2 or complaint(ended):
            break
    return fixture, ended, seconds


def new_world(rng: random.Random, base: Path, method: str) -> World | str | None:
    """Begin and kill a run of a generated experiment; a text says what was wrong with it, None that it was refused."""
    fixture, ended, seconds = first_run(rng, base, method, rng.choice([1, 2]))
    if ended.status != 0:
        return (
            complaint(ended) or None
            if ended.status == 2
            else f"status {ended.status}: {ended.err[-300:]}"
        )
    expected = numbers(base / "run")
    for _ in range(4):
        shutil.rmtree(base / "run")
        moment = seconds * rng.uniform(0.4, 1.0)
        killed = command(base, *COMPARE, signal_after=moment)
        if killed.wrong:
            return killed.wrong
        if list((base / "run" / "checkpoint").glob("*/checkpoint.safetensors")):
            return World(base, fixture, expected)
        seconds *= 1.3
    return None


def judge(
    world: World, change: Change, folder: Path, *, real: bool, accept: bool
) -> str:
    """Make a change in a copy of a world, resume, and say what is wrong, or nothing."""
    shutil.copytree(world.folder, folder)
    try:
        change.make(folder)
    except LookupError:
        return "-"
    call = real_command if real else command
    ended = call(folder, *RESUME, setup=change.setup)
    if wrong := complaint(ended):
        return wrong
    if ended.status == 2:
        if not change.named:
            return f"other: refused what is free: {ended.err[-300:]}"
        if not re.search(change.named, ended.err):
            return f"other: a refusal that does not name the change: {ended.err[-300:]}"
        words = re.findall(
            r"--accept-change ('[^']*'|[^\s,;]+)", ended.err.replace("\n", " ")
        )
        if accept and words:
            flags = [
                part
                for word in words
                for part in ("--accept-change", shlex.split(word)[0])
            ]
            again = call(folder, *RESUME, *flags, setup=change.setup)
            notes = folder / "run" / "notes.json"
            if wrong := complaint(again):
                return wrong
            if again.status == 0 and "its user accepted that" not in notes.read_text():
                return "other: an accepted change that no note names"
            if again.status not in (0, 1, 2):
                return f"status {again.status} after accepting: {again.err[-300:]}"
        return ""
    if ended.status != 0:
        return f"other: status {ended.status}: {ended.err[-300:]}"
    found = numbers(folder / "run")
    if found == world.expected:
        return ""
    again = run_whole(folder, change.setup)
    if again.status == 0 and numbers(folder / "run") == found:
        return ""
    return f"silently different: {[n for n in found if found[n] != world.expected.get(n)][:4]}"


def worlds(rng: random.Random, folder: Path, methods: list[str], until: float) -> Tries:
    """Tries of all kinds of changes over generated experiments."""
    number = 0
    while time.monotonic() < until:
        number += 1
        base = folder / f"base-{number}"
        world = new_world(rng, base, methods[(number - 1) % len(methods)])
        if isinstance(world, str):
            yield "a first run", world, ()
        if isinstance(world, World):
            for index, change in enumerate(changes_of(world.fixture, rng)[:14]):
                if time.monotonic() > until:
                    break
                real = change.kind == "environment" or rng.random() < 0.03
                real &= change.setup.before is None
                wrong = judge(
                    world,
                    change,
                    folder / f"try-{index}",
                    real=real,
                    accept=rng.random() < 0.2,
                )
                shutil.rmtree(folder / f"try-{index}", ignore_errors=True)
                if wrong == "-":
                    continue
                what = (f"change: {change.kind}", *(["real command"] if real else []))
                covers = (*world.fixture.methods, *world.fixture.covers, *what)
                yield (change.kind, change.what, world.fixture.tables), wrong, covers
        shutil.rmtree(base)
