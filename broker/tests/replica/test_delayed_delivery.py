"""Led partitions of delayed topics: timer, settings, restarts, and logs that cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from log_kit import HandClock
from replica_kit import DataPath, Listener, Waiter, accepted, batch_of, opened_data_path, until

from penstock.replica.delayed_delivery import MAX_SLEEP_MS, LeaderDelivery
from penstock.replica.delivery_window import MAX_STEPS
from penstock.replica.leader import Leader

DELAYED = {"delivery_delay_ms": "60000"}


def listening(leader: Leader) -> Listener:
    """Return a reader that waits for records of the partition."""
    reader = Listener()
    leader.readers[reader] = None
    return reader


def delivery_of(leader: Leader) -> LeaderDelivery:
    delivery = leader.delivery
    assert isinstance(delivery, LeaderDelivery)
    return delivery


def pass_time(path: DataPath, by_ms: int) -> None:
    """Move the clock, and let the timer fire."""
    path.clock.advance(by_ms)
    path.replicas.delayed.on_timer()


async def appended(path: DataPath, leader: Leader, count: int = 3) -> None:
    accepted(leader, batch_of(count))
    await path.flushed()


async def test_a_plain_topic_has_no_delivery(path: DataPath) -> None:
    leader = await path.partition()
    await appended(path, leader)
    assert leader.delivery is None
    assert leader.visible_offset == leader.high_watermark == 3


async def test_records_are_visible_and_readers_wake_when_the_delay_has_passed(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    await appended(path, leader)
    reader = listening(leader)
    path.clock.advance(10_000)
    await appended(path, leader, 2)
    pass_time(path, 49_999)
    assert (leader.high_watermark, leader.visible_offset, reader.grown) == (5, 0, []), "a commit wakes no reader"
    assert (delivery_of(leader).waiting, delivery_of(leader).next_due_ms) == (5, path.clock.now_ms + 1)
    pass_time(path, 1)
    assert leader.visible_offset == leader.visible_stable_offset == leader.acknowledged_end == 3
    assert reader.grown == [len(batch_of(3))]
    pass_time(path, 10_000)
    assert leader.visible_offset == 5
    assert (delivery_of(leader).waiting, delivery_of(leader).next_due_ms) == (0, None)


async def test_the_timer_runs_only_while_records_wait(path: DataPath) -> None:
    leader, delayed = await path.partition(**DELAYED), path.replicas.delayed
    assert delayed.timer is None
    await appended(path, leader)
    assert delayed.timer is not None
    assert delayed.timer_due_ms == path.clock.now_ms + MAX_SLEEP_MS
    pass_time(path, 60_000)
    assert delayed.timer is None
    assert not delayed.due


async def test_the_timer_fires_by_itself(path: DataPath) -> None:
    leader = await path.partition(delivery_delay_ms="1")
    await appended(path, leader)
    path.clock.advance(1)
    await until(lambda: leader.visible_offset == 3)


async def test_many_waiting_batches_are_read_from_the_log_as_they_become_due(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    count = 3 * MAX_STEPS
    for _ in range(count):
        accepted(leader, batch_of(1))
        path.clock.advance(1)
    await path.flushed()
    delivery = delivery_of(leader)
    assert len(delivery.window.steps) == MAX_STEPS
    pass_time(path, 60_000 - count - 1)
    for due in range(count):
        assert leader.visible_offset == due
        pass_time(path, 1)
        await until(lambda: not delivery.window.needs_batches(leader.log.end_offset))
        assert len(delivery.window.steps) <= MAX_STEPS
    assert leader.visible_offset == count


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restart_keeps_the_times_of_delivery(tmp_path: Path, clean: bool) -> None:
    clock = HandClock()
    async with opened_data_path(tmp_path, clock=clock, clean=clean) as path:
        leader = await path.partition(**DELAYED)
        for _ in range(3):
            await appended(path, leader)
            clock.advance(10_000)
        pass_time(path, 35_000)
        assert leader.visible_offset == 3
    async with opened_data_path(tmp_path, clock=clock) as path:
        found = path.replicas.find("t", 0)
        assert found is not None
        assert not delivery_of(found).is_located, "the log has not been read yet"
        assert not found.is_end_known
        assert found.visible_offset == 0
        await until(lambda: found.is_end_known)
        assert found.visible_offset == 3
        pass_time(path, 4_999)
        assert found.visible_offset == 3
        pass_time(path, 1)
        await until(lambda: found.visible_offset == 6)
        pass_time(path, 10_000)
        await until(lambda: found.visible_offset == 9)


async def test_a_shorter_delay_applies_at_once_and_a_longer_one_hides_nothing(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    await appended(path, leader)
    path.clock.advance(10_000)
    await appended(path, leader)
    reader = listening(leader)
    await path.alter("t", "delivery.delay.ms", "10000")
    assert leader.visible_offset == 3
    assert reader.grown
    await path.alter("t", "delivery.delay.ms", "90000")
    pass_time(path, 89_999)
    assert leader.visible_offset == 3
    pass_time(path, 1)
    assert leader.visible_offset == 6


async def test_a_delay_that_is_removed_makes_all_records_visible(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    await appended(path, leader)
    reader = listening(leader)
    await path.alter("t", "delivery.delay.ms", "0")
    assert leader.delivery is None
    assert leader.visible_offset == 3
    assert reader.grown
    assert not path.replicas.delayed.due


async def test_a_delay_that_is_added_hides_no_record_that_was_visible(path: DataPath) -> None:
    leader = await path.partition()
    await appended(path, leader)
    await path.alter("t", "delivery.delay.ms", "60000")
    await appended(path, leader)
    assert (leader.visible_offset, leader.high_watermark) == (3, 6)
    pass_time(path, 60_000)
    assert leader.visible_offset == 6


async def test_a_clock_that_is_set_back_does_not_extend_the_wait_beyond_the_delay(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    await appended(path, leader)
    pass_time(path, 60_000)
    path.clock.advance(86_400_000)
    await appended(path, leader)
    pass_time(path, -86_400_000)
    assert leader.visible_offset == 3
    pass_time(path, 59_999)
    assert leader.visible_offset == 3
    pass_time(path, 1)
    assert leader.visible_offset == 6


async def test_a_producer_gets_its_acknowledgement_at_once(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    waiter = Waiter()
    leader.when_committed(accepted(leader, batch_of(3)).required_offset, waiter)
    await path.flushed()
    assert waiter.answers == [0]


async def test_records_acknowledged_before_their_flush_are_not_expected_by_readers(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    path.files.hold()
    accepted(leader, batch_of(3), all_in_sync=False)
    assert leader not in path.replicas.unflushed


async def test_a_log_that_cannot_be_read_is_read_again(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    await appended(path, leader)
    delivery = delivery_of(leader)
    segment = leader.log.segments[0]
    hidden = Path(segment.path).rename(Path(segment.path).with_suffix(".hidden"))
    Path(segment.path).mkdir()
    delivery.window.read_again()
    delivery.advance()
    await until(lambda: delivery.awaits_retry)
    Path(segment.path).rmdir()
    hidden.rename(segment.path)
    delivery.retry()
    await until(lambda: delivery.next_due_ms is not None)
    pass_time(path, 60_000)
    assert leader.visible_offset == 3


async def test_the_end_of_a_role_ends_its_delivery(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    await appended(path, leader)
    await path.delete()
    assert not path.replicas.delayed.due
    pass_time(path, 60_000)
    await asyncio.sleep(0)
    assert leader.visible_offset == 0


async def test_deleted_records_do_not_count_as_waiting(path: DataPath) -> None:
    leader = await path.partition(**DELAYED)
    await appended(path, leader)
    path.clock.advance(1_000)
    await appended(path, leader)
    await leader.log.delete_records_before(4)
    assert (leader.visible_offset, delivery_of(leader).waiting) == (4, 2)
    pass_time(path, 60_000)
    assert leader.visible_offset == 6
