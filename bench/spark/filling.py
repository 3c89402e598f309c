"""Fill topics for the Spark suites with values that compress like text, all different within a batch."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from itertools import cycle, islice, repeat

from confluent_kafka import KafkaError, Message, Producer

DISTINCT = 50_000
SEED = 20130101
LIMIT_S = 300.0
NAMES = ("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "delay")


def values(size_bytes: int, count: int = DISTINCT, seed: int = SEED) -> list[bytes]:
    """Return texts of that size: fields with repeated names and different numbers."""
    source = random.Random(seed)
    made = []
    for number in range(count):
        text = f'{{"id":{number}'
        while len(text) < size_bytes:
            text += f',"{source.choice(NAMES)}":{source.randrange(10**6)}'
        made.append(text[: size_bytes - 1].encode() + b"}")
    return made


class _Failures(list[str]):
    def delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.append(str(error))


def fill(address: str, topic: str, size_bytes: int, messages: int, codec: str) -> None:
    """Fill a topic. Raises RuntimeError if not every message was acknowledged."""
    failures = _Failures()
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 2_000_000,
            "delivery.report.only.error": True,
            "on_delivery": failures.delivered,
        }
    )
    left = messages
    texts = cycle(values(size_bytes))
    while left:
        part = min(left, 200_000)
        deque(map(producer.produce, repeat(topic), islice(texts, part)), maxlen=0)
        producer.poll(0)
        left -= part
    unsent = producer.flush(LIMIT_S)
    if unsent or failures:
        raise RuntimeError(f"{unsent} messages left after {LIMIT_S:.0f} s; failures: {failures[:3]}")


class Pace:
    """Messages at a fixed rate from a thread, while the block runs."""

    def __init__(self, address: str, topic: str, size_bytes: int, rate_per_s: int) -> None:
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
        self._topic, self._rate = topic, rate_per_s
        self._values = cycle(values(size_bytes, 1000))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stopped.wait(0.01):
            due = int((time.monotonic() - began) * self._rate)
            for _ in range(due - sent):
                self._producer.produce(self._topic, next(self._values))
            sent = max(sent, due)
            self._producer.poll(0)

    def __enter__(self) -> Pace:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()
        left = self._producer.flush(30)
        if left and error[0] is None:
            raise RuntimeError(f"{left} messages were not acknowledged in 30 s")
