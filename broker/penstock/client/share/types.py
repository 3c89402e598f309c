"""Values of the share consumer's public API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.client.errors import ClientError
from penstock.client.types import Headers, TopicPartition

MAX_REDELIVERY_DELAY_MS = 30 * 24 * 3_600_000
"""The longest delay of a release."""
MAX_REJECTION_REASON_CHARS = 256
"""Characters of a reason; what exceeds them is cut off."""

TopicIdPartition = tuple[UUID, int]
"""A partition by topic id: a topic that was created again is another one."""


class Acknowledgement(IntEnum):
    """What becomes of a record. GAP is for offsets without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckChoice(NamedTuple):
    """An acknowledgement; `delay_ms` is of a release, -1 for the group's back-off; `reason` is for a dead letter."""

    type: Acknowledgement
    delay_ms: int = -1
    reason: str = ""


class DeliveryOwner(Protocol):
    """Takes the acknowledgements of the records that one session has acquired from a partition."""

    def acknowledge(self, offset: int, choice: AckChoice) -> None:
        """Record an acknowledgement. Raises `IllegalState` if the record was acknowledged before."""

    def is_deliverable(self, offset: int, now_s: float) -> bool:
        """Return whether a buffered record is still locked for this member."""


@dataclass(slots=True, eq=False)
class ShareRecord:
    """A record returned by a share consumer. `timestamp_ms` is in ms since the epoch, -1 for none.

    `delivery_count` is 1 for a first delivery.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    delivery_count: int
    owner: DeliveryOwner = field(repr=False)
    """Internal: the delivery that an acknowledgement of this record belongs to."""


class AcknowledgementResult(NamedTuple):
    """The broker's response to acknowledgements of a partition. If `error` is set, none of them has taken effect, or
    it is unknown whether they have; the records are delivered again.
    """

    partition: TopicPartition
    offsets: Sequence[int]
    error: ClientError | None
