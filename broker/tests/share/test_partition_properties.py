"""Properties of a share-partition under any sequence of fetches, acknowledgements, failed writes, timeouts and new
leaders, with and without back-off, order by key and filter, compared with a model that has one entry per record."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from share_partition_kit import filtered, keyed

from penstock.share.acknowledgement import AckBatch, AckType
from penstock.share.acquisition import AcquireMode, AcquireRequest
from penstock.share.partition import LogBatch, ShareLimits, SharePartition, ShareSnapshot
from penstock.share.redelivery import DELAY_STEP_MS, GROUP_BACKOFF, NO_BACKOFF, DeliveryLimit, RedeliveryBackoff
from penstock.share.state import ShareState, StateVersion, decode_state, encode_state
from penstock.share.window import RecordState
from penstock.wire.errors import ErrorCode

LOCK_MS = 100.0
MAX_LOCKS = 12
LIMIT = 4
BACKOFF = RedeliveryBackoff(50, 2, 120)
DELAYS = st.sampled_from([GROUP_BACKOFF, GROUP_BACKOFF, 0, 35, 200])
LONGEST_MS = 200 + DELAY_STEP_MS
"""The longest that a record is not delivered again."""
MEMBERS = st.sampled_from(["a", "b", "c"])
TYPES = st.sampled_from(list(AckType))


@dataclass
class Delivered:
    """What the members know of a record, since the leader's election."""

    holder: str = ""
    deadline_ms: float = 0.0
    count: int = 0
    outcome: AckType | None = None
    """The acknowledgement that waits for its write."""
    writes: set[int] = field(default_factory=set)
    delay_ms: float = 0.0
    """That of the acknowledgement that waits for its write, from `acknowledged_ms` on."""
    acknowledged_ms: float = 0.0
    ready_ms: float = 0.0
    """The record is not delivered before."""


class SharePartitionLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms, self.leader_epoch, self.write = 0.0, 0, 0
        self.batches: list[LogBatch] = []
        self.log_start = self.end = 0
        self.durable = ShareSnapshot(0, [])
        self.writing: ShareSnapshot | None = None
        self.known: dict[int, Delivered] = {}
        self.final: set[int] = set()
        """Offsets whose acceptance or rejection was answered."""
        self.gone: set[int] = set()
        """Offsets that were final in the store when the last leader was elected."""
        self.keys: dict[int, str] = {}
        """The keys of deliverable records that have one."""
        self.unmatched: set[int] = set()
        """Offsets of records that do not pass the filter."""
        self.is_ordered, self.is_filtered, self.backoff = False, False, NO_BACKOFF
        self.partition = self.elect()

    @property
    def limits(self) -> ShareLimits:
        return ShareLimits(LOCK_MS, MAX_LOCKS, DeliveryLimit(LIMIT, self.backoff), is_ordered=self.is_ordered)

    def elect(self) -> SharePartition:
        self.deleted_below = 0
        return SharePartition(self.durable, self.limits, self.now_ms)

    @initialize(is_ordered=st.booleans(), is_filtered=st.booleans(), backoff=st.sampled_from([NO_BACKOFF, BACKOFF]))
    def configure(self, is_ordered: bool, is_filtered: bool, backoff: RedeliveryBackoff) -> None:
        self.is_ordered, self.is_filtered, self.backoff = is_ordered, is_filtered, backoff
        self.partition = self.elect()

    @rule(is_ordered=st.booleans())
    def configure_order(self, is_ordered: bool) -> None:
        self.is_ordered = is_ordered
        self.partition.configure(self.limits)

    @rule(
        keys=st.text("abA-", min_size=1, max_size=6),
        gap=st.sampled_from([0, 0, 0, 1, 3]),
        deliverable=st.sampled_from([True, True, False]),
    )
    def append(self, keys: str, gap: int, deliverable: bool) -> None:
        first, self.end = self.end + gap, self.end + gap + len(keys)
        batch = filtered(first, keys) if self.is_filtered else keyed(first, keys)
        self.batches.append(batch._replace(is_deliverable=deliverable))
        if self.is_filtered:
            self.unmatched |= {offset for offset, key in enumerate(keys, first) if key.isupper()}
            keys = keys.lower()
        if deliverable:
            self.keys |= {offset: key for offset, key in enumerate(keys, first) if key != "-"}

    @rule(member=MEMBERS, max_records=st.integers(1, 8), mode=st.sampled_from(AcquireMode), reads=st.integers(1, 4))
    def acquire(self, member: str, max_records: int, mode: AcquireMode, reads: int) -> None:
        self.partition.expire(self.now_ms)
        offset = self.partition.next_fetch_offset()
        if offset is None:
            return
        found = [batch for batch in self.batches if batch.last >= offset][:reads]
        deliverable = {o for b in found if b.is_deliverable for o in range(b.first, b.last + 1)} - self.unmatched
        acquired = self.partition.acquire(AcquireRequest(member, max_records, mode), offset, found, self.now_ms)
        offsets = [o for r in acquired for o in range(r.first, r.last + 1)]
        assert offsets == sorted(set(offsets))
        assert deliverable.issuperset(offsets)
        if mode is AcquireMode.RECORD_LIMIT:
            assert len(offsets) <= max_records
        for acquired_range in acquired:
            for o in range(acquired_range.first, acquired_range.last + 1):
                record = self.known.setdefault(o, Delivered())
                assert not record.holder or record.deadline_ms <= self.now_ms, f"{o} has two holders"
                assert record.outcome is None, f"{o} was delivered during its acknowledgement"
                assert o not in self.final, f"{o} was delivered after its acknowledgement was answered"
                assert record.count < acquired_range.delivery_count <= LIMIT, f"the delivery count of {o}"
                assert record.ready_ms <= self.now_ms, f"{o} was delivered during its back-off"
                self.check_order(o)
                record.holder, record.deadline_ms = member, self.now_ms + LOCK_MS
                record.count = acquired_range.delivery_count

    def check_order(self, offset: int) -> None:
        """The store has the earlier records of the key as done. Deleted ones do not count."""
        for earlier, key in self.keys.items() if self.is_ordered else ():
            if self.log_start <= earlier < offset and key == self.keys.get(offset):
                assert self.is_done(earlier), f"{offset} was delivered before {earlier}, which has its key"

    def is_done(self, offset: int) -> bool:
        is_stored = offset < self.durable.start_offset or any(
            run.first <= offset <= run.last and not run.state.is_open for run in self.durable.runs
        )
        return is_stored or offset in self.unmatched

    def release(self, record: Delivered, since_ms: float, delay_ms: float) -> None:
        record.holder, record.ready_ms = "", since_ms + delay_ms

    @rule(member=MEMBERS, data=st.data(), ack_type=TYPES, delay_ms=DELAYS)
    def acknowledge_what_it_holds(self, member: str, data: st.DataObject, ack_type: AckType, delay_ms: int) -> None:
        """Members mostly acknowledge what they hold, in part or whole."""
        held = sorted(o for o, r in self.known.items() if r.holder == member and r.outcome is None)
        held = [o for o in held if self.partition.start_offset <= o < self.partition.window.end_offset]
        if held:
            first = data.draw(st.sampled_from(held))
            last = first
            while last + 1 in held and data.draw(st.booleans()):
                last += 1
            self.acknowledge_range(member, first, last, [ack_type], delay_ms)

    @rule(member=MEMBERS, data=st.data())
    def acknowledge_anything(self, member: str, data: st.DataObject) -> None:
        start = self.partition.start_offset
        first = data.draw(st.integers(max(start - 2, 0), max(self.partition.window.end_offset + 1, 2)))
        last = first + data.draw(st.integers(0, 4))
        size = last - first + 1
        types = data.draw(st.lists(TYPES, min_size=size, max_size=size) | TYPES.map(lambda t: [t]))
        self.acknowledge_range(member, first, last, types)

    def acknowledge_range(
        self, member: str, first: int, last: int, types: list[AckType], delay_ms: int = GROUP_BACKOFF
    ) -> None:
        start, size = self.partition.start_offset, last - first + 1
        result = self.partition.acknowledge(member, [AckBatch(first, last, types, delay_ms)], self.now_ms)
        by_offset = dict(zip(range(first, last + 1), types * (size // len(types)), strict=True))
        current = {o: t for o, t in by_offset.items() if o >= start}
        is_done = any(self.deleted_below <= o < start for o in by_offset)
        holds = not is_done and all(
            (r := self.known.get(o)) is not None
            and r.holder == member
            and r.deadline_ms > self.now_ms
            and r.outcome is None
            for o in current
        )
        if last >= self.partition.window.end_offset:
            assert result.error is ErrorCode.INVALID_REQUEST
            return
        assert (result.error is ErrorCode.NONE) is holds, f"{member} acknowledges {first}-{last}: {result}"
        if not holds:
            return
        for o, ack_type in current.items():
            if ack_type is AckType.RENEW:
                self.known[o].deadline_ms = self.now_ms + LOCK_MS
            else:
                record = self.known[o]
                record.outcome, record.writes, record.acknowledged_ms = ack_type, {result.write}, self.now_ms
                record.delay_ms = self.backoff.after(record.count) if delay_ms == GROUP_BACKOFF else delay_ms

    @rule(passed_ms=st.sampled_from([1, 40, 99, 100]))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.partition.expire(self.now_ms)
        for record in self.known.values():
            if record.holder and record.outcome is None and record.deadline_ms <= self.now_ms:
                self.release(record, record.deadline_ms, self.backoff.after(record.count))
        for run in self.partition.window:
            assert not run.is_locked or self.known[run.first].deadline_ms > self.now_ms, f"{run} is held too long"
            if run.state is RecordState.AVAILABLE and run.delay_ends_ms:
                assert self.now_ms < run.delay_ends_ms <= self.now_ms + LONGEST_MS, f"{run} waits too long"

    @rule(member=MEMBERS)
    def end_session(self, member: str) -> None:
        self.partition.release_member(member, self.now_ms)
        for record in self.known.values():
            if record.holder == member and record.outcome is None:
                self.release(record, self.now_ms, self.backoff.after(record.count))

    @precondition(lambda self: self.writing is None)
    @rule()
    def begin_write(self) -> None:
        self.writing = self.partition.begin_write()

    @precondition(lambda self: self.writing is not None)
    @rule(answered=st.booleans(), stored=st.booleans())
    def complete_write(self, answered: bool, stored: bool) -> None:
        """A write that is answered is stored; one that is not may be stored all the same."""
        assert self.writing is not None
        if answered or stored:
            self.store(self.writing)
        self.writing = None
        write = self.partition.complete_write(answered)
        for o, record in self.known.items():
            if write in record.writes:
                if answered and record.outcome is not AckType.RELEASE:
                    self.final.add(o)
                if answered:
                    self.release(record, record.acknowledged_ms, record.delay_ms)
                record.outcome, record.writes = None, set()

    def store(self, snapshot: ShareSnapshot) -> None:
        self.write += 1
        encoded = encode_state(ShareState(StateVersion(0, self.leader_epoch, self.write), snapshot))
        self.durable = decode_state(encoded).snapshot

    @rule(stored=st.booleans())
    def fail_over(self, stored: bool) -> None:
        """The leader dies, with a write under way that may or may not be stored."""
        if stored and self.writing is not None:
            self.store(self.writing)
        self.writing, self.leader_epoch = None, self.leader_epoch + 1
        for record in self.known.values():
            record.holder, record.outcome, record.writes = "", None, set()
            record.count, record.ready_ms = 0, 0.0
        self.gone = {o for o in range(self.end) if o < self.durable.start_offset}
        for run in self.durable.runs:
            if run.state.is_final:
                self.gone.update(range(run.first, run.last + 1))
            for o in range(run.first, run.last + 1):
                record = self.known.setdefault(o, Delivered())
                record.count, record.ready_ms = run.delivery_count, self.now_ms + self.backoff.after(run.delivery_count)
        self.partition = self.elect()

    @rule(kept=st.integers(0, 3))
    def delete_records(self, kept: int) -> None:
        if len(self.batches) > kept:
            self.batches = self.batches[len(self.batches) - kept :]
            self.log_start = self.batches[0].first if self.batches else self.end
            if self.log_start > self.partition.start_offset:
                self.deleted_below = self.log_start
            self.partition.on_log_start(self.log_start)

    @invariant()
    def the_window_is_consistent(self) -> None:
        self.partition.window.verify()
        assert self.partition.window.tracked <= MAX_LOCKS
        for run in self.partition.window:
            if run.state is RecordState.ACQUIRED:
                assert {self.known[o].holder for o in range(run.first, run.last + 1)} == {run.member}
            assert not run.state.is_final or run is not self.partition.window.runs[0]

    def teardown(self) -> None:
        """Every record that was neither accepted, rejected, deleted nor over its limit is delivered in the end."""
        if self.writing is not None:
            self.complete_write(True, True)
        if (writing := self.partition.begin_write()) is not None:
            self.writing = writing
            self.complete_write(True, True)
        deliverable = {o for b in self.batches if b.is_deliverable for o in range(b.first, b.last + 1)} - self.unmatched
        exhausted = {o for o, r in self.known.items() if r.count >= LIMIT}
        expected = {o for o in deliverable - self.final - exhausted - self.gone if o >= self.log_start}
        got: set[int] = set()
        for _ in range(4 * len(expected) + 8):
            self.now_ms += LOCK_MS + LONGEST_MS
            self.partition.expire(self.now_ms)
            if (offset := self.partition.next_fetch_offset()) is None:
                continue  # locks have just timed out, and all of their records are in back-off
            read = [batch for batch in self.batches if batch.last >= offset]
            acquired = self.partition.acquire(AcquireRequest("z", 100), offset, read, self.now_ms)
            offsets = {o for r in acquired for o in range(r.first, r.last + 1)}
            got |= offsets
            if acquired:
                acks = [AckBatch(r.first, r.last, [AckType.ACCEPT]) for r in acquired]
                assert self.partition.acknowledge("z", acks, self.now_ms).error is ErrorCode.NONE
            if self.partition.begin_write() is not None:
                self.partition.complete_write(True)
        assert expected <= got, f"never delivered: {sorted(expected - got)}"
        assert not got & self.unmatched, f"delivered against the filter: {sorted(got & self.unmatched)}"
        assert not got & self.final, f"delivered again: {sorted(got & self.final)}"


def test_records_are_delivered_until_final_and_never_after() -> None:
    run_state_machine_as_test(
        SharePartitionLife,
        settings=settings(
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
