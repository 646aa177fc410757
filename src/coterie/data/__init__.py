"""Data: named data sets, the user's own tables and tensors, and splits.

Everything returns `coterie.base.clients.Clients`. Importing this needs torch and numpy only; pandas, pyarrow,
scikit-learn and datasets are imported by the functions that need them.
"""

import sys

from coterie.base.errors import no_attribute
from coterie.base.rng import generator
from coterie.config.data import Split, Tables
from coterie.data.dataset import by_group, from_arrays, from_dataset
from coterie.data.images import from_images
from coterie.data.parts import stratified
from coterie.data.registry import load
from coterie.data.sets import Dataset
from coterie.data.splits import clusters, dirichlet, iid, mixed, shards, target_groups
from coterie.data.tables.folder import apply_recipe, from_folder, from_frames
from coterie.data.tensors import from_tensors, standardise

_CURES = {
    "from_csv": "write ct.data.from_folder(FOLDER, label=...), with one file per client",
    "from_pandas": "write ct.data.from_frames({NAME: frame, ...}, label=...)",
    "from_dataframes": "write ct.data.from_frames({NAME: frame, ...}, label=...)",
    "from_numpy": "write ct.data.from_tensors({NAME: (inputs, labels), ...})",
    "from_torch": "write ct.data.from_dataset(dataset, split=...)",
    "from_huggingface": 'write ct.data.load("hf:NAME")',
}


def __getattr__(name: str) -> object:
    raise no_attribute(sys.modules[__name__], name, _CURES)


__all__ = [
    "Dataset",
    "Split",
    "Tables",
    "apply_recipe",
    "by_group",
    "clusters",
    "dirichlet",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "from_frames",
    "from_images",
    "from_tensors",
    "generator",
    "iid",
    "load",
    "mixed",
    "shards",
    "standardise",
    "stratified",
    "target_groups",
]
