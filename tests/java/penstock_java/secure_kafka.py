"""Apache Kafka with a listener of each kind of security, for tests of clients; its jars are those of the benchmark."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ROOT = Path(__file__).resolve().parents[3]
for _entry in (
    ROOT,
    ROOT / "broker" / "tests" / "client",
):  # last: must not shadow other modules
    if str(_entry) not in sys.path:
        sys.path.append(str(_entry))

from client_doubles.certificates import Authority  # noqa: E402

from bench.peers.broker import free_port  # noqa: E402
from bench.peers.kafka import resolve  # noqa: E402

USER, PASSWORD = "alice", "alice's secret"
SESSION_MS = 6_000
DEADLINE_S = 90.0
LISTENERS = {
    "PLAIN": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
    "CONTROLLER": "PLAINTEXT",
}
MODULES = "org.apache.kafka.common.security"
_SERVER = """process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAIN
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
ssl.keystore.type=PEM
ssl.truststore.type=PEM
listener.name.mutual.ssl.client.auth=required
listener.name.sasl.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.both.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
"""


@dataclass
class SecureKafka:
    """A broker whose listeners `LISTENERS` describes. Its only user exists for PLAIN and for both kinds of SCRAM."""

    home: Path
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in LISTENERS})
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.authority = Authority(self.home / "certificates")
        self.own = self.authority.sign("kafka", "IP:127.0.0.1")
        self.libs = resolve()

    def address(self, listener: str, host: str = "127.0.0.1") -> str:
        return f"{host}:{self.ports[listener]}"

    @property
    def log(self) -> str:
        return (self.home / "kafka.log").read_text(errors="replace")

    def start(self) -> SecureKafka:
        (self.home / "server.properties").write_text(_SERVER + self._own_properties())
        self._format()
        with (self.home / "kafka.log").open("wb") as log:
            self.process = subprocess.Popen(
                self._java("-Xmx512m", "kafka.Kafka", str(self.home / "server.properties")), stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + DEADLINE_S
        while not self._serves():
            assert self.process.poll() is None, f"Kafka ended: {self.log[-4000:]}"
            assert time.monotonic() < deadline_s, f"Kafka does not answer: {self.log[-4000:]}"
        return self

    def limit(self, client_id: str, bytes_a_second: int) -> None:
        """Limit the read rate of clients with this name."""
        command = self._java("-Xmx256m", "kafka.admin.ConfigCommand", "--bootstrap-server", self.address("PLAIN"))
        command += ["--alter", "--entity-type", "clients", "--entity-name", client_id]
        command += ["--add-config", f"consumer_byte_rate={bytes_a_second}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _serves(self) -> bool:
        try:
            return bool(AdminClient({"bootstrap.servers": self.address("PLAIN")}).list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def _own_properties(self) -> str:
        served = [name for name in LISTENERS if name != "CONTROLLER"]
        scram = f"{MODULES}.scram.ScramLoginModule required;"
        lines = [
            "listeners=" + ",".join(f"{name}://{self.address(name)}" for name in LISTENERS),
            "advertised.listeners=" + ",".join(f"{name}://{self.address(name)}" for name in served),
            "listener.security.protocol.map=" + ",".join(f"{n}:{kind}" for n, kind in LISTENERS.items()),
            f"controller.quorum.voters=1@{self.address('CONTROLLER')}",
            f"log.dirs={self.home / 'logs'}",
            f"ssl.keystore.location={self.own.together}",
            f"ssl.truststore.location={self.authority.file}",
            f"listener.name.both.plain.sasl.jaas.config={MODULES}.plain.PlainLoginModule required "
            f'user_{USER}="{PASSWORD}";',
            f"listener.name.sasl.scram-sha-256.connections.max.reauth.ms={SESSION_MS}",
        ]
        for listener, mechanism in (("sasl", "256"), ("sasl", "512"), ("both", "512")):
            lines.append(f"listener.name.{listener}.scram-sha-{mechanism}.sasl.jaas.config={scram}")
        return "\n".join(lines) + "\n"

    def _format(self) -> None:
        cluster_id = "A" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")[1:]
        command = self._java("-Xmx256m", "kafka.tools.StorageTool", "format", "-t", cluster_id)
        command += ["-c", str(self.home / "server.properties")]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            command += ["--add-scram", f'{mechanism}=[name={USER},password="{PASSWORD}"]']
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _java(self, *arguments: str) -> list[str]:
        flags, main, *rest = arguments
        return ["java", flags, "-cp", f"{self.libs}/*", main, *rest]
