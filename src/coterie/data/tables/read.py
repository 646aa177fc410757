"""Read one client's table from CSV, Excel, Parquet, Stata, npz or a data frame. Nothing here runs code from a file."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.base.cures import Advice, Cure
from coterie.base.errors import InputError, explain_imports
from coterie.base.files import check_name, path_exists
from coterie.base.spelling import fold, legible, listing
from coterie.config.data import EVERY_FILE, Tables
from coterie.data.tables.blocks import parse
from coterie.data.tables.cells import (
    NOTHING,
    Column,
    Comma,
    Reading,
    Table,
    from_numbers,
    from_texts,
    number,
)

T = TypeVar("T")

SUFFIXES = (
    ".csv",
    ".tsv",
    ".csv.gz",
    ".tsv.gz",
    ".xlsx",
    ".parquet",
    ".dta",
    ".sav",
    ".npz",
)
_OTHER_TABLES = {
    ".xls",
    ".xlsm",
    ".xlsb",
    ".ods",
    ".numbers",
    ".feather",
    ".sas7bdat",
    ".rds",
    ".rdata",
}
_OTHER_TABLES |= {".dat", ".gz", ".zip"}

Numbers = NDArray[np.int64]
TypeColumn = Callable[[int, str, Numbers | None], Column]
"""Makes a column of its position, the name to use, and the numbers of the rows to take; None takes all."""

Columns = tuple[list[str], TypeColumn]
"""The header of a table, and what makes its columns."""


def reading_of(settings: Tables, client: str = EVERY_FILE) -> Reading:
    """Return how the file of `client` is read, or a table of all clients."""
    rename = {**settings.new_names(), **settings.new_names(client)}
    not_missing = dict(settings.not_missing)
    if settings.label is not None and settings.spellings:
        words = (*not_missing.get(settings.label, ()), *settings.spellings)
        not_missing[settings.label] = [w for w in words if str(w).lower() in NOTHING]
    return Reading(
        settings.missing,
        settings.categorical,
        rename,
        settings.columns_to_drop(client),
        {column: words for column, words in not_missing.items() if words},
        settings.lists,
    )


def suffix_of(file: Path) -> str:
    """Return the ending of a file in lower case, both of a packed table.

    >>> suffix_of(Path("north.CSV.gz")), suffix_of(Path("v1.2.parquet"))
    ('.csv.gz', '.parquet')
    """
    name = file.name.lower()
    for suffix in SUFFIXES:
        if suffix.endswith(".gz") and name.endswith(suffix):
            return suffix
    return file.suffix.lower()


def stem_of(file: Path) -> str:
    """Return the name of a file without its ending: that of the client.

    >>> stem_of(Path("folder/north.csv.gz"))
    'north'
    """
    return file.name[: len(file.name) - len(suffix_of(file))]


def files_of(folder: Path) -> dict[str, Path]:
    """Return the file of each client."""
    if not path_exists(folder, Path.is_dir):
        raise InputError(f"there is no folder {folder}; check the spelling")
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(
            ("~$", ".")
        ):  # Excel's mark of an open workbook; hidden files
            continue
        check_name(file)
        suffix, name = suffix_of(file), stem_of(file)
        if suffix in _OTHER_TABLES:  # no client is left out silently
            raise InputError(
                f"{file} cannot be read; save it as CSV, or move it out of the folder"
            )
        if suffix in SUFFIXES:
            if name in files:
                twin = files[name].name
                raise InputError(
                    f"{twin} and {file.name} in {folder} are both client {name!r}; rename one"
                )
            files[name] = file
    if not files:
        raise InputError(
            f"{folder} holds no file to read; put one {', '.join(SUFFIXES)} file per client there"
        )
    return files


def notes_on_other_files(folder: Path) -> list[str]:
    """Return a note on what may be the table of a client under another name: files of text or without ending, and folders of tables."""
    texts, folders = [], []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            suffixes = {suffix_of(file) for file in entry.iterdir()}
            if suffixes & set(SUFFIXES):
                folders.append(f"{entry.name}/")
        elif entry.is_file() and entry.suffix.lower() in (".txt", ""):
            texts.append(entry.name)
    names = [*texts, *folders]
    if not names:
        return []
    return [f"not read: {listing(names)} (put the table of a client there as NAME.csv)"]


ARRAY_LABELS = ("label", "labels", "target", "y")
"""How an array of labels is called where nobody says it."""


def holds_arrays(path: Path, arrays: bool | None, label: str | None = None) -> bool:
    """Return True if `path` is an npz of arrays: as the user says, or if one has three or more dimensions, which no table has.

    Raises `InputError` where nothing is said of whole numbers [rows, columns], which may be tokens as well as columns, or of zeros and
    ones in an array of labels, which may be several labels of a row: one of these as the label would have the others as inputs.
    """
    if path.suffix.lower() != ".npz":
        if arrays:
            raise InputError(
                f"{path} is not an npz file, so arrays = true does not apply; drop it"
            )
        return False
    if arrays is not None:
        return arrays
    content = read_arrays(path)
    if any(array.ndim > 2 for array in content.values()):
        return True
    cures = Cure("arrays", True), Cure("arrays", False)
    for key, array in content.items():
        if array.ndim != 2:
            continue
        of_labels = key in ARRAY_LABELS
        if label is not None:
            of_labels = label in (key, *(f"{key}.{i}" for i in range(array.shape[1])))
        if of_labels and array.shape[1] > 1 and np.isin(array, (0, 1)).all():
            raise InputError(
                Advice(
                    f"{path}: array {key!r} has {array.shape[1]} columns of 0 and 1: several labels a row? Then say {cures[0]}, "
                    f"else {cures[1]} and which of {key}.0 to {key}.{array.shape[1] - 1} is the label",
                    cures,
                )
            )
        if array.dtype.kind in "iu":
            raise InputError(
                Advice(
                    f"{path}: array {key!r} holds whole numbers [rows, columns], which may be sequences or columns; "
                    f"say {cures[0]}, or {cures[1]} for a table",
                    cures,
                )
            )
    return False


@dataclass(frozen=True)
class Sheet:
    """A table before its columns are typed: whether a column holds numbers or texts is told from the rows that are taken.

    Attributes:
        name: name of the client, or of the file.
        source: what a sentence calls it.
        header: names of the columns, as they are written.
        column: makes a column.
    """

    name: str
    source: str
    header: list[str]
    column: TypeColumn

    def table(self, reading: Reading) -> Table:
        """Return the table of all rows. Raises `InputError` that names the place and the cure."""
        names = self._names(reading)
        columns = {
            name: self.column(i, name, None) for i, name in enumerate(names) if name
        }
        table = self._finish(self.name, self.source, columns, names)
        if not len(table):
            raise InputError(
                f"{self.source} has no rows, only a header; add rows or remove it"
            )
        if "" not in self.header:
            return table
        note = f"{self.source}: a column without a name was left out"
        return replace(table, notes=(note, *table.notes))

    def parts(
        self,
        rows: Mapping[str, Numbers],
        readings: Mapping[str, Reading],
        without: Collection[str] = (),
    ) -> dict[str, Table]:
        """Return for each client the table of its rows, typed as if it were a file of its own.

        Args:
            rows: Row numbers by client.
            readings: How the table of each client is read.
            without: Columns that no client has, by their new names.
        """
        names = {client: self._names(readings[client]) for client in rows}
        columns: dict[str, dict[str, Column]] = {client: {} for client in rows}
        # Column by column, so that the cells of one alone are in memory as texts.
        for i in range(len(self.header)):
            for client, numbers in rows.items():
                name = names[client][i]
                if name and name not in without:
                    column = self.column(i, name, numbers)
                    columns[client][name] = column.with_rows(numbers)
        tables = {}
        for client, numbers in rows.items():
            source = f"{client} of {self.source}"
            table = self._finish(client, source, columns[client], names[client])
            tables[client] = replace(table, rows=numbers)
        return tables

    def _names(self, reading: Reading) -> list[str]:
        """Return the name to use for each column; empty for one that is not read."""
        reading.check(self.header, self.source)
        names = reading.names(self.header)
        seen_names: set[str] = set()
        for name in filter(None, names):
            if name in seen_names:
                raise InputError(
                    f"{self.source}: column {name!r} occurs twice; rename or delete one of them"
                )
            seen_names.add(name)
        return names

    def _finish(
        self, name: str, source: str, columns: dict[str, Column], names: list[str]
    ) -> Table:
        """Return the table of typed columns, with notes on those that were not read."""
        if not columns:
            raise InputError(
                f"{source} has no columns; give it a header line and rows, or remove it"
            )
        dropped, renamed = [], []
        for written, used in zip(self.header, names, strict=True):
            if written and not used:
                dropped.append(written)
            if used and written != used:
                renamed.append(written)
        notes = []
        if dropped:
            notes.append(f"{source}: left out: {', '.join(dropped)} (as asked)")
        return Table(name, source, columns, notes=tuple(notes), renamed=tuple(renamed))


def _sheet(name: str, source: str, content: Columns) -> Sheet:
    # Headers of spreadsheets have line breaks, which sentences and settings cannot show.
    header = [re.sub(r"\s*[\r\n\v\f]\s*", " ", legible(name)) for name in content[0]]
    return Sheet(name, source, header, content[1])


def read(
    path: str | Path, reading: Reading | None = None, *, name: str | None = None
) -> Table:
    """The table in the file `path`, as client `name` (else the file's stem).

    Raises `InputError` that names the file and the cure.
    """
    reading = reading or Reading()
    return open_sheet(path, reading, name=name).table(reading)


def open_sheet(path: str | Path, reading: Reading, *, name: str | None = None) -> Sheet:
    """Return the file `path` before its columns are typed; arguments and errors are those of `read`."""
    path = Path(path)
    if not path_exists(path, Path.is_file):
        raise InputError(f"there is no file {path}; check the spelling")
    readers = {
        ".csv": _csv,
        ".tsv": _csv,
        ".csv.gz": _csv,
        ".tsv.gz": _csv,
        ".xlsx": _xlsx,
        ".parquet": _parquet,
        ".dta": _stata,
        ".sav": _spss,
        ".npz": _npz,
    }
    if suffix_of(path) not in readers:
        raise InputError(
            f"{path}: cannot read {path.suffix or 'a file without ending'}; use {', '.join(SUFFIXES)}"
        )
    if path.stat().st_size <= 0:
        raise InputError(
            f"{path} is empty; give it a header line and rows, or remove it"
        )
    content = readers[suffix_of(path)](path, reading)
    return _sheet(name or stem_of(path), str(path), content)


def cells_of(path: str | Path) -> dict[str, Sequence[str]]:
    """Return the columns of a file as they are written; none of a file of arrays. Errors are those of `read`."""
    path = Path(path)
    columns: dict[str, Sequence[str]] = {}
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return columns
    if suffix == ".parquet":
        table = _parquet_table(path)
        for name, values in zip(table.column_names, table.columns, strict=True):
            texts = _texts_of_arrow(values)
            columns[name] = [text or "" for text in texts]
        return columns
    if suffix in (".dta", ".sav"):
        frame = _stata_frame(path) if suffix == ".dta" else _spss_frame(path)
        for name in frame.columns:
            present = frame[name].notna()
            columns[str(name)] = frame[name].astype(object).where(present, "").map(str)
        return columns
    if suffix == ".xlsx":
        header, cells = _xlsx_cells(path)
    else:
        header, cells = _csv_cells(path, *_csv_text(path))
    return dict(zip(header, cells, strict=True))


def _csv(path: Path, reading: Reading) -> Columns:
    text, separator = _csv_text(path)
    plain = parse(text, separator)
    if plain is None:
        header, cells = _csv_cells(path, text, separator)
        return header, lambda i, key, rows: _texts(
            _take(cells[i], rows), key, reading, comma=_comma(separator, text)
        )
    # All clients of a table ask for a column one after another.
    cells_of_column = lru_cache(maxsize=1)(plain.cells)

    def column(i: int, key: str, rows: Numbers | None) -> Column:
        missing = reading.missing.get(key, ())
        # A code for missing values that is a word is found among texts alone.
        codes = {fold(str(code)) for code in missing}
        has_numeric_codes = all(number(code) is not None for code in codes)
        if i in plain.numbers and has_numeric_codes and not reading.is_text(key):
            numbers = plain.numbers[i]
            if rows is not None:
                numbers = numbers[rows]
            return from_numbers(numbers, missing, padded=plain.is_padded(i))
        cells = _take(cells_of_column(i), rows)
        return _texts(cells, key, reading, comma=_comma(separator, text))

    return plain.header, column


def _csv_text(path: Path) -> tuple[str, str]:
    """Return the text of a file and its separator: the one of , ; tab | that cuts the first lines into most equal parts."""
    if suffix_of(path).endswith(".gz"):
        raw = _unpack(path)
    else:
        raw = path.read_bytes()
    encoding = "utf-8-sig"
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f'{path} is not UTF-8 text (byte {error.start}); save it as "CSV UTF-8"'
        ) from error
    nul = text.find("\0")  # as of UTF-16 without its mark
    if nul >= 0:
        raise InputError(
            f'{path} is not UTF-8 text (character {nul} is NUL); save it as "CSV UTF-8"'
        )
    text = re.sub(
        r"\Asep=.\r?(?=\n)", "", text
    )  # a word to Excel, which the first lines say as well
    first_lines = text.split("\n", 20)[:20]
    return text, _separator([line for line in first_lines if line.strip()])


def _unpack(path: Path) -> bytes:
    """Return the bytes of a packed file."""
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be unpacked ({_first_line(error)}); pack it again with gzip, or give the CSV itself"
        ) from error


def _csv_cells(
    path: Path, text: str, separator: str
) -> tuple[list[str], list[Sequence[str]]]:
    """Return header and columns of the text of a file."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    header: list[str] = []
    rows: list[list[str]] = []
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue  # blank lines, and the empty rows that spreadsheets leave at the end
            if not header:
                header = [cell.strip() for cell in row]
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}: line {reader.line_num} has {len(row)} cells but the header has {len(header)}; "
                    "correct that line (a separator inside a cell needs quotes) or delete what stands above the header"
                )
            rows.append(row)
    except csv.Error as error:
        if "field limit" in str(error):
            raise InputError(
                f"{path}: line {reader.line_num} has a cell of more than {csv.field_size_limit():,} characters; close a quote that is "
                "open, or take that text out"
            ) from error
        raise InputError(
            f"{path}: line {reader.line_num} cannot be read as CSV ({error}); correct that line"
        ) from error
    if not header:
        raise InputError(
            f"{path} is empty; give it a header line and rows, or remove it"
        )
    if not rows:
        return header, [()] * len(header)
    return header, list(zip(*rows, strict=True))


def _comma(separator: str, text: str) -> Comma:
    """Return the meaning of a comma in a number of `text`."""
    if separator == ",":
        return "thousands"
    if separator != ";":
        return ""
    return "decimal" if re.search(r"\d,\d", text) else "unseen"


def _separator(lines: Sequence[str]) -> str:
    best, most = ",", 1
    for candidate in ",;\t|":
        try:
            counts = {len(row) for row in csv.reader(lines, delimiter=candidate) if row}
        except csv.Error:  # the reader proper will say where
            continue
        if len(counts) == 1 and (count := counts.pop()) > most:
            best, most = candidate, count
    if (
        most == 1 and lines
    ):  # a ragged file: trust the header, so that the error names the line that is wrong
        best = max(",;\t|", key=lines[0].count)
    return best


def _xlsx(path: Path, reading: Reading) -> Columns:
    header, cells = _xlsx_cells(path)
    return header, lambda i, key, rows: _texts(_take(cells[i], rows), key, reading)


def _take(cells: Sequence[T], rows: Numbers | None) -> Sequence[T]:
    """Return the cells of these rows; None for all."""
    if rows is None:
        return cells
    return [cells[row] for row in rows.tolist()]


def _xlsx_cells(path: Path) -> tuple[list[str], list[Sequence[str]]]:
    """Header and columns of the only sheet of a workbook, its cells as a CSV would write them; formulas as they were last computed."""
    with explain_imports("reading Excel needs openpyxl", "data"):
        import openpyxl
    filled: dict[str, list[list[str]]] = {}  # rows with a cell, by sheet with a row
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        for sheet in book.worksheets:
            for cells in sheet.iter_rows():
                row = [_cell(cell) for cell in cells]
                if any(row):
                    filled.setdefault(sheet.title, []).append(row)
        book.close()
    except Exception as error:  # zipfile, xml and openpyxl each have their own
        raise InputError(
            f"{path} cannot be read as Excel ({_first_line(error)}); save it again"
        ) from error
    if not filled:
        raise InputError(
            f"{path} is empty; give it a header line and rows, or remove it"
        )
    if len(filled) != 1:
        raise InputError(
            f"{path} has {len(filled)} sheets with cells ({listing(list(filled))}); keep the one with the table"
        )
    (rows,) = filled.values()
    # A sheet may give each row another width, with cells that are empty at its end.
    width = 0
    for row in rows:
        while not row[-1]:
            row.pop()
        width = max(width, len(row))
    for row in rows:
        row += [""] * (width - len(row))
    header = [cell.strip() for cell in rows[0]]
    if len(rows) == 1:
        return header, [()] * width
    return header, list(zip(*rows[1:], strict=True))


def _cell(cell: Any) -> str:
    """A cell of Excel as text; one that is shown in percent is 100 times its value with the sign."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, float | int) and not isinstance(value, bool):
        if "%" in str(cell.number_format):
            return f"{value * 100:.15g}%"
        return repr(value)
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return str(value)


def _stata_frame(path: Path) -> Any:
    """The data frame in a file of Stata, its value labels as categories."""
    with explain_imports("reading Stata needs pandas", "data"):
        import pandas as pd
    try:
        return pd.read_stata(path)
    except Exception as error:  # pandas, struct and zlib each have their own
        raise InputError(
            f"{path} cannot be read as Stata ({_first_line(error)}); save it again, or as CSV"
        ) from error


def _stata(path: Path, reading: Reading) -> Columns:
    return _frame_columns(_stata_frame(path), reading)


def _spss_frame(path: Path) -> Any:
    """The data frame in a file of SPSS, its value labels as categories and its missing values as such."""
    with explain_imports("reading SPSS needs pandas and pyreadstat", "data"):
        import pandas as pd
        import pyreadstat
    try:
        return pd.read_spss(path)
    except (pyreadstat.ReadstatError, OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as SPSS ({_first_line(error)}); save it again, or as CSV"
        ) from error


def _spss(path: Path, reading: Reading) -> Columns:
    return _frame_columns(_spss_frame(path), reading)


def _frame_columns(frame: Any, reading: Reading) -> Columns:
    """Header and columns of a pandas frame."""

    def column(i: int, key: str, rows: Numbers | None) -> Column:
        series = frame.iloc[:, i]
        if rows is not None:
            series = series.iloc[rows]
        return _series(series, key, reading)

    return [str(key) for key in frame.columns], column


def _parquet_table(path: Path) -> Any:
    with explain_imports("reading Parquet needs pyarrow", "data"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        return pq.ParquetFile(
            path
        ).read()  # one file, whatever its folder is called: no Hive partitions
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as Parquet ({_first_line(error)}); write it again"
        ) from error


def _parquet(path: Path, reading: Reading) -> Columns:
    table = _parquet_table(path)
    import pyarrow as pa

    def column(i: int, key: str, rows: Numbers | None) -> Column:
        kind, values = table.schema.field(i).type, table.column(i)
        if rows is not None:
            values = values.take(pa.array(rows))
        if pa.types.is_temporal(kind):
            return _dates(_texts_of_arrow(values))
        # Besides times, integers, floats and booleans are primitive; decimals are not.
        if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
            numbers = values.cast(pa.float64(), safe=False).to_numpy()
            is_boolean = pa.types.is_boolean(kind)
            return _numbers(numbers, key, reading, boolean=is_boolean)
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            return _unreadable(len(values), str(kind))
        # A dictionary holds categories on purpose, even where they are written as numbers.
        cells = _texts_of_arrow(values)
        return _texts(cells, key, reading, chosen=pa.types.is_dictionary(kind))

    return table.column_names, column


def _texts_of_arrow(values: Any) -> list[str | None]:
    """The values of a column of pyarrow as texts; None for those that are missing."""
    return [None if value is None else str(value) for value in values.to_pylist()]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _numbers(
    values: Any, key: str, reading: Reading, *, boolean: bool = False
) -> Column:
    return from_numbers(values, reading.missing.get(key, ()), boolean=boolean)


def _texts(
    cells: Sequence[str | None],
    key: str,
    reading: Reading,
    *,
    comma: Comma = "",
    chosen: bool = False,
) -> Column:
    column = from_texts(
        cells,
        reading.missing.get(key, ()),
        comma=comma,
        category=chosen or key in reading.categorical or key in reading.lists,
        not_missing=reading.not_missing.get(key, ()),
    )
    return replace(column, separator=reading.lists.get(key, ""))


def _unreadable(n: int, kind: str) -> Column:
    """A column whose cells are neither numbers nor texts, such as lists: refused where it is used."""
    texts = np.empty(n, dtype=object)
    texts[:] = kind
    return Column("text", None, texts, problem=("nested", 1, kind))


def _dates(cells: Sequence[str | None]) -> Column:
    """A column of dates and times, as texts that begin with the year; None where none is."""
    texts = np.empty(len(cells), dtype=object)
    texts[:] = cells
    kind = "date" if any(cells) else "empty"
    return Column(kind, None, texts)


def _texts_of_times(values: np.ndarray[Any, Any]) -> list[str | None]:
    """The texts of datetime64 or timedelta64 [rows]; None for those that are missing."""
    return [None if value == "NaT" else value for value in values.astype(str)]


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an npz file. Raises `InputError` for a damaged file or one with pickled objects."""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not hasattr(archive, "files"):
                raise InputError(
                    f"{path} is one array and no npz archive; use numpy.savez"
                )
            return {key: archive[key] for key in archive.files}
    except InputError:
        raise
    except Exception as error:  # zipfile, zlib, struct and numpy each have their own
        cure = "write it again with numpy.savez"
        if "pickle" in str(error):
            cure = "save numbers and texts only"
        raise InputError(
            f"{path} cannot be read as npz ({_first_line(error)}); {cure}"
        ) from error


def _npz(path: Path, reading: Reading) -> Columns:
    """Each 1-D array is a column, each 2-D array `a` is columns a.0, a.1, ..."""
    arrays = read_arrays(path)
    if not arrays:
        raise InputError(
            f"{path} holds no arrays; give it one per column, or remove it"
        )
    parts: dict[str, np.ndarray[Any, Any]] = {}
    for key, array in arrays.items():
        if array.ndim not in (1, 2):
            raise InputError(
                f"{path}: array {key!r} has shape {list(array.shape)}; a table needs [rows, columns]"
            )
        if array.ndim == 1:
            parts[key] = array
            continue
        for i in range(array.shape[1]):
            parts[f"{key}.{i}"] = array[:, i]
    lengths = {key: len(array) for key, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(
            f"{path}: arrays differ in length ({lengths}); give one entry per row"
        )
    values = list(parts.values())

    def column(i: int, key: str, rows: Numbers | None) -> Column:
        if rows is None:
            return _array(values[i], key, reading)
        return _array(values[i][rows], key, reading)

    return list(parts), column


def _array(values: np.ndarray[Any, Any], key: str, reading: Reading) -> Column:
    if values.dtype.kind in "biuf":
        return _numbers(values, key, reading, boolean=values.dtype.kind == "b")
    if values.dtype.kind in "mM":
        return _dates(_texts_of_times(values))
    if values.dtype.kind not in "US":
        return _unreadable(len(values), str(values.dtype))
    return _texts(values.astype(str).tolist(), key, reading)


def read_frame(
    frame: Any, reading: Reading | None = None, *, name: str, source: str | None = None
) -> Table:
    """The table in a pandas data frame (or a polars one, by its `to_pandas`), as client `name`."""
    source, reading = source or f"frame {name!r}", reading or Reading()
    if not hasattr(frame, "iloc") and hasattr(frame, "to_pandas"):
        frame = frame.to_pandas()
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
        raise InputError(f"{source} is not a data frame; give a pandas DataFrame")
    return _sheet(name, source, _frame_columns(frame, reading)).table(reading)


def _series(series: Any, key: str, reading: Reading) -> Column:
    kind = getattr(series.dtype, "kind", "O")
    if kind in "mM":
        return _dates(_texts_of_times(series.to_numpy(dtype=f"{kind}8[ns]")))
    if kind in "biuf":  # numpy's types and pandas' own nullable ones
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return _numbers(numbers, key, reading, boolean=kind == "b")
    cells: list[str | None] = []
    for value, is_missing in zip(series.tolist(), series.isna(), strict=True):
        cells.append(None if is_missing else str(value))
    # Categories on purpose, even where they are written as numbers.
    is_categorical = str(series.dtype) == "category"
    return _texts(cells, key, reading, chosen=is_categorical)
