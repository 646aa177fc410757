"""A site's rows in the process that holds them (`sites.child`), which obeys the approved plan.

Whatever protects the rows is decided here, next to the table: the worker before it carries messages and writes the log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.files import write_atomically
from coterie.base.hazards import MOST_INTERVALS
from coterie.base.layers import feature_width
from coterie.base.rng import fork_generators
from coterie.base.vector import Layout
from coterie.compute.boosted import can_fit
from coterie.compute.cohort import Shard
from coterie.compute.discrete_gaussian import DrawWords
from coterie.compute.workspace import Workspace
from coterie.contract.down import BF16
from coterie.contract.elsewhere import integers_of, masked_fields
from coterie.contract.encoding import decode, encode
from coterie.contract.fixed_point import whole_weights
from coterie.contract.masks import SumTerms
from coterie.contract.method import clients_keeping_validation
from coterie.contract.requests import Limits, about_each_model
from coterie.contract.wire import Answer, Ask, Block, Context, PerClient, to_json
from coterie.data.tables.cells import Table
from coterie.data.tables.description import MANY_ROWS
from coterie.data.tables.folder import encode_client
from coterie.data.tables.intervals import count_events, sum_counts, sum_followup
from coterie.data.tables.recipe import TableCohort, describe
from coterie.models import build_for, freeze
from coterie.run.files import ALL
from coterie.run.fit import share_validation
from coterie.sites.allowed import Allowed, RefusedError, check_state
from coterie.sites.approval import Approved, identity_beside, layers_fit
from coterie.sites.comparisons import (
    fits_boosted_at_sites,
    note_outcomes,
    paired_errors,
)
from coterie.sites.descriptions import check_recipe, longest_head
from coterie.sites.effective import batches_fit, count_labels, count_training_rows
from coterie.sites.followup import (
    events_of,
    form_hash,
    form_of_options,
    times_withheld,
)
from coterie.sites.kept_outcomes import KeptOutcomes
from coterie.sites.ledger import Account, Place, Told, count_numbers
from coterie.sites.minima import (
    classes_withheld,
    columns_to_sum,
    curvature_fits,
    moments_fit,
    parts_withheld,
    public_description,
    recipe_fits,
    table_withheld,
    within_reach,
)
from coterie.sites.own_model import OwnModel
from coterie.sites.price import (
    Price,
    check_epsilon_is_set,
    check_price,
    noisy_numbers_of_comparison,
    squared_mu,
)
from coterie.sites.secret_noise import (
    KeyedVeil,
    SparingVeil,
    keyed_normal,
    keyed_words,
    site_key,
    under_key,
)
from coterie.sites.settings import SiteSettings, matches, most_mu, short
from coterie.sites.signed_sum import Identity, SignedClient, check_threshold
from coterie.sites.sum_messages import pack, parse_weights, unpack
from coterie.sites.sums import SiteSum, hash_of_words
from coterie.sites.tables import (
    TABLE_TASKS,
    Facts,
    description_options,
    facts_of,
    fingerprint_of,
    lacking,
    outputs_of_recipe,
    read_site,
    table_options,
)
from coterie.study.rivals import wants_boosted
from coterie.study.row_outcomes import mean_weight

_BEGINNINGS = ("open", "encode", "prepare")
_MODEL = ("do", "plan", "run", "serial", "undo", "pair", "resume")
"""Fields of a message with a model, beside its state."""
LONGEST_SETTING = 1000
"""Characters of a setting in the log."""


class _Asked(NamedTuple):
    """A request that is counted: where, the hash of the request about each model, and how many there may be."""

    place: Place
    requests: tuple[str, ...]
    budget: int


class SiteRows:
    """A site's rows, and what it does with each kind of message.

    Args:
        name: name of the client.
        settings: the site's own.
        folder: where client memory is kept.
        approved: the plan that the site obeys.
    """

    def __init__(
        self, name: str, settings: SiteSettings, folder: Path, approved: Approved
    ) -> None:
        self.name, self.settings, self.folder, self.approved = (
            name,
            settings,
            folder,
            approved,
        )
        self.experiment = approved.plan.experiment
        self.options = table_options(self.experiment.data)
        self.options.pop("server_file", None)
        self.table: Table | None = None
        self.told_table: Table | None = None
        self.seed, self._fingerprint = -1, ""
        self.clients: Clients | None = None
        self.shard: Shard | None = None
        self.pair = self._prepared = ""
        self._own = OwnModel(folder / "models", self.experiment)
        self.about: dict[str, Any] = {}
        self.longest_head = longest_head(approved.plan.deployment.descriptions)
        self._account = Account(Path(settings.log))
        self._account.seal()
        self._price: Price | None = None
        self._mean_weight = 1.0
        self._memory_file: Path | None = None
        self._saved: dict[str, torch.Tensor] = {}
        self._last: tuple[int, Context | None] = (-1, None)
        self.identity: Identity | None = identity_beside(approved.path)
        self._sum: SiteSum | None = None

    @property
    def _key(self) -> bytes:
        return site_key(Path(self.settings.log))

    def _veil_of(self, allowed: Allowed) -> KeyedVeil | None:
        """Return what hides the losses and metrics of a training, if the plan has noise."""
        if allowed.private:
            return SparingVeil(self._key, allowed.metric_noise, allowed.tell)
        return KeyedVeil(self._key, allowed.metric_noise) if allowed.secret else None

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to one message; `about` then says what the log should know. Raises `RefusedError` outside the plan."""
        self.about = {}
        does = {
            "open": self._open,
            "encode": self._encode,
            "prepare": self._prepare,
            "task": self._task,
            "sum": self._take_part,
            "undo": self._undo,
        }
        kind = message.get("do")
        if kind not in does:
            raise RefusedError(
                "a site answers open, encode, prepare, task and sum; this message is something else"
            )
        if kind != "sum":
            # What a sum was begun about must not change before it is masked.
            self._sum = None
        if message.get("plan") != self.approved.hash:
            raise RefusedError(
                "the server runs another plan than the one that this site has approved"
            )
        reply = does[kind](message)
        if (
            kind in _BEGINNINGS
        ):  # what they ask is the same again whatever the run and the number of the message
            self._count(
                kind,
                {
                    k: v
                    for k, v in message.items()
                    if k not in ("serial", "undo", "resume", "run")
                },
                reply,
            )
        return reply

    def _count(
        self, kind: str, values: Mapping[str, Any], reply: Mapping[str, Any]
    ) -> None:
        """Count what the answer to a request tells that no budget limits: what is the same for each row, or has no noise."""
        place = Place(self.approved.hash, self.about.get("pair", ""), kind, 0)
        request = self._under_key(_hash_of({**values, "seed": self.seed}))
        self._account.settle(
            place, {request: _hash_of(reply)}, Told(count_numbers(reply), 0.0)
        )

    def _under_key(self, request: str) -> str:
        """The name of a request in the account: with another key its noise is another, and nothing was asked before."""
        return hmac.new(
            self._key, f"account {request}".encode(), hashlib.sha256
        ).hexdigest()[:32]

    # ---- rows

    def _open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.table = self.told_table = self.clients = self.shard = None
        seed, seeds = message.get("seed"), self.experiment.split_seeds
        if type(seed) is not int or seed not in seeds:
            raise RefusedError(
                f"the approved plan has the seeds {', '.join(map(str, seeds))} and no other"
            )
        if self.settings.label not in (None, self.options["label"]):
            raise RefusedError(
                f"the plan predicts {self.options['label']!r}, but this site offers only {self.settings.label!r}; agree on one label"
            )
        table, notes = read_site(
            self.settings.data,
            self.name,
            self.options,
            seed=seed,
            split=self.experiment.split or None,
        )
        missing = lacking(table, self.approved.plan.deployment.columns, self.options)
        if missing:
            raise RefusedError(
                f"its file has no column {', '.join(missing)}, which the plan needs; add it"
            )
        rows, effective = len(table.parts["train"]), count_training_rows(table)
        if effective < self.settings.minimum_rows:
            raise RefusedError(
                f"it has fewer than the {self.settings.minimum_rows} training rows under which its site does not answer"
            )
        moments_fit(len(seeds), effective)
        pairs, least_batch = self.approved.pairs.values(), self.settings.minimum_batch
        batches_fit(table, pairs, least_batch)
        self._account.most_mu = most_mu(self.settings, len(table))
        least = self.settings.minimum_cell
        self.table, self.seed = table_withheld(table, self.options, least), seed
        self.told_table = times_withheld(self.table, self.options, least)
        self._fingerprint = hmac.new(
            self._key, fingerprint_of(table).encode(), "sha256"
        ).hexdigest()[:32]
        self.about = {"rows": len(table)}
        return {"rows": rows, "notes": self._notes(notes)}

    def _notes(self, notes: list[str] | tuple[str, ...]) -> tuple[str, ...]:
        """Notes may quote cells, so they leave a site only if it lets single cells be spoken of."""
        return tuple(notes) if self.settings.minimum_cell == 1 else ()

    def _encode(self, message: Mapping[str, Any]) -> dict[str, Any]:
        table = self._open_table()
        try:
            recipe = json.loads(message["recipe"])
            stated = self.approved.plan.deployment.descriptions
            all_rows = (
                sum(max(site.rows) for site in stated.values()) if stated else MANY_ROWS
            )
            recipe_fits(recipe, table, self.options, all_rows)
            self._count_form(recipe["label"])
            unstated = check_recipe(stated, recipe)
            if unstated:
                raise RefusedError(
                    f"column {unstated[:40]!r} of the recipe has a category that the plan states of no site"
                )
            client, notes = encode_client(within_reach(table, recipe), recipe)
            self.clients = Clients(
                [client], classes=recipe["label"]["classes"], recipe=recipe
            )
        except RefusedError:
            raise
        except Exception as error:  # which cell or which rule is wrong would tell something of the cells
            self.about = {
                "error": " ".join(f"{type(error).__name__}: {error}".split())[:300]
            }
            raise RefusedError(
                "the recipe does not fit its rows and the approved plan; the site's own log says more"
            ) from error
        self.about = {"rows": len(table)}
        return {
            "notes": self._notes(notes),
            "facts": json.dumps(asdict(self._facts(self.clients))),
        }

    def _count_form(self, label: Mapping[str, Any]) -> None:
        """Spend on the intervals of a recipe, one set for each run: models under many of them would tell apart single rows by time."""
        if form_of_options(self.options):
            runs = self.approved.plan.deployment.runs
            place = Place(self.approved.hash, f"seed {self.seed}", "recipe", 0)
            request = self._under_key(form_hash(label))
            self._account.reserve(place, (request,), runs)

    def _prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.shard = None
        if self.clients is None:
            raise RefusedError("the rows were not encoded yet")
        unknown = sorted(
            k for k in message if k not in _MODEL and not k.startswith("state/")
        )
        if unknown:
            raise RefusedError(
                f"a message with a model has no field {unknown[0][:40]!r}; the plan says the rest"
            )
        if self.approved.private:
            check_epsilon_is_set(self.settings)
        allowed = self._rights_of(message["pair"])
        dealt = self._deal(self.clients, allowed)
        sites, run = (
            tuple(sorted(self.approved.plan.deployment.sites)),
            self.experiment.run,
        )
        clients = share_validation(
            dealt,
            allowed.method,
            sites,
            run.merge_validation,
            contribution=run.contribution is not None,
        )
        # Over all rows of the site, so that weights are on one scale whichever fold tests a row.
        self._mean_weight = mean_weight(clients[0], clients.form)
        self._merge_fits(dealt, clients, sites)
        clients = self._parts(clients, allowed)
        module = self._module(clients)
        layers_fit(module, message["pair"], allowed, self.settings)
        if self.approved.secret and self._price is None:
            self._price = self.approved.price(module)
        if self._price is not None:
            check_price(self._price, self.experiment.run, self.settings)
        curvature_fits(
            self.approved.pairs.values(),
            Layout.of(module),
            next(module.parameters()).shape[-1],
            count_labels(self.clients[0].train.labels, self.clients.form),
            events_of(self._open_table(), self.options),
        )
        state = {
            k.removeprefix("state/"): v
            for k, v in message.items()
            if k.startswith("state/")
        }
        check_state(state, module.state_dict())
        module.load_state_dict(state)
        workspace = Workspace(
            module,
            self.experiment.run.row_loss(clients),
            clients[0],
            kernel=self.experiment.engine.kernel,
        )
        workspace.fewest_rows = self.settings.minimum_batch
        workspace.veil = self._veil_of(allowed)
        workspace.secret_normal = partial(keyed_normal, self._key)
        # Whether what clients remember is kept changes no answer of a request that was answered before.
        # Neither does the name of the run, which the server chooses.
        sent = {
            k: v
            for k, v in message.items()
            if k not in ("serial", "undo", "resume", "run")
        }
        self._prepared = hashlib.sha256(
            encode({**sent, "recipe": json.dumps(self.clients.recipe)})
        ).hexdigest()
        self.shard, self.pair = Shard(clients, workspace), message["pair"]
        self._account.seal()
        self._own = OwnModel(self.folder / "models", self.experiment)
        pair = hashlib.blake2b(self.pair.encode(), digest_size=12).hexdigest()
        self._memory_file = self._folder_of(message) / f"{pair}.safetensors"
        self._saved = {}
        if message["resume"] is not True:
            self._memory_file.unlink(missing_ok=True)
        elif self._memory_file.exists():
            saved = decode(self._memory_file.read_bytes())
            self.shard.memory.load(
                saved, (self.name,), complete=False
            )  # a site writes after each ask
        self.about = {"pair": self.pair, "method": type(allowed.method).__name__}
        return {
            "facts": json.dumps(asdict(facts_of(clients, self.name, self._fingerprint)))
        }

    def _deal(self, clients: Clients, allowed: Allowed) -> Clients:
        """The client of this site as the fold of a training finds it. Raises `RefusedError` if too few rows would train, or test."""
        view = self.experiment.of_fold(clients, allowed.seed, allowed.fold)
        client, tested = view[0], 0
        if client.test is not None:
            tested = count_labels(client.test.labels, view.form)
        if count_labels(client.train.labels, view.form) < self.settings.minimum_rows:
            raise RefusedError(
                f"a fold leaves fewer than the {self.settings.minimum_rows} training rows under which its site does not answer"
            )
        if allowed.fold not in ("", ALL) and tested < self.settings.minimum_batch:
            raise RefusedError(
                f"a fold tests fewer than the {self.settings.minimum_batch} rows of minimum_batch here; give the plan fewer folds"
            )
        return view

    def _merge_fits(
        self, dealt: Clients, merged: Clients, sites: tuple[str, ...]
    ) -> None:
        """Raise `RefusedError` for few validation rows that one method trains on and another does not: losses of both tell theirs."""
        part = dealt[0].validation
        number = len(merged[0].train) - len(dealt[0].train)
        if part is None or not number:
            return
        # Some of the validation rows may be kept for contributions.
        rows = count_labels(part.labels, dealt.form) * number // len(part)
        least = max(self.settings.minimum_batch, self.settings.minimum_cell)
        if rows < least and any(
            self.name in clients_keeping_validation(of.method, sites)
            for of in self.approved.pairs.values()
        ):
            raise RefusedError(
                "one method of the plan trains on its few validation rows and another does not; give the plan more of them, or none"
            )

    def _parts(self, clients: Clients, allowed: Allowed) -> Clients:
        """The client without parts of which too few rows would speak; the rows of a fold speak with those of all others alone."""
        withheld = parts_withheld(clients, self.settings.minimum_cell)
        if allowed.fold:
            withheld.test = clients.test
        return withheld

    def _module(self, clients: Clients) -> torch.nn.Module:
        """The model of the plan, before the server's numbers are in it."""
        inputs: Any = clients.train.inputs
        recipe: Any = clients.recipe
        with fork_generators():
            module = build_for(
                clients.form,
                self.experiment.build_model(),
                tuple(inputs.shape[1:]),
                outputs_of_recipe(recipe),
            )
        freeze(module, self.experiment.model.get("freeze", []))
        return module

    def _facts(self, clients: Clients) -> Facts:
        return facts_of(
            parts_withheld(clients, self.settings.minimum_cell),
            self.name,
            self._fingerprint,
        )

    def _rights_of(self, pair: Any) -> Allowed:
        pairs = self.approved.pairs
        if not isinstance(pair, str) or pair not in pairs:
            raise RefusedError("the approved plan has no such method and seed")
        if not self.experiment.folds and pairs[pair].seed != self.seed:
            raise RefusedError(f"the rows are those of seed {self.seed}, not of {pair}")
        return pairs[pair]

    def _open_table(self) -> Table:
        if self.table is None:
            raise RefusedError("the rows were not read yet")
        return self.table

    # ---- tasks

    def _ask_in(self, message: Mapping[str, Any]) -> Ask:
        """The ask in a message, to whomever it is. Raises `RefusedError` for one of another form, or that the site does not run."""
        ask = message.get("ask")
        if not isinstance(ask, Ask):
            raise RefusedError("this message holds no task")
        # The fields of a decoded ask may be anything.
        if not isinstance(ask.context, Context) or not isinstance(ask.payload, Mapping):
            raise RefusedError("this message holds no task")
        where = {type(number) for number in astuple(ask.context)[:-1]}
        if (
            where != {int} or type(ask.context.label) is not str
        ):  # the log would tell True from 1, and rights would not
            raise RefusedError(
                "the ask says in another way than by numbers where in the run it stands"
            )
        if type(ask.rounded) is not tuple or {*map(type, ask.rounded)} - {str}:
            raise RefusedError("the ask does not name the fields that are rounded")
        if any(matches(ask.task, rule) for rule in self.settings.refuse):
            raise RefusedError(f"its site refuses the task {short(ask.task)!r}")
        self.about = {
            "settings": {
                str(k)[:40]: _brief(v)
                for k, v in ask.payload.items()
                if not _is_tensor(v)
            }
        }
        return ask

    def _task(self, message: Mapping[str, Any]) -> dict[str, Any]:
        ask = self._ask_in(message)
        if ask.names != (self.name,):
            raise RefusedError(f"the ask is not for {self.name!r}")
        if ask.task in {paired_errors.name, *(task.name for task in TABLE_TASKS)}:
            if (
                ask.context.round != 0
                or ask.context.seed not in self.experiment.run.seeds
            ):
                raise RefusedError(
                    f"the approved plan asks {short(ask.task)!r} in no round, and with its own seeds alone"
                )
            if ask.rounded:
                raise RefusedError(f"{short(ask.task)} holds no model")
            table = ask.task != paired_errors.name
            return {
                "answer": self._statistics(ask)
                if table
                else self._answer_about_pair(ask, message)
            }
        if self.shard is None:
            raise RefusedError("the model was not sent yet")
        allowed = self._rights_of(self.pair)
        allowed.check_rounded(ask)
        limits, context = self._limits(self.shard), ask.context
        declaration = allowed.check(
            ask.task, ask.payload, limits, seed=context.seed, round=context.round
        )
        self._undo(message)
        ask = self._own.fill(ask)
        self.shard.begin(ask)
        requests = self._about_models(ask, self.shard)
        budget = (
            declaration.most_models(limits.clients) * self.approved.plan.deployment.runs
        )
        part = allowed.part_of(ask.task, ask.payload)
        place = Place(self.approved.hash, self.pair, ask.task, context.round, part)
        asked = _Asked(place, tuple(map(self._under_key, requests)), budget)
        self._reserve(asked)
        ask = replace(ask, filters=under_key(allowed.filters, self._key, requests))
        if ask.task == note_outcomes.name:
            answer = self._of_test_rows(ask, self._run_notes(message))
            return {"answer": self._settled(answer, asked, 0.0)}
        self._last = (message["serial"], ask.context)
        answer = self._speakable(self.shard.answer(ask), ask, self.shard.clients)
        answer = self._own.keep(answer, ask, self.pair, allowed, self.shard)
        price = squared_mu(
            allowed, ask.function, ask.arguments, self.shard.workspace.layout
        )
        try:
            answer = self._settled(answer, asked, price)
        except RefusedError:
            self.shard.take_back(ask.context)
            raise
        self._save_memory(self.shard)
        return {"answer": answer}

    # ---- sums behind masks

    def _take_part(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one step of a sum. A step that fails ends the sum here: what it has drawn is forgotten."""
        current, self._sum = self._sum, None
        step = message.get("step")
        try:
            content = unpack(message.get("content"))
            if step == "begin":
                current = self._begin_sum(message, content)
                self.about["peers"] = list(current.ask.names)
                reply = {"content": pack(current.begin())}
            elif current is None or step not in ("deal", "mask", "agree", "reveal"):
                raise RefusedError("this site is in no sum of which that is a step")
            elif step == "mask":
                reply = self._mask(current, message, content)
            else:
                reply = {"content": pack(getattr(current, step)(content))}
        except RefusedError:
            raise
        except InputError as error:  # about messages and names, and nothing of rows
            raise RefusedError(str(error)) from error
        self.about["step"] = step
        if step == "reveal":
            self.about["survivors"] = sorted(current.client.survivors)
            return reply
        self._sum = current
        return reply

    def _begin_sum(
        self, message: Mapping[str, Any], content: Mapping[str, Any]
    ) -> SiteSum:
        """The site's part of the sum that a message asks. Raises `RefusedError` outside the plan."""
        secure, identity = self.experiment.run.secure, self.identity
        if secure is None:
            raise RefusedError("the approved plan has no sums behind masks ([secure])")
        if identity is None:
            raise RefusedError(
                "its settings lie in no kit, so it has no key to sign with; [secure] needs the kits of coterie deploy"
            )
        ask, shard = self._ask_in(message), self.shard
        if shard is None:
            raise RefusedError("the model was not sent yet")
        names, sites = ask.names, self.approved.plan.deployment.sites
        if self.name not in names or list(names) != sorted({*names} & {*sites}):
            raise RefusedError("a sum is among sites of the approved plan, in order")
        allowed, own = self._rights_of(self.pair), ask.to((self.name,))
        limits, context = self._limits(shard), ask.context
        allowed.check_rounded(own)
        allowed.check(
            ask.task,
            own.payload,
            limits,
            seed=context.seed,
            round=context.round,
            masked=True,
        )
        self._undo(message)
        weights = whole_weights(parse_weights(content.get("weights"), names))
        threshold = secure.survivors(len(names))
        check_threshold(threshold, len(names), secure.curious)
        terms = SumTerms(self._context_of(ask), weights, threshold)
        place = Place(self.approved.hash, self.pair, ask.task, context.round)
        # Whatever the site remembers: another answer to the same is masked no second time.
        request = self._under_key(self._hash(own, own.payload, ""))
        client = SignedClient(self.name, terms, identity)
        return SiteSum(ask, place, request, client, self._account)

    def _context_of(self, ask: Ask) -> bytes:
        """The hash of all that the parties of a sum are asked: plan, recipe, model, payload of each, peers, number of the ask."""
        asked = {
            "prepared": self._prepared,
            "task": ask.task,
            "names": ask.names,
            "where": astuple(ask.context),
            "rounded": ask.rounded,
            **{f"payload/{k}": v for k, v in ask.payload.items()},
        }
        return hashlib.sha256(encode(asked)).digest()

    def _mask(
        self, current: SiteSum, message: Mapping[str, Any], content: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The site's integers behind masks, counted and noted before they leave, and the fields beside them."""
        shard, secure = self.shard, self.experiment.run.secure
        if shard is None or secure is None:  # a message has taken it away since
            raise RefusedError("the model was not sent yet")
        allowed, limits = self._rights_of(self.pair), self._limits(shard)
        ask = self._own.fill(current.ask.to((self.name,)))
        shard.begin(ask)
        declaration = allowed.tasks[ask.task][0]
        runs = self.approved.plan.deployment.runs
        budget = declaration.most_models(limits.clients) * runs
        asked = _Asked(current.place, (current.request,), budget)
        self._reserve(asked)
        ask = replace(
            ask, filters=under_key(allowed.filters, self._key, asked.requests)
        )
        self._last = (message["serial"], ask.context)
        shard.workspace.secret_words = self._words_for(current.request)
        answer = self._speakable(shard.answer(ask), ask, shard.clients)
        shard.workspace.secret_words = None
        answer = self._own.keep(answer, ask, self.pair, allowed, shard)
        if answer.failed:
            raise RefusedError(answer.failed[self.name])
        (block,) = answer.blocks
        hidden = masked_fields(ask.function)
        vectors = {key: block.values[key][0] for key in hidden}
        words = integers_of(ask.function, vectors, secure.clip, current.weight)
        price = squared_mu(allowed, ask.function, ask.arguments, shard.workspace.layout)
        try:
            told = Told(len(words), price)
            replies = {current.request: hash_of_words(words)}
            self._account.settle(current.place, replies, told, budget)
            masked = current.mask(words, content)
        except InputError:
            shard.take_back(ask.context)
            raise
        self._save_memory(shard)
        beside = {k: v for k, v in block.values.items() if k not in hidden}
        answer = replace(answer, blocks=(Block(block.names, beside),))
        return {"answer": answer, "words": masked}

    def _words_for(self, request: str) -> Callable[[bytes], DrawWords]:
        """A source of noise for sums, which follows from key and request: the same is told again with the same noise."""

        def source(step: bytes) -> DrawWords:
            return keyed_words(self._key, request.encode() + step)

        return source

    def _undo(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Forget what the last task has remembered, if its answer has not come to the server."""
        serial, lost = self._last
        if (
            message.get("undo") == serial
            and lost is not None
            and self.shard is not None
        ):
            self.shard.take_back(lost)
        return {}

    def _statistics(self, ask: Ask) -> Answer:
        """The answer of a task about the table, which may name the columns that the plan uses and no other."""
        table, arguments = self._open_table(), ask.arguments
        if ask.function in (count_events, sum_followup, sum_counts):
            return self._sums_of_events(ask)
        if ask.function is describe:
            if arguments != description_options(self.options):
                raise RefusedError(
                    "the approved plan has another label or other categories"
                )
        elif set(arguments) - {"schema"} or not set(
            json.loads(arguments["schema"])
        ) <= columns_to_sum(table, self.options):
            raise RefusedError(
                "sums are given of columns of numbers that the plan uses, and of no others"
            )
        reply = ask.function(TableCohort({self.name: table}), **arguments)._asdict()
        if ask.function is describe:
            reply["text"] = (public_description(table, self.options).text(),)
        self.about["rows"] = len(table.parts["train"])
        self._count(ask.task, ask.payload, reply)
        return Answer((Block((self.name,), reply),))

    def _sums_of_events(self, ask: Ask) -> Answer:
        """Counts of events, and time at risk or exposure: of the table whose times tell no row's."""
        table, arguments = self.told_table, ask.arguments
        wanted = {
            "time to event": (count_events, sum_followup),
            "counts": (sum_counts,),
        }
        allowed = wanted.get(form_of_options(self.options), ())
        named = arguments.get("event", arguments.get("label"))
        if (
            table is None
            or ask.function not in allowed
            or named != self.options["label"]
        ):
            raise RefusedError("the approved plan asks no such sums of events")
        if len(json.loads(arguments.get("cuts", "[]"))) > MOST_INTERVALS + 1:
            raise RefusedError("the server asks about more intervals than a plan has")
        reply = ask.function(TableCohort({self.name: table}), **arguments)._asdict()
        self.about["rows"] = len(table.parts["train"])
        self._count(ask.task, ask.payload, reply)
        return Answer((Block((self.name,), reply),))

    def _answer_about_pair(self, ask: Ask, message: Mapping[str, Any]) -> Answer:
        """The errors of a comparison that the plan makes, over all of its seeds."""
        arguments = ask.arguments
        if self.approved.private:
            raise RefusedError(
                "the plan hides rows, so differences between methods stay here; a person there reads them by coterie site verdict"
            )
        if (
            arguments.get("method"),
            arguments.get("other"),
        ) not in self.approved.comparisons or len(arguments) > 2:
            raise RefusedError("the approved plan does not compare these methods")
        noted = self._run_notes(message)
        # Whatever model was sent last, and in whichever run.
        request = self._under_key(
            _hash_of({**arguments, "noted": noted.digest(arguments.values())})
        )
        budget = len(self.approved.comparisons) * self.approved.plan.deployment.runs
        asked = _Asked(Place(self.approved.hash, "", ask.task, 0), (request,), budget)
        self._reserve(asked)
        squared_mu_here = math.inf
        if self.approved.secret:
            told = noisy_numbers_of_comparison()
            squared_mu_here = told / self.approved.metric_noise**2
        return self._settled(self._of_test_rows(ask, noted), asked, squared_mu_here)

    def _of_test_rows(self, ask: Ask, noted: KeptOutcomes) -> Answer:
        return Answer(
            (Block((self.name,), ask.function(noted, **ask.arguments)._asdict()),)
        )

    def _run_notes(self, message: Mapping[str, Any]) -> KeptOutcomes:
        now = (
            None
            if self.shard is None
            else (self.pair, self.shard.clients, self.shard.workspace)
        )
        fits_trees = False
        may_fit = fits_boosted_at_sites(self.experiment) and can_fit()
        if self.shard is not None and may_fit:
            fits_trees = wants_boosted(self.experiment, self.shard.clients)
        veil = None
        if self.approved.private or self.approved.secret:
            veil = KeyedVeil(self._key, self.approved.metric_noise)
        return KeptOutcomes(
            self._folder_of(message),
            self.experiment,
            self.settings.minimum_cell,
            self._key,
            veil,
            now,
            fits_trees=fits_trees,
            mean_weight=self._mean_weight,
        )

    def _folder_of(self, message: Mapping[str, Any]) -> Path:
        """Return where what a run leaves is kept."""
        return (
            self.folder
            / hashlib.blake2b(str(message["run"]).encode(), digest_size=12).hexdigest()
        )

    def _limits(self, shard: Shard) -> Limits:
        """Return the largest dimensions that a payload may have."""
        layout, plan = shard.workspace.layout, self.approved.plan
        classes, sites = shard.workspace.classes, len(plan.deployment.sites)
        down = None
        if self._rights_of(self.pair).down == BF16:
            down = torch.bfloat16
        return Limits(
            layout.size,
            layout.dim,
            classes,
            sites,
            layout.dtype,
            plan.experiment.run.rounds,
            feature_width(layout),
            down,
        )

    def _reserve(self, asked: _Asked) -> None:
        """Spend on what is asked, before anything is computed."""
        self.about["pair"] = asked.place.pair
        self._account.reserve(asked.place, asked.requests, asked.budget)

    def _settled(self, answer: Answer, asked: _Asked, squared: float) -> Answer:
        """Return the answer once it is counted what it tells, with the square of its mu; one without replies tells nothing."""
        if answer.blocks:
            replies = _reply_hashes(answer.blocks[0].values, asked.requests)
            self._account.settle(
                asked.place, replies, Told(count_numbers(answer), squared), asked.budget
            )
        return answer

    def _hash(self, ask: Ask, payload: Mapping[str, Any], memory: str) -> str:
        """The hash of task, payload, prepared model and what the client remembers."""
        values = {f"payload/{k}": v for k, v in payload.items()}
        context = {
            "task": ask.task,
            "round": ask.context.round,
            "prepared": self._prepared,
            "memory": memory,
        }
        return _hash_of({**context, **values})

    def _about_models(self, ask: Ask, shard: Shard) -> tuple[str, ...]:
        """The hash of the request about each model of a payload, as if it came alone."""
        memory = hashlib.sha256(encode(shard.memory.save())).hexdigest()
        return tuple(
            self._hash(ask, payload, memory)
            for payload in about_each_model(ask.function, ask.payload)
        )

    def _speakable(self, answer: Answer, ask: Ask, clients: Clients) -> Answer:
        """An answer without what too few rows stand behind; sentences of errors stay here, since they may quote values."""
        self.about["rows"] = sum(answer.spent.values())
        failed = {}
        for name, why in answer.failed.items():
            self.about["error"] = why[:300]
            failed[name] = (
                f"its task failed ({why.partition(':')[0]}); the site's own log says more"
            )
        fewest = self.settings.minimum_cell
        blocks = tuple(
            Block(
                block.names,
                classes_withheld(
                    ask.task, ask.payload, dict(block.values), clients, fewest
                ),
            )
            for block in answer.blocks
        )
        return replace(answer, blocks=blocks, failed=failed)

    def _save_memory(self, shard: Shard) -> None:
        """Keep what the task has remembered, before its answer counts."""
        now = shard.memory.save()
        if {k: id(v) for k, v in now.items()} == {
            k: id(v) for k, v in self._saved.items()
        }:
            return
        self._saved = now
        path = self._memory_file
        if path is not None:
            message = encode(now)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda p: p.write_bytes(message))


def _hash_of(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(encode(values)).hexdigest()[:32]


def _reply_hashes(
    values: Mapping[str, Any], requests: tuple[str, ...]
) -> dict[str, str]:
    """The hash of the reply to each request about a model: of its own row where a field has one for each, else of the whole field."""
    hashes = {}
    for t, request in enumerate(requests):
        own = {
            key: value[0, t].contiguous() if _has_rows(value, len(requests)) else value
            for key, value in values.items()
        }
        hashes[request] = _hash_of(own)
    return hashes


def _has_rows(value: Any, models: int) -> bool:
    """Return True for a field [1, models, ...] that says something of each model."""
    return (
        models > 1
        and isinstance(value, torch.Tensor)
        and value.ndim > 1
        and value.shape[1] == models
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor | PerClient)


def _brief(value: Any) -> Any:
    """Return what a log keeps of a setting, whose length the server chooses."""
    text = json.dumps(to_json(value))
    return json.loads(text) if len(text) <= LONGEST_SETTING else text[:LONGEST_SETTING]
