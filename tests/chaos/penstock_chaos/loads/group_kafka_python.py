"""A group of one kafka-python consumer that reads and commits. Options and journal as in `group_confluent`."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError
from penstock_crash.journal import JournalWriter

from penstock_chaos.loads.common import now, start
from penstock_chaos.loads.login import Login

sessions = itertools.count(1)


class Member(ConsumerRebalanceListener):  # type: ignore[misc]
    """One member, which leaves after `life_s`."""

    def __init__(self, name: str, options: dict[str, Any], journal: JournalWriter) -> None:
        self.name, self.options, self.journal = name, options, journal
        self.session = 0
        self.login = Login(options, journal, options["name"])
        self.consumer = KafkaConsumer(
            bootstrap_servers=options["bootstrap"].split(","),
            group_id=options["group"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1000,
            request_timeout_ms=12_000,
            fetch_max_wait_ms=100,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=2_000,
            **self.login.kafka_python(),
        )
        self.consumer.subscribe([options["topic"]], listener=self)

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.session = next(sessions)

    def run(self, end: threading.Event) -> None:
        until = time.monotonic() + self.options["life_s"]
        while not end.is_set() and time.monotonic() < until and not self.login.is_outdated:
            polled = self.consumer.poll(timeout_ms=300, max_records=500)
            if polled:
                found = {tp.partition: [(m.offset, m.value.decode()) for m in got] for tp, got in polled.items()}
                self.journal.write("seen", self.name, self.session, self.options["group"], now(), found)
                self.commit({tp: got[-1].offset + 1 for tp, got in polled.items()})

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        begun = now()
        ended = None
        try:
            self.consumer.commit({tp: OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()})
            ended = now()
        except KafkaError as refused:
            self.journal.write("note", repr(refused), now())
        for tp, offset in offsets.items():
            self.journal.write("commit", self.options["group"], tp.partition, offset, begun, ended)


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    for life in itertools.count(1):
        if end.is_set():
            return
        member = None
        try:
            member = Member(f"{options['group']}-0.{life}", options, journal)
            member.run(end)
        except KafkaError as error:
            journal.write("note", repr(error), now())
            end.wait(0.5)
        finally:
            if member is not None:
                member.consumer.close(autocommit=False)
