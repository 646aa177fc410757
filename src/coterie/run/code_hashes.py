"""Hashes of the code of a user's own: by statement of a file, or by class and function where code has no file that coterie imported."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.base.errors import InputError
from coterie.base.modules import user_modules
from coterie.base.vector import add_tensors
from coterie.run.hashes import hash_texts


def hash_tensors(state: Mapping[str, Any]) -> str:
    """The hash of names, shapes, types and numbers of tensors, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    add_tensors(digest, state)
    return digest.hexdigest()


LIBRARIES = frozenset({"coterie", "torch", "numpy", "builtins", *sys.stdlib_module_names}) - {"__main__"}
"""Packages whose version says enough."""


MADE = frozenset(
    ("__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate_func__", "__annotations_cache__",
     "__firstlineno__", "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__orig_bases__")
)  # fmt: skip
"""Attributes that Python adds to a class and on which no number depends."""


def hash_code(objects: Iterable[Any]) -> dict[str, dict[str, str]]:
    """Return by file the hash of each class, function and constant of the user's that some objects run.

    `packages` has versions of installed packages, and `not covered` the names and types of values that cannot be read.
    """
    return _Code(objects).tree


class _Code:
    """A walk over what objects run."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self.tree: dict[str, dict[str, str]] = {}
        self._visited: dict[int, Any] = {}  # kept, so that no number is given to another object
        self._files: set[Path] = set()
        for value in objects:
            self._visit(value, "")

    def _visit(self, value: Any, name: str) -> None:
        """Add the code that a value runs, and that of all which it holds."""
        if isinstance(value, str | bytes | int | float | complex | torch.dtype | Tensor | None):
            return
        if id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if isinstance(value, types.ModuleType):
            self._visit_module(value)
        elif inspect.isclass(value) or isinstance(value, types.FunctionType):
            self._visit_code(value)
        elif isinstance(value, types.MethodType):
            self._visit_all((value.__func__, value.__self__), name)
        elif isinstance(value, functools.partial):
            self._visit_all((value.func, value.args, value.keywords), name)
        elif isinstance(value, Mapping):
            self._visit_all(value.values(), name)
        elif isinstance(value, tuple | list | set | frozenset):
            self._visit_all(value, name)
        elif isinstance(value, nn.Module):
            for part in value.modules():
                self._visit_code(type(part))
                self._visit_all(vars(part).values(), name)
        elif not isinstance(value, types.BuiltinFunctionType):
            self._visit_code(type(value))
            if _package(type(value)) not in LIBRARIES - {"coterie"}:
                self._visit_all(_fields(value).values(), name)

    def _visit_all(self, values: Iterable[Any], name: str) -> None:
        for value in values:
            self._visit(value, name)

    def _visit_module(self, module: types.ModuleType) -> None:
        if _package(module) not in LIBRARIES and _version_of(module) is None:
            self._add_file(_file_of(module))

    def _visit_code(self, code: Any) -> None:
        """Add a class or function: the whole file if coterie imported it by its name, else its bytecode and what that names."""
        module = sys.modules.get(code.__module__ or "")
        if _package(code) in LIBRARIES or _package(code).startswith("namedtuple_"):
            return
        if (version := _version_of(module)) is not None:
            self._add("packages", _package(code), version)
        elif code.__module__ in user_modules():
            self._add_file(_file_of(module))
        else:
            file = _file_of(module)
            kind = "class" if inspect.isclass(code) else "function"
            text = json.dumps(self._class(code) if inspect.isclass(code) else self._function(code), default=repr)
            self._add("this program" if file is None else file.name, f"{kind} {code.__qualname__}", hash_texts(text))

    def _class(self, code: type) -> Any:
        self._visit_all(code.__bases__, "")
        members = {
            name: value for name, value in vars(code).items() if name not in MADE and not name.startswith("_abc")
        }
        return {
            name: self._value(value, f"{code.__qualname__}.{name}")
            for name, value in members.items()
            if isinstance(value, property) or not inspect.isdatadescriptor(value)
        }

    def _function(self, function: types.FunctionType) -> Any:
        name = function.__qualname__
        cells = {}
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            cells[key] = self._value(cell.cell_contents, f"{name}.{key}") if _has_value(cell) else "empty"
        named = {key: function.__globals__[key] for key in _names(function.__code__) if key in function.__globals__}
        return [
            _bytecode(function.__code__),
            self._value(function.__defaults__, name),
            self._value(function.__kwdefaults__, name),
            cells,
            {key: self._value(value, key) for key, value in sorted(named.items())},
        ]

    def _value(self, value: Any, name: str) -> Any:
        """A value that code holds, as JSON; what runs code of its own is a leaf of its own."""
        if isinstance(value, bool | int | float | complex | str | bytes | None):
            return repr(value)
        if isinstance(value, Tensor):
            return hash_tensors({"": value})
        if isinstance(value, staticmethod | classmethod):
            return self._value(value.__func__, name)
        if isinstance(value, property):
            return [self._value(f, name) for f in (value.fget, value.fset)]
        if isinstance(value, types.FunctionType) and "<" in value.__qualname__.rpartition(".")[2]:
            return self._function(value)  # a lambda has no name of its own
        if id(value) in self._visited and not isinstance(value, Mapping | tuple | list | set | frozenset):
            return getattr(value, "__qualname__", type(value).__qualname__)
        if isinstance(value, Mapping):
            return {str(k): self._value(v, f"{name}.{k}") for k, v in value.items()}
        if isinstance(value, tuple | list):
            return [self._value(v, name) for v in value]
        if isinstance(value, set | frozenset):
            return sorted(map(repr, value))
        if hasattr(value, "tolist"):
            return [str(value.dtype), hash_texts(repr(value.tolist()))]
        self._visit(value, name)
        if inspect.isclass(value) or isinstance(
            value, types.FunctionType | types.ModuleType | types.BuiltinFunctionType
        ):
            return getattr(value, "__qualname__", value.__name__)
        if _package(type(value)) not in LIBRARIES or dataclasses.is_dataclass(value):
            return [type(value).__qualname__, self._value(_fields(value), name)]
        if _package(type(value)) == "coterie":
            return type(value).__qualname__  # a task remembers what it has looked up; its function is a leaf of its own
        if isinstance(value, nn.Module):
            return [type(value).__qualname__, hash_tensors(value.state_dict())]
        if not isinstance(value, torch.dtype) and not callable(value):
            self._add("not covered", name, type(value).__qualname__)
        return repr(value) if isinstance(value, torch.dtype) else type(value).__qualname__

    def _add_file(self, path: Path | None) -> None:
        """Add each statement of a file, and of the files below its folder that it imports."""
        if path is None or path in self._files:
            return
        waiting, root = [path], path.parent
        while waiting:
            file = waiting.pop()
            if file in self._files:
                continue
            self._files.add(file)
            tree = _parse(file)
            for name, statement in _statements(tree):
                self._add(file.relative_to(root).as_posix(), name, hash_texts(ast.dump(statement)))
            waiting += [module for name in _import_names(tree) for module in _below(name, file.parent, root)]

    def _add(self, file: str, name: str, text: str) -> None:
        """Add a leaf; statements of one name are one leaf."""
        leaves = self.tree.setdefault(file, {})
        leaves[name] = hash_texts(leaves[name], text) if name in leaves else text


def _package(value: Any) -> str:
    """The name of the package in which a class, function or module lies."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    return str(name).partition(".")[0]


def _fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of an object by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    fields: Mapping[str, Any] = value._asdict() if hasattr(value, "_asdict") else getattr(value, "__dict__", {})
    return fields


def _has_value(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - a cell that is not filled yet raises
    except ValueError:
        return False
    return True


def _names(code: types.CodeType) -> set[str]:
    """Names that a function and those within it use."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names, *(name for nested in inner for name in _names(nested))}


def _bytecode(code: types.CodeType) -> Any:
    """Instructions and constants, without numbers of lines and without names of files."""
    constants = [
        _bytecode(value) if isinstance(value, types.CodeType) else
        sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
        for value in code.co_consts
    ]  # fmt: skip
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _file_of(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


@functools.cache
def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "?"))


def _version_of(module: Any) -> str | None:
    """The version of the package that a module belongs to; None of a module that is not installed."""
    path = _file_of(module)
    if path is None or not {"site-packages", "dist-packages"} & set(path.parts):
        return None
    return _version(_package(module))


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error


def _statements(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The statements of a file by what they define; texts that stand alone say nothing to Python."""
    for statement in tree.body:
        match statement:
            case ast.ClassDef():
                yield f"class {statement.name}", statement
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield f"function {statement.name}", statement
            case ast.Import() | ast.ImportFrom():
                yield "imports", statement
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                yield ", ".join(map(ast.unparse, targets)), statement
            case ast.Expr(value=ast.Constant()):
                continue
            case _:
                yield "statements", statement


def _import_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of modules that a file imports anywhere, with the dots before them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            yield name, node.level
            yield from ((f"{name}.{alias.name}".strip("."), node.level) for alias in node.names)


def _below(imported: tuple[str, int], folder: Path, root: Path) -> Iterator[Path]:
    """The files of a module that lie below a folder."""
    name, dots = imported
    file = None if dots else _file_of(sys.modules.get(name))
    base = [folder, *folder.parents][max(0, dots - 1)] / name.replace(".", "/")
    for path in (file, base.with_suffix(".py") if name else None, base / "__init__.py"):
        if path is not None and path.suffix == ".py" and path.is_relative_to(root) and path.is_file():
            yield path
