"""Three brokers, one partition: acknowledged records are on every in-sync replica, whichever broker fails."""

from __future__ import annotations

import pytest
from cluster_kit import Cluster
from replica_kit import until

from penstock.log.partition_log import PartitionLog
from penstock.replica.fetcher import QUIET_WAIT_MS
from penstock.wire.errors import ErrorCode


async def test_what_is_produced_comes_to_every_replica_as_it_is(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1, 3)
    await cluster.acknowledged(1, 50, codec=4)
    assert cluster[1].content() == [(0, 2, 0), (3, 52, 0)]
    assert cluster[1].bytes() == cluster[2].bytes() == cluster[3].bytes()


async def test_acks_all_waits_for_the_disk_of_every_in_sync_replica(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    for slow in (3, 2, 1):
        cluster[slow].files.hold()
        done, waiter = cluster.produce(1)
        await until(lambda slow=slow, done=done: all(cluster[i].end() == done.required_offset for i in (1, 2, 3)))
        for other in {1, 2, 3} - {slow}:
            role = cluster[other].role()
            assert role is not None
            await until(lambda role=role: role.log.flushed_offset == role.log.end_offset)
        assert not waiter.answers, f"broker {slow} has not flushed"
        assert cluster[1].leader().high_watermark == done.base_offset
        cluster[slow].files.let_go()
        await until(lambda waiter=waiter: waiter.answers)
        assert waiter.answers == [0]


async def test_a_follower_that_dies_leaves_the_isr_and_the_others_go_on(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    await cluster.kill(3, fence=False)
    _, waiter = cluster.produce(1)
    await cluster.caught_up(1, 2)
    await cluster.lag(1000)
    assert not waiter.answers
    assert cluster[1].view.topics["t"].partitions[0].isr == [1, 2, 3]
    await cluster.lag()
    await cluster.in_sync(1, 2)
    await until(lambda: waiter.answers)
    assert waiter.answers == [0]
    await cluster.acknowledged(1)


@pytest.mark.slow
async def test_a_follower_that_comes_back_catches_up_and_is_in_sync_again(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    await cluster.kill(3, fence=False)
    cluster.produce(1)
    await cluster.caught_up(1, 2)
    await cluster.lag()
    await cluster.in_sync(1, 2)
    for _ in range(5):
        await cluster.acknowledged(1)
    old = (await cluster.record()).isr_epochs
    await cluster.start(3)
    await cluster.in_sync(1, 2, 3)
    record = await cluster.record()
    assert record.isr_epochs == [*old, cluster.epoch_of(3)]
    await cluster.acknowledged(1)
    assert cluster[3].bytes() == cluster[1].bytes()


async def test_a_follower_that_keeps_up_stays_in_sync_however_long_it_takes(cluster: Cluster) -> None:
    await cluster.create()
    for _ in range(4):
        await cluster.acknowledged(1)
        await cluster.lag()
    await cluster.acknowledged(1)
    assert cluster[1].leader().isr is not None
    assert cluster[1].keeper.changes.transactions == 0


async def test_a_partition_in_which_nothing_happens_is_not_looked_at(cluster: Cluster) -> None:
    await cluster.create(partitions=5)
    await cluster.acknowledged(1)
    await cluster.caught_up(1, 2, 3)
    await cluster.lag(10)
    assert not cluster[1].keeper.watched
    for link in cluster[2].links[1], cluster[3].links[1]:
        await until(lambda link=link: link.under_way and not link.requests[-1].topics)  # type: ignore[misc]
        assert link.requests[-1].max_wait_ms == QUIET_WAIT_MS


async def test_a_follower_that_waits_learns_a_new_high_watermark_soon(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1)
    await until(lambda: cluster[2].follower().high_watermark == cluster[1].leader().high_watermark)
    cluster[3].files.hold()
    _, waiter = cluster.produce(1)
    await cluster.caught_up(1, 2)
    session, fetcher = cluster[1].followers.sessions[2], cluster[2].fetchers.by_leader[1]
    await until(lambda: session.pending is not None and session.epoch == fetcher.epoch)
    waiting = session.pending
    assert waiting is not None
    assert not waiting.is_shortened
    cluster[3].files.let_go()
    await until(lambda: waiter.answers)
    assert waiting.is_shortened
    await until(lambda: cluster[2].follower().high_watermark == cluster[1].leader().high_watermark)


async def test_a_new_leader_goes_on_where_the_old_one_was(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1, 4)
    await cluster.caught_up(1, 2, 3)
    await cluster.kill(1)
    await cluster.elect(2, [2, 3])
    done = await cluster.acknowledged(2, 2)
    assert done.base_offset == 4
    assert cluster[2].content() == [(0, 3, 0), (4, 5, 1)]
    await cluster.caught_up(2, 3)
    await cluster.start(1)
    await cluster.in_sync(1, 2, 3)
    await cluster.caught_up(2, 1)
    assert cluster[1].bytes() == cluster[2].bytes() == cluster[3].bytes()


async def test_what_was_not_acknowledged_and_the_new_leader_lacks_is_cut_off(cluster: Cluster) -> None:
    """An isolated leader appends batches that are not replicated; the logs diverge at the epoch (KIP-101)."""
    await cluster.create()
    await cluster.acknowledged(1, 3)
    await cluster.caught_up(1, 2, 3)
    cluster.cut(2, 1)
    cluster.cut(3, 1)
    _, lost = cluster.produce(1, 5)
    _, lost_too = cluster.produce(1, 1)
    await cluster.elect(2, [2, 3])
    assert lost.answers == lost_too.answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    await cluster.acknowledged(2, 2)
    await cluster.in_sync(1, 2, 3)
    await cluster.acknowledged(2, 1)
    assert cluster[1].content() == cluster[2].content() == [(0, 2, 0), (3, 4, 1), (5, 5, 1)]
    assert cluster[1].bytes() == cluster[2].bytes()


async def test_logs_that_parted_over_several_short_epochs_are_brought_together(cluster: Cluster) -> None:
    """Each leader in turn writes records that the others never get, so that offsets alone do not show the divergence
    (KIP-279)."""
    await cluster.create()
    await cluster.acknowledged(1, 2)
    await cluster.caught_up(1, 2, 3)
    for follower, leader in ((1, 2), (2, 1), (3, 1), (3, 2), (1, 3), (2, 3)):
        cluster.cut(follower, leader)
    cluster.produce(1, 4)  # epoch 0: 2-5 on broker 1 alone
    for leader, count in ((2, 3), (1, 2), (2, 6), (3, 1), (1, 1)):  # epochs 1 to 5
        await cluster.elect(leader, [leader])
        cluster.produce(leader, count)
    await cluster.settled()
    assert cluster[1].content() == [(0, 1, 0), (2, 5, 0), (6, 7, 2), (8, 8, 5)]
    assert cluster[2].content() == [(0, 1, 0), (2, 4, 1), (5, 10, 3)]
    assert cluster[3].content() == [(0, 1, 0), (2, 2, 4)]
    await cluster.elect(2, [2])
    cluster.heal()
    await cluster.in_sync(1, 2, 3)
    await cluster.acknowledged(2, 1)
    expected = [(0, 1, 0), (2, 4, 1), (5, 10, 3), (11, 11, 6)]
    assert [cluster[i].content() for i in (1, 2, 3)] == [expected] * 3
    assert cluster[1].bytes() == cluster[2].bytes() == cluster[3].bytes()


async def test_a_follower_keeps_what_is_above_its_high_watermark_where_the_new_leader_has_it(cluster: Cluster) -> None:
    """The data loss of KIP-101: a follower that truncated to its high watermark and then led would lose committed
    records."""
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1, 3)
    follower = cluster[2].follower()
    await until(lambda: follower.log.end_offset == 3)
    known = follower.high_watermark
    assert known < 3, "the high watermark comes with the next answer"
    await cluster.kill(2)
    await cluster.elect(1, [1])
    await cluster.start(2)
    cluster.cut(2, 1)
    await until(lambda: cluster[2].end() == 3)
    cluster.heal()
    await cluster.in_sync(1, 2)
    await cluster.kill(1)
    await cluster.elect(2, [2])
    assert cluster[2].end() == 3
    assert cluster[2].leader().high_watermark == 3


async def test_the_high_watermark_never_goes_back_on_whoever_leads(cluster: Cluster) -> None:
    await cluster.create()
    highest = 0
    for leader in (1, 2, 3, 1, 2):
        await cluster.elect(leader)
        marks = [cluster[leader].leader().high_watermark]
        for _ in range(3):
            await cluster.acknowledged(leader)
            marks.append(cluster[leader].leader().high_watermark)
        assert marks == sorted(marks)
        assert marks[-1] == highest + 9
        assert marks[0] <= highest
        highest = marks[-1]
        await cluster.caught_up(leader, *({1, 2, 3} - {leader}))


async def test_a_new_leader_does_not_say_where_the_end_is_before_it_knows(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.acknowledged(1, 5)
    await cluster.caught_up(1, 2, 3)
    cluster.cut(1, 2)
    cluster.cut(3, 2)
    await cluster.elect(2)
    leader = cluster[2].leader()
    assert leader.high_watermark < leader.epoch_start == 5
    cluster.heal()
    await until(lambda: leader.high_watermark == 5)


async def test_a_new_leader_that_has_written_nothing_yet_knows_where_its_epoch_begins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower has a later epoch than the leader ever wrote; it truncates only that epoch."""

    async def never(log: PartitionLog, offset: int) -> None:
        raise AssertionError("all of the log would be fetched again")

    monkeypatch.setattr(PartitionLog, "truncate_fully_and_start_at", never)
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1, 2)
    await cluster.caught_up(1, 2)
    cluster.cut(2, 1)
    cluster.cut(1, 2)
    await cluster.elect(2, [2])
    cluster.produce(2, 3)
    await cluster.settled()
    await cluster.elect(1, [1])
    assert cluster[1].leader().end_of_epoch(1) == (0, 2)
    cluster.heal()
    await cluster.in_sync(1, 2)
    assert cluster[2].content() == [(0, 1, 0)]
