"""The messages that FLARE's cells may take: everything is closed but what an honest job was seen to send.

FLARE registers some 200 channels and topics. Its agent believes what a sender says of itself, so any site could run
commands at another, and the server at all of them. Here each cell has a short list of who may send what. Nothing here
knows FLARE: `cell_gate` looks at its connections and headers, and asks `objection`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

SERVER = "server"
"""The name of the server's cell; its jobs are `server.JOB`, those of a site `SITE.JOB`."""
_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Only such a name is a job's: FLARE joins it to the path of its workspace, where `..` would lead elsewhere."""


class Cell(StrEnum):
    """The four kinds of cell, and the people who command the server."""

    SITE = "a site"
    SITE_JOB = "a job at a site"
    SERVER = "the server"
    SERVER_JOB = "a job at the server"
    ADMIN = "a person"


@dataclass(frozen=True)
class Peer:
    """The other end of a connection.

    Attributes:
        kind: what it is.
        cell: the cell that it has proven to be: by its certificate, or with the secret of this machine's parent.
        own: True for a cell of this machine: the parent of a job, or a job that this process started.
    """

    kind: Cell
    cell: str
    own: bool = False


@dataclass(frozen=True)
class Letter:
    """The headers of a message, all of which its sender may have made up.

    Attributes:
        origin, destination: names of cells.
        carrier: the cell that sent it to this one.
        kind: `req`, `reply` or `return` (a request that could not be forwarded).
        channel, topic: of the cell.
        stream: channel and topic of the message that a stream carries; empty in acknowledgements.
        bare: False if it asks for encryption or offers a connection, as no message of a job does.
    """

    origin: str
    destination: str
    carrier: str
    kind: str
    channel: str
    topic: str
    stream: tuple[str, str]
    bare: bool = True


STREAM = "sm__STREAM"
DATA, ACK, ERROR = "sm__DATA", "sm__ACK", "sm__ERROR"
ADMIN_CHANNEL = "admin"
BYE = ("cellnet.channel", "bye")
ANY = "*"
"""Every topic of a channel: only between a parent and the jobs that it started."""

REQUESTS: dict[tuple[Cell, Cell], frozenset[tuple[str, str]]] = {
    (Cell.SITE, Cell.SERVER): frozenset({(ADMIN_CHANNEL, "admin")}),
    (Cell.SITE, Cell.SITE_JOB): frozenset(
        {(ADMIN_CHANNEL, "train.notify_job_status"), BYE}
    ),
    (Cell.SITE_JOB, Cell.SITE): frozenset({("client_command", "abort")}),
    (Cell.SERVER, Cell.SITE): frozenset(
        {
            ("task", "challenge"),
            ("task", "register"),
            ("task", "heart_beat"),
            ("task", "quit"),
            ("task", "report_job_failure"),
            BYE,
        }
    ),
    (Cell.SERVER, Cell.SITE_JOB): frozenset({BYE}),
    (Cell.SERVER, Cell.SERVER_JOB): frozenset({("server_parent_listener", ANY), BYE}),
    (Cell.SERVER, Cell.ADMIN): frozenset(
        {("task", "challenge"), ("task", "register"), BYE}
    ),
}
"""By receiver and author: channels and topics of requests."""

_TASKS = (("server_command", "get_task"), ("server_command", "submit_update"))
_RUNNER = (
    ("aux_communication", "__sync_runner__"),
    ("aux_communication", "__task_check__"),
)
_BEAT = ("aux_communication", "__job_heartbeat__")


def _answers(*asked: tuple[str, str]) -> frozenset[tuple[str, str]]:
    """Streams with the replies to streams."""
    return frozenset(
        {("return_only", f"{channel}:{topic}") for channel, topic in asked}
    )


STREAMS: dict[tuple[Cell, Cell], frozenset[tuple[str, str]]] = {
    (Cell.SITE_JOB, Cell.SERVER_JOB): frozenset(
        {("collab", "call"), ("aux_communication", "__end_run__")}
    )
    | _answers(*_TASKS, *_RUNNER, _BEAT),
    (Cell.SERVER_JOB, Cell.SITE_JOB): frozenset({*_TASKS, *_RUNNER, _BEAT})
    | _answers(("collab", "call")),
    (Cell.SITE_JOB, Cell.SERVER): frozenset(),
    (Cell.SITE_JOB, Cell.SITE): frozenset(),
    (Cell.SERVER_JOB, Cell.SITE): frozenset(),
    (Cell.SERVER_JOB, Cell.SERVER): frozenset({("server_command", ANY)}),
    (Cell.SERVER, Cell.SERVER_JOB): frozenset({("return_only", "server_command:*")}),
    (Cell.SERVER, Cell.ADMIN): frozenset(
        {
            ("hci_channel", "command"),
            ("aux_communication", "ObjectStreamer.Request"),
            ("aux_communication", "ObjectStreamer.Abort"),
            ("download_service__", "download_service__download"),
        }
    ),
}
"""By receiver and author: channels and topics of what a stream carries; where none is open, only acknowledgements and errors of
streams are: a parent says so that a message of a job could not be forwarded."""

DEPLOY, START = "train.deploy", "train.start_job"
FROM_SERVER = frozenset(
    {
        "scheduler.check_resource",
        "scheduler.cancel_resource",
        DEPLOY,
        START,
        "train.abort",
    }
)
"""Topics of the message inside a request of the server to a site: FLARE's agent obeys this one, whatever the cell's headers say."""
OF_A_JOB = FROM_SERVER - {"scheduler.cancel_resource"}
"""Those that name a job."""
NOTIFY = "train.notify_job_status"


def is_job(name: object) -> bool:
    """Return True if this may be the name of a job."""
    return isinstance(name, str) and _JOB.fullmatch(name) is not None


def is_person(common_name: str) -> bool:
    """Return True if a certificate is a person's: no site and no server has a name with an @, and each person has.

    >>> is_person("guard@coterie.org"), is_person("hungary")
    (True, False)
    """
    return "@" in common_name


def kind_of(cell: str) -> tuple[Cell | None, str]:
    """Return what a cell with this name is, and its job or ""; None for a name that no cell of ours has.

    >>> kind_of("hungary")
    (<Cell.SITE: 'a site'>, '')
    """
    root, _, job = cell.partition(".")
    if not root or (job and not is_job(job)):
        return None, ""
    if root == SERVER and job:
        return Cell.SERVER_JOB, job
    if root == SERVER:
        return Cell.SERVER, ""
    if job:
        return Cell.SITE_JOB, job
    return Cell.SITE, ""


def objection(
    me: str, peer: Peer, letter: Letter, started: Callable[[str], bool]
) -> str:
    """Return why a cell does not take a message, in words for its log; "" if it does.

    Args:
        me: name of the cell.
        peer: who sent it.
        letter: the message's headers.
        started: whether this process has started a job of that name.
    """
    if not letter.bare:
        return "it asks for encryption or offers a connection"
    if letter.carrier != peer.cell:
        return "its header names another sender than its connection"
    author, job = kind_of(letter.origin)
    if peer.kind is Cell.ADMIN:
        author, job = Cell.ADMIN, ""
    if author is None or not _may_carry(me, peer, letter.origin):
        return "its origin is not the sender's to write for"
    receiver, own_job = kind_of(letter.destination)
    if receiver is None:
        return "no cell has the name of its destination"
    if letter.destination != me:
        return _objection_to_forwarding(
            me, (author, job), (receiver, own_job), letter, started
        )
    if letter.kind != "req":
        return ""
    if {author, receiver} == {Cell.SITE_JOB, Cell.SERVER_JOB} and job != own_job:
        return "it is of another job"
    return _why_no_door(receiver, author, letter)


def _may_carry(me: str, peer: Peer, origin: str) -> bool:
    """Return True if a message of `origin` may come over this connection."""
    mine, _ = kind_of(me)
    theirs, _ = kind_of(origin)
    is_of_a_site = mine in (Cell.SITE, Cell.SITE_JOB)
    if (
        is_of_a_site
        and peer.cell != SERVER
        and peer.cell.partition(".")[0] != me.partition(".")[0]
    ):
        return False  # no site connects to another; if one did, nothing of it would be taken
    if origin == peer.cell:
        return True
    if mine is Cell.SERVER:
        # A job's own connection may not be there yet; then its site carries for it, and for no other site.
        return (
            peer.kind is Cell.SITE
            and theirs is Cell.SITE_JOB
            and origin.startswith(f"{peer.cell}.")
        )
    if mine is Cell.SERVER_JOB:
        return peer.own and theirs in (Cell.SITE, Cell.SITE_JOB)
    is_parent = peer.cell == me.partition(".")[0]
    return (peer.kind is Cell.SERVER or is_parent) and theirs is Cell.SERVER_JOB


def _objection_to_forwarding(
    me: str,
    author: tuple[Cell, str],
    receiver: tuple[Cell, str],
    letter: Letter,
    started: Callable[[str], bool],
) -> str:
    """A parent forwards the streams of a job that it started, between that job's two ends, and nothing else."""
    job = receiver[1]
    if not job or not started(job):
        return "it is not for this cell, nor for a job that this process started"
    families = {letter.origin.partition(".")[0], letter.destination.partition(".")[0]}
    if me != SERVER and families != {me, SERVER}:
        return "it is for another site"
    if author[0] is Cell.SITE and receiver[0] is Cell.SERVER_JOB:
        door = (letter.channel, letter.topic)
        if letter.kind != "req" or door != (STREAM, ERROR):
            return "only a job writes to a job"
        return ""
    if {author[0], receiver[0]} != {Cell.SITE_JOB, Cell.SERVER_JOB} or author[1] != job:
        return "only the two ends of a job write to each other"
    if letter.kind != "req":
        return ""
    return _why_no_door(receiver[0], author[0], letter)


def _why_no_door(receiver: Cell, author: Cell, letter: Letter) -> str:
    """Return why no list opens this channel and topic."""
    door = (letter.channel, letter.topic)
    if letter.channel == STREAM:
        streams = STREAMS.get((receiver, author))
        if streams is None:
            return f"no stream of {author} is open"
        if letter.topic in (ACK, ERROR):
            return ""
        door = letter.stream
        if letter.topic == DATA and _lists(door, streams):
            return ""
    elif _lists(door, REQUESTS.get((receiver, author), frozenset())):
        return ""
    return f"{' '.join(door)} is closed to {author}"


def _lists(door: tuple[str, str], doors: frozenset[tuple[str, str]]) -> bool:
    channel, topic = door
    command, _, _ = topic.partition(":")
    return bool({door, (channel, ANY), (channel, f"{command}:{ANY}")} & doors)


def count_doors(receiver: Cell, requests: Iterable[str], streams: Iterable[str]) -> int:
    """Return how many of the doors that FLARE has registered in a cell, as `channel:topic`, are closed to everybody."""
    lists = [(requests, REQUESTS), (streams, STREAMS)]
    closed = 0
    for registered, opened in lists:
        doors = frozenset().union(
            *(doors for (cell, _), doors in opened.items() if cell is receiver)
        )
        channels = {channel for channel, _ in doors}
        for name in registered:
            channel, _, topic = name.partition(":")
            is_stream = channel == STREAM and topic in (DATA, ACK, ERROR)
            is_partly_open = _lists((channel, topic), doors)
            if topic == ANY:
                is_partly_open = channel in channels
            closed += not is_partly_open and not is_stream
    return closed


def why_not_inside(topic: object, job: object, sender_job: str) -> str:
    """Return why a site does not take the message inside a request to its agent; "" if it does.

    Args:
        topic: what the message inside asks.
        job: the job that it names, if any.
        sender_job: the job whose cell sent it; "" for the server.
    """
    if sender_job:
        if topic != NOTIFY or job != sender_job:
            return f"{topic!r} inside is closed to a job, or is about another job"
        return ""
    if not isinstance(topic, str) or topic not in FROM_SERVER:
        return f"{topic!r} inside is closed to the server"
    if topic in OF_A_JOB and not is_job(job):
        return f"{topic!r} inside names no job"
    return ""
