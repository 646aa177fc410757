"""Who belongs together, before anything is trained: FedCollab's divergences and its partition of the clients.

A forecast, not a verdict: a run of `fedcollab` beside `local` checks it, and its report counts hits and misses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.base.clients import Clients
from coterie.base.errors import require
from coterie.config.run import RunSettings
from coterie.contract.federation import Federation
from coterie.contract.requests import declarations
from coterie.engines.inprocess import InProcess
from coterie.models import Logistic, build_model
from coterie.run.experiment import find_method
from coterie.run.fit import one_thread


class PartnerForecast(NamedTuple):
    """FedCollab's forecast for some clients.

    Attributes:
        rows: training rows of each client, by name.
        divergences: D by client and client, from 0 (nobody can tell their rows apart) to 1 (a classifier always can).
        coalitions: names of the clients that are to train together, the coalition of the first client first.
        asks: how often each client is asked.
    """

    rows: dict[str, int]
    divergences: dict[str, dict[str, float]]
    coalitions: tuple[tuple[str, ...], ...]
    asks: int

    @property
    def pairs(self) -> int:
        """Pairs of clients, for each of which a classifier is trained, and two accuracies are told."""
        return len(self.rows) * (len(self.rows) - 1) // 2

    def to_json(self) -> dict[str, Any]:
        """The same for JSON, with what it costs and reveals."""
        return {**self._asdict(), "classifiers": self.pairs}


def forecast_partners(clients: Clients, seed: int = 0) -> PartnerForecast:
    """Estimate divergences and find the partition, as a run of `fedcollab` with this seed does before its first round.

    Raises `InputError` for a single client.
    """
    require(
        len(clients) > 1,
        "partners are for two clients at least, and there is one; give --split to deal its rows",
    )
    rows, method = (
        clients.merge_validation().with_mean_weights(),
        find_method("fedcollab")(),
    )
    with one_thread():
        module = build_model(
            Logistic(), rows, seed
        )  # which an engine needs, and no classifier
        engine = InProcess().open(rows, module, RunSettings().row_loss(rows))
        try:
            state = method.init(engine.x, Federation(engine, engine.clients, seed))
        finally:
            engine.close()
    members: dict[int, list[str]] = {}
    for name, coalition in zip(state.names, state.cluster.tolist(), strict=True):
        members.setdefault(coalition, []).append(name)
    table = [
        dict(zip(state.names, row, strict=True)) for row in state.divergences.tolist()
    ]
    return PartnerForecast(
        rows.sizes("train"),
        dict(zip(state.names, table, strict=True)),
        tuple(tuple(names) for names in members.values()),
        max(
            declaration.most_models(len(clients))
            for declaration, _ in declarations(method).values()
        ),
    )
