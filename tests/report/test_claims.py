"""Reruns of the examples: words are counted, and an answer that changes with the folds is not called stable."""

from __future__ import annotations

import pytest
from benchmarks import claims


def words(**told: list[str]) -> list[dict[str, str]]:
    """One dictionary a rerun, from the words of each client."""
    runs = zip(*told.values(), strict=True)
    return [dict(zip(told, run, strict=True)) for run in runs]


def test_words_that_differ_from_the_commonest_are_counted() -> None:
    same = words(a=["join"] * 4, b=["undecided"] * 4)
    assert claims.share_of_others(same) == 0
    one = words(a=["join", "join", "join", "probably join"], b=["undecided"] * 4)
    assert claims.share_of_others(one) == pytest.approx(1 / 8)


def test_the_page_shows_what_the_demo_says_and_how_often_each_word_fell() -> None:
    again = words(west=["join", "join", "undecided"], long_beach=["undecided"] * 3)
    demo = {"west": "Join (99 %): it helps.", "long_beach": "Undecided."}
    text = claims.page({"nhefs": {"demo": demo, "words": again}})
    assert "3 times with other folds: 17% of 6 words" in text
    assert "- **West**: Join (99 %): it helps." in text
    assert "| undecided | 1 | 3 |" in text
    assert "| join | 2 | 0 |" in text


@pytest.mark.parametrize("name", claims.EXAMPLES)
def test_the_methods_of_the_reruns_are_among_those_of_the_example(name: str) -> None:
    from coterie.run.method_tables import label_of
    from coterie.run.tables import preset

    entries = [label_of(entry) for entry in preset(name)["methods"]]
    assert set(claims.METHODS) <= set(entries)


@pytest.mark.parametrize(
    ("told", "both_ways"),
    [
        (["join", "stay alone", "join", "probably stay alone"], True),
        (["join", "probably join", "stay alone", "undecided"], False),
        (["safe to join", "undecided", "stay alone", "probably stay alone"], False),
    ],
)
def test_nobody_may_be_told_both_more_than_once(
    told: list[str], both_ways: bool
) -> None:
    again = words(a=told, b=["undecided"] * 4)
    assert claims.contradicted(again) == ["a"] * both_ways
