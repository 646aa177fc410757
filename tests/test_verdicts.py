"""The benchmark of verdicts: what it counts, with which error, and that its kinds are those that were fixed."""

import json
import math

import numpy as np
import pytest
from benchmarks import decays, federations, rival_answers, verdicts


def test_a_share_has_the_error_of_its_clusters() -> None:
    pairs = [(1, 4), (3, 4), (0, 2), (2, 2)]
    value = sum(k for k, _ in pairs) / 12
    residuals = [k - value * n for k, n in pairs]
    share = verdicts.ratio(pairs)
    assert share is not None
    assert (share.value, share.count) == (0.5, 12)
    assert share.error == pytest.approx(
        math.sqrt(4 / 3 * sum(r * r for r in residuals)) / 12
    )
    assert verdicts.ratio([(0, 0)]) is None


@pytest.mark.parametrize(
    ("value", "high", "word"),
    [
        (0.8, True, "met"),
        (0.73, True, "met within a standard error"),
        (0.7, True, "**missed**"),
        (0.8, False, "**missed**"),
    ],
)
def test_a_bar_is_missed_by_more_than_an_error(
    value: float, high: bool, word: str
) -> None:
    assert verdicts.standing(verdicts.Share(value, 0.03, 100), 0.75, high) == word


def test_the_drawn_kinds_follow_from_their_seed() -> None:
    kinds = [*federations.SETS["drawn by a seed"]]
    assert len(kinds) == 16
    assert (
        kinds[0]
        == "5 clients, 901 rows, spread 0.24, 2 groups, inputs shifted by 1.1, intercept -0.3"
    )
    assert (
        kinds[-1]
        == "4 clients, 109 to 442 rows, spread 0.00, prevalence shifted by 0.5, intercept -1.0"
    )


def test_an_estimate_is_of_one_federation_and_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(federations, "FRESH", 2000)
    monkeypatch.setattr(federations, "TRUTHS", 2)
    draw = federations.DEVELOPMENT["two groups of 3, 100 rows"]
    once, again = (
        json.dumps(federations.estimate("two groups of 3, 100 rows", draw, 0))
        for _ in range(2)
    )
    assert once == again
    clients = json.loads(once)
    assert [c["group"] for c in clients] == [0, 0, 0, 1, 1, 1]
    judged = verdicts.judge(clients)
    assert len(judged) == 6
    assert all(j.best >= j.truth for j in judged)
    figures = verdicts.shares(judged, [clients])
    assert figures["coverage"] == (np.mean([j.covered for j in judged]), 0.0, 6)


def test_an_answer_that_names_all_is_worth_what_averaging_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(federations, "FRESH", 2000)
    monkeypatch.setattr(federations, "TRUTHS", 2)
    kind, draw = (
        "two groups of 2, 200 rows",
        federations.DEVELOPMENT["two groups of 2, 200 rows"],
    )
    world, clients = (
        federations.draw_world(kind, draw, 0),
        federations.estimate(kind, draw, 0),
    )
    everybody = rival_answers.answer_truths(world, np.full((4, 4), 0.25))
    assert everybody == pytest.approx([c["fedavg"]["truth"] for c in clients])
    assert rival_answers.answer_truths(world, np.eye(4)).tolist() == [0.0] * 4
    groups = np.kron(np.eye(2), np.full((2, 2), 0.5))
    assert (rival_answers.answer_truths(world, groups) > everybody).all()
    weights = {"right": groups.tolist(), "alone": np.eye(4).tolist()}
    record = {
        "clients": clients,
        "weights": weights,
        "truths": {key: [0.03, -0.02, 0.01, 0.0] for key in weights},
    }
    assert rival_answers.found_groups(record) == {
        "coterie": True,
        "right": True,
        "alone": False,
    }
    answers = rival_answers.list_answers(record)
    assert [(a.joins, a.stays, a.truth) for a in answers["right"]] == [
        (True, False, t) for t in (0.03, -0.02, 0.01, 0.0)
    ]
    assert all(a.stays and not a.joins for a in answers["alone"])
    figures = rival_answers.figures_of([record], "right")
    assert (figures["joins"], figures["gain"]) == ((1.0, 0.0, 4), pytest.approx(0.005))
    assert (figures["sign"], figures["lost"], figures["groups"]) == (
        (0.25, 0.0, 4),
        (0.25, 0.0, 4),
        (1.0, 0.0, 1),
    )


def test_rows_that_are_left_out_have_no_say_in_the_choice() -> None:
    size, best = len(decays.PENALTIES), (1, 4)
    losses = np.ones((2, size))
    losses[[0, 1], best] = 0.0, 0.5
    fold = decays.Fold(
        np.array([0]), losses[:1], np.array([0, 1]), losses, np.ones(size)
    )
    assert [decays.choose([fold]), decays.choose([fold], fold.tested)] == [*best]
    assert decays.flattery([fold], [1]) == 1.0
    assert decays.measure((6, 12), 3) == decays.measure((6, 12), 3)
