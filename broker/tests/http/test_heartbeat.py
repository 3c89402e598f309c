"""Delays of the event loop, measured by a timer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from penstock.http.heartbeat import Heartbeat


class ManualLoop:
    """An event loop whose time the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any) -> Any:
        self.timers.append((when, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def run(self, until: Iterable[float]) -> None:
        for self.now in until:
            (_, callback) = self.timers.pop()
            callback()


def test_delays_of_the_loop_are_counted_as_stalls() -> None:
    loop = ManualLoop()
    heartbeat = Heartbeat(loop, interval_s=0.1)  # type: ignore[arg-type]
    heartbeat.start()
    loop.run([100.1, 100.21, 100.61, 100.71, 102.81])
    assert heartbeat.stalls == 2
    assert heartbeat.stalled_s == pytest.approx(2.3)
    assert heartbeat.longest_s == pytest.approx(2.0)
