"""Apache Kafka's command-line tools, run from its jars on a cluster as their scripts do."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock_java.build import HOME, program, resolve
from penstock_java.scenarios import NEWEST

LIMIT_S = 120
TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
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
        return self._java([TOOLS[tool], *where, *arguments], stdin)

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
