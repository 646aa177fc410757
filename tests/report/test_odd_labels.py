"""Labels that the answer says a word about: coded backwards at one client, rare, counts, and classes with an order."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coterie.report.answer import answer_lines
from coterie.report.results import Results
from coterie.report.text import number
from coterie.report.words import tell
from coterie.run.experiment import Experiment
from coterie.study.sweep import run_experiment

Label = Callable[[str, np.ndarray, np.random.Generator], np.ndarray]


def results_of(folder: Path, label: Label, rows: int = 120, **data: object) -> Results:
    """A run of two methods on three clients with the label `label(client, score, rng)`."""
    rng = np.random.default_rng(0)
    (folder / "data").mkdir()
    for client in "abc":
        x = rng.normal(size=(rows, 2))
        y = label(client, x[:, 0] + 0.5 * x[:, 1], rng)
        lines = [
            "u,v,y",
            *(f"{a:.3f},{b:.3f},{int(c)}" for (a, b), c in zip(x, y, strict=True)),
        ]
        (folder / "data" / f"{client}.csv").write_text("\n".join(lines) + "\n")
    tables = {
        "data": {"folder": str(folder / "data"), "label": "y", **data},
        "split": {"folds": 3},
        "local": {"steps": 5, "lr": 0.3},
        "methods": [{"name": "local"}, {"name": "fedavg"}],
        "run": {"rounds": 8, "seeds": [0]},
    }
    run_experiment(Experiment.from_tables(tables, "a test"), folder / "run")
    return Results.load(folder / "run")


def answer(results: Results) -> str:
    return " ".join(" ".join(answer_lines(results, width=80)).split())


@pytest.mark.in_turn
def test_a_label_that_is_coded_backwards_at_one_client_is_asked_about(
    tmp_path: Path,
) -> None:
    results = results_of(
        tmp_path, lambda c, z, rng: (z + 0.5 * rng.normal(size=len(z)) > 0) ^ (c == "c")
    )
    assert "fedavg ranks patients the wrong way round at c (AUC ." in answer(results)
    assert "Is the label coded backwards there?" in tell(results).answer[0]
    assert answer(results).count("coded backwards") == 1


@pytest.mark.in_turn
def test_labels_that_mean_the_same_everywhere_are_not_asked_about(
    tmp_path: Path,
) -> None:
    results = results_of(
        tmp_path, lambda c, z, rng: z + 0.5 * rng.normal(size=len(z)) > 0
    )
    assert "wrong way" not in answer(results)
    assert not {"auprc", "class_error", "poisson_deviance"} & {*results.metrics}


@pytest.mark.in_turn
def test_a_rare_outcome_has_its_cases_counted_and_an_area_of_its_own(
    tmp_path: Path,
) -> None:
    least = {"a": 12, "b": 9, "c": 3}
    results = results_of(
        tmp_path,
        lambda c, z, rng: (
            np.argsort(np.argsort(-z - rng.normal(size=len(z)))) < least[c]
        ),
        400,
    )
    assert "auprc" in results.metrics
    text = answer(results)
    assert (
        "Cases: 12 of 400 at a, 9 of 400 at b and 3 of 400 at c. Area under the precision-recall curve"
        in text
    )
    level = float(np.mean([results.comparisons.trivial(c, "loss")[1] for c in "abc"]))
    assert 0.05 < level < 0.15
    margins = [results.comparisons.smallest_at(c, "loss") for c in "abc"]
    assert margins == pytest.approx(
        [0.04 * p * (1 - p) for p in (12.5 / 401, 9.5 / 401, 3.5 / 401)]
    )
    assert f"log-loss of {number(level)}; a change of up to .00035 to .00121 is" in text
    assert "c Too few rows to tell: 400 test rows, 3 of the rarer class" in answer(
        results
    )


@pytest.mark.in_turn
def test_counts_have_a_poisson_deviance_beside_the_rmse(tmp_path: Path) -> None:
    results = results_of(
        tmp_path, lambda c, z, rng: rng.poisson(np.exp(0.5 * z)), task="regression"
    )
    assert {"rmse", "poisson_deviance"} <= {*results.metrics}
    outcome = results.comparisons.outcomes.rows("local", "a")[0]
    assert not results.higher_is_better("poisson_deviance")
    assert (
        0
        < results.mean("local", "a", "poisson_deviance")
        < 2 * float(outcome.labels.mean()) + 2
    )


def test_classes_with_an_order_have_a_mean_class_error(tmp_path: Path) -> None:
    results = results_of(tmp_path, lambda c, z, rng: np.digitize(z, [-0.7, 0.3, 1.0]))
    assert 0 < results.mean("local", "a", "class_error") < 1
    outcome = results.comparisons.outcomes.rows("local", "a")[0]
    error = np.abs(outcome.scores.argmax(axis=1) - outcome.labels).mean()
    assert np.isclose(results.mean("local", "a", "class_error"), error, atol=0.02)
