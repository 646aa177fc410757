"""The plan that a person at a site has approved: a copy beside the site's settings, known by its hash, and said in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, require, visible
from coterie.base.files import write_atomically
from coterie.config.local import LocalSGD
from coterie.config.registry import FILTERS
from coterie.config.schema import spell
from coterie.contract.filters import Filter
from coterie.contract.method import filters_of
from coterie.contract.requests import declarations
from coterie.filters.clip import Clip
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.sites.allowed import Allowed
from coterie.sites.minima import STATISTICS
from coterie.sites.paired import comparisons
from coterie.sites.plan import Plan, read_plan
from coterie.sites.settings import SETTINGS_FILE, SiteSettings, short
from coterie.sites.tables import left_out, table_options
from coterie.study.preflight import metric_names

__all__ = ["Approved", "approval_file", "approve", "fits", "in_words", "plan_hash", "read_approval"]


@dataclass(frozen=True)
class Approved:
    """A plan and its hash.

    Attributes:
        plan: what was approved.
        hash: SHA-256 of the file, in hexadecimal.
    """

    plan: Plan
    hash: str

    @classmethod
    def read(cls, path: Path) -> Approved:
        """The plan of a file. Raises `InputError` that names file, key and cure."""
        return cls(read_plan(path), plan_hash(path))

    @cached_property
    def pairs(self) -> dict[str, Allowed]:
        """The rights of each method with each seed."""
        experiment = self.plan.experiment
        allowed = {}
        for entry in experiment.methods:
            method = experiment.build_method(entry)
            filters = filters_of(method, experiment.filters)
            for seed in experiment.run.seeds:
                about = (method, seed, experiment.run.rounds, metric_names(experiment), filters)
                allowed[f"{entry.label}-{seed}"] = Allowed(*about)
        return allowed

    @cached_property
    def comparisons(self) -> tuple[tuple[str, str], ...]:
        """The pairs of methods of whose difference the error may be asked."""
        return comparisons(self.plan.experiment)

    def models(self, pair: str) -> dict[str, int]:
        """By task, about how many models a round of a method and seed may ask, over all runs."""
        deployment = self.plan.deployment
        tasks = self.pairs[pair].tasks
        return {
            name: declaration.most_models(len(deployment.sites)) * deployment.runs
            for name, (declaration, _) in tasks.items()
        }


def plan_hash(path: Path) -> str:
    """SHA-256 of a plan's file, in hexadecimal, as `sha256sum` prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def approval_file(settings_file: Path) -> Path:
    """Where a site keeps the plan that it has approved."""
    return settings_file.with_name(settings_file.name.removesuffix(SETTINGS_FILE) + "approved.toml")


def approve(plan_file: Path, settings_file: Path) -> Approved:
    """Approve a plan: from now on the site answers its requests and no others."""
    approved, content = Approved.read(plan_file), plan_file.read_bytes()
    write_atomically(approval_file(settings_file), lambda p: p.write_bytes(content))
    return approved


def read_approval(settings_file: Path) -> Approved:
    """The plan that the site has approved. Raises `InputError` if there is none."""
    path = approval_file(settings_file)
    require(path.is_file(), "its site has not approved a plan; there: coterie site approve PLAN")
    return Approved.read(path)


def in_words(approved: Approved, settings: SiteSettings) -> Iterator[str]:
    """Yield what a plan will ask of a site and what will leave it line by line, with the whole plan at the end.

    Whoever wrote the plan may have put anything into its texts, so each line is `visible`.
    """
    yield from map(visible, _lines(approved, settings))


def _lines(approved: Approved, settings: SiteSettings) -> Iterator[str]:
    experiment, deployment = approved.plan.experiment, approved.plan.deployment
    options, run = table_options(experiment.data), experiment.run
    yield f"plan      SHA-256 {approved.hash}"
    yield f"server    {deployment.server}:{deployment.port}; it alone may ask"
    yield f"predicts  {options['label']}; leaves out {', '.join(sorted(left_out(options))) or 'no column by name'}"
    yield f"rows      split {dict(experiment.split) or 'one third to test'} by seed {', '.join(map(str, run.seeds))}"
    yield (
        f"before    leaves: names and kinds of columns, categories of at least {settings.minimum_cell} training rows, "
        f"{STATISTICS} sums of each column of numbers for each seed, numbers of rows, a keyed hash"
    )
    for entry in experiment.methods:
        method = experiment.build_method(entry)
        filters = filters_of(method, experiment.filters)
        yield f"method    {entry.label}: {run.rounds} rounds{_training_words(getattr(method, 'local', None))}"
        yield from (f"          before it leaves, {_filter_words(one)}" for one in filters)
        for one, _ in declarations(method).values():
            fields = ", ".join(_field_words(k, kind, filters) for k, kind in one.task.kinds.items())
            times = one.most_models(len(deployment.sites)) * deployment.runs
            yield f"          {short(one.task.name)} leaves: {fields}; of up to {times} models in each round"
    yield f"each time the loss and {', '.join(metric_names(experiment))} of parts of at least {settings.minimum_cell} rows"
    yield f"at the end the standard error and p value of {len(approved.comparisons)} differences between methods, over test rows"
    budget = sum(sum(approved.models(pair).values()) for pair in approved.pairs) * (run.rounds + 1)
    yield f"budget    {budget} models in {deployment.runs} runs; a site that is asked about more needs a new approval"
    yield (
        f"stays     rows, identifiers, anything of fewer than {settings.minimum_rows} training rows, and gradients of fewer than "
        f"{settings.minimum_batch} rows"
    )
    yield "still     an update says something about the rows that made it: a dishonest server can find some (docs/trust.md)"
    refused = ", ".join(settings.refuse)
    yield f"refused   {refused or 'no task of the plan'}"
    yield "the plan  as it is written, with all defaults:"
    for table, values in {**experiment.tables(), "deploy": spell(deployment)}.items():
        for number, row in enumerate(values if isinstance(values, list) else [values]):
            where = f"{table}.{number}" if isinstance(values, list) else table
            yield from (
                f"          [{where}] {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in row.items()
            )


def _training_words(local: Any) -> str:
    if not isinstance(local, LocalSGD):
        return ""
    unit = type(local.steps).__name__.lower()
    return f", local training of {local.steps.count} {unit} with {local.batch_size or 'all'} rows each, rate {local.lr}"


def _filter_words(step: Filter) -> str:
    """Say what a filter does."""
    if isinstance(step, Clip):
        return f"an update or gradient is clipped to a length of {step.bound}"
    if isinstance(step, GaussianNoise):
        drawn = "drawn under a key that stays here" if step.secret else "which the server can compute and subtract"
        return f"each of its numbers gets noise of deviation {step.sigma}, {drawn}"
    return f"it passes {FILTERS.name_of(type(step)) or type(step).__name__}"


def _field_words(field: str, kind: str, filters: tuple[Filter, ...]) -> str:
    words = {
        "update": "a local model minus the one received",
        "gradient": "a gradient",
        "gap": "a difference of losses",
        "stay": "a difference of losses",
    }
    meaning = [words[kind]] if kind in words else []
    bare = bool(filters) and not any(kind in step.kinds for step in filters)
    meaning += ["as it is, through no filter"] * bare
    return f"{field} ({', '.join(meaning)})" if meaning else field


def fits(approved: Approved, settings: SiteSettings) -> None:
    """Raise `InputError` if the plan trains on batches that the site's settings refuse."""
    for name, allowed in approved.pairs.items():
        local = getattr(allowed.method, "local", None)
        if isinstance(local, LocalSGD) and local.batch_size is not None:
            fewest = min(local.batch_size, local.minimum_batch)
            if fewest < settings.minimum_batch:
                raise InputError(
                    f"{name} of the plan trains on batches that may have {fewest} rows, and this site refuses fewer than "
                    f"minimum_batch = {settings.minimum_batch}; the operator can set [local] minimum_batch in the plan"
                )
