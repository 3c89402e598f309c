"""CreateTopics, DeleteTopics, CreatePartitions: requests for `TopicService`, and its answers as responses."""

from __future__ import annotations

import asyncio

from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.control.config_describe import describe_overrides
from penstock.control.results import ConfigOutcome, TopicOutcome, TopicRequest, unknown_topic
from penstock.control.topic_admin import MAX_CONCURRENT_TOPICS, TopicService
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

DELETION_DISABLED_FROM = 3
"""The version of DeleteTopics from which there is a code for it."""
CONFIGS_FROM = 5


class TopicsApi:
    """The life of topics."""

    def __init__(self, view: ClusterView, admin: TopicService, config: BrokerConfig) -> None:
        self.view, self.admin, self.config = view, admin, config

    def routes(self) -> list[Route]:
        return [
            Route(CreateTopicsRequest, CreateTopicsResponse, self.create, 2, 7, failed_create),
            Route(DeleteTopicsRequest, DeleteTopicsResponse, self.delete, 1, 6, failed_delete),
            Route(CreatePartitionsRequest, CreatePartitionsResponse, self.create_partitions, 0, 3, failed_partitions),
        ]

    async def create(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        outcomes = await self.admin.create([new_topic(t) for t in request.topics], request.validate_only)
        return CreateTopicsResponse(topics=[self._created(outcome, context.version) for outcome in outcomes])

    def _created(self, outcome: TopicOutcome, version: int) -> CreatableTopicResult:
        result = CreatableTopicResult(
            name=outcome.name,
            topic_id=outcome.topic_id or ZERO_UUID,
            error_code=outcome.error,
            error_message=outcome.message,
            num_partitions=outcome.partition_count,
            replication_factor=outcome.replication_factor,
        )
        if version >= CONFIGS_FROM:
            # null would mean that the client may not see the settings
            result.configs = []
        if version >= CONFIGS_FROM and outcome.error is ErrorCode.NONE:
            result.configs = [
                CreatableTopicConfigs(
                    name=d.setting.name, value=d.value, read_only=d.is_read_only, config_source=d.source
                )
                for d in describe_overrides(outcome.overrides, self.config)
            ]
        return result

    async def delete(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        asked = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        results: list[DeletableTopicResult] = []
        for start in range(0, len(asked), MAX_CONCURRENT_TOPICS):
            part = asked[start : start + MAX_CONCURRENT_TOPICS]
            results += await asyncio.gather(*[self._deleted(topic, context.version) for topic in part])
        return DeleteTopicsResponse(responses=results)

    async def _deleted(self, asked: DeleteTopicState, version: int) -> DeletableTopicResult:
        by_id = asked.name is None
        topic = self.view.topics_by_id.get(asked.topic_id) if by_id else self.view.topics.get(asked.name or "")
        if not by_id and asked.topic_id != ZERO_UUID:
            topic = None
            outcome = ConfigOutcome(
                ErrorCode.INVALID_REQUEST, "A topic is named by its name or by its id, not by both."
            )
        elif by_id and asked.topic_id == ZERO_UUID:
            outcome = ConfigOutcome(ErrorCode.INVALID_REQUEST, "A topic is named neither by its name nor by its id.")
        elif topic is not None:
            outcome = await self.admin.delete(topic)
        elif by_id:
            outcome = ConfigOutcome(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with the id {asked.topic_id}.")
        else:
            refusal = unknown_topic(asked.name or "")
            outcome = ConfigOutcome(refusal.error, refusal.message)
        error = outcome.error
        if error is ErrorCode.TOPIC_DELETION_DISABLED and version < DELETION_DISABLED_FROM:
            error = ErrorCode.INVALID_REQUEST
        name = topic.name if topic is not None else asked.name
        topic_id = topic.topic_id if topic is not None else asked.topic_id
        return DeletableTopicResult(name=name, topic_id=topic_id, error_code=error, error_message=outcome.message)

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        names = [topic.name for topic in request.topics]
        once = len(set(names)) == len(names)
        results = [await self._grown(topic, request.validate_only, once) for topic in request.topics]
        return CreatePartitionsResponse(results=results)

    async def _grown(
        self, topic: CreatePartitionsTopic, validate_only: bool, once: bool
    ) -> CreatePartitionsTopicResult:
        if not once:
            outcome = ConfigOutcome(ErrorCode.INVALID_REQUEST, "A topic is named twice in the request.")
        else:
            given = None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
            outcome = await self.admin.create_partitions(topic.name, topic.count, given, validate_only)
        return CreatePartitionsTopicResult(name=topic.name, error_code=outcome.error, error_message=outcome.message)


def new_topic(topic: CreatableTopic) -> TopicRequest:
    assignment = {a.partition_index: a.broker_ids for a in topic.assignments}
    if len(assignment) < len(topic.assignments):
        assignment[-1] = []  # a partition was named twice: refused as not numbered from 0
    return TopicRequest(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        assignment,
        {config.name: config.value for config in topic.configs},
    )


def failed_create(request: CreateTopicsRequest, error: int) -> CreateTopicsResponse:
    results = [CreatableTopicResult(name=t.name, error_code=error, configs=[]) for t in request.topics]
    return CreateTopicsResponse(topics=results)


def failed_delete(request: DeleteTopicsRequest, error: int) -> DeleteTopicsResponse:
    results = [DeletableTopicResult(name=name, error_code=error) for name in request.topic_names]
    results += [DeletableTopicResult(name=t.name, topic_id=t.topic_id, error_code=error) for t in request.topics]
    return DeleteTopicsResponse(responses=results)


def failed_partitions(request: CreatePartitionsRequest, error: int) -> CreatePartitionsResponse:
    results = [CreatePartitionsTopicResult(name=topic.name, error_code=error) for topic in request.topics]
    return CreatePartitionsResponse(results=results)
