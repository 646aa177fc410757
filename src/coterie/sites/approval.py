"""The plan that a person at a site has approved: a copy beside the site's settings, known by its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from coterie.base.errors import InputError, require
from coterie.base.files import read_text, write_atomically
from coterie.config.local import LocalSGD
from coterie.contract.fitting import down_of, filters_of
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.run.contribution import most_candidates
from coterie.run.files import seed_suffix
from coterie.run.private_methods import noise_by_row
from coterie.sites.allowed import PARTS, Allowed, RefusedError, is_secret
from coterie.sites.comparisons import comparisons
from coterie.sites.flare.workspace import for_owner_only
from coterie.sites.ledger import Account
from coterie.sites.log import entries, heads_file
from coterie.sites.plan import Plan, parse_plan, signature_file
from coterie.sites.price import (
    Price,
    check_epsilon_is_set,
    check_price,
    price_of,
)
from coterie.sites.settings import SETTINGS_FILE, SiteSettings, read_settings
from coterie.study.layout import trainings
from coterie.study.preflight import metric_names

if TYPE_CHECKING:
    from coterie.sites.flare.identity import KitIdentity

_APPROVED = "approved.toml"


@dataclass(frozen=True)
class Approved:
    """A plan, its hash, and all that was read of it: what is said, tried and approved is this, whatever becomes of the file.

    Attributes:
        plan: what was approved.
        hash: SHA-256 of the file, in hexadecimal.
        path: where the plan was read.
        content: of the file.
        signature: of the file of the operator's signature beside it; "" if there is none.
    """

    plan: Plan
    hash: str
    path: Path
    content: bytes
    signature: str

    @classmethod
    def read(cls, path: Path) -> Approved:
        """The plan of a file. Raises `InputError` that names file, key and cure."""
        text = read_text(path)
        beside = signature_file(path)
        signature = ""
        if beside.is_file():
            signature = read_text(beside)
        content = text.encode()
        return cls(
            parse_plan(text, path),
            hashlib.sha256(content).hexdigest(),
            path,
            content,
            signature,
        )

    @cached_property
    def secret(self) -> bool:
        """True if the plan has noise that is drawn under the site's key."""
        return any(map(is_secret, self.plan.experiment.filters))

    @property
    def private(self) -> bool:
        """True if the plan hides rows in training."""
        return self.plan.experiment.privacy is not None

    @cached_property
    def metric_noise(self) -> float:
        """Deviation of the noise that secret noise gives a told number, in units of what one row can move it."""
        filters = self.plan.experiment.filters
        told = [
            step.metric_noise
            for step in filters
            if isinstance(step, GaussianNoise) and step.secret
        ]
        return max(told, default=1.0)

    @cached_property
    def pairs(self) -> dict[str, Allowed]:
        """The rights of each training: of each method with each seed, and each fold where the plan has folds."""
        experiment = self.plan.experiment
        allowed, run = {}, experiment.run
        per_round = run.per_round(len(self.plan.deployment.sites))
        candidates = 0
        if run.contribution is not None:
            candidates = most_candidates(run.contribution, per_round)
        for entry in experiment.methods:
            method = experiment.build_method(entry)
            filters = filters_of(method, experiment.filters)
            tell: tuple[str, ...] = ()
            metric_noise = self.metric_noise
            noise = None
            # A reference's own model comes without noise, and its evaluation would tell of each row.
            if not method.is_reference:
                noise = noise_by_row(method)
            if experiment.privacy is not None and noise is not None:
                tell = experiment.privacy.tell
                metric_noise = noise.noise_multiplier
            for seed, fold in trainings(experiment):
                allowed[f"{entry.label}-{seed_suffix(seed, fold)}"] = Allowed(
                    method,
                    seed,
                    run.rounds,
                    metric_names(experiment),
                    filters,
                    fold,
                    self.secret,
                    self.private,
                    tell,
                    metric_noise,
                    candidates,
                    every=run.every(run.rounds),
                    evaluated_parts=run.evaluation.parts or PARTS,
                    secure=None if method.is_reference else run.secure,
                    down=down_of(method, run.down),
                )
        return allowed

    @cached_property
    def comparisons(self) -> tuple[tuple[str, str], ...]:
        """The pairs of methods of whose difference the error may be asked."""
        return comparisons(self.plan.experiment)

    def price(self, module: nn.Module) -> Price:
        """The price of all that the plan tells, where this is its model on the site's columns."""
        return price_of(self.plan, self.pairs, len(self.comparisons), module)

    def models(self, pair: str) -> dict[str, int]:
        """By task, about how many models a method and seed may ask in all rounds of all runs."""
        deployment, allowed = self.plan.deployment, self.pairs[pair]
        return {
            name: declaration.most_models(len(deployment.sites))
            * allowed.asks_of(name)
            * deployment.runs
            for name, (declaration, _) in allowed.tasks.items()
        }


def plan_hash(path: Path) -> str:
    """SHA-256 of a plan's file, in hexadecimal, as `sha256sum` prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def approval_file(settings_file: Path) -> Path:
    """Return where a site keeps the plan that it has approved."""
    return settings_file.with_name(
        settings_file.name.removesuffix(SETTINGS_FILE) + _APPROVED
    )


def approve(
    plan_file: Path, settings_file: Path, *, unsigned: bool = False
) -> Approved:
    """Approve the plan of a file, as `keep_approval` does."""
    approved = Approved.read(plan_file)
    keep_approval(approved, settings_file, unsigned=unsigned)
    return approved


@for_owner_only()
def keep_approval(
    approved: Approved, settings_file: Path, *, unsigned: bool = False
) -> None:
    """Approve a plan: from now on the site answers its requests and no others.

    Args:
        approved: the plan, as it was read and shown.
        settings_file: settings of the site.
        unsigned: whether a site without a kit approves what nobody has signed.

    Raises `InputError` for a plan that the operator has not signed.
    """
    words = signature_words(approved, settings_file)
    if words is None and not unsigned:
        raise InputError(
            f"{approved.path}: who has signed the plan cannot be checked, since {settings_file} lies in no kit of an authority; "
            "approve it in the site's kit, or, if nobody is to sign it, with --unsigned"
        )
    approval, content, signature = (
        approval_file(settings_file),
        approved.content,
        approved.signature,
    )
    if words is not None:
        # The signature stays beside the approval: the operator's certificate may be revoked later.
        write_atomically(
            signature_file(approval),
            lambda p: p.write_text(signature, encoding="utf-8"),
            durable=True,
        )
    write_atomically(approval, lambda p: p.write_bytes(content), durable=True)
    Account(Path(read_settings(settings_file).log)).approve(approved.hash)


def identity_beside(approval: Path) -> KitIdentity | None:
    """Return the identity of the site whose approved plan lies here; None where that is in no kit."""
    from coterie.sites.flare.identity import identity_of_kit

    kit = kit_of(approval)
    if kit is None:
        return None
    name = approval.name.removesuffix(_APPROVED) + SETTINGS_FILE
    return identity_of_kit(kit / "startup", revocations_file(approval.with_name(name)))


def kit_of(settings_file: Path) -> Path | None:
    """Return the kit in whose `local` folder a site's settings lie; None where there is no certificate of an authority."""
    kit = settings_file.parent.parent
    if not (kit / "startup" / "rootCA.pem").is_file():
        return None
    return kit


def revocations_file(settings_file: Path) -> Path:
    """Return where a site keeps the list of revoked certificates."""
    return settings_file.with_name(
        settings_file.name.removesuffix(SETTINGS_FILE) + "revoked.json"
    )


def check_signer_of_approval(settings_file: Path) -> None:
    """Raise `InputError` if the signature under the approved plan is not there, or was made with a revoked certificate.

    Outside a kit nobody can say who has signed.
    """
    from coterie.sites.flare.revocation import check_approval

    kit = kit_of(settings_file)
    if kit is not None:
        operator = read_approval(settings_file).plan.deployment.admin
        check_approval(
            approval_file(settings_file),
            operator,
            revocations_file(settings_file),
            kit / "startup",
        )


def signature_words(approved: Approved, settings_file: Path) -> str | None:
    """Return a sentence about who has signed a plan; None where no authority is known that could say so.

    Raises `InputError` if the site's kit knows an authority, and the signature is not that of its operator.
    """
    from coterie.sites.flare.revocation import check_signer
    from coterie.sites.flare.signature import check_plan

    kit = kit_of(settings_file)
    if kit is None:
        return None
    operator = approved.plan.deployment.admin
    words = check_plan(
        approved.path, approved.content, approved.signature, operator, kit / "startup"
    )
    check_signer(approved.signature, revocations_file(settings_file), kit / "startup")
    return words


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
        cure = "give the plan the filters clip and gaussian-noise with secret = true"
        if allowed.secret:  # the plan has them, and this method's answers escape them
            cure = f"leave out {type(allowed.method).__name__}"
        raise RefusedError(
            f"{allowed.exposure} leaves {name} without secret noise, and a layer of the model has {widest} units: a dishonest server "
            f"could find rows in it. The operator can {cure}, or this site, which reads how many in coterie attack, sets "
            f"largest_layer = {widest} (it is {settings.largest_layer})"
        )


def fits(approved: Approved, settings: SiteSettings, module: nn.Module) -> None:
    """Raise `InputError` if the plan trains on batches that the site's settings refuse, rows can be found in its updates, or it
    tells too much behind noise.

    Args:
        approved: the plan.
        settings: settings of the site.
        module: the plan's model on the site's columns.
    """
    if approved.private:
        check_epsilon_is_set(settings)
    if approved.secret:
        check_price(approved.price(module), approved.plan.experiment.run, settings)
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
