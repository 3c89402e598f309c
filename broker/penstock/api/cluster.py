"""DescribeCluster, DescribeTopicPartitions, ElectLeaders, partition reassignments: the cluster as admins see it."""

from __future__ import annotations

from penstock.api.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, reachable, unknown_name_error
from penstock.api.routes import RequestContext, Route
from penstock.state.view import ClusterView, PartitionView, TopicView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    alter_partition_reassignments as alter,
)
from penstock.wire.messages import (
    describe_cluster as cluster,
)
from penstock.wire.messages import (
    describe_topic_partitions as partitions,
)
from penstock.wire.messages import (
    elect_leaders as elect,
)
from penstock.wire.messages import (
    list_partition_reassignments as listing,
)

MAX_PARTITIONS_DESCRIBED = 2000
"""Partitions in one answer to DescribeTopicPartitions, however many were asked for."""
BROKERS, CONTROLLERS = 1, 2
"""Endpoint types of DescribeCluster (KIP-919)."""
PREFERRED, UNCLEAN = 0, 1
"""Election types (KIP-460)."""


class ClusterApi:
    """What the view says of brokers and partitions, and what of it can be changed with one broker: nothing.

    In a cluster (not `is_alone`) `reassignments.ReassignmentsApi` serves what can be changed.
    """

    def __init__(self, view: ClusterView, is_alone: bool = True) -> None:
        self.view, self.is_alone = view, is_alone

    def routes(self) -> list[Route]:
        return self._reading() + (self._changing() if self.is_alone else [])

    def _reading(self) -> list[Route]:
        return [
            Route(
                cluster.DescribeClusterRequest, cluster.DescribeClusterResponse, self.describe, 0, 2, failed_describe
            ),
            Route(
                partitions.DescribeTopicPartitionsRequest,
                partitions.DescribeTopicPartitionsResponse,
                self.topic_partitions,
                0,
                0,
                failed_topic_partitions,
            ),
        ]

    def _changing(self) -> list[Route]:
        return [
            Route(elect.ElectLeadersRequest, elect.ElectLeadersResponse, self.elect_leaders, 0, 2, failed_election),
            Route(
                alter.AlterPartitionReassignmentsRequest,
                alter.AlterPartitionReassignmentsResponse,
                self.reassign,
                0,
                1,
                lambda request, error: alter.AlterPartitionReassignmentsResponse(error_code=error),
            ),
            Route(
                listing.ListPartitionReassignmentsRequest,
                listing.ListPartitionReassignmentsResponse,
                self.list_reassignments,
                0,
                0,
                lambda request, error: listing.ListPartitionReassignmentsResponse(error_code=error),
            ),
        ]

    def describe(
        self, request: cluster.DescribeClusterRequest, context: RequestContext
    ) -> cluster.DescribeClusterResponse:
        if request.endpoint_type != BROKERS:
            known = request.endpoint_type == CONTROLLERS
            error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            message = f"Brokers are endpoints of type {BROKERS}, and type {request.endpoint_type} was asked for."
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
        """Topics in the order of their names, from the cursor on, until there are partitions enough (KIP-966)."""
        names = sorted({topic.name for topic in request.topics}) if request.topics else sorted(self.view.topics)
        cursor = request.cursor
        left = min(max(request.response_partition_limit, 1), MAX_PARTITIONS_DESCRIBED)
        response = partitions.DescribeTopicPartitionsResponse(topics=[])
        for name in names:
            if cursor is not None and name < cursor.topic_name:
                continue
            first = max(cursor.partition_index, 0) if cursor is not None and name == cursor.topic_name else 0
            topic = self.view.topics.get(name)
            if topic is None:
                error = unknown_name_error(name, {})
                response.topics.append(partitions.DescribeTopicPartitionsResponseTopic(error_code=error, name=name))
                continue
            if left <= 0:
                response.next_cursor = partitions.Cursor(topic_name=name, partition_index=first)
                break
            shown = topic.partitions[first : first + left]
            left -= len(shown)
            response.topics.append(self._described(topic, shown))
            if first + len(shown) < len(topic.partitions):
                response.next_cursor = partitions.Cursor(topic_name=name, partition_index=first + len(shown))
                break
        return response

    def _described(
        self, topic: TopicView, shown: list[PartitionView]
    ) -> partitions.DescribeTopicPartitionsResponseTopic:
        described = []
        for partition in shown:
            error, leader, offline = reachable(partition, self.view)
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

    def elect_leaders(self, request: elect.ElectLeadersRequest, context: RequestContext) -> elect.ElectLeadersResponse:
        """The only replica leads: no election is needed, and of all partitions (None) none is reported as elected."""
        if request.election_type not in (PREFERRED, UNCLEAN):
            return failed_election(request, ErrorCode.INVALID_REQUEST)
        results = []
        for asked in request.topic_partitions or ():
            outcomes = [self._election(asked.topic, index) for index in asked.partitions]
            results.append(elect.ReplicaElectionResult(topic=asked.topic, partition_result=outcomes))
        return elect.ElectLeadersResponse(replica_election_results=results)

    def _election(self, topic: str, index: int) -> elect.PartitionResult:
        if self.view.topic_partition(topic, index) is None:
            error, message = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"There is no partition {index} of a topic {topic!r}.",
            )
        else:
            error, message = ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica is the leader."
        return elect.PartitionResult(partition_id=index, error_code=error, error_message=message)

    def reassign(
        self, request: alter.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> alter.AlterPartitionReassignmentsResponse:
        responses = []
        for topic in request.topics:
            outcomes = [self._reassigned(topic.name, partition) for partition in topic.partitions]
            responses.append(alter.ReassignableTopicResponse(name=topic.name, partitions=outcomes))
        return alter.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, responses=responses
        )

    def _reassigned(self, topic: str, asked: alter.ReassignablePartition) -> alter.ReassignablePartitionResponse:
        """Keeping the replicas as they are succeeds; anything else needs brokers to move to."""
        partition = self.view.topic_partition(topic, asked.partition_index)
        error, message = ErrorCode.NONE, None
        if partition is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = f"There is no partition {asked.partition_index} of a topic {topic!r}."
        elif asked.replicas is None:
            error, message = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "Nothing is being reassigned."
        elif asked.replicas != partition.replicas:
            error = ErrorCode.INVALID_REPLICA_ASSIGNMENT
            message = f"Replicas {asked.replicas[:20]}: partitions of a single broker stay on it, {partition.replicas}."
        return alter.ReassignablePartitionResponse(
            partition_index=asked.partition_index, error_code=error, error_message=message
        )

    def list_reassignments(
        self, request: listing.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> listing.ListPartitionReassignmentsResponse:
        return listing.ListPartitionReassignmentsResponse()


def failed_describe(request: cluster.DescribeClusterRequest, error: int) -> cluster.DescribeClusterResponse:
    return cluster.DescribeClusterResponse(error_code=error)


def failed_topic_partitions(
    request: partitions.DescribeTopicPartitionsRequest, error: int
) -> partitions.DescribeTopicPartitionsResponse:
    topics = [
        partitions.DescribeTopicPartitionsResponseTopic(error_code=error, name=topic.name) for topic in request.topics
    ]
    return partitions.DescribeTopicPartitionsResponse(topics=topics)


def failed_election(request: elect.ElectLeadersRequest, error: int) -> elect.ElectLeadersResponse:
    results = [
        elect.ReplicaElectionResult(
            topic=asked.topic,
            partition_result=[elect.PartitionResult(partition_id=i, error_code=error) for i in asked.partitions],
        )
        for asked in request.topic_partitions or ()
    ]
    return elect.ElectLeadersResponse(error_code=error, replica_election_results=results)
