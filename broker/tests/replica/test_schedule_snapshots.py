"""Snapshots of what waits: a new leader starts from them, and ignores those that are not of its log."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_kit import HandClock
from replica_kit import DataPath, opened_data_path, until
from test_scheduled_delivery import SCHEDULED, after, appended, is_loaded, pass_time, record, values

from penstock.replica.leader import Leader
from penstock.replica.schedule_index import ScheduleIndex
from penstock.replica.schedule_snapshots import (
    FILE_NAME,
    MIN_OFFSETS,
    ScheduleSource,
    load_schedule,
    read_snapshot,
    source_of,
    update_snapshot,
)
from penstock.wire.scheduled_batch import CANCEL


async def filled(path: DataPath) -> Leader:
    """Return a partition in which records wait, were delivered and were cancelled."""
    leader = await path.partition(**SCHEDULED)
    await is_loaded(leader)
    appended(leader, *(record(f"{i}", after(i * 40_000), key=b"%d" % i) for i in range(8)))
    appended(leader, record("", (CANCEL, None), key=b"5"))
    await pass_time(path, leader, 90_000)
    await path.flushed()
    return leader


def waiting(index: ScheduleIndex) -> list[int]:
    """Return the origins of all records that wait."""
    return [r.origin for r in index.take_due(1 << 62, 1_000)]


def replayed(source: ScheduleSource) -> list[int]:
    """Return what waits without a snapshot."""
    return waiting(load_schedule(source._replace(path=f"{source.path}.none")))


async def test_a_snapshot_and_the_log_after_it_are_equal_to_the_whole_log(path: DataPath) -> None:
    leader = await filled(path)
    end = leader.log.end_offset
    update_snapshot(source_of(leader.log))
    appended(leader, record("late", after(1_000)), record("", (CANCEL, None), key=b"7"))
    await pass_time(path, leader, 40_000)
    source = source_of(leader.log)
    _, from_offset = read_snapshot(source)
    assert from_offset == end
    assert waiting(load_schedule(source)) == replayed(source) == [4, 6]
    update_snapshot(source)
    assert waiting(load_schedule(source_of(leader.log))) == [4, 6]


async def test_a_restart_starts_from_the_snapshot(tmp_path: Path) -> None:
    clock = HandClock()
    async with opened_data_path(tmp_path, clock=clock) as path:
        leader = await filled(path)
        update_snapshot(source_of(leader.log, is_durable=True))
    async with opened_data_path(tmp_path, clock=clock) as path:
        found = path.replicas.find("t", 0)
        assert found is not None
        assert read_snapshot(source_of(found.log))[1] == found.log.end_offset
        assert (await is_loaded(found)).waiting == 4
        await pass_time(path, found, 1_000_000)
        assert values(found) == ["0", "1", "2", "3", "4", "6", "7"]


@pytest.mark.parametrize("at", [0, 4, 20, 40, -1])
async def test_a_damaged_snapshot_is_ignored(path: DataPath, at: int) -> None:
    leader = await filled(path)
    source = source_of(leader.log)
    update_snapshot(source)
    data = bytearray(Path(source.path).read_bytes())
    data[at] ^= 1
    for damaged in (bytes(data), bytes(data[:-1]), b""):
        Path(source.path).write_bytes(damaged)
        assert read_snapshot(source)[1] == 0
        assert waiting(load_schedule(source)) == replayed(source)


async def test_a_snapshot_of_another_history_is_ignored(path: DataPath) -> None:
    leader = await filled(path)
    source = source_of(leader.log)
    update_snapshot(source)
    end = source.end_offset
    for other in (
        source._replace(end_offset=end - 1),
        source._replace(epochs=[*source.epochs, (99, end - 1)]),
        source._replace(start_offset=end + 1, end_offset=end + 1),
    ):
        assert read_snapshot(other)[1] == other.start_offset


async def test_a_replay_ends_when_the_broker_stops(path: DataPath) -> None:
    leader = await filled(path)
    source = source_of(leader.log)
    assert waiting(load_schedule(source, lambda: True)) == []
    update_snapshot(source, lambda: True)
    assert not Path(source.path).exists()


async def test_records_below_the_start_of_the_log_do_not_wait(path: DataPath) -> None:
    leader = await filled(path)
    update_snapshot(source_of(leader.log))
    await leader.log.delete_records_before(5)
    assert waiting(load_schedule(source_of(leader.log))) == [6, 7]


async def test_snapshots_follow_logs_that_have_grown(path: DataPath) -> None:
    leader = await filled(path)
    snapshots = path.replicas.schedule_snapshots
    assert list(snapshots.roles) == [leader]
    written = Path(leader.log.directory) / FILE_NAME
    await snapshots.update_grown()
    assert not written.exists()
    snapshots.roles[leader] -= MIN_OFFSETS
    snapshots.on_timer()
    await until(written.exists)
    await until(lambda: snapshots.roles[leader] == leader.log.flushed_offset)
    await path.alter("t", "delivery.schedule.enable", "false")
    assert not snapshots.roles
