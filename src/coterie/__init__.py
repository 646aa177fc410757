"""coterie: federated learning among partners who are not alike.

`import coterie as ct` needs torch and numpy; each public name is imported when it is first used, so that the command answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "Attack": "core.method",
    "Centralised": "algorithms",
    "ClassShareSampler": "algorithms",
    "Client": "core.rows",
    "Clients": "core.rows",
    "Cohort": "core.cohort",
    "CoterieError": "core.errors",
    "Epochs": "core.training",
    "FedAdp": "algorithms",
    "FedAvg": "algorithms",
    "FedFomo": "algorithms",
    "FedProx": "algorithms",
    "Federation": "core.federation",
    "Filter": "core.method",
    "Gap": "core.task",
    "GeometricMedian": "algorithms",
    "Gradient": "core.task",
    "GradientNormSampler": "algorithms",
    "ISFL": "algorithms",
    "ISFedAvg": "algorithms",
    "InputError": "core.errors",
    "LipschitzSampler": "algorithms",
    "Local": "algorithms",
    "LocalSGD": "core.training",
    "MOON": "algorithms",
    "MWFed": "algorithms",
    "MaxFL": "algorithms",
    "Median": "algorithms",
    "MeritFed": "algorithms",
    "Method": "core.method",
    "MultiKrum": "algorithms",
    "OCS": "algorithms",
    "Part": "core.rows",
    "PerClient": "core.wire",
    "PerFedAvg": "algorithms",
    "PjIS": "algorithms",
    "QFFL": "algorithms",
    "Quadratic": "core.training",
    "Rng": "core.rng",
    "RunError": "core.errors",
    "SGDFull": "algorithms",
    "SGDIdeal": "algorithms",
    "Sampler": "core.method",
    "Scaffold": "algorithms",
    "Schedule": "core.training",
    "SelectiveLearning": "algorithms",
    "Skew": "algorithms",
    "Steps": "core.training",
    "TAWT": "algorithms",
    "TargetOnly": "algorithms",
    "TrimmedMean": "algorithms",
    "UniformClassSampler": "algorithms",
    "UniformIS": "algorithms",
    "Update": "core.task",
    "VaRSeL": "algorithms",
    "fit": "run.fit",
    "move": "core.vector",
    "personalise": "run.fit",
    "task": "core.task",
    "wire_type": "core.wire",
}
_MODULES = {
    "attacks": "attacks",
    "data": "data",
    "metrics": "core.metrics",
    "models": "models",
    "report": "report",
    "solvers": "solvers",
}

__all__ = [
    "ISFL",
    "MOON",
    "OCS",
    "QFFL",
    "TAWT",
    "Attack",
    "Centralised",
    "ClassShareSampler",
    "Client",
    "Clients",
    "Cohort",
    "CoterieError",
    "Epochs",
    "FedAdp",
    "FedAvg",
    "FedFomo",
    "FedProx",
    "Federation",
    "Filter",
    "Gap",
    "GeometricMedian",
    "Gradient",
    "GradientNormSampler",
    "ISFedAvg",
    "InputError",
    "LipschitzSampler",
    "Local",
    "LocalSGD",
    "MWFed",
    "MaxFL",
    "Median",
    "MeritFed",
    "Method",
    "MultiKrum",
    "Part",
    "PerClient",
    "PerFedAvg",
    "PjIS",
    "Quadratic",
    "Rng",
    "RunError",
    "SGDFull",
    "SGDIdeal",
    "Sampler",
    "Scaffold",
    "Schedule",
    "SelectiveLearning",
    "Skew",
    "Steps",
    "TargetOnly",
    "TrimmedMean",
    "UniformClassSampler",
    "UniformIS",
    "Update",
    "VaRSeL",
    "__version__",
    "attacks",
    "data",
    "fit",
    "metrics",
    "models",
    "move",
    "personalise",
    "report",
    "solvers",
    "task",
    "wire_type",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"coterie.{_MODULES[name]}")
    if name in _NAMES:
        module = importlib.import_module(f"coterie.{_NAMES[name]}")
        value = getattr(module, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from coterie import attacks, data, models, report, solvers
    from coterie.algorithms import (
        ISFL,
        MOON,
        OCS,
        QFFL,
        TAWT,
        Centralised,
        ClassShareSampler,
        FedAdp,
        FedAvg,
        FedFomo,
        FedProx,
        GeometricMedian,
        GradientNormSampler,
        ISFedAvg,
        LipschitzSampler,
        Local,
        MaxFL,
        Median,
        MeritFed,
        MultiKrum,
        MWFed,
        PerFedAvg,
        PjIS,
        Scaffold,
        SelectiveLearning,
        SGDFull,
        SGDIdeal,
        Skew,
        TargetOnly,
        TrimmedMean,
        UniformClassSampler,
        UniformIS,
    )
    from coterie.core import metrics
    from coterie.core.cohort import Cohort
    from coterie.core.errors import CoterieError, InputError, RunError
    from coterie.core.federation import Federation
    from coterie.core.method import Attack, Filter, Method, Sampler
    from coterie.core.rng import Rng
    from coterie.core.rows import Client, Clients, Part
    from coterie.core.task import Gap, Gradient, Update, task
    from coterie.core.training import Epochs, LocalSGD, Quadratic, Schedule, Steps
    from coterie.core.vector import move
    from coterie.core.wire import PerClient, wire_type
    from coterie.run.fit import fit, personalise
