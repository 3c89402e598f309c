"""A signal handler stops a job at any point of the main thread."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from penstock_spark.jobs.run.stopping import StopSignal

LIMIT_S = 60.0


def interrupt_at(step: int, stop: StopSignal, wait: Callable[[], bool]) -> bool:
    """Wait, and call `set` during the n-th step in the same thread, like a signal handler. Return whether there was
    such a step."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        if event == "line":
            steps += 1
            if steps == step:
                stop.set()
        return trace

    sys.settrace(trace)
    try:
        wait()
    finally:
        sys.settrace(None)
    return steps >= step


def test_it_may_be_set_in_the_middle_of_any_step_of_a_wait() -> None:
    said: list[bool] = []

    def every_step() -> None:
        for step in itertools.count(1):
            stop = StopSignal()
            if not interrupt_at(step, stop, lambda stop=stop: stop.wait(0.01)):  # type: ignore[misc]
                return
            said.append(stop.wait(0))

    thread = threading.Thread(target=every_step, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), f"it hangs where it is set in step {len(said) + 1}"
    assert len(said) > 1
    assert all(said)


def test_all_that_wait_are_told() -> None:
    stop = StopSignal()
    told: list[bool] = []
    threads = [threading.Thread(target=lambda: told.append(stop.wait(LIMIT_S))) for _ in range(3)]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert told == [True, True, True]
    assert stop.is_set()
    assert stop.wait(0)


def test_a_wait_for_what_is_not_set_ends_with_its_time() -> None:
    stop = StopSignal()
    began_s = time.monotonic()
    assert not stop.wait(0.05)
    assert time.monotonic() - began_s >= 0.05
    assert not stop.is_set()
