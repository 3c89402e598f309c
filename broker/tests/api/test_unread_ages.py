"""The age of the first unread record: Penstock's own fields of ListOffsets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from log_kit import START_MS
from replica_kit import accepted, batch_of
from wire_in_memory import Wire, opened_wire

from penstock.api.unread_age import MAX_OFFSETS, READ_BATCH_OFFSETS
from penstock.log.batch_times import batch_times
from penstock.log.search import LogSearch
from penstock.replica.leader import Leader
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

LATEST, EARLIEST = -1, -2
FLEXIBLE = range(6, 12)


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


async def listing(
    wire: Wire, offsets: Sequence[int], version: int = 11, *, name: str = "t", timestamp: int = LATEST
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, committed_offsets=list(offsets))
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[asked])])
    return (await wire.listed(request, version)).topics[0].partitions[0]


async def ages(wire: Wire, offsets: Sequence[int], version: int = 11, name: str = "t") -> list[int]:
    answer = await listing(wire, offsets, version, name=name)
    assert not answer.error_code
    return answer.unread_ages_ms


async def led(wire: Wire, *counts: int, name: str = "t", **settings: str) -> Leader:
    """Create a partition with batches of `counts` records, one second apart with a record per ms.

    The clock then stands one minute after the first record.
    """
    partition = await wire.path.partition(name, **settings)
    for number, count in enumerate(counts):
        accepted(partition, batch_of(count, timestamp_ms=START_MS + 1000 * number))
    await wire.path.flushed()
    wire.path.clock.now_ms = START_MS + 60_000
    return partition


@pytest.mark.parametrize("version", FLEXIBLE)
async def test_the_age_is_that_of_the_batch_which_holds_the_first_unread_record(wire: Wire, version: int) -> None:
    await led(wire, 3, 2, 1)
    answer = await listing(wire, [0, 2, 3, 4, 5, 6], version)
    assert answer.unread_ages_ms == [59_998, 59_998, 58_999, 58_999, 58_000, 0]
    assert (answer.start_offset, answer.offset) == (0, 6)


async def test_who_does_not_ask_is_told_nothing(wire: Wire) -> None:
    await led(wire, 3)
    answer = await listing(wire, [])
    assert (answer.start_offset, answer.unread_ages_ms) == (-1, [])
    older = await listing(wire, [0], 5)
    assert (older.start_offset, older.unread_ages_ms) == (-1, [])


async def test_what_lies_before_the_log_counts_from_its_start_and_behind_its_end_as_read(wire: Wire) -> None:
    partition = await led(wire, 3, 2, 1)
    await partition.log.delete_records_before(4)
    answer = await listing(wire, [0, 4, 6, 1 << 60])
    assert answer.unread_ages_ms == [58_999, 58_999, 0, 0]
    assert answer.start_offset == 4


async def test_who_was_behind_when_everything_was_deleted_has_nothing_left_to_read(wire: Wire) -> None:
    partition = await led(wire, 3, 2)
    await partition.log.delete_records_before(5)
    assert await ages(wire, [0, 4, 5]) == [0, 0, 0]


async def test_what_readers_may_not_see_yet_is_not_unread(wire: Wire) -> None:
    partition = await led(wire, 3)
    wire.path.files.hold()
    accepted(partition, batch_of(1, timestamp_ms=START_MS))
    assert await ages(wire, [3]) == [0]
    wire.path.files.let_go()
    await wire.path.flushed()
    assert await ages(wire, [3]) == [60_000]


async def test_a_group_that_is_behind_control_batches_alone_has_read_everything(wire: Wire) -> None:
    partition = await led(wire, 2)
    for first in (0, 1):
        batch = batch_of(1, timestamp_ms=START_MS + 2_000, producer=(7, 0, first), attributes=TRANSACTIONAL)
        assert not partition.append(batch, all_in_sync=True, verified=True).error
        assert not partition.write_marker(Marker(7, 0, True, 0)).error
    await wire.path.flushed()
    assert partition.log.end_offset == 6
    assert await ages(wire, [2, 3, 4, 5]) == [58_000, 58_000, 58_000, 0]


async def test_an_empty_log_has_nothing_unread(wire: Wire) -> None:
    await led(wire)
    assert await ages(wire, [0, 7, -1]) == [0, 0, -1]


async def test_a_batch_from_the_future_is_not_older_than_now(wire: Wire) -> None:
    await led(wire, 1)
    wire.path.clock.now_ms = START_MS - 5
    assert await ages(wire, [0]) == [0]


async def test_batches_without_a_time_have_no_age(wire: Wire) -> None:
    partition = await wire.path.partition("t")
    accepted(partition, batch_of(1, timestamp_ms=-1))
    await wire.path.flushed()
    assert await ages(wire, [0]) == [-1]


async def test_every_segment_is_found_and_offsets_come_in_any_order(wire: Wire) -> None:
    partition = await led(wire, *[10] * 40, **{"segment.bytes": "1024"})
    assert len(partition.log.segments) > 5
    offsets = [399, 0, 57, 400, 200, 57]
    assert await ages(wire, offsets) == [20_991, 59_991, 54_991, 0, 39_991, 54_991]


async def test_a_partition_that_is_not_here_has_an_error_alone(wire: Wire) -> None:
    answer = await listing(wire, [0], name="absent")
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (answer.start_offset, answer.unread_ages_ms) == (-1, [])


async def test_a_file_that_cannot_be_read_makes_an_age_unknown_and_nothing_else(wire: Wire, monkeypatch) -> None:
    await led(wire, 3)

    def refuse(*arguments: object, **more: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(wire.path.files, "open", refuse)
    answer = await listing(wire, [0, 3])
    assert answer.unread_ages_ms == [-1, 0]
    assert (answer.error_code, answer.offset) == (0, 3)


async def test_many_partitions_of_one_request_are_looked_up_together(wire: Wire, monkeypatch) -> None:
    names = [f"t{number}" for number in range(20)]
    for name in names:
        await led(wire, 3, 2, name=name)
    batches = []
    count = batch_times

    def counted(search: LogSearch, offsets: Sequence[int]) -> list[int | None]:
        batches.append(len(offsets))
        return count(search, offsets)

    monkeypatch.setattr("penstock.log.partition_log.batch_times", counted)
    asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST, committed_offsets=[0, 3, 5])
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[asked]) for name in [*names, "absent"]]
    )
    answers = [topic.partitions[0] for topic in (await wire.listed(request, 11)).topics]
    assert [a.unread_ages_ms for a in answers] == [[59_998, 58_999, 0]] * 20 + [[]]
    assert batches == [2] * 20


async def test_more_offsets_than_one_thread_takes_and_than_a_request_may_ask_for(wire: Wire) -> None:
    await led(wire, 3)
    many = await ages(wire, [0] * (READ_BATCH_OFFSETS + 1))
    assert many == [59_998] * (READ_BATCH_OFFSETS + 1)
    too_many = await ages(wire, [3] * (MAX_OFFSETS + 2))
    assert too_many == [0] * MAX_OFFSETS + [-1] * 2


async def test_the_start_is_told_whatever_place_is_asked_for(wire: Wire) -> None:
    await led(wire, 3)
    answer = await listing(wire, [0], timestamp=EARLIEST)
    assert (answer.offset, answer.start_offset, answer.unread_ages_ms) == (0, 0, [59_998])
