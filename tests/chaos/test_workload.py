"""Only acknowledged operations count as progress, not attempted ones."""

from __future__ import annotations

import pytest
from penstock_chaos.workload import is_done
from penstock_crash.journal import Entry


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (["ack", "value", 7, 1.0], True),
        (["commit", "billing", 0, 7, 1.0, 1.1], True),
        (["commit", "billing", 0, 7, 1.0, None], False),
        (["end", "w.1.0", "committed", 1.0], True),
        (["end", "w.1.0", "aborted", 1.0], False),
        (["end", "w.1.0", "unknown", 1.0], False),
    ],
)
def test_only_what_was_acknowledged_counts(entry: Entry, expected: bool) -> None:
    assert is_done(entry) is expected
