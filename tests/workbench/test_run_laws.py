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
from coterie.base.clients import Client, Clients
from coterie.base.rows import Part
from coterie.config.run import Tuning
from coterie.contract import exchange
from coterie.run import memory_forecast, progress
from coterie.run.evaluation import metrics_by_label
from coterie.run.files import escape, unescape
from coterie.run.history import ClientMetrics, History
from coterie.run.method_tables import method_table
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


def test_free_memory_counts_what_the_kernel_can_give_back(monkeypatch):
    lines = "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 700 kB\nCached: 690 kB\n"
    monkeypatch.setattr(
        memory_forecast, "open", lambda name: io.StringIO(lines), raising=False
    )
    assert memory_forecast.free_bytes(torch.device("cpu")) == 700 * 1024


# ---- what is measured


def outcomes_of(labels):
    inputs = torch.zeros(len(labels), 1)
    tables = {"a": {"train": (inputs, torch.tensor(labels))}}
    return ct.data.from_tensors(tables)


@pytest.mark.parametrize(
    ("cases", "metrics"),
    [(0, ()), (1, ("auprc",)), (9, ("auprc",)), (10, ()), (100, ())],
)
def test_a_rare_outcome_is_one_of_less_than_five_percent(cases, metrics):
    for rare, usual in ((1, 0), (0, 1)):
        labels = [rare] * cases + [usual] * (200 - cases)
        if 1 in labels:
            assert metrics_by_label(outcomes_of(labels)) == metrics


@pytest.mark.parametrize(("values", "metrics"), [(2, ()), (3, ("class_error",))])
def test_numbers_as_labels_have_an_order_from_three_on(values, metrics):
    rows = Part(torch.zeros(60, 1), torch.arange(60) % values)
    label = {"kind": "number", "values": [*range(values)]}
    clients = Clients([Client("a", rows)], recipe={"label": label})
    assert metrics_by_label(clients) == metrics


def test_a_metric_that_one_client_alone_has_is_found():
    values = np.array([[1.0, math.nan, 2.0], [3.0, 4.0, math.nan]])
    table = ClientMetrics(
        1, "test", ("a", "b"), ("loss", "auc", "brier"), values, np.isfinite(values)
    )
    history = History([table])
    assert history.select("auc", "b") == [(1, 4.0)]
    assert history.select("brier", "a") == [(1, 2.0)]


@pytest.mark.parametrize(("method", "has_own"), [("fedavg", False), ("local", True)])
def test_a_summary_says_whose_model_is_its_own(method, has_own):
    problem = logistic()
    run = fit(method, problem.clients, problem.model, 1)
    assert {row["own_model"] for row in run.summary} == {has_own}


@pytest.mark.parametrize("cell", ["=SUM(A1)", "+x", "-x", "@x", "'=x", "\tx"])
def test_a_text_that_begins_as_a_formula_does_is_none_and_is_read_as_it_was(cell):
    assert escape(cell) == f"'{cell}"
    assert unescape(escape(cell)) == cell
    for number in ("-1.5", "+3", "-1e-3"):
        assert escape(number) == number


# ---- defaults, and what passes through


def test_personalise_has_the_defaults_of_its_table():
    arguments = inspect.signature(personalise).parameters
    table = Tuning()
    for name in ("part", "steps", "lr", "batch_size"):
        assert arguments[name].default == getattr(table, name)


def test_a_method_by_name_has_the_settings_of_the_preset():
    presets = {"fedprox": {"name": "fedprox", "mu": 0.3}}
    tuned = {"name": "fedprox", "mu": 0.3, "personalise": {"part": "bias"}}
    assert method_table("fedprox", presets) == presets["fedprox"]
    assert method_table("fedprox+bias", presets) == tuned
    assert method_table("fedavg", presets) == {"name": "fedavg"}


def test_the_history_of_tuned_models_ends_with_their_summary():
    problem = logistic()
    run = fit(
        ct.FedAvg(LOCAL), problem.clients, problem.model, 1, merge_validation=False
    )
    tuned = personalise(run, problem.clients, steps=(0, 1), lr=(0.1,))
    told = [row for row in tuned.summary if row["split"] == "validation"]
    assert told
    for row in told:
        found = tuned.history.select("loss", row["client"], "validation")
        assert found == [(1, row["loss"])]


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


@settings(derandomize=True, deadline=None)
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
