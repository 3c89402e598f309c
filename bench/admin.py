"""Creating and deleting topics with librdkafka's admin client; errors become RuntimeError that names the topic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import connection

LIMIT_S = 300.0


def _client(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "socket.timeout.ms": int(LIMIT_S * 1000), "log_level": 3})


def create_topics(address: str, names: Sequence[str], partitions: int, settings: Mapping[str, str]) -> None:
    """Asks for all of them in one request and returns with the answer."""
    admin = _client(address)
    topics = [NewTopic(name, partitions, 1, config=dict(settings)) for name in names]
    futures = admin.create_topics(topics, request_timeout=LIMIT_S, operation_timeout=LIMIT_S)
    for name, future in futures.items():
        try:
            future.result(LIMIT_S)
        except KafkaException as error:
            raise RuntimeError(f"the broker at {address} refused to create topic {name}: {error}") from error


def delete_topic(address: str, name: str) -> None:
    admin = _client(address)
    for future in admin.delete_topics([name], request_timeout=LIMIT_S, operation_timeout=LIMIT_S).values():
        try:
            future.result(LIMIT_S)
        except KafkaException as error:
            raise RuntimeError(f"the broker at {address} refused to delete topic {name}: {error}") from error


def wait_for_leaders(address: str, name: str, partitions: int) -> None:
    """Asks until that many partitions have a leader; TimeoutError where they never do."""
    deadline = time.monotonic() + LIMIT_S
    while connection.led_partitions(address, name, create=True) < partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {name} does not have {partitions} leaders after {LIMIT_S} s")
        time.sleep(0.02)
