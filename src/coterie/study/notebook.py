"""Progress in a Jupyter notebook: one line that is replaced."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable

from coterie.base.spelling import duration
from coterie.study.progress import Event


def notebook_progress() -> Callable[[Event], None] | None:
    """Return a function that shows events below the cell that runs; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or "IPKernelApp" not in shell.config:  # a terminal's IPython prints nothing of this kind either
        return None
    from IPython.display import HTML, display

    line = display(HTML(""), display_id=True)

    def show(event: Event) -> None:
        complete = event.done >= event.pairs
        line.update(HTML("" if complete else f"<small>{html.escape(_describe(event))}</small>"))

    return show


def _describe(event: Event) -> str:
    left = "" if event.seconds_left is None else f", {duration(event.seconds_left)} left"
    return f"{event.label}, round {event.round} of {event.rounds}; {event.done} of {event.pairs} runs done{left}"
