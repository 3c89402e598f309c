"""A follower and its fetcher, with a scripted leader."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest
from log_kit import headers_in
from replica_kit import DataPath, batch_of, until

from penstock.config.broker import BrokerConfig
from penstock.replica.fetcher import BrokerFetcher
from penstock.replica.follower import Follower, FollowerStep
from penstock.replica.lost_leaders import LostLeaders
from penstock.replica.producer_state import ProducerState
from penstock.replica.throttle import Throttles
from penstock.state.view import ClusterView
from penstock.wire.batch import CRC, checksum, stamp
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

TOPIC = UUID(int=9)
EPOCH = 5


class Host:
    """Implements `follower.FollowerHost` and `membership.Membership`."""

    epoch = 77

    def __init__(self) -> None:
        self.throttles = Throttles(ClusterView(), BrokerConfig())
        self.discards = True
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    def may_discard(self) -> bool:
        return self.discards

    def may_serve(self) -> bool:
        return True


def following(path: DataPath, index: int = 0) -> Follower:
    producers = ProducerState()
    log = path.log_dir.open_or_create(TOPIC, "f", index, path.config.topic_defaults, producers)
    return Follower("f", TOPIC, index, EPOCH, log, producers, path.clock, 0, leader_id=1, host=Host())


def records(*places: tuple[int, int], epoch: int = EPOCH) -> memoryview:
    """Return batches as a leader sends them, from (base offset, record count)."""
    content = b""
    for base_offset, count in places:
        batch = batch_of(count)
        stamp(batch, 0, base_offset, epoch)
        content += bytes(batch)
    return memoryview(content)


def answer(content: memoryview | None = None, **more: Any) -> PartitionData:
    return PartitionData(**{"high_watermark": 0, "log_start_offset": 0, "records": content, **more})


def took(follower: Follower, data: PartitionData) -> FollowerStep:
    return follower.apply_fetch(data, follower.position)


async def worked(follower: Follower) -> None:
    await until(lambda: follower.work is None)


async def test_batches_are_appended_as_they_are_with_their_epochs(path: DataPath) -> None:
    follower = following(path)
    content = bytes(records((0, 3), (3, 1), epoch=4)) + bytes(records((4, 2)))
    assert took(follower, answer(memoryview(content))) is FollowerStep.CONTINUE
    assert follower.log.epochs.entries() == [(4, 0), (5, 4)]
    found = follower.log.read(0, 1 << 20, 6, True)
    assert found is not None
    assert found.file.read_at(found.position, found.size) == content
    found.release()


async def test_the_high_watermark_is_the_leaders_and_never_past_the_own_end(path: DataPath) -> None:
    follower = following(path)
    took(follower, answer(records((0, 3)), high_watermark=2))
    assert follower.high_watermark == 2
    took(follower, answer(high_watermark=900))
    assert follower.high_watermark == 3
    took(follower, answer(high_watermark=1))
    assert follower.high_watermark == 3


def spoiled(content: memoryview, position: int) -> memoryview:
    data = bytearray(content)
    data[position] ^= 0x40
    return memoryview(data)


def of_another_kind(position: int, value: int) -> memoryview:
    data = bytearray(records((0, 3)))
    data[position] = value
    CRC.pack_into(data, 17, checksum(memoryview(data), 0, len(data)))
    return memoryview(data)


@pytest.mark.parametrize(
    "content",
    [
        spoiled(records((0, 3)), -1),
        spoiled(records((0, 3)), 17),
        records((0, 3), epoch=EPOCH + 1),
        of_another_kind(16, 1),
        of_another_kind(23, 0xFF),
        memoryview(b"\xff" * 8 + bytes(records((0, 3)))[8:]),
        records((0, 3))[:-1],
    ],
    ids=["record", "crc", "later epoch", "magic", "last offset", "base offset", "cut short"],
)
async def test_what_is_not_a_sound_batch_of_this_epoch_is_not_appended(path: DataPath, content: memoryview) -> None:
    follower = following(path)
    assert took(follower, answer(content)) is FollowerStep.BACK_OFF
    assert follower.log.end_offset == 0


async def test_a_batch_that_lies_before_the_end_or_is_of_an_earlier_epoch_is_not_appended(path: DataPath) -> None:
    follower = following(path)
    took(follower, answer(records((0, 3))))
    for content in (records((0, 3)), records((3, 1), epoch=4)):
        assert took(follower, answer(content)) is FollowerStep.BACK_OFF
    assert follower.log.end_offset == 3


async def test_what_came_before_a_damaged_batch_stays(path: DataPath) -> None:
    follower = following(path)
    content = bytearray(bytes(records((0, 3))) + bytes(records((3, 1))))
    content[-1] ^= 1
    assert took(follower, answer(memoryview(content))) is FollowerStep.BACK_OFF
    assert follower.log.end_offset == 3


async def test_an_answer_to_an_earlier_place_changes_nothing(path: DataPath) -> None:
    follower = following(path)
    before = follower.position
    took(follower, answer(records((0, 3))))
    assert follower.apply_fetch(answer(records((3, 3))), before) is FollowerStep.CONTINUE
    assert follower.log.end_offset == 3


@pytest.mark.parametrize(
    ("diverging", "left"),
    [((2, 7), 7), ((2, 5), 5), ((3, 20), 10), ((4, 11), 11), ((1, 4), 4), ((0, 2), 0)],
)
async def test_a_log_is_cut_to_where_both_agree_on_an_epoch(
    path: DataPath, diverging: tuple[int, int], left: int
) -> None:
    """The log has epoch 1 up to offset 5, 2 up to 10, and 4 up to 15. `diverging` is the leader's (epoch, end)."""
    follower = following(path)
    for epoch, start in ((1, 0), (2, 5), (4, 10)):
        took(follower, answer(records(*((start + i, 1) for i in range(5)), epoch=epoch)))
    data = answer(diverging_epoch=EpochEndOffset(*diverging))
    assert took(follower, data) is FollowerStep.WAIT
    await worked(follower)
    assert follower.log.end_offset == left


async def test_nothing_is_taken_in_while_the_log_is_cut(path: DataPath) -> None:
    follower = following(path)
    took(follower, answer(records((0, 3), (3, 3))))
    assert took(follower, answer(diverging_epoch=EpochEndOffset(EPOCH, 3))) is FollowerStep.WAIT
    assert took(follower, answer(records((6, 1)))) is FollowerStep.WAIT
    await worked(follower)
    assert follower.log.end_offset == 3


class Resting:
    """A consumer's fetch that waits at a follower (KIP-392). Implements `partition.Reader`."""

    def __init__(self, follower: Follower) -> None:
        self.follower, self.ends = follower, list[tuple[int, int]]()
        follower.readers[self] = None

    def on_data(self, grown_bytes: int) -> None:
        """Keep waiting: the fetch needs more data."""

    def on_end(self) -> None:
        """Record the log start and high watermark of the response."""
        self.ends.append((self.follower.log.start_offset, self.follower.high_watermark))


async def test_who_rests_on_a_log_that_begins_anew_or_is_cut_is_answered(path: DataPath) -> None:
    follower = following(path)
    took(follower, answer(records((0, 3), (3, 3)), high_watermark=6))
    reader = Resting(follower)
    assert took(follower, answer(diverging_epoch=EpochEndOffset(EPOCH, 3))) is FollowerStep.WAIT
    await worked(follower)
    assert took(follower, answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=40)) is FollowerStep.WAIT
    await worked(follower)
    assert took(follower, answer(records((38, 4)), log_start_offset=38)) is FollowerStep.WAIT
    await worked(follower)
    assert (follower.log.end_offset, reader.ends) == (42, [(0, 3), (40, 40), (38, 38)])


async def test_who_rests_below_a_cut_of_what_was_not_committed_rests_on(path: DataPath) -> None:
    follower = following(path)
    took(follower, answer(records((0, 3), (3, 3)), high_watermark=3))
    reader = Resting(follower)
    assert took(follower, answer(diverging_epoch=EpochEndOffset(EPOCH, 3))) is FollowerStep.WAIT
    await worked(follower)
    assert (follower.log.end_offset, reader.ends) == (3, [])


async def test_a_full_disk_makes_it_rest(path: DataPath) -> None:
    follower = following(path)
    path.files.fail("append", 28)
    assert took(follower, answer(records((0, 3)))) is FollowerStep.BACK_OFF
    path.files.heal()
    assert took(follower, answer(records((0, 3)))) is FollowerStep.CONTINUE


# The fetcher


class Scripted:
    """A `fetcher.FetchChannel` whose responses come from the test."""

    def __init__(self) -> None:
        self.asked: list[tuple[FetchRequest, asyncio.Future[FetchResponse]]] = []

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        future: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((request, future))
        return await future

    async def close(self) -> None:
        pass

    def reply(self, number: int, *data: PartitionData, error: int = 0) -> None:
        topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=list(data))]
        self.asked[number][1].set_result(FetchResponse(error_code=error, session_id=44, responses=topics))

    async def request(self, number: int) -> FetchRequest:
        await until(lambda: len(self.asked) > number)
        return self.asked[number][0]


def fetcher_of(channel: Scripted) -> BrokerFetcher:
    config = BrokerConfig.from_texts({"replica.fetch.backoff.ms": "1"})
    return BrokerFetcher(1, channel, config, Host(), LostLeaders(ClusterView()))


def named(request: FetchRequest) -> list[tuple[int, int, int, int]]:
    """Return (partition, fetch offset, flushed offset, last epoch) of the partitions in a request."""
    return [
        (p.partition, p.fetch_offset, p.flushed_offset, p.last_fetched_epoch)
        for t in request.topics
        for p in t.partitions
    ]


async def test_a_request_names_only_what_has_changed_and_tells_what_is_on_disk(path: DataPath) -> None:
    channel = Scripted()
    fetcher = fetcher_of(channel)
    followers = [following(path, i) for i in range(3)]
    for follower in followers:
        fetcher.add(follower)
    first = await channel.request(0)
    assert (first.session_id, first.session_epoch, first.replica_state.replica_epoch) == (0, 0, 77)
    assert named(first) == [(i, 0, 0, -1) for i in range(3)]
    channel.reply(0)
    second = await channel.request(1)
    assert (second.session_id, second.session_epoch, named(second)) == (44, 1, [])
    channel.reply(1, answer(records((0, 3)), partition_index=1))
    third = await channel.request(2)
    assert (third.session_epoch, named(third)) == (2, [(1, 3, 3, EPOCH)])
    fetcher.remove(followers[2])
    fourth = await channel.request(3)
    assert [(f.topic_id, f.partitions) for f in fourth.forgotten_topics_data] == [(TOPIC, [2])]
    await fetcher.close()


async def test_a_request_that_hangs_does_not_keep_news_back_and_its_answer_is_no_answer_to_them(
    path: DataPath,
) -> None:
    channel = Scripted()
    fetcher = fetcher_of(channel)
    follower = following(path)
    await follower.log.permit_gaps()
    fetcher.add(follower)
    await channel.request(0)
    channel.reply(0)
    await channel.request(1)
    await follower.log.truncate_fully_and_start_at(5)
    fetcher.on_change(follower)
    assert named(await channel.request(2)) == [(0, 5, 5, -1)]
    channel.reply(1, answer(records((40, 1))))  # a response to offset 0, which would leave a gap
    channel.reply(2, answer(records((5, 2))))
    assert named(await channel.request(3)) == [(0, 7, 7, EPOCH)]
    found = follower.log.read(5, 1 << 20, 7, True)
    assert found is not None
    assert [h.base_offset for h in headers_in(found.file.read_at(found.position, found.size))] == [5]
    found.release()
    await fetcher.close()


async def test_a_leader_counts_as_lost_from_a_failed_fetch_to_its_next_response_and_not_when_it_refuses(
    path: DataPath,
) -> None:
    channel = Scripted()
    fetcher = fetcher_of(channel)
    fetcher.add(following(path))
    await channel.request(0)
    channel.asked[0][1].set_exception(ConnectionResetError("gone"))
    await channel.request(1)
    assert fetcher.lost.is_pending(1)
    channel.reply(1)
    await channel.request(2)
    assert not fetcher.lost.is_pending(1)
    channel.reply(2, error=ErrorCode.STALE_BROKER_EPOCH)
    await channel.request(3)
    assert not fetcher.lost.is_pending(1)
    await fetcher.close()


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.STALE_BROKER_EPOCH])
async def test_where_the_session_is_refused_everything_is_named_again(path: DataPath, error: ErrorCode) -> None:
    channel = Scripted()
    fetcher = fetcher_of(channel)
    fetcher.add(following(path))
    await channel.request(0)
    channel.reply(0)
    await channel.request(1)
    channel.reply(1, error=error)
    again = await channel.request(2)
    assert (again.session_epoch, named(again)) == (0, [(0, 0, 0, -1)])
    await fetcher.close()


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH])
async def test_a_partition_that_is_refused_rests_and_the_others_go_on(path: DataPath, error: ErrorCode) -> None:
    channel = Scripted()
    fetcher = fetcher_of(channel)
    for index in range(2):
        fetcher.add(following(path, index))
    fetcher.partition_backoff_s = 3600.0  # longer than a slow machine stalls; the test ends it below
    await channel.request(0)
    channel.reply(0, answer(partition_index=0, error_code=error), answer(records((0, 1)), partition_index=1))
    assert named(await channel.request(1)) == [(1, 1, 1, EPOCH)]
    assert fetcher.backoff_timer is not None
    fetcher.backoff_timer.cancel()
    fetcher.end_backoff()
    later = await channel.request(2)
    assert named(later) == [(0, 0, 0, -1)], "after a rest, though the other request still hangs"
    await fetcher.close()
