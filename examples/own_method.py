"""A method of your own: move by the median of the clients' updates, coordinate by coordinate, which no single client can drag away.

    coterie compare heart-disease --methods local,fedavg,examples/own_method.py:Median
    coterie compare heart-disease --methods examples/own_method.py:Median --set median.local.lr=.05

From Python: ct.fit(Median(), clients, model=ct.models.Logistic()). What else a cohort can do: docs/tutorials/own-method.md.
"""

from typing import NamedTuple

from torch import Tensor

import coterie as ct


class Reply(
    NamedTuple
):  # what leaves a client; `Update` says that it is added to a model, and lets coterie check it
    delta: ct.Update


@ct.task  # the client's half runs where the rows are; vectors have a leading dimension, one row per client
def update(cohort, *, x, local) -> Reply:
    return Reply(cohort.updates(x, local))


class State(
    NamedTuple
):  # all that a round hands to the next one; it is saved after every round
    x: Tensor


@ct.options
class Median(ct.Method):  # the server's half; its fields are its settings
    local: ct.LocalSGD = ct.LocalSGD(lr=0.1, steps=ct.Steps(10), batch_size=16)

    def init(self, x, federation):
        return State(x)

    def round(self, state, federation, rng):
        replies = federation.ask(
            federation.clients, update, x=state.x, local=self.local
        )  # replies.delta is [n, d]
        return State(
            state.x + replies.delta.median(dim=0).values
        ), {}  # {}: numbers to log, by name

    def models(self, state):  # one model for everybody, or {client: model}
        return state.x
