"""The tests named for each planted fault detect it.

This module replays the five most important faults; `python -m tests.faults.run` replays all.
"""

from __future__ import annotations

import pytest
from penstock_faults.catalogue import CORE, FAULTS, table
from penstock_faults.planting import ROOT, Fault, FaultError, check_noticed, check_sound, mutated


@pytest.fixture(scope="module")
def sound() -> None:
    check_sound(CORE)


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("faults")  # otherwise each process would check again that the tests pass without faults
@pytest.mark.parametrize("fault", CORE, ids=[fault.name for fault in CORE])
@pytest.mark.usefixtures("sound")
def test_a_test_fails_when_the_fault_is_planted(fault: Fault) -> None:
    print(check_noticed(fault))


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_can_still_be_planted_and_its_tests_are_there(fault: Fault) -> None:
    assert mutated(fault) != (ROOT / fault.place).read_text()
    for test in fault.caught_by:
        file, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(), f"{test} is not there"


def test_a_fault_that_does_not_fit_the_source_is_an_error() -> None:
    gone = Fault("gone", "nothing", CORE[0].file, "this text is not there", "", ())
    with pytest.raises(FaultError, match="stands 0 times"):
        mutated(gone)


def test_the_reference_lists_every_fault() -> None:
    assert table() in (ROOT / "docs" / "reference" / "faults.md").read_text(), (
        "docs/reference/faults.md is out of date: put in what `python -m tests.faults.run --table` prints"
    )
