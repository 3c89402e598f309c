"""How far each follower of a partition is, and who counts for the high watermark. Part of the leader's role; no I/O.

Members are (broker id, broker epoch): a restarted broker is another member, and what its last incarnation had counts
for nothing. While a change of the ISR is under way nobody knows whether it holds, so the members before it and after it
count together (the maximal ISR, KIP-497).
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from penstock.state.view import PartitionView

Member = tuple[int, int]
"""(broker id, broker epoch); an epoch of -1, in records that name none, is whichever incarnation there is."""
ANY_EPOCH = -1
UNKNOWN = -1


class ReplicaProgress:
    """What one incarnation of a follower has told in this leader epoch."""

    __slots__ = (
        "broker_id", "caught_up_ms", "epoch", "fetch_offset", "flushed_offset", "heard", "log_start_offset", "seen_end",
        "seen_ms",
    )  # fmt: skip

    def __init__(self, broker_id: int, epoch: int, now_ms: int) -> None:
        self.broker_id, self.epoch = broker_id, epoch
        self.fetch_offset = UNKNOWN
        """Where its log ends."""
        self.flushed_offset = UNKNOWN
        """All below is on its disk, or written where the topic says that this is enough."""
        self.log_start_offset = UNKNOWN
        """All below is deleted, and does not come back when it crashes."""
        self.caught_up_ms = now_ms
        """When it last had all that the leader had; for one that has not fetched yet, when the leader began."""
        self.seen_end = UNKNOWN
        """The leader's log end at its last fetch, which was at `seen_ms`."""
        self.seen_ms = now_ms
        self.heard = False
        """Whether it has fetched, in this epoch, since it was in sync: who left must be heard of before it is back."""

    def record(self, fetch_offset: int, flushed_offset: int, leader_end: int, now_ms: int) -> None:
        """Takes in a fetch. It has caught up with the log as that was at its last fetch, or is now (as in Kafka)."""
        self.fetch_offset = fetch_offset
        self.flushed_offset = min(flushed_offset, fetch_offset)
        if self.flushed_offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self.flushed_offset >= self.seen_end >= 0:
            self.caught_up_ms = max(self.caught_up_ms, self.seen_ms)
        self.seen_end, self.seen_ms = leader_end, now_ms
        self.heard = True


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader asks the store to write of its partition, on the condition that it still is as in `before`."""

    topic_id: UUID
    index: int
    before: PartitionView
    leader: Member
    isr: list[Member]
    eligible: list[int]
    joined: list[Member]


class InSyncReplicas:
    """The followers of one partition, of which some are in sync."""

    __slots__ = ("broker_id", "committed", "epoch_start", "former", "maximal", "pending", "placed", "progress")

    def __init__(self, broker_id: int, placed: PartitionView, epoch_start: int, now_ms: int) -> None:
        self.broker_id = broker_id
        self.epoch_start = epoch_start
        """Where the log ended when this leader epoch began."""
        self.progress: dict[int, ReplicaProgress] = {}
        self.former: dict[int, ReplicaProgress] = {}
        """What members told whose next incarnation fetches now: it stands still until they leave the ISR."""
        self.pending: IsrChange | None = None
        self.committed: list[ReplicaProgress] = []
        """The followers in the ISR as the store has it."""
        self.maximal: list[ReplicaProgress] = []
        """The followers whose flushed offsets bound the high watermark."""
        self.placed = placed
        self.take(placed, now_ms)

    def take(self, placed: PartitionView, now_ms: int) -> None:
        """Follows a change of the partition's record; what was under way is decided by it."""
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
        self.count()
        for progress in before:
            if progress not in self.committed:
                progress.heard = False

    def count(self) -> None:
        """Finds out anew who is in the maximal ISR."""
        self.committed = [self.progress_of(m) for m in members_of(self.placed) if m[0] != self.broker_id]
        joined = [] if self.pending is None else [self.progress_of(m) for m in self.pending.joined]
        self.maximal = [*self.committed, *(p for p in joined if p not in self.committed)]

    def progress_of(self, member: Member) -> ReplicaProgress:
        """A member's progress; where another incarnation fetches now, or it is no replica any more, there is none."""
        broker_id, epoch = member
        for found in (self.progress.get(broker_id), self.former.get(broker_id)):
            if found is not None and epoch in (ANY_EPOCH, found.epoch):
                return found
        return ReplicaProgress(broker_id, epoch, 0)

    def is_member(self, progress: ReplicaProgress) -> bool:
        return progress in self.committed

    def flushed_everywhere(self, own_offset: int) -> int:
        """Up to where each of the maximal ISR has the log on disk, given the leader's own."""
        for progress in self.maximal:
            if progress.flushed_offset < own_offset:
                own_offset = progress.flushed_offset
        return own_offset

    def starts_everywhere(self, own_offset: int) -> int:
        """From where on, at the earliest, the log of each of the maximal ISR begins, given the leader's own start."""
        return min([own_offset, *(progress.log_start_offset for progress in self.maximal)])

    def record(
        self, replica: Member, fetch_offset: int, flushed_offset: int, leader_end: int, now_ms: int
    ) -> ReplicaProgress | None:
        """Takes in a follower's fetch; None where the broker is no replica, or an older incarnation of one."""
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
            self.count()
        progress.record(fetch_offset, flushed_offset, leader_end, now_ms)
        return progress

    def behind(self, leader_end: int) -> list[ReplicaProgress]:
        """The members whose flushed log is not the leader's."""
        return [p for p in self.maximal if p.flushed_offset < leader_end]

    def outsiders(self) -> list[ReplicaProgress]:
        """Followers that fetch and are not in the ISR."""
        return [p for p in self.progress.values() if p.heard and not self.is_member(p)]

    def change(
        self, key: tuple[UUID, int], own_epoch: int, gone: set[int], joined: list[Member], min_isr: int
    ) -> IsrChange:
        """The record that a change would write. Who leaves while too few are left has all that is committed (KIP-966).

        The members stay in the order of the replicas, so that the preferred leader comes first.
        """
        placed = self.placed
        after = {i: self.named(i, e, own_epoch) for i, e in members_of(placed) if i not in gone}
        after.update(joined)
        order = {broker_id: at for at, broker_id in enumerate([*placed.replicas, *placed.adding])}
        isr = sorted(after.items(), key=lambda m: order.get(m[0], len(order)))
        eligible: list[int] = []
        if len(isr) < min_isr:
            left = [i for i, e in members_of(placed) if i in self.progress and e in (ANY_EPOCH, self.progress[i].epoch)]
            eligible = [i for i in dict.fromkeys([*placed.eligible, *left]) if i not in after]
        return IsrChange(*key, placed, (self.broker_id, own_epoch), isr, eligible, joined)

    def named(self, broker_id: int, epoch: int, own_epoch: int) -> int:
        """The epoch to be written for a member; where the record has none, that of the incarnation which fetches."""
        if broker_id == self.broker_id:
            return own_epoch
        if epoch == ANY_EPOCH and broker_id in self.progress:
            return self.progress[broker_id].epoch
        return epoch


def members_of(placed: PartitionView) -> list[Member]:
    """The committed ISR."""
    if len(placed.isr_epochs) == len(placed.isr):
        return list(zip(placed.isr, placed.isr_epochs, strict=True))
    return [(broker_id, ANY_EPOCH) for broker_id in placed.isr]


def followers_of(placed: PartitionView, leader: int) -> list[int]:
    """Who may fetch as a replica: those being added too."""
    return [i for i in dict.fromkeys([*placed.replicas, *placed.adding]) if i != leader]


def effective_min_isr(placed: PartitionView, setting: int) -> int:
    """min.insync.replicas counts at most the replication factor; replicas that are being added are not asked for."""
    factor = sum(broker_id not in placed.adding for broker_id in placed.replicas)
    return min(setting, max(factor, 1))
