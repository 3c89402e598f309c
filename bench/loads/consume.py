"""Consume a whole topic at full speed with librdkafka, from assigned partitions (no group protocol in the section).

A section that is to last longer reads the topic again. librdkafka asks for more as soon as it has an answer, so at the
end of a topic one fetch waits on the broker until its wait is over, and cannot be taken back. Two consumers therefore
take turns: while one reads, the other's last fetch comes back.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from bench.loads.section import Section
from bench.loads.specs import Consume as Spec
from bench.loads.specs import Metrics

BATCH = 10_000
WAIT_MS = 50
"""How long a fetch hangs at a topic's end: less than it takes to read a topic once."""
READS_ON: dict[str, str | int] = {"fetch.wait.max.ms": WAIT_MS, "fetch.queue.backoff.ms": 5}
"""By default librdkafka pauses for a second whenever 100,000 messages lie in its queue, which a core takes out of it in
a tenth of that: then neither the broker nor the client would be measured."""


def run(spec: Spec) -> Metrics:
    """Reads ``spec.messages``, and again until ``spec.seconds`` are over; RuntimeError where the topic does not give
    them in time."""
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
    """One consumer, which has nothing under way except while it reads."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.consumer = Consumer(
            {"bootstrap.servers": spec.address, "group.id": "bench", "enable.auto.commit": False, **READS_ON}
        )
        self.calls = 0

    def connect(self) -> None:
        """Learns of the topic, and asks its leader something: the records will come by that connection."""
        self.consumer.list_topics(self.spec.topic, timeout=30)
        self.consumer.get_watermark_offsets(TopicPartition(self.spec.topic, 0), timeout=30)

    def read(self, deadline: float) -> None:
        """The whole topic once."""
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
