"""A central test set: rows of no client, on which the models of a run are evaluated."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from coterie.base.errors import prefix_errors
from coterie.compute.metrics import evaluate
from coterie.config.registry import short_names
from coterie.config.run import RunSettings
from coterie.contract.engine import Engine
from coterie.contract.federation import Federation
from coterie.data.tensors import from_tensors, settle_task
from coterie.engines.inprocess import InProcess
from coterie.run.history import Row

CENTRAL = "central"
"""The split of these numbers in the history, and the name of who holds the rows."""


class CentralTest:
    """Evaluates models on rows that belong to no client.

    Args:
        engine: Where the clients are; its model is that of the run.
        settings: Of the run.
        seed: Of the run.

    Raises:
        InputError: The rows do not fit the model.
    """

    def __init__(self, engine: Engine, settings: RunSettings, seed: int) -> None:
        with prefix_errors("central"):
            # No row is split off: all of them test.
            rows = from_tensors(
                {CENTRAL: settings.central}, split={"parts": {"train": 1.0}}
            )
            loss = settings.row_loss(rows)
            rows = settle_task(rows, loss)
            self._engine = InProcess().open(rows, engine.model, loss)
        self._federation = Federation(self._engine, (CENTRAL,), seed)
        self._metrics = short_names(settings.metrics)
        self._personal = settings.central_personal

    def look(self, models: Mapping[str, Tensor | None], number: int) -> list[Row]:
        """Return loss and metrics of the model for all clients, and of clients' own ones if asked, after round `number`."""
        found: list[Row] = []
        for name, x in models.items():
            is_asked = name == "*" or self._personal
            if x is None or not is_asked:
                continue
            view = self._federation.view((CENTRAL,), number, 0)
            replies = view.ask(
                (CENTRAL,), evaluate, x=x, part="train", metrics=self._metrics
            )
            values = [replies.loss[0], *replies.values[0]]
            defined = [True, *replies.defined[0].tolist()]
            for metric, value, is_defined in zip(
                ("loss", *self._metrics), values, defined, strict=True
            ):
                if is_defined:
                    found.append(Row(number, name, CENTRAL, metric, float(value)))
        return found

    def close(self) -> None:
        """Let go of the rows."""
        self._engine.close()
