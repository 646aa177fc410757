"""What a section of the page is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coterie.base.files import read_toml
from experiments.documents import ROOT, Document
from experiments.page.claims import Claim, Verdict, spread
from experiments.page.drawn import Drawn
from experiments.page.text import table


def by_method(document: Document) -> list[str]:
    """Quantities by method, mean and deviation over seeds."""
    rows = [
        (quantity, *(spread(list(document.by_seed(quantity, m).values())) for m in document.methods))
        for quantity in document.quantities
    ]
    counts = sorted(Counter(row.method for row in document.rows).values())
    seeds = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    commits = sorted({commit for row in document.rows for commit in row.commit.split(", ")})
    note = f"Mean ± standard deviation over {seeds} seeds, commit{'s' * (len(commits) > 1)} {', '.join(commits)}."
    return [*table(("", *document.methods), rows), "", note]


@dataclass(frozen=True)
class Advice:
    """A clause for users, which stands only if these claims have these verdicts."""

    text: str
    needs: Mapping[str, str]


@dataclass(frozen=True)
class Study:
    """One experiment.

    Attributes:
        name: of its document and, with .toml, of its file in experiments/.
        heading: of its part of the page.
        about: what was run.
        claims: what its numbers decide.
        kind: what is measured of its runs, a key of `experiments.measures.MEASURES`; "" if it is not run from a file.
        paper: the file of experiments/paper with the paper's settings; "" if there is none.
        shown: the lines that show its numbers.
        figures: what is drawn of it.
        unrun: why its claims have no rows, as long as they have none.
    """

    name: str
    heading: str
    about: str
    claims: Sequence[Claim] = ()
    kind: str = ""
    paper: str = ""
    shown: Callable[[Document], list[str]] = by_method
    figures: Sequence[Drawn] = ()
    unrun: str = ""


@dataclass(frozen=True)
class Section:
    """One paper.

    Attributes:
        heading: its name.
        advice: clauses for users.
        notes: what a reader must know about the paper's own numbers and about ours.
        studies: its experiments.
        missing: claims that cannot be run here.
    """

    heading: str
    advice: Sequence[Advice]
    notes: Sequence[str]
    studies: Sequence[Study]
    missing: Sequence[Claim] = ()


def no_time(name: str, seconds: float) -> str:
    """Why an experiment has no rows: how many runs it has, and what one of them took of a core."""
    tables = read_toml(ROOT / "experiments" / f"{name}.toml")
    runs = len(tables["methods"]) * tables["run"]["seeds"]
    return (
        f"Not run: {runs} runs of about {seconds:g} s of a core each did not fit into the time that we had; "
        f"`make papers ONLY={name}` makes them."
    )


Verdicts = Mapping[str, Verdict]


def advised(section: Section, verdicts: Verdicts) -> str:
    """The clauses whose claims came out as they need."""
    said = [a.text for a in section.advice if all(verdicts[key].word == word for key, word in a.needs.items())]
    return " ".join(said) or "No result here is clear enough for advice."
