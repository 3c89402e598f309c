"""Consume a whole topic at full speed with librdkafka, from assigned partitions (no group protocol in the section).

A longer section reads the topic again. librdkafka sends the next fetch as soon as it has a response, so at the end of a
topic one fetch stays on the broker for its whole wait time and cannot be cancelled. Two consumers therefore take turns:
while one reads, the last fetch of the other returns.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from bench.loads.section import Section
from bench.loads.specs import Consume as Spec
from bench.loads.specs import Metrics

BATCH = 10_000
WAIT_MS = 50
"""Wait time of a fetch at the end of a topic, shorter than reading a topic once."""
READS_ON: dict[str, str | int] = {"fetch.wait.max.ms": WAIT_MS, "fetch.queue.backoff.ms": 5}
"""By default librdkafka pauses for a second when its queue holds 100,000 messages. A core drains the queue in a tenth
of that time, so the section would measure neither the broker nor the client."""


def run(spec: Spec) -> Metrics:
    """Read `spec.messages` messages, and again for `spec.seconds` seconds. Raises RuntimeError if the time limit
    passes."""
    readers = [_Reader(spec) for _ in range(2 if spec.seconds else 1)]
    try:
        for reader in readers:
            reader.connect()
        deadline = time.monotonic() + spec.limit_s
        section = Section(spec.broker_pids)
        ends = time.monotonic() + spec.seconds
        passes = 0
        while passes == 0 or time.monotonic() < ends:
            readers[passes % len(readers)].read(deadline)
            passes += 1
        metrics = section.finish(passes * spec.messages, spec.size_bytes)
    finally:
        for reader in readers:
            reader.consumer.close()
    calls = sum(reader.calls for reader in readers)
    return {**metrics, "passes": passes, "messages_per_call": passes * spec.messages / calls}


class _Reader:
    """One consumer, which has requests in flight only while it reads."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.consumer = Consumer(
            {
                "bootstrap.servers": spec.address,
                "group.id": "bench",
                "enable.auto.commit": False,
                **READS_ON,
                **spec.settings,
            }
        )
        self.calls = 0

    def connect(self) -> None:
        """Fetch the topic's metadata and send its leader a request, which opens the connection for the records."""
        self.consumer.list_topics(self.spec.topic, timeout=30)
        self.consumer.get_watermark_offsets(TopicPartition(self.spec.topic, 0), timeout=30)

    def read(self, deadline: float) -> None:
        """Read the whole topic once."""
        wanted = self.spec.messages
        partitions = range(self.spec.partitions)
        self.consumer.assign([TopicPartition(self.spec.topic, index, 0) for index in partitions])
        seen = 0
        while seen < wanted:
            messages = self.consumer.consume(min(BATCH, wanted - seen), timeout=0.05)
            self.calls += 1
            if messages:
                error = messages[-1].error()
                if error is not None:
                    raise RuntimeError(f"consuming failed: {error}")
                seen += len(messages)
            elif time.monotonic() > deadline:
                raise RuntimeError(f"only {seen} of {wanted} messages came in {self.spec.limit_s} s")
        self.consumer.unassign()
