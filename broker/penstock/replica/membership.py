"""The cluster membership that partition roles depend on.

Provided by `node`; None for a single broker. `control.membership.Registration` implements the first two members.
"""

from __future__ import annotations

from typing import Protocol


class ReplicaMembership(Protocol):
    """The registration of this broker process."""

    @property
    def epoch(self) -> int:
        """The revision of the registration, which identifies this incarnation; -1 before it."""

    def may_serve(self) -> bool:
        """Return whether the broker's lease is certainly valid. If not, acks=0 and acks=1 are rejected and no ISR is
        changed."""

    def may_discard(self) -> bool:
        """Return whether data may be truncated or deleted: not while the store may have been restored from a backup."""
