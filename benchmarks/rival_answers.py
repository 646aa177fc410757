"""What do rivals answer to "join, with whom?", and how often are they right? On the federations of `benchmarks/federations.py`.

Four rivals of `coterie.algorithms` give an answer of their own: FedCollab parts the clients before training, IFCA while it trains, and
DPFL and pFedGraph end with a weight of each client in the model of each. A client whose model is its own alone is told to stay alone,
any other to join. The truth of an answer is that of `federations.estimate`: the mean gain, over ten further training sets on 40,000
fresh rows, of ridge regression on the rows of those whom the answer names, weighted as it weights them. So answers are compared, and
not ways to train. Each rival has its defaults, and 20 rounds of `LOCAL` on the logistic model.

Estimates are kept by federation in runs/rival_answers.jsonl, so that a run that was stopped goes on. Writes
benchmarks/results/rival_answers.json and what stands between the `rivals` markers of docs/statistics.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import coterie as ct
from benchmarks.federations import (
    SETS,
    Array,
    Kind,
    Parts,
    World,
    draw_world,
    estimate,
    fit_ridge,
    losses,
)
from benchmarks.pages import between
from benchmarks.verdicts import (
    ALONE,
    BARS,
    GAIN,
    HARM,
    JOINS,
    Share,
    decimals,
    judge,
    ratio,
)
from coterie.base.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "rival_answers.json"
ESTIMATES = ROOT / "runs" / "rival_answers.jsonl"
ROUNDS = 20
LOCAL = ct.LocalSGD(lr=0.5, steps=ct.Epochs(1), batch_size=32)
RIVALS: Mapping[str, Any] = {
    "FedCollab": ct.FedCollab(local=LOCAL),
    "IFCA": ct.IFCA(local=LOCAL),
    "DPFL": ct.DPFL(local=LOCAL),
    "pFedGraph": ct.PFedGraph(local=LOCAL),
}
OWN = 0.99
"""Weight of a client in its own model from which on it is told to stay alone."""


class Answer(NamedTuple):
    """What one client is told, and the true gain if it does so.

    Attributes:
        federation: kind and number of the data set.
        joins, stays: it is told to join, to stay alone, or neither.
        truth: the gain if it joins as it is told.
        best: the true gain by the best method of `federations.METHODS`.
    """

    federation: tuple[str, int]
    joins: bool
    stays: bool
    truth: float
    best: float


def answer_weights(parts: Parts, seed: int) -> dict[str, Array]:
    """By rival, weights [clients, clients] of the client of a column in the model of that of a row.

    A fifth of the rows are validation rows, which DPFL needs; the others train on them.
    """
    names = [f"{i:02d}" for i in range(len(parts))]
    held = [len(labels) // 5 for _, labels in parts]
    rows = [
        (torch.tensor(x[:, :-1], dtype=torch.float32), torch.tensor(y).long())
        for x, y in parts
    ]
    clients = ct.data.from_tensors(
        {
            name: {"train": (x[h:], y[h:]), "validation": (x[:h], y[:h])}
            for name, (x, y), h in zip(names, rows, held, strict=True)
        }
    )
    found = {}
    for rival, method in RIVALS.items():
        run = ct.fit(
            method,
            clients,
            "logistic",
            ROUNDS,
            seed,
            settings=ct.RunSettings(evaluate=None),
        )
        found[rival] = np.array(
            [[run.weights[i].get(j, 0.0) for j in names] for i in names]
        )
    return found


def answer_truths(world: World, weights: Array) -> Array:
    """The true gain [clients] of models of rows weighted so, over training alone."""
    gains = np.zeros(len(weights))
    for parts in world.further:
        models: dict[bytes, Array] = {}
        for i, row in enumerate(weights):
            if row[i] >= OWN:
                continue
            if row.tobytes() not in models:
                models[row.tobytes()] = _fit_weighted(parts, row)
            inputs, labels = world.fresh[i]
            alone = fit_ridge(*parts[i], numbers=False)
            both = losses(
                inputs @ np.stack([alone, models[row.tobytes()]]).T,
                labels[:, None],
                False,
                1.0,
            ).mean(axis=0)
            gains[i] += (both[0] - both[1]) / len(world.further)
    return gains


def _fit_weighted(parts: Parts, weights: Array) -> Array:
    """Ridge regression on the rows of clients with these weights, which count as many rows together as there are.

    Weights by size are plain pooling.
    """
    named = [(x, y, w) for (x, y), w in zip(parts, weights, strict=True) if w > 0]
    total = sum(len(y) for _, y, _ in named)
    counts = [np.full(len(y), w / weights.sum() * total / len(y)) for _, y, w in named]
    inputs, labels = (np.concatenate([member[k] for member in named]) for k in (0, 1))
    return fit_ridge(inputs, labels, numbers=False, counts=np.concatenate(counts))


def judge_rivals(kind: str, draw: Kind, number: int) -> dict[str, Any]:
    """What the rule and its rivals say of one federation, and what is true."""
    world = draw_world(kind, draw, number)
    weights = answer_weights(world.federation.parts, number)
    return {
        "clients": estimate(kind, draw, number),
        "weights": {rival: each.round(4).tolist() for rival, each in weights.items()},
        "truths": {
            rival: answer_truths(world, each).tolist()
            for rival, each in weights.items()
        },
    }


def list_answers(record: Mapping[str, Any]) -> dict[str, list[Answer]]:
    """The answers of the rule and of each rival to the clients that have cases enough for a word."""
    judged = judge(record["clients"])
    large = [i for i, c in enumerate(record["clients"]) if not c["rare"]]
    found = {
        "coterie": [
            Answer(j.federation, j.word in JOINS, j.word in ALONE, j.truth, j.best)
            for j in judged
        ]
    }
    for rival, weights in record["weights"].items():
        stays = [weights[i][i] >= OWN for i in large]
        found[rival] = [
            Answer(j.federation, not stay, stay, record["truths"][rival][i], j.best)
            for i, j, stay in zip(large, judged, stays, strict=True)
        ]
    return found


def found_groups(record: Mapping[str, Any]) -> dict[str, bool] | None:
    """Whether the rule and each rival name exactly the true groups; None where there are not two and more of two and more clients."""
    truth = [c["group"] for c in record["clients"]]
    sizes = [truth.count(g) for g in set(truth)]
    if len(sizes) < 2 or min(sizes) < 2:
        return None
    together = np.equal.outer(truth, truth)
    shown = [c["shown"] for c in record["clients"]]
    right = {
        "coterie": None not in shown
        and bool((np.equal.outer(shown, shown) == together).all())
    }
    return right | {
        r: bool(((np.array(w) > 0) == together).all())
        for r, w in record["weights"].items()
    }


COLUMNS = {
    "joins": "told to join",
    "found": "of gains above .02",
    "stays": "of these told to stay alone",
    "sign": "joins with the wrong sign",
    "lost": "joins that lose more than .01",
    "groups": "true groups named",
    "gain": "mean true gain of all, if they do so",
}


def figures_of(
    records: Sequence[Mapping[str, Any]], rival: str
) -> dict[str, Share | float | None]:
    """The figures of one set of federations, by the keys of `COLUMNS`."""
    by_federation = [list_answers(record)[rival] for record in records]
    everyone = [a for answers in by_federation for a in answers]

    def share(among: Any, counted: Any) -> Share | None:
        members = [[a for a in answers if among(a)] for answers in by_federation]
        return ratio([(sum(map(counted, each)), len(each)) for each in members])

    groups = [
        (int(found[rival]), 1)
        for record in records
        if (found := found_groups(record)) is not None
    ]
    return {
        "joins": share(lambda a: True, lambda a: a.joins),
        "found": share(lambda a: a.best > GAIN, lambda a: a.joins),
        "stays": share(lambda a: a.best > GAIN, lambda a: a.stays),
        "sign": share(lambda a: a.joins, lambda a: a.truth < 0),
        "lost": share(lambda a: a.joins, lambda a: a.truth < -HARM),
        "groups": ratio(groups),
        "gain": float(np.mean([a.truth if a.joins else 0.0 for a in everyone])),
    }


def table(records: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The table of one set, and its numbers."""
    lines = [
        "| | " + " | ".join(COLUMNS.values()) + " |",
        "| --- |" + " ---: |" * len(COLUMNS),
    ]
    numbers = {}
    for rival in ("coterie", *RIVALS):
        figures = figures_of(records, rival)
        numbers[rival] = {
            key: [round(v.value, 4), round(v.error, 4), v.count]
            if isinstance(v, Share)
            else v and round(v, 4)
            for key, v in figures.items()
        }
        cells = [
            f"{decimals(v.value)} ± {decimals(v.error)}"
            if isinstance(v, Share)
            else decimals(v)
            for v in figures.values()
        ]
        lines.append(f"| {rival} | " + " | ".join(cells) + " |")
    return "\n".join(lines), numbers


def main(sets: int = 10) -> int:
    """Estimate what is missing, and write the results."""
    ESTIMATES.parent.mkdir(exist_ok=True)
    known = (
        [json.loads(line) for line in ESTIMATES.read_text().splitlines()]
        if ESTIMATES.is_file()
        else []
    )
    done = {(r["clients"][0]["kind"], r["clients"][0]["number"]) for r in known}
    judged = list(BARS)
    with ESTIMATES.open("a") as file:
        for number in range(sets):
            for title in judged:
                for kind, draw in SETS[title].items():
                    if (kind, number) not in done:
                        known.append(judge_rivals(kind, draw, number))
                        file.write(json.dumps(known[-1]) + "\n")
                        file.flush()
    text, results = [], {}
    for title in judged:
        kinds = SETS[title]
        mine = [
            r
            for r in known
            if r["clients"][0]["kind"] in kinds and r["clients"][0]["number"] < sets
        ]
        lines, results[title] = table(mine)
        text += [
            f"**{len(kinds)} kinds, {title}**, {sets} federations of each:",
            "",
            lines,
            "",
        ]
    write_atomically(
        RESULTS, lambda p: p.write_text(json.dumps(results, indent=1) + "\n")
    )
    between(ROOT / "docs" / "statistics.md", "\n".join(text).rstrip(), "rivals")
    print("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
