"""Sums of vectors of which nobody sees a single one: pairwise masks that cancel, and self masks that survivors help to remove.

K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, Figure 4, the protocol against
an honest but curious server. In four steps, for each sum anew:

0. Each client draws two key pairs of X25519 and sends their public halves.
1. Each client u draws a seed b_u, and deals shares of b_u and of its second private key to all, so that `threshold` shares give a
   secret back and fewer say nothing. Each share is sealed for its holder.
2. Client u sends its vector plus PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv) modulo 2^64, where s_uv follows from the
   second keys of u and v. A sum over all has the self masks alone.
3. The server names who sent a vector. Clients reveal their shares of the seeds of these, and of the second keys of those who did not,
   and never both about one client: whoever has both takes all masks off a vector that comes late.

What the server learns is the sum and who took part. All other clients together learn the vector of the last one, by subtraction.
Against a server that lies about who sent what, steps of the paper's Figure 4 in red are needed; sites have them (`sites.signed_sum`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.base.errors import InputError, explain_imports, plain, require
from coterie.config.secure import FEWEST

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Words = NDArray[np.uint64]
"""Integers modulo 2^64, whose sums wrap around."""
PRIME = 2**521 - 1
"""The field of the shares, a Mersenne prime: a secret of 256 bits fits into one number of it."""
SECRET_BYTES, SHARE_BYTES = 32, 66
LARGEST_SHARE = 0.9
"""Of the weight in a sum: one client with more is seen as it is, but for little."""
MOST_TRIES = 1000
"""Choices of shares that are tried where some of them are wrong."""
_NO_NONCE, _NO_COUNTER = bytes(12), bytes(16)
"""Each key serves for one message, or one stream."""


def need_cryptography() -> None:
    """Raise `InputError` that says what to install if the package of keys and ciphers is missing."""
    with explain_imports("[secure] needs cryptography", "secure"):
        import cryptography  # noqa: F401


# ---- shares of a secret (A. Shamir, "How to share a secret", Communications of the ACM 1979)


def split_secret(secret: int, count: int, threshold: int) -> list[int]:
    """Return shares of a secret [0, PRIME) for holders 1 to `count`, of which any `threshold` give it back.

    They are values of a polynomial of degree threshold - 1 whose value at 0 is the secret.
    """
    coefficients = [secret] + [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = []
    for holder in range(1, count + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * holder + coefficient) % PRIME
        shares.append(value)
    return shares


def join_shares(shares: Mapping[int, int]) -> int:
    """Return the secret of shares by holder, by Lagrange's interpolation at 0; of too few, or wrong ones, some other number."""
    secret = 0
    for holder, share in shares.items():
        numerator, denominator = 1, 1
        for other in shares:
            if other != holder:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - holder) % PRIME
        secret += share * numerator * pow(denominator, -1, PRIME)
    return secret % PRIME


# ---- the streams


def add_stream(words: Words, key: bytes, sign: int = 1) -> None:
    """Add to words, in place, as many of the key stream of ChaCha20 under this key, or subtract them."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = Cipher(algorithms.ChaCha20(key, _NO_COUNTER), mode=None).encryptor()
    stream = np.frombuffer(cipher.update(bytes(words.nbytes)), dtype="<u8")
    if sign > 0:
        np.add(words, stream, out=words)
    else:
        np.subtract(words, stream, out=words)


# ---- what travels


class PublicKeys(NamedTuple):
    """Step 0: the public halves of the key under which shares are sealed, and of the key from which pairwise masks follow."""

    sealing: bytes
    masking: bytes


class Dealt(NamedTuple):
    """Step 1: by holder a sealed share of the seed and one of the second private key; and a hash by which the seed is recognised."""

    sealed: Mapping[str, bytes]
    commitment: bytes


class Revealed(NamedTuple):
    """Step 3: shares of seeds of survivors and of second private keys of those who dropped out, by client."""

    seeds: Mapping[str, int]
    keys: Mapping[str, int]


@dataclass(frozen=True)
class SumTerms:
    """What all parties of one sum know.

    Attributes:
        context: names run, round and ask; no two sums have the same, so that nothing of one serves in another.
        weights: the clients that are asked and the weight of each, a whole number >= 0.
        threshold: survivors without whom no sum is opened, more than half of the clients and at least 3.

    Raises:
        InputError: Fewer than three clients, a threshold outside its range, or one client with more than .9 of the weight.
    """

    context: bytes
    weights: Mapping[str, int]
    threshold: int

    def __post_init__(self) -> None:
        count = len(self.weights)
        require(
            count >= FEWEST,
            f"a secure sum is over at least {FEWEST} clients, since of two each learns the other's vector; here are {count}: let more "
            "clients take part, or leave out [secure]",
        )
        if not max(FEWEST, count // 2 + 1) <= self.threshold <= count:
            raise InputError(
                f"secure.threshold of {count} clients must be from {max(FEWEST, count // 2 + 1)}, more than half, to {count}; "
                f"got {self.threshold}"
            )
        why = self.refusal(self.weights)
        if why:
            raise InputError(f"{why}; leave that client out, or take weights nearby")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The clients, sorted."""
        return tuple(sorted(self.weights))

    @cached_property
    def holders(self) -> dict[str, int]:
        """The number of each client as a holder of shares, from 1."""
        return {name: number for number, name in enumerate(self.names, 1)}

    @cached_property
    def fingerprint(self) -> bytes:
        """A hash of all that the parties of this sum know."""
        known = (self.context, sorted(self.weights.items()), self.threshold)
        return hashlib.sha256(repr(known).encode()).digest()

    def refusal(self, survivors: Collection[str]) -> str:
        """Return why a sum over these clients must not be opened; "" if it may be."""
        total = sum(self.weights[name] for name in survivors)
        largest = max(survivors, key=self.weights.__getitem__, default="")
        if largest and self.weights[largest] > LARGEST_SHARE * total:
            return (
                f"{plain(largest, 40)} has {self.weights[largest] / max(1, total):.0%} of the weight of a secure sum, which would "
                f"show its vector; at most {LARGEST_SHARE:.0%} is allowed"
            )
        return ""

    def check_survivors(self, survivors: Collection[str]) -> None:
        """Raise `InputError` for survivors over whom the sum is not opened."""
        if len(survivors) < self.threshold:
            raise InputError(
                f"{len(survivors)} of {len(self.weights)} clients sent a masked vector, and a secure sum is opened with "
                f"{self.threshold} (secure.threshold)"
            )
        why = self.refusal(survivors)
        if why:
            raise InputError(why)

    def purpose(self, *words: str) -> bytes:
        """Return what a key is for: this sum, and these words; lengths keep them apart."""
        spelled = [word.encode() for word in words]
        lengths = b"".join(len(word).to_bytes(8, "little") for word in spelled)
        return self.fingerprint + lengths + b"".join(spelled)


# ---- the two halves


@dataclass
class MaskedClient:
    """A client's half of one sum; its methods are called once each, in the order of the steps.

    Args:
        name: of the client.
        terms: of the sum.
    """

    name: str
    terms: SumTerms
    _sealing: X25519PrivateKey | None = field(default=None, repr=False)
    _masking: X25519PrivateKey | None = field(default=None, repr=False)
    _seed: bytes = field(default=b"", repr=False)
    _keys: dict[str, PublicKeys] = field(default_factory=dict, repr=False)
    _held: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)
    _is_masked: bool = False
    _is_revealed: bool = False

    def public_keys(self) -> PublicKeys:
        """Step 0: draw two key pairs."""
        need_cryptography()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        require(self._sealing is None, "the keys of this sum were drawn before")
        self._sealing = X25519PrivateKey.generate()
        self._masking = X25519PrivateKey.generate()
        return PublicKeys(_public(self._sealing), _public(self._masking))

    def deal(self, keys: Mapping[str, PublicKeys]) -> Dealt:
        """Step 1: deal shares of the seed and of the second private key to those whose public keys these are."""
        terms = self.terms
        strays = sorted(set(keys) - set(terms.weights))
        require(not strays, "the server names clients that are not in this sum")
        require(self.name in keys, "the server did not take the keys of this client")
        require(
            self._sealing is not None and not self._keys,
            "shares of this sum were dealt before, or its keys were not drawn",
        )
        if len(keys) < terms.threshold:
            raise InputError(
                f"{len(keys)} clients began a secure sum, fewer than its threshold of {terms.threshold}"
            )
        self._keys = dict(keys)
        self._seed = secrets.token_bytes(SECRET_BYTES)
        count = len(terms.weights)
        private = _private(self._masking)
        of_seed, of_key = (
            split_secret(int.from_bytes(secret, "little"), count, terms.threshold)
            for secret in (self._seed, private)
        )
        sealed: dict[str, bytes] = {}
        for peer in sorted(keys):
            place = terms.holders[peer] - 1
            if peer == self.name:
                self._held[peer] = (of_seed[place], of_key[place])
                continue
            content = b"".join(
                share.to_bytes(SHARE_BYTES, "little")
                for share in (of_seed[place], of_key[place])
            )
            sealed[peer] = self._seal_of(self.name, peer).encrypt(
                _NO_NONCE, content, None
            )
        return Dealt(sealed, _commitment(self.terms, self.name, self._seed))

    def mask(self, words: Words, inbox: Mapping[str, bytes]) -> Words:
        """Step 2: return the words [d] behind masks.

        Args:
            words: of this client.
            inbox: sealed shares by who dealt them; whoever sends none takes no part.

        Raises:
            InputError: Too few clients dealt shares, or one of these is damaged.
        """
        require(bool(self._seed), "shares of this sum were not dealt")
        require(not self._is_masked, "a vector was masked for this sum before")
        for peer, content in sorted(inbox.items()):
            require(peer in self._keys, "a share comes from outside of this sum")
            if peer != self.name:
                self._held[peer] = self._open(peer, content)
        if len(self._held) < self.terms.threshold:
            raise InputError(
                f"{len(self._held)} clients dealt shares, fewer than the threshold of {self.terms.threshold}"
            )
        self._is_masked = True
        masked = words.astype(np.uint64, copy=True)
        add_stream(masked, self._seed)
        for peer in self._held:
            if peer != self.name:
                sign = 1 if self.name < peer else -1
                add_stream(masked, self._pairwise_key(peer), sign)
        return masked

    def reveal(self, survivors: Iterable[str]) -> Revealed:
        """Step 3: the shares that open the sum over the survivors, which are told once, and never both of one client.

        Raises:
            InputError: The sum must not be opened, or was opened before.
        """
        names = frozenset(survivors)
        # A second set of survivors would have both shares of whoever is in one of them alone.
        require(not self._is_revealed, "the shares of this sum were revealed before")
        self.check_survivors(names)
        self._is_revealed = True
        seeds = {peer: self._held[peer][0] for peer in sorted(names)}
        dropped = sorted(self._held.keys() - names)
        return Revealed(seeds, {peer: self._held[peer][1] for peer in dropped})

    def check_survivors(self, names: frozenset[str]) -> None:
        """Raise `InputError` for survivors over whom this client does not let the sum be opened."""
        require(
            self._is_masked and self.name in names and names <= self._held.keys(),
            "the server names others as survivors than who takes part in this sum",
        )
        self.terms.check_survivors(names)

    def _open(self, peer: str, content: bytes) -> tuple[int, int]:
        """The two shares that a peer dealt to this client. Raises `InputError` that names it where they cannot be read."""
        from cryptography.exceptions import InvalidTag

        try:
            text = self._seal_of(peer, self.name).decrypt(_NO_NONCE, content, None)
        except (InvalidTag, ValueError, TypeError) as error:
            raise InputError(
                f"the share that {plain(peer, 40)} dealt cannot be read"
            ) from error
        require(
            len(text) == 2 * SHARE_BYTES,
            f"the share that {plain(peer, 40)} dealt has another length",
        )
        halves = (text[:SHARE_BYTES], text[SHARE_BYTES:])
        of_seed, of_key = (int.from_bytes(half, "little") for half in halves)
        return of_seed, of_key

    def _seal_of(self, dealer: str, holder: str) -> Any:
        """The cipher of what `dealer` deals to `holder`, one of whom this client is."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        peer = holder if dealer == self.name else dealer
        secret = _agree(self._sealing, self._keys[peer].sealing)
        return ChaCha20Poly1305(
            _derive(secret, self.terms.purpose("share", dealer, holder))
        )

    def _pairwise_key(self, peer: str) -> bytes:
        secret = _agree(self._masking, self._keys[peer].masking)
        return pairwise_key(self.terms, secret, self.name, peer)


@dataclass
class MaskedSum:
    """The server's half of one sum.

    Args:
        terms: of the sum.
        keys: public keys of step 0.
        dealt: what those who went on dealt in step 1.
    """

    terms: SumTerms
    keys: Mapping[str, PublicKeys]
    dealt: Mapping[str, Dealt]

    def inbox(self, holder: str) -> dict[str, bytes]:
        """Return the sealed shares for one client, by who dealt them."""
        return {
            dealer: dealt.sealed[holder]
            for dealer, dealt in self.dealt.items()
            if holder in dealt.sealed
        }

    def open(
        self, masked: Mapping[str, Words], revealed: Mapping[str, Revealed]
    ) -> Words:
        """Return the sum [d] of the words of those who sent them, modulo 2^64.

        Args:
            masked: of the survivors of step 2.
            revealed: by those who answered step 3, at least `threshold`.

        Raises:
            InputError: Too few survivors or shares, or shares that are not those that were dealt.
        """
        terms, survivors = self.terms, sorted(masked)
        terms.check_survivors(survivors)
        if len(revealed) < terms.threshold:
            raise InputError(
                f"{len(revealed)} clients revealed shares, fewer than the threshold of {terms.threshold}"
            )
        total = np.zeros_like(next(iter(masked.values())))
        for words in masked.values():
            np.add(total, words, out=total)
        for name in survivors:
            told = {h: r.seeds for h, r in revealed.items()}
            seed = self._secret(name, told, partial(self._is_seed, name))
            add_stream(total, seed, -1)
        for name in sorted(self.dealt.keys() - masked.keys()):
            told = {h: r.keys for h, r in revealed.items()}
            private = self._secret(name, told, partial(self._is_key, name))
            self._remove_pairwise(total, name, private, survivors)
        return total

    def _secret(
        self,
        name: str,
        told: Mapping[str, Mapping[str, int]],
        is_right: Callable[[bytes], bool],
    ) -> bytes:
        """The secret of a client from the shares that were told of it, some of which may be wrong where more than enough were."""
        terms = self.terms
        shares = {
            terms.holders[holder]: shares[name]
            for holder, shares in told.items()
            if name in shares
        }
        choices = combinations(sorted(shares), terms.threshold)
        for holders in islice(choices, MOST_TRIES):
            secret = join_shares({holder: shares[holder] for holder in holders})
            if secret < 256**SECRET_BYTES:
                content = secret.to_bytes(SECRET_BYTES, "little")
                if is_right(content):
                    return content
        raise InputError(
            f"the shares of {plain(name, 40)} do not fit: others revealed wrong ones of it, or it dealt such"
        )

    def _is_seed(self, name: str, seed: bytes) -> bool:
        """Return True for the seed of a client, by its hash."""
        own = _commitment(self.terms, name, seed)
        return hmac.compare_digest(own, self.dealt[name].commitment)

    def _is_key(self, name: str, private: bytes) -> bool:
        """Return True for the second private key of a client, by its public half."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        public = _public(X25519PrivateKey.from_private_bytes(private))
        return public == self.keys[name].masking

    def _remove_pairwise(
        self, total: Words, dropped: str, private: bytes, survivors: Sequence[str]
    ) -> None:
        """Take off the masks that survivors share with a client that dropped out."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        key = X25519PrivateKey.from_private_bytes(private)
        for survivor in survivors:
            secret = _agree(key, self.keys[survivor].masking)
            # The survivor added this stream if it comes first, and subtracted it otherwise.
            sign = -1 if survivor < dropped else 1
            add_stream(total, pairwise_key(self.terms, secret, survivor, dropped), sign)


def pairwise_key(terms: SumTerms, secret: bytes, one: str, other: str) -> bytes:
    """Return the key of the stream that two clients share, in whichever order they are named."""
    first, second = sorted((one, other))
    return _derive(secret, terms.purpose("mask", first, second))


def _commitment(terms: SumTerms, name: str, seed: bytes) -> bytes:
    return hashlib.sha256(terms.purpose("seed", name) + seed).digest()


def _derive(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes that follows from a secret, for one purpose (HKDF of RFC 5869 with SHA-256)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose)
    return bytes(derivation.derive(secret))


def _agree(key: X25519PrivateKey | None, peer: bytes) -> bytes:
    """The secret that a private key shares with a public one. Raises `InputError` for bytes that are no such key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    require(key is not None, "the keys of this sum were not drawn")
    try:
        return bytes(key.exchange(X25519PublicKey.from_public_bytes(peer)))  # type: ignore[union-attr]
    except (ValueError, TypeError) as error:
        raise InputError("a public key of this sum is none") from error


def _public(key: X25519PrivateKey | None) -> bytes:
    require(key is not None, "the keys of this sum were not drawn")
    return bytes(key.public_key().public_bytes_raw())  # type: ignore[union-attr]


def _private(key: X25519PrivateKey | None) -> bytes:
    require(key is not None, "the keys of this sum were not drawn")
    return bytes(key.private_bytes_raw())  # type: ignore[union-attr]
