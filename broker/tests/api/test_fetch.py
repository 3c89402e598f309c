"""Fetch at every version: records, size limits and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fetch_kit import CHANGES, LONG_MS, VERSIONS, fetch, filled, only, parts, read
from replica_kit import accepted, batch_of
from wire_in_memory import Wire, opened_wire

from penstock.api.exchange import ProtocolViolation
from penstock.log.types import CorruptLog
from penstock.replica.leader import Leader
from penstock.state import keys
from penstock.state.records import PartitionRecord, encode
from penstock.state.store import PutOp
from penstock.wire.apis import ApiKey
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import (
    FetchRequest,
    ReplicaState,
)


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


# All versions


@pytest.mark.parametrize("version", VERSIONS)
async def test_batches_come_as_they_were_written(wire: Wire, version: int) -> None:
    partition = await filled(wire, 3, 2)
    response = await fetch(wire, version)
    data = only(response)
    assert (response.error_code, data.error_code, data.high_watermark, data.last_stable_offset) == (0, 0, 5, 5)
    assert data.log_start_offset == (0 if version >= 5 else -1)
    assert read(data) == [(0, 2), (3, 4)]
    assert bytes(data.records or b"") == b"".join(Path(s.path).read_bytes() for s in partition.log.segments)
    assert response.responses[0].topic_id == (partition.topic_id if version >= 13 else UUID(int=0))


@pytest.mark.parametrize("version", VERSIONS)
async def test_nothing_new_is_an_answer_without_records_when_the_time_is_up(wire: Wire, version: int) -> None:
    await filled(wire, 3)
    response = await fetch(wire, version, {("t", 0): 3}, max_wait_ms=5)
    data = only(response)
    assert (data.error_code, data.high_watermark, bytes(data.records or b"")) == (0, 3, b"")


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_topics_and_partitions_are_answered_as_such_at_once(wire: Wire, version: int) -> None:
    topic_id = await wire.path.create()
    response = await fetch(wire, version, {("t", 0): 0, ("t", 4): 0, ("nowhere", 0): 0}, max_wait_ms=LONG_MS)
    known, unknown = (topic_id, UUID(int=0)) if version >= 13 else ("t", "nowhere")
    error = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {at: p.error_code for at, p in parts(response).items()} == {
        (known, 0): 0,
        (known, 4): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (unknown, 0): error,
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("offset", [-1, 4, 1 << 62])
async def test_an_offset_that_is_not_in_the_log_is_out_of_range_at_once(wire: Wire, version: int, offset: int) -> None:
    await filled(wire, 3)
    data = only(await fetch(wire, version, {("t", 0): offset}, max_wait_ms=LONG_MS))
    assert (data.error_code, data.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3)
    assert not data.records


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_leader_elsewhere_is_named_where_the_version_can(wire: Wire, version: int) -> None:
    topic_id = await wire.path.create()
    record = PartitionRecord(replicas=[5, 0], leader=5, leader_epoch=8, isr=[5])
    result = await wire.path.watcher.store.txn([], [PutOp(keys.partition(topic_id, 0), encode(record))])
    await wire.path.watcher.applied(result.revision)
    data = only(await fetch(wire, version, max_wait_ms=LONG_MS))
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    named = data.current_leader.leader_id, data.current_leader.leader_epoch
    assert named == ((5, 8) if version >= 12 else (-1, -1))


@pytest.mark.parametrize("version", [-1, 0, 3, 19, 32767])
async def test_versions_that_are_not_served_break_the_protocol(wire: Wire, version: int) -> None:
    frame = wire.frame_of(FetchRequest(), 4)
    frame[2:4] = version.to_bytes(2, "big", signed=True)
    with pytest.raises(ProtocolViolation):
        wire.dispatcher(wire.connection, memoryview(frame + bytes(8)))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_that_poses_as_a_replica_is_served_nothing(wire: Wire, version: int) -> None:
    await filled(wire, 3)
    poses: dict[str, Any] = {"replica_state": ReplicaState(replica_id=0)} if version >= 15 else {"replica_id": 0}
    response = await fetch(wire, version, max_wait_ms=LONG_MS, **poses)
    if version >= 15:
        assert (response.error_code, response.responses) == (ErrorCode.STALE_BROKER_EPOCH, [])
    else:
        assert only(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not only(response).records


# Fetch offset


async def test_an_offset_within_a_batch_gets_the_whole_batch(wire: Wire) -> None:
    await filled(wire, 3, 10, 2)
    assert read(only(await fetch(wire, offsets={("t", 0): 7}))) == [(3, 12), (13, 14)]


@pytest.mark.parametrize("codec", list(Codec))
async def test_compressed_batches_are_not_touched(wire: Wire, codec: Codec) -> None:
    partition = await wire.path.partition()
    sent = batch_of(100, codec=codec)
    accepted(partition, sent)
    await wire.path.flushed()
    assert bytes(only(await fetch(wire)).records or b"") == bytes(sent)


async def test_what_is_not_on_disk_yet_is_not_read(wire: Wire) -> None:
    partition = await filled(wire, 3)
    wire.path.files.hold()
    accepted(partition)
    data = only(await fetch(wire))
    assert (read(data), data.high_watermark) == ([(0, 2)], 3)
    assert only(await fetch(wire, offsets={("t", 0): 5})).error_code == 0


async def test_before_the_start_of_the_log_is_out_of_range(wire: Wire) -> None:
    partition = await filled(wire, 3, 3)
    await partition.log.delete_records_before(4)
    data = only(await fetch(wire))
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 4)
    assert read(only(await fetch(wire, offsets={("t", 0): 4}))) == [(3, 5)]


@pytest.mark.parametrize("offset", [0, 1, 3, 59, 60])
async def test_reading_on_goes_through_all_segments(wire: Wire, offset: int) -> None:
    partition = await filled(wire, *[3] * 20, segment_bytes="1024")
    assert len(partition.log.segments) > 2
    found: list[tuple[int, int]] = []
    while offset < 60:
        got = read(only(await fetch(wire, offsets={("t", 0): offset})))
        assert got
        found += got
        offset = got[-1][1] + 1
    assert found == sorted(set(found))
    assert not found or found[-1][1] == 59


# Size limits


async def test_a_partition_gives_no_more_than_it_is_asked_for(wire: Wire) -> None:
    await filled(wire, 3, 3, 3)
    size = len(batch_of(3))
    for most, count in ((size, 1), (2 * size, 2), (3 * size - 1, 2), (3 * size, 3)):
        assert len(read(only(await fetch(wire, each={"partition_max_bytes": most})))) == count


@pytest.mark.parametrize("most", [1, 0, -1, -(1 << 31)])
async def test_the_first_batch_comes_whole_however_large(wire: Wire, most: int) -> None:
    await filled(wire, 300, 3)
    assert read(only(await fetch(wire, each={"partition_max_bytes": most}))) == [(0, 299)]
    assert read(only(await fetch(wire, max_bytes=most))) == [(0, 299)]


async def test_all_partitions_together_give_no_more_than_the_request_asks_for(wire: Wire) -> None:
    for name in "abc":
        await filled(wire, 3, 3, name=name)
    size = len(batch_of(3))
    response = await fetch(wire, offsets={(name, 0): 0 for name in "abc"}, max_bytes=3 * size)
    assert [len(read(p)) for p in parts(response).values()] == [2, 1, 0]


async def test_only_the_first_partition_with_data_may_go_beyond_the_bounds(wire: Wire) -> None:
    await filled(wire, name="empty")
    for name in "ab":
        await filled(wire, 300, name=name)
    named: dict[tuple[str, int], int] = {("empty", 0): 0, ("a", 0): 0, ("b", 0): 0}
    for bound in ({"max_bytes": 10}, {"each": {"partition_max_bytes": 10}}, {"each": {"partition_max_bytes": -10}}):
        response = await fetch(wire, offsets=named, **bound)
        assert [len(read(p)) for p in parts(response).values()] == [0, 1, 0]


async def test_the_brokers_own_bound_holds_whatever_is_asked(tmp_path: Path) -> None:
    size = len(batch_of(3))
    async with opened_wire(tmp_path, max_bytes=2 * size) as wire:
        await filled(wire, 3, 3, 3)
        assert len(read(only(await fetch(wire, max_bytes=(1 << 31) - 1)))) == 2


async def test_who_wants_more_than_fits_is_answered_when_it_is_full(wire: Wire) -> None:
    await filled(wire, 3, 3)
    size = len(batch_of(3))
    response = await fetch(wire, max_bytes=size, min_bytes=10 * size, max_wait_ms=LONG_MS)
    assert len(read(only(response))) == 1


# Epochs


async def at_epoch(wire: Wire, epoch: int, *history: tuple[int, int]) -> Leader:
    """Create a partition led in `epoch`, with earlier batches of (epoch, count)."""
    partition = await wire.path.partition()
    for written, count in history:
        partition.leader_epoch = written
        accepted(partition, batch_of(count))
    partition.leader_epoch = epoch
    await wire.path.flushed()
    return partition


@pytest.mark.parametrize("version", CHANGES)
@pytest.mark.parametrize(
    ("claimed", "error"),
    [
        (-1, 0),
        (5, 0),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_a_reader_that_knows_another_leader_epoch_is_told_so(
    wire: Wire, version: int, claimed: int, error: int
) -> None:
    await at_epoch(wire, 5, (5, 3))
    data = only(await fetch(wire, version, each={"current_leader_epoch": claimed}, max_wait_ms=LONG_MS))
    assert data.error_code == (error if version >= 9 else 0)
    if data.error_code:
        assert not data.records
        if version >= 12:
            assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (0, 5)


@pytest.mark.parametrize("version", CHANGES)
@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (6, 3, None),
        (9, 5, None),
        (4, 2, (2, 3)),
        (3, 2, None),
        (7, 4, (3, 6)),
        (2, 1, (1, 0)),
        (3, 9, (-1, -1)),
    ],
)
async def test_a_reader_whose_log_parted_from_ours_is_told_where(
    wire: Wire, version: int, offset: int, last_epoch: int, diverging: tuple[int, int] | None
) -> None:
    await at_epoch(wire, 5, (2, 3), (3, 3), (5, 3))
    each = {"last_fetched_epoch": last_epoch}
    wait_ms = LONG_MS if diverging is not None and version >= 12 else 0
    data = only(await fetch(wire, version, {("t", 0): offset}, each=each, max_wait_ms=wait_ms))
    assert data.error_code == 0
    told = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
    if version < 12 or diverging is None:
        assert told == (-1, -1)
        assert bool(data.records) is (offset < 9)
    else:
        assert told == diverging
        assert not data.records


# Isolation level


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", [0, 1])
async def test_both_isolation_levels_see_what_counts(wire: Wire, version: int, level: int) -> None:
    partition = await filled(wire, 3)
    wire.path.files.hold()
    accepted(partition)
    data = only(await fetch(wire, version, isolation_level=level))
    assert (read(data), data.last_stable_offset) == ([(0, 2)], 3)
    assert data.aborted_transactions == ([] if level else None)


# Failures


async def test_damaged_records_are_a_storage_error_for_their_partition_alone(wire: Wire) -> None:
    good, bad = await filled(wire, 3, name="good"), await filled(wire, 3, 3, name="bad")
    bad.log.reader.clear_locations()
    (segment,) = bad.log.segments
    content = bytearray(Path(segment.path).read_bytes())
    content[8:12] = b"\xff\xff\xff\xff"
    Path(segment.path).write_bytes(content)
    response = await fetch(wire, offsets={("bad", 0): 4, ("good", 0): 0})
    found = parts(response)
    assert found["bad", 0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert read(found["good", 0]) == [(0, 2)]
    assert good.high_watermark == 3


async def test_a_partition_that_could_not_be_recovered_is_a_storage_error(wire: Wire) -> None:
    topic_id = await wire.path.create()
    wire.path.log_dir.corrupt[topic_id, 0] = CorruptLog("planted")
    assert only(await fetch(wire, max_wait_ms=LONG_MS)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


# Statistics


async def test_bytes_and_times_are_counted(wire: Wire) -> None:
    await filled(wire, 3)
    data = only(await fetch(wire))
    assert wire.stats.fetched_bytes == len(bytes(data.records or b"")) > 0
    assert wire.stats.by_api[ApiKey.FETCH].count == 1
