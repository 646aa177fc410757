"""Experiments parse, the papers' sentences are theirs, the rule keeps its error rates, and the page says what its files say."""

import csv
import gzip
import io
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.base.errors import InputError
from coterie.base.files import read_toml
from coterie.run.loop import _Loop
from coterie.run.tables import read_experiment

pytestmark = pytest.mark.programs  # experiments stand beside the library

ROOT = Path(__file__).resolve().parent.parent
DATA = ("plan", "claims", "rivals", "constants")
FILES = sorted(
    path
    for folder in ("experiments", "experiments/paper")
    for path in (ROOT / folder).glob("*.toml")
    if path.stem not in DATA
)


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "path", [str(ROOT), *sys.path])
    from experiments import (
        claims,
        judging,
        maxfl_landscape,
        measures,
        membranes,
        page,
        rivals,
        rivals_page,
        running,
        sentences,
        setups,
        shakespeare,
    )  # fmt: skip
    from experiments.documents import Document, Row, read, write
    from experiments.judging import Setting, interval
    from experiments.maxfl_toy import MONTE_CARLO
    from experiments.measures import MEASURES

EVIDENCE = claims.load()
QUOTED = [claim for claim in EVIDENCE.claims if not claim.get("ours")]
KINDS, STEPS = running.plan()


@pytest.mark.parametrize(
    "path", FILES, ids=lambda p: str(p.relative_to(ROOT / "experiments"))
)
def test_each_experiment_parses(path):
    experiment = read_experiment(path)
    assert experiment.methods
    assert experiment.run.seeds


def test_each_experiment_is_planned_and_measured():
    assert {path.stem for path in FILES if path.parent.name != "paper"} == set(KINDS)
    assert {name for step in STEPS for name in step} == set(KINDS)
    assert set(KINDS.values()) <= set(MEASURES)


def test_every_row_has_the_settings_of_its_file():
    for name in KINDS:
        document, tables = read(name), read_toml(ROOT / "experiments" / f"{name}.toml")
        for row in document.rows if document else ():
            assert row.settings == running.settings_of(tables, row.method), (
                f"{name}: {row.method} has old rows"
            )


# Provenance


def test_every_row_names_a_clean_commit_of_this_history():
    commits = {
        row.commit for document in EVIDENCE.documents.values() for row in document.rows
    }
    assert all(re.fullmatch(r"[0-9a-f]{7,40}", commit) for commit in commits), (
        "a commit with + or none"
    )
    found = subprocess.run(
        ["git", "rev-list", "HEAD"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if found.returncode or shallow.stdout.strip() != "false":
        pytest.skip("no whole history here")
    ancestors = {
        commit[:length]
        for commit in found.stdout.split()
        for length in {len(c) for c in commits}
    }
    assert commits <= ancestors


def test_every_row_names_machine_pytorch_and_seconds():
    for document in EVIDENCE.documents.values():
        for row in document.rows:
            assert row.machine, f"{document.name}: {row.method}, seed {row.seed}"
            assert row.torch
        assert sum(row.seconds for row in document.rows) > 0, (
            document.name
        )  # one row may take less than what is written


def rates_of(tables, entry):
    """The server's rate, the local one, the number of local steps of a method, and MeritFed's step of mirror descent."""
    local = tables["local"] | entry.get("local", {})
    return entry.get("lr", 1.0), local["lr"], local["steps"], entry.get("md_step")


@pytest.mark.parametrize(
    ("grid", "measured", "experiments"),
    [
        (
            "maxfl-rates-clusters",
            "accuracy of the models in use",
            [
                "maxfl-figures-3-4",
                "maxfl-figures-3-4-unflipped",
                "maxfl-warmup-50",
                "maxfl-warmup-150",
            ],
        ),
        (
            "maxfl-rates-leave",
            "accuracy of the models in use",
            [
                "maxfl-table-1",
                "maxfl-table-1-unflipped",
                "maxfl-liars-05",
                "maxfl-liars-10",
                "maxfl-liars-gap-0",
            ],
        ),
        (
            "varsel-rates-shakespeare",
            "accuracy of the internal clients",
            ["varsel-shakespeare", "varsel-shakespeare-long"],
        ),
        ("varsel-rates-plays", "accuracy of the internal clients", ["varsel-plays"]),
        (
            "varsel-rates-cifar10",
            "accuracy of the internal clients",
            ["varsel-cifar10"],
        ),
        ("varsel-rates-membranes", "Dice", ["varsel-membranes"]),
        (
            "meritfed-rates-groups",
            "accuracy of the target",
            [f"meritfed-groups-{alpha}" for alpha in (50, 70, 90, 99)],
        ),
        (
            "meritfed-rates-copies",
            "accuracy of the target",
            ["meritfed-copies-50", "meritfed-copies-90"],
        ),
        (
            "meritfed-rates-goemotions",
            "accuracy of the target",
            [f"meritfed-goemotions-{alpha}" for alpha in (50, 70, 90, 99)],
        ),
    ],
)
def test_each_method_has_the_rates_that_were_best_with_seed_99(
    grid, measured, experiments
):
    tables = read_toml(ROOT / "experiments" / f"{grid}.toml")
    assert tables["run"]["seeds"] == [99]
    tried = {entry["label"]: rates_of(tables, entry) for entry in tables["methods"]}
    found = {row.method: row.values[measured] for row in read(grid).rows}
    assert found.keys() == tried.keys()
    for name in experiments:
        judged = read_toml(ROOT / "experiments" / f"{name}.toml")
        assert 99 not in range(judged["run"]["seeds"])
        for entry in judged["methods"]:
            label = entry.get("label", entry["name"])
            chosen = (
                "meritfed" if entry["name"] == "meritfed" else label
            )  # its variants have the same
            best = max(
                (one for one in tried if one.rsplit(" ", 2)[0] == chosen), key=found.get
            )
            assert rates_of(judged, entry) == tried[best], f"{name}: {label}"


# Rivals


def test_each_method_has_eight_trials_with_a_seed_that_is_not_judged():
    for problem in rivals.problems():
        assert (
            rivals.read_toml(rivals.FILE)["tuning_seed"]
            not in problem.experiment.run.seeds
        )
        assert len(problem.experiment.run.seeds) == 10
        for entry in problem.experiment.methods:
            assert len(list(problem.experiment.trials_of(entry))) == 8, (
                f"{problem.name}: {entry.label}"
            )


def test_every_row_of_rivals_has_the_setting_that_was_best_and_names_a_clean_commit():
    for problem in rivals.problems():
        entries = {entry.label: entry for entry in problem.experiment.methods}
        best = {
            label: rivals.chosen(problem, entry) for label, entry in entries.items()
        }
        for name in problem.documents:
            document = read(name)
            for row in document.rows if document else ():
                assert re.fullmatch(r"[0-9a-f]{12}", row.commit), (
                    f"{name}: {row.method}"
                )
        judged = read(problem.documents[1])
        for row in judged.rows if judged else ():
            known = rivals.settings_with(problem, row.method, best[row.method])
            assert row.settings == known, f"{problem.name}: {row.method} has old rows"


def test_rivals_are_tuned_run_once_and_ranked(tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text("""
tuning_seed = 9
seeds = 3
local = { steps = 3, batch_size = 16 }
methods = [{ name = "local", label = "alone", exact = false }, { name = "fedavg" }, { name = "meritfed", validation = "train" }]
[[problems]]
name = "tiny"
title = "four hospitals"
data = { name = "heart-disease" }
split = { folds = 0 }
model = { name = "logistic" }
rounds = 2
left_out = { fedper = "the head is the whole model" }
[tune]
"local.lr" = [1e-4, 0.1]
"fedavg.lr" = [0.5, 1.0]
""")
    monkeypatch.setattr(rivals, "FILE", tmp_path / "tiny.toml")
    assert list(rivals.run_missing(minutes=0, results=tmp_path)) == []
    assert rivals_page.tables(tmp_path) == []
    assert len(list(rivals.run_missing(results=tmp_path))) == 3 + 3 * 3
    assert list(rivals.run_missing(results=tmp_path)) == []
    trials = {
        row.method: row.values[rivals.VALIDATION]
        for row in read("rivals-tiny-trials", tmp_path).rows
    }
    assert len(trials) == 2 + 4 + 2
    (table,) = rivals_page.tables(tmp_path)
    assert sorted(s.rank.mean for s in table.standings) == [
        s.rank.mean for s in table.standings
    ]
    assert sum(s.rank.mean for s in table.standings) == pytest.approx(1 + 2 + 3)
    by_label = {s.label: s for s in table.standings}
    assert by_label["fedavg"].setting["local.lr"] == 0.1
    assert trials[rivals.trial_name("fedavg", by_label["fedavg"].setting)] == min(
        loss for name, loss in trials.items() if name.startswith("fedavg ")
    )
    assert by_label["alone"].harmed == 0
    losses = {
        row.seed: row.values
        for row in read("rivals-tiny", tmp_path).rows
        if row.method == "fedavg"
    }
    assert by_label["fedavg"].loss.mean == pytest.approx(
        np.mean([v["log-loss"] for v in losses.values()])
    )
    of_clients = [v for name, v in losses[0].items() if name.startswith("log-loss, ")]
    assert losses[0]["log-loss"] == pytest.approx(np.mean(of_clients), rel=1e-4)
    ranks, numbers = rivals_page.page([table]), rivals_page.numbers([table])
    found = {row["method"]: row for row in csv.DictReader(io.StringIO(numbers))}
    assert found.keys() == by_label.keys()
    for label in found:
        assert f"`{label}`" in ranks
    assert found["fedavg"]["setting"].startswith("local.lr = 0.1")
    assert rivals_page.NO_ROWS in rivals_page.page([])
    for low, is_better in ((0.05, True), (-0.05, False)):
        standings = [
            s._replace(gain=judging.Interval(0.1, low, 0.25, 0.05, 3))
            for s in table.standings
        ]
        said = rivals_page.page([table._replace(standings=standings)])
        assert ("Clearly better than it: none" not in said) == is_better
    assert "Without all runs yet" not in rivals_page.page([table])
    other = table.problem._replace(name="other", title="another problem")
    monkeypatch.setattr(rivals_page, "problems", lambda: [table.problem, other])
    assert "Without all runs yet: another problem" in rivals_page.page([table])


def test_the_page_of_rivals_is_written_from_the_files_byte_by_byte():
    for path, text in rivals_page.pages().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path.name}: run `make rivals-page`"
        )


def test_intervals_over_seeds_allow_for_rows_that_are_split_anew():
    plain = interval([1.0, 2.0, 4.0])
    assert rivals_page.over_seeds([1.0, 2.0, 4.0], 0.0).half_width == pytest.approx(
        plain.half_width
    )
    wider = rivals_page.over_seeds([1.0, 2.0, 4.0], 1 / 3)
    assert wider.half_width == pytest.approx(plain.half_width * math.sqrt(2))
    assert rivals_page.over_seeds([1.0, math.inf], 0.0).low == -math.inf
    assert (
        rivals_page.over_seeds([1.0, 2.0, 4.0], 0.0, comparisons=5).half_width
        > wider.half_width
    )


# The claims


def words_of(text):
    """Letters and figures alone, without the numbers of lines."""
    return re.sub(
        r"[^\w]+", " ", re.sub(r"(?<![\w.])\d{3,4}(?=\s)", " ", text.lower())
    ).strip()


def test_each_claim_quotes_its_paper_in_few_words():
    assert all(len(claim["quote"].split()) <= 25 for claim in QUOTED)
    assert all(claim["place"] and claim["lines"] and claim["says"] for claim in QUOTED)
    folder = ROOT.parent / "shared" / "papers"
    if not folder.is_dir():
        pytest.skip("the papers are not here")
    texts = {
        paper["key"]: (folder / paper["text"]).read_text(encoding="utf-8")
        for paper in EVIDENCE.papers
    }
    for claim in QUOTED:
        text = texts[claim["paper"]]
        assert words_of(claim["quote"]) in words_of(text), claim["key"]
        for first, last in re.findall(
            r"^direction[^:]*: lines? (\d+)(?:-(\d+))?", claim["lines"]
        ):
            lines = text.splitlines()[int(first) - 1 : int(last or first)]
            assert words_of(claim["quote"]) in words_of("\n".join(lines)), claim["key"]


def figures_of(paper):
    """The figures and tables that have a line, spans taken apart."""
    return {
        one
        for claim in QUOTED
        if claim["paper"] == paper
        for one in page.numbers(claim["figures"])
    }


def test_every_figure_and_table_that_needs_a_run_has_a_line():
    have = {paper["key"]: figures_of(paper["key"]) for paper in EVIDENCE.papers}
    assert have == {
        "meritfed": {f"Fig. {n}" for n in range(1, 30)},
        "varsel": {"Fig. 1", "Fig. 2", "Table 2", "Table 3", "Table 4"},
        "isfl": {"Table III", "Table IV", *(f"Fig. {n}" for n in range(4, 10))},
        "maxfl": {
            f"{kind} {n}"
            for kind, last in (("Fig.", 8), ("Table", 6))
            for n in range(1, last + 1)
        },
    }
    assert all(paper["figures"] == len(have[paper["key"]]) for paper in EVIDENCE.papers)
    assert "56 of 56 figures and tables that need a run have a line." in " ".join(
        page.first_page(EVIDENCE).split()
    )


def test_a_margin_has_its_reason_and_what_was_not_run_its_cost():
    for claim in EVIDENCE.claims:
        assert "why" in claim or not {"margin", "bar", "bars"} & claim.keys(), claim[
            "key"
        ]
        assert claim["experiments"] or "not_run" in claim, claim["key"]
        assert all(name in EVIDENCE.runs for name in claim["experiments"]), claim["key"]


# The rule


def judge(setting):
    return judging.judge([setting], "all")[0]


def settings_of_chance(random, effect, seeds=20, number=1, **about):
    """Settings whose effects are normal with this mean in half-widths of so many seeds (simultaneous ones of several settings)."""
    half = judging.stdtrit(seeds - 1, 1 - 0.025 / number) / math.sqrt(seeds)
    return [
        Setting(interval(random.normal(effect * half, 1, seeds)), **about)
        for _ in range(number)
    ]


def shares(decide, tries=10_000):
    """How often each word is given."""
    random = np.random.default_rng(1)
    return {
        word: count / tries
        for word, count in Counter(decide(random) for _ in range(tries)).items()
    }


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_no_effect_is_rarely_called_one(direction):
    given = shares(
        lambda random: judge(*settings_of_chance(random, 0, direction=direction))
    )
    assert max(given.get("confirmed", 0), given.get("opposite", 0)) <= 0.03


@pytest.mark.parametrize("over", ["all", "most", "one"])
def test_no_effect_in_four_settings_is_rarely_called_one(over):
    given = shares(
        lambda random: judging.judge(
            settings_of_chance(random, 0, number=4, direction="higher"), over
        )[0]
    )
    assert max(given.get("confirmed", 0), given.get("opposite", 0)) <= 0.03


@pytest.mark.parametrize("seeds", [5, 20])
@pytest.mark.parametrize(
    ("direction", "margin"), [("as high", 1.0), ("as low", 1.0), ("alike", 1.0)]
)
def test_what_is_just_as_bad_as_the_margin_is_rarely_confirmed(
    direction, margin, seeds
):
    random = np.random.default_rng(1)
    words = [
        judge(Setting(interval(random.normal(-margin, 0.3, seeds)), direction, margin))
        for _ in range(10_000)
    ]
    assert words.count("confirmed") <= 300
    assert words.count("opposite") <= 300


@pytest.mark.parametrize("seeds", [5, 20])
@pytest.mark.parametrize(
    ("direction", "margin", "effect", "word"),
    [
        ("higher", 0, 2, "confirmed"),
        ("higher", 0, -2, "opposite"),
        ("lower", 0, 2, "confirmed"),
        ("lower", 0, -2, "opposite"),
        ("as high", 3, -1, "confirmed"),
        ("as high", 3, -5, "opposite"),
        ("as low", 3, -1, "confirmed"),
        ("as low", 3, -5, "opposite"),
        ("alike", 3, 1, "confirmed"),
        ("alike", 3, 5, "opposite"),
        ("alike", 3, -5, "opposite"),
    ],
)
def test_effects_of_twice_the_half_width_beyond_the_margin_get_their_word(
    direction, margin, effect, word, seeds
):
    half = judging.stdtrit(seeds - 1, 0.975) / math.sqrt(seeds)
    about = {"direction": direction, "margin": margin * half}
    assert (
        shares(
            lambda random: judge(*settings_of_chance(random, effect, seeds, **about))
        )[word]
        >= 0.95
    )


@pytest.mark.parametrize(
    ("effect", "over", "word"),
    [
        (2, "all", "confirmed"),
        (2, "most", "confirmed"),
        (-2, "all", "opposite"),
        (2, "one", "confirmed"),
    ],
)
def test_effects_in_four_settings_get_their_word(effect, over, word):
    given = shares(
        lambda random: judging.judge(
            settings_of_chance(random, effect, 10, 4, direction="higher"), over
        )[0]
    )
    assert given[word] >= 0.95


def test_without_room_nothing_can_be_shown_and_with_it_everything():
    half = judging.stdtrit(19, 0.975) / math.sqrt(20)

    def word(random, room):
        gains = random.normal(
            room * half, 0.5, 20
        )  # the ceiling has the seeds' splits in common with the rival
        setting = settings_of_chance(random, 0, direction="higher")[0]
        return judge(setting._replace(room=float(gains.mean())))

    assert shares(lambda random: word(random, 0.5))["cannot show here"] >= 0.95
    assert shares(lambda random: word(random, 2)).get("cannot show here", 0) <= 0.05


def shifted(mean, seeds=8, spread=0.1):
    return interval(mean + spread * np.linspace(-1, 1, seeds))


def test_room_is_looked_at_before_the_interval_and_only_for_gains():
    worse = Setting(shifted(-1.0), "higher", room=0.001)
    assert judge(worse) == "cannot show here"
    assert judge(worse._replace(room=0.5)) == "opposite"
    assert judge(worse._replace(direction="as high")) == "opposite"
    assert judge(Setting(shifted(1.0), "as high", room=0.001)) == "confirmed"


def test_as_good_is_confirmed_by_being_better_and_alike_is_not():
    better = Setting(shifted(1.0), "as high", margin=0.3)
    assert judge(better) == "confirmed"
    assert judge(better._replace(direction="alike")) == "opposite"
    assert judge(Setting(shifted(-0.35), "as high", margin=0.3)) == "not clear"


def test_all_falls_with_one_setting_most_with_half_and_one_with_each():
    good, bad, early = (
        Setting(shifted(1.0), "higher"),
        Setting(shifted(-1.0), "higher"),
        Setting(shifted(1.0), "higher", early=True),
    )
    unclear = Setting(shifted(0.01), "higher")
    assert judging.judge([good, good, bad], "all")[0] == "opposite"
    assert judging.judge([good, good, bad], "most") == (
        "confirmed",
        ["confirmed", "confirmed", "opposite"],
    )
    assert judging.judge([good, bad], "most")[0] == "opposite"
    assert judging.judge([bad, good], "one") == ("confirmed", ["opposite", "confirmed"])
    assert judging.judge([bad, bad], "one")[0] == "opposite"
    assert judging.judge([bad, unclear], "one")[0] == "not clear"
    assert judging.judge([good, good, unclear], "all")[0] == "not clear"
    assert judging.judge([good, early], "all") == (
        "early training",
        ["confirmed", "early training"],
    )
    assert judging.judge([good, None], "all") == ("not run", ["confirmed", "not run"])
    assert judging.judge([good, bad, None], "all")[0] == "opposite"
    assert judging.judge([], "all")[0] == "not run"
    assert judge(good._replace(blocked=True)) == "no verdict"


def test_p_values_are_corrected_where_one_setting_suffices():
    near = Setting(shifted(-0.06), "higher")
    assert judge(near) == "opposite"
    assert (
        judging.judge([near] + 9 * [Setting(shifted(0.0), "higher")], "all")[0]
        == "not clear"
    )


def test_training_is_early_where_the_difference_still_moves_or_few_steps_were_made():
    assert judging.moves([0.1, 0.1], [0.2, 0.3], 0.1)
    assert not judging.moves([0.1, 0.1], [0.2, 0.1], 0.1)
    assert judging.too_short(90, 4900)
    assert not judging.too_short(1250, 4900)


def test_one_value_decides_only_where_there_is_no_chance():
    assert interval([0.3], computed=True)[:3] == (0.3, 0.3, 0.3)
    with pytest.raises(ValueError, match="no interval"):
        interval([0.3])


def test_what_is_confirmed_or_opposite_was_read_a_third_time():
    decided = [
        judged
        for judged in EVIDENCE.judged.values()
        if judged.word in ("confirmed", "opposite")
    ]
    unread = [
        judged.claim["key"]
        for judged in decided
        if "quote" in judged.claim and "read_again" not in judged.claim
    ]
    assert not unread


def test_what_came_out_opposite_stands_with_what_checks_it():
    """Quotation, set-up, third reading, a ceiling or why there is none, a second computation where it costs less than an hour."""
    texts = sentences.pages()
    opposite = [
        judged
        for judged in EVIDENCE.judged.values()
        if judged.word == "opposite" and "quote" in judged.claim
    ]
    assert opposite
    for judged in opposite:
        claim, text = judged.claim, texts[judged.claim["paper"]]
        experiment = judged.deciding.a.experiment
        assert "read_again" in claim, claim["key"]
        assert "ceiling" in claim or "no_ceiling" in claim, claim["key"]
        here = EVIDENCE.runs[experiment]["here"]
        assert claim["quote"] in text, claim["key"]
        assert here in text, claim["key"]
        assert claim["read_again"][1:] in text, claim["key"]
        seconds = sum(row.seconds for row in EVIDENCE.documents[experiment].rows)
        again = judged.deciding.second or claim.get("computed")
        assert again or seconds > 3600, claim["key"]


# The mean over settings


def settings_around(random, mean, spread, experiments, seeds=10):
    """Effects of experiments whose true effects are normal around a mean; each has a standard error of 1."""
    truths = random.normal(mean, spread, experiments)
    return [interval(random.normal(t, math.sqrt(seeds), seeds)) for t in truths]


def test_the_mean_over_settings_by_hand():
    known = [judging.Interval(m, m - 1, m + 1, 1.0, 20) for m in (1.0, 3.0, 8.0)]
    pooled = judging.pool(known)
    # Equal errors of 1: the mean is plain, and the sum of squares 26 is 2 (1 + between) at between = 12.
    assert pooled.effect.mean == pytest.approx(4.0)
    assert pooled.spread == pytest.approx(math.sqrt(12.0))
    error = math.sqrt(13 / 3)
    assert pooled.effect.half_width == pytest.approx(4.302653 * error)
    assert pooled.high - 4.0 == pytest.approx(4.302653 * math.sqrt(12 + 13 / 3))


def test_settings_that_agree_have_no_spread_and_two_say_nothing_of_a_third():
    alike = [judging.Interval(m, 0, 0, 1.0, 20) for m in (0.9, 1.0)]
    pooled = judging.pool(alike)
    assert pooled.spread == 0
    assert pooled.low is None
    assert judging.pool(alike[:1]) is None
    assert judging.pool([alike[0], alike[0]._replace(error=0.0)]) is None


@pytest.mark.parametrize("experiments", [3, 5])
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_no_mean_effect_over_settings_is_rarely_called_one(experiments, spread):
    random = np.random.default_rng(1)
    words = Counter(
        judging.judge_pooled(judging.pool(settings_around(random, 0.0, spread, experiments)), "higher", 0.0)
        for _ in range(600)
    )  # fmt: skip
    assert max(words["confirmed"], words["opposite"]) <= 0.045 * 600


def test_a_mean_effect_over_settings_gets_its_word_and_covers_a_further_setting():
    random = np.random.default_rng(1)
    right = covered = 0
    for _ in range(1_000):
        pooled = judging.pool(settings_around(random, 6.0, 1.0, 5))
        right += judging.judge_pooled(pooled, "higher", 0.0) == "confirmed"
        covered += pooled.low < random.normal(6.0, 1.0) < pooled.high
    assert right >= 950
    assert covered >= 870  # nominally 950; five settings hardly tell their spread


def many_experiments(effects, **about):
    """A sentence with a setting in each of several experiments; each has its effect, by seed a little around it."""
    tiny = tiny_evidence(HIGH, LOW)
    names = [f"e{n}" for n in range(len(effects))]
    documents = {}
    for name, effect in zip(names, effects, strict=True):
        rows = [
            Row(m, seed, "s", "c", 8, 2, {"q": v + 0.001 * (seed - 1.5) * (m == "one")})
            for m, v in (("one", 0.5 + effect), ("two", 0.5))
            for seed in range(4)
        ]
        documents[name] = Document(name, 3, rows)
    run = {**tiny.runs["e"], "experiments": names}
    claim = tiny.claims[0] | {"experiments": names, "over": "most"} | about
    return claims.Evidence(documents, tiny.papers, dict.fromkeys(names, run), [claim])


def test_a_general_sentence_has_the_word_of_the_mean_over_experiments():
    assert many_experiments([0.1, 0.12, 0.11]).judged["k"].word == "confirmed"
    # Two of three are clear, and yet a further one may lie on either side.
    apart = many_experiments([0.3, 0.01, -0.1]).judged["k"]
    assert [pair.word for pair in apart.pairs].count("confirmed") == 2
    assert apart.word == "not clear"
    each = many_experiments([0.3, 0.01, -0.1], over="all").judged["k"]
    assert each.word == "opposite"
    two = many_experiments([0.3, 0.1]).judged["k"]
    assert two.word == "confirmed"


def test_readings_that_disagree_leave_a_sentence_unclear():
    assert many_experiments([0.1, 0.2], readings=True, over="all").judged["k"].word == "confirmed"  # fmt: skip
    assert many_experiments([0.1, -0.2], readings=True, over="all").judged["k"].word == "not clear"  # fmt: skip
    assert many_experiments([-0.1, -0.2], readings=True, over="all").judged["k"].word == "opposite"  # fmt: skip


# Second computations


def test_a_second_computation_agrees_differs_or_has_too_few_seeds():
    first = 1 + 0.1 * np.linspace(-1, 1, 6)
    assert judging.compare(first, first + 0.05 * np.linspace(1, -1, 6), 0.5) == "agrees"
    assert judging.compare(first, -first, 0.5) == "differs"
    assert [judging.compare([1.0], [again], 0.5) for again in (1.4, 1.6)] == [
        "agrees",
        "differs",
    ]
    assert (
        judging.compare(first, first + 3 * np.array([1, -1, 1, -1, 1, -1]), 0.5)
        == "too few seeds to tell"
    )


def test_with_own_splits_the_gap_has_the_error_of_both_effects():
    first, near, far = (mean + 0.1 * np.linspace(-1, 1, 6) for mean in (1.0, 1.05, 2.0))
    assert judging.compare(first, near[::-1], 0.5, paired=False) == judging.compare(
        first, near, 0.5, paired=False
    )
    assert judging.compare(first, near, 0.5, paired=False) == "agrees"
    assert judging.compare(first, far, 0.5, paired=False) == "differs"
    assert (
        judging.compare(first, near[:2], 0.05, paired=False) == "too few seeds to tell"
    )
    one, two = interval(first), interval(far[1:4])
    error = math.hypot(one.error, two.error)
    just = two.mean - one.mean - judging.stdtrit(2, 0.975) * error
    assert judging.compare(first, far[1:4], just - 1e-9, paired=False) == "differs"
    assert (
        judging.compare(first, far[1:4], just + 1e-9, paired=False)
        == "too few seeds to tell"
    )


# The page


def test_the_page_is_written_from_the_files_byte_by_byte():
    import matplotlib

    pinned = re.search(
        r"^matplotlib==(.*)$",
        (ROOT / "constraints.txt").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    written = page.pages(EVIDENCE)
    for path, text in written.items():
        if path.suffix != ".svg" or matplotlib.__version__ == pinned.group(1):
            assert path.read_text(encoding="utf-8") == text, (
                f"{path.name}: run `make results`"
            )
    assert set((ROOT / "docs" / "images" / "results").glob("*.svg")) == {
        path for path in written if path.suffix == ".svg"
    }
    results = ROOT / "docs" / "results"
    others = {
        results / "sentences",
        results / "privacy.md",
    }  # of make docs and make privacy
    assert set(results.iterdir()) - others == {
        path
        for path in (*written, *rivals_page.pages())
        if path.parent.name == "results" and path.suffix != ".svg"
    }


def test_the_pages_and_the_table_say_the_same_of_every_claim():
    rows = list(csv.DictReader(io.StringIO(page.table_of_settings(EVIDENCE))))
    words = {row["claim"]: row["word"] for row in rows}
    texts = {paper["key"]: page.paper_page(EVIDENCE, paper) for paper in EVIDENCE.papers}  # fmt: skip
    for key, judged in EVIDENCE.judged.items():
        claim = judged.claim
        assert words[key] == judged.shown
        text = page.own_page(EVIDENCE) if claim.get("ours") else texts[claim["paper"]]
        said = f"{claim['says']}: *{judged.shown}*"
        assert said in re.sub(r"\s+", " ", text), key
    settings = [row for row in rows if row["experiment"]]
    assert Counter(row["verdict"].partition(",")[0] for row in settings) == Counter(
        pair.word for judged in EVIDENCE.judged.values() for pair in judged.pairs
    )


def test_every_claim_has_its_numbers_on_a_generated_page():
    texts = sentences.pages()
    for judged in EVIDENCE.judged.values():
        claim = judged.claim
        name = "ours" if claim.get("ours") is True else claim["paper"]
        assert f"{claim['says'][1:]}: {judged.shown}.**" in texts[name], claim["key"]
        for pair in judged.pairs:
            if pair.effect:
                shown = page.format_effect(claim, pair)
                assert f"| {shown} |" in texts[name], claim["key"]


def test_a_line_of_the_first_page_is_refused_once_its_claim_has_another_word():
    line = {"figures": "Fig. 1", "says": "It helps.", "sees": "It does.", "when": {"k": "confirmed"}}  # fmt: skip
    good = tiny_evidence(HIGH, LOW)
    assert page._line(good, line) == ("Fig. 1: It helps.", "It does.", "confirmed, 4 seeds")  # fmt: skip
    with pytest.raises(ValueError, match="k is opposite; write the line"):
        page._line(tiny_evidence(LOW, HIGH), line)


def test_advice_and_the_page_on_choosing_follow_from_the_same_words():
    (isfl,) = (paper for paper in EVIDENCE.papers if paper["key"] == "isfl")
    for kind in ("advice", "choose"):
        assert len(page._holding(EVIDENCE, isfl[kind])) == len(isfl[kind])
    text = page._choices(EVIDENCE)
    assert text.splitlines()[0].startswith("   - ")
    tiny = tiny_evidence(HIGH, LOW)
    assert page._holding(tiny, isfl["choose"]) == []


# Set-ups


@pytest.fixture(scope="module")
def constants_of_files():
    names = {name for row in setups.load() for name in row.experiments}
    return {name: setups.values_of(name) for name in names}


def test_the_table_of_constants_says_what_the_files_run(constants_of_files):
    assert setups.disagreements(setups.load(), constants_of_files) == []


def test_every_experiment_that_is_judged_has_its_constants_in_the_table():
    known = {name for row in setups.load() for name in row.experiments}
    named = {name for claim in EVIDENCE.claims for name in claim["experiments"]}
    named |= {claim["ceiling"] for claim in EVIDENCE.claims if "ceiling" in claim}
    drawn = {"maxfl_toy", "maxfl_landscape"}
    again = {name for name in named if name.startswith("independent/")} - known
    assert {name.removeprefix("independent/") for name in again} <= known | {"own-mean-estimation"}  # fmt: skip
    assert named - drawn - again <= known


@pytest.mark.parametrize(
    ("experiment", "key", "value"),
    [
        ("maxfl-table-1", "split.flip", 0.2),
        ("isfl-table-3-98", "local.epochs", 4),
        ("mean-estimation", "loss of an error of 1 in each of 10 coordinates", 10.0),
        ("varsel-shards-3-3", "methods.varsel.budget", 9),
        ("meritfed-groups-50", "split.imagined", 1),
    ],
)
def test_a_planted_wrong_constant_is_found(constants_of_files, experiment, key, value):
    planted = {**constants_of_files[experiment], key: value}
    values = {**constants_of_files, experiment: planted}
    (said,) = setups.disagreements(setups.load(), values)
    assert said.startswith(f"{experiment}: {key} ")


def test_a_constant_that_a_file_loses_is_found(constants_of_files):
    left = dict(constants_of_files["maxfl-table-1"])
    del left["split.flip"]
    values = {**constants_of_files, "maxfl-table-1": left}
    (said,) = setups.disagreements(setups.load(), values)
    assert said.startswith("maxfl-table-1: split.flip is 'none'")


def test_only_the_table_says_that_a_paper_has_the_same():
    for run in EVIDENCE.runs.values():
        assert "the same" not in run.get("paper", "").lower()
    one = setups.Constant("p", "local.lr", "rate", ["e"], 0.1, [0.1, 0.3], "Table 2")
    assert one.is_same
    assert not one._replace(ours=0.2).is_same
    assert not one._replace(printed=None).is_same
    run = {"here": "h", "differs": "d"}
    assert "The same in the paper: rate .1 (Table 2)." in sentences._set_up(run, ["e"], [one])  # fmt: skip
    other = sentences._set_up(run, ["e"], [one._replace(ours=0.2)])
    assert not any("The same" in line for line in other)


@pytest.mark.parametrize(("rows", "shown"), [("mlp", "not reproduced on a substitute"), ("cnn", "opposite")])  # fmt: skip
def test_opposite_on_a_substitute_is_not_reproduced(rows, shown):
    evidence = tiny_evidence(LOW, HIGH)
    model = setups.Constant("p", "model.name", "model", ["e"], rows, "cnn", "here")
    again = claims.Evidence(
        evidence.documents, evidence.papers, evidence.runs, evidence.claims, [model]
    )
    assert again.judged["k"].word == "opposite"
    assert again.judged["k"].shown == shown


def tiny_evidence(one, two, **about):
    """One claim about two methods of one experiment."""
    rows = [
        Row(m, s, "s", "c", 8, 2, {"q": v})
        for m, values in (("one", one), ("two", two))
        for s, v in enumerate(values)
    ]
    claim = {
        "key": "k", "paper": "p", "figures": "Fig. 1", "says": "one is better", "quote": "q", "place": "here", "lines": "l",
        "experiments": ["e"], "quantities": ["q"], "method": "one", "rivals": ["two"], "direction": "higher", "over": "all",
    }  # fmt: skip
    run = {
        "experiments": ["e"],
        "here": "h",
        "paper": "p",
        "differs": "d",
        "rates": "r",
    }
    paper = {
        "key": "p",
        "name": "P",
        "figures": 1,
        "title": "T",
        "note": "N.",
        "advice": [{"text": "Take one.", "when": {"k": "confirmed"}}],
    }
    return claims.Evidence(
        {"e": Document("e", 3, rows)}, [paper], {"e": run}, [claim | about]
    )


HIGH, LOW = [0.90, 0.91, 0.92, 0.90], [0.80, 0.80, 0.83, 0.79]


def test_numbers_decide_a_claim_and_what_follows_from_it():
    good = tiny_evidence(HIGH, LOW)
    assert good.judged["k"].word == "confirmed"
    assert page.advice(good, good.papers[0]) == "Take one."
    assert page.format_effect(good.claims[0], good.judged["k"].deciding) == "+0.103 [+0.0873, +0.118]"  # fmt: skip
    lower = tiny_evidence(HIGH, LOW, direction="lower")
    assert lower.judged["k"].word == "opposite"
    assert "decide what to advise" in page.advice(lower, lower.papers[0])
    assert (
        tiny_evidence(
            HIGH, [v * 1.05 for v in HIGH], direction="as high", margin=1.1, ratio=True
        )
        .judged["k"]
        .word
        == "confirmed"
    )
    assert tiny_evidence(HIGH[:1], LOW).judged["k"].word == "not run"
    assert tiny_evidence(HIGH, LOW, no_verdict="x").judged["k"].word == "no verdict"
    assert (
        tiny_evidence(HIGH, LOW, no_verdict="x", no_verdict_on=["three"])
        .judged["k"]
        .word
        == "confirmed"
    )
    assert (
        tiny_evidence(HIGH, LOW, no_verdict="x", no_verdict_on=["two"]).judged["k"].word
        == "no verdict"
    )


@pytest.mark.parametrize(("over", "shown"), [("all", 0), ("most", 1), ("one", 3)])
def test_the_effect_shown_is_that_of_the_setting_by_which_the_claim_stands_or_falls(
    over, shown
):
    pairs = [
        claims.Pair(str(i), None, 0.0, effect=shifted(mean))
        for i, mean in enumerate((-1.0, 0.2, 0.3, 0.4))
    ]
    assert claims.Judged(
        {"over": over}, pairs[::-1], "confirmed"
    ).deciding.label == str(shown)
    assert (
        claims.Judged(
            {"over": over}, [claims.Pair("none", None, 0.0)], "not run"
        ).deciding
        is None
    )


def test_of_an_opposite_claim_a_setting_that_could_not_show_it_does_not_decide():
    words = {"cannot show here": -4.0, "opposite": -1.0, "not clear": 0.1}
    pairs = [
        claims.Pair(word, None, 0.0, effect=shifted(mean), word=word)
        for word, mean in words.items()
    ]
    assert (
        claims.Judged({"over": "all"}, pairs, "opposite").deciding.label == "opposite"
    )


@pytest.mark.parametrize(
    ("margin", "ratio", "said"),
    [
        (0.15, False, "With half of it: confirmed."),  # the gain is .1
        (0.06, False, "With twice as much: opposite."),
        (0.01, False, None),
        (
            1.21,
            True,
            "With half of it: confirmed.",
        ),  # 1.13 times as much; the root of the margin is 1.1
    ],
)
def test_a_page_says_where_half_or_twice_a_margin_gives_another_word(
    margin, ratio, said
):
    evidence = tiny_evidence(HIGH, LOW, margin=margin, ratio=ratio, why="w")
    text = page._notes(evidence, evidence.judged["k"])
    assert (said in text) if said else (text == "")


@pytest.mark.parametrize(
    ("with_curves", "word"), [(0, "confirmed"), (1, "confirmed"), (2, "early training")]
)
def test_early_training_is_known_by_the_seeds_that_have_curves(with_curves, word):
    moving = [
        [0, 6, 8, 10],
        [0.1, 0.82, 0.90, 0.90],
    ]  # the other stays, so the difference still moves
    rows = [
        Row(method, seed, "s", "c", 8, 2, {"Dice": last + seed / 1000},
            {"Dice": curve} if seed < with_curves else {})
        for method, last, curve in (("one", 0.90, moving), ("two", 0.80, [moving[0], [0.1, 0.8, 0.8, 0.8]]))
        for seed in range(4)
    ]  # fmt: skip
    rows[0] = rows[0]._replace(values={"Dice": 0.901})
    tiny = tiny_evidence(HIGH, LOW, quantities=["Dice"])
    evidence = claims.Evidence(
        {"e": Document("e", 10, rows)}, tiny.papers, tiny.runs, tiny.claims
    )
    assert evidence.judged["k"].word == word


@pytest.mark.parametrize(
    ("curve", "against", "word"),
    [
        (
            [0.2, 0.6, 0.7, 0.9],
            {"bar": 0.5, "why": "x"},
            "early training",
        ),  # a number does not move, so the curve does
        ([0.2, 0.9, 0.9, 0.9], {"bar": 0.5, "why": "x"}, "confirmed"),
        ([0.2, 0.6, 0.7, 0.9], {"rivals": ["two"]}, "early training"),
        (
            [0.2, 0.6, 0.7, 0.9],
            {"rivals": ["two"], "ratio": True},
            "confirmed",
        ),  # both grow by the same factor
    ],
)
def test_early_training_is_asked_of_every_measure_that_has_a_curve(
    curve, against, word
):
    half = [value / 2 for value in curve]
    rows = [
        Row(
            method,
            seed,
            "s",
            "c",
            8,
            2,
            {"weight": values[-1] + seed / 1000},
            {"weight": [[0, 6, 8, 10], values]},
        )
        for method, values in (("one", curve), ("two", half))
        for seed in range(4)
    ]
    claim = {
        "key": "k",
        "experiments": ["e"],
        "quantities": ["weight"],
        "method": "one",
        "direction": "higher",
        "over": "all",
    }
    evidence = claims.Evidence(
        {"e": Document("e", 10, rows)},
        [],
        {"e": {"experiments": ["e"]}},
        [claim | against],
    )
    assert evidence.judged["k"].word == word


def test_a_sentence_about_several_methods_has_a_setting_for_each():
    rows = [
        Row(m, s, "s", "c", 8, 2, {"q": v + s / 100})
        for m, v in (("one", 3.0), ("two", 1.0))
        for s in range(4)
    ]
    claim = {
        "key": "k",
        "experiments": ["e"],
        "quantities": ["q"],
        "method": ["one", "two"],
        "bar": 2.0,
        "direction": "higher",
        "over": "all",
    }
    evidence = claims.Evidence(
        {"e": Document("e", 10, rows)}, [], {"e": {"experiments": ["e"]}}, [claim]
    )
    judged = evidence.judged["k"]
    assert [(pair.label, pair.word) for pair in judged.pairs] == [
        ("one", "confirmed"),
        ("two", "opposite"),
    ]
    assert judged.word == "opposite"


def test_quantities_may_be_differences_and_first_values_of_curves():
    rows = [
        Row(
            "one",
            s,
            "s",
            "c",
            8,
            2,
            {"best": 0.9, "last": v},
            {"acc": [[0, 5], [0.2 + s, v]]},
        )
        for s, v in enumerate(LOW)
    ]
    evidence = claims.Evidence({"e": Document("e", 3, rows)}, [], {}, [])
    assert evidence.values(claims.Place("e", "best minus last", "one", 2.0))[
        0
    ] == pytest.approx(0.2)
    assert evidence.values(claims.Place("e", "first of acc", "one"))[
        1
    ] == pytest.approx(1.2)
    assert evidence.values(claims.Place("none", "q", "one")) == {}


def test_curves_are_reduced_to_a_number_and_those_of_all_classes_together():
    q = {
        f"q of a, class {i}": [[1, 3], values]
        for i, values in enumerate(([0.7, 0.5], [0.2, 0.5], [0.1, 0.0]))
    }
    rho = {
        "rho, closed": [[1, 3, 5], [3.0, 4.0, 5.0]],
        "rho, least": [[1, 3, 5], [2.0, 2.5, 9.0]],
    }
    rows = [
        Row(
            "one",
            0,
            "s",
            "c",
            8,
            2,
            {"known of a": 7.0},
            {"acc": [[0, 5, 10], [0.5, 0.2, 0.4]], **q, **rho},
        )
    ]
    evidence = claims.Evidence({"e": Document("e", 3, rows)}, [], {}, [])
    expected = {
        "first of acc": 0.5,
        "value at two fifths of acc": 0.2,
        "largest fall of acc": 0.3,
        "largest fall of rho, closed": 0.0,
        "minimum of q of a": 0.0,
        "largest minimum of q of a": 0.5,
        "mean range of q of a": 0.2,
        "first excess of rho": 0.5,
        "rank correlation over rounds of rho": 1.0,
        "known of a": 7.0,
    }
    found = {
        name: evidence.values(claims.Place("e", name, "one"))[0] for name in expected
    }
    assert found == pytest.approx(expected)
    assert evidence.values(claims.Place("e", "first of q of b", "one")) == {}


def test_each_quantity_is_compared_with_its_own_where_the_claim_says_so():
    curves = {"a": [[1, 2], [1.0, 3.0]], "b": [[1, 2], [5.0, 6.0]]}
    rows = [Row("one", s, "s", "c", 8, 2, {"a": 3.0, "b": 6.0}, curves) for s in (0, 1)]
    tiny = tiny_evidence(
        HIGH, LOW, quantities=["a", "b"], rivals=[], against={"quantity": "first of {}"}
    )
    pairs = (
        claims.Evidence(
            {"e": Document("e", 2, rows)}, tiny.papers, tiny.runs, tiny.claims
        )
        .judged["k"]
        .pairs
    )
    assert [pair.effect.mean for pair in pairs] == [2.0, 1.0]


def test_a_ceiling_of_some_experiments_is_no_room_of_the_others():
    rows = [
        Row(m, s, "s", "c", 8, 2, {"q": v})
        for m, v in (("one", 0.9), ("two", 0.8))
        for s in (0, 1)
    ]
    best = Document(
        "best", 2, [Row("ceiling", s, "s", "c", 8, 2, {"q": 1.0}) for s in (0, 1)]
    )
    tiny = tiny_evidence(HIGH, LOW)
    claim = tiny.claims[0] | {
        "experiments": ["e", "f"],
        "ceiling": "best",
        "ceiling_of": ["f"],
    }
    run = {**tiny.runs["e"], "experiments": ["e", "f"]}
    documents = {"e": Document("e", 2, rows), "f": Document("f", 2, rows), "best": best}
    pairs = (
        claims.Evidence(documents, tiny.papers, {"e": run, "f": run}, [claim])
        .judged["k"]
        .pairs
    )
    assert [pair.room for pair in pairs] == [None, pytest.approx(0.2)]


def test_two_quantities_are_ranked_over_the_methods_of_a_seed():
    numbers = {"a": (1.0, 3.0), "b": (2.0, 5.0), "c": (3.0, 4.0)}
    rows = [
        Row(m, s, "s", "c", 8, 2, {"p, x": p, "q, x": q if s else p})
        for m, (p, q) in numbers.items()
        for s in (0, 1)
    ]
    evidence = claims.Evidence({"e": Document("e", 3, rows)}, [], {}, [])
    place = claims.Place(
        "e", "rank correlation of p, x and q, x over methods", "all methods"
    )
    assert evidence.values(place) == pytest.approx({0: 1.0, 1: 0.5})
    two = claims.Evidence(
        {"e": Document("e", 3, rows[:4])}, [], {}, []
    )  # as in a second computation of some methods
    assert two.values(place) == {}


def test_own_loading_and_splits_are_compared_without_pairs():
    shift = [0.01, -0.01, 0.02, -0.02, 0.0, 0.0]
    rows = [Row("one", s, "s", "c", 8, 2, {"q": 0.9 + d}) for s, d in enumerate(shift)]
    again = [*rows, *(Row("two", s, "s", "c", 8, 2, {"q": 0.8}) for s in range(6))]
    tiny = tiny_evidence([0.9 - d for d in shift], 6 * [0.8])
    documents = {**tiny.documents, "independent/own-e": Document("e", 3, again)}
    (pair,) = (
        claims.Evidence(documents, tiny.papers, tiny.runs, tiny.claims)
        .judged["k"]
        .pairs
    )
    assert pair.second is None
    assert pair.own[1] == "agrees"
    assert (
        page._second({"direction": "higher"}, pair)
        == "+0.1 [+0.0852, +0.115], own split, 6 seeds: agrees"
    )


def test_rounds_are_counted_until_the_last_accuracy_of_another_method():
    slow, fast, never = ([0.1, 0.2, 0.5], [0.3, 0.6, 0.4], [0.1, 0.2, 0.3])
    rows = [
        Row(name, 0, "s", "c", 8, 2, {}, {"acc": [[0, 5, 10], curve]})
        for name, curve in (("slow", slow), ("fast", fast), ("never", never))
    ]
    evidence = claims.Evidence({"e": Document("e", 3, rows)}, [], {}, [])
    values = [
        evidence.values(claims.Place("e", "rounds to slow's acc", row.method))
        for row in rows
    ]
    assert values == [{0: 10}, {0: 5}, {0: 11}]
    row = Row("one", 0, "s", "c", 8, 2, {"the server's rows": 3.0})
    named = claims.Evidence({"e": Document("e", 3, [row])}, [], {}, [])
    assert named.values(claims.Place("e", "the server's rows", "one")) == {0: 3.0}


# Experiments by computation


def test_the_toy_agrees_with_an_independent_monte_carlo():
    document = read("maxfl_toy")
    for method, appeals in MONTE_CARLO.items():
        for squared, appeal in appeals.items():
            values = document.by_seed(f"appeal, gamma² = {squared}", method).values()
            assert sum(values) / len(values) == pytest.approx(appeal, abs=0.01)


def test_the_landscape_agrees_with_the_threshold_and_the_optimum_with_a_grid():
    # The midpoint is a minimum below 1.044, where g^2 tanh(g^2 / 2) = 1/2; just below it there are two more.
    for squared, minima in ((1.02, 1), (1.04, 3), (1.05, 2)):
        assert (
            maxfl_landscape.two_clients(squared)[f"minima, g² = {squared:g}"] == minima
        )
    means = torch.tensor([[0.0, 0.3], [0.2, 4.0], [6.0, 9.0]], dtype=torch.float64)
    grid = torch.linspace(-1, 10, 200_001, dtype=torch.float64)
    values = torch.sigmoid((grid - means[..., None]).square()).mean(0)
    torch.testing.assert_close(
        maxfl_landscape.optimum(means), grid[values.argmin(1)], atol=1e-4, rtol=0
    )


def test_ranks_that_run_together_have_correlation_one():
    up = torch.tensor([1.0, 5.0, 2.0])
    assert maxfl_landscape.rank_correlation(up, up.exp()) == pytest.approx(1)
    assert maxfl_landscape.rank_correlation(up, -up) == pytest.approx(-1)


def test_appeal_and_accuracy_that_rise_together_have_rank_correlation_one():
    rising, falling = (
        {0: 9.0, 5: 0.1, 10: 0.2, 15: 0.3},
        {0: 1.0, 5: 0.9, 10: 0.8, 15: 0.5},
    )
    assert measures._rank_correlation(rising, falling) == pytest.approx(-1)
    assert measures._rank_correlation(rising, rising) == pytest.approx(1)
    assert measures._rank_correlation(rising, {5: 0.1, 10: 0.1, 15: 0.1}) is None


# Running


def test_documents_survive_being_written(tmp_path):
    rows = [
        Row("one", 0, "s", "c", 8, 2, {"q": 0.5}, {}, "m", "2", 3.5),
        Row("two", 0, "s", "c", 8, 2, {"q": None}),
    ]
    saved = Document("e", 3, rows)
    write(saved, tmp_path)
    assert read("e", tmp_path) == saved
    assert len((tmp_path / "e.json").read_text().splitlines()) == len(rows) + 2
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
    (folder / "tiny.toml").write_text(
        TINY.replace("LR", str(lr)).replace("SEEDS", str(seeds))
    )
    return running.Places(folder, folder, folder / "runs")


def go_on(places, minutes=math.inf):
    return list(
        running.run_missing(
            {"tiny": "clients"}, [["tiny"]], minutes=minutes, jobs=1, places=places
        )
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny experiment that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    places = tiny(folder)
    said = go_on(places)
    assert len(said) == 6
    return places


def test_a_killed_experiment_goes_on_and_ends_in_the_same_rows(
    whole, tmp_path, monkeypatch
):
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
    rows = [
        [row._replace(seconds=0) for row in read("tiny", folder).rows]
        for folder in (tmp_path, whole.results)
    ]
    assert rows[0] == rows[1]


def test_sites_are_sections_and_dice_counts_membranes(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    for i in range(16):
        inside = np.full((16, 16), 255, dtype=np.uint8)
        inside[:, :4] = 0
        for folder, pixels in (
            ("image", np.full((16, 16), 16 * i, dtype=np.uint8)),
            ("label", inside),
        ):
            (tmp_path / folder).mkdir(exist_ok=True)
            image.fromarray(pixels).save(tmp_path / folder / f"{i}.png")
    clients = membranes.sites(seed=1, folder=str(tmp_path), size=16, tile=8)
    assert [len(c.train) for c in clients] == [4] * 9 + [2, 2]  # chunks of 4 tiles
    best = membranes.ceiling(seed=1, folder=str(tmp_path), size=16, tile=8)
    assert {c.name: len(c.train) for c in best} == {
        "internal-0": 40,
        "internal-1": 40,
        "internal-2": 40,
    }
    assert torch.equal(best[0].test.inputs, clients[-1].test.inputs)
    own = (
        torch.cat([c.train.inputs for c in clients if c.name.startswith("internal")])
        .flatten(1)
        .sum(1)
    )
    assert set(own.tolist()) <= set(best[0].train.inputs.flatten(1).sum(1).tolist())
    internal = clients[-1]
    assert internal.test.inputs.shape == (6 * 4, 1, 8, 8)
    assert internal.test.labels.double().mean() == 0.25
    assert membranes.UNet().build((1, 8, 8), 2)(internal.test.inputs).shape == (
        24,
        2,
        8,
        8,
    )
    truth = internal.test.labels
    scores = torch.nn.functional.one_hot(truth, 2).permute(0, 3, 1, 2).float()
    with_membrane = float(
        (truth.flatten(1).sum(1) > 0).double().mean()
    )  # elsewhere there is nothing to find
    assert membranes.dice(scores, truth, "classes") == with_membrane == 0.5
    logits = (2.0 * truth - 1).unsqueeze(1)  # two classes are one logit
    assert membranes.dice(logits, truth, "binary") == 0.5
    assert membranes.dice(-logits, truth, "binary") == 0.0
    monkeypatch.setattr(membranes, "TESTED", 7)
    with pytest.raises(InputError, match="has 16 sections; 17 are needed"):
        membranes.sites(seed=1, folder=str(tmp_path))


def test_committed_rows_count_as_done_and_rows_of_other_settings_do_not(
    whole, tmp_path
):
    (tmp_path / "tiny.json").write_bytes((whole.results / "tiny.json").read_bytes())
    assert go_on(tiny(tmp_path)) == []
    places = tiny(tmp_path, lr=0.5, seeds=3)
    jobs = running.jobs_of(tmp_path / "tiny.toml", tmp_path)
    assert [(job.method, job.seed) for job in jobs] == [
        ("fedavg", 0), ("fedavg", 1), ("local", 2), ("fedavg", 2), ("diverges", 2)
    ]  # fmt: skip
    assert go_on(places, minutes=0) == []


def test_what_diverged_is_a_row_without_numbers_and_missing_data_are_skipped(
    whole, tmp_path, monkeypatch
):
    document = read("tiny", whole.results)
    assert {row.method for row in document.rows if not row.values} == {"diverges"}
    places = tiny(tmp_path)
    text = (
        (tmp_path / "tiny.toml")
        .read_text()
        .replace('"digits"', f'"cifar10"\nfolder = "{tmp_path}"')
    )
    (tmp_path / "tiny.toml").write_text(text)
    (said,) = go_on(places)  # once, not for each method and seed
    assert said.startswith("tiny: skipped: ")
    assert "CIFAR-10 was not found" in said
    assert read("tiny", tmp_path) is None


def test_rates_are_chosen_on_plays_that_are_not_judged(tmp_path):
    plays = [*shakespeare.PLAYS, *(f"other{number}" for number in range(7))]
    text = "abcdefghij" * 400
    lines = [
        json.dumps({"play": play, "role": role, "text": text})
        for play in plays
        for role in ("ONE", "TWO")
    ]
    with gzip.open(
        tmp_path / "all_plays_roles.jsonl.gz", "wt", encoding="utf-8"
    ) as file:
        file.write("\n".join(lines))
    clients = shakespeare.unjudged(seed=99, folder=str(tmp_path))  # 99 modulo 7 is 1
    expected = ["internal", "other2", "other3", "other4", "other5", "other6"]
    assert set(clients.names) == {
        f"{play}-{role}" for play in expected for role in ("ONE", "TWO")
    }
    assert {len(client.train) for client in clients} == {20}
    assert {
        len(client.train)
        for client in shakespeare.unjudged(seed=99, folder=str(tmp_path), segments=0)
    } == {10}


def test_the_seed_chooses_the_play_whose_roles_are_internal(tmp_path):
    (tmp_path / "roles").mkdir()
    for number, play in enumerate(shakespeare.PLAYS):
        text = "abcdefghij"[number : number + 5] * 800
        lines = [
            json.dumps({"play": play, "role": role, "text": text})
            for role in ("ONE", "TWO")
        ]
        (tmp_path / "roles" / f"{play}.jsonl").write_text(
            "\n".join(lines), encoding="utf-8"
        )
    clients = shakespeare.play(seed=2, folder=str(tmp_path))
    assert [name for name in clients.names if name.startswith("internal-")] == [
        "internal-ONE",
        "internal-TWO",
    ]
    assert len(clients) == 12
    assert not any(name.startswith(shakespeare.PLAYS[2]) for name in clients.names)
    best = shakespeare.ceiling(seed=2, folder=str(tmp_path))
    assert best.names == ("internal-ONE", "internal-TWO")
    assert (
        len(best["internal-ONE"].train)
        == sum(len(client.train) for client in clients)
        == 12 * 20
    )
    assert torch.equal(
        best["internal-ONE"].test.inputs, clients["internal-ONE"].test.inputs
    )
    whole = shakespeare.play(seed=2, folder=str(tmp_path), segments=0)
    assert {(len(client.train), len(client.test)) for client in whole} == {
        (10, 40)
    }  # 3,999 of 4,000 characters follow
    assert (
        len(
            shakespeare.ceiling(seed=2, folder=str(tmp_path), segments=0)[
                "internal-ONE"
            ].train
        )
        == 12 * 10
    )
