"""Laws of a run at the numbers that it counts with: lines and bars of progress, memory, defaults, what is written and read."""

from __future__ import annotations

import inspect
import io
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.config.run import Tuning
from coterie.contract import exchange
from coterie.run import memory_forecast, progress
from coterie.run.history import ClientMetrics
from coterie.run.personalise import personalise
from federations import fit, logistic

LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(2), batch_size=4)

# ---- progress


@pytest.mark.parametrize(
    ("rounds", "lines"), [(1, 1), (19, 19), (20, 20), (40, 20), (100, 20), (1000, 20)]
)
def test_a_long_run_logs_twenty_lines(rounds, lines, capsys):
    shown = progress.Rounds(progress.show_in("log"), "FedAvg", rounds)
    for number in range(1, rounds + 1):
        shown(number)
    written = capsys.readouterr().err.splitlines()
    assert len(written) == lines
    assert written[-1].startswith(f"FedAvg, round {rounds} of {rounds}")


@pytest.mark.parametrize("notebook", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("prompt", [False, True])
def test_a_bar_is_for_those_who_look(notebook, terminal, prompt, monkeypatch):
    shell = "shell" if notebook else None
    monkeypatch.setattr(progress, "_notebook", lambda: shell)
    monkeypatch.setattr(progress, "is_terminal", lambda: terminal)
    monkeypatch.delattr(sys, "ps1", raising=False)
    if prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    somebody_looks = notebook or terminal
    assert progress.choose(True) == ("bar" if somebody_looks else "log")
    waits = notebook or (terminal and prompt)
    assert progress.choose(None) == ("bar" if waits else "")
    assert progress.choose(False) == ""
    assert [progress.choose(word) for word in ("bar", "log")] == ["bar", "log"]


class Unflushed(io.StringIO):
    """A stream of which a reader sees what was flushed."""

    def __init__(self):
        super().__init__()
        self.seen = ""

    def flush(self):
        self.seen = self.getvalue()


def test_each_picture_of_a_bar_is_seen_at_once(monkeypatch):
    stream = Unflushed()
    monkeypatch.setattr(sys, "stderr", stream)
    show = progress.show_in("bar", at_once=True)
    for share in (0.25, 0.5, 0.75):
        show("partial", share, 60.0)
        picture = stream.seen.rpartition("\r")[2]
        bar, _, words = picture.partition("]")
        assert bar.count("#") == round(share * (len(bar) - 1))
        assert words.split(",")[0] == " partial"
    show("partial", 1.0, None)
    assert stream.seen.split("\r")[-2:] == [" " * len(picture), ""]


# ---- memory


def test_a_process_keeps_what_glibc_takes_from_its_own_heap():
    # DEFAULT_MMAP_THRESHOLD_MAX of malloc.c: 4 * 1024 * 1024 * sizeof(long).
    assert memory_forecast.RETAINED == 4 * 1024 * 1024 * 8


def test_a_small_model_is_refused_for_no_want_of_memory(monkeypatch):
    monkeypatch.setattr(memory_forecast, "free_bytes", lambda device: 0)
    problem = logistic()
    assert fit(ct.FedAvg(LOCAL), problem.clients, problem.model, 1).rounds == 1


# ---- defaults, and what passes through


def test_personalise_has_the_defaults_of_its_table():
    arguments = inspect.signature(personalise).parameters
    table = Tuning()
    for name in ("part", "steps", "lr", "batch_size"):
        assert arguments[name].default == getattr(table, name)


@pytest.mark.parametrize("strict", [False, True])
def test_all_messages_are_encoded_where_that_is_asked(strict, monkeypatch):
    problem = logistic()
    run = fit(
        ct.FedAvg(LOCAL), problem.clients, problem.model, 1, merge_validation=False
    )
    encoded = []
    send = exchange.send

    def counted(message):
        encoded.append([*message])
        return send(message)

    monkeypatch.setattr(exchange, "send", counted)
    asked = ct.RunSettings(strict_wire=strict)
    personalise(run, problem.clients, steps=(0, 1), lr=(0.1,), settings=asked)
    assert bool(encoded) == strict


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    st.integers(0, 4),
    st.integers(1, 3),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_metrics_are_read_as_they_were_written(clients, metrics, known):
    defined = np.array(known)[: clients * metrics].reshape(clients, metrics)
    values = np.where(
        defined, np.arange(clients * metrics).reshape(defined.shape), math.nan
    )
    names = tuple(f"c{k}" for k in range(clients))
    table = ClientMetrics(
        3, "test", names, ("loss", "auc", "r2")[:metrics], values, defined
    )
    read = ClientMetrics.of_columns(table.columns())
    assert [*read.rows()] == [*table.rows()]
    assert (read.round, read.split, read.clients) == (3, "test", names)
    assert read.defined.dtype == bool
    np.testing.assert_array_equal(read.defined, defined)
    np.testing.assert_array_equal(read.values, values)


def test_a_run_computes_on_one_thread_and_leaves_what_was_set():
    seen = []

    class Watch(ct.FedAvg):
        def round(self, state, federation, rng):
            seen.append(torch.get_num_threads())
            return super().round(state, federation, rng)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        problem = logistic()
        ct.fit(Watch(LOCAL), problem.clients, problem.model, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1]


def test_the_model_of_a_run_is_that_for_all_or_the_only_one():
    problem = logistic()
    run = fit(ct.FedAvg(LOCAL), problem.clients, problem.model, 1)
    shared, own, other = run.models["*"], run.models["*"] + 1, run.models["*"] + 2
    for models, expected in (
        ({"*": shared}, shared),
        ({"a": own}, own),
        ({"a": own, "*": shared}, shared),
    ):
        assert torch.equal(replace(run, models=models).x, expected)
    with pytest.raises(
        ct.InputError, match=r"a model for each of a, b; take run.models"
    ):
        _ = replace(run, models={"a": own, "b": other}).x
