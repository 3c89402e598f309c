"""Reads with kafka-python, which shares no code with the client of the loads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic

READ_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Read:
    """A record as read."""

    offset: int
    key: str | None
    value: bytes | None
    headers: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Content:
    """The contents of a partition from `start` (log start offset) to `end` (end offset)."""

    start: int
    end: int
    records: list[Read]


@contextlib.contextmanager
def consumer(bootstrap: str) -> Iterator[KafkaConsumer]:
    client = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        auto_offset_reset="none",
        enable_auto_commit=False,
        fetch_max_wait_ms=100,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=200,
    )
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap, reconnect_backoff_ms=20, reconnect_backoff_max_ms=200)
    try:
        yield client
    finally:
        client.close()


def create_topic(bootstrap: str, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    with admin(bootstrap) as client:
        client.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(config or {}))])


def end_offsets(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the end offset of each partition."""
    with consumer(bootstrap) as client:
        found = client.end_offsets([TopicPartition(topic, p) for p in range(partitions)])
    return {each.partition: offset for each, offset in found.items()}


def start_offsets(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the log start offset of each partition."""
    with consumer(bootstrap) as client:
        found = client.beginning_offsets([TopicPartition(topic, p) for p in range(partitions)])
    return {each.partition: offset for each, offset in found.items()}


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, Content]:
    """Return the complete contents of a topic by partition."""
    wanted = [TopicPartition(topic, p) for p in range(partitions)]
    with consumer(bootstrap) as client:
        client.assign(wanted)
        starts, ends = client.beginning_offsets(wanted), client.end_offsets(wanted)
        for each in wanted:
            client.seek(each, starts[each])
        found: dict[int, list[Read]] = {p: [] for p in range(partitions)}
        deadline = time.monotonic() + READ_LIMIT_S
        while any(client.position(each) < ends[each] for each in wanted):
            behind = [each for each in wanted if client.position(each) < ends[each]]
            assert time.monotonic() < deadline, (
                f"cannot read {behind} to the end: {[client.position(b) for b in behind]}"
            )
            for each, messages in client.poll(timeout_ms=200, max_records=5000).items():
                found[each.partition] += [
                    Read(m.offset, m.key.decode() if m.key is not None else None, m.value, dict(m.headers))
                    for m in messages
                ]
    return {each.partition: Content(starts[each], ends[each], found[each.partition]) for each in wanted}


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the committed offsets of a group by partition; -1 if none."""
    client = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, reconnect_backoff_ms=20
    )
    try:
        found = {p: client.committed(TopicPartition(topic, p)) for p in range(partitions)}
    finally:
        client.close()
    return {p: -1 if offset is None else offset for p, offset in found.items()}


def topics(bootstrap: str) -> set[str]:
    with consumer(bootstrap) as client:
        return set(client.topics())
