"""What a round holds, and what this machine has."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.errors import RunError

__all__ = ["check_free_memory"]


def check_free_memory(vectors: int, layout_size: int, itemsize: int, available: int | None = None) -> str | None:
    """The sentence that names the memory of a method's [n, d] matrix; None below 100 MB.

    Raises `RunError` if it is more than what is free.
    """
    needed = vectors * layout_size * itemsize
    free = available if available is not None else _free_bytes()
    sentence = f"a round holds {vectors} model vectors of {layout_size} numbers: {needed / 1e9:.2f} GB"
    if free is not None and needed > free:
        raise RunError(
            f"{sentence}, but only {free / 1e9:.2f} GB are free; ask fewer clients a round or take a smaller model"
        )
    return sentence if needed > 1e8 else None


def _free_bytes() -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            fields: Sequence[str] = next(line for line in lines if line.startswith("MemAvailable")).split()
    except (OSError, StopIteration):
        return None
    return int(fields[1]) * 1024
