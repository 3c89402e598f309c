"""`ConsumerGroup`: a group of a cluster, shown, and reset once where that is asked for."""

from __future__ import annotations

from typing import Literal

from penstock_operator.model.common import ClusterRef, Condition, DeletionPolicy, Meta, Model


class OffsetReset(Model, frozen=True, kw_only=True):
    """Done once for each `id`. Exactly one target; the schema holds that."""

    id: str
    to: Literal["earliest", "latest", "timestamp", "offset"]
    timestamp: str | None = None
    """RFC 3339: the first record at or after."""
    offset: int | None = None
    topics: tuple[str, ...] = ()
    """All that the group has offsets of, where empty."""
    partitions: tuple[int, ...] = ()
    dry_run: bool = False


class StartingOffsets(Model, frozen=True, kw_only=True):
    """For a group that has no offsets yet."""

    topics: tuple[str, ...]
    at: Literal["earliest", "latest"] = "earliest"


class ConsumerGroupSpec(Model, frozen=True, kw_only=True):
    cluster_ref: ClusterRef
    group_id: str | None = None
    """The group's id where it is not the object's name."""
    reset: OffsetReset | None = None
    starting_offsets: StartingOffsets | None = None
    deletion_policy: DeletionPolicy = "Retain"
    paused: bool = False


class TopicLag(Model, frozen=True, kw_only=True):
    topic: str
    partitions: int
    lag: int
    lag_seconds: int | None = None


class ResetStatus(Model, frozen=True, kw_only=True):
    """The newest reset: what it will do or did. `changes` names the first hundred, as topic-partition: from → to."""

    id: str
    phase: Literal["Planned", "Done", "Refused", "Failed"]
    message: str = ""
    changes: tuple[str, ...] = ()
    total_changes: int = 0


class ConsumerGroupStatus(Model, frozen=True, kw_only=True):
    """Conditions: Ready (known to the brokers, or absent as it was applied), Healthy (it keeps up)."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    group_id: str | None = None
    state: str | None = None
    """As the protocol names it, or Absent."""
    members: int | None = None
    lag: int | None = None
    lag_seconds: int | None = None
    topics: tuple[TopicLag, ...] = ()
    topic_names: str | None = None
    """For the column: names joined by commas."""
    reset: ResetStatus | None = None


class ConsumerGroup(Model, frozen=True, kw_only=True):
    metadata: Meta
    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = ConsumerGroupStatus()

    @property
    def group_id(self) -> str:
        return self.spec.group_id or self.metadata.name
