"""What the workloads share: being told to finish, the clock, settings for brokers that come and go."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Message
from penstock_crash.journal import JournalWriter

FAST_RECONNECT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 2_000,
    # When all brokers are away, librdkafka 2.16 forgets them and begins with the bootstrap addresses again; what a
    # transaction waits for at a broker that was forgotten (TxnOffsetCommit) then waits forever.
    "metadata.recovery.strategy": "none",
    "log_level": 3,
}
"""For librdkafka, whose defaults are for brokers that are seldom away."""
VALUE_BYTES = 100


def now() -> float:
    return round(time.monotonic(), 4)


def start(options: dict[str, Any]) -> tuple[threading.Event, JournalWriter]:
    """The event is set when the test wants the load to end."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.WARNING)
    end = threading.Event()
    # In a thread of its own: a handler that sets an event hangs where it interrupts the wait for that event.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=lambda: signal.sigwait([signal.SIGTERM]) and end.set(), daemon=True).start()
    return end, JournalWriter(Path(options["journal"]))


def body(writer: str, partition: int, number: int) -> str:
    """The value of a record: unlike all others."""
    return f"{writer}/{partition}/{number}/".ljust(VALUE_BYTES, ".")


def by_partition(messages: Iterable[Message]) -> dict[int, list[tuple[int, str]]]:
    """(offset, value) of messages without an error, by partition, in their order."""
    found: dict[int, list[tuple[int, str]]] = {}
    for message in messages:
        partition, offset, value = message.partition(), message.offset(), message.value()
        if message.error() is None and partition is not None and offset is not None and isinstance(value, bytes):
            found.setdefault(partition, []).append((offset, value.decode()))
    return found
