"""Admin calls about replicas and leaders: reassignments (KIP-455), leader elections (KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from penstock.client.admin.types import Reassignment
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, check
from penstock.client.group_protocol import by_topic
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import elect_leaders as elect
from penstock.wire.messages import list_partition_reassignments as listing

MAX_PARTITIONS_PER_REQUEST = 1000
"""Partitions per request."""
PREFERRED, UNCLEAN = 0, 1
"""Election types (KIP-460)."""


class PartitionAdminClient:
    """Replica and leader calls; applications use `admin.Admin`."""

    def __init__(self, cluster: ClusterConnections) -> None:
        self._cluster = cluster

    async def alter_partition_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: int = 30_000,
    ) -> dict[TopicPartition, BrokerError]:
        """Start reassignments to the given replicas, preferred leader first; None cancels a running one.

        Returns rejected partitions with their errors. Raises if a whole request fails; reassignments of earlier
        requests have started.
        """
        refused: dict[TopicPartition, BrokerError] = {}
        remaining = iter(wanted.items())
        while chunk := dict(islice(remaining, MAX_PARTITIONS_PER_REQUEST)):
            request = alter.AlterPartitionReassignmentsRequest(
                timeout_ms=timeout_ms,
                allow_replication_factor_change=allow_replication_factor_change,
                topics=[
                    alter.ReassignableTopic(
                        name=topic,
                        partitions=[reassignable_partition(p, chunk[TopicPartition(topic, p)]) for p in partitions],
                    )
                    for topic, partitions in by_topic(chunk).items()
                ],
            )

            async def request_once(
                request: alter.AlterPartitionReassignmentsRequest = request,
            ) -> alter.AlterPartitionReassignmentsResponse:
                response = await self._cluster.call_controller(request, alter.AlterPartitionReassignmentsResponse)
                check(response.error_code, "reassignments", response.error_message)
                return response

            for topic_result in (await self._cluster.retrying(request_once)).responses:
                for p in topic_result.partitions:
                    if p.error_code:
                        tp = TopicPartition(topic_result.name, p.partition_index)
                        refused[tp] = BrokerError(p.error_code, str(tp), p.error_message)
        return refused

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return running reassignments, of these partitions or all (None)."""
        topics = None
        if partitions is not None:
            topics = [
                listing.ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]

        async def request_once() -> listing.ListPartitionReassignmentsResponse:
            request = listing.ListPartitionReassignmentsRequest(topics=topics)
            response = await self._cluster.call_controller(request, listing.ListPartitionReassignmentsResponse)
            check(response.error_code, "reassignments", response.error_message)
            return response

        return {
            TopicPartition(topic.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in (await self._cluster.retrying(request_once)).topics
            for p in topic.partitions
        }

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, BrokerError]:
        """Elect the preferred leader of these partitions, or of all (None).

        `unclean` elects any live replica of partitions without a leader, which may lose acknowledged records. Returns
        failed partitions with their errors; partitions that need no election succeed.
        """
        topics = None
        if partitions is not None:
            topics = [elect.TopicPartitions(topic=name, partitions=p) for name, p in by_topic(partitions).items()]
        request = elect.ElectLeadersRequest(
            election_type=UNCLEAN if unclean else PREFERRED, topic_partitions=topics, timeout_ms=timeout_ms
        )

        async def request_once() -> elect.ElectLeadersResponse:
            response = await self._cluster.call_controller(request, elect.ElectLeadersResponse)
            check(response.error_code, "elections")
            return response

        failed: dict[TopicPartition, BrokerError] = {}
        for result in (await self._cluster.retrying(request_once)).replica_election_results:
            for p in result.partition_result:
                if p.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
                    tp = TopicPartition(result.topic, p.partition_id)
                    failed[tp] = BrokerError(p.error_code, str(tp), p.error_message)
        return failed


def reassignable_partition(index: int, replicas: Sequence[int] | None) -> alter.ReassignablePartition:
    """Return the request's entry for a partition."""
    return alter.ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas))
