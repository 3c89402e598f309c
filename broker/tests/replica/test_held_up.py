"""What an idempotent producer sent behind a batch that was refused for a while is refused in the same way."""

from __future__ import annotations

import errno

from replica_kit import DataPath, accepted, batch_of

from penstock.replica.held_up import HELD_UP_MS, MOST, HeldUp
from penstock.wire.errors import ErrorCode

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_what_follows_a_batch_for_which_there_was_no_space_is_no_gap(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(3, producer=(1, 0, 0)))
    path.files.fail("append", errno.ENOSPC)
    assert partition.append(batch_of(3, producer=(1, 0, 3))).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.files.heal()
    assert partition.append(batch_of(3, producer=(1, 0, 6))).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.append(batch_of(3, producer=(1, 0, 9))).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert [accepted(partition, batch_of(3, producer=(1, 0, n))).base_offset for n in (3, 6, 9)] == [3, 6, 9]


async def test_a_gap_after_a_batch_that_was_taken_and_another_producer_s_gap_are_gaps(path: DataPath) -> None:
    partition = await path.partition()
    for producer in (1, 2):
        accepted(partition, batch_of(3, producer=(producer, 0, 0)))
    path.files.fail("append", errno.ENOSPC)
    assert partition.append(batch_of(3, producer=(1, 0, 3))).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.files.heal()
    assert partition.append(batch_of(3, producer=(2, 0, 6))).error == OUT_OF_ORDER
    accepted(partition, batch_of(3, producer=(1, 0, 3)))
    assert partition.append(batch_of(3, producer=(1, 0, 9))).error == OUT_OF_ORDER


async def test_a_gap_that_stays_is_one_after_a_while(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(3, producer=(1, 0, 0)))
    path.files.fail("append", errno.ENOSPC)
    partition.append(batch_of(3, producer=(1, 0, 3)))
    path.files.heal()
    path.clock.advance(HELD_UP_MS)
    assert partition.append(batch_of(3, producer=(1, 0, 6))).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.clock.advance(1)
    assert partition.append(batch_of(3, producer=(1, 0, 6))).error == OUT_OF_ORDER


def test_the_memory_is_bounded_and_forgets_who_was_refused_first() -> None:
    held_up = HeldUp()
    for producer_id in range(MOST):
        held_up.note(producer_id, ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    held_up.note(0, ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    held_up.note(MOST, ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    assert held_up.code_for(1, 0) is None
    assert [held_up.code_for(n, 0) for n in (0, 2, MOST)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
