"""Fetch, as followers ask for it: one session for each, and no work for partitions in which nothing happens.

A follower names a partition when its place there is another: its log has grown, more of it is on disk, the leader epoch
has changed. The session remembers these places and hangs on the leaders, which say when there is news; only partitions
with news are looked at. What was answered with records, an error or a divergence waits until it is named again.

What a throttled follower asks for is held back until what it got has been paid for (`replica.throttle`).

Called by `FetchApi` for versions from 15 on, whose ReplicaState tells the follower's incarnation (KIP-903).
"""

from __future__ import annotations

import asyncio
import random
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
"""Session epochs: a new session, and none."""
MAX_EPOCH = (1 << 31) - 1
MAX_WAIT_MS = 60_000

UNTOLD = (-1, -1)
Key = tuple[UUID, int]
Found = list[tuple[Key, FetchedPartition]]


class FollowerReplica:
    """A follower's place in one partition. Implements `leader.Tail`."""

    __slots__ = ("asked", "awaited", "key", "leader", "session", "told")

    def __init__(self, session: FollowerSession, key: Key, asked: FetchPartition) -> None:
        self.session, self.key, self.asked = session, key, asked
        self.leader: Leader | None = None
        self.told = UNTOLD
        """(high watermark, log start offset) of the last answer."""
        self.awaited = False
        """Whether the follower has to name it again before there is anything to tell."""

    def on_news(self, urgent: bool) -> None:
        if not self.awaited:
            self.session.note(self, urgent or self.session.is_eager())

    def attach(self, leader: Leader | None) -> None:
        """Hangs on a leader's role, and on no other."""
        replica_id, old = self.session.replica[0], self.leader
        if old is not None and old.tails.get(replica_id) is self:
            del old.tails[replica_id]
        self.leader = leader
        if leader is not None:
            leader.tails[replica_id] = self


class FollowerSession:
    """All that one incarnation of a follower fetches from this broker."""

    def __init__(self, session_id: int, replica: Member, config: BrokerConfig) -> None:
        self.session_id, self.replica, self.config = session_id, replica, config
        self.epoch = 1
        """Of the next request."""
        self.followed: dict[Key, FollowerReplica] = {}
        self.ready: dict[FollowerReplica, None] = {}
        """Partitions with something to tell, in the order in which it came."""
        self.held: dict[FollowerReplica, None] = {}
        """Throttled partitions with records to send, in the order in which they have waited."""
        self.hold_timer: asyncio.TimerHandle | None = None
        self.pending: PendingReplicaFetch | None = None

    def is_eager(self) -> bool:
        """Whether the follower is to know each high watermark at once, for the sake of consumers that read there."""
        return self.config.reads_from_followers

    def note(self, followed: FollowerReplica, urgent: bool) -> None:
        if followed in self.held:
            return
        self.ready[followed] = None
        if urgent and self.pending is not None:
            self.pending.wake()

    def hold(self, followed: FollowerReplica, wait_s: float) -> None:
        self.ready.pop(followed, None)
        self.held[followed] = None
        if self.hold_timer is None:
            self.hold_timer = asyncio.get_running_loop().call_later(wait_s, self.end_hold)

    def end_hold(self) -> None:
        self.hold_timer = None
        self.ready.update(self.held)
        self.held.clear()
        if self.pending is not None:
            self.pending.resume()

    def drop(self, key: Key) -> None:
        followed = self.followed.pop(key, None)
        if followed is not None:
            self.ready.pop(followed, None)
            self.held.pop(followed, None)
            followed.attach(None)

    def close(self) -> None:
        if self.pending is not None:
            self.pending.finish()
        for key in list(self.followed):
            self.drop(key)
        if self.hold_timer is not None:
            self.hold_timer.cancel()


class ReplicaFetchApi:
    """Serves what followers fetch. `max_bytes` bounds an answer, whatever is asked for."""

    def __init__(self, replicas: ReplicaManager, max_bytes: int, seed: int | None = None) -> None:
        self.replicas, self.max_bytes = replicas, max_bytes
        self.sessions: dict[int, FollowerSession] = {}
        """By broker id: a follower has one, and a new one ends the old."""
        self.random = random.Random(seed)  # noqa: S311

    def handle(self, request: FetchRequest, version: int, correlation_id: int, exchange: RequestExchange) -> None:
        """Answers now, or when there is something to tell."""
        state = request.replica_state
        session = self.session(request, (state.replica_id, state.replica_epoch))
        if isinstance(session, ErrorCode):
            exchange.reply([*encode_fetch_response(correlation_id, version, session, 0, [])])  # type: ignore[list-item]
            return
        if session.pending is not None:
            session.pending.finish()  # the follower has news of its own, and does not wait any more
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.drop((forgotten.topic_id, index))
        found: Found = []
        for topic in request.topics:
            for asked in topic.partitions:
                self.take(session, (topic.topic_id, asked.partition), asked, found)
        fetch = PendingReplicaFetch(self, session, request, version, correlation_id, exchange, found)
        fetch.start()

    def session(self, request: FetchRequest, replica: Member) -> FollowerSession | ErrorCode:
        """The session that a request belongs to; an error where its broker is not who it says."""
        broker = self.replicas.view.brokers.get(replica[0])
        if broker is None or broker.epoch != replica[1]:
            return ErrorCode.STALE_BROKER_EPOCH
        present = self.sessions.get(replica[0])
        if request.session_epoch in (FULL, FINAL):
            if present is not None:
                present.close()
            made = FollowerSession(self.random.randrange(1, 1 << 31), replica, self.replicas.config)
            self.sessions[replica[0]] = made
            return made
        if present is None or present.session_id != request.session_id or present.replica != replica:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if present.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        present.epoch = 1 if present.epoch == MAX_EPOCH else present.epoch + 1
        return present

    def take(self, session: FollowerSession, key: Key, asked: FetchPartition, found: Found) -> None:
        """Takes in a place that a follower names, and what follows from it for the high watermark and the ISR."""
        followed = session.followed.get(key)
        if followed is None:
            followed = session.followed[key] = FollowerReplica(session, key, asked)
        followed.asked, followed.awaited = asked, False
        if asked.log_start_offset < followed.told[1]:
            followed.told = UNTOLD  # it has not heard where the log starts now, or could not follow: it is told again
        refusal = self.record(session, followed)
        if refusal is not None:
            found.append((key, self.final(followed, refusal)))
        else:
            session.ready[followed] = None

    def record(self, session: FollowerSession, followed: FollowerReplica) -> FetchedPartition | None:
        """What to answer where a follower's place is not one that it can go on from."""
        asked = followed.asked
        leader = self.leader_of(followed)
        if isinstance(leader, FetchedPartition):
            return leader
        log = leader.log
        marks = leader.high_watermark, leader.high_watermark, log.start_offset
        if asked.last_fetched_epoch >= 0:
            epoch, end_offset = leader.end_of_epoch(asked.last_fetched_epoch)
            if end_offset < 0:  # nothing of this log tells where they part
                return FetchedPartition(asked.partition, ErrorCode.OFFSET_OUT_OF_RANGE, *marks)
            if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
                return FetchedPartition(asked.partition, 0, *marks, diverging=(epoch, end_offset))
        if not log.start_offset <= asked.fetch_offset <= log.end_offset:
            return FetchedPartition(asked.partition, ErrorCode.OFFSET_OUT_OF_RANGE, *marks)
        error = leader.record_fetch(session.replica, asked.fetch_offset, asked.flushed_offset, asked.log_start_offset)
        return FetchedPartition(asked.partition, error) if error else None

    def leader_of(self, followed: FollowerReplica) -> Leader | FetchedPartition:
        """The role to read from, in the epoch that the follower knows; else the error to answer with."""
        asked, leader = followed.asked, followed.leader
        if leader is None or leader.ended:
            leader = self.replicas.find(*followed.key)
            followed.attach(leader)
        if leader is None:
            error, where = self.replicas.absence(*followed.key)
            return FetchedPartition(asked.partition, error, leader=where)
        if asked.current_leader_epoch != leader.leader_epoch:
            older = asked.current_leader_epoch < leader.leader_epoch
            error = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            return FetchedPartition(asked.partition, error, leader=(self.replicas.broker_id, leader.leader_epoch))
        return leader

    def final(self, followed: FollowerReplica, answer: FetchedPartition) -> FetchedPartition:
        """Marks a partition as answered in a way that the follower has to act on."""
        followed.awaited = True
        followed.session.ready.pop(followed, None)
        return answer

    def read(self, followed: FollowerReplica, left: int, at_least_one: bool) -> FetchedPartition | None:
        """What there is to tell of a partition, up to the end of its log; None where nothing is."""
        asked = followed.asked
        leader = self.leader_of(followed)
        if isinstance(leader, FetchedPartition):
            return self.final(followed, leader)
        log = leader.log
        high, start = leader.high_watermark, log.start_offset
        records = None
        try:
            if log.end_offset > asked.fetch_offset:
                if left <= 0 and not at_least_one:
                    return None
                max_bytes = max(min(asked.partition_max_bytes, left), 0)
                rate = self.rate_of(leader, followed.session.replica)
                if rate is not None:
                    throttle, now_s = self.replicas.throttles.leading, asyncio.get_running_loop().time()
                    if not throttle.is_open(rate, now_s):
                        followed.session.hold(followed, throttle.wait_s(now_s))
                        return None
                    max_bytes = min(max_bytes, rate)
                records = log.read(asked.fetch_offset, max_bytes, log.end_offset, at_least_one)
                if records is None:
                    return None  # not enough room: it stays ready
                if rate is not None:
                    throttle.take(records.size, rate, now_s)
        except OffsetOutOfRange:
            answer = FetchedPartition(asked.partition, ErrorCode.OFFSET_OUT_OF_RANGE, high, high, start)
            return self.final(followed, answer)
        except LogError:
            return self.final(followed, FetchedPartition(asked.partition, ErrorCode.KAFKA_STORAGE_ERROR))
        followed.session.ready.pop(followed, None)
        if records is None and followed.told == (high, start):
            return None
        followed.told = high, start
        followed.awaited = records is not None
        return FetchedPartition(asked.partition, 0, high, high, start, records)

    def rate_of(self, leader: Leader, replica: Member) -> int | None:
        """The bound on what a follower is sent of a partition, in bytes a second; None where there is none."""
        isr = leader.isr
        if isr is None:
            return None
        rate = self.replicas.throttles.rate_of_follower(isr.placed, replica[0], leader.config)
        if rate is None:
            return None
        progress = isr.progress.get(replica[0])
        return None if progress is not None and isr.is_member(progress) else rate


class PendingReplicaFetch:
    """One request until it is answered."""

    def __init__(
        self,
        api: ReplicaFetchApi,
        session: FollowerSession,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        exchange: RequestExchange,
        found: Found,
    ) -> None:
        self.api, self.session, self.request = api, session, request
        self.version, self.correlation_id, self.exchange = version, correlation_id, exchange
        self.found = found
        self.max_bytes = min(request.max_bytes, api.max_bytes)
        self.done = self.scheduled = False
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        is_new = self.request.session_epoch in (FULL, FINAL)
        has_bytes = self.gather()
        wait_ms = min(self.request.max_wait_ms, MAX_WAIT_MS)
        has_news = any(is_urgent(f) for _, f in self.found) or (self.session.is_eager() and bool(self.found))
        if is_new or has_bytes or has_news or wait_ms <= 0:
            self.reply()
            return
        self.session.pending = self
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.finish)
        self.exchange.on_disconnect(self.finish)

    def wake(self) -> None:
        """There is news; it is answered at the end of this turn of the loop, so that one answer has all that came."""
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.finish)

    def resume(self) -> None:
        """Those that were held back may have their turn: the answer goes if there is something urgent in it."""
        if not self.done and not self.scheduled:
            self.gather()
            if any(is_urgent(answer) for _, answer in self.found):
                self.reply()

    def finish(self) -> None:
        if not self.done:
            if not self.exchange.is_disconnected:
                self.gather()
            self.reply()

    def gather(self) -> bool:
        """Adds what the partitions with news have to tell, within the bounds; whether there are records in it."""
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
        self.done = True
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
        self.exchange.reply(parts)  # type: ignore[arg-type]  # the Sized parts are the LogSlices given above


def is_urgent(answer: FetchedPartition) -> bool:
    return bool(answer.error) or answer.diverging is not None or answer.records is not None
