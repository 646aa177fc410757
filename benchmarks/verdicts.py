"""How often does the rule of verdicts err, and what does it find? Simulated clients whose true difference is known.

A patient has a true log-odds. A method sees it with an error of its own that stays over seeds (what it learned wrongly), one of
each seed (training), and a shift of its calibration in each seed. All methods have the same distribution of errors, except that
under an effect one of them has less. Writes benchmarks/results/verdicts.json and the table of docs/statistics.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import between
from coterie.base.files import write_atomically
from coterie.compute.outcomes import Influence, auc_influence, mean_influence, row_error
from coterie.report.statistics import Difference, judge, paired

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "verdicts.json"
METHODS = 3
STAYS, SEED, SHIFT = 1.2, 0.4, 0.2
SMALLEST = {"auc": 0.01, "loss": 0.01}


class Setting(NamedTuple):
    """Test rows and seeds of a client, and by how much the first method's AUC is truly better."""

    rows: int
    seeds: int
    effect: float = 0.0


NOTHING = tuple(Setting(rows, seeds) for rows in (50, 100, 300) for seeds in (3, 5, 20))
SETTINGS = (*NOTHING, *(Setting(rows, seeds, 0.05) for rows, seeds in ((100, 5), (100, 20), (300, 5), (300, 20))))


def truth(noise: float, patients: int = 100_000) -> float:
    """The AUC of a method whose lasting error has this standard deviation, over very many patients."""
    rng = np.random.default_rng(0)
    odds, labels = _patients(rng, patients)
    return _auc(odds + rng.normal(0, np.hypot(noise, SEED), patients), labels)


def noise_for(effect: float) -> float:
    """The standard deviation of the lasting error that raises the AUC by `effect`."""
    low, high = 0.0, STAYS
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if truth(middle) - truth(STAYS) > effect else (low, middle)
    return (low + high) / 2


def client(setting: Setting, noise: float, rng: np.random.Generator) -> dict[tuple[int, str], Difference]:
    """The judged comparisons of one simulated client, whose first method has a lasting error of this standard deviation."""
    patients = 3 * setting.rows
    odds, labels = _patients(rng, patients)
    lasting = [STAYS, noise, *[STAYS] * (METHODS - 1)]  # the first is training alone
    seen = [odds + rng.normal(0, s, patients) for s in lasting]
    values: dict[tuple[int, str], list[float]] = {}
    influences: dict[tuple[int, str], list[Influence]] = {}
    for _ in range(setting.seeds):
        at = np.sort(rng.permutation(patients)[: setting.rows])
        for method, base in enumerate(seen):
            scores = base[at] + rng.normal(0, SEED, len(at)) + rng.normal(0, SHIFT)
            loss = np.logaddexp(0, np.where(labels[at] == 1, -scores, scores))
            values.setdefault((method, "loss"), []).append(float(loss.mean()))
            values.setdefault((method, "auc"), []).append(_auc(scores, labels[at]))
            influences.setdefault((method, "loss"), []).append(mean_influence(at, loss))
            influence = auc_influence(at, scores, labels[at])
            influences.setdefault((method, "auc"), []).extend([influence] if influence is not None else [])
    family = {}
    for method in range(1, METHODS + 1):
        for metric in SMALLEST:
            mine, alone = (method, metric), (0, metric)
            error = row_error(influences[mine], influences[alone])
            found = paired(values[mine], values[alone], 0.5, error, higher_is_better=metric == "auc")
            if found is not None:
                family[mine] = found
    return judge(family, {key: SMALLEST[key[1]] for key in family})


def measure(setting: Setting, clients: int) -> dict[str, Any]:
    """Shares of clients for which the rule says what."""
    noise = noise_for(setting.effect) if setting.effect else STAYS
    false = clear = found = 0
    widths, gains = [], []
    for number in range(clients):
        rng = np.random.default_rng([setting.rows, setting.seeds, round(1000 * setting.effect), number])
        judged = client(setting, noise, rng)
        wrong = [
            d for (m, _), d in judged.items() if d.strength == "clear" and not (setting.effect and m == 1 and d.better)
        ]
        false += bool(wrong)
        first = judged[1, "auc"]
        clear += first.strength == "clear" and first.better
        found += first.sign > 0
        widths.append(first.half_width or 0.0)
        gains.append(first.mean)
    return {
        **setting._asdict(),
        "clients": clients,
        "false_clear": false / clients,
        "clear": clear / clients,
        "likely_or_clear": found / clients,
        "computed": power(setting.effect, float(np.mean(widths)), float(np.std(gains))) if setting.effect else None,
        "half_width": float(np.mean(widths)),
    }


def power(effect: float, half_width: float, spread: float) -> float:
    """The chance that a difference around `effect`, spread as normal, lies above the half width of its interval."""
    from scipy.stats import norm

    return float(norm.sf((half_width - effect) / spread))


def table(rows: list[Mapping[str, Any]]) -> str:
    """The table of docs/statistics.md."""
    lines = [
        "| test rows | seeds | true gain in AUC | false clear | clear | power | computed | half width |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        gain = f"{row['effect']:.2f}" if row["effect"] else "none"
        shares = [
            _percent(row[k]) if row["effect"] or k == "false_clear" else ""
            for k in ("false_clear", "clear", "likely_or_clear")
        ]
        computed = "" if row["computed"] is None else _percent(row["computed"])
        cells = (str(row["rows"]), str(row["seeds"]), gain, *shares, computed, f"{row['half_width']:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"{rows[0]['clients']} clients for each row."])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _patients(rng: np.random.Generator, count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    odds = rng.normal(-0.4, 1.5, count)
    return odds, (rng.random(count) < 1 / (1 + np.exp(-odds))).astype(np.int64)


def _auc(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    ones = int(labels.sum())
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones)))


def main(clients: int = 400) -> int:
    """Measure every setting and write the results."""
    rows = []
    for setting in SETTINGS:
        rows.append(measure(setting, clients))
        print(rows[-1], flush=True)
    write_atomically(RESULTS, lambda p: p.write_text(json.dumps(rows, indent=1) + "\n"))
    between(ROOT / "docs" / "statistics.md", table(rows), "verdicts")
    return 0 if all(row["false_clear"] <= 0.05 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
