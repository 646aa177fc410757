"""Which methods run under secure sums: what a method declares says the same as a run on a probe."""

from __future__ import annotations

import pytest
from test_methods import FAMILIES, FIRST, label, method_of, quick

import coterie as ct
from coterie.base.errors import InputError
from coterie.run import loop
from coterie.run.secure_methods import check_sums_alone

pytest.importorskip(
    "cryptography",
    reason="secure sums need cryptography: pip install 'coterie[secure]'",
)
PROBES = [
    pytest.param(case, marks=() if case[0] in FAMILIES else pytest.mark.in_turn)
    for case in FIRST
]


@pytest.mark.promise("secure sums")
@pytest.mark.parametrize("case", PROBES, ids=label)
def test_a_method_runs_under_secure_sums_or_is_refused_as_its_asks_are(
    case, monkeypatch
):
    """What it declares says the same as a run on a probe in which the declaration is not looked at."""
    method = method_of(case)
    try:
        check_sums_alone(method, case[0])
        declared = ""
    except InputError as refusal:
        declared = str(refusal)
    monkeypatch.setattr(loop, "check_secure", lambda *arguments: None)
    if method.needs_exact_uploads:
        assert "clips and rounds" in declared
        return
    settings = {"secure": ct.SecureSums(3), "rounds": 2}
    if case[0] == "target-only":  # its sum is over the target alone
        declared = "at least 3 clients"
    if not declared:
        plain, masked = quick(case, rounds=2), quick(case, **settings)
        assert masked.failures == plain.failures
        return
    if case[0] == "ocs":  # asks for norms where it must choose
        settings |= {"clients_per_round": 3}
    with pytest.raises(InputError, match=r"\[secure\]"):
        quick(case, **settings)
