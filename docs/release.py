"""Build a release into dist/, and refuse one that would be wrong: `make release` (TAG=v1.2.3)."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(
    settings: dict[str, str], version: str, changelog: str, tag: str
) -> list[str]:
    """Sentences about what stands in the way of a release; none if it may go out.

    Args:
        settings: `address` and `contact` of the package.
        version: of the package.
        changelog: text of CHANGELOG.md.
        tag: of the release; empty: none is compared.
    """
    found = [
        f"{key} in pyproject.toml is empty; write {what}"
        for key, what in (
            ("address", "the repository's address"),
            ("contact", "an e-mail address that somebody reads"),
        )
        if not settings.get(key)
    ]
    if tag and tag != f"v{version}":
        found.append(
            f"the tag is {tag} but the version is {version}; tag v{version}, or change __version__"
        )
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE
    ):
        found.append(
            f"CHANGELOG.md has no date for {version}; write: ## [{version}] - YYYY-MM-DD"
        )
    return found


def main() -> int:
    """Check, then build an sdist and a wheel; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tag", default="", help="the tag of the release, such as v0.2.0"
    )
    tag = parser.parse_args().tag
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "tool"
    ]["hatch"]["metadata"]["hooks"]["custom"]
    source = (ROOT / "src" / "coterie" / "__init__.py").read_text(encoding="utf-8")
    version = next(iter(re.findall(r'^__version__ = "([^"]+)"', source, re.MULTILINE)))
    wrong = problems(
        settings, version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), tag
    )
    for sentence in wrong:
        sys.stderr.write(f"release: {sentence}\n")
    if wrong:
        return 2
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    return subprocess.run(
        [sys.executable, "-m", "build", "--outdir", "dist", str(ROOT)],
        cwd=ROOT,
        check=False,
    ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
