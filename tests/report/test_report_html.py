"""The HTML report: complete, safe, self-contained, and free of errors in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fake_run
import numpy as np
import pytest

from coterie.base.errors import InputError
from coterie.report import figures, html
from coterie.report.diagnosis import call_all_the_same
from coterie.report.results import Results
from coterie.report.verdicts import verdict

BROWSER = next(
    (
        b
        for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        if b
    ),
    None,
)
VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = [
    "<script>alert(1)</script>",
    "a&b \"q\" 'single'",
    "%{x} {{ 1 }} </script>",
    "</title>",
]


class Page(HTMLParser):
    """Text outside of scripts, embedded JSON, what would be loaded, and whether elements nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text: list[str] = []
        self.data = ""
        self.scripts = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.loads += [
            v
            for k, v in attrs
            if k in ("src", "href", "srcset", "data", "action") and v
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.data = self.data or data
        elif self.open[-1:] == ["style"]:
            self.loads += re.findall(r"url\(|@import", data)
        else:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands from few draws, where nobody looks at them."""
    monkeypatch.setattr("coterie.report.operating.DRAWS", 20)


def page(folder: Path) -> Page:
    return Page(html.write(folder).read_text(encoding="utf-8"))


FRAME = """<!DOCTYPE html><script>
addEventListener("message", (e) => { document.documentElement.dataset.axe = e.data; });
</script><iframe src="%s" style="width: %dpx; height: 900px; border: 0"></iframe>"""


def browse(path: Path, *, width: int = 1200, folder: Path) -> tuple[str, list[str]]:
    """The document after its scripts have run, and what they wrote to the console. A window is 500 pixels wide at least, so that a
    narrower page is looked at in a frame; then the document is that around it.
    """
    assert BROWSER
    if width < 500:
        path, framed = path.with_name("frame.html"), path.name
        path.write_text(FRAME % (framed, width))
    options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    options += " --disable-component-update --disable-sync --enable-logging=stderr --v=0 --virtual-time-budget=8000"
    command = [
        BROWSER,
        *options.split(),
        f"--user-data-dir={folder}",
        f"--window-size={width},2000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [*command, path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def hostile_run(folder: Path) -> Path:
    numbers = (0.8, 0.8, None, 1.4)
    truth = {m: dict.fromkeys(HOSTILE, numbers) for m in ("local", "<b>bold</b>")}
    weights = {"<b>bold</b>": dict.fromkeys(HOSTILE, (0.1, 0.2, 0.3, 0.4))}
    notes = ["<img src=https://example.org/x onerror=alert(1)>"]
    return fake_run.write(
        folder,
        truth,
        weights=weights,
        notes=notes,
        name="</title><script>alert(2)</script>",
    )


@pytest.mark.usefixtures("light")
def test_the_page_says_everything(tmp_path: Path) -> None:
    got = page(fake_run.heart(tmp_path))
    said = verdict(Results.load(tmp_path), "cleveland").reason
    assert not got.open
    for name in ("Cleveland", "Hungary", "Switzerland", "Long Beach"):
        assert got.words.count(name) >= 6
    for text in (
        said,
        "Averaging (fedavg) : better ",
        "meritfed : a model for each client, which learns with those whose rows lower its own loss.",
        "41 test rows · 82 training rows · ",
        "Higher AUC: better ranking; lower log-loss: more honest risks.",
        "AUC covers 3 of 4 clients: Switzerland has under 10 test rows of a class.",
        "largest class",
        "training shares",
        "Balanced accuracy",
        "AUC",
        "Log-loss",
        "× 2.31",
        "Cholesterol of 0 is a missing value",
        "coterie compare heart-disease --seeds 5",
        "batch_size = 16",
        "2.13.0",
        "4 clients · 3 methods · 5 seeds · 60 rounds · 307 test rows",
    ):
        assert text in got.words, text


def test_it_loads_nothing(tmp_path: Path) -> None:
    for folder in (
        fake_run.heart(tmp_path / "heart"),
        hostile_run(tmp_path / "hostile"),
    ):
        loads = [x for x in page(folder).loads if not x.startswith(("#", "data:"))]
        assert loads == []
    text = (tmp_path / "heart" / "report.html").read_text()
    assert "default-src 'none'" in text
    assert len(re.findall(r"<script", text)) == 2
    assert len(text) < 200_000


@pytest.mark.usefixtures("light")
def test_names_of_users_are_text(tmp_path: Path) -> None:
    got = page(hostile_run(tmp_path))
    assert not got.open
    assert got.scripts == 2
    for name in HOSTILE:
        assert " ".join(name.split()) in got.words
    assert "<b>bold</b>" in got.words
    assert "<img src=https://example.org/x onerror=alert(1)>" in got.words
    assert "<" not in got.data
    assert json.loads(got.data)["points"]["loss"]["clients"][: len(HOSTILE)] == HOSTILE


@pytest.mark.usefixtures("light")
def test_commands_can_be_typed_as_they_stand(tmp_path: Path) -> None:
    shown = page(fake_run.heart(tmp_path / "two words")).words
    assert (
        "coterie run 'two words/experiment.toml' --out 'two words-again' coterie report 'two words'"
        in shown
    )


@pytest.mark.usefixtures("light")
def test_the_data_of_the_figures(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    results, data = Results.load(folder), json.loads(page(folder).data)
    assert data["decides"] == "loss"  # shown first; accuracy decides nothing
    clients = data["points"]["auc"]["clients"]
    assert clients == [
        "Cleveland",
        "Hungary",
        "Switzerland",
        "Long Beach",
        "mean of all",
    ]
    values = results.values("fedavg", "switzerland", "auc")
    row = data["points"]["auc"]["rows"][1]
    assert row["mean"][2] == pytest.approx(values.mean(), rel=1e-4)
    assert row["std"][2] == pytest.approx(values.std(ddof=1), rel=1e-3)
    gap = results.difference("fedavg", "local", "switzerland", "auc")
    assert gap is not None
    assert data["gaps"]["auc"]["rows"][0] is None
    assert data["gaps"]["auc"]["rows"][1]["low"][2] == pytest.approx(gap.low, rel=1e-3)
    assert [w["method"] for w in data["weights"]] == ["fedavg", "meritfed"]
    assert data["weights"][0]["targets"] == ["one model for all"]
    assert np.allclose(
        np.array(data["weights"][1]["late"]),
        results.weights["meritfed"].late(),
        atol=1e-4,
    )
    curve = data["curves"]["loss"][3]
    assert curve["client"] == "Switzerland"
    assert curve["rows"][1]["mean"][-1] == pytest.approx(
        results.mean("fedavg", "switzerland", "loss"), abs=0.01
    )


@pytest.mark.in_turn(but=("settings0", "settings3"))
@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    "settings",
    [
        {"seeds": [0]},
        {"truth": {m: v for m, v in fake_run.STORY.items() if m != "local"}},
        {"truth": {"local": fake_run.STORY["local"]}},
        {
            "truth": {
                m: {**v, "hungary": (0.8, 0.8, None, 0.4)}
                for m, v in fake_run.STORY.items()
            }
        },
        {"weights": {}},
        {"skip": [("fedavg", 0), ("fedavg", 1), ("fedavg", 2), ("fedavg", 3)]},
    ],
)
def test_what_is_undefined_is_neither_nan_nor_missing(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    got = page(fake_run.heart(tmp_path, **settings))
    assert not got.open
    assert not re.search(r"\b(NaN|Infinity|None|nan|inf)\b", got.data + got.words)
    json.loads(got.data, parse_constant=pytest.fail)


@pytest.mark.in_turn
@pytest.mark.usefixtures("light")
def test_many_clients_stay_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = {
        m: {f"c{i:03d}": (*rng.uniform(0.5, 0.9, 3), 0.4) for i in range(250)}
        for m in ("local", "fedavg")
    }
    got = page(fake_run.write(tmp_path, truth, seeds=[0, 1], n_test=40, outcomes=False))
    data = json.loads(got.data)
    assert len(data["points"]["accuracy"]["clients"]) == figures.DOTS + 1
    assert len(data["curves"]["loss"]) == figures.PANELS + 1
    assert "50 clients are left out of the tables" in got.words
    assert "The verdict for every client" in got.words


def test_thinned_keeps_both_ends() -> None:
    assert figures.spread_evenly(500, 120)[0] == 0
    assert figures.spread_evenly(500, 120)[-1] == 499
    assert figures.spread_evenly(3, 120) == [0, 1, 2]
    assert figures.spread_evenly(1, 120) == [0]


@pytest.mark.in_turn
@pytest.mark.usefixtures("light")
def test_written_twice_it_is_the_same_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    before = set(folder.iterdir())
    first = html.write(folder).read_bytes()
    assert html.write(str(folder)).read_bytes() == first
    assert set(folder.iterdir()) - before == {folder / "report.html"}


@pytest.mark.in_turn
@pytest.mark.usefixtures("light")
def test_a_broken_run_leaves_the_old_report(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    first = html.write(folder).read_bytes()
    (folder / "history.csv").write_text("method\nx\n")
    with pytest.raises(InputError, match=r"history\.csv"):
        html.write(folder)
    assert (folder / "report.html").read_bytes() == first
    assert not list(folder.glob(".report*"))


def test_without_the_extra_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        InputError, match=r'needs jinja2: pip install "coterie\[report\]"'
    ):
        html.write(fake_run.heart(tmp_path))


AXE = (
    Path(__file__).parents[2]
    / "build"
    / "axe"
    / "node_modules"
    / "axe-core"
    / "axe.min.js"
)
RULES = """<script>
document.querySelectorAll("details").forEach((d) => { d.open = true; });
addEventListener("message", (e) => { document.documentElement.dataset.axe = e.data; });
axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }).then((found) => {
  const told = found.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).slice(0, 3).join(" ")}`);
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) told.push(`${root.scrollWidth} pixels wide`);
  parent.postMessage(JSON.stringify({ passed: found.passes.length, told }), "*");
});
</script></body>"""


@pytest.mark.programs
@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.skipif(
    not AXE.is_file(), reason="no axe-core: npm install --prefix build/axe axe-core"
)
@pytest.mark.parametrize(
    ("width", "dark"), [(1400, False), (1400, True), (390, False), (390, True)]
)
def test_nothing_violates_the_accessibility_rules_of_level_a_and_aa(
    tmp_path: Path, width: int, dark: bool
) -> None:
    path = html.write(
        fake_run.heart(
            tmp_path / "a run in a folder whose name does not fit beside its commands"
        )
    )
    text = path.read_text().replace(
        "</body>", f"<script>{AXE.read_text()}</script>{RULES}"
    )
    path.write_text(
        text.replace("(prefers-color-scheme: dark)", "(min-width: 1px)")
        if dark
        else text
    )
    document, _ = browse(path, width=width, folder=tmp_path / "profile")
    said = re.search(r'data-axe="([^"]*)"', document)
    assert said
    found = json.loads(unescape(said[1]))
    assert found["told"] == []
    assert found["passed"] > 10


CLICKS = """<script>
document.querySelectorAll("details").forEach((d) => { d.open = true; });
document.querySelectorAll("button").forEach((b) => b.click());
document.querySelectorAll("select").forEach((s) => { s.selectedIndex = s.options.length - 1; s.dispatchEvent(new Event("change")); });
document.querySelectorAll("input").forEach((i) => { i.value = 0; i.dispatchEvent(new Event("input")); });
dispatchEvent(new Event("beforeprint")); dispatchEvent(new Event("afterprint"));
document.documentElement.dataset.clicked = "yes";
</script></body>"""


@pytest.mark.programs
@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_a_browser_draws_it_and_its_controls_work_without_an_error(
    tmp_path: Path,
) -> None:
    path = html.write(hostile_run(tmp_path / "run"))
    path.write_text(path.read_text().replace("</body>", CLICKS))
    document, console = browse(path, folder=tmp_path / "profile")
    assert console == []
    assert 'data-drawn="yes"' in document
    assert 'data-clicked="yes"' in document
    assert document.count('aria-hidden="true"><path') >= 5  # a figure each
    assert document.count('class="cell"') == 16
    shown = re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL)
    assert "<b>bold</b>" not in shown
    assert "one round" in shown
    assert "round 5" in shown
    numbers = re.findall(r"<li>([^<]*)</li>", shown)
    assert "local, round 0: " in " ".join(numbers)
    assert any(
        re.fullmatch(r".*, round 5: \d+ %", text) for text in numbers
    )  # a weight
    assert not [
        text for text in numbers if "no result" in text or re.search(r"[+−]\.000", text)
    ]


SWITCHED = """<script>
const panels = () => [...document.querySelectorAll("#curve-panels > .panel")];
const last = (p) => p.querySelector("li:last-child").textContent;
document.querySelectorAll("details").forEach((d) => { d.open = true; });
const drawn = () => panels().map((p) => [p.querySelector("h3").textContent, p.querySelectorAll(".save").length, last(p)]);
document.querySelector("[data-switch=curve] button").click();
document.documentElement.dataset.panels = JSON.stringify(drawn());
</script></body>"""


@pytest.mark.programs
@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_another_metric_has_curves_of_its_own_under_the_names_of_its_clients(
    tmp_path: Path,
) -> None:
    gains = {
        f"c{i:02d}": (
            0.8 + (0.01 * i if i < 6 else 0),
            0.8,
            0.8,
            0.5 - (0.01 * i if i > 5 else 0),
        )
        for i in range(12)
    }
    truth = {"local": dict.fromkeys(gains, (0.8, 0.8, 0.8, 0.5)), "fedavg": gains}
    path = html.write(fake_run.write(tmp_path / "run", truth, noise=0.0002))
    curves = figures.data(Results.load(tmp_path / "run"))["curves"]
    first, loss = (
        [panel["client"] for panel in curves[m]] for m in ("accuracy", "loss")
    )
    assert len(first) == len(loss)
    assert first != loss
    path.write_text(path.read_text().replace("</body>", SWITCHED))
    document, _ = browse(path, folder=tmp_path / "profile")
    said = re.search(r'data-panels="([^"]*)"', document)
    assert said
    last = [panel["rows"][1]["mean"][-1] for panel in curves["accuracy"]]
    panels = json.loads(unescape(said[1]))
    assert [panel[:2] for panel in panels] == [[client, 1] for client in first]
    for (*_, text), value in zip(panels, last, strict=True):
        assert float(re.search(r": (\S+)", text)[1]) == pytest.approx(value, abs=5e-4)


SAVED = """<script>
const root = document.documentElement;
HTMLAnchorElement.prototype.click = function () { root.dataset.saved = this.download + decodeURIComponent(this.href); };
document.querySelector("#points + .save").click();
const box = document.querySelector("#points"), at = box.getBoundingClientRect();
const [x, y] = document.querySelector("#points .point:last-of-type").getAttribute("transform").match(/[0-9.]+/g).map(Number);
box.dispatchEvent(new PointerEvent("pointermove", { clientX: at.left + x, clientY: at.top + y }));
root.dataset.tip = document.querySelector(".tip").hidden ? "" : document.querySelector(".tip").textContent;
</script></body>"""


@pytest.mark.programs
@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_a_figure_is_saved_with_its_colours_and_says_what_a_pointer_finds(
    tmp_path: Path,
) -> None:
    path = html.write(fake_run.heart(tmp_path / "run"))
    path.write_text(path.read_text().replace("</body>", SAVED))
    document, console = browse(path, folder=tmp_path / "profile")
    assert console == []
    picture = unescape(re.search(r'data-saved="([^"]*)"', document)[1])
    assert picture.startswith("Log-loss")
    svg = ElementTree.fromstring(picture[picture.index("<svg") :])
    assert "var(" not in picture
    assert svg[1].get("fill") == "#ffffff"
    assert len(svg.findall("{*}path[@class='point']")) >= 5 * 3
    assert re.search(r'data-tip="mean of all · meritfed: [.0-9]+ ± [.0-9]+"', document)


@pytest.mark.in_turn
@pytest.mark.usefixtures("light")
def test_the_first_screen_says_of_small_clients_together_what_holds_for_each(
    tmp_path: Path,
) -> None:
    numbers = {"local": (0.8, 0.78, 0.8, 0.45), "fedavg": (0.9, 0.88, 0.9, 0.3)}
    truth = {
        method: dict.fromkeys("abcdef", of_method)
        for method, of_method in numbers.items()
    }
    words = page(fake_run.write(tmp_path, truth, noise=0.0002, n_test=12)).words
    first = words[: words.index("against alone")]
    assert (
        first.count("Of the 6 clients with under 30 rows about 6 gain (mean .15).") == 1
    )
    assert first.count("; your 12 rows cannot tell whether you do.") == 6


@pytest.mark.usefixtures("light")
def test_the_first_screen_answers_whom_to_join_and_how_sure_that_is(
    tmp_path: Path,
) -> None:
    words = page(fake_run.heart(tmp_path)).words
    first = words[: words.index("against alone")]
    for name in ("Cleveland", "Hungary", "Switzerland", "Long Beach"):
        assert re.search(
            rf"{name} (Safe to join|Join|Probably join|Stay alone|Probably stay alone|Undecided)[^.]*? · ",
            first,
        ), name
    for text in (
        "Should we join, and with whom?",
        "Probability",
        "AUC Of two patients",
        "Log-loss How far",
        "Sensitivity Of the patients with the outcome, the share whom the model finds",
    ):
        assert text in first, text


def test_a_model_that_calls_everybody_ill_is_called_so(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    row = {"method": "local", "cells": ["1.000", ".000", ".9"]}
    sentence = call_all_the_same(
        results,
        "switzerland",
        [row, {"method": "fedavg", "cells": [".999", ".001", ".9"]}],
    )
    assert (
        sentence
        == "local calls everybody at Switzerland positive (sensitivity 1, specificity 0) and so tells nobody apart."
    )
    other = {"method": "fedavg", "cells": [".000", "1.000", ".9"]}
    assert (
        "fedavg calls nobody at Switzerland positive (sensitivity 0, specificity 1)"
        in call_all_the_same(results, "switzerland", [row, other])
    )
    assert (
        call_all_the_same(
            results,
            "switzerland",
            [{"method": "fedavg", "cells": [".999", ".001", ".9"]}],
        )
        == ""
    )


def test_the_mean_of_auc_is_named_after_the_clients_that_it_is_over(
    tmp_path: Path,
) -> None:
    gaps = figures.data(Results.load(fake_run.heart(tmp_path)))["gaps"]
    assert gaps["auc"]["clients"][-1] == "mean of 3"
    assert gaps["loss"]["clients"][-1] == "mean of all"


@pytest.mark.in_turn
def test_the_share_of_the_positive_class_has_its_name(tmp_path: Path) -> None:
    bare = page(fake_run.heart(tmp_path / "bare", outcomes=False))
    assert "41 test rows · 82 training rows · 80 % in the largest class" in bare.words
    named = fake_run.heart(tmp_path / "named")
    recipe = {"0": {"label": {"column": "num", "classes": ["healthy", "ill"]}}}
    (named / "preprocess.json").write_text(json.dumps(recipe), encoding="utf-8")
    got = page(named)
    assert re.search(r"41 test rows · 82 training rows · 8\d(\.\d)? % ill", got.words)
    assert "Positive: ill." in got.words
