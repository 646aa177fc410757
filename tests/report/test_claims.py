"""Claims of the README: each is an interval, and one that fails on one set of seeds says nothing there."""

from __future__ import annotations

from pathlib import Path

import fake_run
import pytest
from benchmarks.claims import CLAIMS, Claim, check, page, summary

from coterie.report.results import Results

BIAS = {**fake_run.STORY["fedavg"], "switzerland": (0.927, 0.56, 0.770, 0.272)}
TRUTH = {**fake_run.STORY, "fedavg+bias": BIAS}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results.load(fake_run.heart(tmp_path_factory.mktemp("heart"), truth=TRUTH, tuned={"fedavg+bias": "fedavg"}))


def claim(**changes: object) -> Claim:
    return CLAIMS[0]._replace(**changes)  # type: ignore[arg-type]


def test_a_claim_holds_if_its_interval_lies_on_the_claimed_side(results: Results) -> None:
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


def test_one_that_fails_on_one_set_leaves_the_page(results: Results) -> None:
    sides = {c.text: check(c, results)._asdict() | {"holds": True} for c in CLAIMS}
    found = {
        name: {"claims": {k: dict(v) for k, v in sides.items()}, "summary": summary(results)} for name in ("a", "b")
    }
    whole = page(found)
    assert all(f"- {c.text}: " in whole for c in CLAIMS)
    assert "| local | .4" in whole
    found["b"]["claims"][CLAIMS[1].text]["holds"] = False
    assert CLAIMS[1].text not in page(found)
    assert CLAIMS[0].text in page(found)


def test_the_readme_says_what_was_measured() -> None:
    import json

    root = Path(__file__).resolve().parents[2]
    found = json.loads((root / "benchmarks" / "results" / "heart_disease.json").read_text())
    assert page(found) in (root / "README.md").read_text()
