"""MirrorMaker 2 between Apache Kafka and Penstock, both ways: records, topic settings, group offsets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from penstock_e2e.broker import cluster
from penstock_e2e.model import eventually
from penstock_java.applications import Application, wait_until

sys.path.append(str(Path(__file__).parents[2]))  # `bench`

from bench.peers.kafka import Kafka

RECORDS = 200
LIMIT_S = 180.0
PASSING = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
RETENTION_MS, DEFAULT_RETENTION_MS = "123456789", "604800000"
_SETTINGS = """clusters=apache,penstock
apache.bootstrap.servers={apache}
penstock.bootstrap.servers={penstock}
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
refresh.topics.interval.seconds=1
refresh.groups.interval.seconds=1
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
emit.checkpoints.interval.seconds=1
offset.lag.max=0
consumer.auto.offset.reset=earliest
tasks.max=1
"""


class Side:
    """One of the two clusters, as an administrator sees it."""

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

    def alter(self, topic: str, operation: AlterConfigOpType) -> None:
        """Set or delete retention.ms of a topic."""
        entry = ConfigEntry("retention.ms", RETENTION_MS, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        next(iter(self.admin.incremental_alter_configs([resource]).values())).result()

    def retention(self, topic: str) -> str | None:
        """retention.ms of a topic; None while the topic does not exist."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            return next(iter(self.admin.describe_configs([resource]).values())).result()["retention.ms"].value
        except KafkaException:
            return None

    def values(self, topic: str) -> list[str]:
        """The values in partition 0 of a topic, up to the end that holds now; empty while the topic does not exist."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "values", "auto.offset.reset": "earliest"}
        )
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
        """Commit an offset of partition 0; the first one may have to wait until the group has a coordinator."""
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
        """The committed offset of partition 0 of a topic; None if there is none."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        try:
            answer = next(iter(self.admin.list_consumer_group_offsets([asked]).values())).result()
        except KafkaException:
            return None
        offset = answer.topic_partitions[0].offset
        return offset if offset >= 0 else None


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("java-applications")
def test_records_settings_and_offsets_are_mirrored_both_ways(kafka_applications: str, tmp_path: Path) -> None:
    work = tmp_path / "apache"
    work.mkdir()
    apache_kafka = Kafka().service(os.sched_getaffinity(0), work)
    try:
        apache_kafka.start()
        with cluster(tmp_path / "penstock", 1) as address:
            apache, penstock = Side(apache_kafka.address), Side(address)
            settings = tmp_path / "mirror.properties"
            settings.write_text(_SETTINGS.format(apache=apache.bootstrap, penstock=penstock.bootstrap))
            ways = ((apache, penstock, "to-penstock", "apache"), (penstock, apache, "to-apache", "penstock"))
            for source, _, topic, _ in ways:
                source.create(topic)
                source.fill(topic)
                source.alter(topic, AlterConfigOpType.SET)
                source.commit(f"readers-{topic}", topic, RECORDS)
            main = "org.apache.kafka.connect.mirror.MirrorMaker"
            with Application(kafka_applications, main, [str(settings)], tmp_path / "mirror.log") as mirror:

                def wait(what: str, condition: Callable[[], bool]) -> None:
                    wait_until(what, condition, LIMIT_S, mirror)

                expected = [str(number) for number in range(RECORDS)]
                for source, target, topic, alias in ways:
                    copy, group = f"{alias}.{topic}", f"readers-{topic}"
                    wait(f"the records of {topic}", lambda t=target, c=copy: t.values(c) == expected)
                    wait(f"retention.ms of {topic}", lambda t=target, c=copy: t.retention(c) == RETENTION_MS)
                    wait(
                        f"the offset of {group}",
                        lambda t=target, c=copy, g=group: t.committed(g, c) == RECORDS,
                    )
                    # A setting that goes back to its default is deleted at the target, among others it may not know.
                    source.alter(topic, AlterConfigOpType.DELETE)
                    wait(f"the default of {topic}", lambda t=target, c=copy: t.retention(c) == DEFAULT_RETENTION_MS)
                mirror.stop()
    finally:
        apache_kafka.remove()
