"""What is tried: each campaign draws its tries from a seed, and says of each what is wrong with it, or nothing."""

from __future__ import annotations

import io
import math
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from commands import contents
from torch import nn
from torch.nn import functional as F

import coterie as ct
from coterie import data
from coterie.base.files import read_toml
from coterie.cli.main import main
from coterie.compute.metrics import DEFAULT_METRICS
from coterie.config.registry import METHODS
from coterie.contract.task import Task
from coterie.run.experiment import Experiment
from federations import fit, logistic
from torture.apart import command, tried

ROWS = [f"{20 + i},{'xy'[i % 2]},{(i // 2) % 2}" for i in range(16)]
TABLE = "age,smokes,ill\n" + "\n".join(ROWS) + "\n"
COMPARE = ("compare", "good", "--label", "ill", "--methods", "local,scaffold", "--rounds", "3", "--seeds", "1")
COMPARE = (*COMPARE, "--workers", "2", "--out", "run", "--no-report")
RESUME = ("run", "run/experiment.toml", "--resume", "--no-report")
REPORT = ("report", "run", "--no-html", "--json")
PREDICT = ("predict", "run", "good/a.csv", "--client", "a", "--method", "local")

Tries = Iterator[tuple[Any, str]]


class Campaign(NamedTuple):
    """Tries in `folder`, drawn from `rng`: at most `most`, and none after the clock shows `until`."""

    run: Callable[[random.Random, Path, int, float], Tries]
    most: int
    share: float


def sentence(said: str) -> str:
    """What is wrong with a command's or a function's words, if they are no sentences."""
    return "traceback" if "Traceback" in said else ""


def good(folder: Path) -> None:
    """The tables of two clients in `folder`."""
    (folder / "good").mkdir(parents=True)
    for name in "ab":
        (folder / "good" / f"{name}.csv").write_text(TABLE)


def town(folder: Path) -> tuple[dict[str, bytes], str, float]:
    """A finished run of two clients in `folder`: its files, its report and how long it took."""
    good(folder)
    with chdir(folder), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        main([*COMPARE, "--workers", "1", "--out", "warm"])  # what it imports, processes that are forked need not
    shutil.rmtree(folder / "warm")
    started = time.monotonic()
    ended = command(folder, *COMPARE)
    assert ended.status == 0, ended.err
    seconds = time.monotonic() - started
    return contents(folder / "run"), command(folder, *REPORT).out, seconds


def kills(rng: random.Random, folder: Path, most: int, until: float) -> Tries:
    """SIGKILL to all processes of a run at a random moment; then it goes on, to the same bytes."""
    expected, _, seconds = town(folder)
    for _ in range(most):
        if time.monotonic() > until:
            return
        shutil.rmtree(folder / "run", ignore_errors=True)
        moment = rng.uniform(0, seconds)
        killed = command(folder, *COMPARE, kill_after=moment)
        again = RESUME if (folder / "run" / "experiment.toml").exists() else (*COMPARE, "--resume")
        ended = command(folder, *again)
        wrong = killed.wrong or ended.wrong or sentence(ended.err)
        wrong = wrong or ("" if ended.status == 0 else f"status {ended.status}: {ended.err[-200:]}")
        yield f"{moment:.3f} s", wrong or ("" if contents(folder / "run") == expected else "silently different")


def damaged(rng: random.Random, content: bytes) -> bytes | None:
    """A file that something has happened to; None: it is gone."""
    at = rng.randrange(len(content))
    return rng.choice(
        [
            None,
            b"",
            content[:at],
            content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :],
            content + rng.randbytes(9),
            rng.randbytes(len(content)),
            content[at:] + content[:at],
            b"[" * 100_000,
            b'{"a": 1' + b"0" * 5000 + b"}",
        ]
    )


def damages(rng: random.Random, folder: Path, most: int, until: float) -> Tries:
    """A file of a finished run is damaged; report, resume and predict find it, mend it or name it."""
    whole = folder / "whole"
    expected, answer, _ = town(whole)
    files = sorted(p.relative_to(whole) for p in (whole / "run").rglob("*") if p.is_file() and p.stat().st_size)
    predicted = command(whole, *PREDICT).out
    for number in range(most):
        if time.monotonic() > until:
            return
        here, file = folder / "here", files[number % len(files)]
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(whole, here)
        content = damaged(rng, (whole / file).read_bytes())
        (here / file).unlink()
        if content is not None:
            (here / file).write_bytes(content)
        wrong = ""
        for words in (REPORT, PREDICT, RESUME):
            ended = command(here, *words)
            wrong = wrong or ended.wrong or sentence(ended.err)
            wrong = wrong or ("" if ended.status in (0, 2) else f"status {ended.status}: {ended.err[-200:]}")
            if ended.status == 0 and not wrong:
                same = {REPORT: ended.out == answer, PREDICT: ended.out == predicted}.get(words)
                now = contents(here / "run") if same is None else {}
                other = [name for name in expected if now.get(name) != expected[name]] if same is None else [words[0]]
                wrong = "" if same or not other else f"silently different: {', '.join(other)}"
        yield f"{file}: {None if content is None else content[:20]!r}", wrong


# ---- in one process


def told(call: Callable[[], Any]) -> str:
    """What is wrong with how a call ends: with a value, or with an error of coterie in one sentence."""
    try:
        call()
    except ct.CoterieError as error:
        words = str(error)
        return "" if words and "\n" not in words and len(words) <= 600 else f"no sentence: {words[:200]!r}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__}: {str(error)[:120]} ({Path(where.filename).name}:{where.lineno})"
    return ""


BASE = """
title = "t"
[data]
folder = "good"
label = "ill"
[split]
test = 0.3
[model]
name = "mlp"
hidden = [8]
[local]
lr = 0.1
steps = 2
batch_size = 4
[[methods]]
name = "fedavg"
[[methods]]
name = "meritfed"
targets = "all"
lr = 0.5
[run]
rounds = 2
seeds = [0]
[engine]
name = "inprocess"
workers = 1
"""
VALUES = [
    "0", "-1", "1e999", "nan", "true", '""', '"\\u0000"', "[]", "{}", "[[1]]", "2020-01-01", '"x"', "{a = {b = 1}}", "9" * 5000,
    "[" * 5000 + "]" * 5000, '"' + "y" * 10_000 + '"', "3000000000", "{chol = 2020-01-01}", "07:32:00", "0.5", "1", "-inf",
]  # fmt: skip
KEYS = [
    "x",
    "name",
    "seeds",
    "rounds",
    "categorical",
    "missing",
    "drop",
    "rename",
    "classes",
    "units",
    "a" * 300,
    '"\\u0000"',
    "a.b.c",
]


def mutated(rng: random.Random) -> str:
    """A TOML of an experiment with one to three changes."""
    lines = BASE.strip().splitlines()
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        key = lines[at].partition(" =")[0]
        change = rng.randrange(5)
        if change == 0:
            del lines[at]
        elif change == 1:
            lines.insert(at, f"{rng.choice(KEYS)} = {rng.choice(VALUES)}")
        elif change == 2:
            lines.insert(at, rng.choice(lines))
        elif change == 3:
            where = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:where] + rng.choice('\x00"[]{}=.,\n\\é#') + lines[at][where:]
        else:
            lines[at] = f"{key} = {rng.choice(VALUES)}"
    return "\n".join(lines)


def settings(rng: random.Random, folder: Path, most: int, until: float) -> Tries:
    """A mutated experiment is read, its data are loaded and its methods checked; nothing is trained."""
    from coterie.study.preflight import check_everything

    good(folder)
    os.chdir(folder)

    def attempt(text: str) -> str:
        path = folder / "mutated.toml"
        path.write_text(text)

        def read() -> None:
            experiment = Experiment.from_tables(read_toml(path), "mutated.toml")
            check_everything(experiment, experiment.load_data(experiment.run.seeds[0]))

        return told(read)

    return tried([mutated(rng) for _ in range(most)], attempt, until)


CELLS = [
    "",
    "NA",
    "?",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1,5",
    "12.5%",
    "x",
    '"',
    "\x00",
    "é",
    "9" * 400,
    "2020-01-01",
    " ",
    "=1+1",
    "-0",
]


def mangled(rng: random.Random) -> bytes:
    """The file of a client with one to four changes."""
    rows = [line.split(",") for line in TABLE.splitlines()]
    for _ in range(rng.randint(1, 4)):
        row = rng.choice(rows)
        change = rng.randrange(5)
        if change == 0 and row:
            row[rng.randrange(len(row))] = rng.choice(CELLS)
        elif change == 1:
            row.append(rng.choice(CELLS))
        elif change == 2:
            del rows[rng.randrange(len(rows)) :]
            rows = rows or [[]]
        elif change == 3:
            rows.insert(rng.randrange(len(rows)), [rng.choice(CELLS)] * rng.randrange(5))
        elif row:
            row.pop()
    raw = "\n".join(map(",".join, rows)).encode("utf-8")
    at = rng.randrange(len(raw) + 1)
    return rng.choice(
        [raw, raw, raw, raw[:at] + rng.randbytes(2) + raw[at:], b"\xff\xfe" + raw, raw.replace(b"\n", b"\r")]
    )


def tables(rng: random.Random, folder: Path, most: int, until: float) -> Tries:
    """A folder with a mangled file is loaded; what is loaded is finite."""
    good(folder)

    def attempt(raw: bytes) -> str:
        (folder / "good" / "b.csv").write_bytes(raw)

        def load() -> None:
            for client in data.load(folder / "good", label="ill"):
                if not bool(torch.isfinite(client.train.inputs).all()):
                    raise ArithmeticError("loaded rows that are not finite")

        return told(load)

    return tried([mangled(rng) for _ in range(most)], attempt, until)


def odd(rng: random.Random) -> Any:
    """A value that hardly any argument can take."""
    x = torch.randn(12, 3)
    return rng.choice(
        [
            None, 0, -1, 1.5, math.nan, math.inf, 10**30, True, "", "x", "a\0b", b"x", [], (), {}, [1], {"a": 1}, object(), int, len,
            x, x.to_sparse(), x.to("meta"), x.half(), x.to(torch.float8_e5m2), x.to(torch.complex64), x[:0], x[0, 0], x * math.nan,
            torch.arange(12), torch.full((12,), 10**6), torch.arange(12)[:, None], torch.nested.nested_tensor([x[0]]), nn.Linear(3, 1),
        ]
    )  # fmt: skip


PLACES = {
    "fit": (
        "method",
        "clients",
        "model",
        "rounds",
        "seed",
        "engine",
        "attack",
        "filters",
        "local",
        "init",
        "checkpoint",
        "settings",
    ),
    "RunSettings": (
        "clients_per_round",
        "evaluate",
        "metrics",
        "loss",
        "merge_validation",
        "max_norm",
        "strict_wire",
        "resume",
    ),
    "LocalSGD": ("lr", "steps", "batch_size", "momentum", "weight_decay", "clip", "optimiser", "sampler"),
    "InProcess": ("workers", "kernel", "device", "timeout"),
    "MeritFed": ("targets", "lr", "md_steps", "md_step", "oracle", "validation", "local"),
    "rows": ("inputs", "labels", "client", "name"),
}


def called(place: tuple[str, str, Any]) -> str:
    """What is wrong with a call of which one argument is odd; a run of no round is enough to find what is refused."""
    what, key, value = place
    given: dict[str, Any] = {
        "method": "fedavg",
        "clients": logistic(torch.float32).clients,
        "model": nn.Linear(3, 1),
        "rounds": 0,
    }

    def call() -> None:
        if what == "fit":
            given[key] = value
        elif what == "RunSettings":
            given["settings"] = ct.RunSettings(**{key: value})
        elif what == "LocalSGD":
            given["local"] = ct.LocalSGD(**{"lr": 0.1, key: value})
        elif what == "InProcess":
            given["engine"] = ct.InProcess(**{key: value})
        elif what == "MeritFed":
            given["method"] = ct.MeritFed(**{"targets": "all", key: value})
        else:
            good = (torch.randn(12, 3), torch.arange(12) % 2)
            odd_one = {"inputs": (value, good[1]), "labels": (good[0], value)}.get(key, value)
            given["clients"] = data.from_tensors({"a": good, str(value) if key == "name" else "b": odd_one})
        ct.fit(**given)

    return told(call)


def calls(rng: random.Random, folder: Path, most: int, until: float) -> Tries:
    """A Python call with one odd argument."""
    folder.mkdir()
    os.chdir(folder)
    places = []
    for _ in range(most):
        what = rng.choice(sorted(PLACES))
        places.append((what, rng.choice(PLACES[what]), odd(rng)))
    return tried(places, called, until)


# ---- faults of a client


Fault = Callable[[Any, str], Any]
"""What becomes of a reply whose field of this name is the update."""


def _raise(error: BaseException) -> Fault:
    def fault(reply: Any, field: str) -> Any:
        raise error

    return fault


def _changed(change: Callable[[Any], Any]) -> Fault:
    def fault(reply: Any, field: str) -> Any:
        return reply._replace(**{field: change(getattr(reply, field))})

    return fault


FAULTS: dict[str, Fault] = {
    "error": _raise(ValueError("no")),
    "exit": lambda reply, field: sys.exit(3),
    "interrupt": _raise(KeyboardInterrupt()),
    "generator": _raise(GeneratorExit()),
    "input": _raise(ct.InputError("the file is gone")),
    "memory": _raise(MemoryError()),
    "recursion": _raise(RecursionError()),
    "nothing": lambda reply, field: None,
    "list": lambda reply, field: list(reply),
    "sparse": _changed(lambda v: v.to_sparse()),
    "meta": _changed(lambda v: v.to("meta")),
    "nested": _changed(lambda v: torch.nested.nested_tensor(list(v))),
    "complex": _changed(lambda v: v.to(torch.complex64)),
    "float8": _changed(lambda v: v.to(torch.float8_e5m2)),
    "text": _changed(lambda v: "x"),
    "object": _changed(lambda v: object()),
    "nan": _changed(lambda v: v * math.nan),
    "short": _changed(lambda v: v[..., :-1]),
    "deep": _changed(lambda v: F.pad(v[..., None], (0, 1))),
}
ENDS: dict[str, Fault] = {
    "killed": lambda reply, field: os.kill(os.getpid(), signal.SIGKILL),
    "left": lambda reply, field: os._exit(7),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.5},
    "mwfed": {"rate": 2.0, "warmup_steps": 1},
    "multi-krum": {"byzantine": 0},
    "perfedavg": {"alpha": 0.1},
    "selective": {"internal": ("a", "b")},
    "sgd-ideal": {"members": "*"},
    "target-only": {"target": "c"},
    "varsel": {"internal": ("a", "b"), "preselect": "smallest"},
}
"""Of methods that cannot do with their defaults here."""


def _run(method: str, fault: Fault, workers: int) -> Any:
    """A run in which client c has this fault in round 2, at the end of each task that sends an update."""
    honest = Task.__call__

    def call(self: Any, cohort: Any, /, **payload: Any) -> Any:
        reply = honest(self, cohort, **payload)
        field = next((name for name, kind in self.kinds.items() if kind == "update"), "")
        if not field or cohort.round != 2 or "c" not in cohort.names:
            return reply
        if fault is FAULTS["nan"]:  # the others' rows are as they were
            getattr(reply, field)[cohort.names.index("c")] = math.nan
            return reply
        return fault(reply, field)

    Task.__call__ = call  # type: ignore[method-assign]
    try:
        return _fitted(method, workers)
    finally:
        Task.__call__ = honest  # type: ignore[method-assign]


def _fitted(method: str, workers: int) -> Any:
    problem, known = logistic(), METHODS[method](**ARGUMENTS.get(method, {}))
    options: dict[str, Any] = {"evaluate": 1, "metrics": DEFAULT_METRICS, "server": problem.clients["a"].train}
    return fit(known, problem.clients, problem.model, 3, workers=workers, **options)


@cache
def _expected(method: str, fault: str, workers: int) -> Any:
    """The run in which c raises a plain error, or the sentence that ends it.

    What c has kept under a reply that the server refuses counts no longer. Where the server of a method counts on it, it is the run in
    which c's reply has the wrong shape.
    """
    at_server = fault in ("text", "nan", "short", "deep") and method in ("scaffold", "feddyn")
    try:
        return _run(method, FAULTS["short" if at_server else "error"], workers)
    except ct.CoterieError as error:
        return str(error)


def _faulty(place: tuple[str, str, int]) -> str:
    """The run has the bits that are expected, and names nobody but c; or it is refused with the name of c."""
    method, fault, workers = place
    plain = _expected(method, fault, workers)
    try:
        faulty = _run(method, (FAULTS | ENDS)[fault], workers)
    except ct.CoterieError as error:
        named = "c (" in str(error) or "client c:" in str(error)
        return "" if named and isinstance(plain, str) else f"{error}"
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {error}"
    if isinstance(plain, str):
        return f"goes on where an error ends it: {plain}"
    if set(faulty.failures) - {"c"} or bool(faulty.failures) != bool(plain.failures):
        return f"blames {sorted(faulty.failures)} and not {sorted(plain.failures)}"
    # What a client has computed before its reply is refused counts as work.
    histories = [[row for row in run.history if row.metric != "row_gradients"] for run in (plain, faulty)]
    models = faulty.models.keys() == plain.models.keys() and all(
        torch.equal(x, plain.models[n]) for n, x in faulty.models.items()
    )
    rest = histories[0] == histories[1] and faulty.weight_rows == plain.weight_rows
    return "" if models and rest else "silently different"


def faults(rng: random.Random, folder: Path, most: int, until: float) -> Tries:
    """A client's task has a fault, with one worker and with two."""
    for method in METHODS:  # what they import is then there for all tries
        _fitted(method, 1)
    every = [(m, f, w) for m in METHODS for w in (1, 2) for f in (*FAULTS, *(ENDS if w == 2 else ()))]
    return tried(rng.sample(every, min(most, len(every))), _faulty, until)


CAMPAIGNS = {
    "kills, then `--resume`": Campaign(kills, 1000, 0.25),
    "damaged files of a run": Campaign(damages, 1500, 0.25),
    "mutated TOML": Campaign(settings, 5000, 0.15),
    "mangled CSV folders": Campaign(tables, 3000, 0.1),
    "Python calls with an odd argument": Campaign(calls, 2000, 0.1),
    "faults of a client's task": Campaign(faults, 1200, 0.15),
}
