"""Curvature at a site: what was declared is told, a tenth of the rows' numbers at most, and the plan says who then knows what."""

from __future__ import annotations

import pytest
import torch
from hospital import Hospital
from torch import nn

from coterie.algorithms.fixed_effects import FixedEffects, tell_profile
from coterie.algorithms.partial import Partial, tell_mode, tell_quadratic
from coterie.base.vector import Layout
from coterie.contract.wire import PerClient
from coterie.sites.allowed import Allowed, RefusedError
from coterie.sites.minima import curvature_fits
from coterie.sites.plan_words import in_words

LAYOUT = Layout.of(nn.Linear(15, 1))


def trainings(method, folds=5, repeats=2, rounds=50):
    """Of each repeat one training without each fold, and one on all rows."""
    names = [str(fold) for fold in range(folds)] * repeats
    return [Allowed(method, 0, rounds, (), (), fold) for fold in (*names, "all")]


def test_two_passes_of_eleven_trainings_need_2230_rows():
    pairs = trainings(Partial())
    assert len(pairs) == 11
    curvature_fits(pairs, LAYOUT, 15, 2230)
    with pytest.raises(RefusedError, match=r"Partial ask 3344 numbers.*passes = 1"):
        curvature_fits(pairs, LAYOUT, 15, 2229)
    # The cure that is named: one pass, and one repeat.
    one = trainings(Partial(passes=1), repeats=1)
    curvature_fits(one, LAYOUT, 15, 608)
    with pytest.raises(RefusedError, match="ask 912 numbers"):
        curvature_fits(one, LAYOUT, 15, 607)


def test_methods_of_a_plan_add_up_and_a_run_of_few_rounds_asks_less():
    partial = [Allowed(Partial(), 0, 50, ())]
    both = [*partial, Allowed(FixedEffects(), 0, 5, ())]
    curvature_fits(partial, LAYOUT, 15, 203)
    # 15 slopes, 120 of their curvature, a value and an intercept in each of 5 rounds.
    rows = (304 + 5 * 137) / 1.5
    curvature_fits(both, LAYOUT, 15, int(rows) + 1)
    with pytest.raises(RefusedError, match="Partial and FixedEffects ask 989 numbers"):
        curvature_fits(both, LAYOUT, 15, int(rows))


def test_a_site_tells_what_the_plan_says_and_refuses_beyond_a_tenth(tmp_path):
    one_pass = {"methods": [{"name": "partial", "passes": 1}], "rounds": 2}
    hospital = Hospital(tmp_path, **one_pass).begin(pair="partial-0")
    reply = hospital.ask(tell_mode)
    size = len(hospital.x)
    assert reply["mode"].shape == (1, size)
    assert reply["curvature"].shape == (1, size * (size + 1) // 2)
    with pytest.raises(RefusedError, match="does not ask 'partial:tell_quadratic'"):
        hospital.ask(tell_quadratic, x=PerClient(hospital.x[None]))
    with pytest.raises(RefusedError, match="does not ask 'fixed_effects:tell_profile'"):
        hospital.ask(tell_profile, x=hospital.x.double(), ridge=1.0)
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    told = 3 * (size + size * (size + 1) // 2)  # a plan may run three times
    assert f"{told} numbers in all for each seed" in words
    assert "the server can compute this site's own model" in words
    two_passes = {"methods": [{"name": "partial"}], "rounds": 2}
    (tmp_path / "two").mkdir()
    with pytest.raises(RefusedError, match="more than a tenth"):
        Hospital(tmp_path / "two", **two_passes).begin(pair="partial-0")


def test_secret_noise_and_curvature_exclude_each_other():
    exposed = Allowed(Partial(), 0, 2, (), secret=True).exposure
    assert exposed == "'mode' of partial:tell_mode"
    assert "tell_profile" in Allowed(FixedEffects(), 0, 2, (), secret=True).exposure


def test_a_payload_of_another_ridge_is_refused(tmp_path):
    plan = {"methods": [{"name": "fixed-effects", "ridge": 2.0}], "rounds": 1}
    hospital = Hospital(tmp_path, **plan).begin(pair="fixed-effects-0")
    x = torch.zeros(len(hospital.x), dtype=torch.float64)
    assert hospital.ask(tell_profile, x=x, ridge=2.0)["value"].shape == (1,)
    with pytest.raises(RefusedError, match="'ridge' of fixed_effects:tell_profile"):
        hospital.ask(tell_profile, x=x, ridge=0.5)
