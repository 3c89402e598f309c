"""The client's side of a share session (KIP-932): the epoch of the next request, and the partitions that the broker
fetches for this member. No I/O; one per broker, owned by `broker_reader`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from penstock.client.share.types import TopicIdPartition

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
MAX_EPOCH = (1 << 31) - 1


class SessionChange(NamedTuple):
    """What a fetch says about its session: `listed` partitions are added or acknowledged."""

    epoch: int
    listed: tuple[TopicIdPartition, ...]
    forgotten: tuple[TopicIdPartition, ...]


class MemberSession:
    """`partitions` are those that the broker has after the requests that it answered. One request at a time."""

    def __init__(self) -> None:
        self.epoch = INITIAL_EPOCH
        self.partitions: frozenset[TopicIdPartition] = frozenset()

    @property
    def is_open(self) -> bool:
        """Return whether the broker has the session, as far as is known here."""
        return self.epoch != INITIAL_EPOCH

    def change_to(
        self, wanted: Collection[TopicIdPartition], acknowledged: Collection[TopicIdPartition] = ()
    ) -> SessionChange:
        """Return what a fetch must say so that the session has the `wanted` partitions.

        Acknowledged partitions are listed, which adds them; those that are not wanted are also forgotten.
        """
        assert self.is_open or not acknowledged, "a session that is not open has acquired no records"
        listed = dict.fromkeys(each for each in wanted if each not in self.partitions)
        listed.update(dict.fromkeys(acknowledged))
        kept = frozenset(wanted)
        forgotten = (self.partitions | listed.keys()) - kept
        return SessionChange(self.epoch, tuple(listed), tuple(sorted(forgotten)))

    def on_fetched(self, wanted: Collection[TopicIdPartition]) -> None:
        """Record a successful response to a fetch for these partitions."""
        self.partitions = frozenset(wanted)
        self._advance()

    def on_acknowledged(self) -> None:
        """Record a successful response to a request that only acknowledges."""
        assert self.is_open, "only a session that is open can acknowledge"
        self._advance()

    def reset(self) -> None:
        """Record that the session is over; the next fetch opens another one."""
        self.epoch = INITIAL_EPOCH
        self.partitions = frozenset()

    def _advance(self) -> None:
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
