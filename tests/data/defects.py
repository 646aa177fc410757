"""Random defects of tables, as users have them, and a user who types every cure that is printed.

A federation has three clients of `ROWS` rows. A defect changes cells, or a header, of one column at some clients. The same cells
are given as a folder of files, as one table with a column of clients, and as frames.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from coterie.base.cures import Advice, Cure
from coterie.base.errors import InputError
from coterie.cli.settings import set_key
from coterie.config.data import Tables
from coterie.data.tables.agreement import MAPPING
from coterie.data.tables.cells import NOTHING

ROWS = 40
CLIENTS = ("east", "north", "south")
MOST_ANSWERS = 8

Cells = dict[str, dict[str, list[str]]]
"""The cells of each column, by client."""
Defect = Callable[[Cells, np.random.Generator], None]


def federation(rng: np.random.Generator) -> Cells:
    """Clients without a defect: an outcome that follows a little from numbers and words."""
    cells: Cells = {}
    for client in CLIENTS:
        age = rng.normal(60, 12, ROWS).round(1)
        chol = rng.normal(5, 1, ROWS).round(2)
        ill = (age + 12 * rng.normal(size=ROWS) > 60).astype(int)
        # Both classes at every client, whatever was drawn.
        ill[:6] = [0, 1, 0, 1, 0, 1]
        cells[client] = {
            "age": [*map(str, age)],
            "chol": [*map(str, chol)],
            "sex": [*rng.choice(["f", "m"], ROWS)],
            "ward, old": [*rng.choice(["A", "B", "C"], ROWS)],
            "y": [*map(str, ill)],
        }
    return cells


def _some_clients(rng: np.random.Generator) -> list[str]:
    return [*rng.permutation(CLIENTS)[: rng.integers(1, 4)]]


def _some_rows(rng: np.random.Generator) -> list[int]:
    return [*map(int, rng.permutation(ROWS)[: rng.choice([1, 2, 6, 20])])]


def _put(words: tuple[str, ...], columns: tuple[str, ...], *, every: bool) -> Defect:
    """Put words of a kind, one kind a defect, into some cells, or all, of a column at some clients."""

    def spoil(cells: Cells, rng: np.random.Generator) -> None:
        column, word = rng.choice(columns), str(rng.choice(words))
        for client in _some_clients(rng):
            values = cells[client][column]
            for row in range(ROWS) if every else _some_rows(rng):
                values[row] = word.format(values[row])

    return spoil


def _replace_column(make: Callable[[np.random.Generator], list[str]]) -> Defect:
    def spoil(cells: Cells, rng: np.random.Generator) -> None:
        column = rng.choice(["age", "chol", "sex", "ward, old"])
        for client in _some_clients(rng):
            cells[client][column] = make(rng)

    return spoil


def _add_column(
    make: Callable[[list[str], np.random.Generator], list[str]],
    names: tuple[str, ...] = ("extra", 'what "else"', "v1.2 = x"),
) -> Defect:
    def spoil(cells: Cells, rng: np.random.Generator) -> None:
        name = str(rng.choice(names))
        for client in CLIENTS:
            cells[client][name] = make(cells[client]["y"], rng)

    return spoil


def _rename(cells: Cells, rng: np.random.Generator) -> None:
    column = str(rng.choice(["age", "chol", "ward, old", "y"]))
    for client in _some_clients(rng)[:2]:
        styles = [column.upper(), f"{column} (mm)", column.replace(",", " ").title()]
        name = str(rng.choice(styles))
        cells[client] = {
            name if key == column else key: values
            for key, values in cells[client].items()
        }


def _lose(cells: Cells, rng: np.random.Generator) -> None:
    client = str(rng.choice(CLIENTS))
    cells[client].pop(str(rng.choice(["age", "sex"])))


def _spell_label(cells: Cells, rng: np.random.Generator) -> None:
    words = [("no", "yes"), ("No", "Yes"), ("false", "true"), ("neg", "pos")]
    words += [("well", "ill"), ("1", "2")]
    for client in _some_clients(rng):
        no, yes = words[rng.integers(len(words))]
        cells[client]["y"] = [yes if v == "1" else no for v in cells[client]["y"]]


def _capitalise(cells: Cells, rng: np.random.Generator) -> None:
    no, yes = [("no", "yes"), ("ill at home", "ill in hospital")][rng.integers(2)]
    for client in CLIENTS:
        cells[client]["y"] = [yes if v == "1" else no for v in cells[client]["y"]]
    for client in _some_clients(rng)[:2]:
        for row in _some_rows(rng):
            cells[client]["y"][row] = cells[client]["y"][row].capitalize()


def _count_label(cells: Cells, rng: np.random.Generator) -> None:
    most = int(rng.choice([4, 12, 70, 500]))
    for client in CLIENTS:
        cells[client]["y"] = [*map(str, rng.integers(0, most, ROWS))]


def _scale(cells: Cells, rng: np.random.Generator) -> None:
    column, factor = rng.choice(["age", "chol"]), float(rng.choice([39, 1000, 0.01]))
    client = str(rng.choice(CLIENTS))
    cells[client][column] = [
        f"{float(v) * factor:.4g}" if _is_number(v) else v
        for v in cells[client][column]
    ]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


NUMBERS, WORDS = ("age", "chol"), ("sex", "ward, old")
EVERY = (*NUMBERS, *WORDS)

DEFECTS: Mapping[str, Defect] = {
    "bounds": _put(("<5", "> 90", "<=0.5"), NUMBERS, every=False),
    "units in cells": _put(("{} mm", "{}mg"), NUMBERS, every=False),
    "units": _put(("{} years", "{}%", "EUR {}"), NUMBERS, every=True),
    "slips": _put(("n.d.", "see letter", "12..5", "x" * 60), NUMBERS, every=False),
    "marks": _put(("{}*", "~{}", "({})", "{}-"), NUMBERS, every=False),
    "pairs": _put(("120/80", "5 ± 1"), NUMBERS, every=False),
    "infinite": _put(("inf", "-inf", "1e300"), NUMBERS, every=False),
    "codes for missing": _put(("-99", "999", "-1"), NUMBERS, every=False),
    "words for missing": _put(("NA", "unknown", "-", "None", ""), EVERY, every=False),
    "one word": _put(("unknown", "x", "-"), EVERY, every=True),
    "blank": _put(("",), EVERY, every=True),
    "dates": _put(("2023-01-17", "17.1.2023", "20230117"), EVERY, every=True),
    "one value": _put(("3", "true"), EVERY, every=True),
    "quotes": _put(('say "a", b', "it's {}", "100% = {}"), EVERY, every=False),
    "numbers for words": _replace_column(lambda rng: [*map(str, rng.integers(0, 3, ROWS))]),
    "words for numbers": _replace_column(lambda rng: [*rng.choice(["low", "high"], ROWS)]),
    "numbers as text": _replace_column(lambda rng: [f"{i:03d}" for i in rng.integers(0, 40, ROWS)]),
    "free text": _replace_column(lambda rng: [f"felt {i} times" for i in range(ROWS)]),
    "leak": _add_column(lambda y, rng: ["3" if v == y[0] else "4" for v in y]),
    "leak by gaps": _add_column(lambda y, rng: [str(i) if v == y[0] else "" for i, v in enumerate(y)]),
    "patients": _add_column(lambda y, rng: [str(i // 4) for i in range(len(y))], ("patient", "case id")),
    "identifiers": _add_column(lambda y, rng: [f"p{i}" for i in range(len(y))], ("patient", "note")),
    "zeros": _add_column(lambda y, rng: [f"{i:03d}" for i in rng.integers(0, 9, len(y))], ("extra",)),
    "unlabelled": _put(("", "?", "NA"), ("y",), every=False),
    "labels of another kind": _put(("maybe", "<1", "2023-01-01"), ("y",), every=False),
    "words among words": _put(("None", "Unknown", "n/a", "-"), WORDS, every=False),
    "lists": _replace_column(lambda rng: [";".join(rng.permutation([*"uvwxyz"])[: 1 + k % 3]) for k in range(ROWS)]),
    "weights": _add_column(lambda y, rng: [f"{v:.1f}" for v in rng.gamma(2, 9000, len(y))], ("wtmec", "sample weight")),
    "a time": _add_column(lambda y, rng: [f"{rng.exponential(3 if v == y[0] else 20):.1f}" for v in y], ("months", "t, os")),
    "another outcome": _add_column(lambda y, rng: [str(int((v == y[0]) ^ (rng.random() < .2))) for v in y], ("died", "outcome")),
    "one value of a class": _add_column(lambda y, rng: ["sepsis" if v == y[0] and rng.random() < .5 else "u" for v in y]),
    "rename": _rename,
    "lose": _lose,
    "spell the label": _spell_label,
    "capitals in the label": _capitalise,
    "counts": _count_label,
    "scale": _scale,
}  # fmt: skip


def draw(seed: int) -> tuple[tuple[str, ...], Cells]:
    """Return the names of one, two or three defects of a federation, and its cells."""
    rng = np.random.default_rng(seed)
    cells = federation(rng)
    names = tuple(map(str, rng.choice([*DEFECTS], rng.integers(1, 4), replace=False)))
    for name in names:
        try:
            DEFECTS[name](cells, rng)
        except KeyError:  # of a column that an earlier defect has renamed
            continue
    return names, cells


def _write_csv(file: Path, columns: Mapping[str, list[str]]) -> None:
    with file.open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerows([[*columns], *zip(*columns.values(), strict=True)])


def ways(cells: Cells, folder: Path) -> dict[str, Callable[[Tables], ct.Clients]]:
    """Write the cells, and return what loads them as a folder, as one table if all clients have the same columns, and as frames."""
    import pandas as pd

    files = folder / "files"
    files.mkdir(parents=True)
    for client, columns in cells.items():
        _write_csv(files / f"{client}.csv", columns)
    frames = {client: pd.DataFrame(columns) for client, columns in cells.items()}
    loads = {
        "folder": lambda tables: ct.data.from_folder(files, tables=tables),
        "frames": lambda tables: ct.data.from_frames(frames, tables=tables),
    }
    headers = {tuple(columns) for columns in cells.values()}
    if len(headers) == 1:
        # The rows of the clients lie mixed in one file.
        order = np.random.default_rng(0).permutation(np.repeat(CLIENTS, ROWS))
        rest = {
            client: iter([*zip(*columns.values(), strict=True)])
            for client, columns in cells.items()
        }
        rows = [(client, *next(rest[client])) for client in order.tolist()]
        whole = dict(
            zip(("site", *headers.pop()), zip(*rows, strict=True), strict=True)
        )
        _write_csv(folder / "all.csv", whole)
        split = {"kind": "column", "column": "site"}
        loads["table"] = lambda tables: ct.data.from_folder(
            folder / "all.csv", tables=tables, split=split
        )
    return loads


@dataclass(frozen=True)
class Ending:
    """What following all cures leads to.

    Attributes:
        answers: those that were typed, in order.
        sentence: of the last refusal or question; empty where a run can start.
        clients: the federation that can start, else None.
    """

    answers: tuple[str, ...]
    sentence: str
    clients: ct.Clients | None


def follow(load: Callable[[Tables], ct.Clients], seed: int, cells: Cells) -> Ending:
    """Load, and type one of the cures that are printed, until a run can start or nothing is offered.

    Where only the user knows which value of the label means what, all values are mapped: of `cells`, those of no and then the rest.

    Raises `AssertionError` for a cure that is not printed, that TOML or the settings refuse, or that changes nothing.
    """
    rng = np.random.default_rng(seed)
    data: dict[str, Any] = {"label": "y"}
    answers: list[str] = []
    seen: set[str] = set()
    for _ in range(MOST_ANSWERS + 1):
        try:
            clients = load(Tables(**data))
            advice = clients.questions[0] if clients.questions else None
        except InputError as error:
            clients, advice = None, Advice(str(error), error.cures)
        offered = [*advice.cures] if advice is not None else []
        if advice is not None and MAPPING in advice:
            offered.append(_mapping(cells))
        if advice is None or not offered:
            return Ending(tuple(answers), plain(advice or ""), clients)
        assert advice not in seen, f"{answers[-1]} changed nothing: {advice}"
        seen.add(advice)
        cure = offered[rng.integers(len(offered))]
        data = type_in(cure, advice, data)
        answers.append(str(cure))
    raise AssertionError(f"no end after {answers}: {advice}")


def _mapping(cells: Cells) -> Cure:
    values = {v for columns in cells.values() for v in columns.get("y", ())}
    absent = {v for v in values if v.lower() in ("0", "no", "false", "neg", "well")}
    present = {v for v in values - absent if v.lower() not in NOTHING}
    return Cure("classes", {"no": sorted(absent), "yes": sorted(present)})


def type_in(cure: Cure, sentence: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return [data] with a cure as its text says it; the object must say the same."""
    if cure.key == "classes" and MAPPING in sentence:
        return cure.merge(data)
    if cure.key == "task":
        assert f"--task {cure.value}" in sentence or str(cure) in sentence, sentence
    else:
        assert str(cure) in sentence, (str(cure), sentence)
    merged = cure.merge(data)
    lines = re.sub(r", (?=missing\.)", "\n", str(cure))
    assert cure.merge({}) == tomllib.loads(lines), cure
    # As it is printed, and as a key of a file: `--set` takes both.
    for table in ("", "data."):
        tables: dict[str, Any] = {"data": {}}
        for line in lines.splitlines():
            set_key(tables, table + line)
        assert cure.merge({}) == tables["data"], cure
    return merged


def plain(sentence: str) -> str:
    """Return a sentence without its places, which differ between a file, a part of a table and a frame."""
    places = r"[^\s(]*/files/\w+\.csv|\w+ of \S+all\.csv|frame '\w+'"
    return re.sub(r"row \d+", "row", re.sub(places, "SOURCE", sentence))
