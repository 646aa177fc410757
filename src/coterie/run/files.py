"""The files of a run directory that people and reports read: their columns, and how they are written. Needs neither torch nor numpy."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coterie import __version__
from coterie.base.errors import InputError
from coterie.base.files import json_text, read_json, write_atomically
from coterie.base.metric_names import BOUNDS, DEFAULT_METRICS, ERRORS, LOSSES
from coterie.run.hashes import record_or_none

SUMMARY = (
    "method", "algorithm", "fold", "seed", "client", "split", "n", "n_train", "majority", "majority_loss", "row_gradients", "own_model",
    "rounds", "unseen",
)  # fmt: skip
"""Columns of summary.json beside the metrics, which stand before `majority`: a row is the last model of one run on one client's rows of
one split, and `unseen` stands only where it is true. docs/run-directory.md says what each is."""

ALL = "all"
"""In place of a fold's number: nothing is tested, and all rows train."""

OUTSIDE_GAIN, OUTSIDE_ERROR = "outside_gain", "outside_error"
"""In the prior of a run, of each client [m]: its mean gain over a constant prediction by a model of the others alone, and its error."""

PAIRED = "paired.json"
"""Errors of paired differences that sites have told, whose rows are elsewhere."""

REPORT = "report.html"
"""The report for people, which `coterie report` writes anew."""
RUNS = "runs.json"
"""Which runs were combined, in the folder of a combination: of each its name, the number of its table, and the seeds of its results."""

FILES = "files.json"
"""SHA-256 of each Python file of the user's own that the experiment names."""

OBJECT = "python:"
"""Prefix of the name of an object that only a Python program has: `python:CLASS:HASH`."""

METRICS = (*DEFAULT_METRICS, "loss")
"""Metrics of which reports know the order; further columns of summary.json are those that a run asked for beside them."""

YARDSTICKS = ("trees-alone", "trees-pooled")
"""Methods that a comparison is shown beside, but that nobody chooses: trees of each client alone, and of all rows in one place."""

LOWEST_IS_BEST = (
    "loss",
    "error",
    "mse",
    "mae",
    "rmse",
    "deviance",
    "brier",
    "ece",
    "perplexity",
    "nll",
)
"""Last words of the names of metrics of one's own of which lower is better."""

HISTORY: tuple[str, ...] = (
    "method",
    "seed",
    "fold",
    "round",
    "client",
    "split",
    "metric",
    "value",
)
WEIGHTS: tuple[str, ...] = (
    "method",
    "seed",
    "fold",
    "round",
    "target",
    "client",
    "weight",
)
FEWEST_VALIDATION_ROWS = 10
"""Validation rows of a client below which no contribution to it is told."""
CONTRIBUTIONS: tuple[str, ...] = (
    "method",
    "seed",
    "fold",
    "round",
    "target",
    "client",
    "phi",
    "error",
)
TIMING: tuple[str, ...] = ("method", "seed", "fold", "round", "seconds", "own")
ASKS: tuple[str, ...] = ("method", "seed", "fold", "round", "ask", "task")
"""Columns of the CSV files; those of asks.csv are followed by the fields of `contract.federation.ClientCost`."""


LONG_HISTORY = "history.safetensors"
"""In place of history.csv where that would have more than `LONGEST_CSV` lines: the same numbers in columns."""
LONGEST_CSV = 50_000


WRITER: Mapping[str, Any] = {"format": 4, "coterie": __version__}
"""The writer of a run directory (`format.json`) and a checkpoint. The number goes up where another version would misread them."""


def require_format(written: Mapping[str, Any], path: Path) -> None:
    """Raise `InputError` unless `written`, read from `path`, says that this version of coterie reads the files."""
    version = written.get("coterie", "of an older version")
    number = written.get("format", 1)
    if number != WRITER["format"]:
        raise InputError(
            f"{path} was written by coterie {version} in format {number}, but this version reads format {WRITER['format']}; "
            "repeat the run in another folder, or use the version that wrote it"
        )


def require_readable(folder: Path) -> None:
    """Raise `InputError` for a run directory of another format."""
    path = folder / "format.json"
    try:
        written = {}
        if path.is_file():
            written = read_json(path, dict)
    except InputError as error:
        # It can be written again, if the seals of what is complete say that this version did.
        if not any(map(record_or_none, folder.glob("checkpoint/*/done.json"))):
            raise InputError(
                f"{path} is damaged, and no method is complete; repeat the run in another folder"
            ) from error
        written = dict(WRITER)
    require_format(written, folder)


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write JSON under a temporary name and rename it; NaN is an error, since JSON has none."""
    text = json_text(value)
    write_atomically(
        path, lambda p: p.write_text(text + "\n", encoding="utf-8"), durable=durable
    )


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV under a temporary name and rename it."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    escaped = _Escaped()
    # A loop of statements takes twice as long, and a history has many rows.
    writer.writerows(
        [escaped[cell] if type(cell) is str else cell for cell in row] for row in rows
    )
    write_atomically(path, lambda p: p.write_text(buffer.getvalue(), encoding="utf-8"))


class _Escaped(dict[str, str]):
    """Texts as they are written, made when they are first looked up: a few names fill most of a long table."""

    def __missing__(self, text: str) -> str:
        self[text] = escape(text)
        return self[text]


_FORMULA = re.compile(r"'*[=+@\t\r-].")


def escape(cell: Any) -> Any:
    """A cell of a CSV file that no spreadsheet takes for a formula: such a text gets an apostrophe in front, which `unescape` removes.

    >>> [escape(cell) for cell in ("=SUM(A1)", "-1.5", "+", "ward", 3)]
    ["'=SUM(A1)", '-1.5', '+', 'ward', 3]
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _is_number(cell):
        return f"'{cell}"
    return cell


def unescape(text: str) -> str:
    """The text that `escape` was given."""
    if text.startswith("'") and _FORMULA.match(text):
        return text[1:]
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def higher_is_better(metric: str) -> bool:
    """Return False for losses and errors, True for other metrics; of one that coterie does not bring the last word of its name decides.

    >>> higher_is_better("auc"), higher_is_better("horizon_calibration"), higher_is_better("my_loss")
    (True, False, False)
    """
    if metric in BOUNDS:
        return metric not in ERRORS
    return not any(
        metric == word or metric.endswith(("_" + word, "-" + word))
        for word in LOWEST_IS_BEST
    )


def own_files(tables: Any) -> tuple[str, ...]:
    """The Python files that the tables of an experiment name, each as it is named: importing one runs what is in it.

    >>> own_files({"methods": [{"name": "fedavg"}, {"name": "mine.py:Mine"}], "run": {"metrics": ["mine.py:f"]}})
    ('mine.py',)
    """
    files = [text.rpartition(":")[0] for text in _texts(tables) if ".py:" in text]
    return tuple(dict.fromkeys(files))


def own_loss(experiment: Mapping[str, Any]) -> bool:
    """Return True if the loss of an experiment.toml is the user's own, which has neither the name nor the scale of coterie's."""
    run = experiment.get("run")
    return isinstance(run, Mapping) and run.get("loss", "auto") not in LOSSES


def own_objects(tables: Any) -> tuple[str, ...]:
    """The objects of a Python program that the tables of an experiment name.

    >>> own_objects({"methods": [{"name": "fedavg"}, {"name": "python:Mine:0f3a"}]})
    ('python:Mine:0f3a',)
    """
    objects = [text for text in _texts(tables) if text.startswith(OBJECT)]
    return tuple(dict.fromkeys(objects))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def hash_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal. Raises `InputError` if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error


def refuse_links(folder: Path) -> None:
    """Raise `InputError` if there is a link in a run directory: whoever made it would choose what is overwritten."""
    link = next((path for path in folder.rglob("*") if path.is_symlink()), None)
    if link is not None:
        raise InputError(
            f"{link} is a link, and nothing is written through a link; put what it leads to in its place"
        )


def safe_name(name: str) -> str:
    """`name` as part of a file name; two names never become one (for disks that take `a` for `A` see `refuse_names_alike`).

    >>> safe_name("St. Mary's, ward 1/2")
    'St. Mary%27s%2C ward 1%2F2'
    """
    safe = ""
    for c in name:
        is_safe = c.isalnum() or c in "-_. +"
        safe += c if is_safe else f"%{ord(c):02X}"
    return safe


def refuse_names_alike(names: Iterable[str], what: str) -> None:
    """Raise `InputError` if two names differ in case alone, or in how an accent is spelled: many disks take their files for one.

    Args:
        names: of things that each have files of their own.
        what: what has the names, such as "clients".
    """
    seen: dict[str, str] = {}
    for name in names:
        on_disk = unicodedata.normalize("NFC", name).casefold()
        other = seen.setdefault(on_disk, name)
        if other != name:
            raise InputError(
                f"{what} {other!r} and {name!r} differ in case or in the bytes of an accent alone, "
                "and many disks would take their files for one; rename one"
            )


def seed_suffix(seed: int | str, fold: str = "") -> str:
    """Return the end of the name of each file of a seed, and of one fold of it where a run has folds.

    >>> seed_suffix(0), seed_suffix(0, "3"), seed_suffix(0, "all")
    ('0', '0-k3', '0-kall')
    """
    return f"{seed}-k{fold}" if fold else str(seed)
