"""One by one: an engine that asks one client at a time, so that a machine holds the work of one client only."""

import coterie as ct
from coterie.contract.wire import Answer
from coterie.engines.inprocess import InProcessEngine


@ct.options
class OneByOne(ct.EngineSpec):
    """Ask one client at a time, in this process.

    Attributes:
        kernel: of local training: "auto" or "loop".
    """

    kernel: str = "auto"

    decides = ("kernel",)

    def open(self, clients, model, loss):
        """Return an engine for these clients."""
        return OneByOneEngine(clients, model, loss=loss, kernel=self.kernel)


class OneByOneEngine(InProcessEngine):
    """The engine of one process, which is asked about one client after the other."""

    def ask(self, ask):
        """Run the task at one client after the other."""
        return Answer.join(
            super(OneByOneEngine, self).ask(ask.to((name,))) for name in ask.names
        )
