"""Fetch for followers: one session per follower, and no work for partitions without changes.

A follower names a partition when its position has changed: its log has grown, more of it is flushed, or the leader
epoch is new. The session caches the positions and subscribes to the leaders; it reads only partitions with changes. A
partition that was answered with records, an error or a divergence waits until the follower names it again.

Responses to a throttled follower are held back until its rate allows more (`replica.throttle`).

`FetchApi` calls it for versions from 15, whose ReplicaState carries the follower's broker epoch (KIP-903).
"""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

from penstock.api.exchange import RequestExchange
from penstock.config.broker import BrokerConfig
from penstock.log.types import LogError, LogSlice, OffsetOutOfRange
from penstock.replica.isr import Member
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.wire.errors import ErrorCode
from penstock.wire.fetch_frame import FetchedPartition, encode_fetch_response
from penstock.wire.messages.fetch import FetchPartition, FetchRequest

FULL, FINAL = 0, -1
"""Session epochs: a new session, and no session."""
MAX_EPOCH = (1 << 31) - 1
MAX_WAIT_MS = 60_000

NOT_SENT = (-1, -1)
PartitionKey = tuple[UUID, int]
FetchResults = list[tuple[PartitionKey, FetchedPartition]]


class FollowerReplica:
    """A follower's position in one partition. Implements `leader.FetchListener`."""

    __slots__ = ("awaits_request", "key", "last_sent", "leader", "request", "session")

    def __init__(self, session: FollowerSession, key: PartitionKey, request: FetchPartition) -> None:
        self.session, self.key, self.request = session, key, request
        self.leader: Leader | None = None
        self.last_sent = NOT_SENT
        """(high watermark, log start offset) of the last response."""
        self.awaits_request = False
        """Whether the follower must name the partition again before the next response about it."""

    def on_append(self, urgent: bool) -> None:
        """Mark the partition ready, unless the follower has to act first."""
        if not self.awaits_request:
            self.session.mark_ready(self, urgent or self.session.is_eager())

    def attach(self, leader: Leader | None) -> None:
        """Subscribe to a leader's role, and to no other."""
        replica_id, old = self.session.replica[0], self.leader
        if old is not None and old.fetch_listeners.get(replica_id) is self:
            del old.fetch_listeners[replica_id]
        self.leader = leader
        if leader is not None:
            leader.fetch_listeners[replica_id] = self


class FollowerSession:
    """The partitions that one incarnation of a follower fetches from this broker."""

    def __init__(self, session_id: int, replica: Member, config: BrokerConfig) -> None:
        self.session_id, self.replica, self.config = session_id, replica, config
        self.epoch = 1
        """Session epoch of the next request."""
        self.followed: dict[PartitionKey, FollowerReplica] = {}
        self.ready: dict[FollowerReplica, None] = {}
        """Partitions with changes, in order of arrival."""
        self.throttled: dict[FollowerReplica, None] = {}
        """Throttled partitions with records to send, in order of arrival."""
        self.throttle_timer: asyncio.TimerHandle | None = None
        self.pending: PendingReplicaFetch | None = None

    def is_eager(self) -> bool:
        """Return whether the follower needs each high watermark at once, because consumers read from it."""
        return self.config.reads_from_followers

    def mark_ready(self, followed: FollowerReplica, urgent: bool) -> None:
        """Queue a partition. An `urgent` change completes the waiting request at once, others soon."""
        if followed in self.throttled:
            return
        self.ready[followed] = None
        if self.pending is not None:
            if urgent:
                self.pending.wake()
            else:
                self.pending.shorten_wait()

    def throttle(self, followed: FollowerReplica, wait_s: float) -> None:
        """Hold a partition back for `wait_s` seconds."""
        self.ready.pop(followed, None)
        self.throttled[followed] = None
        if self.throttle_timer is None:
            self.throttle_timer = asyncio.get_running_loop().call_later(wait_s, self.release_throttled)

    def release_throttled(self) -> None:
        """Make the throttled partitions ready again."""
        self.throttle_timer = None
        self.ready.update(self.throttled)
        self.throttled.clear()
        if self.pending is not None:
            self.pending.resume()

    def remove(self, key: PartitionKey) -> None:
        """Remove a partition from the session."""
        followed = self.followed.pop(key, None)
        if followed is not None:
            self.ready.pop(followed, None)
            self.throttled.pop(followed, None)
            followed.attach(None)

    def close(self) -> None:
        """Complete the waiting request and unsubscribe from all leaders."""
        if self.pending is not None:
            self.pending.finish()
        for key in list(self.followed):
            self.remove(key)
        if self.throttle_timer is not None:
            self.throttle_timer.cancel()


class ReplicaFetchApi:
    """Serves followers. `max_bytes` bounds a response whatever the request says."""

    def __init__(self, replicas: ReplicaManager, max_bytes: int, random: Random) -> None:
        self.replicas, self.max_bytes = replicas, max_bytes
        self.sessions: dict[int, FollowerSession] = {}
        """Sessions by broker id: a follower has one, and a new session replaces it."""
        self.random = random

    def handle(self, request: FetchRequest, version: int, correlation_id: int, exchange: RequestExchange) -> None:
        """Respond now, or when a partition has changes."""
        state = request.replica_state
        session = self.session(request, (state.replica_id, state.replica_epoch))
        if isinstance(session, ErrorCode):
            exchange.reply([*encode_fetch_response(correlation_id, version, session, 0, [])])  # type: ignore[list-item]
            return
        if session.pending is not None:
            session.pending.finish()  # the follower has a new position and no longer waits
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.remove((forgotten.topic_id, index))
        found: FetchResults = []
        for topic in request.topics:
            for partition in topic.partitions:
                self.update_position(session, (topic.topic_id, partition.partition), partition, found)
        fetch = PendingReplicaFetch(self, session, request, version, correlation_id, exchange, found)
        fetch.start()

    def session(self, request: FetchRequest, replica: Member) -> FollowerSession | ErrorCode:
        """Return the session of a request, or an error if the broker epoch or the session does not match."""
        broker = self.replicas.view.brokers.get(replica[0])
        if broker is None or broker.epoch != replica[1]:
            return ErrorCode.STALE_BROKER_EPOCH
        current = self.sessions.get(replica[0])
        if request.session_epoch in (FULL, FINAL):
            if current is not None:
                current.close()
            created = FollowerSession(self.random.randrange(1, 1 << 31), replica, self.replicas.config)
            self.sessions[replica[0]] = created
            return created
        if current is None or current.session_id != request.session_id or current.replica != replica:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if current.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        current.epoch = 1 if current.epoch == MAX_EPOCH else current.epoch + 1
        return current

    def update_position(
        self, session: FollowerSession, key: PartitionKey, request: FetchPartition, found: FetchResults
    ) -> None:
        """Record a follower's position, and its effect on the high watermark and the ISR."""
        followed = session.followed.get(key)
        if followed is None:
            followed = session.followed[key] = FollowerReplica(session, key, request)
        followed.request, followed.awaits_request = request, False
        if request.log_start_offset < followed.last_sent[1]:
            followed.last_sent = NOT_SENT  # the follower lags the log start offset: send it again
        refusal = self.record_position(session, followed)
        if refusal is not None:
            found.append((key, self.await_request(followed, refusal)))
        else:
            session.ready[followed] = None

    def record_position(self, session: FollowerSession, followed: FollowerReplica) -> FetchedPartition | None:
        """Return the error or divergence to send if the follower cannot continue from its position; None if it can."""
        request = followed.request
        leader = self.find_leader(followed)
        if isinstance(leader, FetchedPartition):
            return leader
        log = leader.log
        watermark = leader.replicated_watermark
        offsets = watermark, watermark, log.start_offset
        if request.last_fetched_epoch >= 0:
            epoch, end_offset = leader.end_of_epoch(request.last_fetched_epoch)
            if end_offset < 0:  # the log has no epoch to find the divergence with
                return FetchedPartition(request.partition, ErrorCode.OFFSET_OUT_OF_RANGE, *offsets)
            if epoch < request.last_fetched_epoch or end_offset < request.fetch_offset:
                return FetchedPartition(request.partition, 0, *offsets, diverging=(epoch, end_offset))
        if not log.start_offset <= request.fetch_offset <= log.end_offset:
            return FetchedPartition(request.partition, ErrorCode.OFFSET_OUT_OF_RANGE, *offsets)
        error = leader.record_fetch(
            session.replica, request.fetch_offset, request.flushed_offset, request.log_start_offset
        )
        return FetchedPartition(request.partition, error) if error else None

    def find_leader(self, followed: FollowerReplica) -> Leader | FetchedPartition:
        """Return the leader's role in the follower's leader epoch, or the error to send."""
        request, leader = followed.request, followed.leader
        if leader is None or leader.ended:
            leader = self.replicas.find(*followed.key)
            followed.attach(leader)
        if leader is None:
            error, where = self.replicas.absence(*followed.key)
            return FetchedPartition(request.partition, error, leader=where)
        if request.current_leader_epoch != leader.leader_epoch:
            older = request.current_leader_epoch < leader.leader_epoch
            error = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            return FetchedPartition(request.partition, error, leader=(self.replicas.broker_id, leader.leader_epoch))
        return leader

    def await_request(self, followed: FollowerReplica, answer: FetchedPartition) -> FetchedPartition:
        """Return `answer` after marking the partition as waiting for the follower's next request."""
        followed.awaits_request = True
        followed.session.ready.pop(followed, None)
        return answer

    def read(self, followed: FollowerReplica, left: int, at_least_one: bool) -> FetchedPartition | None:
        """Read a partition up to its log end offset; None if there is nothing to send."""
        request = followed.request
        leader = self.find_leader(followed)
        if isinstance(leader, FetchedPartition):
            return self.await_request(followed, leader)
        log = leader.log
        high, start = leader.replicated_watermark, log.start_offset
        records = None
        try:
            if log.end_offset > request.fetch_offset:
                if left <= 0 and not at_least_one:
                    return None
                max_bytes = max(min(request.partition_max_bytes, left), 0)
                rate = self.throttle_rate(leader, followed.session.replica)
                if rate is not None:
                    bucket, now_s = self.replicas.throttles.leading, asyncio.get_running_loop().time()
                    if not bucket.is_open(rate, now_s):
                        followed.session.throttle(followed, bucket.wait_s(now_s))
                        return None
                    max_bytes = min(max_bytes, rate)
                records = log.read(request.fetch_offset, max_bytes, log.end_offset, at_least_one)
                if records is None:
                    return None  # the size limit is reached: stays ready
                if rate is not None:
                    bucket.charge(records.size, rate, now_s)
        except OffsetOutOfRange:
            answer = FetchedPartition(request.partition, ErrorCode.OFFSET_OUT_OF_RANGE, high, high, start)
            return self.await_request(followed, answer)
        except LogError:
            return self.await_request(followed, FetchedPartition(request.partition, ErrorCode.KAFKA_STORAGE_ERROR))
        followed.session.ready.pop(followed, None)
        if records is None and followed.last_sent == (high, start):
            return None
        followed.last_sent = high, start
        followed.awaits_request = records is not None
        return FetchedPartition(request.partition, 0, high, high, start, records)

    def throttle_rate(self, leader: Leader, replica: Member) -> int | None:
        """Return the follower's replication throttle in bytes per second; None without one or for in-sync replicas."""
        isr = leader.isr
        if isr is None:
            return None
        rate = self.replicas.throttles.send_rate(isr.placed, replica[0], leader.config)
        if rate is None:
            return None
        progress = isr.progress.get(replica[0])
        return None if progress is not None and isr.is_member(progress) else rate


class PendingReplicaFetch:
    """A request until its response."""

    def __init__(
        self,
        api: ReplicaFetchApi,
        session: FollowerSession,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        exchange: RequestExchange,
        found: FetchResults,
    ) -> None:
        self.api, self.session, self.request = api, session, request
        self.version, self.correlation_id, self.exchange = version, correlation_id, exchange
        self.found = found
        self.max_bytes = min(request.max_bytes, api.max_bytes)
        self.completed = self.scheduled = self.is_shortened = False
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Respond at once if there are records or urgent changes; otherwise wait."""
        is_new = self.request.session_epoch in (FULL, FINAL)
        has_bytes = self.collect()
        wait_ms = min(self.request.max_wait_ms, MAX_WAIT_MS)
        has_urgent = any(is_urgent(f) for _, f in self.found) or (self.session.is_eager() and bool(self.found))
        if is_new or has_bytes or has_urgent or wait_ms <= 0:
            self.reply()
            return
        self.session.pending = self
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.finish)
        if self.found or self.session.ready:
            self.shorten_wait()
        self.exchange.on_disconnect(self.finish)

    def wake(self) -> None:
        """Respond at the end of this event loop iteration, with all that changes in it."""
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.finish)

    def shorten_wait(self) -> None:
        """Respond within replica.fetch.wait.max.ms: there are changes that need not be sent at once."""
        if self.is_shortened or self.timer is None:
            return
        self.is_shortened = True
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self.session.config.replica_fetch_wait_max_ms / 1000
        if due_s < self.timer.when():
            self.timer.cancel()
            self.timer = loop.call_at(due_s, self.finish)

    def resume(self) -> None:
        """Respond if the partitions released by the throttle have something urgent."""
        if not self.completed and not self.scheduled:
            self.collect()
            if any(is_urgent(answer) for _, answer in self.found):
                self.reply()
            elif self.found:
                self.shorten_wait()

    def finish(self) -> None:
        """Respond now with the results so far."""
        if not self.completed:
            if not self.exchange.is_disconnected:
                self.collect()
            self.reply()

    def collect(self) -> bool:
        """Add the results of ready partitions within the size limit; return whether they contain records."""
        left, has_records = self.max_bytes, False
        for followed in list(self.session.ready):
            answer = self.api.read(followed, left, not has_records)
            if answer is not None:
                self.found.append((followed.key, answer))
                if answer.records is not None:
                    has_records = True
                    left -= answer.records.size
            elif left <= 0:
                break
        return has_records

    def reply(self) -> None:
        """Send the response, or release the slices if the connection is lost."""
        self.completed = True
        if self.timer is not None:
            self.timer.cancel()
        if self.session.pending is self:
            self.session.pending = None
        if self.exchange.is_disconnected:
            for _, answer in self.found:
                if isinstance(answer.records, LogSlice):
                    answer.records.release()
            return
        topics: dict[str | UUID, list[FetchedPartition]] = {}
        for (topic_id, _), answer in self.found:
            topics.setdefault(topic_id, []).append(answer)
        parts = encode_fetch_response(
            self.correlation_id, self.version, 0, self.session.session_id, list(topics.items())
        )
        self.exchange.reply(parts)  # type: ignore[arg-type]  # the StoredRecords parts are the LogSlices read above


def is_urgent(answer: FetchedPartition) -> bool:
    """Return whether a result must be sent at once: records, an error or a divergence."""
    return bool(answer.error) or answer.diverging is not None or answer.records is not None
