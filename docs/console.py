"""Run the commands of a page and put what they print under them: `python docs/console.py PAGE...`, and with `--check` only compare.

A page is a session in an empty folder. A code block with a caption is a file of that name; a block `console` holds commands, each
behind `$ `, with what it prints on standard output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = re.compile(r"^```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)^```$", re.M | re.S)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)", re.M)
WIDTH = 92
SHELL = f'coterie() {{ "{sys.executable}" -m coterie "$@"; }}; python() {{ "{sys.executable}" "$@"; }}; '


def replayed(text: str) -> str:
    """The page as it would be if its commands ran now. Raises `CalledProcessError` for a command that fails."""
    with tempfile.TemporaryDirectory() as folder:
        pieces, end = [], 0
        blocks = [*FILE.finditer(text), *CONSOLE.finditer(text)]
        for block in sorted(blocks, key=lambda b: b.start()):
            pieces += [text[end : block.start()], _done(block, Path(folder))]
            end = block.end()
        return "".join(pieces) + text[end:]


def _done(block: re.Match[str], folder: Path) -> str:
    """A block after its file is written or its commands have run."""
    if block.re is FILE:
        (folder / block.group(1)).write_text(block.group(2), encoding="utf-8")
        return block.group(0)
    lines = []
    for command in COMMAND.finditer(block.group(1)):
        lines += [
            command.group(0),
            *_printed(command.group(1).replace("\n> ", "\n"), folder),
        ]
    return "\n".join(("```console", *lines, "```"))


def _printed(command: str, folder: Path) -> list[str]:
    settings = {**os.environ, "COLUMNS": str(WIDTH), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", SHELL + command],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(
            done.returncode, f"{command}\n{done.stderr}"
        )
    return [line.rstrip() for line in done.stdout.strip("\n").splitlines()]


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or with `--check` say which differ; returns the exit status."""
    check = "--check" in arguments
    differ = []
    for page in (Path(name) for name in arguments if name != "--check"):
        old = page.read_text(encoding="utf-8")
        new = replayed(old)
        if new != old:
            differ.append(page)
        if not check:
            page.write_text(new, encoding="utf-8")
    sys.stdout.writelines(
        f"{page} differs from what its commands print\n" for page in differ if check
    )
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
