"""A load of producers that send numbered records to each partition, and a reader that follows.

Keys are `<producer>/<partition>/<number>`; numbers increase from 0 by producer and partition. Journal: `ack` producer,
partition, number, offset; `seen` partition, offset, key; at the end `sent` producer, partition, count.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from penstock_crash.journal import JournalWriter
from penstock_crash.load import FAST_RECONNECT, body, finishing

BURST = 8
UNDER_WAY = 400
"""Records that a producer sends before it waits for acknowledgements."""
KINDS: dict[str, dict[str, Any]] = {
    "idempotent": {"enable.idempotence": True, "compression.type": "none"},
    "idempotent-gzip": {"enable.idempotence": True, "compression.type": "gzip"},
    # One request at a time, so that a retry cannot overtake another; it may still duplicate records.
    "plain": {"enable.idempotence": False, "acks": "all", "max.in.flight": 1, "compression.type": "none"},
}


class Sender:
    """One producer. It resends a record until it is acknowledged, however long the broker is unavailable."""

    def __init__(self, name: str, options: dict[str, Any], journal: JournalWriter) -> None:
        self.name, self.topic, self.partitions = name, options["topic"], options["partitions"]
        self.journal = journal
        self.sent = [0] * self.partitions
        self.under_way = 0
        config = {"bootstrap.servers": options["bootstrap"], "linger.ms": 2, "message.timeout.ms": 0, "acks": "all"}
        self.producer = Producer(config | FAST_RECONNECT | KINDS[name] | {"error_cb": self.on_error})

    def on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.journal.write("broken", self.name, str(error))

    def send(self, partition: int) -> None:
        number = self.sent[partition]
        key = f"{self.name}/{partition}/{number}"

        def delivered(error: KafkaError | None, message: Message) -> None:
            self.under_way -= 1
            if error is not None:
                self.journal.write("broken", self.name, partition, number, str(error))
            else:
                self.journal.write("ack", self.name, partition, number, message.offset())

        self.producer.produce(self.topic, body(key), key, partition, on_delivery=delivered)
        self.sent[partition] += 1
        self.under_way += 1

    def run(self, end: threading.Event, pause_s: float) -> None:
        turn = 0
        while not end.is_set():
            if self.under_way < UNDER_WAY:
                for _ in range(BURST):
                    self.send(turn % self.partitions)
                    turn += 1
            self.producer.poll(pause_s)
            time.sleep(pause_s)
        while self.under_way:
            self.producer.poll(0.05)
        for partition, count in enumerate(self.sent):
            self.journal.write("sent", self.name, partition, count)


def follow(options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
    """Read all partitions from the beginning and record what is read: no record may ever change."""
    config = {"bootstrap.servers": options["bootstrap"], "group.id": "unused", "enable.auto.commit": False}
    fetching = {"fetch.wait.max.ms": 50, "fetch.error.backoff.ms": 20, "auto.offset.reset": "error"}
    consumer = Consumer(config | fetching | FAST_RECONNECT)
    consumer.assign([TopicPartition(options["topic"], p, 0) for p in range(options["partitions"])])
    while not end.is_set():
        for message in consumer.consume(200, 0.1):
            if (error := message.error()) is None:
                key = message.key()
                journal.write("seen", message.partition(), message.offset(), key.decode() if key else None)
            elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                journal.write("broken", "follower", message.partition(), str(error))
    consumer.close()


def main(options: dict[str, Any]) -> None:
    """Run the load. `options`: bootstrap, topic, partitions, journal, producers (of KINDS), pause_s, follow."""
    end = finishing()
    journal = JournalWriter(Path(options["journal"]))
    senders = [Sender(name, options, journal) for name in options["producers"]]
    jobs = [threading.Thread(target=s.run, args=(end, options["pause_s"])) for s in senders]
    if options["follow"]:
        jobs.append(threading.Thread(target=follow, args=(options, journal, end)))
    for job in jobs:
        job.start()
    end.wait()
    for job in jobs:
        job.join()
