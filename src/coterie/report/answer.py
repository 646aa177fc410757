"""The text that the terminal shows when a run is done: the answer first, in at most 34 lines of 80 columns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from coterie.base.spelling import count
from coterie.report.grids import MANY
from coterie.report.results import Results
from coterie.report.text import printable, wrap
from coterie.report.words import Story, facts, gists, name_clients, tell

LINES = 34
NARROWEST = 40
NAME = 14


def answer_lines(
    results: Results, *, width: int | None = None, ends: Sequence[str] = ()
) -> list[str]:
    """The answer of a run directory, wrapped to `width` columns (default: of the terminal).

    At most `LINES` lines with those of `ends` (where the report is): notes on the data give way, then the means over clients, then
    clients.
    """
    width = max(NARROWEST, width or width_of_terminal())
    story, crowded = tell(results), len(results.clients) > MANY
    head = wrap(f"{printable(results.title)}: {', '.join(facts(results))}", width)
    head += wrap(f"Predicts {results.predicts}", width) if results.predicts else []
    lead = [
        line
        for text in filter(None, (story.answer[0], story.group))
        for line in wrap(text, width, "  ")
    ]
    terms = [
        line for text in _terms(results, story) for line in wrap(text, width, "  ")
    ]
    overall = [line for text in story.answer[1:] for line in wrap(text, width, "  ")]
    remarks = [
        line for text in _remarks(results, story) for line in wrap(text, width, "  ")
    ]
    tail = ["", *ends] if ends else []
    clients = [
        _client(client.name, client.headline, client.numbers, width)
        for client in story.clients
    ]
    head += ["", *lead]
    head += ["", *terms] if terms else []
    room = LINES - len(head) - len(remarks) - len(tail) - 3 - 2 * bool(results.notes)
    if (
        overall
        and not crowded
        and sum(len(verdict) for verdict, _ in clients) > room - len(overall)
    ):
        overall = wrap("Each method's mean over clients is in the report.", width, "  ")
    shown = _fitting(clients, room - len(overall))
    body = [line for lines in shown for line in lines]
    if len(shown) < len(clients):
        body += wrap(
            f"{count(len(clients) - len(shown), 'client')} more in the report.", width
        )
    parts = [head, overall, body] if crowded else [head, body, overall]
    notes = _notes(
        results, width, LINES - sum(map(len, parts)) - len(remarks) - len(tail) - 3
    )
    return [*_with_gaps([*parts, [*notes, *remarks]]), *tail]


def width_of_terminal() -> int:
    """Return the columns of the terminal, 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def _with_gaps(parts: Sequence[Sequence[str]]) -> list[str]:
    """The parts that say something, with an empty line between them."""
    return [line for part in parts if part for line in ("", *part)][1:]


def _fitting(
    clients: Sequence[tuple[list[str], list[str]]], room: int
) -> list[list[str]]:
    """The verdicts of as many clients as there is room for, the first one always; with their numbers where these fit, too."""
    blocks_shown: list[tuple[list[str], list[str]]] = []
    for verdict, numbers in clients:
        if blocks_shown and len(verdict) > room:
            break
        blocks_shown.append((verdict, numbers))
        room -= len(verdict)
    blocks = []
    for verdict, numbers in blocks_shown:
        fits = len(numbers) <= room
        blocks.append([*verdict, *numbers] if fits else verdict)
        room -= len(numbers) if fits else 0
    return blocks


def _client(
    name: str, headline: str, numbers: Sequence[str], width: int
) -> tuple[list[str], list[str]]:
    """One client: its name beside the verdict, and the numbers that decide."""
    verdict = wrap(f"{printable(name):<{NAME - 1}} {headline}", width, " " * NAME)
    return verdict, [
        line for text in numbers for line in wrap(text, width, " " * 6, " " * 4)
    ]


def _terms(results: Results, story: Story) -> list[str]:
    """What the verdicts below speak of, explained before it stands there first: methods by name, and metrics."""
    methods = gists(results, story.verdicts)
    texts = [f"{name}: {gist}." for name, gist in methods.items()]
    return [*texts, story.meaning] if story.meaning else texts


def _remarks(results: Results, story: Story) -> list[str]:
    unproven = [
        c
        for c in results.clients
        if results.unproven(c) and not results.comparisons.small(c)
    ]
    texts = list(story.caveats)
    if unproven:
        texts.insert(
            0,
            f"No model is shown to beat a constant prediction at {name_clients(results, unproven)}.",
        )
    return [*texts, *(printable(f"{text}.") for text in results.failures[:3])]


def _notes(results: Results, width: int, room: int) -> list[str]:
    """Notes on the data, as many as there is room for."""
    lines: list[str] = []
    for i, note in enumerate(results.notes):
        note_lines = wrap(f"note: {printable(note)}", width, "  ")
        notes_left = len(results.notes) - i
        if len(lines) + len(note_lines) + (notes_left > 1) > room:
            remainder = f"{notes_left} more" if lines else f"{notes_left} on the data"
            return [*lines, f"note: {remainder} in the report"] if room > 0 else []
        lines += note_lines
    return lines
