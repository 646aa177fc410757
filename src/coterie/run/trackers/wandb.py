"""Weights & Biases (extra `wandb`): a run there for each method and seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from coterie.base.errors import InputError, explain_imports, plain
from coterie.config.rules import TEXT, one_of
from coterie.config.schema import options
from coterie.run.trackers.tracker import Sink, Tracker


@options
class WandB(Tracker):
    """Log to Weights & Biases: a run for each method and seed, with the metrics of every evaluation.

    Attributes:
        project: the project under which the runs stand.
        to: the folder of its files; `wandb sync` sends those of offline runs later.
        mode: "online" sends while the run goes on and needs `wandb login`; "offline" writes files alone.

    >>> import coterie as ct
    >>> ct.RunSettings(callbacks=(ct.WandB("hearts", mode="offline"),)).callbacks
    (WandB(project='hearts', to='.', mode='offline'),)
    """

    project: Annotated[str, TEXT] = "coterie"
    to: Annotated[str, TEXT] = "."
    mode: Annotated[str, one_of("online", "offline")] = "online"

    def check(self) -> None:
        """Raise `InputError` if wandb is not installed, or would ask for a key."""
        wandb = _wandb()
        if self.mode == "online" and not wandb.login(prompt=False):
            raise InputError(
                'no key of Weights & Biases is on this machine: wandb login, or mode = "offline"'
            )

    def open(self, label: str, seed: int, rounds: int) -> Sink:
        """A new run of Weights & Biases. Raises `InputError` if it is not installed, or cannot begin one."""
        self.check()
        wandb = _wandb()
        try:
            Path(self.to).mkdir(parents=True, exist_ok=True)
            run = wandb.init(
                project=self.project,
                name=f"{label}-{seed}",
                config={"method": label, "seed": seed, "rounds": rounds},
                dir=self.to,
                mode=self.mode,
                reinit="create_new",
                settings=wandb.Settings(
                    silent=True
                ),  # standard output belongs to the command's tables and JSON
            )
        except (wandb.Error, OSError) as error:
            raise InputError(
                f'Weights & Biases cannot begin a run ({plain(" ".join(str(error).split()), 200)}); mode = "offline" needs '
                "no network"
            ) from error
        return Sink(partial(_log, run), run.finish)


def _log(run: Any, name: str, value: float, step: int) -> None:
    run.log({name: value}, step=step)


def _wandb() -> Any:
    with explain_imports("the logger WandB needs wandb", "wandb"):
        import wandb
    return wandb
