"""The gate over real FLARE processes with mutual TLS: whatever FLARE registers, said by everybody who might, has one answer."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from coterie.cli.main import main
from coterie.sites import commands as site
from coterie.sites.flare import cell_gate, doors, people, trial
from coterie.sites.flare.doors import Cell
from coterie.sites.flare.trial import flare_words, try_gate
from coterie.sites.log import entries
from deployment import HOSPITALS, Deployment

VOICES = runpy.run_path(str(Path(__file__).parent / "kill_points" / "voices.py"))
pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

FEDAVG = '[[methods]]\nname = "fedavg"\n'
VICTIM, OTHER, SERVER = "hungary", "cleveland", "server"
STRANGER = "12345678-1234-4123-8123-123456789abc"
"""A well-formed name of a job that nobody has started."""
NUMBERS = itertools.count()


class Town:
    """A deployment whose processes say what a test wants."""

    def __init__(self, folder, gate):
        self.made = Deployment(folder / "d", methods=FEDAVG, rounds=100_000)
        self.voices, self.gate = folder / "voices", gate

    def start(self, *names, is_open=False):
        """Start the server or sites; `is_open`: their gate lets every message in."""
        arm = {"where": "voice", "file": str(self.voices), "open": is_open}
        for name in names:
            self.made.start(name, arm=arm, gate=self.gate)
            if name == "localhost":
                wait_for(self.made.listens)
        wait_for(
            lambda: all(
                self.made.joined(name) for name in names if name != "localhost"
            ),
            again=self.made.start_ended,
        )

    def say(self, speaker, messages, wait=120.0):
        """What a cell hears when it says these messages."""
        folder = self.voices / speaker
        wait_for((folder / "doors.json").exists)
        ask = folder / f"{next(NUMBERS):04}.ask"
        ask.with_suffix(".new").write_text(json.dumps(messages))
        ask.with_suffix(".new").replace(ask)
        wait_for(ask.with_suffix(".heard").exists, wait)
        return json.loads(ask.with_suffix(".heard").read_text())

    def doors(self, cell):
        """What FLARE has registered in a cell."""
        return json.loads((self.voices / cell / "doors.json").read_text())

    def refused(self, name):
        """Lines of a log about what the gate has refused."""
        file = "gate.jsonl" if name == "localhost" else "asks.jsonl"
        log = self.made.kits / name / "local" / file
        return [
            line
            for line in entries(log)
            if line.get("outcome") == "refused" and "calls" in line
        ]

    @property
    def workspace(self):
        """FLARE's workspace in the victim's kit."""
        kit = self.made.kits / VICTIM
        return kit / "flare" if self.gate else kit


def wait_for(condition, seconds=240.0, again=lambda: None):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        again()
        time.sleep(0.2)


@contextmanager
def town(folder, gate):
    made = Town(folder, gate)
    try:
        yield made
    finally:
        made.made.stop_all()


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """All four sites, and a job that runs long enough."""
    with town(tmp_path_factory.mktemp("gated"), True) as made:
        made.start("localhost", *HOSPITALS)
        with running(made):
            yield made


@contextmanager
def running(made):
    """A job that trains, as the process of `coterie submit`."""
    submit = made.made.coterie(
        "submit", made.made.plan, "--out", "run", "--no-report", background=True
    )
    try:
        wait_for(lambda: job_cells(made, VICTIM) and job_cells(made, SERVER))
        made.job = job_cells(made, VICTIM)[0].rpartition(".")[2]
        log = made.made.kits / VICTIM / "local" / "asks.jsonl"
        wait_for(lambda: log.exists() and "tasks:local_update" in log.read_text())
        yield submit
    finally:
        submit.kill()
        submit.communicate()


def job_cells(made, root):
    return [
        path.name
        for path in made.voices.glob(f"{root}.*")
        if (path / "doors.json").exists()
    ]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A server, two sites and FLARE's own doors."""
    folder = tmp_path_factory.mktemp("bare")
    with town(folder, False) as made:
        made.start("localhost", VICTIM, OTHER)
        yield made


# ---- attacks


def shell(command, to=VICTIM, topic="admin", **more):
    """The server's agent runs a command at a site; nothing but its sender asks for authorisation."""
    return {
        "to": to,
        "channel": "admin",
        "topic": topic,
        "inside": {"topic": "sys.shell", "body": command},
        **more,
    }


def read_data(made):
    kit = made.made.kits / VICTIM
    return [
        f"head -n 3 {made.made.folder / 'hospitals' / 'hungary.csv'}",
        f"head -n 2 {kit / 'startup' / 'client.key'}",
    ]


def delete(name):
    inside = {"topic": "train.delete_run", "headers": {"job_id": name}}
    return {"to": VICTIM, "channel": "admin", "topic": "admin", "inside": inside}


def forged(message):
    """The same, as a dishonest server passes it off as another site's: the reply would go there."""
    return {**message, "headers": {"cn__origin": OTHER}, "wait": 1.0}


def attacks(made):
    """Messages to a site, by name: each is harmful."""
    commands = read_data(made)
    told = {"to": VICTIM, "channel": "_net_manager", "payload": None}
    return {
        "shell": shell(commands[0]),
        "key": shell(commands[1]),
        "shell under a harmless topic": shell(
            commands[0], topic="scheduler.check_resource"
        ),
        "peers": {**told, "topic": "peers"},
        "processes": {**told, "topic": "process_info"},
        "speed": {
            **told,
            "topic": "speed",
            "payload": {
                "test_name": "start",
                "to": SERVER,
                "num_rounds": 1,
                "size": 1000,
            },
        },
        "delete local": delete("local"),
        "delete coterie": delete("coterie"),
    }


def is_refused(heard):
    return heard[:2] == ["authentication_error", "closed"]


@pytest.mark.parametrize("speaker", [SERVER, OTHER])
def test_without_the_gate_server_and_other_site_read_rows_and_key_and_what_runs(
    bare, speaker
):
    """The attacks of this file work where nothing stops them: else no test below would show anything. The server's own process is
    honest here: it only routes what the other site says.
    """
    named = {
        name: message
        for name, message in attacks(bare).items()
        if not name.startswith("delete")
    }
    heard = dict(zip(named, bare.say(speaker, list(named.values())), strict=True))
    rows = (bare.made.folder / "hospitals" / "hungary.csv").read_text().splitlines()[:3]
    assert heard["shell"][2].splitlines() == rows
    assert "PRIVATE KEY" in heard["key"][2]
    assert heard["shell under a harmless topic"] == heard["shell"]
    assert heard["peers"][2] == "['server']"
    assert "Process ID" in heard["processes"][2]
    assert heard["speed"][0] == "ok"


def test_without_the_gate_any_user_of_the_machine_reads_rows(bare):
    name = f"{VICTIM}.mallory"
    heard = knock(listener(bare), name, shell_frame(name, read_data(bare)[0]))
    assert (bare.made.folder / "hospitals" / "hungary.csv").read_bytes().splitlines()[
        1
    ] in heard


def test_without_the_gate_another_site_deletes_what_lies_in_the_workspace(bare):
    place = bare.made.kits / VICTIM / "site"
    place.mkdir()
    (place / "data.csv").write_text("rows")
    bare.say(OTHER, [delete("site")])
    assert not place.exists()


def test_without_the_gate_one_malformed_bulk_message_ends_a_thread_of_the_site(bare):
    bare.say(
        OTHER,
        [
            {
                "to": VICTIM,
                "channel": "cellnet.channel",
                "topic": "bulk",
                "payload": [1, 2],
                "wait": 1.0,
            }
        ],
    )
    wait_for(lambda: "_process_one_bulk" in bare.made.log(VICTIM), 30)


def to_the_job(made, command):
    """A command to the job at the server, which looks at no sender."""
    return {
        "to": f"{SERVER}.{made.job}",
        "channel": "server_command",
        "topic": command,
        "command": True,
        "wait": 60.0,
    }


QUESTIONS = ("get_run_info", "show_stats", "get_errors")


@pytest.mark.in_turn
def test_without_the_check_of_the_gate_a_site_reads_of_the_run_and_ends_it(tmp_path):
    """The server's gate is there and lets every message in."""
    with town(tmp_path, True) as made:
        made.start("localhost", is_open=True)
        made.start(*HOSPITALS)
        with running(made) as submit:
            messages = [to_the_job(made, command) for command in QUESTIONS]
            answers = made.say(OTHER, messages)
            assert [answer[0] for answer in answers] == ["ok"] * len(QUESTIONS)
            (aborted,) = made.say(OTHER, [to_the_job(made, "abort")])
            # The job may end before its answer has left.
            assert aborted in (["ok", "", "Aborted the run"], [])
            said = submit.communicate(timeout=240)[1]
            assert submit.returncode == 1, said
            assert "--resume" in said


@pytest.mark.promise("closed doors")
def test_with_it_no_site_and_no_job_of_another_site_commands_the_job(gated):
    """That the run goes on is seen by the last test of this file."""
    for speaker in (OTHER, f"{OTHER}.{gated.job}"):
        messages = [to_the_job(gated, name) for name in (*QUESTIONS, "abort")]
        heard = gated.say(speaker, messages)
        assert [is_refused(answer) for answer in heard] == [True] * len(messages)


@pytest.mark.promise("closed doors")
def test_with_it_a_site_that_reports_a_failure_ends_its_own_part_alone(gated):
    """FLARE's server takes the report, and ended the run of all. That the run goes on is seen by the last test of this file."""
    from nvflare.fuel.common.exit_codes import ProcessExitCode
    from nvflare.private.defs import JobFailureMsgKey

    reports = [
        {
            "to": SERVER,
            "channel": "task",
            "topic": "report_job_failure",
            "payload": {
                JobFailureMsgKey.JOB_ID: gated.job,
                JobFailureMsgKey.CODE: code,
                JobFailureMsgKey.REASON: "so",
            },
        }
        for code in (ProcessExitCode.EXCEPTION, ProcessExitCode.UNSAFE_COMPONENT)
    ]
    assert [answer[0] for answer in gated.say(OTHER, reports)] == ["ok", "ok"]
    said = gated.made.coterie("status", gated.made.plan).stdout
    assert "fedavg, seed 0, round" in said, said


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("speaker", [SERVER, OTHER])
def test_with_it_none_of_them_has_an_answer_but_that_it_is_closed(gated, speaker):
    bulk = {
        "to": VICTIM,
        "channel": "cellnet.channel",
        "topic": "bulk",
        "payload": [1, 2],
    }
    named = {**attacks(gated), "bulk": bulk}
    heard = dict(zip(named, gated.say(speaker, list(named.values())), strict=True))
    assert {
        name: answer for name, answer in heard.items() if not is_refused(answer)
    } == {}
    where, caller = (VICTIM, "localhost") if speaker == SERVER else ("localhost", OTHER)
    wait_for(lambda: any(line["caller"] == caller for line in gated.refused(where)))
    assert all(len(line["refused"]) <= 200 for line in gated.refused(where))


@pytest.mark.promise("closed doors")
def test_a_site_believes_no_origin_that_the_server_makes_up(gated):
    """The reply to a forged message goes to whom it was forged of; so there is silence here, and a count at the site."""
    before = sum(line["calls"] for line in gated.refused(VICTIM))
    heard = gated.say(SERVER, [forged(message) for message in attacks(gated).values()])
    assert heard == [[]] * len(heard)
    wait_for(
        lambda: (
            sum(line["calls"] for line in gated.refused(VICTIM)) >= before + len(heard)
        ),
        100,
    )


@pytest.mark.promise("closed doors")
def test_nothing_of_the_site_lies_in_the_workspace_of_flare(gated):
    kit = gated.made.kits / VICTIM
    below = {
        path.name
        for path in gated.workspace.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    assert not below & {
        "coterie.toml",
        "approved.toml",
        "plan.toml",
        "asks.jsonl",
        "key",
        "client.key",
    }
    assert (kit / "local" / "coterie.toml").is_file()
    private = [
        kit,
        kit / "startup" / "client.key",
        kit / "local" / "asks.jsonl",
        *(kit / "coterie").rglob("*"),
    ]
    assert not [path for path in private if path.stat().st_mode & 0o077]


# ---- a user of the machine


def listener(made):
    """The port on which the victim waits for its own jobs."""
    return int(
        re.search(
            r"hungary: created backbone internal listener for tcp://[\w.]+:(\d+)",
            made.made.log(VICTIM),
        )[1]
    )


def frame(kind, headers, payload):
    import msgpack

    head = msgpack.packb(headers) if headers else b""
    length = 16 + len(head) + len(payload)
    return (
        struct.pack(">IHBBHHHH", length, len(head), kind, 0, 0, 1, 0, 0)
        + head
        + payload
    )


def shell_frame(name, command, origin=None):
    from nvflare.fuel.f3.cellnet.utils import encode_payload
    from nvflare.fuel.f3.message import Message as CellMessage
    from nvflare.private.admin_defs import Message

    message = CellMessage({}, Message(topic="sys.shell", body=command))
    encode_payload(message)
    names = {
        "origin": origin or name,
        "destination": VICTIM,
        "from": name,
        "to": VICTIM,
        "msg_type": "req",
    }
    names |= {
        "channel": "admin",
        "topic": "admin",
        "req_id": "1",
        "reply_expected": True,
    }
    headers = {
        **message.headers,
        **{f"cn__{key}": value for key, value in names.items()},
    }
    payload = message.payload
    return frame(
        1,
        headers,
        payload
        if isinstance(payload, bytes | bytearray)
        else b"".join(map(bytes, payload)),
    )


def knock(port, name, said, proof=None):
    """What a process of this machine hears on FLARE's internal port: nothing if it is hung up on, None in silence."""
    import msgpack

    hello = {
        "endpoint_name": name,
        "timestamp": 0.0,
        "fqcn": name,
        **({"coterie_gate": proof} if proof else {}),
    }
    heard = b""
    with socket.create_connection(("localhost", port), timeout=3) as plain:
        try:
            plain.sendall(frame(4, None, msgpack.packb(hello)))
            time.sleep(0.5)
            plain.sendall(said)
            while piece := plain.recv(1 << 16):
                heard += piece
        except ConnectionError:
            return heard
        except TimeoutError:
            return heard or None
    return heard


@pytest.mark.promise("closed doors")
def test_no_user_of_the_machine_is_taken_for_a_job_or_the_server(gated):
    port = listener(gated)
    command = read_data(gated)[0]
    for name in (
        f"{VICTIM}.mallory",
        "mallory",
        SERVER,
        OTHER,
        f"{VICTIM}.{STRANGER}",
        f"{VICTIM}.{gated.job}",
    ):
        for proof in (None, {"number": "1", "proof": "0" * 64}):
            assert knock(port, name, shell_frame(name, command), proof) == b"", name
    assert knock(port, "mallory", shell_frame("mallory", command, origin=SERVER)) == b""
    wait_for(
        lambda: any(line["caller"] == "this machine" for line in gated.refused(VICTIM))
    )


# ---- every channel and topic


def every_door(registered):
    """(channel, topic) as registered, each topic where a channel takes any, and each channel that FLARE names anywhere."""
    topics, channels = flare_words()
    found = {(channel, topic) for channel, topic in registered if topic != "*"}
    wild = {channel for channel, topic in registered if topic == "*"}
    return sorted(
        found
        | set(itertools.product(wild, topics))
        | {(channel, "made up") for channel in channels}
    )


SPEAKERS = {
    "the server to a site": (SERVER, VICTIM, Cell.SERVER),
    "the server to a job at a site": (SERVER, f"{VICTIM}.JOB", Cell.SERVER),
    "a job's server to its site": (f"{SERVER}.JOB", f"{VICTIM}.JOB", Cell.SERVER_JOB),
    "a job's server to a site": (f"{SERVER}.JOB", VICTIM, Cell.SERVER_JOB),
    "a job to its own site": (f"{VICTIM}.JOB", VICTIM, Cell.SITE_JOB),
    "a site to its own job": (VICTIM, f"{VICTIM}.JOB", Cell.SITE),
    "another site to a site": (OTHER, VICTIM, None),
    "another site's job to a site": (f"{OTHER}.JOB", VICTIM, None),
    "another site's job to a job": (f"{OTHER}.JOB", f"{VICTIM}.JOB", None),
    "a site to the server": (OTHER, SERVER, Cell.SITE),
    "a site's job to the server": (f"{OTHER}.JOB", SERVER, Cell.SITE_JOB),
    "a site to the server's job": (OTHER, f"{SERVER}.JOB", Cell.SITE),
    "a site's job to the server's job": (
        f"{OTHER}.JOB",
        f"{SERVER}.JOB",
        Cell.SITE_JOB,
    ),
}
"""Who speaks to whom, and as what its receiver takes it; None: as nobody whom it listens to."""


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("who", SPEAKERS)
def test_every_channel_and_topic_that_flare_registers_is_closed_but_for_the_list(
    gated, who
):
    speaker, receiver, author = SPEAKERS[who]
    speaker, receiver = (name.replace("JOB", gated.job) for name in (speaker, receiver))
    kind, _ = doors.kind_of(receiver)
    is_open = doors.REQUESTS.get((kind, author), frozenset())
    tried = [
        door
        for door in every_door(gated.doors(receiver)["requests"])
        if door[0] != doors.STREAM and not listed(door, is_open)
    ]
    assert len(tried) > 200
    heard = gated.say(
        speaker,
        [{"to": receiver, "channel": c, "topic": t, "payload": {}} for c, t in tried],
        400.0,
    )
    opened = {
        door: answer
        for door, answer in zip(tried, heard, strict=True)
        if not is_refused(answer)
    }
    assert not opened


def listed(door, is_open):
    return door in is_open or (door[0], "*") in is_open


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("who", SPEAKERS)
def test_what_streams_may_carry_is_listed_too(gated, who):
    """A stream is answered by a stream; whether one was taken is seen in its refusals: all are counted."""
    speaker, receiver, author = SPEAKERS[who]
    speaker, receiver = (name.replace("JOB", gated.job) for name in (speaker, receiver))
    kind, _ = doors.kind_of(receiver)
    is_open = doors.STREAMS.get((kind, author), frozenset())
    tried = [
        door
        for door in every_door(gated.doors(receiver)["streams"])
        if not listed(door, is_open)
    ]
    tried = [(channel, topic) for channel, topic in tried if channel != "return_only"]
    messages = [
        {
            "to": receiver,
            "channel": doors.STREAM,
            "topic": doors.DATA,
            "payload": None,
            "headers": {
                "sm__ch": channel,
                "sm__tp": topic,
                "sm__id": n,
                "sm__sq": 0,
                "sm__dt": 2,
                "sm__sz": 0,
            },
        }
        for n, (channel, topic) in enumerate(tried, start=10**9)
    ]
    heard = gated.say(speaker, messages, 400.0)
    opened = {
        door: answer
        for door, answer in zip(tried, heard, strict=True)
        if not is_refused(answer)
    }
    assert not opened


@pytest.mark.promise("closed doors")
def test_the_agent_of_a_site_takes_five_orders_of_the_server_and_one_of_its_job(gated):
    """The topic inside counts: FLARE's agent obeys this one, under whatever header it comes."""
    topics = {*gated.doors(VICTIM)["agent"], *flare_words()[0], "made up"}
    for speaker, allowed in (
        (SERVER, doors.FROM_SERVER),
        (f"{VICTIM}.{gated.job}", {doors.NOTIFY}),
    ):
        closed = sorted(topics - allowed)
        outer = "admin" if speaker == SERVER else doors.NOTIFY
        messages = [
            shell("ls", topic=outer)
            | {"inside": {"topic": t, "headers": {"job_id": gated.job}}}
            for t in closed
        ]
        heard = gated.say(speaker, messages, 400.0)
        assert not {
            t: answer
            for t, answer in zip(closed, heard, strict=True)
            if not is_refused(answer)
        }


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize(
    "name", ["local", "../local", "coterie", "..", "", f"{STRANGER}/../../local"]
)
def test_a_job_has_the_name_that_flare_makes_and_leads_nowhere(gated, name):
    """FLARE joins a job's name to the path of its workspace, and removes what is there before it unpacks the job."""
    inside = {
        "topic": "train.deploy",
        "headers": {"job_id": name, "job_meta": {"name": "x"}, "app_name": "app"},
    }
    heard = gated.say(
        SERVER, [{"to": VICTIM, "channel": "admin", "topic": "admin", "inside": inside}]
    )
    assert is_refused(heard[0])


FORGED = {
    "origin of another": {"cn__origin": OTHER},
    "sender of another": {"cn__from": OTHER},
    "encrypted": {"cn__secure": True, "cn__encrypted": True},
    "a connection": {"cn__conn_url": "tcp://localhost:1"},
    "no text": {"cn__topic": 7},
    "no kind": {"cn__msg_type": "gossip"},
}


@pytest.mark.parametrize("forged", FORGED)
def test_headers_that_no_job_has_are_refused_and_end_nothing(gated, forged):
    inside = {"topic": "scheduler.check_resource", "headers": {"job_id": gated.job}}
    message = {
        "to": VICTIM,
        "channel": "admin",
        "topic": "admin",
        "inside": inside,
        "wait": 1.0,
    }
    heard = gated.say(SERVER, [{**message, "headers": FORGED[forged]}])[0]
    assert heard == [] or is_refused(heard)
    assert not is_refused(gated.say(SERVER, [message])[0])


# ---- people


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize(
    ("who", "role"),
    [("operator", "lead"), ("guard", "org_admin"), ("keeper", "project_admin")],
)
def test_each_person_gives_the_commands_of_a_role_and_no_others(gated, who, role):
    """FLARE lets anybody who has logged in ask cells for their peers, and send messages of any size between them."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    name = f"{who}@coterie.org"
    closed = [
        command
        for command in gated.doors(SERVER)["commands"]
        if not people.is_open(role, command)
    ]
    assert {
        "peers",
        "speed",
        "cat",
        "shutdown" if who != "keeper" else "submit_job",
    } <= set(closed)
    session = new_secure_session(name, str(gated.made.kits / name), timeout=15.0)
    try:
        heard = {
            command: str(session.api.server_execute(f"{command} {VICTIM} {SERVER}"))
            for command in closed
        }
    finally:
        session.close()
    assert {
        command: answer
        for command, answer in heard.items()
        if "not authorized" not in answer
    } == {}


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize(
    ("who", "receiver"),
    [
        (who, receiver)
        for who in ("operator", "guard", "keeper")
        for receiver in (SERVER, f"{SERVER}.JOB", VICTIM, f"{VICTIM}.JOB")
    ],
)
def test_a_persons_cell_opens_no_channel_but_those_of_commands(gated, who, receiver):
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    receiver = receiver.replace("JOB", gated.job)
    kind, _ = doors.kind_of(receiver)
    is_open = doors.REQUESTS.get((kind, Cell.ADMIN), frozenset())
    tried = [
        door
        for door in every_door(gated.doors(receiver)["requests"])
        if door[0] != doors.STREAM and not listed(door, is_open)
    ]
    assert len(tried) > 200
    name = f"{who}@coterie.org"
    session = new_secure_session(name, str(gated.made.kits / name), timeout=15.0)

    def answer(door):
        cell = session.api.cell.core_cell
        channel, topic = door
        return VOICES["say"](cell, receiver, channel, topic, payload={})

    try:
        with ThreadPoolExecutor(16) as threads:
            heard = list(threads.map(answer, tried))
    finally:
        session.close()
    opened = {
        door: said
        for door, said in zip(tried, heard, strict=True)
        if not is_refused(said)
    }
    assert not opened


# ---- the gate itself


FAILING = """
from types import SimpleNamespace
from coterie.sites.flare import cell_gate
from coterie.sites.flare.refusals import Refusals
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
gate = cell_gate.CellGate(Refusals(__import__("pathlib").Path("log")), "server")
gate.verdict = lambda *_: 1 / 0
cell_gate.install(gate)
CoreCell.process_message(SimpleNamespace(), None, None, 1, SimpleNamespace(headers={}))
"""


@pytest.mark.promise("closed doors")
def test_a_gate_that_fails_ends_its_process(tmp_path):
    """FLARE swallows what is raised where messages come in, and would take the next one."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == cell_gate.GATE_FAILED, done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.promise("closed doors")
def test_the_trial_finds_the_shell_where_the_gate_is_off():
    """What `coterie attack` and `coterie site check` try is an attack: without the check it reads a file of the site."""
    closed, opened = try_gate(), try_gate(gate=False)
    assert not closed.read
    assert not closed.opened
    assert opened.read
    assert len(opened.opened) > closed.tried / 2
    assert "OPEN: files of this site are read" in opened.line


@pytest.mark.in_turn
def test_the_red_team_tries_the_gate_and_finds_the_shell_where_it_is_off(
    gated, monkeypatch, capsys
):
    monkeypatch.setattr(
        site, "_danger", lambda *_: (["danger"], 0)
    )  # that of answers, which has tests of its own
    arguments = ["attack", str(gated.made.kits / VICTIM)]
    assert main(arguments) == 0
    assert re.search("gate +closed: [0-9]+ messages", capsys.readouterr().out)
    monkeypatch.setattr(trial, "try_gate", lambda: try_gate(gate=False))
    assert main(arguments) == 0
    assert "gate      OPEN: files of this site are read" in capsys.readouterr().out


# ---- at the end, with the job still running


def test_the_job_has_seen_nothing_of_all_this(gated):
    said = gated.made.coterie("status", gated.made.plan).stdout
    assert re.search(r"fedavg, seed 0, round [1-9]", said), said
    assert all(
        re.search(rf"{name} +connected.*, gate closed [1-9][0-9]*;", said)
        for name in HOSPITALS
    ), said
