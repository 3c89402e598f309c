"""The part of the admin client that concerns the life of topics, one or thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from penstock.client.admin.brokers import BrokerAdminClient
from penstock.client.admin.types import CreatedTopic, NewTopic
from penstock.client.errors import BrokerError, ClientError, UnknownTopic, UnsupportedByBroker
from penstock.client.many import all_or_raise, ask_each, is_elsewhere
from penstock.client.metadata import topic_info
from penstock.client.types import PartitionInfo, TopicInfo
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import create_partitions, create_topics, delete_topics
from penstock.wire.messages import describe_topic_partitions as paging
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.primitives import ZERO_UUID

CHANGED_TOGETHER = 200
"""Topics of one request that creates, deletes or grows them."""
CREATED_PARTITIONS = 5_000
"""Partitions of one request that creates topics, where it names their number; a broker takes twice that."""
DESCRIBED_TOGETHER = 500
"""Topics of one request that describes them."""
PAGE_PARTITIONS = 2_000
"""Partitions of one answer that describes topics."""


class TopicAdminClient(BrokerAdminClient):
    """Topics; `admin.Admin` is what applications use."""

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """All topics by name; without those that brokers keep for themselves, unless asked for."""
        known = await self._cluster.all_metadata()
        return {name: t for name, t in sorted(known.topics.items()) if internal or not t.is_internal}

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """These topics. Raises `UnknownTopic` for the first that is not there."""
        return all_or_raise(await self.describe_topics_many(names))

    async def describe_topics_many(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo | ClientError]:
        """These topics, or (None) all, in answers of bounded size; `UnknownTopic` for those that are not there."""
        connection = await self._cluster.any_connection()
        if names is not None:
            return await ask_each(self._cluster, names, self._topics_named, at_a_time=DESCRIBED_TOGETHER)
        if not connection.serves(paging.DescribeTopicPartitionsRequest):
            return dict((await self._cluster.all_metadata()).topics)
        return await self._cluster.retrying(self._all_topics)

    async def _topics_named(self, names: list[str]) -> dict[str, TopicInfo | ClientError]:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        answer = await self._cluster.call_any(request, MetadataResponse)
        found: dict[str, TopicInfo | ClientError] = {}
        for topic in answer.topics:
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
            answer = await self._cluster.call_any(request, paging.DescribeTopicPartitionsResponse)
            for topic in answer.topics:
                name = topic.name or ""
                if topic.error_code:
                    found[name] = topic_error(name, topic.error_code)
                    continue
                info = found.get(name)
                if not isinstance(info, TopicInfo) or info.topic_id != topic.topic_id:
                    info = found[name] = TopicInfo(name, topic.topic_id, topic.is_internal)
                info.partitions.update({p.partition_index: partition_info(p) for p in topic.partitions})
            before, cursor = cursor, answer.next_cursor
            if cursor is None or cursor == before:
                return found

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[CreatedTopic]:
        """Creates topics, or (with `validate_only`) only says whether they could be created."""
        answers = await self.create_topics_many(topics, validate_only=validate_only, timeout_ms=timeout_ms)
        return list(all_or_raise(answers).values())

    async def create_topics_many(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> dict[str, CreatedTopic | ClientError]:
        """As `create_topics`, with what became of each by name. Where an answer was lost and the request repeated, a
        topic may exist already because it was created before."""
        wanted = list(topics)
        by_name = {topic.name: topic for topic in wanted}
        twice = {name for name, count in Counter(topic.name for topic in wanted).items() if count > 1}

        async def ask(names: list[str]) -> dict[str, CreatedTopic | ClientError]:
            request = create_topics.CreateTopicsRequest(
                topics=[creatable(by_name[name]) for name in names], timeout_ms=timeout_ms, validate_only=validate_only
            )
            answer = await self._cluster.call_controller(request, create_topics.CreateTopicsResponse)
            return {
                r.name: BrokerError(r.error_code, f"topic {r.name!r}", r.error_message)
                if r.error_code
                else CreatedTopic(r.name, r.num_partitions, r.replication_factor, known_id(r.topic_id))
                for r in answer.topics
            }

        answers: dict[str, CreatedTopic | ClientError] = {
            name: BrokerError(ErrorCode.INVALID_REQUEST, f"topic {name!r}", "it is named twice") for name in twice
        }
        for part in parts_by_partitions(topic for name, topic in by_name.items() if name not in twice):
            answers |= await ask_each(self._cluster, part, ask, at_a_time=CHANGED_TOGETHER, again=is_elsewhere)
        return answers

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: int = 30_000) -> None:
        """Deletes topics with all that they hold."""
        all_or_raise(await self.delete_topics_many(dict.fromkeys(names), timeout_ms=timeout_ms))

    async def delete_topics_many(
        self, topics: Mapping[str, UUID | None], *, timeout_ms: int = 30_000
    ) -> dict[str, ClientError | None]:
        """Deletes topics, by name; where an id is given, only the one that has it (KIP-516): another of its name stays,
        and the answer is UNKNOWN_TOPIC_ID. Returns what became of each: None where it is deleted.
        """

        async def ask(names: list[str]) -> dict[str, ClientError | None]:
            connection = await self._cluster.controller_connection()
            version = connection.version(delete_topics.DeleteTopicsRequest)
            if version < IDS_FROM:
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
            answer = await connection.call(request, delete_topics.DeleteTopicsResponse)
            found: dict[str, ClientError | None] = {}
            for r in answer.responses:
                name = ids.get(r.topic_id, r.name)
                found[name or ""] = deletion_error(name, r)
            return found

        return await ask_each(self._cluster, topics, ask, at_a_time=CHANGED_TOGETHER, again=is_elsewhere)

    async def _delete_named(
        self, names: list[str], topics: Mapping[str, UUID | None], timeout_ms: int
    ) -> dict[str, ClientError | None]:
        """For brokers that know no ids: what is to be deleted only as long as it has one is left alone."""
        found: dict[str, ClientError | None] = {
            name: UnsupportedByBroker(f"topic {name!r}: the broker deletes topics by name alone")
            for name in names
            if topics[name] is not None
        }
        named = [name for name in names if name not in found]
        if named:
            request = delete_topics.DeleteTopicsRequest(topic_names=named, timeout_ms=timeout_ms)
            answer = await self._cluster.call_controller(request, delete_topics.DeleteTopicsResponse)
            found |= {r.name or "": deletion_error(r.name, r) for r in answer.responses}
        return found

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> None:
        """Raises the number of partitions of each topic to what `counts` says."""
        answers = await self.create_partitions_many(counts, validate_only=validate_only, timeout_ms=timeout_ms)
        all_or_raise(answers)

    async def create_partitions_many(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> dict[str, ClientError | None]:
        """As `create_partitions`, with what became of each: None where it has them."""

        async def ask(names: list[str]) -> dict[str, ClientError | None]:
            topics = [
                create_partitions.CreatePartitionsTopic(name=name, count=counts[name], assignments=None)
                for name in names
            ]
            request = create_partitions.CreatePartitionsRequest(
                topics=topics, timeout_ms=timeout_ms, validate_only=validate_only
            )
            answer = await self._cluster.call_controller(request, create_partitions.CreatePartitionsResponse)
            return {
                r.name: BrokerError(r.error_code, f"topic {r.name!r}", r.error_message) if r.error_code else None
                for r in answer.results
            }

        return await ask_each(self._cluster, counts, ask, at_a_time=CHANGED_TOGETHER, again=is_elsewhere)


IDS_FROM = 6
"""The version of DeleteTopics that knows ids."""


def parts_by_partitions(topics: Iterable[NewTopic]) -> Iterable[Sequence[str]]:
    """Names of topics that have together no more new partitions than one request may ask for."""
    part: list[str] = []
    partitions = 0
    for topic in topics:
        count = max(topic.partitions, len(topic.assignment), 1)
        if part and partitions + count > CREATED_PARTITIONS:
            yield part
            part, partitions = [], 0
        part.append(topic.name)
        partitions += count
    yield part


def creatable(topic: NewTopic) -> create_topics.CreatableTopic:
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
    return None if topic_id == ZERO_UUID else topic_id


def deletion_error(name: str | None, result: delete_topics.DeletableTopicResult) -> ClientError | None:
    if not result.error_code:
        return None
    return BrokerError(result.error_code, f"topic {name!r}", result.error_message)


def topic_error(name: str, code: int) -> ClientError:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f"topic {name!r} does not exist")
    return BrokerError(code, f"topic {name!r}")


def partition_info(p: paging.DescribeTopicPartitionsResponsePartition) -> PartitionInfo:
    leader = -1 if p.error_code == ErrorCode.LEADER_NOT_AVAILABLE else p.leader_id
    return PartitionInfo(
        p.partition_index, leader, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes), tuple(p.offline_replicas)
    )
