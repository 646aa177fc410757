"""Names of losses, and of the metrics of a run that asks for none, and what metrics can be; whoever reads results needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

DEFAULT_METRICS = ("accuracy", "balanced_accuracy", "auc", "mae", "rmse", "r2")
"""Those that a task does not have are undefined."""

LOSSES = ("auto", "binary", "classes", "classes-last", "squared")
"""Losses by name: binary cross-entropy of each output, cross-entropy with C logits in dimension 1 or in the last, squared error."""

BOUNDS = dict.fromkeys(
    (
        "accuracy",
        "balanced_accuracy",
        "auc",
        "auprc",
        "top5",
        "sensitivity",
        "specificity",
        "ppv",
        "npv",
        "f1",
        "ece",
        "uno_c",
    ),
    (0.0, 1.0),
) | {"mae": (0.0, inf), "rmse": (0.0, inf), "brier": (0.0, 2.0), "r2": (-inf, 1.0)}
BOUNDS |= {"class_error": (0.0, inf), "poisson_deviance": (0.0, inf)}
OF_HAZARDS = ("c_index", "horizon_brier", "horizon_calibration")
"""Metrics of time to event."""
OF_COUNTS = ("poisson_deviance",)
"""Metrics of counts with exposure."""
OF_ORDERED = ("class_error",)
"""Metrics of ordered classes."""
BOUNDS |= dict.fromkeys(OF_HAZARDS[:1], (0.0, 1.0))
BOUNDS |= dict.fromkeys((*OF_HAZARDS[1:], "integrated_brier"), (0.0, inf))
"""The lowest and the highest value of each metric."""
ERRORS = frozenset(
    {
        "mae",
        "rmse",
        "brier",
        "ece",
        "class_error",
        "poisson_deviance",
        "horizon_brier",
        "horizon_calibration",
        "integrated_brier",
    }
)
"""Those of which lower is better; of the others that have bounds above higher is. A name of the user's own says it itself."""

PRINTED = {
    "auc": "AUC",
    "auprc": "precision-recall AUC",
    "class_error": "mean class error",
    "poisson_deviance": "Poisson deviance",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R²",
    "f1": "F1",
    "ppv": "PPV",
    "npv": "NPV",
    "brier": "Brier score",
    "ece": "calibration error",
    "c_index": "Harrell's C",
    "uno_c": "Uno's C",
    "horizon_brier": "Brier score at the horizon",
    "horizon_calibration": "calibration error at the horizon",
    "integrated_brier": "integrated Brier score",
}
"""How people call a metric, where its name is another."""


def find_metric(name: str, metrics: Iterable[str]) -> str:
    """Return the metric that is called `name`, as it is printed and in any case; `name` itself if there is none.

    >>> find_metric("AUC", ["auc", "loss"]), find_metric("log-loss", ["auc", "loss"]), find_metric("mse", ["auc"])
    ('auc', 'loss', 'mse')
    """
    folded_name = name.casefold()
    for metric in metrics:
        printed = {metric, metric.replace("_", " "), PRINTED.get(metric, metric)}
        if metric == "loss":
            printed.add("log-loss")
        if folded_name in map(str.casefold, printed):
            return metric
    return name
