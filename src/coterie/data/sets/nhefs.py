"""NHEFS: 1,629 smokers in the United States, who of them died between 1983 and 1992?

The files are embedded (a work of the US government, in the public domain; see `files/nhefs/LICENSE.md` for the terms of use).
They hold the smokers of the NHANES I Epidemiologic Follow-up Study whom Hernan and Robins chose for their book "Causal
Inference: What If": aged 25 to 74 in 1971, alive in 1982, and followed until 1992.

The table is one. It is split by a column of its own, the state of birth, as if registries wanted to learn together: one for each
of the seven states in which at least 60 of these people were born, and one for all others, `other-states`, with 1,029 people. The
sizes are the point: a registry of 60 to 131 people can learn from others, a large one hardly needs them. Nobody is left out.

It is an example in which joining pays, and was looked for as one: other public tables, splits and columns were tried before. So it
shows what an answer looks like, and not how often joining pays.

- Columns of 1971: `age`, `sex` (1: female), `school` (highest grade), `cholesterol` (mg per 100 ml), `smokeintensity` (cigarettes a
  day), `smokeyrs` (years of smoking), `exercise` and `active` (0 much to 2 little).
- Columns of 1982: `bmi` (kg per square metre), `sbp` (systolic blood pressure, mm Hg), `qsmk` (1: stopped smoking since 1971).
  `bmi`, `sbp` and `cholesterol` are missing for 63, 77 and 16 people: the pooled mean of the training rows stands in.
- The label `death`: 318 of 1,629 people died.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.base.clients import Clients
from coterie.config.data import DEFAULT_PARTS, Split, Tables
from coterie.data.sets import Dataset
from coterie.data.tables.folder import from_folder

FOLDER = Path(__file__).parent / "files" / "nhefs"
OPTIONS: Mapping[str, Any] = {
    "label": "death",
    "classes": ("alive", "died"),
    "meaning": "within ten years",
}
"""How the eight files are read."""


def nhefs(*, seed: int = 0, split: Split | Mapping[str, Any] | None = None) -> Clients:
    """Seven states of birth and other-states as clients; 11 features, classes "alive" and "died".

    `split` takes `seed` and `parts`; the default is a third for test and a fifth of the rest for validation, stratified.
    """
    return from_folder(
        FOLDER, tables=Tables(**OPTIONS), split=split, seed=seed, name="nhefs"
    )


DATASET = Dataset(
    "NHEFS: 1,629 smokers, 11 features, embedded",
    "8 registries: louisiana, michigan, new-york, ohio, other-states, pennsylvania, tennessee, west-virginia",
    "2 classes: alive, died",
    "public domain (US government), NCHS terms of use",
    nhefs,
    {"split": {"parts": dict(DEFAULT_PARTS)}},
)
