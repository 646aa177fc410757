"""How long the engine of a cluster waits; `ray` itself is played, so that no cluster is needed and nothing is timed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from coterie.base.errors import InputError
from coterie.engines import ray_cluster
from coterie.engines.ray import RayEngine
from coterie.engines.ray_cluster import Host


class GetTimeoutError(Exception):
    pass


class RayError(Exception):
    pass


@pytest.fixture
def played(monkeypatch):
    """A cluster that never gives a CPU; it notes how long it was waited for."""
    waits = []

    def wait(calls, timeout):
        waits.append(timeout)
        return [], calls

    def get(call, timeout=None):
        raise GetTimeoutError

    errors = SimpleNamespace(
        ActorDiedError=KeyError, GetTimeoutError=GetTimeoutError, RayError=RayError
    )
    monkeypatch.setitem(
        sys.modules,
        "ray",
        SimpleNamespace(wait=wait, get=get, exceptions=errors, kill=lambda h: None),
    )
    monkeypatch.setattr(
        Host, "start", lambda self, fresh=False: setattr(self, "placed", "a promise")
    )
    return waits


def test_a_lost_actor_is_waited_for_once(played):
    host = Host(("a",), None, (None, "auto", "auto"))
    assert "no CPU for another" in host.excuse()
    assert "no CPU for another" in host.excuse()
    assert played == [ray_cluster.STARTING, 0.0]
    host.handle = None
    host.lost()
    assert "its actor ended" in host.excuse()
    host.excuse()
    assert played == [ray_cluster.STARTING, 0.0, ray_cluster.STARTING]


def test_actors_that_do_not_start_are_a_sentence(played):
    starting = object.__new__(RayEngine)
    starting._hosts = [Host((name,), None, (None, "auto", "auto")) for name in "ab"]
    sentence = rf"0 of 2 actors have started within {ray_cluster.STARTING:g} s; .*set fewer actors"
    with pytest.raises(InputError, match=sentence):
        starting._wait_for_placement()
