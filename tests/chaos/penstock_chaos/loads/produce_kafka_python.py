"""Idempotent kafka-python producers with acks=all. Options and journal as in `produce_confluent`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError
from penstock_crash.journal import JournalWriter

from penstock_chaos.loads.common import body, now, start
from penstock_chaos.loads.login import Login
from penstock_chaos.loads.produce_confluent import UNDER_WAY

PATIENCE_MS = 3_600_000


class Writer:
    """One producer. It ends when it gives up a record: the outcome of later records is then unknown."""

    def __init__(self, name: str, options: dict[str, Any], journal: JournalWriter) -> None:
        self.name, self.topic, self.partitions, self.journal = name, options["topic"], options["partitions"], journal
        self.sent: Counter[int] = Counter()
        self.under_way: Counter[int] = Counter()
        self.given_up = False
        self._lock = threading.Lock()
        self.producer = KafkaProducer(
            bootstrap_servers=options["bootstrap"].split(","),
            acks="all",
            enable_idempotence=True,
            delivery_timeout_ms=PATIENCE_MS,
            max_block_ms=PATIENCE_MS,
            request_timeout_ms=10_000,
            linger_ms=5,
            retry_backoff_ms=50,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=2_000,
            **Login(options, journal, options["name"]).kafka_python(),
        )

    def send(self, partition: int) -> None:
        number = self.sent[partition]
        value = body(self.name, partition, number)

        def acknowledged(metadata: Any) -> None:
            self.journal.write("ack", value, metadata.offset, now())
            with self._lock:
                self.under_way[partition] -= 1

        def failed(error: Exception) -> None:
            self.given_up = True
            self.journal.write("broken", f"{self.name}: {value} was given up: {error!r}")

        self.journal.write("send", self.name, partition, number, value, now())
        with self._lock:
            self.under_way[partition] += 1
        self.sent[partition] += 1
        self.producer.send(self.topic, value.encode(), partition=partition).add_callback(acknowledged).add_errback(
            failed
        )

    def run(self, end: threading.Event, pause_s: float) -> None:
        turn = 0
        while not end.is_set() and not self.given_up:
            partition = turn % self.partitions
            turn += 1
            if self.under_way[partition] < UNDER_WAY:
                self.send(partition)
            time.sleep(pause_s)
        while sum(self.under_way.values()) and not self.given_up:
            time.sleep(0.05)
        self.producer.close(timeout=0 if self.given_up else 10)


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    life = 0
    while not end.is_set():
        life += 1
        try:
            Writer(f"{options['name']}.{life}", options, journal).run(end, options["pause_s"])
        except KafkaError as error:  # no broker is available to create a producer
            journal.write("note", repr(error), now())
            end.wait(0.5)
