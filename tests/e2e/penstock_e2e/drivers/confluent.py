"""confluent-kafka: Python bindings of librdkafka."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import Producer as RdProducer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from penstock_e2e.model import (
    DEADLINE_S,
    Delivery,
    GroupDescription,
    GroupMember,
    LibraryDriver,
    MemberSpec,
    Message,
    Partition,
    Position,
    ProducerSpec,
    Record,
    Refused,
    TimestampType,
)

_TIMESTAMP_TYPES: dict[int, TimestampType] = {
    TIMESTAMP_CREATE_TIME: "create",
    TIMESTAMP_LOG_APPEND_TIME: "append",
}

NOT_SERVED = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
"""Errors for a partition without a leader, or whose leader does not know its role yet."""


def _refused(error: KafkaError) -> Refused:
    return Refused(error.code(), error)


def _wait(future: Future[Any]) -> Any:
    try:
        return future.result(DEADLINE_S)
    except KafkaException as exception:
        raise _refused(exception.args[0]) from exception


class ConfluentProducer:
    def __init__(self, bootstrap: str, spec: ProducerSpec) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": spec.acks,
            "compression.type": spec.codec,
            "enable.idempotence": spec.idempotent,
            "linger.ms": spec.linger_ms,
            "batch.size": spec.batch_size_bytes,
            "message.max.bytes": spec.max_request_size_bytes,
            "topic.metadata.refresh.interval.ms": spec.metadata_max_age_ms,
            **spec.extra,
        }
        self._producer = RdProducer(config)
        self._deliveries: list[Delivery] = []
        self._error: KafkaError | None = None

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._error = self._error or error
        else:
            offset = message.offset()
            self._deliveries.append(Delivery(message.partition(), -1 if offset is None else offset))

    def send(self, topic: str, record: Record) -> None:
        options: dict[str, Any] = {}
        if record.partition is not None:
            options["partition"] = record.partition
        if record.timestamp_ms is not None:
            options["timestamp"] = record.timestamp_ms
        if record.headers:
            options["headers"] = list(record.headers)
        self._producer.produce(topic, record.value, record.key, on_delivery=self._delivered, **options)
        self._producer.poll(0)

    def flush(self) -> list[Delivery]:
        left = self._producer.flush(DEADLINE_S)
        assert left == 0, f"{left} messages not delivered within {DEADLINE_S} s"
        error, self._error = self._error, None
        deliveries, self._deliveries = self._deliveries, []
        if error is not None:
            raise _refused(error)
        return deliveries

    def close(self) -> None:
        self._producer.flush(DEADLINE_S)


class ConfluentConsumer:
    def __init__(self, bootstrap: str, member: MemberSpec | None) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": member.group if member else "none",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": bool(member and member.commit == "auto"),
            "auto.commit.interval.ms": 100,
            "fetch.wait.max.ms": 100,
        }
        if member:
            config |= {
                "client.id": member.client_id,
                "session.timeout.ms": member.session_timeout_ms,
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": member.assignor,
                "topic.metadata.refresh.interval.ms": member.metadata_max_age_ms,
            }
            if member.instance_id is not None:
                config["group.instance.id"] = member.instance_id
        self._consumer = RdConsumer(config)
        self._assigned: list[TopicPartition] = []

    def subscribe(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[Iterable[Partition]], None],
        on_revoked: Callable[[Iterable[Partition]], None],
    ) -> None:
        def told(callback: Callable[[Iterable[Partition]], None]) -> Callable[..., None]:
            return lambda _, partitions: callback([Partition(p.topic, p.partition) for p in partitions])

        self._consumer.subscribe(
            list(topics), on_assign=told(on_assigned), on_revoke=told(on_revoked), on_lost=told(on_revoked)
        )

    def assign(self, partition: Partition, position: Position) -> None:
        offset = {"beginning": OFFSET_BEGINNING, "end": OFFSET_END}.get(cast(str, position), position)
        self._assigned.append(TopicPartition(partition.topic, partition.number, cast(int, offset)))
        self._consumer.assign(self._assigned)

    def seek(self, partition: Partition, offset: int) -> None:
        self._consumer.seek(TopicPartition(partition.topic, partition.number, offset))

    def poll(self, timeout_s: float, max_records: int = 100) -> list[Message]:
        messages = []
        for message in self._consumer.consume(max_records, timeout_s):
            error = message.error()
            if error is not None:
                raise _refused(error)
            messages.append(_message(message))
        return messages

    def commit(self) -> None:
        try:
            committed = self._consumer.commit(asynchronous=False)
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() == KafkaError._NO_OFFSET:
                return
            raise _refused(error) from exception
        for partition in committed or ():
            if partition.error is not None:
                raise _refused(partition.error)

    def close(self) -> None:
        self._consumer.close()


def _message(message: Any) -> Message:
    kind, timestamp_ms = message.timestamp()
    return Message(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple((name, value) for name, value in message.headers() or ()),
        timestamp_ms,
        _TIMESTAMP_TYPES.get(kind, "unknown"),
    )


class ConfluentAdmin:
    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        topic = NewTopic(name, partitions, config=dict(config or {}))
        _wait(self._admin.create_topics([topic])[name])

    def delete_topic(self, name: str) -> None:
        _wait(self._admin.delete_topics([name])[name])

    def partition_count(self, name: str) -> int | None:
        topic = self._admin.list_topics(timeout=DEADLINE_S).topics.get(name)
        return len(topic.partitions) if topic is not None and topic.error is None else None

    def brokers(self) -> list[int]:
        return list(self._admin.list_topics(timeout=DEADLINE_S).brokers)

    def broker_addresses(self) -> list[tuple[str, int]]:
        brokers = self._admin.list_topics(timeout=DEADLINE_S).brokers.values()
        return [(broker.host, broker.port) for broker in brokers]

    def is_served(self, name: str, partitions: int) -> bool:
        """Whether the leader of each partition answers as such: brokers learn of a change at different times."""
        if self.partition_count(name) != partitions:
            return False
        asked = {TopicPartition(name, index): OffsetSpec.latest() for index in range(partitions)}
        try:
            for answer in self._admin.list_offsets(asked).values():
                _wait(answer)
        except Refused as refused:
            if refused.code not in NOT_SERVED:
                raise
            return False
        return True

    def create_partitions(self, name: str, total: int) -> None:
        _wait(self._admin.create_partitions([NewPartitions(name, total)])[name])

    def broker_config(self, broker: int) -> dict[str, str | None]:
        return self._config(ConfigResource.Type.BROKER, str(broker))

    def _config(self, kind: ConfigResource.Type, name: str) -> dict[str, str | None]:
        resource = ConfigResource(kind, name)
        entries = _wait(self._admin.describe_configs([resource])[resource])
        return {key: entry.value for key, entry in entries.items()}

    def topic_config(self, name: str) -> dict[str, str | None]:
        return self._config(ConfigResource.Type.TOPIC, name)

    def alter_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        _wait(self._admin.incremental_alter_configs([resource])[resource])

    def groups(self) -> set[str]:
        listed = _wait(self._admin.list_consumer_groups())
        assert not listed.errors, f"ListGroups failed: {listed.errors}"
        return {group.group_id for group in listed.valid}

    def describe_group(self, group: str) -> GroupDescription:
        description = _wait(self._admin.describe_consumer_groups([group])[group])
        members = tuple(
            GroupMember(
                member.client_id,
                frozenset(Partition(p.topic, p.partition) for p in member.assignment.topic_partitions),
            )
            for member in description.members
        )
        return GroupDescription(description.state.name.title().replace("_", ""), members)

    def delete_group(self, group: str) -> None:
        _wait(self._admin.delete_consumer_groups([group])[group])

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[Partition, int]:
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        request = ConsumerGroupTopicPartitions(group, wanted)
        answer = _wait(self._admin.list_consumer_group_offsets([request])[group])
        for p in answer.topic_partitions:
            if p.error is not None:
                raise _refused(p.error)
        return {Partition(p.topic, p.partition): p.offset for p in answer.topic_partitions if p.offset >= 0}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        wanted = [TopicPartition(p.topic, p.number, offset) for p, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(group, wanted)
        answer = _wait(self._admin.alter_consumer_group_offsets([request])[group])
        for p in answer.topic_partitions:
            if p.error is not None:
                raise _refused(p.error)

    def delete_records(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        wanted = [TopicPartition(p.topic, p.number, offset) for p, offset in offsets.items()]
        answers = self._admin.delete_records(wanted)
        return {Partition(p.topic, p.partition): _wait(f).low_watermark for p, f in answers.items()}

    def close(self) -> None:
        """Do nothing: librdkafka's admin client is closed with its object."""


class Confluent(LibraryDriver):
    name = "confluent"
    features = frozenset(
        {
            "library",
            "timestamps",
            "cooperative-sticky",
            "admin",
            "delete-groups",
            "alter-group-offsets",
            "repeated-headers",
            "error-names",
        }
    )

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, spec: ProducerSpec | None = None) -> ConfluentProducer:
        return ConfluentProducer(self._bootstrap, spec or ProducerSpec())

    def consumer(self, member: MemberSpec | None = None) -> ConfluentConsumer:
        return ConfluentConsumer(self._bootstrap, member)

    def admin(self) -> ConfluentAdmin:
        return ConfluentAdmin(self._bootstrap)

    @functools.cached_property
    def _queries(self) -> RdConsumer:
        return RdConsumer({"bootstrap.servers": self._bootstrap, "group.id": "none"})

    def watermarks(self, partition: Partition) -> tuple[int, int]:
        asked = TopicPartition(partition.topic, partition.number)
        low, high = self._queries.get_watermark_offsets(asked, timeout=DEADLINE_S, cached=False)
        return low, high

    def offset_for_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        asked = TopicPartition(partition.topic, partition.number, timestamp_ms)
        (answer,) = self._queries.offsets_for_times([asked], timeout=DEADLINE_S)
        if answer.error is not None:
            raise _refused(answer.error)
        return None if answer.offset < 0 else answer.offset
