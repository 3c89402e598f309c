"""A confluent-kafka consumer without a group that reads a topic with scheduled records.

Options: bootstrap, name, topic, partitions. Journal: `reminder` reader, partition, offset, key, value, origin or null,
time; `polled` time, for each poll that returns records.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from penstock_crash.journal import JournalWriter
from penstock_simulation.scheduling import ORIGIN

from penstock_chaos.loads.common import FAST_RECONNECT, now, start

POLL_S = 0.5
MOST = 500


def write_message(journal: JournalWriter, reader: str, message: Message) -> None:
    """Write a received record."""
    headers = message.headers() or []
    name, text = headers[-1] if isinstance(headers, list) and headers else ("", None)
    origin = int(text) if name == ORIGIN and text is not None else None
    key, value = message.key() or b"", message.value() or b""
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    journal.write(
        "reminder", reader, message.partition(), message.offset(), key.decode(), value.decode(), origin, now()
    )


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    settings = FAST_RECONNECT | {
        "bootstrap.servers": options["bootstrap"],
        "group.id": options["name"],
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(options["topic"], p, OFFSET_BEGINNING) for p in range(options["partitions"])])
    while not end.is_set():
        received = [message for message in consumer.consume(MOST, POLL_S) if message.error() is None]
        for message in received:
            write_message(journal, options["name"], message)
        if received:
            journal.write("polled", now())
    consumer.close()
