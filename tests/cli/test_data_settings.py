"""Settings of [data] from the command line, and the notes that a user must see."""

from __future__ import annotations


def test_settings_of_one_column_and_notes_on_the_screen(coterie, tmp_path):
    (tmp_path / "mine").mkdir()
    for name, head in (("a", "age"), ("b", "AGE")):
        lines = [
            f"{head},smoker,y",
            *(
                f"{i % 7},{('yes', 'no', 'asked')[i % 3]},{'nN'[i % 2]}"
                for i in range(18)
            ),
        ]
        (tmp_path / "mine" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    command = (
        "compare",
        "mine",
        "--label",
        "y",
        "--methods",
        "local",
        "--rounds",
        "1",
        "--seeds",
        "1",
    )
    assert coterie(*command).status == 2
    settings = (
        'data.missing.smoker=["asked"]',
        "data.rename.AGE=age",
        'data.classes.yes=["N"]',
        'data.classes.no=["n"]',
    )
    ended = coterie(
        *command,
        *(word for s in settings for word in ("--set", s)),
    )
    assert ended.status == 0, ended.err
    run = next((tmp_path / "runs").iterdir())
    text = (run / "preprocess.json").read_text()
    assert ("asked" in text, "smoker=no" in text, '"rename"' in text) == (
        True,
        True,
        True,
    )
    again = coterie("run", str(run / "experiment.toml"), "--out", "again")
    assert again.status == 0, again.err
    assert (tmp_path / "again" / "preprocess.json").read_text() == text


def test_notes_on_the_data_are_on_the_screen(coterie, tmp_path):
    (tmp_path / "mine").mkdir()
    lines = ["age,seen,y", *(f"{i % 7},2024-01-{i + 1:02d},{i % 2}" for i in range(18))]
    (tmp_path / "mine" / "a.csv").write_text("\n".join(lines) + "\n")
    ended = coterie(
        "compare",
        "mine",
        "--label",
        "y",
        "--methods",
        "local",
        "--rounds",
        "1",
        "--seeds",
        "1",
    )
    assert "note: left out: seen (dates or times;" in ended.out


def test_compare_asks_and_takes_either_answer(coterie, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.csv").write_text(
        "\n".join(["x,y", *(f"{i},{i * 7 % 10}" for i in range(60))]) + "\n"
    )
    command = (
        "compare",
        "mine",
        "--label",
        "y",
        "--methods",
        "local",
        "--rounds",
        "1",
        "--seeds",
        "1",
    )
    ended = coterie(*command)
    assert ended.status == 2
    assert (
        "are they a quantity, such as a count? Then --task regression, else --task classification"
        in ended.err
    )
    assert coterie("check", "mine", "--label", "y").status == 2
    for answer in ("regression", "classification"):
        assert coterie(*command, "--task", answer, "--out", answer).status == 0
