"""Who is compared with whom, and on which rows: the rule of `evidence` applied to a run directory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.base.metric_names import BOUNDS
from coterie.compute.outcomes import BOOSTED, CONSTANT, Influence, RowError
from coterie.report.evidence import (
    INFLATION,
    SIZE_EXPONENTS,
    Gain,
    Mixture,
    Statement,
    Word,
    combine,
    moderate_errors,
    pool_errors,
    share,
    smallest_effect,
    smallest_effect_of_counts,
    smallest_effect_of_events,
    state,
)
from coterie.report.history import Vector
from coterie.report.memo import cache_answers
from coterie.report.outcomes import Outcomes, own_error
from coterie.report.scores import Scores
from coterie.report.statistics import (
    FEWEST_OF_A_CLASS,
    FEWEST_ROWS,
    FEWEST_SEEDS,
    Difference,
    Strength,
    compare_pairs,
    over_clients,
    over_seeds,
    weigh,
)
from coterie.run.files import own_loss

Family = dict[tuple[str, str], Difference]
"""The comparisons of one client with training alone: by (federated method, deciding metric)."""

RANKINGS = ("auc", "c_index")
"""Metrics of how rows are ranked: they rest on the rows of the rarest kind."""

FEWEST_CASES = 5
FEWEST_SMALL = 3
"""Small clients are judged if there are so many of them, with `FEWEST_ROWS` rows in all."""

STRENGTHS: dict[Word, Strength] = {
    "join": "shown",
    "stay alone": "shown",
    "probably join": "probable",
    "probably stay alone": "probable",
    "safe to join": "safe",
    "undecided": "open",
}


def _metric_of_rows(metric: str) -> str:
    """The metric of single rows behind one of a summary: squared errors add up over rows, their roots do not."""
    return "mse" if metric == "rmse" else metric


@dataclass(frozen=True)
class Comparisons:
    """The comparisons of a run. A client None stands for the mean over all clients, which is a family of its own."""

    results: Scores

    @cached_property
    def outcomes(self) -> Outcomes:
        """Predictions of the models for each test row."""
        return Outcomes(self.results.folder, self.results.tables)

    @cache_answers
    def rarest(self, client: str) -> float:
        """Test rows of the rarest class, in the seed that has fewest; an upper bound where only the largest share is known."""
        fewest = self.outcomes.rarest(self.results.against or "", client)
        if fewest is not None:
            return fewest
        largest = self.results.constant(client, "majority")
        known = largest[np.isfinite(largest)]
        if not known.size:
            return 0
        # All other classes together hold what the largest leaves: the rarest has no more.
        return round((1 - float(known.max())) * self.results.size(client))

    def decides(self, client: str, metric: str) -> bool:
        """Return True if this metric may decide for this client."""
        if metric not in RANKINGS:
            return True
        # Of several labels rows are compared by their mean loss alone.
        if self.label_counts(client):
            return False
        return self.rarest(client) >= FEWEST_OF_A_CLASS

    def label_counts(self, client: str) -> list[tuple[float, float]]:
        """Test rows of a client without and with each of several labels; empty unless rows have several."""
        return self.outcomes.label_counts(self.results.against or "", client)

    def deciding(self, client: str | None) -> tuple[str, ...]:
        """The metrics that decide: AUC, or C of time to event, and log-loss; in regression the RMSE (without one, the loss)."""
        metrics = self.results.metrics
        if self.results.classification or self.results.of_events:
            ranking = self.results.ranking
            candidates = [m for m in (ranking, "loss") if m in metrics]
            return tuple(m for m in candidates if self._among(client, m))
        return tuple(m for m in ("rmse", "loss") if m in metrics)[:1]

    @property
    def telling(self) -> str:
        """Return the metric that is shown first and ranks clients by gain: a deciding metric that all of them have, or else any."""
        return next(reversed((*self.results.metrics[:1], *self.deciding(None))), "loss")

    def _among(self, client: str | None, metric: str) -> Sequence[str]:
        """The clients that a comparison is about: the one, or all that are tested and for whom the metric decides."""
        names: Sequence[str] = self.results.test_clients
        if client is not None:
            names = (client,)
        return [c for c in names if self.decides(c, metric)]

    @cache_answers
    def small(self, client: str) -> bool:
        """Return True for a client with too few test rows, in all or of a class, for a word of its own."""
        tested: float | None
        tested = self.outcomes.test_rows(self.results.against or "", client)
        if tested is None:
            tested = self.results.size(client)
        if tested < FEWEST_ROWS or self.uneven(client) is not None:
            return True
        return self.needs_cases and self.rarest(client) < FEWEST_CASES

    def uneven(self, client: str) -> tuple[int, int] | None:
        """Effective test rows of a client and all of them, where its weights are too uneven for a word; else None."""
        return self.outcomes.uneven(self.results.against or "", client)

    @property
    def needs_cases(self) -> bool:
        """True if a verdict needs rows of the rarer class, or with an event: without any, the smallest effect is near 0."""
        results = self.results
        return results.classification or results.of_events or results.of_counts

    @property
    def gain_metric(self) -> str:
        """The metric in which a method must win: the log-loss, in regression the RMSE."""
        if not self.results.classification and "rmse" in self.results.metrics:
            return "rmse"
        return "loss"

    @property
    def folds(self) -> bool:
        """True if the run tested every row of each client, in folds."""
        split = self.results.experiment.get("split")
        return isinstance(split, dict) and bool(split.get("folds"))

    @property
    def enough_seeds(self) -> bool:
        """Return True if there are repeats enough for a word."""
        return self.folds or len(self.results.seeds) >= FEWEST_SEEDS

    @cache_answers
    def gain(
        self, method: str, client: str, metric: str, rival: str = ""
    ) -> Gain | None:
        """Return the evidence of a client's rows alone about the gain of `method` over `rival`; None if that is not known.

        The gain in RMSE is one in squared error, as a share of the variance of the label. Several tables are weighed by 1 / s^2.

        Args:
            method: Label of a method.
            client: Its name.
            metric: In which a gain is counted.
            rival: Training alone ("", the baseline), `BOOSTED`, or the label of another method.
        """
        against = rival or self.results.baseline
        if against is None:
            return None
        gains = []
        for seeds in self.results.tables:
            of_table = self._gain(method, against, client, metric, seeds)
            if of_table is not None:
                gains.append(of_table)
        if not gains:
            return None
        return combine(gains)

    def _gain(
        self,
        method: str,
        rival: str,
        client: str,
        metric: str,
        seeds_of_table: Sequence[int],
    ) -> Gain | None:
        """The same of one table, whose results have these seeds.

        Its error over rows is that of saved rows, or what the site has told where rows stay there.
        """
        fewest = 1 if self.folds else FEWEST_SEEDS
        if self._repeats(method, client, seeds_of_table) < fewest:
            return None
        row_metric = _metric_of_rows(metric)
        saved = self.outcomes.gain(method, rival, client, row_metric, seeds_of_table)
        error = math.inf  # where it cannot be known
        if saved is not None:
            mean_over_rows, row_error, rows = saved
            if row_error is not None:
                error = row_error.error
        else:
            site_numbers = self.outcomes.of_site(client, method, rival, row_metric)
            if site_numbers is None:
                return None
            mean_over_rows, rows = site_numbers.gap, site_numbers.tested
            error = site_numbers.error
        if self.folds:
            # Every row is tested in each seed: the mean over rows is the gain, and seeds add no error of their own.
            return Gain(self._sign(metric) * mean_over_rows, error, rows, 0.0)
        gaps = self._gaps(method, rival, client, metric, seeds_of_table)
        if gaps.size < 2:
            return None
        over = over_seeds(gaps, self._ratio(client, seeds_of_table) or 0.0)
        between = 0.0
        if over is not None:
            between = over.error
        return Gain(float(gaps.mean()), error, rows, between)

    def _sign(self, metric: str) -> int:
        """By what a difference to a rival is multiplied so that a gain is positive."""
        return 1 if self.results.higher_is_better(metric) else -1

    def _gaps(
        self,
        method: str,
        rival: str,
        client: str,
        metric: str,
        seeds_of_table: Sequence[int],
    ) -> Vector:
        """The gain over `rival` seed by seed, of the seeds that have both."""
        sign = self._sign(metric)
        if rival == BOOSTED:  # of which rows are saved, and no summary
            row_metric = _metric_of_rows(metric)
            return sign * self.outcomes.gaps(
                method, rival, client, row_metric, seeds_of_table
            )
        scores = self._values(method, client, metric, seeds_of_table)
        rival_scores = self._values(rival, client, metric, seeds_of_table)
        if metric == "rmse":
            # Squared errors add up over rows, roots do not: the gain is one in squared error.
            gaps = sign * (scores**2 - rival_scores**2) / self.label_variance
        else:
            gaps = sign * (scores - rival_scores)
        return np.asarray(gaps[np.isfinite(gaps)], dtype=float)

    @cache_answers
    def evidence(
        self, method: str, metric: str, rival: str = ""
    ) -> dict[str, tuple[Gain, Mixture]]:
        """Return of each client its evidence, with the error that the rule reckons with, and the distribution of its gain.

        Small clients are judged among themselves, and in `gain_metric` alone.
        """
        if not self.enough_seeds:
            return {}
        clients = self.results.clients
        large = [c for c in clients if not self.small(c) and self.decides(c, metric)]
        gains = self._bounded_gains(large, method, metric, rival)
        evidence = self._share(gains, moderate_errors(list(gains.values())), metric)
        if metric == self.gain_metric:
            few = self._bounded_gains(self.group, method, metric, rival)
            if len(few) >= FEWEST_SMALL:
                pooled = pool_errors(list(few.values()))
                evidence |= self._share(few, pooled, metric, exponents=(0.0,))
        return evidence

    def _bounded_gains(
        self, clients: Sequence[str], method: str, metric: str, rival: str
    ) -> dict[str, Gain]:
        """The gains of clients whose error is known; rows that do not differ tell nothing."""
        gains = {}
        for client in clients:
            gain = self.gain(method, client, metric, rival)
            if gain is not None and 0 < gain.error < math.inf:
                gains[client] = gain
        return gains

    def _share(
        self,
        clients: Iterable[str],
        gains: Sequence[Gain],
        metric: str,
        exponents: Sequence[float] = SIZE_EXPONENTS,
    ) -> dict[str, tuple[Gain, Mixture]]:
        names = list(clients)
        margins = [self.smallest_at(c, metric) for c in names]
        posteriors = share(gains, margins, exponents)
        return dict(zip(names, zip(gains, posteriors, strict=True), strict=True))

    def posteriors(
        self, method: str, metric: str, rival: str = ""
    ) -> dict[str, Mixture]:
        """The distribution of each client's gain, with what the gains of the others tell."""
        evidence = self.evidence(method, metric, rival)
        return {client: posterior for client, (_, posterior) in evidence.items()}

    def statement(
        self, method: str, client: str, metric: str, rival: str = ""
    ) -> Statement | None:
        """Return the statement about one client, method and metric; None where none can be made."""
        evidence = self.evidence(method, metric, rival).get(client)
        if evidence is None:
            return None
        return state(*evidence, self.smallest_at(client, metric))

    def chance_of_better(self, method: str, rival: str, client: str) -> float:
        """The probability, by the client's rows alone, that `method` is better than the method `rival`; 0 where not known.

        Sites tell differences to training alone. Their errors add up at most, so the bound is cautious.
        """
        metric = self.gain_metric
        gain = self.gain(method, client, metric, rival)
        if gain is None:
            one = self.gain(method, client, metric)
            two = self.gain(rival, client, metric)
            if one is None or two is None:
                return 0.0
            error = one.error + two.error
            gain = Gain(one.estimate - two.estimate, error, min(one.rows, two.rows))
        if not 0 < gain.error < math.inf:
            return 0.0
        return gain.chance

    @property
    def smallest(self) -> float:
        """The smallest effect of interest: of AUC, as a share of the variance of the label, and of log-loss at equal classes."""
        return self.results.smallest

    @cache_answers
    def smallest_at(self, client: str, metric: str) -> float:
        """The smallest effect of interest at a client: that of the log-loss follows from how common each class is there.

        Of several labels it is the mean over labels, as their loss is.
        """
        results = self.results
        half_deviance = self.outcomes.half_deviance(results.against or "", client)
        if metric == "loss" and half_deviance is not None:
            return self.smallest * half_deviance
        if metric == "loss" and results.of_counts:
            told = self.event_counts(client)
            if told is not None:
                return smallest_effect_of_counts(*told, self.smallest)
        has_log_loss = results.classification or results.of_events
        is_log_loss = has_log_loss and not own_loss(results.experiment)
        if metric != "loss" or not is_log_loss:
            return self.smallest
        if self.results.of_events:
            counts_of_events = self.event_counts(client)
            if counts_of_events is None:
                return self.smallest
            return smallest_effect_of_events(*counts_of_events, self.smallest)
        of_labels = self.label_counts(client)
        if of_labels:
            effects = [smallest_effect(pair, self.smallest) for pair in of_labels]
            return sum(effects) / len(effects)
        counts = self.class_counts(client)
        if not counts:
            return self.smallest
        return smallest_effect(counts, self.smallest)

    def event_counts(self, client: str) -> tuple[float, float] | None:
        """Test rows of a client without and with an event; None where that is not known."""
        label = self.results.against or ""
        known = self.outcomes.event_counts(label, client)
        if known is not None:
            return known
        tested = self.outcomes.test_rows(label, client)
        events = self.outcomes.rarest(label, client)
        # A site that has too few events to speak of tells none.
        if not (tested and events):
            return None
        return tested - events, events

    def class_counts(self, client: str) -> Sequence[float]:
        """Test rows of each class at a client; of all clients together where its site withholds them; empty if not known."""
        own = self._class_counts(client)
        if own:
            return own
        known = [self._class_counts(c) for c in self.results.clients]
        return [sum(column) for column in zip(*filter(None, known), strict=True)]

    def _class_counts(self, client: str) -> Sequence[float]:
        label = self.results.against or ""
        counts = self.outcomes.class_counts(label, client, self._classes)
        if counts:
            return counts
        # Of two classes a site tells the rarer one; of more that says too little.
        tested = self.outcomes.test_rows(label, client)
        rarest = self.outcomes.rarest(label, client)
        has_two_classes = len(self.results.label().get("classes") or ()) == 2
        if has_two_classes and tested and rarest:
            return (tested - rarest, rarest)
        return ()

    @cached_property
    def _classes(self) -> int:
        """How many classes the labels of all test rows have."""
        label = self.results.against or ""
        highest = 1
        for client in self.results.clients:
            for rows in self.outcomes.rows(label, client).values():
                if rows.classes and rows.labels is not None and len(rows.labels):
                    highest = max(highest, int(rows.labels.max()))
        return 1 + highest

    @cached_property
    def group(self) -> tuple[str, ...]:
        """The small clients, if they are enough to be judged; else empty."""
        sizes = {c: self.results.size(c) for c in self.results.clients}
        members = [c for c, size in sizes.items() if size > 0 and self.small(c)]
        rows = sum(sizes[c] for c in members)
        if len(members) < FEWEST_SMALL or rows < FEWEST_ROWS:
            return ()
        cases = sum(self.rarest(c) for c in members)
        if self.needs_cases and cases < FEWEST_CASES:
            return ()
        return tuple(members)

    @cache_answers
    def family(self, client: str | None) -> Family:
        """Every federated method against training alone in every deciding metric."""
        base = self.results.baseline
        if base is None:
            return {}
        family = {}
        for method in self.results.federated:
            for metric in self.deciding(client):
                difference = self._difference_of(method, base, client, metric)
                if difference is not None:
                    strength = self._strength(method, metric, client)
                    family[method, metric] = difference._replace(strength=strength)
        return family

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every comparison that decides, as a row with its interval and strength; the client of means over clients is None."""
        rows: list[dict[str, Any]] = []
        for client in (*self.results.clients, None):
            for (method, metric), difference in self.family(client).items():
                key = {"client": client, "method": method, "metric": metric}
                rows.append({**key, **difference._asdict()})
        return rows

    def _strength(self, method: str, metric: str, client: str | None) -> Strength:
        if client is None:
            statement = self._state_mean(method, metric)
        else:
            statement = self.statement(method, client, metric)
        if statement is None:
            return "no verdict"
        return STRENGTHS[statement.word]

    def _state_mean(self, method: str, metric: str) -> Statement | None:
        """Return the statement about the mean over clients, by its own error: nothing is borrowed for it."""
        if not self.enough_seeds:
            return None
        clients = self._among(None, metric)
        gains = []
        for client in clients:
            gain = self.gain(method, client, metric)
            # A mean over the others would be about other clients.
            if gain is None or not math.isfinite(gain.error):
                return None
            gains.append(gain)
        if not gains:
            return None
        mean = float(np.mean([g.estimate for g in gains]))
        spread = math.sqrt(sum(g.spread**2 for g in gains)) / len(gains)
        mean_gain = Gain(mean, spread / INFLATION, sum(g.rows for g in gains))
        normal = Mixture(np.ones(1), np.array([mean]), np.array([spread**2]))
        margins = [self.smallest_at(c, metric) for c in clients]
        return state(mean_gain, normal, float(np.mean(margins)))

    def _repeats(self, method: str, client: str, seeds: Sequence[int]) -> int:
        """How many of `seeds` have a result of both `method` and training alone."""
        common = set(seeds)
        for label in (method, self.results.baseline or method):
            cell = (label, client, self.results.split)
            common &= set(self.results.cells.get(cell, {}))
        return len(common)

    @cached_property
    def label_variance(self) -> float:
        """Variance of the labels of all test rows, or of the rows of which the recipe was made; 1 if neither is known."""
        labels = []
        for client in self.results.clients:
            by_seed = self.outcomes.rows(self.results.against or "", client)
            labels += [r.labels for r in by_seed.values() if r.labels is not None]
        if labels:
            variance = float(np.concatenate(labels).var())
        else:
            variance = float(self.results.label().get("scale", 1.0)) ** 2
        return variance or 1.0

    def difference(
        self, method: str, rival: str, client: str | None, metric: str
    ) -> Difference | None:
        """`method` minus `other`, paired over the seeds that both have, with its strength if it is in a family; None if
        there is none.
        """
        if rival == self.results.baseline and (method, metric) in self.family(client):
            return self.family(client)[method, metric]
        return self._difference_of(method, rival, client, metric)

    def score(self, method: str, client: str, metric: str) -> Difference | None:
        """A metric itself, as a difference to nothing: its mean over seeds, and the interval over seeds and rows."""
        by_seed = self.outcomes.rows(method, client)
        influences = [rows.influence(metric) for rows in by_seed.values()]
        values = self._values(method, client, metric)
        return self.score_of(client, metric, values, influences)

    def score_of(
        self,
        client: str,
        metric: str,
        values: Vector,
        influences: Sequence[Influence | None],
    ) -> Difference | None:
        """The same of `values`, one per seed, and of what the rows of each seed add to their error; no metric leaves its bounds."""
        score = compare_pairs(
            values,
            np.zeros(len(values)),
            self._ratio(client),
            own_error(influences),
            higher_is_better=self.results.higher_is_better(metric),
        )
        if score is None or score.low is None or score.high is None:
            return score
        name = metric
        if metric == "loss":
            # The loss has the bounds of its name: a loss of the user's own has none.
            name = self.results.metric_name(metric)
        bounds = {**BOUNDS, "log-loss": (0.0, math.inf)}
        low, high = bounds.get(name, (-math.inf, math.inf))
        return score._replace(low=max(low, score.low), high=min(high, score.high))

    def against_constant(self, method: str, client: str) -> Difference | None:
        """The loss of a method minus that of always predicting the client's own training rows; None without repeats enough."""
        loss = self.results.values(method, client, "loss")
        if not np.isfinite(loss).any() or not self.enough_seeds:
            return None
        ratio = self._ratio(client)
        return compare_pairs(
            loss,
            self.constant(client),
            ratio,
            self._inflate(self._row_error(method, CONSTANT, client, "loss")),
            higher_is_better=False,
        )

    def constant(self, client: str) -> Vector:
        """Loss of always predicting the client's own training rows, one value per seed [seeds]; NaN where not known, and for a loss
        of the user's own.
        """
        if own_loss(self.results.experiment):
            return self._unknown
        rows = self.outcomes.rows(self.results.against or "", client)
        from_rows = self._unknown
        for i, seed in enumerate(self.results.seeds):
            if seed in rows:
                from_rows[i] = rows[seed].mean(rows[seed].constant)
        from_summary = self.results.constant(client, "majority_loss")
        return np.where(np.isfinite(from_summary), from_summary, from_rows)

    @cache_answers
    def trivial(self, client: str | None, metric: str) -> tuple[str, Vector]:
        """A prediction without any model, in two words, and what it scores in this metric, one value per seed [seeds]: the
        largest class, or the shares or the mean of the client's own training rows. NaN where that is not known.
        """
        if client is None:
            by_client = [self.trivial(c, metric) for c in self.results.clients]
            table = np.stack([scores for _, scores in by_client])
            finite = np.isfinite(table)
            # A seed without any score divides 0 by 0: NaN, not known.
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = np.where(finite, table, 0).sum(axis=0) / finite.sum(axis=0)
            return by_client[0][0], mean
        if self.results.of_events:
            if metric == "loss":
                return "training rates", self.constant(client)
            return "training rates", self._unknown
        if not self.results.classification:
            if metric == "loss":
                return "training mean", self.constant(client)
            return "training mean", self._trivial_errors(client, metric)
        if metric == "accuracy":
            return "largest class", self.results.constant(client, "majority")
        if metric == "loss":
            return "training shares", self.constant(client)
        return "training shares", self._unknown

    @property
    def _unknown(self) -> Vector:
        return np.full(len(self.results.seeds), math.nan)

    def _trivial_errors(self, client: str, metric: str) -> Vector:
        """MAE or RMSE of the training mean in the label's unit; what is saved are squares of the standardised label."""
        scores = self._unknown
        if metric not in ("mae", "rmse"):
            return scores
        rows = self.outcomes.rows(self.results.against or "", client)
        for i, seed in enumerate(self.results.seeds):
            if seed not in rows:
                continue
            squares = rows[seed].constant
            if metric == "mae":
                error = np.sqrt(squares).mean()
            else:
                error = math.sqrt(squares.mean())
            scores[i] = self.results.label(seed).get("scale", 1.0) * error
        return scores

    def _difference_of(
        self, method: str, rival: str, client: str | None, metric: str
    ) -> Difference | None:
        by_table = []
        for seeds in self.results.tables:
            error = None
            if self._decisive(metric):
                error = self._row_error(method, rival, client, metric, seeds)
            difference = compare_pairs(
                self._values(method, client, metric, seeds),
                self._values(rival, client, metric, seeds),
                self._ratio(client, seeds),
                self._inflate(error),
                higher_is_better=self.results.higher_is_better(metric),
            )
            if difference is not None:
                by_table.append(difference)
        return weigh(by_table)

    def _inflate(self, error: RowError | None) -> RowError | None:
        """The error over rows as the rule reckons with it: with folds the models that are compared share rows that they trained on."""
        if error is None or not self.folds:
            return error
        return RowError(INFLATION * error.error, error.freedom)

    def _decisive(self, metric: str) -> bool:
        return metric in (*RANKINGS, "loss", "rmse")

    def _values(
        self, method: str, client: str | None, metric: str, seeds: Sequence[int] = ()
    ) -> Vector:
        """One value per seed, of all or of `seeds`; the mean AUC is one over the clients for whom it decides."""
        among: Sequence[str] = ()
        if client is None and metric in RANKINGS:
            among = self._among(None, metric)
        if among:
            of_clients = [self.results.values(method, c, metric) for c in among]
            values = np.stack(of_clients).mean(axis=0)
        else:
            values = self.results.values(method, client, metric)
        if seeds:
            values = values[np.isin(self.results.seeds, seeds)]
        return np.asarray(values, dtype=float)

    @property
    def _has_fixed_test_rows(self) -> bool:
        """Whether the experiment says that every seed tests the same rows."""
        split = self.results.experiment.get("split")
        if not isinstance(split, dict):
            return False
        return split.get("seed") is not None or split.get("test", "own") != "own"

    def _ratio(self, client: str | None, seeds: Sequence[int] = ()) -> float | None:
        """Test rows over training rows; 0 where all seeds have the same test rows, or draw them from a test set of their own; None
        with folds.
        """
        if self.folds:
            return None
        if self._has_fixed_test_rows:
            return 0.0
        method = self.results.against or ""
        names: Sequence[str] = self.results.clients
        if client is not None:
            names = (client,)
        if all(self.outcomes.same_rows(method, c, seeds) for c in names):
            return 0.0
        n_train = self.results.size(client, "n_train")
        n_test = self.results.size(client)
        if not math.isfinite(n_test) or not n_train > 0:
            return 1.0  # not known: the cautious end
        return n_test / n_train

    def _row_error(
        self,
        method: str,
        rival: str,
        client: str | None,
        metric: str,
        seeds: Sequence[int] = (),
    ) -> RowError | None:
        if client is None:
            errors = []
            for name in self._among(None, metric):
                errors.append(self._row_error(method, rival, name, metric, seeds))
            return over_clients(errors)
        error = self.outcomes.error(method, rival, client, metric, seeds)
        return error or self._site_error(method, rival, client, metric)

    def _site_error(
        self, method: str, rival: str, client: str, metric: str
    ) -> RowError | None:
        """The same as the client's site has told it; the degrees of freedom follow from numbers of rows that are known anyway."""
        site_numbers = self.outcomes.of_site(client, method, rival, metric)
        if site_numbers is None:
            return None
        fewest: float = site_numbers.tested
        if metric in RANKINGS:  # compare pairs of rows of different classes
            fewest = self.rarest(client)
        if fewest <= 1:
            return None
        return RowError(site_numbers.error, fewest - 1, site_numbers.p)
