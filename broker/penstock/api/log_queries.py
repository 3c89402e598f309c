"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers: where a log begins and ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from penstock.api.fetch import READ_COMMITTED, epoch_error
from penstock.api.routes import RequestContext, Route
from penstock.log.types import LogError, OffsetOutOfRange
from penstock.replica.manager import ReplicaManager
from penstock.replica.partition import Partition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_records import (
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

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The version of ListOffsets from which each means what it does."""
NEVER = 1 << 15
HIGH_WATERMARK = -1
"""As a DeleteRecords offset: all that readers may see."""

P = TypeVar("P")


class LogQueriesApi:
    """Handlers that look into logs without moving records."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self.replicas = replicas

    def routes(self) -> list[Route]:
        return [
            Route(ListOffsetsRequest, ListOffsetsResponse, self.list_offsets, 1, 11),
            Route(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, self.offset_for_leader_epoch, 2, 4),
            Route(DeleteRecordsRequest, DeleteRecordsResponse, self.delete_records, 0, 2),
            Route(DescribeProducersRequest, DescribeProducersResponse, self.describe_producers, 0, 0),
        ]

    def why_not(self, topic: str, index: int) -> ErrorCode:
        """Why a partition is not here."""
        return self.replicas.absence(topic, index)[0]

    async def list_offsets(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            named = Counter(p.partition_index for p in topic.partitions)
            answers = []
            for asked in topic.partitions:
                if named[asked.partition_index] > 1:
                    answer = failed_listing(asked.partition_index, ErrorCode.INVALID_REQUEST)
                else:
                    answer = await self.list_one(topic.name, asked, request.isolation_level, context.version)
                answers.append(answer)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)

    async def list_one(
        self, topic: str, asked: ListOffsetsPartition, isolation_level: int, version: int
    ) -> ListOffsetsPartitionResponse:
        index = asked.partition_index
        partition = self.replicas.find(topic, index)
        if partition is None:
            return failed_listing(index, self.why_not(topic, index))
        if asked.timestamp < 0 and version < SPECIAL_SINCE.get(asked.timestamp, NEVER):
            return failed_listing(index, ErrorCode.UNSUPPORTED_VERSION)
        error = epoch_error(asked.current_leader_epoch, partition.leader_epoch)
        if error:
            return failed_listing(index, error)
        end = partition.last_stable_offset if isolation_level == READ_COMMITTED else partition.high_watermark
        try:
            timestamp_ms, offset, epoch = await find_offset(partition, asked.timestamp, end)
        except LogError:
            return failed_listing(index, ErrorCode.KAFKA_STORAGE_ERROR)
        return ListOffsetsPartitionResponse(
            partition_index=index, timestamp=timestamp_ms, offset=offset, leader_epoch=epoch
        )

    def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        def answer(topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
            partition = self.replicas.find(topic, asked.partition)
            if partition is None:
                return EpochEndOffset(partition=asked.partition, error_code=self.why_not(topic, asked.partition))
            error = epoch_error(asked.current_leader_epoch, partition.leader_epoch)
            if error:
                return EpochEndOffset(partition=asked.partition, error_code=error)
            if asked.leader_epoch == partition.leader_epoch:
                epoch, end = partition.leader_epoch, partition.log.end_offset
            else:
                epoch, end = partition.log.epoch_end_offset(asked.leader_epoch)
            return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end)

        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(topic=t.topic, partitions=[answer(t.topic, p) for p in t.partitions])
                for t in request.topics
            ]
        )

    async def delete_records(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        async def answer(topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
            partition = self.replicas.find(topic, index)
            if partition is None:
                error, low = self.why_not(topic, index), -1
            elif not partition.config.cleanup_delete:
                error, low = ErrorCode.POLICY_VIOLATION, -1
            else:
                error, low = await delete_before(partition, offset)
            return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low, error_code=error)

        topics = []
        for topic in request.topics:
            results = [await answer(topic.name, p.partition_index, p.offset) for p in topic.partitions]
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        return DeleteRecordsResponse(topics=topics)

    def describe_producers(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        def answer(topic: str, index: int) -> PartitionResponse:
            partition = self.replicas.find(topic, index)
            if partition is None:
                return PartitionResponse(partition_index=index, error_code=self.why_not(topic, index))
            return PartitionResponse(partition_index=index, active_producers=producers_of(partition))

        topics = [
            TopicResponse(name=t.name, partitions=[answer(t.name, i) for i in t.partition_indexes])
            for t in request.topics
        ]
        return DescribeProducersResponse(topics=topics)


async def find_offset(partition: Partition, timestamp_ms: int, end: int) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch) for a ListOffsets timestamp; offset -1 where there is none."""
    log = partition.log
    if timestamp_ms == LATEST:
        return -1, end, partition.leader_epoch
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_offset, log.epoch_at(log.start_offset)
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if timestamp_ms == MAX_TIMESTAMP:
        found = await in_thread(lambda: log.offset_of_max_timestamp(end))
    else:
        assert timestamp_ms >= 0, f"{timestamp_ms} is a special timestamp that nobody knows"
        found = await in_thread(lambda: log.offset_for_timestamp(timestamp_ms, end))
    if found is None:
        return -1, -1, -1
    return found.timestamp_ms, found.offset, found.leader_epoch


async def delete_before(partition: Partition, offset: int) -> tuple[ErrorCode, int]:
    """(error, the log's start afterwards)."""
    target = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if target < 0 or target > partition.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    try:
        await partition.log.delete_records_before(target)
    except OffsetOutOfRange:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    except LogError:
        return ErrorCode.KAFKA_STORAGE_ERROR, -1
    return ErrorCode.NONE, partition.log.start_offset


def producers_of(partition: Partition) -> list[ProducerState]:
    return [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
            last_timestamp=entry.last_timestamp_ms,
            coordinator_epoch=-1,
            current_txn_start_offset=-1,
        )
        for producer_id, entry in partition.producers.entries.items()
    ]


def failed_listing(index: int, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=index, error_code=error, timestamp=-1, offset=-1, leader_epoch=-1
    )


async def in_thread(work: Callable[[], P]) -> P:
    """Searching a log may wait for the disk."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
