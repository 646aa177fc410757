"""What may make results wrong is asked before a comparison, with the key for either answer, and `check` says the same."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from csv_files import folder, notes, rows

from coterie.base.errors import InputError
from coterie.config.data import Tables
from coterie.data import from_folder
from coterie.data.tables.check import check_folder

RNG = np.random.default_rng(0)
N = 120


def table(**more):
    x = RNG.normal(size=N)
    y = (x + RNG.normal(size=N) > 0).astype(int)
    return {"x": x.round(3), **{key: make(x, y) for key, make in more.items()}, "y": y}


def asked(tmp_path, label="y", **answers):
    """The questions on the folder, which `check` says, too."""
    clients = from_folder(tmp_path, label=label, tables=Tables(**answers))
    assert (
        check_folder(tmp_path, label=label, tables=Tables(**answers)).problems
        == clients.questions
    )
    return "; ".join(clients.questions)


def test_several_rows_of_a_patient_are_asked_about_and_stay_together(tmp_path):
    text = rows(
        **table(
            patient=lambda x, y: np.arange(N) // 4, visit=lambda x, y: np.arange(N) % 4
        )
    )
    folder(tmp_path, a=text, b=text)
    assert asked(tmp_path).startswith(
        "patient: 240 rows have 60 values; are the rows of a value one patient's? Then group ="
    )
    assert asked(tmp_path, keep=["patient"]) == asked(tmp_path, group="patient") == ""
    clients = from_folder(tmp_path, label="y", tables=Tables(group="patient"))
    assert clients.recipe["features"] == ["x", "visit"]
    groups = clients.row_groups["a"]
    assert sorted(np.concatenate([*groups.values()]).tolist()) == [
        i // 4 for i in range(N)
    ]
    assert not {*groups["train"].tolist()} & {*groups["test"].tolist()}
    assert not {*groups["train"].tolist()} & {*groups["validation"].tolist()}
    assert {key: len(own) for key, own in groups.items()} == {
        key: clients.sizes(key)["a"] for key in groups
    }
    folded = clients.merge_validation()
    assert (
        len(folded.row_groups["a"]["train"])
        == folded.sizes("train")["a"]
        == len(folded["a"].row_groups["train"])
    )


def test_visits_of_patients_who_are_counted_from_one_at_each_centre_are_asked_about(
    tmp_path,
):
    """The form of a public table of 444 rows: one file, `id` 1 to 56 and 1 to 55, four visits each."""
    sizes = {1: 56, 2: 55}
    columns = {
        "center": [c for c, n in sizes.items() for _ in range(4 * n)],
        "id": [i // 4 + 1 for n in sizes.values() for i in range(4 * n)],
        "visit": [i % 4 + 1 for n in sizes.values() for i in range(4 * n)],
    }
    outcome = RNG.integers(0, 2, len(columns["id"]))
    (tmp_path / "one.csv").write_text(
        rows(**columns, age=RNG.normal(40, 9, len(outcome)).round(1), outcome=outcome)
    )
    split = {"kind": "column", "column": "center"}
    asked_about = from_folder(
        tmp_path / "one.csv", label="outcome", split=split
    ).questions
    assert [text.partition(";")[0] for text in asked_about] == [
        "id: 444 rows have 111 values"
    ]
    clients = from_folder(
        tmp_path / "one.csv", label="outcome", split=split, tables=Tables(group="id")
    )
    assert clients.questions == ()
    assert clients.recipe["features"] == ["visit", "age"]
    assert {
        c: len({*np.concatenate([*groups.values()])})
        for c, groups in clients.row_groups.items()
    } == {
        "1": 56,
        "2": 55,
    }


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ("y", "is the label"),
        ("patiant", "did you mean 'patient'"),
        ("gap", "missing in data row 1"),
    ],
)
def test_a_wrong_group_is_refused(tmp_path, group, sentence):
    text = rows(
        **table(
            patient=lambda x, y: np.arange(N) // 4,
            gap=lambda x, y: ["", *map(str, range(N - 1))],
        )
    )
    with pytest.raises(InputError, match=sentence):
        from_folder(folder(tmp_path, a=text), label="y", tables=Tables(group=group))


def test_counts_are_asked_about(tmp_path):
    folder(tmp_path, a=rows(x=range(N), y=[i % 10 for i in range(N)]))
    assert asked(tmp_path).startswith(
        "label y is one of 10 numbers from 0 to 9; are they a quantity, such as a count? Then --task reg"
    )
    assert (
        asked(tmp_path, task="regression")
        == asked(tmp_path, task="classification")
        == ""
    )
    folder(tmp_path, a=rows(x=range(N), y=[i % 3 for i in range(N)]))
    assert asked(tmp_path) == ""


@pytest.mark.parametrize(
    ("event", "time"),
    [
        ("DEATH_EVENT", "time"),
        ("status", "time"),
        ("event", "time"),
        ("os_event", "os_months"),
        ("vital_status", "follow-up days"),
        ("pfs_status", "pfs.time"),
    ],
)
def test_the_time_beside_an_event_is_left_out(tmp_path, event, time):
    text = rows(**table(**{time: lambda x, y: RNG.integers(1, 99, N)})).replace(
        "y\n", f"{event}\n", 1
    )
    clients = from_folder(folder(tmp_path, a=text), label=event)
    said = f"left out: {time} (survival: the time beside {event}, known only afterwards"
    cure = f'time = "{time}", event = "{event}"'
    assert any(note.startswith(said) and cure in note for note in clients.notes)
    assert clients.recipe["features"] == ["x"]
    kept = from_folder(tmp_path, label=event, tables=Tables(keep=[time]))
    assert kept.recipe["features"] == ["x", time]


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (y * 3 + RNG.normal(size=N)).round(2),
        lambda x, y: -(y * 3 + RNG.normal(size=N)).round(2),
        lambda x, y: [i % 7 if (y[i] or i % 40 == 0) else "" for i in range(N)],
        lambda x, y: ["yes" if c and i % 40 else "no" for i, c in enumerate(y)],
        lambda x, y: [
            ("morgue" if i % 40 else "home") if c else ("home", "rehab", "ward")[i % 3]
            for i, c in enumerate(y)
        ],
    ],
)
def test_a_column_that_says_the_label_is_asked_about(tmp_path, make):
    folder(tmp_path, a=rows(**table(late=make)), b=rows(**table(late=make)))
    assert asked(tmp_path).startswith(
        "late: tells the label of nearly all training rows alone; is it known only afterwards? Then drop"
    )
    assert asked(tmp_path, drop=["late"]) == asked(tmp_path, keep=["late"]) == ""


def test_other_units_are_asked_about_in_one_line(tmp_path):
    high = {f"c{i}": lambda x, y: RNG.normal(170, 9, N).round(1) for i in range(4)}
    low = {f"c{i}": lambda x, y: RNG.normal(1.7, 0.09, N).round(3) for i in range(4)}
    folder(
        tmp_path,
        a=rows(**table(**high)),
        b=rows(**table(**high)),
        c=rows(**table(**low)),
    )
    question = asked(tmp_path)
    assert question.startswith(
        "c0, c1, c2 and others: numbers at c are many times those of the others, or a small part; the same unit?"
    )
    assert question.count("the same unit?") == 1
    assert asked(tmp_path, keep=[f"c{i}" for i in range(4)]) == ""


@pytest.mark.parametrize("label", ["y", "hba1c"])
def test_a_scale_with_another_zero_is_asked_about_of_inputs_and_labels(tmp_path, label):
    """HbA1c in percent, and in mmol per mol at one client."""
    percent = [
        rows(**table(hba1c=lambda x, y: (7 + x + 0.3 * y).round(1))) for _ in range(3)
    ]
    rest = [table(hba1c=lambda x, y: ((4.85 + x + 0.3 * y) * 10.93).round(1))]
    folder(tmp_path, a=percent[0], b=percent[1], c=percent[2], d=rows(**rest[0]))
    assert asked(tmp_path, label=label) == (
        "hba1c: numbers at d are many times those of the others, or a small part; the same unit? Then keep = "
        '["hba1c"], else correct that file or say drop = ["hba1c"]'
    )
    assert asked(tmp_path, label=label, keep=["hba1c"]) == ""


def test_a_client_with_other_words_for_all_classes_is_asked_about(tmp_path):
    words = {"a": ("no", "yes"), "b": ("no", "yes"), "c": ("nein", "ja")}
    for name, pair in words.items():
        made = table()
        folder(tmp_path, **{name: rows(x=made["x"], y=[pair[c] for c in made["y"]])})
    assert asked(tmp_path) == (
        "label y: no class in common with other clients at c, which has ja and nein; are these other words for the same "
        "classes? Then map all values, the positive class last: classes = {no = [...], yes = [...]}, else --task "
        "classification"
    )
    assert asked(tmp_path, task="classification") == ""
    same = {"no": ["no", "nein"], "yes": ["yes", "ja"]}
    assert asked(tmp_path, classes=same) == ""


def test_codes_of_one_and_two_are_noted_once(tmp_path):
    text = rows(
        **table(
            sex=lambda x, y: 1 + np.arange(N) % 2,
            side=lambda x, y: 1 + np.arange(N) // 2 % 2,
        )
    )
    clients = from_folder(folder(tmp_path, a=text, b=text), label="y")
    assert [n for n in clients.notes if "1 and 2" in n] == [
        "sex, side: 1 and 2 are read as numbers; name codes in categorical"
    ]


def test_a_note_on_one_file_stands_once(tmp_path):
    lines = rows(site=["n", "s"] * 60, **table()).splitlines()
    (tmp_path / "one.csv").write_text(
        "\n".join(["," + lines[0], *("1," + line for line in lines[1:])]) + "\n"
    )
    split = {"kind": "column", "column": "site"}
    clients = from_folder(tmp_path / "one.csv", label="y", split=split)
    assert sum("without a name" in note for note in clients.notes) == 1


def test_rows_without_an_institution_are_dropped_where_asked(tmp_path):
    (tmp_path / "one.csv").write_text(rows(site=["", "n", "s"] * 40, **table()))
    split = {"kind": "column", "column": "site"}
    with pytest.raises(
        InputError,
        match=r"'site' is missing in row 1 and 39 more; say whose row it is, or .* --unnamed drop",
    ):
        from_folder(tmp_path / "one.csv", label="y", split=split)
    clients = from_folder(
        tmp_path / "one.csv", label="y", split={**split, "unnamed": "drop"}
    )
    assert "40 rows without site were left out" in notes(clients)
    assert clients.names == ("n", "s")


def test_check_reads_a_folder_of_arrays_as_a_run_does(tmp_path):
    for name in "ab":
        np.savez(
            tmp_path / f"{name}.npz",
            image=RNG.normal(size=(12, 3, 4, 4)),
            label=np.arange(12) % 2,
        )
    check = check_folder(tmp_path)
    assert check.problems == ()
    assert check.clients == {"a": 12, "b": 12}
    assert check.columns["inputs"]["a"].kind == "array [3, 4, 4]"
    assert check.columns["label"]["b"].shares == {"0": 0.5, "1": 0.5}
    np.savez(
        tmp_path / "b.npz",
        image=RNG.normal(size=(12, 3, 4, 5)),
        label=np.arange(12) % 2,
    )
    assert "has inputs of shape" in check_folder(tmp_path).problems[0]


@pytest.mark.parametrize("code", ["999", ""])
def test_values_that_only_one_class_lacks_or_has_a_code_for_are_asked_about(
    tmp_path, code
):
    rng = np.random.default_rng(1)
    y = np.arange(N) % 2
    lab = [
        code if c and r < 0.6 else f"{v:.1f}"
        for c, r, v in zip(y, rng.random(N), rng.normal(50, 10, N), strict=True)
    ]
    text = rows(x=rng.normal(size=N).round(3), lab=lab, y=y)
    folder(tmp_path, a=text, b=text)
    what = "far from all others" if code else "missing"
    assert asked(tmp_path).startswith(
        f"lab: {what} only where the label is 1; does that follow from the outcome? Then drop"
    )
    assert asked(tmp_path, keep=["lab"]) == asked(tmp_path, drop=["lab"]) == ""


def test_what_is_asked_about_has_no_note_in_check(tmp_path):
    y = np.arange(N) % 2
    text = rows(x=range(N), score=y * 2 + np.arange(N) / N, y=y)
    folder(tmp_path, a=text, b=text)
    checked = check_folder(tmp_path, label="y")
    assert any(
        problem.startswith("score: tells the label") for problem in checked.problems
    )
    assert not any(note.startswith("score: says the label") for note in checked.notes)


def test_a_label_with_a_heavy_tail_is_to_be_put_on_a_log_scale(tmp_path):
    x = RNG.normal(size=400)
    cost = np.exp(8 + 0.5 * x + 1.2 * RNG.normal(size=400)).round(2)
    days = (10 + x + RNG.normal(size=400)).round(2)
    for name, label in (
        ("cost", cost),
        ("log", np.log1p(cost).round(4)),
        ("days", days),
        ("change", cost - 3000),
    ):
        place = tmp_path / name
        place.mkdir()
        folder(
            place, a=rows(x=x[:200], y=label[:200]), b=rows(x=x[200:], y=label[200:])
        )
        said = [
            note for note in from_folder(place, label="y").notes if "log scale" in note
        ]
        assert len(said) == (name == "cost"), name
        assert all(
            note.endswith("with a column log(1 + y) as the label, all rows count")
            for note in said
        )


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_date_that_rows_of_one_class_alone_have_is_asked_about(tmp_path, share):
    """A date of death beside an outcome "died" is left out as dates are, and what else comes with the outcome may not be."""
    died = np.arange(N) % 3 == 0
    dates = [
        f"2021-0{1 + i % 9}-1{i % 7}" if d and i % 10 < 10 * share else ""
        for i, d in enumerate(died)
    ]
    text = rows(
        x=RNG.normal(size=N).round(3),
        date_of_death=dates,
        seen=["2020-01-02"] * N,
        died=died.astype(int),
    )
    folder(tmp_path, a=text, b=text)
    question = asked(tmp_path, label="died")
    assert question == (
        "date_of_death: has a value only where the label is 1; does that follow from the outcome? Then drop = "
        '["date_of_death"], else keep = ["date_of_death"]'
    )
    assert (
        asked(tmp_path, label="died", drop=["date_of_death"])
        == asked(tmp_path, label="died", keep=["date_of_death"])
        == ""
    )


def test_a_value_that_rows_of_one_class_alone_have_is_asked_about(tmp_path):
    y = np.arange(N) % 2
    days = [i % 9 + 1 if c and i % 3 == 0 else "" for i, c in enumerate(y)]
    text = rows(x=RNG.normal(size=N).round(3), icu_days=days, y=y)
    folder(tmp_path, a=text, b=text)
    assert asked(tmp_path).startswith(
        "icu_days: has a value only where the label is 1; does that follow from the outcome?"
    )
    assert asked(tmp_path, keep=["icu_days"]) == ""


def test_a_code_that_many_rows_have_is_asked_about(tmp_path):
    def pressure(code, every):
        return lambda x, y: [
            code if i % every == 0 else v
            for i, v in enumerate(RNG.normal(130, 9, N).round().astype(int))
        ]

    made = {"sysbp": pressure(-99, 7), "chol": pressure(999, 9), "hb": pressure(999, N)}
    folder(tmp_path, a=rows(**table(**made)), b=rows(**table(**made)))
    assert asked(tmp_path) == (
        "sysbp, chol: -99 and 999 in 64 rows are far from all other numbers; do they mean missing? Then missing.sysbp = [-99], "
        'missing.chol = [999], else keep = ["sysbp", "chol"]'
    )
    assert (
        asked(tmp_path, missing={"sysbp": [-99], "chol": [999]})
        == asked(tmp_path, keep=["sysbp", "chol"])
        == ""
    )
    assert asked(tmp_path, drop=["sysbp", "chol"]) == ""
    folder(
        tmp_path,
        a=rows(**table(**{"heart rate": pressure(-99, 7)})),
        b=rows(**table(**{"heart rate": pressure(-99, 7)})),
    )
    setting = asked(tmp_path).partition("Then ")[2].partition(", else")[0]
    assert tomllib.loads(setting) == {"missing": {"heart rate": [-99]}}
    assert asked(tmp_path, **tomllib.loads(setting)) == ""
