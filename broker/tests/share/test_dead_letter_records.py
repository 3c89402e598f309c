"""Which letters a batch takes, and what a letter contains."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.share.dead_letter_records import (
    EXHAUSTED,
    FIRST_FAILURE,
    LAST_FAILURE,
    MESSAGE,
    REJECTED,
    Failure,
    LetterSource,
    PlannedRange,
    SourceRecords,
    encode_letters,
    failure_headers,
    letter_of,
    plan_letters,
)
from penstock.share.dead_letters import MAX_BATCHED_LETTERS, DeadLetterState, DeadLetterTarget
from penstock.wire.record import Record
from penstock.wire.records import iterate_batches, iterate_records

SOURCE = LetterSource("t", 3, "g")
LARGE = 1 << 20


def read(*offsets: int, end: int, is_readable: bool = True) -> SourceRecords:
    return SourceRecords({offset: Record(offset=offset, value=b"v") for offset in offsets}, end, is_readable)


def plan(first: int, last: int, found: SourceRecords, max_bytes: int = LARGE) -> PlannedRange:
    return plan_letters(first, last, found, lambda offset, record: 100, max_bytes)


def test_a_batch_takes_adjacent_records() -> None:
    assert plan(5, 9, read(5, 6, 7, 8, 9, end=10)) == (5, 5, True)
    assert plan(5, 9, read(5, 6, end=7)) == (5, 2, True)
    assert plan(5, 5, read(5, 6, end=7)) == (5, 1, True)


def test_offsets_that_compaction_left_empty_are_gaps() -> None:
    assert plan(5, 9, read(5, 8, end=10)) == (5, 1, True)
    assert plan(6, 9, read(8, end=10)) == (6, 2, False)
    assert plan(6, 9, read(end=8)) == (6, 2, False)
    assert plan(6, 9, read(12, end=13)) == (6, 4, False)


def test_records_that_cannot_be_read_have_letters() -> None:
    assert plan(5, 9, read(end=8, is_readable=False)) == (5, 3, True)
    assert plan(5, 9, read(end=10, is_readable=False)) == (5, 5, True)


def test_a_batch_is_bounded_by_size_and_number_and_takes_at_least_one() -> None:
    everything = read(*range(1000), end=1000)
    assert plan(0, 999, everything) == (0, MAX_BATCHED_LETTERS, True)
    assert plan(0, 999, everything, max_bytes=61 + 250) == (0, 2, True)
    assert plan(0, 999, everything, max_bytes=10) == (0, 1, True)


def test_a_letter_has_the_original_headers_first() -> None:
    original = Record(offset=7, key=b"k", value=b"v", headers=(("a", b"1"), ("b", None)))
    letter = letter_of(original, failure_headers(SOURCE, Failure(7, 2, is_rejected=True)), LARGE)
    assert (letter.key, letter.value) == (b"k", b"v")
    assert [name for name, _ in letter.headers] == [
        "a", "b", "__dlq.errors.topic", "__dlq.errors.partition", "__dlq.errors.offset", "__dlq.errors.group",
        "__dlq.errors.delivery.count", "__dlq.errors.message",
    ]  # fmt: skip
    assert dict(letter.headers)["__dlq.errors.partition"] == b"3"


@pytest.mark.parametrize(("is_rejected", "message"), [(True, REJECTED), (False, EXHAUSTED)])
def test_the_headers_have_the_reason_and_the_known_times(is_rejected: bool, message: str) -> None:
    headers = dict(failure_headers(SOURCE, Failure(7, 2, is_rejected, 1000, 2000)))
    assert (headers[MESSAGE], headers[FIRST_FAILURE], headers[LAST_FAILURE]) == (message.encode(), b"1000", b"2000")


@pytest.mark.parametrize(("is_rejected", "message"), [(True, REJECTED), (False, EXHAUSTED)])
def test_the_reason_that_the_member_gave_follows_that_of_the_broker(is_rejected: bool, message: str) -> None:
    headers = dict(failure_headers(SOURCE, Failure(7, 2, is_rejected, 1000, 2000, "no such customer: é")))
    assert headers[MESSAGE] == f"{message}: no such customer: é".encode()


def test_a_letter_that_is_too_large_leaves_the_original_out() -> None:
    original = Record(offset=7, value=bytes(500), headers=(("a", bytes(500)),))
    headers = failure_headers(SOURCE, Failure(7, 2, is_rejected=True))
    assert letter_of(original, headers, 1000) == Record(headers=tuple(headers))


def test_a_batch_has_the_sequence_of_its_producer() -> None:
    batch = DeadLetterState(9, 2, 40, DeadLetterTarget(UUID(int=1), 0), 7, 2)
    encoded = encode_letters([Record(value=b"x"), Record(value=b"y")], batch, 1234)
    ((header, body),) = iterate_batches(encoded)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (9, 2, 40, 2)
    assert [(r.value, r.timestamp_ms) for r in iterate_records(body, header, LARGE)] == [(b"x", 1234), (b"y", 1234)]
    with pytest.raises(AssertionError, match="1 letters for 2 records"):
        encode_letters([Record(value=b"x")], batch, 1234)
