"""What an exchange and an engine say to each other about a sum behind masks whose clients are other parties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from coterie.contract.fixed_point import FixedPoint
from coterie.contract.masks import Words
from coterie.contract.replies import VECTORS
from coterie.contract.task import Task
from coterie.contract.wire import Answer, Ask


@dataclass(frozen=True)
class AskedSum:
    """A sum that is asked.

    Attributes:
        ask: the task, to all clients of the sum.
        weights: of each client, a whole number.
        threshold: clients without whom the sum is not opened.
        width: integers of a client's vector.
        accept: checks the answers without vectors, and says whose are fit to be used; called once, before survivors are named.
    """

    ask: Ask
    weights: Mapping[str, int]
    threshold: int
    width: int
    accept: Callable[[Answer], tuple[str, ...]]


def masked_fields(task: Task[Any]) -> tuple[str, ...]:
    """Return the fields of a reply that leave behind masks, in the order in which their integers follow each other."""
    return tuple(key for key, kind in task.kinds.items() if kind in (*VECTORS, "words"))


def integers_of(
    task: Task[Any], values: Mapping[str, Tensor], clip: float, weight: int
) -> Words:
    """Return the integers of one client: its vectors behind each other, each with the count of clipped numbers.

    Those that the task itself has made stay as they are.

    Args:
        task: what was asked.
        values: fields of the client's reply [...], without a leading dimension.
        clip: the largest size of a number (`SecureSums.clip`).
        weight: of the client.

    Raises:
        InputError: A number is NaN or infinite.
    """
    code = FixedPoint(clip)
    parts = []
    for key in masked_fields(task):
        if task.kinds[key] == "words":
            parts.append(values[key].cpu().numpy().view(np.uint64))
        else:
            parts.append(code.encode(values[key], weight))
    return np.concatenate(parts)
