"""What clients tried, the answers, and what they read: the only thing that the checker looks at.

Times are the world's, in virtual seconds. Workloads write histories; tests of the checker make them by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf

Partition = tuple[str, int]


class Outcome(Enum):
    """What the caller knows of the outcome."""

    OK = "ok"
    FAILED = "failed"
    """It has not happened and will not."""
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """A record that a writer sent. Values are unique. A writer is one life of a producer."""

    writer: str
    partition: Partition
    number: int
    """Counts the writer's records to this partition, in the order of sending."""
    value: bytes
    invoked_s: float = 0.0
    idempotent: bool = True
    transaction: str = ""
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    """Where it was acknowledged to be; -1 where the answer did not say."""
    completed_s: float = inf


@dataclass(slots=True)
class Seen:
    """A record that was handed out to a reader. Within a session a reader's position is its own affair."""

    reader: str
    session: int
    """A new one after each assignment of the partition, and after each seek."""
    partition: Partition
    offset: int
    value: bytes
    at_s: float = 0.0
    group: str = ""
    read_committed: bool = False


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


@dataclass(slots=True)
class CommittedRead:
    """A group's committed offset as answered; -1 for none."""

    group: str
    partition: Partition
    offset: int
    invoked_s: float
    completed_s: float


@dataclass(slots=True)
class Content:
    """All that a partition holds when everything is over."""

    partition: Partition
    start: int
    end: int
    records: list[tuple[int, bytes]]
    read_committed: bool = False
    """Whether the records of transactions that were not committed are left out."""


@dataclass(slots=True)
class Acknowledgement:
    """A leader took a batch and answered for it."""

    partition: Partition
    epoch: int
    broker: str
    """With its incarnation."""
    at_s: float = 0.0


@dataclass(slots=True)
class HighWatermark:
    """A replica's high watermark, as it changed."""

    partition: Partition
    replica: str
    """With its incarnation."""
    offset: int
    at_s: float = 0.0


@dataclass(slots=True)
class Replica:
    """What one replica holds at some moment."""

    partition: Partition
    replica: str
    high_watermark: int
    records: list[tuple[int, bytes]]


@dataclass(slots=True)
class History:
    """Everything, each kind in the order in which it happened."""

    writes: list[Write] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed_reads: list[CommittedRead] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    high_watermarks: list[HighWatermark] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    """Transactions that were aborted for certain."""
    undecided: set[str] = field(default_factory=set)
    """Transactions whose commit has an unknown outcome."""

    def abort(self, transaction: str) -> None:
        """It is known that this one was aborted."""
        self.aborted.add(transaction)
        for commit in self.commits:
            if commit.transaction == transaction:
                commit.outcome = Outcome.FAILED

    @property
    def acknowledged(self) -> int:
        """Operations that were acknowledged."""
        writes = sum(write.outcome is Outcome.OK for write in self.writes)
        return writes + sum(commit.outcome is Outcome.OK for commit in self.commits)
