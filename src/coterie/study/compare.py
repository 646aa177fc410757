"""`ct.compare`: several methods on the same clients, as the command compares them, and what a notebook wants to know of that."""

from __future__ import annotations

import html
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.base.clients import Clients
from coterie.base.errors import InputError, nearest, no_attribute
from coterie.base.files import write_atomically
from coterie.base.metric_names import find_metric
from coterie.base.spelling import count
from coterie.config.local import LocalSGD
from coterie.config.registry import MODELS
from coterie.config.rules import Rule, explain_keywords, obey
from coterie.config.run import RunSettings, StudySettings
from coterie.contract.engine import EngineSpec
from coterie.engines.inprocess import InProcess
from coterie.run.arguments import FILTER_LIST
from coterie.run.evaluation import name_metrics
from coterie.run.figure import draw
from coterie.run.files import HISTORY, YARDSTICKS
from coterie.run.hashes import refuse_damaged_outcomes, refuse_other_records
from coterie.run.spelling import experiment_of
from coterie.study.progress import shown
from coterie.study.search import choose_settings
from coterie.study.sweep import run_experiment

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from coterie.report.results import Results
    from coterie.report.series import Weights
    from coterie.report.verdicts import Verdict

TABLES = ("summary", "history", "weights", "timing")
MOST_PANELS = 12
_HERE = InProcess()
_USUAL = StudySettings()
_FOLDER = Rule(
    lambda v: v is None or isinstance(v, str | os.PathLike), "None or a folder"
)
_SETTINGS = Rule(
    lambda v: isinstance(v, RunSettings), "StudySettings(...) or RunSettings(...)"
)


@explain_keywords(local=LocalSGD)
def compare(
    methods: Sequence[Any] | Mapping[str, Any],
    clients: Clients
    | Callable[..., Clients]
    | Mapping[str, Any]
    | Sequence[Any]
    | str
    | os.PathLike[str],
    model: Any = MODELS.default,
    rounds: int = 50,
    seeds: int | Sequence[int] = 5,
    *,
    folder: str | os.PathLike[str] | None = None,
    engine: EngineSpec | str = _HERE,
    attack: Any = None,
    filters: Sequence[Any] = (),
    progress: Any = None,
    settings: RunSettings = _USUAL,
) -> Comparison:
    """Run methods on the same clients with several seeds, as `coterie compare` and `coterie run` do.

    Args:
        methods: what `fit` takes, or names such as "fedavg+bias", whose clients tune that part after training; by label in a dict.
        clients: `Clients`, which are the same for all seeds; a function that gives those of `seed=...`; tensors or data sets by
            client, as `fit` takes them, which each seed splits anew; the name of a data set; a folder; or a [data] table such as
            {"folder": "my-clients", "label": "outcome", "split": {"kind": "iid"}}, with the [split] table in it.
        model: as for `fit`; a module starts every seed from the weights that it has.
        rounds: number of rounds.
        seeds: 5 means 0 to 4; a list names them.
        folder: the run directory; None: a temporary one, which goes with what is returned.
        engine: as for `fit`.
        attack: as for `fit`.
        filters: as for `fit`.
        progress: as for `fit`; or a function of an `Event`, which says what runs and how long it takes still.
        settings: `StudySettings(...)`: local training, jobs, tuning, whether a run is resumed (methods and seeds may be added), and
            what `RunSettings` has. Callbacks run in the process of their run.

    Returns:
        The comparison. Its `experiment.toml` says every setting; what files cannot spell, such as a module or a class that has no file,
        stands there as its name with a hash, and such a run is resumed from Python with the same object.

    Raises:
        InputError: bad arguments or data, before any training; or a folder that holds something else.
        RunError: a run cannot go on; what was saved in `folder` stays.

    >>> comparison = compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=3)
    >>> comparison
    <comparison of local, fedavg on 4 clients, 3 seeds>
    >>> comparison.verdict("hungary").kind
    'stay alone'
    """
    obey(_FOLDER, folder, "folder")
    obey(FILTER_LIST, filters, "filters")
    obey(_SETTINGS, settings, "settings")
    if isinstance(settings, StudySettings):
        study = settings
    else:
        study = StudySettings(**vars(settings))
    if progress is not None:
        study = replace(study, progress=progress)
    study = replace(study, metrics=name_metrics(study.metrics))
    if study.resume and folder is None:
        raise InputError("resume needs the folder of the run that goes on")
    run_table = {"rounds": rounds, "seeds": seeds}
    experiment = experiment_of(
        methods,
        clients,
        model,
        run_table,
        engine=engine,
        attack=attack,
        filters=filters,
        settings=study,
    )

    def run(place: Path) -> None:
        chosen, _ = choose_settings(
            experiment, place, grid=bool(study.tune), resume=study.resume
        )
        run_experiment(
            chosen,
            place,
            resume=study.resume,
            accept_change=study.accept_change,
            command="ct.compare",
            notify=shown(study.progress),
        )

    if folder is not None:
        run(Path(folder))
        return Comparison(folder)
    temporary = Path(tempfile.mkdtemp(prefix="coterie-"))
    try:
        run(temporary)
        return Comparison(temporary, _temporary=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def combine(
    *runs: str | os.PathLike[str] | Comparison,
    new_rows: bool = False,
    folder: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Combine finished runs of one federation, with the same settings, by the same rule as for one.

    Runs of the same table add repeats, and must have other seeds. A run of another table (another day, other patients) needs
    `new_rows`; each client's gains then weigh by 1 / s^2, s their standard error.

    Args:
        *runs: Folders of two or more runs, or what `compare` returned.
        new_rows: Whether tables may differ, since no patient is in two of them.
        folder: Where the results are written; None: into a temporary folder that goes with the result.

    Returns:
        The results, as of one run.

    Raises:
        InputError: Settings or code differ, tables differ without `new_rows`, or a run has a seed that another has.

    >>> first, second = (compare(["local", "fedavg"], "heart-disease", rounds=1, seeds=[seed]) for seed in (0, 1))
    >>> combine(first, second).seeds
    (0, 1)
    """
    from coterie.study.combine import combine_runs

    obey(_FOLDER, folder, "folder")
    folders = []
    for run in runs:
        if isinstance(run, Comparison):
            folders.append(run.folder)
        else:
            folders.append(Path(run))
    if folder is not None:
        combine_runs(folders, Path(folder), new_rows=new_rows)
        return Comparison(folder)
    temporary = Path(tempfile.mkdtemp(prefix="coterie-"))
    try:
        combine_runs(folders, temporary, new_rows=new_rows)
        return Comparison(temporary, _temporary=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


_CURES = {
    **dict.fromkeys(
        ("best", "best_method", "winner"),
        'write comparison.verdict("CLIENT"), which says what pays for a client',
    ),
    **dict.fromkeys(
        ("to_dataframe", "to_df", "dataframe", "df"), "write comparison.to_pandas()"
    ),
    **dict.fromkeys(
        ("metrics", "summary", "scores"),
        'write comparison.table("auc"), or comparison.to_pandas()',
    ),
}
"""The line to write where people look for results under another name."""


class Comparison:
    """The results of a run directory, in Python. `compare` returns one, and `Comparison(folder)` reads any.

    Attributes:
        folder: the run directory.

    Raises `InputError` as `report.load`.

    >>> import coterie as ct
    >>> comparison = ct.compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=1)
    >>> comparison.methods, comparison.clients[0]
    (('local', 'fedavg'), 'cleveland')
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, _temporary: bool = False
    ) -> None:
        self.folder, self._temporary = Path(folder), _temporary
        refuse_damaged_outcomes(self.folder)
        refuse_other_records(self.folder)
        self.results  # noqa: B018 - errors belong here
        if _temporary:
            weakref.finalize(
                self.results, shutil.rmtree, self.folder, ignore_errors=True
            )

    @cached_property
    def results(self) -> Results:
        """All that the run directory says."""
        from coterie.report.results import Results

        return Results.load(self.folder)

    if not TYPE_CHECKING:  # a type checker finds such a name itself

        def __getattr__(self, name: str) -> object:
            if name in _CURES:
                raise no_attribute(self, name, _CURES)
            return object.__getattribute__(
                self, name
            )  # Python's own error, or that of a property

    @property
    def methods(self) -> tuple[str, ...]:
        """Labels of the methods, without yardsticks."""
        return tuple(
            label for label in self.results.algorithms if label not in YARDSTICKS
        )

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients."""
        return self.results.clients

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that some method finished."""
        return self.results.seeds

    @property
    def weights(self) -> Mapping[str, Weights]:
        """By method that weighs updates: weights [rounds, targets, clients], mean over seeds."""
        return self.results.weights

    def table(self, metric: str | None = None) -> str:
        """The tables of all metrics, or of one. Raises `InputError` for an unknown metric."""
        from coterie.report.table import render

        if metric is not None:
            metric = find_metric(metric, self.results.metrics)
        return render(self.results, metric=metric, colour=False).rstrip()

    def verdict(self, client: str) -> Verdict:
        """Return the verdict for a client: whether joining pays, and why. Raises `InputError` for an unknown client."""
        from coterie.report.verdicts import verdict

        return verdict(self.results, self.results.find_client(client))

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the HTML report to `path`, or into the run directory; returns where. Needs the extra `report`."""
        from coterie.report.html import write

        page = write(self.folder)
        if path is None:
            return page
        content = page.read_bytes()
        write_atomically(Path(path), lambda p: p.write_bytes(content))
        return Path(path)

    def to_pandas(self, table: str = "summary") -> pd.DataFrame:
        """A table of the run directory as a data frame. Raises `InputError` for an unknown `table`.

        `summary` has a row for each method, seed, client and split, with its metrics as columns; `history`, `weights` and `timing` are
        the files of these names.
        """
        import pandas as pd

        if table not in TABLES:
            raise InputError(f"there is no table {table!r}; {nearest(table, TABLES)}")
        if table == "summary":
            rows = (
                row for cell in self.results.cells.values() for row in cell.values()
            )
            return pd.DataFrame(list(rows))
        if table == "history":
            history = self.results.history
            runs = enumerate(history.runs)
            return pd.DataFrame(
                ((*pair, *row) for run, pair in runs for row in history.rows(run)),
                columns=HISTORY,
            )
        return pd.read_csv(self.folder / f"{table}.csv")

    def plot(
        self, metric: str | None = None, clients: Sequence[str] | None = None
    ) -> Figure:
        """A matplotlib figure: a metric over rounds, mean over seeds, a panel for each client and a curve for each method.

        Args:
            metric: a metric of the history; None: the first of the results.
            clients: whose panels; None: all, of many those that gain and lose most.

        Raises:
            InputError: an unknown metric or client, or no matplotlib (extra `plot`).
        """
        results = self.results
        metric = find_metric(metric or results.metrics[0], results.metrics)
        if clients is None:
            shown = results.extremes(metric, MOST_PANELS)
        else:
            shown = tuple(map(results.find_client, clients))
        panels = {}
        for client in shown:
            curves = {
                m: curve
                for m in results.methods
                if (curve := results.curve(m, client, metric)) is not None
            }
            if curves:
                panels[results.names[client]] = {
                    m: (c.rounds.tolist(), _mean_of_finite(c.values))
                    for m, c in curves.items()
                }
        return draw(panels, results.metric_name(metric))

    def __str__(self) -> str:
        from coterie.report.answer import answer_lines

        return "\n".join(answer_lines(self.results))

    def __repr__(self) -> str:
        place = ""
        if not self._temporary:
            place = f": {self.folder}"
        counts = (
            f"{count(len(self.clients), 'client')}, {count(len(self.seeds), 'seed')}"
        )
        return f"<comparison of {', '.join(self.methods)} on {counts}{place}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _mean_of_finite(values: Any) -> list[float]:
    """Mean over seeds [seeds, k] -> [k] of the values that there are."""
    finite = np.isfinite(values)
    total = np.where(finite, values, 0.0).sum(axis=0)
    mean: list[float] = np.where(
        finite.any(axis=0), total / np.maximum(finite.sum(axis=0), 1), np.nan
    ).tolist()
    return mean
