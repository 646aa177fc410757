"""Ten folders as users have them: tables of scikit-learn and the four hospitals, with the faults that real files have.

`python tests/data/folders.py FOLDER` writes all of them, each beside the same tables without faults (NAME-clean).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.sets.heart_disease import FOLDER as HEART
from coterie.data.sets.heart_disease import OPTIONS

Columns = Mapping[str, list[Any]]
Write = Callable[[Path, str, Columns], None]


def plain(
    folder: Path,
    name: str,
    columns: Columns,
    *,
    separator: str = ",",
    encoding: str = "utf-8",
) -> None:
    """A CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.csv").open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerows([list(columns), *zip(*columns.values(), strict=True)])


def german(folder: Path, name: str, columns: Columns) -> None:
    """Semicolons, decimal commas and a byte order mark."""
    commas = {
        key: [str(v).replace(".", ",") if isinstance(v, float) else v for v in values]
        for key, values in columns.items()
    }
    plain(folder, name, commas, separator=";", encoding="utf-8-sig")


def excel(folder: Path, name: str, columns: Columns) -> None:
    """A workbook."""
    import openpyxl

    folder.mkdir(parents=True, exist_ok=True)
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for row in [list(columns), *zip(*columns.values(), strict=True)]:
        sheet.append([None if v == "" else v for v in row])
    book.save(folder / f"{name}.xlsx")


def breast(sizes: Mapping[str, int], seed: int = 0) -> dict[str, dict[str, list[Any]]]:
    """Rows of scikit-learn's breast cancer table by client: the ten means, and the diagnosis in words."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names = [n.replace(" ", "_") for n in bunch.feature_names[:10]]
    order, tables, at = (
        np.random.default_rng(seed).permutation(len(bunch.target)),
        {},
        0,
    )
    for client, size in sizes.items():
        rows = order[np.arange(at, at + size) % len(order)]
        at += size
        tables[client] = {
            name: bunch.data[rows, i].tolist() for i, name in enumerate(names)
        }
        tables[client]["diagnosis"] = [
            str(bunch.target_names[t]) for t in bunch.target[rows]
        ]
    return tables


def diabetes(factor: float = 1.0) -> dict[str, dict[str, list[Any]]]:
    """scikit-learn's diabetes table in two clients; the label, times `factor`, is a number to regress on."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    order = np.random.default_rng(1).permutation(len(bunch.target))
    tables = {}
    for client, rows in (("large", order[:330]), ("small", order[330:])):
        tables[client] = {
            name: bunch.data[rows, i].tolist()
            for i, name in enumerate(bunch.feature_names)
        }
        tables[client]["progression"] = [
            repr(float(v)) for v in bunch.target[rows] * factor
        ]
    return tables


def hospitals() -> dict[str, dict[str, list[Any]]]:
    """The four hospitals as their files say, cells as texts."""
    tables = {}
    for path in sorted(HEART.glob("*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        tables[path.stem] = {
            key: [row[key].removesuffix(".0") for row in rows] for key in rows[0]
        }
    return tables


@dataclass(frozen=True)
class Folder:
    """One of the ten.

    Attributes:
        clean: the tables without faults.
        spoil: what a client's tables become, and how they are written.
        options: of `from_folder`, for both.
        notes: parts of notes that a user must see.
        refusal: the one sentence (a pattern) without `cure`, if it is refused.
        cure: the options that the sentence asks for.
    """

    clean: Callable[[], dict[str, dict[str, list[Any]]]]
    spoil: Callable[[str, dict[str, list[Any]]], tuple[dict[str, list[Any]], Write]]
    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    refusal: str | None = None
    cure: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the folder to `path`, and the clean one beside it."""
        for name, columns in self.clean().items():
            plain(path.with_name(f"{path.name}-clean"), name, columns)
            spoiled, how = self.spoil(name, columns)
            how(path, name, spoiled)


THREE = {"berlin": 200, "kiel": 200, "ulm": 169}


def _dialects(
    name: str, columns: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], Write]:
    return columns, {"berlin": german, "kiel": excel}.get(name, plain)


def _signs(
    name: str, columns: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], Write]:
    share = [f"{v!r}%" for v in columns["mean_smoothness"]]
    area = [f"{v:,}" for v in columns["mean_area"]]
    return {
        **columns,
        "mean_smoothness": share,
        "mean_area": area,
        "mean_radius": [f"EUR {v}" for v in columns["mean_radius"]],
    }, plain


def _extras(
    name: str, columns: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], Write]:
    n = len(columns["diagnosis"])
    more = {
        "PatientID": [10_000 + 7 * i for i in range(n)],
        "case": list(range(n)),
        "admitted": [f"2023-{i % 12 + 1:02d}-{i % 28 + 1:02d}" for i in range(n)],
        "seen": [f"{i % 28 + 1}.{i % 12 + 1}.2023" for i in range(n)],
        "remarks": [
            f"{name}: patient {i} felt better on day {i % 9}" for i in range(n)
        ],
    }
    return {**more, **columns}, plain


def _renamed(
    name: str, columns: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], Write]:
    return {
        key.upper() if name == "ulm" and key == "mean_radius" else key: v
        for key, v in columns.items()
    }, plain


def _spelled(
    name: str, columns: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], Write]:
    words = {"malignant": "Malignant ", "benign": "benign"} if name == "kiel" else {}
    return {
        **columns,
        "diagnosis": [words.get(v, v) for v in columns["diagnosis"]],
    }, plain


def _unchanged(
    name: str, columns: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], Write]:
    return columns, plain


def _unknown(
    name: str, columns: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], Write]:
    words = ("unknown", "-", "NA", "?", "")
    age = [words[i % 5] if i % 11 == 0 else v for i, v in enumerate(columns["age"])]
    sex = [
        v.capitalize() if name == "hungary" and v == "male" else v
        for v in columns["sex"]
    ]
    return {**columns, "age": age, "sex": sex}, plain


def _known(words: Mapping[str, str]) -> Callable[[], dict[str, dict[str, list[Any]]]]:
    def tables() -> dict[str, dict[str, list[Any]]]:
        out = hospitals()
        for columns in out.values():
            columns["age"] = [
                "" if i % 11 == 0 else v for i, v in enumerate(columns["age"])
            ]
            columns["sex"] = [words.get(v, v) for v in columns["sex"]]
        return out

    return tables


def _limits(
    name: str, columns: dict[str, list[Any]]
) -> tuple[dict[str, list[Any]], Write]:
    whole = breast(THREE)[name]
    radius = [f"{v:g} mm" if name == "kiel" else v for v in whole["mean_radius"]]
    perimeter = [
        "<80" if name == "ulm" and i == 4 else v
        for i, v in enumerate(whole["mean_perimeter"])
    ]
    return {"mean_radius": radius, "mean_perimeter": perimeter, **columns}, plain


def _without(*names: str) -> Callable[[], dict[str, dict[str, list[Any]]]]:
    return lambda: {
        c: {k: v for k, v in t.items() if k not in names}
        for c, t in breast(THREE).items()
    }


def fifty(large: int = 300) -> dict[str, dict[str, list[Any]]]:
    """Fifty clients, of which one has `large` rows."""
    return breast({f"site-{i:02d}": large if i == 17 else 12 + i for i in range(50)})


def _with_wards() -> dict[str, dict[str, list[Any]]]:
    out = breast(THREE)
    for name, columns in out.items():
        columns["ward"] = [
            f"{name} {i}" if i % 20 == 0 else "ABC"[i % 3]
            for i in range(len(columns["diagnosis"]))
        ]
    return out


DIAGNOSIS = {"label": "diagnosis"}

FOLDERS: Mapping[str, Folder] = {
    "dialects": Folder(lambda: breast(THREE), _dialects, DIAGNOSIS),
    "signs": Folder(
        lambda: breast(THREE), _signs, DIAGNOSIS,
        ("mean_smoothness: read as numbers, without the percent signs (berlin, kiel, ulm)",
         "mean_area: read as numbers, without the thousands commas (berlin, kiel, ulm)",
         "mean_radius: read as numbers, without the EUR (berlin, kiel, ulm)"),
    ),
    "extras": Folder(
        lambda: breast(THREE), _extras, DIAGNOSIS,
        ("left out: PatientID, case (whole numbers", "left out: admitted, seen (dates", "left out: remarks (every row has"),
    ),
    "renamed": Folder(
        lambda: breast(THREE), _renamed, DIAGNOSIS, (),
        r"ulm.csv has a column 'MEAN_RADIUS' where 'berlin' has 'mean_radius'", {"rename": {"MEAN_RADIUS": "mean_radius"}},
    ),
    "spelled": Folder(
        lambda: breast(THREE), _spelled, DIAGNOSIS, (),
        r"label 'diagnosis' is 'Malignant' at kiel and 'malignant' at berlin, ulm",
        {"classes": {"benign": ["benign"], "malignant": ["malignant", "Malignant"]}},
    ),
    "tiny": Folder(lambda: breast({**THREE, "three": 3}), _unchanged, DIAGNOSIS),
    "unknown": Folder(
        _known({"1": "male", "0": "female"}), _unknown, dict(OPTIONS),
        ("age: '-', 'unknown' taken as missing", "sex: 'Male', 'male' are one category"),
    ),
    "limits": Folder(
        _without("mean_radius", "mean_perimeter"), _limits, DIAGNOSIS, ("left out: mean_perimeter, mean_radius (as asked)",),
        r"kiel.csv: column 'mean_radius' has '.* mm' in data row 1; write the number alone",
        {"drop": ["mean_radius", "mean_perimeter"]},
    ),
    "fifty": Folder(fifty, _unchanged, DIAGNOSIS),
    "wards": Folder(_with_wards, _unchanged, {**DIAGNOSIS, "rare": 5}, ("ward: categories of too few training rows",)),
}  # fmt: skip
"""The ten folders by name; the diabetes table in three units (`diabetes`) is in test_ten_folders.py."""


if __name__ == "__main__":
    for key, made in FOLDERS.items():
        made.write(Path(sys.argv[1]) / key)
    for label, factor in (("one", 1.0), ("thousand", 1000.0), ("hundredth", 0.01)):
        for name, columns in diabetes(factor).items():
            plain(Path(sys.argv[1]) / f"unit-{label}", name, columns)
