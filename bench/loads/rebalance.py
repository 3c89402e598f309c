"""A consumer group of KIP-848 whose member dies: raw connections, one for each member, all in one thread.

Members behave as the Java client does: they send a heartbeat in the interval that the coordinator names, and one at
once when their assignment has changed. A partition counts as consumed when a Fetch that its new owner sent has been
answered.
"""

from __future__ import annotations

import gc
import selectors
import time
import uuid
from collections import deque
from enum import Enum
from random import Random

from bench import group_wire, share_wire, wire
from bench.connection import Connection
from bench.group_wire import JOIN_EPOCH, LEAVE_EPOCH, Heartbeat
from bench.loads.section import Section
from bench.loads.share import find_coordinator
from bench.loads.specs import Metrics
from bench.loads.specs import Rebalance as Spec
from bench.loads.stream import Stream
from bench.wire import WireError

REBALANCE_TIMEOUT_MS = 300_000
RETRIABLE = {14, 15, 16}
"""The coordinator loads, or there is none yet."""
RETRY_S = 0.1


class Request(Enum):
    """The kind of request that is in flight."""

    HEARTBEAT = 1
    FETCH = 2


class Member:
    """A member on its connection, with one request in flight at most."""

    def __init__(self, load: RebalanceLoad, connection: Connection) -> None:
        self.load, self.connection, self.stream = load, connection, Stream(connection)
        self.id, self.epoch = str(uuid.uuid4()), JOIN_EPOCH
        self.owned: frozenset[int] = frozenset()
        self.consumed: set[int] = set()
        self.to_fetch: deque[int] = deque()
        self.next_heartbeat_s = self.interval_s = 0.0
        self.in_flight: tuple[Request, int] | None = None
        self.changed = True
        """Whether the coordinator does not know yet which partitions this member owns."""

    def send_due(self, now_s: float) -> None:
        """Send a heartbeat that is due, or fetch a new partition, unless a request is in flight."""
        if self.in_flight is not None:
            return
        if self.changed or now_s >= self.next_heartbeat_s:
            self.send_heartbeat()
        elif self.to_fetch:
            partition = self.to_fetch.popleft()
            self.in_flight = Request.FETCH, partition
            self.stream.send(wire.fetch_request(self.load.spec.topic, partition, 0, max_wait_ms=0))

    def send_heartbeat(self) -> None:
        joins = self.epoch == JOIN_EPOCH
        self.in_flight = Request.HEARTBEAT, 0
        self.stream.send(
            group_wire.heartbeat_request(
                self.load.group,
                self.id,
                self.epoch,
                topic=self.load.spec.topic if joins else None,
                topic_id=self.load.topic_id,
                owned=self.owned if self.changed else None,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if joins else -1,
            )
        )
        self.changed = False

    def on_readable(self) -> None:
        for answer in self.stream.answers():
            assert self.in_flight is not None, "a response belongs to a request"
            kind, partition = self.in_flight
            self.in_flight = None
            if kind is Request.HEARTBEAT:
                self.on_heartbeat(group_wire.heartbeat_response(answer))
            elif error := wire.fetch_response(answer).error:
                raise WireError(f"a fetch of partition {partition} failed with error code {error}")
            elif partition in self.owned:
                self.consumed.add(partition)
                self.load.is_changed = True

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Take the new assignment. Raises WireError if the coordinator refuses the member."""
        now_s = time.perf_counter()
        if heartbeat.error in RETRIABLE:
            self.changed, self.next_heartbeat_s = self.epoch == JOIN_EPOCH, now_s + RETRY_S
            return
        if heartbeat.error:
            raise WireError(f"a heartbeat failed with error code {heartbeat.error}")
        self.epoch = heartbeat.epoch
        self.interval_s = heartbeat.interval_ms / 1000
        self.next_heartbeat_s = now_s + self.interval_s
        if heartbeat.assignment is not None and heartbeat.assignment != self.owned:
            self.to_fetch.extend(sorted(heartbeat.assignment - self.owned))
            self.owned, self.changed = heartbeat.assignment, True
            self.consumed &= heartbeat.assignment
            self.load.is_changed = True


class RebalanceLoad:
    """The group."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.group = spec, f"rebalance-{uuid.uuid4()}"
        admin = Connection(spec.address, spec.limit_s)
        try:
            self.topic_id = share_wire.topic_id_response(admin.ask(share_wire.topic_id_request(spec.topic)))
            self.coordinator = find_coordinator(admin, self.group)
        finally:
            admin.close()
        self.members: list[Member] = []
        self.selector = selectors.DefaultSelector()
        self.is_changed = False
        """Whether a member's partitions changed since `owners` was called."""

    def add_member(self) -> Member:
        member = Member(self, Connection(self.coordinator, self.spec.limit_s))
        self.members.append(member)
        self.selector.register(member.connection.socket, selectors.EVENT_READ, member.on_readable)
        return member

    def remove_member(self, member: Member, *, leaves: bool) -> None:
        """Let a member with no request in flight die, or leave the group."""
        self.members.remove(member)
        self.selector.unregister(member.connection.socket)
        member.stream.socket.setblocking(True)
        if leaves:
            request = group_wire.heartbeat_request(self.group, member.id, LEAVE_EPOCH)
            member.connection.ask(request)
        member.connection.close()

    def poll(self) -> None:
        """Send what is due and handle what has arrived."""
        now_s = time.perf_counter()
        for member in self.members:
            member.send_due(now_s)
        for key, _ in self.selector.select(0.002):
            key.data()

    def wait_until_consumed(self, what: str) -> float:
        """Poll until each partition has one owner, who consumes it. Returns when. Raises RuntimeError."""
        deadline = time.perf_counter() + self.spec.limit_s
        self.is_changed = True
        while True:
            self.poll()
            if self.is_changed and self.is_consumed():
                return time.perf_counter()
            if time.perf_counter() > deadline:
                consumed = len(set().union(*(member.consumed for member in self.members)))
                raise RuntimeError(f"{what}: {consumed} of {self.spec.partitions} partitions are consumed")

    def is_consumed(self) -> bool:
        """Return whether each partition is consumed by exactly one member."""
        self.is_changed = False
        consumed = sum(len(member.consumed) for member in self.members)
        owned = sum(len(member.owned) for member in self.members)
        return consumed == owned == self.spec.partitions

    def spread_heartbeats(self) -> None:
        """Give the members heartbeats at independent times, as members have that started at different times.

        Members that join together would all learn of a change at the same moment, soon or a whole interval later.
        """
        random = Random(self.spec.seed)
        now_s = time.perf_counter()
        for member in self.members:
            member.next_heartbeat_s = now_s + random.random() * member.interval_s

    def wait_for_heartbeat_of(self, member: Member) -> None:
        """Poll until the coordinator has answered the next heartbeat of a member, which renews its session."""
        while member.in_flight is None or member.in_flight[0] is not Request.HEARTBEAT:
            self.poll()
        while member.in_flight is not None:
            for key, _ in self.selector.select(0.002):
                key.data()

    def close(self) -> None:
        for member in self.members:
            member.connection.close()


def run(spec: Spec) -> Metrics:
    """Return how long partitions had no consumer after a death, and after the member's session. Raises RuntimeError."""
    load = RebalanceLoad(spec)
    try:
        gc.disable()
        started_s = time.perf_counter()
        for _ in range(spec.members):
            load.add_member()
        joined_s = load.wait_until_consumed("the group did not form")
        load.spread_heartbeats()
        settle_until_s = time.perf_counter() + spec.settle_s
        while time.perf_counter() < settle_until_s:
            load.poll()
        victim = load.members[spec.members // 2]
        if not spec.leaves:
            load.wait_for_heartbeat_of(victim)
        before = {member.id: member.owned for member in load.members if member is not victim}
        while victim.in_flight is not None:
            load.poll()
        section = Section(spec.broker_pids)
        gone_s = time.perf_counter()
        load.remove_member(victim, leaves=spec.leaves)
        done_s = load.wait_until_consumed("not all partitions got another consumer")
        metrics = section.finish(spec.partitions, 0)
        moved = sum(len(before[member.id] - member.owned) for member in load.members)
        session_s = 0.0 if spec.leaves else spec.session_timeout_ms / 1000
        return {
            "broker_cpu_s": metrics["broker_cpu_s"],
            "client_share_of_core": metrics["client_share_of_core"],
            "joining_s": joined_s - started_s,
            "with_session_s": done_s - gone_s,
            "seconds": done_s - gone_s - session_s,
            "moved_partitions": float(moved),
        }
    finally:
        load.close()
