"""What the processes of the loads share: being told to finish, client settings for brokers that come and go."""

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
"""For librdkafka: the broker is back within a second."""


def finishing() -> threading.Event:
    """Set when the test wants the load to end."""
    event = threading.Event()
    # In a thread of its own: a handler that sets an event hangs where it interrupts the wait for that event.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=lambda: signal.sigwait([signal.SIGTERM]) and event.set(), daemon=True).start()
    return event


def body(key: str) -> bytes:
    """What the value of a key is, of varying size: so a reader can tell whether it got what was sent."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return (digest * (1 + int(digest[:2], 16) // 32)).encode()
