"""Certificates over the years: they are renewed by their own keys, and those that are revoked are on a list that nobody can shorten."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coterie.base.errors import InputError
from coterie.sites.flare.start import OPEN_PATH

pytest.importorskip(
    "nvflare", reason="engine FLARE is not installed: pip install 'coterie[flare]'"
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

OPERATOR = "operator@coterie.org"


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    from hospital import plan_file

    from coterie.sites.flare.kits import provision

    return provision(
        plan_file(
            tmp_path_factory.mktemp("kits"), deploy={"sites": ["hungary", "cleveland"]}
        )
    )


@pytest.fixture
def copied(kits, tmp_path, monkeypatch):
    """Kits of their own, with the plan beside them; FLARE keeps records of certificates in HOME."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(kits, tmp_path / "kits")
    for file in ("plan.toml", "plan.toml.sig"):
        shutil.copy(kits.parent / file, tmp_path / file)
    return tmp_path / "kits"


def hash_of_plan(kit):
    from coterie.sites.approval import plan_hash

    return plan_hash(kit / "local" / "plan.toml")


def command(*words):
    from coterie.cli.main import main

    return main([str(word) for word in words])


def plan_of(kits):
    return kits.parent / "plan.toml"


def set_up_hungary(kits):
    from coterie.data.sets.heart_disease import FOLDER

    settings = kits / "hungary" / "local" / "coterie.toml"
    text = settings.read_text().replace(
        '"data.csv"', json.dumps(str(FOLDER / "hungary.csv"))
    )
    settings.write_text(text.replace("largest_layer = 0", "largest_layer = 1"))
    return settings


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def new_key():
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def subject_of(name, kind, organisation):
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    values = {
        NameOID.COMMON_NAME: name,
        NameOID.UNSTRUCTURED_NAME: kind,
        NameOID.ORGANIZATION_NAME: organisation,
    }
    return x509.Name(
        [
            x509.NameAttribute(oid, value)
            for oid, value in values.items()
            if value is not None
        ]
    )


def certify(kits, key, name, *, kind="client", organisation=None, days=60, note=True):
    """A certificate that the authority of the kits signs for a key, and by default has a record of."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    from coterie.sites.flare.authority import certificate_of, note_certificate

    ca = kits / "ca"
    root = certificate_of((ca / "rootCA.pem").read_bytes())
    end = datetime.now(UTC) + timedelta(days=days, hours=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject_of(name, kind, organisation or name))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC), end) - timedelta(days=1))
        .not_valid_after(end)
        .sign(
            load_pem_private_key((ca / "rootCA.key").read_bytes(), None),
            hashes.SHA256(),
        )
    )
    if note:
        note_certificate(ca, name, certificate)
    return certificate


def private_pem(key):
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(certificate):
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def give(kits, name, days, end="client"):
    """Put a certificate that ends in so many days into a site's or the server's kit, with its key."""
    key = new_key()
    certificate = certify(kits, key, name, kind=end, days=days)
    startup = kits / name / "startup"
    (startup / f"{end}.key").write_bytes(private_pem(key))
    (startup / f"{end}.crt").write_bytes(public_pem(certificate))
    return certificate


# ---- renewal


def test_a_site_renews_without_a_telephone_and_keeps_all_else_in_its_kit(
    copied, capsys
):
    from coterie.sites.flare.authority import certificate_of
    from coterie.sites.flare.renewal import check_key

    kit, plan = copied / "hungary", plan_of(copied)
    set_up_hungary(copied)
    assert command("site", "approve", kit, "--yes", hash_of_plan(kit)) == 0
    (kit / "coterie").mkdir()
    (kit / "coterie" / "key").write_bytes(b"the secret of the site")
    before, old = (
        contents(kit),
        certificate_of((kit / "startup" / "client.crt").read_bytes()),
    )

    assert command("site", "renew", kit) == 0
    sent = kit / "renewal" / "hungary.renewal.zip"
    asked = sent.read_bytes()
    assert command("site", "renew", kit) == 0  # given twice, it is the same request
    assert sent.read_bytes() == asked
    with zipfile.ZipFile(sent) as archive:
        secrets = [
            (kit / "startup" / "client.key").read_bytes(),
            (kit / "renewal" / "hungary.key").read_bytes(),
        ]
        assert not any(
            secret in archive.read(name)
            for secret in secrets
            for name in archive.namelist()
        )
    at_operator = shutil.copy(sent, copied.parent / sent.name)
    assert command("sign", plan, at_operator) == 0
    signed = copied.parent / "hungary.signed.zip"
    assert command("site", "renew", kit, signed) == 0

    after, new = (
        contents(kit),
        certificate_of((kit / "startup" / "client.crt").read_bytes()),
    )
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {"startup/client.crt", "startup/client.key"}
    assert new.serial_number != old.serial_number
    check_key(kit, new)
    assert (kit / "startup" / "client.key").stat().st_mode & 0o077 == 0
    assert command("site", "check", kit) == 0
    said = capsys.readouterr().out
    assert "ends in 89 days" in said
    assert said.endswith("this site can join\n")
    assert command("site", "renew", kit, signed) == 2
    assert f"coterie site renew {kit}" in capsys.readouterr().err
    assert command("revoke", plan, "hungary") == 0
    revoked = json.loads((copied / "ca" / "revoked.json").read_text())["certificates"]
    assert {f"{one.serial_number:X}" for one in (old, new)} <= set(revoked)


@pytest.mark.parametrize("file", ["client.key", "client.crt"])
def test_an_interrupted_renewal_is_named_and_completed_by_the_same_command(
    copied, monkeypatch, capsys, file
):
    from coterie.sites.flare import renewal

    kit = copied / "hungary"
    set_up_hungary(copied)
    assert command("site", "renew", kit) == 0
    assert (
        command("sign", plan_of(copied), kit / "renewal" / "hungary.renewal.zip") == 0
    )
    signed = shutil.copy(kit / "renewal" / "hungary.signed.zip", copied.parent)
    write = renewal.write_atomically

    def write_and_end(path, content, **more):
        if path.name == file:
            raise KeyboardInterrupt
        write(path, content, **more)

    with monkeypatch.context() as patch:
        patch.setattr(renewal, "write_atomically", write_and_end)
        with pytest.raises(KeyboardInterrupt):
            renewal.install(kit, Path(signed))
    capsys.readouterr()
    assert command("site", "check", kit) == (0 if file == "client.key" else 2)
    if file == "client.crt":
        assert "do not belong together" in capsys.readouterr().err
    assert command("site", "renew", kit, signed) == 0
    assert command("site", "check", kit) == 0


def renewal_zip(
    kits, *, site="hungary", key=None, certificate=None, old=None, signs=None, **about
):
    """A renewal as a site sends it: of `site`, with a certificate and the signature of a key, by default those of hungary's kit."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    from coterie.sites.flare.renewal_request import _PROOF, _REQUEST, _SUBJECT
    from coterie.sites.flare.signature import sign_bytes

    claim = {"name": site, "kind": "client", "organisation": site, **about}
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject_of(**claim))
        .sign(key or new_key(), hashes.SHA256())
    )
    inner = kits.parent / "inner.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(f"{site}.csr", public_pem(csr))
    request = inner.read_bytes()
    signer = kits.parent / "signer.key"
    signer.write_bytes(
        (kits / "hungary" / "startup" / "client.key").read_bytes()
        if old is None
        else private_pem(old)
    )
    kept = (
        (kits / "hungary" / "startup" / "client.crt").read_bytes()
        if certificate is None
        else public_pem(certificate)
    )
    proof = {
        "signature": sign_bytes(_SUBJECT + (signs or request), signer),
        "certificate": kept.decode(),
    }
    sent = kits.parent / f"{site}.renewal.zip"
    with zipfile.ZipFile(sent, "w") as archive:
        archive.writestr(_REQUEST, request)
        archive.writestr(_PROOF, json.dumps(proof))
    return sent


def unasked(kits):
    """A renewal for cleveland, with hungary's certificate."""
    return renewal_zip(kits, site="cleveland")


def of_another_role(kits):
    key = new_key()
    return renewal_zip(
        kits, old=key, certificate=certify(kits, key, "hungary", kind="lead")
    )


def of_another_organisation(kits):
    key = new_key()
    return renewal_zip(
        kits, old=key, certificate=certify(kits, key, "hungary", organisation="coterie")
    )


def of_the_operator(kits):
    startup = kits / OPERATOR / "startup"
    shutil.copy(startup / "client.key", kits / "hungary" / "startup" / "client.key")
    shutil.copy(startup / "client.crt", kits / "hungary" / "startup" / "client.crt")
    return renewal_zip(kits)


def that_has_ended(kits):
    key = new_key()
    return renewal_zip(
        kits, old=key, certificate=certify(kits, key, "hungary", days=-1)
    )


def that_is_revoked(kits):
    assert command("revoke", plan_of(kits), "hungary") == 0
    return renewal_zip(kits)


def without_a_record(kits):
    key = new_key()
    return renewal_zip(
        kits, old=key, certificate=certify(kits, key, "hungary", note=False)
    )


def by_another_key(kits):
    return renewal_zip(kits, old=new_key())


def of_another_request(kits):
    return renewal_zip(kits, signs=b"another request")


def of_another_authority(kits):
    ca, key = kits / "ca", new_key()
    kept = {name: (ca / name).read_bytes() for name in ("rootCA.key", "rootCA.pem")}
    (ca / "rootCA.key").write_bytes(private_pem(new_key()))
    certificate = certify(kits, key, "hungary")
    for name, content in kept.items():
        (ca / name).write_bytes(content)
    return renewal_zip(kits, old=key, certificate=certificate)


def with_the_key_of_another(kits):
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return renewal_zip(
        kits,
        key=load_pem_private_key(
            (kits / "cleveland" / "startup" / "client.key").read_bytes(), None
        ),
    )


def under_another_name(kits):
    return renewal_zip(kits).rename(kits.parent / "cleveland.renewal.zip")


BAD_RENEWALS = {
    unasked: "of the same name and role",
    of_another_role: "of the same name and role",
    of_another_organisation: "of the same name and role",
    of_the_operator: "of the same name and role",
    that_has_ended: "has ended; ask the site for the SHA-256 of its new key by telephone",
    that_is_revoked: "is revoked; if it may join again, ask the site",
    without_a_record: "no record of the old certificate",
    by_another_key: "not signed with a key that this authority knows",
    of_another_request: "not signed with a key that this authority knows",
    of_another_authority: "not signed with a key that this authority knows",
    with_the_key_of_another: "has the public key of 'cleveland'",
    under_another_name: "is a renewal of 'hungary', not of the site that its name says",
}


@pytest.mark.promise("revocation")
@pytest.mark.parametrize("make", BAD_RENEWALS, ids=lambda make: make.__name__)
def test_only_a_valid_certificate_is_succeeded_by_one_of_its_name_and_role(
    copied, capsys, make
):
    sent = make(copied)
    capsys.readouterr()
    assert command("sign", plan_of(copied), sent) == 2
    assert BAD_RENEWALS[make] in capsys.readouterr().err
    assert not list(copied.parent.rglob("*.signed.zip"))


@pytest.mark.promise("revocation")
def test_a_second_renewal_with_another_key_needs_the_telephone(copied, capsys):
    """Then two parties have the old key. The first of them may be a thief."""
    from coterie.base.errors import InputError
    from coterie.sites.flare.authority import read_request
    from coterie.sites.flare.renewal_request import check_renewal, read_renewal

    authority = copied / "ca"

    def ask(key):
        renewal = read_renewal(renewal_zip(copied, key=key))
        return renewal, read_request(copied.parent / "inner.zip"), authority

    first, second = new_key(), new_key()
    check_renewal(*ask(first))
    check_renewal(*ask(first))  # sent twice
    with pytest.raises(
        InputError,
        match=r"renewed before, with another key.*coterie revoke.*--fingerprint",
    ):
        check_renewal(*ask(second))


def test_a_site_whose_certificate_has_ended_keeps_its_kit_and_telephones(
    copied, capsys
):
    kit, plan = copied / "hungary", plan_of(copied)
    set_up_hungary(copied)
    give(copied, "hungary", -1)
    assert command("site", "check", kit) == 2
    assert f"coterie site renew {kit}" in capsys.readouterr().err
    assert command("site", "renew", kit) == 0
    key = capsys.readouterr().out.split()[-1]
    sent = kit / "renewal" / "hungary.renewal.zip"
    assert command("sign", plan, sent) == 2
    assert (
        command(
            "sign",
            plan,
            sent,
            "--fingerprint",
            key[:-1] + ("0" if key[-1] != "0" else "1"),
        )
        == 2
    )
    assert command("sign", plan, sent, "--fingerprint", key) == 0
    assert command("site", "renew", kit, kit / "renewal" / "hungary.signed.zip") == 0
    assert command("site", "check", kit) == 0


@pytest.mark.parametrize("words", [("site", "check"), ("site", "renew")])
@pytest.mark.parametrize("name", ["client.crt", "client.key", "rootCA.pem"])
def test_a_damaged_or_missing_file_of_a_kit_is_named_with_a_cure(
    copied, capsys, words, name
):
    kit = copied / "hungary"
    file = kit / "startup" / name
    file.write_bytes(file.read_bytes()[:200])
    if (
        words == ("site", "check") or name != "rootCA.pem"
    ):  # who asks for a successor does not read the authority's
        assert command(*words, kit) == 2
        said = capsys.readouterr().err
        assert name in said
        assert "get a new kit" in said
    file.unlink()
    assert command(*words, kit) == 2
    assert f"has no {name}" in capsys.readouterr().err
    assert not (kit / "renewal").exists()


def signed_zip(kits, certificate, root=None):
    file = kits.parent / "hungary.signed.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "rootCA.pem", root or (kits / "ca" / "rootCA.pem").read_bytes()
        )
        archive.writestr("hungary.crt", public_pem(certificate))
    return file


def test_a_kit_takes_the_certificate_of_its_own_key_name_and_authority_alone(
    copied, capsys
):
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    kit = copied / "hungary"
    assert command("site", "renew", kit) == 0
    key = load_pem_private_key((kit / "renewal" / "hungary.key").read_bytes(), None)
    before = contents(kit)
    mine = certify(copied, key, "hungary")
    site_as_root = (copied / "cleveland" / "startup" / "client.crt").read_bytes()
    refused = {
        "is for another key": (certify(copied, new_key(), "hungary"), None),
        "is for 'cleveland'": (certify(copied, key, "cleveland", note=False), None),
        "not signed by the authority that it holds": (mine, site_as_root),
        "is not valid now": (certify(copied, key, "hungary", days=-1), None),
    }
    for reason, (certificate, root) in refused.items():
        assert command("site", "renew", kit, signed_zip(copied, certificate, root)) == 2
        assert reason in capsys.readouterr().err
        assert contents(kit) == before
    assert command("site", "renew", kit, signed_zip(copied, mine)) == 0


def test_a_renewal_that_was_cut_or_changed_on_its_way_is_no_renewal(copied):
    from coterie.base.errors import InputError
    from coterie.sites.flare.authority import read_request
    from coterie.sites.flare.renewal_request import check_renewal, read_renewal

    sent = renewal_zip(copied)
    whole, request = sent.read_bytes(), read_request(copied.parent / "inner.zip")
    kept = read_renewal(sent)
    bent = [whole[: len(whole) * part // 20] for part in range(20)]
    for place in range(0, len(whole), len(whole) // 40):
        bent.append(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    for content in bent:
        sent.write_bytes(content)
        try:
            renewal = read_renewal(sent)
            if renewal is None:
                continue
            check_renewal(renewal, request, copied / "ca")
        except InputError:
            continue
        else:  # bent where nobody reads, as in the time of a file of the archive
            assert (renewal.request, renewal.certificate) == (
                kept.request,
                kept.certificate,
            )


# ---- how long certificates are valid


@pytest.mark.parametrize(
    ("days", "warned"), [(60, False), (21, False), (20, True), (0, True)]
)
def test_a_site_and_the_operator_read_for_how_many_days_a_certificate_is_valid(
    copied, capsys, days, warned
):
    from coterie.sites.flare.status import certificate_lines
    from coterie.sites.plan import read_plan

    kit = copied / "hungary"
    set_up_hungary(copied)
    certificate = give(copied, "hungary", days)
    issued = json.loads((copied / "ca" / "issued.json").read_text())
    serial = f"{certificate.serial_number:X}"
    kept = {
        number: holder
        for number, holder in issued.items()
        if holder != "hungary" or number == serial
    }
    (copied / "ca" / "issued.json").write_text(json.dumps(kept))
    assert command("site", "check", kit) == 0
    said = capsys.readouterr().out
    assert f"its certificate ends in {days} days" in said
    assert (f"coterie site renew {kit}" in said) is warned

    lines = list(
        certificate_lines(
            read_plan(plan_of(copied)).deployment, copied / "ca", datetime.now(UTC)
        )
    )
    (line,) = [line for line in lines if line.split()[0] == "hungary"]
    assert f"ends in {days} days" in line
    assert ("coterie site renew" in line) is warned
    assert not any("renew it" in line for line in lines if "hungary" not in line)
    later = datetime.now(UTC) + timedelta(days=350)
    lines = list(
        certificate_lines(read_plan(plan_of(copied)).deployment, copied / "ca", later)
    )
    (line,) = [line for line in lines if line.split()[0] == OPERATOR]
    assert "coterie deploy PLAN --kits NEW" in line
    assert any("hungary" in line and "has ended" in line for line in lines)


@pytest.mark.parametrize("ended", [False, True])
def test_a_head_of_a_log_is_judged_at_the_time_when_it_was_signed(
    copied, monkeypatch, ended
):
    """As it was: on the day when the server's certificate ended, all that it had ever signed of a log was refused."""
    from coterie.base.errors import InputError
    from coterie.sites.flare import signature

    startup = copied / "localhost" / "startup"
    signed_at = datetime.now(UTC) - timedelta(hours=0 if ended else 30)
    give(copied, "localhost", -1, end="server")  # 23 hours ago

    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return signed_at

    with monkeypatch.context() as patch:
        patch.setattr(signature, "datetime", Clock)
        entry = signature.sign_head("hungary", "0" * 64, startup)
    if ended:
        with pytest.raises(InputError, match="its certificate had ended"):
            signature.check_head(entry, "localhost", startup)
    else:
        signature.check_head(entry, "localhost", startup)
        for change in ({"signed": datetime.now(UTC).isoformat()}, {"signed": "then"}):
            with pytest.raises(InputError, match="not signed by localhost"):
                signature.check_head({**entry, **change}, "localhost", startup)


def test_a_list_is_judged_by_the_key_of_the_authority_alone(copied):
    """The server hands it on: no site stops on the day when the server's certificate ends."""
    from coterie.sites.flare.revocation import servers_list, take_list

    give(copied, "localhost", -1, end="server")
    text = servers_list(copied / "localhost" / "local").text
    kit = copied / "hungary"
    assert take_list(text, kit / "local" / "revoked.json", kit / "startup").number == 1


@pytest.mark.parametrize("days", [60, 20, -1])
def test_the_server_s_keeper_reads_of_gate_files_list_and_certificate(
    copied, capsys, days
):
    kit = copied / "localhost"
    script, resources = (
        kit / "startup" / "sub_start.sh",
        kit / "local" / "resources.json",
    )
    program = "-m nvflare.private.fed.app.server.server_train"
    before = script.read_text()
    assert OPEN_PATH not in before
    old = before.replace("-P -m coterie.sites.flare.start server", program)
    script.write_text(old.replace('echo "PYTHONPATH', OPEN_PATH + 'echo "PYTHONPATH'))
    assert script.read_text() != before
    launcher = "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"
    text = resources.read_text()
    resources.write_text(
        text.replace("coterie.sites.flare.launchers.ServerLauncher", launcher)
    )
    (kit / "local" / "python").chmod(0o644)
    give(copied, "localhost", days, end="server")
    if days < 0:
        assert command("site", "check", kit) == 2
        assert "coterie deploy PLAN --kits NEW" in capsys.readouterr().err
        return
    assert command("site", "check", kit) == 0
    said = capsys.readouterr().out
    assert "gate      put into this kit" in said
    assert "files     " in said
    assert f"its certificate ends in {days} days" in said
    assert ("coterie deploy PLAN --kits NEW" in said) is (days == 20)
    assert "revoked   list 1 of " in said
    assert script.read_text() == before
    assert json.loads(resources.read_text()) == json.loads(text)
    assert not (kit / "local" / "python").stat().st_mode & 0o077
    assert command("site", "check", kit) == 0
    assert "put into this kit" not in capsys.readouterr().out
    assert command("site", "check", kit, "--connect") == 2
    assert "only a site's kit connects" in capsys.readouterr().err


def test_a_server_s_kit_without_key_list_or_the_right_name_is_refused(copied, capsys):
    kit = copied / "localhost"
    (kit / "local" / "revoked.json").rename(kit / "revoked.json")
    assert command("site", "check", kit) == 2
    assert "coterie revoke plan.toml" in capsys.readouterr().err
    (kit / "revoked.json").rename(kit / "local" / "revoked.json")
    startup = kit / "startup"
    for file in ("server.crt", "server.key"):
        (startup / file).rename(startup / "aside")
        assert command("site", "check", kit) == 2
        assert f"has no {file}" in capsys.readouterr().err
        (startup / "aside").rename(startup / file)
    key = (startup / "server.key").read_bytes()
    (startup / "server.key").write_bytes(private_pem(new_key()))
    assert command("site", "check", kit) == 2
    assert "server.key and server.crt" in capsys.readouterr().err
    (startup / "server.key").write_bytes(key)
    assert command("site", "check", kit) == 0


def test_no_command_leaves_a_file_of_a_kit_open_to_others(copied, monkeypatch):
    """As it was: the log was made by whoever approved, with the rights that this account gives to others."""
    from coterie.sites import check
    from coterie.sites.flare.trial import Trial
    from coterie.sites.flare.workspace import tighten

    monkeypatch.setattr(check, "try_gate", lambda: Trial(1, (), read=False))
    kit, signed = copied / "hungary", copied / "hungary" / "renewal"
    set_up_hungary(copied)
    tighten(kit)
    before = os.umask(0o022)
    try:
        for words in (
            ("site", "check", kit),
            ("site", "approve", kit, "--yes", hash_of_plan(kit)),
            ("site", "renew", kit),
        ):
            assert command(*words) == 0
            assert tighten(kit) == 0, words
        renewal = signed / "hungary.renewal.zip"
        assert command("sign", plan_of(copied), renewal) == 0
        tighten(kit)
        moved = shutil.copy(signed / "hungary.signed.zip", copied.parent)
        assert command("site", "renew", kit, moved) == 0
        assert tighten(kit) == 0
    finally:
        os.umask(before)


def test_a_key_that_lay_elsewhere_is_moved_to_the_log(copied, capsys, monkeypatch):
    from coterie.sites import check
    from coterie.sites.flare.trial import Trial
    from coterie.sites.secret_noise import key_file

    monkeypatch.setattr(check, "try_gate", lambda: Trial(1, (), read=False))
    kit = copied / "hungary"
    log = set_up_hungary(copied).with_name("asks.jsonl")
    old, content = kit / "coterie" / "key", bytes(range(32))
    old.parent.mkdir()
    old.write_bytes(content)
    assert command("site", "check", kit) == 0
    assert "key       moved from" in capsys.readouterr().out
    assert not old.exists()
    assert key_file(log).read_bytes() == content
    assert key_file(log).stat().st_mode & 0o077 == 0
    old.write_bytes(b"1" * 32)
    assert command("site", "check", kit) == 0
    assert "moved" not in capsys.readouterr().out
    assert key_file(log).read_bytes() == content


def test_an_authority_of_an_earlier_version_notes_when_its_next_certificates_end(
    copied,
):
    from coterie.sites.flare.authority import ends_of_certificates
    from coterie.sites.flare.status import certificate_lines
    from coterie.sites.plan import read_plan

    (copied / "ca" / "ends.json").unlink()
    (copied / "ca" / "successors.json").unlink()
    lines = list(
        certificate_lines(
            read_plan(plan_of(copied)).deployment, copied / "ca", datetime.now(UTC)
        )
    )
    assert any("hungary" in line and "none is noted" in line for line in lines)
    certificate = certify(copied, new_key(), "hungary")
    assert ends_of_certificates(copied / "ca") == {
        f"{certificate.serial_number:X}": certificate.not_valid_after_utc
    }


def test_status_says_when_certificates_end_although_no_server_answers(
    copied, monkeypatch, capsys
):
    from coterie.sites.flare import status

    def nobody(*_):
        raise InputError("the server does not answer")

    monkeypatch.setattr(status, "open_session", nobody)
    assert command("status", plan_of(copied), "--kits", copied) == 2
    said = capsys.readouterr()
    assert "hungary" in said.out
    assert "ends in" in said.out
    assert "the server does not answer" in said.err


# ---- the list of revoked certificates


def list_of(folder):
    return json.loads((folder / "revoked.json").read_text())


def test_each_list_has_the_next_number_and_what_has_ended_leaves_it(copied):
    ca, plan, server = copied / "ca", plan_of(copied), copied / "localhost" / "local"
    assert list_of(ca)["number"] == 1
    certify(copied, new_key(), "hungary", days=-9)
    for number, name in enumerate(("hungary", OPERATOR, None), 2):
        assert command("revoke", plan, *filter(None, [name])) == 0
        assert list_of(ca)["number"] == number
        assert list_of(server) == list_of(ca)
    assert sorted(list_of(ca)["certificates"].values()) == ["hungary", OPERATOR]


def bent_lists(signed, other):
    """Every way in which one field differs, is missing or is added, and texts that are no list."""
    values = {
        "number": 7,
        "date": "2026-01-01T00:00:00+00:00",
        "certificates": {},
        "signature": other["signature"],
    }
    for field, value in values.items():
        yield {**signed, field: value}
        for kind in (None, True, 1.5, -1, "", "x", [], {}, ["x"], {"x": 1}):
            yield {**signed, field: kind}
        yield {name: kept for name, kept in signed.items() if name != field}
    yield {**signed, "more": 1}
    yield signed["certificates"]
    yield {}
    yield [signed]
    yield None


@pytest.mark.promise("revocation")
def test_no_list_that_the_authority_has_not_signed_is_believed(copied):
    from coterie.base.errors import InputError
    from coterie.sites.flare.gate import barred_sites
    from coterie.sites.flare.revocation import sites_list, take_list

    plan, startup, file = (
        plan_of(copied),
        copied / "hungary" / "startup",
        copied / "hungary" / "local" / "revoked.json",
    )
    first = list_of(copied / "ca")
    assert command("revoke", plan, "cleveland") == 0
    signed, local = list_of(copied / "ca"), copied / "localhost" / "local"
    whole = json.dumps(signed)
    texts = [json.dumps(bent) for bent in bent_lists(signed, first) if bent != signed]
    texts += [whole[:-1], "", "[" * 10_000, "\ud800", whole + " " * (1 << 16)]
    for text in texts:
        with pytest.raises(InputError):
            take_list(text, file, startup)
        assert json.loads(file.read_text()) == first
        (local / "revoked.json").write_bytes(text.encode(errors="surrogatepass"))
        with pytest.raises(InputError, match=r"revoked\.json"):
            barred_sites(local)
    for value in (None, 7, b"", {}):
        with pytest.raises(InputError):
            take_list(value, file, startup)
    take_list(whole, file, startup)
    assert sites_list(file, startup).number == 2


@pytest.mark.promise("revocation")
def test_a_site_takes_no_earlier_list_and_no_other_of_the_same_number(copied):
    from coterie.base.errors import InputError
    from coterie.sites.flare.revocation import take_list

    plan, startup, file = (
        plan_of(copied),
        copied / "hungary" / "startup",
        copied / "hungary" / "local" / "revoked.json",
    )
    texts = [(copied / "ca" / "revoked.json").read_text()]
    shutil.copytree(copied / "ca", copied.parent / "backup")
    for name in ("cleveland", OPERATOR):
        assert command("revoke", plan, name) == 0
        texts.append((copied / "ca" / "revoked.json").read_text())
    assert command("revoke", plan, "--authority", copied.parent / "backup") == 0
    another_second = (copied.parent / "backup" / "revoked.json").read_text()
    take_list(texts[1], file, startup)
    take_list(texts[1], file, startup)
    for text in (texts[0], another_second):
        with pytest.raises(
            InputError, match=r"this site holds list 2; .*coterie revoke plan\.toml"
        ):
            take_list(text, file, startup)
        assert file.read_text() == texts[1]
    take_list(texts[2], file, startup)
    assert file.read_text() == texts[2]


def test_lists_that_come_at_once_leave_the_latest(copied, monkeypatch):
    """Two jobs of a site; the later list comes after the other job has read what the site holds, and before it writes."""
    from concurrent.futures import ThreadPoolExecutor, wait

    from coterie.sites.flare import revocation

    startup, file = (
        copied / "hungary" / "startup",
        copied / "hungary" / "local" / "revoked.json",
    )
    texts = []
    for _ in range(2):
        assert command("revoke", plan_of(copied)) == 0
        texts.append((copied / "ca" / "revoked.json").read_text())
    write, later = revocation.write_atomically, []

    def write_late(*values, **more):
        monkeypatch.setattr(revocation, "write_atomically", write)
        later.append(threads.submit(revocation.take_list, texts[1], file, startup))
        wait(later, 0.5)
        write(*values, **more)

    monkeypatch.setattr(revocation, "write_atomically", write_late)
    with ThreadPoolExecutor(1) as threads:
        revocation.take_list(texts[0], file, startup)
        later[0].result()
    assert file.read_text() == texts[1]


def conversation(kits):
    """A site of hungary's kit, and a function that says something to it as the server."""
    from coterie.contract.encoding import decode, encode
    from coterie.sites.site import Site

    kit = kits / "hungary"
    site = Site("hungary", kit / "local" / "coterie.toml", kit / "coterie")
    serials = iter(range(1000))

    def say(do, **values):
        message = {
            "do": do,
            "run": "run",
            "serial": next(serials),
            "undo": None,
            "plan": site._hash,
            **values,
        }
        return decode(site.handle(encode(message), "server")).get("failed", "")

    return site, say


@pytest.mark.promise("revocation")
def test_a_plan_of_a_revoked_operator_is_neither_approved_nor_run(copied, capsys):
    from coterie.sites.approval import approve

    kit, plan = copied / "hungary", plan_of(copied)
    approve(kit / "local" / "plan.toml", set_up_hungary(copied))
    first = (copied / "ca" / "revoked.json").read_text()
    assert command("revoke", plan, OPERATOR) == 0
    second = (copied / "ca" / "revoked.json").read_text()
    site, say = conversation(copied)
    try:
        assert say("revoked", list=first) == ""
        assert say("open", seed=0) == ""
        assert say("revoked", list=second) == ""
        for kind in ("open", "encode", "prepare", "task"):
            assert f"signed by {OPERATOR}, whose certificate" in say(kind, seed=0)
        assert "this site holds list 2" in say("revoked", list=first)
        assert f"signed by {OPERATOR}" in say("open", seed=0)
    finally:
        site.close()
    again, say = conversation(copied)  # the next job, whose server sends nothing
    try:
        assert f"signed by {OPERATOR}" in say("open", seed=0)
        assert say("head", signed="") == ""
    finally:
        again.close()
    capsys.readouterr()
    assert command("site", "check", kit) == 2
    assert f"signed by {OPERATOR}" in capsys.readouterr().err
    approved = (kit / "local" / "approved.toml").read_bytes()
    assert command("site", "approve", kit, "--yes", hash_of_plan(kit)) == 2
    assert f"signed by {OPERATOR}" in capsys.readouterr().err
    assert (kit / "local" / "approved.toml").read_bytes() == approved


def test_an_approval_without_the_operators_signature_is_obeyed_no_more(copied):
    """As earlier versions kept it; or somebody has put another signature there."""
    from coterie.sites.approval import approve

    kit, settings = copied / "hungary", set_up_hungary(copied)
    approve(kit / "local" / "plan.toml", settings)
    signature = kit / "local" / "approved.toml.sig"
    kept = json.loads(signature.read_text())
    guard = (copied / "guard@coterie.org" / "startup" / "client.crt").read_text()
    for content in ("", "{}", json.dumps({**kept, "certificate": guard}), None):
        if content is None:
            signature.unlink()
        else:
            signature.write_text(content)
        site, say = conversation(copied)
        try:
            assert say("open", seed=0).endswith("there: coterie site approve KIT")
        finally:
            site.close()
    approve(kit / "local" / "plan.toml", settings)
    site, say = conversation(copied)
    try:
        assert say("open", seed=0) == ""
    finally:
        site.close()


def test_a_site_says_how_old_its_list_is(copied, capsys):
    from coterie.sites.flare.revocation import sites_list

    kit = copied / "hungary"
    set_up_hungary(copied)
    file = kit / "local" / "revoked.json"
    held = sites_list(file, kit / "startup")
    assert "12 days old" in held.words(
        datetime.fromisoformat(held.date) + timedelta(days=12, hours=3)
    )
    assert command("site", "check", kit) == 0
    assert re.search(
        r"^revoked   list 1 of .*, 0 days old", capsys.readouterr().out, re.M
    )
    file.write_text(file.read_text()[:-5])
    assert command("site", "check", kit) == 2
    assert "revoked.json" in (said := capsys.readouterr().err)
    assert "remove it: the server sends it again" in said
    file.unlink()
    assert command("site", "check", kit) == 0
    assert (
        "no list yet; the server sends it when a run begins" in capsys.readouterr().out
    )


def test_an_authority_whose_list_is_lost_or_damaged_signs_no_other(copied, capsys):
    """It would begin again at number 1, and sites would refuse it; and who was revoked would be let in."""
    plan, file = plan_of(copied), copied / "ca" / "revoked.json"
    assert command("revoke", plan, "hungary") == 0
    kept = file.read_text()
    capsys.readouterr()
    file.write_text(kept[:-3])
    assert command("revoke", plan) == 2
    assert "copy it back from local/ of the server's kit" in capsys.readouterr().err
    file.unlink()
    assert command("revoke", plan) == 2
    assert "copy it back from local/ of the server's kit" in capsys.readouterr().err
    shutil.copy(copied / "localhost" / "local" / "revoked.json", file)
    assert command("revoke", plan) == 0
    assert list_of(copied / "ca")["number"] == 3


def test_kits_with_an_unsigned_list_are_told_how_to_sign_it(copied, capsys):
    from coterie.base.errors import InputError
    from coterie.sites.flare.gate import barred_sites

    ca, local = copied / "ca", copied / "localhost" / "local"
    issued = json.loads((ca / "issued.json").read_text())
    old = {serial: holder for serial, holder in issued.items() if holder == "cleveland"}
    for unsigned in ({}, old):
        for folder in (ca, local):
            (folder / "revoked.json").write_text(json.dumps(unsigned))
        with pytest.raises(
            InputError, match=r"not signed by the authority.*coterie revoke plan\.toml"
        ):
            barred_sites(local)
    assert command("revoke", plan_of(copied)) == 0
    assert list_of(local)["certificates"] == old
    assert barred_sites(local) == {}
