"""Fixtures: a group with a manual clock, and a coordinator on an event loop with virtual time."""

from __future__ import annotations

import asyncio
import selectors
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from shards_kit import Cluster

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.group.calls import JoinRequest, JoinResult, Persist, Reply, SyncRequest, SyncResult
from penstock.group.coordinator import GroupCoordinator
from penstock.group.coordinator_shard import RunningGroup
from penstock.group.offset_loading import EagerOffsetLoader
from penstock.group.ownership import LocalShardOwnership
from penstock.group.state_machine import ClassicGroup
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import Compare, Operation, StoreEntry, StoreUnavailable, TxnResult
from penstock.state.view import BrokerEndpoint, BrokerView, ClusterView, PartitionView, TopicChange, TopicView
from penstock.wire import codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

SESSION_MS = 10_000
REBALANCE_MS = 60_000
IDS = count(1)


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """Return the metadata that a consumer sends for each assignor."""
    message = ConsumerProtocolSubscription(topics=list(topics), user_data=user_data)
    return struct.pack(">h", 1) + bytes(codec.encode(message, 1))


class Call:
    """A request to a group, with its responses."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    @property
    def answer(self) -> Any:
        assert self.answers, "not answered yet"
        assert len(self.answers) == 1, f"answered {len(self.answers)} times"
        return self.answers[0]

    @property
    def error(self) -> ErrorCode:
        return self.answer.error

    @property
    def waits(self) -> bool:
        return not self.answers


class GroupUnderTest:
    """Drives a `ClassicGroup`. `Persist` effects complete at once, unless `holds_persists`."""

    def __init__(self, **settings: Any) -> None:
        self.config = BrokerConfig()
        self.config.group_initial_rebalance_delay_ms = 0
        for name, value in settings.items():
            setattr(self.config, name, value)
        self.group = ClassicGroup("g", self.config, lambda: str(next(IDS)))
        self.now_ms = 1000.0
        self.holds_persists = False
        self.held: list[int] = []
        self.persists = 0

    # --- time

    def pass_ms(self, duration_ms: float) -> None:
        """Advance the clock, calling `tick` at the times that the group requests."""
        until_ms = self.now_ms + duration_ms
        wakes = 0
        while self.group.phases.wake_ms is not None and self.group.phases.wake_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.group.phases.wake_ms)
            self.group.tick(self.now_ms)
            self.settle()
            wakes += 1
            assert wakes < 10_000, f"the group wants to be woken again and again at {self.now_ms}"
        self.now_ms = until_ms

    def settle(self) -> None:
        while effects := self.group.phases.pop_effects():
            for effect in effects:
                if isinstance(effect, Reply):
                    assert isinstance(effect.waiter, Call)
                    effect.waiter.answers.append(effect.result)
                else:
                    assert isinstance(effect, Persist)
                    self.persists += 1
                    if self.holds_persists:
                        self.held.append(effect.sequence)
                    else:
                        self.group.phases.persisted(effect.sequence, self.now_ms)

    def release(self, ok: bool = True) -> None:
        """Complete or fail all held persists."""
        held, self.held = self.held, []
        for sequence in held:
            (self.group.phases.persisted if ok else self.group.phases.persist_failed)(sequence, self.now_ms)
            self.settle()

    # --- calls

    def join(self, member_id: str = "", **more: Any) -> Call:
        protocols = more.pop("protocols", {"range": subscription("t")})
        request = JoinRequest(
            more.pop("protocol_type", "consumer"),
            protocols,
            more.pop("session_timeout_ms", SESSION_MS),
            more.pop("rebalance_timeout_ms", REBALANCE_MS),
            member_id=member_id,
            client_id=more.pop("client_id", "c"),
            two_step=more.pop("two_step", False),
            **more,
        )
        call = Call()
        self.group.join(request, call, self.now_ms)
        self.settle()
        return call

    def sync(self, joined: JoinResult, assignments: dict[str, bytes] | None = None, **more: Any) -> Call:
        call = Call()
        generation = more.pop("generation", joined.generation)
        request = SyncRequest(joined.member_id, generation, assignments=assignments or {}, **more)
        self.group.sync(request, call, self.now_ms)
        self.settle()
        return call

    def heartbeat(self, joined: JoinResult, instance_id: str | None = None, generation: int | None = None) -> ErrorCode:
        return self.group.heartbeat(
            joined.member_id, instance_id, joined.generation if generation is None else generation, self.now_ms
        )

    def commit(self, joined: JoinResult, generation: int | None = None) -> ErrorCode:
        return self.group.check_commit(
            joined.member_id, None, joined.generation if generation is None else generation, self.now_ms
        )

    def leave(self, member_id: str, instance_id: str | None = None) -> ErrorCode:
        error = self.group.leave(member_id, instance_id)
        self.group.apply_leaves(self.now_ms)
        self.settle()
        return error

    def abandon(self, call: Call) -> None:
        self.group.abandon(call, self.now_ms)
        self.settle()

    # --- stable groups

    def stable(self, *instances: str | None, **more: Any) -> list[JoinResult]:
        """Form a stable group and return its members, one per name (None: dynamic); the first is the leader."""
        self.config.group_initial_rebalance_delay_ms = 5
        calls = [self.join(instance_id=instance, **more) for instance in instances]
        self.pass_ms(5)
        self.config.group_initial_rebalance_delay_ms = 0
        if any(call.waits for call in calls):
            self.pass_ms(5)
        joined = [call.answer for call in calls]
        assert all(not answer.error for answer in joined), joined
        self.sync_all(joined)
        return joined

    def sync_all(self, joined: list[JoinResult]) -> list[SyncResult]:
        """Sync all members; the leader assigns each its id and the generation."""
        plan = {j.member_id: f"{j.member_id}@{j.generation}".encode() for j in joined}
        calls = [self.sync(j, plan if j.leader == j.member_id else None) for j in joined]
        return [call.answer for call in calls]


@pytest.fixture
def make_group() -> Callable[..., GroupUnderTest]:
    return GroupUnderTest


@pytest.fixture
def g() -> GroupUnderTest:
    return GroupUnderTest()


@pytest.fixture
def subscribe() -> Callable[..., bytes]:
    return subscription


# --- virtual time


class VirtualSelector(selectors.DefaultSelector):
    """A selector that advances the loop's time instead of waiting, unless a store or a thread works in real time."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.loop.busy():
            return super().select(0.01)
        if timeout is None:  # without a timer, only another thread can wake the loop
            events = super().select(20)
            assert events, "the loop waits for something that never comes"
            return events
        self.loop.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.stores: list[EmbeddedStore] = []
        self.threads: set[asyncio.Future[Any]] = set()
        super().__init__(VirtualSelector(self))

    def time(self) -> float:
        return self.now_s

    def busy(self) -> bool:
        return bool(self.threads) or any(store._queue or store._in_flight for store in self.stores)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        work = super().run_in_executor(executor, func, *args)
        self.threads.add(work)
        work.add_done_callback(self.threads.discard)
        return work


class VirtualClock:
    """A clock that follows the loop's time; `leap_ms` shifts the wall clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.leap_ms = 0

    def wall_ms(self) -> int:
        return self.boot_ms() + 1_700_000_000_000 + self.leap_ms

    def boot_ms(self) -> int:
        return int(self.loop.now_s * 1000)


class FailingStore(EmbeddedStore):
    """A store whose writes raise `failure` while it is set, and whose reads of single entries `read_failure`."""

    failure: StoreUnavailable | None = None
    read_failure: StoreUnavailable | None = None

    async def get(self, key: str) -> StoreEntry | None:
        if self.read_failure is not None:
            raise self.read_failure
        return await super().get(key)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        if self.failure is not None:
            raise self.failure
        return await super().txn(compares, then, otherwise)


class World:
    """A coordinator with its store, view and clock."""

    def __init__(self, loop: VirtualLoop, path: str) -> None:
        self.loop = loop
        self.path = path
        self.clock = VirtualClock(loop)
        self.config = BrokerConfig()
        self.config.group_initial_rebalance_delay_ms = 0
        self.view = ClusterView(cluster_id="test", controller_id=0, revision=1)
        self.view.brokers[0] = BrokerView(0, [BrokerEndpoint("MAIN", "broker.example", 9092)])
        self.store: FailingStore
        self.groups: GroupCoordinator

    async def start(self) -> GroupCoordinator:
        self.store = FailingStore(self.path)
        self.loop.stores.append(self.store)
        self.view.listeners.clear()
        owned = LocalShardOwnership(self.store, 0)
        self.groups = GroupCoordinator(
            self.store, self.view, self.clock, self.config, lambda: str(uuid4()), owned, EagerOffsetLoader
        )
        await self.groups.start()
        return self.groups

    async def restart(self) -> GroupCoordinator:
        """Restart as after `kill -9`: close only the store's file."""
        self.groups.retention.close()
        self.groups._settings.close()
        self.groups.modern.close()
        for shard in self.groups.ownership:
            for known in shard.groups.values():
                if isinstance(known, RunningGroup) and known.timer is not None:
                    known.timer.cancel()
        await self.store.close()
        return await self.start()

    async def stop(self) -> None:
        await self.groups.close()
        await self.store.close()

    def create_topic(self, name: str, partitions: int = 4) -> UUID:
        indexes = range(partitions)
        topic = TopicView(name, uuid4(), [PartitionView(i, [0], 0, 0, [0]) for i in indexes], {}, TopicConfig())
        self._change(TopicChange(None, topic))
        return topic.topic_id

    def delete_topic(self, name: str) -> None:
        topic = self.view.topics[name]
        self.view.deleting.add(topic.topic_id)
        self._change(TopicChange(topic, None))

    def _change(self, change: TopicChange) -> None:
        if change.old is not None:
            self.view.deleting.add(change.old.topic_id)
            del self.view.topics[change.old.name], self.view.topics_by_id[change.old.topic_id]
        if change.new is not None:
            self.view.topics[change.new.name] = self.view.topics_by_id[change.new.topic_id] = change.new
        self.view.revision += 1
        for listener in self.view.listeners:
            listener([change])

    def request(self, member_id: str = "", **more: Any) -> JoinRequest:
        return JoinRequest(
            "consumer",
            more.pop("protocols", {"range": subscription("t")}),
            more.pop("session_timeout_ms", SESSION_MS),
            more.pop("rebalance_timeout_ms", REBALANCE_MS),
            member_id=member_id,
            client_id="c",
            two_step=more.pop("two_step", False),
            **more,
        )

    async def stable(self, group_id: str, **more: Any) -> JoinResult:
        """Return the member of a new stable group."""
        joined = await self.groups.join(group_id, self.request(**more))
        assert not joined.error, joined
        plan = {joined.member_id: b"mine"}
        synced = await self.groups.sync(group_id, SyncRequest(joined.member_id, joined.generation, assignments=plan))
        assert not synced.error, synced
        return joined


@pytest.fixture
def run_world(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Run a coroutine function with a started `World`, in virtual time."""
    loop = VirtualLoop()

    def run(scene: Callable[..., Any], **settings: Any) -> None:
        async def play() -> None:
            world = World(loop, str(tmp_path / "state.db"))
            for name, value in settings.items():
                setattr(world.config, name, value)
            await world.start()
            try:
                await scene(world)
            finally:
                await world.stop()

        loop.run_until_complete(play())

    yield run
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def virtual_loop() -> Iterator[VirtualLoop]:
    """Yield a loop that advances its time only when it and the stores in `stores` are idle."""
    loop = VirtualLoop()
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def clock(virtual_loop: VirtualLoop) -> VirtualClock:
    return VirtualClock(virtual_loop)


@pytest.fixture
def run_cluster(virtual_loop: VirtualLoop, clock: VirtualClock) -> Callable[..., None]:
    """Run a coroutine function with a started `Cluster` of `brokers` brokers, in virtual time."""

    def run(scene: Callable[..., Any], brokers: int = 2) -> None:
        async def play() -> None:
            cluster = Cluster(clock)
            virtual_loop.stores.append(cluster.store)
            await cluster.start(brokers)
            try:
                await scene(cluster)
            finally:
                await cluster.stop()

        virtual_loop.run_until_complete(play())

    return run
