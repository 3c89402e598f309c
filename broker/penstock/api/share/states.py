"""ReadShareGroupState and WriteShareGroupState: claims and writes of leaders on other brokers (KIP-932).

Only Penstock's brokers send them, with the fields of `tools/own_fields.toml`; see `share.routing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat

from penstock.api.routes import RequestContext, Route
from penstock.runtime.logging import get_logger
from penstock.share.coordinator import ShareStates
from penstock.share.routing import MAX_BATCHED_STATES
from penstock.share.state import InvalidShareState, decode_state, encode_state
from penstock.share.state_client import SharePartitionKey, StateWrite
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import read_share_group_state as reading
from penstock.wire.messages import write_share_group_state as writing
from penstock.wire.messages.read_share_group_state import ReadShareGroupStateRequest, ReadShareGroupStateResponse
from penstock.wire.messages.write_share_group_state import WriteShareGroupStateRequest, WriteShareGroupStateResponse

log = get_logger(__name__)


class ShareStatesApi:
    """Serves the states of the groups that this broker coordinates."""

    def __init__(self, states: ShareStates) -> None:
        self.states = states

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(ReadShareGroupStateRequest, self.read, read_failed),
            Route(WriteShareGroupStateRequest, self.write, write_failed),
        ]

    async def read(self, request: ReadShareGroupStateRequest, context: RequestContext) -> ReadShareGroupStateResponse:
        """Serve ReadShareGroupState 0: claim the states for the leader that asks."""
        if sum(len(topic.partitions) for topic in request.topics) > MAX_BATCHED_STATES:
            return read_failed(request, ErrorCode.INVALID_REQUEST)
        found = await asyncio.gather(
            *(
                self.claim(SharePartitionKey(request.group_id, topic.topic_id, each.partition), each)
                for topic in request.topics
                for each in topic.partitions
            )
        )
        results = iter(found)
        return ReadShareGroupStateResponse(
            results=[
                reading.ReadStateResult(topic_id=topic.topic_id, partitions=[next(results) for _ in topic.partitions])
                for topic in request.topics
            ]
        )

    async def claim(self, key: SharePartitionKey, asked: reading.PartitionData) -> reading.PartitionResult:
        """Claim one state. A request without an initial offset comes from no leader."""
        if min(asked.partition, asked.leader_epoch, asked.initial_offset) < 0:
            return reading.PartitionResult(partition=asked.partition, error_code=ErrorCode.INVALID_REQUEST)
        error, state = await self.states.claim(key, asked.leader_epoch, asked.initial_offset)
        if state is None:
            return reading.PartitionResult(partition=asked.partition, error_code=error)
        return reading.PartitionResult(
            partition=asked.partition,
            state_epoch=state.version.state_epoch,
            start_offset=state.snapshot.start_offset,
            state=encode_state(state),
        )

    async def write(
        self, request: WriteShareGroupStateRequest, context: RequestContext
    ) -> WriteShareGroupStateResponse:
        """Serve WriteShareGroupState 0 to 1."""
        if sum(len(topic.partitions) for topic in request.topics) > MAX_BATCHED_STATES:
            return write_failed(request, ErrorCode.INVALID_REQUEST)
        errors = await asyncio.gather(
            *(
                self.write_one(
                    StateWrite(SharePartitionKey(request.group_id, topic.topic_id, each.partition), each.state)
                )
                for topic in request.topics
                for each in topic.partitions
            )
        )
        return write_response(request, iter(errors))

    async def write_one(self, write: StateWrite) -> ErrorCode:
        """Store one state, after checking the bytes."""
        try:
            decode_state(write.data)
        except InvalidShareState as e:
            log.warning("rejecting the state of a share-partition", group=write.key.group_id, reason=str(e))
            return ErrorCode.INVALID_REQUEST
        return await self.states.write(write)


def write_response(request: WriteShareGroupStateRequest, errors: Iterator[int]) -> WriteShareGroupStateResponse:
    """Return the response to WriteShareGroupState with an error for each partition, in their order."""
    return WriteShareGroupStateResponse(
        results=[
            writing.WriteStateResult(
                topic_id=topic.topic_id,
                partitions=[
                    writing.PartitionResult(partition=each.partition, error_code=next(errors))
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def read_failed(request: ReadShareGroupStateRequest, error: int) -> ReadShareGroupStateResponse:
    """Return the response to ReadShareGroupState with an error for each partition."""
    return ReadShareGroupStateResponse(
        results=[
            reading.ReadStateResult(
                topic_id=topic.topic_id,
                partitions=[
                    reading.PartitionResult(partition=each.partition, error_code=error) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def write_failed(request: WriteShareGroupStateRequest, error: int) -> WriteShareGroupStateResponse:
    """Return the response to WriteShareGroupState with an error for each partition."""
    return write_response(request, repeat(error))
