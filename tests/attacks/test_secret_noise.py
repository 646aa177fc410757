"""A malicious server runs the approved plan with models that are made to find rows: with noise under the site's key it finds none."""

from __future__ import annotations

import pytest
import torch
from hospital import FEDAVG, Hospital, local

from coterie.algorithms.ifca import cluster_update
from coterie.algorithms.local import model_alone, train_alone
from coterie.base.metric_names import BOUNDS
from coterie.compute.metrics import evaluate, find_metrics
from coterie.compute.tasks import local_update, local_updates
from coterie.sites.comparisons import note_outcomes, paired_errors
from coterie.sites.ledger import Account
from coterie.sites.plan_words import in_words
from coterie.sites.secret_noise import OF_PREDICTED, KeyedVeil

BOUND, SIGMA = 1.0, 0.1
CLIP = {"name": "clip", "bound": BOUND}
NOISE = {"name": "gaussian-noise", "sigma": SIGMA}
SECRET = {**NOISE, "secret": True}
STEEP = 2000.0
"""How steep the models of the attack are in the column that they sweep."""


def hospital(folder, *filters, key=b"1"):
    """A site whose key is always the same."""
    folder.mkdir(parents=True, exist_ok=True)
    Account(folder / "asks.jsonl").seal()  # as a site does before it has a key
    (folder / "asks.jsonl.key").write_bytes(key * 32)
    return Hospital(
        folder, methods=(FEDAVG,), filters=list(filters), deploy={"runs": 100}
    ).begin()


def asked(site, x, number=1, round=1):
    return site.ask(local_update, round=round, ask=number, x=x, local=local())["delta"][
        0
    ].double()


def reconstructed(site):
    """How many rows the differences of the updates of two models are that disagree about one row only.

    Each model is steep in one column and changes its mind at a threshold. A difference is a row if it points the same way in all other
    columns.
    """
    rows = site.rows.shard.clients.train.inputs.double()
    width = rows.shape[1]
    swept = max(range(width), key=lambda column: len(rows[:, column].unique()))
    others = [column for column in range(width) if column != swept]
    updates, differences = {}, []

    def update(threshold):
        if threshold not in updates:
            x, number = torch.zeros(width + 1), len(updates) + 1
            x[swept], x[width] = STEEP, -STEEP * threshold
            updates[threshold] = asked(site, x, number)
        return updates[threshold]

    def split(low, high, depth=0):
        difference = (update(low) - update(high))[others]
        if difference.norm() < 1e-5:
            return
        if depth == 6:
            differences.append(difference)
            return
        middle = (low + high) / 2
        split(low, middle, depth + 1)
        split(middle, high, depth + 1)

    split(-4.0, 4.0)
    seen, true = (
        torch.nn.functional.normalize(v, dim=1)
        for v in (torch.stack(differences), rows[:, others])
    )
    return int((seen @ true.T).abs().max(1).values.gt(0.99).sum())


@pytest.mark.parametrize(
    "filters", [[], [CLIP, NOISE]], ids=["nothing", "noise that follows from the seed"]
)
def test_models_made_for_it_find_rows_where_no_secret_noise_is_added(tmp_path, filters):
    assert reconstructed(hospital(tmp_path, *filters)) >= 10


@pytest.mark.promise("secret noise")
def test_models_made_for_it_find_no_row_behind_secret_noise(tmp_path):
    assert reconstructed(hospital(tmp_path, CLIP, SECRET)) == 0


def test_secret_noise_has_the_plans_deviation_and_a_stream_for_each_model(tmp_path):
    plain, noisy = (
        hospital(tmp_path / "plain"),
        hospital(tmp_path / "noisy", CLIP, SECRET),
    )
    models = [plain.x + i / 100 for i in range(90)]
    noise = torch.stack([asked(noisy, x) - asked(plain, x) for x in models])
    assert float(noise.std()) == pytest.approx(SIGMA, rel=0.05)
    assert float(noise.mean(0).norm()) < SIGMA
    between = torch.corrcoef(noise)
    assert float((between - torch.eye(len(models))).abs().max()) < 0.95


@pytest.mark.promise("secret noise")
def test_the_same_request_has_the_same_noise_however_often_it_comes(tmp_path):
    from coterie.sites.rows import SiteRows

    site = hospital(tmp_path, CLIP, SECRET)
    first = asked(site, site.x)
    assert torch.equal(first, asked(site, site.x))
    assert torch.equal(
        first, asked(site, site.x, number=7)
    )  # a number of the server's choice averages nothing
    site.rows = SiteRows("hungary", site.settings, tmp_path / "kept", site.approved)
    assert torch.equal(first, asked(site.begin(), site.x))  # as in a resumed run
    assert not torch.equal(first, asked(site, site.x, round=2))
    assert not torch.equal(first, asked(site.begin(fill=1), site.x))


TOWN = {"deploy": {"sites": ["hungary", "a", "b", "c"], "runs": 3}}


@pytest.mark.promise("secret noise")
def test_copies_of_a_model_have_one_noise_in_one_request_and_in_many(tmp_path):
    """T copies of a model in one request, each with noise of its own, had a mean without noise."""
    plain, site = (
        Hospital(
            folder,
            methods=({"name": "meritfed", "local": FEDAVG["local"]},),
            filters=filters,
            **TOWN,
        )
        for folder, filters in (
            (tmp_path / "plain", []),
            (tmp_path / "noisy", [CLIP, SECRET]),
        )
        if not folder.mkdir()
    )
    told = []
    for one in (plain, site):
        one.begin(pair="meritfed-0")
        asks = ([0, 0, 0, 0], [0, 1, 0, 2], [3, 0, 0, 4])
        told.append(
            torch.cat([
                one.ask(local_updates, x=torch.stack([one.x + 0.1 * i for i in ask]), local=local())["delta"][0].double()
                for ask in asks
            ])
        )  # fmt: skip
    same = [
        row for row, number in enumerate(i for ask in asks for i in ask) if number == 0
    ]
    assert len({tuple(row.tolist()) for row in told[1][same]}) == 1
    error = (told[1] - told[0])[same].mean(0)
    assert (
        float(error.norm()) > SIGMA
    )  # of 14 numbers with one deviation each; the mean of 8 draws would be a third of that
    others = told[1] - told[0]
    assert len({tuple(row.tolist()) for row in others}) == 5


@pytest.mark.promise("secret noise")
@pytest.mark.parametrize(
    "task",
    [evaluate, local_update, train_alone],
    ids=["losses", "updates", "own models"],
)
def test_a_sum_that_overflows_with_some_rows_tells_nothing_of_them(tmp_path, task):
    """As it was: Inf - Inf is NaN, the task failed if a row lies beyond both thresholds, and no noise hides that."""
    alone = {"name": "local", "local": FEDAVG["local"]}
    site = Hospital(
        tmp_path, methods=[FEDAVG, alone], filters=[CLIP, SECRET], deploy={"runs": 100}
    )
    site.begin(pair="local-0" if task is train_alone else "fedavg-0")
    more = (
        {"part": "test", "metrics": ("accuracy", "auc")}
        if task is evaluate
        else {"local": local()}
    )
    for steep in (1.0, 3e38):
        x = site.x.clone()
        x[:13] = steep * torch.tensor([1.0, -1.0]).repeat(7)[:13]
        told = site.ask(task, x=x, **more)
        assert all(bool(torch.isfinite(field).all()) for field in told.values())
    if task is evaluate:
        assert told["defined"].all()
    if task is train_alone:
        site.ask(model_alone, x=x)
        site.ask(evaluate, x=None, part="test", metrics=("accuracy", "auc"))


@pytest.mark.promise("secret noise")
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (_, high) in BOUNDS.items()
        if high < 3 and name not in OF_PREDICTED
    ],
)
def test_no_row_moves_a_metric_further_than_its_noise(name):
    """As it was: f1 moved nearly twice as far, and the area under precision and recall the more the more rows there are."""
    labels = torch.tensor([1] * 10 + [0] * 30)
    for start in (
        labels * 2.0 - 1,
        1 - labels * 2.0,
        torch.full((40,), -1.0),
        torch.linspace(3, -3, 40),
    ):
        for row, output in ((0, -9.0), (0, 9.0), (39, 9.0), (39, -9.0)):
            moved = start.clone()
            moved[row] = output
            values = [
                find_metrics([name])[name](outputs[:, None], labels, "binary")
                for outputs in (start, moved)
            ]
            if None not in values:
                assert (
                    abs(values[0] - values[1])
                    <= KeyedVeil(b"").reach(name, 40, 10) + 1e-12
                )


def test_the_last_model_of_a_run_may_overflow_and_tells_nothing_of_single_rows(
    tmp_path,
):
    site = Hospital(tmp_path, filters=[CLIP, SECRET]).begin()
    site.x[:13] = 3e38 * torch.tensor([1.0, -1.0]).repeat(7)[:13]
    assert site.ask(note_outcomes, x=site.x, round=5)["done"].item()
    told = site.ask(paired_errors, method="fedavg", other="constant")
    assert told["known"].tolist() == [[False, True, False, False, False, False]]


def test_an_update_of_one_of_several_models_has_one_noise(tmp_path):
    """As it was: a plan of IFCA with secret noise was approved, and every site failed in every round."""
    ifca = {"name": "ifca", "clusters": 2, "local": FEDAVG["local"]}
    site = Hospital(
        tmp_path, methods=[ifca], filters=[CLIP, SECRET], deploy={"runs": 3}
    ).begin(pair="ifca-0")
    asks = [[site.x, site.x + 9], [site.x + 9, site.x], [site.x, site.x - 9]]
    told = [site.ask(cluster_update, xs=torch.stack(xs), local=local()) for xs in asks]
    assert [reply["cluster"].item() for reply in told] == [0, 1, 0]
    assert len({tuple(reply["delta"][0].tolist()) for reply in told}) == 1


@pytest.mark.promise("secret noise")
def test_nobody_without_the_sites_key_can_tell_its_noise(tmp_path):
    one, other = (
        hospital(tmp_path / str(key), CLIP, SECRET, key=key) for key in (b"1", b"2")
    )
    difference = asked(one, one.x) - asked(other, other.x)
    assert float(difference.abs().min()) > 0
    assert float(difference.std()) > SIGMA / 2


def test_an_approval_says_in_words_whether_noise_is_secret(tmp_path):
    said = {
        name: "\n".join(
            in_words(
                hospital(tmp_path / name, *filters).approved,
                hospital(tmp_path / name).settings,
                "hungary",
            )
        )
        for name, filters in {
            "secret": [CLIP, SECRET],
            "open": [CLIP, NOISE],
            "none": [],
        }.items()
    }
    assert "deviation 0.1, drawn under a key that stays here" in said["secret"]
    assert "deviation 0.1, which the server can compute and subtract" in said["open"]
    assert "each of its numbers gets noise" not in said["none"]
    assert all("clip" in said[name] for name in ("secret", "open"))


def test_in_one_process_secret_noise_is_drawn_as_any_other():
    import coterie as ct
    from federations import fit, logistic

    problem = logistic()
    runs = [
        fit(
            ct.FedAvg(),
            problem.clients,
            problem.model,
            1,
            filters=[ct.GaussianNoise(0.1, secret=s)],
        )
        for s in (False, True)
    ]
    assert torch.equal(runs[0].x, runs[1].x)
