"""The pages of single sentences, which `make docs` writes: docs/results/sentences/PAPER.md, from the tracked tables alone.

They are made of docs/results/claims.csv (numbers), experiments/claims.toml (sentences, figures) and experiments/constants.toml
(set-ups), so that no result is read and nothing is computed.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.base.files import read_toml
from experiments.setups import Constant, load, plain

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "experiments" / "claims.toml"
TABLE = ROOT / "docs" / "results" / "claims.csv"
ON_FIRST_PAGE = 4
"""Pictures of a paper that stand on the first page; the others stand here."""
HEAD = ("setting", "first", "second", "effect", "seeds", "room", "second computation", "verdict")  # fmt: skip
Row = Mapping[str, str]


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    tables = read_toml(FILE)
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    constants = load()
    texts = {}
    for paper in tables["papers"]:
        key = paper["key"]
        own = [c for c in tables["claims"] if c["paper"] == key and c.get("ours") is not True]  # fmt: skip
        figures = [f for f in tables["figures"] if f["paper"] == key][ON_FIRST_PAGE:]
        title = f"# {paper['name']}: sentence by sentence"
        texts[key] = _page(title, own, figures, tables, rows, constants)
    ours = [c for c in tables["claims"] if c.get("ours") is True]
    title = "# Comparisons of ours, one by one"
    texts["ours"] = _page(title, ours, (), tables, rows, constants)
    return texts


def _page(
    title: str,
    claims: Sequence[Mapping[str, Any]],
    figures: Sequence[Mapping[str, Any]],
    tables: Mapping[str, Any],
    rows: Sequence[Row],
    constants: Sequence[Constant],
) -> str:
    parts = [title, "", tables["page"]["sentences"].strip()]
    runs = {name: run for run in tables["runs"] for name in run["experiments"]}
    for figure in figures:
        place = f"../../images/results/{figure['paper']}-{figure['key']}.svg"
        parts += ["", f"![{figure['title']}]({place})"]
    heads = dict.fromkeys(claim["figures"] for claim in claims)
    for head in heads:
        parts += ["", f"## {head}"]
        own = [claim for claim in claims if claim["figures"] == head]
        for claim in own:
            of_claim = [row for row in rows if row["claim"] == claim["key"]]
            parts += _sentence(claim, of_claim)
        names = dict.fromkeys(name for claim in own for name in claim["experiments"])
        seen = {id(runs[name]): runs[name] for name in names}
        for run in seen.values():
            of_run = [name for name in run["experiments"] if name in names]
            parts += ["", *_set_up(run, of_run, constants)]
    return "\n".join(parts) + "\n"


def _sentence(claim: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    word, notes, pooled = (rows[0][name] for name in ("word", "notes", "pooled"))
    where = f"Ours, {claim['figures']}"
    if "quote" in claim:
        where = f'"{claim["quote"]}" ({claim["place"]})'
    margin = f" by {claim['margin']:g}" if "margin" in claim else ""
    why = f"; {claim['why']}" if "why" in claim else ""
    several = "s" if claim["over"] != "one" else ""
    about = f"Claimed {claim['direction']}{margin}{why}, in {claim['over']} setting{several}."
    if claim.get("readings"):
        about += " The settings are readings of one set-up, each judged apart."
    lines = [notes] if notes else []
    for name in ("read_again", "no_verdict", "not_run", "no_ceiling"):
        if name in claim:
            prefix = "No ceiling: " if name == "no_ceiling" else ""
            lines.append(f"{prefix}{_upper(claim[name])}.")
    parts = [
        "",
        f"**{_upper(claim['says'])}: {word}.** {where}.",
        "",
        " ".join([about, *lines]),
    ]
    settings = [row for row in rows if row["experiment"]]
    if settings:
        cells = [[row[name] for name in HEAD] for row in settings]
        parts += ["", *_table(HEAD, cells)]
    if pooled:
        parts += ["", f"Mean effect: {pooled}."]
    return parts


def _set_up(
    run: Mapping[str, Any], names: Sequence[str], constants: Sequence[Constant]
) -> list[str]:
    """Return our set-up in words, and its constants: those that the paper has the same, the others, and those it does not state."""
    own = [c for c in constants if set(names) & set(c.experiments)]
    rates = f" Rates: {run['rates']}." if "rates" in run else ""
    parts = [f"*{', '.join(names)}.* Here: {run['here']}. What differs: {run['differs']}.{rates}"]  # fmt: skip
    if "paper" in run:
        parts[0] += f" The paper: {run['paper']}."
    same = [f"{c.what} {plain(c.ours)} ({c.place})" for c in own if c.is_same]
    if same:
        parts += ["", f"The same in the paper: {'; '.join(dict.fromkeys(same))}."]
    others = [
        (c.what, plain(c.printed) if c.is_stated else "not stated", "" if c.code is None else plain(c.code), plain(c.ours), c.place)
        for c in own
        if not c.is_same and (c.is_stated or c.code is not None)
    ]  # fmt: skip
    if others:
        head = ("constant", "paper", "authors' code", "ours", "place")
        parts += ["", *_table(head, list(dict.fromkeys(others)))]
    unstated = [f"{c.what} {plain(c.ours)}" for c in own if not c.is_stated and c.code is None]  # fmt: skip
    if unstated:
        parts += ["", f"Not stated, ours: {'; '.join(dict.fromkeys(unstated))}."]
    return parts


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
