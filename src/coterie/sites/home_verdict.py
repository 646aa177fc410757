"""The verdict of a site for the people there: how methods differ on its own test rows. Nothing of it leaves the site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coterie.base.errors import InputError
from coterie.compute.outcomes import BOOSTED, CONSTANT
from coterie.sites.approval import Approved
from coterie.sites.comparisons import Paired
from coterie.sites.kept_outcomes import KeptOutcomes
from coterie.sites.secret_noise import site_key
from coterie.sites.settings import SiteSettings

_METRICS = {"loss": "log-loss", "rmse": "RMSE", "auc": "AUC", "c_index": "C"}
_95 = 1.96


def latest_run(folder: Path) -> Path:
    """Return the folder of the run that noted outcomes last. Raises `InputError` where none has."""
    noted = sorted(
        folder.glob("*/*-outcomes.safetensors"), key=lambda path: path.stat().st_mtime
    )
    if not noted:
        raise InputError(
            f"no run has ended here yet, so {folder} holds nothing to compare; run the plan (coterie submit), then ask again"
        )
    return noted[-1].parent


def verdict_lines(
    approved: Approved, settings: SiteSettings, folder: Path
) -> Iterator[str]:
    """Yield how each method of the plan differs from its rivals on this site's test rows, by the last run.

    Args:
        approved: the plan.
        settings: settings of the site.
        folder: where the site keeps what runs leave.

    Raises:
        InputError: No run has ended yet.
    """
    kept = KeptOutcomes(
        latest_run(folder),
        approved.plan.experiment,
        settings.minimum_cell,
        site_key(Path(settings.log)),
    )
    for method, other in approved.comparisons:
        rival = {CONSTANT: "a constant prediction", BOOSTED: "boosted trees"}
        named = rival.get(other, other)
        tested, _ = kept.counts(method)
        differences = [
            f"{words} {_in_words(paired)}"
            for metric, words in _METRICS.items()
            if (paired := kept.compare(method, other, metric)) is not None
        ]
        said = "; ".join(differences) or "too few test rows, or no model yet"
        if kept.is_uneven(method):
            said = "weights too uneven for a verdict: trim them in the file"
        yield f"{method} against {named}, {tested} test rows: {said}"
    yield "nothing of this has left the site, and nothing of it is in the account"


def _in_words(paired: Paired) -> str:
    half = _95 * paired.error
    return f"{paired.value:.3f} ({paired.gap:+.3f} ± {half:.3f})"
