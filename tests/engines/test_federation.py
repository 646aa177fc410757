"""What `ask` promises: order, names of failures, quorum, retry, checks, and counts; the same with one process and with two."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from coterie import FedAvg, task
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.config.local import LocalSGD, Steps
from coterie.contract.federation import Federation, QuorumError
from coterie.contract.method import Method
from coterie.contract.task import Gradient, Task, Update, find_task
from coterie.contract.wire import Answer, PerClient, to_json
from coterie.engines.inprocess import InProcess, InProcessEngine
from federations import SIZES, Opening, federation_of, fit, logistic, quadratic

CENTRES = {n: [float(i), -1.0] for i, n in enumerate("abcde")}


@pytest.fixture(
    params=[1, 2, pytest.param("ray", marks=pytest.mark.engines)],
    ids=["one-process", "two-workers", "ray"],
)
def five(request) -> Federation:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    with federation_of(quadratic(CENTRES), request.param) as federation:
        yield federation


def number(name: str) -> float:
    return float(ord(name[0]) - ord("a"))


class Plain(NamedTuple):
    value: Tensor


class Moved(NamedTuple):
    delta: Update
    sizes: Tensor


class Slope(NamedTuple):
    gradient: Gradient


@task
def who(cohort, *, plus: Tensor | float = 0.0) -> Plain:
    return Plain(torch.tensor([number(n) for n in cohort.names]) + plus)


@task
def steps(cohort, *, x: Tensor, local: LocalSGD) -> Moved:
    return Moved(cohort.train(x, local) - x, cohort.sizes)


@task
def broken(cohort, *, victim: str) -> Plain:
    if victim in cohort.names:
        raise ValueError(f"no disk\n  at {victim}")
    return Plain(torch.ones(len(cohort.names)))


# ---- order


@pytest.mark.parametrize("order", ["abcde", "edcba", "cae", "d", ""])
def test_replies_are_sorted_by_name_whatever_the_order_of_the_ask(five, order):
    got = five.ask(order, who)
    assert got.clients == got.asked == tuple(sorted(order))
    assert len(got) == len(order)
    if order:
        assert got.value.tolist() == [number(n) for n in sorted(order)]
        assert got.by_client(got.value) == {n: number(n) for n in order}


@pytest.mark.parametrize("order", ["abcde", "edcba", "cae"])
def test_rows_of_each_follow_the_callers_order(five, order):
    plus = torch.tensor([100.0 * number(n) for n in order])
    got = five.ask(order, who, plus=PerClient(plus))
    assert got.value.tolist() == [101 * number(n) for n in sorted(order)]


def test_each_needs_a_row_per_client(five):
    with pytest.raises(
        InputError, match=r"payload 'plus' is PerClient of shape \(3,\) for 2 clients"
    ):
        five.ask("ab", who, plus=PerClient(torch.zeros(3)))


def test_replies_do_not_depend_on_who_else_is_asked():
    problem = logistic()
    local, x = (
        LocalSGD(lr=0.3, steps=Steps(3), batch_size=5),
        torch.randn(4, dtype=torch.float64),
    )
    with federation_of(problem) as federation:
        together = federation.ask("abcde", steps, x=x, local=local).delta
        for i, name in enumerate("abcde"):
            assert torch.equal(
                federation.ask([name], steps, x=x, local=local).delta[0], together[i]
            )
        assert torch.equal(
            federation.ask("db", steps, x=x, local=local).delta, together[[1, 3]]
        )


def test_a_reply_names_its_fields(five):
    got = five.ask("ab", who)
    with pytest.raises(
        AttributeError, match="the reply has no field 'values'; it has value"
    ):
        _ = got.values
    assert repr(got) == "<2 of 2 replies: value>"


# ---- failures, quorum, retry


def test_a_client_that_raises_is_named_and_the_others_reply(five):
    got = five.ask("edcba", broken, victim="c")
    assert got.clients == ("a", "b", "d", "e")
    assert got.asked == ("a", "b", "c", "d", "e")
    assert got.failed == {"c": "ValueError: no disk at c"}
    assert five.session.failures == {
        "c": f"round 1, {__name__}:broken: ValueError: no disk at c"
    }


def test_the_quorum_error_says_round_task_clients_causes_and_cure(five):
    with pytest.raises(QuorumError) as caught:
        five.view(five.clients, 12, 0).ask("abcd", broken, need="all", victim="c")
    assert str(caught.value) == (
        f"round 12, task '{__name__}:broken': 3 of 4 clients replied, all of them are needed. "
        "Failed: c (ValueError: no disk at c). Correct or remove these clients, then resume"
    )


@pytest.mark.parametrize(
    ("need", "enough"),
    [(0.5, True), (0.75, True), (0.76, False), (1.0, False), ("all", False)],
)
def test_the_quorum_is_a_share_of_the_clients_asked(five, need, enough):
    if enough:
        assert len(five.ask("abcd", broken, need=need, victim="a")) == 3
        assert len(five.session.asks) == 1
    else:
        with pytest.raises(QuorumError, match="a "):
            five.ask("abcd", broken, need=need, victim="a")
        assert [r.clients for r in five.session.asks] == [
            4,
            1,
        ]  # who failed was asked once more


def test_nobody_at_all_is_below_any_quorum(five):
    with pytest.raises(
        QuorumError, match="0 of 1 clients replied, at least 0% are needed"
    ):
        five.ask("a", broken, need=0.0, victim="a")


def test_a_long_list_of_failures_is_cut():
    problem = quadratic({f"client-{i}": [0.0] for i in range(8)})
    sentence = r"client-4 \(.*\); and 3 more\. Correct"
    with (
        federation_of(problem) as federation,
        pytest.raises(QuorumError, match=sentence),
    ):
        federation.ask(federation.clients, never)


@task
def never(cohort) -> Plain:
    raise ValueError("no")


@task
def flaky(cohort, *, until: int) -> Plain:
    """Client b fails while its memory of attempts, kept by the others' rows, is short: it needs no global state."""
    if "b" in cohort.names and cohort.round >= 0 and _count_visits() < until:
        raise OSError("line is busy")
    return Plain(torch.tensor([number(n) for n in cohort.names]))


_VISITS: list[int] = []


def _count_visits() -> int:
    _VISITS.append(1)
    return len(_VISITS)


@pytest.fixture
def flaky_b():
    _VISITS.clear()
    return flaky


def test_below_quorum_those_that_failed_are_asked_once_more(flaky_b):
    with federation_of(quadratic(CENTRES)) as federation:
        # Visits 1 (all together) and 2 (b alone) fail, 3 (b again) succeeds.
        got = federation.ask("abc", flaky_b, need="all", until=3)
        assert got.value.tolist() == [0, 1, 2]
        assert got.failed == {}
        assert [(r.clients, r.failed) for r in federation.session.asks] == [
            (3, 1),
            (1, 0),
        ]


def test_a_retry_gets_its_own_rows_of_each():
    with federation_of(quadratic(CENTRES)) as federation:
        _VISITS.clear()
        got = federation.ask(
            "cab",
            flaky_each,
            need="all",
            value=PerClient(torch.tensor([3.0, 1.0, 2.0])),
        )
        assert got.value.tolist() == [1, 2, 3]


@task
def flaky_each(cohort, *, value: Tensor) -> Plain:
    if "b" in cohort.names and _count_visits() < 3:
        raise OSError("line is busy")
    return Plain(value)


def test_there_is_only_one_retry(flaky_b):
    with federation_of(quadratic(CENTRES)) as federation:
        with pytest.raises(QuorumError, match="OSError: line is busy"):
            federation.ask("abc", flaky_b, need="all", until=100)
        assert len(federation.session.asks) == 2


# ---- who may be asked


def test_an_unknown_client_is_an_error_with_the_nearest_spelling():
    problem = quadratic({"hungary": [0.0], "switzerland": [1.0]})
    with (
        federation_of(problem) as federation,
        pytest.raises(
            InputError,
            match=r"no client 'hungery' to ask; did you mean 'hungary'\? \(allowed: hungary, sw",
        ),
    ):
        federation.ask(["hungery"], who)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"task": who.function}, "a function decorated with @task; got <function who"),
        ({"need": 2}, r'need must be in \[0, 1\] or "all"; got 2'),
        ({"need": -0.1}, r'need must be in \[0, 1\] or "all"; got -0.1'),
        ({"need": "al"}, r"""need must be in \[0, 1\] or "all"; got 'al'"""),
        (
            {"weights": torch.tensor([1.0, -1.0])},
            r"weights must be finite numbers >= 0, .*; got \[1.0, -1.0\]",
        ),
        ({"weights": torch.zeros(2)}, "not all of them 0"),
        ({"weights": torch.tensor([1.0, math.nan])}, "weights must be finite"),
    ],
)
def test_an_ask_that_cannot_be_carried_is_refused_before_anybody_is_asked(what, words):
    with federation_of(quadratic({"a": [0.0, 0.0], "b": [1.0, 0.0]})) as federation:
        with pytest.raises(InputError, match=words):
            federation.average(
                ["a", "b"],
                what.get("task", who),
                **{k: v for k, v in what.items() if k != "task"},
            )
        assert not federation.session.asks


def test_a_client_is_asked_once(five):
    with pytest.raises(InputError, match="names b twice"):
        five.ask("abb", who)


def test_the_server_answers_only_if_it_holds_rows(five):
    with pytest.raises(InputError, match="there are none; give it rows"):
        five.ask(["server"], who)


class Seen(NamedTuple):
    rows: Tensor
    loss: Tensor


@task
def look(cohort, *, x: Tensor, plus: Tensor) -> Seen:
    return Seen(cohort.sizes, cohort.loss(x, part="train") + plus)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_server_is_a_cohort_of_one_that_is_no_client(workers):
    problem = quadratic(CENTRES)
    rows = problem.clients["a"].train.select(slice(0, 3))
    held = problem.with_clients(
        problem.clients.with_server(Part(rows.inputs, torch.full((3, 2), 5.0).double()))
    )
    with federation_of(held, workers) as federation:
        assert "server" not in federation.clients
        assert "server" not in federation.everyone
        x, order = torch.zeros(2, dtype=torch.float64), ["server", "e", "b"]
        got = federation.ask(
            order, look, x=x, plus=PerClient(torch.tensor([100.0, 20.0, 10.0]))
        )
        assert got.clients == ("b", "e", "server")
        assert got.rows.tolist() == [4, 4, 3]
        assert got.loss.tolist() == [1.0 + 10, 8.5 + 20, 25.0 + 100]


# ---- what may travel


class NotRegistered:
    pass


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "value", [NotRegistered(), torch.nn.Linear(1, 1), {"a": 1}, {1}, len, b"bytes", 1j]
)
def test_a_payload_that_cannot_travel_is_refused(value, strict):
    sentence = f"a {type(value).__name__} cannot travel; a payload holds tensors"
    with (
        federation_of(quadratic(CENTRES), strict_wire=strict) as federation,
        pytest.raises(InputError, match=sentence),
    ):
        federation.ask("ab", who, plus=value)


@task
def scribble(cohort, *, x: Tensor) -> Plain:
    x.zero_()
    return Plain(torch.zeros(len(cohort.names)))


def test_strict_wire_lets_no_live_reference_through():
    x = torch.ones(2)
    with federation_of(quadratic(CENTRES), strict_wire=False) as loose:
        loose.ask("ab", scribble, x=x)
        assert x.tolist() == [0, 0]  # what it protects from
        x.fill_(1)
        Federation(loose.engine, loose.clients, strict_wire=True).ask(
            "ab", scribble, x=x
        )
        assert x.tolist() == [1, 1]


class Live(NamedTuple):
    thing: Any


@task
def return_object(cohort) -> Live:
    return Live([NotRegistered() for _ in cohort.names])


@task
def return_text(cohort) -> Live:
    return Live([f"{n} ü\n" for n in cohort.names])


def test_strict_wire_catches_a_live_object_in_a_reply(five):
    with pytest.raises(InputError, match="a NotRegistered cannot travel"):
        five.ask("abc", return_object)
    assert five.ask("cba", return_text).thing == ("a ü\n", "b ü\n", "c ü\n")


# ---- checks of replies


@task
def distort(cohort, *, how: str, victim: str) -> Moved:
    """As a client may err: each row is made alone and then stacked."""
    d = cohort.layout.size
    rows = [
        torch.ones(d, dtype=cohort.layout.dtype) * (1 + number(n)) for n in cohort.names
    ]
    sizes = [torch.tensor([1.0]) for _ in cohort.names]
    for i, name in enumerate(cohort.names):
        if name in victim:
            if how == "nan":
                rows[i] = rows[i] * math.nan
            elif how == "inf":
                rows[i] = torch.cat(
                    [rows[i][:-1], torch.tensor([math.inf]).to(rows[i])]
                )
            elif how == "nan in another field":
                sizes[i] = torch.tensor([math.nan])
            elif how == "huge":
                rows[i] = rows[i] * 1e30
            elif how == "long":
                rows[i] = torch.ones(d + 1, dtype=cohort.layout.dtype)
            elif how == "two rows":
                rows.append(rows[i])
            elif how == "dtype":
                rows[i] = rows[i].float()
            elif how == "other shape":
                sizes[i] = torch.ones(3)
    if how == "other shape":
        return Moved(torch.stack(rows), torch.stack(sizes))
    if how == "dtype" and len({r.dtype for r in rows}) > 1:
        raise TypeError("mixed")
    return Moved(torch.stack(rows), torch.cat(sizes))


DISTORTED = {
    "nan": "field 'delta' has NaN or Inf",
    "inf": "field 'delta' has NaN or Inf",
    "nan in another field": "field 'sizes' has NaN or Inf",
    "huge": r"field 'delta' has norm 4.24e\+30, over 100 times the median 5.66",
    "long": r"field 'delta' has shape \[1, 3\] and torch.float64; expected \[1, 2\] and torch.float64",
    "two rows": r"field 'delta' has shape \[2, 2\] and torch.float64; expected \[1, 2\]",
    "dtype": r"field 'delta' has shape \[1, 2\] and torch.float32; expected \[1, 2\] and torch.float64",
    "other shape": r"field 'sizes' has shape \[1, 3\] and torch.float32; expected \[1, 1\] and torch.float32",
}


@pytest.mark.parametrize("how", list(DISTORTED))
def test_a_wrong_reply_is_refused_by_name_and_only_that(five, how):
    got = five.ask("abcde", distort, how=how, victim="c")
    assert got.clients == ("a", "b", "d", "e")
    assert list(got.failed) == ["c"]
    assert re.search(DISTORTED[how], got.failed["c"])
    assert got.delta.tolist() == [[1 + number(n)] * 2 for n in "abde"]


@pytest.mark.parametrize("how", list(DISTORTED))
def test_a_wrong_reply_is_as_wrong_when_it_is_asked_again(five, how):
    with pytest.raises(QuorumError, match=DISTORTED[how]):
        five.ask("abcde", distort, need="all", how=how, victim="c")


def test_of_two_clients_the_one_with_a_model_vector_is_right(five):
    for victim, other in (("a", "b"), ("b", "a")):
        got = five.ask("ab", distort, how="long", victim=victim)
        assert (got.clients, list(got.failed)) == ((other,), [victim])


def test_the_form_of_most_clients_is_right_however_they_are_spread(five):
    got = five.ask("abcde", distort, how="other shape", victim="ac")
    assert (got.clients, sorted(got.failed)) == (("b", "d", "e"), ["a", "c"])


def test_of_two_clients_neither_is_right_in_a_form_that_the_task_does_not_declare(five):
    for victim in "ab":
        with pytest.raises(QuorumError) as error:
            five.ask("ab", distort, how="other shape", victim=victim)
        assert str(error.value).count("terie.Form) that would tell which is right") == 1


def test_two_clients_may_fail_in_different_fields(five):
    got = five.ask("abcde", two_nans)
    assert got.failed == {
        "b": "field 'delta' has NaN or Inf",
        "c": "field 'sizes' has NaN or Inf",
    }
    assert got.clients == ("a", "d", "e")


@task
def two_nans(cohort) -> Moved:
    delta = torch.ones(len(cohort.names), 2, dtype=torch.float64)
    sizes = torch.ones(len(cohort.names))
    for i, name in enumerate(cohort.names):
        delta[i] *= math.nan if name == "b" else 1
        sizes[i] *= math.nan if name == "c" else 1
    return Moved(delta, sizes)


@task
def lengths(cohort, *, values: Tensor) -> Slope:
    return Slope(values[:, None] * torch.tensor([[3.0, 4.0]], dtype=torch.float64))


def test_max_norm_counts_from_three_replies_on(five):
    values = torch.tensor([1.0, 1.0, 1e7, 1.0, 1.0])
    assert list(five.ask("abcde", lengths, values=PerClient(values)).failed) == ["c"]
    assert five.ask("bc", lengths, values=PerClient(values[1:3])).failed == {}
    assert list(five.ask("bcd", lengths, values=PerClient(values[1:4])).failed) == ["c"]


def test_max_norm_is_a_multiple_of_the_median(five):
    strict = Federation(five.engine, five.clients, max_norm=3.0, strict_wire=True)
    values = PerClient(torch.tensor([1.0, 2.0, 2.0, 6.0, 6.1]))
    assert strict.ask("abcde", lengths, values=values).failed == {
        "e": "field 'gradient' has norm 30.5, over 3 times the median 10"
    }
    assert five.ask("abcde", lengths, values=values).failed == {}


class ManyModels(NamedTuple):
    delta: Update


@task
def many_models(cohort) -> ManyModels:
    rows = torch.ones(len(cohort.names), 3, 2, dtype=torch.float64)
    rows[[n == "b" for n in cohort.names], 1] = 1e20
    return ManyModels(rows)


def test_updates_of_several_models_are_one_update_of_the_client(five):
    got = five.ask("abcde", many_models)
    assert got.delta.shape == (4, 3, 2)
    assert list(got.failed) == ["b"]


@task
def wrong_kind(cohort) -> Moved:
    return Plain(torch.zeros(len(cohort.names)))


@task
def nothing(cohort) -> Moved:
    pass


@pytest.mark.parametrize(
    ("what", "why"),
    [(wrong_kind, "returned a Plain, not a Moved"), (nothing, "returned a NoneType")],
)
def test_a_task_that_returns_something_else_has_failed(five, what, why):
    with pytest.raises(QuorumError, match=why):
        five.ask("ab", what)


def test_an_input_error_of_one_client_is_its_failure_and_leaves_no_answer_behind(five):
    for victim in "abcde":
        refused = five.ask("abcde", refuse, victim=victim)
        assert refused.failed == {
            victim: f"InputError: client {victim!r} has no test rows"
        }
        assert five.ask("abcde", who).value.tolist() == [0, 1, 2, 3, 4]


@task
def refuse(cohort, *, victim: str) -> Plain:
    if victim in cohort.names:
        raise InputError(f"client {victim!r} has no test rows")
    return Plain(-torch.ones(len(cohort.names)))


# ---- tasks


def test_a_task_declares_its_reply_and_takes_its_payload_by_keyword():
    with pytest.raises(InputError, match="must declare the NamedTuple that it returns"):
        _ = Task(lambda cohort: None).reply
    with pytest.raises(
        InputError, match="must take the cohort first and its payload by keyword"
    ):
        Task(lambda cohort, x: None)
    with pytest.raises(InputError, match="must take the cohort first"):
        Task(lambda: None)
    with pytest.raises(
        InputError, match="there is no task 'a:b' here; import its module"
    ):
        find_task("a:b")
    assert find_task(steps.name) is steps
    assert steps.kinds == {"delta": "update", "sizes": "other"}
    assert Slope._fields == ("gradient",)
    assert lengths.kinds == {"gradient": "gradient"}


# ---- counts


class Mixed(NamedTuple):
    vector: Tensor
    flags: Tensor
    word: tuple[str, ...]


@task
def mixed(
    cohort,
    *,
    x: Tensor,
    own: Tensor,
    local: LocalSGD,
    count: int,
    share: float,
    yes: bool,
    name: str,
    none: None,
) -> Mixed:
    n = len(cohort.names)
    return Mixed(torch.zeros(n, 7), torch.ones(n, 3, dtype=torch.bool), ("abcd",) * n)


@pytest.mark.parametrize("asked", ["a", "abcde", "eb"])
def test_bytes_of_an_ask_are_those_of_the_values_of_one_client(five, asked):
    local = LocalSGD(lr=0.5)
    five.ask(
        asked, mixed, x=torch.zeros(11), own=PerClient(torch.zeros(len(asked), 3, dtype=torch.float64)), local=local,
        count=3, share=0.5, yes=True, name="hello", none=None,
    )  # fmt: skip
    record = five.session.asks[-1]
    assert (record.round, record.ask, record.task, record.clients, record.failed) == (
        1,
        0,
        mixed.name,
        len(asked),
        0,
    )
    assert record.bytes_down == 11 * 4 + 3 * 8 + len(
        json.dumps(to_json(local))
    ) + 3 * 8 + len('"hello"') + len("null")
    assert record.bytes_up == 7 * 4 + 3 * 1 + len("abcd")


def test_rows_of_work_are_counted_once_even_if_a_cohort_is_asked_twice(five):
    x, local = (
        torch.zeros(2, dtype=torch.float64),
        LocalSGD(lr=0.1, steps=Steps(3), batch_size=None),
    )
    five.ask("abcde", steps_then_break, x=x, local=local, victim="d")
    assert (
        five.session.spent["row_gradients"] == 4 * 3 * 4
    )  # clients that replied, steps, rows
    five.ask("abcde", look, x=x, plus=torch.tensor(0.0))
    assert five.session.spent["row_losses"] == 5 * 4


@task
def steps_then_break(cohort, *, x: Tensor, local: LocalSGD, victim: str) -> Moved:
    reply = steps(cohort, x=x, local=local)
    if victim in cohort.names:
        raise ValueError("late")
    return reply


def test_sizes_are_training_rows():
    with federation_of(logistic()) as federation:
        got = federation.ask(
            "abcde",
            steps,
            x=torch.zeros(4, dtype=torch.float64),
            local=LocalSGD(steps=Steps(1)),
        )
        assert got.by_client(got.sizes) == SIZES


class Slow(Method):
    """A method that works for a while itself."""

    def init(self, x, federation):
        return FedAvg().init(x, federation)

    def round(self, state, federation, rng):
        time.sleep(0.05)
        return FedAvg(LocalSGD(steps=Steps(1))).round(state, federation, rng)

    def models(self, state):
        return state.x


def test_the_method_s_own_work_is_told_apart_from_asks():
    problem = logistic()
    done = fit(Slow(), problem.clients, problem.model, 2, evaluate=1)
    for clock in done.seconds:
        asks = sum(a.seconds for a in done.asks if a.round == clock.round)
        assert 0.05 <= clock.own < clock.seconds
        assert (
            clock.round < 2 or asks > clock.seconds - clock.own - 1e-3
        )  # the last round's evaluation comes twice


def test_a_device_that_is_not_there_is_one_sentence():
    problem = logistic()
    with pytest.raises(InputError, match="device 'cuda:7' cannot be used here"):
        fit(
            FedAvg(),
            problem.clients,
            problem.model,
            1,
            engine=InProcess(device="cuda:7"),
        )
    with pytest.raises(InputError, match="device 'fast' cannot be used here"):
        fit(
            FedAvg(), problem.clients, problem.model, 1, engine=InProcess(device="fast")
        )


def test_rows_are_moved_to_a_device_once_and_named_as_before():
    problem = logistic()
    everyone = problem.clients.with_server(problem.clients[0].train)
    there = everyone.to(torch.device("meta"))
    for part in ("train", "validation", "test"):
        was, now = getattr(everyone, part), getattr(there, part)
        assert now.labels.is_meta
        assert now.inputs.shape == was.inputs.shape
        assert now.offsets is was.offsets
    assert there.server.inputs.is_meta
    assert there.names == everyone.names
    assert not everyone.train.inputs.is_meta
    shared = problem.clients.merge_validation().to(torch.device("meta"))
    assert shared.train.inputs is shared.to(torch.device("meta")).train.inputs


@pytest.mark.parametrize("outages", [2, 99])
def test_a_client_that_misses_the_last_evaluation_is_asked_again_for_the_summary(
    outages,
):
    class Outage(InProcessEngine):
        left = outages

        def ask(self, ask):
            if (
                self.left
                and ask.task.endswith(":evaluate")
                and ask.context.round == 3
                and "b" in ask.names
            ):
                Outage.left -= 1
                answer = super().ask(ask.to(tuple(n for n in ask.names if n != "b")))
                return Answer(answer.blocks, {"b": "timed out"}, answer.spent)
            return super().ask(ask)

    problem = logistic()
    broken, whole = (
        fit(FedAvg(), problem.clients, problem.model, 3, engine=e)
        for e in (Opening(Outage), None)
    )
    assert "timed out" in broken.failures["b"]
    assert broken.summary == [
        row for row in whole.summary if outages == 2 or row["client"] != "b"
    ]
