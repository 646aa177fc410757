"""The two rivals of joining: the client's own linear model, and boosted trees of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_run
import numpy as np
import pytest
from safetensors.numpy import load_file

import coterie as ct
from coterie.cli.main import main
from coterie.compute.boosted import losses_of_classes, losses_of_numbers
from coterie.report.card import card
from coterie.report.evidence import Statement
from coterie.report.results import Results
from coterie.report.verdicts import STRENGTH, fit_yourself, judge, verdict
from coterie.report.words import tell
from coterie.study import rivals

sklearn = pytest.importorskip("sklearn.ensemble")
threadpoolctl = pytest.importorskip("threadpoolctl")  # comes with scikit-learn

ALONE, BETTER = (0.80, 0.78, 0.80, 0.45), (0.90, 0.88, 0.90, 0.42)


def with_trees(folder: Path, boosted: float, noise: float = 0.0002) -> Results:
    truth = {
        m: dict.fromkeys("ab", numbers)
        for m, numbers in {"local": ALONE, "fedavg": BETTER}.items()
    }
    of_trees = dict.fromkeys("ab", boosted)
    return Results.load(fake_run.write(folder, truth, noise=noise, boosted=of_trees))


@pytest.mark.parametrize(
    ("boosted", "kind", "said"),
    [
        (0.50, "join", ""),
        (0.42, "safe to join", "in comparison with boosted trees of your own ."),
        (
            0.38,
            "stay alone",
            "your own boosted trees are better than any model here: .03",
        ),
    ],
)
def test_the_word_is_the_weaker_one(
    tmp_path: Path, boosted: float, kind: str, said: str
) -> None:
    results = with_trees(tmp_path, boosted)
    found = verdict(results, "a")
    assert found.kind == kind
    assert found.gain == pytest.approx(0.03, abs=0.002)  # over the linear model
    assert found.reason.startswith("fedavg lowers the log-loss by about .03")
    assert said in found.reason
    assert ("boosted" in found.reason) == (kind != "join")


def test_every_pair_of_words_gives_the_weaker_one(tmp_path: Path) -> None:
    one = judge(with_trees(tmp_path, 0.5), "a", "fedavg")
    assert one is not None
    for linear in STRENGTH:
        for word in ("join", "probably join", "safe to join", "undecided",
                     "probably stay alone", "stay alone"):  # fmt: skip
            said = Statement(word, 0.9, 0.0, 0.0, 0.0, (0.0, 0.0))
            both = one._replace(linear=linear, boosted=said)
            assert STRENGTH[both.kind] == min(STRENGTH[linear], STRENGTH[word])


def test_what_is_better_at_home_is_said_with_its_settings(tmp_path: Path) -> None:
    results = with_trees(tmp_path / "better", 0.38)
    note = fit_yourself(results, "a")
    assert note.startswith("at a boosted trees that are trained alone are better")
    made = eval(note.rpartition("yourself: sklearn.ensemble.")[2], vars(sklearn))
    assert (made.max_iter, made.early_stopping) == (60, False)
    text = card(results, "a", "fedavg", dict.fromkeys("ab", 100), rounds=60)
    assert note in text
    assert fit_yourself(with_trees(tmp_path / "worse", 0.5), "a") == ""


def test_the_answer_says_with_what_joining_is_compared(tmp_path: Path) -> None:
    caveats = tell(with_trees(tmp_path, 0.5)).caveats
    assert any("and with boosted trees of your own" in text for text in caveats)


@pytest.mark.parametrize("counts", [(30, 30), (60, 0), (20, 20, 20)])
def test_losses_are_those_of_the_trees_that_the_settings_make(
    counts: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    inputs = rng.normal(size=(60, 3)) + labels[:, None]
    tested, tested_labels = rng.normal(size=(9, 3)), np.arange(9) % len(counts)
    losses = losses_of_classes(inputs, labels, tested, tested_labels)
    if 0 in counts:  # one class alone: each class has one row more
        expected = -np.log(np.array([62 / 63, 1 / 63]))[tested_labels]
        assert losses == pytest.approx(expected)
        return
    model = sklearn.HistGradientBoostingClassifier(
        max_iter=60, max_leaf_nodes=8, learning_rate=0.08, min_samples_leaf=10,
        l2_regularization=1.0, early_stopping=False, random_state=5,
    ).fit(inputs, labels)  # fmt: skip
    shares = model.predict_proba(tested)
    assert losses == pytest.approx(-np.log(shares[np.arange(9), tested_labels]))


def test_numbers_are_predicted_by_a_regressor() -> None:
    rng = np.random.default_rng(0)
    inputs, tested = rng.normal(size=(80, 3)), rng.normal(size=(9, 3))
    losses = losses_of_numbers(inputs, inputs[:, 0] * 2, tested, tested[:, 0] * 2)
    assert losses.shape == (9,)
    assert losses.mean() < 1.0


@pytest.mark.parametrize("called", ["fit", "predict", "predict_proba"])
def test_trees_use_one_thread_whatever_the_process_has(
    called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, of_numbers = sklearn.HistGradientBoostingClassifier, called == "predict"
    if of_numbers:
        usual = sklearn.HistGradientBoostingRegressor
    used = []

    def watched(self: Any, *arguments: Any, **named: Any) -> Any:
        pools = threadpoolctl.threadpool_info()
        used.extend(pool["num_threads"] for pool in pools)
        return as_it_is(self, *arguments, **named)

    as_it_is = getattr(usual, called)
    monkeypatch.setattr(usual, called, watched)
    inputs = np.random.default_rng(0).normal(size=(40, 2))
    labels = (inputs[:, 0] > 0).astype(int)
    with threadpoolctl.threadpool_limits(2):
        if of_numbers:
            losses_of_numbers(inputs, inputs[:, 0], inputs, inputs[:, 0])
        else:
            losses_of_classes(inputs, labels, inputs, labels)
    assert used
    assert set(used) == {1}


FIRST_TREES = """
import numpy as np
from threadpoolctl import threadpool_info
from coterie.compute import boosted

fit = boosted._fit

def watched(*arguments):
    fitted = fit(*arguments)
    print({pool["num_threads"] for pool in threadpool_info()})
    return fitted

boosted._fit = watched
inputs = np.linspace(0, 1, 40)[:, None]
boosted.losses_of_numbers(inputs, inputs[:, 0], inputs, inputs[:, 0])
"""


def test_the_first_trees_of_a_process_use_one_thread_too() -> None:
    """scikit-learn, which comes with them, brings threads of its own."""
    several = {**os.environ, "OMP_NUM_THREADS": "3"}
    command = [sys.executable, "-c", FIRST_TREES]
    ended = subprocess.run(
        command, env=several, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["{1}"]


def table(folder: Path, numbers: bool = False) -> dict[str, Any]:
    """Three clients of 40 rows of a table, whose label is a step of the product of two columns: trees find it, lines do not."""
    rng = np.random.default_rng(1)
    (folder / "data").mkdir(parents=True)
    for client in "abc":
        x, z = rng.normal(size=(2, 60))
        y = x * z if numbers else (x * z > 0).astype(int)
        lines = [f"{a:.4f},{b:.4f},{c:.4f}" for a, b, c in zip(x, z, y, strict=True)]
        text = "\n".join(["x,z,y", *lines, ""])
        (folder / "data" / f"{client}.csv").write_text(text)
    return {"folder": str(folder / "data"), "label": "y", "split": {"folds": 3}}


def files(folder: Path) -> dict[str, Any]:
    return {p.name: load_file(p) for p in (folder / "outcomes").iterdir()}


def test_a_run_keeps_losses_of_rows_and_no_trees(tmp_path: Path) -> None:
    data, folder = table(tmp_path), tmp_path / "run"
    run = ct.compare(["local", "fedavg"], data, rounds=3, seeds=1, folder=folder)
    for name, tensors in files(folder).items():
        assert ("boosted_loss" in tensors) == name.startswith("local")
    outcomes = run.results.comparisons.outcomes
    assert outcomes.boosted_with == "local"
    assert outcomes.boosted_loss("a") < run.results.mean("local", "a", "loss")
    assert {verdict(run.results, c).boosted for c in "abc"} <= {*STRENGTH}
    assert "boosted" in tell(run.results).caveats[-1]


def test_trees_are_fitted_in_the_first_repeats_and_compared_on_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals, "BOOSTED_REPEATS", 2)
    data, folder = table(tmp_path), tmp_path / "run"
    results = ct.compare(
        ["local", "fedavg"], data, rounds=1, seeds=3, folder=folder
    ).results
    outcomes = results.comparisons.outcomes
    repeats = outcomes.rows("local", "a")
    assert [rows.boosted is not None for rows in repeats.values()] == [
        True,
        True,
        False,
    ]
    of_two = outcomes.gaps("fedavg", "boosted", "a", "loss", (0, 1))
    assert len(of_two) == 2
    gain = results.comparisons.gain("fedavg", "a", "loss", "boosted")
    assert gain.estimate == pytest.approx(-of_two.mean())
    assert len(outcomes.gaps("fedavg", "local", "a", "loss", (0, 1, 2))) == 3


@pytest.mark.in_turn
def test_the_gain_over_trees_is_a_share_of_the_variance_of_numbers(
    tmp_path: Path,
) -> None:
    data, folder = table(tmp_path, numbers=True), tmp_path / "run"
    results = ct.compare(
        ["local", "fedavg"], data, rounds=3, seeds=1, folder=folder
    ).results
    [rows], [of_fedavg] = (results.comparisons.outcomes.rows(m, "a").values() for m in ("local", "fedavg"))  # fmt: skip
    scale = results.label(0)["scale"]
    gaps = (rows.boosted * scale**2 - of_fedavg.squares) / rows.labels.var()
    gain = results.comparisons.gain("fedavg", "a", "rmse", "boosted")
    assert gain.estimate == pytest.approx(gaps.mean(), rel=1e-4)
    assert gain.error == pytest.approx(gaps.std(ddof=1) / np.sqrt(60), rel=1e-4)


@pytest.mark.in_turn
def test_the_second_rival_can_be_turned_off_and_needs_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = table(tmp_path)
    off = ct.StudySettings(rivals=("linear",))
    folder = tmp_path / "off"
    ct.compare(
        ["local", "fedavg"], data, rounds=1, seeds=1, folder=folder, settings=off
    )
    assert all("boosted_loss" not in tensors for tensors in files(folder).values())
    monkeypatch.setattr(rivals, "can_fit", lambda: False)
    folder = tmp_path / "bare"
    run = ct.compare(["local", "fedavg"], data, rounds=1, seeds=1, folder=folder)
    assert all("boosted_loss" not in tensors for tensors in files(folder).values())
    assert any('pip install "coterie[data]"' in note for note in run.results.notes)
    with pytest.raises(ct.InputError, match="rivals must be"):
        ct.StudySettings(rivals=("boosted",))


def test_another_smallest_effect_needs_no_run(tmp_path: Path, capsys: Any) -> None:
    with_trees(tmp_path, 0.5)
    for smallest, word in (("0.01", "Join: all 2"), ("0.2", "Safe to join")):
        assert main(["report", str(tmp_path), "--no-html", "--smallest", smallest]) == 0
        assert word in capsys.readouterr().out
    assert main(["report", str(tmp_path), "--smallest", "2"]) == 2


@pytest.mark.in_turn
def test_jobs_find_the_trees_imported_once_in_the_process_that_they_share(
    monkeypatch, tmp_path
):
    """As it was: each process of a client's own model took two seconds to import scikit-learn."""
    from coterie.study.jobs import Jobs

    loads, forks = [], []
    fork = Jobs._fork

    def counted(self, *work):
        forks.append(len(loads))
        fork(self, *work)

    monkeypatch.setattr(rivals, "load_trees", lambda: loads.append(1))
    monkeypatch.setattr(Jobs, "_fork", counted)
    flags = (
        "--methods",
        "local,fedavg",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--no-report",
    )
    for name, jobs in (("two", "2"), ("one", "1")):
        out = str(tmp_path / name)
        command = ["compare", "heart-disease", *flags, "--jobs", jobs, "--out", out]
        assert main(command) == 0
    assert loads == [1]  # one after the other they need no preparation
    assert len(forks) > 2
    assert set(forks) == {1}
