"""Resolves topic ids to names. Used by `consumer_rebalancing`."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import check
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


async def find_topic_names(cluster: ClusterConnections, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the names of topics from the client's metadata, else from a broker's. Leaves out topics without a name: it
    is too early, or they are deleted. Raises `ClientError`.
    """
    known = {info.topic_id: info.name for info in cluster.metadata.topics.values()}
    wanted = set(topic_ids)
    unknown = wanted - known.keys()
    if unknown:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=topic_id) for topic_id in sorted(unknown)],
            allow_auto_topic_creation=False,
        )
        reply = await cluster.call_any(request, MetadataResponse)
        check(reply.error_code, "metadata")
        known.update({topic.topic_id: topic.name for topic in reply.topics if topic.name and not topic.error_code})
        cluster.invalidate()
    return {topic_id: known[topic_id] for topic_id in wanted if topic_id in known}
