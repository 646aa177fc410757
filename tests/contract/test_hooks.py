"""What an object of the user's is told when it resembles a method, a sampler, an attack, a filter, a callback or an engine."""

from contextlib import suppress
from typing import NamedTuple

import pytest
import torch

import coterie as ct
from coterie.config.registry import ATTACKS, CALLBACKS, ENGINES, FILTERS, SAMPLERS
from coterie.config.rules import check_object
from coterie.contract.attack import Attack
from coterie.contract.method import Method, Sampler

ROWS = {
    name: (torch.ones(12, 1), torch.full((12,), label))
    for name, label in {"a": 0.0, "b": 1.0}.items()
}
LOCAL = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(1))


class Mine(ct.Method):
    """FedAvg of the user's own, from the three required hooks."""

    def init(self, x, federation):
        return ct.FedAvg(LOCAL).init(x, federation)

    def round(self, state, federation, rng):
        return ct.FedAvg(LOCAL).round(state, federation, rng)

    def models(self, state):
        return state.x


class Three:
    """The three required hooks without the base class, from which the others come."""

    init, round, models = Mine.init, Mine.round, Mine.models


class Keeps(Mine):
    def keeps_validation(self, names):
        return names


class KeepsNot(Mine):
    def keep_validation(self, names):
        return names


class WithPool(ct.FedAvg):
    pool = True


class Onw(ct.FedAvg):
    participation = "onw"


class Pooled(ct.FedAvg):
    pooled = "no"


class Evenly(ct.Sampler):
    """A sampler of the user's own with a hook that is none."""

    def rows(self, cohort, client, rng, steps, batch_size):
        return torch.zeros(steps, batch_size, dtype=torch.int64).numpy()

    def after_rounds(self, x, federation):
        return {}


class Liar(ct.Attack):
    on = ("a",)

    def rewrites(self, kind, rows, attackers, rngs):
        return -rows[attackers]


class Harder(ct.Clip):
    """A filter whose own rule would never run."""

    def aply(self, rows, passage):
        return 0 * rows


class Watching(ct.Callback):
    keep_validation = True


class Here(ct.InProcess):
    fork = True


@ct.wire_type
class Transforms(ct.Filter):
    def transform(self, rows, passage):
        return 0 * rows


@ct.wire_type
class Rewrites(ct.Filter):
    def apply(self, rows, passage):
        return 0 * rows


class OfGradient(Rewrites):
    kinds = "gradient"


class OfUpdates(Rewrites):
    kinds = ("updates",)


class Honest(ct.attacks.Attack):
    fault = "lied"


class Deaf(ct.Callback):
    keeps_validation = True


class Opens:
    """An engine of the user's own without its base class."""

    def open(self, clients, model, loss):
        return ct.InProcess().open(clients, model, loss)


class Closed(ct.EngineSpec):
    def open(self, clients, model, loss):
        return None


@ct.options
class Always(ct.Attack):
    def rewrite(self, kind, rows, attackers, rngs):
        return -rows[attackers]


class Fails(Always):
    on = ("a",)
    fails = True


def fit(method, **options):
    parts = {
        n: dict.fromkeys(("train", "validation"), rows) for n, rows in ROWS.items()
    }
    return ct.fit(
        method,
        ct.data.from_tensors(parts, task="classification"),
        ct.models.Logistic(),
        rounds=1,
        **options,
    )


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            KeepsNot(),
            r"KeepsNot\.keep_validation is not a hook of a method; did you mean keeps_validation\?",
        ),
        (
            WithPool(LOCAL),
            r"WithPool\.pool is not a hook of a method; did you mean pooled\?",
        ),
        (
            ct.FedAvg(ct.LocalSGD(sampler=Evenly())),
            r"Evenly\.after_rounds is not .* a sampler; did you mean after_round\?",
        ),
        (
            Three(),
            r"Three.* is not a method; give one such as FedAvg\(\), of a class derived from ct.Method",
        ),
        (
            Onw(LOCAL),
            r"Onw.participation must be run \| own; got 'onw'; did you mean 'own'\?",
        ),
        (Pooled(LOCAL), "Pooled.pooled must be true or false; got 'no'"),
        (ct.FedAvg, r"FedAvg is a class and not a method; write FedAvg\(\)"),
    ],
)
def test_a_misspelt_hook_is_refused_when_a_run_begins(method, sentence):
    with pytest.raises(ct.InputError, match=sentence):
        fit(method)


def plain(cohort, *, x):
    """A task without its decorator."""


class Plain(Mine):
    def round(self, state, federation, rng):
        return federation.ask(federation.clients, plain, x=state.x)


class Step(NamedTuple):
    x: torch.Tensor


@ct.task
def mean_step(cohort, *, x) -> Step:
    """A task that is asked before the clients."""
    return Step(x)


class Turned(Mine):
    def round(self, state, federation, rng):
        return federation.ask(mean_step, federation.clients, x=state.x)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Plain(), "is asked a function decorated with @task; got <function plain>"),
        (Turned(), "clients come before the task"),
    ],
)
def test_what_a_method_asks_and_whom_is_told_apart(method, sentence):
    with pytest.raises(ct.InputError, match=sentence):
        fit(method)


def test_a_misspelt_hook_of_an_attack_is_refused_when_a_run_begins():
    with pytest.raises(
        ct.InputError,
        match=r"Liar\.rewrites is not a hook of an attack; did you mean rewrite\?",
    ):
        fit(ct.FedAvg(LOCAL), attack=Liar())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"filters": [Harder()]},
            r"Harder\.aply is not a hook of a filter; did you mean apply\?",
        ),
        (
            {"settings": ct.RunSettings(callbacks=(Watching(),))},
            r"Watching\.keep_validation is not a hook of a callback; did you mean keeps_validation\?",
        ),
        (
            {"engine": Here()},
            r"Here\.fork is not a hook of an engine; did you mean forks\?",
        ),
        (
            {"filters": [Transforms()]},
            "Transforms has no hook of a filter and would do nothing; define apply, pack or unpack",
        ),
        (
            {"filters": [OfGradient()]},
            "OfGradient.kinds must be a tuple of update, .*; got 'gradient'",
        ),
        (
            {"filters": [OfUpdates()]},
            r"OfUpdates.kinds must be a tuple of update, .*; got \('updates',\)",
        ),
        ({"filters": [ct.TopK]}, r"TopK is a class and not a filter; write TopK\(\)"),
        (
            {"attack": Honest(on=("a",))},
            "Honest has no hook of an attack and would do nothing; define corrupt, ",
        ),
        ({"attack": Fails()}, r"Fails.fails must be a function \(rng\); got True"),
        (
            {"settings": ct.RunSettings(callbacks=(Deaf(),))},
            "Deaf has no hook of a callback and would do nothing",
        ),
        (
            {"engine": Opens()},
            r"Opens.* is not an engine; give one such as InProcess\(workers=2\), of a class derived",
        ),
        (
            {"engine": Closed()},
            "Closed.open must return an engine, of a class derived from .*; got None",
        ),
        (
            {"engine": ct.InProcess},
            r"InProcess is a class and not an engine; write InProcess\(\)",
        ),
    ],
)
def test_what_would_be_ignored_or_break_later_is_refused_when_a_run_begins(
    options, sentence
):
    with pytest.raises(ct.InputError, match=sentence):
        fit(ct.FedAvg(LOCAL), **options)


def test_an_attack_on_half_a_hundred_is_refused():
    with pytest.raises(
        ct.InputError,
        match=r"Always.on must be a list of names or a share in \(0, 1\]; got 50",
    ):
        Always(on=50)


def test_what_an_engine_opened_in_vain_is_closed():
    closed = []

    class Opened:
        def close(self):
            closed.append(True)

    class Vain(ct.EngineSpec):
        def open(self, clients, model, loss):
            return Opened()

    with pytest.raises(ct.InputError, match=r"Vain.open must return an engine"):
        fit(ct.FedAvg(LOCAL), engine=Vain())
    assert closed == [True]


OWN = """
import coterie as ct
THREE = 3
class Opens:
    def open(self, clients, model, loss): ...
class Opne(ct.EngineSpec):
    def opne(self, clients, model, loss): ...
class Short(ct.EngineSpec):
    def open(self, clients, model): ...
class Row(ct.Sampler):
    def row(self, cohort, client, rng, steps, batch_size): ...
"""


@pytest.mark.parametrize(
    "registry", [ENGINES, ATTACKS, FILTERS, CALLBACKS, SAMPLERS], ids=lambda r: r.kind
)
def test_what_a_file_names_must_be_a_class(registry, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(
        ct.InputError,
        match=rf"a.toml: .*own.py:THREE is no class of an? {registry.kind}; got 3",
    ):
        registry.build({"name": f"{tmp_path}/own.py:THREE"}, "a.toml")


@pytest.mark.parametrize(
    ("registry", "name", "sentence"),
    [
        (
            ENGINES,
            "Opens",
            r"a.toml: .*Opens.* is not an engine; give one such as InProcess\(workers=2\), of a class d",
        ),
        (
            ENGINES,
            "Opne",
            "a.toml: Opne has no open, so it is not an engine; rename opne to open",
        ),
        (
            ENGINES,
            "Short",
            r"a.toml: Short.open must be a function \(clients, model, loss\); got",
        ),
        (
            SAMPLERS,
            "Row",
            r"a.toml: Row.row is not a hook of a sampler; did you mean rows\?",
        ),
    ],
)
def test_a_class_in_a_file_is_checked_as_a_value_is(registry, name, sentence, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(ct.InputError, match=sentence):
        registry.build({"name": f"{tmp_path}/own.py:{name}"}, "a.toml")


def test_an_object_with_three_hooks_is_a_method_and_its_others_count():
    assert torch.equal(fit(Mine()).x, fit(ct.FedAvg(LOCAL)).x)
    rows = {type(m): fit(m).summary[0]["n_train"] for m in (Mine(), Keeps())}
    assert rows == {Mine: 24, Keeps: 12}


def test_a_check_leaves_the_class_as_it_is():
    for checked, base in (
        (Keeps(), Method),
        (Evenly(), Sampler),
        (Liar(), Attack),
        (ct.Clip(1.0), ct.Filter),
    ):
        before = dict(vars(type(checked)))
        with suppress(ct.InputError):
            check_object(checked, base)
        assert dict(vars(type(checked))) == before
    with pytest.raises(ct.InputError, match="is not a method"):
        check_object(Three(), Method)
    assert not isinstance(Three(), Method)


def test_underscored_names_fields_and_unlike_names_are_the_users_own():
    class Free(Mine):
        helper = 3
        _keep_validation = True

    check_object(Free(), Method)
    check_object(ct.MultiKrum(LOCAL), Method)


def test_a_sampler_without_rows_says_what_it_lacks():
    with pytest.raises(ct.InputError, match="Sampler chooses no rows; give it `rows`"):
        Sampler().rows(None, 0, None, 1, 1)
