"""Rules of each coordinate work on blocks of them: the same bits, and never a copy of all rows."""

from __future__ import annotations

import pytest
import torch

from coterie.solvers import robust


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1, 5), (2, 7), (5, 1000), (10, 70_001), (13, 3), (64, 9), (65, 9)],
)
def test_medians_and_trimmed_means_are_those_of_a_sort_in_float64(rows, columns, dtype):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(
        dtype
    )
    matrix[:, ::3] = matrix[0, 0]  # ties
    ordered, trim = matrix.double().sort(0).values, (rows - 1) // 4
    middle = torch.lerp(ordered[(rows - 1) // 2], ordered[rows // 2], 0.5)
    assert torch.equal(robust.median(matrix), middle.to(dtype))
    assert torch.equal(
        robust.trimmed_mean(matrix, trim), ordered[trim : rows - trim].mean(0).to(dtype)
    )


@pytest.mark.in_turn(but="median")
@pytest.mark.parametrize(
    "rule", [robust.median, lambda rows: robust.trimmed_mean(rows, 1)]
)
def test_no_tensor_is_as_large_as_all_rows(rule):
    matrix = torch.randn(10, 1 << 19)
    with torch.profiler.profile(profile_memory=True) as profile:
        rule(matrix)
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert (
        largest <= 2 * matrix[0].numel() * matrix.element_size()
    )  # of one row, and of what comes out


@pytest.mark.parametrize("columns", [3, 70_001])
def test_what_is_not_finite_is_refused_wherever_it_stands(columns):
    matrix = torch.zeros(3, columns)
    matrix[1, -1] = torch.nan
    with pytest.raises(
        ValueError, match=f"got 1 NaN or Inf among {3 * columns} values"
    ):
        robust.median(matrix)
