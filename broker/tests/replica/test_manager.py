"""The hosted partitions: created on first use, dropped with their topic, deleted only with a tombstone."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from log_kit import HandClock
from replica_kit import DataPath, Listener, accepted, batch_of, opened_data_path, until

from penstock.log.types import CorruptLog
from penstock.replica.manager import ReplicaManager
from penstock.state import keys
from penstock.state.records import PartitionRecord, encode
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode


def directories(home: Path) -> set[str]:
    """Return the partitions that have files."""
    return {p.name for p in home.iterdir() if p.is_dir() and any(p.glob("*.log"))}


async def test_a_partition_is_made_when_somebody_asks_for_it(path: DataPath) -> None:
    await path.create(partitions=1000)
    assert list(path.replicas) == []
    partition = path.replicas.find("t", 999)
    assert partition is not None
    assert list(path.replicas) == [partition]


async def test_a_partition_without_data_has_no_files(path: DataPath, tmp_path: Path) -> None:
    partition = await path.partition()
    assert directories(tmp_path) == set()
    accepted(partition)
    assert directories(tmp_path) == {f"{partition.topic_id}-0"}


async def test_name_and_id_lead_to_the_same_partition(path: DataPath) -> None:
    topic_id = await path.create(partitions=2)
    by_id = path.replicas.find(topic_id, 1)
    assert by_id is not None
    assert by_id is path.replicas.find("t", 1)
    assert by_id is not path.replicas.find("t", 0)
    assert len(list(path.replicas)) == 2


@pytest.mark.parametrize(
    ("topic", "index", "error"),
    [
        ("t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("other", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (UUID(int=3), 0, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
async def test_what_the_cluster_does_not_have_is_not_found_and_why(
    path: DataPath, topic: str | UUID, index: int, error: ErrorCode
) -> None:
    await path.create()
    assert path.replicas.find(topic, index) is None
    assert path.replicas.absence(topic, index) == (error, None)
    assert list(path.replicas) == []


async def test_a_partition_that_another_broker_leads_is_not_found_and_where_it_is(path: DataPath) -> None:
    topic_id = await path.create()
    record = PartitionRecord(replicas=[5, 0], leader=5, leader_epoch=8, isr=[5])
    result = await path.watcher.store.txn([], [PutOp(keys.partition(topic_id, 0), encode(record))])
    await path.watcher.applied(result.revision)
    assert path.replicas.find("t", 0) is None
    assert path.replicas.absence("t", 0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, (5, 8))


async def test_a_damaged_partition_is_offline_and_the_others_are_not(tmp_path: Path) -> None:
    async with opened_data_path(tmp_path) as before:
        for name in ("good", "bad"):
            accepted(await before.partition(name))
        bad = before.view.topics["bad"].topic_id
    async with opened_data_path(tmp_path) as after:
        after.log_dir.corrupt[bad, 0] = CorruptLog("planted")
        assert after.replicas.find("bad", 0) is None
        assert after.replicas.absence("bad", 0) == (ErrorCode.KAFKA_STORAGE_ERROR, None)
        assert after.replicas.find("good", 0) is not None


async def test_nothing_new_is_hosted_when_the_log_directory_has_failed(path: DataPath) -> None:
    await path.create(partitions=2)
    hosted = path.replicas.find("t", 0)
    path.log_dir.fail(OSError(errno.EIO, "planted"))
    assert path.replicas.find("t", 0) is hosted
    assert path.replicas.find("t", 1) is None
    assert path.replicas.absence("t", 1) == (ErrorCode.KAFKA_STORAGE_ERROR, None)


async def test_added_partitions_are_found_and_the_old_ones_stay(path: DataPath) -> None:
    old = await path.partition()
    accepted(old)
    await path.topics.create_partitions("t", 3)
    assert path.replicas.find("t", 0) is old
    assert path.replicas.find("t", 2) is not None


async def test_new_settings_reach_the_partitions_that_are_hosted_and_those_that_will_be(path: DataPath) -> None:
    await path.create(partitions=2)
    hosted = path.replicas.find("t", 0)
    await path.alter("t", "max.message.bytes", "123")
    later = path.replicas.find("t", 1)
    assert hosted is not None
    assert later is not None
    assert hosted.config.max_message_bytes == hosted.log.config.max_message_bytes == 123
    assert later.config.max_message_bytes == 123


async def test_a_deleted_topic_is_not_found_by_name_nor_by_id(path: DataPath) -> None:
    partition = await path.partition()
    await path.delete()
    assert path.replicas.find("t", 0) is None
    assert path.replicas.find(partition.topic_id, 0) is None
    assert list(path.replicas) == []
    assert not path.replicas.leaders


async def test_a_deleted_topics_data_goes_with_its_tombstone(path: DataPath, tmp_path: Path) -> None:
    partition = await path.partition(file_delete_delay_ms="0")
    accepted(partition)
    await path.flushed()
    await path.delete()
    await path.removal.close()
    await until(lambda: not any(str(partition.topic_id) in p.name for p in tmp_path.iterdir()))
    assert not path.view.deleting


async def test_data_is_not_deleted_without_a_tombstone(path: DataPath, tmp_path: Path) -> None:
    partition = await path.partition()
    accepted(partition)
    for topic_id in (partition.topic_id, uuid4()):
        with pytest.raises(AssertionError, match="no tombstone"):
            await path.replicas.delete_topic(topic_id)
    assert directories(tmp_path) == {f"{partition.topic_id}-0"}
    accepted(partition)


async def test_a_topic_that_only_vanished_from_the_view_keeps_its_data(path: DataPath, tmp_path: Path) -> None:
    partition = await path.partition()
    accepted(partition)
    await path.flushed()
    topic = path.view.topics["t"]
    path.replicas.drop_topic(topic)
    await path.flushed()
    assert partition.deleted
    assert directories(tmp_path) == {f"{partition.topic_id}-0"}


async def test_a_topic_that_vanished_from_the_view_has_its_logs_closed_and_can_come_back(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(5, producer=(1, 0, 0)))
    path.replicas.drop_topic(path.view.topics["t"])
    await path.flushed()
    assert partition.log.closed
    assert path.log_dir.pool.open_files == 0
    again = path.replicas.find("t", 0)
    assert again is not None
    assert again is not partition
    assert again.high_watermark == 5
    assert accepted(again, batch_of(5, producer=(1, 0, 0))).base_offset == 0, "a duplicate is still known"
    assert accepted(again, batch_of(5, producer=(1, 0, 5))).base_offset == 5


async def test_a_topic_that_comes_back_while_its_log_is_being_closed_is_there_a_little_later(path: DataPath) -> None:
    partition = await path.partition()
    path.files.hold()
    accepted(partition)
    path.replicas.drop_topic(path.view.topics["t"])
    assert path.replicas.find("t", 0) is None
    assert path.replicas.absence("t", 0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
    path.files.let_go()
    await path.flushed()
    again = path.replicas.find("t", 0)
    assert again is not None
    assert again.high_watermark == 3


async def test_a_log_that_could_not_be_closed_is_closed_when_it_is_asked_for(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition)
    await path.flushed()
    path.files.fail("write_atomic", errno.ENOSPC)
    path.replicas.drop_topic(path.view.topics["t"])
    await path.flushed()
    assert not partition.log.closed
    path.files.heal()
    assert path.replicas.find("t", 0) is None
    await path.flushed()
    again = path.replicas.find("t", 0)
    assert again is not None
    assert again.high_watermark == 3


async def test_the_data_of_a_topic_that_is_deleted_while_its_log_is_being_closed_goes(
    path: DataPath, tmp_path: Path
) -> None:
    partition = await path.partition(file_delete_delay_ms="0")
    path.files.hold()
    accepted(partition)
    path.replicas.drop_topic(path.view.topics["t"])
    await path.delete()
    path.files.let_go()
    await path.removal.close()
    await until(lambda: not any(str(partition.topic_id) in p.name for p in tmp_path.iterdir()))
    await path.flushed()
    assert path.log_dir.failed is None
    assert not path.log_dir.releasing


async def test_damaged_and_offline_partitions_are_counted(path: DataPath) -> None:
    topic_id = await path.create(partitions=3)
    for index in range(2):
        path.replicas.find("t", index)
    assert (path.replicas.damaged(), path.replicas.offline()) == ([], 0)
    path.log_dir.corrupt[topic_id, 2] = CorruptLog("planted")
    path.log_dir.corrupt[uuid4(), 0] = CorruptLog("of a topic that is gone")
    first = path.replicas.find("t", 0)
    assert first is not None
    first.log.fail(CorruptLog("planted"))
    assert sorted(path.replicas.damaged()) == [("t", 0), ("t", 2)]
    assert path.replicas.offline() == 2
    path.log_dir.fail(OSError(errno.EIO, "planted"))
    assert path.replicas.damaged() == [("t", 2)]
    assert path.replicas.offline() == 3


async def test_a_recreated_topic_shares_nothing_with_the_old_one(path: DataPath) -> None:
    old = await path.partition()
    accepted(old, batch_of(5, producer=(1, 3, 0)))
    await path.flushed()
    reader = Listener()
    old.readers[reader] = None
    await path.delete()
    new = await path.partition()
    assert new is not old
    assert new.topic_id != old.topic_id
    assert (new.high_watermark, new.log.end_offset, new.log.directory != old.log.directory) == (0, 0, True)
    assert not new.producers.entries
    assert accepted(new, batch_of(5, producer=(1, 0, 0))).base_offset == 0
    assert path.replicas.find(old.topic_id, 0) is None
    assert reader.grown == []


async def test_silent_producers_are_forgotten_on_the_clock_that_never_leaps(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(producer=(1, 0, 0), timestamp_ms=1))
    path.clock.now_ms += 1 << 40
    path.replicas.expire_producers()
    assert set(partition.producers.entries) == {1}
    path.clock.advance(path.config.producer_id_expiration_ms)
    accepted(partition, batch_of(producer=(2, 0, 0), timestamp_ms=1))
    path.clock.advance(1)
    path.replicas.expire_producers()
    assert set(partition.producers.entries) == {2}
    assert accepted(partition, batch_of(producer=(1, 0, 40))).base_offset == 6


@pytest.mark.parametrize(("expiration_ms", "interval_s"), [(1, 1), (5000, 5), (86_400_000, 600)])
async def test_silent_producers_are_looked_for_as_often_as_they_may_expire(
    path: DataPath, monkeypatch: pytest.MonkeyPatch, expiration_ms: int, interval_s: float
) -> None:
    delays: list[float] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda delay, callback: delays.append(delay))
    path.config.producer_id_expiration_ms = expiration_ms
    path.replicas.expire_producers()
    assert delays == [interval_s]


async def test_looking_for_silent_producers_goes_on_until_the_end(path: DataPath) -> None:
    path.replicas.expire_producers()
    timer = path.replicas.expiry
    assert timer is not None
    assert not timer.cancelled()
    path.replicas.close()
    assert timer.cancelled()


async def test_a_manager_on_the_same_directory_finds_what_was_written(tmp_path: Path) -> None:
    clock = HandClock()
    async with opened_data_path(tmp_path, clock=clock) as before:
        await before.create(partitions=3)
        for index, count in enumerate((1, 2, 3)):
            partition = before.replicas.find("t", index)
            assert partition is not None
            accepted(partition, batch_of(count))
    async with opened_data_path(tmp_path, clock=clock) as after:
        assert isinstance(after.replicas, ReplicaManager)
        found = [after.replicas.find("t", index) for index in range(3)]
        assert [p.high_watermark for p in found if p is not None] == [1, 2, 3]


async def test_all_readers_can_be_woken_as_before_an_end(path: DataPath) -> None:
    await path.create(partitions=3)
    readers = [Listener() for _ in range(3)]
    for index, reader in enumerate(readers):
        partition = path.replicas.find("t", index)
        assert partition is not None
        partition.readers[reader] = None
    path.replicas.wake_readers()
    assert [reader.ended for reader in readers] == [1, 1, 1]


async def test_what_has_data_is_opened_although_nobody_asks_and_nothing_else(tmp_path: Path) -> None:
    async with opened_data_path(tmp_path) as before:
        await before.create(partitions=3)
        for index in (0, 2):
            partition = before.replicas.find("t", index)
            assert partition is not None
            accepted(partition)
    async with opened_data_path(tmp_path) as after:
        assert list(after.replicas) == []
        await after.replicas.open_idle_partitions()
        assert sorted(partition.index for partition in after.replicas) == [0, 2]


async def test_a_role_ends_once_and_is_replaced_only_after_it_was_removed(path: DataPath) -> None:
    partition = await path.partition()
    with pytest.raises(AssertionError, match=r"would replace .* which has not been removed"):
        path.replicas.add_role(partition)
    path.replicas.remove_role(partition)
    partition.end_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(AssertionError, match="has ended already"):
        partition.end_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(AssertionError, match="has ended"):
        path.replicas.add_role(partition)
