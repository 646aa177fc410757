"""The gate without a network: whatever a peer writes ends no process, and no order comes between another and its end."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from coterie.base.errors import InputError
from coterie.sites.flare import start
from coterie.sites.flare.cell_gate import (
    CLOSED,
    GATE_FAILED,
    LONGEST_GREETING,
    SECRET,
    CellGate,
)
from coterie.sites.flare.doors import (
    DATA,
    DEPLOY,
    FROM_SERVER,
    NOTIFY,
    START,
    STREAM,
)
from coterie.sites.flare.kits import add_gate
from coterie.sites.flare.refusals import Refusals

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

JOB = "12345678-1234-4123-8123-123456789abc"
SITE, SERVER_NAME = "hungary", "localhost"


class Connection:
    """A connection as FLARE's drivers make it; inside a machine it has no certificates."""

    def __init__(self, common_name=SERVER_NAME, secure=True):
        self.secure = secure
        self.common_name = common_name

    def get_conn_properties(self):
        return {"peer_cn": self.common_name}


def cell(name):
    return SimpleNamespace(my_info=SimpleNamespace(fqcn=name), waiters={})


@pytest.fixture
def gate(tmp_path):
    return CellGate(Refusals(tmp_path / "log"), SERVER_NAME)


def order(topic, job=JOB, **headers):
    """An order of the server to the site's agent, as FLARE encodes it."""
    from nvflare.fuel.f3.cellnet.utils import encode_payload
    from nvflare.fuel.f3.message import Message as CellMessage
    from nvflare.private.admin_defs import Message

    inside = Message(topic=topic, body="")
    inside.set_header("job_id", job)
    message = CellMessage({}, inside)
    encode_payload(message)
    if isinstance(message.payload, list):
        message.payload = b"".join(map(bytes, message.payload))
    names = {
        "origin": "server",
        "destination": SITE,
        "from": "server",
        "msg_type": "req",
        "channel": "admin",
        "topic": "admin",
        "req_id": "1",
        "route": [["server", 1.0]],
        **headers,
    }
    message.add_headers({f"cn__{name}": value for name, value in names.items()})
    return message


def verdict(gate, message, peer="server"):
    return gate.verdict(cell(SITE), SimpleNamespace(name=peer), Connection(), message)[
        0
    ]


ODD = [
    None,
    True,
    7,
    -0.5,
    b"bytes",
    "",
    "server",
    "\x00\u2028",
    [],
    ["server", 1.0],
    [["server", 1.0]],
    [[["server"], "late"]],
    {},
    {"cn__destination": []},
]
"""Values that msgpack brings, of which FLARE makes headers."""


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("seed", range(4))
def test_no_headers_end_the_process(gate, seed):
    """What fails in the gate ends its process; so nothing that a peer writes may fail there."""
    rng = random.Random(seed)
    honest = order("scheduler.check_resource")
    keys = [*sorted(honest.headers), "cn__secure", "cn__reply_expected", "sm__ch"]
    for peer in ("server", "cleveland"):
        for headers in (None, [], 7, "text", b"", [1], {}, {7: 7, None: []}):
            honest.headers = headers
            assert verdict(gate, honest, peer).why
    for _ in range(300):
        message = order(rng.choice(["scheduler.check_resource", NOTIFY]))
        for key in rng.sample(keys, rng.randint(1, 3)):
            message.headers[key] = rng.choice(ODD)
        verdict(gate, message)


PERSON = "_admin_12345678-1234-4123-8123-123456789abc"


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("channel", ["task", "hci_channel"])
@pytest.mark.parametrize(
    ("name", "is_person"),
    [
        ("operator@coterie.org", True),
        ("guard@coterie.org", True),
        ("keeper@coterie.org", True),
        ("cleveland", False),
        ("localhost", False),
        ("None", False),
    ],
)
def test_who_takes_the_name_of_a_persons_cell_has_the_certificate_of_a_person(
    tmp_path, name, is_person, channel
):
    """As it was: a site that named its cell as FLARE names those of people could say at the server what people may."""
    inside = {"sm__ch": "hci_channel", "sm__tp": "command"}
    told = {"task": ("task", "register"), "hci_channel": (STREAM, DATA)}
    outer, topic = told[channel]
    names = {"origin": PERSON, "from": PERSON, "route": [[PERSON, 1.0]]}
    message = order("any", destination="server", channel=outer, **names)
    message.add_headers({"cn__topic": topic, **inside})
    at_the_server = CellGate(Refusals(tmp_path / "log"), "")
    peer = SimpleNamespace(name=PERSON)
    found, _ = at_the_server.verdict(cell("server"), peer, Connection(name), message)
    assert (found.why == "") is is_person, found.why


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("topic", ODD)
def test_no_topic_inside_ends_the_process(gate, topic):
    assert verdict(gate, order(topic)).why
    assert verdict(gate, order(DEPLOY, job=topic)).why


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize(
    "sent",
    [
        *ODD,
        {"number": "é", "proof": "é"},
        {"proof": "\udc80"},
        {"number": "1", "proof": 7},
        {7: "7"},
    ],
)
@pytest.mark.parametrize("passive", [True, False])
def test_no_greeting_ends_the_process(gate, sent, passive):
    """As it was: a proof that is no ASCII text raised where both were compared, and any user of the machine ended the site."""
    gate.admit(JOB)
    greeting = SimpleNamespace(conn=Connection(secure=False))
    for name in (f"{SITE}.{JOB}", "é", "server"):
        assert gate.objection_to_greeting(SITE, greeting, name, sent, passive)


def test_a_greeting_is_bounded_before_it_is_parsed(gate):
    """FLARE parses a greeting before it knows who sends it."""
    from nvflare.fuel.f3.sfm.constants import Types
    from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

    from coterie.sites.flare.cell_gate import is_dropped_early

    def frame(kind, length):
        prefix, buffer = (
            Prefix(length, 0, kind, 0, 0, 1, 0, 0),
            bytearray(length),
        )
        prefix.to_buffer(buffer, 0)
        return buffer

    for kind in (Types.HELLO, Types.READY):
        for is_known in (True, False):
            assert not is_dropped_early(is_known, frame(kind, LONGEST_GREETING))
            assert is_dropped_early(is_known, frame(kind, LONGEST_GREETING + 1))
    assert is_dropped_early(False, frame(Types.DATA, PREFIX_LEN))
    assert not is_dropped_early(True, frame(Types.DATA, LONGEST_GREETING + 1))
    assert is_dropped_early(False, b"")


@pytest.mark.parametrize(
    "route",
    [7, "server", [7], [[]], [["hungary", 1.0]], [["server", "late"]], [["server"]]],
)
def test_a_route_begins_where_the_message_does(gate, route):
    """FLARE keeps a statistic of each name at the beginning of a route: made-up names would fill its memory."""
    assert verdict(gate, order("scheduler.check_resource", route=route)).why
    assert not verdict(gate, order("scheduler.check_resource")).why


# ---- the orders about a job


@pytest.mark.promise("closed doors")
def test_no_job_is_unpacked_twice_or_started_while_it_is_unpacked(gate):
    """FLARE unpacks a job's files before it looks whether they bring code, and removes them after.

    As it was: the server unpacked a job again while it started, and Python took code from there.
    """

    def why(topic):
        return verdict(gate, order(topic)).why

    first = verdict(gate, order(DEPLOY))
    assert (first.why, first.unpacks) == ("", JOB)
    assert "being unpacked" in why(DEPLOY)
    assert "being unpacked" in why(START)
    gate.end_unpacking(JOB)
    again = verdict(gate, order(DEPLOY))  # the server may try again
    assert again.why == ""
    gate.end_unpacking(again.unpacks)
    assert why(START) == ""
    assert "was started" in why(DEPLOY)
    assert why(START) == ""
    other = order(DEPLOY, job=f"2{JOB[1:]}")
    assert verdict(gate, other).why == ""
    for topic in FROM_SERVER - {DEPLOY, START}:
        assert why(topic) == ""


@pytest.mark.promise("closed doors")
def test_of_many_that_unpack_at_once_one_does(gate):
    together, taken = threading.Barrier(8), []

    def come():
        message = order(DEPLOY)
        together.wait()
        taken.append(verdict(gate, message).why)

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken.count("") == 1


@pytest.fixture
def kit(tmp_path):
    """As much of a kit as a job's process looks at before FLARE's program begins."""
    files = {
        "startup/sub_start.sh": f"python -P -m {start.MODULE} site",
        "startup/fed_client.json": json.dumps({"servers": [{"identity": "localhost"}]}),
        "local/resources.json": json.dumps({"components": []}),
    }
    for name, text in files.items():
        path = tmp_path / "kit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "kit"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("startup/sub_start.sh", None),
        *(
            ("local/resources.json", content)
            for content in (None, "{", "[" * 60000, "7", '{"components": [7]}')
        ),
    ],
)
def test_a_kit_with_a_damaged_file_is_refused_in_a_sentence_with_a_cure_that_works(
    kit, name, content
):
    """As it was: a traceback, or the advice to give a command that ended with one."""
    file = kit / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    for look in (
        lambda: start.prepare("site", ["-m", str(kit)]),
        lambda: add_gate(kit),
    ):
        with pytest.raises(InputError, match=f"{file.name}.* get a new kit"):
            look()


@pytest.mark.parametrize("text", ["site = 3", "site = [", "[site]\nlog = 3", ""])
def test_settings_that_are_none_name_a_log_all_the_same(kit, text):
    (kit / "local" / "coterie.toml").write_text(text)
    assert start._log_of(kit).parent == kit / "local"


@pytest.fixture
def custom(kit):
    """The folder from which FLARE lets a job's process import, with code that Python runs when it starts."""
    app = kit / "flare" / JOB / f"app_{SITE}" / "custom"
    app.mkdir(parents=True)
    (app / "sitecustomize.py").write_text(
        f"open({str(kit / 'ran')!r}, 'w').write('code of the server')"
    )
    return app


def launch(kit, launcher, gate, monkeypatch):
    """Start a job's process as FLARE does at a site, and wait for its end."""
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.apis.job_launcher_spec import JobProcessArgs
    from nvflare.apis.workspace import Workspace

    from coterie.sites.flare import launchers

    workspace = kit / "flare"
    (workspace / "startup").mkdir(exist_ok=True)
    (workspace / "local").mkdir(exist_ok=True)
    given = {
        FLContextKey.WORKSPACE_OBJECT: Workspace(str(workspace), SITE),
        FLContextKey.JOB_PROCESS_ARGS: {
            JobProcessArgs.EXE_MODULE: ("-m", "this.module.is.not.there"),
            JobProcessArgs.JOB_ID: ("-n", JOB),
            JobProcessArgs.WORKSPACE: ("-m", str(workspace)),
        },
    }
    monkeypatch.setattr(launchers, "gate", lambda: gate)
    handle = launcher().launch_job({"job_id": JOB}, SimpleNamespace(get_prop=given.get))
    handle.wait()


@pytest.mark.promise("files of others run nothing")
@pytest.mark.parametrize("name", ["SiteLauncher", "ServerLauncher"])
def test_a_job_imports_nothing_that_came_with_it(kit, custom, gate, monkeypatch, name):
    from coterie.sites.flare import launchers

    launch(kit, getattr(launchers, name), gate, monkeypatch)
    assert not (kit / "ran").exists()
    assert SECRET not in os.environ


LATE = """
import sys
from pathlib import Path
from coterie.sites.flare.start import prepare
prepare("site-job", ["-m", sys.argv[1], "-n", "job"])
from nvflare.private.fed.app.client import worker_process
worker_process.refresh_custom_dir_import_path(sys.argv[2])
print(sys.argv[2] in sys.path)
"""


@pytest.mark.promise("files of others run nothing")
def test_a_job_adds_no_folder_to_its_imports_later(kit, custom):
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(kit), str(custom)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, SECRET: "0" * 64},
    )
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.promise("closed doors")
def test_a_site_whose_process_has_no_gate_answers_nothing(kit, monkeypatch):
    from coterie.contract.encoding import decode, encode
    from coterie.sites.flare import client

    (kit / "startup" / "client.key").write_text("a key")
    (kit / "local" / "coterie.toml").write_text('[site]\ndata = "data.csv"\n')
    workspace = SimpleNamespace(get_root_dir=lambda: str(kit))
    about = SimpleNamespace(site_name=SITE, caller="server", workspace=workspace)
    monkeypatch.setattr(client, "collab", about)
    said = {}
    for installed in (None, "a gate"):
        monkeypatch.setattr(client, "gate", lambda found=installed: found)
        site = client.SiteClient()
        site.begin()
        message = encode({"do": "nothing", "serial": 0})
        said[installed] = decode(site.handle(message))["failed"]
        site.end()
    assert said[None] == client.NO_GATE
    assert said["a gate"] != client.NO_GATE


BLIND = """
from types import SimpleNamespace
from nvflare.apis.event_type import EventType
from coterie.sites.flare.gate import Gate
server = SimpleNamespace(workspace=".", client_manager=SimpleNamespace(cred_keeper=None))
context = SimpleNamespace(get_engine=lambda: SimpleNamespace(server=server))
try:
    Gate().handle_event(EventType.CLIENT_REGISTER_RECEIVED, context)
except Exception:
    print("swallowed, as FLARE does")
"""


@pytest.mark.promise("revocation")
def test_a_server_that_cannot_look_at_certificates_ends():
    """FLARE swallows what an event handler raises; then whoever is revoked was let in."""
    done = subprocess.run(
        [sys.executable, "-c", BLIND], capture_output=True, text=True, check=False
    )
    assert done.returncode == GATE_FAILED, done.stderr
    assert done.stdout == ""


# ---- an abort


class Calls:
    """A site whose calls fail as they do when a job ends there."""

    name = SITE

    def __init__(self, cause, then=lambda: None):
        self.cause, self.then = cause, then

    def __call__(self, timeout):
        return self

    def handle(self, message):
        from nvflare.collab import CollabCallError

        self.then()
        raise CollabCallError(SITE, "handle", self.cause)

    def count_gate_doors(self):
        return self.handle(b"")


@pytest.mark.parametrize("cause", [TimeoutError("cut off"), OSError("gone")])
def test_an_abort_is_no_failure_of_a_site(cause, monkeypatch):
    """As it was: a round that was aborted ended without the sites that were cut off, and was resumed so."""
    from nvflare.apis.signal import Signal
    from nvflare.collab.api.exceptions import RunAborted

    from coterie.sites.flare import client

    signal = Signal()
    fails = TimeoutError if isinstance(cause, TimeoutError) else ConnectionError
    monkeypatch.setattr(client, "ABORT_SECONDS", 0.1)
    for link in (
        client.FlareLink([Calls(cause)]),
        client.FlareLink([Calls(cause)], signal),
    ):
        with pytest.raises(fails):
            link.call(SITE, b"", 60.0)
    monkeypatch.setattr(client, "ABORT_SECONDS", 30.0)
    later = threading.Timer(0.2, signal.trigger, [True])
    link = client.FlareLink([Calls(cause, later.start)], signal)
    with pytest.raises(RunAborted):
        link.call(SITE, b"", 60.0)


@pytest.mark.parametrize("says", ["late", "gone", "many", True, None, 0, 83])
def test_what_no_site_has_said_of_its_gate_is_not_known(says):
    """As it was: a site that did not answer had no gate in `coterie status`."""
    from coterie.sites.flare import client

    causes = {"late": TimeoutError("late"), "gone": OSError("gone")}
    site = Calls(causes.get(says))
    if says not in causes:
        site.handle = lambda message: says
    closed = client.FlareLink([site]).count_gate_doors(SITE, 60.0)
    assert closed == (says if type(says) is int else None)


def test_a_job_that_is_aborted_asks_no_gate_any_more():
    from nvflare.collab.api.exceptions import RunAborted

    from coterie.sites.flare.server import Coordinator

    def closed(name, timeout):
        if name == "hungary":
            raise RunAborted("aborted")
        return 83

    server = Coordinator("")
    server._ask_gates(
        SimpleNamespace(names=["cleveland", "hungary"], count_gate_doors=closed)
    )
    assert server._tell()["gates"] == {"cleveland": 83}


@pytest.mark.promise("closed doors")
def test_a_job_counts_the_doors_of_its_parent_too(kit):
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, str(kit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, SECRET: "0" * 64, CLOSED: "83"},
    )
    assert done.stdout.split() == ["83"], done.stderr


COUNTING = """
import sys
from coterie.sites.flare.cell_gate import gate
from coterie.sites.flare.start import prepare
prepare("site-job", ["-m", sys.argv[1], "-n", "job"])
print(gate().count_closed_doors())
"""


# ---- what FLARE does where a site's message is wrong


ENDING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from coterie.sites.flare.cell_gate import CellGate, install
from coterie.sites.flare.refusals import Refusals
if sys.argv[1] == "gate":
    install(CellGate(Refusals(Path(sys.argv[2])), ""))
from nvflare.fuel.f3.cellnet.cell import Adapter, Cell
from nvflare.fuel.f3.message import Message
info = SimpleNamespace(fqcn="server.JOB")
log = SimpleNamespace(**dict.fromkeys(("critical", "debug", "error"), print))
if sys.argv[3] == "error":
    cell = SimpleNamespace(core_cell=SimpleNamespace(my_info=info), logger=log, requests_dict={})
    Cell._process_stream_error(cell, Message({"sm__et": "BlobSizeError", "sm__em": "no"}))
else:
    cell = SimpleNamespace(
        decode_pass_through_channels=(), decode_pass_through_topics=(), get_fobs_context=lambda props: {}
    )
    headers = {"sm__ch": "server_command", "sm__tp": "submit_update", "sm__pe": "fobs"}
    try:
        Adapter(print, info, cell).call(SimpleNamespace(headers=headers, result=lambda: b"no message"))
    except Exception as error:
        print(type(error))
print("goes on")
"""
"""The server's job hears that a message of its was too long, or reads what no model is."""


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("how", ["error", "update"])
def test_no_message_of_a_site_ends_the_job_at_the_server(tmp_path, how):
    """FLARE ends the server's job there: one site would end the run of all."""

    def outcome(gate):
        done = subprocess.run(
            [sys.executable, "-c", ENDING, gate, str(tmp_path / "log"), how],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()[-1:], done.stderr

    assert outcome("none")[0] == 1
    assert outcome("gate")[:2] == (0, ["goes on"])
