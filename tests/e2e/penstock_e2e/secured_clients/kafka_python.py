"""kafka-python on a secured broker."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from penstock_e2e.connections import Connection
from penstock_e2e.model import DEADLINE_S


class _Tokens(AbstractTokenProvider):
    def __init__(self, connection: Connection, **config: object) -> None:
        super().__init__(**config)
        self._connection = connection

    def token(self) -> str:
        return self._connection.token()


def _settings(connection: Connection) -> dict[str, Any]:
    return connection.for_python(_Tokens(connection))


def produce(connection: Connection, topic: str, values: list[bytes]) -> None:
    limit_ms = round(connection.limit_s * 1000)
    producer = KafkaProducer(transactional_id=topic, bootstrap_timeout_ms=limit_ms, **_settings(connection))
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(DEADLINE_S)
        producer.commit_transaction()
    finally:
        producer.close(timeout=1)


def consume(connection: Connection, topic: str, count: int) -> list[bytes]:
    group = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    limit = {"consumer_timeout_ms": DEADLINE_S * 1000, "isolation_level": "read_committed"}
    consumer = KafkaConsumer(topic, **group, **limit, **_settings(connection))
    try:
        values = [next(consumer).value for _ in range(count)]
        consumer.commit()
        return values
    finally:
        consumer.close()
