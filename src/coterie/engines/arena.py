"""Tensors that travel between a process and those forked from it through one anonymous mapping instead of a pipe.

The mapping has no name and no file, so nothing is left behind when a process is killed, and the size of /dev/shm does not matter.
Pages that nobody writes cost nothing.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.contract.wire import decode, encode, put_together, take_apart

__all__ = ["Arena"]

_LEAST = 1 << 14
"""Bytes below which the pipe is as fast."""
_DTYPES = {
    str(dtype): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
}


class Arena:
    """Memory that this process and its later children share; what does not fit travels as bytes, as small values do.

    Attributes:
        size: bytes.
    """

    def __init__(self, size: int = 1 << 30) -> None:
        try:
            flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            self._bytes = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)
        except OSError:
            self._bytes = torch.empty(0, dtype=torch.uint8)
        self.size = len(self._bytes)
        self._used = 0
        # With the tensors, since the address of one that is gone may be another's.
        self._placed: dict[tuple[Any, ...], tuple[list[Any], Tensor]] = {}

    def clear(self) -> None:
        """Begin anew: whatever was read from here is overwritten by the next `pack`."""
        self._used = 0
        self._placed = {}

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """A message for `unpack` in another process. Until `clear`, a tensor that was packed before is not copied again.

        The message is short as long as there is room here: a pipe takes it even if nobody reads.
        """
        text, tensors = take_apart(values)
        places = {number: place for number, t in enumerate(tensors) if (place := self._put(t)) is not None}
        rest = {str(number): tensor for number, tensor in enumerate(tensors) if number not in places}
        message = encode({"text": text, "places": json.dumps(places), **rest})
        place = self._put(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        return message if place is None else encode({"message": json.dumps(place)})

    def unpack(self, message: bytes, *, keep: bool = False) -> dict[str, Any]:
        """The values. Unless the caller may `keep` them, large tensors are views of this memory until it is written again."""
        parts = decode(message)
        if "message" in parts:
            low, high, *_ = json.loads(parts["message"])
            parts = decode(self._bytes[low:high].numpy().tobytes())
        text, places = parts.pop("text"), json.loads(parts.pop("places"))
        tensors: dict[int, Tensor] = {int(number): tensor for number, tensor in parts.items()}
        for number, (low, high, dtype, shape) in places.items():
            view = self._bytes[low:high].view(_DTYPES[dtype]).view(shape)
            tensors[int(number)] = view.clone() if keep else view
        return put_together(text, [tensors[number] for number in range(len(tensors))])

    def _put(self, tensor: Tensor) -> list[Any] | None:
        count = tensor.numel() * tensor.element_size()
        low = -(-self._used // 64) * 64
        if count < _LEAST or str(tensor.dtype) not in _DTYPES:
            return None
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape)
        if key in self._placed:
            return self._placed[key][0]
        if low + count > self.size:
            return None
        place = [low, low + count, str(tensor.dtype), list(tensor.shape)]
        self._bytes[low : low + count].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._used, self._placed[key] = low + count, (place, tensor)
        return place
