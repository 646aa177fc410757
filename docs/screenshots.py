"""Write the pictures of the README and the home page, of four hospitals: `python docs/screenshots.py [RUN]`.

Without the run directory of `coterie compare heart-disease` it makes one, in a minute. It needs chromium.
"""

from __future__ import annotations

import html
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from coterie.report.answer import answer_lines
from coterie.report.html import write
from coterie.report.results import Results

IMAGES = Path(__file__).parent / "images"
COMMAND = ("compare", "heart-disease")
NAME = "runs/heart-disease"
TERMINAL = """<!DOCTYPE html><meta charset="utf-8"><style>
body { margin: 0; padding: 18px 22px; background: #1b1e23; color: #e8eaed; }
pre { margin: 0; font: 14px/20.4px "DejaVu Sans Mono", monospace; }
b { font-weight: 400; color: #6cb6ff; }
</style><pre><b>$ %s</b>

%s</pre>"""
WIDTH, LINE, MARGIN = 740, 20.4, 36
REPORT = (1180, 1000)
HOSPITAL = 4
"""Which of the hospitals the picture of one verdict shows: Switzerland, where plain averaging does harm."""
ALONE = f"""<style>
body > *, main > *, #answer > * {{ display: none; }}
main, #answer, #answer > .advice, #answer > .cards {{ display: block; border: 0; margin: 0; padding: 0; }}
.advice li:not(:nth-child({HOSPITAL})), .card:not(:nth-child({HOSPITAL})), .card .save {{ display: none; }}
main {{ padding: 10px 14px; max-width: none; }}
.advice, .advice li {{ border: 0 !important; padding-top: 0; margin-top: 0; }}
</style></head>"""
"""What leaves of a report one hospital's verdict and its differences to training alone."""
VERDICT = (390, 452)


def main(arguments: list[str]) -> None:
    """Write the pictures."""
    browser = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )
    if browser is None:
        sys.exit("the pictures need chromium")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(arguments[0]) if arguments else Path(folder) / NAME
        if not arguments:
            subprocess.run(
                [sys.executable, "-m", "coterie", *COMMAND, "--out", str(run)],
                check=True,
            )
        ends = [f"run directory  {NAME}", f"report         {NAME}/report.html"]
        lines = answer_lines(Results.load(run), width=80, ends=ends)
        page = Path(folder) / "terminal.html"
        page.write_text(
            TERMINAL % (" ".join(("coterie", *COMMAND)), html.escape("\n".join(lines))),
            encoding="utf-8",
        )
        _picture(
            browser, page, "table.png", WIDTH, round(LINE * (len(lines) + 2)) + MARGIN
        )
        report = write(run)
        _picture(browser, report, "report.png", *REPORT)
        page.write_text(
            report.read_text(encoding="utf-8").replace("</head>", ALONE, 1),
            encoding="utf-8",
        )
        _picture(browser, page, "verdict.png", *VERDICT, scale=2)


def _picture(
    browser: str, page: Path, name: str, width: int, height: int, *, scale: int = 1
) -> None:
    flags = f"--headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=8000 --window-size={width},{height}"
    flags += f" --force-device-scale-factor={scale}"
    command = [
        browser,
        *flags.split(),
        f"--screenshot={IMAGES / name}",
        page.resolve().as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main(sys.argv[1:])
