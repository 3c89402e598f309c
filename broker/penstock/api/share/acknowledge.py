"""ShareAcknowledge: applies the acknowledgements of a member of a share group (KIP-932)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from uuid import UUID

from penstock.api.routes import RequestContext, Route
from penstock.api.share.acks import ACK_MESSAGES, AckOutcome, ShareAcks, StartedAck
from penstock.api.share.members import ShareMembers, session_key
from penstock.share.sessions import SessionKey, SessionRequest
from penstock.wire.apis import ApiKey
from penstock.wire.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


class ShareAcknowledgeApi:
    """Serves ShareAcknowledge 1 and 2."""

    def __init__(self, members: ShareMembers, acks: ShareAcks) -> None:
        self.members, self.acks = members, acks

    def routes(self) -> list[Route]:
        """Return the routes of this API."""
        return [Route(ShareAcknowledgeRequest, self.acknowledge, share_acknowledge_failed)]

    def acknowledge(
        self, request: ShareAcknowledgeRequest, context: RequestContext
    ) -> ShareAcknowledgeResponse | Awaitable[ShareAcknowledgeResponse]:
        """Serve ShareAcknowledge; with epoch -1 the session ends, and the member's other records are released.

        The acknowledgements start in this call: a ShareFetch may follow on the connection without waiting.
        """
        key, error = session_key(request.group_id, request.member_id)
        if error:
            return ShareAcknowledgeResponse(error_code=error)
        found = self.members.check(SessionRequest(key, request.share_session_epoch), context.peer)
        if found.error:
            return ShareAcknowledgeResponse(error_code=found.error)
        with ExitStack() as stack:
            if found.closed is not None:
                stack.callback(self.members.release, found.closed)
            started = self.acks.start(
                key, request.topics, context.peer, ApiKey.SHARE_ACKNOWLEDGE, may_renew=request.is_renew_ack
            )
            return self._complete(key, started, stack.pop_all())

    async def _complete(
        self, key: SessionKey, started: Sequence[StartedAck], release: ExitStack
    ) -> ShareAcknowledgeResponse:
        """Return the response once the acknowledgements are durable."""
        with release:
            outcomes = await self.acks.complete(started)
        return ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=self.members.leaders.lock_timeout_ms(key.group_id),
            responses=topic_responses(outcomes),
        )


def topic_responses(outcomes: list[AckOutcome]) -> list[ShareAcknowledgeTopicResponse]:
    """Group outcomes by topic."""
    topics: dict[UUID, list[PartitionData]] = {}
    for (topic_id, index), error, leader in outcomes:
        answer = PartitionData(
            partition_index=index,
            error_code=error,
            error_message=ACK_MESSAGES.get(error),
            current_leader=LeaderIdAndEpoch(*leader),
        )
        topics.setdefault(topic_id, []).append(answer)
    return [ShareAcknowledgeTopicResponse(topic_id=each, partitions=found) for each, found in topics.items()]


def share_acknowledge_failed(request: ShareAcknowledgeRequest, error: int) -> ShareAcknowledgeResponse:
    """Return the response with an error for the request."""
    return ShareAcknowledgeResponse(error_code=error)
