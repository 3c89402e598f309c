"""Python stream processors continue without loss when the leader of their topics is killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from penstock_e2e.process import Application, wait_until
from penstock_e2e.trio import Trio
from penstock_frameworks.applications import start

RECORDS = 1_200
KEYS = 6
AT_ONCE, PAUSE_S = 20, 0.1
LIMIT_S = 240.0


def key_of(number: int) -> str:
    return f"key-{number % KEYS}"


class Feeder(threading.Thread):
    """Produces to a topic at a steady rate, so that processes are killed while records arrive."""

    def __init__(self, brokers: Trio, topic: str) -> None:
        super().__init__(daemon=True)
        self._brokers, self._topic = brokers, topic
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            for first in range(0, RECORDS, AT_ONCE):
                numbers = range(first, first + AT_ONCE)
                self._brokers.produce(self._topic, [(key_of(number), str(number), 0) for number in numbers])
                time.sleep(PAUSE_S)
        except Exception as error:
            self.failure = error

    def finish(self) -> None:
        """Wait for the last record. Raises the producer's error."""
        self.join()
        if self.failure is not None:
            raise self.failure


@pytest.mark.timeout(800)
def test_faststream_receives_each_record_while_a_broker_is_killed(brokers_to_kill: Trio, tmp_path: Path) -> None:
    source, target = "faststream-in", "faststream-out"
    brokers_to_kill.create_topics(source, target)
    arguments = [brokers_to_kill.bootstrap, source, target]
    with start("faststream_copy", arguments, tmp_path / "faststream.log") as application:
        kill_a_broker_midway(brokers_to_kill, source, target, application)
        wait_until("all records", lambda: values(brokers_to_kill, target) >= numbers(), LIMIT_S, application)


@pytest.mark.timeout(800)
def test_bytewax_copies_each_record_while_a_broker_is_killed_and_after_it_was_killed_itself(
    brokers_to_kill: Trio, tmp_path: Path
) -> None:
    source, target = "bytewax-in", "bytewax-out"
    brokers_to_kill.create_topics(source, target)
    arguments = [brokers_to_kill.bootstrap, source, target, str(tmp_path / "recovery")]
    with start("bytewax_copy", arguments, tmp_path / "first.log") as application:
        kill_a_broker_midway(brokers_to_kill, source, target, application)
        application.kill()
    with start("bytewax_copy", arguments, tmp_path / "second.log") as application:
        wait_until("all records", lambda: values(brokers_to_kill, target) >= numbers(), LIMIT_S, application)


@pytest.mark.timeout(800)
def test_quix_streams_numbers_each_record_once_while_it_and_a_broker_are_killed(
    brokers_to_kill: Trio, tmp_path: Path
) -> None:
    source, target = "quix-in", "quix-out"
    brokers_to_kill.create_topics(source, target)
    bootstrap = brokers_to_kill.bootstrap
    with start(
        "quix_copy", [bootstrap, source, target, str(tmp_path / "first")], tmp_path / "first.log"
    ) as application:
        kill_a_broker_midway(brokers_to_kill, source, target, application)
        application.kill()
    # The state is restored from the changelog topic.
    with start(
        "quix_copy", [bootstrap, source, target, str(tmp_path / "second")], tmp_path / "second.log"
    ) as application:
        wait_until("all records", lambda: len(brokers_to_kill.read_committed(target)) >= RECORDS, LIMIT_S, application)
    expected = [(key_of(number), f"{number}:{number // KEYS + 1}") for number in range(RECORDS)]
    assert Counter(brokers_to_kill.read_committed(target)) == Counter(expected)


def kill_a_broker_midway(brokers: Trio, source: str, target: str, application: Application) -> None:
    """Feed the source topic, kill the target's leader after some records were copied; return when all are copied."""
    feeder = Feeder(brokers, source)
    feeder.start()
    wait_until("the first records", lambda: brokers.size(target) > RECORDS // 10, LIMIT_S, application)
    killed = brokers.kill_leader(target)
    feeder.finish()
    brokers.brokers[killed].start()


def values(brokers: Trio, topic: str) -> set[str]:
    return {value for _, value in brokers.read_committed(topic)}


def numbers() -> set[str]:
    return {str(number) for number in range(RECORDS)}
