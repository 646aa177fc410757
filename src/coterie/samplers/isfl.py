r"""ISFL: sample the local rows by class so that label skew does less harm.

Paper: Z. Zhu, Y. Shi, P. Fan, C. Peng, K. B. Letaief, "ISFL: Federated Learning for Non-i.i.d. Data with Local Importance
Sampling", 2022, Algorithms 1 and 2, Eqs. 8 and 13 to 17.

Optimises: the mean loss over all rows, on rows that are sampled by class.
Sends: d + 1 up, d down (local_update); d up, 0 down (local_models); 0 up, C down (keep: C classes).
Memory: 2 C numbers, and the last local model for a moment.
Use: clients hold different classes, and the server has some labelled rows of its own.
Avoid: the server has no rows, or labels are not classes.
Formula: q_k = p + \Gamma_k a_k, \quad a_{k,i} \propto 1 - \frac{C L_{k,i}^2}{\sum_j L_{k,j}^2}, \quad \|a_k\| = 1, \quad
\Gamma_k = \min_{i : a_{k,i} < 0} \frac{p_i - \varpi \, p_{k,i}}{-a_{k,i}}

Symbols: x = the new average, x_k = local models, D_L = rows held by the server, lipschitz = L_{k,i} (Eq. 8), p and p_k = global and
local class shares, floor = varpi, gamma and a of Theorem 3 in `solvers/waterfill.py`, q_k = p_k w^k = sampling probabilities.

The formula is the paper's closed form (Theorem 3, Algorithm 1), the default. It aims at the least rho(q) = (1 + sum_i (p_i - q_i)^2)
sum_i q_i L_{k,i}^2 (Eq. 13) and does not reach it: where the logarithms of the constants spread by .5, its rho is about twice the
least. `exact` finds the least rho.

Differences from the paper: the average's gradients are shared by all clients, (K + 1) |D_L| instead of 2 K |D_L|; `exact`; q_k is
renormalised over the classes that a client has; absent clients keep their q_k. The server asks for x_k once more, which lets the
sampler work under any method. Where a method has no model for all clients, x is the mean of the participants' x_k; where it trains
several models at a client, x_k is the last. With `where="client"` no number that depends on p_k leaves a client: p are the shares
of D_L, and neither rho, gamma nor q are logged.

The authors' code differs from the printed text in two places, and `reading = "code"` follows it: x in Eq. 8 is the average from which
the round began, and not the new one; and the first rounds draw by q_k = p, w^k = p / p_k, and not by w^k = 1.

Laws:
- FedAvg with its sampler, bit by bit:
  tests/methods/test_isfl.py::test_isfl_is_fedavg_with_its_sampler_bit_by_bit
- equal L: q = p:
  tests/methods/test_isfl.py::test_equal_constants_give_the_global_shares
- x_k = x: q = p:
  tests/methods/test_isfl.py::test_a_client_whose_model_is_the_average_samples_by_the_global_shares
- reading = "code" measures from the average before:
  tests/methods/test_isfl.py::test_two_rounds_recomputed
- permuting classes permutes q:
  tests/methods/test_isfl.py::test_permuting_the_classes_permutes_q
- classes that a client lacks are left out in proportion:
  tests/methods/test_isfl.py::test_a_class_that_the_client_lacks_is_left_out_in_proportion
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, nearest
from coterie.compute.cohort import Cohort
from coterie.config.rules import SHARE, Rule, one_of
from coterie.config.schema import options, wire_type
from coterie.contract.federation import Federation
from coterie.contract.method import Log
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Flag, Holds, SentModel, task
from coterie.contract.wire import PerClient
from coterie.samplers.weighted import (
    Counts,
    Kept,
    Preset,
    Weighted,
    class_counts,
    class_shares,
    shares_in_memory,
)
from coterie.solvers import waterfill

MODEL, SHARES, COUNTS = "lipschitz-model", "lipschitz-q", "lipschitz-counts"
"""Names in client memory: x_k until it is compared with x, q_k, and (at the server) class counts of the clients."""
AVERAGE = "lipschitz-average"
"""Name at the server of the average from which the next round begins, which the reading of the code compares with."""
MOST_CLASSES = 20
"""Up to so many classes each q_ki is logged, beyond that the entropy of q_k alone."""

Preference = (
    Mapping[str, Sequence[float]] | tuple[tuple[str, tuple[float, ...]], ...] | None
)


class LocalModels(NamedTuple):
    """x_k [n, d + b], and whether it was trained since the last time [n]."""

    models: SentModel
    fresh: Flag


class Comparison(NamedTuple):
    """L_ki [1, K, C], ||x_k - x|| [1, K], rows of each class in D_L [1, C], and what is known of the clients' [1, N, C]."""

    lipschitz: Tensor
    distance: Tensor
    held: Tensor
    known: Tensor


OwnShares = Annotated[
    Tensor, Holds(("classes",), torch.float64, (0.0, 1.0001), each=True)
]
"""Shares of the classes, of each client."""


@task
def local_models(cohort: Cohort) -> LocalModels:
    """The local models of this round; zeros where there was no training, or its reply was refused."""
    none = torch.zeros(0, dtype=cohort.layout.dtype, device=cohort.workspace.device)
    models, has_model = [], []
    for i in range(len(cohort.names)):
        memory = cohort.only([i]).state(MODEL, none)
        has_model.append(memory.values.numel() > 0 and bool(memory.counted))
        if has_model[i]:
            models.append(memory.values[0])
        else:
            models.append(none.new_zeros(cohort.layout.size))
    return LocalModels(torch.stack(models), torch.tensor(has_model))


@task
def server_classes(cohort: Cohort) -> Counts:
    """Rows of each class in D_L. Raises `InputError` for a class without one, whose L cannot be known."""
    counts = class_counts(cohort).counts
    missing = torch.nonzero(counts[0] == 0).flatten().tolist()
    if missing:
        raise InputError(
            f"the server holds no row of class {', '.join(map(str, missing))}; add one to its rows: LipschitzSampler needs "
            "each class there"
        )
    return Counts(counts)


@task
def remember_counts(cohort: Cohort, *, counts: Tensor) -> Kept:
    """Keep what clients said about their classes, so that each is asked once."""
    cohort.keep(COUNTS, counts[None])
    return Kept.by(1)


@task
def remember_average(cohort: Cohort, *, x: SentModel) -> Kept:
    """Keep the average from which a round begins."""
    cohort.keep(AVERAGE, x[None])
    return Kept.by(1)


@task
def compare(
    cohort: Cohort, *, x: Tensor, models: Tensor, clients: int, before: bool = False
) -> Comparison:
    """Eq. 8 over all rows of D_L; 0 for a model that is x up to rounding.

    x is the new average; the one `before` it is taken in its place where that is asked, and x is kept for the next round.
    """
    if before:
        new_average, x = x, cohort.state(AVERAGE, x).values[0]
        cohort.keep(AVERAGE, new_average[None])
    server_counts, dim = server_classes(cohort).counts, cohort.layout.dim
    heads = torch.cat([x[None], models])[:, :dim]
    distance = _norm(heads[1:] - heads[0])
    lipschitz = distance.new_zeros(len(models), server_counts.shape[1])
    average = heads[:0]
    # Rows come in chunks, and of each chunk first the gradients at x, which is model 0.
    all_models = torch.cat([x[None], models])
    for _, k, labels, gradients in cohort.sample_gradients(all_models):
        if k == 0:
            average = gradients
            continue
        difference = _norm(gradients - average)
        lipschitz[k - 1].scatter_reduce_(0, labels.long(), difference, "amax")
    rounding = 8 * torch.finfo(x.dtype).eps * _norm(heads).max()
    is_apart = distance[:, None] > rounding
    lipschitz = torch.where(is_apart, lipschitz / distance[:, None], 0.0)
    none = torch.zeros(clients, server_counts.shape[1], dtype=torch.int64)
    known = cohort.state(COUNTS, none).values
    return Comparison(lipschitz[None].cpu(), distance[None].cpu(), server_counts, known)


@task
def keep(cohort: Cohort, *, q: OwnShares) -> Kept:
    """Store q_k [n, C], and forget x_k."""
    cohort.keep(SHARES, q)
    cohort.keep(MODEL, torch.zeros(len(cohort.names), 0))
    return Kept.by(len(cohort.names))


@task
def solve(
    cohort: Cohort,
    *,
    lipschitz: Annotated[
        Tensor, Holds(("classes",), torch.float64, (0.0, math.inf), each=True)
    ],
    p: OwnShares,
    floor: float,
    exact: bool,
) -> Kept:
    """Algorithm 1 at the clients, from L_k [n, C] and p [n, C]."""
    client_shares = class_shares(class_counts(cohort).counts)
    rows = zip(p, client_shares, lipschitz, strict=True)
    return keep(cohort, q=torch.stack([_solve(*row, floor)[0][exact] for row in rows]))


def _norm(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norm


def _solve(
    p: Tensor, client_shares: Tensor, lipschitz: Tensor, floor: float
) -> tuple[tuple[Tensor, Tensor], float]:
    """The closed form and the exact optimum for q, and gamma."""
    q, gamma = waterfill.closed_form(p, client_shares, lipschitz, floor)
    return (q, waterfill.exact(p, client_shares, lipschitz, floor)), gamma


def _pairs(preference: Any) -> Any:
    """The class shares that clients wish for as pairs, which are a value."""
    if preference is None:
        return None
    return tuple(sorted((k, tuple(map(float, v))) for k, v in dict(preference).items()))


def _is_preference(value: Any) -> bool:
    try:
        pairs = _pairs(value)
        if pairs is None:
            return True
        for client, shares in pairs:
            if not isinstance(client, str):
                return False
            if min(shares) < 0 or abs(sum(shares) - 1) >= 1e-5:
                return False
        return bool(pairs)
    except (TypeError, ValueError):
        return False


PREFERENCE = Rule(_is_preference, "None, or class shares >= 0 with sum 1 by client")
WHERE = one_of("server", "client")
READING = one_of("paper", "code")


@wire_type
@options
class LipschitzSampler(Weighted):
    """ISFL's sampler: a class by q_k, then one of its rows; any row before the first q_k. Fields as of `ISFL`.

    Attributes:
        floor: Least probability of a class, as a multiple of its share at the client (varpi), in [0, 1].
        exact: Minimise the bound of Eq. 13 in place of the closed form.
        where: "server" or "client": who computes q_k.
        preference: Class shares that a client prefers to the global ones, by client.
        reading: "paper", or "code": what the authors' code does.

    >>> import coterie as ct
    >>> import torch
    >>> x, y = torch.eye(3).repeat(20, 1), torch.arange(3).repeat(20)
    >>> clients = ct.data.from_tensors({"a": (x[y != 2], y[y != 2]), "b": (x[y > 0], y[y > 0])}, server=(x, y))
    >>> local = ct.LocalSGD(sampler=ct.LipschitzSampler(floor=0.01))
    >>> run = ct.fit(ct.FedProx(local=local, mu=0.1), clients, ct.models.Logistic(), rounds=2)
    >>> round(sum(run.history.select(f"q[{c}]", "a")[-1][1] for c in range(3)), 6)  # by q[0] to q[2] client a draws its classes
    1.0
    """

    floor: Annotated[float, SHARE] = 0.05
    exact: bool = False
    where: Annotated[str, WHERE] = "server"
    preference: Annotated[Preference, PREFERENCE] = None
    reading: Annotated[str, READING] = "paper"

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Local models, and class counts and shares, or what clients need to find shares themselves."""
        first_shares = asks(keep)
        if self.where == "server":
            return asks(local_models), asks(class_counts), first_shares
        if self.reading == "code":
            return asks(local_models), asks(solve), first_shares
        return asks(local_models), asks(solve)

    def __post_init__(self) -> None:
        object.__setattr__(self, "preference", _pairs(self.preference))

    def shares(self, cohort: Cohort, client: int) -> Tensor:
        """q_k, where it is known."""
        return shares_in_memory(cohort, client, SHARES)

    def trained(self, cohort: Cohort, models: Tensor) -> None:
        """Keep x_k [n, d + b] until it is compared with the new average."""
        cohort.keep(MODEL, models)

    def check(self, federation: Federation) -> None:
        """Raise `InputError` if the server lacks rows or a class, or a preference does not fit."""
        held = federation.ask(("server",), server_classes).counts
        classes = held.shape[1]
        for name, shares in dict(self.preference or ()).items():
            if name not in federation.everyone:
                raise InputError(
                    f"preference names {name!r}, which is not a client; {nearest(name, federation.everyone)}"
                )
            if len(shares) != classes:
                raise InputError(
                    f"preference of {name!r} has {len(shares)} shares for {classes} classes"
                )
        if self.reading == "code":
            self._begin_as_the_code(federation, held)

    def _begin_as_the_code(self, federation: Federation, held: Tensor) -> None:
        """The first average to compare with, and q_k = p at every client, from rows of each class in D_L [1, C]."""
        everyone = federation.everyone
        federation.ask(("server",), remember_average, x=federation.engine.x)
        counts = held
        if self.where == "server":
            unknown = torch.zeros(len(everyone), held.shape[1], dtype=torch.int64)
            counts = self._counts(federation, everyone, unknown)
        targets = self._targets(everyone, class_shares(counts.sum(0)))
        federation.ask(everyone, keep, q=PerClient(targets))

    def _targets(self, names: tuple[str, ...], p: Tensor) -> Tensor:
        """The class shares that each client is to see [n, C]: p, or those that it prefers."""
        preferred = dict(self.preference or ())
        targets = [p] * len(names)
        for i, name in enumerate(names):
            if name in preferred:
                targets[i] = torch.tensor(preferred[name], dtype=torch.float64)
        return torch.stack(targets)

    def after_round(self, x: Tensor | None, federation: Federation) -> Log:
        """Algorithm 2, lines 10 to 14: L_k, then q_k, for the participants."""
        replies = federation.ask(federation.clients, local_models)
        fresh = torch.nonzero(replies.fresh).flatten().tolist()
        names = tuple(replies.clients[i] for i in fresh)
        federation.discard(MODEL, set(replies.clients) - set(names))
        if not names:
            return {}
        models = replies.models[replies.fresh.to(replies.models.device)]
        if x is None:
            x = models.mean(0)
        gradients_before = federation.session.spent["row_gradients"]
        comparison = federation.ask(
            ("server",),
            compare,
            x=x,
            models=models,
            clients=len(federation.everyone),
            before=self.reading == "code",
        )
        gradients = federation.session.spent["row_gradients"] - gradients_before
        log: Log = {
            "local_distance": float(comparison.distance.mean()),
            "lipschitz_gradients": gradients,
        }
        lipschitz, counts = comparison.lipschitz[0], comparison.held
        if self.where != "client":
            counts = self._counts(federation, names, comparison.known[0])
        global_shares = class_shares(counts.sum(0))
        targets = self._targets(names, global_shares)
        if self.where == "client":
            federation.ask(
                names,
                solve,
                lipschitz=PerClient(lipschitz),
                p=PerClient(targets),
                floor=self.floor,
                exact=self.exact,
            )
            return log
        closed_forms, optima, gammas = [], [], []
        for k, position in enumerate(federation.positions(names)):
            own_counts = counts[position]
            # A client that never told its classes has no floors of its own.
            own_shares = class_shares(own_counts) if own_counts.any() else global_shares
            solved = _solve(targets[k], own_shares, lipschitz[k], self.floor)
            (closed_form, optimum), gamma = solved
            closed_forms.append(closed_form)
            optima.append(optimum)
            gammas.append(gamma)
        q = torch.stack(optima if self.exact else closed_forms)  # [K, C]
        federation.ask(names, keep, q=PerClient(q))
        # The bound of Eq. 13 for both, whichever is used.
        rho, rho_optimum = [], []
        for k in range(len(names)):
            rho.append(
                float(waterfill.bound(closed_forms[k], targets[k], lipschitz[k]))
            )
            rho_optimum.append(
                float(waterfill.bound(optima[k], targets[k], lipschitz[k]))
            )
        values = {
            "rho": rho,
            "rho_optimum": rho_optimum,
            "gamma": gammas,
            "q_entropy": torch.special.entr(q).sum(1).tolist(),
        }
        if q.shape[1] <= MOST_CLASSES:
            for c in range(q.shape[1]):
                values[f"q[{c}]"] = q[:, c].tolist()
        for key, by_client in values.items():
            log[key] = dict(zip(names, by_client, strict=True))
        return log

    def _counts(
        self, federation: Federation, names: tuple[str, ...], stored: Tensor
    ) -> Tensor:
        """Class counts of the clients [N, C]; each is asked until it has told."""
        names_needed: tuple[str, ...] = federation.everyone
        if stored.any():
            names_needed = names
        has_counts = stored[federation.positions(names_needed)].any(1).tolist()
        missing = [
            n for n, has in zip(names_needed, has_counts, strict=True) if not has
        ]
        if not missing:
            return stored
        replies = federation.ask(missing, class_counts)
        counts = stored.clone()
        counts[federation.positions(replies.clients)] = replies.counts
        federation.ask(("server",), remember_counts, counts=counts)
        return counts


@options
class ISFL(Preset):
    """Average by size what clients learn from rows that are sampled by class.

    Attributes:
        local: settings of local training: B, E_l and eta of Algorithm 2, lines 3 to 8; its sampler is ISFL's.
        lr: server learning rate > 0 on the mean update; 1 is the average of line 9.
        sample_ratio: share of its rows that a client draws in a local epoch, in (0, 1] (Algorithm 2; 1: as many as it has).
        floor: the least multiple of its own share with which a client samples a class, in (0, 1] (varpi, Eq. 14).
        exact: sample with the minimiser of the bound rho(q) (Eq. 13) instead of the closed form (Theorem 3); ours.
        where: q_k is found (Algorithm 2, lines 10 to 14) at the "server", which asks each client for its class counts once; or at
            the "client", which tells nobody. L_ki is measured at the server in both cases.
        preference: by client, the class shares that it wishes for, in place of p (Eq. 15); None: p for all.
        reading: "paper", or "code": as the authors' code does, the constants of Eq. 8 are measured from the average before the round,
            and the first rounds sample by p.

    >>> import coterie as ct, torch
    >>> x = torch.eye(3).repeat(20, 1)
    >>> y = torch.arange(3).repeat(20)
    >>> clients = ct.data.from_tensors({"a": (x[y != 2], y[y != 2]), "b": (x[y > 0], y[y > 0])}, server=(x, y))
    >>> run = ct.fit(ct.ISFL(floor=0.01), clients, model=ct.models.Logistic(), rounds=2)
    >>> [round(run.history.select(f"q[{i}]", "a")[-1][1], 2) for i in range(3)]  # by class, for the client without class 2
    [0.36, 0.64, 0.0]
    """

    floor: Annotated[float, SHARE] = 0.05
    exact: bool = False
    where: Annotated[str, WHERE] = "server"
    preference: Annotated[Preference, PREFERENCE] = None
    reading: Annotated[str, READING] = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "preference", _pairs(self.preference))

    @property
    def sampler(self) -> LipschitzSampler:
        """The sampler that the run loop calls after each round."""
        return LipschitzSampler(
            self.sample_ratio,
            self.floor,
            self.exact,
            self.where,
            self.preference,
            self.reading,
        )

    @property
    def needs_server_rows(self) -> bool:
        """Lipschitz constants are measured on them."""
        return True

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates, and then local models, of the participants."""
        return 2 * per_round
