"""librdkafka, with confluent-kafka. See the package for arguments and output."""

from __future__ import annotations

import os
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer

from bench.roll.clients.events import LIMIT_S, RATE, Events


def produce(bootstrap: str, topic: str, events: Events) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "error_cb": lambda e: events.note_error(e.name())})

    def delivered(number: int, error: KafkaError | None) -> None:
        if error is None:
            events.note_acknowledged(number)
        else:
            events.note_error(error.name())

    number = 0
    while not events.is_stopping.wait(1 / RATE):
        sent = number
        number += 1

        def on_delivery(error: KafkaError | None, _message: Message, sent: int = sent) -> None:
            delivered(sent, error)

        producer.produce(topic, str(sent).encode(), on_delivery=on_delivery)
        producer.poll(0)
    producer.flush(LIMIT_S)
    events.is_flushed.set()


def main() -> None:
    bootstrap, topic, group = sys.argv[1:]
    events = Events()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "client.rack": os.environ.get("ROLL_RACK", ""),
            "error_cb": lambda e: events.note_error(e.name()),
        }
    )
    consumer.subscribe([topic])
    threading.Thread(target=produce, args=(bootstrap, topic, events), daemon=True).start()
    deadline_s = float("inf")
    while not events.is_complete() and time.monotonic() < deadline_s:
        message = consumer.poll(0.2)
        if message is not None:
            error = message.error()
            if error is None:
                events.note_received(message.value())
            else:
                events.note_error(error.name())
        if events.is_stopping.is_set():
            deadline_s = min(deadline_s, time.monotonic() + LIMIT_S)
    consumer.close()


main()
