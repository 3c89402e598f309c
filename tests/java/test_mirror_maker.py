"""MirrorMaker 2 between Apache Kafka and Penstock, in both directions: records, topic settings, group offsets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from penstock_e2e.broker import cluster
from penstock_e2e.model import eventually
from penstock_e2e.process import wait_until
from penstock_java.applications import start

sys.path.append(str(Path(__file__).parents[2]))  # `bench`

from bench.peers.kafka import Kafka

RECORDS = 200
LIMIT_S = 120.0
PASSING = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
RETENTION_MS = "123456789"
_BROKER = "group.initial.rebalance.delay.ms=0\noffsets.topic.num.partitions=4\n"
_SETTINGS = """clusters=apache,penstock
apache.bootstrap.servers={apache}
penstock.bootstrap.servers={penstock}
apache.plugin.discovery=service_load
penstock.plugin.discovery=service_load
apache->penstock.enabled=true
penstock->apache.enabled=true
apache->penstock.topics=to-penstock
penstock->apache.topics=to-apache
groups=readers-.*
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
sync.topic.acls.enabled=false
sync.topic.configs.interval.seconds=1
apache->penstock.use.defaults.from={defaults}
penstock->apache.use.defaults.from={defaults}
refresh.topics.interval.seconds=1
refresh.groups.interval.seconds=1
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
emit.checkpoints.interval.seconds=1
offset.lag.max=0
consumer.auto.offset.reset=earliest
tasks.max=1
"""


class Retention(NamedTuple):
    """`retention.ms` of a topic, and whether it is set on the topic itself."""

    value: str
    is_set: bool


class Side:
    """An administrator's client of one of the two clusters."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()

    def fill(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(RECORDS):
            producer.produce(topic, str(number), f"key-{number}")
        assert producer.flush(30) == 0

    def alter(self, topic: str, name: str, value: str, operation: AlterConfigOpType = AlterConfigOpType.SET) -> None:
        """Set or delete a setting of a topic."""
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        next(iter(self.admin.incremental_alter_configs([resource]).values())).result()

    def retention(self, topic: str) -> Retention | None:
        """Return retention.ms of a topic; None while the topic does not exist."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            entry = next(iter(self.admin.describe_configs([resource]).values())).result()["retention.ms"]
        except KafkaException:
            return None
        return Retention(entry.value, entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value)

    def values(self, topic: str) -> list[str]:
        """Return the values in partition 0 of a topic, up to the current end; empty while the topic does not exist."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "values", "enable.auto.commit": False})
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
            consumer.assign([TopicPartition(topic, 0, 0)])
            found: list[str] = []
            while len(found) < end and (message := consumer.poll(5)) is not None:
                found.append((message.value() or b"").decode())
            return found
        except KafkaException:
            return []
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offset: int) -> None:
        """Commit an offset of partition 0; the first commit may have to wait for the group's coordinator."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        eventually(f"a commit of {group}", lambda: self._commits(consumer, TopicPartition(topic, 0, offset)))
        consumer.close()

    @staticmethod
    def _commits(consumer: Consumer, offset: TopicPartition) -> bool:
        try:
            consumer.commit(offsets=[offset], asynchronous=False)
        except KafkaException as refused:
            if refused.args[0].name() not in PASSING:
                raise
            return False
        return True

    def committed(self, group: str, topic: str) -> int | None:
        """Return the committed offset of partition 0 of a topic; None if there is none."""
        requested = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        try:
            answer = next(iter(self.admin.list_consumer_group_offsets([requested]).values())).result()
        except KafkaException:
            return None
        offset = answer.topic_partitions[0].offset
        return offset if offset >= 0 else None


class Flow(NamedTuple):
    """A topic and a group that are mirrored from one cluster to the other."""

    source: Side
    target: Side
    topic: str
    copy: str

    @property
    def group(self) -> str:
        return f"readers-{self.topic}"

    def fill(self) -> None:
        self.source.create(self.topic)
        self.source.fill(self.topic)
        self.source.alter(self.topic, "retention.ms", RETENTION_MS)
        self.source.commit(self.group, self.topic, RECORDS)

    def has_records(self) -> bool:
        return self.target.values(self.copy) == [str(number) for number in range(RECORDS)]

    def has_setting(self) -> bool:
        return self.target.retention(self.copy) == Retention(RETENTION_MS, is_set=True)

    def has_offset(self) -> bool:
        return self.target.committed(self.group, self.copy) == RECORDS

    def has_default_of_target(self) -> bool:
        found = self.target.retention(self.copy)
        return found is not None and not found.is_set and found.value != RETENTION_MS

    def has_default_of_source(self) -> bool:
        default = self.source.retention(self.topic)
        return default is not None and self.target.retention(self.copy) == Retention(default.value, is_set=True)


@pytest.fixture
def apache_kafka(tmp_path: Path) -> Iterator[str]:
    """The address of an Apache Kafka of one node."""
    home = tmp_path / "apache"
    home.mkdir()
    service = Kafka(properties=_BROKER, jvm_flags=["-Xms256m"]).service(os.sched_getaffinity(0), home)
    try:
        service.start()
        yield service.address
    finally:
        service.remove()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("defaults", ["target", "source"])
@pytest.mark.xdist_group("java-applications")
def test_records_settings_and_offsets_are_mirrored_both_ways(
    apache_kafka: str, kafka_applications: str, defaults: str, tmp_path: Path
) -> None:
    with cluster(tmp_path / "penstock", 1) as address:
        apache, penstock = Side(apache_kafka), Side(address)
        flows = (
            Flow(apache, penstock, "to-penstock", "apache.to-penstock"),
            Flow(penstock, apache, "to-apache", "penstock.to-apache"),
        )
        for flow in flows:
            flow.fill()
        penstock.alter("to-apache", "penstock.owner", "a setting that Kafka does not have")
        settings = tmp_path / "mirror.properties"
        settings.write_text(_SETTINGS.format(apache=apache_kafka, penstock=address, defaults=defaults))
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        with start(kafka_applications, main, [str(settings)], tmp_path / "mirror.log") as mirror:

            def wait(what: str, condition: Callable[[Flow], bool]) -> None:
                for flow in flows:
                    wait_until(f"{what} of {flow.topic}", lambda flow=flow: condition(flow), LIMIT_S, mirror)

            wait("the records", Flow.has_records)
            wait("retention.ms", Flow.has_setting)
            wait("the group's offset", Flow.has_offset)
            # If a setting returns to its default, MirrorMaker deletes it at the target or sets it to the source's
            # default. It does the same with all other settings of the topic, which the target may not support.
            for flow in flows:
                flow.source.alter(flow.topic, "retention.ms", "", AlterConfigOpType.DELETE)
            expected = Flow.has_default_of_target if defaults == "target" else Flow.has_default_of_source
            wait("the default of retention.ms", expected)
            mirror.stop()
