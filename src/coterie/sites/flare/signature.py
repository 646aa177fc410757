"""Signatures of files with the key of a kit: the operator's under a plan, and the server's under the head of a site's log."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, require
from coterie.base.files import write_atomically
from coterie.sites.flare.authority import certificate_of, issued_by

_PLAN, _HEAD = b"coterie plan ", b"coterie head of a log "
"""The subject of a signature stands before the signed bytes, so that none can be passed off as one about something else."""


def signature_file(plan_file: Path) -> Path:
    """Return where the operator's signature of a plan lies: beside it."""
    return plan_file.with_name(f"{plan_file.name}.sig")


def sign_plan(plan_file: Path, kit: Path) -> Path:
    """Sign a plan with the key of the operator's kit, and return the signature's file, which travels with the plan."""
    startup, file = kit / "startup", signature_file(plan_file)
    if not (startup / "client.key").is_file():
        raise InputError(
            f"{kit} has no key of the operator; make the kits with: coterie deploy {plan_file}"
        )
    signed = _sign(
        _PLAN + plan_file.read_bytes(), startup / "client.key", startup / "client.crt"
    )
    write_atomically(file, lambda p: p.write_text(json.dumps(signed), encoding="utf-8"))
    return file


def check_plan(plan_file: Path, operator: str, startup: Path) -> str:
    """Return a sentence about who has signed a plan. Raises `InputError` unless that is the operator of this kit's authority.

    Args:
        plan_file: the plan, with its signature beside it.
        operator: the name of the operator.
        startup: startup of the site's kit, with the authority's certificate.
    """
    file, cure = (
        signature_file(plan_file),
        f"ask the operator to sign it: coterie sign {plan_file.name}",
    )
    if not file.is_file():
        raise InputError(
            f"{plan_file} has no signature of the operator beside it ({file.name}); {cure}"
        )
    try:
        signed = json.loads(file.read_text(encoding="utf-8"))
        _verify(_PLAN + plan_file.read_bytes(), signed, operator, startup)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{file} is no signature of {operator} under this plan ({error}); {cure}"
        ) from error
    return f"by {operator}, whom the authority of this kit knows"


def _sign(content: bytes, key: Path, certificate: Path) -> dict[str, str]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private: Any = load_pem_private_key(key.read_bytes(), None)
    signature = private.sign(content, padding.PKCS1v15(), hashes.SHA256())
    text = certificate.read_text(encoding="utf-8")
    return {"signature": base64.b64encode(signature).decode(), "certificate": text}


def sign_head(site: str, head: str, startup: Path) -> dict[str, str]:
    """Return the server's signature, with its time, that the log of `site` ended so."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    content = _head_content(site, head, time)
    return {
        "site": site,
        "head": head,
        "signed": time,
        **_sign(content, startup / "server.key", startup / "server.crt"),
    }


def check_head(entry: dict[str, str], server: str, startup: Path) -> None:
    """Raise `InputError` unless the server has signed this head of a log."""
    try:
        _verify(
            _head_content(entry["site"], entry["head"], entry["signed"]),
            entry,
            server,
            startup,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"a head of the log is not signed by {server} ({error}); somebody has changed the file"
        ) from error


def _head_content(site: str, head: str, time: str) -> bytes:
    return _HEAD + hashlib.sha256(json.dumps([site, head, time]).encode()).digest()


def _verify(content: bytes, signed: dict[str, str], name: str, startup: Path) -> None:
    """Raise `ValueError` unless somebody of this name, with a valid certificate of the kit's authority, signed these bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.x509.oid import NameOID

    certificate = certificate_of(signed["certificate"].encode())
    require(
        issued_by(certificate, certificate_of((startup / "rootCA.pem").read_bytes())),
        "of another authority",
    )
    (common_name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if common_name.value != name:
        raise InputError(f"of {common_name.value!r}")
    key: Any = certificate.public_key()
    try:
        key.verify(
            base64.b64decode(signed["signature"]),
            content,
            padding.PKCS1v15(),
            hashes.SHA256(),
        )
    except InvalidSignature as error:
        raise InputError("of another text") from error
