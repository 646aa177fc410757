"""Turn any table into what a model reads, with the recipe alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, require
from coterie.data.tables.columns import Column, Table
from coterie.data.tables.numbers import complaint, with_signs
from coterie.data.tables.recipe import RARE, ColumnRecipe, LabelRecipe, Recipe, example
from coterie.data.tables.spelling import fold, listing

__all__ = ["Encoded", "encode"]

FAR = 6.0
"""Standard deviations."""


class Encoded(NamedTuple):
    """Rows ready for a model: inputs float32 [rows, features], labels int64 or float32 [rows] or None, and notes."""

    inputs: Tensor
    labels: Tensor | None
    notes: tuple[str, ...] = ()


def encode(table: Table, recipe: Recipe, *, need_label: bool = True) -> Encoded:
    """The rows of `table` as the model reads them. Nothing is fitted here.

    Raises `InputError` that names file, column and row for a missing column, a text among numbers or, if `need_label`,
    a label that is missing or unknown; without `need_label` such labels are None for all rows.
    """
    inputs = np.zeros((len(table), len(recipe["features"])), dtype=np.float32)
    notes: list[str] = []
    at = 0
    for spec in recipe["columns"]:
        name = spec["name"]
        if name not in table.columns:
            raise InputError(
                f"{table.source} has no column {name!r}, which the model needs; add it (its cells may be empty)"
            )
        column = table.columns[name]
        if spec["kind"] == "number":
            scaled = _scaled(_numbers_of(column, spec, table.source), spec, table.source)
            notes += _far(scaled, spec, table.source)
            inputs[:, at] = scaled
            at += 1
        else:
            notes += _one_hot(column, spec, inputs[:, at : at + len(spec["categories"])], table.source)
            at += len(spec["categories"])
    labels, more = _labels(table, recipe["label"], need_label)
    return Encoded(torch.from_numpy(inputs), labels, (*notes, *more))


def _scaled(numbers: NDArray[np.float64], spec: ColumnRecipe, source: str) -> NDArray[np.float64]:
    """Numbers on the scale of the recipe, missing ones at 0, the mean."""
    scaled: NDArray[np.float64] = np.nan_to_num((numbers - spec["mean"]) / spec["scale"])
    wild = np.flatnonzero(np.abs(scaled) > 1e30)  # float32 ends at 3e38
    if len(wild):
        raise InputError(
            f"{source}: column {spec['name']!r} is {numbers[wild[0]]:g} in data row {wild[0] + 1}, absurdly far from all "
            "training rows; correct that cell"
        )
    return scaled


def _far(scaled: NDArray[np.float64], spec: ColumnRecipe, source: str) -> list[str]:
    """A question if half of the numbers and more are far from the training rows, as where a file has another unit."""
    present = np.abs(scaled[scaled != 0])
    middle = float(np.median(present)) if len(present) else 0.0
    if middle < FAR:
        return []
    return [f"{source}: {spec['name']} is {middle:.0f} standard deviations from the mean of training; the same unit?"]


def _numbers_of(column: Column, spec: ColumnRecipe, source: str) -> NDArray[np.float64]:
    where = f"{source}: column {spec['name']!r}"
    if column.problem is not None:
        raise InputError(f"{where} {complaint(*column.problem, choice='')}")
    if column.numbers is None:
        if column.unknown or not column.present.any():
            return np.full(len(column), np.nan)
        row, text = example(column)
        raise InputError(f"{where} needs numbers but has {text!r} in data row {row}; correct that cell")
    units = [sorted({*signs} - {","}) for signs in (column.signs, spec.get("signs", []))]
    require(
        units[0] == units[1] or column.kind == "empty",
        f"{where} has numbers {with_signs(units[0])}, but the model was trained on numbers {with_signs(units[1])}; write them so",
    )
    return column.numbers


def _one_hot(column: Column, spec: ColumnRecipe, out: NDArray[np.float32], source: str) -> list[str]:
    """Write the categories of `column` into `out` [rows, categories]; a note names those that nobody trained with."""
    position = {category: j for j, category in enumerate(spec["categories"])}
    folded = {fold(category): j for category, j in position.items()}
    others = position[RARE] if spec.get("rare") else None
    texts = column.spelled
    values = {str(text) for text in texts if text is not None}
    place = {text: position.get(text, folded.get(fold(text), others)) for text in values}
    for row, text in enumerate(texts):
        j = place.get(text)
        if j is not None:
            out[row, j] = 1.0
    unknown = [repr(text) for text in sorted(values) if place[text] is None]
    if not unknown:
        return []
    return [f"{source}: {spec['name']} has {listing(unknown)}, which no training row has: taken as missing"]


def _labels(table: Table, spec: LabelRecipe, need: bool) -> tuple[Tensor | None, list[str]]:
    name = spec["column"]
    problem, column = "", table.columns.get(name)
    if column is None:
        problem = f"{table.source} has no label column {name!r}"
    elif not column.present.all():
        problem = f"{table.source}: label {name!r} is missing in data row {int(np.argmin(column.present)) + 1}"
    elif spec["values"]:
        position = {value: j for j, value in enumerate(spec["values"])}
        spellings = spec.get("spellings", {})
        texts = column.spelled
        codes = [position.get(spellings.get(text, text), -1) for text in texts]
        if min(codes) >= 0:
            return torch.tensor(codes, dtype=torch.int64), []
        row = codes.index(-1)
        problem = (
            f"{table.source}: label {name!r} is {texts[row]!r} in data row {row + 1}, which is none of "
            f"{', '.join(spec['values'][:10])}"
        )
    elif column.problem is not None:
        problem = f"{table.source}: label {name!r} {complaint(*column.problem, choice='')}"
    elif column.numbers is None:
        problem = f"{table.source}: label {name!r} is text in data row {example(column)[0]} but must be a number"
    elif spec["above"] is not None:
        return torch.from_numpy((column.numbers > spec["above"]).astype(np.int64)), []
    else:
        scale = ColumnRecipe(
            name=name, kind="number", mean=spec["mean"], scale=spec["scale"], signs=spec.get("signs", [])
        )
        stored = _scaled(_numbers_of(column, scale, table.source), scale, table.source)
        return torch.from_numpy(stored.astype(np.float32)), []
    require(not need, f"{problem}; correct the file")
    return None, [f"{problem}: no labels were read"] if column is not None else []
