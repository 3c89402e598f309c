"""Produces numbered messages and consumes them while a test replaces credentials, and measures latencies by phase.

phases.py SETTINGS TOPIC RATE RUN LIFE_S

Each line of standard input names the phase that begins; its end ends the run. Producer and consumer are replaced after
LIFE_S seconds, so that they connect and authenticate anew all the time; with 0, they keep their connections. Prints a
JSON line at the first acknowledgement, and one at the end: that of `load.py produce`, and `errors` (number by client
and name), `disordered` (partitions), `consumed`, `phases`: for each, the number of messages sent, and p50, p99 and
maximum in ms of the time from sending to acknowledgement and to consumption.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from load import TIMEOUT_S, Connection, ranges

FIRST_PHASE = "start"
CONSUMER_LIFE_FACTOR = 1.3
"""Producer and consumer are not replaced at the same time."""


class Phases:
    """Send times of messages, and their latencies by the phase in which they were sent."""

    def __init__(self) -> None:
        self.current = FIRST_PHASE
        self.errors: Counter[str] = Counter()
        self._sent: list[tuple[str, float]] = []
        self._acknowledged: dict[str, list[float]] = {}
        self._consumed: dict[str, list[float]] = {}

    def on_sent(self) -> None:
        self._sent.append((self.current, time.monotonic()))

    def on_acknowledged(self, number: int) -> None:
        phase, sent_s = self._sent[number]
        self._acknowledged.setdefault(phase, []).append(time.monotonic() - sent_s)

    def on_consumed(self, number: int) -> None:
        phase, sent_s = self._sent[number]
        self._consumed.setdefault(phase, []).append(time.monotonic() - sent_s)

    def count_error(self, client: str, error: KafkaError) -> None:
        self.errors[f"{client}: {error.name()}"] += 1

    def summary(self) -> dict[str, dict[str, Any]]:
        counts = Counter(phase for phase, _ in self._sent)
        return {
            phase: {
                "sent": count,
                "acknowledged_ms": percentiles_ms(self._acknowledged.get(phase, ())),
                "consumed_ms": percentiles_ms(self._consumed.get(phase, ())),
            }
            for phase, count in counts.items()
        }


def percentiles_ms(latencies_s: Sequence[float]) -> list[float]:
    """Return p50, p99 and maximum, in ms; an empty list without values."""
    ordered = sorted(latencies_s)
    return [round(ordered[math.ceil(share * len(ordered)) - 1] * 1000, 1) for share in (0.5, 0.99, 1.0) if ordered]


class Follower(threading.Thread):
    """Consumes all partitions from the end, without a group, and checks the order of the run's numbers."""

    def __init__(self, connection: Connection, topic: str, run: str, life_s: float, phases: Phases) -> None:
        super().__init__(daemon=True)
        self._connection, self._topic, self._run, self._phases = connection, topic, run, phases
        self._life_s = life_s * CONSUMER_LIFE_FACTOR
        self._positions: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._finished = threading.Event()
        self.consumed = 0
        self.disordered: set[int] = set()
        first = self._client()
        partitions = first.list_topics(topic, timeout=20).topics[topic].partitions
        for each in partitions:
            self._positions[each] = first.get_watermark_offsets(TopicPartition(topic, each), timeout=20)[1]
        first.close()

    def _client(self) -> Consumer:
        own = {"group.id": "e2e-follower", "enable.auto.commit": False, "log_level": 0, "fetch.wait.max.ms": 100}
        on_error = lambda error: self._phases.count_error("consumer", error)  # noqa: E731
        return Consumer({**self._connection, **own, "error_cb": on_error})

    def run(self) -> None:
        while not self._finished.is_set():
            consumer = self._client()
            consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in self._positions.items()])
            ends_s = time.monotonic() + (self._life_s or math.inf)
            while not self._finished.is_set() and time.monotonic() < ends_s:
                for message in consumer.consume(1_000, timeout=0.05):
                    self._consume(message)
            consumer.close()

    def _consume(self, message: Message) -> None:
        if (error := message.error()) is not None:
            self._phases.count_error("consumer", error)
            return
        partition = message.partition() or 0
        self._positions[partition] = (message.offset() or 0) + 1
        whose, _, text = (message.value() or b"").decode().partition(":")
        if whose != self._run:
            return
        number = int(text)
        if number <= self._last.get(partition, -1):
            self.disordered.add(partition)
        self._last[partition] = number
        self.consumed += 1
        self._phases.on_consumed(number)

    def finish(self, count: int) -> None:
        """Return when `count` messages are consumed, or time is up."""
        until_s = time.monotonic() + TIMEOUT_S
        while self.consumed < count and time.monotonic() < until_s:
            time.sleep(0.1)
        self._finished.set()
        self.join()


class Sender:
    """Produces one message after another, by one producer after another."""

    def __init__(self, connection: Connection, topic: str, run: str, phases: Phases) -> None:
        self._connection, self._topic, self._run, self._phases = connection, topic, run, phases
        self.sent = self.unanswered = 0
        self.acknowledged: set[int] = set()
        self.failures: list[str] = []

    def produce(self, rate: float, life_s: float, stopped: threading.Event) -> None:
        """Produce until `stopped` is set. A producer has its messages acknowledged before the next one begins: this
        keeps the order."""
        began_s = time.monotonic()
        while not stopped.is_set():
            producer = self._client()
            ends_s = time.monotonic() + (life_s or math.inf)
            while not stopped.is_set() and time.monotonic() < ends_s:
                if self.sent < (time.monotonic() - began_s) * rate:
                    self._send(producer)
                producer.poll(0.001)
            self.unanswered += producer.flush(TIMEOUT_S)

    def _client(self) -> Producer:
        own = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": int(TIMEOUT_S * 1_000), "log_level": 0}
        on_error = lambda error: self._phases.count_error("producer", error)  # noqa: E731
        return Producer({**self._connection, **own, "error_cb": on_error})

    def _send(self, producer: Producer) -> None:
        number = self.sent
        self._phases.on_sent()
        self.sent += 1
        value, key = f"{self._run}:{number}".encode(), str(number % 997).encode()
        producer.produce(self._topic, value, key=key, on_delivery=self._on_delivery)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        number = int((message.value() or b"").split(b":")[1])
        self._phases.on_acknowledged(number)
        self.acknowledged.add(number)
        if len(self.acknowledged) == 1:
            print(json.dumps({"begun": True}), flush=True)


def main(settings: str, topic: str, rate: str, run: str, life_s: str) -> int:
    connection: Connection = json.loads(settings)
    phases, stopped = Phases(), threading.Event()

    def read_phases() -> None:
        for line in sys.stdin:
            phases.current = line.strip()
        stopped.set()

    follower = Follower(connection, topic, run, float(life_s), phases)
    follower.start()
    threading.Thread(target=read_phases, daemon=True).start()
    sender = Sender(connection, topic, run, phases)
    sender.produce(float(rate), float(life_s), stopped)
    follower.finish(len(sender.acknowledged))
    summary = {
        "run": run,
        "sent": sender.sent,
        "acknowledged": ranges(sender.acknowledged),
        "count": len(sender.acknowledged),
        "unanswered": sender.unanswered,
        "failures": sender.failures[:20],
        "errors": dict(phases.errors),
        "consumed": follower.consumed,
        "disordered": sorted(follower.disordered),
        "phases": phases.summary(),
    }
    print(json.dumps(summary), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
