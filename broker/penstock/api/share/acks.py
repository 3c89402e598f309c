"""Applies the acknowledgements of share group members, from ShareFetch and ShareAcknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.api.authorization.access import DataAccess
from penstock.api.exchange import PeerInfo
from penstock.replica.manager import ReplicaManager
from penstock.share.leaders import ShareLeaders
from penstock.share.partition import AckBatch, AckType
from penstock.share.sessions import SessionKey, TopicPartition
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.share_fetch_frame import NO_LEADER


class RequestedBatch(Protocol):
    """Acknowledgements of adjacent offsets in a request; `last_offset` is inclusive."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class RequestedPartition(Protocol):
    """Acknowledgements for a partition in a request."""

    partition_index: int

    @property
    def acknowledgement_batches(self) -> Sequence[RequestedBatch]:
        """The acknowledgements, in order of offsets."""


class RequestedTopic(Protocol):
    """Acknowledgements for a topic in a request."""

    topic_id: UUID

    @property
    def partitions(self) -> Sequence[RequestedPartition]:
        """The partitions."""


class AckOutcome(NamedTuple):
    """The result for a partition; `leader` is (broker id, leader epoch) of the current leader if another leads."""

    partition: TopicPartition
    error: ErrorCode
    leader: tuple[int, int] = NO_LEADER


class ShareAcks:
    """Acknowledges records of the share-partitions that this broker leads. `access` checks rights if there is
    authorization."""

    def __init__(self, replicas: ReplicaManager, leaders: ShareLeaders, access: DataAccess | None) -> None:
        self.replicas, self.leaders, self.access = replicas, leaders, access

    def may_read(self, peer: PeerInfo, topic: str, api_key: ApiKey) -> bool:
        """Return whether a client may read a topic, and record a denial."""
        return self.access is None or self.access.check(peer, AclOperation.READ, ResourceType.TOPIC, topic, api_key)

    async def apply(
        self, member: SessionKey, topics: Iterable[RequestedTopic], peer: PeerInfo, api_key: ApiKey, *, may_renew: bool
    ) -> list[AckOutcome]:
        """Apply acknowledgements, and return once they are durable. Those of one partition succeed or fail together.

        `may_renew` says that the request may extend locks (KIP-1222).
        """
        topics = list(topics)
        known = {topic.topic_id: self.replicas.topic(topic.topic_id) for topic in topics}
        denied = {each for each, topic in known.items() if topic and not self.may_read(peer, topic.name, api_key)}
        requested = [((t.topic_id, p.partition_index), ack_batches(p)) for t in topics for p in t.partitions]
        started = [
            AckOutcome(key, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if key[0] in denied
            else self._start(member, key, batches, may_renew)
            for key, batches in requested
        ]
        outcomes = []
        for (key, batches), outcome in zip(requested, started, strict=True):
            if not isinstance(outcome, AckOutcome):
                error = await outcome
                if not error:
                    self.leaders.stats.count_acknowledged(batches)
                outcome = AckOutcome(key, error)
            outcomes.append(outcome)
        return outcomes

    def _start(
        self, member: SessionKey, key: TopicPartition, batches: Sequence[AckBatch], may_renew: bool
    ) -> AckOutcome | asyncio.Future[ErrorCode]:
        """Start to acknowledge records of one partition. Returns the outcome, or the future of the error."""
        if self.replicas.find(*key) is None:
            error, leader = self.replicas.absence(*key)
            return AckOutcome(key, error, leader or NO_LEADER)
        if any(AckType.RENEW in batch.types for batch in batches):
            config = self.leaders.config_of(member.group_id)
            if not may_renew:
                return AckOutcome(key, ErrorCode.INVALID_REQUEST)
            if config is not None and not config.is_renew_enabled:
                return AckOutcome(key, ErrorCode.INVALID_RECORD_STATE)
        led = self.leaders.find(member.group_id, *key)
        if led is None or led.leader is None:
            return AckOutcome(key, ErrorCode.INVALID_RECORD_STATE if batches else ErrorCode.NONE)
        return led.leader.acknowledge(member.member_id, batches)


def ack_batches(requested: RequestedPartition) -> list[AckBatch]:
    """Return the acknowledgements of a partition."""
    return [AckBatch(b.first_offset, b.last_offset, b.acknowledge_types) for b in requested.acknowledgement_batches]
