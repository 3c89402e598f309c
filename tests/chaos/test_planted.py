"""The planted faults still fit the source, and name existing cells."""

from __future__ import annotations

import pytest
from penstock_chaos.cells import CELLS
from penstock_chaos.planted import PLANTS
from penstock_faults.planting import ROOT, Fault, mutated


@pytest.mark.parametrize("fault", PLANTS, ids=[fault.name for fault in PLANTS])
def test_a_fault_can_be_planted(fault: Fault) -> None:
    assert mutated(fault) != (ROOT / fault.place).read_text()
    assert set(fault.caught_by) <= {cell.name for cell in CELLS}
