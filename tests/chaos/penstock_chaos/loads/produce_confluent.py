"""Idempotent confluent-kafka producers with acks=all: numbered records to each partition, one producer after another.

Options: topic, partitions, name, pause_s. Journal: `send` writer, partition, number, value, time; `ack` value, offset
(or `NOT_TOLD`), time; `broken` behaviour that no cluster may show to an idempotent producer.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from penstock_crash.journal import JournalWriter

from penstock_chaos.loads.common import FAST_RECONNECT, body, now, start
from penstock_chaos.loads.login import Login

NOT_TOLD = -1
"""Offset of a record that librdkafka considers written because the broker accepted a later sequence number. A leader
wrote it, but its answer was lost."""
UNDER_WAY = 60
"""Maximum of unacknowledged records of a partition: the other partitions continue while one has no leader."""


class Writer:
    """One producer, which another one replaces after a fatal error, or if the CA certificates change."""

    def __init__(self, name: str, options: dict[str, Any], journal: JournalWriter) -> None:
        self.name, self.topic, self.journal = name, options["topic"], journal
        self.sent = [0] * options["partitions"]
        self.under_way = [0] * options["partitions"]
        self.turn = 0
        self.fatal = False
        config = {"bootstrap.servers": options["bootstrap"], "enable.idempotence": True, "acks": "all"}
        patience = {"message.timeout.ms": 0, "linger.ms": 5, "retry.backoff.ms": 50, "retry.backoff.max.ms": 500}
        self.login = Login(options, journal, options["name"])
        own = self.login.librdkafka() | {"error_cb": self.on_error}
        self.producer = Producer(config | FAST_RECONNECT | patience | own)

    def on_error(self, error: KafkaError) -> None:
        """Record a fatal error; librdkafka recovers from all others itself."""
        if error.fatal() and not self.fatal:
            self.fatal = True
            self.journal.write("broken", f"{self.name}: {error}")
        self.login.on_error(error)

    def send(self, partition: int) -> None:
        number = self.sent[partition]
        value = body(self.name, partition, number)

        def delivered(error: KafkaError | None, message: Message) -> None:
            self.under_way[partition] -= 1
            if error is None:
                offset = message.offset()
                self.journal.write("ack", value, NOT_TOLD if offset is None else offset, now())
            elif not self.fatal:
                self.journal.write("broken", f"{self.name}: {value} was given up: {error}")

        self.journal.write("send", self.name, partition, number, value, now())
        self.producer.produce(self.topic, value, partition=partition, on_delivery=delivered)
        self.sent[partition] += 1
        self.under_way[partition] += 1

    def run(self, end: threading.Event, pause_s: float) -> None:
        """Send until the end, a fatal error, or a change of the CA certificates."""
        while not (end.is_set() or self.fatal or self.login.has_old_trust):
            self.send_next(pause_s)

    def send_next(self, pause_s: float) -> None:
        """Send one record, unless the next partition has too many unacknowledged ones."""
        self.login.renew(self.producer)
        partition = self.turn % len(self.sent)
        self.turn += 1
        if self.under_way[partition] < UNDER_WAY:
            try:
                self.send(partition)
            except KafkaException as refused:
                self.fatal = True
                self.journal.write("broken", f"{self.name}: {refused}")
        self.producer.poll(0)
        time.sleep(pause_s)

    def introduce(self, successor: Writer, end: threading.Event, pause_s: float) -> None:
        """Send until the successor has a record of each partition acknowledged: it is connected to all leaders then,
        and the change interrupts nothing."""
        for partition in range(len(successor.sent)):
            successor.send(partition)
        while any(successor.under_way) and not (end.is_set() or self.fatal or successor.fatal):
            self.send_next(pause_s)
            successor.producer.poll(0)

    def finish(self) -> None:
        """Wait until all records are acknowledged."""
        while any(self.under_way) and not self.fatal:
            self.producer.poll(0.05)


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    writer = Writer(f"{options['name']}.1", options, journal)
    for life in itertools.count(2):
        writer.run(end, options["pause_s"])
        if end.is_set():
            writer.finish()
            return
        successor = Writer(f"{options['name']}.{life}", options, journal)
        writer.introduce(successor, end, options["pause_s"])
        writer.finish()
        writer = successor
