"""From data frames to verdicts, curves, a report and a logger, as one would write it in a notebook.

    pip install "coterie[data,plot,report,tensorboard]"
    python examples/workbench.py && tensorboard --logdir logs

It writes curves.png, report.html and logs/ into the present folder.
"""

import pandas as pd

import coterie as ct
from coterie.data.sets.heart_disease import FOLDER, OPTIONS

frames = {
    file.stem: pd.read_csv(file, dtype=str) for file in FOLDER.glob("*.csv")
}  # yours: one data frame per client

tables = ct.data.Tables(**OPTIONS)
callbacks = [ct.EarlyStopping(patience=4), ct.TensorBoard(to="logs")]

comparison = ct.compare(
    ["local", "fedavg", ct.MeritFed(targets="all")],
    lambda seed: ct.data.from_frames(
        frames, tables=tables, seed=seed
    ),  # another split for each seed
    rounds=5,
    seeds=3,
    settings=ct.StudySettings(jobs=2, yardstick="trees", callbacks=callbacks),
)
print(comparison)
print(comparison.verdict("switzerland").reason)
print(
    comparison.to_pandas()
    .query("split == 'test'")
    .pivot_table(index="client", columns="method", values="auc")
)
comparison.plot("auc").savefig("curves.png")
comparison.report("report.html")
