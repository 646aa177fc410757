"""docs/results.md, a page and pictures for each paper, a page of ours and the table of all settings, from results alone.

The pages of single sentences are not tracked: `make docs` writes them from the table of settings (`experiments/sentences.py`).
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from coterie.base.files import read_toml, write_atomically
from experiments import pictures
from experiments.claims import FILE, Evidence, Judged, Pair, Place, load
from experiments.documents import ROOT
from experiments.judging import Interval, Word
from experiments.sentences import ON_FIRST_PAGE
from experiments.setups import plain

MARGINS = {"half of it": 0.5, "twice as much": 2.0}
DOCS = ROOT / "docs"
COLUMNS = (
    "paper", "figure", "claim", "word", "notes", "pooled", "experiment", "quantity", "method", "against", "setting", "first", "second",
    "effect", "seeds", "room", "second computation", "verdict", "rows", "commits", "machines", "seconds",
)  # fmt: skip


def pages(evidence: Evidence | None = None) -> dict[Path, str]:
    """Return all files of the documentation that are written here, with their text."""
    evidence = evidence or load()
    files = {
        DOCS / "results.md": first_page(evidence),
        DOCS / "results" / "ours.md": own_page(evidence),
        DOCS / "results" / "claims.csv": table_of_settings(evidence),
    }
    for figure in read_toml(FILE)["figures"]:
        files[DOCS / picture_of(figure)] = pictures.draw(evidence, figure)
    for paper in evidence.papers:
        files[DOCS / "results" / f"{paper['key']}.md"] = paper_page(evidence, paper)
        explained = DOCS / "explanation" / f"{paper['key']}.md"
        files[explained] = between_marks(
            explained.read_text(encoding="utf-8"),
            "advice",
            _wrap(advice(evidence, paper), ""),
        )
    choose = DOCS / "howto" / "choose.md"
    files[choose] = between_marks(
        choose.read_text(encoding="utf-8"), "choose isfl", _choices(evidence), "   "
    )
    return files


def picture_of(figure: Mapping[str, Any]) -> str:
    """Return where the picture of a figure lies, below docs."""
    return f"images/results/{figure['paper']}-{figure['key']}.svg"


def write(files: Mapping[Path, str]) -> None:
    """Write files of the documentation."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            path,
            lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"),
        )


def between_marks(text: str, mark: str, lines: str, indent: str = "") -> str:
    """Return a text that is not written here with these lines between its marks."""
    before, begin, after = text.partition(f"<!-- {mark} -->")
    _, end, after = after.partition(f"<!-- /{mark} -->")
    if not end:
        raise ValueError(f"there are no lines <!-- {mark} --> and <!-- /{mark} -->")
    return f"{before}{begin}\n\n{lines}\n\n{indent}{end}{after}"


def advice(evidence: Evidence, paper: Mapping[str, Any]) -> str:
    """Return what the results mean for a user of a paper's method."""
    return (
        " ".join(_holding(evidence, paper["advice"]))
        or "Our runs do not yet decide what to advise."
    )


def _choices(evidence: Evidence) -> str:
    """Return the lines of the page on choosing a method for label skew, which follow from the same words as the advice."""
    (isfl,) = (paper for paper in evidence.papers if paper["key"] == "isfl")
    lines = _holding(evidence, isfl["choose"])
    return "\n".join(textwrap.indent(_wrap(f"- {line}"), "   ") for line in lines)


def _holding(evidence: Evidence, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of those lines whose claims have the words that they ask for."""
    words = {key: judged.word for key, judged in evidence.judged.items()}
    return [line["text"] for line in lines if line["when"].items() <= words.items()]


def first_page(evidence: Evidence) -> str:
    """Return docs/results.md."""
    tables = read_toml(FILE)
    texts = tables["page"]
    parts = [texts["head"].strip()]
    for paper in evidence.papers:
        parts += ["", f"## {paper['name']}", ""]
        for figure in _pictures(tables["figures"], paper)[:ON_FIRST_PAGE]:
            seen = pictures.describe(evidence, figure)
            parts.append(f"![{seen}]({picture_of(figure)})")
        rows = [
            _line(evidence, line)
            for line in tables["lines"]
            if line["paper"] == paper["key"]
        ]
        parts += ["", *_table(("the paper says", "we see", "how sure"), rows), ""]
        link = f"[Set-ups](results/{paper['key']}.md)"
        parts += [_wrap(f"**For users.** {advice(evidence, paper)} {link}", "")]
    parts += [
        "",
        "## What the words mean",
        "",
        _counts(evidence, texts["counts"]),
        "",
        texts["legend"].strip(),
        "",
        texts["made"].strip(),
    ]
    return "\n".join(parts) + "\n"


def _pictures(
    figures: Sequence[Mapping[str, Any]], paper: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    return [figure for figure in figures if figure["paper"] == paper["key"]]


def _line(evidence: Evidence, line: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line of the first page. Raises `ValueError` where its claims have other words than those it was written for."""
    for key, word in line["when"].items():
        if evidence.judged[key].word != word:
            raise ValueError(
                f"{key} is {evidence.judged[key].word}; write the line {line['says']!r} anew"
            )
    deciding = evidence.judged[next(iter(line["when"]))]
    return f"{line['figures']}: {line['says']}", line["sees"], sure(deciding)


def sure(judged: Judged) -> str:
    """Return how sure a sentence is: its word, in how many settings it is confirmed, and the seeds of the one that decides."""
    settings = len(judged.pairs)
    confirmed = sum(pair.word == "confirmed" for pair in judged.pairs)
    seeds = judged.deciding.effect.seeds if judged.deciding else 0
    share = f" ({confirmed} of {settings})" if settings > 1 else ""
    return f"{judged.shown}{share}, {seeds} seeds"


def _counts(evidence: Evidence, line: str) -> str:
    """Return how many figures have a line, and how many sentences which word."""
    figures = [
        len(numbers(which))
        for paper in evidence.papers
        for which in _figures(evidence, paper)
    ]
    claims = [judged for paper in evidence.papers for judged in _own(evidence, paper)]
    needed = sum(paper["figures"] for paper in evidence.papers)
    words = _count_words(claims)
    return _wrap(
        line.format(have=sum(figures), needed=needed, claims=len(claims), words=words),
        "",
    )


def numbers(figures: str) -> list[str]:
    """Return the figures and tables of a line, spans taken apart: "Figs. 1-2" are Fig. 1 and Fig. 2."""
    kind, _, span = figures.replace("Figs.", "Fig.").rpartition(" ")
    first, _, last = span.partition("-")
    return (
        [f"{kind} {number}" for number in range(int(first), int(last) + 1)]
        if last
        else [f"{kind} {span}"]
    )


def _wrap(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, 100, subsequent_indent=indent, break_on_hyphens=False)


def _own(
    evidence: Evidence, paper: Mapping[str, Any], *, ours: bool | str = False
) -> list[Judged]:
    """Return the claims of a paper: those that quote it, ours, or ours that stand "beside" a figure of it."""
    wanted = paper["key"], ours
    return [
        one
        for one in evidence.judged.values()
        if (one.claim["paper"], one.claim.get("ours", False)) == wanted
    ]


def _figures(evidence: Evidence, paper: Mapping[str, Any]) -> dict[str, list[Judged]]:
    """Return the claims of a paper by figure, tables last."""
    own = _own(evidence, paper)
    return {
        one.claim["figures"]: [
            o for o in own if o.claim["figures"] == one.claim["figures"]
        ]
        for one in own
    }


def _count_words(claims: Sequence[Judged]) -> str:
    counts = Counter(judged.shown for judged in claims)
    order = [*get_args(Word)[:2], "not reproduced on a substitute", *get_args(Word)[2:]]
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word])


def format_effect(
    claim: Mapping[str, Any], pair: Pair | None, effect: Interval | None = None
) -> str:
    """Return an effect with its interval: the first minus the second of what is compared, or how many times as large it is."""
    effect = effect or (pair.effect if pair else None)
    if effect is None:
        return "-"
    sign = -1 if claim["direction"] in ("lower", "as low") else 1
    ends = [
        sign * value
        for value in (
            effect.mean,
            *sorted((effect.low, effect.high), key=lambda v: sign * v),
        )
    ]
    mean, low, high = [
        f"{math.exp(v):.3g}" if claim.get("ratio") else _with_sign(v) for v in ends
    ]
    unit = " times" if claim.get("ratio") else ""
    return (
        f"{mean}{unit} (computed)"
        if claim.get("computed")
        else f"{mean}{unit} [{low}, {high}]"
    )


def _with_sign(value: float) -> str:
    digits = f"{value:+.3g}" if abs(value) >= 5e-7 else "+0"
    return (
        digits
        if "e" not in digits
        else f"{value:+.6f}"
        if abs(value) < 1
        else f"{value:+,.0f}"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def paper_page(evidence: Evidence, paper: Mapping[str, Any]) -> str:
    """Return the page of a paper: how its set-ups differ from ours, each sentence with its word, and what was not run."""
    tables = read_toml(FILE)
    key = paper["key"]
    parts = [
        f"# {paper['name']}: set-ups and sentences",
        "",
        tables["page"]["paper"].strip().replace("PAPER", key),
        "",
        _wrap(f"*{paper['title']}.* {paper['note']}", ""),
    ]
    parts += ["", "## What differs", "", *_differences(evidence, paper)]
    if key == "meritfed":
        parts += _steps(evidence)
    parts += ["", "## Sentences", ""]
    for figures, claims in _figures(evidence, paper).items():
        said = "; ".join(f"{one.claim['says']}: *{one.shown}*" for one in claims)
        parts.append(_wrap(f"- **{figures}**: {said}."))
    parts += ["", "## Not run", ""]
    for cost in tables["costs"]:
        if cost["paper"] == key:
            parts.append(_wrap(f"- {cost['what']}: {cost['cost']}."))
    parts += ["", "```{toctree}", ":hidden:", "", f"sentences/{key}", "```"]
    return "\n".join(parts) + "\n"


def _steps(evidence: Evidence) -> list[str]:
    """Return a table of MeritFed's plateau over that of SGD Ideal by loss, number and size of the steps of mirror descent."""
    document = evidence.documents.get("independent/mean-steps")
    if document is None:
        return []
    plateaus: dict[str, list[float]] = {}
    for row in document.rows:
        for value in row.values.values():
            plateaus.setdefault(row.method, []).append(value or math.nan)
    means = {method: sum(values) / len(values) for method, values in plateaus.items()}
    sizes = sorted(
        {method.rpartition(" of ")[2] for method in means if " of " in method},
        key=float,
        reverse=True,
    )
    rows = []
    for loss, name in (("mean", "mean over coordinates (code)"), ("sum", "sum (printed)")):  # fmt: skip
        for steps in (10, 50):
            ratios = [means.get(f"MeritFed, {loss}, {steps} steps of {size}") for size in sizes]  # fmt: skip
            ideal = means[f"SGD Ideal, {loss}"]
            cells = ["-" if one is None else f"{one / ideal:.2g}" for one in ratios]
            rows.append((name, str(steps), *cells))
    seeds = len({row.seed for row in document.rows})
    head = ("loss", "steps", *(f"md_step {size}" for size in sizes))
    about = (
        f"Mean estimation at mu = .001, {seeds} seeds: MeritFed's squared error over that of SGD Ideal, below 1 where it gains. "
        "With the larger loss slopes are steeper: it needs smaller or fewer steps. Too small ones find no weights in time."
    )
    return ["", "## Which step gains", "", _wrap(about, ""), "", *_table(head, rows)]


def _differences(evidence: Evidence, paper: Mapping[str, Any]) -> list[str]:
    """Return a table of the constants that the paper or the authors' code has otherwise than we, with the experiments."""
    rows: dict[tuple[str, ...], list[str]] = {}
    seen: set[str] = set()
    for constant in evidence.constants:
        other_code = constant.code is not None and constant.code != constant.ours
        other_print = constant.is_stated and not constant.is_same
        if constant.paper != paper["key"] or not (other_code or other_print):
            continue
        if all(name.endswith("ceiling") for name in constant.experiments):
            continue
        if constant.key == "run.seeds":
            continue  # more of them are no other set-up
        if constant.is_same and constant.what in seen:
            continue  # the same constant in another reading
        seen.add(constant.what)
        printed = plain(constant.printed) if constant.is_stated else "not stated"
        code = "" if constant.code is None else plain(constant.code)
        row = (constant.what, printed, code, plain(constant.ours))
        rows.setdefault(row, []).extend(constant.experiments)
    lines = [(*row, families(names)) for row, names in rows.items()]
    return _table(("what", "paper", "authors' code", "ours", "in"), lines)


def families(experiments: Sequence[str]) -> str:
    """Return experiments in short: without the paper's name and the numbers behind; their number where they are many.

    >>> families(["meritfed-groups-50", "meritfed-groups-70", "mean-estimation"])
    'groups, mean estimation'
    """
    short: dict[str, None] = {}
    for name in experiments:
        words = name.removeprefix("independent/").split("-")
        if words[0] in ("meritfed", "varsel", "isfl", "maxfl"):
            words = words[1:]
        while len(words) > 1 and words[-1].isdigit():
            words = words[:-1]
        short[" ".join(words)] = None
    return ", ".join(short) if len(short) <= 2 else f"{len(short)} experiments"


def own_page(evidence: Evidence) -> str:
    """Return the page of what we compare and no sentence of a paper does."""
    parts = [read_toml(FILE)["page"]["ours"].strip()]
    for paper in evidence.papers:
        own = _own(evidence, paper, ours=True) + _own(evidence, paper, ours="beside")
        parts += ["", f"## {paper['name']}", ""]
        for one in own:
            said = f"- {one.claim['figures']}: {one.claim['says']}: *{one.shown}*."
            parts.append(_wrap(said))
    parts += ["", "```{toctree}", ":hidden:", "", "sentences/ours", "```"]
    return "\n".join(parts) + "\n"


def _notes(evidence: Evidence, judged: Judged) -> str:
    """Return which word half or twice a margin would give."""
    claim = judged.claim
    if "margin" not in claim:
        return ""
    notes = []
    for share, factor in MARGINS.items():
        margin = claim["margin"]
        other = margin**factor if claim.get("ratio") else margin * factor
        word = evidence.judge({**claim, "margin": other}, judged.pairs).word
        if word != judged.word:
            notes.append(f"With {share}: {word}.")
    return " ".join(notes)


def _pooled(judged: Judged) -> str:
    """Return the mean effect over three experiments or more with its interval, and where a further one would lie."""
    claim, pooled = judged.claim, judged.pooled
    if pooled is None or pooled.low is None or pooled.high is None:
        return ""
    effect = format_effect(claim, None, pooled.effect)
    text = f"{effect} over {pooled.effect.seeds} experiments"
    further = pooled.effect._replace(low=pooled.low, high=pooled.high)
    _, _, reach = format_effect(claim, None, further).partition("[")
    return f"{text}; a further one would lie in [{reach}"


def _row(evidence: Evidence, claim: Mapping[str, Any], pair: Pair) -> tuple[str, ...]:
    label, declared = (
        pair.label or evidence.label(pair.a.experiment),
        evidence.seeds_of(pair.a.experiment),
    )
    if pair.effect is None:
        return label, "-", "-", "-", f"0 of {declared or '?'}", "-", "-", pair.word
    count = pair.effect.seeds
    seeds = f"{count} of {declared}" if declared and declared != count else str(count)
    room = "-" if pair.room is None else _with_sign(pair.room)
    one, two = (f"{mean:.4g}" for mean in pair.means)
    worse = (
        f", worse by {-pair.effect.mean:.3g}"
        if pair.word == "cannot show here" and pair.effect.high < 0
        else ""
    )
    return (
        label,
        one,
        two,
        format_effect(claim, pair),
        seeds,
        room,
        _second(claim, pair),
        pair.word + worse,
    )


def _second(claim: Mapping[str, Any], pair: Pair) -> str:
    """Return what the second computations say, on the same split and on one of their own."""
    known = [
        (*again, of)
        for again, of in ((pair.second, ""), (pair.own, ", own split"))
        if again
    ]
    answers = [
        f"{format_effect(claim, None, effect)}{of}, {effect.seeds} seeds: {word}"
        for effect, word, of in known
    ]
    return "; ".join(answers) or "computed once"


def _origin(evidence: Evidence, pair: Pair) -> tuple[str, ...]:
    """Return number, commits, machines and seconds of the rows that a setting rests on."""
    document = evidence.documents.get(pair.a.experiment)
    methods = {pair.a.method}
    if isinstance(pair.b, Place):
        methods.add(pair.b.method)
    everybody = pair.a.method == "all methods"
    rows = [
        row
        for row in (document.rows if document else ())
        if everybody or row.method in methods
    ]
    commits = " ".join(sorted({row.commit for row in rows}))
    machines = {f"{row.machine}, PyTorch {row.torch}" for row in rows}
    seconds = sum(row.seconds for row in rows)
    return str(len(rows)), commits, "; ".join(sorted(machines)), f"{seconds:.0f}"


def table_of_settings(evidence: Evidence) -> str:
    """Return every setting of every claim as CSV, a claim without settings too."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for judged in evidence.judged.values():
        claim = judged.claim
        about = (
            claim["paper"],
            claim["figures"],
            claim["key"],
            judged.shown,
            _notes(evidence, judged),
            _pooled(judged),
        )
        if not judged.pairs:
            empty = [""] * (len(COLUMNS) - len(about))
            writer.writerow((*about, *empty))
        for pair in judged.pairs:
            label, one, two, effect, seeds, room, second, word = _row(
                evidence, claim, pair
            )
            against = (
                " ".join(map(str, pair.b)) if isinstance(pair.b, Place) else pair.b
            )
            made = _origin(evidence, pair)
            writer.writerow((*about, *pair.a[:3], against, label, one, two, effect, seeds, room, second, word, *made))  # fmt: skip
    return text.getvalue()


if __name__ == "__main__":
    write(pages())
