"""ShareAcknowledge: applies the acknowledgements of a member of a share group (KIP-932)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import ExitStack
from uuid import UUID

from penstock.api.routes import RequestContext, Route
from penstock.api.share.acks import ACK_MESSAGES, AckOutcome, ShareAcks
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
        response: asyncio.Future[ShareAcknowledgeResponse] = asyncio.get_running_loop().create_future()

        def on_done(outcomes: list[AckOutcome]) -> None:
            if not response.done():
                response.set_result(self._response(key, outcomes))

        with ExitStack() as stack:
            if found.closed is not None:
                stack.callback(self.members.release, found.closed)
            peer, may_renew = context.peer, request.is_renew_ack
            self.acks.start(key, request.topics, peer, ApiKey.SHARE_ACKNOWLEDGE, on_done, may_renew=may_renew)
            release = stack.pop_all()
        if found.closed is not None:
            response.add_done_callback(lambda _: release.close())
        return response

    def _response(self, key: SessionKey, outcomes: list[AckOutcome]) -> ShareAcknowledgeResponse:
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
