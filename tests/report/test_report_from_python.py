"""`ct.report`: what a run directory says, from Python."""

from __future__ import annotations

import fake_run
import pytest

import coterie as ct
from coterie.base.errors import InputError


def test_a_run_directory_speaks(tmp_path):
    fake_run.write(tmp_path)
    results = ct.report.load(tmp_path)
    assert results.clients == fake_run.HEART
    assert ct.report.judge(tmp_path, "switzerland").kind
    said = ct.report.say(str(tmp_path))
    assert all(name in said for name in ("Cleveland", "Switzerland"))
    assert ct.report.say(tmp_path, tables=True).endswith(said)
    assert ct.report.say(tmp_path, tables=True) != said
    assert (
        ct.report.save_html(tmp_path)
        .read_text(encoding="utf-8")
        .startswith("<!DOCTYPE html>")
    )


def test_errors_are_sentences(tmp_path):
    with pytest.raises(InputError, match="there is no run directory"):
        ct.report.load(tmp_path / "nowhere")
    fake_run.write(tmp_path)
    with pytest.raises(InputError, match="did you mean 'hungary'"):
        ct.report.judge(tmp_path, "hungry")
