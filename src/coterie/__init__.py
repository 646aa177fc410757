"""coterie: federated learning among partners who are not alike.

`import coterie as ct` needs torch and numpy; each public name is imported when it is first used, so that the command answers at once.
The names stand in `__init__.pyi`, where type checkers look for them as well; those of methods in their files.
"""

__version__ = "0.2.0"

_NAMES: dict[str, tuple[str, str]] = {}


def _names() -> dict[str, tuple[str, str]]:
    """By public name the module that has it, and its name there."""
    if not _NAMES:
        import re
        from pathlib import Path

        text = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
        listed = re.findall(r"^from (\S+) import (\w+) as (\w+)$", text, re.M)
        _NAMES.update({name: (module, given) for module, given, name in listed})
    return _NAMES


def _methods() -> dict[str, tuple[str, str]]:
    """The same of the methods, which need no line there."""
    from coterie.catalogue import entries

    return {entry.class_name: (entry.module, entry.class_name) for entry in entries().values()}


def __getattr__(name: str) -> object:
    import importlib
    import sys

    if name == "__all__":
        return __dir__()
    where = None if name.startswith("__") else _names().get(name) or _methods().get(name)
    if where is None:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    module, given = where
    parent = importlib.import_module(module)
    is_module = hasattr(parent, "__path__")  # what is taken from a package is a module
    value: object = importlib.import_module(f"{module}.{given}") if is_module else getattr(parent, given)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_names(), *_methods(), "__version__"})
