"""Checks of consumer groups, share groups and their administration, on Penstock and on Apache Kafka.

The checks are in `groups/`. One Java process runs all of them for a client release, several at a time. The services
have settings that permit brief timeouts of groups.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock_suites.brokers import Layout, running

from penstock_java.build import program

NEWEST_CLIENT = "4.4.0"
CLIENTS = ("4.2.0", "4.3.1", NEWEST_CLIENT)
FOLDERS = ("src", "groups")
KAFKA_VERSION = "4.4.0"
THREADS = 12
RUN_LIMIT_S = 540
FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SETTINGS = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.regex.refresh.interval.ms": "10000",
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "100",
    # The longest permitted: on a busy machine a lock of 30 s may expire during a check.
    "group.share.record.lock.duration.ms": "60000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.session.timeout.ms": "1000",
}
ONLY_KAFKA = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
}
OF_SEVERAL = {"default.replication.factor": "3", "min.insync.replicas": "2"}
_START = "while a member works, the start offset in the answer can be an earlier one"
_LATEST = "there is no start offset before the first acknowledgement"
DIFFERENCES: Mapping[str, str] = {
    "explicit-deserialization-error": _START,
    "explicit-next-poll-sends": _START,
    "explicit-partial-commit": _START,
    "lock-renewed-outlives-its-duration": _START,
    "share-offsets-of-chosen-partitions": _START,
    "start-latest": _LATEST,
    "start-latest-is-the-default": _LATEST,
    "start-setting-counts-once": _LATEST,
    "type-consumer-in-a-share-group": "the refusal is GROUP_ID_NOT_FOUND",
}
"""Checks that may fail on Apache Kafka, with what Kafka does instead; docs/reference/protocol.md has the reasons."""


@dataclass
class Outcome:
    """The failures by check, and the names of all checks that ran."""

    ran: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    def report(self) -> str:
        return "\n".join(f"{name}: {failure[:2000]}" for name, failure in sorted(self.failures.items()))


@contextlib.contextmanager
def service(home: Path, brokers: int, *, kafka: bool = False) -> Iterator[str]:
    """Yield the addresses of a service of that many brokers."""
    home.mkdir(exist_ok=True)
    settings = SETTINGS | (OF_SEVERAL if brokers > 1 else {})
    layout = Layout(brokers, settings=settings, only_kafka=ONLY_KAFKA, kafka_version=KAFKA_VERSION)
    with running(layout, home, kafka=kafka) as cluster:
        yield cluster.bootstrap


def names(class_path: str) -> set[str]:
    """Return the names of all checks."""
    command = [program("java"), *FLAGS, "-cp", class_path, "scenarios.GroupChecks", "--list"]
    return set(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split())


def run(class_path: str, bootstrap: str, errors: Path) -> Outcome:
    """Run all checks. Raises AssertionError if the process fails."""
    command = [program("java"), *FLAGS, "-cp", class_path, "scenarios.GroupChecks", bootstrap, str(THREADS)]
    with errors.open("w") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=RUN_LIMIT_S, check=False)
    assert done.returncode == 0, f"the checks ended with {done.returncode}: {errors.read_text()[-3000:]}"
    outcome = Outcome()
    for line in done.stdout.splitlines():
        row = json.loads(line)
        outcome.ran.add(row["scenario"])
        if not row["passed"]:
            outcome.failures[row["scenario"]] = row["failure"]
    return outcome
