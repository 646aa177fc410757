"""What goes wrong with sites, and checkpoints, over FLARE's own transport: one job of its simulator, with sites that do as told."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch

from coterie.data.sets.heart_disease import FOLDER
from deployment import HOSPITALS

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("moods")


@pytest.fixture(scope="module")
def found(folder):
    """What the job has found."""
    import flare_job
    from benchmarks.flare import simulate
    from test_sites import plan_in

    plan = plan_in(folder, flare_job.APPROVED)
    files = {name: FOLDER / f"{name}.csv" for name in HOSPITALS}
    tests = Path(__file__).parents[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(flare_job.FOLDER, str(folder))
        simulate(
            flare_job.Questions(),
            flare_job.AnsweringSites(),
            files,
            folder,
            plan,
            [tests / "engines", tests, tests.parent],
        )
    return pickle.loads((folder / "found").read_bytes())


def test_garbage_is_refused_with_the_name_of_the_site_and_the_others_count(found):
    from test_sites import GARBAGE

    got = dict(found["garbage"])
    clients, failed, clean = got.pop("")
    assert (clients, failed) == (HOSPITALS, {})
    assert set(got) == set(GARBAGE)
    others = [i for i, name in enumerate(HOSPITALS) if name != "hungary"]
    for kind, (clients, failed, delta) in got.items():
        assert clients == tuple(HOSPITALS[i] for i in others), kind
        assert list(failed) == ["hungary"], kind
        assert re.search(GARBAGE[kind][1], failed["hungary"]), (kind, failed)
        assert torch.equal(delta, clean[others]), kind


def test_a_slow_site_is_left_out_until_it_answers_a_ping(found):
    got = found["slow"]
    assert got["first"] == {"switzerland": "no reply within 6 s"}
    assert got["second"] == {
        "switzerland": "it let 6 s pass before, and does not answer now"
    }
    failed, delta = got["last"]
    assert not failed
    assert torch.equal(delta, found["garbage"][""][2])


def test_a_run_goes_on_without_the_site_or_ends_as_the_quorum_says(found):
    got = found["runs"]
    assert list(got["failures"]) == ["hungary"]
    assert "has NaN or Inf" in got["failures"]["hungary"]
    assert re.search("hungary .*has NaN or Inf", got["ended"]["varsel"])
    assert re.search("hungary .*field 'delta' is a str", got["ended"]["all"])


@pytest.mark.in_turn
def test_the_benchmark_measures_asks_and_rounds():
    from benchmarks.engine_work import Work
    from benchmarks.flare import measure

    found = measure(Work({1000: 1}, 3, 1, ("fedavg", "meritfed")))
    assert len(found["asks"]) == 2
    assert found["rounds"].keys() == {"fedavg", "meritfed"}
    assert min(found["start"], *found["asks"], *found["rounds"].values()) > 0
