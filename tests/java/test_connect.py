"""Kafka Connect, distributed, with an exactly-once source: worker and broker are killed, each line arrives once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from penstock_java.applications import wait_until
from penstock_java.connect import Worker
from penstock_java.trio import Trio

GROUP, TOPIC = "connect", "connect-lines"
LINES = 900
LIMIT_S = 120.0


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("java-applications")
def test_each_line_of_a_file_arrives_once_while_the_worker_and_a_broker_are_killed(
    brokers_to_kill: Trio, kafka_applications: str, tmp_path: Path
) -> None:
    brokers_to_kill.create_topics(TOPIC, partitions=1)
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"

    def write(first: int, last: int) -> None:
        with source.open("a") as lines:
            lines.writelines(f"line {number}\n" for number in range(first, last))

    def running(worker: Worker, connector: str) -> list[str]:
        return [where for state, where in worker.states(connector) if state == "RUNNING"]

    bootstrap = brokers_to_kill.bootstrap
    third = LINES // 3
    write(0, third)
    first = Worker(kafka_applications, bootstrap, GROUP, tmp_path / "first")
    second = Worker(kafka_applications, bootstrap, GROUP, tmp_path / "second")
    with first.application, second.application:
        for worker in (first, second):
            worker.wait_until_it_answers()
        file = "org.apache.kafka.connect.file.FileStream"
        first.request(
            "POST",
            "/connectors",
            {
                "name": "lines-in",
                "config": {
                    "connector.class": f"{file}SourceConnector",
                    "tasks.max": "1",
                    "file": str(source),
                    "topic": TOPIC,
                    "batch.size": "20",
                    "exactly.once.support": "required",
                },
            },
        )
        first.request(
            "POST",
            "/connectors",
            {
                "name": "lines-out",
                "config": {
                    "connector.class": f"{file}SinkConnector",
                    "tasks.max": "1",
                    "file": str(target),
                    "topics": TOPIC,
                    "consumer.override.isolation.level": "read_committed",
                    "consumer.override.auto.offset.reset": "earliest",
                },
            },
        )
        both = (first.application, second.application)
        wait_until("the first lines", lambda: brokers_to_kill.size(TOPIC) >= third // 2, LIMIT_S, *both)
        owner = running(first, "lines-in")
        doomed, other = (first, second) if str(first.port) in str(owner) else (second, first)
        write(third, 2 * third)
        doomed.application.kill()
        wait_until("the other worker to take over", lambda: len(running(other, "lines-in")) == 1, LIMIT_S)
        wait_until(
            "two thirds of the lines", lambda: brokers_to_kill.size(TOPIC) >= 2 * third, LIMIT_S, other.application
        )
        killed = brokers_to_kill.kill_leader(TOPIC)
        write(2 * third, LINES)
        brokers_to_kill.brokers[killed].start()
        wait_until(
            "all lines in the topic",
            lambda: len(brokers_to_kill.read_committed(TOPIC)) >= LINES,
            LIMIT_S,
            other.application,
        )
        wait_until("all lines in the file", lambda: set(lines_of(target)) >= wanted(), LIMIT_S, other.application)
        other.application.stop()
    assert Counter(value for _, value in brokers_to_kill.read_committed(TOPIC)) == Counter(wanted())


def wanted() -> set[str]:
    return {f"line {number}" for number in range(LINES)}


def lines_of(file: Path) -> list[str]:
    """The lines that the sink has written; at least once, so some may be there twice."""
    return file.read_text().splitlines() if file.exists() else []
