"""A metric of your own: the Brier score, the mean squared distance between predicted chances and what happened (0 is best).

    coterie compare heart-disease --metrics accuracy,examples/own_metric.py:brier

From Python: ct.metrics.register("brier", brier); ct.fit(..., metrics=["accuracy", "brier"]). It runs at each client, on the client's own rows;
only the number leaves. Names that end in loss, error, brier, mse, ... are better when lower.
"""

from torch.nn.functional import one_hot


def brier(outputs, labels, kind):  # what the model gives for some rows of one client, their labels, and the kind of task
    if kind not in ("binary", "classes"):
        return None  # undefined: "-" in tables, null in JSON
    yes = outputs.reshape(len(labels)).sigmoid()[:, None] if kind == "binary" else None  # two classes: one logit
    chances = outputs.softmax(dim=1) if yes is None else yes.new_empty(len(labels), 2).copy_((1 - yes) + 0)
    return float((chances - one_hot(labels, chances.shape[1])).square().sum(dim=1).mean())
