"""docs/results/rivals.md, from the rows of `experiments.rivals` alone.

`make results` does not import this: who wins where is another work than the evidence about the papers.
"""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from experiments.documents import RESULTS, Document, Row, read
from experiments.judging import LEVEL, Interval
from experiments.page import DOCS
from experiments.page import write as write_files
from experiments.rivals import ACCURACY, LOSS, Problem, chosen, problems

OURS = ("meritfed", "meritfed-cheap")
"""Labels of the method that the rivals are compared with: the paper's form, else its cheap form."""
ALONE = "alone"
TITLE = "# Rivals: who wins where"
NO_ROWS = "No problem has all of its runs yet. `make rivals` runs what is missing."
MADE = """
## How this page is made

Code writes this page from `experiments/rivals.toml` and the files in `experiments/results`
(`make rivals-page`). A test compares it byte by byte. `make rivals` runs what is missing first.
""".strip()


class Standing(NamedTuple):
    """One method on one problem.

    Attributes:
        label: of the method.
        loss: test log-loss, mean over clients, with its interval over seeds.
        accuracy: mean over clients and seeds.
        rank: its rank by log-loss among all methods, with its interval over seeds; 1 is best.
        harmed: share of clients whose log-loss is higher than alone, mean over seeds.
        gain: log-loss of ours minus its own; above 0 it is better than ours.
        setting: what validation rows chose.
    """

    label: str
    loss: Interval
    accuracy: float
    rank: Interval
    harmed: float
    gain: Interval
    setting: Mapping[str, object]


class Table(NamedTuple):
    """All methods on one problem, best rank first; `missing` are methods without all rows."""

    problem: Problem
    seeds: int
    ours: str
    standings: Sequence[Standing]
    missing: Sequence[str]
    rows: Sequence[Row]


def tables(results: Path = RESULTS) -> list[Table]:
    """Return the problems of which at least two methods and our own have a row of every seed."""
    found = (
        _table(problem, read(problem.documents[1], results), results)
        for problem in problems()
    )
    return [table for table in found if table]


def _table(problem: Problem, document: Document | None, results: Path) -> Table | None:
    seeds, labels = problem.experiment.run.seeds, problem.experiment.labels
    rows = document.rows if document else ()
    by_label = {
        label: [row for row in rows if row.method == label and row.seed in seeds]
        for label in labels
    }
    complete = {
        label: found for label, found in by_label.items() if len(found) == len(seeds)
    }
    ours = next((label for label in OURS if label in complete), None)
    if ours is None or ALONE not in complete:
        return None
    losses = {
        label: np.array([_loss(row) for row in found])
        for label, found in complete.items()
    }
    order = (
        np.array(list(losses.values()))
        .argsort(axis=0, kind="stable")
        .argsort(axis=0, kind="stable")
        + 1.0
    )
    ratio = complete[ours][0].n_test / complete[ours][0].n_train
    entries = {entry.label: entry for entry in problem.experiment.methods}
    count = len(losses) - 1
    standings = [
        Standing(
            label,
            over_seeds(losses[label], ratio),
            statistics.fmean(
                row.values.get(ACCURACY) or 0.0 for row in complete[label]
            ),
            over_seeds(ranks, ratio),
            statistics.fmean(
                _share_harmed(row, alone)
                for row, alone in zip(complete[label], complete[ALONE], strict=True)
            ),
            over_seeds(losses[ours] - losses[label], ratio, comparisons=count),
            chosen(problem, entries[label], results) or {},
        )
        for label, ranks in zip(losses, order, strict=True)
    ]
    missing = [label for label in labels if label not in complete]
    return Table(
        problem,
        len(seeds),
        ours,
        sorted(standings, key=lambda s: s.rank.mean),
        missing,
        rows,
    )


def _loss(row: Row) -> float:
    """Return the log-loss of a run; infinite where it diverged."""
    loss = row.values.get(LOSS)
    return math.inf if loss is None else loss


def _share_harmed(row: Row, alone: Row) -> float:
    """Return the share of clients whose log-loss is higher than that of their own training."""
    by_client = [name for name in alone.values if name.startswith(f"{LOSS}, ")]
    return statistics.fmean(
        (row.values.get(name) or math.inf) > (alone.values[name] or 0.0)
        for name in by_client
    )


def over_seeds(
    values: Sequence[float] | np.ndarray, ratio: float, *, comparisons: int = 1
) -> Interval:
    """Return the mean over seeds that split the same rows anew, with the corrected t interval (Nadeau and Bengio 2003).

    Args:
        values: one for each seed.
        ratio: test rows over training rows of a split.
        comparisons: among how many the level is shared (Bonferroni).
    """
    array = np.asarray(values, dtype=float)
    count = len(array)
    if not np.isfinite(array).all():
        return Interval(
            math.inf if (array > 0).any() else -math.inf,
            -math.inf,
            math.inf,
            math.inf,
            count,
        )
    mean, error = (
        float(array.mean()),
        float(array.std(ddof=1)) * math.sqrt(1 / count + ratio),
    )
    half = float(stdtrit(count - 1, 1 - LEVEL / 2 / comparisons)) * error
    return Interval(mean, mean - half, mean + half, error, count)


def pages() -> dict[Path, str]:
    """Return the page of rivals."""
    return {DOCS / "results" / "rivals.md": page(tables())}


def write() -> None:
    """Write it."""
    write_files(pages())


def page(found: Sequence[Table]) -> str:
    """Return docs/results/rivals.md: who wins where, then the numbers and settings of each problem."""
    if not found:
        return f"{TITLE}\n\n{NO_ROWS}\n\n{MADE}\n"
    return "\n\n".join([_ranks(found), *_all_numbers(found), MADE]) + "\n"


def _ranks(found: Sequence[Table]) -> str:
    """Return who is best on each problem, and the ranks of all methods."""
    lines = [
        TITLE,
        "",
        _wrap(
            "How do the methods of this library compare on what each client cares for, its own test rows? Each method had 8 "
            f"trials with seed 99, judged on validation rows, and then {found[0].seeds} seeds with its best setting. Ranks are by "
            "test log-loss, mean over clients, with 95 % intervals; 1 is best. Seeds split the same rows anew, and the intervals "
            "allow for that. A mean with brackets is over so many problems alone, those on which the method runs: do not compare it "
            "with the others. [Losses, accuracies and settings](#numbers-and-settings) are below."
        ),
        "",
    ]
    lines += [_wrap(f"- {_winners(table)}", "  ") for table in found]
    labels = sorted(
        {s.label for table in found for s in table.standings},
        key=lambda label: (_mean_rank(found, label), label),
    )
    head = ("method", *(table.problem.name for table in found), "mean")
    lines += ["", _row(head), _row(["---"] * len(head))]
    for label in labels:
        cells = [
            _cell(next((s for s in table.standings if s.label == label), None))
            for table in found
        ]
        ran = sum(cell != "-" for cell in cells)
        mean = f"{_mean_rank(found, label):.1f}" + (
            f" ({ran} of {len(found)})" if ran < len(found) else ""
        )
        lines.append(_row((f"`{label}`", *cells, mean)))
    sentences = [f"{_upper(t.problem.name)}: {t.problem.title}." for t in found]
    names = {table.problem.name for table in found}
    if missing := [
        problem.title for problem in problems() if problem.name not in names
    ]:
        sentences.append(
            f"Without all runs yet: {'; '.join(missing)} (`make rivals` goes on)."
        )
    lines += ["", _wrap(" ".join(sentences))]
    return "\n".join(lines)


def _cell(standing: Standing | None) -> str:
    return (
        "-"
        if standing is None
        else f"{standing.rank.mean:.1f} [{max(1.0, standing.rank.low):.0f}, {standing.rank.high:.0f}]"
    )


def _mean_rank(found: Sequence[Table], label: str) -> float:
    """Return the mean of the mean ranks over the problems on which a method runs."""
    return statistics.fmean(
        s.rank.mean for table in found for s in table.standings if s.label == label
    )


def _winners(table: Table) -> str:
    """Return a sentence or two: who is best on a problem, and which methods are clearly better or worse than ours."""
    best, ours = (
        table.standings[0],
        next(s for s in table.standings if s.label == table.ours),
    )
    better = [s.label for s in table.standings if s.gain.low > 0]
    worse = [s.label for s in table.standings if s.gain.high < 0]
    place = table.standings.index(ours) + 1
    text = (
        f"**{_upper(table.problem.title)}.** Best: `{best.label}` (log-loss {best.loss.mean:.3f}, accuracy {best.accuracy:.3f}). "
        f"`{ours.label}` is number {place} of {len(table.standings)} ({ours.loss.mean:.3f}, {ours.accuracy:.3f}). "
        f"Clearly better than it: {_names(better)}. Clearly worse: {_names(worse)}."
    )
    return text + (
        f" Without all rows yet: {_names(table.missing)}." if table.missing else ""
    )


def _names(labels: Sequence[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels) or "none"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _all_numbers(found: Sequence[Table]) -> list[str]:
    """Return what the columns mean, and a table for each problem."""
    columns = _wrap(
        "Read this before you quote a number. Log-loss and accuracy are those of each client's test rows, each client counting "
        "once. *Better than ours* is the log-loss of MeritFed less that of the method, with an interval whose level is shared "
        "among all rivals (Bonferroni). *Worse than alone* is the share of clients whose log-loss is higher than that of training "
        "alone."
    )
    problem_by_problem = [
        "\n".join([f"### {_upper(t.problem.title)}", "", *_numbers(t)]) for t in found
    ]
    return ["## Numbers and settings", columns, *problem_by_problem]


def _numbers(table: Table) -> list[str]:
    head = (
        "method",
        "log-loss",
        "accuracy",
        "rank",
        "better than ours",
        "worse than alone",
        "setting",
    )
    lines = [_row(head), _row(["---"] * len(head))]
    for s in table.standings:
        gain = "-" if s.label == table.ours else _interval(s.gain, "+.3f")
        setting = ", ".join(
            f"{key} = {json.dumps(value)}" for key, value in s.setting.items()
        )
        harmed = "-" if s.label == ALONE else f"{100 * s.harmed:.0f} %"
        lines.append(
            _row(
                (
                    f"`{s.label}`",
                    _interval(s.loss, ".3f"),
                    f"{s.accuracy:.3f}",
                    _cell(s),
                    gain,
                    harmed,
                    setting,
                )
            )
        )
    by_reason: dict[str, list[str]] = {}
    for label, why in table.problem.left_out.items():
        by_reason.setdefault(why, []).append(label)
    left_out = [
        f"Not run: {_names(labels)} ({why})." for why, labels in by_reason.items()
    ]
    run, seconds = table.problem.experiment.run, sum(row.seconds for row in table.rows)
    commits = ", ".join(sorted({row.commit for row in table.rows}))
    machines = ", ".join(
        sorted(
            {f"{row.machine}, PyTorch {row.torch}" for row in table.rows if row.machine}
        )
    )
    origin = f"{run.rounds} rounds; {len(table.rows)} runs of {commits}; {machines}; {seconds:,.0f} s of CPU, trials not counted."
    return [*lines, "", _wrap(" ".join([*left_out, origin]))]


def _interval(effect: Interval, form: str) -> str:
    if not math.isfinite(effect.mean):
        return "diverged"
    return f"{effect.mean:{form}} [{effect.low:{form}}, {effect.high:{form}}]"


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text,
        100,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    write()
