"""A method of your own: move by the median of the clients' updates, coordinate by coordinate, which no single client can drag away.

    coterie compare heart-disease --methods local,fedavg,examples/own_method.py:Median
    coterie compare heart-disease --methods examples/own_method.py:Median --set median.local.lr=.05

From Python: ct.fit(Median(), clients, model=ct.models.Logistic()). What else a cohort can do: docs/tutorials/own-method.md.
"""

from typing import Any, NamedTuple

from torch import Tensor

import coterie as ct


# What leaves a client; `Update` says that it is added to a model, and lets coterie check it.
class Reply(NamedTuple):
    delta: ct.Update


# The client's half runs where the rows are; vectors have a leading dimension, one row per client.
@ct.task
def update(cohort: ct.Cohort, *, x: Tensor, local: ct.LocalSGD) -> Reply:
    return Reply(cohort.updates(x, local))


# All that a round hands to the next one; it is saved after every round.
class State(NamedTuple):
    x: Tensor


# The server's half; its fields are its settings.
@ct.options
class Median(ct.Method[State]):
    local: ct.LocalSGD = ct.LocalSGD(lr=0.1, steps=ct.Steps(10), batch_size=16)

    def init(self, x: Tensor, federation: ct.Federation) -> State:
        return State(x)

    def round(
        self, state: State, federation: ct.Federation, rng: ct.Rng
    ) -> tuple[State, dict[str, Any]]:
        replies = federation.ask(
            federation.clients, update, x=state.x, local=self.local
        )
        middle = replies.delta.median(dim=0).values  # of [n, d]
        return State(state.x + middle), {}  # {}: numbers to log, by name

    # One model for everybody, or {client: model}.
    def models(self, state: State) -> Tensor:
        return state.x
