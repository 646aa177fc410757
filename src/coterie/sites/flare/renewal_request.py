"""A request for the successor of a certificate, signed with the key of that certificate: its file, and what the authority checks."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.errors import InputError
from coterie.sites.flare.authority import (
    ROOT_CERTIFICATE,
    Request,
    attribute_of,
    certificate_of,
    common_name,
    days_left,
    holders_of_certificates,
    note_successor,
    serial_of,
)
from coterie.sites.flare.revocation import authoritys_list
from coterie.sites.flare.signature import check_bytes, sign_bytes

if TYPE_CHECKING:
    from cryptography import x509

_REQUEST, _PROOF = "request.zip", "renewal.json"
"""Files of a renewal: the request, and the signature of the old key under it with the old certificate."""
_SUBJECT = b"coterie renewal "
"""Stands before the signed bytes, so that no other signature of a site can be passed off as one of a renewal."""
_LARGEST = 1 << 18
"""Bytes of a file of a renewal; FLARE's requests have some 3,000."""
_TELEPHONE = "ask the site for the SHA-256 of its new key by telephone, and give it with --fingerprint"


@dataclass(frozen=True)
class Renewal:
    """A request for a successor, and who asks it.

    Attributes:
        request: the content of the request's zip file.
        certificate: the old certificate.
        signature: of its key under the request, in base64.
    """

    request: bytes
    certificate: x509.Certificate
    signature: str


def write_renewal(file: Path, request: bytes, key: Path, certificate: Path) -> None:
    """Write a renewal.

    Args:
        file: the zip file that the site sends.
        request: the content of the request's zip file.
        key: the old private key, which signs the request.
        certificate: the old certificate.
    """
    proof = {
        "signature": sign_bytes(_SUBJECT + request, key),
        "certificate": certificate.read_text(encoding="utf-8"),
    }
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_REQUEST, request)
        archive.writestr(_PROOF, json.dumps(proof))


def read_renewal(file: Path) -> Renewal | None:
    """Return the renewal in a zip file; None for any other file. Raises `InputError` for a renewal that is damaged."""
    if not zipfile.is_zipfile(file):
        return None
    try:
        with zipfile.ZipFile(file) as archive:
            if _PROOF not in archive.namelist():
                return None
            request, proof_text = (
                _read_at_most(archive, name) for name in (_REQUEST, _PROOF)
            )
        proof = json.loads(proof_text)
        certificate, signature = (
            certificate_of(proof["certificate"].encode()),
            str(proof["signature"]),
        )
    except (
        OSError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
        zipfile.BadZipFile,
    ) as error:
        raise InputError(
            f"{file} is damaged ({type(error).__name__}); let the site send it again"
        ) from error
    return Renewal(request, certificate, signature)


def _read_at_most(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{name} is too long")
    return content


def check_renewal(renewal: Renewal, request: Request, authority: Path) -> None:
    """Raise `InputError` unless the holder of a valid certificate asks for its successor, of the same name and role.

    Args:
        renewal: the request with its signature.
        request: what the request says.
        authority: folder of the authority, which notes the successor.
    """
    from cryptography.exceptions import InvalidSignature

    certificate, serial = renewal.certificate, serial_of(renewal.certificate)
    try:
        certificate.verify_directly_issued_by(
            certificate_of((authority / ROOT_CERTIFICATE).read_bytes())
        )
        check_bytes(_SUBJECT + renewal.request, renewal.signature, certificate)
    except (AttributeError, TypeError, ValueError, InvalidSignature) as error:
        raise InputError(
            f"the renewal is not signed with a key that this authority knows; {_TELEPHONE}"
        ) from error
    if days_left(certificate) < 0:
        raise InputError(
            f"the old certificate of {request.site!r} has ended; {_TELEPHONE}"
        )
    if serial in authoritys_list(authority):
        raise InputError(
            f"the old certificate of {request.site!r} is revoked; if it may join again, {_TELEPHONE}"
        )

    # The certificates that `coterie deploy` makes state no role for sites; those that were signed later state `client`.
    role = attribute_of(certificate, "UNSTRUCTURED_NAME") or "client"
    holder = (
        common_name(certificate),
        role,
        attribute_of(certificate, "ORGANIZATION_NAME"),
    )
    if holder != (request.site, request.kind, request.organisation):
        raise InputError(
            f"the renewal asks for {request.subject}, with a certificate of {', '.join(map(str, holder))}; a certificate is "
            "succeeded by one of the same name and role"
        )
    if holders_of_certificates(authority).get(serial) != request.site:
        raise InputError(
            f"the authority has no record of the old certificate of {request.site!r}; {_TELEPHONE}"
        )
    note_successor(authority, certificate, request.key)
