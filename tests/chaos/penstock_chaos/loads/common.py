"""Common parts of the workloads: the stop signal, the clock, client settings for brokers that restart."""

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
    # When all brokers are unreachable, librdkafka 2.16 forgets them and returns to the bootstrap addresses. A
    # transaction's request to a forgotten broker (TxnOffsetCommit) then waits forever.
    "metadata.recovery.strategy": "none",
    "log_level": 3,
}
"""Settings for librdkafka, whose defaults suit brokers that are rarely unavailable."""
VALUE_BYTES = 100


def now() -> float:
    return round(time.monotonic(), 4)


def start(options: dict[str, Any]) -> tuple[threading.Event, JournalWriter]:
    """Return an event that the test sets to end the load, and the journal."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.WARNING)
    end = threading.Event()
    # In a separate thread: a handler that sets an event deadlocks if it interrupts the wait for that event.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=lambda: signal.sigwait([signal.SIGTERM]) and end.set(), daemon=True).start()
    return end, JournalWriter(Path(options["journal"]))


def body(writer: str, partition: int, number: int) -> str:
    """Return the unique value of a record."""
    return f"{writer}/{partition}/{number}/".ljust(VALUE_BYTES, ".")


def by_partition(messages: Iterable[Message]) -> dict[int, list[tuple[int, str]]]:
    """Return (offset, value) of the messages without an error, by partition, in order."""
    found: dict[int, list[tuple[int, str]]] = {}
    for message in messages:
        partition, offset, value = message.partition(), message.offset(), message.value()
        if message.error() is None and partition is not None and offset is not None and isinstance(value, bytes):
            found.setdefault(partition, []).append((offset, value.decode()))
    return found
