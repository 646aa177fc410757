"""The pipeline of a reply: at the client filters change it between the task and the wire, and the server undoes what must be undone.

Filters run after the task and before client memory is committed, in the order of `STAGES`. They see the declared fields of a reply, and
of updates and gradients the d parameters alone: float buffers behind them are sent as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Protocol

import torch
from torch import Tensor

from coterie.base.errors import InputError, cut
from coterie.base.rng import Rng
from coterie.base.vector import Layout
from coterie.config.rules import Kind, list_of, one_of
from coterie.contract.memory import MemoryView
from coterie.contract.replies import VECTORS, has_form
from coterie.contract.task import Task
from coterie.contract.wire import Answer, Ask, Block, Context, Packed

STAGES = ("clipping", "noise", "compression", "attack", "masks")
"""The order of filters: attackers change what they would have sent, and a mask hides whatever is sent."""


_FIELDS = one_of("update", "gradient", "gap", "stay", "count")
_KINDS = list_of(_FIELDS, "a tuple of update, gradient, gap, stay or count")


@dataclass(frozen=True)
class Passage:
    """A field of the replies of some clients on its way out.

    Attributes:
        names: names of the n clients.
        field, kind: name of the field and what it is: `update`, `gradient`, `gap` or `count`.
        task: name of the task.
        context: where in the run the ask stands.
        memory: what the clients keep between asks; write it by `leave`.
        position: place of the filter among those of the run, from 0.

    >>> import coterie as ct
    >>> @ct.wire_type
    ... @ct.options
    ... class Jitter(ct.Filter):
    ...     def apply(self, rows, passage: ct.Passage):
    ...         noise = [torch.randn(rows[0].shape, generator=rng.generator()) for rng in passage.rngs()]
    ...         return rows + 0.01 * torch.stack(noise).to(rows)
    >>> ct.fit("fedavg", "heart-disease", rounds=2, filters=[Jitter()])
    <run of FedAvg: 2 rounds, seed 0, one model for all clients>
    """

    names: tuple[str, ...]
    field: str
    kind: str
    task: str
    context: Context
    memory: MemoryView
    position: int

    def rngs(self, purpose: str = "filter") -> list[Rng]:
        """A random stream for each client; it depends neither on where a task is defined nor on who shares the cohort."""
        return streams(self.context, purpose, self.field, self.names)

    def residual(self, like: Tensor) -> Tensor:
        """Return what earlier replies of this field have left out, in the form of `like` [n, ...], or zeros."""
        zeros = torch.zeros_like(like[0])
        residuals = []
        for name in self.names:
            # A client alone, since those of another shape cannot be stacked.
            residual = self.memory.only((name,)).get(self._key, zeros)[0]
            if residual.shape != zeros.shape:
                residual = zeros
            residuals.append(residual)
        return torch.stack(residuals)

    def leave(self, residual: Tensor) -> None:
        """Keep what this reply leaves out, [n, ...], until the next reply of this field."""
        self.memory.put(self._key, residual)

    @property
    def _key(self) -> str:
        task = self.task.replace("/", ".")
        return f"filter {self.position} {task} {self.field} {self.context.stream}"


def streams(
    context: Context, purpose: str, field: str, names: Iterable[str]
) -> list[Rng]:
    """A random stream for each client and field of the replies to an ask."""
    place = (context.seed, context.round, purpose, context.label, field, context.number)
    return [Rng.named(*place, name) for name in names]


class Filter:
    """Changes a reply at the client, between the task and the wire. A filter is a frozen dataclass, registered with `@wire_type`.

    It sees declared fields of a reply, of updates and gradients their d parameters, and never a method. Evaluation is never filtered.

    Attributes:
        stage: when it runs; filters run in the order of `STAGES`.
        kinds: kinds of the fields that it changes: `update`, `gradient`, `gap`, `stay`, `count`.
        lossy: whether the server receives something else than the task replied; methods that need exact uploads refuse it.
        packs: whether updates or gradients are sent in another form (`pack`); one filter of a run at most.

    >>> import coterie as ct
    >>> @ct.wire_type
    ... @ct.options
    ... class Halve(ct.Filter):
    ...     stage = "clipping"
    ...     def apply(self, rows, passage):
    ...         return rows / 2
    >>> local = ct.LocalSGD(lr=0.1, steps=ct.Steps(1), batch_size=None)
    >>> runs = [ct.fit(ct.FedAvg(local), "heart-disease", rounds=1, filters=filters) for filters in ([], [Halve()])]
    >>> bool(torch.allclose(runs[1].x, runs[0].x / 2))
    True
    """

    _kind: ClassVar = Kind("filter", "TopK(0.01)")

    stage: ClassVar[Annotated[str, one_of(*STAGES)]] = "compression"
    kinds: ClassVar[Annotated[tuple[str, ...], _KINDS]] = ("update",)
    lossy: ClassVar[bool] = True
    packs: ClassVar[bool] = False

    def apply(self, rows: Tensor, passage: Passage) -> Tensor:
        """Return what is sent in place of `rows` [n, ...], in the same form; called where the clients are."""
        return rows

    def pack(self, rows: Tensor) -> Mapping[str, Tensor]:
        """The form in which `rows` [n, ..., d] are sent, where filters of all stages have changed them: tensors [n, ...] by name."""
        raise NotImplementedError

    def unpack(self, parts: Mapping[str, Tensor], dim: int) -> Tensor:
        """Undo `pack` at the server: [n, ..., dim]. Whatever it raises for parts of another form is this client's failure."""
        raise NotImplementedError


class ErrorFeedback(Filter):
    """A filter that sends something near to an update, and adds what is missing to the next one.

    >>> import coterie as ct
    >>> @ct.wire_type
    ... @ct.options
    ... class Signs(ct.ErrorFeedback):
    ...     def nearest(self, rows):
    ...         return rows.sign() * rows.abs().mean(-1, keepdim=True)
    >>> ct.fit("fedavg", "heart-disease", rounds=2, filters=[Signs()])
    <run of FedAvg: 2 rounds, seed 0, one model for all clients>
    """

    def nearest(self, rows: Tensor) -> Tensor:
        """Return what is sent in place of `rows` [n, ..., d]; of what is sent it returns the same again."""
        raise NotImplementedError

    def apply(self, rows: Tensor, passage: Passage) -> Tensor:
        """What is sent for `rows` [n, ..., d] and for what was left out before."""
        total = rows + passage.residual(rows)
        sent = self.nearest(total)
        residual = total - sent
        # An update with NaN is refused, and must not spoil the next.
        passage.leave(torch.where(residual.isfinite(), residual, 0.0))
        return sent


class Veil(Protocol):
    """Hides what one row adds to a mean over many, where rows are private."""

    def bound_losses(self, losses: Tensor) -> Tensor:
        """Return the losses of rows as they count; none is NaN, since a mean over such a row would tell that there is one."""
        ...

    def loss(self, mean: float, rows: int, x: Tensor) -> float:
        """Return the mean loss of model x [d + b] over so many rows as it may be told."""
        ...

    def evaluation(
        self, values: Mapping[str, float], labels: Tensor, x: Tensor
    ) -> dict[str, float]:
        """Return `loss` and metrics of model x [d + b] on rows with these labels as they may be told; NaN where they may not."""
        ...


def in_order(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """Filters in the order of their stages."""
    return tuple(sorted(filters, key=lambda filter_: STAGES.index(filter_.stage)))


def apply_filters(
    block: Block, ask: Ask, task: Task[Any], layout: Layout, memory: MemoryView
) -> Block:
    """The replies of some clients as they are sent; fields of a wrong form stay as they are, and are refused by the server."""
    values = dict(block.values)
    for field, kind in task.kinds.items():
        sent = task.layout_of(field, ask.arguments, layout)
        if kind != "other" and has_form(values[field], kind, len(block.names), sent):
            dim: int | None = None
            if kind in VECTORS:
                dim = sent.dim
            values[field] = _filter_field(values[field], field, kind, ask, dim, memory)
    return Block(block.names, values)


def _filter_field(
    value: Tensor, field: str, kind: str, ask: Ask, dim: int | None, memory: MemoryView
) -> Tensor | Packed:
    """What filters send for a field [n, ...]; of a model vector they see the first `dim` entries, and buffers pass as they are."""
    rows = value
    if dim is not None:
        rows = value[..., :dim]
    changed = False
    packing: Filter | None = None
    for position, reply_filter in enumerate(ask.filters):
        if kind not in reply_filter.kinds:
            continue
        passage = Passage(
            ask.names, field, kind, ask.task, ask.context, memory, position
        )
        called = f"{type(reply_filter).__name__}.apply"
        rows = check_shape(reply_filter.apply(rows, passage), rows.shape, called)
        changed = True
        if reply_filter.packs:
            packing = reply_filter
    if not changed:
        return value
    buffers = rows[..., :0]
    if dim is not None:
        buffers = value[..., dim:]
    if packing is not None:
        return Packed({**packing.pack(rows), _BUFFERS: buffers.contiguous()})
    if dim is None:
        return rows
    return torch.cat([rows, buffers], dim=-1)


def check_shape(sent: Any, shape: Sequence[int], called: str) -> Tensor:
    """Return what the hook `called` sends in place of rows of a shape. Raises `InputError` for another shape."""
    if isinstance(sent, Tensor) and sent.shape == tuple(shape):
        return sent
    form = cut(sent)
    if isinstance(sent, Tensor):
        form = f"one of shape {list(sent.shape)}"
    raise InputError(f"{called} {WRONG_SHAPE} {list(shape)}; got {form}")


WRONG_SHAPE = "must return a tensor of shape"
_BUFFERS = "buffers"


def unpack_answer(answer: Answer, ask: Ask, task: Task[Any], layout: Layout) -> Answer:
    """The answer with every field in its own form; whose reply cannot be unpacked has failed."""
    values = [value for block in answer.blocks for value in block.values.values()]
    if not any(isinstance(value, Packed) for value in values):
        return answer
    packing = next((f for f in ask.filters if f.packs), None)
    unpacked: list[Block] = []
    failed = dict(answer.failed)
    for block in answer.blocks:
        fields: dict[str, Any] = {}
        try:
            for key, value in block.values.items():
                sent = task.layout_of(key, ask.arguments, layout)
                kind = task.kinds.get(key, "")
                fields[key] = _unpack_field(value, packing, kind, sent)
        except Exception as error:  # it may come from elsewhere
            why = f"its reply cannot be unpacked ({type(error).__name__}: {error})"
            failed.update(dict.fromkeys(block.names, why))
            continue
        unpacked.append(Block(block.names, fields))
    return replace(answer, blocks=tuple(unpacked), failed=failed)


def _unpack_field(value: Any, packing: Filter | None, kind: str, layout: Layout) -> Any:
    if not isinstance(value, Packed):
        return value
    if packing is None or kind not in packing.kinds:
        raise InputError("it is packed, although no filter packs it")
    # A filter packs the parameters [n, d]; the buffers [n, b] travel beside them as they are.
    packed = dict(value.parts)
    buffers = packed.pop(_BUFFERS)
    parameters = packing.unpack(packed, layout.dim)
    return torch.cat([parameters, buffers], dim=-1)
