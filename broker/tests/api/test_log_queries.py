"""Log offsets by timestamp and leader epoch, deletion of records, and active producers."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from log_kit import START_MS
from replica_kit import accepted, batch_of, stored
from wire_in_memory import Wire, opened_wire

from penstock.log.types import CorruptLog
from penstock.replica.leader import Leader
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LISTING = range(1, 12)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NONE = (-1, -1, -1)


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


async def listing(
    wire: Wire, timestamp: int, version: int = 11, *, name: str = "t", index: int = 0, epoch: int = -1, **more: Any
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[asked])], **{"isolation_level": 0, **more}
    )
    response = await wire.listed(request, version)
    return response.topics[0].partitions[0]


def place(answer: ListOffsetsPartitionResponse) -> tuple[int, int, int]:
    assert answer.error_code == 0
    return answer.timestamp, answer.offset, answer.leader_epoch


async def led(wire: Wire, *batches: tuple[int, int], name: str = "t", **settings: str) -> Leader:
    """Create a partition with batches of (leader epoch, count), one second apart."""
    partition = await wire.path.partition(name, **settings)
    for number, (epoch, count) in enumerate(batches):
        partition.leader_epoch = epoch
        accepted(partition, batch_of(count, timestamp_ms=START_MS + 1000 * number))
    await wire.path.flushed()
    return partition


# ListOffsets: special timestamps


@pytest.mark.parametrize("version", LISTING)
async def test_the_latest_offset_is_the_high_watermark(wire: Wire, version: int) -> None:
    partition = await led(wire, (4, 3), (5, 2))
    wire.path.files.hold()
    accepted(partition)
    for level in (0, 1):
        found = place(await listing(wire, LATEST, version, isolation_level=level))
        assert found == (-1, 5, 5 if version >= 4 else -1)


@pytest.mark.parametrize("version", LISTING)
async def test_the_earliest_offset_is_where_the_log_starts(wire: Wire, version: int) -> None:
    partition = await led(wire, (4, 3), (5, 2))
    assert place(await listing(wire, EARLIEST, version)) == (-1, 0, 4 if version >= 4 else -1)
    await partition.log.delete_records_before(4)
    assert place(await listing(wire, EARLIEST, version)) == (-1, 4, 5 if version >= 4 else -1)


@pytest.mark.parametrize("version", range(7, 12))
async def test_the_record_with_the_largest_timestamp_is_found_wherever_it_is(wire: Wire, version: int) -> None:
    partition = await wire.path.partition()
    for timestamp_ms in (START_MS, START_MS + 9000, START_MS + 4000):
        accepted(partition, batch_of(3, timestamp_ms=timestamp_ms))
    await wire.path.flushed()
    assert place(await listing(wire, MAX_TIMESTAMP, version)) == (START_MS + 9002, 5, 0)


@pytest.mark.parametrize("version", range(8, 12))
async def test_the_earliest_local_offset_is_the_earliest(wire: Wire, version: int) -> None:
    partition = await led(wire, (4, 3))
    await partition.log.delete_records_before(2)
    assert place(await listing(wire, EARLIEST_LOCAL, version)) == (-1, 2, 4)


async def test_nothing_is_tiered_or_waits_for_it(wire: Wire) -> None:
    await led(wire, (4, 3))
    for version in (9, 10, 11):
        assert place(await listing(wire, LATEST_TIERED, version)) == NONE
    assert place(await listing(wire, EARLIEST_PENDING_UPLOAD, 11)) == NONE


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [
        (MAX_TIMESTAMP, 6),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 8),
        (EARLIEST_PENDING_UPLOAD, 10),
        (-7, 11),
        (-(1 << 63), 1),
    ],
)
async def test_a_special_timestamp_that_the_version_does_not_know_is_refused(
    wire: Wire, timestamp: int, version: int
) -> None:
    await led(wire, (4, 3))
    assert (await listing(wire, timestamp, version)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await listing(wire, timestamp, version, name="nowhere")).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_an_empty_log_has_a_beginning_and_an_end_and_no_times(wire: Wire) -> None:
    await wire.path.create()
    assert place(await listing(wire, EARLIEST)) == (-1, 0, 0)
    assert place(await listing(wire, LATEST)) == (-1, 0, 0)
    assert place(await listing(wire, MAX_TIMESTAMP)) == NONE
    assert place(await listing(wire, 0)) == NONE


# ListOffsets: by timestamp


@pytest.mark.parametrize("version", LISTING)
@pytest.mark.parametrize("codec", list(Codec))
async def test_the_first_record_at_or_after_a_time_is_found_within_a_batch(
    wire: Wire, version: int, codec: Codec
) -> None:
    partition = await wire.path.partition()
    for number in range(3):
        accepted(partition, batch_of(10, timestamp_ms=START_MS + 1000 * number, codec=codec))
    await wire.path.flushed()
    epoch = 0 if version >= 4 else -1
    for asked_ms, timestamp_ms, offset in (
        (0, START_MS, 0),
        (START_MS + 4, START_MS + 4, 4),
        (START_MS + 10, START_MS + 1000, 10),
        (START_MS + 1005, START_MS + 1005, 15),
        (START_MS + 2009, START_MS + 2009, 29),
    ):
        assert place(await listing(wire, asked_ms, version)) == (timestamp_ms, offset, epoch)
    assert place(await listing(wire, START_MS + 2010, version)) == NONE


async def test_times_are_found_across_segments_and_where_they_do_not_rise(wire: Wire) -> None:
    partition = await wire.path.partition(segment_bytes="1024", index_interval_bytes="100")
    for number in range(40):
        accepted(partition, batch_of(3, timestamp_ms=START_MS + 100 * (number ^ 1)))
    await wire.path.flushed()
    assert len(partition.log.segments) > 3
    for number in range(40):
        found = await listing(wire, START_MS + 100 * number)
        # The later record of each pair has the lower offset, so it is the first one at or after both timestamps.
        pair = number & ~1
        later_first = START_MS + 100 * (pair + 1)
        assert place(found) == (later_first, 3 * pair, 0), number


async def test_with_log_append_time_the_brokers_times_are_found(wire: Wire) -> None:
    partition = await wire.path.partition(message_timestamp_type="LogAppendTime")
    for _ in range(3):
        wire.path.clock.advance(1000)
        accepted(partition, batch_of(4, timestamp_ms=1))
    await wire.path.flushed()
    assert place(await listing(wire, START_MS + 1500)) == (START_MS + 2000, 4, 0)
    assert place(await listing(wire, MAX_TIMESTAMP)) == (START_MS + 3000, 8, 0)


async def test_a_time_is_not_found_in_what_does_not_count_or_was_deleted(wire: Wire) -> None:
    partition = await led(wire, (0, 10), (0, 10))
    await partition.log.delete_records_before(5)
    assert place(await listing(wire, 0)) == (START_MS + 5, 5, 0)
    wire.path.files.hold()
    accepted(partition, batch_of(1, timestamp_ms=START_MS + 5000))
    assert place(await listing(wire, START_MS + 5000)) == NONE
    assert place(await listing(wire, MAX_TIMESTAMP)) == (START_MS + 1009, 19, 0)


# ListOffsets: errors


@pytest.mark.parametrize("version", LISTING)
async def test_unknown_partitions_are_answered_as_such(wire: Wire, version: int) -> None:
    await wire.path.create()
    for name, index in (("t", 1), ("t", -1), ("nowhere", 0)):
        answer = await listing(wire, LATEST, version, name=name, index=index)
        assert (answer.error_code, answer.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize("version", LISTING)
async def test_a_client_that_knows_another_leader_epoch_is_told_so(wire: Wire, version: int) -> None:
    await led(wire, (5, 3))
    for claimed, error in ((5, 0), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        answer = await listing(wire, LATEST, version, epoch=claimed)
        assert answer.error_code == (error if version >= 4 else 0)


async def test_a_partition_that_is_asked_for_twice_is_refused_and_the_others_are_not(wire: Wire) -> None:
    await wire.path.create(partitions=2)
    asked = [ListOffsetsPartition(partition_index=i, timestamp=LATEST) for i in (0, 1, 0)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)])
    response = await wire.listed(request, 11)
    errors = [p.error_code for p in response.topics[0].partitions]
    assert errors == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


async def test_a_partition_that_is_damaged_is_a_storage_error(wire: Wire) -> None:
    partition = await led(wire, (0, 3))
    (segment,) = partition.log.segments
    content = bytearray(Path(segment.path).read_bytes())
    content[8:12] = b"\xff\xff\xff\xff"
    Path(segment.path).write_bytes(content)
    assert (await listing(wire, START_MS)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    await wire.path.create("bad")
    wire.path.log_dir.corrupt[wire.path.view.topics["bad"].topic_id, 0] = CorruptLog("planted")
    assert (await listing(wire, LATEST, name="bad")).error_code == ErrorCode.KAFKA_STORAGE_ERROR


# OffsetForLeaderEpoch


async def epoch_end(wire: Wire, epoch: int, version: int = 4, current: int = -1, name: str = "t") -> EpochEndOffset:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])])
    response = await wire.ask(request, OffsetForLeaderEpochResponse, version)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (7, (7, 8)),  # the current epoch, which has no records yet
        (5, (5, 8)),
        (3, (3, 5)),
        (4, (3, 5)),  # not an epoch of this log: the end of the previous epoch
        (2, (2, 3)),
        (1, (1, 0)),  # older than the first epoch of the log
        (8, (-1, -1)),
        (-1, (-1, -1)),
    ],
)
async def test_an_epoch_ends_where_the_next_one_began(
    wire: Wire, version: int, epoch: int, answer: tuple[int, int]
) -> None:
    partition = await led(wire, (2, 3), (3, 2), (5, 3))
    partition.leader_epoch = 7
    found = await epoch_end(wire, epoch, version)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, *answer)


@pytest.mark.parametrize(
    ("current", "error"), [(5, 0), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
async def test_who_asks_for_an_epoch_must_know_the_present_one(wire: Wire, current: int, error: int) -> None:
    await led(wire, (5, 3))
    assert (await epoch_end(wire, 5, current=current)).error_code == error


async def test_an_epoch_of_an_unknown_partition_is_answered_as_such(wire: Wire) -> None:
    assert (await epoch_end(wire, 5, name="nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# DeleteRecords


async def deleted(wire: Wire, offset: int, version: int = 2, name: str = "t") -> DeleteRecordsPartitionResult:
    named = [DeleteRecordsPartition(partition_index=0, offset=offset)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=named)], timeout_ms=5000)
    response = await wire.ask(request, DeleteRecordsResponse, version)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_records_before_an_offset_are_gone(wire: Wire, version: int) -> None:
    partition = await led(wire, (0, 3), (0, 3))
    answer = await deleted(wire, 4, version)
    assert (answer.error_code, answer.low_watermark) == (0, 4)
    assert partition.log.start_offset == 4
    assert place(await listing(wire, EARLIEST))[1] == 4


async def test_deleting_again_or_further_back_changes_nothing(wire: Wire) -> None:
    await led(wire, (0, 3), (0, 3))
    for offset in (4, 4, 2, 0):
        answer = await deleted(wire, offset)
        assert (answer.error_code, answer.low_watermark) == (0, 4)


async def test_minus_1_deletes_all_that_readers_may_see(wire: Wire) -> None:
    partition = await led(wire, (0, 3), (0, 3))
    answer = await deleted(wire, -1)
    assert (answer.error_code, answer.low_watermark) == (0, 6)
    assert accepted(partition).base_offset == 6


async def test_whole_segments_go_from_the_disk(wire: Wire) -> None:
    partition = await led(wire, *[(0, 3)] * 20, segment_bytes="1024", file_delete_delay_ms="0")
    before = len(stored(partition.log))
    await deleted(wire, 55)
    await wire.path.flushed()
    assert len(stored(partition.log)) < before // 4


@pytest.mark.parametrize("offset", [4, 7, 1 << 62, -2, -(1 << 63)])
async def test_past_the_high_watermark_nothing_is_deleted(wire: Wire, offset: int) -> None:
    partition = await led(wire, (0, 3))
    wire.path.files.hold()
    accepted(partition)
    answer = await deleted(wire, offset)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert partition.log.start_offset == 0


@pytest.mark.parametrize(
    ("policy", "error"), [("compact", ErrorCode.POLICY_VIOLATION), ("delete", 0), ("compact,delete", 0)]
)
async def test_a_topic_that_is_only_compacted_gives_nothing_up(wire: Wire, policy: str, error: int) -> None:
    partition = await led(wire, (0, 3), cleanup_policy=policy)
    assert (await deleted(wire, 2)).error_code == error
    assert partition.log.start_offset == (0 if error else 2)


async def test_deleting_from_an_unknown_partition_is_answered_as_such(wire: Wire) -> None:
    assert (await deleted(wire, 0, name="nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_deleting_on_a_failed_disk_is_a_storage_error(wire: Wire) -> None:
    await led(wire, (0, 3))
    wire.path.log_dir.fail(OSError(errno.EIO, "planted"))
    assert (await deleted(wire, 2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_nothing_is_deleted_while_the_store_may_have_gone_back_in_time(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await led(wire, (0, 3), (0, 2))
    may = False
    monkeypatch.setattr(wire.path.replicas, "may_discard", lambda: may)
    answer = await deleted(wire, 3)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert partition.log.start_offset == 0
    may = True
    assert (await deleted(wire, 3)).error_code == ErrorCode.NONE
    assert partition.log.start_offset == 3


# DescribeProducers


async def test_the_producers_of_a_partition_are_described(wire: Wire) -> None:
    partition = await wire.path.partition()
    accepted(partition, batch_of(3, producer=(70, 2, 0)))
    accepted(partition, batch_of(2, producer=(70, 2, 3), timestamp_ms=START_MS + 50))
    accepted(partition, batch_of(1, producer=(71, 0, 9)))
    accepted(partition, batch_of(1))
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 1])])
    response = await wire.ask(request, DescribeProducersResponse, 0)
    known, unknown = response.topics[0].partitions
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {
        p.producer_id: (p.producer_epoch, p.last_sequence, p.last_timestamp, p.current_txn_start_offset)
        for p in known.active_producers
    } == {70: (2, 4, START_MS + 51, -1), 71: (0, 9, START_MS, -1)}
