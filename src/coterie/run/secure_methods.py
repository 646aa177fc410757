"""Which methods run under secure sums: those whose server needs no vector of a single client, found by what they declare."""

from __future__ import annotations

from typing import Any

from coterie.attacks import Attacked
from coterie.base.errors import InputError, require
from coterie.config.run import RunSettings
from coterie.config.secure import SecureSums
from coterie.contract.engine import Engine
from coterie.contract.filters import Filter
from coterie.contract.masks import SumTerms, need_cryptography
from coterie.contract.method import Method
from coterie.contract.noisy_sum import noise_of, why_no_step
from coterie.contract.requests import declarations
from coterie.contract.secure_exchange import shown_beside_sums

_CURE = "take fedavg, or leave out [secure]"


def check_sums_alone(method: Method[Any], label: str) -> None:
    """Raise `InputError`, with the reason, for a method that needs of single clients what secure sums hide."""
    if method.is_reference:
        return
    if method.needs != "sum":
        raise InputError(
            f"{label} needs the vectors of single clients, and [secure] shows their sums alone; {_CURE}"
        )
    if method.needs_exact_uploads:
        raise InputError(
            f"{label}: its clients build on what they sent, and [secure] clips and rounds that; {_CURE}"
        )
    for declaration, _ in declarations(method).values():
        field = shown_beside_sums(declaration.task)
        if field:
            short = declaration.task.name.rpartition(":")[2]
            raise InputError(
                f"{label}: {field!r} of {short} says something of a single client's update, which [secure] hides; {_CURE}"
            )


def check_rows_in_sums(method: Any, label: str) -> None:
    """Raise `InputError` for a method with noise by row whose clients would send other than sums over rows."""
    noise = noise_of(vars(method))
    if method.is_reference or noise is None:
        return
    for declaration, _ in declarations(method).values():
        if declaration.task.row_sum is None:
            short = declaration.task.name.rpartition(":")[2]
            raise InputError(
                f"{label}: {short} is no sum over rows, and under [secure] noise by row is in such sums alone; {_CURE}"
            )
    why = why_no_step(method.local)
    if why:
        raise InputError(
            f"{label}: local training {why}: under [secure] noise by row is in sums over rows alone"
        )


def check_participants(secure: SecureSums, count: int) -> None:
    """Raise `InputError` where a round with so many clients of equal weight could open no sum, or the package is missing."""
    need_cryptography()
    equal = {str(number): 1 for number in range(count)}
    SumTerms(b"", equal, secure.survivors(count))


def check_secure(
    method: Method[Any],
    label: str,
    settings: RunSettings,
    filters: tuple[Filter, ...],
    engine: Engine,
) -> None:
    """Raise `InputError` for a run under secure sums that needs more than sums, or whose vectors have no range."""
    if settings.secure is None or method.is_reference:
        return
    need_cryptography()
    check_sums_alone(method, label)
    check_rows_in_sums(method, label)
    if noise_of(vars(method)) is not None:
        _check_integers_alone(filters, engine)
    packing = next((type(step).__name__ for step in filters if step.packs), "")
    require(
        not packing,
        f"filter {packing} sends each vector in a form that cannot be summed behind masks; leave out the filter or [secure]",
    )
    require(
        settings.contribution is None,
        "run.contribution looks at the update of each client, and [secure] shows their sums alone; leave out one of them",
    )
    require(
        not engine.layout.buffers,
        "[secure] takes no model with batch norm or other buffers, whose numbers have no range; use group norm",
    )


def _check_integers_alone(filters: tuple[Filter, ...], engine: Engine) -> None:
    """Raise `InputError` for what would change updates where clients send integers, and would do nothing."""
    require(
        not filters,
        "under [secure] noise by row is in sums of integers, which no filter changes; leave out the filters",
    )
    if isinstance(engine, Attacked) and engine.changes_replies:
        raise InputError(
            f"attack {type(engine.attack).__name__} changes updates, and under [secure] noise by row has clients send integers; "
            "leave out the attack, [secure] or the noise"
        )
