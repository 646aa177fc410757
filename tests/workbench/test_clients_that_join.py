"""Clients that join in a later round, from the start of a run or at a resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.run.provenance import describe_acceptances
from federations import logistic

LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(2), batch_size=4)


def known_and_late() -> tuple[ct.Clients, ct.Client]:
    clients = logistic().clients
    return clients, replace(clients["c"], name="late")


def run(clients: ct.Clients, rounds: int = 4, method: object = None, **options: object):
    return ct.fit(
        method or ct.FedAvg(LOCAL), clients, logistic().model, rounds, **options
    )


def rounds_asked_of(name: str, result: ct.Run) -> set[int]:
    """Rounds in which a client has an aggregation weight."""
    return {number for number, _, who, _ in result.weight_rows if who == name}


def test_a_client_has_a_weight_from_its_round_on_and_is_evaluated_before():
    clients, late = known_and_late()
    joined = run(clients.add(late, start=3), settings=ct.RunSettings(evaluate=1))
    assert rounds_asked_of("late", joined) == {3, 4}
    evaluated = [number for number, _ in joined.history.select("loss", "late", "test")]
    assert evaluated == [0, 1, 2, 3, 4]


def test_one_that_is_there_from_the_first_round_is_like_any_other():
    clients, late = known_and_late()
    beginning = clients.add(late)
    assert not beginning.starts
    as_any_other = ct.Clients([*clients, late])
    assert torch.equal(run(beginning).x, run(as_any_other).x)


def test_alone_it_is_trained_as_if_the_others_were_not_there():
    clients, late = known_and_late()
    joined = run(clients.add(late, start=3), method=ct.Local())
    twin = joined.models["c"]
    # It has the rows of `c`; only the folds that choose its ridge are dealt by its own name.
    assert float((joined.models["late"] - twin).norm()) < 0.5 * float(twin.norm())
    assert float(joined.models["late"].norm()) > 0


def test_a_saved_run_goes_on_with_a_client_that_joins_after_it(tmp_path):
    clients, late = known_and_late()
    joining = clients.add(late, start=3)
    straight = run(joining)
    run(clients, 2, checkpoint=tmp_path, settings=ct.RunSettings(evaluate=4))
    resumed = run(
        joining,
        checkpoint=tmp_path,
        settings=ct.RunSettings(evaluate=4, resume=True),
    )
    assert torch.equal(straight.x, resumed.x)
    (sentence,) = describe_acceptances(tmp_path)
    assert "late" in sentence
    assert "round 2" in sentence
    # And once more: now the newcomer is one of those with which the run is recorded.
    again = run(
        joining,
        5,
        checkpoint=tmp_path,
        settings=ct.RunSettings(evaluate=4, resume=True),
    )
    assert again.rounds == 5


@pytest.mark.parametrize("start", [1, 2])
def test_a_saved_run_refuses_a_client_in_a_round_that_is_complete(tmp_path, start):
    clients, late = known_and_late()
    run(clients, 2, checkpoint=tmp_path, settings=ct.RunSettings(evaluate=4))
    with pytest.raises(InputError, match="late"):
        run(
            clients.add(late, start=start),
            checkpoint=tmp_path,
            settings=ct.RunSettings(evaluate=4, resume=True),
        )


def test_its_round_cannot_be_changed_once_the_run_knows_it(tmp_path):
    clients, late = known_and_late()
    run(
        clients.add(late, start=3),
        2,
        checkpoint=tmp_path,
        settings=ct.RunSettings(evaluate=4),
    )
    with pytest.raises(InputError, match="late"):
        run(
            clients.add(late, start=4),
            checkpoint=tmp_path,
            settings=ct.RunSettings(evaluate=4, resume=True),
        )


def test_a_method_that_begins_with_all_clients_says_so():
    clients, late = known_and_late()
    with pytest.raises(InputError, match=r"MeritFed begins with all clients.*late"):
        run(clients.add(late, start=3), method=ct.MeritFed(local=LOCAL))


@pytest.mark.parametrize("start", [0, -1, 1.5, True, "2"])
def test_a_start_is_a_round(start):
    clients, late = known_and_late()
    with pytest.raises(InputError, match="start must be the round"):
        clients.add(late, start=start)


def test_what_is_added_is_a_client_of_a_new_name_with_rows_of_the_same_form():
    clients, late = known_and_late()
    with pytest.raises(InputError, match="add takes a client"):
        clients.add(late.train)
    with pytest.raises(InputError, match="repeat"):
        clients.add(replace(late, name="c"))
    odd = ct.Client("odd", ct.Part(torch.zeros(4, 99), torch.zeros(4)))
    with pytest.raises(InputError, match="odd"):
        clients.add(odd)


def test_nothing_that_clients_declare_is_lost():
    clients, late = known_and_late()
    declared = clients.with_transform(lambda inputs, rng: inputs).with_server(
        clients["a"].train
    )
    grown = declared.add(late, start=2)
    kept = ("name", "classes", "recipe", "transform", "draw", "declared", "asks_task")
    for field in kept:
        assert getattr(grown, field) == getattr(declared, field), field
    assert grown.server is not None
    assert "late takes part from round 2 on" in grown.notes
    twice = grown.add(replace(late, name="later"), start=5)
    assert dict(twice.starts) == {"late": 2, "later": 5}


def test_two_workers_give_the_same_bits():
    clients, late = known_and_late()
    joining = clients.add(late, start=3)
    spread = run(joining, engine=ct.InProcess(workers=2))
    assert torch.equal(run(joining).x, spread.x)
