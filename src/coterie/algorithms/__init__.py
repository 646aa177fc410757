"""Methods by name; each file is one paper."""

from typing import Any

from coterie.algorithms.centralised import Centralised
from coterie.algorithms.fedadp import FedAdp
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedfomo import FedFomo
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.isfedavg import GradientNormSampler, ISFedAvg
from coterie.algorithms.isfl import ISFL, LipschitzSampler
from coterie.algorithms.local import Local
from coterie.algorithms.maxfl import MaxFL
from coterie.algorithms.meritfed import MeritFed
from coterie.algorithms.moon import MOON
from coterie.algorithms.mwfed import MWFed
from coterie.algorithms.ocs import OCS
from coterie.algorithms.perfedavg import PerFedAvg
from coterie.algorithms.pj_is import ClassShareSampler, PjIS
from coterie.algorithms.qffl import QFFL
from coterie.algorithms.robust import GeometricMedian, Median, MultiKrum, TrimmedMean
from coterie.algorithms.scaffold import Scaffold
from coterie.algorithms.selective import SelectiveLearning
from coterie.algorithms.sgd import SGDFull, SGDIdeal, TargetOnly
from coterie.algorithms.skew import Skew
from coterie.algorithms.tawt import TAWT
from coterie.algorithms.uniform_is import UniformClassSampler, UniformIS
from coterie.algorithms.varsel import VaRSeL
from coterie.core.method import Method, Sampler

__all__ = [
    "ALGORITHMS",
    "ISFL",
    "MOON",
    "OCS",
    "QFFL",
    "SAMPLERS",
    "TAWT",
    "Centralised",
    "ClassShareSampler",
    "FedAdp",
    "FedAvg",
    "FedFomo",
    "FedProx",
    "GeometricMedian",
    "GradientNormSampler",
    "ISFedAvg",
    "LipschitzSampler",
    "Local",
    "MWFed",
    "MaxFL",
    "Median",
    "MeritFed",
    "MultiKrum",
    "PerFedAvg",
    "PjIS",
    "SGDFull",
    "SGDIdeal",
    "Scaffold",
    "SelectiveLearning",
    "Skew",
    "TargetOnly",
    "TrimmedMean",
    "UniformClassSampler",
    "UniformIS",
    "VaRSeL",
]

ALGORITHMS: dict[str, type[Method[Any]]] = {
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
    "fedadp": FedAdp,
    "tawt": TAWT,
    "skew": Skew,
    "selective": SelectiveLearning,
    "ocs": OCS,
    "uniform-is": UniformIS,
    "pj-is": PjIS,
    "isfedavg": ISFedAvg,
    "sgd-full": SGDFull,
    "sgd-ideal": SGDIdeal,
    "target-only": TargetOnly,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "multi-krum": MultiKrum,
}
"""The registered methods, in the order in which they are shown."""

SAMPLERS: dict[str, type[Sampler]] = {
    "lipschitz": LipschitzSampler,
    "uniform-classes": UniformClassSampler,
    "class-shares": ClassShareSampler,
    "gradient-norm": GradientNormSampler,
}
"""What `[local] sampler = {name = ...}` can name."""
