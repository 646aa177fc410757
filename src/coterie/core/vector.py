"""Models as vectors: trainable parameters first, float buffers behind them.

A vector is `[parameters d | float buffers b]`. Frozen parameters are not in it, integer counters are not averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coterie.core.errors import InputError, require

__all__ = ["Layout", "dot", "flatten", "keeps_statistics", "move", "unflatten"]


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a model lie in its vector.

    Attributes:
        parameters: name and shape of each trainable parameter, in order.
        buffers: name and shape of each float buffer, in order, without those with Inf (masks) and those of frozen batch norm.
        dtype: of the vector.
    """

    parameters: tuple[tuple[str, torch.Size], ...]
    buffers: tuple[tuple[str, torch.Size], ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of `model`. Raises `InputError` if nothing is trainable, dtypes are mixed, or a tensor has no values yet."""
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if nn.parameter.is_lazy(value):
                raise InputError(f"{name!r} of the model is not made yet (a lazy layer); call the model once on a row")
            if value.is_meta or (value.requires_grad and (value.is_complex() or value.layout != torch.strided)):
                raise InputError(
                    f"{name!r} of the model is {value.dtype}, {value.layout}, on {value.device}; train dense real numbers"
                )
        trainable = [(k, v) for k, v in model.named_parameters() if v.requires_grad]
        require(bool(trainable), "the model has no trainable parameter; unfreeze at least one")
        still = {id(b) for m in model.modules() if keeps_statistics(m) for b in m.buffers(recurse=False)}
        floats = [(k, v) for k, v in model.named_buffers() if id(v) not in still and _averages(v)]
        dtypes = {v.dtype for _, v in (*trainable, *floats)}
        if len(dtypes) > 1:
            raise InputError(
                f"the model mixes {', '.join(sorted(map(str, dtypes)))}; give all trainable tensors one dtype"
            )
        shapes = [tuple((k, v.shape) for k, v in group) for group in (trainable, floats)]
        return cls(shapes[0], shapes[1], dtypes.pop())

    @cached_property
    def dim(self) -> int:
        """Number d of trainable parameters."""
        return sum(shape.numel() for _, shape in self.parameters)

    @cached_property
    def size(self) -> int:
        """Length d + b of a vector."""
        return self.dim + sum(shape.numel() for _, shape in self.buffers)


def keeps_statistics(module: nn.Module) -> bool:
    """Whether `module` is batch norm with parameters that are all frozen: its statistics neither move nor travel."""
    parameters = list(module.parameters(recurse=False))
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return norm and bool(parameters) and not any(p.requires_grad for p in parameters)


def _averages(buffer: Tensor) -> bool:
    """Whether a buffer is a statistic that can be averaged: a mask with -inf is none."""
    return buffer.is_floating_point() and bool(torch.isfinite(buffer).all())


def flatten(model: nn.Module, layout: Layout) -> Tensor:
    """The vector [d + b] of a model, a copy."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return torch.cat([state[k].detach().reshape(-1) for k, _ in (*layout.parameters, *layout.buffers)])


def unflatten(x: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The named tensors of a vector [d + b], as views."""
    require(x.shape == (layout.size,), f"a model vector has shape ({layout.size},), got {tuple(x.shape)}")
    named = {}
    low = 0
    for name, shape in (*layout.parameters, *layout.buffers):
        named[name] = x[low : low + shape.numel()].view(shape)
        low += shape.numel()
    return named


def dot(a: Tensor, b: Tensor, dim: int | None = None) -> Tensor:
    """Inner product over the parameters only: the first `dim` entries of the last dimension (all if None)."""
    return (a[..., :dim] * b[..., :dim]).sum(-1)


def move(x: Tensor, weights: Tensor, updates: Tensor, lr: float = 1.0, dim: int | None = None) -> Tensor:
    """The only way a model moves: parameters by `lr * weights @ updates`, buffers to their weighted mean.

    Buffers are statistics, so they follow `weights / weights.sum()` without a learning rate; they stay if the weights sum to 0.

    Args:
        x: model [d + b].
        weights: coefficient of each update [n].
        updates: `x_k - x` [n, d + b]; updates are added.
        lr: server learning rate.
        dim: d; None if there are no buffers.

    >>> move(torch.zeros(3), torch.tensor([1.0, 3.0]), torch.tensor([[1.0, 0, 4], [0, 1, 8]]), lr=0.5, dim=2).tolist()
    [0.5, 1.5, 7.0]
    """
    # In place, since fresh memory for each term took as long as the product.
    step = weights.to(updates) @ updates
    step[:dim].mul_(lr)
    if dim is not None and dim < x.shape[-1]:
        total = float(weights.sum())
        step[dim:].copy_(step[dim:] / total if total != 0 else torch.zeros_like(step[dim:]))
    return step.add_(x)


def export(x: Tensor, model: nn.Module, layout: Layout) -> Mapping[str, Tensor]:
    """A full state dict: the vector's tensors under each of their names, and whatever of `model` is frozen or counted."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    moved = {id(own[name]): value for name, value in unflatten(x, layout).items()}
    state = model.state_dict(keep_vars=True)  # the tensors themselves, by which names of one tensor are known
    return {k: moved.get(id(v), v).detach().cpu().contiguous() for k, v in state.items()}
