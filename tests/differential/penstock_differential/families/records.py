"""Producing, reading and deleting records: valid and invalid batches, offsets, epochs, and producers' sequences."""

from __future__ import annotations

import random

from penstock.wire.record import Record
from penstock_differential import codec
from penstock_differential.case import Case
from penstock_differential.families import family
from penstock_differential.families.world import (
    TIME_MS,
    fetch_tree,
    init_producer,
    produce,
    produce_tree,
    read_back,
    records,
    topic,
    topic_id,
)
from penstock_differential.mutate import mutated
from penstock_differential.sides import Route
from penstock_differential.values import BatchSpec, Joined, Ref, Tree, resolve

STEPS = 12
ZSTD = 4
HEADER_EDGES: dict[str, tuple[int, ...]] = {
    "base_offset": (-1, 1, 7, (1 << 63) - 1),
    "batch_length": (-1, 0, 49, 48, 60, (1 << 31) - 1),
    "leader_epoch": (0, 5, (1 << 31) - 1),
    "magic": (0, 1, 3, -1, 127),
    "crc": (0, 1),
    "attributes": (1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0x20, 0x30, 0x40, 0x80, 0x4000, -1),
    "last_offset_delta": (-1, 0, 1, 5, (1 << 31) - 1),
    "base_timestamp_ms": (-2, -1, 0, 1, (1 << 63) - 1, -(1 << 63)),
    "max_timestamp_ms": (-2, -1, 0, 1, (1 << 63) - 1),
    "producer_id": (-2, -1, 0, 12345, (1 << 63) - 1),
    "producer_epoch": (-2, -1, 0, 3, (1 << 15) - 1),
    "base_sequence": (-2, -1, 0, 1, (1 << 31) - 1),
    "record_count": (-1, 0, 1, 2, 4, (1 << 31) - 1),
}
TOPIC_SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"message.timestamp.type": "LogAppendTime"},
    {"cleanup.policy": "compact"},
    {"max.message.bytes": "200"},
    {"message.timestamp.after.max.ms": "1000"},
    {"message.timestamp.before.max.ms": "1000"},
)


def random_batch(rng: random.Random) -> tuple[BatchSpec | Joined | bytes | None, int]:
    """Return a batch, valid in one case of three, and the number of errors in it."""
    codec_number = rng.choice([0, 0, 0, 1, 2, 3, 4])
    key = rng.choice([b"k", b"", None])
    made = records(rng.choice([1, 2, 3, 10]), rng.choice([0, 10, 300]), key=key)
    faults = 0
    if rng.random() < 0.1:
        faults = 1
        made = (*made, Record(timestamp_ms=rng.choice([-1, 0, TIME_MS - 5, TIME_MS + 10**12]), value=None))
    kind = rng.choice(["valid", "valid", "header", "header", "payload", "cut", "two", "empty", "noise", "null"])
    if kind == "header":
        names = rng.sample(sorted(HEADER_EDGES), rng.choice([1, 1, 2]))
        header = {name: rng.choice(HEADER_EDGES[name]) for name in names}
        faults += len(names) + (header.get("attributes") == -1)
        return BatchSpec(made, codec_number, header=header), faults
    if kind == "payload":
        payload = rng.choice([b"", b"\0", b"garbage", rng.randbytes(50)])
        return BatchSpec(made, codec_number, payload=payload), faults + 1
    if kind == "cut":
        return BatchSpec(made, codec_number, cut_bytes=rng.choice([1, 10, 60])), faults + 1
    if kind == "two":
        return Joined((BatchSpec(made, codec_number), BatchSpec(records(1)))), faults + 1
    if kind == "empty":
        return rng.choice([b"", BatchSpec(())]), 1
    if kind == "noise":
        return rng.randbytes(rng.choice([1, 12, 17, 61, 100])), 2
    return (None, 1) if kind == "null" else (BatchSpec(made, codec_number), faults)


@family("Produce", "Fetch", "ListOffsets", weight=6)
def batches(case: Case) -> None:
    """Valid and invalid batches, each on a topic with one kind of settings; then the stored records."""
    settings = case.rng.choice(TOPIC_SETTINGS)
    name = topic(case, configs=settings)
    limits = int(bool(settings) and "message.timestamp.type" not in settings)
    for _ in range(STEPS):
        acks, version = case.rng.choice([-1, 1]), case.version("Produce")
        batch, faults = random_batch(case.rng)
        case.note_faults(faults + limits + (isinstance(batch, BatchSpec) and batch.codec == ZSTD and version < 7))
        case.ask("Produce", produce_tree(name, {0: batch}, acks), version)
        if case.rng.random() < 0.3:
            read_back(case, name)
    read_back(case, name)


@family("Produce", weight=2)
def produce_requests(case: Case) -> None:
    """Produce requests with an error in a field other than the batch."""
    name = topic(case, partitions=2)
    for _ in range(STEPS):
        version = case.version("Produce", 0)
        tree = produce_tree(name, {0: BatchSpec(records()), 1: BatchSpec(records(1))}, case.rng.choice([-1, 1]))
        tree = case.mutate("Produce", version, tree)
        if tree["acks"] == 0:
            tree["acks"] = case.rng.choice([-2, 2, 100])
        case.ask("Produce", tree, version)
    read_back(case, name, (0, 1))


@family("Produce", weight=1)
def produce_unacknowledged(case: Case) -> None:
    """acks=0: no answer; the next request on the connection shows whether the connection survives."""
    name = topic(case)
    good, bad = BatchSpec(records(1)), BatchSpec(records(1), header={"crc": 1})
    for batch in [good, case.rng.choice([bad, good, b"noise", BatchSpec(records(1), header={"magic": 1})])]:
        version = case.version("Produce")
        target = case.rng.choice([name, name, f"{case.prefix}-unknown"])
        tree = {**produce_tree(name, {0: batch}), "acks": 0}
        tree["topic_data"][0]["name"] = target
        for side in case.sides:
            frame = codec.request_frame("Produce", version, resolve(tree, side.assigned))
            side.send_frame("Produce", version, frame, Route("leader", name, 0), "unacknowledged")
        case.ask("ApiVersions", {}, 0, channel="unacknowledged", route=Route("leader", name, 0), retry=False)
    read_back(case, name)


@family("Produce", "InitProducerId", "DescribeProducers", weight=5)
def idempotence(case: Case) -> None:
    """Sequences and epochs of idempotent producers: in order, repeated, skipped, wrapped, unknown ids."""
    name = topic(case, partitions=2)
    init_producer(case)
    sequence = [0, 0]
    for _ in range(STEPS * 2):
        partition, number = case.rng.randrange(2), case.rng.choice([1, 3])
        at = sequence[partition]
        kind = case.rng.choice(["next"] * 6 + ["repeat", "skip", "back", "epoch", "unknown", "negative", "several"])
        spec = BatchSpec(records(number), producer_id=Ref("p"), producer_epoch=Ref("p-epoch"), base_sequence=at)
        if kind == "repeat":
            spec = changed(spec, base_sequence=max(0, at - 3), records=records(3))
        elif kind == "skip":
            spec = changed(spec, base_sequence=at + case.rng.choice([1, 5, (1 << 31) - 1 - at]))
        elif kind == "back":
            spec = changed(spec, base_sequence=case.rng.choice([0, max(0, at - 1)]))
        elif kind == "epoch":
            spec = changed(spec, producer_epoch=Ref("p-epoch", case.rng.choice([-1, 1, 1, 2])))
        elif kind == "unknown":
            spec = changed(spec, producer_id=Ref("p", 1_000_000), base_sequence=case.rng.choice([0, 5]))
        elif kind == "negative":
            spec = changed(spec, base_sequence=case.rng.choice([-1, -2]))
        answer = produce(case, name, spec, partition, acks=case.rng.choice([-1, 1]))
        error = answer["responses"][0]["partition_responses"][0]["error_code"]
        if error == 0 and kind in ("next", "several"):
            sequence[partition] = at + number
        elif error == 0 and kind in ("skip", "epoch", "back", "negative"):
            break
        if case.rng.random() < 0.2:
            parts = case.rng.choice([[0], [0, 1], [0, 5], [], [0, 0]])
            case.ask("DescribeProducers", {"topics": [{"name": name, "partition_indexes": parts}]})
    read_back(case, name, (0, 1))


def changed(spec: BatchSpec, **fields: object) -> BatchSpec:
    """Return the batch with these fields changed."""
    return BatchSpec(**{**vars(spec), **fields})  # type: ignore[arg-type]


@family("Produce", "InitProducerId", weight=2)
def producer_pipeline(case: Case) -> None:
    """Several in-flight requests of one producer on one connection, in order or with a failing one between."""
    name = topic(case)
    init_producer(case)
    at, wrong = 0, case.rng.randrange(10)
    version = case.version("Produce")
    pending = []
    for index in range(5):
        spec = BatchSpec(records(2), producer_id=Ref("p"), producer_epoch=Ref("p-epoch"), base_sequence=at)
        if index == wrong:
            spec = changed(spec, header={"crc": 1})
        tree = produce_tree(name, {0: spec}, acks=case.rng.choice([-1, 1]))
        pending.append(case.begin("Produce", tree, version, channel="pipeline"))
        at += 2
    for one in pending:
        case.finish(one, retry=False)
    read_back(case, name)


@family("Fetch", weight=4)
def fetches(case: Case) -> None:
    """Fetch requests with and without sessions: offsets, epochs, sizes, isolation levels out of range."""
    name = topic(case, partitions=2)
    for partition in range(2):
        produce(case, name, BatchSpec(records(5)), partition)
    for _ in range(STEPS):
        version = case.version("Fetch")
        tree = fetch_tree(name, case.rng.randrange(2), case.rng.choice([0, 0, 2, 5, 6, -1]), case.rng.choice([0, 1]))
        tree = case.mutate("Fetch", version, tree, keep={"replica_id", "replica_state", "cluster_id", "min_bytes"})
        case.ask("Fetch", tree, version)


@family("Fetch", weight=3)
def fetch_sessions(case: Case) -> None:
    """Incremental fetch sessions: started, continued, with wrong ids and epochs, partitions added and forgotten."""
    name = topic(case, partitions=3)
    produce(case, name, BatchSpec(records(5)), 0)
    version = case.version("Fetch", 7)
    tree = {**fetch_tree(name), "session_epoch": 0}
    route = Route("leader", name, 0)
    case.ask("Fetch", tree, version, learn={"session": "session_id"}, channel="session", route=route)
    epoch = 1
    for _ in range(STEPS):
        session = {"session_id": Ref("session"), "session_epoch": epoch}
        kind = case.rng.choice(["same", "add", "forget", "wrong-epoch", "wrong-id", "produce", "close"])
        tree = {**fetch_tree(name), **session, "topics": []}
        if kind == "add":
            tree["topics"] = fetch_tree(name, case.rng.choice([0, 3]))["topics"]
        elif kind == "forget":
            gone = [case.rng.randrange(4)]
            tree["forgotten_topics_data"] = [{"topic": name, "topic_id": topic_id(name), "partitions": gone}]
        elif kind == "wrong-epoch":
            tree["session_epoch"] = case.rng.choice([epoch + 1, epoch + 5, max(1, epoch - 1)])
        elif kind == "wrong-id":
            tree["session_id"] = Ref("session", 1)
        elif kind == "produce":
            produce(case, name, BatchSpec(records(1)), 1)
            continue
        elif kind == "close":
            tree["session_epoch"] = -1
        answer = case.ask("Fetch", tree, version, channel="session", route=route, retry=False)
        if kind == "close" or session_is_empty(tree):
            break
        if answer["error_code"] == 0 and kind != "wrong-epoch":
            epoch += 1


def session_is_empty(tree: Tree) -> bool:
    """Whether a request may have taken the last partition out of its session."""
    return any(0 in topic["partitions"] for topic in tree.get("forgotten_topics_data", []))


@family("ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords", weight=5)
def offsets_and_deletion(case: Case) -> None:
    """Offsets by time and by epoch, with records deleted between the queries."""
    name = topic(case, partitions=2, configs=case.rng.choice(TOPIC_SETTINGS[:4]))
    for _ in range(2):
        produce(case, name, BatchSpec(records(case.rng.choice([3, 5]))), 0)
    for _ in range(STEPS):
        kind = case.rng.choice(["list", "list", "list", "epoch", "delete"])
        if kind == "list":
            stamp = case.rng.choice([-1, -2, -3, -4, -5, -6, -7, 0, TIME_MS, TIME_MS + 2, TIME_MS + 99, 1 << 62])
            part = {"partition_index": case.rng.choice([0, 0, 1, 2]), "current_leader_epoch": -1, "timestamp": stamp}
            tree = {"replica_id": -1, "isolation_level": case.rng.choice([0, 1, 2]), "timeout_ms": 5000}
            tree["topics"] = [{"name": name, "partitions": [part]}]
            version = case.version("ListOffsets")
            case.ask("ListOffsets", case.mutate("ListOffsets", version, tree, odds=0.4), version)
        elif kind == "epoch":
            part = {
                "partition": 0,
                "current_leader_epoch": case.rng.choice([-1, 0, 1]),
                "leader_epoch": case.rng.choice([-1, 0, 1, 5]),
            }
            tree = {"replica_id": -2, "topics": [{"topic": name, "partitions": [part]}]}
            version = case.version("OffsetForLeaderEpoch")
            tree = case.mutate("OffsetForLeaderEpoch", version, tree, odds=0.4)
            case.ask("OffsetForLeaderEpoch", tree, version)
        else:
            part = {"partition_index": 0, "offset": case.rng.choice([0, 1, 2, -1, -2, 100])}
            tree = {"topics": [{"name": name, "partitions": [part]}], "timeout_ms": 10_000}
            version = case.version("DeleteRecords")
            tree = (
                mutated("DeleteRecords", version, tree, case.rng, {"timeout_ms"}) if case.rng.random() < 0.3 else tree
            )
            case.ask("DeleteRecords", tree, version)
            read_back(case, name)
