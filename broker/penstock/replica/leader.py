"""The leader's role for one partition: takes in batches, follows who is in sync, moves the high watermark.

Called by the Produce handler for each partition of a request, by the Fetch handler for each that a follower fetches,
and by the flusher when a flush has returned. Runs on the event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.config.values import TopicConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogDirFailed, LogFull
from penstock.replica.acceptance import SEQUENCE_ERRORS, Appended, explain, has_times_in_bounds
from penstock.replica.blocked_producers import BlockedProducers
from penstock.replica.deletions import Deletion, Deletions
from penstock.replica.inspection import Inspection, check_times, inspect_fully
from penstock.replica.isr import InSyncReplicas, IsrChange, Member, ReplicaProgress, effective_min_isr
from penstock.replica.partition import Partition
from penstock.replica.producer_state import ProducerState, RecentBatches, SequenceCheck
from penstock.runtime.clock import Clock
from penstock.state.view import PartitionView
from penstock.wire.batch import HEADER_SIZE, BatchHeader, read_header, stamp, stamp_log_append_time
from penstock.wire.batch_check import validate_batch
from penstock.wire.control_batch import Marker, build_marker
from penstock.wire.errors import ErrorCode


class CommitWaiter(NamedTuple):
    required_offset: int
    callback: Callable[[int], None]


class FetchListener(Protocol):
    """A follower's place in a partition, which is told when there is something to fetch."""

    def on_append(self, urgent: bool) -> None:
        """Not `urgent`: only the high watermark or the log start has moved. Else a fetch shall be answered at once."""


class LeaderHost(Protocol):
    """What a leader with followers needs of its broker."""

    @property
    def own_epoch(self) -> int:
        """The epoch of this broker's registration."""

    def watch(self, leader: Leader) -> None:
        """From now on somebody lags behind: `look` is to be called from time to time, until it returns False."""

    def may_join(self, broker_id: int, epoch: int) -> bool:
        """Whether this incarnation of a broker is registered and not draining, as far as is known here."""

    def propose(self, leader: Leader, change: IsrChange) -> None:
        """Has a change of the ISR written; a new view follows, or `Leader.refused`."""

    def resign(self, leader: Leader) -> None:
        """The leader's log has failed: another should lead."""


new = tuple.__new__
"""What `Appended` does, but for a call in Python."""


class Leader(Partition):
    """The role for one leader epoch. `isr` is None where nobody else has a replica: then nothing of it costs anything.

    `high_watermark` is what this broker knew of it in its last role, None where it had none since it started.
    """

    __slots__ = (
        "acknowledged_offset", "commit_waiters", "deletions", "held_up", "host", "isr", "tails", "under_min_isr",
        "unflushed", "watched", "watched_ms",
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
        host: LeaderHost | None = None,
        broker_id: int = -1,
        placed: PartitionView | None = None,
        high_watermark: int | None = None,
        held_up: BlockedProducers | None = None,
        unflushed: dict[Leader, None] | None = None,
    ) -> None:
        self.acknowledged_offset = 0
        """The end of the last batch that was acknowledged when it was written (acks=0 or acks=1)."""
        self.unflushed = {} if unflushed is None else unflushed
        """Leaders with acknowledged records above the high watermark that only their own flush keeps there."""
        self.commit_waiters: deque[CommitWaiter] = deque()
        self.deletions = Deletions()
        self.tails: dict[int, FetchListener] = {}
        """By broker id, who is told of news."""
        self.host = host
        self.isr: InSyncReplicas | None = None
        self.held_up = held_up or BlockedProducers()
        self.under_min_isr = False
        self.watched = False
        self.watched_ms = 0
        known = log.start_offset if high_watermark is None else high_watermark
        super().__init__(name, topic_id, index, leader_epoch, log, producers, clock, known)
        if placed is not None:
            self.follow_view(broker_id, placed)
        self.advance()

    # Taking in batches

    def append(
        self,
        batch: memoryview,
        all_in_sync: bool = False,
        verified: bool = False,
        inspection: Inspection | None = None,
    ) -> Appended:
        """Checks and appends the batch that a producer sent; `batch` is written to (offsets, epoch, perhaps times).

        With `all_in_sync` (acks=all) nothing is taken while fewer than min.insync.replicas are there; without it the
        caller acknowledges the batch at once. `verified` says that the batch's transaction is open here, or that
        its coordinator knows this partition to be part of it. `inspection` is what was found inside the batch, or None.
        """
        if self.name in INTERNAL_TOPICS:
            return Appended(ErrorCode.INVALID_TOPIC_EXCEPTION, message="the topic's name belongs to Kafka itself")
        if len(batch) >= HEADER_SIZE:
            # Neither is under the CRC, so the header is read once, as it will be written.
            stamp(batch, 0, self.log.end_offset, self.leader_epoch)
        header = validate_batch(batch, self.config.max_message_bytes)
        if isinstance(header, ErrorCode):
            return Appended(header, message=explain(header))
        if all_in_sync and self.under_min_isr:
            return self.hold_up(header, ErrorCode.NOT_ENOUGH_REPLICAS, self.too_few())
        now_ms = self.clock.wall_ms()
        if not has_times_in_bounds(self.config, now_ms, header):
            refusal = check_times(batch, header, self.config, now_ms)
            if refusal is not None:
                return refusal
        if inspection is None:
            inspection = inspect_fully(batch, header, self.config, self.name)
        if inspection.refusal is not None:
            return inspection.refusal
        if header.producer_id >= 0:
            verdict, original = self.producers.check(header, verified)
            if verdict is SequenceCheck.DUPLICATE:
                assert original is not None
                if not all_in_sync:
                    self.acknowledge(original.last_offset + 1)
                return self.repeated(original)
            if verdict is not SequenceCheck.APPEND:
                code, message = SEQUENCE_ERRORS[verdict]
                if verdict is SequenceCheck.OUT_OF_ORDER:
                    code = self.held_up.code_for(header.producer_id, self.clock.boot_ms()) or code
                return Appended(code, message=message)
            if self.held_up.refused and not self.producers.has_batches(header.producer_id):
                before = self.held_up.code_before(header, self.clock.boot_ms())
                if before is not None:
                    return Appended(before, message="a batch before this one was refused")
        if inspection.batch is not None:
            batch = inspection.batch
            stamp(batch, 0, self.log.end_offset, self.leader_epoch)
            header = read_header(batch)
        if all_in_sync:
            return self.write(batch, header)
        done = self.write(batch, header)
        if not done[0]:
            self.acknowledge(done[3])
        return done

    def acknowledge(self, end_offset: int) -> None:
        """Record that all below `end_offset` is acknowledged, although it may not be flushed yet."""
        if end_offset > self.acknowledged_offset:
            self.acknowledged_offset = end_offset
            if end_offset > self.high_watermark and self.flushes_alone:
                self.unflushed[self] = None

    @property
    def flushes_alone(self) -> bool:
        """Whether the high watermark follows this broker's own flushes, as no other replica is in sync."""
        return self.isr is None or not (self.isr.maximal or self.under_min_isr)

    @property
    def acknowledged_end(self) -> int:
        """The high watermark, or the end of acknowledged records that only this broker's flush keeps above it."""
        return max(self.high_watermark, self.acknowledged_offset) if self in self.unflushed else self.high_watermark

    def write_marker(self, marker: Marker, *, by_hand: bool = False) -> Appended:
        """Ends a producer's transaction. One that is repeated is not written again, and counts when all that is
        written does."""
        producers, log = self.producers, self.log
        if self.under_min_isr:
            return Appended(ErrorCode.NOT_ENOUGH_REPLICAS, message=self.too_few())
        if by_hand:
            marker = producers.by_hand(marker)
        error = producers.check_marker(marker)
        if error:
            return Appended(error, message="a newer coordinator, or a newer epoch of the producer, has written here")
        if producers.is_marked(marker):
            return Appended(0, required_offset=log.end_offset)
        batch = memoryview(build_marker(marker, self.clock.wall_ms()))
        stamp(batch, 0, log.end_offset, self.leader_epoch)
        return self.write(batch, read_header(batch))

    def write(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Appends a batch that is stamped; `header` is as it stands in it."""
        append_time_ms = -1
        if self.config.message_timestamp_log_append:
            append_time_ms = self.clock.wall_ms()
            stamp_log_append_time(batch, 0, len(batch), header.attributes, append_time_ms)
            header = read_header(batch)
        try:
            self.log.append(batch, header, self.leader_epoch)
        except (LogFull, LogDirFailed) as e:
            return self.hold_up(header, ErrorCode.KAFKA_STORAGE_ERROR, str(e))
        if header.producer_id >= 0:
            self.held_up.over(header.producer_id)
            self.producers.observe(header, batch, self.clock.boot_ms())
        self.messages_in += header.record_count
        self.unseen_bytes += len(batch)
        if self.isr is not None:
            self.on_growth()
        if not self.flushes_each_batch:
            self.advance()
        return new(Appended, (0, header.base_offset, append_time_ms, self.log.end_offset, None, ()))

    def hold_up(self, header: BatchHeader, code: ErrorCode, message: str) -> Appended:
        """Refuses a batch for a reason that passes."""
        if header.producer_id >= 0:
            self.held_up.note(header, code, self.clock.boot_ms())
        return Appended(code, message=message)

    def repeated(self, original: RecentBatches) -> Appended:
        """The answer that the first attempt got, or would have got: it too waits for the high watermark."""
        append_time_ms = original.timestamp_ms if self.config.message_timestamp_log_append else -1
        return Appended(0, original.base_offset, append_time_ms, original.last_offset + 1)

    # Who has what

    @property
    def epoch_start(self) -> int:
        """Where this leader epoch begins; with nobody else there, all that is flushed is behind it."""
        return self.isr.epoch_start if self.isr is not None else self.high_watermark

    def follow_view(self, broker_id: int, placed: PartitionView) -> None:
        """Takes in what the store says of the partition in this leader epoch."""
        if placed.replicas == [broker_id] and placed.isr == [broker_id] and not placed.adding:
            self.isr, self.under_min_isr = None, False
        else:
            if self.isr is None:
                self.isr = InSyncReplicas(broker_id, placed, self.log.end_offset, self.clock.boot_ms())
            else:
                self.isr.take(placed, self.clock.boot_ms())
            self.check_min_isr()
            self.advance()
            self.expand()
            if self.isr.behind(self.log.end_offset):
                self.begin_watch()
        self.advance()
        self.settle_deletions()

    def check_min_isr(self) -> None:
        """Notes whether enough replicas are in sync; where they no longer are, says so to those who wait."""
        isr = self.isr
        assert isr is not None, "a leader alone is always enough"
        was, self.under_min_isr = self.under_min_isr, len(isr.placed.isr) < self.min_isr
        if self.under_min_isr and not was:
            self.fail_commits(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    @property
    def min_isr(self) -> int:
        """min.insync.replicas, as far as there are so many replicas."""
        return 1 if self.isr is None else effective_min_isr(self.isr.placed, self.config.min_insync_replicas)

    def too_few(self) -> str:
        assert self.isr is not None, "a leader alone is always enough"
        return f"{len(self.isr.placed.isr)} replicas are in sync, min.insync.replicas asks for {self.min_isr}"

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        if self.isr is not None:
            self.check_min_isr()
        super().reconfigure(config)

    def record_fetch(self, replica: Member, fetch_offset: int, flushed_offset: int, log_start_offset: int) -> ErrorCode:
        """Takes in that a follower's log ends at `fetch_offset`, agrees with this one, is on disk up to
        `flushed_offset`, and starts at `log_start_offset`."""
        isr = self.isr
        if isr is None or self.ended:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        progress = isr.record(replica, fetch_offset, flushed_offset, self.log.end_offset, self.clock.boot_ms())
        if progress is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        progress.log_start_offset = log_start_offset
        self.advance()
        if self.deletions:
            self.settle_deletions()
        if progress not in isr.committed and isr.pending is None:
            self.expand()
        return ErrorCode.NONE

    def is_abandoned(self, offset: int, time_ms: float) -> bool:
        """Whether a member of the ISR that lacks something below `offset` has not fetched, in this leader epoch, after
        a time of the clock since boot."""
        members = () if self.isr is None else self.isr.maximal
        return any(p.flushed_offset < offset and not (p.heard and p.seen_ms > time_ms) for p in members)

    def expand(self) -> None:
        """Proposes to take in the followers that have caught up with what is committed, and with this epoch's start."""
        isr, host = self.isr, self.host
        if isr is None or host is None or isr.pending is not None or self.ended:
            return
        reached = max(self.high_watermark, isr.epoch_start)
        joined = [
            (p.broker_id, p.epoch)
            for p in isr.outsiders()
            if p.flushed_offset >= reached and host.may_join(p.broker_id, p.epoch)
        ]
        if joined:
            self.propose(host, set(), joined)

    def look(self, now_ms: int, max_lag_ms: int, max_lag_messages: int = -1) -> bool:
        """Proposes to leave out who has lagged for too long, or (unless -1) lacks too many records; whether there is
        still something to look at."""
        isr, host = self.isr, self.host
        if isr is None or host is None or self.ended or self.log.failed is not None:
            self.watched = False
            return False
        if isr.pending is None:
            end = self.log.end_offset
            gone = {
                p.broker_id
                for p in isr.behind(end)
                if self.is_late(p, now_ms, max_lag_ms) or 0 <= max_lag_messages < end - p.flushed_offset
            }
            if gone:
                self.propose(host, gone, [])
            else:
                self.expand()
        self.watched = isr.pending is not None or bool(isr.behind(self.log.end_offset)) or bool(isr.outsiders())
        return self.watched

    def is_late(self, progress: ReplicaProgress, now_ms: int, max_lag_ms: int) -> bool:
        """Before the leader was watched, everybody had all."""
        return now_ms - max(progress.caught_up_ms, self.watched_ms) > max_lag_ms

    def propose(self, host: LeaderHost, gone: set[int], joined: list[Member]) -> None:
        assert self.isr is not None, "a leader alone has no ISR to change"
        change = self.isr.change(self.key, host.own_epoch, gone, joined, self.min_isr)
        assert change.isr, f"the ISR of {self.name}-{self.index} would be empty"
        self.isr.pending = change
        self.isr.count()
        host.propose(self, change)

    def refused(self, change: IsrChange) -> None:
        """The store did not take a change, and the partition's record is as it was."""
        isr = self.isr
        if isr is not None and isr.pending is change:
            isr.pending = None
            isr.count()
            self.begin_watch()
            self.advance()
            self.settle_deletions()

    def on_growth(self) -> None:
        """The log of a partition with followers has grown: they are behind until they have fetched it."""
        if not self.watched:
            self.begin_watch()
        for tail in self.tails.values():
            tail.on_append(True)

    def begin_watch(self) -> None:
        if not self.watched and self.host is not None:
            self.watched, self.watched_ms = True, self.clock.boot_ms()
            self.host.watch(self)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch up to `epoch` that wrote, the first offset that a later one wrote or will write).

        (-1, -1) where unknown. This epoch counts from its beginning, though nothing may have been written in it.
        """
        log = self.log
        if epoch == self.leader_epoch:
            return epoch, log.end_offset
        latest = log.latest_epoch
        if 0 <= latest <= epoch < self.leader_epoch:
            return latest, log.end_offset
        return log.epoch_end_offset(epoch)

    # What is committed

    def when_committed(self, required_offset: int, callback: Callable[[int], None]) -> None:
        """Calls back with an error code, 0 when the high watermark has reached `required_offset`.

        Offsets mostly come in rising order; a repeated batch may ask for an earlier one.
        """
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
        """Moves the high watermark to what all in-sync replicas have, and wakes those who waited for it.

        Below min.insync.replicas it stands still, so that who leaves the ISR then has all that is committed (KIP-966).
        """
        log = self.log
        reached = log.flushed_offset if self.flushes_each_batch else log.end_offset
        if self.isr is not None:
            reached = self.high_watermark if self.under_min_isr else self.isr.flushed_everywhere(reached)
        if reached <= self.high_watermark or self.ended:
            return
        assert reached <= log.end_offset, f"{reached} is past the end of {log}"
        grown = self.unseen_bytes
        if reached < log.end_offset:  # the rest came while this was being flushed, and is to wake readers too
            before = self.high_watermark
            grown = grown * (reached - before) // (log.end_offset - before)
        self.unseen_bytes -= grown
        self.high_watermark = reached
        if self.unflushed and reached >= self.acknowledged_offset:
            self.unflushed.pop(self, None)
        waiters = self.commit_waiters
        while waiters and waiters[0].required_offset <= reached:
            waiters.popleft().callback(0)
        if self.readers:
            for reader in list(self.readers):
                reader.on_data(max(grown, 1))
        if self.tails:
            for tail in self.tails.values():
                tail.on_append(False)

    # What is deleted

    @property
    def low_watermark(self) -> int:
        """What is below it no in-sync replica has; -1 where one of them has told nothing yet."""
        own_offset = min(self.log.start_offset, self.log.durable_start_offset)
        return own_offset if self.isr is None else self.isr.starts_everywhere(own_offset)

    def when_deleted(self, deletion: Deletion) -> None:
        """Has `deletion` called back; to be called when this log starts at its offset, durably."""
        if self.log.failed is not None or self.ended:
            over = ErrorCode.NOT_LEADER_OR_FOLLOWER
            deletion.callback(over if self.log.failed is None else ErrorCode.KAFKA_STORAGE_ERROR)
            return
        if deletion.offset <= self.low_watermark:
            deletion.callback(0)
            return
        self.deletions.wait(deletion)
        for tail in self.tails.values():
            tail.on_append(True)

    def settle_deletions(self) -> None:
        if self.deletions:
            self.deletions.settle(self.low_watermark)

    def on_flushed(self, log: PartitionLog) -> None:
        assert log is self.log
        self.advance()

    def on_start_moved(self, log: PartitionLog) -> None:
        """Followers too are told with their next answer: who may lead next must not have what was deleted."""
        super().on_start_moved(log)
        for tail in self.tails.values():
            tail.on_append(False)

    def on_failed(self, log: PartitionLog) -> None:
        super().on_failed(log)
        if self.host is not None:
            self.host.resign(self)

    def fail_waiters(self, error: int) -> None:
        self.unflushed.pop(self, None)
        self.fail_commits(error)
        self.deletions.fail(error)
        self.wake_readers()
        for tail in list(self.tails.values()):
            tail.on_append(True)

    def fail_commits(self, error: int) -> None:
        waiters, self.commit_waiters = self.commit_waiters, deque()
        for waiter in waiters:
            waiter.callback(error)
