"""The forecast of FedCollab beside the verdicts: whom it put together before training, and in how many trainings that was right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from coterie.report.results import Results
from coterie.report.series import weights_of
from coterie.report.text import listing, printable
from coterie.report.verdicts import Verdict

METHOD = "fedcollab"
JOINS, STAYS = (
    ("join", "probably join", "safe to join"),
    ("stay alone", "probably stay alone"),
)


class Forecast(NamedTuple):
    """The forecast for one client beside its verdict.

    Attributes:
        client: whose.
        partners: the coalition that was forecast most often, without the client itself; empty: alone.
        times, trainings: how often that one was forecast, and how often any.
        word: the verdict.
        hits, misses: trainings whose forecast agrees with the verdict, and those whose does not; 0 and 0 where the verdict is open.
    """

    client: str
    partners: tuple[str, ...]
    times: int
    trainings: int
    word: str
    hits: int
    misses: int

    def in_words(self, names: Mapping[str, str]) -> str:
        """Say with which partners the client was to train, and how often."""
        partners = listing([names.get(name, printable(name)) for name in self.partners])
        return f"{f'with {partners}' if partners else 'alone'} in {self.times} of {self.trainings} trainings"


def forecasts(results: Results, verdicts: Mapping[str, Verdict]) -> Iterator[Forecast]:
    """Yield the forecast for each client with a verdict; none without a run of `fedcollab`.

    Its coalitions are found before the first round, so that they are a forecast of what the run then measures.
    """
    labels = [
        label for label, algorithm in results.algorithms.items() if algorithm == METHOD
    ]
    if not labels:
        return
    of_labels = weights_of(results.folder, labels, results.clients)
    for weights in list(of_labels.values())[:1]:
        for client in (c for c in weights.targets if c in verdicts):
            client_weights = weights.late_of_runs[:, weights.targets.index(client)]
            partner_sets = [
                tuple(
                    c
                    for c, w in zip(weights.clients, row, strict=True)
                    if w > 0 and c != client
                )
                for row in client_weights
            ]
            (partners, times), *_ = Counter(partner_sets).most_common()
            word = verdicts[client].kind
            is_right = [
                bool(coalition) == (word in JOINS) for coalition in partner_sets
            ]
            settled = word in (*JOINS, *STAYS)
            hits = sum(is_right) if settled else 0
            yield Forecast(
                client,
                partners,
                times,
                len(partner_sets),
                word,
                hits,
                len(partner_sets) - hits if settled else 0,
            )
