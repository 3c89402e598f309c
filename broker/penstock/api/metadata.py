"""Metadata: where everything is. What clients ask first, and again and again.

The answers are made from the view, topic by topic; a topic's part is kept until the topic changes, since with many
topics and many clients the same parts go out over and over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from uuid import UUID

from penstock.api.known_brokers import BrokersSeen
from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.control.naming import check_name
from penstock.control.results import AdminError
from penstock.control.topic_admin import MAX_REQUEST_PARTITIONS, TopicService
from penstock.state.view import BrokerView, ClusterView, PartitionView, TopicChange, TopicView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.primitives import ZERO_UUID

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""All that can be done with a topic, as a bit field of KIP-430: nobody is refused anything."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
IDS_FROM_VERSION = 12
"""From here on a topic without a name can be answered."""


class MetadataApi:
    """Metadata."""

    def __init__(self, view: ClusterView, admin: TopicService, config: BrokerConfig) -> None:
        self.view, self.admin, self.config = view, admin, config
        self._parts: dict[UUID, MetadataResponseTopic] = {}
        self._all: list[MetadataResponseTopic] | None = None
        self._brokers = view.brokers
        self._seen = BrokersSeen(view)
        view.subscribe(self._on_changes)

    def routes(self) -> list[Route]:
        return [Route(MetadataRequest, MetadataResponse, self.metadata, 0, 13, failed_metadata)]

    def _on_changes(self, changes: list[TopicChange]) -> None:
        self._all = None
        for change in changes:
            if change.old is not None:
                self._parts.pop(change.old.topic_id, None)

    def metadata(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Awaitable[MetadataResponse]:
        if request.topics is None or (context.version == 0 and not request.topics):
            return self._response(request, context, self._all_topics())
        missing = self._missing(request) if request.allow_auto_topic_creation else []
        if missing and self.config.auto_create_topics_enable:
            reserved = INTERNAL_TOPICS.intersection(missing)
            if reserved:
                missing = [name for name in missing if name not in reserved]
            return self._create_and_answer(request, context, missing, reserved)
        return self._response(request, context, self._asked(request, context, {}))

    def _missing(self, request: MetadataRequest) -> list[str]:
        topics = self.view.topics
        names = (topic.name for topic in request.topics or () if not asks_by_id(topic))
        return list(dict.fromkeys(name for name in names if name and name not in topics))

    async def _create_and_answer(
        self, request: MetadataRequest, context: RequestContext, missing: list[str], reserved: frozenset[str]
    ) -> MetadataResponse:
        outcomes = await asyncio.gather(*[self.admin.auto_create(name) for name in missing[:MAX_REQUEST_PARTITIONS]])
        errors = {outcome.name: outcome.error for outcome in outcomes}
        errors.update(dict.fromkeys(reserved, ErrorCode.INVALID_TOPIC_EXCEPTION))
        return self._response(request, context, self._asked(request, context, errors))

    def _asked(
        self, request: MetadataRequest, context: RequestContext, errors: dict[str, ErrorCode]
    ) -> list[MetadataResponseTopic]:
        found: list[MetadataResponseTopic] = []
        seen: set[str | UUID] = set()
        for asked in request.topics or ():
            key = asked.topic_id if asked.name is None or asks_by_id(asked) else asked.name
            if key in seen:
                continue
            seen.add(key)
            topic = self.view.topics_by_id.get(key) if isinstance(key, UUID) else self.view.topics.get(key)
            if topic is not None:
                found.append(self._part(topic))
            elif isinstance(key, UUID):
                name = None if context.version >= IDS_FROM_VERSION else ""
                error = ErrorCode.UNKNOWN_TOPIC_ID
                found.append(MetadataResponseTopic(error_code=error, name=name, topic_id=asked.topic_id))
            else:
                error = unknown_name_error(key, errors)
                found.append(MetadataResponseTopic(error_code=error, name=key, topic_id=ZERO_UUID))
        return found

    def _all_topics(self) -> list[MetadataResponseTopic]:
        if self._brokers is not self.view.brokers:
            self._forget()
        if self._all is None:
            self._all = [self._part(topic) for topic in self.view.topics.values()]
        return self._all

    def _part(self, topic: TopicView) -> MetadataResponseTopic:
        if self._brokers is not self.view.brokers:
            self._forget()
        part = self._parts.get(topic.topic_id)
        if part is None:
            part = self._parts[topic.topic_id] = MetadataResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[self._partition(p) for p in topic.partitions],
            )
        return part

    def _forget(self) -> None:
        """Brokers came or went: who is offline, and whether there is a leader, must be said anew."""
        self._parts.clear()
        self._all = None
        self._brokers = self.view.brokers

    def _partition(self, partition: PartitionView) -> MetadataResponsePartition:
        error, leader, offline = reachable(partition, self.view)
        return MetadataResponsePartition(
            error_code=error,
            partition_index=partition.index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=offline,
        )

    def _controller(self, brokers: list[MetadataResponseBroker]) -> int:
        """The broker for requests of administrators. Every broker serves them, so one is named also between two
        controllers: librdkafka, given none, does not ask again before its call has timed out."""
        ids = [broker.node_id for broker in brokers]
        if self.view.controller_id in ids or not ids:
            return self.view.controller_id
        return self.config.node_id if self.config.node_id in ids else ids[0]

    def _response(
        self, request: MetadataRequest, context: RequestContext, topics: list[MetadataResponseTopic]
    ) -> MetadataResponse:
        view = self.view
        if request.include_topic_authorized_operations:
            topics = [with_operations(topic) for topic in topics]
        brokers = brokers_by(context.peer.listener, self._seen)
        response = MetadataResponse(
            brokers=brokers, cluster_id=view.cluster_id, controller_id=self._controller(brokers), topics=topics
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response


def asks_by_id(topic: MetadataRequestTopic) -> bool:
    """Whether the id counts. Java's admin client leaves an empty name beside it, where the schema allows null."""
    return topic.topic_id != ZERO_UUID


def unknown_name_error(name: str, errors: dict[str, ErrorCode]) -> ErrorCode:
    """Why there is no topic of that name: its creation failed, it cannot be, or it simply is not."""
    error = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if error is ErrorCode.NONE or error is ErrorCode.TOPIC_ALREADY_EXISTS:
        return ErrorCode.LEADER_NOT_AVAILABLE  # deleted again meanwhile: the client asks once more
    if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        try:
            check_name(name)
        except AdminError as e:
            return e.error
    return error


def reachable(partition: PartitionView, view: ClusterView) -> tuple[ErrorCode, int, list[int]]:
    """(error, leader, offline replicas) of a partition, given the brokers that are alive."""
    brokers = view.brokers
    offline = [broker for broker in partition.replicas if broker not in brokers]
    if partition.leader not in brokers:
        return ErrorCode.LEADER_NOT_AVAILABLE, -1, offline
    return ErrorCode.NONE, partition.leader, offline


def brokers_by(listener: str, brokers: Iterable[BrokerView]) -> list[MetadataResponseBroker]:
    """The brokers, at the addresses that are advertised on the listener that was asked."""
    found = []
    for broker in brokers:
        endpoint = broker.endpoint(listener)
        if endpoint is not None:
            found.append(
                MetadataResponseBroker(
                    node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    return found


def with_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    """The topic with what may be done to it: also to a name that no topic has, as in Kafka, but not to an id."""
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
        return topic
    return MetadataResponseTopic(
        name=topic.name,
        error_code=topic.error_code,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def failed_metadata(request: MetadataRequest, error: int) -> MetadataResponse:
    topics = [
        MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(topics=topics, error_code=error)
