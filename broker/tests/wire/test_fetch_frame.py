"""Fetch responses of `encode_fetch_response`, decoded by the general codec."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.wire import codec
from penstock.wire.fetch_frame import FetchedPartition, encode_fetch_response
from penstock.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)


class Elsewhere:
    """Records of which the encoder knows only the size."""

    def __init__(self, content: bytes) -> None:
        self.content, self.size = content, len(content)


@pytest.mark.parametrize("version", range(4, 19))
def test_the_parts_make_the_whole_response(version: int) -> None:
    topic = UUID(int=9) if version >= 13 else "flights"
    partitions = [
        FetchedPartition(0, 0, 30, 29, 3, Elsewhere(b"r" * 300), [(7, 11)]),
        FetchedPartition(1, 0, 4, 4, 4),
        FetchedPartition(2, 6, leader=(2, 8), diverging=(5, 100), preferred_read_replica=4),
        FetchedPartition(3, 0, 9, 9, 0, Elsewhere(b"s" * 5)),
    ]
    parts = encode_fetch_response(5, version, 0, 1234, [(topic, partitions)])
    frame = b"".join(p.content if isinstance(p, Elsewhere) else bytes(p) for p in parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == 5
    answer = codec.decode(FetchResponse, version, frame, 9 if version >= 12 else 8)
    assert answer == expected(version, topic, partitions)


def expected(version: int, topic: str | UUID, partitions: list[FetchedPartition]) -> FetchResponse:
    told = []
    for p in partitions:
        data = PartitionData(
            partition_index=p.partition,
            error_code=p.error,
            high_watermark=p.high_watermark,
            last_stable_offset=p.last_stable_offset,
            records=p.records.content if isinstance(p.records, Elsewhere) else b"",
        )
        if p.aborted is not None:
            data.aborted_transactions = [AbortedTransaction(producer_id=a, first_offset=b) for a, b in p.aborted]
        if version >= 5:
            data.log_start_offset = p.log_start_offset
        if version >= 11:
            data.preferred_read_replica = p.preferred_read_replica
        if version >= 12 and p.leader:
            data.current_leader = LeaderIdAndEpoch(leader_id=p.leader[0], leader_epoch=p.leader[1])
        if version >= 12 and p.diverging:
            data.diverging_epoch = EpochEndOffset(epoch=p.diverging[0], end_offset=p.diverging[1])
        told.append(data)
    named = {"topic_id": topic} if version >= 13 else {"topic": topic}
    whole = FetchableTopicResponse(partitions=told, **named)
    return FetchResponse(session_id=1234 if version >= 7 else 0, responses=[whole])
