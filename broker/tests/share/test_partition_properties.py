"""Properties of a share-partition under any sequence of fetches, acknowledgements, failed writes, timeouts and new
leaders, compared with a model that has one entry per record."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from penstock.share.partition import (
    AckBatch,
    AckType,
    AcquireMode,
    AcquireRequest,
    LogBatch,
    ShareLimits,
    SharePartition,
    ShareSnapshot,
)
from penstock.share.redelivery import DeliveryLimit
from penstock.share.state import ShareState, StateVersion, decode_state, encode_state
from penstock.share.window import RecordState
from penstock.wire.errors import ErrorCode

LOCK_MS = 100.0
MAX_LOCKS = 12
LIMIT = 4
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
        self.partition = self.elect()

    def elect(self) -> SharePartition:
        limits = ShareLimits(LOCK_MS, MAX_LOCKS, DeliveryLimit(LIMIT))
        return SharePartition(self.durable, limits)

    @rule(
        size=st.integers(1, 6), gap=st.sampled_from([0, 0, 0, 1, 3]), deliverable=st.sampled_from([True, True, False])
    )
    def append(self, size: int, gap: int, deliverable: bool) -> None:
        first, self.end = self.end + gap, self.end + gap + size
        self.batches.append(LogBatch(first, self.end - 1, deliverable))

    @rule(member=MEMBERS, max_records=st.integers(1, 8), mode=st.sampled_from(AcquireMode), reads=st.integers(1, 4))
    def acquire(self, member: str, max_records: int, mode: AcquireMode, reads: int) -> None:
        self.partition.expire(self.now_ms)
        offset = self.partition.next_fetch_offset()
        if offset is None:
            return
        found = [batch for batch in self.batches if batch.last >= offset][:reads]
        deliverable = {o for b in found if b.is_deliverable for o in range(b.first, b.last + 1)}
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
                record.holder, record.deadline_ms = member, self.now_ms + LOCK_MS
                record.count = acquired_range.delivery_count

    @rule(member=MEMBERS, data=st.data(), ack_type=TYPES)
    def acknowledge_what_it_holds(self, member: str, data: st.DataObject, ack_type: AckType) -> None:
        """Members mostly acknowledge what they hold, in part or whole."""
        held = sorted(o for o, r in self.known.items() if r.holder == member and r.outcome is None)
        held = [o for o in held if self.partition.start_offset <= o < self.partition.window.end_offset]
        if held:
            first = data.draw(st.sampled_from(held))
            last = first
            while last + 1 in held and data.draw(st.booleans()):
                last += 1
            self.acknowledge_range(member, first, last, [ack_type])

    @rule(member=MEMBERS, data=st.data())
    def acknowledge_anything(self, member: str, data: st.DataObject) -> None:
        start = self.partition.start_offset
        first = data.draw(st.integers(max(start - 2, 0), max(self.partition.window.end_offset + 1, 2)))
        last = first + data.draw(st.integers(0, 4))
        size = last - first + 1
        types = data.draw(st.lists(TYPES, min_size=size, max_size=size) | TYPES.map(lambda t: [t]))
        self.acknowledge_range(member, first, last, types)

    def acknowledge_range(self, member: str, first: int, last: int, types: list[AckType]) -> None:
        start, size = self.partition.start_offset, last - first + 1
        result = self.partition.acknowledge(member, [AckBatch(first, last, types)], self.now_ms)
        by_offset = dict(zip(range(first, last + 1), types * (size // len(types)), strict=True))
        current = {o: t for o, t in by_offset.items() if o >= start}
        holds = all(
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
                self.known[o].outcome, self.known[o].writes = ack_type, {result.write}

    @rule(passed_ms=st.sampled_from([1, 40, 99, 100]))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.partition.expire(self.now_ms)
        for run in self.partition.window:
            assert not run.is_locked or self.known[run.first].deadline_ms > self.now_ms, f"{run} is held too long"

    @rule(member=MEMBERS)
    def end_session(self, member: str) -> None:
        self.partition.release_member(member, self.now_ms)
        for record in self.known.values():
            if record.holder == member and record.outcome is None:
                record.holder = ""

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
                    record.holder = ""
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
            record.count = 0
        self.gone = {o for o in range(self.end) if o < self.durable.start_offset}
        for run in self.durable.runs:
            if run.state.is_final:
                self.gone.update(range(run.first, run.last + 1))
            for o in range(run.first, run.last + 1):
                self.known.setdefault(o, Delivered()).count = run.delivery_count
        self.partition = self.elect()

    @rule(kept=st.integers(0, 3))
    def delete_records(self, kept: int) -> None:
        if len(self.batches) > kept:
            self.batches = self.batches[len(self.batches) - kept :]
            self.log_start = self.batches[0].first if self.batches else self.end
            self.partition.on_log_start(self.log_start)

    @invariant()
    def the_window_is_consistent(self) -> None:
        self.partition.window.verify()
        assert self.partition.window.delivered <= MAX_LOCKS
        for run in self.partition.window:
            if run.state is RecordState.ACQUIRED:
                assert {self.known[o].holder for o in range(run.first, run.last + 1)} == {run.member}
            assert not run.state.is_final or run is not self.partition.window.runs[0]

    def teardown(self) -> None:
        """Every record that was neither accepted, rejected, deleted nor over its limit is delivered in the end."""
        if self.writing is not None:
            self.complete_write(True, True)
        deliverable = {o for b in self.batches if b.is_deliverable for o in range(b.first, b.last + 1)}
        exhausted = {o for o, r in self.known.items() if r.count >= LIMIT}
        expected = {o for o in deliverable - self.final - exhausted - self.gone if o >= self.log_start}
        got: set[int] = set()
        for _ in range(4 * len(expected) + 8):
            self.now_ms += LOCK_MS
            self.partition.expire(self.now_ms)
            if (offset := self.partition.next_fetch_offset()) is None:
                break
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
        assert not got & self.final, f"delivered again: {sorted(got & self.final)}"


def test_records_are_delivered_until_final_and_never_after() -> None:
    run_state_machine_as_test(
        SharePartitionLife,
        settings=settings(
            max_examples=100,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
