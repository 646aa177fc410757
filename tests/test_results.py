"""Experiments parse, the page of results says what its files say, and verdicts follow from the numbers."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.base.errors import InputError
from coterie.base.files import read_toml
from coterie.run.loop import _Loop
from coterie.run.tables import read_experiment

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "experiments").glob("*.toml")) + sorted((ROOT / "experiments" / "paper").glob("*.toml"))


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "path", [str(ROOT), *sys.path])
    from experiments import maxfl_landscape, membranes, running, shakespeare
    from experiments.documents import Document, Row, read, read_json, write
    from experiments.maxfl_toy import MONTE_CARLO
    from experiments.measures import MEASURES, SHARED
    from experiments.page import build, isfl, maxfl
    from experiments.page.claims import Claim, Place, judge
    from experiments.page.drawn import BySeed, Figure, HeatMap, Points, per_method
    from experiments.page.figures import svg
    from experiments.page.sections import Advice, Section, Study, advised

STUDIES = [study for section in build.SECTIONS for study in section.studies]
CLAIMS = [claim for study in STUDIES for claim in study.claims]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "experiments")))
def test_each_experiment_parses(path):
    experiment = read_experiment(path)
    assert experiment.methods
    assert experiment.run.seeds


def test_each_laptop_experiment_stands_on_the_page():
    assert {p.stem for p in FILES if p.parent.name != "paper"} == {s.name for s in STUDIES} - set(build.OTHERS)


def test_the_page_is_written_from_the_files_byte_by_byte():
    for path, text in build.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run `make results`"


def test_no_figure_is_left_over_from_other_files():
    drawn = {path for path in build.pages() if path.suffix == ".svg"}
    assert set((ROOT / "docs" / "images" / "results").glob("*.svg")) == drawn


def test_a_figure_has_a_named_curve_per_method_and_says_where_they_end():
    rows = [
        Row(method, seed, "s", "c", 8, 2, {"q": 0.5}, {"acc": [[0, 5, 10], [0.0, 0.1, value + 0.02 * seed]]})
        for method, value in (("one", 0.6), ("two", 0.3))
        for seed in (0, 1)
    ]
    known = {"e": Document("e", 3, (), rows)}
    names = {"one": "First & best", "two": "Second", "none": "Nobody"}
    study = Study(
        "e",
        "Part",
        "",
        figures=[Figure("accuracy", per_method("acc", names)), Figure("nothing", per_method("lost", names))],
    )
    section = Section("S", [], [], [study])
    ((path, drawn),) = build.drawings(known, [section]).items()
    assert drawn.count("<polygon") == 2
    assert ">0<" not in drawn  # what is seen before the first round
    assert "First &amp; best" in drawn
    assert f"![accuracy over rounds; in round 10: First & best 0.610, Second 0.310]({path})" in build.page(
        known, [section]
    )
    assert svg("t", "x", "y", []) == ""


def test_a_figure_has_the_ceiling_as_a_level_line_and_may_be_logarithmic():
    curve = {"acc": [[0, 5, 10], [0.1, 0.01, 0.001]]}
    known = {
        "e": Document("e", 3, (), [Row("one", 0, "s", "c", 8, 2, {"q": 0.5}, curve)]),
        "best": Document(
            "best", 3, (), [Row("all", seed, "s", "c", 8, 2, {"q": q}) for seed, q in ((0, 0.3), (1, 0.5))]
        ),
    }
    levels = {Place("best", "q", "all"): "perfect help", Place("none", "q", "all"): "not run"}
    figure = Figure("accuracy", per_method("acc", {"one": "One"}), levels=levels, log=True)
    assert figure.told(known["e"], known) == "accuracy over rounds; in round 10: One 0.001, perfect help 0.400"
    drawn = figure.drawn(known["e"], known, "Part")
    assert [f">{tick}<" in drawn for tick in ("0.001", "0.01", "0.1", "perfect help", "not run")] == [True] * 4 + [
        False
    ]
    assert Figure("nothing", per_method("lost", {"one": "One"}), levels=levels).drawn(known["e"], known, "Part") == ""


def test_points_and_bars_say_what_they_show():
    known = {
        name: Document(name, 3, (), [Row(m, s, "s", "c", 8, 2, {"q": v + 0.1 * s}) for m, v in values.items() for s in (0, 1)])
        for name, values in {"e": {"one": 0.2, "two": 0.3}, "f": {"one": 0.4, "two": 0.1}}.items()
    }  # fmt: skip
    places = {0.0: Place("e", "q", "one"), 0.1: Place("f", "q", "one"), 0.2: Place("none", "q", "one")}
    points = Points("q", "share", {"One": places, "Nobody": {0.0: Place("none", "q", "one")}})
    assert points.told(known["e"], known) == "q over share; at the right end: One 0.450"
    assert points.drawn(known["e"], known, "Part").count("<polygon") == 1
    bars = BySeed("q", {"one": "One", "two": "Two"}, ("First", "Second", "Not run"))
    assert bars.told(known["e"], known) == "q by 2 plays; the highest: Two in 2"
    drawn = bars.drawn(known["e"], known, "Part")
    assert [word in drawn for word in (">First<", ">.400<", ">One<", "Not run")] == [True, True, True, False]
    assert BySeed("lost", {"one": "One"}, ("First",)).drawn(known["e"], known, "Part") == ""


def test_a_heat_map_shows_the_weight_of_each_client_in_each_round():
    curves = {f"weight, client {name}": [[10, 20], [0.5, weight]] for name, weight in (("a&b", 0.9), ("c", 0.1))}
    rows = [Row("one", seed, "s", "c", 8, 2, {"q": 0.5}, curves if seed == 0 else {}) for seed in (0, 1)]
    study = Study(
        "e", "Part", "", figures=[HeatMap("one", "One"), HeatMap("two", "Two"), HeatMap("one", "One", seed=1)]
    )
    section, known = Section("S", [], [], [study]), {"e": Document("e", 3, (), rows)}
    ((path, drawn),) = build.drawings(known, [section]).items()
    assert [f">{cell}<" in drawn for cell in ("a&amp;b", "0.90", "0.10", "20")] == [True] * 4
    assert drawn.index("a&amp;b") < drawn.index("0.90") < drawn.index(">c<") < drawn.index("0.10")
    assert f"seed 0; the largest at the end: a&b 0.900, c 0.100]({path})" in build.page(known, [section])


def test_no_number_of_a_paper_stands_without_its_figure_or_table():
    assert all(re.search(r"Fig|Table|Appendix|Theorem", c.where) for c in CLAIMS if c.where != "ours")
    lines = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    said = [line for line in lines if re.search(r"\bprints [+-]|\bthe paper: [+-]?\d", line)]
    assert said
    assert all(re.search(r"(Table|Fig\.) [\dIVX]+ prints [+-]", line) for line in said)
    with pytest.raises(ValueError, match="figure or table"):
        Claim("k", "t", Place("e", "q", "one"), printed=0.1)
    with pytest.raises(ValueError, match="figure or table"):
        Claim("k", "t", Place("e", "q", "one"), where="Claims")


def test_the_toy_agrees_with_an_independent_monte_carlo():
    rows = read_json(ROOT / "experiments" / "results" / "maxfl_toy.json")["rows"]
    assert all(abs(row[m] - MONTE_CARLO[m][row["gamma_G^2"]]) < 0.01 for row in rows for m in MONTE_CARLO)


def test_the_landscape_agrees_with_the_threshold_and_the_optimum_with_a_grid():
    # The midpoint is a minimum below 1.044, where g^2 tanh(g^2 / 2) = 1/2; just below it there are two more.
    for squared, minima in ((1.02, 1), (1.04, 3), (1.05, 2)):
        assert maxfl_landscape.two_clients(squared)["minima"] == minima
    means = torch.tensor([[0.0, 0.3], [0.2, 4.0], [6.0, 9.0]], dtype=torch.float64)
    grid = torch.linspace(-1, 10, 200_001, dtype=torch.float64)
    values = torch.sigmoid((grid - means[..., None]).square()).mean(0)
    torch.testing.assert_close(maxfl_landscape.optimum(means), grid[values.argmin(1)], atol=1e-4, rtol=0)


def document(values, n_test=20, shared=(), name="e"):
    """Rows of one experiment from {quantity: {method: numbers by seed}}."""
    methods = dict.fromkeys(m for by_method in values.values() for m in by_method)
    rows = [
        Row(m, seed, "s", "c", 80, n_test, {q: by[m][seed] for q, by in values.items() if seed < len(by.get(m, ()))})
        for m in methods
        for seed in range(max(len(by.get(m, ())) for by in values.values()))
    ]
    return Document(name, 3, shared, rows)


ONE, TWO = Place("e", "q", "one"), Place("e", "q", "two")
HIGH, LOW, WIDE = [0.90, 0.91, 0.92, 0.90], [0.80, 0.80, 0.83, 0.79], [0.70, 0.95, 0.60, 0.99]


def judged(a, b, best=None, **settings):
    values = {"q": {"one": a, "two": b, **({"best": best} if best else {})}}
    return judge(Claim("k", "t", ONE, TWO, **settings), {"e": document(values)})


def test_a_clear_difference_is_confirmed_or_opposite_by_its_sign():
    assert judged(HIGH, LOW).word == "confirmed"
    assert judged(HIGH, LOW, direction="lower").word == "opposite"
    assert judged(LOW, HIGH, direction="lower").word == "confirmed"
    assert judged(LOW, HIGH, where="Table 1", printed=0.2).word == "opposite"


def test_what_is_not_clear_says_whether_the_papers_effect_is_possible():
    assert "which the interval holds" in judged(WIDE, LOW, where="Table 1", printed=0.1).sentence
    outside = judged(WIDE, LOW, where="Table 1", printed=0.9)
    assert outside.word == "not clear"
    assert "which lies outside of it" in outside.sentence


def test_where_perfect_help_is_worth_less_than_the_paper_reports_nothing_can_be_shown():
    ceiling = Place("e", "q", "best")
    little, much = [v + 0.006 for v in LOW], [v + 0.2 for v in LOW]
    settings = {"where": "Table 2", "printed": 0.04, "ceiling": ceiling}
    assert judged(WIDE, LOW, best=little, **settings).word == "cannot show here"
    assert "would give +0.006" in judged(WIDE, LOW, best=little, **settings).sentence
    assert judged(WIDE, LOW, best=much, **settings).word == "not clear"
    assert judged(HIGH, LOW, best=little, **settings).word == "confirmed"
    assert "would give +0.195" in judged(WIDE, LOW, ceiling=1.0).sentence


def test_a_claim_tells_what_an_independent_computation_gives():
    def documents(second):
        return {"e": document({"q": {"one": HIGH, "two": LOW}}), "independent/e": document({"q": second})}

    claim = Claim("k", "t", ONE, TWO)
    agreeing = judge(claim, documents({"one": [v - 0.01 for v in HIGH], "two": LOW}))
    assert "An independent computation gives +0.0925 [" in agreeing.sentence
    assert "over 4 seeds, which agrees." in agreeing.sentence
    differing = judge(claim, documents({"one": LOW, "two": HIGH}))
    assert "which differs." in differing.sentence
    assert differing.word == agreeing.word == "confirmed"
    alone = documents({"one": HIGH})
    assert "independent" not in judge(claim, alone).sentence
    assert "second time" not in judge(claim, alone).sentence
    unclear = judge(replace(claim, a=TWO, b=ONE), alone)
    assert unclear.word == "opposite"
    assert unclear.sentence.endswith("It was not computed a second time.")


def test_seeds_that_agree_in_every_digit_have_an_interval_without_width():
    same = judged(HIGH, HIGH, direction="alike", margin=0.01)
    assert same.word == "confirmed"
    assert same.effect == "+0 [+0, +0]"
    assert judged(HIGH, HIGH).word == "not clear"
    alone = judged(HIGH[:1], HIGH[:1], direction="alike", margin=0.01)
    assert alone.word == "not clear"
    assert "One measurement has no interval." in alone.sentence


def test_a_margin_is_what_may_be_lost_and_both_sides_of_as_good():
    near = [v - 0.03 + wobble for v, wobble in zip(HIGH, (0.002, -0.001, 0.001, 0.0), strict=True)]
    assert judged(near, HIGH).word == "opposite"
    assert judged(near, HIGH, margin=0.05).word == "confirmed"
    assert judged(near, HIGH, margin=0.02).word == "opposite"
    assert judged(near, HIGH, direction="alike", margin=0.05).word == "confirmed"
    assert judged(near, HIGH, direction="alike", margin=0.02).word == "opposite"
    assert judged([v + 0.06 for v in near], HIGH, direction="alike", margin=0.02).word == "opposite"
    assert judged(WIDE, HIGH, direction="alike", margin=0.05).word == "not clear"


def test_numbers_of_different_size_are_compared_as_factors():
    small, twelve = [0.1, 0.2, 0.1, 0.4], [1.2, 2.3, 1.2, 4.9]
    assert judged(twelve, small, ratio=True, margin=2.0).word == "confirmed"
    assert judged(twelve, small, ratio=True, margin=2.0).effect.startswith("12 times [")
    assert judged(small, [v * 1.1 for v in small[:-1]] + [0.45], ratio=True, margin=2.0).word == "opposite"
    assert judged(small, twelve, direction="alike", ratio=True, margin=2.0).word == "opposite"
    assert judged(small, [0.11, 0.19, 0.11, 0.39], direction="alike", ratio=True, margin=2.0).word == "confirmed"


def test_only_quantities_on_the_clients_own_test_rows_get_wider_intervals():
    one, two = [0.90, 0.91, 0.95, 0.90], [0.88, 0.80, 0.84, 0.85]
    claim = Claim("k", "t", ONE, TWO)
    values = {"q": {"one": one, "two": two}}
    assert judge(claim, {"e": document(values, n_test=4000, shared=("q",))}).word == "not clear"
    assert judge(claim, {"e": document(values, n_test=4000, shared=("other",))}).word == "confirmed"


def test_one_seed_or_one_measurement_repeated_has_no_interval():
    for single in (judged([0.9], [0.1]), judged([0.9, 0.9, 0.9], [0.1, 0.1, 0.1])):
        assert (single.word, single.has_interval) == ("not clear", False)
    drawn = judge(
        Claim("k", "t", ONE, TWO, error=0.01), {"e": document({"q": {"one": [0.9, 0.12], "two": [0.1, 0.1]}})}
    )
    assert (drawn.word, drawn.over, drawn.effect) == ("confirmed", "2 distances", "+0.02 [+0.0004, +0.0396]")


def test_a_run_needs_the_rounds_until_it_has_fedavgs_last_accuracy():
    curves = {"fedavg": [0.1, 0.52, 0.5], "isfl": [0.1, 0.5, 0.4], "moon": [0.1, 0.2, 0.49994]}
    rows = [
        Row(m, 0, "s", "c", 8, 2, {isfl.STANDARD: values[-1]}, {isfl.STANDARD: [[0, 1, 2], values]})
        for m, values in curves.items()
    ]
    document = Document("e", 2, (), rows)
    assert isfl.looked(document) == {0, 1, 2}
    rounds = isfl.with_rounds(document, {0, 1, 2})
    assert {m: rounds.by_seed(isfl.ROUNDS, m)[0] for m in curves} == {"fedavg": 1, "isfl": 1, "moon": 3}
    assert isfl.with_rounds(document, {0, 2}).by_seed(isfl.ROUNDS, "fedavg") == {0: 2}
    assert rounds.by_seed(isfl.STANDARD, "isfl") == {0: 0.4}


def test_seeds_are_paired_by_their_number_and_counted():
    documents = {"e": document({"q": {"one": HIGH}}), "f": document({"q": {"one": [*LOW[:2], 0.99]}}, name="f")}
    verdict = judge(Claim("k", "t", ONE, ONE._replace(experiment="f"), every_seed=True), documents)
    assert verdict.over == "3 seeds"
    assert "higher in 2 of 3 seeds" in verdict.sentence
    assert judge(Claim("k", "t", ONE, 0.5), documents).word == "confirmed"


def test_what_was_not_run_has_no_word_and_what_cannot_be_run_has_a_reason():
    assert judge(Claim("k", "t", ONE, TWO), {}).word == ""
    assert judge(Claim("k", "t", ONE, TWO), {"e": document({"q": {"one": HIGH}})}).word == ""
    verdict = judge(Claim("k", "t", missing="No package brings the data."), {})
    assert (verdict.word, verdict.sentence) == ("cannot show here", "No package brings the data.")
    dear = Claim("k", "t", ONE, TWO, missing="A run takes an hour.")
    assert judge(dear, {}).word == "cannot show here"
    assert judge(dear, {"e": document({"q": {"one": HIGH, "two": LOW}})}).word == "confirmed"


def test_an_experiment_without_rows_says_why_once_and_all_its_claims_do():
    claims = [Claim("a", "first", ONE, TWO), Claim("b", "second", ONE, 0.0, missing="No data.")]
    section = Section("S", [], [], [Study("e", "Part", "", claims, unrun="A run takes an hour.")])
    text = build.page({}, [section])
    assert "1 claims: 0 confirmed, 0 opposite, 1 cannot show here, 0 not clear. 1 more were not run." in text
    assert text.count("A run takes an hour.") == 1
    assert "A run takes" not in build.page({"e": document({"q": {"one": HIGH, "two": LOW}})}, [section])


def test_advice_follows_from_verdicts():
    advice = [Advice("Do a.", {"k": "confirmed"}), Advice("Do b.", {"k": "opposite"})]
    section = Section("S", advice, [], [])
    assert advised(section, {"k": judged(HIGH, LOW)}) == "Do a."
    assert advised(section, {"k": judged(LOW, HIGH)}) == "Do b."
    assert advised(section, {"k": judged(WIDE, LOW)}).startswith("No result")


def test_the_summary_counts_every_claim_once():
    claims = [Claim("a", "first", ONE, TWO), Claim("b", "second", Place("x", "q", "one"), 0.0)]
    unrun = Claim("c", "third", missing="No data.")
    section = Section("Paper", [], [], [Study("e", "Part", "", claims)], [unrun])
    text = build.page({"e": document({"q": {"one": HIGH, "two": LOW}})}, [section])
    assert "2 claims: 1 confirmed, 0 opposite, 1 cannot show here, 0 not clear. 1 more were not run" in text
    assert "| first | Paper, ours | confirmed | +0.103 [+0.0873, +0.118] | 4 seeds | [Part](#part) |" in text
    with pytest.raises(ValueError, match="one key"):
        build.page({}, [replace(section, missing=[replace(unrun, key="a")])])


def test_documents_survive_being_written(tmp_path):
    saved = document({"q": {"one": HIGH, "two": [0.1]}}, shared=("q",))
    write(saved, tmp_path)
    assert read("e", tmp_path)._replace(shared=("q",)) == saved
    assert len((tmp_path / "e.json").read_text().splitlines()) == len(saved.rows) + 2
    assert read("missing", tmp_path) is None


TINY = """
[data]
name = "digits"
[split]
kind = "iid"
clients = 3
test = "own"
[model]
name = "logistic"
[[methods]]
name = "local"
[[methods]]
name = "fedavg"
lr = LR
[[methods]]
name = "fedavg"
label = "diverges"
lr = 1e39
[run]
rounds = 2
seeds = SEEDS
metrics = ["accuracy"]
"""


def tiny(folder, lr=1.0, seeds=2):
    (folder / "tiny.toml").write_text(TINY.replace("LR", str(lr)).replace("SEEDS", str(seeds)))
    return running.Places(folder, folder, folder / "runs")


def go_on(places, minutes=math.inf):
    return list(running.run_missing({"tiny": "clients"}, [["tiny"]], minutes=minutes, jobs=1, places=places))


def page_of(folder):
    mine = Place("tiny", "accuracy", "fedavg")
    study = Study("tiny", "Tiny", "", [Claim("tiny", "t", mine, mine._replace(method="local"))])
    return build.page({"tiny": read("tiny", folder)}, [Section("S", [], [], [study])])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny experiment that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    places = tiny(folder)
    said = go_on(places)
    assert len(said) == 6
    return places


def test_a_killed_experiment_goes_on_and_writes_the_same_page(whole, tmp_path, monkeypatch):
    places, rounds = tiny(tmp_path), []

    def killed_in_the_second_round(self, *arguments, _round=_Loop._round, **settings):
        rounds.append(1)
        if len(rounds) == 6:
            raise KeyboardInterrupt
        return _round(self, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(_Loop, "_round", killed_in_the_second_round)
        with pytest.raises(KeyboardInterrupt):
            go_on(places)
    kept = read("tiny", tmp_path).rows
    assert 0 < len(kept) < 6
    assert (tmp_path / "runs" / "tiny").exists()
    assert len(go_on(places)) == 6 - len(kept)
    assert page_of(tmp_path) == page_of(whole.results)
    assert read("tiny", tmp_path) == read("tiny", whole.results)


def test_sites_are_sections_and_dice_counts_membranes(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    for i in range(16):
        inside = np.full((16, 16), 255, dtype=np.uint8)
        inside[:, :4] = 0
        for folder, pixels in (("image", np.full((16, 16), 16 * i, dtype=np.uint8)), ("label", inside)):
            (tmp_path / folder).mkdir(exist_ok=True)
            image.fromarray(pixels).save(tmp_path / folder / f"{i}.png")
    clients = membranes.sites(seed=1, folder=str(tmp_path), size=16, tile=8)
    assert [len(c.train) for c in clients] == [4] * 9 + [2, 2]  # chunks of 4 tiles
    best = membranes.ceiling(seed=1, folder=str(tmp_path), size=16, tile=8)
    assert {c.name: len(c.train) for c in best} == {"internal-0": 40, "internal-1": 40, "internal-2": 40}
    assert torch.equal(best[0].test.inputs, clients[-1].test.inputs)
    own = torch.cat([c.train.inputs for c in clients if c.name.startswith("internal")]).flatten(1).sum(1)
    assert set(own.tolist()) <= set(best[0].train.inputs.flatten(1).sum(1).tolist())
    internal = clients[-1]
    assert internal.test.inputs.shape == (6 * 4, 1, 8, 8)
    assert internal.test.labels.double().mean() == 0.25
    assert membranes.UNet().build((1, 8, 8), 2)(internal.test.inputs).shape == (24, 2, 8, 8)
    truth = internal.test.labels
    scores = torch.nn.functional.one_hot(truth, 2).permute(0, 3, 1, 2).float()
    with_membrane = float((truth.flatten(1).sum(1) > 0).double().mean())  # elsewhere there is nothing to find
    assert membranes.dice(scores, truth, "classes") == with_membrane == 0.5
    logits = (2.0 * truth - 1).unsqueeze(1)  # two classes are one logit
    assert membranes.dice(logits, truth, "binary") == 0.5
    assert membranes.dice(-logits, truth, "binary") == 0.0
    monkeypatch.setattr(membranes, "TESTED", 7)
    with pytest.raises(InputError, match="has 16 sections; 17 are needed"):
        membranes.sites(seed=1, folder=str(tmp_path))


def test_committed_rows_count_as_done_and_rows_of_other_settings_do_not(whole, tmp_path):
    (tmp_path / "tiny.json").write_bytes((whole.results / "tiny.json").read_bytes())
    assert go_on(tiny(tmp_path)) == []
    places = tiny(tmp_path, lr=0.5, seeds=3)
    jobs = running.jobs_of(tmp_path / "tiny.toml", tmp_path)
    assert [(job.method, job.seed) for job in jobs] == [
        ("fedavg", 0), ("fedavg", 1), ("local", 2), ("fedavg", 2), ("diverges", 2)
    ]  # fmt: skip
    assert go_on(places, minutes=0) == []


def test_what_diverged_is_a_row_without_numbers_and_missing_data_are_skipped(whole, tmp_path, monkeypatch):
    document = read("tiny", whole.results)
    assert {row.method for row in document.rows if not row.values} == {"diverges"}
    assert document.shared == ["accuracy"]
    places = tiny(tmp_path)
    text = (tmp_path / "tiny.toml").read_text().replace('"digits"', f'"cifar10"\nfolder = "{tmp_path}"')
    (tmp_path / "tiny.toml").write_text(text)
    assert all(": skipped: " in said and "CIFAR-10 was not found" in said for said in go_on(places))
    assert read("tiny", tmp_path) is None


def test_every_row_has_the_settings_of_its_file():
    for name in build.kinds():
        document, tables = read(name), read_toml(ROOT / "experiments" / f"{name}.toml")
        for row in document.rows if document else ():
            assert row.settings == running.settings_of(tables, row.method), f"{name}: {row.method} has old rows"


def test_each_experiment_is_measured_in_an_order_of_worth():
    assert {name for step in build.ORDER for name in step} == set(build.kinds())
    assert set(build.kinds().values()) <= set(MEASURES)


def test_liars_that_delete_themselves_are_said_to():
    liars = [claim for claim in CLAIMS if "gap 100: MaxFL loses at most" in claim.text]
    assert len(liars) == 6
    assert all(claim.note == maxfl.BY_CONSTRUCTION for claim in liars)


def test_the_seed_chooses_the_play_whose_roles_are_internal(tmp_path):
    (tmp_path / "roles").mkdir()
    for number, play in enumerate(shakespeare.PLAYS):
        text = "abcdefghij"[number : number + 5] * 800
        lines = [json.dumps({"play": play, "role": role, "text": text}) for role in ("ONE", "TWO")]
        (tmp_path / "roles" / f"{play}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    clients = shakespeare.play(seed=2, folder=str(tmp_path))
    assert [name for name in clients.names if name.startswith("internal-")] == ["internal-ONE", "internal-TWO"]
    assert len(clients) == 12
    assert not any(name.startswith(shakespeare.PLAYS[2]) for name in clients.names)
    best = shakespeare.ceiling(seed=2, folder=str(tmp_path))
    assert best.names == ("internal-ONE", "internal-TWO")
    assert len(best["internal-ONE"].train) == sum(len(client.train) for client in clients) == 12 * 20
    assert torch.equal(best["internal-ONE"].test.inputs, clients["internal-ONE"].test.inputs)


def test_no_test_row_of_goemotions_is_drawn_from_a_clients_own():
    kinds = {study.kind for study in STUDIES if study.name.startswith("meritfed-goemotions")}
    assert [SHARED[kind] for kind in kinds] == [()]
