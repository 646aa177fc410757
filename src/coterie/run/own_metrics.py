"""Metrics of the user's own: FILE.py:FUNCTION is loaded, and known by the name of the function from then on."""

from __future__ import annotations

from collections.abc import Iterable

from coterie.base.errors import cut, require
from coterie.base.modules import load_object
from coterie.compute.metrics import find_metrics, register
from coterie.run.files import SUMMARY

__all__ = ["add_metrics", "short_names"]


def short_names(metrics: Iterable[str]) -> tuple[str, ...]:
    """Names of metrics, those of the user's own without their file.

    >>> short_names(["accuracy", "own.py:margin"])
    ('accuracy', 'margin')
    """
    return tuple(metric.rpartition(":")[2] for metric in metrics)


def add_metrics(metrics: Iterable[str]) -> None:
    """Register those that come from files of the user. Raises `InputError` for one that is unknown, or cannot be a metric."""
    for metric in metrics:
        (name,) = short_names([metric])
        require(name not in (*SUMMARY, "loss"), f"{name!r} is a column of summary.json; give the metric another name")
        if ".py:" in metric:
            function = load_object(metric)
            require(callable(function), f"{metric} must be a function (outputs, labels, kind); got {cut(function)}")
            register(name, function)
        else:
            find_metrics([metric])
