"""Shared code of the Python clients: events on standard output, and when to stop."""

from __future__ import annotations

import sys
import threading
import time

RATE = 50.0
"""Records per second."""
LIMIT_S = 60.0
"""Seconds for which a consumer waits for missing records at the end."""


class Events:
    """Events from several threads. `is_stopping` is set when standard input has ended."""

    def __init__(self) -> None:
        self.is_stopping = threading.Event()
        self.is_flushed = threading.Event()
        self.acknowledged: set[int] = set()
        self.received: set[int] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch_input, daemon=True).start()

    def _watch_input(self) -> None:
        sys.stdin.read()
        self.is_stopping.set()

    def _write(self, kind: str, what: object) -> None:
        with self._lock:
            sys.stdout.write(f"{time.time():.3f} {kind} {what}\n")
            sys.stdout.flush()

    def note_acknowledged(self, number: int) -> None:
        self.acknowledged.add(number)
        self._write("acknowledged", number)

    def note_received(self, value: bytes | None) -> None:
        number = int(value or b"-1")
        self.received.add(number)
        self._write("received", number)

    def note_error(self, error: object) -> None:
        self._write("error", type(error).__name__ if isinstance(error, BaseException) else error)

    def is_complete(self) -> bool:
        return self.is_flushed.is_set() and self.acknowledged <= self.received
