"""Odd tables of time to event and of counts: what is refused says the truth in one sentence, and what is right is read."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct

FOLLOWED = {"time": "months", "event": "died", "entry": "enrolled"}
COUNTED = {"label": "falls", "exposure": "days"}
OF_LABEL = [
    *((FOLLOWED, role, column) for role, column in FOLLOWED.items()),
    *((COUNTED, role, column) for role, column in COUNTED.items()),
]
NUMBERS = [case for case in OF_LABEL if case[1] != "event"]


def wards(n=40):
    """The frames of three wards with follow-up and falls."""
    frames = {}
    for seed, name in enumerate(("east", "north", "south")):
        rng = np.random.default_rng(seed)
        days = rng.integers(5, 400, n).astype(float)
        frames[name] = pd.DataFrame(
            {
                "age": rng.normal(60, 10, n).round(),
                "bmi": rng.normal(25, 3, n).round(1),
                "months": rng.exponential(20, n).round(1) + 0.5,
                "died": rng.integers(0, 2, n),
                "enrolled": rng.uniform(0, 0.4, n).round(3),
                "days": days,
                "falls": rng.poisson(0.02 * days).astype(float),
            }
        )
    return frames


def read(frames, label, **settings):
    tables = ct.data.Tables(**{**label, **settings})
    return ct.data.from_frames(frames, tables=tables)


def refusal(frames, label, **settings):
    with pytest.raises(ct.InputError) as refused:
        read(frames, label, **settings)
    return str(refused.value)


@pytest.mark.parametrize(("label", "role", "column"), NUMBERS)
@pytest.mark.parametrize("value", ["soon", "2020-01-03", "3,5", np.inf])
@pytest.mark.parametrize("everywhere", [False, True])
def test_what_is_no_number_is_shown_with_its_row(
    label, role, column, value, everywhere
):
    frames = wards()
    row = 0 if everywhere else 7
    frames["east"][column] = frames["east"][column].astype(object)
    frames["east"].loc[slice(None) if everywhere else row, column] = value
    said = refusal(frames, label)
    assert str(value) in said
    assert f"data row {row + 1}" in said
    assert "is number, and must be numbers" not in said


SECOND_USES = [
    (case, key)
    for case, key in itertools.product(
        OF_LABEL, ["drop", "categorical", "lists", "bounds", "group", "split_time"]
    )
    # The words of an event may be said to be categories.
    if case[1] != "event" or key not in ("categorical", "lists", "bounds")
]


@pytest.mark.parametrize(("case", "key"), SECOND_USES)
def test_a_column_of_the_label_has_no_second_use(case, key):
    label, _, column = case
    values = {"lists": {column: ";"}, "bounds": {column: [0, 100]}}
    alone = column if key in ("group", "split_time") else [column]
    said = refusal(wards(), label, **{key: values.get(key, alone)})
    assert key in said
    assert repr(column) in said
    assert "which no client has" not in said
    assert "has no column" not in said


@pytest.mark.parametrize(("label", "role", "column"), OF_LABEL)
@pytest.mark.parametrize("key", ["missing", "not_missing"])
def test_codes_of_a_column_of_the_label_are_read(label, role, column, key):
    clients = read(wards(), label, **{key: {column: [-99, "None"]}})
    assert len(clients) == 3


@pytest.mark.parametrize("key", ["split_time", "split_column"])
def test_a_split_by_the_label_is_refused_for_classes_too(key):
    frames = wards()
    for frame in frames.values():
        frame["part"] = np.where(frame.index % 3 == 0, "test", "train")
    label = {"label": {"split_time": "died", "split_column": "part"}[key]}
    said = refusal(frames, label, **{key: label["label"]})
    assert f"{key} = {label['label']!r} is the label" in said


@pytest.mark.parametrize("label", [FOLLOWED, COUNTED])
def test_a_setting_of_other_labels_is_refused_even_if_it_is_zero(label):
    assert "above" in refusal(wards(), label, above=0.0)


@pytest.mark.parametrize(
    "value", [1, "1", {}, {"a": 1}, None, [[1]], [None], [np.nan], [np.inf]]
)
def test_what_means_the_event_is_a_list_of_values(value):
    assert "event_is" in refusal(wards(), FOLLOWED, event_is=value)


@pytest.mark.parametrize(
    ("happened", "ended"), [("dead", "alive"), (2, 0), (2, 1), ("Y", "N")]
)
def test_a_client_without_an_event_trains(happened, ended):
    frames = wards()
    for name, frame in frames.items():
        died = 0 if name == "east" else frame.died
        frame["died"] = np.where(died == 1, happened, ended)
    clients = read(frames, FOLLOWED, event_is=[happened])
    labels = {client.name: client.train.labels[:, 2] for client in clients}
    assert not labels["east"].any()
    assert labels["north"].any()


def test_a_client_with_other_words_for_the_event_says_how_to_read_them():
    frames = wards()
    frames["east"]["died"] = np.where(frames["east"].died == 1, "dead", "alive")
    with pytest.raises(ct.InputError) as refused:
        read(frames, FOLLOWED, event_is=["dead"])
    cure = refused.value.cures[0]
    settings = cure.merge({**FOLLOWED, "event_is": ["dead"]})
    clients = ct.data.from_frames(frames, tables=ct.data.Tables(**settings))
    assert all(client.train.labels[:, 2].any() for client in clients)


def test_all_may_have_had_the_event():
    frames = {name: frame.assign(died=1) for name, frame in wards().items()}
    clients = read(frames, FOLLOWED)
    assert clients.questions == ()
    assert all(client.train.labels[:, 2].any() for client in clients)


@pytest.mark.parametrize("horizon", [2e3, 1e9, 1e300])
def test_a_horizon_that_nobody_reaches_is_refused(horizon):
    assert "nobody is followed until" in refusal(wards(), FOLLOWED, horizon=horizon)


def test_a_horizon_that_somebody_reaches_is_taken():
    frames = wards()
    longest = max(frame.months.max() for frame in frames.values())
    clients = read(frames, FOLLOWED, horizon=float(longest))
    assert clients.form.horizon == longest


@pytest.mark.parametrize("column", ["months", "enrolled"])
def test_a_time_longer_than_intervals_tell_is_refused(column):
    frames = wards()
    frames["east"].loc[4, column] = 1e15
    said = refusal(frames, FOLLOWED)
    assert f"{column!r} is 1e+15 in data row 5" in said


@pytest.mark.parametrize("label", [FOLLOWED, COUNTED])
def test_tables_without_an_input_say_so_in_whole_sentences(label):
    frames = {name: frame[list(label.values())] for name, frame in wards().items()}
    assert not refusal(frames, label).endswith(("; ", ";"))


CELLS = [np.nan, -1.0, "soon", np.inf]


@pytest.mark.parametrize(
    ("case", "cell"), list(itertools.product(OF_LABEL, CELLS)), ids=str
)
def test_rows_to_predict_need_no_outcome(case, cell):
    label, _, column = case
    frames = wards()
    clients = read(frames, label)
    run = ct.fit("fixed-effects", clients, rounds=1)
    inputs = frames["east"].drop(columns=list(label.values()))
    expected = run.predict(inputs, client="east").values
    assert torch.isfinite(expected).all()
    rows = frames["east"].assign(**{column: cell})
    torch.testing.assert_close(run.predict(rows, client="east").values, expected)


@pytest.mark.parametrize(
    "bounds",
    [5, [], "age", {"age": 5}, {"age": [1e308, -1e308]}, {"age": [-1e308, 1e308]}],
)
def test_bounds_that_are_none_are_refused(bounds):
    said = refusal(wards(), {"label": "died"}, bounds=bounds)
    assert "such as" in said


def test_categories_have_no_bounds():
    frames = {
        name: frame.assign(sex=np.where(frame.index % 2, "f", "m"))
        for name, frame in wards().items()
    }
    said = refusal(frames, {"label": "died"}, bounds={"sex": [0, 1], "age": [0, 120]})
    assert "'sex'" in said
    assert "take it out of bounds" in said


@pytest.mark.parametrize("means", [True, np.bool_(True), 1, np.int64(1)])
@pytest.mark.parametrize("kind", [bool, int, "boolean"])
def test_a_truth_value_means_the_event_however_a_table_writes_it(means, kind):
    frames = {
        name: frame.assign(died=frame.died.astype(kind))
        for name, frame in wards().items()
    }
    if isinstance(means, bool | np.bool_) or kind is int:
        clients = read(frames, FOLLOWED, event_is=[means])
    else:
        said = refusal(frames, FOLLOWED, event_is=[means])
        assert 'event_is = ["1", "true"]' in said
        return
    usual = read(wards(), FOLLOWED)
    for client, other in zip(clients, usual, strict=True):
        assert torch.equal(client.train.labels, other.train.labels)


@pytest.mark.parametrize(
    ("label", "role"), [(FOLLOWED, "time"), (FOLLOWED, "entry"), (COUNTED, "exposure")]
)
def test_a_column_of_the_label_names_no_client(tmp_path, label, role):
    pd.concat(wards().values()).to_csv(tmp_path / "all.csv", index=False)
    split = {"kind": "column", "column": label[role]}
    with pytest.raises(ct.InputError) as refused:
        ct.data.from_folder(
            tmp_path / "all.csv", tables=ct.data.Tables(**label), split=split
        )
    assert f"{role} are both {label[role]!r}" in str(refused.value)


@pytest.mark.parametrize("label", [FOLLOWED, COUNTED])
@pytest.mark.parametrize("loss", ["binary", "classes", "squared"])
def test_a_loss_of_other_labels_is_left_out(label, loss):
    clients = read(wards(), label)
    with pytest.raises(ct.InputError, match="leave it out"):
        ct.fit("fedavg", clients, rounds=1, settings=ct.RunSettings(loss=loss))


@pytest.mark.parametrize("label", [FOLLOWED, COUNTED])
def test_a_client_without_an_event_has_no_verdict(tmp_path, label):
    own = {*label.values(), "age", "bmi"}
    for name, frame in wards().items():
        if name == "east":
            frame[label.get("event", "falls")] = 0
        of_label = [column for column in frame.columns if column in own]
        frame[of_label].to_csv(tmp_path / f"{name}.csv", index=False)
    data = {"folder": str(tmp_path), **label, "split": {"folds": 3}}
    comparison = ct.compare(["local", "fixed-effects"], data, rounds=2, seeds=1)
    assert comparison.verdict("east").kind == "too few rows to tell"
    assert comparison.verdict("north").kind != "too few rows to tell"


@pytest.mark.parametrize(("label", "key"), [(FOLLOWED, "time"), (COUNTED, "exposure")])
@pytest.mark.parametrize("factor", [1 / 365.25, 1 / 12, 1 / 2, 1, 2, 30.4, 365.25])
def test_another_unit_of_time_at_one_client_is_asked_about(label, key, factor):
    frames = wards()
    for frame in frames.values():
        frame["enrolled"] = 0.0
    column = label[key]
    frames["north"][column] *= factor
    asked = [q for q in read(frames, label).questions if "the same unit?" in q]
    assert bool(asked) == (not 1 / 3 < factor < 3)
    if asked:
        assert f"{column}: numbers at north" in asked[0]
        kept = read(frames, label, **asked[0].cures[0].merge({}))
        assert not any("the same unit?" in q for q in kept.questions)
