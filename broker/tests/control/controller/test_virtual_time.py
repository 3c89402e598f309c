"""Virtual time does not run ahead of threads, so a slow machine does not change results."""

from __future__ import annotations

import asyncio
import time

from controller_kit import STEP_S

from penstock.state.store import PutOp

SLOW_S = 0.05


async def test_time_stands_still_while_the_store_writes(world) -> None:
    write = world.store._write

    def slowly(batch) -> None:
        time.sleep(SLOW_S)
        write(batch)

    world.store._write = slowly
    writing = asyncio.ensure_future(world.store.txn([], [PutOp("/x", b"1")]))
    await world.time.advance(STEP_S)
    assert writing.done()


async def test_time_stands_still_while_a_thread_computes(world) -> None:
    computing = asyncio.ensure_future(asyncio.to_thread(time.sleep, SLOW_S))
    await world.time.advance(STEP_S)
    assert computing.done()
