"""The model that a site has made for itself: it is evaluated there and stays in its folder, where `coterie predict` finds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from coterie.compute.shard import Shard
from coterie.contract.wire import Answer, Ask, Block
from coterie.run.experiment import Experiment
from coterie.run.files import safe_name, write_json
from coterie.run.history import Meaning, Run
from coterie.run.model_files import about_models, save_model
from coterie.sites.allowed import RefusedError
from coterie.study.predict import MODEL

__all__ = ["OwnModel"]


class OwnModel:
    """The own model of a site in one method and seed.

    Args:
        folder: where it is written after the last round, in a folder for each method and seed.
        experiment: of the plan.
    """

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self._folder, self._experiment = folder, experiment
        self._x: Tensor | None = None

    def fill(self, ask: Ask) -> Ask:
        """Return the ask with the model where None stands for it. Raises `RefusedError` if there is none yet."""
        fields = [key for key, about in ask.function.payload.items() if about.holds is not None and about.holds.own]
        blank = [key for key in fields if key in ask.payload and ask.payload[key] is None]
        if blank and self._x is None:
            raise RefusedError("it has made no model of its own yet")
        return replace(ask, payload={**ask.payload, **dict.fromkeys(blank, self._x)}) if blank else ask

    def keep(self, answer: Answer, ask: Ask, pair: str, shard: Shard) -> Answer:
        """Return the answer without the model that it holds, if it holds one; from now on that is the site's own."""
        field = next((key for key, kind in ask.function.kinds.items() if kind == "own"), None)
        if field is None or not answer.blocks:
            return answer
        values = dict(answer.blocks[0].values)
        self._x = x = values.pop(field)[0]
        if ask.context.round == self._experiment.run.rounds:
            _write(self._folder, pair, x, shard, self._experiment)
        return replace(answer, blocks=(Block(ask.names, values),))


def _write(folder: Path, pair: str, x: Tensor, shard: Shard, experiment: Experiment) -> None:
    """Write the model x [d + b] of the only client of a shard as `coterie finalise` would: with the recipe."""
    label, _, seed = pair.rpartition("-")
    clients, workspace, (client,) = shard.clients, shard.workspace, shard.clients.names
    meaning = Meaning.of(workspace.loss, clients)
    run = Run(label, int(seed), experiment.run.rounds, None, {client: x}, workspace.model, meaning=meaning)
    about = {**about_models(label, run, clients), "client": client, "model": experiment.tables()["model"]}
    place = folder / safe_name(f"{pair}-{client}")
    place.mkdir(parents=True, exist_ok=True)
    save_model(place / MODEL, run, client, about)
    write_json(place / "preprocess.json", clients.recipe)
