"""Linear models that train from several starts by the same batches: columns of one wide model.

A step of one linear model reads a batch to multiply it by a few columns, which takes little longer with many. So `COLUMNS` models are
one model of as many times the outputs, and `compute/kernels.py` trains it; its loss tells the models apart (`Batched.columns`).

A model's bits must not depend on how many share a call, nor on its place among them: there are always `COLUMNS`, of which some may be
repeats, and inputs are filled up to a multiple of `_FILLED` columns of zeros. `Columns.of` looks whether it holds on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.base.vector import Layout
from coterie.compute.kernels import Batched, Layer, StepRule
from coterie.compute.segments import RowSource, chunks

COLUMNS = 16
"""Models side by side: 16 numbers are the widest vector register, and twice as many took as long per model."""
_FILLED = 16
_STEADY: dict[tuple[object, ...], bool] = {}
"""Answers of `Columns.is_steady` by what decides them."""


class Columns:
    """A wide kernel for models of d numbers that one linear layer knows.

    Attributes:
        kernel: trains the wide model.
        dim: its numbers.
    """

    def __init__(self, narrow: Batched) -> None:
        (layer,) = narrow.layers
        self._outputs, self._inputs = layer.outputs, layer.inputs
        self._bias = layer.bias
        self._spare = -layer.inputs % _FILLED
        wide = Layer(
            COLUMNS * layer.outputs, layer.inputs + self._spare, layer.bias, False
        )
        self.dim = wide.outputs * (wide.inputs + wide.bias)
        layout = Layout((("columns", torch.Size([self.dim])),), (), narrow.layout.dtype)
        self.kernel = Batched((wide,), narrow.kind, layout, narrow.device, COLUMNS)

    @classmethod
    def of(cls, narrow: Batched | None) -> Columns | None:
        """The columns of a kernel; None where its model is not one linear layer, or bits depend on a model's place on this machine."""
        if narrow is None or narrow.device.type != "cpu":
            return None
        if len(narrow.layers) > 1 or not narrow.layers[0].inputs:
            return None
        columns = cls(narrow)
        threads = torch.get_num_threads()
        key = (narrow.layers, narrow.kind, narrow.layout.dtype, threads)
        if key not in _STEADY:
            _STEADY[key] = columns.kernel.steady() and columns.is_steady()
        if not _STEADY[key]:
            return None
        return columns

    def pack(self, models: Tensor) -> Tensor:
        """One wide model [1, dim] of at most `COLUMNS` models [k, d]; the last is repeated."""
        places = torch.arange(COLUMNS).clamp(max=len(models) - 1)
        # A model is [weights row by row | biases]; the wide one has the weights of all models, then the biases of all.
        weight_count = self._outputs * self._inputs
        bias_count = self._outputs * self._bias
        weights, biases = models[places].split([weight_count, bias_count], 1)
        rows = weights.reshape(-1, self._inputs)
        # Columns of zeros, up to a multiple of `_FILLED`.
        widened = F.pad(rows, (0, self._spare))
        wide = torch.cat([widened.reshape(-1), biases.reshape(-1)])
        return wide[None]

    def unpack(self, wide: Tensor, count: int) -> Tensor:
        """The first models [n, count, d] of wide ones [n, dim]."""
        n, width = len(wide), self._inputs + self._spare
        bias_count = self._outputs * self._bias  # of one model
        sizes = [COLUMNS * self._outputs * width, COLUMNS * bias_count]
        all_rows, all_biases = wide.split(sizes, 1)
        rows = all_rows.view(n, COLUMNS, self._outputs, width)[:, :count]
        weights = rows[..., : self._inputs].flatten(2)  # without the columns of zeros
        biases = all_biases.view(n, COLUMNS, bias_count)[:, :count]
        return torch.cat([weights, biases], 2)

    def widen(self, inputs: Tensor) -> Tensor:
        """Rows [r, ...] with the columns of zeros."""
        return F.pad(inputs.flatten(1), (0, self._spare))

    def is_steady(self) -> bool:
        """Return True if a model's bits are the same at each place, whatever models are beside it, on this machine."""
        draw = torch.Generator().manual_seed(0)
        dtype, kind = self.kernel.layout.dtype, self.kernel.kind
        size = self._outputs * (self._inputs + self._bias)

        def sample(rows: int, columns: int) -> Tensor:
            return torch.rand(rows, columns, generator=draw, dtype=dtype).sub_(0.4)

        models = sample(COLUMNS, size)
        inputs = sample(64, self._inputs)  # two clients of at most 32 rows
        labels = sample(64, self._outputs)
        if kind == "classes":
            labels = (labels[:, 0] > 0).long()
        source = RowSource(
            lambda numbers: self.widen(inputs[numbers]), labels.__getitem__
        )

        def train(order: Sequence[int], batch: int, steps: int) -> Tensor:
            rows = [[np.arange(k * batch, (k + 1) * batch)] * steps for k in range(2)]
            found = models.new_empty(2, self.dim)
            for chunk in chunks(rows, lambda size: 2, lambda client, numbers: numbers):
                self.kernel.train(
                    self.pack(models[order]),
                    chunk,
                    self.kernel.feed(chunk, source),
                    StepRule(0.1, 0.99),
                    found,
                    relative=True,
                )
            return self.unpack(found, len(order))

        everyone = range(COLUMNS)
        turned = [*everyone[3:], *everyone[:3]]
        backward = [*everyone[::-1]]
        for form in ((5, 2), (9, 1), (32, 2)):  # (rows of a batch, steps)
            whole = train(everyone, *form)
            for order in (turned, backward, [7], [2, 9]):
                if not torch.equal(train(order, *form), whole[:, order]):
                    return False
        return True
