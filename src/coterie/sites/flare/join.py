"""Keys made at the site: it asks for a certificate, the operator signs, and the site builds its own kit.

NVIDIA FLARE's `cert request`, `cert approve` and `package` do the work; what coterie adds is the plan, the site's settings and the
rules of `kits.harden`. A private key never leaves the machine that made it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.errors import InputError, nearest
from coterie.base.files import write_atomically
from coterie.sites.flare.authority import (
    AUTHORITY,
    DAYS,
    REVOKED,
    Request,
    certificate_of,
    fingerprint_of,
    fingerprint_text,
    note_certificate,
    note_key,
    read_request,
    revoke_certificates,
)
from coterie.sites.flare.kits import (
    PROJECT,
    furnish,
    harden,
    need_flare,
    organisation_of,
)
from coterie.sites.plan import Deployment, read_plan
from coterie.sites.software import add_software, wheels_in

if TYPE_CHECKING:
    from cryptography import x509

LARGEST = 1 << 16
"""Bytes of what an operator says of a certificate."""
_FINGERPRINT = re.compile(r"(SHA256:)?([0-9A-F]{2}:){31}[0-9A-F]{2}", re.IGNORECASE)


def request(plan_file: Path, site: str, folder: Path) -> tuple[Path, Request]:
    """Make the key of `site` in `folder`.

    Returns:
        The file to send to the operator, and what it says: the site tells its key's SHA-256 over another channel.

    Raises:
        InputError: the site is not in the plan, or the folder exists.
    """
    deployment = read_plan(plan_file).deployment
    if site not in deployment.sites:
        raise InputError(
            f"the plan has no site {site!r}; {nearest(site, deployment.sites)}"
        )
    if folder.exists():
        raise InputError(
            f"{folder} exists already; it may hold a key: move it away first"
        )
    with tempfile.TemporaryDirectory() as temporary:
        participant = Path(temporary) / "site.yml"
        participant_entry = {
            "name": site,
            "type": "client",
            "org": organisation_of(site),
        }
        participant.write_text(
            json.dumps({"name": PROJECT, "participants": [participant_entry]}),
            encoding="utf-8",
        )  # JSON is YAML
        _nvflare("cert", "request", "-p", str(participant), "--out", str(folder))
    archive = folder / f"{site}.request.zip"
    return archive, read_request(archive)


def sign(
    plan_file: Path,
    request_zip: Path,
    fingerprint: str,
    kits: Path | None = None,
    authority: Path | None = None,
) -> tuple[Path, Request, str]:
    """Sign a site's request with the authority of the kits.

    Args:
        plan_file: the plan.
        request_zip: what the site has sent.
        fingerprint: SHA-256 of the site's public key, as a person there says it over another channel.
        kits: folder of the kits; None: as the plan says.
        authority: folder of the authority; None: `ca` of the kits.

    Returns:
        The file to send back, what the request says, and the authority's fingerprint, to be told by telephone.

    Raises:
        InputError: the request is none of a site of the plan, has another key than `fingerprint` or one that another party has, or the
            kits have no authority.
    """
    deployment = read_plan(plan_file).deployment
    authority = authority or (kits or plan_file.parent / deployment.kits) / AUTHORITY
    if not (authority / "rootCA.key").is_file():
        raise InputError(
            f"{authority} has no rootCA.key; make the kits with coterie deploy, or say where it lies with --authority"
        )
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "request.zip"  # what is checked is what is signed
        if request_zip.is_file():
            shutil.copy(request_zip, copy)
        else:
            raise InputError(
                f"there is no file {request_zip}; it is what coterie site request makes"
            )
        site_request = read_request(copy)
        site_request.check(deployment.sites, organisation_of(site_request.site))
        if request_zip.name != f"{site_request.site}.request.zip":
            raise InputError(
                f"{request_zip} is a request of {site_request.site!r}, not of the site that its name says"
            )
        if site_request.key != _read_fingerprint(fingerprint):
            raise InputError(
                f"the public key in {request_zip} has another SHA-256 than --fingerprint; ask the site again, by telephone: "
                "this may be somebody else's request"
            )
        signed = request_zip.with_name(f"{site_request.site}.signed.zip")
        if signed.exists():
            raise InputError(f"{signed} exists already; remove it to sign again")
        note_key(authority, site_request.site, site_request.key)
        profile = Path(temporary) / "profile.yml"
        profile.write_text(json.dumps(_profile(deployment)), encoding="utf-8")
        options = (
            "-c",
            str(authority),
            "--profile",
            str(profile),
            "--valid-days",
            str(DAYS),
            "--out",
            str(signed),
        )
        _nvflare("cert", "approve", str(copy), *options)
        note_certificate(authority, site_request.site, _certificates_in(signed)[1])
    return signed, site_request, fingerprint_of(authority / "rootCA.pem")


def join(
    signed_zip: Path,
    fingerprint: str,
    plan_file: Path,
    requested: Path,
    kit: Path,
    wheels: Path | None = None,
) -> None:
    """Build the site's kit in the new folder `kit`.

    Args:
        signed_zip: what the operator has sent back.
        fingerprint: fingerprint of the authority, as the operator says it over another channel.
        plan_file: the plan.
        requested: the folder that `request` made, with the key.
        kit: a folder that does not exist yet.
        wheels: a folder of wheels that the kit carries; None: it carries none.

    Raises:
        InputError: a fingerprint that does not fit, a file that is missing, or no wheel of coterie among the wheels.
    """
    plan = read_plan(plan_file)
    wheels_in(wheels)
    need_flare()
    _check_key(signed_zip, requested)
    if kit.exists():
        raise InputError(f"{kit} exists already; give a new folder with --kit")
    expected = _read_fingerprint(fingerprint)
    _check_authority(signed_zip, expected)
    with tempfile.TemporaryDirectory() as temporary:
        options = (
            "--request-dir",
            str(requested),
            "--fingerprint",
            expected,
            "-w",
            temporary,
        )
        _nvflare("package", str(signed_zip), *options)
        startup = next((p.parent for p in Path(temporary).rglob("startup")), None)
        if startup is None:
            raise InputError(
                f"FLARE made no kit of {signed_zip}; ask the operator to sign again"
            )
        shutil.copytree(startup, kit)
    harden(kit)
    add_software(kit, wheels)
    furnish(kit, plan, plan_file)


def _check_key(signed_zip: Path, requested: Path) -> None:
    """Raise `InputError` if a certificate was not signed for the key in the folder `requested`."""
    if not signed_zip.is_file():
        raise InputError(
            f"there is no file {signed_zip}; it is what the operator sends back"
        )
    if not (requested / "request.json").is_file():
        raise InputError(
            f"{requested} has no request of a site; give the folder that coterie site request made with --key"
        )
    try:
        with (
            zipfile.ZipFile(signed_zip) as archive,
            archive.open("signed.json") as file,
        ):
            signed = json.loads(file.read(LARGEST))["request_id"]
        requested_id = json.loads(
            (requested / "request.json").read_text(encoding="utf-8")
        )["request_id"]
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{signed_zip} or {requested} is damaged; request a new key with coterie site request"
        ) from error
    if signed != requested_id:
        raise InputError(
            f"{signed_zip} is not for the key in {requested}; give the folder of that request with --key"
        )


def _check_authority(signed_zip: Path, expected: str) -> None:
    """Raise `InputError` unless the file's authority is the one whose fingerprint was heard, valid, and has signed the certificate."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509 import BasicConstraints, ExtensionNotFound

    try:
        authority, signed = _certificates_in(signed_zip)
        is_authority = authority.extensions.get_extension_for_class(
            BasicConstraints
        ).value.ca
        signed.verify_directly_issued_by(authority)
    except (
        OSError,
        KeyError,
        StopIteration,
        TypeError,
        ValueError,
        ExtensionNotFound,
        InvalidSignature,
        zipfile.BadZipFile,
    ) as error:
        raise InputError(
            f"{signed_zip} was not signed by the authority that it holds; ask the operator to sign again"
        ) from error
    if fingerprint_text(authority.fingerprint(hashes.SHA256())) != expected:
        raise InputError(
            f"{signed_zip} comes from another authority than the one that you heard of; ask the operator again, by telephone"
        )
    if not is_authority:
        raise InputError(
            f"{signed_zip} was signed with a certificate that is not an authority's; ask the operator to sign again"
        )
    now = datetime.now(UTC)
    for certificate in (authority, signed):
        if (
            not certificate.not_valid_before_utc
            <= now
            <= certificate.not_valid_after_utc
        ):
            raise InputError(
                f"a certificate of {signed_zip} is not valid now; compare this machine's clock, or ask the operator to sign again"
            )


def _certificates_in(signed_zip: Path) -> tuple[x509.Certificate, x509.Certificate]:
    """Return the certificates of the authority and of the site in a signed file."""
    with zipfile.ZipFile(signed_zip) as archive:
        names = [
            "rootCA.pem",
            next(name for name in archive.namelist() if name.endswith(".crt")),
        ]
        authority, signed = (
            certificate_of(archive.open(name).read(LARGEST)) for name in names
        )
    return authority, signed


def revoke(
    plan_file: Path, name: str, kits: Path | None = None, authority: Path | None = None
) -> tuple[Path, Path | None]:
    """Revoke all certificates that a site has.

    Returns:
        The authority's list, and the server's copy of it; None where the server's kit lies elsewhere, which needs a copy then.

    Raises:
        InputError: the authority is not there, or has issued no certificate to `name`.
    """
    deployment = read_plan(plan_file).deployment
    kits = kits or plan_file.parent / deployment.kits
    _, path = revoke_certificates(authority or kits / AUTHORITY, name)
    local = kits / deployment.server / "local"
    if not local.is_dir():
        return path, None
    write_atomically(local / REVOKED, lambda p: p.write_bytes(path.read_bytes()))
    return path, local / REVOKED


def _read_fingerprint(fingerprint: str) -> str:
    """Return a fingerprint that a person has typed as it is printed."""
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise InputError(
            "the fingerprint must be 32 pairs of hexadecimal digits with colons between"
        )
    return "SHA256:" + fingerprint.upper().removeprefix("SHA256:")


def _profile(deployment: Deployment) -> dict[str, Any]:
    server = {
        "host": deployment.server,
        "fed_learn_port": deployment.port,
        "admin_port": deployment.port,
    }
    return {
        "name": PROJECT,
        "scheme": "tcp",
        "connection_security": "mtls",
        "server": server,
    }


def _nvflare(*arguments: str) -> None:
    """Run a command of FLARE. Raises `InputError` with its reason."""
    need_flare()
    process = subprocess.run(
        [sys.executable, "-m", "nvflare.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        output = [
            line
            for line in (process.stderr + process.stdout).splitlines()
            if line.strip()
        ]
        raise InputError(
            f"FLARE's {' '.join(arguments[:2])} failed: {' '.join(output)[:200] or 'no reason given'}"
        )
