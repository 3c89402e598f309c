"""Features of confluent-kafka only: offsets by kind from its admin client, commits with metadata, fencing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from penstock_e2e.drivers.confluent import Confluent
from penstock_e2e.model import (
    DEADLINE_S,
    Codec,
    ErrorCode,
    MakeTopic,
    Partition,
    ProducerSpec,
    Record,
    eventually,
)

BASE_MS = 1_700_000_000_000


@pytest.fixture
def confluent(bootstrap: str) -> Confluent:
    return Confluent(bootstrap)


MakeConsumer = Callable[..., Consumer]


@pytest.fixture
def make_consumer(bootstrap: str) -> Iterator[MakeConsumer]:
    made = []

    def make(group: str, **options: object) -> Consumer:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 100,
        }
        consumer = Consumer(config | {name.replace("_", "."): value for name, value in options.items()})
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def _poll(consumer: Consumer) -> Any:
    message: Any = eventually("a message", lambda: consumer.poll(0.1))
    assert message.error() is None, message.error()
    return message


def test_the_admin_client_lists_first_last_and_youngest_offsets(
    confluent: Confluent, bootstrap: str, topic: str
) -> None:
    times = [BASE_MS, BASE_MS + 9000, BASE_MS + 3000]
    records = [Record(b"record", partition=0, timestamp_ms=time) for time in times]
    confluent.produce(topic, records, ProducerSpec(linger_ms=100))
    admin, partition = AdminClient({"bootstrap.servers": bootstrap}), TopicPartition(topic, 0)
    expected = [
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 3),
        (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(BASE_MS + 1), 1),
    ]
    for spec, offset in expected:
        answer = admin.list_offsets({partition: spec})[partition].result(DEADLINE_S)
        assert answer.offset == offset, spec


def test_the_cluster_describes_itself(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert cluster.cluster_id
    assert cluster.controller.id in {node.id for node in cluster.nodes}


def test_a_commit_keeps_its_metadata(topic: str, make_consumer: MakeConsumer, fresh_name: Callable[[], str]) -> None:
    group = fresh_name()
    make_consumer(group).commit(offsets=[TopicPartition(topic, 0, 7, metadata="why it is seven")], asynchronous=False)
    (committed,) = make_consumer(group).committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
    assert (committed.offset, committed.metadata) == (7, "why it is seven")


def test_what_was_never_committed_has_no_offset(
    topic: str, make_consumer: MakeConsumer, fresh_name: Callable[[], str]
) -> None:
    (committed,) = make_consumer(fresh_name()).committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
    assert committed.offset < 0


def test_a_commit_from_outside_a_running_group_is_fenced(
    confluent: Confluent, topic: str, make_consumer: MakeConsumer, fresh_name: Callable[[], str]
) -> None:
    group = fresh_name()
    member, outsider = make_consumer(group), make_consumer(group)
    member.subscribe([topic])
    confluent.produce(topic, [Record(b"record", partition=0)])
    _poll(member)
    with pytest.raises(KafkaException) as refused:
        outsider.commit(offsets=[TopicPartition(topic, 0, 9)], asynchronous=False)
    assert refused.value.args[0].code() == ErrorCode.UNKNOWN_MEMBER_ID
    member.commit(asynchronous=False)
    (committed,) = member.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
    assert committed.offset == 1


def test_a_second_holder_of_an_instance_id_fences_the_first(
    confluent: Confluent, topic: str, make_consumer: MakeConsumer, fresh_name: Callable[[], str]
) -> None:
    group = fresh_name()
    first = make_consumer(group, group_instance_id="one")
    first.subscribe([topic])
    confluent.produce(topic, [Record(b"record", partition=0)])
    _poll(first)
    second = make_consumer(group, group_instance_id="one")
    second.subscribe([topic])
    _poll(second)

    errors: list[int] = []

    def fenced() -> bool:
        message = first.poll(0.1)
        error = message.error() if message is not None else None
        if error is not None:
            errors.append(error.code())
        return KafkaError.FENCED_INSTANCE_ID in errors or KafkaError._FATAL in errors

    eventually("the first holder to be fenced", fenced)


def test_a_paused_partition_waits_and_the_others_go_on(
    confluent: Confluent, make_topic: MakeTopic, make_consumer: MakeConsumer, fresh_name: Callable[[], str]
) -> None:
    topic = make_topic(2)
    consumer = make_consumer(fresh_name())
    partitions = [TopicPartition(topic, index, 0) for index in range(2)]
    consumer.assign(partitions)
    consumer.pause(partitions[:1])
    confluent.produce(topic, [Record(f"{p}".encode(), partition=p) for p in (0, 1, 1, 1)])
    assert [_poll(consumer).partition() for _ in range(3)] == [1, 1, 1]
    consumer.resume(partitions[:1])
    assert _poll(consumer).partition() == 0


def test_a_subscription_by_pattern_takes_up_topics_created_later(
    confluent: Confluent, make_topic: MakeTopic, make_consumer: MakeConsumer, fresh_name: Callable[[], str]
) -> None:
    first = make_topic()
    consumer = make_consumer(fresh_name(), topic_metadata_refresh_interval_ms=200)
    consumer.subscribe([f"^{first.rpartition('-')[0]}-.*"])
    confluent.produce(first, [Record(b"first", partition=0)])
    assert _poll(consumer).topic() == first
    later = make_topic()
    confluent.produce(later, [Record(b"later", partition=0)])
    # Nothing was committed, so the rebalance may deliver the first record again.
    eventually("the later topic's record", lambda: _poll(consumer).topic() == later)


def test_the_broker_keeps_what_compression_saved_until_it_is_read(confluent: Confluent, topic: str) -> None:
    """A megabyte that compresses well passes through a topic with a batch limit of 20 kB."""
    partition = Partition(topic, 0)
    confluent.admin().alter_topic_config(topic, {"max.message.bytes": "20000"})
    value = b"compressible " * 80_000
    codecs: tuple[Codec, ...] = ("gzip", "lz4", "zstd")
    for codec in codecs:
        spec = ProducerSpec(codec=codec, max_request_size_bytes=2_000_000)
        confluent.produce(topic, [Record(value, partition=0)], spec)
    assert [m.value for m in confluent.read(partition, "beginning", 3)] == [value] * 3
