"""The server's half of one sum behind masks among sites: it carries what they say to each other, and opens the sum.

A site that fails in a step takes no part in those that follow. Until integers have left, its failure costs nothing; later its masks are
removed with the shares of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from coterie.base.errors import InputError, plain
from coterie.contract.elsewhere import AskedSum
from coterie.contract.masks import Dealt, MaskedSum, SumTerms, Words
from coterie.contract.replies import list_failures
from coterie.contract.wire import Answer, ClientCost
from coterie.sites.replies import answer_of
from coterie.sites.signed_sum import Identity, keys_to_sign, survivors_to_sign
from coterie.sites.sum_messages import (
    SignedKeys,
    pack,
    parse_dealt,
    parse_keys,
    parse_names,
    parse_revealed,
    parse_signature,
    spell_bytes,
    spell_keys,
    unpack,
)

T = TypeVar("T")
_SENTENCE = 200
"""Characters of what failed, in an error."""


class Reply(Protocol):
    """What a site replied to a message, and what that cost."""

    @property
    def values(self) -> Mapping[str, Any]:
        """Fields of the reply."""

    @property
    def cost(self) -> ClientCost:
        """Bytes and seconds, and why the site failed, or ""."""


Send = Callable[[str, Mapping[str, Mapping[str, Any]]], Mapping[str, Reply]]
"""Sends one message of a step to each of some sites, all at once, and returns the replies."""


@dataclass
class RemoteSum:
    """One sum; `run` is called once.

    Args:
        asked: what is asked.
        send: carries the messages.
        authority: what the server knows of the sites' certificates; None: it believes their signatures, as sites do not.
    """

    asked: AskedSum
    send: Send
    authority: Identity | None = None
    _failed: dict[str, str] = field(default_factory=dict)
    _costs: dict[str, ClientCost] = field(default_factory=dict)

    def run(self) -> Words:
        """Return the sum [width] over those who were accepted.

        Raises:
            InputError: Too few sites took part in a step; the sentence says who failed and why.
        """
        names, ask = self.asked.ask.names, self.asked.ask
        weights = pack({"weights": dict(self.asked.weights)})
        begun = self._step(
            "begin",
            {name: {"ask": ask, "content": weights} for name in names},
            lambda name, values: _begun(values),
        )
        terms, keys = self._agreed(begun)
        self._require_enough(keys, "began")

        roster = pack({"keys": {name: spell_keys(keys[name]) for name in keys}})
        dealt = self._step(
            "deal",
            {name: {"content": roster} for name in keys},
            lambda name, values: parse_dealt(unpack(values.get("content"))),
        )
        self._require_enough(dealt, "dealt shares")
        server = MaskedSum(terms, {name: of.keys for name, of in keys.items()}, dealt)

        masked, answers = self._masked(server, self._still_in(begun, dealt))
        accepted = self.asked.accept(self._answer(answers))
        survivors = {name: masked[name] for name in accepted}
        terms.check_survivors(survivors)
        return self._open(server, survivors)

    # ---- steps

    def _agreed(
        self, begun: Mapping[str, _Begun]
    ) -> tuple[SumTerms, dict[str, SignedKeys]]:
        """The terms of the sum, and the keys of the sites that see it so and have signed them."""
        contexts = Counter(of.context for of in begun.values())
        ((context, _),) = contexts.most_common(1) or [("", 0)]
        terms = SumTerms(
            bytes.fromhex(context), self.asked.weights, self.asked.threshold
        )
        keys: dict[str, SignedKeys] = {}
        for name, of in begun.items():
            own = of.keys
            if of.context != context:
                self._failed[name] = (
                    "it has another recipe or model, or was asked something else, than most sites"
                )
            elif self._is_signed(name, keys_to_sign(terms, name, own.keys), own.signed):
                keys[name] = own
        return terms, keys

    def _still_in(
        self, begun: Mapping[str, _Begun], dealt: Mapping[str, Dealt]
    ) -> dict[str, Dealt]:
        """Those who dealt shares, without who was not in this sum when it was opened before: its sites open it over the same alone.

        Half of the threshold must say so, since a single site may lie.
        """
        told = Counter(of.survivors for of in begun.values() if of.survivors)
        ((survivors, count),) = told.most_common(1) or [((), 0)]
        if 2 * count < self.asked.threshold:
            return dict(dealt)
        for name in dealt.keys() - {*survivors}:
            self._failed[name] = (
                "it was not in this sum when it was opened before, and may not be added"
            )
        return {name: of for name, of in dealt.items() if name in survivors}

    def _masked(
        self, server: MaskedSum, dealt: Mapping[str, Dealt]
    ) -> tuple[dict[str, Words], dict[str, Answer]]:
        """The masked integers of the sites, and the fields beside them."""
        inboxes = {
            name: {"content": pack({"inbox": spell_bytes(server.inbox(name))})}
            for name in dealt
        }
        replied = self._step("mask", inboxes, self._read_masked)
        masked = {name: words for name, (words, _) in replied.items()}
        return masked, {name: answer for name, (_, answer) in replied.items()}

    def _read_masked(
        self, name: str, values: Mapping[str, Any]
    ) -> tuple[Words, Answer]:
        words = values.get("words")
        if (
            not isinstance(words, torch.Tensor)
            or words.dtype != torch.int64
            or words.shape != (self.asked.width,)
        ):
            raise InputError("its reply has no integers of the declared form")
        answer = answer_of(name, self.asked.ask.to((name,)), values)
        return words.numpy().view(np.uint64), answer

    def _open(self, server: MaskedSum, survivors: Mapping[str, Words]) -> Words:
        """Let the survivors sign who they are, and reveal the shares that open the sum."""
        named = pack({"survivors": sorted(survivors)})
        signatures = self._step(
            "agree",
            {name: {"content": named} for name in survivors},
            lambda name, values: parse_signature(unpack(values.get("content"))),
        )
        content = survivors_to_sign(server.terms, server.keys, survivors)
        valid = {
            name: signed
            for name, signed in signatures.items()
            if self._is_signed(name, content, signed)
        }
        self._require_enough(valid, "signed the survivors")
        signed = pack({"signatures": valid})
        revealed = self._step(
            "reveal",
            {name: {"content": signed} for name in valid},
            lambda name, values: parse_revealed(unpack(values.get("content"))),
        )
        self._require_enough(revealed, "revealed shares")
        return server.open(survivors, revealed)

    # ---- messages

    def _step(
        self,
        step: str,
        messages: Mapping[str, Mapping[str, Any]],
        read: Callable[[str, Mapping[str, Any]], T],
    ) -> dict[str, T]:
        """What `read` makes of the replies to one step; whoever fails is noted."""
        values: dict[str, T] = {}
        for name, reply in self.send(step, messages).items():
            self._costs[name] = _added(self._costs.get(name), reply.cost)
            if reply.cost.failed:
                self._failed[name] = reply.cost.failed
                continue
            try:
                values[name] = read(name, reply.values)
            except InputError as error:
                self._failed[name] = plain(f"its reply cannot be read ({error})")
        return values

    def _is_signed(self, name: str, content: bytes, signed: Mapping[str, str]) -> bool:
        """Return True unless the server knows better; one site without a signature would let all others refuse."""
        if self.authority is None:
            return True
        try:
            self.authority.check(name, content, signed)
        except InputError as error:
            self._failed[name] = plain(f"its signature is refused ({error})")
            return False
        return True

    def _answer(self, answers: Mapping[str, Answer]) -> Answer:
        """The answers of the sites that masked their integers, with the reasons of the others."""
        costs = tuple(
            self._costs[name]._replace(failed=self._failed.get(name, ""))
            for name in self.asked.ask.names
        )
        joined = Answer.join([Answer(), *answers.values()])
        failed = {**joined.failed, **self._failed}
        return replace(joined, failed=failed, costs=costs)

    def _require_enough(self, took_part: Mapping[str, Any], did: str) -> None:
        """Raise `InputError` if fewer than the threshold took part in a step."""
        if len(took_part) < self.asked.threshold:
            raise InputError(
                f"{len(took_part)} of {len(self.asked.weights)} sites {did}, and a secure sum needs {self.asked.threshold} "
                f"(secure.threshold). Failed: {list_failures(self._failed, _SENTENCE)}"
            )


class _Begun(NamedTuple):
    """What a site says in step 0: the context of the sum in hexadecimal, its keys, and over whom the sum was opened before."""

    context: str
    keys: SignedKeys
    survivors: tuple[str, ...]


def _begun(values: Mapping[str, Any]) -> _Begun:
    content = unpack(values.get("content"))
    context = content.get("context")
    try:
        bytes.fromhex(context)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InputError("it does not name the sum") from error
    survivors = tuple(sorted(parse_names(content.get("survivors"))))
    return _Begun(str(context), parse_keys(content), survivors)


def _added(before: ClientCost | None, cost: ClientCost) -> ClientCost:
    """The cost of two steps."""
    if before is None:
        return cost
    return ClientCost(
        cost.client,
        before.bytes_down + cost.bytes_down,
        before.bytes_up + cost.bytes_up,
        before.seconds + cost.seconds,
        cost.failed,
    )
