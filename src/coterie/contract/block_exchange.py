"""The average of many clients' vectors, of which only some are held at a time: the exchange of `federation.average`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from coterie.base.vector import Sum
from coterie.contract.exchange import SINGLE, Exchange, refuse, shares_of
from coterie.contract.replies import (
    Average,
    Replies,
    find_strays,
    medians,
    outliers,
    stack,
)
from coterie.contract.wire import Answer, Ask, Block

R = TypeVar("R", bound=tuple[Any, ...])


class BlockExchange(Exchange[R]):
    """One ask of more clients than those whose vectors are held at once: they are averaged block by block."""

    def average(self, weights: Mapping[str, float]) -> Average[R]:
        """The means of vectors that come in blocks and are forgotten once they are added, in the order of names.

        So if one is in the sums that is refused later, or a client that failed answers when it is asked again, all are asked anew, from
        the memory that they had before.
        """
        at_once = self.held_at_once()
        self._count()
        tally = self._sum_blocks([self.ask], weights, at_once)
        answers = [tally.answer]
        if self._too_few(tally.replies) and tally.replies.failed:
            self._count()
            asks = [
                self.ask.again(tally.replies.clients),
                self._retry(tally.replies.failed),
            ]
            tally = self._sum_blocks(asks, weights, at_once)
            answers.append(tally.answer)
        # A sum holds a vector that is refused: all others are asked once more. There are fewer each time, as another may fail then.
        while tally.spoilt and len(tally.replies):
            if self._too_few(tally.replies):
                break
            refused = tally.replies.failed
            asks = [ask.again(tally.replies.clients) for ask in tally.asks]
            tally = self._sum_blocks(asks, weights, at_once, tally.medians, refused)
            answers.append(tally.answer)
        self._settle(tally.replies, Answer.join(answers))
        return tally.average(weights)

    def _sum_blocks(
        self,
        asks: Sequence[Ask],
        weights: Mapping[str, float],
        at_once: int,
        usual: Mapping[str, float] | None = None,
        refused: Mapping[str, str] | None = None,
    ) -> _Tally[R]:
        """The sums over the clients of these asks, block by block.

        Args:
            asks: to different clients.
            weights: by client.
            at_once: how many clients are asked at once; neither the sums nor their bits depend on it.
            usual: norms of vectors by field, if they are known; a vector that is far longer is then in no sum.
            refused: who is asked no more, and why.
        """
        started = time.perf_counter()
        asks = [ask for ask in asks if ask.names]
        names = tuple(sorted(name for ask in asks for name in ask.names))
        sums: dict[str, Sum] = {}
        norms: dict[str, list[Tensor]] = {}
        scalar_kinds = dict(self.task.kinds)
        for key in self._vector_kinds():
            sums[key], norms[key] = Sum(), []
            del scalar_kinds[key]
        block_answers: list[Answer] = []
        sent = 0
        for low in range(0, len(names), at_once):
            block_answer, bytes_of_one = self._add_block(
                asks, names[low : low + at_once], weights, usual, sums, norms
            )
            block_answers.append(block_answer)
            sent = max(sent, bytes_of_one)
        answer = Answer.join([Answer(failed=refused or {}), *block_answers])
        added = [name for block in answer.blocks for name in block.names]
        replies, _ = self._check_form(self.ask, answer, scalar_kinds)
        accepted = [i for i, name in enumerate(added) if name not in replies.failed]
        lengths: dict[str, Tensor] = {}
        for key, parts in norms.items():
            if parts:
                lengths[key] = torch.cat(parts)[accepted]
        if usual is None:
            usual = medians(lengths)
        replies = replies.without(self._too_long(replies.clients, lengths, usual))
        failed = sum(name in replies.failed for name in names)
        self._record(asks[-1], len(names), failed, answer, sent, started)
        return _Tally(asks, sums, usual, replies, answer, len(added) > len(replies))

    def _add_block(
        self,
        asks: Sequence[Ask],
        names: tuple[str, ...],
        weights: Mapping[str, float],
        usual: Mapping[str, float] | None,
        sums: Mapping[str, Sum],
        norms: Mapping[str, list[Tensor]],
    ) -> tuple[Answer, int]:
        """Ask some clients and add their vectors; what is left of the answer, and the bytes of one client's reply."""
        answer, sent = self._carry_to(asks, names)
        strays = find_strays(answer.blocks, names)
        # Each block for itself, since to stack vectors is to copy them.
        ask = self.ask.to(names)
        parts = [
            self._vectors(block.without(strays), ask, usual) for block in answer.blocks
        ]
        # Sums are in the order of names. Clients whose rows lie together are added at once.
        rows: list[tuple[str, int, int]] = []
        for number, (part, _) in enumerate(parts):
            rows += [(name, number, i) for i, name in enumerate(part.clients)]
        for number, run in groupby(sorted(rows), key=itemgetter(1)):
            part, lengths = parts[number]
            places = [i for _, _, i in run]
            span = slice(places[0], places[-1] + 1)
            shares = shares_of(part.clients[span], weights)
            for key, total in sums.items():
                total.add(shares, part.fields[key][span])
                norms[key].append(lengths[key][span])
        # The vectors are added, and the next ask may overwrite them; what is kept of the others is small.
        unsummed: list[Block] = []
        failed = {**answer.failed, **strays}
        for part, _ in parts:
            failed.update(part.failed)
            if not len(part):
                continue
            values: dict[str, Any] = {}
            for key, value in part.fields.items():
                if key not in sums:
                    is_tensor = isinstance(value, Tensor)
                    values[key] = value.clone() if is_tensor else value
            unsummed.append(Block(part.clients, values))
        scalars: Replies[R] = stack(names, unsummed, failed)
        blocks: tuple[Block, ...] = ()
        if scalars.clients:
            blocks = (Block(scalars.clients, scalars.fields),)
        return replace(answer, blocks=blocks, failed=scalars.failed), sent

    def _carry_to(
        self, asks: Sequence[Ask], names: tuple[str, ...]
    ) -> tuple[Answer, int]:
        """The answer of some clients, each to its own ask."""
        name_set = frozenset(names)
        answers: list[Answer] = []
        most_sent = 0
        for ask in asks:
            part = tuple(name for name in ask.names if name in name_set)
            if part:
                answer, sent = self._carry(ask.to(part), keep=len(asks) > 1)
                answers.append(answer)
                most_sent = max(most_sent, sent)
        return Answer.join(answers), most_sent

    def _vectors(
        self, block: Block, ask: Ask, usual: Mapping[str, float] | None
    ) -> tuple[Replies[R], dict[str, Tensor]]:
        """The replies of a block whose vectors may be added, and their norms [n] by field."""
        kinds = self._vector_kinds()
        answer = Answer((block,) if block.names else ())
        for key in kinds:
            value = block.values.get(key)
            if isinstance(value, Tensor) and value.ndim != 2:
                why = f"field {key!r} has shape {list(value.shape)}; {SINGLE}"
                answer = Answer(failed=dict.fromkeys(block.names, why))
        replies, norms = self._check_form(ask, answer, kinds)
        refused = outliers(replies.clients, norms, usual or {}, self.max_norm)
        return refuse(replies, norms, refused)


@dataclass(frozen=True)
class _Tally(Generic[R]):
    """The answers of clients, their vectors added up.

    Attributes:
        asks: what they were asked.
        sums: of vectors, by field.
        medians: medians of the norms of vectors, by field.
        replies: the other fields of those whose reply is accepted.
        answer: of all, without fields that are vectors.
        spoilt: whether the vector of a client that is refused is in the sums.
    """

    asks: Sequence[Ask]
    sums: Mapping[str, Sum]
    medians: Mapping[str, float]
    replies: Replies[R]
    answer: Answer
    spoilt: bool

    def average(self, weights: Mapping[str, float]) -> Average[R]:
        """The means: each sum is divided once, by that of the weights."""
        shares = shares_of(self.replies.clients, weights)
        weight_sum = float(shares.sum())
        means = {key: total.divide(weight_sum) for key, total in self.sums.items()}
        return Average(self.replies, means, shares / weight_sum)
