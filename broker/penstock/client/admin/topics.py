"""Admin calls that list, describe, create, grow and delete topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from penstock.client.admin.brokers import BrokerAdminClient
from penstock.client.admin.types import CreatedTopic, NewTopic
from penstock.client.errors import BrokerError, ClientError, UnknownTopic, UnsupportedByBroker
from penstock.client.many import all_or_raise, request_each, was_not_executed
from penstock.client.metadata import topic_info
from penstock.client.types import PartitionInfo, SealedPartitionInfo, TopicInfo, TopicShrink
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import create_partitions, create_topics, delete_topics
from penstock.wire.messages import describe_topic_partitions as paging
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.primitives import ZERO_UUID

MAX_CHANGED_TOPICS = 200
"""Topics per request that creates, deletes or grows topics."""
MAX_CREATED_PARTITIONS = 5_000
"""Partitions per request that creates topics; half of a broker's limit."""
MAX_DESCRIBED_TOPICS = 500
"""Topics per describe request."""
PAGE_PARTITIONS = 2_000
"""Partitions per describe response."""


class TopicAdminClient(BrokerAdminClient):
    """Topic calls; applications use `admin.Admin`."""

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """Return all topics by name, sorted; `internal` includes internal topics."""
        known = await self._cluster.all_metadata()
        return {name: t for name, t in sorted(known.topics.items()) if internal or not t.is_internal}

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return these topics. Raises `UnknownTopic` for the first missing one."""
        return all_or_raise(await self.describe_topics_many(names))

    async def describe_topics_many(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo | ClientError]:
        """Return these topics, or all (None), in bounded responses; `UnknownTopic` for missing ones."""
        connection = await self._cluster.any_connection()
        if names is not None:
            return await request_each(self._cluster, names, self._topics_named, chunk_size=MAX_DESCRIBED_TOPICS)
        if not connection.serves(paging.DescribeTopicPartitionsRequest):
            return dict((await self._cluster.all_metadata()).topics)
        return await self._cluster.retrying(self._all_topics)

    async def _topics_named(self, names: list[str]) -> dict[str, TopicInfo | ClientError]:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        response = await self._cluster.call_any(request, MetadataResponse)
        found: dict[str, TopicInfo | ClientError] = {}
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code:
                found[name] = topic_error(name, topic.error_code)
            else:
                found[name] = topic_info(topic, None)
        return found

    async def _all_topics(self) -> dict[str, TopicInfo | ClientError]:
        found: dict[str, TopicInfo | ClientError] = {}
        cursor: paging.Cursor | None = None
        while True:
            request = paging.DescribeTopicPartitionsRequest(response_partition_limit=PAGE_PARTITIONS, cursor=cursor)
            response = await self._cluster.call_any(request, paging.DescribeTopicPartitionsResponse)
            for topic in response.topics:
                name = topic.name or ""
                if topic.error_code:
                    found[name] = topic_error(name, topic.error_code)
                    continue
                info = found.get(name)
                if not isinstance(info, TopicInfo) or info.topic_id != topic.topic_id:
                    info = found[name] = TopicInfo(name, topic.topic_id, topic.is_internal, shrink=topic_shrink(topic))
                info.partitions.update({p.partition_index: partition_info(p) for p in topic.partitions})
            before, cursor = cursor, response.next_cursor
            if cursor is None or cursor == before:
                return found

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[CreatedTopic]:
        """Create topics, or only validate the request."""
        results = await self.create_topics_many(topics, validate_only=validate_only, timeout_ms=timeout_ms)
        return list(all_or_raise(results).values())

    async def create_topics_many(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> dict[str, CreatedTopic | ClientError]:
        """Create topics as `create_topics` does; returns a result for each.

        If a response was lost and the request repeated, TOPIC_ALREADY_EXISTS may refer to the topic just created.
        """
        new_topics = list(topics)
        by_name = {topic.name: topic for topic in new_topics}
        twice = {name for name, count in Counter(topic.name for topic in new_topics).items() if count > 1}

        async def request_chunk(names: list[str]) -> dict[str, CreatedTopic | ClientError]:
            request = create_topics.CreateTopicsRequest(
                topics=[creatable_topic(by_name[name]) for name in names],
                timeout_ms=timeout_ms,
                validate_only=validate_only,
            )
            response = await self._cluster.call_controller(request, create_topics.CreateTopicsResponse)
            return {
                r.name: BrokerError(r.error_code, f'topic "{r.name}"', r.error_message)
                if r.error_code
                else CreatedTopic(r.name, r.num_partitions, r.replication_factor, known_id(r.topic_id))
                for r in response.topics
            }

        results: dict[str, CreatedTopic | ClientError] = {
            name: BrokerError(ErrorCode.INVALID_REQUEST, f'topic "{name}"', "the name is given twice") for name in twice
        }
        for chunk in chunk_by_partitions(topic for name, topic in by_name.items() if name not in twice):
            results |= await request_each(
                self._cluster, chunk, request_chunk, chunk_size=MAX_CHANGED_TOPICS, should_retry=was_not_executed
            )
        return results

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: int = 30_000) -> None:
        """Delete topics with all their records."""
        all_or_raise(await self.delete_topics_many(dict.fromkeys(names), timeout_ms=timeout_ms))

    async def delete_topics_many(
        self, topics: Mapping[str, UUID | None], *, timeout_ms: int = 30_000
    ) -> dict[str, ClientError | None]:
        """Delete topics by name; with an id, only the topic that has it (KIP-516), otherwise UNKNOWN_TOPIC_ID.

        Returns an error for each, or None if it was deleted.
        """

        async def request_chunk(names: list[str]) -> dict[str, ClientError | None]:
            connection = await self._cluster.controller_connection()
            version = connection.version(delete_topics.DeleteTopicsRequest)
            if version < TOPIC_IDS_VERSION:
                return await self._delete_named(names, topics, timeout_ms)
            ids = {topic_id: name for name in names if (topic_id := topics[name]) is not None}
            request = delete_topics.DeleteTopicsRequest(
                topics=[
                    delete_topics.DeleteTopicState(name=name)
                    if topics[name] is None
                    else delete_topics.DeleteTopicState(name=None, topic_id=topics[name] or ZERO_UUID)
                    for name in names
                ],
                timeout_ms=timeout_ms,
            )
            response = await connection.call(request, delete_topics.DeleteTopicsResponse)
            found: dict[str, ClientError | None] = {}
            for r in response.responses:
                name = ids.get(r.topic_id, r.name)
                found[name or ""] = deletion_error(name, r)
            return found

        return await request_each(
            self._cluster, topics, request_chunk, chunk_size=MAX_CHANGED_TOPICS, should_retry=was_not_executed
        )

    async def _delete_named(
        self, names: list[str], topics: Mapping[str, UUID | None], timeout_ms: int
    ) -> dict[str, ClientError | None]:
        """Delete topics on brokers without topic ids; those given with an id fail."""
        found: dict[str, ClientError | None] = {
            name: UnsupportedByBroker(f'topic "{name}": the broker cannot delete topics by id')
            for name in names
            if topics[name] is not None
        }
        named = [name for name in names if name not in found]
        if named:
            request = delete_topics.DeleteTopicsRequest(topic_names=named, timeout_ms=timeout_ms)
            response = await self._cluster.call_controller(request, delete_topics.DeleteTopicsResponse)
            found |= {r.name or "": deletion_error(r.name, r) for r in response.responses}
        return found

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
        may_shrink: bool = False,
    ) -> None:
        """Change the partition count of each topic; without `may_shrink`, a smaller one is refused."""
        results = await self.create_partitions_many(
            counts, validate_only=validate_only, timeout_ms=timeout_ms, may_shrink=may_shrink
        )
        all_or_raise(results)

    async def create_partitions_many(
        self,
        counts: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
        may_shrink: bool = False,
    ) -> dict[str, ClientError | None]:
        """Change partition counts as `create_partitions` does; returns an error for each topic, or None."""

        async def request_chunk(names: list[str]) -> dict[str, ClientError | None]:
            topics = [
                create_partitions.CreatePartitionsTopic(
                    name=name, count=counts[name], assignments=None, may_shrink=may_shrink
                )
                for name in names
            ]
            request = create_partitions.CreatePartitionsRequest(
                topics=topics, timeout_ms=timeout_ms, validate_only=validate_only
            )
            response = await self._cluster.call_controller(request, create_partitions.CreatePartitionsResponse)
            return {
                r.name: BrokerError(r.error_code, f'topic "{r.name}"', r.error_message) if r.error_code else None
                for r in response.results
            }

        return await request_each(
            self._cluster, counts, request_chunk, chunk_size=MAX_CHANGED_TOPICS, should_retry=was_not_executed
        )


TOPIC_IDS_VERSION = 6
"""First version of DeleteTopics that supports topic ids."""


def chunk_by_partitions(topics: Iterable[NewTopic]) -> Iterable[Sequence[str]]:
    """Yield names of topics in chunks of at most MAX_CREATED_PARTITIONS new partitions."""
    chunk: list[str] = []
    partitions = 0
    for topic in topics:
        count = max(topic.partitions, len(topic.assignment), 1)
        if chunk and partitions + count > MAX_CREATED_PARTITIONS:
            yield chunk
            chunk, partitions = [], 0
        chunk.append(topic.name)
        partitions += count
    yield chunk


def creatable_topic(topic: NewTopic) -> create_topics.CreatableTopic:
    """Return the request's entry for a topic."""
    return create_topics.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            create_topics.CreatableReplicaAssignment(partition_index=p, broker_ids=list(brokers))
            for p, brokers in topic.assignment.items()
        ],
        configs=[create_topics.CreatableTopicConfig(name=n, value=v) for n, v in topic.configs.items()],
    )


def known_id(topic_id: UUID) -> UUID | None:
    """Return the topic id; None if the broker did not return one."""
    return None if topic_id == ZERO_UUID else topic_id


def deletion_error(name: str | None, result: delete_topics.DeletableTopicResult) -> ClientError | None:
    """Return the error of a deletion, if any."""
    if not result.error_code:
        return None
    return BrokerError(result.error_code, f'topic "{name}"', result.error_message)


def topic_error(name: str, code: int) -> ClientError:
    """Return the exception for an error code."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f'topic "{name}" does not exist; run `penstock topic list` to see all topics')
    return BrokerError(code, f'topic "{name}"')


def topic_shrink(topic: paging.DescribeTopicPartitionsResponseTopic) -> TopicShrink | None:
    """Return the reduced number of partitions in a response; None if the topic has no sealed ones."""
    remaining, shown = topic.remaining_partitions, topic.shown_partitions
    if remaining < 0:
        return None
    columns = topic.sealed_partitions, topic.seal_offsets, topic.relay_targets, topic.drained_offsets
    sealed = tuple(
        SealedPartitionInfo(partition, seal_offset, target, drained_offset, is_hidden=partition >= shown)
        for partition, seal_offset, target, drained_offset in zip(*columns, strict=True)
    )
    return TopicShrink(topic.name or "", remaining, shown, sealed)


def partition_info(p: paging.DescribeTopicPartitionsResponsePartition) -> PartitionInfo:
    """Return a partition from a response."""
    leader = -1 if p.error_code == ErrorCode.LEADER_NOT_AVAILABLE else p.leader_id
    return PartitionInfo(
        p.partition_index, leader, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes), tuple(p.offline_replicas)
    )
