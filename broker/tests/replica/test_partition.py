"""A led partition: accepted batches, flushed offsets, notifications."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from log_kit import START_MS, HandClock
from replica_kit import (
    DataPath,
    Listener,
    Waiter,
    accepted,
    batch_of,
    opened_data_path,
    patched,
    stored,
    stored_headers,
    until,
)

from penstock.log.types import OffsetOutOfRange
from penstock.replica.leader import Leader
from penstock.wire.batch import LOG_APPEND_TIME, TRANSACTIONAL, checksum, read_header
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode

UNFLUSHED = {"flush_messages": str((1 << 63) - 1)}
HOUR_MS = 3_600_000


# Accepted batches


async def test_a_batch_gets_the_next_offsets_and_the_leader_epoch(path: DataPath) -> None:
    partition = await path.partition()
    assert accepted(partition, batch_of(3)).base_offset == 0
    assert accepted(partition, batch_of(2)).base_offset == 3
    headers = stored_headers(partition.log)
    assert [(h.base_offset, h.last_offset, h.leader_epoch) for h in headers] == [
        (0, 2, partition.leader_epoch),
        (3, 4, partition.leader_epoch),
    ]
    assert partition.messages_in == 5


@pytest.mark.parametrize("codec", list(Codec))
async def test_records_are_stored_as_they_were_compressed(path: DataPath, codec: Codec) -> None:
    partition = await path.partition()
    batch = batch_of(50, codec=codec)
    body = bytes(batch[61:])
    accepted(partition, batch)
    assert stored(partition.log)[61:] == body


@pytest.mark.parametrize(
    ("layout", "offset", "value", "sealed", "error"),
    [
        (">B", 70, 255, False, ErrorCode.CORRUPT_MESSAGE),
        (">b", 16, 1, True, ErrorCode.INVALID_RECORD),
        (">i", 8, 20, True, ErrorCode.CORRUPT_MESSAGE),
        (">i", 57, 2_000_000_000, True, ErrorCode.INVALID_RECORD),
        (">h", 21, TRANSACTIONAL, True, ErrorCode.INVALID_RECORD),
        (">h", 21, LOG_APPEND_TIME, True, ErrorCode.INVALID_TIMESTAMP),
    ],
)
async def test_an_unsound_batch_is_refused_in_words_and_leaves_nothing(
    path: DataPath, layout: str, offset: int, value: int, sealed: bool, error: ErrorCode
) -> None:
    partition = await path.partition()
    done = partition.append(patched(batch_of(), layout, offset, value, sealed=sealed))
    assert (done.error, done.base_offset) == (error, -1)
    assert done.message
    assert partition.log.end_offset == 0


async def test_a_batch_larger_than_the_topic_takes_is_refused(path: DataPath) -> None:
    partition = await path.partition(max_message_bytes="500")
    assert partition.append(batch_of(1, value=bytes(500))).error == ErrorCode.MESSAGE_TOO_LARGE
    accepted(partition, batch_of(1, value=bytes(300)))


async def test_a_transactional_batch_without_a_transactional_id_is_refused(path: DataPath) -> None:
    partition = await path.partition()
    done = partition.append(batch_of(producer=(5, 0, 0), attributes=TRANSACTIONAL))
    assert done.error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert partition.log.end_offset == 0


# Timestamps


async def test_times_are_the_producers_by_default(path: DataPath) -> None:
    partition = await path.partition()
    done = accepted(partition, batch_of(3, timestamp_ms=START_MS - 5000))
    assert done.log_append_time_ms == -1
    (header,) = stored_headers(partition.log)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (START_MS - 5000, START_MS - 4998)


@pytest.mark.parametrize(
    ("timestamp_ms", "error"),
    [
        (START_MS + HOUR_MS - 2, ErrorCode.NONE),
        (START_MS + HOUR_MS - 1, ErrorCode.INVALID_TIMESTAMP),
        (START_MS - 2 * HOUR_MS, ErrorCode.NONE),
        (START_MS - 2 * HOUR_MS - 1, ErrorCode.INVALID_TIMESTAMP),
    ],
)
async def test_a_batch_is_refused_where_one_of_its_times_is_out_of_bounds(
    path: DataPath, timestamp_ms: int, error: ErrorCode
) -> None:
    partition = await path.partition(
        message_timestamp_after_max_ms=str(HOUR_MS), message_timestamp_before_max_ms=str(2 * HOUR_MS)
    )
    done = partition.append(batch_of(3, timestamp_ms=timestamp_ms))
    assert done.error == error
    if error:
        assert str(path.clock.now_ms) in (done.message or "")


async def test_records_without_a_time_have_no_bounds(path: DataPath) -> None:
    partition = await path.partition(message_timestamp_before_max_ms="1")
    accepted(partition, batch_of(1, timestamp_ms=-1))


async def test_with_log_append_time_all_records_get_the_brokers_time_and_the_batch_a_new_crc(path: DataPath) -> None:
    partition = await path.partition(message_timestamp_type="LogAppendTime")
    path.clock.now_ms = START_MS + 777
    done = accepted(partition, batch_of(3, timestamp_ms=1))
    assert done.log_append_time_ms == START_MS + 777
    (header,) = stored_headers(partition.log)
    assert header.max_timestamp_ms == START_MS + 777
    assert header.attributes & LOG_APPEND_TIME
    data = memoryview(stored(partition.log))
    assert header.crc == checksum(data, 0, len(data))


async def test_with_log_append_time_a_repeated_batch_gets_the_time_of_the_first(path: DataPath) -> None:
    partition = await path.partition(message_timestamp_type="LogAppendTime")
    first = accepted(partition, batch_of(producer=(1, 0, 0)))
    path.clock.advance(5000)
    again = accepted(partition, batch_of(producer=(1, 0, 0)))
    assert again.log_append_time_ms == first.log_append_time_ms


# Keys


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_compacted_topic_takes_no_record_without_a_key(path: DataPath, codec: Codec) -> None:
    partition = await path.partition(cleanup_policy="compact")
    done = partition.append(batch_of(3, key=None, codec=codec))
    assert done.error == ErrorCode.INVALID_RECORD
    assert 'topic "t" is compacted' in (done.message or "")
    assert [error.batch_index for error in done.record_errors] == [0, 1, 2]
    assert accepted(partition, batch_of(3, codec=codec)).base_offset == 0


async def test_a_topic_that_is_not_compacted_takes_records_without_keys(path: DataPath) -> None:
    accepted(await path.partition(), batch_of(3, key=None))


async def test_what_cannot_be_decompressed_is_refused_where_keys_must_be_seen(path: DataPath) -> None:
    partition = await path.partition(cleanup_policy="compact")
    batch = batch_of(30, codec=Codec.ZSTD)
    batch[61:] = b"\xff" * (len(batch) - 61)
    assert partition.append(patched(batch, ">b", 16, 2)).error == ErrorCode.INVALID_RECORD


# Duplicates


async def test_a_repeated_batch_is_answered_with_the_original_offset_and_not_written_again(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(4))
    first = accepted(partition, batch_of(3, producer=(1, 0, 0)))
    accepted(partition, batch_of(2, producer=(1, 0, 3)))
    size = partition.log.size_bytes
    again = accepted(partition, batch_of(3, producer=(1, 0, 0)))
    assert again.base_offset == first.base_offset == 4
    assert partition.log.size_bytes == size
    assert partition.messages_in == 9


async def test_a_repeated_batch_waits_for_the_high_watermark_as_the_first_does(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    first, again = accepted(partition, batch_of(producer=(1, 0, 0))), accepted(partition, batch_of(producer=(1, 0, 0)))
    assert again.required_offset == first.required_offset == 3
    one, two = Waiter(), Waiter()
    partition.when_committed(first.required_offset, one)
    partition.when_committed(again.required_offset, two)
    assert one.answers == two.answers == []
    path.files.let_go()
    await path.flushed()
    assert one.answers == two.answers == [0]


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        ((1, 4, 9), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((1, 3, 3), ErrorCode.INVALID_PRODUCER_EPOCH),
        ((1, 5, 3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((1, 5, 0), ErrorCode.NONE),
        ((1, 4, 3), ErrorCode.NONE),
        ((2, 0, 70), ErrorCode.NONE),
    ],
)
async def test_a_producer_goes_on_in_sequence_and_in_its_newest_epoch(
    path: DataPath, producer: tuple[int, int, int], error: ErrorCode
) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(3, producer=(1, 4, 0)))
    done = partition.append(batch_of(3, producer=producer))
    assert done.error == error
    assert partition.log.end_offset == (3 if error else 6)


async def test_a_repeat_of_what_is_no_longer_remembered_is_told_so(path: DataPath) -> None:
    partition = await path.partition()
    for sequence in range(8):
        accepted(partition, batch_of(1, producer=(1, 0, sequence)))
    assert partition.append(batch_of(1, producer=(1, 0, 1))).error == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


async def test_a_refused_batch_is_not_remembered(path: DataPath) -> None:
    partition = await path.partition(max_message_bytes="500")
    assert partition.append(batch_of(1, value=bytes(600), producer=(1, 0, 0))).error
    path.files.fail("append", errno.ENOSPC)
    assert partition.append(batch_of(1, producer=(1, 0, 0))).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.files.heal()
    assert not partition.producers.entries
    accepted(partition, batch_of(1, producer=(1, 0, 0)))


# Flush and high watermark


async def test_by_default_only_what_is_on_disk_counts_and_can_be_read(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    done = accepted(partition)
    assert (partition.high_watermark, partition.log.end_offset, done.required_offset) == (0, 3, 3)
    assert partition.read(0, 1 << 20, at_least_one=True) is None
    path.files.let_go()
    await path.flushed()
    assert partition.high_watermark == partition.last_stable_offset == 3
    found = partition.read(0, 1 << 20, at_least_one=True)
    assert found is not None
    found.release()


async def test_where_a_topic_relaxes_flushing_what_is_written_counts(path: DataPath) -> None:
    partition = await path.partition(**UNFLUSHED)
    path.files.hold()
    accepted(partition)
    assert partition.high_watermark == 3


async def test_a_flush_counts_for_what_was_written_before_it_began(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    accepted(partition)
    await until(lambda: path.log_dir.flusher.running)
    accepted(partition)
    waiter = Waiter()
    partition.when_committed(6, waiter)
    seen = []
    partition.when_committed(3, lambda error: seen.append(partition.high_watermark))
    path.files.let_go()
    await path.flushed()
    assert seen == [3]
    assert waiter.answers == [0]


async def test_who_waits_is_answered_in_order_of_offsets_whatever_the_order_of_asking(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    for _ in range(3):
        accepted(partition)
    order: list[int] = []
    for offset in (6, 9, 3, 6, 3):
        partition.when_committed(offset, lambda error, offset=offset: order.append(offset))
    path.files.let_go()
    await path.flushed()
    assert order == [3, 3, 6, 6, 9]
    assert not partition.commit_waiters


async def test_nobody_is_told_before_their_offset_counts(path: DataPath) -> None:
    partition = await path.partition(**UNFLUSHED)
    waiter = Waiter()
    partition.when_committed(6, waiter)
    accepted(partition)
    assert waiter.answers == []
    accepted(partition)
    assert waiter.answers == [0]


async def test_readers_are_told_how_much_came(path: DataPath) -> None:
    partition = await path.partition()
    reader = Listener()
    partition.readers[reader] = None
    path.files.hold()
    sizes = [len(batch_of(n)) for n in (1, 20)]
    accepted(partition, batch_of(1))
    accepted(partition, batch_of(20))
    assert reader.grown == []
    path.files.let_go()
    await path.flushed()
    assert sum(reader.grown) == sum(sizes)


async def test_reading_past_the_end_is_out_of_range_and_between_is_nothing_yet(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    accepted(partition)
    for offset in range(4):
        assert partition.read(offset, 100, at_least_one=True) is None
    for offset in (4, -1):
        with pytest.raises(OffsetOutOfRange):
            partition.read(offset, 100, at_least_one=True)


# Settings


async def test_new_settings_hold_for_the_next_batch(path: DataPath) -> None:
    partition = await path.partition()
    await path.alter("t", "max.message.bytes", "100")
    assert partition.append(batch_of(30)).error == ErrorCode.MESSAGE_TOO_LARGE


async def test_what_is_written_counts_at_once_when_flushing_is_relaxed(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    accepted(partition)
    waiter = Waiter()
    partition.when_committed(3, waiter)
    await path.alter("t", "flush.messages", "1000")
    assert partition.high_watermark == 3
    assert waiter.answers == [0]


async def test_the_high_watermark_never_goes_back_when_flushing_becomes_strict(path: DataPath) -> None:
    partition = await path.partition(**UNFLUSHED)
    accepted(partition)
    path.files.hold()
    partition.reconfigure(replace(partition.config, flush_messages=1))
    assert partition.high_watermark == 3
    accepted(partition)
    assert partition.high_watermark == 3
    path.files.let_go()
    await path.flushed()
    assert partition.high_watermark == 6


# Failures


async def test_a_full_disk_refuses_the_batch_and_takes_the_next_one_when_there_is_space(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition)
    path.files.fail("append", errno.ENOSPC)
    done = partition.append(batch_of())
    assert done.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert "no space" in (done.message or "")
    path.files.heal()
    assert accepted(partition).base_offset == 3
    await path.flushed()
    assert [h.base_offset for h in stored_headers(partition.log)] == [0, 3]


async def test_a_failed_sync_fails_everybody_who_waits_in_every_partition_for_good(path: DataPath) -> None:
    one, two = await path.partition("one"), await path.partition("two")
    accepted(one)
    await path.flushed()
    path.files.hold()
    waiters, reader = [Waiter(), Waiter(), Waiter()], Listener()
    two.readers[reader] = None
    for partition, waiter in zip((one, one, two), waiters, strict=True):
        partition.when_committed(accepted(partition).required_offset, waiter)
    path.files.fail("sync", errno.EIO)
    path.files.let_go()
    await until(lambda: path.log_dir.failed)
    path.files.heal()
    assert [w.answers for w in waiters] == [[ErrorCode.KAFKA_STORAGE_ERROR]] * 3
    assert reader.ended == 1
    assert (one.high_watermark, two.high_watermark) == (3, 0)
    assert one.append(batch_of()).error == ErrorCode.KAFKA_STORAGE_ERROR


async def test_who_asks_after_the_failure_is_not_left_waiting(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    accepted(partition, batch_of(producer=(1, 0, 0)))
    path.files.fail("sync", errno.EIO)
    path.files.let_go()
    await until(lambda: path.log_dir.failed)
    again, waiter = accepted(partition, batch_of(producer=(1, 0, 0))), Waiter()
    partition.when_committed(again.required_offset, waiter)
    assert waiter.answers == [ErrorCode.KAFKA_STORAGE_ERROR]


async def test_what_counted_before_the_failure_can_still_be_read(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition)
    await path.flushed()
    path.log_dir.fail(OSError(errno.EIO, "planted"))
    found = partition.read(0, 1 << 20, at_least_one=True)
    assert found is not None
    found.release()


async def test_deletion_fails_who_waits_and_wakes_readers(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    waiter, reader = Waiter(), Listener()
    partition.readers[reader] = None
    partition.when_committed(accepted(partition).required_offset, waiter)
    await path.delete()
    assert waiter.answers == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert reader.ended == 1
    assert partition.deleted
    path.files.let_go()
    await path.flushed()
    assert waiter.answers == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


# Restart


async def reopened(home: Path, clean: bool, clock: HandClock) -> tuple[int, list[int], int]:
    """Write, close cleanly or not, and reopen. Returns (offset of a duplicate, errors of a gap and an old epoch, next
    offset)."""
    async with opened_data_path(home, clean=clean, clock=clock) as before:
        partition = await before.partition()
        for sequence in (0, 3, 6):
            accepted(partition, batch_of(3, producer=(9, 2, sequence)))
        await before.flushed()
    async with opened_data_path(home, clock=clock) as after:
        assert after.log_dir.was_unclean is not clean
        found = after.replicas.find("t", 0)
        assert isinstance(found, Leader)
        again = accepted(found, batch_of(3, producer=(9, 2, 3)))
        errors = [found.append(batch_of(3, producer=producer)).error for producer in ((9, 2, 12), (9, 1, 9), (9, 2, 9))]
        return again.base_offset, errors, found.log.start_offset


@pytest.mark.parametrize("clean", [True, False])
async def test_producers_are_remembered_across_a_restart(tmp_path: Path, clean: bool) -> None:
    offset, errors, _ = await reopened(tmp_path, clean, HandClock())
    assert offset == 3
    assert errors == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NONE]


@pytest.mark.parametrize("clean", [True, False])
async def test_everything_on_disk_counts_after_a_restart(tmp_path: Path, clean: bool) -> None:
    async with opened_data_path(tmp_path, clean=clean) as before:
        accepted(await before.partition(), batch_of(7))
        await before.flushed()
    async with opened_data_path(tmp_path) as after:
        found = after.replicas.find("t", 0)
        assert found is not None
        assert (found.high_watermark, found.log.end_offset) == (7, 7)
        assert read_header(stored(found.log)).record_count == 7
        assert found.topic_id == after.view.topics["t"].topic_id != UUID(int=0)
