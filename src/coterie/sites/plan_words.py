"""A plan in words, for the person at a site who is to approve it: all that is asked, and all that leaves, in numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from coterie.base.errors import visible
from coterie.base.label_form import LabelForm
from coterie.base.layers import feature_width
from coterie.base.vector import Layout
from coterie.compute.bounded_slopes import clip_of, longest
from coterie.config.local import LocalSGD
from coterie.config.registry import FILTERS
from coterie.config.row_noise import RowNoise
from coterie.config.schema import spell
from coterie.config.secure import SecureSums
from coterie.contract.down import FLOAT32
from coterie.contract.filters import Filter
from coterie.contract.fitting import curvature_task, filters_of
from coterie.contract.replies import CURVATURE, LOSSES, VECTORS, row_shape
from coterie.contract.requests import Asks, Limits
from coterie.contract.wire import Ask, Context
from coterie.data.tables.agreement import agree
from coterie.data.tables.intervals import form_at_most
from coterie.data.tables.recipe import TableCohort
from coterie.filters.clip import Clip
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.models import build_for
from coterie.run.experiment import Experiment
from coterie.run.files import seed_suffix
from coterie.run.private_methods import BOUND_SUMS, noise_by_row
from coterie.sites.allowed import Allowed
from coterie.sites.approval import Approved
from coterie.sites.attack_requests import example_payload
from coterie.sites.comparisons import TOLD, Paired, fits_boosted_at_sites
from coterie.sites.followup import form_of_options, times_withheld
from coterie.sites.ledger import Account, count_numbers
from coterie.sites.minima import STATISTICS, table_withheld
from coterie.sites.plan import robustness_note
from coterie.sites.price import check_epsilon, price_in_words
from coterie.sites.settings import SiteSettings, short
from coterie.sites.tables import (
    left_out,
    outputs_of_recipe,
    read_site,
    settings_of_file,
    table_options,
    table_settings,
)
from coterie.study.layout import trainings
from coterie.study.left_out import FEWEST_CLIENTS
from coterie.study.preflight import metric_names

FACTS = 7
"""Numbers about its rows that a site tells when they were encoded, and when a model was prepared."""


_BEHIND_NOISE = "behind noise as large as what one row can move them"


def in_words(approved: Approved, settings: SiteSettings, site: str) -> Iterator[str]:
    """Yield what a plan will ask of a site and what will leave it line by line, with the whole plan at the end.

    Whoever wrote the plan may have put anything into its texts, so each line is `visible`.
    """
    yield from map(
        visible, _lines(approved, settings, _Size.of(approved, settings, site))
    )


def check_what_is_left(approved: Approved, settings: SiteSettings, site: str) -> None:
    """Raise `RefusedError` if the plan costs more than the site has left of its epsilon."""
    size = _Size.of(approved, settings, site)
    told = Account(Path(settings.log)).mu
    check_epsilon(approved.price(size.module), told, settings, size.rows)


def model_of(approved: Approved, settings: SiteSettings, site: str) -> nn.Module:
    """Return the model of a plan on the columns of one site."""
    return _Size.of(approved, settings, site).module


@dataclass(frozen=True)
class _Size:
    """The model of a plan on the columns of one site, and the numbers that leave it before the first round.

    Attributes:
        module: the model.
        inputs: features.
        classes: classes of the label; 0: numbers.
        rows: rows of the site.
        beginning: numbers, for each seed.
    """

    module: nn.Module
    inputs: int
    classes: int
    rows: int
    beginning: int

    @classmethod
    def of(cls, approved: Approved, settings: SiteSettings, site: str) -> _Size:
        experiment = approved.plan.experiment
        options = table_options(experiment.data)
        options.pop("server_file", None)
        split, seed = experiment.split or None, experiment.run.seeds[0]
        table, _ = read_site(settings.data, site, options, seed=seed, split=split)
        least = settings.minimum_cell
        told = times_withheld(table_withheld(table, options, least), options, least)
        cohort = TableCohort({site: told})
        numbers = 1

        def ask(task: Any, **payload: Any) -> Any:
            nonlocal numbers
            reply = task(cohort, **payload)
            numbers += count_numbers(reply)
            return reply

        recipe = agree(
            (site,),
            settings_of_file(table_settings(options), table, site),
            ask,
            form_at_most,
        )
        inputs, classes = len(recipe["features"]), len(recipe["label"]["classes"])
        form = LabelForm.of_recipe(recipe["label"])
        outputs = outputs_of_recipe(recipe)
        module = build_for(form, experiment.build_model(), (inputs,), outputs)
        return cls(module, inputs, classes, len(table), numbers + FACTS)

    def numbers(self, declaration: Asks, owner: Any, approved: Approved) -> int:
        """Numbers that one task releases in a round of a run at most."""
        plan, layout = approved.plan, Layout.of(self.module)
        sites, task = len(plan.deployment.sites), declaration.task
        limits = Limits(
            layout.size,
            layout.dim,
            self.classes,
            sites,
            layout.dtype,
            plan.experiment.run.rounds,
            feature_width(layout),
        )
        payload, models = (
            example_payload(declaration, owner, limits),
            declaration.most_models(sites),
        )
        arguments = Ask(("",), task.name, payload, Context(0, 1, 1, 1)).arguments
        total = 0
        for field, kind in task.kinds.items():
            if kind == "own":  # it stays
                continue
            form = task.forms.get(field)
            free = models * (layout.size if kind in VECTORS else 1)
            total += (
                free if form is None else math.prod(row_shape(form, arguments, layout))
            )
        return total


def _lines(approved: Approved, settings: SiteSettings, size: _Size) -> Iterator[str]:
    experiment, deployment = approved.plan.experiment, approved.plan.deployment
    options, run = table_options(experiment.data), experiment.run
    yield f"plan      SHA-256 {approved.hash}"
    yield f"server    {deployment.server}:{deployment.port}; it alone may ask"
    yield f"predicts  {_label_words(options)}; leaves out {', '.join(sorted(left_out(options))) or 'no column by name'}"
    yield f"rows      {_split_words(experiment)}"
    if options.get("weights") is not None:
        yield (
            f"weights   rows count by {options['weights']}, divided by its mean here; it is no input, and of no row it leaves. Minima "
            "are of effective rows, (sum w)^2 / sum w^2"
        )
    for_each = "" if experiment.folds else " for each seed"
    sums = f"{STATISTICS} sums of each column of numbers{for_each}, "
    if options.get("bounds"):
        sums = ""
    of_events = _words_of_events(options, settings.minimum_cell)
    yield (
        f"before    leaves: names and kinds of columns, categories of at least {settings.minimum_cell} training rows, {sums}"
        f"{of_events}numbers of rows, a keyed hash"
    )
    model = {"name": "logistic", **experiment.model}
    parameters = sum(p.numel() for p in size.module.parameters())
    yield (
        f"model     {model.pop('name')}{f' {model}' if model else ''}: {size.inputs} inputs from this site's columns, "
        f"{parameters} parameters"
    )
    if run.down != FLOAT32:
        yield "          the server sends each model in 16 bits a number, but for references (run.down)"
    of_each = "training" if experiment.folds else "seed"
    first_training = seed_suffix(*trainings(experiment)[0])
    for entry in experiment.methods:
        of_method = approved.pairs[f"{entry.label}-{first_training}"]
        method = experiment.build_method(entry)
        filters = filters_of(method, experiment.filters)
        training = _training_words(getattr(method, "local", None), of_method.secure)
        if any(task in BOUND_SUMS for task in of_method.of_method):
            training = _sums_of_rows_words(noise_by_row(method), size.inputs)
        yield f"method    {entry.label}: {run.rounds} rounds{training}"
        yield from (
            f"          before it leaves, {_filter_words(step)}" for step in filters
        )
        for declaration, owner in of_method.of_method.values():
            task = declaration.task
            is_sum = of_method.hides_rows_of(task.name)
            fields = ", ".join(
                _field_words(field, kind, filters, approved.secret, is_sum=is_sum)
                for field, kind in task.kinds.items()
            )
            if of_method.is_summed(task.name):
                fields += _sum_words(of_method, len(deployment.sites))
            models = declaration.most_models(len(deployment.sites)) * deployment.runs
            asked_times = of_method.times(task.name) * deployment.runs
            yield (
                f"          {short(task.name)} leaves: {fields}; of up to {models} models in each round, "
                f"{size.numbers(declaration, owner, approved) * asked_times} numbers in all for each {of_each}"
            )
        if curvature_task(method) and not approved.private:
            yield (
                "          no noise hides curvature: from it the server can compute this site's own model of each training"
            )
    if run.contribution is not None:
        candidates = (
            max(allowed.candidates for allowed in approved.pairs.values())
            * deployment.runs
        )
        yield (
            f"sees      combinations of the other sites' updates, each update alone among them, in up to {candidates} models in each "
            "round of each method, and tells their losses on validation rows that nobody trains on; the others see this site's updates "
            "so (run.contribution)"
        )
    yield from (
        _private_words(approved)
        if approved.private
        else _result_words(approved, settings)
    )
    yield from _words_of_others(approved, settings.minimum_cell)
    if fits_boosted_at_sites(experiment):
        yield (
            "fits      boosted trees to the site's own rows, a rival of every method; trees and their losses of rows stay, and of a "
            "difference to them as much is told as of one between methods"
        )
    budget = sum(sum(approved.models(pair).values()) for pair in approved.pairs)
    yield f"budget    {budget} models in {deployment.runs} runs; a site that is asked about more needs a new approval"
    start = size.beginning * len(experiment.split_seeds) + FACTS * len(approved.pairs)
    at_the_end = len(approved.comparisons) * (len(TOLD) * (len(Paired._fields) + 1) + 2)
    in_rounds = 0
    for allowed in approved.pairs.values():
        for name, (declaration, owner) in allowed.tasks.items():
            in_rounds += size.numbers(declaration, owner, approved) * allowed.asks_of(
                name
            )
    numbers = start + at_the_end + in_rounds * deployment.runs
    account = Account(Path(settings.log))
    yield (
        f"released  {account.numbers} numbers so far, under all plans; this plan adds up to {numbers}, {start} of them before the "
        "first round"
    )
    yield from price_in_words(
        approved.price(size.module), account.mu, settings, size.rows
    )
    yield (
        f"stays     rows, identifiers, anything of fewer than {settings.minimum_rows} training rows, and gradients of fewer than "
        f"{settings.minimum_batch} rows"
    )
    if deployment.described is None:
        yield "note      the plan does not state the sites' columns, so each site may change what the others make of theirs"
    yield from (
        f"note      {note}" for note in (robustness_note(approved.plan),) if note
    )
    yield "still     an update says something about the rows that made it: a dishonest server can find some (docs/trust.md)"
    refused = ", ".join(settings.refuse)
    yield f"refused   {refused or 'no task of the plan'}"
    yield "the plan  as it is written, with all defaults:"
    for table, values in {**experiment.tables(), "deploy": spell(deployment)}.items():
        for number, row in enumerate(values if isinstance(values, list) else [values]):
            where = f"{table}.{number}" if isinstance(values, list) else table
            yield from (
                f"          [{where}] {key} = {json.dumps(value, ensure_ascii=False)}"
                for key, value in row.items()
            )


def _label_words(options: Mapping[str, Any]) -> str:
    if options.get("exposure") is not None:
        return f"{options['label']}, counted per {options['exposure']}"
    if options.get("ordered"):
        return f"{options['label']}, whose classes have an order"
    if options.get("event") is None:
        return str(options["label"])
    since = f" from {options['entry']} on" if options.get("entry") else ""
    return f"when {options['label']} happens, by {options['time']}{since}"


def _words_of_events(options: Mapping[str, Any], least: int) -> str:
    """Say what leaves of times and counts before training; "" for other labels."""
    form = form_of_options(options)
    if form == "counts":
        return "the sum of counts and that of exposure for each seed, "
    if not form:
        return ""
    rows = f"at least {least} training rows" if least > 1 else "single training rows"
    return (
        f"events and ends of follow-up counted in cells of time (each 19 % longer than the last) of {rows}, and time at risk as these "
        f"counts give it, but no time of a row, "
    )


def _result_words(approved: Approved, settings: SiteSettings) -> Iterator[str]:
    """Say what leaves of losses, metrics and differences between methods."""
    experiment = approved.plan.experiment
    noise = f", {_BEHIND_NOISE if approved.secret else 'as they are'}"
    hidden = (
        f"{'; of a fold that is tested no number' if experiment.folds else ''}{noise}"
    )
    yield f"each time the loss and {', '.join(metric_names(experiment))} of parts of at least {settings.minimum_cell} rows{hidden}"
    rows = "all rows, each tested once a repeat" if experiment.folds else "test rows"
    effective = "effective " if experiment.data.get("weights") else ""
    yield (
        f"at the end of {len(approved.comparisons)} differences between methods the mean, standard error and p value, over {rows}; "
        f"the mean {', '.join(TOLD)} of each method{noise}; how many {effective}rows, and of the rarer class, from "
        f"{settings.minimum_cell} on"
    )


def _words_of_others(approved: Approved, least: int) -> Iterator[str]:
    """Say for which methods the site tests a model of the other sites alone, and what leaves of that."""
    experiment, sites = approved.plan.experiment, approved.plan.deployment.sites
    if len(sites) < FEWEST_CLIENTS:
        return
    training = "each seed"
    if experiment.folds:
        training = "its training on all rows"
    for entry in experiment.methods:
        if experiment.build_method(entry).tells_quadratics:
            yield (
                f"tests     after {training} of {entry.label} the mean of the other sites' models on its training rows; its mean gain "
                f"over a constant prediction and the error of that leave, where each class has {least} rows"
            )


def _private_words(approved: Approved) -> Iterator[str]:
    """Say what stays under [privacy], and by how much several trainings and runs tell more than one."""
    privacy = approved.plan.experiment.privacy
    tell = privacy.tell if privacy is not None else ()
    if tell:
        yield (
            f"each time {' and '.join(tell)} of an evaluation, each behind noise of as many times what a row can move it as a step has"
        )
    stays = "all other losses" if tell else "losses"
    yield f"stays     {stays}, metrics and differences between methods; a person here reads them by coterie site verdict"
    private = [
        allowed
        for allowed in approved.pairs.values()
        if not allowed.method.is_reference
    ]
    times = len(private) * approved.plan.deployment.runs
    if times > 1:
        yield (
            f"note      the noise is made for one training in one run, and there are {len(private)} trainings in "
            f"{approved.plan.deployment.runs} runs, each of which tells again: mu is up to {math.sqrt(times):.3g} times as large"
        )


def _split_words(experiment: Experiment) -> str:
    """Say how rows are dealt, and how often each method is trained."""
    seeds = experiment.run.seeds
    draw = f"by seed {', '.join(map(str, seeds))}"
    if not experiment.folds:
        return f"split {dict(experiment.split) or 'one third to test'} {draw}"
    return (
        f"dealt into {experiment.folds} folds, {len(seeds)} times: {len(trainings(experiment))} trainings of each method, each without "
        f"the rows of one fold and the last on all rows; split {dict(experiment.split)} {draw}"
    )


def _sum_words(allowed: Allowed, sites: int) -> str:
    """Say what the server sees of vectors that are summed behind masks."""
    if allowed.secure is None:
        return ""
    fewest, curious = allowed.secure.survivors(sites), allowed.secure.curious
    return f"; behind masks, so that the server sees the sum over {fewest} sites at least, among which {curious} may help it"


def _training_words(local: Any, secure: SecureSums | None) -> str:
    if not isinstance(local, LocalSGD):
        return ""
    unit = type(local.steps).__name__.lower()
    rows = f"{local.batch_size or 'all'} rows"
    if local.accumulate > 1:
        rows = f"{local.accumulate} batches of {rows}"
    words = f", local training of {local.steps.count} {unit} with {rows} each, rate {local.lr}"
    noise = local.private
    if noise is None or noise.clip is None:
        return words
    deviation, whose = noise.noise_multiplier * noise.clip, "their sum"
    if secure is not None and secure.threshold is not None:
        deviation, whose = deviation / math.sqrt(secure.threshold), "the site's sum"
    return (
        f"{words}; the gradient of each row is cut to a length of {noise.clip:g}, and {whose} gets noise of deviation "
        f"{deviation:.3g}, drawn under a key that stays here"
    )


def _sums_of_rows_words(noise: RowNoise | None, columns: int) -> str:
    """Say what is told of a method that sums rows of limited length in place of training."""
    if noise is None:
        return ""
    reach, clip = longest(columns, noise), clip_of(noise)
    numbers = columns * (columns + 1) // 2
    return (
        f"; the products of rows, each cut to a length of {reach:.3g}, are summed once: {numbers} numbers with noise of deviation "
        f"{noise.noise_multiplier * reach**2:.3g}; in each round the gradients of rows, each cut to a length of {clip:g}, are summed "
        f"with noise of deviation {noise.noise_multiplier * clip:.3g}; all of it is drawn under a key that stays here"
    )


def _filter_words(step: Filter) -> str:
    """Say what a filter does."""
    if isinstance(step, Clip):
        return f"an update or gradient is clipped to a length of {step.bound}"
    if isinstance(step, GaussianNoise):
        drawn = (
            "drawn under a key that stays here"
            if step.secret
            else "which the server can compute and subtract"
        )
        return f"each of its numbers gets noise of deviation {step.sigma}, {drawn}"
    return f"it passes {FILTERS.name_of(type(step)) or type(step).__name__}"


def _field_words(
    field: str, kind: str, filters: tuple[Filter, ...], secret: bool, *, is_sum: bool
) -> str:
    words = {
        "update": "a local model minus the one received",
        "gradient": "a gradient",
        "curvature": "a model or gradient of its rows, or their curvature",
        "loss": "losses and metrics",
        "gap": "a difference of losses",
        "stay": "a difference of losses",
        "choice": "which of the models it is sent fit best, by losses",
        "words": "the sum of clipped gradients of its rows as integers with noise",
    }
    if is_sum and kind == CURVATURE:
        return f"{field} (a sum over its rows, behind noise)"
    if kind == "own":
        return f"{field} (no number: its own model stays here)"
    meaning = [words[kind]] if kind in words else []
    if secret and kind in (*LOSSES, "choice"):
        meaning += [_BEHIND_NOISE]
    elif (
        filters and kind != "words" and not any(kind in step.kinds for step in filters)
    ):
        meaning += ["as it is, through no filter"]
    return f"{field} ({', '.join(meaning)})" if meaning else field
