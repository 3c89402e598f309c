"""The timer wheel over hours, on an event loop with a manual clock."""

from __future__ import annotations

import asyncio

import pytest

from penstock.txn.timer_wheel import TICK_S, TimerWheel

WEEK_S = 604_800.0


class Hours:
    """Event loop time that the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now_s = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now_s)

    async def move(self, by_s: float) -> None:
        self.now_s += by_s
        for _ in range(3):
            await asyncio.sleep(0)


async def test_deadlines_that_are_put_off_again_and_again_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    hours, fired = Hours(monkeypatch), list[str]()
    wheel = TimerWheel(fired.append)
    for _ in range(10_000):
        for key in ("busy", "as busy"):
            wheel.schedule(key, 60.0)
            wheel.schedule(key, WEEK_S)
            wheel.schedule(key, 60.0)
            wheel.schedule(key, WEEK_S)
        await hours.move(TICK_S)
    assert len(wheel._slots) < 1_000
    assert len(wheel._order) == len(wheel._slots)
    assert not fired
    wheel.close()


@pytest.mark.parametrize("delay_s", [0.0, 0.7, 60.0, 900.0, 86_400.0, WEEK_S])
async def test_a_key_is_due_within_a_hundredth_of_its_delay_and_never_early(
    monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    hours, fired = Hours(monkeypatch), list[str]()
    wheel = TimerWheel(fired.append)
    await hours.move(1234.3)
    wheel.schedule("late", delay_s)
    await hours.move(delay_s - 0.001)
    assert not fired
    await hours.move(0.002 + TICK_S + delay_s / 100)
    assert fired == ["late"]
    wheel.close()


async def test_what_was_due_long_ago_is_fired_with_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    hours, fired = Hours(monkeypatch), list[str]()
    wheel = TimerWheel(fired.append)
    wheel.schedule("overdue", -WEEK_S)
    await hours.move(TICK_S)
    assert fired == ["overdue"]
    wheel.close()
