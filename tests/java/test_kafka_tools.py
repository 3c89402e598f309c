"""Apache Kafka's command-line tools administer a cluster, and exit with code 0 as they do on Kafka."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from penstock_e2e.broker import cluster
from penstock_e2e.model import eventually
from penstock_java.kafka_tools import KafkaTools, produce, segments

BootstrapOf = Callable[[int], str]
RATES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
KAFKA_FEATURES = {"group.version": "1", "share.version": "1", "transaction.version": "2"}

pytestmark = pytest.mark.xdist_group("java-3")


@pytest.fixture
def tools(bootstrap_of: BootstrapOf) -> KafkaTools:
    return KafkaTools(bootstrap_of(3))


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


@pytest.mark.timeout(400)
def test_offsets_logs_and_leaders_are_described_and_changed(tools: KafkaTools, tmp_path: Path) -> None:
    topic = "inspected"
    tools.run("topics", "--create", "--topic", topic, "--partitions", "1", "--replication-factor", "3")
    produce(tools.bootstrap, topic, 5)
    assert f"{topic}:0:5" in tools.run("get-offsets", "--topic", topic).split()
    assert f"{topic}:0:0" in tools.run("get-offsets", "--topic", topic, "--time", "earliest").split()
    before = tmp_path / "before.json"
    before.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 2}]}))
    assert "low_watermark: 2" in tools.run("delete-records", "--offset-json-file", str(before))
    assert f"{topic}:0:2" in tools.run("get-offsets", "--topic", topic, "--time", "earliest").split()
    described = json.loads(tools.run("log-dirs", "--describe", "--topic-list", topic).splitlines()[-1])
    directories = [directory for broker in described["brokers"] for directory in broker["logDirs"]]
    assert [partition["partition"] for each in directories for partition in each["partitions"]] == [f"{topic}-0"] * 3
    elected = tools.run("leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert f"{topic}-0" in elected


@pytest.mark.timeout(300)
def test_the_cluster_and_its_brokers_are_described(tools: KafkaTools) -> None:
    assert "Cluster ID: " in tools.run("cluster", "cluster-id")
    endpoints = tools.run("cluster", "list-endpoints").splitlines()[1:]
    assert [line.split()[0] for line in endpoints if line.strip()] == ["0", "1", "2"]
    assert tools.run("broker-api-versions").count("isFenced: false") == 3
    features = tools.run("features", "describe").splitlines()
    finalized = {line.split()[1]: line.split("FinalizedVersionLevel: ")[1].split()[0] for line in features}
    assert {name: finalized[name] for name in KAFKA_FEATURES} == KAFKA_FEATURES
    assert "LeaderId:" in tools.run("metadata-quorum", "describe", "--status")
    assert tools.run("client-metrics", "--list").split() == []
