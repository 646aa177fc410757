"""What a notebook shows of clients, verdicts and runs is short, and has no row in it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import coterie as ct


def part(rows=40):
    inputs = torch.arange(float(rows * 3)).reshape(rows, 3)
    return ct.Part(inputs, (inputs[:, 0] > rows).long())


def test_a_client_and_its_parts_are_told_by_their_sizes():
    client = ct.Client("<a>", part(), test=part(7))
    assert repr(client) == "<client '<a>': 40 training, 7 test rows of float32 [3]>"
    assert "&lt;a&gt;" in client._repr_html_()
    assert client._repr_html_().endswith(
        "<tr><td>train</td><td>40</td></tr><tr><td>test</td><td>7</td></tr></table>"
    )
    assert repr(client.train) == "<40 rows of float32 [3], labels int64 []>"
    dicts = ct.Part(
        {"ids": torch.zeros(4, 2), "mask": torch.zeros(4, 2, dtype=torch.bool)},
        torch.zeros(4),
    )
    assert (
        repr(dicts) == "<4 rows of ids float32 [2], mask bool [2], labels float32 []>"
    )


def test_clients_are_a_table_that_ends():
    many = ct.Clients([ct.Client(f"<{i}>", part(4), test=part(2)) for i in range(50)])
    shown = many._repr_html_()
    assert shown.count("<tr>") == 21
    assert "<td>&lt;19&gt;</td><td>4</td><td>2</td>" in shown
    assert "and 30 more" in shown
    assert "<0>" not in shown
    assert len(shown) < 2000


def test_a_verdict_is_one_line():
    comparison = ct.compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=3)
    verdict = comparison.verdict("hungary")
    assert repr(verdict) == f"<verdict: {verdict}>"
    assert str(verdict) == f"{verdict.kind} ({verdict.method}): {verdict.reason}"
    assert verdict._repr_html_().startswith(f"<p><b>{verdict.kind}")
    assert "<" not in verdict._replace(reason="a<b")._repr_html_().removeprefix(
        "<p><b>"
    ).replace("</b>", "").replace("</p>", "")


@pytest.fixture
def kernel(monkeypatch):
    """A stand-in for the parts of IPython that are used, as in a notebook; what was shown last."""
    shown = []
    display = ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda value, display_id: SimpleNamespace(update=shown.append)
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_table_is_a_text_in_a_notebook_too(monkeypatch):
    comparison = ct.compare(["local", "fedavg"], "heart-disease", rounds=1, seeds=1)
    table = comparison.table("auc")
    assert "Cleveland" in table
    shell = type("ZMQInteractiveShell", (), {})()  # by its name rich knows a notebook
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)
    assert comparison.table("auc") == table


def test_a_notebook_shows_how_far_a_comparison_is(kernel, capfd):
    ct.compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=1)
    assert any("fedavg, round 1 of 2; 1 of 2 runs done" in line for line in kernel)
    assert kernel[-1] == ""
    assert capfd.readouterr() == ("", "")


def test_ones_own_progress_is_taken_in_its_place(kernel):
    seen = []
    settings = ct.StudySettings(progress=seen.append)
    ct.compare(["local"], "heart-disease", rounds=1, seeds=1, settings=settings)
    assert seen
    assert kernel == []
