"""Write the public names of coterie for type checkers: `python docs/stub.py` makes `src/coterie/__init__.pyi` anew."""

from __future__ import annotations

from pathlib import Path

import coterie

STUB = Path(__file__).resolve().parents[1] / "src" / "coterie" / "__init__.pyi"


def stub() -> str:
    """Return the text of the stub: one import for each public name."""
    lines = []
    for name, place in coterie._places().items():
        module, _, attribute = place.partition(":")
        parent = module if attribute else module.rpartition(".")[0]
        lines.append(
            (parent != "coterie", f"from {parent} import {attribute or name} as {name}")
        )
    imports = "\n".join(line for _, line in sorted(lines))
    about = "The public names, each with the module that it lies in; `python docs/stub.py` writes this file."
    return f'"""{about}"""\n\n{imports}\n\n__version__: str\n'


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
