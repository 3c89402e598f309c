"""A load for a compacted topic: one idempotent producer that repeatedly overwrites a few keys.

Numbers increase over all keys; a record has its number in a header and in its value. Some records are tombstones, but
not the last one of each key. Journal: `ack` partition, key, number, offset; at the end `last` key, number.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from penstock_crash.journal import JournalWriter
from penstock_crash.load import FAST_RECONNECT, body, finishing

TOMBSTONES = 0.1
UNDER_WAY = 400


class Updater:
    """The state of the load."""

    def __init__(self, options: dict[str, Any], journal: JournalWriter) -> None:
        self.options, self.journal = options, journal
        self.random = random.Random(options["seed"])
        self.under_way = self.number = 0
        self.last: dict[str, int] = {}
        config = {"bootstrap.servers": options["bootstrap"], "linger.ms": 2, "message.timeout.ms": 0}
        kind = {"enable.idempotence": True, "compression.type": "gzip", "error_cb": self.on_error}
        self.producer = Producer(config | FAST_RECONNECT | kind)

    def on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.journal.write("broken", str(error))

    def send(self, key: str, dead: bool) -> None:
        number, self.number = self.number, self.number + 1
        partition = int(key[1:]) % self.options["partitions"]

        def delivered(error: KafkaError | None, message: Message) -> None:
            self.under_way -= 1
            if error is not None:
                self.journal.write("broken", key, number, str(error))
            else:
                self.journal.write("ack", partition, key, number, message.offset())

        value = None if dead else body(f"{key}/{number}")
        self.producer.produce(
            self.options["topic"], value, key, partition, headers=[("n", str(number).encode())], on_delivery=delivered
        )
        self.last[key] = number
        self.under_way += 1

    def run(self) -> None:
        end = finishing()
        keys = [f"k{i}" for i in range(self.options["keys"])]
        while not end.is_set():
            if self.under_way < UNDER_WAY:
                for _ in range(10):
                    self.send(self.random.choice(keys), self.random.random() < TOMBSTONES)
            self.producer.poll(0.004)
            end.wait(0.004)
        for key in keys:
            self.send(key, dead=False)
        while self.under_way:
            self.producer.poll(0.05)
        for key, number in self.last.items():
            self.journal.write("last", key, number)


def main(options: dict[str, Any]) -> None:
    """Run the load. `options`: bootstrap, topic, partitions, keys, seed, journal."""
    Updater(options, JournalWriter(Path(options["journal"]))).run()
