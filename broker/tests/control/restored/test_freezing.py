"""A restored store freezes brokers that have observed later writes than it contains."""

from __future__ import annotations

import asyncio

import pytest
from restored_kit import Cluster, until

from penstock.control.elections import ElectionPair, newest_election
from penstock.control.restored.observed_revision import FILE_NAME, DamagedSnapshot, read_observed
from penstock.runtime.disk import OsFiles
from penstock.state import keys
from penstock.state.records import TopicRecord, encode
from penstock.state.store import DeleteOp, PutOp, StoreUnavailable


def seen(cluster: Cluster, broker_id: int):
    found = read_observed(OsFiles(), str(cluster.home / str(broker_id)))
    assert found is not None
    return found


async def elect_again(cluster: Cluster) -> None:
    epoch = max(broker.view.controller_epoch for broker in cluster.brokers.values())
    await cluster.etcd.store.txn([], [DeleteOp(keys.CONTROLLER)])
    await until(lambda: all(b.view.controller_epoch > epoch for b in cluster.brokers.values()))


async def test_an_election_is_on_disk_before_the_view_has_it(two: Cluster) -> None:
    written: list[tuple[int, int]] = []
    broker = two[2]
    apply = broker.watcher._apply

    def applied(changes) -> None:
        written.append((seen(two, 2).epoch, changes.revision))
        apply(changes)

    broker.watcher._apply = applied
    await elect_again(two)
    newest = await newest_election(two.etcd.store)
    entry = await two.etcd.store.get(keys.election(newest.epoch))
    assert next(epoch for epoch, revision in written if revision >= entry.mod_revision) == newest.epoch
    assert seen(two, 2).pair == newest


async def test_nothing_freezes_while_elections_follow_each_other_and_brokers_restart(two: Cluster) -> None:
    for _ in range(3):
        await elect_again(two)
        await two.stop(1)
        await two.start(1)
    await until(lambda: two[1].restored.checks > 1)
    assert not two[1].restored.is_frozen
    assert not two[2].restored.is_frozen
    assert two[1].restored.may_discard()


async def test_an_election_in_the_midst_of_a_look_at_the_store_is_no_reason_to_freeze(two: Cluster) -> None:
    broker = two[2]
    ask = broker.raw.range

    async def slow(prefix: str, revision: int = 0):
        listing = await ask(prefix, revision)
        if prefix.startswith(keys.ELECTIONS):
            before = broker.restored._observed.epoch
            await two.etcd.store.txn([], [DeleteOp(keys.CONTROLLER)])
            await until(lambda: broker.restored._observed.epoch > before)
        return listing

    broker.raw.range = slow
    await broker.restored.check()
    assert not broker.restored.is_frozen


async def test_a_store_that_lacks_the_newest_election_freezes_running_brokers(two: Cluster) -> None:
    backup = two.etcd.backup()
    await elect_again(two)
    await two.etcd.restore(backup, bump=1000)  # so that no revision decreases
    await two.frozen(1, 2)
    assert "which the store does not have" in two[1].restored.reason + two[2].restored.reason
    assert "cluster recover" in two[1].restored.reason


async def test_a_revision_that_goes_back_freezes_though_no_election_was_lost(two: Cluster) -> None:
    backup = two.etcd.backup()
    await two.topic("lost", [1, 2])
    await two.etcd.restore(backup)
    await two.frozen(1, 2)
    assert "revision" in two[1].restored.reason + two[2].restored.reason


async def test_another_etcd_freezes_though_nothing_is_missing_in_it(two: Cluster) -> None:
    await two.etcd.restore(two.etcd.backup(), cluster_id="e2", bump=1000)
    await two.frozen(1, 2)
    assert "etcd cluster e2" in two[1].restored.reason + two[2].restored.reason


async def test_a_broker_that_was_away_during_the_restore_freezes_when_it_starts(two: Cluster) -> None:
    backup = two.etcd.backup()
    await elect_again(two)
    await two.stop(1, 2)
    await two.etcd.restore(backup)
    starting = two.begin(2)
    await two.frozen(2)
    assert two[2].registration is None, "it does not register"
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def test_brokers_that_all_stopped_notice_what_was_written_last(two: Cluster) -> None:
    backup = two.etcd.backup()
    await two.topic("lost", [1, 2])
    await two.stop(1, 2)
    await two.etcd.restore(backup)
    starting = two.begin(2)
    await two.frozen(2)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def test_one_that_has_seen_nothing_newer_is_frozen_by_the_one_that_has(two: Cluster) -> None:
    await two.stop(2)
    backup = two.etcd.backup()
    await elect_again(two)
    await two.stop(1)
    await two.etcd.restore(backup, bump=1000)
    await two.start(2)  # stopped before the backup, so it has observed nothing later
    await until(lambda: two[2].is_controller)
    starting = two.begin(1)
    await two.frozen(1, 2)
    await until(lambda: not two[2].is_controller)
    assert "broker 1 has detected" in two[2].restored.reason
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def test_nobody_is_elected_while_the_store_is_not_recovered(two: Cluster) -> None:
    backup = two.etcd.backup()
    await two.topic("lost", [1])
    await two.etcd.restore(backup)
    await two.frozen(1, 2)
    assert await two.etcd.store.get(keys.CONTROLLER) is None
    starting = two.begin(3)  # a new broker has observed nothing, but the mark in the store freezes it
    await two.frozen(3)
    assert await two.etcd.store.get(keys.CONTROLLER) is None
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def test_the_view_of_a_frozen_broker_stands_still(two: Cluster) -> None:
    backup = two.etcd.backup()
    topic_id = await two.topic("kept", [1, 2])
    await two.etcd.restore(backup)
    await two.frozen(1, 2)
    revision = two[1].view.revision
    for _ in range(revision):  # beyond the broker's revision, with a deletion of the topic
        record = TopicRecord(name="kept", topic_id=topic_id, partition_count=1, deleting=True)
        await two.etcd.store.txn([], [PutOp(keys.topic(topic_id), encode(record))])
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert two[1].view.revision == revision
    assert "kept" in two[1].view.topics


async def test_a_frozen_broker_writes_nothing_and_may_discard_nothing(two: Cluster) -> None:
    backup = two.etcd.backup()
    await two.topic("lost", [1, 2])
    assert two[1].restored.may_discard()
    await two.etcd.restore(backup)
    await two.frozen(1, 2)
    before = two.etcd.store._contents.committed_revision
    assert not two[1].restored.may_discard()
    assert not two[1].restored.may_serve()
    assert not two[1].log_dir.retention.started
    with pytest.raises(StoreUnavailable, match="restored"):
        await two[1].store.txn([], [PutOp("/penstock/v1/x", b"")])
    assert await two[1].store.get(keys.CLUSTER) is not None, "it reads"
    assert two.etcd.store._contents.committed_revision == before


async def test_nothing_may_be_discarded_from_a_new_connection_on_until_the_store_was_looked_at(two: Cluster) -> None:
    await until(two[1].restored.may_discard)
    two[1].raw.is_away = True
    two[1].restored.request_check()
    assert not two[1].restored.may_discard()
    assert not two[1].restored.is_frozen
    two[1].raw.is_away = False
    await until(two[1].restored.may_discard)


async def test_changes_are_not_taken_in_while_the_store_is_in_doubt(two: Cluster) -> None:
    two[1].raw.is_away = True
    two[1].restored.request_check()
    await two.etcd.store.txn([], [PutOp(keys.broker_config(None), b'{"settings":{"log.retention.ms":"5000"}}')])
    before = two[1].view.revision
    await until(lambda: two[2].view.revision > before)
    assert two[1].view.revision == before
    two[1].raw.is_away = False
    await until(lambda: two[1].view.revision > before)


async def test_an_empty_store_freezes_and_is_not_written_to(two: Cluster) -> None:
    from restored_kit import Backup

    await two.etcd.restore(Backup([], 5000))
    await until(lambda: two[1].restored.is_frozen and two[2].restored.is_frozen)
    assert "does not have this broker's cluster" in two[1].restored.reason
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert (await two.etcd.store.range(keys.METADATA)).entries == []


async def test_a_report_has_all_replicas_with_their_ends_and_the_epochs_that_were_known(two: Cluster) -> None:
    from penstock.control.restored.reports import read_reports

    backup = two.etcd.backup()
    topic_id = await two.topic("t", [1, 2], [2, 1])
    two[1].append("t", 3, epoch=7)
    two[1].append("t", 2, epoch=9)
    await two.etcd.restore(backup)
    await two.frozen(1)
    report, replicas = (await read_reports(two.etcd.store))[1]
    assert report.epoch == seen(two, 1).epoch
    assert report.directory_id == two[1].log_dir.directory_id
    assert [tuple(r) for r in replicas] == [(topic_id, "t", 0, 9, 5, 0)]


async def test_a_report_of_more_partitions_than_fit_into_one_value_is_read_whole(two: Cluster, monkeypatch) -> None:
    from penstock.control.restored import reports

    monkeypatch.setattr(reports, "CHUNK", 2)
    backup = two.etcd.backup()
    await two.topic("t", *[[1, 2]] * 5)
    for index in range(5):
        two[1].append("t", index + 1, epoch=0, index=index)
    await two.etcd.restore(backup)
    await two.frozen(1)
    _, replicas = (await reports.read_reports(two.etcd.store))[1]
    assert [r.end_offset for r in replicas] == [1, 2, 3, 4, 5]
    await two.etcd.store.txn([], [DeleteOp(keys.report_chunk(1, 1))])
    assert 1 not in await reports.read_reports(two.etcd.store), "what is not whole is not told"


async def test_a_damaged_file_is_refused_with_its_name(two: Cluster) -> None:
    await two.stop(1)
    path = two.home / "1" / FILE_NAME
    for wrong in (b"{}", path.read_bytes().replace(b'"epoch":', b'"epoch":9'), b"x" * 100_000):
        path.write_bytes(wrong)
        with pytest.raises(DamagedSnapshot, match=FILE_NAME):
            read_observed(OsFiles(), str(path.parent))
    assert ElectionPair(1, "x") != ElectionPair(2, "x")
