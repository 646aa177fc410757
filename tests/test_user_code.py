"""`docs/user_code.py`, which `make lint` runs, finds what a type checker finds in a user's code."""

import importlib.util
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[1] / "docs" / "user_code.py"
SPEC = importlib.util.spec_from_file_location("user_code", PLACE)
user_code = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(user_code)

METHOD = """
from typing import NamedTuple
import coterie as ct
from torch import Tensor

class State(NamedTuple):
    x: Tensor

@ct.options
class Still(ct.Method):
    local: ct.LocalSGD = ct.LocalSGD()
    def init(self, x: Tensor, federation: ct.Federation) -> State:
        return State(x)
    def round(self, state: State, federation: ct.Federation, rng: ct.Rng) -> tuple[State, dict[str, float]]:
        return state, {}
    def models(self, state: State) -> Tensor:
        return state.x

class Alone:
    def round(self, state, federation, rng):
        return state, {}

clients = ct.data.load("digits")
settings = ct.RunSettings(metrics=["accuracy"], callbacks=[ct.EarlyStopping(patience=3)])
ct.fit(Still(), clients, ct.models.MLP(), rounds=1, settings=settings)
"""


def test_blocks_of_a_page_have_their_captions_as_names(tmp_path):
    page = tmp_path / "some-page.md"
    page.write_text(
        "```python\na = 1\n```\n```{code-block} python\n:caption: mine.py\n\nb = 2\n```\n```python\n>>> a\n1\n```\n"
    )
    assert list(user_code.shown_code(page)) == [
        ("some_page_0", "a = 1\n"),
        ("mine", "b = 2\n"),
    ]
    with pytest.raises(ValueError, match=r"two blocks of code are called mine\.py"):
        user_code.type_errors(iter([("mine", ""), ("mine", "")]))


@pytest.mark.programs
def test_a_method_with_types_passes_and_one_without_the_base_class_does_not():
    assert user_code.type_errors([("mine", METHOD)]) == ""
    wrong = METHOD + "ct.fit(Alone(), clients)\nSt = Still().modles(None)\n"
    found = user_code.type_errors([("mine", wrong)])
    assert '"Alone"; expected "Method[Any] | str"' in found
    assert '"Still" has no attribute "modles"' in found


@pytest.mark.programs
def test_an_example_is_typed_throughout():
    untyped = "def double(x):\n    return 2 * x\n"
    assert user_code.type_errors(iter([("mine", untyped)])) == ""
    found = user_code.type_errors(iter([("mine", untyped)]), are_examples=True)
    assert "missing a type annotation" in found
