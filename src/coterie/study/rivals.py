"""Which rivals joining has in an experiment: the client's own linear model, and boosted trees of its own where rows are tables."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.rows import sample
from coterie.compute.boosted import can_fit, load_trees
from coterie.config.run import MethodEntry
from coterie.run.experiment import Experiment

BASELINE = "local"
BOOSTED_REPEATS = 4
"""Repeats of folds in which trees are fitted, at most: one takes as long as two of the solved models.

In two of them words of the demo still depended on the folds through their trees alone; from three on its words were as stable
as with trees in six (in 20 reruns 9 % of them differ, with three repeats as with six)."""


def seeds_of_boosted(experiment: Experiment) -> Sequence[int]:
    """The seeds with boosted trees: with folds the first few, and a difference to trees is the mean over these. Else all."""
    seeds = experiment.run.seeds
    return seeds[:BOOSTED_REPEATS] if experiment.folds else seeds


def fits_boosted(
    experiment: Experiment, entry: MethodEntry, clients: Clients, seed: int
) -> bool:
    """Return True if the losses of boosted trees are to be saved beside those of this method: it trains each client alone."""
    if entry.name != BASELINE or seed not in seeds_of_boosted(experiment):
        return False
    return wants_boosted(experiment, clients) and can_fit()


def prepare_rivals(experiment: Experiment, clients: Clients) -> None:
    """Import once what each process of a run would import: there is one for each method, seed and fold that trains alone."""
    if experiment.run.jobs > 1 and wants_boosted(experiment, clients) and can_fit():
        load_trees()


def wants_boosted(experiment: Experiment, clients: Clients) -> bool:
    """Return True if boosted trees are a rival here: rows are those of tables with one label, and partners can choose a method."""
    names = {entry.name for entry in experiment.methods}
    if "boosted" not in experiment.run.rivals or not names - {BASELINE, "centralised"}:
        return False
    inputs, labels = sample(clients.train.inputs), clients.plain_labels
    is_table = isinstance(inputs, Tensor) and inputs.ndim == 2 and labels.ndim == 1
    has_own_loss = callable(experiment.run.loss)
    return clients.recipe is not None and is_table and not has_own_loss


def rival_notes(experiment: Experiment, clients: Clients) -> list[str]:
    """A sentence where boosted trees are wanted and cannot be fitted."""
    if not wants_boosted(experiment, clients) or can_fit():
        return []
    needs = "boosted trees, the second rival, need scikit-learn"
    cure = 'pip install "coterie[data]" and run again'
    return [f"verdicts are against a linear model only: {needs}; {cure}"]
