"""Committed offsets: raw connections, each with many OffsetCommits of one partition in flight.

A commit counts when the broker has answered it, which is when it is durable.

Each connection has its own groups, so that the commits of a key are in order. At the end the load fetches all offsets
and compares them with the last acknowledged ones.
"""

from __future__ import annotations

import selectors
import struct
import time
from collections import deque

from bench import cluster_wire, procfs
from bench.connection import Connection
from bench.loads.specs import Commits as Spec
from bench.loads.specs import Metrics
from bench.loads.stream import Stream

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
COMMIT_VERSION, FETCH_VERSION = 7, 5
CLIENT = b"bench"
PATIENCE_S = 30.0
NAMES_EACH = 100


def string(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data


def framed(api: int, version: int, body: bytes) -> bytes:
    message = struct.pack(">hhi", api, version, 0) + string(CLIENT) + body
    return struct.pack(">i", len(message)) + message


def commit_request(group: bytes, topic: bytes, partition: int) -> tuple[bytearray, int]:
    """Return a commit without a member, as from a consumer with assigned partitions, and the position of its offset."""
    head = string(group) + struct.pack(">i", -1) + string(b"") + struct.pack(">h", -1)
    head += struct.pack(">i", 1) + string(topic) + struct.pack(">ii", 1, partition)
    tail = struct.pack(">i", -1) + string(b"")
    request = bytearray(framed(OFFSET_COMMIT, COMMIT_VERSION, head + bytes(8) + tail))
    return request, len(request) - len(tail) - 8


def fetch_request(group: bytes, topic: bytes, partitions: int) -> bytes:
    body = string(group) + struct.pack(">i", 1) + string(topic)
    body += struct.pack(f">i{partitions}i", partitions, *range(partitions))
    return framed(OFFSET_FETCH, FETCH_VERSION, body)


def fetched(answer: bytes, topic: bytes, partitions: int) -> list[int]:
    """Return the offsets by partition. Raises RuntimeError for an error code."""
    position = 4 + 4 + 4 + 2 + len(topic) + 4
    offsets = [-1] * partitions
    for _ in range(partitions):
        index, offset, _, length = struct.unpack_from(">iqih", answer, position)
        position += 18 + max(length, 0)
        (error,) = struct.unpack_from(">h", answer, position)
        position += 2
        if error:
            raise RuntimeError(f"an offset could not be fetched: error {error}")
        offsets[index] = offset
    return offsets


class Committer:
    """One connection with its groups in turn, and the last acknowledged offset of each key."""

    def __init__(self, spec: Spec, groups: list[bytes]) -> None:
        self.spec = spec
        self.connection = Connection(spec.address, PATIENCE_S)
        self.stream = Stream(self.connection)
        self.topic = spec.topic.encode()
        self.groups = groups
        self.keys = [(g, p) for p in range(spec.partitions) for g in range(len(self.groups))]
        self.requests = [commit_request(self.groups[g], self.topic, p) for g, p in self.keys]
        self.acknowledged = [-1] * len(self.keys)
        self.under_way: deque[tuple[int, int, float]] = deque()
        self.latencies: list[float] = []
        self.refused = self.sent = 0

    def fill(self) -> None:
        while len(self.under_way) < self.spec.depth and not self.stream.full:
            key, offset = self.sent % len(self.keys), self.sent
            request, place = self.requests[key]
            struct.pack_into(">q", request, place, offset)
            self.under_way.append((key, offset, time.perf_counter()))
            self.sent += 1
            self.stream.send(bytes(request))

    def take(self) -> int:
        now = time.perf_counter()
        answers = self.stream.answers()
        for answer in answers:
            key, offset, sent = self.under_way.popleft()
            if answer[-2:] == b"\x00\x00":
                self.acknowledged[key] = offset
                self.latencies.append(now - sent)
            else:
                self.refused += 1
        return len(answers)

    def lost(self) -> int:
        """Return the number of keys whose fetched offset differs from the last acknowledged one."""
        self.stream.socket.settimeout(PATIENCE_S)
        lost = 0
        for g, group in enumerate(self.groups):
            answer = self.connection.ask(fetch_request(group, self.topic, self.spec.partitions))
            found = fetched(answer, self.topic, self.spec.partitions)
            for (key_group, partition), offset in zip(self.keys, self.acknowledged, strict=True):
                lost += key_group == g and offset >= 0 and found[partition] < offset
        return lost


def coordinated_groups(spec: Spec) -> list[bytes]:
    """Return names of groups that the broker at `spec.address` coordinates. Raises RuntimeError if it coordinates none.

    Kafka creates its offsets topic at the first request, and returns no coordinator until that is complete.
    """
    connection = Connection(spec.address, PATIENCE_S)
    found: list[bytes] = []
    number = 0
    deadline = time.perf_counter() + PATIENCE_S
    try:
        while len(found) < spec.groups:
            names = [f"group-{n}" for n in range(number, number + NAMES_EACH)]
            told = cluster_wire.coordinators_response(connection.ask(cluster_wire.coordinators_request(names)))
            if len(told) < len(names):
                time.sleep(0.1)
            else:
                found += [name.encode() for name in names if told[name] == spec.address]
                number += NAMES_EACH
            if time.perf_counter() > deadline:
                raise RuntimeError(f"the broker at {spec.address} coordinates {len(found)} of {number} groups")
    finally:
        connection.close()
    return found[: spec.groups]


def run(spec: Spec) -> Metrics:
    """Run the load. Raises RuntimeError if nothing was committed."""
    groups = coordinated_groups(spec)
    committers = [Committer(spec, groups[number :: spec.connections]) for number in range(spec.connections)]
    selector = selectors.DefaultSelector()
    for committer in committers:
        selector.register(committer.stream.socket, selectors.EVENT_READ, committer)
    work(selector, committers, spec.warm_up_s)
    for committer in committers:
        committer.latencies.clear()
        committer.refused = 0
    cpu_before, started = procfs.cpu_s(*spec.broker_pids), time.perf_counter()
    work(selector, committers, spec.seconds)
    elapsed_s, cpu_s = time.perf_counter() - started, procfs.cpu_s(*spec.broker_pids) - cpu_before
    latencies = sorted(latency for committer in committers for latency in committer.latencies)
    if not latencies:
        raise RuntimeError("nothing was committed")
    return {
        "commits_per_s": len(latencies) / elapsed_s,
        "cpu_s_per_million": cpu_s / len(latencies) * 1e6,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
        "refused": float(sum(committer.refused for committer in committers)),
        "lost": float(sum(committer.lost() for committer in committers)),
    }


def work(selector: selectors.BaseSelector, committers: list[Committer], seconds: float) -> None:
    """Keep commits in flight, then wait for the last responses."""
    until = time.perf_counter() + seconds
    for committer in committers:
        committer.fill()
    while time.perf_counter() < until:
        for key, _ in selector.select(0.1):
            key.data.take()
            key.data.fill()
    deadline = time.perf_counter() + PATIENCE_S
    while any(committer.under_way for committer in committers):
        if time.perf_counter() > deadline:
            raise RuntimeError("commits were not answered")
        for committer in committers:
            committer.stream.push()
        for key, _ in selector.select(0.1):
            key.data.take()
