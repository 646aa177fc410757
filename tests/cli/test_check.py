"""The command `coterie check`."""

from __future__ import annotations

import json

import pytest

from coterie.cli.check import lines, partner_lines
from coterie.data.tables.check import Drift, TableCheck
from coterie.study.partners import PartnerForecast


def write(folder, name, head="age,y", n=12):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.csv").write_text(
        "\n".join([head, *(f"{i % 5}.5,{i % 2}" for i in range(n))]) + "\n"
    )


def test_check_says_problems_and_ends_with_2(coterie, tmp_path):
    write(tmp_path / "mine", "a")
    write(tmp_path / "mine", "b", "AGE,y")
    (tmp_path / "mine" / "c.csv").write_text("age,y\n1\n")
    ended = coterie("check", "mine", "--label", "y")
    assert ended.status == 2
    problems = [line for line in ended.out.splitlines() if line.startswith("problem: ")]
    assert [
        "c.csv: line 2 has 1 cells" in problems[0],
        "column 'AGE' where 'a'" in problems[1],
    ] == [True, True]
    assert "2 problems to solve before a run" in ended.out
    assert not (tmp_path / "runs").exists()


def test_check_of_a_good_folder_ends_with_0(coterie, tmp_path):
    write(tmp_path / "mine", "a")
    write(tmp_path / "mine", "b", "AGE,y")
    command = ("check", "mine", "--label", "y", "--set", "data.rename.AGE=age")
    ended = coterie(*command)
    assert (ended.status, ended.err) == (0, "")
    assert "a run can start" in ended.out
    assert "0.5 to 4.5" in ended.out
    assert "0 50%, 1 50%" in ended.out
    found = json.loads(coterie(*command, "--json").out)
    assert (found["problems"], found["clients"]) == ([], {"a": 12, "b": 12})


def test_check_of_many_clients_says_the_extremes(coterie, tmp_path):
    for i in range(30):
        write(tmp_path / "mine", f"site-{i:02d}")
    ended = coterie("check", "mine", "--label", "y")
    assert ended.status == 0
    (row,) = [
        line.split()
        for line in ended.out.splitlines()
        if line.strip().startswith("age ")
    ]
    assert row == ["age", "number", "0%", "0.5", "to", "4.5", "30"]
    assert ended.out.startswith("client ")
    assert "\n\n\n" not in ended.out


def test_check_forecasts_partners_before_training(coterie, tmp_path):
    (tmp_path / "mine").mkdir()
    for name, turned in (("a", 0), ("b", 0), ("c", 1)):
        rows = [(i * 7919 % 1000 / 500 - 1, i) for i in range(600)]
        lines = [f"{x:.4f},{int((x > 0) != turned)}" for x, _ in rows]
        (tmp_path / "mine" / f"{name}.csv").write_text(
            "\n".join(["x,y", *lines]) + "\n"
        )
    ended = coterie("check", "mine", "--label", "y", "--partners")
    assert (ended.status, ended.err) == (0, "")
    assert "coalitions: a, b | c" in ended.out
    assert "3 small classifiers, one for each pair" in ended.out
    assert "two accuracies of each pair" in ended.out
    found = json.loads(
        coterie("check", "mine", "--label", "y", "--partners", "--json").out
    )["partners"]
    assert found["divergences"]["a"]["b"] < 0.1 < 0.5 < found["divergences"]["a"]["c"]
    assert (found["classifiers"], found["rows"]["a"]) == (3, 400)


def test_partners_need_two_clients_and_tables_without_problems(coterie, tmp_path):
    write(tmp_path / "one", "a")
    ended = coterie("check", "one", "--label", "y", "--partners")
    assert ended.status == 2
    assert "partners are for two clients at least" in ended.err
    write(tmp_path / "two", "a")
    write(tmp_path / "two", "b", "AGE,y")
    ended = coterie("check", "two", "--label", "y", "--partners")
    assert ended.status == 2
    assert "who belongs together" not in ended.out


def test_partners_are_forecast_from_the_rows_of_the_asked_split(coterie, tmp_path):
    write(tmp_path / "mine", "a", n=60)
    write(tmp_path / "mine", "b", n=60)
    command = ("check", "mine", "--label", "y", "--partners", "--json")
    for parts, trained in (
        ("train = 0.5, test = 0.5", 30),
        ("train = 0.8, test = 0.2", 48),
    ):
        ended = coterie(*command, "--set", f"split.parts={{{parts}}}")
        assert (ended.status, ended.err) == (0, "")
        rows = json.loads(ended.out)["partners"]["rows"]
        assert rows == {"a": trained, "b": trained}


def test_one_table_is_checked_as_the_split_deals_it(coterie, tmp_path):
    head, *rows = [
        "clinic,age,y",
        *(f"clinic {i % 3},{i % 5}.5,{i % 2}" for i in range(36)),
    ]
    (tmp_path / "all.csv").write_text("\n".join([head, *rows]) + "\n")
    command = ("check", "all.csv", "--label", "y", "--json")
    ended = coterie(
        *command, "--set", "split.kind=column", "--set", "split.column=clinic"
    )
    assert (ended.status, ended.err) == (0, "")
    clients = json.loads(ended.out)["clients"]
    assert clients == {"clinic 0": 12, "clinic 1": 12, "clinic 2": 12}


@pytest.mark.parametrize("count", [8, 9])
def test_up_to_eight_clients_have_a_column_of_divergences(count):
    names = [f"c{k}" for k in range(count)]
    divergences = {
        one: {other: abs(i - k) / 10 for k, other in enumerate(names)}
        for i, one in enumerate(names)
    }
    forecast = PartnerForecast(dict.fromkeys(names, 50), divergences, (), 1)
    first = partner_lines(forecast, 160)[3].split()
    zero_to_seven = [f"{k / 10:.2f}" for k in range(8)]
    expected = zero_to_seven if count == 8 else ["c1", "0.10"]
    assert first == ["c0", "50", *expected]


def test_each_column_that_is_far_from_the_others_has_the_unit_of_its_measure():
    far = [
        Drift("a", "age", "mean difference", -1.25, 0.1),
        Drift("b", "kind", "total variation", 0.4, 0.1),
        Drift("c", "age", "mean difference", 0.49, 0.1),
        Drift("c", "kind", "total variation", 0.3, 0.31),
    ]
    check = TableCheck((), (), "y", {}, tuple(far))
    said = [line.strip() for line in lines(check, 160) if "differs by" in line]
    assert said == [
        "a: age differs by -1.2 standard deviations",
        "b: kind differs by 40% of the rows",
    ]
