"""The progress of a partition's followers and the ISR that bounds the high watermark. Used by `leader`; no I/O.

Members are (broker id, broker epoch): a restarted broker is a new member without progress. While an ISR change is
pending, the members before and after it count (the maximal ISR, KIP-497).
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from penstock.state.view import PartitionView

Member = tuple[int, int]
"""(broker id, broker epoch). Epoch -1, in records without epochs, matches any incarnation."""
ANY_EPOCH = -1
UNKNOWN = -1


class ReplicaProgress:
    """The progress of one incarnation of a follower in this leader epoch."""

    __slots__ = (
        "broker_id", "caught_up_ms", "epoch", "fetch_offset", "flushed_offset", "has_fetched", "last_fetch_ms",
        "last_leader_end", "log_start_offset",
    )  # fmt: skip

    def __init__(self, broker_id: int, epoch: int, now_ms: int) -> None:
        self.broker_id, self.epoch = broker_id, epoch
        self.fetch_offset = UNKNOWN
        """Its log end offset."""
        self.flushed_offset = UNKNOWN
        """The end of its durable log, or of its written log if the topic's settings allow that."""
        self.log_start_offset = UNKNOWN
        """Its durable log start offset."""
        self.caught_up_ms = now_ms
        """When it last had the leader's whole log; initially when the leader epoch began."""
        self.last_leader_end = UNKNOWN
        """The leader's log end offset at its last fetch, at `last_fetch_ms`."""
        self.last_fetch_ms = now_ms
        self.has_fetched = False
        """Whether it has fetched in this leader epoch since it last left the ISR, as required to rejoin."""

    def record(self, fetch_offset: int, flushed_offset: int, leader_end: int, now_ms: int) -> None:
        """Record a fetch. As in Kafka, it is caught up with the leader's log end as of its last fetch or of now."""
        self.fetch_offset = fetch_offset
        self.flushed_offset = min(flushed_offset, fetch_offset)
        if self.flushed_offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self.flushed_offset >= self.last_leader_end >= 0:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.last_leader_end, self.last_fetch_ms = leader_end, now_ms
        self.has_fetched = True


@dataclass(frozen=True, slots=True)
class IsrChange:
    """An ISR change that a leader proposes, on the condition that the partition's record is still `before`."""

    topic_id: UUID
    index: int
    before: PartitionView
    leader: Member
    isr: list[Member]
    eligible: list[int]
    joined: list[Member]


class InSyncReplicas:
    """The followers of one partition, and which of them are in sync."""

    __slots__ = ("broker_id", "committed", "epoch_start", "former", "maximal", "pending", "placed", "progress")

    def __init__(self, broker_id: int, placed: PartitionView, epoch_start: int, now_ms: int) -> None:
        self.broker_id = broker_id
        self.epoch_start = epoch_start
        """The log end offset when this leader epoch began."""
        self.progress: dict[int, ReplicaProgress] = {}
        self.former: dict[int, ReplicaProgress] = {}
        """The last progress of members whose next incarnation fetches now, until they leave the ISR."""
        self.pending: IsrChange | None = None
        self.committed: list[ReplicaProgress] = []
        """The followers in the stored ISR."""
        self.maximal: list[ReplicaProgress] = []
        """The followers in the maximal ISR, which bound the high watermark."""
        self.placed = placed
        self.update(placed, now_ms)

    def update(self, placed: PartitionView, now_ms: int) -> None:
        """Apply a new record of the partition. It decides a pending change."""
        if self.pending is not None and placed.revision != self.pending.before.revision:
            self.pending = None
        before = self.committed
        self.placed = placed
        members = dict(members_of(placed))
        for broker_id in followers_of(placed, self.broker_id):
            if broker_id not in self.progress:
                self.progress[broker_id] = ReplicaProgress(broker_id, members.get(broker_id, ANY_EPOCH), now_ms)
        for broker_id in self.progress.keys() - set(followers_of(placed, self.broker_id)):
            del self.progress[broker_id]
        for broker_id in [i for i, p in self.former.items() if members.get(i) != p.epoch]:
            del self.former[broker_id]
        self.update_members()
        for progress in before:
            if progress not in self.committed:
                progress.has_fetched = False

    def update_members(self) -> None:
        """Recompute the committed and the maximal ISR."""
        self.committed = [self.progress_of(m) for m in members_of(self.placed) if m[0] != self.broker_id]
        joined = [] if self.pending is None else [self.progress_of(m) for m in self.pending.joined]
        self.maximal = [*self.committed, *(p for p in joined if p not in self.committed)]

    def progress_of(self, member: Member) -> ReplicaProgress:
        """Return the member's progress, or empty progress if another incarnation fetches or it is no replica."""
        broker_id, epoch = member
        for found in (self.progress.get(broker_id), self.former.get(broker_id)):
            if found is not None and epoch in (ANY_EPOCH, found.epoch):
                return found
        return ReplicaProgress(broker_id, epoch, 0)

    def is_member(self, progress: ReplicaProgress) -> bool:
        """Return whether the follower is in the stored ISR."""
        return progress in self.committed

    def min_flushed_offset(self, own_offset: int) -> int:
        """Return the lowest flushed offset in the maximal ISR, including the leader's own."""
        for progress in self.maximal:
            if progress.flushed_offset < own_offset:
                own_offset = progress.flushed_offset
        return own_offset

    def min_start_offset(self, own_offset: int) -> int:
        """Return the lowest log start offset in the maximal ISR, including the leader's own."""
        return min([own_offset, *(progress.log_start_offset for progress in self.maximal)])

    def record(
        self, replica: Member, fetch_offset: int, flushed_offset: int, leader_end: int, now_ms: int
    ) -> ReplicaProgress | None:
        """Record a follower's fetch. Returns None if the broker is no replica, or an older incarnation."""
        progress = self.progress.get(replica[0])
        if progress is None or replica[1] < progress.epoch:
            return None
        if progress.epoch != replica[1]:
            if progress.epoch == ANY_EPOCH:
                progress.epoch = replica[1]
            else:
                if progress in self.maximal:
                    self.former[replica[0]] = progress
                progress = self.progress[replica[0]] = ReplicaProgress(replica[0], replica[1], now_ms)
            self.update_members()
        progress.record(fetch_offset, flushed_offset, leader_end, now_ms)
        return progress

    def lagging(self, leader_end: int) -> list[ReplicaProgress]:
        """Return the members whose flushed offset is below the leader's log end."""
        return [p for p in self.maximal if p.flushed_offset < leader_end]

    def out_of_sync(self) -> list[ReplicaProgress]:
        """Return the fetching followers that are not in the ISR."""
        return [p for p in self.progress.values() if p.has_fetched and not self.is_member(p)]

    def make_change(
        self, key: tuple[UUID, int], own_epoch: int, removed: set[int], joined: list[Member], min_isr: int
    ) -> IsrChange:
        """Return the ISR change. Members that leave an ISR below `min_isr` remain eligible leaders (KIP-966).

        Members are in replica order, so that the preferred leader comes first.
        """
        placed = self.placed
        after = {i: self.epoch_to_store(i, e, own_epoch) for i, e in members_of(placed) if i not in removed}
        after.update(joined)
        order = {broker_id: at for at, broker_id in enumerate([*placed.replicas, *placed.adding])}
        isr = sorted(after.items(), key=lambda m: order.get(m[0], len(order)))
        eligible: list[int] = []
        if len(isr) < min_isr:
            left = [i for i, e in members_of(placed) if i in self.progress and e in (ANY_EPOCH, self.progress[i].epoch)]
            eligible = [i for i in dict.fromkeys([*placed.eligible, *left]) if i not in after]
        return IsrChange(*key, placed, (self.broker_id, own_epoch), isr, eligible, joined)

    def epoch_to_store(self, broker_id: int, epoch: int, own_epoch: int) -> int:
        """Return the broker epoch to store for a member. If the record has none, that of the incarnation that
        fetches."""
        if broker_id == self.broker_id:
            return own_epoch
        if epoch == ANY_EPOCH and broker_id in self.progress:
            return self.progress[broker_id].epoch
        return epoch


def members_of(placed: PartitionView) -> list[Member]:
    """Return the stored ISR."""
    if len(placed.isr_epochs) == len(placed.isr):
        return list(zip(placed.isr, placed.isr_epochs, strict=True))
    return [(broker_id, ANY_EPOCH) for broker_id in placed.isr]


def followers_of(placed: PartitionView, leader: int) -> list[int]:
    """Return the brokers that may fetch as followers, including replicas being added."""
    return [i for i in dict.fromkeys([*placed.replicas, *placed.adding]) if i != leader]


def effective_min_isr(placed: PartitionView, setting: int) -> int:
    """Return min.insync.replicas, limited to the replication factor without replicas being added."""
    factor = sum(broker_id not in placed.adding for broker_id in placed.replicas)
    return min(setting, max(factor, 1))
