"""Initial state of cases: topics, records, members and producers, created on both sides by valid requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.wire.record import Record
from penstock_differential.case import Case, CaseEnded
from penstock_differential.sides import Route, Side
from penstock_differential.values import BatchSpec, Joined, Ref, Tree

DAY_MS = 86_400_000
TIME_MS = (int(time.time() * 1000) // DAY_MS - 1) * DAY_MS
"""Timestamp of a batch's first record: the start of the day before the run, which no retention has reached yet."""
KNOWN_LIMIT_S = 20.0
POLL_S = 0.02


def topic(
    case: Case, suffix: str = "t", partitions: int = 1, configs: Mapping[str, str] | None = None, replicas: int = -1
) -> str:
    """Create a topic on both sides and wait until its leaders serve it. Its id is known as `id:<name>`."""
    name = f"{case.prefix}-{suffix}"
    settings = [{"name": key, "value": value} for key, value in (configs or {}).items()]
    one = {"name": name, "num_partitions": partitions, "replication_factor": replicas, "configs": settings}
    case.ask("CreateTopics", {"topics": [one], "timeout_ms": 30_000}, 4)
    wait_for_topic(case, name, partitions)
    return name


def wait_for_topic(case: Case, name: str, partitions: int) -> None:
    """Wait until each broker of both sides reports a leader for each partition, and learn the topic's id."""
    deadline = time.monotonic() + KNOWN_LIMIT_S
    for side in case.sides:
        brokers = range(1, len(side.service.addresses) + 1)
        while True:
            is_known = all(_knows(side, broker_id, name, partitions) for broker_id in brokers)
            if is_known and _serves(side, name, partitions):
                side.assigned[f"id:{name}"] = side.topic_id(name)
                break
            if time.monotonic() > deadline:
                raise CaseEnded
            time.sleep(POLL_S)


def _knows(side: Side, broker_id: int, name: str, partitions: int) -> bool:
    """Whether a broker knows the topic and a leader for each partition."""
    tree = side.ask("Metadata", 12, {"topics": [{"name": name}]}, Route("broker", partition=broker_id)).tree
    if tree is None or tree["topics"][0]["error_code"]:
        return False
    found = tree["topics"][0]["partitions"]
    return len([part for part in found if part["leader_id"] >= 0 and not part["error_code"]]) == partitions


def _serves(side: Side, name: str, partitions: int) -> bool:
    """Whether the leader of each partition answers."""
    for index in range(partitions):
        part = {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
        request = {"replica_id": -1, "topics": [{"name": name, "partitions": [part]}]}
        tree = side.ask("ListOffsets", 5, request, Route("leader", name, index)).tree
        if tree is None or tree["topics"][0]["partitions"][0]["error_code"]:
            side.forget_routes()
            return False
    return True


def topic_id(name: str) -> Ref:
    """Return the id of a topic created by `topic`."""
    return Ref(f"id:{name}")


def records(
    number: int = 3, size_bytes: int = 10, first_ms: int = TIME_MS, key: bytes | None = b"k"
) -> tuple[Record, ...]:
    """Return records with increasing times."""
    return tuple(
        Record(timestamp_ms=first_ms + index, key=key, value=bytes([97 + index % 26]) * size_bytes)
        for index in range(number)
    )


def produce_tree(
    name: str,
    batches: Mapping[int, BatchSpec | Joined | bytes | None],
    acks: int = -1,
    transactional_id: str | None = None,
) -> Tree:
    """Return a Produce request for one topic."""
    data = [{"index": index, "records": batch} for index, batch in batches.items()]
    topics = [{"name": name, "topic_id": topic_id(name), "partition_data": data}]
    return {"transactional_id": transactional_id, "acks": acks, "timeout_ms": 10_000, "topic_data": topics}


def produce(
    case: Case, name: str, batch: BatchSpec | Joined, partition: int = 0, version: int | None = None, **more: Any
) -> Tree:
    """Write one batch with acks=all."""
    version = case.version("Produce") if version is None else version
    return case.ask("Produce", produce_tree(name, {partition: batch}, **more), version)


def fetch_tree(name: str, partition: int = 0, offset: int = 0, isolation: int = 0) -> Tree:
    """Return a Fetch request without a session that reads one partition and does not wait."""
    part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": name, "topic_id": topic_id(name), "partitions": [part]}],
    }


def read_back(case: Case, name: str, partitions: Sequence[int] = (0,)) -> None:
    """Compare the stored state: all records, and the offsets of the log's ends."""
    for partition in partitions:
        case.ask("Fetch", fetch_tree(name, partition, isolation=case.rng.randrange(2)), case.version("Fetch", 4))
        part = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
        request = {"replica_id": -1, "topics": [{"name": name, "partitions": [part]}]}
        case.ask("ListOffsets", request)


def init_producer(case: Case, name: str | None = None, timeout_ms: int = 60_000, key: str = "p") -> None:
    """Obtain a producer id, known as `key`, and its epoch, as `<key>-epoch`."""
    request = {"transactional_id": name, "transaction_timeout_ms": timeout_ms, "producer_id": -1, "producer_epoch": -1}
    case.ask("InitProducerId", request, learn={key: "producer_id", f"{key}-epoch": "producer_epoch"})


SUBSCRIPTION = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"
"""A consumer's metadata: version 1, the topic "t", no user data, no owned partitions."""
ASSIGNMENT = b"\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
"""Assignment of partition 0 of topic "t"."""


def join_tree(group: str, member: str | Ref = "", **more: Any) -> Tree:
    """Return a JoinGroup request of a consumer."""
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 5_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        **more,
    }


def join(case: Case, group: str, key: str = "m", sync: bool = True, **more: Any) -> None:
    """Join a group as its only member, known as `key`, and fetch the assignment."""
    version = case.version("JoinGroup")
    answer = case.ask("JoinGroup", join_tree(group, **more), version, learn={key: "member_id"})
    if answer["error_code"] == 79:
        answer = case.ask("JoinGroup", join_tree(group, Ref(key), **more), version, learn={key: "member_id"})
    if sync:
        case.ask("SyncGroup", sync_tree(group, answer["generation_id"], Ref(key), **more))


def sync_tree(group: str, generation: int, member: str | Ref, **more: Any) -> Tree:
    """Return a SyncGroup request of the leader."""
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": more.get("group_instance_id"),
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": ASSIGNMENT}],
    }


def commit_tree(
    group: str, name: str, offset: int = 1, generation: int = -1, member: str | Ref = "", **more: Any
) -> Tree:
    """Return an OffsetCommit request for partition 0."""
    part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "m"}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "retention_time_ms": -1,
        "topics": [{"name": name, "topic_id": topic_id(name), "partitions": [part]}],
        **more,
    }


def offset_fetch_tree(group: str, name: str | None, version: int) -> Tree:
    """Return an OffsetFetch request, for all topics if `name` is None."""
    if version >= 8:
        topics = None if name is None else [{"name": name, "topic_id": topic_id(name), "partition_indexes": [0]}]
        return {"groups": [{"group_id": group, "topics": topics}], "require_stable": False}
    topics = None if name is None else [{"name": name, "partition_indexes": [0]}]
    return {"group_id": group, "topics": topics, "require_stable": False}
