"""States as files: tensors as safetensors, the rest as JSON in its metadata; one file, renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from coterie.base.errors import InputError
from coterie.base.reading import opened_tensors

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Checkpoint",
    "load_state",
    "naming",
    "read_checkpoint",
    "save_state",
    "write_atomically",
    "write_checkpoint",
]

SEAL = "seal"


def write_atomically(path: Path, write: Callable[[Path], object], *, durable: bool = False) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: readers see the old file or the new one, never half of one.

    With `durable` the file and its folder are on the disk before this returns.
    """
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            if durable:
                _sync(temporary)
            os.replace(temporary, path)
            if durable:
                _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let what the disk refuses be an `OSError` that names `path`: of a full disk Python names no file, and safetensors has its own."""
    try:
        yield
    except Exception as error:
        said = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
        number = int(said[1]) if said else getattr(error, "errno", None)
        if not isinstance(number, int):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class Checkpoint(NamedTuple):
    """One complete round: values of the state, client memory, and what the run loop needs (`meta`)."""

    values: dict[str, Any]
    memory: dict[str, Tensor]
    meta: dict[str, Any]


def write_checkpoint(
    path: Path,
    state: tuple[Any, ...],
    memory: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    *,
    durable: bool = False,
) -> None:
    """Save a state (a NamedTuple of tensors, numbers, strings, None and tuples of these) with memory and meta as one file.

    It holds a hash of all that is in it. With `durable` it is on the disk before this returns.
    """
    from safetensors.torch import save_file
    from torch import Tensor

    if not hasattr(state, "_asdict"):
        raise InputError(
            f"a state must be a NamedTuple to be saved, not a {type(state).__name__}; declare one in the method"
        )
    values = state._asdict()
    tensors = {f"state/{k}": v.detach().cpu().contiguous().clone() for k, v in values.items() if isinstance(v, Tensor)}
    rest = {k: v for k, v in values.items() if not isinstance(v, Tensor)}
    tensors.update({f"memory/{k}": v.detach().cpu().contiguous().clone() for k, v in memory.items()})
    about = {"rest": rest, "fields": list(values), "meta": dict(meta)}
    given = {**{f"state/{k}": v for k, v in values.items()}, **{f"memory/{k}": v for k, v in memory.items()}}
    if away := [name for name in tensors if given[name].device.type != "cpu"]:
        about["on_device"] = away
    text = json.dumps({**about, SEAL: _seal(about, tensors)})
    write_atomically(path, lambda p: save_file(tensors, p, metadata={"coterie": text}), durable=durable)


def read_checkpoint(path: Path, device: Any = "cpu") -> Checkpoint:
    """Undo `write_checkpoint`; what lay on a device such as a GPU is put on `device`.

    Raises `InputError` for a file that is none, or that was damaged.
    """
    with opened_tensors(path, "pt", "delete it and start again") as (file, header):
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - not a dict
    if header.pop(SEAL, None) != _seal(header, tensors):
        raise InputError(f"{path} is damaged, or of another version of coterie; delete it and start again")
    tensors.update({name: tensors[name].to(device) for name in header.get("on_device", ())})
    state = {k.removeprefix("state/"): v for k, v in tensors.items() if k.startswith("state/")}
    values = {k: state[k] if k in state else _tuples(header["rest"][k]) for k in header["fields"]}
    memory = {k.removeprefix("memory/"): v for k, v in tensors.items() if k.startswith("memory/")}
    return Checkpoint(values, memory, header["meta"])


def _seal(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A hash of a checkpoint's JSON and of its tensors [any shape], on the CPU."""
    import torch

    # As it is read back: JSON has lists for tuples, and texts for the keys of a dict.
    digest = hashlib.blake2b(json.dumps(json.loads(json.dumps(about)), sort_keys=True).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()


def save_state(path: Path, state: tuple[Any, ...]) -> None:
    """Save a state alone."""
    write_checkpoint(path, state, {}, {})


def load_state(path: Path, state_type: type[Any]) -> Any:
    """The state that `save_state` wrote, as a `state_type`."""
    return state_type(**read_checkpoint(path).values)


def state_type(method: Any) -> type[Any] | None:
    """The NamedTuple that `method.init` declares to return, if it does."""
    declared = get_type_hints(method.init).get("return")
    return declared if isinstance(declared, type) and hasattr(declared, "_fields") else None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
