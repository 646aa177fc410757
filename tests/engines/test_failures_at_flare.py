"""FLARE's own handlers, with what stands around them replaced: what one site says ends nobody's job."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.collab.api.app import ServerApp
from nvflare.collab.runtime import controller
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.server_runner import ServerRunner

from coterie.sites.flare.failures import spare_the_others
from coterie.sites.flare.server import Coordinator

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

JOB = "12345678-1234-4123-8123-123456789abc"
SITE = "hungary"


def constants(*owners):
    return sorted(
        {
            value
            for owner in owners
            for name, value in vars(owner).items()
            if name.isupper()
        }
    )


@pytest.fixture
def behind_the_gate(monkeypatch):
    """The server's processes as `start` prepares them, for one test."""
    touched = {
        FederatedServer: ("process_job_failure", "_resolve_missing_client_outcome"),
        ServerRunner: ("ABORT_RETURN_CODES",),
        WFCommServer: ("_job_policy_violated",),
        controller.CollabController: (
            "_process_sync_reply",
            "_process_setup_reply",
            "broadcast_and_wait",
        ),
    }
    for owner, names in touched.items():
        for name in names:  # is put back at the end of the test
            monkeypatch.setattr(owner, name, getattr(owner, name))
    spare_the_others("server")
    spare_the_others("server-job")


class Runner:
    """Notes what FLARE's server does with the run of a job."""

    def __init__(self):
        self.ended, self.resolved = [], []

    def is_client_outcome_pending(self, job, name):
        return (job, name) not in self.resolved

    def fail_run(self, job, code, context):
        self.ended.append((job, code))

    def stop_run(self, job, context):
        self.ended.append((job, "stopped"))

    def resolve_client_outcome(self, job, name):
        self.resolved.append((job, name))


@pytest.fixture
def server():
    """FLARE's server, with one site."""
    made = FederatedServer.__new__(FederatedServer)
    clients = {"token": Client(SITE, "token")}
    made.client_manager = SimpleNamespace(
        clients=clients, is_from_authorized_client=clients.__contains__
    )
    made.engine = SimpleNamespace(
        job_runner=Runner(),
        new_context=FLContext,
        run_processes={},
        exception_run_processes={},
    )
    made.logger = SimpleNamespace(info=str, warning=str, error=str)
    return made


def report(code, token="token"):
    headers = {CellMessageHeaderKeys.TOKEN: token, MessageHeaderKey.ORIGIN: SITE}
    said = {JobFailureMsgKey.JOB_ID: JOB, JobFailureMsgKey.CODE: code}
    return Message(headers, said)


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize(
    "code", [*constants(ProcessExitCode, JobReturnCode), None, "text", ()]
)
def test_a_report_of_a_failure_is_its_sites_outcome(behind_the_gate, server, code):
    """As it was: one message of any site failed or stopped the run of all."""
    runner = server.engine.job_runner
    server.process_job_failure(report(code, token="of nobody"))
    assert runner.resolved == []
    server.process_job_failure(report(code))
    assert runner.ended == []
    assert runner.resolved == [(JOB, SITE)]


@pytest.mark.promise("closed doors")
def test_a_site_that_goes_away_is_not_waited_for_and_fails_no_run(
    behind_the_gate, server
):
    """FLARE fails a run whose server has ended well, if one site says that it does not know the job."""
    server._resolve_missing_client_outcome(Client(SITE, "token"), JOB, "gone")
    assert server.engine.job_runner.ended == []
    assert server.engine.job_runner.resolved == [(JOB, SITE)]


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("code", [*constants(ReturnCode), "made up"])
def test_no_return_code_of_a_site_ends_the_job(behind_the_gate, code):
    """FLARE calls three of them fatal."""
    runner, ended = ServerRunner.__new__(ServerRunner), []
    runner.job_id, runner.current_wf = JOB, None
    runner._report_client_active = lambda *_: None
    runner.log_info = runner.log_error = lambda *_: None
    runner.system_panic = lambda reason, fl_ctx: ended.append(reason)
    runner.wf_lock = threading.RLock()
    context, peer = FLContext(), FLContext()
    peer.set_prop(FLContextKey.CURRENT_RUN, JOB)
    context.set_peer_context(peer)
    context.put(FLContextKey.JOB_META, {}, private=True, sticky=False)
    runner._process_submission(
        Client(SITE, "token"), "task", "1", make_reply(code), context
    )
    assert ended == []


@pytest.mark.promise("closed doors")
def test_a_site_that_is_away_ends_no_job(behind_the_gate):
    """FLARE ends a job with fewer sites than began it; the quorum of a method says how many suffice."""
    away = WFCommServer()
    context = FLContext()
    context.set_prop(
        FLContextKey.JOB_META, {"min_clients": 2}, private=True, sticky=False
    )

    class Engine:
        def new_context(self):
            return self

        def __enter__(self):
            return context

        def __exit__(self, *_):
            return None

        def get_clients(self):
            return [Client(SITE, "1"), Client("cleveland", "2")]

    away._engine = Engine()
    away.get_client_disconnect_time = {SITE: 1.0}.get
    assert not away._job_policy_violated()


@pytest.mark.promise("closed doors")
@pytest.mark.parametrize("says", ["nothing", "an error", "other methods"])
def test_a_job_begins_whatever_a_site_replies(behind_the_gate, monkeypatch, says):
    """As it was: FLARE's controller ended the job where one site did not reply well to its first two messages."""
    begun, ended = [], []
    made = controller.CollabController("server")
    site = Client(SITE, "token")

    def broadcast(task, *_):
        if says == "nothing":
            return
        reply = make_reply(ReturnCode.OK if says == "other methods" else "ERROR")
        reply["collab_interface"] = {"": {"steal": []}, "handle": 7}
        answer = SimpleNamespace(client=site, result=reply)
        task.result_received_cb(client_task=answer, fl_ctx=context)

    made.communicator = SimpleNamespace(broadcast_and_wait=broadcast)
    monkeypatch.setattr(controller, "run_server", lambda app, _: begun.append(app))
    monkeypatch.setattr(controller, "prepare_for_remote_call", lambda *_: None)
    made.server_app = ServerApp(Coordinator(""))
    made.server_app.name = "server"
    made.log_info = made.log_error = lambda *_: None
    made.system_panic = lambda reason, fl_ctx: ended.append(reason)
    cell = SimpleNamespace(get_fqcn=lambda: f"server.{JOB}")
    engine = SimpleNamespace(get_clients=lambda: [site], get_cell=lambda: cell)
    context = SimpleNamespace(
        get_engine=lambda: engine, get_job_id=lambda: JOB, get_workspace=object
    )
    proxies = []
    made.server_app.setup = lambda _, server, clients, signal: proxies.extend(clients)
    made.control_flow(Signal(), context)
    assert ended == []
    assert begun == [made.server_app]
    _, arguments = proxies[0]._find_interface("handle")
    assert arguments is not None
