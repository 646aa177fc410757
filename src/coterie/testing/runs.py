"""Laws of methods, samplers, filters and engines: each looks at runs of a small problem."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from coterie.attacks import Attack, Dropout
from coterie.base.clients import Client, Clients
from coterie.base.errors import CoterieError, RunError
from coterie.base.identity import identity
from coterie.base.rows import Part
from coterie.base.vector import Layout, flatten
from coterie.cli.catalogue import Entry, traffic
from coterie.config.local import LocalSGD, Steps
from coterie.config.registry import Registry
from coterie.config.run import RunSettings
from coterie.config.schema import build, spell
from coterie.contract.engine import EngineSpec
from coterie.contract.filters import Filter, Passage
from coterie.contract.memory import Memory, MemoryView
from coterie.contract.wire import Context
from coterie.engines.inprocess import InProcess
from coterie.run.callbacks import Callback
from coterie.run.fit import fit
from coterie.run.result import Run

SIZES = {"a": 12, "b": 8, "c": 16, "d": 10, "e": 14}
"""Training rows of the clients; each has HELD validation rows and as many test rows."""
HELD = 6
ROUNDS = 3
CLOSE = 1e-9
"""By which numbers may differ that are equal but for rounding."""
_HERE = InProcess()


class LawError(AssertionError):
    """A plug-in does not keep a law; the sentence says which, and which side was declared.

    >>> import coterie as ct
    >>> def broken(outputs, labels, kind):
    ...     labels.zero_()
    ...     return 1.0
    >>> try:
    ...     ct.testing.check_metric(broken)
    ... except ct.testing.LawError as error:
    ...     print(str(error).partition(":")[0])
    broken breaks the law 'inputs' (a metric writes into nothing that it is given)
    """


Law = Callable[[Any], None]
"""Raises `LawError`. Its name, with hyphens, is what `exempt` calls it, and its docstring says what must hold."""


def _example(names: Mapping[str, str]) -> Clients:
    """Clients with two classes in every part, whose rows depend on the old name alone, under new names."""
    clients = []
    for name, size in SIZES.items():
        stream = torch.Generator().manual_seed(ord(name))
        parts = []
        for count in (size, HELD, HELD):
            inputs = torch.randn(count, 3, generator=stream, dtype=torch.float64)
            score = inputs @ torch.tensor(
                [1.0, -1.0, 0.1 * ord(name) - 9.8], dtype=torch.float64
            )
            score += 0.3 * torch.randn(count, generator=stream, dtype=torch.float64)
            parts.append(Part(inputs, (score > score.median()).long()))
        train, validation, test = parts
        clients.append(Client(names[name], train, validation, test))
    example = Clients(clients)
    return example.with_server(example[names["a"]].validation)


def _model() -> nn.Module:
    model = nn.Linear(3, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.2, 0.1, -0.3]]))
        model.bias.fill_(0.05)
    return model


def _deep_model() -> nn.Module:
    """Two layers and a batch norm, for methods in which some layers stay with a client."""
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)
    ).double()
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=stream, dtype=torch.float64)
            parameter.copy_(0.5 * drawn)
    return model


@dataclass(frozen=True)
class Trial:
    """A plug-in with the run that the laws look at.

    Attributes:
        subject: What is checked.
        registry: Where its name is looked up.
        method: What runs.
        filters: What replies pass.
        engine: Where the clients are.
        attack: What some of the clients do.
        callbacks: What follows the run.
    """

    subject: Any
    registry: Registry
    method: Any
    filters: tuple[Filter, ...] = ()
    engine: EngineSpec = _HERE
    attack: Attack | None = None
    callbacks: tuple[Callback, ...] = ()
    names: Mapping[str, str] = field(
        default_factory=lambda: {name: name for name in SIZES}
    )

    def run(
        self,
        rounds: int = ROUNDS,
        *,
        clients: Clients | None = None,
        model: nn.Module | None = None,
        seed: int = 0,
        checkpoint: str | None = None,
        attack: Attack | None = None,
        **settings: Any,
    ) -> Run:
        """Run a small problem: logistic regression of five clients; a model of two layers where the method refuses that."""
        if clients is None:
            clients = _example(self.names)
        settings["callbacks"] = (*self.callbacks, *settings.get("callbacks", ()))
        defaults = {"evaluate": max(1, rounds), "metrics": ("auc",)}
        return fit(
            self.method,
            clients,
            model or self.make_model(),
            rounds,
            seed=seed,
            engine=self.engine,
            attack=attack or self.attack,
            filters=self.filters,
            checkpoint=checkpoint,
            settings=RunSettings(**{**defaults, **settings}),
        )

    @cached_property
    def make_model(self) -> Callable[[], nn.Module]:
        """The model of the problem: linear, or with two layers for a method that runs on these alone."""
        problem = _example(self.names), _model()
        try:
            fit(self.method, *problem, rounds=1)
        except CoterieError:
            with contextlib.suppress(CoterieError):
                fit(self.method, problem[0], _deep_model(), rounds=1)
                return _deep_model
        return _model

    @cached_property
    def usual(self) -> Run:
        """A run that several laws compare with."""
        return self.run()

    def with_local(self, **differing: Any) -> Trial:
        """Return the same trial with other local training, if the method has some."""
        local = getattr(self.method, "local", None)
        if not isinstance(local, LocalSGD):
            return self
        return dataclasses.replace(
            self,
            method=dataclasses.replace(
                self.method, local=dataclasses.replace(local, **differing)
            ),
        )


def _same(expected: Run, actual: Run, subject: str) -> None:
    """Raise `LawError` unless models and history of two runs are equal bit by bit."""
    if list(expected.models) != list(actual.models):
        raise LawError(
            f"{subject} has models of {', '.join(actual.models)} in place of {', '.join(expected.models)}"
        )
    for name, x in expected.models.items():
        if not torch.equal(x, actual.models[name]):
            distance = float((x - actual.models[name]).abs().max())
            raise LawError(
                f"{subject} ends at another model of {name}, {distance:.1e} away; all its bits must be equal"
            )
    if expected.history != actual.history:
        raise LawError(
            f"{subject} measures other numbers, although its models are equal"
        )


# ---- laws of runs


def seed(trial: Trial) -> None:
    """The same seed gives the same bits."""
    _same(trial.usual, trial.run(), "a second run with the same seed")


def wire(trial: Trial) -> None:
    """Encoding and decoding all that is sent changes no bit."""
    _same(
        trial.usual,
        trial.run(strict_wire=True),
        "a run whose messages are encoded and decoded",
    )


def workers(trial: Trial) -> None:
    """On how many processes the clients are spread changes no bit, so a reply depends on no other client of the cohort."""
    _same(
        trial.usual,
        dataclasses.replace(trial, engine=InProcess(workers=2)).run(),
        "a run on two workers",
    )


def order(trial: Trial) -> None:
    """The order in which clients are given changes no bit."""
    clients = _example(trial.names)
    turned = Clients([clients[i] for i in reversed(range(len(clients)))]).with_server(
        clients["a"].validation
    )
    _same(
        trial.usual,
        trial.run(clients=turned),
        "a run whose clients are given in another order",
    )


class _StopError(Exception):
    pass


def resume(trial: Trial) -> None:
    """A run that is interrupted and resumed ends with the bits of one that was not."""

    def stop(number: int) -> None:
        if number == ROUNDS - 1:
            raise _StopError

    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(_StopError):
            trial.run(checkpoint=folder, callbacks=(stop,))
        _same(
            trial.usual,
            trial.run(checkpoint=folder, resume=True),
            "a run that was interrupted and resumed",
        )


def spelling(trial: Trial) -> None:
    """The table that says the settings in a file builds the same value."""
    cls = type(trial.subject)
    if dataclasses.is_dataclass(trial.subject):
        rebuilt = build(cls, spell(trial.subject), "its table")
        if identity(rebuilt) != identity(trial.subject):
            raise LawError(
                f"its table {spell(trial.subject)} builds {rebuilt!r}; fields must be values that files can hold"
            )


# ---- laws of methods


def value(trial: Trial) -> None:
    """A run stores nothing on the method, which is a value."""
    old_identity = identity(trial.method)
    trial.run()
    if identity(trial.method) != old_identity:
        raise LawError(
            "a run changed the method; what it learns belongs to its state, or to the memory of clients"
        )
    declared = {field.name for field in dataclasses.fields(trial.method)}
    stored = set(vars(trial.method)) - declared
    if stored:
        raise LawError(
            f"it keeps {', '.join(sorted(stored))} on itself; what it learns belongs to its state"
        )


def names(trial: Trial) -> None:
    """Clients with other names, in another order, get the same models under those names."""
    full = trial.with_local(batch_size=None)
    called = dict(zip(SIZES, ("d", "b", "e", "a", "c"), strict=True))
    method = full.method
    if _is_value(method):
        renamed = {}
        for field in dataclasses.fields(method):
            renamed[field.name] = _rename(getattr(method, field.name), called)
        method = dataclasses.replace(method, **renamed)
    moved_trial = dataclasses.replace(full, method=method, names=called)
    expected, models = full.run().models, moved_trial.run().models
    for name, x in expected.items():
        model = models.get(called.get(name, name))
        if model is None or float((x - model).abs().max()) > CLOSE:
            raise LawError(
                f"client {name!r} called {called.get(name)!r} gets another model; names may decide ties only"
            )


def _is_value(method: Any) -> bool:
    return dataclasses.is_dataclass(method)


def _rename(entry: Any, called: Mapping[str, str]) -> Any:
    if isinstance(entry, str):
        return called.get(entry, entry)
    if type(entry) is tuple:
        return tuple(_rename(part, called) for part in entry)
    return entry


def learns(trial: Trial) -> None:
    """Eight rounds lower the mean loss of a convex problem."""
    run = trial.with_local(lr=0.3, steps=Steps(4)).run(8)
    losses: dict[int, list[float]] = {}
    for row in run.history:
        if (row.split, row.metric) == ("train", "loss"):
            losses.setdefault(row.round, []).append(row.value)
    initial, final = (sum(losses[number]) / len(losses[number]) for number in (0, 8))
    if not final < 0.95 * initial:
        raise LawError(
            f"the mean loss on training rows was {initial:.3f} and is {final:.3f} after eight rounds"
        )


def numbers(trial: Trial) -> None:
    """Logged numbers are finite, and the weights of a target are not negative and sum to one."""
    for row in trial.usual.history:
        if not math.isfinite(row.value):
            raise LawError(f"{row.metric} of round {row.round} is {row.value}")
    for target, weights in trial.usual.weights.items():
        if min(weights.values()) < 0 or abs(sum(weights.values()) - 1) > CLOSE:
            raise LawError(
                f"the weights of {target} are {weights}; they must be >= 0 and sum to 1"
            )


def alone(trial: Trial) -> None:
    """One client is enough, and it has a lower loss after three rounds."""
    full = trial.with_local(batch_size=None)
    method = full.method
    if _is_value(method):
        # What a field says of any client is now said of the only one.
        renamed = {}
        for declared in dataclasses.fields(method):
            value = getattr(method, declared.name)
            renamed[declared.name] = _rename(value, dict.fromkeys(SIZES, "b"))
        method = dataclasses.replace(method, **renamed)
    example = _example(trial.names)
    run = dataclasses.replace(full, method=method).run(
        clients=example.subset(("b",)).with_server(example["a"].validation)
    )
    losses = [r.value for r in run.history if (r.split, r.metric) == ("train", "loss")]
    if not losses[-1] < losses[0]:
        raise LawError(
            f"the loss of the only client was {losses[0]:.3f} and is {losses[-1]:.3f} after three rounds"
        )


def starts(trial: Trial) -> None:
    """A run of no rounds ends with the model that it is given."""
    x = flatten(model := trial.make_model(), Layout.of(model))
    for seed in range(ROUNDS):
        models = trial.run(0, seed=seed).models
        compared = [*models]
        if "*" in models:
            # A step from the model of all makes a client's own, which then differs from it.
            compared = ["*"]
        for name in compared:
            if not torch.equal(models[name], x):
                raise LawError(
                    f"after no rounds of seed {seed} the model of {name} is not the one that is given"
                )


def diverges(trial: Trial) -> None:
    """Training that diverges ends in a sentence that names the round."""
    try:
        wild = trial.with_local(lr=1e15, steps=Steps(1), batch_size=None)
        wild.run(2 * ROUNDS, clients=_regression(), model=trial.make_model().float())
    except RunError as error:
        if not str(error).startswith("round "):
            raise LawError(f"it ends in another sentence: {error}") from error
    else:
        raise LawError(
            f"{2 * ROUNDS} rounds at a learning rate of 1e15 end as if they had trained"
        )


def _regression() -> Clients:
    """The usual clients with a label of numbers, in float32."""

    def relabel(part: Part) -> Part:
        inputs = cast("Tensor", part.inputs).float()
        return Part(inputs, inputs[:, :1])

    clients = [
        Client(
            c.name,
            relabel(c.train),
            relabel(c.part("validation")),
            relabel(c.part("test")),
        )
        for c in _example({name: name for name in SIZES})
    ]
    return Clients(clients).with_server(clients[0].part("validation"))


def participants(trial: Trial) -> None:
    """Check that two are asked for updates where two clients are drawn for a round."""
    for record in trial.run(clients_per_round=2).asks:
        if record.round and "update" in record.task and record.clients > 2:
            raise LawError(
                f"{record.task} is asked of {record.clients} clients in round {record.round}, drawn were 2"
            )


def failures(trial: Trial) -> None:
    """A client that fails is named and has no weight; the run goes on without it."""
    for name in (trial.names["a"], trial.names["c"]):
        run = trial.run(attack=Dropout(on=(name,), p=1.0))
        if list(run.failures) != [name]:
            raise LawError(
                f"client {name!r} failed in each round; the run names {list(run.failures)}"
            )
        if any(name in weights for weights in run.weights.values()):
            raise LawError(
                f"client {name!r} failed in each round and has a weight: {run.weights}"
            )


def newcomers(trial: Trial) -> None:
    """A client that joins later changes nothing before, also where it is added at a resume; of methods that let clients join."""
    if not trial.method.newcomers:
        return
    known = _example(trial.names)
    late = Client("late", known[0].train, known[0].validation, known[0].test)
    never = trial.run(clients=known.add(late, start=ROUNDS + 1))
    for name, x in trial.usual.models.items():
        if not torch.equal(x, never.models[name]):
            raise LawError(
                f"the model of {name} is another one beside a client that has not joined"
            )
    joining = known.add(late, start=ROUNDS)
    straight = trial.run(clients=joining)
    with tempfile.TemporaryDirectory() as folder:
        trial.run(ROUNDS - 1, checkpoint=folder, evaluate=ROUNDS)
        resumed = trial.run(
            clients=joining, checkpoint=folder, resume=True, evaluate=ROUNDS
        )
    for name, x in straight.models.items():
        if name not in resumed.models or not torch.equal(x, resumed.models[name]):
            raise LawError(
                f"the model of {name} is another one where the client is added at a resume"
            )


def sends(trial: Trial) -> None:
    """Each client sends as many numbers as the line `Sends` of the docstring declares for the default settings."""
    if _is_value(trial.method):
        for setting in dataclasses.fields(trial.method):
            value = getattr(trial.method, setting.name)
            if setting.name != "local" and value != _default(setting):
                return
    declared = traffic(Entry("", type(trial.method), shared=False).paragraph("Sends"))
    size = Layout.of(trial.make_model()).size
    symbols = {"d": size, "n": len(SIZES), "C": 2, "T": len(trial.usual.models)}
    for record in trial.usual.asks:
        formula = declared.get(record.task.rpartition(":")[2], ("", ""))[0]
        number = _evaluate(formula, symbols)
        # A flag of a byte, or a number of four, counts as none.
        sent = round(record.bytes_up / 8 - 0.45)
        if record.round == ROUNDS and number is not None and sent != number:
            raise LawError(
                f"declares {formula} = {number} numbers up for {record.task}, sent {sent}"
            )


def _evaluate(formula: str, symbols: Mapping[str, int]) -> int | None:
    """The value of a sum of products; None if it has other words, whose value no run tells.

    >>> _evaluate("2 d + 1", {"d": 4}), _evaluate("d each", {"d": 4})
    (9, None)
    """
    terms = [term.split() for term in formula.split("+")]
    words = [word for term in terms for word in term]
    if not words or not all(word.isdigit() or word in symbols for word in words):
        return None
    return sum(
        math.prod(int(symbols.get(word, word)) for word in term) for term in terms
    )


def _default(declared: dataclasses.Field[Any]) -> Any:
    if declared.default_factory is dataclasses.MISSING:
        return declared.default
    return declared.default_factory()


# ---- laws of attacks, callbacks, filters, engines


def shows(trial: Trial) -> None:
    """A run under an attack ends elsewhere, or names the attacker among the clients that failed."""
    honest = dataclasses.replace(trial, attack=None).run()
    unchanged = all(
        torch.equal(x, honest.models[name]) for name, x in trial.usual.models.items()
    )
    if unchanged and not trial.usual.failures:
        raise LawError("a run under it ends as an honest one does, and no client fails")


def only_looks(trial: Trial) -> None:
    """A callback that declares `decides = False` changes no bit."""
    if not trial.subject.decides:
        try:
            _same(
                dataclasses.replace(trial, callbacks=()).run(),
                trial.usual,
                "a run that it follows",
            )
        except LawError as error:
            raise LawError(f"declares decides = False, but {error}") from error


def lossless(trial: Trial) -> None:
    """A filter that declares `lossy = False` lets the server receive what the task replied."""
    if not trial.subject.lossy:
        try:
            _same(
                dataclasses.replace(trial, filters=()).run(),
                trial.usual,
                "a run with this filter",
            )
        except LawError as error:
            raise LawError(f"declares lossy = False, but {error}") from error


def unpacks(trial: Trial) -> None:
    """What the server unpacks has the bits of what was packed."""
    if not trial.subject.packs:
        return
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(SIZES), 40, generator=generator)
    passage = Passage(
        names=tuple(SIZES),
        field="delta",
        kind="update",
        task="trial",
        context=Context(seed=0, round=1, attempt=0, ask=0, label="trial"),
        memory=MemoryView(Memory(), tuple(SIZES)),
        position=0,
    )
    sent = trial.subject.apply(rows, passage)
    restored = trial.subject.unpack(trial.subject.pack(sent), sent.shape[-1])
    if not torch.equal(restored, sent):
        distance = float((restored - sent).abs().max())
        raise LawError(
            f"what it unpacks is {distance:.1e} away from what it packed; all bits must be equal"
        )


def bits(trial: Trial) -> None:
    """An engine changes no bit of a run, but for settings on which it declares that numbers depend (`decides`)."""
    plain = dataclasses.replace(trial, engine=_HERE).run()
    if not trial.engine.results():
        try:
            _same(plain, trial.usual, "a run on this engine")
        except LawError as error:
            raise LawError(
                f"declares no setting on which numbers depend (decides), but {error}"
            ) from error
    distance = max(
        float((x - trial.usual.models[name]).abs().max())
        for name, x in plain.models.items()
    )
    if distance > CLOSE:
        raise LawError(
            f"a run on this engine ends {distance:.1e} away, further than rounding takes it"
        )


def closes(trial: Trial) -> None:
    """An engine has the clients that it is given, and can be closed twice."""
    clients = _example(trial.names)
    engine = trial.engine.open(clients, _model(), "auto")
    try:
        if tuple(engine.clients) != clients.names:
            raise LawError(
                f"its clients are {engine.clients}, given were {clients.names}"
            )
    finally:
        engine.close()
    engine.close()
