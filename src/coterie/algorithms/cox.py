r"""Cox regression, stratified by client: hazard ratios that all clients share, beside a baseline hazard of each that nobody needs.

Paper: C.-L. Lu et al., "WebDISCO: a web service for distributed Cox model learning without patient-level data sharing", JAMIA 2015;
the model is that of D. R. Cox, "Regression models and life-tables", JRSS B 34 (1972), its ties those of B. Efron, JASA 72 (1977).

Optimises: the partial likelihood of all clients, each a stratum, minus ridge / 2 |b|^2.
Sends: d + 1 + d_s (d_s + 1) / 2 up, d down (tell_partial: once a round until it has converged).
Memory: none.
Use: hazard ratios with standard errors, as a statistician reports them, of a time to event under a linear model.
Avoid: risks are wanted: the other methods train these. Hazards that do not stay proportional; few events for many columns.
Formula: \max_b \sum_k \log L_k(b) - \frac{\lambda}{2} \|b\|^2, \quad L_k(b) = \prod_{i: \text{event}}
\frac{\exp(b^\top x_{ki})}{\sum_{j \in R_k(t_{ki})} \exp(b^\top x_{kj})}

Symbols: d_s = slopes of a model, the other C of its d numbers are the baseline, b = slopes, L_k = partial likelihood of client k,
R_k(t) = its rows at risk at t, lambda = ridge.

Each round is one Newton step on sums of value, gradient and curvature; a step after which the likelihood is lower is halved. 4 to 7
rounds come to 1e-8; later ones change nothing. The model that is served has these slopes, and a baseline that suits the client's
own events and time at risk, so that the loss of its rows judges it as any other; a hospital outside gets the mean baseline.
`run.prior` has the slopes and their covariance, of which reports make hazard ratios.

Of two classes, which have no times, all rows of a client are at risk at one time: conditional logistic regression with Efron's
approximation, as R's `clogit(method = "efron")`.

Differences from the papers: each client is a stratum, so that no client tells who else was at risk; the ridge, 0 by default. At sites
it needs ten events for each slope, fewer than which could be solved for.

Laws:
- slopes and errors are those of a stratified Cox regression on pooled rows:
  tests/methods/test_cox.py::test_slopes_and_errors_are_those_of_statsmodels_with_strata_entry_and_ties
- a change of one client's clock changes nothing:
  tests/methods/test_cox.py::test_a_clock_that_runs_faster_at_one_client_changes_no_slope
- a column in another unit divides its slope:
  tests/methods/test_cox.py::test_a_column_in_another_unit_divides_its_slope
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
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
from coterie.config.rules import NOT_NEGATIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import asks
from coterie.contract.task import Holds, OneModel, task
from coterie.solvers.cox import partial_likelihood
from coterie.solvers.profile import own_intercepts

BASELINE_RIDGE = 0.05
"""Of a client's baseline, so that an interval without an event has a rate: that of `fixed-effects` with ridge 1."""


@task
def tell_partial(
    cohort: Cohort, *, x: Annotated[Tensor, Holds(("parameters",), torch.float64)]
) -> Likelihood:
    """Value, gradient and curvature at the slopes of x [d], and the client's baseline there."""
    told = []
    slopes, _ = counts(cohort.layout)
    for client in range(len(cohort.names)):
        rows = linear_rows(cohort, client)
        cohort.spent["row_gradients"] += len(rows.labels)
        found = partial_likelihood(
            x[:slopes].cpu(), rows.inputs, _followup(cohort, client), rows.weights
        )
        own = own_intercepts(
            x[:slopes].cpu(),
            *rows[:4],
            BASELINE_RIDGE,
            x[slopes:].cpu(),
            rows.weights,
        )
        told.append(
            (found.gradient, upper(found.curvature), found.loglik, own[slopes:])
        )
    return Likelihood(*map(torch.stack, zip(*told, strict=True)))


@task
def model_with_baseline(cohort: Cohort, *, x: OneModel) -> OwnModel:
    """The model x with the client's own baseline."""
    slopes, _ = counts(cohort.layout)
    own = []
    for client in range(len(cohort.names)):
        rows = linear_rows(cohort, client)
        b, start = x[:slopes].cpu(), x[slopes:].double().cpu()
        own.append(own_intercepts(b, *rows[:4], BASELINE_RIDGE, start, rows.weights))
    return OwnModel(torch.stack(own).to(x.dtype))


def _followup(cohort: Cohort, client: int) -> Tensor:
    """Entry, time and event of the client's training rows [n, 3], float64; of two classes all at one time."""
    numbers = np.arange(cohort.size(client), dtype=np.int64)
    _, stored = cohort.training_rows(client, numbers)
    labels = cohort.workspace.loss.plain(stored).double().cpu()
    if cohort.workspace.loss.kind == "hazards":
        return labels
    event = labels.reshape(-1)
    return torch.stack([torch.zeros_like(event), torch.ones_like(event), event], 1)


@options
class Cox(Method[State]):
    """Fit hazard ratios that clients share by Newton's method on sums of their partial likelihoods.

    Attributes:
        ridge: >= 0, on the slopes and the sum of all log partial likelihoods. 0: slopes are those of maximum partial likelihood.

    >>> import coterie as ct, torch
    >>> x, time = torch.tensor([[0.0], [1.0], [1.0], [0.0]]), torch.tensor([0.2, 0.4, 0.6, 0.8])
    >>> labels = torch.stack([torch.zeros(4), time, torch.ones(4)], 1)  # entry, time and event
    >>> form = ct.LabelForm("hazards", cuts=(1.0,), rates=(1.0,))
    >>> clients = ct.data.from_tensors({"a": (x, labels), "b": (x, labels)}, form=form, split={"parts": {"train": 1.0}})
    >>> run = ct.fit(ct.Cox(), clients, rounds=9)
    >>> hazard_ratio = run.prior["slopes"].exp()
    >>> round(float(hazard_ratio), 3), round(float(run.prior["covariance"].sqrt()), 3)
    (1.618, 0.875)
    """

    ridge: Annotated[float, NOT_NEGATIVE] = 0.0

    participation = "own"
    linear_only = True
    events_per_slope: ClassVar[int] = 10
    exempt: ClassVar[Mapping[str, str]] = {
        "diverges": "it is solved, without a learning rate"
    }
    tasks = (asks(tell_partial, rounds=MOST_ROUNDS), model_with_baseline)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from slopes of 0: where one starts does not matter to where one ends."""
        engine = federation.engine
        require_linear(engine.model, engine.loss, "cox")
        if engine.loss.kind not in ("hazards", "binary"):
            raise InputError(
                f"cox takes a time to event (--time, --event), and these labels are {engine.loss.kind}; leave out cox"
            )
        return start_at_zero(x, federation.layout)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One Newton step of the slopes; nothing once they stand."""
        return newton_round(state, federation, tell_partial, self.ridge), {}

    def finished(self, state: State) -> bool:
        """Once the slopes stand."""
        return state.done

    def models(self, state: State) -> Tensor:
        """The slopes with the mean baseline."""
        return state.x

    def personalised(
        self, state: State, federation: Federation
    ) -> Mapping[str, Tensor | None]:
        """The slopes with each client's own baseline."""
        if state.rounds == 0:
            return {}
        return federation.own_models(
            federation.everyone, model_with_baseline, x=state.x
        )

    def prior(self, state: State) -> Mapping[str, Any]:
        """The slopes [D], their covariance [D, D], the inverse of the curvature, and the clients that told of them."""
        if state.rounds == 0:
            return {}
        return {
            "slopes": state.b,
            "covariance": torch.linalg.pinv(state.curvature, hermitian=True),
            "clients": state.clients,
        }
