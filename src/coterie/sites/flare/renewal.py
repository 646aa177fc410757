"""Renewal without telephones: the key of a certificate that is still valid signs the request for its successor.

The site makes a new key and lets the old one sign what it asks (`request_renewal`). The authority checks the old certificate
(`check_renewal`), and the site puts the signed one into its kit (`install`), of which nothing else changes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.errors import InputError
from coterie.base.files import write_atomically
from coterie.sites.flare.authority import (
    ROOT_CERTIFICATE,
    Request,
    attribute_of,
    certificate_of,
    common_name,
    days_left,
    fingerprint_of,
    holders_of_certificates,
    key_fingerprint,
    note_successor,
    read_request,
    serial_of,
)
from coterie.sites.flare.join import certificates_in, check_authority, make_request
from coterie.sites.flare.revocation import authoritys_list
from coterie.sites.flare.signature import check_bytes, sign_bytes

if TYPE_CHECKING:
    from cryptography import x509

FOLDER = "renewal"
"""Folder of a kit with the new key until its certificate is signed."""
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


# ---- the site


def request_renewal(kit: Path) -> tuple[Path, Request]:
    """Make a new key in the site's kit, and a request that the old key has signed. One that was begun goes on.

    Returns:
        The file to send to the operator, and what the request says.

    Raises:
        InputError: the folder is no kit of a site.
    """
    startup = kit / "startup"
    for name in ("client.crt", "client.key", ROOT_CERTIFICATE):
        if not (startup / name).is_file():
            raise InputError(f"{startup} has no {name}; give the kit of a site")
    old = certificate_of((startup / "client.crt").read_bytes())
    site, folder = common_name(old), kit / FOLDER
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=kit, prefix=f".{FOLDER}") as temporary:
            begun = Path(temporary) / FOLDER
            request = make_request(site, begun).read_bytes()
            proof = {
                "signature": sign_bytes(_SUBJECT + request, startup / "client.key"),
                "certificate": (startup / "client.crt").read_text(encoding="utf-8"),
            }
            with zipfile.ZipFile(begun / f"{site}.renewal.zip", "w") as archive:
                archive.writestr(_REQUEST, request)
                archive.writestr(_PROOF, json.dumps(proof))
            os.replace(begun, folder)  # whole or not at all
    return folder / f"{site}.renewal.zip", read_request(folder / f"{site}.request.zip")


def install(kit: Path, signed_zip: Path) -> x509.Certificate:
    """Put the new key and the certificate that the operator has signed into a site's kit, and return the certificate.

    Nothing else in the kit changes. What an interruption leaves is completed by the same command.

    Raises:
        InputError: the kit has asked for no certificate, or this one is another's, of another key, or of another authority.
    """
    startup, folder = kit / "startup", kit / FOLDER
    if not folder.is_dir():
        raise InputError(f"{kit} waits for no certificate; ask for one with coterie site renew {kit}")
    if not signed_zip.is_file():
        raise InputError(f"there is no file {signed_zip}; it is what the operator sends back")
    check_authority(signed_zip, fingerprint_of(startup / ROOT_CERTIFICATE), "that of this kit")
    _, new = certificates_in(signed_zip)
    site = common_name(certificate_of((startup / "client.crt").read_bytes()))
    if common_name(new) != site:
        raise InputError(f"{signed_zip} is for {common_name(new)!r}, and this kit is that of {site!r}")
    key = (folder / f"{site}.key").read_bytes()
    if not belongs(key, new):
        raise InputError(
            f"{signed_zip} is for another key than that in {folder}; send {folder / f'{site}.renewal.zip'} to the operator"
        )
    write_atomically(startup / "client.key", lambda p: _write_private(p, key), durable=True)
    certificate = _pem(new)
    write_atomically(startup / "client.crt", lambda p: p.write_bytes(certificate), durable=True)
    shutil.rmtree(folder)
    return new


def belongs(key: bytes, certificate: x509.Certificate) -> bool:
    """Return True if a private key, in PEM text, is that of a certificate."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private = load_pem_private_key(key, None)
    return key_fingerprint(private.public_key()) == key_fingerprint(certificate.public_key())


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


# ---- the authority


def read_renewal(file: Path) -> Renewal | None:
    """Return the renewal in a zip file; None for any other file. Raises `InputError` for a renewal that is damaged."""
    if not zipfile.is_zipfile(file):
        return None
    try:
        with zipfile.ZipFile(file) as archive:
            if _PROOF not in archive.namelist():
                return None
            request, proof_text = (_read_bounded(archive, name) for name in (_REQUEST, _PROOF))
        proof = json.loads(proof_text)
        certificate, signature = certificate_of(proof["certificate"].encode()), str(proof["signature"])
    except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is damaged ({type(error).__name__}); let the site send it again") from error
    return Renewal(request, certificate, signature)


def _read_bounded(archive: zipfile.ZipFile, name: str) -> bytes:
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

    old, serial = renewal.certificate, serial_of(renewal.certificate)
    try:
        old.verify_directly_issued_by(certificate_of((authority / ROOT_CERTIFICATE).read_bytes()))
        check_bytes(_SUBJECT + renewal.request, renewal.signature, old)
    except (AttributeError, TypeError, ValueError, InvalidSignature) as error:
        raise InputError(f"the renewal is not signed with a key that this authority knows; {_TELEPHONE}") from error
    if days_left(old) < 0:
        raise InputError(f"the old certificate of {request.site!r} has ended; {_TELEPHONE}")
    if serial in authoritys_list(authority):
        raise InputError(f"the old certificate of {request.site!r} is revoked; if it may join again, {_TELEPHONE}")

    # The certificates that `coterie deploy` makes state no role for sites; those that were signed later state `client`.
    role = attribute_of(old, "UNSTRUCTURED_NAME") or "client"
    holder = (common_name(old), role, attribute_of(old, "ORGANIZATION_NAME"))
    if holder != (request.site, request.kind, request.organisation):
        raise InputError(
            f"the renewal asks for {request.subject}, with a certificate of {', '.join(map(str, holder))}; a certificate is "
            "succeeded by one of the same name and role"
        )
    if holders_of_certificates(authority).get(serial) != request.site:
        raise InputError(f"the authority has no record of the old certificate of {request.site!r}; {_TELEPHONE}")
    note_successor(authority, old, request.key)
