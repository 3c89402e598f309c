"""Fetches from one leader broker for all partitions followed from it, in one fetch session. `ReplicaFetchers` creates
one per leader broker.

A request names only the partitions whose position has changed, so idle ones cost nothing. The leader holds a request
until there is data; if a follower's position changes meanwhile (more is flushed, or it has a new leader epoch), a
second request makes the leader answer the first. After records, the next request waits until they are flushed and
reports that too, so the high watermark advances one round trip after the flush. Throttled partitions (`throttle`) are
not named until the rate permits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.replica.follower import Follower, FollowerPosition, FollowerStep
from penstock.replica.lost_leaders import LostLeaders
from penstock.replica.membership import BrokerMembership
from penstock.replica.throttle import Throttle
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
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
MIN_BACKOFF_S = 0.05
PARTITION_BACKOFF_S = 0.1
"""Backoff of a partition that its leader does not serve now, mostly because one of the views lags."""
MAX_IN_FLIGHT = 2
"""Maximum concurrent requests: one that the leader holds, and one that makes it answer."""

QUIET_WAIT_MS = 5_000
"""Maximum wait of a request while no partition has changes: long, so that idle followers cost little, and short enough
for `replica.lag.time.max.ms` that a connection that was lost in silence is noticed before followers leave the ISR."""

Key = tuple[UUID, int]


def max_wait_ms(config: BrokerConfig) -> int:
    """Return the time in ms that a leader may hold a request. It responds within `replica.fetch.wait.max.ms` of a
    change.
    """
    return max(config.replica_fetch_wait_max_ms, QUIET_WAIT_MS)


class FetchChannel(Protocol):
    """A connection to another broker, reopened after a failure. Responses arrive in request order."""

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Send a Fetch of version 17 or 18. Its records are views that stay valid. Raises OSError.

        Requests leave in call order, also while an earlier one is unanswered.
        """

    async def close(self) -> None:
        """Close the connection."""


class PendingFetchRequest(NamedTuple):
    """A request in flight."""

    response: asyncio.Task[FetchResponse]
    number: int


class LastFetchState(NamedTuple):
    """The position of a partition in the leader's session, and the request that sent it. Results of earlier requests
    are ignored."""

    position: FollowerPosition
    number: int


class BrokerFetcher:
    """The fetch session with one leader broker. Implements `follower.LeaderSource`."""

    def __init__(
        self,
        leader_id: int,
        channel: FetchChannel,
        config: BrokerConfig,
        membership: BrokerMembership,
        lost: LostLeaders,
    ) -> None:
        self.leader_id, self.channel, self.lost = leader_id, channel, lost
        self.config, self.membership = config, membership
        self.followers: dict[Key, Follower] = {}
        self.dirty: dict[Key, None] = {}
        """Partitions to name in the next request."""
        self.forgotten: dict[Key, None] = {}
        """Partitions of the session that are no longer followed from this leader."""
        self.last_sent: dict[Key, LastFetchState] = {}
        self.backing_off: dict[Key, None] = {}
        self.backoff_timer: asyncio.TimerHandle | None = None
        self.partition_backoff_s = PARTITION_BACKOFF_S
        self.throttled: dict[Key, None] = {}
        """Throttled partitions, in the order in which they were throttled."""
        self.throttle_timer: asyncio.TimerHandle | None = None
        self.unflushed: dict[Key, None] = {}
        """Partitions whose last records are not flushed."""
        self.session_id, self.epoch = 0, 0
        self.in_flight: deque[PendingFetchRequest] = deque()
        self.wakeup = asyncio.Event()
        self.backoff_s = MIN_BACKOFF_S
        self.requests = 0
        self.task: asyncio.Task[None] | None = None

    # Followers

    def add(self, follower: Follower) -> None:
        """Start to fetch for a follower."""
        key = follower.key
        self.followers[key] = follower
        follower.source = self
        self.forgotten.pop(key, None)
        self.last_sent.pop(key, None)
        self.backing_off.pop(key, None)
        self.partition_backoff_s = PARTITION_BACKOFF_S
        self.mark_dirty(key)
        if self.task is None:
            self.task = spawn(self.run(), f"fetch-from-{self.leader_id}")

    def remove(self, follower: Follower) -> None:
        """Stop fetching for a follower, unless another role has replaced it."""
        key = follower.key
        if self.followers.get(key) is not follower:
            return
        follower.source = None
        del self.followers[key]
        for table in (self.dirty, self.backing_off, self.throttled, self.unflushed):
            table.pop(key, None)
        if self.last_sent.pop(key, None) is not None:
            self.forgotten[key] = None
        self.wakeup.set()

    def on_change(self, follower: Follower) -> None:
        """Send the follower's new position with the next request."""
        key = follower.key
        if self.followers.get(key) is not follower:
            return
        if follower.is_flushed:
            self.unflushed.pop(key, None)
        if key not in self.backing_off and follower.work is None and not self.is_sent(key, follower):
            self.mark_dirty(key)
        elif not self.unflushed:
            self.wakeup.set()

    def on_failure(self, follower: Follower) -> None:
        """Back off after failed work on the follower's log."""
        self.back_off(follower.key)

    def is_sent(self, key: Key, follower: Follower) -> bool:
        """Return whether the leader's session has the follower's position."""
        sent_state = self.last_sent.get(key)
        return sent_state is not None and sent_state.position == follower.position

    def mark_dirty(self, key: Key) -> None:
        """Name a partition in the next request, and send that soon."""
        if self.try_mark_dirty(key) and not self.unflushed:
            self.wakeup.set()

    def try_mark_dirty(self, key: Key) -> bool:
        """Name a partition in the next request. Returns False if it is throttled."""
        follower = self.followers[key]
        rate = follower.copy_rate
        if rate is not None and not self.throttle_of(follower).is_open(rate, now_s()):
            self.throttle(key, self.throttle_of(follower))
            return False
        self.throttled.pop(key, None)
        self.dirty[key] = None
        return True

    # Throttled partitions

    def throttle_of(self, follower: Follower) -> Throttle:
        """Return the throttle for this broker's fetches."""
        return follower.host.throttles.following

    def throttle(self, key: Key, throttle: Throttle) -> None:
        """Do not fetch a partition until its throttle permits."""
        self.dirty.pop(key, None)
        self.throttled[key] = None
        if self.throttle_timer is None:
            self.throttle_timer = asyncio.get_running_loop().call_later(throttle.wait_s(now_s()), self.resume_throttled)

    def resume_throttled(self) -> None:
        """Retry the throttled partitions."""
        self.throttle_timer = None
        for key in list(self.throttled):
            self.mark_dirty(key)

    def back_off(self, key: Key) -> None:
        """Do not fetch a partition for a while, unless it gets a new role."""
        for table in (self.dirty, self.throttled, self.unflushed):
            table.pop(key, None)
        self.backing_off[key] = None
        if self.backoff_timer is None:
            self.backoff_timer = asyncio.get_running_loop().call_later(self.partition_backoff_s, self.end_backoff)

    def end_backoff(self) -> None:
        """Retry the partitions that are backing off."""
        self.backoff_timer = None
        self.partition_backoff_s = min(2 * self.partition_backoff_s, self.config.replica_fetch_backoff_ms / 1000)
        retried, self.backing_off = self.backing_off, {}
        for key in retried:
            if key in self.followers:
                self.last_sent.pop(key, None)
                self.mark_dirty(key)

    # Requests

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            while True:
                try:
                    await self.run_once()
                    continue
                except OSError as e:
                    self.abort_requests(str(e))
                except Exception as e:  # a programming error must not stop replication
                    report("fetching from a leader failed", e, leader=self.leader_id)
                    self.abort_requests("internal error")
                await asyncio.sleep(self.backoff_s)
                self.backoff_s = min(2 * self.backoff_s, self.config.replica_fetch_backoff_ms / 1000)
        finally:
            for sent in self.in_flight:
                sent.response.cancel()

    async def run_once(self) -> None:
        """Send what is due, and handle the next response."""
        while not (self.followers or self.in_flight):
            self.wakeup.clear()
            await self.wakeup.wait()
        if not self.in_flight:
            await self.wait_for_flush()
            self.send()
        first = self.in_flight[0].response
        while not first.done():
            self.wakeup.clear()
            if self.has_changes and self.session_id and len(self.in_flight) < MAX_IN_FLIGHT:
                self.send()
            await self.wakeup.wait()  # for the response or a change
        sent = self.in_flight.popleft()
        try:
            response = sent.response.result()
        except OSError:
            self.lost.on_lost(self.leader_id)
            raise
        self.lost.on_response(self.leader_id)
        making = self.prepare_logs(response)
        if making:
            await asyncio.wait(making)
        self.handle_response(response, sent)

    @property
    def has_changes(self) -> bool:
        """Whether a request should be sent now."""
        return bool(self.dirty or self.forgotten) and not self.unflushed

    async def wait_for_flush(self) -> None:
        """Wait until the last records are flushed, at most replica.fetch.wait.max.ms."""
        deadline_s = asyncio.get_running_loop().time() + self.config.replica_fetch_wait_max_ms / 1000
        while self.unflushed:
            self.wakeup.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self.wakeup.wait()
            except TimeoutError:
                self.unflushed.clear()

    def send(self) -> None:
        """Send a request."""
        self.requests += 1
        request = self.build_request()
        answer = asyncio.get_running_loop().create_task(self.channel.fetch(request), name="replica-fetch")
        answer.add_done_callback(self.on_response)
        self.in_flight.append(PendingFetchRequest(answer, self.requests))

    def on_response(self, response: asyncio.Task[FetchResponse]) -> None:
        """Wake `run_once`, and retrieve the error, also of an abandoned request."""
        self.wakeup.set()
        if not response.cancelled():
            response.exception()

    def build_request(self) -> FetchRequest:
        """Build a request that names the dirty partitions, or all in a new session."""
        config, is_full = self.config, self.epoch == 0
        if is_full:
            self.forgotten.clear()
            self.last_sent = {}
            self.dirty = {key: None for key in self.followers if key not in self.backing_off}
        topics: dict[UUID, FetchTopic] = {}
        partitions, self.dirty = self.dirty, {}
        throttled_bytes = 0
        for key in partitions:
            follower = self.followers[key]
            if follower.work is not None or follower.log.failed is not None:
                continue  # it reports when its work is done; a failed log is not fetched
            max_bytes, rate = config.replica_fetch_max_bytes, follower.copy_rate
            if rate is not None:
                throttle, max_bytes = self.throttle_of(follower), min(max_bytes, rate)
                if not throttle.is_open(rate, now_s()) or throttled_bytes >= rate:
                    self.throttle(key, throttle)
                    continue
                throttled_bytes += max_bytes
            self.throttled.pop(key, None)
            position = follower.position
            self.last_sent[key] = LastFetchState(position, self.requests)
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(topic_id=key[0], partitions=[])
            topic.partitions.append(encode_partition(key[1], position, max_bytes))
        forgotten: dict[UUID, ForgottenTopic] = {}
        for topic_id, index in self.forgotten:
            forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[])).partitions.append(index)
        self.forgotten.clear()
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=config.node_id, replica_epoch=self.membership.epoch),
            max_wait_ms=max_wait_ms(config),
            min_bytes=1,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=0 if is_full else self.session_id,
            session_epoch=self.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        return request

    # Responses

    def prepare_logs(self, response: FetchResponse) -> set[asyncio.Future[None]]:
        """Create the files of followers that append for the first time, concurrently and off the event loop.

        The response is applied afterwards: roles may have changed meanwhile.
        """
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

    def handle_response(self, response: FetchResponse, sent: PendingFetchRequest) -> None:
        """Apply a response to the followers."""
        if response.error_code:
            self.handle_session_error(response.error_code)
            return
        self.backoff_s = MIN_BACKOFF_S
        self.session_id = response.session_id
        size_bytes = 0
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                follower, sent_state = self.followers.get(key), self.last_sent.get(key)
                if follower is None or sent_state is None or sent_state.number > sent.number:
                    continue
                if data.records:
                    size_bytes += len(data.records)
                    self.charge(follower, len(data.records))
                self.handle_partition(key, follower, data, sent_state.position)
        if 2 * size_bytes >= self.config.replica_fetch_response_max_bytes:
            self.unflushed.clear()  # far behind: do not wait for the flush

    def charge(self, follower: Follower, size_bytes: int) -> None:
        """Charge fetched bytes to the follower's throttle."""
        rate = follower.copy_rate
        if rate is not None:
            self.throttle_of(follower).charge(size_bytes, rate, now_s())

    def handle_partition(self, key: Key, follower: Follower, data: PartitionData, position: FollowerPosition) -> None:
        """Apply the response for one partition."""
        outcome = follower.apply_fetch(data, position)
        if outcome is FollowerStep.BACK_OFF:
            self.back_off(key)
        elif outcome is FollowerStep.WAIT:
            self.dirty.pop(key, None)
            self.last_sent.pop(key, None)
        elif data.records or not self.is_sent(key, follower):
            if not follower.is_flushed:
                self.unflushed[key] = None
            self.try_mark_dirty(key)

    def handle_session_error(self, code: int) -> None:
        """Start a new session. Raises OSError if the leader rejects this broker."""
        stale = self.in_flight
        self.in_flight = deque()
        for other in stale:
            other.response.cancel()
        self.reset_session()
        if code not in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            raise OSError(f"broker {self.leader_id} rejects fetch requests: {ErrorCode(code).name}")

    def abort_requests(self, reason: str) -> None:
        """Cancel all requests and start a new session."""
        logger.info("fetching from a leader interrupted: retrying", leader=self.leader_id, reason=reason)
        for sent in self.in_flight:
            sent.response.cancel()
        self.in_flight.clear()
        self.reset_session()

    def reset_session(self) -> None:
        """Start a new session with the next request."""
        self.session_id = self.epoch = 0
        self.unflushed.clear()

    async def close(self) -> None:
        """Stop fetching and close the connection."""
        for timer in (self.backoff_timer, self.throttle_timer):
            if timer is not None:
                timer.cancel()
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        await self.channel.close()


def now_s() -> float:
    """Return the event loop's time."""
    return asyncio.get_running_loop().time()


def encode_partition(index: int, position: FollowerPosition, max_bytes: int) -> FetchPartition:
    """Return the request's element for a partition."""
    return FetchPartition(
        partition=index,
        current_leader_epoch=position.leader_epoch,
        fetch_offset=position.fetch_offset,
        last_fetched_epoch=position.last_fetched_epoch,
        log_start_offset=position.log_start_offset,
        partition_max_bytes=max_bytes,
        flushed_offset=position.flushed_offset,
    )
