"""Common parts of the load processes: the stop signal, client settings for brokers that restart."""

from __future__ import annotations

import hashlib
import signal
import threading
from typing import Any

FAST_RECONNECT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,
}
"""Settings for librdkafka: the broker returns within a second."""


def finishing() -> threading.Event:
    """Return an event that the test sets to end the load."""
    event = threading.Event()
    # In a separate thread: a handler that sets an event deadlocks if it interrupts the wait for that event.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=lambda: signal.sigwait([signal.SIGTERM]) and event.set(), daemon=True).start()
    return event


def body(key: str) -> bytes:
    """Return the value for a key, with varying size, so that a reader can verify it."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return (digest * (1 + int(digest[:2], 16) // 32)).encode()
