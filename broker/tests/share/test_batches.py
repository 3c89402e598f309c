"""Members acquire the records of data batches, and for read_committed only those of committed transactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.share.batches import deliverable_batches
from penstock.share.partition import LogBatch
from penstock.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader


def header(first: int, size: int = 1, producer_id: int = -1, attributes: int = 0) -> BatchHeader:
    return BatchHeader(first, 100, 0, 2, 0, attributes, size - 1, 0, 0, producer_id, 0, 0, size)


def data(first: int, producer_id: int, size: int = 1) -> BatchHeader:
    return header(first, size, producer_id, TRANSACTIONAL)


def marker(first: int, producer_id: int) -> BatchHeader:
    return header(first, 1, producer_id, TRANSACTIONAL | CONTROL)


def delivered(headers: list[BatchHeader], aborted: list[tuple[int, int]]) -> list[int]:
    """Return the first offsets of the deliverable batches."""
    return [batch.first for batch in deliverable_batches(headers, aborted) if batch.is_deliverable]


def test_each_batch_keeps_its_offsets() -> None:
    found = list(deliverable_batches([header(3, 4), header(9, 2), marker(11, 5)]))
    assert found == [LogBatch(3, 6), LogBatch(9, 10), LogBatch(11, 11, is_deliverable=False)]


def test_read_uncommitted_sees_aborted_records_but_no_markers() -> None:
    assert delivered([data(0, 5), marker(1, 5), data(2, 6)], []) == [0, 2]


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    log = [data(0, 5), data(1, 6), header(2), marker(3, 5), data(4, 5), marker(5, 6)]
    assert delivered(log, [(5, 0)]) == [1, 2, 4]


def test_an_aborted_transaction_that_started_before_the_read_is_left_out() -> None:
    assert delivered([data(10, 5), marker(11, 5), data(12, 5)], [(5, 2)]) == [12]


def test_batches_of_a_producer_outside_its_transaction_are_delivered() -> None:
    log = [header(0, producer_id=5), data(1, 5), header(2, producer_id=5), marker(3, 5), header(4, producer_id=5)]
    assert delivered(log, [(5, 1)]) == [0, 2, 4]


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["data", "commit", "abort"])), max_size=40), st.data())
def test_a_read_from_any_offset_delivers_what_was_committed(steps: list[tuple[int, str]], draw: st.DataObject) -> None:
    log: list[BatchHeader] = []
    opened: dict[int, list[int]] = {}
    committed: set[int] = set()
    aborted: list[tuple[int, int, int]] = []
    for offset, (producer_id, step) in enumerate(steps):
        if step == "data":
            log.append(data(offset, producer_id))
            opened.setdefault(producer_id, []).append(offset)
            continue
        log.append(marker(offset, producer_id))
        offsets = opened.pop(producer_id, [])
        if step == "commit":
            committed.update(offsets)
        elif offsets:
            aborted.append((offsets[0], producer_id, offset))
    stable = min((offsets[0] for offsets in opened.values()), default=len(log))
    start = draw.draw(st.integers(0, stable))
    listed = [(producer, first) for first, producer, last in sorted(aborted) if last >= start and first < stable]
    assert delivered(log[start:stable], listed) == sorted(o for o in committed if start <= o < stable)
