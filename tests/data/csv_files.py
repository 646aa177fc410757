"""Small tables for the tests of `coterie.data`."""

from __future__ import annotations


def folder(tmp_path, **files):
    """A folder with these files; texts are CSV, everything else is written by the test."""
    for name, text in files.items():
        mode = "wb" if isinstance(text, bytes) else "w"
        with open(
            tmp_path / f"{name}.csv", mode, **({} if mode == "wb" else {"newline": ""})
        ) as file:
            file.write(text)
    return tmp_path


def rows(**columns):
    """A CSV text with these columns."""
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    return "\n".join(lines) + "\n"


def notes(clients):
    return "; ".join(clients.notes)
