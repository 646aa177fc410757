"""One masked ask whose sum alone has noise by row: clients send sums of clipped row gradients, each with a part of the noise.

P. Kairouz, Z. Liu and T. Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
ICML 2021. Noise that each client adds in full would be n times as much in the sum of n; of what the server sees, the sum, a t-th of it
from each of t clients hides a row as well. A client that tells the server its own part takes it away: towards c such clients mu is
sqrt(t / (t - c)) times larger (`SecureSums.curious`).

That holds for one step on all rows alone: after several steps an update is no sum over rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.config.local import LocalSGD
from coterie.config.row_noise import RowNoise
from coterie.contract.exchange import shares_of
from coterie.contract.fixed_point import NoisyGrid, whole_weights
from coterie.contract.replies import Average, Replies
from coterie.contract.secure_exchange import SecureExchange
from coterie.contract.task import Task
from coterie.contract.wire import PerClient

R = TypeVar("R", bound=tuple[Any, ...])


def noise_of(payload: Mapping[str, Any]) -> RowNoise | None:
    """Return the noise by row of the local training that a payload asks; None: there is none."""
    local = payload.get("local")
    if not isinstance(local, LocalSGD) or local.private is None:
        return None
    return local.private if local.private.noise_multiplier else None


def why_no_step(local: LocalSGD) -> str:
    """Return why local training with these settings is not one plain step on all rows; "" if it is."""
    if local.steps.count > 1:
        return f"takes {local.steps.count} steps between sums, after which an update is no sum over rows; set steps = 1"
    if local.optimiser != "sgd" or local.momentum or local.clip is not None:
        return "takes no plain step; set optimiser = 'sgd', and no momentum or clip"
    return ""


@dataclass(frozen=True)
class NoisySum(SecureExchange[R]):
    """One ask under secure sums whose clients would train with noise by row: the sum of all has that noise once."""

    noise: RowNoise = field(default_factory=lambda: RowNoise(0.0))

    def average(self, weights: Mapping[str, float]) -> Average[R]:
        """The means of one step on all rows with these `weights` of clients, of which nothing but a noisy sum is seen.

        A client's sum is multiplied by w_k / n_k over the largest of these, so that no row counts more than its clipped length; with
        weights by rows all of these factors are 1.

        Raises:
            InputError: The task is no sum over rows, or local training more than one plain step; or as for `SecureExchange`.
            QuorumError: Too few sent their vector.
        """
        task, local, x = self._settings()
        names = self.ask.names
        parties = self.secure.survivors(len(names))
        grid = NoisyGrid(self.noise, parties, len(x))
        sizes = self.engine.sizes("train")
        grid.check_room(sum(sizes[name] for name in names))
        per_row = [weights[name] / sizes[name] for name in names]
        most = max(per_row)
        factors = torch.tensor([each / most for each in per_row], dtype=torch.float64)

        asked = self._ask_for_sums(task, x, parties, factors)
        replies, total = asked._open_sum(whole_weights(weights))

        shares = shares_of(replies.clients, weights)
        gradient = grid.decode(total) * most / float(shares.sum())
        gradient = gradient.to(x.device) + local.weight_decay * x.double()
        rate = local.rate(self.ask.context.round)
        means = {self._update_field(): (-rate * gradient).to(x)}
        told = {k: v for k, v in replies.fields.items() if k in self.task.kinds}
        kept: Replies[R] = Replies(
            replies.clients, replies.asked, told, replies.failed, replies.forgot
        )
        return Average(kept, means, shares / shares.sum())

    def _settings(self) -> tuple[Task[Any], LocalSGD, Tensor]:
        """The task of the sum, the settings of the step and its model [d]."""
        task, local = self.task.row_sum, self.ask.payload["local"]
        x = self.ask.payload.get("x")
        if task is None or not isinstance(x, Tensor):
            raise InputError(
                f"{self.task.name} is no sum over rows at one model, and under [secure] noise by row is in such sums alone; "
                "take fedavg, or leave out [secure]"
            )
        why = why_no_step(local)
        if why:
            raise InputError(
                f"local training {why}: under [secure] noise by row is in sums over rows alone"
            )
        return task, local, x

    def _update_field(self) -> str:
        return next(key for key, kind in self.task.kinds.items() if kind == "update")

    def _ask_for_sums(
        self, task: Task[Any], x: Tensor, parties: int, factors: Tensor
    ) -> NoisySum[Any]:
        """The same ask, for the sums of clients."""
        payload = {
            "x": x,
            "noise": self.noise,
            "parties": parties,
            "factors": PerClient(factors),
        }
        ask = replace(self.ask, task=task.name, payload=payload)
        changed: dict[str, Any] = {"task": task, "ask": ask}
        return replace(self, **changed)
