"""Which methods run under secure sums: those whose server needs no vector of a single client, found by what they declare."""

from __future__ import annotations

from typing import Any

from coterie.base.errors import InputError, require
from coterie.base.vector import Layout
from coterie.config.run import RunSettings
from coterie.config.secure import SecureSums
from coterie.contract.filters import Filter
from coterie.contract.masks import SumTerms, need_cryptography
from coterie.contract.method import Method
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
    layout: Layout,
) -> None:
    """Raise `InputError` for a run under secure sums that needs more than sums, or whose vectors have no range."""
    if settings.secure is None or method.is_reference:
        return
    need_cryptography()
    check_sums_alone(method, label)
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
        not layout.buffers,
        "[secure] takes no model with batch norm or other buffers, whose numbers have no range; use group norm",
    )
