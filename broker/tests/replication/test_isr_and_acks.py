"""ISR membership: min.insync.replicas, incarnations, leases, draining, and errors with too few replicas."""

from __future__ import annotations

import errno

from cluster_kit import Cluster
from replica_kit import batch_of, until

from penstock.state import keys
from penstock.state.store import DeleteOp
from penstock.wire.errors import ErrorCode


async def shrunk_to(cluster: Cluster, *isr: int) -> None:
    """Kill the other brokers, and wait until they leave the ISR of broker 1's partition."""
    for broker_id in {1, 2, 3} - set(isr):
        await cluster.kill(broker_id, fence=False)
    cluster[1].leader().append(batch_of())
    await cluster.caught_up(1, *(set(isr) - {1}))
    await cluster.lag()
    await cluster.in_sync(*isr)


async def test_with_too_few_in_sync_nothing_is_taken_that_all_should_have(cluster: Cluster) -> None:
    await cluster.create(min_insync_replicas="2")
    await cluster.acknowledged(1)
    await shrunk_to(cluster, 1)
    leader = cluster[1].leader()
    end, high_watermark = leader.log.end_offset, leader.high_watermark
    done, _ = cluster.produce(1)
    assert done.error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "min.insync.replicas" in (done.message or "")
    assert leader.log.end_offset == end
    assert not leader.append(batch_of()).error, "acks=1 is still taken"
    await cluster.settled()
    assert leader.high_watermark == high_watermark, "and not visible to readers"


async def test_who_waits_when_too_few_are_left_is_told_so(cluster: Cluster) -> None:
    await cluster.create(min_insync_replicas="2")
    await cluster.acknowledged(1)
    for broker_id in (2, 3):
        await cluster.kill(broker_id, fence=False)
    done, waiter = cluster.produce(1)
    assert not done.error
    await cluster.lag()
    await cluster.in_sync(1)
    assert waiter.answers == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert cluster[1].leader().high_watermark == 3


async def test_when_enough_are_back_all_that_was_written_counts(cluster: Cluster) -> None:
    await cluster.create(min_insync_replicas="2")
    await shrunk_to(cluster, 1)
    leader = cluster[1].leader()
    assert leader.high_watermark == 0
    await cluster.start(2)
    await cluster.in_sync(1, 2)
    await until(lambda: leader.high_watermark == leader.log.end_offset)
    await cluster.acknowledged(1)


async def test_more_than_the_replication_factor_is_not_asked_for(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2), min_insync_replicas="3")
    await cluster.acknowledged(1)


async def test_replicas_that_are_being_added_are_not_asked_for(cluster: Cluster) -> None:
    await cluster.create(replicas=(1,), min_insync_replicas="3")
    await cluster.acknowledged(1)
    cluster.cut(2, 1)
    await cluster.change(replicas=[1, 2], adding=[2])
    await cluster.acknowledged(1)
    cluster.heal()
    await cluster.in_sync(1, 2)


async def test_who_leaves_while_too_few_are_left_is_eligible_until_enough_are_back(cluster: Cluster) -> None:
    await cluster.create(min_insync_replicas="2")
    await shrunk_to(cluster, 1, 2)
    assert (await cluster.record()).eligible == []
    await cluster.kill(2, fence=False)
    cluster[1].leader().append(batch_of())
    await cluster.lag()
    await cluster.in_sync(1)
    assert (await cluster.record()).eligible == [2]
    await cluster.start(3)
    await cluster.in_sync(1, 3)
    assert (await cluster.record()).eligible == []


async def test_a_restarted_follower_counts_only_once_it_was_admitted_as_another(cluster: Cluster) -> None:
    """The old incarnation is in the ISR; fetches of the new one must not count for it."""
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    leader = cluster[1].leader()
    await cluster.kill(2)
    broker = await cluster.start(2)
    assert leader.isr is not None
    isr, seen = leader.isr, []
    done = leader.append(batch_of(), True)
    leader.when_committed(done.required_offset, lambda error: seen.append((error, list(isr.placed.isr_epochs))))
    await until(lambda: seen)
    assert seen == [(0, [cluster.epoch_of(1), broker.membership.epoch])]


async def test_a_restarted_leader_leads_only_in_a_new_epoch(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    await cluster.kill(1)
    again = await cluster.start(1)
    assert again.replicas.find("t", 0) is None
    assert again.replicas.absence("t", 0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
    await cluster.elect(1, [1, 2])
    assert again.leader().leader_epoch == 1
    await cluster.acknowledged(1)


async def test_a_follower_that_has_caught_up_joins_an_idle_partition_once_it_may(cluster: Cluster) -> None:
    """An idle partition has no fetches after the follower has caught up."""
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1)
    await cluster.kill(2)
    await cluster.elect(1, [1])
    cluster[1].membership.serves = False
    await cluster.start(2)
    await cluster.caught_up(1, 2)
    await cluster.lag(1)
    assert cluster[1].view.topics["t"].partitions[0].isr == [1]
    cluster[1].membership.serves = True
    await cluster.lag(1)
    await cluster.in_sync(1, 2)


async def test_a_draining_broker_does_not_come_into_the_isr(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await shrunk_to_two(cluster)
    broker = await cluster.start(2)
    revision = await cluster.register(2, draining=True)
    broker.membership.epoch = revision
    await cluster.applied(revision)
    done, _ = cluster.produce(1)
    await until(lambda: broker.end() == done.required_offset)
    await cluster.lag(100)
    assert cluster[1].view.topics["t"].partitions[0].isr == [1]
    revision = await cluster.register(2)
    broker.membership.epoch = revision
    await cluster.in_sync(1, 2)


async def shrunk_to_two(cluster: Cluster) -> None:
    await cluster.kill(2, fence=False)
    cluster[1].leader().append(batch_of())
    await cluster.lag()
    await cluster.in_sync(1)


async def test_a_follower_enters_only_with_what_counts_on_its_disk(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await shrunk_to_two(cluster)
    await cluster.acknowledged(1, 5)
    broker = await cluster.start(2)
    broker.files.hold()
    await cluster.acknowledged(1, 5)
    isr = cluster[1].leader().isr
    assert isr is not None
    await until(lambda: isr.progress[2].fetch_offset == cluster[1].end())
    await cluster.lag(100)
    await until(lambda: cluster[1].keeper.changes.task is None)
    assert cluster[1].view.topics["t"].partitions[0].isr == [1]
    broker.files.let_go()
    await cluster.in_sync(1, 2)


async def test_a_leader_without_its_lease_changes_no_isr_and_still_serves_acks_all(cluster: Cluster) -> None:
    await cluster.create()
    cluster[1].membership.serves = False
    assert not cluster[1].replicas.may_serve()
    await cluster.acknowledged(1)
    await cluster.kill(3, fence=False)
    _, waiter = cluster.produce(1)
    await cluster.caught_up(1, 2)
    cluster.clock.advance(100_000)
    cluster[1].keeper.run_check()
    await until(lambda: cluster[1].keeper.changes.task is None)
    assert cluster[1].keeper.changes.transactions == 0
    assert not waiter.answers
    cluster[1].membership.serves = True
    cluster[1].keeper.run_check()
    await cluster.in_sync(1, 2)
    await until(lambda: waiter.answers)


async def test_a_leader_whose_registration_is_gone_cannot_change_the_isr(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.kill(3, fence=False)
    _, waiter = cluster.produce(1)
    await cluster.caught_up(1, 2)
    await cluster.store.txn([], [DeleteOp(keys.broker(1))])
    await cluster.lag()
    await until(lambda: cluster[1].keeper.changes.task is None)
    assert cluster[1].keeper.changes.transactions == 1
    assert (await cluster.record()).isr == [1, 2, 3]
    assert not waiter.answers


async def test_a_follower_whose_disk_has_failed_leaves_the_isr(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    cluster[3].log_dir.fail(OSError(errno.EIO, "planted"))
    _, waiter = cluster.produce(1)
    await cluster.caught_up(1, 2)
    assert not waiter.answers
    await cluster.lag()
    await cluster.in_sync(1, 2)
    await until(lambda: waiter.answers)
    assert waiter.answers == [0]


async def test_an_isr_that_changed_meanwhile_is_not_written_over(cluster: Cluster) -> None:
    """The controller removed broker 2 while the leader was about to remove broker 3."""
    await cluster.create()
    await cluster.acknowledged(1)
    for broker_id in (2, 3):
        await cluster.kill(broker_id, fence=False)
    cluster.produce(1)
    leader = cluster[1].leader()
    assert leader.isr is not None
    cluster.clock.advance(100_000)
    record = await cluster.record()
    cluster[1].keeper.check_leaders()
    assert leader.isr.pending is not None
    maximal = len(leader.isr.maximal)
    await cluster.change(isr=[1, 3], isr_epochs=[record.isr_epochs[0], record.isr_epochs[2]])
    assert maximal == 2, "those who are to leave count until they have left"
    await cluster.lag()
    await cluster.in_sync(1)


async def test_what_follows_a_batch_that_was_refused_for_want_of_replicas_is_no_gap(cluster: Cluster) -> None:
    """On OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka starts a new epoch and resends batches that it must not resend."""
    await cluster.create(min_insync_replicas="2")
    await cluster.acknowledged(1, producer=(7, 0, 0))
    await shrunk_to(cluster, 1)
    assert cluster.produce(1, producer=(7, 0, 3))[0].error == ErrorCode.NOT_ENOUGH_REPLICAS
    await cluster.start(2)
    await cluster.in_sync(1, 2)
    assert cluster.produce(1, producer=(7, 0, 6))[0].error == ErrorCode.NOT_ENOUGH_REPLICAS
    for sequence in (3, 6):
        await cluster.acknowledged(1, producer=(7, 0, sequence))
