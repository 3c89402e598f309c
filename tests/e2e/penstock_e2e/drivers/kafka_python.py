"""kafka-python 3: the protocol in pure Python, with its own generated codecs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor

from penstock_e2e.model import (
    DEADLINE_S,
    Delivery,
    ErrorCode,
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
    eventually,
)

_ACKS = {"0": 0, "1": 1, "all": "all"}
_ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
_TIMESTAMP_TYPES: dict[int, TimestampType] = {0: "create", 1: "append"}


def _refused(error: Exception) -> Exception:
    code = getattr(error, "errno", None)
    return Refused(code, error) if isinstance(code, int) else error


def _call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except kafka_errors.KafkaError as error:
        raise _refused(error) from error


class KafkaPythonProducer:
    def __init__(self, bootstrap: str, spec: ProducerSpec) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=_ACKS[spec.acks],
            compression_type=None if spec.codec == "none" else spec.codec,
            enable_idempotence=spec.idempotent,
            linger_ms=spec.linger_ms,
            batch_size=spec.batch_size_bytes,
            max_request_size=spec.max_request_size_bytes,
            metadata_max_age_ms=spec.metadata_max_age_ms,
            **spec.extra,
        )
        self._futures: list[Any] = []

    def send(self, topic: str, record: Record) -> None:
        self._futures.append(
            _call(
                self._producer.send,
                topic,
                record.value,
                record.key,
                list(record.headers),
                record.partition,
                record.timestamp_ms,
            )
        )

    def flush(self) -> list[Delivery]:
        self._producer.flush(DEADLINE_S)
        futures, self._futures = self._futures, []
        answers = [_call(future.get, DEADLINE_S) for future in futures]
        return [Delivery(answer.partition, answer.offset) for answer in answers]

    def close(self) -> None:
        self._producer.close(DEADLINE_S)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, assigned: Callable[..., None], revoked: Callable[..., None]) -> None:
        self._assigned = assigned
        self._revoked = revoked

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._assigned([Partition(p.topic, p.partition) for p in assigned])

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._revoked([Partition(p.topic, p.partition) for p in revoked])


class KafkaPythonConsumer:
    def __init__(self, bootstrap: str, member: MemberSpec | None) -> None:
        options: dict[str, Any] = {}
        self._least_poll_s = 2.0 if member else 0.0
        if member:
            options = {
                "client_id": member.client_id,
                "group_instance_id": member.instance_id,
                "session_timeout_ms": member.session_timeout_ms,
                "heartbeat_interval_ms": 200,
                "partition_assignment_strategy": (_ASSIGNORS[member.assignor],),
                "metadata_max_age_ms": member.metadata_max_age_ms,
            }
        self._consumer = KafkaConsumer(
            *(member.topics if member else ()),
            bootstrap_servers=bootstrap,
            group_id=member.group if member else None,
            auto_offset_reset="earliest",
            enable_auto_commit=bool(member and member.commit == "auto"),
            auto_commit_interval_ms=100,
            fetch_max_wait_ms=100,
            **options,
        )

    def subscribe(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[Iterable[Partition]], None],
        on_revoked: Callable[[Iterable[Partition]], None],
    ) -> None:
        """Subscribe after the topics' metadata is known. As group leader, kafka-python 3.0.12 assigns nothing of a
        topic it does not know, and metadata that arrives while it joins does not make it rejoin. For the same reason
        its constructor receives the topics: no late answer may lack them."""
        for topic in topics:
            eventually(f"metadata of {topic}", partial(self._consumer.partitions_for_topic, topic))
        self._consumer.subscribe(list(topics), listener=_Listener(on_assigned, on_revoked))

    def assign(self, partition: Partition, position: Position) -> None:
        wanted = TopicPartition(*partition)
        self._consumer.assign([*self._consumer.assignment(), wanted])
        if position == "beginning":
            self._consumer.seek_to_beginning(wanted)
        elif position == "end":
            self._consumer.seek_to_end(wanted)
        else:
            self._consumer.seek(wanted, position)

    def seek(self, partition: Partition, offset: int) -> None:
        self._consumer.seek(TopicPartition(*partition), offset)

    def poll(self, timeout_s: float, max_records: int = 100) -> list[Message]:
        """Poll; a group member polls for at least `_least_poll_s`. With polls of 100 ms on a busy machine, kafka-python
        3.0.12 sometimes stops permanently between the answer to JoinGroup and its SyncGroup, with Apache Kafka too."""
        timeout_ms = int(max(timeout_s, self._least_poll_s) * 1000)
        polled = _call(self._consumer.poll, timeout_ms=timeout_ms, max_records=max_records)
        return [_message(record) for records in polled.values() for record in records]

    def commit(self) -> None:
        try:
            _call(self._consumer.commit)
        except kafka_errors.CommitFailedError as error:
            raise Refused(ErrorCode.ILLEGAL_GENERATION, error) from error

    def close(self) -> None:
        self._consumer.close()


def _message(record: Any) -> Message:
    return Message(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(tuple(header) for header in record.headers or ()),
        record.timestamp,
        _TIMESTAMP_TYPES.get(record.timestamp_type, "unknown"),
    )


class KafkaPythonAdmin:
    def __init__(self, bootstrap: str) -> None:
        self.client = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        topic = {"num_partitions": partitions, "replication_factor": -1, "configs": dict(config or {})}
        _call(self.client.create_topics, {name: topic})

    def delete_topic(self, name: str) -> None:
        _call(self.client.delete_topics, [name])

    def partition_count(self, name: str) -> int | None:
        topics = {topic["name"]: topic for topic in _call(self.client.describe_topics)}
        return len(topics[name]["partitions"]) if name in topics else None

    def create_partitions(self, name: str, total: int) -> None:
        _call(self.client.create_partitions, {name: total})

    def topic_config(self, name: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        entries = _call(self.client.describe_configs, [resource], config_filter="all")["topic"][name]
        return {key: entry["value"] for key, entry in entries.items()}

    def alter_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        """Change topic settings. The client validates names against the broker's description."""
        resource = ConfigResource(ConfigResourceType.TOPIC, name, dict(config))
        answer = _call(self.client.alter_configs, [resource], raise_on_unknown=False)["topic"][name]
        if answer != "OK":
            found = re.match(r"\[Error (\d+)\]", answer)
            assert found, f"AlterConfigs was answered with {answer!r}"
            raise Refused(int(found[1]), answer)

    def groups(self) -> set[str]:
        return {group["group_id"] for group in _call(self.client.list_groups)}

    def describe_group(self, group: str) -> GroupDescription:
        description = _call(self.client.describe_groups, [group])[group]
        members = tuple(
            GroupMember(member["client_id"], _assignment(member["member_assignment"]))
            for member in description["members"]
        )
        return GroupDescription(str(description["group_state"]), members)

    def delete_group(self, group: str) -> None:
        answer = _call(self.client.delete_groups, [group])[group]
        if answer != "OK":
            raise _refused(getattr(kafka_errors, answer)())

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[Partition, int]:
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        answer = _call(self.client.list_group_offsets, {group: wanted})[group]
        return {Partition(p.topic, p.partition): o.offset for p, o in answer.items() if o.offset >= 0}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        wanted = {TopicPartition(*p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
        for error in _call(self.client.alter_group_offsets, group, wanted).values():
            if error.errno != 0:
                raise _refused(error())

    def delete_records(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        wanted = {TopicPartition(*p): offset for p, offset in offsets.items()}
        answer = _call(self.client.delete_records, wanted)
        return {Partition(p.topic, p.partition): result["low_watermark"] for p, result in answer.items()}

    def close(self) -> None:
        self.client.close()


def _assignment(decoded: Any) -> frozenset[Partition]:
    if not decoded:
        return frozenset()
    return frozenset(
        Partition(topic["topic"], index) for topic in decoded["assigned_partitions"] for index in topic["partitions"]
    )


class KafkaPython(LibraryDriver):
    name = "kafka-python"
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

    def producer(self, spec: ProducerSpec | None = None) -> KafkaPythonProducer:
        return KafkaPythonProducer(self._bootstrap, spec or ProducerSpec())

    def consumer(self, member: MemberSpec | None = None) -> KafkaPythonConsumer:
        return KafkaPythonConsumer(self._bootstrap, member)

    def admin(self) -> KafkaPythonAdmin:
        return KafkaPythonAdmin(self._bootstrap)

    def _query(self, method: str, argument: object) -> Any:
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap)
        try:
            return _call(getattr(consumer, method), argument)
        finally:
            consumer.close()

    def watermarks(self, partition: Partition) -> tuple[int, int]:
        asked = TopicPartition(*partition)
        low = self._query("beginning_offsets", [asked])[asked]
        return low, self._query("end_offsets", [asked])[asked]

    def offset_for_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        asked = TopicPartition(*partition)
        answer = self._query("offsets_for_times", {asked: timestamp_ms})[asked]
        return None if answer is None else answer.offset
