"""What a dishonest process says: the messages that a test puts into a folder, under any headers, and what it hears.

Each cell of a process has a folder of its own name, in which it first writes `doors.json`: what FLARE has registered there.
The test writes `NUMBER.ask`, a list of messages, and finds what came back in `NUMBER.heard`. Nobody else loads this.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor


def begin(folder):
    threading.Thread(target=_listen, args=(folder,), daemon=True).start()


def _listen(folder):
    try:
        cell = _first_cell()
        mine = folder / cell.my_info.fqcn
        mine.mkdir(parents=True, exist_ok=True)
        looked = 0.0
        while True:
            if time.monotonic() > looked + 2:
                _write(mine / "doors.json", json.dumps(doors_of(cell)))
                looked = time.monotonic()
            for ask in sorted(mine.glob("*.ask")):
                messages = json.loads(ask.read_text())
                with ThreadPoolExecutor(16) as threads:
                    heard = list(
                        threads.map(lambda message: say(cell, **message), messages)
                    )
                _write(ask.with_suffix(".heard"), json.dumps(heard))
                ask.unlink()
            time.sleep(0.2)
    except Exception:
        traceback.print_exc()


def _write(path, text):
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def _first_cell():
    while True:
        module = sys.modules.get("nvflare.fuel.f3.cellnet.core_cell")
        cells = (
            list(getattr(module, "CoreCell", None).ALL_CELLS.values())
            if hasattr(module, "CoreCell")
            else []
        )
        if cells and cells[0].running:
            return cells[0]
        time.sleep(0.1)


def doors_of(cell):
    """Every channel and topic that FLARE has registered in this process: of requests, streams, its agent, and people's commands."""
    agent, people = (
        getattr(cell.req_reg.reg.get(key), "cb", None)
        for key in ("admin:*", "hci_channel:*")
    )
    modules = people.__self__.cmd_reg.modules if people else []
    specs = [
        spec
        for module in modules
        for spec in module.get_spec().cmd_specs
        if spec.enabled
    ]
    streams = getattr(cell.fobs_ctx.get("cell"), "byte_receiver", None)
    return {
        "requests": [key.split(":", 1) for key in cell.req_reg.reg],
        "streams": []
        if streams is None
        else [key.split(":", 1) for key in streams.registry.reg],
        "agent": sorted(agent.__self__.processors) if agent else [],
        "commands": sorted({spec.name for spec in specs}),
    }


def say(
    cell,
    to,
    channel,
    topic,
    inside=None,
    payload=None,
    headers=None,
    via="",
    wait=5.0,
    command=False,
):
    """Send a message and return what came back: `[return code, error, payload as text]`, or [] for silence.

    A message has an order to an agent `inside`, is a `command` to a job at the server, or has a `payload`.
    """
    from nvflare.fuel.f3.cellnet.core_cell import _Waiter
    from nvflare.fuel.f3.cellnet.utils import encode_payload
    from nvflare.fuel.f3.message import Message as CellMessage
    from nvflare.private.admin_defs import Message

    me, number = cell.my_info.fqcn, str(uuid.uuid4())
    if inside is not None:
        payload = Message(topic=inside["topic"], body=inside.get("body", ""))
        for key, value in inside.get("headers", {}).items():
            payload.set_header(key, value)
    if command:
        from nvflare.apis.shareable import Shareable

        payload = Shareable()
    message = CellMessage({}, payload)
    encode_payload(message, fobs_ctx=cell.get_fobs_context())
    message.add_headers(
        {
            "cn__origin": me,
            "cn__destination": to,
            "cn__from": me,
            "cn__msg_type": "req",
            "cn__channel": channel,
            "cn__topic": topic,
            "cn__req_id": number,
            "cn__reply_expected": True,
            "cn__secure": False,
            "cn__route": [[me, time.time()]],
        }
    )
    cell._filter_outgoing_request(channel, topic, message)
    message.add_headers(headers or {})
    endpoint = cell.agents[via].endpoint if via else cell._find_endpoint(to, message)[1]
    if endpoint is None:
        return ["no way", "", ""]
    message.set_header("cn__to", endpoint.name)
    waiter = cell.waiters[number] = _Waiter([to])
    try:
        cell.communicator.send(endpoint, 1, message)
        waiter.wait(wait)
    finally:
        cell.waiters.pop(number, None)
    for reply in waiter.received_replies.values():
        body = getattr(reply.payload, "body", reply.payload)
        return [
            reply.get_header("cn__return_code"),
            reply.get_header("cn__error", ""),
            str(body)[:2000],
        ]
    return []
