"""Metadata: brokers, topics and partition leaders.

Responses are built from the cluster view per topic. A topic's part is cached until the topic changes, because clients
request the same parts over and over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from uuid import UUID

from penstock.api.known_brokers import KnownBrokers
from penstock.api.pending_elections import PendingElections
from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.control.naming import check_name
from penstock.control.results import AdminError
from penstock.control.topic_admin import MAX_REQUEST_PARTITIONS, TopicService
from penstock.state.view import BrokerView, ClusterView, PartitionView, TopicChange, TopicView
from penstock.wire import codec
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
"""Bit field of operations on a topic (KIP-430): all that exist. Authorization removes those that are denied."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
NULL_NAME_VERSION = 12
"""The version from which a topic in the response may have no name."""


class MetadataApi:
    """Serves Metadata 0 to 13."""

    def __init__(
        self, view: ClusterView, admin: TopicService, config: BrokerConfig, elections: PendingElections
    ) -> None:
        self.view, self.admin, self.config, self.elections = view, admin, config, elections
        self._parts: dict[UUID, MetadataResponseTopic] = {}
        self._all: list[MetadataResponseTopic] | None = None
        self._brokers = view.brokers
        self._known_brokers = KnownBrokers(view)
        view.subscribe(self._on_changes)

    def routes(self) -> list[Route]:
        """Return the routes of this API."""
        return [Route(MetadataRequest, self.metadata, failed_metadata, decode=decode_request)]

    def _on_changes(self, changes: list[TopicChange]) -> None:
        self._all = None
        for change in changes:
            if change.old is not None:
                self._parts.pop(change.old.topic_id, None)

    def metadata(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Awaitable[MetadataResponse]:
        """Return the requested topics, after creating missing ones if allowed, and after pending elections."""
        if request.topics == [] or not self.elections.are_possible:
            return self._answer(request, context)
        return self._answer_after_elections(request, context)

    def _without_leaders(self, request: MetadataRequest) -> list[TopicView]:
        """Return the requested topics if leaders of some have just failed."""
        view, elections = self.view, self.elections
        if not elections.are_pending:
            return []
        if request.topics is None:
            topics = list(view.topics.values())
        else:
            by_name = (view.topics.get(topic.name) for topic in request.topics if topic.name)
            by_id = (view.topics_by_id.get(topic.topic_id) for topic in request.topics if has_topic_id(topic))
            topics = [topic for topic in (*by_name, *by_id) if topic is not None]
        return topics if elections.concern(topics) else []

    async def _answer_after_elections(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        # When a leader dies, the event loop often receives the request of its client together with the end of this
        # broker's own connection, which becomes known one iteration later.
        await asyncio.sleep(0)
        if topics := self._without_leaders(request):
            await self.elections.wait(topics, context.exchange)
        response = self._answer(request, context)
        return response if isinstance(response, MetadataResponse) else await response

    def _answer(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Awaitable[MetadataResponse]:
        if request.topics is None:
            return self._response(request, context, self._all_topics())
        missing = self._missing(request) if request.allow_auto_topic_creation else []
        if missing and self.config.auto_create_topics_enable:
            reserved = INTERNAL_TOPICS.intersection(missing)
            if reserved:
                missing = [name for name in missing if name not in reserved]
            return self._create_and_answer(request, context, missing, reserved)
        return self._response(request, context, self._requested_topics(request, context, {}))

    def _missing(self, request: MetadataRequest) -> list[str]:
        topics = self.view.topics
        names = (topic.name for topic in request.topics or () if not has_topic_id(topic))
        return list(dict.fromkeys(name for name in names if name and name not in topics))

    async def _create_and_answer(
        self, request: MetadataRequest, context: RequestContext, missing: list[str], reserved: frozenset[str]
    ) -> MetadataResponse:
        outcomes = await asyncio.gather(*[self.admin.auto_create(name) for name in missing[:MAX_REQUEST_PARTITIONS]])
        errors = {outcome.name: outcome.error for outcome in outcomes}
        errors.update(dict.fromkeys(reserved, ErrorCode.INVALID_TOPIC_EXCEPTION))
        response = self._response(request, context, self._requested_topics(request, context, errors))
        quota = context.mutation_quota(is_strict=False)
        if quota is not None:
            quota.charge(sum(outcome.partition_count for outcome in outcomes if not outcome.error))
            response.throttle_time_ms = quota.throttle_ms
        return response

    def _requested_topics(
        self, request: MetadataRequest, context: RequestContext, errors: dict[str, ErrorCode]
    ) -> list[MetadataResponseTopic]:
        found: list[MetadataResponseTopic] = []
        seen: set[str | UUID] = set()
        for requested in request.topics or ():
            key = requested.topic_id if requested.name is None or has_topic_id(requested) else requested.name
            if key in seen:
                continue
            seen.add(key)
            topic = self.view.topics_by_id.get(key) if isinstance(key, UUID) else self.view.topics.get(key)
            if topic is not None:
                found.append(self._part(topic))
            elif isinstance(key, UUID):
                name = None if context.version >= NULL_NAME_VERSION else ""
                error = ErrorCode.UNKNOWN_TOPIC_ID
                found.append(MetadataResponseTopic(error_code=error, name=name, topic_id=requested.topic_id))
            else:
                error = unknown_name_error(key, errors)
                found.append(MetadataResponseTopic(error_code=error, name=key, topic_id=ZERO_UUID))
        return found

    def _all_topics(self) -> list[MetadataResponseTopic]:
        if self._brokers is not self.view.brokers:
            self._invalidate()
        if self._all is None:
            self._all = [self._part(topic) for topic in self.view.topics.values()]
        return self._all

    def _part(self, topic: TopicView) -> MetadataResponseTopic:
        if self._brokers is not self.view.brokers:
            self._invalidate()
        part = self._parts.get(topic.topic_id)
        if part is None:
            part = self._parts[topic.topic_id] = MetadataResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[self._partition(p) for p in topic.shown_partitions],
            )
        return part

    def _invalidate(self) -> None:
        """Drop the cached parts: a change of brokers affects leaders and offline replicas."""
        self._parts.clear()
        self._all = None
        self._brokers = self.view.brokers

    def _partition(self, partition: PartitionView) -> MetadataResponsePartition:
        error, leader, offline = partition_availability(partition, self.view)
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
        """Return the broker for admin requests.

        Every broker serves them, so one is named even between two controllers: without one, librdkafka does not retry
        before its call has timed out.
        """
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
        brokers = brokers_on_listener(context.peer.listener, self._known_brokers)
        response = MetadataResponse(
            brokers=brokers, cluster_id=view.cluster_id, controller_id=self._controller(brokers), topics=topics
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response


def has_topic_id(topic: MetadataRequestTopic) -> bool:
    """Return whether the topic id counts. Java's admin client sends an empty name with it instead of null."""
    return topic.topic_id != ZERO_UUID


def unknown_name_error(name: str, errors: dict[str, ErrorCode]) -> ErrorCode:
    """Return the error for a topic that does not exist: failed creation, invalid name, or unknown."""
    error = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if error is ErrorCode.NONE or error is ErrorCode.TOPIC_ALREADY_EXISTS:
        return ErrorCode.LEADER_NOT_AVAILABLE  # created and deleted again: the client retries
    if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        try:
            check_name(name)
        except AdminError as e:
            return e.error
    return error


def partition_availability(partition: PartitionView, view: ClusterView) -> tuple[ErrorCode, int, list[int]]:
    """Return (error, leader, offline replicas) of a partition, given the registered brokers."""
    brokers = view.brokers
    offline = [broker for broker in partition.replicas if broker not in brokers]
    if partition.leader not in brokers:
        return ErrorCode.LEADER_NOT_AVAILABLE, -1, offline
    return ErrorCode.NONE, partition.leader, offline


def brokers_on_listener(listener: str, brokers: Iterable[BrokerView]) -> list[MetadataResponseBroker]:
    """Return the brokers with their addresses on the listener that received the request."""
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
    """Return the topic with its authorized operations: as in Kafka, for unknown names but not for unknown ids."""
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


def decode_request(version: int, frame: memoryview, offset: int) -> MetadataRequest:
    """Decode a request. Raises MalformedMessage."""
    request = codec.decode_request(MetadataRequest, version, frame, offset)
    if version == 0 and not request.topics:
        request.topics = None  # version 0 cannot encode null
    return request


def failed_metadata(request: MetadataRequest, error: int) -> MetadataResponse:
    """Return the response to Metadata with an error for each topic."""
    topics = [
        MetadataResponseTopic(error_code=error, name=topic.name, topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(topics=topics, error_code=error)
