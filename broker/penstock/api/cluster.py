"""DescribeCluster and DescribeTopicPartitions: the cluster for admin clients."""

from __future__ import annotations

from penstock.api.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, partition_availability, unknown_name_error
from penstock.api.routes import RequestContext, Route
from penstock.state.view import ClusterView, PartitionView, TopicView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    describe_cluster as cluster,
)
from penstock.wire.messages import (
    describe_topic_partitions as partitions,
)

MAX_PARTITIONS_DESCRIBED = 2000
"""Partitions per DescribeTopicPartitions response, whatever limit the request has."""
BROKERS, CONTROLLERS = 1, 2
"""Endpoint types of DescribeCluster (KIP-919)."""


class ClusterApi:
    """Describes brokers and partitions from the cluster view; `reassignments` changes them."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(cluster.DescribeClusterRequest, self.describe, failed_describe),
            Route(partitions.DescribeTopicPartitionsRequest, self.topic_partitions, failed_topic_partitions),
        ]

    def describe(
        self, request: cluster.DescribeClusterRequest, context: RequestContext
    ) -> cluster.DescribeClusterResponse:
        """Serve DescribeCluster 0 to 2."""
        if request.endpoint_type != BROKERS:
            known = request.endpoint_type == CONTROLLERS
            error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            message = f'endpoint type "{request.endpoint_type}" is not supported; use {BROKERS} (brokers)'
            return cluster.DescribeClusterResponse(error_code=error, error_message=message)
        response = cluster.DescribeClusterResponse(
            cluster_id=self.view.cluster_id, controller_id=self.view.controller_id
        )
        response.brokers = [
            cluster.DescribeClusterBroker(broker_id=b.broker_id, host=e.host, port=e.port, rack=b.rack)
            for b in self.view.brokers.values()
            if (e := b.endpoint(context.peer.listener)) is not None
        ]
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def topic_partitions(
        self, request: partitions.DescribeTopicPartitionsRequest, context: RequestContext
    ) -> partitions.DescribeTopicPartitionsResponse:
        """Return topics in name order from the cursor, up to the partition limit (KIP-966)."""
        names = sorted({topic.name for topic in request.topics}) if request.topics else sorted(self.view.topics)
        cursor = request.cursor
        remaining = min(max(request.response_partition_limit, 1), MAX_PARTITIONS_DESCRIBED)
        response = partitions.DescribeTopicPartitionsResponse(topics=[])
        for name in names:
            if cursor is not None and name < cursor.topic_name:
                continue
            first = max(cursor.partition_index, 0) if cursor is not None and name == cursor.topic_name else 0
            topic = self.view.topics.get(name)
            if topic is None:
                error = unknown_name_error(name, {})
                missing = partitions.DescribeTopicPartitionsResponseTopic(error_code=error, name=name)
                missing.topic_authorized_operations = TOPIC_OPERATIONS
                response.topics.append(missing)
                continue
            if remaining <= 0:
                response.next_cursor = partitions.Cursor(topic_name=name, partition_index=first)
                break
            shown = topic.shown_partitions
            page = shown[first : first + remaining]
            remaining -= len(page)
            response.topics.append(with_seals(self._described(topic, page), topic))
            if first + len(page) < len(shown):
                response.next_cursor = partitions.Cursor(topic_name=name, partition_index=first + len(page))
                break
        return response

    def _described(
        self, topic: TopicView, page: list[PartitionView]
    ) -> partitions.DescribeTopicPartitionsResponseTopic:
        described = []
        for partition in page:
            error, leader, offline = partition_availability(partition, self.view)
            described.append(
                partitions.DescribeTopicPartitionsResponsePartition(
                    error_code=error,
                    partition_index=partition.index,
                    leader_id=leader,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=partition.replicas,
                    isr_nodes=partition.isr,
                    eligible_leader_replicas=partition.eligible,
                    last_known_elr=partition.last_isr,
                    offline_replicas=offline,
                )
            )
        return partitions.DescribeTopicPartitionsResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=described,
            topic_authorized_operations=TOPIC_OPERATIONS,
        )


def with_seals(
    described: partitions.DescribeTopicPartitionsResponseTopic, topic: TopicView
) -> partitions.DescribeTopicPartitionsResponseTopic:
    """Add Penstock's own fields of a topic whose number of partitions was reduced; return the topic."""
    if topic.shrink is not None:
        described.remaining_partitions, described.shown_partitions = topic.shrink.remaining, topic.shown_count
    for index, seal in sorted(topic.seals.items()):
        if seal.offset >= 0:
            described.sealed_partitions.append(index)
            described.seal_offsets.append(seal.offset)
            described.relay_targets.append(seal.target)
            described.drained_offsets.append(seal.drained_offset if seal.has_records else 0)
    return described


def failed_describe(request: cluster.DescribeClusterRequest, error: int) -> cluster.DescribeClusterResponse:
    """Return the response to DescribeCluster with an error."""
    return cluster.DescribeClusterResponse(error_code=error)


def failed_topic_partitions(
    request: partitions.DescribeTopicPartitionsRequest, error: int
) -> partitions.DescribeTopicPartitionsResponse:
    """Return the response to DescribeTopicPartitions with an error for each topic."""
    topics = [
        partitions.DescribeTopicPartitionsResponseTopic(error_code=error, name=topic.name) for topic in request.topics
    ]
    return partitions.DescribeTopicPartitionsResponse(topics=topics)
