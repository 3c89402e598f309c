"""Converts groups between the classic protocol and the consumer protocol while they have members (KIP-848).

Pure functions, called by `consumer_groups`. No conversion changes what a member may use: an upgraded group knows the
partitions of all its classic members, and a downgraded one rebalances as soon as they have noticed.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.group.calls import JoinRequest
from penstock.group.member_list import GroupMemberState
from penstock.group.modern.assignment import Assignment, union
from penstock.group.modern.classic import assignment_bytes, to_topic_ids
from penstock.group.modern.group import ModernGroup
from penstock.group.modern.member import ClassicProtocols, GroupError, ModernMember, Subscription
from penstock.group.modern.topics import TopicCatalog
from penstock.group.phases import GroupState
from penstock.group.state_machine import ClassicGroup
from penstock.group.subscription import CONSUMER, parse_assignment, parse_subscription
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import MalformedMessage

UPGRADE, DOWNGRADE = frozenset({"bidirectional", "upgrade"}), frozenset({"bidirectional", "downgrade"})
"""The values of `group.consumer.migration.policy` that permit each direction."""


def check_upgrade(group: ClassicGroup, config: BrokerConfig) -> None:
    """Raise `GroupError` unless a member of the consumer protocol may join a group with classic members."""
    if config.group_consumer_migration_policy not in UPGRADE:
        raise inconsistent(
            f'group "{group.group_id}" has members of the classic protocol, and group.consumer.migration.policy is'
            f' "{config.group_consumer_migration_policy}"; stop them before using the new one'
        )
    if group.member_list and group.phases.protocol_type != CONSUMER:
        raise inconsistent(f'the members of group "{group.group_id}" are not consumers')
    if len(group.member_list) >= config.group_consumer_max_size:
        raise GroupError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {config.group_consumer_max_size} members.",
        )


def inconsistent(message: str) -> GroupError:
    """Return the error for a member that cannot join the members of the group."""
    return GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)


def upgraded_members(group: ClassicGroup, topics: TopicCatalog) -> list[ModernMember]:
    """Return the members of a classic group as classic members of a group whose broker assigns. Raises `GroupError`.

    Leaves out members that may not know their ids yet: they have no partitions, and join again.
    """
    is_assigning = group.phases.state is GroupState.COMPLETING_REBALANCE
    try:
        return [
            upgraded_member(member, group.phases.generation, topics, is_assigning)
            for member in group.member_list
            if member.knows_id
        ]
    except MalformedMessage as e:
        raise inconsistent(f'a member of group "{group.group_id}" is not a consumer: {e}') from None


def upgraded_member(
    member: GroupMemberState, generation: int, topics: TopicCatalog, is_assigning: bool
) -> ModernMember:
    """Return a member in its new form. Raises `GroupError` and `MalformedMessage`."""
    subscription = parse_subscription(next(iter(member.protocols.values())))
    named, assignor_data = parse_assignment(member.assignment)
    if assignor_data:
        raise inconsistent(f"the assignor of member {member.member_id} needs data that the coordinator does not have")
    assigned: Assignment = to_topic_ids(topics, named)
    if is_assigning:  # the previous assignment is gone; what the member still uses is in its subscription
        assigned = union(assigned, to_topic_ids(topics, subscription.owned))
    return ModernMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        Subscription(subscription.topics, rack=subscription.rack),
        classic=ClassicProtocols(member.protocols, member.session_timeout_ms),
        epoch=generation,
        previous_epoch=generation,
        assigned=assigned,
    )


def may_downgrade(group: ModernGroup, config: BrokerConfig) -> bool:
    """Return whether a group becomes a classic one: the last member of the consumer protocol has gone."""
    return (
        group.has_only_classic_members
        and config.group_consumer_migration_policy in DOWNGRADE
        and len(group.members) <= config.group_max_size
    )


def downgraded_group(
    group: ModernGroup, config: BrokerConfig, new_id: Callable[[], str], now_ms: float
) -> ClassicGroup:
    """Return the classic group of the same members, which rebalances.

    Its generation is the newest that a member has, so that members notice the rebalance with their next heartbeat. A
    member that left may have had a later one: its id is fenced.
    """
    classic = ClassicGroup(group.group_id, config, new_id)
    members = [downgraded_member(group, member) for member in group.members.values()]
    phases = classic.phases
    phases.protocol_type = CONSUMER
    phases.generation = max(1, *(member.epoch for member in group.members.values()))
    common = set.intersection(*(set(member.protocols) for member in members))
    phases.protocol = next(name for name in members[0].protocols if name in common)
    phases.restore(members, members[0].member_id, now_ms)
    phases.rebalance(now_ms)
    return classic


def downgraded_member(group: ModernGroup, member: ModernMember) -> GroupMemberState:
    """Return a classic member in its previous form, with what it may use."""
    assert member.classic is not None, f"{member.member_id} is not classic"
    request = JoinRequest(
        CONSUMER,
        dict(member.classic.metadata),
        member.classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
    )
    state = GroupMemberState(member.member_id, request, knows_id=True)
    state.assignment = assignment_bytes(group.topics, member)
    return state
