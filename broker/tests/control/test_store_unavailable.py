"""While the store is unavailable, clients get retriable errors in time; afterwards everything continues."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest

sys.path.insert(0, str(Path(__file__).parent / "controller"))
sys.path.insert(0, str(Path(__file__).parent.parent / "state"))

from controller_kit import Ends, Network, World, opened_world
from etcd_process import EtcdCluster

from penstock.config.broker import BrokerConfig
from penstock.control import config_admin, topic_admin
from penstock.control.broker_availability import RegisteredBrokers
from penstock.control.config_admin import ConfigService
from penstock.control.controller.controller import ControllerContext, ControllerTask
from penstock.control.membership import FEATURE_LEVEL, Registration, ensure_cluster
from penstock.control.results import ConfigChange, ConfigOperation, ConfigResource, TopicRequest
from penstock.control.topic_admin import TopicService
from penstock.runtime.clock import SystemClock
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.records import BrokerRecord, EndpointRecord
from penstock.state.store import Store, StoreChanges, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

DEADLINE_S = 60.0
WRITTEN_S = 0.5
"""Wait before etcd is killed. etcd writes to its database every 100 ms; version 3.5.1, the oldest that tests may run,
can lose the last writes when it is killed."""
RETENTION = ConfigChange("retention.ms", ConfigOperation.SET, "5000")
RETRIABLE = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE}


class AwayStore(EmbeddedStore):
    """Does not respond while it `is_away`; its watches deliver no changes while they are `silent`."""

    is_away = False
    silent = False

    def _check_open(self) -> None:
        super()._check_open()
        if self.is_away:
            raise StoreUnavailable("etcd does not answer")

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        async for changes in super().watch(prefix, from_revision):
            while self.silent:
                await asyncio.sleep(0.005)
            yield changes


class Broker:
    """The services that change topics and settings, on any store."""

    def __init__(self, store: Store) -> None:
        self.store, self.view = store, ClusterView()
        self.config = BrokerConfig.from_texts({"node.id": "1"})
        self.watcher = Watcher(store, self.view, self.config)
        self.registration: Registration | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, lease_ms: int = 60_000) -> Broker:
        await ensure_cluster(self.store, uuid4)
        record = BrokerRecord(
            broker_id=1,
            incarnation=uuid4(),
            endpoints=[EndpointRecord(listener="A", host="127.0.0.1", port=9)],
            directory_id=UUID(int=1),
            feature_level=FEATURE_LEVEL,
        )
        self.registration = Registration(self.store, SystemClock(), record, lease_ms)
        await self.registration.register()
        await self.watcher.start()
        brokers = RegisteredBrokers(self.store, self.view, SystemClock(), self.config)
        self.topics = TopicService(self.store, self.view, self.watcher, SystemClock(), self.config, uuid4, brokers)
        self.configs = ConfigService(self.store, self.view, self.watcher, self.config, SystemClock())
        self.tasks.append(asyncio.ensure_future(self.registration.keep_alive().run()))
        given = ControllerContext(
            self.store,
            self.view,
            self.watcher,
            self.config,
            SystemClock(),
            self.registration,
            Network(),
            Ends(),
            uuid4,
            [],
        )
        self.controller = ControllerTask(given)
        self.tasks.append(asyncio.ensure_future(self.controller.run()))
        return self

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.watcher.stop()
        await self.store.close()

    async def create(self, name: str) -> ErrorCode:
        (outcome,) = await self.topics.create([TopicRequest(name, 3)])
        return outcome.error


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def persistently(call: Callable[[], object]) -> None:
    """Retry a call as long as its errors are retriable."""
    async with asyncio.timeout(DEADLINE_S):
        while (error := await call()) is not ErrorCode.NONE:
            assert error in RETRIABLE, error
            await asyncio.sleep(0.05)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = await Broker(AwayStore(":memory:")).start()
    await until(lambda: len(made.view.shards) == keys.SHARD_COUNT)  # the controller has finished its initial work
    yield made
    await made.close()


async def every_change(broker: Broker) -> list[ErrorCode]:
    """Make one change of each kind, with the existing topic `there`; return the errors."""
    there = broker.view.topics["there"]
    return [
        await broker.create("new"),
        (await broker.topics.create_partitions("there", 5)).error,
        (await broker.topics.delete(there)).error,
        (await broker.configs.change(ConfigResource.TOPIC, "there", [RETENTION])).error,
        (await broker.configs.change(ConfigResource.BROKER, "", [ConfigChange("log.retention.ms", 0, "5000")])).error,
    ]


async def test_changes_are_refused_with_an_error_to_try_again_and_leave_nothing_behind(broker: Broker) -> None:
    assert await broker.create("there") is ErrorCode.NONE
    before = (await broker.store.range(keys.ROOT)).entries
    broker.store.is_away = True
    assert await every_change(broker) == [ErrorCode.REQUEST_TIMED_OUT] * 5
    assert (await broker.topics.auto_create("auto")).error is ErrorCode.LEADER_NOT_AVAILABLE
    broker.store.is_away = False
    assert (await broker.store.range(keys.ROOT)).entries == before
    assert await broker.create("new") is ErrorCode.NONE
    assert (await broker.topics.auto_create("auto")).error is ErrorCode.NONE


async def test_a_change_that_is_made_but_not_heard_of_is_answered_in_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_admin, "VIEW_TIMEOUT_S", 0.05)
    monkeypatch.setattr(config_admin, "VIEW_TIMEOUT_S", 0.05)
    assert await broker.create("there") is ErrorCode.NONE
    broker.store.silent = True
    assert await broker.create("new") is ErrorCode.REQUEST_TIMED_OUT
    assert (
        await broker.configs.change(ConfigResource.TOPIC, "there", [RETENTION])
    ).error is ErrorCode.REQUEST_TIMED_OUT
    assert await broker.create("new") is ErrorCode.TOPIC_ALREADY_EXISTS, "trying again tells that it was made"
    broker.store.silent = False
    await until(lambda: "new" in broker.view.topics)
    assert broker.view.topics["there"].overrides == {"retention.ms": "5000"}
    assert broker.topics._reserved == 0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with opened_world() as opened:
        opened.store = AwayStore(":memory:")
        await ensure_cluster(opened.store, uuid4)
        await opened.start(1, 2, 3)
        await opened.time.until(lambda: opened.controllers() == [1])
        yield opened


async def test_what_happens_while_it_is_away_for_less_than_a_lease_is_dealt_with_afterwards(world: World) -> None:
    await world.topic("t", [2, 3], [3, 2])
    world.store.is_away = True
    await world.kill(2, notice=True)
    await world.time.advance(5)
    assert world.partition("t").leader == 2
    world.store.is_away = False
    await world.time.until(lambda: world.partition("t").leader == 3)
    assert world.partition("t").isr == [3]
    assert world.controllers() == [1]
    assert not any(node.registration.lost.is_set() for node in world.brokers.values())


async def test_after_half_a_minute_all_come_back_as_new_incarnations_and_lead_what_they_led(world: World) -> None:
    await world.topic("t", [1, 2, 3], [2, 3, 1])
    world.store.is_away = True
    await world.time.advance(30)
    assert not any(node.registration.may_serve() for node in world.brokers.values())
    world.store.is_away = False
    await world.time.until(lambda: all(node.registration.lost.is_set() for node in world.brokers.values()))
    for broker_id in (1, 2, 3):
        await world.kill(broker_id, notice=True)
        await world.start(broker_id)
    await world.time.until(lambda: world.partition("t").leader in world.brokers)
    await world.time.until(lambda: world.partition("t", 1).leader in world.brokers)
    for index in (0, 1):
        placed = world.partition("t", index)
        assert placed.isr_epochs == [world.epoch(placed.leader)]
        assert placed.leader_epoch > 0


async def test_an_election_goes_on_after_an_error_that_is_no_silence(world: World) -> None:
    from penstock.state.store import DeleteOp, PutOp

    key = keys.CONTROLLER
    await world.store.txn([], [PutOp(key, b"no record")])
    await world.time.advance(2)
    await world.store.txn([], [DeleteOp(key)])
    await world.time.until(lambda: len(world.controllers()) == 1)


@pytest.mark.integration
@pytest.mark.parametrize("how", ["paused", "killed"])
async def test_with_a_real_etcd_nothing_hangs_and_nothing_is_lost(how: str) -> None:
    with EtcdCluster() as etcd:
        options = EtcdOptions(endpoints=etcd.endpoints, patience_s=0.3)
        store = EtcdStore(options)
        broker = await Broker(store).start(lease_ms=30_000)
        member = etcd.members[0]
        assert await broker.create("there") is ErrorCode.NONE
        await until(lambda: len(broker.view.shards) == keys.SHARD_COUNT)
        await asyncio.sleep(WRITTEN_S)
        reached = broker.view.revision
        store.caller.timeout_s = 0.3  # only now: the start above may take longer on a busy machine
        (member.pause if how == "paused" else member.kill)()
        async with asyncio.timeout(DEADLINE_S):
            assert set(await every_change(broker)) == {ErrorCode.REQUEST_TIMED_OUT}
        store.caller.timeout_s = options.request_timeout_s
        (member.resume if how == "paused" else member.start)()
        member.wait_ready()
        # A request without a response may have succeeded; a retry shows it.
        await persistently(lambda: tried_again(broker.create("after")))
        assert (await broker.store.range(keys.ROOT)).revision > reached, "etcd has lost what it had acknowledged"
        await persistently(lambda: tried_again(broker.create("new")))
        await until(lambda: {"new", "after"} <= broker.view.topics.keys())
        topic = broker.view.topics["after"]
        assert [p.leader for p in topic.partitions] == [1, 1, 1]
        assert not broker.registration.lost.is_set()
        await until(lambda: broker.controller.term is not None)
        await broker.close()


async def tried_again(work) -> ErrorCode:
    error = await work
    return ErrorCode.NONE if error is ErrorCode.TOPIC_ALREADY_EXISTS else error
