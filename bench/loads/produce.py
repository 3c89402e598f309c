"""Produce at full speed with librdkafka.

A loop in C (`deque` over `map`) passes all messages to librdkafka, whose queue has room for all of them. Delivery
reports come for failures only. This minimizes the client's CPU time.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from itertools import cycle, repeat
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from bench.loads.section import Section
from bench.loads.specs import Metrics
from bench.loads.specs import Produce as Spec

STATISTICS_MS = 200
VOCABULARY = 2_000
VALUES = 257


class _Observer:
    """librdkafka's callbacks: records failures and the newest statistics."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.statistics: dict[str, Any] = {}

    def delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))

    def counted(self, text: str) -> None:
        self.statistics = json.loads(text)

    def messages_per_request(self) -> float:
        brokers = self.statistics.get("brokers", {}).values()
        requests = sum(broker["req"].get("Produce", 0) for broker in brokers)
        return float(self.statistics.get("txmsgs", 0)) / requests if requests else 0.0


def run(spec: Spec) -> Metrics:
    """Produce `spec.messages` messages. Raises RuntimeError if one failed or the time limit passed."""
    observer = _Observer()
    producer = Producer(
        {
            "bootstrap.servers": spec.address,
            "acks": spec.acks,
            "queue.buffering.max.messages": spec.messages + 1000,
            "queue.buffering.max.kbytes": 2_000_000,
            "delivery.report.only.error": True,
            "on_delivery": observer.delivered,
            "statistics.interval.ms": STATISTICS_MS,
            "stats_cb": observer.counted,
            **spec.settings,
        }
    )
    values = texts(spec.size_bytes) if spec.text else [b"x" * spec.size_bytes]
    producer.produce(spec.topic, values[0])
    if producer.flush(spec.limit_s):
        raise RuntimeError(f"the first message was not accepted in {spec.limit_s} s: {observer.failures}")
    section = Section(spec.broker_pids)
    deque(map(producer.produce, repeat(spec.topic, spec.messages), cycle(values)), maxlen=0)
    left = producer.flush(spec.limit_s)
    metrics = section.finish(spec.messages, spec.size_bytes)
    if left or observer.failures:
        raise RuntimeError(f"{left} messages left after {spec.limit_s} s; failures: {observer.failures[:3]}")
    _wait_for_statistics(producer, observer, spec.messages)
    return {**metrics, "messages_per_request": observer.messages_per_request()}


def texts(size_bytes: int) -> list[bytes]:
    """Return different values of `size_bytes` on average, which compress like text; the same ones in each call."""
    rng = random.Random(size_bytes)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(VOCABULARY)]
    made = []
    for index in range(VALUES):
        length = size_bytes // 2 + size_bytes * index // (VALUES - 1)
        text = " ".join(rng.choices(words, k=length // 3 + 1))
        made.append(text[:length].encode())
    rng.shuffle(made)
    return made


def _wait_for_statistics(producer: Producer, observer: _Observer, messages: int) -> None:
    deadline = time.monotonic() + 5 * STATISTICS_MS / 1000
    while time.monotonic() < deadline and observer.statistics.get("txmsgs", 0) < messages:
        producer.poll(0.05)
