"""What `reconcile.group` is given and what it answers; carried out by `groups.controller`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_operator.model.group import ConsumerGroup, ConsumerGroupStatus
from penstock_operator.ports.brokers import ObservedGroupState
from penstock_operator.reconcile.plan import ReconcilePlan

At = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """`group` None: the brokers answered, and have no such group. With `error` they did not answer, and nothing else
    here counts."""

    group: ObservedGroupState | None = None
    error: str | None = None
    is_cluster_known: bool = True
    winner: str | None = None
    """The object that this group belongs to, where it is another one."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """How many partitions the topics have that were asked for by name; those that do not exist are missing."""
    offsets: Mapping[At, int] = field(default_factory=dict)
    """The answers to `group_reset.questions`."""
    ranges: Mapping[At, tuple[int, int]] = field(default_factory=dict)
    """First and end of the logs of partitions to which an offset was asked for by number."""


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Sets offsets, and says why. The group has no members, or the brokers refuse it."""

    offsets: Mapping[At, int]
    why: str


@dataclass(frozen=True, slots=True)
class GroupSettingsPatch:
    """Settings of the group; None takes one back."""

    settings: Mapping[str, str | None]


Action = CommitOffsets | GroupSettingsPatch
GroupPlan = ReconcilePlan[Action, ConsumerGroupStatus]


def is_there(group: ObservedGroupState | None) -> bool:
    """Whether a group exists for people: one that merely has settings does not."""
    return group is not None and (group.members > 0 or bool(group.offsets) or group.state not in ("Dead", ""))


def is_idle(group: ObservedGroupState | None) -> bool:
    """Whether offsets may be set: nobody is in it, and nobody comes just now."""
    return group is None or (group.members == 0 and group.state in ("Empty", "Dead", ""))


__all__ = [
    "Action",
    "At",
    "CommitOffsets",
    "ConsumerGroup",
    "GroupPlan",
    "GroupSettingsPatch",
    "ObservedGroup",
    "is_idle",
    "is_there",
]
