"""The text that the terminal shows when a run is done: the answer first, in at most 34 lines of 80 columns."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Sequence

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
    if results.predicts:
        head += wrap(f"Predicts {results.predicts}", width)
    head.append("")
    head += _wrap_all(filter(None, (story.answer[0], story.group)), width)
    terms = _wrap_all(_terms(results, story), width)
    if terms:
        head += ["", *terms]
    overall = _wrap_all(story.answer[1:], width)
    remarks = _wrap_all(_remarks(results, story), width)
    tail: list[str] = []
    if ends:
        tail = ["", *ends]
    clients = [
        _client(client.name, client.headline, client.numbers, width)
        for client in story.clients
    ]
    # Three empty lines stand between the parts, and two lines are kept for notes.
    fixed = len(head) + len(remarks) + len(tail) + 3
    room = LINES - fixed - 2 * bool(results.notes)
    verdict_lines = sum(len(verdict) for verdict, _ in clients)
    if overall and not crowded and verdict_lines > room - len(overall):
        overall = wrap("Each method's mean over clients is in the report.", width, "  ")
    shown = _fitting(clients, room - len(overall))
    body = list(itertools.chain(*shown))
    hidden = len(clients) - len(shown)
    if hidden:
        body += wrap(f"{count(hidden, 'client')} more in the report.", width)
    parts = [head, body, overall]
    if crowded:  # of many clients only some are shown: what holds for all comes first
        parts = [head, overall, body]
    notes = _notes(results, width, LINES - fixed - len(overall) - len(body))
    return [*_with_gaps([*parts, [*notes, *remarks]]), *tail]


def width_of_terminal() -> int:
    """Return the columns of the terminal, 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def _wrap_all(texts: Iterable[str], width: int, lead: str = "") -> list[str]:
    """The lines of several texts; from the second line of each on they are indented by two columns more than by `lead`."""
    lines = []
    for text in texts:
        lines += wrap(text, width, f"{lead}  ", lead)
    return lines


def _with_gaps(parts: Sequence[Sequence[str]]) -> list[str]:
    """The parts that say something, with an empty line between them."""
    lines: list[str] = []
    for part in parts:
        if part:
            lines += ["", *part]
    return lines[1:]


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
        if len(numbers) <= room:
            verdict = verdict + numbers
            room -= len(numbers)
        blocks.append(verdict)
    return blocks


def _client(
    name: str, headline: str, numbers: Sequence[str], width: int
) -> tuple[list[str], list[str]]:
    """One client: its name beside the verdict, and the numbers that decide."""
    verdict = wrap(f"{printable(name):<{NAME - 1}} {headline}", width, " " * NAME)
    return verdict, _wrap_all(numbers, width, " " * 4)


def _terms(results: Results, story: Story) -> list[str]:
    """What the verdicts below speak of, explained before it stands there first: methods by name, and metrics."""
    methods = gists(results, story.verdicts)
    texts = [f"{name}: {gist}." for name, gist in methods.items()]
    if story.meaning:
        texts.append(story.meaning)
    return texts


def _remarks(results: Results, story: Story) -> list[str]:
    unproven = []
    for client in results.clients:
        if results.unproven(client) and not results.comparisons.small(client):
            unproven.append(client)
    texts = list(story.caveats)
    if unproven:
        names = name_clients(results, unproven)
        texts.insert(0, f"No model is shown to beat a constant prediction at {names}.")
    return [*texts, *(printable(f"{text}.") for text in results.failures[:3])]


def _notes(results: Results, width: int, room: int) -> list[str]:
    """Notes on the data, as many as there is room for."""
    lines: list[str] = []
    for i, note in enumerate(results.notes):
        note_lines = wrap(f"note: {printable(note)}", width, "  ")
        notes_left = len(results.notes) - i
        if len(lines) + len(note_lines) + (notes_left > 1) > room:
            if room <= 0:
                return []
            remainder = f"{notes_left} more" if lines else f"{notes_left} on the data"
            return [*lines, f"note: {remainder} in the report"]
        lines += note_lines
    return lines
