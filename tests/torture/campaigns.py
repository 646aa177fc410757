"""The campaigns by name: each draws its tries from a seed until a clock ends it, and says of each what is wrong, and what it covers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torture.apart import Tries
from torture.faults import faults
from torture.files import damages, settings, tables
from torture.kills import kills
from torture.odd import oddities
from torture.worlds import worlds


class Campaign(NamedTuple):
    """Tries in a folder, over methods in a mixed order, until the clock shows a time; `share` of all the time is its."""

    run: Callable[[random.Random, Path, list[str], float], Tries]
    share: float


CAMPAIGNS = {
    "interrupted runs": Campaign(kills, 0.27),
    "the world changes between kill and resume": Campaign(worlds, 0.38),
    "damaged files of a run": Campaign(damages, 0.12),
    "mutated TOML": Campaign(settings, 0.05),
    "mangled CSV folders": Campaign(tables, 0.03),
    "odd values of arguments": Campaign(oddities, 0.08),
    "faults of a client's task": Campaign(faults, 0.07),
}
