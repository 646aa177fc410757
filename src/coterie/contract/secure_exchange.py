"""One ask whose vectors the server sees as a sum alone: the exchange of `federation.average` where a run has secure sums."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from coterie.base.errors import InputError
from coterie.config.secure import SecureSums
from coterie.contract.elsewhere import AskedSum, integers_of, masked_fields
from coterie.contract.exchange import Exchange, QuorumError, shares_of, vectors_of
from coterie.contract.fixed_point import FixedPoint, whole_weights
from coterie.contract.masks import MaskedClient, MaskedSum, SumTerms, Words
from coterie.contract.replies import CURVATURE, Average, Replies
from coterie.contract.task import Task, is_exact_fact
from coterie.contract.wire import Answer

logger = logging.getLogger("coterie")
R = TypeVar("R", bound=tuple[Any, ...])
KEY_BYTES, SHARE_MESSAGE, COMMITMENT = 64, 148, 32
"""Bytes of a client's public keys, of two shares that are sealed for a peer, and of the hash of a seed."""
MOST_CLIPPED = 0.01
"""Share of clipped numbers above which a run says so: a mean of them is another one."""


def shown_beside_sums(task: Task[Any]) -> str:
    """Return the first field of a reply that says something of one client's vector although vectors are summed; "" if there is none.

    Losses may be told: they are metrics at models that the server knows. Numbers of rows, and yes and no, are public.
    """
    for key, kind in task.kinds.items():
        is_fact = kind == "other" and is_exact_fact(task.forms.get(key))
        if kind in (CURVATURE, "model") or (kind == "other" and not is_fact):
            return key
    return ""


@dataclass(frozen=True)
class SecureExchange(Exchange[R]):
    """One ask under secure sums. Its vectors are averaged behind masks, and never stacked; other fields travel as always.

    A masked ask is not repeated, for who failed or for whom the norm would be far from the others': two sums that differ by one client
    give that client's vector by subtraction. A vector's norm is unknown.
    """

    secure: SecureSums = field(default_factory=SecureSums)

    def collect(self) -> Replies[R]:
        """The replies of all clients. Raises `InputError` for a task whose reply has a vector of each."""
        shown = next(iter(self._vector_kinds()), "") or shown_beside_sums(self.task)
        if shown:
            raise InputError(
                f"{self.task.name} replies {shown!r} of each client, and under [secure] vectors are told as sums alone; use "
                "federation.average, or leave out [secure]"
            )
        return super().collect()

    def average(self, weights: Mapping[str, float]) -> Average[R]:
        """The means of vectors with these `weights` of clients, opened behind masks; all else stacked.

        Raises:
            InputError: Fewer than three clients, or one has nearly all of the weight.
            QuorumError: Too few sent their vector.
        """
        shown = shown_beside_sums(self.task)
        if shown:
            raise InputError(
                f"{self.task.name} replies {shown!r} beside its vectors, which says something of a single one; leave out [secure]"
            )
        whole = whole_weights(weights)
        replies, total = self._open_sum(whole)
        return self._means(replies, total, whole)

    def _open_sum(self, weights: Mapping[str, int]) -> tuple[Replies[R], Words]:
        """What the clients replied, and the sum of their integers opened behind masks.

        Raises:
            InputError: Fewer than three clients, or one has nearly all of the weight.
            QuorumError: Too few sent their vector.
        """
        started = time.perf_counter()
        survivors = self.secure.survivors(len(self.ask.names))
        terms = SumTerms(self._context(), weights, survivors)
        elsewhere = self._open_elsewhere(terms, started)
        if elsewhere is not None:
            return elsewhere
        clients, server = begin_sum(terms)
        self._count()
        answer, sent = self._carry(self.ask)
        replies = self._check_replies(self.ask, answer)
        masked = self._mask(replies, clients, server)
        sent += self._bytes_beside(replies, len(clients))
        self._record(
            self.ask,
            len(self.ask.names),
            len(replies.failed),
            answer,
            sent,
            started,
        )
        self._settle(replies, answer)
        try:
            terms.check_survivors(masked)
        except InputError as error:
            raise self._not_opened(error) from error
        revealed = {name: clients[name].reveal(masked) for name in masked}
        return replies, server.open(masked, revealed)

    def _open_elsewhere(
        self, terms: SumTerms, started: float
    ) -> tuple[Replies[R], Words] | None:
        """The same among clients that are other parties, who mask themselves; None where they are on this machine."""
        replies: Replies[R] | None = None
        hidden = masked_fields(self.task)
        beside = {k: v for k, v in self.task.kinds.items() if k not in (*hidden, "own")}
        width = self._width()

        def accept(answer: Answer) -> tuple[str, ...]:
            nonlocal replies
            self._count()
            self._count_work(answer)
            replies, _ = self._check_form(self.ask, answer, beside)
            names, failed = self.ask.names, replies.failed
            sent = 8 * width + self._bytes_beside(replies, len(names))
            if answer.blocks:
                sent += answer.blocks[0].bytes_of_one()
            self._record(self.ask, len(names), len(failed), answer, sent, started)
            self._settle(replies, answer)
            return replies.clients

        asked = AskedSum(self.ask, terms.weights, terms.threshold, width, accept)
        try:
            total = self.engine.sum_elsewhere(asked)
        except InputError as error:
            raise self._not_opened(error) from error
        if total is None or replies is None:
            return None
        return replies, total

    def _width(self) -> int:
        """Integers of one client's vectors."""
        layout, width = self.engine.layout, 0
        for key in masked_fields(self.task):
            if self.task.kinds[key] == "words":
                width += layout.dim
            else:
                width += self.task.layout_of(key, self.ask.arguments, layout).size + 1
        return width

    def _not_opened(self, error: InputError) -> QuorumError:
        """The failure of a round whose sum stays closed."""
        return QuorumError(
            f"round {self.ask.context.round}: {error}. Correct or remove the clients that failed, then resume: a masked ask is "
            "not repeated"
        )

    def _context(self) -> bytes:
        """Names this sum among all others, so that no message of one serves in another."""
        return repr((self.ask.context, self.task.name)).encode()

    def _too_long(
        self,
        names: tuple[str, ...],
        norms: Mapping[str, Tensor],
        usual: Mapping[str, float],
    ) -> dict[str, str]:
        """Nobody: the server knows no norm."""
        return {}

    def _mask(
        self,
        replies: Replies[R],
        clients: Mapping[str, MaskedClient],
        server: MaskedSum,
    ) -> dict[str, Words]:
        """The masked integers of each client that replied."""
        masked: dict[str, Words] = {}
        for row, name in enumerate(replies.clients):
            words = self._words(replies, row, name, server.terms.weights[name])
            masked[name] = clients[name].mask(words, server.inbox(name))
        return masked

    def _words(self, replies: Replies[R], row: int, name: str, weight: int) -> Words:
        """The integers of a client that replied: its vectors behind each other, each with the count of clipped numbers."""
        values = {
            key: vectors_of(replies, key)[row] for key in masked_fields(self.task)
        }
        return integers_of(self.task, values, self.secure.clip, weight)

    def _bytes_beside(self, replies: Replies[R], count: int) -> int:
        """Bytes of one client's keys and shares, and what its words take more than its vectors."""
        beside = KEY_BYTES + COMMITMENT + (count - 1) * SHARE_MESSAGE
        for key in self._vector_kinds():
            vectors = replies.fields.get(key)
            if isinstance(vectors, Tensor):
                width = vectors.shape[-1]
                beside += 8 * (width + 1) - width * vectors.element_size()
        return beside

    def _means(
        self, replies: Replies[R], total: Words, weights: Mapping[str, int]
    ) -> Average[R]:
        """The means of the survivors from the sum of their integers."""
        code = FixedPoint(self.secure.clip)
        shares = shares_of(replies.clients, weights)
        means: dict[str, Tensor] = {}
        layout, low = self.engine.layout, 0
        for key in self._vector_kinds():
            width = self.task.layout_of(key, self.ask.arguments, layout).size
            words = total[low : low + width + 1]
            low += width + 1
            mean, clipped = code.decode(words, int(shares.sum()))
            self._say_clipped(key, clipped, width * len(replies.clients))
            means[key] = mean.to(self.engine.x)
        return Average(replies, means, shares / shares.sum())

    def _say_clipped(self, key: str, clipped: int, numbers: int) -> None:
        if clipped > MOST_CLIPPED * numbers:
            logger.warning(
                "round %d: %.0f %% of the numbers of %s were clipped to %g; raise secure.clip",
                self.ask.context.round,
                math.ceil(100 * clipped / numbers),
                key,
                self.secure.clip,
            )


def begin_sum(terms: SumTerms) -> tuple[dict[str, MaskedClient], MaskedSum]:
    """Run steps 0 and 1 of a sum among clients of this machine."""
    clients = {name: MaskedClient(name, terms) for name in terms.names}
    keys = {name: client.public_keys() for name, client in clients.items()}
    dealt = {name: client.deal(keys) for name, client in clients.items()}
    return clients, MaskedSum(terms, keys, dealt)
