"""What is drawn of an experiment: curves, bars and tables of weights, each with the finding as alternative text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from experiments.documents import Document
from experiments.measures import OF_CLIENT
from experiments.page.claims import Documents, Place
from experiments.page.figures import Line, bars, heat_map, line, svg
from experiments.page.text import number


class Drawn(Protocol):
    """What draws itself from the rows of an experiment; `known` are all documents."""

    def drawn(self, document: Document, known: Documents, title: str) -> str:
        """SVG; "" if no row has what is to be drawn."""

    def told(self, document: Document, known: Documents) -> str:
        """The finding, as alternative text."""


Curves = Mapping[tuple[str, str], str]
"""Words for the curve of a quantity and a method."""


def per_method(quantity: str, names: Mapping[str, str]) -> Curves:
    """The curve of one quantity for each of these methods."""
    return {(quantity, method): name for method, name in names.items()}


@dataclass(frozen=True)
class Figure:
    """Curves of one experiment.

    Attributes:
        up: words for the upright axis.
        curves: which, and what they are called.
        across: words for the other axis.
        levels: numbers of one value, such as a ceiling, drawn as level lines: the mean over seeds.
        log: whether the upright axis is logarithmic.
    """

    up: str
    curves: Curves
    across: str = "round"
    levels: Mapping[Place, str] = field(default_factory=dict)
    log: bool = False

    def _lines(self, document: Document, known: Documents) -> list[Line]:
        # All methods start alike, and far from where they differ.
        start = 0.0 if self.across == "round" else None
        found = [line(document, name, *key, after=start) for key, name in self.curves.items()]
        lines = [one for one in found if one is not None]
        if not lines:
            return []
        ends = [lines[0].rounds[0], lines[0].rounds[-1]]
        for place, name in self.levels.items():
            numbers = _numbers(known, place)
            if numbers:
                lines.append(Line(name, ends, [statistics.fmean(numbers)] * 2, [0.0, 0.0]))
        return lines

    def drawn(self, document: Document, known: Documents, title: str) -> str:
        """A curve per method that has one."""
        return svg(title, self.across, self.up, self._lines(document, known), log=self.log)

    def told(self, document: Document, known: Documents) -> str:
        """Where the curves end."""
        lines = self._lines(document, known)
        if self.across == "round":
            return f"{self.up} over rounds; in round {lines[0].rounds[-1]:g}: {_ends(lines)}"
        return f"{self.up} over {self.across}; at the right end: {_ends(lines)}"


@dataclass(frozen=True)
class Points:
    """Numbers of several experiments or quantities, joined by lines.

    Attributes:
        up: words for the upright axis.
        across: words for the other axis.
        lines: where the numbers lie, by line and place on the other axis.
    """

    up: str
    across: str
    lines: Mapping[str, Mapping[float, Place]]

    def _lines(self, known: Documents) -> list[Line]:
        lines = []
        for name, places in self.lines.items():
            found = {x: _numbers(known, place) for x, place in places.items()}
            there = {x: numbers for x, numbers in found.items() if numbers}
            if there:
                means = [statistics.fmean(numbers) for numbers in there.values()]
                spreads = [statistics.pstdev(numbers) for numbers in there.values()]
                lines.append(Line(name, list(there), means, spreads))
        return lines

    def drawn(self, document: Document, known: Documents, title: str) -> str:
        """A line per name."""
        return svg(title, self.across, self.up, self._lines(known))

    def told(self, document: Document, known: Documents) -> str:
        """Where the lines end."""
        lines = self._lines(known)
        return f"{self.up} over {self.across}; at the right end: {_ends(lines)}"


@dataclass(frozen=True)
class BySeed:
    """A bar per method for each seed, where a seed stands for something that has a name.

    Attributes:
        quantity: a key of the rows' values.
        names: words by method.
        seeds: words by seed.
        what: words for what a seed stands for.
    """

    quantity: str
    names: Mapping[str, str]
    seeds: Sequence[str]
    what: str = "plays"

    def _bars(self, document: Document) -> dict[str, dict[str, float]]:
        by_method = {name: document.by_seed(self.quantity, method) for method, name in self.names.items()}
        groups = {
            words: {name: values[seed] for name, values in by_method.items() if seed in values}
            for seed, words in enumerate(self.seeds)
        }
        return {words: group for words, group in groups.items() if group}

    def drawn(self, document: Document, known: Documents, title: str) -> str:
        """A group of bars per seed."""
        return bars(title, self.quantity, self._bars(document))

    def told(self, document: Document, known: Documents) -> str:
        """In how many groups each method is the highest."""
        groups = self._bars(document)
        best = [max(group, key=group.__getitem__) for group in groups.values()]
        counts = ", ".join(f"{name} in {best.count(name)}" for name in self.names.values() if name in best)
        return f"{self.quantity} by {len(groups)} {self.what}; the highest: {counts}"


@dataclass(frozen=True)
class HeatMap:
    """Shares over rounds, of one method and seed: weights of all clients, or another share of a few rows.

    Attributes:
        method: label.
        words: the method's name.
        seed: whose shares are drawn.
        prefix: of the curves; what follows it names a row.
        what: words for the shares.
        rows: words for the rows.
    """

    method: str
    words: str
    seed: int = 0
    prefix: str = OF_CLIENT
    what: str = "weights of {}"
    rows: str = "client"

    def _shares(self, document: Document) -> dict[str, Sequence[Sequence[float]]]:
        """Rounds and shares by row."""
        curves = [row.curves for row in document.rows if (row.method, row.seed) == (self.method, self.seed)]
        return {k.removeprefix(self.prefix): c for own in curves for k, c in own.items() if k.startswith(self.prefix)}

    def drawn(self, document: Document, known: Documents, title: str) -> str:
        """A row per client, a column per round."""
        return heat_map(f"{title}: {self.what.format(self.words)}, seed {self.seed}", self._shares(document))

    def told(self, document: Document, known: Documents) -> str:
        """The rows with the largest shares in the last round."""
        last = {name: values[-1] for name, (_, values) in self._shares(document).items()}
        largest = sorted(last, key=last.__getitem__, reverse=True)[:3]
        said = ", ".join(f"{name} {number(last[name])}" for name in largest)
        what = self.what.format(self.words)
        return f"{what} by {self.rows} and round, seed {self.seed}; the largest at the end: {said}"


def _numbers(known: Documents, place: Place) -> list[float]:
    document = known.get(place.experiment)
    return [] if document is None else list(document.by_seed(place.quantity, place.method).values())


def _ends(lines: Sequence[Line]) -> str:
    return ", ".join(f"{one.name} {number(one.mean[-1])}" for one in lines)
