"""A site's log names every request and cannot be changed unnoticed; malformed messages neither raise, nor kill, nor go unlogged."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path

import pytest
from hospital import Hospital, local, settings_file

from coterie.base.errors import InputError
from coterie.compute.tasks import local_update
from coterie.contract.encoding import decode, encode
from coterie.contract.wire import Ask, Context
from coterie.sites.log import entries


class Here:
    """The child half of a site in this process."""

    def __init__(self, rows):
        self.rows = rows

    def ask(self, message):
        from coterie.sites.child import serve_message

        reply, about = serve_message(message, self.rows)
        return reply, json.loads(json.dumps(about))

    def close(self):
        pass


@pytest.fixture
def site(tmp_path):
    from coterie.sites.site import Site

    hospital = Hospital(tmp_path).begin()
    made = Site("hungary", hospital.settings_file, tmp_path / "kept")
    made._child = Here(hospital.rows)
    made.hospital = hospital
    return made


def messages(hospital):
    """One of each kind, as bytes."""
    about = {"plan": hospital.approved.hash, "run": "run", "undo": None}
    ask = Ask(
        ("hungary",),
        local_update.name,
        {"x": hospital.x, "local": local()},
        Context(0, 1, 1, 1),
    )
    kinds = [
        {"do": "open", "seed": 0},
        {"do": "encode", "recipe": "{}"},
        {"do": "prepare", "pair": "fedavg-0"},
    ]
    kinds.append({"do": "task", "ask": ask})
    return [encode({**about, "serial": 1, **kind}) for kind in kinds]


def mutants(hospital, count):
    """Messages with bytes changed, cut, doubled and moved, headers of deep lists, and values of other types."""
    rng, plain = random.Random(0), messages(hospital)
    odd = (None, True, -1, 2**70, 1e308, "", "x" * 2000, (), ("a",) * 50, hospital.x)
    for number in range(count):
        message = rng.choice(plain)
        kind = number % 6
        if kind == 0:
            changed = bytearray(message)
            for _ in range(rng.randint(1, 8)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            yield bytes(changed)
        elif kind == 1:
            yield message[: rng.randrange(len(message))]
        elif kind == 2:
            yield message + message[rng.randrange(len(message)) :]
        elif kind == 3:
            deep = "[" * rng.randint(1, 3000)
            text = json.dumps({"__metadata__": {"coterie": deep}}).encode()
            yield len(text).to_bytes(8, "little") + text
        else:
            values = decode(message)
            key = rng.choice(list(values))
            values.pop(key) if kind == 4 else values.update({key: rng.choice(odd)})
            yield encode(
                {**values, "serial": values.get("serial", 1)}
                if rng.random() < 0.9
                else values
            )


@pytest.mark.promise("bounded messages")
def test_malformed_messages_are_refused_and_logged_and_nothing_raises(site):
    count = 600
    for message in mutants(site.hospital, count):
        site._newest = -1
        reply = decode(site.handle(message, "server"))
        assert isinstance(reply.get("failed", ""), str)
        assert len(reply.get("failed", "")) <= 300
    lines = [entry for entry in entries(site._log.path) if "caller" in entry]
    assert len(lines) == count
    assert all(line["outcome"] in ("answered", "refused", "failed") for line in lines)
    assert {line["caller"] for line in lines} == {"server"}
    assert sum(line["outcome"] != "answered" for line in lines) > count / 2


@pytest.mark.parametrize("message", [3, None, {"do": "open"}, "open"], ids=str)
def test_what_is_no_bytes_is_refused_and_logged(site, message):
    assert decode(site.handle(message, "server"))["failed"] == "no message of coterie"
    assert (
        json.loads(site._log.path.read_text().splitlines()[-1])["outcome"] == "refused"
    )


@pytest.mark.promise("bounded messages")
def test_a_message_over_the_sites_bound_is_refused_before_it_is_read(
    tmp_path, monkeypatch
):
    from coterie.sites import site as module

    hospital = Hospital(tmp_path, settings={"largest_message": 1})
    made = module.Site("hungary", hospital.settings_file, tmp_path / "kept")
    monkeypatch.setattr(module, "header", None)
    reply = decode(made.handle(bytes(2**20 + 1), "server"))
    assert (
        reply["failed"]
        == "a message of 2 MB is over the 1 MB of largest_message at its site"
    )
    entry = json.loads(made._log.path.read_text().splitlines()[-1])
    assert (entry["outcome"], entry["bytes_down"]) == ("refused", 2**20 + 1)


@pytest.mark.promise("bounded messages")
def test_a_replayed_message_is_refused(site):
    message = messages(site.hospital)[0]
    assert "failed" not in decode(site.handle(message, "server"))
    assert decode(site.handle(message, "server"))["failed"] == "a later ask came first"


def test_the_log_names_what_an_audit_needs(site):
    message = messages(site.hospital)[3]
    site.handle(message, "server")
    entry = json.loads(site._log.path.read_text().splitlines()[-1])
    assert entry["caller"] == "server"
    assert entry["plan"] == site.hospital.approved.hash
    assert (entry["what"], entry["pair"], entry["round"], entry["outcome"]) == (
        local_update.name,
        "fedavg-0",
        1,
        "answered",
    )
    assert entry["settings"]["local"]["fields"]["batch_size"] == 16
    assert (entry["rows"], entry["bytes_down"]) == (32, len(message))
    assert entry["bytes_up"] > 100
    assert len(entry["payload"]) == 64


@pytest.mark.promise("an audit")
@pytest.mark.parametrize("change", ["alter", "remove", "insert", "swap"])
def test_a_changed_log_is_noticed_and_the_line_named(tmp_path, change):
    from coterie.sites.log import Log, verify_log

    log = Log(tmp_path / "log.jsonl")
    for number in range(5):
        Log(log.path).write(ask=number) if number % 2 else log.write(ask=number)
    assert verify_log(log.path)[0] == 5
    lines = log.path.read_text().splitlines()
    changed = {
        "alter": [*lines[:2], lines[2].replace('"ask": 2', '"ask": 7'), *lines[3:]],
        "remove": [*lines[:2], *lines[3:]],
        "insert": [*lines[:2], lines[0], *lines[2:]],
        "swap": [*lines[:2], lines[3], lines[2], lines[4]],
    }[change]
    log.path.write_text("\n".join(changed))
    with pytest.raises(InputError, match="line 3 does not continue"):
        verify_log(log.path)


def torn(path):
    """A log of three lines, of which a power cut has left a part of the last."""
    from coterie.sites.log import Log

    log = Log(path)
    for number in range(3):
        log.write(ask=number)
    path.write_bytes(path.read_bytes()[:-20])


def test_a_line_that_a_power_cut_has_torn_is_named_and_kept_apart(tmp_path, capsys):
    from coterie.cli.main import main
    from coterie.sites.log import Log, verify_log

    path = settings_file(tmp_path).with_name("asks.jsonl")
    torn(path)
    bytes_left = len(path.read_bytes().splitlines()[2])
    said = (
        f"line 3 is torn: {bytes_left} bytes without an end, as a power cut leaves them"
    )
    for written in (0, 1, 2):  # before the site has started again, and after
        assert (
            main(["site", "log", str(path.with_name("coterie.toml")), "--check"]) == 0
        )
        out = capsys.readouterr().out
        assert said in out
        assert out.count("torn") == 1
        assert verify_log(path)[0] == (2 if not written else 3 + written)
        Log(path).write(ask=7 + written)
    kept = list(entries(path))
    assert [entry.get("ask") for entry in kept] == [0, 1, None, None, 7, 8, 9]
    assert (kept[3]["what"], kept[3]["bytes"]) == ("torn", bytes_left)


def test_a_torn_line_that_was_changed_afterwards_is_noticed(tmp_path):
    from coterie.sites.log import Log, verify_log

    path = tmp_path / "asks.jsonl"
    torn(path)
    Log(path).write(ask=3)
    assert verify_log(path)[0] == 4
    path.write_text(path.read_text().replace('"ask": 2', '"ask": 7'))
    with pytest.raises(InputError, match="line 3 does not continue"):
        verify_log(path)


@pytest.mark.parametrize("room", [0, 30])
def test_a_log_goes_on_where_a_full_disk_has_stopped_it(tmp_path, room):
    from coterie.sites.log import Log, verify_log

    log = Log(tmp_path / "asks.jsonl")
    log.write(ask=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (log.path.stat().st_size + room, before[1])
    )
    try:
        with pytest.raises(OSError, match="File too large"):
            log.write(ask=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.write(ask=2)
    assert verify_log(log.path)[0] == (3 if room else 2)
    assert [size for _, size in verify_log(log.path).torn] == [room] * bool(room)


def test_a_site_whose_log_cannot_be_written_gives_no_answer(site):
    from coterie.sites.log import Log

    site._log = Log(Path("/dev/full"))
    reply = decode(site.handle(messages(site.hospital)[3], "server"))
    assert (
        reply["failed"]
        == "its site cannot write its log (No space left on device), and refuses every request until it can"
    )
    assert "answer" not in reply
    assert "only the server" in decode(site.handle(b"", "cleveland"))["failed"]
    assert not site.is_free("cleveland")
