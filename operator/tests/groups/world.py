"""A namespace with a Cluster, its brokers, and the ConsumerGroup components, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from doubles.broker_groups import DeadLetter
from doubles.brokers import InMemoryBrokers
from doubles.kube import FakeKube
from doubles.virtual import LoopClock, run_virtually

from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.queue import WorkQueue
from penstock_operator.engine.routing import Routing
from penstock_operator.engine.runner import ReconcileRunner
from penstock_operator.groups.controller import GroupController
from penstock_operator.groups.discovery import Discovery
from penstock_operator.groups.pacing import StatusPacing
from penstock_operator.groups.replays import GroupReplays
from penstock_operator.groups.views import GroupViews
from penstock_operator.ports.brokers import DEAD_LETTER_TOPIC, BrokerAccess
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, Object


class World:
    """The environment. `start` runs poll and runner as the engine does; `restart` simulates a new process."""

    def __init__(self, max_discovered: int = 1_000) -> None:
        self.kube = FakeKube(lambda: asyncio.get_running_loop().time())
        self.brokers: dict[tuple[str, str], InMemoryBrokers] = {}
        self.max_discovered = max_discovered
        self.tasks: list[asyncio.Task[None]] = []
        self.cluster("c")
        self._make()

    def cluster(self, name: str, namespace: str = "ns") -> InMemoryBrokers:
        made = self.brokers[namespace, name] = InMemoryBrokers()
        self.kube.put(CLUSTERS, {"metadata": {"name": name, "namespace": namespace}, "spec": {}})
        return made

    def gateway_for(self, namespace: str, cluster: str) -> InMemoryBrokers | None:
        """Implement `engine.ports.ConnectionPool`."""
        return self.brokers.get((namespace, cluster))

    def set_access(self, namespace: str, cluster: str, access: BrokerAccess) -> None:
        raise AssertionError("only the controller of Clusters sets it")

    @property
    def c(self) -> InMemoryBrokers:
        return self.brokers["ns", "c"]

    def _make(self) -> None:
        cache, clock = self.kube.objects, LoopClock()
        queue = self.queue = WorkQueue(lambda: 0.5, lambda key: (key.namespace, ""))
        views = GroupViews(cache)
        pacing = StatusPacing(clock, lambda: 0.5)
        cache._listeners.clear()
        self.routing = Routing(cache, queue)
        self.replays = GroupReplays(self, queue)
        self.controller = GroupController(self.kube, cache, self, clock, views, pacing, self.replays)
        self.discovery = Discovery(self.kube, cache, self, queue, clock, views, self.max_discovered)
        self.runner = ReconcileRunner("ConsumerGroup", self.controller, queue, OperatorMetrics(), lambda: True)

    async def start(self) -> None:
        self.routing.put_all()
        self.tasks = [
            asyncio.create_task(part) for part in (self.runner.run(), self.discovery.run(), self.replays.run())
        ]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def restart(self) -> None:
        await self.stop()
        self._make()
        await self.start()

    def apply(self, name: str, cluster: str = "c", **spec: Any) -> Object:
        metadata = {"name": name, "namespace": "ns"}
        body = {"metadata": metadata, "spec": {"clusterRef": {"name": cluster}, **spec}}
        return self.kube.put(CONSUMER_GROUPS, body)

    def shown(self, name: str) -> Object | None:
        return self.kube.read(CONSUMER_GROUPS, "ns", name)

    def status(self, name: str) -> Object:
        return (self.shown(name) or {}).get("status") or {}

    def names(self) -> list[str]:
        return sorted(cluster_key[2] for cluster_key in self.kube.stored if cluster_key[0] == CONSUMER_GROUPS)

    def reasons(self) -> list[str]:
        return [event.reason for _, event in self.kube.recorded]


AT = ("orders", 0)
LETTERS = "dlq.workers"


def with_orders(world: World, committed: int = 7, members: int = 0) -> None:
    """Add a topic with records 2 to 19, and a group that reads it."""
    world.c.add_topic("orders", 1)
    log = world.c.log("orders")
    log.start, log.end = 2, 20
    log.times = {offset: 1_000 * offset for offset in range(2, 20)}
    world.c.add_group("billing", {AT: committed}, members=members)


def with_letters(world: World, *letters: DeadLetter) -> None:
    """Add the share group "workers" with a dead-letter topic that has these letters, or else ten."""
    world.c.add_group("workers").group_type = "share"
    world.c.group_settings["workers"] = {DEAD_LETTER_TOPIC: LETTERS}
    world.c.add_topic(LETTERS, 1)
    add_letters(world, *(letters or (DeadLetter() for _ in range(10))))


def add_letters(world: World, *letters: DeadLetter) -> None:
    found = world.c.letters.setdefault(LETTERS, [])
    found += letters
    world.c.log(LETTERS).end = len(found)


def committed(world: World) -> int:
    return world.c.groups_by_id["billing"].offsets[AT]


def in_a_world(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Decorate a test to run in virtual time, with a started environment."""

    async def play() -> None:
        world = World()
        await world.start()
        await test(world)
        await world.stop()

    def run() -> None:
        run_virtually(play())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
