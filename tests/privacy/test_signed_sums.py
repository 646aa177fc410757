"""Sums among parties that sign: whatever a server says otherwise than it should ends in a refusal, before a share is told."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip(
    "cryptography",
    reason="secure sums need cryptography: pip install 'coterie[secure]'",
)

from certificates import Authority
from coterie.base.errors import InputError
from coterie.contract.masks import MaskedSum, SumTerms
from coterie.sites.signed_sum import SignedClient, check_threshold, fewest_survivors

NAMES = ("a", "b", "c", "d")
WORDS = {name: np.arange(5, dtype=np.uint64) * k for k, name in enumerate(NAMES, 1)}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="module")
def kits(authority):
    return {name: authority.kit(name) for name in NAMES}


class Parties:
    """Four sites and a server that does what it should up to a step."""

    def __init__(self, kits, context=b"ask 1", weights=None):
        weights = weights or dict.fromkeys(NAMES, 1)
        self.terms = SumTerms(context, weights, threshold=3)
        self.clients = {
            name: SignedClient(name, self.terms, kits[name]) for name in weights
        }
        begun = {name: client.public_keys() for name, client in self.clients.items()}
        self.keys = {name: keys for name, (keys, _) in begun.items()}
        self.signatures = {name: signed for name, (_, signed) in begun.items()}

    def deal(self):
        dealt = {
            name: client.deal(self.keys, self.signatures)
            for name, client in self.clients.items()
        }
        self.server = MaskedSum(self.terms, self.keys, dealt)
        return self

    def mask(self, names=NAMES):
        self.masked = {
            name: self.clients[name].mask(WORDS[name], self.server.inbox(name))
            for name in names
        }
        return self

    def agree(self, survivors=None):
        names = [*(survivors or self.masked)]
        return {name: self.clients[name].agree(names) for name in names}


@pytest.mark.in_turn(but="survivors1")
@pytest.mark.promise("secure sums")
@pytest.mark.parametrize("survivors", [NAMES, NAMES[:3], NAMES[1:]])
def test_an_honest_server_opens_the_sum_over_who_sent_integers(kits, survivors):
    parties = Parties(kits).deal().mask(survivors)
    signed = parties.agree()
    revealed = {name: parties.clients[name].reveal(signed) for name in survivors}
    total = parties.server.open(parties.masked, revealed)
    assert np.array_equal(total, sum(WORDS[name] for name in survivors))


def stranger(tmp_path):
    return Authority(tmp_path / "other").kit("b")


@pytest.mark.in_turn(
    but=("a key of its own-*", "an earlier ask-*", "two sites alone-*")
)
@pytest.mark.promise("secure sums")
@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("a key of its own", "not signed by b"),
        ("an authority of its own", "of another authority"),
        ("a key that c has signed", "of 'c'"),
        ("an earlier ask", "of another text"),
        ("the same ask with other weights", "of another text"),
        ("other keys of the site itself", "other keys of this site"),
        ("a stranger", "not in this sum"),
        ("two sites alone", "fewer than its threshold"),
    ],
)
def test_shares_are_dealt_to_keys_alone_that_their_owner_has_signed(
    kits, tmp_path, lie, why
):
    parties = Parties(kits)
    keys, signatures = parties.keys, parties.signatures
    match lie:
        case "a key of its own":
            keys["b"] = Parties(kits).keys["b"]
        case "an authority of its own":
            forged = Parties({**kits, "b": stranger(tmp_path)})
            keys["b"], signatures["b"] = forged.keys["b"], forged.signatures["b"]
        case "a key that c has signed":
            forged = Parties({**kits, "b": kits["c"]})
            keys["b"], signatures["b"] = forged.keys["b"], forged.signatures["b"]
        case "an earlier ask":
            earlier = Parties(kits, b"ask 0")
            keys["b"], signatures["b"] = earlier.keys["b"], earlier.signatures["b"]
        case "the same ask with other weights":
            other = Parties(kits, weights={**dict.fromkeys(NAMES, 1), "b": 2})
            keys["b"], signatures["b"] = other.keys["b"], other.signatures["b"]
        case "other keys of the site itself":
            other = Parties(kits)
            keys["a"], signatures["a"] = other.keys["a"], other.signatures["a"]
        case "a stranger":
            keys["e"], signatures["e"] = keys["b"], signatures["b"]
        case "two sites alone":
            keys = {name: keys[name] for name in ("a", "b")}
    with pytest.raises(InputError, match=why):
        parties.clients["a"].deal(keys, signatures)


@pytest.mark.promise("secure sums")
def test_a_certificate_that_ended_or_is_revoked_signs_no_keys(authority):
    kits = {name: authority.kit(name) for name in NAMES}
    ended = Parties({**kits, "b": authority.kit("b", days=-1)})
    with pytest.raises(InputError, match="had ended"):
        ended.clients["a"].deal(ended.keys, ended.signatures)
    authority.revoke("b", kits["b"], at=kits["a"])
    parties = Parties(kits)
    with pytest.raises(InputError, match="is revoked"):
        parties.clients["a"].deal(parties.keys, parties.signatures)
    parties.clients["c"].deal(parties.keys, parties.signatures)


@pytest.mark.promise("secure sums")
def test_a_server_that_tells_two_sets_of_survivors_gets_no_share(kits):
    """Of four sites three must sign the same, and an honest site signs once: two sets would share two signers."""
    parties = Parties(kits).deal().mask()
    every, some = list(NAMES), ["a", "b", "c"]
    signed = {name: parties.clients[name].agree(every) for name in ("c", "d")}
    signed |= {name: parties.clients[name].agree(some) for name in ("a", "b")}
    for name in NAMES:
        with pytest.raises(InputError, match=r"of another text|is none of them"):
            parties.clients[name].reveal(signed)
        with pytest.raises(InputError, match="signed before"):
            parties.clients[name].agree(some if name in ("c", "d") else every)
    pairs = {name: signed[name] for name in ("a", "b")}
    with pytest.raises(InputError, match="2 sites have signed"):
        parties.clients["a"].reveal(pairs)


@pytest.mark.promise("secure sums")
def test_signatures_of_an_earlier_sum_over_the_same_serve_in_no_later_one(kits):
    """Its keys were others, so that a server cannot open with them what was masked since."""
    earlier = Parties(kits).deal().mask().agree()
    parties = Parties(kits).deal().mask()
    own = parties.clients["a"].agree(NAMES)
    with pytest.raises(InputError, match="of another text"):
        parties.clients["a"].reveal({**earlier, "a": own})


@pytest.mark.promise("secure sums")
def test_shares_are_revealed_once_and_after_signing_alone(kits):
    parties = Parties(kits).deal().mask()
    with pytest.raises(InputError, match="were not signed"):
        parties.clients["a"].reveal({})
    with pytest.raises(InputError, match="names others"):
        parties.clients["a"].agree(["b", "c", "d"])
    with pytest.raises(InputError, match="opened with 3"):
        parties.clients["a"].agree(["a", "b"])
    signed = parties.agree()
    parties.clients["a"].reveal(signed)
    with pytest.raises(InputError, match="revealed before"):
        parties.clients["a"].reveal(signed)


def test_the_least_threshold_leaves_an_honest_signer_in_both_lists():
    for count in range(3, 12):
        for curious in range(1, count - 1):
            least = fewest_survivors(count, curious)
            assert 2 * least - count > curious
            assert 2 * (least - 1) - count <= curious
            check_threshold(least, count, curious)
            with pytest.raises(InputError, match=f"write threshold = {least}"):
                check_threshold(least - 1, count, curious)
