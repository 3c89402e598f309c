"""A group of confluent-kafka consumers that read and commit, and a client that queries the group's committed offsets.

Options: topic, partitions, group, members, life_s (time after which another member replaces one). Journal: `seen`
reader, session, group, time, {partition: [[offset, value], ...]}; `commit` group, partition, offset, begun, ended or
null; `committed` group, partition, offset or -1, begun, ended; `broken`.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from penstock_crash.journal import JournalWriter

from penstock_chaos.loads.common import FAST_RECONNECT, by_partition, now, start
from penstock_chaos.loads.login import Login

ASK_S = 0.5
sessions = itertools.count(1)


def consumer(options: dict[str, Any], login: Login) -> Consumer:
    config = {"bootstrap.servers": options["bootstrap"], "group.id": options["group"], "enable.auto.commit": False}
    timing = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 1000, "fetch.wait.max.ms": 100}
    reading = {"auto.offset.reset": "earliest", "fetch.error.backoff.ms": 50}
    return Consumer(config | timing | reading | FAST_RECONNECT | login.librdkafka())


class Member:
    """One member, which leaves after `life_s`."""

    def __init__(self, name: str, options: dict[str, Any], journal: JournalWriter) -> None:
        self.name, self.options, self.journal = name, options, journal
        self.session = 0
        self.login = Login(options, journal, name.partition(".")[0])
        self.consumer = consumer(options, self.login)
        self.consumer.subscribe([options["topic"]], on_assign=self.on_assign)

    def on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.session = next(sessions)

    def run(self, end: threading.Event) -> None:
        until = time.monotonic() + self.options["life_s"]
        while not end.is_set() and time.monotonic() < until and not self.login.has_old_trust:
            self.login.renew(self.consumer)
            self.read_once()
        self.consumer.close()

    def read_once(self) -> None:
        messages = self.consumer.consume(500, 0.3)
        for message in messages:
            error = message.error()
            if error is not None and error.code() == KafkaError.OFFSET_OUT_OF_RANGE:
                self.journal.write("broken", f"{self.name}: {error} in {message.partition()}")
        found = by_partition(messages)
        if not found:
            return
        self.journal.write("seen", self.name, self.session, self.options["group"], now(), found)
        self.commit({partition: records[-1][0] + 1 for partition, records in found.items()})

    def commit(self, offsets: dict[int, int]) -> None:
        """Commit offsets. If the commit is rejected, a later one covers it."""
        begun = now()
        done: dict[int, float] = {}
        try:
            wanted = [TopicPartition(self.options["topic"], p, offset) for p, offset in offsets.items()]
            for each in self.consumer.commit(offsets=wanted, asynchronous=False) or ():
                if each.error is None:
                    done[each.partition] = now()
        except KafkaException as refused:
            self.journal.write("note", str(refused), now())
        for partition, offset in offsets.items():
            self.journal.write("commit", self.options["group"], partition, offset, begun, done.get(partition))


def be_members(number: int, options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    for life in itertools.count(1):
        if end.is_set():
            return
        Member(f"{options['group']}-{number}.{life}", options, journal).run(end)


def ask(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    """Query the group's committed offsets as an operator's tool does, without being a member."""
    login = Login(options, journal, f"{options['group']}-observer")
    client = consumer(options, login)
    wanted = [TopicPartition(options["topic"], p) for p in range(options["partitions"])]
    while not end.wait(ASK_S):
        if login.has_old_trust:
            client.close()
            login = Login(options, journal, login.client)
            client = consumer(options, login)
        login.renew(client)
        begun = now()
        try:
            for each in client.committed(wanted, timeout=10):
                if each.error is None:
                    journal.write("committed", options["group"], each.partition, max(each.offset, -1), begun, now())
        except KafkaException as refused:
            journal.write("note", str(refused), now())
    client.close()


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    jobs = [threading.Thread(target=be_members, args=(n, options, journal, end)) for n in range(options["members"])]
    jobs.append(threading.Thread(target=ask, args=(options, journal, end)))
    for job in jobs:
        job.start()
    end.wait()
    for job in jobs:
        job.join()
