"""The terminal table at many widths and shapes."""

from __future__ import annotations

import re
from pathlib import Path

import fake_run
import numpy as np
import pytest
from rich.cells import cell_len

from coterie.base.errors import InputError
from coterie.report import table
from coterie.report.results import Results
from coterie.report.text import wrap

SEVEN = {
    **fake_run.STORY,
    **dict.fromkeys(
        ("fedprox", "centralised", "varsel", "scaffold-and-more"),
        fake_run.STORY["fedavg"],
    ),
}


def widest(text: str) -> int:
    return max(
        cell_len(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    )


def many(clients: int) -> dict[str, dict[str, tuple[float, ...]]]:
    rng = np.random.default_rng(0)
    return {
        m: {
            f"client-{i:03d}": (*np.clip(rng.normal(0.8, 0.08, 3), 0, 1), 0.4)
            for i in range(clients)
        }
        for m in ("local", "fedavg", "meritfed")
    }


def test_the_story(tmp_path: Path) -> None:
    text = table.plain(Results.load(fake_run.heart(tmp_path)), width=80)
    accuracy = text.split("\n\n")[0].splitlines()
    assert "mean ± std over 5 seeds" in accuracy[0]
    assert re.fullmatch(r" +local +fedavg +meritfed +largest class", accuracy[1])
    swiss = next(line for line in accuracy if line.startswith("Switzerland"))
    assert re.fullmatch(
        r"Switzerland +\.9\d\d ± \.0\d\d\*? +\.7\d\d ± \.0\d\d +\.9\d\d ± \.0\d\d\*? +\.80\d",
        swiss,
    )
    assert re.search(
        r"^Switzerland +\.\d+ ± \.\d+\*? +\.\d+ ± \.\d+! ",
        text.split("\n\n")[3],
        re.MULTILINE,
    )
    assert re.search(r"mean +\.\d{3} ± \.\d{3} ", accuracy[-2])
    assert re.fullmatch(r"budget +× 1\.00 +× 1\.00 +× 2\.31", accuracy[-1])
    for title in (
        "accuracy on test rows",
        "balanced accuracy on",
        "AUC on",
        "log-loss on test rows (lower is better",
    ):
        assert title in text
    assert "! worse than local" in text


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results.load(fake_run.heart(tmp_path_factory.mktemp("seven"), truth=SEVEN))


@pytest.mark.in_turn(but=("False-40", "True-80", "True-200"))
@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_longer_than_the_terminal_and_no_number_is_cut(
    seven: Results, width: int, colour: bool
) -> None:
    text = table.render(seven, width=width, colour=colour)
    assert widest(text) <= width
    numbers = re.findall(r"\.\d+ ?± ?\.\d+", re.sub(r"\x1b\[[0-9;]*m", "", text))
    assert len(numbers) == 4 * 7 * 5
    assert all(re.fullmatch(r"\.\d{3} ?± ?\.\d{3}", n) for n in numbers)


def test_seven_methods_are_turned_at_80_columns(seven: Results) -> None:
    text = table.plain(seven, width=80)
    assert "continued" not in text
    assert re.search(
        r"^ +Cleveland +Hungary +Switzerland +Long Beach +mean$", text, re.MULTILINE
    )
    assert "fedavg = 1: local × 1.00" in text.replace("\n", " ")


def test_plain_has_no_boxes_and_no_codes(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    assert not re.search("[\x1b─│┃┏▲▼]", table.plain(results))
    coloured = table.render(results, width=80, colour=True)
    assert "\x1b[1" in coloured
    assert "▼" in coloured
    assert "▲" in coloured


def test_best_and_harm_follow_the_direction_of_the_metric(tmp_path: Path) -> None:
    truth = {
        "local": {"a": (0.8, 0.8, 0.8, 0.40), "b": (0.8, 0.8, 0.8, 0.40)},
        "fedavg": {"a": (0.9, 0.9, 0.9, 0.20), "b": (0.7, 0.7, 0.7, 0.60)},
    }
    text = table.plain(
        Results.load(fake_run.write(tmp_path, truth, noise=0.001)), width=80
    )
    for block in text.split("\n\n")[
        2:4
    ]:  # AUC and log-loss decide, accuracy illustrates
        a, b = block.splitlines()[-4 if "budget" in block else -3 :][:2]
        assert re.match(r"a +\S+ ± \.\d+ +\S+ ± \.\d+\*\+", a)
        assert re.match(r"b +\S+ ± \.\d+\* +\S+ ± \.\d+!", b)
    assert not re.search("[+!]", text.split("\n\n")[0].partition(")")[2])


def test_the_reference_is_never_best(tmp_path: Path) -> None:
    truth = {
        "local": {"a": (0.8, 0.8, 0.8, 0.4)},
        "fedavg": {"a": (0.7, 0.7, 0.7, 0.5)},
        "centralised": {"a": (0.95, 0.95, 0.95, 0.1)},
    }
    text = table.plain(Results.load(fake_run.write(tmp_path, truth)), width=80)
    assert re.search(
        r"^a +\.\d+ ± \.\d+\* +\.\d+ ± \.\d+! +\.\d+ ± \.\d+ ",
        text.split("\n\n")[3],
        re.MULTILINE,
    )
    assert "for comparison only" in text


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    text = table.plain(Results.load(fake_run.heart(tmp_path, seeds=[7])), width=80)
    assert "±" not in text
    assert "!" not in text
    assert "One seed: no verdict" in text


def test_one_seed_with_folds_has_verdicts(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path, seeds=[7]))
    results.experiment["split"] = {"folds": 5}
    assert "no verdict on any difference" not in table.plain(results, width=80)


def test_without_local_nothing_is_harm(tmp_path: Path) -> None:
    truth = {m: v for m, v in fake_run.STORY.items() if m != "local"}
    text = table.plain(Results.load(fake_run.heart(tmp_path, truth=truth)), width=80)
    assert "!" not in text
    assert "clearly" not in text


def test_regression_has_a_loss_only(tmp_path: Path) -> None:
    truth = {
        "local": {"a": (1.5,), "b": (14.25,)},
        "fedavg": {"a": (1.2,), "b": (14.35,)},
    }
    folder = fake_run.write(tmp_path, truth, metrics=("loss",), majority=None)
    text = table.plain(Results.load(folder), width=80)
    assert text.startswith("loss on test rows (lower is better")
    assert "accuracy" not in text
    assert "shares" not in text
    assert re.search(
        r"^a +1\.\d{3} ± \.\d{3} +1\.\d{3} ± \.\d{3}\*\+ +\.650$", text, re.MULTILINE
    )


def test_undefined_metrics_are_a_dash(tmp_path: Path) -> None:
    truth = {
        m: {**v, "hungary": (0.8, 0.8, None, 0.4)} for m, v in fake_run.STORY.items()
    }
    text = table.plain(Results.load(fake_run.heart(tmp_path, truth=truth)), width=80)
    auc = next(block for block in text.split("\n\n") if block.startswith("AUC"))
    assert re.search(r"^Hungary +- +- +-$", auc, re.MULTILINE)
    assert "nan" not in text.lower().replace("finance", "")


@pytest.mark.in_turn
def test_a_hundred_clients(tmp_path: Path) -> None:
    results = Results.load(fake_run.write(tmp_path, many(100), n_test=40))
    text = table.plain(results, width=80)
    assert widest(text) <= 80
    accuracy = text.split("\n\n")[0]
    assert len(re.findall(r"^client-", accuracy, re.MULTILINE)) == 8
    for row in ("mean of all", "worst client", "better", "worse", "budget"):
        assert re.search(rf"^{row} ", accuracy, re.MULTILINE)
    assert "92 of 100 clients are not shown" in text
    gaps = {
        c: max(
            abs(results.mean(m, c, "accuracy") - results.mean("local", c, "accuracy"))
            for m in ("fedavg", "meritfed")
        )
        for c in results.clients
    }
    assert max(gaps, key=lambda c: gaps[c]) in accuracy


def test_long_wide_and_hostile_names(tmp_path: Path) -> None:
    names = [
        "a-very-long-name-of-a-hospital-in-the-north",
        "東京病院",
        "evil\x1b[2J\nname",
    ]
    truth = {m: dict.fromkeys(names, (0.8, 0.8, 0.8, 0.4)) for m in ("local", "fedavg")}
    results = Results.load(fake_run.write(tmp_path, truth))
    text = table.plain(results, width=70)
    assert widest(text) <= 70
    assert "\x1b" not in text
    lines = text.splitlines()
    starts = {
        line.index(".")
        for line in lines[2:5]
        if cell_len(line[: line.index(".")]) == len(line[: line.index(".")])
    }
    assert len(starts) == 1
    assert "東京病院" in text


def test_unfinished_methods_are_named(tmp_path: Path) -> None:
    text = table.plain(
        Results.load(fake_run.heart(tmp_path, skip=[("meritfed", 4)])), width=80
    )
    assert "Unfinished: meritfed has 4 of 5 seeds" in text


def test_one_metric_and_an_unknown_one(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    assert "accuracy" not in table.plain(results, metric="loss").split("\n\n")[0]
    with pytest.raises(InputError, match="no metric 'f1'"):
        table.plain(results, metric="f1")


@pytest.mark.parametrize("width", [12, 20, 60])
def test_wrapped_lines_begin_with_lead_or_indent_and_lose_no_word(width):
    words = ["of", "those", "whom", "nobody", "asked", "29", "%", "answered"]
    lines = wrap(" ".join(words), width, indent="    ", lead="- ")
    assert lines[0].startswith("- ")
    assert all(line.startswith("    ") for line in lines[1:])
    assert all(len(line) <= width for line in lines)
    assert " ".join(lines).removeprefix("- ").split() == words
