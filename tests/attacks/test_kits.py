"""What a kit lets jobs do at a site, and what its start script does where coterie is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.sites.approval import plan_hash

pytest.importorskip(
    "nvflare", reason="engine FLARE is not installed: pip install 'coterie[flare]'"
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    from hospital import plan_file

    from coterie.sites.flare.kits import provision

    return provision(
        plan_file(
            tmp_path_factory.mktemp("kits"), deploy={"sites": ["hungary", "cleveland"]}
        )
    )


def set_up_hungary(kit):
    """Write into a kit where its rows are, and that updates of this plan may leave without noise; return the settings' file."""
    from coterie.data.sets.heart_disease import FOLDER

    settings = kit / "local" / "coterie.toml"
    text = settings.read_text().replace(
        '"data.csv"', json.dumps(str(FOLDER / "hungary.csv"))
    )
    settings.write_text(text.replace("largest_layer = 0", "largest_layer = 1"))
    return settings


@pytest.mark.parametrize("name", ["hungary", "localhost"])
def test_a_kit_allows_the_classes_that_coterie_needs_and_no_others(kits, name):
    from coterie.sites.flare.kits import CLASSES

    resources = json.loads((kits / name / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == list(CLASSES)
    assert resources["class_list_enforcement_mode"] == "enforce"


def start(kit, **environment):
    return subprocess.run(
        ["bash", str(kit / "startup" / "start.sh")], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(kit), **environment},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["hungary", "localhost"])
def test_start_says_in_a_sentence_that_its_interpreter_lacks_coterie(
    kits, name, tmp_path
):
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    done = start(kits / name, COTERIE_PYTHON=str(bare))
    assert done.returncode == 1
    assert f"{bare} cannot import coterie and nvflare" in done.stderr
    assert "COTERIE_PYTHON" in done.stderr
    assert not (kits / name / "daemon_pid.fl").exists()


def test_start_takes_the_interpreter_with_which_the_site_has_approved_its_plan(kits):
    from coterie.cli.main import main

    kit = kits / "hungary"
    set_up_hungary(kit)
    assert (
        main(
            [
                "site",
                "approve",
                str(kit),
                "--yes",
                plan_hash(kit / "local" / "plan.toml"),
            ]
        )
        == 0
    )
    assert (kit / "local" / "python").read_text().strip() == sys.executable
    script = (kit / "startup" / "sub_start.sh").read_text()
    assert 'exec "$COTERIE_PYTHON" -u -P -m coterie.sites.flare.start site ' in script
    assert "python3" not in script.replace("COTERIE_PYTHON:-python3", "")


@pytest.mark.parametrize("name", ["hungary", "localhost"])
def test_start_starts_what_ends_again_and_again(kits, name, tmp_path):
    """FLARE ends a site's process whose login a busy server does not answer for 30 s. FLARE's own script gives up after five."""
    starts, kit = tmp_path / "starts", tmp_path / "kit"
    shutil.copytree(kits / name, kit)
    for tool, body in (
        (
            "python3",
            f'case "$*" in *"-m coterie.sites.flare.start"*) echo start >> "{starts}";; esac',
        ),
        (
            "sleep",
            f'test "$(wc -l < "{starts}" 2> /dev/null || echo 0)" -lt 9 || touch "{kit}/shutdown.fl"',
        ),
    ):
        (tmp_path / tool).write_text(f"#!/bin/sh\n{body}\nexit 0\n")
        (tmp_path / tool).chmod(0o755)
    subprocess.run(
        ["bash", str(kit / "startup" / "sub_start.sh")], capture_output=True, timeout=60, check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "COTERIE_PYTHON": str(tmp_path / "python3")},
    )  # fmt: skip
    assert len(starts.read_text().splitlines()) >= 9


def test_kits_are_not_begun_with_wheels_that_lack_coterie(tmp_path):
    from hospital import plan_file

    from coterie.base.errors import InputError
    from coterie.sites.flare.kits import provision

    (tmp_path / "wheels").mkdir()
    with pytest.raises(InputError, match="no wheel of coterie"):
        provision(plan_file(tmp_path), wheels=tmp_path / "wheels")
    assert not (tmp_path / "kits").exists()


@pytest.fixture(scope="module")
def own_key(tmp_path_factory):
    """A site whose key was made at the site: the folder, and what the operator has signed and told."""
    from hospital import plan_file

    from coterie.sites.flare.join import request, sign
    from coterie.sites.flare.kits import provision

    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        plan = plan_file(folder)
        kits = provision(plan, keys_at_sites=True)
        asked, about = request(plan, "hungary", folder / "hungary-key")
        signed, _, fingerprint = sign(plan, asked, about.key)
        yield folder, kits, asked, signed, fingerprint


def test_a_key_made_at_the_site_stays_there_and_the_kit_is_like_any_other(
    own_key, monkeypatch, capsys
):
    import zipfile

    from coterie.cli.main import main
    from coterie.sites.check import check_site
    from coterie.sites.flare.kits import CLASSES

    folder, kits, asked, signed, fingerprint = own_key
    assert not (kits / "hungary").exists()
    secret = (folder / "hungary-key" / "hungary.key").read_bytes()
    for sent in (asked, signed):
        with zipfile.ZipFile(sent) as archive:
            assert all(secret not in archive.read(name) for name in archive.namelist())
    monkeypatch.chdir(folder)
    (folder / "wheels").mkdir()
    words = [
        "site",
        "join",
        str(signed),
        "--fingerprint",
        fingerprint,
        "--plan",
        "plan.toml",
        "--wheels",
        "wheels",
    ]
    assert main(words) == 2  # no wheel of coterie: nothing is made
    assert not (folder / "hungary").exists()
    (folder / "wheels" / "coterie-1.0-py3-none-any.whl").write_bytes(b"a wheel")
    capsys.readouterr()
    assert main([*words, "--key", "nowhere"]) == 2
    assert (
        "nowhere has no request of a site; give the folder" in capsys.readouterr().err
    )
    other = folder / "other-key"
    shutil.copytree(folder / "hungary-key", other)
    request = other / "request.json"
    request.write_text(
        json.dumps({**json.loads(request.read_text()), "request_id": "another"})
    )
    assert main([*words, "--key", "other-key"]) == 2
    assert (
        "hungary.signed.zip is not for the key in other-key" in capsys.readouterr().err
    )
    assert main(words) == 0
    assert (
        "coterie==1.0 --hash=sha256:"
        in (folder / "hungary" / "software" / "requirements.txt").read_text()
    )
    resources = json.loads(
        (folder / "hungary" / "local" / "resources.json").read_text()
    )
    assert resources["class_allow_list"] == list(CLASSES)
    set_up_hungary(folder / "hungary")
    assert "this site can join once it has approved the plan" in check_site(
        folder / "hungary"
    )


def test_a_signed_file_of_another_authority_is_refused(own_key, tmp_path):
    from coterie.base.errors import InputError
    from coterie.sites.flare.join import join

    folder, _, _, signed, fingerprint = own_key
    other = fingerprint[:-1] + ("0" if fingerprint[-1] != "0" else "1")
    with pytest.raises(
        InputError, match="another authority than the one that you heard of"
    ):
        join(
            signed,
            other,
            folder / "plan.toml",
            folder / "hungary-key",
            tmp_path / "kit",
        )
    with pytest.raises(InputError, match="32 pairs of hexadecimal digits"):
        join(
            signed,
            "yes",
            folder / "plan.toml",
            folder / "hungary-key",
            tmp_path / "kit",
        )
    assert not (tmp_path / "kit").exists()


def forged(folder, *, name, kind="client", organisation=None, **more):
    """A request that FLARE's own tool makes for whatever a participant claims, under the file name of hungary's."""
    from coterie.sites.flare.join import _nvflare

    folder.mkdir()
    (folder / "me.yml").write_text(
        json.dumps(
            {
                "name": "coterie",
                "participants": [
                    {"name": name, "type": kind, "org": organisation or name, **more}
                ],
            }
        )
    )
    _nvflare(
        "cert", "request", "-p", str(folder / "me.yml"), "--out", str(folder / "key")
    )
    return shutil.copy(
        folder / "key" / f"{name}.request.zip", folder / "hungary.request.zip"
    )


FORGED = {
    "another site of the plan": ({"name": "cleveland"}, "is a request of 'cleveland', not of the site that its name says"),
    "a site that is not in the plan": ({"name": "nowhere"}, "which is not a site of the plan"),
    "the server": ({"name": "localhost", "kind": "server", "organisation": "coterie", "fed_learn_port": 8002, "admin_port": 8002},
                   "'localhost', which is not a site of the plan"),
    "an operator": ({"name": "operator@coterie.org", "kind": "admin", "organisation": "coterie", "role": "lead"},
                    "which is not a site of the plan"),
    "another organisation": ({"name": "hungary", "organisation": "coterie"}, "the plan's for this site is 'hungary'"),
}  # fmt: skip


@pytest.mark.promise("identities")
@pytest.mark.parametrize("claim", FORGED)
def test_a_request_for_anything_but_the_site_that_sends_it_is_not_signed(
    kits, tmp_path, monkeypatch, claim
):
    from coterie.base.errors import InputError
    from coterie.sites.flare.authority import read_request
    from coterie.sites.flare.join import sign

    monkeypatch.setenv("HOME", str(tmp_path))
    about, reason = FORGED[claim]
    request = Path(forged(tmp_path / "forged", **about))
    before = (kits / "ca" / "keys.json").read_text()
    with pytest.raises(InputError, match=reason):
        sign(kits.parent / "plan.toml", request, read_request(request).key)
    assert not list(tmp_path.rglob("*.signed.zip"))
    assert (kits / "ca" / "keys.json").read_text() == before


SITE_YAML = (
    "name: coterie\nparticipants:\n- name: hungary\n  type: {}\n  org: hungary\n"
)
PAPERS = {
    "a type that the request's key does not claim": {"kind": "server", "cert_type": "server", "site": SITE_YAML.format("server")},
    "an admin": {"kind": "user", "cert_type": "lead", "cert_role": "lead", "site": SITE_YAML.format("admin") + "  role: lead\n"},
    "a listener": {"site": SITE_YAML.format("client") + "  listening_host: elsewhere\n"},
    "a file more": {"startup/start.sh": "echo mine"},
}  # fmt: skip


@pytest.mark.parametrize("claim", PAPERS)
def test_a_request_whose_papers_say_more_than_its_key_is_not_signed(
    kits, tmp_path, monkeypatch, claim
):
    """The signing request inside is that of the site. What lies beside it, with its hashes put right, asks FLARE for something else."""
    import hashlib
    import zipfile

    from coterie.base.errors import InputError
    from coterie.sites.flare.authority import read_request
    from coterie.sites.flare.join import sign

    monkeypatch.setenv("HOME", str(tmp_path))
    request, more = (
        Path(forged(tmp_path / "forged", name="hungary")),
        dict(PAPERS[claim]),
    )
    with zipfile.ZipFile(request) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(files["request.json"])
    if "site" in more:
        files["site.yaml"] = more.pop("site").encode()
        about["site_yaml_sha256"] = hashlib.sha256(files["site.yaml"]).hexdigest()
    files |= {name: more.pop(name).encode() for name in list(more) if "/" in name}
    files["request.json"] = json.dumps({**about, **more}).encode()
    with zipfile.ZipFile(request, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match="cert approve failed"):
        sign(kits.parent / "plan.toml", request, read_request(request).key)
    assert not list(tmp_path.rglob("*.signed.zip"))


def test_only_certificates_of_a_sites_own_type_are_signed(tmp_path):
    from coterie.base.errors import InputError
    from coterie.sites.flare.authority import Request

    for kind in ("server", "lead", "project_admin", "relay"):
        with pytest.raises(InputError, match="a site may have type 'client' only"):
            Request("hungary", kind, "hungary", "").check(("hungary",), "hungary")


@pytest.mark.promise("identities")
def test_a_request_is_signed_only_with_the_key_that_the_site_says_and_nobody_elses(
    kits, tmp_path, monkeypatch
):
    from coterie.base.errors import InputError
    from coterie.sites.flare.authority import keys_of_authority, read_request
    from coterie.sites.flare.join import sign

    monkeypatch.setenv("HOME", str(tmp_path))
    plan, authority = kits.parent / "plan.toml", kits / "ca"
    request = Path(forged(tmp_path / "forged", name="hungary"))
    heard, keys = read_request(request).key, keys_of_authority(authority)
    people = {f"{who}@coterie.org" for who in ("operator", "guard", "keeper")}
    assert set(keys.values()) == {"localhost", "hungary", "cleveland", *people}
    with pytest.raises(InputError, match="another SHA-256 than --fingerprint"):
        sign(plan, request, next(iter(keys)))
    file = authority / "keys.json"
    before = file.read_text()
    file.write_text(json.dumps({**keys, heard: "localhost"}))
    with pytest.raises(InputError, match="has the public key of 'localhost'"):
        sign(plan, request, heard)
    assert not list(tmp_path.rglob("*.signed.zip"))
    file.write_text(before)
    signed, about, _ = sign(plan, request, heard.lower().removeprefix("sha256:"))
    assert (signed.is_file(), about.subject) == (True, "hungary, client, of hungary")
    assert keys_of_authority(authority)[heard] == "hungary"


@pytest.fixture
def server(kits):
    """What a server's port does with a handshake, with the kit's own certificate; another one for a foreign site."""
    import socket
    import ssl
    import threading

    startup = kits / "localhost" / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(startup / "server.crt", startup / "server.key")
    context.load_verify_locations(startup / "rootCA.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    plain = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve():
        while True:
            try:
                caller, _ = plain.accept()
                held.append(context.wrap_socket(caller, server_side=True))
            except ssl.SSLError:
                caller.close()
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield plain.getsockname()[1]
    plain.shutdown(socket.SHUT_RDWR)
    plain.close()
    for one in held:
        one.close()
    thread.join()


def reach(kits, tmp_path, port, **files):
    """The startup folder of hungary's kit, pointed at a port, some of its files replaced."""
    import shutil

    startup = tmp_path / "startup"
    shutil.copytree(kits / "hungary" / "startup", startup)
    about = json.loads((startup / "fed_client.json").read_text())
    about["servers"][0]["service"]["target"] = f"localhost:{port}"
    (startup / "fed_client.json").write_text(json.dumps(about))
    for name, content in files.items():
        (startup / name.replace("__", ".")).write_bytes(content)
    return startup


def test_a_site_tries_port_and_certificates_before_it_joins(kits, server, tmp_path):
    from coterie.sites.check import connect

    assert f"localhost:{server} answers as localhost over TLSv1" in connect(
        reach(kits, tmp_path, server)
    )


def test_a_foreign_certificate_and_a_closed_port_are_told_apart(
    kits, server, own_key, tmp_path
):
    from coterie.base.errors import InputError
    from coterie.sites.check import connect

    foreign = own_key[1] / "localhost" / "startup"
    (tmp_path / "a").mkdir()
    stranger = reach(kits, tmp_path / "a", server, client__crt=(foreign / "server.crt").read_bytes(),
                     client__key=(foreign / "server.key").read_bytes())  # fmt: skip
    with pytest.raises(InputError, match="do not accept each other's certificates"):
        connect(stranger)
    (tmp_path / "b").mkdir()
    other = reach(
        kits, tmp_path / "b", server, rootCA__pem=(foreign / "rootCA.pem").read_bytes()
    )
    with pytest.raises(InputError, match="do not accept each other's certificates"):
        connect(other)
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match="cannot be reached"):
        connect(reach(kits, tmp_path / "c", 1))


def test_a_site_compares_versions_and_processor_with_the_operators(kits):
    from coterie.base.errors import InputError
    from coterie.sites.software import compare_versions, versions

    file = kits / "hungary" / "local" / "versions.json"
    assert compare_versions(file)[0].startswith("the same as the operator's: coterie")
    kept = file.read_text()
    try:
        file.write_text(json.dumps({**versions(), "processor": "other"}))
        assert "processor is" in compare_versions(file)[1]
        file.write_text(json.dumps({**versions(), "coterie": "0.0"}))
        with pytest.raises(InputError, match="install the operator's version"):
            compare_versions(file)
    finally:
        file.write_text(kept)


def test_status_says_who_is_connected_and_when_each_site_last_answered():
    from coterie.sites.flare.status import _lines
    from coterie.sites.plan import Deployment

    told = {
        "event": ["fedavg", 0, "", 3, 6, 0, 1, None, False], "task": "coterie.algorithms.fedavg:local_update",
        "waiting": ["b"], "gone": ["c"], "last": {"a": ["coterie.compute.metrics:evaluate", 90.0]},
        "gates": {"a": 7, "b": 0, "c": None},
    }  # fmt: skip
    assert list(_lines(Deployment(("a", "b", "c")), {"a", "b"}, True, told, 100.0)) == [
        "server localhost:8002 answers; fedavg, seed 0, round 3 of 6",
        "  a  connected, gate closed 7; last answered metrics:evaluate 10 s ago",
        "  b  connected, asked fedavg:local_update, no gate",
        "  c  not connected, gone in this run, gate not known",
    ]
    server, site = _lines(Deployment(("a",)), set(), False, {}, 0.0)
    assert "no run" in server
    assert "gate" not in site
    _, site = _lines(Deployment(("a",)), {"a"}, True, {}, 0.0)
    assert "gate not known" in site  # the job has not asked it yet


def test_what_the_operator_accepts_when_submitting_is_beside_what_the_plan_accepts(
    kits, tmp_path, monkeypatch
):
    from hospital import plan_file

    from coterie.base.errors import RunError
    from coterie.cli.main import main
    from coterie.sites.flare import submit

    sent = []

    def start(session, message, sites):
        sent.append(message["accept"])
        raise RunError("nothing is submitted")

    monkeypatch.setattr(submit, "_session", lambda *about: None)
    monkeypatch.setattr(submit, "_await_sites", lambda *about: None)
    monkeypatch.setattr(submit, "_start", start)
    plan = plan_file(
        tmp_path,
        deploy={
            "sites": ["hungary", "cleveland"],
            "accept": ["hungary:age"],
            "kits": str(kits),
        },
    )
    accept = ["--accept", "cleveland:chol", "--accept", "hungary:sex"]
    assert main(["submit", str(plan), "--out", str(tmp_path / "run"), *accept]) == 1
    assert sent == [["hungary:age", "cleveland:chol", "hungary:sex"]]


# ---- revocation, roles, signatures


def certificate(kits, name, file="client.crt"):
    from coterie.sites.flare.authority import certificate_of

    return certificate_of((kits / name / "startup" / file).read_bytes())


def test_certificates_of_sites_end_after_90_days_and_others_with_the_authority(kits):
    days = {
        name: (made.not_valid_after_utc - made.not_valid_before_utc).days
        for name, made in (
            (n, certificate(kits, n))
            for n in ("hungary", "cleveland", "operator@coterie.org")
        )
    }
    assert (days["hungary"], days["cleveland"]) == (90, 90)
    assert days["operator@coterie.org"] > 350


def test_a_signed_request_ends_after_90_days_and_can_be_signed_again(
    own_key, tmp_path, monkeypatch
):
    from coterie.sites.flare.join import certificates_in, request, sign

    monkeypatch.setenv("HOME", str(tmp_path))
    folder, _, _, signed, _ = own_key
    old = certificates_in(signed)[1]
    assert (old.not_valid_after_utc - old.not_valid_before_utc).days == 90
    asked, about = request(folder / "plan.toml", "hungary", tmp_path / "renewed")
    new = certificates_in(sign(folder / "plan.toml", asked, about.key)[0])[1]
    assert new.serial_number != old.serial_number
    issued = json.loads((folder / "kits" / "ca" / "issued.json").read_text())
    assert [issued[f"{one.serial_number:X}"] for one in (old, new)] == [
        "hungary",
        "hungary",
    ]


@pytest.fixture
def copied(kits, tmp_path):
    """Kits of their own, with the plan beside them."""
    shutil.copytree(kits, tmp_path / "kits")
    shutil.copy(kits.parent / "plan.toml", tmp_path / "plan.toml")
    return tmp_path / "kits"


@pytest.mark.promise("revocation")
def test_whoever_holds_a_revoked_certificate_is_neither_registered_nor_asked(
    copied, capsys
):
    from coterie.base.errors import InputError
    from coterie.cli.main import main
    from coterie.sites.flare.gate import Gate, barred_sites

    local = copied / "localhost" / "local"
    calls = []

    class Verifier:
        def verify_common_name(self, **about):
            calls.append(about["asserted_cn"])
            return True

    gate, verifier = Gate(), Verifier()
    gate._local = local
    gate._watch(verifier)

    def register(name):
        return verifier.verify_common_name(
            asserted_cn=name,
            asserter_cert=certificate(copied, name),
            nonce="n",
            signature="s",
        )

    assert register("hungary")
    assert register("cleveland")
    assert barred_sites(local) == {}
    assert main(["revoke", str(copied.parent / "plan.toml"), "hungary"]) == 0
    assert "reads" in capsys.readouterr().out
    assert set(barred_sites(local)) == {"hungary"}
    with pytest.raises(InputError, match="hungary comes with the revoked certificate"):
        register("hungary")
    assert register("cleveland")
    assert calls == ["hungary", "cleveland", "hungary", "cleveland"]
    assert main(["revoke", str(copied.parent / "plan.toml"), "nowhere"]) == 2


def test_a_server_whose_list_of_revoked_certificates_is_damaged_lets_nobody_in(copied):
    from coterie.base.errors import InputError
    from coterie.sites.flare.gate import Gate

    gate = Gate()
    gate._local = copied / "localhost" / "local"
    (gate._local / "revoked.json").write_text("{")
    with pytest.raises(
        InputError, match=r"revoked\.json cannot be read .*coterie revoke plan\.toml"
    ):
        gate.note("hungary", "1")


def test_a_server_builds_the_gate_that_reads_the_list_and_no_site_does(kits):
    for name, there in (("localhost", True), ("hungary", False)):
        components = json.loads((kits / name / "local" / "resources.json").read_text())[
            "components"
        ]
        assert (
            any(c["path"] == "coterie.sites.flare.gate.Gate" for c in components)
            is there
        )


def rights(kits, role, right, submitter="somebody"):
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import FLAuthorizer

    policy = json.loads(
        (kits / "localhost" / "local" / "authorization.json").read_text()
    )
    who = Person("me", "coterie", role)
    return FLAuthorizer("coterie", policy).authorize(
        AuthzContext(right, who, Person(submitter, "other", "lead"))
    )[0]


@pytest.mark.promise("rights of three kits")
def test_submitting_disabling_and_shutting_down_are_rights_of_three_people(kits):
    allowed = {
        "lead": {"submit_job"}, "org_admin": {"disable_client", "enable_client"}, "project_admin": {"shutdown", "restart"},
    }  # fmt: skip
    every = set().union(*allowed.values()) | {"byoc", "cat", "grep", "sys_info"}
    for role, may in allowed.items():
        assert {right for right in every if rights(kits, role, right)} == may
    assert rights(kits, "lead", "abort_job", "me")
    assert not rights(kits, "lead", "abort_job", "another")
    for name, role in (
        ("operator", "lead"),
        ("guard", "org_admin"),
        ("keeper", "project_admin"),
    ):
        subject = certificate(kits, f"{name}@coterie.org").subject.rfc4514_string()
        assert role in subject


@pytest.mark.promise("rights of three kits")
def test_the_authoritys_key_lies_where_the_operator_wants_it(tmp_path, capsys):
    from hospital import plan_file

    from coterie.cli.main import main

    plan = plan_file(tmp_path, deploy={"sites": ["hungary", "a", "b", "c"]})
    safe = tmp_path / "safe" / "authority"
    assert main(["deploy", str(plan), "--authority", str(safe)]) == 0
    assert (
        "note     fedavg average what 4 sites send, and one faulty site moves that"
        in capsys.readouterr().out
    )
    assert (safe / "rootCA.key").is_file()
    keys = [
        path
        for path in (tmp_path / "kits").rglob("*.key")
        if path.read_bytes() == (safe / "rootCA.key").read_bytes()
    ]
    assert not keys
    assert not (tmp_path / "kits" / "ca").exists()
    capsys.readouterr()
    assert main(["revoke", str(plan), "hungary"]) == 2
    assert "--authority" in capsys.readouterr().err
    assert main(["revoke", str(plan), "hungary", "--authority", str(safe)]) == 0
    assert (
        "hungary"
        in (tmp_path / "kits" / "localhost" / "local" / "revoked.json").read_text()
    )


@pytest.mark.promise("what was read is approved")
def test_a_site_approves_a_plan_that_the_operator_has_signed_and_no_other(
    copied, capsys
):
    from coterie.cli.main import main

    kit, plan = copied / "hungary", copied.parent / "plan.toml"
    set_up_hungary(kit)

    def approve():
        return main(
            ["site", "approve", str(plan), "--kit", str(kit), "--yes", plan_hash(plan)]
        )

    assert approve() == 2
    assert (
        "plan.toml has no signature of the operator beside it"
        in capsys.readouterr().err
    )
    assert main(["sign", str(plan)]) == 0
    assert approve() == 0
    assert "signed    by operator@coterie.org" in capsys.readouterr().out
    plan.write_text(plan.read_text().replace("rounds = 5", "rounds = 6"))
    assert approve() == 2
    assert "of another text" in capsys.readouterr().err
    (copied / "operator@coterie.org").rename(copied / "another")
    for signer in (
        "guard@coterie.org",
        "cleveland",
    ):  # whoever else has a certificate of this authority
        shutil.copytree(copied / signer, copied / "operator@coterie.org")
        assert main(["sign", str(plan)]) == 0
        assert approve() == 2
        assert f"of '{signer}'" in capsys.readouterr().err
        shutil.rmtree(copied / "operator@coterie.org")


@pytest.mark.promise("what was read is approved")
def test_an_operator_of_another_authority_signs_nothing_that_a_site_approves(
    copied, own_key, capsys
):
    from coterie.cli.main import main

    other = own_key[1] / "operator@coterie.org"
    shutil.rmtree(copied / "operator@coterie.org")
    shutil.copytree(other, copied / "operator@coterie.org")
    plan = copied.parent / "plan.toml"
    assert main(["sign", str(plan)]) == 0
    assert (
        main(
            [
                "site",
                "approve",
                str(plan),
                "--kit",
                str(copied / "hungary"),
                "--yes",
                plan_hash(plan),
            ]
        )
        == 2
    )
    assert "of another authority" in capsys.readouterr().err


@pytest.mark.promise("an audit")
def test_the_server_signs_how_a_log_ends_and_a_cut_is_noticed(copied, capsys):
    """Cutting the end of a log left a chain in order."""
    from coterie.cli.main import main
    from coterie.contract.encoding import decode, encode
    from coterie.sites.approval import approve
    from coterie.sites.flare.signature import sign_head, sign_plan
    from coterie.sites.site import Site

    kit, plan = copied / "hungary", copied.parent / "plan.toml"
    settings = set_up_hungary(kit)
    sign_plan(plan, copied / "operator@coterie.org")
    approve(plan, settings)
    site, log = Site("hungary", settings, kit / "coterie"), kit / "local" / "asks.jsonl"
    for serial in range(3):
        site.handle(
            encode({"do": "nothing", "serial": serial, "plan": site._hash}), "cleveland"
        )
        site.handle(encode({"do": "head", "signed": "", "serial": -1}), "server")
    head = decode(
        site.handle(
            encode({"do": "head", "signed": "", "serial": 10, "plan": site._hash}),
            "server",
        )
    )["head"]
    signed = sign_head("hungary", head, copied / "localhost" / "startup")
    message = {
        "do": "signed",
        "signed": json.dumps(signed),
        "serial": 11,
        "plan": site._hash,
    }
    assert "failed" not in decode(site.handle(encode(message), "server"))
    site.close()
    check = ["site", "log", str(kit), "--check"]
    assert main(check) == 0
    assert "localhost has signed 1 heads of this log" in capsys.readouterr().out
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-2]))
    (kit / "local" / "asks.jsonl.index").unlink(missing_ok=True)
    assert main(check) == 2
    assert "somebody has cut its end" in capsys.readouterr().err
    log.write_bytes(b"".join(lines))
    heads = kit / "local" / "asks.jsonl.heads"
    heads.write_text(heads.read_text().replace(head, "0" * 64))
    assert main(check) == 2
    assert "not signed by localhost" in capsys.readouterr().err
