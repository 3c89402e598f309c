"""CreateTopics, DeleteTopics and CreatePartitions: requests to `TopicService`."""

from __future__ import annotations

import asyncio

from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.control.config_describe import describe_overrides
from penstock.control.results import ConfigOutcome, TopicOutcome, TopicRequest, unknown_topic
from penstock.control.topic_admin import MAX_CONCURRENT_TOPICS, TopicService
from penstock.security.quotas.mutations import MutationQuota
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.wire.primitives import ZERO_UUID

DELETION_DISABLED_VERSION = 3
"""The DeleteTopics version from which clients know TOPIC_DELETION_DISABLED."""
CONFIGS_VERSION = 5
STRICT_CREATE_VERSION, STRICT_DELETE_VERSION, STRICT_GROWTH_VERSION = 6, 5, 3
"""Versions from which clients know THROTTLING_QUOTA_EXCEEDED (KIP-599); requests of older ones are served, then
throttled.
"""


class TopicsApi:
    """Creates, grows and deletes topics."""

    def __init__(self, view: ClusterView, admin: TopicService, config: BrokerConfig) -> None:
        self.view, self.admin, self.config = view, admin, config

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(CreateTopicsRequest, self.create, failed_create),
            Route(DeleteTopicsRequest, self.delete, failed_delete),
            Route(CreatePartitionsRequest, self.create_partitions, failed_partitions),
        ]

    async def create(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        """Serve CreateTopics 2 to 7."""
        quota = context.mutation_quota(context.version >= STRICT_CREATE_VERSION)
        outcomes = await self.admin.create([topic_request(t) for t in request.topics], request.validate_only, quota)
        created = [self._created(outcome, context.version) for outcome in outcomes]
        return CreateTopicsResponse(throttle_time_ms=throttle_ms(quota), topics=created)

    def _created(self, outcome: TopicOutcome, version: int) -> CreatableTopicResult:
        result = CreatableTopicResult(
            name=outcome.name,
            topic_id=outcome.topic_id or ZERO_UUID,
            error_code=outcome.error,
            error_message=outcome.message,
            num_partitions=outcome.partition_count,
            replication_factor=outcome.replication_factor,
        )
        if version >= CONFIGS_VERSION:
            # null means that the client is not authorized to see the settings
            result.configs = []
        if version >= CONFIGS_VERSION and outcome.error is ErrorCode.NONE:
            result.configs = [
                CreatableTopicConfigs(
                    name=d.setting.name, value=d.value, read_only=d.is_read_only, config_source=d.source
                )
                for d in describe_overrides(outcome.overrides, self.config)
            ]
        return result

    async def delete(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        """Serve DeleteTopics 1 to 6."""
        quota = context.mutation_quota(context.version >= STRICT_DELETE_VERSION)
        requested = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        results: list[DeletableTopicResult] = []
        for start in range(0, len(requested), MAX_CONCURRENT_TOPICS):
            topics_slice = requested[start : start + MAX_CONCURRENT_TOPICS]
            results += await asyncio.gather(*[self._deleted(topic, context.version, quota) for topic in topics_slice])
        return DeleteTopicsResponse(throttle_time_ms=throttle_ms(quota), responses=results)

    async def _deleted(
        self, requested: DeleteTopicState, version: int, quota: MutationQuota | None
    ) -> DeletableTopicResult:
        by_id = requested.name is None
        topic = self.view.topics_by_id.get(requested.topic_id) if by_id else self.view.topics.get(requested.name or "")
        if not by_id and requested.topic_id != ZERO_UUID:
            topic = None
            outcome = ConfigOutcome(ErrorCode.INVALID_REQUEST, "the topic has both a name and an id; use only one")
        elif by_id and requested.topic_id == ZERO_UUID:
            outcome = ConfigOutcome(
                ErrorCode.INVALID_REQUEST, "the topic has neither a name nor an id; set one of them"
            )
        elif topic is not None:
            outcome = await self.admin.delete(topic, quota)
        elif by_id:
            outcome = ConfigOutcome(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f'topic id "{requested.topic_id}" does not exist; run `penstock topic list` to see all topics',
            )
        else:
            refusal = unknown_topic(requested.name or "")
            outcome = ConfigOutcome(refusal.error, refusal.message)
        error = outcome.error
        if error is ErrorCode.TOPIC_DELETION_DISABLED and version < DELETION_DISABLED_VERSION:
            error = ErrorCode.INVALID_REQUEST
        name = topic.name if topic is not None else requested.name
        topic_id = topic.topic_id if topic is not None else requested.topic_id
        return DeletableTopicResult(name=name, topic_id=topic_id, error_code=error, error_message=outcome.message)

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        """Serve CreatePartitions 0 to 3."""
        names = [topic.name for topic in request.topics]
        is_distinct = len(set(names)) == len(names)
        quota = context.mutation_quota(context.version >= STRICT_GROWTH_VERSION)
        results = [await self._grown(topic, request.validate_only, is_distinct, quota) for topic in request.topics]
        return CreatePartitionsResponse(throttle_time_ms=throttle_ms(quota), results=results)

    async def _grown(
        self, topic: CreatePartitionsTopic, validate_only: bool, is_distinct: bool, quota: MutationQuota | None
    ) -> CreatePartitionsTopicResult:
        if not is_distinct:
            outcome = ConfigOutcome(
                ErrorCode.INVALID_REQUEST, "a topic appears twice in the request; remove the duplicate"
            )
        else:
            given = None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
            outcome = await self.admin.create_partitions(
                topic.name, topic.count, given, validate_only, quota, topic.may_shrink
            )
        return CreatePartitionsTopicResult(name=topic.name, error_code=outcome.error, error_message=outcome.message)


def throttle_ms(quota: MutationQuota | None) -> int:
    """Return the throttle time for a response."""
    return 0 if quota is None else quota.throttle_ms


def topic_request(topic: CreatableTopic) -> TopicRequest:
    """Return the service's form of a topic to create."""
    assignment = {a.partition_index: a.broker_ids for a in topic.assignments}
    if len(assignment) < len(topic.assignments):
        assignment[-1] = []  # a duplicate partition: rejected because of the invalid index
    return TopicRequest(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        assignment,
        {config.name: config.value for config in topic.configs},
    )


def failed_create(request: CreateTopicsRequest, error: int) -> CreateTopicsResponse:
    """Return the response to CreateTopics with an error for each topic."""
    results = [CreatableTopicResult(name=t.name, error_code=error, configs=[]) for t in request.topics]
    return CreateTopicsResponse(topics=results)


def failed_delete(request: DeleteTopicsRequest, error: int) -> DeleteTopicsResponse:
    """Return the response to DeleteTopics with an error for each topic."""
    results = [DeletableTopicResult(name=name, error_code=error) for name in request.topic_names]
    results += [DeletableTopicResult(name=t.name, topic_id=t.topic_id, error_code=error) for t in request.topics]
    return DeleteTopicsResponse(responses=results)


def failed_partitions(request: CreatePartitionsRequest, error: int) -> CreatePartitionsResponse:
    """Return the response to CreatePartitions with an error for each topic."""
    results = [CreatePartitionsTopicResult(name=topic.name, error_code=error) for topic in request.topics]
    return CreatePartitionsResponse(results=results)
