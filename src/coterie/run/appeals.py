"""How far the model of a run appeals to clients, and who of them may still be drawn (`[run] appeal`, after MaxFL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from coterie.base.errors import InputError
from coterie.compute.appeal import measure_appeal, staying
from coterie.config.local import LocalSGD
from coterie.config.run import Appeal
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method


class Appeals:
    """The appeal of one run's model.

    Args:
        settings: what is measured, and whether clients may leave.
        method: its `local` is the training of the models with which clients compare.
        start: initial model [d + b], from which these are trained.

    Raises `InputError` if clients may leave and the method chooses them itself.
    """

    def __init__(self, settings: Appeal, method: Method[Any], start: Tensor) -> None:
        self.own = type(method).__name__
        self.may_leave = settings.leave
        if settings.leave and method.participation != "run":
            raise InputError(
                f"run.appeal.leave decides who may be drawn, but {self.own} chooses its clients itself; leave out one of the two"
            )
        self._settings, self._start = settings, start
        self._local: LocalSGD = getattr(method, "local", None) or LocalSGD()

    def measure(
        self, models: Mapping[str, Tensor], view: Federation
    ) -> Mapping[str, Any]:
        """Return the appeal of the model in the round of this view."""
        return measure_appeal(
            self._model(models),
            self._start,
            view,
            self._local,
            warmup_steps=self._settings.warmup_steps,
        )

    def choose(
        self, models: Mapping[str, Tensor], view: Federation
    ) -> tuple[tuple[str, ...], Log]:
        """Return the clients of this view that may be drawn, and what is written down of them."""
        x, pool = self._model(models), view.clients
        if view.round > self._settings.mandatory_rounds:
            pool = staying(
                x,
                self._start,
                view,
                self._local,
                warmup_steps=self._settings.warmup_steps,
            )
        return pool, {"pool": len(pool), "skipped": float(not pool)}

    def _model(self, models: Mapping[str, Tensor]) -> Tensor:
        """The model for all clients, which alone can appeal or not. Raises `InputError` if there is none."""
        if "*" not in models:
            raise InputError(
                f"run.appeal needs one model for all clients, and {self.own} has several"
            )
        return models["*"]
