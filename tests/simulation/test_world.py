"""Virtual time, processes, kills and pauses."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import AsyncIterator
from functools import partial

import pytest
from penstock_simulation.machine import Machine
from penstock_simulation.network import Network
from penstock_simulation.process import Process
from penstock_simulation.seams import GlobalRandomness, in_place
from penstock_simulation.world import Deadlock, Livelock, World


def never() -> bool:
    return False


def is_over(process: Process) -> bool:
    return not process.alive


def test_time_jumps_to_the_next_timer_and_nobody_waits() -> None:
    world = World(1)

    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert world.run_main(main) == pytest.approx(86_400)


def test_timers_fire_in_the_order_of_their_times_and_callbacks_in_the_order_of_asking() -> None:
    world = World(1)

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        found: list[int] = []
        loop.call_later(2, found.append, 4)
        loop.call_later(1, found.append, 3)
        cancelled = loop.call_later(0.5, found.append, -1)
        cancelled.cancel()
        loop.call_soon(found.append, 1)
        loop.call_soon(found.append, 2)
        await asyncio.sleep(3)
        return found

    assert world.run_main(main) == [1, 2, 3, 4]


def test_a_timer_is_never_early_by_the_clock_of_its_machine() -> None:
    world = World(3)
    machine = Machine(world, Network(world), "m")

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def tell(fired: asyncio.Future[float]) -> None:
            fired.set_result(loop.time())

        for number in range(200):
            when = loop.time() + number / 7
            fired: asyncio.Future[float] = loop.create_future()
            loop.call_at(when, tell, fired)
            assert await fired >= when

    world.run_main(main, machine)


def test_asyncio_s_own_tools_work() -> None:
    world = World(1)

    async def main() -> list[object]:
        event, lock, queue = asyncio.Event(), asyncio.Lock(), asyncio.Queue[int](1)
        found: list[object] = []

        async def worker() -> None:
            async with lock:
                await event.wait()
                found.append(await queue.get())

        async with asyncio.TaskGroup() as group:
            group.create_task(worker())
            event.set()
            await queue.put(5)
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(2)
        except TimeoutError:
            found.append("late")
        found += await asyncio.gather(asyncio.sleep(0.1, 1), asyncio.wait_for(asyncio.sleep(0.1, 2), 1))
        found.append(await asyncio.get_running_loop().run_in_executor(None, sum, [1, 2]))
        found.append(await asyncio.to_thread(max, 1, 4))
        return found

    assert world.run_main(main) == [5, "late", 1, 2, 3, 4]


def test_a_killed_process_runs_no_finally_and_nothing_else_ever_again() -> None:
    world = World(1)
    found: list[str] = []

    async def generator() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.1)
        finally:
            found.append("generator closed")

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, found.append, "timer")
        try:
            async for _ in generator():
                pass
        finally:
            found.append("finally")

    process = world.spawn("p", main)
    world.at(0.55, process.kill)
    world.run(lambda: not process.alive)
    world.after(5, lambda: None)
    with pytest.raises(Deadlock):
        world.run(never)
    assert not found
    assert not world.problems


def test_a_process_can_die_between_any_two_callbacks() -> None:
    reached = set()
    for fuse in range(12):
        world = World(1)
        steps: list[int] = []

        async def main(steps: list[int] = steps) -> None:
            for number in range(10):
                steps.append(number)
                await asyncio.sleep(0)

        process = world.spawn("p", main)
        process.fuse = fuse
        world.run(partial(is_over, process))
        reached.add(len(steps))
        world.close()
    assert reached == set(range(11))


def test_a_paused_process_does_not_run_and_finds_all_its_timers_due_afterwards() -> None:
    world = World(1)
    ticks: list[float] = []

    async def main() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(world.now)

    process = world.spawn("p", main)
    world.at(2.5, process.pause)
    world.at(10, process.resume)
    world.run(never, 12)
    assert [round(t) for t in ticks] == [1, 2, 10, 11, 12][: len(ticks)]
    assert len(ticks) >= 4


def test_which_process_runs_first_is_the_seed_s_choice() -> None:
    def order(seed: int) -> str:
        world = World(seed)
        found: list[str] = []

        async def main(name: str) -> None:
            for _ in range(8):
                found.append(name)
                await asyncio.sleep(0)

        for name in "abc":
            world.spawn(name, partial(main, name))
        world.after(1, lambda: None)
        world.run(never, 0.5)
        return "".join(found)

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(10)}) > 1
    assert all(sorted(order(seed)) == sorted("abc" * 8) for seed in range(5))


def test_a_process_that_spins_for_ever_is_found_out() -> None:
    world = World(1)

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    world.spawn("p", main)
    with pytest.raises(Livelock, match="p"):
        world.run(never)


def test_an_exception_that_nobody_expected_is_a_problem_of_the_world() -> None:
    world = World(1)

    def fail() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(1)
        raise ValueError("at the end")

    process = world.spawn("p", main)
    world.run(lambda: not process.alive)
    assert len(world.problems) == 2
    assert "ZeroDivisionError" in world.problems[0]
    assert "at the end" in world.problems[1]


def test_chance_comes_from_the_seed_inside_and_not_outside() -> None:
    def draw(seed: int) -> list[object]:
        with in_place(World(seed)):
            return [uuid.uuid4(), os.urandom(4), random.random(), random.Random().random(), random.Random(5).random()]

    assert draw(1) == draw(1)
    assert all(a != b for a, b in zip(draw(1)[:4], draw(2)[:4], strict=True))
    assert draw(1)[4] == random.Random(5).random()
    assert uuid.uuid4() != uuid.uuid4()


def test_a_part_of_the_broker_may_not_draw_from_a_global_source() -> None:
    draws = ["random.random()", "random.Random()", "uuid.uuid4()", "os.urandom(4)", "random.shuffle([1])"]
    with in_place(World(1)):
        for draw in draws:
            eval(draw, {"__name__": "penstock.client.cluster", "random": random, "uuid": uuid, "os": os})
            with pytest.raises(GlobalRandomness, match=r"penstock\.log\.meta"):
                eval(draw, {"__name__": "penstock.log.meta", "random": random, "uuid": uuid, "os": os})


def test_each_part_draws_from_a_stream_of_its_own() -> None:
    one, other = World(1), World(1)
    other.streams["disk"].random()
    assert one.streams["network"].random() == other.streams["network"].random()
    assert World(2).streams["network"].random() != World(1).streams["network"].random()


def test_clocks_are_skewed_drift_and_leap_and_the_clock_since_boot_does_not_go_back() -> None:
    world = World(5)
    network = Network(world)
    machines = [Machine(world, network, f"m{i}") for i in range(4)]
    assert len({m.clock.wall_ms() for m in machines}) > 1
    before = [(m.clock.wall_ms(), m.clock.boot_ms()) for m in machines]
    world.after(1000, lambda: None)
    with pytest.raises(Deadlock):
        world.run(never)
    passed = [
        (m.clock.wall_ms() - wall, m.clock.boot_ms() - boot) for m, (wall, boot) in zip(machines, before, strict=True)
    ]
    assert all(abs(wall - 1_000_000) <= 201 and abs(boot - 1_000_000) <= 201 for wall, boot in passed)
    assert len({wall for wall, _ in passed}) > 1
    machines[0].leap(-60_000)
    assert machines[0].clock.wall_ms() < before[0][0] + passed[0][0]
    assert machines[0].clock.boot_ms() >= before[0][1] + passed[0][1]


def test_a_process_can_stop_between_any_two_callbacks_and_go_on_where_it_was() -> None:
    before: list[int] = []
    for fuse in range(12):
        world = World(1)
        steps: list[float] = []

        async def main(world: World = world, steps: list[float] = steps) -> None:
            for _ in range(10):
                steps.append(world.now)
                await asyncio.sleep(0)

        process = world.spawn("p", main)
        process.on_fuse, process.fuse = process.pause, fuse
        world.at(3, process.resume)
        world.run(partial(is_over, process), 5)
        assert len(steps) == 10
        before.append(steps.count(0.0))
        assert before[-1] + steps.count(3.0) == 10
        world.close()
    assert sorted(set(before)) == list(range(11))
