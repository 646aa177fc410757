"""The files of experiments/results: a row for each finished run of one method with one seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coterie.base.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
BENCHMARKS = ROOT / "benchmarks" / "results"


class Row(NamedTuple):
    """One finished run.

    Attributes:
        method: label.
        seed: of the run.
        settings: hash of the tables that it was run with.
        commit: of the code.
        n_train, n_test: training rows, and test rows of one seed, of the clients that count.
        values: a number by quantity; None where it is undefined.
        curves: rounds and numbers by quantity.
        machine: class of machine.
        torch: version of PyTorch.
        seconds: CPU time that the run took; of the two benchmarks whose runs end in a plateau, time on the clock.
    """

    method: str
    seed: int
    settings: str
    commit: str
    n_train: int
    n_test: int
    values: Mapping[str, float | None]
    curves: Mapping[str, Sequence[Sequence[float]]] = {}
    machine: str = ""
    torch: str = ""
    seconds: float = 0.0


class Document(NamedTuple):
    """The rows of one experiment.

    Attributes:
        name: of the experiment.
        rounds: of each run.
        rows: sorted by method and seed.
    """

    name: str
    rounds: int
    rows: Sequence[Row]

    def by_seed(self, quantity: str, method: str) -> dict[int, float]:
        """The defined numbers of a quantity by seed."""
        rows = [row for row in self.rows if row.method == method]
        return {
            row.seed: value
            for row in rows
            if (value := row.values.get(quantity)) is not None
        }


def read(name: str, folder: Path = RESULTS) -> Document | None:
    """The document of an experiment; None if it has no file."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    saved = json.loads(path.read_text(encoding="utf-8"))
    return Document(
        saved["name"], saved["rounds"], [Row(**row) for row in saved["rows"]]
    )


def write(document: Document, folder: Path = RESULTS) -> None:
    """Write a document, one run a line, so that a further run adds a line."""
    head = {"name": document.name, "rounds": document.rounds}
    rows = ",\n".join(
        json.dumps(row._asdict(), allow_nan=False) for row in document.rows
    )
    text = f'{json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}\n'
    write_atomically(
        folder / f"{document.name}.json",
        lambda path: path.write_text(text, encoding="utf-8"),
    )
