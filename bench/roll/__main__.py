"""`python -m bench.roll`: third-party clients during rolling restarts, on Penstock and on Kafka.

The program restarts three brokers cleanly one after the other, in two rounds, while clients write and read at their
defaults; then it kills one broker and starts it again. A table shows the events of each client. With `--followers`
consumers read from the replica in their rack (KIP-392). The exit code is 1 if a client of Penstock did not receive a
stored record.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.admin import create_topics
from bench.peers.broker import Broker
from bench.peers.cluster import Cluster, ClusterContender
from bench.peers.kafka import KafkaCluster, KafkaUnavailable, cache_dir, resolve
from bench.peers.penstock import CLUSTER_COMMAND, PenstockCluster
from bench.roll import report

CLIENTS = Path(__file__).parent / "clients"
KAFKAJS = "kafkajs@2.2.4"
PYTHON = {"kafka-python": "with_kafka_python", "aiokafka": "with_aiokafka", "librdkafka": "with_confluent"}
GO = ("franz-go", "sarama")
ALL = [*PYTHON, "Java", "kafkajs"]
FROM_FOLLOWERS = ["librdkafka", "Java", *GO]
SELECTOR = "RackAwareReplicaSelector"
WITH_RACKS = f"{CLUSTER_COMMAND} --set broker.rack=rack-{{id}} --set replica.selector.class={SELECTOR}"
KAFKA_WITH_RACKS = f"broker.rack=rack-{{id}}\nreplica.selector.class=org.apache.kafka.common.replica.{SELECTOR}\n"
END_LIMIT_S = 180.0
START_LIMIT_S = 180.0
READ_LIMIT_S = 60.0
PARTITIONS = 6


@dataclass
class Client:
    """A client's process and the file with its events."""

    name: str
    process: subprocess.Popen[bytes]
    events: Path

    def end(self) -> report.Seen:
        """Return the client's events, once it has received all acknowledged records or its time limit has passed."""
        try:
            self.process.communicate(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        lines = self.events.read_text().splitlines()
        seen = report.read(self.name, lines)
        if self.process.returncode:
            seen.errors[f"ended with {self.process.returncode}"] += 1
        return seen


def command(name: str) -> list[str]:
    """Return the client's command line. Raises KafkaUnavailable if the client cannot be installed."""
    if name in PYTHON:
        return [sys.executable, "-m", f"bench.roll.clients.{PYTHON[name]}"]
    if name == "Java":
        return ["java", "-Xmx128m", "-cp", f"{resolve()}/*", str(CLIENTS / "Roll.java")]
    if name in GO:
        return [str(go_program()), name]
    home = cache_dir() / "kafkajs"
    if not (home / "node_modules" / "kafkajs").exists():
        npm = shutil.which("npm")
        if npm is None:
            raise KafkaUnavailable("npm is not on the PATH: install Node.js, or leave kafkajs out with --clients")
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run([npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", KAFKAJS], check=True)
    return ["node", str(CLIENTS / "roll.js")]


def go_program() -> Path:
    """Build the Go clients, which takes long the first time. Raises KafkaUnavailable without Go."""
    if shutil.which("go") is None:
        raise KafkaUnavailable("go is not on the PATH: install Go, or leave franz-go and sarama out with --clients")
    built = cache_dir() / "roll-go"
    subprocess.run(["go", "build", "-o", str(built), "."], cwd=CLIENTS / "go", check=True)
    return built


def start(name: str, bootstrap: str, home: Path, rack: str = "") -> Client:
    events = home / f"{name}.events"
    out: IO[bytes]
    environment = {**os.environ, "NODE_PATH": str(cache_dir() / "kafkajs" / "node_modules"), "ROLL_RACK": rack}
    with events.open("wb") as out, (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command(name), bootstrap, f"roll-{name}", f"group-{name}"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=log,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
    return Client(name, process, events)


def wait_until_flowing(clients: list[Client]) -> None:
    """Wait until each client has had a record acknowledged and received one. Raises TimeoutError."""
    deadline_s = time.monotonic() + START_LIMIT_S
    for client in clients:
        while not {"acknowledged", "received"} <= set(client.events.read_text().split()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{client.name} did not write and read within {START_LIMIT_S} s")
            time.sleep(0.1)


def restart(cluster: Cluster, broker: Broker, pause_s: float, is_kill: bool = False) -> None:
    if is_kill:
        broker.kill()
    else:
        broker.stop()
    time.sleep(pause_s if is_kill else 0.5)
    broker.start()
    cluster.wait_until_whole()
    time.sleep(pause_s)


def stored(bootstrap: str, topic: str) -> frozenset[int]:
    """Return the numbers in a topic up to its current end offsets. Raises KafkaException."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "stored", "enable.auto.commit": False})
    found: set[int] = set()
    try:
        for partition in range(PARTITIONS):
            position = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(position, timeout=READ_LIMIT_S)
            consumer.assign([position])
            offset = 0
            while offset < end:
                message = consumer.poll(READ_LIMIT_S)
                if message is None:
                    raise TimeoutError(f"{topic}-{partition} could not be read within {READ_LIMIT_S:.0f} s")
                if message.error() is not None:
                    raise KafkaException(message.error())
                found.add(int(message.value() or b""))
                offset = (message.offset() or 0) + 1
    finally:
        consumer.close()
    return frozenset(found)


def roll(
    contender: ClusterContender, names: list[str], home: Path, rounds: int, pause_s: float, has_racks: bool
) -> list[report.Seen]:
    """Return the events of the clients of one contender."""
    cluster = contender.service(os.sched_getaffinity(0), home)
    clients: list[Client] = []
    try:
        cluster.start()
        bootstrap = ",".join(cluster.addresses)
        create_topics(bootstrap, [f"roll-{name}" for name in names], PARTITIONS, {}, replicas=3)
        racks = [f"rack-{index % len(cluster.brokers) + 1}" if has_racks else "" for index in range(len(names))]
        clients = [start(name, bootstrap, home, rack) for name, rack in zip(names, racks, strict=True)]
        wait_until_flowing(clients)
        time.sleep(pause_s)
        for _ in range(rounds):
            for broker in cluster.brokers:
                restart(cluster, broker, pause_s)
        restart(cluster, cluster.brokers[0], pause_s, is_kill=True)
        for client in clients:
            assert client.process.stdin is not None, "clients are stopped by the end of their input"
            client.process.stdin.close()
            client.process.stdin = None
        found = [client.end() for client in clients]
        for seen in found:
            seen.stored = stored(bootstrap, f"roll-{seen.client}")
        return found
    finally:
        for client in clients:
            if client.process.poll() is None:
                client.process.kill()
        cluster.stop()
        cluster.remove()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.roll", description=__doc__)
    parser.add_argument("--clients", help=f"Clients, comma-separated (default: {','.join(ALL)}).")
    parser.add_argument(
        "--followers",
        action="store_true",
        help=f"Consumers read from the replica in their rack (default clients: {','.join(FROM_FOLLOWERS)}).",
    )
    parser.add_argument("--rounds", type=int, default=2, help="Rounds of clean restarts of all brokers.")
    parser.add_argument("--pause", type=float, default=10.0, help="Seconds between two restarts.")
    parser.add_argument("--no-kafka", action="store_true", help="Leave Apache Kafka out.")
    parser.add_argument("--keep", type=Path, help="Directory for the clients' events and logs, which are kept.")
    asked = parser.parse_args()
    subject = PenstockCluster(WITH_RACKS) if asked.followers else PenstockCluster()
    contenders: list[ClusterContender] = [subject]
    try:
        if not asked.no_kafka:
            contenders.append(KafkaCluster(properties=KAFKA_WITH_RACKS if asked.followers else ""))
    except KafkaUnavailable as e:
        print(f"Kafka is left out: {e}", file=sys.stderr)
    names = asked.clients.split(",") if asked.clients else FROM_FOLLOWERS if asked.followers else ALL
    base = asked.keep or Path(tempfile.mkdtemp(prefix="penstock-roll-"))
    is_whole = True
    for contender in contenders:
        home = base / contender.label
        home.mkdir(parents=True, exist_ok=True)
        print(f"{contender.version()}:\n")
        found = roll(contender, names, home, asked.rounds, asked.pause, asked.followers)
        print(report.table(found), end="\n\n", flush=True)
        is_whole = is_whole and (contender is not subject or not any(seen.not_received for seen in found))
    if asked.keep is None:
        shutil.rmtree(base, ignore_errors=True)
    return 0 if is_whole else 1


sys.exit(main())
