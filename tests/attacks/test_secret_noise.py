"""A malicious server runs the approved plan with models that are made to find rows: with noise under the site's key it finds none."""

from __future__ import annotations

import pytest
import torch
from hospital import FEDAVG, Hospital, local

from coterie.compute.tasks import local_update, local_updates
from coterie.sites.plan_words import in_words

BOUND, SIGMA = 1.0, 0.1
CLIP = {"name": "clip", "bound": BOUND}
NOISE = {"name": "gaussian-noise", "sigma": SIGMA}
SECRET = {**NOISE, "secret": True}
STEEP = 2000.0
"""How steep the models of the attack are in the column that they sweep."""


def hospital(folder, *filters, key=b"1"):
    """A site whose key is always the same."""
    (folder / "kept").mkdir(parents=True, exist_ok=True)
    (folder / "kept" / "key").write_bytes(key * 32)
    return Hospital(folder, methods=(FEDAVG,), filters=list(filters), deploy={"runs": 100}).begin()


def asked(site, x, number=1, round=1):
    return site.ask(local_update, round=round, ask=number, x=x, local=local())["delta"][0].double()


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
    seen, true = (torch.nn.functional.normalize(v, dim=1) for v in (torch.stack(differences), rows[:, others]))
    return int((seen @ true.T).abs().max(1).values.gt(0.99).sum())


@pytest.mark.parametrize("filters", [[], [CLIP, NOISE]], ids=["nothing", "noise that follows from the seed"])
def test_models_made_for_it_find_rows_where_no_secret_noise_is_added(tmp_path, filters):
    assert reconstructed(hospital(tmp_path, *filters)) >= 10


def test_models_made_for_it_find_no_row_behind_secret_noise(tmp_path):
    assert reconstructed(hospital(tmp_path, CLIP, SECRET)) == 0


def test_secret_noise_has_the_plans_deviation_and_a_stream_for_each_model(tmp_path):
    plain, noisy = hospital(tmp_path / "plain"), hospital(tmp_path / "noisy", CLIP, SECRET)
    models = [plain.x + i / 100 for i in range(90)]
    noise = torch.stack([asked(noisy, x) - asked(plain, x) for x in models])
    assert float(noise.std()) == pytest.approx(SIGMA, rel=0.05)
    assert float(noise.mean(0).norm()) < SIGMA
    between = torch.corrcoef(noise)
    assert float((between - torch.eye(len(models))).abs().max()) < 0.95


def test_the_same_request_has_the_same_noise_however_often_it_comes(tmp_path):
    from coterie.sites.rows import SiteRows

    site = hospital(tmp_path, CLIP, SECRET)
    first = asked(site, site.x)
    assert torch.equal(first, asked(site, site.x))
    assert torch.equal(first, asked(site, site.x, number=7))  # a number of the server's choice averages nothing
    site.rows = SiteRows("hungary", site.settings, tmp_path / "kept", site.approved)
    assert torch.equal(first, asked(site.begin(), site.x))  # as in a resumed run
    assert not torch.equal(first, asked(site, site.x, round=2))
    assert not torch.equal(first, asked(site.begin(fill=1), site.x))


TOWN = {"deploy": {"sites": ["hungary", "a", "b", "c"], "runs": 3}}


def test_copies_of_a_model_have_one_noise_in_one_request_and_in_many(tmp_path):
    """T copies of a model in one request, each with noise of its own, had a mean without noise."""
    plain, site = (
        Hospital(folder, methods=({"name": "meritfed", "local": FEDAVG["local"]},), filters=filters, **TOWN)
        for folder, filters in ((tmp_path / "plain", []), (tmp_path / "noisy", [CLIP, SECRET]))
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
    same = [row for row, number in enumerate(i for ask in asks for i in ask) if number == 0]
    assert len({tuple(row.tolist()) for row in told[1][same]}) == 1
    error = (told[1] - told[0])[same].mean(0)
    assert (
        float(error.norm()) > SIGMA
    )  # of 14 numbers with one deviation each; the mean of 8 draws would be a third of that
    others = told[1] - told[0]
    assert len({tuple(row.tolist()) for row in others}) == 5


def test_nobody_without_the_sites_key_can_tell_its_noise(tmp_path):
    one, other = (hospital(tmp_path / str(key), CLIP, SECRET, key=key) for key in (b"1", b"2"))
    difference = asked(one, one.x) - asked(other, other.x)
    assert float(difference.abs().min()) > 0
    assert float(difference.std()) > SIGMA / 2


def test_an_approval_says_in_words_whether_noise_is_secret(tmp_path):
    said = {
        name: "\n".join(
            in_words(hospital(tmp_path / name, *filters).approved, hospital(tmp_path / name).settings, "hungary")
        )
        for name, filters in {"secret": [CLIP, SECRET], "open": [CLIP, NOISE], "none": []}.items()
    }
    assert "deviation 0.1, drawn under a key that stays here" in said["secret"]
    assert "deviation 0.1, which the server can compute and subtract" in said["open"]
    assert "noise" not in said["none"]
    assert all("clip" in said[name] for name in ("secret", "open"))


def test_in_one_process_secret_noise_is_drawn_as_any_other():
    import coterie as ct
    from federations import fit, logistic

    problem = logistic()
    runs = [
        fit(ct.FedAvg(), problem.clients, problem.model, 1, filters=[ct.GaussianNoise(0.1, secret=s)])
        for s in (False, True)
    ]
    assert torch.equal(runs[0].x, runs[1].x)
