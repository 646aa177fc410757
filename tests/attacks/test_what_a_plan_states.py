"""Columns, categories and rows of each site stand in the plan before anybody approves; what a site tells otherwise later is refused."""

from __future__ import annotations

import json
import tomllib

import pytest
from hospital import FEDAVG, Hospital, plan_file, settings_file
from three_sites import LIAR, SITES, ThreeSites, altered

from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.contract.wire import Answer, Block
from coterie.data.sets.heart_disease import FOLDER
from coterie.sites.descriptions import difference, parse_descriptions, state_sites
from coterie.sites.plan import read_plan, robustness_note


def state(folder, site, plan, **settings):
    """What `coterie site describe` writes for a site."""
    own = folder / f"of-{site}"
    own.mkdir()
    file = settings_file(own, data=str(FOLDER / f"{site}.csv"), **settings)
    out = own / "described.toml"
    assert (
        main(
            [
                "site",
                "describe",
                str(plan),
                "--site",
                site,
                "--settings",
                str(file),
                "--out",
                str(out),
            ]
        )
        == 0
    )
    return out.read_text()


@pytest.fixture
def described(tmp_path):
    """The table [deploy.described] of the three sites, over two seeds."""
    plan = plan_file(tmp_path, deploy={"sites": list(SITES)}, seeds=2)
    minima = dict.fromkeys(("minimum_rows", "minimum_cell", "minimum_batch"), 1)
    text = plan.read_text() + "".join(
        state(tmp_path, site, plan, **minima) for site in SITES
    )
    return tomllib.loads(text)["deploy"]["described"]


def lying(change):
    """A lie about the description of a table."""

    def about(values):
        answer = values.get("answer")
        if answer is None or "text" not in answer.blocks[0].values:
            return None
        (block,) = answer.blocks
        table = json.loads(block.values["text"][0])
        change(table)
        return {
            **values,
            "answer": Answer((Block(block.names, {"text": (json.dumps(table),)}),)),
        }

    return altered(about)


@pytest.mark.promise("stated columns")
def test_what_a_site_sends_brings_the_plan_no_table_but_its_own(tmp_path):
    """As it was: the operator appended the file as it was, so a site could add a method, which the operator then signed."""
    plan = plan_file(tmp_path)
    before, file = plan.read_text(), tmp_path / "hungary.described.toml"
    text = state(tmp_path, "hungary", plan)
    for more in (
        "\n[[methods]]\nname = 'sgd-full'\n",
        "\n[deploy.described.other]\nrows = []\n",
        "\n[engine]\n",
    ):
        file.write_text(text + more)
        with pytest.raises(InputError, match="holds more than the table of one site"):
            state_sites(plan, [file])
        assert plan.read_text() == before
    file.write_text(text)
    with pytest.raises(InputError, match="states 'hungary' already"):
        state_sites(plan, [file, file])
    state_sites(plan, [file])
    assert [*read_plan(plan).deployment.descriptions] == ["hungary"]
    with pytest.raises(InputError, match="states 'hungary' already"):
        state_sites(plan, [file])


def test_a_site_writes_what_the_plan_should_state_and_a_person_can_read_it(
    tmp_path, capsys
):
    text = state(tmp_path, "hungary", plan_file(tmp_path, seeds=2))
    said = capsys.readouterr().out
    table = tomllib.loads(text)["deploy"]["described"]["hungary"]
    assert table["rows"] == [157, 157]
    assert (table["columns"]["age"], table["columns"]["cp"]) == (
        "number",
        ["2", "3", "4"],
    )
    assert all(line in said for line in text.strip().splitlines())
    assert "read them, and send the file to the operator" in said


def test_a_plan_that_states_its_sites_runs_as_before(tmp_path, described):
    stated = ThreeSites(
        tmp_path / "one", [FEDAVG], seeds=2, deploy={"described": described}
    )
    free = ThreeSites(tmp_path / "two", [FEDAVG], seeds=2)
    for three in (stated, free):
        three.differs = lambda site, about, seed: difference(
            stated.descriptions, (0, 1), site, about, seed
        )
        three.open()
    assert stated.clients.recipe == free.clients.recipe


def test_a_server_compares_with_what_came_as_json(tmp_path, described):
    """A job carries the plan's statements as JSON, whose lists are no tuples."""
    three = ThreeSites(
        tmp_path / "three", [FEDAVG], seeds=2, deploy={"described": described}
    )
    carried = parse_descriptions(json.loads(json.dumps(described)), SITES)
    assert carried == three.descriptions
    three.differs = lambda site, about, seed: difference(
        carried, (0, 1), site, about, seed
    )
    three.open()
    assert not three.engine.refused


LIES = {
    "a column more": lambda t: t["columns"].update(new={"kind": "empty", "signs": [], "unknown": []}),
    "a column less": lambda t: t["columns"].pop("age"),
    "another kind": lambda t: t["columns"]["age"].update(kind="empty2"),
    "a number as text": lambda t: t["columns"].update(age={**t["columns"]["cp"], "kind": "text"}),
    "a category more": lambda t: t["columns"]["cp"]["categories"].append("5") or t["columns"]["cp"].update(distinct=5),
    "rows": lambda t: t.update(rows=t["rows"] + 1),
}  # fmt: skip


@pytest.mark.in_turn(but=("a column more", "a number as text"))
@pytest.mark.promise("stated columns")
@pytest.mark.parametrize("lie", LIES)
def test_what_a_site_tells_otherwise_is_its_failure_by_name_and_the_others_begin(
    tmp_path, described, lie
):
    """Describing one column alone left everybody one feature."""
    three = ThreeSites(
        tmp_path / "three", [FEDAVG], seeds=2, deploy={"described": described}
    )
    three.differs = lambda site, about, seed: difference(
        three.descriptions, (0, 1), site, about, seed
    )
    three.lie = lying(LIES[lie])
    three.open()
    assert set(three.engine.refused) == {LIAR}
    assert set(three.clients.names) == {*SITES} - {LIAR}
    assert "age" in three.clients.recipe["features"]


@pytest.mark.promise("stated columns")
def test_a_recipe_with_a_category_that_the_plan_does_not_state_is_refused(tmp_path):
    plan = plan_file(tmp_path)
    table = tomllib.loads(plan.read_text() + state(tmp_path, "hungary", plan))[
        "deploy"
    ]["described"]
    (tmp_path / "site").mkdir()
    hospital = Hospital(tmp_path / "site", deploy={"described": table}).begin()
    recipe = hospital.recipe()
    column = next(c for c in recipe["columns"] if c["name"] == "cp")
    column["categories"].append("77")
    recipe["features"].append("cp=77")
    with pytest.raises(
        InputError,
        match="'cp' of the recipe has a category that the plan states of no site",
    ):
        hospital.begin(recipe=recipe)


def test_a_site_does_not_approve_a_plan_that_states_something_else_of_it(
    tmp_path, capsys
):
    plan = plan_file(tmp_path)
    plan.write_text(
        plan.read_text() + state(tmp_path, "hungary", plan).replace("157", "156")
    )
    settings = settings_file(tmp_path)
    assert main(["site", "approve", str(plan), "--settings", str(settings)]) == 2
    error = capsys.readouterr().err
    assert (
        "is not what the plan states of hungary: it describes 157 rows, and the plan states 156"
        in error
    )
    assert not (tmp_path / "approved.toml").exists()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"cleveland": {"rows": [1], "label": "number", "columns": {}}},
            "which is not a site of the plan",
        ),
        (
            {"hungary": {"rows": [1], "label": "number", "columns": {}}},
            "every site, and cleveland has none",
        ),
        ({"hungary": {"rows": [1]}}, "not what coterie site describe writes"),
        (
            {"hungary": {"rows": ["x"], "label": "number", "columns": {}}},
            "not what coterie site describe writes",
        ),
        ({"hungary": 3}, "tables of coterie site describe"),
    ],
)
def test_a_table_that_no_site_has_written_is_refused(tmp_path, table, said):
    with pytest.raises(InputError, match=said):
        read_plan(
            plan_file(
                tmp_path,
                deploy={
                    "sites": ["hungary", "cleveland"]
                    if "cleveland" in said
                    else ["hungary"],
                    "described": table,
                },
            )
        )


def test_plain_averages_over_four_sites_get_a_note_about_robust_rules(tmp_path):
    four = ["a", "b", "c", "d"]
    median = {"name": "median", "local": FEDAVG["local"]}

    def note(methods, sites):
        return robustness_note(
            read_plan(plan_file(tmp_path, methods=methods, deploy={"sites": sites}))
        )

    assert note([FEDAVG], four).startswith(
        "fedavg average what 4 sites send, and one faulty site"
    )
    assert note([FEDAVG], four[:3]) == ""
    assert note([median, {"name": "local", "local": FEDAVG["local"]}], four) == ""
