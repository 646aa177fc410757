"""An attack: is one patient among a site's rows? Who knows all others averages what evaluations say of models close to each other."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import torch
from torch import nn

import coterie as ct
from coterie.base.privacy import noise_multiplier
from coterie.compute.cohort import Shard
from coterie.compute.metrics import evaluate
from coterie.compute.workspace import Workspace
from coterie.contract.wire import Ask, Context
from coterie.sites.allowed import Allowed, RefusedError
from coterie.sites.ledger import Account, Place, Told
from coterie.sites.price import squared_mu
from coterie.sites.secret_noise import SparingVeil
from coterie.sites.settings import SiteSettings, most_mu

OTHERS, PLANNED, TRIES = 30, 3, 24
"""Rows that are known, evaluations that the noise is made for, and evaluations that are tried."""


def rows_with(patient):
    """Rows on which the model below has loss 0 but for the patient, on whom it has more than is ever told."""
    inputs, labels = -torch.ones(OTHERS, 1), torch.zeros(OTHERS, dtype=torch.long)
    labels[0], inputs[0] = 1, 1.0  # both classes are there
    if patient:
        inputs[1] = 1.0
    return inputs * 40, labels


def guesses(folder, patients, epsilon, delta):
    """Whether each patient is there and is thought to be, and how many evaluations were answered about each."""
    rng = random.Random(0)
    found, answered = [], []
    for number in range(patients):
        there = rng.random() < 0.5
        told = _tell(folder / str(number), there, number, epsilon, delta)
        # Halfway between the mean losses without and with the patient.
        found.append((there, sum(told) / len(told) > 5 / OTHERS / 2))
        answered.append(len(told))
    return found, answered


def _tell(folder, there, number, epsilon, delta):
    """What a site with this patient, or without, tells of as many models as its account allows."""
    folder.mkdir(parents=True)
    settings = SiteSettings(
        data="data.csv", log=str(folder / "log"), epsilon=epsilon, delta=delta
    )
    clients = ct.data.from_tensors({"site": {"train": rows_with(there)}})
    workspace = Workspace(nn.Linear(1, 1, bias=False), "binary", clients[0])
    multiplier = noise_multiplier(epsilon, delta, PLANNED)
    key = random.Random(f"{number}").randbytes(32)
    workspace.veil = _Unclamped(key, multiplier, ("loss",))
    allowed = Allowed(
        ct.FedAvg(),
        0,
        10,
        (),
        private=True,
        tell=("loss",),
        metric_noise=multiplier,
    )
    account = Account(folder / "log")
    account.most_mu = most_mu(settings, OTHERS)
    shard, told = Shard(clients, workspace), []
    for turn in range(TRIES):
        payload = {"x": torch.tensor([1 + turn * 1e-6]), "part": "train", "metrics": ()}
        ask = Ask(("site",), evaluate.name, payload, Context(0, 10, 1, 1))
        (block,) = shard.answer(ask).blocks
        cost = squared_mu(allowed, evaluate, ask.arguments, workspace.layout)
        try:
            place = Place("plan", "fedavg-0", evaluate.name, 10, "train")
            account.settle(place, {str(turn): "reply"}, Told(1, cost))
        except RefusedError:
            break
        told.append(float(block.values["loss"]))
    return told


class _Unclamped(SparingVeil):
    """The same noise on losses that are not kept above 0, which helps who averages."""

    def metric(self, name, value, reach, model):
        shift = 1e6 * reach
        return super().metric(name, value + shift, reach, model) - shift


def balanced_accuracy_bound(found):
    """The lower 95 % bound of the balanced accuracy of guesses."""
    rates, variance = [], 0.0
    for there in (True, False):
        right = [guess == is_there for is_there, guess in found if is_there == there]
        rate = sum(right) / len(right)
        rates.append(rate)
        variance += rate * (1 - rate) / len(right) / 4
    return sum(rates) / 2 - NormalDist().inv_cdf(0.95) * math.sqrt(variance)
