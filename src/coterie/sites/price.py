"""The price of what a plan tells, in mu, for a person who decides whether that is too much.

mu is the root of the sum of (sensitivity / sigma)^2 over all that is told of a row behind noise: over methods, seeds, folds, rounds and
runs, but not over parts, since a row lies in one part of a split. Whoever knows all other rows, and finds it as likely as not that a
patient's row is there, is right with probability Phi(mu / 2) after all of it (Dong, Roth and Su, "Gaussian Differential Privacy",
JRSS B 2022, Section 2).

What is told of all rows as it is, before the first round and beside each answer, is no part of it: sums of columns, categories, numbers
of rows, shares of classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from torch import nn

from coterie.base.layers import feature_width
from coterie.base.privacy import epsilon_of
from coterie.base.vector import Layout
from coterie.compute.metrics import evaluate
from coterie.config.local import LocalSGD
from coterie.config.run import RunTable
from coterie.contract.filters import Filter
from coterie.contract.payload import payload_fields
from coterie.contract.replies import CURVATURE, LOSSES, VECTORS, row_shape
from coterie.contract.requests import Limits
from coterie.contract.task import Task, is_exact_fact
from coterie.contract.wire import Ask, Context
from coterie.filters.clip import Clip
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.run.private_methods import BOUND_SUMS, ROW_SUMS
from coterie.sites.allowed import Allowed, RefusedError, is_secret
from coterie.sites.attack_requests import example_payload
from coterie.sites.comparisons import TOLD
from coterie.sites.plan import Plan
from coterie.sites.secret_noise import is_told_behind_noise
from coterie.sites.settings import SiteSettings, delta_of_site, most_mu

TOLD_OF_A_COMPARISON = 3
"""Numbers behind noise for each metric of a comparison: that of the method, that of the other, and the error."""


@dataclass(frozen=True)
class Price:
    """The noisy numbers that a plan tells about a row, and the square of their mu.

    Attributes:
        secret: whether the plan has noise under the site's key.
        updates: updates and gradients, each a vector behind one noise.
        updates_squared: square of their mu.
        numbers: losses, metrics and their like.
        numbers_squared: square of their mu.
        exact: a field that leaves as it is, in words; then mu is infinite. "": none.
    """

    secret: bool
    updates: int
    updates_squared: float
    numbers: int
    numbers_squared: float
    exact: str

    @property
    def noisy_mu(self) -> float:
        """Mu of all that leaves behind noise."""
        return math.sqrt(self.updates_squared + self.numbers_squared)

    @property
    def mu(self) -> float:
        """Mu of all."""
        return math.inf if self.exact else self.noisy_mu


def meaning(mu: float) -> str:
    """Say what a mu means for one patient.

    >>> meaning(1.0)
    'right in 69 of 100 guesses whether one patient is among the rows'
    """
    share = 100 * NormalDist().cdf(mu / 2) if math.isfinite(mu) else 100.0
    words = "more than 99" if share >= 99.5 else f"{share:.0f}"
    return f"right in {words} of 100 guesses whether one patient is among the rows"


def squared_mu_of_update(filters: tuple[Filter, ...]) -> float:
    """The square of the mu of one update behind the filters of a plan: one row moves a clipped one by at most twice the bound."""
    bound, variance = math.inf, 0.0
    for step in filters:
        if isinstance(step, Clip) and not variance:
            bound = min(bound, step.bound)
        elif isinstance(step, GaussianNoise) and is_secret(step):
            variance += step.sigma**2
    return (2 * bound) ** 2 / variance if variance else math.inf


def squared_mu_of_training(
    allowed: Allowed, task: Task[Any], arguments: Mapping[str, Any]
) -> float | None:
    """The square of the mu of an update that local training behind row noise makes, or of a sum behind it; None for any other."""
    if allowed.secure is not None and "words" in task.kinds.values():
        # One step, of whose noise the curious know their own parts: mu is sqrt(t / (t - c)) / z.
        unknown = arguments["noise"].noise_multiplier * allowed.secure.hidden_noise
        return float(1 / unknown**2)
    if allowed.private and task.name in BOUND_SUMS:
        # One sum, whose noise is so many times as large as what a row can move it.
        return float(1 / arguments["noise"].noise_multiplier ** 2)
    local = arguments.get("local")
    if task.name not in ROW_SUMS or not isinstance(local, LocalSGD):
        return None
    if local.private is None:
        return None
    multiplier = local.private.noise_multiplier
    # Each step is an event of mu 1 / multiplier; on all rows an epoch is one step.
    return local.steps.count / multiplier**2 if multiplier else math.inf


def events_of(
    allowed: Allowed, task: Task[Any], arguments: Mapping[str, Any], layout: Layout
) -> Iterator[tuple[str, int]]:
    """Yield what the reply to one request tells about a row: ("update", vectors), ("number", numbers) or ("exact", 1)."""
    noisy_kinds = {
        kind for step in allowed.filters if is_secret(step) for kind in step.kinds
    }
    for field, kind in task.kinds.items():
        form = task.forms.get(field)
        if kind in ("own", "count") or (kind == "other" and is_exact_fact(form)):
            continue
        if allowed.private and kind in (*LOSSES, "choice"):
            if task is evaluate and (told := _told_of_evaluation(allowed, field)):
                yield "number", told
            continue
        entries = _entries(task, field, arguments, layout)
        if kind == CURVATURE and allowed.hides_rows_of(task.name):
            yield "update", 1  # the noise is that of the whole vector
        elif kind in (*VECTORS, "words"):
            behind_rows = squared_mu_of_training(allowed, task, arguments) is not None
            hidden = kind in noisy_kinds or (allowed.private and behind_rows)
            yield (
                ("update", max(1, entries // max(1, layout.size)))
                if hidden
                else ("exact", 1)
            )
        elif kind in (*LOSSES, "choice") and allowed.secret:
            yield "number", entries
        else:
            yield "exact", 1


def _told_of_evaluation(allowed: Allowed, field: str) -> int:
    """Numbers in a field of an evaluation that `[privacy] tell` lets out."""
    losses = allowed.tell.count("loss")
    return losses if field == "loss" else len(allowed.tell) - losses


def squared_mu_of_number(allowed: Allowed) -> float:
    """The square of the mu of one loss or metric, whose noise is so many times what one row can move it."""
    return 1 / allowed.metric_noise**2


def _entries(
    task: Task[Any], field: str, arguments: Mapping[str, Any], layout: Layout
) -> int:
    """Numbers in a field of a reply to one request; of metrics those that noise lets out, the others stay undefined."""
    if task is evaluate and field == "values":
        return sum(map(is_told_behind_noise, arguments["metrics"]))
    form, kind = task.forms.get(field), task.kinds[field]
    models = _models(task, arguments)
    if kind == "choice":  # made of the losses of all models
        return models
    if form is None:
        return models * (layout.size if kind in VECTORS else 1)
    return math.prod(row_shape(form, arguments, layout))


def _models(task: Task[Any], arguments: Mapping[str, Any]) -> int:
    """The models that one client is asked about in a request."""
    for key, declared in payload_fields(task).items():
        if (
            declared.holds
            and declared.holds.shape[:1] == ("models",)
            and arguments.get(key) is not None
        ):
            value = arguments[key]
            return int(value.shape[value.ndim - len(declared.holds.shape)])
    return 1


def squared_mu(
    allowed: Allowed, task: Task[Any], arguments: Mapping[str, Any], layout: Layout
) -> float:
    """The square of the mu of the reply to one request."""
    total = 0.0
    for what, count in events_of(allowed, task, arguments, layout):
        each = {
            "update": _squared_mu_of_vector(allowed, task, arguments),
            "number": squared_mu_of_number(allowed),
        }.get(what, math.inf)
        total += count * each
    return total


def _squared_mu_of_vector(
    allowed: Allowed, task: Task[Any], arguments: Mapping[str, Any]
) -> float:
    """The square of the mu of one update, by its row noise or else by the filters of the plan."""
    by_rows = squared_mu_of_training(allowed, task, arguments)
    return squared_mu_of_update(allowed.filters) if by_rows is None else by_rows


def noisy_numbers_of_comparison() -> int:
    """Numbers that are told of the difference between two methods, each of mu 1 behind secret noise."""
    return TOLD_OF_A_COMPARISON * sum(map(is_told_behind_noise, TOLD))


def price_of(
    plan: Plan, pairs: Mapping[str, Allowed], comparisons: int, module: nn.Module
) -> Price:
    """The price of a plan whose requests are all asked, as often as it may be run.

    Args:
        plan: the plan.
        pairs: the rights of each of its trainings.
        comparisons: how many differences between methods are told.
        module: its model on the site's columns.
    """
    layout = Layout.of(module)
    sites, rounds = len(plan.deployment.sites), plan.experiment.run.rounds
    limits = Limits(
        layout.size,
        layout.dim,
        2,
        sites,
        layout.dtype,
        rounds,
        feature_width(layout),
    )  # no reply is longer with more classes
    updates, updates_squared, numbers, numbers_squared, exact = 0, 0.0, 0, 0.0, ""
    for pair, allowed in pairs.items():
        for name, (declaration, owner) in allowed.tasks.items():
            arguments = Ask(
                ("",),
                name,
                example_payload(declaration, owner, limits),
                Context(0, 1, 1, 1),
            ).arguments
            requests = allowed.times(name) * plan.deployment.runs
            for what, count in events_of(allowed, declaration.task, arguments, layout):
                if what == "update":
                    updates += count * requests
                    each = _squared_mu_of_vector(allowed, declaration.task, arguments)
                    updates_squared += count * requests * each
                elif what == "number":
                    numbers += count * requests
                    numbers_squared += count * requests * squared_mu_of_number(allowed)
                elif not exact:
                    exact = f"{declaration.task.name.rpartition(':')[2]} of {pair}"
    private = any(allowed.private for allowed in pairs.values())
    is_secret_plan = any(allowed.secret for allowed in pairs.values()) or private
    if is_secret_plan and not private:
        of_comparisons = (
            comparisons * plan.deployment.runs * noisy_numbers_of_comparison()
        )
        numbers += of_comparisons
        # All methods of such a plan have the same noise.
        numbers_squared += of_comparisons * squared_mu_of_number(
            next(iter(pairs.values()))
        )
    return Price(
        is_secret_plan, updates, updates_squared, numbers, numbers_squared, exact
    )


def price_in_words(
    price: Price, told_so_far: float, settings: SiteSettings, rows: int
) -> Iterator[str]:
    """Say what a plan costs, and what a site with so many rows has left, line by line."""
    if settings.epsilon is not None:
        limit, total = most_mu(settings, rows), math.hypot(told_so_far, price.mu)
        left = math.sqrt(max(0.0, limit**2 - told_so_far**2))
        is_enough = "it suffices" if total <= limit else "it does not suffice"
        yield (
            f"epsilon   this site gives {settings.epsilon:g} (delta {delta_of_site(settings, rows):.2g}, mu {limit:.3g}) for the life "
            f"of its log; mu {left:.3g} is left, the plan costs {price.mu:.3g}: {is_enough}"
        )
    if not price.secret:
        yield "price     mu is infinite: no secret noise hides a row in what is told (largest_layer says what this site takes)"
        return
    delta = delta_of_site(settings, rows)
    yield (
        f"price     {price.updates} updates (mu {math.sqrt(price.updates_squared):.3g}) and {price.numbers} losses, metrics and "
        f"differences (mu {math.sqrt(price.numbers_squared):.3g}) about each row behind noise, over all methods, seeds, folds, "
        f"rounds and runs: together mu {price.noisy_mu:.3g}, epsilon {epsilon_of(price.noisy_mu, delta):.3g} at delta {delta:.2g}"
    )
    yield f"          whoever knows all other rows is then {meaning(price.noisy_mu)}, where half is luck"
    if price.exact:
        yield f"          and mu is infinite, since {price.exact} tells something without noise"
    yield f"          told so far, under all plans: mu {told_so_far:.3g}; not in mu: sums, numbers of rows, shares of classes"


def check_epsilon_is_set(settings: SiteSettings) -> None:
    """Raise `RefusedError` for a plan with [privacy] where no person at the site has said how much it may tell."""
    if settings.epsilon is None:
        raise RefusedError(
            "the plan hides rows by [privacy], and no person at this site has said how much it gives for the life of its log; write "
            "epsilon = 2, or as much as it shall be, into [site] of coterie.toml"
        )


def check_epsilon(
    price: Price, told_so_far: float, settings: SiteSettings, rows: int
) -> None:
    """Raise `RefusedError` if a plan costs more than a site with so many rows has left of its epsilon."""
    limit, total = most_mu(settings, rows), math.hypot(told_so_far, price.mu)
    if total > limit * (1 + 1e-9):
        raise RefusedError(
            f"the plan costs mu {price.mu:.3g} and {told_so_far:.3g} is told: together more than the mu {limit:.3g} of this site's "
            f"epsilon = {settings.epsilon:g}. The operator can take more noise or fewer rounds; this site can raise [site] epsilon"
        )


def check_price(price: Price, run: RunTable, settings: SiteSettings) -> None:
    """Raise `RefusedError` if a plan with secret noise and these settings tells more behind it than the site's `largest_mu`."""
    mu = price.noisy_mu
    if not price.secret or mu <= settings.largest_mu:
        return
    if price.updates_squared > price.numbers_squared:
        cure = "a larger sigma, fewer rounds, methods or seeds, or [deploy] runs = 1"
    elif run.evaluate == run.rounds:
        cure = "a larger metric_noise, fewer methods or seeds, or [deploy] runs = 1"
    else:
        cure = f"[run] evaluate = {run.rounds}, a larger metric_noise, or [deploy] runs = 1"
    raise RefusedError(
        f"{price.updates} updates and {price.numbers} losses, metrics and differences behind noise are mu {mu:.3g} about each row, and "
        f"this site takes largest_mu = {settings.largest_mu:g}. The operator can give the plan {cure}; this site can raise largest_mu"
    )
