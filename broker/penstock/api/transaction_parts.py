"""The participants of a transaction: WriteTxnMarkers, from coordinators and from admin clients that end hanging
transactions (KIP-664), and TxnOffsetCommit, from producers to the group coordinator (KIP-98, KIP-447).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from penstock.api.routes import RequestContext, Route
from penstock.control.group_settings import MAX_GROUP_ID_CHARS
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offsets import OffsetCommit
from penstock.state.view import ClusterView
from penstock.txn.markers import LocalMarkers
from penstock.txn.offsets import TxnCommit, TxnOffsets
from penstock.txn.state_machine import ProducerIdentity, VerifiedTransaction
from penstock.txn.transaction_partitions import (
    OFFSETS_TOPIC,
    OFFSETS_TOPIC_ID,
    UNNUMBERED,
    MarkerTarget,
    TransactionEnding,
)
from penstock.txn.verification import Verifier
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.primitives import ZERO_UUID

MAX_MARKERS = 100_000
"""Partitions per WriteTxnMarkers request."""
NO_GENERATION = -1
ABORTABLE_VERSION = 4
"""The TxnOffsetCommit version from which clients know TRANSACTION_ABORTABLE."""
ADDING_VERSION = 5
"""The TxnOffsetCommit version that adds its group to the transaction (KIP-890, part 2)."""
LOADING_VERSION = 2
"""The TxnOffsetCommit version from which clients know COORDINATOR_LOAD_IN_PROGRESS."""
COORDINATOR_ERRORS = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
RETRIABLE = COORDINATOR_ERRORS | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}


class TransactionPartsApi:
    """Serves partition leaders and group coordinators that take part in a transaction."""

    def __init__(
        self,
        view: ClusterView,
        markers: LocalMarkers,
        groups: GroupCoordinator,
        offsets: TxnOffsets,
        verifier: Verifier,
    ) -> None:
        self.view, self.markers, self.groups = view, markers, groups
        self.offsets, self.verifier = offsets, verifier

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(WriteTxnMarkersRequest, self.write_txn_markers, markers_failed),
            Route(TxnOffsetCommitRequest, self.txn_offset_commit, commit_failed),
        ]

    async def write_txn_markers(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        """Respond when all markers are below the high watermark or have failed.

        A coordinator gets an earlier response if that takes long.
        """
        if sum(len(t.partition_indexes) for m in request.markers for t in m.topics) > MAX_MARKERS:
            return markers_failed(request, ErrorCode.INVALID_REQUEST)
        return WriteTxnMarkersResponse(markers=list(await asyncio.gather(*map(self.write_one, request.markers))))

    async def write_one(self, requested: WritableTxnMarker) -> WritableTxnMarkerResult:
        """Write the markers of one transaction."""
        if requested.producer_id < 0 or requested.producer_epoch < 0:
            return marker_result(
                requested, [ErrorCode.INVALID_REQUEST] * sum(len(t.partition_indexes) for t in requested.topics)
            )
        marker = Marker(
            requested.producer_id, requested.producer_epoch, requested.transaction_result, requested.coordinator_epoch
        )
        targets = [target for topic in requested.topics for target in self.targets(topic)]
        # A single broker has no other coordinators, whatever the request says.
        number = requested.transaction_number if self.groups.ownership.is_shared else UNNUMBERED
        return marker_result(
            requested, [marker_error(e) for e in await self.markers.send(TransactionEnding(marker, number), targets)]
        )

    def targets(self, requested: WritableTxnMarkerTopic) -> list[MarkerTarget]:
        """Return the target partitions. Coordinators name topics by id, admin clients by name."""
        topic: str | UUID = requested.name
        if requested.topic_id != ZERO_UUID:
            topic = requested.topic_id
        elif requested.name == OFFSETS_TOPIC and requested.name not in self.view.topics:
            topic = OFFSETS_TOPIC_ID
        epochs = requested.leader_epochs
        if len(epochs) != len(requested.partition_indexes):
            epochs = [-1] * len(requested.partition_indexes)
        return [
            MarkerTarget(topic, index, epoch) for index, epoch in zip(requested.partition_indexes, epochs, strict=True)
        ]

    async def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> TxnOffsetCommitResponse:
        """Serve TxnOffsetCommit 0 to 5, with errors that the client's version knows."""
        answer = await self.commit_offsets(request, context.version)
        if context.version < LOADING_VERSION:
            for partition in (p for topic in answer.topics for p in topic.partitions):
                if partition.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    partition.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return answer

    async def commit_offsets(self, request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitResponse:
        """Check partitions, transaction and group, in Kafka's order, and commit.

        Verified offsets are written by the writer that was current before the verification, or not at all: see
        `TxnOffsets`.
        """
        view = self.view
        if all(view.topic_partition(t.name, p.partition_index) is None for t in request.topics for p in t.partitions):
            return commit_failed(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        writer = self.offsets.writer(request.group_id)
        error = self.group_id_error(request.group_id)
        if error:
            return self.rejected_commit(request, error)
        adds = version >= ADDING_VERSION
        answer = self.verifier.verify_group(request.transactional_id, producer, request.group_id, adds=adds)
        if not isinstance(answer, VerifiedTransaction):
            answer = await answer
        error = client_error(self.verifier.check_result(request.producer_id, answer), version)
        # This awaits only if it finds an error: otherwise the verification still holds.
        error = error or await self.groups.fencing.confirm(request.group_id, self.group_error(request))
        if error:
            return self.rejected_commit(request, error)
        commits: list[OffsetCommit] = []
        pending: list[TxnOffsetCommitResponsePartition] = []
        topics = []
        for requested in request.topics:
            topic = self.view.topics.get(requested.name)
            count = 0 if topic is None else len(topic.partitions)
            partitions = []
            for p in requested.partitions:
                answered = TxnOffsetCommitResponsePartition(
                    partition_index=p.partition_index, error_code=self.partition_error(p, count)
                )
                partitions.append(answered)
                if topic is not None and not answered.error_code:
                    pending.append(answered)
                    metadata = p.committed_metadata or ""
                    commits.append(
                        OffsetCommit(
                            topic.topic_id, p.partition_index, p.committed_offset, p.committed_leader_epoch, metadata
                        )
                    )
            topics.append(TxnOffsetCommitResponseTopic(name=requested.name, partitions=partitions))
        txn_commit = TxnCommit(request.group_id, request.transactional_id, producer, answer.number)
        for index in await self.offsets.commit(writer, txn_commit, commits):
            pending[index].error_code = self.groups.commit_failure(request.group_id)
        return TxnOffsetCommitResponse(topics=topics)

    def group_error(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Return the error if the producer's consumer is not a member of the current generation (KIP-447), or NONE.

        Clients that send no member are fenced by their transactional id alone.
        """
        if not request.member_id and request.generation_id == NO_GENERATION and request.group_instance_id is None:
            return self.group_id_error(request.group_id)
        known = ((self.view.topics.get(topic.name), topic.partitions) for topic in request.topics)
        partitions = ((topic.topic_id, p.partition_index) for topic, parts in known if topic for p in parts)
        error = self.groups.check_commit(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id, partitions
        )
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error

    def group_id_error(self, group_id: str) -> ErrorCode:
        """Return the error if this broker does not coordinate the group or the id is invalid, or NONE."""
        error = self.groups.error(group_id)
        if not error and not 0 < len(group_id) <= MAX_GROUP_ID_CHARS:
            return ErrorCode.INVALID_GROUP_ID
        return error

    def rejected_commit(self, request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
        """Return a response with `error` for each partition that exists."""
        answer = commit_failed(request, error)
        for topic in answer.topics:
            for partition in topic.partitions:
                if self.view.topic_partition(topic.name, partition.partition_index) is None:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer

    def partition_error(self, requested: TxnOffsetCommitRequestPartition, count: int) -> ErrorCode:
        """Return the error for an unknown partition or too much metadata, or NONE."""
        if not 0 <= requested.partition_index < count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = requested.committed_metadata
        if metadata and len(metadata.encode()) > self.groups.config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE


def client_error(error: ErrorCode, version: int) -> ErrorCode:
    """Map a verification error to one that TxnOffsetCommit clients know."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error in RETRIABLE:
        # These errors concern the transaction coordinator; this broker, the group coordinator, is available.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
        return ErrorCode.TRANSACTION_ABORTABLE if version >= ABORTABLE_VERSION else ErrorCode.INVALID_TXN_STATE
    return error


def marker_error(error: ErrorCode) -> ErrorCode:
    """Map an error of the group coordinator to that of the leader of an offsets topic partition."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in COORDINATOR_ERRORS else error


def marker_result(requested: WritableTxnMarker, errors: list[ErrorCode]) -> WritableTxnMarkerResult:
    """Return the result of a marker; `errors` are in the order of its partitions."""
    remaining_errors = iter(errors)
    return WritableTxnMarkerResult(
        producer_id=requested.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=next(remaining_errors))
                    for index in topic.partition_indexes
                ],
            )
            for topic in requested.topics
            if topic.partition_indexes
        ],
    )


def markers_failed(request: WriteTxnMarkersRequest, error: int) -> WriteTxnMarkersResponse:
    """Return the response to WriteTxnMarkers with an error for each partition."""
    code = ErrorCode(error)
    results = [marker_result(m, [code] * sum(len(t.partition_indexes) for t in m.topics)) for m in request.markers]
    return WriteTxnMarkersResponse(markers=results)


def commit_failed(request: TxnOffsetCommitRequest, error: int) -> TxnOffsetCommitResponse:
    """Return the response to TxnOffsetCommit with an error for each partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
