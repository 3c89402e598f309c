"""The requests of members of consumer groups (KIP-848), checked as Kafka does. Called by `group.modern_groups`.

Members send everything with the first heartbeat, and then only what changed: None means unchanged. Those of share
groups send some of the fields; see `share`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from penstock.group.modern.assignment import Assignment, contains
from penstock.group.modern.group import GroupType, ModernGroup
from penstock.group.modern.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    GroupError,
    ModernMember,
    Subscription,
)
from penstock.group.modern.topics import TopicFilter, compiled
from penstock.wire.errors import ErrorCode

MAX_TOPICS = 10_000
MAX_SUBSCRIPTION_CHARS = 256 << 10
"""Maximum length of all topic names of a member together."""
MAX_ID_CHARS = 1024
MAX_WAITING_INTERVAL_MS = 500
"""Interval of heartbeats of a member that will soon get partitions, so that it gets them without delay."""


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """A ConsumerGroupHeartbeat or ShareGroupHeartbeat request; None means unchanged."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    topic_filter: TopicFilter | None = None
    """The topics that the expression may select."""

    @property
    def is_full(self) -> bool:
        """Whether the request has everything, as the first one and those after an error have."""
        has_topics = self.topic_names is not None or self.topic_pattern is not None
        return self.rebalance_timeout_ms != -1 and has_topics and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The response to a heartbeat. `assigned` is None if it did not change."""

    member_id: str
    epoch: int
    interval_ms: int = 0
    assigned: Assignment | None = None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def check_heartbeat(request: MemberHeartbeat, assignors: Iterable[str]) -> None:
    """Raise `GroupError` for a request that no member may send."""
    for name, value in (("MemberId", request.member_id), ("InstanceId", request.instance_id), ("RackId", request.rack)):
        if value is not None:
            check_id(name, value)
    if request.epoch < STATIC_LEAVE_EPOCH:
        raise invalid(f"MemberEpoch is {request.epoch}, but must be greater than or equal to -2.")
    if request.epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise invalid("InstanceId can't be null.")
    names = request.topic_names or ()
    if len(names) > MAX_TOPICS or sum(map(len, names)) > MAX_SUBSCRIPTION_CHARS:
        raise invalid(f"SubscribedTopicNames has {len(names)} topics; the limit is {MAX_TOPICS} or 256 KiB.")
    if request.epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise invalid("TopicPartitions must be empty when (re-)joining.")
        if request.topic_names is None and request.topic_pattern is None:
            raise invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    if request.topic_pattern:
        try:
            compiled(request.topic_pattern)
        except ValueError as e:
            raise GroupError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"SubscribedTopicRegex `{request.topic_pattern[:100]}` is not a valid regular expression: {e}.",
            ) from None
    if request.assignor is not None and request.assignor not in assignors:
        raise GroupError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor[:100]} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def check_id(name: str, value: str, max_chars: int = MAX_ID_CHARS) -> None:
    """Raise `GroupError` for an id that is too long, or that is empty without the spaces around it, as in Kafka."""
    if len(value) > max_chars or not value.strip():
        raise invalid(f"{name} must have 1 to {max_chars} characters, not all of them spaces.")


def invalid(message: str) -> GroupError:
    """Return the error for an invalid request."""
    return GroupError(ErrorCode.INVALID_REQUEST, message)


def handle_heartbeat(group: ModernGroup, request: MemberHeartbeat, max_size: int, now_ms: float) -> ModernMember | None:
    """Apply a valid heartbeat's changes of membership and subscription. Returns the member, None if it left.

    Call `respond` once a new assignment was started, if one is due. Raises `GroupError`.
    """
    if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
        leave(group, request, now_ms)
        return None
    member, is_new = find_or_join(group, request, max_size)
    before, had_filter = member.subscription, member.topic_filter is not None
    member.topic_filter = request.topic_filter or member.topic_filter
    member.client_id, member.client_host = request.client_id, request.client_host
    if request.rebalance_timeout_ms != -1:
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
    wanted = Subscription(
        before.topic_names if request.topic_names is None else tuple(sorted(set(request.topic_names))),
        before.topic_pattern if request.topic_pattern is None else request.topic_pattern,
        request.assignor or before.assignor,
        request.rack or before.rack,
    )
    can_select_again = bool(wanted.topic_pattern) and not had_filter
    if is_new or wanted != before or can_select_again:
        group.subscribe(member, wanted, is_new)
    group.extend_session(member, now_ms)
    return member


def find_or_join(group: ModernGroup, request: MemberHeartbeat, max_size: int) -> tuple[ModernMember, bool]:
    """Return the member of a heartbeat and whether it is new. Raises `GroupError`."""
    if request.instance_id is not None:
        return find_or_join_static(group, request, request.instance_id, max_size)
    member = group.members.get(request.member_id)
    if member is None:
        return add_member(group, request, max_size), True
    check_epoch(group, member, request)
    rejoin(group, member, request)
    return member, False


def find_or_join_static(
    group: ModernGroup, request: MemberHeartbeat, instance_id: str, max_size: int
) -> tuple[ModernMember, bool]:
    """Return the static member of a heartbeat and whether it is new. Raises `GroupError`."""
    member = group.static_member(instance_id)
    if member is None:
        return add_member(group, request, max_size), True
    if request.epoch == JOIN_EPOCH and (member.epoch == STATIC_LEAVE_EPOCH or member.classic is not None):
        # As in the classic protocol, whose static members do not say that they leave, a new member replaces a classic
        # one.
        if request.member_id != member.member_id:
            replace_namesake(group, request.member_id)
        return group.replace_static(request.member_id, member), False
    if member.member_id != request.member_id:
        if request.epoch == JOIN_EPOCH:
            raise GroupError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the"
                f" instance id is owned by member {member.member_id}.",
            )
        raise GroupError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {instance_id} was fenced by member"
            f" {member.member_id}.",
        )
    check_epoch(group, member, request)
    rejoin(group, member, request)
    return member, False


def add_member(group: ModernGroup, request: MemberHeartbeat, max_size: int) -> ModernMember:
    """Add the member of a join. Raises `GroupError`."""
    if request.epoch != JOIN_EPOCH:
        raise unknown_member(request.member_id, group.group_id)
    replace_namesake(group, request.member_id)
    if len(group.members) >= max_size:
        raise GroupError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The {group.group_type} group has reached its maximum capacity of {max_size} members.",
        )
    member = ModernMember(request.member_id, request.instance_id)
    group.add_member(member)
    return member


def replace_namesake(group: ModernGroup, member_id: str) -> None:
    """Remove the member with the id of one that joins: it joins again, now with an instance id or with another one."""
    previous = group.members.get(member_id)
    if previous is not None:
        group.remove_member(previous)


def unknown_member(member_id: str, group_id: str) -> GroupError:
    """Return the error for a member that the group does not have."""
    return GroupError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id[:MAX_ID_CHARS]} is not a member of group {group_id}."
    )


def check_epoch(group: ModernGroup, member: ModernMember, request: MemberHeartbeat) -> None:
    """Raise `GroupError` unless the member has its current epoch, or the previous one because it missed a response."""
    if request.epoch == JOIN_EPOCH or request.epoch == member.epoch:
        return
    if request.epoch > member.epoch:
        raise GroupError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The {group.group_type} group member has a greater member epoch ({request.epoch}) than the one known by"
            f" the group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )
    is_subset = request.owned is not None and contains(member.assigned, request.owned)
    if request.epoch != member.previous_epoch or not is_subset:
        raise GroupError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The {group.group_type} group member has a smaller member epoch ({request.epoch}) than the one known by"
            f" the group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )


def rejoin(group: ModernGroup, member: ModernMember, request: MemberHeartbeat) -> None:
    """Take the partitions of a member that joins again, because it has abandoned them."""
    if request.epoch == JOIN_EPOCH:
        group.release(member)
        member.epoch = JOIN_EPOCH


def leave(group: ModernGroup, request: MemberHeartbeat, now_ms: float) -> None:
    """Remove a member, or keep a static one for its restart. Raises `GroupError`."""
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        member = group.static_member(request.instance_id)
        if member is not None and member.member_id != request.member_id:
            raise GroupError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member"
                f" {member.member_id}.",
            )
    if member is None:
        raise unknown_member(request.member_id, group.group_id)
    if request.epoch == STATIC_LEAVE_EPOCH:
        group.leave_for_restart(member, now_ms)
    else:
        group.remove_member(member)


def respond(group: ModernGroup, member: ModernMember, request: MemberHeartbeat, now_ms: float) -> HeartbeatResult:
    """Move a member towards its target and return the response."""
    before, before_epoch = member.assigned, member.epoch
    group.reconcile(member, request.owned, now_ms)
    is_changed = member.assigned != before or before_epoch == JOIN_EPOCH
    interval_ms = group.config.heartbeat_interval_ms
    if group.is_waiting(member):
        interval_ms = min(interval_ms, MAX_WAITING_INTERVAL_MS)
    assigned = member.assigned if is_changed or request.is_full else None
    return HeartbeatResult(member.member_id, member.epoch, interval_ms, assigned)


def commit_error(group: ModernGroup, member_id: str, epoch: int, partitions: Iterable[tuple[UUID, int]]) -> ErrorCode:
    """Return the error that fences a commit, or NONE.

    A member may commit with an older epoch for partitions that it has had since then (KIP-1251).
    """
    if group.group_type is GroupType.SHARE:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == member.epoch:
        return ErrorCode.NONE
    if member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    never = 1 << 31
    for topic_id, index in partitions if epoch < member.epoch else [(None, -1)]:
        assigned_at = never if topic_id is None else member.assigned_epochs.get(topic_id, {}).get(index, never)
        if assigned_at > epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE


def fetch_error(group: ModernGroup, member_id: str, epoch: int) -> ErrorCode:
    """Return the error that fences a read of committed offsets by a member, or NONE."""
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH
