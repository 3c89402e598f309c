"""One produce per partition in flight, to leaders that the client discovers itself during failures.

The failover load runs it through a fault; the partitions suite of clusters waits for one accepted message of each
partition. The client has a few connections to each broker with one request in flight on each, which carries all
partitions that are ready on it; a partition therefore waits only for those that share its request. While a partition
has no leader or has an unconfirmed one, the client requests Metadata from one running broker after the other. When a
partition's leader changes, the client sends to the new one regardless of the old request.
"""

from __future__ import annotations

import selectors
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from bench import cluster_wire, wire
from bench.connection import Connection
from bench.loads.stream import Stream

CONNECTIONS = 4  # connections to each broker
MOST_PARTITIONS = 250  # partitions in one request
POLL_S = 0.05  # minimum interval between metadata requests
PAUSE_FACTOR = 2  # and this multiple of the response time: metadata of 10,000 partitions is expensive for a broker
STALE_S = 1.0  # the client skips a broker that has not answered by then
RETRY_S = 0.02
WAIT_S = 0.005
CONNECT_S = 1.0
PRODUCE_TIMEOUT_MS = 30_000
LOST_LEADER = {3, 5, 6, 74, 75}  # unknown topic, no leader, not the leader, old and unknown leader epoch
RETRIABLE = {7, 13, 19, 20}  # timed out, network, too few in-sync replicas before and after the append


class Slot:
    """A partition. It is in flight or ready on `lane`, has no leader, or is due later."""

    __slots__ = ("acknowledged_s", "epoch", "index", "lane", "leader", "part", "sent_s", "topic")

    def __init__(self, topic: str, index: int, part: bytes) -> None:
        self.topic, self.index, self.part = topic, index, part
        self.leader = self.epoch = -1
        self.lane: Lane | None = None
        self.sent_s = self.acknowledged_s = 0.0


class Link:
    """A connection to a broker, or one to be opened."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.stream: Stream | None = None


class Lane(Link):
    """A connection with one Produce request at a time."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.ready: list[Slot] = []
        self.under_way: list[Slot] = []

    def has_work(self) -> bool:
        return bool(self.ready) and not self.under_way


class Poller(Link):
    """A connection for metadata requests."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.is_asked = False
        self.asked_s = 0.0


class Everywhere:
    """A producer to many partitions. `wanted` maps topics to partitions. Call `close` at the end."""

    def __init__(
        self, addresses: Sequence[str], wanted: Mapping[str, Iterable[int]], size_bytes: int, interval_s: float
    ) -> None:
        batch = wire.record_batch([b"x" * size_bytes])
        self.slots = {
            topic: {index: Slot(topic, index, cluster_wire.part_of_produce(index, batch)) for index in indexes}
            for topic, indexes in wanted.items()
        }
        self.interval_s = interval_s
        self.errors: Counter[int] = Counter()
        self.acknowledged = 0
        self._selector = selectors.DefaultSelector()
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._pollers = deque(Poller(address) for address in addresses)
        self._addresses: dict[int, str] = {}
        self._leaderless = dict.fromkeys(self.all_slots())
        self._later: deque[tuple[float, Slot]] = deque()
        self._retries: deque[tuple[float, Slot]] = deque()
        self._unproven: dict[Slot, None] = {}
        self._took: dict[Slot, float] = {}
        self._since_s = 0.0
        self._poll_at_s = 0.0

    def all_slots(self) -> list[Slot]:
        return [slot for slots in self.slots.values() for slot in slots.values()]

    def close(self) -> None:
        links: list[Link] = [*self._lanes.values(), *self._pollers]
        for link in links:
            if link.stream is not None:
                link.stream.connection.close()
        self._selector.close()

    def go_on(self, seconds: float) -> int:
        """Write each partition once per interval for `seconds`. Return the number of acknowledged writes."""
        before, until = self.acknowledged, time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.step()
        return self.acknowledged - before

    def until_acknowledged(self, limit_s: float, since_s: float | None = None) -> dict[Slot, float]:
        """Write until each partition has acknowledged a write that was sent after `since_s`, by default now.

        Return the duration for each partition in seconds. Partitions with nothing in flight are sent at once. Raises
        TimeoutError after `limit_s`.
        """
        self._since_s = time.perf_counter() if since_s is None else since_s
        self._unproven = dict.fromkeys(self.all_slots())
        self._took = {}
        self._poll_at_s = 0.0
        for _due, slot in self._later:
            self._make_ready(slot)
        self._later.clear()
        while self._unproven:
            self.step()
            if time.perf_counter() > self._since_s + limit_s:
                left = ", ".join(f"{slot.topic}-{slot.index}" for slot in list(self._unproven)[:3])
                raise TimeoutError(
                    f"{len(self._unproven)} partitions accepted nothing in {limit_s:.0f} s, among them {left};"
                    f" {len(self._leaderless)} without a leader; errors {dict(self.errors)}"
                )
        return self._took

    def step(self) -> None:
        now = time.perf_counter()
        for queue in (self._later, self._retries):
            while queue and queue[0][0] <= now:
                self._make_ready(queue.popleft()[1])
        for lane in [lane for lane in self._lanes.values() if lane.has_work()]:
            self._send(lane, now)
        if (self._leaderless or self._unproven) and now >= self._poll_at_s:
            self._ask_for_leaders(now)
        for key, _events in self._selector.select(WAIT_S):
            self._take(key.data)
        for lane in self._lanes.values():
            if lane.stream is not None and lane.stream.full:
                self._send_bytes(lane, lane.stream, b"")

    def _make_ready(self, slot: Slot) -> None:
        if slot.leader not in self._addresses:
            self._leaderless[slot] = None
            return
        place = (slot.leader, slot.index % CONNECTIONS)
        if place not in self._lanes:
            self._lanes[place] = Lane(self._addresses[slot.leader])
        slot.lane = self._lanes[place]
        slot.lane.ready.append(slot)

    def _send(self, lane: Lane, now: float) -> None:
        if lane.stream is None and not self._connect(lane):
            self._broken(lane)
            return
        assert lane.stream is not None, "the lane was just connected"
        ready = [slot for slot in lane.ready if slot.lane is lane]
        lane.under_way, lane.ready = ready[:MOST_PARTITIONS], ready[MOST_PARTITIONS:]
        topics: dict[str, list[bytes]] = {}
        for slot in lane.under_way:
            slot.sent_s = now
            topics.setdefault(slot.topic, []).append(slot.part)
        if topics:
            self._send_bytes(lane, lane.stream, cluster_wire.produce_request(topics, PRODUCE_TIMEOUT_MS))

    def _connect(self, link: Link) -> bool:
        try:
            connection = Connection(link.address, CONNECT_S)
        except OSError:
            return False
        link.stream = Stream(connection)
        self._selector.register(link.stream.socket, selectors.EVENT_READ, link)
        return True

    def _send_bytes(self, link: Link, stream: Stream, request: bytes) -> None:
        """Start a request, or continue one that the socket has not fully accepted."""
        try:
            if request:
                stream.send(request)
            else:
                stream.push()
        except OSError:
            self._broken(link)

    def _broken(self, link: Link) -> None:
        if link.stream is not None:
            self._selector.unregister(link.stream.socket)
            link.stream.connection.close()
            link.stream = None
        if isinstance(link, Poller):
            link.is_asked = False
            self._poll_at_s = min(self._poll_at_s, time.perf_counter() + RETRY_S)
        elif isinstance(link, Lane):
            for slot in link.under_way + link.ready:
                if slot.lane is link:
                    self._lose_leader(slot)
            link.under_way, link.ready = [], []

    def _lose_leader(self, slot: Slot) -> None:
        slot.lane = None
        self._leaderless[slot] = None

    def _take(self, link: Link) -> None:
        if link.stream is None:
            return  # failed since it became readable
        try:
            answers = link.stream.answers()
        except OSError:
            self._broken(link)
            return
        for answer in answers:
            if isinstance(link, Poller):
                self._told(link, cluster_wire.metadata_response(answer))
            elif isinstance(link, Lane):
                self._answered(link, answer)

    def _answered(self, lane: Lane, answer: bytes) -> None:
        now = time.perf_counter()
        lane.under_way = []
        for topic, index, error in cluster_wire.produce_response(answer):
            slot = self.slots[topic][index]
            if slot.lane is not lane:
                continue  # sent to another leader since
            slot.lane = None
            if error == 0:
                self._accepted(slot, now)
                continue
            self.errors[error] += 1
            if error in LOST_LEADER:
                self._leaderless[slot] = None
            elif error in RETRIABLE:
                self._retries.append((now + RETRY_S, slot))
            else:
                raise RuntimeError(f"partition {topic}-{index} refused a batch with error code {error}")

    def _accepted(self, slot: Slot, now: float) -> None:
        self.acknowledged += 1
        slot.acknowledged_s = now
        if slot in self._unproven and slot.sent_s >= self._since_s:
            del self._unproven[slot]
            self._took[slot] = now - self._since_s
            self._later.append((now + self.interval_s, slot))
        elif slot in self._unproven:
            self._make_ready(slot)
        else:
            self._later.append((now + self.interval_s, slot))

    def _ask_for_leaders(self, now: float) -> None:
        """Send a metadata request to the next reachable broker without an open request."""
        concerned = self._unproven or self._leaderless
        request = cluster_wire.metadata_request(list(dict.fromkeys(slot.topic for slot in concerned)))
        self._poll_at_s = now + RETRY_S
        for _ in range(len(self._pollers)):
            poller = self._pollers[0]
            self._pollers.rotate(-1)
            if poller.is_asked or (poller.stream is None and not self._connect(poller)):
                continue
            assert poller.stream is not None, "the poller is connected"
            poller.is_asked, poller.asked_s = True, now
            self._poll_at_s = now + STALE_S
            self._send_bytes(poller, poller.stream, request)
            return

    def _told(self, poller: Poller, metadata: cluster_wire.Metadata) -> None:
        self._addresses = metadata.brokers | {k: v for k, v in self._addresses.items() if k not in metadata.brokers}
        for topic, states in metadata.topics.items():
            slots = self.slots.get(topic, {})
            for state in states:
                slot = slots.get(state.index)
                if slot is not None and state.leader >= 0 and state.leader_epoch >= slot.epoch:
                    self._led(slot, state)
        now = time.perf_counter()
        poller.is_asked = False
        self._poll_at_s = now + max(POLL_S, PAUSE_FACTOR * (now - poller.asked_s))

    def _led(self, slot: Slot, state: cluster_wire.PartitionState) -> None:
        has_moved = state.leader_epoch > slot.epoch and state.leader != slot.leader
        slot.leader, slot.epoch = state.leader, state.leader_epoch
        if slot in self._leaderless:
            del self._leaderless[slot]
            self._make_ready(slot)
        elif slot.lane is not None and has_moved:
            slot.lane = None
            self._make_ready(slot)
