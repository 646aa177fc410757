"""The settings of a run that are the same for every method and engine."""

from __future__ import annotations

from typing import Annotated, Any

from coterie.base.clients import Clients
from coterie.base.errors import cut, require
from coterie.base.loss import RowLoss
from coterie.base.metric_names import LOSSES, short_names
from coterie.base.modules import load_object
from coterie.compute.metrics import DEFAULT_METRICS, find_metrics
from coterie.config.hooks import check_object
from coterie.config.rules import COUNT, POSITIVE, SIZE, TEXT, Rule, list_of, optional
from coterie.config.schema import Flag, InFiles, options
from coterie.run.callbacks import Callback

__all__ = ["MOST_ROUNDS", "PATTERNS", "ROUNDS", "Appeal", "RunSettings"]

MOST_ROUNDS = 1_000_000
ROUNDS = Rule(lambda v: COUNT.test(v) and v <= MOST_ROUNDS, f"an int >= 0, at most {MOST_ROUNDS:,}")


@options
class Appeal:
    """Settings of `[run] appeal`, for methods with one model for all clients.

    A run is then seen as MaxFL sees it: it measures how far the model appeals to clients, and clients to which it does not may leave.
    Learning rate and batch size of the warm-up are those of each method's local training.

    Source: Y. J. Cho et al., "Maximizing Global Model Appeal in Federated Learning", 2022, Section 3 ("Appeal-based Flexible Client
    Participation") and Section 5.

    Attributes:
        warmup_steps: local steps from the initial model to a client's own, with which it compares.
        leave: only clients to which the model appeals are drawn (F_k(x) < rho_k on training rows), anew in every round; a round in
            which none stays is skipped.
        mandatory_rounds: rounds in which all clients may be drawn, with `leave` (10 of 200 in Tables 1 and 2).
    """

    warmup_steps: Annotated[int, SIZE] = 100
    leave: bool = False
    mandatory_rounds: Annotated[int, COUNT] = 10


_LOSS = Rule(
    lambda v: callable(v) or v in LOSSES or (isinstance(v, str) and ".py:" in v),
    f"{' | '.join(LOSSES)} or FILE.py:FUNCTION",
    LOSSES,
)
_METRICS = Rule(
    lambda v: list_of(TEXT, "", empty=True).test(v) and _are_names(short_names(v)),
    'a list of names, each once, such as "auc" or "FILE.py:FUNCTION"',
)
PATTERNS = list_of(TEXT, "a list of patterns", empty=True)
_APPEAL = Rule(lambda v: isinstance(v, Appeal), "a table such as { leave = true }")
_CALLBACKS = Rule(
    lambda v: (
        isinstance(v, tuple) and all(isinstance(x, Callback) or (callable(x) and not isinstance(x, type)) for x in v)
    ),
    "a list of callbacks, or of functions of a round's number",
)


def _are_names(names: tuple[str, ...]) -> bool:
    return all(map(str.isidentifier, names)) and len(set(names)) == len(names)


@options
class RunSettings:
    """Settings of a run.

    Attributes:
        clients_per_round: clients drawn for each round; None: all.
        evaluate: evaluate before the first round, after every so many rounds, and after the last; None: about twenty times.
        metrics: names of metrics beside the loss; FILE.py:FUNCTION is one of your own.
        loss: auto (from model and labels), binary, classes, classes-last or squared; FILE.py:FUNCTION, or in Python a function, of
            (outputs, labels) that returns a loss per row, whose `kind` says how metrics read the outputs; or one of torch's, such as
            nn.CrossEntropyLoss().
        merge_validation: train on validation rows too where a method does not need them.
        max_norm: an update or gradient is refused if its norm exceeds this many times the median of the round (3 clients or more).
        appeal: how far the model appeals to clients, and whether those leave to whom it does not: a table of `warmup_steps`, `leave`
            and `mandatory_rounds` (`Appeal`); None: not looked at.
        strict_wire: encode and decode everything as if it were sent.
        freeze: patterns of the modules and parameters that stay as they are, such as "0.*"; statistics of batch norm belong to them.
            In files it stands in [model].
        callbacks: each a `Callback`, such as EarlyStopping(patience=3), or a function that is called with the number of each complete
            round, and with 0 at the start.
        label: what callbacks call the run; empty: its method's class.
        resume: go on from the checkpoint, if there is one.
    """

    clients_per_round: Annotated[int | None, optional(SIZE, "all clients"), Flag(metavar="M")] = None
    evaluate: Annotated[int | None, optional(SIZE, "about twenty evaluations")] = None
    metrics: Annotated[tuple[str, ...], _METRICS, Flag(metavar="A,B")] = DEFAULT_METRICS
    loss: Annotated[str | RowLoss, _LOSS, Flag(metavar="NAME")] = "auto"
    merge_validation: bool = True
    max_norm: Annotated[float, POSITIVE] = 100.0
    appeal: Annotated[Appeal | None, optional(_APPEAL)] = None
    strict_wire: Annotated[bool, InFiles(said=False)] = False
    freeze: Annotated[tuple[str, ...], PATTERNS, InFiles(said=False)] = ()
    callbacks: Annotated[tuple[Any, ...], _CALLBACKS, InFiles(said=False)] = ()
    label: Annotated[str, InFiles(said=False)] = ""
    resume: Annotated[bool, InFiles(said=False)] = False

    def row_loss(self, clients: Clients) -> str | RowLoss:
        """The loss on these clients: that of a file is loaded. Raises `InputError` for a file that lacks it."""
        if isinstance(self.loss, str) and ".py:" in self.loss:
            loaded: RowLoss = load_object(self.loss)
            require(callable(loaded), f"{self.loss} must be a function (outputs, labels); got {cut(loaded)}")
            return loaded
        return "binary" if self.loss == "auto" and clients.multi_hot else self.loss

    def check(self, rounds: int, seed: int, count: int) -> None:
        """Raise `InputError` for what cannot be run with `count` clients."""
        require(type(seed) is int and seed >= 0, f"seed must be an int >= 0; got {cut(seed)}")
        require(ROUNDS.test(rounds), f"rounds must be {ROUNDS.allowed}; got {cut(rounds)}")
        m = self.per_round(count)
        require(m <= count, f"clients_per_round must be between 1 and {count} (clients); got {m!r}")
        find_metrics(self.metrics)
        for one in self.callbacks:
            if isinstance(one, Callback):
                check_object(one, Callback)

    def every(self, rounds: int) -> int:
        """Rounds between evaluations, of `rounds`."""
        return max(1, rounds // 20) if self.evaluate is None else self.evaluate

    def per_round(self, count: int) -> int:
        """Clients in a round, of `count`."""
        return count if self.clients_per_round is None else self.clients_per_round
