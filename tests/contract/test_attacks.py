"""Every method under every attack: the run ends with finite models, or with the sentence that says who failed."""

from __future__ import annotations

import re

import pytest
import torch
from test_methods import (
    CASES,
    FAMILIES,
    first_of_a_family,
    is_pooled,
    method_of,
    pairs_in_turn,
    plain,
    quick,
    run,
)

from coterie.attacks import ALIE, IPM, Attack, Dropout, LabelFlip, NaN, Noise, SignFlip
from coterie.base.errors import InputError, RunError
from coterie.compute.tasks import local_update
from coterie.config.registry import ATTACKS, ENGINES
from coterie.contract import exchange, task
from coterie.contract.federation import QuorumError
from coterie.contract.fitting import curvature_task
from coterie.filters.top_k import TopK
from federations import PROBLEMS, assert_same_bits, fit, logistic

FIRST = {case[0]: case for case in reversed(CASES)}
"""Each method in its first setting."""
EVERY_ATTACK = ("fedavg", "maxfl", "meritfed", "varsel")
"""Methods that meet every attack: by size, by gaps, by gradients, by distances. The others meet one of each place where attacks act:"""
ONE_OF_EACH_PLACE = ("ipm", "loss-inflation", "dropout", "label-flip")


class StoppedError(Exception):
    pass


def meets_always(case, attack):
    """FedAvg meets every attack, and a method of each family one of those that act in several places."""
    if case[0] == "fedavg":
        return True
    if case[0] not in FAMILIES:
        return False
    turn = FAMILIES.index(case[0]) % len(ONE_OF_EACH_PLACE)
    return attack == ONE_OF_EACH_PLACE[turn]


@pytest.mark.parametrize(
    ("case", "attack"),
    pairs_in_turn(
        [
            (FIRST[name], attack)
            for name in FIRST
            for attack in (ATTACKS if name in EVERY_ATTACK else ONE_OF_EACH_PLACE)
        ],
        meets_always,
    ),
)
def test_every_method_ends_under_every_attack_or_says_why_not(case, attack):
    failure: RunError | None = None
    if refuses(case, ATTACKS[attack]):
        with pytest.raises(InputError, match="asks for curvature"):
            quick(case, rounds=2, attack=ATTACKS[attack](on=("b", "d")))
        return
    try:
        found = quick(case, rounds=2, attack=ATTACKS[attack](on=("b", "d")))
    except RunError as error:
        failure = error
    if failure is None:
        assert all(torch.isfinite(x).all() for x in found.models.values())
        assert all(torch.isfinite(torch.tensor(row["loss"])) for row in found.summary)
        assert set(found.failures) <= {"b", "d"}
    elif isinstance(failure, QuorumError):
        assert re.search(r"clients replied.*Failed: [bd] \(", str(failure))
    else:
        assert "is not finite and the round is undone" in str(failure)


def refuses(case, attack):
    """Return True if a method that asks for curvature refuses an attack on replies."""
    on_replies = any(
        getattr(attack, hook) is not getattr(Attack, hook)
        for hook in ("corrupt", "rewrite")
    )
    return bool(curvature_task(method_of(case))) and on_replies


@first_of_a_family
def test_an_attack_changes_the_models_of_the_honest(case):
    if is_pooled(case) or case[0] == "local":
        return  # the test below
    if refuses(case, Noise):
        return  # the test above
    noise = Noise(sigma=1.0, on=("b", "c"))
    one, two = plain(case), quick(case, attack=noise)
    if case[0] == "fedproto":  # features of a linear model are its inputs
        one, two = (
            quick(case, PROBLEMS["batch-norm"](), attack=a) for a in (None, noise)
        )
    assert any(not torch.equal(x, two.models[k]) for k, x in one.models.items())


def test_clients_that_train_alone_and_rows_in_one_place_are_out_of_reach():
    for case in (FIRST["centralised"], FIRST["local"]):
        assert_same_bits(run(case), run(case, attack=Noise(on=("b",))))


@pytest.mark.in_turn(
    but=("fedavg-ipm-2", "fedavg-label-flip-2", "fedavg-straggler-2", "maxfl-*-2")
)
@pytest.mark.parametrize("where", [2, pytest.param("ray", marks=pytest.mark.engines)])
@pytest.mark.parametrize(
    ("name", "attack"),
    [*(("fedavg", attack) for attack in ATTACKS), ("maxfl", "loss-inflation")],
)
def test_every_attack_gives_the_same_bits_on_every_engine(name, attack, where, request):
    options = {
        "rounds": 2,
        "attack": ATTACKS[attack](on=("b", "d")),
        "problem": PROBLEMS["batch-norm"](),
    }
    if where == "ray":
        request.getfixturevalue("ray_cluster")
        other = {"engine": ENGINES.build({"name": "ray"}, "")}
    else:
        other = {"workers": where}
    assert_same_bits(
        quick(FIRST[name], **options), quick(FIRST[name], **options, **other)
    )


@pytest.mark.parametrize("attack", [IPM, ALIE])
def test_attackers_who_know_what_others_send_know_it_of_all_that_are_asked(
    attack, monkeypatch
):
    options = {"rounds": 2, "attack": attack(on=("b", "d"))}
    whole = run(FIRST["fedavg"], **options)
    monkeypatch.setattr(exchange, "AT_ONCE", 2)
    assert_same_bits(whole, run(FIRST["fedavg"], **options))


def test_an_attack_does_not_depend_on_where_its_task_is_or_how_many_are_asked(
    monkeypatch,
):
    # Where a refused client is asked among two, the others work once more: so nobody is refused here.
    options = {"rounds": 2, "attack": Noise(on=("b", "d")), "max_norm": 1e9}
    whole = run(FIRST["fedavg"], **options)
    monkeypatch.setattr(exchange, "AT_ONCE", 2)
    monkeypatch.setitem(task._TASKS, "elsewhere:local_update", local_update)
    monkeypatch.setattr(local_update, "name", "elsewhere:local_update")
    assert_same_bits(whole, run(FIRST["fedavg"], **options))


def test_a_compressed_update_is_attacked_before_it_is_packed():
    filters = {"filters": [TopK(0.5)], "rounds": 2}
    plain, attacked = (
        run(FIRST["fedavg"], **filters),
        run(FIRST["fedavg"], attack=SignFlip(on=("b",)), **filters),
    )
    assert not torch.equal(plain.x, attacked.x)
    assert [a.bytes_up for a in plain.asks] == [a.bytes_up for a in attacked.asks]


class Unregistered(Attack):
    def corrupt(self, kind, rows, rngs):
        return 0 * rows


def test_an_attack_that_runs_at_the_clients_must_be_able_to_travel():
    with pytest.raises(
        InputError,
        match=r"Unregistered.corrupt runs at the clients; register the dataclass",
    ):
        run(FIRST["fedavg"], attack=Unregistered(on=("b",)))


@pytest.mark.in_turn(but="IPM")
@pytest.mark.parametrize(
    "attack",
    [Noise(on=0.4), Dropout(on=0.4), IPM(on=0.4), LabelFlip(on=0.4)],
    ids=lambda a: type(a).__name__,
)
def test_workers_and_resume_give_the_same_bits(attack, tmp_path):
    options = {
        "rounds": 4,
        "evaluate": 2,
        "attack": attack,
        "problem": PROBLEMS["batch-norm"](),
    }
    whole = run(FIRST["fedavg"], **options)
    assert_same_bits(whole, run(FIRST["fedavg"], workers=2, **options))

    def stop(number):
        if number == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(FIRST["fedavg"], checkpoint=tmp_path, callbacks=(stop,), **options)
    assert_same_bits(
        whole, run(FIRST["fedavg"], checkpoint=tmp_path, resume=True, **options)
    )


@pytest.mark.parametrize(
    "other",
    [IPM(eps=0.2, on=("b",)), IPM(on=("c",)), None, LabelFlip(on=("b",))],
)
def test_a_checkpoint_refuses_another_attack(other, tmp_path):
    run(FIRST["fedavg"], rounds=1, checkpoint=tmp_path, attack=IPM(on=("b",)))
    with pytest.raises(
        InputError,
        match=r"the setting attack has changed since round 1.*; resume with the same",
    ):
        run(FIRST["fedavg"], rounds=1, checkpoint=tmp_path, resume=True, attack=other)


def test_nan_is_refused_and_named_and_the_others_go_on():
    found = run(FIRST["fedavg"], attack=NaN(on=("b",)))
    assert found.failures == {
        "b": "round 3, coterie.compute.tasks:local_update: field 'delta' has NaN or Inf"
    }
    assert "b" not in found.weights["*"]


def test_evaluation_is_honest():
    found = run(
        FIRST["fedavg"], rounds=2, evaluate=1, attack=Dropout(p=1.0, on=("b", "d"))
    )
    assert {r.client for r in found.history if r.metric == "loss"} == set("abcde")
    assert {row["client"] for row in found.summary} == set("abcde")


def test_an_attack_on_nobody_is_an_error():
    problem = logistic()
    with pytest.raises(InputError, match=r"no client attacks; say who does: on = \["):
        fit(
            run(FIRST["fedavg"]).method,
            problem.clients,
            problem.model,
            1,
            attack=Noise(),
        )
