"""Damaged files of a finished run, mutated settings and mangled tables: each is read as it was, or refused in one sentence."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from pathlib import Path

import torch

from coterie import data
from coterie.base.files import read_toml
from coterie.run.experiment import Experiment
from torture.apart import Tries, attempt_all, command
from torture.sentences import wrong_with
from torture.worlds import RESUME, complaint, first_run, numbers

REPORT = ("report", "run", "--no-html", "--json")
ROWS = [f"{20 + i},{'xy'[i % 2]},{(i // 2) % 2}" for i in range(16)]
TABLE = "age,smokes,ill\n" + "\n".join(ROWS) + "\n"


# ---- files of a run


def write_tables(folder: Path) -> None:
    """Write the tables of two clients."""
    (folder / "good").mkdir(parents=True)
    for name in "ab":
        (folder / "good" / f"{name}.csv").write_text(TABLE)


def damage(rng: random.Random, content: bytes) -> bytes | None:
    """Return what became of a file; None: it is gone."""
    at = rng.randrange(len(content))
    return rng.choice(
        [
            None,
            b"",
            content[:at],
            content[:at]
            + bytes([content[at] ^ (1 << rng.randrange(8))])
            + content[at + 1 :],
            content + rng.randbytes(9),
            rng.randbytes(len(content)),
            content[at:] + content[:at],
            b"[" * 100_000,
            b'{"a": 1' + b"0" * 5000 + b"}",
        ]
    )


def damages(
    rng: random.Random, folder: Path, methods: list[str], until: float
) -> Tries:
    """A file of a finished run is damaged; report, predict and resume find it, mend it or name it."""
    number = 0
    while time.monotonic() < until:
        number += 1
        whole, here = folder / "whole", folder / "here"
        fixture, ended, _ = first_run(rng, whole, methods[(number - 1) % len(methods)])
        if ended.status == 0:
            trust = ("--trust", "own.py") if "own model" in fixture.covers else ()
            label = fixture.tables["methods"][0]["name"]
            predict = (
                "predict",
                "run",
                "rows/a.csv",
                "--client",
                "a",
                "--method",
                label,
                *trust,
            )
            commands = (REPORT, predict, RESUME)
            expected, answers = (
                numbers(whole / "run"),
                {words: command(whole, *words).out for words in commands[:2]},
            )
            files = [
                path.relative_to(whole)
                for path in sorted((whole / "run").rglob("*"))
                if path.is_file() and path.stat().st_size
            ]
            for file in rng.sample(files, min(12, len(files))):
                if time.monotonic() > until:
                    break
                shutil.copytree(whole, here)
                content = damage(rng, (whole / file).read_bytes())
                (here / file).unlink()
                if content is not None:
                    (here / file).write_bytes(content)
                wrong = ""
                for words in commands:
                    ended = command(here, *words)
                    wrong = wrong or complaint(ended)
                    if ended.status not in (0, 2):
                        wrong = (
                            wrong or f"other: status {ended.status}: {ended.err[-200:]}"
                        )
                    if ended.status == 0 and not wrong:
                        same = (
                            ended.out == answers[words]
                            if words in answers
                            else numbers(here / "run") == expected
                        )
                        wrong = "" if same else f"silently different: {words[0]}"
                shutil.rmtree(here)
                yield (
                    f"{file}: {None if content is None else content[:20]!r}",
                    wrong,
                    (*fixture.methods, *fixture.covers),
                )
        shutil.rmtree(whole)


# ---- settings


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


def mutate(rng: random.Random) -> str:
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
            lines[at] = (
                lines[at][:where] + rng.choice('\x00"[]{}=.,\n\\é#') + lines[at][where:]
            )
        else:
            lines[at] = f"{key} = {rng.choice(VALUES)}"
    return "\n".join(lines)


def settings(
    rng: random.Random, folder: Path, methods: list[str], until: float
) -> Tries:
    """A mutated experiment is read, its data are loaded and its methods checked; nothing is trained."""
    from coterie.study.preflight import check_everything

    write_tables(folder)
    os.chdir(folder)

    def attempt(text: str) -> str:
        path = folder / "mutated.toml"
        path.write_text(text)

        def read() -> None:
            experiment = Experiment.from_tables(read_toml(path), "mutated.toml")
            check_everything(experiment, experiment.load_data(experiment.run.seeds[0]))

        return wrong_with(read)

    drawn = (mutate(rng) for _ in iter(int, 1))
    while time.monotonic() < until:
        for text, wrong in attempt_all([*itertools.islice(drawn, 500)], attempt, until):
            yield text, wrong, ()


# ---- tables


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


def mangle(rng: random.Random) -> bytes:
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
            rows.insert(
                rng.randrange(len(rows)), [rng.choice(CELLS)] * rng.randrange(5)
            )
        elif row:
            row.pop()
    raw = "\n".join(map(",".join, rows)).encode("utf-8")
    at = rng.randrange(len(raw) + 1)
    return rng.choice(
        [
            raw,
            raw,
            raw,
            raw[:at] + rng.randbytes(2) + raw[at:],
            b"\xff\xfe" + raw,
            raw.replace(b"\n", b"\r"),
        ]
    )


def tables(rng: random.Random, folder: Path, methods: list[str], until: float) -> Tries:
    """A folder with a mangled file is loaded; what is loaded is finite."""
    write_tables(folder)

    def attempt(raw: bytes) -> str:
        (folder / "good" / "b.csv").write_bytes(raw)

        def load() -> None:
            for client in data.load(folder / "good", label="ill"):
                if not bool(torch.isfinite(client.train.inputs).all()):
                    raise ArithmeticError("loaded rows that are not finite")

        return wrong_with(load)

    drawn = (mangle(rng) for _ in iter(int, 1))
    while time.monotonic() < until:
        for raw, wrong in attempt_all([*itertools.islice(drawn, 500)], attempt, until):
            yield raw, wrong, ()
