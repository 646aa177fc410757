"""solvers.angles against exact angles and the printed formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.solvers.angles import angles, gompertz


@pytest.mark.parametrize(
    "angle", [0.0, 1e-9, 1e-4, 0.3, 1.0, math.pi / 2, 2.5, math.pi - 1e-9, math.pi]
)
@pytest.mark.parametrize("length", [1e-150, 1.0, 1e150])
def test_a_rotated_vector_has_its_angle(angle, length):
    a = np.array([math.cos(angle), math.sin(angle), 0.0]) * length
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    got = angles((basis @ a)[None], basis @ np.array([3.0, 0.0, 0.0]))
    assert got.tolist() == pytest.approx([angle], abs=2e-15, rel=1e-6)


def test_angles_agree_with_the_arc_cosine_where_that_is_accurate():
    rows = np.random.default_rng(1).normal(size=(20, 6))
    axis = rows[0] + rows[1]
    expected = np.arccos(
        rows @ axis / np.linalg.norm(rows, axis=1) / np.linalg.norm(axis)
    )
    np.testing.assert_allclose(angles(rows, axis), expected, rtol=1e-12)
    assert angles(-rows, -axis).tolist() == angles(rows, axis).tolist()
    assert float(angles(rows, -axis)[3]) == pytest.approx(math.pi - expected[3])


def test_a_vector_of_zeros_points_nowhere():
    assert angles([[0.0, 0.0], [1.0, 0.0]], [0.0, 0.0]).tolist() == [math.pi / 2] * 2
    assert angles([[0.0, 0.0]], [1.0, 2.0]).tolist() == pytest.approx([math.pi / 2])
    assert angles(torch.zeros(0, 2), [1.0, 2.0]).shape == (0,)


def test_an_angle_does_not_depend_on_the_other_rows():
    rows = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    whole = angles(rows, rows.mean(0))
    assert torch.equal(whole[2:3], angles(rows[2:3], rows.mean(0)))
    assert whole.dtype is torch.float32


@pytest.mark.parametrize("alpha", [0.5, 5.0, 12.0])
def test_gompertz_is_the_formula_and_falls(alpha):
    t = np.linspace(0, math.pi, 50)
    expected = [alpha * (1 - math.exp(-math.exp(-alpha * (v - 1)))) for v in t]
    got = gompertz(t, alpha).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    assert (np.diff(got) <= 0).all()
    assert got[0] > got[-1] + 0.3 * alpha
    assert float(gompertz([1.0], alpha)) == pytest.approx(alpha * (1 - 1 / math.e))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: angles([1.0], [1.0]), r"rows must be a matrix \[rows, columns\]"),
        (
            lambda: angles([[1.0, 2.0]], [1.0]),
            r"reference must have as many entries as a row \(2\); got 1",
        ),
        (lambda: angles([[math.inf]], [1.0]), "rows must be finite"),
        (lambda: gompertz([1.0], 0), "alpha must be a finite number > 0; got 0.0"),
        (lambda: gompertz([math.nan], 5), "angle must be finite"),
    ],
)
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
