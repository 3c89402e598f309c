"""The admin client: topics, partitions, where they are, settings, groups, offsets, log directories.

Public. Used by the command line, and by whoever manages topics from Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

from penstock.client.admin_groups import GroupAdmin
from penstock.client.admin_partitions import PartitionAdmin
from penstock.client.admin_types import AlterConfig, ClusterInfo, ConfigEntry, CreatedTopic, LogDir, NewTopic
from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, UnknownTopic, check, error_code
from penstock.client.group_protocol import by_topic
from penstock.client.offsets import EARLIEST, LATEST, by_leader, list_offsets
from penstock.client.types import Node, OffsetAndTimestamp, TopicInfo, TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
)
from penstock.wire.messages import incremental_alter_configs as alter_configs

TOPIC, BROKER = 2, 4
"""Kinds of resources that have settings, as the protocol numbers them."""
SOURCES = {1: "topic", 2: "broker", 3: "cluster", 4: "static", 5: "default"}
OPERATIONS = {"set": 0, "delete": 1, "append": 2, "subtract": 3}


class Admin(GroupAdmin, PartitionAdmin):
    """Manages what a cluster holds.

    ```python
    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("flights", partitions=3)])
    ```

    Calls for several things try each of them, and then raise for the first that failed (a `BrokerError` whose `about`
    names it). Errors that may pass are retried for `request_timeout_ms`.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:9092",
        *,
        client_id: str = "penstock-admin",
        request_timeout_ms: float = 30_000,
        connect_timeout_ms: float = 10_000,
    ) -> None:
        cluster = Cluster(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
        super().__init__(cluster)

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects. Raises `NoBrokerAvailable`."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise

    async def close(self) -> None:
        """Closes. Idempotent."""
        await self._cluster.close()

    # Cluster

    async def describe_cluster(self) -> ClusterInfo:
        """Who is there."""
        connection = await self._cluster.any_connection()
        if not connection.serves(describe_cluster.DescribeClusterRequest):
            known = await self._cluster.all_metadata()
            return ClusterInfo(known.cluster_id or "", known.controller_id, tuple(known.brokers.values()))
        answer = await connection.call(
            describe_cluster.DescribeClusterRequest(), describe_cluster.DescribeClusterResponse
        )
        check(answer.error_code, "cluster", answer.error_message)
        nodes = sorted((Node(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers), key=lambda n: n.node_id)
        return ClusterInfo(answer.cluster_id, answer.controller_id, tuple(nodes))

    async def log_dirs(
        self, partitions: Iterable[TopicPartition] | None = None, *, brokers: Iterable[int] | None = None
    ) -> list[LogDir]:
        """The log directories of every broker, with the size of each partition in them; failed ones have an `error`.

        `partitions` bounds whose sizes are told, `brokers` who is asked (None: all).
        """
        topics = None
        if partitions is not None:
            topics = [
                describe_log_dirs.DescribableLogDirTopic(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        asked = self._cluster.metadata.brokers if brokers is None else brokers
        answers = await asyncio.gather(*(self._log_dirs_of(node, topics) for node in asked))
        return [found for answer in answers for found in answer]

    async def _log_dirs_of(
        self, node_id: int, topics: list[describe_log_dirs.DescribableLogDirTopic] | None
    ) -> list[LogDir]:
        request = describe_log_dirs.DescribeLogDirsRequest(topics=topics)
        answer = await self._cluster.call(node_id, request, describe_log_dirs.DescribeLogDirsResponse)
        check(answer.error_code, f"log directories of broker {node_id}")
        found = []
        for result in answer.results:
            sizes = {
                TopicPartition(topic.name, p.partition_index): p.partition_size
                for topic in result.topics
                for p in topic.partitions
            }
            error = error_code(result.error_code)
            found.append(LogDir(node_id, result.log_dir, result.total_bytes, result.usable_bytes, sizes, error))
        return found

    # Topics

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """All topics by name; without those that brokers keep for themselves, unless asked for."""
        known = await self._cluster.all_metadata()
        return {name: t for name, t in sorted(known.topics.items()) if internal or not t.is_internal}

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """These topics. Raises `UnknownTopic` for the first that is not there."""
        wanted = list(names)
        known = await self._cluster.all_metadata()
        for name in wanted:
            if name not in known.topics:
                raise UnknownTopic(f"topic {name!r} does not exist")
        return {name: known.topics[name] for name in wanted}

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[CreatedTopic]:
        """Creates topics, or (with `validate_only`) only says whether they could be created."""
        request = create_topics.CreateTopicsRequest(
            topics=[creatable(topic) for topic in topics], timeout_ms=timeout_ms, validate_only=validate_only
        )

        async def ask() -> create_topics.CreateTopicsResponse:
            answer = await self._cluster.call_controller(request, create_topics.CreateTopicsResponse)
            raise_if_moved(r.error_code for r in answer.topics)
            return answer

        answer = await self._cluster.retrying(ask)
        for result in answer.topics:
            check(result.error_code, f"topic {result.name!r}", result.error_message)
        return [CreatedTopic(r.name, r.num_partitions, r.replication_factor) for r in answer.topics]

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: int = 30_000) -> None:
        """Deletes topics with all that they hold."""
        request = delete_topics.DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms)

        async def ask() -> delete_topics.DeleteTopicsResponse:
            answer = await self._cluster.call_controller(request, delete_topics.DeleteTopicsResponse)
            raise_if_moved(r.error_code for r in answer.responses)
            return answer

        for result in (await self._cluster.retrying(ask)).responses:
            check(result.error_code, f"topic {result.name!r}", result.error_message)

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> None:
        """Raises the number of partitions of each topic to what `counts` says."""
        topics = [create_partitions.CreatePartitionsTopic(name=n, count=c, assignments=None) for n, c in counts.items()]
        request = create_partitions.CreatePartitionsRequest(
            topics=topics, timeout_ms=timeout_ms, validate_only=validate_only
        )

        async def ask() -> create_partitions.CreatePartitionsResponse:
            answer = await self._cluster.call_controller(request, create_partitions.CreatePartitionsResponse)
            raise_if_moved(r.error_code for r in answer.results)
            return answer

        for result in (await self._cluster.retrying(ask)).results:
            check(result.error_code, f"topic {result.name!r}", result.error_message)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes what lies before an offset, by partition (-1: everything). Returns where each log begins now."""
        if not before:
            return {}
        await self._cluster.topics_known({tp.topic for tp in before})
        found: dict[TopicPartition, int] = {}

        async def ask() -> dict[TopicPartition, int]:
            left = {tp: offset for tp, offset in before.items() if tp not in found}
            for node, part in by_leader(self._cluster, left).items():
                found.update(await self._delete_records_at(node, part))
            return found

        return await self._cluster.retrying(ask)

    async def _delete_records_at(self, node_id: int, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        topics = [
            delete_records.DeleteRecordsTopic(
                name=topic,
                partitions=[
                    delete_records.DeleteRecordsPartition(partition_index=p, offset=before[TopicPartition(topic, p)])
                    for p in partitions
                ],
            )
            for topic, partitions in by_topic(before).items()
        ]
        request = delete_records.DeleteRecordsRequest(topics=topics, timeout_ms=30_000)
        answer = await self._cluster.call(node_id, request, delete_records.DeleteRecordsResponse)
        found = {}
        for topic in answer.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                check(p.error_code, str(tp))
                found[tp] = p.low_watermark
        return found

    # Offsets of logs

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """By partition the first offset at or after a time (ms since 1970), or at EARLIEST, LATEST, MAX_TIMESTAMP."""
        return await list_offsets(self._cluster, wanted)

    async def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Where logs begin and end, by partition: (first offset that is there, offset the next record will have)."""
        wanted = list(partitions)
        starts = await list_offsets(self._cluster, dict.fromkeys(wanted, EARLIEST))
        ends = await list_offsets(self._cluster, dict.fromkeys(wanted, LATEST))
        return {tp: (starts[tp].offset, ends[tp].offset) for tp in wanted}

    # Settings

    async def topic_configs(self, topic: str) -> dict[str, ConfigEntry]:
        """All settings of a topic by Kafka's names."""
        return await self._configs(TOPIC, topic, f"topic {topic!r}")

    async def broker_configs(self, broker_id: int, names: Sequence[str] | None = None) -> dict[str, ConfigEntry]:
        """Settings of a broker by Kafka's names: all, or those of `names` that it has. The broker itself is asked."""
        return await self._configs(BROKER, str(broker_id), f"broker {broker_id}", names)

    async def _configs(
        self, kind: int, name: str, about: str, names: Sequence[str] | None = None
    ) -> dict[str, ConfigEntry]:
        resource = describe_configs.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None if names is None else list(names)
        )
        request = describe_configs.DescribeConfigsRequest(resources=[resource], include_documentation=names is None)

        async def ask() -> dict[str, ConfigEntry]:
            if kind == BROKER:
                answer = await self._cluster.call(int(name), request, describe_configs.DescribeConfigsResponse)
            else:
                answer = await self._cluster.call_any(request, describe_configs.DescribeConfigsResponse)
            found = {}
            for result in answer.results:
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(f"{about} does not exist")
                check(result.error_code, about, result.error_message)
                for c in result.configs:
                    source = SOURCES.get(c.config_source, "default")
                    found[c.name] = ConfigEntry(
                        c.name, c.value, source, c.read_only, c.is_sensitive, c.documentation or None
                    )
            return dict(sorted(found.items()))

        return await self._cluster.retrying(ask)

    async def alter_topic_configs(
        self, topic: str, changes: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> None:
        """Changes settings of a topic, and leaves the others as they are (KIP-339)."""
        await self._alter(TOPIC, topic, f"topic {topic!r}", changes, validate_only)

    async def alter_broker_configs(
        self, broker_id: int | None, changes: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> None:
        """Changes settings of a broker, or the cluster-wide defaults (None)."""
        name = "" if broker_id is None else str(broker_id)
        await self._alter(BROKER, name, f"broker {name}" if name else "the cluster", changes, validate_only)

    async def _alter(self, kind: int, name: str, about: str, changes: Sequence[AlterConfig], validate: bool) -> None:
        configs = [
            alter_configs.AlterableConfig(name=c.name, config_operation=OPERATIONS[c.operation], value=c.value)
            for c in changes
        ]
        resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        request = alter_configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate)

        async def ask() -> None:
            if kind == BROKER and name:
                answer = await self._cluster.call(int(name), request, alter_configs.IncrementalAlterConfigsResponse)
            else:
                answer = await self._cluster.call_controller(request, alter_configs.IncrementalAlterConfigsResponse)
            for result in answer.responses:
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(f"{about} does not exist")
                check(result.error_code, about, result.error_message)

        await self._cluster.retrying(ask)


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


def raise_if_moved(codes: Iterable[int]) -> None:
    """Raises where the request went to a broker that is not the controller: it may be repeated as a whole."""
    for code in codes:
        if error_code(code) == ErrorCode.NOT_CONTROLLER:
            raise BrokerError(code, "the controller has moved")
