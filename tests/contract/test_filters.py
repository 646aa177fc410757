"""The pipeline of a reply: filters run at the client, in their order, on declared fields; the server undoes what must be undone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from coterie import FedAvg, task
from coterie.base.errors import InputError
from coterie.config.schema import wire_type
from coterie.contract.filters import Filter
from coterie.contract.fitting import filters_of
from coterie.contract.task import Count, Gap, Gradient, Update
from federations import batch_norm, federation_of, quadratic

CENTRES = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0], "c": [7.0, 8.0, 9.0]}


class Everything(NamedTuple):
    delta: Update
    gradient: Gradient
    gap: Gap
    rows: Count
    other: Tensor
    kept: Tensor


@task
def everything(cohort, *, fails: str = "") -> Everything:
    """Ones in every field; a number in memory counts how often a client's reply has left it."""
    kept = cohort.memory.get("times", torch.tensor(0.0))
    cohort.memory.put("times", kept + 1)
    ones = torch.ones(len(cohort.names), cohort.layout.size, dtype=cohort.layout.dtype)
    few = torch.ones(len(cohort.names))
    return Everything(ones, ones.clone(), few, few, few, kept)


@wire_type
@dataclass(frozen=True)
class Times(Filter):
    """Multiply by `factor`, then add `plus`: two of them do not commute."""

    factor: float = 1.0
    plus: float = 0.0
    stage: str = "compression"
    kinds: tuple[str, ...] = ("update",)
    lossy: bool = True

    def apply(self, rows, passage):
        return rows * self.factor + self.plus


@wire_type
@dataclass(frozen=True)
class Halves(Filter):
    """Sent are the first entries, as whole numbers of a byte; the others come back as the mean of those."""

    packs = True
    keep: int = 2

    def pack(self, rows):
        return {"first": rows[..., : self.keep].round().to(torch.uint8)}

    def unpack(self, parts, dim):
        first = parts["first"].double()
        rest = first.mean(-1, keepdim=True).expand(*first.shape[:-1], dim - self.keep)
        return torch.cat([first, rest], -1)


@wire_type
@dataclass(frozen=True)
class Breaks(Filter):
    """Fails where the client `name` is in the cohort; where `undone`, at the server."""

    packs = True
    name: str = ""
    undone: bool = False

    def apply(self, rows, passage):
        if self.name in passage.names:
            raise OSError("the pump is broken")
        return rows

    def pack(self, rows):
        return {"rows": rows[:, :1] if self.undone else rows}

    def unpack(self, parts, dim):
        if parts["rows"].shape[-1] != dim:
            raise ValueError("too short")
        return parts["rows"]


@wire_type
@dataclass(frozen=True)
class Drawn(Filter):
    """Noise from the named stream of each client."""

    stage = "noise"

    def apply(self, rows, passage):
        drawn = [
            torch.from_numpy(rng.uniform(rows[0].numel())).view_as(rows[0])
            for rng in passage.rngs()
        ]
        return torch.stack(drawn)


@pytest.fixture(params=[1, 2, pytest.param("ray", marks=pytest.mark.engines)])
def three(request):
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    with federation_of(quadratic(CENTRES), request.param) as federation:
        yield federation


def ask(federation, *filters, **payload):
    ordered = filters_of(FedAvg(), filters)
    return replace(federation, filters=ordered).ask(
        federation.clients, everything, **payload
    )


def test_filters_see_declared_fields_and_nothing_else(three):
    replies = ask(three, Times(3.0))
    assert replies.delta.unique().tolist() == [3]
    assert {
        float(replies.fields[k].unique()) for k in ("gradient", "gap", "rows", "other")
    } == {1}
    replies = ask(three, Times(3.0, kinds=("gradient", "count")))
    assert {k: float(v.unique()) for k, v in replies.fields.items()} == {
        "delta": 1, "gradient": 3, "gap": 1, "rows": 3, "other": 1, "kept": 1
    }  # fmt: skip


def test_filters_run_in_the_order_of_their_stages_and_then_as_given(three):
    masks, attack, noise = (
        Times(2.0, 1.0, stage=s) for s in ("masks", "attack", "noise")
    )
    add, double, clip = Times(plus=1.0), Times(2.0), Times(0.0, 5.0, stage="clipping")
    assert (
        ask(three, masks, attack, add, double, noise, clip).delta.unique().item()
        == ((5 * 2 + 1 + 1) * 2 * 2 + 1) * 2 + 1
    )
    assert ask(three, double, add).delta.unique().item() == 3
    assert ask(three, add, double).delta.unique().item() == 4


def test_buffers_are_sent_as_they_are():
    with federation_of(batch_norm()) as federation:
        for filters in ((Times(3.0),), (Times(3.0), Halves(keep=4))):
            delta = ask(federation, *filters).delta
            assert delta[:, : federation.dim].unique().tolist() == [3]
            assert delta[:, federation.dim :].unique().tolist() == [1]
            assert delta.shape[1] == federation.layout.size > federation.dim


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_packed_is_counted_as_it_is_sent_and_undone_before_it_is_checked(
    three, strict
):
    plain, packed = (
        ask(replace(three, strict_wire=strict), *filters)
        for filters in ((), (Times(7.0), Halves()))
    )
    assert packed.delta.tolist() == [[7, 7, 7]] * 3
    assert packed.delta.dtype == plain.delta.dtype
    before, after = (record.bytes_up for record in three.session.asks[-2:])
    assert before - after == 3 * 8 - 2 * 1


def test_a_filter_that_fails_is_its_clients_failure_and_commits_no_memory(three):
    assert ask(three).kept.tolist() == [0, 0, 0]
    replies = ask(three, Breaks("b"))
    assert replies.failed == {"b": "OSError: the pump is broken"}
    assert ask(three).kept.tolist() == [2, 1, 2]


def test_what_cannot_be_unpacked_is_refused_by_name(three):
    with pytest.raises(
        Exception, match=r"a \(its reply cannot be unpacked \(ValueError: too short\)\)"
    ):
        ask(three, Breaks(undone=True))


def test_streams_are_named_by_the_method_and_not_by_its_task(three):
    one, other = (
        ask(replace(three, label=label, round=1), Drawn()).delta for label in ("a", "b")
    )
    assert not torch.equal(one, other)
    again = replace(three, label="a", round=1, attempt=5)
    assert torch.equal(ask(again, Drawn()).delta, one)
    assert not torch.equal(
        ask(again, Drawn()).delta, one
    )  # the second ask of the round
    with federation_of(quadratic(CENTRES)) as alone:
        ordered = filters_of(FedAvg(), [Drawn()])
        federation = replace(alone, filters=ordered, label="a", round=1)
        assert torch.equal(federation.ask(["b"], everything).delta[0], one[1])


class Exact(FedAvg):
    needs_exact_uploads = True


@dataclass(frozen=True)
class Unregistered(Filter):
    def apply(self, rows, passage):
        return 0 * rows


@pytest.mark.parametrize(
    ("filters", "method", "said"),
    [
        (
            [3],
            FedAvg(),
            "3 is not a filter; give one such as TopK(0.01), of a class derived from ct.Filter",
        ),
        (
            [Unregistered()],
            FedAvg(),
            "Unregistered must be a frozen dataclass registered with @wire_type",
        ),
        (
            [Times(stage="noises")],
            FedAvg(),
            "Times.stage must be clipping | noise | compression | attack | masks; got 'noises'; did you mean 'noise'?",
        ),
        (
            [Halves(), Breaks()],
            FedAvg(),
            "Halves and Breaks both choose the form in which replies are sent",
        ),
        (
            [Times()],
            Exact(),
            "Exact needs exact uploads, since its clients build on what they sent; leave out the filter",
        ),
    ],
)
def test_filters_that_cannot_be_are_refused_with_a_sentence(filters: Any, method, said):
    with pytest.raises(InputError) as error:
        filters_of(method, filters)
    assert said in str(error.value)


def test_a_method_that_needs_exact_uploads_takes_filters_that_are_not_lossy():
    assert filters_of(Exact(), [Times(lossy=False)])
