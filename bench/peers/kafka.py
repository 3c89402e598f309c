"""Apache Kafka from Maven Central in KRaft's combined mode, one node or several, with the defaults of its own script.

Maven resolves the server once, into a cache outside the checkout. Heap and collector flags are those of
kafka-server-start.sh and kafka-run-class.sh; logging is INFO to the console, as in the distribution.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from bench.peers.broker import Broker, Peer, free_port
from bench.peers.cluster import BROKERS, ResizableCluster

VERSION = "4.3.1"
"""The release that the differential tests compare with."""
NEWEST = "4.4.0"
"""The release that the benchmarks compare with."""
LOG4J_VERSION = "2.25.4"
MAVEN_LIMIT_S = 600
FORMAT_LIMIT_S = 120
CONTROLLERS = 3
STARTING = 3
"""Number of storage directories that are formatted at the same time, each by a JVM."""
JVM_FLAGS = [
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{log4j}</version>
    </dependency>
  </dependencies>
</project>
"""

_LOG4J = """status=warn
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
"""

_SERVER = """process.roles={roles}
node.id={node_id}
listeners=PLAINTEXT://127.0.0.1:{port}{controller_listener}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={logs}
"""

_ALONE = """offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""

_OF_SEVERAL = """default.replication.factor=3
min.insync.replicas=2
"""  # the internal topics have three replicas, two of them in sync, by default


def _new_cluster_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


class KafkaUnavailable(Exception):
    """Kafka cannot be resolved or started here; the message names what is missing."""


def cache_dir() -> Path:
    """Return PENSTOCK_BENCH_CACHE, or `penstock-bench` in the user's cache directory."""
    chosen = os.environ.get("PENSTOCK_BENCH_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(chosen) if chosen else base / "penstock-bench"


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise KafkaUnavailable(f"{name} is not on the PATH; install a JDK of 17 or newer and Maven, or use --no-kafka")
    return found


def resolve(version: str = VERSION) -> Path:
    """Return the directory of the jars of a Kafka release, resolved with Maven the first time."""
    home = cache_dir() / f"kafka-{version}"
    libs = home / "libs"
    complete = home / "resolved"
    if complete.exists():
        return libs
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(_POM.format(kafka=version, log4j=LOG4J_VERSION))
    command = [_program("mvn"), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=MAVEN_LIMIT_S, check=False)
    if done.returncode:
        raise KafkaUnavailable(f"Maven could not resolve Kafka {version}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    complete.touch()
    return libs


class Kafka(Peer):
    """One node. `label` distinguishes two Kafkas when the bench measures its own noise.

    `properties` are lines for server.properties that override the defaults; `jvm_flags` follow the script's own.
    """

    durable_topic: ClassVar[dict[str, str]] = {"flush.messages": "1"}
    unflushed_topic: ClassVar[dict[str, str]] = {}  # Kafka's default

    def __init__(
        self, label: str = "kafka", properties: str = "", jvm_flags: Sequence[str] = (), version: str = VERSION
    ) -> None:
        self.label = label
        self._properties, self._jvm_flags = properties, [*JVM_FLAGS, *jvm_flags]
        self._version, self._libs = version, resolve(version)
        self._java = _program("java")

    def version(self) -> str:
        return f"Apache Kafka {self._version}"

    def with_settings(self, settings: Mapping[str, str]) -> Kafka:
        """Return the same release with broker settings."""
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        return Kafka(self.label, self._properties + lines, version=self._version)

    def prepare(self, data_dir: Path, port: int) -> None:
        self._format(data_dir, port, 1, [free_port()], _new_cluster_id(), _ALONE)

    def _format(
        self, data_dir: Path, port: int, node_id: int, controller_ports: Sequence[int], cluster_id: str, more: str
    ) -> None:
        """Write the configuration of a node, and format its storage.

        The first `len(controller_ports)` nodes are controllers too.
        """
        data_dir.mkdir(parents=True)
        is_controller = node_id <= len(controller_ports)
        (data_dir / "log4j2.properties").write_text(_LOG4J)
        server = _SERVER.format(
            roles="broker,controller" if is_controller else "broker",
            node_id=node_id,
            port=port,
            controller_listener=f",CONTROLLER://127.0.0.1:{controller_ports[node_id - 1]}" if is_controller else "",
            voters=",".join(f"{number}@127.0.0.1:{its}" for number, its in enumerate(controller_ports, 1)),
            logs=data_dir / "logs",
        )
        (data_dir / "server.properties").write_text(server + more + self._properties)
        command = self._jvm(data_dir, ["-Xmx256m"], "kafka.tools.StorageTool")
        command += ["format", "-t", cluster_id, "-c", str(data_dir / "server.properties")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_LIMIT_S, check=False)
        if done.returncode:
            raise KafkaUnavailable(
                f"Kafka's storage could not be formatted:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )

    def _jvm(self, data_dir: Path, flags: list[str], main_class: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={data_dir / 'log4j2.properties'}"
        return [self._java, *flags, log4j, "-cp", f"{self._libs}/*", main_class]

    def command(self, data_dir: Path, port: int) -> list[str]:
        del port  # prepare() has written it into the properties
        return [*self._jvm(data_dir, self._jvm_flags, "kafka.Kafka"), str(data_dir / "server.properties")]


class _Node(Kafka):
    """One of several nodes. The first three are controllers too."""

    def __init__(
        self,
        label: str,
        node_id: int,
        controller_ports: Sequence[int],
        cluster_id: str,
        properties: str = "",
        jvm_flags: Sequence[str] = (),
        version: str = VERSION,
    ) -> None:
        super().__init__(f"{label}-{node_id}", properties, jvm_flags, version)
        self._node_id, self._controller_ports, self._cluster_id = node_id, controller_ports, cluster_id

    def prepare(self, data_dir: Path, port: int) -> None:
        self._format(data_dir, port, self._node_id, self._controller_ports, self._cluster_id, _OF_SEVERAL)


class KafkaCluster(ResizableCluster):
    """Nodes in combined mode, because separate controllers would take three more processes; the first three vote.

    `{id}` in `properties` stands for each node's id.
    """

    durable_topic: ClassVar[dict[str, str]] = {**Kafka.durable_topic, "min.insync.replicas": "2"}
    unflushed_topic: ClassVar[dict[str, str]] = {"min.insync.replicas": "2"}

    def __init__(
        self,
        label: str = "kafka",
        properties: str = "",
        jvm_flags: Sequence[str] = (),
        version: str = VERSION,
        brokers: int = BROKERS,
    ) -> None:
        self.label, self.brokers = label, brokers
        self._properties, self._jvm_flags, self._version = properties, jvm_flags, version
        resolve(version)

    def version(self) -> str:
        return f"Apache Kafka {self._version} ({self.brokers} nodes)"

    def resized(self, brokers: int) -> KafkaCluster:
        return KafkaCluster(self.label, self._properties, self._jvm_flags, self._version, brokers)

    def parts(self, cores: set[int], home: Path) -> tuple[None, list[Broker]]:
        ports, cluster_id = [free_port() for _ in range(CONTROLLERS)], _new_cluster_id()
        nodes = [
            _Node(
                self.label,
                number,
                ports,
                cluster_id,
                self._properties.replace("{id}", str(number)),
                self._jvm_flags,
                self._version,
            )
            for number in range(1, self.brokers + 1)
        ]
        with ThreadPoolExecutor(STARTING) as pool:
            return None, list(pool.map(lambda node: Broker(node, cores, home), nodes))
