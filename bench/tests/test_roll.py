"""What the report of a roll says of clients, from their events."""

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


def test_what_was_acknowledged_and_not_received_is_lost_and_what_came_twice_is_doubled() -> None:
    seen = read("a client", LINES)
    assert (seen.lost, seen.doubled) == (1, 1)
    assert seen.errors == {"NotLeaderForPartition": 1}


def test_the_longest_gaps_stand_in_the_table() -> None:
    row = table([read("a client", LINES)]).splitlines()[-1]
    assert row == "| a client | 3 | 1 | 1 | 2.5 s | 3.0 s | NotLeaderForPartition 1 |"
    assert longest_gap([]) == 0


def test_a_line_that_is_no_event_is_named() -> None:
    with pytest.raises(ValueError, match="no event"):
        read("a client", ["1.0 gone 7"])
