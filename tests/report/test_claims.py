"""Claims about the demo: each is an interval, and one that fails on one set of seeds says nothing there."""

from __future__ import annotations

from typing import Any

import fake_run
import pytest
from benchmarks.claims import CLAIMS, Claim, check, contradicted, page, summary

from coterie.report.results import Results

BIAS = {**fake_run.STORY["fedavg"], "switzerland": (0.927, 0.56, 0.770, 0.272)}
TRUTH = {**fake_run.STORY, "fedavg+bias": BIAS}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results.load(
        fake_run.heart(
            tmp_path_factory.mktemp("heart"),
            truth=TRUTH,
            tuned={"fedavg+bias": "fedavg"},
        )
    )


def claim(**changes: object) -> Claim:
    return CLAIMS[0]._replace(**changes)  # type: ignore[arg-type]


def test_a_claim_holds_if_its_interval_lies_on_the_claimed_side(
    results: Results,
) -> None:
    worse = check(claim(), results)
    assert (worse.words, worse.holds) == ("worse", True)
    assert worse.low is not None
    assert 0 < worse.low < worse.mean
    assert not check(claim(expected="better"), results).holds
    assert not check(claim(expected="no difference"), results).holds
    turned = check(claim(method="local", other="fedavg", expected="better"), results)
    assert turned.mean == pytest.approx(-worse.mean)
    assert turned.holds


def test_no_difference_holds_only_where_none_is_shown(results: Results) -> None:
    same = claim(method="fedavg+bias", expected="no difference")
    assert check(same, results).holds
    assert check(same, results).words in ("no harm", "not settled")
    assert not check(same._replace(expected="better"), results).holds


def test_every_claim_is_of_the_preset_and_can_be_checked(results: Results) -> None:
    for one in CLAIMS:
        assert check(one, results).low is not None, one.text


def found(results: Results) -> dict[str, Any]:
    """What `main` writes, of the same numbers on both sets: every claim holds, and one of two runs tells Hungary something else."""
    claims = {c.text: check(c, results)._asdict() | {"holds": True} for c in CLAIMS}
    words = [dict.fromkeys(results.clients, "safe to join") for _ in range(2)]
    words[1]["hungary"] = "undecided"
    demo = {"demo": dict.fromkeys(results.clients, "Join (99 %): it helps.")}
    sets = {
        name: {
            "claims": {k: dict(v) for k, v in claims.items()},
            "summary": summary(results),
            "words": words,
        }
        for name in ("seeds 2 to 5", "seeds 6 to 9")
    }
    return demo | sets


def test_one_that_fails_on_one_set_leaves_the_page(results: Results) -> None:
    measured = found(results)
    whole = " ".join(page(measured).split())
    assert all(f"- {c.text}: " in whole for c in CLAIMS)
    assert "| local | .4" in whole
    measured["seeds 6 to 9"]["claims"][CLAIMS[1].text]["holds"] = False
    shorter = " ".join(page(measured).split())
    assert CLAIMS[1].text not in shorter
    assert CLAIMS[0].text in shorter


def test_answers_are_counted_over_runs(results: Results) -> None:
    text = page(found(results))
    assert "- **Long Beach**: Join (99 %): it helps." in text
    assert (
        "In 4 other runs of the demo the hospitals read these answers; 2 of 16"
        in " ".join(text.split())
    )
    assert "| safe to join | 4 | 2 | 4 | 4 |" in text
    assert "| undecided | 0 | 2 | 0 | 0 |" in text


@pytest.mark.parametrize(
    ("words", "both_ways"),
    [
        (["join", "stay alone", "join", "probably stay alone"], True),
        (["join", "probably join", "stay alone", "undecided"], False),
        (["safe to join", "undecided", "stay alone", "probably stay alone"], False),
    ],
)
def test_nobody_may_be_told_both_more_than_once(
    words: list[str], both_ways: bool
) -> None:
    assert (
        contradicted([{"a": word, "b": "undecided"} for word in words])
        == ["a"] * both_ways
    )
