"""Applies the acknowledgements of share group members, from ShareFetch and ShareAcknowledge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.api.authorization.access import DataAccess
from penstock.api.exchange import PeerInfo
from penstock.replica.manager import ReplicaManager
from penstock.share.acknowledgement import AckBatch, AckType, are_well_formed
from penstock.share.leaders import ShareLeaders
from penstock.share.sessions import SessionKey, TopicPartition
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.share_fetch_frame import NO_LEADER

ACK_MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.INVALID_REQUEST: "The acknowledgements are malformed, or go beyond the delivered records.",
    ErrorCode.INVALID_RECORD_STATE: "The member does not hold these records.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The group has no records of this partition in flight here.",
}
"""The messages of errors that acknowledgements get, as far as they need one."""


class RequestedBatch(Protocol):
    """Acknowledgements of adjacent offsets in a request; `last_offset` is inclusive."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]
    redelivery_delay_ms: int
    reason: str


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


class PendingAcks:
    """The acknowledgements of a request until all are durable; then `on_done` is called with their outcomes."""

    __slots__ = ("missing", "on_done", "outcomes")

    def __init__(self, partitions: Sequence[TopicPartition], on_done: Callable[[list[AckOutcome]], None]) -> None:
        self.outcomes = [AckOutcome(partition, ErrorCode.NONE) for partition in partitions]
        self.missing, self.on_done = len(partitions), on_done

    def complete(self, index: int, outcome: AckOutcome) -> None:
        """Record the outcome of a partition."""
        self.outcomes[index] = outcome
        self.missing -= 1
        if not self.missing:
            self.on_done(self.outcomes)


class ShareAcks:
    """Acknowledges records of the share-partitions that this broker leads. `access` checks rights if there is
    authorization."""

    def __init__(self, replicas: ReplicaManager, leaders: ShareLeaders, access: DataAccess | None) -> None:
        self.replicas, self.leaders, self.access = replicas, leaders, access

    def may_read(self, peer: PeerInfo, topic: str, api_key: ApiKey) -> bool:
        """Return whether a client may read a topic, and record a denial."""
        return self.access is None or self.access.check(peer, AclOperation.READ, ResourceType.TOPIC, topic, api_key)

    def start(
        self,
        member: SessionKey,
        topics: Sequence[RequestedTopic],
        peer: PeerInfo,
        api_key: ApiKey,
        on_done: Callable[[list[AckOutcome]], None],
        *,
        may_renew: bool,
    ) -> None:
        """Apply acknowledgements, so that what is acquired from now on is not acknowledged by them. Those of one
        partition succeed or fail together, also if the request names it more than once: Kafka then drops all but the
        last ones, and reports success.

        Calls `on_done` once they are durable, perhaps at once. `may_renew` says that the request may extend locks
        (KIP-1222).
        """
        known = {topic.topic_id: self.replicas.topic(topic.topic_id) for topic in topics}
        denied = {each for each, topic in known.items() if topic and not self.may_read(peer, topic.name, api_key)}
        requested: dict[TopicPartition, list[AckBatch]] = {}
        for topic_id, partition in ((t.topic_id, p) for t in topics for p in t.partitions):
            key = topic_id, partition.partition_index
            requested[key] = joined(requested.get(key, []), ack_batches(partition))
        pending = PendingAcks(list(requested), on_done)
        if not requested:
            on_done([])
        for index, (key, batches) in enumerate(requested.items()):
            if key[0] in denied:
                pending.complete(index, AckOutcome(key, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            else:
                self._start_one(member, key, batches, may_renew, partial(pending.complete, index))

    def _start_one(
        self,
        member: SessionKey,
        key: TopicPartition,
        batches: Sequence[AckBatch],
        may_renew: bool,
        on_done: Callable[[AckOutcome], None],
    ) -> None:
        """Start to acknowledge records of one partition."""
        is_renewal = any(AckType.RENEW in batch.types for batch in batches)
        is_led = self.replicas.find(*key) is not None
        led = self.leaders.find(member.group_id, *key) if is_led else None
        if led is None or (is_renewal and not may_renew):
            is_valid = (may_renew or not is_renewal) and are_well_formed(batches)
            on_done(self._refusal(key, batches, is_valid=is_valid, is_led=is_led))
            return
        config = self.leaders.config_of(member.group_id) if is_renewal else None
        if led.leader is None or (config is not None and not config.is_renew_enabled):
            on_done(AckOutcome(key, ErrorCode.INVALID_RECORD_STATE if batches else ErrorCode.NONE))
            return

        def on_durable(error: ErrorCode) -> None:
            if not error:
                self.leaders.stats.count_acknowledged(batches)
            on_done(AckOutcome(key, error))

        led.leader.acknowledge(member.member_id, batches, on_durable)

    def _refusal(self, key: TopicPartition, batches: Sequence[AckBatch], *, is_valid: bool, is_led: bool) -> AckOutcome:
        """Return the outcome for invalid batches, a partition that another broker leads, or one that is not open."""
        if not is_valid and self.replicas.topic(key[0]) is not None:
            return AckOutcome(key, ErrorCode.INVALID_REQUEST)
        if is_led:
            return AckOutcome(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if batches else ErrorCode.NONE)
        error, leader = self.replicas.absence(*key)
        return AckOutcome(key, error, leader or NO_LEADER)


def joined(known: list[AckBatch], more: list[AckBatch]) -> list[AckBatch]:
    """Join the acknowledgements of a partition that a request names twice, those of lower offsets first."""
    return more + known if known and more and more[0].first < known[0].first else known + more


def ack_batches(requested: RequestedPartition) -> list[AckBatch]:
    """Return the acknowledgements of a partition."""
    return [
        AckBatch(
            batch.first_offset, batch.last_offset, batch.acknowledge_types, batch.redelivery_delay_ms, batch.reason
        )
        for batch in requested.acknowledgement_batches
    ]
