"""Acquired records: what is sent for them, once each, and what becomes of them when a session ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import (
    AcknowledgementResult,
    BrokerError,
    ConnectionFailed,
    ErrorCode,
    IllegalState,
    TopicPartition,
)
from penstock.client.share.acquired import AckRun, AcquiredPartition, ack_runs
from penstock.client.share.types import AckChoice, Acknowledgement

TP = TopicPartition("t", 0)
ACCEPT, RELEASE, RENEW = (AckChoice(Acknowledgement[name]) for name in ("ACCEPT", "RELEASE", "RENEW"))
CHOICES = st.builds(
    AckChoice, st.sampled_from(Acknowledgement), st.sampled_from([-1, 0, 1000]), st.sampled_from(["", "x"])
)
LOCK_END_S = 30.0


class Partition(AcquiredPartition):
    """Records 0 to 9, and what was reported."""

    def __init__(self) -> None:
        self.kinds: list[Acknowledgement] = []
        self.results: list[AcknowledgementResult] = []
        super().__init__(TP, self.kinds.append, self.results.append)
        self.acquire(range(10), LOCK_END_S)


def read_runs(runs: list[AckRun]) -> dict[int, AckChoice]:
    """Return the acknowledgement of each offset, as a broker reads it."""
    found: dict[int, AckChoice] = {}
    for first, last, types, delay_ms, reason in runs:
        offsets = range(first, last + 1)
        assert len(types) in (1, len(offsets))
        for offset, kind in zip(offsets, types * len(offsets) if len(types) == 1 else types, strict=True):
            assert offset not in found
            found[offset] = AckChoice(Acknowledgement(kind), delay_ms, reason)
    return found


@given(st.dictionaries(st.integers(0, 30), CHOICES))
def test_runs_name_each_offset_once_in_order(choices: dict[int, AckChoice]) -> None:
    runs = list(ack_runs(choices))
    assert read_runs(runs) == choices
    assert [run.first_offset for run in runs] == sorted(run.first_offset for run in runs)


def test_adjacent_offsets_with_one_type_are_one_run_with_one_type() -> None:
    partition = Partition()
    for offset in range(10):
        partition.acknowledge(offset, ACCEPT)
    assert partition.pop_pending() == [AckRun(0, 9, [1], -1)]


def test_an_acknowledgement_can_be_changed_until_it_is_sent_and_not_later() -> None:
    partition = Partition()
    partition.acknowledge(3, ACCEPT)
    partition.acknowledge(3, RELEASE)
    assert read_runs(partition.pop_pending()) == {3: RELEASE}
    for again in (True, False):
        with pytest.raises(IllegalState, match="offset 3 was acknowledged before"):
            partition.acknowledge(3, ACCEPT)
        if again:
            assert partition.complete(None, 0).offsets == [3]


def test_a_renewed_record_stays_held_with_a_later_end_of_its_lock() -> None:
    partition = Partition()
    partition.acknowledge(3, RENEW)
    partition.pop_pending()
    partition.complete(None, LOCK_END_S + 5)
    assert (partition.held[3], partition.held[4]) == (LOCK_END_S + 5, LOCK_END_S)
    partition.acknowledge(3, ACCEPT)
    assert read_runs(partition.pop_pending()) == {3: ACCEPT}


def test_a_record_that_is_accepted_while_its_renewal_is_under_way_is_no_longer_held() -> None:
    partition = Partition()
    partition.acknowledge(3, RENEW)
    partition.pop_pending()
    partition.acknowledge(3, ACCEPT)
    partition.complete(None, LOCK_END_S + 5)
    assert 3 not in partition.held
    assert read_runs(partition.pop_pending()) == {3: ACCEPT}


def test_a_failed_renewal_does_not_move_the_end_of_the_lock() -> None:
    partition = Partition()
    partition.acknowledge(3, RENEW)
    partition.pop_pending()
    error = BrokerError(ErrorCode.INVALID_RECORD_STATE)
    assert partition.complete(error, LOCK_END_S + 5) == AcknowledgementResult(TP, [3], error)
    assert partition.held[3] == LOCK_END_S


def test_a_buffered_record_is_not_returned_after_the_end_of_its_lock_or_session() -> None:
    partition = Partition()
    assert partition.is_deliverable(0, LOCK_END_S - 1)
    assert not partition.is_deliverable(0, LOCK_END_S)
    assert (partition.count_held(0), partition.count_held(LOCK_END_S)) == (9, 0)
    partition.close(ConnectionFailed("cut"))
    assert not partition.is_deliverable(1, 0)
    assert partition.count_held(0) == 0


def test_the_end_of_a_session_fails_what_was_not_answered_and_all_later_acknowledgements() -> None:
    partition, error = Partition(), ConnectionFailed("cut")
    partition.acknowledge(1, ACCEPT)
    partition.pop_pending()
    partition.acknowledge(2, ACCEPT)
    partition.refuse([20], Acknowledgement.GAP)
    assert partition.close(error) == AcknowledgementResult(TP, [1, 2], error)
    partition.acknowledge(3, ACCEPT)
    [result] = partition.results
    assert (result.offsets, type(result.error)) == ([3], BrokerError)
    assert not partition.pending


def test_gaps_are_acknowledged_and_not_reported() -> None:
    partition = Partition()
    partition.refuse([20, 21], Acknowledgement.GAP)
    assert partition.pop_pending() == [AckRun(20, 21, [0], -1)]
    assert partition.complete(None, 0).offsets == []
    assert not partition.is_done
    for offset in range(10):
        partition.acknowledge(offset, ACCEPT)
    partition.pop_pending()
    partition.complete(None, 0)
    assert partition.is_done
