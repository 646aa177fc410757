"""Functions as metrics, in Python: by themselves, by name, and in a comparison that is resumed."""

from __future__ import annotations

import pytest

import coterie as ct


def always_two(outputs, labels):
    return 2.0


def share_of_ones(outputs, labels, kind):
    return float(labels.float().mean())


def last(run, metric):
    return run.history.select(metric, "hungary", "test")[-1][1]


def test_a_function_of_two_or_three_is_a_metric_by_its_name():
    settings = ct.RunSettings(
        metrics=[always_two, share_of_ones, "auc", ct.metrics.accuracy]
    )
    run = ct.fit("fedavg", "heart-disease", rounds=1, settings=settings)
    assert last(run, "always_two") == 2.0
    assert 0 < last(run, "share_of_ones") < 1
    assert {"auc", "accuracy"} <= {row.metric for row in run.history}


def test_a_dict_names_functions_and_a_later_one_wins():
    for value in (1.0, 3.0):
        settings = ct.RunSettings(
            metrics={"steady": lambda outputs, labels, value=value: value}
        )
        assert (
            last(
                ct.fit("fedavg", "heart-disease", rounds=1, settings=settings), "steady"
            )
            == value
        )


def test_a_comparison_takes_functions_and_goes_on_with_them(tmp_path):
    settings = {"metrics": [share_of_ones, "auc"]}
    arguments = ("heart-disease",)
    first = ct.compare(
        ["fedavg"],
        *arguments,
        rounds=1,
        seeds=2,
        folder=tmp_path,
        settings=ct.StudySettings(**settings),
    )
    again = ct.compare(
        ["fedavg"],
        *arguments,
        rounds=1,
        seeds=3,
        folder=tmp_path,
        settings=ct.StudySettings(**settings, resume=True),
    )
    assert "share of ones" in str(first.table("share_of_ones"))
    assert "3 seeds" in str(again.table("share_of_ones"))


@pytest.mark.parametrize(
    "metrics",
    [[lambda outputs, labels: 1.0], {"auc": always_two}, {"a b": always_two}, {"x": 3}],
)
def test_what_has_no_name_of_its_own_is_refused(metrics):
    with pytest.raises(ct.InputError, match="metric"):
        ct.fit(
            "fedavg",
            "heart-disease",
            rounds=1,
            settings=ct.RunSettings(metrics=metrics),
        )
