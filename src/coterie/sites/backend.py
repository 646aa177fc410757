"""The `Backend` of a run whose clients are sites elsewhere, whatever carries the messages."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from coterie.base.clients import Clients
from coterie.contract.federation import Federation, QuorumError
from coterie.contract.fitting import down_of
from coterie.run.arguments import start_from
from coterie.run.checkpoint import RoundFiles
from coterie.run.evaluation import models_of
from coterie.run.experiment import Experiment
from coterie.run.loop import run_method
from coterie.run.provenance import Provenance
from coterie.run.result import Run
from coterie.sites.comparisons import (
    TOLD,
    Paired,
    comparisons,
    note_outcomes,
    paired_errors,
)
from coterie.sites.server import Remote
from coterie.sites.tables import RemoteClients
from coterie.study.layout import Training
from coterie.study.left_out import ask_left_out, is_left_out
from coterie.study.preflight import initial, pair_world, run_settings


class Sites:
    """The backend over an engine whose clients are sites; methods as of `study.sweep.Backend`."""

    def __init__(self, engine: Remote) -> None:
        self.engine = engine

    def load(self, experiment: Experiment, seed: int) -> Clients:
        """Let the sites read their rows for one seed."""
        return self.engine.open(experiment.data, seed)

    def fit(self, experiment: Experiment, training: Training) -> Run:
        """Run one method on the sites."""
        pair, resume = training.pair, training.resume
        sites = cast("RemoteClients", training.clients)  # which `load` gave
        run, start = experiment.run, initial(experiment)
        method = experiment.build_method(pair.entry)
        if start is not None:
            start_from(training.module, start)
        self.engine.prepare(
            training.module,
            sites,
            pair=pair.name,
            resume=resume,
            kernel=experiment.engine.kernel,
            loss=run.row_loss(sites),
            in_folds=bool(experiment.folds),
        )
        settings = run_settings(
            experiment, resume=resume, callbacks=(training.progress,)
        )
        record = Provenance(
            pair.folder, pair_world(experiment, pair, sites), training.accept_change
        )
        finished = run_method(
            self.engine,
            method,
            run.rounds,
            pair.seed,
            settings,
            filters=experiment.filters,
            files=RoundFiles(pair.folder, record),
        )
        self._let_note(finished, down_of(method, run.down))
        if is_left_out(finished, pair.fold):
            finished = ask_left_out(self.engine, finished)
        meaning = self.engine.loss.meaning(
            sites.classes, sites.label_scale, sites.recipe
        )
        return replace(finished, meaning=meaning)

    def _let_note(self, run: Run, down: str) -> None:
        """Let every site note what its last model, sent as the run says, has for its test rows; one that does not has no clear
        verdict.
        """
        tested = self.engine.rows_of("test")
        models = {**run.models, **dict.fromkeys(run.elsewhere)}
        names = [
            n
            for n in self.engine.clients
            if tested[n] and ("*" in models or n in models)
        ]
        for served, x in models_of(models, names):
            with suppress(QuorumError):
                view = replace(self._view(run.seed, run.rounds), down=down)
                view.ask(served, note_outcomes, x=x)

    def paired_errors(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Return what each site tells of each comparison."""
        view, rows = self._view(experiment.run.seeds[0], 0), list[dict[str, Any]]()
        for method, rival in comparisons(experiment):
            with suppress(QuorumError):
                replies = view.ask(
                    self.engine.clients, paired_errors, method=method, other=rival
                )
                columns = [
                    getattr(replies, key).tolist()
                    for key in (*Paired._fields, "known", "tested", "rarest")
                ]
                for client, *numbers, flags, tested, rarest in zip(
                    replies.clients, *columns, strict=True
                ):
                    pair = {"client": client, "method": method, "other": rival}
                    pair |= {"tested": int(tested), "rarest": int(rarest)}
                    rows += [
                        {
                            **pair,
                            "metric": metric,
                            **dict(zip(Paired._fields, values, strict=True)),
                        }
                        for metric, is_known, *values in zip(
                            TOLD, flags, *numbers, strict=True
                        )
                        if is_known
                    ]
        return rows

    def _view(self, seed: int, number: int) -> Federation:
        start = Federation(self.engine, self.engine.clients, seed)
        return start.view(self.engine.clients, number, secrets.randbits(48))
