"""To add a method to the hospitals' comparison weakens no word, whichever it is. The law on drawn losses is in test_report_words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import coterie as ct
from coterie.base.errors import InputError
from coterie.config.registry import METHODS
from coterie.report.verdicts import STRENGTH

BASE = ("local", "partial")
ADDED = [name for name in METHODS.places if name not in BASE]
pytestmark = pytest.mark.slow


def compare(methods: tuple[str, ...], folder: Path, *, resume: bool) -> ct.Comparison:
    settings = ct.StudySettings(rivals=("linear",), evaluate=4, resume=resume)
    data = {"name": "heart-disease", "split": {"folds": 5}}
    return ct.compare(
        methods, data, rounds=4, seeds=1, folder=folder, settings=settings
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ct.Comparison:
    """What the hospitals are told with one federated method."""
    return compare(BASE, tmp_path_factory.mktemp("base") / "run", resume=False)


@pytest.mark.parametrize("name", ADDED)
def test_adding_a_method_weakens_no_word(
    base: ct.Comparison, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(base.folder, tmp_path / "run")
    try:
        both = compare((*BASE, name), folder, resume=True)
    except InputError:
        return  # what cannot stand beside these methods weakens nothing
    for client in base.clients:
        before, after = base.verdict(client), both.verdict(client)
        assert STRENGTH[after.kind] >= STRENGTH[before.kind], client
        # Another method speaks only where it says more.
        assert after.method == "partial" or after.kind != before.kind
