"""Descriptions of objects of a user's own, and hashes of their code: by statement of a file, else by class and function."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.base.errors import InputError
from coterie.base.modules import user_modules
from coterie.base.vector import add_tensors
from coterie.config.optimisers import OwnOptimiser
from coterie.run.hashes import hash_texts


def hash_tensors(state: Mapping[str, Any]) -> str:
    """The hash of names, shapes, types and numbers of tensors, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    add_tensors(digest, state)
    return digest.hexdigest()


LIBRARIES = frozenset(
    {"coterie", "torch", "numpy", "builtins", *sys.stdlib_module_names}
) - {"__main__"}
"""Packages whose version says enough."""


MADE = frozenset(
    ("__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate_func__", "__annotations_cache__",
     "__firstlineno__", "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__orig_bases__",
     "__slotnames__")
)  # fmt: skip
"""Attributes that Python adds to a class and on which no number depends."""
BUILT_IN = (
    types.BuiltinFunctionType
    | types.MethodDescriptorType
    | types.ClassMethodDescriptorType
    | types.WrapperDescriptorType
    | types.MethodWrapperType
)
OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of a module that its layers, parameters and hooks stand for."""
LONGEST = 200
"""Characters of a description; of a longer one there is a hash, so that what many objects share is written once."""


class Description:
    """A walk over what objects hold and the code that they run; nothing depends on where they lie in memory.

    Attributes:
        code: by file the hash of each class, function and constant of the user's; `packages` has versions of installed packages, and
            `not covered` the names and types of values that cannot be read.
    """

    def __init__(self) -> None:
        self.code: dict[str, dict[str, str]] = {}
        # Described by `id`. The objects are kept, so that no number is given to another one.
        self._objects: dict[int, Any] = {}
        self._values: dict[int, Any] = {}
        self._added: set[int] = set()
        self._files: set[Path] = set()

    def value(self, value: Any, name: str = "") -> Any:
        """Describe what an object holds, as JSON; its code, and that of all which it holds, goes to `code`.

        Args:
            value: Anything.
            name: What it is called where it cannot be read.
        """
        if isinstance(value, bool | float | str | None):
            return value
        if isinstance(value, int):
            return value if abs(value) < 2**63 else hex(value)
        if isinstance(value, complex | bytes | range | torch.dtype | torch.device):
            return repr(value)
        if id(value) not in self._values:
            # An object that holds itself meets this word on the way round.
            self._objects[id(value)], self._values[id(value)] = value, "itself"
            try:
                described = self._describe(value, name or type(value).__qualname__)
                text = json.dumps(described)
            except RecursionError:
                self._add("not covered", name, type(value).__qualname__)
                described = text = "too deep"
            if len(text) > LONGEST:
                described = hash_texts(text)
            self._values[id(value)] = described
        return self._values[id(value)]

    def fields(self, value: Any, name: str) -> Any:
        """Describe the fields of an object by name, or else what pickle would save of it; arguments as of `value`."""
        if dataclasses.is_dataclass(value):
            keys = [field.name for field in dataclasses.fields(value)]
            return {
                key: self.value(getattr(value, key), f"{name}.{key}") for key in keys
            }
        if hasattr(value, "_asdict"):
            return self._describe(value._asdict(), name)
        if _package(type(value)) == "coterie":
            # Only the code of what it holds: a task, say, remembers what it has looked up.
            held = getattr(value, "__dict__", {})
            others = {key: v for key, v in held.items() if not isinstance(v, Tensor)}
            self._describe(others, name)
            return {}
        try:
            saved = None if isinstance(value, os.PathLike) else value.__reduce_ex__(2)
        except Exception:  # whatever a class says of itself
            saved = None
        if isinstance(saved, str):
            return saved
        if saved is None:
            self._add("not covered", name, type(value).__qualname__)
            return {}
        _, arguments, state, items, pairs = (*saved, None, None, None)[:5]
        # Made without arguments, and neither a list nor a dict: its state is all that it has.
        holds_others = items is not None or pairs is not None
        if arguments in ((), (type(value),)) and not holds_others:
            if isinstance(state, dict):
                return self._describe(state, name)
            return self.value(state, name)
        parts = (arguments, state, [*(items or ())], [*(pairs or ())])
        return [self.value(part, name) for part in parts]

    def layers(self, module: nn.Module, name: str = "model") -> str:
        """Hash what a model is beside the numbers that it saves: classes, and all that its layers hold."""
        layers = []
        for path, part in module.named_modules():
            self._add_code(type(part))
            attributes, hooks = {}, []
            for key, value in vars(part).items():
                if key not in OF_MODULES:
                    attributes[key] = value
                if key.endswith("_hooks") and value:
                    hooks.append([*value.values()])
            for key in sorted(part._non_persistent_buffers_set):
                attributes[key] = part.get_buffer(key)
            trained = [
                key
                for key, parameter in part.named_parameters(recurse=False)
                if parameter.requires_grad
            ]
            attributes_hash = self.value(attributes, f"{name}.{path}")
            hooks_hash = self.value(hooks, f"{name}.{path}")
            kind = type(part).__qualname__
            layers.append([path, kind, attributes_hash, hooks_hash, trained])
        return hash_texts(json.dumps(layers))

    def _describe(self, value: Any, name: str) -> Any:
        kind = type(value).__qualname__
        match value:
            case Tensor():
                is_plain = value.layout == torch.strided and not value.is_nested
                if not is_plain or value.is_quantized:
                    self._add("not covered", name, kind)
                return hash_tensors({"": value})
            case types.ModuleType():
                return self._describe_module(value)
            case OwnOptimiser():
                return self.value(value.function, name)
            case type() | types.FunctionType():
                return self._describe_code(value)
            case types.MethodType():
                return [
                    self.value(value.__func__, name),
                    self.value(value.__self__, name),
                ]
            case property():
                return [
                    self.value(function, name) for function in (value.fget, value.fset)
                ]
            case staticmethod() | classmethod() | functools._lru_cache_wrapper():
                return [kind, self.value(value.__wrapped__, name)]
            case functools.cached_property():
                return [kind, self.value(value.func, name)]
            case set() | frozenset():
                return sorted(json.dumps(self.value(held, name)) for held in value)
            case dict() | types.MappingProxyType() if type(value) in (
                dict,
                types.MappingProxyType,
            ):
                return {
                    self._key(key): self.value(held, f"{name}.{key}")
                    for key, held in value.items()
                }
            case list() | tuple() if type(value) in (list, tuple):
                return [self.value(held, name) for held in value]
            case np.ndarray() | np.generic() if value.dtype != object:
                return [
                    str(value.dtype),
                    list(value.shape),
                    hash_texts(value.tobytes().hex()),
                ]
            case nn.Module():
                return [
                    kind,
                    hash_tensors(value.state_dict()),
                    self.layers(value, name),
                ]
        if isinstance(value, BUILT_IN):
            bound = getattr(value, "__self__", None)
            if isinstance(bound, types.ModuleType):
                bound = None
            return [value.__qualname__, self.value(bound, name)]
        self._add_code(type(value))
        return [kind, self.fields(value, name)]

    def _key(self, key: Any) -> str:
        if isinstance(key, str):
            return key
        return f"{type(key).__qualname__} {json.dumps(self.value(key))}"

    def _describe_code(self, code: Any) -> Any:
        self._add_code(code)
        return code.__qualname__

    def _describe_module(self, module: types.ModuleType) -> str:
        if _package(module) not in LIBRARIES and _version_of(module) is None:
            file = _file_of(module)
            if file is None:
                self._add("not covered", module.__name__, "module")
            self._add_file(file)
        return module.__name__

    def _add_code(self, code: Any) -> None:
        """Add a class or function: the whole file if coterie imported it by its name, else its bytecode and what that names."""
        module = sys.modules.get(code.__module__ or "")
        if _package(code) in LIBRARIES or _package(code).startswith("namedtuple_"):
            return
        if (version := _version_of(module)) is not None:
            self._add("packages", _package(code), version)
        elif code.__module__ in user_modules():
            self._add_file(_file_of(module))
        elif id(code) not in self._added:
            self._added.add(id(code))
            file = _file_of(module)
            if inspect.isclass(code):
                kind, described = "class", self._class(code)
            else:
                kind, described = "function", self._function(code)
            where = "this program" if file is None else file.name
            text = hash_texts(json.dumps(described))
            self._add(where, f"{kind} {code.__qualname__}", text)

    def _class(self, code: type) -> Any:
        for parent in (*code.__bases__, type(code)):
            self._add_code(parent)
        described = {}
        slots = types.MemberDescriptorType | types.GetSetDescriptorType
        for name, value in vars(code).items():
            # Python adds these, and no number depends on them.
            is_made = name in MADE or name.startswith("_abc")
            if is_made or isinstance(value, slots):
                continue
            described[name] = self.value(value, f"{code.__qualname__}.{name}")
        return described

    def _function(self, function: types.FunctionType) -> Any:
        name = function.__qualname__
        cells = {}
        code, closure = function.__code__, function.__closure__ or ()
        for key, cell in zip(code.co_freevars, closure, strict=True):
            cells[key] = "empty"
            if _has_value(cell):
                cells[key] = self.value(cell.cell_contents, f"{name}.{key}")
        defaults = self.value(function.__defaults__, name)
        named_defaults = self.value(function.__kwdefaults__, name)
        named = {}
        for key in sorted(_names(code)):
            if key in function.__globals__:
                named[key] = self.value(function.__globals__[key], key)
        attributes = {}
        for key, value in vars(function).items():
            attributes[key] = self.value(value, f"{name}.{key}")
        return [_bytecode(code), defaults, named_defaults, cells, named, attributes]

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
            where = file.relative_to(root).as_posix()
            for name, statement in _statements(tree):
                self._add(where, name, hash_texts(ast.dump(statement)))
            for imported in _import_names(tree):
                waiting += _find_files(imported, file.parent, root)

    def _add(self, file: str, name: str, text: str) -> None:
        """Add a leaf; statements of one name are one leaf."""
        leaves = self.code.setdefault(file, {})
        if name in leaves:
            text = hash_texts(leaves[name], text)
        leaves[name] = text


def _package(value: Any) -> str:
    """The name of the package in which a class, function or module lies."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
    else:
        name = getattr(value, "__module__", None) or ""
    return str(name).partition(".")[0]


def _has_value(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - a cell that is not filled yet raises
    except ValueError:
        return False
    return True


def _names(code: types.CodeType) -> set[str]:
    """Names that a function and those within it use."""
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _bytecode(code: types.CodeType) -> Any:
    """Instructions and constants, without numbers of lines and without names of files."""
    constants: list[Any] = []
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            constants.append(_bytecode(value))
        elif isinstance(value, frozenset):
            # Its order changes from process to process.
            constants.append(sorted(map(repr, value)))
        else:
            constants.append(repr(value))
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _file_of(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    if not file:
        return None
    return Path(file).resolve()


@functools.cache
def installed_version(package: str) -> str:
    """The version of a package that is installed or imported, `?` of one that is not there."""
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
    return installed_version(_package(module))


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
            case ast.Assign():
                yield ", ".join(map(ast.unparse, statement.targets)), statement
            case ast.AnnAssign() | ast.AugAssign():
                yield ast.unparse(statement.target), statement
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
            yield from (
                (f"{name}.{alias.name}".strip("."), node.level) for alias in node.names
            )


def _find_files(imported: tuple[str, int], folder: Path, root: Path) -> list[Path]:
    """The files below `root` that a module may be whose name, and the dots before it, stand in a file of `folder`."""
    name, dots = imported
    base = [folder, *folder.parents][max(0, dots - 1)] / name.replace(".", "/")
    candidates = [base / "__init__.py"]
    if name:
        candidates.insert(0, base.with_suffix(".py"))
    loaded = _file_of(sys.modules.get(name))
    if loaded is not None and not dots and loaded.suffix == ".py":
        candidates.insert(0, loaded)
    return [path for path in candidates if path.is_relative_to(root) and path.is_file()]
