"""The records of dead letters, without I/O: the original record with headers that say what happened (KIP-1191).

Used by `dead_letter_writer`. The headers after the original ones are texts. A letter without its original, because it
is not to be copied or the log no longer has it, has these headers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.share.dead_letters import MAX_BATCHED_LETTERS, DeadLetterState
from penstock.wire.batch import HEADER_SIZE
from penstock.wire.batch_builder import BatchBuilder, record_size_bound
from penstock.wire.letter_headers import (
    DELIVERY_COUNT,
    FIRST_FAILURE,
    GROUP,
    LAST_FAILURE,
    MESSAGE,
    OFFSET,
    PARTITION,
    TOPIC,
)
from penstock.wire.record import Header, Record

REJECTED = "rejected by a member of the group"
EXHAUSTED = "delivered as often as the group's limit permits"


class Failure(NamedTuple):
    """What led to a letter. The times are in ms since 1970, None if another leader knew them, as then is the reason
    that the member gave."""

    offset: int
    delivery_count: int
    is_rejected: bool
    first_ms: int | None = None
    last_ms: int | None = None
    reason: str = ""

    @property
    def message(self) -> str:
        """The text of the letter's header."""
        message = REJECTED if self.is_rejected else EXHAUSTED
        return f"{message}: {self.reason}" if self.reason else message


class LetterSource(NamedTuple):
    """Where the records of letters come from, and the group that gave them up."""

    topic: str
    partition: int
    group_id: str


class SourceRecords(NamedTuple):
    """The records that a read of the log returned. It covers the offsets below `end`; `is_readable` is False if the log
    no longer has them, or they are not to be copied."""

    records: Mapping[int, Record]
    end: int
    is_readable: bool = True


class PlannedRange(NamedTuple):
    """The next offsets to handle: `size` letters, or a gap without records if `has_records` is False."""

    first: int
    size: int
    has_records: bool


def failure_headers(source: LetterSource, failure: Failure) -> list[Header]:
    """Return the headers that a letter has in addition to the original ones."""
    texts = [
        (TOPIC, source.topic),
        (PARTITION, str(source.partition)),
        (OFFSET, str(failure.offset)),
        (GROUP, source.group_id),
        (DELIVERY_COUNT, str(failure.delivery_count)),
        (MESSAGE, failure.message),
    ]
    times = ((FIRST_FAILURE, failure.first_ms), (LAST_FAILURE, failure.last_ms))
    texts += [(name, str(time_ms)) for name, time_ms in times if time_ms is not None]
    return [(name, text.encode()) for name, text in texts]


def letter_of(original: Record | None, headers: Sequence[Header], max_bytes: int) -> Record:
    """Return a letter; one that would exceed `max_bytes` leaves the original out."""
    if original is not None:
        joined = (*original.headers, *headers)
        if record_size_bound(original.key, original.value, joined) <= max_bytes - HEADER_SIZE:
            return Record(key=original.key, value=original.value, headers=joined)
    return Record(headers=tuple(headers))


def plan_letters(
    first: int, last: int, found: SourceRecords, size_of: Callable[[int, Record | None], int], max_bytes: int
) -> PlannedRange:
    """Return the first letters to write of the records from `first` to `last`, at most a batch; or a gap.

    `size_of` returns the size of a letter in bytes.
    """
    records, end = found.records, min(found.end, last + 1)
    if found.is_readable and first not in records:
        stop = next((offset for offset in range(first, end) if offset in records), end)
        return PlannedRange(first, stop - first, has_records=False)
    size, offset = HEADER_SIZE, first
    for offset in range(first, min(end, first + MAX_BATCHED_LETTERS)):
        record = records.get(offset)
        size += size_of(offset, record)
        if offset > first and (size > max_bytes or (found.is_readable and record is None)):
            return PlannedRange(first, offset - first, has_records=True)
    return PlannedRange(first, offset - first + 1, has_records=True)


def encode_letters(letters: Iterable[Record], batch: DeadLetterState, now_ms: int) -> bytes:
    """Return the outstanding batch, whose letters have the time `now_ms`."""
    builder = BatchBuilder(now_ms)
    for letter in letters:
        builder.append(letter.key, letter.value, letter.headers, now_ms)
    assert builder.count == batch.size, f"{builder.count} letters for {batch.size} records"
    return builder.build(
        producer_id=batch.producer_id, producer_epoch=batch.producer_epoch, base_sequence=batch.sequence
    )
