"""Attacks and faults, around any federation and any method.

`Attacked` is an engine around an engine that simulates clients. What attackers compute from their own reply alone (`corrupt`) is a
filter where the reply is made, after all other filters but masks. Those who know what others send (`rewrite`) come into play where all
replies pass, before anything is checked, so that the federation refuses or believes a lie as it would on a network. Attacked are the
fields that a reply declares as `Update`, `Gradient` or `Gap`, their d parameters only: float buffers behind them stay as they are.
Statistics are those of one ask, over the rows of the clients that replied, for each of the T models of a field [n, T, d] alone.
Randomness is named by seed, round, method, field, number of the ask in its round, and client, so that neither the number of workers nor
a resumed run changes it.

The class of an attack derives from `ct.Attack` and defines some of its hooks.

Papers: N. Tupitsa, S. Horváth, M. Takáč, E. Gorbunov, "Federated Learning Can Find Friends That Are Beneficial", 2024 (IPM, ALIE,
bit flipping, random noise); Y. J. Cho et al., "Maximizing Global Model Appeal in Federated Learning", 2022 (loss inflation, flipped
labels).
"""

from coterie.attacks.attacked import Attacked, choose_attackers, with_lies
from coterie.attacks.kinds import (
    ALIE,
    IPM,
    Dropout,
    LabelFlip,
    LossInflation,
    NaN,
    Noise,
    SignFlip,
    Straggler,
)
from coterie.contract.attack import Attack

__all__ = [
    "ALIE",
    "IPM",
    "Attack",
    "Attacked",
    "Dropout",
    "LabelFlip",
    "LossInflation",
    "NaN",
    "Noise",
    "SignFlip",
    "Straggler",
    "choose_attackers",
    "with_lies",
]
