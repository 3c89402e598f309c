"""The requests of classic members of groups whose broker assigns partitions (KIP-848, online migration).

Called by `group.classic_members`. A classic member gets its partitions by rejoining: a heartbeat tells it to rejoin
when its assignment changes, its join reports what it still uses, and its sync returns what it may use. Its generation
is its member epoch. No member leads: the broker assigns.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from penstock.group.calls import JoinRequest, JoinResult, SyncRequest, SyncResult
from penstock.group.modern.assignment import Assignment, assignment_of
from penstock.group.modern.group import ModernGroup
from penstock.group.modern.member import ClassicProtocols, GroupError, MemberState, ModernMember, Subscription
from penstock.group.modern.topics import TopicCatalog
from penstock.group.subscription import (
    CONSUMER,
    ClassicSubscription,
    NamedPartitions,
    encode_assignment,
    parse_subscription,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import MalformedMessage


def join_classic(
    group: ModernGroup, request: JoinRequest, new_id: str, max_size: int, now_ms: float
) -> tuple[ModernMember, Assignment]:
    """Add or update the member of a JoinGroup. Returns it with the partitions that it still uses.

    Call `join_result` once a new assignment was started, if one is due. Raises `GroupError`.
    """
    subscription = parse_joined(group, request)
    owned = to_topic_ids(group.topics, subscription.owned)
    member, is_new = find_or_join_classic(group, request, new_id, max_size, has_partitions=bool(owned))
    member.client_id, member.client_host = request.client_id, request.client_host
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    group.set_classic(member, ClassicProtocols(request.protocols, request.session_timeout_ms))
    wanted = Subscription(subscription.topics, rack=subscription.rack)
    if is_new or wanted != member.subscription:
        group.subscribe(member, wanted, is_new)
    group.extend_session(member, now_ms)
    member.revocation_deadline_ms = None
    return member, owned


def parse_joined(group: ModernGroup, request: JoinRequest) -> ClassicSubscription:
    """Return the subscription of a JoinGroup. Raises `GroupError` if it does not match the group's classic members."""
    if request.protocol_type != CONSUMER or not request.protocols or not shares_protocol(group, request):
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the members have no protocol in common")
    try:
        return parse_subscription(next(iter(request.protocols.values())))
    except MalformedMessage as e:
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"invalid subscription: {e}") from None


def shares_protocol(group: ModernGroup, request: JoinRequest) -> bool:
    """Return whether a request shares a protocol with all other classic members."""
    common = set(request.protocols)
    for member in group.members.values():
        is_same = member.member_id == request.member_id or (
            request.instance_id is not None and member.instance_id == request.instance_id
        )
        if member.classic is not None and not is_same:
            common &= member.classic.metadata.keys()
    return bool(common)


def find_or_join_classic(
    group: ModernGroup, request: JoinRequest, new_id: str, max_size: int, *, has_partitions: bool
) -> tuple[ModernMember, bool]:
    """Return the member of a JoinGroup, and whether it is new. Raises `GroupError`."""
    if request.member_id:
        known = find_member(group, request.member_id, request.instance_id)
        if known is not None:
            return known, False
        if request.instance_id is not None or has_partitions:
            # Another member may have the partitions by now: it has to abandon them before it joins.
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not a member")
    elif request.instance_id is not None:
        known = group.static_member(request.instance_id)
        if known is not None:
            return group.replace_static(new_id, known), False
    elif request.two_step:
        raise GroupError(ErrorCode.MEMBER_ID_REQUIRED, new_id)
    if len(group.members) >= max_size:
        raise GroupError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {max_size} members")
    member = ModernMember(request.member_id or new_id, request.instance_id)
    group.add_member(member)
    return member, True


def join_result(group: ModernGroup, member: ModernMember, owned: Assignment, now_ms: float) -> JoinResult:
    """Move a member that has joined towards its target, and return the response to its join."""
    assert member.classic is not None, f"{member.member_id} has not joined with the classic protocol"
    group.reconcile(member, owned, now_ms)
    protocol = next(iter(member.classic.metadata))
    return JoinResult(ErrorCode.NONE, member.member_id, member.epoch, CONSUMER, protocol)


def sync_classic(group: ModernGroup, request: SyncRequest, now_ms: float) -> SyncResult:
    """Return a member's assignment. Raises `GroupError`."""
    member = check_member(group, request.member_id, request.instance_id, request.generation)
    assert member.classic is not None, f"{member.member_id} is not classic"
    protocol = next(iter(member.classic.metadata))
    if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, protocol):
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol is not that of the join")
    group.extend_session(member, now_ms)
    # A member that has to stop using partitions learns from its assignment which ones.
    if group.must_rejoin(member) and member.state is not MemberState.UNREVOKED:
        group.await_rejoin(member, now_ms)
        raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS, "the assignment has changed")
    return SyncResult(ErrorCode.NONE, CONSUMER, protocol, assignment_bytes(group.topics, member))


def classic_heartbeat(
    group: ModernGroup, member_id: str, instance_id: str | None, generation: int, now_ms: float
) -> ErrorCode:
    """Extend a member's session. Returns REBALANCE_IN_PROGRESS if the member must rejoin, or the error."""
    try:
        member = check_member(group, member_id, instance_id, generation)
    except GroupError as e:
        return e.error
    group.extend_session(member, now_ms)
    if not group.must_rejoin(member):
        return ErrorCode.NONE
    group.await_rejoin(member, now_ms)
    return ErrorCode.REBALANCE_IN_PROGRESS


def leave_classic(group: ModernGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Remove a member. An administrator removes a static one by its instance id alone."""
    try:
        if not member_id and instance_id is not None:
            member = group.static_member(instance_id)
        else:
            member = find_member(group, member_id, instance_id)
    except GroupError as e:
        return e.error
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    group.remove_member(member)
    return ErrorCode.NONE


# --- members and partitions


def find_member(group: ModernGroup, member_id: str, instance_id: str | None) -> ModernMember | None:
    """Return the member of a request. Raises `GroupError` if another member has its instance id."""
    if instance_id is None:
        return group.members.get(member_id)
    member = group.static_member(instance_id)
    if member is not None and member.member_id != member_id:
        raise GroupError(ErrorCode.FENCED_INSTANCE_ID, f"{member.member_id} has the instance id {instance_id}")
    return member


def check_member(group: ModernGroup, member_id: str, instance_id: str | None, generation: int) -> ModernMember:
    """Return the classic member of a generation. Raises `GroupError`."""
    member = find_member(group, member_id, instance_id)
    if member is None or member.classic is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a classic member")
    if generation != member.epoch:
        raise GroupError(ErrorCode.ILLEGAL_GENERATION, f"{member_id} has generation {member.epoch}")
    return member


def to_topic_ids(topics: TopicCatalog, partitions: NamedPartitions) -> Assignment:
    """Return the partitions of existing topics by id."""
    found: list[tuple[UUID, Iterable[int]]] = []
    for name, indexes in partitions:
        topic_id = topics.topic_id(name)
        if topic_id is not None:
            count = topics.partition_count(topic_id)
            found.append((topic_id, [index for index in indexes if 0 <= index < count]))
    return assignment_of(found)


def assignment_bytes(topics: TopicCatalog, member: ModernMember) -> bytes:
    """Return what a member may use in the form of the classic protocol; topics that no longer exist are left out."""
    assert member.classic is not None, f"{member.member_id} is not classic"
    version = parse_subscription(next(iter(member.classic.metadata.values()))).version
    named = ((topics.topic_name(topic_id), indexes) for topic_id, indexes in member.assigned.items())
    return encode_assignment([(name, indexes) for name, indexes in named if name is not None], version)
