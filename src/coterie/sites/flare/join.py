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
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, nearest, require
from coterie.sites.flare.kits import AUTHORITY, PROJECT, fingerprint_of, furnish, harden, need_flare, organisation_of
from coterie.sites.plan import Deployment, read_plan
from coterie.sites.software import add_software, wheels_in

__all__ = ["join", "request", "sign"]

LARGEST = 1 << 16
"""Bytes of what an operator says of a certificate."""
_FINGERPRINT = re.compile(r"(SHA256:)?([0-9A-F]{2}:){31}[0-9A-F]{2}", re.IGNORECASE)


def request(plan_file: Path, site: str, folder: Path) -> Path:
    """Make the key of `site` in `folder`; returns the file to send to the operator. Raises `InputError` for a site not in the plan."""
    deployment = read_plan(plan_file).deployment
    require(site in deployment.sites, f"the plan has no site {site!r}; {nearest(site, deployment.sites)}")
    require(not folder.exists(), f"{folder} exists already; it may hold a key: move it away first")
    with tempfile.TemporaryDirectory() as temporary:
        participant = Path(temporary) / "site.yml"
        about = {"name": site, "type": "client", "org": organisation_of(site)}
        participant.write_text(json.dumps({"name": PROJECT, "participants": [about]}), encoding="utf-8")  # JSON is YAML
        _nvflare("cert", "request", "-p", str(participant), "--out", str(folder))
    return folder / f"{site}.request.zip"


def sign(plan_file: Path, request_zip: Path, kits: Path | None = None) -> tuple[Path, str]:
    """Sign a site's request with the authority of the kits; returns the file to send back, and the fingerprint to tell by telephone.

    Raises `InputError` for a request of a site that is not in the plan, or kits without authority.
    """
    deployment = read_plan(plan_file).deployment
    authority = (kits or plan_file.parent / deployment.kits) / AUTHORITY
    require((authority / "rootCA.key").is_file(), f"{authority} has no rootCA.key; make the kits with: coterie deploy")
    require(request_zip.is_file(), f"there is no file {request_zip}; it is what coterie site request makes")
    site = request_zip.name.removesuffix(".request.zip")
    require(site in deployment.sites, f"the plan has no site {site!r}; {nearest(site, deployment.sites)}")
    signed = request_zip.with_name(f"{site}.signed.zip")
    require(not signed.exists(), f"{signed} exists already; remove it to sign again")
    with tempfile.TemporaryDirectory() as temporary:
        profile = Path(temporary) / "profile.yml"
        profile.write_text(json.dumps(_profile(deployment)), encoding="utf-8")
        given = ("-c", str(authority), "--profile", str(profile), "--out", str(signed))
        _nvflare("cert", "approve", str(request_zip), *given)
    return signed, fingerprint_of(authority / "rootCA.pem")


def join(
    signed_zip: Path, fingerprint: str, plan_file: Path, requested: Path, kit: Path, wheels: Path | None = None
) -> None:
    """Build the site's kit in the new folder `kit`.

    Args:
        signed_zip: what the operator has sent back.
        fingerprint: of the authority, as the operator says it over another channel.
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
    require(not kit.exists(), f"{kit} exists already; give a new folder with --kit")
    require(
        bool(_FINGERPRINT.fullmatch(fingerprint)),
        "the fingerprint must be 32 pairs of hexadecimal digits with colons between",
    )
    plain = fingerprint.upper().removeprefix("SHA256:")
    with tempfile.TemporaryDirectory() as temporary:
        given = ("--request-dir", str(requested), "--fingerprint", f"SHA256:{plain}", "-w", temporary)
        _nvflare("package", str(signed_zip), *given)
        startup = next((p.parent for p in Path(temporary).rglob("startup")), None)
        if startup is None:
            raise InputError(f"FLARE made no kit of {signed_zip}; ask the operator to sign again")
        shutil.copytree(startup, kit)
    harden(kit)
    add_software(kit, wheels)
    furnish(kit, plan, plan_file)


def _check_key(signed_zip: Path, requested: Path) -> None:
    """Raise `InputError` if a certificate was not signed for the key in the folder `requested`."""
    require(signed_zip.is_file(), f"there is no file {signed_zip}; it is what the operator sends back")
    require(
        (requested / "request.json").is_file(),
        f"{requested} has no request of a site; give the folder that coterie site request made with --key",
    )
    try:
        with zipfile.ZipFile(signed_zip) as archive, archive.open("signed.json") as file:
            signed = json.loads(file.read(LARGEST))["request_id"]
        asked = json.loads((requested / "request.json").read_text(encoding="utf-8"))["request_id"]
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{signed_zip} or {requested} is damaged; request a new key with coterie site request"
        ) from error
    require(
        signed == asked, f"{signed_zip} is not for the key in {requested}; give the folder of that request with --key"
    )


def _profile(deployment: Deployment) -> dict[str, Any]:
    server = {"host": deployment.server, "fed_learn_port": deployment.port, "admin_port": deployment.port}
    return {"name": PROJECT, "scheme": "tcp", "connection_security": "mtls", "server": server}


def _nvflare(*arguments: str) -> None:
    """Run a command of FLARE. Raises `InputError` with its reason."""
    need_flare()
    done = subprocess.run(
        [sys.executable, "-m", "nvflare.cli", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise InputError(f"FLARE's {' '.join(arguments[:2])} failed: {' '.join(said)[:200] or 'no reason given'}")
