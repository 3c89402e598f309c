"""Produce, consume, durable produce and small batches: broker CPU per message first, throughput second."""

from __future__ import annotations

from contextlib import ExitStack

from bench.loads import specs
from bench.requirements import size_name
from bench.session import Lane, Session
from bench.suites import work
from bench.suites.warming import warm_up

ROUNDS = 7
CONSUME_FACTOR = 4  # a larger volume than is produced, so that start and end have little weight
CONSUME_S = 1.2  # consuming is cheap: the client reads a topic repeatedly to make the section long enough


def produce_case(
    session: Session, case: str, lanes: list[Lane], rounds: int, size_bytes: int, acks: int, *, small: bool = False
) -> None:
    with ExitStack() as stack:
        topics = {lane.name: stack.enter_context(session.topic(lane, work.PARTITIONS)) for lane in lanes}
        messages = session.options.messages(size_bytes)

        def spec(lane: Lane) -> specs.Produce:
            return work.produce(session, lane, topics[lane.name], size_bytes, acks, messages, small=small)

        session.run_rounds(case, lanes, rounds, spec)


def consume_case(
    session: Session, case: str, lanes: list[Lane], rounds: int, size_bytes: int, *, small: bool = False
) -> None:
    with ExitStack() as stack:
        topics = {lane.name: stack.enter_context(session.topic(lane, work.PARTITIONS)) for lane in lanes}
        messages = session.options.messages(size_bytes, CONSUME_FACTOR)
        for lane in lanes:
            fill = work.produce(session, lane, topics[lane.name], size_bytes, 1, messages, small=small)
            session.measure(lane, fill, [lane.broker])

        def spec(lane: Lane) -> specs.Consume:
            return work.consume(session, lane, topics[lane.name], size_bytes, messages, seconds=CONSUME_S)

        session.run_rounds(case, lanes, rounds, spec)


def produce(session: Session) -> None:
    """Measure acks=1 and acks=all on topics flushed by the operating system; the mock is the upper bound."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("produce", rounds, megabytes=str(session.options.megabytes))
    brokers = session.standing_brokers(warm_up)
    for acks in session.options.acks:
        lanes = session.rivals(brokers if acks == 1 else work.real(brokers), durable=False)
        for size in session.options.sizes:
            case = f"acks={'all' if acks == -1 else acks} {size_name(size)}"
            produce_case(session, case, lanes, rounds, size, acks)


def consume(session: Session) -> None:
    """Read a topic from its beginning, out of the page cache."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("consume", rounds, megabytes=str(session.options.megabytes * CONSUME_FACTOR))
    lanes = session.rivals(work.real(session.standing_brokers(warm_up)), durable=False)
    for size in session.options.sizes:
        consume_case(session, size_name(size), lanes, rounds, size)


def durable(session: Session) -> None:
    """Measure acks=all that waits for the disk on both sides; at 1 KiB also an unflushed Kafka."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("durable", rounds, megabytes=str(session.options.megabytes))
    brokers = work.real(session.standing_brokers(warm_up))
    lanes = session.rivals(brokers, durable=True)
    unflushed = [
        Lane(f"{lane.name} unflushed", lane.broker, lane.topic_settings)
        for lane in session.rivals(brokers[1:], durable=False)
    ]
    for size in session.options.sizes:
        produce_case(session, size_name(size), lanes + unflushed if size == 1024 else lanes, rounds, size, -1)


def small_batches(session: Session) -> None:
    """Measure 16 KiB batches, linger 0, five requests in flight, and consuming them."""
    rounds = session.options.rounds_of(ROUNDS)
    session.open_suite("small-batches", rounds, megabytes=str(session.options.megabytes))
    lanes = session.rivals(work.real(session.standing_brokers(warm_up)), durable=False)
    for size in session.options.sizes:
        produce_case(session, f"produce {size_name(size)}", lanes, rounds, size, 1, small=True)
        consume_case(session, f"consume {size_name(size)}", lanes, rounds, size, small=True)
