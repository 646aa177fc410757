"""Alignment of operands, positions of names, and work that is not counted."""

import pytest
import torch

from coterie.base.errors import InputError
from coterie.base.vector import ALIGNMENT, align, fits_alignment
from coterie.compute.tasks import local_update
from coterie.contract.task import find_task
from coterie.solvers import NotFiniteError, appeal, mirror
from federations import cohort_of, federation_of, logistic, start


def test_what_begins_at_64_bytes_is_left_and_what_does_not_is_copied():
    numbers = torch.arange(64.0)
    first = next(k for k in range(64) if (numbers.data_ptr() + 4 * k) % ALIGNMENT == 0)
    view, shifted = numbers[first:], numbers[first + 1 :]
    assert align(view) is view
    assert (fits_alignment(view), fits_alignment(shifted)) == (True, False)
    copy = align(shifted)
    assert torch.equal(copy, shifted)
    assert fits_alignment(copy)
    assert copy.data_ptr() != shifted.data_ptr()
    assert align(torch.eye(4).T[::2]).is_contiguous()


def test_positions_are_among_everyone_in_the_order_that_is_asked_for():
    with federation_of(logistic()) as federation:
        view = federation.view("bd", 1, 0)
        assert view.positions(("d", "a", "e")).tolist() == [3, 0, 4]
        assert view.positions(()).dtype == torch.int64
        with pytest.raises(InputError, match="there is no client 'bb'; did you mean"):
            view.positions(("a", "bb"))


def test_a_report_names_the_round_and_the_task():
    with federation_of(logistic(), round=4) as federation:
        federation.report("b", "it forgot", find_task(local_update.name))
        assert federation.session.failures == {
            "b": "round 4, coterie.compute.tasks:local_update: it forgot"
        }


def test_unbilled_work_is_not_counted():
    problem = logistic()
    cohort = cohort_of(problem)
    looked = cohort.without_billing().gradient(start(problem))
    assert cohort.spent["row_gradients"] == 0
    assert torch.equal(cohort.gradient(start(problem)), looked)
    assert cohort.spent["row_gradients"] > 0


def test_overflow_has_an_error_of_its_own_and_bad_arguments_have_not():
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    with pytest.raises(NotFiniteError, match="must be finite"):
        mirror.entropic_descent(lambda w: w * torch.inf, half, steps=1, step=1.0)
    with pytest.raises(NotFiniteError, match="finite"):
        appeal.weights([800.0], surrogate="exp")
    with pytest.raises(ValueError, match="shape") as caught:
        mirror.entropic_descent(lambda w: w[:1], half, steps=1, step=1.0)
    assert not isinstance(caught.value, NotFiniteError)
