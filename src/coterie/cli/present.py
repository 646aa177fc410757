"""What a command says at the end of a run: its answer, or how it goes on once it is stopped."""

from __future__ import annotations

import argparse
import errno
import json
import shlex
import sys
from pathlib import Path

from coterie.base.errors import InputError
from coterie.cli.show import say

MENDED = "once this is mended, go on"


def rounds_on_disk(every: int | None) -> str:
    """Say which complete rounds are saved."""
    if every is None:
        return "rounds are saved, but for the last half second at most"
    if every == 1:
        return "every complete round is saved"
    return f"one round in {every} is saved"


def goes_on(folder: Path, *command: str) -> str:
    """Say by which command a run that stopped goes on: this one, or one that names the file in its folder."""
    command_line = shlex.join(
        ["coterie", *(command or ("run", str(folder / "experiment.toml"))), "--resume"]
    )
    return f"with:\n  {command_line}"


def present(
    folder: Path,
    args: argparse.Namespace,
    html: bool,
    insist: bool = False,
    threshold: float | str | None = None,
    smallest: float | None = None,
) -> int:
    """Print the answer of a run, with its report where one is wanted, and return the exit status.

    Args:
        folder: run directory.
        args: `json` and `tables` say in which form.
        html: whether a report is written.
        insist: a report that cannot be made is an error.
        threshold: as of `Results.load`.
        smallest: as of `Results.load`.
    """
    from coterie.base.files import read_json
    from coterie.report.answer import answer_lines, width_of_terminal
    from coterie.report.privacy import curve_lines, curves_as_json
    from coterie.report.results import Results
    from coterie.report.table import render
    from coterie.report.verdicts import verdict

    mend(folder)
    results = Results.load(folder, threshold, smallest)
    page: Path | None = None
    missing = ""
    if html:
        from coterie.report.html import write_page

        try:
            page = write_page(results)
        except InputError as error:  # after hours of training, a report that cannot be made is no failure
            if insist:
                raise
            missing = str(error)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            missing = f"{folder} cannot be written ({error.strerror})"
    if args.json:
        rows = read_json(folder / "summary.json", list)
        verdicts = {
            client: verdict(results, client)._asdict() for client in results.clients
        }
        answer = {
            "folder": str(folder),
            "runs": results.runs,
            "predicts": results.predicts,
            "rows": rows,
            "verdicts": verdicts,
        }
        say(
            json.dumps(
                {
                    **answer,
                    "differences": results.comparisons.rows,
                    "notes": results.notes,
                    "privacy": curves_as_json(results),
                },
                indent=1,
            )
        )
        return 0
    if args.tables:
        say(render(results).rstrip())
        say()
    ends = [f"run directory  {folder}"]
    if page is not None:
        ends.append(f"report         {page}")
    elif missing:
        ends.append(f"no HTML report: {missing}")
    # A run of methods behind noise is answered by its curves alone.
    curves = [*curve_lines(results, width_of_terminal())]
    if curves:
        printed = [*curves, *ends]
    else:
        printed = answer_lines(results, ends=ends)
    for line in printed:
        say(line)
    return 0


def mend(folder: Path) -> None:
    """Make tables that are damaged again from the rounds that were saved. Raises `InputError` where that cannot be done."""
    from coterie.run.hashes import (
        is_intact,
        refuse_damaged_outcomes,
        refuse_other_records,
    )

    refuse_damaged_outcomes(folder)
    refuse_other_records(folder)
    if not is_intact(folder):
        from coterie.study.tables import mend_tables

        for name in mend_tables(folder):
            sys.stderr.write(
                f"note: {folder / name} was damaged; it is made again from the rounds that were saved\n"
            )
