"""Admin calls for topics whose number of partitions was reduced."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.admin.lag import LagAdminClient, positions
from penstock.client.admin.topics import PAGE_PARTITIONS, topic_error, topic_shrink
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import ClientError
from penstock.client.many import all_or_raise, request_each
from penstock.client.types import DrainingGroup, TopicPartition, TopicShrink
from penstock.wire.messages import describe_topic_partitions as paging

MAX_DESCRIBED_TOPICS = 500
"""Topics per request."""


class ShrinkAdminClient(LagAdminClient):
    """Calls about fewer partitions; applications use `admin.Admin`."""

    async def shrinks(self, names: Iterable[str]) -> dict[str, TopicShrink | None]:
        """Return the sealed partitions of these topics; None for a topic without any. Raises `UnknownTopic`."""
        return all_or_raise(await self.shrinks_many(names))

    async def shrinks_many(self, names: Iterable[str]) -> dict[str, TopicShrink | ClientError | None]:
        """Return the same as `shrinks`, with an error for each topic that fails. Brokers without reduced topics, such
        as Kafka's, report none."""
        connection = await self._cluster.any_connection()
        if not connection.serves(paging.DescribeTopicPartitionsRequest):
            return dict.fromkeys(names)
        return await request_each(self._cluster, names, self._request_shrinks, chunk_size=MAX_DESCRIBED_TOPICS)

    async def _request_shrinks(self, names: list[str]) -> dict[str, TopicShrink | ClientError | None]:
        return await request_shrinks(self._cluster, names)

    async def draining_groups(self, shrink: TopicShrink) -> list[DrainingGroup]:
        """Return the groups that must read on, by the offsets that they have committed, before the partitions of
        `shrink` are hidden."""
        return (await self.draining_groups_many([shrink]))[shrink.name]

    async def draining_groups_many(self, shrinks: Iterable[TopicShrink]) -> dict[str, list[DrainingGroup]]:
        """Return the same as `draining_groups` by topic; reads the offsets of all groups once."""
        wanted = list(shrinks)
        waiting: dict[str, list[DrainingGroup]] = {shrink.name: [] for shrink in wanted}
        groups = [listing.group_id for listing in await self.list_groups()] if wanted else []
        committed = all_or_raise(await self.committed_many(groups)) if groups else {}
        for group, known in sorted(committed.items()):
            offsets = positions(known)
            topics = {tp.topic for tp in offsets}
            for shrink in wanted:
                if shrink.name not in topics:
                    continue
                for sealed in shrink.sealed:
                    found = offsets.get(TopicPartition(shrink.name, sealed.partition))
                    offset = None if found is None else found.offset
                    if not sealed.is_hidden and (offset or 0) < sealed.drained_offset:
                        lag = sealed.seal_offset - (offset or 0)
                        waiting[shrink.name].append(DrainingGroup(group, sealed.partition, offset, lag))
        return waiting


async def hidden_partitions(cluster: ClusterConnections, names: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the partitions of these topics that clients no longer see since the topic has fewer, as one broker knows
    them, each with the offset of a consumer that has read all of its records. Brokers without reduced topics, such as
    Kafka's, have none. Raises `ClientError`."""
    connection = await cluster.any_connection()
    if not connection.serves(paging.DescribeTopicPartitionsRequest):
        return {}
    shrinks = await request_shrinks(cluster, list(names))
    return {
        TopicPartition(name, sealed.partition): sealed.drained_offset
        for name, shrink in shrinks.items()
        if isinstance(shrink, TopicShrink)
        for sealed in shrink.sealed
        if sealed.is_hidden
    }


async def request_shrinks(
    cluster: ClusterConnections, names: list[str], page_partitions: int = PAGE_PARTITIONS
) -> dict[str, TopicShrink | ClientError | None]:
    """Return the sealed partitions of topics, None for one without any, or the error of a topic.

    A response has the topics up to a number of partitions: request those that are left again. The first page of a topic
    has all of its seals.
    """
    found: dict[str, TopicShrink | ClientError | None] = {}
    while left := [name for name in names if name not in found]:
        request = paging.DescribeTopicPartitionsRequest(
            topics=[paging.TopicRequest(name=name) for name in left],
            response_partition_limit=page_partitions if len(left) > 1 else 1,
        )
        response = await cluster.call_any(request, paging.DescribeTopicPartitionsResponse)
        described = {topic.name or "": topic for topic in response.topics}
        if described.keys().isdisjoint(left):
            break
        for name, topic in described.items():
            found[name] = topic_error(name, topic.error_code) if topic.error_code else topic_shrink(topic)
    return found
