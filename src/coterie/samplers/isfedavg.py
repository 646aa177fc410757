r"""ISFedAvg: FedAvg whose clients sample the rows with large gradients more often.

Paper: E. Rizk, S. Vlaski, A. H. Sayed, "Federated Learning under Importance Sampling", IEEE Transactions on Signal Processing
2022; as a comparator of Z. Zhu, Y. Shi, P. Fan, C. Peng, K. B. Letaief, "ISFL: Federated Learning for Non-i.i.d. Data with Local
Importance Sampling", 2022, Section V, whose reading is built.

Optimises: the mean over clients, by size, of a loss in which rows that fit badly count more.
Sends: d + 1 up, d down (local_update).
Memory: none.
Use: rows that fit badly should count more.
Avoid: labels are noisy, or gradients are costly: each training takes one more gradient of every row.
Formula: q_{k,j} = \frac{\|\nabla \ell_j(x)\|}{\sum_i \|\nabla \ell_i(x)\|}

Symbols: x = the model that training starts from, l_j = the loss of row j of a client; row j is drawn, with replacement, with
probability ||grad l_j(x)|| / sum_i ||grad l_i(x)||, found anew whenever training starts, at x, in eval mode, over the parameters.

Differences from the paper: NO re-weighting. Rizk et al. divide a drawn row's gradient by its probability, which keeps the
gradient unbiased and lowers its variance; ISFL's comparison up-samples rows with large gradients and leaves it at that, which
minimises another objective: rows that fit badly count more. Clients are not drawn by gradients.

A client takes one more gradient of every row each time it trains, which is counted; nothing more is sent.

Laws:
- FedAvg with its sampler, bit by bit:
  tests/methods/test_isfedavg.py::test_it_is_fedavg_with_its_sampler_bit_by_bit
- rows with equal gradient norms are drawn evenly:
  tests/methods/test_isfedavg.py::test_rows_with_equal_gradients_are_drawn_as_if_by_classes_with_equal_counts
- sampled frequencies are the norms:
  tests/methods/test_isfedavg.py::test_rows_come_as_often_as_they_should
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.compute.cohort import Cohort
from coterie.config.schema import options, wire_type
from coterie.samplers.weighted import Preset, Weighted


@wire_type
@options
class GradientNormSampler(Weighted):
    """Rows by ||grad l_j(x)||, found anew whenever training starts, at the model x that it starts from, in eval mode.

    Each training takes one more gradient of every row, which is counted; nothing more is sent. ISFL's comparison leaves the gradients
    of drawn rows unweighted, so rows that fit badly count more; Rizk et al. divide them by their probabilities.

    >>> import coterie as ct
    >>> import torch
    >>> clients = ct.data.from_tensors([(torch.ones(100, 1), torch.tensor([0.0] * 90 + [1.0] * 10))], task="regression")
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1), sampler=ct.GradientNormSampler())
    >>> run = ct.fit(ct.FedProx(local=local, mu=0.1), clients, ct.models.Logistic(), rounds=1)
    >>> round(float(run.x.sum()), 1)  # label 0 is met already: only the ten rows of label 1 have a gradient, and are drawn
    1.0
    """

    def at(self, cohort: Cohort, x: Tensor) -> _ByNorm:
        """The sampler of one training from x, [d + b] or [n, d + b]."""
        starts = x.expand(len(cohort.names), -1)
        return _ByNorm(
            self.sample_ratio,
            [gradient_norms(cohort.only([i]), start) for i, start in enumerate(starts)],
        )


@dataclass(frozen=True)
class _ByNorm(Weighted):
    """With the norms of the gradients of each client's rows."""

    norms: Sequence[Tensor] = ()

    def weights(self, cohort: Cohort, client: int) -> Tensor:
        """The norms; any row where all gradients are 0."""
        norms = self.norms[client]
        if float(norms.sum()) > 0:
            return norms
        return torch.ones_like(norms)


def gradient_norms(cohort: Cohort, x: Tensor) -> Tensor:
    """||grad l_j(x)|| of every training row of the only client of a cohort, float64 [rows]."""
    norms = [
        torch.linalg.vector_norm(g, dim=1, dtype=torch.float64)
        for *_, g in cohort.sample_gradients(x[None])
    ]
    return torch.cat(norms).cpu()


@options
class ISFedAvg(Preset):
    """Average by size what clients learn from rows that are sampled by the norms of their gradients.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(100, 1), torch.tensor([0.0] * 90 + [1.0] * 10))], task="regression")
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> found = [ct.fit(m, clients, ct.models.Logistic(), 1).x.sum() for m in (ct.FedAvg(local), ct.ISFedAvg(local))]
    >>> [round(float(x), 1) for x in found]  # the label 0 is met already: only rows of label 1 have a gradient
    [0.1, 1.0]
    """

    exempt: ClassVar[Mapping[str, str]] = {"names": Preset.exempt["names"]}

    @property
    def sampler(self) -> GradientNormSampler:
        """Chooses the rows."""
        return GradientNormSampler(self.sample_ratio)
