"""kafka-python. See the package for arguments and output."""

from __future__ import annotations

import logging
import sys
import threading
import time
from functools import partial
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from bench.roll.clients.events import LIMIT_S, RATE, Events


def produce(bootstrap: str, topic: str, events: Events) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","))

    def acknowledged(number: int, _metadata: Any) -> None:
        events.note_acknowledged(number)

    number = 0
    while not events.is_stopping.wait(1 / RATE):
        try:
            future = producer.send(topic, str(number).encode())
            future.add_callback(partial(acknowledged, number))
            future.add_errback(events.note_error)
        except Exception as e:
            events.note_error(e)
        number += 1
    try:
        producer.flush(LIMIT_S)
    except Exception as e:
        events.note_error(e)
    events.is_flushed.set()


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    bootstrap, topic, group = sys.argv[1:]
    events = Events()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap.split(","), group_id=group, auto_offset_reset="earliest"
    )
    threading.Thread(target=produce, args=(bootstrap, topic, events), daemon=True).start()
    deadline_s = float("inf")
    while not events.is_complete() and time.monotonic() < deadline_s:
        try:
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    events.note_received(record.value)
        except Exception as e:
            events.note_error(e)
        if events.is_stopping.is_set():
            deadline_s = min(deadline_s, time.monotonic() + LIMIT_S)
    consumer.close()


main()
