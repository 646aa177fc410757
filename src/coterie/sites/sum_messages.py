"""Messages of a sum behind masks between server and sites: JSON in a tensor of bytes, since what comes before tensors is short.

Whoever reads one reads what another party wrote: `InputError` with a sentence that may be shown, for whatever it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.files import parse_json
from coterie.contract.masks import SHARE_BYTES, Dealt, PublicKeys, Revealed

LONGEST = 1 << 24
"""Bytes of a message's text."""
_SIGNED = ("signature", "certificate")
_KEY_BYTES = 32
_ASK_AGAIN = "begin the sum again"


class SignedKeys(NamedTuple):
    """Public keys of a site, and its signature under them."""

    keys: PublicKeys
    signed: Mapping[str, str]


def pack(values: Mapping[str, Any]) -> Tensor:
    """Return JSON as a tensor of bytes."""
    return torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)


def unpack(value: Any) -> dict[str, Any]:
    """Undo `pack`."""
    is_text = isinstance(value, Tensor) and value.dtype == torch.uint8
    if not is_text or value.ndim != 1 or len(value) > LONGEST:
        raise InputError("a message of a sum holds no text")
    try:
        text = value.numpy().tobytes().decode()
    except UnicodeDecodeError as error:
        raise InputError("a message of a sum holds no text") from error
    return parse_json(text, "a message of a sum", dict, _ASK_AGAIN)


def spell_keys(of: SignedKeys) -> dict[str, str]:
    """Return keys and signature as JSON."""
    return {
        "sealing": of.keys.sealing.hex(),
        "masking": of.keys.masking.hex(),
        **of.signed,
    }


def parse_keys(values: Any) -> SignedKeys:
    """Undo `spell_keys`."""
    fields = _table(values)
    keys = (_bytes(fields.get(name), _KEY_BYTES) for name in ("sealing", "masking"))
    return SignedKeys(PublicKeys(*keys), parse_signature(fields))


def parse_signature(values: Any) -> dict[str, str]:
    """A signature with its certificate."""
    fields = _table(values)
    signed = {name: fields.get(name) for name in _SIGNED}
    if not all(isinstance(text, str) for text in signed.values()):
        raise InputError("a message of a sum is not signed")
    return {name: str(text) for name, text in signed.items()}


def spell_dealt(dealt: Dealt) -> dict[str, Any]:
    """Return sealed shares as JSON."""
    return {
        "sealed": spell_bytes(dealt.sealed),
        "commitment": dealt.commitment.hex(),
    }


def parse_dealt(values: Any) -> Dealt:
    """Undo `spell_dealt`."""
    fields = _table(values)
    return Dealt(parse_bytes(fields.get("sealed")), _bytes(fields.get("commitment")))


def spell_revealed(revealed: Revealed) -> dict[str, Any]:
    """Return shares as JSON."""
    return {
        "seeds": {name: f"{share:x}" for name, share in revealed.seeds.items()},
        "keys": {name: f"{share:x}" for name, share in revealed.keys.items()},
    }


def parse_revealed(values: Any) -> Revealed:
    """Undo `spell_revealed`."""
    fields = _table(values)
    return Revealed(_shares(fields.get("seeds")), _shares(fields.get("keys")))


def spell_bytes(table: Mapping[str, bytes]) -> dict[str, str]:
    """Return bytes by name as JSON."""
    return {name: content.hex() for name, content in table.items()}


def parse_bytes(values: Any) -> dict[str, bytes]:
    """Undo `spell_bytes`."""
    return {name: _bytes(text) for name, text in _table(values).items()}


def parse_names(values: Any) -> list[str]:
    """A list of different names."""
    is_list = isinstance(values, list) and all(isinstance(v, str) for v in values)
    if not is_list or len({*values}) < len(values):
        raise InputError("a message of a sum holds no list of names")
    return list(values)


def parse_weights(values: Any, names: tuple[str, ...]) -> dict[str, float]:
    """Weights of these clients, whole numbers >= 0."""
    weights = _table(values)
    are_whole = all(type(weight) is int and weight >= 0 for weight in weights.values())
    if {*weights} != {*names} or not are_whole:
        raise InputError("a message of a sum holds no whole weights of its clients")
    return weights


def _table(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InputError("a message of a sum lacks a table")
    return values


def _bytes(text: Any, length: int | None = None) -> bytes:
    try:
        content = bytes.fromhex(text)
    except (TypeError, ValueError) as error:
        raise InputError("a message of a sum holds no bytes") from error
    if length is not None and len(content) != length:
        raise InputError("a message of a sum holds a key of another length")
    return content


def _shares(values: Any) -> dict[str, int]:
    return {name: _share(text) for name, text in _table(values).items()}


def _share(text: Any) -> int:
    is_number = isinstance(text, str) and 0 < len(text) <= 2 * SHARE_BYTES
    try:
        share = int(text, 16) if is_number else -1
    except ValueError:
        share = -1
    if share < 0:
        raise InputError("a message of a sum holds no share")
    return share
