"""Bring new brokers to a steady state before the first suite counts."""

from __future__ import annotations

from bench.loads import specs
from bench.peers.service import Service
from bench.session import Session
from bench.suites import work

PRODUCE_LIMIT_S = 45.0
CONSUME_LIMIT_S = 15.0
SINGLE_LIMIT_S = 20.0
WINDOW = 6  # sections; a just-in-time compiler improves in steps with plateaus between them
SIZE_BYTES = 1024
SINGLE_REQUESTS = 8000


def warm_up(session: Session, brokers: list[Service]) -> None:
    """Run small produce requests, reads of whole topics and single requests, each until its cost is steady."""
    messages = session.options.messages(SIZE_BYTES)
    for lane in session.rivals(work.real(brokers), durable=False):
        with session.topic(lane, work.PARTITIONS) as topic:
            todo: list[tuple[specs.AnySpec, float]] = [
                (work.produce(session, lane, topic, SIZE_BYTES, 1, messages, small=True), PRODUCE_LIMIT_S),
                (work.consume(session, lane, topic, SIZE_BYTES, messages), CONSUME_LIMIT_S),
                (work.one_by_one(session, lane, topic, SIZE_BYTES, SINGLE_REQUESTS), SINGLE_LIMIT_S),
            ]
            for spec, limit_s in todo:
                session.warm_up(lane, spec, limit_s, WINDOW)
