"""Parses the subscriptions of classic consumers, and encodes their assignments. Used by `modern.classic` and others."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from penstock.wire import codec
from penstock.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from penstock.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from penstock.wire.schema import MalformedMessage

CONSUMER = "consumer"
"""The protocol type whose metadata the broker interprets."""
VERSION = struct.Struct(">h")

NamedPartitions = list[tuple[str, list[int]]]


class ClassicSubscription(NamedTuple):
    """A consumer's metadata: topics, the partitions that it still uses (empty if it has revoked all), its rack, and the
    version of its messages.
    """

    topics: tuple[str, ...]
    owned: NamedPartitions
    rack: str | None
    version: int


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in a consumer's metadata, None if malformed.

    All versions start with the same fields, so unknown later versions can be parsed too.
    """
    if len(metadata) < VERSION.size:
        return None
    try:
        subscription, _ = codec.decode_from(ConsumerProtocolSubscription, 0, metadata, VERSION.size)
    except MalformedMessage:
        return None
    return frozenset(subscription.topics)


def parse_subscription(metadata: bytes) -> ClassicSubscription:
    """Parse a consumer's metadata. Raises `MalformedMessage`."""
    version = parse_version(metadata)
    newest = min(version, ConsumerProtocolSubscription.VERSIONS[1])
    found, _ = codec.decode_from(ConsumerProtocolSubscription, newest, metadata, VERSION.size)
    owned = [(each.topic, each.partitions) for each in found.owned_partitions]
    return ClassicSubscription(tuple(sorted(set(found.topics))), owned, found.rack_id or None, newest)


def parse_assignment(assignment: bytes) -> tuple[NamedPartitions, bytes]:
    """Return the partitions and the assignor's own data of an assignment. Raises `MalformedMessage`."""
    if not assignment:
        return [], b""
    version = min(parse_version(assignment), ConsumerProtocolAssignment.VERSIONS[1])
    found, _ = codec.decode_from(ConsumerProtocolAssignment, version, assignment, VERSION.size)
    return [(each.topic, each.partitions) for each in found.assigned_partitions], bytes(found.user_data or b"")


def encode_assignment(partitions: Iterable[tuple[str, Iterable[int]]], version: int) -> bytes:
    """Encode a member's assignment in the version of its subscription."""
    topics = [TopicPartition(topic=name, partitions=sorted(indexes)) for name, indexes in partitions]
    message = ConsumerProtocolAssignment(assigned_partitions=topics)
    return bytes(codec.encode(message, version, VERSION.pack(version)))


def parse_version(data: bytes) -> int:
    """Return the version before a message. Raises `MalformedMessage`."""
    if len(data) < VERSION.size:
        raise MalformedMessage("the message has no version")
    (version,) = VERSION.unpack_from(data)
    if version < 0:
        raise MalformedMessage(f"the message has version {version}")
    return int(version)
