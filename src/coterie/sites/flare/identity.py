"""Who a site is towards its peers: the key of its kit, and authority and revoked certificates by which it knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coterie.base.errors import InputError
from coterie.sites.flare.authority import certificate_of, serial_of
from coterie.sites.flare.revocation import sites_list
from coterie.sites.flare.signature import sign_with, verify

_CERTIFICATE, _KEY = "client.crt", "client.key"


@dataclass(frozen=True)
class KitIdentity:
    """The identity that a kit gives (`signed_sum.Identity`).

    Attributes:
        startup: folder of the kit with the site's key and the certificates of site and authority.
        revoked: file in which the site keeps the list of revoked certificates.
    """

    startup: Path
    revoked: Path

    def sign(self, content: bytes) -> dict[str, str]:
        """The signature of bytes with the key of the kit, and its certificate."""
        return sign_with(content, self.startup / _KEY, self.startup / _CERTIFICATE)

    def check(self, name: str, content: bytes, signed: Mapping[str, str]) -> None:
        """Raise `InputError` unless the site of this name has signed these bytes, with a certificate that is valid and not revoked."""
        try:
            verify(content, signed, name, self.startup, datetime.now(UTC))
            serial = serial_of(certificate_of(signed["certificate"].encode()))
        except InputError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError("no signature") from error
        current = sites_list(self.revoked, self.startup)
        if current is not None and serial in current.certificates:
            raise InputError(f"its certificate {serial} is revoked")


def identity_of_kit(startup: Path, revoked: Path) -> KitIdentity | None:
    """Return the identity of a kit; None for a folder without the key of a site."""
    needed = (startup / name for name in (_KEY, _CERTIFICATE))
    if not all(file.is_file() for file in needed):
        return None
    return KitIdentity(startup, revoked)
