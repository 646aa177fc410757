"""Signatures with RSA keys: the operator's under a plan, the server's under the head of a log, a site's under its part of a sum."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.errors import InputError, require
from coterie.base.files import write_atomically
from coterie.sites.flare.authority import (
    ROOT_CERTIFICATE,
    certificate_of,
    common_name,
    is_valid,
    issued_by,
)
from coterie.sites.plan import signature_file

if TYPE_CHECKING:
    from cryptography import x509

_PLAN, _HEAD = b"coterie plan ", b"coterie head of a log "
"""The subject of a signature stands before the signed bytes, so that none can be passed off as one about something else."""


def sign_plan(plan_file: Path, kit: Path) -> Path:
    """Sign a plan with the key of the operator's kit, and return the signature's file, which travels with the plan."""
    startup, file = kit / "startup", signature_file(plan_file)
    if not (startup / "client.key").is_file():
        raise InputError(
            f"{kit} has no key of the operator; make the kits with: coterie deploy {plan_file}"
        )
    signed = sign_with(
        _PLAN + plan_file.read_bytes(), startup / "client.key", startup / "client.crt"
    )
    write_atomically(file, lambda p: p.write_text(json.dumps(signed), encoding="utf-8"))
    return file


def check_plan(
    plan_file: Path, content: bytes, signature: str, operator: str, startup: Path
) -> str:
    """Return a sentence about who has signed a plan. Raises `InputError` unless that is the operator of this kit's authority.

    Args:
        plan_file: where the plan was read, with its signature beside it.
        content: the plan.
        signature: what its signature's file says; "" if there is none.
        operator: the name of the operator.
        startup: startup of the site's kit, with the authority's certificate.
    """
    file, cure = (
        signature_file(plan_file),
        f"ask the operator to sign it: coterie sign {plan_file.name}",
    )
    if not signature:
        raise InputError(
            f"{plan_file} has no signature of the operator beside it ({file.name}); {cure}"
        )
    try:
        signed, now = json.loads(signature), datetime.now(UTC)
        verify(_PLAN + content, signed, operator, startup, now)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{file} is not a signature of {operator} under this plan ({error}); {cure}"
        ) from error
    return f"by {operator}, whom the authority of this kit knows"


def sign_with(content: bytes, key: Path, certificate: Path) -> dict[str, str]:
    """Return the signature of bytes with the private key in a file, and the certificate in another."""
    return {
        "signature": sign_bytes(content, key),
        "certificate": certificate.read_text(encoding="utf-8"),
    }


def sign_bytes(content: bytes, key: Path) -> str:
    """Return the signature of bytes with a private key (RSA, PKCS #1 v1.5, SHA-256), in base64."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private: Any = load_pem_private_key(key.read_bytes(), None)
    return base64.b64encode(
        private.sign(content, padding.PKCS1v15(), hashes.SHA256())
    ).decode()


def check_bytes(content: bytes, signature: str, certificate: x509.Certificate) -> None:
    """Raise `InputError` unless the key of a certificate has signed these bytes, as `sign_bytes` does."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    key: Any = certificate.public_key()
    try:
        key.verify(
            base64.b64decode(signature), content, padding.PKCS1v15(), hashes.SHA256()
        )
    except InvalidSignature as error:
        raise InputError("of another text") from error


def signer_of(signature: str) -> x509.Certificate:
    """Return the certificate that the signature of a plan names; `check_plan` says whether it is true."""
    return certificate_of(json.loads(signature)["certificate"].encode())


def sign_head(site: str, head: str, startup: Path) -> dict[str, str]:
    """Return the server's signature, with its time, that the log of `site` ended so."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    content = _head_content(site, head, time)
    return {
        "site": site,
        "head": head,
        "signed": time,
        **sign_with(content, startup / "server.key", startup / "server.crt"),
    }


def check_head(entry: dict[str, str], server: str, startup: Path) -> None:
    """Raise `InputError` unless the server has signed this head of a log, with a certificate that was valid at that time.

    The time is a part of what is signed. A log is kept longer than a certificate is valid.
    """
    try:
        content = _head_content(entry["site"], entry["head"], entry["signed"])
        time = datetime.fromisoformat(entry["signed"])
        verify(content, entry, server, startup, time)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"a head of the log is not signed by {server} ({error}); somebody has changed the file"
        ) from error


def _head_content(site: str, head: str, time: str) -> bytes:
    return _HEAD + hashlib.sha256(json.dumps([site, head, time]).encode()).digest()


def verify(
    content: bytes, signed: Mapping[str, str], name: str, startup: Path, time: datetime
) -> None:
    """Raise `ValueError` unless somebody of this name, with a certificate of the kit's authority, signed these bytes.

    The certificate must be valid at `time`.
    """
    certificate = certificate_of(signed["certificate"].encode())
    authority = certificate_of((startup / ROOT_CERTIFICATE).read_bytes())
    require(issued_by(certificate, authority), "of another authority")
    require(is_valid(certificate, time), "its certificate had ended")
    if common_name(certificate) != name:
        raise InputError(f"of {common_name(certificate)!r}")
    check_bytes(content, signed["signature"], certificate)
