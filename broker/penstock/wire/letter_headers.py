"""Names of the headers that a dead letter has in addition to those of its record (KIP-1191). The values are texts."""

from __future__ import annotations

PREFIX = "__dlq.errors."
TOPIC = f"{PREFIX}topic"
PARTITION = f"{PREFIX}partition"
OFFSET = f"{PREFIX}offset"
GROUP = f"{PREFIX}group"
DELIVERY_COUNT = f"{PREFIX}delivery.count"
MESSAGE = f"{PREFIX}message"
OWN_PREFIX = "penstock.dlq."
"""Prefix of the headers that Kafka does not have."""
FIRST_FAILURE = f"{OWN_PREFIX}first.failure.ms"
"""Time of the first failed delivery that the share-partition's leader knows, in ms since 1970."""
LAST_FAILURE = f"{OWN_PREFIX}last.failure.ms"
"""Time of the last failed delivery, in ms since 1970."""
