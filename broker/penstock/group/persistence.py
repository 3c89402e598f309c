"""Converts groups to store records and back. Used by `coordinator`.

The record holds the last completed rebalance, or the empty group after the last member left. An ongoing rebalance is
not stored.
"""

from __future__ import annotations

import msgspec

from penstock.group.calls import JoinRequest
from penstock.group.member_list import GroupMemberState
from penstock.group.state_machine import ClassicGroup
from penstock.state import records
from penstock.state.records import GroupRecord, MemberRecord

MAX_RECORD_BYTES = 1 << 20
"""Maximum record size. A larger group is stored without members: generations stay fenced, but a restart causes a
rebalance."""


def encode_group(group: ClassicGroup, wall_ms: int) -> bytes:
    """Encode the group's current state, which it entered at `wall_ms`."""
    phases, protocol = group.phases, group.phases.protocol
    record = GroupRecord(
        protocol_type=phases.protocol_type,
        generation=phases.generation,
        protocol=protocol,
        leader=group.member_list.leader or None,
        members=[] if protocol is None else [member_record(member, protocol) for member in group.member_list],
        state_ms=wall_ms,
    )
    value = records.encode(record)
    if len(value) > MAX_RECORD_BYTES:
        value = records.encode(msgspec.structs.replace(record, members=[]))
    return value


def encode_rebalancing_group(group: ClassicGroup, wall_ms: int) -> bytes:
    """Encode a group whose members have no complete assignment: after a restart, they join again."""
    phases = group.phases
    record = GroupRecord(protocol_type=phases.protocol_type, generation=phases.generation, state_ms=wall_ms)
    return records.encode(record)


def member_record(member: GroupMemberState, protocol: str) -> MemberRecord:
    """Return the member's record, with its metadata for `protocol`."""
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
    """Restore a new group from a record. Its members support only the current protocol until they rejoin."""
    phases = group.phases
    phases.generation, phases.protocol_type = record.generation, record.protocol_type
    phases.protocol = record.protocol if record.members else None
    members = [restored_member(m, record.protocol_type, record.protocol or "") for m in record.members]
    phases.restore(members, record.leader or "", now_ms)


def restored_member(record: MemberRecord, protocol_type: str, protocol: str) -> GroupMemberState:
    """Return the member of a record."""
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
