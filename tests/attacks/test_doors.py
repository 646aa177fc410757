"""What FLARE's cells may take, as laws over every receiver, sender and header: the tests over real processes are in `test_gate`."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from coterie.base.errors import InputError
from coterie.sites.flare.doors import (
    ACK,
    ADMIN_CHANNEL,
    DATA,
    ERROR,
    FROM_SERVER,
    NOTIFY,
    REQUESTS,
    STREAM,
    STREAMS,
    Cell,
    Letter,
    Peer,
    count_doors,
    kind_of,
    objection,
    why_not_inside,
)
from coterie.sites.flare.people import BY_ROLE, EVERYBODY, is_open
from coterie.sites.flare.refusals import LONGEST, MINUTE, Refusals
from coterie.sites.flare.workspace import (
    check_place,
    for_owner_only,
    kit_of,
    make_workspace,
    tighten,
)

JOB, OLD = (
    "12345678-1234-4123-8123-123456789abc",
    "22345678-1234-4123-8123-123456789abc",
)
CELLS = [
    "cleveland",
    f"cleveland.{JOB}",
    *(
        f"{root}{job}"
        for root in ("server", "hungary")
        for job in ("", f".{JOB}", f".{OLD}")
    ),
]
DOORS = sorted(
    {door for doors in REQUESTS.values() for door in doors}
    | {("_net_manager", "speed"), ("cellnet.channel", "bulk")}
)
CARRIED = [
    ("collab", "call"),
    ("return_only", "collab:call"),
    ("server_command", "get_task"),
    ("server_command", "abort"),
]


@cache
def letters():
    """Every message between cells by name, over every channel that a list knows, and some streams."""
    found = []
    for origin, destination in itertools.product(CELLS, CELLS):
        plain = Letter(origin, destination, origin, "req", "", "", ("", ""))
        found += [
            replace(plain, channel=channel, topic=topic.replace("*", "x"))
            for channel, topic in DOORS
        ]
        streams = itertools.product([*CARRIED, ("admin", "admin")], (DATA, ACK, ERROR))
        found += [
            replace(plain, channel=STREAM, topic=topic, stream=inner)
            for inner, topic in streams
        ]
    return found


def peers(me):
    """Whoever may be at the other end of a connection of a cell."""
    for cell in CELLS:
        kind, _ = kind_of(cell)
        if cell != me and kind is not None:
            yield Peer(
                kind, cell, own=me.startswith(f"{cell}.") or cell.startswith(f"{me}.")
            )


def started(job):
    return job == JOB


@cache
def taken(me):
    """(peer, letter) that a cell takes."""
    found = []
    for peer, letter in itertools.product(peers(me), letters()):
        sent = (
            letter
            if letter.carrier == peer.cell
            else replace(letter, carrier=peer.cell)
        )
        if not objection(me, peer, sent, started):
            found.append((peer, sent))
    return found


@pytest.mark.promise("closed doors")
def test_a_site_takes_nothing_that_another_site_has_written_or_sent():
    for peer, letter in itertools.chain(taken("hungary"), taken(f"hungary.{JOB}")):
        assert "cleveland" not in peer.cell + letter.origin + letter.destination, (
            peer,
            letter,
        )


PERSON = "_admin_12345678-1234-4123-8123-123456789abc"
"""The name that FLARE makes for the cell of whoever logs in."""


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("me", CELLS)
def test_a_person_reaches_the_server_alone_and_there_what_its_list_has(me):
    requests = REQUESTS[Cell.SERVER, Cell.ADMIN]
    streams = STREAMS[Cell.SERVER, Cell.ADMIN]
    tried = [replace(letter, carrier=PERSON) for letter in letters()]
    for to in CELLS:
        plain = Letter(PERSON, to, PERSON, "req", "", "", ("", ""))
        doors = itertools.chain(DOORS, requests)
        tried += [replace(plain, channel=c, topic=t) for c, t in doors]
        carried = itertools.product(
            [*CARRIED, *DOORS, *streams], (DATA, ACK, ERROR, "made up")
        )
        tried += [
            replace(plain, channel=STREAM, topic=topic, stream=inner)
            for inner, topic in carried
        ]
    for letter in tried:
        if objection(me, Peer(Cell.ADMIN, PERSON), letter, started):
            continue
        assert (me, letter.origin, letter.destination) == ("server", PERSON, "server")
        if letter.channel == STREAM:
            assert letter.topic in (ACK, ERROR) or letter.stream in streams, letter
        else:
            assert (letter.channel, letter.topic) in requests, letter


def test_a_cell_takes_what_its_list_has_and_forwards_for_its_own_job_alone():
    for me in ("hungary", f"hungary.{JOB}", "server", f"server.{JOB}"):
        receiver, _ = kind_of(me)
        for _, letter in taken(me):
            author, job = kind_of(letter.origin)
            if letter.destination == me:
                door = (letter.channel, letter.topic)
                known = {
                    *REQUESTS.get((receiver, author), ()),
                    *(
                        (c, "x")
                        for c, t in REQUESTS.get((receiver, author), ())
                        if t == "*"
                    ),
                }
                assert door in known or (
                    letter.channel == STREAM and (receiver, author) in STREAMS
                ), letter
            else:
                assert letter.channel == STREAM, letter
                assert kind_of(letter.destination)[1] == JOB, letter
                assert job in (JOB, ""), letter
                assert {"server"} < {
                    letter.origin.partition(".")[0],
                    letter.destination.partition(".")[0],
                }, letter


def test_a_job_listens_to_its_own_job_alone():
    for _, letter in taken(f"hungary.{JOB}"):
        assert OLD not in letter.origin, letter
    for _, letter in taken(f"server.{JOB}"):
        assert OLD not in letter.origin, letter


def test_what_was_seen_of_an_honest_job_passes():
    server, job = (
        Peer(Cell.SERVER, "server"),
        Peer(Cell.SITE_JOB, f"hungary.{JOB}", own=True),
    )
    order = Letter(
        "server", "hungary", "server", "req", ADMIN_CHANNEL, "admin", ("", "")
    )
    call = Letter(
        f"server.{JOB}",
        f"hungary.{JOB}",
        "server",
        "req",
        STREAM,
        DATA,
        ("collab", "call"),
    )
    told = Letter(
        f"hungary.{JOB}",
        "hungary",
        f"hungary.{JOB}",
        "req",
        ADMIN_CHANNEL,
        NOTIFY,
        ("", ""),
    )
    answer = Letter(
        f"hungary.{JOB}",
        f"server.{JOB}",
        f"hungary.{JOB}",
        "req",
        STREAM,
        DATA,
        ("return_only", "collab:call"),
    )
    through_its_site = Letter(
        *(
            getattr(answer, n) if n != "carrier" else "hungary"
            for n in Letter.__dataclass_fields__
        )
    )
    assert objection("hungary", server, order, started) == ""
    assert objection(f"hungary.{JOB}", server, call, started) == ""
    assert objection("hungary", server, call, started) == ""
    assert objection("hungary", job, told, started) == ""
    assert objection("hungary", job, answer, started) == ""
    assert (
        objection("server", Peer(Cell.SITE_JOB, f"hungary.{JOB}"), answer, started)
        == ""
    )
    assert (
        objection("server", Peer(Cell.SITE, "hungary"), through_its_site, started) == ""
    )
    assert (
        objection("server", Peer(Cell.SITE, "cleveland"), through_its_site, started)
        != ""
    )


def test_the_order_inside_is_one_of_five_about_a_job_with_a_name_that_leads_nowhere():
    for topic in FROM_SERVER:
        assert why_not_inside(topic, JOB, "") == ""
    for topic in ("sys.shell", "train.delete_run", "train.shutdown", NOTIFY, None, 7):
        assert why_not_inside(topic, JOB, "") != ""
    for name in ("local", "..", f"../{JOB}", f"{JOB}/..", JOB.upper(), "", None, 7):
        assert why_not_inside("train.deploy", name, "") != ""
    assert why_not_inside(NOTIFY, JOB, JOB) == ""
    assert why_not_inside(NOTIFY, OLD, JOB) != ""
    assert why_not_inside("train.abort", JOB, JOB) != ""


def test_closed_doors_are_counted_but_for_those_on_a_list():
    assert (
        count_doors(
            Cell.SITE_JOB,
            ["client_command:*", "_net_manager:speed", f"{STREAM}:{DATA}"],
            ["collab:call"],
        )
        == 1
    )
    assert (
        count_doors(Cell.SITE, ["admin:*", "aux_communication:*"], ["return_only:*"])
        == 2
    )


@pytest.mark.promise("rights of three kits")
def test_no_person_may_command_what_is_another_persons():
    commands = {
        *EVERYBODY,
        *itertools.chain(*BY_ROLE.values()),
        "cat",
        "peers",
        "sys_info",
    }
    for role in (*BY_ROLE, "member", ""):
        allowed = {command for command in commands if is_open(role, command)}
        assert allowed == EVERYBODY | BY_ROLE.get(role, frozenset())
    assert not any(
        one & other for one, other in itertools.combinations(BY_ROLE.values(), 2)
    )


# ---- refusals


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.promise("closed doors")
def test_refusals_are_one_line_a_minute_and_sender_and_every_one_is_counted(tmp_path):
    log, waited = tmp_path / "log", []
    refusals = Refusals(log, waited.append)
    for number in range(500):
        refusals.note("ab"[number % 2], "admin\nsys.shell", "\x1b[2J" + "x" * 1000)
    for _ in range(
        100
    ):  # the thread that waits for the next minute has written what was left
        refusals.flush()
    assert waited[0] == MINUTE
    assert refusals.total == 500
    assert sum(line["calls"] for line in lines(log)) == 500
    assert len(lines(log)) <= 2 + 2 * (len(waited) + 1)
    assert all(
        line["refused"].startswith("\\x1b[2J") and len(line["refused"]) < 210
        for line in lines(log)
    )


ENDING = """
import os, signal, sys
from pathlib import Path
from coterie.sites.flare.refusals import Refusals, flush_at_the_end
refusals = Refusals(Path(sys.argv[1]))
flush_at_the_end(refusals)
for number in range(50):
    refusals.note("a", "admin", "closed")
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[2] == "leaves":
    os._exit(3)
sys.exit(3)
"""


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize(
    ("how", "status"), [("ends", 3), ("leaves", 3), ("killed", -signal.SIGTERM)]
)
def test_what_was_refused_in_the_last_minute_is_written_at_the_end(
    tmp_path, how, status
):
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", ENDING, str(log), how], check=False)
    assert done.returncode == status
    assert sum(line["calls"] for line in lines(log)) == 50


def test_a_refusal_is_short_whatever_its_characters(tmp_path):
    refusals = Refusals(tmp_path / "log")
    refusals.note("\x1b" * 300, "\U000e0001" * 300, "\x00" * 300)
    (line,) = lines(tmp_path / "log")
    assert all(len(line[name]) == LONGEST for name in ("caller", "what", "refused"))


def test_a_log_that_cannot_be_written_opens_and_ends_nothing(tmp_path, capsys):
    refusals = Refusals(tmp_path)  # a folder
    refusals.note("a", "admin", "why")
    assert refusals.total == 1
    assert "cannot be written" in capsys.readouterr().err


# ---- where FLARE works


@pytest.fixture
def kit(tmp_path):
    for name in (
        "startup/client.key",
        "startup/fed_client.json",
        "local/resources.json",
        "local/coterie.toml",
        "local/data.csv",
    ):
        path = tmp_path / "kit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "kit"


@pytest.mark.promise("an audit")
def test_what_flare_may_delete_is_nothing_of_the_site(kit):
    """`delete_run NAME` removes any folder of the workspace."""
    workspace = make_workspace(kit)
    (workspace / JOB).mkdir()
    before = {
        path: path.read_text()
        for path in kit.rglob("*")
        if path.is_file() and not path.is_relative_to(workspace)
    }
    for folder in list(workspace.iterdir()):
        shutil.rmtree(folder)
    assert {path: path.read_text() for path in before} == before
    assert make_workspace(kit) == workspace
    assert {path.name for path in (workspace / "startup").iterdir()} == {
        "client.key",
        "fed_client.json",
    }
    assert {path.name for path in (workspace / "local").iterdir()} == {"resources.json"}
    assert kit_of(workspace) == kit.resolve()


def test_a_copied_kit_works_in_its_own_folder(kit, tmp_path):
    make_workspace(kit)
    shutil.copytree(kit, tmp_path / "copy")
    workspace = make_workspace(tmp_path / "copy")
    assert (workspace / "startup" / "client.key").resolve() == (
        tmp_path / "copy" / "startup" / "client.key"
    ).resolve()


@pytest.mark.parametrize("name", ["flare/data.csv", "local/../flare/x/data.csv"])
def test_a_file_of_the_site_in_the_workspace_is_refused(kit, name):
    check_place(kit, kit / "local" / "data.csv", "data")
    with pytest.raises(
        InputError, match="where FLARE unpacks and deletes jobs; move it"
    ):
        check_place(kit, kit / name, "data")


def test_files_are_their_owners_and_those_that_are_not_are_tightened(kit, tmp_path):
    assert tighten(kit) > 0
    assert tighten(kit) == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in kit.rglob("*"))
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    (kit / "link").symlink_to(outside)
    tighten(kit)
    assert outside.stat().st_mode & 0o077
    with for_owner_only():
        (kit / "new").write_text("")
    (kit / "other").write_text("")
    assert (kit / "new").stat().st_mode & 0o077 == 0
    assert (kit / "other").stat().st_mode & 0o077


def test_the_page_lists_every_door_that_is_open_and_no_other():
    page = Path(__file__).parents[2] / "docs" / "deploy.md"
    listed = set()
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] in {*Cell} and cells[1] in {*Cell}:
            doors = re.findall(r"`(\S+) (\S+)`", cells[2])
            listed |= {(cells[0], cells[1], *door) for door in doors}
    opened = {
        (receiver, author, *door)
        for table in (REQUESTS, STREAMS)
        for (receiver, author), doors in table.items()
        for door in doors
    }
    assert listed == opened
