"""Words of which the truth is known: every verdict, and that words flip when numbers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_run
import numpy as np
import pytest

from coterie.report import words
from coterie.report.results import Results
from coterie.report.verdicts import Verdict, verdict

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
    return f"{words.headline(results, one.verdict)}. {' '.join(one.sentences)}"


def test_the_story_of_the_first_screen(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path, noise=0.004))
    story = words.tell(results)
    swiss = next(c for c in story.clients if c.client == "switzerland")
    text = " ".join(swiss.sentences)
    assert swiss.name == "Switzerland"
    assert swiss.harmed == ("fedavg",)
    assert "Averaging (fedavg) costs you 14." in text
    assert "points of accuracy (.7" in text
    assert "raises your log-loss by .2" in text
    assert "It takes 6 % of its weight from others, most of it from Long Beach (3 %)." in text
    assert "93.5 % of your test rows are of one class: always naming it has an accuracy of .935, and no method" in text
    assert next(c for c in story.clients if c.client == "long-beach").verdict.kind == "join"
    assert "clearly harms" in " ".join(story.answer)
    assert any("95 % interval over 5 seeds" in c for c in story.caveats)


def test_join_names_the_method_and_the_metrics(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": BETTER})
    got = verdict(results, "a")
    assert (got.kind, got.method, got.metrics) == ("join", "fedavg", ("accuracy", "auc", "loss"))
    assert say(results).startswith("join: fedavg is clearly better than training alone in accuracy, AUC and log-loss.")
    assert "gains you 10.0 points of accuracy" in say(results)
    assert "lowers your log-loss by .15" in say(results)
    assert words.tell(results).answer[0] == "Join: a (fedavg). No clear difference: b."


def test_the_words_flip_with_the_sign(tmp_path: Path) -> None:
    up = say(load(tmp_path / "up", {"local": ALONE, "fedavg": BETTER}))
    down = say(load(tmp_path / "down", {"local": ALONE, "fedavg": WORSE}))
    swapped = say(load(tmp_path / "swapped", {"local": BETTER, "fedavg": ALONE}))
    for text in (down, swapped):
        assert text.startswith("stay alone: fedavg is clearly worse")
        assert "costs you" in text
        assert "raises your log-loss" in text
        assert "lowers your AUC" in text
    assert "costs" not in up
    assert "raises your AUC" in up
    assert "gains you" not in down


def test_join_with_whom(tmp_path: Path) -> None:
    rows = {"a": (0.5, 0.4, 0.05, 0.05), "b": (0.25,) * 4, "c": (0.25,) * 4, "d": (0.25,) * 4}
    truth = {m: dict.fromkeys("abcd", ALONE) | {"a": n} for m, n in {"local": ALONE, "meritfed": BETTER}.items()}
    results = Results.load(fake_run.write(tmp_path, truth, noise=0.0002, weights={"meritfed": rows}))
    got = verdict(results, "a")
    assert got.kind == "join with"
    assert [name for name, _ in got.partners] == ["b"]
    assert got.partners[0][1] == pytest.approx(0.4, abs=0.01)
    assert words.headline(results, got).startswith("join with b (40 % of the weight): meritfed is clearly better")


@pytest.mark.parametrize("row", [(0.25, 0.25, 0.25, 0.25), (0.94, 0.02, 0.02, 0.02), (0.1, 0.3, 0.3, 0.3)])
def test_join_without_partners_if_weights_point_at_nobody_or_at_all(tmp_path: Path, row: tuple[float, ...]) -> None:
    truth = {m: dict.fromkeys("abcd", ALONE) | {"a": n} for m, n in {"local": ALONE, "meritfed": BETTER}.items()}
    results = Results.load(fake_run.write(tmp_path, truth, noise=0.0002, weights={"meritfed": {"a": row}}))
    assert verdict(results, "a").kind == "join"


def test_the_better_of_two_methods_wins_and_the_other_is_named(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": (0.80, 0.78, 0.90, 0.45), "meritfed": BETTER})
    got = verdict(results, "a")
    assert got.method == "meritfed"
    assert "fedavg helps too" in got.reason


def test_stay_alone_needs_all_methods_to_harm(tmp_path: Path) -> None:
    both = {"local": ALONE, "fedavg": WORSE, "meritfed": (0.80, 0.78, 0.80, 0.55)}
    assert verdict(load(tmp_path / "both", both), "a").kind == "stay alone"
    one = verdict(load(tmp_path / "one", both | {"meritfed": ALONE}), "a")
    assert one.kind == "no clear difference"
    assert one.reason == "with meritfed; fedavg is clearly worse in accuracy, AUC and log-loss"


def test_mixed(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": (0.70, 0.78, 0.90, 0.60)})
    got = verdict(results, "a")
    assert got.kind == "mixed"
    assert got.reason == "fedavg is clearly better in AUC but clearly worse in accuracy and log-loss"
    assert "costs you 10.0 points of accuracy" in say(results)
    assert ", but raises your AUC by .100" in say(results)


def test_no_clear_difference(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": ALONE}, noise=0.01)
    assert verdict(results, "a") == Verdict("no clear difference", "federating neither helps nor harms measurably")
    assert "makes no clear difference: accuracy .8" in say(results)
    assert "neither clearly helps nor clearly harms anybody" in words.tell(results).answer[1]


@pytest.mark.parametrize("rows", [10, 29])
def test_too_few_rows(tmp_path: Path, rows: int) -> None:
    got = verdict(load(tmp_path, {"local": ALONE, "fedavg": BETTER}, n_test=rows), "a")
    assert got.kind == "too few rows to tell"
    assert f"{rows} test rows, one of which moves accuracy by {100 / rows:.1f} points" in got.reason
    assert verdict(load(tmp_path / "30", {"local": ALONE, "fedavg": BETTER}, n_test=30), "a").kind == "join"


def test_too_wide_an_interval_is_too_few_rows_or_too_few_seeds(tmp_path: Path) -> None:
    same = {"local": ALONE, "fedavg": ALONE}
    rows = verdict(load(tmp_path / "rows", same, noise=0.1, seeds=range(8)), "a")
    assert rows.kind == "too few rows to tell"
    assert "accuracy differences are known to ±" in rows.reason
    seeds = verdict(load(tmp_path / "seeds", same, noise=0.1, seeds=range(3)), "a")
    assert seeds == Verdict("no verdict", "3 seeds are too few for one")


def test_one_seed_gives_numbers_without_a_verdict(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": WORSE}, seeds=[0])
    text = say(results)
    assert text.startswith("no verdict: one seed tells nothing about chance. Averaging (fedavg): accuracy ")
    assert "clear" not in text
    assert "costs" not in text
    assert any("--seeds 5" in c for c in words.tell(results).caveats)


def test_centralised_never_wins(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": ALONE, "fedavg": ALONE, "centralised": BETTER}, noise=0.01)
    assert verdict(results, "a").kind == "no clear difference"
    answer = " ".join(words.tell(results).answer)
    assert "Reference nobody can have, all rows in one place (centralised): accuracy" in answer
    assert "centralised" not in say(results)


def test_without_local_there_is_no_harm(tmp_path: Path) -> None:
    results = load(tmp_path, {"fedavg": ALONE, "meritfed": WORSE})
    story = words.tell(results)
    assert story.answer[0].startswith("No method trained each client alone, so nothing can be called help or harm")
    assert {v.kind for v in story.verdicts.values()} == {"no verdict"}
    assert story.clients[0].harmed == ()
    assert "compared with fedavg" in say(results)
    assert "alone" not in " ".join(story.clients[0].sentences)


def test_labels_and_algorithms_are_different_things(tmp_path: Path) -> None:
    kinds = {"each for itself": "local", "the usual": "fedavg", "mine": "my.py:Mine"}
    numbers = {"each for itself": ALONE, "the usual": WORSE, "mine": BETTER}
    results = load(tmp_path, numbers, algorithms=kinds)
    assert results.baseline == "each for itself"
    assert verdict(results, "a").method == "mine"
    assert "Averaging (the usual) costs you" in say(results)


def test_regression(tmp_path: Path) -> None:
    truth = {"local": {"a": (2.0,), "b": (2.0,)}, "fedavg": {"a": (1.5,), "b": (2.5,)}}
    results = Results.load(fake_run.write(tmp_path, truth, metrics=("loss",), majority=None))
    assert verdict(results, "a").metrics == ("loss",)
    assert verdict(results, "b").kind == "stay alone"
    assert words.tell(results).clients[1].harmed == ("fedavg",)
    text = say(results)
    assert "lowers your loss by .5" in text
    assert "accuracy" not in text
    assert "one class" not in text


def test_majority_and_training_shares(tmp_path: Path) -> None:
    numbers: dict[str, Numbers] = {"local": (0.85, 0.6, 0.7, 0.70), "fedavg": (0.95, 0.8, 0.8, 0.30)}
    text = say(load(tmp_path, numbers, majority=0.9))
    assert "90 % of your test rows are of one class: always naming it has an accuracy of .90" in text
    assert "and only fedavg is clearly better; local is clearly worse." in text
    low = say(load(tmp_path / "low", numbers, majority=0.5))
    assert "one class" not in low
    assert "has a log-loss of .69" in low
    assert "and only fedavg is clearly better" in low


def test_whoever_is_no_better_than_a_constant_is_named_where_most_are(tmp_path: Path) -> None:
    numbers: dict[str, Numbers] = {
        "local": (0.85, 0.6, 0.7, 0.70),
        "fedavg": BETTER,
        "fedprox": BETTER,
        "meritfed": BETTER,
    }
    text = say(load(tmp_path, numbers, majority=0.85))
    assert ", and local is not clearly better. Predicting" in text
    assert "has a log-loss of .424, and local is clearly worse." in text
    one = say(load(tmp_path / "one", numbers, majority=0.85, seeds=[0]))
    assert one.endswith(", and in this run local did no better.")


def test_a_method_for_few_says_whom_it_serves_and_they_are_shown(tmp_path: Path) -> None:
    everybody = [f"c{i:02d}" for i in range(30)]
    truth = {
        "local": dict.fromkeys(everybody, (0.8,)),
        "fedavg": {c: (0.8 + (i - 15) / 1000,) for i, c in enumerate(everybody)},
        "varsel": {"c14": (0.81,), "c16": (0.81,)},
    }
    results = Results.load(fake_run.write(tmp_path, truth, metrics=("accuracy",), majority=None, seeds=[0]))
    assert {"c14", "c16"} < set(results.extremes("accuracy", 8))
    assert len(results.extremes("accuracy", 8)) == 8
    assert "varsel serves 2 of 30 (c14 and c16)." in words.tell(results).answer[-1]
    several = Results.load(fake_run.write(tmp_path / "5", truth, metrics=("accuracy",), majority=None))
    assert words.tell(several).answer[-1].endswith("; serves 2 of 30 (c14 and c16).")


def test_a_client_without_a_defined_metric_is_served_all_the_same(tmp_path: Path) -> None:
    everybody = [f"c{i:02d}" for i in range(20)]
    lone = {c: (0.7 if c == "c03" else None, 0.4) for c in everybody}
    results = Results.load(
        fake_run.write(tmp_path, {"local": lone, "fedavg": lone}, metrics=("auc", "loss"), majority=None)
    )
    assert results.served("fedavg") == tuple(everybody)
    assert "serves" not in " ".join(words.tell(results).answer)
    assert len(results.extremes("auc", 8)) == 8


def test_undefined_auc_is_not_spoken_of(tmp_path: Path) -> None:
    results = load(tmp_path, {"local": (0.8, 0.8, None, 0.4), "fedavg": (0.9, 0.9, None, 0.3)})
    assert "AUC" not in say(results)
    assert verdict(results, "a").metrics == ("accuracy", "loss")


def test_a_fixed_split_is_a_caveat(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    (folder / "experiment.toml").write_text((folder / "experiment.toml").read_text() + "\n[split]\nseed = 3\n")
    assert any("split.seed = 3" in c for c in words.tell(Results.load(folder)).caveats)


def test_many_clients_are_summarised(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    gaps = rng.choice([-0.1, 0.0, 0.1], 100)
    truth = {
        "local": {f"c{i:02d}": ALONE for i in range(100)},
        "fedavg": {f"c{i:02d}": (0.8 + g, 0.78 + g, 0.8 + g, 0.45 - g) for i, g in enumerate(gaps)},
    }
    story = words.tell(Results.load(fake_run.write(tmp_path, truth, noise=0.0002)))
    assert len(story.clients) == 8
    assert len(story.verdicts) == 100
    helped, hurt = int((gaps > 0).sum()), int((gaps < 0).sum())
    assert f"Join: {helped} of 100 clients. Stay alone: {hurt} of 100 clients." in story.answer[0]
    assert f"clearly helps {helped} of 100 and clearly harms {hurt} of 100;" in story.answer[1]
    assert "8 of 100 clients" in story.caveats[0]
