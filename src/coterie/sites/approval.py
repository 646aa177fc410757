"""The plan that a person at a site has approved: a copy beside the site's settings, known by its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from coterie.base.errors import InputError, require
from coterie.base.files import write_atomically
from coterie.config.local import LocalSGD
from coterie.contract.method import filters_of
from coterie.run.contribution import most_candidates
from coterie.run.files import seed_suffix
from coterie.sites.allowed import Allowed, RefusedError, is_secret
from coterie.sites.comparisons import comparisons
from coterie.sites.log import entries, heads_file
from coterie.sites.plan import Plan, read_plan
from coterie.sites.settings import SETTINGS_FILE, SiteSettings
from coterie.study.layout import trainings
from coterie.study.preflight import metric_names


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
    def secret(self) -> bool:
        """True if the plan has noise that is drawn under the site's key."""
        return any(map(is_secret, self.plan.experiment.filters))

    @cached_property
    def pairs(self) -> dict[str, Allowed]:
        """The rights of each training: of each method with each seed, and each fold where the plan has folds."""
        experiment = self.plan.experiment
        allowed, run = {}, experiment.run
        per_round = run.per_round(len(self.plan.deployment.sites))
        candidates = (
            0
            if run.contribution is None
            else most_candidates(run.contribution, per_round)
        )
        for entry in experiment.methods:
            method = experiment.build_method(entry)
            filters = filters_of(method, experiment.filters)
            for seed, fold in trainings(experiment):
                limits = (
                    method,
                    seed,
                    run.rounds,
                    metric_names(experiment),
                    filters,
                    fold,
                    self.secret,
                    candidates,
                )
                allowed[f"{entry.label}-{seed_suffix(seed, fold)}"] = Allowed(*limits)
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
    """Return where a site keeps the plan that it has approved."""
    return settings_file.with_name(
        settings_file.name.removesuffix(SETTINGS_FILE) + "approved.toml"
    )


def approve(plan_file: Path, settings_file: Path) -> Approved:
    """Approve a plan: from now on the site answers its requests and no others. Raises `InputError` as `signature_words` does."""
    approved, content = Approved.read(plan_file), plan_file.read_bytes()
    signature_words(approved, plan_file, settings_file)
    write_atomically(approval_file(settings_file), lambda p: p.write_bytes(content))
    return approved


def signature_words(approved: Approved, plan_file: Path, settings_file: Path) -> str:
    """Return a sentence about who has signed a plan. Raises `InputError` unless that is the operator whom the site's kit knows."""
    from coterie.sites.flare.signature import check_plan

    startup = settings_file.parent.parent / "startup"
    if not (startup / "rootCA.pem").is_file():
        return "not checked, since these settings lie in no kit with the certificate of an authority"
    return check_plan(plan_file, approved.plan.deployment.admin, startup)


def heads_in_words(log: Path, settings_file: Path) -> Iterator[str]:
    """Say which heads of a log the server has signed. Raises `InputError` for a bad signature, and for a log that lacks the last."""
    from coterie.sites.flare.signature import check_head

    heads = list(entries(heads_file(log)))
    if not heads:
        return
    server, startup = (
        read_approval(settings_file).plan.deployment.server,
        settings_file.parent.parent / "startup",
    )
    for head in heads:
        check_head(head, server, startup)
    if not any(entry.get("chain") == heads[-1]["head"] for entry in entries(log)):
        raise InputError(
            f"{log} lacks the line with which it ended on {heads[-1]['signed']}, as the server has signed; somebody has cut its end, "
            f"or {heads_file(log).name} belongs to an earlier file"
        )
    yield f"{server} has signed {len(heads)} heads of this log, the last on {heads[-1]['signed']}"


def read_approval(settings_file: Path) -> Approved:
    """The plan that the site has approved. Raises `InputError` if there is none."""
    path = approval_file(settings_file)
    require(
        path.is_file(),
        "its site has not approved a plan; there: coterie site approve PLAN",
    )
    return Approved.read(path)


def layers_fit(
    module: nn.Module, name: str, allowed: Allowed, settings: SiteSettings
) -> None:
    """Raise `RefusedError` if rows can be found in what a method sends: no noise under the site's key hides it, and the model has a
    wider layer than the site takes then.
    """
    widest = max(
        (len(p) for p in module.parameters() if p.requires_grad and p.ndim > 1),
        default=1,
    )
    if allowed.exposure and widest > settings.largest_layer:
        noise = "give the plan the filters clip and gaussian-noise with secret = true"
        cure = f"leave out {type(allowed.method).__name__}" if allowed.secret else noise
        raise RefusedError(
            f"{allowed.exposure} leaves {name} without secret noise, and a layer of the model has {widest} units: a dishonest server "
            f"could find rows in it. The operator can {cure}, or this site, which reads how many in coterie attack, sets "
            f"largest_layer = {widest} (it is {settings.largest_layer})"
        )


def fits(approved: Approved, settings: SiteSettings, module: nn.Module) -> None:
    """Raise `InputError` if the plan trains on batches that the site's settings refuse, or rows can be found in its updates.

    Args:
        approved: the plan.
        settings: settings of the site.
        module: the plan's model on the site's columns.
    """
    for name, allowed in approved.pairs.items():
        layers_fit(module, name, allowed, settings)
        local = getattr(allowed.method, "local", None)
        if isinstance(local, LocalSGD) and local.batch_size is not None:
            fewest = min(local.batch_size, local.minimum_batch)
            if fewest < settings.minimum_batch:
                raise InputError(
                    f"{name} of the plan trains on batches that may have {fewest} rows, and this site refuses fewer than "
                    f"minimum_batch = {settings.minimum_batch}; the operator can set [local] minimum_batch in the plan"
                )
