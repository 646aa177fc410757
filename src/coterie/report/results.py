"""The results of a run: its numbers, comparisons between methods, and what happened over rounds."""

from __future__ import annotations

import math
from functools import cached_property

from coterie.base.files import json_rows
from coterie.report.comparisons import Comparisons
from coterie.report.evidence import SMALLEST
from coterie.report.history import Curve, SavedHistory, Vector
from coterie.report.memo import cache_answers
from coterie.report.scores import Scores
from coterie.report.series import Weights, clock_of, weights_of
from coterie.report.statistics import Difference
from coterie.report.text import MISSING, is_zero, percent, short_number

POOLING = "partial"
FINE = 0.002
"""Below this smallest effect two decimals would hide what matters."""


class Results(Scores):
    """The numbers of a run directory with all that follows from them; `Scores` says what they are."""

    @property
    def gain_name(self) -> str:
        """Return the words for the metric in which gains are counted."""
        if self.comparisons.gain_metric == "loss":
            return self.metric_name("loss")
        return "squared error"

    def gain_text(self, value: float | None, smallest: float = SMALLEST) -> str:
        """A gain without its unit: of log-loss with two digits, of squared error as a share of the variance of the label.

        Where the `smallest` effect of interest is far below .01, so many digits are written that it can be read.
        """
        if value is None:
            return MISSING
        if self.comparisons.gain_metric == "rmse":
            text = percent(abs(value))
        elif smallest < FINE:
            digits = 1 - math.floor(math.log10(smallest))
            text = f"{abs(value):.{digits}f}".replace("0.", ".", 1)
        else:
            text = short_number(abs(value))
        if value < 0 and not is_zero(text):
            return f"−{text}"
        return text

    # Comparison

    @cached_property
    def comparisons(self) -> Comparisons:
        """The comparisons of this run."""
        return Comparisons(self)

    @property
    def outcomes_missing(self) -> bool:
        """Return True if the run saved nothing per test row, and no site told how uncertain differences are."""
        return not self.comparisons.outcomes.from_sites and not any(
            self.comparisons.outcomes.of(m, s) for m in self.methods for s in self.seeds
        )

    def unproven(self, client: str) -> bool:
        """Return True if no method but a reference is shown to have a lower loss here than a constant prediction."""
        differences = [
            self.comparisons.against_constant(m, client)
            for m in self.methods
            if m not in self.references
        ]
        bounded = [d for d in differences if d is not None and d.low is not None]
        return bool(bounded) and not any(d.better and d.excludes_zero for d in bounded)

    @cache_answers
    def difference(
        self, method: str, rival: str, client: str | None, metric: str
    ) -> Difference | None:
        """`method` minus `other`, paired over the seeds that both have; None if there is none."""
        return self.comparisons.difference(method, rival, client, metric)

    @cache_answers
    def extremes(self, metric: str, amount: int) -> tuple[str, ...]:
        """The clients with the largest harm and gain over all federated methods, half of `amount` each, in order.

        Clients of a method that serves only a few (a quarter of `amount` at most) come first: its numbers stand nowhere else.
        Those with too few rows to tell come last.
        """
        if len(self.clients) <= amount:
            return self.clients
        of_few: set[str] = set()
        for method in self.federated:
            served = self.clients_of(method)
            if len(served) <= amount // 4:
                of_few.update(served)
        shown = set(sorted(of_few)[: amount // 2])
        gains: list[tuple[bool, float, float, str]] = []
        for client in self.clients:
            if client not in shown:
                means = self._gains_of(client, metric)
                reach = (min(means, default=0.0), max(means, default=0.0))
                gains.append((self.comparisons.small(client), *reach, client))
        # Half of the room is for those who lose most, the rest for those who gain most.
        room = amount - len(shown)
        shown.update(client for *_, client in sorted(gains)[: room // 2])
        for *_, client in sorted(gains, key=lambda gain: (gain[0], -gain[2])):
            if len(shown) < amount:
                shown.add(client)
        return tuple(c for c in self.clients if c in shown)

    def _gains_of(self, client: str, metric: str) -> list[float]:
        """By how much each federated method is better at a client; of one method alone its own value. Empty where not known."""
        baseline = self.against
        if baseline is None:
            return []
        sign = 1 if self.higher_is_better(metric) else -1
        gains = []
        for method in self.federated:
            difference = None
            if method != baseline:
                difference = self.difference(method, baseline, client, metric)
            if difference is not None:
                gains.append(sign * difference.mean)
        if gains:
            return gains
        value = sign * self.mean(baseline, client, metric)
        if not math.isfinite(value):
            return []
        return [value]

    # Over rounds

    @cached_property
    def history(self) -> SavedHistory:
        """The numbers of each round."""
        return SavedHistory(self.folder)

    def curve(
        self, method: str, client: str, metric: str, split: str | None = None
    ) -> Curve | None:
        """A metric of one client over rounds; None if the history does not have it."""
        return self.history.curve(method, client, split or self.split, metric)

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """`weights.csv` per method, mean over seeds; methods without weights are left out, and those of `shares_of_models`."""
        return {
            method: weights
            for method, weights in self._saved_weights.items()
            if self.algorithms[method] != POOLING
        }

    @cached_property
    def shares_of_models(self) -> dict[str, Weights]:
        """The same of methods that pool: how much of a client's model comes from each client's own, which is no weight of a partner."""
        return {
            method: weights
            for method, weights in self._saved_weights.items()
            if self.algorithms[method] == POOLING
        }

    @cached_property
    def _saved_weights(self) -> dict[str, Weights]:
        """Both, of one reading of a file of many lines."""
        return weights_of(self.folder, self.methods, self.clients)

    @cached_property
    def failures(self) -> list[str]:
        """A sentence per method, seed and client that failed in an ask, with the last reason."""
        path = self.folder / "failures.json"
        if not path.is_file():
            return []
        keys = {"client": str, "method": str, "seed": int, "last": str}
        rows = json_rows(path, keys)
        return [
            f"{row['client']} failed under {row['method']}, seed {row['seed']}; last in {row['last']}"
            for row in rows
        ]

    @cached_property
    def seconds(self) -> dict[str, Vector]:
        """Seconds of a whole run, one value per seed that has any."""
        return clock_of(self.folder, "seconds", self.methods)

    @cached_property
    def own_seconds(self) -> dict[str, Vector]:
        """The seconds that the methods themselves took, outside of asks; empty for runs that did not tell them apart."""
        with (self.folder / "timing.csv").open(encoding="utf-8") as file:
            recorded = "own" in file.readline().strip().split(",")
        if not recorded:
            return {}
        return clock_of(self.folder, "own", self.methods)
