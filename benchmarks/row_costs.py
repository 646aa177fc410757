"""Work of methods in rows, which no load of the machine changes: gradients and losses, as multiples of FedAvg's row gradients.

Each method with its defaults on the four hospitals, a perceptron with batch norm, 10 local steps of 16 rows, in rounds 2 to 5. MeritFed
with 4, 20 and 150 targets in the paper's form and in its cheap one. And what the cheap form's models and weights differ by from the
paper's form over ten seeds of the hospitals, logistic, 60 rounds, beside the paper's form with other batches.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.batch_norm import perceptron

import coterie as ct
from benchmarks.measure import Settings, replace_round
from coterie.base.errors import InputError
from coterie.config.registry import METHODS
from coterie.run.experiment import Experiment
from coterie.run.method_tables import method_table
from coterie.run.tables import preset_methods
from coterie.study.preflight import check_method

WHAT = __doc__ or ""
LOCAL = ct.LocalSGD(lr=0.03, steps=ct.Steps(10), batch_size=16, weight_decay=1e-3)
MERITFED = ct.MeritFed(local=LOCAL, md_steps=5, md_step=3.0, validation="train")
"""As the preset of the hospitals has it."""
FORMS: Mapping[str, Any] = {
    "paper's form": MERITFED,
    "one gradient in place of 5": replace(MERITFED, oracle_steps="one"),
    "scores": replace(MERITFED, oracle="delegated", oracle_steps="scores"),
    "anchored, one gradient every round": replace(
        MERITFED, uploads="anchored", oracle_steps="one"
    ),
    "anchored, one gradient every 2nd round": replace(
        MERITFED, uploads="anchored", oracle_steps="one", oracle_every=2
    ),
    "anchored, scores": replace(
        MERITFED, uploads="anchored", oracle="delegated", oracle_steps="scores"
    ),
}
CHEAP = FORMS["anchored, one gradient every 2nd round"]
BARS = {"loss": 0.002, "weight": 0.03, "cost": 2.5}
"""What the cheap form may differ by and cost."""


def run(settings: Settings) -> dict[str, Any]:
    """Count all of it."""
    rounds, seeds, length = (5, 10, 60) if not settings.quick else (3, 2, 2)
    sizes = (4, 20, 150) if not settings.quick else (4,)
    return {
        "methods": _methods(rounds),
        "targets": [_targets(count, rounds) for count in sizes],
        "forms": _forms(seeds, length),
        "load": [0.0, 0.0],
    }


def _spent(
    method: Any, clients: ct.Clients, model: Any, rounds: int, seed: int = 0
) -> tuple[dict[str, float], Any]:
    """Row gradients and row losses of the rounds after the first; and the run."""
    totals: list[dict[str, int]] = []

    def count(round: Any, state: Any, federation: Any, rng: Any) -> Any:
        done = round(state, federation, rng)
        totals.append(dict(federation.session.spent))
        return done

    settings = ct.RunSettings(evaluate=rounds, metrics=())
    found = ct.fit(
        replace_round(method, count), clients, model, rounds, seed, settings=settings
    )
    return {
        key: totals[-1].get(key, 0) - totals[0].get(key, 0)
        for key in ("row_gradients", "row_losses")
    }, found


def _methods(rounds: int) -> list[dict[str, Any]]:
    """Work of every method that runs on the hospitals, as multiples of FedAvg's row gradients."""
    known = {
        entry["name"]: {**entry, "label": entry["name"]}
        for entry in reversed(preset_methods("heart-disease"))
    }
    entries = [
        method_table(name, {n: e for n, e in known.items() if "personalise" not in e})
        for name in METHODS
    ]
    tables = {
        "data": {"name": "heart-disease"},
        "split": {"folds": 0},
        "methods": entries,
        "local": {"lr": 0.03, "steps": 10, "batch_size": 16},
        "model": {"name": "experiments/batch_norm.py:perceptron"},
    }
    experiment = Experiment.from_tables(tables, "work")
    clients = experiment.load_data(0)
    spent = {}
    for entry in experiment.methods:
        try:
            check_method(experiment, entry, clients)
            spent[entry.label] = _spent(
                experiment.build_method(entry), clients, perceptron, rounds
            )[0]
        except InputError:  # it needs rows at the server
            continue
    base = spent["fedavg"]["row_gradients"]
    return [
        {"method": name, **{key: value / base for key, value in work.items()}}
        for name, work in spent.items()
    ]


def _targets(count: int, rounds: int) -> dict[str, Any]:
    """Work of MeritFed with so many targets, as multiples of FedAvg's row gradients."""
    if count == 4:
        clients = ct.data.load("heart-disease", split={"folds": 0})
    else:
        clients = ct.data.load(
            "digits", split={"kind": "iid", "clients": count, "parts": {"train": 1.0}}
        )
    local = replace(LOCAL, steps=ct.Steps(10 if count < 100 else 2))
    base = _spent(ct.FedAvg(local), clients, "logistic", rounds)[0]["row_gradients"]
    forms = {
        "paper": replace(MERITFED, local=local),
        "cheap": replace(CHEAP, local=local),
    }
    work = {
        name: _spent(method, clients, "logistic", rounds)[0]
        for name, method in forms.items()
    }
    return {
        "targets": count,
        **{
            f"{name} {key}": value / base
            for name, spent in work.items()
            for key, value in spent.items()
        },
    }


def _forms(seeds: int, rounds: int) -> list[dict[str, Any]]:
    """Cost of each form on the hospitals, and its largest difference from the paper's form in a client's mean loss and mean weight."""
    found: dict[
        str, list[tuple[dict[str, float], dict[Any, float], dict[Any, float]]]
    ] = {}
    bases = []
    for seed in range(seeds):
        clients = ct.data.load("heart-disease", seed=seed, split={"folds": 0})
        bases.append(
            _spent(ct.FedAvg(LOCAL), clients, "logistic", rounds, seed)[0][
                "row_gradients"
            ]
        )
        for name, method in FORMS.items():
            found.setdefault(name, []).append(_outcome(method, clients, rounds, seed))
        found.setdefault("paper's form, other batches", []).append(
            _outcome(MERITFED, clients, rounds, seed + 1000)
        )
    reference = found["paper's form"]
    return [
        {
            "form": name,
            "cost": statistics.fmean(work["row_gradients"] / base for (work, _, _), base in zip(runs, bases, strict=True)),
            "losses": statistics.fmean(work["row_losses"] / base for (work, _, _), base in zip(runs, bases, strict=True)),
            "loss": _largest([run[1] for run in runs], [run[1] for run in reference]),
            "weight": _largest([run[2] for run in runs], [run[2] for run in reference]),
        }
        for name, runs in found.items()
    ]  # fmt: skip


def _outcome(
    method: Any, clients: ct.Clients, rounds: int, seed: int
) -> tuple[dict[str, float], dict[Any, float], dict[Any, float]]:
    """Work, test loss of each client, and weight of each client for each target."""
    work, done = _spent(method, clients, "logistic", rounds, seed)
    losses = {
        row["client"]: row["loss"] for row in done.summary if row["split"] == "test"
    }
    return (
        work,
        losses,
        {
            (t, c): done.weights[t].get(c, 0.0)
            for t in clients.names
            for c in clients.names
        },
    )


def _largest(runs: list[dict[Any, float]], reference: list[dict[Any, float]]) -> float:
    """Largest difference between means over seeds."""
    return max(
        abs(
            statistics.fmean(one[key] for one in runs)
            - statistics.fmean(r[key] for r in reference)
        )
        for key in runs[0]
    )


def table(result: Mapping[str, Any]) -> str:
    """Return the three tables of the site."""
    lines = ["| method | row gradients | row losses |", "| --- | --- | --- |"]
    lines += [
        f"| {m['method']} | {m['row_gradients']:.2f} | {m['row_losses']:.2f} |"
        for m in result["methods"]
    ]
    lines += [
        "",
        "| targets of MeritFed | paper's form: gradients, losses | cheap form: gradients, losses |",
        "| --- | --- | --- |",
    ]
    for line in result["targets"]:
        cells = [
            f"{line[f'{form} row_gradients']:.2f}, {line[f'{form} row_losses']:.2f}"
            for form in ("paper", "cheap")
        ]
        lines.append(f"| {line['targets']} | {' | '.join(cells)} |")
    lines += [
        "",
        "| form of MeritFed, hospitals | row gradients | row losses | largest difference of a client's mean loss | of a mean weight |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {form['form']} | {form['cost']:.2f} | {form['losses']:.2f} | {form['loss']:.4f} | {form['weight']:.3f} |"
        for form in result["forms"]
    ]
    return "\n".join(
        [
            *lines,
            "",
            f"All as multiples of FedAvg's row gradients; commit {result['commit']}.",
        ]
    )
