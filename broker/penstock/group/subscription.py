"""Parses the topics of a consumer's subscription, the only part of a member's metadata that the broker interprets."""

from __future__ import annotations

from penstock.wire import codec
from penstock.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from penstock.wire.schema import MalformedMessage

CONSUMER = "consumer"
"""The protocol type whose metadata the broker interprets."""
PREFIX_BYTES = 2
"""Size of the version before the subscription."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in a consumer's metadata, None if malformed.

    All versions start with the same fields, so unknown later versions can be parsed too.
    """
    if len(metadata) < PREFIX_BYTES:
        return None
    try:
        subscription, _ = codec.decode_from(ConsumerProtocolSubscription, 0, metadata, PREFIX_BYTES)
    except MalformedMessage:
        return None
    return frozenset(subscription.topics)
