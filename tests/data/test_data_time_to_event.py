"""Tables whose label is a time to event: what is read, refused and noted, and what a trained model says of new rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.base.label_form import LabelForm
from coterie.data.tables.check import check_tables
from coterie.data.tables.read import read_frame, reading_of

OPTIONS = ct.data.Tables(time="months", event="died")
COUNTS = ct.data.Tables(label="died", exposure="months")


def ward(seed, n=60, **columns):
    """The frame of one ward, whose patients die earlier the older they are."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, n).round()
    until = rng.exponential(30 * np.exp(-(age - 60) / 15))
    end = rng.uniform(2, 60, n)
    frame = {
        "age": age,
        "bmi": rng.normal(25, 3, n).round(1),
        "months": np.minimum(until, end).round(1) + 0.1,
        "died": (until <= end).astype(int),
    }
    return pd.DataFrame({**frame, **columns})


def wards(**columns):
    return {name: ward(i, **columns) for i, name in enumerate(("east", "north"))}


def change(frames, column, value, row=3):
    """The frames with one cell of the first ward changed."""
    changed = {name: frame.copy() for name, frame in frames.items()}
    changed["east"][column] = changed["east"][column].astype(type(value))
    changed["east"].loc[row, column] = value
    return changed


def test_labels_are_entry_time_and_event_in_horizons():
    frames = wards(enrolled=np.linspace(0, 0.05, 60))
    options = ct.data.Tables(
        time="months", event="died", entry="enrolled", horizon=24.0
    )
    clients = ct.data.from_frames(frames, tables=options)
    form = clients.form
    assert (form.kind, form.horizon, form.cuts[-1]) == ("hazards", 24.0, 1.0)
    assert form.unit == "months"
    assert form.columns == ("enrolled", "months", "died")
    east = frames["east"]
    beyond = east.months > 24
    expected = np.column_stack(
        [east.enrolled / 24, east.months.clip(upper=24) / 24, east.died * ~beyond]
    )
    parts = [part.labels for _, part in clients["east"].parts()]
    found = torch.cat(parts).numpy()
    np.testing.assert_allclose(
        found[np.lexsort(found.T)], expected[np.lexsort(expected.T)], atol=1e-6
    )
    assert clients.recipe["features"] == ["age", "bmi"]


def test_values_that_mean_the_event_are_named_and_others_end_follow_up():
    frames = wards()
    causes = {n: f.assign(died=f.died * (1 + f.index % 2)) for n, f in frames.items()}
    with pytest.raises(ct.InputError, match=r"event 'died' is '2'.*event_is = \["):
        ct.data.from_frames(causes, tables=OPTIONS)
    options = ct.data.Tables(time="months", event="died", event_is=[2])
    clients = ct.data.from_frames(causes, tables=options)
    events = sum(int((part.labels[:, 2]).sum()) for _, part in clients["east"].parts())
    assert events == int((causes["east"].died == 2).sum())


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("months", -1.0, "'months' is -1 in data row 4"),
        ("months", float("nan"), "'months' (time) is missing in data row 4"),
        ("months", "soon", "'months'"),
        ("died", 0.5, "event 'died' is '0.5' in data row 4"),
        ("died", float("nan"), "label 'died' is missing in data row 4"),
        ("enrolled", 700.0, "'enrolled' is 700 in data row 4"),
    ],
)
def test_a_cell_that_is_no_time_or_event_is_refused_by_row(column, value, says):
    frames = change(wards(enrolled=np.zeros(60)), column, value)
    options = ct.data.Tables(time="months", event="died", entry="enrolled")
    with pytest.raises(ct.InputError) as refused:
        ct.data.from_frames(frames, tables=options)
    assert says in str(refused.value)
    assert "east" in str(refused.value)


def test_a_time_of_zero_is_half_of_the_smallest_and_noted():
    clients = ct.data.from_frames(change(wards(), "months", 0.0), tables=OPTIONS)
    smallest = wards()["east"].months.drop(3).min()
    times = torch.cat([part.labels[:, 1] for _, part in clients["east"].parts()])
    assert float(times.min()) * clients.form.horizon == pytest.approx(smallest / 2)
    assert any("months is 0 in 1 row, taken as" in note for note in clients.notes)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"event": "died"}, "needs time"),
        ({"time": "months", "label": "died"}, "say event, too"),
        ({"time": "months", "event": "died", "label": "age"}, "two labels"),
        ({"time": "died", "event": "died"}, "name a column each"),
        ({"time": "months", "event": "died", "above": 1.0}, "drop above"),
        ({"horizon": 24.0, "label": "died"}, "say event, too"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, says):
    with pytest.raises(ct.InputError, match=says):
        ct.data.Tables(**settings)


def test_too_few_events_are_refused():
    frames = {name: frame.assign(died=0) for name, frame in wards().items()}
    with pytest.raises(ct.InputError, match="0 events in the training rows"):
        ct.data.from_frames(frames, tables=OPTIONS)


def test_check_and_a_run_read_the_same_and_the_time_is_no_input():
    frames = wards()
    reading = reading_of(OPTIONS)
    tables = {n: read_frame(f, reading, name=n) for n, f in frames.items()}
    checked = check_tables(tables, OPTIONS)
    assert checked.problems == ()
    assert set(checked.columns["died"]["east"].shares) == {"0", "1"}
    clients = ct.data.from_frames(frames, tables=OPTIONS)
    assert clients.recipe["features"] == ["age", "bmi"]


def test_a_column_that_tells_the_event_is_found_as_beside_classes():
    frames = {
        name: frame.assign(autopsy=frame.died * 3 + 1)
        for name, frame in wards().items()
    }
    clients = ct.data.from_frames(frames, tables=OPTIONS)
    assert any("autopsy" in text for text in (*clients.questions, *clients.notes))


def test_a_run_predicts_survival_of_new_rows(tmp_path):
    frames = wards()
    clients = ct.data.from_frames(frames, tables=OPTIONS)
    run = ct.fit("fixed-effects", clients, rounds=8)
    new = pd.DataFrame({"age": [40.0, 80.0], "bmi": [25.0, 25.0]})
    prediction = run.predict(new, client="east")
    young, old = prediction.values[:, 0].tolist()
    assert 1 > young > old > 0
    assert prediction.table().splitlines()[0].endswith(clients.form.survival_name)

    run.save(tmp_path / "run.safetensors")
    again = ct.Run.load(tmp_path / "run.safetensors", run.module)
    torch.testing.assert_close(again.predict(new, "east").values, prediction.values)


def test_a_form_must_have_intervals_and_other_forms_none():
    with pytest.raises(ct.InputError, match="cuts"):
        LabelForm("hazards")
    with pytest.raises(ct.InputError, match="other labels have none"):
        LabelForm("classes", cuts=(1.0,), rates=(1.0,))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (torch.tensor([0, 1, 1]), "classes"),
        (torch.tensor([[0, 1], [1, 1]]), "several"),
        (torch.tensor([0.5, 2.0]), "numbers"),
    ],
)
def test_labels_that_nobody_declared_say_their_form(labels, kind):
    rows = ct.Part(torch.zeros(len(labels), 2), labels)
    clients = ct.Clients([ct.Client("a", rows)])
    assert clients.form.kind == kind


def test_folds_keep_a_rare_event_in_every_training_set():
    frames = wards()
    for frame in frames.values():
        frame["died"] = 0
        frame.loc[[1, 5, 8, 11, 20, 33], "died"] = 1
    clients = ct.data.from_frames(frames, tables=OPTIONS, split={"folds": 5})
    from coterie.data.parts import with_fold

    for fold in range(5):
        view = with_fold(clients, 5, fold, 0)
        assert all((client.train.labels[:, 2] > 0).any() for client in view)


def test_a_network_of_ones_own_is_wrapped_and_one_that_is_not_says_how():
    clients = ct.data.from_frames(wards(), tables=OPTIONS)
    body = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)
    )
    intervals = clients.form.outputs
    with pytest.raises(ct.InputError, match=rf"ct.Hazards\(model, {intervals}\)"):
        ct.fit("fedavg", clients, body, rounds=1)
    model = ct.Hazards(body, intervals)
    here = ct.fit("fedavg", clients, model, rounds=2)
    elsewhere = ct.fit(
        "fedavg", clients, model, rounds=2, engine=ct.InProcess(workers=2)
    )
    assert torch.equal(here.models["*"], elsewhere.models["*"])


@pytest.mark.parametrize("method", ["uniform-is", "pj-is"])
def test_a_sampler_of_classes_says_that_it_needs_them(method):
    clients = ct.data.from_frames(wards(), tables=OPTIONS)
    with pytest.raises(ct.InputError, match="one class each"):
        ct.fit(method, clients, rounds=1)


@pytest.mark.parametrize("options", [OPTIONS, COUNTS])
def test_one_table_that_a_column_splits_is_the_folder_of_its_parts(tmp_path, options):
    frames = wards()
    (tmp_path / "folder").mkdir()
    for name, frame in frames.items():
        frame.to_csv(tmp_path / "folder" / f"{name}.csv", index=False)
    whole = pd.concat([f.assign(ward=name) for name, f in frames.items()])
    whole.to_csv(tmp_path / "all.csv", index=False)
    by_file = ct.data.from_folder(tmp_path / "folder", tables=options)
    by_column = ct.data.from_folder(
        tmp_path / "all.csv", tables=options, split={"kind": "column", "column": "ward"}
    )
    assert by_column.names == by_file.names
    assert by_column.form == by_file.form
    for one, other in zip(by_column, by_file, strict=True):
        for (part, rows), (_, others) in zip(one.parts(), other.parts(), strict=True):
            assert torch.equal(rows.labels, others.labels), part
            assert torch.equal(rows.inputs, others.inputs), part
