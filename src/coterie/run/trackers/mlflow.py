"""MLflow (extra `mlflow`): a run there for each method and seed."""

from __future__ import annotations

from typing import Annotated, Any

from coterie.base.errors import InputError, explain_imports, plain
from coterie.config.rules import TEXT, optional
from coterie.config.schema import options
from coterie.run.trackers.tracker import Sink, Tracker


@options
class MLflow(Tracker):
    """Log to MLflow: a run for each method and seed, with the metrics of every evaluation.

    Attributes:
        experiment: the name under which the runs stand.
        to: tracking URI: a database on this machine (sqlite:///mlflow.db) or a server (http://localhost:5000); None: that of the
            environment, else mlflow.db in this folder. MLflow no longer writes folders of files.

    >>> import coterie as ct
    >>> ct.RunSettings(callbacks=(ct.MLflow("hearts", to="sqlite:///mlflow.db"),)).callbacks
    (MLflow(experiment='hearts', to='sqlite:///mlflow.db'),)
    """

    experiment: Annotated[str, TEXT] = "coterie"
    to: Annotated[str | None, optional(TEXT, "that of the environment")] = None

    def check(self) -> None:
        """Raise `InputError` if MLflow is not installed, or cannot write where it is told to."""
        self._connect()

    def open(self, label: str, seed: int, rounds: int) -> Sink:
        """A new run of MLflow. Raises `InputError` if it is not installed, or cannot write where it is told to."""
        client, experiment = self._connect()
        number = (
            client.create_experiment(self.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        run = client.create_run(number, run_name=f"{label}-{seed}").info.run_id
        for name, value in (("method", label), ("seed", seed), ("rounds", rounds)):
            client.log_param(run, name, value)
        return Sink(
            lambda name, value, step: client.log_metric(run, name, value, step=step),
            lambda: client.set_terminated(run),
        )

    def _connect(self) -> tuple[Any, Any]:
        """A client of MLflow, and the experiment if there is one of this name."""
        make = _client()
        try:
            client = make(tracking_uri=self.to)
            return client, client.get_experiment_by_name(self.experiment)
        except Exception as error:  # MLflow's, or of the network
            where = (
                "the tracking URI of the environment" if self.to is None else self.to
            )
            raise InputError(
                f"MLflow cannot write to {where} ({plain(' '.join(str(error).split()), 100)}); name a database, "
                'to = "sqlite:///mlflow.db", or a tracking server; what both need has pip install "coterie[mlflow]"'
            ) from error


def _client() -> Any:
    with explain_imports("the logger MLflow needs mlflow", "mlflow"):
        from mlflow import MlflowClient
    return MlflowClient
