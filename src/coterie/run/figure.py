"""A figure of curves over rounds, with a panel for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coterie.base.errors import InputError, explain_imports

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, tuple[Sequence[int], Sequence[float]]]
"""By label: rounds [k] and values [k]."""
COLUMNS = 4
INCHES = 3.0


def draw(panels: Mapping[str, Curves], metric: str) -> Figure:
    """A figure with a panel of curves over rounds for each client.

    Args:
        panels: curves by client; at least one.
        metric: what the values are.

    Raises:
        InputError: there is nothing to draw, or no matplotlib.
    """
    if not panels:
        raise InputError(f"the history has no {metric} to draw")
    figure, axes = _figure(len(panels))
    for axis, (client, curves) in zip(axes, panels.items(), strict=False):
        for label, (rounds, values) in curves.items():
            axis.plot(rounds, values, label=label)
        axis.set_title(client)
        axis.set_xlabel("round")
    axes[0].set_ylabel(metric)
    if any(label for curves in panels.values() for label in curves):
        axes[0].legend()
    return figure


def _figure(panels: int) -> tuple[Figure, list[Any]]:
    with explain_imports("plot needs matplotlib", "plot"):
        from matplotlib.figure import Figure
    columns = min(panels, COLUMNS)
    rows = -(-panels // columns)
    figure = Figure(figsize=(columns * INCHES, rows * INCHES), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axis in axes[panels:]:
        axis.set_visible(False)
    return figure, axes
