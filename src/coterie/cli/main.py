"""The command `coterie`. Nothing heavy is imported before a command needs it: `--help` imports neither torch nor a method."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from coterie.base.errors import LONGEST, CoterieError, InputError, shorten, write_crash
from coterie.cli.commands import COMMANDS
from coterie.cli.options import build_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    # OpenMP reads this once, when torch is imported; two threads that share cores with worker processes are far slower than one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    args = argparse.Namespace(run=Path(), debug=False)
    try:
        parser = build_parser()
        args = parser.parse_args(arguments, args)
        args.typed = ["coterie", *(sys.argv[1:] if arguments is None else arguments)]
        if not hasattr(args, "command"):
            parser.print_help()
            return 0
        status = COMMANDS[args.command](args)
        sys.stdout.flush()
    except InputError as error:
        return _fail(str(error), 2)
    except CoterieError as error:
        return _fail(str(error), 1, *getattr(error, "__notes__", ()))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that may not be written
        if error.errno == errno.ENAMETOOLONG:
            return _fail(f"{error.filename}: {error.strerror}; check the path", 2)
        if error.filename is None:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # Python would try again when it ends
        return _fail(
            f"{error.filename or 'standard output'}: {error.strerror}; what was saved before stays",
            1,
        )
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        return _fail(write_crash(error, args.run), 70, *getattr(error, "__notes__", ()))
    return status


def _fail(sentence: str, status: int, *notes: str) -> int:
    lines = (f"coterie: {shorten(' '.join(sentence.split()), LONGEST)}", *notes)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return status
