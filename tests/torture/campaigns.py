"""The campaigns by name: each draws its tries from a seed until a clock ends it, and says of each what is wrong, and what it covers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torture.apart import Tries
from torture.disks import disks
from torture.engines import flare_runs, ray_runs
from torture.faults import faults
from torture.files import damages, settings, tables
from torture.kills import kills
from torture.odd import oddities
from torture.site_power import site_power
from torture.worlds import worlds


class Campaign(NamedTuple):
    """Tries in a folder, over methods in an order, until the clock shows a time; of it so many are wanted, so many at once."""

    run: Callable[[random.Random, Path, list[str], float], Tries]
    wanted: int
    slice: int


CAMPAIGNS = {
    "interrupted runs": Campaign(kills, 300, 50),
    "the world changes between kill and resume": Campaign(worlds, 1000, 100),
    "disks that refuse something": Campaign(disks, 330, 33),
    "power losses at a site": Campaign(site_power, 300, 100),
    "damaged files of a run": Campaign(damages, 1000, 100),
    "mutated TOML": Campaign(settings, 1000, 1000),
    "mangled CSV folders": Campaign(tables, 1000, 1000),
    "odd values of arguments": Campaign(oddities, 4000, 2000),
    "faults of a client's task": Campaign(faults, 1000, 500),
}
ENGINES = {
    "disturbed runs on Ray": Campaign(ray_runs, 20, 5),
    "disturbed jobs on NVIDIA FLARE": Campaign(flare_runs, 20, 5),
}
"""Campaigns that need the extras of the engines."""
