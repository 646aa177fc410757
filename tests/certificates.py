"""Kits of sites with certificates of one authority, without FLARE."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from coterie.sites.flare.authority import certificate_of, serial_of
from coterie.sites.flare.identity import KitIdentity
from coterie.sites.flare.revocation import RevocationList, _bytes_to_sign
from coterie.sites.flare.signature import sign_bytes

DAY = timedelta(days=1)


class Authority:
    """Signs the certificates of kits below a folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        self._key = _new_key(folder / "root.key")
        self._root = self._sign("root", self._key.public_key(), 30 * DAY, ca=True)

    def kit(self, name, days=30):
        """The identity of a new kit of this name."""
        startup = self.folder / f"{name}-{len([*self.folder.iterdir()])}" / "startup"
        startup.mkdir(parents=True)
        key = _new_key(startup / "client.key")
        own = self._sign(name, key.public_key(), days * DAY)
        (startup / "client.crt").write_bytes(own.public_bytes(Encoding.PEM))
        (startup / "rootCA.pem").write_bytes(self._root.public_bytes(Encoding.PEM))
        return KitIdentity(startup, startup.parent / "revoked.json")

    def revoke(self, name, revoked, at):
        """Give a site the list in which the certificate of another kit is revoked."""
        content = (revoked.startup / "client.crt").read_bytes()
        names = {serial_of(certificate_of(content)): name}
        date = datetime.now(UTC).isoformat(timespec="seconds")
        signature = sign_bytes(_bytes_to_sign(1, date, names), self.folder / "root.key")
        at.revoked.write_text(RevocationList(1, date, names, signature).text)

    def _sign(self, name, key, lasts, ca=False):
        now = datetime.now(UTC)
        own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
        builder = x509.CertificateBuilder(issuer, own, key, x509.random_serial_number())
        builder = builder.not_valid_before(now - 2 * DAY).not_valid_after(now + lasts)
        constraints = x509.BasicConstraints(ca, None)
        builder = builder.add_extension(constraints, critical=True)
        return builder.sign(self._key, hashes.SHA256())


def _new_key(file):
    key = rsa.generate_private_key(65537, 2048)
    file.write_bytes(
        key.private_bytes(
            Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
        )
    )
    return key
