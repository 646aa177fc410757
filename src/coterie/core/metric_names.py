"""Names of the metrics of a run that asks for none; whoever reads results needs them and no torch."""

from __future__ import annotations

__all__ = ["DEFAULT_METRICS"]

DEFAULT_METRICS = ("accuracy", "balanced_accuracy", "auc", "mae", "rmse")
"""Those that a task does not have are undefined."""
