"""The result of an ask: the replies of all clients stacked in the order of their names, and what each of them
must be.

Before anything is computed from a reply its form is checked, that its numbers are finite, and that its norm is not
far from the others'.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from coterie.base.errors import InputError, plain, shorten
from coterie.base.vector import Layout
from coterie.contract.task import Form, Task
from coterie.contract.wire import Ask, Block

R = TypeVar("R", bound=tuple[Any, ...])


class Replies(Generic[R]):
    """The stacked fields of all replies: `replies.delta` is [n, ...] in the order of `replies.clients` (sorted by name).

    Attributes:
        clients: who replied, sorted.
        asked: who was asked, sorted.
        failed: reason of each client that did not reply or whose reply was refused.
        forgot: clients that do not have the state (`cohort.state`) which the server counted: their process ended, or the server refused
            the reply in which they changed it. Some of them may have failed.
        fields: what they replied, by name.
    """

    def __init__(
        self,
        clients: tuple[str, ...],
        asked: tuple[str, ...],
        fields: Mapping[str, Any],
        failed: Mapping[str, str],
        forgot: tuple[str, ...] = (),
    ):
        self.clients = clients
        self.asked = asked
        self.failed = dict(failed)
        self.forgot = forgot
        self.fields = dict(fields)

    def __getattr__(self, name: str) -> Tensor:
        fields = self.__dict__.get("fields", {})
        if name not in fields:
            raise AttributeError(
                f"the reply has no field {name!r}; it has {', '.join(fields)}"
            )
        field: Tensor = fields[name]  # texts, which a few tasks reply, come as tuples
        return field

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        return f"<{len(self.clients)} of {len(self.asked)} replies: {', '.join(self.fields)}>"

    def by_client(self, values: Tensor) -> dict[str, float]:
        """`values` [n] as a dict by client, for the log."""
        return dict(zip(self.clients, values.tolist(), strict=True))

    def without(self, refused: Mapping[str, str]) -> Replies[R]:
        """The same without the clients whose reply was refused, for these reasons."""
        if not refused:
            return self
        block = Block(self.clients, self.fields).without(refused)
        failed = {**self.failed, **refused}
        in_order = {n: failed[n] for n in self.asked if n in failed}
        return Replies(block.names, self.asked, block.values, in_order, self.forgot)


class Average(Replies[R]):
    """The replies of clients where only a mean is wanted: `average.delta` is the weighted mean [d + b] of their updates.

    Fields declared as `Update` or `Gradient` are means; the others are stacked [n, ...], as in `Replies`.

    Attributes:
        weights: share of each client that replied in the means, float64 [n], with sum 1.
    """

    def __init__(
        self, replies: Replies[R], means: Mapping[str, Tensor], weights: Tensor
    ) -> None:
        super().__init__(
            replies.clients,
            replies.asked,
            {**replies.fields, **means},
            replies.failed,
            replies.forgot,
        )
        self.weights = weights


def stack(
    asked: tuple[str, ...], blocks: Sequence[Block], failed: Mapping[str, str]
) -> Replies[Any]:
    """The replies of all blocks in one, sorted by name."""
    failed = {name: failed[name] for name in asked if name in failed}
    if not blocks:
        return Replies((), asked, {}, failed)
    if len(blocks) == 1 and list(blocks[0].names) == sorted(blocks[0].names):
        return Replies(blocks[0].names, asked, blocks[0].values, failed)
    replied = [name for block in blocks for name in block.names]
    order = sorted(range(len(replied)), key=replied.__getitem__)
    # Where each reply goes, block by block: the inverse of `order`, which sorting a permutation gives.
    rank = iter(sorted(range(len(order)), key=order.__getitem__))
    places = [list(islice(rank, len(block.names))) for block in blocks]
    fields: dict[str, Any] = {}
    for key in blocks[0].values:
        parts = [block.values[key] for block in blocks]
        fields[key] = _stack_field(parts, order, places)
    return Replies(tuple(replied[i] for i in order), asked, fields, failed)


def _stack_field(
    parts: Sequence[Any], order: list[int], places: Sequence[list[int]]
) -> Any:
    """One field of all replies, from its rows block by block; `places` are where the rows of each block go."""
    if not isinstance(parts[0], Tensor):
        rows = [item for part in parts for item in part]
        return tuple(rows[i] for i in order)
    if len(parts) == 1:
        return parts[0][order]
    stacked = parts[0].new_empty(len(order), *parts[0].shape[1:])
    for place, part in zip(places, parts, strict=True):
        stacked[place] = part
    return stacked


VECTORS = ("update", "gradient")
"""Kinds of fields that are model vectors."""
CURVATURE = "curvature"
"""Kind of fields that no filter and no attack on replies may change."""
LOSSES = ("loss", "gap", "stay")
"""Kinds of fields that are mean losses over rows, metrics, or differences of such."""


def has_form(value: Any, kind: str, count: int, layout: Layout) -> bool:
    """Return True if a field of a reply has a row for each of `count` clients, and a vector the form of a model vector."""
    if not isinstance(value, Tensor):
        is_list = isinstance(value, tuple | list)
        return kind == "other" and is_list and len(value) == count
    if value.shape[:1] != (count,):
        return False
    if kind not in VECTORS:
        return True
    if value.ndim < 2 or value.shape[-1] != layout.size:
        return False
    return value.dtype == layout.dtype


def misfits(
    blocks: Sequence[Block],
    ask: Ask,
    task: Task[Any],
    layout: Layout,
    sizes: Callable[[str], Mapping[str, int]],
    kinds: Mapping[str, str],
) -> dict[str, str]:
    """Return why replies are refused that are not what the task declares, by client.

    Args:
        blocks: the replies.
        ask: what they answer.
        task: task of the ask.
        layout: of model vectors.
        sizes: rows of each client in a part, as its facts say.
        kinds: the fields that are looked at, with what they are.
    """
    refused = find_strays(blocks, ask.names)
    for block in blocks:
        for key in block.values.keys() - task.kinds.keys():
            unknown = f"it sends a field {key[:40]!r}, which nobody asked for"
            refused.update(dict.fromkeys(block.names, unknown))
    for key, kind in kinds.items():
        expected = _find_form(blocks, key, ask, task, layout)
        form = task.forms.get(key)
        sent = layout
        if kind in VECTORS:
            sent = task.layout_of(key, ask.arguments, layout)
        for block in blocks:
            value, count = block.values.get(key), len(block.names)
            if not has_form(value, kind, count, sent) or _form(value) != expected:
                why = dict.fromkeys(block.names, _misfit(key, value, expected))
            else:
                why = _out_of_range(key, value, block.names, form, ask, sizes)
            refused = {**why, **refused}  # the first field that is wrong is named
    return refused


def find_strays(blocks: Sequence[Block], clients: Sequence[str]) -> dict[str, str]:
    """Return why replies of clients are refused that were not asked, or that answered more than once."""
    answered = [name for block in blocks for name in block.names]
    names = frozenset(clients)
    strays: dict[str, str] = {}
    if len(names.intersection(answered)) == len(answered):
        return strays
    for name, times in Counter(answered).items():
        if name not in names:
            strays[name] = "nobody asked it"
        elif times > 1:
            strays[name] = f"it answered {times} times"
    return strays


def row_shape(
    form: Form, payload: Mapping[str, Any], layout: Layout
) -> tuple[int, ...]:
    """Return the shape of each client's row in the answer to this payload, where models have this layout."""
    if callable(form.shape):
        return form.shape(payload, layout)
    return form.shape


def _find_form(
    blocks: Sequence[Block], key: str, ask: Ask, task: Task[Any], layout: Layout
) -> tuple[Any, ...] | None:
    """The form of a field as its task declares it; else that of more than half of the replies, and () where no form has so many.

    None stands for no reply that could be read.
    """
    form, kind = task.forms.get(key), task.kinds[key]
    if form is not None:
        shape = row_shape(form, ask.arguments, layout)
        return torch.Size(shape), form.dtype or layout.dtype
    votes: Counter[tuple[Any, ...]] = Counter()
    for block in blocks:
        value = block.values.get(key)
        is_declared_type = isinstance(value, Tensor) != (key in task.texts)
        if is_declared_type and has_form(value, kind, len(block.names), layout):
            votes[_form(value)] += len(block.names)
    if not votes and kind in VECTORS:
        return torch.Size((layout.size,)), layout.dtype
    if not votes:
        return None
    commonest, count = votes.most_common(1)[0]
    if 2 * count <= votes.total():
        return ()
    return commonest


def _form(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Tensor):
        return value.shape[1:], value.dtype
    return (type(value),)


def _misfit(key: str, value: Any, expected: tuple[Any, ...] | None) -> str:
    if not isinstance(value, Tensor):
        return f"field {key!r} is a {type(value).__name__}, not a tensor with a row per client"
    expectation = ""
    if expected == ():  # one of two would else choose for both
        expectation = "; the replies differ, and the task declares no form (coterie.Form) that would tell which is right"
    elif expected is not None and len(expected) == 2:
        expectation = f"; expected {[1, *expected[0]]} and {expected[1]}"
    return f"field {key!r} has shape {list(value.shape)} and {value.dtype}{expectation}"


def _out_of_range(
    key: str,
    value: Any,
    names: tuple[str, ...],
    form: Form | None,
    ask: Ask,
    sizes: Callable[[str], Mapping[str, int]],
) -> dict[str, str]:
    refused: dict[str, str] = {}
    if form is None or not isinstance(value, Tensor):
        return refused
    if form.facts:
        fact_sizes = sizes(str(ask.payload.get("part", "train")))
        for name, rows in zip(names, value.tolist(), strict=True):
            if name in fact_sizes and rows != fact_sizes[name]:
                refused[name] = (
                    f"field {key!r} says {rows:g} rows, but the facts of this client {fact_sizes[name]}"
                )
        return refused
    if form.within == (-math.inf, math.inf):
        return refused
    within = form.within
    if callable(within):
        within = within(ask.arguments)
    low, high = within
    if form.most is not None:
        fact_sizes = sizes("train")
        highest = [math.inf] * len(names)
        for i, name in enumerate(names):
            if name in fact_sizes:
                highest[i] = form.most(ask.arguments, fact_sizes[name])
        high = torch.tensor(highest, dtype=torch.float64)
    is_outside = (value < low) | (value > high)
    if value.ndim > 1:
        is_outside = is_outside.flatten(1).any(1)
    bound = ""
    if isinstance(low, float) and isinstance(high, float) and math.isinf(high):
        bound = f" (at least {low:g})"
    for name, outside in zip(names, is_outside.tolist(), strict=True):
        if outside:
            refused[name] = f"field {key!r} has a value out of its range{bound}"
    return refused


def not_finite(
    kinds: Mapping[str, str], replies: Replies[Any], dims: Mapping[str, int]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return why replies are refused that have NaN or Inf in these fields, by client; and by field the norms of vectors [n].

    `dims` are the parameters of updates and gradients, by field, before their buffers.
    """
    refused: dict[str, str] = {}
    norms: dict[str, Tensor] = {}
    if not len(replies):
        return refused, norms
    for key, kind in kinds.items():
        value = replies.fields[key]
        if not (isinstance(value, Tensor) and value.is_floating_point()):
            continue
        # A sum or a norm is finite only if all its terms are, and takes a tenth of the time that looking at each of them does.
        sums = [value]
        if kind in VECTORS:
            dim = dims[key]
            heads = value[..., :dim].flatten(1)
            norms[key] = torch.linalg.vector_norm(heads, dim=1)
            sums = [norms[key]]
            if value.shape[-1] > dim:
                sums.append(value[..., dim:])
        if math.isfinite(sum([terms.sum().item() for terms in sums])):
            continue
        finite = torch.isfinite(value.reshape(len(replies), -1)).all(dim=1)
        for name, fine in zip(replies.clients, finite.tolist(), strict=True):
            if not fine:
                refused.setdefault(name, f"field {key!r} has NaN or Inf")
        if key in norms:  # in float64 it cannot overflow, but that copies everything
            norms[key] = torch.linalg.vector_norm(heads, dim=1, dtype=torch.float64)
    return refused, norms


def medians(norms: Mapping[str, Tensor]) -> dict[str, float]:
    """The median of norms [n] by field; 0 for less than three, of which none can be called far from the others."""
    usual = dict.fromkeys(norms, 0.0)
    for key, values in norms.items():
        if len(values) >= 3:
            usual[key] = float(values.median())
    return usual


def outliers(
    names: tuple[str, ...],
    norms: Mapping[str, Tensor],
    usual: Mapping[str, float],
    max_norm: float,
) -> dict[str, str]:
    """Return why vectors are refused whose norm is over `max_norm` times the usual median, by client; `norms` [n] by field."""
    refused: dict[str, str] = {}
    for key, values in norms.items():
        median = usual.get(key, 0.0)
        if median <= 0:
            continue
        for i in torch.nonzero(values > max_norm * median).flatten().tolist():
            refused[names[i]] = (
                f"field {key!r} has norm {float(values[i]):.3g}, over {max_norm:g} times the median {median:.3g}"
            )
    return refused


def list_failures(failed: Mapping[str, str], room: int) -> str:
    """List the clients that failed and why, as many as fit into `room` characters and one at least."""
    shown: list[str] = []
    for name, why in failed.items():
        label = plain(name, 30)
        item = f"{label} ({shorten(plain(why, 1000), max(50, room - len(label) - 18))})"
        if shown and len("; ".join([*shown, item])) > room - 15:
            return f"{'; '.join(shown)}; and {len(failed) - len(shown)} more"
        shown.append(item)
    return "; ".join(shown)


def error_of_all(names: Sequence[str], failed: Mapping[str, str]) -> str:
    """The sentence of an `InputError` that the task raised at every client, with their names; else empty."""
    sign = f"{InputError.__name__}: "
    if not names or not all(failed.get(name, "").startswith(sign) for name in names):
        return ""
    shown = ", ".join(plain(name, 40) for name in names[:3])
    if len(names) > 3:
        shown += f" and {len(names) - 3} more"
    noun = "client"
    if len(names) > 1:
        noun = "clients"
    return f"{noun} {shown}: {failed[names[0]].removeprefix(sign)}"
