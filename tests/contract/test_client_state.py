"""What clients keep has a version: the round in which it was written. The server counts the one behind the last reply it accepted."""

from __future__ import annotations

import mmap
from typing import NamedTuple

import pytest
import torch
from test_methods import FAMILIES, mean_loss, run
from torch import Tensor

from coterie import task
from coterie.base.vector import LASTING
from coterie.cli.catalogue import entries
from coterie.compute.cohort import Shard
from coterie.contract.memory import Memory, MemoryView, owners
from coterie.contract.task import Update
from federations import federation_of, quadratic


class Kept(NamedTuple):
    delta: Update
    before: Tensor
    since: Tensor
    counted: Tensor


@task
def count_up(
    cohort, *, by: float, spoil: str = "", fails: str = "", writes: bool = True
) -> Kept:
    """Add `by` to a number that each client keeps; the reply of the client `spoil` is NaN."""
    state = cohort.state("number", torch.tensor(0.0))
    if writes:
        cohort.keep("number", state.values + by)
    if fails in cohort.names:
        raise OSError("line is busy")
    x = cohort.workspace.x
    delta = torch.stack(
        [x * (float("nan") if n == spoil else 0.0) for n in cohort.names]
    )
    return Kept(delta, state.values, state.rounds, state.counted)


@task
def look(cohort) -> Kept:
    state = cohort.only(range(len(cohort.names))).state("number", torch.tensor(-5.0))
    return Kept(
        torch.zeros(len(cohort.names), cohort.layout.size, dtype=cohort.layout.dtype),
        *state,
    )


@pytest.fixture(params=[1, 2, pytest.param("ray", marks=pytest.mark.engines)])
def four(request):
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    with federation_of(
        quadratic({n: [1.0] for n in "abcd"}), request.param
    ) as federation:
        yield federation


def at(federation, number):
    return federation.view(federation.clients, number, 7)


def forget(federation, names):
    """Let clients lose what they keep, as if their process had ended."""
    saved = federation.engine.save_memory()
    federation.engine.load_memory(
        {k: v for k, v in saved.items() if not owners([k]) & set(names)}
    )


def test_a_state_names_its_round_and_if_the_server_counted_it(four):
    first = at(four, 1).ask("ab", count_up, by=1.0)
    assert (first.before.tolist(), first.since.tolist(), first.counted.tolist()) == (
        [0, 0],
        [-1, -1],
        [False] * 2,
    )
    later = at(four, 3).ask("abc", count_up, by=1.0)
    assert later.before.tolist() == [1, 1, 0]
    assert later.since.tolist() == [1, 1, -1]
    assert later.counted.tolist() == [True, True, False]
    assert (first.forgot, later.forgot) == ((), ())
    assert set(four.holders("number")) == {"a", "b", "c"}


def test_a_client_that_forgets_is_named_once(four):
    at(four, 1).ask("abcd", count_up, by=1.0)
    forget(four, "bd")
    replies = at(four, 2).ask("abc", count_up, by=1.0)
    assert replies.forgot == ("b",)
    assert (replies.before.tolist(), replies.counted.tolist()) == (
        [1, 0, 1],
        [True, False, True],
    )
    assert at(four, 3).ask("abc", look).forgot == ()
    assert at(four, 3).ask("d", look).forgot == ("d",)
    assert set(four.holders("number")) == {"a", "b", "c"}


def test_a_refused_reply_leaves_the_state_that_counted_before(four):
    at(four, 1).ask("abcd", count_up, by=1.0)
    refused = at(four, 2).ask("abcd", count_up, by=1.0, spoil="c")
    assert (list(refused.failed), refused.forgot) == (["c"], ())
    later = at(four, 3).ask("abcd", count_up, by=1.0)
    assert later.forgot == ()
    assert (later.before.tolist(), later.since.tolist()) == ([2, 2, 1, 2], [2, 2, 1, 2])
    assert later.counted.all()


def test_the_state_that_counts_outlives_many_refused_replies(four):
    at(four, 1).ask("abcd", count_up, by=1.0)
    for number in range(2, 6):
        at(four, number).ask("abcd", count_up, by=1.0, spoil="c")
        assert at(four, number).ask("c", look).before.tolist() == [1]
    assert at(four, 6).ask("c", count_up, by=1.0).before.tolist() == [1]


def test_a_client_that_forgets_and_fails_is_named_too(four):
    at(four, 1).ask("abcd", count_up, by=1.0)
    forget(four, "b")
    replies = at(four, 2).ask("abcd", count_up, by=1.0, fails="b")
    assert (replies.failed, replies.forgot) == ({"b": "OSError: line is busy"}, ("b",))
    assert set(four.holders("number")) == {"a", "c", "d"}
    assert at(four, 3).ask("abcd", count_up, by=1.0).forgot == ()


def test_what_the_server_discards_counts_no_longer_and_nobody_forgot_it(four):
    at(four, 1).ask("abcd", count_up, by=1.0)
    at(four, 1).discard("number", "ad")
    replies = at(four, 2).ask("abcd", look)
    assert (replies.counted.tolist(), replies.forgot) == (
        [False, True, True, False],
        (),
    )
    assert replies.before.tolist() == [1, 1, 1, 1]
    at(four, 2).discard("number")
    assert not at(four, 2).holders("number")


def test_a_state_that_is_only_read_stays_counted(four):
    at(four, 1).ask("abcd", count_up, by=1.0)
    at(four, 2).ask("abcd", count_up, by=1.0, writes=False)
    replies = at(four, 5).ask("abcd", look)
    assert (replies.since.tolist(), replies.counted.tolist(), replies.forgot) == (
        [1] * 4,
        [True] * 4,
        (),
    )


# ---- every method with memory


REMEMBERING = [
    name
    for name, entry in entries().items()
    if not entry.row()["memory"].startswith("none")
    and name != "pfedme"  # which only shows what it made in the round
]


LAYERS = {name: {"personal": ("*bias",)} for name in ("fedper", "fedrep", "fedbn")}
"""Settings of methods that need a layer to keep and one to share."""
SETTINGS = {**LAYERS, "local": {"exact": False}}  # solved, it is asked once


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAMILIES else pytest.param(name, marks=pytest.mark.in_turn)
        for name in REMEMBERING
    ],
)
def test_a_client_that_forgets_is_named_and_heals(name, monkeypatch):
    honest = Shard.answer

    def answer(self, ask):
        if ask.context.round == 3 and self.memory.round < 3:
            self.memory.forget("b")
        return honest(self, ask)

    monkeypatch.setattr(Shard, "answer", answer)
    disturbed = run((name, SETTINGS.get(name, {})), rounds=6, evaluate=6)
    assert list(disturbed.failures) == ["b"]
    assert disturbed.failures["b"].startswith("round 3")
    assert "lost" in disturbed.failures["b"]
    assert mean_loss(disturbed, 6) < mean_loss(disturbed, 0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
)
def test_what_clients_keep_of_a_large_model_has_pages_of_its_own(dtype):
    memory = Memory()
    view = MemoryView(memory, ("a", "b"), {})
    values = torch.arange(2 * LASTING).reshape(2, LASTING).to(dtype)
    view.put("large", values)
    view.put("small", values[:, :3])
    view.commit()
    kept = [memory.read("large", name)[1] for name in ("a", "b")]
    assert torch.equal(torch.stack(kept), values)
    assert not any(value.data_ptr() % mmap.PAGESIZE for value in kept)
    values.zero_()
    assert kept[1].any()
    assert torch.equal(
        memory.read("small", "b")[1], torch.arange(LASTING, LASTING + 3).to(dtype)
    )


def test_a_new_round_looks_at_no_memory_of_earlier_rounds():
    memory = Memory()
    memory.begin(1, attempt=7)
    for client in ("a", "b", "c"):
        memory.write("requirement", client, torch.ones(1))
    memory.begin(2, attempt=7)
    assert memory.unasked == set()
    memory.write("requirement", "b", torch.zeros(1))

    # Another attempt at the round may find what the first one wrote, and nothing else.
    memory.begin(2, attempt=8)
    assert memory.unasked == {"b"}
    memory.begin(3, attempt=8)
    assert memory.read("requirement", "b")[0] == 1

    # Also what was saved, as a resumed run may repeat the round.
    restored = Memory()
    memory.begin(3, attempt=8)
    memory.write("requirement", "c", torch.zeros(1))
    restored.load(memory.save(), ("a", "b", "c"), complete=False)
    restored.begin(3, attempt=9)
    assert restored.unasked == {"c"}
    restored.begin(1, attempt=10)
    assert restored.unasked == {"a", "b", "c"}
