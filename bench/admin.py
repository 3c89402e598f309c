"""Create and delete topics with librdkafka's admin client. Errors become RuntimeError with the topic's name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import cluster_wire, connection

LIMIT_S = 300.0


def _client(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "socket.timeout.ms": int(LIMIT_S * 1000), "log_level": 3})


def create_topics(
    address: str, names: Sequence[str], partitions: int, settings: Mapping[str, str], replicas: int = 1
) -> None:
    """Create all topics in one request and wait for the response."""
    admin = _client(address)
    topics = [NewTopic(name, partitions, replicas, config=dict(settings)) for name in names]
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


def wait_for_leaders(addresses: Sequence[str], name: str, partitions: int, *, create: bool = False) -> None:
    """Query each broker until it reports `partitions` partitions with a leader. Raises TimeoutError."""
    deadline = time.monotonic() + LIMIT_S
    for address in addresses:
        while connection.led_partitions(address, name, create=create) < partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {name} does not have {partitions} leaders at {address} after {LIMIT_S} s")
            time.sleep(0.02)


def wait_until_in_sync(addresses: Sequence[str], names: Sequence[str], partitions: int, replicas: int) -> None:
    """Query each broker until it reports a leader and `replicas` in-sync replicas for every partition."""
    deadline = time.monotonic() + LIMIT_S
    for address in addresses:
        while (short := _not_in_sync(address, names, partitions, replicas)) > 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{short} partitions are not in sync, as {address} tells, after {LIMIT_S} s")
            time.sleep(0.05)


def _not_in_sync(address: str, names: Sequence[str], partitions: int, replicas: int) -> int:
    asking = connection.Connection(address)
    try:
        told = cluster_wire.metadata_response(asking.ask(cluster_wire.metadata_request(names)))
    finally:
        asking.close()
    good = sum(s.leader >= 0 and s.in_sync >= replicas for name in names for s in told.topics.get(name, ()))
    return len(names) * partitions - good


def leader_address(addresses: Sequence[str], name: str, partition: int) -> str:
    """Return the address of a partition's leader, as the first broker reports it."""
    asking = connection.Connection(addresses[0])
    try:
        told = cluster_wire.metadata_response(asking.ask(cluster_wire.metadata_request([name])))
    finally:
        asking.close()
    return next(told.brokers[state.leader] for state in told.topics[name] if state.index == partition)


def elect_preferred(address: str) -> None:
    """Elect the preferred leader of every partition. Raises RuntimeError if the broker rejects the request."""
    asking = connection.Connection(address, LIMIT_S)
    try:
        error = cluster_wire.election_response(asking.ask(cluster_wire.election_request()))
    finally:
        asking.close()
    if error:
        raise RuntimeError(f"the broker at {address} refused to elect preferred leaders: error code {error}")
