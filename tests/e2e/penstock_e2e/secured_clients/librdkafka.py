"""confluent-kafka on a secured broker. Errors of connections come by a callback, and the client retries."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from penstock_e2e.connections import Connection
from penstock_e2e.model import DEADLINE_S

REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._TRANSPORT)

QUIET = {"log_level": 0}
"""A client whose initialisation was refused stays in the background for a while, and logs."""


def produce(connection: Connection, topic: str, values: list[bytes]) -> None:
    errors: list[KafkaError] = []
    settings = {**connection.librdkafka(), "transactional.id": topic, "error_cb": errors.append, **QUIET}
    producer = Producer(settings)
    _initialise(producer, errors)
    producer.begin_transaction()
    delivered: list[KafkaError | None] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: delivered.append(error))
    producer.flush(DEADLINE_S)
    for error in delivered:
        if error is not None:
            raise KafkaException(error)
    producer.commit_transaction(DEADLINE_S)


def _initialise(producer: Producer, errors: list[KafkaError]) -> None:
    """Wait for the coordinator. Raises the first error that says why there is no connection."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return producer.init_transactions(0.5)
        except KafkaException as error:
            producer.poll(0)
            found = [each for each in errors if each.code() in REFUSALS]
            if found:
                raise KafkaException(found[0]) from None
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise


def consume(connection: Connection, topic: str, count: int) -> list[bytes]:
    group = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**connection.librdkafka(), **group, **QUIET})
    try:
        consumer.subscribe([topic])
        values: list[bytes] = []
        deadline_s = time.monotonic() + DEADLINE_S
        while len(values) < count:
            assert time.monotonic() < deadline_s, (
                f"read {len(values)} of {count} within {DEADLINE_S} s: {sorted(values)[:120]}"
            )
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                raise KafkaException(message.error())
            values.append(message.value() or b"")
        consumer.commit(asynchronous=False)
        return values
    finally:
        consumer.close()
