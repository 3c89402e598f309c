"""The simulated store passes the contract suite of all `Store` implementations, with and without delays."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock_simulation.machine import Machine
from penstock_simulation.network import Network
from penstock_simulation.store import StoreCore
from penstock_simulation.store_client import SimStore
from penstock_simulation.world import World

from penstock.state.store import Compacted, Compare, PutOp, Store, StoreUnavailable

CONTRACT = Path(__file__).parents[2] / "broker" / "tests" / "state" / "test_store_contract.py"


def load_contract() -> Any:
    spec = importlib.util.spec_from_file_location("store_contract_for_simulation", CONTRACT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> Iterator[Any]:
    """Return each test of the suite, once for each of its parameters."""
    for name, test in vars(load_contract()).items():
        if not name.startswith("test_"):
            continue
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        assert len(marks) <= 1, f"{name} has parameters of parameters"
        if not marks:
            yield pytest.param(test, {}, id=name)
            continue
        names, values = marks[0].args
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        for number, value in enumerate(values):
            given = dict(zip(names, value if len(names) > 1 else [value], strict=True))
            yield pytest.param(test, given, id=f"{name}-{number}")


class Place:
    """A world with a store and one machine."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.core = StoreCore(self.world, self.network)
        self.machine = Machine(self.world, self.network, "b0")

    def run(self, main: Callable[[Store], Awaitable[Any]]) -> Any:
        async def body() -> Any:
            process = self.world.current
            assert process is not None
            return await main(SimStore(self.core, process))

        return self.world.run_main(body, self.machine)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("test", "given"), list(cases()))
def test_contract(test: Callable[..., Awaitable[None]], given: dict[str, Any], seed: int) -> None:
    place = Place(seed)

    async def body(store: Store) -> None:
        if "advance" in inspect.signature(test).parameters:
            await test(store, advance=asyncio.sleep, **given)
        else:
            await test(store, **given)

    place.run(body)
    assert not place.world.problems
    place.world.close()


def outcome_of_a_write(seed: int, fault: Callable[[Place], None]) -> tuple[bool, bool]:
    """Return whether a write was answered and whether it took effect, with a fault that starts as it is sent."""
    place = Place(seed)

    async def body(store: Store) -> bool:
        fault(place)
        try:
            await store.txn([Compare.absent("/k")], [PutOp("/k", b"v")])
        except StoreUnavailable:
            return False
        finally:
            await asyncio.sleep(10)
        return True

    answered = place.run(body)
    taken = "/k" in place.core.contents.committed
    place.world.close()
    return answered, taken


def go_away_for_a_while(place: Place) -> None:
    place.core.go_away()
    place.world.after(5, place.core.come_back)


def cut_the_way_back(place: Place) -> None:
    place.network.cut("store", "b0")
    place.world.after(5, place.network.heal, "store", "b0")


def test_a_write_while_the_store_is_away_fails_and_may_take_effect_later_all_the_same() -> None:
    found = {outcome_of_a_write(seed, go_away_for_a_while) for seed in range(30)}
    assert found == {(False, False), (False, True)}


def test_a_write_whose_answer_is_lost_took_effect_and_is_not_answered() -> None:
    assert {outcome_of_a_write(seed, cut_the_way_back) for seed in range(5)} == {(False, True)}


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_late_call_comes_before_later_ones_of_its_client_unless_late_calls_are_overtaken(overtaken: bool) -> None:
    found = set()
    for seed in range(30):
        place = Place(seed)
        place.core.late_are_overtaken = overtaken

        async def body(store: Store, place: Place = place) -> None:
            go_away_for_a_while(place)
            with pytest.raises(StoreUnavailable):
                await store.txn([], [PutOp("/k", b"late")])
            await asyncio.sleep(5)
            await store.txn([], [PutOp("/k", b"newer")])
            await asyncio.sleep(10)

        place.run(body)
        found.add(place.core.contents.committed["/k"].value)
        place.world.close()
    assert found == ({b"late", b"newer"} if overtaken else {b"newer"})


def test_a_watch_lags_behind_and_misses_nothing_when_it_was_cut_off() -> None:
    place = Place(7)

    async def body(store: Store) -> list[bytes]:
        seen: list[bytes] = []

        async def follow() -> None:
            async for changes in store.watch("/", 1):
                seen.extend(event.entry.value for event in changes.events if event.entry is not None)

        following = asyncio.ensure_future(follow())
        await store.txn([], [PutOp("/a", b"1")])
        await asyncio.sleep(5)
        assert seen == [b"1"]
        place.network.cut("store", "b0")
        place.core.txn([], [PutOp("/a", b"2")], [])
        place.core.txn([], [PutOp("/b", b"3")], [])
        await asyncio.sleep(5)
        assert seen == [b"1"]
        place.network.heal("store", "b0")
        await asyncio.sleep(5)
        following.cancel()
        return seen

    assert place.run(body) == [b"1", b"2", b"3"]


def test_a_lease_is_kept_while_the_store_is_away_and_has_all_its_time_afterwards() -> None:
    place = Place(8)

    async def body(store: Store) -> tuple[bool, bool, bool]:
        lease = await store.grant_lease(4)
        await store.txn([], [PutOp("/leased", b"", lease)])
        place.core.go_away()
        await asyncio.sleep(20)
        during = "/leased" in place.core.contents.committed
        place.core.come_back()
        await asyncio.sleep(3)
        then = "/leased" in place.core.contents.committed
        await asyncio.sleep(2)
        return during, then, "/leased" in place.core.contents.committed

    assert place.run(body) == (True, True, False)


def change_leader(place: Place) -> None:
    """Change the leader while the write is being answered."""
    place.core.usual_delay_s = place.core.delay_s = 0.01
    place.world.after(0.012, place.core.go_away)
    place.world.after(0.2, place.core.come_back)


def test_a_write_at_a_change_of_leaders_is_answered_or_not_and_done_or_not_but_never_answered_and_not_done() -> None:
    found = {outcome_of_a_write(seed, change_leader) for seed in range(24)}
    assert found == {(True, True), (False, True), (False, False)}


def test_a_watch_of_one_machine_may_lag_more_than_others() -> None:
    place = Place(9)
    place.core.lag_s, place.core.lags["b0"] = 0.001, 100.0

    async def body(store: Store) -> int:
        seen: list[int] = []

        async def follow() -> None:
            async for changes in store.watch("/", 1):
                seen.extend([changes.revision])

        following = asyncio.ensure_future(follow())
        await store.txn([], [PutOp("/a", b"1")])
        await asyncio.sleep(1)
        before = len(seen)
        await asyncio.sleep(1000)
        assert len(seen) == 1
        following.cancel()
        return before

    assert place.run(body) == 0


def test_a_watch_that_was_cut_off_while_the_store_compacted_has_to_begin_anew() -> None:
    place = Place(10)

    async def body(store: Store) -> None:
        stream = store.watch("/", 1).__aiter__()
        await store.txn([], [PutOp("/a", b"1")])
        assert (await anext(stream)).events
        place.network.cut("store", "b0")
        for number in range(5):
            place.core.txn([], [PutOp("/a", b"%d" % number)], [])
        place.core.compact(place.core.history.last)
        place.network.heal("store", "b0")
        with pytest.raises(Compacted):
            await anext(stream)

    place.run(body)
