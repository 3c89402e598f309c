"""An asyncio loop in its own thread, for synchronous callers. Used only by `link`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")
STOP_LIMIT_S = 5.0


class LoopThread:
    """A loop that runs from construction until `stop`. Its daemon thread does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine's result. An interrupt of the caller (Ctrl-C) cancels the coroutine."""
        assert threading.current_thread() is not self._thread, "the loop's own thread would wait for itself"
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        """Start a coroutine without waiting; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Schedule a call on the loop; does nothing if the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            assert self.loop.is_closed(), "the loop refuses calls though it is open"

    def stop(self) -> None:
        """Cancel the running tasks and end the thread. Idempotent."""
        if self.loop.is_closed():
            return
        self.post(self.loop.stop)
        self._thread.join(STOP_LIMIT_S)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self.loop.close()
