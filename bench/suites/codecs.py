"""Produce compressible text with each codec, and into topics whose codec differs from the producer's.

Brokers decompress batches that they inspect (decision 0034), so each case has a lane in which Penstock inspects
nothing.
"""

from __future__ import annotations

from contextlib import ExitStack

import msgspec

from bench.loads import specs
from bench.requirements import size_name
from bench.session import Lane, Session
from bench.suites import work
from bench.suites.warming import warm_up

ROUNDS = 5
CODECS = ("none", "lz4", "snappy", "zstd", "gzip")
STORED = "lz4"
UNCHECKED = {"penstock.record.validation": "none"}


def run(session: Session) -> None:
    """Measure acks=1, unflushed; the client compresses, and the broker's CPU counts."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("codecs", rounds, megabytes=str(session.options.megabytes))
    lanes = session.rivals(work.real(session.standing_brokers(warm_up)), durable=False)
    subject, *peers = lanes
    unchecked = Lane(f"{subject.name} unchecked", subject.broker, subject.topic_settings | UNCHECKED)
    stored = [Lane(lane.name, lane.broker, lane.topic_settings | {"compression.type": STORED}) for lane in lanes]
    for size in session.options.sizes:
        for codec in CODECS:
            _case(session, f"{codec} {size_name(size)}", [subject, unchecked, *peers], rounds, size, codec)
        for codec in ("none", "zstd"):
            _case(session, f"{codec} stored as {STORED} {size_name(size)}", stored, rounds, size, codec)


def _case(session: Session, case: str, lanes: list[Lane], rounds: int, size_bytes: int, codec: str) -> None:
    with ExitStack() as stack:
        topics = {lane.name: stack.enter_context(session.topic(lane, work.PARTITIONS)) for lane in lanes}
        messages = session.options.messages(size_bytes)

        def spec(lane: Lane) -> specs.Produce:
            plain = work.produce(session, lane, topics[lane.name], size_bytes, 1, messages)
            return msgspec.structs.replace(plain, text=True, settings={"compression.type": codec})

        session.run_rounds(case, lanes, rounds, spec)
