"""What must hold where all rows lie in one place."""

from __future__ import annotations

from dataclasses import replace

from short_runs import MINI, ONE, trained

from coterie import Centralised, FedAvg, Local
from coterie.config.local import Steps
from federations import (
    assert_close,
    logistic,
    subset,
)

MUTANTS = {
    "centralised": [
        ("algorithms/centralised.py", "size * len(federation.clients)", "size"),
        (
            "algorithms/centralised.py",
            "state.x + replies.delta[0]",
            "state.x + replies.delta[0] / len(federation.clients)",
        ),
    ],
}


def test_centralised_with_one_step_on_all_rows_is_fedavg():
    problem = logistic()
    assert_close(
        trained(Centralised(ONE), problem, 4).x, trained(FedAvg(ONE), problem, 4).x
    )
    two = replace(ONE, steps=Steps(2))
    assert (
        trained(Centralised(two), problem).x - trained(FedAvg(two), problem).x
    ).abs().max() > 1e-5


def test_centralised_with_one_client_is_local():
    problem = logistic()
    alone = problem.with_clients(subset(problem.clients, "d"))
    local = replace(ONE, steps=Steps(5), momentum=0.5)
    assert_close(trained(Centralised(local), alone).x, trained(Local(local), alone).x)


def test_centralised_makes_batches_of_all_participants():
    problem = logistic()
    found = trained(Centralised(MINI), problem, 2, clients_per_round=3)
    assert found.history.select("row_gradients")[-1] == (2, 2 * 3 * 4 * 3)
    assert [r.clients for r in found.asks if "own_update" in r.task] == [1, 1]
