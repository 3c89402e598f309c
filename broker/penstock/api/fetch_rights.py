"""READ on the topics that consumers fetch: checked at each read of a partition, and cached until the ACLs change.

When the ACLs change, the partitions of sessions are checked again before their next read, and waiting requests at once,
so that neither outlives its right (CVE-2024-27309). Used by `fetch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from penstock.api.authorization.access import OUTDATED_RIGHTS, DataAccess
from penstock.api.exchange import PeerInfo, RequestExchange, ResponsePart
from penstock.api.fetch_sessions import FetchSession, FetchTarget
from penstock.runtime.tasks import spawn
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.fetch_frame import FetchedPartition, encode_fetch_response
from penstock.wire.messages.fetch import FetchRequest

READ, TOPIC = AclOperation.READ, ResourceType.TOPIC
CHECKS_PER_SLICE = 256
"""Partitions of waiting requests that are checked before the event loop runs other tasks."""


class RestrictedFetch(Protocol):
    """A waiting request."""

    peer: PeerInfo

    @property
    def watched_targets(self) -> Iterable[FetchTarget]:
        """The partitions whose records the request waits for."""

    def finish(self) -> None:
        """Respond now."""


class FetchRights:
    """The rights of the fetches of a broker."""

    def __init__(self, access: DataAccess) -> None:
        self.access = access
        self.waiting: dict[RestrictedFetch, None] = {}
        self.task: asyncio.Task[None] | None = None
        access.view.subscribe_security(self.on_changes)

    def close(self) -> None:
        """Stop checking waiting requests."""
        if self.task is not None:
            self.task.cancel()

    def may_read(self, peer: PeerInfo, target: FetchTarget) -> bool:
        """Return whether the client may read a partition. An unknown topic id is left to the caller."""
        authorizer = self.access.authorizer
        if target.authorized == authorizer.generation:
            return True
        name = target.topic if isinstance(target.topic, str) else self.access.name_of(target.topic)
        if name is None:
            return True
        if authorizer.is_allowed(peer.principal, peer.host, READ, TOPIC, name):
            target.authorized = authorizer.generation
            return True
        target.authorized = 0
        self.access.deny(peer, READ, TOPIC, name, ApiKey.FETCH)
        return False

    def refuse_outdated(self, peer: PeerInfo, exchange: RequestExchange) -> bool:
        """Close the connection if its client's rights may have ended meanwhile; return whether they may."""
        if self.access.authorizer.may_decide(peer.principal):
            return False
        exchange.abort(OUTDATED_RIGHTS)
        return True

    def refresh(self, session: FetchSession) -> None:
        """Make the session read all of its partitions again if the ACLs have changed since its last request."""
        generation = self.access.authorizer.generation
        if session.session_id and session.generation != generation:
            session.generation = generation
            session.ready.update(dict.fromkeys(session.targets.values()))

    def on_changes(self, changed: set[str]) -> None:
        """Check the waiting requests. Called by `ClusterView` after the authorizer has the changes."""
        if self.waiting and self.task is None:
            self.task = spawn(self.check_waiting(), "fetch rights")

    async def check_waiting(self) -> None:
        """Complete the waiting requests that have lost a right, until the ACLs do not change meanwhile."""
        authorizer, checked = self.access.authorizer, 0
        try:
            while checked != authorizer.generation:
                checked = authorizer.generation
                await self.check_all(list(self.waiting))
        finally:
            self.task = None

    async def check_all(self, fetches: list[RestrictedFetch]) -> None:
        """Check requests that were waiting; those that were completed meanwhile are left out."""
        work = 0
        for fetch in fetches:
            if fetch in self.waiting:
                work += self.check_one(fetch)
            if work >= CHECKS_PER_SLICE:
                work = 0
                await asyncio.sleep(0)

    def check_one(self, fetch: RestrictedFetch) -> int:
        """Complete a waiting request if it has lost a right. Returns the number of partitions checked."""
        targets = list(fetch.watched_targets)
        denied = [target for target in targets if not self.may_read(fetch.peer, target)]
        for target in denied:
            if target.session.session_id:
                target.session.ready[target] = None
        if denied:
            fetch.finish()
        return len(targets) + 1


def refused_follower(request: FetchRequest, version: int, correlation_id: int) -> list[ResponsePart]:
    """Return the response to a client that claims to be a follower, as in Kafka an error for each partition."""
    by_id = version >= 13
    topics = [
        (
            topic.topic_id if by_id else topic.topic,
            [FetchedPartition(p.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for p in topic.partitions],
        )
        for topic in request.topics
    ]
    parts = encode_fetch_response(correlation_id, version, ErrorCode.NONE, 0, topics)
    return [*parts]  # type: ignore[list-item]  # without records, all parts are bytes
