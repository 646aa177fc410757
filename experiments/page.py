"""docs/results.md, a page and two pictures for each paper, a page of ours and the table of all settings, from results alone."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from coterie.base.files import read_toml, write_atomically
from experiments.claims import (
    CURVES,
    FILE,
    Evidence,
    Judged,
    Pair,
    Place,
    load,
    margin_of,
)
from experiments.documents import ROOT, Row
from experiments.judging import Interval, Word

MARGINS = {"half of it": 0.5, "twice as much": 2.0}
DOCS = ROOT / "docs"
MARKS = {"confirmed": ("o", "black", "black"), "opposite": ("X", "black", "black"), "not clear": ("s", "white", "black")}  # fmt: skip


def pages(evidence: Evidence | None = None) -> dict[Path, str]:
    """Return all files of the documentation that are written here, with their text."""
    evidence = evidence or load()
    files = {
        DOCS / "results.md": first_page(evidence),
        DOCS / "results" / "ours.md": own_page(evidence),
        DOCS / "results" / "claims.csv": table_of_settings(evidence),
    }
    for paper in evidence.papers:
        files[DOCS / "results" / f"{paper['key']}.md"] = paper_page(evidence, paper)
        for kind, drawing in (
            ("forest", forest(evidence, paper)),
            ("curves", curves(evidence, paper)),
        ):
            if drawing:
                files[DOCS / "images" / "results" / f"{paper['key']}-{kind}.svg"] = (
                    drawing
                )
        explained = DOCS / "explanation" / f"{paper['key']}.md"
        lines = _wrap(advice_for(evidence, paper), "")
        files[explained] = between_marks(
            explained.read_text(encoding="utf-8"), "advice", lines
        )
    return files


def write(files: Mapping[Path, str]) -> None:
    """Write files of the documentation."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            path,
            lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"),
        )


def between_marks(text: str, mark: str, lines: str) -> str:
    """Return a text that is not written here with these lines between its marks."""
    before, begin, after = text.partition(f"<!-- {mark} -->")
    _, end, after = after.partition(f"<!-- /{mark} -->")
    if not end:
        raise ValueError(f"there are no lines <!-- {mark} --> and <!-- /{mark} -->")
    return f"{before}{begin}\n\n{lines}\n\n{end}{after}"


def advice_for(evidence: Evidence, paper: Mapping[str, Any]) -> str:
    """Return what the results mean for a user of this paper's method."""
    words = {key: judged.word for key, judged in evidence.judged.items()}
    sentences = [
        line["text"]
        for line in paper["advice"]
        if line["when"].items() <= words.items()
    ]
    return " ".join(sentences) or "Our runs do not yet decide what to advise."


def first_page(evidence: Evidence) -> str:
    """Return docs/results.md."""
    texts = read_toml(FILE)["page"]
    parts = [
        texts["head"].strip(),
        "",
        _counts(evidence, texts["counts"]),
        "",
        texts["legend"].strip(),
    ]
    for paper in evidence.papers:
        parts += [
            "",
            f"## {paper['name']}",
            "",
            f"**For users.** {advice_for(evidence, paper)}",
            "",
        ]
        rows = [
            _line(paper, figures, claims)
            for figures, claims in _figures(evidence, paper).items()
        ]
        parts += [
            f"![{_count_words(_own(evidence, paper))}](images/results/{paper['key']}-forest.svg)",
            "",
        ]
        parts += _table(
            (
                "figure",
                "the paper says, what we see, and the deciding effect",
                "verdicts",
            ),
            rows,
        )
    parts += ["", texts["opposite"].strip(), ""]
    for paper in evidence.papers:
        line = texts["line"].replace("PAPER", paper["name"])
        parts += [
            _opposite(evidence, judged, line)
            for judged in _own(evidence, paper)
            if judged.word == "opposite"
        ]
    costs = _table(
        ("what", "cost"),
        [(line["what"], line["cost"]) for line in read_toml(FILE)["costs"]],
    )
    first, second = (sum(row.seconds for name, one in evidence.documents.items() for row in one.rows
                         if "rivals-" not in name and ("independent/" in name) == again) / 3600 for again in (False, True))  # fmt: skip
    made = texts["made"].strip().format(first=first, second=second)
    return "\n".join([*parts, "", texts["costs"].strip(), "", *costs, "", made]) + "\n"


def _counts(evidence: Evidence, line: str) -> str:
    """Return how many figures have a line, how many sentences which word, and how many intervals miss by chance."""
    figures = [
        len(numbers(which))
        for paper in evidence.papers
        for which in _figures(evidence, paper)
    ]
    claims = [judged for paper in evidence.papers for judged in _own(evidence, paper)]
    intervals = sum(
        bool(pair.effect and pair.effect.half_width)
        for judged in claims
        for pair in judged.pairs
    )
    needed = sum(paper["figures"] for paper in evidence.papers)
    return _wrap(line.format(have=sum(figures), needed=needed, claims=len(claims), words=_count_words(claims),
                             intervals=intervals, missing=round(intervals / 20)), "")  # fmt: skip


def numbers(figures: str) -> list[str]:
    """Return the figures and tables of a line, spans taken apart: "Figs. 1-2" are Fig. 1 and Fig. 2."""
    kind, _, span = figures.replace("Figs.", "Fig.").rpartition(" ")
    first, _, last = span.partition("-")
    return (
        [f"{kind} {number}" for number in range(int(first), int(last) + 1)]
        if last
        else [f"{kind} {span}"]
    )


def _opposite(evidence: Evidence, judged: Judged, line: str) -> str:
    """Return a line with all that a reader with the paper at hand needs to check a sentence that came out opposite."""
    claim, pair = judged.claim, judged.deciding
    room = f"{pair.room:+.3g}" if pair.room else claim["no_ceiling"]
    return _wrap(line.format(claim=claim, run=evidence.runs[pair.a.experiment], effect=format_effect(claim, pair),
                             seeds=pair.effect.seeds, room=room, second=_second(claim, pair)))  # fmt: skip


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
    return ", ".join(
        f"{n} {word}"
        for word in get_args(Word)
        if (n := sum(one.word == word for one in claims))
    )


def _line(
    paper: Mapping[str, Any], figures: str, claims: Sequence[Judged]
) -> tuple[str, ...]:
    anchor = figures.lower().replace(". ", "-").replace(" ", "-")
    seen = "<br>".join(
        f"{judged.claim['says']}: **{judged.word}**{_share(judged)}"
        for judged in claims
    )
    return (
        f"[{figures}](results/{paper['key']}.md#{anchor})",
        seen,
        _count_words(claims),
    )


def _share(judged: Judged) -> str:
    """Return the deciding effect and how many settings are confirmed, or what the missing ones would take."""
    words, missing = (
        [pair.word for pair in judged.pairs],
        {p.a.experiment for p in judged.pairs if p.effect is None},
    )
    if judged.word == "not run":
        return f" ({judged.claim.get('not_run', 'no row yet of ' + ', '.join(sorted(missing)))})"
    effect = format_effect(judged.claim, judged.deciding)
    return f", {effect}" + (
        f" ({words.count('confirmed')} of {len(words)})" if len(words) > 1 else ""
    )


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
    """Return the page of a paper: every sentence with its quotation, setting, differences and numbers."""
    parts = [
        f"# {paper['name']}: sentence by sentence",
        "",
        read_toml(FILE)["page"]["paper"].strip(),
        "",
    ]
    parts += [_wrap(f"*{paper['title']}.* {paper['note']}", "")]
    beside = _own(evidence, paper, ours="beside")
    for figures, claims in _figures(evidence, paper).items():
        parts += _section(
            evidence,
            figures,
            [*claims, *(one for one in beside if one.claim["figures"] == figures)],
        )
    if _panels(evidence, paper):
        parts += [
            "",
            "## Curves",
            "",
            f"![means over seeds, by round](../images/results/{paper['key']}-curves.svg)",
        ]
    return "\n".join(parts) + "\n"


def own_page(evidence: Evidence) -> str:
    """Return the page of what we compare and no sentence of a paper does."""
    claims = {
        paper["name"]: _own(evidence, paper, ours=True) for paper in evidence.papers
    }
    sections = [
        line
        for name, own in claims.items()
        if own
        for line in _section(evidence, name, own)
    ]
    return "\n".join([read_toml(FILE)["page"]["ours"].strip(), *sections]) + "\n"


def _section(evidence: Evidence, head: str, claims: Sequence[Judged]) -> list[str]:
    lines = [line for judged in claims for line in _sentence(evidence, judged)]
    return ["", f"## {head}", *lines, "", *_settings_of(evidence, claims)]


def _sentence(evidence: Evidence, judged: Judged) -> list[str]:
    claim = judged.claim
    where = (
        f'"{claim["quote"]}" ({claim["place"]})'
        if "quote" in claim
        else f"Ours, {claim['figures']}"
    )
    margin = f" by {claim['margin']:g}" if "margin" in claim else ""
    why = f"; {claim['why']}" if "why" in claim else ""
    about = f"Claimed {claim['direction']}{margin}{why}, in {claim['over']} setting{'s' * (claim['over'] != 'one')}."
    others = {share: claim["margin"] ** factor if claim.get("ratio") else claim["margin"] * factor
              for share, factor in MARGINS.items() if margin}  # fmt: skip
    words = {
        share: evidence.judge({**claim, "margin": other}, judged.pairs).word
        for share, other in others.items()
    }
    notes = [
        f"With {share}: {word}." for share, word in words.items() if word != judged.word
    ]
    notes += [
        f"{_upper(claim[name])}."
        for name in ("read_again", "no_verdict", "not_run")
        if name in claim
    ]
    lines = [
        "",
        f"**{_upper(claim['says'])}: {judged.word}.** {where}.",
        "",
        " ".join([about, *notes]),
    ]
    if judged.pairs:
        head = (
            "setting",
            "first",
            "second",
            "effect",
            "seeds",
            "room",
            "second computation",
            "verdict",
        )
        lines += [
            "",
            *_table(head, [_row(evidence, claim, pair) for pair in judged.pairs]),
        ]
    return lines


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


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


def _settings_of(evidence: Evidence, claims: Sequence[Judged]) -> list[str]:
    """Return our setting, the paper's, what differs, and where the rows come from."""
    lines, names = (
        [],
        dict.fromkeys(
            name for judged in claims for name in judged.claim["experiments"]
        ),
    )
    for run in {
        id(evidence.runs[name]): evidence.runs[name] for name in names
    }.values():
        documents = [
            evidence.documents.get(name) for name in run["experiments"] if name in names
        ]
        rows = [row for document in documents if document for row in document.rows]
        lines.append(f"- Here: {run['here']}. The paper: {run['paper']}. What differs: {run['differs']}. "
                     f"Rates: {run['rates']}. {_origin(rows)}")  # fmt: skip
    return lines


def _origin(rows: Sequence[Row]) -> str:
    if not rows:
        return "No row yet."
    commits = ", ".join(sorted({row.commit for row in rows}))
    machines = ", ".join(
        sorted({f"{row.machine}, PyTorch {row.torch}" for row in rows})
    )
    return f"{len(rows)} rows of {commits}; {machines}; {sum(row.seconds for row in rows):,.0f} s."


def table_of_settings(evidence: Evidence) -> str:
    """Return every setting of every claim as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("paper", "figure", "claim", "experiment", "quantity", "method", "against", "first", "second", "effect",
                     "seeds", "room", "second computation", "verdict"))  # fmt: skip
    for judged in evidence.judged.values():
        for pair in judged.pairs:
            _, one, two, effect, _, room, second, word = _row(
                evidence, judged.claim, pair
            )
            against = (
                " ".join(map(str, pair.b)) if isinstance(pair.b, Place) else pair.b
            )
            writer.writerow((judged.claim["paper"], judged.claim["figures"], judged.claim["key"], *pair.a[:3], against, one, two,
                             effect, pair.effect.seeds if pair.effect else 0, room, second, word))  # fmt: skip
    return text.getvalue()


def forest(evidence: Evidence, paper: Mapping[str, Any]) -> str:
    """Return a picture of the deciding effect of each claim in units of its half-width, the claimed side to the right."""
    claims = [
        judged
        for judged in _own(evidence, paper)
        if judged.deciding and judged.deciding.effect.half_width
    ]
    plt = _pyplot()
    figure, axes = plt.subplots(
        figsize=(7.5, 0.8 + 0.24 * len(claims)), layout="constrained"
    )
    for height, judged in enumerate(reversed(claims)):
        effect, (marker, face, ink) = (
            judged.deciding.effect,
            MARKS.get(judged.word, ("D", "white", "0.6")),
        )
        margin = (
            margin_of(judged.claim)
            if judged.claim["direction"] not in ("higher", "lower")
            else 0
        )
        mean, bar = (
            max(-6.0, min(6.0, effect.mean / effect.half_width)),
            -margin / effect.half_width,
        )
        axes.plot([mean - 1, mean + 1], [height, height], color=ink, linewidth=1.2)
        axes.plot(mean, height, marker, color=ink, markersize=4, markerfacecolor=face)
        if -7 < bar < 0:
            axes.plot(
                [bar, bar], [height - 0.3, height + 0.3], color="0.6", linewidth=1
            )
    axes.axvline(0, color="black", linewidth=0.6)
    labels = [
        f"{judged.claim['figures']}: {judged.claim['says']}"
        for judged in reversed(claims)
    ]
    axes.set_yticks(range(len(claims)), labels, fontsize=7)
    axes.set_xlim(-7.5, 7.5)
    axes.set_xlabel("deciding effect in half-widths (at most 6); right: as the paper says\n"
                    "● confirmed   ✖ opposite   □ not clear   grey ◇ no verdict   grey | margin", fontsize=7, loc="right")  # fmt: skip
    axes.tick_params(axis="x", labelsize=7)
    return _svg(plt, figure)


def _panels(
    evidence: Evidence, paper: Mapping[str, Any]
) -> dict[tuple[str, str], dict[str, None]]:
    """Return the methods that are compared, by experiment and curve."""
    panels: dict[tuple[str, str], dict[str, None]] = {}
    for judged in _own(evidence, paper):
        for a, b in (
            (pair.a, pair.b)
            for pair in judged.pairs
            if pair.effect and isinstance(pair.b, Place)
        ):
            name = CURVES.get(a.quantity, "unseen")
            if "unseen" not in name and b.experiment == a.experiment:
                panels.setdefault((a.experiment, name), {}).update(
                    {a.method: None, b.method: None}
                )
    return panels


def curves(evidence: Evidence, paper: Mapping[str, Any]) -> str:
    """Return a panel per experiment with the curve of each method, mean over seeds."""
    panels = _panels(evidence, paper)
    if not panels:
        return ""
    plt = _pyplot()
    rows = -(-len(panels) // 3)
    figure, grid = plt.subplots(
        rows, 3, figsize=(9, 2.3 * rows), layout="constrained", squeeze=False
    )
    for axes, ((experiment, name), methods) in zip(
        grid.flat, panels.items(), strict=False
    ):
        for method, style in zip(methods, ("-", "--", ":", "-.") * 4, strict=False):
            points = evidence.curve(Place(experiment, "", method), name)
            kept = sorted(number for number in points if number > 0)
            axes.plot(
                kept,
                [points[number] for number in kept],
                style,
                linewidth=1.2,
                label=method,
            )
        axes.set_title(f"{evidence.label(experiment)}: {name}", fontsize=7)
        axes.tick_params(labelsize=6)
        axes.legend(fontsize=5)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    return _svg(plt, figure)


def _pyplot() -> Any:
    from matplotlib import pyplot

    pyplot.switch_backend("svg")
    pyplot.rcParams.update(
        {
            "svg.hashsalt": "coterie",
            "svg.fonttype": "path",
            "font.family": "DejaVu Sans",
        }
    )
    return pyplot


def _svg(plt: Any, figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


if __name__ == "__main__":
    write(pages())
