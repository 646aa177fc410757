"""The command, also as `python -m coterie`. Ctrl-C ends it with a sentence from its first import on."""

import sys


def main() -> int:
    """Run the command; returns the exit status."""
    try:
        from coterie.base.interrupts import leave_at_once

        leave_at_once()
        from coterie.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("coterie: stopped\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
