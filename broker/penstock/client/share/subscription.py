"""Keeps a share consumer in its group, and its fetcher on the partitions that the coordinator assigns. Owned by
`consumer`.

The application's polls drive it: a member that stops to poll leaves the group, and comes back with the next poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import ClientError
from penstock.client.heartbeat_membership import NO_PARTITIONS
from penstock.client.share.fetcher import ShareFetcher
from penstock.client.share.membership import ShareMembership
from penstock.client.topic_names import find_topic_names
from penstock.client.types import TopicPartition


class ShareSubscription:
    """`wake` is called when `step` has something to do."""

    def __init__(
        self, cluster: ClusterConnections, membership: ShareMembership, fetcher: ShareFetcher, wake: Callable[[], None]
    ) -> None:
        self.cluster, self.membership, self.fetcher = cluster, membership, fetcher
        self._wake = wake
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, topics: list[str]) -> None:
        """Replace the subscription."""
        self.cluster.follow(topics)
        self.membership.subscribe(topics)
        self._wake()

    def step(self) -> None:
        """Join the group, or apply its assignment, in the background. Raises the errors of that."""
        membership, task = self.membership, self._task
        if membership.fatal is not None:
            error, membership.fatal = membership.fatal, None
            raise error
        if task is not None and task.done():
            self._task = None
            if task.exception() is not None:
                membership.rejoin_needed = True
            task.result()
        if self._task is None and membership.rejoin_needed:
            membership.rejoin_needed = False
            self._task = asyncio.create_task(self._follow(), name="penstock-share-assignment")
            self._task.add_done_callback(lambda _: self._wake())

    async def is_settled(self) -> bool:
        """Return whether the member reads all that the group has assigned to it. Raises `ClientError`."""
        membership = self.membership
        if not membership.joined or membership.rejoin_needed or self._task is not None:
            return False
        try:
            return await membership.has_final_assignment()
        except ClientError as e:
            if not e.retriable:
                raise
            return False

    def set_polled(self, is_polled: bool) -> None:
        """Record that a poll starts or ends."""
        self.membership.polling = is_polled
        self.membership.polled = True

    async def close(self) -> None:
        """Stop to follow the assignment, and leave the group."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.membership.close(leave=True)

    async def _follow(self) -> None:
        """Join if necessary, and read what is assigned. Partitions without a name yet come with a later heartbeat."""
        membership = self.membership
        if membership.lost:
            membership.lost = False
            self.fetcher.assign({})
        if not membership.joined:
            await membership.join()
        assigned = membership.assigned
        names = await find_topic_names(self.cluster, assigned)
        self.cluster.follow(names.values())
        found = {
            (topic_id, index): TopicPartition(names[topic_id], index)
            for topic_id in names
            for index in assigned[topic_id]
        }
        if not membership.joined:
            return  # removed meanwhile; `rejoin_needed` is set
        membership.use({topic_id: assigned[topic_id] for topic_id in names} or NO_PARTITIONS)
        self.fetcher.assign(found)
        if membership.assigned != assigned:
            membership.request_rejoin()
