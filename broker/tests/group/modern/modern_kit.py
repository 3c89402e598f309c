"""A consumer group with simulated members, which acknowledge revocations as clients do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from penstock.config.modern_groups import ConsumerGroupConfig
from penstock.group.modern.assignment import NOTHING, Assignment, assignment_of, union
from penstock.group.modern.assignors import CONSUMER_ASSIGNORS
from penstock.group.modern.consumer import (
    HeartbeatResult,
    MemberHeartbeat,
    check_heartbeat,
    handle_heartbeat,
    respond,
)
from penstock.group.modern.group import GroupType, ModernGroup
from penstock.group.modern.topics import TopicFilter, compiled

SESSION_MS, HEARTBEAT_MS, REBALANCE_MS = 45_000, 5000, 60_000
CONFIG = ConsumerGroupConfig(SESSION_MS, HEARTBEAT_MS, 0)


class Topics:
    """A `TopicCatalog` whose topics a test changes."""

    def __init__(self, **counts: int) -> None:
        self.ids = {name: uuid4() for name in counts}
        self.counts = dict(counts)
        self.rack_lists: dict[UUID, Sequence[frozenset[str]]] = {}

    def topic_id(self, name: str) -> UUID | None:
        return self.ids.get(name)

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name, each in self.ids.items() if each == topic_id), None)

    def partition_count(self, topic_id: UUID) -> int:
        name = self.topic_name(topic_id)
        return 0 if name is None else self.counts[name]

    def racks(self, topic_id: UUID) -> Sequence[frozenset[str]]:
        return self.rack_lists.get(topic_id, [])

    def matching(self, pattern: str, is_visible: TopicFilter) -> frozenset[UUID]:
        matches = compiled(pattern).fullmatch
        return frozenset(each for name, each in self.ids.items() if matches(name) and is_visible(name))

    def create(self, name: str, count: int) -> None:
        self.ids.setdefault(name, uuid4())
        self.counts[name] = count

    def delete(self, name: str) -> None:
        del self.ids[name], self.counts[name]


class Client:
    """A member as a client sees it. It stops using partitions before the heartbeat after the one that took them."""

    def __init__(self, group: GroupUnderTest, member_id: str, **first: Any) -> None:
        self.group, self.member_id, self.first = group, member_id, first
        self.epoch = 0
        self.owned: Assignment = NOTHING
        self.using: Assignment = NOTHING
        """What it owns, and what it has not stopped using yet."""
        self.last: HeartbeatResult
        self.has_lost_response = False
        self.everything = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": ("t",), **first}

    def join(self) -> HeartbeatResult:
        self.epoch, self.owned = 0, NOTHING
        return self.send(owned={}, **self.everything)

    def send(self, **fields: Any) -> HeartbeatResult:
        instance = self.first.get("instance_id")
        request = MemberHeartbeat(self.member_id, self.epoch, **{"instance_id": instance, **fields})
        if request.owned is not None:
            self.using = request.owned
        self.last = self.group.send(request)
        self.epoch = self.last.epoch
        if self.last.assigned is not None:
            self.owned = self.last.assigned
            self.using = union(self.using, self.owned)
        return self.last

    def beat(self) -> HeartbeatResult:
        """Send what the member uses, as after each change; everything after a lost response."""
        everything = self.everything if self.has_lost_response else {}
        self.has_lost_response = False
        return self.send(owned=self.owned, **everything)

    def lose_response(self) -> None:
        """Send a heartbeat whose response does not arrive."""
        epoch, owned = self.epoch, self.owned
        self.beat()
        self.epoch, self.owned, self.using, self.has_lost_response = epoch, owned, owned, True

    def indexes(self, name: str = "t") -> list[int]:
        return sorted(self.owned.get(self.group.topics.ids[name], ()))


class GroupUnderTest:
    """A `ModernGroup` with a manual clock."""

    def __init__(self, max_size: int = 1000, config: ConsumerGroupConfig = CONFIG, **counts: int) -> None:
        self.topics = Topics(**(counts or {"t": 6}))
        self.group = ModernGroup("g", GroupType.CONSUMER, CONSUMER_ASSIGNORS, self.topics, config)
        self.max_size = max_size
        self.now_ms = 1000.0

    def send(self, request: MemberHeartbeat) -> HeartbeatResult:
        check_heartbeat(request, CONSUMER_ASSIGNORS)
        member = handle_heartbeat(self.group, request, self.max_size, self.now_ms)
        self.group.start_assignment(self.now_ms)
        if member is None:
            return HeartbeatResult(request.member_id, request.epoch)
        return respond(self.group, member, request, self.now_ms)

    def client(self, member_id: str, **first: Any) -> Client:
        return Client(self, member_id, **first)

    def joined(self, *names: str, **first: Any) -> list[Client]:
        clients = [self.client(name, **first) for name in names]
        for client in clients:
            client.join()
        self.settle(clients)
        return clients

    def settle(self, clients: list[Client]) -> int:
        """Send heartbeats until nothing changes. Returns the number of rounds."""
        for rounds in range(1, 100):
            before = [(client.epoch, client.owned) for client in clients]
            for client in clients:
                client.beat()
            if before == [(client.epoch, client.owned) for client in clients]:
                return rounds
        raise AssertionError("the group does not settle")

    def change_topics(self, *names: str) -> None:
        self.group.on_topics_changed(names)
        self.group.start_assignment(self.now_ms)

    def pass_ms(self, duration_ms: float) -> list[str]:
        """Advance the clock and expire members. Returns their ids."""
        until_ms, expired = self.now_ms + duration_ms, []
        while self.group.wake_ms is not None and self.group.wake_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            expired += self.group.tick(self.now_ms)
            self.group.start_assignment(self.now_ms)
        self.now_ms = until_ms
        return expired

    def of(self, **indexes: list[int]) -> Assignment:
        return assignment_of((self.topics.ids[name], each) for name, each in indexes.items())
