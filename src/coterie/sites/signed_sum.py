"""A site's half of one sum behind masks, against a server that lies about keys and about who sent a vector.

K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, Figure 4 with the steps in red.
Beside what `contract.masks` does, in five steps:

0. A site signs its public keys, together with all that the parties know of this sum (`SumTerms.fingerprint`).
1. It deals shares to peers whose keys their own certificates have signed, and to nobody else.
2. It sends its integers behind masks.
3. The server names the survivors. A site signs one such list for a sum, with the keys that it has seen of all.
4. It reveals shares once `threshold` survivors have signed the same list of the same keys.

Two lists with `threshold` signatures each have 2 threshold - n signers in common. Where that is more than the sites that help the
server, one of them is honest, and an honest site signs one list. Then nobody learns both shares of a site, or opens a sum twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coterie.base.errors import InputError, plain, require
from coterie.contract.masks import (
    Dealt,
    MaskedClient,
    PublicKeys,
    Revealed,
    SumTerms,
    Words,
)

Signature = Mapping[str, str]
"""A signature in base64 under `signature`, and the signer's certificate in PEM under `certificate`."""
_KEYS, _SURVIVORS = b"coterie keys of a sum ", b"coterie survivors of a sum "
"""Stand before the signed bytes, so that no signature can be passed off as one about something else."""


class Identity(Protocol):
    """A site's own key, and what it knows of those of its peers."""

    def sign(self, content: bytes) -> dict[str, str]:
        """The signature of bytes with the site's own key."""

    def check(self, name: str, content: bytes, signed: Signature) -> None:
        """Raise `InputError` unless the site of this name has signed these bytes, with a certificate that is valid and not revoked."""


def fewest_survivors(count: int, curious: int) -> int:
    """Return the least threshold of so many sites with which two lists of survivors have an honest signer in common.

    >>> fewest_survivors(4, 1), fewest_survivors(5, 1), fewest_survivors(5, 2)
    (3, 4, 4)
    """
    return (count + curious) // 2 + 1


def check_threshold(threshold: int, count: int, curious: int) -> None:
    """Raise `InputError` if a lying server and so many sites that help it could have two lists of survivors signed."""
    least = fewest_survivors(count, curious)
    if threshold < least:
        raise InputError(
            f"secure.threshold = {threshold} of {count} sites, of which {curious} may help the server, lets it open two sums that "
            f"differ by one site; write threshold = {least}"
        )


@dataclass
class SignedClient:
    """A site's half of one sum; its methods are called once each, in the order of the steps.

    Args:
        name: of the site.
        terms: of the sum.
        identity: of the site.
    """

    name: str
    terms: SumTerms
    identity: Identity
    _client: MaskedClient = field(init=False, repr=False)
    _own: PublicKeys | None = field(default=None, repr=False)
    _roster: dict[str, PublicKeys] = field(default_factory=dict, repr=False)
    _survivors: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._client = MaskedClient(self.name, self.terms)

    def public_keys(self) -> tuple[PublicKeys, dict[str, str]]:
        """Step 0: draw two key pairs; returns the public halves and their signature."""
        self._own = self._client.public_keys()
        return self._own, self.identity.sign(
            keys_to_sign(self.terms, self.name, self._own)
        )

    def deal(
        self, keys: Mapping[str, PublicKeys], signatures: Mapping[str, Signature]
    ) -> Dealt:
        """Step 1: deal shares to those who have signed these keys.

        Raises:
            InputError: A key is not signed by who shall have it, is that of nobody in this sum, or too few came.
        """
        for name, theirs in keys.items():
            require(
                name in self.terms.weights,
                "the server names sites that are not in this sum",
            )
            if name == self.name:
                require(theirs == self._own, "the server names other keys of this site")
                continue
            _check(
                self.identity,
                name,
                keys_to_sign(self.terms, name, theirs),
                signatures.get(name, {}),
                "keys",
            )
        dealt = self._client.deal(keys)
        self._roster = dict(keys)
        return dealt

    def mask(self, words: Words, inbox: Mapping[str, bytes]) -> Words:
        """Step 2: return the words [d] behind masks; arguments and errors as of `MaskedClient.mask`."""
        return self._client.mask(words, inbox)

    def agree(self, survivors: Collection[str]) -> dict[str, str]:
        """Step 3: sign the survivors.

        Raises:
            InputError: The sum over these must not be opened, or others were signed before.
        """
        names = frozenset(survivors)
        require(
            not self._survivors,
            "the survivors of this sum were signed before",
        )
        self._client.check_survivors(names)
        signed = self.identity.sign(
            survivors_to_sign(self.terms, self._roster, survivors)
        )
        self._survivors = names
        return signed

    def reveal(self, signatures: Mapping[str, Signature]) -> Revealed:
        """Step 4: the shares that open the sum over the survivors whom this site has signed.

        Raises:
            InputError: Fewer than `threshold` of them have signed the same, or shares were revealed before.
        """
        require(bool(self._survivors), "the survivors of this sum were not signed")
        content = survivors_to_sign(self.terms, self._roster, self._survivors)
        for name, signed in signatures.items():
            require(
                name in self._survivors,
                "the survivors are signed by who is none of them",
            )
            _check(self.identity, name, content, signed, "survivors")
        if len(signatures) < self.terms.threshold:
            raise InputError(
                f"{len(signatures)} sites have signed the survivors, fewer than the threshold of {self.terms.threshold}"
            )
        return self._client.reveal(self._survivors)

    @property
    def survivors(self) -> frozenset[str]:
        """The survivors that this site has signed; empty before."""
        return self._survivors


def keys_to_sign(terms: SumTerms, name: str, keys: PublicKeys) -> bytes:
    """Return the bytes that a site signs about its keys: terms, name and keys."""
    return _KEYS + _digest([terms.fingerprint.hex(), name, *_spelled(keys)])


def survivors_to_sign(
    terms: SumTerms, roster: Mapping[str, PublicKeys], survivors: Collection[str]
) -> bytes:
    """Return the bytes that a site signs about survivors: terms, the keys of all who began, and the names.

    The keys are drawn for each sum, so that a signature of an earlier one serves in none that comes later.
    """
    keys = [[name, *_spelled(roster[name])] for name in sorted(roster)]
    return _SURVIVORS + _digest([terms.fingerprint.hex(), keys, sorted(survivors)])


def _digest(values: list[object]) -> bytes:
    return hashlib.sha256(json.dumps(values).encode()).digest()


def _spelled(keys: PublicKeys) -> tuple[str, str]:
    return keys.sealing.hex(), keys.masking.hex()


def _check(
    identity: Identity, name: str, content: bytes, signed: Signature, what: str
) -> None:
    try:
        identity.check(name, content, signed)
    except InputError as error:
        raise InputError(
            f"the {what} of this sum are not signed by {plain(name, 40)} ({error})"
        ) from error
