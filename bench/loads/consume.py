"""Consume a whole topic at full speed with librdkafka, from assigned partitions (no group protocol in the section)."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from bench.loads.section import Section
from bench.loads.specs import Consume as Spec
from bench.loads.specs import Metrics

BATCH = 10_000


def run(spec: Spec) -> Metrics:
    """Reads ``spec.messages``; RuntimeError where the topic does not give them in time."""
    consumer = Consumer({"bootstrap.servers": spec.address, "group.id": "bench", "enable.auto.commit": False})
    try:
        consumer.list_topics(spec.topic, timeout=30)
        section = Section(spec.broker_pids)
        consumer.assign([TopicPartition(spec.topic, index, 0) for index in range(spec.partitions)])
        seen, calls = _read(consumer, spec)
        metrics = section.finish(seen, spec.size_bytes)
    finally:
        consumer.close()
    return {**metrics, "messages_per_call": seen / calls}


def _read(consumer: Consumer, spec: Spec) -> tuple[int, int]:
    deadline = time.monotonic() + spec.limit_s
    seen = calls = 0
    while seen < spec.messages:
        messages = consumer.consume(BATCH, timeout=0.05)
        calls += 1
        if messages:
            error = messages[-1].error()
            if error is not None:
                raise RuntimeError(f"consuming failed: {error}")
            seen += len(messages)
        elif time.monotonic() > deadline:
            raise RuntimeError(f"only {seen} of {spec.messages} messages came in {spec.limit_s} s")
    return seen, calls
