"""Type-check the code that the README, the pages and the examples show, as a user's: `python docs/user_code.py`.

Each block of code is a module, named by its caption, so that blocks may import each other. mypy reads all of it with its defaults, and
bodies of functions without annotations, too; examples strictly. Where pyright is installed, it reads examples, and blocks that define a
method.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = ("", "tutorials", "howto", "explanation")
"""Folders of pages that people write; the generated ones show signatures, which are no code."""
PAGES = [
    ROOT / "README.md",
    *(
        page
        for folder in WRITTEN
        for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    ),
]
BLOCK = re.compile(
    r"^```(?:\{code-block\} )?python\n(?::caption: (\w+)\.py\n)?\n?(.*?)^```$",
    re.M | re.S,
)


def shown_code(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of its module and the text of each block of Python on a page; sessions (`>>>`) are doctests."""
    for number, (caption, code) in enumerate(
        BLOCK.findall(page.read_text(encoding="utf-8"))
    ):
        if ">>>" not in code:
            yield caption or f"{page.stem.lower().replace('-', '_')}_{number}", code


def examples() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each example, those of packages too."""
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield f"{path.parent.name}_{path.stem}", path.read_text(encoding="utf-8")


def type_errors(
    modules: Iterator[tuple[str, str]], *, are_examples: bool = False
) -> str:
    """Return what mypy and pyright find in these modules, in a folder of their own; empty: nothing.

    Args:
        modules: name and text of each.
        are_examples: whether all of them are typed throughout, so that mypy is strict and pyright reads all.

    Raises:
        ValueError: Two modules have the same name.
    """
    read_by_pyright = []
    with tempfile.TemporaryDirectory() as folder:
        for name, code in modules:
            file = Path(folder, f"{name}.py")
            if file.exists():
                raise ValueError(
                    f"two blocks of code are called {name}.py; give one of them another caption"
                )
            file.write_text(code, encoding="utf-8")
            if are_examples or "(ct.Method" in code:
                read_by_pyright.append(file.name)
        options = [
            "--config-file=",
            f"--cache-dir={ROOT / '.mypy_cache' / 'users'}",
            "--python-version=3.11",
        ]
        options += ["--ignore-missing-imports", "--check-untyped-defs"]
        if are_examples:
            options.append("--strict")
        commands = [[sys.executable, "-m", "mypy", *options, "."]]
        pyright = shutil.which("pyright")
        if pyright and read_by_pyright:
            # Not every example's packages are installed.
            rules = {"include": read_by_pyright, "reportMissingImports": False}
            Path(folder, "pyrightconfig.json").write_text(json.dumps(rules))
            commands.append([pyright, "--pythonpath", sys.executable])
        return "".join(_complaints(command, folder) for command in commands)


def _complaints(command: list[str], folder: str) -> str:
    settings = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    checked = subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True
    )
    return checked.stdout + checked.stderr if checked.returncode else ""


if __name__ == "__main__":
    on_pages = (pair for page in PAGES for pair in shown_code(page))
    found = type_errors(on_pages) + type_errors(examples(), are_examples=True)
    sys.exit(found or None)
