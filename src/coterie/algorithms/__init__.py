"""Methods by name; each file is one paper."""

from coterie.algorithms.centralised import Centralised
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedfomo import FedFomo
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.isfl import ISFL, LipschitzSampler
from coterie.algorithms.local import Local
from coterie.algorithms.maxfl import MaxFL
from coterie.algorithms.meritfed import MeritFed
from coterie.algorithms.moon import MOON
from coterie.algorithms.mwfed import MWFed
from coterie.algorithms.perfedavg import PerFedAvg
from coterie.algorithms.qffl import QFFL
from coterie.algorithms.scaffold import Scaffold
from coterie.algorithms.varsel import VaRSeL

__all__ = [
    "ALGORITHMS",
    "ISFL",
    "MOON",
    "QFFL",
    "SAMPLERS",
    "Centralised",
    "FedAvg",
    "FedFomo",
    "FedProx",
    "LipschitzSampler",
    "Local",
    "MWFed",
    "MaxFL",
    "MeritFed",
    "PerFedAvg",
    "Scaffold",
    "VaRSeL",
]

ALGORITHMS: dict[str, type] = {
    "local": Local,
    "centralised": Centralised,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "meritfed": MeritFed,
    "varsel": VaRSeL,
    "maxfl": MaxFL,
    "isfl": ISFL,
    "scaffold": Scaffold,
    "moon": MOON,
    "qffl": QFFL,
    "mwfed": MWFed,
    "perfedavg": PerFedAvg,
    "fedfomo": FedFomo,
}
"""The registered methods, in the order in which they are shown."""

SAMPLERS: dict[str, type] = {"lipschitz": LipschitzSampler}
"""What `[local] sampler = {name = ...}` can name."""
