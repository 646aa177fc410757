"""One sum behind masks at a site: the answers to the messages of its five steps, and the lines on the disk before anything leaves.

What a site masks is bound to the request: the same integers, among the same peers, and opened over the same survivors, whatever the
server names and however often it begins. Two sums that differ by one site would give that one's integers by subtraction, with no
noise but its own part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.contract.masks import PublicKeys, Words
from coterie.contract.wire import Ask
from coterie.sites.ledger import Account, Place
from coterie.sites.signed_sum import Signature, SignedClient
from coterie.sites.sum_messages import (
    SignedKeys,
    parse_bytes,
    parse_keys,
    parse_names,
    parse_signature,
    spell_dealt,
    spell_keys,
    spell_revealed,
)


@dataclass
class SiteSum:
    """A sum in which the site takes part.

    Attributes:
        ask: what is asked, to all peers.
        place, request: where it is counted, and the hash of the site's own request.
        client: the site's half of the protocol.
        account: of the site.
    """

    ask: Ask
    place: Place
    request: str
    client: SignedClient
    account: Account

    @property
    def weight(self) -> int:
        """Weight of the site."""
        return self.client.terms.weights[self.client.name]

    def begin(self) -> dict[str, Any]:
        """Step 0: the signed keys, what names this sum, and over whom it was opened before, if it was."""
        opened = self.account.survivors_of(self.request, self.ask.names)
        keys, signed = self.client.public_keys()
        return {
            "context": self.client.terms.context.hex(),
            "survivors": opened,
            **spell_keys(SignedKeys(keys, signed)),
        }

    def deal(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Step 1: sealed shares for the peers that have signed their keys."""
        keys: dict[str, PublicKeys] = {}
        signatures: dict[str, Signature] = {}
        for name in parse_names([*content.get("keys", {})]):
            keys[name], signatures[name] = parse_keys(content["keys"][name])
        return spell_dealt(self.client.deal(keys, signatures))

    def mask(self, words: Words, content: Mapping[str, Any]) -> Tensor:
        """Step 2: the integers behind masks, int64 [d]; a line about them is on the disk before."""
        inbox = parse_bytes(content.get("inbox"))
        digest = hash_of_words(words)
        self.account.note_masked(self.place, self.request, self.ask.names, digest)
        masked = self.client.mask(words, inbox)
        return torch.from_numpy(masked.astype("<u8").view("<i8").copy())

    def agree(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Step 3: the signature under the survivors."""
        return self.client.agree(parse_names(content.get("survivors")))

    def reveal(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Step 4: shares, once enough have signed the same survivors; a line about these is on the disk before."""
        given = content.get("signatures", {})
        signatures = {
            name: parse_signature(given[name]) for name in parse_names([*given])
        }
        revealed = self.client.reveal(signatures)
        self.account.note_revealed(self.place, self.request, self.client.survivors)
        return spell_revealed(revealed)


def hash_of_words(words: Words) -> str:
    """Return the hash of integers, as the account keeps it."""
    return hashlib.sha256(words.astype("<u8").tobytes()).hexdigest()[:32]
