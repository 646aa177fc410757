"""What a round holds, and what this machine has."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coterie.base.errors import RunError

__all__ = ["check_free_memory", "free_bytes"]


def check_free_memory(vectors: int, layout_size: int, itemsize: int, available: int | None) -> str | None:
    """The sentence that names the memory of a method's [n, d] matrix; None below 100 MB.

    Raises `RunError` if it is more than what is `available`, in bytes; None: nobody knows.
    """
    bytes_per_round = vectors * layout_size * itemsize
    sentence = f"a round holds {vectors} model vectors of {layout_size} numbers: {bytes_per_round / 1e9:.2f} GB"
    if available is not None and bytes_per_round > available:
        raise RunError(
            f"{sentence}, but only {available / 1e9:.2f} GB are free; ask fewer clients a round or take a smaller model"
        )
    return sentence if bytes_per_round > 1e8 else None


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a GPU, or of this machine; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            fields: Sequence[str] = next(line for line in lines if line.startswith("MemAvailable")).split()
    except (OSError, StopIteration):
        return None
    return int(fields[1]) * 1024
