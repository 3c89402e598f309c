"""AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders: where replicas are, and who leads.

Served by every broker: a wish is written to the store, where the controller finds it (KIP-455, KIP-460).
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
"""Partitions that one request may name; their own records bound the others."""


class ReassignmentsApi:
    """Requests for `ReassignmentRequests`, and what is under way."""

    def __init__(self, view: ClusterView, wishes: ReassignmentRequests) -> None:
        self.view, self.wishes = view, wishes

    def routes(self) -> list[Route]:
        return [
            Route(elect.ElectLeadersRequest, elect.ElectLeadersResponse, self.elect, 0, 2, failed_election),
            Route(
                alter.AlterPartitionReassignmentsRequest,
                alter.AlterPartitionReassignmentsResponse,
                self.alter,
                0,
                1,
                lambda request, error: alter.AlterPartitionReassignmentsResponse(error_code=error),
            ),
            Route(
                listing.ListPartitionReassignmentsRequest,
                listing.ListPartitionReassignmentsResponse,
                self.listed,
                0,
                0,
                lambda request, error: listing.ListPartitionReassignmentsResponse(error_code=error),
            ),
        ]

    async def alter(
        self, request: alter.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> alter.AlterPartitionReassignmentsResponse:
        """Each partition for itself; it is under way when the answer comes."""
        response = alter.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, responses=[]
        )
        may_change = request.allow_replication_factor_change
        asked = [
            ReassignmentRequest(t.name, p.partition_index, p.replicas, may_change)
            for t in request.topics
            for p in t.partitions
        ]
        if (refusal := refused(len(asked), len({(wish.topic, wish.partition) for wish in asked}))) is not None:
            response.error_code, response.error_message = refusal.error, refusal.message
            return response
        outcomes = iter(await self.wishes.reassign(asked))
        for topic in request.topics:
            partitions = [
                alter.ReassignablePartitionResponse(
                    partition_index=p.partition_index, error_code=outcome.error, error_message=outcome.message
                )
                for p, outcome in zip(topic.partitions, outcomes, strict=False)
            ]
            response.responses.append(alter.ReassignableTopicResponse(name=topic.name, partitions=partitions))
        return response

    def listed(
        self, request: listing.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> listing.ListPartitionReassignmentsResponse:
        """What is under way, of the partitions asked for or (None) of all."""
        if request.topics is None:
            found = [(topic, under_way(topic, None)) for topic in self.view.topics.values()]
        else:
            wanted = {asked.name: set(asked.partition_indexes) for asked in request.topics}
            known = [self.view.topics[name] for name in wanted if name in self.view.topics]
            found = [(topic, under_way(topic, wanted[topic.name])) for topic in known]
        return listing.ListPartitionReassignmentsResponse(
            topics=[
                listing.OngoingTopicReassignment(name=topic.name, partitions=partitions)
                for topic, partitions in found
                if partitions
            ]
        )

    async def elect(self, request: elect.ElectLeadersRequest, context: RequestContext) -> elect.ElectLeadersResponse:
        """Of all partitions (None) only those are told that needed an election."""
        if request.election_type not in (PREFERRED, UNCLEAN):
            message = f"unknown election type {request.election_type}; use 0 (preferred) or 1 (unclean)"
            return failed_election(request, ErrorCode.INVALID_REQUEST, message)
        is_unclean = request.election_type == UNCLEAN
        if request.topic_partitions is None:
            asked = self._in_need(is_unclean)
        else:
            asked = [(t.topic, index) for t in request.topic_partitions for index in t.partitions]
            refusal = refused(len(asked), len(set(asked)))
            if refusal is not None:
                return failed_election(request, refusal.error, refusal.message)
        outcomes = await self.wishes.elect(asked, is_unclean)
        results: dict[str, elect.ReplicaElectionResult] = {}
        for (topic, index), outcome in zip(asked, outcomes, strict=True):
            if request.topic_partitions is None and outcome.error is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            result = results.setdefault(topic, elect.ReplicaElectionResult(topic=topic, partition_result=[]))
            result.partition_result.append(
                elect.PartitionResult(partition_id=index, error_code=outcome.error, error_message=outcome.message)
            )
        return elect.ElectLeadersResponse(replica_election_results=list(results.values()))

    def _in_need(self, is_unclean: bool) -> list[tuple[str, int]]:
        brokers = self.view.brokers
        return [
            (topic.name, partition.index)
            for topic in self.view.topics.values()
            for partition in topic.partitions
            if (partition.leader not in brokers if is_unclean else partition.leader != partition.replicas[0])
        ]


def refused(count: int, distinct: int) -> ConfigOutcome | None:
    """Why a request is wrong as a whole."""
    if count > MAX_PARTITIONS:
        return ConfigOutcome(
            ErrorCode.INVALID_REQUEST, f"{count} partitions in one request: at most {MAX_PARTITIONS}; split it."
        )
    if distinct < count:
        return ConfigOutcome(ErrorCode.INVALID_REQUEST, "A partition is named twice in the request.")
    return None


def under_way(topic: TopicView, wanted: set[int] | None) -> list[listing.OngoingPartitionReassignment]:
    """Of the wanted partitions of a topic, or (None) of all."""
    return [
        listing.OngoingPartitionReassignment(
            partition_index=partition.index,
            replicas=partition.replicas,
            adding_replicas=partition.adding,
            removing_replicas=partition.removing,
        )
        for partition in topic.partitions
        if reassign.is_reassigning(partition) and (wanted is None or partition.index in wanted)
    ]


def failed_election(
    request: elect.ElectLeadersRequest, error: int, message: str | None = None
) -> elect.ElectLeadersResponse:
    results = [
        elect.ReplicaElectionResult(
            topic=asked.topic,
            partition_result=[
                elect.PartitionResult(partition_id=i, error_code=error, error_message=message) for i in asked.partitions
            ],
        )
        for asked in request.topic_partitions or ()
    ]
    return elect.ElectLeadersResponse(error_code=error, replica_election_results=results)
