"""A follower's first appends: files are created off the event loop, and the fetcher waits for them."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

from cluster_kit import Broker, Cluster
from replica_kit import batch_of, until

from penstock.replica.follower import Follower

PARTITIONS = 30


def made_on_loop(broker: Broker) -> list[str]:
    """Return the paths of t's partitions that the event loop created."""
    loop = threading.main_thread().name
    topic_id = str(broker.view.topics["t"].topic_id)
    return [name for name, thread in broker.files.made_by.items() if topic_id in name and thread == loop]


async def followed(broker: Broker, index: int = 0) -> Follower:
    """Return the partition's follower, once the broker has it."""
    await until(lambda: broker.replicas.find_follower("t", index) is not None)
    return broker.follower(index=index)


async def test_followers_make_the_files_of_many_new_partitions_off_the_event_loop(cluster: Cluster) -> None:
    await cluster.create(partitions=PARTITIONS)
    for index in range(PARTITIONS):
        cluster[1].leader(index=index).append(batch_of(2))
    for index in range(PARTITIONS):
        await cluster.caught_up(1, 2, 3, index=index)
    for follower in (cluster[2], cluster[3]):
        assert made_on_loop(follower) == []
        assert all(follower.content(index=n) == [(0, 1, 0)] for n in range(PARTITIONS))


async def test_a_follower_goes_on_when_its_files_are_made_and_holds_up_nobody_else(cluster: Cluster) -> None:
    await cluster.create()
    cluster[2].files.hold_making()
    leader = cluster[1].leader()
    leader.append(batch_of(2))
    await until(lambda: cluster[3].end() == 2)
    assert (cluster[2].end(), leader.high_watermark) == (0, 0)
    cluster[2].files.let_go()
    await cluster.caught_up(1, 2, 3)
    await until(lambda: leader.high_watermark == 2)
    assert made_on_loop(cluster[2]) == []


async def test_a_follower_that_comes_to_lead_while_its_files_are_made_has_lost_nothing_that_counts(
    cluster: Cluster,
) -> None:
    await cluster.create()
    cluster[2].files.hold_making()
    cluster[1].leader().append(batch_of(2))
    await until(lambda: cluster[3].end() == 2)
    follower = await followed(cluster[2])
    await until(lambda: follower.log.creation is not None)
    await cluster.elect(2)
    leader = cluster[2].leader()
    cluster[2].files.let_go()
    await until(lambda: leader.log.active is not None)
    assert leader.log.end_offset == 0, "data of the last leader is no longer appended"
    await cluster.acknowledged(2, 5)
    await cluster.caught_up(2, 1, 3)
    assert [cluster[n].content() for n in (1, 2, 3)] == [[(0, 4, 1)]] * 3


async def test_a_follower_whose_files_find_no_space_tries_again(cluster: Cluster) -> None:
    await cluster.create(partitions=2)
    full = (await followed(cluster[2])).log
    cluster[2].files.fail("create", errno.ENOSPC, lambda path: path.startswith(full.directory))
    for index in (0, 1):
        cluster[1].leader(index=index).append(batch_of(2))
    await cluster.caught_up(1, 2, 3, index=1)
    assert (cluster[2].end(index=0), cluster[2].log_dir.failed) == (0, None)
    cluster[2].files.heal()
    await cluster.caught_up(1, 2, 3, index=0)
    assert cluster[2].content(index=0) == [(0, 1, 0)]


async def test_a_topic_deleted_while_a_follower_makes_its_files_leaves_nothing(cluster: Cluster) -> None:
    await cluster.create()
    cluster[2].files.hold_making()
    cluster[1].leader().append(batch_of(2))
    follower = await followed(cluster[2])
    await until(lambda: follower.log.creation is not None)
    cluster[2].replicas.remove_role(follower)
    follower.on_deleted()
    deletion = cluster[2].log_dir.delete_partition(follower.topic_id, 0)
    await asyncio.sleep(0.01)
    assert not deletion.done()
    cluster[2].files.let_go()
    await deletion
    assert not Path(follower.log.directory).exists()


async def test_a_follower_that_starts_anew_makes_nothing_on_the_event_loop(cluster: Cluster) -> None:
    await cluster.create(replicas=(1, 2))
    await cluster.acknowledged(1, 3)
    await cluster.acknowledged(1, 3)
    await cluster[1].leader().log.delete_records_before(3)
    await cluster.change(replicas=[1, 2, 3])
    await until(lambda: cluster[3].role() is not None and cluster[3].end() == 6)
    role = cluster[3].role()
    assert role is not None
    await until(lambda: role.log.start_offset == 3)
    assert made_on_loop(cluster[3]) == []
