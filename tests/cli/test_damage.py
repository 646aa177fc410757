"""Files of a finished run that were damaged since: what can be made again is, the rest is refused, nothing differs silently."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import threading
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest
import torch
from commands import contents

from coterie.base.files import write_atomically, write_checkpoint
from coterie.contract.exchange import Session
from coterie.run.checkpoint import RoundFiles
from coterie.run.history import Record
from coterie.run.provenance import Provenance

TABLE = (
    "age,smokes,ill\n"
    + "\n".join(f"{20 + i},{'xy'[i % 2]},{(i // 2) % 2}" for i in range(16))
    + "\n"
)
COMPARE = (
    "compare", "good", "--label", "ill", "--methods", "local,fedavg", "--rounds", "2", "--seeds", "1", "--out", "run", "--no-report",
)  # fmt: skip
RESUME = ("run", "run/experiment.toml", "--resume", "--no-report")
REPORT = ("report", "run", "--no-html")
PREDICT = ("predict", "run", "good/a.csv", "--client", "a", "--method", "local")

DAMAGE = {
    "deleted": lambda content: None,
    "emptied": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "flipped": lambda content: (
        content[: len(content) // 2]
        + bytes([content[len(content) // 2] ^ 1])
        + content[len(content) // 2 + 1 :]
    ),
}
SOME = ("deleted", "flipped")
"""All ways on all files are tried by the slow test at the end."""


@pytest.fixture(scope="module")
def finished(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    for name in "ab":
        (folder / "good").mkdir(exist_ok=True)
        (folder / "good" / f"{name}.csv").write_text(TABLE)
    ended = driver(folder, *COMPARE)
    assert ended.status == 0, ended.err
    return folder


def damage(folder: Path, file: str, how: str) -> None:
    path = folder / "run" / file
    content = DAMAGE[how](path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


REBUILT = (
    "history.csv", "models/fedavg-0.safetensors", "outcomes/local-0.safetensors", "checkpoint/local-0/done.json", "preprocess.json",
)  # fmt: skip


@pytest.mark.in_turn(
    but=(
        "history.csv-flipped",
        "models/fedavg-0.safetensors-deleted",
        "checkpoint/local-0/done.json-flipped",
    )
)
@pytest.mark.parametrize("how", SOME)
@pytest.mark.parametrize("file", REBUILT)
def test_what_can_be_made_again_is_by_resume(coterie, copied, finished, file, how):
    damage(copied, file, how)
    assert coterie("verify", "run").status == 2
    resumed = coterie(*RESUME)
    assert resumed.status == 0, resumed.err
    assert contents(copied / "run") == contents(finished / "run")
    assert coterie("verify", "run").status == 0
    if "0" in file and (
        how != "deleted" or "done" not in file
    ):  # without its mark a method is not complete
        assert f"{file} is" in resumed.err
        assert "made again" in resumed.err


@pytest.mark.parametrize("how", SOME)
@pytest.mark.parametrize("file", ["summary.json", "history.csv"])
def test_tables_are_made_again_by_report(coterie, copied, finished, file, how):
    damage(copied, file, how)
    said = coterie(*REPORT)
    assert said.status == 0, said.err
    assert f"run/{file} was damaged" in said.err
    assert contents(copied / "run") == contents(finished / "run")
    assert coterie("verify", "run").status == 0


@pytest.mark.parametrize("how", SOME)
@pytest.mark.parametrize(
    ("command", "file", "cure"),
    [
        (REPORT, "experiment.toml", "restore it from a copy"),
        (REPORT, "environment.json", "--resume"),
        (REPORT, "outcomes/local-0.safetensors", "--resume"),
        (PREDICT, "models/local-0-a.safetensors", "--resume"),
        (PREDICT, "preprocess.json", "--resume"),
    ],
)
def test_what_cannot_be_made_again_here_is_one_sentence(
    coterie, copied, command, file, cure, how
):
    damage(copied, file, how)
    refused = coterie(*command)
    assert refused.status == 2
    assert len(refused.err.splitlines()) == 1
    assert file in refused.err or how == "deleted"
    assert cure in refused.err or how == "deleted"


@pytest.mark.parametrize("how", SOME)
def test_a_lost_history_is_said_and_never_taken_for_an_empty_one(
    coterie, copied, finished, how
):
    damage(copied, "checkpoint/fedavg-0/history.jsonl", how)
    refused = coterie(*RESUME)
    assert refused.status == 2
    assert "history.jsonl is " in refused.err
    assert contents(copied / "run") == contents(finished / "run")
    shutil.rmtree(copied / "run" / "checkpoint" / "fedavg-0")
    assert coterie(*RESUME).status == 0


@pytest.mark.parametrize("how", SOME)
def test_a_damaged_checkpoint_of_an_unfinished_run_is_refused(coterie, copied, how):
    (copied / "run" / "checkpoint" / "fedavg-0" / "done.json").unlink()
    damage(copied, "checkpoint/fedavg-0/checkpoint.safetensors", how)
    resumed = coterie(*RESUME)
    if how == "deleted":  # nothing was saved, so the method starts again
        assert resumed.status == 0
    else:
        assert resumed.status == 2
        assert "checkpoint.safetensors" in resumed.err


def test_report_of_a_run_that_may_not_be_written_still_answers(
    coterie, copied, monkeypatch
):
    def refuse(source, target):
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(
        os, "replace", refuse
    )  # a test may run as root, whom no mode of a folder stops
    said = coterie("report", "run")
    assert said.status == 0
    assert "Predicts ill" in said.out
    assert "no HTML report: run cannot be written" in said.out


def test_a_damaged_experiment_is_not_resumed_as_another_one(coterie, copied):
    path = copied / "run" / "experiment.toml"
    text = path.read_text()
    path.write_text(text.replace('name = "fedavg"', 'name = "scaffold"'))
    refused = coterie(*RESUME)
    assert refused.status == 2
    assert "experiment.toml is damaged; restore it" in refused.err
    path.write_text(text)
    assert coterie(*RESUME).status == 0


class Some(NamedTuple):
    x: torch.Tensor


def test_a_full_disk_names_the_file(tmp_path):
    files = {
        "table.csv": lambda path: write_atomically(
            path, lambda p: p.write_bytes(bytes(5000))
        ),
        "model.safetensors": lambda path: write_checkpoint(
            path, Some(torch.zeros(5000)), {}, {}
        ),
        "history.jsonl": lambda path: RoundFiles(
            tmp_path, Provenance(tmp_path, {})
        )._append(
            Record(weight_rows=[(1, "x" * 5000, "a", 1.0)]), Session(), durable=True
        ),
    }
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, write in files.items():
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (1000, before[1])
        )  # a longer file is refused as on a full disk
        try:
            with pytest.raises(OSError, match="File too large") as error:
                write(tmp_path / name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert error.value.filename == str(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["history.jsonl"]


def test_what_is_written_once_stays_and_needs_no_links_to_be_written(
    tmp_path, monkeypatch
):
    def write(name, content):
        write_atomically(tmp_path / name, lambda p: p.write_text(content), once=True)
        return [(path.name, path.read_text()) for path in sorted(tmp_path.iterdir())]

    write("key", "first")
    assert write("key", "second") == [("key", "first")]
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    assert write("other", "third") == [("key", "first"), ("other", "third")]


def test_threads_that_write_one_file_at_once_each_write_the_whole(tmp_path):
    path = tmp_path / "list.json"

    def write_while_another_does(temporary):
        temporary.write_text("first")
        other = threading.Thread(
            target=write_atomically,
            args=(path, lambda p: p.write_text("second, longer")),
        )
        other.start()
        other.join()
        assert path.read_text() == "second, longer"
        assert temporary.read_text() == "first"

    write_atomically(path, write_while_another_does)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("list.json", "first")
    ]


@pytest.mark.slow
def test_every_damage_of_every_file_is_mended_or_named(coterie, finished, tmp_path):
    expected = contents(finished / "run")
    files = [
        str(p.relative_to(finished / "run"))
        for p in (finished / "run").rglob("*")
        if p.is_file()
    ]
    answer = coterie("report", str(finished / "run"), "--no-html", "--json").out
    for file, how in itertools.product(sorted(files), DAMAGE):
        shutil.rmtree(tmp_path, ignore_errors=True)
        shutil.copytree(finished, tmp_path)
        if not (tmp_path / "run" / file).stat().st_size:
            continue  # the lock
        damage(tmp_path, file, how)
        for command in (("report", "run", "--no-html", "--json"), RESUME, PREDICT):
            ended = coterie(*command)
            assert ended.status in (0, 2), (file, how, command, ended.err)
            assert "Traceback" not in ended.err
            if command[0] == "report" and ended.status == 0:
                assert ended.out.replace('"run"', f'"{finished}/run"') == answer, (
                    file,
                    how,
                )
            if command[0] == "run" and ended.status == 0:
                assert contents(tmp_path / "run") == expected, (file, how)
