"""What progress leaves of a terminal: the cursor, and lines as they were said."""

from __future__ import annotations

import contextlib
import io

import pytest

from coterie.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Call a function while standard error is a terminal, and return it."""
    monkeypatch.setenv("TERM", "xterm")

    def call(function):
        written = Terminal()
        with contextlib.redirect_stderr(written):
            function(written)
        return written.getvalue()

    return call


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.mark.parametrize("early", [False, True])
def test_the_cursor_is_shown_again(on_terminal, early):
    def show(terminal):
        with Progress() as progress:
            assert terminal.getvalue().count(HIDE) == 1
            if early:
                progress.stop()
                assert terminal.getvalue().count(SHOW) == 1

    written = on_terminal(show)
    assert written.count(HIDE) == written.count(SHOW) == 1


def test_a_line_that_stays_is_written_as_it_was_said(on_terminal):
    said = "[bold]north[/bold] is slow: 12 rows"

    def show(_):
        with Progress() as progress:
            progress.say(said)

    assert said in on_terminal(show)
