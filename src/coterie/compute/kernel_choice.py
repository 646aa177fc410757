"""Which kernel trains a model: one that knows it, on a machine where it gives the same bits in any company."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from coterie.base.clients import Client
from coterie.base.loss import Kind, Loss
from coterie.base.rows import sample
from coterie.base.vector import Layout
from coterie.compute.kernels import Batched, recognise
from coterie.compute.mapped import Mapped

logger = logging.getLogger("coterie")

_STEADY: dict[tuple[object, ...], bool] = {}
"""Answers of `Batched.steady` by what decides them: the runs of an experiment open the same model again and again."""


def known_kernel(
    model: nn.Module,
    layout: Layout,
    loss: Loss,
    example: Client,
    device: torch.device,
) -> Batched | None:
    """Return the batched kernel of a model under a loss, for rows such as those of the example; None if it does not know them."""
    inputs = sample(example.train.inputs)
    known_loss = loss.own is None and loss.form is None
    if isinstance(inputs, dict) or not known_loss:
        return None
    layers = recognise(model, layout, inputs)
    if layers is None:
        return None
    kind: Kind = loss.kind
    # Several labels of a row are as many outputs with a binary cross-entropy each.
    if kind == "multilabel":
        kind = "binary"
    return Batched(layers, kind, layout, device)


def is_steady(batched: Batched) -> bool:
    """Return True if the kernel gives the same bits in any company on this machine, and log what trains."""
    for trial in batched.probes():
        key = (
            trial.layers,
            trial.kind,
            trial.layout.dtype,
            trial.device,
            torch.get_num_threads(),
        )
        if key not in _STEADY:
            _STEADY[key] = trial.steady()
        if not _STEADY[key]:
            logger.info(
                "the loop trains: on this machine a batched product depends on how many share it"
            )
            return False
    logger.info(
        "the batched kernel trains the %d layers of this model (kernel = 'loop' turns it off)",
        len(batched.layers),
    )
    return True


def find_mapped(
    model: nn.Module,
    layout: Layout,
    loss: Loss,
    x: Tensor,
    inputs: Any,
    labels: Tensor,
) -> Mapped | None:
    """Return what trains several clients of a model at once by `vmap`, and log if it is the loop that trains.

    Args:
        model: Without random layers, and every parameter has a gradient.
        layout: Of its vectors.
        loss: Of rows.
        x: The model as a vector [d].
        inputs: Some rows as the model takes them.
        labels: Their labels.
    """
    why = "the model has buffers, or its rows have several columns by name"
    if isinstance(inputs, Tensor) and not list(model.buffers()):
        mapped = Mapped(model, layout, loss, x.device)
        why = "on this machine a client's bits depend on its company"
        try:
            # torch warns where it has no rule for an operation and repeats it client by client, which is the loop and slower.
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                is_steady_here = mapped.steady(x, inputs, labels)
            if warned:
                why = str(warned[0].message).splitlines()[0]
            elif is_steady_here:
                return mapped
        # What `vmap` cannot do is known only by trying: control flow on values, operations without a rule.
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
    logger.info("the loop trains, as vmap does not: %s", why)
    return None
