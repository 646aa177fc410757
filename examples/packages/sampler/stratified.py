"""Stratified batches: every batch has the classes of its client in nearly the shares that they have there."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie as ct


@ct.wire_type
@ct.options
class Stratified(ct.Sampler):
    """Draw every row once an epoch, with the rows of each class spread evenly over the batches."""

    def rows(
        self, cohort: ct.Cohort, client: int, rng: ct.Rng, steps: int, batch_size: int
    ) -> NDArray[Any]:
        """Row numbers [steps, batch_size]; batches go on from one epoch to the next."""
        labels = cohort.labels(client).cpu().numpy()
        epochs = range(-(-steps * batch_size // len(labels)))
        order = np.concatenate(
            [self._epoch(labels, rng.child("epoch", number)) for number in epochs]
        )
        return order[: steps * batch_size].reshape(steps, batch_size)

    def _epoch(self, labels: NDArray[Any], rng: ct.Rng) -> NDArray[Any]:
        place = np.empty(len(labels))
        for c in np.unique(labels):
            rows = np.flatnonzero(labels == c)
            # The k-th row of a class stands somewhere in the k-th of as many equal parts of the epoch as the class has rows.
            shuffled = rows[rng.child("order", int(c)).permutation(len(rows))]
            place[shuffled] = (
                np.arange(len(rows)) + rng.child("place", int(c)).uniform(len(rows))
            ) / len(rows)
        return np.argsort(place, kind="stable")
