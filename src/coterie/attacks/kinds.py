"""The attacks, a class each, and the faults of clients that mean no harm."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import require
from coterie.base.rng import Rng, normal
from coterie.base.rows import Rows
from coterie.config.rules import NOT_NEGATIVE, POSITIVE, Rule, is_number, one_of
from coterie.config.schema import options, wire_type
from coterie.contract.attack import Attack
from coterie.contract.replies import VECTORS

_STATISTICS = one_of("honest", "all")
_CORRECTION = Rule(lambda v: v in (0, 1) and type(v) is int, "0 or 1")
_PROBABILITY = Rule(
    lambda v: is_number(v) and 0 <= v <= 1, "a probability between 0 and 1"
)


@options
class IPM(Attack):
    """Inner product manipulation: the attackers send -eps * mean, so that the average points the wrong way where they are many.

    Source: C. Xie, O. Koyejo, I. Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI 2019.

    Attributes:
        eps: epsilon > 0; the MeritFed papers take .1.
        statistics: the mean is that of the `honest` clients' rows (the papers) or of `all` rows (the authors' code). Where no honest
            client replied it is that of all.

    >>> import coterie as ct
    >>> attacks = (None, ct.attacks.IPM(eps=3.0, on=("hungary",)))
    >>> runs = [ct.fit(ct.FedAvg(), "heart-disease", rounds=5, attack=attack) for attack in attacks]
    >>> [round(run.history.select("loss", "long-beach", "test")[-1][1], 1) for run in runs]
    [0.5, 1.4]
    """

    eps: Annotated[float, POSITIVE] = 0.1
    statistics: Annotated[str, _STATISTICS] = "honest"

    def rewrite(
        self, kind: str, rows: Tensor, attackers: Tensor, rngs: Sequence[Rng]
    ) -> Tensor:
        """-eps * mean of updates and gradients."""
        if kind not in VECTORS:
            return rows[attackers]
        return (
            -self.eps
            * _rows_for_statistics(rows, attackers, self.statistics).mean(dim=0)
        ).expand_as(rows[attackers])


@options
class ALIE(Attack):
    """A little is enough: the attackers send mean - z * std of gradients in each coordinate, mean + z * std of updates.

    An update points the other way than a gradient, so that an attacker who is asked for both lies in one direction.

    Source: G. Baruch, M. Baruch, Y. Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019.

    Attributes:
        z: number of standard deviations > 0; the MeritFed papers take 100, which is no longer little.
        statistics: mean and deviation over the `honest` clients' rows or over `all` rows, as for IPM.
        correction: the deviation divides by the number of rows less this: 0, or 1 as the MeritFed authors' code.

    >>> import coterie as ct
    >>> attacks = (None, ct.attacks.ALIE(on=("hungary",)))
    >>> runs = [ct.fit(ct.FedAvg(), "heart-disease", rounds=10, attack=attack) for attack in attacks]
    >>> [round(run.history.select("loss", "long-beach", "test")[-1][1], 1) for run in runs]
    [0.5, 6.9]
    """

    z: Annotated[float, POSITIVE] = 100.0
    statistics: Annotated[str, _STATISTICS] = "honest"
    correction: Annotated[int, _CORRECTION] = 0

    def rewrite(
        self, kind: str, rows: Tensor, attackers: Tensor, rngs: Sequence[Rng]
    ) -> Tensor:
        """Mean minus z deviations of gradients, plus z deviations of updates."""
        if kind not in VECTORS:
            return rows[attackers]
        visible = _rows_for_statistics(rows, attackers, self.statistics)
        z = self.z if kind == "update" else -self.z
        deviation = visible.std(
            dim=0, correction=min(self.correction, len(visible) - 1)
        )
        return (visible.mean(dim=0) + z * deviation).expand_as(rows[attackers])


@wire_type
@options
class SignFlip(Attack):
    """Bit flipping: the attackers send their own update or gradient with the other sign.

    Attributes:
        scale: factor > 0 on what is sent; the MeritFed papers take 1.

    >>> import coterie as ct
    >>> attacks = (None, ct.attacks.SignFlip(scale=3.0, on=("hungary",)))
    >>> runs = [ct.fit(ct.FedAvg(), "heart-disease", rounds=10, attack=attack) for attack in attacks]
    >>> [round(run.history.select("loss", "long-beach", "test")[-1][1], 1) for run in runs]
    [0.5, 2.4]
    """

    scale: Annotated[float, POSITIVE] = 1.0

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """-scale times updates and gradients."""
        if kind not in VECTORS:
            return rows
        return -self.scale * rows


@wire_type
@options
class Noise(Attack):
    """Random noise: the attackers send sigma * N(0, I), or add it to what they would have sent.

    Attributes:
        sigma: standard deviation > 0.
        mode: `replace` (the MeritFed authors' code), or `add` (the papers' text, sigma 1), which is unbiased and harms nobody.

    >>> import coterie as ct
    >>> attacks = (None, ct.attacks.Noise(on=("hungary",)))
    >>> runs = [ct.fit(ct.FedAvg(), "heart-disease", rounds=10, attack=attack) for attack in attacks]
    >>> [round(run.history.select("loss", "long-beach", "test")[-1][1], 1) for run in runs]
    [0.5, 3.6]
    """

    sigma: Annotated[float, POSITIVE] = 10.0
    mode: Annotated[str, one_of("replace", "add")] = "replace"

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """Noise instead of, or on, updates and gradients."""
        if kind not in VECTORS:
            return rows
        noise = self.sigma * normal(rows, rngs)
        if self.mode == "replace":
            return noise
        return rows + noise


@wire_type
@options
class LossInflation(Attack):
    """MaxFL's Byzantine clients: they report a huge gap, to be weighed as much as can be, and add noise to their update.

    Attributes:
        gap: what they report as loss minus requirement; 0 has the largest weight of all under MaxFL.
        stay: asked whether they stay, they answer with a gap below 0; else with `gap`, so that a huge one leaves.
        sigma: standard deviation >= 0 of the noise on updates and gradients.

    >>> import coterie as ct
    >>> attacks = (None, ct.attacks.LossInflation(gap=0.0, on=("hungary",)))
    >>> runs = [ct.fit("maxfl", "heart-disease", rounds=10, attack=attack) for attack in attacks]
    >>> [round(run.history.select("loss", "long-beach", "test")[-1][1], 1) for run in runs]
    [0.5, 0.9]
    """

    gap: float = 100.0
    sigma: Annotated[float, NOT_NEGATIVE] = 1.0
    stay: bool = False

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """The gap, and noise on vectors."""
        if kind in VECTORS:
            return rows + self.sigma * normal(rows, rngs)
        value = self.gap
        if kind == "stay" and self.stay:
            value = -1.0
        return torch.full_like(rows, value)


@wire_type
@options
class NaN(Attack):
    """The attackers send NaN in every number, as a client does whose training broke.

    >>> import coterie as ct
    >>> ct.fit("fedavg", "heart-disease", rounds=2, attack=ct.attacks.NaN(on=("hungary",))).failures
    {'hungary': "round 2, coterie.compute.tasks:local_update: field 'delta' has NaN or Inf"}
    """

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """NaN."""
        return torch.full_like(rows, torch.nan)


@options
class Dropout(Attack):
    """The clients fail before they do anything, each in each ask with probability p.

    Attributes:
        p: probability in [0, 1].

    >>> import coterie as ct
    >>> ct.fit("fedavg", "heart-disease", rounds=2, attack=ct.attacks.Dropout(p=1.0, on=("hungary",))).failures
    {'hungary': 'round 2, coterie.compute.tasks:local_update: dropped out'}
    """

    p: Annotated[float, _PROBABILITY] = 0.5

    fault = "dropped out"

    def fails(self, rng: Rng) -> bool:
        """Return True if a client fails in an ask."""
        return bool(rng.uniform(1)[0] < self.p)


@options
class Straggler(Dropout):
    """The clients do their work and remember it, but answer too late, each in each ask with probability p; a late answer is dropped.

    Attributes:
        p: probability in [0, 1].

    >>> import coterie as ct
    >>> ct.fit("fedavg", "heart-disease", rounds=2, attack=ct.attacks.Straggler(p=1.0, on=("hungary",))).failures
    {'hungary': 'round 2, coterie.compute.tasks:local_update: answered too late'}
    """

    late = True
    fault = "answered too late"


@options
class LabelFlip(Attack):
    """The attackers train on labels C - 1 - y and are honest otherwise. Their test rows stay right: they measure, they do not attack.

    `[split] flip` turns the labels of a share of the clients round in all their parts instead, as the MaxFL paper does.

    >>> import coterie as ct
    >>> attacks = (None, ct.attacks.LabelFlip(on=("hungary",)))
    >>> runs = [ct.fit(ct.FedAvg(), "heart-disease", rounds=10, attack=attack) for attack in attacks]
    >>> [round(run.history.select("loss", "long-beach", "test")[-1][1], 1) for run in runs]
    [0.5, 0.6]
    """

    def on_rows(self, clients: Clients, names: Collection[str]) -> Clients:
        """The clients with turned labels on the training and validation rows of `names`."""
        parts = {
            k: rows
            for k in ("train", "validation", "test")
            if (rows := getattr(clients, k)) is not None
        }
        form = clients.form
        plain = [form.unweighted(r.labels) for r in parts.values()]
        require(
            all(y.ndim == 1 and not y.is_floating_point() for y in plain),
            "LabelFlip turns the classes of rows round, and these labels are not classes; choose another attack",
        )
        count = max(len(clients.classes), *(1 + int(y.max()) for y in plain))
        turned: dict[
            int, Tensor
        ] = {}  # parts may share one tensor, and `Clients.folded` looks whether they do
        for rows in (parts[k] for k in ("train", "validation") if k in parts):
            labels = turned.setdefault(id(rows.labels), rows.labels.clone())
            numbers = _numbers(rows, [clients.number(n) for n in names])
            classes = labels[:, 0] if form.weighted else labels
            classes[numbers] = count - 1 - classes[numbers]
        attacked = copy(clients)
        for key in ("train", "validation"):
            if key in parts:
                rows = parts[key]
                setattr(
                    attacked,
                    key,
                    Rows(
                        rows.inputs, turned[id(rows.labels)], rows.offsets, rows.index
                    ),
                )
        return attacked


def _rows_for_statistics(rows: Tensor, attackers: Tensor, statistics: str) -> Tensor:
    if statistics == "honest" and not bool(attackers.all()):
        return rows[~attackers]
    return rows


def _numbers(rows: Rows, attackers: Collection[int]) -> Tensor:
    """Numbers of the rows of the clients at these positions. Raises `InputError` if one is another client's as well."""
    none = np.zeros(0, np.int64)
    attacked = np.concatenate([none, *(rows.numbers(i) for i in attackers)])
    honest = np.concatenate(
        [none, *(rows.numbers(i) for i in range(len(rows.sizes)) if i not in attackers)]
    )
    shared = np.intersect1d(attacked, honest)
    require(
        not len(shared),
        "an attacker shares rows with another client, so LabelFlip cannot turn their labels round",
    )
    return torch.from_numpy(np.unique(attacked))
