"""The inside of an actor of a Ray cluster: the shard of some clients, and how values travel to it and back."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import coterie
from coterie.base.errors import InputError, RunError
from coterie.base.modules import ModuleSource, import_source
from coterie.compute.cohort import Shard
from coterie.compute.workspace import Workspace
from coterie.config.optimisers import OwnOptimiser
from coterie.config.registry import METRICS
from coterie.config.schema import wire_type
from coterie.contract.encoding import Refusal, Saved, put_together, take_apart
from coterie.contract.task import adopt_task
from coterie.contract.wire import Ask, Context

Packed = tuple[str, list[NDArray[Any]]]


class Parcel(NamedTuple):
    """Everything that an actor must know before it can read an ask.

    Attributes:
        path: folders in which this process finds modules.
        sources: modules with tasks, payload types, models or metrics.
        own: pickle of the tasks and payload types of a script or notebook (`__main__`), which no other process can import, and of
            the functions that make optimisers.
    """

    path: tuple[str, ...]
    sources: tuple[ModuleSource, ...]
    own: bytes


class Actor:
    """The cohort of some clients, in a process of the cluster."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._shard: Shard | None = None

    def place(self, parcel: Parcel | None, pickled: bytes) -> tuple[str, int]:
        """Take clients over; returns the version of coterie and the number of this process."""
        from ray import cloudpickle

        _learn(parcel)
        clients, (model, loss, kernel), metrics = cloudpickle.loads(pickled)
        for name, metric in metrics.items():
            METRICS.add(name, metric)
        self._shard = Shard(clients, Workspace(model, loss, clients[0], kernel=kernel))
        return coterie.__version__, os.getpid()

    def ask(self, parcel: Parcel | None, shared: Packed, message: Packed) -> Packed:
        """Answer an ask; `shared` is the part of its payload that all actors get."""
        shard = self._shard_here
        try:
            _learn(parcel)
            ask: Ask = unpack(message)["ask"]
            ask = replace(ask, payload={**ask.payload, **unpack(shared)})
            return pack({"answer": shard.answer(ask)})
        except (InputError, ImportError) as error:
            return pack({"answer": Refusal(f"{error}")})

    def undo(self, context: Context) -> None:
        """Forget what an ask wrote that came too late; answering at all says that this actor is free again."""
        self._shard_here.take_back(context)

    def save(self) -> Packed:
        """Return what the clients here remember."""
        return pack({"saved": Saved(self._shard_here.memory.save())})

    def load(self, saved: Packed) -> None:
        """Give the clients here their memory."""
        self._shard_here.memory.load(
            unpack(saved)["saved"].values, self._shard_here.clients.names
        )

    def clear(self) -> None:
        """Let the clients go."""
        self._shard = None

    @property
    def _shard_here(self) -> Shard:
        if self._shard is None:
            raise RunError("this actor has no clients")
        return self._shard


def _learn(parcel: Parcel | None) -> None:
    if parcel is None:
        return
    from ray import cloudpickle

    sys.path.extend(p for p in parcel.path if p not in sys.path)
    for source in parcel.sources:
        import_source(source)
    tasks, types, optimisers = cloudpickle.loads(parcel.own)
    OwnOptimiser.learn(optimisers)
    for cls in types:
        wire_type(cls)
    for function, reply, kinds in tasks:
        adopt_task(function, reply, kinds)


def pack(values: Mapping[str, Any]) -> Packed:
    """Values as JSON and numpy arrays, which Ray sends without a further copy; it would pickle tensors."""
    text, tensors = take_apart(values)
    kinds = [str(t.dtype).removeprefix("torch.") for t in tensors]
    return json.dumps([text, kinds]), [_array(t) for t in tensors]


def bytes_of(packed: Packed) -> int:
    """Bytes that travel."""
    return len(packed[0]) + sum(array.nbytes for array in packed[1])


def _array(tensor: Tensor) -> NDArray[Any]:
    # numpy has no bfloat16: the bits travel as integers of the same width.
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    array: NDArray[Any] = tensor.numpy()
    return array


def unpack(packed: Packed) -> dict[str, Any]:
    """Undo `pack`."""
    text, kinds = json.loads(packed[0])
    tensors = []
    for kind, array in zip(kinds, packed[1], strict=True):
        # Copied: what Ray gives out lies read-only in its store, and a task may write into its payload. By torch: some of its sums
        # and products round by where in memory a tensor begins, and its own begin where those of a single process do.
        tensor = torch.empty(array.shape, dtype=getattr(torch, kind))
        np.copyto(_array(tensor), array)
        tensors.append(tensor)
    return put_together(text, tensors)
