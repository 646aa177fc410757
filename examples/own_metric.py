"""A metric of your own: errors of which a missed case costs as much as five false alarms, per row (0 is best).

    coterie compare heart-disease --metrics accuracy,examples/own_metric.py:costly_error

From Python: ct.register("metrics", "costly_error")(costly_error), then ct.fit(..., settings=ct.RunSettings(metrics=["accuracy",
"costly_error"])). It runs at each client, on its own rows; only the number leaves. A metric whose name ends in brier, loss, error,
mse, mae or rmse is better when lower.
"""

from torch import Tensor

from coterie.compute.metrics import probabilities

MISSED = 5.0


# What the model gives for some rows of one client, their labels, and the kind of task.
def costly_error(outputs: Tensor, labels: Tensor, kind: str) -> float | None:
    if kind not in ("binary", "classes"):
        return None  # undefined here: "-" in tables, null in JSON
    # [rows], also where two classes share one logit.
    predicted = probabilities(kind, outputs).argmax(dim=1)
    missed = (predicted == 0) & (labels > 0)
    false_alarms = (predicted > 0) & (labels == 0)
    return float((MISSED * missed + false_alarms.float()).mean())
