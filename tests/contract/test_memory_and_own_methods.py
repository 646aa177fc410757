"""A method of the user's own, with client memory: kept, restored, undone, and the same on any number of workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import coterie as ct
from coterie import task
from coterie.base.errors import InputError
from coterie.base.files import read_checkpoint, write_checkpoint
from coterie.base.vector import move
from coterie.config.local import LocalSGD, Steps
from coterie.config.run import RunSettings
from coterie.contract.federation import QuorumError
from coterie.contract.task import Update
from coterie.contract.wire import PerClient
from coterie.run import checkpoint
from coterie.run.fit import fit as fitted
from federations import assert_same_bits, federation_of, fit, logistic, quadratic

LOCAL = LocalSGD(lr=0.2, steps=Steps(2), batch_size=4)
BETA = 0.7


class Velocity(NamedTuple):
    delta: Update
    sizes: Tensor
    had: Tensor


@task
def remember(cohort, *, x: Tensor, local: LocalSGD) -> Velocity:
    """Momentum that every client keeps for itself."""
    had = cohort.memory.has_value("velocity")
    delta = cohort.train(x, local) - x
    velocity = BETA * cohort.memory.get("velocity", torch.zeros_like(x)) + delta
    cohort.memory.put("velocity", velocity)
    return Velocity(velocity, cohort.sizes, had)


class State(NamedTuple):
    x: Tensor


@dataclass(frozen=True)
class ClientMomentum(ct.Method):
    local: LocalSGD = LOCAL
    break_in: int = 0
    """A round that breaks after its ask, when clients have written."""

    def init(self, x, federation) -> State:
        return State(x)

    def round(self, state, federation, rng):
        got = federation.ask(federation.clients, remember, x=state.x, local=self.local)
        if federation.round == self.break_in:
            raise RuntimeError("power cut")
        weights = got.sizes / got.sizes.sum()
        log = {"weights": got.by_client(weights), "had": got.by_client(got.had)}
        return State(move(state.x, weights, got.delta, 1.0, federation.dim)), log

    def models(self, state):
        return state.x


class Plain(NamedTuple):
    delta: Update
    sizes: Tensor


@task
def forget(cohort, *, x: Tensor, local: LocalSGD) -> Plain:
    return Plain(cohort.train(x, local) - x, cohort.sizes)


class ServerState(NamedTuple):
    x: Tensor
    velocity: Tensor


@dataclass(frozen=True)
class ServerMomentum(ct.Method):
    """The same rule with every client's momentum kept by the server: the oracle of client memory."""

    local: LocalSGD = LOCAL

    def init(self, x, federation) -> ServerState:
        return ServerState(
            x, torch.zeros(len(federation.everyone), len(x), dtype=x.dtype)
        )

    def round(self, state, federation, rng):
        got = federation.ask(federation.clients, forget, x=state.x, local=self.local)
        velocity = state.velocity.clone()
        rows = [federation.everyone.index(n) for n in got.clients]
        velocity[rows] = BETA * velocity[rows] + got.delta
        weights = got.sizes / got.sizes.sum()
        return ServerState(
            move(state.x, weights, velocity[rows], 1.0, federation.dim), velocity
        ), {}

    def models(self, state):
        return state.x


def run(method, **options):
    problem = logistic()
    return fit(method, problem.clients, problem.model, 6, evaluate=1, **options)


@pytest.mark.in_turn(but=("1-None", "2-2"))
@pytest.mark.parametrize("participants", [None, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_client_memory_equals_the_same_numbers_kept_by_the_server(
    participants, workers
):
    mine = run(ClientMomentum(), clients_per_round=participants, workers=workers)
    theirs = run(ServerMomentum(), clients_per_round=participants)
    assert torch.equal(mine.x, theirs.x)
    without = run(
        ClientMomentum(LocalSGD(lr=0.2, steps=Steps(2), batch_size=5)),
        clients_per_round=participants,
    )
    assert not torch.equal(mine.x, without.x)


def test_absent_clients_keep_their_memory():
    found = run(ClientMomentum(), clients_per_round=2)
    seen: set[str] = set()
    for number in range(1, 7):
        had = {
            r.client: bool(r.value)
            for r in found.history
            if (r.round, r.metric) == (number, "had")
        }
        assert had == {name: name in seen for name in had}
        seen |= set(had)
    assert len(seen) >= 4


@pytest.mark.in_turn(but=("1-1", "2-3"))
@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_resume_restores_memory_and_drops_what_the_broken_round_wrote(
    tmp_path, stop, workers
):
    options = {"clients_per_round": 3, "workers": workers}
    with pytest.raises(RuntimeError, match="power cut"):
        run(ClientMomentum(break_in=stop + 1), checkpoint=tmp_path, **options)
    undisturbed = run(Unbroken(break_in=stop + 1), clients_per_round=3)
    resumed = {
        "checkpoint": tmp_path,
        "resume": True,
        "accept_change": ("test_memory_and_own_methods.py",),
        **options,
    }
    assert_same_bits(run(Unbroken(break_in=stop + 1), **resumed), undisturbed)


class Unbroken(ClientMomentum):
    def round(self, state, federation, rng):
        return ClientMomentum(self.local).round(state, federation, rng)


Unbroken.__name__ = Unbroken.__qualname__ = "ClientMomentum"


class Note(NamedTuple):
    before: Tensor


@task
def note(cohort, *, value: float, only: str = "") -> Note:
    before = cohort.memory.get("note", torch.tensor(0.0))
    cohort.memory.put("note", torch.full((len(cohort.names),), value))
    if only in cohort.names:
        raise ValueError("after writing")
    return Note(before)


@task
def bad_key(cohort) -> Note:
    cohort.memory.put("a/b", torch.zeros(len(cohort.names)))
    return Note(torch.zeros(len(cohort.names)))


@task
def too_few_rows(cohort) -> Note:
    cohort.memory.put("note", torch.zeros(len(cohort.names) - 1))
    return Note(torch.zeros(len(cohort.names)))


@pytest.fixture(params=[1, 2, pytest.param("ray", marks=pytest.mark.engines)])
def four(request):
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    with federation_of(
        quadratic({n: [0.0] for n in "abcd"}), request.param
    ) as federation:
        yield federation


def test_a_repeated_round_forgets_its_first_attempt(four):
    everybody = four.clients
    four.view(everybody, 1, 7).ask("abcd", note, value=1.0)
    assert four.view(everybody, 2, 7).ask("ab", note, value=2.0).before.tolist() == [
        1,
        1,
    ]
    assert four.view(everybody, 2, 8).ask("abcd", note, value=3.0).before.tolist() == [
        1,
        1,
        1,
        1,
    ]
    assert four.view(everybody, 2, 8).ask("a", note, value=4.0).before.tolist() == [
        3
    ]  # asks of one attempt see each other
    assert four.view(everybody, 3, 8).ask("abcd", note, value=5.0).before.tolist() == [
        4,
        3,
        3,
        3,
    ]
    assert four.view(everybody, 3, 9).ask("b", note, value=6.0).before.tolist() == [3]
    assert four.view(everybody, 1, 9).ask("b", note, value=6.0).before.tolist() == [
        0
    ]  # two rounds are kept, not three


def test_memory_is_not_written_by_a_task_that_fails(four):
    four.ask("abcd", note, value=1.0)
    got = four.ask("abcd", note, value=2.0, only="c")
    assert got.clients == ("a", "b", "d")
    assert got.failed == {"c": "ValueError: after writing"}
    assert four.ask("abcd", note, value=3.0).before.tolist() == [2, 2, 1, 2]


X = torch.tensor([1.0, 2.0])


class Told(NamedTuple):
    value: Tensor
    computed: Tensor


@task
def tell(cohort, *, value: float, x: torch.Tensor = X, only: str = "") -> Told:
    done = torch.zeros(len(cohort.names))

    def compute(some):
        done[[cohort.names.index(n) for n in some.names]] = 1
        if value:
            some.memory.put("computed", torch.full((len(some.names),), value))
        return torch.tensor([value + ord(n) - ord("a") for n in some.names])

    found = cohort.recall("told", compute, x, "settings")
    cohort.note("told", found, x, "settings")
    if only in cohort.names:
        raise ValueError("after noting")
    return Told(found, done)


def test_notes_last_for_one_attempt_of_a_round_and_count_only_if_the_task_ends_well(
    four,
):
    everybody = four.clients
    first = four.view(everybody, 1, 7).ask("bc", tell, value=10.0, only="c")
    assert (first.value.tolist(), first.computed.tolist()) == ([11], [1])
    again = four.view(everybody, 1, 7).ask("abcd", tell, value=20.0)
    assert (again.value.tolist(), again.computed.tolist()) == (
        [20, 11, 22, 23],
        [1, 0, 1, 1],
    )
    assert four.view(everybody, 1, 7).ask("da", tell, value=0.0).value.tolist() == [
        20,
        23,
    ]
    saved = four.engine.save_memory()
    assert {k: v.item() for k, v in saved.items()} == {
        f"1/computed/{n}": 10 if n == "b" else 20 for n in "abcd"
    }
    assert four.view(everybody, 1, 8).ask("ab", tell, value=30.0).value.tolist() == [
        30,
        31,
    ]
    assert four.view(everybody, 2, 8).ask("ab", tell, value=40.0).computed.tolist() == [
        1,
        1,
    ]


def test_notes_are_of_what_they_were_computed_from(four):
    four.ask("abcd", tell, value=10.0)
    assert four.ask("ab", tell, value=20.0).computed.tolist() == [0, 0]
    assert four.ask("ab", tell, value=20.0, x=X + 1).computed.tolist() == [1, 1]
    assert four.ask("abc", tell, value=30.0, x=X + 1).computed.tolist() == [0, 0, 1]
    other = replace(four, seed=four.seed + 1)
    assert other.ask("ab", tell, value=40.0, x=X + 1).computed.tolist() == [1, 1]


def test_clients_are_dealt_out_anew_when_their_notes_are_gone():
    with federation_of(quadratic({n: [0.0] for n in "abcd"}), 2) as federation:
        federation.ask("ab", tell, value=0.0)
        workers = federation.engine._workers
        assert workers._homes.of(1) == {"a": 0, "b": 1}
        federation.ask("cd", tell, value=0.0)
        work = {"a": 1, "c": 1}
        assert workers._deal(("a", "c"), 1, work) == {0: ("a", "c")}
        assert workers._deal(("a", "c"), 2, work) == {0: ("a",), 1: ("c",)}


def test_saved_memory_can_be_given_to_another_number_of_workers():
    problem = quadratic({n: [0.0] for n in ["a", "b/c", "d\ne"]})
    with federation_of(problem, 2) as federation:
        federation.view(federation.clients, 1, 0).ask(
            federation.clients, note, value=1.0
        )
        federation.view(federation.clients, 2, 0).ask(["b/c"], note, value=2.0)
        saved = federation.engine.save_memory()
    for workers in (1, 3):
        with federation_of(problem, workers) as federation:
            federation.engine.load_memory(saved)
            again = federation.engine.save_memory()
            assert saved.keys() == again.keys()
            assert all(torch.equal(v, again[k]) for k, v in saved.items())
            later = federation.view(federation.clients, 3, 1)
            assert later.ask(federation.clients, note, value=0.0).before.tolist() == [
                1,
                2,
                1,
            ]


def test_memory_refuses_what_it_could_not_restore(four):
    with pytest.raises(InputError, match="'a/b' needs a key without '/'"):
        four.ask("ab", bad_key)
    with pytest.raises(InputError, match="one row per client"):
        four.ask("ab", too_few_rows)


# ---- methods of one's own, from nothing but the three functions


class Cloned(ct.Method):
    """No dataclass, no annotations, a state that is a plain NamedTuple; one model per client."""

    def init(self, x, federation):
        return ServerState(
            x, torch.zeros(len(federation.everyone), len(x), dtype=x.dtype)
        )

    def round(self, state, federation, rng):
        own = PerClient(torch.stack([state.x + v for v in state.velocity]))
        got = federation.ask(federation.clients, forget_each, x=own)
        return ServerState(state.x, state.velocity + got.delta), {
            "norm": float(got.delta.norm()),
            "by": got.by_client(got.sizes),
        }

    def models(self, state):
        return {n: state.x + v for n, v in zip("abcde", state.velocity, strict=True)}


@task
def forget_each(cohort, *, x: Tensor) -> Plain:
    return Plain(cohort.train(x, LOCAL) - x, cohort.sizes)


def test_any_object_with_three_functions_is_a_method(tmp_path):
    one = run(Cloned(), workers=2, checkpoint=tmp_path)
    problem = logistic()
    from coterie import Local

    alone = fit(
        Local(LOCAL, exact=False), problem.clients, problem.model, 6, evaluate=1
    )
    for name, x in one.models.items():
        torch.testing.assert_close(x, alone.models[name], rtol=1e-12, atol=1e-12)
    assert len(one.history.select("norm")) == 6
    assert one.history.select("by", "a") == [
        (r, 18.0) for r in range(1, 7)
    ]  # 12 training rows and 6 validation rows
    assert one.weights == {}


class Silent(ct.Method):
    def init(self, x, federation):
        return State(x)

    def round(self, state, federation, rng):
        federation.ask(federation.clients, note, need="all", value=1.0, only="b")

    def models(self, state):
        return state.x


def test_the_quorum_of_a_users_method_is_its_own():
    with pytest.raises(
        QuorumError,
        match=r"round 1, task '.*:note': 4 of 5 clients replied, all of them are needed",
    ):
        run(Silent())


class Draws(ct.Method):
    """Logs what its random stream gives."""

    def init(self, x, federation):
        return State(x)

    def round(self, state, federation, rng):
        return state, {
            "first": rng.uniform(1)[0],
            "child": rng.child("a").uniform(1)[0],
        }

    def models(self, state):
        return state.x


def test_the_servers_stream_is_that_of_the_seed_and_the_round():
    def drawn(**options):
        history = run(Draws(), **options).history
        return [v for key in ("first", "child") for _, v in history.select(key)]

    first = drawn()
    assert len(set(first)) == 2 * 6
    assert drawn(workers=2, clients_per_round=1) == first
    assert not set(drawn(seed=1)) & set(first)


@pytest.mark.in_turn(but="1")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_dies_between_history_and_checkpoint_repeats_the_round_once(
    tmp_path, monkeypatch, workers
):
    honest = checkpoint.write_checkpoint

    def die_in(rounds):
        def write(path, state, memory, meta, **how):
            if meta["round"] in rounds:
                rounds.remove(meta["round"])
                raise KeyboardInterrupt
            honest(path, state, memory, meta, **how)

        return write

    monkeypatch.setattr(checkpoint, "write_checkpoint", die_in([2, 3, 5]))
    options = {"checkpoint": tmp_path, "clients_per_round": 3, "workers": workers}
    for resume in (False, True, True):
        with pytest.raises(KeyboardInterrupt):
            run(ClientMomentum(), resume=resume, **options)
    found = run(ClientMomentum(), resume=True, **options)
    assert_same_bits(found, run(ClientMomentum(), clients_per_round=3))
    assert_same_bits(
        found, run(ClientMomentum(), resume=True, **options)
    )  # nothing is left to do


def test_a_checkpoint_of_other_settings_or_rows_is_refused(tmp_path):
    run(ClientMomentum(), checkpoint=tmp_path)
    for method, options, differing in (
        (
            ServerMomentum(),
            {},
            "the method's break_in has changed .*the method's class has changed .*",
        ),
        (
            ClientMomentum(LocalSGD(lr=0.3)),
            {},
            "the method's local has changed since round 6",
        ),
        (
            ClientMomentum(),
            {"seed": 1},
            r"the setting seed has changed since round 6 \(0, now 1\)",
        ),
        (
            ClientMomentum(),
            {"clients_per_round": 2},
            r"the setting clients_per_round has changed since round 6 \(null, now 2\)",
        ),
        (
            ClientMomentum(),
            {"merge_validation": False},
            r"the setting merge_validation has changed .* \(true, now false\)",
        ),
    ):
        with pytest.raises(
            InputError,
            match=f"{differing}; resume with the same, or choose another folder",
        ):
            run(method, checkpoint=tmp_path, resume=True, **options)
    run(
        ClientMomentum(LocalSGD(lr=0.3)), checkpoint=tmp_path
    )  # without resume it starts again


def test_another_loss_and_another_bound_are_other_settings(tmp_path):
    problem = logistic()
    usual = RunSettings(loss="binary", max_norm=100.0)
    run_once = partial(
        fitted, ClientMomentum(), problem.clients, problem.model, 2, checkpoint=tmp_path
    )
    run_once(settings=usual)
    run_once(settings=replace(usual, resume=True))
    for other in ({"loss": "auto"}, {"max_norm": 10.0}):
        with pytest.raises(
            InputError,
            match=f"the setting {next(iter(other))} has changed since round 2",
        ):
            run_once(settings=replace(usual, resume=True, **other))


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({}, "of an older version in format 1"),
        ({"coterie": "9.1", "format": 7}, "9.1 in format 7"),
    ],
)
def test_a_checkpoint_of_another_version_is_refused_with_a_sentence(
    about, words, tmp_path
):
    run(ClientMomentum(), checkpoint=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    saved = read_checkpoint(path)
    meta = {
        k: v for k, v in saved.meta.items() if k not in ("counted", "format", "coterie")
    } | about
    write_checkpoint(path, State(**saved.values), saved.memory, meta)
    with pytest.raises(
        InputError,
        match=f"was written by coterie {words}, but this version reads format 4",
    ):
        run(ClientMomentum(), checkpoint=tmp_path, resume=True)


class Bare(ct.Method):
    """Its state is the model itself."""

    def init(self, x, federation):
        return x

    def round(self, state, federation, rng):
        return state, {}

    def models(self, state):
        return state


def test_a_state_that_cannot_be_saved_is_refused_before_training(tmp_path):
    assert torch.equal(run(Bare()).x, run(Bare()).state)
    with pytest.raises(
        InputError,
        match="a state must be a NamedTuple to be saved, not a Tensor; declare one",
    ):
        run(Bare(), checkpoint=tmp_path)


@pytest.mark.in_turn(but=("fedrep", "ditto"))
@pytest.mark.parametrize(
    "method", ["fedper", "fedrep", "ditto", "apfl", "pfedme", "fedala", "local"]
)
def test_a_resumed_run_has_what_clients_remember_that_answered_too_late(
    tmp_path, method
):
    late = ct.attacks.Straggler(p=0.6, on=("hungary", "cleveland"))
    options = {"clients": "heart-disease", "model": "mlp", "attack": late}
    whole = ct.fit(method, rounds=2, checkpoint=tmp_path, **options)
    assert whole.failures
    assert_same_bits(
        ct.fit(
            method,
            rounds=2,
            checkpoint=tmp_path,
            settings=RunSettings(resume=True),
            **options,
        ),
        whole,
    )
    resumed = ct.fit(
        method,
        rounds=3,
        checkpoint=tmp_path,
        settings=RunSettings(resume=True),
        **options,
    )
    assert_same_bits(resumed, ct.fit(method, rounds=3, **options))


def test_evaluating_more_often_changes_no_bit_where_answers_come_too_late():
    late = ct.attacks.Straggler(p=0.6, on=("hungary", "cleveland"))
    runs = [
        ct.fit(
            "fedper",
            "heart-disease",
            "mlp",
            3,
            attack=late,
            settings=RunSettings(evaluate=n),
        )
        for n in (1, 3)
    ]
    assert torch.equal(runs[0].x, runs[1].x)
    assert all(
        torch.equal(x, runs[1].models[name]) for name, x in runs[0].models.items()
    )
