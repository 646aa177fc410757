"""Sums behind masks: equal to the plain sum whoever drops out, opened or refused, and of no single vector more than noise."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import InputError
from coterie.contract.fixed_point import BITS, FixedPoint, whole_weights
from coterie.contract.masks import (
    PRIME,
    MaskedClient,
    MaskedSum,
    PublicKeys,
    SumTerms,
    add_stream,
    join_shares,
    split_secret,
)

pytest.importorskip(
    "cryptography",
    reason="secure sums need cryptography: pip install 'coterie[secure]'",
)
WORDS = 5


def terms_of(count, threshold=None, context=b"run", **weights):
    names = [f"c{number:02}" for number in range(count)]
    return SumTerms(
        context,
        {name: weights.get(name, 1) for name in names},
        threshold or max(3, -(-2 * count // 3)),
    )


def words_of(terms):
    draw = np.random.default_rng(0)
    return {
        name: draw.integers(0, 2**64, WORDS, dtype=np.uint64) for name in terms.weights
    }


def run(terms, words, gone=None):
    """One sum. `gone` says by client before which step, 0 to 3, it drops out; returns the sum, and who was added."""
    gone = gone or {}

    def there(step, names):
        return [name for name in names if gone.get(name, 9) > step]

    clients = {name: MaskedClient(name, terms) for name in terms.names}
    keys = {name: clients[name].public_keys() for name in there(0, clients)}
    dealt = {name: clients[name].deal(keys) for name in there(1, keys)}
    server = MaskedSum(terms, keys, dealt)
    masked = {
        name: clients[name].mask(words[name], server.inbox(name))
        for name in there(2, dealt)
    }
    revealed = {name: clients[name].reveal(masked) for name in there(3, masked)}
    return server.open(masked, revealed), sorted(masked)


def plain_sum(words, names):
    return sum((words[name] for name in names), np.zeros(WORDS, dtype=np.uint64))


def check(terms, words, gone):
    """The plain sum of those who sent theirs, where enough are left at each step; else the refusal."""
    left = [sum(gone.get(name, 9) > step for name in terms.names) for step in range(4)]
    if left[3] >= terms.threshold:
        total, added = run(terms, words, gone)
        assert np.array_equal(total, plain_sum(words, added))
        return True
    with pytest.raises(InputError, match=r"threshold|secure sum"):
        run(terms, words, gone)
    return False


@pytest.mark.promise("secure sums")
@pytest.mark.parametrize("count", [3, 4])
def test_every_pattern_of_dropping_out_gives_the_plain_sum_or_the_refusal(count):
    terms = terms_of(count, threshold=3)
    words, opened = words_of(terms), 0
    patterns = list(itertools.product((1, 2, 3, 9), repeat=count))
    for pattern in patterns:
        opened += check(terms, words, dict(zip(terms.names, pattern, strict=True)))
    # All are there, or at n = 4 one has left before one of three steps.
    assert opened == 1 + 3 * count * (count > 3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 6])
def test_every_pattern_of_dropping_out_of_more_clients(count):
    terms = terms_of(count)
    words = words_of(terms)
    for pattern in itertools.product((1, 2, 3, 9), repeat=count):
        check(terms, words, dict(zip(terms.names, pattern, strict=True)))


@pytest.mark.promise("secure sums")
@pytest.mark.parametrize("count", [5, 6])
def test_who_drops_out_at_the_same_step_leaves_the_plain_sum(count):
    """The patterns in which all who drop out do so before one step; the others are in the slow suite."""
    terms = terms_of(count)
    words, opened = words_of(terms), 0
    for step, kept in itertools.product((1, 2, 3), range(2**count)):
        gone = {n: step for i, n in enumerate(terms.names) if not kept >> i & 1}
        opened += check(terms, words, gone)
    assert opened


def at_random(count, patterns):
    rng = random.Random(count)
    terms = terms_of(count)
    words = words_of(terms)
    opened = 0
    for _ in range(patterns):
        share = rng.choice((0.0, 0.1, 0.2, 0.4))
        gone = {
            name: rng.choice((1, 2, 3)) for name in terms.names if rng.random() < share
        }
        opened += check(terms, words, gone)
    return opened


@pytest.mark.promise("secure sums")
def test_random_patterns_of_twenty_clients():
    assert 0 < at_random(20, 3) <= 3


@pytest.mark.slow
def test_a_hundred_random_patterns_of_fifty_clients():
    assert 0 < at_random(50, 100) < 100


@pytest.mark.promise("secure sums")
def test_one_masked_message_looks_uniform():
    """Chi-square over the values of each byte of 10^6 words, all 0 without masks; with 255 degrees its deviation is 22.6."""
    terms, clients = terms_of(3), {}
    words = np.zeros(10**6, dtype=np.uint64)
    clients = {name: MaskedClient(name, terms) for name in terms.names}
    keys = {name: client.public_keys() for name, client in clients.items()}
    dealt = {name: client.deal(keys) for name, client in clients.items()}
    server = MaskedSum(terms, keys, dealt)
    message = clients["c00"].mask(words, server.inbox("c00"))
    for byte in range(8):
        counts = np.bincount(message.view(np.uint8)[byte::8], minlength=256)
        expected = len(words) / 256
        assert 255 - 6 * 22.6 < ((counts - expected) ** 2 / expected).sum() < 255 + 136
    # Nor is it the pairwise masks alone: without the self mask two would give the third's.
    assert not np.array_equal(message, clients["c01"].mask(words, server.inbox("c01")))


@settings(deadline=None)
@given(st.integers(0, 2**256 - 1), st.integers(2, 9), st.data())
def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not(secret, count, data):
    threshold = data.draw(st.integers(2, count))
    shares = dict(enumerate(split_secret(secret, count, threshold), 1))
    chosen = data.draw(st.permutations(sorted(shares)))[:threshold]
    assert join_shares({holder: shares[holder] for holder in chosen}) == secret
    few = {holder: shares[holder] for holder in chosen[1:]}
    if few:
        assert join_shares(few) != secret
    wrong = {
        **{h: shares[h] for h in chosen},
        chosen[0]: (shares[chosen[0]] + 1) % PRIME,
    }
    assert join_shares(wrong) != secret


# ---- what is refused


def begun(terms):
    clients = {name: MaskedClient(name, terms) for name in terms.names}
    keys = {name: client.public_keys() for name, client in clients.items()}
    dealt = {name: client.deal(keys) for name, client in clients.items()}
    return clients, MaskedSum(terms, keys, dealt)


@pytest.mark.promise("secure sums")
def test_both_shares_of_one_client_are_never_revealed():
    """A server that asks for a second set of survivors would take all masks off a vector that came late."""
    terms = terms_of(4, threshold=3)
    clients, server = begun(terms)
    for name, client in clients.items():
        client.mask(np.zeros(2, dtype=np.uint64), server.inbox(name))
    told = clients["c00"].reveal(["c00", "c01", "c02"])
    assert not set(told.seeds) & set(told.keys)
    assert set(told.keys) == {"c03"}
    with pytest.raises(InputError, match="revealed before"):
        clients["c00"].reveal(terms.names)


@pytest.mark.promise("secure sums")
def test_a_vector_is_masked_once_and_for_its_own_sum():
    clients, server = begun(terms_of(3))
    words = np.zeros(2, dtype=np.uint64)
    clients["c00"].mask(words, server.inbox("c00"))
    with pytest.raises(InputError, match="masked for this sum before"):
        clients["c00"].mask(words, server.inbox("c00"))
    with pytest.raises(InputError, match="were dealt before"):
        clients["c00"].deal(server.keys)
    # A share that was sealed for another sum, or another holder, cannot be read.
    _, other_server = begun(terms_of(3, context=b"another run"))
    for inbox in (other_server.inbox("c01"), server.inbox("c02")):
        with pytest.raises(InputError, match=r"cannot be read|outside"):
            clients["c01"].mask(words, inbox)


@pytest.mark.promise("secure sums")
def test_a_client_opens_no_sum_of_two_nor_one_that_is_nearly_one_vector():
    terms = SumTerms(b"run", {"a": 70, "b": 3, "c": 3, "d": 3, "e": 21}, 3)
    clients = {name: MaskedClient(name, terms) for name in terms.names}
    keys = {name: client.public_keys() for name, client in clients.items()}
    server = MaskedSum(terms, keys, {n: c.deal(keys) for n, c in clients.items()})
    client = clients["a"]
    client.mask(np.zeros(1, dtype=np.uint64), server.inbox("a"))
    with pytest.raises(InputError, match="2 of 5 clients sent"):
        client.reveal(["a", "b"])
    with pytest.raises(InputError, match="a has 92% of the weight"):
        client.reveal(["a", "b", "c"])
    assert client.reveal(terms.names).seeds.keys() == set(terms.names)


@pytest.mark.parametrize(
    ("weights", "threshold", "why"),
    [
        ({"a": 1, "b": 1}, 2, "at least 3 clients"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, 2, "from 3, more than half, to 4"),
        ({"a": 1, "b": 1, "c": 1}, 4, "from 3, more than half, to 3"),
        ({"a": 95, "b": 3, "c": 2}, 3, "95% of the weight"),
    ],
)
def test_sums_that_would_show_a_vector_are_refused_before_they_begin(
    weights, threshold, why
):
    with pytest.raises(InputError, match=why):
        SumTerms(b"run", weights, threshold)


def test_one_client_that_reveals_wrong_shares_does_not_keep_the_sum_closed():
    """As it was: whose shares were wrong ended the sum, and the sentence named another client."""
    terms = terms_of(5, threshold=3)
    clients, server = begun(terms)
    words = words_of(terms)
    masked = {n: clients[n].mask(words[n], server.inbox(n)) for n in terms.names[:4]}
    revealed = {n: clients[n].reveal(masked) for n in masked}
    liar = revealed["c00"]
    wrong = [
        {name: share + 1 for name, share in told.items()}
        for told in (liar.seeds, liar.keys)
    ]
    total = server.open(
        masked, {**revealed, "c00": liar._replace(seeds=wrong[0], keys=wrong[1])}
    )
    assert np.array_equal(total, sum(words[name] for name in masked))


def test_wrong_shares_and_wrong_keys_are_named():
    terms = terms_of(4, threshold=3)
    clients, server = begun(terms)
    words = words_of(terms)
    masked = {n: clients[n].mask(words[n], server.inbox(n)) for n in terms.names[:3]}
    revealed = {n: clients[n].reveal(masked) for n in masked}
    seeds = dict(revealed["c00"].seeds, c01=revealed["c00"].seeds["c01"] + 1)
    with pytest.raises(InputError, match="shares of c01 do not fit"):
        server.open(masked, {**revealed, "c00": revealed["c00"]._replace(seeds=seeds)})
    # The low bits of a private key of X25519 are no part of it.
    keys = dict(revealed["c00"].keys, c03=revealed["c00"].keys["c03"] + 2**100)
    with pytest.raises(InputError, match="shares of c03 do not fit"):
        server.open(masked, {**revealed, "c00": revealed["c00"]._replace(keys=keys)})
    assert np.array_equal(server.open(masked, revealed), plain_sum(words, masked))
    fresh = MaskedClient("c00", terms)
    own = fresh.public_keys()
    broken = PublicKeys(b"no key", b"no key")
    with pytest.raises(InputError, match="is none"):
        fresh.deal({**server.keys, "c00": own, "c01": broken})


# ---- integers


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4),
            st.integers(0, 10**6),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0.1, 1.0, 2.5]),
)
def test_a_mean_of_integers_is_off_by_half_a_step_at_most(clients, range_):
    code, total = FixedPoint(range_), sum(weight for _, weight in clients)
    if not total:
        return
    vectors = torch.tensor([vector for vector, _ in clients])
    weights = torch.tensor([weight for _, weight in clients], dtype=torch.float64)
    words = sum(
        (code.encode(v, w) for v, (_, w) in zip(vectors, clients, strict=True)),
        np.zeros(5, dtype=np.uint64),
    )
    mean, clipped = code.decode(words, total)
    exact = (vectors.double().clamp(-range_, range_) * weights[:, None]).sum(0) / total
    assert float((mean - exact).abs().max()) <= code.step * (0.5 + 1e-9)
    assert clipped == int((vectors.double().abs() > range_).sum())
    assert code.step == range_ / 2**BITS


def test_numbers_that_are_none_and_weights_that_are_too_large_are_refused():
    with pytest.raises(InputError, match="NaN or Inf"):
        FixedPoint(1.0).encode(torch.tensor([float("nan")]), 1)
    with pytest.raises(InputError, match="take smaller weights"):
        whole_weights({"a": 2.0**31, "b": 1.0})
    halves = whole_weights({"a": 0.5, "b": 0.25, "c": 0.0})
    assert halves["a"] == 2 * halves["b"]
    assert halves["c"] == 0


def test_a_stream_is_added_and_taken_off():
    words = np.arange(1000, dtype=np.uint64)
    key = bytes(range(32))
    add_stream(masked := words.copy(), key)
    assert not np.array_equal(masked, words)
    add_stream(masked, key, -1)
    assert np.array_equal(masked, words)
