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
    signal.signal(signal.SIGTERM, lambda *_: event.set())
    return event


def body(key: str) -> bytes:
    """What the value of a key is, of varying size: so a reader can tell whether it got what was sent."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return (digest * (1 + int(digest[:2], 16) // 32)).encode()
