"""A share group: raw connections, one for each member.

A record counts when the broker has answered its acknowledgement.
"""

from __future__ import annotations

import gc
import selectors
import struct
import time
import uuid
from collections import deque

from bench import share_wire, wire
from bench.connection import Connection
from bench.loads.one_by_one import accepted
from bench.loads.section import Section, percentiles
from bench.loads.specs import Metrics
from bench.loads.specs import Share as Spec
from bench.loads.stream import Stream
from bench.share_wire import ACCEPT, RELEASE, Delivery, Ranges, ShareMember

MAX_WAIT_MS = 500
JOIN_LIMIT_S = 30.0
JOIN_INTERVAL_S = 0.05
WARM_UP_S = 0.5
DRAIN_LIMIT_S = 20.0
AFTER_VALUE_BYTES = 1
"""The number of headers follows the value of a record."""
STAMP = struct.Struct(">q")


class Worker:
    """A member on its connection: fetches, accepts, and fetches again."""

    def __init__(self, load: ShareLoad, stream: Stream, member: ShareMember) -> None:
        self.load, self.stream, self.member = load, stream, member
        self.held: dict[int, Ranges] = {}
        self.single: deque[tuple[int, int]] = deque()
        """Records to acknowledge one by one: partition and offset."""
        self.in_flight: deque[tuple[bool, int]] = deque()
        """For each request in flight, whether it is a fetch, and how many records it accepts."""

    def send_next(self) -> None:
        """Acknowledge the next records one by one, as far as the spec permits requests in flight, or fetch.

        A fetch waits for the responses to all acknowledgements, as clients' fetches do.
        """
        limit = self.load.spec.in_flight
        requests = []
        while self.single and len(self.in_flight) < limit:
            requests.append(self.acknowledge(*self.single.popleft()))
        if not self.in_flight:
            requests.append(self.fetch())
        if requests:
            self.stream.send(b"".join(requests))

    def acknowledge(self, index: int, offset: int) -> bytes:
        """Return the request that accepts a record, or releases it."""
        is_release = self.load.spec.alternating and self.load.is_release_next((index, offset))
        self.in_flight.append((False, 0 if is_release else 1))
        return self.member.acknowledge({index: [(offset, offset)]}, RELEASE if is_release else ACCEPT)

    def fetch(self) -> bytes:
        """Return a fetch that accepts what is held."""
        self.in_flight.append((True, sum(last - first + 1 for each in self.held.values() for first, last in each)))
        request = self.member.fetch(self.held, max_records=self.load.spec.max_records, max_wait_ms=MAX_WAIT_MS)
        self.held = {}
        return request

    def on_readable(self) -> None:
        """Handle the responses, and send the next requests."""
        if self.stream.full:
            self.stream.push()
        for answer in self.stream.answers():
            is_fetch, accepted_records = self.in_flight.popleft()
            if is_fetch:
                self.take(answer, share_wire.fetch_response(answer))
            else:
                share_wire.acknowledge_response(answer)
            self.load.accepted += accepted_records
        if not self.stream.full:
            self.send_next()

    def take(self, answer: bytes, deliveries: list[Delivery]) -> None:
        """Keep the acquired records for their acknowledgement, and measure when they were sent.

        Raises WireError if a partition has an error, except before the section: Kafka's members retry then.
        """
        errors = [each.error for each in deliveries if each.error]
        if errors and self.load.is_measuring:
            raise wire.WireError(f"share fetches of partitions failed with errors {errors}")
        if self.load.spec.rate_per_s:
            self.load.on_delivered(answer, deliveries)
        if self.load.spec.one_by_one:
            self.single.extend(
                (each.partition, offset)
                for each in deliveries
                for first, last in each.acquired
                for offset in range(first, last + 1)
            )
        else:
            self.held = {each.partition: each.acquired for each in deliveries if each.acquired}


class ShareLoad:
    """All members of the group, and the producer if there is one."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.accepted = 0
        self.is_measuring = False
        self.started_ns = time.perf_counter_ns()
        self.delivered_ns: list[int] = []
        self.sent = self.acknowledged = 0
        self.released: set[tuple[int, int]] = set()
        """Records that were released once: partition and offset."""
        self.workers: list[Worker] = []
        self.selector = selectors.DefaultSelector()
        self.producer: Stream | None = None

    def is_release_next(self, record: tuple[int, int]) -> bool:
        """Return True the first time for every second record of a partition."""
        if record[1] % 2 or record in self.released:
            return False
        self.released.add(record)
        return True

    def join(self) -> list[Connection]:
        """Let all members join the group at its coordinator, and open their connections."""
        spec, group = self.spec, f"share-{uuid.uuid4()}"
        admin = Connection(spec.address, spec.limit_s)
        setting = share_wire.group_config_request(group, "share.auto.offset.reset", "earliest")
        share_wire.group_config_response(admin.ask(setting))
        topic_id = share_wire.topic_id_response(admin.ask(share_wire.topic_id_request(spec.topic)))
        coordinator = Connection(find_coordinator(admin, group), spec.limit_s)
        connections = [admin, coordinator]
        for _ in range(spec.members):
            member = str(uuid.uuid4())
            join_group(coordinator, share_wire.heartbeat_request(group, member, 0, spec.topic))
            connection = Connection(spec.address, spec.limit_s)
            connections.append(connection)
            worker = Worker(self, Stream(connection), ShareMember(group, member, topic_id, spec.partitions))
            self.workers.append(worker)
            self.selector.register(connection.socket, selectors.EVENT_READ, worker.on_readable)
        if spec.rate_per_s:
            connections.append(self.add_producer())
        return connections

    def add_producer(self) -> Connection:
        """Open the producer's connection."""
        connection = Connection(self.spec.address, self.spec.limit_s)
        self.producer = Stream(connection)
        self.selector.register(connection.socket, selectors.EVENT_READ, self.on_produced)
        return connection

    def on_produced(self) -> None:
        """Count the responses to the producer."""
        assert self.producer is not None, "there is a producer"
        for answer in self.producer.answers():
            accepted(answer)
            self.acknowledged += 1

    def on_delivered(self, answer: bytes, deliveries: list[Delivery]) -> None:
        """Record the times from the schedule to the delivery. Each batch has one record, which starts with its time.

        Records of earlier sections do not count.
        """
        now = time.perf_counter_ns()
        for each in deliveries:
            for _, end, base in each.batches:
                if any(first <= base <= last for first, last in each.acquired):
                    (sent,) = STAMP.unpack_from(answer, end - AFTER_VALUE_BYTES - self.spec.size_bytes)
                    if sent >= self.started_ns:
                        self.delivered_ns.append(now - sent)

    def poll(self, until_s: float) -> None:
        """Handle responses until a time of `perf_counter`, and produce what is due."""
        interval_ns = int(1e9 / self.spec.rate_per_s) if self.spec.rate_per_s else 0
        due_ns = time.perf_counter_ns() + interval_ns
        while time.perf_counter() < until_s:
            if self.producer is not None:
                while time.perf_counter_ns() >= due_ns and not self.producer.full:
                    self.produce(due_ns)
                    due_ns += interval_ns
                self.producer.push()
            self.handle_ready(0.0 if self.producer is not None else 0.01)

    def handle_ready(self, timeout_s: float) -> None:
        """Handle the responses that have arrived."""
        for key, _ in self.selector.select(timeout_s):
            key.data()

    def produce(self, due_ns: int) -> None:
        """Send one message."""
        assert self.producer is not None, "there is a producer"
        value = STAMP.pack(due_ns).ljust(self.spec.size_bytes, b"x")
        partition = self.sent % self.spec.partitions
        self.sent += 1
        self.producer.send(wire.produce_request(self.spec.topic, [(partition, wire.record_batch([value]))]))

    def drain(self) -> None:
        """Wait until all that was produced has been delivered. Raises RuntimeError."""
        deadline = time.perf_counter() + DRAIN_LIMIT_S
        while len(self.delivered_ns) < self.sent:
            self.handle_ready(0.01)
            if time.perf_counter() > deadline:
                raise RuntimeError(f"of {self.sent} messages only {len(self.delivered_ns)} were delivered")


def find_coordinator(connection: Connection, group: str) -> str:
    """Return the address of the group's coordinator once it has one. Raises RuntimeError."""
    deadline = time.monotonic() + JOIN_LIMIT_S
    request = share_wire.find_coordinator_request(group)
    while (address := share_wire.find_coordinator_response(connection.ask(request))) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the group {group} has no coordinator after {JOIN_LIMIT_S:.0f} s")
        time.sleep(JOIN_INTERVAL_S)
    return address


def join_group(connection: Connection, request: bytes) -> None:
    """Let a member join once the coordinator serves its group. Raises RuntimeError."""
    deadline = time.monotonic() + JOIN_LIMIT_S
    while (error := share_wire.heartbeat_response(connection.ask(request))[0]) != 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"a member could not join its share group: error code {error}")
        time.sleep(JOIN_INTERVAL_S)


def run(spec: Spec) -> Metrics:
    """Return the metrics of the records that the group has accepted. Raises RuntimeError or WireError."""
    load = ShareLoad(spec)
    connections = load.join()
    try:
        gc.disable()
        for worker in load.workers:
            worker.send_next()
        wait_for_first_records(load)
        load.poll(time.perf_counter() + WARM_UP_S)
        before, sent_before, delivered_before = load.accepted, load.sent, len(load.delivered_ns)
        load.is_measuring = True
        section = Section(spec.broker_pids)
        load.poll(time.perf_counter() + spec.seconds)
        if load.accepted == before:
            raise RuntimeError(f"no record was accepted in {spec.seconds} s; the topic may have too few")
        metrics = section.finish(load.accepted - before, spec.size_bytes)
        if spec.rate_per_s:
            metrics["messages"] = load.sent - sent_before
            load.drain()
            metrics |= percentiles(load.delivered_ns[delivered_before:], "end_to_end_")
        return metrics
    finally:
        for connection in connections:
            connection.close()


def wait_for_first_records(load: ShareLoad) -> None:
    """Wait until the group accepts records: a new group's state has to be initialized."""
    deadline = time.perf_counter() + JOIN_LIMIT_S
    while not load.accepted:
        load.poll(time.perf_counter() + JOIN_INTERVAL_S)
        if time.perf_counter() > deadline:
            raise RuntimeError("the share group has accepted no record")
