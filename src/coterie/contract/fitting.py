"""Which filters and attacks a run of a method may have, and whether its models may be rounded on their way down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.base.errors import InputError
from coterie.config.local import LocalSGD
from coterie.config.rules import check_object, overrides
from coterie.contract.attack import Attack
from coterie.contract.down import FLOAT32
from coterie.contract.filters import Filter, in_order
from coterie.contract.method import Method
from coterie.contract.replies import CURVATURE, VECTORS
from coterie.contract.requests import declarations
from coterie.contract.wire import to_json


def curvature_task(method: Method[Any]) -> str:
    """Return the name of the first task of a method whose reply has curvature; "" if there is none."""
    for declaration, _ in declarations(method).values():
        if CURVATURE in declaration.task.kinds.values():
            return declaration.task.name.rpartition(":")[2]
    return ""


def refuse_attack(method: Method[Any], attack: Attack | None) -> None:
    """Raise `InputError` for an attack on replies, where the method asks for curvature; attacks on rows and failures are none."""
    if attack is None or method.is_reference:
        return
    on_replies = [h for h in ("corrupt", "rewrite") if overrides(attack, Attack, h)]
    telling = curvature_task(method)
    if on_replies and telling:
        cls = type(attack).__name__
        raise InputError(
            f"{cls} changes updates, and {type(method).__name__} asks for curvature ({telling}); attack its rows, as LabelFlip does, "
            "or take a method that sends updates, such as fedavg"
        )


def filters_of(method: Method[Any], candidates: Iterable[Any]) -> tuple[Filter, ...]:
    """Return the filters of a run of this method in the order in which they run; none where it is a reference.

    Raises:
        InputError: What is not a filter or cannot travel, two that pack, and a lossy one where the method needs exact uploads.
    """
    chosen = tuple(candidates)
    for reply_filter in chosen:
        check_object(reply_filter, Filter)
        _check_filter(reply_filter, method)
    packing = [type(filter_).__name__ for filter_ in chosen if filter_.packs]
    if len(packing) > 1:
        raise InputError(
            f"{' and '.join(packing)} both choose the form in which replies are sent; keep one of them"
        )
    if method.is_reference:
        return ()
    return in_order(chosen)


def down_of(method: Method[Any], down: str) -> str:
    """Return how models are sent to the clients of a method: whole where it is a reference, which filters leave alone, too.

    Raises `InputError` for 16 bits where clients compute something exact at the model that they get, or hide rows by noise.
    """
    if down == FLOAT32 or method.is_reference:
        return FLOAT32
    cls = type(method).__name__
    if method.solves_linear or method.tells_quadratics or curvature_task(method):
        raise InputError(
            f'{cls} solves for its model, which run.down = "{down}" would round; leave out run.down, or take a method that trains by '
            "steps, such as fedavg"
        )
    local = getattr(method, "local", None)
    if isinstance(local, LocalSGD) and local.private is not None:
        raise InputError(
            f'{cls} hides rows by noise ([privacy]), and run.down = "{down}" does not go with that as yet; leave out one of them'
        )
    return down


def _check_filter(filter: Filter, method: Method[Any]) -> None:
    cls = type(filter).__name__
    halves = [overrides(filter, Filter, hook) for hook in ("pack", "unpack")]
    if filter.packs and not all(halves):
        raise InputError(
            f"{cls}.packs is true; define pack and unpack, by which replies are sent"
        )
    if any(halves) and not filter.packs:
        raise InputError(
            f"{cls}.pack and {cls}.unpack are used where {cls}.packs is true; set it"
        )
    try:
        to_json(filter)
    except InputError as error:
        raise InputError(
            f"{cls} must be a frozen dataclass registered with @wire_type: {error}"
        ) from error
    telling = curvature_task(method)
    if telling and CURVATURE not in filter.kinds and not method.is_reference:
        raise InputError(
            f"{type(method).__name__} asks for curvature ({telling}), which {cls} cannot change; leave out the filter {cls}, or take "
            "a method that sends updates, such as fedavg"
        )
    if filter.lossy and method.needs_exact_uploads:
        raise InputError(
            f"{type(method).__name__} needs exact uploads, since its clients build on what they sent; leave out the filter {cls}"
        )
    if filter.packs and not set(filter.kinds) <= set(VECTORS):
        raise InputError(
            f"{cls}.kinds is {filter.kinds!r}; only updates and gradients can be sent in another form"
        )
