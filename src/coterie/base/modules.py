"""Modules made of a user's own files: imported here, and again wherever their tasks run."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from coterie.base.errors import InputError, nearest
from coterie.base.files import path_exists
from coterie.base.rng import fork_generators

PREFIX = "coterie_user_"


class ModuleSource(NamedTuple):
    """A module by name. The text of a user's file travels with it; a module of a package (text None) must be installed.

    Attributes:
        name: in `sys.modules`, and in the names of its tasks.
        file: where it was read, for tracebacks.
        text: text of the file, or None.
    """

    name: str
    file: str = ""
    text: bytes | None = None


class _Text(importlib.abc.InspectLoader):
    """Loads a module from text that came from another process, where its file may not exist."""

    def __init__(self, source: ModuleSource) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._source.text or b"")

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_source(fullname), self._source.file)


def load_object(reference: str) -> Any:
    """The object FILE.py:NAME. Raises `InputError` if the file or the name is missing, or the file fails."""
    path, _, name = reference.rpartition(":")
    if not path_exists(path, Path.is_file):
        raise InputError(f"there is no file {path!r} (asked for as {reference!r})")
    module = user_module(path)
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise InputError(f"{path} has no {name!r}; {nearest(name, public)}")
    return getattr(module, name)


def user_module(path: str) -> ModuleType:
    """The module of a Python file, imported once. Raises `InputError` if the file fails."""
    file = Path(path).resolve()
    name = f"{PREFIX}{file.stem}"
    while getattr(sys.modules.get(name), "__file__", str(file)) != str(file):
        name += "_"  # another file of this name; tasks are known by their module
    if str(file.parent) not in sys.path:
        sys.path.append(
            str(file.parent)
        )  # as for a program, files beside it can be imported
    try:
        module = import_source(ModuleSource(name, str(file), file.read_bytes()))
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    _refuse_namesakes(module, file.parent)
    return module


def _refuse_namesakes(module: ModuleType, folder: Path) -> None:
    """Raise `InputError` if a file got another module than the file of that name beside it."""
    for value in vars(module).values():
        name = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            name = value.__name__
        own_file = folder / f"{name}.py"
        imported_file = getattr(sys.modules.get(str(name)), "__file__", None)
        if imported_file is None or not own_file.is_file():
            continue
        if not own_file.samefile(imported_file):
            raise InputError(
                f"{module.__file__} got {imported_file} as {name}, and not {own_file}; rename one of the two"
            )


def user_modules() -> list[str]:
    """Names of the modules that were made of a user's files."""
    return [name for name in sys.modules if name.startswith(PREFIX)]


def source_of(name: str) -> ModuleSource:
    """Return what another process needs to import the module `name` of this one."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not name.startswith(PREFIX):
        return ModuleSource(name)
    return ModuleSource(name, file, Path(file).read_bytes())


def import_source(source: ModuleSource) -> ModuleType:
    """The module, imported now if it is not yet."""
    if source.name in sys.modules:
        return sys.modules[source.name]
    if source.text is None:
        return importlib.import_module(source.name)
    spec = importlib.util.spec_from_file_location(
        source.name, source.file, loader=_Text(source)
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{source.file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.name] = module
    try:
        with fork_generators(
            0
        ):  # a model that the file makes is the same in every process
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[source.name]
        raise
    return module
