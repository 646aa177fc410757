"""Requirements of clients on a model, and how far a model meets them: shared by the methods that weigh clients by it.

A client requires the loss of the model xhat_k that it would get by some local steps of its own from the initial model (Cho et al.,
"Maximizing Global Model Appeal in Federated Learning", Eq. 1 and Section 5), or a loss that its user names. It is computed when the
client is first asked, always as of round 0, so it does not matter when that is; the client keeps four numbers and no weights.
MaxFL weighs clients by it, MW-Fed compares with it, and any method may log its metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, RunError, nearest
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.compute.metrics import accuracy
from coterie.config.local import LocalSGD, Steps
from coterie.config.rules import Rule, is_number
from coterie.contract.federation import Federation
from coterie.contract.method import Log
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Form, Holds, OneModel, Task, task
from coterie.contract.wire import PerClient
from coterie.solvers import NotFiniteError, appeal

KEPT = "appeal"
"""Name in client memory of a client's requirement, and of how its own model does."""
_TUNED = 5
"""Local steps from x after which appeal is measured once more (Table 3)."""
_CHUNK = 32
"""Clients whose own models are held at once."""
_MEASURED = (
    "gap", "slack", "train_loss", "appeal_train", "test_loss", "test_accuracy", "gm_appeal", "preferred_accuracy",
    "best_of_two", "gm_appeal_tuned", "preferred_accuracy_tuned", "best_of_two_tuned",
)  # fmt: skip


Requirements = str | tuple[tuple[str, float], ...] | Mapping[str, float]
"""Rows of the loss that a client requires, "train" or "validation", or requirements of the user's own by client."""


def _are_requirements(value: Any) -> bool:
    if value in ("train", "validation"):
        return True
    pairs = value
    if isinstance(value, Mapping):
        pairs = tuple(value.items())
    if not isinstance(pairs, tuple) or not pairs:
        return False
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return False
        client, loss = pair
        if not isinstance(client, str) or not is_number(loss):
            return False
    return len(dict(pairs)) == len(pairs)  # no client twice


REQUIREMENTS = Rule(
    _are_requirements, '"train", "validation", or a table of a loss by client'
)


def as_pairs(owner: Any) -> None:
    """Let a table in the field `requirements` of a frozen dataclass be pairs, which are a value."""
    if isinstance(owner.requirements, Mapping):
        object.__setattr__(owner, "requirements", tuple(owner.requirements.items()))


def check_names(owner: Any, everyone: tuple[str, ...]) -> None:
    """Raise `InputError` for a requirement of a client that does not exist."""
    for name in _by_client(owner.requirements):
        if name not in everyone:
            method = type(owner).__name__
            raise InputError(
                f"{method}.requirements names {name!r}, which is not a client; {nearest(name, everyone)}"
            )


def _by_client(requirements: Requirements) -> dict[str, float]:
    """Losses that the user requires; for all other clients the requirement is computed."""
    if isinstance(requirements, str):
        return {}
    return dict(requirements)


def _rows_of(requirements: Requirements) -> str:
    """Rows on which a requirement is computed where the user names none."""
    if isinstance(requirements, str):
        return requirements
    return "train"


def requirement_payload(
    requirements: Requirements,
    clients: tuple[str, ...],
    start: Tensor,
    ready: Collection[str],
    warm: LocalSGD,
) -> dict[str, Any]:
    """Return what a task sends so that `requirement` can be computed; the initial model `start` only if a client is not `ready`.

    Who keeps its requirement is known to the federation: `federation.holders(KEPT)`. A client that failed may have lost it, so let it
    count no longer: `federation.discard(KEPT, replies.failed)`.
    """
    by_client = _by_client(requirements)
    user_losses = [by_client.get(name, math.nan) for name in clients]
    sent_start: Tensor | None = start
    if set(clients) <= set(ready):
        sent_start = None
    return {
        "start": sent_start,
        "required": PerClient(torch.tensor(user_losses, dtype=torch.float64)),
        "rows": _rows_of(requirements),
        "warm": warm,
    }


def asks_of_requirements(owner: Any, *tasks: Task[Any]) -> tuple[Asks, ...]:
    """Declare tasks of a method whose payload is that of `requirement_payload`."""
    rows = _rows_of(owner.requirements)
    warm = with_steps(owner.local, owner.warmup_steps)
    return tuple(asks(task, rows=rows, warm=warm) for task in tasks)


def _measure_shape(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    return (len(_MEASURED),)


class Gaps(NamedTuple):
    """F_k(x) - rho_k [n], by which a client says whether it stays: below 0."""

    gap: Annotated[Tensor, "stay", Form()]


class Measured(NamedTuple):
    """The quantities `_MEASURED` [n, m] and which of them are defined [n, m]."""

    values: Annotated[Tensor, "loss", Form(_measure_shape)]
    defined: Annotated[Tensor, "other", Form(_measure_shape, torch.bool)]


Start = Annotated[Tensor, Holds(("model",))]
"""The initial model, from which a client trains its own."""
Required = Annotated[Tensor, Holds((), torch.float64, each=True, finite=False)]
"""The loss that the user requires; NaN: the one that the client's own model reaches."""


@task
def gaps(
    cohort: Cohort,
    *,
    x: OneModel,
    start: Start | None,
    required: Required,
    warm: LocalSGD,
    rows: str,
) -> Gaps:
    """Return F_k(x) - rho_k on all training rows of each client; the model appeals to a client where this is below 0."""
    return Gaps(cohort.loss(x) - requirement(cohort, start, required, warm, rows))


@task
def measure(
    cohort: Cohort,
    *,
    x: OneModel,
    start: Start,
    required: Required,
    warm: LocalSGD,
    rows: str,
) -> Measured:
    """Each client's own comparison of x, and of x after a few local steps, with its xhat_k."""
    rho = requirement(cohort, start, required, warm, rows)
    solo = _solo(cohort, start, warm, rows)
    blocks = []
    for positions in _chunks(range(len(cohort.names))):
        # Looking is not part of the method's work.
        part = cohort.only(positions).without_billing()
        need, solo_values = rho[positions], solo[positions]
        tuned = part.train(x, with_steps(warm, _TUNED), purpose="tuned")
        train = part.loss(x)
        test, right = _test_scores(part, x)
        # In the order of `_MEASURED`.
        columns = [
            train - need,
            (need - train).clamp(min=0),
            train,
            (train < solo_values[:, 1]).double(),
            test,
            right,
            *_preferences(test, right, solo_values),
            *_preferences(*_test_scores(part, tuned), solo_values),
        ]
        blocks.append(torch.stack(columns, dim=1))
    table = torch.cat(blocks)
    return Measured(table.nan_to_num(0.0), ~table.isnan())


def _preferences(test: Tensor, right: Tensor, solo: Tensor) -> list[Tensor]:
    """Return where a model appeals on test rows, and the accuracy of the preferred and of the better of the two models, [n] each."""
    appeals = test < solo[:, 2]
    preferred = torch.where(appeals, right, solo[:, 3])
    better = torch.maximum(right, solo[:, 3])
    # Without test rows both losses are NaN, and it is not known.
    known_appeals = torch.where(test.isnan(), test, appeals.double())
    return [known_appeals, preferred, better]


def _test_scores(cohort: Cohort, x: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and accuracy [n] on test rows, NaN where there are none."""
    evaluated = cohort.evaluate(x, {"accuracy": accuracy}, part="test")
    return evaluated["loss"], evaluated["accuracy"]


def requirement(
    cohort: Cohort, start: Tensor | None, required: Tensor, warm: LocalSGD, rows: str
) -> Tensor:
    """rho_k [n]: the user's where there is one, else that of the warm-up."""
    own_rho = _solo(cohort, start, warm, rows)[:, 0]
    return torch.where(required.isnan(), own_rho, required)


def _solo(cohort: Cohort, start: Tensor | None, warmup: LocalSGD, rows: str) -> Tensor:
    """rho_k, training loss, test loss and test accuracy of xhat_k [n, 4], computed once; NaN where there are no rows."""
    solo, rounds, _ = cohort.state(
        KEPT, torch.full((4,), math.nan, dtype=torch.float64)
    )
    new_clients = torch.nonzero(rounds < 0).flatten().tolist()
    if new_clients and start is None:
        raise RuntimeError(
            "the requirement is lost (a process ended?); it is computed anew when next asked"
        )
    for positions in _chunks(new_clients):
        part = replace(cohort.only(positions), round=0)
        models = part.train(start, warmup, purpose="warmup")  # type: ignore[arg-type]
        train = part.loss(models)
        rho = train.clone()
        # A client without validation rows requires its training loss.
        with_rows: list[int] = []
        if rows != "train":
            with_rows = [i for i in range(len(positions)) if part.has(i, rows)]
        if with_rows:
            rho[with_rows] = part.only(with_rows).loss(models[with_rows], part=rows)
        test, right = _test_scores(part, models)
        solo[positions] = torch.stack([rho, train, test, right], dim=1)
    if new_clients:
        cohort.keep(KEPT, solo)
    return solo


def _chunks(positions: Any) -> Iterator[list[int]]:
    for low in range(0, len(positions), _CHUNK):
        yield list(positions[low : low + _CHUNK])


def with_steps(local: LocalSGD, count: int) -> LocalSGD:
    """The same batch size and learning rate; a sampler belongs to the training proper."""
    return replace(local, steps=Steps(count), sampler=None)


def solve_gaps(function: Callable[..., Tensor], gap: Tensor, surrogate: str) -> Tensor:
    """`function` of the gaps, with an error that names the surrogate's cure where it overflows."""
    try:
        return function(gap, surrogate=surrogate)
    except NotFiniteError as error:
        raise RunError(
            f'MaxFL.surrogate = "{surrogate}" cannot weigh these gaps ({error}); "sigmoid" can'
        ) from error


def staying(
    x: Tensor, start: Tensor, federation: Federation, local: LocalSGD, *, warmup_steps: int = 100,
    requirements: Requirements = "train",
) -> tuple[str, ...]:  # fmt: skip
    """Clients to whom the model x [d + b] appeals in this round. Arguments as for `measure_appeal`."""
    everyone, warm = federation.everyone, with_steps(local, warmup_steps)
    payload = requirement_payload(
        requirements, everyone, start, federation.holders(KEPT), warm
    )
    replies = federation.ask(everyone, gaps, x=x, **payload)
    federation.discard(KEPT, replies.failed)
    return tuple(
        name
        for name, gap in zip(replies.clients, replies.gap.tolist(), strict=True)
        if gap < 0
    )


def measure_appeal(
    x: Tensor, start: Tensor, federation: Federation, local: LocalSGD, *, warmup_steps: int = 100,
    requirements: Requirements = "train", surrogate: str = "sigmoid",
) -> Log:  # fmt: skip
    """Measure how much a model appeals to seen and to unseen clients; any method may log it.

    Args:
        x: model [d + b].
        start: the initial model, from which each client's own xhat_k is trained.
        federation: whose `everyone` and `unseen` are asked.
        local: batch size and learning rate of the warm-up and of the tuning.
        warmup_steps: local steps to xhat_k.
        requirements: "train" or "validation" rows of rho_k, or requirements of the user's own by client.
        surrogate: h of the objective.

    Returns:
        Means over clients: `gm_appeal` (share with test loss(x) < test loss(xhat_k)), `appeal_train`, `preferred_accuracy` (of x if it
        appeals, else of xhat_k), `best_of_two`, these with `_tuned` after 5 local steps from x, `slack` = max(rho_k - F_k(x), 0),
        `train_loss`, `test_loss`, `test_accuracy`, and `objective_everyone`; for unseen clients the same with `_unseen` behind.
    """
    log: Log = {}
    for names, suffix in ((federation.everyone, ""), (federation.unseen, "_unseen")):
        if not names:
            continue
        payload = requirement_payload(
            requirements, names, start, (), with_steps(local, warmup_steps)
        )
        replies = federation.ask(names, measure, x=x, **payload)
        for column, values, defined in zip(
            _MEASURED, replies.values.T, replies.defined.T, strict=True
        ):
            if column == "gap":
                objective = solve_gaps(appeal.objective, values, surrogate)
                log[f"objective_everyone{suffix}"] = float(objective)
            elif bool(defined.any()):
                log[column + suffix] = float(values[defined].mean())
    return log
