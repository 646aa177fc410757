"""Sums behind masks at sites: the mean of one process bit for bit, noise under the sites' keys, and a server that lies."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip(
    "cryptography",
    reason="secure sums need cryptography: pip install 'coterie[secure]'",
)

from hospital import plan_file
from three_sites import ThreeSites

from certificates import Authority
from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of
from coterie.compute.tasks import local_update, row_sum
from coterie.contract.encoding import decode, encode
from coterie.contract.exchange import QuorumError
from coterie.contract.federation import Federation
from coterie.contract.fixed_point import FixedPoint, NoisyGrid
from coterie.contract.wire import Ask, Context, PerClient
from coterie.sites.approval import fits
from coterie.sites.child import serve_message
from coterie.sites.ledger import Account
from coterie.sites.log import entries
from coterie.sites.plan import read_plan
from coterie.sites.plan_words import in_words, model_of
from coterie.sites.rows import SiteRows
from coterie.sites.sum_messages import pack, unpack

NAMES = ("cleveland", "hungary", "long-beach", "switzerland")
STEPS = ("begin", "deal", "mask", "agree", "reveal")
FEDAVG = [{"name": "fedavg"}]
DELTA, ROUNDS = 1e-4, 5
BOUNDS = {
    "age": [20, 90],
    "sex": [0, 1],
    "trestbps": [80, 220],
    "chol": [0, 610],
    "fbs": [0, 1],
    "thalach": [60, 220],
    "exang": [0, 1],
    "oldpeak": [-3, 7],
}
NOISY = {
    "privacy": {"epsilon": 1.0, "delta": DELTA},
    "data": {"bounds": BOUNDS},
    "local": {"steps": 1, "batch_size": "all"},
    "deploy": {"runs": 2},
}


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("authority") / "ca")
    return {name: authority.kit(name) for name in NAMES}


class Sums(ThreeSites):
    """Four sites with kits of one authority; a test may lose or change what the server says to a site in a step."""

    def __init__(self, folder, kits, threshold=3, **more):
        super().__init__(folder, FEDAVG, NAMES, secure={"threshold": threshold}, **more)
        self.kits = kits
        self.lost, self.steps, self.garbled = {}, [], {}
        for name, rows in self.sites.items():
            rows.identity = kits[name]
            if "privacy" in more:
                rows.settings = replace(rows.settings, epsilon=1.0, delta=DELTA)

    def call(self, name, message, timeout):
        values = decode(message)
        if values["do"] == "sum":
            self.steps.append((name, values["step"]))
            if values["step"] in self.lost.get(name, ()):
                raise ConnectionError("it is gone")
        reply = serve_message(message, self.sites[name])[0]
        if name == "hungary" and values.get("step") in self.garbled:
            return encode({**decode(reply), **self.garbled[values["step"]]})
        return reply

    def restart(self, name):
        """Start a site's process anew, with the model that it had."""
        old = self.sites[name]
        self.sites[name] = SiteRows(name, old.settings, old.folder, old.approved)
        self.sites[name].identity = self.kits[name]

    def mean(self, x, round=1, attempt=0, names=NAMES):
        place = {"round": round, "attempt": attempt}
        secure = self.experiment.run.secure
        view = Federation(self.engine, names, 0, secure=secure, **place)
        method = self.experiment.build_method(self.experiment.methods[0])
        return view.average(names, local_update, x=x, local=method.local)


def begun(folder, kits, **more):
    sums = Sums(folder, kits, **more)
    sums.open()
    sums.begin()
    return sums


def mu_of(sums, name):
    return Account(Path(sums.sites[name].settings.log)).mu


@pytest.mark.in_turn(but="gone1")
@pytest.mark.promise("secure sums")
@pytest.mark.parametrize("gone", [{}, {"long-beach": ("mask",)}, {"hungary": STEPS}])
def test_the_mean_is_that_of_one_process_over_the_same_survivors(tmp_path, kits, gone):
    plain = ThreeSites(tmp_path / "plain", FEDAVG, NAMES)
    plain.open()
    plain.begin()
    x = plain.engine.x + 0.25
    sums = begun(tmp_path / "masked", kits)
    method = sums.experiment.build_method(sums.experiment.methods[0])
    sent = Federation(plain.engine, NAMES, 0, round=1).ask(
        NAMES, local_update, x=x, local=method.local
    )
    sums.lost = gone
    average = sums.mean(x)
    survivors = [name for name in NAMES if name not in gone]
    assert list(average.clients) == survivors
    code, sizes = FixedPoint(10.0), dict(zip(NAMES, sent.sizes.tolist(), strict=True))
    total = np.zeros(len(x) + 1, dtype=np.uint64)
    for name, delta in zip(NAMES, sent.delta, strict=True):
        if name in survivors:
            total += code.encode(delta, int(sizes[name]))
    expected, _ = code.decode(total, int(sum(sizes[name] for name in survivors)))
    assert torch.equal(average.delta, expected.to(x))
    assert average.sizes.tolist() == [sizes[name] for name in survivors]
    assert average.failed.keys() == gone.keys()


@pytest.mark.promise("secure sums")
def test_no_single_update_leaves_a_site(tmp_path, kits):
    sums = begun(tmp_path, kits)
    x = sums.engine.x
    view = Federation(sums.engine, NAMES, 0, round=1)
    method = sums.experiment.build_method(sums.experiment.methods[0])
    with pytest.raises(QuorumError, match="in sums behind masks alone"):
        view.ask(NAMES, local_update, x=x, local=method.local)
    noisy = begun(tmp_path / "noisy", kits, **NOISY)
    method = noisy.experiment.build_method(noisy.experiment.methods[0])
    view = Federation(noisy.engine, NAMES, 0, round=1)
    with pytest.raises(QuorumError, match="does not ask 'tasks:local_update'"):
        view.ask(NAMES, local_update, x=x, local=method.local)
    factors = PerClient(torch.ones(4, dtype=torch.float64))
    noise = method.local.private
    with pytest.raises(QuorumError, match="in sums behind masks alone"):
        view.ask(NAMES, row_sum, x=x, noise=noise, parties=3, factors=factors)


@pytest.mark.in_turn
@pytest.mark.promise("secure sums")
def test_the_sum_of_steps_has_noise_once_under_keys_and_costs_what_the_curious_leave(
    tmp_path, kits
):
    sums = begun(tmp_path, kits, **NOISY)
    method = sums.experiment.build_method(sums.experiment.methods[0])
    noise = method.local.private
    first = sums.mean(sums.engine.x)
    mu = math.sqrt(3 / 2) / noise.noise_multiplier
    assert [mu_of(sums, name) for name in NAMES] == pytest.approx([mu] * 4)
    # A repeat has the same bytes, for nothing; another model, or round, has other noise.
    assert torch.equal(sums.mean(sums.engine.x, attempt=1).delta, first.delta)
    assert mu_of(sums, "hungary") == pytest.approx(mu)
    again = sums.mean(sums.engine.x, round=2).delta
    assert not torch.equal(again, first.delta)
    assert mu_of(sums, "hungary") == pytest.approx(mu * math.sqrt(2))
    told = [first.delta, again]
    for number in range(3, ROUNDS + 1):
        told.append(sums.mean(sums.engine.x, round=number).delta)
    rows = sum(sums.engine.sizes("train").values())
    grid = NoisyGrid(noise, 3, len(sums.engine.x))
    deviation = 2**20 * grid.step * math.sqrt(4)
    seen = torch.stack(told).var(dim=0).mean().sqrt() * rows / method.local.lr
    # Keys are random: with 16 numbers of five rounds it leaves these bounds once in 50,000 runs.
    assert 0.65 < float(seen) / deviation < 1.4
    assert epsilon_of(mu_of(sums, "hungary"), DELTA) == pytest.approx(1.0)


@pytest.mark.promise("secure sums")
def test_a_repeat_is_masked_among_the_same_peers_and_opened_over_the_same_survivors(
    tmp_path, kits
):
    """The difference of two sums would be what one site sends, behind its own part of the noise."""
    sums = begun(tmp_path, kits, **NOISY)
    x = sums.engine.x
    sums.lost = {"switzerland": ("mask",)}
    first = sums.mean(x)
    sums.lost = {}
    for attempt, restarted in enumerate((False, True), 1):
        if restarted:
            sums.restart("hungary")
            sums.open()
            sums.begin()
        with pytest.raises(QuorumError, match="masked before among cleveland, hungary"):
            sums.mean(x, attempt=attempt, names=NAMES[:3])
        # An honest server is told, and leaves out who was not in it.
        again = sums.mean(x, attempt=attempt)
        assert torch.equal(again.delta, first.delta)
        assert "may not be added" in again.failed["switzerland"]


@pytest.mark.promise("secure sums")
def test_the_noise_of_a_sum_follows_from_the_keys_of_its_sites(tmp_path, kits):
    """Other sites with the same rows add other noise, which nobody who knows the seed of the run can foresee."""
    told = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        sums = begun(folder, kits, **NOISY)
        told.append(sums.mean(sums.engine.x).delta)
    assert not torch.isclose(*told).any()


@pytest.mark.promise("secure sums")
def test_a_sum_that_was_opened_is_opened_over_no_others(tmp_path, kits):
    sums = begun(tmp_path, kits)
    server = Server(sums, sums.engine.x)
    for survivors in (NAMES, NAMES[:3]):
        server.deal(server.begin())
        for name in NAMES:
            server.mask(name)
        told = {"survivors": list(survivors)}
        signed = {
            name: unpack(server.say(name, "agree", told)["content"])
            for name in survivors
        }
        content = {"signatures": signed}
        if survivors == NAMES:
            for name in NAMES:
                server.say(name, "reveal", content)
            continue
        for name in survivors:
            with pytest.raises(InputError, match="opened before over cleveland"):
                server.say(name, "reveal", content)


GARBAGE = (
    {"content": None},
    {"content": torch.zeros(3)},
    {"content": torch.full((4,), 255, dtype=torch.uint8)},
    {"content": pack({})},
    {"content": pack({"context": "zz", "sealed": [], "signature": 1, "seeds": "f"})},
    {"content": pack({"context": ["0"], "survivors": {}, "sealing": "00"})},
    {"words": torch.zeros(3, dtype=torch.int64)},
    {"words": torch.zeros(11), "answer": None},
    {"words": "0", "answer": "0"},
)


@pytest.mark.promise("replies as declared")
@pytest.mark.in_turn(but="mask")
@pytest.mark.parametrize("step", STEPS)
def test_what_a_site_replies_otherwise_is_its_own_failure(tmp_path, kits, step):
    """It is left out, and the others open their sum, with its integers where these had come before."""
    sums = begun(tmp_path, kits, deploy={"runs": 100})
    garbage = [g for g in GARBAGE if ("words" in g) is (step == "mask")]
    for number, garbled in enumerate(garbage, 1):
        sums.garbled = {step: garbled}
        average = sums.mean(sums.engine.x + number)
        is_in = step in ("agree", "reveal")
        assert ("hungary" in average.clients) is is_in
        assert bool(torch.isfinite(average.delta).all())


@pytest.mark.in_turn
@pytest.mark.promise("secure sums")
def test_lines_are_on_the_disk_before_integers_and_shares_leave(tmp_path, kits):
    sums = begun(tmp_path, kits)
    sums.mean(sums.engine.x)
    log = Path(sums.sites["hungary"].settings.log)
    lines = [e for e in entries(log) if e.get("what") in ("masked", "revealed")]
    assert [line["what"] for line in lines] == ["masked", "revealed"]
    assert lines[0]["peers"] == list(NAMES)
    assert lines[1]["survivors"] == list(NAMES)
    assert Account(log).agrees_with_lines()


class Server:
    """A server that says what it wants, step by step."""

    def __init__(self, sums, x, round=1):
        self.sums, self.serial = sums, 10_000
        method = sums.experiment.build_method(sums.experiment.methods[0])
        payload = {"x": x, "local": method.local}
        where = Context(0, round, 1, 77)
        self.ask = Ask(NAMES, local_update.name, payload, where)

    def say(self, name, step, content=None, **more):
        self.serial += 1
        message = {"do": "sum", "step": step, "plan": self.sums.plan, "run": "run"}
        message |= {"serial": self.serial, "undo": None, **more}
        message["content"] = pack({} if content is None else content)
        reply = decode(serve_message(encode(message), self.sums.sites[name])[0])
        if "failed" in reply:
            raise InputError(reply["failed"])
        return reply

    def begin(self, names=NAMES, weights=None, ask=None):
        weights = weights or dict.fromkeys(NAMES, 1)
        return {
            name: unpack(
                self.say(name, "begin", {"weights": weights}, ask=ask or self.ask)[
                    "content"
                ]
            )
            for name in names
        }

    def deal(self, keys, names=NAMES):
        self.dealt = {
            name: unpack(self.say(name, "deal", {"keys": keys})["content"])
            for name in names
        }

    def mask(self, name, **more):
        inbox = {
            dealer: dealt["sealed"][name]
            for dealer, dealt in self.dealt.items()
            if name != dealer
        }
        return self.say(name, "mask", {"inbox": inbox}, **more)


@pytest.mark.promise("secure sums")
def test_a_lying_server_is_refused_in_every_step(tmp_path, kits):
    sums = begun(tmp_path, kits)
    server = Server(sums, sums.engine.x)
    ask = server.ask
    heavy = {**dict.fromkeys(NAMES, 1), "hungary": 100}
    for weights, why in (
        (heavy, "97% of the weight"),
        ({"hungary": 1}, "no whole weights"),
        ({**heavy, "hungary": 2**40}, "room for less"),
        ({**heavy, "hungary": -1}, "no whole weights"),
    ):
        with pytest.raises(InputError, match=why):
            server.begin(["hungary"], weights)
    for names, why in (
        (NAMES[:2], "at least 3 clients"),
        ((*NAMES[:3], "nobody"), "among sites of the approved plan"),
        (("cleveland", "long-beach", "switzerland"), "among sites of the approved"),
        (tuple(reversed(NAMES)), "in order"),
    ):
        changed = Ask(names, ask.task, ask.payload, ask.context)
        with pytest.raises(InputError, match=why):
            server.begin(["hungary"], dict.fromkeys(names, 1), changed)
    with pytest.raises(InputError, match="no tasks:local_update in round 6"):
        Server(sums, sums.engine.x, round=6).begin(["hungary"])
    for step in STEPS[1:]:
        with pytest.raises(InputError, match="in no sum of which"):
            server.say("hungary", step)
    # Asked about other models, no two sites have signed the same.
    keys = server.begin()
    other = Server(sums, sums.engine.x + 1.0).begin(["hungary"])
    with pytest.raises(InputError, match="not signed by hungary"):
        server.deal({**keys, **other}, ["cleveland"])
    # Nor have they if one of them has another model to begin with, which no ask says.
    hungary = sums.sites["hungary"]
    state = {
        f"state/{key}": value + 1
        for key, value in hungary.shard.workspace.model.state_dict().items()
    }
    prepare = {"do": "prepare", "plan": sums.plan, "run": "run", "serial": 1}
    hungary.answer(
        {**prepare, "undo": None, "pair": "fedavg-0", "resume": False, **state}
    )
    keys = server.begin()
    with pytest.raises(InputError, match="not signed by hungary"):
        server.deal(keys, ["cleveland"])
    # Whatever fails ends the sum here.
    with pytest.raises(InputError, match="in no sum of which"):
        server.deal(keys, ["cleveland"])
    sums.begin()
    # Another model may not be sent before the sum is masked.
    server.deal(server.begin())
    sums.begin()
    with pytest.raises(InputError, match="in no sum of which"):
        server.mask("hungary")


@pytest.mark.promise("secure sums")
def test_integers_are_masked_once_and_a_share_needs_the_signatures_of_three(
    tmp_path, kits
):
    sums = begun(tmp_path, kits)
    server = Server(sums, sums.engine.x)
    server.deal(server.begin())
    words = {name: server.mask(name)["words"] for name in NAMES}
    assert len({tuple(w.tolist()) for w in words.values()}) == 4
    signed = {}
    for name in NAMES:
        told = {
            "survivors": [n for n in NAMES if name in NAMES[:2] or n != "cleveland"]
        }
        if name in NAMES[:2]:
            told = {"survivors": list(NAMES)}
        signed[name] = unpack(server.say(name, "agree", told)["content"])
    with pytest.raises(InputError, match="not signed by"):
        server.say("hungary", "reveal", {"signatures": signed})
    with pytest.raises(InputError, match="in no sum"):
        server.say("hungary", "reveal", {"signatures": signed})
    log = Path(sums.sites["hungary"].settings.log)
    assert "revealed" not in [entry.get("what") for entry in entries(log)]


@pytest.mark.in_turn
@pytest.mark.promise("secure sums")
def test_a_site_whose_rows_have_changed_masks_no_second_answer(tmp_path, kits):
    data = tmp_path / "hungary.csv"
    sums = Sums(tmp_path / "made", kits, **NOISY)
    hungary = sums.sites["hungary"]
    text = Path(hungary.settings.data).read_text().splitlines()
    data.write_text("\n".join(text) + "\n")
    hungary.settings = replace(hungary.settings, data=str(data))
    sums.open()
    sums.begin()
    first = sums.mean(sums.engine.x)
    assert first.failed == {}
    fields = text[0].split(",")
    row = text[1].split(",")
    age = fields.index("age")
    row[age] = str(float(row[age]) + 3)
    data.write_text("\n".join([text[0], ",".join(row), *text[2:]]) + "\n")
    sums.open()
    sums.begin()
    with pytest.raises(QuorumError, match=r"hungary .*masks no second answer"):
        sums.mean(sums.engine.x, attempt=1)


def test_an_approval_says_what_is_summed_and_what_that_costs(tmp_path, kits):
    sums = Sums(tmp_path, kits, **{**NOISY, "deploy": {"runs": 1}})
    hungary = sums.sites["hungary"]
    settings, approved = hungary.settings, hungary.approved
    words = "\n".join(in_words(approved, settings, "hungary"))
    assert "row_sum leaves: words" in words
    assert "the sum over 3 sites at least, among which 1 may help it" in words
    assert "local_update" not in words
    noise = approved.pairs["fedavg-0"].method.local.private
    assert f"deviation {noise.noise_multiplier / math.sqrt(3):.3g}, drawn" in words
    assert "it suffices" in words
    price = approved.price(model_of(approved, settings, "hungary"))
    assert epsilon_of(price.mu, DELTA) == pytest.approx(1.0)


def test_without_a_kit_a_site_signs_nothing_and_says_so(tmp_path, kits):
    sums = begun(tmp_path, kits)
    for rows in sums.sites.values():
        rows.identity = None
    with pytest.raises(QuorumError, match="kits of coterie deploy"):
        sums.mean(sums.engine.x)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"secure": {"threshold": 2}}, "an int >= 3"),
        (
            {"secure": {"threshold": 3}, "deploy": {"sites": list("abcde")}},
            "threshold = 4",
        ),
        ({"deploy": {"sites": ["a", "b"]}}, "at least 3 clients"),
        ({"run": {"contribution": {}}}, "shows their sums alone"),
        ({"methods": [{"name": "median"}]}, "needs the vectors"),
    ],
)
def test_plans_whose_sums_would_not_be_opened_are_refused(tmp_path, changed, why):
    usual = {"secure": {}, "methods": FEDAVG, "deploy": {"sites": list(NAMES)}}
    with pytest.raises(InputError, match=why):
        read_plan(plan_file(tmp_path, **{**usual, **changed}))


def test_a_site_takes_updates_without_noise_in_sums_as_it_takes_them_alone(
    tmp_path, kits
):
    """Two sums over other sites, at models that differ in a last bit, give an update by subtraction."""
    sums = begun(tmp_path, kits)
    hungary = sums.sites["hungary"]
    settings = type(hungary.settings)(data=hungary.settings.data, largest_layer=0)
    module = hungary.shard.workspace.model
    with pytest.raises(InputError, match="without secret noise"):
        fits(hungary.approved, settings, module)
