"""How many rows the red team finds at one hospital, for methods, models and noise: benchmarks/results/red_team.csv (`make attacks`)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import tomli_w

import coterie.compute.metrics  # noqa: F401 - it registers its tasks
from benchmarks.pages import RESULTS, write_csv
from coterie.base.errors import RunError
from coterie.config.registry import METHODS
from coterie.data.sets.heart_disease import FOLDER
from coterie.run.tables import preset
from coterie.sites.approval import Approved
from coterie.sites.attack import attack
from coterie.sites.attack_findings import Finding
from coterie.sites.settings import SiteSettings

SITE, ROUNDS = "hungary", 20
SITES = [SITE, "cleveland", "long-beach", "switzerland"]
CASES: tuple[Mapping[str, Any], ...] = tuple(
    {"name": name} for name in ("fedavg", "fedprox", "median", "scaffold", "meritfed")
)
MODELS: Mapping[str, Mapping[str, Any]] = {
    "logistic": {"name": "logistic"},
    "MLP of 32": {"name": "mlp", "hidden": [32]},
}
SIGMAS = (0.01, 0.1)
"""Of secret noise behind a bound of 1."""


def measure(
    method: Mapping[str, Any], model: Mapping[str, Any], filters: list[dict[str, Any]]
) -> list[Finding]:
    """Return all that the red team finds with the site's default settings, but for `largest_layer`."""
    tables = preset("heart-disease")
    tables.pop("tune", None)
    tables.pop("split", None)
    local = {"steps": 2, "batch_size": 16, "minimum_batch": 8}
    tables |= {
        "methods": [{**method, "local": local}],
        "model": dict(model),
        "filters": filters,
        "deploy": {"sites": SITES},
    }
    tables["run"] = {"rounds": ROUNDS, "seeds": 1, "metrics": ["auc"]}
    tables["local"] = {**tables.get("local", {}), "minimum_batch": 8}
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.toml"
        plan.write_text(tomli_w.dumps(tables), encoding="utf-8")
        settings = SiteSettings(data=str(FOLDER / f"{SITE}.csv"))
        return list(
            attack(
                Approved.read(plan),
                replace(settings, largest_layer=32),
                SITE,
                seconds=inf,
            )
        )


def in_cells(findings: list[Finding]) -> tuple[str, str]:
    """Return the attack that finds most rows, and the membership that tells most, as cells of the table."""
    rows = max(
        (one for one in findings if one.what == "rows"),
        key=lambda one: (one.rows, one.models),
    )
    members = [one for one in findings if one.what == "members" and one.luck_of]
    told = max(members, key=lambda one: one.found / one.of - one.luck / one.luck_of)
    beside = [
        one for one in findings if one.what in ("columns", "requests") and one.found
    ]
    if beside:
        raise RunError(f"a check of the site is broken: {beside[0]}")
    found = f"{rows.rows} of {rows.of} ({rows.luck}); {rows.requests} requests, {rows.models} of {rows.budget} models"
    return found, f"{told.found / told.of:.0%}, {told.luck / told.luck_of:.0%}"


def table() -> list[list[str]]:
    """Return the rows of the table, the first with the names of its columns."""
    noisy = [f"noise {sigma:g}" for sigma in SIGMAS]
    heads = [
        "method",
        "model",
        "rows found as it is",
        *noisy,
        "members told as it is",
        *noisy,
    ]
    rows = [heads]
    for method in CASES:
        for name, model in MODELS.items():
            exact = METHODS.find(method["name"])().needs_exact_uploads
            pairs = [in_cells(measure(method, model, []))]
            for sigma in SIGMAS:
                noise = {"name": "gaussian-noise", "sigma": sigma, "secret": True}
                filters = [{"name": "clip", "bound": 1.0}, noise]
                pairs.append(
                    ("refused", "refused")
                    if exact
                    else in_cells(measure(method, model, filters))
                )
            cells = [cell for column in zip(*pairs, strict=True) for cell in column]
            rows.append([f"`{method['name']}`", name, *cells])
    return rows


def main() -> None:
    """Write the table."""
    METHODS.importable()
    write_csv(RESULTS / "red_team.csv", table())


if __name__ == "__main__":
    main()
