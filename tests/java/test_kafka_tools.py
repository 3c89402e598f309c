"""Apache Kafka's command-line tools administer a cluster, and exit with code 0 as they do on Kafka."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from penstock_e2e.broker import cluster
from penstock_e2e.model import eventually
from penstock_java.kafka_tools import KafkaTools, segments

BootstrapOf = Callable[[int], str]
RATES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


pytestmark = pytest.mark.xdist_group("java-3")


@pytest.fixture
def tools(bootstrap_of: BootstrapOf) -> KafkaTools:
    return KafkaTools(bootstrap_of(3))


def produce(bootstrap: str, topic: str, count: int, transactional_id: str | None = None) -> None:
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    producer = Producer(settings)
    if transactional_id is not None:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, key=f"k{number}", value=f"v{number}", headers=[("h", b"1")])
    if transactional_id is not None:
        producer.commit_transaction(30)
    else:
        assert producer.flush(30) == 0


@pytest.mark.timeout(300)
def test_topics_are_made_listed_described_altered_and_deleted(tools: KafkaTools) -> None:
    settings = ["cleanup.policy= delete , compact ", "remote.storage.enable=false", "compression.zstd.level=3"]
    configs = [word for setting in settings for word in ("--config", setting)]
    tools.run("topics", "--create", "--topic", "tooled", "--partitions", "2", *configs)
    assert "tooled" in tools.run("topics", "--list", "--exclude-internal").split()
    described = tools.run("topics", "--describe", "--topic", "tooled")
    assert "PartitionCount: 2" in described
    assert "cleanup.policy=delete,compact" in described
    tools.run("topics", "--alter", "--topic", "tooled", "--partitions", "3")
    assert "PartitionCount: 3" in tools.run("topics", "--describe", "--topic", "tooled", "--exclude-internal")
    refused = tools.attempt("topics", "--create", "--topic", "nope", "--config", "x=1")
    assert refused.returncode == 1
    assert "Unknown topic config name: x" in refused.stdout + refused.stderr
    refused = tools.attempt("topics", "--create", "--topic", "__consumer_offsets")
    assert refused.returncode == 1
    assert "prohibited" in refused.stdout + refused.stderr
    tools.run("topics", "--delete", "--topic", "tooled")


@pytest.mark.timeout(400)
def test_settings_of_every_kind_are_described_and_changed(tools: KafkaTools) -> None:
    topic, broker = "set", ("--entity-type", "brokers", "--entity-name", "0")
    tools.run("topics", "--create", "--topic", topic)

    def alter(kind: str, name: str, *changes: str) -> None:
        where = ["--entity-default"] if not name else ["--entity-name", name]
        tools.run("configs", "--alter", "--entity-type", kind, *where, *changes)

    alter("topics", topic, "--add-config", "retention.ms=5000,cleanup.policy=[compact, delete]")
    alter("topics", topic, "--delete-config", "retention.ms")
    alter("topics", topic, "--add-config", "penstock.record.validation=all")
    described = tools.run("configs", "--describe", "--entity-type", "topics", "--entity-name", topic)
    assert "penstock.record.validation=all" in described
    assert "cleanup.policy=compact,delete" in described
    assert "retention.ms" not in described
    alter("brokers", "0", "--add-config", "log.cleaner.threads=1,log.retention.ms=777000")
    assert "log.retention.ms=777000" in tools.run("configs", "--describe", *broker)
    alter("brokers", "0", "--delete-config", "log.cleaner.threads,log.retention.ms")
    alter("brokers", "", "--add-config", "message.max.bytes=2000000")
    alter("brokers", "", "--delete-config", "message.max.bytes")
    everything = tools.run("configs", "--describe", "--all", *broker)
    assert "offsets.topic.num.partitions=64" in everything
    assert "ssl.keystore.password=null sensitive=true" in everything
    alter("broker-loggers", "0", "--add-config", "root=INFO")
    assert "root=INFO" in tools.run("configs", "--describe", "--entity-type", "broker-loggers", "--entity-name", "0")
    alter("groups", "set-group", "--add-config", "consumer.session.timeout.ms=45000")
    alter("groups", "set-group", "--delete-config", "consumer.session.timeout.ms")
    tools.run("configs", "--describe", "--entity-type", "client-metrics", "--entity-name", "m")


@pytest.mark.timeout(300)
def test_groups_are_listed_described_reset_and_deleted(tools: KafkaTools) -> None:
    topic, group = "read", "tooled-group"
    tools.run("topics", "--create", "--topic", topic, "--partitions", "1")
    produce(tools.bootstrap, topic, 5)
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "2"]
    tools.run("consumer-groups", *reset, "--execute")
    assert group in tools.run("consumer-groups", "--list").split()
    described = tools.run("consumer-groups", "--describe", "--group", group, "--offsets")
    row = next(line.split() for line in described.splitlines() if line.split()[:2] == [group, topic])
    assert row[2:6] == ["0", "2", "5", "3"]
    assert "Empty" in tools.run("consumer-groups", "--describe", "--group", group, "--state")
    tools.run("consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
    tools.run("consumer-groups", "--delete", "--group", group)


@pytest.mark.timeout(300)
def test_transactions_are_listed_and_described(tools: KafkaTools) -> None:
    topic, transactional_id = "in-txn", "tooled-txn"
    tools.run("topics", "--create", "--topic", topic, "--partitions", "1")
    produce(tools.bootstrap, topic, 3, transactional_id)
    assert transactional_id in tools.run("transactions", "list")
    assert "CompleteCommit" in tools.run("transactions", "describe", "--transactional-id", transactional_id)
    producers = tools.run("transactions", "describe-producers", "--topic", topic, "--partition", "0")
    assert len(producers.splitlines()) == 2
    tools.run("transactions", "find-hanging", "--topic", topic)


@pytest.mark.timeout(400)
def test_partitions_move_under_a_throttle_that_verify_and_cancel_take_away(tools: KafkaTools, tmp_path: Path) -> None:
    plan, topic = tmp_path / "plan.json", f"moved-{uuid4().hex[:8]}"
    tools.run("topics", "--create", "--topic", topic, "--replica-assignment", "0:1")
    produce(tools.bootstrap, topic, 10)

    def write(replicas: list[int]) -> None:
        partitions = [{"topic": topic, "partition": 0, "replicas": replicas}]
        plan.write_text(json.dumps({"version": 1, "partitions": partitions}))

    admin = AdminClient({"bootstrap.servers": tools.bootstrap})

    def throttles() -> dict[str, str]:
        resources = [ConfigResource(ConfigResource.Type.BROKER, str(n)) for n in range(3)]
        resources.append(ConfigResource(ConfigResource.Type.TOPIC, topic))
        described = [f.result() for each in resources for f in admin.describe_configs([each]).values()]
        entries = [entry for found in described for entry in found.values() if not entry.is_default]
        return {e.name: e.value for e in entries if e.name in RATES or e.name.endswith(".throttled.replicas")}

    def replicas() -> list[int]:
        return sorted(admin.list_topics(topic, timeout=10).topics[topic].partitions[0].replicas)

    reassign = ["--reassignment-json-file", str(plan)]
    throttle = ["--throttle", "1000000", "--replica-alter-log-dirs-throttle", "1000000"]
    write([1, 2])
    executed = tools.run("reassign-partitions", "--execute", *reassign, *throttle)
    assert "Successfully started partition reassignment" in executed

    eventually("the replicas to have moved", lambda: replicas() == [1, 2])
    assert "is completed" in tools.run("reassign-partitions", "--verify", *reassign)
    assert throttles() == {}
    write([2, 0])
    tools.run("reassign-partitions", "--execute", *reassign, *throttle)
    tools.run("reassign-partitions", "--cancel", *reassign)
    assert throttles() == {}


@pytest.mark.timeout(300)
def test_segments_are_dumped_record_by_record(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as bootstrap:
        produce(bootstrap, "dumped", 3)
        produce(bootstrap, "dumped", 2, "dumped-txn")
        files = [path for path in segments(tmp_path) if path.stat().st_size]
        tools = KafkaTools(bootstrap)
        names = ",".join(map(str, files))
        dumped = tools.run("dump-log", "--files", names, "--print-data-log", "--deep-iteration")
    lines = dumped.splitlines()
    assert sum("payload: v" in line for line in lines) == 5
    assert sum("endTxnMarker: COMMIT" in line for line in lines) >= 1
    assert "isvalid: false" not in dumped


@pytest.mark.timeout(300)
def test_every_setting_that_kafka_defines_is_described_with_its_type(tools: KafkaTools) -> None:
    tools.run("topics", "--create", "--topic", "defined", "--if-not-exists")
    settings = tools.settings("0", "defined")
    counts = Counter(resource for resource, *_ in settings)
    assert counts == {"BROKER": 340, "TOPIC": 33, "GROUP": 17, "CLIENT_METRICS": 3}
    assert [each for each in settings if each[2] != each[3]] == []
