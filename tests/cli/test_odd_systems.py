"""Systems that refuse what a usual one grants: forks, pipes, fsync, locks, renames, UTF-8, child processes."""

from __future__ import annotations

import errno
import fcntl
import locale
import multiprocessing
import os
import subprocess
import sys

import pytest
from commands import environment

import coterie as ct
from coterie.base import system
from coterie.cli.main import main

SMALL = (
    "--methods",
    "local,fedavg",
    "--rounds",
    "1",
    "--seeds",
    "1",
    "--folds",
    "0",
    "--no-report",
)


def refuse(number):
    def refused(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return refused


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(system, "_said", set())


# ---- forks and pipes


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
@pytest.mark.parametrize(
    ("flags", "function"),
    [
        (("--jobs", "2"), "os.fork"),
        (("--jobs", "2"), "os.pipe"),
        (("--workers", "2"), "os.fork"),
        (("--workers", "2"), "os.pipe"),
        (("--workers", "2"), "socket.socketpair"),
    ],
)
def test_an_operation_that_the_system_refuses_is_named(
    tmp_path, monkeypatch, capsys, flags, function, number
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(function, refuse(number))
    status = main(["compare", "heart-disease", *SMALL, *flags, "--out", "run"])
    said = capsys.readouterr()
    assert status == 1
    assert "the system cannot " in said.err
    assert os.strerror(number) in said.err
    assert "fewer" in said.err
    assert "standard output" not in said.err


def test_workers_that_began_are_ended_where_another_cannot(monkeypatch):
    clients = ct.data.load("heart-disease")
    fork, begun = os.fork, []

    def once():
        if begun:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        begun.append(pid := fork())
        return pid

    monkeypatch.setattr(os, "fork", once)
    with pytest.raises(ct.RunError, match="start a worker process"):
        ct.fit("fedavg", clients, rounds=1, engine=ct.InProcess(workers=2))
    with pytest.raises(ChildProcessError):
        os.waitpid(begun[0], os.WNOHANG)


def fit_in_two(pipe):
    try:
        ct.fit("fedavg", "heart-disease", rounds=1, engine=ct.InProcess(workers=2))
    except Exception as error:
        pipe.send((type(error).__name__, str(error)))
    else:
        pipe.send(("none", ""))


@pytest.mark.parametrize("daemon", [True, False])
def test_a_daemonic_process_is_told_that_it_may_have_no_workers(daemon):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=fit_in_two, args=(there,), daemon=daemon)
    process.start()
    kind, sentence = here.recv()
    process.join()
    assert kind == ("InputError" if daemon else "none")
    assert ("daemonic" in sentence) == daemon


# ---- what a disk does not know


@pytest.mark.in_turn(but="22")
@pytest.mark.parametrize(
    "number", [errno.EINVAL, errno.ENOSYS, errno.EACCES, errno.EOPNOTSUPP]
)
def test_a_disk_without_fsync_carries_a_run_and_says_so_once(
    tmp_path, monkeypatch, caplog, number
):
    monkeypatch.setattr(os, "fsync", refuse(number))
    assert (
        main(["compare", "heart-disease", *SMALL, "--out", str(tmp_path / "run")]) == 0
    )
    assert [r.message.partition(": ")[2] for r in caplog.records] == [system.NO_SYNC]


def test_a_disk_that_fails_ends_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    assert (
        main(["compare", "heart-disease", *SMALL, "--out", str(tmp_path / "run")]) == 1
    )
    assert os.strerror(errno.EIO) in capsys.readouterr().err


def test_a_folder_that_nobody_may_open_is_not_synced(tmp_path, monkeypatch, caplog):
    usual = os.open

    def files_only(path, *args, **kwargs):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return usual(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", files_only)
    system.sync_path(tmp_path)
    assert system.NO_SYNC in caplog.text


@pytest.mark.in_turn(but="37")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks_carries_a_run_and_says_so_once(
    tmp_path, monkeypatch, caplog, number
):
    monkeypatch.setattr(fcntl, "lockf", refuse(number))
    assert (
        main(["compare", "heart-disease", *SMALL, "--out", str(tmp_path / "run")]) == 0
    )
    assert [r.message.partition(": ")[2] for r in caplog.records] == [system.NO_LOCKS]


def test_a_disk_that_replaces_no_file_is_refused_at_the_start(
    tmp_path, monkeypatch, capsys
):
    usual = os.replace

    def never_replace(source, target, **kwargs):
        if os.path.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        usual(source, target, **kwargs)

    monkeypatch.setattr(os, "replace", never_replace)
    assert (
        main(["compare", "heart-disease", *SMALL, "--out", str(tmp_path / "run")]) == 2
    )
    assert "choose another --out" in capsys.readouterr().err
    assert not (tmp_path / "run" / "summary.json").exists()


# ---- streams and encodings


def write_clinics(folder):
    folder.mkdir()
    for name in ("Zürich", "Łódź"):
        rows = "".join(f"{40 + k},{k % 2}\n" for k in range(40))
        (folder / f"{name}.csv").write_text(f"age,ill\n{rows}", encoding="utf-8")
    return folder


def test_files_are_written_in_utf8_whatever_the_system_writes(
    tmp_path, monkeypatch, request
):
    monkeypatch.setitem(sys.modules, "onnx", None)  # its exporter takes many seconds
    of_system = locale.setlocale(locale.LC_CTYPE)
    request.addfinalizer(lambda: locale.setlocale(locale.LC_CTYPE, of_system))
    locale.setlocale(locale.LC_CTYPE, "C")  # ASCII, unless Python is in its UTF-8 mode
    clinics = write_clinics(tmp_path / "Kliniken")
    run, final = str(tmp_path / "run"), tmp_path / "final"
    compared = main(["compare", str(clinics), "--label", "ill", *SMALL, "--out", run])
    assert compared == 0
    finalised = main(["finalise", run, "--client", "Łódź", "--out", str(final)])
    assert finalised == 0
    assert "Łódź" in (final / "card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "encoding",
    [
        "ascii",
        pytest.param("latin-1", marks=pytest.mark.in_turn),
        pytest.param("cp1252", marks=pytest.mark.in_turn),
    ],
)
def test_an_answer_reaches_a_stream_of_any_encoding(tmp_path, encoding):
    folder = write_clinics(tmp_path / "Kliniken")
    command = [
        sys.executable,
        "-m",
        "coterie",
        "compare",
        str(folder),
        "--label",
        "ill",
        *SMALL,
    ]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path / "run")],
        env={**environment(), "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert b"d?" in ended.stdout or "Łódź".encode() in ended.stdout


def test_only_its_own_error_is_blamed_on_standard_output(monkeypatch, capsys):
    monkeypatch.setattr("coterie.cli.show.entries", refuse(errno.EMFILE))
    assert main(["methods"]) == 1
    said = capsys.readouterr().err
    assert os.strerror(errno.EMFILE) in said
    assert "standard output" not in said


# ---- disks that take two names for one


@pytest.mark.parametrize(
    ("names", "named"),
    [(("Ward", "ward"), "clients 'Ward' and 'ward'"), (("ä", "a\u0308"), "clients")],
)
def test_clients_whose_files_would_be_one_are_refused_before_any_training(
    tmp_path, capsys, names, named
):
    rows = "age,bmi,ill\n" + "".join(
        f"{20 + k},{18 + k % 7},{k % 2}\n" for k in range(30)
    )
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.csv").write_text(rows)
    if len(list(folder.iterdir())) < 2:
        pytest.skip("this disk takes two names for one")
    out = tmp_path / "run"
    command = ["compare", str(folder), "--label", "ill", *SMALL, "--out", str(out)]
    assert main(command) == 2
    assert named in capsys.readouterr().err
    assert not out.exists()


def test_methods_whose_files_would_be_one_are_refused():
    clients = ct.data.load("heart-disease")
    methods = {"mine": ct.FedAvg(), "Mine": ct.Local()}
    with pytest.raises(ct.InputError, match="methods 'mine' and 'Mine'"):
        ct.compare(methods, clients, rounds=1)
