"""The server believes of a site's reply what was asked for and nothing else. Whatever is wrong is that site's failure, in words.

Every function here reads what another party wrote, and raises `InputError` with a sentence that may be shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from coterie.base.clients import PARTS
from coterie.base.errors import InputError, plain, require
from coterie.base.vector import Layout
from coterie.config.data import Tables
from coterie.contract.encoding import answer_in, decode
from coterie.contract.replies import VECTORS, row_shape
from coterie.contract.wire import Answer, Ask, Packed
from coterie.data.tables.agreement import draft_recipe
from coterie.data.tables.description import (
    MANY_ROWS,
    TableDescription,
    is_count,
    read_json,
)
from coterie.data.tables.recipe import Description
from coterie.sites.tables import Facts

MEGABYTE = 2**20
FRAME = 16 * MEGABYTE
"""Bytes that a reply may have beside its tensors: names, notes, descriptions of columns."""
UNREAD = -1
"""The serial number with which a site refuses a message that it has not read."""
MANY_VECTORS = 64
"""Model vectors in a field that does not declare how many."""
PACKED = 4
"""How many times larger than the vector itself its packed form may be."""
MANY_KEYS = 100
FAR_MEAN, FAR_SPREAD = 8.0, 100.0
"""Deviations, and times."""
WORK = ("row_gradients", "row_losses")


def most_bytes(ask: Ask, layout: Layout) -> int:
    """Return how long a client's reply may be, by what the task declares."""
    task, payload = ask.function, ask.to(ask.names[:1]).arguments
    vector, total = layout.size * layout.dtype.itemsize, FRAME
    for field, kind in task.kinds.items():
        form = task.forms.get(field)
        if form is not None:
            size = (
                math.prod(row_shape(form, payload, layout))
                * (form.dtype or layout.dtype).itemsize
            )
        else:
            size = 0 if field in task.texts else MANY_VECTORS * vector
        total += size * PACKED if kind in VECTORS else size
    return total


def read_reply(
    message: Any, serial: int, most: int, longest_head: int
) -> tuple[dict[str, Any], str]:
    """A reply to the message `serial`, and why the site failed, in its own words, if it did.

    Args:
        message: the reply.
        serial: number of the message to which it replies.
        most: bytes that it may have.
        longest_head: bytes that may come before its tensors.
    """
    if not isinstance(message, bytes):
        raise InputError(f"its reply is a {type(message).__name__}, not a message")
    size = len(message) / MEGABYTE
    if len(message) > most:
        raise InputError(
            f"its reply has {size:.0f} MB, more than the {most / MEGABYTE:.0f} MB that were asked for"
        )
    try:
        values = decode(message, longest_head)
    except InputError as error:
        raise InputError(plain(f"its reply cannot be read: {error}")) from error
    why = values.get("failed", "")
    require(
        isinstance(why, str),
        "its reply cannot be read: it reports a failure without a reason",
    )
    answers = (serial, UNREAD) if why else (serial,)
    require(
        type(values.get("serial")) is int and values["serial"] in answers,
        "it replied to another ask",
    )
    return values, plain(why)


def answer_of(name: str, ask: Ask, values: Mapping[str, Any]) -> Answer:
    """The answer of one client, of which nothing is about another."""
    answer = answer_in(values)
    named = [n for block in answer.blocks for n in block.names] + list(answer.failed)
    if named != [name]:
        raise InputError(
            f"it answered for {', '.join(plain(str(n), 40) for n in named[:3]) or 'nobody'}, not for itself once"
        )
    for block in answer.blocks:
        for field, value in block.values.items():
            _check_row(plain(str(field), 40), value)
    for kind, count in answer.spent.items():
        require(
            kind in WORK and 0 <= count <= MANY_ROWS,
            "it reports an impossible amount of work",
        )
    require(
        len(answer.forgot) + len(answer.remembered) <= MANY_KEYS,
        "it reports too many remembered values",
    )
    for key in (*answer.forgot, *answer.remembered):
        require(
            isinstance(key, str) and len(key) <= 300,
            "it reports a remembered value without a name",
        )
    require(
        all(names == (name,) for names in answer.forgot.values()),
        "it reports what other clients forgot",
    )
    rounds = [pair for pairs in answer.remembered.values() for pair in pairs]
    require(
        all(
            client == name and -1 <= number <= ask.context.round
            for client, number in rounds
        ),
        "it reports memory of other clients, or of a round that has not run",
    )
    failed = {name: plain(why) for name, why in answer.failed.items()}
    return Answer(
        answer.blocks, failed, answer.spent, (), answer.forgot, answer.remembered
    )


def _check_row(field: str, value: Any) -> None:
    """Raise `InputError` unless a field of a reply is one row."""
    for part in (
        value.parts.values()
        if isinstance(value, Packed) and isinstance(value.parts, Mapping)
        else (value,)
    ):
        if isinstance(part, Tensor):
            if part.shape[:1] != (1,):
                raise InputError(
                    f"field {field!r} has shape {list(part.shape)[:8]}, not one row"
                )
        else:
            is_row = isinstance(part, tuple) and len(part) == 1
            if not is_row:
                raise InputError(
                    f"field {field!r} is a {type(part).__name__}, not a tensor with a row per client"
                )


def notes_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The notes of a site about its file."""
    notes = values.get("notes")
    are_sentences = (
        isinstance(notes, tuple)
        and len(notes) <= MANY_KEYS
        and all(isinstance(note, str) for note in notes)
    )
    require(are_sentences, "its notes are not sentences")
    return tuple(plain(note) for note in notes or ())


def facts_of_reply(values: Mapping[str, Any], classes: int) -> Facts:
    """The facts of a site about its rows, of which there are `classes` classes (0: numbers)."""
    facts = read_json(values.get("facts"), "facts")
    sizes: Any = facts.get("sizes")
    require(
        set(facts) == {"sizes", "lowest", "highest", "fingerprint"},
        "its facts are not those that were asked for",
    )
    require(
        isinstance(sizes, dict)
        and set(sizes) == {*PARTS}
        and all(is_count(rows) for rows in sizes.values())
        and sizes["train"] > 0,
        "its facts count an impossible number of rows",
    )
    lowest, highest = facts["lowest"], facts["highest"]
    require(
        is_count(lowest) and is_count(highest) and lowest <= highest < max(classes, 1),
        "its facts name classes that the federation does not have",
    )
    fingerprint = facts["fingerprint"]
    require(
        isinstance(fingerprint, str)
        and fingerprint.isalnum()
        and len(fingerprint) <= 128,
        "its facts have no fingerprint",
    )
    return Facts(sizes, lowest, highest, fingerprint)


def undraftable(
    descriptions: Mapping[str, TableDescription], settings: Tables, goes_on: bool
) -> list[str]:
    """Return the sites of whose description alone, or only without which, no recipe can be drafted; all if each is well beside some.

    Args:
        descriptions: of each site's table.
        settings: of the plan's tables.
        goes_on: whether what a sentence refuses counts, too; else that sentence names who must correct what.
    """

    def drafts(names: Sequence[str]) -> bool:
        try:
            draft_recipe(
                names,
                Description(tuple(descriptions[name].text() for name in names)),
                settings,
            )
        except InputError:
            return not goes_on
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return False
        return True

    every = tuple(descriptions)
    wrong_alone = [name for name in every if not drafts((name,))]
    if wrong_alone:
        return wrong_alone
    # Each fits by itself: without whom do the others fit together?
    culprits = []
    for name in every:
        others = tuple(other for other in every if other != name)
        if drafts(others):
            culprits.append(name)
    return culprits or list(every)


class FarMoments(NamedTuple):
    """Moments of a column at one site that are far from those of the others.

    Attributes:
        site: whose they are.
        key: `SITE:COLUMN`.
        sentence: why, in words.
        distance: from the medians of all sites, above 1 if that is too far; of a column's sites it is largest for a malicious one,
            where most are honest.
    """

    site: str
    key: str
    sentence: str
    distance: float


def counts_beyond(replies: Any, rows: Mapping[str, int]) -> dict[str, str]:
    """Return, by site, why its moments are refused: they count more rows than it has described."""
    most = (
        replies.counts.amax(1).tolist()
        if replies.counts.shape[1]
        else [0.0] * len(replies.clients)
    )
    return {
        name: f"its moments count {count:.0f} rows of {rows[name]}"
        for name, count in zip(replies.clients, most, strict=True)
        if count > rows[name]
    }


def events_beyond(replies: Any, rows: Mapping[str, int]) -> dict[str, str]:
    """Return, by site, why its events in cells or intervals of time are refused: a row has one event, and they are more than rows."""
    events = replies.fields.get("cells", replies.fields.get("events"))
    if events is None or events.ndim < 2:
        return {}
    refused = {}
    for name, count in zip(replies.clients, events.sum(1).tolist(), strict=True):
        if count > rows[name]:
            refused[name] = f"it tells {count:.0f} events of {rows[name]} rows"
    return refused


def moments_apart(replies: Any, columns: Sequence[str]) -> Iterator[FarMoments]:
    """Yield the moments of sites that are too far from those of the others to be averaged with them before a person has looked.

    That is a mean beyond `FAR_MEAN` deviations from the median of the others' means, and a deviation `FAR_SPREAD` times, or that part
    of, the median of the others'. Columns of 0 and 1, or of 1 and 2, are left alone, and all columns where fewer than two others tell.
    """
    deviations = (replies.squares / replies.counts.clamp(min=1)).sqrt()
    for j, column in enumerate(columns):
        tellers = [i for i in range(len(replies.clients)) if replies.counts[i, j] > 1]
        if _has_two_values(replies.means[tellers, j], deviations[tellers, j]):
            continue
        for i in tellers:
            other_tellers = [k for k in tellers if k != i]
            if len(other_tellers) < 2:
                continue
            centre, spread = (
                replies.means[other_tellers, j].median(),
                deviations[other_tellers, j].median(),
            )
            distance, ratio = (
                (replies.means[i, j] - centre).abs() / spread,
                deviations[i, j] / spread,
            )
            is_wide = (
                not 1 / FAR_SPREAD <= float(ratio) <= FAR_SPREAD
                and float(deviations[i, j]) > 0
            )
            if spread > 0 and (float(distance) > FAR_MEAN or is_wide):
                name, title = replies.clients[i], plain(str(column), 60)
                mean, spread_here = float(replies.means[i, j]), float(deviations[i, j])
                middle, usual_spread = (
                    replies.means[tellers, j].median(),
                    deviations[tellers, j].median().clamp(min=1e-12),
                )
                off = (
                    float((replies.means[i, j] - middle).abs() / usual_spread)
                    / FAR_MEAN
                )
                times = max(
                    float(deviations[i, j] / usual_spread),
                    float(usual_spread / deviations[i, j].clamp(min=1e-12)),
                )
                yield FarMoments(
                    name,
                    f"{name}:{column}",
                    f"column {title!r} of {name} has the mean {mean:.4g} and the deviation {spread_here:.4g}, the others {centre:.4g} "
                    f"and {spread:.4g}",
                    max(off, times / FAR_SPREAD),
                )


def _has_two_values(means: Tensor, deviations: Tensor) -> bool:
    """Return True if all moments are those of a column of 0 and 1, or of 1 and 2: a mean says all of it, whatever the others have."""
    squares = (means - low for low in (0, 1))
    return any(
        bool(((deviations**2 - share * (1 - share)).abs() < 1e-9).all())
        for share in squares
    )
