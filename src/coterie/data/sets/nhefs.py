"""NHEFS: 1,629 smokers in five parts of the United States, who of them died between 1983 and 1992?

The files are embedded (a work of the US government, in the public domain; see `files/nhefs/LICENSE.md` for the terms of use).
They hold the smokers of the NHANES I Epidemiologic Follow-up Study whom Hernan and Robins chose for their book "Causal
Inference: What If": aged 25 to 74 in 1971, alive in 1982, and followed until 1992.

The table is one. It is split by a column of its own, the state of birth, into the four regions of the US Census, as if each
region had a registry; `elsewhere` holds the 92 people born abroad or in a state that was not written down. Nobody is left out.

- Columns of 1971: `age`, `sex` (1: female), `school` (highest grade), `ht` (cm), `cholesterol` (mg per 100 ml),
  `smokeintensity` (cigarettes a day), `smokeyrs` (years of smoking), `exercise` and `active` (0 much to 2 little),
  `asthma`, `bronch` (chronic bronchitis or emphysema).
- Columns of 1982: `wt82` (kg), `sbp` and `dbp` (blood pressure, mm Hg), `qsmk` (1: stopped smoking since 1971). They are missing
  for up to 5 % of the people: the pooled mean of the training rows stands in.
- The label `death`: 318 of 1,629 died. Of these the South has 137 of 577 people, the West 18 of 136.
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
    "meaning": "death within ten years",
}
"""How the five files are read."""


def nhefs(
    *, seed: int = 0, split: Split | Mapping[str, Any] | None = None
) -> Clients:
    """Clients elsewhere, midwest, northeast, south and west; 15 features, classes "alive" and "died".

    `split` takes `seed` and `parts`; the default is a third for test and a fifth of the rest for validation, stratified.
    """
    return from_folder(
        FOLDER, tables=Tables(**OPTIONS), split=split, seed=seed, name="nhefs"
    )


DATASET = Dataset(
    "NHEFS: 1,629 smokers, 15 features, embedded",
    "5 regions of birth: elsewhere, midwest, northeast, south, west",
    "2 classes: alive, died",
    "public domain (US government), NCHS terms of use",
    nhefs,
    {"split": {"parts": dict(DEFAULT_PARTS)}},
)
