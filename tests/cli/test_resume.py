"""Killed or stopped anywhere, a run goes on with --resume and ends with the bytes of an undisturbed one."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from commands import HERE, ROOT, contents, environment

import coterie as ct

HEART = ROOT / "src" / "coterie" / "data" / "sets" / "files" / "heart_disease"
METHODS = f"local,meritfed,{HERE / 'remembers.py'}:Momentum"
LENGTH = ("--rounds", "6", "--seeds", "1", "--set", "run.evaluate=2", "--no-report")
# The paper's form of MeritFed, whose asks are the points below.
PAPERS_FORM = ("--set", "meritfed.cheap_above=9")
SETTINGS = ("--methods", METHODS, *LENGTH, *PAPERS_FORM)
COMPARE = ("compare", "heart-disease", *SETTINGS)


def at(target, when, match, number=1, with_signal="SIGKILL"):
    return {
        "target": target,
        "when": when,
        "match": match,
        "at": number,
        "signal_name": with_signal,
    }


def ask(match, number=1, with_signal="SIGKILL"):
    return at(
        "coterie.contract.federation.Federation.ask",
        "after",
        match,
        number,
        with_signal,
    )


def rename(when, match, number=1):
    return at("os.replace", when, match, number)


@pytest.fixture(scope="module")
def undisturbed(driver, tmp_path_factory):
    """Contents of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert driver(folder, *COMPARE, "--out", "run").status == 0
    return contents(folder / "run")


@pytest.fixture(scope="module")
def killed_once(driver, tmp_path_factory):
    """A run that is killed in round 3 of its second method."""
    folder = tmp_path_factory.mktemp("killed")
    assert (
        driver(
            folder,
            *COMPARE,
            "--out",
            "run",
            arm=ask("round 3 <task coterie.compute.target_tasks"),
        ).status
        == -9
    )
    return folder / "run"


@pytest.fixture
def killed(killed_once, tmp_path):
    """A copy of it."""
    return shutil.copytree(killed_once, tmp_path / "run", symlinks=True)


def assert_same(run, expected):
    got = contents(run)
    assert set(got) == set(expected)
    assert [name for name in expected if got[name] != expected[name]] == []
    assert list(run.rglob(".*.tmp*")) == []


def everything(run):
    return {
        str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file()
    }


POINTS = {
    "after the ask for updates": ask(
        "round 3 <task coterie.compute.tasks:local_updates"
    ),
    "after an ask to the oracle": ask(
        "round 3 <task coterie.compute.target_tasks:target_gradient", 2
    ),
    "after an ask that clients remember": ask(
        "round 5 <task coterie_user_remembers:update"
    ),
    "before a checkpoint, its history appended": at(
        "coterie.run.checkpoint.write_checkpoint", "before", "'round': 4,", 2
    ),
    "between writing and renaming a checkpoint": rename(
        "before", "momentum-0/checkpoint.safetensors", 4
    ),
    "between the models and the mark of a pair": rename(
        "before", "meritfed-0/done.json"
    ),
    "between the last pair and the tables": rename("after", "momentum-0/done.json"),
    "between the tables": rename("before", "weights.csv"),
}


@pytest.mark.in_turn(
    but=(
        "after an ask that clients remember",
        "before a checkpoint, its history appended",
        "between the models and the mark of a pair",
        "between the tables",
    )
)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point_it_goes_on(driver, tmp_path, undisturbed, point):
    assert driver(tmp_path, *COMPARE, "--out", "run", arm=POINTS[point]).status == -9
    resumed = driver(tmp_path, *COMPARE, "--out", "run", "--resume")
    assert resumed.status == 0, resumed.err
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_every_rename(driver, tmp_path, undisturbed, when):
    number = 1
    while driver(
        tmp_path, *COMPARE, "--out", "run", arm=rename(when, "", number)
    ).status:
        resumed = driver(tmp_path, *COMPARE, "--out", "run", "--resume")
        assert resumed.status == 0, (number, resumed.err)
        assert_same(tmp_path / "run", undisturbed)
        shutil.rmtree(tmp_path / "run")
        number += 1
    assert number > 30


@pytest.mark.slow
@pytest.mark.parametrize("round", [0, 1, 3, 6])
def test_killed_after_every_ask_of_a_round(driver, tmp_path, undisturbed, round):
    number = 1
    while driver(
        tmp_path, *COMPARE, "--out", "run", arm=ask(f"round {round} ", number)
    ).status:
        resumed = driver(tmp_path, *COMPARE, "--out", "run", "--resume")
        assert resumed.status == 0, (number, resumed.err)
        assert_same(tmp_path / "run", undisturbed)
        shutil.rmtree(tmp_path / "run")
        number += 1
    assert number > 5


@pytest.mark.slow
def test_killed_at_random_moments(driver, tmp_path, undisturbed):
    draw = random.Random(0)
    whole = driver(tmp_path, *COMPARE, "--out", "whole").seconds
    kills = 0
    for number in range(20):
        run = tmp_path / f"run-{number}"
        kills += (
            driver(
                tmp_path, *COMPARE, "--out", run.name, delay=draw.uniform(0, whole)
            ).status
            == -9
        )
        assert driver(tmp_path, *COMPARE, "--out", run.name, "--resume").status == 0
        assert_same(run, undisturbed)
    assert kills > 10


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_again_and_again(driver, tmp_path, undisturbed, workers):
    for _ in range(100):
        ended = driver(
            tmp_path,
            *COMPARE,
            "--out",
            "run",
            "--workers",
            workers,
            "--resume",
            delay=0.35,
        )
        if ended.status == 0:
            break
        assert ended.status == -9, ended.err
    assert (
        driver(tmp_path, *COMPARE, "--out", "run", "--workers", "1", "--resume").status
        == 0
    )
    (
        tmp_path / "run" / "experiment.toml"
    ).unlink()  # it says how many workers there were last
    assert_same(
        tmp_path / "run",
        {k: v for k, v in undisturbed.items() if k != "experiment.toml"},
    )


PLAIN = """
class Halfway(ct.Method):  # no dataclass: it has no text of its own that a checkpoint could compare
    def __init__(self, speed=0.5, local=None): self.speed, self.local = speed, local
    def init(self, x, federation): return State(x)
    def round(self, state, federation, rng):
        got = federation.ask(federation.clients, update, x=state.x, local=self.local)
        return State(state.x + self.speed * got.delta.mean(dim=0)), {}
    def models(self, state): return state.x
"""


@pytest.mark.in_turn
def test_a_method_of_any_class_goes_on(driver, tmp_path):
    example = (ROOT / "examples" / "own_method.py").read_text()
    (tmp_path / "mine.py").write_text(example + PLAIN)
    command = (
        "compare",
        "heart-disease",
        *LENGTH,
        "--methods",
        "mine.py:Halfway,mine.py:Median",
    )
    assert driver(tmp_path, *command, "--out", "whole").status == 0
    assert (
        driver(tmp_path, *command, "--out", "run", arm=ask("round 3 ", 1)).status == -9
    )
    again = driver(
        tmp_path, *command, "--out", "run", "--resume", arm=ask("round 1 ", 2)
    )  # of the second method only
    assert again.status == 0, again.err
    assert_same(tmp_path / "run", contents(tmp_path / "whole"))
    faster = driver(
        tmp_path, *command, "--out", "run", "--resume", "--set", "halfway.speed=0.7"
    )
    assert faster.status == 2
    assert "other settings of 'halfway' (speed)" in faster.err


def test_half_a_line_of_history_is_cut(driver, killed, undisturbed):
    with open(killed / "checkpoint" / "meritfed-0" / "history.jsonl", "ab") as file:
        file.write(b'{"history": [[3, "clevel')
    assert driver(killed.parent, *COMPARE, "--out", "run", "--resume").status == 0
    assert_same(killed, undisturbed)


def test_what_is_done_is_not_done_again(driver, killed, undisturbed):
    models = sorted((killed / "models").glob("local-0-*"))
    times = [m.stat().st_mtime_ns for m in models]
    assert len(times) == 4
    again = (*COMPARE, "--out", "run", "--resume")
    # If it asked for one of these, it would be killed.
    assert (
        driver(
            killed.parent,
            *again,
            arm=ask("round 3 <task coterie_user_remembers:update"),
        ).status
        == -9
    )
    for forbidden in ("compute.tasks:own_update", "compute.target_tasks", "round 2 "):
        copy = shutil.copytree(killed, killed.parent / "copy")
        ended = driver(
            killed.parent, *COMPARE, "--out", "copy", "--resume", arm=ask(forbidden)
        )
        assert ended.status == 0, (forbidden, ended.err)
        assert_same(copy, undisturbed)
        shutil.rmtree(copy)
    assert driver(killed.parent, *again).status == 0
    assert [m.stat().st_mtime_ns for m in models] == times
    finished = driver(killed.parent, *again)  # nothing is left to do
    assert finished.status == 0
    assert_same(killed, undisturbed)


# ---- stopped by a person


def said(err):
    """The command that the last line says."""
    words = shlex.split(err.splitlines()[-1])
    assert words[0] == "coterie"
    return words[1:]


def test_ctrl_c_says_how_to_go_on_and_that_works(driver, tmp_path, undisturbed):
    stop = ask("round 3 <task coterie.compute.target_tasks", 2, "SIGINT")
    stopped = driver(tmp_path, *COMPARE, "--out", "my run/1", arm=stop)
    assert stopped.status == 130
    assert "rounds are saved, but for the last half second" in stopped.err
    assert "Traceback" not in stopped.err
    summary = json.loads((tmp_path / "my run" / "1" / "summary.json").read_text())
    assert {row["method"] for row in summary} == {"local"}
    assert driver(tmp_path, "report", "my run/1", "--no-html").status == 0
    assert driver(tmp_path, *said(stopped.err), "--no-report").status == 0
    assert_same(tmp_path / "my run" / "1", undisturbed)


@pytest.mark.in_turn
def test_ctrl_c_before_the_first_round(driver, tmp_path):
    stop = at("coterie.run.experiment.Experiment.load_data", "before", "", 1, "SIGINT")
    stopped = driver(tmp_path, *COMPARE, "--out", "run", arm=stop)
    assert (stopped.status, stopped.err) == (
        130,
        "stopped before the first round; nothing was saved\n",
    )
    assert not (tmp_path / "run").exists()
    stop = at("coterie.report.results.Results.load", "before", "", 1, "SIGINT")
    shown = driver(tmp_path, *COMPARE, "--out", "run", arm=stop)
    assert shown.status == 130
    assert shown.err.endswith("coterie: stopped\n")
    assert "Traceback" not in shown.err


def started(folder, *settings):
    """A comparison in a process group of its own, whose first model is saved."""
    # At a moment that nobody chose: a file that is being opened just then is closed when it is collected, and Python warns of it.
    warned = {"PYTHONWARNINGS": "error,ignore::ResourceWarning"}
    command = (sys.executable, "-m", "coterie", "compare", "heart-disease", *settings)
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(), **warned},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    saved = folder / "run" / "checkpoint" / "local-0" / "checkpoint.safetensors"
    until = time.monotonic() + 60
    while not saved.exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def test_ctrl_c_in_a_terminal_reaches_the_workers_too(driver, tmp_path):
    settings = (
        "--methods",
        "local,fedavg",
        "--rounds",
        "40",
        "--seeds",
        "1",
        "--folds",
        "0",
        "--no-report",
    )
    settings += ("--workers", "2")
    # On a busy machine the run may end before it is told: then another one is.
    for _ in range(10):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        process = started(tmp_path, *settings, "--out", "run")
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
        _, err = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    assert process.returncode == 130
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody of the group is left
    one = ("--workers", "1")
    assert driver(tmp_path, *said(err), "--no-report", *one).status == 0
    assert (
        driver(
            tmp_path,
            "compare",
            "heart-disease",
            *settings,
            *one,
            "--out",
            "undisturbed",
        ).status
        == 0
    )
    assert_same(tmp_path / "run", contents(tmp_path / "undisturbed"))


INTERRUPTED = """
import builtins, os, signal, sys
honest = builtins.__import__
def imported(name, *rest, **more):
    if name == {at!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return honest(name, *rest, **more)
builtins.__import__ = imported
sys.argv = ["coterie", "compare", "heart-disease"]
import coterie as ct
from coterie.__main__ import main
sys.exit(main())
"""


@pytest.mark.in_turn(but="coterie.base.errors")
@pytest.mark.parametrize(
    "at", ["coterie.cli.main", "coterie.base.errors", "numpy._core._multiarray_umath"]
)
def test_ctrl_c_in_the_middle_of_an_import_ends_with_a_sentence(tmp_path, at):
    script = INTERRUPTED.format(at=at)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (130, "coterie: stopped\n")


INTERRUPTED_AT_A_LINE = """
import os, signal, sys
lines = 0
def at_line(frame, event, argument):
    global lines
    lines += event == "line"
    if lines == {number}:
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGINT)
    return at_line
import coterie as ct
from coterie.__main__ import main
sys.argv = ["coterie", "methods"]
sys.settrace(lambda frame, event, argument: at_line if frame.f_code.co_filename == main.__code__.co_filename else None)
sys.exit(main())
"""


@pytest.mark.in_turn(but=("2", "12"))
@pytest.mark.parametrize("number", [2, 3, 6, 12])
def test_ctrl_c_at_the_first_lines_of_the_command_ends_with_a_sentence(
    tmp_path, number
):
    """Before the handler that leaves at once is there: the first line is `try` itself."""
    script = INTERRUPTED_AT_A_LINE.format(number=number)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        130,
        "",
        "coterie: stopped\n",
    )


# ---- what a run directory accepts


@pytest.mark.in_turn
def test_half_a_file_of_a_killed_run_goes_with_the_next_start(driver, tmp_path):
    killed = rename("before", "fedavg-0/checkpoint.safetensors", 2)
    argv = (
        "compare",
        "heart-disease",
        "--methods",
        "fedavg",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--no-report",
        "--out",
    )
    assert driver(tmp_path, *argv, "run", arm=killed).status == -9
    (leftover,) = (tmp_path / "run").rglob(".*.tmp*")
    assert leftover.name.startswith(".checkpoint.safetensors.tmp")
    assert driver(tmp_path, *argv, "run", "--resume").status == 0
    assert list((tmp_path / "run").rglob(".*.tmp*")) == []


@pytest.mark.parametrize("resume", [False, True])
def test_half_a_checkpoint_of_a_killed_fit_goes_with_the_next_start(tmp_path, resume):
    def fit(**settings):
        ct.fit(
            "fedavg",
            "heart-disease",
            rounds=1,
            checkpoint=tmp_path / "c",
            settings=ct.RunSettings(**settings),
        )

    fit()
    leftover = tmp_path / "c" / ".checkpoint.safetensors.tmp4711"
    leftover.write_bytes(b"half")
    mine = tmp_path / "c" / ".tmp-of-mine"
    mine.write_bytes(b"whole")
    fit(resume=resume)
    assert (leftover.exists(), mine.exists()) == (False, True)


def test_a_run_is_not_overwritten(driver, killed):
    before = everything(killed)
    refused = driver(killed.parent, *COMPARE, "--out", "run")
    assert refused.status == 2
    assert (
        refused.err
        == "coterie: run already holds a run; continue with --resume, or choose another --out\n"
    )
    assert everything(killed) == before


def test_two_processes_do_not_write_one_run(driver, killed, undisturbed):
    before = everything(killed)
    with open(killed / "checkpoint" / "lock", "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # as a process that is still at it
        refused = driver(killed.parent, *COMPARE, "--out", "run", "--resume")
    assert (refused.status, refused.err) == (
        2,
        "coterie: run is being written by another process; wait for it to end\n",
    )
    assert everything(killed) == before
    assert driver(killed.parent, *COMPARE, "--out", "run", "--resume").status == 0
    assert_same(killed, undisturbed)


OTHERS = {
    "rounds": (("--rounds", "7"), "run.rounds = 6, not 7"),
    "fewer rounds": (("--rounds", "2"), "run.rounds = 6, not 2"),
    "a field": (
        ("--set", "meritfed.md_step=7"),
        "other settings of 'meritfed' (md_step)",
    ),
    "local training": (("--lr", ".5"), "other settings of 'local' (local)"),
    "a model": (("--model", "mlp"), "run was made with model."),
    "a split": (("--set", "split.seed=3"), "split.seed = None, not 3"),
    "participants": (
        ("--clients-per-round", "2"),
        "run.clients_per_round = None, not 2",
    ),
    "a file of one's own": (
        ("--methods", "local,meritfed"),
        "remembers.py, which is not named now",
    ),
    "other seeds": (("--seeds", "3,4"), "has seed 0"),
}


@pytest.mark.in_turn(but=("rounds", "a field", "a file of one's own"))
@pytest.mark.parametrize("what", OTHERS)
def test_other_settings_are_refused(driver, killed, what):
    flags, words = OTHERS[what]
    assert_refused(driver, killed, (*COMPARE, *flags), words)


def test_fewer_methods_are_refused(driver, killed):
    fewer = ("--methods", f"local,{HERE / 'remembers.py'}:Momentum")
    command = ("compare", "heart-disease", *LENGTH, *fewer)
    assert_refused(driver, killed, command, "has results of 'meritfed'")


def assert_refused(driver, killed, command, words):
    before = everything(killed)
    refused = driver(killed.parent, *command, "--out", "run", "--resume")
    assert refused.status == 2, refused.err
    assert words in refused.err
    assert refused.err.count("\n") == 1
    assert everything(killed) == before


def test_other_data_and_other_files_are_refused(driver, tmp_path):
    shutil.copytree(HEART, tmp_path / "hospitals")
    shutil.copy(HERE / "remembers.py", tmp_path / "mine.py")
    settings = (
        "--label",
        "sex",
        "--methods",
        "mine.py:Momentum,local",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--no-report",
    )
    command = ("compare", "hospitals", *settings, "--out", "run")
    assert driver(tmp_path, *command).status == 0
    assert driver(tmp_path, *command, "--resume").status == 0
    before = everything(tmp_path / "run")
    for file, old, new, words in (
        (
            "hospitals/cleveland.csv",
            "63",
            "64",
            "momentum-0: the data of clients has changed since it was complete (cleveland); ",
        ),
        (
            "mine.py",
            "0.5",
            "0.6",
            "momentum-0: mine.py has changed since it was complete (function update); go back, or",
        ),
    ):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text.replace(old, new, 1))
        refused = driver(tmp_path, *command, "--resume")
        assert refused.status == 2
        assert words in refused.err
        (tmp_path / file).write_text(text)
        now = everything(tmp_path / "run")
        assert [
            name for name in before if name not in TIMES and now[name] != before[name]
        ] == []


TIMES = ("timing.csv", "environment.json")


def test_methods_and_seeds_may_be_added(driver, tmp_path, undisturbed):
    fewer = (
        "compare",
        "heart-disease",
        *LENGTH,
        *PAPERS_FORM,
        "--methods",
        "meritfed",
        "--out",
        "run",
    )
    assert driver(tmp_path, *fewer).status == 0
    assert driver(tmp_path, *COMPARE, "--out", "run", "--resume").status == 0
    assert_same(tmp_path / "run", undisturbed)
    assert (
        driver(tmp_path, *COMPARE, "--out", "run", "--resume", "--seeds", "2").status
        == 0
    )
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {(row["method"], row["seed"]) for row in rows} == {
        (m, s) for m in ("local", "meritfed", "momentum") for s in (0, 1)
    }


# ---- a run that fails


def test_a_failed_run_keeps_what_was_saved_and_goes_on(driver, tmp_path, undisturbed):
    (tmp_path / "fail").touch()
    failed = driver(tmp_path, *COMPARE, "--out", "run")
    assert failed.status == 1
    sentence, *more = failed.err.splitlines()[-3:]
    assert sentence.startswith("coterie: momentum, seed 0: round 4, task ")
    assert more == [
        "rounds are saved, but for the last half second at most; once this is mended, go on with:",
        "  coterie run run/experiment.toml --resume",
    ]
    assert "the disk is full" in sentence
    assert "then resume" in sentence
    assert "Traceback" not in failed.err
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {row["method"] for row in rows} == {"local", "meritfed"}
    (tmp_path / "fail").unlink()
    assert (
        driver(
            tmp_path, *COMPARE, "--out", "run", "--resume", arm=ask("round 3 ")
        ).status
        == 0
    )
    assert_same(tmp_path / "run", undisturbed)


def test_a_model_that_diverges_ends_the_run_by_name(driver, tmp_path):
    flags = (
        "--methods",
        "local,fedavg",
        "--set",
        "fedavg.lr=1e30",
        "--rounds",
        "6",
        "--seeds",
        "1",
        "--no-report",
    )
    failed = driver(tmp_path, "compare", "heart-disease", *flags, "--out", "run")
    assert failed.status == 1
    assert failed.err.splitlines()[-3].startswith("coterie: fedavg, seed 0: round ")
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {row["method"] for row in rows} == {"local"}
    shown = driver(tmp_path, "report", "run", "--no-html")
    assert shown.status == 0
    assert "Cleveland" in shown.out


def test_after_a_power_loss_a_run_goes_on(tmp_path):
    """A folder without experiment.toml is no run, and a checkpoint whose history was lost is of no use."""
    from torture.apart import Setup, command
    from torture.kills import lose_power, remember_disk

    settings = (
        "--methods",
        "fedavg,local",
        "--rounds",
        "3",
        "--seeds",
        "1",
        "--folds",
        "0",
        "--no-report",
    )
    argv = ("compare", "heart-disease", *settings, "--out", "run")
    assert command(tmp_path, *argv).status == 0
    expected = contents(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")

    def die_in_the_second_pair() -> None:
        remember_disk()
        from driver import arm

        arm("os.replace", "before", "local-0/checkpoint.safetensors", 3)

    killed = command(tmp_path, *argv, setup=Setup(die_in_the_second_pair))
    assert killed.status == -9, killed.err
    lose_power(tmp_path)
    resumed = command(tmp_path, *argv, "--resume")
    assert resumed.status == 0, resumed.err
    assert_same(tmp_path / "run", expected)


@pytest.mark.in_turn
def test_killed_after_its_last_round_it_has_the_models_that_clients_kept(
    driver, tmp_path
):
    """The last round is looked at again, and what clients kept in it is not that of an attempt which was given up."""
    argv = (
        "compare",
        "heart-disease",
        "--methods",
        "local",
        "--rounds",
        "3",
        "--seeds",
        "1",
        "--no-report",
        "--out",
        "run",
    )
    assert driver(tmp_path, *argv).status == 0
    expected = contents(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    killed = rename("before", "local-0/done.json")
    assert driver(tmp_path, *argv, arm=killed).status == -9
    resumed = driver(tmp_path, *argv, "--resume")
    assert resumed.status == 0, resumed.err
    assert_same(tmp_path / "run", expected)
