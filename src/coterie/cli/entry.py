"""Where the command finds the commands that the room of sites brings."""

from __future__ import annotations

import importlib
from typing import Any

SITES = "coterie.sites.commands"
"""Named, and imported by no file outside of that room: all else of the library can be read, and works, without it."""


def site_commands() -> Any:
    """Return the module of these commands: `add_commands(subparsers)`, and `COMMANDS`, a function of the options by command."""
    return importlib.import_module(SITES)
