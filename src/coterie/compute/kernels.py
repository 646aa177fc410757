"""Batched kernels: local training of multi-layer perceptrons, several clients in one batched matrix product.

The plain loop over clients spends much of its time in calls: each step of each client goes through modules and autograd. Here the
weights of a chunk of clients lie behind each other [c, out, in], a step is one `baddbmm` per layer and direction with the backward
pass written by hand, and the step of SGD is part of the product that makes the gradient.

Known are linear layers with ReLU between them (`recognise`) under cross-entropy, binary cross-entropy or squared error, with plain
SGD, weight decay, a quadratic penalty and a correction; and a model whose output is its parameter (mean estimation), where a
step is in closed form. Everything else runs on the loop, which gives the same numbers up to rounding.

A client's result must not depend on who shares its chunk, to the last bit. That holds because every client has a slice of the same
shape at a multiple of `_ALIGN` bytes in every operand, padded to its own batch size and nobody else's, and because a product with
a dimension of 1 is never done alone (MKL takes another path for it). `Batched.steady` looks whether it holds on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from coterie.base.loss import Kind
from coterie.base.vector import Layout, align, fits_alignment
from coterie.compute.segments import Chunk, RowSource, chunks
from coterie.contract.exchange import HELD_BYTES

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Layer(NamedTuple):
    """`outputs = inputs @ weight.T + bias`, then ReLU; without inputs (0) the bias is the output."""

    outputs: int
    inputs: int
    bias: bool
    relu: bool


def recognise(
    model: nn.Module, layout: Layout, inputs: Tensor
) -> tuple[Layer, ...] | None:
    """The layers of `model` if it is known here and takes rows like `inputs`; else None."""
    layers: list[Layer] = []
    names: list[str] = []
    flat = inputs.ndim == 2
    for name, module in _leaves(model, ""):
        if any(getattr(module, hooks) for hooks in _HOOKS) or "forward" in vars(module):
            return None
        constant = getattr(type(module), "constant_output", None)
        if constant is not None and not layers:
            layers.append(Layer(getattr(module, constant).numel(), 0, True, False))
            names.append(name + constant)
        elif (
            type(module) is nn.Linear
            and (flat or layers)
            and not (layers and layers[-1].inputs == 0)
        ):
            layers.append(
                Layer(
                    module.out_features,
                    module.in_features,
                    module.bias is not None,
                    False,
                )
            )
            names += [f"{name}weight", *([f"{name}bias"] if layers[-1].bias else [])]
        elif type(module) is nn.ReLU and layers:
            layers[-1] = layers[-1]._replace(relu=True)
        elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (
            1,
            -1,
        ):
            flat = True
        elif not (
            type(module) is nn.Identity
            or (type(module) is nn.Dropout and module.p == 0)
        ):
            return None
    in_order = names == [k for k, _ in layout.parameters] and not layout.buffers
    trainable = (
        in_order
        and not layers[-1].relu
        and layout.dtype in (torch.float32, torch.float64)
    )
    return (
        tuple(layers)
        if trainable and layers[0].inputs in (0, inputs[0].numel())
        else None
    )


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential and not any(
        getattr(module, hooks) for hooks in _HOOKS
    ):
        for name, child in module.named_children():
            yield from _leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, module


_ALIGN = 128
"""Bytes; a multiple of the widest vector registers, so that no slice has a tail which its neighbours could shift."""
_WIDTH = 16
"""Clients of a chunk at most: stacked weights of many more leave the cache (1.8 times the loop's speed fell to 1.3 at 50)."""
_CACHE = 1 << 20
"""Bytes of weights and rows up to which more than `_WIDTH` clients make a chunk."""
_PROBED = 1 << 24
"""Bytes of the largest layer that `Batched.steady` tries."""
_BLOCK = 1 << 18
"""Elements gathered at once for several steps."""


class StepRule(NamedTuple):
    """The step that is taken with the gradient g at y: `y <- (1 - lr (decay + mu)) y + lr (mu anchor - correction) - lr g`.

    Attributes:
        lr: learning rate.
        shrink: 1 - lr (decay + mu), or float64 [n], one for each client.
        shift: lr (mu anchor - correction), [1, d] or [n, d]; None: 0.
    """

    lr: float
    shrink: float | Tensor = 1.0
    shift: Tensor | None = None


GRADIENT = StepRule(-1.0, 0.0)
"""A step that leaves the gradient itself."""


Feed = tuple[Tensor, Tensor, Tensor]
"""The rows of a step: inputs [w, B, I], labels [w, B, ...] and the weight of each row [w, B, 1]."""


_passed = torch.ops.aten.threshold_backward.grad_input


class _Move(NamedTuple):
    """A parameter that a step changes: `new = shrink * old - lr * left @ right + shift`; right None: the inputs of the step."""

    old: Tensor
    new: Tensor
    left: Tensor
    right: Tensor | None
    shift: Tensor | None


class _Side(NamedTuple):
    """Tensors of one layer that a step needs; made once for many steps, since views of small tensors cost as much as small products.

    Attributes:
        relu: whether a ReLU follows.
        weight: where the step begins, [w, out, in]; None without inputs.
        turned: the same as [w, in, out].
        bias: [w, 1, out]; None without one.
        out: room for outputs, then for the slope of the loss there, [w, B, out].
        back: room for the slope at the inputs [w, B, in]; None for the first layer.
        moves: of weight and bias.
    """

    relu: bool
    weight: Tensor | None
    turned: Tensor | None
    bias: Tensor | None
    out: Tensor
    back: Tensor | None
    moves: list[_Move]


class Batched:
    """Training and gradients of one known model under one known loss.

    With several `columns` its outputs are those of as many models behind each other, each with a loss of its own by the same labels.
    """

    def __init__(
        self,
        layers: tuple[Layer, ...],
        kind: Kind,
        layout: Layout,
        device: torch.device,
        columns: int = 1,
    ) -> None:
        self.layers, self.kind, self.layout = layers, kind, layout
        self.columns, self._outputs = columns, layers[-1].outputs // columns
        self.device, self._itemsize = device, layout.dtype.itemsize
        self._most = max(1, HELD_BYTES // (self._itemsize * layout.dim))
        # A GPU's library may choose its product by the number of slices, so there all chunks have the same width.
        self._least = 1 if device.type == "cpu" else min(_WIDTH, self._most)
        if any(1 in (layer.outputs, layer.inputs) for layer in layers):
            self._least = max(2, self._least)
        shapes = [
            (
                (y.outputs, y.inputs) if y.inputs else None,
                (1, y.outputs) if y.bias else None,
            )
            for y in layers
        ]
        # [outputs, inputs] of weights and [1, outputs] of biases, in the order of the model vector.
        self._shapes = [shape for pair in shapes for shape in pair if shape is not None]
        self._sizes = [rows * columns for rows, columns in self._shapes]
        self._stacks: list[Tensor] = []
        self._room: tuple[tuple[int, int], list[Tensor]] | None = None

    def width(self, batch: int) -> int:
        """Clients of a chunk with batches of this size."""
        values = self.layout.dim + batch * (
            self.layers[0].inputs + sum(layer.outputs for layer in self.layers)
        )
        most = min(
            256,
            max(self._least, self._most),
            max(_WIDTH, _CACHE // (self._itemsize * values)),
        )
        return most if self.device.type == "cpu" else self._least

    def train(
        self,
        x: Tensor,
        chunk: Chunk,
        steps: Iterable[Feed],
        rule: StepRule,
        result: Tensor,
        *,
        relative: bool = False,
    ) -> None:
        """Train the clients of a chunk from x [1, d], or [n, d] for each its own; models are written to `result` [n, d].

        The steps are those that `feed` gives. If `relative`, what is written are updates, models minus x.
        """
        slots = max(len(chunk.members), self._least)
        members = torch.from_numpy(np.resize(chunk.members, slots)).to(self.device)
        start = [self._align(v) for v in self._split(_of(x, members))]
        shift = [] if rule.shift is None else self._split(_of(rule.shift, members))
        if isinstance(rule.shrink, Tensor):
            rule = rule._replace(
                shrink=rule.shrink.to(self.device)[members, None, None]
            )
        # Kept from call to call, since fresh pages cost as much as a small step.
        if not self._stacks or len(self._stacks[0]) < slots:
            self._stacks = [self._slices(slots, *shape) for shape in self._shapes]
        models = [stack[:slots] for stack in self._stacks]
        space = self._space(slots, chunk.rows.shape[2])
        if chunk.steps[0] == 1:
            batch = next(iter(steps))
            return self._train_once(
                start, models, space, batch, rule, shift, chunk, result, relative
            )
        if isinstance(rule.shrink, Tensor):
            rule = rule._replace(shrink=rule.shrink.to(self.layout.dtype))
        alive = [*np.count_nonzero(chunk.counts, axis=1).tolist(), 0]
        active, sides = 0, []
        for step, batch in enumerate(steps):
            width = batch[1].shape[0]
            if (
                step < 2 or width < active
            ):  # the second step is the first that begins where it ends
                active = width
                moving = [v[:active] for v in models]
                begin = (
                    moving
                    if step
                    else [
                        v.expand(active, -1, -1) if len(v) == 1 else v[:active]
                        for v in start
                    ]
                )
                added = [
                    v.expand(active, -1, -1) if len(v) == 1 else v[:active]
                    for v in shift
                ]
                sides = self._sides(begin, moving, [v[:active] for v in space], added)
            self._step(sides, *batch, rule)
            if alive[step + 1] < alive[step]:
                low, high = alive[step + 1], alive[step]
                # Neighbours are written at once, others one by one: by an index it takes many times as long.
                size = (
                    high - low
                    if bool((np.diff(chunk.members[low:high]) == 1).all())
                    else 1
                )
                for place, model, begun in zip(
                    self._split(result), models, start, strict=True
                ):
                    for slot in range(low, high, size):
                        rows, trained = (
                            place[chunk.members[slot] :][:size],
                            model[slot : slot + size],
                        )
                        begun_here = (
                            begun if len(begun) == 1 else begun[slot : slot + size]
                        )
                        torch.sub(
                            trained, begun_here, out=rows
                        ) if relative else rows.copy_(trained)

    def _train_once(
        self, start: list[Tensor], grads: list[Tensor], space: list[Tensor], batch: Feed, rule: StepRule,
        shift: list[Tensor], chunk: Chunk, result: Tensor, relative: bool,
    ) -> None:  # fmt: skip
        """One step, from `start` straight into `result`: a product that adds to `start` would copy it first, and be copied itself."""
        expanded = [v.expand(len(grads[0]), -1, -1) for v in start]
        self._step(self._sides(expanded, grads, space, []), *batch, GRADIENT)
        old_share = rule.shrink - float(relative)  # share of `start` in what is written
        if isinstance(old_share, Tensor):
            base = [v * old_share.to(v.dtype) for v in start]
        else:
            base = (
                [v if old_share == 1 else v * old_share for v in start]
                if old_share
                else []
            )
        base = (
            [v + added for v, added in zip(base, shift, strict=True)]
            if base and shift
            else base or shift
        )
        lowest, highest = chunk.members[0], chunk.members[-1]
        consecutive = (
            highest - lowest == len(chunk.members) - 1
        )  # single steps keep the order of clients
        for k, (place, grad) in enumerate(zip(self._split(result), grads, strict=True)):
            if not base and consecutive:
                torch.mul(
                    grad[: len(chunk.members)],
                    -rule.lr,
                    out=place[lowest : highest + 1],
                )
                continue
            for slot, i in enumerate(chunk.members):
                if base:
                    torch.add(
                        base[k][slot % len(base[k])],
                        grad[slot],
                        alpha=-rule.lr,
                        out=place[i],
                    )
                else:
                    torch.mul(grad[slot], -rule.lr, out=place[i])

    def gradient(
        self, x: Tensor, inputs: Tensor, labels: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Gradient [d] of the mean loss of a batch at x [d]; in `out` [d] if that is given and aligned."""
        if (
            not self.layers[0].inputs and self.kind == "regression"
        ):  # in closed form: the distance to the mean
            return (x - self._labels(labels).mean(0)).mul_(self._factor)
        x = align(x)
        gradient = (
            out if out is not None and fits_alignment(out) else torch.empty_like(x)
        )
        rows = self._align(inputs.flatten(1)[None])
        scale = torch.full(
            (1, len(labels), 1),
            self._factor / len(labels),
            dtype=x.dtype,
            device=x.device,
        )
        sides = self._sides(
            self._split(x[None]),
            self._split(gradient[None]),
            self._space(1, len(labels)),
            [],
        )
        self._step(sides, rows, self._labels(labels)[None], scale, GRADIENT)
        return gradient

    def clipped_sum(
        self, x: Tensor, inputs: Tensor, labels: Tensor, bound: float | None
    ) -> Tensor:
        """Sum over rows of the gradients [d] of their losses at x [d], each scaled to a length of `bound` at most (None: as it is).

        No gradient of one row is made: its squared norm is the sum over layers of (|input|^2 + 1) |slope|^2, where the slope is that of
        the loss at the layer's output (I. Goodfellow, "Efficient Per-Example Gradient Computations", 2015). A row without finite
        gradient counts 0.
        """
        activations, weights = self._activations(x, inputs)
        slope = activations.pop()
        scale = slope.new_full((1, len(labels), 1), self._factor)
        self._slope(slope[None], self._labels(labels)[None], scale)
        slopes = [slope]
        for number in range(len(self.layers) - 1, 0, -1):
            slope = slope @ cast("Tensor", weights[number])
            if self.layers[number - 1].relu:
                slope *= activations[number] > 0
            slopes.insert(0, slope)

        if bound is not None:
            squares = torch.zeros_like(scale[0, :, 0])
            for layer, inner, slope in zip(
                self.layers, activations, slopes, strict=True
            ):
                length = inner.square().sum(1) if layer.inputs else 0.0
                squares += (length + layer.bias) * slope.square().sum(1)
            shares = shares_within(squares.sqrt(), bound)
            if not bool(squares.isfinite().all()):
                activations = [finite(inner) for inner in activations]
                slopes = [finite(slope) for slope in slopes]
            slopes = [slope * shares[:, None] for slope in slopes]

        pieces = []
        for layer, inner, slope in zip(self.layers, activations, slopes, strict=True):
            if layer.inputs:
                pieces.append((slope.T @ inner).flatten())
            if layer.bias:
                pieces.append(slope.sum(0))
        return torch.cat(pieces)

    def _activations(
        self, x: Tensor, inputs: Tensor
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The inputs of every layer for rows `inputs`, then the outputs of the last, each [B, width]; and the weights at x [d]."""
        parameters = iter(self._split(x[None]))
        activations, weights = [inputs.flatten(1)], list[Tensor | None]()
        for layer in self.layers:
            weight = next(parameters)[0] if layer.inputs else None
            bias = next(parameters)[0, 0] if layer.bias else None
            if weight is None:
                out = cast("Tensor", bias).repeat(len(inputs), 1)
            elif bias is None:
                out = activations[-1] @ weight.T
            else:
                out = torch.addmm(bias, activations[-1], weight.T)
            activations.append(out.relu_() if layer.relu else out)
            weights.append(weight)
        return activations, weights

    def outputs(self, x: Tensor, chunk: Chunk, source: RowSource) -> Tensor:
        """Outputs [c, B, out] of the models of a chunk, of x [n, d], for the rows of its first step."""
        slots = max(len(chunk.members), self._least)
        members = torch.from_numpy(np.resize(chunk.members, slots)).to(self.device)
        models = [
            self._align(v).expand(slots, -1, -1) for v in self._split(_of(x, members))
        ]
        inputs, _, _ = next(self.feed(chunk, source))
        sides = self._sides(models, models, self._space(slots, chunk.rows.shape[2]), [])
        return self._forward(sides, inputs)[: len(chunk.members)]

    def probes(self) -> Iterator[Batched]:
        """Yield a kernel for each layer in its true width, so that `steady` holds the operands of one layer at a time."""
        for number, layer in enumerate(self.layers):
            narrow = (
                (Layer(layer.inputs, _WIDTH, bias=True, relu=True),) if number else ()
            )
            kind: Kind = self.kind if number == len(self.layers) - 1 else "regression"
            numbers = sum(
                (y.inputs + y.bias) * y.outputs if y.inputs else y.outputs
                for y in (*narrow, layer)
            )
            layout = Layout((("layer", torch.Size([numbers])),), (), self.layout.dtype)
            probe = Batched(
                (*narrow, layer._replace(relu=False)), kind, layout, self.device
            )
            probe._least = self._least
            yield probe

    def steady(self) -> bool:
        """Return True if a client's result is the same bits alone, beside one and beside others, on this machine.

        A layer of more than `_PROBED` bytes is not tried: its weights fill the cache alone, so that company would gain nothing.
        """
        size = self.layout.dim * self._itemsize
        if size > _PROBED:
            return False
        draw = torch.Generator().manual_seed(0)
        x, inputs, labels = (
            torch.rand(*shape, generator=draw, dtype=self.layout.dtype)
            .sub_(0.4)
            .to(self.device)
            for shape in (
                (1, self.layout.dim),
                (224, max(1, self.layers[0].inputs)),
                (224, self._outputs),
            )
        )
        labels = (labels[:, 0] > 0).long() if self.kind == "classes" else labels

        def train(clients: range, batch: int, steps: int, separate: bool) -> Tensor:
            rows = [[np.arange(k * batch, (k + 1) * batch)] * steps for k in clients]
            start = x.expand(len(clients), -1) if separate else x
            models = torch.empty(
                len(clients), self.layout.dim, dtype=x.dtype, device=self.device
            )
            width = len(clients) if self.device.type == "cpu" else self._least
            for chunk in chunks(
                rows, lambda size: width, lambda client, numbers: numbers
            ):
                fed = self.feed(
                    chunk, RowSource(inputs.__getitem__, labels.__getitem__)
                )
                self.train(start, chunk, fed, StepRule(0.1), models)
            return models

        client_count = 7 if size <= _CACHE else 3
        for form in ((5, 2, False), (9, 1, True), (32, 2, True)):
            all_trained = train(range(client_count), *form)
            for group in (
                range(2),
                range(1),
                range(client_count // 2 + 1, client_count),
            ):
                if not torch.equal(
                    all_trained[group.start : group.stop], train(group, *form)
                ):
                    return False
        return True

    @cached_property
    def _factor(self) -> float:
        """Return what the slope of the loss at an output carries beside the weight of its row."""
        return {"classes": 1.0, "regression": 2 / self._outputs}.get(
            self.kind, 1 / self._outputs
        )

    def _slices(self, count: int, rows: int, columns: int) -> Tensor:
        """[count, rows, columns], each slice at a multiple of `_ALIGN` bytes."""
        size = rows * columns
        padded = size + -size % (_ALIGN // self._itemsize)
        flat = torch.empty(count, padded, dtype=self.layout.dtype, device=self.device)
        return flat[:, :size].view(count, rows, columns)

    def _align(self, values: Tensor) -> Tensor:
        """`values` [count, rows, columns], copied unless all slices are aligned."""
        can_align = len(values) == 1 or values[0].numel() * self._itemsize % _ALIGN == 0
        if values.is_contiguous() and can_align and fits_alignment(values):
            return values
        return self._slices(*values.shape).copy_(values)

    def _space(self, slots: int, batch: int) -> list[Tensor]:
        """Room for the outputs of every layer, and a row of ones; of the latest size it is kept."""
        if self._room is None or self._room[0] != (slots, batch):
            room = [self._slices(slots, batch, y.outputs) for y in self.layers]
            self._room = (slots, batch), [*room, self._slices(slots, 1, batch).fill_(1)]
        return self._room[1]

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Vectors [c, d] as weights and biases, as views."""
        pieces = zip(
            vectors.split_with_sizes(self._sizes, dim=1), self._shapes, strict=True
        )
        return [piece.view(-1, *shape) for piece, shape in pieces]

    def _labels(self, labels: Tensor) -> Tensor:
        """As [rows, 1] classes or [rows, outputs] numbers."""
        if self.kind == "classes":
            return labels.long()[:, None]
        return labels.reshape(len(labels), -1).to(self.layout.dtype)

    def feed(self, chunk: Chunk, source: RowSource) -> Iterator[Feed]:
        """Give the steps of a chunk, of the clients that still train."""
        total, count, batch = chunk.rows.shape
        slots = max(count, self._least)
        take = np.arange(slots) % count
        rows, counts = chunk.rows[:, take], chunk.counts[:, take, None, None]
        # A few rows that no product sees make every client's rows end where the next one's may begin, without a copy.
        spare = -batch % (
            _ALIGN // math.gcd(_ALIGN, self.layers[0].inputs * self._itemsize)
        )
        spare = spare if 8 * spare <= batch else 0
        rows = np.concatenate([rows, rows[..., :spare]], axis=2) if spare else rows
        weights = (np.arange(batch)[:, None] < counts) * (
            self._factor / np.maximum(counts, 1)
        )
        # With a least width above 2 all steps have the width of the chunk, else only as many as still train.
        alive = np.count_nonzero(chunk.counts, axis=1)
        widths = (
            [slots] * total
            if self._least > 2
            else np.maximum(self._least, alive).tolist()
        )
        numbers = torch.from_numpy(rows).to(self.device)
        scales = torch.from_numpy(weights).to(self.device, self.layout.dtype).unbind()

        def labels(low: int, high: int) -> tuple[Tensor, ...]:
            piece_labels = self._labels(source.labels(numbers[low:high].reshape(-1)))
            by_step = piece_labels.unflatten(0, (high - low, slots, batch + spare))[
                :, :, :batch
            ]
            return tuple(by_step.unbind())

        # Inputs come for some steps at a time; labels too, unless they are small.
        width = 1 if self.kind == "classes" else self._outputs
        all_labels = labels(0, total) if width == 1 else ()
        low = 0
        while low < total:
            w = widths[low]
            high = min(
                total,
                low
                + max(1, _BLOCK // (batch * w * max(1, self.layers[0].inputs, width))),
            )
            inputs = source.inputs(numbers[low:high, :w].reshape(-1)).reshape(
                (high - low) * w, batch + spare, -1
            )
            inputs = self._align(inputs)[:, :batch].unflatten(0, (-1, w))
            piece_labels = all_labels[low:high] or labels(low, high)
            for n, step_inputs, label, scale in zip(
                widths[low:high],
                inputs.unbind(),
                piece_labels,
                scales[low:high],
                strict=True,
            ):
                yield (
                    step_inputs if n == w else step_inputs[:n],
                    label if n == slots else label[:n],
                    scale if n == slots else scale[:n],
                )
            low = high

    def _sides(
        self,
        old: list[Tensor],
        new: list[Tensor],
        space: list[Tensor],
        shift: list[Tensor],
    ) -> list[_Side]:
        """The views that steps from `old` to `new` (which may be the same memory) work on, layer by layer."""
        sides: list[_Side] = []
        entry = 0
        for layer, out in zip(self.layers, space, strict=False):
            weight, bias, slopes_in, right, moves = None, None, None, None, []
            if sides:
                right = sides[-1].out
                # Of torch's own a slice would begin where the one before it ends, and the next products round by that.
                slopes_in = self._slices(len(out), out.shape[1], layer.inputs)
            if layer.inputs:
                weight = old[entry]
                moves.append(
                    _Move(
                        weight,
                        new[entry],
                        out.transpose(1, 2),
                        right,
                        shift[entry] if shift else None,
                    )
                )
                entry += 1
            if layer.bias:
                bias = old[entry]
                moves.append(
                    _Move(
                        bias,
                        new[entry],
                        space[-1],
                        out,
                        shift[entry] if shift else None,
                    )
                )
                entry += 1
            turned = None if weight is None else weight.transpose(1, 2)
            sides.append(_Side(layer.relu, weight, turned, bias, out, slopes_in, moves))
        return sides

    def _forward(self, sides: list[_Side], inputs: Tensor) -> Tensor:
        """Outputs [w, B, out] of the last layer, in its room."""
        activations = inputs
        for relu, _, turned, bias, out, _, _ in sides:
            if turned is None:
                out.copy_(cast("Tensor", bias))
            elif bias is not None:
                torch.baddbmm(bias, activations, turned, out=out)
            else:
                torch.bmm(activations, turned, out=out)
            activations = out.relu_() if relu else out
        return activations

    def _step(
        self,
        sides: list[_Side],
        inputs: Tensor,
        labels: Tensor,
        scale: Tensor,
        rule: StepRule,
    ) -> None:
        """One step."""
        self._slope(self._forward(sides, inputs), labels, scale)
        keep, pace = rule.shrink, -rule.lr
        for number in range(len(sides) - 1, -1, -1):
            _, weight, _, _, slope, slopes_in, moves = sides[number]
            if slopes_in is not None and weight is not None:  # before the weight moves
                torch.bmm(slope, weight, out=slopes_in)
            for old, new, lhs, rhs, shift in moves:
                factor = inputs if rhs is None else rhs
                if isinstance(keep, Tensor):  # the same bits as a factor of the product
                    torch.baddbmm(
                        torch.mul(old, keep[: len(new)], out=new),
                        lhs,
                        factor,
                        alpha=pace,
                        out=new,
                    )
                else:
                    torch.baddbmm(old, lhs, factor, beta=keep, alpha=pace, out=new)
                if shift is not None:
                    new.add_(shift)
            if (
                slopes_in is not None
            ):  # in place of the outputs, which are not needed any more
                lower = sides[number - 1]
                _passed(
                    slopes_in, lower.out, 0, grad_input=lower.out
                ) if lower.relu else lower.out.copy_(slopes_in)

    def _slope(self, outputs: Tensor, labels: Tensor, scale: Tensor) -> None:
        """Derivative of the loss with respect to the outputs, in their place."""
        if self.columns > 1:
            outputs = outputs.unflatten(2, (self.columns, self._outputs))
            labels, scale = labels[:, :, None], scale[:, :, None]
        if self.kind == "classes":
            # torch.softmax takes three times as long for rows as short as these.
            outputs.sub_(outputs.amax(-1, keepdim=True)).exp_()
            outputs.mul_(scale / outputs.sum(-1, keepdim=True))
            each = (*outputs.shape[:-1], 1)
            outputs.scatter_add_(-1, labels.expand(each), -scale.expand(each))
        else:
            (outputs.sigmoid_() if self.kind == "binary" else outputs).sub_(
                labels
            ).mul_(scale)


def shares_within(norms: Tensor, bound: float) -> Tensor:
    """Return by how much vectors of these norms [n] are scaled to a length of `bound` at most; 0 for one that is not finite."""
    shares = (bound / norms).clamp_(max=1.0)
    return torch.where(norms.isfinite(), shares, 0.0)


def finite(values: Tensor) -> Tensor:
    """Return the values with 0 for those that are none."""
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _of(vectors: Tensor, members: Tensor) -> Tensor:
    return vectors if len(vectors) == 1 else vectors.index_select(0, members)
