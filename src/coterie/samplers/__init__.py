"""Samplers: which rows a client trains on, for any method (`LocalSGD(sampler=...)`), and the methods that are FedAvg with one."""

from coterie.contract.training import SAMPLERS
from coterie.samplers.isfedavg import GradientNormSampler
from coterie.samplers.isfl import LipschitzSampler
from coterie.samplers.pj_is import ClassShareSampler
from coterie.samplers.uniform_is import UniformClassSampler

__all__ = ["SAMPLERS"]

SAMPLERS.update(
    {
        "lipschitz": LipschitzSampler,
        "uniform-classes": UniformClassSampler,
        "class-shares": ClassShareSampler,
        "gradient-norm": GradientNormSampler,
    }
)
