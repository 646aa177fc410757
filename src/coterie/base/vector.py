"""Models as vectors: trainable parameters first, float buffers behind them.

A vector is `[parameters d | float buffers b]`. Frozen parameters are not in it, integer counters are not averaged.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from coterie.base.errors import InputError, plain, require
from coterie.base.rng import fork_generators

# A BLAS may choose its way through a product, and so the order of its sums, by where its operands begin. Intel's library promises the
# same bits only for arrays that begin at a multiple of 64 bytes (oneMKL, "Reproducibility Conditions"). A client's rows and models are
# views into memory that others share, so where they begin depends on who the others are. Such a view is copied before a product; a copy
# of one operand costs a small part of the product. On the machine that this was last measured on (torch 2.13 with AVX-512, offsets of 0
# to 8 numbers, 490 shapes of products, norms and sums) no bit differed, so only other machines show what is lost without it.
ALIGNMENT = 64
"""Bytes of a cache line and of the widest vector unit."""


def fits_alignment(values: Tensor) -> bool:
    """Return True if a tensor begins at a multiple of `ALIGNMENT` bytes."""
    return values.data_ptr() % ALIGNMENT == 0


def align(values: Tensor) -> Tensor:
    """`values` with the same numbers, contiguous and aligned; a copy unless they are already."""
    values = values.contiguous()
    if fits_alignment(values):
        return values
    return values.clone()


LASTING = 1 << 20
"""Bytes from which a copy that lasts gets pages of its own."""
WIDE = 1 << 24
"""Bytes from which to train a model takes so long that the heap may give its free pages back after each client."""


def lasting_copy(value: Tensor) -> Tensor:
    """A copy of a tensor for many rounds.

    A large one has pages of its own, which the system gets back once nobody needs it: in the heap, the short-lived vectors of training
    around it would leave holes that no vector of the same size fits into.
    """
    size = value.numel() * value.element_size()
    if value.device.type == "cpu" and size >= LASTING:
        with contextlib.suppress(OSError):
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            copy = torch.frombuffer(pages, dtype=value.dtype).view(value.shape)
            return copy.copy_(value)
    return value.clone()


def trim_heap() -> None:
    """Give free pages of the heap back to the system, where the C library can: it would keep those of large vectors that are gone."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)
FROZEN = "frozen_statistics"
"""The attribute of a module whose statistics are frozen: copies have it, too."""


@dataclass(frozen=True)
class Layout:
    """The places of a model's tensors in its vector.

    Attributes:
        parameters: name and shape of each trainable parameter, in order.
        buffers: name and shape of each float buffer, in order, without those with Inf (masks) and those of frozen batch norm.
        dtype: type of the numbers of the vector.
        norms: name of each module that normalises, and whether it is a batch norm.
        layers: names of the modules that have trainable parameters, in the order of the forward pass where that can be traced, else as
            the model registers them.

    >>> from torch import nn
    >>> import coterie as ct
    >>> layout = ct.Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    >>> layout.dim, layout.size  # d and d + b: batch norm has a mean and a variance of two features
    (12, 16)
    >>> [name for name, _ in layout.parameters], layout.norms
    (['0.weight', '0.bias', '1.weight', '1.bias'], (('1', True),))
    """

    parameters: tuple[tuple[str, torch.Size], ...]
    buffers: tuple[tuple[str, torch.Size], ...]
    dtype: torch.dtype
    norms: tuple[tuple[str, bool], ...] = ()
    layers: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of `model`. Raises `InputError` if nothing is trainable, dtypes are mixed, or a tensor has no values yet."""
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if nn.parameter.is_lazy(value):
                raise InputError(
                    f"{name!r} of the model is not made yet (a lazy layer); call the model once on a row"
                )
            is_dense = not value.is_nested and value.layout == torch.strided
            is_complex = value.requires_grad and value.is_complex()
            if value.is_meta or is_complex or not is_dense:
                raise InputError(
                    f"{name!r} of the model is {value.dtype}, {value.layout}, on {value.device}; train dense real numbers"
                )
        trainable = [(k, v) for k, v in model.named_parameters() if v.requires_grad]
        require(
            bool(trainable),
            "the model has no trainable parameter; unfreeze at least one",
        )
        frozen_ids: set[int] = set()
        for module in model.modules():
            if keeps_statistics(module):
                frozen_ids.update(map(id, module.buffers(recurse=False)))
        floats = [
            (k, v)
            for k, v in model.named_buffers()
            if id(v) not in frozen_ids and _averages(v)
        ]
        dtypes = {v.dtype for _, v in (*trainable, *floats)}
        if len(dtypes) > 1:
            raise InputError(
                f"the model mixes {', '.join(sorted(map(str, dtypes)))}; give all trainable tensors one dtype"
            )
        norms = [
            (k, isinstance(m, _BatchNorm))
            for k, m in model.named_modules()
            if isinstance(m, _NORMS)
        ]
        return cls(
            parameters=tuple((k, v.shape) for k, v in trainable),
            buffers=tuple((k, v.shape) for k, v in floats),
            dtype=dtypes.pop(),
            norms=tuple(norms),
            layers=_order_layers(model, trainable) if model._modules else ("",),
        )

    @cached_property
    def dim(self) -> int:
        """Number d of trainable parameters."""
        return sum(shape.numel() for _, shape in self.parameters)

    @cached_property
    def size(self) -> int:
        """Length d + b of a vector."""
        return self.dim + sum(shape.numel() for _, shape in self.buffers)


def owner_of(name: str) -> str:
    """Return the name of the module that has a parameter or buffer.

    >>> owner_of("body.0.weight"), owner_of("weight")
    ('body.0', '')
    """
    return name.rpartition(".")[0]


def _order_layers(
    model: nn.Module, parameters: list[tuple[str, nn.Parameter]]
) -> tuple[str, ...]:
    """Return the modules that have these parameters in the order in which a forward pass uses them for the last time."""
    registered = dict.fromkeys(owner_of(name) for name, _ in parameters)
    # Modules of other modules that are all sequences run in the order in which they are registered.
    containers = [module for module in model.modules() if list(module.children())]
    if all(type(container) is nn.Sequential for container in containers):
        return tuple(registered)
    order: dict[str, None] = {}
    for module in _trace_modules(model):
        for layer in registered:
            if layer == module or layer.startswith(f"{module}."):
                order.pop(layer, None)
                order[layer] = None
    # A layer that is never used cannot be the last.
    return (*(layer for layer in registered if layer not in order), *order)


def _trace_modules(model: nn.Module) -> list[str]:
    """Return the modules that a forward pass calls or takes parameters of, in its order; none if its way depends on the rows."""
    try:
        # A traced forward may write into its buffers and attributes; parameters are only read.
        traced = deepcopy(model, {id(p): p for p in model.parameters()})
        with warnings.catch_warnings(), fork_generators():
            warnings.simplefilter("ignore")
            graph = fx.Tracer().trace(traced)
    except Exception:  # a forward of a user's own may raise anything without rows
        return []
    modules: list[str] = []
    for node in graph.nodes:
        if node.op == "call_module":
            modules.append(str(node.target))
        elif node.op == "get_attr":
            modules.append(owner_of(str(node.target)))
    return modules


def keeps_statistics(module: nn.Module) -> bool:
    """Return True if `module` is batch norm whose statistics neither move nor travel: they, or all of its parameters, are frozen."""
    if not isinstance(module, nn.modules.batchnorm._BatchNorm):
        return False
    if FROZEN in vars(module):
        return True
    parameters = list(module.parameters(recurse=False))
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def freeze_statistics(module: nn.Module) -> None:
    """Let batch norm keep its statistics, whatever its parameters do, if it has any."""
    setattr(module, FROZEN, True)


def _averages(buffer: Tensor) -> bool:
    """Return True if a buffer is a statistic that can be averaged: a mask with -inf is none, nor are numbers of 8 bits."""
    if not buffer.is_floating_point() or buffer.dtype.itemsize == 1:
        return False
    return bool(torch.isfinite(buffer).all())


def copy_model(model: nn.Module) -> nn.Module:
    """A copy of a model with tensors of its own. Raises `InputError` if it holds what cannot be copied."""
    try:
        return deepcopy(model)
    except Exception as error:
        why = plain(str(error), 150)
        for module in model.modules():
            for value in vars(module).values():
                if isinstance(value, Tensor) and not value.is_leaf:
                    why = (
                        "it holds a computed tensor, as torch.nn.utils.weight_norm and pruning do; compute it in forward, or use "
                        "torch.nn.utils.parametrizations"
                    )
        raise InputError(f"the model cannot be copied: {why}") from error


def flatten(model: nn.Module, layout: Layout) -> Tensor:
    """The vector [d + b] of a model, a copy."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return torch.cat(
        [
            state[k].detach().reshape(-1)
            for k, _ in (*layout.parameters, *layout.buffers)
        ]
    )


def unflatten(x: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The named tensors of a vector [d + b], as views."""
    if x.shape != (layout.size,):
        raise InputError(
            f"a model vector has shape ({layout.size},), got {tuple(x.shape)}"
        )
    named = {}
    low = 0
    for name, shape in (*layout.parameters, *layout.buffers):
        named[name] = x[low : low + shape.numel()].view(shape)
        low += shape.numel()
    return named


def dot(a: Tensor, b: Tensor, dim: int | None = None) -> Tensor:
    """Inner product over the parameters only: the first `dim` entries of the last dimension (all if None)."""
    return (a[..., :dim] * b[..., :dim]).sum(-1)


class Sum:
    """A weighted sum of vectors, added one after the other.

    There is one order of summation, and it has nothing to do with how many vectors come at a time: a sum of vectors that come in
    blocks has the bits of a sum over all of them. Numbers of 16 bits are added up in 32.
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._dtype = torch.float32

    def add(self, weights: Tensor, vectors: Tensor) -> None:
        """Add `weights[k] * vectors[k]` for each of the vectors [n, ...]; weights [n]."""
        if self._total is None:
            self._dtype = vectors.dtype
            self._total = vectors.new_zeros(
                vectors.shape[1:], dtype=torch.promote_types(self._dtype, torch.float32)
            )
        for weight, vector in zip(weights.tolist(), vectors, strict=True):
            self._total.add_(vector, alpha=weight)

    def divide(self, number: float) -> Tensor:
        """The sum divided by a number, [...], in its own memory. Raises `ValueError` if nothing was added."""
        if self._total is None:
            raise ValueError("there is no vector to add")
        return self._total.div_(number).to(self._dtype)


def average(weights: Tensor, vectors: Tensor) -> Tensor:
    """The weighted mean of vectors [n, ...], n > 0: their `Sum`, divided once by the sum of the weights [n].

    >>> average(torch.tensor([1.0, 3.0]), torch.tensor([[1.0, 0], [0, 1]])).tolist()
    [0.25, 0.75]
    """
    total = Sum()
    total.add(weights, vectors)
    return total.divide(float(weights.double().sum()))


def shift(x: Tensor, mean: Tensor, lr: float = 1.0, dim: int | None = None) -> Tensor:
    """A model x [d + b] moved by a mean update [d + b]: parameters by `lr` times it, buffers, which are statistics, by all of it.

    >>> shift(torch.zeros(3), torch.tensor([2.0, 4, 7]), lr=0.5, dim=2).tolist()
    [1.0, 2.0, 7.0]
    """
    return _shift_in_place(x, mean.clone(), lr, dim)


def _shift_in_place(x: Tensor, step: Tensor, lr: float, dim: int | None) -> Tensor:
    """`shift` in place of the mean update: fresh memory for each term took as long as the sum."""
    step[:dim].mul_(lr)
    return step.add_(x)


def move(
    x: Tensor, weights: Tensor, updates: Tensor, lr: float = 1.0, dim: int | None = None
) -> Tensor:
    """A model moved by updates with any weights: parameters by `lr * weights @ updates`, buffers to their weighted mean.

    For methods that hold all updates: a product takes half the time of an `average`, and less where vectors are short.
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
    step = weights.to(updates) @ updates
    if dim is not None and dim < x.shape[-1]:
        # Buffers are averages: their weights have the sum 1, or nothing moves.
        total = float(weights.sum())
        if total != 0:
            step[dim:] /= total
        else:
            step[dim:] = 0
    return _shift_in_place(x, step, lr, dim)


def aliases(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Pairs of names, in a state dict, of one tensor."""
    first_names: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first_name = first_names.setdefault(id(value), name)
        if first_name != name:
            yield first_name, name


def export(
    x: Tensor, model: nn.Module, layout: Layout, *, trained_only: bool = False
) -> Mapping[str, Tensor]:
    """A state dict: the vector's tensors under each of their names, and unless `trained_only` what is frozen or counted."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values_by_id = {
        id(tensors[name]): value for name, value in unflatten(x, layout).items()
    }
    state = model.state_dict(
        keep_vars=True
    )  # the tensors themselves, by which names of one tensor are known
    exported = {
        k: v for k, v in state.items() if id(v) in values_by_id or not trained_only
    }
    return {
        k: values_by_id.get(id(v), v).detach().cpu().contiguous()
        for k, v in exported.items()
    }


def still(model: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """Return what a state dict holds and a vector does not, by name: all that is frozen or counted."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    moving_ids = {
        id(tensors[name]) for name, _ in (*layout.parameters, *layout.buffers)
    }
    return {
        k: v.detach()
        for k, v in model.state_dict(keep_vars=True).items()
        if id(v) not in moving_ids
    }


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The numbers of a tensor, row by row, as bytes: numpy has no bfloat16."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def add_tensors(digest: Any, state: Mapping[str, Any]) -> None:
    """Let a hash know names, shapes, types and numbers of tensors; without those that have no numbers or cannot be trained with."""
    for name, value in sorted(state.items()):
        if not isinstance(value, Tensor) or nn.parameter.is_lazy(value):
            continue
        if value.is_meta or value.is_nested or value.is_quantized:
            continue
        if value.layout == torch.strided:
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(tensor_bytes(value))
