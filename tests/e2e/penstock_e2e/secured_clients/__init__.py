"""Third-party clients on a secured broker: each produces, consumes in a group, commits a transaction, or is refused."""

from __future__ import annotations

from collections.abc import Callable

from penstock_e2e.connections import Connection
from penstock_e2e.secured_clients import aio, kafka_python, kcat, librdkafka

Produce = Callable[[Connection, str, list[bytes]], None]
"""Produce the values in a transaction if the client has them, named like the topic. Raises the client's own error."""
Consume = Callable[[Connection, str, int], list[bytes]]
"""Return that many values of a topic, read as a member of the group that is named like the topic, which commits."""

CLIENTS: dict[str, tuple[Produce, Consume]] = {
    "aiokafka": (aio.produce, aio.consume),
    "confluent-kafka": (librdkafka.produce, librdkafka.consume),
    "kafka-python": (kafka_python.produce, kafka_python.consume),
    "kcat": (kcat.produce, kcat.consume),
}
