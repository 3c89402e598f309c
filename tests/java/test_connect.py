"""Kafka Connect with an exactly-once source: each line arrives once while a worker and a broker are killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from penstock_e2e.process import wait_until
from penstock_e2e.trio import Trio
from penstock_java.connect import Worker

NAMES = ("lines-in", "lines-out")
LINES = 900
LINES_AT_ONCE, PAUSE_S = 10, 0.1
LIMIT_S = 120.0


class Writer(threading.Thread):
    """Appends lines to a file at a steady rate, so that workers and brokers are killed while lines arrive."""

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self._file = file

    def run(self) -> None:
        for first in range(0, LINES, LINES_AT_ONCE):
            with self._file.open("a") as lines:
                lines.writelines(f"line {number}\n" for number in range(first, first + LINES_AT_ONCE))
            time.sleep(PAUSE_S)


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("java-applications")
def test_each_line_of_a_file_arrives_once_while_the_worker_and_a_broker_are_killed(
    brokers_to_kill: Trio, kafka_applications: str, round_number: int, tmp_path: Path
) -> None:
    group, topic = f"connect-{round_number}", f"connect-lines-{round_number}"
    brokers_to_kill.create_topics(topic, partitions=1)
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"

    def running(worker: Worker, connector: str) -> list[str]:
        return [where for state, where in worker.states(connector) if state == "RUNNING"]

    bootstrap = brokers_to_kill.bootstrap
    first = Worker(kafka_applications, bootstrap, group, tmp_path / "first")
    second = Worker(kafka_applications, bootstrap, group, tmp_path / "second")
    with first.application, second.application:
        for worker in (first, second):
            worker.wait_until_it_answers()
        file = "org.apache.kafka.connect.file.FileStream"
        first.request(
            "POST",
            "/connectors",
            {
                "name": NAMES[0],
                "config": {
                    "connector.class": f"{file}SourceConnector",
                    "tasks.max": "1",
                    "file": str(source),
                    "topic": topic,
                    "exactly.once.support": "required",
                },
            },
        )
        first.request(
            "POST",
            "/connectors",
            {
                "name": NAMES[1],
                "config": {
                    "connector.class": f"{file}SinkConnector",
                    "tasks.max": "1",
                    "file": str(target),
                    "topics": topic,
                    "consumer.override.isolation.level": "read_committed",
                    "consumer.override.auto.offset.reset": "earliest",
                },
            },
        )
        both = (first.application, second.application)
        wait_until("both connectors", lambda: all(len(running(first, name)) == 1 for name in NAMES), LIMIT_S, *both)
        writer = Writer(source)
        writer.start()
        wait_until("the first lines", lambda: len(lines_of(target)) > LINES // 10, LIMIT_S, *both)
        owner = running(first, NAMES[0])
        doomed, other = (first, second) if str(first.port) in str(owner) else (second, first)
        doomed.application.kill()
        wait_until("half of the lines", lambda: len(lines_of(target)) > LINES // 2, LIMIT_S, other.application)
        killed = brokers_to_kill.kill_leader(topic)
        brokers_to_kill.brokers[killed].start()
        writer.join()
        wait_until(
            "all lines in the topic",
            lambda: len(brokers_to_kill.read_committed(topic)) >= LINES,
            LIMIT_S,
            other.application,
        )
        wait_until("all lines in the file", lambda: set(lines_of(target)) >= wanted(), LIMIT_S, other.application)
        other.application.stop()
    assert Counter(value for _, value in brokers_to_kill.read_committed(topic)) == Counter(wanted())


def wanted() -> set[str]:
    return {f"line {number}" for number in range(LINES)}


def lines_of(file: Path) -> list[str]:
    """Return the lines that the sink has written; delivery is at least once, so some may be duplicates."""
    return file.read_text().splitlines() if file.exists() else []
