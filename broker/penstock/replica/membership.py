"""The membership that partition roles and coordinator shards depend on. Provided by `node`."""

from __future__ import annotations

from typing import Protocol


class BrokerMembership(Protocol):
    """The registration of this broker process."""

    @property
    def epoch(self) -> int:
        """The revision of the registration, which identifies this incarnation; -1 before it."""

    def may_serve(self) -> bool:
        """Return whether the broker's lease is certainly valid. If not, another broker may lead: acks=0 and acks=1 and
        requests to coordinators are rejected, and no ISR is changed."""

    def may_discard(self) -> bool:
        """Return whether data may be truncated or deleted: not while the store may have been restored from a backup."""
