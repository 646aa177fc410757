"""What MeritFed's cheap form loses where many clients are targets: mean estimation, 150 clients, 35 targets in its three groups.

The targets are the 5 clients of the first distribution and 15 of each other one. 400 rounds of one gradient on 100 samples, server rate
.05, 10 mirror-descent steps on the target's 1,000 training samples. The error is ||x - x*||^2 of a target's model, mean over the last
fifth of the rounds; costs are multiples of FedAvg's row gradients. Whole seeds run while the time lasts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

import coterie as ct
from benchmarks.mean_estimation import EVERYBODY, LOCAL, MD_STEP
from benchmarks.measure import Settings, over_seeds, replace_round
from coterie.data.sets.mean_estimation import means

WHAT = __doc__ or ""
ROUNDS, SEEDS = 400, 10
MUS = (0.1, 0.01)
TARGETS = tuple(
    f"d{group}-{i:03d}"
    for group, size in ((1, 5), (2, 15), (3, 15))
    for i in range(size)
)
PAPER = ct.MeritFed(
    targets=TARGETS, local=LOCAL, lr=0.05, md_steps=10, validation="train"
)
ONE = replace(PAPER, uploads="anchored", oracle_steps="one")
FORMS: Mapping[str, ct.MeritFed] = {
    "paper's form": PAPER,
    "anchored, one gradient every round": ONE,
    "anchored, one gradient every 2nd round": replace(ONE, oracle_every=2),
}


class Job(NamedTuple):
    """One run."""

    form: str
    mu: float
    seed: int
    rounds: int


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """All forms and all mu, seed by seed while the time lasts; all results so far after each seed."""
    rounds, seeds = (3, 2) if settings.quick else (ROUNDS, SEEDS)

    def jobs(seed: int) -> list[Job]:
        return [Job(form, mu, seed, rounds) for form in FORMS for mu in MUS]

    for found in over_seeds(jobs, settled, settings, seeds):
        yield {**found, "summary": summary(found["runs"])}


def settled(job: Job) -> dict[str, Any]:
    """The mean error of each group's targets in the last fifth of the rounds, and what a round after the first costs."""
    clients = ct.data.load(
        "mean-estimation", seed=job.seed, mu=job.mu, validation=0, test=0
    )
    truth = torch.tensor(means(job.mu))[[int(name[1]) - 1 for name in TARGETS]]
    errors, spent = list[list[float]](), list[Mapping[str, int]]()

    def watch(
        round: Callable[..., tuple[Any, Any]], state: Any, federation: Any, rng: Any
    ) -> tuple[Any, Any]:
        done = round(state, federation, rng)
        spent.append(dict(federation.session.spent))
        models = PAPER.models(done[0])
        of_each = (
            (torch.stack([models[name] for name in TARGETS]).double() - truth)
            .square()
            .sum(1)
        )
        errors.append(
            [float(of_group.mean()) for of_group in of_each.split([5, 15, 15])]
        )
        return done

    method = replace_round(replace(FORMS[job.form], md_step=MD_STEP[job.mu]), watch)
    rare = ct.RunSettings(
        evaluate=job.rounds, metrics=(), merge_validation=False, strict_wire=False
    )
    ct.fit(method, clients, ct.models.Mean(), job.rounds, job.seed, settings=rare)
    of_fedavg = (job.rounds - 1) * sum(EVERYBODY) * 100
    work = {
        key: (spent[-1].get(key, 0) - spent[0].get(key, 0)) / of_fedavg
        for key in ("row_gradients", "row_losses")
    }
    late = errors[-max(1, job.rounds // 5) :]
    return {
        **job._asdict(),
        **work,
        "errors": [statistics.fmean(group) for group in zip(*late, strict=True)],
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds of each form and mu: errors by group, and as a multiple of the paper form's, of all targets and the most."""
    lines = []
    for mu in MUS:
        reference = _errors(runs, next(iter(FORMS)), mu)
        for form in FORMS:
            chosen = [r for r in runs if (r["form"], r["mu"]) == (form, mu)]
            errors = _errors(runs, form, mu)
            costs = {
                key: statistics.fmean(r[key] for r in chosen)
                for key in ("row_gradients", "row_losses")
            }
            ratios = [
                ours / theirs for ours, theirs in zip(errors, reference, strict=True)
            ]
            whole = _of_all(errors) / _of_all(reference)
            line = {
                "form": form,
                "mu": mu,
                "seeds": len(chosen),
                **costs,
                "errors": errors,
            }
            lines.append({**line, "times": whole, "most": max(ratios)})
    return lines


def _errors(runs: Sequence[Mapping[str, Any]], form: str, mu: float) -> list[float]:
    """Mean error of each group over seeds."""
    found = [r["errors"] for r in runs if (r["form"], r["mu"]) == (form, mu)]
    return [statistics.fmean(group) for group in zip(*found, strict=True)]


def _of_all(errors: Sequence[float]) -> float:
    """Mean over the 35 targets."""
    return statistics.fmean([errors[int(name[1]) - 1] for name in TARGETS])


def table(result: Mapping[str, Any]) -> str:
    """Return the table of the site."""
    lines = [
        "| mu | form of MeritFed | row gradients | row losses | error x 1,000 by group | times the paper form's | of the worst group |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in result["summary"]:
        errors = ", ".join(f"{1000 * error:.2f}" for error in line["errors"])
        cells = (
            f"{line['mu']:g}",
            line["form"],
            f"{line['row_gradients']:.2f}",
            f"{line['row_losses']:.2f}",
            errors,
            f"{line['times']:.2f}",
            f"{line['most']:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    commits = ", ".join(sorted({run["commit"] for run in result["runs"]}))
    return "\n".join(
        [*lines, "", f"{result['summary'][0]['seeds']} seeds; commit {commits}."]
    )
