"""`run.evaluate` as a table: who is evaluated in between, on which rows, and whether all are at the end."""

from __future__ import annotations

import pytest
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.compute.metrics import evaluate

CLIENTS = ct.data.from_tensors(
    {f"c{i:02d}": (torch.randn(12, 3), torch.arange(12) % 2) for i in range(20)},
    split={"parts": {"train": 0.5, "test": 0.5}},
)


def fitted(**table) -> ct.Run:
    return ct.fit(
        ct.FedAvg(ct.LocalSGD(steps=ct.Steps(1))),
        CLIENTS,
        "logistic",
        4,
        3,
        settings=ct.RunSettings(evaluate=table),
    )


def looked_at(run: ct.Run) -> dict[int, set[tuple[str, str]]]:
    rounds: dict[int, set[tuple[str, str]]] = {}
    for row in run.history:
        if row.metric == "loss":
            rounds.setdefault(row.round, set()).add((row.client, row.split))
    return rounds


def test_one_sample_is_evaluated_in_between_and_everybody_at_the_end():
    whole, run = fitted(every=2), fitted(every=2, clients=0.2, parts=["test"])
    seen = looked_at(run)
    assert set(seen) == {0, 2, 4}
    assert seen[0] == seen[2] == seen[4]
    assert len(seen[0]) == 4
    assert {split for _, split in seen[0]} == {"test"}
    assert run.summary == whole.summary
    assert set(run.history) <= set(whole.history)


def test_without_a_last_evaluation_the_summary_is_of_the_sample():
    run = fitted(every=4, clients=["c03", "c07"], last=False)
    assert {row["client"] for row in run.summary} == {"c03", "c07"}


def test_clients_outside_of_the_sample_are_not_asked(monkeypatch):
    run = fitted(every=1, clients=3, parts=["test"], last=False)
    asks = [ask for ask in run.asks if ask.task == evaluate.name]
    assert [ask.clients for ask in asks] == [3] * 5


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"clients": ["c99"]}, "there is no client 'c99'; did you mean 'c19'"),
        ({"clients": 21}, "21 clients of 20 cannot be drawn"),
        ({"clients": 1.5}, "a share of them in"),
        ({"parts": ["tests"]}, '"train", "validation" and "test"'),
        ({"evry": 2}, "unknown key 'evry'"),
    ],
)
def test_a_sample_that_cannot_be_is_refused(table, words):
    with pytest.raises(InputError, match=words):
        fitted(**table)


def test_early_stopping_says_where_to_name_validation_rows():
    looks = {"evaluate": {"parts": ["test"]}, "callbacks": (ct.EarlyStopping(),)}
    with pytest.raises(InputError, match=r"name validation in run\.evaluate\.parts"):
        ct.fit(
            ct.FedAvg(),
            "heart-disease",
            "logistic",
            1,
            settings=ct.RunSettings(**looks),
        )


def test_a_comparison_needs_all_clients_at_the_end(tmp_path):
    settings = ct.StudySettings(evaluate={"last": False})
    with pytest.raises(InputError, match="leave out last = false"):
        ct.compare(
            ["fedavg"],
            CLIENTS,
            "logistic",
            1,
            1,
            folder=tmp_path / "run",
            settings=settings,
        )
    compared = ct.compare(
        ["fedavg"],
        CLIENTS,
        "logistic",
        2,
        1,
        folder=tmp_path / "run",
        settings=ct.StudySettings(evaluate={"clients": 5}),
    )
    assert "clients = 5" in (compared.folder / "experiment.toml").read_text()


def test_a_run_goes_on_where_a_table_says_what_a_number_said(tmp_path):
    one_step = ct.FedAvg(ct.LocalSGD(steps=ct.Steps(1)))
    for rounds, every in ((2, 2), (4, {"every": 2}), (6, 2)):
        settings = ct.RunSettings(evaluate=every, resume=rounds > 2)
        run = ct.fit(
            one_step,
            CLIENTS,
            "logistic",
            rounds,
            checkpoint=tmp_path,
            settings=settings,
        )
    assert run.rounds == 6
    sampled = ct.RunSettings(evaluate={"every": 2, "clients": 3}, resume=True)
    with pytest.raises(InputError, match="evaluated"):
        ct.fit(one_step, CLIENTS, "logistic", 8, checkpoint=tmp_path, settings=sampled)


def test_parts_of_which_nobody_has_rows_are_said(caplog):
    run = fitted(parts=["validation"])
    assert "nobody has validation rows" in caplog.text
    assert not looked_at(run)
    assert run.summary == fitted().summary


def test_divergence_is_said_where_training_rows_are_not_evaluated(caplog):
    fast = ct.FedAvg(ct.LocalSGD(lr=1e4, steps=ct.Steps(1)))
    ct.fit(
        fast,
        CLIENTS,
        "logistic",
        1,
        settings=ct.RunSettings(evaluate={"every": 1, "parts": ["test"]}),
    )
    assert "training diverges: the mean loss on test rows is" in caplog.text
