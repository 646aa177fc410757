"""One by one: an engine that asks one client at a time, so that a machine holds the work of one client only."""

from torch import nn

import coterie as ct
from coterie.base.loss import RowLoss
from coterie.contract.wire import Answer, Ask
from coterie.engines.inprocess import InProcessEngine


@ct.options
class OneByOne(ct.EngineSpec):
    """Ask one client at a time, in this process."""

    def open(
        self, clients: ct.Clients, model: nn.Module, loss: str | RowLoss
    ) -> "OneByOneEngine":
        """Return an engine for these clients."""
        return OneByOneEngine(clients, model, loss=loss)


class OneByOneEngine(InProcessEngine):
    """The engine of one process, which is asked about one client after the other."""

    def ask(self, ask: Ask) -> Answer:
        """Run the task at one client after the other."""
        return Answer.join(
            super(OneByOneEngine, self).ask(ask.to((name,))) for name in ask.names
        )
