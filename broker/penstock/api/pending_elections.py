"""Delays Metadata while leaders that have just failed are about to be replaced, for 1.5 s at most. Used by `metadata`.

A client that learns a dead leader again waits before it asks once more: franz-go for `MetadataMinAge` (5 s), the Java
client and librdkafka for their back-off, and sarama gives up after a few retries. A response that arrives a few hundred
milliseconds later and names the new leaders ends the outage for all of them. A response does not wait once a later
request of its connection has arrived: that one may be for a partition whose leader is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from uuid import UUID

from penstock.api.exchange import RequestExchange
from penstock.replica.lost_leaders import LostLeaders
from penstock.state.view import ClusterView, TopicChange, TopicView

CHECK_INTERVAL_S = 0.01
"""Minimum time between two checks of waiting requests: elections arrive in many small changes."""
FOLLOWED_INTERVAL_S = 0.02
"""Maximum time for which a later request of the connection is not noticed."""


class PendingElections:
    """Topics with partitions whose leaders have just failed."""

    def __init__(self, view: ClusterView, lost: LostLeaders) -> None:
        self._view, self._lost = view, lost
        self._checked: dict[UUID, tuple[TopicView, bool]] = {}
        """Whether a topic has such partitions, valid for one object of the view."""
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        lost.subscribe(self._on_lost)
        view.subscribe(self._on_changes)

    @property
    def are_possible(self) -> bool:
        """Whether there is another broker, or was one that has just failed."""
        return len(self._view.brokers) > 1 or self.are_pending

    @property
    def are_pending(self) -> bool:
        """Whether a broker has just failed."""
        return self._lost.pending_until_s() is not None

    def concern(self, topics: Iterable[TopicView]) -> bool:
        """Return whether a partition of these topics is about to get another leader."""
        return any(map(self._is_pending, topics))

    async def wait(self, topics: Sequence[TopicView], exchange: RequestExchange) -> None:
        """Return when all partitions of these topics have other leaders, the time for it is over, or another request
        waits for this one."""
        until_s, loop = self._lost.pending_until_s(), asyncio.get_running_loop()
        for topic in topics:
            while (now := self._view.topics_by_id.get(topic.topic_id)) is not None and self._is_pending(now):
                if until_s is None or loop.time() >= until_s or exchange.is_followed or exchange.is_disconnected:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(FOLLOWED_INTERVAL_S):
                        await self._changed.wait()

    def _is_pending(self, topic: TopicView) -> bool:
        checked = self._checked.get(topic.topic_id)
        if checked is None or checked[0] is not topic:
            is_pending = any(self._lost.is_pending(partition.leader) for partition in topic.shown_partitions)
            checked = self._checked[topic.topic_id] = topic, is_pending
        return checked[1]

    def _on_lost(self) -> None:
        self._checked.clear()
        self._schedule_check()

    def _on_changes(self, changes: list[TopicChange]) -> None:
        if self._checked:
            for change in changes:
                if change.old is not None:
                    self._checked.pop(change.old.topic_id, None)
            self._schedule_check()

    def _schedule_check(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._lost.pending_until_s() is None:
            self._checked.clear()
        self._changed.set()
        self._changed.clear()
