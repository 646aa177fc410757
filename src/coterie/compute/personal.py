"""The layers that clients keep for themselves, as tasks of a user's own take them from `cohort.personal`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.base.layers import personal_entries, shared_entries
from coterie.compute.cohort_rows import CohortRows


@dataclass(frozen=True)
class Personal:
    """The personal layers of a cohort's clients: `cohort.personal(...)` makes it.

    Attributes:
        own: positions in a model vector of the entries that stay with a client, int64.
        shared: positions of all others, int64.

    >>> from typing import NamedTuple
    >>> import coterie as ct
    >>> Reply = NamedTuple("Reply", [("delta", ct.Update)])
    >>> @ct.task
    ... def body_update(cohort, *, x, local) -> Reply:
    ...     personal = cohort.personal("head")  # or patterns of names, such as ("2.*",)
    ...     start = personal.models(x)
    ...     trained = cohort.train(start, local)
    ...     personal.keep(trained)
    ...     return Reply(personal.update(trained, start))  # 0 at the head, which stays
    >>> model = torch.nn.Sequential(torch.nn.Linear(15, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    >>> engine = ct.InProcess().open(ct.data.load("heart-disease"), model, "auto")
    >>> replies = ct.Federation(engine, engine.clients).ask(engine.clients, body_update, x=engine.x, local=ct.LocalSGD())
    >>> int((replies.delta != 0).any(dim=0).sum())  # 15 * 4 weights and 4 biases are shared
    64
    >>> engine.close()
    """

    own: Tensor
    shared: Tensor
    _cohort: CohortRows
    _key: str

    @classmethod
    def of(
        cls, cohort: CohortRows, layers: str | tuple[str, ...], norms: str, key: str
    ) -> Personal:
        """Choose layers, as `Cohort.personal` says."""
        own = personal_entries(cohort.layout, layers, norms)
        shared = shared_entries(cohort.layout, layers, norms)
        return cls(own, shared, cohort, key)

    @property
    def is_shared(self) -> Tensor:
        """Bool [d + b]: what is shared, as `cohort.train(moving=...)` takes it; `~is_shared` trains the personal layers alone."""
        mask = torch.zeros(self._cohort.layout.size, dtype=torch.bool)
        return mask.index_fill_(0, self.shared, True).to(self._cohort.workspace.device)

    def models(self, x: Tensor) -> Tensor:
        """Return the model of each client [n, d + b]: the shared entries of x [d + b], and its own where it keeps some."""
        models = x.expand(len(self._cohort.names), -1).clone()
        kept = self._cohort.state(self._key, x[self.own])
        models[:, self.own] = kept.or_else(x[self.own])
        return models

    def keep(self, models: Tensor) -> None:
        """Let each client keep the personal entries of its model in [n, d + b]; they count only if the task ends well."""
        self._cohort.keep(self._key, models[:, self.own])

    def update(self, models: Tensor, start: Tensor) -> Tensor:
        """Return models minus start, [n, d + b], with 0 at the personal entries, so that nothing of them is sent."""
        delta = models - start
        delta[:, self.own] = 0
        return delta
