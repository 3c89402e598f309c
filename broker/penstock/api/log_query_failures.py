"""Responses of `log_queries` to requests that fail as a whole, or for topics that are denied."""

from __future__ import annotations

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
    TopicResponse,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)


def failed_listing(index: int, error: int) -> ListOffsetsPartitionResponse:
    """Return the ListOffsets result for an error."""
    return ListOffsetsPartitionResponse(
        partition_index=index, error_code=error, timestamp=-1, offset=-1, leader_epoch=-1
    )


def failed_listings(request: ListOffsetsRequest, error: int) -> ListOffsetsResponse:
    """Return the response to ListOffsets with an error for each partition."""
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name, partitions=[failed_listing(p.partition_index, error) for p in topic.partitions]
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


def failed_epochs(request: OffsetForLeaderEpochRequest, error: int) -> OffsetForLeaderEpochResponse:
    """Return the response to OffsetForLeaderEpoch with an error for each partition."""
    topics = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[EpochEndOffset(partition=p.partition, error_code=error) for p in topic.partitions],
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def failed_deletions(request: DeleteRecordsRequest, error: int) -> DeleteRecordsResponse:
    """Return the response to DeleteRecords with an error for each partition."""
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                DeleteRecordsPartitionResult(partition_index=p.partition_index, low_watermark=-1, error_code=error)
                for p in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)


def failed_producers(request: DescribeProducersRequest, error: int) -> DescribeProducersResponse:
    """Return the response to DescribeProducers with an error for each partition."""
    topics = [
        TopicResponse(
            name=topic.name,
            partitions=[PartitionResponse(partition_index=i, error_code=error) for i in topic.partition_indexes],
        )
        for topic in request.topics
    ]
    return DescribeProducersResponse(topics=topics)
