"""TensorBoard (extra `tensorboard`): a folder of events for each method and seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from coterie.base.errors import InputError, cut, explain_imports, plain
from coterie.config.rules import TEXT
from coterie.config.schema import options
from coterie.run.files import safe_name
from coterie.run.trackers.tracker import Sink, Tracker


@options
class TensorBoard(Tracker):
    """Log to TensorBoard: a folder of events for each method and seed, with the metrics of every evaluation.

    Attributes:
        to: the folder that `tensorboard --logdir` shows.

    >>> import coterie as ct
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> settings = ct.RunSettings(callbacks=(ct.TensorBoard(to=folder.name),))
    >>> _ = ct.fit("fedavg", "heart-disease", rounds=2, settings=settings)
    >>> [file.name.split(".")[0] for file in Path(folder.name).rglob("events*")]  # `tensorboard --logdir FOLDER` shows it
    ['events']
    >>> folder.cleanup()
    """

    to: Annotated[str, TEXT] = "tensorboard"

    def check(self) -> None:
        """Raise `InputError` if TensorBoard is not installed."""
        _writer()

    def open(self, label: str, seed: int, rounds: int) -> Sink:
        """A new file of events. Raises `InputError` if TensorBoard is not installed, or cannot write to the folder."""
        make = _writer()
        try:
            writer = make(str(Path(self.to) / safe_name(f"{label}-{seed}")))
        except (
            OSError,
            ValueError,
        ) as error:  # a ValueError: a name that no folder can have
            raise InputError(
                f"TensorBoard cannot write to {cut(self.to)} ({plain(str(error), 100)}); name another folder"
            ) from error
        return Sink(writer.add_scalar, writer.close)


def _writer() -> Any:
    with explain_imports("the logger TensorBoard needs tensorboard", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter
