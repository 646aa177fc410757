"""The correlation coefficient of Matthews, for two or more classes: 1 is perfect, 0 as good as a guess, whatever the class shares."""

import torch

import coterie as ct


def mcc(outputs: torch.Tensor, labels: torch.Tensor, kind: str) -> float | None:
    """Correlation of predicted and true classes in [-1, 1]; None where one of them is constant, or labels are no classes.

    Source: J. Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", 2004.
    """
    if kind not in ("binary", "classes"):
        return None
    predicted = ct.metrics.probabilities(kind, outputs).argmax(dim=1).cpu().flatten()
    labels = labels.long().cpu().flatten()
    classes = int(torch.cat([predicted, labels]).max()) + 1
    counts = [
        torch.bincount(values, minlength=classes).double()
        for values in (labels, predicted)
    ]
    total = len(labels)
    agreement = total * (predicted == labels).sum() - counts[0] @ counts[1]
    spread = [total**2 - count @ count for count in counts]
    if min(spread) <= 0:  # one class alone
        return None
    return float(agreement / (spread[0] * spread[1]).sqrt())
