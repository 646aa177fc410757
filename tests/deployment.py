"""A whole deployment on loopback: plan, kits, a server and sites in processes of their own, and what they end with.

`python tests/deployment.py` is `make deploy-demo`: four hospitals with mutual TLS, and the same numbers as in one process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from safetensors import safe_open

from coterie.data.sets.heart_disease import export
from coterie.sites.approval import approve, plan_hash
from coterie.sites.flare.kits import provision
from coterie.sites.flare.signature import sign_plan
from coterie.sites.flare.start import PROGRAMS
from coterie.sites.plan import read_plan

PLAN = """
[data]
folder = "{folder}"
label = "num"
above = 0
classes = ["no disease", "disease"]
categorical = ["cp", "restecg"]
drop = ["ca", "slope", "thal"]
missing = {{ chol = [0], trestbps = [0] }}
server_file = "{server}"

[model]
name = "logistic"

[local]
lr = 0.1
steps = 5
batch_size = 32
{methods}
[run]
rounds = {rounds}
seeds = {seeds}

[deploy]
sites = {sites}
port = {port}
timeout = {timeout}
"""

METHODS = """
[[methods]]
name = "fedavg"

[[methods]]
name = "meritfed"
targets = "all"

[[methods]]
name = "varsel"
internal = ["cleveland", "hungary"]

[[methods]]
name = "maxfl"

[[methods]]
name = "isfl"

[[methods]]
name = "ditto"

[[methods]]
name = "ifca"

[[methods]]
name = "apfl"

[[methods]]
name = "local"
"""

HOSPITALS = ("cleveland", "hungary", "long-beach", "switzerland")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Deployment:
    """A folder with files, plan and kits, and the processes that were started from them."""

    def __init__(
        self,
        folder,
        *,
        methods=METHODS,
        rounds=6,
        seeds=1,
        timeout=60.0,
        files=None,
        keys_at_sites=False,
        described=False,
    ):
        self.folder = Path(folder)
        export(self.folder / "hospitals", server_rows=90)
        for name, change in (files or {}).items():
            path = self.folder / "hospitals" / f"{name}.csv"
            path.write_text(change(path.read_text()))
        self.plan, self.port = self.folder / "plan.toml", free_port()
        self.plan.write_text(
            PLAN.format(
                folder=self.folder / "hospitals",
                server=self.folder / "server.csv",
                methods=methods,
                rounds=rounds,
                seeds=seeds,
                sites=json.dumps(HOSPITALS),
                port=self.port,
                timeout=timeout,
            )
        )
        if described:
            self.plan.write_text(
                self.plan.read_text() + "".join(map(self.describe, HOSPITALS))
            )
        self.kits = provision(self.plan, keys_at_sites=keys_at_sites)
        for name in HOSPITALS if keys_at_sites else ():
            self.join(name)
        for name in HOSPITALS:
            self.settings(name)
            self.approve(name)
        self.processes = {}

    def join(self, name):
        """A site makes its key, the operator signs, and the site builds its kit."""
        heard = self.coterie(
            "site", "request", self.plan, "--site", name
        ).stdout.split()[-1]
        asked = self.folder / f"{name}-key" / f"{name}.request.zip"
        told = self.coterie("sign", self.plan, asked, "--fingerprint", heard).stdout
        signed = self.folder / f"{name}-key" / f"{name}.signed.zip"
        where = (
            "--plan",
            self.plan,
            "--key",
            self.folder / f"{name}-key",
            "--kit",
            self.kits / name,
        )
        self.coterie("site", "join", signed, "--fingerprint", told.split()[-1], *where)

    @property
    def kept(self):
        """Where the sites keep what runs leave."""
        return [self.kits / name / "coterie" for name in HOSPITALS]

    def approve(self, name, plan=None):
        """Sign a plan as its operator, and approve it as `coterie site approve PLAN --yes SHA256` does."""
        sign_plan(plan or self.plan, self.kits / read_plan(self.plan).deployment.admin)
        return approve(plan or self.plan, self.kits / name / "local" / "coterie.toml")

    def describe(self, name):
        """Return what a site says that it has, for the plan."""
        settings, written = (
            self.folder / f"{name}.toml",
            self.folder / f"{name}.described.toml",
        )
        self.settings(name, settings)
        self.coterie(
            "site",
            "describe",
            self.plan,
            "--site",
            name,
            "--settings",
            settings,
            "--out",
            written,
        )
        return written.read_text()

    def settings(self, name, file=None, **more):
        """Write a site's own settings. Minima are 1, and updates leave as they are: one process, with which the numbers are compared,
        has no minima and no key for noise.
        """
        open_to_all = dict.fromkeys(
            ("minimum_rows", "minimum_cell", "minimum_batch", "largest_layer"), 1
        )
        values = {
            "data": str(self.folder / "hospitals" / f"{name}.csv"),
            **open_to_all,
            **more,
        }
        lines = [f"{k} = {json.dumps(v)}" for k, v in values.items()]
        file = file or self.kits / name / "local" / "coterie.toml"
        file.write_text("\n".join(["[site]", *lines, ""]))

    def start(self, name, kit=None, uid=None, arm=None, gate=True):
        """Start the server or a site, as its kit's start.sh would, but without the watchdog; `arm` as in `kill_points`. Without the
        gate it is FLARE's own program that starts.
        """
        kit = Path(kit or self.kits / name)
        server = name == "localhost"
        entry = "server" if server else "site"
        file = "fed_server.json" if server else "fed_client.json"
        who = [] if server else [f"uid={uid or name}"]
        program = (
            ["-P", "-m", "coterie.sites.flare.start", entry]
            if gate
            else ["-m", PROGRAMS[entry]]
        )
        command = [sys.executable, "-u", *program]
        command += ["-m", str(kit), "-s", file, "--set", "secure_train=true", *who]
        command += [
            f"org={'coterie' if server else (uid or name).replace('-', '_')}",
            "config_folder=config",
        ]
        (kit / "transfer").mkdir(exist_ok=True)
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if arm is not None:
            path = [
                str(Path(__file__).parent / "engines" / "kill_points"),
                os.environ.get("PYTHONPATH", ""),
            ]
            environment |= {
                "ARM": json.dumps(arm),
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
            }
        # A session of its own: what it starts is ended with it.
        self.processes[name] = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=kit,
            start_new_session=True,
        )
        log.close()
        return self.processes[name]

    def start_ended(self, arms=None):
        """Start again what has ended, as a kit's start.sh does: FLARE ends a site whose login is not answered for 30 s."""
        for name in [
            name
            for name, process in self.processes.items()
            if process.poll() is not None
        ]:
            self.stop(name)
            self.start(name, arm=(arms or {}).get(name))

    def start_all(self, arms=None):
        arms = arms or {}
        self.start("localhost", arm=arms.get("localhost"))
        deadline = time.monotonic() + 180
        while not self.listens():
            assert time.monotonic() < deadline, (
                f"the server does not start\n{self.log('localhost')}"
            )
            time.sleep(0.1)
        for name in HOSPITALS:
            self.start(name, arm=arms.get(name))
        while missing := [name for name in HOSPITALS if not self.joined(name)]:
            assert time.monotonic() < deadline, (
                f"{missing} do not join\n{self.log(missing[0])}"
            )
            self.start_ended(arms)
            time.sleep(0.1)
        noted = json.loads(
            (self.kits / "localhost" / "local" / "registered.json").read_text()
        )
        assert set(HOSPITALS) <= set(noted), noted

    def joined(self, name):
        """Whether the server has taken in a site."""
        return f"New client {name}" in self.log("localhost")

    def listens(self):
        """Whether the server takes connections."""
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, name):
        """End a process with all that it has started."""
        process = self.processes.pop(name)
        for pid in family(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()

    def stop_all(self):
        for name in list(self.processes):
            self.stop(name)

    def left(self):
        """Processes whose command line names this folder."""
        return [pid for pid, line in commands() if str(self.folder) in line]

    def coterie(self, *arguments, check=True, timeout=600, background=False):
        """The command, as a user gives it."""
        command = [sys.executable, "-m", "coterie", *map(str, arguments)]
        if background:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=timeout, check=False,
            env={**os.environ, "HOME": str(self.folder)},  # FLARE keeps records of certificates there
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{arguments}: {done.returncode}\n{done.stderr}\n{done.stdout}"
        )
        return done

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")


def commands():
    """(pid, command line) of every process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append(
                    (
                        int(entry.name),
                        (entry / "cmdline")
                        .read_bytes()
                        .decode(errors="replace")
                        .replace("\0", " "),
                    )
                )
            except OSError:
                continue
    return found


def family(pid):
    """A process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@contextmanager
def deployed(folder, arms=None, **settings):
    """A running deployment that leaves no process behind."""
    made = Deployment(folder, **settings)
    try:
        made.start_all(arms)
        yield made
    finally:
        made.stop_all()
        deadline = time.monotonic() + 60
        while made.left() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not made.left(), f"processes left behind: {made.left()}"


SAME = (
    "summary.json",
    "history.csv",
    "weights.csv",
    "preprocess.json",
    "notes.json",
    "experiment.toml",
)


BOUNDS = (
    "bounds = { age = [20, 90], sex = [0, 1], trestbps = [80, 220], chol = [80, 610], "
    "fbs = [0, 1], thalach = [60, 220], exang = [0, 1], oldpeak = [-3, 7] }\n"
)


def approve_private_plan(deployment, path, methods, *, epsilon, delta):
    """Write the deployment's plan with these methods, noise by row and bounds, and let every site approve it; returns the path."""
    text = deployment.plan.read_text()
    head, rest = text.split("[[methods]]", 1)
    head = head.replace('drop = ["ca"', f'{BOUNDS}drop = ["ca"')
    head = head.replace("steps = 5", "steps = 1")
    noise = f"[privacy]\nepsilon = {epsilon}\ndelta = {delta}\n"
    text = f"{head}{methods}\n{noise}\n[run]{rest.split('[run]', 1)[1]}"
    path.write_text(f'{text}kits = "{deployment.kits}"\n')
    for name in HOSPITALS:
        deployment.settings(name, epsilon=epsilon, delta=delta)
        deployment.approve(name, path)
    return path


def differences(one, other, *kept):
    """Files of two run directories that follow from the seed and differ; sites have `kept` their own models in folders of theirs."""
    models = {
        p: other / p
        for p in sorted(
            p.relative_to(one) for p in (one / "models").rglob("*.safetensors")
        )
    }
    own = {
        place.name: place / "model.safetensors"
        for folder in kept
        for place in (folder / "models").glob("*/")
    }
    models |= {model: own[model.stem] for model in models if model.stem in own}
    files = [str(f) for f in SAME if (one / f).read_bytes() != (other / f).read_bytes()]
    return files + [
        str(f)
        for f, where in models.items()
        if tensors_of(one / f) != tensors_of(where)
    ]


def tensors_of(path):
    """The tensors of a model file as bytes, by name."""
    with safe_open(path, framework="pt") as file:
        names = sorted(file.keys())
        return {name: file.get_tensor(name).numpy().tobytes() for name in names}


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def demo(keep=False):
    """Four hospitals, four processes, kits and mutual TLS against one process; `keep` leaves plan, kits and results to look at."""
    folder = Path(tempfile.mkdtemp(prefix="coterie-deploy-"))
    begun = time.perf_counter()
    try:
        with deployed(folder, keys_at_sites=True, described=True) as made:
            for name in HOSPITALS:
                made.coterie("site", "check", made.kits / name)
                made.coterie(
                    "site", "approve", made.kits / name, "--yes", plan_hash(made.plan)
                )
            made.coterie("run", made.plan, "--out", folder / "here", "--no-report")
            say(f"in one process: done after {time.perf_counter() - begun:.0f} s")
            shown = made.coterie("submit", made.plan, "--out", folder / "there")
            say(shown.stdout)
            differ = differences(folder / "here", folder / "there", *made.kept)
        labels = [m.label for m in read_plan(made.plan).experiment.methods]
        assert not differ, f"these files differ: {', '.join(differ)}"
        say(f"{', '.join(labels)}: bit for bit the numbers of one process")
        say(f"done after {time.perf_counter() - begun:.0f} s")
    finally:
        if keep:
            say(f"kept: {folder} (plan.toml, kits/, here/ and there/)")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    demo(keep="--keep" in sys.argv[1:] or bool(os.environ.get("KEEP")))
