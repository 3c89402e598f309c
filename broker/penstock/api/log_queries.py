"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers: queries about logs.

A request may name hundreds of thousands of partitions: the handlers yield to the event loop between slices, and stop
when the client disconnects. Searches by timestamp may wait for the disk and decompress batches: few run at a time, in
the worker threads that fetches also need.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from penstock.api.acknowledged_reads import FlushWait
from penstock.api.fetch import READ_COMMITTED
from penstock.api.fetch_results import epoch_error
from penstock.api.log_query_failures import (
    failed_deletions,
    failed_epochs,
    failed_listing,
    failed_listings,
    failed_producers,
)
from penstock.api.record_deletion import RecordDeletion
from penstock.api.routes import RequestContext, Route
from penstock.api.unread_age import UnreadAgeQuery
from penstock.log.types import LogError
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from penstock.wire.primitives import ZERO_UUID

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SPECIAL_TIMESTAMP_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The ListOffsets version from which each special timestamp is supported."""
START_TIMESTAMPS = (EARLIEST, EARLIEST_LOCAL)
NEVER_SUPPORTED = 1 << 15
PARTITIONS_PER_SLICE = 64
"""Partitions to process before yielding to the event loop; the first access to one creates its object."""
MAX_SEARCHES = 2
"""Concurrent searches by timestamp, so that some worker threads are always left for fetches."""
MAX_DESCRIBED_PRODUCERS = 100_000
"""Producers per response, past which no further partition is described: each may have thousands."""

NOT_FOUND = (-1, -1, -1)
"""(timestamp, offset, leader epoch) if no record is found."""

P = TypeVar("P")


class ClientDisconnected(Exception):
    """The client has disconnected; no response is needed."""


class LoopYield:
    """Yields to the event loop during a long request."""

    __slots__ = ("context", "work_done")

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self.work_done = 0

    async def count(self, work: int = 1) -> None:
        """Count `work`, in partitions, and yield if a slice is complete. Raises ClientDisconnected."""
        self.work_done += work
        if self.work_done > PARTITIONS_PER_SLICE:
            self.work_done = 0
            await asyncio.sleep(0)
            if self.context.exchange.is_disconnected:
                raise ClientDisconnected


class LogQueriesApi:
    """Serves queries about logs."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self.replicas = replicas
        self.searches = asyncio.Semaphore(MAX_SEARCHES)

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(ListOffsetsRequest, self.list_offsets, failed_listings),
            Route(OffsetForLeaderEpochRequest, self.offset_for_leader_epoch, failed_epochs),
            Route(DeleteRecordsRequest, self.delete_records, failed_deletions),
            Route(DescribeProducersRequest, self.describe_producers, failed_producers),
        ]

    def absence_error(self, topic: str, index: int) -> ErrorCode:
        """Return the error for a partition that this broker does not lead."""
        return self.replicas.absence(topic, index)[0]

    async def list_offsets(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        """Serve ListOffsets 1 to 11."""
        loop_yield, topics, unread = LoopYield(context), [], UnreadAgeQuery(self.replicas.clock.wall_ms)
        unflushed = FlushWait()
        try:
            if self.replicas.unflushed:
                for topic in request.topics:
                    for requested in topic.partitions:
                        await loop_yield.count()
                        if requested.timestamp not in START_TIMESTAMPS:
                            unflushed.add(self.replicas.find(topic.name, requested.partition_index))
                await unflushed.wait()
            for topic in request.topics:
                named = Counter(p.partition_index for p in topic.partitions)
                answers = []
                for requested in topic.partitions:
                    await loop_yield.count()
                    if named[requested.partition_index] > 1:
                        answer = failed_listing(requested.partition_index, ErrorCode.INVALID_REQUEST)
                    else:
                        answer = await self.list_one(topic.name, requested, request.isolation_level, context, unflushed)
                        self.add_unread_ages(topic.name, requested, answer, unread)
                        self.add_undelivered(topic.name, requested, answer)
                        await loop_yield.count(len(answer.unread_ages_ms))
                    answers.append(answer)
                    if unread.is_due:
                        await self.read_unread(unread, context)
                topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
            if unread.pending_ages:
                await self.read_unread(unread, context)
        except ClientDisconnected:
            topics = []
        return ListOffsetsResponse(topics=topics)

    def add_unread_ages(
        self,
        topic: str,
        requested: ListOffsetsPartition,
        answer: ListOffsetsPartitionResponse,
        unread: UnreadAgeQuery,
    ) -> None:
        """Fill in Penstock's own fields: the log start offset and the ages of unread records, if requested."""
        partition = self.replicas.find(topic, requested.partition_index) if requested.committed_offsets else None
        if partition is not None and not answer.error_code:
            answer.start_offset = partition.log.start_offset
            answer.unread_ages_ms = unread.add(partition, requested.committed_offsets)

    def add_undelivered(
        self, topic: str, requested: ListOffsetsPartition, answer: ListOffsetsPartitionResponse
    ) -> None:
        """Fill in Penstock's own fields about records that wait for their delivery, if requested and known."""
        partition = self.replicas.find(topic, requested.partition_index) if requested.include_undelivered else None
        if partition is None or answer.error_code:
            return
        if partition.schedule is not None and not partition.schedule.is_loaded:
            return
        delivery = partition.schedule if partition.delivery is None else partition.delivery
        answer.undelivered = 0 if delivery is None else delivery.waiting
        if delivery is not None and delivery.next_due_ms is not None:
            answer.next_due_ms = delivery.next_due_ms

    async def read_unread(self, unread: UnreadAgeQuery, context: RequestContext) -> None:
        """Look up the queued ages in a thread."""
        async with self.searches:
            if context.exchange.is_disconnected:
                raise ClientDisconnected
            await in_thread(unread.read_pending)

    async def list_one(
        self,
        topic: str,
        requested: ListOffsetsPartition,
        isolation_level: int,
        context: RequestContext,
        unflushed: FlushWait,
    ) -> ListOffsetsPartitionResponse:
        """Return the offset for one partition, or the error."""
        index = requested.partition_index
        if requested.timestamp < 0 and context.version < SPECIAL_TIMESTAMP_VERSIONS.get(
            requested.timestamp, NEVER_SUPPORTED
        ):
            return failed_listing(index, ErrorCode.UNSUPPORTED_VERSION)
        partition = self.replicas.find(topic, index)
        if partition is None:
            return failed_listing(index, self.absence_error(topic, index))
        error = epoch_error(requested.current_leader_epoch, partition.leader_epoch)
        if error:
            return failed_listing(index, error)
        end = partition.visible_stable_offset if isolation_level == READ_COMMITTED else partition.visible_offset
        # A new leader does not know what is committed (KIP-207) or due yet, or a flush takes too long.
        is_unknown = not partition.is_end_known or unflushed.hides(partition)
        if is_unknown and requested.timestamp not in START_TIMESTAMPS:
            unavailable = ErrorCode.OFFSET_NOT_AVAILABLE if context.version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
            return failed_listing(index, unavailable)
        try:
            found = immediate_offset(partition, requested.timestamp, end)
            if found is None:
                found = await self.search(partition, requested.timestamp, end, context)
        except LogError:
            return failed_listing(index, ErrorCode.KAFKA_STORAGE_ERROR)
        timestamp_ms, offset, epoch = found
        return ListOffsetsPartitionResponse(
            partition_index=index, timestamp=timestamp_ms, offset=offset, leader_epoch=epoch
        )

    async def search(
        self, partition: Leader, timestamp_ms: int, end: int, context: RequestContext
    ) -> tuple[int, int, int]:
        """Return the same as `immediate_offset` for a timestamp; waits if MAX_SEARCHES are running."""
        log = partition.log
        async with self.searches:
            if context.exchange.is_disconnected:
                raise ClientDisconnected
            if timestamp_ms == MAX_TIMESTAMP:
                found = await in_thread(lambda: log.offset_of_max_timestamp(end))
            else:
                assert timestamp_ms >= 0, f"{timestamp_ms} is an unknown special timestamp"
                found = await in_thread(lambda: log.offset_for_timestamp(timestamp_ms, end))
        if found is None or (offset := partition.skip_gaps(found.offset)) >= end:
            return NOT_FOUND
        return found.timestamp_ms, offset, found.leader_epoch

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        """Serve OffsetForLeaderEpoch 2 to 4."""
        loop_yield, topics = LoopYield(context), []
        try:
            for topic in request.topics:
                answers = []
                for requested in topic.partitions:
                    await loop_yield.count()
                    if topic.topic_id != ZERO_UUID:
                        answers.append(self.log_end(topic.topic_id, requested.partition))
                    else:
                        answers.append(self.epoch_end(topic.topic, requested))
                topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        except ClientDisconnected:
            topics = []
        return OffsetForLeaderEpochResponse(topics=topics)

    def log_end(self, topic_id: UUID, index: int) -> EpochEndOffset:
        """Return the end of a replica's log for the controller.

        The controller elects the most complete replica of a partition without a leader. Its requests carry the topic id
        in a field of Penstock's own.
        """
        found = self.replicas.log_end(topic_id, index)
        if found is None:
            return EpochEndOffset(partition=index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return EpochEndOffset(partition=index, leader_epoch=found[0], end_offset=found[1])

    def epoch_end(self, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
        """Return the end offset of a leader epoch (KIP-101, KIP-320)."""
        partition = self.replicas.find(topic, requested.partition)
        if partition is None:
            return EpochEndOffset(
                partition=requested.partition, error_code=self.absence_error(topic, requested.partition)
            )
        error = epoch_error(requested.current_leader_epoch, partition.leader_epoch)
        if error:
            return EpochEndOffset(partition=requested.partition, error_code=error)
        epoch, end = partition.end_of_epoch(requested.leader_epoch)
        return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end)

    async def delete_records(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        """Serve DeleteRecords 0 to 2; wait for the replicas."""
        loop_yield, topics, unflushed = LoopYield(context), [], FlushWait()
        deletion = RecordDeletion(context.exchange, request.timeout_ms)
        try:
            if self.replicas.unflushed:
                for topic in request.topics:
                    for requested in topic.partitions:
                        await loop_yield.count()
                        unflushed.add(self.replicas.find(topic.name, requested.partition_index))
                await unflushed.wait(deletion.remaining_s)
            for topic in request.topics:
                results: list[DeleteRecordsPartitionResult] = []
                topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
                for requested in topic.partitions:
                    await loop_yield.count()
                    results.append(await self.delete_one(topic.name, requested, deletion, unflushed))
            await deletion.wait_for_replicas()
        except ClientDisconnected:
            topics = []
        finally:
            deletion.close()
        return DeleteRecordsResponse(topics=topics)

    async def delete_one(
        self, topic: str, requested: DeleteRecordsPartition, deletion: RecordDeletion, unflushed: FlushWait
    ) -> DeleteRecordsPartitionResult:
        """Delete at this broker, or return the error."""
        result = DeleteRecordsPartitionResult(partition_index=requested.partition_index, low_watermark=-1)
        partition = self.replicas.find(topic, requested.partition_index)
        if partition is None:
            result.error_code = self.absence_error(topic, requested.partition_index)
        elif not partition.config.cleanup_delete:
            result.error_code = ErrorCode.POLICY_VIOLATION
        elif not self.replicas.may_discard() or unflushed.hides(partition):
            # A restored store may need these records again (`may_discard`), or a flush takes too long.
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        else:
            await deletion.delete(partition, requested.offset, result)
        return result

    async def describe_producers(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        """Serve DescribeProducers 0 (KIP-664)."""
        loop_yield, topics, described = LoopYield(context), [], 0
        try:
            for topic in request.topics:
                answers: list[PartitionResponse] = []
                for index in topic.partition_indexes:
                    await loop_yield.count(1 + len(answers[-1].active_producers) if answers else 1)
                    if described < MAX_DESCRIBED_PRODUCERS:
                        answers.append(self.producers(topic.name, index))
                        described += len(answers[-1].active_producers)
                    else:
                        answers.append(too_many_producers(index))
                topics.append(TopicResponse(name=topic.name, partitions=answers))
        except ClientDisconnected:
            topics = []
        return DescribeProducersResponse(topics=topics)

    def producers(self, topic: str, index: int) -> PartitionResponse:
        """Return the producers of one partition, or the error."""
        partition = self.replicas.find(topic, index)
        if partition is None:
            error = self.absence_error(topic, index)
            message = f'The broker does not have partition {index} of topic "{topic}".'
            return PartitionResponse(partition_index=index, error_code=error, error_message=message)
        return PartitionResponse(partition_index=index, active_producers=producers_of(partition))


def immediate_offset(partition: Leader, timestamp_ms: int, end: int) -> tuple[int, int, int] | None:
    """Return (timestamp, offset, leader epoch) for a ListOffsets timestamp that needs no search, else None.

    The offset is -1 if no record is found.
    """
    log = partition.log
    if timestamp_ms == LATEST:
        return -1, end, partition.leader_epoch
    if timestamp_ms in START_TIMESTAMPS:
        is_empty = log.start_offset >= log.end_offset
        start = partition.skip_gaps(log.start_offset)
        return -1, start, partition.leader_epoch if is_empty else log.epoch_at(min(start, log.end_offset - 1))
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD) or not log.segments:
        return NOT_FOUND
    return None


def producers_of(partition: Leader) -> list[ProducerState]:
    """Return the active producers of a partition."""
    return [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=entry.epoch,
            last_sequence=last.last_sequence if (last := entry.last_batch) else -1,
            last_timestamp=entry.last_timestamp_ms,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=partition.producers.transactions.first_offset(producer_id),
        )
        for producer_id, entry in partition.producers.entries.items()
    ]


def too_many_producers(index: int) -> PartitionResponse:
    """Return the error for a partition past MAX_DESCRIBED_PRODUCERS."""
    message = (
        f"the response has {MAX_DESCRIBED_PRODUCERS:,} producers already; request this partition in another request"
    )
    return PartitionResponse(partition_index=index, error_code=ErrorCode.INVALID_REQUEST, error_message=message)


async def in_thread(work: Callable[[], P]) -> P:
    """Run `work`, which may wait for the disk, in a worker thread."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
