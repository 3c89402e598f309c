"""The report of a roll, from the events of clients."""

from __future__ import annotations

import pytest

from bench.roll.report import longest_gap, read, table

LINES = [
    "10.0 acknowledged 0",
    "10.5 received 0",
    "12.5 acknowledged 1",
    "12.6 acknowledged 2",
    "13.0 error NotLeaderForPartition",
    "13.5 received 1",
    "13.6 received 1",
]


def test_records_are_lost_if_not_stored_and_otherwise_not_received_and_counted_if_they_come_twice() -> None:
    seen = read("a client", [*LINES, "13.7 acknowledged 3"])
    seen.stored = frozenset({0, 1, 2})
    assert (seen.lost, seen.not_received, seen.doubled) == (1, 1, 1)
    assert seen.errors == {"NotLeaderForPartition": 1}


def test_the_longest_gaps_stand_in_the_table() -> None:
    seen = read("a client", LINES)
    seen.stored = frozenset({0, 1, 2})
    row = table([seen]).splitlines()[-1]
    assert row == "| a client | 3 | 0 | 1 | 1 | 2.5 s | 3.0 s | NotLeaderForPartition 1 |"
    assert longest_gap([]) == 0


def test_a_line_that_is_no_event_is_named() -> None:
    with pytest.raises(ValueError, match="no event"):
        read("a client", ["1.0 gone 7"])
