"""The gate on FLARE's cells: no message reaches a cell unless `doors` opens to it, in every process of a site and of the server.

It is put on the classes of FLARE before the first cell exists. FLARE's own filters will not do: they run after the payload
was decoded, the most specific one shadows the others, parts of a bulk message pass none, and what they raise is swallowed.
Connections inside a machine are clear TCP without a certificate, so both ends prove in the handshake that they know the
secret that the parent gave to the job.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from coterie.base.errors import InputError
from coterie.sites.flare.doors import (
    ADMIN_CHANNEL,
    DEPLOY,
    SERVER,
    START,
    STREAM,
    Cell,
    Letter,
    Peer,
    count_doors,
    is_person,
    kind_of,
    objection,
    why_not_inside,
)
from coterie.sites.flare.refusals import Refusals

SECRET = "COTERIE_GATE"
"""Variable of a job's environment with the secret that it shares with its parent."""
CLOSED = "COTERIE_GATE_CLOSED"
"""Variable of a job's environment with the number of doors that the gate of its parent closes."""
GATE_FAILED = 70
"""Exit status where the gate itself fails: FLARE swallows exceptions, and an open gate is worse than none running."""
_PROOF = "coterie_gate"
"""Key of a handshake with number and proof."""
LONGEST_GREETING = 1 << 16
"""Bytes of a handshake, which FLARE parses before it knows its sender; that of a job has some 300."""


class Verdict(NamedTuple):
    """The fate of a message.

    Attributes:
        why: why it is refused; "" if not.
        late: True for the reply to a question that nobody waits for any more: it is dropped without a line.
        unpacks: the job that this message unpacks; "" for any other message.
    """

    why: str = ""
    late: bool = False
    unpacks: str = ""


class CellGate:
    """The gate of this process.

    Args:
        refusals: who counts what is refused.
        server_name: the common name of the server's certificate; "" at the server itself.
        secret: what the parent gave to this job; "" in a parent.
        closed_by_parent: how many doors the parent of this job closes; 0 in a parent.
    """

    def __init__(
        self,
        refusals: Refusals,
        server_name: str,
        secret: str = "",
        closed_by_parent: int = 0,
    ) -> None:
        self.refusals, self._closed_by_parent = refusals, closed_by_parent
        self._server_name, self._secret = server_name, secret
        self._jobs: dict[str, str] = {}
        self._unpacking: set[str] = set()
        self._ordered: set[str] = set()
        self._proven: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def admit(self, job: str) -> str:
        """Note that this process starts a job; returns the secret that the job gets."""
        with self._lock:
            return self._jobs.setdefault(job, secrets.token_hex(32))

    def knows_job(self, job: str) -> bool:
        """Return True if this process has started a job of this name."""
        return job in self._jobs

    def count_closed_doors(self) -> int:
        """Return how many of the doors that FLARE has registered in this process, and in its parent, are closed to everybody."""
        from nvflare.fuel.f3.cellnet.core_cell import CoreCell

        count = self._closed_by_parent
        for cell in list(CoreCell.ALL_CELLS.values()):
            kind, _ = kind_of(cell.my_info.fqcn)
            if kind is None:
                continue
            streams: list[str] = []
            if "cell" in cell.fobs_ctx:
                streams = [*cell.fobs_ctx["cell"].byte_receiver.registry.reg]
            count += count_doors(kind, list(cell.req_reg.reg), streams)
        return count

    # ---- connections inside the machine

    def greeting(self, sfm_connection: Any) -> dict[str, str]:
        """The proof that a job sends with its first frame."""
        number = secrets.token_hex(16)
        sfm_connection.coterie_number = number
        name = sfm_connection.local_endpoint.name
        return {"number": number, "proof": _prove(self._secret, "job", name, number)}

    def answer(self, child: str, number: str) -> dict[str, str]:
        """The proof with which a parent answers a job's greeting."""
        return {"proof": _prove(self._secret_of(child), "parent", child, number)}

    def objection_to_greeting(
        self, me: str, sfm_connection: Any, name: str, sent: Any, passive: bool
    ) -> str:
        """Return why a handshake inside this machine is refused; "" if its other end has the secret."""
        if not isinstance(sent, dict) or not all(
            isinstance(v, str) for v in sent.values()
        ):
            return "it comes from this machine and proves nothing"
        if passive:
            expected = _prove(
                self._secret_of(name), "job", name, sent.get("number", "")
            )
            is_named = name.rpartition(".")[0] == me
        else:
            expected = _prove(
                self._secret,
                "parent",
                me,
                getattr(sfm_connection, "coterie_number", ""),
            )
            is_named = name == me.rpartition(".")[0]
        # As bytes: `compare_digest` raises for a text that is not ASCII.
        proof = sent.get("proof", "").encode(errors="replace")
        if not is_named or not hmac.compare_digest(expected.encode(), proof):
            return "it comes from this machine and does not have the parent's secret"
        self._proven[sfm_connection.conn] = name
        return ""

    def _secret_of(self, child: str) -> str:
        """The secret of a job; of one that was not started here one that nobody has."""
        return self._jobs.get(child.rpartition(".")[2]) or secrets.token_hex(32)

    # ---- messages

    def verdict(
        self, cell: Any, endpoint: Any, connection: Any, message: Any
    ) -> tuple[Verdict, str]:
        """Return the fate of a message, and the name under which a refusal is counted."""
        if not isinstance(message.headers, dict):
            message.headers = {}
        me = cell.my_info.fqcn
        if connection is None or type(connection).__name__ == "NullConnection":
            is_own = endpoint.name == me and message.get_header("cn__origin") == me
            why = ""
            if not is_own:
                why = "it does not come over a connection"
            return Verdict(why), "this process"
        peer, name = self._peer(me, endpoint, connection)
        if peer is None:
            return Verdict(
                "its sender has no certificate, or not that of the name that it claims"
            ), name
        letter = _letter(message)
        if letter is None:
            return Verdict("its headers are malformed"), name
        why = objection(me, peer, letter, self.knows_job)
        if why or letter.destination != me:
            return Verdict(why), name
        if letter.kind != "req":
            return _verdict_on_reply(cell, letter, message), name
        if letter.channel == ADMIN_CHANNEL and kind_of(me)[0] is Cell.SITE:
            return self._verdict_on_order(letter, message), name
        return Verdict(), name

    def _verdict_on_order(self, letter: Letter, message: Any) -> Verdict:
        """Decode a request to a site's agent, and look at what it asks: the agent obeys this, and no header."""
        inside = _inside_of(message)
        if isinstance(inside, str):
            return Verdict(inside)
        topic, job = inside.topic, inside.headers.get("job_id")
        _, sender_job = kind_of(letter.origin)
        why = why_not_inside(topic, job, sender_job)
        if not why and sender_job and letter.topic != topic:
            why = "its header names another topic than the message inside"
        if why or topic not in (DEPLOY, START):
            return Verdict(why)
        return self._begin_order(topic, job)

    def _begin_order(self, topic: str, job: str) -> Verdict:
        """Let a job be unpacked before it is started alone, and one order about it begin after the other has ended.

        FLARE unpacks the files of a job before it looks whether they bring code, which Python would import in between.
        """
        with self._lock:
            if job in self._unpacking:
                return Verdict(
                    f"{topic!r} inside is about a job that is being unpacked"
                )
            if topic == START:
                self._ordered.add(job)
                return Verdict()
            if job in self._ordered:
                return Verdict(f"{topic!r} inside is about a job that was started")
            self._unpacking.add(job)
            return Verdict(unpacks=job)

    def end_unpacking(self, job: str) -> None:
        """Note that FLARE has unpacked a job, or has failed to."""
        with self._lock:
            self._unpacking.discard(job)

    def _peer(self, me: str, endpoint: Any, connection: Any) -> tuple[Peer | None, str]:
        """Return who has sent a frame, as its connection proves it, and a name for the log."""
        cell = endpoint.name
        if not is_inside(connection):
            common_name = str(connection.get_conn_properties().get("peer_cn"))
            return self._certified(cell, common_name), common_name
        kind, _ = kind_of(cell)
        if kind is None or self._proven.get(connection) != cell:
            return None, "this machine"
        return Peer(kind, cell, own=True), cell

    def _certified(self, cell: str, common_name: str) -> Peer | None:
        """Return the peer of this name if the certificate of its connection allows the name, else None."""
        from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name

        if self._server_name:
            # A site is connected with nobody but the server.
            if cell == SERVER and common_name == self._server_name:
                return Peer(Cell.SERVER, SERVER)
            return None
        if is_valid_admin_client_name(cell):
            # Anybody may name a cell so: only the certificate of a person makes it one.
            if is_person(common_name):
                return Peer(Cell.ADMIN, cell)
            return None
        kind, _ = kind_of(cell)
        is_of_holder = cell.partition(".")[0] == common_name
        if kind in (Cell.SITE, Cell.SITE_JOB) and is_of_holder:
            return Peer(kind, cell)
        return None


def _prove(secret: str, end: str, name: str, number: str) -> str:
    text = f"{end} {name} {number}".encode(errors="replace")
    return hmac.new(secret.encode(), text, "sha256").hexdigest()


def is_inside(connection: Any) -> bool:
    """Return True for a connection between processes of this machine: it has no certificates."""
    return not getattr(connection, "secure", None)


def _letter(message: Any) -> Letter | None:
    """The headers that the gate looks at; None if one is malformed."""
    headers = message.headers
    names = ("origin", "destination", "from", "msg_type", "channel", "topic")
    texts = [headers.get(f"cn__{name}", "") for name in names]
    inner = [headers.get(f"sm__{name}") or "" for name in ("ch", "tp")]
    if not all(isinstance(text, str) for text in (*texts, *inner)) or texts[3] not in (
        "req",
        "reply",
        "return",
    ):
        return None
    if not _begins_at(headers.get("cn__route"), texts[0]):
        return None
    is_bare = not any(
        headers.get(f"cn__{name}")
        for name in ("secure", "encrypted", "conn_url", "pass_through")
    )
    origin, destination, carrier, kind, channel, topic = texts
    stream = ("", "")
    if channel == STREAM:
        stream = (inner[0], inner[1])
    return Letter(origin, destination, carrier, kind, channel, topic, stream, is_bare)


def _begins_at(route: Any, origin: str) -> bool:
    """Return True if a route begins at the origin, or there is none. FLARE keeps a statistic of each name at its beginning."""
    if route is None:
        return True
    if not isinstance(route, list) or not route:
        return False
    first = route[0]
    return (
        isinstance(first, list | tuple)
        and len(first) == 2
        and first[0] == origin
        and isinstance(first[1], int | float)
    )


def _verdict_on_reply(cell: Any, letter: Letter, message: Any) -> Verdict:
    """A reply is taken from whom a request waits for it, before it is decoded; FLARE decodes first."""
    numbers = message.get_header("cn__req_id")
    if isinstance(numbers, str):
        numbers = [numbers]
    if not isinstance(numbers, list) or not all(
        isinstance(number, str) for number in numbers
    ):
        return Verdict("its headers are malformed")
    waiters = [
        waiter for waiter in map(cell.waiters.get, numbers) if waiter is not None
    ]
    if not waiters:
        return Verdict(late=True)
    if letter.kind == "reply" and any(
        letter.origin not in waiter.targets for waiter in waiters
    ):
        return Verdict("it answers a question that another was asked")
    return Verdict()


def _inside_of(message: Any) -> Any:
    """Return the message inside a request to the agent; a text that says why there is none."""
    from nvflare.fuel.f3.cellnet.utils import decode_payload
    from nvflare.fuel.f3.message import Message as CellMessage
    from nvflare.private.admin_defs import Message

    copy = CellMessage(
        dict(message.headers), message.payload
    )  # FLARE measures the bytes before it decodes them itself
    try:
        decode_payload(copy)
    except Exception as error:  # whatever bytes can do to a parser
        return f"its payload is malformed ({type(error).__name__})"
    inside = copy.payload
    if not isinstance(inside, Message) or not isinstance(inside.headers, dict):
        return "its payload is no request to the agent"
    return inside


INSTALLED: list[CellGate] = []
"""The gate of this process, once there is one."""


def gate() -> CellGate | None:
    """Return the gate of this process; None if there is none."""
    if not INSTALLED:
        return None
    return INSTALLED[0]


def install(new: CellGate) -> None:
    """Put the gate before every cell that this process will make. Raises `InputError` for a FLARE with other cells."""
    from nvflare.fuel.f3.cellnet import cell
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager
    from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

    wanted = (
        (CoreCell, "process_message"),
        (ConnManager, "process_frame"),
        (ConnManager, "update_endpoint"),
        (SfmConnection, "send_handshake"),
        (cell, "_is_server_job_cell"),
    )
    missing = [name for owner, name in wanted if not hasattr(owner, name)]
    if missing or CoreCell.ALL_CELLS or INSTALLED:
        what = ", ".join(missing) or "a cell is there already"
        raise InputError(
            f"the gate does not fit this version of FLARE ({what}); install the version of coterie's extra flare"
        )
    CoreCell.process_message = _guard(CoreCell.process_message, new)
    ConnManager.process_frame = _greet_first(ConnManager.process_frame, new)
    SfmConnection.send_handshake = _with_proof(SfmConnection.send_handshake, new)
    ConnManager.update_endpoint = _after_proof(ConnManager.update_endpoint, new)
    # FLARE ends the server's job where a site's message is malformed or said to be too long: one site would end the run of all.
    cell._is_server_job_cell = lambda info: False
    INSTALLED.append(new)


def end_on_failure(work: Callable[[], Any]) -> Any:
    """Do what the gate does; where it fails itself the process ends, since FLARE would go on without it."""
    try:
        return work()
    except Exception:
        traceback.print_exc()
        sys.stderr.write("coterie: the gate has failed, and ends this process\n")
        sys.stderr.flush()
        os._exit(GATE_FAILED)


def _guard(process: Callable[..., None], guard: CellGate) -> Callable[..., None]:
    def process_message(
        self: Any, endpoint: Any, connection: Any, app_id: int, message: Any
    ) -> None:
        def look() -> Verdict:
            verdict, sender = guard.verdict(self, endpoint, connection, message)
            if verdict.why:
                what = " ".join(
                    str(message.get_header(f"cn__{name}", ""))
                    for name in ("channel", "topic")
                )
                guard.refusals.note(sender, what, verdict.why)
                _tell(self, endpoint, message)
            return verdict

        verdict: Verdict = end_on_failure(look)
        if verdict.why or verdict.late:
            return
        try:
            process(self, endpoint, connection, app_id, message)
        finally:
            if verdict.unpacks:
                guard.end_unpacking(verdict.unpacks)

    return process_message


def _tell(cell: Any, endpoint: Any, message: Any) -> None:
    """Tell whoever waits for a reply that there is none, so that an honest mistake does not wait for a timeout."""
    from nvflare.fuel.f3.cellnet.utils import make_reply

    get = message.get_header
    number, origin, me = get("cn__req_id"), get("cn__origin"), cell.my_info.fqcn
    destination = get("cn__destination")
    is_waited_for = (
        get("cn__msg_type") == "req"
        and get("cn__reply_expected") is True
        and isinstance(number, str)
    )
    if (
        not is_waited_for
        or not isinstance(origin, str)
        or get("cn__from") != endpoint.name
    ):
        return
    message_type = "reply"
    if destination != me:
        message_type = "return"  # as FLARE returns what it cannot forward
    reply = make_reply("authentication_error", error="closed")
    reply.add_headers(
        {
            "cn__channel": "closed",  # FLARE keeps statistics of each name: the sender's would fill its memory
            "cn__topic": "closed",
            "cn__from": me,
            "cn__to": endpoint.name,
            "cn__origin": me,
            "cn__destination": origin,
            "cn__req_id": number,
            "cn__msg_type": message_type,
            "cn__original_headers": {"cn__destination": destination},
            "cn__route": [(me, time.time())],
            "cn__secure": False,
        }
    )
    cell._send_to_endpoint(endpoint, cell._filter_outgoing_reply(reply))


def _greet_first(process: Callable[..., None], guard: CellGate) -> Callable[..., None]:
    """Drop frames of a connection that has not said who it is: FLARE writes an error for each."""

    def process_frame(self: Any, sfm_connection: Any, frame: Any) -> None:
        is_known = sfm_connection.sfm_endpoint is not None
        if not end_on_failure(lambda: is_dropped_early(is_known, frame)):
            process(self, sfm_connection, frame)

    return process_frame


def is_dropped_early(is_known: bool, frame: Any) -> bool:
    """Return True for a frame that FLARE does not parse: a greeting that is too long, and anything before a greeting.

    Args:
        is_known: whether the other end of the connection has said who it is.
        frame: the bytes.
    """
    from nvflare.fuel.f3.sfm.constants import Types
    from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

    if len(frame) < PREFIX_LEN:
        return True
    if Prefix.from_bytes(frame).type in (Types.HELLO, Types.READY):
        return len(frame) > LONGEST_GREETING
    return not is_known


def _with_proof(send: Callable[..., None], guard: CellGate) -> Callable[..., None]:
    """Inside a machine the job's greeting has a proof, and its parent answers when it has seen that."""

    def send_handshake(self: Any, frame_type: int) -> None:
        from nvflare.fuel.f3.sfm.constants import Types

        if not is_inside(self.conn):
            send(self, frame_type)
        elif frame_type == Types.HELLO:
            _greet(self, frame_type, end_on_failure(lambda: guard.greeting(self)))

    return send_handshake


def _greet(sfm_connection: Any, frame_type: int, proof: dict[str, str]) -> None:
    endpoint = sfm_connection.local_endpoint
    content = {
        "endpoint_name": endpoint.name,
        "timestamp": time.time(),
        **(endpoint.properties or {}),
    }
    sfm_connection.send_dict(frame_type, 1, {**content, _PROOF: proof})


def _after_proof(update: Callable[..., None], guard: CellGate) -> Callable[..., None]:
    def update_endpoint(self: Any, sfm_connection: Any, content: Any) -> None:
        from nvflare.fuel.f3.drivers.connector_info import Mode
        from nvflare.fuel.f3.sfm.constants import Types

        if not isinstance(content, dict) or not isinstance(
            content.get("endpoint_name"), str
        ):
            sfm_connection.conn.close()
            return
        if is_inside(sfm_connection.conn):
            is_passive = sfm_connection.conn.connector.mode == Mode.PASSIVE
            name, proof = content["endpoint_name"], content.pop(_PROOF, None)
            me = self.local_endpoint.name
            why = end_on_failure(
                lambda: guard.objection_to_greeting(
                    me, sfm_connection, name, proof, is_passive
                )
            )
            if why:
                end_on_failure(
                    lambda: guard.refusals.note(
                        "this machine", f"connects as {name}", why
                    )
                )
                sfm_connection.conn.close()
                return
            if is_passive:
                _greet(
                    sfm_connection,
                    Types.READY,
                    guard.answer(name, proof.get("number", "")),
                )
        update(self, sfm_connection, content)

    return update_endpoint
