"""Converts members to store records and back. Used by `group.modern_groups`."""

from __future__ import annotations

from uuid import UUID

from penstock.group.modern.assignment import Assignment, encode_indexes, parse_indexes
from penstock.group.modern.member import ClassicProtocols, ModernMember, Subscription
from penstock.group.subscription import parse_subscription
from penstock.state import records
from penstock.state.records import MAX_PARTITIONS, ModernMemberRecord


def encode_member(member: ModernMember) -> bytes:
    """Encode a member's durable state."""
    wanted, classic = member.subscription, member.classic
    return records.encode(
        ModernMemberRecord(
            epoch=member.epoch,
            previous_epoch=member.previous_epoch,
            instance_id=member.instance_id,
            rack=wanted.rack,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=list(wanted.topic_names),
            topic_pattern=wanted.topic_pattern,
            assignor=wanted.assignor,
            assigned={topic_id: encode_indexes(indexes) for topic_id, indexes in member.assigned.items()},
            revoking={topic_id: encode_indexes(indexes) for topic_id, indexes in member.revoking.items()},
            protocols={} if classic is None else dict(classic.metadata),
            session_timeout_ms=0 if classic is None else classic.session_timeout_ms,
        )
    )


def restored_member(member_id: str, record: ModernMemberRecord) -> ModernMember:
    """Return the member of a record, without the topics that its subscription selects. Raises ValueError."""
    classic = ClassicProtocols(record.protocols, record.session_timeout_ms) if record.protocols else None
    for metadata in record.protocols.values():
        parse_subscription(metadata)
    return ModernMember(
        member_id,
        record.instance_id,
        record.client_id,
        record.client_host,
        record.rebalance_timeout_ms,
        Subscription(tuple(record.topics), record.topic_pattern, record.assignor, record.rack),
        classic=classic,
        epoch=record.epoch,
        previous_epoch=record.previous_epoch,
        assigned=parse_partitions(record.assigned),
        revoking=parse_partitions(record.revoking),
    )


def parse_partitions(ranges: dict[UUID, str]) -> Assignment:
    """Return the partitions of a record. Raises ValueError."""
    return {topic_id: parse_indexes(text, MAX_PARTITIONS) for topic_id, text in ranges.items()}
