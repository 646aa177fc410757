"""Words of which the truth is known: every verdict, and that words flip when numbers do."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import fake_run
import numpy as np
import pytest

from coterie.cli import main as cli
from coterie.report import words
from coterie.report.answer import LINES, answer_lines
from coterie.report.results import Results
from coterie.report.text import describe_gain, with_sign
from coterie.report.verdicts import STRENGTH, harming, helping, judge, verdict

Numbers = tuple[float | None, float | None, float | None, float]
ALONE: Numbers = (0.80, 0.78, 0.80, 0.45)
BETTER: Numbers = (0.90, 0.88, 0.90, 0.30)
WORSE: Numbers = (0.70, 0.68, 0.70, 0.60)


def load(folder: Path, methods: dict[str, Numbers], **settings: Any) -> Results:
    """Client `a` with these numbers, and a client `b` for whom nothing differs."""
    truth = {m: {"a": numbers, "b": ALONE} for m, numbers in methods.items()}
    return Results.load(fake_run.write(folder, truth, **{"noise": 0.0002, **settings}))


def say(results: Results, client: str = "a") -> str:
    story = words.tell(results)
    one = next(c for c in story.clients if c.client == client)
    return " ".join((one.headline, *one.numbers))


def test_the_story_of_the_first_screen(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path, noise=0.004))
    story = words.tell(results)
    swiss = next(c for c in story.clients if c.client == "switzerland")
    assert swiss.name == "Switzerland"
    assert harming(results, "switzerland") == ("fedavg",)
    assert swiss.verdict.method == "meritfed"
    beach = next(c for c in story.clients if c.client == "long-beach")
    assert beach.headline.startswith("Join (")
    assert story.answer[0].startswith("Join: ")
    assert (
        "Averaging (fedavg): better for 2 of 4 (Cleveland and Long Beach); worse for "
        in story.answer[1]
    )


def test_auc_decides_only_with_ten_rows_of_each_class(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    assert (
        results.comparisons.rarest("switzerland")
        < 10
        <= results.comparisons.rarest("long-beach")
    )
    assert results.comparisons.deciding("switzerland") == ("loss",)
    assert results.comparisons.deciding("long-beach") == ("auc", "loss")
    # Without rows the largest share bounds the others: 41 rows of which .8 are of one class.
    bare = Results.load(fake_run.heart(tmp_path / "bare", outcomes=False))
    assert bare.comparisons.deciding("switzerland") == ("loss",)
    assert bare.comparisons.deciding("long-beach") == ("auc", "loss")


def test_join_names_the_method_and_the_gain(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": BETTER})
    found = verdict(results, "a")
    assert (found.kind, found.method) == ("join", "fedavg")
    assert found.gain == pytest.approx(0.15, abs=0.01)
    assert found.low < found.gain < found.high
    assert found.own[0] < 0.15 < found.own[1]
    assert found.probability > 0.99
    assert found.smallest == pytest.approx(
        0.04 * 0.6 * 0.4, rel=0.05
    )  # a share of .6 of one class
    assert say(results).startswith(
        "Join (over 99 %): fedavg lowers the log-loss by about .15 (95 %: "
    )
    assert words.tell(results).answer[0] == "Join: a. Safe to join, no gain shown: b."


def test_without_losses_per_row_there_is_no_verdict(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": BETTER}, outcomes=False)
    assert verdict(results, "a").kind == "no verdict"
    assert helping(results, "a") == ()
    assert (
        "Losses per patient were not saved, so that there is no verdict."
        in words.tell(results).caveats
    )


def test_the_words_flip_with_the_sign(tmp_path: Path) -> None:
    up = say(load(tmp_path / "up", {"local": ALONE, "fedavg": BETTER}))
    down = say(load(tmp_path / "down", {"local": ALONE, "fedavg": WORSE}))
    swapped = say(load(tmp_path / "swapped", {"local": BETTER, "fedavg": ALONE}))
    for text in (down, swapped):
        assert text.startswith(
            "Stay alone (over 99 %): fedavg raises the log-loss by about .15 (95 %: .15 to .15). fedavg: AUC −."
        )
        assert "log-loss +.15" in text
    assert "AUC +.1" in up
    assert "log-loss −.15" in up


def test_join_with_whom(tmp_path: Path) -> None:
    rows = {
        "a": (0.5, 0.4, 0.05, 0.05),
        "b": (0.25,) * 4,
        "c": (0.25,) * 4,
        "d": (0.25,) * 4,
    }
    truth = {
        m: dict.fromkeys("abcd", ALONE) | {"a": n}
        for m, n in {"local": ALONE, "meritfed": BETTER}.items()
    }
    results = Results.load(
        fake_run.write(tmp_path, truth, noise=0.0002, weights={"meritfed": rows})
    )
    found = verdict(results, "a")
    assert found.kind == "join"
    assert [name for name, _ in found.partners] == ["b"]
    assert found.partners[0][1] == pytest.approx(0.4, abs=0.01)
    assert words.headline(results, found).startswith(
        "Join with b (over 99 %): meritfed lowers the log-loss by about .15"
    )
    assert words.takes(results, "a", "meritfed") == "40 % from b"


@pytest.mark.parametrize(
    "row", [(0.25, 0.25, 0.25, 0.25), (0.94, 0.02, 0.02, 0.02), (0.1, 0.3, 0.3, 0.3)]
)
def test_join_without_partners_if_weights_point_at_nobody_or_at_all(
    tmp_path: Path, row: tuple[float, ...]
) -> None:
    truth = {
        m: dict.fromkeys("abcd", ALONE) | {"a": n}
        for m, n in {"local": ALONE, "meritfed": BETTER}.items()
    }
    results = Results.load(
        fake_run.write(tmp_path, truth, noise=0.0002, weights={"meritfed": {"a": row}})
    )
    assert verdict(results, "a").kind == "join"


def test_the_smallest_effect_can_be_set(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    load(folder, {"local": ALONE, "fedavg": (0.8, 0.78, 0.8, 0.42)})
    assert verdict(Results.load(folder), "a").kind == "join"
    (folder / "experiment.toml").write_text(
        (folder / "experiment.toml").read_text() + "\n[report]\nsmallest = 0.1\n"
    )
    assert verdict(Results.load(folder), "a").kind == "safe to join"


def primary(folder: Path, label: str) -> Results:
    path = folder / "experiment.toml"
    path.write_text(f'{path.read_text()}\n[report]\nprimary = "{label}"\n')
    return Results.load(folder)


def test_the_first_federated_method_speaks_unless_another_is_named(
    tmp_path: Path,
) -> None:
    smaller: Numbers = (0.80, 0.78, 0.90, 0.40)
    results = load(tmp_path, {"local": ALONE, "fedavg": smaller, "meritfed": BETTER})
    assert verdict(results, "a").method == "fedavg"
    assert verdict(primary(tmp_path, "meritfed"), "a").method == "meritfed"


def test_partial_speaks_wherever_it_stands(tmp_path: Path) -> None:
    methods = {"local": ALONE, "fedavg": BETTER, "partial": BETTER}
    assert load(tmp_path, methods).primary == "partial"


def test_a_method_that_says_more_and_is_shown_better_speaks_instead(
    tmp_path: Path,
) -> None:
    rival = {"local": ALONE, "fedavg": ALONE, "meritfed": BETTER}
    found = verdict(load(tmp_path / "better", rival), "a")
    assert (found.kind, found.method) == ("join", "meritfed")
    harm = {"local": ALONE, "fedavg": WORSE, "meritfed": (0.80, 0.78, 0.80, 0.55)}
    found = verdict(load(tmp_path / "harm", harm), "a")
    assert (found.kind, found.method) == ("stay alone", "fedavg")
    one = verdict(load(tmp_path / "one", harm | {"meritfed": ALONE}), "a")
    assert (one.kind, one.method) == ("safe to join", "meritfed")


def test_a_method_that_may_only_be_luckier_does_not_speak(tmp_path: Path) -> None:
    """One noisy method says more than another whose losses it does not beat beyond chance."""
    noisy = {"local": ALONE, "fedavg": ALONE, "meritfed": (0.8, 0.78, 0.8, 0.43)}
    truth = {m: dict.fromkeys("abcdef", numbers) for m, numbers in noisy.items()}
    results = Results.load(fake_run.write(tmp_path, truth, noise=0.03))
    luckier = [
        client
        for client in "abcdef"
        if STRENGTH[judge(results, client, "meritfed").kind]
        > STRENGTH[judge(results, client, "fedavg").kind]
        and results.comparisons.chance_of_better("meritfed", "fedavg", client) < 0.975
    ]
    assert luckier
    assert all(verdict(results, client).method == "fedavg" for client in luckier)


@pytest.mark.in_turn(but=("0", "5"))
@pytest.mark.parametrize("seed", range(12))
def test_a_method_that_is_added_last_weakens_no_word(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"c{i}" for i in range(int(rng.integers(1, 6)))]
    sizes = {c: int(rng.integers(12, 200)) for c in names}
    noise = float(rng.choice([0.002, 0.02, 0.06]))
    added = ("fedavg", "fedprox", "meritfed", "scaffold")
    losses = {m: 0.45 + 0.03 * rng.standard_normal(len(names)) for m in added}
    areas = {m: 0.8 + 0.03 * rng.standard_normal(len(names)) for m in added}
    truth: dict[str, Any] = {"local": dict.fromkeys(names, ALONE)}
    weakened, before = 0, dict.fromkeys(names, 0)
    for number, method in enumerate(added):
        truth[method] = {
            c: (0.8, 0.78, float(area), float(loss))
            for c, area, loss in zip(names, areas[method], losses[method], strict=True)
        }
        folder = tmp_path / str(number)
        fake_run.write(folder, truth, noise=noise, n_test=sizes, seeds=range(3))
        results = Results.load(folder)
        kinds = {c: verdict(results, c).kind for c in names}
        for client, kind in kinds.items():
            strength = STRENGTH.get(kind, -1)
            weakened += number > 0 and strength < before[client]
            before[client] = strength
    assert weakened == 0


def test_ranking_can_veto_a_gain_and_never_win_one(tmp_path: Path) -> None:
    worse_ranks = load(
        tmp_path / "veto", {"local": ALONE, "fedavg": (0.80, 0.78, 0.60, 0.30)}
    )
    found = verdict(worse_ranks, "a")
    assert found.kind == "mixed"
    assert found.reason.startswith("fedavg changes the log-loss by −.1")
    assert ", but ranks worse (AUC −." in found.reason
    better_ranks = load(
        tmp_path / "win", {"local": ALONE, "fedavg": (0.80, 0.78, 0.95, 0.60)}
    )
    assert verdict(better_ranks, "a").kind == "stay alone"


def test_accuracy_illustrates_and_decides_nothing(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": (0.60, 0.60, 0.80, 0.45)})
    assert verdict(results, "a").kind == "safe to join"
    assert harming(results, "a") == ()
    found = results.difference("fedavg", "local", "a", "accuracy")
    assert found is not None
    assert found.excludes_zero
    assert found.strength == "no verdict"


def test_what_is_smaller_than_the_smallest_effect_is_no_gain(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": (0.80, 0.78, 0.80, 0.442)})
    found = verdict(results, "a")
    said = words.headline(results, found)
    assert said.startswith(
        "Safe to join (over 99 %): fedavg costs at most .009 in log-loss (95 %: .00"
    )
    assert said.endswith(" better): a gain, too small to matter.")


def test_what_rests_on_the_others_alone_says_so(tmp_path: Path) -> None:
    names, other = [f"c{i}" for i in range(6)], {"c0": (0.8, 0.78, 0.8, 0.47)}
    truth = {
        "local": dict.fromkeys(names, ALONE),
        "fedavg": {**dict.fromkeys(names, (0.8, 0.78, 0.8, 0.40)), **other},
    }
    results = Results.load(fake_run.write(tmp_path, truth, noise=0.04, seeds=range(9)))
    verdicts = {c: verdict(results, c) for c in names}
    against = {c for c, v in verdicts.items() if sum(v.own) < 0 < v.gain and v.joins}
    assert "c0" in against
    said = {
        c
        for c, v in verdicts.items()
        if "; its own rows alone point the other way" in v.reason
    }
    assert said == against


@pytest.mark.parametrize("name", ["fedavg+bias", "ours"])
def test_join_then_recalibrate(tmp_path: Path, name: str) -> None:
    methods = {"local": ALONE, "fedavg": WORSE, name: BETTER}
    results = load(tmp_path, methods, tuned={name: "fedavg"})
    found = verdict(results, "a")
    assert (found.kind, found.method, found.recalibrate) == ("join", name, True)
    assert words.headline(results, found).startswith(
        f"Join, then recalibrate (over 99 %): {name} lowers the log-loss by about .15"
    )
    assert words.label(results, name) == f"Averaging, recalibrated ({name})"


def test_a_method_is_recalibrated_by_its_settings_and_not_by_its_label(
    tmp_path: Path,
) -> None:
    named = load(tmp_path, {"local": ALONE, "fedavg": ALONE, "fedavg+bias": BETTER})
    assert not named.recalibrates("fedavg+bias")
    assert not verdict(named, "a").recalibrate
    alone = load(
        tmp_path / "alone", {"local": ALONE, "ours": BETTER}, tuned={"ours": "fedavg"}
    )
    assert verdict(alone, "a").recalibrate


def test_a_join_that_does_not_beat_a_constant_says_so_in_the_same_line(
    tmp_path: Path,
) -> None:
    # Always predicting the same risk costs about .65 per row.
    better: Numbers = (0.6, 0.6, 0.7, 0.66)
    results = load(
        tmp_path, {"local": (0.5, 0.5, 0.6, 0.9), "fedavg": better}, majority=0.6
    )
    assert words.headline(results, verdict(results, "a")).endswith(
        "; not shown to beat giving every row the same risk."
    )
    assert words.constant(results, "a").endswith("No model here is shown to beat that.")
    assert results.unproven("a")
    assert any(
        "No model is shown to beat a constant prediction at a." in line
        for line in answer_lines(results, width=100)
    )


def test_a_join_that_a_constant_beats_says_by_how_much(tmp_path: Path) -> None:
    """A constant that scored .85 beside .88 was told as not being shown to be worse."""
    # Always predicting the same risk costs about .65 per row.
    better: Numbers = (0.6, 0.6, 0.7, 0.8)
    results = load(
        tmp_path, {"local": (0.5, 0.5, 0.6, 1.2), "fedavg": better}, majority=0.6
    )
    found = verdict(results, "a")
    assert found.joins
    assert "giving every row the same risk does better still, by about .1" in str(found)


def alone(folder: Path, loss: float, noise: float) -> Any:
    """The verdict of a single client whose loss alone is .45."""
    truth = {"local": {"a": ALONE}, "fedavg": {"a": (0.8, 0.78, 0.8, loss)}}
    return verdict(Results.load(fake_run.write(folder, truth, noise=noise)), "a")


def test_undecided_says_what_is_possible_and_rows_that_can_be_collected(
    tmp_path: Path,
) -> None:
    found = alone(tmp_path / "near", 0.45, 0.02)
    assert found.kind == "undecided"
    assert 0 < found.rows <= 3 * 270
    assert "with fedavg, anything from ." in found.reason
    assert found.reason.endswith(
        f"about {found.rows:,} more rows here would probably settle it"
    )
    far = alone(tmp_path / "far", 0.44, 0.2)
    assert (far.kind, far.rows) == ("undecided", None)
    assert far.reason.endswith("is possible")


def test_a_join_says_with_how_many_rows_of_ones_own_partners_are_hardly_needed(
    tmp_path: Path,
) -> None:
    found = alone(tmp_path / "few", 0.425, 0.002)
    assert found.kind == "join"
    results = Results.load(tmp_path / "few")
    rows = results.comparisons.gain("fedavg", "a", "loss").rows
    needed = rows * (found.gain / found.smallest - 1)
    assert needed <= found.rows <= needed + 10
    assert found.reason.endswith(
        f"with about {found.rows:,} more rows of your own you will hardly need partners"
    )
    many = alone(tmp_path / "many", 0.30, 0.002)
    assert (many.kind, many.rows) == ("join", None)
    assert "partners" not in many.reason


def test_probably_says_how_sure_it_is_of_which_way(tmp_path: Path) -> None:
    for name, loss, noise, way in (
        ("join", 0.40, 0.045, "lowers"),
        ("stay alone", 0.50, 0.03, "raises"),
    ):
        found = alone(tmp_path / name, loss, noise)
        assert found.kind == f"probably {name}"
        assert f"probably {way} the log-loss, by about ." in found.reason


@pytest.mark.parametrize(
    ("gain", "noise", "ends"),
    [
        (0.0005, 0.006, "better): a gain is not shown"),
        (0.0005, 0.0002, "better): a gain, too small to matter"),
    ],
)
def test_safe_to_join_says_what_the_interval_shows(
    tmp_path: Path, gain: float, noise: float, ends: str
) -> None:
    found = alone(tmp_path, ALONE[3] - gain, noise)
    assert (found.kind, found.rows) == ("safe to join", None)
    assert found.reason.endswith(ends)


def test_what_is_said_of_an_interval_is_true_of_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10_000):
        low, high = np.sort(rng.normal(0, 0.02, 2) * rng.choice([0.1, 1.0]))
        bound = abs(float(rng.normal(0, 0.01)))
        said = describe_gain(low, high, bound)
        assert ("a gain" in said and "not shown" not in said) == (low > 0)
        assert ("a loss" in said) == (high < 0)
        assert ("not shown" in said or "no effect is shown" in said) == (
            low <= 0 <= high
        )
        assert ("too small to matter" in said) == (-bound < low and high < bound)


@pytest.mark.parametrize("rows", [10, 29])
def test_too_few_rows_in_verdicts_and_in_counts(tmp_path: Path, rows: int) -> None:
    truth = {
        m: dict.fromkeys("ab", n) for m, n in {"local": ALONE, "fedavg": WORSE}.items()
    }
    results = Results.load(
        fake_run.write(tmp_path, truth, noise=0.0002, n_test={"a": rows, "b": 40})
    )
    assert say(results, "a").startswith(f"Too few rows to tell: {rows} test rows, ")
    assert harming(results, "a") == ()
    assert harming(results, "b") == ("fedavg",)
    assert (
        words.tell(results)
        .answer[1]
        .startswith("Averaging (fedavg): worse for 1 of 1 (b);")
    )
    said = "Counts leave out 1 client with fewer than 30 test rows, or few of a class; means do not."
    assert said in words.tell(results).caveats
    assert words.numbers(results, "fedavg", None).startswith(
        f"AUC {with_sign(results.comparisons.family('b')['fedavg', 'auc'].mean)}"
        if rows == 10
        else "AUC "
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_less_than_three_seeds_give_numbers_without_a_verdict(
    tmp_path: Path, seeds: int
) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": WORSE}, seeds=range(seeds))
    noun = "seed" if seeds == 1 else "seeds"
    assert say(results).startswith(
        f"No verdict: {seeds} {noun}; a verdict needs 3. fedavg: AUC −.1"
    )
    assert "worse" not in " ".join(words.tell(results).answer)
    assert (
        f"{seeds} {noun} cannot show a difference; repeat with --folds 5, or with --seeds 5."
        in words.tell(results).caveats
    )
    three = load(tmp_path / "3", {"local": ALONE, "fedavg": WORSE}, seeds=range(3))
    assert verdict(three, "a").kind == "stay alone"


def test_centralised_never_wins(tmp_path: Path) -> None:
    results = load(
        tmp_path, {"local": ALONE, "fedavg": ALONE, "centralised": BETTER}, noise=0.01
    )
    assert verdict(results, "a").method == "fedavg"
    assert "centralised" not in say(results)


def test_without_local_there_is_no_harm(tmp_path: Path) -> None:
    results = load(tmp_path, {"fedavg": ALONE, "meritfed": WORSE})
    story = words.tell(results)
    assert (
        story.answer[0]
        == "No method trained each client alone, so nothing can be called help or harm."
    )
    assert story.answer[2].startswith("meritfed: accuracy .75")
    assert {v.kind for v in story.verdicts.values()} == {"no verdict"}
    assert harming(results, "a") == ()


def test_without_local_a_method_for_few_says_whom_it_serves(tmp_path: Path) -> None:
    truth = {"fedavg": {"a": (0.8,), "b": (0.8,)}, "varsel": {"a": (0.8,)}}
    results = Results.load(
        fake_run.write(tmp_path, truth, metrics=("accuracy",), majority=None)
    )
    assert words.tell(results).answer[-1] == "varsel: serves 1 of 2 (a)."


def test_labels_and_algorithms_are_different_things(tmp_path: Path) -> None:
    kinds = {"each for itself": "local", "the usual": "fedavg", "mine": "my.py:Mine"}
    numbers = {"each for itself": ALONE, "the usual": WORSE, "mine": BETTER}
    results = load(tmp_path, numbers, algorithms=kinds)
    assert results.baseline == "each for itself"
    assert verdict(results, "a").method == "mine"
    assert (
        words.tell(results)
        .answer[1]
        .startswith("Averaging (the usual): worse for 1 of 2 (a)")
    )


def test_regression(tmp_path: Path) -> None:
    truth = {"local": {"a": (2.0,), "b": (2.0,)}, "fedavg": {"a": (1.5,), "b": (2.5,)}}
    results = Results.load(
        fake_run.write(tmp_path, truth, metrics=("loss",), majority=None)
    )
    truth = {
        m: {c: tuple(100 * v for v in n) for c, n in row.items()}
        for m, row in truth.items()
    }
    results = Results.load(
        fake_run.write(tmp_path / "large", truth, metrics=("loss",), majority=None)
    )
    assert verdict(results, "a").kind == "join"
    assert verdict(results, "b").kind == "stay alone"
    assert harming(results, "b") == ("fedavg",)
    assert "loss −50" in say(results)
    assert "accuracy" not in say(results)


def test_a_method_for_few_says_whom_it_serves_and_they_are_shown(
    tmp_path: Path,
) -> None:
    everybody = [f"c{i:02d}" for i in range(30)]
    truth = {
        "local": dict.fromkeys(everybody, (0.8,)),
        "fedavg": {c: (0.8 + (i - 15) / 1000,) for i, c in enumerate(everybody)},
        "varsel": {"c14": (0.81,), "c16": (0.81,)},
    }
    results = Results.load(
        fake_run.write(tmp_path, truth, metrics=("accuracy",), majority=None)
    )
    assert {"c14", "c16"} < set(results.extremes("accuracy", 8))
    assert len(results.extremes("accuracy", 8)) == 8
    assert words.tell(results).answer[-1] == "varsel: serves 2 of 30 (c14 and c16)."


def test_a_client_without_a_defined_metric_is_served_all_the_same(
    tmp_path: Path,
) -> None:
    everybody = [f"c{i:02d}" for i in range(20)]
    lone = {c: (0.7 if c == "c03" else None, 0.4) for c in everybody}
    results = Results.load(
        fake_run.write(
            tmp_path,
            {"local": lone, "fedavg": lone},
            metrics=("auc", "loss"),
            majority=None,
        )
    )
    assert results.clients_of("fedavg") == tuple(everybody)
    assert "serves" not in " ".join(words.tell(results).answer)
    assert len(results.extremes("auc", 8)) == 8


def test_undefined_auc_is_not_spoken_of(tmp_path: Path) -> None:
    results = load(
        tmp_path, {"local": (0.8, 0.8, None, 0.4), "fedavg": (0.9, 0.9, None, 0.3)}
    )
    assert "AUC" not in say(results)
    assert verdict(results, "a").kind == "join"


def test_a_fixed_split_is_a_caveat_and_needs_no_correction(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    free = Results.load(folder).difference("meritfed", "local", "cleveland", "accuracy")
    (folder / "experiment.toml").write_text(
        (folder / "experiment.toml").read_text() + "\n[split]\nseed = 3\n"
    )
    results = Results.load(folder)
    fixed = results.difference("meritfed", "local", "cleveland", "accuracy")
    assert any("split.seed = 3" in c for c in words.tell(results).caveats)
    assert free is not None
    assert fixed is not None
    assert fixed.half_width == pytest.approx(
        (free.half_width or 0) * (0.2 / 0.7) ** 0.5
    )  # 1/5 against 1/5 + 1/2


@pytest.mark.parametrize("test", ["label-mix", "standard"])
def test_a_test_set_of_its_own_needs_no_correction_for_shared_rows(
    test: str, tmp_path: Path
) -> None:
    folder = fake_run.heart(tmp_path)
    own = Results.load(folder).difference("meritfed", "local", "cleveland", "accuracy")
    (folder / "experiment.toml").write_text(
        (folder / "experiment.toml").read_text() + f'\n[split]\ntest = "{test}"\n'
    )
    apart = Results.load(folder).difference(
        "meritfed", "local", "cleveland", "accuracy"
    )
    assert own is not None
    assert apart is not None
    assert apart.half_width == pytest.approx((own.half_width or 0) * (0.2 / 0.7) ** 0.5)


def hundred(folder: Path, **settings: Any) -> tuple[Results, Any]:
    gaps = np.random.default_rng(3).choice([-0.1, 0.0, 0.1], 100)
    truth = {
        "local": {f"c{i:02d}": ALONE for i in range(100)},
        "fedavg": {
            f"c{i:02d}": (0.8 + g, 0.78 + g, 0.8 + g, 0.45 - g)
            for i, g in enumerate(gaps)
        },
    }
    return Results.load(fake_run.write(folder, truth, noise=0.0002, **settings)), gaps


@pytest.mark.in_turn
def test_many_clients_are_summarised(tmp_path: Path) -> None:
    results, gaps = hundred(tmp_path)
    story = words.tell(results)
    assert len(story.clients) == 6
    assert len(story.verdicts) == 100
    better, worse = int((gaps > 0).sum()), int((gaps < 0).sum())
    assert f"Join: {better} of 100 clients. " in story.answer[0]
    assert f"Stay alone: {worse} of 100 clients." in story.answer[0]
    assert (
        f"better for {better} of 100; worse for {worse} of 100; mean over clients"
        in story.answer[1]
    )
    assert (
        story.caveats[0]
        == "Shown: the 6 of 100 clients with the largest gains and losses."
    )


def test_the_extremes_of_many_clients_are_those_with_rows_enough(
    tmp_path: Path,
) -> None:
    names = [f"c{i:02d}" for i in range(40)]
    few = dict.fromkeys(names[10:], 12)
    gain: dict[str, Numbers] = {
        c: (0.8, 0.78, 0.8, 0.45 - (0.2 if c in few else 0.02 * i))
        for i, c in enumerate(names)
    }
    truth = {"local": dict.fromkeys(names, ALONE), "fedavg": gain}
    results = Results.load(
        fake_run.write(
            tmp_path, truth, noise=0.0002, n_test={**dict.fromkeys(names, 50), **few}
        )
    )
    assert {c.client for c in words.tell(results).clients} == {
        "c00",
        "c01",
        "c02",
        "c07",
        "c08",
        "c09",
    }
    assert results.extremes("loss", 12)[:10] == tuple(
        names[:10]
    )  # the others stand in what is left


def test_who_has_too_few_rows_is_not_compared_with_a_constant(tmp_path: Path) -> None:
    names = [f"c{i:02d}" for i in range(30)]
    truth = {m: dict.fromkeys(names, (0.5, 0.5, 0.6, 0.9)) for m in ("local", "fedavg")}
    results = Results.load(
        fake_run.write(tmp_path, truth, n_test={**dict.fromkeys(names, 50), "c03": 12})
    )
    assert words.constant(results, "c03") == ""
    assert words.constant(results, "c04").endswith(
        "No model here is shown to beat that."
    )
    said = " ".join(answer_lines(results, width=80))
    assert (
        "No model is shown to beat a constant prediction at 29 of 30 clients." in said
    )


def test_small_clients_are_judged_among_themselves(tmp_path: Path) -> None:
    truth = {
        m: {f"c{i:02d}": n for i in range(60)}
        for m, n in {"local": ALONE, "fedavg": BETTER}.items()
    }
    results = Results.load(fake_run.write(tmp_path, truth, noise=0.0002, n_test=12))
    story = words.tell(results)
    assert story.answer[0] == "Join: all 60 clients."
    found = story.verdicts["c00"]
    assert (found.kind, found.together) == ("join", 60)
    together = "f the 60 clients with under 30 rows about 60 gain (mean .15)"
    limit = "your 12 rows cannot tell whether you do"
    assert found.reason.startswith("fedavg lowers the log-loss by about .15 (95 %: .1")
    assert found.reason.endswith(f"; o{together}; {limit}")
    assert story.group == f"O{together}."
    shown = story.clients[0].headline
    assert shown.startswith("Join (over 99 %): fedavg lowers the log-loss by about .15")
    assert shown.endswith(f"; {limit}.")
    assert "of the 60" not in shown
    assert story.answer[1].startswith(
        "Averaging (fedavg): mean over clients log-loss −.150"
    )
    assert " ".join(answer_lines(results, width=80)).count("60 clients with under") == 1


def test_small_clients_come_last_and_each_has_a_word(tmp_path: Path) -> None:
    names = "abcdef"
    truth = {
        m: dict.fromkeys(names, n)
        for m, n in {"local": ALONE, "fedavg": (0.8, 0.78, 0.8, 0.44)}.items()
    }
    results = Results.load(
        fake_run.write(
            tmp_path, truth, noise=0.1, n_test={**dict.fromkeys(names, 20), "e": 200}
        )
    )
    story = words.tell(results)
    assert [c.client for c in story.clients] == ["e", "a", "b", "c", "d", "f"]
    found = story.verdicts["a"]
    assert (found.kind, found.together, found.rows) == ("undecided", 5, None)
    assert found.reason.endswith("; your 20 rows cannot tell whether you do")
    gaining = sum(
        results.comparisons.posteriors("fedavg", "loss")[c].above(0.0) for c in "abcdf"
    )
    assert story.group.startswith(
        f"Of the 5 clients with under 30 rows about {round(gaining)} gain (mean "
    )


def test_what_makes_a_client_small_is_named(tmp_path: Path) -> None:
    names = [f"c{i:02d}" for i in range(6)]
    truth = {
        m: dict.fromkeys(names, n)
        for m, n in {"local": ALONE, "fedavg": BETTER}.items()
    }
    rare, both = dict.fromkeys(names, 200), {**dict.fromkeys(names, 200), "c00": 12}
    for sizes, few in (
        (rare, "under 5 rows of the rarer class"),
        (both, "under 30 rows or 5 of the rarer class"),
    ):
        folder = fake_run.write(
            tmp_path / str(len(few)), truth, noise=0.0002, n_test=sizes, majority=0.98
        )
        assert (
            f"the 6 clients with {few} about 6 gain"
            in words.tell(Results.load(folder)).group
        )


def test_words_say_how_sure_they_are(tmp_path: Path) -> None:
    kinds = {}
    for loss in (0.41, 0.443, 0.49, 0.46):
        truth = {"local": {"a": ALONE}, "fedavg": {"a": (0.8, 0.78, 0.8, loss)}}
        results = Results.load(fake_run.write(tmp_path / str(loss), truth, noise=0.02))
        kinds[loss] = verdict(results, "a")
    sure = (
        "probably join",
        "probably stay alone",
        "join",
        "stay alone",
        "safe to join",
    )
    assert all(v.probability >= 0.8 for v in kinds.values() if v.kind in sure)
    assert {v.kind for v in kinds.values()} & {
        "probably join",
        "probably stay alone",
        "undecided",
    }


def test_the_mean_of_auc_says_over_whom_it_is(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    said = "AUC covers 3 of 4 clients: Switzerland has under 10 test rows of a class."
    assert said in words.tell(results).caveats
    judged = [
        results.comparisons.family(c).get(("meritfed", "auc")) for c in results.clients
    ]
    means = [d.mean for d in judged if d is not None]
    assert len(means) == 3
    assert results.comparisons.family(None)["meritfed", "auc"].mean == pytest.approx(
        sum(means) / 3
    )
    everyone = load(tmp_path / "all", {"local": ALONE, "fedavg": BETTER})
    assert not any("AUC covers" in text for text in words.tell(everyone).caveats)


def test_the_answer_says_in_which_direction_each_metric_is_better(
    tmp_path: Path,
) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": BETTER})
    said = "Higher AUC: better ranking; lower log-loss: more honest risks."
    assert words.tell(results).meaning == said
    assert said in answer_lines(results, width=80)
    apart = load(tmp_path / "apart", {"fedavg": ALONE, "meritfed": BETTER})
    assert words.tell(apart).meaning == said
    alone = words.tell(
        load(
            tmp_path / "alone",
            {"local": ALONE},
            seeds=range(2),
            n_test={"a": 12, "b": 50},
        )
    )
    assert (alone.meaning, alone.caveats) == ("", ())  # nothing is compared
    truth = {m: {"a": (v,)} for m, v in {"local": 3.0, "fedavg": 2.0}.items()}
    numbers = Results.load(
        fake_run.write(tmp_path / "numbers", truth, metrics=("rmse",), outcomes=False)
    )
    assert words.tell(numbers).meaning == "Lower RMSE: smaller errors."


@pytest.mark.parametrize("seeds", [1, 2])
def test_less_than_three_seeds_say_nothing_of_a_constant_and_what_an_interval_is(
    tmp_path: Path, seeds: int
) -> None:
    poor = {"local": (0.5, 0.5, 0.6, 0.9), "fedavg": (0.5, 0.5, 0.6, 0.9)}
    results = load(tmp_path, poor, seeds=range(seeds), majority=0.6)  # type: ignore[arg-type]
    assert not results.unproven("a")
    assert words.constant(results, "a") == ""
    lines = answer_lines(results, width=80)
    assert (
        any("±" in line for line in lines) == (words.INTERVAL in lines) == (seeds == 2)
    )


# The terminal


SEVEN = ("local", "fedavg", "fedprox", "scaffold", "meritfed", "qffl", "ditto")


def test_the_answer_fits_a_screen(tmp_path: Path) -> None:
    few = Results.load(fake_run.heart(tmp_path / "few"))
    many, _ = hundred(
        tmp_path / "many",
        notes=[
            f"note {i} about something that takes a whole line of text"
            for i in range(9)
        ],
    )
    truth = {
        m: dict.fromkeys(
            (f"hospital number {i}" for i in range(12)),
            WORSE if m == "fedprox" else BETTER,
        )
        for m in SEVEN
    }
    twelve = Results.load(fake_run.write(tmp_path / "twelve", truth, noise=0.0002))
    for results, width in product((few, many, twelve), (40, 80, 120)):
        lines = answer_lines(
            results,
            width=width,
            ends=["run directory  run", "report         run/report.html"],
        )
        assert max(map(len, lines)) <= width
        assert lines[-1] == "report         run/report.html"
        if width >= 80:
            assert len(lines) <= LINES
        assert "" not in (lines[0], lines[-1])
    assert sum(line.startswith("c") for line in answer_lines(many, width=80)) == 6


def test_a_long_name_does_not_run_into_its_verdict(tmp_path: Path) -> None:
    names = ("thirteenchars", "fourteen-chars", "university-hospital-north")
    truth = {
        m: dict.fromkeys(names, n) for m, n in {"local": ALONE, "fedavg": WORSE}.items()
    }
    lines = answer_lines(
        Results.load(fake_run.write(tmp_path, truth, noise=0.0002)), width=80
    )
    for shown in ("Thirteenchars", "Fourteen Chars", "University Hospital North"):
        assert any(
            line.startswith(f"{shown} Stay alone (over 99 %): fedavg raises")
            for line in lines
        )


def test_notes_without_room_are_counted(tmp_path: Path) -> None:
    long = "a note of more than one line, " * 4
    results = Results.load(fake_run.heart(tmp_path, notes=[long] * 5))
    lines = answer_lines(results, width=80, ends=["end"] * 9)
    assert [line for line in lines if "note" in line] == [
        "note: 5 on the data in the report"
    ]


def test_numbers_stand_beside_as_many_verdicts_as_there_is_room_for(
    tmp_path: Path,
) -> None:
    results = Results.load(fake_run.heart(tmp_path, notes=[]))
    whole = answer_lines(results, width=80)
    short = answer_lines(results, width=80, ends=[""] * (LINES - len(whole) + 2))
    assert len(short) <= LINES
    numbers = [
        sum(line.startswith(("    fedavg:", "    meritfed:")) for line in lines)
        for lines in (whole, short)
    ]
    assert 0 < numbers[1] < numbers[0]
    assert [line for line in short if line.startswith("Long Beach")] == [
        line for line in whole if line.startswith("Long Beach")
    ]


@pytest.mark.in_turn
def test_a_verdict_without_its_numbers_is_still_a_whole_sentence(
    tmp_path: Path,
) -> None:
    numbers: dict[str, Numbers] = {"fedavg": (0.8, 0.78, 0.8, 0.45), "fedprox": WORSE}
    truth = {
        m: dict.fromkeys((f"c{i:02d}" for i in range(30)), numbers.get(m, ALONE))
        for m in SEVEN
    }
    lines = answer_lines(
        Results.load(fake_run.write(tmp_path, truth, noise=0.0002)), width=80
    )
    first = next(i for i, line in enumerate(lines) if line.startswith("c0"))
    said = " ".join(" ".join(lines[first:]).split()).partition(" c")[0]
    assert said.partition(" ")[2].startswith("Safe to join (")


def test_the_answer_comes_first(tmp_path: Path) -> None:
    lines = answer_lines(Results.load(fake_run.heart(tmp_path)), width=80)
    assert lines[0].startswith(
        "heart-disease: 4 clients, 3 methods, 5 seeds, 60 rounds, 307 test rows"
    )
    assert lines[2].startswith("Join: ")
    assert any(line.startswith("Cleveland     ") for line in lines)
    assert "    fedavg: AUC " in "\n".join(lines)


def test_a_client_too_small_to_be_tested_is_left_out_of_the_mean(
    tmp_path: Path,
) -> None:
    names = ("a", "b", "c")
    truth = {
        m: dict.fromkeys(names, n)
        for m, n in {"local": ALONE, "fedavg": BETTER}.items()
    }
    folder = fake_run.write(tmp_path, truth, noise=0.0002, outcomes=False)
    summary = json.loads((folder / "summary.json").read_text())
    rows = [
        {**row, "split": "train"} if row["client"] == "c" else row for row in summary
    ]
    (folder / "summary.json").write_text(json.dumps(rows))
    results = Results.load(folder)
    assert (results.clients, results.test_clients) == (names, names[:2])
    found = verdict(results, "c")
    assert (found.kind, found.method) == ("too few rows to tell", None)
    assert found.reason.startswith("with so few rows all train and none is tested")
    assert (
        words.tell(results)
        .answer[1]
        .startswith("Averaging (fedavg): mean over clients AUC +.1")
    )
    assert "200 test rows" in words.facts(results)


@pytest.mark.parametrize("name", ["meritfed", "scaffold"])
def test_a_method_is_explained_in_a_line_or_by_a_command_that_there_is(
    tmp_path: Path, name: str
) -> None:
    results = load(tmp_path, {"local": ALONE, name: BETTER})
    (gist,) = words.gists(results, {"a": verdict(results, "a")}).values()
    command = re.search(r"coterie (show .*) explains it", gist)
    assert cli.main(command[1].split() if command else ["show", name]) == 0
    assert (command is None) == (name == "meritfed")
