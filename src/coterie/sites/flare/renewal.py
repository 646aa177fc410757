"""Renewal without telephones: the key of a certificate that is still valid signs the request for its successor.

The site makes a new key and lets the old one sign what it asks (`request_renewal`). The authority checks the old certificate
(`renewal_request.check_renewal`), and the site puts the signed one into its kit (`install`), of which nothing else changes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.errors import InputError
from coterie.base.files import write_atomically
from coterie.sites.flare.authority import (
    ROOT_CERTIFICATE,
    Request,
    certificate_of,
    common_name,
    fingerprint_of,
    key_fingerprint,
    read_request,
)
from coterie.sites.flare.join import certificates_in, check_authority, make_request
from coterie.sites.flare.renewal_request import write_renewal
from coterie.sites.flare.workspace import for_owner_only, tighten

if TYPE_CHECKING:
    from cryptography import x509

FOLDER = "renewal"
"""Folder of a kit with the new key until its certificate is signed."""


@for_owner_only()
def request_renewal(kit: Path) -> tuple[Path, Request]:
    """Make a new key in the site's kit, and a request that the old key has signed. One that was begun goes on.

    Returns:
        The file to send to the operator, and what the request says.

    Raises:
        InputError: the folder is not the kit of a site.
    """
    startup, folder = kit / "startup", kit / FOLDER
    certificate = kits_certificate(kit)
    site = common_name(certificate)
    if not folder.exists():
        check_key(kit, certificate)
        with tempfile.TemporaryDirectory(dir=kit, prefix=f".{FOLDER}") as temporary:
            begun = Path(temporary) / FOLDER
            request = make_request(site, begun).read_bytes()
            write_renewal(
                begun / f"{site}.renewal.zip",
                request,
                startup / "client.key",
                startup / "client.crt",
            )
            tighten(begun)  # FLARE gives some files rights of its own
            os.replace(begun, folder)  # whole or not at all
    return folder / f"{site}.renewal.zip", read_request(folder / f"{site}.request.zip")


@for_owner_only()
def install(kit: Path, signed_zip: Path) -> x509.Certificate:
    """Put the new key and the certificate that the operator has signed into a site's kit, and return the certificate.

    Nothing else in the kit changes. What an interruption leaves is completed by the same command.

    Raises:
        InputError: the kit has asked for no certificate, or this one is another's, of another key, or of another authority.
    """
    startup, folder = kit / "startup", kit / FOLDER
    site = common_name(kits_certificate(kit))
    if not folder.is_dir():
        raise InputError(
            f"{kit} waits for no certificate; ask for one with coterie site renew {kit}"
        )
    if not signed_zip.is_file():
        raise InputError(
            f"there is no file {signed_zip}; it is what the operator sends back"
        )
    check_authority(
        signed_zip, fingerprint_of(startup / ROOT_CERTIFICATE), "that of this kit"
    )
    _, successor = certificates_in(signed_zip)
    if common_name(successor) != site:
        raise InputError(
            f"{signed_zip} is for {common_name(successor)!r}, and this kit is that of {site!r}"
        )
    key = (folder / f"{site}.key").read_bytes()
    if not _belongs(key, successor):
        raise InputError(
            f"{signed_zip} is for another key than that in {folder}; send {folder / f'{site}.renewal.zip'} to the operator"
        )
    write_atomically(
        startup / "client.key", lambda p: _write_private(p, key), durable=True
    )
    certificate = _pem(successor)
    write_atomically(
        startup / "client.crt", lambda p: p.write_bytes(certificate), durable=True
    )
    shutil.rmtree(folder)
    return successor


def kits_certificate(kit: Path, end: str = "client") -> x509.Certificate:
    """Return the certificate in a kit.

    Args:
        kit: the folder.
        end: `client` for a site, `server` for the server.

    Raises:
        InputError: the folder is not the kit of one, or the certificate is damaged.
    """
    startup = kit / "startup"
    file = startup / f"{end}.crt"
    for name in (file.name, f"{end}.key", ROOT_CERTIFICATE):
        if not (startup / name).is_file():
            raise InputError(
                f"{startup} has no {name}: no connection is taken without it; get a new kit"
            )
    try:
        return certificate_of(file.read_bytes())
    except ValueError as error:
        raise InputError(
            f"{file} is damaged; restore it from a backup, or get a new kit"
        ) from error


def check_key(kit: Path, certificate: x509.Certificate, end: str = "client") -> None:
    """Raise `InputError` unless the key in a kit is that of its certificate; `end` as of `kits_certificate`."""
    startup = kit / "startup"
    if not _belongs((startup / f"{end}.key").read_bytes(), certificate):
        cure = ""
        if end == "client":
            cure = f"if a renewal was interrupted, give coterie site renew {kit} with the signed file again, or "
        raise InputError(
            f"{end}.key and {end}.crt in {startup} do not belong together; {cure}get a new kit"
        )


def _belongs(key: bytes, certificate: x509.Certificate) -> bool:
    """Return True if a private key, in PEM text, is that of a certificate; one that is damaged is that of none."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key, None)
    except (TypeError, ValueError):
        return False
    return key_fingerprint(private.public_key()) == key_fingerprint(
        certificate.public_key()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
