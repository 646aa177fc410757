"""A metric of your own: the Brier score, the mean squared distance between predicted chances and what happened (0 is best).

    coterie compare heart-disease --metrics accuracy,examples/own_metric.py:brier

From Python: ct.metrics.register("brier", brier), then ct.fit(..., settings=ct.RunSettings(metrics=["accuracy", "brier"])). It runs at
each client, on its own rows; only the number leaves. A metric whose name ends in brier, loss, error, mse, mae or rmse is better when
lower.
"""

from torch.nn.functional import one_hot

from coterie.core.loss import probabilities


def brier(
    outputs, labels, kind
):  # what the model gives for some rows of one client, their labels, and the kind of task
    if kind not in ("binary", "classes"):
        return None  # undefined here: "-" in tables, null in JSON
    chances = probabilities(kind, outputs)  # [rows, classes], also where two classes share one logit
    return float((chances - one_hot(labels, chances.shape[1])).square().sum(dim=1).mean())
