"""Environment for topic tests without an engine: API server, brokers, and a queue driven by the test."""

from __future__ import annotations

from typing import Any

from doubles.brokers import InMemoryBrokers
from doubles.kube import EPOCH, FakeKube

from penstock_operator.engine.routing import Routing
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import parse
from penstock_operator.model.topic import Topic
from penstock_operator.ports.brokers import BrokerAccess, BrokerGateway
from penstock_operator.ports.kube import CLUSTERS, TOPICS, Object
from penstock_operator.topics.controller import TopicController

NS, CLUSTER = "ns", "c"
EPOCH_S = EPOCH.timestamp()
MAX_TURNS = 200


class Connected:
    """An `engine.ports.ConnectionPool` with the gateways of a test."""

    def __init__(self) -> None:
        self.by_cluster: dict[tuple[str, str], BrokerGateway] = {}

    def gateway_for(self, namespace: str, cluster: str) -> BrokerGateway | None:
        return self.by_cluster.get((namespace, cluster))

    def set_access(self, namespace: str, cluster: str, access: BrokerAccess) -> None:
        raise AssertionError("only the controller of Clusters sets it")


class HandQueue:
    """Keys and their due times."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.due: dict[ObjectKey, float] = {}

    def put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        at = self.world.time + delay_s
        self.due[key] = min(at, self.due.get(key, at))


class World:
    def __init__(self, brokers: InMemoryBrokers | None = None) -> None:
        self.time = 1000.0
        self.kube = FakeKube(now=lambda: self.time)
        self.brokers = brokers or InMemoryBrokers()
        self.connections = Connected()
        self.queue = HandQueue(self)
        self.routing = Routing(self.kube.objects, self.queue)
        self.controller = self.started()
        self.errors: list[str] = []
        self.kube.put(CLUSTERS, {"metadata": {"name": CLUSTER, "namespace": NS}, "spec": {}})
        self.connections.by_cluster[NS, CLUSTER] = self.brokers

    def started(self) -> TopicController:
        """Start another operator, without in-memory state."""
        self.controller = TopicController(
            self.kube, self.kube.objects, self.connections, self.queue,
            now=lambda: self.time, wall=lambda: EPOCH_S + self.time,
        )  # fmt: skip
        return self.controller

    def take_over(self) -> None:
        """Make a standby the leader, as `engine.operator` does."""
        self.started()
        self.kube.objects.distrust_deletions()
        self.routing.put_all()

    def apply(self, name: str, **spec: Any) -> Object:
        return self.kube.put(TOPICS, manifest(name, **spec))

    def delete(self, name: str) -> Object:
        return self.kube.remove(TOPICS, NS, name)

    def vanish(self, name: str) -> None:
        """Delete an object without a DELETED event: it is missing in the next list."""
        del self.kube.stored[TOPICS, NS, name]
        there = {(namespace, name) for resource, namespace, name in self.kube.stored if resource == TOPICS}
        self.kube.objects.apply_list(TOPICS, None, there, "1000000")

    async def settle(self, within_s: float = 3.0) -> None:
        """Reconcile keys until none is due within the given seconds, advancing time."""
        until = self.time + within_s
        for _ in range(MAX_TURNS):
            topics = {key: at for key, at in self.queue.due.items() if key.kind == "Topic" and at <= until}
            if not topics:
                return
            self.time = max(self.time, min(topics.values()))
            keys = sorted(key for key, at in topics.items() if at <= self.time)[: self.controller.batch]
            for key in keys:
                del self.queue.due[key]
            results = await self.controller.reconcile(keys)
            assert results.keys() == set(keys), "each key has a verdict"
            for key, result in results.items():
                if result.error is not None:
                    self.errors.append(result.error)
                    self.queue.put(key, 1.0)
                elif result.requeue_after_s is not None:
                    self.queue.put(key, result.requeue_after_s)
        raise AssertionError(f"it does not settle: {sorted(self.queue.due)[:5]}")

    async def resync(self) -> None:
        await self.controller.resync()
        await self.settle()
        self.time += 60

    def key(self, name: str) -> ObjectKey:
        return ObjectKey("Topic", NS, name)

    def topic(self, name: str) -> Topic:
        body = self.kube.read(TOPICS, NS, name)
        assert body is not None, f"Topic {name} is there"
        return parse("Topic", body)

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        """Return status and reason."""
        found = {c.type: c for c in self.topic(name).status.conditions}[kind]
        assert found.observed_generation == self.topic(name).metadata.generation
        return found.status, found.reason

    def message(self, name: str, kind: str = "Ready") -> str:
        return {c.type: c for c in self.topic(name).status.conditions}[kind].message

    @property
    def recorded(self) -> list[tuple[str, str]]:
        """Return the recorded Events as object name and reason."""
        return [(about.rpartition("/")[2], event.reason) for about, event in self.kube.recorded]


def manifest(name: str, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": NS},
        "spec": {"clusterRef": {"name": CLUSTER}, **spec},
    }
