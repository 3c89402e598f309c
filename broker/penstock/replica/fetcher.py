"""Fetches from one leader broker for all partitions that are followed from it: one session, one request at a time.

Only partitions whose place has changed are named in a request, so that idle ones cost nothing. A request hangs at the
leader until there is something to tell; when a follower has news meanwhile (more of its log is on disk, it was given a
new leader), a second one is sent, which has the leader answer the first. After records have come, the next request
waits until they are on disk, and so reports that too: the high watermark moves a round trip after the flush.

Partitions that are throttled (`throttle`) are held back, which is not to name them, until what came has been paid for.

`ReplicaFetchers` makes one for each broker that leads something which is followed here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.replica.follower import Follower, FollowerPosition, FollowerStep
from penstock.replica.membership import ReplicaMembership
from penstock.replica.throttle import Throttle
from penstock.runtime.logging import get_logger
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

logger = get_logger("penstock.replica")

MAX_EPOCH = (1 << 31) - 1
FIRST_BACKOFF_S = 0.05
REST_S = 0.1
"""How long a partition rests that its leader does not serve for now: mostly one of the two views is a little behind."""
IN_FLIGHT = 2
"""Requests at once: one that hangs at the leader, and one that ends that."""

Key = tuple[UUID, int]


class FetchChannel(Protocol):
    """A connection to another broker, made anew where it was lost. Answers come in the order of the requests."""

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Sends a Fetch of version 17 or 18, whose records are views that stay valid. Raises OSError where it fails.

        Requests leave in the order of the calls, also while an earlier one is unanswered.
        """

    async def close(self) -> None: ...


class PendingFetchRequest(NamedTuple):
    """A request under way."""

    answer: asyncio.Task[FetchResponse]
    number: int


class LastFetchState(NamedTuple):
    """What the leader's session has of a partition, and by which request; answers to earlier ones are void."""

    place: FollowerPosition
    number: int


class BrokerFetcher:
    """See the module. Implements `follower.Source`."""

    def __init__(
        self, leader_id: int, channel: FetchChannel, config: BrokerConfig, membership: ReplicaMembership
    ) -> None:
        self.leader_id, self.channel = leader_id, channel
        self.config, self.membership = config, membership
        self.followers: dict[Key, Follower] = {}
        self.dirty: dict[Key, None] = {}
        """Partitions to be named in the next request."""
        self.forgotten: dict[Key, None] = {}
        """Partitions in the session that are no longer followed from here."""
        self.told: dict[Key, LastFetchState] = {}
        self.resting: dict[Key, None] = {}
        self.rest_timer: asyncio.TimerHandle | None = None
        self.rest_s = REST_S
        self.held: dict[Key, None] = {}
        """Throttled partitions, in the order in which they have waited."""
        self.hold_timer: asyncio.TimerHandle | None = None
        self.unflushed: dict[Key, None] = {}
        """Partitions whose last records are not on disk."""
        self.session_id, self.epoch = 0, 0
        self.sent: deque[PendingFetchRequest] = deque()
        self.news = asyncio.Event()
        self.backoff_s = FIRST_BACKOFF_S
        self.requests = 0
        self.task: asyncio.Task[None] | None = None

    # What followers say

    def add(self, follower: Follower) -> None:
        key = follower.key
        self.followers[key] = follower
        follower.source = self
        self.forgotten.pop(key, None)
        self.told.pop(key, None)
        self.resting.pop(key, None)
        self.rest_s = REST_S
        self.name(key)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.run(), name=f"fetch-from-{self.leader_id}")

    def remove(self, follower: Follower) -> None:
        key = follower.key
        if self.followers.get(key) is not follower:
            return
        follower.source = None
        del self.followers[key]
        for table in (self.dirty, self.resting, self.held, self.unflushed):
            table.pop(key, None)
        if self.told.pop(key, None) is not None:
            self.forgotten[key] = None
        self.news.set()

    def on_change(self, follower: Follower) -> None:
        key = follower.key
        if self.followers.get(key) is not follower:
            return
        if follower.is_flushed:
            self.unflushed.pop(key, None)
        if key not in self.resting and follower.work is None and not self.is_told(key, follower):
            self.name(key)
        elif not self.unflushed:
            self.news.set()

    def on_trouble(self, follower: Follower) -> None:
        self.rest(follower.key)

    def is_told(self, key: Key, follower: Follower) -> bool:
        told = self.told.get(key)
        return told is not None and told.place == follower.place

    def name(self, key: Key) -> None:
        if self.queue(key) and not self.unflushed:
            self.news.set()

    def queue(self, key: Key) -> bool:
        """Has a partition named in the next request; whether it will be."""
        follower = self.followers[key]
        rate = follower.copy_rate
        if rate is not None and not self.throttle_of(follower).is_open(rate, now_s()):
            self.hold(key, self.throttle_of(follower))
            return False
        self.held.pop(key, None)
        self.dirty[key] = None
        return True

    # Throttled partitions

    def throttle_of(self, follower: Follower) -> Throttle:
        return follower.host.throttles.following

    def hold(self, key: Key, throttle: Throttle) -> None:
        """Leaves a partition alone until there is room for it."""
        self.dirty.pop(key, None)
        self.held[key] = None
        if self.hold_timer is None:
            self.hold_timer = asyncio.get_running_loop().call_later(throttle.wait_s(now_s()), self.end_hold)

    def end_hold(self) -> None:
        self.hold_timer = None
        for key in list(self.held):
            self.name(key)

    def rest(self, key: Key) -> None:
        """Leaves a partition alone for a while; a new role for it ends that."""
        for table in (self.dirty, self.held, self.unflushed):
            table.pop(key, None)
        self.resting[key] = None
        if self.rest_timer is None:
            self.rest_timer = asyncio.get_running_loop().call_later(self.rest_s, self.end_rest)

    def end_rest(self) -> None:
        self.rest_timer = None
        self.rest_s = min(2 * self.rest_s, self.config.replica_fetch_backoff_ms / 1000)
        rested, self.resting = self.resting, {}
        for key in rested:
            if key in self.followers:
                self.told.pop(key, None)
                self.name(key)

    # Requests

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.step()
                    continue
                except OSError as e:
                    self.lose(str(e))
                except Exception:  # a bug of ours: the broker goes on following
                    logger.exception("fetching from a leader failed", leader=self.leader_id)
                    self.lose("see above")
                await asyncio.sleep(self.backoff_s)
                self.backoff_s = min(2 * self.backoff_s, self.config.replica_fetch_backoff_ms / 1000)
        finally:
            for sent in self.sent:
                sent.answer.cancel()

    async def step(self) -> None:
        """Sends what there is to send, and takes in the next answer."""
        while not (self.followers or self.sent):
            self.news.clear()
            await self.news.wait()
        if not self.sent:
            await self.until_flushed()
            self.send()
        first = self.sent[0].answer
        while not first.done():
            self.news.clear()
            if self.has_news and self.session_id and len(self.sent) < IN_FLIGHT:
                self.send()
            await self.first_of(first)
        sent = self.sent.popleft()
        response = sent.answer.result()
        making = self.prepare(response)
        if making:
            await asyncio.wait(making)
        self.take(response, sent)

    @property
    def has_news(self) -> bool:
        return bool(self.dirty or self.forgotten) and not self.unflushed

    async def first_of(self, answer: asyncio.Task[FetchResponse]) -> None:
        """Returns when there is an answer, or news."""
        news = asyncio.ensure_future(self.news.wait())
        try:
            await asyncio.wait([answer, news], return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    async def until_flushed(self) -> None:
        """Waits until what came is on disk, but not for longer than the leader would."""
        deadline_s = asyncio.get_running_loop().time() + self.config.replica_fetch_wait_max_ms / 1000
        while self.unflushed:
            self.news.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self.news.wait()
            except TimeoutError:
                self.unflushed.clear()

    def send(self) -> None:
        self.requests += 1
        request = self.request()
        answer = asyncio.get_running_loop().create_task(self.channel.fetch(request), name="replica-fetch")
        answer.add_done_callback(lambda task: task.cancelled() or task.exception())  # also of those that are given up
        self.sent.append(PendingFetchRequest(answer, self.requests))

    def request(self) -> FetchRequest:
        """Names what has changed; in a new session, everything that can be fetched."""
        config, is_full = self.config, self.epoch == 0
        if is_full:
            self.forgotten.clear()
            self.told = {}
            self.dirty = {key: None for key in self.followers if key not in self.resting}
        topics: dict[UUID, FetchTopic] = {}
        named, self.dirty = self.dirty, {}
        throttled_bytes = 0
        for key in named:
            follower = self.followers[key]
            if follower.work is not None or follower.log.failed is not None:
                continue  # it says when work is done; a failed log is fetched for no more
            max_bytes, rate = config.replica_fetch_max_bytes, follower.copy_rate
            if rate is not None:
                throttle, max_bytes = self.throttle_of(follower), min(max_bytes, rate)
                if not throttle.is_open(rate, now_s()) or throttled_bytes >= rate:
                    self.hold(key, throttle)
                    continue
                throttled_bytes += max_bytes
            self.held.pop(key, None)
            place = follower.place
            self.told[key] = LastFetchState(place, self.requests)
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(topic_id=key[0], partitions=[])
            topic.partitions.append(asked_of(key[1], place, max_bytes))
        forgotten: dict[UUID, ForgottenTopic] = {}
        for topic_id, index in self.forgotten:
            forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[])).partitions.append(index)
        self.forgotten.clear()
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=config.node_id, replica_epoch=self.membership.epoch),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=1,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=0 if is_full else self.session_id,
            session_epoch=self.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        return request

    # Answers

    def prepare(self, response: FetchResponse) -> set[asyncio.Future[None]]:
        """Has the files made of followers that are about to append for the first time: of all at once, and not on the
        event loop. What they are done with is looked at when that is over: roles may have changed meanwhile."""
        making = set()
        for topic in response.responses:
            for data in topic.partitions:
                if data.records:
                    follower = self.followers.get((topic.topic_id, data.partition_index))
                    if follower is not None and follower.log.active is None and follower.work is None:
                        made = follower.log.prepare()
                        if made is not None:
                            making.add(made)
        return making

    def take(self, response: FetchResponse, sent: PendingFetchRequest) -> None:
        if response.error_code:
            self.lose_session(response.error_code)
            return
        self.backoff_s = FIRST_BACKOFF_S
        self.session_id = response.session_id
        size_bytes = 0
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                follower, told = self.followers.get(key), self.told.get(key)
                if follower is None or told is None or told.number > sent.number:
                    continue
                if data.records:
                    size_bytes += len(data.records)
                    self.charge(follower, len(data.records))
                self.take_one(key, follower, data, told.place)
        if 2 * size_bytes >= self.config.replica_fetch_response_max_bytes:
            self.unflushed.clear()  # there is much to catch up with: the next records need not wait for the disk

    def charge(self, follower: Follower, size_bytes: int) -> None:
        rate = follower.copy_rate
        if rate is not None:
            self.throttle_of(follower).take(size_bytes, rate, now_s())

    def take_one(self, key: Key, follower: Follower, data: PartitionData, place: FollowerPosition) -> None:
        outcome = follower.take(data, place)
        if outcome is FollowerStep.REST:
            self.rest(key)
        elif outcome is FollowerStep.WAIT:
            self.dirty.pop(key, None)
            self.told.pop(key, None)
        elif data.records or not self.is_told(key, follower):
            if not follower.is_flushed:
                self.unflushed[key] = None
            self.queue(key)

    def lose_session(self, code: int) -> None:
        """The leader does not know our session (it was restarted, say), or not us."""
        stale = self.sent
        self.sent = deque()
        for other in stale:
            other.answer.cancel()
        self.begin_session()
        if code not in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            raise OSError(f"broker {self.leader_id} refuses to be fetched from: {ErrorCode(code).name}")

    def lose(self, reason: str) -> None:
        logger.info("fetching from a leader is interrupted", leader=self.leader_id, reason=reason)
        for sent in self.sent:
            sent.answer.cancel()
        self.sent.clear()
        self.begin_session()

    def begin_session(self) -> None:
        self.session_id = self.epoch = 0
        self.unflushed.clear()

    async def close(self) -> None:
        for timer in (self.rest_timer, self.hold_timer):
            if timer is not None:
                timer.cancel()
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        await self.channel.close()


def now_s() -> float:
    return asyncio.get_running_loop().time()


def asked_of(index: int, place: FollowerPosition, max_bytes: int) -> FetchPartition:
    return FetchPartition(
        partition=index,
        current_leader_epoch=place.leader_epoch,
        fetch_offset=place.fetch_offset,
        last_fetched_epoch=place.last_fetched_epoch,
        log_start_offset=place.log_start_offset,
        partition_max_bytes=max_bytes,
        flushed_offset=place.flushed_offset,
    )
