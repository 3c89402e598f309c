"""The coordinator with a real store: durability, recovery after a restart, fencing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from uuid import UUID

import pytest
from log_kit import HandClock

from penstock.config.broker import BrokerConfig
from penstock.group.coordinator_shard import CoordinatorShard
from penstock.group.ownership import LocalShardOwnership
from penstock.group.shard_writer import ShardGuard
from penstock.state import keys, records
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import TransactionRecord
from penstock.state.store import Compare, CompareTarget, Operation, PutOp, StoreEntry, StoreUnavailable, TxnResult
from penstock.txn import coordinator as coordinating
from penstock.txn import timer_wheel
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.state_machine import ProducerIdentity
from penstock.txn.timer_wheel import TimerWheel
from penstock.txn.transaction_partitions import OFFSETS_TOPIC_ID, TransactionEnding, TransactionPartition
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode as E

T = UUID(int=1)
DAY_MS = 86_400_000
LONG_MS = 600_000
"""Timeout of transactions that must not time out on a slow machine."""


class Parts:
    """A marker sender that records acknowledged markers. `error` is the error of all partitions."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[TransactionEnding, TransactionPartition]] = []
        self.error = E.NONE
        self.open = asyncio.Event()
        self.open.set()

    @property
    def markers(self) -> list[tuple[Marker, TransactionPartition]]:
        return [(ending.marker, place) for ending, place in self.acknowledged if place.topic_id != OFFSETS_TOPIC_ID]

    @property
    def groups(self) -> list[tuple[TransactionEnding, int]]:
        return [(ending, place.partition) for ending, place in self.acknowledged if place.topic_id == OFFSETS_TOPIC_ID]

    async def send(
        self, ending: TransactionEnding, places: Sequence[TransactionPartition]
    ) -> dict[TransactionPartition, E]:
        await self.open.wait()
        errors = {place: E.NONE if place.topic_id == OFFSETS_TOPIC_ID else self.error for place in places}
        self.acknowledged += [(ending, place) for place, error in errors.items() if not error]
        return errors


class LosesAnswers:
    """A store whose next writes get no response: one per entry of `lose`, true if the write takes effect."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.lose: list[bool] = []
        self.holds = False
        self.is_away = False
        self.reads = 0
        """Number of store transactions without writes."""
        self.held: list[tuple[Sequence[Compare], Sequence[Operation]]] = []
        self.get, self.range = store.get, store.range

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        if self.is_away:
            raise StoreUnavailable("away")
        self.reads += not then
        if then and self.holds and then[0].key.startswith(keys.TRANSACTIONS):
            self.holds = False
            self.held.append((compares, then))
            raise StoreUnavailable("no answer")
        if then and self.lose and then[0].key.startswith(keys.TRANSACTIONS):
            if self.lose.pop(0):
                await self.store.txn(compares, then, otherwise)
            raise StoreUnavailable("no answer")
        return await self.store.txn(compares, then, otherwise)

    async def deliver(self) -> list[bool]:
        """Send the held writes to the store. Returns whether each succeeded."""
        held, self.held = self.held, []
        return [(await self.store.txn(*one)).succeeded for one in held]


class OwnerGuard(ShardGuard):
    """A guard of all shards by one key."""

    def ownership_compares(self) -> list[Compare]:
        return [Compare("owner", CompareTarget.MOD_REVISION, self.revision)]


class Loads:
    """A loader of the coordinator's shards."""

    prefixes = (keys.TRANSACTIONS,)

    def __init__(self, coordinator: TransactionCoordinator, epoch: int, owner_revision: int) -> None:
        self.coordinator, self.epoch, self.owner_revision = coordinator, epoch, owner_revision

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        shard.is_loading = False
        shard.guard.epoch = self.epoch
        guard = OwnerGuard(shard.number, self.epoch, self.owner_revision) if self.owner_revision else shard.guard
        self.coordinator.load_shard(shard.number, guard, found[0])

    def on_resigned(self, shard: CoordinatorShard) -> None:
        self.coordinator.drop_shard(shard.number)


class Bench:
    def __init__(self) -> None:
        self.embedded = EmbeddedStore(":memory:")
        self.store = LosesAnswers(self.embedded)
        self.clock, self.parts = HandClock(), Parts()
        self.config = BrokerConfig.from_texts({})
        self.is_paused: Callable[[], bool] = lambda: False

    @contextlib.asynccontextmanager
    async def coordinator(self, epoch: int = 0, owner_revision: int = 0) -> AsyncIterator[TransactionCoordinator]:
        """Yield a coordinator of all shards; with `owner_revision`, it owns them while the key "owner" has it."""
        ownership = LocalShardOwnership(self.embedded, 0)
        made = TransactionCoordinator(
            self.store,
            self.clock,
            self.config,
            ProducerIds(self.embedded),
            self.parts,
            ownership,
            self.is_paused,
        )
        ownership.add_listener(Loads(made, epoch, owner_revision))
        await ownership.start()
        try:
            yield made
        finally:
            await made.close()

    async def record(self, transactional_id: str = "x") -> TransactionRecord | None:
        entry = await self.embedded.get(keys.transaction(transactional_id))
        return None if entry is None else records.decode(TransactionRecord, entry.key, entry.value)

    async def until(self, state: str) -> TransactionRecord:
        async with asyncio.timeout(60):
            while True:
                record = await self.record()
                if record is not None and record.state == state:
                    return record
                await asyncio.sleep(0.01)


async def begun(coordinator: TransactionCoordinator, timeout_ms: int = LONG_MS) -> ProducerIdentity:
    error, producer = await coordinator.init_producer_id("x", timeout_ms, None)
    assert error is E.NONE
    assert await coordinator.add_to_transaction("x", producer, {T: [0, 1]}, ["g"]) is E.NONE
    return producer


async def test_a_commit_is_answered_when_it_is_decided_and_complete_when_all_are_told() -> None:
    bench = Bench()
    async with bench.coordinator(epoch=4) as coordinator:
        producer = await begun(coordinator)
        bench.parts.open.clear()
        assert await coordinator.end_transaction("x", producer, True) is E.NONE
        decided = await bench.record()
        assert decided is not None
        assert decided.state == "PrepareCommit"
        assert await coordinator.add_to_transaction("x", producer, {T: [2]}) is E.CONCURRENT_TRANSACTIONS
        bench.parts.open.set()
        await bench.until("CompleteCommit")
    marker = Marker(producer.producer_id, producer.epoch, True, 4)
    assert bench.parts.markers == [(marker, TransactionPartition(T, 0)), (marker, TransactionPartition(T, 1))]
    assert bench.parts.groups == [(TransactionEnding(marker, 1), keys.shard_of("g"))]


async def test_a_new_instance_aborts_what_the_one_before_left_and_fences_it() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        zombie = await begun(coordinator)
        assert (await coordinator.init_producer_id("x", LONG_MS, None))[0] is E.CONCURRENT_TRANSACTIONS
        await bench.until("CompleteAbort")
        error, successor = await coordinator.init_producer_id("x", LONG_MS, None)
        assert error is E.NONE
        assert successor.epoch > zombie.epoch + 1
        assert await coordinator.end_transaction("x", zombie, True) is E.PRODUCER_FENCED
        assert await coordinator.add_to_transaction("x", zombie, {T: [0]}) is E.PRODUCER_FENCED
        assert coordinator.verify("x", zombie, T, 0).error is E.PRODUCER_FENCED
    assert {(m.producer_epoch, m.committed) for m, _ in bench.parts.markers} == {(zombie.epoch + 1, False)}


async def test_a_decision_outlives_its_coordinator() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        producer = await begun(coordinator)
        bench.parts.open.clear()
        assert await coordinator.end_transaction("x", producer, True) is E.NONE
    bench.parts.open.set()
    assert not bench.parts.markers
    async with bench.coordinator(epoch=1):
        await bench.until("CompleteCommit")
    assert {(m.committed, m.coordinator_epoch) for m, _ in bench.parts.markers} == {(True, 1)}


async def test_an_open_transaction_outlives_its_coordinator_and_times_out_under_the_next() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        producer = await begun(coordinator)
    bench.clock.advance(LONG_MS)
    async with bench.coordinator() as coordinator:
        done = await bench.until("CompleteAbort")
        assert done.epoch == producer.epoch + 1
        assert await coordinator.end_transaction("x", producer, True) is E.PRODUCER_FENCED
        assert await coordinator.init_producer_id("x", LONG_MS, producer) == (
            E.NONE,
            ProducerIdentity(producer.producer_id, 1),
        )


async def test_a_write_without_an_answer_is_read_again_before_anything_is_decided() -> None:
    for took_effect in (False, True):
        bench = Bench()
        async with bench.coordinator() as coordinator:
            producer = await begun(coordinator)
            bench.store.lose = [took_effect]
            assert await coordinator.end_transaction("x", producer, True) is E.COORDINATOR_NOT_AVAILABLE
            assert coordinator.verify("x", producer, T, 0).error is E.CONCURRENT_TRANSACTIONS
            # If the coordinator considered the transaction open, this would turn a commit into an abort.
            error = await coordinator.end_transaction("x", producer, False)
            assert error is (E.INVALID_TXN_STATE if took_effect else E.NONE)
            await bench.until("CompleteCommit" if took_effect else "CompleteAbort")
        assert {m.committed for m, _ in bench.parts.markers} == {took_effect}


@pytest.mark.slow
async def test_a_commit_without_an_answer_is_completed_though_nobody_asks_again() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        producer = await begun(coordinator)
        bench.store.lose = [True]
        assert await coordinator.end_transaction("x", producer, True) is E.COORDINATOR_NOT_AVAILABLE
        await bench.until("CompleteCommit")


async def test_a_coordinator_that_lost_its_shard_writes_nothing() -> None:
    bench = Bench()
    revision = (await bench.embedded.txn([], [PutOp("owner", b"me")])).revision
    async with bench.coordinator(3, revision) as old:
        producer = await begun(old)
        await bench.embedded.txn([], [PutOp("owner", b"another")])
        before = await bench.record()
        assert await old.end_transaction("x", producer, True) is E.NOT_COORDINATOR
        assert await bench.record() == before
        assert await old.end_transaction("x", producer, True) is E.NOT_COORDINATOR
        assert not bench.parts.markers


Ask = Callable[[TransactionCoordinator, ProducerIdentity], Awaitable[E]]


async def claimed(coordinator: TransactionCoordinator, transactional_id: str, producer: ProducerIdentity) -> E:
    return (await coordinator.init_producer_id(transactional_id, LONG_MS, producer))[0]


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (lambda c, me: c.end_transaction("x", me, True), E.NONE),
        (lambda c, me: c.end_transaction("x", me, False), E.INVALID_TXN_STATE),
        (lambda c, me: c.end_transaction("new", me, True), E.INVALID_PRODUCER_ID_MAPPING),
        (lambda c, me: c.add_to_transaction("new", me, {T: [0]}), E.INVALID_PRODUCER_ID_MAPPING),
        (lambda c, me: c.add_to_transaction("x", me._replace(producer_id=77), {T: [0]}), E.INVALID_PRODUCER_ID_MAPPING),
        (lambda c, me: c.add_to_transaction("x", me._replace(epoch=me.epoch - 1), {T: [0]}), E.PRODUCER_FENCED),
        (lambda c, me: claimed(c, "x", me._replace(epoch=me.epoch + 1)), E.PRODUCER_FENCED),
    ],
    ids=["ended", "otherwise", "end of new", "new", "another", "fenced", "claimed"],
)
async def test_what_is_final_is_told_by_who_surely_has_the_shard_alone(ask: Ask, found: E) -> None:
    bench = Bench()
    revision = (await bench.embedded.txn([], [PutOp("owner", b"me")])).revision
    async with bench.coordinator(3, revision) as coordinator:
        producer = await begun(coordinator)
        assert await coordinator.end_transaction("x", producer, True) is E.NONE
        await bench.until("CompleteCommit")
        assert await ask(coordinator, producer) is found
        bench.store.is_away = True
        assert await ask(coordinator, producer) is E.COORDINATOR_NOT_AVAILABLE
        bench.store.is_away = False
        assert await ask(coordinator, producer) is found
        await bench.embedded.txn([], [PutOp("owner", b"another")])
        assert await ask(coordinator, producer) is E.NOT_COORDINATOR


async def test_partitions_are_known_already_to_who_surely_has_the_shard_alone() -> None:
    bench = Bench()
    revision = (await bench.embedded.txn([], [PutOp("owner", b"me")])).revision
    async with bench.coordinator(3, revision) as coordinator:
        producer = await begun(coordinator)
        assert await coordinator.add_to_transaction("x", producer, {T: [0]}) is E.NONE
        await bench.embedded.txn([], [PutOp("owner", b"another")])
        assert await coordinator.add_to_transaction("x", producer, {T: [0]}) is E.NOT_COORDINATOR
        assert list(coordinator) == []


async def test_of_a_transaction_that_goes_as_it_should_nothing_is_asked_of_the_store() -> None:
    bench = Bench()
    revision = (await bench.embedded.txn([], [PutOp("owner", b"me")])).revision
    async with bench.coordinator(3, revision) as coordinator:
        producer = await begun(coordinator)
        assert await coordinator.add_to_transaction("x", producer, {T: [2]}) is E.NONE
        assert not coordinator.verify("x", producer, T, 2).error
        assert not coordinator.verify_group("x", producer, "g").error
        assert await coordinator.end_transaction("x", producer, True) is E.NONE
        await bench.until("CompleteCommit")
        assert await coordinator.add_to_transaction("x", producer, {T: [2]}) is E.NONE
        assert await coordinator.end_transaction("x", producer, False) is E.NONE
        await bench.until("CompleteAbort")
    assert bench.store.reads == 0


async def test_where_a_partition_heard_of_a_newer_coordinator_the_store_knows_whether_there_is_one() -> None:
    for is_replaced in (True, False):
        bench = Bench()
        revision = (await bench.embedded.txn([], [PutOp("owner", b"me")])).revision
        async with bench.coordinator(3, revision) as coordinator:
            producer = await begun(coordinator)
            bench.parts.error = E.TRANSACTION_COORDINATOR_FENCED
            assert await coordinator.end_transaction("x", producer, True) is E.NONE
            if is_replaced:
                await bench.embedded.txn([], [PutOp("owner", b"another")])
                async with asyncio.timeout(60):
                    while await coordinator.end_transaction("x", producer, True) is not E.NOT_COORDINATOR:
                        await asyncio.sleep(0.01)
                record = await bench.record()
                assert record is not None
                assert record.state == "PrepareCommit"
            else:
                bench.parts.error = E.NONE
                await bench.until("CompleteCommit")


@pytest.mark.slow
async def test_a_write_that_takes_effect_after_it_was_given_up_on_is_found_by_the_next() -> None:
    bench = Bench()
    revision = (await bench.embedded.txn([], [PutOp("owner", b"me")])).revision
    async with bench.coordinator(3, revision) as coordinator:
        producer = await begun(coordinator)
        bench.store.holds = True
        assert await coordinator.end_transaction("x", producer, True) is E.COORDINATOR_NOT_AVAILABLE
        assert await coordinator.add_to_transaction("x", producer, {T: [0]}) is E.NONE, (
            "read again: the decision is not there yet"
        )
        assert await bench.store.deliver() == [True]
        assert await coordinator.end_transaction("x", producer, False) is E.COORDINATOR_NOT_AVAILABLE
        await bench.until("CompleteCommit")
        assert await coordinator.end_transaction("x", producer, False) is E.INVALID_TXN_STATE, "the shard was kept"


async def test_partitions_that_cannot_be_reached_are_told_again() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        producer = await begun(coordinator)
        bench.parts.error = E.NOT_LEADER_OR_FOLLOWER
        assert await coordinator.end_transaction("x", producer, False) is E.NONE
        async with asyncio.timeout(60):
            while not bench.parts.groups:
                await asyncio.sleep(0.01)
        record = await bench.record()
        assert record is not None
        assert record.state == "PrepareAbort"
        bench.parts.error = E.NONE
        await bench.until("CompleteAbort")
    assert len(bench.parts.groups) == 1, "a group that has acknowledged gets no second request"


async def test_an_id_that_nobody_uses_is_forgotten() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        await coordinator.init_producer_id("x", LONG_MS, None)
    bench.clock.advance(bench.config.transactional_id_expiration_ms)
    async with bench.coordinator() as coordinator:
        async with asyncio.timeout(60):
            while await bench.record() is not None:
                await asyncio.sleep(0.01)
        assert list(coordinator) == []


@pytest.mark.slow
async def test_ids_are_not_forgotten_while_the_wall_clock_cannot_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinating, "PAUSED_RECHECK_S", 0.0)
    bench = Bench()
    async with bench.coordinator() as coordinator:
        await coordinator.init_producer_id("x", LONG_MS, None)
    bench.clock.now_ms += bench.config.transactional_id_expiration_ms
    answers = [False, True, True]
    bench.is_paused = answers.pop
    async with bench.coordinator():
        async with asyncio.timeout(60):
            while await bench.record() is not None:
                await asyncio.sleep(0.01)
    assert answers == []


@pytest.mark.slow
@pytest.mark.parametrize("leap_ms", [-DAY_MS, DAY_MS], ids=["set back", "set forward"])
async def test_a_transaction_has_its_timeout_whatever_the_wall_clock_does(leap_ms: int) -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        error, producer = await coordinator.init_producer_id("x", 4000, None)
        assert error is E.NONE
        before_s = asyncio.get_running_loop().time()
        assert await coordinator.add_to_transaction("x", producer, {T: [0]}) is E.NONE
        bench.clock.now_ms += leap_ms
        assert await coordinator.add_to_transaction("x", producer, {T: [1]}) is E.NONE
        await bench.until("CompleteAbort")
        assert asyncio.get_running_loop().time() >= before_s + 4.0


@pytest.mark.slow
async def test_a_transaction_that_is_found_by_a_clock_that_was_set_back_has_its_timeout_at_most() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        await begun(coordinator, timeout_ms=1000)
    bench.clock.now_ms -= DAY_MS
    async with bench.coordinator():
        await bench.until("CompleteAbort")


async def test_an_id_that_is_forgotten_while_a_producer_asks_for_it_is_known_afterwards() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        await coordinator.init_producer_id("x", LONG_MS, None)
        bench.clock.advance(bench.config.transactional_id_expiration_ms)
        (shard,) = [s for s in coordinator._shards.values() if s.transactions]
        transaction = shard.transactions["x"]
        async with transaction.lock:
            forgetting = asyncio.ensure_future(coordinator._handle_timeout(transaction))
            await asyncio.sleep(0)
            asking = asyncio.ensure_future(coordinator.init_producer_id("x", LONG_MS, None))
            await asyncio.sleep(0)
        await forgetting
        error, producer = await asking
        assert error is E.NONE
        assert await coordinator.add_to_transaction("x", producer, {T: [0]}) is E.NONE
        assert await coordinator.end_transaction("x", producer, True) is E.NONE
        await bench.until("CompleteCommit")


async def test_the_bounds_of_timeouts_and_names_are_kept() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        for timeout_ms in (0, -1, bench.config.transaction_max_timeout_ms + 1):
            error, _ = await coordinator.init_producer_id("x", timeout_ms, None)
            assert error is E.INVALID_TRANSACTION_TIMEOUT
        for name in ("", "x" * 1025):
            assert (await coordinator.init_producer_id(name, LONG_MS, None))[0] is E.INVALID_REQUEST
        assert list(coordinator) == []


async def test_requests_for_one_id_are_decided_one_after_the_other() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        _, producer = await coordinator.init_producer_id("x", LONG_MS, None)
        adds = [coordinator.add_to_transaction("x", producer, {T: [i]}) for i in range(50)]
        assert set(await asyncio.gather(*adds)) == {E.NONE}
        record = await bench.record()
        assert record is not None
        assert record.partitions == {T: list(range(50))}


async def test_the_wheel_fires_each_key_once_and_none_that_was_cancelled() -> None:
    fired: list[str] = []
    wheel = TimerWheel(fired.append)
    for i in range(100):
        wheel.schedule(f"{i}", 0.0)
    for i in range(50):
        wheel.cancel(f"{i}")
    wheel.schedule("60", 3600.0)
    async with asyncio.timeout(60):
        while len(fired) < 49:
            await asyncio.sleep(timer_wheel.TICK_S / 5)
    assert sorted(fired) == sorted(f"{i}" for i in range(50, 100) if i != 60)
    assert len(wheel) == 1
    wheel.close()
