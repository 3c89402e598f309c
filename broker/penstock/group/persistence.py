"""A group as a record in the store and back: what survives a restart. Used by `coordinator`.

Durable is what a completed rebalance, or the end of the last member, left; a rebalance under way is not.
"""

from __future__ import annotations

import msgspec

from penstock.group.calls import JoinRequest
from penstock.group.member_list import GroupMemberState
from penstock.group.state_machine import ClassicGroup
from penstock.state import records
from penstock.state.records import GroupRecord, MemberRecord

MAX_RECORD_BYTES = 1 << 20
"""A larger group is stored without its members: its generations stay fenced, but a restart costs it a rebalance."""


def encode_group(group: ClassicGroup, wall_ms: int) -> bytes:
    """The group as it is now, in a state that it got into at `wall_ms`."""
    protocol = group.protocol
    record = GroupRecord(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=protocol,
        leader=group.roster.leader or None,
        members=[] if protocol is None else [member_record(member, protocol) for member in group.roster],
        state_ms=wall_ms,
    )
    value = records.encode(record)
    if len(value) > MAX_RECORD_BYTES:
        value = records.encode(msgspec.structs.replace(record, members=[]))
    return value


def member_record(member: GroupMemberState, protocol: str) -> MemberRecord:
    return MemberRecord(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscription=member.protocols[protocol],
        assignment=member.assignment,
    )


def restore_group(group: ClassicGroup, record: GroupRecord, now_ms: float) -> None:
    """Makes a new group what the record says. Members support only the protocol that was in use, until they rejoin.

    Raises ValueError for a record that no group can have written.
    """
    group.generation = record.generation
    group.protocol_type = record.protocol_type
    group.protocol = record.protocol if record.members else None
    ids = {m.member_id for m in record.members}
    instances = [m.instance_id for m in record.members if m.instance_id is not None]
    if len(ids) != len(record.members) or len(set(instances)) != len(instances):
        raise ValueError("two members have the same id")
    if record.members and record.protocol is None:
        raise ValueError("there are members but no protocol")
    members = [restored_member(m, record.protocol_type, record.protocol or "") for m in record.members]
    group.restore(members, record.leader or "", now_ms)


def restored_member(record: MemberRecord, protocol_type: str, protocol: str) -> GroupMemberState:
    request = JoinRequest(
        protocol_type,
        {protocol: record.subscription},
        record.session_timeout_ms,
        record.rebalance_timeout_ms,
        record.member_id,
        record.instance_id,
        record.client_id,
        record.client_host,
    )
    member = GroupMemberState(record.member_id, request, knows_id=True)
    member.assignment = record.assignment
    return member
