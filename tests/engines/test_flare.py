"""Plans on NVIDIA FLARE with mutual TLS on loopback, where strangers are refused and processes killed."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from coterie.base.errors import InputError
from coterie.report.results import Results
from coterie.report.verdicts import verdict
from coterie.sites.flare.kits import provision
from coterie.sites.flare.start import OPEN_PATH
from deployment import HOSPITALS, deployed, differences

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

FEDAVG = '[[methods]]\nname = "fedavg"\n'
IN_FOLDS = """
[[methods]]
name = "local"
local = { weight_decay = 0.01 }

[[methods]]
name = "fedavg"

[split]
folds = 2
"""
TWO = FEDAVG + '[[methods]]\nname = "meritfed"\ntargets = ["switzerland"]\n'


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """One deployment for all tests that kill nothing; sites read their settings when a job begins."""
    with deployed(tmp_path_factory.mktemp("deployment")) as made:
        yield made


@pytest.fixture
def plan(deployment, tmp_path):
    """Write a plan like that of the deployment, with other methods and rounds."""

    def write(methods, rounds=3, **deploy):
        text = deployment.plan.read_text()
        head, rest = text.split("[[methods]]", 1)
        text = head + methods + "\n[run]" + rest.split("[run]", 1)[1]
        text = re.sub(r"^rounds = .*$", f"rounds = {rounds}", text, flags=re.M)
        text += "".join(f"{k} = {json.dumps(v)}\n" for k, v in deploy.items())
        text += f'kits = "{deployment.kits}"\n'
        path = tmp_path / "plan.toml"
        path.write_text(text)
        for name in HOSPITALS:
            deployment.approve(name, path)
        return path

    yield write
    for name in HOSPITALS:
        deployment.settings(name)
        deployment.approve(name)


def failures(run, label="fedavg"):
    return json.loads((run / "checkpoint" / f"{label}-0" / "done.json").read_text())[
        "failures"
    ]


def wait_for(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.3)


# ---- kits and mutual TLS


def test_nine_methods_end_with_the_same_bits_over_mutual_tls(deployment, tmp_path):
    for name in HOSPITALS:
        said = deployment.coterie(
            "site", "check", deployment.kits / name, "--connect"
        ).stdout
        assert "this site can join" in said
        assert f"localhost:{deployment.port} answers as localhost" in said
    assert "no run" in deployment.coterie("status", deployment.plan).stdout
    deployment.coterie(
        "run", deployment.plan, "--out", tmp_path / "here", "--no-report"
    )
    done = deployment.coterie(
        "submit", deployment.plan, "--out", tmp_path / "there", "--no-report"
    )
    assert "isfl" in done.stdout
    assert re.search(r"\(seed 0, \w+", done.stderr)
    assert not differences(tmp_path / "here", tmp_path / "there", *deployment.kept)
    log = (deployment.kits / "long-beach" / "local" / "asks.jsonl").read_text()
    assert "coterie.algorithms.varsel:distances" in log


def test_a_plan_with_folds_has_the_words_of_one_machine(deployment, plan, tmp_path):
    path = plan(IN_FOLDS, rounds=2)
    here, there = tmp_path / "here", tmp_path / "there"
    deployment.coterie("run", path, "--out", here, "--no-report")
    done = deployment.coterie("submit", path, "--out", there)
    assert "(seed 0, all rows, fedavg)" in done.stderr
    assert (there / "report.html").is_file()
    assert not (there / "outcomes").exists()
    assert "test" not in {
        row["split"] for row in json.loads((there / "summary.json").read_text())
    }
    one, sites = Results.load(here), Results.load(there)
    for client in one.clients:
        mine, theirs = (
            results.comparisons.gain("fedavg", client, "loss")
            for results in (one, sites)
        )
        assert theirs.estimate == pytest.approx(mine.estimate, abs=1e-6)
        assert theirs.error == pytest.approx(mine.error, rel=0.15)
        assert verdict(sites, client).kind == verdict(one, client).kind


@pytest.mark.in_turn
def test_contributions_are_those_of_one_process(deployment, plan, tmp_path):
    written = plan(FEDAVG + "[run.contribution]\nevery = 2\n\n")
    places = [tmp_path / "here", tmp_path / "there"]
    for command, place in zip(("run", "submit"), places, strict=True):
        deployment.coterie(command, written, "--out", place, "--no-report")
    here, there = ((place / "contribution.csv").read_text() for place in places)
    assert here == there
    assert here.count("\nfedavg,0,") == 2 * len(HOSPITALS) ** 2


@pytest.mark.promise("identities")
def test_a_job_brings_no_code_and_a_site_sends_no_log(deployment):
    for name in HOSPITALS:
        local = deployment.kits / name / "local"
        rights = json.loads((local / "authorization.json").read_text())["permissions"]
        assert all(
            role["byoc"] == "none"
            for role in rights.values()
            if isinstance(role, dict) and "byoc" in role
        )
        resources = json.loads((local / "resources.json").read_text())
        assert not resources["allow_log_streaming"]
        assert "site_log_streamer" not in {c["id"] for c in resources["components"]}
    assert not list(deployment.kits.rglob("app_*/custom/*.py"))


@pytest.mark.in_turn
def test_a_site_whose_columns_do_not_fit_is_named_before_and_after_it_joins(
    deployment, plan, tmp_path
):
    lines = (deployment.folder / "hospitals" / "hungary.csv").read_text().splitlines()
    header = lines[0].replace("thalach", "pulse")
    (tmp_path / "other.csv").write_text("\n".join([header, *lines[1:]]))
    deployment.settings("hungary", data=str(tmp_path / "other.csv"))
    path = plan(FEDAVG, columns=["age", "thalach"])
    settings = deployment.kits / "hungary" / "local" / "coterie.toml"
    check = deployment.coterie(
        "site", "check", path, "--site", "hungary", "--settings", settings, check=False
    )
    assert check.returncode == 2
    assert "has no column thalach, which the plan needs" in check.stderr
    done = deployment.coterie(
        "submit", path, "--out", tmp_path / "run", "--no-report", check=False
    )
    assert done.returncode == 1
    assert (
        "hungary (its file has no column thalach, which the plan needs; add it)"
        in done.stderr
    )
    assert str(tmp_path / "other.csv") not in done.stderr


@pytest.mark.in_turn
def test_a_task_that_a_site_forbids_is_its_named_failure(deployment, plan, tmp_path):
    deployment.settings("hungary", refuse=["tasks:local_update"])
    deployment.coterie("submit", plan(FEDAVG), "--out", tmp_path / "run", "--no-report")
    assert (
        "its site refuses the task 'tasks:local_update'"
        in failures(tmp_path / "run")["hungary"]
    )
    deployment.settings("hungary", refuse=["tasks:local_updates"])
    deployment.settings("cleveland", minimum_rows=10_000)
    done = deployment.coterie(
        "submit", plan(TWO), "--out", tmp_path / "other", "--no-report", check=False
    )
    assert done.returncode == 1
    assert (
        "cleveland (it has fewer than the 10000 training rows under which its site does not answer)"
        in done.stderr
    )


# ---- strangers


@pytest.fixture(scope="module")
def lonely(tmp_path_factory):
    """A server alone."""
    from deployment import Deployment

    made = Deployment(tmp_path_factory.mktemp("lonely"))
    try:
        made.start("localhost")
        yield made
    finally:
        made.stop_all()


def test_a_kit_of_the_federation_joins(lonely):
    lonely.start("cleveland")
    try:
        wait_for(lambda: lonely.joined("cleveland"))
        assert lonely.joined("cleveland")
    finally:
        lonely.stop("cleveland")


@pytest.mark.promise("identities")
def test_a_client_without_certificate_is_refused_and_told_before(lonely, tmp_path):
    kit = tmp_path / "hungary"
    shutil.copytree(lonely.kits / "hungary", kit)
    for file in ("client.crt", "client.key"):
        (kit / "startup" / file).unlink()
    lonely.start("hungary", kit=kit)
    try:
        wait_for(lambda: "ObjectStreamer" in lonely.log("hungary"))
        time.sleep(12)  # one with a certificate has joined within 5
        assert not lonely.joined("hungary")
    finally:
        lonely.stop("hungary")
    check = lonely.coterie("site", "check", kit, check=False)
    assert (check.returncode, check.stdout) == (2, "")
    assert "has no client.crt: no connection is taken without it" in check.stderr


@pytest.mark.promise("identities")
def test_a_kit_of_a_foreign_ca_is_refused(lonely, tmp_path):
    other = provision(lonely.plan, tmp_path / "kits")
    lonely.start("long-beach", kit=other / "long-beach")
    try:
        wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in lonely.log("long-beach"))
        time.sleep(5)
        assert not lonely.joined("long-beach")
    finally:
        lonely.stop("long-beach")
    shutil.copy(
        lonely.kits / "long-beach" / "startup" / "rootCA.pem",
        other / "long-beach" / "startup",
    )
    check = lonely.coterie("site", "check", other / "long-beach", check=False)
    assert check.returncode == 2
    assert "is not signed by" in check.stderr


@pytest.mark.promise("identities")
def test_a_kit_that_claims_to_be_another_site_is_refused(lonely, tmp_path):
    lonely.start("switzerland", kit=lonely.kits / "hungary", uid="switzerland")
    claim = "authenticated as 'hungary' but claimed endpoint 'switzerland'"
    try:
        wait_for(lambda: claim in lonely.log("localhost"))
        time.sleep(5)
        assert not lonely.joined("switzerland")
    finally:
        lonely.stop("switzerland")
    shutil.copytree(lonely.kits / "hungary", tmp_path / "switzerland")
    check = lonely.coterie("site", "check", tmp_path / "switzerland", check=False)
    assert check.returncode == 2
    assert "is that of 'hungary', not of 'switzerland'" in check.stderr


@pytest.mark.promise("files of others run nothing")
def test_garbage_on_the_port_keeps_nobody_out(lonely):
    """Noise, half a handshake, a handshake without a certificate, and a page's request: then a site joins as always."""
    wait_for(lonely.listens)
    noise = bytes(range(256)) * 256
    for number in range(40):
        with (
            socket.create_connection(("localhost", lonely.port), timeout=10) as plain,
            suppress(OSError),
        ):
            plain.sendall(
                (noise, b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", b"")[
                    number % 4
                ]
            )
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    for _ in range(5):
        plain = socket.create_connection(("localhost", lonely.port), timeout=10)
        with (
            plain,
            suppress(OSError),
            anybody.wrap_socket(plain, server_hostname="localhost") as strange,
        ):
            strange.sendall(noise)
            assert strange.recv(1) == b""  # whoever has no certificate hears nothing
    lonely.start("hungary")
    try:
        wait_for(lambda: lonely.joined("hungary"))
    finally:
        lonely.stop("hungary")


# ---- kills


def moments(only, several):
    """When to kill: at which local update of FedAvg (`slow`), and at which query of MeritFed's, in the middle of a phase."""
    slow = pytest.param("tasks:local_update", only, marks=pytest.mark.slow)
    return pytest.mark.parametrize(
        ("task", "at"), [slow, ("target_tasks:target_gradient", several)]
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What two methods end with if nobody is killed; by number of rounds."""
    from deployment import Deployment

    folder = tmp_path_factory.mktemp("undisturbed")
    made = Deployment(folder, methods=TWO, rounds=4)
    made.coterie("run", made.plan, "--out", folder / "run", "--no-report")
    return folder / "run"


def assert_same_models(run, other):
    """The files also name the folder of the data, which differs."""
    files = sorted(p.name for p in (run / "models").glob("*.safetensors"))
    assert len(files) == 2
    for name in files:
        one, two = load_file(run / "models" / name), load_file(other / "models" / name)
        assert all(torch.equal(value, two[key]) for key, value in one.items()), name


@pytest.mark.in_turn
@moments(2, 5)
def test_a_killed_cohort_process_is_that_clients_failure_and_the_job_goes_on(
    tmp_path, task, at
):
    arm = {"where": "cohort", "task": task, "at": at, "file": str(tmp_path / "killed")}
    with deployed(tmp_path / "d", {"switzerland": arm}, methods=TWO, rounds=4) as made:
        made.coterie("submit", made.plan, "--out", tmp_path / "run", "--no-report")
        assert (tmp_path / "killed").exists()
        log = (made.kits / "switzerland" / "local" / "asks.jsonl").read_text()
    assert (
        "its cohort process ended with exit code -9; it was restarted, and what its clients remembered is lost"
        in log
    )
    assert task in log
    found = {**failures(tmp_path / "run"), **failures(tmp_path / "run", "meritfed")}
    # A target that fails is asked once more and then answers: the round lacks nobody.
    assert set(found) == ({"switzerland"} if task == "tasks:local_update" else set())


@pytest.mark.in_turn
def test_a_killed_worker_is_its_sites_failure_and_the_job_goes_on(tmp_path):
    """FLARE ends the job of all where a site reports that its process has failed; here the quorum of the method decides."""
    arm = {
        "where": "worker",
        "task": "tasks:local_update",
        "at": 3,
        "file": str(tmp_path / "killed"),
    }
    with deployed(
        tmp_path / "d", {"switzerland": arm}, methods=FEDAVG, rounds=4, timeout=20.0
    ) as made:
        made.coterie("submit", made.plan, "--out", tmp_path / "run", "--no-report")
        assert (tmp_path / "killed").exists()
    assert set(failures(tmp_path / "run")) == {"switzerland"}


@pytest.mark.in_turn
def test_a_killed_worker_whom_the_method_needs_ends_the_run_and_resume_completes_it(
    tmp_path, undisturbed
):
    arm = {
        "where": "worker",
        "task": "target_tasks:target_gradient",
        "at": 7,
        "file": str(tmp_path / "killed"),
    }
    with deployed(
        tmp_path / "d", {"switzerland": arm}, methods=TWO, rounds=4, timeout=20.0
    ) as made:
        done = made.coterie(
            "submit", made.plan, "--out", tmp_path / "run", "--no-report", check=False
        )
        assert (tmp_path / "killed").exists()
        assert done.returncode == 1, done.stderr
        assert "Failed: switzerland" in done.stderr
        assert "--resume" in done.stderr
        made.coterie(
            "submit", made.plan, "--out", tmp_path / "run", "--no-report", "--resume"
        )
    assert_same_models(tmp_path / "run", undisturbed)


@pytest.mark.in_turn
@moments(3, 7)
def test_a_killed_server_is_started_again_and_resume_completes_with_the_same_model(
    tmp_path, undisturbed, task, at
):
    arm = {"where": "server", "task": task, "at": at, "file": str(tmp_path / "reached")}
    with deployed(tmp_path / "d", {"localhost": arm}, methods=TWO, rounds=4) as made:
        running = made.coterie(
            "submit",
            made.plan,
            "--out",
            tmp_path / "run",
            "--no-report",
            background=True,
        )
        wait_for((tmp_path / "reached").exists)
        made.stop("localhost")
        said = running.communicate(timeout=600)[1]
        assert running.returncode == 1, said
        assert "--resume" in said
        made.stop_all()
        made.start_all()
        made.coterie(
            "submit", made.plan, "--out", tmp_path / "run", "--no-report", "--resume"
        )
    assert_same_models(tmp_path / "run", undisturbed)


@pytest.mark.in_turn
def test_a_client_machine_that_vanishes_is_named_and_the_quorum_goes_on(tmp_path):
    arm = {
        "where": "worker",
        "task": "tasks:local_update",
        "at": 2,
        "file": str(tmp_path / "reached"),
        "wait": True,
    }
    with deployed(
        tmp_path / "d", {"long-beach": arm}, methods=FEDAVG, rounds=4, timeout=20.0
    ) as made:
        running = made.coterie(
            "submit",
            made.plan,
            "--out",
            tmp_path / "run",
            "--no-report",
            background=True,
        )
        wait_for((tmp_path / "reached").exists)
        made.stop("long-beach")  # with the worker and the cohort's process, all at once
        said = running.communicate(timeout=600)[1]
        assert running.returncode == 0, said
        assert "long-beach is gone" in said
    why = failures(tmp_path / "run")["long-beach"]
    assert (
        "let 20 s pass before, and does not answer now" in why
        or "no reply within 20 s" in why
    )
    assert Path(tmp_path / "run" / "summary.json").exists()


# ---- identity


def lines_of(made, name):
    return [
        json.loads(line)
        for line in (made.kits / name / "local" / "asks.jsonl").read_text().splitlines()
    ]


@pytest.fixture
def server(tmp_path):
    """What a gate needs of FLARE's server: a folder and a verifier of certificates, which lets everybody in; and a gate."""
    from coterie.sites.flare.gate import Gate
    from coterie.sites.flare.revocation import first_list, revoke_certificates

    authority, local, startup = (
        tmp_path / name for name in ("authority", "local", "startup")
    )
    for folder in (authority, local, startup):
        folder.mkdir()
    make_root(authority)
    shutil.copy(authority / "rootCA.pem", startup)
    shutil.copy(first_list(authority), local)

    def revoke(serial, name):
        (authority / "issued.json").write_text(json.dumps({str(serial): name}))
        shutil.copy(revoke_certificates(authority, name), local)

    verifier = SimpleNamespace(verify_common_name=lambda **_: True)
    manager = SimpleNamespace(
        cred_keeper=SimpleNamespace(get_id_verifier=lambda _: verifier)
    )
    return SimpleNamespace(
        workspace=str(tmp_path),
        client_manager=manager,
        verifier=verifier,
        gate=Gate(),
        revoke=revoke,
    )


def make_root(folder):
    """Write the key and the certificate of an authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key, now = (
        rsa.generate_private_key(public_exponent=65537, key_size=2048),
        datetime.now(UTC),
    )
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number()
    )
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    (folder / "rootCA.pem").write_bytes(
        builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    )
    (folder / "rootCA.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


def register(server, name, serial):
    """As FLARE does for a site that comes: tell the components, then look at the certificate."""
    from nvflare.apis.event_type import EventType

    context = SimpleNamespace(get_engine=lambda: SimpleNamespace(server=server))
    server.gate.handle_event(EventType.CLIENT_REGISTER_RECEIVED, context)
    certificate = SimpleNamespace(serial_number=serial)
    return server.verifier.verify_common_name(
        asserted_cn=name, asserter_cert=certificate
    )


def test_sites_that_register_in_the_same_moment_are_all_noted(server):
    """FLARE takes in each in a thread of its own; two that wrote the list at once left it damaged, and nobody was let in any more."""
    local, together = Path(server.workspace) / "local", threading.Barrier(8)

    def come(number):
        together.wait()
        return all(
            register(server, f"site-{number}-{turn}", number) for turn in range(20)
        )

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(come, range(8)))
    noted = json.loads((local / "registered.json").read_text())
    assert noted == {
        f"site-{number}-{turn}": str(number)
        for number in range(8)
        for turn in range(20)
    }
    assert sorted(path.name for path in local.iterdir()) == [
        "registered.json",
        "revoked.json",
    ]


def test_nobody_registers_before_the_first_is_looked_at(server):
    """A second site that came while the gate began to look was once not looked at."""
    keeper, finished = server.client_manager.cred_keeper, []
    for serial, name in enumerate(("first", "second"), 1):
        server.revoke(serial, name)
    begin = keeper.get_id_verifier
    with ThreadPoolExecutor(1) as thread:

        def begin_late(context):
            keeper.get_id_verifier = begin
            second.append(thread.submit(register, server, "second", 2))
            finished.extend(wait(second, 0.5).done)
            return begin(context)

        second, keeper.get_id_verifier = [], begin_late
        with pytest.raises(
            InputError, match="first comes with the revoked certificate 1"
        ):
            register(server, "first", 1)
        with pytest.raises(
            InputError, match="second comes with the revoked certificate 2"
        ):
            second[0].result()
    assert not finished


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("registered.json", "remove it and start the server again"),
        ("revoked.json", "coterie revoke plan.toml"),
    ],
)
def test_a_damaged_list_of_the_server_lets_nobody_in_and_says_what_to_do(
    server, name, cure
):
    server.revoke(2, "another")
    (Path(server.workspace) / "local" / name).write_text('{"hungary": "1"}}')
    with pytest.raises(InputError, match=rf"{re.escape(name)} cannot be read .*{cure}"):
        register(server, "hungary", 1)


@pytest.mark.promise("revocation")
def test_a_site_that_calls_others_fills_no_log_and_a_revoked_one_is_let_in_no_more(
    tmp_path,
):
    """One job: hungary calls every other site, which the server does not even forward. Then cleveland renews its certificate, and that
    of hungary is revoked.
    """
    flood = {"where": "flood", "task": "", "at": 4, "file": str(tmp_path / "answers")}
    with deployed(tmp_path, arms={"hungary": flood}, methods=FEDAVG, rounds=2) as made:
        local = made.kits / "localhost" / "local"
        made.coterie("submit", made.plan, "--out", tmp_path / "first")
        answers = (tmp_path / "answers").read_text().splitlines()
        assert answers == ["CollabCallError"] * 4 * (len(HOSPITALS) - 1)
        for name in set(HOSPITALS) - {"hungary"}:
            assert not [
                line for line in lines_of(made, name) if line.get("caller") == "hungary"
            ]
            assert any(
                line.get("outcome") == "answered" for line in lines_of(made, name)
            )
        refused = [
            json.loads(line) for line in (local / "gate.jsonl").read_text().splitlines()
        ]
        assert {line["caller"] for line in refused} == {"hungary"}
        assert len(refused) <= 3  # one a minute, whatever it calls
        said = made.coterie("site", "log", made.kits / "hungary", "--check").stdout
        assert "localhost has signed 1 heads of this log" in said
        heads = (
            (made.kits / "localhost" / "coterie" / "heads.jsonl")
            .read_text()
            .splitlines()
        )
        assert sorted(json.loads(head)["site"] for head in heads) == sorted(HOSPITALS)
        came = json.loads((local / "registered.json").read_text())
        assert set(HOSPITALS) <= set(came)  # and whoever commands
        kit, again = (
            made.kits / "cleveland",
            made.log("localhost").count("New client cleveland"),
        )
        made.coterie("site", "renew", kit)
        made.coterie("sign", made.plan, kit / "renewal" / "cleveland.renewal.zip")
        made.coterie("site", "renew", kit, kit / "renewal" / "cleveland.signed.zip")
        made.stop("cleveland")
        made.start("cleveland")
        wait_for(
            lambda: made.log("localhost").count("New client cleveland") > again, 120
        )
        assert (
            json.loads((local / "registered.json").read_text())["cleveland"]
            != came["cleveland"]
        )
        said = made.coterie("status", made.plan).stdout
        assert re.search(r"^  cleveland +ends in \d+ days$", said, re.M)
        made.coterie("revoke", made.plan, "hungary")
        done = made.coterie(
            "submit", made.plan, "--out", tmp_path / "second", check=False
        )
        assert done.returncode == 1
        assert "hungary (its certificate was revoked" in done.stderr
        for name in set(HOSPITALS) - {"hungary"}:
            assert (
                json.loads((made.kits / name / "local" / "revoked.json").read_text())[
                    "number"
                ]
                == 2
            )
        made.stop("hungary")
        made.start("hungary")
        wait_for(
            lambda: "comes with the revoked certificate" in made.log("localhost"), 120
        )


def refusal(name, kit, act):
    """Why the server does not let somebody do something; "" if it does."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session = None
    try:
        session = new_secure_session(name, str(kit), timeout=15.0)
        act(session)
    except Exception as error:  # FLARE has a dozen kinds for this
        return f"{type(error).__name__}: {error}"
    finally:
        if session is not None:
            session.close()
    return ""


def connected(session):
    return session.get_connected_client_list()


OPERATOR, GUARD, KEEPER = (
    f"{who}@coterie.org" for who in ("operator", "guard", "keeper")
)


@pytest.mark.promise("rights of three kits")
def test_each_of_those_who_command_the_server_may_do_one_thing(deployment):
    """A lead of the first kits disabled a site and shut the server down."""

    def refused(name, act):
        return refusal(name, deployment.kits / name, act)

    def hungary_is(state):
        said = deployment.coterie("status", deployment.plan).stdout
        return next(
            line.split()[1:] == state.split()
            for line in said.splitlines()
            if "hungary" in line
        )

    for name in (OPERATOR, KEEPER):
        assert "uthoriz" in refused(name, lambda s: s.disable_client("hungary"))
    for name in (OPERATOR, GUARD):
        assert "uthoriz" in refused(name, lambda s: s.shutdown("server"))
        assert refused(
            name, lambda s: s.shutdown("client", ["hungary"])
        )  # where the site refuses
    job = str(a_job(deployment.folder / "job"))
    for name in (GUARD, KEEPER):
        assert "uthoriz" in refused(name, lambda s: s.submit_job(job))
    assert deployment.listens()
    assert hungary_is("connected")
    assert refused(GUARD, lambda s: s.disable_client("hungary")) == ""
    wait_for(lambda: hungary_is("not connected"))
    assert refused(GUARD, lambda s: s.enable_client("hungary")) == ""
    wait_for(lambda: hungary_is("connected"))


def a_job(folder):
    """A job as `coterie submit` makes it, about nothing."""
    from nvflare.collab import CollabRecipe

    from coterie.sites.flare.client import SiteClient
    from coterie.sites.flare.server import Coordinator

    CollabRecipe(
        "coterie", server=Coordinator(b"{}".hex()), client=SiteClient(), min_clients=1
    ).export(str(folder))
    return folder / "coterie"


def person(folder, name, authority, **about):
    """A kit like that of the operator, with a certificate that FLARE's own tool makes for whatever a person claims."""
    from coterie.sites.flare.join import _nvflare, certificates_in

    shutil.copytree(authority.parent / OPERATOR, folder / "kit")
    people = [
        {"name": name, "type": "admin", "org": "coterie", "role": "lead", **about}
    ]
    (folder / "me.yml").write_text(
        json.dumps({"name": "coterie", "participants": people})
    )
    _nvflare(
        "cert", "request", "-p", str(folder / "me.yml"), "--out", str(folder / "key")
    )
    request, signed = folder / "key" / f"{name}.request.zip", folder / "signed.zip"
    profile = {"name": "coterie", "scheme": "tcp", "connection_security": "mtls"}
    profile["server"] = {
        "host": "localhost",
        "fed_learn_port": 8002,
        "admin_port": 8002,
    }
    (folder / "profile.yml").write_text(json.dumps(profile))
    where = (
        "-c",
        str(authority),
        "--profile",
        str(folder / "profile.yml"),
        "--out",
        str(signed),
    )
    _nvflare("cert", "approve", str(request), *where)
    from cryptography.hazmat.primitives.serialization import Encoding

    startup = folder / "kit" / "startup"
    (startup / "client.crt").write_bytes(
        certificates_in(signed)[1].public_bytes(Encoding.PEM)
    )
    shutil.copy(folder / "key" / f"{name}.key", startup / "client.key")
    return folder / "kit", request


@pytest.mark.promise("identities")
def test_t1_no_certificate_of_another_kind_or_authority_commands_the_server(
    lonely, tmp_path, monkeypatch
):
    """`coterie sign` signed a lead's request under the file name of a site, and the lead logged in."""
    from coterie.sites.flare.authority import read_request

    monkeypatch.setenv("HOME", str(tmp_path))
    wait_for(lonely.listens)
    folders = [tmp_path / name for name in ("signed by hand", "foreign", "site")]
    for folder in folders:
        folder.mkdir()
    mallory = "mallory@coterie.org"
    kit, request = person(folders[0], mallory, lonely.kits / "ca")
    assert (
        refusal(mallory, kit, connected) == ""
    )  # what the authority signs, the server believes: so `sign` must not
    shutil.copy(request, tmp_path / "hungary.request.zip")
    key = read_request(request).key
    done = lonely.coterie(
        "sign",
        lonely.plan,
        tmp_path / "hungary.request.zip",
        "--fingerprint",
        key,
        check=False,
    )
    assert done.returncode == 2
    assert "is not a site of the plan" in done.stderr
    assert not (tmp_path / "hungary.signed.zip").exists()

    other = provision(lonely.plan, tmp_path / "other kits")
    foreign, _ = person(folders[1], OPERATOR, other / "ca")
    shutil.copy(
        lonely.kits / OPERATOR / "startup" / "rootCA.pem",
        foreign / "startup" / "rootCA.pem",
    )
    assert refusal(OPERATOR, foreign, connected)

    for name in (OPERATOR, "hungary"):  # with the certificate of a site
        pretended = folders[2] / name
        shutil.copytree(lonely.kits / OPERATOR, pretended)
        for file in ("client.crt", "client.key"):
            shutil.copy(
                lonely.kits / "hungary" / "startup" / file, pretended / "startup" / file
            )
        assert refusal(name, pretended, connected)
    assert refusal(OPERATOR, lonely.kits / OPERATOR, connected) == ""


SHUT_DOWN = """
import sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
new_secure_session(sys.argv[1], sys.argv[2], timeout=15.0).shutdown("server")
"""


@pytest.mark.promise("rights of three kits")
def test_the_keeper_stops_the_server_to_which_a_site_is_connected(lonely):
    """Sites take no order to stop, so the server forgets them first: FLARE refuses else."""
    lonely.start("hungary")
    try:
        wait_for(
            lambda: (
                "hungary" in lonely.log("hungary")
                and "Successfully registered" in lonely.log("hungary")
            )
        )
        assert refusal(OPERATOR, lonely.kits / OPERATOR, connected) == ""
        # In a process of its own: FLARE's session tries for ever to reach a server that has gone.
        keeper = subprocess.Popen(
            [sys.executable, "-c", SHUT_DOWN, KEEPER, str(lonely.kits / KEEPER)]
        )
        try:
            wait_for(lambda: not lonely.listens(), 120)
        finally:
            keeper.kill()
            keeper.wait()
        assert lonely.processes["hungary"].poll() is None
    finally:
        lonely.stop("hungary")
        lonely.stop("localhost")
        lonely.start("localhost")


@pytest.mark.promise("closed doors")
def test_a_kit_from_before_the_gate_is_refused_until_site_check_puts_it_in(
    lonely, tmp_path
):
    kit = tmp_path / "hungary"
    shutil.copytree(lonely.kits / "hungary", kit)
    script, resources = (
        kit / "startup" / "sub_start.sh",
        kit / "local" / "resources.json",
    )
    new = script.read_text()
    old = new.replace(
        "-P -m coterie.sites.flare.start site",
        "-m nvflare.private.fed.app.client.client_train",
    ).replace('echo "PYTHONPATH', OPEN_PATH + 'echo "PYTHONPATH')
    script.write_text(old)
    script.chmod(0o755)
    launcher = "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"
    resources.write_text(
        resources.read_text().replace(
            "coterie.sites.flare.launchers.SiteLauncher", launcher
        )
    )
    (kit / "local" / "data.csv").write_text("")
    assert lonely.start("hungary", kit=kit).wait(120) == 2
    assert "coterie site check" in lonely.log("hungary")
    lonely.stop("hungary")
    said = lonely.coterie("site", "check", kit).stdout
    assert "put into this kit" in said
    assert re.search(r"files +[0-9]+ files and folders", said)
    assert re.search(r"gate +closed: [0-9]{4,} messages", said)
    assert script.read_text() == new
    assert not [
        path
        for path in kit.rglob("*")
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]
    again = lonely.coterie("site", "check", kit).stdout
    assert "put into this kit" not in again
    assert "files  " not in again
