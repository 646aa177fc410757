"""The flags of settings: they follow from the fields that declare them."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.config.keys import keys_with_flags


def add_command(
    commands: Any, name: str, summary: str, command: str = ""
) -> argparse.ArgumentParser:
    """Add a command with what it does in one line; `command` is its key of `commands.COMMANDS`, if not its name."""
    description = f"{summary[:1].upper()}{summary[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print the traceback of an error that nobody expected",
    )
    parser.set_defaults(command=command or name)
    return parser


def add_flags(parser: argparse.ArgumentParser, *tables: str) -> None:
    """Add the flags of these tables, or of all, in a group for each table; what is typed is found by `flag_texts`."""
    for table, keys in itertools.groupby(
        keys_with_flags(*tables), key=lambda key: key.table
    ):
        group = parser.add_argument_group(f"[{table}]")
        for key in keys:
            metavar = (key.option.flag and key.option.flag.metavar) or key.name.upper()
            switch: dict[str, Any] = {}
            if key.option.kinds == (bool,):
                # The flag alone says yes.
                switch = {"nargs": "?", "const": "true"}
            group.add_argument(
                key.flag,
                dest=key.path,
                metavar=metavar,
                help=key.help.replace("%", "%%"),
                **switch,
            )


def flag_texts(args: argparse.Namespace) -> Mapping[str, Any]:
    """The texts that were typed for flags of settings, by key such as `run.rounds`."""
    return {
        key: text for key, text in vars(args).items() if "." in key and text is not None
    }


def optional_path(text: str | None) -> Path | None:
    """The path that was typed; None where the option was left out."""
    return None if text is None else Path(text)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Add `--resume` to the parser of a command that makes a run directory."""
    parser.add_argument(
        "--resume", action="store_true", help="resume where this run stopped"
    )


def add_accept_change(parser: argparse.ArgumentParser) -> None:
    """Add `--accept-change` to the parser of a command that goes on with what was made before."""
    parser.add_argument(
        "--accept-change",
        metavar="NAME",
        action="append",
        default=[],
        help="go on although this has changed since: a file such as own.py, data, or a name of the machine such as torch",
    )


def add_printing(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say in which form an answer is printed."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print rows, verdicts, differences and notes as JSON, and nothing else",
    )
    parser.add_argument("--no-report", action="store_true", help="write no HTML report")
    add_tables_flag(parser)


def add_tables_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--tables` to the parser of a command that prints an answer."""
    parser.add_argument(
        "--tables",
        action="store_true",
        help="print the tables of all metrics before the answer",
    )
