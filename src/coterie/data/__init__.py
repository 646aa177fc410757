"""Data: named data sets, the user's own tables and tensors, and splits.

Everything returns `coterie.base.clients.Clients`. Importing this needs torch and numpy only; pandas, pyarrow,
scikit-learn and datasets are imported by the functions that need them.
"""

from coterie.config.data import Split, Tables
from coterie.data.dataset import by_group, from_arrays, from_dataset
from coterie.data.images import from_images
from coterie.data.parts import generator, stratified
from coterie.data.registry import load
from coterie.data.sets import Dataset
from coterie.data.splits import clusters, dirichlet, iid, mixed, shards, target_groups
from coterie.data.tables.folder import apply_recipe, from_folder, from_frames
from coterie.data.tensors import from_tensors, standardise

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
