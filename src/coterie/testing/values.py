"""Laws of metrics, of data sets and of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.base.errors import InputError
from coterie.base.hazards import WITHIN_HORIZON
from coterie.base.rng import fork_generators
from coterie.base.vector import copy_model
from coterie.data.sets import Dataset
from coterie.models import build_shape
from coterie.testing.runs import CLOSE, LawError

# ---- laws of metrics

_CLASSES = 6
_KINDS = ("binary", "classes", "multilabel", "regression", "hazards")


def _rows_of(kind: str, count: int = 24) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(3)
    if kind == "hazards":
        hazard = torch.rand(count, 1, generator=stream, dtype=torch.float64)
        time = 2 * torch.rand(count, generator=stream, dtype=torch.float64)
        event = (torch.arange(count) % 3 > 0).double()
        labels_of_events = torch.stack([torch.zeros_like(time), time, event], 1)
        # Until the horizon, until the last cut, and until times before the horizon, at a constant hazard.
        before = hazard * torch.tensor(WITHIN_HORIZON, dtype=torch.float64)
        return torch.cat([hazard, 2 * hazard, before], 1), labels_of_events
    columns = 1 if kind in ("binary", "regression") else _CLASSES
    outputs = torch.randn(count, columns, generator=stream, dtype=torch.float64)
    if kind == "multilabel":
        return outputs, torch.randint(0, 2, (count, _CLASSES), generator=stream)
    if kind == "binary":
        return outputs, torch.arange(count) % 2
    classes = torch.arange(count) % _CLASSES
    if kind == "regression":
        # Whole numbers from 0 on: metrics of counts are defined of them, too.
        return outputs, classes.double()
    return outputs, classes


def number(metric: Callable[..., Any]) -> None:
    """A metric gives a finite number or None for each kind of task, and a number for one of them."""
    values = {kind: metric(*_rows_of(kind), kind) for kind in _KINDS}
    for kind, measured in values.items():
        if measured is not None and not math.isfinite(float(measured)):
            raise LawError(
                f"gives {measured} for {kind}; give None where it is not defined"
            )
    if all(measured is None for measured in values.values()):
        raise LawError("gives None for every kind of task")


def rows(metric: Callable[..., Any]) -> None:
    """The order of rows does not matter."""
    for kind in _KINDS:
        outputs, labels = _rows_of(kind)
        turned = torch.arange(len(labels)).flip(0)
        value = metric(outputs, labels, kind)
        reversed_value = metric(outputs[turned], labels[turned], kind)
        if value is None or reversed_value is None:
            differ = value is not reversed_value
        else:
            differ = abs(float(value) - float(reversed_value)) > CLOSE
        if differ:
            raise LawError(
                f"gives {value} for {kind}, and {reversed_value} for the same rows in another order"
            )


def inputs(metric: Callable[..., Any]) -> None:
    """A metric writes into nothing that it is given."""
    for kind in _KINDS:
        outputs, labels = _rows_of(kind)
        metric(outputs, labels, kind)
        if not all(map(torch.equal, (outputs, labels), _rows_of(kind))):
            raise LawError(f"changed the outputs or labels of {kind} that it was given")


# ---- laws of data sets


def descriptions(dataset: Dataset) -> None:
    """A data set says in one line each what it is, who its clients are, what is predicted and under which licence."""
    for key in ("summary", "clients", "task", "licence"):
        line = getattr(dataset, key)
        if not line or "\n" in line:
            raise LawError(f"its {key} must be one line; it is {line!r}")


def same_rows(dataset: Dataset) -> None:
    """The same seed gives the same rows."""
    if (
        dataset.build(seed=0, split=None).fingerprint()
        != dataset.build(seed=0, split=None).fingerprint()
    ):
        raise LawError(
            "two builds with seed 0 have other rows; draw what is random from the seed"
        )


def trainable(dataset: Dataset) -> None:
    """Each client has training rows, somebody has test rows, and every number is finite."""
    clients = dataset.build(seed=0, split=None)
    for client in clients:
        if not len(client.train.labels):
            raise LawError(f"client {client.name!r} has no training rows")
        inputs_of_rows: Any = client.train.inputs
        tensors = [inputs_of_rows]
        if isinstance(inputs_of_rows, Mapping):
            tensors = [*inputs_of_rows.values()]
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not bool(
                torch.isfinite(tensor.double()).all()
            ):
                raise LawError(f"client {client.name!r} has inputs that are NaN or Inf")
    if all(client.test is None or not len(client.test.labels) for client in clients):
        raise LawError("no client has test rows")


def options(dataset: Dataset) -> None:
    """The defaults that are shown are those of the options that it takes."""
    shown = {
        key: default for key, default in dataset.defaults.items() if key != "split"
    }
    try:
        built = dataset.build(seed=0, split=None, **shown).fingerprint()
    except (InputError, TypeError) as error:
        raise LawError(
            f"declares the options {', '.join(shown)}, but refuses their defaults: {error}"
        ) from error
    if built != dataset.build(seed=0, split=None).fingerprint():
        raise LawError(
            "declares defaults of its options with which it gives other rows than without them"
        )


# ---- laws of models


class Built(NamedTuple):
    """A model's settings, the shape of a row, and the number of outputs."""

    spec: Any
    shape: tuple[int, ...]
    outputs: int

    def module(self) -> nn.Module:
        """Build the module, with random numbers drawn from seed 0."""
        with fork_generators(0):
            return build_shape(self.spec, self.shape, self.outputs).eval()

    def rows(self) -> Tensor:
        """Four rows: small whole numbers, which models of tokens take, too."""
        drawn = torch.randint(
            0, 2, (4, *self.shape), generator=torch.Generator().manual_seed(0)
        )
        if any(isinstance(m, nn.Embedding) for m in self.module().modules()):
            return drawn
        return drawn.float()


def same_start(built: Built) -> None:
    """The same seed builds the same numbers."""
    states = [built.module().state_dict() for _ in range(2)]
    if not all(
        torch.equal(value, states[1][name]) for name, value in states[0].items()
    ):
        raise LawError(
            "two builds with one seed start from other numbers; draw from torch's generator"
        )


def one_answer_each(built: Built) -> None:
    """A model gives each row as many outputs as it is asked for, whatever other rows lie beside it."""
    module, inputs = built.module(), built.rows()
    with torch.no_grad():
        outputs, single = module(inputs), module(inputs[1:2])
    if built.outputs not in outputs.shape[1:] or len(outputs) != len(inputs):
        raise LawError(
            f"gives outputs of shape {list(outputs.shape)} for {len(inputs)} rows and {built.outputs} outputs"
        )
    if not torch.allclose(single, outputs[1:2], atol=1e-5):
        raise LawError(
            "gives a row other outputs when other rows lie beside it, outside of training"
        )


def copies(built: Built) -> None:
    """A model can be copied, as each process and each client needs."""
    copy_model(built.module())
