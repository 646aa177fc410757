"""The tables of an experiment about a run and what is made of it: [run], [[methods]], [model], [report], and who attacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from coterie.base.errors import InputError, cut
from coterie.base.metric_names import DEFAULT_METRICS, LOSSES
from coterie.config.local import LocalSGD
from coterie.config.registry import CALLBACKS, METRICS, short_names
from coterie.config.rules import (
    COUNT,
    POSITIVE,
    SIZE,
    TEXT,
    Rule,
    check_object,
    is_number,
    list_of,
    one_of,
    optional,
)
from coterie.config.schema import Flag, InFiles, options, wire_type
from coterie.config.secure import SecureSums

if TYPE_CHECKING:
    from coterie.base.clients import Clients
    from coterie.base.loss import RowLoss

MOST_ROUNDS = 1_000_000
ROUNDS = Rule(
    lambda v: COUNT.test(v) and v <= MOST_ROUNDS,
    f"an int >= 0, at most {MOST_ROUNDS:,}",
)


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


@options
class Contribution:
    """Settings of `[run] contribution`: what the update of each client adds to each target, measured while a method trains.

    It is the Shapley value of the fall of the target's loss in a round, on validation rows that nothing trains on then.

    Attributes:
        every: rounds between measurements; the first round is measured.
        estimator: `exact` asks the target for the losses of all 2^n sets of clients, `gtg` for those of random orders, and
            `leave-one-out` for those of the sets without one client; default: exact up to 8 clients a round, then gtg.
        game: what a set of clients would have done without the others: `renormalised`, their weights fill the step of all; `fixed`, the
            others sent zeros.

    >>> import coterie as ct
    >>> settings = ct.RunSettings(contribution=ct.Contribution(every=1))
    >>> run = ct.fit(ct.FedAvg(), "heart-disease", rounds=1, settings=settings)
    >>> run.contributions[0]._fields, len(run.contributions)  # of each of four clients to all
    (('round', 'target', 'client', 'phi', 'error'), 16)
    """

    every: Annotated[int, SIZE] = 5
    estimator: Annotated[
        str | None,
        optional(one_of("exact", "gtg", "leave-one-out"), "by number of clients"),
    ] = None
    game: Annotated[str, one_of("renormalised", "fixed")] = "renormalised"


_DRAWN = Rule(
    lambda v: SIZE.test(v) or (isinstance(v, float) and 0 < v < 1),
    "a number of clients, or a share of them in (0, 1)",
)


def number_of_clients(drawn: float, count: int) -> int:
    """How many of `count` clients a number (int) or a share (float) of them means, at least one.

    >>> number_of_clients(3, 10), number_of_clients(0.25, 10), number_of_clients(0.001, 10)
    (3, 2, 1)
    """
    if isinstance(drawn, int):
        return drawn
    return max(1, round(drawn * count))


def _are_sampled(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(isinstance(name, str) for name in value)
    return _DRAWN.test(value)


_SAMPLED = Rule(
    _are_sampled, "a number of clients, a share of them in (0, 1), or a list of names"
)
_LOOKED_AT = Rule(
    lambda v: (
        isinstance(v, tuple)
        and bool(v)
        and len({*v}) == len(v)
        and {*v} <= {"train", "validation", "test"}
    ),
    'a list of "train", "validation" and "test"',
)


@options
class Evaluation:
    """Settings of `[run] evaluate`, where more is said than the rounds between evaluations.

    Attributes:
        every: evaluate before the first round, after every so many rounds, and after the last; default: about twenty times.
        clients: which clients are evaluated: a number of them, a share, or their names; default: all. One sample is drawn for the whole
            run, by the seed, among those that train: unseen ones are evaluated after the last round alone.
        parts: which of their rows: `train`, `validation`, `test`; default: all that there are.
        last: after the last round evaluate all rows of all clients, as the summary says them; without it the summary is of the sample,
            which is enough for `ct.fit`; a comparison gives verdicts, and needs all.

    >>> import coterie as ct
    >>> settings = ct.RunSettings(evaluate={"every": 1, "clients": 1, "parts": ["test"]})
    >>> run = ct.fit(ct.FedAvg(), "heart-disease", model="logistic", rounds=2, settings=settings)
    >>> len({row.client for row in run.history if row.metric == "loss"}), len({row["client"] for row in run.summary})
    (1, 4)
    """

    every: Annotated[int | None, optional(SIZE, "about twenty evaluations")] = None
    clients: Annotated[
        int | float | tuple[str, ...] | None, optional(_SAMPLED, "all clients")
    ] = None
    parts: Annotated[tuple[str, ...] | None, optional(_LOOKED_AT, "all rows")] = None
    last: bool = True


EVERYBODY = Evaluation()
_LOSS = Rule(
    lambda v: callable(v) or v in LOSSES or (isinstance(v, str) and ".py:" in v),
    f"{' | '.join(LOSSES)} or FILE.py:FUNCTION",
    LOSSES,
)
_METRICS = Rule(
    lambda v: _are_metrics(v) and _are_names(short_names(v)),
    'a list of names, each once, such as "auc" or "FILE.py:FUNCTION"; in Python also functions, or a dict of them by name',
)
PATTERNS = list_of(TEXT, "a list of patterns", empty=True)
_APPEAL = Rule(lambda v: isinstance(v, Appeal), "a table such as { leave = true }")
_EVALUATE = Rule(
    lambda v: isinstance(v, Evaluation) or SIZE.test(v),
    f"{SIZE.allowed} or a table such as {{ clients = .05 }}",
)
_CONTRIBUTION = Rule(
    lambda v: isinstance(v, Contribution), "a table such as { every = 5 }"
)


def _follows(value: Any) -> bool:
    return not isinstance(value, type) and (
        callable(value) or isinstance(value, CALLBACKS.base)
    )


_CALLBACKS = Rule(
    lambda v: isinstance(v, tuple) and all(map(_follows, v)),
    "a list of callbacks, or of functions of a round's number",
)


def _are_metrics(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(
            isinstance(name, str) and callable(metric) for name, metric in value.items()
        )
    return isinstance(value, tuple) and all(
        TEXT.test(metric) or callable(metric) for metric in value
    )


def _are_names(names: tuple[str, ...]) -> bool:
    return all(map(str.isidentifier, names)) and len(set(names)) == len(names)


_SECURE = Rule(lambda v: isinstance(v, SecureSums), "SecureSums(...)")


@options
class RunSettings:
    """Settings of a run.

    Attributes:
        clients_per_round: clients drawn for each round, a number or a share of them; None: all.
        evaluate: evaluate before the first round, after every so many rounds, and after the last; None: about twenty times. Or a table
            of `every`, `clients`, `parts` and `last` (`Evaluation`), such as { every = 5, clients = .05 }.
        metrics: names of metrics beside the loss; FILE.py:FUNCTION is one of your own. In Python also functions of (outputs, labels,
            kind) or (outputs, labels), or a dict of such functions by name.
        loss: auto (from model and labels), binary, classes, classes-last or squared; FILE.py:FUNCTION, or in Python a function, of
            (outputs, labels) that returns a loss per row, whose `kind` says how metrics read the outputs; or one of torch's, such as
            nn.CrossEntropyLoss().
        merge_validation: train on validation rows too where a method does not need them.
        max_norm: an update or gradient is refused if its norm exceeds this many times the median of the round (3 clients or more).
        down: how models are sent to clients: "float32" as they are, "bf16" rounded to 16 bits (`contract.down`). The server trains
            whole ones; clients train from those that they got, and those are evaluated and saved. References get whole models.
        appeal: how far the model appeals to clients, and whether those leave to whom it does not: a table of `warmup_steps`, `leave`
            and `mandatory_rounds` (`Appeal`); None: not looked at.
        contribution: measure what each client's update adds to each target: a table of `every`, `estimator` and `game`
            (`Contribution`); None: not measured.
        secure: sum updates behind masks (`SecureSums`); None: the server sees them. In files it is the table [secure].
        save_every: rounds between checkpoints, where runs are saved; the last round is always saved. None: every round at sites, and
            on one machine as often as half a second of work at most is lost. A resumed run repeats what came after the last
            checkpoint, with the same numbers.
        strict_wire: encode and decode everything as if it were sent.
        freeze: patterns of the modules and parameters that stay as they are, such as "0.*"; statistics of batch norm belong to them.
            In files it stands in [model].
        callbacks: each a `Callback`, such as EarlyStopping(patience=3), its name or FILE.py:NAME, or a function that is called with the
            number of each complete round, and with 0 at the start.
        label: what callbacks call the run; empty: its method's class.
        central: rows of no client, as the model takes them: a data set or (inputs, labels). The model for all clients is evaluated on
            them; the history has its numbers under the split `central`.
        central_personal: evaluate each client's own model on `central`, too.
        resume: go on from the checkpoint, if there is one.
        accept_change: what may have changed since the checkpoint was written: a file of your own such as "own.py", "data", or a name of
            the machine such as "torch". The run's record then says so.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> settings = ct.RunSettings(evaluate=10, metrics=("accuracy", "auc"))
    >>> run = ct.fit(ct.FedAvg(), clients, model="logistic", rounds=10, settings=settings)
    >>> sorted({row.round for row in run.history})
    [0, 10]
    """

    clients_per_round: Annotated[
        int | float | None, optional(_DRAWN, "all clients"), Flag(metavar="M")
    ] = None
    evaluate: Annotated[
        int | Evaluation | Mapping[str, Any] | None,
        optional(_EVALUATE, "about twenty evaluations"),
    ] = None
    metrics: Annotated[
        tuple[str, ...] | Sequence[Any] | Mapping[str, Any],
        _METRICS,
        Flag(metavar="A,B"),
    ] = DEFAULT_METRICS
    loss: Annotated[str | Callable[..., Any], _LOSS, Flag(metavar="NAME")] = "auto"
    merge_validation: bool = True
    max_norm: Annotated[float, POSITIVE] = 100.0
    down: Annotated[str, one_of("float32", "bf16")] = "float32"
    appeal: Annotated[Appeal | None, optional(_APPEAL)] = None
    contribution: Annotated[Contribution | None, optional(_CONTRIBUTION)] = None
    secure: Annotated[SecureSums | None, optional(_SECURE), InFiles(said=False)] = None
    save_every: Annotated[int | None, optional(SIZE, "by the clock")] = None
    strict_wire: Annotated[bool, InFiles(said=False)] = False
    freeze: Annotated[Sequence[str], PATTERNS, InFiles(said=False)] = ()
    callbacks: Annotated[Sequence[Any], _CALLBACKS, CALLBACKS, InFiles(said=False)] = ()
    label: Annotated[str, InFiles(said=False)] = ""
    central: Annotated[Any, InFiles(said=False)] = None
    central_personal: Annotated[bool, InFiles(said=False)] = False
    resume: Annotated[bool, InFiles(said=False)] = False
    accept_change: Annotated[Sequence[str], PATTERNS, InFiles(said=False)] = ()

    def row_loss(self, clients: Clients) -> str | RowLoss:
        """The loss on these clients, times the weights of their rows: that of a file is loaded. Raises `InputError` for a file that
        lacks it.
        """
        loss = self._unweighted_loss(clients)
        if clients.form_is_weighted:
            from coterie.base.loss import WeightedLoss

            return WeightedLoss(loss, clients.form)
        return loss

    def _unweighted_loss(self, clients: Clients) -> str | RowLoss:
        if isinstance(self.loss, str) and ".py:" in self.loss:
            from coterie.base.modules import load_object

            loaded: RowLoss = load_object(self.loss)
            if not callable(loaded):
                raise InputError(
                    f"{self.loss} must be a function (outputs, labels); got {cut(loaded)}"
                )
            return loaded
        form = clients.form
        if self.loss != "auto":
            if form.has_loss and isinstance(self.loss, str):
                raise InputError(
                    f"loss = {self.loss!r} is about classes or numbers, and these labels ({form.kind}) have a loss of their "
                    "own; leave it out"
                )
            return self.loss
        if form.has_loss:
            return form
        if clients.multi_hot:
            return "binary"
        return self.loss

    def check(self, rounds: int, seed: int, count: int) -> None:
        """Raise `InputError` for what cannot be run with `count` clients."""
        if not COUNT.test(seed):
            raise InputError(f"seed must be an int >= 0; got {cut(seed)}")
        if not ROUNDS.test(rounds):
            raise InputError(f"rounds must be {ROUNDS.allowed}; got {cut(rounds)}")
        if self.per_round(count) > count:
            raise InputError(
                f"clients_per_round must be between 1 and {count} (clients); got {self.per_round(count)!r}"
            )
        for name in short_names(self.metrics):
            METRICS.find(name)
        for callback in self.callbacks:
            if isinstance(callback, CALLBACKS.base):
                check_object(callback, CALLBACKS.base)

    @property
    def evaluation(self) -> Evaluation:
        """The clients that are evaluated, and on which rows."""
        if isinstance(self.evaluate, Evaluation):
            return self.evaluate
        return EVERYBODY

    def every(self, rounds: int) -> int:
        """Rounds between evaluations, of `rounds`."""
        spacing = self.evaluate
        if isinstance(spacing, Evaluation):
            spacing = spacing.every
        if isinstance(spacing, int):
            return spacing
        return max(1, rounds // 20)

    def per_round(self, count: int) -> int:
        """Clients in a round, of `count`."""
        if self.clients_per_round is None:
            return count
        return number_of_clients(self.clients_per_round, count)


MOST_SEEDS = 10_000


def _are_seeds(value: Any) -> bool:
    listed = isinstance(value, tuple) and bool(value) and all(map(COUNT.test, value))
    return listed or (type(value) is int and 1 <= value <= MOST_SEEDS)


SEEDS = Rule(
    _are_seeds, f"an int >= 1 or a list of ints >= 0, at most {MOST_SEEDS:,} seeds"
)


RIVALS = ("linear", "boosted")
_RIVALS = Rule(
    lambda v: isinstance(v, tuple) and "linear" in v and set(v) <= {*RIVALS},
    'a list of "linear" and, with it, "boosted"',
    RIVALS,
)
_TUNE = Rule(
    lambda v: isinstance(v, bool | Mapping),
    "true, false or a grid such as {'local.lr': [0.03, 0.1]}",
)
_LOCAL = Rule(lambda v: v is None or isinstance(v, LocalSGD), "None or LocalSGD(...)")
START = Rule(
    lambda v: v is None or isinstance(v, Mapping | str | os.PathLike),
    "None, a state dict or a safetensors file",
)


@options
class StudySettings(RunSettings):
    """Settings of a study, which runs several methods with several seeds.

    Attributes:
        jobs: runs at once, each in a process of its own; no result depends on it.
        yardstick: trees: show gradient-boosted trees of each client alone and of all rows beside the methods; None: nothing.
        rivals: what joining is compared with at each client: its own linear model, and boosted trees of its own where rows are tables.
        local: local training of every method that has some, in place of its own.
        init: a state dict or a safetensors file to start from.
        tune: choose settings of each method on validation rows, as --tune does: true for the usual grid, or a grid such as
            {"local.lr": [0.03, 0.1]}. The trials are in `tuning.csv` of the run directory.
        progress: a function that is called with an `Event` after each round; or as `fit` takes it, which `compare` takes as well.

    >>> import coterie as ct
    >>> settings = ct.StudySettings(evaluate=2, local=ct.LocalSGD(lr=0.1))
    >>> ct.compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=1, settings=settings)
    <comparison of local, fedavg on 4 clients, 1 seed>
    """

    jobs: Annotated[int, SIZE, Flag(metavar="N")] = 1
    yardstick: Annotated[
        str | None, optional(one_of("trees")), Flag(metavar="NAME")
    ] = None
    rivals: Annotated[tuple[str, ...], _RIVALS, Flag(metavar="A,B")] = RIVALS
    local: Annotated[LocalSGD | None, _LOCAL, InFiles(said=False)] = None
    init: Annotated[Any, START, InFiles(said=False)] = None
    tune: Annotated[Any, _TUNE, InFiles(said=False)] = False
    progress: Annotated[
        Any,
        Rule(
            lambda v: callable(v) or v in (None, True, False, "bar", "log"),
            'None, true, false, "bar", "log" or a function of an Event',
        ),
        InFiles(said=False),
    ] = None


@options
class RunTable(StudySettings):
    """The [run] table.

    Attributes:
        rounds: number of rounds.
        seeds: seeds of the runs; 5 means 0 to 4, and a list names them.
        out: the run directory; None: runs/NAME.
    """

    rounds: Annotated[int, ROUNDS, Flag(metavar="N")] = 50
    seeds: Annotated[tuple[int, ...], SEEDS, Flag(metavar="N")] = (0, 1, 2, 3, 4)
    out: Annotated[
        str | None,
        Rule(lambda v: v is None or isinstance(v, str), "a folder"),
        Flag(metavar="FOLDER"),
    ] = None

    def __post_init__(self) -> None:
        seeds: Any = self.seeds
        if _are_seeds(seeds) and isinstance(seeds, int):
            object.__setattr__(self, "seeds", tuple(range(seeds)))
        if not self.evaluation.last:
            raise InputError(
                "run.evaluate: a comparison gives verdicts, which need the last evaluation of all clients; leave out last = false"
            )
        if isinstance(self.seeds, tuple) and len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"run.seeds repeat: {list(self.seeds)}; name each once")


PARTS = ("all", "last", "bias")
"""What may be tuned by steps."""
POOL = "pool"
"""Settings that can be tuned."""
_WITH_ZERO = Rule(
    lambda v: list_of(COUNT, "").test(v) and 0 in v,
    "a list of ints >= 0 with 0 among them",
)


@wire_type
@options
class Tuning:
    """Settings of personalisation: `personalise` of a [[methods]] entry.

    Attributes:
        part: `all` parameters, those of the `last` layer (the last one that the module registers), or its `bias` alone; or `pool`: of
            a linear model each client solves for slopes that are drawn to those that it was given, as far as its own rows say, and
            for its own intercept. That takes no steps, and no validation rows.
        steps: numbers of steps to choose from; 0, the model as it is, is among them.
        lr: learning rates to choose from, each > 0.
        batch_size: rows of a step; default: all training rows.
    """

    part: Annotated[str, one_of(*PARTS, POOL)] = "bias"
    steps: Annotated[tuple[int, ...], _WITH_ZERO] = (0, 10, 30, 100)
    lr: Annotated[tuple[float, ...], list_of(POSITIVE, "a list of numbers > 0")] = (
        0.01,
        0.1,
        1.0,
    )
    batch_size: Annotated[int | None, optional(SIZE, "all rows")] = None

    @property
    def chooses(self) -> bool:
        """Return True if validation rows choose, so that nothing may be trained on them."""
        return self.part != POOL


_THRESHOLD = Rule(
    lambda v: v in ("validation", "prevalence") or (is_number(v) and 0 < v < 1),
    'a number between 0 and 1, "prevalence" or "validation"',
    ("validation", "prevalence"),
)


_SMALLEST = Rule(lambda v: is_number(v) and 0 < v < 1, "a number between 0 and 1")


@options
class ReportTable:
    """The [report] table: how results are shown. No number of a run depends on it.

    Attributes:
        threshold: the predicted risk from which a patient is treated, and a row called positive. prevalence: decisions are judged
            at the share of cases of each client, and rows called positive from .5 on. validation: the risk that suits each
            client's validation rows best, where a method did not train on them.
        smallest: the smallest effect of interest, of AUC, as a share of the variance of a label that is a number, and of the log-loss
            where two classes are equally common; of rarer ones as much less as a row tells less.
        primary: label of the method that speaks for joining, named before the run; default: partial, else the first federated one.
    """

    threshold: Annotated[float | str, _THRESHOLD, Flag(metavar="P")] = "prevalence"
    smallest: Annotated[float, _SMALLEST, Flag(metavar="D")] = 0.01
    primary: Annotated[str | None, optional(TEXT), Flag(metavar="LABEL")] = None


@options
class ModelTable:
    """Keys of the [model] table beside the fields of a model.

    Attributes:
        init: a safetensors file to start from.
        freeze: patterns of the modules and parameters that stay as they are, such as "0.*"; statistics of batch norm belong to them.
    """

    init: Annotated[str | None, Flag(metavar="FILE")] = None
    freeze: Annotated[tuple[str, ...], PATTERNS, Flag(metavar="A,B")] = ()


@dataclass(frozen=True)
class MethodEntry:
    """One of [[methods]].

    Attributes:
        name: name of the method.
        label: what it is called here.
        fields: fields of the method.
        local: what differs from [local].
        personalise: how each client tunes its model after training; None: it does not.
        seeds: of the run's seeds, with how many of the first ones it runs; None: with all.
    """

    name: str
    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    personalise: Tuning | None = None
    seeds: int | None = None


def _are_attackers(who: Any) -> bool:
    named = isinstance(who, tuple) and all(isinstance(name, str) for name in who)
    return named or (is_number(who) and 0 < who <= 1)


@options
class Attackers:
    """Keys of the [attack] table beside the fields of an attack.

    Attributes:
        on: who attacks: names of clients, or a share of all (rounded), drawn by name from the seed.
    """

    on: Annotated[
        tuple[str, ...] | float,
        Rule(_are_attackers, "a list of names or a share in (0, 1]"),
        Flag("--attack-on", "WHO"),
    ] = field(default=(), kw_only=True)
