"""The benchmark of verdicts: what it counts, with which error, and that it simulates what coterie does."""

import json
import math

import numpy as np
import pytest
import torch
from benchmarks import federations, verdicts

import coterie as ct
from coterie.report.verdicts import STRENGTH


def test_a_share_has_the_error_of_its_clusters() -> None:
    pairs = [(1, 4), (3, 4), (0, 2), (2, 2)]
    value = sum(k for k, _ in pairs) / 12
    residuals = [k - value * n for k, n in pairs]
    share = verdicts.ratio(pairs)
    assert share is not None
    assert (share.value, share.count) == (0.5, 12)
    assert share.error == pytest.approx(
        math.sqrt(4 / 3 * sum(r * r for r in residuals)) / 12
    )
    assert verdicts.ratio([(0, 0)]) is None


def test_the_drawn_kinds_follow_from_their_seed() -> None:
    drawn = federations.SETS["drawn by a seed"]
    assert len(drawn) == 10
    assert list(drawn) == list(federations.drawn(federations.DRAWN_BY))


@pytest.fixture(scope="module")
def clients() -> list[dict]:
    """One small federation of which one client is opposite to the others."""
    kind = "one of 6 opposite, 130 rows"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federations, "FRESH", 1000)
        patch.setattr(federations, "TRUTHS", 1)
        found = federations.estimate(kind, federations.KINDS[kind], 0)
        again = federations.estimate(kind, federations.KINDS[kind], 0)
    assert json.dumps(found) == json.dumps(again)
    return json.loads(json.dumps(found))


def test_what_is_judged_is_true_of_it(clients: list[dict]) -> None:
    judged = verdicts.judge(clients)
    assert len(judged) == 6
    assert all(j.best >= j.truth for j in judged)
    assert all(STRENGTH[j.word] >= STRENGTH[j.alone] for j in judged)
    figures = verdicts.shares(judged)
    assert figures["coverage"] == (np.mean([j.covered for j in judged]), 0.0, 6)
    assert figures["weakened"].value == 0.0
    for row in verdicts.rows_of_csv(judged)[1:]:
        assert 0 <= float(row[2]) <= 1


def test_a_client_with_few_cases_is_left_out(clients: list[dict]) -> None:
    few = [{**clients[0], "cases": 3}, *clients[1:]]
    assert len(verdicts.judge(few)) == 5


def test_models_are_those_of_coterie() -> None:
    """The benchmark's solvers are called as the methods call them: the models of a run are the same."""
    rng = np.random.default_rng(0)
    kind = federations.KINDS["one of 6 opposite, 130 rows"]
    parts = [c.draw(c.rows, rng)[:2] for c in kind(rng)]
    rows = {
        f"c{i}": (torch.from_numpy(x).float(), torch.from_numpy(y).long())
        for i, (x, y) in enumerate(parts)
    }
    data = ct.Clients([ct.Client(name, ct.Part(*part)) for name, part in rows.items()])
    # What is served is stored in float32, and so are the rows.
    read = [(x.double().numpy(), y.double().numpy()) for x, y in rows.values()]
    simulated = federations.train_together(read, numbers=False)
    run = ct.fit(ct.Partial(), data, ct.models.Logistic(), rounds=2)
    for i, name in enumerate(rows):
        served = run.models[name].numpy()
        assert simulated[i]["partial"] == pytest.approx(served, abs=2e-5)


def test_times_to_event_are_simulated_as_coterie_learns_them():
    """The models of a kind are those of coterie's methods on the same rows, and its truth is better than a model of no rows."""
    from benchmarks import verdicts_of_events as events

    import coterie as ct

    rng = np.random.default_rng(0)
    clients = events.KINDS["events: rates differ, 5 of 120 rows"](rng)
    raw = [client.draw(client.rows, rng) for client in clients]
    form, horizon = events.form_of(raw)
    parts = [events._scaled(part, form, horizon) for part in raw]
    ours = events._Models(form).together(parts)
    tables = {f"c{i}": part for i, part in enumerate(parts)}
    made = ct.data.from_tensors(tables, form=form, split={"parts": {"train": 1.0}})
    for method, rounds in ((ct.FixedEffects(), 12), (ct.Partial(), 2)):
        name = {"FixedEffects": "fixed-effects", "Partial": "partial"}
        model = ct.Hazards(torch.nn.Linear(8, 1), form.outputs).double()
        found = ct.fit(method, made, model, rounds)
        for i in range(len(parts)):
            theirs = found.models[f"c{i}"]
            torch.testing.assert_close(
                ours[i][name[type(method).__name__]], theirs, rtol=0, atol=1e-4
            )


def test_a_client_of_events_is_judged_by_its_events():
    client = {"rows": 100, "cases": None, "events": 20}
    assert verdicts._fewest(client) == 20
    assert verdicts._margin(client) == pytest.approx(0.04 * 0.2)
