r"""Uniform-IS: FedAvg whose clients sample their rows evenly over the classes that they have.

Paper: a comparator of Z. Zhu, Y. Shi, P. Fan, C. Peng, K. B. Letaief, "ISFL: Federated Learning for Non-i.i.d. Data with Local
Importance Sampling", 2022, Section V.

Optimises: the mean over clients, by size, of the loss with equally frequent classes.
Sends: d + 1 up, d down (local_update).
Memory: none.
Use: some classes are rare, and every class should count alike.
Avoid: probabilities must be calibrated to how frequent the classes are.
Formula: q_i = \frac{1}{C}, \quad x \leftarrow x + \eta \sum_{k \in S} \frac{n_k}{\sum_{j \in S} n_j} \, \delta_k

Symbols: q = 1 / C over the C classes that are present at a client; rows are drawn with replacement, a class by q and then one of
its rows, and their losses are not weighted back, so that a client trains as if its classes were equally frequent.

Nothing is asked of clients, and no class share leaves a client.

Laws:
- FedAvg with its sampler, bit by bit:
  tests/methods/test_uniform_is.py::test_it_is_fedavg_with_its_sampler_bit_by_bit
- with equal class counts it is p_j-IS:
  tests/methods/test_uniform_is.py::test_uniform_is_and_pj_is_with_equal_class_counts_everywhere_are_one
- sampled frequencies are q:
  tests/methods/test_uniform_is.py::test_rows_come_as_often_as_they_should
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.compute.cohort import Cohort
from coterie.config.schema import options, wire_type
from coterie.samplers.weighted import Preset, Weighted, number_of_classes


@wire_type
@options
class UniformClassSampler(Weighted):
    """Rows evenly over the classes of a client: q = 1 / C over the C classes that it has. Nothing is asked of clients.

    >>> import coterie as ct
    >>> import torch
    >>> clients = ct.data.from_tensors([(torch.ones(100, 1), torch.tensor([0] * 90 + [1] * 10))])
    >>> local = ct.LocalSGD(lr=0.2, batch_size=100, steps=ct.Steps(50), sampler=ct.UniformClassSampler())
    >>> run = ct.fit(ct.FedProx(local=local, mu=0.001), clients, ct.models.Logistic(), rounds=3)
    >>> round(float(run.x.sum().sigmoid()), 1)  # the risk of class 1, which a tenth of the rows have
    0.5
    """

    def shares(self, cohort: Cohort, client: int) -> Tensor:
        """Equal shares."""
        classes = number_of_classes(cohort)
        return torch.full((classes,), 1 / classes, dtype=torch.float64)


@options
class UniformIS(Preset):
    """Average by size what clients learn from rows that are sampled evenly over their classes.

    >>> import coterie as ct, torch
    >>> y = torch.tensor([0] * 90 + [1] * 10)  # the same inputs for both classes
    >>> clients = ct.data.from_tensors([(torch.ones(100, 1), y)])
    >>> local = ct.LocalSGD(lr=0.2, batch_size=100, steps=ct.Steps(50))
    >>> found = [ct.fit(m, clients, ct.models.Logistic(), 3).x.sum() for m in (ct.FedAvg(local), ct.UniformIS(local))]
    >>> [round(float(x.sigmoid()), 1) for x in found]  # probability of class 1
    [0.1, 0.5]
    """

    @property
    def sampler(self) -> UniformClassSampler:
        """Chooses the rows."""
        return UniformClassSampler(self.sample_ratio)
