"""Models in 16 bits on their way down: what a server sends where a run says `down = "bf16"`, and what its clients train from.

Paper: D. Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019 (the format; rounding to the nearest, ties to even).

Symbols: the server keeps x in float32 and sends r(x), whose numbers have a sign, an exponent and 8 bits: |r(x) - x| <= 2^-8 |x|,
number by number. A client trains from r(x) to y and sends y - r(x), which the server adds to x: so steps that are smaller than the
rounding are not lost, but add up at the server.

What is rounded: fields of a payload that their task declares as models (`Holds(model=True)`, as `OneModel` does), parameters and float
buffers. Control variates, prototypes, weights and updates of other clients are sent whole: methods add them up, and round nothing.

Laws (tests/contract/test_down.py): a client trains from what was sent, wherever it is; two bytes a number; off, nothing is changed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.contract.payload import payload_fields
from coterie.contract.task import Holds, Task
from coterie.contract.wire import PerClient

FLOAT32, BF16 = "float32", "bf16"
"""How models are sent: as they are, or rounded to 16 bits."""


def is_rounded(holds: Holds | None) -> bool:
    """Return True for a tensor that is sent in 16 bits where models are: it holds models, in numbers of the model's own type."""
    return holds is not None and holds.model and holds.dtype is None


@functools.cache
def _model_fields(task: Task[Any]) -> tuple[str, ...]:
    fields = payload_fields(task)
    return tuple(key for key, field in fields.items() if is_rounded(field.holds))


def rounded_fields(task: Task[Any], payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a payload that are sent in 16 bits; none where a client has the model itself, and None is sent."""
    return tuple(key for key in _model_fields(task) if payload.get(key) is not None)


def round_models(payload: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return the payload with these fields in 16 bits, as `Ask.rounded` names them."""
    rounded = dict(payload)
    for key in fields:
        value = payload[key]
        if isinstance(value, PerClient):
            rounded[key] = PerClient(value.tensor.to(torch.bfloat16))
        else:
            rounded[key] = value.to(torch.bfloat16)
    return rounded


def as_sent(x: Tensor, down: str) -> Tensor:
    """Return a model [d + b] as clients get it.

    >>> as_sent(torch.tensor([1.0, 1.001, 1.01]), "bf16").tolist()
    [1.0, 1.0, 1.0078125]
    """
    if down == FLOAT32:
        return x
    return x.to(torch.bfloat16).to(x)
