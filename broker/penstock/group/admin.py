"""Describes and lists groups and deletes offsets. Called by `api.group_admin`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.group.coordinator import GroupCoordinator
from penstock.group.modern.group import GroupType, ModernGroup
from penstock.group.offset_table import OffsetKey
from penstock.group.phases import GroupState
from penstock.group.subscription import CONSUMER
from penstock.state.view import TopicView
from penstock.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class MemberSummary:
    """A member. `metadata` is empty unless the group is stable; `assignment` is the last one."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The current state of a group; `protocol` is empty unless the group is stable."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: list[MemberSummary] = field(default_factory=list)


def describe(coordinator: GroupCoordinator, group_id: str) -> GroupSummary | None:
    """Return the group's state and members, None if it does not exist."""
    group = coordinator.find(group_id)
    if group is None:
        idle = coordinator.idle(group_id)
        return (
            None
            if idle is None or idle.group_type is not GroupType.CLASSIC
            else GroupSummary(group_id, GroupState.EMPTY, idle.protocol_type)
        )
    stable = group.phases.state is GroupState.STABLE
    protocol = group.phases.protocol if stable and group.phases.protocol is not None else ""
    members = [
        MemberSummary(
            m.member_id,
            m.instance_id,
            m.client_id,
            m.client_host,
            m.protocols.get(protocol, b"") if stable else b"",
            m.assignment,
        )
        for m in group.member_list
    ]
    return GroupSummary(group_id, group.phases.state, group.phases.protocol_type, protocol, members)


class ListedGroupSummary(NamedTuple):
    """A group in a list; `state` is by Kafka's names."""

    group_id: str
    protocol_type: str
    state: str
    group_type: GroupType


class ModernGroupSummary(NamedTuple):
    """A group whose broker assigns partitions; `group` is None if it has had no members since this broker coordinates
    it."""

    epoch: int
    group: ModernGroup | None


def describe_modern(coordinator: GroupCoordinator, group_id: str, group_type: GroupType) -> ModernGroupSummary | None:
    """Return a group of the type, None if it does not exist or is of another type."""
    group, idle = coordinator.find_modern(group_id), coordinator.idle(group_id)
    if group is not None and group.group_type is group_type:
        return ModernGroupSummary(group.group_epoch, group)
    if idle is not None and idle.group_type is group_type:
        return ModernGroupSummary(idle.generation, None)
    return None


def summarize(coordinator: GroupCoordinator, group_id: str) -> ListedGroupSummary:
    """Return the summary of an existing group."""
    group, modern, idle = coordinator.find(group_id), coordinator.find_modern(group_id), coordinator.idle(group_id)
    if modern is not None:
        return ListedGroupSummary(group_id, modern.group_type, modern.state.value, modern.group_type)
    if group is not None:
        return ListedGroupSummary(group_id, group.phases.protocol_type, group.phases.state.value, GroupType.CLASSIC)
    assert idle is not None, f'group "{group_id}" exists'
    return ListedGroupSummary(group_id, idle.protocol_type, GroupState.EMPTY.value, idle.group_type)


def list_groups(coordinator: GroupCoordinator, states: Sequence[str], types: Sequence[str]) -> list[ListedGroupSummary]:
    """Return each matching group.

    An empty filter matches all groups; case is ignored.
    """
    state_filter = {state.lower() for state in states}
    type_filter = {name.lower() for name in types}
    found = (summarize(coordinator, group_id) for group_id in coordinator.group_ids())
    return [
        each
        for each in found
        if (not state_filter or each.state.lower() in state_filter)
        and (not type_filter or each.group_type.value in type_filter)
    ]


async def delete_offsets(
    coordinator: GroupCoordinator, group_id: str, partitions: Sequence[tuple[TopicView | None, int]]
) -> tuple[ErrorCode, list[ErrorCode]]:
    """Delete offsets of topics that no member subscribes to. Returns an error for the request, or one per partition."""
    unavailable = coordinator.error(group_id)
    if unavailable:
        return unavailable, []
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID, []
    if not coordinator.exists(group_id) or describe_modern(coordinator, group_id, GroupType.SHARE) is not None:
        return ErrorCode.GROUP_ID_NOT_FOUND, []
    group = coordinator.find(group_id)
    active = group is not None and group.phases.state is not GroupState.EMPTY
    if group is not None and active and group.phases.protocol_type != CONSUMER:
        return ErrorCode.NON_EMPTY_GROUP, []
    modern = coordinator.find_modern(group_id)
    subscribed: frozenset[str] | None = frozenset()
    if group is not None and active:
        subscribed = group.subscribed_topics()
    elif modern is not None and modern.members:
        subscribed = modern.subscribed_topics()
    errors = [deletion_error(topic, index, subscribed) for topic, index in partitions]
    chosen = [
        OffsetKey(group_id, topic.topic_id, index)
        for (topic, index), error in zip(partitions, errors, strict=True)
        if topic is not None and not error
    ]
    failed = await asyncio.gather(*coordinator.offsets.delete(chosen))
    return coordinator.commit_failure(group_id) if any(failed) else ErrorCode.NONE, errors


def deletion_error(topic: TopicView | None, index: int, subscribed: frozenset[str] | None) -> ErrorCode:
    """Return the error that prevents deleting the partition's offset. `subscribed` are the topics that members
    subscribe to, None if unknown."""
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if subscribed is None or topic.name in subscribed:
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE
