"""Another site, or a stranger, asks a site: it learns nothing, changes nothing, and the site's log names it."""

from __future__ import annotations

import json

import pytest
from hospital import plan_file, settings_file

from coterie.contract.encoding import decode, encode


@pytest.fixture
def site(tmp_path):
    from coterie.sites.approval import approve
    from coterie.sites.site import Site

    settings = settings_file(tmp_path)
    approve(plan_file(tmp_path), settings, unsigned=True)
    made = Site("hungary", settings, tmp_path / "kept")
    yield made
    made.close()


def logged(site):
    """The lines about calls."""
    lines = [json.loads(line) for line in site._log.path.read_text().splitlines()]
    return [line for line in lines if "caller" in line]


@pytest.mark.promise("only the server asks")
def test_another_site_is_refused_and_named_in_the_log(site):
    ask = encode({"do": "open", "seed": 0, "plan": site._hash, "run": "r", "serial": 1})
    reply = decode(site.handle(ask, "switzerland"))
    assert reply["failed"] == "only the server may ask"
    assert "rows" not in reply
    assert (logged(site)[-1]["caller"], logged(site)[-1]["outcome"]) == (
        "switzerland",
        "refused",
    )
    assert site._child is None  # nothing was read


@pytest.mark.promise("only the server asks")
def test_another_site_cannot_lock_the_server_out(site):
    site.handle(encode({"do": "open", "serial": 2**53}), "switzerland")
    assert site._newest == -1
    reply = decode(
        site.handle(
            encode({"do": "nothing", "serial": 1, "plan": site._hash}), "server"
        )
    )
    assert "later ask" not in reply["failed"]


def test_another_site_is_not_told_whether_a_site_is_free(site):
    assert site.is_free("server")
    assert not site.is_free("switzerland")
    assert logged(site)[-1]["caller"] == "switzerland"


@pytest.mark.promise("only the server asks")
def test_whoever_calls_without_end_fills_no_disk(site, monkeypatch):
    """Each refused call was a line: two to three gigabytes a day, and on a full disk the site refused the server."""
    import coterie.sites.site

    clock = iter(range(10**9))
    monkeypatch.setattr(
        coterie.sites.site.time, "monotonic", lambda: next(clock) / 10
    )  # ten a second, for more than an hour
    message = encode({"do": "open", "serial": 1})
    for number in range(50_000):
        site.handle(message, "switzerland") if number % 2 else site.is_free(
            "switzerland"
        )
    site.handle(message, "cleveland")
    lines = [line for line in logged(site) if line["outcome"] == "refused"]
    assert len(lines) <= 6
    assert {line["caller"] for line in lines} == {"switzerland", "cleveland"}
    assert (
        sum(line["calls"] for line in lines if line["caller"] == "switzerland") > 36_000
    )
    assert (
        "later ask"
        not in decode(
            site.handle(encode({"do": "x", "serial": 1, "plan": site._hash}), "server")
        )["failed"]
    )


@pytest.mark.promise("only the server asks")
def test_a_full_disk_has_room_for_lines_about_the_server(site, monkeypatch):
    import errno
    import os

    from coterie.sites.log import Log
    from coterie.sites.site import RESERVE

    reserve, room = site._log._reserve, [0]
    assert reserve.stat().st_blocks * 512 >= RESERVE
    append = Log._append

    def full(
        log, file, values, durable
    ):  # a disk with no room but what the reserve gives back
        if RESERVE - reserve.stat().st_size <= room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] += 2**20
        append(log, file, values, durable)

    monkeypatch.setattr(Log, "_append", full)
    answer = decode(
        site.handle(encode({"do": "x", "serial": 1, "plan": site._hash}), "server")
    )
    assert "cannot write its log" not in answer["failed"]
    assert site.handle(
        encode({"do": "x", "serial": 1}), "switzerland"
    )  # it is refused, and takes nothing from the reserve
    assert reserve.stat().st_size == RESERVE - 2**20
    assert [line["caller"] for line in logged(site)] == ["server"]


@pytest.mark.promise("only the server asks")
def test_the_caller_is_the_one_that_flare_has_authenticated(site):
    api = pytest.importorskip(
        "nvflare.collab.api.context", reason="engine FLARE is not installed"
    )
    from types import SimpleNamespace

    from coterie.sites.flare.client import SiteClient

    client = SiteClient()
    client._site = site
    app = SimpleNamespace(name="hungary")
    try:
        api.set_call_context(api.Context(app, "cleveland", "hungary", None))
        assert (
            decode(client.handle(encode({"do": "open", "serial": 1})))["failed"]
            == "only the server may ask"
        )
        assert not client.is_free()
        api.set_call_context(api.Context(app, "server", "hungary", None))
        assert client.is_free()
    finally:
        api.set_call_context(None)
