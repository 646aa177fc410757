"""coterie: federated learning among partners who are not alike.

`import coterie as ct` needs torch and numpy; each public name is imported when it is first used, so that the command answers at once.
The names stand in `__init__.pyi`, where type checkers look for them as well.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    name: (module, given)
    for module, given, name in re.findall(
        r"^from (\S+) import (\w+) as (\w+)$", Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"), re.M
    )
}
__all__ = [*_NAMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    module, given = _NAMES[name]
    parent = importlib.import_module(module)
    is_module = hasattr(parent, "__path__")  # what is taken from a package is a module
    value = importlib.import_module(f"{module}.{given}") if is_module else getattr(parent, given)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
