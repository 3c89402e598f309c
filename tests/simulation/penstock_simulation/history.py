"""The operations of clients, their outcomes, and the records they read: the only input of the checker.

Times are virtual seconds of the world. Workloads write histories; tests of the checker construct them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf

Partition = tuple[str, int]


class Outcome(Enum):
    """The outcome of an operation as its caller knows it."""

    OK = "ok"
    FAILED = "failed"
    """Not executed, and never will be."""
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """A record that a writer sent. Values are unique. A writer is one incarnation of a producer."""

    writer: str
    partition: Partition
    number: int
    """Number of the writer's record in this partition, in the order of sending."""
    value: bytes
    invoked_s: float = 0.0
    idempotent: bool = True
    transaction: str = ""
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    """Acknowledged offset; -1 if the response had none."""
    completed_s: float = inf
    key: bytes | None = None
    kind: bytes | None = None
    """What filters select by."""


@dataclass(slots=True)
class Seen:
    """A record that a reader received. Within a session the reader determines its position itself."""

    reader: str
    session: int
    """Number that changes with each assignment of the partition and each seek."""
    partition: Partition
    offset: int
    value: bytes
    at_s: float = 0.0
    group: str = ""
    read_committed: bool = False
    filter: str = ""
    """The reader's filter; empty for none."""


@dataclass(slots=True)
class Commit:
    """An offset that a member of a group committed."""

    group: str
    partition: Partition
    offset: int
    invoked_s: float = 0.0
    outcome: Outcome = Outcome.UNKNOWN
    completed_s: float = inf
    transaction: str = ""
    session: int = 0
    """The committer's assignment of the partition; 0 if it has none."""


@dataclass(slots=True)
class Assigned:
    """A partition that a member of a group started to use; `session` is that of the records it receives."""

    group: str
    partition: Partition
    session: int
    at_s: float


@dataclass(slots=True)
class CommittedRead:
    """A group's committed offset as returned by a broker; -1 if none."""

    group: str
    partition: Partition
    offset: int
    invoked_s: float
    completed_s: float


@dataclass(slots=True)
class Content:
    """The complete final contents of a partition."""

    partition: Partition
    start: int
    end: int
    records: list[tuple[int, bytes]]
    read_committed: bool = False
    """Whether the contents exclude records of transactions that were not committed."""


@dataclass(slots=True)
class Acknowledgement:
    """A batch that a leader appended and acknowledged."""

    partition: Partition
    epoch: int
    broker: str
    """Broker with its incarnation."""
    at_s: float = 0.0


@dataclass(slots=True)
class HighWatermark:
    """A change of a replica's high watermark."""

    partition: Partition
    replica: str
    """Replica with its incarnation."""
    offset: int
    at_s: float = 0.0


@dataclass(slots=True)
class Replica:
    """The contents of one replica at one time."""

    partition: Partition
    replica: str
    high_watermark: int
    records: list[tuple[int, bytes]]


@dataclass(slots=True)
class Grant:
    """Rights that a user had from `asked_s` on, at the latest until `ended_s`: no request that was sent later may be
    allowed."""

    user: str
    asked_s: float
    ended_s: float = inf


@dataclass(slots=True)
class Use:
    """A request that a broker allowed to a user."""

    user: str
    broker: str
    request: str
    sent_s: float


@dataclass(slots=True)
class ShareDelivery:
    """A record that a member of a share group acquired by a request that it sent at `sent_s`."""

    member: str
    partition: Partition
    offset: int
    value: bytes
    count: int
    """Deliveries of the record so far, as the broker counts them."""
    sent_s: float
    received_s: float = inf


@dataclass(slots=True)
class ShareAck:
    """A member's acknowledgement of a record."""

    member: str
    partition: Partition
    offset: int
    is_final: bool
    """Whether the record was accepted or rejected, not released."""
    outcome: Outcome = Outcome.UNKNOWN
    completed_s: float = inf
    count: int = 0
    """The delivery count of the delivery."""
    sent_s: float = inf
    """Infinite if it was never sent."""
    is_rejected: bool = False

    @property
    def may_apply(self) -> bool:
        """Whether it took effect, or may have taken effect."""
        return self.outcome is Outcome.OK or (self.outcome is Outcome.UNKNOWN and self.sent_s < inf)

    @property
    def is_accepted(self) -> bool:
        """Whether it accepts the record."""
        return self.is_final and not self.is_rejected


@dataclass(slots=True)
class Letter:
    """A dead letter at `position` of the record at `offset` of `partition`."""

    position: tuple[Partition, int]
    partition: Partition
    offset: int
    value: bytes | None


@dataclass(slots=True)
class ScheduledWrite:
    """A record that a writer sent to a topic with scheduled records, or a cancellation. Values are unique."""

    partition: Partition
    key: bytes
    value: bytes
    invoked_s: float = 0.0
    is_cancellation: bool = False
    delay_s: float | None = None
    """The time for which the record has to wait; None for a record without a time, or with `due_ms`."""
    due_ms: int | None = None
    """The time at which it is due, in ms since 1970."""
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    """Acknowledged offset: the origin of its delivery."""
    completed_s: float = inf


@dataclass(slots=True)
class ScheduledRead:
    """A record that a reader received from a topic with scheduled records."""

    reader: str
    partition: Partition
    offset: int
    key: bytes | None
    value: bytes
    origin: int | None
    """The offset that the record had when it was scheduled; None if it never was."""
    at_s: float = inf


@dataclass(slots=True)
class Seal:
    """A seal of a partition that a client has seen first at a time."""

    partition: Partition
    offset: int
    at_s: float


@dataclass(slots=True)
class StoredSeal:
    """A seal that a leader has stored, and its high watermark before."""

    partition: Partition
    broker: str
    offset: int
    high_watermark: int


@dataclass(slots=True)
class History:
    """All recorded events, each kind in the order of occurrence."""

    writes: list[Write] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    assignments: list[Assigned] = field(default_factory=list)
    committed_reads: list[CommittedRead] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    high_watermarks: list[HighWatermark] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    deliveries: list[ShareDelivery] = field(default_factory=list)
    acks: list[ShareAck] = field(default_factory=list)
    delays_s: dict[str, float] = field(default_factory=dict)
    """By topic with delayed delivery, the time between sending and receiving that no record may fall below."""
    delivery_limit: int = 0
    """Deliveries after which the share group is done with a record."""
    backoffs_s: list[float] = field(default_factory=list)
    """By delivery count, the back-off of a record that is released. Empty without back-off."""
    is_ordered_by_key: bool = False
    """Whether the share group orders records by key."""
    letters: list[Letter] | None = None
    """The final contents of the share group's dead-letter topic; None if it has none."""
    copies_letters: bool = True
    """Whether dead letters have the values of their records."""
    queue_ends: dict[Partition, int] = field(default_factory=dict)
    """By partition, the offset below which the share group was done with all records at the end."""
    scheduled: list[ScheduledWrite] = field(default_factory=list)
    scheduled_reads: list[ScheduledRead] = field(default_factory=list)
    scheduled_contents: dict[Partition, list[ScheduledRead]] = field(default_factory=dict)
    """The complete final contents of partitions with scheduled records, once none waits."""
    filters: dict[str, frozenset[bytes | None]] = field(default_factory=dict)
    """By filter, the kinds that pass it."""
    queue_filter: str = ""
    """The filter of the share group; empty for none."""
    epoch_ms: float = 0.0
    """What a correct clock shows at time 0, in ms since 1970."""
    clock_error_s: float = 0.0
    """Upper bound of the difference between a broker's clock and a correct one, unless it was set."""
    leaps_s: float = 0.0
    """Sum of the leaps of the brokers' clocks."""
    resized: set[str] = field(default_factory=set)
    """Topics whose number of partitions changes: a record may be in another partition than that to which it was sent.
    """
    has_relay_chains: bool = False
    """Whether partitions to which others are relayed may be sealed themselves."""
    seals: list[Seal] = field(default_factory=list)
    stored_seals: list[StoredSeal] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    """Transactions known to be aborted."""
    undecided: set[str] = field(default_factory=set)
    """Transactions whose commit has an unknown outcome."""

    def allow_leap(self, leap_s: float) -> None:
        """Record that a broker's clock was set: delays count by the clocks."""
        self.leaps_s += leap_s
        for topic in self.delays_s:
            self.delays_s[topic] -= leap_s

    def abort(self, transaction: str) -> None:
        """Record that the transaction is known to be aborted."""
        self.aborted.add(transaction)
        for commit in self.commits:
            if commit.transaction == transaction:
                commit.outcome = Outcome.FAILED

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged operations."""
        writes = sum(write.outcome is Outcome.OK for write in self.writes)
        scheduled = sum(write.outcome is Outcome.OK for write in self.scheduled)
        return writes + scheduled + sum(commit.outcome is Outcome.OK for commit in self.commits)
