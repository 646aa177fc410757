"""The page: a table of all claims, then a section per paper."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.pages import replaced

from coterie.base.files import read_toml
from experiments.documents import BENCHMARKS, RESULTS, ROOT, Document, read, read_json
from experiments.page import isfl, maxfl, meritfed, varsel
from experiments.page.claims import WORDS, Claim, Documents, again, judge
from experiments.page.sections import Section, Study, Verdicts, advised
from experiments.page.text import anchor, table

SECTIONS = (meritfed.SECTION, varsel.SECTION, isfl.SECTION, maxfl.SECTION)
EXPERIMENTS, DOCS, README = ROOT / "experiments", ROOT / "docs", ROOT / "README.md"
ORDER = (
    tuple(meritfed.groups(number) for number in ("99", "50", "90", "70")),
    ("meritfed-copies-90", "meritfed-copies-50"),
    tuple(isfl.fashion(key) for key in isfl.SPLITS),
    tuple(isfl.fashion(key) for key in ("ceiling", "mixed-ceiling", "20", "server-250", "server-1000", "ratio-10")),
    (maxfl.LEAVE, *maxfl.LIARS),
    (maxfl.STAY, *map(maxfl.liars, maxfl.SHARES)),
    (varsel.shards("long"), varsel.shards("long-ceiling")),
    (maxfl.CLUSTERS, *map(maxfl.warm_up, maxfl.WARM_UPS)),
    tuple(map(varsel.shards, (*varsel.COLUMNS, "twins", "ceiling"))),
    ("varsel-small-shards-twins", "varsel-small-shards-ceiling", "varsel-small-shards"),
    (meritfed.groups("ceiling"), meritfed.comments("ceiling")),
    tuple(map(meritfed.comments, meritfed.ALPHAS)),
    (meritfed.X_RAYS, meritfed.X_RAYS_CEILING),
    (varsel.PLAYS, varsel.PLAYS_CEILING),
    (varsel.CIFAR, varsel.CIFAR_CEILING),
    (isfl.CIFAR, isfl.CIFAR_CEILING),
    (
        meritfed.COPIES_CEILING,
        isfl.fashion("20-ceiling"),
        varsel.shards("twins-ceiling"),
        "varsel-small-shards-own-ceiling",
    ),
    (varsel.MEMBRANES, varsel.MEMBRANES_CEILING),
)
"""Experiments in order of worth; those of one step take turns, seed by seed."""
OTHERS = {
    meritfed.MEAN: (BENCHMARKS / "mean_estimation.json", meritfed.of_mean_estimation),
    meritfed.ATTACKS: (BENCHMARKS / "byzantine.json", meritfed.of_attacks),
    maxfl.TOY: (RESULTS / "maxfl_toy.json", maxfl.of_toy),
    maxfl.LANDSCAPE: (RESULTS / "maxfl_landscape.json", maxfl.of_landscape),
}
"""Files of other shapes, and how they are read."""

HEAD = """\
# Results: the papers' claims at laptop scale

For those who choose among MeritFed, VaRSeL, ISFL and MaxFL, or check them: what each paper claims,
what our runs of it show, and how sure that is.

Code writes this page from the files of `experiments/results` and `benchmarks/results`
(`make results`), and a test compares it byte by byte. `make papers` runs what is missing.
A verdict follows from the 95 % interval of a difference, paired over seeds:

- **confirmed**: the interval lies on the claimed side of 0, and of the margin if the claim has one.
  "As good as" is confirmed if the whole interval lies within the margin.
- **opposite**: it lies on the other side.
- **cannot show here**: it holds 0, and perfect help (the ceiling) would gain less than the paper
  reports; or the data, or a machine that is fast enough, are missing.
- **not clear**: it holds 0 otherwise.

What was **not run** could be: the section says how many runs it takes, and how long each.

"Ours" stands at every claim, method, setting or test set that no paper has. An effect is the first
minus the second of what a claim compares, or how many times as large it is. Where test sets are
fixed over seeds the plain paired interval holds, conditional on that test set; where test rows are
drawn from the clients' own it is corrected for rows that seeds share ([how](statistics.md)).
The last round counts. An *independent computation* is plain PyTorch, written from the papers alone
with random numbers of its own (`experiments/independent/`); it agrees where both intervals share a
point. Where the rival is perfect help itself, as the honest clients alone are, there is no ceiling.

Each row of a file names the commit that made it. Commits 5456eca13681 and 6d2ba506b009 are of a
copy of the repository that is lost; their code is that of deed539. One row of each of ten files was
made anew there, on another machine. Six are the same in every digit that is kept. The last bits of
four differ: one has the same accuracies, and three differ by no more than seeds do."""


def documents() -> dict[str, Document]:
    """All that has been measured, by name."""
    named = {
        study.name: read(study.name) for section in SECTIONS for study in section.studies if study.name not in OTHERS
    }
    for name, (path, document_of) in OTHERS.items():
        saved = read_json(path)
        named[name] = None if saved is None else document_of(saved)
    known = {name: document for name, document in named.items() if document is not None}
    sampled = {name for name, kind in kinds().items() if kind == "sampling"}
    known |= {again(name): second for name in named if (second := read(name, RESULTS / "independent")) is not None}
    for name in sampled & known.keys():
        rounds = isfl.looked(known[name])
        known |= {n: isfl.with_rounds(known[n], rounds) for n in (name, again(name)) if n in known}
    for tenth, whole in ((isfl.TENTH, isfl.fashion("98")), (again(isfl.TENTH), again(isfl.fashion("98")))):
        if {tenth, whole} <= known.keys():
            known[tenth] = isfl.with_loss(known[tenth], known[whole])
    return known


def kinds() -> dict[str, str]:
    """What is measured of each experiment that is run from a file."""
    return {study.name: study.kind for section in SECTIONS for study in section.studies if study.kind}


class Placed(NamedTuple):
    """A claim, the heading under which it stands, and why that experiment has no rows."""

    claim: Claim
    heading: str
    unrun: str = ""


def placed(sections: Sequence[Section] = SECTIONS) -> list[Placed]:
    """All claims in the order of the page."""
    studied = [
        Placed(claim, study.heading, study.unrun) for s in sections for study in s.studies for claim in study.claims
    ]
    return [*studied, *(Placed(claim, section.heading) for section in sections for claim in section.missing)]


def judged(known: Documents, sections: Sequence[Section] = SECTIONS) -> Verdicts:
    """The verdict of each claim, by its key."""
    claims = placed(sections)
    verdicts = {claim.key: judge(replace(claim, unrun=claim.unrun or unrun), known) for claim, _, unrun in claims}
    if len(verdicts) < len(claims):
        raise ValueError("two claims have one key")
    return verdicts


def page(measured: Documents | None = None, sections: Sequence[Section] = SECTIONS) -> str:
    """docs/results.md."""
    known = documents() if measured is None else measured
    verdicts = judged(known, sections)
    papers = {claim.key: s.heading for s in sections for c in (s.studies, [s]) for claim in _claims(c)}
    parts = [HEAD, "", *_summary(placed(sections), papers, verdicts)]
    for section in sections:
        parts += ["", *_section(section, known, verdicts)]
    return "\n".join(parts).rstrip() + "\n"


def advice(known: Documents, sections: Sequence[Section] = SECTIONS) -> str:
    """What the results mean for a user, a line per paper."""
    verdicts = judged(known, sections)
    said = [f"- **{section.heading}.** {advised(section, verdicts)}" for section in sections]
    return "\n".join(textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False) for line in said)


def pages() -> dict[Path, str]:
    """All files of the documentation that are written here."""
    known = documents()
    return {
        ROOT / "docs" / "results.md": page(known),
        README: replaced(README, advice(known), "advice"),
        **{DOCS / path: text for path, text in drawings(known).items()},
    }


def drawings(known: Documents, sections: Sequence[Section] = SECTIONS) -> dict[str, str]:
    """The figures of the experiments that have curves, by their path from docs."""
    studies = [study for section in sections for study in section.studies if study.name in known]
    drawn = {
        _path(study, number): figure.drawn(known[study.name], known, study.heading)
        for study in studies
        for number, figure in enumerate(study.figures, 1)
    }
    return {path: text for path, text in drawn.items() if text}


def _path(study: Study, number: int) -> str:
    return f"images/results/{study.name}-{number}.svg"


def _figures(study: Study, document: Document, known: Documents) -> list[str]:
    """Links to the figures, whose alternative text says what they show."""
    links = []
    for number, figure in enumerate(study.figures, 1):
        if figure.drawn(document, known, study.heading):
            links += ["", f"![{figure.told(document, known)}]({_path(study, number)})"]
    return links


def _claims(owners: Sequence[Study | Section]) -> list[Claim]:
    return [claim for owner in owners for claim in (owner.claims if isinstance(owner, Study) else owner.missing)]


def _summary(claims: Sequence[Placed], papers: dict[str, str], verdicts: Verdicts) -> list[str]:
    counted = Counter(v.word for v in verdicts.values())
    intervals = sum(v.has_interval for v in verdicts.values())
    said = ", ".join(f"{counted[word]} {word}" for word in WORDS)
    waiting = f" {counted['']} more were not run." if counted[""] else ""
    rows = [
        (claim.text, f"{papers[claim.key]}, {claim.where}", v.word or "not run", v.effect, v.over or "-",
         f"[{heading}](#{anchor(heading)})")
        for claim, heading, _ in claims
        for v in [verdicts[claim.key]]
    ]  # fmt: skip
    count = (
        f"{len(verdicts) - counted['']} claims: {said}.{waiting} Of their {intervals} intervals of 95 %, about "
        f"{round(intervals / 20)} miss by chance."
    )
    head = ("claim", "paper and figure", "verdict", "effect with 95 % interval", "over", "section")
    return ["## All claims", "", count, "", *table(head, rows)]


def _section(section: Section, known: Documents, verdicts: Verdicts) -> list[str]:
    parts = [f"## {section.heading}", "", f"**For users.** {advised(section, verdicts)}", ""]
    parts += [f"- {note}" for note in section.notes]
    for study in section.studies:
        parts += ["", *_study(study, known, verdicts)]
    if section.missing:
        parts += ["", "### Not run here", "", *_bullets(section.missing, verdicts)]
    return parts


def _study(study: Study, known: Documents, verdicts: Verdicts) -> list[str]:
    parts = [f"### {study.heading}", "", study.about, ""]
    document = known.get(study.name)
    if document is None:
        return [*parts, study.unrun or f"No result yet: `make papers ONLY={study.name}`."]
    parts += [*study.shown(document), *_figures(study, document, known), "", *_bullets(study.claims, verdicts)]
    return [*parts, *_differences(study)]


def _bullets(claims: Sequence[Claim], verdicts: Verdicts) -> list[str]:
    return [
        f"- {claim.text} ({claim.where}): **{v.word or 'not run'}**"
        + (f", {v.effect} over {v.over}. " if v.over else ". ")
        + v.sentence
        for claim in claims
        for v in [verdicts[claim.key]]
    ]


def _differences(study: Study) -> list[str]:
    """What differs between the two files of settings, apart from the methods."""
    here, paper = EXPERIMENTS / f"{study.name}.toml", EXPERIMENTS / "paper" / f"{study.paper}.toml"
    if not study.paper or not here.is_file():
        return []
    ours, theirs = read_toml(here), read_toml(paper)
    lines = []
    for name in ("data", "split", "model", "local", "run"):
        one, two = ours.get(name, {}), theirs.get(name, {})
        for key in dict.fromkeys([*one, *two]):
            if one.get(key) != two.get(key) and key not in ("evaluate", "out"):
                lines.append(f"`{name}.{key}` {_said(one, key)} ({_said(two, key)})")
    files = f"`experiments/{study.name}.toml` (`experiments/paper/{study.paper}.toml`)"
    return ["", f"What differs from the paper's setting, {files}: {'; '.join(lines)}." if lines else ""]


def _said(settings: dict[str, object], key: str) -> str:
    return str(settings[key]) if key in settings else "default"
