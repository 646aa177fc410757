"""The command, also as `python -m coterie`. Ctrl-C ends it with a sentence from its first import on."""

import os
import sys


def open_closed_streams() -> None:
    """Let what is printed to a stream that the caller closed be lost, and no file of ours take its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it is there until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def main() -> int:
    """Run the command; returns the exit status."""
    try:
        open_closed_streams()
        from coterie.base.interrupts import leave_at_once

        leave_at_once()
        from coterie.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("coterie: stopped\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
