"""What contributions say of four hospitals, beside FedAvg retrained on all 15 coalitions of them; ten seeds.

Contributions are those of one training (`ct.Contribution(every=1)`), in both games. The truth is the Shapley value of the game whose
worth is the final fall of a hospital's validation log-loss when FedAvg trains with a coalition alone, from the same start, on the
same rows. Before training, FedCollab forecasts who belongs together; the same coalitions say whether it was right. Then a free rider
(sends zeros), a saboteur (`SignFlip`) and a twin are planted, and it is counted whom contributions name.

Seeds that are finished are kept. Writes benchmarks/results/contribution.json and what stands between the `contribution` markers of
docs/explanation/contribution.md.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import coterie as ct
from benchmarks.measure import Settings, over_seeds
from coterie.compute.outcomes import student
from coterie.config.schema import options, wire_type
from coterie.report.contributions import conspicuous
from coterie.report.statistics import over_seeds as error_over_seeds
from coterie.report.text import number, wrap
from coterie.solvers import shapley

WHAT = __doc__ or ""
LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(10), batch_size=16, weight_decay=1e-3)
"""That of the preset heart-disease."""
ROUNDS, SEEDS = 60, 10
GAMES = ("renormalised", "fixed")
VICTIM = "cleveland"
"""The hospital that rides, sabotages or takes part twice."""
PLANTED = ("nobody", "rider", "saboteur", "twin")
AGREES = 0.9
"""Share of the pairs with a clear truth in which the sign must agree."""


class Job(NamedTuple):
    """What is measured with one seed: `truth`, a game, `forecast`, or who is planted."""

    what: str
    seed: int
    rounds: int


@options
class FedAvgOf(ct.FedAvg):
    """FedAvg among some of the clients, evaluated at all."""

    members: tuple[str, ...] = ()

    def round(self, state: Any, federation: Any, rng: Any) -> Any:
        """One round with the members."""
        return super().round(state, replace(federation, clients=self.members), rng)


@wire_type
@options
class Zeros(ct.Attack):
    """A free rider, who sends zeros."""

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Any]) -> Tensor:
        """Zeros for updates."""
        return torch.zeros_like(rows) if kind == "update" else rows


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """All measurements of one seed after the other, while the time lasts."""
    rounds, seeds = (4, 2) if settings.quick else (ROUNDS, SEEDS)

    def jobs(seed: int) -> list[Job]:
        return [
            Job(what, seed, rounds) for what in ("truth", *GAMES, "forecast", *PLANTED)
        ]

    for found in over_seeds(jobs, measure, settings, seeds):
        yield {**found, "summary": summary(found["runs"])}


def measure(job: Job) -> dict[str, Any]:
    """The result of a job."""
    clients = ct.data.load("heart-disease", seed=job.seed)
    about = {
        **job._asdict(),
        "train": clients.sizes("train"),
        "validation": clients.sizes("validation"),
    }
    if job.what == "truth":
        return {**about, "worths": worths(clients, job)}
    if job.what == "forecast":
        return {**about, "partners": partners(clients, job.seed)}
    if job.what in GAMES:
        phi = contributions(clients, job, ct.Contribution(every=1, game=job.what))
        return {
            **about,
            "phi": {
                t: {c: sum(each) for c, each in row.items()} for t, row in phi.items()
            },
        }
    return {**about, "signs": planted(clients, job)}


def contributions(
    clients: ct.Clients, job: Job, how: ct.Contribution, attack: Any = None
) -> dict[str, Any]:
    """By target and client, what its updates did in each measured round."""
    settings = ct.RunSettings(contribution=how, evaluate=job.rounds)
    trained = ct.fit(
        ct.FedAvg(LOCAL),
        clients,
        "logistic",
        job.rounds,
        job.seed,
        settings=settings,
        attack=attack,
    )
    falls: dict[str, dict[str, list[float]]] = {}
    for row in trained.contributions:
        falls.setdefault(row.target, {}).setdefault(row.client, []).append(row.phi)
    return falls


def worths(clients: ct.Clients, job: Job) -> dict[str, list[float]]:
    """For each hospital the final fall of its validation log-loss by coalition, given as bit mask over the sorted names [2^n]."""
    settings = ct.RunSettings(merge_validation=False, evaluate=job.rounds)
    falls: dict[str, list[float]] = {name: [0.0] for name in clients.names}
    for mask in range(1, 2 ** len(clients)):
        members = tuple(name for j, name in enumerate(clients.names) if mask >> j & 1)
        trained = ct.fit(
            FedAvgOf(LOCAL, members=members),
            clients,
            "logistic",
            job.rounds,
            job.seed,
            settings=settings,
        )
        for name in clients.names:
            losses = [
                value for _, value in trained.history.select("loss", name, "validation")
            ]
            falls[name].append(losses[0] - losses[-1])
    return falls


def partners(clients: ct.Clients, seed: int) -> dict[str, list[str]]:
    """Whom FedCollab puts beside each hospital, itself among them."""
    trained = ct.fit(
        ct.FedCollab(LOCAL),
        clients,
        "logistic",
        1,
        seed,
        settings=ct.RunSettings(merge_validation=False),
    )
    group = dict(zip(trained.state.names, trained.state.cluster.tolist(), strict=True))
    return {
        name: [other for other in group if group[other] == group[name]]
        for name in group
    }


def planted(clients: ct.Clients, job: Job) -> list[list[Any]]:
    """Whom contributions name where somebody is planted, as kind and names."""
    attacks: Mapping[str, ct.Attack] = {
        "rider": Zeros(on=(VICTIM,)),
        "saboteur": ct.attacks.SignFlip(on=(VICTIM,)),
    }
    if job.what == "twin":
        clients = with_twin(clients)
    falls = contributions(
        clients, job, ct.Contribution(game="fixed"), attacks.get(job.what)
    )
    count = len(next(iter(falls[VICTIM].values())))
    phi = {
        (r, target): {c: each[r] for c, each in row.items()}
        for target, row in falls.items()
        for r in range(count)
    }
    return [[sign.kind, list(sign.clients)] for sign in conspicuous(phi)]


def with_twin(clients: ct.Clients) -> ct.Clients:
    """The clients, one of which takes part twice."""
    every = [clients[name] for name in clients.names]
    return ct.Clients([*every, replace(clients[VICTIM], name="twin")])


def summary(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each pair of hospitals, and one for each question about who was named."""
    by_what = {
        what: [r for r in runs if r["what"] == what]
        for what in ("truth", *GAMES, "forecast", *PLANTED)
    }
    truths = by_what["truth"]
    names = list(truths[0]["worths"])
    ratio = statistics.fmean(
        sum(r["validation"].values()) / sum(r["train"].values()) for r in truths
    )
    lines = []
    for target in names:
        retrained = np.array(
            [shapley.exact(r["worths"][target]).tolist() for r in truths]
        )
        for j, client in enumerate(names):
            line: dict[str, Any] = {
                "target": target,
                "client": client,
                "retrained": _interval(retrained[:, j], ratio),
            }
            for game in GAMES:
                line[game] = _interval(
                    np.array([r["phi"][target][client] for r in by_what[game]]), ratio
                )
            lines.append(line)
    for planted_one in PLANTED:
        named = Counter(
            (kind, *clients)
            for r in by_what[planted_one]
            for kind, clients in r["signs"]
        )
        lines.append(
            {
                "planted": planted_one,
                "seeds": len(by_what[planted_one]),
                "named": [[*k, n] for k, n in named.items()],
            }
        )
    hits = [
        _is_hit(t["worths"], names, f["partners"])
        for t, f in zip(truths, by_what["forecast"], strict=True)
    ]
    return [
        *lines,
        *(
            {"forecast": n, "hits": sum(h[n] for h in hits), "seeds": len(hits)}
            for n in names
        ),
    ]


def _interval(values: Any, ratio: float) -> list[float]:
    """Mean over seeds and half of the 95 % interval."""
    error = error_over_seeds(values, ratio)
    mean = float(values.mean())
    return [mean, student(mean, error)[0] if error is not None else float("nan")]


def _is_hit(
    worth: Mapping[str, Sequence[float]],
    names: Sequence[str],
    partners: Mapping[str, Sequence[str]],
) -> dict[str, bool]:
    """Whether the coalition forecast for each hospital beats training alone, or where it is to be alone, alone beats all together."""
    found = {}
    for j, name in enumerate(names):
        together = sum(1 << names.index(other) for other in partners[name])
        alone, everyone = worth[name][1 << j], worth[name][-1]
        found[name] = (
            worth[name][together] > alone if together != 1 << j else alone >= everyone
        )
    return found


def _is_clear(interval: Sequence[float]) -> bool:
    return abs(interval[0]) > interval[1]


def table(result: Mapping[str, Any]) -> str:
    """Return the tables of the site."""
    pairs = [line for line in result["summary"] if "target" in line]
    clear = [line for line in pairs if _is_clear(line["retrained"])]
    seeds = next(line["seeds"] for line in result["summary"] if "planted" in line)
    text = [f"{seeds} of {SEEDS} seeds are done."] if seeds < SEEDS else []
    for game in GAMES:
        agree = sum(
            np.sign(line[game][0]) == np.sign(line["retrained"][0]) for line in clear
        )
        opposed = sum(
            _is_clear(line[game])
            and np.sign(line[game][0]) != np.sign(line["retrained"][0])
            for line in clear
        )
        meets = "meets" if agree >= AGREES * len(clear) else "misses"
        text.append(
            f"In the {game} game the sign agrees in {agree} of the {len(clear)} pairs whose retrained interval excludes 0, which "
            f"{meets} the bar of 9 in 10; in {opposed} of them a clear contribution has the other sign."
        )
    shown = [
        (
            _title(p["target"]),
            _title(p["client"]),
            *(_in_words(p[key]) for key in ("retrained", *GAMES)),
        )
        for p in pairs
    ]
    rows = _table(("whose loss", "whose updates", "retrained", *GAMES), shown)
    counted = [
        (line["planted"], _named(line["named"]))
        for line in result["summary"]
        if "planted" in line
    ]
    forecast = [
        (_title(line["forecast"]), str(line["hits"]), str(line["seeds"] - line["hits"]))
        for line in result["summary"]
        if "forecast" in line
    ]
    parts = [
        *wrap(" ".join(text), 100, ""),
        "",
        *rows,
        "",
        *wrap(
            f"Whom contributions name where {_title(VICTIM)} is planted, in how many of {seeds} trainings:",
            100,
            "",
        ),
        "",
        *_table(("planted", "named"), counted),
        "",
        *wrap(
            f"FedCollab's forecast before training, judged by the retrained coalitions of {seeds} seeds:",
            100,
            "",
        ),
        "",
        *_table(("hospital", "hits", "misses"), forecast),
    ]
    return "\n".join(parts)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heading, ["---"] * len(heading), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _named(counted: Sequence[Sequence[Any]]) -> str:
    """Whom contributions named, as what, and how often."""
    return (
        ", ".join(
            f"{' and '.join(map(_title, who))} as {kind}: {n}"
            for kind, *who, n in counted
        )
        or "nobody"
    )


def _in_words(interval: Sequence[float]) -> str:
    return f"{number(interval[0])} ± {number(interval[1])}"


def _title(client: str) -> str:
    return client.replace("-", " ").title()
