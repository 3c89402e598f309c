"""aiokafka: asyncio, older protocol versions.

Its event loop runs in a separate thread, so that heartbeats continue while a synchronous test is busy.
"""

from __future__ import annotations

import asyncio
import functools
import io
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as aiokafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

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
)

T = TypeVar("T")

_ACKS = {"0": 0, "1": 1, "all": "all"}
_TIMESTAMP_TYPES: dict[int, TimestampType] = {0: "create", 1: "append"}


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="aiokafka", daemon=True).start()
    return loop


def _refuse(code: int | None, detail: object) -> None:
    if code:
        raise Refused(code, detail)


def _run(coroutine: Coroutine[Any, Any, T], deadline_s: float = DEADLINE_S) -> T:
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result(deadline_s)
    except aiokafka_errors.BrokerResponseError as error:
        raise Refused(error.errno, error) from error


async def _make(kind: Callable[..., T], *args: Any, **options: Any) -> T:
    """Create the object inside the event loop, as aiokafka requires."""
    made = kind(*args, **options)
    await made.start()  # type: ignore[attr-defined]
    return made


class AioProducer:
    def __init__(self, bootstrap: str, spec: ProducerSpec) -> None:
        self._producer = _run(
            _make(
                AIOKafkaProducer,
                bootstrap_servers=bootstrap,
                acks=_ACKS[spec.acks],
                compression_type=None if spec.codec == "none" else spec.codec,
                enable_idempotence=spec.idempotent,
                linger_ms=spec.linger_ms,
                max_batch_size=max(spec.batch_size_bytes, spec.max_request_size_bytes // 4),
                max_request_size=spec.max_request_size_bytes,
                metadata_max_age_ms=spec.metadata_max_age_ms,
                **spec.extra,
            )
        )
        self._sent: list[asyncio.Future[Any]] = []

    def send(self, topic: str, record: Record) -> None:
        async def send() -> None:
            self._sent.append(
                await self._producer.send(
                    topic,
                    record.value,
                    record.key,
                    record.partition,
                    record.timestamp_ms,
                    list(record.headers),
                )
            )

        _run(send())

    def flush(self) -> list[Delivery]:
        async def flush() -> list[Delivery]:
            sent, self._sent = self._sent, []
            answers = await asyncio.gather(*sent)
            return [Delivery(a.partition, a.offset) if a is not None else Delivery(-1, -1) for a in answers]

        return _run(flush())

    def close(self) -> None:
        _run(self._producer.stop())


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, assigned: Callable[..., None], revoked: Callable[..., None]) -> None:
        self._assigned = assigned
        self._revoked = revoked

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._assigned([Partition(p.topic, p.partition) for p in assigned])

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._revoked([Partition(p.topic, p.partition) for p in revoked])


class AioConsumer:
    def __init__(self, bootstrap: str, member: MemberSpec | None) -> None:
        options: dict[str, Any] = {}
        if member:
            assert member.assignor == "range", "aiokafka has no cooperative assignor"
            options = {
                "client_id": member.client_id,
                "group_instance_id": member.instance_id,
                "session_timeout_ms": member.session_timeout_ms,
                "heartbeat_interval_ms": 200,
                "partition_assignment_strategy": (RangePartitionAssignor,),
                "metadata_max_age_ms": member.metadata_max_age_ms,
            }
        self._consumer = _run(
            _make(
                AIOKafkaConsumer,
                bootstrap_servers=bootstrap,
                group_id=member.group if member else None,
                auto_offset_reset="earliest",
                enable_auto_commit=bool(member and member.commit == "auto"),
                auto_commit_interval_ms=100,
                fetch_max_wait_ms=100,
                **options,
            )
        )

    def subscribe(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[Iterable[Partition]], None],
        on_revoked: Callable[[Iterable[Partition]], None],
    ) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(list(topics), listener=_Listener(on_assigned, on_revoked))

        _run(subscribe())

    def assign(self, partition: Partition, position: Position) -> None:
        async def assign() -> None:
            wanted = TopicPartition(*partition)
            self._consumer.assign([*self._consumer.assignment(), wanted])
            if position == "beginning":
                await self._consumer.seek_to_beginning(wanted)
            elif position == "end":
                await self._consumer.seek_to_end(wanted)
            else:
                self._consumer.seek(wanted, position)

        _run(assign())

    def seek(self, partition: Partition, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(TopicPartition(*partition), offset)

        _run(seek())

    def poll(self, timeout_s: float, max_records: int = 100) -> list[Message]:
        polled = _run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=max_records))
        return [_message(record) for records in polled.values() for record in records]

    def commit(self) -> None:
        try:
            _run(self._consumer.commit())
        except aiokafka_errors.CommitFailedError as error:
            raise Refused(ErrorCode.ILLEGAL_GENERATION, error) from error

    def close(self) -> None:
        _run(self._consumer.stop())


def _message(record: Any) -> Message:
    return Message(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(tuple(header) for header in record.headers),
        record.timestamp,
        _TIMESTAMP_TYPES.get(record.timestamp_type, "unknown"),
    )


class AioAdmin:
    def __init__(self, bootstrap: str) -> None:
        self._admin = _run(_make(AIOKafkaAdminClient, bootstrap_servers=bootstrap))

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        # Unlike the other clients, this one cannot use the cluster's default replication factor.
        brokers = _run(self._admin.describe_cluster())["brokers"]
        topic = NewTopic(name, partitions, min(3, len(brokers)), topic_configs=dict(config or {}))
        for _, code, *detail in _run(self._admin.create_topics([topic])).topic_errors:
            _refuse(code, detail)

    def delete_topic(self, name: str) -> None:
        for _, code in _run(self._admin.delete_topics([name])).topic_error_codes:
            _refuse(code, name)

    def partition_count(self, name: str) -> int | None:
        topics = {topic["topic"]: topic for topic in _run(self._admin.describe_topics())}
        return len(topics[name]["partitions"]) if name in topics else None

    def create_partitions(self, name: str, total: int) -> None:
        answer = _run(self._admin.create_partitions({name: NewPartitions(total)}))
        for _, code, detail in answer.topic_errors:
            _refuse(code, detail)

    def topic_config(self, name: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        (answer,) = _run(self._admin.describe_configs([resource]))
        ((code, detail, _, _, entries),) = answer.resources
        _refuse(code, detail)
        return {entry[0]: entry[1] for entry in entries}

    def alter_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, dict(config))
        for answer in _run(self._admin.alter_configs([resource])):
            for code, detail, *_ in answer.resources:
                _refuse(code, detail)

    def groups(self) -> set[str]:
        return {group for group, _ in _run(self._admin.list_consumer_groups())}

    def describe_group(self, group: str) -> GroupDescription:
        (answer,) = _run(self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = answer.groups
        _refuse(code, group)
        described = tuple(
            GroupMember(client_id, _assignment(assignment))
            for _, client_id, _, _, assignment in (_member_fields(member) for member in members)
        )
        return GroupDescription(state, described)

    def delete_group(self, group: str) -> None:
        raise NotImplementedError("aiokafka cannot delete groups")

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[Partition, int]:
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        answer = _run(self._admin.list_consumer_group_offsets(group, partitions=wanted))
        return {Partition(p.topic, p.partition): o.offset for p, o in answer.items() if o.offset >= 0}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        raise NotImplementedError("aiokafka cannot alter the offsets of a group")

    def delete_records(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        wanted = {TopicPartition(*p): RecordsToDelete(offset) for p, offset in offsets.items()}
        answer = _run(self._admin.delete_records(wanted))
        return {Partition(p.topic, p.partition): low for p, low in answer.items()}

    def close(self) -> None:
        _run(self._admin.close())


def _member_fields(member: Sequence[Any]) -> Sequence[Any]:
    """Return member id, client id, host, metadata, assignment; newer versions have the instance id second."""
    return member if len(member) == 5 else (member[0], *member[2:])


def _assignment(encoded: bytes) -> frozenset[Partition]:
    """Decode an assignment, which aiokafka returns unparsed: version, then topics with their partitions."""
    if not encoded:
        return frozenset()
    stream = io.BytesIO(encoded)

    def number(form: str) -> int:
        (value,) = struct.unpack(form, stream.read(struct.calcsize(form)))
        return int(value)

    number(">h")
    assignment = set()
    for _ in range(number(">i")):
        topic = stream.read(number(">h")).decode()
        assignment |= {Partition(topic, number(">i")) for _ in range(number(">i"))}
    return frozenset(assignment)


class Aio(LibraryDriver):
    name = "aiokafka"
    features = frozenset({"library", "timestamps", "admin", "repeated-headers"})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, spec: ProducerSpec | None = None) -> AioProducer:
        return AioProducer(self._bootstrap, spec or ProducerSpec())

    def consumer(self, member: MemberSpec | None = None) -> AioConsumer:
        return AioConsumer(self._bootstrap, member)

    def admin(self) -> AioAdmin:
        return AioAdmin(self._bootstrap)

    def _query(self, method: str, argument: object) -> Any:
        consumer = self.consumer()
        try:
            return _run(getattr(consumer._consumer, method)(argument))
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
