"""What further rows would bring: probabilities of words, by draws."""

from pathlib import Path

import fake_run
import numpy as np
import pytest

from coterie.base.errors import InputError
from coterie.report.evidence import Gain, share, state
from coterie.report.planning import _with_partners, plan_lines, plan_rows
from coterie.report.results import Results


def chances(gains: dict[str, Gain], client: str, numbers: tuple[int, ...]) -> dict:
    posteriors = share([*gains.values()])
    evidence = dict(
        zip(gains, zip(gains.values(), posteriors, strict=True), strict=True)
    )
    return dict(_with_partners(evidence, dict.fromkeys(gains, 0.01), client, numbers))


@pytest.mark.in_turn
def test_probabilities_are_shares_of_draws_and_more_rows_settle_more() -> None:
    gains = {c: Gain(0.02, 0.02, 100) for c in "abcd"}
    by_rows = chances(gains, "a", (50, 800, 3200))
    for row in by_rows.values():
        assert sum(row.values()) == pytest.approx(1)
    settled = [
        1 - row.get("undecided", 0) - row.get("probably join", 0)
        for row in by_rows.values()
    ]
    assert settled[0] < settled[1] <= settled[2] + 0.05
    # With 32 times its rows a client gains next to nothing by partners.
    assert by_rows[3200].get("safe to join", 0) > by_rows[50].get("safe to join", 0)


@pytest.mark.in_turn
def test_rows_of_all_settle_more_than_rows_of_one(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    plan = plan_rows(results, "cleveland", (100, 1000))
    assert set(plan.own) == set(plan.everybody) == {100, 1000}
    for chances_of_rows in (plan.own, plan.everybody):
        for row in chances_of_rows.values():
            assert sum(row.values()) == pytest.approx(1)
    firm = [
        sum(
            p
            for word, p in row.items()
            if "probably" not in word and word != "undecided"
        )
        for row in plan.everybody.values()
    ]
    assert firm[1] >= firm[0]


@pytest.mark.in_turn
def test_with_endless_rows_no_partner_is_needed() -> None:
    generator = np.random.default_rng(1)
    gains = {
        c: Gain(0.05 + 0.001 * generator.standard_normal(), 0.0005, 1000) for c in "abc"
    }
    posterior = share([*gains.values()])[0]
    assert state(gains["a"], posterior, 0.01).word == "join"
    assert chances(gains, "a", (100_000,))[100_000] == {"safe to join": 1.0}


def test_the_same_plan_twice(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    first = plan_rows(results, "cleveland", (300,))
    assert first == plan_rows(results, "cleveland", (300,))


def test_lines_name_today_and_both_kinds_of_rows(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    text = "\n".join(
        plan_lines(results, "cleveland", plan_rows(results, "cleveland", (100, 2000)))
    )
    for part in (
        "Cleveland today: ",
        "rows of Cleveland:",
        "those, and in proportion at every other client:",
        " 2,000 ",
    ):
        assert part in text


def test_nothing_is_planned_without_a_word(tmp_path: Path) -> None:
    truth = {m: dict.fromkeys("ab", (0.8, 0.8, None, 0.5)) for m in ("local", "fedavg")}
    results = Results.load(fake_run.write(tmp_path, truth, n_test=12))
    with pytest.raises(InputError, match=r"nothing can be planned for a: 12 test rows"):
        plan_rows(results, "a")
