"""What a partition's roles must know of their broker's place in the cluster.

`node` hands it in; there is none where one broker is alone. `control.membership.Registration` knows the first two.
"""

from __future__ import annotations

from typing import Protocol


class ReplicaMembership(Protocol):
    """This run of the broker, as registered."""

    @property
    def epoch(self) -> int:
        """The revision at which it registered, which names this incarnation; -1 before."""

    def may_serve(self) -> bool:
        """Whether its lease surely holds: without, acks=0 and 1 are refused, and no ISR is changed."""

    def may_discard(self) -> bool:
        """Whether data may be cut off or deleted: not while the store may have gone back in time."""
