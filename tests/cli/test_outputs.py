"""`--out` of every command: only what an earlier call of it made is replaced."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from coterie.base.errors import InputError
from coterie.base.outputs import MADE, replace_contents
from coterie.cli.main import main

SMALL = ("--methods", "local,fedavg", "--rounds", "1", "--folds", "0", "--no-report")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs of a folder of two CSVs, which can be combined, finalised and asked for predictions."""
    root = tmp_path_factory.mktemp("runs")
    data = root / "data"
    data.mkdir()
    for name in "ab":
        rows = "".join(f"{40 + k % 17},{k * k % 7},{k % 2}\n" for k in range(60))
        (data / f"{name}.csv").write_text(f"age,dose,ill\n{rows}")
    for seed in (0, 1):
        settings = ("--set", f"run.seeds=[{seed}]", "--out", str(root / f"run{seed}"))
        assert main(["compare", str(data), "--label", "ill", *SMALL, *settings]) == 0
    return root


COMMANDS = {
    "report": ("report", "run0", "run1", "--no-html"),
    "predict": ("predict", "run0", "data/a.csv", "--client", "a", "--method", "fedavg"),
    "finalise": ("finalise", "run0", "--client", "a", "--method", "fedavg"),
    "compare": ("compare", "data", "--label", "ill", *SMALL, "--seeds", "1"),
}


@pytest.fixture
def command(request, runs, tmp_path, monkeypatch):
    """A command of which only `--out` is missing, in a copy of the runs; returns its exit status."""
    for name in ("data", "run0", "run1"):
        shutil.copytree(runs / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return lambda out: main([*COMMANDS[request.param], "--out", str(out)])


def contents(folder):
    """The hash of each file below a folder, by name, and where links lead."""
    return {
        path.relative_to(folder): path.readlink()
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


every_command = pytest.mark.parametrize("command", COMMANDS, indirect=True)


@every_command
def test_a_file_of_another_is_left(command, tmp_path, capsys):
    (tmp_path / "mine.csv").write_text("name,phone\nAnna,12\n")
    before = contents(tmp_path)
    assert command("mine.csv") == 2
    assert "another --out" in capsys.readouterr().err
    assert contents(tmp_path) == before


@every_command
def test_a_link_is_not_followed(command, tmp_path, capsys):
    (tmp_path / "elsewhere").write_text("mine\n")
    (tmp_path / "link").symlink_to("elsewhere")
    before = contents(tmp_path)
    assert command("link") == 2
    assert contents(tmp_path) == before


@pytest.mark.in_turn(
    but=(
        "run0-compare",
        "data/a.csv-predict",
        "run0/summary.json-report",
        "data-finalise",
    )
)
@every_command
@pytest.mark.parametrize("out", ["run0", "run0/summary.json", "data/a.csv", "data"])
def test_neither_a_run_nor_what_is_read_is_overwritten(command, tmp_path, capsys, out):
    before = contents(tmp_path)
    assert command(out) == 2
    assert "another --out" in capsys.readouterr().err
    assert contents(tmp_path) == before


@every_command
def test_foreign_files_stay_or_are_named(command, tmp_path, capsys):
    folder, aside = tmp_path / "out", tmp_path / ".out.tmp"
    for place in (folder, aside):
        place.mkdir()
        (place / "thesis.txt").write_text("three years\n")
    command("out")
    capsys.readouterr()
    for place in (folder, aside):
        assert (place / "thesis.txt").read_text() == "three years\n"


@pytest.mark.parametrize("command", ["report", "predict"], indirect=True)
def test_what_the_command_wrote_is_replaced(command, tmp_path):
    assert command("out") == 0
    (out,) = (path for path in tmp_path.iterdir() if path.name == "out")
    whole = contents(tmp_path)
    if out.is_dir():
        (out / "notes.md").write_text("mine\n")
        (out / "runs.json").write_text("[]")
    assert command("out") == 0
    if out.is_dir():
        assert (out / "notes.md").read_text() == "mine\n"
        (out / "notes.md").unlink()
    assert contents(tmp_path) == whole


# ---- the folder


def writer(**files):
    def write(place):
        for name, text in files.items():
            (place / name).write_text(text)

    return write


def test_a_name_in_the_way_is_said_and_nothing_changes(tmp_path):
    replace_contents(tmp_path, writer(a="1", end="1"), last="end")
    (tmp_path / "b").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(InputError, match="holds 'b', which coterie did not make"):
        replace_contents(tmp_path, writer(a="2", b="2", end="2"), last="end")
    with pytest.raises(InputError, match="holds 'b', which coterie did not make"):
        replace_contents(tmp_path, writer(a="2", end="2"), last="end", later=["b"])
    assert contents(tmp_path) == before


def test_what_is_made_no_more_goes(tmp_path):
    replace_contents(tmp_path, writer(a="1", b="1", end="1"), last="end")
    replace_contents(tmp_path, writer(a="2", end="2"), last="end")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "end", MADE}


def test_a_folder_that_was_left_half_replaced_can_be_made_again(tmp_path, monkeypatch):
    replace_contents(tmp_path, writer(a="1", b="1", end="1"), last="end")
    with monkeypatch.context() as context:
        context.setattr(
            "os.replace", lambda *a: (_ for _ in ()).throw(OSError(28, "full"))
        )
        with pytest.raises(OSError, match="No space left"):
            replace_contents(tmp_path, writer(a="2", c="2", end="2"), last="end")
    replace_contents(tmp_path, writer(a="3", c="3", end="3"), last="end")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c", "end", MADE}
    assert (tmp_path / "c").read_text() == "3"


def test_a_record_reaches_into_no_other_folder(tmp_path):
    other = tmp_path / "other"
    other.write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / MADE).write_text('["../other", "..", "."]')
    replace_contents(folder, writer(end="1"), last="end")
    assert other.read_text() == "mine"
