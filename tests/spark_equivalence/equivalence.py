"""The format `penstock` reads the same rows as Spark's own Kafka connector, option by option.

Not named `test_...`: it needs Maven and the package index, so `make test` excludes it. See README.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from equivalence_kit.cases import CASES, Case

Found = dict[str, dict[str, Any]]
# The first test waits for both programs.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.flaky(reruns=2)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_read_the_same(case: Case, found: tuple[Found, Found]) -> None:
    theirs, ours = found[0][case.name], found[1][case.name]
    if case.fails:
        assert "error" in theirs, f"the connector takes it: {theirs}"
        assert "error" in ours, f"the connector refuses it ({theirs['error'][:300]}), ours does not"
        return
    assert "error" not in theirs, f"the connector refuses it: {theirs}"
    assert "error" not in ours, ours
    assert ours["rows"] == theirs["rows"]
    assert ours.get("ends") == theirs.get("ends"), "the batches of a stream end elsewhere"


def test_the_cases_read_something(found: tuple[Found, Found]) -> None:
    """Two empty tables would be equal too."""
    empty = [name for name, one in found[0].items() if len(one.get("rows", [])) == 1]
    assert sorted(empty) == ["batch: an empty range", "batch: no record as young, at the end", "stream: nothing is new"]
