"""How often does the rule of verdicts err on times to event and on rare outcomes? Simulated federations whose true gains are known.

Six kinds of time to event and three of a rare outcome, judged by `benchmarks/verdicts.py` as coterie judges. Times have a Weibull
hazard, follow-up ends at random, and models are those of coterie: a hazard that is constant within intervals, which follow from the
events of all clients. The smallest effect follows from the events of a client, and Harrell's C has a veto.

Estimates are kept in runs/verdicts_of_events.jsonl. Writes benchmarks/results/verdicts_of_events.csv and a table of docs/statistics.md.
`python -m benchmarks.verdicts_of_events 12` takes 12 federations of each kind.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import federations
from benchmarks.federations import (
    FOLDS,
    FRESH,
    METHODS,
    PASSES,
    PRIMARY,
    REPEATS,
    RIDGE,
    TRUTHS,
)
from benchmarks.pages import between
from benchmarks.verdicts import (
    FIGURES,
    RESULTS,
    ROOT,
    Judged,
    decimals,
    judge,
    rows_of_csv,
    shares,
)
from coterie.base.files import write_atomically
from coterie.base.folds import deal_folds
from coterie.base.hazards import CELLS, cell_of, choose_cuts, events_within, time_within
from coterie.base.label_form import LabelForm
from coterie.compute.outcomes import Influence, mean_influence, row_error
from coterie.compute.survival import concordance
from coterie.solvers import glm, pooling
from coterie.solvers.profile import fit_shared_slopes
from coterie.solvers.ridge import Problem, ridge_by_fold, ridge_of_all

ESTIMATES = ROOT / "runs" / "verdicts_of_events.jsonl"
TABLE = RESULTS.with_name("verdicts_of_events.csv")
SHAPE = 1.2
"""Of the Weibull hazard, which rises a little."""
FEWEST_RANKED = 10
"""Events from which C has a veto."""
SHOWN = ("join", "either", "join wrong", "either wrong", "either harmed", "safe harmed", "stay", "coverage")  # fmt: skip
FAMILY = glm.FAMILIES["hazards"]

Array = NDArray[np.float64]


class Client(NamedTuple):
    """How the rows of one client are distributed: coefficients [p], log rate of events, and until when rows are followed."""

    rows: int
    coefficients: Array
    log_rate: float = 0.0
    followed: float = 2.0

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Inputs [rows, p], and entry, time and event [rows, 3]."""
        inputs = rng.normal(0, 1, (rows, len(self.coefficients)))
        rate = np.exp(inputs @ self.coefficients + self.log_rate)
        until = (rng.exponential(1, rows) / rate) ** (1 / SHAPE)
        end = self.followed * rng.uniform(0.2, 1, rows)
        time = np.minimum(until, end).clip(1e-6)
        labels = np.column_stack([np.zeros(rows), time, until <= end])
        return torch.from_numpy(inputs), torch.from_numpy(labels)


Kind = Callable[[np.random.Generator], list[Client]]


def _alike(
    sizes: Sequence[int], spread: float, inputs: int = 8, **about: float
) -> Kind:
    """Clients whose coefficients differ by `spread` from common ones."""

    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.5 * np.sqrt(8 / inputs), inputs)
        clients = []
        for rows in sizes:
            own = common + spread * rng.normal(0, 1, inputs)
            clients.append(Client(rows, own, **about))
        return clients

    return draw


def _rates_differ(draw_alike: Kind, low: float, high: float) -> Kind:
    """The same clients, whose log rates go from one end to the other."""

    def draw(rng: np.random.Generator) -> list[Client]:
        clients = draw_alike(rng)
        steps = np.linspace(low, high, len(clients)).tolist()
        return [
            client._replace(log_rate=step)
            for client, step in zip(clients, steps, strict=True)
        ]

    return draw


def _one_opposite(draw_alike: Kind) -> Kind:
    """The same clients, the last of which has the opposite coefficients."""

    def draw(rng: np.random.Generator) -> list[Client]:
        *others, last = draw_alike(rng)
        return [*others, last._replace(coefficients=-last.coefficients)]

    return draw


KINDS: Mapping[str, Kind] = {
    "events: 5 alike, 100 rows": _alike([100] * 5, 0.1),
    "events: 6 of 60 to 300 rows, alike": _alike([60, 80, 120, 160, 220, 300], 0.1),
    "events: 6 unrelated, 140 rows": _alike([140] * 6, 0.7),
    "events: one of 6 opposite, 130 rows": _one_opposite(_alike([130] * 6, 0.05)),
    "events: rates differ, 5 of 120 rows": _rates_differ(
        _alike([120] * 5, 0.1), -1.5, 0.7
    ),
    "events: one row in ten, 5 of 300 rows": _alike([300] * 5, 0.15, log_rate=-2.6),
}
RARE: Mapping[str, federations.Kind] = {
    "rare: 2 %, 5 of 800 rows": federations._alike(5, 800, 0.1, intercept=-4.4),
    "rare: 5 %, unlike, 6 of 400 rows": federations._alike(6, 400, 0.5, intercept=-3.3),
    "rare: 1 to 10 %, 5 of 600 rows": federations._differing(
        5, (600,), 0.1, intercept=(-5.0, -2.4)
    ),
}

# Training

Parts = Sequence[tuple[Tensor, Tensor]]


def form_of(parts: Parts) -> tuple[LabelForm, float]:
    """The intervals and rates that all clients agree on, and the horizon by which times are divided."""
    labels = torch.cat([part[1] for part in parts])
    times, event = labels[:, 1], labels[:, 2]
    cells = torch.bincount(cell_of(times[event > 0]), minlength=CELLS)
    cuts, horizon = choose_cuts(cells)
    events = events_within(times, event, cuts).sum(0).clamp(min=0.5)
    exposure = time_within(labels[:, 0], times, cuts).sum(0).clamp(min=1e-9)
    scaled = tuple(cut / horizon for cut in cuts)
    rates = tuple((horizon * events / exposure).tolist())
    return LabelForm("hazards", cuts=scaled, rates=rates, horizon=horizon), horizon


class _Models:
    """What the methods learn from some rows under one form of label."""

    def __init__(self, form: LabelForm) -> None:
        self.form, self.outputs = form, form.outputs

    def problem(self, inputs: Tensor, labels: Tensor) -> Problem:
        told = torch.cat(self.form.usual_and_seen(labels), 1)
        return Problem(inputs, told, "hazards", self.outputs)

    def together(self, parts: Parts) -> list[dict[str, Tensor]]:
        """The models [P] of each federated method, client by client."""
        problems = [self.problem(*part) for part in parts]
        columns = parts[0][0].shape[1]
        rows = [(p.inputs, p.labels) for p in problems]
        shared, own = fit_shared_slopes(rows, FAMILY, self.outputs, RIDGE, RIDGE / 20)
        penalty = torch.cat(
            [
                torch.full((columns,), RIDGE, dtype=torch.float64),
                torch.full((self.outputs,), 1e-3, dtype=torch.float64),
            ]
        )
        inputs, labels = (torch.cat(column) for column in zip(*rows, strict=True))
        for_all = glm.mode(inputs, labels, FAMILY, penalty, self.outputs, shared=True)
        partial = self.partial(problems, columns)
        return [
            {
                "partial": partial[i],
                "fixed-effects": torch.cat([shared, own[i]]),
                "fedavg": for_all.theta,
            }
            for i in range(len(parts))
        ]

    def partial(self, problems: Sequence[Problem], columns: int) -> Tensor:
        """Partial pooling in two passes [m, P]."""
        precision = pooling.own_precision(columns, self.outputs)
        start = torch.stack(
            [
                glm.mode(
                    p.inputs, p.labels, FAMILY, precision, self.outputs, shared=True
                ).theta
                for p in problems
            ]
        )
        theta = start
        for _ in range(PASSES):
            told = [
                glm.moments(at, p.inputs, p.labels, FAMILY, self.outputs)
                for at, p in zip(theta, problems, strict=True)
            ]
            quadratics = pooling.Quadratics(
                theta,
                torch.stack([m.gradient for m in told]),
                torch.stack([m.curvature for m in told]),
            )
            theta = pooling.pool(quadratics, start, columns).theta
        return theta

    def outputs_of(self, model: Tensor, inputs: Tensor) -> Tensor:
        return glm.scores(model, inputs, self.outputs, shared=True)


# One federation


def estimate(kind: str, draw: Kind, number: int) -> list[dict[str, Any]]:
    """What the rule sees, and what is true, client by client; the same federation of a kind whenever it is drawn."""
    rng = np.random.default_rng([*kind.encode(), number])
    clients = draw(rng)
    raw = [client.draw(client.rows, rng) for client in clients]
    form, horizon = form_of(raw)
    models = _Models(form)
    parts = [_scaled(part, form, horizon) for part in raw]
    truths = _truths(clients, models, horizon, rng)
    repeats = [_tested(models, parts, f"{kind}/{number}", r) for r in range(REPEATS)]
    found = []
    for i, (_, labels) in enumerate(parts):
        about: dict[str, Any] = {
            "kind": kind,
            "number": number,
            "client": i,
            "rows": len(labels),
            "cases": None,
            "events": int(labels[:, 2].sum()),
        }
        for column, method in enumerate(METHODS):
            about[method] = {
                "loss": _gain(form, labels, [r[i] for r in repeats], method, "local"),
                "over primary": _gain(
                    form, labels, [r[i] for r in repeats], method, PRIMARY
                ),
                "auc": _ranking_gain(form, labels, [r[i] for r in repeats], method),
                "truth": float(truths[i, column]),
            }
        found.append(about)
    return found


def _scaled(
    part: tuple[Tensor, Tensor], form: LabelForm, horizon: float
) -> tuple[Tensor, Tensor]:
    """Rows with times in horizons, whose follow-up is cut at the last interval."""
    inputs, labels = part
    times = labels[:, 1] / horizon
    beyond = times > form.cuts[-1]
    labels = torch.stack(
        [
            labels[:, 0],
            times.clamp(max=form.cuts[-1]),
            torch.where(beyond, 0.0, labels[:, 2]),
        ],
        1,
    )
    return inputs, labels


class _Tested(NamedTuple):
    """Outputs [n, K] of each method for the rows of a client in one repeat, by models that have not seen them; and the folds."""

    outputs: Mapping[str, Tensor]
    folds: NDArray[np.int64]


def _tested(models: _Models, parts: Parts, name: str, repeat: int) -> list[_Tested]:
    dealt = []
    tested: list[dict[str, Tensor]] = []
    for i, (x, labels) in enumerate(parts):
        codes = labels[:, 2].long().numpy()
        folds = deal_folds(codes, FOLDS, seed=repeat, name=f"{name}/{i}")
        dealt.append(folds)
        alone = ridge_by_fold(models.problem(x, labels), torch.from_numpy(folds)).models
        outputs = torch.zeros(len(labels), models.outputs, dtype=torch.float64)
        for fold in range(FOLDS):
            at = torch.from_numpy(folds == fold)
            outputs[at] = models.outputs_of(alone[fold], x[at])
        tested.append({"local": outputs})
    for fold in range(FOLDS):
        training = []
        for (x, labels), folds in zip(parts, dealt, strict=True):
            kept = torch.from_numpy(folds != fold)
            training.append((x[kept], labels[kept]))
        for i, of_client in enumerate(models.together(training)):
            at = torch.from_numpy(dealt[i] == fold)
            for method, model in of_client.items():
                empty = torch.zeros_like(tested[i]["local"])
                outputs = tested[i].setdefault(method, empty)
                outputs[at] = models.outputs_of(model, parts[i][0][at])
    return [
        _Tested(outputs, folds) for outputs, folds in zip(tested, dealt, strict=True)
    ]


def _truths(
    clients: Sequence[Client],
    models: _Models,
    horizon: float,
    rng: np.random.Generator,
) -> Array:
    """The mean gain over training alone on fresh rows, over further training sets [clients, methods]."""
    form = models.form
    fresh = [_scaled(c.draw(FRESH, rng), form, horizon) for c in clients]
    truths = np.zeros((len(clients), len(METHODS)))
    for _ in range(TRUTHS):
        training = [_scaled(c.draw(c.rows, rng), form, horizon) for c in clients]
        together = models.together(training)
        for i, (x, labels) in enumerate(training):
            codes = labels[:, 2].long().numpy()
            folds = deal_folds(codes, FOLDS, seed=0, name=f"{i}", purpose="inner")
            own = ridge_of_all(models.problem(x, labels), torch.from_numpy(folds))
            inputs, of_fresh = fresh[i]
            alone = form(models.outputs_of(own.models, inputs), of_fresh).mean()
            for column, method in enumerate(METHODS):
                outputs = models.outputs_of(together[i][method], inputs)
                gain = alone - form(outputs, of_fresh).mean()
                truths[i, column] += float(gain) / TRUTHS
    return truths


def _gain(
    form: LabelForm,
    labels: Tensor,
    repeats: Sequence[_Tested],
    method: str,
    rival: str,
) -> tuple[float, float]:
    """Mean gain of `method` over `rival` in loss, and its standard error over rows."""
    rows = np.arange(len(labels))
    sides = [
        [mean_influence(rows, form(r.outputs[m], labels).numpy()) for r in repeats]
        for m in (rival, method)
    ]
    return _difference(*sides)


def _ranking_gain(
    form: LabelForm, labels: Tensor, repeats: Sequence[_Tested], method: str
) -> tuple[float, float] | None:
    """The same in Harrell's C, each row among those of its fold; None below ten events."""
    if int(labels[:, 2].sum()) < FEWEST_RANKED:
        return None
    rows, followup = np.arange(len(labels)), labels.numpy()
    sides: list[list[Influence]] = [[], []]
    for r in repeats:
        for side, m in zip(sides, (method, "local"), strict=True):
            risk = form.read(r.outputs[m])[:, -1].numpy()
            found = concordance(followup, risk, r.folds)
            if found is not None:
                one = Influence(rows, found.influence, found.events, found.value)
                side.append(one)
    return _difference(*sides)


def _difference(
    one: Sequence[Influence], two: Sequence[Influence]
) -> tuple[float, float]:
    error = row_error(one, two)
    gaps = [a.metric - b.metric for a, b in zip(one, two, strict=True)]
    return float(np.mean(gaps)), 0.0 if error is None else error.error


# The page and the file


def table(judged: Sequence[Judged], federations_judged: int) -> str:
    """What docs/statistics.md shows of time to event and of rare outcomes."""
    groups = {"time to event": "events:", "rare outcomes": "rare:"}
    found = {}
    for name, mark in groups.items():
        found[name] = shares([j for j in judged if j.federation[0].startswith(mark)])
    lines = [
        f"Six kinds of time to event and three of an outcome of 1 to 10 %: {federations_judged} federations.",
        "",
    ]
    lines += [f"| figure | {' | '.join(groups)} |", "| --- | ---: | ---: |"]
    for key in SHOWN:
        cells = []
        for name in groups:
            one = found[name][key]
            text = "-"
            if one is not None:
                text = f"{decimals(one.value)} ± {decimals(1.96 * one.error)}, of {one.count}"
            cells.append(text)
        lines.append(f"| {FIGURES[key].text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(sets: int = 12) -> int:
    """Estimate what is missing, judge, and write the results."""
    torch.set_num_threads(1)
    ESTIMATES.parent.mkdir(exist_ok=True)
    known: list[list[dict[str, Any]]] = []
    if ESTIMATES.is_file():
        known = [json.loads(line) for line in ESTIMATES.read_text().splitlines()]
    done = {(clients[0]["kind"], clients[0]["number"]) for clients in known}
    with ESTIMATES.open("a") as file:
        for number in range(sets):
            for kind in (*KINDS, *RARE):
                if (kind, number) in done:
                    continue
                if kind in KINDS:
                    found = estimate(kind, KINDS[kind], number)
                else:
                    found = federations.estimate(kind, RARE[kind], number)
                known.append(found)
                file.write(json.dumps(found) + "\n")
                file.flush()
    every_kind = {*KINDS, *RARE}
    chosen = [c for c in known if c[0]["kind"] in every_kind and c[0]["number"] < sets]
    judged = [j for clients in chosen for j in judge(clients)]
    text = table(judged, len(chosen))
    between(ROOT / "docs" / "statistics.md", text, "verdicts-of-events")
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows_of_csv(judged))
    write_atomically(TABLE, lambda p: p.write_text(buffer.getvalue()))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
