"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: replica placement and leadership.

Every broker serves them: a request is written to the store, where the controller finds it (KIP-455, KIP-460).
"""

from __future__ import annotations

from penstock.api.routes import RequestContext, Route
from penstock.control.controller import reassign
from penstock.control.controller.reassignment_requests import ReassignmentRequest, ReassignmentRequests
from penstock.control.results import ConfigOutcome
from penstock.state.view import ClusterView, TopicView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import elect_leaders as elect
from penstock.wire.messages import list_partition_reassignments as listing

PREFERRED, UNCLEAN = 0, 1
"""Election types (KIP-460)."""
MAX_PARTITIONS = 10_000
"""Partitions per request."""


class ReassignmentsApi:
    """Forwards requests to `ReassignmentRequests` and lists ongoing reassignments."""

    def __init__(self, view: ClusterView, reassignment_requests: ReassignmentRequests) -> None:
        self.view, self.reassignment_requests = view, reassignment_requests

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(elect.ElectLeadersRequest, self.elect, failed_election),
            Route(
                alter.AlterPartitionReassignmentsRequest,
                self.alter,
                failed_alter,
            ),
            Route(
                listing.ListPartitionReassignmentsRequest,
                self.list_reassignments,
                lambda request, error: listing.ListPartitionReassignmentsResponse(error_code=error),
            ),
        ]

    async def alter(
        self, request: alter.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> alter.AlterPartitionReassignmentsResponse:
        """Start or cancel reassignments, each partition independently; they are recorded before the response."""
        response = alter.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, responses=[]
        )
        may_change = request.allow_replication_factor_change
        requested = [
            ReassignmentRequest(t.name, p.partition_index, p.replicas, may_change)
            for t in request.topics
            for p in t.partitions
        ]
        if (
            refusal := request_error(
                len(requested), len({(reassignment.topic, reassignment.partition) for reassignment in requested})
            )
        ) is not None:
            response.error_code, response.error_message = refusal.error, refusal.message
            return response
        outcomes = iter(await self.reassignment_requests.reassign(requested))
        for topic in request.topics:
            partitions = [
                alter.ReassignablePartitionResponse(
                    partition_index=p.partition_index, error_code=outcome.error, error_message=outcome.message
                )
                for p, outcome in zip(topic.partitions, outcomes, strict=False)
            ]
            response.responses.append(alter.ReassignableTopicResponse(name=topic.name, partitions=partitions))
        return response

    def list_reassignments(
        self, request: listing.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> listing.ListPartitionReassignmentsResponse:
        """Return the ongoing reassignments of the requested partitions, or of all."""
        if request.topics is None:
            found = [(topic, ongoing_reassignments(topic, None)) for topic in self.view.topics.values()]
        else:
            requested = {topic.name: set(topic.partition_indexes) for topic in request.topics}
            known = [self.view.topics[name] for name in requested if name in self.view.topics]
            found = [(topic, ongoing_reassignments(topic, requested[topic.name])) for topic in known]
        return listing.ListPartitionReassignmentsResponse(
            topics=[
                listing.OngoingTopicReassignment(name=topic.name, partitions=partitions)
                for topic, partitions in found
                if partitions
            ]
        )

    async def elect(self, request: elect.ElectLeadersRequest, context: RequestContext) -> elect.ElectLeadersResponse:
        """Elect leaders. If the request names no partitions, the response lists only those that needed an election."""
        if request.election_type not in (PREFERRED, UNCLEAN):
            message = f'election type "{request.election_type}" is unknown; use 0 (preferred) or 1 (unclean)'
            return failed_election(request, ErrorCode.INVALID_REQUEST, message)
        is_unclean = request.election_type == UNCLEAN
        if request.topic_partitions is None:
            requested = self._partitions_to_elect(is_unclean)
        else:
            requested = [(t.topic, index) for t in request.topic_partitions for index in t.partitions]
            refusal = request_error(len(requested), len(set(requested)))
            if refusal is not None:
                return failed_election(request, refusal.error, refusal.message)
        outcomes = await self.reassignment_requests.elect(requested, is_unclean)
        results: dict[str, elect.ReplicaElectionResult] = {}
        for (topic, index), outcome in zip(requested, outcomes, strict=True):
            if request.topic_partitions is None and outcome.error is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            result = results.setdefault(topic, elect.ReplicaElectionResult(topic=topic, partition_result=[]))
            result.partition_result.append(
                elect.PartitionResult(partition_id=index, error_code=outcome.error, error_message=outcome.message)
            )
        return elect.ElectLeadersResponse(replica_election_results=list(results.values()))

    def _partitions_to_elect(self, is_unclean: bool) -> list[tuple[str, int]]:
        brokers = self.view.brokers
        return [
            (topic.name, partition.index)
            for topic in self.view.topics.values()
            for partition in topic.partitions
            if (partition.leader not in brokers if is_unclean else partition.leader != partition.replicas[0])
        ]


def request_error(count: int, distinct: int) -> ConfigOutcome | None:
    """Return the error of a request that is rejected as a whole, else None."""
    if count > MAX_PARTITIONS:
        return ConfigOutcome(
            ErrorCode.INVALID_REQUEST,
            f"{count} partitions exceed the limit of {MAX_PARTITIONS} per request; split the request",
        )
    if distinct < count:
        return ConfigOutcome(
            ErrorCode.INVALID_REQUEST, "a partition appears twice in the request; remove the duplicate"
        )
    return None


def ongoing_reassignments(topic: TopicView, requested: set[int] | None) -> list[listing.OngoingPartitionReassignment]:
    """Return the ongoing reassignments of a topic's requested partitions, or of all."""
    return [
        listing.OngoingPartitionReassignment(
            partition_index=partition.index,
            replicas=partition.replicas,
            adding_replicas=partition.adding,
            removing_replicas=partition.removing,
        )
        for partition in topic.partitions
        if reassign.is_reassigning(partition) and (requested is None or partition.index in requested)
    ]


def failed_alter(
    request: alter.AlterPartitionReassignmentsRequest, error: int
) -> alter.AlterPartitionReassignmentsResponse:
    """Return the response to AlterPartitionReassignments with an error for the request and for each partition."""
    responses = [
        alter.ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                alter.ReassignablePartitionResponse(partition_index=each.partition_index, error_code=error)
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return alter.AlterPartitionReassignmentsResponse(error_code=error, responses=responses)


def failed_election(
    request: elect.ElectLeadersRequest, error: int, message: str | None = None
) -> elect.ElectLeadersResponse:
    """Return the response to ElectLeaders with an error for each partition."""
    results = [
        elect.ReplicaElectionResult(
            topic=requested.topic,
            partition_result=[
                elect.PartitionResult(partition_id=i, error_code=error, error_message=message)
                for i in requested.partitions
            ],
        )
        for requested in request.topic_partitions or ()
    ]
    return elect.ElectLeadersResponse(error_code=error, replica_election_results=results)
