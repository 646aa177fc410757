"""The command `coterie`. Nothing heavy is imported before a command needs it: `--help` imports neither torch nor a method."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from coterie.base.crash import write_crash
from coterie.base.errors import LONGEST, CoterieError, InputError, shorten
from coterie.cli.commands import COMMANDS
from coterie.cli.options import build_parser

STANDARD_OUTPUT = "standard output"
"""The file name of an error of `sys.stdout`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    # OpenMP reads this once, when torch is imported; two threads that share cores with worker processes are far slower than one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    args = argparse.Namespace(run=Path(), debug=False)
    try:
        with _own_errors():
            return _run(args, arguments)
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
        if error.filename == STANDARD_OUTPUT:
            # Python would try again to write what is left when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        place = error.filename or "the system refused an operation"
        return _fail(f"{place}: {error.strerror}; what was saved before stays", 1)
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        return _fail(write_crash(error, args.run), 70, *getattr(error, "__notes__", ()))


def _run(args: argparse.Namespace, arguments: Sequence[str] | None) -> int:
    parser = build_parser()
    args = parser.parse_args(arguments, args)
    if arguments is None:
        arguments = sys.argv[1:]
    args.typed = ["coterie", *arguments]
    if not hasattr(args, "command"):
        parser.print_help()
        return 0
    status = COMMANDS[args.command](args)
    sys.stdout.flush()
    return status


class _Output:
    """A text stream whose errors say that they are its own: an `OSError` of a stream names no file.

    Args:
        stream: the stream that is written to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write; what the encoding of the stream does not have becomes a question mark."""
        with _naming_output():
            try:
                return self._stream.write(text)
            except UnicodeEncodeError as error:
                return self._stream.write(
                    text.encode(error.encoding, "replace").decode(error.encoding)
                )

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush."""
        with _naming_output():
            self._stream.flush()


@contextmanager
def _naming_output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error


@contextmanager
def _own_errors() -> Iterator[None]:
    """Let `sys.stdout` name itself in its errors, and let both streams take any character, for as long as this is open."""
    output, errors = sys.stdout, sys.stderr
    sys.stdout = cast("TextIO", _Output(output))
    if isinstance(errors, io.TextIOWrapper):
        errors.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        sys.stdout = output


def _fail(sentence: str, status: int, *notes: str) -> int:
    lines = (f"coterie: {shorten(' '.join(sentence.split()), LONGEST)}", *notes)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return status
