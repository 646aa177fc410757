"""What an author of a package gets wrong in a data set or a filter is told in a sentence, and harms nobody else."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.config.registry import DATASETS

TOWNS = """
import torch

import coterie as ct


def clients(*, seed=0, split=None, rows=40):
    labels = torch.arange(rows) % 2
    sites = {name: (torch.randn(rows, 2, generator=torch.Generator().manual_seed(i)), labels) for i, name in enumerate("ab")}
    return ct.data.from_tensors(sites, seed=seed, split=split)


TOWNS = ct.data.Dataset("two towns", "2", "2 classes", "none needed", clients, {"rows": 40})
"""


@pytest.fixture
def towns(tmp_path, monkeypatch):
    (tmp_path / "towns.py").write_text(TOWNS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def with_a_function(monkeypatch):
    """An entry point of data sets that names a function, in the one registry that every module shares."""
    assert "heart-disease" in DATASETS  # packages have been looked for
    wrong = EntryPoint("towns", "torch:zeros", "coterie.datasets")
    monkeypatch.setitem(DATASETS._entries, "towns", wrong)


def test_the_list_of_data_sets_leaves_out_an_entry_that_is_none(
    with_a_function, capsys
):
    assert main(["data"]) == 0
    shown = capsys.readouterr()
    assert "heart-disease" in shown.out
    assert "left out: the data set 'towns'" in shown.err
    assert "Dataset" in shown.err


@pytest.mark.parametrize("command", [["show", "towns"], ["compare", "towns"]])
def test_a_command_that_names_it_says_what_a_data_set_is(
    with_a_function, capsys, command
):
    assert main(command) == 2
    assert "Dataset" in capsys.readouterr().err


def test_a_program_cannot_register_what_is_no_data_set():
    with pytest.raises(InputError, match=r"coterie\.data\.Dataset"):
        ct.register("datasets", "towns-of-a-test")(torch.zeros)
    assert "towns-of-a-test" not in DATASETS


def test_a_file_gives_its_function_or_its_data_set(towns):
    by_function = ct.data.load("towns.py:clients", rows=20)
    by_entry = ct.data.load("towns.py:TOWNS", rows=20)
    assert by_function.fingerprint() == by_entry.fingerprint()


def test_an_option_that_the_data_set_of_a_file_does_not_have_is_refused(towns):
    with pytest.raises(InputError, match=r"TOWNS has no option 'size'.*rows"):
        ct.data.load("towns.py:TOWNS", size=20)


@ct.wire_type
@ct.options
class OffByAThousandth(ct.Filter):
    """Unpacks something near to what it has packed."""

    packs = True

    def pack(self, rows):
        return {"rows": rows}

    def unpack(self, parts, dim):
        return 1.001 * parts["rows"]


def test_a_filter_that_unpacks_something_else_breaks_a_law():
    with pytest.raises(ct.testing.LawError, match="'unpacks'"):
        ct.testing.check_filter(OffByAThousandth())
