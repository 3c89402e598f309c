"""Where a transaction leaves what its end decides over, and that end: what coordinators tell partitions and groups.

Shared by all of this room, and by the handlers of requests between brokers.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from penstock.wire.control_batch import Marker

OFFSETS_TOPIC = "__consumer_offsets"
"""The name by which groups are spoken of between brokers: a partition of it is a shard of group coordinators."""
OFFSETS_TOPIC_ID = UUID(int=2)
"""The same for those that say which topic they mean. No topic has it: their ids are random ones, of version 4."""
UNNUMBERED = -1
"""The number of a transaction that somebody ends by hand (KIP-664)."""


class TransactionPartition(NamedTuple):
    """A partition; or with `OFFSETS_TOPIC_ID` the groups of a shard."""

    topic_id: UUID
    partition: int


class MarkerTarget(NamedTuple):
    """A place as a request names it; a leader epoch of -1 is any."""

    topic: str | UUID
    partition: int
    leader_epoch: int = -1


class TransactionEnding(NamedTuple):
    """The end of a producer's transaction: the marker, and which of its transactional id's transactions it is."""

    marker: Marker
    number: int = UNNUMBERED
