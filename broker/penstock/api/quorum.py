"""DescribeQuorum: the controller and the metadata revision, in terms of a KRaft quorum.

Metadata is in the store. Tools that expect Kafka's metadata log see a log with the controller as its only voter and the
store's revisions as offsets.
"""

from __future__ import annotations

from penstock.api.routes import RequestContext, Route
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.records import ControllerRecord, decode
from penstock.state.store import Store, StoreError
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import describe_quorum as wire

METADATA_TOPIC, METADATA_PARTITION = "__cluster_metadata", 0
"""Kafka's name of the metadata log (KIP-595); no topic of this name can be read."""


class QuorumApi:
    """Serves DescribeQuorum 0 to 2 (KIP-595, KIP-836, KIP-853)."""

    def __init__(self, store: Store, view: ClusterView, clock: Clock) -> None:
        self.store, self.view, self.clock = store, view, clock

    def routes(self) -> list[Route]:
        """Return the routes of this API."""
        return [Route(wire.DescribeQuorumRequest, self.describe, failed_describe)]

    async def describe(
        self, request: wire.DescribeQuorumRequest, context: RequestContext
    ) -> wire.DescribeQuorumResponse:
        """Describe the quorum with a single read of the store, so that epoch and revision are consistent."""
        try:
            listing = await self.store.range(keys.CONTROLLER)
            found = next((e for e in listing.entries if e.key == keys.CONTROLLER), None)
            controller = decode(ControllerRecord, found.key, found.value) if found is not None else None
        except StoreError as e:
            return wire.DescribeQuorumResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(e))
        response = wire.DescribeQuorumResponse(topics=[])
        for topic in request.topics:
            partitions = [
                self._described(p.partition_index, controller, listing.revision)
                if (topic.topic_name, p.partition_index) == (METADATA_TOPIC, METADATA_PARTITION)
                else unknown(topic.topic_name, p.partition_index)
                for p in topic.partitions
            ]
            response.topics.append(
                wire.DescribeQuorumResponseTopicData(topic_name=topic.topic_name, partitions=partitions)
            )
        if controller is not None:
            response.nodes = self._nodes(controller.broker_id)
        return response

    def _described(
        self, index: int, controller: ControllerRecord | None, revision: int
    ) -> wire.DescribeQuorumResponsePartitionData:
        if controller is None:
            return wire.DescribeQuorumResponsePartitionData(
                partition_index=index,
                error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                error_message="no controller is elected yet; retry",
                leader_id=-1,
                leader_epoch=-1,
                high_watermark=-1,
            )
        voter = wire.ReplicaState(
            replica_id=controller.broker_id,
            log_end_offset=revision,
            last_caught_up_timestamp=self.clock.wall_ms(),
        )
        return wire.DescribeQuorumResponsePartitionData(
            partition_index=index,
            leader_id=controller.broker_id,
            leader_epoch=controller.epoch,
            high_watermark=revision,
            current_voters=[voter],
        )

    def _nodes(self, controller_id: int) -> list[wire.Node]:
        """Return the controller's listeners; empty while it is not registered."""
        broker = self.view.brokers.get(controller_id)
        if broker is None:
            return []
        listeners = [wire.Listener(name=e.listener, host=e.host, port=e.port) for e in broker.endpoints]
        return [wire.Node(node_id=controller_id, listeners=listeners)]


def unknown(topic: str, index: int) -> wire.DescribeQuorumResponsePartitionData:
    """Return the error for a partition without a quorum."""
    return wire.DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=f'"{topic}-{index}" has no quorum; only {METADATA_TOPIC}-{METADATA_PARTITION} has one',
    )


def failed_describe(request: wire.DescribeQuorumRequest, error: int) -> wire.DescribeQuorumResponse:
    """Return a response with an error."""
    return wire.DescribeQuorumResponse(error_code=error)
