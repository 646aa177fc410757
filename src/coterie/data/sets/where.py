"""Where the files of a data set lie that no package brings."""

from __future__ import annotations

import os
from pathlib import Path

from coterie.base.errors import InputError
from coterie.base.files import path_exists


def find_folder(name: str, files: tuple[str, ...], folder: str | Path | None) -> Path:
    """The folder that has one of `files`: `folder` itself or its subfolder `name`; None looks below COTERIE_DATA.

    Raises `InputError` that says where it looked and what to do.
    """
    variable = os.environ.get("COTERIE_DATA")
    place = folder if folder is not None else variable
    for candidate in [Path(place), Path(place) / name] if place else []:
        if path_exists(candidate) and any(any(candidate.glob(file)) for file in files):
            return candidate
    looked = f"the folder {folder}" if folder is not None else f"COTERIE_DATA ({variable or 'not set'})"
    raise InputError(
        f"{name} was not found in {looked}; set the environment variable COTERIE_DATA to a folder with {name}/{files[0]}, or give "
        "folder"
    )
