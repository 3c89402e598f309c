"""Fetch: locates the records in the log files for the connection to send, and waits until there are enough.

The dispatcher calls it with a decoded request. A waiting request subscribes to its partitions and costs nothing until
one has data or `max_wait_ms` has passed. Idle partitions of a session are not read (`fetch_sessions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from penstock.api.acknowledged_reads import FlushWait
from penstock.api.authorization.access import DataAccess
from penstock.api.exchange import PeerInfo, RequestExchange
from penstock.api.fetch_filters import filter_fetched, is_valid_filter, parts_with_filtered
from penstock.api.fetch_results import FetchedPartitions, by_topic, epoch_error, is_redirect, record_sent, sent_state
from penstock.api.fetch_rights import FetchRights, refused_follower
from penstock.api.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSelection,
    FetchSessions,
    FetchTarget,
    refused,
)
from penstock.api.leaderships import LeadershipKey, Leaderships, leadership_key
from penstock.api.replica_fetch import ReplicaFetchApi
from penstock.filter import compile_filter
from penstock.log.types import LogError, LogSlice, OffsetOutOfRange
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.replica.nearest import nearest_replica
from penstock.replica.partition import Partition
from penstock.runtime.stats import RequestStats
from penstock.security.quotas.request_meter import RequestMeter
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.fetch_frame import FetchedPartition, encode_fetch_response, set_throttle_time
from penstock.wire.messages.fetch import FetchRequest

READ_COMMITTED = 1
MIN_FOLLOWER_VERSION = 15
"""The version from which a follower sends its broker epoch; followers cannot use older versions (KIP-903)."""
MIN_RACK_VERSION = 11
"""The version from which consumers may read from followers (KIP-392)."""
UNKNOWN_OFFSET = -1
"""High watermark and last stable offset of a new leader that does not yet know all that its predecessor acknowledged,
or which of it is due. A reader at the high watermark must not take it for the end of the log; ListOffsets returns
OFFSET_NOT_AVAILABLE meanwhile (KIP-207).
"""
MAX_WAIT_MS = 300_000
"""Upper bound of a request's `max_wait_ms`."""


class FetchLimits(NamedTuple):
    """The broker's limits."""

    max_bytes: int
    """Size of a response (`fetch.max.bytes`)."""


class FetchApi:
    """Serves Fetch 4 to 18. `followers` serves other brokers, `leaderships` confirms leaderships, and `access` checks
    rights if there is authorization."""

    def __init__(
        self,
        replicas: ReplicaManager,
        sessions: FetchSessions,
        limits: FetchLimits,
        stats: RequestStats,
        followers: ReplicaFetchApi,
        leaderships: Leaderships,
        access: DataAccess | None = None,
    ) -> None:
        self.replicas, self.sessions, self.limits = replicas, sessions, limits
        self.stats, self.followers, self.leaderships = stats, followers, leaderships
        self.rights = FetchRights(access) if access is not None else None

    def close(self) -> None:
        """Stop the background work. Called once all connections are closed."""
        if self.rights is not None:
            self.rights.close()

    def handle(
        self,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        exchange: RequestExchange,
        peer: PeerInfo,
        meter: RequestMeter | None = None,
    ) -> None:
        """Respond now, or later when there is enough data; `meter` is set for a client with quotas."""
        replica_id = request.replica_state.replica_id if version >= MIN_FOLLOWER_VERSION else request.replica_id
        if replica_id >= 0 and self.rights is not None and not self.rights.access.may_follow(peer):
            if exchange.throttle_ms:
                exchange.throttle(exchange.throttle_ms)
            exchange.reply(refused_follower(request, version, correlation_id))
            return
        if replica_id >= 0 and version >= MIN_FOLLOWER_VERSION:
            if meter is not None:
                meter.exempt()
            self.followers.handle(request, version, correlation_id, exchange)
            return
        is_throttled, owner = bool(exchange.throttle_ms), (peer.host, peer.principal)
        if is_throttled and request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.sessions.close_owned(request.session_id, owner)
            selection = refused(ErrorCode.NONE)  # the client starts again after an empty response without a session
        elif request.filter and not is_valid_filter(request.filter):
            selection = refused(ErrorCode.INVALID_REQUEST)
        else:
            selection = self.sessions.select(request, version, owner)
        if self.rights is not None:
            self.rights.refresh(selection.session)
        fetch = PendingFetch(self, request, version, correlation_id, exchange, selection, peer, meter)
        if is_throttled:
            exchange.throttle(exchange.throttle_ms)
        if selection.error or is_throttled:
            fetch.reply(FetchedPartitions())
        else:
            fetch.start()


class Unflushed(NamedTuple):
    """A requested partition whose leader had acknowledged more than was visible when the request arrived."""

    target: FetchTarget
    leader: Leader
    end_offset: int


class PendingFetch:
    """A Fetch request until its response. Implements `fetch_sessions.WaitingFetch`."""

    __slots__ = (
        "api",
        "as_follower",
        "committed_only",
        "completed",
        "confirmed",
        "correlation_id",
        "exchange",
        "expected_bytes",
        "max_bytes",
        "meter",
        "min_bytes",
        "peer",
        "request",
        "scheduled",
        "selection",
        "started",
        "timer",
        "unconfirmed",
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
        peer: PeerInfo,
        meter: RequestMeter | None,
    ) -> None:
        self.peer, self.meter = peer, meter
        self.api, self.request, self.version = api, request, version
        self.correlation_id, self.exchange, self.selection = correlation_id, exchange, selection
        self.started = api.stats.now_s()
        self.committed_only = request.isolation_level == READ_COMMITTED
        self.max_bytes = min(request.max_bytes, api.limits.max_bytes)
        """Size limit of the response; waiting for more would be futile."""
        if meter is not None and meter.max_fetch_bytes is not None:
            self.max_bytes = min(self.max_bytes, meter.max_fetch_bytes)
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.as_follower = version < MIN_FOLLOWER_VERSION and request.replica_id >= 0
        """Whether a client claims to be a follower without being one."""
        self.expected_bytes = 0
        self.unconfirmed: dict[LeadershipKey, Partition] | None = None
        """Leaderships to confirm before the response may contain OFFSET_OUT_OF_RANGE."""
        self.confirmed: frozenset[LeadershipKey] | None = None
        """Leaderships that the store has confirmed; None before the query."""
        self.unflushed: list[Unflushed] = []
        """Records acknowledged but not visible when the request arrived."""
        self.completed = self.scheduled = False
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Respond at once if there is enough data; otherwise subscribe and wait."""
        if self.api.replicas.unflushed:
            self.unflushed = self.find_unflushed()
        result, selection = self.read_partitions(), self.selection
        wait_ms = min(self.request.max_wait_ms, MAX_WAIT_MS)
        is_empty = not selection.requested and not selection.session.targets
        if result.urgent or wait_ms <= 0 or result.bytes >= self.min_bytes or is_empty:
            self.complete(result)
            return
        result.release()
        self.expected_bytes = result.bytes
        for target in selection.unsubscribed_targets:
            target.subscribe(self.find(target))
        selection.session.pending = self
        if self.api.rights is not None:
            self.api.rights.waiting[self] = None
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.finish)
        self.exchange.on_disconnect(self.cancel)

    def find(self, target: FetchTarget) -> Partition | None:
        """Return the leader's role; a follower's role only if consumers may read from followers."""
        replicas = self.api.replicas
        found = replicas.find(target.topic, target.partition)
        if found is None and self.version >= MIN_RACK_VERSION and replicas.config.reads_from_followers:
            follower = replicas.find_follower(target.topic, target.partition)
            # Only the leader knows which records of a delayed topic, or of a sealed partition, are visible.
            return None if follower is not None and follower.is_limited else follower
        return found

    def on_data(self, grown_bytes: int) -> None:
        """Respond at the end of this event loop iteration if there is enough data, with all that arrives in it."""
        self.expected_bytes += grown_bytes
        if not self.scheduled and self.expected_bytes >= self.min_bytes:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.finish, True)

    def on_end(self) -> None:
        """Respond at the end of this event loop iteration: the response reports the end of the role."""
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.finish)

    def finish(self, may_wait: bool = False) -> None:
        """Respond with the records available; with `may_wait`, wait on if a read_committed reader gets none."""
        if self.completed:
            return
        if self.meter is not None:
            with self.meter.charging_time():
                self.finish_with_records(may_wait)
        else:
            self.finish_with_records(may_wait)

    def finish_with_records(self, may_wait: bool) -> None:
        """Read again, and respond unless the request waits on."""
        result = self.read_partitions()
        if self.committed_only and may_wait and not result.urgent and result.bytes < self.min_bytes:
            # The new records belong to open transactions: read_committed readers keep waiting.
            result.release()
            self.scheduled, self.expected_bytes = False, result.bytes
            return
        self.cancel()
        self.complete(result)

    def complete(self, result: FetchedPartitions) -> None:
        """Reply; before that, wait for flushes or confirm leaderships if needed."""
        if self.unflushed:
            wait = self.flush_wait(result)
            self.unflushed = []
            if wait is not None:
                result.release()
                self.completed = True
                self.api.replicas.spawn(self.complete_after_flush(wait))
                return
        if self.unconfirmed is None:
            self.reply(result)
            return
        result.release()
        self.api.replicas.spawn(self.reply_confirmed(self.unconfirmed.values()))

    def find_unflushed(self) -> list[Unflushed]:
        """Return the partitions of the request, idle ones included, with acknowledged records that are not visible."""
        unflushed, session, found = self.api.replicas.unflushed, self.selection.session, []
        if self.selection.incremental:
            for leader in unflushed:
                name = leader.topic_id if session.by_id else leader.name
                target = session.targets.get((name, leader.index))
                if target is not None:
                    found.append(Unflushed(target, leader, leader.acknowledged_offset))
        else:
            for target in self.selection.requested:
                partition = self.find(target)
                if isinstance(partition, Leader) and partition in unflushed:
                    found.append(Unflushed(target, partition, partition.acknowledged_offset))
        return found

    def flush_wait(self, result: FetchedPartitions) -> FlushWait | None:
        """Return the wait for acknowledged records that a response up to a partition's end lacks; None if complete."""
        answers, wait = dict(result.partitions), FlushWait()
        for target, leader, end_offset in self.unflushed:
            fetched = answers.get(target)
            if leader.high_watermark >= end_offset or leader.ended:
                continue
            if fetched is None:
                is_at_end = self.selection.incremental and target not in self.selection.session.ready
            else:
                limit = leader.visible_stable_offset if self.committed_only else leader.visible_offset
                records = fetched.records
                reached = records.next_offset if isinstance(records, LogSlice) else target.fetch_offset
                is_at_end = not fetched.error and reached >= limit
            if is_at_end:
                wait.offsets[leader] = end_offset
        return wait if wait.offsets else None

    async def complete_after_flush(self, wait: FlushWait) -> None:
        """Complete after the flushes."""
        await wait.wait()
        self.complete(self.read_partitions())

    async def reply_confirmed(self, unconfirmed: Iterable[Partition]) -> None:
        """Read again and reply once the leaderships are confirmed."""
        self.confirmed = await self.api.leaderships.confirm(unconfirmed)
        self.reply(self.read_partitions())

    def cancel(self) -> None:
        """Stop waiting."""
        self.completed = True
        session = self.selection.session
        if self.timer is not None:
            self.timer.cancel()
        if session.pending is self:
            session.pending = None
        if self.api.rights is not None:
            self.api.rights.waiting.pop(self, None)
        self.selection.unsubscribe()

    @property
    def watched_targets(self) -> Iterable[FetchTarget]:
        """The partitions whose records the request waits for; see `fetch_rights`."""
        session = self.selection.session
        return session.targets.values() if session.session_id else self.selection.requested

    def read_partitions(self) -> FetchedPartitions:
        """Read the targets within the limits; the first partition with data returns a whole batch of any size."""
        result = FetchedPartitions()
        left, session = self.max_bytes, self.selection.session
        found, rights = result.partitions, self.api.rights
        for target in self.selection.targets:
            partition = self.find(target)
            if rights is not None and not rights.may_read(self.peer, target):
                fetched = FetchedPartition(target.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif partition is None:
                fetched = self.absent_partition(target)
            else:
                fetched = self.fetch_one(partition, target, left, at_least_one=result.bytes == 0)
            found.append((target, fetched))
            records = fetched.records
            if records is not None:
                size = records.size
                result.bytes += size
                left -= size
                if left <= 0 and self.selection.incremental:
                    break  # the next request starts with the targets behind it
            elif fetched.error or is_redirect(fetched):
                result.urgent = True
            elif session.session_id and partition is not None and self.is_up_to_date(target, partition, fetched):
                session.mark_idle(target, partition)
        return result

    def is_up_to_date(self, target: FetchTarget, partition: Partition, fetched: FetchedPartition) -> bool:
        """Return whether the reader is at its limit and knows the current state.

        The comparison uses what was sent, not this result, which may be discarded.
        """
        limit = partition.visible_stable_offset if self.committed_only else partition.visible_offset
        return partition.skip_gaps(target.fetch_offset) >= limit and target.last_sent == sent_state(fetched)

    def fetch_one(self, partition: Partition, target: FetchTarget, left: int, at_least_one: bool) -> FetchedPartition:
        """Read one target: check the epochs, then return records, an error or a redirect."""
        epoch = target.current_leader_epoch
        if self.as_follower or (epoch != partition.leader_epoch and epoch >= 0):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER if self.as_follower else epoch_error(epoch, partition.leader_epoch)
            leader = (self.api.replicas.broker_id, partition.leader_epoch)
            return FetchedPartition(target.partition, error, leader=leader)
        stable, start, high = partition.last_stable_offset, partition.log.start_offset, partition.high_watermark
        is_unknown = False
        if partition.is_limited:
            high = partition.visible_offset
            is_unknown = partition.delivery is not None and not partition.delivery.is_located
            stable = min(stable, high)
        limit = stable if self.committed_only else high
        if isinstance(partition, Leader) and partition.isr is not None:
            if is_unknown or partition.high_watermark < partition.isr.epoch_start:
                high = stable = UNKNOWN_OFFSET
            preferred = self.preferred_replica(partition, target.fetch_offset) if self.request.rack_id else -1
            if preferred >= 0:
                return FetchedPartition(target.partition, 0, high, stable, start, preferred_read_replica=preferred)
        elif is_unknown:
            high = stable = UNKNOWN_OFFSET
        diverging = self.divergence(partition, target) if target.last_fetched_epoch >= 0 else None
        records = aborted = None
        try:
            if diverging is None and (left > 0 or at_least_one):
                max_bytes = max(min(target.max_bytes, left), 0)
                records = partition.read_visible(target.fetch_offset, max_bytes, at_least_one, limit)
            if self.committed_only:
                aborted = self.aborted_transactions(partition, target.fetch_offset, records, limit)
        except OffsetOutOfRange:
            if self.needs_confirmation(partition):
                return FetchedPartition(target.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return FetchedPartition(target.partition, ErrorCode.OFFSET_OUT_OF_RANGE, high, stable, start)
        except LogError:
            return FetchedPartition(target.partition, ErrorCode.KAFKA_STORAGE_ERROR, high, stable, start)
        return FetchedPartition(target.partition, 0, high, stable, start, records, aborted, diverging)

    def needs_confirmation(self, partition: Partition) -> bool:
        """Return whether another broker may lead the partition by now.

        A reader that was redirected to a follower turns to the leader on OFFSET_OUT_OF_RANGE (KIP-392); other readers
        take a follower for the leader.
        """
        if not isinstance(partition, Leader):
            return not self.request.rack_id
        if self.confirmed is not None:
            return leadership_key(partition) not in self.confirmed
        if self.unconfirmed is None:
            self.unconfirmed = {}
        self.unconfirmed[leadership_key(partition)] = partition
        return True

    def aborted_transactions(
        self, partition: Partition, fetch_offset: int, records: LogSlice | None, stable: int
    ) -> list[tuple[int, int]]:
        """Return the aborted transactions that a read_committed reader filters out of `records`."""
        if records is None:
            return []
        try:
            return partition.aborted_between(fetch_offset, min(stable, records.next_offset))
        except LogError:
            records.release()
            raise

    def preferred_replica(self, leader: Leader, fetch_offset: int) -> int:
        """Return the broker in the reader's rack to read from; -1 for this broker."""
        replicas = self.api.replicas
        if self.version < MIN_RACK_VERSION or not replicas.config.reads_from_followers or leader.is_limited:
            return -1
        return nearest_replica(leader, replicas.view.brokers, self.request.rack_id, fetch_offset)

    def divergence(self, partition: Partition, target: FetchTarget) -> tuple[int, int] | None:
        """Return the epoch and end offset at which the reader's log diverges (KIP-595); None if it does not."""
        epoch, end_offset = partition.end_of_epoch(target.last_fetched_epoch)
        if epoch == target.last_fetched_epoch and end_offset >= target.fetch_offset:
            return None
        return epoch, end_offset

    def absent_partition(self, target: FetchTarget) -> FetchedPartition:
        """Return the error for a partition that this broker does not host."""
        error, leader = self.api.replicas.absence(target.topic, target.partition)
        return FetchedPartition(target.partition, error, leader=leader)

    def reply(self, result: FetchedPartitions) -> None:
        """Send the response, after its filter if the request has one."""
        self.completed = True
        if self.request.filter and result.bytes:
            self.api.replicas.spawn(self.send_filtered(result))
        else:
            self.send(result)

    async def send_filtered(self, result: FetchedPartitions) -> None:
        """Leave out what does not pass the filter, and send the response."""
        self.send(await filter_fetched(result, compile_filter(self.request.filter)))

    def send(self, result: FetchedPartitions) -> None:
        """Send the response, or release the slices if the connection is lost."""
        self.api.stats.observe(ApiKey.FETCH, self.api.stats.now_s() - self.started)
        self.api.stats.fetched_bytes += result.bytes
        rights = self.api.rights
        if self.exchange.is_disconnected or (rights is not None and rights.refuse_outdated(self.peer, self.exchange)):
            result.release()
            return
        found = result.partitions
        if self.selection.incremental:
            found = self.changed_partitions(found)
        elif self.selection.session_id:
            record_sent(found)
        parts = encode_fetch_response(
            self.correlation_id, self.version, self.selection.error, self.selection.session_id, by_topic(found)
        )
        throttle_ms = self.exchange.throttle_ms
        if self.meter is not None and not throttle_ms and result.bytes:
            throttle_ms = self.meter.charge_fetched(result.bytes)
            if throttle_ms:
                self.exchange.throttle(throttle_ms)
        if throttle_ms:
            set_throttle_time(parts, self.version, throttle_ms)
        self.exchange.reply(parts_with_filtered(parts) if self.request.filter else parts)  # type: ignore[arg-type]  # LogSlices are StoredRecords

    def changed_partitions(
        self, found: list[tuple[FetchTarget, FetchedPartition]]
    ) -> list[tuple[FetchTarget, FetchedPartition]]:
        """Return the partitions for an incremental response; those with records move to the back of the order."""
        changes = [(t, f) for t, f in found if f.records is not None or is_redirect(f) or t.last_sent != sent_state(f)]
        record_sent(changes)
        for target, fetched in changes:
            if fetched.records is not None:
                self.selection.session.move_to_back(target)
        return changes
