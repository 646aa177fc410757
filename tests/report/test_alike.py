"""With whom: what partial pooling tells of how a client stands to the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import fake_run
import numpy as np
import pytest
from scipy.stats import chi2

import coterie as ct
from coterie.base.files import write_tensors
from coterie.report.alike import likeness, with_whom
from coterie.report.results import Results
from coterie.report.verdicts import verdict
from coterie.report.words import tell

torch = pytest.importorskip("torch")

NUMBERS = (0.8, 0.78, 0.8, 0.45)
CLIENTS = "abcd"
SHARES = {c: tuple(0.7 if c == k else 0.1 for k in CLIENTS) for c in CLIENTS}


def pooled(
    folder: Path, u: Mapping[str, float], distance: float, slope: float = 0.0
) -> Results:
    """Four clients of which `d` has another second slope and these distances to the others; `u` are weights of the clients."""
    truth = {m: dict.fromkeys(CLIENTS, NUMBERS) for m in ("local", "fedavg", "partial")}
    fake_run.write(folder, truth, noise=0.0002, weights={"partial": SHARES})
    with (folder / "history.csv").open("a") as file:
        for seed in range(5):
            for client, weight in u.items():
                file.write(f"partial,{seed},,1,{client},,u,1.0\n")
                file.write(f"partial,{seed},,2,{client},,u,{weight}\n")
    own = torch.zeros(4, 4, dtype=torch.float64)
    own[3, 1] = slope
    apart = torch.zeros(4, 4, dtype=torch.float64)
    apart[3, :3] = apart[:3, 3] = distance
    tensors = {
        "distance": apart,
        "degrees": torch.full((4, 4), 3),
        "own": own,
        "own_variance": torch.full((4, 4), 0.5, dtype=torch.float64),
        "mu": torch.zeros(3, dtype=torch.float64),
    }
    about = {"clients": [*CLIENTS]}
    write_tensors(folder / "models" / "prior" / "partial-0.safetensors", tensors, about)
    recipe = {"0": {"features": ["age", "chol", "sex"], "label": {"column": "num"}}}
    (folder / "preprocess.json").write_text(json.dumps(recipe))
    return Results.load(folder)


def test_a_client_is_told_what_is_its_own_and_never_to_leave_somebody(
    tmp_path: Path,
) -> None:
    results = pooled(tmp_path, dict.fromkeys(CLIENTS, 1.0), distance=0.0)
    found = likeness(results, "partial", "a")
    assert found.own == pytest.approx(0.7, abs=0.01)
    assert (found.is_apart, found.differs, found.is_tested) == (False, (), True)
    said = with_whom(results, "partial", "a")
    assert said == (
        "70 % of your model is your own; nothing shows that you differ from the others"
    )
    assert verdict(results, "a").partners == ()
    story = tell(results)
    assert any(said in line for line in story.clients[0].numbers)
    assert "group" not in " ".join(story.answer)
    assert likeness(results, "fedavg", "a") is None
    assert with_whom(results, "fedavg", "a") == ""


def test_a_client_is_set_apart_by_most_of_the_models(tmp_path: Path) -> None:
    results = pooled(tmp_path, {**dict.fromkeys("abc", 1.0), "d": 0.1}, distance=0.0)
    assert [likeness(results, "partial", c).is_apart for c in CLIENTS] == [
        False, False, False, True,
    ]  # fmt: skip
    assert "the others hardly use your rows" in with_whom(results, "partial", "d")


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_differences_are_shown_by_a_chi_square_over_all_pairs(
    tmp_path: Path, factor: float
) -> None:
    limit = chi2.isf(0.05 / 6, 3)
    weights = dict.fromkeys(CLIENTS, 1.0)
    results = pooled(tmp_path, weights, factor * limit, slope=4.0)
    shown = with_whom(results, "partial", "a")
    assert ("shown to differ from d (in chol)" in shown) == (factor > 1)
    assert len(likeness(results, "partial", "d").differs) == (3 if factor > 1 else 0)
    assert np.isfinite(likeness(results, "partial", "b").own)


def test_without_own_models_no_difference_is_spoken_of(tmp_path: Path) -> None:
    results = pooled(tmp_path, dict.fromkeys(CLIENTS, 1.0), distance=0.0)
    (tmp_path / "models" / "prior" / "partial-0.safetensors").unlink()
    assert with_whom(results, "partial", "a") == "70 % of your model is your own"


def test_what_a_run_writes_is_what_the_report_reads(tmp_path: Path) -> None:
    """The hospitals lack columns at some sites, and Switzerland has one with a single value."""
    methods = ["local", "partial"]
    ct.compare(methods, "heart-disease", rounds=2, seeds=1, folder=tmp_path / "run")
    results = Results.load(tmp_path / "run")
    for client in results.clients:
        found = likeness(results, "partial", client)
        assert found is not None
        assert found.is_tested
        assert 0 < found.own <= 1
        assert {name for name, _ in found.differs} <= {*results.clients} - {client}
