"""Features of kafka-python only: sizes on disk, deleted offsets, removal of members, incremental settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from penstock_e2e.drivers.kafka_python import KafkaPython, KafkaPythonAdmin
from penstock_e2e.model import CODECS, Codec, MakeTopic, ProducerSpec, Record, eventually


@pytest.fixture
def kafka_python(bootstrap: str) -> KafkaPython:
    return KafkaPython(bootstrap)


@pytest.fixture
def admin(kafka_python: KafkaPython) -> Iterator[KafkaPythonAdmin]:
    made = kafka_python.admin()
    yield made
    made.close()


def _sizes_bytes(client: KafkaAdminClient, topic: str) -> list[int]:
    """Return the size in bytes of each replica of the topic's partitions, in all log directories of all brokers."""
    return [
        partition["partition_size"]
        for broker in client.describe_log_dirs()
        for log_dir in broker["log_dirs"]
        for described in log_dir["topics"]
        if described["name"] == topic
        for partition in described["partitions"]
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_the_log_holds_batches_as_the_producer_compressed_them(
    kafka_python: KafkaPython, admin: KafkaPythonAdmin, topic: str, codec: Codec
) -> None:
    value = b"compressible " * 5000
    kafka_python.produce(topic, [Record(value, partition=0)], ProducerSpec(codec=codec))
    sizes_bytes = _sizes_bytes(admin.client, topic)
    assert len(sizes_bytes) == min(3, len(admin.client.describe_cluster()["brokers"]))
    for size_bytes in sizes_bytes:
        if codec == "none":
            assert len(value) < size_bytes < len(value) + 500
        else:
            assert 100 < size_bytes < len(value) // 5


def test_the_offsets_of_single_partitions_are_deleted(
    admin: KafkaPythonAdmin, make_topic: MakeTopic, fresh_name: Callable[[], str]
) -> None:
    topic, group = make_topic(2), fresh_name()
    partitions = [TopicPartition(topic, index) for index in range(2)]
    offsets = {partition: OffsetAndMetadata(5, "kept", -1) for partition in partitions}
    answers = admin.client.alter_group_offsets(group, offsets)
    assert [error.errno for error in answers.values()] == [0, 0]
    admin.client.delete_group_offsets(group, partitions[:1])
    left = admin.client.list_group_offsets(group)[group]
    assert {p: (o.offset, o.metadata) for p, o in left.items()} == {partitions[1]: (5, "kept")}


def test_settings_are_appended_to_subtracted_from_and_reset_one_by_one(
    admin: KafkaPythonAdmin, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"cleanup.policy": "delete", "retention.ms": "60000"})

    def alter(name: str, operation: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: (operation, value)})
        assert admin.client.alter_configs([resource]) == {"topic": {topic: "OK"}}

    def policies() -> set[str]:
        return set((admin.topic_config(topic)["cleanup.policy"] or "").split(","))

    alter("cleanup.policy", "APPEND", "compact")
    eventually("both policies", lambda: policies() == {"delete", "compact"})
    alter("cleanup.policy", "SUBTRACT", "delete")
    eventually("one policy", lambda: policies() == {"compact"})
    assert admin.topic_config(topic)["retention.ms"] == "60000"
    admin.client.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None})])
    eventually("the default", lambda: admin.topic_config(topic)["retention.ms"] != "60000")
    assert policies() == {"compact"}


def test_settings_are_only_checked_when_that_is_asked_for(admin: KafkaPythonAdmin, topic: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1234567"})
    assert admin.client.alter_configs([resource], validate_only=True) == {"topic": {topic: "OK"}}
    assert admin.topic_config(topic)["retention.ms"] != "1234567"


def test_a_topic_is_only_checked_when_that_is_asked_for(admin: KafkaPythonAdmin, fresh_name: Callable[[], str]) -> None:
    name = fresh_name()
    admin.client.create_topics({name: {"num_partitions": 2, "replication_factor": 1}}, validate_only=True)
    assert admin.partition_count(name) is None
    with pytest.raises(kafka_errors.InvalidReplicationFactorError):
        admin.client.create_topics({name: {"num_partitions": 1, "replication_factor": 4}}, validate_only=True)


def test_a_topic_is_created_with_the_replicas_that_are_asked_for(
    admin: KafkaPythonAdmin, fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    (broker, *_) = [broker["broker_id"] for broker in admin.client.describe_cluster()["brokers"]]
    admin.client.create_topics({name: {"assignments": {0: [broker], 1: [broker]}}})
    eventually("the topic to be described", lambda: admin.partition_count(name) == 2)
    (described,) = admin.client.describe_topics([name])
    assert [p["replica_nodes"] for p in described["partitions"]] == [[broker], [broker]]
    admin.delete_topic(name)


def test_a_consumer_that_subscribes_by_pattern_finds_its_topics(
    kafka_python: KafkaPython, bootstrap: str, make_topic: MakeTopic, fresh_name: Callable[[], str]
) -> None:
    topics = {make_topic(), make_topic()}
    prefix = min(topics).rpartition("-")[0]
    for topic in topics:
        kafka_python.produce(topic, [Record(b"record", partition=0)])
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=fresh_name(),
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
        # The client loses its metadata request if it subscribes while an older request is in flight.
        metadata_max_age_ms=1000,
    )
    seen: set[str] = set()

    def poll() -> bool:
        seen.update(partition.topic for partition in consumer.poll(timeout_ms=100))
        return seen >= topics

    try:
        consumer.subscribe(pattern=f"^{prefix}-.*")
        eventually("records of both topics", poll)
    finally:
        consumer.close(autocommit=False)
