"""How many rows the red team finds at one hospital, for methods, models and noise: the table of docs/trust.md (`make attacks`)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

import coterie.compute.metrics  # noqa: F401 - it registers its tasks
from benchmarks.pages import between
from coterie.config.registry import METHODS
from coterie.data.sets.heart_disease import FOLDER
from coterie.run.tables import preset
from coterie.sites.approval import Approved
from coterie.sites.attack import Found, attack
from coterie.sites.settings import SiteSettings

__all__ = ["main", "measure", "table"]

SITE, ROUNDS = "hungary", 20
SITES = [SITE, "cleveland", "long-beach", "switzerland"]
CASES: tuple[Mapping[str, Any], ...] = tuple(
    {"name": name} for name in ("fedavg", "fedprox", "median", "scaffold", "meritfed")
)
MODELS: Mapping[str, Mapping[str, Any]] = {
    "logistic": {"name": "logistic"},
    "MLP of 32": {"name": "mlp", "hidden": [32]},
}
NOISE = [{"name": "clip", "bound": 1.0}, {"name": "gaussian-noise", "sigma": 0.1, "secret": True}]
PAGE = Path(__file__).parents[1] / "docs" / "trust.md"


def measure(method: Mapping[str, Any], model: Mapping[str, Any], filters: list[dict[str, Any]]) -> Found:
    """Return the worst that the red team finds with the site's default settings, but for `largest_layer`."""
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
        every = attack(Approved.read(plan), replace(settings, largest_layer=32), SITE)
        return max(every, key=lambda found: (found.rows, found.requests))


def table() -> str:
    """Return the table of the page."""
    lines = ["| method | model | as it is | with `clip` (1) and secret noise (.1) |", "| --- | --- | --- | --- |"]
    for method in CASES:
        for name, model in MODELS.items():
            cells = []
            for filters in ([], NOISE):
                exact = bool(filters) and METHODS.find(method["name"])().needs_exact_uploads
                found = None if exact else measure(method, model, filters)
                cells.append("refused" if found is None else f"{found.rows} of {found.of} in {found.requests}")
            lines.append(f"| `{method['name']}` | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table into docs/trust.md."""
    METHODS.importable()
    between(PAGE, table(), "red team")


if __name__ == "__main__":
    main()
