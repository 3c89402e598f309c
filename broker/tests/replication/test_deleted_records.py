"""DeleteRecords with followers: deleted records stay deleted, whichever broker leads next."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable
from uuid import UUID

import pytest
from cluster_kit import Answered, Cluster
from replica_kit import Waiter, until

from penstock.api.exchange import PeerInfo
from penstock.api.log_queries import LogQueriesApi
from penstock.api.routes import RequestContext
from penstock.log.partition_log import PartitionLog
from penstock.replica.deletions import DeletionWaiter
from penstock.replica.isr import IsrChange
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

PEER = PeerInfo(1, "PLAINTEXT", "127.0.0.1", 5)
LONG_MS = 60_000


async def written(cluster: Cluster, *replicas: int) -> UUID:
    """Create a topic and replicate six records to all replicas."""
    topic_id = await cluster.create(replicas=replicas)
    await cluster.acknowledged(1)
    await cluster.acknowledged(1)
    await cluster.caught_up(1, *replicas[1:])
    return topic_id


async def deleted(
    cluster: Cluster, offset: int, timeout_ms: int = LONG_MS, exchange: Answered | None = None
) -> tuple[int, int]:
    """Send DeleteRecords to broker 1 and return (error, low watermark)."""
    named = [DeleteRecordsPartition(partition_index=0, offset=offset)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=named)], timeout_ms=timeout_ms)
    api = LogQueriesApi(cluster[1].replicas)
    (handler,) = [route.handler for route in api.routes() if route.request is DeleteRecordsRequest]
    answer = handler(request, RequestContext(2, 1, None, PEER, exchange or Answered()))
    assert isinstance(answer, Awaitable)
    response = await answer
    assert isinstance(response, DeleteRecordsResponse)
    (result,) = response.topics[0].partitions
    return result.error_code, result.low_watermark


def start_deletion(cluster: Cluster, offset: int, **more: Answered) -> asyncio.Task[tuple[int, int]]:
    return asyncio.ensure_future(deleted(cluster, offset, **more))  # type: ignore[arg-type]


def starts(cluster: Cluster, *brokers: int) -> list[int]:
    """Return the durable log start offsets."""
    logs = [role.log for broker_id in brokers if (role := cluster[broker_id].role()) is not None]
    return [min(log.start_offset, log.durable_start_offset) for log in logs]


async def test_records_deleted_from_an_idle_partition_do_not_come_back_with_the_next_leader(cluster: Cluster) -> None:
    await written(cluster, 1, 2, 3)
    followers = [cluster[broker_id].follower() for broker_id in (2, 3)]
    await until(lambda: all(follower.high_watermark == 6 for follower in followers))
    await cluster[1].leader().log.delete_records_before(6)
    await until(lambda: starts(cluster, 2, 3) == [6, 6])
    await cluster.kill(1)
    await cluster.elect(2, [2, 3])
    assert cluster[2].leader().log.start_offset == 6


async def test_the_answer_waits_for_all_in_sync_replicas(cluster: Cluster) -> None:
    await written(cluster, 1, 2, 3)
    cluster.cut(3, 1)
    answer = start_deletion(cluster, 5)
    await until(lambda: starts(cluster, 1, 2) == [5, 5])
    isr = cluster[1].leader().isr
    assert isr is not None
    await until(lambda: isr.progress[2].log_start_offset == 5)
    assert not answer.done()
    cluster.heal()
    assert await answer == (0, 5)
    assert starts(cluster, 1, 2, 3) == [5, 5, 5]


async def test_a_request_that_hangs_for_want_of_news_delays_nothing(cluster: Cluster) -> None:
    await cluster.restart_all(replica_fetch_wait_max_ms="60000")
    await written(cluster, 1, 2)
    async with asyncio.timeout(60):
        assert await deleted(cluster, 5) == (0, 5)
        assert await deleted(cluster, -1) == (0, 6)


async def test_when_time_is_up_it_is_said_and_the_replicas_delete_when_they_can(cluster: Cluster) -> None:
    await written(cluster, 1, 2)
    cluster.cut(2, 1)
    for timeout_ms in (20, 0, -1):
        assert await deleted(cluster, 5, timeout_ms) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert not cluster[1].leader().deletions
    cluster.heal()
    await until(lambda: starts(cluster, 1, 2) == [5, 5])
    assert await deleted(cluster, 5) == (0, 5)


async def test_a_replica_that_leaves_the_isr_is_waited_for_no_longer(cluster: Cluster) -> None:
    await written(cluster, 1, 2, 3)
    cluster.cut(3, 1)
    answer = start_deletion(cluster, 5)
    isr = cluster[1].leader().isr
    assert isr is not None
    await until(lambda: isr.progress[2].log_start_offset == 5)
    assert not answer.done()
    await cluster.change(isr=[1, 2], isr_epochs=[cluster.epoch_of(1), cluster.epoch_of(2)])
    assert await answer == (0, 5)


async def test_a_replica_that_is_to_join_the_isr_is_waited_for_until_it_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(cluster, 1, 2, 3)
    cluster.cut(3, 1)
    await cluster.change(isr=[1, 2], isr_epochs=[cluster.epoch_of(1), cluster.epoch_of(2)])
    leader, keeper, changes = cluster[1].leader(), cluster[1].keeper, list[IsrChange]()
    monkeypatch.setattr(keeper, "propose", lambda _, change: changes.append(change))
    leader.propose(set(), [(3, cluster.epoch_of(3))])
    answer = start_deletion(cluster, 5)
    isr = leader.isr
    assert isr is not None
    await until(lambda: isr.progress[2].log_start_offset == 5)
    assert not answer.done()
    leader.on_change_refused(changes[0])
    assert await answer == (0, 5)


@pytest.mark.slow
async def test_a_leader_that_is_left_alone_answers(cluster: Cluster) -> None:
    await written(cluster, 1, 2)
    cluster.cut(2, 1)
    answer = start_deletion(cluster, 5)
    await until(lambda: cluster[1].leader().deletions)
    await cluster.change(replicas=[1], isr=[1], isr_epochs=[cluster.epoch_of(1)])
    assert await answer == (0, 5)


async def test_a_leader_that_is_replaced_meanwhile_says_so(cluster: Cluster) -> None:
    await written(cluster, 1, 2)
    cluster.cut(2, 1)
    answer = start_deletion(cluster, 5)
    await until(lambda: cluster[1].leader().deletions)
    await cluster.elect(2, [2])
    assert await answer == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_a_leader_that_was_replaced_and_does_not_know_promises_nothing(cluster: Cluster) -> None:
    await written(cluster, 1, 2)
    await cluster.deafen(1)
    await cluster.elect(2, [2])
    assert await deleted(cluster, 5, 20) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert starts(cluster, 2) == [0]


async def test_a_role_that_is_over_answers_at_once(cluster: Cluster) -> None:
    await written(cluster, 1, 2)
    leader, waiter = cluster[1].leader(), Waiter()
    await cluster.elect(2)
    leader.when_deleted(DeletionWaiter(0, waiter))
    assert waiter.answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    cluster[1].log_dir.fail(OSError(errno.EIO, "planted"))
    leader.when_deleted(DeletionWaiter(0, waiter))
    assert waiter.answers[1:] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert not leader.deletions


async def test_a_disk_that_fails_while_replicas_are_waited_for_is_a_storage_error(cluster: Cluster) -> None:
    await written(cluster, 1, 2)
    cluster.cut(2, 1)
    answer = start_deletion(cluster, 5)
    await until(lambda: cluster[1].leader().deletions)
    cluster[1].log_dir.fail(OSError(errno.EIO, "planted"))
    assert await answer == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


async def test_nobody_waits_for_a_client_that_has_gone(cluster: Cluster) -> None:
    await written(cluster, 1, 2)
    cluster.cut(2, 1)
    exchange = Answered()
    answer = start_deletion(cluster, 5, exchange=exchange)
    leader = cluster[1].leader()
    await until(lambda: leader.deletions)
    exchange.frame.cancel()
    exchange.lose()
    await until(answer.done)
    assert not leader.deletions


async def test_what_a_follower_could_not_delete_is_told_it_again(cluster: Cluster) -> None:
    """A follower's deletion counts once it is durable."""
    await written(cluster, 1, 2)
    cluster[2].files.fail("write_atomic", errno.ENOSPC)
    answer = start_deletion(cluster, 5)
    follower = cluster[2].follower()
    await until(lambda: follower.log.start_offset == 5 and not follower.is_moving_start)
    assert starts(cluster, 2) == [0]
    assert not answer.done()
    cluster[2].files.heal()
    await cluster.acknowledged(1)
    assert await answer == (0, 5)
    assert starts(cluster, 1, 2) == [5, 5]


@pytest.mark.slow
async def test_deletions_that_follow_upon_each_other_all_reach_the_followers(cluster: Cluster) -> None:
    await written(cluster, 1, 2, 3)
    answers = await asyncio.gather(*[deleted(cluster, offset) for offset in (2, 1, 5, 4, 3)])
    assert {error for error, _ in answers} == {0}
    assert all(low >= offset for (_, low), offset in zip(answers, (2, 1, 5, 4, 3), strict=True))
    assert starts(cluster, 1, 2, 3) == [5, 5, 5]


@pytest.mark.slow
async def test_a_deletion_that_comes_while_the_one_before_is_under_way_reaches_the_followers_too(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = await written(cluster, 1, 2)
    follower, goes_on, real = cluster[2].follower(), asyncio.Event(), PartitionLog.delete_records_before

    async def slow(log: PartitionLog, offset: int) -> None:
        if log is follower.log:
            await goes_on.wait()
        await real(log, offset)

    monkeypatch.setattr(PartitionLog, "delete_records_before", slow)
    first = start_deletion(cluster, 2)
    await until(lambda: follower.is_moving_start)
    second = start_deletion(cluster, 5)
    place = cluster[1].followers.sessions[2].followed[topic_id, 0]
    await until(lambda: place.last_sent == (6, 5))
    goes_on.set()
    for answer, offset in ((first, 2), (second, 5)):
        error, low_watermark = await answer
        assert (error, low_watermark >= offset) == (0, True)
    assert starts(cluster, 1, 2) == [5, 5]
