"""The file that says where an error arose that nobody expected."""

from __future__ import annotations

import traceback
from pathlib import Path

CRASH = "coterie-crash.txt"
"""The file that holds the traceback of an error that nobody expected."""


def write_crash(error: BaseException, folder: Path) -> str:
    """Write where an unexpected error arose to `folder`, or else to the current one; returns a sentence that says so.

    The file has files, lines, functions and types of errors, but neither messages nor values, so that it can be sent to somebody.
    """
    lines: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        lines.append(type(cause).__name__)
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            lines.append(f"  {frame.filename}, line {frame.lineno}, in {frame.name}")
        cause = cause.__cause__ or cause.__context__
    where = ""
    for frame in traceback.extract_tb(error.__traceback__)[-1:]:
        where = f" ({Path(frame.filename).name}, line {frame.lineno})"
    place = "the traceback cannot be written here; --debug shows it"
    for path in (folder / CRASH, Path(CRASH)):
        try:
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError:
            continue
        place = f"the traceback is in {path}, please report it"
        break
    return f"unexpected {type(error).__name__}{where}; {place}"
