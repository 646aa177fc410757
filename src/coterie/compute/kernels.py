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
    is_flat = inputs.ndim == 2
    for name, module in _leaves(model, ""):
        if _has_hooks(module) or "forward" in vars(module):
            return None
        constant = getattr(type(module), "constant_output", None)
        follows_constant = bool(layers) and layers[-1].inputs == 0
        if constant is not None and not layers:
            width = getattr(module, constant).numel()
            layers.append(Layer(width, 0, bias=True, relu=False))
            names.append(name + constant)
        # A linear layer on images would act on their last dimension alone.
        elif type(module) is nn.Linear and (is_flat or layers) and not follows_constant:
            has_bias = module.bias is not None
            layers.append(
                Layer(module.out_features, module.in_features, has_bias, relu=False)
            )
            names.append(f"{name}weight")
            if has_bias:
                names.append(f"{name}bias")
        elif type(module) is nn.ReLU and layers:
            layers[-1] = layers[-1]._replace(relu=True)
        elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (
            1,
            -1,
        ):
            is_flat = True
        elif not _does_nothing(module):
            return None

    # A frozen parameter is not in the model vector, and a shared one only once: such models are left to autograd.
    if names != [name for name, _ in layout.parameters] or layout.buffers:
        return None
    if layers[-1].relu or layout.dtype not in (torch.float32, torch.float64):
        return None
    if layers[0].inputs not in (0, inputs[0].numel()):
        return None
    return tuple(layers)


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules that are no `nn.Sequential`, in order, with the beginning of their parameters' names."""
    if type(module) is nn.Sequential and not _has_hooks(module):
        for name, child in module.named_children():
            yield from _leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, module


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, hooks) for hooks in _HOOKS)


def _does_nothing(module: nn.Module) -> bool:
    if type(module) is nn.Dropout:
        return module.p == 0
    return type(module) is nn.Identity


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


# With `grad_input` the slope is written in place; `torch.nn.functional` has no such form.
_relu_backward = torch.ops.aten.threshold_backward.grad_input


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
        self._least = 1
        if device.type != "cpu":
            # A GPU's library may choose its product by the number of slices, so there all chunks have the same width.
            self._least = min(_WIDTH, self._most)
        if any(1 in (layer.outputs, layer.inputs) for layer in layers):
            self._least = max(2, self._least)

        # [outputs, inputs] of weights and [1, outputs] of biases, in the order of the model vector.
        self._shapes: list[tuple[int, int]] = []
        for layer in layers:
            if layer.inputs:
                self._shapes.append((layer.outputs, layer.inputs))
            if layer.bias:
                self._shapes.append((1, layer.outputs))
        self._sizes = [rows * columns for rows, columns in self._shapes]
        self._stacks: list[Tensor] = []
        self._room: list[Tensor] = []
        self._room_shape = (0, 0)  # (clients, rows of a batch) that `_room` is for

    def width(self, batch: int) -> int:
        """Clients of a chunk with batches of this size."""
        if self.device.type != "cpu":
            return self._least
        widths = self.layers[0].inputs + sum(layer.outputs for layer in self.layers)
        client_bytes = self._itemsize * (self.layout.dim + batch * widths)
        return min(
            256,
            max(self._least, self._most),
            max(_WIDTH, _CACHE // client_bytes),
        )

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
        # Where a chunk has fewer clients than a product needs, they fill the slots once more; only the first are written.
        slots = max(len(chunk.members), self._least)
        members = torch.from_numpy(np.resize(chunk.members, slots)).to(self.device)
        start = [self._align(v) for v in self._split(_select(x, members))]
        shift = []
        if rule.shift is not None:
            shift = self._split(_select(rule.shift, members))
        if isinstance(rule.shrink, Tensor):
            rule = rule._replace(
                shrink=rule.shrink.to(self.device)[members, None, None]
            )
        # `models` is where the clients train. It is kept from call to call, since fresh pages cost as much as a small step.
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
        # Clients with more steps come first, so those that still train are the first `alive[step]` slots.
        alive = [*np.count_nonzero(chunk.counts, axis=1).tolist(), 0]
        active, sides = 0, []
        for step, batch in enumerate(steps):
            width = batch[1].shape[0]
            # The first step leads from `start` to `models`, all others from `models` to `models`.
            if step < 2 or width < active:
                active = width
                moving = [v[:active] for v in models]
                begin = moving
                if step == 0:
                    begin = [_expand(v, active) for v in start]
                added = [_expand(v, active) for v in shift]
                sides = self._sides(begin, moving, [v[:active] for v in space], added)
            self._step(sides, *batch, rule)
            if alive[step + 1] < alive[step]:
                ended = range(alive[step + 1], alive[step])
                self._write(ended, chunk, models, start, result, relative)

    def _write(
        self,
        ended: range,
        chunk: Chunk,
        models: list[Tensor],
        start: list[Tensor],
        result: Tensor,
        relative: bool,
    ) -> None:
        """Write the models (if `relative` less `start`) of slots that have made their last step into rows of `result`."""
        members = chunk.members[ended.start : ended.stop]
        # Neighbours are written at once, others one by one: by an index it takes many times as long.
        size = 1
        if bool((np.diff(members) == 1).all()):
            size = len(ended)
        places = self._split(result)
        for place, model, begun in zip(places, models, start, strict=True):
            for first, member in zip(ended[::size], members[::size], strict=True):
                rows = place[member:][:size]
                trained = model[first : first + size]
                if not relative:
                    rows.copy_(trained)
                elif len(begun) == 1:
                    torch.sub(trained, begun, out=rows)
                else:
                    torch.sub(trained, begun[first : first + size], out=rows)

    def _train_once(
        self, start: list[Tensor], grads: list[Tensor], space: list[Tensor], batch: Feed, rule: StepRule,
        shift: list[Tensor], chunk: Chunk, result: Tensor, relative: bool,
    ) -> None:  # fmt: skip
        """One step, from `start` straight into `result`: a product that adds to `start` would copy it first, and be copied itself."""
        expanded = [v.expand(len(grads[0]), -1, -1) for v in start]
        self._step(self._sides(expanded, grads, space, []), *batch, GRADIENT)
        old_share = rule.shrink - float(relative)  # share of `start` in what is written
        # What is written is base - lr * gradient, with base = old_share * start + shift; nothing is added where it is 0.
        base: list[Tensor] = []
        if isinstance(old_share, Tensor):
            base = [v * old_share.to(v.dtype) for v in start]
        elif old_share == 1:
            base = start
        elif old_share != 0:
            base = [v * old_share for v in start]
        if not base:
            base = shift
        elif shift:
            base = [v + added for v, added in zip(base, shift, strict=True)]

        # Clients with a single step stay in their order: they are consecutive if first and last are as far apart as that.
        lowest, highest = chunk.members[0], chunk.members[-1]
        consecutive = highest - lowest == len(chunk.members) - 1
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
        self,
        x: Tensor,
        inputs: Tensor,
        labels: Tensor,
        out: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Gradient [d] of the mean loss of a batch at x [d], times weights [rows]; in `out` [d] if that is given and aligned."""
        # A constant under squared error has its gradient in closed form: the distance to the mean.
        is_constant = self.layers[0].inputs == 0 and self.kind == "regression"
        if is_constant and weights is None:
            return (x - self._labels(labels).mean(0)).mul_(self._factor)
        x = align(x)
        gradient = out
        if gradient is None or not fits_alignment(gradient):
            gradient = torch.empty_like(x)
        rows = self._align(inputs.flatten(1)[None])
        scale = torch.full(
            (1, len(labels), 1),
            self._factor / len(labels),
            dtype=x.dtype,
            device=x.device,
        )
        if weights is not None:
            scale = scale * weights.to(scale)[:, None]
        sides = self._sides(
            self._split(x[None]),
            self._split(gradient[None]),
            self._space(1, len(labels)),
            [],
        )
        self._step(sides, rows, self._labels(labels)[None], scale, GRADIENT)
        return gradient

    def outputs(self, x: Tensor, chunk: Chunk, inputs: Tensor) -> Tensor:
        """Outputs [c, B, out] of the models of a chunk, of x [n, d], for the inputs of its first step; nothing is trained."""
        slots = max(len(chunk.members), self._least)
        members = torch.from_numpy(np.resize(chunk.members, slots)).to(self.device)
        own = self._split(_select(x, members))
        models = [self._align(v).expand(slots, -1, -1) for v in own]
        batch = chunk.rows.shape[2]
        sides = self._sides(models, models, self._space(slots, batch), [])
        outputs = self._forward(sides, inputs)
        return outputs[: len(chunk.members)]

    def probes(self) -> Iterator[Batched]:
        """Yield a kernel for each layer in its true width, so that `steady` holds the operands of one layer at a time."""
        for number, layer in enumerate(self.layers):
            tried = [layer._replace(relu=False)]
            if number > 0:
                # Only a layer behind another makes the product for the slope at its inputs.
                tried.insert(0, Layer(layer.inputs, _WIDTH, bias=True, relu=True))
            kind: Kind = "regression"
            if number == len(self.layers) - 1:
                kind = self.kind
            dim = sum((each.inputs + each.bias) * each.outputs for each in tried)
            layout = Layout((("layer", torch.Size([dim])),), (), self.layout.dtype)
            probe = Batched(tuple(tried), kind, layout, self.device)
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

        def sample(rows: int, columns: int) -> Tensor:
            values = torch.rand(rows, columns, generator=draw, dtype=self.layout.dtype)
            return values.sub_(0.4).to(self.device)

        x = sample(1, self.layout.dim)
        inputs = sample(224, max(1, self.layers[0].inputs))  # 7 clients of 32 rows
        labels = sample(224, self._outputs)
        if self.kind == "classes":
            labels = (labels[:, 0] > 0).long()

        def train(clients: range, batch: int, steps: int, separate: bool) -> Tensor:
            rows = [[np.arange(k * batch, (k + 1) * batch)] * steps for k in clients]
            start = x
            if separate:
                start = x.expand(len(clients), -1)
            models = torch.empty(
                len(clients), self.layout.dim, dtype=x.dtype, device=self.device
            )
            width = self._least
            if self.device.type == "cpu":
                width = len(clients)
            for chunk in chunks(
                rows, lambda size: width, lambda client, numbers: numbers
            ):
                fed = self.feed(
                    chunk, RowSource(inputs.__getitem__, labels.__getitem__)
                )
                self.train(start, chunk, fed, StepRule(0.1), models)
            return models

        client_count = 3
        if size <= _CACHE:
            client_count = 7
        # (rows of a batch, steps, whether each client begins at a model of its own)
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
        if self.kind == "classes":
            return 1.0
        # Losses of several outputs are means over them; of a square, the derivative has the factor 2.
        if self.kind == "regression":
            return 2 / self._outputs
        return 1 / self._outputs

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
        """Room for the outputs of every layer, each [slots, batch, out], then ones [slots, 1, batch]; kept for the next call."""
        if self._room_shape != (slots, batch):
            outputs = [
                self._slices(slots, batch, layer.outputs) for layer in self.layers
            ]
            # The gradient of a bias is the sum of slopes over rows: ones times slopes, a product as for weights.
            ones = self._slices(slots, 1, batch).fill_(1)
            self._room = [*outputs, ones]
            self._room_shape = (slots, batch)
        return self._room

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
        # A few rows that no product sees make every client's rows end where the next one's may begin. Where that takes
        # more than an eighth of a batch, `_align` copies the rows instead.
        row_bytes = self.layers[0].inputs * self._itemsize
        spare = -batch % (_ALIGN // math.gcd(_ALIGN, row_bytes))
        if 8 * spare > batch:
            spare = 0
        if spare:
            rows = np.concatenate([rows, rows[..., :spare]], axis=2)
        # [T, c, B, 1]: a row that counts has the weight factor / rows of its batch, a row that fills up has 0.
        is_counted = np.arange(batch)[:, None] < counts
        weights = is_counted * (self._factor / np.maximum(counts, 1))
        # With a least width above 2 all steps have the width of the chunk, else only as many as still train.
        widths = [slots] * total
        if self._least <= 2:
            alive = np.count_nonzero(chunk.counts, axis=1)
            widths = np.maximum(self._least, alive).tolist()
        numbers = torch.from_numpy(rows).to(self.device)
        scales = torch.from_numpy(weights).to(self.device, self.layout.dtype).unbind()

        def by_step(values: Tensor, low: int, high: int) -> tuple[Tensor, ...]:
            shaped = values.unflatten(0, (high - low, slots, batch + spare))
            return tuple(shaped[:, :, :batch].unbind())

        def labels(low: int, high: int) -> tuple[Tensor, ...]:
            piece_labels = self._labels(source.labels(numbers[low:high].reshape(-1)))
            return by_step(piece_labels, low, high)

        if source.weights is not None:
            own = source.weights(numbers.reshape(-1))[:, None]
            each_step = by_step(own.to(self.layout.dtype), 0, total)
            scales = tuple(
                scale * own_weights
                for scale, own_weights in zip(scales, each_step, strict=True)
            )

        # Inputs come for some steps at a time; labels too, unless they are small.
        label_width = 1
        if self.kind != "classes":
            label_width = self._outputs
        all_labels: tuple[Tensor, ...] = ()
        if label_width == 1:
            all_labels = labels(0, total)
        row_width = max(1, self.layers[0].inputs, label_width)
        low = 0
        while low < total:
            w = widths[low]
            high = min(total, low + max(1, _BLOCK // (batch * w * row_width)))
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
                # Each view costs as much as a small product: none is made while all slots still train.
                if n < w:
                    step_inputs = step_inputs[:n]
                if n < slots:
                    label, scale = label[:n], scale[:n]
                yield step_inputs, label, scale
            low = high

    def _sides(
        self,
        old: list[Tensor],
        new: list[Tensor],
        space: list[Tensor],
        shift: list[Tensor],
    ) -> list[_Side]:
        """The views that steps from `old` to `new` (which may be the same memory) work on, layer by layer."""
        *outputs, ones = space
        shifts: list[Tensor | None] = [*shift] or [None] * len(old)
        parameters = zip(old, new, shifts, strict=True)
        sides: list[_Side] = []
        for layer, out in zip(self.layers, outputs, strict=True):
            weight = turned = bias = slopes_in = layer_inputs = None
            moves: list[_Move] = []
            if sides:
                layer_inputs = sides[-1].out
                # Of torch's own a slice would begin where the one before it ends, and the next products round by that.
                slopes_in = self._slices(len(out), out.shape[1], layer.inputs)
            if layer.inputs:
                weight, moved, added = next(parameters)
                turned = weight.transpose(1, 2)
                slopes = out.transpose(1, 2)
                moves.append(_Move(weight, moved, slopes, layer_inputs, added))
            if layer.bias:
                bias, moved, added = next(parameters)
                moves.append(_Move(bias, moved, ones, out, added))
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
            if relu:
                out.relu_()
            activations = out
        return activations

    def _step(
        self,
        sides: list[_Side],
        inputs: Tensor,
        labels: Tensor,
        scale: Tensor,
        rule: StepRule,
    ) -> None:
        """One step of `rule`, of all clients of the sides: forward, then backward from the last layer to the first."""
        self._slope(self._forward(sides, inputs), labels, scale)
        keep, pace = rule.shrink, -rule.lr
        for number in range(len(sides) - 1, -1, -1):
            _, weight, _, _, slope, slopes_in, moves = sides[number]
            if slopes_in is not None and weight is not None:  # before the weight moves
                torch.bmm(slope, weight, out=slopes_in)
            for old, new, lhs, rhs, shift in moves:
                if rhs is None:
                    rhs = inputs
                if isinstance(keep, Tensor):  # the same bits as a factor of the product
                    kept = torch.mul(old, keep[: len(new)], out=new)
                    torch.baddbmm(kept, lhs, rhs, alpha=pace, out=new)
                else:
                    torch.baddbmm(old, lhs, rhs, beta=keep, alpha=pace, out=new)
                if shift is not None:
                    new.add_(shift)
            # The slope at the layer below takes the place of that layer's outputs, which are not needed any more.
            if slopes_in is not None:
                lower = sides[number - 1]
                if lower.relu:
                    _relu_backward(slopes_in, lower.out, 0, grad_input=lower.out)
                else:
                    lower.out.copy_(slopes_in)

    def _slope(self, outputs: Tensor, labels: Tensor, scale: Tensor) -> None:
        """Derivative of the loss with respect to the outputs, in their place."""
        if self.columns > 1:
            outputs = outputs.unflatten(2, (self.columns, self._outputs))
            labels, scale = labels[:, :, None], scale[:, :, None]
        if self.kind == "classes":
            # The slope of cross-entropy is softmax(outputs) less 1 at the label, times the weight of the row. By hand:
            # torch.softmax takes three times as long for rows as short as these.
            outputs.sub_(outputs.amax(-1, keepdim=True)).exp_()
            outputs.mul_(scale / outputs.sum(-1, keepdim=True))
            each = (*outputs.shape[:-1], 1)
            outputs.scatter_add_(-1, labels.expand(each), -scale.expand(each))
            return
        # Cross-entropy of a logit and squared error have the same slope: prediction less label.
        if self.kind == "binary":
            outputs.sigmoid_()
        outputs.sub_(labels).mul_(scale)


class _SumSide(NamedTuple):
    """Tensors of one layer that a sum of clipped gradients needs, made once.

    Attributes:
        layer: Its form.
        rows: What it takes [B, in].
        weight: [out, in]; None without inputs.
        turned: The same as [in, out].
        bias: [out]; None without one.
        out: Room for outputs [B, out].
        slope: Room for the slope of each row's loss there [B, out]; for the last layer the same room.
        turned_slope: The same as [out, B].
        of_weight: Where the gradient of the weight goes [out, in].
        of_bias: Where that of the bias goes [out].
    """

    layer: Layer
    rows: Tensor
    weight: Tensor | None
    turned: Tensor | None
    bias: Tensor | None
    out: Tensor
    slope: Tensor
    turned_slope: Tensor
    of_weight: Tensor | None
    of_bias: Tensor | None


class ClippedSums:
    """Sums over the same rows of the gradients of their losses, each of a length of `bound` at most, at one model after another.

    No gradient of one row is made: its squared norm is the sum over layers of (|input|^2 + 1) |slope|^2, where the slope is that of
    the loss at the layer's output (I. Goodfellow, "Efficient Per-Example Gradient Computations", 2015). A row without finite
    gradient counts 0, where there is a bound.

    Of few rows a sum costs what its calls cost: what does not depend on the model is computed once, and all sums use the same room.

    Args:
        kernel: The model and its loss.
        x: The model [d]; its numbers may change between sums.
        inputs: Of the rows.
        labels: Of the rows.
        bound: > 0; None: no limit.
        row_weights: By which gradients are multiplied before [rows]; None: 1.
    """

    def __init__(
        self,
        kernel: Batched,
        x: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bound: float | None,
        row_weights: Tensor | None,
    ) -> None:
        self._kernel, self._bound = kernel, bound
        # Of a constant model inputs may be of any type: none of them is multiplied.
        rows = inputs.flatten(1).to(x.dtype)
        first = kernel.layers[0]
        squares = rows.new_zeros(len(rows))
        if first.inputs:
            squares = rows.square().sum(1)
        scale = rows.new_full((1, len(rows), 1), kernel._factor)
        if row_weights is not None:
            scale = scale * row_weights.to(scale)[:, None]
        if bound is not None:
            # A share of 0 does not make 0 of a number that is not finite.
            is_finite = squares.isfinite()[:, None]
            rows = torch.where(is_finite, rows, 0.0)
            scale = torch.where(is_finite, scale, 0.0)
            squares = torch.where(is_finite[:, 0], squares, 0.0)
        self._labels, self._scale = kernel._labels(labels)[None], scale
        # The input of a bias is 1.
        self._long_squares = squares + first.bias

        self._total = torch.empty_like(x)
        self._sides = self._make_sides(x, rows)

    def _make_sides(self, x: Tensor, rows: Tensor) -> list[_SumSide]:
        parameters = iter(self._kernel._split(x[None]))
        gradients = iter(self._kernel._split(self._total[None]))
        sides: list[_SumSide] = []
        for layer in self._kernel.layers:
            weight = turned = bias = of_weight = of_bias = None
            if layer.inputs:
                weight, of_weight = next(parameters)[0], next(gradients)[0]
                turned = weight.T
            if layer.bias:
                bias, of_bias = next(parameters)[0, 0], next(gradients)[0, 0]
            out = rows.new_empty(len(rows), layer.outputs)
            slope = out
            # The outputs of the last layer are of no use any more.
            if len(sides) < len(self._kernel.layers) - 1:
                slope = torch.empty_like(out)
            side = _SumSide(
                layer,
                rows,
                weight,
                turned,
                bias,
                out,
                slope,
                slope.T,
                of_weight,
                of_bias,
            )
            sides.append(side)
            rows = out
        return sides

    def at_model(self) -> Tensor:
        """Return the sum [d] at the model as it is now; the next call writes over it."""
        self._find_slopes()
        if self._bound is not None:
            self._shorten_slopes(self._bound)
        for side in self._sides:
            if side.of_weight is not None:
                torch.mm(side.turned_slope, side.rows, out=side.of_weight)
            if side.of_bias is not None:
                torch.sum(side.slope, 0, out=side.of_bias)
        return self._total

    def _find_slopes(self) -> None:
        """The slope of each row's loss at the outputs of every layer."""
        for side in self._sides:
            if side.turned is None:
                side.out.copy_(cast("Tensor", side.bias))
            elif side.bias is None:
                torch.mm(side.rows, side.turned, out=side.out)
            else:
                torch.addmm(side.bias, side.rows, side.turned, out=side.out)
            if side.layer.relu:
                side.out.relu_()
        self._kernel._slope(self._sides[-1].slope[None], self._labels, self._scale)
        for number in range(len(self._sides) - 1, 0, -1):
            lower, upper = self._sides[number - 1 : number + 1]
            torch.mm(upper.slope, cast("Tensor", upper.weight), out=lower.slope)
            if lower.layer.relu:
                _relu_backward(lower.slope, lower.out, 0, grad_input=lower.slope)

    def _shorten_slopes(self, bound: float) -> None:
        """Scale the slopes of each row, so that its gradient has a length of `bound` at most; to 0 where that is not finite."""
        first, *others = self._sides
        squares = first.slope.square().sum(1).mul_(self._long_squares)
        for side in others:
            lengths = side.rows.square().sum(1)
            squares += (lengths + side.layer.bias) * side.slope.square().sum(1)
        shares = shares_within(squares.sqrt_(), bound)[:, None]
        for side in self._sides:
            make_finite(side.slope.mul_(shares))
        for side in others:
            make_finite(side.rows)


def shares_within(norms: Tensor, bound: float) -> Tensor:
    """Return by how much vectors of these norms [n] are scaled to a length of `bound` at most; NaN for one that has none."""
    # As `bound / norms` would be, without its detour through Python.
    return norms.clamp(min=bound).reciprocal_().mul_(bound)


def make_finite(values: Tensor) -> Tensor:
    """Put 0 where there is no number."""
    return values.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _select(vectors: Tensor, members: Tensor) -> Tensor:
    """The vectors [c, d] of some clients, of [n, d]; one that all share stays [1, d]."""
    if len(vectors) == 1:
        return vectors
    return vectors.index_select(0, members)


def _expand(values: Tensor, count: int) -> Tensor:
    """A view of the first `count` of [c, ...]; one that all clients share is repeated."""
    if len(values) == 1:
        return values.expand(count, -1, -1)
    return values[:count]
