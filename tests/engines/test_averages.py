"""Replies of which only the average is wanted: the bits of a mean of all of them, but never all of them at once."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

import coterie as ct
from coterie import task
from coterie.base import vector
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import average as mean_of
from coterie.compute.tasks import local_update
from coterie.contract import exchange, replies
from coterie.contract import federation as contract_federation
from coterie.contract.federation import QuorumError
from coterie.contract.task import Gradient, Update
from coterie.engines.inprocess import InProcessEngine
from coterie.run.evaluation import Evaluator
from federations import batch_norm, federation_of, fit, logistic, quadratic

NAMES = "abcdefgh"
AVERAGING = [ct.FedAvg, ct.FedProx, ct.SCAFFOLD]


class Sent(NamedTuple):
    delta: Update
    gradient: Gradient
    rows: Tensor
    times: Tensor


@task
def send(cohort, *, spoil: str = "", how: str = "") -> Sent:
    """Vectors drawn by name; `times` counts how often a client's answer has counted. The clients in `spoil` misbehave."""
    kept = cohort.state("times", torch.tensor(0.0))
    cohort.keep("times", kept.values + 1)
    shape = (cohort.layout.size,)
    drawn = [cohort.rng(i, "send").generator() for i in range(len(cohort.names))]
    delta = torch.stack(
        [torch.randn(shape, generator=g, dtype=cohort.layout.dtype) for g in drawn]
    )
    rows = cohort.sizes
    for at in [i for i, name in enumerate(cohort.names) if name in spoil]:
        if how == "fails":
            raise OSError("line is busy")
        if how == "nan":
            delta[at] = float("nan")
        if how == "far":
            delta[at] *= 1e9
        if how == "rows":
            rows[at] = float("nan")
        if how == "shape" and len(cohort.names) == 1:
            delta = delta[:, :-1]
        if how == "shape" and len(cohort.names) > 1:
            raise ValueError("asked one by one, whoever is wrong has a name")
    return Sent(delta, 2 * delta, rows, kept.values)


def problem():
    return quadratic(
        {n: [float(i), 1.0, 2.0] for i, n in enumerate(NAMES)},
        rows={n: i + 1 for i, n in enumerate(NAMES)},
    )


@pytest.fixture(params=[1, 3, pytest.param("ray", marks=pytest.mark.engines)])
def federation(request, at_once):
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    with federation_of(problem(), request.param) as opened:
        yield opened.view(opened.clients, 1, 0)


@pytest.fixture(params=[3, 64])
def at_once(request, monkeypatch):
    monkeypatch.setattr(exchange, "AT_ONCE", request.param)


def assert_means(average, replies, weights):
    assert (average.clients, average.failed) == (replies.clients, replies.failed)
    for key in ("delta", "gradient"):
        assert torch.equal(average.fields[key], mean_of(weights, replies.fields[key]))
    assert torch.equal(average.rows, replies.rows)
    assert torch.allclose(average.weights, weights / weights.sum(), atol=1e-15)


def test_an_average_has_the_bits_of_a_mean_of_stacked_replies(federation):
    replies = federation.ask(federation.clients, send)
    average = federation.average(federation.clients, send)
    assert_means(average, replies, replies.rows)
    order = ["c", "a", "h"]
    weights = torch.tensor([3.0, 1.0, 0.5])
    average = federation.average(order, send, weights=weights)
    assert_means(
        average,
        federation.ask(order, send),
        torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64),
    )


@pytest.mark.in_turn(but=("1-3-*", "*-64-nan"))
@pytest.mark.parametrize("how", ["fails", "nan", "far", "rows", "shape"])
def test_who_is_refused_is_in_no_sum_and_the_others_remember_one_answer(
    federation, how
):
    with federation_of(problem()) as other:
        replies = other.view(other.clients, 1, 0).ask(
            federation.clients, send, spoil="c", how=how
        )
    average = federation.average(federation.clients, send, spoil="c", how=how)
    assert list(average.failed) == ["c"]
    assert_means(average, replies, replies.rows)
    later = federation.view(federation.clients, 2, 0).ask(federation.clients, send)
    assert [
        t for n, t in zip(later.clients, later.times.tolist(), strict=True) if n != "c"
    ] == [1] * 7


@pytest.mark.parametrize("how", ["fails", "nan"])
def test_below_quorum_those_that_failed_are_asked_once_more(federation, how):
    with pytest.raises(
        QuorumError, match="7 of 8 clients replied, all of them are needed"
    ):
        federation.average(federation.clients, send, need="all", spoil="c", how=how)


_VISITS: dict[str, int] = {}


@task
def busy(cohort) -> Sent:
    """The clients b and f do not answer at first."""
    for name in cohort.names:
        _VISITS[name] = _VISITS.get(name, 0) + 1
    if any(_VISITS[n] < 3 for n in cohort.names if n in "bf"):
        raise OSError("line is busy")
    return send(cohort)


def test_who_answers_the_second_time_is_added_where_its_name_stands():
    found = {}
    for kind in ("ask", "average"):
        _VISITS.clear()
        with federation_of(problem()) as federation:
            found[kind] = getattr(federation.view(federation.clients, 1, 0), kind)(
                federation.clients, busy, need="all"
            )
            later = federation.view(federation.clients, 2, 0).ask(
                federation.clients, send
            )
            assert later.times.tolist() == [1] * 8
            assert later.forgot == ()
    assert found["ask"].failed == {}
    assert_means(found["average"], found["ask"], found["ask"].rows)


def test_if_all_are_refused_after_their_vectors_were_added_the_quorum_says_so(
    monkeypatch,
):
    monkeypatch.setattr(exchange, "AT_ONCE", 3)
    with (
        federation_of(problem()) as federation,
        pytest.raises(QuorumError, match="0 of 8 clients replied"),
    ):
        federation.average(federation.clients, send, need=0, spoil=NAMES, how="rows")


def test_bytes_are_those_of_a_client_that_replied(monkeypatch):
    sizes = []
    for at_once in (2, 64):
        monkeypatch.setattr(exchange, "AT_ONCE", at_once)
        with federation_of(problem()) as federation:
            federation.average(NAMES[1:], send, spoil="h", how="fails")
            sizes.append(federation.session.asks[-1].bytes_up)
    assert sizes[0] == sizes[1] > 0


def test_what_cannot_be_averaged_is_an_error(monkeypatch):
    with federation_of(problem()) as federation:
        with pytest.raises(
            InputError,
            match=r"field 'delta' has shape \[8, 2, 3\]; an average takes one vector",
        ):
            federation.average(federation.clients, several)
        monkeypatch.setattr(exchange, "AT_ONCE", 3)
        with pytest.raises(
            InputError, match=r"weights have shape \(2,\) for 8 clients"
        ):
            federation.average(federation.clients, send, weights=torch.ones(2))
        with pytest.raises(
            QuorumError,
            match=r"field 'delta' has shape \[3, 2, 3\]; an average takes one vector",
        ):
            federation.average(federation.clients, several)


class Several(NamedTuple):
    delta: Update


@task
def several(cohort) -> Several:
    return Several(
        torch.zeros(len(cohort.names), 2, cohort.layout.size, dtype=cohort.layout.dtype)
    )


@pytest.mark.in_turn(but=("batch_norm-FedAvg", "logistic-SCAFFOLD"))
@pytest.mark.parametrize("method", AVERAGING)
@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_methods_that_average_do_not_depend_on_how_many_are_held(
    method, make, monkeypatch
):
    given = make()
    local = ct.LocalSGD(lr=0.1, steps=ct.Steps(2), batch_size=4)
    whole = fit(method(local), given.clients, given.model, 2)
    monkeypatch.setattr(exchange, "AT_ONCE", 3)
    assert torch.equal(
        fit(method(local), given.clients, given.model, 2, workers=2).x, whole.x
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_of_a_large_model_as_many_clients_are_asked_at_once_as_are_served(
    workers, monkeypatch
):
    given, honest, asked = logistic(), InProcessEngine.ask, []

    def ask(self, ask):
        asked.append((ask.task.rpartition(":")[2], len(ask.names)))
        return honest(self, ask)

    local = ct.LocalSGD(lr=0.1, steps=ct.Steps(2), batch_size=4)
    whole = fit(ct.FedAvg(local), given.clients, given.model, 2)
    monkeypatch.setattr(exchange, "HELD_BYTES", 1)
    monkeypatch.setattr(InProcessEngine, "ask", ask)
    monkeypatch.setattr(InProcessEngine, "borrow", ask)
    parted = fit(ct.FedAvg(local), given.clients, given.model, 2, workers=workers)
    assert torch.equal(parted.x, whole.x)
    assert max(count for name, count in asked if name == "local_update") == workers
    assert max(count for name, count in asked if name == "evaluate") == len(
        given.clients
    )


@pytest.mark.parametrize("vectors", [1, 3, 100])
def test_of_clients_elsewhere_as_many_are_asked_at_once_as_bytes_may_be_held(
    vectors, monkeypatch
):
    given, honest, asked = logistic(), InProcessEngine.ask, []

    def ask(self, ask):
        if ask.task.endswith(":local_update"):
            asked.append(len(ask.names))
        return honest(self, ask)

    local = ct.LocalSGD(lr=0.1, steps=ct.Steps(2), batch_size=4)
    whole = fit(ct.FedAvg(local), given.clients, given.model, 2)
    monkeypatch.setattr(InProcessEngine, "ask", ask)
    monkeypatch.setattr(InProcessEngine, "simulated", False)
    monkeypatch.setattr(exchange, "REMOTE_BYTES", vectors * whole.x.nbytes)
    parted = fit(ct.FedAvg(local), given.clients, given.model, 2)
    assert torch.equal(parted.x, whole.x)
    assert max(asked) == min(vectors, len(given.clients))


# ---- what is held


SIZE = 97
"""Numbers of a vector; no other tensor has as many columns."""


def held(kept=()):
    """Vectors of a model that this process holds, without those that it keeps of clients in case that their worker ends."""
    alive = [
        t for t in gc.get_objects() if issubclass(type(t), Tensor) and not is_lazy(t)
    ]  # a lazy layer's have no shape
    of_clients = {t.untyped_storage().data_ptr() for t in kept}
    tensors = [
        t
        for t in alive
        if t.ndim
        and t.shape[-1] == SIZE
        and t.untyped_storage().data_ptr() not in of_clients
    ]
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // t.element_size()
        for t in tensors
    }
    return sum(storages.values()) // SIZE


@contextmanager
def without_what_was_there():
    """Objects of before are not searched, which takes long where a whole suite was imported."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@cache
def many():
    """A thousand clients of one row."""
    return quadratic(
        {f"{i:04d}": torch.full((SIZE,), i / 1000) for i in range(1000)},
        rows=1,
        dtype=torch.float32,
    )


@pytest.mark.parametrize("method", AVERAGING)
def test_of_a_thousand_clients_no_more_than_a_block_of_vectors_is_held(
    method, monkeypatch
):
    honest, seen = InProcessEngine.borrow, []

    def borrow(self, ask):
        answer = honest(self, ask)
        seen.append(held(self.save_memory().values()))
        return answer

    owner = method(ct.LocalSGD(lr=0.1, steps=ct.Steps(1), batch_size=None))
    with federation_of(
        many(), 2, strict_wire=False
    ) as federation:  # clients live in two other processes
        view = federation.view(federation.clients, 1, 0)
        state = owner.init(federation.engine.x.clone(), view)
        monkeypatch.setattr(InProcessEngine, "borrow", borrow)
        with without_what_was_there():
            before = held()
            owner.round(state, view, Rng.named(0, "server", 1))
    fields = 2 if method is ct.SCAFFOLD else 1
    assert len(seen) == 16
    assert 64 * fields <= max(seen) - before <= (64 + 4) * fields  # and the sums
    assert owner.needs == "sum"


def test_of_all_targets_of_a_large_model_the_updates_for_one_are_held(monkeypatch):
    problem = quadratic(
        {f"{i}": torch.full((SIZE,), i / 10) for i in range(10)},
        rows=4,
        dtype=torch.float32,
    )
    method = ct.MeritFed(
        local=ct.LocalSGD(lr=0.1, steps=ct.Steps(1), batch_size=None),
        validation="train",
    )
    honest, seen = InProcessEngine.ask, []

    def ask(self, ask):
        answer = honest(self, ask)
        seen.append(held())
        return answer

    monkeypatch.setattr(contract_federation, "GROUP_BYTES", 1)
    with federation_of(problem, strict_wire=False) as federation:
        rounds = [federation.view(federation.clients, number, 0) for number in (1, 2)]
        state, _ = method.round(
            method.init(federation.engine.x.clone(), rounds[0]),
            rounds[0],
            Rng.named(0, "server", 1),
        )
        monkeypatch.setattr(InProcessEngine, "ask", ask)
        with without_what_was_there():
            before = held()
            method.round(state, rounds[1], Rng.named(0, "server", 2))
    assert len(seen) == 10 * (1 + 5 + 1)
    # The models before and after, the updates for one target, and what the oracle is asked.
    assert max(seen) - before < 3 * 10 + 5


def test_vectors_of_two_processes_are_added_where_they_lie(monkeypatch):
    stacked, honest = [], replies._stack_field

    def stack_field(parts, order, places):
        stacked.extend(part.numel() for part in parts if isinstance(part, Tensor))
        return honest(parts, order, places)

    monkeypatch.setattr(replies, "_stack_field", stack_field)
    means, local = [], ct.LocalSGD(lr=0.1, steps=ct.Steps(1), batch_size=None)
    for workers in (1, 2):
        with federation_of(many(), workers, strict_wire=False) as federation:
            view = federation.view(federation.clients, 1, 0)
            owner = ct.FedAvg(local)
            state = owner.init(federation.engine.x.clone(), view)
            means.append(owner.round(state, view, Rng.named(0, "server", 1))[0].x)
    assert torch.equal(*means)
    assert stacked
    assert max(stacked) < SIZE


def test_models_that_were_evaluated_are_not_held_until_they_are_evaluated_again(
    monkeypatch,
):
    seen, alive, honest = [], [], Evaluator.look

    def look(self, models, number):
        seen.append(weakref.ref(models["*"]))
        return honest(self, models, number)

    monkeypatch.setattr(Evaluator, "look", look)
    note = lambda number: alive.append([ref() is not None for ref in seen])  # noqa: E731
    fit(ct.FedAvg(), *logistic(), 3, evaluate=3, callbacks=(note,))
    assert alive == [[True], [False], [False], [False, True]]


@pytest.mark.parametrize(("numbers", "trims"), [(1 << 10, 0), (1 << 18, 1)])
def test_only_what_large_models_leave_in_the_heap_is_given_back(
    numbers, trims, monkeypatch
):
    calls = []
    monkeypatch.setattr(
        vector.ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=calls.append)
    )
    problem = quadratic({"a": torch.zeros(numbers)}, rows=1, dtype=torch.float32)
    with federation_of(problem, strict_wire=False) as federation:
        federation.view(federation.clients, 1, 0).ask(["a"], send)
    assert calls == [0] * trims


@pytest.mark.parametrize(("numbers", "trims"), [(1 << 18, 1), (1 << 22, 3)])
def test_gradients_of_a_wide_model_are_given_back_before_its_result_is_written(
    numbers, trims, monkeypatch
):
    calls = []
    monkeypatch.setattr(
        vector.ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=calls.append)
    )
    problem = quadratic(
        {"a": torch.zeros(numbers), "b": torch.ones(numbers)},
        rows=1,
        dtype=torch.float32,
    )
    local = ct.LocalSGD(lr=0.1, steps=ct.Steps(1))
    with federation_of(problem, strict_wire=False) as federation:
        federation.ask(["a", "b"], local_update, x=federation.engine.x, local=local)
    assert calls == [0] * trims


@pytest.mark.parametrize(
    "error", [OSError("no such library"), AttributeError("malloc_trim")]
)
def test_a_c_library_that_cannot_trim_its_heap_is_left_alone(error, monkeypatch):
    asked = []

    def fail(name):
        asked.append(name)
        raise error

    monkeypatch.setattr(vector.ctypes, "CDLL", fail)
    vector.trim_heap()
    assert asked == [None]
