"""Fetch: finds where the records lie and lets the connection send them from there; waits when there are too few.

Called by the dispatcher with a decoded request. A waiting request hangs on the partitions that it reads, and costs
nothing until one of them has data or its time is up. What a session rests on is not looked at (`fetch_sessions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from penstock.api.acknowledged_reads import FlushWait
from penstock.api.exchange import RequestExchange
from penstock.api.fetch_sessions import FetchSelection, FetchSessions, FetchTarget, Topic
from penstock.api.leaderships import Leaderships, Tenure, tenure
from penstock.api.replica_fetch import ReplicaFetchApi
from penstock.log.types import LogError, LogSlice, OffsetOutOfRange
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.replica.nearest import nearest_replica
from penstock.replica.partition import Partition
from penstock.runtime.stats import RequestStats
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.fetch_frame import FetchedPartition, encode_fetch_response
from penstock.wire.messages.fetch import FetchRequest

READ_COMMITTED = 1
FOLLOWERS_FROM = 15
"""The version from which a follower says which incarnation it is; older ones serve no follower."""
NEAREST_FROM = 11
"""The version from which consumers may read from followers (KIP-392)."""
UNKNOWN = -1
"""What is told for the high watermark, and the last stable offset, by a leader that does not know yet all that its
predecessor had acknowledged. A reader who stands there must not take it for the end; ListOffsets says
OFFSET_NOT_AVAILABLE then (KIP-207)."""
MAX_WAIT_MS = 300_000
"""Nobody may hang on a broker for longer, whatever the request says."""


class FetchLimits(NamedTuple):
    """The broker's own bounds."""

    max_bytes: int


class FetchApi:
    """Serves Fetch 4 to 18; in a cluster `followers` what other brokers fetch, and `leaderships` are confirmed."""

    def __init__(
        self,
        replicas: ReplicaManager,
        sessions: FetchSessions,
        limits: FetchLimits,
        stats: RequestStats,
        followers: ReplicaFetchApi | None = None,
        leaderships: Leaderships | None = None,
    ) -> None:
        self.replicas, self.sessions, self.limits = replicas, sessions, limits
        self.stats, self.followers, self.leaderships = stats, followers, leaderships

    def handle(
        self, request: FetchRequest, version: int, correlation_id: int, exchange: RequestExchange, owner: str
    ) -> None:
        """Answers now, or later when there is something to send."""
        if version >= FOLLOWERS_FROM and request.replica_state.replica_id >= 0 and self.followers is not None:
            self.followers.handle(request, version, correlation_id, exchange)
            return
        selection = self.sessions.select(request, version, owner)
        fetch = PendingFetch(self, request, version, correlation_id, exchange, selection)
        if selection.error:
            fetch.reply(FetchedPartitions())
        else:
            fetch.start()


class Unflushed(NamedTuple):
    """A partition of a request whose leader had acknowledged more than was visible when the request came."""

    target: FetchTarget
    leader: Leader
    end_offset: int


class FetchedPartitions:
    """What one look at the partitions found."""

    __slots__ = ("bytes", "found", "urgent")

    def __init__(self) -> None:
        self.found: list[tuple[FetchTarget, FetchedPartition]] = []
        self.bytes = 0
        self.urgent = False
        """Whether the answer should not wait: an error, or a log that parted from the reader's."""

    def release(self) -> None:
        for _, fetched in self.found:
            if isinstance(fetched.records, LogSlice):
                fetched.records.release()


class PendingFetch:
    """One Fetch request until it is answered. Implements `fetch_sessions.Waiting`."""

    __slots__ = (
        "api",
        "committed_only",
        "confirmed",
        "correlation_id",
        "done",
        "doubted",
        "exchange",
        "expected_bytes",
        "max_bytes",
        "min_bytes",
        "poses",
        "request",
        "scheduled",
        "selection",
        "started",
        "timer",
        "unflushed",
        "version",
    )

    def __init__(
        self,
        api: FetchApi,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        exchange: RequestExchange,
        selection: FetchSelection,
    ) -> None:
        self.api, self.request, self.version = api, request, version
        self.correlation_id, self.exchange, self.selection = correlation_id, exchange, selection
        self.started = api.stats.now_s()
        self.committed_only = request.isolation_level == READ_COMMITTED
        self.max_bytes = min(request.max_bytes, api.limits.max_bytes)
        """What the answer may hold; nobody waits for more than that."""
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.poses = (request.replica_state.replica_id if version >= FOLLOWERS_FROM else request.replica_id) >= 0
        """Whether a client poses as a follower: it is nobody's here."""
        self.expected_bytes = 0
        self.doubted: dict[Tenure, Partition] | None = None
        """Those that can only say that an offset is out of range if this broker leads them still."""
        self.confirmed: frozenset[Tenure] | None = None
        """What this broker leads without a doubt, once that was asked."""
        self.unflushed: list[Unflushed] = []
        """What had been acknowledged when the request came, and was not visible."""
        self.done = self.scheduled = False
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self.api.replicas.unflushed:
            self.unflushed = self.find_unflushed()
        gathered, selection = self.gather(), self.selection
        wait_ms = min(self.request.max_wait_ms, MAX_WAIT_MS)
        is_empty = not selection.asked and not selection.session.targets
        if gathered.urgent or wait_ms <= 0 or gathered.bytes >= self.min_bytes or is_empty:
            self.answer(gathered)
            return
        gathered.release()
        self.expected_bytes = gathered.bytes
        for target in selection.restless:
            target.hang_on(self.find(target))
        selection.session.pending = self
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.finish)
        self.exchange.on_disconnect(self.cancel)

    def find(self, target: FetchTarget) -> Partition | None:
        """The leader's role; a follower's only where consumers may be sent to one."""
        replicas = self.api.replicas
        found = replicas.find(target.topic, target.partition)
        if found is None and self.version >= NEAREST_FROM and replicas.config.reads_from_followers:
            return replicas.find_follower(target.topic, target.partition)
        return found

    def on_data(self, grown_bytes: int) -> None:
        """Data came; answers at the end of this turn of the loop, so that one answer covers all that came in it."""
        self.expected_bytes += grown_bytes
        if not self.scheduled and self.expected_bytes >= self.min_bytes:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.finish, True)

    def on_end(self) -> None:
        """Something is not there any more, which the answer will say."""
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.finish)

    def finish(self, may_wait: bool = False) -> None:
        if self.done:
            return
        gathered = self.gather()
        if self.committed_only and may_wait and not gathered.urgent and gathered.bytes < self.min_bytes:
            # What came is not decided yet: readers of committed data wait on.
            gathered.release()
            self.scheduled, self.expected_bytes = False, gathered.bytes
            return
        self.cancel()
        self.answer(gathered)

    def answer(self, gathered: FetchedPartitions) -> None:
        """Replies, or first waits for flushes, or makes sure of what is doubted."""
        if self.unflushed:
            wait = self.flush_wait(gathered)
            self.unflushed = []
            if wait is not None:
                gathered.release()
                self.done = True
                self.api.replicas.spawn(self.answer_flushed(wait))
                return
        if self.doubted is None or self.api.leaderships is None:
            self.reply(gathered)
            return
        gathered.release()
        self.api.replicas.spawn(self.reply_confirmed(self.api.leaderships, self.doubted.values()))

    def find_unflushed(self) -> list[Unflushed]:
        """The partitions of the request, those that rest included, with acknowledged records that are not visible."""
        unflushed, session, found = self.api.replicas.unflushed, self.selection.session, []
        if self.selection.incremental:
            for leader in unflushed:
                name = leader.topic_id if session.by_id else leader.name
                target = session.targets.get((name, leader.index))
                if target is not None:
                    found.append(Unflushed(target, leader, leader.acknowledged_offset))
        else:
            for target in self.selection.asked:
                partition = self.find(target)
                if isinstance(partition, Leader) and partition in unflushed:
                    found.append(Unflushed(target, partition, partition.acknowledged_offset))
        return found

    def flush_wait(self, gathered: FetchedPartitions) -> FlushWait | None:
        """What to wait for, so that an answer which reaches the end of a partition holds what was acknowledged."""
        answers, wait = dict(gathered.found), FlushWait()
        for target, leader, end_offset in self.unflushed:
            fetched = answers.get(target)
            if leader.high_watermark >= end_offset or leader.ended:
                continue
            if fetched is None:
                is_at_end = self.selection.incremental and target not in self.selection.session.ready
            else:
                limit = leader.last_stable_offset if self.committed_only else leader.high_watermark
                records = fetched.records
                reached = records.next_offset if isinstance(records, LogSlice) else target.fetch_offset
                is_at_end = not fetched.error and reached >= limit
            if is_at_end:
                wait.offsets[leader] = end_offset
        return wait if wait.offsets else None

    async def answer_flushed(self, wait: FlushWait) -> None:
        await wait.finished()
        self.answer(self.gather())

    async def reply_confirmed(self, leaderships: Leaderships, doubted: Iterable[Partition]) -> None:
        self.confirmed = await leaderships.held(doubted)
        self.reply(self.gather())

    def cancel(self) -> None:
        self.done = True
        session = self.selection.session
        if self.timer is not None:
            self.timer.cancel()
        if session.pending is self:
            session.pending = None
        self.selection.let_go()

    def gather(self) -> FetchedPartitions:
        """Reads what there is, within the bounds; the first partition with data gets a whole batch, however large."""
        gathered = FetchedPartitions()
        left, session = self.max_bytes, self.selection.session
        found = gathered.found
        for target in self.selection.targets:
            partition = self.find(target)
            if partition is None:
                fetched = self.nobody(target)
            else:
                fetched = self.fetch_one(partition, target, left, at_least_one=gathered.bytes == 0)
            found.append((target, fetched))
            records = fetched.records
            if records is not None:
                size = records.size
                gathered.bytes += size
                left -= size
                if left <= 0 and self.selection.incremental:
                    break  # those behind it are the first ones next time
            elif fetched.error or is_pointer(fetched):
                gathered.urgent = True
            elif session.session_id and partition is not None and self.has_all(target, partition, fetched):
                session.rest(target, partition)
        return gathered

    def has_all(self, target: FetchTarget, partition: Partition, fetched: FetchedPartition) -> bool:
        """Whether a reader is at the end of what it may see, and was told all that there is to tell of it: what was
        gathered here may be thrown away for a later look."""
        limit = partition.last_stable_offset if self.committed_only else partition.high_watermark
        return target.fetch_offset >= limit and target.told == state_of(fetched)

    def fetch_one(self, partition: Partition, target: FetchTarget, left: int, at_least_one: bool) -> FetchedPartition:
        epoch = target.current_leader_epoch
        if self.poses or (epoch != partition.leader_epoch and epoch >= 0):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER if self.poses else epoch_error(epoch, partition.leader_epoch)
            leader = (self.api.replicas.broker_id, partition.leader_epoch)
            return FetchedPartition(target.partition, error, leader=leader)
        stable, start, high = partition.last_stable_offset, partition.log.start_offset, partition.high_watermark
        limit = stable if self.committed_only else high
        if isinstance(partition, Leader) and partition.isr is not None:
            if high < partition.isr.epoch_start:
                high = stable = UNKNOWN
            nearest = self.nearest(partition, target.fetch_offset) if self.request.rack_id else -1
            if nearest >= 0:
                return FetchedPartition(target.partition, 0, high, stable, start, preferred_read_replica=nearest)
        diverging = self.divergence(partition, target) if target.last_fetched_epoch >= 0 else None
        records = aborted = None
        try:
            if diverging is None and (left > 0 or at_least_one):
                max_bytes = max(min(target.max_bytes, left), 0)
                records = partition.read(target.fetch_offset, max_bytes, at_least_one, limit)
            if self.committed_only:
                aborted = self.aborted(partition, target.fetch_offset, records, limit)
        except OffsetOutOfRange:
            if self.is_doubtful(partition):
                return FetchedPartition(target.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return FetchedPartition(target.partition, ErrorCode.OFFSET_OUT_OF_RANGE, high, stable, start)
        except LogError:
            return FetchedPartition(target.partition, ErrorCode.KAFKA_STORAGE_ERROR, high, stable, start)
        return FetchedPartition(target.partition, 0, high, stable, start, records, aborted, diverging)

    def is_doubtful(self, partition: Partition) -> bool:
        """Whether somebody else may lead a partition by now. Readers who were sent to a follower go to the leader when
        it says out of range (KIP-392); others take it for the leader."""
        if self.api.leaderships is None:
            return False
        if not isinstance(partition, Leader):
            return not self.request.rack_id
        if self.confirmed is not None:
            return tenure(partition) not in self.confirmed
        if self.doubted is None:
            self.doubted = {}
        self.doubted[tenure(partition)] = partition
        return True

    def aborted(
        self, partition: Partition, fetch_offset: int, records: LogSlice | None, stable: int
    ) -> list[tuple[int, int]]:
        """The aborted transactions that a reader of committed data has to leave out of `records`."""
        if records is None:
            return []
        try:
            return partition.aborted_between(fetch_offset, min(stable, records.next_offset))
        except LogError:
            records.release()
            raise

    def nearest(self, leader: Leader, fetch_offset: int) -> int:
        """The broker that the reader should rather turn to, -1 where it is here already."""
        replicas = self.api.replicas
        if self.version < NEAREST_FROM or not replicas.config.reads_from_followers:
            return -1
        return nearest_replica(leader, replicas.view.brokers, self.request.rack_id, fetch_offset)

    def divergence(self, partition: Partition, target: FetchTarget) -> tuple[int, int] | None:
        """Where the reader's log parted from ours (KIP-595), if its last fetched epoch tells so."""
        epoch, end_offset = partition.end_of_epoch(target.last_fetched_epoch)
        if epoch == target.last_fetched_epoch and end_offset >= target.fetch_offset:
            return None
        return epoch, end_offset

    def nobody(self, target: FetchTarget) -> FetchedPartition:
        error, leader = self.api.replicas.absence(target.topic, target.partition)
        return FetchedPartition(target.partition, error, leader=leader)

    def reply(self, gathered: FetchedPartitions) -> None:
        self.done = True
        self.api.stats.observe(ApiKey.FETCH, self.api.stats.now_s() - self.started)
        self.api.stats.fetched_bytes += gathered.bytes
        if self.exchange.is_disconnected:
            gathered.release()
            return
        found = gathered.found
        if self.selection.incremental:
            found = self.changed(found)
        elif self.selection.session_id:
            remember(found)
        parts = encode_fetch_response(
            self.correlation_id, self.version, self.selection.error, self.selection.session_id, by_topic(found)
        )
        self.exchange.reply(parts)  # type: ignore[arg-type]  # the Sized parts are the LogSlices given above

    def changed(self, found: list[tuple[FetchTarget, FetchedPartition]]) -> list[tuple[FetchTarget, FetchedPartition]]:
        """What an incremental answer has to tell; partitions that had data go to the back of the queue."""
        news = [(t, f) for t, f in found if f.records is not None or is_pointer(f) or t.told != state_of(f)]
        remember(news)
        for target, fetched in news:
            if fetched.records is not None:
                self.selection.session.to_the_back(target)
        return news


def by_topic(found: list[tuple[FetchTarget, FetchedPartition]]) -> list[tuple[Topic, list[FetchedPartition]]]:
    """What was found, each topic once. Neighbours mostly share their topic, and its very object."""
    topics: dict[Topic, list[FetchedPartition]] = {}
    last: Topic | None = None
    group: list[FetchedPartition] = []
    for target, fetched in found:
        if target.topic is not last:
            last = target.topic
            group = topics.setdefault(last, [])
        group.append(fetched)
    return list(topics.items())


def is_pointer(fetched: FetchedPartition) -> bool:
    """Whether the reader is told to go on somewhere else."""
    return fetched.diverging is not None or fetched.preferred_read_replica >= 0


def state_of(fetched: FetchedPartition) -> tuple[int, int, int]:
    return fetched.error, fetched.high_watermark, fetched.log_start_offset


def remember(found: list[tuple[FetchTarget, FetchedPartition]]) -> None:
    for target, fetched in found:
        target.told = state_of(fetched) if not fetched.error else None


def epoch_error(claimed: int, current: int) -> ErrorCode:
    """Compares the leader epoch that a client knows, -1 for none, with ours (KIP-320)."""
    if claimed < 0 or claimed == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if claimed < current else ErrorCode.UNKNOWN_LEADER_EPOCH
