"""The server half of an engine whose clients are sites elsewhere, whatever carries the messages.

An ask is one message to each client, all at once, and one reply each; encoded by `contract.encoding`, so nothing is pickled.
Every message has a serial number that its reply repeats: a reply to another message is dropped, and a site refuses a message
older than one it has seen.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from coterie.base.errors import InputError, RunError, plain, require
from coterie.base.loss import Loss, RowLoss
from coterie.base.names import Names
from coterie.base.vector import Layout
from coterie.compute.cohort import Shard
from coterie.compute.workspace import Workspace
from coterie.config.data import Tables
from coterie.contract.elsewhere import AskedSum
from coterie.contract.encoding import encode
from coterie.contract.engine import Engine
from coterie.contract.federation import Federation
from coterie.contract.masks import Words
from coterie.contract.replies import Replies
from coterie.contract.task import Task
from coterie.contract.wire import Answer, Ask, ClientCost
from coterie.data.tables.agreement import agree
from coterie.data.tables.description import TableDescription
from coterie.data.tables.folder import server_rows
from coterie.data.tables.recipe import Recipe, describe
from coterie.sites.descriptions import longest_head
from coterie.sites.remote_sum import RemoteSum
from coterie.sites.replies import (
    FRAME,
    answer_of,
    counts_beyond,
    events_beyond,
    facts_of_reply,
    moments_apart,
    most_bytes,
    notes_of,
    read_reply,
    undraftable,
)
from coterie.sites.settings import short
from coterie.sites.signed_sum import Identity
from coterie.sites.tables import Facts, RemoteClients, table_options, table_settings

T = TypeVar("T")
PING_SECONDS = 5.0
HASH_LENGTH = 64
WORD_BYTES = 8
"""Of a masked integer."""
PATIENCE = 0.5
"""Seconds for which an ask waits for the pings of those that are gone."""


class Link(Protocol):
    """Carries messages to sites.

    Attributes:
        names: names of the sites.
    """

    names: Sequence[str]

    def call(self, name: str, message: bytes, timeout: float) -> bytes:
        """The reply of a site. Raises `TimeoutError`, or `ConnectionError` with what went wrong; anything else ends the run."""

    def ping(self, name: str, timeout: float) -> bool:
        """Return True if the site is there and not busy with an earlier message."""


class Status(NamedTuple):
    """The place where an ask stands, for whoever watches."""

    round: int
    ask: int
    task: str
    waiting: tuple[str, ...]
    gone: tuple[str, ...]


class _FewerError(Exception):
    """Sites were refused while all agreed on a recipe, which must begin anew without them."""


class _Reply(NamedTuple):
    values: dict[str, Any]
    cost: ClientCost


class Remote(Engine):
    """An engine over a `Link`; one at a time it serves a seed's rows (`open`) and a method's model (`prepare`).

    Args:
        link: to the sites.
        run: name of the run, under which sites keep what they remember.
        timeout: seconds that a site has for a reply. One that lets it pass is left out until it answers a ping.
        plan: hash of the plan, which sites compare with that of the plan they have approved.
        accept: `SITE:COLUMN` of moments that are taken although they are far from those of the others.
        goes_on: whether the run begins without sites that cannot take part, as long as half of them are there.
        differs: says how the description of a site with a seed is not what the plan states of it, or "".
        head: bytes that may come before the tensors of a reply; default: as many as for a plan that states no columns.
        barred: says why sites may not be asked, by name; it is called before each ask.
        revoked: returns the text of the authority's list of revoked certificates, which sites are sent before they read their rows; "":
            there is no authority.
        authority: what the server knows of the sites' certificates, by which it leaves out of a sum behind masks whoever has none that
            is valid; None: nothing.
        watch: called whenever an ask begins, or a reply to it comes.

    Attributes:
        clients, unseen, layout, has_server, x, model, loss: as in `Engine`; those of the model after `prepare`.
        refused: why sites take no part in the run any more, by name.
    """

    def __init__(
        self,
        link: Link,
        run: str,
        *,
        timeout: float = 600.0,
        plan: str = "",
        watch: Callable[[Status], None] | None = None,
        accept: Collection[str] = (),
        goes_on: bool = False,
        barred: Callable[[], Mapping[str, str]] = dict,
        revoked: Callable[[], str] = str,
        differs: Callable[
            [str, TableDescription, int], str
        ] = lambda site, description, seed: "",
        head: int | None = None,
        authority: Identity | None = None,
    ) -> None:
        require(
            bool(link.names), "there is no site to ask; start the sites' clients first"
        )
        self.clients = Names(sorted(link.names))
        self.unseen = ()
        self.has_server = self.sends_own = False
        self.model: nn.Module = nn.Linear(
            1, 1
        )  # until `prepare`: the tasks before it send no model vectors
        self.layout = Layout.of(self.model)
        self.x = torch.zeros(self.layout.size)
        self.loss = Loss("own")
        self._link, self._run, self._timeout, self._watch = link, run, timeout, watch
        self._goes_on = goes_on
        if head is None:
            head = longest_head({})
        self._longest_head = head
        self._plan, self._accept, self._barred, self._differs = (
            plan,
            frozenset(accept),
            barred,
            differs,
        )
        self._revoked, self._authority = revoked, authority
        self._described: dict[str, TableDescription] = {}
        self._here: Shard | None = None
        self._facts: dict[str, Facts] = {}
        self._serial = 0
        self._silent: set[str] = set()
        self._lost: dict[str, int] = {}
        self._garbled: set[str] = set()
        self.refused: dict[str, str] = {}
        self._left_out: dict[str, str] = {}
        self._began = self._in_folds = False
        self._pings: dict[str, Future[bool]] = {}
        self._pool = ThreadPoolExecutor(
            max_workers=len(self.clients), thread_name_prefix="coterie"
        )

    # ---- rows and model

    def open(self, data: Mapping[str, Any], seed: int) -> RemoteClients:
        """Let each site read its rows, and agree on a recipe for all.

        Args:
            data: the [data] table of the experiment.
            seed: seed of the split; how to split, each site takes from its own copy of the plan.

        Raises:
            RunError: a site cannot, with its reason.
        """
        options = table_options(data)
        settings = table_settings(options)
        server_file = options.pop("server_file", None)
        revoked = self._revoked()
        if revoked:
            self._all("revoked", {"list": revoked}, dict)
        notes = self._all("open", {"seed": seed}, notes_of)
        recipe = self._agree_on_recipe(settings, seed)
        classes = len(recipe["label"]["classes"])
        encoded = self._all(
            "encode",
            {"recipe": json.dumps(recipe)},
            lambda r: (facts_of_reply(r, classes), notes_of(r)),
        )
        rows = {name: description.rows for name, description in self._described.items()}
        miscounted = [
            name
            for name, (site_facts, _) in encoded.items()
            if site_facts.sizes["train"] != rows[name]
        ]
        self._refuse(
            "encode",
            {},
            dict.fromkeys(
                miscounted, "its facts count other training rows than it has described"
            ),
        )
        facts = {
            name: reply[0] for name, reply in encoded.items() if name not in miscounted
        }
        sentences = [
            *map(plain, recipe["notes"]),
            *(n for name in facts for n in (*notes[name], *encoded[name][1])),
        ]
        sentences += [
            f"{name} takes no part: {why}" for name, why in self.refused.items()
        ]
        self.clients = Names(facts)
        server = None
        if server_file is not None:
            server = server_rows(server_file, recipe)
        self.has_server = server is not None
        return RemoteClients(
            facts,
            recipe,
            name=str(data.get("name") or data.get("folder")),
            notes=sentences,
            server=server,
        )

    def _agree_on_recipe(self, settings: Tables, seed: int) -> Recipe:
        """A recipe on which all agree whose statistics can be read."""
        while True:
            view = Federation(self, self._present, seed)
            self._described = {}
            try:
                return agree(view.clients, settings, partial(self._statistics, view))
            except _FewerError:
                continue
            except InputError as error:  # it may quote names of columns, and cells
                refusals = list(self._described)
                if self._goes_on:
                    refusals = undraftable(self._described, settings, self._goes_on)
                if 2 * len(refusals) > len(self._described):
                    raise InputError(plain(str(error))) from error
                self._refuse(
                    describe.name, {}, dict.fromkeys(refusals, plain(str(error)))
                )
            except (
                ArithmeticError,
                AttributeError,
                LookupError,
                TypeError,
                ValueError,
            ) as error:
                why = (
                    f"no recipe can be made of its description ({type(error).__name__})"
                )
                self._refuse(
                    describe.name,
                    {},
                    dict.fromkeys(
                        undraftable(self._described, settings, self._goes_on), why
                    ),
                )

    def _statistics(
        self, view: Federation, task: Task[Any], **payload: Any
    ) -> Replies[Any]:
        replies = view.ask(view.clients, task, **payload)
        unreadable = dict(replies.failed)
        chosen = json.loads(payload.get("categorical", "[]"))
        for name, text in zip(
            replies.clients, replies.fields.get("text", ()), strict=False
        ):
            try:
                self._described[name] = TableDescription.parse(text, chosen)
                why = self._differs(name, self._described[name], view.seed)
                if why:
                    raise InputError(why)
            except InputError as error:
                unreadable[name] = str(error)
        if "counts" in replies.fields:
            rows = {name: self._described[name].rows for name in replies.clients}
            unreadable |= counts_beyond(replies, rows)
        described = {name: table.rows for name, table in self._described.items()}
        unreadable |= events_beyond(replies, described)
        costs = view.session.asks[-1].costs
        sentences = {
            c.client: c.failed
            for c in costs
            if c.failed and c.client not in self._garbled
        }
        self._refuse(
            task.name,
            sentences,
            {n: why for n, why in unreadable.items() if n not in sentences},
        )
        if unreadable or sentences:
            raise _FewerError
        if "counts" in replies.fields:
            columns = json.loads(payload["schema"])
            doubtful = [
                moments
                for moments in moments_apart(replies, columns)
                if moments.key not in self._accept
            ]
            if doubtful and self._goes_on:
                farthest = max(
                    doubtful, key=lambda moments: moments.distance
                )  # beside it, honest sites may look far, too
                self._refuse(task.name, {farthest.site: farthest.sentence}, {})
                raise _FewerError
            if doubtful:
                raise RunError(
                    f"the run cannot begin: {doubtful[0].sentence}. Ask that site; if it is right, submit with "
                    f"{' '.join(shlex.join(['--accept', plain(moments.key, 80)]) for moments in doubtful[:3])}"
                )
        return replies

    def prepare(
        self,
        module: nn.Module,
        clients: RemoteClients,
        *,
        pair: str,
        resume: bool = False,
        kernel: str = "auto",
        loss: str | RowLoss = "auto",
        in_folds: bool = False,
    ) -> None:
        """Send the model; the rows on which it is trained, and what is frozen, each site takes from its own copy of the plan.

        Args:
            module: the initial model.
            clients: what `open` gave.
            pair: name of this method and seed within the run.
            resume: keep what clients remember of this pair.
            kernel: of local training, "auto" or "loop".
            loss: loss of the plan, as the sites have it.
            in_folds: whether sites keep to themselves what models say of their test rows, those of one fold.
        """
        workspace = Workspace(module, loss, clients[0], kernel=kernel)
        self._here = Shard(clients, workspace)
        self.model, self.layout, self.x = (
            workspace.model,
            workspace.layout,
            workspace.x.clone(),
        )
        self.loss = workspace.loss
        message = {
            "pair": pair,
            "resume": resume,
            **{f"state/{k}": v for k, v in module.state_dict().items()},
        }
        classes = len(clients.classes)
        self._left_out = {}
        facts = self._all("prepare", message, lambda r: facts_of_reply(r, classes))
        self._facts, self._began, self._in_folds = (
            {**clients.facts, **facts},
            True,
            in_folds,
        )

    def _all(
        self,
        do: str,
        message: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], T],
    ) -> dict[str, T]:
        """Return what `read` makes of the replies of all sites to one message."""
        messages = {name: {"do": do, **message} for name in self._present}
        replies = self._send(messages, Status(0, 0, do, self.clients, ()), FRAME)
        values: dict[str, T] = {}
        sentences: dict[str, str] = {}
        unreadable: dict[str, str] = {}
        for name, reply in replies.items():
            if reply.cost.failed and name in self._garbled:
                unreadable[name] = reply.cost.failed
                continue
            if reply.cost.failed:
                sentences[name] = reply.cost.failed
                continue
            try:
                values[name] = read(reply.values)
            except InputError as error:
                unreadable[name] = str(error)
        self._refuse(do, sentences, unreadable)
        return values

    @property
    def _present(self) -> tuple[str, ...]:
        return tuple(name for name in self.clients if name not in self.refused)

    def _refuse(
        self, do: str, sentences: Mapping[str, str], unreadable: Mapping[str, str]
    ) -> None:
        """Go on without sites whose reply cannot be read, if they are few. What a site says in words, a person must mend first, unless
        the plan goes on without it.

        Once a method has begun, a site that fails before a later one is left out of that one.
        """
        remaining = [name for name in self._present if name not in unreadable]
        begun = do == "prepare" and self._began
        goes_on = begun or self._goes_on
        if goes_on:
            remaining = [name for name in remaining if name not in sentences]
        refuses_to_begin = bool(sentences) and not goes_on
        if refuses_to_begin or 2 * len(remaining) < len(self._link.names):
            shown = "; ".join(
                f"{name} ({why})" for name, why in {**sentences, **unreadable}.items()
            )
            raise RunError(
                f"the run cannot begin ({do}): {shown}. Correct these sites, then continue with --resume"
            )
        if begun:
            self._left_out.update(sentences)
        else:
            self.refused.update(sentences)
        self.refused.update(
            {
                name: f"its reply to {short(do)} is refused: {why}"
                for name, why in unreadable.items()
            }
        )

    # ---- what the run loop uses

    def sizes(self, part: str) -> dict[str, int]:
        """Rows of each client of which it may be asked: none of a fold that is tested."""
        if self._in_folds and part == "test":
            return dict.fromkeys(self.clients, 0)
        return self.rows_of(part)

    def rows_of(self, part: str) -> dict[str, int]:
        """Rows of each client."""
        return {name: self._facts[name].sizes.get(part, 0) for name in self.clients}

    def ask(self, ask: Ask) -> Answer:
        """Run the task at its sites, all at once."""
        messages = {
            name: {"do": "task", "ask": ask.to((name,))}
            for name in ask.names
            if name != "server"
        }
        context = ask.context
        most = most_bytes(ask, self.layout)
        replies = self._send(
            messages, Status(context.round, context.ask, ask.task, ask.names, ()), most
        )
        answers = [_answer(name, ask, reply) for name, reply in replies.items()]
        if "server" in ask.names and self._here is not None:
            answers.append(self._here.answer(ask.to(("server",))))
        return replace(
            Answer.join(answers), costs=tuple(reply.cost for reply in replies.values())
        )

    def sum_elsewhere(self, asked: AskedSum) -> Words:
        """Let the sites add their vectors behind masks; as of `Engine`."""
        ask = asked.ask
        context = ask.context
        most = FRAME + asked.width * WORD_BYTES + most_bytes(ask, self.layout)

        def send(
            step: str, messages: Mapping[str, Mapping[str, Any]]
        ) -> dict[str, _Reply]:
            about = f"{short(ask.task)}, {step}"
            status = Status(context.round, context.ask, about, tuple(messages), ())
            steps = {
                name: {"do": "sum", "step": step, **message}
                for name, message in messages.items()
            }
            return self._send(steps, status, most)

        return RemoteSum(asked, send, self._authority).run()

    def save_memory(self) -> dict[str, Tensor]:
        """Return what the server remembers; what a client does stays at its site, which keeps it for a resumed run."""
        if self._here is None:
            return {}
        return self._here.memory.save()

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Restore what the server remembered. A site takes what its client remembers from its own disk, and from nobody else."""
        if self._here is not None:
            self._here.memory.load(saved, ("server",))

    def sign_heads(
        self, sign: Callable[[str, str], Mapping[str, str]]
    ) -> list[dict[str, str]]:
        """Let each site tell the hash of its log's last line, and give it what `sign` makes of its name and that hash; returns all."""
        heads = {
            name: reply.values.get("head")
            for name, reply in self._tell_sites(
                "head", dict.fromkeys(self._present, "")
            ).items()
        }
        signed = {
            name: dict(sign(name, head))
            for name, head in heads.items()
            if isinstance(head, str) and len(head) == HASH_LENGTH and head.isalnum()
        }
        self._tell_sites(
            "signed", {name: json.dumps(values) for name, values in signed.items()}
        )
        return list(signed.values())

    def _tell_sites(self, do: str, texts: Mapping[str, str]) -> dict[str, _Reply]:
        messages = {name: {"do": do, "signed": text} for name, text in texts.items()}
        return self._send(messages, Status(0, 0, do, tuple(texts), ()), FRAME)

    def close(self) -> None:
        """Free the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- messages

    def _send(
        self, messages: Mapping[str, Mapping[str, Any]], status: Status, most: int
    ) -> dict[str, _Reply]:
        """One message to each client and its reply of at most `most` bytes; all at once."""
        self._ping([n for n in self._silent if n in messages])
        out = {**self._left_out, **self.refused, **self._barred()}
        waiting = [n for n in messages if n not in self._silent and n not in out]
        self._tell(status, waiting)
        futures: dict[str, Future[_Reply]] = {}
        for name in tuple(waiting):
            self._serial += 1
            futures[name] = self._pool.submit(
                self._call, name, messages[name], self._serial, most
            )

        def note_reply(name: str, _: Future[_Reply]) -> None:
            waiting.remove(name)
            self._tell(status, waiting)

        for name, future in futures.items():
            future.add_done_callback(partial(note_reply, name))
        absent = f"it let {self._timeout:g} s pass before, and does not answer now"
        replies = {}
        for name in messages:
            if name in futures:
                replies[name] = futures[name].result()
            else:
                cost = ClientCost(name, 0, 0, 0.0, out.get(name, absent))
                replies[name] = _Reply({}, cost)
        return replies

    def _call(
        self, name: str, message: Mapping[str, Any], serial: int, most: int
    ) -> _Reply:
        # What a task remembered counts only if its reply came: the site takes back what the lost one wrote.
        envelope = {
            "serial": serial,
            "run": self._run,
            "plan": self._plan,
            "undo": self._lost.pop(name, None),
        }
        sent = encode({**message, **envelope})
        started = time.perf_counter()
        values: dict[str, Any] = {}
        received: Any = b""
        try:
            received = self._link.call(name, sent, self._timeout)
            values, why = read_reply(received, serial, most, self._longest_head)
            self._garbled.discard(name)
        except InputError as error:
            self._garbled.add(name)
            why = str(error)
        except TimeoutError:
            self._silent.add(name)
            self._lost[name] = serial
            why = f"no reply within {self._timeout:g} s"
        except ConnectionError as error:
            self._lost[name] = serial
            why = plain(str(error))
        seconds = time.perf_counter() - started
        bytes_received = 0  # of what is no message
        if isinstance(received, bytes):
            bytes_received = len(received)
        cost = ClientCost(name, len(sent), bytes_received, seconds, why)
        return _Reply(values, cost)

    def _ping(self, names: Sequence[str]) -> None:
        """Let those that answer a ping take part again. Nobody waits for long: an answer may also come during a later ask."""
        for name in names:
            if name not in self._pings:
                self._pings[name] = self._pool.submit(self._answers_ping, name)
        wait([self._pings[name] for name in names], timeout=PATIENCE)
        for name in names:
            if self._pings[name].done() and self._pings.pop(name).result():
                self._silent.discard(name)

    def _answers_ping(self, name: str) -> bool:
        try:
            return self._link.ping(name, min(PING_SECONDS, self._timeout))
        except (TimeoutError, ConnectionError):
            return False

    def _tell(self, status: Status, waiting: Sequence[str]) -> None:
        if self._watch is not None:
            self._watch(
                status._replace(
                    waiting=tuple(waiting), gone=tuple(sorted(self._silent))
                )
            )


def _answer(name: str, ask: Ask, reply: _Reply) -> Answer:
    """The answer of one client; whatever is wrong with it is why this client failed."""
    if reply.cost.failed:
        return Answer(failed={name: reply.cost.failed})
    try:
        return answer_of(name, ask, reply.values)
    except InputError as error:
        return Answer(
            failed={
                name: plain(f"its reply to {short(ask.task)} cannot be read ({error})")
            }
        )
