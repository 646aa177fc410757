"""Methods by name; each file is one paper."""

from coterie.algorithms.centralised import Centralised
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.local import Local
from coterie.algorithms.maxfl import MaxFL
from coterie.algorithms.meritfed import MeritFed

__all__ = ["ALGORITHMS", "Centralised", "FedAvg", "FedProx", "Local", "MaxFL", "MeritFed"]

ALGORITHMS: dict[str, type] = {
    "local": Local,
    "centralised": Centralised,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "meritfed": MeritFed,
    "maxfl": MaxFL,
}
"""The registered methods, in the order in which they are shown."""
