"""Experiments parse, and the page of the papers' claims says what its numbers say."""

import importlib.util
import sys
from pathlib import Path

import pytest

from coterie.run.tables import read_experiment

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "experiments").glob("*.toml")) + sorted((ROOT / "experiments" / "paper").glob("*.toml"))


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def papers():
    spec = importlib.util.spec_from_file_location("experiments_papers", ROOT / "experiments" / "papers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "experiments")))
def test_each_experiment_parses(path):
    found = read_experiment(path)
    assert found.methods
    assert found.run.seeds


def test_each_laptop_experiment_is_run(papers):
    assert {p.stem for p in FILES if p.parent.name != "paper"} == set(papers.STUDIES)


def document(values, seeds=4):
    return {
        "rounds": 3, "seeds": list(range(seeds)), "n_train": 80, "n_test": 20, "seconds": {"one": 1.5}, "measured": "2026-01-01",
        "versions": {}, "values": values,
    }  # fmt: skip


def judged(papers, a, b, **settings):
    documents = {"e": document({"q": {"one": a, "two": b}}, len(a))}
    return papers.judge(papers.Claim("t", ("e", "q", "one"), ("e", "q", "two"), **settings), documents)


HIGH, LOW, WIDE = [0.90, 0.91, 0.92, 0.90], [0.80, 0.80, 0.83, 0.79], [0.70, 0.95, 0.60, 0.99]


def test_test_rows_of_their_own_leave_the_interval_as_it_is(papers):
    claim = papers.Claim("t", ("e", "q", "one"), ("e", "q", "two"))
    one, two = [0.90, 0.91, 0.95, 0.90], [0.88, 0.80, 0.84, 0.85]
    shared = {"e": {**document({"q": {"one": one, "two": two}}), "n_test": 4000}}
    assert papers.judge(claim, shared).word == "not confirmed"
    apart = {"e": {**shared["e"], "own_test_rows": False}}
    assert papers.judge(claim, apart).word == "confirmed"


def test_a_clear_difference_confirms_or_not_by_its_sign(papers):
    assert judged(papers, HIGH, LOW).word == "confirmed"
    assert judged(papers, HIGH, LOW, higher=False).word == "not confirmed"
    assert judged(papers, LOW, HIGH, higher=False).word == "confirmed"
    other = judged(papers, LOW, HIGH, paper=0.2)
    assert other.word == "not confirmed"
    assert "opposite" in other.numbers


def test_no_clear_difference_is_untestable_only_if_the_papers_own_could_hide_in_it(papers):
    assert judged(papers, WIDE, LOW, paper=0.1).word == "not testable at this scale"
    assert judged(papers, WIDE, LOW, paper=0.9).word == "not confirmed"
    assert judged(papers, WIDE, LOW).word == "not confirmed"


def test_a_margin_is_what_may_be_lost(papers):
    near = [v - 0.03 + wobble for v, wobble in zip(HIGH, (0.002, -0.001, 0.001, 0.0), strict=True)]
    assert judged(papers, near, HIGH).word == "not confirmed"
    assert judged(papers, near, HIGH, margin=0.05).word == "confirmed"
    assert judged(papers, near, HIGH, margin=0.02).word == "not confirmed"
    more = [v + 0.06 for v in near]
    assert judged(papers, more, HIGH, margin=0.05, higher=False).word == "confirmed"


def test_one_seed_or_one_measurement_repeated_tests_nothing(papers):
    assert judged(papers, [0.9], [0.1]).word == "not testable at this scale"
    assert judged(papers, [0.9, 0.9, 0.9], [0.1, 0.1, 0.1]).word == "not testable at this scale"


def test_seeds_are_paired_by_their_number(papers):
    documents = {"e": document({"q": {"one": HIGH}}), "f": document({"q": {"one": LOW[:3]}}, 3)}
    found = papers.judge(papers.Claim("t", ("e", "q", "one"), ("f", "q", "one")), documents)
    assert "over 3 seeds" in found.numbers


def test_a_number_may_stand_on_the_other_side(papers):
    documents = {"e": document({"q": {"one": HIGH}})}
    found = papers.judge(papers.Claim("t", ("e", "q", "one"), 0.5), documents)
    assert found.word == "confirmed"
    assert "against 0.5 over" in found.numbers


def test_what_was_not_run_has_no_verdict(papers):
    claim = papers.Claim("t", ("e", "q", "one"), ("e", "q", "two"))
    assert papers.judge(claim, {}) is None
    assert papers.judge(claim, {"e": document({"q": {"one": HIGH}})}) is None


def test_toy_and_mean_estimation(papers):
    row = {"gamma_G^2": 0, "maxfl": 0.6, "paper_maxfl": 0.605, "average": 0.5, "paper_average": 0.6}
    row |= {"lower_bound_maxfl": 0.02, "upper_bound_average": 0.4}
    words = [v.word for _, v in papers.toy_claims({"rows": [row], "runs": 10})]
    assert words == ["confirmed", "not confirmed", "confirmed", "not confirmed"]
    runs = [
        {"method": m, "mu": 0.01, "seed": s, "plateau": p + 0.01 * s**2}
        for m, p in (("MeritFed", 0.1), ("SGD Full", 0.5), ("SGD Ideal", 0.05))
        for s in range(3)
    ]
    runs[3]["plateau"] = 0.6
    words = [v.word for _, v in papers.mean_claims({"runs": runs})]
    assert words == ["confirmed", "not confirmed"]


def test_page_from_tiny_documents(papers, tmp_path):
    page = tmp_path / "results.md"
    page.write_text(f"before\n{papers.BEGIN}\nold\n{papers.END}\nafter\n")
    name = "varsel-fashion-mnist"
    values = {"accuracy of the internal clients": {"varsel-paper": HIGH, "fedavg": LOW}, "||x||": {"fedavg": LOW}}
    papers.write_page(page, papers.build({name: document(values)}, None, None))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "than FedAvg: **confirmed** (0.907 ± 0.010 against 0.805 ± 0.017 over 4 seeds" in text
    assert "\\|\\|x\\|\\|" in text
    assert "No result yet" in text  # of the other experiments
    papers.write_page(page, papers.build({name: document(values)}, None, None))
    assert page.read_text() == text


def test_documentation_has_a_place_for_the_page(papers):
    text = (ROOT / "docs" / "results.md").read_text()
    assert text.index("<!-- /results -->") < text.index(papers.BEGIN) < text.index(papers.END)
