"""Encodes and decodes what group members exchange through the coordinator: subscriptions and assignments.

These are "consumer" protocol messages with a version prefix, as in all Kafka clients.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from penstock.client.assignors import AssignorMember
from penstock.client.types import TopicPartition
from penstock.wire import codec
from penstock.wire.messages import consumer_protocol_assignment as assignment
from penstock.wire.messages import consumer_protocol_subscription as subscription
from penstock.wire.schema import MalformedMessage

PROTOCOL_TYPE = "consumer"
SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 1
VERSION = struct.Struct(">h")


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return partition numbers by topic, both sorted."""
    found: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        found.setdefault(tp.topic, []).append(tp.partition)
    return found


def write_subscription(topics: Iterable[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode a member's subscription."""
    message = subscription.ConsumerProtocolSubscription(
        topics=sorted(topics),
        owned_partitions=[subscription.TopicPartition(topic=t, partitions=p) for t, p in by_topic(owned).items()],
        generation_id=generation,
    )
    return bytes(codec.encode(message, SUBSCRIPTION_VERSION, VERSION.pack(SUBSCRIPTION_VERSION)))


def read_member(member_id: str, instance_id: str | None, metadata: bytes) -> AssignorMember:
    """Decode a member's subscription. Raises MalformedMessage."""
    version = min(read_version(metadata), subscription.ConsumerProtocolSubscription.VERSIONS[1])
    found, _ = codec.decode_from(subscription.ConsumerProtocolSubscription, version, metadata, VERSION.size)
    owned = tuple(TopicPartition(t.topic, p) for t in found.owned_partitions for p in t.partitions)
    return AssignorMember(member_id, frozenset(found.topics), owned, found.generation_id, instance_id)


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode a member's assignment."""
    message = assignment.ConsumerProtocolAssignment(
        assigned_partitions=[assignment.TopicPartition(topic=t, partitions=p) for t, p in by_topic(partitions).items()]
    )
    return bytes(codec.encode(message, ASSIGNMENT_VERSION, VERSION.pack(ASSIGNMENT_VERSION)))


def read_assignment(data: bytes) -> list[TopicPartition]:
    """Decode an assignment; an empty one has no partitions. Raises MalformedMessage."""
    if not data:
        return []
    version = min(read_version(data), assignment.ConsumerProtocolAssignment.VERSIONS[1])
    found, _ = codec.decode_from(assignment.ConsumerProtocolAssignment, version, data, VERSION.size)
    return [TopicPartition(t.topic, p) for t in found.assigned_partitions for p in t.partitions]


def read_version(data: bytes) -> int:
    """Return the message's version. Raises MalformedMessage."""
    if len(data) < VERSION.size:
        raise MalformedMessage("a group message without a version")
    (version,) = VERSION.unpack_from(data)
    if version < 0:
        raise MalformedMessage(f"a group message with version {version}")
    return int(version)


def subscribed_partitions(members: Iterable[AssignorMember], counts: Mapping[str, int]) -> dict[str, int]:
    """Return partition counts of existing topics that a member subscribes to."""
    topics = {topic for member in members for topic in member.topics}
    return {topic: counts[topic] for topic in topics if counts.get(topic)}
