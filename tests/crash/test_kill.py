"""SIGKILL at any time loses no acknowledged record.

The page cache survives a killed process, so these tests cannot detect a missing fsync; the crash images of the log's
own tests can.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from penstock_crash import audit, reading
from penstock_crash.attack import kill_at_random, kill_when_seen, kill_while_starting, repeatedly
from penstock_crash.broker import DEADLINE_S, Broker
from penstock_crash.commits import LONE_GROUP, MEMBER_GROUP
from penstock_crash.load import FAST_RECONNECT
from penstock_crash.loads import Load

pytestmark = pytest.mark.timeout(1200)

PARTITIONS = 4
FREQUENT = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "0",
}
"""Broker settings that make rare events frequent; a metadata request does not recreate a lost topic."""
SMALL_SEGMENTS = {"segment.bytes": "16384", "index.interval.bytes": "512"}

MakeBroker = Callable[..., Broker]
StartLoad = Callable[..., Load]


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    made = make_broker(settings=FREQUENT)
    made.start()
    return made


def start_producers(
    broker: Broker, start_load: StartLoad, config: dict[str, str], *producers: str, follow: bool = True
) -> Load:
    reading.create_topic(broker.bootstrap, "acknowledged", PARTITIONS, config)
    options: dict[str, Any] = {"topic": "acknowledged", "partitions": PARTITIONS, "pause_s": 0.005, "follow": follow}
    return start_load("producers", bootstrap=broker.bootstrap, producers=producers, **options)


def check_ends(broker: Broker, load: Load) -> None:
    ends = reading.end_offsets(broker.bootstrap, "acknowledged", PARTITIONS)
    audit.report(audit.audit_ends(load.journal, ends), f"after kill {broker.kills}")


def check_produced(broker: Broker, load: Load) -> None:
    """End the load and read everything twice: immediately, and after a clean restart."""
    load.finish()
    for _ in range(2):
        contents = reading.read_all(broker.bootstrap, "acknowledged", PARTITIONS)
        audit.report(audit.audit_produced(load.journal, contents), f"{broker.kills} kills")
        broker.stop()
        broker.start()


def test_what_was_acknowledged_under_load_is_there_at_its_offset_in_order_and_once(
    broker: Broker, start_load: StartLoad, kills: int, rng: random.Random
) -> None:
    load = start_producers(broker, start_load, {}, "idempotent", "idempotent-gzip", "plain")
    repeatedly(broker, [(load, "ack")], kills, rng, check=lambda: check_ends(broker, load))
    check_produced(broker, load)


def test_segments_that_roll_all_the_time_lose_nothing(
    broker: Broker, start_load: StartLoad, few_kills: int, rng: random.Random
) -> None:
    load = start_producers(broker, start_load, SMALL_SEGMENTS, "idempotent", "plain")
    repeatedly(broker, [(load, "ack")], few_kills, rng, check=lambda: check_ends(broker, load))
    while len(list(broker.data.rglob("*.log"))) <= 2 * PARTITIONS:  # the segments must have rolled
        load.wait_for("ack", 50)
    check_produced(broker, load)


def test_a_recovery_that_is_killed_again_and_again_loses_nothing(
    broker: Broker, start_load: StartLoad, few_kills: int, rng: random.Random
) -> None:
    load = start_producers(broker, start_load, SMALL_SEGMENTS, "idempotent", "plain")
    for _ in range(max(1, few_kills // 3)):
        load.wait_for("ack", 200)
        broker.kill()
        load.read()
        for _ in range(4):
            kill_while_starting(broker, rng)
        broker.start()
        check_ends(broker, load)
    check_produced(broker, load)


def test_records_deleted_stay_deleted_and_all_others_stay(
    broker: Broker, start_load: StartLoad, few_kills: int, rng: random.Random
) -> None:
    """DeleteRecords raises the log start; requests sent just before the kill may have been executed or not."""
    load = start_producers(broker, start_load, SMALL_SEGMENTS, "idempotent", follow=False)
    deletion = Deletion(broker, rng)

    def kill(broker: Broker, rng: random.Random) -> None:
        deletion.insist()
        deletion.ask()
        kill_at_random(broker, rng)

    repeatedly(broker, [(load, "ack")], few_kills, rng, kill=kill, check=deletion.check)
    check_produced(broker, load)
    deletion.check()


class Deletion:
    """Raises log start offsets by DeleteRecords and tracks their possible values."""

    def __init__(self, broker: Broker, rng: random.Random) -> None:
        self.broker, self.rng = broker, rng
        self.client = AdminClient({"bootstrap.servers": broker.bootstrap} | FAST_RECONNECT)
        self.acknowledged = dict.fromkeys(range(PARTITIONS), 0)
        self.asked = dict.fromkeys(range(PARTITIONS), 0)

    def ask(self) -> dict[int, tuple[int, Future[Any]]]:
        """Send the requests; return by partition the new log start offset and the answer."""
        answers = {}
        for partition, end in reading.end_offsets(self.broker.bootstrap, "acknowledged", PARTITIONS).items():
            offset = self.rng.randrange(self.asked[partition], end + 1)
            self.asked[partition] = offset
            wanted = TopicPartition("acknowledged", partition, offset)
            (answer,) = self.client.delete_records([wanted], request_timeout=DEADLINE_S).values()
            answers[partition] = offset, answer
        return answers

    def insist(self) -> None:
        """Retry until the deletion succeeds. The client may first have to reconnect to the restarted broker."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.all_done(self.ask()):
            assert time.monotonic() < deadline, "records cannot be deleted"
            time.sleep(0.1)

    def all_done(self, answers: dict[int, tuple[int, Future[Any]]]) -> bool:
        done = True
        for partition, (offset, answer) in answers.items():
            try:
                answer.result(DEADLINE_S)
                self.acknowledged[partition] = offset
            except KafkaException as refused:
                print(f"deleting before {offset} of {partition}: {refused}")
                done = False
        return done

    def check(self) -> None:
        for partition, start in reading.start_offsets(self.broker.bootstrap, "acknowledged", PARTITIONS).items():
            assert self.acknowledged[partition] <= start <= self.asked[partition], (
                f"the start of {partition} is {start}"
            )


def test_committed_offsets_never_go_back_below_what_was_acknowledged(
    broker: Broker, start_load: StartLoad, few_kills: int, rng: random.Random
) -> None:
    producers = start_producers(broker, start_load, {}, "idempotent")
    commits = start_load("commits", bootstrap=broker.bootstrap, topic="acknowledged", partitions=PARTITIONS)

    def check() -> None:
        before = list(commits.journal.entries)
        groups = (MEMBER_GROUP, LONE_GROUP)
        found = [reading.committed(broker.bootstrap, group, "acknowledged", PARTITIONS) for group in groups]
        commits.journal.read()
        audit.report(audit.audit_commits(before, commits.journal.entries, *found), f"after kill {broker.kills}")

    repeatedly(broker, [(commits, "lone"), (commits, "member")], few_kills, rng, check=check)
    commits.finish()
    check()
    audit.report(audit.audit_found(commits.journal))
    audit.report(audit.audit_member(commits.journal))
    assert len(list(commits.journal.of("first"))) > PARTITIONS, "members took up where others had been"
    check_produced(broker, producers)


def test_a_kill_during_compaction_loses_no_key(
    make_broker: MakeBroker, start_load: StartLoad, few_kills: int, rng: random.Random
) -> None:
    broker = make_broker(settings=FREQUENT)
    broker.start()
    compacting = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "8192"}
    reading.create_topic(broker.bootstrap, "compacted", 2, compacting)
    options = {"topic": "compacted", "partitions": 2, "keys": 50, "seed": rng.randrange(1 << 32)}
    load = start_load("updates", bootstrap=broker.bootstrap, **options)
    kill = functools.partial(kill_when_seen, pattern="*/*.cleaned", later_s=0.3)
    repeatedly(broker, [(load, "ack")], few_kills, rng, kill=kill)
    load.finish()
    acknowledged = sum(1 for _ in load.journal.of("ack"))
    for _ in range(2):
        contents = reading.read_all(broker.bootstrap, "compacted", 2)
        audit.report(audit.audit_compacted(load.journal, contents), f"{broker.kills} kills")
        broker.stop()
        broker.start()
    deadline = time.monotonic() + DEADLINE_S
    while sum(len(content.records) for content in contents.values()) > acknowledged / 2:
        assert time.monotonic() < deadline, "half of the records were overwritten, but compaction does not remove them"
        time.sleep(0.5)
        contents = reading.read_all(broker.bootstrap, "compacted", 2)
    audit.report(audit.audit_compacted(load.journal, contents), f"{broker.kills} kills, compacted")
    deadline = time.monotonic() + DEADLINE_S
    while broker.survivors():
        assert time.monotonic() < deadline, "a worker has outlived its broker"
        time.sleep(0.1)


def test_topics_created_and_deleted_are_there_or_not_as_acknowledged(
    broker: Broker, start_load: StartLoad, few_kills: int, rng: random.Random
) -> None:
    names = [f"churn-{i}" for i in range(4)]
    load = start_load("churn", bootstrap=broker.bootstrap, names=names)
    repeatedly(broker, [(load, "created")], few_kills, rng, work=8)
    load.finish()
    for _ in range(2):
        found = reading.topics(broker.bootstrap)
        contents = {name: reading.read_all(broker.bootstrap, name, 2) for name in found & set(names)}
        audit.report(audit.audit_lives(load.journal, found, contents), f"{broker.kills} kills")
        broker.stop()
        broker.start()
    deadline = time.monotonic() + DEADLINE_S
    while not (left := topics_on_disk(broker)) <= found:
        assert time.monotonic() < deadline, f"data of deleted topics stays: {left - found}"
        time.sleep(0.1)


def topics_on_disk(broker: Broker) -> set[str]:
    """Return the topics with data on disk, including renamed directories. The broker may be deleting some of them."""
    found = set()
    for directory, _, names in os.walk(broker.data):
        if "partition.json" in names:
            with contextlib.suppress(FileNotFoundError):
                found.add(json.loads(Path(directory, "partition.json").read_bytes())["topic"])
    return found
