"""One hospital's question, as in a notebook: with whom should Switzerland learn, and what does it gain?

    python examples/notebook_style.py

One split of the patients is an anecdote: `coterie compare heart-disease` repeats it and says what is more than chance.
"""

import coterie as ct

clients = ct.data.load("heart-disease", seed=0)
local = ct.LocalSGD(lr=0.1, steps=ct.Steps(10), batch_size=16, weight_decay=1e-3)

alone = ct.fit(
    ct.Local(local=local), clients, model=ct.models.Logistic(), rounds=60, seed=0
)
average = ct.fit(
    ct.FedAvg(local=local), clients, model=ct.models.Logistic(), rounds=60, seed=0
)
# MeritFed weighs each hospital by what its updates do for the target's own loss.
merit = ct.MeritFed(targets="switzerland", local=local, md_step=0.3, validation="train")
chosen = ct.fit(merit, clients, model=ct.models.Logistic(), rounds=60, seed=0)

for name, run in {"alone": alone, "averaged": average, "MeritFed": chosen}.items():
    row = next(
        r for r in run.summary if r["client"] == "switzerland" and r["split"] == "test"
    )
    print(
        f"{name:<9} accuracy {row['accuracy']:.3f}  log-loss {row['loss']:.3f}  AUC {row['auc']:.3f}"
    )
print(
    "weights  ",
    {
        client: round(weight, 2)
        for client, weight in chosen.weights["switzerland"].items()
    },
)
