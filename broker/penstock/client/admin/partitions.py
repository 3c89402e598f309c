"""The part of the admin client that concerns where partitions are: reassignments (KIP-455), elections (KIP-460)."""

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

MAX_PARTITIONS = 1000
"""Partitions in one request."""
PREFERRED, UNCLEAN = 0, 1
"""Election types (KIP-460)."""


class PartitionAdminClient:
    """Replicas and leaders; `admin.Admin` is what applications use."""

    def __init__(self, cluster: ClusterConnections) -> None:
        self._cluster = cluster

    async def alter_partition_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: int = 30_000,
    ) -> dict[TopicPartition, BrokerError]:
        """Has partitions moved to other replicas, the preferred leader first; None cancels what is under way.

        Returns the partitions that were refused, and why; the others are under way. Raises where a request failed as a
        whole: what had been asked before it is under way.
        """
        refused: dict[TopicPartition, BrokerError] = {}
        left = iter(wanted.items())
        while part := dict(islice(left, MAX_PARTITIONS)):
            request = alter.AlterPartitionReassignmentsRequest(
                timeout_ms=timeout_ms,
                allow_replication_factor_change=allow_replication_factor_change,
                topics=[
                    alter.ReassignableTopic(
                        name=topic,
                        partitions=[wish(p, part[TopicPartition(topic, p)]) for p in partitions],
                    )
                    for topic, partitions in by_topic(part).items()
                ],
            )

            async def ask(
                request: alter.AlterPartitionReassignmentsRequest = request,
            ) -> alter.AlterPartitionReassignmentsResponse:
                answer = await self._cluster.call_controller(request, alter.AlterPartitionReassignmentsResponse)
                check(answer.error_code, "reassignments", answer.error_message)
                return answer

            for topic_result in (await self._cluster.retrying(ask)).responses:
                for p in topic_result.partitions:
                    if p.error_code:
                        tp = TopicPartition(topic_result.name, p.partition_index)
                        refused[tp] = BrokerError(p.error_code, str(tp), p.error_message)
        return refused

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """What is under way, of these partitions or (None) of all."""
        topics = None
        if partitions is not None:
            topics = [
                listing.ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]

        async def ask() -> listing.ListPartitionReassignmentsResponse:
            request = listing.ListPartitionReassignmentsRequest(topics=topics)
            answer = await self._cluster.call_controller(request, listing.ListPartitionReassignmentsResponse)
            check(answer.error_code, "reassignments", answer.error_message)
            return answer

        return {
            TopicPartition(topic.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in (await self._cluster.retrying(ask)).topics
            for p in topic.partitions
        }

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, BrokerError]:
        """Has the preferred replica of these partitions, or (None) of all, elected.

        `unclean` elects, where there is no leader, whoever is there: acknowledged records may be lost. Returns the
        partitions where that could not be done, and why; one that needed no election counts as done.
        """
        topics = None
        if partitions is not None:
            topics = [elect.TopicPartitions(topic=name, partitions=p) for name, p in by_topic(partitions).items()]
        request = elect.ElectLeadersRequest(
            election_type=UNCLEAN if unclean else PREFERRED, topic_partitions=topics, timeout_ms=timeout_ms
        )

        async def ask() -> elect.ElectLeadersResponse:
            answer = await self._cluster.call_controller(request, elect.ElectLeadersResponse)
            check(answer.error_code, "elections")
            return answer

        failed: dict[TopicPartition, BrokerError] = {}
        for result in (await self._cluster.retrying(ask)).replica_election_results:
            for p in result.partition_result:
                if p.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
                    tp = TopicPartition(result.topic, p.partition_id)
                    failed[tp] = BrokerError(p.error_code, str(tp), p.error_message)
        return failed


def wish(index: int, replicas: Sequence[int] | None) -> alter.ReassignablePartition:
    return alter.ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas))
