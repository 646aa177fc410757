"""Run every method and seed of an experiment, save as it goes, and write the files that people and reports read."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from coterie.base.clients import Clients
from coterie.base.errors import InputError, RunError, cut
from coterie.base.system import few_collections
from coterie.run.evaluation import add_metrics
from coterie.run.experiment import Experiment
from coterie.run.files import (
    ALL,
    FILES,
    PAIRED,
    WRITER,
    YARDSTICKS,
    hash_of,
    own_files,
    require_readable,
    safe_name,
    write_json,
)
from coterie.run.fit import one_thread, share_validation
from coterie.run.hashes import (
    PROVENANCE,
    TABLES,
    hash_of_tree,
    hashes,
    read_record,
    write_record,
)
from coterie.run.model_files import save_models
from coterie.run.personalise import personalise
from coterie.run.provenance import Provenance, describe_acceptances
from coterie.run.result import Run
from coterie.run.tables import write_experiment
from coterie.study.jobs import Jobs
from coterie.study.layout import (
    Pair,
    Training,
    exclusive,
    first_fold,
    is_run,
    is_whole,
    pairs_of,
    refuse_other_settings,
    refuse_others,
)
from coterie.study.left_out import is_left_out, measure_left_out
from coterie.study.preflight import (
    check_everything,
    model_to_train,
    pair_length,
    pair_settings,
    pair_world,
    run_settings,
    train,
)
from coterie.study.progress import Event, Status
from coterie.study.rivals import fits_boosted, prepare_rivals, rival_notes
from coterie.study.row_outcomes import write_outcomes
from coterie.study.search import tuning_notes
from coterie.study.tables import seal_tables, write_tables
from coterie.study.trees import check_yardstick, entries_of, measure_trees

PACKAGES_OF_NUMBERS = (
    "torch",
    "numpy",
    "scipy",
    "clarabel",
    "scikit-learn",
    "pandas",
    "pyarrow",
    "safetensors",
)
"""Packages that compute, read or keep numbers of a run, where they are installed."""


class Backend(Protocol):
    """The place where an experiment runs: who has the rows, and which engine trains on them."""

    def load(self, experiment: Experiment, seed: int) -> Clients:
        """The clients of one seed; rows of zeros stand for rows that are elsewhere."""

    def fit(self, experiment: Experiment, training: Training) -> Run:
        """Run one method on the clients that `load` gave last."""

    def paired_errors(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Return the rows of `paired.json` of a finished run; none where the rows are here, and `outcomes/` says more."""


class _Here:
    """This machine."""

    def load(self, experiment: Experiment, seed: int) -> Clients:
        return experiment.load_data(seed)

    def fit(self, experiment: Experiment, training: Training) -> Run:
        pair = training.pair
        rounds, stopping = pair_length(experiment, pair)
        label = pair.entry.label
        if pair.fold:
            label = f"{label}-k{pair.fold}"
        settings = pair_settings(
            experiment,
            pair.entry,
            resume=training.resume,
            accept_change=training.accept_change,
            callbacks=(*stopping, training.progress),
            label=label,
        )
        return train(
            experiment,
            pair.entry,
            training.clients,
            training.module,
            rounds,
            pair.seed,
            settings,
            checkpoint=pair.folder,
        )

    def paired_errors(self, experiment: Experiment) -> list[dict[str, Any]]:
        return []


@few_collections()
def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    accept_change: Sequence[str] = (),
    command: str = "",
    notify: Callable[[Event], None] | None = None,
    backend: Backend | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Run every method and seed, and write the run directory; on this machine, or where `backend` says.

    Bad input is found before any training. With `resume` what is complete is not done again; what was damaged since is made again
    from the checkpoint, and `say` is told. What numbers depend on must be as it was, but for what `accept_change` names.

    Raises:
        InputError: bad settings or data, or a run directory of another experiment.
        RunError: a run that cannot go on; what was saved stays.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    seeds = experiment.run.seeds
    add_metrics(experiment.run.metrics)
    _refuse_elsewhere(experiment, backend)
    site = backend or _Here()
    loaded = site.load(experiment, seeds[0])
    fold = first_fold(experiment.folds)
    clients_at_first = experiment.of_fold(loaded, seeds[0], fold)
    check_everything(experiment, clients_at_first)
    check_yardstick(experiment, clients_at_first)
    refuse_others(folder, resume)
    if is_run(folder):
        require_readable(folder)
        refuse_other_settings(experiment, folder)
    entries = (*experiment.methods, *entries_of(experiment))
    pairs = pairs_of(folder, entries, seeds, experiment.folds)
    if resume:
        for pair in pairs:
            pair.refuse_copy()
            pair.refuse_lost_history()
            if (pair.seed, pair.fold) == (
                seeds[0],
                pairs[0].fold,
            ) and pair.saved() is not None:  # before anything is written
                _compare_worlds(experiment, pair, clients_at_first, accept_change)
    status = Status(
        [p.key for p in pairs], experiment.run.rounds, notify, experiment.run.jobs
    )
    if isinstance(site, _Here):
        prepare_rivals(experiment, clients_at_first)
    with experiment.engine.keep_open(), exclusive(folder):
        _write_beginning(experiment, folder, clients_at_first)
        try:
            load = functools.partial(site.load, experiment)
            # Those on all rows are trained as long as the others were, and so wait for them.
            for stage in (
                [p for p in pairs if p.fold != ALL],
                [p for p in pairs if p.fold == ALL],
            ):
                with Jobs(experiment.run.jobs) as running, one_thread():
                    for clients, pair in _with_clients(
                        experiment, stage, folder, loaded, load
                    ):
                        if resume and is_whole(pair, say):
                            _compare_worlds(experiment, pair, clients, accept_change)
                            status.skip(*pair.key)
                        else:
                            work = functools.partial(
                                _run_pair,
                                experiment,
                                pair,
                                clients,
                                site,
                                resume,
                                tuple(accept_change),
                            )
                            running.run(work, functools.partial(status.of, *pair.key))
        finally:
            if is_run(folder):  # it may have been moved
                _write_end(
                    folder,
                    pairs,
                    [*_notes(experiment, clients_at_first), *tuning_notes(folder)],
                    _environment(command, started),
                )
        paired = site.paired_errors(experiment)
        if paired:
            write_json(folder / PAIRED, paired)
        seal_tables(folder)


def _refuse_elsewhere(experiment: Experiment, backend: Backend | None) -> None:
    """Raise `InputError` for what works only where all rows are, and for jobs where the engine cannot be forked."""
    run, where = experiment.run, experiment.where
    here_alone = (
        experiment.attack,
        experiment.callbacks,
        run.appeal,
        run.yardstick,
        *(m.personalise or m.seeds for m in experiment.methods),
    )
    if backend is not None and any(here_alone):
        raise InputError(
            f"{where}: [attack], [[callbacks]], run.appeal, run.yardstick, seeds of a method and personalise work where all rows are "
            "on this machine; leave them out of a plan for sites"
        )
    if run.jobs != 1 and (backend is not None or not experiment.engine.forks):
        raise InputError(
            f"{where}: run.jobs = {run.jobs} needs the engine inprocess on the CPU; leave it out"
        )


def _compare_worlds(
    experiment: Experiment, pair: Pair, clients: Clients, accept_change: Sequence[str]
) -> None:
    """Raise `InputError` if the world in which a pair was computed has changed, but for what is accepted."""
    Provenance(
        pair.folder, pair_world(experiment, pair, clients), accept_change
    ).compare("it was complete")


def _write_beginning(experiment: Experiment, folder: Path, clients: Clients) -> None:
    (folder / TABLES).unlink(missing_ok=True)
    write_json(folder / "format.json", WRITER, durable=True)
    write_experiment(folder / "experiment.toml", experiment)
    paths = own_files(experiment.tables())
    if paths:
        write_json(folder / FILES, {path: hash_of(Path(path)) for path in paths})
    write_json(folder / "notes.json", _notes(experiment, clients))


def _notes(experiment: Experiment, clients: Clients) -> list[str]:
    """Sentences about the data, the experiment, and what its methods do with these clients."""
    sentences = [*clients.notes, *experiment.notes, *rival_notes(experiment, clients)]
    for entry in experiment.methods:
        notes = experiment.build_method(entry).notes(clients.names)
        if isinstance(notes, str) or not all(isinstance(note, str) for note in notes):
            raise InputError(
                f"{entry.label}: notes must return a list of sentences; got {cut(notes)}"
            )
        sentences += [f"{entry.label}: {note}" for note in notes]
    return sentences


def _write_end(
    folder: Path,
    pairs: Sequence[Pair],
    notes: Sequence[str],
    made_by: Mapping[str, Any],
) -> None:
    write_tables(folder, pairs)
    accepted = [
        sentence for pair in pairs for sentence in describe_acceptances(pair.folder)
    ]
    write_json(folder / "notes.json", [*notes, *accepted])
    write_json(folder / "environment.json", made_by)


def _environment(command: str, started: str) -> dict[str, Any]:
    """Versions and machine, for whoever repeats the run."""
    from coterie import __version__

    versions = {"coterie": __version__, "python": platform.python_version()}
    for package in PACKAGES_OF_NUMBERS:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    arithmetic = {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": 1,  # `one_thread`
        **{
            name: os.environ.get(name, "")
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        },
    }
    machine = {
        "system": platform.platform(),
        "processor": platform.machine(),
        **arithmetic,
    }
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "command": command or " ".join(sys.argv),
        "versions": versions,
        "machine": machine,
        "started": started,
        "finished": finished,
    }


def _with_clients(
    experiment: Experiment,
    pairs: Sequence[Pair],
    folder: Path,
    loaded: Clients,
    load: Callable[[int], Clients],
) -> Iterator[tuple[Clients, Pair]]:
    """Each pair and the clients of its seed and fold; recipes are written as soon as they are known, with folds one for all."""
    recipes: dict[str, Any] = {}
    clients = loaded
    for (seed, fold), group in itertools.groupby(
        pairs, lambda pair: (pair.seed, pair.fold)
    ):
        if not experiment.folds and seed != experiment.run.seeds[0]:
            clients = load(seed)
        if clients.recipe is not None:
            # Folds divide the rows of the first seed, so that all seeds share its recipe.
            first = experiment.run.seeds[0] if fold else seed
            recipes[str(first)] = clients.recipe
            write_json(folder / "preprocess.json", recipes)
        view = experiment.of_fold(clients, seed, fold)
        for pair in group:
            yield view, pair


def _run_pair(
    experiment: Experiment,
    pair: Pair,
    clients: Clients,
    backend: Backend,
    resume: bool,
    accept_change: tuple[str, ...],
    progress: Callable[[int], None],
) -> None:
    if pair.entry.name in YARDSTICKS:
        pair.folder.mkdir(parents=True, exist_ok=True)
        pair.history.touch()
        Provenance(pair.folder, pair_world(experiment, pair, clients)).write()
        rows = [
            {**row, "fold": pair.fold}
            for row in measure_trees(experiment, pair.entry, clients, pair.seed)
        ]
        _seal_pair(
            pair, [pair.history], {"summary": rows, "failures": {}, "history": []}
        )
        return
    module = model_to_train(experiment, clients, pair.seed)
    try:
        result = backend.fit(
            experiment, Training(pair, clients, module, resume, accept_change, progress)
        )
    except RunError as error:
        raise RunError(f"{pair.words}: {error}") from error
    label, tuning = pair.entry.label, pair.entry.personalise
    if tuning is not None:
        settings = run_settings(experiment)
        result = personalise(
            result, clients, **vars(tuning), engine=experiment.engine, settings=settings
        )
    is_here = isinstance(backend, _Here)
    if is_here and is_left_out(result, pair.fold):
        loss = experiment.run.row_loss(clients)
        trained = share_validation(
            clients,
            result.method,
            clients.names,
            experiment.run.merge_validation,
            contribution=experiment.run.contribution is not None,
        )
        result = measure_left_out(result, trained, loss)
    files = [
        pair.history,
        *save_models(pair.run / "models", label, result, clients, pair.fold),
    ]
    if is_here:
        outcomes = pair.run / "outcomes" / f"{safe_name(pair.name)}.safetensors"
        write_outcomes(
            outcomes,
            label,
            result,
            clients,
            experiment.run.row_loss(clients),
            pair.fold,
            boosted=fits_boosted(experiment, pair.entry, clients, pair.seed),
        )
        files.append(outcomes)
    rows = [
        {"method": label, "algorithm": pair.entry.name, "fold": pair.fold, **row}
        for row in result.summary
    ]
    # What was measured before tuning is of other models.
    history = None
    if tuning is not None:
        history = result.history.columns()
    _seal_pair(
        pair, files, {"summary": rows, "failures": result.failures, "history": history}
    )


def _seal_pair(pair: Pair, files: Iterable[Path], results: Mapping[str, Any]) -> None:
    provenance = hash_of_tree(read_record(pair.folder / PROVENANCE)["record"])
    written = hashes(pair.run, (f for f in files if f.exists()))
    write_record(pair.done, {"provenance": provenance, **results, "files": written})
