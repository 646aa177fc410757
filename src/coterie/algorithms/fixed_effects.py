r"""Fixed-effects regression: the slopes are shared, and each client has an intercept of its own, under a ridge.

Paper: the regression of a multi-centre study on the covariates and an indicator of the centre; by sums over centres: M. Wolfson et al.,
"DataSHIELD: resolving a conflict in contemporary bioscience", International Journal of Epidemiology 2010.

Optimises: the log likelihood of all rows, minus ridge / 2 |b|^2 - ridge / 40 \sum_k a_k^2.
Sends: d + 1 + d_s (d_s + 1) / 2 up, d down (tell_profile: once a round until it has converged).
Memory: its intercepts, C numbers, from which the next round starts.
Use: clients differ in how common an outcome is, and not in what it depends on. It is the model of a statistician, and exact.
Avoid: what the outcome depends on differs between clients: `partial` draws slopes together only as far as they are alike.
Formula: \max_{b, a} \sum_k \sum_i \log p(y_{ki} \mid b^\top x_{ki} + a_k) - \frac{\lambda}{2} \|b\|^2 - \frac{\lambda}{40} \sum_k a_k^2

Symbols: d_s = slopes of a model, the others of its d numbers are intercepts, b = slopes, a_k = intercept of client k, lambda = ridge.

Each round is one Newton step on the likelihood as a function of the slopes alone: a client chooses its intercept for the slopes that
it was sent, and tells value, gradient and curvature with that intercept eliminated (the Schur complement). A step after which the
likelihood is lower is halved. 3 to 6 rounds come to 1e-8; later ones change nothing. Each client is served its own intercept, a
hospital outside the mean of them.

Behind row noise (`private`) the steps are those of a fixed bound of the curvature, and nothing but noisy sums over rows of limited
length is told (`coterie.compute.bounded_slopes`): once products, then gradients in each round. Intercepts are columns that only one
client fills, and each is chosen anew at home for the slopes that are served.

Differences from the paper: the ridge; `ridge = 0` frees slopes and intercepts. A regression has the log likelihood of variance 1, that
of its stored labels, which vary by 1 over all clients.

Laws:
- it is a regression on pooled rows with an indicator of each client:
  tests/methods/test_fixed_effects.py::test_it_is_a_regression_on_pooled_rows_with_an_indicator_of_each_client
- an intercept at one client moves that client's intercept alone:
  tests/methods/test_fixed_effects.py::test_a_shift_of_one_clients_labels_moves_its_intercept_alone
- one client has its own ridge regression:
  tests/methods/test_fixed_effects.py::test_one_client_has_its_own_ridge_regression
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.compute import bounded_slopes
from coterie.compute.cohort import Cohort
from coterie.compute.linear import counts, linear_rows, require_linear, upper
from coterie.compute.shared_slopes import (
    MOST_ROUNDS,
    Likelihood,
    State,
    newton_round,
    start_at_zero,
)
from coterie.compute.tasks import OwnModel
from coterie.config.row_noise import ROW_NOISE, RowNoise
from coterie.config.rules import NOT_NEGATIVE, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import asks
from coterie.contract.task import Holds, OneModel, task
from coterie.solvers.profile import own_intercepts, profile

INTERCEPTS = 20
"""The ridge of intercepts is so many times smaller than that of slopes."""
KEY = "intercepts"


@task
def tell_profile(
    cohort: Cohort,
    *,
    x: Annotated[Tensor, Holds(("parameters",), torch.float64)],
    ridge: float,
) -> Likelihood:
    """Value, gradient and curvature at the slopes of x [d], with the client's intercepts eliminated."""
    told, kept = [], []
    slopes, _ = counts(cohort.layout)
    starts = cohort.state(KEY, x[slopes:]).values
    for client in range(len(cohort.names)):
        rows = linear_rows(cohort, client)
        cohort.spent["row_gradients"] += len(rows.labels)
        found = profile(
            x[:slopes],
            *rows[:4],
            ridge / INTERCEPTS,
            starts[client],
            rows.weights,
        )
        told.append(found._replace(curvature=upper(found.curvature)))
        kept.append(found.intercepts)
    cohort.keep(KEY, torch.stack(kept))
    return Likelihood(*map(torch.stack, zip(*told, strict=True)))


@task
def model_with_intercept(cohort: Cohort, *, x: OneModel, ridge: float) -> OwnModel:
    """The model x with the client's own intercepts."""
    slopes, _ = counts(cohort.layout)
    starts = cohort.state(KEY, x[slopes:].double()).values
    own = []
    for client in range(len(cohort.names)):
        rows = linear_rows(cohort, client, hidden=True)
        b, start = x[:slopes].cpu(), starts[client]
        own.append(
            own_intercepts(b, *rows[:4], ridge / INTERCEPTS, start, rows.weights)
        )
    return OwnModel(torch.stack(own).to(x.dtype))


@options
class FixedEffects(Method[State | bounded_slopes.State]):
    """Fit shared slopes and an intercept of each client by Newton's method on sums.

    Attributes:
        ridge: >= 0, on the slopes and the sum of all losses; a twentieth of it is on intercepts. 0 frees both.
        private: noise that hides each row, in one event for the products of rows and one for each round; None: there is none.

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, x[:, 0]), "b": (x, x[:, 0] + 2)}, task="regression")
    >>> run = ct.fit(ct.FixedEffects(ridge=0.0), clients, rounds=3)
    >>> {name: [round(float(v), 2) for v in model] for name, model in run.models.items()}  # `*`: a hospital outside
    {'*': [1.0, 1.0], 'a': [1.0, 0.0], 'b': [1.0, 2.0]}
    """

    ridge: Annotated[float, NOT_NEGATIVE] = 1.0
    private: Annotated[RowNoise | None, optional(ROW_NOISE)] = None

    participation = "own"
    linear_only = True
    keeps = 1
    exempt: ClassVar[Mapping[str, str]] = {
        "diverges": "it is solved, without a learning rate"
    }

    @property
    def tasks(self) -> tuple[Any, ...]:
        """Curvature and gradient with the intercept eliminated, or noisy sums over rows."""
        if self.private is None:
            return (asks(tell_profile, rounds=MOST_ROUNDS), model_with_intercept)
        return (
            asks(bounded_slopes.tell_products, rounds=1, noise=self.private),
            asks(bounded_slopes.tell_row_gradients, noise=self.private),
            model_with_intercept,
        )

    def init(self, x: Tensor, federation: Federation) -> State | bounded_slopes.State:
        """Start from slopes and intercepts of 0: where one starts does not matter to where one ends."""
        engine = federation.engine
        require_linear(engine.model, engine.loss, "fixed-effects")
        if self.private is not None:
            bounded_slopes.require_bounded(engine.loss)
            return bounded_slopes.start_bounded(x, federation.layout)
        return start_at_zero(x, federation.layout)

    def round(
        self,
        state: State | bounded_slopes.State,
        federation: Federation,
        rng: Rng,
    ) -> tuple[State | bounded_slopes.State, Log]:
        """One Newton step of the slopes, nothing once they stand; behind row noise one step under the bound."""
        ridge = float(self.ridge)
        if isinstance(state, bounded_slopes.State):
            if self.private is None:
                raise InputError("these rounds began with private; set it again")
            bounded = bounded_slopes.bounded_round(
                state, federation, self.private, ridge, ridge / INTERCEPTS
            )
            return bounded, {}
        moved = newton_round(state, federation, tell_profile, ridge, ridge=ridge)
        return moved, {}

    def finished(self, state: State | bounded_slopes.State) -> bool:
        """Once the slopes stand; never behind noise."""
        return isinstance(state, State) and state.done

    def row_events(self, rounds: int) -> int:
        """The products of rows, and the gradients of each round."""
        return 1 + rounds

    def slope_variance(self, state: State | bounded_slopes.State) -> Tensor | None:
        """The variance of the noise in the slopes; None without noise."""
        return state.variance if isinstance(state, bounded_slopes.State) else None

    def models(self, state: State | bounded_slopes.State) -> Tensor:
        """The slopes with the mean intercept."""
        return state.x

    def personalised(
        self, state: State | bounded_slopes.State, federation: Federation
    ) -> Mapping[str, Tensor | None]:
        """The slopes with each client's own intercept."""
        if state.rounds == 0:
            return {}
        return federation.own_models(
            federation.everyone,
            model_with_intercept,
            x=state.x,
            ridge=float(self.ridge),
        )
