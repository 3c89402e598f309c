"""Apache Kafka's command-line tools, run from its jars on a cluster as their scripts do."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from penstock_java.build import HOME, program, resolve
from penstock_java.scenarios import NEWEST

LIMIT_S = 120
TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
NEED_NO_BROKER = frozenset({"dump-log"})


@dataclass(frozen=True)
class KafkaTools:
    """The tools. `run` returns the output of a tool, which must exit with code 0.

    `properties` is a file with connection settings.
    """

    bootstrap: str
    properties: Path | None = None

    def run(self, tool: str, *arguments: str, stdin: str = "") -> str:
        done = self.attempt(tool, *arguments, stdin=stdin)
        assert done.returncode == 0, (
            f"kafka-{tool} {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def attempt(self, tool: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        where = [] if tool in NEED_NO_BROKER else ["--bootstrap-server", self.bootstrap]
        if self.properties is not None:
            where += ["--command-config", str(self.properties)]
        # cluster's options belong to its subcommands.
        words = [*arguments, *where] if tool == "cluster" else [*where, *arguments]
        return self._java([TOOLS[tool], *words], stdin)

    def settings(self, broker: str, topic: str) -> list[tuple[str, str, str, str]]:
        """Return (resource, name, type, described type or MISSING) of each setting that Kafka defines."""
        done = self._java([str(HOME / "tools" / "KafkaSettings.java"), self.bootstrap, broker, topic])
        assert done.returncode == 0, done.stderr
        found = [line.split() for line in done.stdout.splitlines()]
        return [(resource, name, kind, described) for resource, name, kind, described in found]

    def _java(self, arguments: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        jars = resolve(NEWEST, "tools.pom.xml", "kafka-tools")
        flags = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        command = [program("java"), *flags, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def segments(data: Path) -> list[Path]:
    """Return the segment files in a broker's data directory."""
    return sorted(path for path in data.rglob("*.log") if path.stem.isdecimal())


def produce(bootstrap: str, topic: str, count: int, transactional_id: str | None = None) -> None:
    """Write `count` records with the values v0, v1, ..., in one transaction if there is a transactional id."""
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
