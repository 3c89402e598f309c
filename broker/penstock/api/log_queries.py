"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers: where a log begins and ends.

One request may name hundreds of thousands of partitions: it is worked off in slices, between which the event loop
serves others, and given up when its client has gone. Searches by time may wait for the disk and open batches: a few run
at a time, in threads that reads for consumers need too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from penstock.api.acknowledged_reads import FlushWait
from penstock.api.fetch import READ_COMMITTED, epoch_error
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
SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The version of ListOffsets from which each means what it does."""
STARTS = (EARLIEST, EARLIEST_LOCAL)
NEVER = 1 << 15
SLICE = 64
"""Partitions that a request looks at before others have their turn; the first look at one makes its object."""
MAX_SEARCHES = 2
"""Searches by time at once, so that of the broker's worker threads some are always left to read for consumers."""
MAX_PRODUCERS_TOLD = 100_000
"""Producers in one answer, beyond which no further partition is described: each may have thousands."""

NOWHERE = (-1, -1, -1)
"""(timestamp, offset, leader epoch) where nothing is found."""

P = TypeVar("P")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class LoopYield:
    """Lets others have their turn while a long request is worked off."""

    __slots__ = ("context", "done")

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self.done = 0

    async def take(self, work: int = 1) -> None:
        """Called before each partition, with what it or the one before cost, in partitions. Raises ClientGone."""
        self.done += work
        if self.done > SLICE:
            self.done = 0
            await asyncio.sleep(0)
            if self.context.exchange.is_disconnected:
                raise ClientGone


class LogQueriesApi:
    """Handlers that look into logs without moving records."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self.replicas = replicas
        self.searches = asyncio.Semaphore(MAX_SEARCHES)

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
        turns, topics, unread = LoopYield(context), [], UnreadAgeQuery(self.replicas.clock.wall_ms)
        unflushed = FlushWait()
        try:
            if self.replicas.unflushed:
                for topic in request.topics:
                    for asked in topic.partitions:
                        await turns.take()
                        if asked.timestamp not in STARTS:
                            unflushed.add(self.replicas.find(topic.name, asked.partition_index))
                await unflushed.wait()
            for topic in request.topics:
                named = Counter(p.partition_index for p in topic.partitions)
                answers = []
                for asked in topic.partitions:
                    await turns.take()
                    if named[asked.partition_index] > 1:
                        answer = failed_listing(asked.partition_index, ErrorCode.INVALID_REQUEST)
                    else:
                        answer = await self.list_one(topic.name, asked, request.isolation_level, context, unflushed)
                        self.begin_unread(topic.name, asked, answer, unread)
                        await turns.take(len(answer.unread_ages_ms))
                    answers.append(answer)
                    if unread.is_due:
                        await self.read_unread(unread, context)
                topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
            if unread.waiting:
                await self.read_unread(unread, context)
        except ClientGone:
            topics = []
        return ListOffsetsResponse(topics=topics)

    def begin_unread(
        self, topic: str, asked: ListOffsetsPartition, answer: ListOffsetsPartitionResponse, unread: UnreadAgeQuery
    ) -> None:
        """Where the log begins, and the ages of what was not read, where a field of our own asks for them."""
        partition = self.replicas.find(topic, asked.partition_index) if asked.committed_offsets else None
        if partition is not None and not answer.error_code:
            answer.start_offset = partition.log.start_offset
            answer.unread_ages_ms = unread.take(partition, asked.committed_offsets)

    async def read_unread(self, unread: UnreadAgeQuery, context: RequestContext) -> None:
        async with self.searches:
            if context.exchange.is_disconnected:
                raise ClientGone
            await in_thread(unread.read_waiting)

    async def list_one(
        self,
        topic: str,
        asked: ListOffsetsPartition,
        isolation_level: int,
        context: RequestContext,
        unflushed: FlushWait,
    ) -> ListOffsetsPartitionResponse:
        index = asked.partition_index
        if asked.timestamp < 0 and context.version < SPECIAL_SINCE.get(asked.timestamp, NEVER):
            return failed_listing(index, ErrorCode.UNSUPPORTED_VERSION)
        partition = self.replicas.find(topic, index)
        if partition is None:
            return failed_listing(index, self.why_not(topic, index))
        error = epoch_error(asked.current_leader_epoch, partition.leader_epoch)
        if error:
            return failed_listing(index, error)
        end = partition.last_stable_offset if isolation_level == READ_COMMITTED else partition.high_watermark
        # A new leader does not know yet what is committed (KIP-207), or the disk does not finish a flush.
        is_unknown = partition.high_watermark < partition.epoch_start or unflushed.hides(partition)
        if is_unknown and asked.timestamp not in STARTS:
            late = ErrorCode.OFFSET_NOT_AVAILABLE if context.version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
            return failed_listing(index, late)
        try:
            found = known_place(partition, asked.timestamp, end)
            if found is None:
                found = await self.search(partition, asked.timestamp, end, context)
        except LogError:
            return failed_listing(index, ErrorCode.KAFKA_STORAGE_ERROR)
        timestamp_ms, offset, epoch = found
        return ListOffsetsPartitionResponse(
            partition_index=index, timestamp=timestamp_ms, offset=offset, leader_epoch=epoch
        )

    async def search(
        self, partition: Leader, timestamp_ms: int, end: int, context: RequestContext
    ) -> tuple[int, int, int]:
        """As `known_place`, for times; waits where as many searches as may run already do."""
        log = partition.log
        async with self.searches:
            if context.exchange.is_disconnected:
                raise ClientGone
            if timestamp_ms == MAX_TIMESTAMP:
                found = await in_thread(lambda: log.offset_of_max_timestamp(end))
            else:
                assert timestamp_ms >= 0, f"{timestamp_ms} is a special timestamp that nobody knows"
                found = await in_thread(lambda: log.offset_for_timestamp(timestamp_ms, end))
        return NOWHERE if found is None else (found.timestamp_ms, found.offset, found.leader_epoch)

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        turns, topics = LoopYield(context), []
        try:
            for topic in request.topics:
                answers = []
                for asked in topic.partitions:
                    await turns.take()
                    if topic.topic_id != ZERO_UUID:
                        answers.append(self.log_end(topic.topic_id, asked.partition))
                    else:
                        answers.append(self.epoch_end(topic.topic, asked))
                topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        except ClientGone:
            topics = []
        return OffsetForLeaderEpochResponse(topics=topics)

    def log_end(self, topic_id: UUID, index: int) -> EpochEndOffset:
        """For the controller, which looks for the replica that has the most where nobody leads: it names the topic's
        id in a field of our own."""
        found = self.replicas.log_end(topic_id, index)
        if found is None:
            return EpochEndOffset(partition=index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return EpochEndOffset(partition=index, leader_epoch=found[0], end_offset=found[1])

    def epoch_end(self, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
        partition = self.replicas.find(topic, asked.partition)
        if partition is None:
            return EpochEndOffset(partition=asked.partition, error_code=self.why_not(topic, asked.partition))
        error = epoch_error(asked.current_leader_epoch, partition.leader_epoch)
        if error:
            return EpochEndOffset(partition=asked.partition, error_code=error)
        epoch, end = partition.end_of_epoch(asked.leader_epoch)
        return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end)

    async def delete_records(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        turns, topics, unflushed = LoopYield(context), [], FlushWait()
        deletion = RecordDeletion(context.exchange, request.timeout_ms)
        try:
            if self.replicas.unflushed:
                for topic in request.topics:
                    for asked in topic.partitions:
                        await turns.take()
                        unflushed.add(self.replicas.find(topic.name, asked.partition_index))
                await unflushed.wait(deletion.remaining_s)
            for topic in request.topics:
                results: list[DeleteRecordsPartitionResult] = []
                topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
                for asked in topic.partitions:
                    await turns.take()
                    results.append(await self.delete_one(topic.name, asked, deletion, unflushed))
            await deletion.replicated()
        except ClientGone:
            topics = []
        finally:
            deletion.end()
        return DeleteRecordsResponse(topics=topics)

    async def delete_one(
        self, topic: str, asked: DeleteRecordsPartition, deletion: RecordDeletion, unflushed: FlushWait
    ) -> DeleteRecordsPartitionResult:
        result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
        partition = self.replicas.find(topic, asked.partition_index)
        if partition is None:
            result.error_code = self.why_not(topic, asked.partition_index)
        elif not partition.config.cleanup_delete:
            result.error_code = ErrorCode.POLICY_VIOLATION
        elif not self.replicas.may_discard() or unflushed.hides(partition):
            # The store may have been restored, so that what is here may be needed again; or the disk does not flush.
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        else:
            await deletion.delete(partition, asked.offset, result)
        return result

    async def describe_producers(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        turns, topics, told = LoopYield(context), [], 0
        try:
            for topic in request.topics:
                answers: list[PartitionResponse] = []
                for index in topic.partition_indexes:
                    await turns.take(1 + len(answers[-1].active_producers) if answers else 1)
                    if told < MAX_PRODUCERS_TOLD:
                        answers.append(self.producers(topic.name, index))
                        told += len(answers[-1].active_producers)
                    else:
                        answers.append(too_many_producers(index))
                topics.append(TopicResponse(name=topic.name, partitions=answers))
        except ClientGone:
            topics = []
        return DescribeProducersResponse(topics=topics)

    def producers(self, topic: str, index: int) -> PartitionResponse:
        partition = self.replicas.find(topic, index)
        if partition is None:
            return PartitionResponse(partition_index=index, error_code=self.why_not(topic, index))
        return PartitionResponse(partition_index=index, active_producers=producers_of(partition))


def known_place(partition: Leader, timestamp_ms: int, end: int) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch) for a ListOffsets timestamp, offset -1 where there is none.

    None where it must be searched for.
    """
    log = partition.log
    if timestamp_ms == LATEST:
        return -1, end, partition.leader_epoch
    if timestamp_ms in STARTS:
        is_empty = log.start_offset >= log.end_offset
        return -1, log.start_offset, partition.leader_epoch if is_empty else log.epoch_at(log.start_offset)
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD) or not log.segments:
        return NOWHERE
    return None


def producers_of(partition: Leader) -> list[ProducerState]:
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
    message = f"{MAX_PRODUCERS_TOLD:,} producers are described already: ask for this partition in another request"
    return PartitionResponse(partition_index=index, error_code=ErrorCode.INVALID_REQUEST, error_message=message)


def failed_listing(index: int, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=index, error_code=error, timestamp=-1, offset=-1, leader_epoch=-1
    )


async def in_thread(work: Callable[[], P]) -> P:
    """Searching a log may wait for the disk."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
