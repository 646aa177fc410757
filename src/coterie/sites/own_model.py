"""The model that a site has made for itself: it is evaluated there and stays in its folder, where `coterie predict` finds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from coterie.compute.cohort import Shard
from coterie.contract.payload import payload_fields
from coterie.contract.wire import Answer, Ask, Block
from coterie.run.experiment import Experiment
from coterie.run.files import ALL, safe_name, seed_suffix, write_json
from coterie.run.model_files import about_models, save_model
from coterie.run.result import Run
from coterie.sites.allowed import Allowed, RefusedError
from coterie.study.predict import MODEL


class OwnModel:
    """The own model of a site in one method and seed.

    Args:
        folder: where it is written after the last round, in a folder for each method and seed.
        experiment: experiment of the plan.
    """

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self._folder, self._experiment = folder, experiment
        self._x: Tensor | None = None

    def fill(self, ask: Ask) -> Ask:
        """Return the ask with the model where None stands for it. Raises `RefusedError` if there is none yet."""
        fields = [
            key
            for key, declared in payload_fields(ask.function).items()
            if declared.holds is not None and declared.holds.own
        ]
        blank = [
            key for key in fields if key in ask.payload and ask.payload[key] is None
        ]
        if blank and self._x is None:
            raise RefusedError("it has made no model of its own yet")
        if not blank:
            return ask
        return replace(ask, payload={**ask.payload, **dict.fromkeys(blank, self._x)})

    def keep(
        self, answer: Answer, ask: Ask, pair: str, allowed: Allowed, shard: Shard
    ) -> Answer:
        """Return the answer without the model that it holds, if it holds one; from now on that is the site's own. It is written after
        the last round, unless it was trained without the rows of a fold.
        """
        field = next(
            (key for key, kind in ask.function.kinds.items() if kind == "own"), None
        )
        if field is None or not answer.blocks:
            return answer
        values = dict(answer.blocks[0].values)
        self._x = x = values.pop(field)[0]
        if ask.context.round == self._experiment.run.rounds and allowed.fold in (
            "",
            ALL,
        ):
            label = pair.removesuffix(f"-{seed_suffix(allowed.seed, allowed.fold)}")
            run = Run(
                label,
                allowed.seed,
                ask.context.round,
                None,
                {ask.names[0]: x},
                shard.workspace.model,
            )
            _write(
                self._folder / safe_name(f"{pair}-{ask.names[0]}"),
                run,
                shard,
                self._experiment,
            )
        return replace(answer, blocks=(Block(ask.names, values),))


def _write(place: Path, run: Run, shard: Shard, experiment: Experiment) -> None:
    """Write the model of the only client of a shard as `coterie finalise` would: with the recipe."""
    clients, (client,) = shard.clients, shard.clients.names
    meaning = shard.workspace.loss.meaning(
        clients.classes, clients.label_scale, clients.recipe
    )
    run = replace(run, meaning=meaning)
    metadata = {
        **about_models(run.method, run, clients),
        "client": client,
        "model": experiment.tables()["model"],
    }
    place.mkdir(parents=True, exist_ok=True)
    save_model(place / MODEL, run, client, metadata)
    write_json(place / "preprocess.json", clients.recipe)
