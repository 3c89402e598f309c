"""The leader role of one partition: appends batches, tracks the ISR, advances the high watermark.

Called by the Produce handler, by the Fetch handler for followers, and by the flusher. Runs on the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.config.topic import TopicConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogDirFailed, LogFull
from penstock.replica.acceptance import Appended, explain, explain_sequence, has_times_in_bounds
from penstock.replica.blocked_producers import BlockedProducers
from penstock.replica.delayed_delivery import DelayedDelivery, LeaderDelivery
from penstock.replica.deletions import DeletionWaiter, DeletionWaiters
from penstock.replica.inspection import Inspection, check_times, inspect_fully
from penstock.replica.isr import InSyncReplicas, IsrChange, Member, ReplicaProgress, effective_min_isr
from penstock.replica.partition import Partition
from penstock.replica.producer_state import ProducerState, SequenceCheck
from penstock.replica.scheduled_delivery import LeaderSchedule, start_schedule
from penstock.replica.waiters import CommitWaiter, FetchListener
from penstock.runtime.clock import Clock
from penstock.state.view import PartitionView
from penstock.wire.batch import HEADER_SIZE, BatchHeader, read_header, stamp, stamp_log_append_time
from penstock.wire.batch_check import validate_batch
from penstock.wire.control_batch import Marker, build_marker
from penstock.wire.errors import ErrorCode


class LeaderHost(Protocol):
    """What a leader with followers needs of its broker."""

    @property
    def own_epoch(self) -> int:
        """The broker epoch of this broker's registration."""

    def watch(self, leader: Leader) -> None:
        """Call `check_lagging` periodically until it returns False: a follower lags."""

    def may_join(self, broker_id: int, epoch: int) -> bool:
        """Return whether this incarnation of a broker is registered and not draining, by the view."""

    def propose(self, leader: Leader, change: IsrChange) -> None:
        """Write an ISR change. A new view follows, or a call of `Leader.on_change_refused`."""


new = tuple.__new__
"""Does what `Appended` does, without a call of a Python function."""


class Leader(Partition):
    """The role for one leader epoch. `isr` is None if there is no other replica. `high_watermark` is that of this
    broker's last role, None if it had none."""

    __slots__ = (
        "acknowledged_offset", "blocked_producers", "commit_waiters", "delayed", "deletions",
        "fetch_listeners", "host", "isr", "under_min_isr", "unflushed", "watched", "watched_ms",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        topic_id: UUID,
        index: int,
        leader_epoch: int,
        log: PartitionLog,
        producers: ProducerState,
        clock: Clock,
        *,
        host: LeaderHost,
        broker_id: int,
        placed: PartitionView,
        high_watermark: int | None,
        blocked_producers: BlockedProducers,
        unflushed: dict[Leader, None],
        delayed: DelayedDelivery,
    ) -> None:
        self.acknowledged_offset = 0
        """End of the last batch that was acknowledged before it was committed (acks=0 or acks=1)."""
        self.unflushed = unflushed
        """Leaders with acknowledged records above the high watermark that only wait for their own flush."""
        self.commit_waiters: deque[CommitWaiter] = deque()
        self.deletions = DeletionWaiters()
        self.fetch_listeners: dict[int, FetchListener] = {}
        """Pending fetches of followers, by broker id."""
        self.host = host
        self.isr: InSyncReplicas | None = None
        self.blocked_producers = blocked_producers
        self.under_min_isr, self.watched, self.watched_ms = False, False, 0
        known = log.start_offset if high_watermark is None else high_watermark
        assert known >= log.start_offset, f"the high watermark {known} is below the start of {log}"
        super().__init__(name, topic_id, index, leader_epoch, log, producers, clock, known)
        self.delayed = delayed
        self.delivery: LeaderDelivery | None = delayed.start(self)
        self.schedule: LeaderSchedule | None = start_schedule(delayed, self)
        self.update_from_view(broker_id, placed)

    # Appending

    def append(
        self,
        batch: memoryview,
        all_in_sync: bool = False,
        verified: bool = False,
        inspection: Inspection | None = None,
    ) -> Appended:
        """Check and append a producer's batch; writes offsets, epoch and perhaps timestamps into `batch`.

        With `all_in_sync` (acks=all), the batch is rejected below min.insync.replicas; without it, the caller
        acknowledges at once. `verified` means that the transaction is verified or open here. `inspection` is the result
        of an earlier inspection.
        """
        if self.name in INTERNAL_TOPICS:
            return Appended(ErrorCode.INVALID_TOPIC_EXCEPTION, message="the topic's name belongs to Kafka itself")
        if len(batch) >= HEADER_SIZE:
            # The CRC covers neither, so one read gives the header as it will be written.
            stamp(batch, 0, self.log.end_offset, self.leader_epoch)
        header = validate_batch(batch, self.config.max_message_bytes)
        if isinstance(header, ErrorCode):
            return Appended(header, message=explain(header))
        if all_in_sync and self.under_min_isr:
            return self.block_producer(header, ErrorCode.NOT_ENOUGH_REPLICAS, self.too_few_replicas())
        now_ms = self.clock.wall_ms()
        if not has_times_in_bounds(self.config, now_ms, header):
            refusal = check_times(batch, header, self.config, now_ms)
            if refusal is not None:
                return refusal
        if inspection is None:
            inspection = inspect_fully(batch, header, self.config, self.name, now_ms, self.checks_only_ends)
        if inspection.refusal is not None:
            return inspection.refusal
        if header.producer_id >= 0:
            check, original = self.producers.check(header, verified)
            if check is SequenceCheck.DUPLICATE:
                assert original is not None, f"producer {header.producer_id} repeats a batch that is not known"
                if not all_in_sync:
                    self.acknowledge(original.last_offset + 1)
                append_time_ms = original.timestamp_ms if self.config.message_timestamp_log_append else -1
                return Appended(0, original.base_offset, append_time_ms, original.last_offset + 1)
            if check is not SequenceCheck.APPEND:
                return explain_sequence(check, header, self.blocked_producers, self.clock.boot_ms())
            if self.blocked_producers.refused and not self.producers.has_batches(header.producer_id):
                before = self.blocked_producers.code_before(header, self.clock.boot_ms())
                if before is not None:
                    return Appended(before, message="a batch before this one was refused")
        if inspection.batch is not None:
            batch = inspection.batch
            stamp(batch, 0, self.log.end_offset, self.leader_epoch)
            header = read_header(batch)
        if inspection.scheduled is not None and self.schedule is not None:
            done = self.schedule.append(inspection.scheduled)
        else:
            done = self.write(batch, header)
        if not all_in_sync and not done[0]:
            self.acknowledge(done[3])
        return done

    def acknowledge(self, end_offset: int) -> None:
        """Record that all below `end_offset` is acknowledged, although it may not be flushed yet."""
        if end_offset > self.acknowledged_offset:
            self.acknowledged_offset = end_offset
            if end_offset > self.high_watermark and self.flushes_alone and self.delivery is None:
                self.unflushed[self] = None

    @property
    def flushes_alone(self) -> bool:
        """Whether only this broker's flushes bound the high watermark: no other replica is in sync."""
        return self.isr is None or not (self.isr.maximal or self.under_min_isr)

    @property
    def acknowledged_end(self) -> int:
        """The high watermark, or the end of acknowledged records that only wait for this broker's flush.

        For a topic with delayed delivery, the visible offset.
        """
        if self.delivery is not None:
            return self.delivery.visible_offset
        return max(self.high_watermark, self.acknowledged_offset) if self in self.unflushed else self.high_watermark

    def write_marker(self, marker: Marker, *, is_administrative: bool = False) -> Appended:
        """End a producer's transaction. A repeated marker is not written again; it waits for the log end."""
        producers, log = self.producers, self.log
        if self.under_min_isr:
            return Appended(ErrorCode.NOT_ENOUGH_REPLICAS, message=self.too_few_replicas())
        if is_administrative:
            marker = producers.administrative_marker(marker)
        error = producers.check_marker(marker)
        if error:
            return Appended(error, message="a newer coordinator, or a newer epoch of the producer, has written here")
        if producers.is_repeated_marker(marker):
            return Appended(0, required_offset=log.end_offset)
        batch = memoryview(build_marker(marker, self.clock.wall_ms()))
        stamp(batch, 0, log.end_offset, self.leader_epoch)
        written = self.write(batch, read_header(batch))
        is_ended = producers.transactions.first_offset(marker.producer_id) < 0
        assert written.error or is_ended, f"the transaction of {marker} is still open"
        return written

    def write(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Append a stamped batch with the given header."""
        append_time_ms = -1
        if self.config.message_timestamp_log_append:
            append_time_ms = self.clock.wall_ms()
            stamp_log_append_time(batch, 0, len(batch), header.attributes, append_time_ms)
            header = read_header(batch)
        try:
            self.log.append(batch, header, self.leader_epoch)
        except (LogFull, LogDirFailed) as e:
            return self.block_producer(header, ErrorCode.KAFKA_STORAGE_ERROR, str(e))
        if header.producer_id >= 0:
            self.blocked_producers.unblock(header.producer_id)
            self.producers.observe(header, batch, self.clock.boot_ms())
        self.messages_in += header.record_count
        self.unseen_bytes += len(batch)
        if self.isr is not None:
            self.on_log_growth()
        if self.delivery is not None:
            self.delivery.on_append(header)
        if not self.flushes_each_batch:
            self.advance()
        return new(Appended, (0, header.base_offset, append_time_ms, self.log.end_offset, None, ()))

    def block_producer(self, header: BatchHeader, code: ErrorCode, message: str) -> Appended:
        """Reject a batch with a retriable error, and record its producer as blocked."""
        if header.producer_id >= 0:
            self.blocked_producers.record(header, code, self.clock.boot_ms())
        return Appended(code, message=message)

    # In-sync replicas

    @property
    def epoch_start(self) -> int:
        """The start offset of this leader epoch. Without other replicas, the high watermark."""
        return self.isr.epoch_start if self.isr is not None else self.high_watermark

    @property
    def is_end_known(self) -> bool:
        """Whether this leader knows all that its predecessor has acknowledged (KIP-207), and what of it is visible."""
        return self.high_watermark >= self.epoch_start and (self.delivery is None or self.delivery.is_located)

    def update_from_view(self, broker_id: int, placed: PartitionView) -> None:
        """Apply the partition's record of this leader epoch."""
        assert placed.leader_epoch == self.leader_epoch, f"{self!r} got the record of epoch {placed.leader_epoch}"
        if placed.replicas == [broker_id] and placed.isr == [broker_id] and not placed.adding:
            self.isr, self.under_min_isr = None, False
        else:
            if self.isr is None:
                self.isr = InSyncReplicas(broker_id, placed, self.log.end_offset, self.clock.boot_ms())
            else:
                self.isr.update(placed, self.clock.boot_ms())
            self.update_min_isr()
            self.advance()
            self.expand_isr()
            if self.isr.lagging(self.log.end_offset):
                self.start_watching()
        self.advance()
        self.complete_deletions()

    def update_min_isr(self) -> None:
        """Update `under_min_isr`. Fails waiting producers if there are no longer enough in-sync replicas."""
        isr = self.isr
        assert isr is not None, "a single replica is always in sync"
        was, self.under_min_isr = self.under_min_isr, len(isr.placed.isr) < self.min_isr
        if self.under_min_isr and not was:
            self.fail_commits(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    @property
    def min_isr(self) -> int:
        """The effective min.insync.replicas."""
        return 1 if self.isr is None else effective_min_isr(self.isr.placed, self.config.min_insync_replicas)

    def too_few_replicas(self) -> str:
        """Return the error message for too few in-sync replicas."""
        assert self.isr is not None, "a single replica is always in sync"
        return f"{len(self.isr.placed.isr)} replicas are in sync, min.insync.replicas requires {self.min_isr}"

    def reconfigure(self, config: TopicConfig) -> None:
        """Apply new topic settings."""
        self.config = config
        if self.isr is not None:
            self.update_min_isr()
        self.delivery = self.delayed.reconfigure(self, self.delivery)
        self.schedule = start_schedule(self.delayed, self, self.schedule)
        super().reconfigure(config)

    def record_fetch(self, replica: Member, fetch_offset: int, flushed_offset: int, log_start_offset: int) -> ErrorCode:
        """Record a follower's fetch: its log end, flushed offset and log start offset."""
        isr = self.isr
        if isr is None or self.ended:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        progress = isr.record(replica, fetch_offset, flushed_offset, self.log.end_offset, self.clock.boot_ms())
        if progress is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        progress.log_start_offset = log_start_offset
        self.advance()
        self.complete_deletions()
        if progress not in isr.committed and isr.pending is None:
            self.expand_isr()
        return ErrorCode.NONE

    def is_abandoned(self, offset: int, time_ms: float) -> bool:
        """Return whether an ISR member without all records below `offset` has not fetched since `time_ms` (boot)."""
        members = () if self.isr is None else self.isr.maximal
        return any(p.flushed_offset < offset and not (p.has_fetched and p.last_fetch_ms > time_ms) for p in members)

    def expand_isr(self) -> None:
        """Propose to add followers that have reached the high watermark and this epoch's start. Those that may not join
        yet are checked again: an idle partition has no further fetches."""
        isr = self.isr
        if isr is None or isr.pending is not None or self.ended:
            return
        reached = max(self.high_watermark, isr.epoch_start)
        caught_up = [p for p in isr.out_of_sync() if p.flushed_offset >= reached]
        joined = [(p.broker_id, p.epoch) for p in caught_up if self.host.may_join(p.broker_id, p.epoch)]
        if joined:
            self.propose(set(), joined)
        elif caught_up:
            self.start_watching()

    def check_lagging(self, now_ms: int, max_lag_ms: int) -> bool:
        """Propose to remove followers that lag for longer than `max_lag_ms`. Returns whether to check again."""
        isr = self.isr
        if isr is None or self.ended or self.log.failed is not None:
            self.watched = False
            return False
        if isr.pending is None:
            lagging = isr.lagging(self.log.end_offset)
            removed = {p.broker_id for p in lagging if self.is_lagging(p, now_ms, max_lag_ms)}
            if removed:
                self.propose(removed, [])
            else:
                self.expand_isr()
        self.watched = isr.pending is not None or bool(isr.lagging(self.log.end_offset)) or bool(isr.out_of_sync())
        return self.watched

    def is_lagging(self, progress: ReplicaProgress, now_ms: int, max_lag_ms: int) -> bool:
        """Return whether a follower lags for too long. Before the watch started, no follower lagged."""
        return now_ms - max(progress.caught_up_ms, self.watched_ms) > max_lag_ms

    def propose(self, removed: set[int], joined: list[Member]) -> None:
        """Propose an ISR change."""
        assert self.isr is not None, "a single replica has no ISR to change"
        assert self.isr.pending is None, f"an ISR change of {self!r} is pending: {self.isr.pending}"
        change = self.isr.make_change(self.key, self.host.own_epoch, removed, joined, self.min_isr)
        assert change.leader in change.isr, f"{self!r} would leave its ISR: {change}"
        self.isr.pending = change
        self.isr.update_members()
        self.host.propose(self, change)

    def on_change_refused(self, change: IsrChange) -> None:
        """Drop a pending ISR change that the store refused. The partition's record is unchanged."""
        isr = self.isr
        if isr is not None and isr.pending is change:
            isr.pending = None
            isr.update_members()
            self.start_watching()
            self.advance()
            self.complete_deletions()

    def on_log_growth(self) -> None:
        """Notify followers of an append, and watch them."""
        if not self.watched:
            self.start_watching()
        for listener in self.fetch_listeners.values():
            listener.on_append(True)

    def start_watching(self) -> None:
        """Request periodic checks of the ISR."""
        if not self.watched:
            self.watched, self.watched_ms = True, self.clock.boot_ms()
            self.host.watch(self)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch up to `epoch`, first offset of a later one), also for this epoch; else (-1, -1)."""
        log = self.log
        if epoch == self.leader_epoch:
            return epoch, log.end_offset
        latest = log.latest_epoch
        if 0 <= latest <= epoch < self.leader_epoch:
            return latest, log.end_offset
        return log.epoch_end_offset(epoch)

    # Commits

    def when_committed(self, required_offset: int, callback: Callable[[int], None]) -> None:
        """Call back with an error code: 0 once the high watermark reaches `required_offset`, which mostly rises."""
        if self.log.failed is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        if self.ended or self.under_min_isr:
            over = ErrorCode.NOT_LEADER_OR_FOLLOWER
            callback(over if self.ended else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            return
        waiters = self.commit_waiters
        waiter = CommitWaiter(required_offset, callback)
        if not waiters or waiters[-1].required_offset <= required_offset:
            waiters.append(waiter)
            return
        at = next(i for i, w in enumerate(waiters) if w.required_offset > required_offset)
        waiters.insert(at, waiter)

    def advance(self) -> None:
        """Advance the high watermark to what all in-sync replicas have, and wake waiters. It stops below
        min.insync.replicas, so that replicas that leave the ISR then have all committed records (KIP-966)."""
        log = self.log
        reached = log.flushed_offset if self.flushes_each_batch else log.end_offset
        if self.isr is not None:
            reached = self.high_watermark if self.under_min_isr else self.isr.min_flushed_offset(reached)
        if reached <= self.high_watermark or self.ended:
            return
        assert reached <= log.end_offset, f"{reached} is past the end of {log}"
        grown = self.unseen_bytes
        if reached < log.end_offset:  # the rest is not flushed yet and wakes readers later
            before = self.high_watermark
            grown = grown * (reached - before) // (log.end_offset - before)
        self.unseen_bytes -= grown
        self.high_watermark = reached
        if self.unflushed and reached >= self.acknowledged_offset:
            self.unflushed.pop(self, None)
        waiters = self.commit_waiters
        while waiters and waiters[0].required_offset <= reached:
            waiters.popleft().callback(0)
        if self.delivery is not None:
            self.delivery.advance()
        elif self.readers:
            self.notify_readers(max(grown, 1))
        self.notify_relay()
        if self.fetch_listeners:
            for listener in self.fetch_listeners.values():
                listener.on_append(False)

    # Deletions

    def readable_end(self) -> int:
        """Return the offset below which records may be deleted or compacted: no scheduled record waits there."""
        end = self.stable_end_of_relay
        return end if self.schedule is None else min(end, self.schedule.retention_end)

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the in-sync replicas; -1 while one has not reported its own."""
        own_offset = min(self.log.start_offset, self.log.durable_start_offset)
        return own_offset if self.isr is None else self.isr.min_start_offset(own_offset)

    def when_deleted(self, deletion: DeletionWaiter) -> None:
        """Call `deletion` back once all in-sync replicas have deleted. Called when this log durably starts at its
        offset."""
        if self.log.failed is not None or self.ended:
            over = ErrorCode.NOT_LEADER_OR_FOLLOWER
            deletion.callback(over if self.log.failed is None else ErrorCode.KAFKA_STORAGE_ERROR)
            return
        if deletion.offset <= self.low_watermark:
            deletion.callback(0)
            return
        self.deletions.add(deletion)
        for listener in self.fetch_listeners.values():
            listener.on_append(True)

    def complete_deletions(self) -> None:
        """Complete the waiters whose records all in-sync replicas have deleted."""
        if self.deletions:
            self.deletions.complete_up_to(self.low_watermark)

    def on_flushed(self, log: PartitionLog) -> None:
        """Advance the high watermark."""
        assert log is self.log, f"{self!r} heard of {log}, not of its own log"
        self.advance()

    def on_start_moved(self, log: PartitionLog) -> None:
        """Wake readers and followers: the next leader must not have deleted records."""
        if self.schedule is not None:
            self.schedule.on_log_start()
        if self.delivery is not None:
            self.delivery.on_log_start()
        super().on_start_moved(log)
        for listener in self.fetch_listeners.values():
            listener.on_append(False)

    def fail_waiters(self, error: int) -> None:
        """Fail commits, deletions and readers, and answer followers."""
        self.unflushed.pop(self, None)
        for waiting in (self.delivery, self.schedule):
            if waiting is not None:
                waiting.stop()
        self.fail_commits(error)
        self.deletions.fail(error)
        self.wake_readers()
        for listener in list(self.fetch_listeners.values()):
            listener.on_append(True)

    def fail_commits(self, error: int) -> None:
        """Fail all commit waiters."""
        waiters, self.commit_waiters = self.commit_waiters, deque()
        for waiter in waiters:
            waiter.callback(error)
