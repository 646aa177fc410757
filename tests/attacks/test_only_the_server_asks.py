"""Another site, or a stranger, asks a site: it learns nothing, changes nothing, and the site's log names it."""

from __future__ import annotations

import json

import pytest
from hospital import plan_file, settings_file

from coterie.contract.wire import decode, encode


@pytest.fixture
def site(tmp_path):
    from coterie.sites.approval import approve
    from coterie.sites.site import Site

    settings = settings_file(tmp_path)
    approve(plan_file(tmp_path), settings)
    made = Site("hungary", settings, tmp_path / "kept")
    yield made
    made.close()


def logged(site):
    return [json.loads(line) for line in site._log.path.read_text().splitlines()]


def test_another_site_is_refused_and_named_in_the_log(site):
    ask = encode({"do": "open", "seed": 0, "plan": site._hash, "run": "r", "serial": 1})
    reply = decode(site.handle(ask, "switzerland"))
    assert reply["failed"] == "only the server may ask"
    assert "rows" not in reply
    assert (logged(site)[-1]["caller"], logged(site)[-1]["outcome"]) == ("switzerland", "refused")
    assert site._child is None  # nothing was read


def test_another_site_cannot_lock_the_server_out(site):
    site.handle(encode({"do": "open", "serial": 2**53}), "switzerland")
    assert site._newest == -1
    reply = decode(site.handle(encode({"do": "nothing", "serial": 1, "plan": site._hash}), "server"))
    assert "later ask" not in reply["failed"]


def test_another_site_is_not_told_whether_a_site_is_free(site):
    assert site.is_free("server")
    assert not site.is_free("switzerland")
    assert logged(site)[-1]["caller"] == "switzerland"


def test_the_caller_is_the_one_that_flare_has_authenticated(site):
    api = pytest.importorskip("nvflare.collab.api.context", reason="engine FLARE is not installed")
    from types import SimpleNamespace

    from coterie.sites.flare.client import SiteClient

    client = SiteClient()
    client._site = site
    app = SimpleNamespace(name="hungary")
    try:
        api.set_call_context(api.Context(app, "cleveland", "hungary", None))
        assert decode(client.handle(encode({"do": "open", "serial": 1})))["failed"] == "only the server may ask"
        assert not client.is_free()
        api.set_call_context(api.Context(app, "server", "hungary", None))
        assert client.is_free()
    finally:
        api.set_call_context(None)
