"""The flags of settings. They follow from the fields that `run.keys` lists; `flags.json` keeps them, so that `--help` needs no torch.

`python -m coterie.cli.flags` writes that file again; a test compares it with the fields.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.base.files import write_atomically

__all__ = ["add_command", "add_flags", "described", "typed"]

FILE = Path(__file__).with_name("flags.json")


def add_command(commands: Any, name: str, about: str, command: str = "") -> argparse.ArgumentParser:
    """Add a command with what it does in one line; `command` is its key of `commands.COMMANDS`, if not its name."""
    said = f"{about[:1].upper()}{about[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=said)
    parser.set_defaults(command=command or name)
    return parser


def described() -> list[dict[str, str]]:
    """What `flags.json` must hold: flag, key, metavar and help of each setting that has a flag."""
    from coterie.run.keys import keys

    return [
        {
            "flag": key.flag,
            "key": key.path,
            "metavar": key.option.flag.metavar or key.name.upper(),
            "help": key.help,
        }
        for key in keys()
        if key.option.flag is not None
    ]


def add_flags(parser: argparse.ArgumentParser, *tables: str) -> None:
    """Add the flags of these tables, or of all, in a group for each table; what is typed is found by `typed`."""
    flags = json.loads(FILE.read_text(encoding="utf-8"))
    for table, those in itertools.groupby(flags, key=lambda flag: str(flag["key"].partition(".")[0])):
        if not tables or table in tables:
            group = parser.add_argument_group(f"[{table}]")
            for one in those:
                about = one["help"].replace("%", "%%")
                group.add_argument(one["flag"], dest=one["key"], metavar=one["metavar"], help=about)


def typed(args: argparse.Namespace) -> Mapping[str, Any]:
    """The texts that were typed for flags of settings, by key such as `run.rounds`."""
    return {key: text for key, text in vars(args).items() if "." in key and text is not None}


if __name__ == "__main__":
    text = json.dumps(described(), indent=1) + "\n"
    write_atomically(FILE, lambda path: path.write_text(text, encoding="utf-8"))
