"""The work with Flower's simulation (Ray), as in its PyTorch quick start: a `ClientApp` with `train`, the strategy `FedAvg`.

An actor loads the rows once, as float tensors; a call builds the model, loads the weights it was sent, trains with a shuffling
`DataLoader` that takes whole batches by one index, and returns its state dict and its number of rows. One thread per actor,
`--workers` actors; Flower's own default gives two cores to a client, which on two cores is one client at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from work import Clock, Work, build, fill, main


class Given(FedAvg):
    """FedAvg with given participants."""

    def __init__(self, nodes: Sequence[int], work: Work) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.nodes, self.participants = nodes, work.participants

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per participant."""
        record = RecordDict({"arrays": arrays, "config": config})
        chosen = [self.nodes[i] for i in self.participants[server_round - 1]]
        return [
            Message(content=record, message_type="train", dst_node_id=node)
            for node in chosen
        ]


def run(work: Work, clock: Clock) -> Sequence[Any]:
    """Train, and return the final layers."""
    found: dict[str, Any] = {}
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        model = fill(build(work, nn.Sequential, nn), work, torch)
        while len(list(grid.get_node_ids())) < len(
            work.labels
        ):  # nodes register while the server starts
            time.sleep(0.05)
        asked = [
            Message(RecordDict(), message_type="query", dst_node_id=node)
            for node in grid.get_node_ids()
        ]
        nodes = {
            int(r.content["metrics"]["partition"]): r.metadata.src_node_id
            for r in grid.send_and_receive(asked)
        }
        result = Given([nodes[i] for i in range(len(nodes))], work).start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=work.rounds,
            train_config=ConfigRecord({"work": str(work.path.resolve())}),
            evaluate_fn=lambda number, _: clock.round() if number else clock.start(),
        )
        found.update(result.arrays.to_torch_state_dict())

    run_simulation(
        server,
        app,
        num_supernodes=len(work.labels),
        backend_config={
            "init_args": {
                "address": "local",
                "num_cpus": work.workers,
                "_temp_dir": str(work.path.parent.resolve()),
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    return list(found.values())


if __name__ == "__main__":
    main(
        "Flower simulation",
        run,
        ["flwr", "ray", "torch", "numpy"],
        in_process=lambda work: False,
    )
