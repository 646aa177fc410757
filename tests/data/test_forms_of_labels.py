"""Labels of a declared form, as tensors: each row is one of that form, or refused with what it should be."""

from __future__ import annotations

import math

import pytest
import torch

import coterie as ct

HAZARDS = ct.LabelForm("hazards", cuts=(0.5, 1.2), rates=(0.2, 0.3))
COUNTS = ct.LabelForm("count", rates=(0.5,))
DRAW = torch.Generator().manual_seed(0)
INPUTS = torch.randn(40, 3, generator=DRAW)
TIMES = torch.rand(40, generator=DRAW) + 0.1
GOOD = {
    HAZARDS: torch.stack(
        [torch.zeros(40), TIMES, (torch.rand(40, generator=DRAW) > 0.5).float()], 1
    ),
    COUNTS: torch.stack([torch.poisson(torch.ones(40), generator=DRAW), TIMES], 1),
}
CELLS = [
    *((HAZARDS, (0.0, 1.0, 1.0), cell) for cell in ((0, -1.0), (1, -1.0), (1, 0.0))),
    *((HAZARDS, (0.0, 1.0, 1.0), cell) for cell in ((0, 1.0), (0, 2.0))),
    *((HAZARDS, (0.0, 1.0, 1.0), (2, event)) for event in (-1.0, 0.5, 2.0)),
    *((COUNTS, (1.0, 1.0), (0, seen)) for seen in (-1.0, 0.5)),
    *((COUNTS, (1.0, 1.0), (1, exposure)) for exposure in (-1.0, 0.0)),
]


def of_form(labels, form):
    """Two clients, of which the second has labels that are right."""
    other = GOOD[form]
    return ct.data.from_tensors(
        {"a": (INPUTS[: len(labels)], labels), "b": (INPUTS, other)}, form=form
    )


@pytest.mark.parametrize(("form", "row", "cell"), CELLS)
def test_a_row_that_is_none_of_its_form_is_refused_by_client(form, row, cell):
    labels = GOOD[form].clone()
    labels[7] = torch.tensor(row)
    of_form(labels, form)
    column, value = cell
    labels[7, column] = value
    with pytest.raises(ct.InputError, match=rf"client 'a' has a row .* {value:g}"):
        of_form(labels, form)


@pytest.mark.parametrize("form", [HAZARDS, COUNTS])
@pytest.mark.parametrize("change", [lambda x: x[:, 0], lambda x: x[:, :1], torch.t])
def test_labels_of_another_shape_are_refused_before_training(form, change):
    labels = change(GOOD[form])
    wrong = {name: (INPUTS[: len(labels)], labels) for name in ("a", "b")}
    with pytest.raises(ct.InputError, match="give rows of"):
        ct.data.from_tensors(wrong, form=form)


@pytest.mark.parametrize("key", ["cuts", "rates", "horizon"])
@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0, 0.0, "a", None])
def test_a_form_is_of_finite_numbers(key, value):
    settings = {"cuts": (0.5,), "rates": (0.2,), "horizon": 1.0}
    settings[key] = value if key == "horizon" else (value,)
    with pytest.raises(ct.InputError):
        ct.LabelForm("hazards", **settings)
    if key != "horizon" and value is not None:
        with pytest.raises(ct.InputError):
            ct.LabelForm("hazards", **{**settings, key: value})
