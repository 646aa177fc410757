"""Which models batched kernels train: multi-layer perceptrons with ReLU, and a model whose output is its parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.base.vector import Layout

__all__ = ["Layer", "recognise"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Layer(NamedTuple):
    """`outputs = inputs @ weight.T + bias`, then ReLU; without inputs (0) the bias is the output."""

    outputs: int
    inputs: int
    bias: bool
    relu: bool


def recognise(model: nn.Module, layout: Layout, inputs: Tensor) -> tuple[Layer, ...] | None:
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
        elif type(module) is nn.Linear and (flat or layers) and not (layers and layers[-1].inputs == 0):
            layers.append(Layer(module.out_features, module.in_features, module.bias is not None, False))
            names += [f"{name}weight", *([f"{name}bias"] if layers[-1].bias else [])]
        elif type(module) is nn.ReLU and layers:
            layers[-1] = layers[-1]._replace(relu=True)
        elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            flat = True
        elif not (type(module) is nn.Identity or (type(module) is nn.Dropout and module.p == 0)):
            return None
    known = names == [k for k, _ in layout.parameters] and not layout.buffers
    good = known and not layers[-1].relu and layout.dtype in (torch.float32, torch.float64)
    return tuple(layers) if good and layers[0].inputs in (0, inputs[0].numel()) else None


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential and not any(getattr(module, hooks) for hooks in _HOOKS):
        for name, child in module.named_children():
            yield from _leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, module
