"""`penstock cluster recover`: its plan and its writes; brokers continue without loss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from restored_kit import Backup, Cluster, until

from penstock.control.elections import newest_election
from penstock.control.restored import recovery
from penstock.control.restored.plan import EPOCH_LEAP, PRODUCER_ID_LEAP, CannotRecover
from penstock.control.restored.recovery import prepare, recover, write_all
from penstock.node.cluster_recovery import recover_store, wait_for_reports
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import (
    PartitionRecord,
    ProducerIdsRecord,
    ShardRecord,
    TransactionRecord,
    decode,
    encode,
)
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, PutOp
from penstock.txn.state_machine import MAX_PRODUCER_EPOCH, needs_new_id


async def restored(cluster: Cluster, backup: Backup, *broker_ids: int) -> None:
    """Restore the store with another cluster id, and wait until the brokers freeze."""
    await cluster.etcd.restore(backup, cluster_id="e2")
    await cluster.frozen(*broker_ids)


async def run_recovery(cluster: Cluster, without: tuple[int, ...] = ()) -> dict[str, Any]:
    """Recover as the command does; return the document that it prints."""
    summary: dict[str, Any] = {}

    def decide(document: dict[str, Any]) -> bool:
        summary.update(document)
        return True

    assert await recover_store(cluster.etcd.connect(), without, decide) is not None
    return summary


async def begin_anew(cluster: Cluster, *broker_ids: int) -> None:
    """Restart the brokers as their processes do at the end of a run."""
    for broker_id in broker_ids:
        await asyncio.wait_for(cluster[broker_id].restored.over.wait(), 60)
        await cluster.stop(broker_id)
    await cluster.start(*broker_ids)


async def led(cluster: Cluster, name: str, index: int = 0) -> PartitionRecord:
    async with asyncio.timeout(60):
        while (record := await cluster.record(name, index)).leader < 0:
            await asyncio.sleep(0.01)
    return record


async def test_looking_changes_nothing(two: Cluster) -> None:
    await two.topic("t", [1, 2])
    backup = two.etcd.backup()
    await two.topic("later", [1, 2])
    await restored(two, backup, 1, 2)
    before = two.etcd.store._contents.committed_revision
    assert await recover_store(two.etcd.connect(), (), lambda document: False) is None
    assert two.etcd.store._contents.committed_revision == before
    assert two[1].restored.is_frozen


async def test_a_store_that_nobody_found_to_be_restored_is_left_alone(two: Cluster) -> None:
    with pytest.raises(CannotRecover, match="nothing to recover"):
        await recover_store(two.etcd.connect(), (), lambda document: True)


async def test_brokers_must_have_reported_first(two: Cluster) -> None:
    backup = two.etcd.backup()
    await two.topic("t", [1, 2])
    await restored(two, backup, 1, 2)
    for broker_id in (1, 2):
        await two.stop(broker_id)
    from penstock.state.store import DeleteOp

    await two.etcd.store.txn([], [DeleteOp(keys.REPORTS, prefix=True)])
    with pytest.raises(CannotRecover, match="start the brokers"):
        await prepare(two.etcd.connect())


async def test_the_reports_of_required_brokers_are_awaited(two: Cluster) -> None:
    backup = two.etcd.backup()
    await two.topic("t", [1, 2])
    with pytest.raises(CannotRecover, match="nothing to recover"):
        await wait_for_reports(two.etcd.connect(), (), 0)
    await two.stop(2)
    await restored(two, backup, 1)
    store = two.etcd.connect()
    await wait_for_reports(store, (1,), 60)
    with pytest.raises(CannotRecover, match="broker 2, 7 has not reported its replicas; start it"):
        await wait_for_reports(store, (7, 1, 2), 0)
    starting = two.begin(2)
    await wait_for_reports(store, (1, 2), 120)
    assert await run_recovery(two)
    await asyncio.wait_for(starting, 60)


async def test_an_etcd_that_does_not_respond_is_awaited_too(two: Cluster) -> None:
    backup = two.etcd.backup()
    await two.topic("t", [1, 2])
    await restored(two, backup, 1, 2)
    store = two.etcd.connect()
    store.is_away = True
    with pytest.raises(CannotRecover, match="no answer"):
        await wait_for_reports(store, (1,), 0)
    waiting = asyncio.create_task(wait_for_reports(store, (1, 2), 120))
    await asyncio.sleep(0)
    assert not waiting.done()
    store.is_away = False
    await waiting


async def test_the_replica_with_the_most_leads_above_every_epoch_that_was_seen(two: Cluster) -> None:
    await two.topic("t", [1, 2])
    two[1].append("t", 3, epoch=0)
    two[2].append("t", 3, epoch=0)
    backup = two.etcd.backup()
    # Missing from the backup: broker 2 led in epoch 40, and only it has the records of that epoch.
    record = await two.record("t")
    newer = PartitionRecord(replicas=[1, 2], leader=2, leader_epoch=41, isr=[2], isr_epochs=[record.isr_epochs[1]])
    await two.write(PutOp(keys.partition(two.topics["t"], 0), encode(newer)))
    two[2].append("t", 2, epoch=40)
    await restored(two, backup, 1, 2)
    summary = await run_recovery(two)
    (partition,) = summary["partitions"]
    assert partition["log_ends"] == {"1": {"epoch": 0, "offset": 3}, "2": {"epoch": 40, "offset": 5}}
    assert partition["new_leader_epoch"] == 41 + EPOCH_LEAP, (
        "the epoch that the view knew counts, although it has no records"
    )
    await begin_anew(two, 1, 2)
    record = await led(two, "t")
    assert (record.leader, record.isr) == (2, [2])
    assert record.leader_epoch > 41 + EPOCH_LEAP
    assert record.isr_epochs == [two[2].registration.epoch]


async def test_no_partition_is_led_before_all_that_may_have_the_most_are_back(two: Cluster) -> None:
    await two.topic("t", [1, 2])
    two[1].append("t", 3, epoch=0)
    backup = two.etcd.backup()
    two[2].append("t", 5, epoch=1)
    await restored(two, backup, 1, 2)
    await run_recovery(two)
    await two.stop(2)
    await begin_anew(two, 1)
    await two.controlled()
    await until(lambda: two[1].controller.term.keeper.is_idle)
    assert (await two.record("t")).leader == -1
    await two.start(2)
    assert (await led(two, "t")).leader == 2


async def test_a_broker_that_has_not_reported_is_waited_for_or_left_out_by_name(two: Cluster) -> None:
    await two.topic("t", [1, 2])
    await two.topic("single", [2])
    backup = two.etcd.backup()
    two[1].append("t", 3, epoch=0)
    await two.topic("later", [1])
    await two.stop(2)
    await restored(two, backup, 1)
    prepared = await prepare(two.etcd.connect())
    assert prepared.plan.awaited == [2]
    with pytest.raises(CannotRecover, match="broker 1 has reported"):
        await prepare(two.etcd.connect(), [1])
    summary = await run_recovery(two, without=(2,))
    by_name = {p["topic"]: p for p in summary["partitions"]}
    assert summary["awaited"] == []
    assert by_name["t"]["waits_for"] == [1]
    assert not by_name["t"]["may_lose"], "of two replicas, min.insync.replicas 2, one is enough"
    assert by_name["single"]["may_lose"]
    await begin_anew(two, 1)
    assert (await led(two, "t")).leader == 1
    assert (await two.record("single")).leader == -1


async def test_a_broker_that_got_a_replica_after_the_backup_is_asked_too_and_leaves_when_others_have_all(
    cluster: Cluster,
) -> None:
    await cluster.start(1, 2, 3)
    await cluster.controlled()
    await cluster.topic("t", [1, 2])
    backup = cluster.etcd.backup()
    epoch = cluster[3].registration.epoch
    moved = PartitionRecord(replicas=[3, 2], leader=3, leader_epoch=1, isr=[3], isr_epochs=[epoch])
    await cluster.write(PutOp(keys.partition(cluster.topics["t"], 0), encode(moved)))
    cluster[3].append("t", 9, epoch=1)
    cluster[2].append("t", 4, epoch=1)
    await restored(cluster, backup, 1, 2, 3)
    summary = await run_recovery(cluster)
    assert summary["partitions"][0]["added"] == [3]
    assert summary["partitions"][0]["waits_for"] == [1, 2, 3]
    await begin_anew(cluster, 1, 2, 3)
    record = await led(cluster, "t")
    assert (record.leader, record.replicas, record.removing) == (3, [1, 2, 3], [3])


async def test_data_that_the_store_does_not_know_is_told_and_put_aside(two: Cluster) -> None:
    await two.topic("t", [1])
    backup = two.etcd.backup()
    later = await two.topic("later", [1, 2])
    two[1].append("later", 6, epoch=0)
    # Broker 2's copy is older than broker 1's: recovery does not need it, but must not delete it.
    two[1].append("t", 4, epoch=0)
    two[2].append("t", 2, epoch=0)
    await restored(two, backup, 1, 2)
    summary = await run_recovery(two)
    unknown = {(u["topic"], u["broker"], u["end_offset"]) for u in summary["unknown"]}
    assert unknown == {("later", 1, 6), ("t", 2, 2)}
    await begin_anew(two, 1, 2)
    assert two[1].aside == [f"{two[1].log_dir.path}/quarantine/{later}-0"]
    assert [name.rpartition("/")[2] for name in two[2].aside] == [f"{two.topics['t']}-0"]
    await two.stop(2)
    await two.start(2)
    assert two[2].restored.retained({}) == {}, "only the first start after a recovery puts aside so much"


async def test_what_was_not_put_aside_yet_at_a_crash_is_at_the_next_start(two: Cluster) -> None:
    await two.topic("t", [1])
    backup = two.etcd.backup()
    two[2].append("t", 2, epoch=0)
    two[1].append("t", 4, epoch=0)
    await two.topic("later", [1])
    await restored(two, backup, 1, 2)
    await run_recovery(two)
    await asyncio.wait_for(two[2].restored.over.wait(), 60)  # the process dies after it has accepted the recovery
    await two.stop(2)
    await two.start(2)
    assert len(two[2].aside) == 1


async def test_shards_and_producer_ids_go_far_ahead(two: Cluster) -> None:
    await two.etcd.store.txn([], [PutOp(keys.PRODUCER_IDS, encode(ProducerIdsRecord(next_id=5000)))])
    shard = decode(ShardRecord, keys.shard(3), (await two.etcd.store.get(keys.shard(3))).value)
    backup = two.etcd.backup()
    await two.topic("later", [1])
    await restored(two, backup, 1, 2)
    before = await newest_election(two.etcd.store)
    await run_recovery(two)
    entry = await two.etcd.store.get(keys.PRODUCER_IDS)
    assert decode(ProducerIdsRecord, entry.key, entry.value).next_id == 5000 + PRODUCER_ID_LEAP
    entry = await two.etcd.store.get(keys.shard(3))
    assert decode(ShardRecord, entry.key, entry.value) == replace(shard, broker_epoch=0, epoch=shard.epoch + EPOCH_LEAP)
    assert (await newest_election(two.etcd.store)).epoch == before.epoch + EPOCH_LEAP
    for left in (keys.RESTORED, keys.REPORTS, keys.BROKERS, keys.METADATA + "broker-pasts/"):
        assert (await two.etcd.store.range(left)).entries == []


async def test_transactional_ids_get_fresh_producers_and_what_was_decided_stays_decided(two: Cluster) -> None:
    ongoing = TransactionRecord(producer_id=9, epoch=4, state="Ongoing", timeout_ms=1, last_epoch=3)
    decided = TransactionRecord(producer_id=8, epoch=4, state="PrepareCommit", timeout_ms=1, last_epoch=3)
    puts = [PutOp(keys.transaction("a"), encode(ongoing)), PutOp(keys.transaction("b"), encode(decided))]
    await two.etcd.store.txn([], puts)
    backup = two.etcd.backup()
    await two.topic("later", [1])
    await restored(two, backup, 1, 2)
    await run_recovery(two)

    async def present(name: str) -> TransactionRecord:
        entry = await two.etcd.store.get(keys.transaction(name))
        return decode(TransactionRecord, entry.key, entry.value)

    assert await present("a") == replace(ongoing, epoch=MAX_PRODUCER_EPOCH, last_epoch=-1)
    assert needs_new_id(replace(await present("a"), state="Empty"))
    assert await present("b") == decided


async def test_brokers_that_were_away_all_the_time_accept_the_recovery_when_they_come(two: Cluster) -> None:
    await two.topic("t", [1, 2])
    backup = two.etcd.backup()
    two[2].append("t", 5, epoch=0)
    await two.topic("later", [1, 2])
    await two.stop(2)
    await restored(two, backup, 1)
    await run_recovery(two)
    await begin_anew(two, 1)
    await two.start(2)
    assert not two[2].restored.is_frozen
    assert (await led(two, "t")).leader == 2


async def test_a_broker_that_was_about_to_mark_the_store_does_not_do_so_after_its_recovery(two: Cluster) -> None:
    backup = two.etcd.backup()
    await two.topic("later", [1])
    late, marking, go = two[2].restored, asyncio.Event(), asyncio.Event()
    mark = late._mark

    async def slow(store, cluster) -> None:
        marking.set()
        await go.wait()
        await mark(store, cluster)

    late._mark = slow
    await restored(two, backup, 1)
    await asyncio.wait_for(marking.wait(), 60)
    await run_recovery(two)
    go.set()
    await asyncio.wait_for(late.over.wait(), 60)
    assert await two.etcd.store.get(keys.RESTORED) is None
    assert (await two.etcd.store.range(keys.REPORTS)).entries == []


async def test_a_broker_that_starts_right_after_a_recovery_accepts_it(two: Cluster) -> None:
    await two.topic("t", [1])
    two[2].append("t", 2, epoch=0)
    backup = two.etcd.backup()
    await two.stop(2)
    await two.topic("later", [1])
    await restored(two, backup, 1)  # broker 2 has observed nothing that the backup lacks
    await run_recovery(two)
    await two.start(2)
    assert not two[2].restored.is_frozen
    assert len(two[2].aside) == 1, "what it has may be newer than what the store knows"


async def test_a_second_restore_freezes_again(two: Cluster) -> None:
    first = two.etcd.backup()
    await two.topic("later", [1])
    await restored(two, first, 1, 2)
    await run_recovery(two)
    await begin_anew(two, 1, 2)
    await two.controlled()
    backup = two.etcd.backup()
    await two.topic("lost", [1])
    await two.etcd.restore(backup, cluster_id="e3")
    await two.frozen(1, 2)
    await run_recovery(two)
    await begin_anew(two, 1, 2)
    await two.controlled()


async def test_a_recovery_fills_its_transactions_up_to_the_limit_of_the_store() -> None:
    store = EmbeddedStore(":memory:")
    await store.txn([], [PutOp("mark", b"")])
    mark = await store.get("mark")
    assert mark is not None
    writes = [(Compare.absent(str(n)), PutOp(str(n), b"")) for n in range(2 * (MAX_TXN_OPERATIONS - 1))]
    done: list[int] = []
    await write_all(store, Compare.unchanged(mark), writes, lambda count, of: done.append(count))
    assert done == [MAX_TXN_OPERATIONS - 1, 2 * (MAX_TXN_OPERATIONS - 1)], "the mark takes one of the conditions"
    assert len((await store.range("")).entries) == len(writes) + 1
    await store.close()


async def test_a_recovery_that_was_cut_short_is_done_again(two: Cluster, monkeypatch) -> None:
    monkeypatch.setattr(recovery, "MAX_TXN_OPERATIONS", 3)
    await two.topic("t", *[[1, 2]] * 6)
    backup = two.etcd.backup()
    await two.topic("later", [1])
    await restored(two, backup, 1, 2)
    prepared = await prepare(two.etcd.connect())

    class CutShortError(Exception):
        pass

    def progress(done: int, of: int) -> None:
        if done >= 4:
            raise CutShortError

    with pytest.raises(CutShortError):
        await recover(two.etcd.connect(), prepared, progress)
    await asyncio.sleep(0)
    assert two[1].restored.is_frozen
    with pytest.raises(CannotRecover, match="changed concurrently"):
        await recover(two.etcd.connect(), prepared)
    await run_recovery(two)
    await begin_anew(two, 1, 2)
    for index in range(6):
        await led(two, "t", index)
