"""Try the gate of this machine: a throw-away site on loopback, to which everything that FLARE registers is said.

A process of its own is the site: FLARE's cell behind the gate, with FLARE's own agent, whose shell command would read a
file. This process plays the server, another site behind it, and a job that the site has started, by writing FLARE's frames
itself: so it may claim anything.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError
from coterie.sites.flare.doors import (
    ADMIN_CHANNEL,
    ANY,
    FROM_SERVER,
    NOTIFY,
    REQUESTS,
    SERVER,
    STREAM,
    Cell,
)

MODULE = "coterie.sites.flare.trial"
"""This module, which is also the program of the throw-away site."""
SITE, OTHER = "site", "other"
SERVER_NAME = "throw-away-server"
JOB = "00000000-0000-4000-8000-000000000000"
SECONDS = 60.0
"""How long the throw-away site may take; it needs about five seconds."""
_SAID = b"what no message may read"
_HELLO, _READY, _DATA = 4, 5, 1


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Attributes:
        tried: messages that were said.
        opened: those that should be closed and were taken, as `author: channel topic`.
        read: whether FLARE's agent read a file for the server.
    """

    tried: int
    opened: tuple[str, ...]
    read: bool

    @property
    def line(self) -> str:
        """The result for a person."""
        if self.read or self.opened:
            files = ""
            if self.read:
                files = "files of this site are read through FLARE's own channels; "
            return f"gate      OPEN: {files}{len(self.opened)} of {self.tried} messages are taken that no job needs"
        return f"gate      closed: {self.tried} messages of FLARE's channels, as server, other site and own job; none is taken"


@dataclass(frozen=True)
class _Said:
    author: str
    channel: str
    topic: str
    inside: str = ""
    job: str = JOB

    def __str__(self) -> str:
        return " ".join(
            filter(
                None,
                (
                    f"{self.author}:",
                    self.channel,
                    self.topic,
                    self.inside and f"({self.inside})",
                ),
            )
        )


def try_gate(*, gate: bool = True) -> Trial:
    """Return what becomes of every message that FLARE knows; without the gate, of what FLARE itself would take.

    Raises `InputError` if the throw-away site does not answer.
    """
    with tempfile.TemporaryDirectory() as temporary, socket.socket() as listener:
        folder = Path(temporary)
        _make_certificates(folder)
        (folder / "file").write_bytes(_SAID)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(SECONDS)
        command = [
            sys.executable,
            "-P",
            "-m",
            MODULE,
            temporary,
            str(listener.getsockname()[1]),
            str(int(gate)),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                return _question(listener, folder, process)
            except (OSError, ValueError, StopIteration) as error:
                process.kill()
                printed = ""
                if process.stderr:
                    printed = process.stderr.read().strip()
                # Of a traceback the last line says what went wrong.
                last_line = "".join(printed.splitlines()[-1:])
                raise InputError(
                    f"the gate could not be tried on this machine ({last_line[:120] or error}); is FLARE installed "
                    "in the version of coterie's extra flare?"
                ) from error
            finally:
                process.kill()


def _question(
    listener: socket.socket, folder: Path, process: subprocess.Popen[str]
) -> Trial:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    told = map(json.loads, process.stdout or ())
    begun = next(told)  # its registries, the port for its jobs, and the secret of one
    plain, _ = listener.accept()
    with (
        context.wrap_socket(plain, server_side=True) as server,
        socket.create_connection(("127.0.0.1", begun["port"]), timeout=SECONDS) as job,
    ):
        of_server, of_job = _Line(server, SERVER), _Line(job, f"{SITE}.{JOB}")
        # A dishonest server forwards whatever another site sends.
        lines = {SERVER: of_server, OTHER: of_server, f"{SITE}.{JOB}": of_job}
        of_server.answer_greeting()
        of_job.greet(begun["secret"])
        said = list(_everything(begun["doors"], begun["agent"]))
        for number, message in enumerate(said):
            lines[message.author].say(message, number, begun["file"])
        taken: set[int] = set()
        deadline = time.monotonic() + SECONDS
        for state in told:
            taken.update(state["taken"])
            if state["seen"] >= len(said):
                break
            if time.monotonic() > deadline:
                raise ValueError("not all messages were seen")
        heard = any(_SAID in line.heard for line in lines.values())
    honest = {number for number, message in enumerate(said) if _is_honest(message)}
    if not taken & honest:
        raise ValueError("the messages of an honest job are not taken")
    return Trial(
        len(said), tuple(str(said[number]) for number in sorted(taken - honest)), heard
    )


def _is_honest(message: _Said) -> bool:
    """Return True for what a job needs, with the right message inside."""
    author = {SERVER: Cell.SERVER, OTHER: None}.get(message.author, Cell.SITE_JOB)
    if (
        author is None
        or (message.channel, message.topic) not in REQUESTS[Cell.SITE, author]
    ):
        return False
    if message.channel != ADMIN_CHANNEL:
        return True
    if author is Cell.SERVER:
        return message.inside in FROM_SERVER
    return message.inside == NOTIFY


def _everything(doors: list[list[str]], agent: list[str]) -> Iterator[_Said]:
    """Every message: each author, each channel and topic, and for the agent each order under a harmless header."""
    topics, channels = flare_words()
    pairs = {(channel, topic) for channel, topic in doors if topic != ANY}
    wild = {channel for channel, topic in doors if topic == ANY} | set(channels)
    pairs |= {(channel, topic) for channel in wild for topic in topics}
    for author in (SERVER, OTHER, f"{SITE}.{JOB}"):
        harmless = NOTIFY if author.endswith(JOB) else "admin"
        for channel, topic in sorted(pairs):
            if (channel, topic) != (ADMIN_CHANNEL, harmless):
                yield _Said(author, channel, topic)
        for order in sorted({*agent, *topics}):
            yield _Said(author, ADMIN_CHANNEL, harmless, order)


def flare_words() -> tuple[list[str], list[str]]:
    """Every topic and every channel that FLARE names in a constant of its messages."""
    from nvflare.apis import fl_constant
    from nvflare.fuel.f3.cellnet import core_cell, defs, net_agent
    from nvflare.fuel.f3.streaming import download_service, stream_const
    from nvflare.private import defs as private_defs
    from nvflare.private import stream_runner

    modules = (
        fl_constant,
        core_cell,
        defs,
        net_agent,
        download_service,
        stream_const,
        private_defs,
        stream_runner,
    )
    topics, channels = set(), set()
    for module in modules:
        for name, value in vars(module).items():
            members = [(name, value)]
            if isinstance(value, type):
                members = [*vars(value).items()]
            texts = {
                text
                for key, text in members
                if isinstance(text, str) and not key.startswith("__")
            }
            if "topic" in name.lower() or "Command" in name:
                topics |= texts
            elif "channel" in name.lower():
                channels |= texts
    return sorted(topics), sorted(channels)


class _Line:
    """A connection on which FLARE's frames are written by hand."""

    def __init__(self, connection: Any, me: str) -> None:
        self.heard = b""
        self._connection, self._me = connection, me
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError, ValueError):
            while piece := self._connection.recv(1 << 16):
                self.heard = self.heard[-len(_SAID) - (1 << 20) :] + piece

    def answer_greeting(self) -> None:
        """Take part in FLARE's handshake as the end that was connected to."""
        deadline = time.monotonic() + SECONDS
        while not self.heard and time.monotonic() < deadline:
            time.sleep(0.01)
        self._send(
            _READY,
            {},
            _pack({"endpoint_name": self._me, "timestamp": 0.0, "fqcn": self._me}),
        )
        time.sleep(0.2)  # FLARE drops what comes while it still takes in the greeting

    def greet(self, secret: str) -> None:
        """Take part in it as a job that its parent has started."""
        from coterie.sites.flare.cell_gate import _PROOF, _prove

        proof = {"number": "1", "proof": _prove(secret, "job", self._me, "1")}
        self._send(
            _HELLO,
            {},
            _pack(
                {
                    "endpoint_name": self._me,
                    "timestamp": 0.0,
                    "fqcn": self._me,
                    _PROOF: proof,
                }
            ),
        )
        time.sleep(0.2)

    def say(self, message: _Said, number: int, file: str) -> None:
        """Say a message to the throw-away site."""
        names = {
            "origin": message.author,
            "destination": SITE,
            "from": self._me,
            "to": SITE,
            "msg_type": "req",
        }
        names |= {
            "channel": message.channel,
            "topic": message.topic,
            "req_id": str(number),
        }
        headers: dict[str, Any] = {
            f"cn__{name}": value for name, value in names.items()
        }
        if message.channel == STREAM:
            headers |= {
                "sm__ch": "collab",
                "sm__tp": "call",
                "sm__id": number,
                "sm__sq": 0,
                "sm__dt": 2,
                "sm__sz": 0,
            }
        payload = b""
        if message.inside:
            headers |= {"cn__payload_encoding": "fobs", "cn__reply_expected": True}
            payload = _order(message.inside, message.job, f"head -n 1 {file}")
        self._send(_DATA, headers, payload)

    def _send(self, kind: int, headers: dict[str, Any], payload: bytes) -> None:
        head = b""
        if headers:
            head = _pack(headers)
        length = 16 + len(head) + len(payload)
        prefix = struct.pack(">IHBBHHHH", length, len(head), kind, 0, 0, 1, 0, 0)
        self._connection.sendall(prefix + head + payload)


def _pack(content: dict[str, Any]) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb(content)
    return packed


def _order(topic: str, job: str, command: str) -> bytes:
    """The bytes of an order to FLARE's agent."""
    from nvflare.fuel.f3.cellnet.utils import encode_payload
    from nvflare.fuel.f3.message import Message as CellMessage
    from nvflare.private.admin_defs import Message

    order = Message(topic=topic, body=command)
    order.set_header("job_id", job)
    message = CellMessage({}, order)
    encode_payload(message)
    if isinstance(message.payload, list):  # FLARE may leave it in several buffers
        return b"".join(map(bytes, message.payload))
    return bytes(message.payload)


def _make_certificates(folder: Path) -> None:
    """Write certificates for the trial: they and their keys are gone with its folder."""
    from nvflare.lighter.utils import (
        Identity,
        generate_cert,
        generate_keys,
        serialize_cert,
        serialize_pri_key,
    )

    authority = Identity("throw-away authority")
    authority_key, _ = generate_keys()
    for name, common_name in (
        ("ca", authority.name),
        ("server", SERVER_NAME),
        ("site", SITE),
    ):
        if name == "ca":
            key, public = authority_key, authority_key.public_key()
        else:
            key, public = generate_keys()
        host = SERVER_NAME if name == "server" else None
        certificate = generate_cert(
            Identity(common_name),
            authority,
            authority_key,
            public,
            valid_days=1,
            ca=name == "ca",
            server_default_host=host,
        )
        (folder / f"{name}.crt").write_bytes(serialize_cert(certificate))
        (folder / f"{name}.key").write_bytes(serialize_pri_key(key))


# ---- the throw-away site


def _be_the_site(folder: Path, port: int, has_gate: bool) -> None:
    """Be a site that counts what gets through its gate, and lets FLARE's agent obey it."""
    from nvflare.fuel.f3.cellnet.cell import Cell as FlareCell
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.net_agent import NetAgent
    from nvflare.fuel.f3.streaming.download_service import DownloadService
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    from coterie.sites.flare.cell_gate import CellGate, install
    from coterie.sites.flare.refusals import Refusals

    taken: list[int] = []
    guard = CellGate(Refusals(folder / "refused.jsonl"), SERVER_NAME)
    secret = guard.admit(JOB)
    _note_arrivals(CoreCell, taken)
    if has_gate:
        install(guard)
    credentials = {
        "ca_cert": folder / "ca.crt",
        "client_cert": folder / "site.crt",
        "client_key": folder / "site.key",
    }
    cell = FlareCell(
        fqcn=SITE,
        root_url=f"tcp://127.0.0.1:{port}",
        secure=True,
        credentials={
            **{name: str(path) for name, path in credentials.items()},
            "connection_security": "mtls",
        },
        create_internal_listener=True,
        auth_identity_map={SERVER: SERVER_NAME},
    )
    NetAgent(cell)
    DownloadService.initialize(cell)
    cell.start()
    processors = {
        topic: one
        for one in ClientRequestProcessors.request_processors
        for topic in one.get_topics()
    }
    _let_the_agent_obey(cell, processors)
    url = str(cell.core_cell.get_internal_listener_url())
    begun = {
        "port": int(url.rpartition(":")[2]),
        "secret": secret,
        "file": str(folder / "file"),
        "agent": list(processors),
    }
    _report(
        {**begun, "doors": [key.split(":", 1) for key in cell.core_cell.req_reg.reg]}
    )
    while True:
        time.sleep(0.2)
        _report({"seen": guard.refusals.total + len(taken), "taken": taken})


def _note_arrivals(owner: Any, taken: list[int]) -> None:
    process = owner._process_request

    def noting(self: Any, origin: str, message: Any) -> Any:
        from nvflare.fuel.f3.cellnet.utils import make_reply

        taken.append(int(message.get_header("cn__req_id")))
        is_order = message.get_header("cn__channel") == ADMIN_CHANNEL
        if not is_order:
            return make_reply("ok")
        return process(self, origin, message)

    owner._process_request = noting


def _let_the_agent_obey(cell: Any, processors: dict[str, Any]) -> None:
    """Register the agent's shell, as FLARE does, and of the other orders only that they came."""
    from nvflare.fuel.f3.message import Message

    def obey(request: Any) -> Any:
        order = request.payload
        answer = None
        if getattr(order, "topic", "") == "sys.shell":
            answer = processors[order.topic].process(order, None)
        return Message({}, answer)

    cell.register_request_cb(channel=ADMIN_CHANNEL, topic="*", cb=obey)


def _report(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _be_the_site(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1")
