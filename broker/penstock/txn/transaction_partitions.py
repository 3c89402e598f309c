"""The partitions of a transaction and its end, as exchanged between brokers.

Used by this package and the handlers of inter-broker requests.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from penstock.wire.control_batch import Marker

OFFSETS_TOPIC = "__consumer_offsets"
"""The topic name that stands for groups in inter-broker requests; its partitions are coordinator shards."""
OFFSETS_TOPIC_ID = UUID(int=2)
"""The id of `OFFSETS_TOPIC`. No topic has it: topic ids are random (version 4)."""
UNNUMBERED = -1
"""The number of a transaction that an administrator ends (KIP-664)."""


class TransactionPartition(NamedTuple):
    """A partition, or with `OFFSETS_TOPIC_ID` the groups of a shard."""

    topic_id: UUID
    partition: int


class MarkerTarget(NamedTuple):
    """The partition of a marker in a request; leader epoch -1 matches any."""

    topic: str | UUID
    partition: int
    leader_epoch: int = -1


class TransactionEnding(NamedTuple):
    """The end of a transaction: its marker and number."""

    marker: Marker
    number: int = UNNUMBERED
