"""UCI Heart Disease: four hospitals, 920 patients, is a coronary artery narrowed?

The files are embedded (CC BY 4.0; see `files/heart_disease/LICENSE.md` for the investigators to be named). The label is
`num > 0`. The data has traps, and this is how each is treated:

- Zeros that mean "missing": Serum cholesterol (`chol`) is 0 for all 123 Swiss patients and 49 of Long Beach, resting
  blood pressure (`trestbps`) for one of Long Beach. Nobody alive has these values: they count as missing. `chol` stays
  in, since three hospitals measured it; for a Swiss patient the mean of the others stands in and says nothing.
- Columns that are almost empty: `ca` and `thal` are missing for 99 and 83 % of the patients at Long Beach, 99 and
  90 % in Hungary, `ca` for 96 % in Switzerland; `slope` for 65 % in Hungary and 51 % at Long Beach. They are left out:
  where such a value is missing depends on the patient, and the imputed rest would be one hospital's opinion.
- Fasting blood sugar (`fbs`, 0 or 1) is missing for 75 of 123 Swiss patients, other columns for up to 28 % of Long
  Beach. A missing value becomes the pooled share or mean of the training rows, which is 0 after scaling: no opinion.
- Codes that look like numbers: Chest pain `cp` (1 typical angina, 2 atypical, 3 other pain, 4 no pain) and the
  resting ECG `restecg` (0 normal, 1 ST-T abnormality, 2 hypertrophy) have no order: one column per code.
- Hungary's grades: 1 to 4 are merged into 1 there, so only `num > 0` means the same everywhere.

That leaves 10 columns (age, sex, cp, trestbps, chol, fbs, restecg, thalach, exang, oldpeak), 15 features after one-hot.
Means and scales are pooled over the hospitals from n, sum and sum of squares of their training rows. Negative `oldpeak`
(12 patients) is a real reading, ST elevation, and stays. Two pairs of identical rows stay too: the files do not
say whether they are two patients.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.config.data import DEFAULT_PARTS, Split, Tables
from coterie.data.sets import Dataset
from coterie.data.tables.folder import from_folder

FOLDER = Path(__file__).parent / "files" / "heart_disease"
CLASSES = ("no disease", "disease")
OPTIONS: Mapping[str, Any] = {
    "label": "num",
    "above": 0,
    "classes": CLASSES,
    "categorical": ("cp", "restecg"),
    "drop": ("ca", "slope", "thal"),
    "missing": {"chol": [0], "trestbps": [0]},
    "meaning": "narrowed coronary artery",
}
"""How the hospitals' files are read, for whoever holds one of them."""


def heart_disease(
    *, seed: int = 0, split: Split | Mapping[str, Any] | None = None
) -> Clients:
    """Clients cleveland, hungary, long-beach and switzerland; 15 features, classes "no disease" and "disease".

    `split` takes `seed` and `parts`; the default is a third for test and a fifth of the rest for validation, stratified.
    """
    return from_folder(
        FOLDER, tables=Tables(**OPTIONS), split=split, seed=seed, name="heart-disease"
    )


def export(folder: Path, *, server_rows: int = 0) -> list[Path]:
    """Write the four hospitals' files to a new `folder`, and `server.csv` beside it if a server is to hold rows.

    Args:
        folder: must not exist.
        server_rows: rows that are taken out of the hospitals' files, evenly over all patients; >= 0 and at most a quarter of them.

    Returns:
        The files.

    Raises:
        InputError: the folder exists, or too many rows.
    """
    if folder.exists():
        raise InputError(f"{folder} exists already; name a new folder")
    read = {
        path.name: path.read_text(encoding="utf-8").splitlines()
        for path in sorted(FOLDER.glob("*.csv"))
    }
    patients = [
        (name, row) for name, lines in read.items() for row in range(1, len(lines))
    ]
    most = len(patients) // 4
    if not 0 <= server_rows <= most:
        raise InputError(f"server_rows must be from 0 to {most}; got {server_rows}")
    server_patients = {
        patients[i * len(patients) // server_rows] for i in range(server_rows)
    }
    folder.mkdir(parents=True)
    files = []
    for name, lines in read.items():
        remaining = [
            lines[0],
            *(
                lines[row]
                for row in range(1, len(lines))
                if (name, row) not in server_patients
            ),
        ]
        (folder / name).write_text("\n".join(remaining) + "\n", encoding="utf-8")
        files.append(folder / name)
    if server_patients:
        header = next(iter(read.values()))[0]
        rows = [read[name][row] for name, row in sorted(server_patients)]
        files.append(folder.parent / "server.csv")
        files[-1].write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return files


DATASET = Dataset(
    "UCI Heart Disease: 920 patients, 15 features, embedded",
    "4 hospitals: cleveland, hungary, long-beach, switzerland",
    "2 classes: no disease, disease",
    "CC BY 4.0",
    heart_disease,
    {"split": {"parts": dict(DEFAULT_PARTS)}},
)
