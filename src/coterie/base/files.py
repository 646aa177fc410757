"""Files: doors for those from outside, bounded in size and depth, with one sentence for every defect; states as files.

A state's tensors are safetensors and the rest is JSON in their metadata. A file is renamed into place, so nobody
reads half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, get_type_hints

from coterie.base.errors import InputError, cut, plain, require
from coterie.base.system import sync_path

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

LARGEST = 16 * 2**20
"""Bytes that a file of settings may have."""
LARGEST_RESULTS = 2**30
"""Bytes that a JSON file of results may have."""
AGAIN = "restore it or repeat the run"
"""The cure for a file of a run directory."""
BLOCK = 2**20
"""Bytes that are read at once."""
DEEPEST = 32
"""Tables and lists within each other."""


def check_name(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` for a path whose name is not UTF-8, as in old archives: no report could write it."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        folder, name = os.path.split(os.fsencode(path))
        raise InputError(
            f"{folder.decode(errors='replace')}: the name of {name!r} is not UTF-8 text; rename it"
        ) from error


def path_exists(
    path: str | os.PathLike[str], kind: Callable[[Path], bool] = Path.exists
) -> bool:
    """Return True if what a user named is there, as `kind` asks it.

    Raises `InputError` where the system cannot even look: the name is too long, or a folder above it may not be read.
    """
    check_name(path)
    try:
        return kind(Path(path))
    except OSError as error:
        raise InputError(
            f"{cut(os.fspath(path))} cannot be looked for: {error.strerror}; check the path"
        ) from error


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises `InputError` if it is not valid TOML, or too deep."""
    too_deep = f"{place}: more than {DEEPEST} tables and lists lie within each other; write it with fewer"
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise InputError(too_deep) from error
    except ValueError as error:  # also an int of more digits than Python reads
        raise InputError(
            f"{place} is not valid TOML: {plain(str(error), 120)}"
        ) from error
    require(not _is_deep(tables), too_deep)
    return tables


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; errors as of `parse_toml` and `read_text`."""
    return parse_toml(read_text(path), str(path))


def parse_json(text: str, place: str, kind: type[T], cure: str = AGAIN) -> T:
    """The value of a JSON text. Raises `InputError` if it is not valid JSON, too deep, or of another kind than `kind`."""
    try:
        value = json.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # also an int of more digits than Python reads
        raise InputError(
            f"{place} cannot be read ({plain(str(error), 100)}); {cure}"
        ) from error
    if _is_deep(value):
        raise InputError(
            f"{place} has more than {DEEPEST} values within each other; {cure}"
        )
    if not isinstance(value, kind):
        raise InputError(
            f"{place} holds a {type(value).__name__} and not a {kind.__name__}; {cure}"
        )
    return value


def read_json(path: Path, kind: type[T], cure: str = AGAIN) -> T:
    """The value of a JSON file; errors as of `parse_json` and `read_text`."""
    return parse_json(read_text(path, LARGEST_RESULTS), str(path), kind, cure)


def json_text(value: Any) -> str:
    """A value as JSON with a line for each item of a list, or of an object and of the lists in it; NaN is an error.

    An indent on every level would be written by an encoder in Python, which takes ten times as long as the one in C.

    >>> print(json_text({"rows": [{"a": 1}, {"a": 2}], "seed": 0}))
    {
     "rows": [
      {"a": 1},
      {"a": 2}
     ],
     "seed": 0
    }
    """
    if not isinstance(value, dict):
        return _lines_of_items(value, "\n")
    texts = []
    for key, content in value.items():
        lines = _lines_of_items(content, "\n ")
        texts.append(f"{json.dumps(key)}: {lines}")
    return _enclose("{", texts, "}", "\n")


def _lines_of_items(value: Any, newline: str) -> str:
    """A list or an object with a line for each item, which `newline` begins and a space; any other value as it is."""
    if value and isinstance(value, list):
        texts = [json.dumps(item, allow_nan=False) for item in value]
        return _enclose("[", texts, "]", newline)
    if value and isinstance(value, dict):
        texts = [
            f"{json.dumps(key)}: {json.dumps(item, allow_nan=False)}"
            for key, item in value.items()
        ]
        return _enclose("{", texts, "}", newline)
    return json.dumps(value, allow_nan=False)


def _enclose(begin: str, texts: list[str], end: str, newline: str) -> str:
    """The texts between brackets, each in a line of its own."""
    if not texts:
        return begin + end
    joined = f",{newline} ".join(texts)
    return f"{begin}{newline} {joined}{newline}{end}"


def json_rows(path: Path, keys: Mapping[str, type[Any]]) -> list[dict[str, Any]]:
    """The rows of a JSON file that is a list of objects with these keys; errors as of `read_json`, and one that names a bad row."""
    rows = read_json(path, list)
    for number, row in enumerate(rows):
        fields = row if isinstance(row, dict) else {}
        bad = [k for k, kind in keys.items() if not isinstance(fields.get(k), kind)]
        if bad:
            raise InputError(
                f"{path}, row {number}: {', '.join(bad)} missing or of a wrong type; {AGAIN}"
            )
    return rows


@contextmanager
def open_tensors(
    path: Path, framework: str, cure: str = AGAIN
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """An open safetensors file, and what coterie wrote about it (empty if nothing).

    Whatever is wrong with the file, and comes out while the block reads it, is an `InputError` with this cure.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=framework) as file:
            written = (file.metadata() or {}).get("coterie", "{}")
            yield file, parse_json(written, str(path), dict, cure)
    except InputError:
        raise
    # What safetensors, and whoever reads values, raise for a damaged file.
    except (
        OSError,
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise InputError(
            f"{path} cannot be read ({plain(str(error), 100)}); {cure}"
        ) from error


def read_text(path: Path, largest: int = LARGEST) -> str:
    """A text file of at most `largest` bytes. Raises `InputError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            raw = _read_blocks(file, largest + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > largest:
        raise InputError(
            f"{path} has more than {largest:,} bytes; a file of settings has a few thousand"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not a text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error


def _read_blocks(file: BinaryIO, most: int) -> bytes:
    """Read at most so many bytes; `read(most)` would reserve them all before it reads a small file, and end early at a pipe."""
    blocks: list[bytes] = []
    while most > 0 and (block := file.read(min(most, BLOCK))):
        blocks.append(block)
        most -= len(block)
    return b"".join(blocks)


def _is_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        # Texts hold no other classes; to ask for subclasses of them takes twice as long.
        outer = [held for held in level if type(held) in (dict, list)]
        level = []
        for held in outer:
            level += held.values() if type(held) is dict else held
    return bool(level)


SEAL = "seal"


def write_atomically(
    path: Path,
    write: Callable[[Path], object],
    *,
    durable: bool = False,
    once: bool = False,
) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: readers see the old file or the new one, never half of one.

    With `durable` the file and its folder are on the disk before this returns. With `once` a file that is there stays, and of several
    that write at the same time the first wins, where the file system has links.
    """
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}-{threading.get_ident()}")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            if durable:
                sync_path(temporary)
            if not (once and _link(temporary, path)):
                os.replace(temporary, path)
            if durable:
                sync_path(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> bool:
    """Give the file its name unless another has it; False where the file system has no links."""
    try:
        os.link(temporary, path)
    except OSError as error:
        return isinstance(error, FileExistsError)
    return True


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write tensors with what `open_tensors` says about them."""
    from safetensors.torch import save

    # One entry of metadata: safetensors writes several in any order. And copies: it refuses two names of one storage.
    copies = {name: _copy_to_cpu(value) for name, value in tensors.items()}
    content = save(copies, metadata={"coterie": json.dumps(metadata)})
    # `save_file` makes files that only their owner may read; a run directory is for colleagues.
    write_atomically(path, lambda p: p.write_bytes(content))


def _copy_to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().clone()


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that `write_atomically` left in a folder, or below it, when its process was killed."""
    for leftover in folder.rglob(".*.tmp[0-9]*"):
        leftover.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let what the disk refuses be an `OSError` that names `path`: of a full disk Python names no file, and safetensors has its own."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if type(error).__name__ == "SafetensorError":
            match = re.search(r"\(os error (\d+)\)", str(error))
            if match:
                number = int(match[1])
        if not isinstance(number, int):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


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
    sources: dict[str, Tensor] = {}
    values_beside: dict[str, Any] = {}
    for key, value in state._asdict().items():
        if isinstance(value, Tensor):
            sources[f"state/{key}"] = value
        else:
            values_beside[key] = value
    sources |= {f"memory/{key}": value for key, value in memory.items()}
    tensors = {name: _copy_to_cpu(value) for name, value in sources.items()}
    description: dict[str, Any] = {
        "rest": values_beside,
        "fields": list(state._asdict()),
        "meta": dict(meta),
    }
    on_device = [name for name, value in sources.items() if value.device.type != "cpu"]
    if on_device:
        description["on_device"] = on_device
    # As it is read back: JSON has lists for tuples, and texts for the keys of a dict.
    content = json.dumps(description)
    seal = _seal(json.loads(content), tensors)
    text = f'{content[:-1]}, "{SEAL}": "{seal}"}}'
    write_atomically(
        path,
        lambda p: save_file(tensors, p, metadata={"coterie": text}),
        durable=durable,
    )


def read_checkpoint(path: Path, device: Any = "cpu") -> Checkpoint:
    """Undo `write_checkpoint`; what lay on a device such as a GPU is put on `device`.

    Raises `InputError` for a file that is none, or that was damaged.
    """
    from coterie.base.vector import align

    with open_tensors(path, "pt", "delete it and start again") as (file, header):
        tensors = {k: align(file.get_tensor(k)) for k in file.keys()}  # noqa: SIM118 - not a dict
    if header.pop(SEAL, None) != _seal(header, tensors):
        raise InputError(
            f"{path} is damaged, or of another version of coterie; delete it and start again"
        )
    for name in header.get("on_device", ()):
        tensors[name] = tensors[name].to(device)
    values: dict[str, Any] = {}
    for key in header["fields"]:
        if f"state/{key}" in tensors:
            values[key] = tensors.pop(f"state/{key}")
        else:
            values[key] = _tuples(header["rest"][key])
    memory = {name.removeprefix("memory/"): value for name, value in tensors.items()}
    return Checkpoint(values, memory, header["meta"])


def _seal(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A hash of what a checkpoint's JSON was read as, and of its tensors [any shape], on the CPU."""
    from coterie.base.vector import tensor_bytes

    text = json.dumps(description, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def state_type(method: Any) -> type[Any] | None:
    """The NamedTuple that `method.init` declares to return, if it does."""
    declared = get_type_hints(method.init).get("return")
    if isinstance(declared, type) and hasattr(declared, "_fields"):
        return declared
    return None


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(part) for part in value)
    return value
