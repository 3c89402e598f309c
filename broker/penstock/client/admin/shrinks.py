"""Admin calls for topics whose number of partitions was reduced."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.admin.lag import LagAdminClient
from penstock.client.admin.topics import topic_error
from penstock.client.errors import ClientError
from penstock.client.many import all_or_raise, request_each
from penstock.client.types import DrainingGroup, SealedPartitionInfo, TopicPartition, TopicShrink
from penstock.wire.messages import describe_topic_partitions as paging

MAX_DESCRIBED_TOPICS = 100
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
        found: dict[str, TopicShrink | ClientError | None] = {}
        for name in names:
            request = paging.DescribeTopicPartitionsRequest(
                topics=[paging.TopicRequest(name=name)], response_partition_limit=1
            )
            response = await self._cluster.call_any(request, paging.DescribeTopicPartitionsResponse)
            for topic in response.topics:
                code = topic.error_code
                found[name] = topic_error(name, code) if code else topic_shrink(name, topic)
        return found

    async def draining_groups(self, shrink: TopicShrink) -> list[DrainingGroup]:
        """Return the groups that must read on, by the offsets that they have committed, before the partitions of
        `shrink` are hidden."""
        waiting: list[DrainingGroup] = []
        groups = [listing.group_id for listing in await self.list_groups()]
        committed = all_or_raise(await self.committed_many(groups)) if groups else {}
        for group, offsets in sorted(committed.items()):
            if not any(tp.topic == shrink.name for tp in offsets):
                continue
            for sealed in shrink.sealed:
                found = offsets.get(TopicPartition(shrink.name, sealed.partition))
                offset = None if found is None else found.offset
                if not sealed.is_hidden and (offset or 0) < sealed.drained_offset:
                    lag = sealed.seal_offset - (offset or 0)
                    waiting.append(DrainingGroup(group, sealed.partition, offset, lag))
        return waiting


def topic_shrink(name: str, topic: paging.DescribeTopicPartitionsResponseTopic) -> TopicShrink | None:
    """Return the reduced number of partitions in a response; None if the topic has no sealed ones."""
    remaining, shown = topic.remaining_partitions, topic.shown_partitions
    if remaining < 0:
        return None
    columns = topic.sealed_partitions, topic.seal_offsets, topic.relay_targets, topic.drained_offsets
    sealed = tuple(
        SealedPartitionInfo(partition, seal_offset, target, drained_offset, is_hidden=partition >= shown)
        for partition, seal_offset, target, drained_offset in zip(*columns, strict=True)
    )
    return TopicShrink(name, remaining, shown, sealed)
