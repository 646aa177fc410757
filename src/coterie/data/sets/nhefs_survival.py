"""NHEFS with times: 1,629 smokers in the United States, when did they die between 1983 and 1992?

The same people, places and columns as in `nhefs`, in the public domain as well (see `files/nhefs_survival/LICENSE.md`).
In place of `death` they have `months`, from January 1983 to the month of death, and `died`, 1 where that is known; 1,311
people were alive after 120 months, the end of follow-up, where survival is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.base.clients import Clients
from coterie.config.data import DEFAULT_PARTS, Split, Tables
from coterie.data.sets import Dataset
from coterie.data.tables.folder import from_folder

FOLDER = Path(__file__).parent / "files" / "nhefs_survival"
OPTIONS: Mapping[str, Any] = {
    "time": "months",
    "event": "died",
    "horizon": 120.0,
    "meaning": "of any cause, from 1983 on",
}
"""How the eight files are read."""


def nhefs_survival(
    *, seed: int = 0, split: Split | Mapping[str, Any] | None = None
) -> Clients:
    """Seven states of birth and other-states as clients; 11 features, and the time to death.

    `split` takes `seed` and `parts`; the default is a third for test and a fifth of the rest for validation, stratified by death.
    """
    return from_folder(
        FOLDER,
        tables=Tables(**OPTIONS),
        split=split,
        seed=seed,
        name="nhefs-survival",
    )


DATASET = Dataset(
    "NHEFS with times: 1,629 smokers, 11 features, embedded",
    "8 registries: louisiana, michigan, new-york, ohio, other-states, pennsylvania, tennessee, west-virginia",
    "time to event: months until died, judged at 120",
    "public domain (US government), NCHS terms of use",
    nhefs_survival,
    {"split": {"parts": dict(DEFAULT_PARTS)}},
)
