"""The list of revoked certificates, signed with the authority's key.

FLARE knows no revocation. The server's gate and every site hold a copy of one list. The signature keeps others from shortening it,
and the number from bringing back an earlier one: a site takes no list with a lower number than that of the list it holds.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, nearest, visible
from coterie.base.files import parse_json, read_text, write_atomically
from coterie.sites.flare.authority import (
    ROOT_CERTIFICATE,
    ROOT_KEY,
    certificate_of,
    ends_of_certificates,
    holders_of_certificates,
    serial_of,
)
from coterie.sites.flare.signature import check_bytes, check_plan, sign_bytes, signer_of
from coterie.sites.plan import signature_file

REVOKED = "revoked.json"
"""File of the list: of the authority, with a copy in the server's kit and one in each site's kit."""
LONGEST = 1 << 16
"""Bytes of a list; it names some 600 certificates."""
_SUBJECT = b"coterie revoked certificates "
"""Stands before the signed bytes, so that no other signature of the authority can be passed off as one of a list."""
_MARGIN = timedelta(days=7)
"""For which an ended certificate stays on the list: clocks differ."""


@dataclass(frozen=True)
class RevocationList:
    """The certificates that nobody may use, although they have not ended.

    Attributes:
        number: 1 for the first list of an authority, and one more for each later list.
        date: when it was signed, in ISO 8601, UTC.
        certificates: the names of the holders by serial number.
        signature: of the authority, in base64.
    """

    number: int
    date: str
    certificates: Mapping[str, str]
    signature: str

    @property
    def text(self) -> str:
        """The content of its file."""
        return json.dumps(vars(self), indent=1)

    def words(self, now: datetime) -> str:
        """Say how old the list is and how many certificates it names."""
        age = now - datetime.fromisoformat(self.date)
        days = max(age.days, 0)
        return f"list {self.number} of {self.date[:10]}, {days} days old, names {len(self.certificates)} certificates"


# ---- the authority


def first_list(authority: Path) -> Path:
    """Sign the list of a new authority, which revokes nothing; returns its file."""
    return _sign_list(authority, 1, {})


def revoke_certificates(authority: Path, name: str | None) -> Path:
    """Put all certificates of `name` on the authority's list, and sign it with the next number; returns its file.

    Args:
        authority: folder of the authority.
        name: of a site, the server or a person; None: revoke no more, and sign the list with today's date.

    Raises:
        InputError: the authority is not there, has issued no certificate to `name`, or its list is damaged.
    """
    number, revoked = _own_list(authority)
    holders = holders_of_certificates(authority)
    if name is not None:
        serials = [serial for serial, holder in holders.items() if holder == name]
        if not serials:
            suggestion = nearest(name, set(holders.values()))
            raise InputError(
                f"the authority has issued no certificate to {name!r}; {suggestion}"
            )
        revoked = {**revoked, **dict.fromkeys(serials, name)}

    # A certificate that has ended is refused without a list.
    ends = ends_of_certificates(authority)
    now = datetime.now(UTC)
    lasting = {
        serial: holder
        for serial, holder in revoked.items()
        if ends.get(serial, now) + _MARGIN > now
    }
    return _sign_list(authority, number + 1, lasting)


def authoritys_list(authority: Path) -> Mapping[str, str]:
    """Return the certificates that an authority has revoked. Raises `InputError` if its list is missing or damaged."""
    return _own_list(authority)[1]


def _own_list(authority: Path) -> tuple[int, Mapping[str, str]]:
    """Return the number and the certificates of an authority's list; of an unsigned one, as authorities had before, the number is 0."""
    file = authority / REVOKED
    cure = "copy it back from local/ of the server's kit, or from a backup of the authority"
    if not file.is_file():
        # A new list would begin at number 1: sites would refuse it, and who was revoked would be let in.
        raise InputError(
            f"{file} is missing; {cure}, or say where the authority lies with --authority"
        )
    values = parse_json(read_text(file, LONGEST), str(file), dict, cure)
    if _lacks_signature(values):
        return 0, values
    revocations = _read(values, authority / ROOT_CERTIFICATE, str(file), cure)
    return revocations.number, revocations.certificates


def _sign_list(authority: Path, number: int, certificates: Mapping[str, str]) -> Path:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    signature = sign_bytes(
        _bytes_to_sign(number, date, certificates), authority / ROOT_KEY
    )
    text = RevocationList(number, date, dict(certificates), signature).text
    file = authority / REVOKED
    write_atomically(file, lambda p: p.write_text(text, encoding="utf-8"), durable=True)
    return file


def _bytes_to_sign(number: int, date: str, certificates: Mapping[str, str]) -> bytes:
    return _SUBJECT + json.dumps([number, date, sorted(certificates.items())]).encode()


# ---- whoever reads it


def read_list(file: Path, root: Path, cure: str) -> RevocationList:
    """Return the list in a file.

    Args:
        file: the list.
        root: certificate of the authority.
        cure: what to do about a bad list.

    Raises:
        InputError: the file is missing, damaged or unsigned, or the authority has not signed it.
    """
    if not file.is_file():
        raise InputError(f"{file} is missing; {cure}")
    return parse_list(read_text(file, LONGEST), root, str(file), cure)


def parse_list(text: str, root: Path, place: str, cure: str) -> RevocationList:
    """Return the list in a text. Arguments and errors as of `read_list`; `place` says where the text comes from."""
    return _read(parse_json(text, place, dict, cure), root, place, cure)


def _lacks_signature(values: Mapping[str, Any]) -> bool:
    """Return True for a list of holders by serial number and nothing else."""
    return "signature" not in values and all(
        isinstance(holder, str) for holder in values.values()
    )


def _read(
    values: Mapping[str, Any], root: Path, place: str, cure: str
) -> RevocationList:
    if _lacks_signature(values):
        raise InputError(
            f"{place} is not signed by the authority, as lists of earlier versions are not; {cure}"
        )
    try:
        revocations = RevocationList(**values)
        _check_form(revocations)
        signed = _bytes_to_sign(
            revocations.number, revocations.date, revocations.certificates
        )
        check_bytes(signed, revocations.signature, certificate_of(root.read_bytes()))
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{place} is not a list that the authority of this kit has signed; {cure}"
        ) from error
    return revocations


def _check_form(revocations: RevocationList) -> None:
    """Raise `ValueError` or `TypeError` for values of other types than those of a list."""
    if type(revocations.number) is not int or revocations.number < 1:
        raise ValueError("no number")
    if datetime.fromisoformat(revocations.date).tzinfo is None:
        raise ValueError("no time zone")
    if not all(isinstance(holder, str) for holder in revocations.certificates.values()):
        raise ValueError("no names")


# ---- the server


_SERVERS_CURE = "make one with coterie revoke plan.toml, and copy ca/revoked.json into local/ of the server's kit"


def servers_list(local: Path) -> RevocationList | None:
    """Return the list in the server's kit, whose folder `local` is given; None in a simulation, which has no certificates.

    Raises:
        InputError: the list is missing or bad, and then nobody would be refused.
    """
    root = local.parent / "startup" / ROOT_CERTIFICATE
    if not root.is_file():
        return None
    return read_list(local / REVOKED, root, _SERVERS_CURE)


# ---- a site


def sites_list(file: Path, startup: Path) -> RevocationList | None:
    """Return the list that a site holds; None before the server has sent one.

    Args:
        file: where the site keeps the list.
        startup: folder of the site's kit with the authority's certificate.

    Raises:
        InputError: the file is damaged.
    """
    if not file.is_file():
        return None
    return read_list(
        file,
        startup / ROOT_CERTIFICATE,
        "remove it: the server sends it again when a run begins",
    )


def take_list(text: Any, file: Path, startup: Path) -> RevocationList:
    """Keep the list that the server has sent, and return it.

    Args:
        text: what the server has sent.
        file: where the site keeps the list.
        startup: folder of the site's kit with the authority's certificate.

    Raises:
        InputError: the authority has not signed the text, or the site holds a later list.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        raise InputError("what the server sent is not a list of revoked certificates")
    sent = parse_list(
        text,
        startup / ROOT_CERTIFICATE,
        "the list of revoked certificates that the server sent",
        _SERVERS_CURE,
    )
    with _alone(file.parent):  # jobs run at once, and each brings a list
        current = sites_list(file, startup)
        if current is not None and current != sent and sent.number <= current.number:
            raise InputError(
                f"the server sent list {sent.number} of revoked certificates, of {sent.date[:10]}, and this site holds list "
                f"{current.number}; repeat coterie revoke plan.toml until it says a number above {current.number}, and copy "
                "ca/revoked.json into local/ of the server's kit"
            )
        if current != sent:
            write_atomically(
                file, lambda p: p.write_text(text, encoding="utf-8"), durable=True
            )
    return sent


def check_signer(signature: str, file: Path, startup: Path) -> None:
    """Raise `InputError` if whoever has signed a plan did so with a revoked certificate.

    Args:
        signature: the text of the signature, which `signature.check_plan` has verified.
        file: where the site keeps the list.
        startup: folder of the site's kit with the authority's certificate.
    """
    current = sites_list(file, startup)
    serial = serial_of(signer_of(signature))
    if current is not None and serial in current.certificates:
        raise InputError(
            f"the plan was signed by {visible(current.certificates[serial])}, whose certificate {serial} is revoked (list "
            f"{current.number}); ask for a plan that somebody else has signed, of new kits if need be"
        )


def check_approval(plan_file: Path, operator: str, file: Path, startup: Path) -> None:
    """Raise `InputError` unless the approved plan has its operator's signature beside it, with a certificate that is not revoked.

    Args:
        plan_file: the site's own copy of the plan.
        operator: the name of the operator.
        file: where the site keeps the list.
        startup: folder of the site's kit with the authority's certificate.
    """
    beside, cure = signature_file(plan_file), "there: coterie site approve KIT"
    if not beside.is_file():
        raise InputError(
            f"its approval keeps no signature of the operator, as those of earlier versions do not; {cure}"
        )
    signature = read_text(beside)
    try:
        check_plan(plan_file, plan_file.read_bytes(), signature, operator, startup)
    except InputError as error:
        raise InputError(
            f"the signature that its approval keeps is damaged, of somebody else than {operator}, or its certificate has ended; {cure}"
        ) from error
    check_signer(signature, file, startup)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from doing the same in this folder meanwhile."""
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
