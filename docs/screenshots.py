"""Write the picture of the README, the report of the demo: `python docs/screenshots.py [RUN]`.

Without the run directory of `coterie compare nhefs` it makes one, in two minutes. It needs chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from coterie.report.html import write

IMAGES = Path(__file__).parent / "images"
COMMAND = ("compare", "nhefs")
NAME = "runs/nhefs"
REPORT = (1180, 1000)


def main(arguments: list[str]) -> None:
    """Write the picture."""
    browser = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )
    if browser is None:
        sys.exit("the picture needs chromium")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(arguments[0]) if arguments else Path(folder) / NAME
        if not arguments:
            subprocess.run(
                [sys.executable, "-m", "coterie", *COMMAND, "--out", str(run)],
                check=True,
            )
        report = write(run)
        _picture(browser, report, "report.png", *REPORT)


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
