"""coterie: federated learning among partners who are not alike.

`import coterie as ct` needs torch and numpy; each public name is imported when it is first used, so that the command answers at once.
The names stand in `__init__.pyi`, where type checkers look for them as well.
"""

__version__ = "0.2.0"

_NAMES: dict[str, tuple[str, str]] = {}


def _names() -> dict[str, tuple[str, str]]:
    """By public name the module that has it, and its name there."""
    if not _NAMES:
        import re
        from pathlib import Path

        text = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
        found = re.findall(r"^from (\S+) import (\w+) as (\w+)$", text, re.M)
        _NAMES.update({name: (module, given) for module, given, name in found})
    return _NAMES


def __getattr__(name: str) -> object:
    import importlib

    if name == "__all__":
        return [*_names(), "__version__"]
    if name.startswith("__") or name not in _names():
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    module, given = _names()[name]
    parent = importlib.import_module(module)
    is_module = hasattr(parent, "__path__")  # what is taken from a package is a module
    value: object = importlib.import_module(f"{module}.{given}") if is_module else getattr(parent, given)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_names(), "__version__"])
