"""Which methods train behind row noise: those whose clients tell nothing of their rows but sums of clipped gradients with noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, cast

from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of
from coterie.config.local import LocalSGD
from coterie.config.privacy import Privacy
from coterie.config.row_noise import RowNoise
from coterie.config.secure import SecureSums
from coterie.contract.requests import declarations

ROW_SUMS = (
    "coterie.compute.tasks:local_update",
    "coterie.compute.tasks:own_update",
    "coterie.compute.tasks:local_updates",
    "coterie.compute.tasks:row_sum",
    "coterie.algorithms.fedprox:proximal_update",
)
"""Tasks whose update follows from steps of local training alone; beside it they tell how many rows there are, which is public."""
BOUND_SUMS = (
    "coterie.compute.bounded_slopes:tell_products",
    "coterie.compute.bounded_slopes:tell_row_gradients",
)
"""Tasks whose reply is one sum over rows of limited length behind noise, of fixed effects."""
NOT_TOLD = ("coterie.algorithms.fixed_effects:model_with_intercept",)
"""Tasks whose reply stays with the client."""
HIDING = (*ROW_SUMS, *BOUND_SUMS, *NOT_TOLD)
"""All tasks that a method behind row noise may ask."""


def noisy_local(
    local: LocalSGD,
    privacy: Privacy,
    rounds: int,
    told: int = 0,
    secure: SecureSums | None = None,
) -> LocalSGD:
    """Return local training in steps on all rows behind the noise of so many rounds, beside which so many numbers are told.

    Under secure sums the noise of an epsilon is larger by the part that curious clients know.
    """
    if local.sampler is not None:
        raise InputError(
            "[privacy] takes steps on all rows, and a sampler chooses among them; leave out [local] sampler"
        )
    steps = max(1, rounds * local.steps.count)
    noise = privacy.row_noise(steps + told)
    if secure is not None and privacy.epsilon is not None:
        events = steps / secure.hidden_noise**2 + told
        growth = math.sqrt(events / (steps + told))
        noise = replace(noise, noise_multiplier=noise.noise_multiplier * growth)
    return replace(local, batch_size=None, private=noise)


def hide_rows(
    method: Any,
    privacy: Privacy,
    rounds: int,
    where: str,
    told: int = 0,
    secure: SecureSums | None = None,
) -> Any:
    """Return the same method, whose local training hides each row. Raises `InputError` for one that has no local training.

    Args:
        method: The method.
        privacy: The [privacy] table.
        rounds: Of a training.
        where: File and label, for errors.
        told: Numbers of evaluations that sites tell of a training.
        secure: How updates are summed behind masks; None: they come as they are.
    """
    own_events = method.row_events(rounds)
    if own_events is not None:
        noise = privacy.row_noise(own_events + told)
        if method.private is None:
            return replace(method, private=noise)
        if method.private != noise and privacy.epsilon != math.inf:
            raise InputError(_other_noise(where))
        return method
    local = getattr(method, "local", None)
    if not (is_dataclass(method) and isinstance(local, LocalSGD)):
        raise InputError(
            f"{where}: it has no local training that [privacy] could hide rows in; take fedavg, or leave out [privacy]"
        )
    if getattr(method, "sampler", None) is not None:
        raise InputError(
            f"{where}: it draws rows by a sampler of its own, and [privacy] takes steps on all rows; take fedavg, or "
            "leave out [privacy]"
        )
    noisy = noisy_local(local, privacy, rounds, told, secure)
    if local.private is None:
        changed: dict[str, Any] = {"local": noisy}
        return replace(cast("Any", method), **changed)
    if local.private != noisy.private and privacy.epsilon != math.inf:
        raise InputError(_other_noise(where))
    return method


def _other_noise(where: str) -> str:
    return f"{where}: its private = ... is other noise than that of [privacy]; leave out one of them"


def noise_by_row(method: Any) -> RowNoise | None:
    """Return the noise that hides rows in what a method's clients tell; None: there is none."""
    noise: RowNoise | None = getattr(method, "private", None)
    local = getattr(method, "local", None)
    if isinstance(local, LocalSGD):
        noise = local.private
    return noise


def spent_by(
    method: Any,
    delta: float,
    rounds: int,
    told: int = 0,
    secure: SecureSums | None = None,
) -> float:
    """Return the epsilon of a training of so many rounds, with so many told numbers; infinity without noise.

    Under secure sums it is that towards the server and those clients that are curious.
    """
    noise = noise_by_row(method)
    if noise is None or not noise.noise_multiplier:
        return math.inf
    sums = method.row_events(rounds)
    if sums is None:
        sums = max(1, rounds * method.local.steps.count)
    share_hidden = 1.0
    if secure is not None:
        share_hidden = secure.hidden_noise**2
    events = sums / share_hidden + told
    return epsilon_of(math.sqrt(events) / noise.noise_multiplier, delta)


def check_rows_hidden(method: Any, label: str, where: str) -> None:
    """Raise `InputError` for a method that tells more of rows than sums behind row noise."""
    if method.is_reference:
        return
    told: Mapping[str, Any] = declarations(method)
    other = next((name for name in told if name not in HIDING), None)
    if other is not None:
        short = other.rpartition(".")[2]
        raise InputError(
            f"{where}, method {label!r}: {short} tells more of rows than sums behind noise, and [privacy] hides those alone; take "
            "fedavg, or leave out [privacy]"
        )
