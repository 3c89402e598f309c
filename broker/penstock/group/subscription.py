"""Which topics a consumer subscribes to: the one thing inside a member's metadata that the broker must know."""

from __future__ import annotations

from penstock.wire import codec
from penstock.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from penstock.wire.schema import MalformedMessage

CONSUMER = "consumer"
"""The protocol type whose metadata has a meaning for the broker."""
PREFIX_BYTES = 2
"""The version, before the subscription itself."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's metadata, or None where they cannot be made out.

    All versions begin alike, so that also one that is not known yet can be read.
    """
    if len(metadata) < PREFIX_BYTES:
        return None
    try:
        subscription, _ = codec.decode_from(ConsumerProtocolSubscription, 0, metadata, PREFIX_BYTES)
    except MalformedMessage:
        return None
    return frozenset(subscription.topics)
