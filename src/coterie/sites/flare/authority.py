"""The authority that signs a federation's certificates: its key, whose keys it has signed, and what a request must say.

FLARE signs whatever name, type and organisation a request claims. Here a request is opened first, and is one of a site of the plan or
nothing: a certificate of another type would let its holder call sites as the server, or command the federation as its operator.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.errors import InputError, nearest
from coterie.base.files import read_json, write_atomically

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import (
        PublicKeyTypes,
    )

AUTHORITY = "ca"
"""Folder of the kits with the key that signs sites: it stays with the operator."""
ROOT_CERTIFICATE, ROOT_KEY = "rootCA.pem", "rootCA.key"
"""Files of the authority; each kit has the certificate in `startup`."""
_KEYS, _ISSUED, _ENDS, _SUCCESSORS = (
    "keys.json",
    "issued.json",
    "ends.json",
    "successors.json",
)
"""Who has which public key; who has which certificate, by serial number; when each ends; the key of the one that succeeded it."""
DAYS = 90
"""For which a certificate of a site is valid."""
FEW_DAYS = 21
"""From which on a person is told to renew a certificate: time for two letters and a holiday."""
_LARGEST = 1 << 16
"""Bytes of a file in a request."""


@dataclass(frozen=True)
class Request:
    """The content of a request for a certificate.

    Attributes:
        site, kind, organisation: as the request claims; `kind` is `client` for a site.
        key: SHA-256 of the public key.
    """

    site: str
    kind: str
    organisation: str
    key: str

    @property
    def subject(self) -> str:
        """The subject, for a person to read."""
        return f"{self.site}, {self.kind}, of {self.organisation}"

    def check(self, sites: tuple[str, ...], organisation: str) -> None:
        """Raise `InputError` unless this is the request of one of the `sites`, of the organisation that the plan gives that site."""
        if self.site not in sites:
            raise InputError(
                f"the request is for {self.site[:64]!r}, which is not a site of the plan; {nearest(self.site, sites)}"
            )
        if self.kind != "client":
            raise InputError(
                f"the request is for a certificate of type {self.kind[:20]!r}; a site may have type 'client' only"
            )
        if self.organisation != organisation:
            raise InputError(
                f"the request is for organisation {self.organisation[:64]!r}, but the plan's for this site is {organisation!r}"
            )


def read_request(file: Path) -> Request:
    """Return what the request in a zip file says. Raises `InputError` for a file that is not such a request."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if not file.is_file():
        raise InputError(
            f"there is no file {file}; it is what coterie site request makes"
        )
    try:
        with zipfile.ZipFile(file) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".csr")]
            with archive.open(name) as content:
                request = x509.load_pem_x509_csr(content.read(_LARGEST))
        texts = []
        for oid in (
            NameOID.COMMON_NAME,
            NameOID.UNSTRUCTURED_NAME,
            NameOID.ORGANIZATION_NAME,
        ):
            (attribute,) = request.subject.get_attributes_for_oid(oid)
            texts.append(str(attribute.value))
        valid, key = request.is_signature_valid, key_fingerprint(request.public_key())
    except (OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{file} is not a request of a site ({type(error).__name__}); let the site make a new one"
        ) from error
    if not valid:
        raise InputError(
            f"{file} is not signed with the key that it is about; let the site make a new one"
        )
    return Request(texts[0], texts[1], texts[2], key)


def make_authority(state: Path, folder: Path, project: str) -> None:
    """Keep the authority that has signed the kits, so that more sites can be signed later."""
    authority = json.loads(state.read_text(encoding="utf-8"))
    folder.mkdir(mode=0o700, parents=True)
    for name, key in ((ROOT_CERTIFICATE, "root_cert"), (ROOT_KEY, "root_pri_key")):
        (folder / name).write_text(authority[key], encoding="utf-8")
        (folder / name).chmod(0o600)
    description = {
        "project": project,
        "provision_version": "00",
        "rootCA_fingerprint": fingerprint_of(folder / ROOT_CERTIFICATE),
    }
    (folder / "ca.json").write_text(json.dumps(description), encoding="utf-8")
    for name in (_KEYS, _ISSUED, _ENDS, _SUCCESSORS):
        (folder / name).write_text("{}", encoding="utf-8")


def keys_of_authority(authority: Path) -> dict[str, str]:
    """Return who has which public key, by its SHA-256. Raises `InputError` if there is no such list."""
    return _read(authority / _KEYS)


def _read(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise InputError(
            f"there is no {path}; make the kits with coterie deploy, or say where the authority lies with --authority"
        )
    cure = "restore it from a backup of the authority"
    table = read_json(path, dict, cure)
    if not all(isinstance(value, str) for value in table.values()):
        raise InputError(f"{path} is damaged; {cure}")
    return table


def _write(path: Path, table: dict[str, str]) -> None:
    text = json.dumps(table, indent=1)
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def note_key(authority: Path, name: str, key: str) -> None:
    """Note that `name` has the public key with this SHA-256. Raises `InputError` if another has it."""
    keys = keys_of_authority(authority)
    if keys.setdefault(key, name) != name:
        raise InputError(
            f"the request of {name!r} has the public key of {keys[key]!r}; let the site make a key of its own"
        )
    _write(authority / _KEYS, keys)


def note_certificate(authority: Path, name: str, certificate: x509.Certificate) -> None:
    """Note that `name` has this certificate, and its key."""
    note_key(authority, name, key_fingerprint(certificate.public_key()))
    serial = serial_of(certificate)

    ends = {**_read_if_there(authority / _ENDS)}
    ends[serial] = certificate.not_valid_after_utc.isoformat()
    _write(authority / _ENDS, ends)

    # Last, so that whoever is listed as issued has a key and an end on record.
    issued = {**_read(authority / _ISSUED)}
    issued[serial] = name
    _write(authority / _ISSUED, issued)


def holders_of_certificates(authority: Path) -> dict[str, str]:
    """Return who holds which certificate, by its serial number. Raises `InputError` if there is no such list."""
    return _read(authority / _ISSUED)


def ends_of_certificates(authority: Path) -> dict[str, datetime]:
    """Return when certificates end, by serial number; of those that an earlier version has signed it is not known."""
    return {
        serial: datetime.fromisoformat(end)
        for serial, end in _read_if_there(authority / _ENDS).items()
    }


def note_successor(authority: Path, certificate: x509.Certificate, key: str) -> None:
    """Note that a certificate is succeeded by one with the public key that has this SHA-256.

    Raises:
        InputError: another key succeeds it already. Then two parties have the old key, and one may be a thief.
    """
    successors = _read_if_there(authority / _SUCCESSORS)
    if successors.setdefault(serial_of(certificate), key) != key:
        raise InputError(
            f"the certificate of {common_name(certificate)!r} was renewed before, with another key; ask the site: if that was a thief, "
            "coterie revoke; if it was the site, give the SHA-256 of its new key, told by telephone, with --fingerprint"
        )
    _write(authority / _SUCCESSORS, successors)


def _read_if_there(path: Path) -> dict[str, str]:
    """Return a list that authorities of earlier versions lack."""
    if not path.exists():
        return {}
    return _read(path)


def serial_of(certificate: x509.Certificate) -> str:
    """Return the serial number as openssl prints it."""
    return f"{certificate.serial_number:X}"


def issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return True if an authority has signed a certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def is_valid(certificate: x509.Certificate, time: datetime) -> bool:
    """Return True if a certificate is valid at a time, which has a time zone."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return bool(begin <= time <= end)


def common_name(certificate: x509.Certificate) -> str:
    """Return the name of a certificate's holder."""
    return attribute_of(certificate, "COMMON_NAME") or ""


def attribute_of(certificate: x509.Certificate, name: str) -> str | None:
    """Return an attribute of a certificate's subject, such as `ORGANIZATION_NAME`; None if it has none or several."""
    from cryptography.x509.oid import NameOID

    attributes = certificate.subject.get_attributes_for_oid(getattr(NameOID, name))
    if len(attributes) != 1:
        return None
    return str(attributes[0].value)


def days_left(certificate: x509.Certificate) -> int:
    """Return for how many whole days a certificate is valid yet; negative if it has ended."""
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return int(left.days)


def certificate_of(content: bytes) -> x509.Certificate:
    """Return the certificate in PEM text."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(content)


def fingerprint_of(certificate: Path) -> str:
    """SHA-256 of a certificate, as FLARE and openssl print it."""
    from cryptography.hazmat.primitives import hashes

    return fingerprint_text(
        certificate_of(certificate.read_bytes()).fingerprint(hashes.SHA256())
    )


def key_fingerprint(key: PublicKeyTypes) -> str:
    """SHA-256 of a public key, as `openssl pkey -pubin -outform DER | sha256sum` computes it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return fingerprint_text(
        hashlib.sha256(
            key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        ).digest()
    )


def fingerprint_text(digest: bytes) -> str:
    """Return a SHA-256 as a person reads it aloud."""
    return "SHA256:" + digest.hex(":").upper()
