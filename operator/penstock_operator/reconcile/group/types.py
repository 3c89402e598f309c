"""Input and actions of `reconcile.group`. `groups.controller` executes the actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_operator.model.group import ConsumerGroup, ConsumerGroupStatus
from penstock_operator.ports.brokers import SHARE, ObservedGroupState, ReplayCount, ReplayRequest
from penstock_operator.reconcile.plan import ReconcilePlan

At = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class ObservedReplay:
    """State of the replay that this operator runs for a group. `error`: why the last attempt ended; another one follows
    unless `has_failed`."""

    request: ReplayRequest
    count: ReplayCount | None = None
    error: str = ""
    is_finished: bool = False
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """Observed state of a group. `group` None: it does not exist. With `error`, the brokers did not answer and all
    other fields are invalid."""

    group: ObservedGroupState | None = None
    error: str | None = None
    is_hibernated: bool = False
    """Whether the `error` is that the cluster is hibernated."""
    is_cluster_known: bool = True
    winner: str | None = None
    """Name of the object that owns the group, if it is another one."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Number of partitions of the topics in the spec; without topics that do not exist."""
    offsets: Mapping[At, int] = field(default_factory=dict)
    """Results of `reset.offset_queries`."""
    ranges: Mapping[At, tuple[int, int]] = field(default_factory=dict)
    """Start and end offsets of the partitions in `reset.range_partitions`."""
    letters: tuple[tuple[int, int], ...] = ()
    """Start and end offsets by partition of the topic in `replay.topic_to_query`; empty if it does not exist."""
    replay: ObservedReplay | None = None


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit offsets, or set the start offsets of a share group. The brokers reject this if the group has members."""

    offsets: Mapping[At, int]
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class GroupSettingsPatch:
    """Change group settings; None resets one."""

    settings: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ReplayLetters:
    """Replay dead letters in the background; without effect if that replay runs or has ended. A plan without this
    action stops the replay of the group."""

    request: ReplayRequest


Action = CommitOffsets | GroupSettingsPatch | ReplayLetters
GroupPlan = ReconcilePlan[Action, ConsumerGroupStatus]


def group_exists(group: ObservedGroupState | None) -> bool:
    """Whether a group has members, offsets or a state; a group with settings only does not count."""
    return group is not None and (group.members > 0 or bool(group.offsets) or group.state not in ("Dead", ""))


def is_idle(group: ObservedGroupState | None) -> bool:
    """Whether offsets can be committed: the group has no members and no rebalance."""
    return group is None or (group.members == 0 and group.state in ("Empty", "Dead", ""))


def is_share_group(desired: ConsumerGroup, group: ObservedGroupState | None) -> bool:
    """Whether the offsets of the group are those of a share group."""
    if group is not None and group_exists(group):
        return group.group_type == SHARE
    return desired.spec.type == SHARE


__all__ = [
    "Action",
    "At",
    "CommitOffsets",
    "ConsumerGroup",
    "GroupPlan",
    "GroupSettingsPatch",
    "ObservedGroup",
    "ObservedReplay",
    "ReplayLetters",
    "group_exists",
    "is_idle",
    "is_share_group",
]
