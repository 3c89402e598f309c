"""A load of offset commits: by group members that join, read and leave, and by a fast client without membership.

Journal: `first` partition, offset (first offset that a member reads after each assignment); `member` partition, offset
(its acknowledged commits); `try` and `lone` partition, offset (commits of the client without membership, attempted and
acknowledged); `found` partition, offset (the committed offset that it then fetched).
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock_crash.journal import JournalWriter
from penstock_crash.load import FAST_RECONNECT, finishing

MEMBER_GROUP, LONE_GROUP = "readers", "lone-committer"
MEMBERSHIP_S = 1.0
"""Time for which a member keeps its partitions before the next member continues."""


def consumer(options: dict[str, Any], group: str) -> Consumer:
    timing = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200, "fetch.wait.max.ms": 50}
    config = {"bootstrap.servers": options["bootstrap"], "group.id": group, "enable.auto.commit": False}
    return Consumer(config | timing | FAST_RECONNECT | {"auto.offset.reset": "earliest", "fetch.error.backoff.ms": 20})


def read_and_commit(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    """Run one member after the other: each reads and commits for a while, then leaves."""
    while not end.is_set():
        member = consumer(options, MEMBER_GROUP)
        fresh: set[int] = set()
        began_s: list[float] = []

        def assigned(
            _: Consumer,
            partitions: list[TopicPartition],
            fresh: set[int] = fresh,
            began_s: list[float] = began_s,
        ) -> None:
            fresh.update(p.partition for p in partitions)
            began_s.append(time.monotonic())

        member.subscribe([options["topic"]], on_assign=assigned)
        while not end.is_set() and not (began_s and time.monotonic() >= began_s[0] + MEMBERSHIP_S):
            read_once(member, fresh, options["topic"], journal)
        member.close()


def read_once(member: Consumer, fresh: set[int], topic: str, journal: JournalWriter) -> None:
    """Read a batch and commit its end offset; if that fails, the next commit covers it."""
    behind: dict[int, int] = {}
    for message in member.consume(40, 0.1):
        partition, offset = message.partition(), message.offset()
        if message.error() is not None or partition is None or offset is None:
            continue
        if partition in fresh:
            fresh.discard(partition)
            journal.write("first", partition, offset)
        behind[partition] = offset + 1
    if behind:
        try:
            offsets = [TopicPartition(topic, p, offset) for p, offset in behind.items()]
            note_acknowledged(journal, "member", member.commit(offsets=offsets, asynchronous=False))
        except KafkaException as refused:
            journal.write("refused", str(refused))


def commit_alone(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    """Commit increasing offsets and fetch each one. A failed commit may have been applied."""
    client = consumer(options, LONE_GROUP)
    offset = 0
    while not end.is_set():
        offset += 1
        partition = offset % options["partitions"]
        journal.write("try", partition, offset)
        try:
            wanted = [TopicPartition(options["topic"], partition, offset)]
            note_acknowledged(journal, "lone", client.commit(offsets=wanted, asynchronous=False))
            (found,) = client.committed([TopicPartition(options["topic"], partition)], timeout=20)
            if found.error is None:
                journal.write("found", partition, found.offset)
        except KafkaException as refused:
            journal.write("refused", str(refused))
            end.wait(0.02)
    client.close()


def note_acknowledged(journal: JournalWriter, kind: str, answered: list[TopicPartition]) -> None:
    for each in answered:
        if each.error is None:
            journal.write(kind, each.partition, each.offset)
        else:
            journal.write("refused", str(each.error))


def main(options: dict[str, Any]) -> None:
    """Run the load. `options`: bootstrap, topic, partitions, journal."""
    end = finishing()
    journal = JournalWriter(Path(options["journal"]))
    jobs = [threading.Thread(target=job, args=(options, journal, end)) for job in (read_and_commit, commit_alone)]
    for job in jobs:
        job.start()
    end.wait()
    for job in jobs:
        job.join()
