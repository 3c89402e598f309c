"""Readers are notified of all records that become visible, and the cost of inspecting a batch is bounded."""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from uuid import UUID

import cramjam
import pytest
from replica_kit import DataPath, Listener, Waiter, accepted, batch_of, patched, until

from penstock.log import opening
from penstock.replica.inspection import MAX_CHECKED_RECORDS
from penstock.wire.batch import HEADER_SIZE
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode

SMALLEST_KEYED_RECORD = b"\x0c\0\0\0\0\1\0"


async def test_a_batch_that_came_during_a_flush_wakes_readers_when_it_is_flushed_itself(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    accepted(partition)
    await until(lambda: path.log_dir.flusher.running)
    later = batch_of(100)
    accepted(partition, later)
    reader, committed = Listener(), Waiter()
    # a consumer that has read the first batch fetches again before the second is flushed
    ask_again = partial(asyncio.get_running_loop().call_soon, partition.readers.update, {reader: None})
    partition.when_committed(3, lambda error: ask_again() and None)
    partition.when_committed(103, committed)
    path.files.let_go()
    await until(lambda: committed.answers)
    assert sum(reader.grown) >= len(later) // 2
    assert partition.unseen_bytes == 0


def bomb(records: int) -> memoryview:
    """Return a small batch of very many minimal records with a key."""
    packed = bytes(cramjam.zstd.compress(SMALLEST_KEYED_RECORD * records))
    batch = memoryview(bytearray(bytes(batch_of(1)[:HEADER_SIZE]) + packed))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, records - 1)
    struct.pack_into(">i", batch, 57, records)
    return patched(batch, ">h", 21, Codec.ZSTD)


async def test_a_small_batch_that_stands_for_very_many_records_is_refused_unopened_where_keys_must_be_seen(
    path: DataPath,
) -> None:
    partition = await path.partition(cleanup_policy="compact")
    batch = bomb(MAX_CHECKED_RECORDS + 1)
    assert len(batch) < 4096
    assert partition.append(batch).error == ErrorCode.MESSAGE_TOO_LARGE
    assert partition.log.end_offset == 0


@pytest.mark.parametrize("cleanup", ["compact", "delete"])
async def test_a_batch_that_decompresses_to_more_than_a_multiple_of_max_message_bytes_is_refused(
    path: DataPath, cleanup: str
) -> None:
    partition = await path.partition(cleanup_policy=cleanup, max_message_bytes="10000")
    assert partition.append(batch_of(700, value=bytes(1000), codec=Codec.ZSTD)).error == ErrorCode.MESSAGE_TOO_LARGE
    accepted(partition, batch_of(50, value=bytes(1000), codec=Codec.ZSTD))


async def test_the_data_of_a_deleted_topic_is_out_of_the_way_before_its_tombstone_is_gone(path: DataPath) -> None:
    """If the tombstone were deleted first, a crash in between would leave an orphaned directory forever."""
    topic_id = await path.create("t", partitions=2)
    for index in range(2):
        partition = path.replicas.find("t", index)
        assert partition is not None
        accepted(partition)
    await path.flushed()
    found: list[list[str]] = []

    async def look(topic: UUID) -> None:
        assert topic in path.view.deleting
        names = path.files.list(path.log_dir.path)
        found.append([name for name in names if opening.parse_partition(name) is not None])

    path.cleaners.append(look)
    await path.delete("t")
    await path.removal.close()
    assert found == [[]], topic_id
